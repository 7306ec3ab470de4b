package kvindex_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

var _ events.ReplaySink = (*kvindex.Indexer)(nil)

func lostGap(from, to uint64) kvindex.Gap { return kvindex.Gap{From: from, To: to, Lost: true} }

// step is a message and what must become of it.
type step struct {
	m      kvindex.Message
	want   kvindex.Receipt
	blocks int
	state  kvindex.State
}

func hold(m kvindex.Message) kvindex.Message     { m.Hold = true; return m }
func replayed(m kvindex.Message) kvindex.Message { m.Replayed = true; return m }

// play offers the messages of the steps; blocks are those of p.
func play(t *testing.T, ix *kvindex.Indexer, p prompt, steps ...step) {
	t.Helper()
	for i, c := range steps {
		got, err := ix.IngestMessage(c.m)
		if err != nil || got != c.want {
			t.Fatalf("step %d: %+v, %v; want %+v", i, got, err, c.want)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: []string{"a"}})[0]; s.MatchedBlocks != c.blocks || s.State != c.state {
			t.Fatalf("step %d: %d blocks, %v; want %d, %v", i, s.MatchedBlocks, s.State, c.blocks, c.state)
		}
	}
}

var (
	taken  = kvindex.Receipt{Applied: true}
	repeat = kvindex.Receipt{Duplicate: true}
)

func heldBehind(from, to uint64) kvindex.Receipt {
	return kvindex.Receipt{Held: true, Gap: lostGap(from, to)}
}

// TestReplayedGap: a gap that a replay fills loses nothing.
func TestReplayedGap(t *testing.T) {
	var seen []string
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{
		Lost: func(l kvindex.Loss) { seen = append(seen, "lost") },
		State: func(pod, model string, from, to kvindex.State) {
			seen = append(seen, fmt.Sprintf("%s %s %v %v", pod, model, from, to))
		},
	}))
	p := newPrompt(1, 16, 8)
	next := message("s", 3, 4, 0, p.removed(7))
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.stored(0, 2)), taken, 2, kvindex.StateLive},
		step{hold(next), heldBehind(1, 2), 2, kvindex.StateReplaying},
		step{hold(next), heldBehind(1, 2), 2, kvindex.StateReplaying},
		step{replayed(message("s", 0, 1, 0, p.stored(0, 2))), repeat, 2, kvindex.StateReplaying},
		step{replayed(message("s", 1, 2, 0, p.stored(2, 6))), taken, 6, kvindex.StateReplaying},
		step{replayed(message("s", 2, 3, 0, p.stored(6, 8))), taken, 8, kvindex.StateReplaying},
		step{next, taken, 7, kvindex.StateLive},
	)
	if want := []string{"a m unknown live", "a m live replaying", "a m replaying live"}; !slices.Equal(seen, want) {
		t.Errorf("hooks: %q, want %q", seen, want)
	}
	s := ix.Stats()
	if s.Gaps != 1 || s.Missing != 0 || s.Replayed != 2 || s.PassedOver != 0 || s.Duplicates != 1 || s.Messages != 5 {
		t.Errorf("%+v", s.StreamStats)
	}
	if got := ix.Pods(nil)[0]; got.Sources[0].StreamStats != s.StreamStats || got.WantsFullReport || got.Sources[0].Next != 4 {
		t.Errorf("%+v", got)
	}
}

// TestReplayBringsTheHeldMessage: whoever gets the message that is held from the
// replay need not offer it again.
func TestReplayBringsTheHeldMessage(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 8)
	play(t, ix, p,
		step{hold(message("s", 1, 2, 0, p.stored(2, 4))), heldBehind(0, 0), 0, kvindex.StateReplaying},
		step{replayed(message("s", 0, 1, 0, p.stored(0, 2))), taken, 2, kvindex.StateReplaying},
		step{replayed(message("s", 1, 2, 0, p.stored(2, 4))), taken, 4, kvindex.StateLive},
		step{replayed(message("s", 2, 3, 0, p.stored(4, 5))), taken, 5, kvindex.StateLive},
	)
}

