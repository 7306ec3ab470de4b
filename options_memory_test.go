package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/inmemory"
)

// flood stores other prompts on a pod until ok.
func flood(t testing.TB, ix *kvindex.Indexer, r *rand.Rand, pod string, ok func() bool) {
	t.Helper()
	for n := 0; !ok(); n++ {
		if n == 4000 {
			t.Fatal("nothing was given up")
		}
		p := fakeengine.Prompt{Tokens: randomTokens(r, 64*16), Size: 16, Hash: r.Uint64()}
		ingest(t, ix, pod, p.Stored(0, 64))
	}
}

// source returns a pod of one rank, and the rank.
func source(t testing.TB, ix *kvindex.Indexer, pod string) (kvindex.PodInfo, kvindex.RankInfo) {
	t.Helper()
	for _, p := range ix.Pods(nil) {
		if p.Pod == pod {
			return p, p.Ranks[0]
		}
	}
	t.Fatalf("no pod %q", pod)
	return kvindex.PodInfo{}, kvindex.RankInfo{}
}

// TestEvicted: a rank with evicted blocks reports so everywhere, until it is cleared.
func TestEvicted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	ix := open(t, kvindex.WithMemory(index.MinMemory))
	cold, again := fakeengine.NewPrompt(1, 16, 40), fakeengine.NewPrompt(2, 16, 4)
	ingest(t, ix, "a", cold.Stored(0, 40))
	ingest(t, ix, "hybrid", cold.Stored(0, 40), &fakeengine.Stored{Hashes: again.Stored(0, 1).Hashes, Tokens: again.Tokens[:16], BlockSize: 16, Medium: fakeengine.MediumGPU, Group: 1, Kind: "mamba"})
	for _, pod := range []string{"a", "hybrid"} {
		if info, s := source(t, ix, pod); info.State != kvindex.StateLive || s.State != kvindex.StateLive || s.Evicted != 0 || info.WantsFullReport {
			t.Fatalf("%s, before: %v, %+v", pod, info.State, s)
		}
	}
	flood(t, ix, r, "b", func() bool {
		_, a := source(t, ix, "a")
		_, h := source(t, ix, "hybrid")
		return a.Evicted > 0 && h.Evicted > 0 && blocks(t, ix, "a", cold) < 40
	})
	for _, pod := range []string{"a", "hybrid"} {
		info, s := source(t, ix, pod)
		if info.State != kvindex.StatePartial || s.State != kvindex.StatePartial || info.WantsFullReport != (pod == "a") {
			t.Errorf("%s: %v, full report %v, %+v", pod, info.State, info.WantsFullReport, s)
		}
	}
	if u := ix.Stats().Index; u.Evicted == 0 || u.Total > u.Budget || u.Budget != index.MinMemory {
		t.Errorf("usage: %+v", u)
	}
	// A score that counts a block reports the eviction for the pod and for its rank, even if other
	// ranks lost nothing.
	ingest(t, ix, "a", again.Stored(0, 4))
	must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 1, again.Stored(0, 4))))
	ingest(t, ix, "c", again.Stored(0, 4))
	want := func(pod string, rank int, state kvindex.State, ranks bool) {
		t.Helper()
		for _, s := range score(t, ix, kvindex.Request{Tokens: again.Tokens, Pods: []string{pod}, Ranks: ranks}) {
			if s.Rank == rank && (s.CachedTokens != 48 || s.State != state) {
				t.Errorf("pod %s, rank %d: %+v, want %v", pod, rank, s, state)
			}
		}
	}
	want("a", 0, kvindex.StatePartial, false)
	want("a", 0, kvindex.StatePartial, true)
	want("a", 1, kvindex.StateLive, true)
	want("c", 0, kvindex.StateLive, false)

	ingest(t, ix, "a", fakeengine.Cleared{}, again.Stored(0, 4))
	if info, s := source(t, ix, "a"); info.State != kvindex.StateLive || s.State != kvindex.StateLive || s.Evicted != 0 || info.WantsFullReport {
		t.Errorf("after a clear: %v, %+v", info.State, s)
	}
	want("a", 0, kvindex.StateLive, false)
	want("a", 0, kvindex.StateLive, true)
}

