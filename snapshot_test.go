package kvindex_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

func snapshot(t testing.TB, ix *kvindex.Indexer) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := ix.Snapshot(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restore returns an Indexer that goes on from a snapshot of ix, which ends.
func restore(t testing.TB, ix *kvindex.Indexer, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	b := snapshot(t, ix)
	ix.Close()
	return restoreBytes(t, b, opts...)
}

func restoreBytes(t testing.TB, b []byte, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.Restore(context.Background(), bytes.NewReader(b), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ix.Close() })
	return ix
}

// TestRestored: a pod of a snapshot scores at once, and is uncertain until its stream
// shows that it goes on where the snapshot ends.
func TestRestored(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 40)
	next := func(seq int) kvindex.Message {
		return message("s", uint64(seq), 1000+float64(seq), 0, p.Stored(seq, seq+1))
	}
	other := func(seq int, time float64) kvindex.Message { // of an engine that has restarted
		return message("s", uint64(seq), time, 0, p.Stored(0, 1))
	}
	up := note("s", events.NoteOpened, events.NoteConnected)
	var behind []kvindex.Message
	for seq := range 16 {
		behind = append(behind, other(seq, 5+float64(seq)))
	}
	for name, c := range map[string]struct {
		acts   []act
		want   kvindex.State
		blocks int
		told   string // states by the hook
	}{
		"nothing":                           {nil, kvindex.StateUncertain, 10, ""},
		"a transport follows":               {[]act{up}, kvindex.StateUncertain, 10, ""},
		"a connection lost again":           {[]act{up, note("s", events.NoteLost)}, kvindex.StateUncertain, 10, ""},
		"the message that is due":           {[]act{up, brings(next(10))}, kvindex.StateLive, 11, "live"},
		"the last one again":                {[]act{up, brings(next(9))}, kvindex.StateLive, 10, "live"},
		"and the connection is lost":        {[]act{up, brings(next(9)), note("s", events.NoteLost), brings(next(9))}, kvindex.StateUncertain, 10, "live uncertain"},
		"one before the last again":         {[]act{up, brings(next(8))}, kvindex.StateUncertain, 10, ""},
		"the last number, other bytes":      {[]act{up, brings(other(9, 1009))}, kvindex.StateUncertain, 10, ""},
		"overlap":                           {[]act{up, brings(next(7), next(8), next(9), next(10), next(11))}, kvindex.StateLive, 12, "live"},
		"a replay that begins with it":      {[]act{up, note("s", events.NoteHeld), brings(replayed(hold(next(9))), replayed(next(10))), note("s", events.NoteCurrent)}, kvindex.StateLive, 11, "replaying live"},
		"a replay goes on":                  {[]act{up, brings(replayed(next(9)), replayed(next(10)))}, kvindex.StateReplaying, 11, "replaying"},
		"a replay that begins elsewhere":    {[]act{up, brings(replayed(next(8)))}, kvindex.StateUncertain, 10, ""},
		"a replay that falls silent":        {[]act{up, brings(replayed(next(9)), replayed(next(10))), note("s", events.NoteReleased)}, kvindex.StateUncertain, 11, "replaying uncertain"},
		"a gap":                             {[]act{up, brings(next(13))}, kvindex.StatePartial, 0, "partial"},
		"a gap that a replay fills":         {[]act{up, brings(hold(next(12)), replayed(next(9)), replayed(next(10)), replayed(next(11)), next(12))}, kvindex.StateLive, 13, "replaying live"},
		"restarted, the clock ahead":        {[]act{up, brings(other(0, 2000))}, kvindex.StateLive, 1, "live"},
		"restarted, the clock behind":       {[]act{up, brings(behind...)}, kvindex.StatePartial, 1, "partial"},
		"restarted, at the number":          {[]act{up, brings(other(10, 50))}, kvindex.StateUncertain, 10, ""},
		"and goes on":                       {[]act{up, brings(other(10, 50), other(11, 51))}, kvindex.StatePartial, 1, "partial"},
		"restarted, past the number":        {[]act{up, brings(other(20, 50))}, kvindex.StatePartial, 1, "partial"},
		"restarted, by a replay":            {[]act{up, brings(replayed(hold(other(9, 50)))), restarted("s"), brings(replayed(other(0, 41)), other(1, 42))}, kvindex.StateLive, 1, "live"},
		"restarted, and nothing has come":   {[]act{up, restarted("s")}, kvindex.StateUncertain, 0, ""},
		"another stream":                    {[]act{note("t", events.NoteOpened), brings(message("t", 0, 2000, 0, p.Stored(0, 2)))}, kvindex.StateLive, 2, "silent live"},
		"what cannot be read, with its due": {[]act{up, brings(next(10)), func(_ *testing.T, ix *kvindex.Indexer) { _, _ = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: 11}) }}, kvindex.StatePartial, 0, "live partial"},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t)
			for seq := range 10 {
				brings(next(seq))(t, ix)
			}
			told := ""
			ix = restore(t, ix, kvindex.WithHooks(kvindex.Hooks{State: func(_, _ string, _, to kvindex.State) { told += fmt.Sprint(" ", to) }}))
			if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0]; n != 10 || s.State != kvindex.StateUncertain || s.Sources[0].State != s.State || told != "" {
				t.Fatalf("restored: %d blocks, %+v, told %q", n, s, told)
			}
			if at := ix.StreamNext("a", "m", "s"); at != (events.Position{Next: 10, Heard: true}) {
				t.Errorf("the stream stands at %+v", at)
			}
			for _, a := range c.acts {
				a(t, ix)
			}
			if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0].State; n != c.blocks || s != c.want {
				t.Errorf("%d blocks, %v; want %d, %v", n, s, c.blocks, c.want)
			}
			if told = told[min(1, len(told)):]; told != c.told {
				t.Errorf("told %q, want %q", told, c.told)
			}
		})
	}
}