// TestReplayPassesOver: what a replay passes over, and what does not come at
// all, is lost.
func TestReplayPassesOver(t *testing.T) {
	for name, c := range map[string]struct {
		option kvindex.Option
		blocks []int
		state  kvindex.State
	}{
		"forget": {kvindex.WithLossPolicy(kvindex.ForgetOnLoss), []int{1, 3, 1}, kvindex.StatePartial},
		"keep":   {kvindex.WithLossPolicy(kvindex.KeepOnLoss), []int{4, 4, 4}, kvindex.StateUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			var losses []kvindex.Loss
			ix := open(t, c.option, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
			p := newPrompt(1, 16, 8)
			play(t, ix, p,
				step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive},
				step{hold(message("s", 9, 9, 0, p.stored(0, 1))), heldBehind(1, 8), 4, kvindex.StateReplaying},
				step{replayed(message("s", 3, 3, 0, p.stored(0, 1))), kvindex.Receipt{Applied: true, Gap: lostGap(1, 2)}, c.blocks[0], min(c.state, kvindex.StateReplaying)},
				step{replayed(message("s", 4, 4, 0, p.stored(1, 3))), taken, c.blocks[1], min(c.state, kvindex.StateReplaying)},
				step{message("s", 9, 9, 0, p.stored(0, 1)), kvindex.Receipt{Applied: true, Gap: lostGap(5, 8)}, c.blocks[2], c.state},
			)
			kept := c.state == kvindex.StateUncertain
			if len(losses) != 2 || losses[0].Gap != lostGap(1, 2) || !losses[0].Replayed || losses[1].Replayed || losses[0].Kept != kept || losses[1].Kept != kept {
				t.Errorf("%+v", losses)
			}
			if s := ix.Stats(); s.Gaps != 1 || s.Missing != 6 || s.PassedOver != 2 || s.Replayed != 2 {
				t.Errorf("%+v", s.StreamStats)
			}
			if !ix.Pods(nil)[0].WantsFullReport {
				t.Error("no full report is wanted")
			}
		})
	}
}

// TestLossKeep: doubt ends when the cache is emptied or the engine starts anew,
// and forgetting is for engines that do.
func TestLossKeep(t *testing.T) {
	p := newPrompt(1, 16, 8)
	doubtful := func() *kvindex.Indexer {
		ix := open(t, kvindex.WithLossPolicy(kvindex.KeepOnLoss))
		play(t, ix, p,
			step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive},
			step{message("s", 2, 3, 0, p.stored(4, 5)), kvindex.Receipt{Applied: true, Gap: lostGap(1, 1)}, 5, kvindex.StateUncertain},
			step{message("s", 3, 4, 0, p.stored(5, 6)), taken, 6, kvindex.StateUncertain},
		)
		return ix
	}
	play(t, doubtful(), p, step{message("s", 4, 5, 0, fakeengine.Cleared{}, p.stored(0, 1)), taken, 1, kvindex.StateLive})
	play(t, doubtful(), p, step{message("s", 0, 5, 0, p.stored(0, 2)), kvindex.Receipt{Applied: true, Restarted: true}, 2, kvindex.StateLive})
	// A report of what is held counts no copy in a view that may have missed
	// removals.
	play(t, doubtful(), p,
		step{message("s", 4, 5, 0, p.stored(0, 4)), taken, 6, kvindex.StateUncertain},
		step{message("s", 5, 6, 0, p.removed(3)), taken, 3, kvindex.StateUncertain},
	)

	ix := open(t, kvindex.WithLossPolicy(kvindex.KeepOnLoss))
	play(t, ix, p, step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive})
	bad := message("s", 1, 2, 0)
	bad.Payload = []byte("no msgpack")
	if _, err := ix.IngestMessage(bad); err == nil {
		t.Error("a bad message is no error")
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != 4 || s.State != kvindex.StateUncertain {
		t.Errorf("a bad message: %+v", s)
	}
	ix = open(t, kvindex.WithLossPolicy(kvindex.KeepOnLoss))
	ingest(t, ix, "a", p.stored(0, 3))
	if err := ix.MarkLost("a", 0); err != nil {
		t.Fatal(err)
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != 3 || s.State != kvindex.StateUncertain {
		t.Errorf("marked lost: %+v", s)
	}
	ingest(t, ix, "a", p.stored(0, 4)) // three that are known, and one that is not
	ingest(t, ix, "a", p.removed(0))
	if got := blocks(t, ix, "a", p); got != 0 {
		t.Errorf("%d blocks behind a removal of the first: a report was counted", got)
	}
	if _, err := kvindex.New(kvindex.WithLossPolicy(7)); err == nil {
		t.Error("policy 7 is no error")
	}
}

// TestStreamRestarted: an engine that is known to have started anew is heard
// for the first time again.
func TestStreamRestarted(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	p := newPrompt(1, 16, 8)
	anew := func(stream string) {
		t.Helper()
		if err := ix.StreamRestarted("a", "m", stream); err != nil {
			t.Fatal(err)
		}
	}
	due := func(stream string, want uint64, heard bool) {
		t.Helper()
		if next, ok := ix.StreamNext("a", "m", stream); next != want || ok != heard {
			t.Errorf("stream %q: %d is due, heard %v; want %d, %v", stream, next, ok, want, heard)
		}
	}
	anew("s")
	due("s", 0, false)
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive},
		step{message("s", 1, 2, 0, p.stored(4, 5)), taken, 5, kvindex.StateLive},
	)
	due("s", 2, true)
	anew("other")
	due("s", 2, true)
	anew("s")
	due("s", 0, false)
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != 0 || s.State == kvindex.StateLive {
		t.Errorf("%+v", s)
	}
	// Its clock is behind, and it is past the number that was due.
	play(t, ix, p,
		step{hold(message("s", 2, 1, 0, p.stored(2, 3))), heldBehind(0, 1), 0, kvindex.StateReplaying},
		step{replayed(message("s", 0, 0.5, 0, p.stored(0, 1))), taken, 1, kvindex.StateReplaying},
		step{replayed(message("s", 1, 0.7, 0, p.stored(1, 2))), taken, 2, kvindex.StateReplaying},
		step{message("s", 2, 1, 0, p.stored(2, 3)), taken, 3, kvindex.StateLive},
	)
	if s := ix.Stats(); s.Restarts != 1 || len(losses) != 1 || losses[0].Cause != kvindex.LossRestart || losses[0].Rank != 0 {
		t.Errorf("%+v %+v", s.StreamStats, losses)
	}
	anew("s")
	play(t, ix, p, step{message("s", 5, 9, 0, p.stored(0, 2)), taken, 2, kvindex.StatePartial})
	if !ix.Pods(nil)[0].WantsFullReport {
		t.Error("history is missing, and no full report is wanted")
	}
	if err := ix.StreamRestarted("", "m", "s"); err == nil {
		t.Error("no pod is no error")
	}
}