// lister is an index that reports evictions for the ranks of a pod.
type lister struct {
	inmemory.Memory
	pod string
}

func (l lister) Describe(dst []index.SourceInfo) []index.SourceInfo {
	dst = l.Memory.Describe(dst)
	for i := range dst {
		if dst[i].Source.Pod == l.pod {
			dst[i].Evicted = 7
		}
	}
	return dst
}

func (l lister) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	err := l.Memory.Match(ctx, q, m)
	for i := range m.Rows {
		m.Rows[i].Evicted = m.Rows[i].Source.Pod == l.pod
	}
	return err
}

// An eviction makes no state better.
func TestEvictedIsPartialAtBest(t *testing.T) {
	m := memory(t)
	ix := open(t, kvindex.WithIndex(lister{m, "a"}), kvindex.WithKeepOnLoss())
	p := fakeengine.NewPrompt(1, 16, 3)
	for _, state := range []kvindex.State{kvindex.StatePartial, kvindex.StateUncertain} {
		ingest(t, ix, "a", p.Stored(0, 3))
		info, s := source(t, ix, "a")
		got := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]
		if info.State != state || s.State != state || s.Evicted != 7 || got.State != state || got.UpperBound {
			t.Errorf("%v, %+v, %+v, want %v", info.State, s, got, state)
		}
		must(t, ix.MarkLost("a", 0))
	}
}

// small opens an Indexer over an index with room for so many sources; the caller may change the
// room.
func small(t *testing.T, room int, opts ...kvindex.Option) (*kvindex.Indexer, *int) {
	t.Helper()
	m := &alteredIndex{Memory: memory(t)}
	m.before = func(_ context.Context, call string, src index.Source) error {
		sources := m.Describe(nil)
		if call != "Apply" || len(sources) < room || slices.ContainsFunc(sources, func(s index.SourceInfo) bool { return s.Source == src }) {
			return nil
		}
		return fmt.Errorf("%w: pod %q of %d bytes", index.ErrFull, src.Pod, index.MinMemory)
	}
	return open(t, append(opts, kvindex.WithIndex(m))...), &room
}

