package kvindex_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/inmemory"
)

func removeStream(t testing.TB, ix *kvindex.Indexer, stream string) {
	t.Helper()
	must(t, ix.Sink().RemoveStream("a", "m", stream))
}

// held shows the blocks of a prompt that each rank of pod a holds, and its state.
func held(t testing.TB, ix *kvindex.Indexer, p fakeengine.Prompt) string {
	t.Helper()
	s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true})
	slices.SortFunc(s, func(a, b kvindex.PodScore) int { return a.Rank - b.Rank })
	text := ""
	for _, r := range s {
		text += fmt.Sprintf("%d:%d %v ", r.Rank, r.MatchedBlocks, r.State)
	}
	return text
}

// wantHeld checks the result of held.
func wantHeld(t testing.TB, ix *kvindex.Indexer, p fakeengine.Prompt, want string) {
	t.Helper()
	if got := held(t, ix, p); got != want {
		t.Errorf("held is %q, want %q", got, want)
	}
}

// apply ingests messages, all of which must be applied.
func apply(t testing.TB, ix *kvindex.Indexer, ms ...kvindex.Message) {
	t.Helper()
	for _, m := range ms {
		if r, err := ix.IngestMessage(m); err != nil || !r.Applied {
			t.Fatalf("message %d of %q: %+v, %v", m.Seq, m.Stream, r, err)
		}
	}
}

// shrunk gives pod a four ranks, of which rank 3 is silent and rank 2 has lost messages.
func shrunk(t testing.TB, ix *kvindex.Indexer, p fakeengine.Prompt) {
	t.Helper()
	apply(t, ix,
		message("s0", 0, 1, 0, p.Stored(0, 2)),
		message("s1", 0, 1, 1, p.Stored(0, 3)),
		message("s2", 0, 1, 2, p.Stored(0, 4)),
		message("s2", 5, 2, 2, p.Stored(0, 5)))
	_ = ix.Sink().StreamNote("a", "m", "s3", events.NoteOpened)
	wantHeld(t, ix, p, "0:2 live 1:3 live 2:5 partial ")
}

// TestRemoveStream: a pod with fewer ranks than before is like one that never had more.
func TestRemoveStream(t *testing.T) {
	for name, hide := range map[string]func(inmemory.Memory) index.Index{
		"own":                                    nil,
		"kept":                                   func(m inmemory.Memory) index.Index { return m },
		"a backend that does not remove sources": func(m inmemory.Memory) index.Index { return withoutRemover{m, m} },
	} {
		t.Run(name, func(t *testing.T) {
			var states []string
			opts := []kvindex.Option{kvindex.WithHooks(kvindex.Hooks{State: func(_, _ string, from, to kvindex.State) {
				states = append(states, fmt.Sprint(from, " ", to))
			}})}
			if hide != nil {
				m := memory(t)
				opts = append(opts, kvindex.WithIndex(hide(m)))
			}
			ix := open(t, opts...)
			p := fakeengine.NewPrompt(1, 16, 8)
			for _, unknown := range [][3]string{{"", "", ""}, {"a", "m", "s"}, {"a", "m", ""}} {
				if err := ix.Sink().RemoveStream(unknown[0], unknown[1], unknown[2]); err != nil {
					t.Error(err)
				}
			}
			shrunk(t, ix, p)
			c := ix.Candidates("m", nil)
			states = nil
			for _, stream := range []string{"s2", "s3", "s3", "none"} {
				removeStream(t, ix, stream)
			}
			if err := ix.Sink().RemoveStream("a", "other", "s0"); err != nil {
				t.Error(err)
			}
			wantHeld(t, ix, p, "0:2 live 1:3 live ")
			if want := []string{"silent live"}; !slices.Equal(states, want) {
				t.Errorf("states %q, want %q", states, want)
			}
			pods := ix.Pods(nil)
			if len(pods) != 1 || pods[0].State != kvindex.StateLive || len(pods[0].Ranks) != 2 || len(pods[0].Streams) != 2 {
				t.Errorf("%+v", pods)
			}
			if s := ix.Stats(); hide == nil && s.Ranks != 2 || s.States["silent"] != 0 || s.Blocks[kvindex.TierGPU] != 5 {
				t.Errorf("%+v", s)
			}
			if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens}, "a"); e.Score.Rank != 1 || e.Score.MatchedBlocks != 3 {
				t.Errorf("%v", e)
			}
			// New streams of the old ranks start empty.
			apply(t, ix, message("s2", 0, 1, 2, p.Stored(0, 1)), message("s2", 1, 2, 2, p.Stored(1, 2)))
			wantHeld(t, ix, p, "0:2 live 1:3 live 2:2 live ")
			removeStream(t, ix, "s2")
			apply(t, ix, message("s2", 7, 9, 2, p.Stored(0, 1)))
			wantHeld(t, ix, p, "0:2 live 1:3 live 2:1 partial ")
			for _, stream := range []string{"s0", "s1", "s2"} {
				if s := score(t, ix, kvindex.Request{Candidates: c, Tokens: p.Tokens, Model: "m"}); len(s) != 1 {
					t.Errorf("%+v", s)
				}
				removeStream(t, ix, stream)
			}
			s := ix.Stats()
			if hide == nil && s.Ranks != 0 || s.Pods+s.Models+counted(s.States) != 0 || s.Blocks != ([index.NumTiers]int{}) {
				t.Errorf("nothing is left, but %+v", s)
			}
			if got := score(t, ix, kvindex.Request{Candidates: c, Tokens: p.Tokens, Model: "m"}); len(got)+len(ix.Pods(nil)) != 0 {
				t.Errorf("answers %+v", got)
			}
			shrunk(t, ix, p)
			if err := ix.RemovePod("a"); err != nil {
				t.Error(err)
			}
			ix.Close()
			if err := ix.Sink().RemoveStream("a", "m", "s0"); !errors.Is(err, kvindex.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		})
	}
}

