package kvindex_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

func message(stream string, seq uint64, time float64, rank int, evs ...fakeengine.Event) kvindex.Message {
	return kvindex.Message{Pod: "a", Model: "m", Stream: stream, Seq: seq, Payload: fakeengine.Payload(time, rank, evs...)}
}

func lostGap(from, to uint64) kvindex.Gap { return kvindex.Gap{From: from, To: to, Lost: true} }

// step is a message and its expected outcome.
type step struct {
	m      kvindex.Message
	want   kvindex.Receipt
	blocks int
	state  kvindex.State
}

func hold(m kvindex.Message) kvindex.Message { m.Hold = true; return m }

func replayed(m kvindex.Message) kvindex.Message { m.Replayed = true; return m }

// play ingests the messages of the steps; blocks are those of p.
func play(t *testing.T, ix *kvindex.Indexer, p fakeengine.Prompt, steps ...step) {
	t.Helper()
	for i, c := range steps {
		got, err := ix.IngestMessage(c.m)
		if err != nil || got != c.want {
			t.Fatalf("step %d: %+v, %v; want %+v", i, got, err, c.want)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]; s.MatchedBlocks != c.blocks || s.State != c.state {
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

// TestMessages plays a stream with all kinds of faults.
func TestMessages(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	p := fakeengine.NewPrompt(1, 16, 8)
	lost := func(from, to uint64) kvindex.Gap { return kvindex.Gap{From: from, To: to, Lost: true} }
	bad := message("s", 7, 7, 0)
	bad.Payload = []byte("no msgpack")
	for i, c := range []struct {
		m      kvindex.Message
		want   kvindex.Receipt
		bad    bool
		blocks int
		state  kvindex.State
	}{
		{m: message("s", 0, 1, 0, p.Stored(0, 2)), want: kvindex.Receipt{Applied: true}, blocks: 2, state: kvindex.StateLive},
		{m: message("s", 1, 2, 0, p.Stored(2, 4)), want: kvindex.Receipt{Applied: true}, blocks: 4, state: kvindex.StateLive},
		{m: message("s", 0, 1, 0, p.Stored(0, 2)), want: kvindex.Receipt{Duplicate: true}, blocks: 4, state: kvindex.StateLive},
		{m: message("s", 4, 4, 0, p.Stored(0, 3)), want: kvindex.Receipt{Applied: true, Gap: lost(2, 3)}, blocks: 3, state: kvindex.StatePartial},
		{m: message("s", 3, 3, 0, p.Stored(3, 5)), want: kvindex.Receipt{Duplicate: true}, blocks: 3, state: kvindex.StatePartial},
		{m: message("s", 5, 5, 0, fakeengine.Cleared{}, p.Stored(0, 1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StateLive},
		{m: message("s", 6, 6, 0, p.Stored(1, 7)), want: kvindex.Receipt{Applied: true}, blocks: 7, state: kvindex.StateLive},
		{m: bad, bad: true, blocks: 0, state: kvindex.StatePartial},
		{m: message("s", 8, 8, 0, p.Stored(0, 1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StatePartial},
		{m: message("s", 0, 9, 0, p.Stored(0, 2)), want: kvindex.Receipt{Applied: true, Restarted: true}, blocks: 2, state: kvindex.StateLive},
		{m: message("s", 1, 10, 0, p.Removed(1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StateLive},
		{m: message("s", 0, 11, 0, p.Stored(0, 5)), want: kvindex.Receipt{Applied: true, Restarted: true}, blocks: 5, state: kvindex.StateLive},
		{m: message("s", 9, 12, 0, p.Stored(0, 1)), want: kvindex.Receipt{Applied: true, Gap: lost(1, 8)}, blocks: 1, state: kvindex.StatePartial},
	} {
		got, err := ix.IngestMessage(c.m)
		if got != c.want || c.bad != errors.Is(err, kvindex.ErrMalformed) || !c.bad && err != nil {
			t.Fatalf("step %d: %+v, %v; want %+v", i, got, err, c.want)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != c.blocks || s.State != c.state {
			t.Fatalf("step %d: %d blocks, %v; want %d, %v", i, s.MatchedBlocks, s.State, c.blocks, c.state)
		}
	}
	var causes []string
	for _, l := range losses {
		causes = append(causes, l.Cause)
	}
	if want := []string{"gap", "malformed", "restart", "restart", "gap"}; !slices.Equal(causes, want) {
		t.Errorf("losses %v, want %v", causes, want)
	}
	n := ix.Stats()
	if n.MalformedBy["type"] != 1 || counted(n.MalformedBy) != 1 {
		t.Errorf("malformed by reason: %v", n.MalformedBy)
	}
	if n.Messages != 13 || n.Duplicates != 2 || n.Gaps != 2 || n.Missing != 10 || n.Restarts != 2 || n.Malformed != 1 {
		t.Errorf("%+v", n)
	}
	if got := ix.Pods(nil); len(got) != 1 || got[0].State != kvindex.StatePartial || got[0].Ranks[0].Stream != "s" || got[0].Streams[0].Next != 10 || got[0].Ranks[0].Blocks[kvindex.TierGPU] != 1 {
		t.Errorf("%+v", got)
	}
}

// A kept index has the position of each stream.
func TestMessagesAfterARestartOfTheHost(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	for _, c := range []struct {
		seq     uint64
		time    float64
		receipt kvindex.Receipt
		blocks  int
	}{
		{6, 2, kvindex.Receipt{Duplicate: true}, 2},
		{6, 3, kvindex.Receipt{Applied: true, Restarted: true}, 0},
		{7, 3, kvindex.Receipt{Applied: true}, 3},
		{9, 3, kvindex.Receipt{Applied: true, Gap: kvindex.Gap{From: 7, To: 8, Lost: true}}, 0},
	} {
		m := memory(t)
		old := open(t, kvindex.WithIndex(m))
		for i, e := range []kvindex.Message{message("s", 8, 1, 0, p.Stored(0, 1)), message("s", 6, 2, 0, p.Stored(0, 2))} {
			if r, err := old.IngestMessage(e); err != nil || !r.Applied || r.Restarted != (i == 1) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		old.Close()
		ix := open(t, kvindex.WithIndex(m))
		got, err := ix.IngestMessage(message("s", c.seq, c.time, 0, p.Stored(2, 3)))
		if err != nil || got != c.receipt {
			t.Errorf("message %d: %+v, %v", c.seq, got, err)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != c.blocks || s.State == kvindex.StateLive {
			t.Errorf("message %d: %+v", c.seq, s)
		}
	}
}

func TestReplayedGap(t *testing.T) {
	var seen []string
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{
		Lost: func(l kvindex.Loss) { seen = append(seen, "lost") },
		State: func(pod, model string, from, to kvindex.State) {
			seen = append(seen, fmt.Sprintf("%s %s %v %v", pod, model, from, to))
		},
	}))
	p := fakeengine.NewPrompt(1, 16, 8)
	next := message("s", 3, 4, 0, p.Removed(7))
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.Stored(0, 2)), taken, 2, kvindex.StateLive},
		step{hold(next), heldBehind(1, 2), 2, kvindex.StateReplaying},
		step{hold(next), heldBehind(1, 2), 2, kvindex.StateReplaying},
		step{replayed(message("s", 0, 1, 0, p.Stored(0, 2))), repeat, 2, kvindex.StateReplaying},
		step{replayed(message("s", 1, 2, 0, p.Stored(2, 6))), taken, 6, kvindex.StateReplaying},
		step{replayed(message("s", 2, 3, 0, p.Stored(6, 8))), taken, 8, kvindex.StateReplaying},
		step{next, taken, 7, kvindex.StateLive},
	)
	if want := []string{"a m unknown live", "a m live replaying", "a m replaying live"}; !slices.Equal(seen, want) {
		t.Errorf("hooks: %q, want %q", seen, want)
	}
	s := ix.Stats()
	if s.Gaps != 1 || s.Missing != 0 || s.Replayed != 2 || s.PassedOver != 0 || s.Duplicates != 1 || s.Messages != 5 {
		t.Errorf("%+v", s.Traffic)
	}
	if got := ix.Pods(nil)[0]; got.Streams[0].Traffic != s.Traffic || got.WantsFullReport || got.Streams[0].Next != 4 {
		t.Errorf("%+v", got)
	}
}

// TestReplayBringsTheHeldMessage: a transport need not offer a held message again if a replay
// brought it.
func TestReplayBringsTheHeldMessage(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	play(t, ix, p,
		step{hold(message("s", 1, 2, 0, p.Stored(2, 4))), heldBehind(0, 0), 0, kvindex.StateReplaying},
		step{replayed(message("s", 0, 1, 0, p.Stored(0, 2))), taken, 2, kvindex.StateReplaying},
		step{replayed(message("s", 1, 2, 0, p.Stored(2, 4))), taken, 4, kvindex.StateLive},
		// The engine's next message shows that there is more.
		step{replayed(message("s", 2, 3, 0, p.Stored(4, 5))), taken, 5, kvindex.StateReplaying},
		step{message("s", 3, 4, 0, p.Stored(5, 6)), taken, 6, kvindex.StateLive},
	)
}

// TestReplayPassesOver: messages that a replay passes over, or that never come, are lost.
func TestReplayPassesOver(t *testing.T) {
	for name, c := range map[string]struct {
		options []kvindex.Option
		blocks  []int
		state   kvindex.State
	}{
		"forget": {nil, []int{1, 3, 1}, kvindex.StatePartial},
		"keep":   {[]kvindex.Option{kvindex.WithKeepOnLoss()}, []int{4, 4, 4}, kvindex.StateUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			var losses []kvindex.Loss
			ix := open(t, append(c.options, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))...)
			p := fakeengine.NewPrompt(1, 16, 8)
			play(t, ix, p,
				step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
				step{hold(message("s", 9, 9, 0, p.Stored(0, 1))), heldBehind(1, 8), 4, kvindex.StateReplaying},
				step{replayed(message("s", 3, 3, 0, p.Stored(0, 1))), kvindex.Receipt{Applied: true, Gap: lostGap(1, 2)}, c.blocks[0], min(c.state, kvindex.StateReplaying)},
				step{replayed(message("s", 4, 4, 0, p.Stored(1, 3))), taken, c.blocks[1], min(c.state, kvindex.StateReplaying)},
				step{message("s", 9, 9, 0, p.Stored(0, 1)), kvindex.Receipt{Applied: true, Gap: lostGap(5, 8)}, c.blocks[2], c.state},
			)
			kept := c.state == kvindex.StateUncertain
			if len(losses) != 2 || losses[0].Gap != lostGap(1, 2) || !losses[0].Replayed || losses[1].Replayed || losses[0].Kept != kept || losses[1].Kept != kept {
				t.Errorf("%+v", losses)
			}
			if s := ix.Stats(); s.Gaps != 1 || s.Missing != 6 || s.PassedOver != 2 || s.Replayed != 2 {
				t.Errorf("%+v", s.Traffic)
			}
			if !ix.Pods(nil)[0].WantsFullReport {
				t.Error("no full report is wanted")
			}
		})
	}
}

// TestReplayPassesOverBehindADoubt: a gap in the replay is counted, also if the message was held
// for another reason.
func TestReplayPassesOverBehindADoubt(t *testing.T) {
	ix := open(t, kvindex.WithKeepOnLoss())
	p := fakeengine.NewPrompt(1, 16, 8)
	late := message("s", 1, 2, 0, p.Stored(0, 1))
	play(t, ix, p,
		step{message("s", 2, 3, 0, p.Stored(0, 4)), taken, 4, kvindex.StatePartial},
		step{hold(late), kvindex.Receipt{Held: true}, 4, kvindex.StateReplaying},
		step{replayed(message("s", 5, 6, 0, p.Stored(4, 5))), kvindex.Receipt{Applied: true, Gap: lostGap(3, 4)}, 5, kvindex.StateUncertain},
		step{late, repeat, 5, kvindex.StateUncertain},
	)
	if s := ix.Stats(); s.Gaps != 1 || s.Missing != 2 || s.PassedOver != 2 {
		t.Errorf("%+v", s.Traffic)
	}
}

// A hole stays open while old messages are repeated.
func TestAHoleStaysOpen(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
		step{hold(message("s", 5, 6, 0)), heldBehind(1, 4), 4, kvindex.StateReplaying},
		step{message("s", 0, 1, 0, p.Stored(0, 4)), repeat, 4, kvindex.StateReplaying},
	)
}

// A rank's blocks from another stream, or from a time without one, may be gone.
func TestARankMovesToAnotherStream(t *testing.T) {
	p, q := fakeengine.NewPrompt(1, 16, 2), fakeengine.NewPrompt(2, 16, 1)
	for _, c := range []struct {
		name  string
		first func(*kvindex.Indexer) error
		seq   uint64
		want  kvindex.State
	}{
		{"a new engine", nil, 0, kvindex.StateLive},
		{"attached late", nil, 7, kvindex.StatePartial},
		{"fed without numbers before", func(ix *kvindex.Indexer) error { return ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 2))) }, 9, kvindex.StatePartial},
	} {
		var causes []string
		ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { causes = append(causes, l.Cause) }}))
		first := c.first
		if first == nil {
			first = func(ix *kvindex.Indexer) error {
				_, err := ix.IngestMessage(message("tcp://10.0.0.1:5557", 0, 1, 0, p.Stored(0, 2)))
				return err
			}
		}
		must(t, first(ix))
		brings(message("tcp://10.0.0.2:5557", c.seq, 2, 0, q.Stored(0, 1)))(t, ix)
		if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != 0 || s.State != c.want || blocks(t, ix, "a", q) != 1 {
			t.Errorf("%s: %+v", c.name, s)
		}
		if !slices.Equal(causes, []string{"moved"}) {
			t.Errorf("%s: losses %v", c.name, causes)
		}
	}
}

