package kvindex_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// act is one report of a transport about pod a and model m.
type act func(t *testing.T, ix *kvindex.Indexer)

func note(stream string, notes ...events.Note) act {
	return func(_ *testing.T, ix *kvindex.Indexer) {
		for _, n := range notes {
			_ = ix.Sink().StreamNote("a", "m", stream, n)
		}
	}
}

func restarted(stream string) act {
	return func(t *testing.T, ix *kvindex.Indexer) {
		t.Helper()
		must(t, ix.Sink().StreamNote("a", "m", stream, events.NoteRestarted))
	}
}

func brings(messages ...kvindex.Message) act {
	return func(t *testing.T, ix *kvindex.Indexer) {
		t.Helper()
		for _, m := range messages {
			if _, err := ix.IngestMessage(m); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// at is a message with its number as time, which stores one block.
func at(stream string, seq uint64, rank int) kvindex.Message {
	return message(stream, seq, float64(seq+1), rank, fakeengine.NewPrompt(seq, 16, 1).Stored(0, 1))
}

// later is at of an engine that restarted after 100 messages of another.
func later(stream string, seq uint64, rank int) kvindex.Message {
	return message(stream, seq, float64(seq+101), rank, fakeengine.NewPrompt(seq, 16, 1).Stored(0, 1))
}

// TestChangesOfState: a pod's changes of state are reported once each, and the last state is right.
func TestChangesOfState(t *testing.T) {
	const opened, connected, lost, closed = events.NoteOpened, events.NoteConnected, events.NoteLost, events.NoteClosed
	const held, current, released = events.NoteHeld, events.NoteCurrent, events.NoteReleased
	up := note("s", opened, connected)
	live := []act{up, brings(at("s", 0, 0), at("s", 1, 0))}
	for _, c := range []struct {
		name string
		acts []act
		want string // the states, from the first change on
	}{
		{"a start without replay", live, "silent live"},
		{"a start with a replay of nothing", []act{note("s", opened, connected, held, current), brings(hold(at("s", 0, 0)))}, "silent live"},
		{"an engine that is not up yet", []act{note("s", opened, lost, lost, connected), brings(at("s", 0, 0))}, "silent live"},
		{"an engine with a history", []act{
			note("s", opened, connected, held), brings(replayed(at("s", 0, 0)), replayed(at("s", 1, 0))),
			note("s", connected, held), brings(replayed(hold(at("s", 1, 0)))), note("s", current), brings(hold(at("s", 2, 0))),
		}, "silent replaying live"},
		{"an engine with a history that was not up yet", []act{
			note("s", opened, lost, connected, held), brings(replayed(at("s", 0, 0))), note("s", current),
		}, "silent replaying live"},
		{"an engine with a history and no replay", []act{up, brings(at("s", 7, 0))}, "silent partial"},
		{"no notes", []act{brings(at("s", 0, 0))}, "unknown live"},
		{"no notes, and a replay that goes over to the stream", []act{brings(replayed(at("s", 0, 0)), at("s", 1, 0))}, "unknown replaying live"},
		{"a restart without replay", append(live, note("s", lost, connected), brings(later("s", 0, 0))), "silent live uncertain live"},
		{"a restart with replay", append(live, note("s", lost, connected, held), restarted("s"),
			brings(replayed(later("s", 0, 0)), replayed(later("s", 1, 0))), note("s", connected, held),
			brings(replayed(hold(later("s", 1, 0)))), note("s", current)), "silent live uncertain live"},
		{"a restart with replay that brings one rank of two", []act{up, brings(at("s", 0, 0), at("s", 1, 1)),
			note("s", lost, connected, held), restarted("s"), brings(replayed(later("s", 0, 1))), note("s", connected, current)}, "silent live uncertain live"},
		{"a restart of an engine that says nothing", append(live, note("s", lost, connected, held), restarted("s"), note("s", connected, current)), "silent live uncertain live"},
		{"... and of which the beginning is missed then", append(live, note("s", lost, connected), restarted("s"), note("s", current), brings(later("s", 3, 0))), "silent live uncertain live partial"},
		{"... and the beginning of one rank of two", []act{up, brings(at("s", 0, 0), at("s", 1, 1)),
			note("s", lost, connected), restarted("s"), note("s", current), brings(later("s", 3, 0)), brings(message("s", 4, 105, 0, fakeengine.Cleared{}))}, "silent live uncertain live partial"},
		{"a restart while a message waits", append(live, brings(hold(at("s", 4, 0))), restarted("s"), brings(replayed(later("s", 0, 0)), later("s", 1, 0))), "silent live replaying live"},
		{"nothing missed", append(live, note("s", lost, connected, held), brings(replayed(hold(at("s", 1, 0)))), note("s", current)), "silent live uncertain live"},
		{"nothing missed, without replay", append(live, note("s", lost, connected), brings(at("s", 2, 0))), "silent live uncertain live"},
		{"a repeat confirms nothing", append(live, note("s", lost, connected), brings(at("s", 1, 0), replayed(at("s", 1, 0)))), "silent live uncertain"},
		{"a replay that falls silent", append(live, note("s", lost, connected, held), brings(replayed(hold(at("s", 1, 0))), replayed(at("s", 2, 0))), note("s", released)), "silent live uncertain"},
		{"... and then a message", append(live, note("s", lost, connected, held), brings(replayed(at("s", 2, 0))), note("s", released), brings(at("s", 3, 0))), "silent live uncertain live"},
		{"an idle stream is caught up with in part", append(live, note("s", held), brings(replayed(at("s", 2, 0))), note("s", released)), "silent live replaying uncertain"},
		{"a gap that is filled", append(live, brings(hold(at("s", 4, 0))), note("s", held), brings(replayed(at("s", 2, 0)), replayed(at("s", 3, 0)), at("s", 4, 0)), note("s", released)), "silent live replaying live"},
		{"a gap that stays", append(live, brings(hold(at("s", 4, 0))), note("s", held), brings(at("s", 4, 0)), note("s", released)), "silent live replaying partial"},
		{"what waits is given up", append(live, brings(hold(at("s", 4, 0))), note("s", released)), "silent live replaying uncertain"},
		{"a message that goes back and waits", append(live, brings(hold(later("s", 0, 0)), at("s", 1, 0))), "silent live replaying"},
		{"all is sent once more", []act{up, brings(at("s", 1, 0)), note("s", held), restarted("s"),
			brings(replayed(at("s", 0, 0)), replayed(at("s", 1, 0))), note("s", current)}, "silent partial replaying live"},
		{"a second stream is silent", append(live, note("t", opened, connected), brings(at("t", 0, 1))), "silent live silent live"},
		{"two streams from the beginning", []act{note("s", opened), note("t", opened), brings(at("s", 0, 0), at("t", 0, 1))}, "silent live"},
		{"a silent stream is closed", append(live, note("t", opened, closed)), "silent live silent live"},
		{"a stream is closed", append(live, note("s", closed)), "silent live uncertain"},
		{"a silent stream brings what nobody can read", []act{up, func(*testing.T, *kvindex.Indexer) {}, func(t *testing.T, ix *kvindex.Indexer) {
			if _, err := ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Payload: []byte("{}")}); err == nil {
				t.Fatal("no error")
			}
		}}, "silent partial"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen []string
			ix := open(t, kvindex.WithHooks(kvindex.Hooks{State: func(_, _ string, from, to kvindex.State) {
				if len(seen) == 0 {
					seen = append(seen, from.String())
				}
				if from.String() != seen[len(seen)-1] {
					t.Errorf("a change from %v after %v", from, seen)
				}
				seen = append(seen, to.String())
			}}))
			for _, a := range c.acts {
				a(t, ix)
			}
			if got := strings.Join(seen, " "); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if got := ix.Pods(nil)[0].State.String(); !strings.HasSuffix(c.want, got) {
				t.Errorf("at the end %s", got)
			}
		})
	}
}

