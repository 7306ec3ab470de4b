package index

import (
	"context"
	"fmt"
	"testing"
)

// hybrids is an index of pods with some groups, all of which hold a prompt of units of 16 tokens.
type hybrids struct {
	m    *memory
	q    Query
	out  Matches
	keys []Key
}

// heldGroup is a group and its blocks: the last ones of the prompt, all with last 0; with gap, all
// of these except each gap-th.
type heldGroup struct {
	Group
	size, last, gap int
}

func newHybrids(tb testing.TB, units, pods int, groups ...heldGroup) *hybrids {
	tb.Helper()
	m, err := newMemory(MemoryConfig{})
	must(tb, err)
	tb.Cleanup(func() { m.Close() })
	h := &hybrids{m: m}
	locals, hashes := make([]Local, units), make([]Hash, units)
	key := Key(1)
	for i := range units {
		locals[i], hashes[i] = Local(i), Hash(i+1)
		key = Chain(key, locals[i])
		h.keys = append(h.keys, key)
	}
	var names []string
	for pod := range pods {
		names = append(names, fmt.Sprint(pod))
		var changes []Change
		for _, g := range groups {
			n := g.size / 16
			c := Change{
				Op: OpStore, Group: g.Group, Copies: CopiesExact, Variant: Variant{Unit: 16}, BlockSize: g.size,
				Locals: locals[:units/n*n], Root: 1,
			}
			for b := range units / n {
				if (g.last == 0 || b >= units/n-g.last) && (g.gap == 0 || b%g.gap > 0) {
					c.Hashes = append(c.Hashes, hashes[(b+1)*n-1])
				}
			}
			changes = append(changes, c)
		}
		if _, err := m.Apply(context.Background(), Source{Pod: names[pod], Model: "m"}, Cursor{}, changes); err != nil {
			tb.Fatal(err)
		}
	}
	h.q = Query{Candidates: NewCandidates("m", names), Keys: func(Variant) ([]Key, error) { return h.keys, nil }}
	h.match(tb)
	if rows := pods * len(groups); len(h.out.Rows) != rows {
		tb.Fatalf("%d rows, want %d", len(h.out.Rows), rows)
	}
	return h
}

func (h *hybrids) match(tb testing.TB) {
	must(tb, h.m.Match(context.Background(), &h.q, &h.out))
}

var (
	fullGroup   = heldGroup{Group: Group{}, size: 16}
	windowGroup = heldGroup{Group: Group{ID: 1, Kind: GroupWindow, Window: 1024}, size: 16, last: 64}
	mambaGroup  = heldGroup{Group: Group{ID: 2, Kind: GroupMamba}, size: 16, last: 1}
)

// A Match with used Matches allocates nothing, with and without bits.
func TestMatchAllocatesNothing(t *testing.T) {
	for name, groups := range map[string][]heldGroup{
		"full":   {fullGroup},
		"hybrid": {fullGroup, windowGroup, mambaGroup},
	} {
		h := newHybrids(t, 200, 5, groups...)
		for _, h.q.Held = range []bool{false, true} {
			if n := testing.AllocsPerRun(20, func() { h.match(t) }); n > 0 {
				t.Errorf("%s, held %v: %v allocations", name, h.q.Held, n)
			}
		}
	}
}

// The Layout of later answers is the same until a store changes it.
func TestLayoutStays(t *testing.T) {
	h := newHybrids(t, 8, 1, fullGroup, windowGroup)
	was := h.out.Rows[0].Layout
	tell := func(c Change) *Layout {
		t.Helper()
		if _, err := h.m.Apply(context.Background(), Source{Pod: "0", Model: "m"}, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
		h.match(t)
		return h.out.Rows[0].Layout
	}
	again := Change{Op: OpStore, Copies: CopiesExact, Tier: TierCPU, Group: windowGroup.Group, Hashes: []Hash{1}}
	if tell(again) != was {
		t.Error("another Layout, although nothing is new")
	}
	again.Group.ID = 5
	if l := tell(again); l == was || len(was.Groups) != 2 || len(l.Groups) != 3 {
		t.Errorf("%+v became %+v", was, l)
	}
}
