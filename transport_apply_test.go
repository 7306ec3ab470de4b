package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// A loss on one stream affects all ranks of that stream, and no others.
func TestLossByStream(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	ranks := func() (got [4]int) {
		t.Helper()
		for _, info := range ix.Pods(nil)[0].Ranks {
			got[info.Rank] = info.Blocks[kvindex.TierGPU]
		}
		return got
	}
	for _, m := range []kvindex.Message{
		message("s", 0, 1, 0, p.Stored(0, 1)), message("s", 1, 1, 1, p.Stored(0, 2)),
		message("t", 0, 1, 2, p.Stored(0, 3)), message("u", 5, 1, 3, p.Stored(0, 4)),
	} {
		brings(m)(t, ix)
	}
	if got := ranks(); got != [4]int{1, 2, 3, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
	if info := ix.Pods(nil)[0]; info.State != kvindex.StatePartial || info.Ranks[2].State != kvindex.StateLive {
		t.Errorf("%+v", info)
	}
	brings(message("s", 9, 2, 1, p.Stored(0, 1)))(t, ix)
	if got := ranks(); got != [4]int{0, 1, 3, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
	must(t, ix.MarkLost("a", 2))
	if got := ranks(); got != [4]int{0, 1, 0, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
}

// TestLossFails: after a loss, or a message, that the index could not apply, the rank is uncertain.
// Its next message clears it, and those of the other ranks of the stream count.
func TestLossFails(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	note := func(n events.Note) func(ix *kvindex.Indexer) error {
		return func(ix *kvindex.Indexer) error { return ix.Sink().StreamNote("a", "m", "s", n) }
	}
	for name, c := range map[string]struct {
		lose  func(ix *kvindex.Indexer) error
		after [2]int // blocks of the ranks
		kept  bool   // another Indexer goes on with the index
	}{
		"a gap": {func(ix *kvindex.Indexer) error {
			_, err := ix.IngestMessage(message("s", 9, 9, 0, p.Stored(0, 1)))
			return err
		}, [2]int{2, 3}, false}, // the messages before it come
		"another stream": {func(ix *kvindex.Indexer) error {
			_, err := ix.IngestMessage(message("t", 0, 9, 1, p.Stored(0, 1)))
			return err
		}, [2]int{2, 3}, false},
		"a message after a restart": {func(ix *kvindex.Indexer) error {
			_, err := ix.IngestMessage(message("s", 0, 9, 1, p.Stored(0, 1)))
			return err
		}, [2]int{1, 3}, false},
		"a restart":      {note(events.NoteRestarted), [2]int{1, 1}, false},
		"messages again": {note(events.NoteRewound), [2]int{1, 1}, false},
		"a kept restart": {note(events.NoteRestarted), [2]int{1, 3}, true},
		"marked":         {func(ix *kvindex.Indexer) error { return ix.MarkLost("a", 1) }, [2]int{2, 1}, false},
	} {
		fails, m := false, memory(t)
		ix := open(t, kvindex.WithIndex(&alteredIndex{Memory: m, before: func(_ context.Context, _ string, src index.Source) error {
			if fails && src.Rank == 1 {
				return errBrittle
			}
			return nil
		}}))
		apply(t, ix, message("s", 0, 1, 0, p.Stored(0, 2)), message("s", 1, 2, 1, p.Stored(0, 3)))
		fails = true
		if err := c.lose(ix); !errors.Is(err, errBrittle) {
			t.Errorf("%s: %v", name, err)
		}
		if r := ix.Pods(nil)[0].Ranks[1]; r.Blocks[kvindex.TierGPU] != 3 || r.State != kvindex.StateUncertain {
			t.Errorf("%s: %+v", name, r)
		}
		if fails = false; c.kept {
			ix = open(t, kvindex.WithIndex(m))
		}
		apply(t, ix, message("s", 2, 10, 1, p.Stored(0, 1)), message("s", 3, 11, 0, p.Stored(0, 1)))
		ranks := ix.Pods(nil)[0].Ranks
		if got := [2]int{ranks[0].Blocks[kvindex.TierGPU], ranks[1].Blocks[kvindex.TierGPU]}; got != c.after {
			t.Errorf("%s: then the ranks have %v blocks, want %v", name, got, c.after)
		}
	}
}

// TestLossKept: an Indexer that continues from an index notices the messages that the one before
// could not apply, for each rank that the stream has fed.
func TestLossKept(t *testing.T) {
	p, other := fakeengine.NewPrompt(1, 16, 4), fakeengine.NewPrompt(2, 16, 4)
	for name, c := range map[string]struct {
		fails  int // the rank for which the index fails in the last call of the first Indexer
		last   func(ix *kvindex.Indexer) error
		then   []kvindex.Message // each to an Indexer of its own
		blocks [3]int            // of the ranks
	}{
		"a message after a gap": {1, func(ix *kvindex.Indexer) error {
			_, err := ix.IngestMessage(message("s", 3, 4, 1, p.Removed(0)))
			return err
		}, []kvindex.Message{message("s", 4, 5, 0, p.Stored(0, 2))}, [3]int{2, 0, 0}},
		"a message": {0, func(ix *kvindex.Indexer) error {
			_, err := ix.IngestMessage(message("s", 2, 3, 0, p.Removed(0)))
			return err
		}, []kvindex.Message{message("s", 3, 4, 2, p.Stored(0, 2)), message("s", 4, 5, 1, p.Stored(0, 1))}, [3]int{0, 1, 2}},
		"a restart": {0, func(ix *kvindex.Indexer) error {
			return ix.Sink().StreamNote("a", "m", "s", events.NoteRestarted)
		}, []kvindex.Message{message("s", 0, 3, 1, p.Stored(0, 2)), message("s", 1, 4, 0, other.Stored(0, 3))}, [3]int{3, 2, 0}},
	} {
		fails, m := false, memory(t)
		ix := open(t, kvindex.WithIndex(&alteredIndex{Memory: m, before: func(_ context.Context, _ string, src index.Source) error {
			if fails && src.Rank == c.fails {
				return errBrittle
			}
			return nil
		}}))
		apply(t, ix, message("s", 0, 1, 0, p.Stored(0, 1)), message("s", 1, 2, 1, p.Stored(0, 1)))
		fails = true
		if err := c.last(ix); !errors.Is(err, errBrittle) {
			t.Errorf("%s: %v", name, err)
		}
		for _, msg := range c.then {
			ix = open(t, kvindex.WithIndex(m))
			apply(t, ix, msg)
		}
		var got [3]int
		for _, r := range ix.Pods(nil)[0].Ranks {
			got[r.Rank] = r.Blocks[kvindex.TierGPU]
		}
		if got != c.blocks {
			t.Errorf("%s: the ranks have %v blocks, want %v", name, got, c.blocks)
		}
	}
}

// TestLossKeep: with WithKeepOnLoss a loss removes no blocks, and doubt lasts until the cache is
// emptied or the engine restarts.
func TestLossKeep(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	doubtful := func() *kvindex.Indexer {
		ix := open(t, kvindex.WithKeepOnLoss())
		play(t, ix, p,
			step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
			step{message("s", 2, 3, 0, p.Stored(4, 5)), kvindex.Receipt{Applied: true, Gap: lostGap(1, 1)}, 5, kvindex.StateUncertain},
			step{message("s", 3, 4, 0, p.Stored(5, 6)), taken, 6, kvindex.StateUncertain},
		)
		return ix
	}
	play(t, doubtful(), p, step{message("s", 4, 5, 0, fakeengine.Cleared{}, p.Stored(0, 1)), taken, 1, kvindex.StateLive})
	play(t, doubtful(), p, step{message("s", 0, 5, 0, p.Stored(0, 2)), kvindex.Receipt{Applied: true, Restarted: true}, 2, kvindex.StateLive})
	// A report adds no copies in a view that may have missed removals.
	play(t, doubtful(), p,
		step{message("s", 4, 5, 0, p.Stored(0, 4)), taken, 6, kvindex.StateUncertain},
		step{message("s", 5, 6, 0, p.Removed(3)), taken, 3, kvindex.StateUncertain},
	)

	ix := open(t, kvindex.WithKeepOnLoss())
	play(t, ix, p, step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive})
	bad := message("s", 1, 2, 0)
	bad.Payload = []byte("no msgpack")
	if _, err := ix.IngestMessage(bad); err == nil {
		t.Error("a bad message is no error")
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != 4 || s.State != kvindex.StateUncertain {
		t.Errorf("a bad message: %+v", s)
	}
	ix = open(t, kvindex.WithKeepOnLoss())
	ingest(t, ix, "a", p.Stored(0, 3))
	must(t, ix.MarkLost("a", 0))
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != 3 || s.State != kvindex.StateUncertain {
		t.Errorf("marked lost: %+v", s)
	}
	ingest(t, ix, "a", p.Stored(0, 4)) // three held ones and a new one
	ingest(t, ix, "a", p.Removed(0))
	if got := blocks(t, ix, "a", p); got != 0 {
		t.Errorf("%d blocks behind a removal of the first: a report was counted", got)
	}
}

// An unreadable first message loses no block, but the later ones are not the whole history.
func TestMalformedFirst(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	bad := message("s", 0, 1, 0)
	bad.Payload = nil
	if _, err := ix.IngestMessage(bad); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("error %v", err)
	}
	if n := ix.Stats(); n.Pods != 0 || n.Messages != 1 || n.Malformed != 1 {
		t.Errorf("after a message that nobody could read: %+v", n)
	}
	p := fakeengine.NewPrompt(1, 16, 1)
	brings(message("s", 1, 2, 0, p.Stored(0, 1)))(t, ix)
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.State != kvindex.StatePartial || s.MatchedBlocks != 1 {
		t.Errorf("got %+v", s)
	}
	if len(losses) != 1 || losses[0].Rank != -1 {
		t.Errorf("losses %+v", losses)
	}
}

// Where history is missing, a report may name known blocks too: copies counted from it would
// outlive their removal.
func TestPartialViewCountsNoReport(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	for i, e := range []fakeengine.Event{p.Stored(0, 2), p.Stored(0, 4), p.Removed(1)} {
		brings(message("s", uint64(5+i), float64(i), 0, e))(t, ix)
	}
	if got := blocks(t, ix, "a", p); got != 1 {
		t.Errorf("%d blocks, want 1", got)
	}
}

// After a clear copies are counted again.
func TestAClearEndsThePartialView(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for _, first := range []uint64{0, 5} {
		ix := open(t)
		for i, evs := range [][]fakeengine.Event{
			{fakeengine.Cleared{}},
			{p.Stored(0, 2)},
			{p.Stored(0, 4)}, // two held ones and two new ones: a second copy
			{p.Removed(0, 1)},
		} {
			brings(message("s", first+uint64(i), float64(i+1), 0, evs...))(t, ix)
		}
		if got := blocks(t, ix, "a", p); got != 4 {
			t.Errorf("from message %d on: %d blocks", first, got)
		}
	}
}

// Lag is computed from the batch's time.
func TestLag(t *testing.T) {
	ix := open(t)
	lag := func(pod string, at float64) time.Duration {
		t.Helper()
		m := message("s", 0, at, 0)
		m.Pod = pod
		brings(m)(t, ix)
		for _, i := range ix.Pods(nil) {
			if i.Pod == pod {
				return i.Ranks[0].Lag
			}
		}
		t.Fatalf("no pod %s", pod)
		return 0
	}
	const rounding = time.Millisecond // of a time in a float
	for pod, age := range map[string]time.Duration{"late": time.Hour, "ahead": -time.Hour} {
		at := time.Now().Add(-age).Round(0) // without the monotonic clock
		least := time.Since(at)
		got := lag(pod, float64(at.UnixMicro())/1e6)
		if most := time.Since(at); got < least-rounding || got > most+rounding {
			t.Errorf("%s: lag %v, want %v to %v", pod, got, least, most)
		}
	}
	for pod, at := range map[string]float64{"no clock": 0, "before all": -5} {
		if got := lag(pod, at); got != 0 {
			t.Errorf("%s: lag %v", pod, got)
		}
	}
	lag("never", 1e300) // must not panic
}

// A loss affects the ranks of its stream, but not those that have moved to another.
func TestALossIsOfTheRanksOfItsStream(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	for name, there := range map[string][]kvindex.Message{
		"moved to a new stream": {message("s", 0, 1, 0), message("s", 1, 2, 1), message("t", 0, 3, 1)},
		"moved back":            {message("t", 0, 1, 1), message("s", 0, 2, 0), message("s", 1, 3, 1), {Stream: "s"}, message("s", 0, 4, 0), {Stream: "s", Seq: 1}, message("t", 1, 5, 1)},
	} {
		var lost []int
		ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) {
			if l.Cause == "malformed" {
				lost = append(lost, l.Rank)
			}
		}}))
		for _, m := range there {
			if m.Payload == nil && m.Seq == 1 {
				_ = ix.Sink().StreamNote("a", "m", m.Stream, events.NoteLost)
			} else if m.Payload == nil {
				must(t, ix.Sink().StreamNote("a", "m", m.Stream, events.NoteRestarted))
			} else if r, err := ix.IngestMessage(m); err != nil || !r.Applied {
				t.Fatalf("%s: %+v, %v", name, r, err)
			}
		}
		next := ix.Sink().StreamNext("a", "m", "t").Next
		if r, err := ix.IngestMessage(message("t", next, 6, 1, p.Stored(0, 3))); err != nil || r != taken {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		next = ix.Sink().StreamNext("a", "m", "s").Next
		bad := message("s", next, 7, 0)
		bad.Payload = []byte("no msgpack")
		if _, err := ix.IngestMessage(bad); err == nil {
			t.Fatal("a bad message is no error")
		}
		if got := blocks(t, ix, "a", p); got != 3 || !slices.Equal(lost, []int{0}) {
			t.Errorf("%s: %d blocks, ranks %v lost", name, got, lost)
		}
	}
}

// TestALossOfNoRank: a gap is reported, even if no rank had anything to lose.
func TestALossOfNoRank(t *testing.T) {
	var losses []string
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, fmt.Sprint(l.Stream, " ", l.Cause, " ", l.Rank)) }}))
	note("s", events.NoteOpened)(t, ix) // keeps the stream when its rank moves
	brings(message("s", 0, 1, 0), message("t", 0, 2, 0), message("s", 3, 3, 1))(t, ix)
	if want := []string{"t moved 0", "s gap -1"}; !slices.Equal(losses, want) {
		t.Errorf("losses %q, want %q", losses, want)
	}
}