// TestRemoveStreamOfOthers: a rank that another stream feeds stays, and its former stream may later
// take it like a new stream.
func TestRemoveStreamOfOthers(t *testing.T) {
	for name, opts := range map[string]func() []kvindex.Option{
		"own": func() []kvindex.Option { return nil },
		"kept": func() []kvindex.Option {
			m := memory(t)
			return []kvindex.Option{kvindex.WithIndex(m)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t, opts()...)
			p := fakeengine.NewPrompt(1, 16, 8)
			_ = ix.Sink().StreamNote("a", "m", "s", events.NoteOpened) // keeps the stream when the rank moves
			apply(t, ix,
				message("s", 3, 4, 0, p.Stored(0, 4)),
				message("t", 0, 5, 0, p.Stored(0, 2)),
			)
			removeStream(t, ix, "s")
			wantHeld(t, ix, p, "0:2 live ")
			apply(t, ix, message("t", 1, 6, 0, p.Stored(2, 3)))
			wantHeld(t, ix, p, "0:3 live ")
			apply(t, ix, message("s", 0, 4, 0, p.Stored(0, 1)))
			wantHeld(t, ix, p, "0:1 live ")
		})
	}
}

// TestRemoveStreamOfAHeldMessage: a rank whose only message was held and never applied is removed
// with its stream.
func TestRemoveStreamOfAHeldMessage(t *testing.T) {
	ix := open(t)
	if r, err := ix.IngestMessage(hold(message("s", 7, 1, 3))); err != nil || !r.Held {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(ix.Pods(nil)[0].Ranks) != 1 {
		t.Fatalf("%+v", ix.Pods(nil))
	}
	removeStream(t, ix, "s")
	if got := ix.Pods(nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestRemoveStreamEndsContests: removing either stream of a contest ends it, and the other one's
// messages of that time are missing.
func TestRemoveStreamEndsContests(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	contested := func(t *testing.T) *kvindex.Indexer {
		ix := open(t)
		apply(t, ix,
			message("old", 0, 1, 0, p.Stored(0, 1)), message("old", 1, 2, 1, p.Stored(0, 2)),
			message("new", 0, 3, 0, p.Stored(0, 3)), message("third", 0, 3, 2, p.Stored(0, 2)))
		if r, err := ix.IngestMessage(message("old", 2, 4, 0, p.Stored(1, 4))); err != nil || r.Applied {
			t.Fatalf("%+v, %v", r, err)
		}
		wantHeld(t, ix, p, "0:3 uncertain 1:2 live 2:2 live ")
		return ix
	}
	t.Run("the old one", func(t *testing.T) {
		ix := contested(t)
		removeStream(t, ix, "old")
		wantHeld(t, ix, p, "0:3 live 2:2 live ")
		if s := ix.Pods(nil)[0].State; s != kvindex.StateLive {
			t.Errorf("the pod is %v", s)
		}
	})
	t.Run("the new one", func(t *testing.T) {
		ix := contested(t)
		removeStream(t, ix, "new")
		wantHeld(t, ix, p, "1:2 live 2:2 live ")
		apply(t, ix, message("old", 3, 5, 0, p.Stored(0, 1)), message("old", 4, 6, 0, p.Stored(1, 2)))
		wantHeld(t, ix, p, "0:2 partial 1:2 live 2:2 live ")
	})
	t.Run("another one", func(t *testing.T) {
		ix := contested(t)
		removeStream(t, ix, "third")
		wantHeld(t, ix, p, "0:3 uncertain 1:2 live ")
	})
}

// TestRemoveStreamOfTheHostBefore: streams without a message since the host started have ranks in a
// kept index too.
func TestRemoveStreamOfTheHostBefore(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for _, removes := range []bool{true, false} {
		m := memory(t)
		var of index.Index = m
		if !removes {
			of = withoutRemover{m, m}
		}
		again := func() *kvindex.Indexer {
			return open(t, kvindex.WithIndex(of), kvindex.WithKeepOnLoss())
		}
		ix := again()
		apply(t, ix,
			message("s", 4, 1, 0, p.Stored(0, 1)), message("t", 3, 1, 1, p.Stored(0, 2)),
			message("t", 4, 1, 2, p.Stored(0, 3)), message("s", 5, 2, 2, p.Stored(0, 4)), // rank 2 has moved
			message("t", 9, 2, 1, p.Stored(2, 3))) // after a loss
		wantHeld(t, ix, p, "0:1 partial 1:3 uncertain 2:4 partial ")
		ix = again()
		wantHeld(t, ix, p, "0:1 uncertain 1:3 uncertain 2:4 uncertain ")
		removeStream(t, ix, "t")
		wantHeld(t, ix, p, "0:1 uncertain 2:4 uncertain ")
		ix = again()
		wantHeld(t, ix, p, "0:1 uncertain 2:4 uncertain ")
		apply(t, ix, message("t", 0, 3, 1, p.Stored(0, 2)), message("s", 6, 3, 0))
		wantHeld(t, ix, p, "0:1 partial 1:2 live 2:4 partial ")
		removeStream(t, ix, "s")
		removeStream(t, again(), "t")
		if blocks := m.MemoryUsage().Memberships; blocks != 0 {
			t.Errorf("%d blocks are left", blocks)
		}
	}
}

// withoutRemover hides RemoveSource.
type withoutRemover struct {
	index.Index
	index.Describer
}

var errBrittle = errors.New("the index is on fire")

// TestRemoveStreamFails: after any failure no rank claims more than it holds, none is live wrongly,
// and the next call does the rest.
func TestRemoveStreamFails(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for _, removes := range []bool{true, false} {
		failed := 0
		for n := range 12 {
			left := math.MaxInt // calls that succeed
			f := &alteredIndex{Memory: memory(t), before: func(context.Context, string, index.Source) error {
				if left--; left < 0 {
					return errBrittle
				}
				return nil
			}}
			var of index.Index = f
			if !removes {
				of = withoutRemover{f, f}
			}
			ix := open(t, kvindex.WithIndex(of))
			apply(t, ix,
				message("s", 0, 1, 0, p.Stored(0, 2)), message("s", 1, 1, 1, p.Stored(0, 3)),
				message("s", 2, 1, 2, p.Stored(0, 3)), message("t", 0, 1, 2, p.Stored(0, 4)))
			left = n
			err := ix.Sink().RemoveStream("a", "m", "s")
			left = math.MaxInt
			if err == nil {
				wantHeld(t, ix, p, "2:4 live ")
				break
			}
			failed++
			if !errors.Is(err, errBrittle) {
				t.Errorf("%v", err)
			}
			for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true}) {
				if whole := s.MatchedBlocks == s.Rank+2; whole != (s.State == kvindex.StateLive) || !whole && s.MatchedBlocks > 0 {
					t.Errorf("call %d failed: %+v", n, s)
				}
			}
			removeStream(t, ix, "s")
			wantHeld(t, ix, p, "2:4 live ")
		}
		if failed < 3 || failed == 12 {
			t.Errorf("%d calls failed", failed)
		}
	}
}

// TestRemoveStreamAgainstPlain makes the same random changes in an Indexer and in one that never
// received the removed streams.
func TestRemoveStreamAgainstPlain(t *testing.T) {
	var seen removals
	for seed := range uint64(choose(6, 24)) {
		runRemovals(t, seed, &seen)
	}
	t.Logf("%+v", seen)
	if *long && (seen.removed < 200 || seen.returned < 100 || seen.emptied < 4 || seen.restored < 20 || seen.blocks < 5000) {
		t.Error("the test tests too little")
	}
}

// removals counts cases.
type removals struct{ removed, returned, emptied, restored, blocks int }

// deed is a change, of one stream or of none.
type deed struct {
	stream string
	do     func(ix *kvindex.Indexer) *kvindex.Indexer // nil: the Indexer stays
}

func runRemovals(t *testing.T, seed uint64, seen *removals) {
	r := rand.New(rand.NewPCG(seed, 22))
	kept := seed%3 == 1
	begin := func() *kvindex.Indexer {
		seeded := kvindex.WithKeySeed(testSeed)
		if kept {
			seeded = kvindex.WithIndex(memory(t))
		}
		return open(t, append(lossPolicy(seed), seeded)...)
	}
	var prompts []fakeengine.Prompt
	for i := range 3 {
		prompts = append(prompts, fakeengine.NewPrompt(seed<<8|uint64(i), 16, 12))
	}
	const streams = 5
	var next [streams]uint64
	var log []deed
	ix, clock := begin(), 1.0
	gone := map[string]bool{}
	for step := range 120 {
		n := r.IntN(streams)
		name := fmt.Sprint("s", n)
		clock++
		d := deed{stream: name}
		switch what := r.IntN(20); {
		case what < 11: // streams 0 and 1 have two ranks
			rank := n * 2
			if n < 2 {
				rank += r.IntN(2)
			}
			switch r.IntN(12) {
			case 0: // a gap
				next[n] += 1 + r.Uint64N(3)
			case 1: // a restart
				next[n] = 0
			}
			var evs []fakeengine.Event
			for range 1 + r.IntN(3) {
				p := prompts[r.IntN(len(prompts))]
				at := r.IntN(10)
				switch r.IntN(12) {
				case 0:
					evs = append(evs, fakeengine.Cleared{})
				case 1, 2:
					evs = append(evs, p.Removed(at))
				case 3:
					evs = append(evs, p.Stored(at, at+1+r.IntN(2)))
				default:
					evs = append(evs, p.Stored(0, at+1))
				}
			}
			m := message(name, next[n], clock, rank, evs...)
			next[n]++
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer {
				brings(m)(t, ix)
				return nil
			}
			if gone[name] {
				delete(gone, name)
				seen.returned++
			}
		case what == 11:
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer {
				must(t, ix.Sink().StreamNote("a", "m", name, events.NoteRestarted))
				return nil
			}
			if next[n] > 0 && r.IntN(2) == 0 {
				next[n] = 0
			}
		case what == 12:
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer {
				must(t, ix.Sink().StreamNote("a", "m", name, events.NoteRewound))
				return nil
			}
			next[n] = 0
		case what == 13, what == 14:
			notes := []events.Note{events.NoteOpened, events.NoteConnected, events.NoteLost, events.NoteHeld, events.NoteCurrent, events.NoteReleased, events.NoteNoReplay, events.NoteClosed}
			n := notes[r.IntN(len(notes))]
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer {
				_ = ix.Sink().StreamNote("a", "m", name, n)
				return nil
			}
		case what == 15:
			d.stream = "unnumbered"
			payload := fakeengine.Payload(clock, 20, prompts[0].Stored(0, 1+r.IntN(9)))
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer {
				must(t, ix.Ingest("a", "m", payload))
				return nil
			}
		case what == 16 && !kept && r.IntN(2) == 0:
			d.stream = ""
			d.do = func(ix *kvindex.Indexer) *kvindex.Indexer { return restore(t, ix, lossPolicy(seed)...) }
			seen.restored++
		default:
			if what == 19 && r.IntN(6) == 0 {
				name = "unnumbered"
			}
			log = slices.DeleteFunc(log, func(d deed) bool { return d.stream == name })
			gone[name] = true
			seen.removed++
			given := name
			if name == "unnumbered" {
				given = ""
			} else if r.IntN(2) == 0 {
				next[n] = 0
			}
			removeStream(t, ix, given)
			if len(ix.Pods(nil)) == 0 {
				seen.emptied++
			}
			d.do = nil
		}
		if d.do != nil {
			log = append(log, d)
			if other := d.do(ix); other != nil {
				ix = other
			}
		}
		if step%6 > 0 && d.do != nil {
			continue
		}
		plain := begin()
		for _, d := range log {
			if other := d.do(plain); other != nil {
				plain = other
			}
		}
		if a, b := podsText(t, ix), podsText(t, plain); a != b {
			t.Fatalf("seed %d, step %d: pods are\n%s\nwant\n%s", seed, step, a, b)
		}
		for _, p := range prompts {
			a, b := score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true}), score(t, plain, kvindex.Request{Tokens: p.Tokens, Ranks: true})
			if !slices.Equal(a, b) {
				t.Fatalf("seed %d, step %d: scores are\n%+v\nwant\n%+v", seed, step, a, b)
			}
			for _, s := range a {
				seen.blocks += s.MatchedBlocks
			}
		}
		a, b := ix.Stats(), plain.Stats()
		if a.Ranks != b.Ranks || a.Pods != b.Pods || a.Models != b.Models || a.Blocks != b.Blocks || a.Parked != b.Parked || a.Unplaced != b.Unplaced || a.States["silent"] != b.States["silent"] || a.Connected != b.Connected || a.Waiting != b.Waiting || a.NoReplay != b.NoReplay {
			t.Fatalf("seed %d, step %d: there are\n%+v\nwant\n%+v", seed, step, a, b)
		}
		plain.Close()
	}
}