// TestARankComesBack: when a rank returns to an earlier stream, that stream's old messages stay old
// and its new ones are applied.
func TestARankComesBack(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for name, restart := range map[string]bool{"same engine": false, "restarted in between": true} {
		t.Run(name, func(t *testing.T) {
			ix := open(t)
			play(t, ix, p,
				step{message("a", 0, 1, 0, p.Stored(0, 1)), taken, 1, kvindex.StateLive},
				step{message("a", 1, 2, 0, p.Stored(1, 2)), taken, 2, kvindex.StateLive},
			)
			if restart {
				play(t, ix, p, step{message("a", 0, 3, 0, p.Stored(0, 1)), kvindex.Receipt{Applied: true, Restarted: true}, 1, kvindex.StateLive})
			}
			play(t, ix, p,
				step{message("b", 0, 4, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
				step{message("a", 1, 2, 0, p.Stored(1, 2)), repeat, 4, kvindex.StateLive},
			)
			if restart {
				// Stream a goes on, and so may b.
				play(t, ix, p, step{message("a", 1, 5, 0, p.Stored(0, 3)), kvindex.Receipt{}, 4, kvindex.StateUncertain})
				_ = ix.Sink().StreamNote("a", "m", "b", events.NoteLost)
				play(t, ix, p, step{message("a", 2, 6, 0, p.Stored(0, 3)), taken, 3, kvindex.StatePartial})
				return
			}
			play(t, ix, p,
				step{message("a", 0, 5, 0, p.Stored(0, 3)), kvindex.Receipt{Applied: true, Restarted: true}, 3, kvindex.StateLive},
				step{message("a", 1, 6, 0, p.Stored(3, 5)), taken, 5, kvindex.StateLive},
			)
		})
	}
}

// TestRewound: all messages of the engine's present life come again, from number 0 on. They are
// applied, live or replayed; those of the earlier life are still recognised.
func TestRewound(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	send := func(ix *kvindex.Indexer, seq uint64, time float64) kvindex.Receipt {
		t.Helper()
		r, err := ix.IngestMessage(message("s", seq, time, 0, p.Stored(int(seq)%4, int(seq)%4+1)))
		must(t, err)
		return r
	}
	ix := open(t)
	for seq := range uint64(6) {
		send(ix, seq, float64(1+seq))
	}
	for seq := range uint64(3) {
		send(ix, seq, float64(10+seq))
	}
	must(t, ix.Sink().StreamNote("a", "m", "s", events.NoteRewound))
	for seq := range uint64(3) {
		if r := send(ix, seq, float64(10+seq)); !r.Applied || r.Restarted {
			t.Errorf("message %d comes again: %+v", seq, r)
		}
	}
	if r := send(ix, 5, 6); !r.Duplicate {
		t.Errorf("message 5 of the life before: %+v", r)
	}
	if s := score(t, ix, kvindex.Request{Tokens: append(p.Tokens, 1)})[0]; s.CachedTokens != 48 {
		t.Errorf("%+v", s)
	}
}

// TestStreamRestarted: after a reported restart the engine's next message is handled like its
// first.
func TestStreamRestarted(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	p := fakeengine.NewPrompt(1, 16, 8)
	anew := func(stream string) {
		t.Helper()
		must(t, ix.Sink().StreamNote("a", "m", stream, events.NoteRestarted))
	}
	due := func(stream string, want uint64) {
		t.Helper()
		if at := ix.Sink().StreamNext("a", "m", stream); at.Next != want {
			t.Errorf("stream %q: %d is due, want %d", stream, at.Next, want)
		}
	}
	anew("s")
	due("s", 0)
	play(t, ix, p,
		step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive},
		step{message("s", 1, 2, 0, p.Stored(4, 5)), taken, 5, kvindex.StateLive},
	)
	due("s", 2)
	anew("other")
	due("s", 2)
	anew("s")
	due("s", 0)
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; s.MatchedBlocks != 0 || s.State == kvindex.StateLive {
		t.Errorf("%+v", s)
	}
	// Its clock is earlier, and its number is past the expected one.
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

// TestStreamRestartedOutlivesTheHost: the cursor of an engine that has sent nothing since its
// restart hides no message.
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
	// Blocks of another stream in the index are not claimed too.
	describesNothing := struct{ index.Index }{m}
	play(t, open(t, kvindex.WithIndex(describesNothing)), p, step{message("t", 0, 4, 0, p.Stored(0, 1)), taken, 1, kvindex.StateLive})
}

// TestStreamInterrupted: after a lost connection a pod's blocks are uncertain until its next
// message.
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