// TestNoRoom: messages for a rank without room in the index are errors, counted and lost for that
// rank alone. Once there is room, its next message is applied.
func TestNoRoom(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for _, numbered := range []bool{true, false} {
		t.Run(fmt.Sprintf("numbered=%v", numbered), func(t *testing.T) {
			var losses []kvindex.Loss
			ix, room := small(t, 1, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
			next := uint64(0)
			// say sends a message of a rank over the stream of pod a.
			say := func(rank int, evs ...fakeengine.Event) (kvindex.Receipt, error) {
				m := message("s", next, float64(next+1), rank, evs...)
				next++
				if numbered {
					return ix.IngestMessage(m)
				}
				return kvindex.Receipt{Applied: true}, ix.Ingest("a", "m", m.Payload)
			}
			if r, err := say(0, p.Stored(0, 2)); err != nil || !r.Applied {
				t.Fatal(r, err)
			}
			for n := range 3 {
				r, err := say(1, p.Stored(n, n+1))
				if !errors.Is(err, kvindex.ErrFull) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), fmt.Sprint(index.MinMemory)) || numbered && (!r.NoRoom || r.Applied) {
					t.Fatalf("no room: %+v, %v", r, err)
				}
				if len(losses) != n+1 || losses[n].Cause != "full" || losses[n].Rank != 1 || losses[n].Err == nil || losses[n].Kept {
					t.Fatalf("losses %+v", losses)
				}
			}
			// No other rank has lost anything.
			if r, err := say(0, p.Stored(2, 4)); err != nil || r != (kvindex.Receipt{Applied: true}) {
				t.Fatalf("another rank: %+v, %v", r, err)
			}
			ranks := func(state kvindex.State, blocks ...int) {
				t.Helper()
				for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}, Ranks: true}) {
					want := state
					if s.Rank == 0 {
						want = kvindex.StateLive
					}
					if s.MatchedBlocks != blocks[s.Rank] || s.State != want {
						t.Errorf("rank %d: %d blocks, %v, want %d, %v", s.Rank, s.MatchedBlocks, s.State, blocks[s.Rank], want)
					}
				}
			}
			ranks(kvindex.StatePartial, 4, 0)
			st := ix.Stats()
			if st.NoRoom != 3 || st.Messages != 5 || st.Missing+st.Gaps != 0 || len(losses) != 3 {
				t.Errorf("%+v, losses %+v", st.Traffic, losses)
			}
			if s := ix.Pods(nil)[0].Ranks; s[0].Messages != 2 || s[1].Messages != 0 {
				t.Errorf("%+v", s)
			}
			if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: fakeengine.NewPrompt(9, 16, 1).Tokens}, "a"); e.Cause != "lost" || e.Detail != "full" || !strings.Contains(e.Why, "WithMemory") {
				t.Errorf("%v", e)
			}
			// The rank can only be marked lost, or be removed.
			if err := ix.MarkLost("a", 1); err != nil {
				t.Error(err)
			}
			*room = 2
			if r, err := say(1, p.Stored(0, 3)); err != nil || r != (kvindex.Receipt{Applied: true}) {
				t.Fatalf("with room: %+v, %v", r, err)
			}
			ranks(kvindex.StatePartial, 4, 3)
			if _, err := say(1, fakeengine.Cleared{}, p.Stored(0, 1)); err != nil {
				t.Fatal(err)
			}
			ranks(kvindex.StateLive, 4, 1)
			must(t, ix.RemovePod("a"))
		})
	}
}

// A rank's losses are kept, whatever message comes first.
func TestNoRoomForTheFirst(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix, _ := small(t, 1)
	other := message("o", 0, 1, 0, p.Stored(0, 1))
	other.Pod = "b"
	brings(other)(t, ix)
	for _, m := range []kvindex.Message{
		message("s", 0, 1, 0, p.Stored(0, 1)),       // the engine's first
		hold(message("s", 1, 2, 0, p.Stored(1, 2))), // no gap to query the engine about
		replayed(message("s", 2, 3, 0, p.Stored(2, 3))),
		message("s", 0, 9, 0, p.Stored(0, 2)), // the engine restarted
	} {
		if r, err := ix.IngestMessage(m); !errors.Is(err, kvindex.ErrFull) || !r.NoRoom || r.Held {
			t.Fatalf("message %d: %+v, %v", m.Seq, r, err)
		}
		if r, err := ix.IngestMessage(m); err != nil || !r.Duplicate {
			t.Errorf("message %d again: %+v, %v", m.Seq, r, err)
		}
	}
	must(t, ix.RemovePod("b"))
	play(t, ix, p,
		step{message("s", 1, 10, 0, p.Stored(2, 3)), taken, 0, kvindex.StatePartial}, // its parent was lost
		step{message("s", 2, 11, 0, p.Stored(0, 2)), taken, 3, kvindex.StatePartial},
		step{message("s", 0, 20, 0, p.Stored(0, 1)), kvindex.Receipt{Applied: true, Restarted: true}, 1, kvindex.StateLive},
	)
}