// TestASilentPod: a pod is in Pods and in scores from the first note on, and until no stream is
// left.
func TestASilentPod(t *testing.T) {
	asked := 0
	ix := open(t, kvindex.WithProfile(func(pod, model string) kvindex.Profile {
		asked++
		return kvindex.Profile{Copies: kvindex.CopiesExact}
	}))
	p := fakeengine.NewPrompt(1, 16, 2)
	_ = ix.Sink().StreamNote("a", "m", "s", events.NoteConnected) // without NoteOpened
	_ = ix.Sink().StreamNote("", "m", "s", events.NoteOpened)
	if got := ix.Pods(nil); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	note("s", events.NoteOpened, events.NoteConnected)(t, ix)
	info := ix.Pods(nil)[0]
	if info.State != kvindex.StateSilent || info.Connected.IsZero() || !info.LastMessage.IsZero() || asked != 1 || info.Profile.Copies != kvindex.CopiesExact || len(info.Ranks) != 0 || len(info.Streams) != 1 {
		t.Errorf("%+v", info)
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens}); len(s) != 1 || s[0].State != kvindex.StateSilent {
		t.Errorf("scores %+v", s)
	}
	if s := ix.Stats(); s.States["silent"] != 1 || s.Connected != 1 || s.Models != 1 || s.Pods != 1 {
		t.Errorf("%+v", s)
	}
	note("s", events.NoteClosed)(t, ix)
	if s := ix.Stats(); len(ix.Pods(nil)) != 0 || s.Pods != 0 || s.Models != 0 {
		t.Errorf("closed: %+v", s)
	}
	for i := range 2 * kvindex.MaxStreams {
		note(fmt.Sprint(i), events.NoteOpened)(t, ix)
	}
	if got := ix.Pods(nil)[0]; len(got.Streams) != kvindex.MaxStreams {
		t.Errorf("%d streams", len(got.Streams))
	}
	if _, err := ix.IngestMessage(at("s", 0, 0)); err == nil {
		t.Error("an open stream made room for another")
	}
}

