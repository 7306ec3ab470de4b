package kvindex_test

import (
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestStreamRestarted: an engine that is known to have restarted is heard
// for the first time again.
func TestStreamRestarted(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	p := fakeengine.NewPrompt(1, 16, 8)
	anew := func(stream string) {
		t.Helper()
		must(t, ix.Sink().StreamNote("a", "m", stream, events.NoteRestarted))
	}
	due := func(stream string, want uint64, heard bool) {
		t.Helper()
		if at := ix.Sink().StreamNext("a", "m", stream); at.Next != want || at.Received != heard {
			t.Errorf("stream %q: %d is due, heard %v; want %d, %v", stream, at.Next, at.Received, want, heard)
		}
	}
	anew("s")
	due("s", 0, false)
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
		step{message("s", 1, 2, 0, p.Stored(4, 5)), taken, 5, kvindex.StateLive},
	)
	due("s", 2, true)
	anew("other")
	due("s", 2, true)
	anew("s")
	due("s", 0, false)
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != 0 || s.State == kvindex.StateLive {
		t.Errorf("%+v", s)
	}
	// Its clock is behind, and it is past the number that was due.
	play(t, ix, p,
		step{hold(message("s", 2, 1, 0, p.Stored(2, 3))), heldBehind(0, 1), 0, kvindex.StateReplaying},
		step{replayed(message("s", 0, 0.5, 0, p.Stored(0, 1))), taken, 1, kvindex.StateReplaying},
		step{replayed(message("s", 1, 0.7, 0, p.Stored(1, 2))), taken, 2, kvindex.StateReplaying},
		step{message("s", 2, 1, 0, p.Stored(2, 3)), taken, 3, kvindex.StateLive},
	)
	if s := ix.Stats(); s.Restarts != 1 || len(losses) != 1 || losses[0].Cause != "restart" || losses[0].Rank != 0 {
		t.Errorf("%+v %+v", s.Traffic, losses)
	}
	anew("s")
	play(t, ix, p, step{message("s", 5, 9, 0, p.Stored(0, 2)), taken, 2, kvindex.StatePartial})
	if !ix.Pods(nil)[0].WantsFullReport {
		t.Error("history is missing, and no full report is wanted")
	}
	if err := ix.Sink().StreamNote("", "m", "s", events.NoteRestarted); err == nil {
		t.Error("no pod is no error")
	}
}

// TestStreamRestartedOutlivesTheHost: the cursor of an engine that has said
// nothing since it restarted makes nobody deaf.
func TestStreamRestartedOutlivesTheHost(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	old := open(t, kvindex.WithIndex(m))
	play(t, old, p, step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive})
	must(t, old.Sink().StreamNote("a", "m", "s", events.NoteRestarted))
	old.Close()
	noLoss := kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { t.Errorf("lost: %+v", l) }})
	play(t, open(t, kvindex.WithIndex(m), noLoss), p,
		step{message("s", 0, 2, 0, p.Stored(0, 2)), taken, 2, kvindex.StateLive},
		step{message("s", 1, 3, 0, p.Stored(2, 3)), taken, 3, kvindex.StateLive},
	)
	// What another stream left in the index is not claimed beside.
	describesNothing := struct{ index.Index }{m}
	play(t, open(t, kvindex.WithIndex(describesNothing)), p, step{message("t", 0, 4, 0, p.Stored(0, 1)), taken, 1, kvindex.StateLive})
}

// TestStreamInterrupted: until its next message nobody knows what a pod behind a
// lost connection holds.
func TestStreamInterrupted(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	state := func() kvindex.State {
		return score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0].State
	}
	_ = ix.Sink().StreamNote("a", "m", "s", events.NoteLost)
	play(t, ix, p, step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive})
	_ = ix.Sink().StreamNote("a", "m", "t", events.NoteLost)
	if state() != kvindex.StateLive {
		t.Errorf("another stream: %v", state())
	}
	_ = ix.Sink().StreamNote("a", "m", "s", events.NoteLost)
	if state() != kvindex.StateUncertain || ix.Pods(nil)[0].Ranks[0].State != kvindex.StateUncertain {
		t.Errorf("interrupted: %v", state())
	}
	play(t, ix, p, step{message("s", 1, 2, 0, p.Stored(4, 5)), taken, 5, kvindex.StateLive})
	_ = ix.Sink().StreamNote("a", "m", "s", events.NoteLost)
	again := replayed(hold(message("s", 1, 2, 0, p.Stored(4, 5))))
	current := func() { _ = ix.Sink().StreamNote("a", "m", "s", events.NoteCurrent) }
	play(t, ix, p, step{again, repeat, 5, kvindex.StateUncertain})
	if current(); state() != kvindex.StateLive {
		t.Errorf("all was offered: %v", state())
	}
	play(t, ix, p, step{hold(message("s", 9, 3, 0)), heldBehind(2, 8), 5, kvindex.StateReplaying})
	_ = ix.Sink().StreamNote("a", "m", "s", events.NoteLost) // the held message will not come again
	play(t, ix, p, step{again, repeat, 5, kvindex.StateUncertain})
	play(t, ix, p, step{message("s", 2, 4, 0), taken, 5, kvindex.StateLive})
}