// TestManyPods: pods without room in the smallest index are reported, and the others go on. New
// pods have room once old ones are removed.
func TestManyPods(t *testing.T) {
	ix := open(t, kvindex.WithMemory(index.MinMemory))
	p := fakeengine.NewPrompt(1, 16, 4)
	var in, out []string
	say := func(pod string) error { return ix.Ingest(pod, "m", fakeengine.Payload(1, 0, p.Stored(0, 4))) }
	for n := range 3000 {
		pod := fmt.Sprint("pod-", n)
		switch err := say(pod); {
		case err == nil:
			in = append(in, pod)
		case errors.Is(err, kvindex.ErrFull) && strings.Contains(err.Error(), pod) && strings.Contains(err.Error(), fmt.Sprint(index.MinMemory)):
			out = append(out, pod)
		default:
			t.Fatal(err)
		}
	}
	t.Logf("%d pods are in, %d are not", len(in), len(out))
	st := ix.Stats()
	if len(in) == 0 || st.NoRoom != uint64(len(out)) || st.Index.Total > st.Index.Budget {
		t.Errorf("%d pods are in, %d are not, %+v", len(in), len(out), st)
	}
	for _, info := range ix.Pods(nil) {
		s := info.Ranks[0]
		if had := s.Blocks[kvindex.TierGPU] + int(s.Evicted); had != 4 && (had != 0 || s.State != kvindex.StatePartial) {
			t.Fatalf("%s: %+v", info.Pod, s)
		}
	}
	for _, pod := range in {
		must(t, ix.RemovePod(pod))
	}
	for _, pod := range out[:min(1, len(out))] {
		must(t, say(pod))
		if info, s := source(t, ix, pod); s.Blocks[kvindex.TierGPU] != 4 || info.State != kvindex.StatePartial {
			t.Fatalf("%s came back as %v, %+v", pod, info.State, s)
		}
	}
}

// TestLongNames: the names that an Indexer keeps have a maximum length.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", kvindex.MaxName+1)
	fits := long[1:]
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 1)
	payload := fakeengine.Payload(1, 0, p.Stored(0, 1))
	for _, c := range []struct{ pod, model, stream, what string }{
		{long, "m", "s", "name of the pod has 1025 bytes"},
		{"a", long, "s", "name of the model has 1025 bytes"},
		{"a", "m", long, "name of the stream has 1025 bytes"},
		{fits, fits, fits, ""},
	} {
		_, err := ix.IngestMessage(kvindex.Message{Pod: c.pod, Model: c.model, Stream: c.stream, Payload: payload})
		if (err == nil) != (c.what == "") || err != nil && (!strings.Contains(err.Error(), c.what) || len(err.Error()) > 400) {
			t.Errorf("%s: %v", c.what, err)
		}
		err = ix.Sink().StreamNote(c.pod, c.model, c.stream, events.NoteOpened)
		if n := ix.Stats().Pods; (err == nil) != (c.what == "") || (n == 0) != (c.what != "") {
			t.Errorf("%s: %v, and %d pods", c.what, err, n)
		}
	}
	// Stores of an adapter with too long a name are applied, but the name does not find them.
	for n, name := range []string{fits, long} {
		s := p.Stored(0, 1)
		s.Adapter = name
		ingest(t, ix, "b", s)
		info, _ := source(t, ix, "b")
		if len(info.Adapters) != 1 || ix.Stats().Adapters != uint64(n) {
			t.Errorf("name of %d bytes: %d adapters, %d counted", len(name), len(info.Adapters), ix.Stats().Adapters)
		}
		if got := score(t, ix, kvindex.Request{Tokens: p.Tokens, Adapter: name, Pods: []string{"b"}})[0]; got.MatchedBlocks != 1 {
			t.Errorf("name of %d bytes: %+v", len(name), got)
		}
	}
}

// emptyIndex is an index that keeps nothing.
type emptyIndex struct{}

func (emptyIndex) Seed() [16]byte { return testSeed }

func (emptyIndex) Apply(_ context.Context, _ index.Source, _ index.Cursor, _ []index.Change) (index.Effect, error) {
	return index.Effect{}, nil
}

func (emptyIndex) Cursor(context.Context, index.Source, string) (index.Cursor, error) {
	return index.Cursor{}, nil
}

func (emptyIndex) Match(_ context.Context, _ *index.Query, m *index.Matches) error {
	m.Reset()
	return nil
}

func (emptyIndex) Remove(context.Context, string) error { return nil }

func (emptyIndex) Close() error { return nil }