// A kept index is trusted only as far as its stream confirms it.
func TestAKeptIndexIsNotTrusted(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	first := message("s", 0, 1, 0, p.Stored(0, 4))
	play(t, open(t, kvindex.WithIndex(m)), p, step{first, taken, 4, kvindex.StateLive})
	ix := open(t, kvindex.WithIndex(m))
	play(t, ix, p, step{first, repeat, 4, kvindex.StateUncertain})
	if at := ix.Sink().StreamNext("a", "m", "s"); at != (events.Position{Next: 1, Partial: true}) {
		t.Errorf("%+v", at)
	}
	play(t, ix, p,
		step{message("s", 1, 2, 0, p.Removed(3)), taken, 3, kvindex.StatePartial},
		step{message("t", 0, 3, 0, p.Stored(0, 1)), taken, 1, kvindex.StateLive}, // another address
	)
	ix = open(t, kvindex.WithIndex(m))
	play(t, ix, p,
		step{message("t", 0, 3, 0, p.Stored(0, 1)), repeat, 1, kvindex.StateUncertain},
		step{message("u", 0, 4, 0, p.Stored(2, 3)), taken, 0, kvindex.StateLive},
	)
}

// The ranks of a kept index are known before their first message: they are lost with their stream,
// and no other stream claims them.
func TestTheRanksOfAKeptIndex(t *testing.T) {
	ranks := func(ix *kvindex.Indexer) (got string) {
		for _, s := range ix.Pods(nil)[0].Ranks {
			got += fmt.Sprint(s.Blocks[kvindex.TierGPU], " ", s.State, " ")
		}
		return got
	}
	for name, c := range map[string]struct {
		before, after []act
		want          string
	}{
		"a repeat":              {nil, []act{brings(at("s", 1, 1))}, "1 uncertain 1 uncertain "},
		"the next message":      {nil, []act{brings(at("s", 2, 1))}, "1 partial 2 partial "},
		"a gap":                 {nil, []act{brings(at("s", 5, 1))}, "0 partial 1 partial "},
		"a restart":             {nil, []act{brings(later("s", 0, 1))}, "0 live 1 live "},
		"another address":       {nil, []act{brings(at("t", 0, 0))}, "1 live 1 uncertain "},
		"... of both":           {nil, []act{brings(at("t", 0, 0), at("t", 1, 1))}, "1 live 1 live "},
		"without numbers":       {nil, []act{func(_ *testing.T, ix *kvindex.Indexer) { _ = ix.Ingest("a", "m", at("", 9, 0).Payload) }}, "2 uncertain 1 uncertain "},
		"... with a clear":      {nil, []act{func(t *testing.T, ix *kvindex.Indexer) { ingest(t, ix, "a", fakeengine.Cleared{}) }}, "0 live 1 uncertain "},
		"the address before":    {[]act{brings(at("t", 0, 0), at("t", 1, 1))}, []act{brings(at("s", 2, 0), at("s", 3, 1))}, "1 partial 1 partial "},
		"the address since":     {[]act{brings(at("t", 0, 0), at("t", 1, 1))}, []act{brings(at("t", 2, 0))}, "2 partial 1 partial "},
		"a restart before":      {[]act{brings(at("t", 0, 0), at("t", 1, 1))}, []act{restarted("s")}, "1 uncertain 1 uncertain "},
		"... that goes on":      {[]act{brings(at("t", 0, 0), at("t", 1, 1))}, []act{restarted("s"), brings(later("s", 0, 0))}, "1 live 1 uncertain "},
		"there and back":        {[]act{brings(at("t", 0, 0), at("t", 1, 1), later("s", 0, 0), later("s", 1, 1))}, []act{brings(later("s", 2, 0))}, "2 partial 1 partial "},
		"there, back and there": {[]act{brings(at("t", 0, 0), at("t", 1, 1), later("s", 0, 0), later("s", 1, 1))}, []act{brings(at("t", 2, 0))}, "1 partial 1 uncertain "},
	} {
		m := memory(t)
		old := open(t, kvindex.WithIndex(m))
		for _, a := range append([]act{brings(at("s", 0, 0), at("s", 1, 1))}, c.before...) {
			a(t, old)
		}
		ix := open(t, kvindex.WithIndex(m))
		for _, a := range c.after {
			a(t, ix)
		}
		if got := ranks(ix); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		must(t, ix.RemovePod("a"))
		brings(at("s", 0, 0))(t, ix)
		if got := ranks(ix); got != "1 live " {
			t.Errorf("%s, and removed: %s", name, got)
		}
	}
}