// TestRestoredInfo: what is told of a pod is as before, but for the counters and the times
// of batches.
func TestRestoredInfo(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t)
	brings(
		message("s", 0, 1, 0, p.Stored(0, 2)), message("s", 1, 2, 3, &fakeengine.Stored{Hashes: p.Stored(5, 6).Hashes, Tokens: p.Tokens[:16], BlockSize: 16, Medium: fakeengine.MediumGPU, Adapter: "sql"}),
		message("r", 5, 1, 1, p.Stored(0, 1)), message("q", 5, 1, 3, p.Stored(0, 1)), message("s", 2, 3, 3, p.Stored(0, 1)),
	)(t, ix)
	ingest(t, ix, "b", p.Stored(0, 3))
	note("t", events.NoteOpened)(t, ix)
	ix.StreamNote("c", "n", "s", events.NoteOpened)
	want := ix.Pods(nil)
	want = slices.DeleteFunc(want, func(p kvindex.PodInfo) bool { return p.Pod == "c" }) // nothing is known of it
	ix = restore(t, ix)
	got := ix.Pods(nil)
	for i := range want {
		w := &want[i]
		w.State, w.Connected = kvindex.StateUncertain, got[i].Connected
		if w.Pod == "b" {
			w.Heard = got[i].Heard
		}
		for j := range w.Sources {
			s := &w.Sources[j]
			s.State, s.Messages, s.Stored, s.Removed, s.Lag, s.Age = kvindex.StateUncertain, 0, 0, 0, 0, 0
			s.Bytes = got[i].Sources[j].Bytes
		}
		w.Streams = slices.DeleteFunc(w.Streams, func(s kvindex.StreamInfo) bool { return s.Stream == "t" })
		for j := range w.Streams {
			w.Streams[j].StreamStats = kvindex.StreamStats{}
		}
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if s := ix.Stats(); s.Messages != 0 || s.Pods != 2 {
		t.Errorf("%+v", s)
	}
	if again := restore(t, ix).Pods(nil); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", got) {
		t.Errorf("once more\n%+v\nwant\n%+v", again, got)
	}
}

// TestRestoredIngest: nobody can confirm a pod whose messages have no numbers, but a clear.
func TestRestoredIngest(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for name, c := range map[string]struct {
		act  act
		want kvindex.State
		n    int
	}{
		"a message": {func(t *testing.T, ix *kvindex.Indexer) { ingest(t, ix, "a", p.Stored(3, 4)) }, kvindex.StateUncertain, 4},
		"a clear":   {func(t *testing.T, ix *kvindex.Indexer) { ingest(t, ix, "a", fakeengine.Cleared{}, p.Stored(0, 1)) }, kvindex.StateLive, 1},
		"a loss":    {func(t *testing.T, ix *kvindex.Indexer) { _ = ix.MarkLost("a", 0) }, kvindex.StatePartial, 0},
		"a stream":  {brings(message("s", 0, 1, 0, p.Stored(0, 2))), kvindex.StateLive, 2},
	} {
		ix := open(t)
		ingest(t, ix, "a", p.Stored(0, 3))
		for range 2 {
			if ix = restore(t, ix); ix.Pods(nil)[0].State != kvindex.StateUncertain || blocks(t, ix, "a", p) != 3 {
				t.Fatalf("%+v", ix.Pods(nil))
			}
		}
		c.act(t, ix)
		if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0].State; s != c.want || n != c.n {
			t.Errorf("%s: %d blocks, %v", name, n, s)
		}
	}
}

// TestRestoredCopies: the history of a restored rank was seen, so its copies are counted
// as before, and not as where something is missing.
func TestRestoredCopies(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	for _, numbered := range []bool{true, false} {
		ix := open(t)
		seq := uint64(0)
		say := func(evs ...fakeengine.Event) {
			if m := message("s", seq, float64(seq+1), 0, evs...); numbered {
				brings(m)(t, ix)
			} else {
				ingest(t, ix, "a", evs...)
			}
			seq++
		}
		say(p.Stored(0, 2))
		ix = restore(t, ix)
		if numbered {
			seq--
			say(p.Stored(0, 2)) // again
		}
		say(p.Stored(1, 2)) // a second copy
		ix = restore(t, ix)
		say(p.Removed(1))
		if n := blocks(t, ix, "a", p); n != 2 {
			t.Errorf("numbered %v: %d blocks behind one of two removals", numbered, n)
		}
		say(p.Removed(1))
		if n := blocks(t, ix, "a", p); n != 1 {
			t.Errorf("numbered %v: %d blocks behind both removals", numbered, n)
		}
	}
}
