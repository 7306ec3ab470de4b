package kvindex_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// heardTen returns an Indexer with ten messages of a stream, from time 1000 on, and one that
// continues with its index.
func heardTen(t *testing.T, options ...kvindex.Option) (ix *kvindex.Indexer, another func() *kvindex.Indexer, p fakeengine.Prompt) {
	t.Helper()
	m := memory(t)
	p = fakeengine.NewPrompt(1, 16, 20)
	options = append(options, kvindex.WithIndex(m))
	ix = open(t, options...)
	for seq := range 10 {
		if got, err := ix.IngestMessage(message("s", uint64(seq), 1000+float64(seq), 0, p.Stored(seq, seq+1))); err != nil || got != taken {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	return ix, func() *kvindex.Indexer {
		ix.Close()
		ix = open(t, options...)
		return ix
	}, p
}

// TestKeptIndexIsAskedAbout: an Indexer over a kept index holds the first unproven message, once.
func TestKeptIndexIsAskedAbout(t *testing.T) {
	held := kvindex.Receipt{Held: true}
	anew := kvindex.Receipt{Held: true, Restarted: true, Gap: lostGap(0, 8)}
	type step struct {
		m      kvindex.Message
		want   kvindex.Receipt
		blocks int
	}
	p := fakeengine.NewPrompt(1, 16, 20)
	last := message("s", 9, 1009, 0, p.Stored(9, 10))
	another := message("s", 9, 509, 0, p.Stored(0, 1)) // with an earlier clock
	for name, steps := range map[string][]step{
		"restarted, below the number": {
			{hold(message("s", 3, 503, 0, p.Stored(0, 1))), held, 10},
			{hold(message("s", 4, 504, 0, p.Stored(0, 1))), repeat, 10},
			{message("s", 3, 503, 0, p.Stored(0, 1)), repeat, 10},
			{hold(message("s", 5, 505, 0, p.Stored(0, 1))), repeat, 10},
		},
		"restarted, at the number": {
			{hold(message("s", 10, 510, 0, p.Stored(0, 1))), held, 10},
			{hold(replayed(another)), anew, 10},
			{replayed(another), kvindex.Receipt{Applied: true, Restarted: true}, 1},
		},
		"restarted, and the clock has caught up": {
			{hold(message("s", 10, 1010, 0, p.Stored(0, 1))), held, 10},
			{hold(replayed(another)), anew, 10},
		},
		"restarted, past the number": {
			{hold(message("s", 15, 1015, 0, p.Stored(0, 1))), heldBehind(10, 14), 10},
			{hold(replayed(another)), anew, 10},
		},
		"restarted, and it catches up from its beginning": {
			{replayed(message("s", 8, 508, 0, p.Stored(0, 1))), repeat, 10},
			{replayed(another), kvindex.Receipt{Applied: true, Restarted: true}, 1},
			{replayed(message("s", 10, 510, 0, p.Stored(1, 2))), taken, 2},
		},
		"the same engine": {
			{hold(message("s", 10, 1010, 0, p.Stored(10, 11))), held, 10},
			{hold(replayed(last)), repeat, 10},
			{replayed(message("s", 10, 1010, 0, p.Stored(10, 11))), taken, 11},
			{hold(message("s", 11, 1011, 0, p.Stored(11, 12))), taken, 12},
			{hold(message("s", 5, 505, 0, p.Stored(0, 1))), held, 12},
		},
		"the same engine, which is not asked": {
			{hold(message("s", 10, 1010, 0, p.Stored(10, 11))), held, 10},
			{message("s", 10, 1010, 0, p.Stored(10, 11)), taken, 11},
		},
		"the last message again": {
			{hold(last), repeat, 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, kept, _ := heardTen(t)
			ix := kept()
			for i, c := range steps {
				if got, err := ix.IngestMessage(c.m); err != nil || got != c.want {
					t.Fatalf("step %d: %+v, %v; want %+v", i, got, err, c.want)
				}
				if got := blocks(t, ix, "a", p); got != c.blocks {
					t.Fatalf("step %d: %d blocks, want %d", i, got, c.blocks)
				}
			}
		})
	}
}

// TestAKeptLossIsKept: losses are kept with an index until the engine has emptied its cache or
// restarted.
func TestAKeptLossIsKept(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 20)
	for name, c := range map[string]struct {
		then []kvindex.Message
		want kvindex.State
	}{
		"nothing":          {nil, kvindex.StateUncertain},
		"a message":        {[]kvindex.Message{message("s", 13, 1013, 0, p.Stored(13, 14))}, kvindex.StateUncertain},
		"a clear":          {[]kvindex.Message{message("s", 13, 1013, 0, fakeengine.Cleared{}, p.Stored(0, 1))}, kvindex.StateLive},
		"a restart":        {[]kvindex.Message{message("s", 0, 1013, 0, p.Stored(0, 1))}, kvindex.StateLive},
		"another stream":   {[]kvindex.Message{message("r", 0, 1013, 0, p.Stored(0, 1))}, kvindex.StateLive},
		"a clear, then on": {[]kvindex.Message{message("s", 13, 1013, 0, fakeengine.Cleared{}, p.Stored(0, 1)), message("s", 14, 1014, 0, p.Stored(0, 1))}, kvindex.StateLive},
	} {
		for _, late := range []bool{false, true} { // the first Indexer receives the rest, or a new one does
			ix, another, _ := heardTen(t, kvindex.WithKeepOnLoss())
			send := func(m kvindex.Message) {
				brings(m)(t, ix)
			}
			send(message("s", 12, 1012, 0, p.Stored(12, 13)))
			if late {
				ix = another()
			}
			for _, m := range c.then {
				send(m)
			}
			if got := ix.Pods(nil)[0].State; got != c.want {
				t.Errorf("%s, late %t: %v, want %v", name, late, got, c.want)
			}
			ix = another()
			if got := ix.Pods(nil)[0].State; got != kvindex.StateUncertain {
				t.Errorf("%s, late %t: kept, %v", name, late, got)
			}
			if len(c.then) == 0 {
				continue
			}
			last := c.then[len(c.then)-1]
			send(message(last.Stream, last.Seq+1, 1020, 0, p.Stored(1, 2)))
			want := kvindex.StatePartial // earlier events may be missing
			if c.want == kvindex.StateUncertain {
				want = c.want
			}
			if got := ix.Pods(nil)[0].State; got != want {
				t.Errorf("%s, late %t: kept and received, %v, want %v", name, late, got, want)
			}
		}
	}
}

// TestAKeptStreamStandsSomewhere: the transport of a kept stream receives the last position before
// any message, so that it requests the engine's last message; if the engine lacks that, all that
// the stream stored is dropped.
func TestAKeptStreamStandsSomewhere(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	ingestMessage := func(ix *kvindex.Indexer, m kvindex.Message) {
		t.Helper()
		if r, err := ix.IngestMessage(m); err != nil || !r.Applied {
			t.Fatalf("message %d: %+v, %v", m.Seq, r, err)
		}
	}
	first := open(t, kvindex.WithIndex(m))
	for seq := range uint64(3) {
		ingestMessage(first, message("s", seq, 1000+float64(seq), 0, p.Stored(int(seq), int(seq)+1)))
	}
	for _, opened := range []bool{false, true} {
		ix := open(t, kvindex.WithIndex(m))
		if opened {
			_ = ix.Sink().StreamNote("a", "m", "s", events.NoteOpened)
		}
		if at, want := ix.Sink().StreamNext("a", "m", "s"), (events.Position{Next: 3, Partial: true}); at != want {
			t.Errorf("opened %v: the stream stands at %+v, want %+v", opened, at, want)
		}
		if at := ix.Sink().StreamNext("a", "m", "other"); at != (events.Position{}) {
			t.Errorf("opened %v: another stream stands at %+v", opened, at)
		}
	}
	ix := open(t, kvindex.WithIndex(m))
	if n := blocks(t, ix, "a", p); n != 3 {
		t.Errorf("%d blocks kept, want 3", n)
	}
	must(t, ix.Sink().StreamNote("a", "m", "s", events.NoteRestarted))
	if n := blocks(t, ix, "a", p); n != 0 {
		t.Errorf("%d blocks of the engine before, want none", n)
	}
	ingestMessage(ix, replayed(message("s", 0, 500, 0, p.Stored(0, 1)))) // with an earlier clock
	if n := blocks(t, ix, "a", p); n != 1 {
		t.Errorf("%d blocks, want 1", n)
	}
}

// TestKeptIndexFails: a stream goes on from a kept index also if the index failed for one of its ranks
// at the first message.
func TestKeptIndexFails(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	apply(t, open(t, kvindex.WithIndex(m)), message("s", 0, 1, 0, p.Stored(0, 2)), message("s", 1, 2, 1, p.Stored(0, 3)))
	fails := false
	ix := open(t, kvindex.WithIndex(&alteredIndex{Memory: m, before: func(_ context.Context, _ string, src index.Source) error {
		if fails && src.Rank == 1 {
			return errBrittle
		}
		return nil
	}}))
	fails = true
	if _, err := ix.IngestMessage(message("s", 2, 3, 0, p.Removed(0))); !errors.Is(err, errBrittle) {
		t.Error(err)
	}
	fails = false
	if got, err := ix.IngestMessage(message("s", 3, 4, 0, p.Stored(3, 4))); err != nil || got != (kvindex.Receipt{Applied: true, Gap: lostGap(2, 2)}) {
		t.Errorf("message 3 without message 2: %+v, %v", got, err)
	}
}

// TestUnreadableBeginning: a stream that comes back goes on from its cursor, also if its first
// message cannot be read.
func TestUnreadableBeginning(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		ix, another, p := heardTen(t)
		if keeps {
			ix = another()
		} else {
			note("t", events.NoteOpened)(t, ix)
			brings(message("t", 0, 1500, 0, p.Stored(0, 1)))(t, ix)
			note("t", events.NoteLost)(t, ix)
		}
		_, _ = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s"})
		apply(t, ix, message("s", 1, 2000, 0, p.Stored(0, 3)))
		if n := blocks(t, ix, "a", p); n != 3 {
			t.Errorf("kept %v: %d blocks", keeps, n)
		}
	}
}

// TestAKeptSourceOfNoMessage: an index with a source that no message can have is refused, because a
// snapshot with it could not be restored.
func TestAKeptSourceOfNoMessage(t *testing.T) {
	stored := []index.Change{{Op: index.OpStore, Copies: index.CopiesGuarded, Hashes: []index.Hash{1}, Variant: index.Variant{Unit: 16}, BlockSize: 16, Locals: []index.Local{2}, Root: 3}}
	for _, src := range []index.Source{
		{Model: "m"}, {Pod: "a"}, {Pod: strings.Repeat("a", kvindex.MaxName+1), Model: "m"},
		{Pod: "a", Model: "m", Rank: -1}, {Pod: "a", Model: "m", Rank: math.MaxUint16 + 1},
	} {
		m := memory(t)
		if _, err := m.Apply(ctx, src, index.Cursor{}, stored); err != nil {
			t.Fatal(err)
		}
		if _, err := kvindex.New(kvindex.WithIndex(m)); err == nil || !strings.HasPrefix(err.Error(), "kvindex: ") {
			t.Errorf("%.20q, %q, %d: %v", src.Pod, src.Model, src.Rank, err)
		}
	}
}