// TestRanksOfARestartedEngine: if a stream was followed from an engine's first message on, that
// holds for all of its ranks.
func TestRanksOfARestartedEngine(t *testing.T) {
	for name, c := range map[string]struct {
		seq  uint64
		want kvindex.State
	}{"from the first message": {0, kvindex.StateLive}, "later": {1, kvindex.StatePartial}} {
		ix := open(t)
		brings(at("s", 0, 0), at("s", 1, 1), at("s", 2, 1), later("s", c.seq, 0))(t, ix)
		for _, s := range ix.Pods(nil)[0].Ranks {
			if s.State != c.want || s.Blocks[kvindex.TierGPU] != 1-s.Rank {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

// Two engines of one name do not clear each other at each message.
func TestTwoEnginesOfOneName(t *testing.T) {
	var told []string
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) {
		told = append(told, fmt.Sprint(l.Cause, " ", l.Stream, " ", l.Seq))
	}}))
	p, q := fakeengine.NewPrompt(1, 16, 100), fakeengine.NewPrompt(2, 16, 100)
	one := func(i int) kvindex.Message { return message("a", uint64(i), float64(i+1), 0, p.Stored(i, i+1)) }
	two := func(i int) kvindex.Message { return message("b", uint64(i), float64(i+1), 0, q.Stored(i, i+1)) }
	state := func() kvindex.State { return ix.Pods(nil)[0].State }
	note("a", events.NoteOpened)(t, ix)
	note("b", events.NoteOpened)(t, ix)
	brings(one(0), two(0))(t, ix)
	for i := 1; i < 40; i++ {
		brings(one(i), replayed(one(i)), two(i))(t, ix)
	}
	if got, want := blocks(t, ix, "a", q), 40; got != want || blocks(t, ix, "a", p) != 0 || state() != kvindex.StateUncertain {
		t.Errorf("%d blocks, %v", got, state())
	}
	if s := ix.Stats(); s.Contested != 39 || s.Duplicates != 39 {
		t.Errorf("%+v", s.Traffic)
	}
	if want := []string{"moved b 0", "contested a 1"}; !slices.Equal(told, want) {
		t.Errorf("reports %q", told)
	}
	if at := ix.Sink().StreamNext("a", "m", "a"); at.Partial || at.Next != 40 {
		t.Errorf("%+v: to replay it would be of no use", at)
	}
	// The contest ends when one of them is silent.
	for i := 40; i < 56; i++ {
		brings(two(i))(t, ix)
	}
	if state() != kvindex.StateLive {
		t.Errorf("one of them has gone: %v", state())
	}
	for i := 40; i < 56; i++ {
		if got := blocks(t, ix, "a", q); got != 56 {
			t.Fatalf("message %d: %d blocks", i, got)
		}
		brings(one(i))(t, ix)
	}
	if got := blocks(t, ix, "a", q); got != 0 || state() != kvindex.StatePartial || !ix.Sink().StreamNext("a", "m", "a").Partial {
		t.Errorf("the other goes on: %d blocks, %v", got, state())
	}
	// It is sent whole, and the first engine publishes again.
	restarted("a")(t, ix)
	for i := range 56 {
		brings(replayed(one(i)))(t, ix)
	}
	note("a", events.NoteCurrent)(t, ix)
	if got := blocks(t, ix, "a", p); got != 56 || state() != kvindex.StateLive {
		t.Errorf("all of it: %d blocks, %v", got, state())
	}
	told = told[:0]
	brings(two(56), two(57))(t, ix)
	if state() != kvindex.StateUncertain || !slices.Equal(told, []string{"contested b 56"}) {
		t.Errorf("%v, reports %q", state(), told)
	}
	note("b", events.NoteClosed)(t, ix)
	if state() != kvindex.StateLive {
		t.Errorf("one of them is configured no more: %v", state())
	}
}