// TestRedelivery: a queue that redelivers whatever it has, from anywhere, clears
// nothing and counts nothing twice.
func TestRedelivery(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 1)
	q := newPrompt(2, 16, 1)
	send := func(seq int) kvindex.Receipt {
		evs := []fakeengine.Event{p.stored(0, 1)} // one copy after the other
		if seq%2 == 1 {
			evs = []fakeengine.Event{p.removed(0), q.stored(0, 1), q.removed(0)}
		}
		r, err := ix.IngestMessage(message("s", uint64(seq), float64(1+seq/10), 0, evs...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const n = 4001
	for seq := range n {
		if r := send(seq); r != taken {
			t.Fatalf("message %d: %+v", seq, r)
		}
	}
	for _, from := range []int{0, 17, n / 2, n - 1} {
		for seq := from; seq < n; seq++ {
			if r := send(seq); r != repeat {
				t.Fatalf("message %d again: %+v", seq, r)
			}
		}
	}
	if got := blocks(t, ix, "a", p); got != 1 {
		t.Errorf("%d blocks", got)
	}
	if r := send(n); r != taken || blocks(t, ix, "a", p) != 0 {
		t.Errorf("the next: %+v, %d blocks", r, blocks(t, ix, "a", p))
	}
	if s := ix.Stats(); s.Restarts != 0 || s.Gaps != 0 {
		t.Errorf("%+v", s.StreamStats)
	}
}

// TestLag is told by the time of the batch.
func TestLag(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 1)
	second := func(ago time.Duration) float64 { return float64(time.Now().Add(-ago).UnixMilli()) / 1000 }
	for _, c := range []struct {
		time float64
		want time.Duration
	}{{second(time.Hour), time.Hour}, {second(-time.Hour), -time.Hour}, {0, 0}, {-5, 0}, {1e300, -1 << 62}} {
		m := message("s", 0, c.time, 0, p.stored(0, 1))
		m.Pod = fmt.Sprint(c.time)
		if _, err := ix.IngestMessage(m); err != nil {
			t.Fatal(err)
		}
		for _, i := range ix.Pods(nil) {
			if got := i.Sources[0].Lag; i.Pod == m.Pod && (got-c.want).Abs() > time.Minute && c.want > -1<<61 {
				t.Errorf("time %v: lag %v, want %v", c.time, got, c.want)
			}
		}
	}
}

// TestARankComesBack to a stream that it had before: what that stream said then is
// old, and what it says now is taken.
func TestARankComesBack(t *testing.T) {
	p := newPrompt(1, 16, 8)
	for name, restart := range map[string]bool{"same engine": false, "restarted in between": true} {
		t.Run(name, func(t *testing.T) {
			ix := open(t)
			play(t, ix, p,
				step{message("a", 0, 1, 0, p.stored(0, 1)), taken, 1, kvindex.StateLive},
				step{message("a", 1, 2, 0, p.stored(1, 2)), taken, 2, kvindex.StateLive},
			)
			if restart {
				play(t, ix, p, step{message("a", 0, 3, 0, p.stored(0, 1)), kvindex.Receipt{Applied: true, Restarted: true}, 1, kvindex.StateLive})
			}
			play(t, ix, p,
				step{message("b", 0, 4, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive},
				step{message("a", 1, 2, 0, p.stored(1, 2)), repeat, 4, kvindex.StateLive},
			)
			if restart {
				play(t, ix, p, step{message("a", 1, 5, 0, p.stored(0, 3)), taken, 3, kvindex.StatePartial})
				return
			}
			play(t, ix, p,
				step{message("a", 0, 5, 0, p.stored(0, 3)), kvindex.Receipt{Applied: true, Restarted: true}, 3, kvindex.StateLive},
				step{message("a", 1, 6, 0, p.stored(3, 5)), taken, 5, kvindex.StateLive},
			)
		})
	}
}

// TestStreamRestartedOutlivesTheHost: the cursor of an engine that has said
// nothing since it started anew makes nobody deaf.
func TestStreamRestartedOutlivesTheHost(t *testing.T) {
	m, err := index.NewMemory(index.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p := newPrompt(1, 16, 8)
	old := open(t, kvindex.WithIndex(m))
	play(t, old, p, step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive})
	if err := old.StreamRestarted("a", "m", "s"); err != nil {
		t.Fatal(err)
	}
	old.Close()
	play(t, open(t, kvindex.WithIndex(m)), p,
		step{message("s", 0, 2, 0, p.stored(0, 2)), taken, 2, kvindex.StateLive},
		step{message("s", 1, 3, 0, p.stored(2, 3)), taken, 3, kvindex.StateLive},
	)
	// What another stream left in the index is not claimed beside.
	play(t, open(t, kvindex.WithIndex(m)), p, step{message("t", 0, 4, 0, p.stored(0, 1)), taken, 1, kvindex.StateLive})
}

// TestStreamInterrupted: until its next message nobody knows what a pod behind a
// lost connection holds.
func TestStreamInterrupted(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 8)
	state := func() kvindex.State {
		return score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: []string{"a"}})[0].State
	}
	ix.StreamInterrupted("a", "m", "s")
	play(t, ix, p, step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive})
	ix.StreamInterrupted("a", "m", "t")
	if state() != kvindex.StateLive {
		t.Errorf("another stream: %v", state())
	}
	ix.StreamInterrupted("a", "m", "s")
	if state() != kvindex.StateUncertain || ix.Pods(nil)[0].Sources[0].State != kvindex.StateUncertain {
		t.Errorf("interrupted: %v", state())
	}
	play(t, ix, p, step{message("s", 1, 2, 0, p.stored(4, 5)), taken, 5, kvindex.StateLive})
	ix.StreamInterrupted("a", "m", "s")
	confirm := replayed(hold(message("s", 1, 2, 0, p.stored(4, 5))))
	play(t, ix, p, step{confirm, repeat, 5, kvindex.StateLive})
	play(t, ix, p, step{hold(message("s", 9, 3, 0)), heldBehind(2, 8), 5, kvindex.StateReplaying})
	ix.StreamInterrupted("a", "m", "s") // the held message will not come again
	play(t, ix, p, step{confirm, repeat, 5, kvindex.StateLive})
}