func lossPolicy(seed uint64) []kvindex.Option {
	if seed%2 == 0 {
		return []kvindex.Option{kvindex.WithKeepOnLoss()}
	}
	return nil
}

// podsText shows Pods without times.
func podsText(t *testing.T, ix *kvindex.Indexer) string {
	pods := ix.Pods(nil)
	for i := range pods {
		p := &pods[i]
		p.LastMessage, p.Connected = time.Time{}, time.Time{}
		for i := range p.Ranks {
			p.Ranks[i].Lag, p.Ranks[i].Age = 0, 0
		}
		for i := range p.Streams {
			p.Streams[i].LastMessage, p.Streams[i].Connected = time.Time{}, time.Time{}
		}
	}
	b, err := json.MarshalIndent(pods, "", " ")
	must(t, err)
	return string(b)
}

// TestRemoveStreamBesideOthers: with concurrent calls of everything no rank holds too much, and in
// the end nothing is left. Rank 0 is that of a pod without a rank, which other streams may report.
func TestRemoveStreamBesideOthers(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	const streams, rounds = 4, 150
	var work, others sync.WaitGroup
	var done atomic.Bool
	for n := 1; n <= streams; n++ {
		name := fmt.Sprint("s", n)
		work.Go(func() {
			for range rounds {
				for seq := range uint64(3) {
					if _, err := ix.IngestMessage(message(name, seq, float64(seq+1), n, p.Stored(0, n))); err != nil {
						t.Error(err)
					}
				}
				if err := ix.Sink().RemoveStream("a", "m", name); err != nil {
					t.Error(err)
				}
				for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true}) {
					if s.Rank == n {
						t.Errorf("rank %d is still there: %+v", n, s)
					}
				}
			}
		})
	}
	for _, f := range []func(){
		func() {
			for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true}) {
				if s.MatchedBlocks > s.Rank {
					t.Errorf("%+v", s)
				}
			}
		},
		func() { ix.Pods(nil) },
		func() { ix.Stats() },
		func() { snapshot(t, ix) },
		func() { _ = ix.Sink().RemoveStream("a", "m", "s9") },
		func() {
			if err := ix.Ingest("a", "m", fakeengine.Payload(1, 9, p.Stored(0, 8))); err != nil {
				t.Error(err)
			}
		},
	} {
		others.Go(func() {
			for !done.Load() {
				f()
				runtime.Gosched()
			}
		})
	}
	work.Wait()
	done.Store(true)
	others.Wait()
	removeStream(t, ix, "")
	if s := ix.Stats(); s.Pods+s.Ranks+s.Models != 0 {
		t.Errorf("%+v", s)
	}
}
