package view

import (
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
)

func TestPod(t *testing.T) {
	var none *Pod
	if f := none.Facts(); f != (Facts{}) || none.Ranks() != nil {
		t.Errorf("a pod that is not known: %+v, %v", f, none.Ranks())
	}
	var p Pod
	for state := Unknown; state <= Approximate; state++ {
		for set := range 64 {
			f := Facts{State: state, Hybrid: set&1 != 0, Less: set&2 != 0, Tiered: set&4 != 0, Paged: set&8 != 0, Single: set&16 != 0, Loose: set&32 != 0}
			if p.Publish(f); p.Facts() != f {
				t.Errorf("published %+v, got %+v", f, p.Facts())
			}
		}
	}
	p.Publish(Facts{State: Silent})
	p.PublishRanks([]Rank{{0, Live}, {3, Partial}})
	var got []State
	for _, rank := range []int{0, 1, 3} {
		got = append(got, p.StateOf(rank))
	}
	if want := []State{Live, Silent, Partial}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
}

// TestPlansAreKept: a pod has room for some plans of each rank.
func TestPlansAreKept(t *testing.T) {
	for _, c := range []struct{ layouts, ranks, kept int }{{3, 1, 3}, {100, 8, 18}} {
		var ps Plans
		var l *index.Layout
		var last *Plan
		for n := range c.layouts {
			l = &index.Layout{Groups: []index.GroupLayout{{Group: index.Group{Kind: index.GroupMamba}, BlockSize: 16 + n}}}
			last = ps.Of(l, &engine.Profile{}, c.ranks)
		}
		if kept := len(*ps.all.Load()); kept != c.kept {
			t.Errorf("%+v: %d plans are kept", c, kept)
		}
		if ps.Of(l, &engine.Profile{}, c.ranks) != last {
			t.Errorf("%+v: the last plan is made again", c)
		}
	}
}