// TestAHoleStaysOpen while old messages come again.
func TestAHoleStaysOpen(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 8)
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive},
		step{hold(message("s", 5, 6, 0)), heldBehind(1, 4), 4, kvindex.StateReplaying},
		step{message("s", 0, 1, 0, p.stored(0, 4)), repeat, 4, kvindex.StateReplaying},
	)
}

// TestAClearEndsThePartialView also for how copies are counted.
func TestAClearEndsThePartialView(t *testing.T) {
	p := newPrompt(1, 16, 8)
	for _, first := range []uint64{0, 5} {
		ix := open(t)
		for i, evs := range [][]fakeengine.Event{
			{fakeengine.Cleared{}},
			{p.stored(0, 2)},
			{p.stored(0, 4)}, // two that are held and two that are new: a second copy
			{p.removed(0, 1)},
		} {
			if _, err := ix.IngestMessage(message("s", first+uint64(i), float64(i+1), 0, evs...)); err != nil {
				t.Fatal(err)
			}
		}
		if got := blocks(t, ix, "a", p); got != 4 {
			t.Errorf("heard from %d: %d blocks", first, got)
		}
	}
}

// TestWhatAPodMayInvent is bounded, and does not shut its own stream out.
func TestWhatAPodMayInvent(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 8)
	for i := range 2 * kvindex.MaxStreams {
		if _, err := ix.IngestMessage(hold(message(fmt.Sprint("invented", i), 1, 1, 0))); err != nil {
			t.Fatal(err)
		}
	}
	play(t, ix, p, step{message("s", 0, 1, 0, p.stored(0, 4)), taken, 4, kvindex.StateLive})
	for i := range 2 * kvindex.MaxModels {
		m := message("s", 0, 1, 0)
		m.Model = fmt.Sprint("model", i)
		if _, err := ix.IngestMessage(m); (err != nil) != (i >= kvindex.MaxModels-1) {
			t.Fatalf("model %d: %v", i, err)
		}
	}
	huge := message("s", 1<<64-2, 2, 0)
	for _, ts := range []float64{2, 3, 4} {
		huge.Payload = payload(ts, 0)
		if _, err := ix.IngestMessage(huge); err != nil {
			t.Fatal(err)
		}
		if _, err := ix.IngestMessage(message("s", 0, ts+0.5, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if s := ix.Stats(); s.Missing != 1<<64-1 {
		t.Errorf("%d messages are missing", s.Missing)
	}
}

// TestThePodOfASlowCall may be gone when the call gets its turn.
func TestThePodOfASlowCall(t *testing.T) {
	p := newPrompt(1, 16, 8)
	for range 200 {
		ix := open(t)
		if _, err := ix.IngestMessage(message("s", 0, 1, 0, p.stored(0, 4))); err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		calls.Go(func() { _ = ix.StreamRestarted("a", "m", "s") })
		calls.Go(func() { _ = ix.MarkLost("a", 0) })
		calls.Go(func() { _ = ix.RemovePod("a") })
		calls.Wait()
		if s := ix.Stats(); s.Pods != 0 || s.Sources != 0 {
			t.Fatalf("%+v", s)
		}
		if r, err := ix.IngestMessage(message("s", 0, 2, 0, p.stored(0, 4))); err != nil || !r.Applied {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

// TestALossIsOfTheRanksOfItsStream, and no longer of those that have moved away.
func TestALossIsOfTheRanksOfItsStream(t *testing.T) {
	p := newPrompt(1, 16, 4)
	for name, there := range map[string][]kvindex.Message{
		"moved to a new stream": {message("s", 0, 1, 0), message("s", 1, 2, 1), message("t", 0, 3, 1)},
		"moved back":            {message("t", 0, 1, 1), message("s", 0, 2, 0), message("s", 1, 3, 1), {Stream: "s"}, message("s", 0, 4, 0), message("t", 1, 5, 1)},
	} {
		var lost []int
		ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) {
			if l.Cause == kvindex.LossMalformed {
				lost = append(lost, l.Rank)
			}
		}}))
		for _, m := range there {
			if m.Payload == nil {
				if err := ix.StreamRestarted("a", "m", m.Stream); err != nil {
					t.Fatal(err)
				}
			} else if r, err := ix.IngestMessage(m); err != nil || !r.Applied {
				t.Fatalf("%s: %+v, %v", name, r, err)
			}
		}
		next, _ := ix.StreamNext("a", "m", "t")
		if r, err := ix.IngestMessage(message("t", next, 6, 1, p.stored(0, 3))); err != nil || r != taken {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		next, _ = ix.StreamNext("a", "m", "s")
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
