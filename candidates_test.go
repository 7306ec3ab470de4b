package kvindex_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// The best pods of an answer are those that the whole answer begins with.
func TestTop(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 5)
	for pod, n := range map[string]int{"a": 1, "b": 3, "c": 0, "d": 3, "e": 2, "f": 1, "g": 3} {
		ingest(t, ix, pod, p.Stored(0, 1), p.Removed(0))
		if n > 0 {
			ingest(t, ix, pod, p.Stored(0, n))
		}
	}
	all := score(t, ix, kvindex.Request{Tokens: p.Tokens})
	for top := 1; top <= len(all)+1; top++ {
		got := score(t, ix, kvindex.Request{Tokens: p.Tokens, Top: top})
		if want := all[:min(top, len(all))]; !slices.Equal(got, want) {
			t.Errorf("the best %d: %+v\nwant %+v", top, got, want)
		}
	}
	names := ""
	for _, s := range all {
		names += s.Pod
	}
	if names != "bdgeafc" {
		t.Errorf("order %q", names)
	}
}

// Of the ranks of a pod the one counts that would reuse the most, then the one
// that holds the most anywhere, then the first.
func TestRanks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	lower := func(from, to int) *fakeengine.Stored {
		s := p.Stored(from, to)
		s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, "cpu"
		return s
	}
	evicted := func(from, to int) (ev []fakeengine.Event) {
		ev = append(ev, p.Stored(from, to), lower(from, to))
		for b := from; b < to; b++ {
			ev = append(ev, p.Removed(b))
		}
		return ev
	}
	for name, c := range map[string]struct {
		ranks [][]fakeengine.Event
		want  int
	}{
		"cached":    {[][]fakeengine.Event{{p.Stored(0, 2)}, {p.Stored(0, 4)}, {p.Stored(0, 3)}}, 1},
		"matched":   {[][]fakeengine.Event{{p.Stored(0, 2)}, append([]fakeengine.Event{p.Stored(0, 2)}, evicted(2, 5)...), {p.Stored(0, 2)}}, 1},
		"the gpu":   {[][]fakeengine.Event{evicted(0, 8), {p.Stored(0, 1)}, evicted(0, 8)}, 1},
		"the first": {[][]fakeengine.Event{nil, {p.Stored(0, 2)}, {p.Stored(0, 2)}, {p.Stored(0, 2)}}, 1},
	} {
		ix := open(t)
		for backwards, pod := range []string{"a", "b"} {
			for i := range c.ranks {
				rank := i
				if backwards > 0 {
					rank = len(c.ranks) - 1 - i
				}
				if err := ix.Ingest(pod, "m", fakeengine.Payload(1, rank, c.ranks[rank]...)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens}) {
			if s.Rank != c.want {
				t.Errorf("%s: pod %s: rank %d, want %d", name, s.Pod, s.Rank, c.want)
			}
		}
	}
}

// Candidates follow pods, models and adapters as they come and go.
func TestCandidates(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	every, named, adapter := ix.Candidates("m", nil), ix.Candidates("m", []string{"b", "a", "b"}), ix.Candidates("sql", []string{"b"})
	see := func(when, wantEvery, wantNamed, wantAdapter string) {
		t.Helper()
		for c, want := range map[*kvindex.Candidates]string{every: wantEvery, named: wantNamed, adapter: wantAdapter} {
			var a kvindex.Answer
			if err := ix.ScoreRequest(ctx, &kvindex.Request{Tokens: p.Tokens, Candidates: c}, &a); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, s := range a.Pods {
				got += fmt.Sprintf("%s%d%v ", s.Pod, s.MatchedBlocks, s.State)
			}
			if got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
	}
	see("nobody", "", "a0unknown b0unknown ", "b0unknown ")
	ingest(t, ix, "b", p.Stored(0, 2))
	see("b", "b2live ", "b2live a0unknown ", "b0unknown ")
	ingest(t, ix, "c", p.Stored(0, 3))
	see("c", "c3live b2live ", "b2live a0unknown ", "b0unknown ")
	q := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 2 << 32}.Stored(0, 1)
	q.Adapter = "sql"
	ingest(t, ix, "b", q)
	see("an adapter", "c3live b2live ", "b2live a0unknown ", "b1live ")
	if err := ix.RemovePod("b"); err != nil {
		t.Fatal(err)
	}
	see("b has gone", "c3live ", "a0unknown b0unknown ", "b0unknown ")
	ingest(t, ix, "b", p.Stored(0, 1))
	see("b is back", "c3live b1live ", "b1live a0unknown ", "b0unknown ")
	for name, r := range map[string]kvindex.Request{
		"pods":  {Candidates: every, Pods: []string{"b"}},
		"model": {Candidates: every, Model: "other"},
	} {
		r.Tokens = p.Tokens
		if err := ix.ScoreRequest(ctx, &r, new(kvindex.Answer)); !errors.Is(err, kvindex.ErrRequest) {
			t.Errorf("candidates and another %s: %v", name, err)
		}
	}
}