// TestARankComesBackToWhoGoesOn: a stream that had the rank takes it back at once when the other
// stream is lost or its engine has restarted.
func TestARankComesBackToWhoGoesOn(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	before := []kvindex.Message{message("a", 0, 1, 0, p.Stored(0, 4)), message("b", 0, 2, 0)}
	var life []kvindex.Message // after a restart
	for i := range uint64(20) {
		life = append(life, replayed(message("a", i, float64(i+3), 0)))
	}
	for name, c := range map[string]struct {
		acts  []act
		last  kvindex.Message
		want  kvindex.State
		moves bool
	}{
		"the other is lost":          {[]act{note("b", events.NoteLost)}, message("a", 1, 3, 0), kvindex.StatePartial, true},
		"the other is closed":        {[]act{note("b", events.NoteClosed)}, message("a", 1, 3, 0), kvindex.StatePartial, true},
		"its engine has restarted":   {nil, message("a", 0, 3, 0), kvindex.StateLive, true},
		"a replay of another life":   {[]act{restarted("a")}, replayed(message("a", 0, 3, 0)), kvindex.StateUncertain, false},
		"and a message behind it":    {[]act{restarted("a"), brings(life...)}, message("a", 20, 40, 0), kvindex.StateUncertain, false},
		"it goes on":                 {nil, message("a", 1, 3, 0), kvindex.StateUncertain, false},
		"a third one":                {[]act{brings(message("a", 1, 3, 0))}, message("c", 0, 4, 0), kvindex.StateLive, true},
		"another address, by replay": {nil, replayed(message("c", 0, 4, 0)), kvindex.StateReplaying, true},
	} {
		ix := open(t)
		note("a", events.NoteOpened)(t, ix)
		brings(before[0])(t, ix)
		note("b", events.NoteOpened)(t, ix)
		brings(before[1])(t, ix)
		for _, a := range c.acts {
			a(t, ix)
		}
		r, err := ix.IngestMessage(c.last)
		if err != nil || r.Applied != c.moves || r.Duplicate {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		info := ix.Pods(nil)[0]
		if s := info.Ranks[0]; s.State != c.want || (s.Stream == c.last.Stream) != c.moves {
			t.Errorf("%s: %+v", name, s)
		}
		if gone := len(info.Streams) == 1; gone != (name == "the other is closed") {
			t.Errorf("%s: %+v", name, info.Streams)
		}
	}
}

// TestPartialPosition: a stream is partial until a replay of everything.
func TestPartialPosition(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	bad := at("s", 2, 0)
	bad.Payload = nil
	for name, c := range map[string]struct {
		acts []act
		want bool
	}{
		"from the first message":     {[]act{brings(at("s", 0, 0))}, false},
		"heard late":                 {[]act{brings(at("s", 1, 0))}, true},
		"heard late, and emptied":    {[]act{brings(at("s", 1, 0), message("s", 2, 9, 0, fakeengine.Cleared{}, p.Stored(0, 1)))}, false},
		"a gap":                      {[]act{brings(at("s", 0, 0), at("s", 2, 0))}, true},
		"a gap, and a restart":       {[]act{brings(at("s", 0, 0), at("s", 2, 0), later("s", 0, 0))}, false},
		"a restart, heard late":      {[]act{brings(at("s", 0, 0), at("s", 1, 0), later("s", 1, 0))}, true},
		"what nobody can read":       {[]act{brings(at("s", 0, 0), at("s", 1, 0)), func(_ *testing.T, ix *kvindex.Indexer) { _, _ = ix.IngestMessage(bad) }}, true},
		"a message waits":            {[]act{brings(at("s", 0, 0), hold(at("s", 2, 0)))}, false},
		"the host knows of a loss":   {[]act{brings(at("s", 0, 0)), func(_ *testing.T, ix *kvindex.Indexer) { _ = ix.MarkLost("a", 0) }}, true},
		"sent once more":             {[]act{brings(at("s", 1, 0)), restarted("s"), brings(replayed(at("s", 0, 0)), replayed(at("s", 1, 0)))}, false},
		"sent once more, in part":    {[]act{brings(at("s", 2, 0)), restarted("s"), brings(replayed(at("s", 1, 0)))}, true},
		"lost, and nothing came":     {[]act{brings(at("s", 0, 0)), note("s", events.NoteLost)}, false},
		"one of two ranks was moved": {[]act{note("s", events.NoteOpened), brings(at("s", 0, 0), at("s", 1, 1), at("t", 0, 1))}, false},
	} {
		ix := open(t)
		for _, a := range c.acts {
			a(t, ix)
		}
		if at := ix.Sink().StreamNext("a", "m", "s"); at.Partial != c.want {
			t.Errorf("%s: %+v", name, at)
		}
	}
}

// TestClearOfATier: the view of a rank is whole again when the gpu is emptied, and not when another
// tier is.
func TestClearOfATier(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	for medium, want := range map[string]kvindex.State{"": kvindex.StateLive, "GPU": kvindex.StateLive, "CPU": kvindex.StatePartial, "HBM": kvindex.StatePartial} {
		ix := open(t)
		ingest(t, ix, "a", p.Stored(0, 4))
		must(t, ix.MarkLost("a", 0))
		must(t, ix.Ingest("a", "m", cleared(medium)))
		if got := ix.Pods(nil)[0].State; got != want {
			t.Errorf("medium %q: %v, want %v", medium, got, want)
		}
	}
}