// BenchmarkHeapBeside reports an Indexer's live heap without the index: for each of 10,000 pods of
// one rank; for each stream, further rank and adapter; and for each pod of a Candidates.
func BenchmarkHeapBeside(b *testing.B) {
	const pods = 10_000
	name := func(n int) string { return fmt.Sprintf("10.0.%d.%d:8000", n/256, n%256) }
	clock := 0.0
	say := func(ix *kvindex.Indexer, pod, stream string, seq uint64, rank int) {
		clock++
		_, err := ix.IngestMessage(kvindex.Message{Pod: pod, Model: "m", Stream: stream, Seq: seq, Payload: fakeengine.Payload(clock, rank, fakeengine.NewPrompt(seq, 16, 1).Stored(0, 1))})
		must(b, err)
	}
	learn := func(ix *kvindex.Indexer, pod, adapter string) {
		s := fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)
		s.Adapter = adapter
		ingest(b, ix, pod, s)
	}
	of := func(ix *kvindex.Indexer, f func(pod string)) {
		for n := range pods {
			f(name(n))
		}
		score(b, ix, kvindex.Request{Tokens: []uint32{1, 2}, Top: 1}) // all pods are its candidates
	}
	for _, c := range []struct {
		name          string
		each          int // for each pod
		before, after func(ix *kvindex.Indexer, pod string)
	}{
		{"pod", 1, nil, func(ix *kvindex.Indexer, pod string) { ingest(b, ix, pod, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)) }},
		{"stream/messages=1", 1, func(ix *kvindex.Indexer, pod string) { ingest(b, ix, pod) }, func(ix *kvindex.Indexer, pod string) { say(ix, pod, pod, 0, 0) }},
		{"rank", 3, func(ix *kvindex.Indexer, pod string) { say(ix, pod, pod, 0, 0) }, func(ix *kvindex.Indexer, pod string) {
			for rank := range 3 {
				say(ix, pod, pod, uint64(rank+1), rank+1)
			}
		}},
		{"adapter", 4, func(ix *kvindex.Indexer, pod string) { ingest(b, ix, pod) }, func(ix *kvindex.Indexer, pod string) {
			for n := range 4 {
				learn(ix, pod, fmt.Sprint("adapter-", n))
			}
		}},
		{"adapter/another-each", 4, func(ix *kvindex.Indexer, pod string) { ingest(b, ix, pod) }, func(ix *kvindex.Indexer, pod string) {
			for n := range 4 {
				learn(ix, pod, fmt.Sprint(pod, "-adapter-", n))
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				ix := open(b, kvindex.WithIndex(emptyIndex{}))
				if c.before != nil {
					of(ix, func(pod string) { c.before(ix, pod) })
				}
				before := liveHeap()
				of(ix, func(pod string) { c.after(ix, pod) })
				b.ReportMetric(float64(liveHeap()-before)/float64(pods*c.each), "B/each")
				runtime.KeepAlive(ix)
			}
		})
	}
	b.Run("candidate", func(b *testing.B) {
		for b.Loop() {
			ix := open(b)
			of(ix, func(pod string) { ingest(b, ix, pod, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)) })
			before, lists := liveHeap(), make([]*kvindex.Candidates, 20)
			for i := range lists {
				lists[i] = ix.Candidates("m", nil)
				score(b, ix, kvindex.Request{Candidates: lists[i], Tokens: make([]uint32, 16), Top: 1, Model: "m"})
			}
			b.ReportMetric(float64(liveHeap()-before)/float64(pods*len(lists)), "B/each")
			runtime.KeepAlive(lists)
		}
	})
	b.Run("stream/full", func(b *testing.B) {
		for b.Loop() {
			const streams, messages = 200, 3000
			ix := open(b, kvindex.WithIndex(emptyIndex{}))
			for n := range streams {
				say(ix, name(n), "s", 0, 0)
			}
			before := liveHeap()
			for n := range streams {
				for seq := range uint64(2 * messages) { // from an engine that restarts
					say(ix, name(n), "s", seq%messages, 0)
				}
			}
			b.ReportMetric(float64(liveHeap()-before)/streams, "B/each")
			runtime.KeepAlive(ix)
		}
	})
}
