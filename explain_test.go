package kvindex_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// tokenizes gives an Indexer a tokenizer for a model.
func tokenizes(model string) kvindex.Option {
	return kvindex.WithModel(model, kvindex.Model{Tokenizer: words{}})
}

// explain explains a score and compares it with the one that ScoreRequest returns.
func explain(t testing.TB, ix *kvindex.Indexer, r kvindex.Request, pod string) *kvindex.Explanation {
	t.Helper()
	before := ix.Stats().Scores
	e, err := ix.Explain(ctx, &r, pod)
	must(t, err)
	if after := ix.Stats().Scores; !reflect.DeepEqual(after, before) {
		t.Errorf("it was counted: %+v", after)
	}
	if r.Pods != nil && !slices.Contains(r.Pods, pod) {
		r.Pods = append(slices.Clone(r.Pods), pod)
	}
	var a kvindex.Answer
	err = ix.ScoreRequest(ctx, &r, &a)
	if want := cmp.Or(err, a.Unknown, a.Degraded); textOf(want) != textOf(e.Err) {
		t.Fatalf("error %v, want %v", e.Err, want)
	}
	if err == nil && len(e.Tokens) != a.PromptTokens {
		t.Fatalf("%d tokens, want %d", len(e.Tokens), a.PromptTokens)
	}
	if i := slices.IndexFunc(a.Pods, func(s kvindex.PodScore) bool { return s.Pod == pod }); i >= 0 && e.Score != a.Pods[i] {
		t.Fatalf("score %+v, want %+v", e.Score, a.Pods[i])
	}
	if e.Score.Pod != pod || !slices.Contains(causeNames, e.Cause) || e.Why == "" || strings.Contains(e.String(), "%!") {
		t.Fatalf("%s", e)
	}
	if run, tiers := runOf(e.Held); run != e.Score.MatchedBlocks || tiers != e.Score.Tiers || e.Held != nil && len(e.Held) != e.Blocks {
		t.Fatalf("%d of %d blocks %q, want %d and %v: %s", len(e.Held), e.Blocks, e.Held, e.Score.MatchedBlocks, e.Score.Tiers, e)
	}
	return e
}

// runOf counts the blocks before the first missing one.
func runOf(held []string) (run int, tiers [index.NumTiers]int) {
	for run < len(held) && held[run] != "" {
		for t := range tiers {
			if kvindex.Tier(t).String() == held[run] {
				tiers[t]++
			}
		}
		run++
	}
	return run, tiers
}

func textOf(err error) string { return fmt.Sprint(err) }

// situation is an Indexer in which the score of pod a for a prompt has one cause. One rank of the
// pod holds the first held blocks of the prompt.
type situation struct {
	opts []kvindex.Option
	*testing.T
	r    *rand.Rand
	ix   *kvindex.Indexer
	size int
	rank int
	p    fakeengine.Prompt
	held int
	next int // tokens of a block; 0: size
	ask  kvindex.Request
	// asked are the pods of the request; nil: one of several forms of request is drawn.
	asked []string
	also  func(e *kvindex.Explanation) bool // further checks
}

func (s *situation) random(blocks int) fakeengine.Prompt {
	p := fakeengine.Prompt{Size: s.size, Hash: s.r.Uint64() << 20}
	for range blocks * s.size {
		p.Tokens = append(p.Tokens, s.r.Uint32N(1<<17))
	}
	return p
}

func (s *situation) open(opts ...kvindex.Option) {
	s.opts = append(opts, tokenizes("m"))
	s.ix = open(s.T, s.opts...)
	for _, pod := range []string{"b", "c"} {
		s.in(pod, 0, s.random(3).Stored(0, 3))
	}
}

func (s *situation) in(pod string, rank int, evs ...fakeengine.Event) {
	s.Helper()
	if s.ix == nil {
		s.open()
	}
	if err := s.ix.Ingest(pod, "m", fakeengine.Payload(1, rank, evs...)); err != nil {
		s.Fatal(err)
	}
}

// a sends events of pod a, and has another rank of it hold another prompt.
func (s *situation) a(evs ...fakeengine.Event) {
	s.Helper()
	s.in("a", s.rank, evs...)
	s.in("a", 1-s.rank, s.random(2).Stored(0, 2))
}

func (s *situation) stored(from, to int, change func(e *fakeengine.Stored)) *fakeengine.Stored {
	e := s.p.Stored(from, to)
	e.Extra = make([][]enginehash.Extra, to-from)
	if change != nil {
		change(e)
	}
	return e
}

func salted(salt string) func(e *fakeengine.Stored) {
	return func(e *fakeengine.Stored) { e.Extra[0] = append(e.Extra[0], enginehash.Text(salt)) }
}

func adapted(adapter string) func(e *fakeengine.Stored) {
	return func(e *fakeengine.Stored) {
		e.Adapter = adapter
		for i := range e.Extra {
			e.Extra[i] = append(e.Extra[i], enginehash.Text(adapter))
		}
	}
}

// byHash makes a store one of hashes alone, on disk.
func byHash(e *fakeengine.Stored) *fakeengine.Stored {
	e.Tokens, e.BlockSize, e.Parent, e.Medium = nil, 0, nil, "disk"
	return e
}

// message is a message of the rank's stream.
func (s *situation) message(seq uint64, evs ...fakeengine.Event) kvindex.Message {
	return message("s", seq, float64(seq+1), s.rank, evs...)
}

// brings ingests messages, and opens the Indexer if need be.
func (s *situation) brings(ms ...kvindex.Message) {
	if s.ix == nil {
		s.open()
	}
	brings(ms...)(s.T, s.ix)
}

// none is a situation in which the pod holds nothing of the prompt.
func none(make func(s *situation, n int)) func(s *situation, n int) {
	return func(s *situation, n int) {
		s.held = 0
		make(s, n)
	}
}

// situations have one cause each. n is the number of whole blocks of the prompt, at least 3; held
// is less.
var situations = []struct {
	name  string
	make  func(s *situation, n int)
	cause string
}{
	{"never stored", func(s *situation, n int) { s.a(s.p.Stored(0, s.held)) }, "never_stored"},
	{"evicted", func(s *situation, n int) { s.a(s.p.Stored(0, n), s.p.Removed(s.held)) }, "evicted"},
	{"evicted here, held elsewhere", func(s *situation, n int) {
		s.in("c", 0, s.p.Stored(0, n))
		s.a(s.p.Stored(0, n), s.p.Removed(s.held))
	}, "evicted"},
	{"evicted, and held with another salt", func(s *situation, n int) {
		other := s.stored(0, n, salted("pepper"))
		for i := range other.Hashes {
			other.Hashes[i] = fakeengine.IntHash(uint64(i + 1))
		}
		s.a(s.p.Stored(0, n), s.p.Removed(s.held), other)
	}, "evicted"},
	{"held elsewhere", func(s *situation, n int) {
		s.in("c", 0, s.p.Stored(0, n))
		s.in("b", 1, s.p.Stored(0, s.held+1))
		s.a(s.p.Stored(0, s.held))
		s.also = func(e *kvindex.Explanation) bool {
			return slices.Equal(e.Pods, []string{"b", "c"}) && !strings.Contains(e.Why, " more")
		}
	}, "elsewhere"},
	{"less is held elsewhere", func(s *situation, n int) {
		s.in("b", 1, s.p.Stored(0, s.held))
		s.a(s.p.Stored(0, s.held))
	}, "never_stored"},
	{"cleared", none(func(s *situation, n int) { s.a(s.p.Stored(0, n), fakeengine.Cleared{}, s.random(1).Stored(0, 1)) }), "cleared"},
	{"evicted since the last clear", func(s *situation, n int) {
		s.a(s.p.Stored(0, n), fakeengine.Cleared{}, s.p.Stored(0, n), s.p.Removed(s.held))
	}, "evicted"},
	{"hidden", func(s *situation, n int) { s.a(s.p.Stored(0, n), s.p.Stored(0, n), s.p.Removed(s.held)) }, "hidden"},
	{"marked as lost", none(func(s *situation, n int) {
		s.a(s.p.Stored(0, n))
		must(s.T, s.ix.MarkLost("a", s.rank))
		s.a(s.random(1).Stored(0, 1))
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == "marked" && strings.Contains(e.Why, "noticed at 20") && e.Score.State == kvindex.StatePartial
		}
	}), "lost"},
	{"lost in a gap", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)), s.message(2, s.random(1).Stored(0, 1)))
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "gap" }
	}), "lost"},
	{"lost with the word of it", func(s *situation, n int) {
		s.brings(s.message(0, s.random(1).Stored(0, 1)), s.message(2, s.random(1).Stored(0, 1)))
		s.brings(s.message(3, s.p.Stored(0, s.held)))
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "gap" }
	}, "lost"},
	{"lost with a restart", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)))
		restarted("s")(s.T, s.ix)
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == "restart" && strings.HasPrefix(e.Why, "The engine restarted") && !strings.Contains(e.Why, "may hold")
		}
	}), "lost"},
	{"lost with a move", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)), message("t", 0, 9, s.rank, s.random(1).Stored(0, 1)))
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == "moved" && strings.HasPrefix(e.Why, "Another stream") && !strings.Contains(e.Why, "may hold")
		}
	}), "lost"},
	{"cleared, and then a loss was kept", none(func(s *situation, n int) {
		s.open(kvindex.WithKeepOnLoss())
		s.brings(s.message(0, s.p.Stored(0, n)), s.message(1, fakeengine.Cleared{}, s.random(1).Stored(0, 1)), s.message(3, s.random(1).Stored(0, 1)))
	}), "cleared"},
	{"cleared, and then the connection was lost", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)), s.message(1, fakeengine.Cleared{}, s.random(1).Stored(0, 1)))
		note("s", events.NoteLost)(s.T, s.ix)
	}), "cleared"},
	{"cleared, and then sent again", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)), s.message(1, fakeengine.Cleared{}, s.p.Stored(0, n)))
		must(s.T, s.ix.Sink().StreamNote("a", "m", "s", events.NoteRewound))
	}), "held_back"},
	{"a loss that the engine made good", func(s *situation, n int) {
		s.brings(s.message(0, s.random(1).Stored(0, 1)), s.message(2, fakeengine.Cleared{}, s.p.Stored(0, s.held)))
	}, "never_stored"},
	{"partial", func(s *situation, n int) { s.brings(s.message(7, s.random(1).Stored(0, 1), s.p.Stored(0, s.held))) }, "partial"},
	{"caught up with", func(s *situation, n int) {
		s.brings(s.message(0, s.random(1).Stored(0, 1), s.p.Stored(0, s.held)), hold(s.message(2, s.random(1).Stored(0, 1))))
	}, "held_back"},
	{"a connection lost", func(s *situation, n int) {
		s.brings(s.message(0, s.random(1).Stored(0, 1), s.p.Stored(0, s.held)))
		note("s", events.NoteLost)(s.T, s.ix)
	}, "held_back"},
	{"sent again", none(func(s *situation, n int) {
		s.brings(s.message(0, s.p.Stored(0, n)))
		must(s.T, s.ix.Sink().StreamNote("a", "m", "s", events.NoteRewound))
	}), "held_back"},
	{"contested", none(func(s *situation, n int) {
		for seq := range uint64(3) {
			for _, stream := range []string{"s", "t"} {
				s.brings(message(stream, seq, float64(seq+1), s.rank, s.random(1).Stored(0, 1)))
			}
		}
	}), "contested"},
	{"silent", none(func(s *situation, n int) {
		s.in("c", 0, s.p.Stored(0, n))
		notes := []events.Note{events.NoteOpened, events.NoteConnected}[:1+n%2]
		note("s", notes...)(s.T, s.ix)
		s.also = func(e *kvindex.Explanation) bool {
			return strings.Contains(e.Why, "its address") == (len(notes) == 1) && strings.Contains(e.Why, "is connected") == (len(notes) == 2)
		}
	}), "silent"},
	{"a stream is silent", func(s *situation, n int) {
		s.a(s.p.Stored(0, s.held))
		note("s", events.NoteOpened)(s.T, s.ix)
	}, "silent"},
	{"parked", func(s *situation, n int) {
		s.held = min(s.held, n-2)
		from := s.held + 1 + s.r.IntN(n-s.held-1)
		s.a(s.p.Stored(0, s.held), s.p.Stored(from, n))
		s.also = func(e *kvindex.Explanation) bool {
			return strings.HasPrefix(e.Why, "Announcements of the pod (1) wait")
		}
	}, "parked"},
	{"unplaced", func(s *situation, n int) {
		s.a(s.random(1).Stored(0, 1), s.p.Stored(0, s.held), byHash(s.random(2).Stored(0, 2)))
		s.also = func(e *kvindex.Explanation) bool {
			return strings.Contains(e.Why, "The pod holds 2 blocks by hashes") && s.ix.Stats().Unplaced == 2
		}
	}, "unplaced"},
	{"unplaced, and elsewhere", func(s *situation, n int) {
		s.a(s.random(1).Stored(0, 1), s.p.Stored(0, s.held), byHash(s.random(1).Stored(0, 1)))
		s.in("c", 0, s.p.Stored(0, n))
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "it may be one of them") }
	}, "elsewhere"},
	{"the whole prompt", func(s *situation, n int) {
		s.held = n
		s.a(s.p.Stored(0, n))
		s.ask.Tokens = s.p.Tokens[:n*s.size]
		s.also = func(e *kvindex.Explanation) bool { return e.Score.CachedTokens == (n-1)*s.size }
	}, "whole"},
	{"all whole blocks", func(s *situation, n int) {
		s.held = n
		s.a(s.p.Stored(0, n))
		s.ask.Tokens = append(slices.Clone(s.p.Tokens[:n*s.size]), 1)
		s.also = func(e *kvindex.Explanation) bool { return e.Score.CachedTokens == n*s.size }
	}, "whole"},
	{"no whole block", none(func(s *situation, n int) {
		s.a(s.p.Stored(0, n))
		s.ask.Tokens = s.p.Tokens[:1+s.r.IntN(s.size-1)]
	}), "no_block"},
	{"in a lower tier", func(s *situation, n int) {
		s.a(s.p.Stored(0, n), byHash(s.p.Stored(s.held, n)), s.p.Removed(s.held))
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "is held in tier disk") }
	}, "lower_tier"},
	{"in a chunk of a lower tier", none(func(s *situation, n int) {
		s.next = 2 * s.size
		lower := s.p.Stored(0, 2)
		lower.Medium = "cpu"
		s.a(s.p.Stored(0, n), lower, s.p.Removed(0))
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "is held in tier cpu") }
	}), "lower_tier"},
	{"in another group", func(s *situation, n int) {
		other := s.p.Stored(0, n)
		other.Group = 1
		if s.r.IntN(2) == 0 {
			other.Kind, other.Window = "sliding_window", 32
		}
		s.a(s.p.Stored(0, n), other, s.p.Removed(s.held))
	}, "group"},
	{"behind the end of a window group", func(s *situation, n int) {
		s.open(withProfile(kvindex.Profile{Draft: kvindex.DraftNone}))
		window := s.p.Stored(0, n)
		window.Group, window.Kind, window.Window = 1, "sliding_window", 32
		var gone []int
		for b := s.held; b < n; b++ {
			gone = append(gone, b)
		}
		end := s.p.Removed(gone...)
		end.Group = 1
		s.a(s.p.Stored(0, n), window, end)
		s.also = func(e *kvindex.Explanation) bool {
			return strings.Contains(e.Why, "another group has removed, or never stored, blocks")
		}
	}, "group"},
	{"given up for draft layers", func(s *situation, n int) {
		s.open(withProfile(kvindex.Profile{Draft: kvindex.DraftLayers}))
		s.a(s.p.Stored(0, s.held+1))
		s.also = func(e *kvindex.Explanation) bool {
			return strings.Contains(e.Why, "draft layers (Profile.Draft) compute again")
		}
	}, "group"},
	{"with another salt", none(func(s *situation, n int) {
		for i := range 40 {
			other := s.random(1).Stored(0, 1)
			other.Extra = [][]enginehash.Extra{{enginehash.Text(fmt.Sprint(i))}}
			s.a(other)
		}
		s.a(s.stored(0, n, salted("pepper")))
		s.ask.Salt = []string{"", "thyme"}[s.r.IntN(2)]
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "another salt" }
	}), "other_salt"},
	{"without a salt", none(func(s *situation, n int) {
		s.a(s.stored(0, n, nil))
		s.ask.Salt = "thyme"
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == "no salt" && strings.Contains(e.String(), ", with a salt")
		}
	}), "other_salt"},
	{"with a bare salt", none(func(s *situation, n int) {
		s.open(withProfile(kvindex.Profile{Media: kvindex.MediaBare}))
		s.a(s.stored(0, n, salted("pepper")))
		s.ask.Salt = "thyme"
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "another salt" }
	}), "other_salt"},
	{"on an adapter", none(func(s *situation, n int) {
		s.a(s.stored(0, n, adapted("sql")))
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == `adapter "sql"` }
	}), "other_adapter"},
	{"on another adapter", none(func(s *situation, n int) {
		poet := s.random(1).Stored(0, 1)
		poet.Adapter = "poet"
		s.a(s.stored(0, n, adapted("sql")), poet)
		s.ask.Adapter = "poet"
		if s.r.IntN(2) == 0 {
			s.ask.Model, s.ask.Adapter = "poet", ""
		}
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == `adapter "sql"` && e.Model == "m" && e.Adapter == "poet"
		}
	}), "other_adapter"},
	{"on another adapter and with another salt", none(func(s *situation, n int) {
		s.a(s.stored(0, n, func(e *fakeengine.Stored) { adapted("sql")(e); salted("pepper")(e) }))
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == `adapter "sql" and another salt` }
	}), "other_adapter"},
	{"on no adapter", none(func(s *situation, n int) {
		poet := s.random(1).Stored(0, 1)
		poet.Adapter = "poet"
		s.a(s.stored(0, n, nil), poet)
		s.ask.Adapter = "poet"
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "no adapter" }
	}), "other_adapter"},
	{"with other media", func(s *situation, n int) {
		offset := s.r.IntN(s.size)
		s.a(s.stored(0, n, func(e *fakeengine.Stored) {
			e.Extra[s.held] = append(e.Extra[s.held], enginehash.Media("cat", int64(offset)))
		}))
		if s.r.IntN(2) == 0 {
			s.ask.Media = []kvindex.Media{{Hash: "cow", Offset: s.held*s.size + offset, Length: 5}}
		}
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Detail, "media") }
	}, "other_media"},
	{"without media", func(s *situation, n int) {
		s.a(s.stored(0, n, nil))
		s.ask.Media = []kvindex.Media{{Hash: "cow", Offset: s.held * s.size, Length: 5}}
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "no media" }
	}, "other_media"},
	{"an unknown model", none(func(s *situation, n int) {
		s.a(s.p.Stored(0, n))
		s.ask.Model = "another"
	}), "unknown_model"},
	{"an unknown adapter", none(func(s *situation, n int) {
		s.a(s.stored(0, n, nil))
		s.ask.Adapter = "sql"
		s.also = func(e *kvindex.Explanation) bool {
			return e.Detail == "no adapter" && errors.Is(e.Err, kvindex.ErrUnknownAdapter)
		}
	}), "unknown_adapter"},
	{"an unknown adapter, and an unknown pod", none(func(s *situation, n int) {
		s.open()
		s.ask.Adapter = "sql"
	}), "unknown_adapter"},
	{"an unknown pod", none(func(s *situation, n int) { s.in("c", 0, s.p.Stored(0, n)) }), "unknown_pod"},
	{"not scorable", none(func(s *situation, n int) {
		s.a(s.p.Stored(0, n))
		s.ask.Tokens = nil
		s.ask.Body = []byte(`{"model": "m", "prompt": "hello", "truncate_prompt_tokens": 3}`)
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "not_scorable" }
	}), "error"},
	{"excluded", none(func(s *situation, n int) {
		m, err := chat.New(turns, nil, chat.Options{})
		must(s.T, err)
		s.ix = open(s.T, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
		s.a(s.p.Stored(0, n))
		m.Exclude("a", "plain")
		s.ask.Tokens = nil
		s.ask.Body = []byte(`{"model": "m", "messages": [{"role": "user", "content": "hello"}]}`)
		s.also = func(e *kvindex.Explanation) bool { return e.Score.NotScorable && strings.Contains(e.Why, ": plain.") }
	}), "not_scorable"},
	{"an unknown model, and excluded", none(func(s *situation, n int) {
		m, err := chat.New(turns, nil, chat.Options{})
		must(s.T, err)
		s.ix = open(s.T, kvindex.WithModel("x", kvindex.Model{Tokenizer: words{}, Chat: m}))
		s.a(s.p.Stored(0, n))
		m.Exclude("a", "plain")
		s.ask.Model, s.ask.Tokens = "x", nil
		s.ask.Body = []byte(`{"messages": [{"role": "user", "content": "hello"}]}`)
	}), "unknown_model"},
	{"with media that another pod's engine cannot have", none(func(s *situation, n int) {
		s.open(kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
			if pod == "d" {
				return kvindex.Profile{Media: kvindex.MediaPad}
			}
			return kvindex.Profile{}
		}))
		s.in("d", 0, s.random(2).Stored(0, 2))
		s.in("c", 0, s.stored(0, n, func(e *fakeengine.Stored) { e.Extra[0] = append(e.Extra[0], enginehash.Media("cow", 1)) }))
		s.a(s.random(1).Stored(0, 1))
		s.ask.Media = []kvindex.Media{{Hash: "cow", Offset: 1, Length: 5}}
		s.asked = []string{"a", "c"}
	}), "elsewhere"},
	{"no tokens", none(func(s *situation, n int) {
		s.a(s.p.Stored(0, n))
		s.ask.Tokens = nil
		s.also = func(e *kvindex.Explanation) bool { return e.Detail == "bad_request" }
	}), "error"},
	{"given up by the index", func(s *situation, n int) {
		s.full(true)
		s.a(s.p.Stored(0, s.held))
		s.also = func(e *kvindex.Explanation) bool {
			ranks := 1
			if s.held == 0 {
				ranks = 2
			}
			return strings.Contains(e.Why, fmt.Sprintf("evicted %d blocks", 7*ranks)) && strings.Contains(e.Why, "WithMemory")
		}
	}, "memory"},
	{"given up by the index, after a loss", func(s *situation, n int) {
		s.full(true)
		s.a(s.random(1).Stored(0, 1))
		must(s.T, s.ix.MarkLost("a", s.rank))
		s.a(s.p.Stored(0, s.held))
	}, "memory"},
	{"given up by an index that cannot tell how much", func(s *situation, n int) {
		s.held = max(s.held, 1)
		s.full(false)
		s.a(s.p.Stored(0, s.held))
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "has evicted blocks") }
	}, "memory"},
	{"parked, as the index gave up its parent", func(s *situation, n int) {
		s.held = min(s.held, n-2)
		s.full(true)
		s.a(s.p.Stored(0, s.held), s.p.Stored(s.held+1, n))
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "WithMemory") }
	}, "parked"},
	{"removed by the engine of a pod that the index gave up blocks of", func(s *situation, n int) {
		s.full(true)
		s.a(s.p.Stored(0, n), s.p.Removed(s.held))
	}, "evicted"},
	{"without events", func(s *situation, n int) {
		s.open(kvindex.WithProfile(func(string, string) kvindex.Profile {
			return kvindex.Profile{Approximate: &kvindex.Approximate{BlockTokens: s.size, Blocks: 100}}
		}))
		s.held, s.asked = 0, []string{"a"}
		s.also = func(e *kvindex.Explanation) bool { return strings.Contains(e.Why, "PredictedTokens") }
	}, "approximate"},
	{"an index that cannot tell", func(s *situation, n int) {
		s.open(kvindex.WithIndex(noExplainer(s.T)))
		s.a(s.p.Stored(0, n), s.p.Removed(s.held))
	}, "unexplained"},
	{"held elsewhere, by an index that cannot tell", func(s *situation, n int) {
		s.open(kvindex.WithIndex(noExplainer(s.T)))
		s.in("c", 0, s.p.Stored(0, n))
		s.a(s.p.Stored(0, s.held))
	}, "elsewhere"},
}

// full opens an index that has evicted blocks of pod a. With describes it reports how many.
func (s *situation) full(describes bool) {
	l := lister{memory(s.T), "a"}
	if describes {
		s.open(kvindex.WithIndex(l))
		return
	}
	s.open(kvindex.WithIndex(struct {
		index.Index
		inmemory.Explainer
	}{l, l}))
}

// noExplainer is a backend that has no optional ability.
func noExplainer(t *testing.T) index.Index {
	return struct{ index.Index }{memory(t)}
}

func TestCauses(t *testing.T) {
	rounds := 23 // more than 1,000 scores
	if testing.Short() {
		rounds = 3
	}
	for _, c := range situations {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(rounds) {
				s := &situation{T: t, r: rand.New(rand.NewPCG(seed, 3)), also: func(*kvindex.Explanation) bool { return true }}
				s.size, s.rank = []int{16, 32, 64}[s.r.IntN(3)], s.r.IntN(2)
				n := 3 + s.r.IntN(8)
				s.p, s.held = s.random(n), s.r.IntN(n)
				s.ask = kvindex.Request{Model: "m", Tokens: append(slices.Clone(s.p.Tokens), make([]uint32, s.r.IntN(s.size))...)}
				c.make(s, n)
				if s.ask.Pods = s.asked; s.asked == nil {
					s.ask.Pods = [][]string{nil, {"a"}, {"c", "b"}}[s.r.IntN(3)]
				}
				if s.ask.Pods == nil && s.r.IntN(2) == 0 {
					s.ask.Top = 1
				}
				e := explain(t, s.ix, s.ask, "a")
				if e.Cause != c.cause || !s.also(e) {
					t.Fatalf("seed %d: %d of %d blocks of %d, %v, %q, others %v, want %v\n%s", seed, s.held, n, s.size, e.Cause, e.Detail, e.Pods, c.cause, e)
				}
				if e.BlockTokens == 0 {
					continue
				}
				s.next = max(s.next, s.size)
				if e.BlockTokens != s.next || e.Block != s.held || e.Blocks != len(e.Tokens)/s.next || e.Score.MatchedBlocks > 0 && e.Rank != s.rank {
					t.Fatalf("seed %d: want block %d of %d tokens on rank %d\n%s", seed, s.held, s.size, s.rank, e)
				}
			}
		})
	}
}

var causeNames = documented("explain.go", "\tCause string\n\tWhy ")

// Each cause is that of a situation.
func TestCausesAreAllTested(t *testing.T) {
	for _, cause := range causeNames {
		found := false
		for _, s := range situations {
			found = found || s.cause == cause
		}
		if !found {
			t.Errorf("no situation has the cause %s", cause)
		}
	}
}

// TestExplainIsTheScore explains scores after each of many random changes.
func TestExplainIsTheScore(t *testing.T) {
	var engines []*model
	for _, e := range []model{
		{name: "offsets", size: 16, form: kvindex.MediaOffsets},
		{name: "long", size: 48, form: kvindex.MediaOffsets},
		{name: "bare", size: 16, form: kvindex.MediaBare},
		{name: "pad", size: 1, form: kvindex.MediaPad, blind: true},
		{name: "pairs", size: 16, form: kvindex.MediaPad, blind: true, pairs: true},
	} {
		e.hashes, e.held = make(map[string]uint64), make(map[uint64]bool)
		engines = append(engines, &e)
	}
	forms := func(pod, _ string) kvindex.Profile {
		i := max(0, slices.IndexFunc(engines, func(m *model) bool { return m.name == pod })) // it is called for other pods too
		return kvindex.Profile{Media: engines[i].form}
	}
	ix := open(t, kvindex.WithProfile(forms))
	r := rand.New(rand.NewPCG(5, 6))
	var before []kvindex.Request
	causes := make(map[string]int)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for round := range rounds {
		q := randomRequest(r, before)
		before = append(before, q)
		for _, m := range engines {
			payload := m.store(&q, 100)
			if round%5 == 4 {
				payload, _ = m.remove(r, 0.3)
			}
			must(t, ix.Ingest(m.name, "m", payload))
		}
		for range 4 {
			q := randomRequest(r, before)
			q.Model = []string{"m", "m", "m", "lora", "nobody"}[r.IntN(5)]
			q.Top = r.IntN(4) - 1
			switch r.IntN(4) {
			case 0:
				q.Pods = []string{"bare", "pad", "none"}
			case 1:
				q.Candidates = ix.Candidates(q.Model, []string{"offsets", "pairs"})
			}
			for _, pod := range []string{engines[r.IntN(len(engines))].name, "none"} {
				causes[explain(t, ix, q, pod).Cause]++
			}
		}
	}
	t.Log(causes)
	if len(causes) < 10 && !testing.Short() {
		t.Errorf("only these causes: %v", causes)
	}
}

// A pod that the request does not list is added.
func TestExplainAnyPod(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	ingest(t, ix, "a", p.Stored(0, 2))
	ingest(t, ix, "b", p.Stored(0, 3))
	for _, r := range []kvindex.Request{
		{Model: "m"}, {Model: "m", Top: 1}, {Model: "m", Pods: []string{}}, {Model: "m", Pods: []string{"b"}},
		{Candidates: ix.Candidates("m", nil)}, {Candidates: ix.Candidates("m", []string{"b"})},
	} {
		r.Tokens = p.Tokens
		pods := slices.Clone(r.Pods)
		if e := explain(t, ix, r, "a"); e.Score.CachedTokens != 32 || e.Cause != "elsewhere" || !slices.Equal(e.Pods, []string{"b"}) {
			t.Errorf("%+v: %s", r, e)
		}
		if !slices.Equal(r.Pods, pods) {
			t.Errorf("the caller's pods were changed: %q", r.Pods)
		}
	}
}

// Held has the tier of each block, those behind a hole too.
func TestExplanationHeld(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 6)
	ingest(t, ix, "a", p.Stored(0, 5), byHash(p.Stored(0, 5)), p.Removed(1, 2, 4))
	ingest(t, ix, "b", p.Stored(0, 5), p.Removed(0, 2))
	for pod, want := range map[string][]string{
		"a": {"gpu", "disk", "disk", "gpu", "disk", ""},
		"b": {"", "gpu", "", "gpu", "gpu", ""},
	} {
		if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens}, pod); !slices.Equal(e.Held, want) {
			t.Errorf("%s: %q, want %q", pod, e.Held, want)
		}
	}
	if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: fakeengine.NewPrompt(2, 16, 6).Tokens}, "a"); slices.ContainsFunc(e.Held, func(tier string) bool { return tier != "" }) {
		t.Errorf("another prompt: %q", e.Held)
	}
}

// Faults of the call are errors; those of the request are not.
func TestExplainErrors(t *testing.T) {
	ix := open(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	r := &kvindex.Request{Model: "m", Tokens: []uint32{1}}
	if e, err := ix.Explain(ctx, r, ""); err == nil || e != nil {
		t.Errorf("no pod: %v, %v", e, err)
	}
	if e, err := ix.Explain(ended, r, "a"); !errors.Is(err, context.Canceled) || e != nil {
		t.Errorf("an ended context: %v, %v", e, err)
	}
	ix.Close()
	if e, err := ix.Explain(ctx, r, "a"); !errors.Is(err, kvindex.ErrClosed) || e != nil {
		t.Errorf("closed: %v, %v", e, err)
	}
}

// Explain calls no hook.
func TestExplainIsNotCounted(t *testing.T) {
	told := 0
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Scored: func(context.Context, kvindex.ScoreReport) { told++ }}))
	if _, err := ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: []uint32{1}}, "a"); err != nil || told != 0 || counted(ix.Stats().Scores.Outcomes) != 0 || ix.Stats().Scores.PromptTokens != 0 {
		t.Errorf("the hook was called %d times, %v", told, err)
	}
}

// The text of a chat is shown even if it is not tokenized.
func TestExplainChat(t *testing.T) {
	ix := chats(t, turns)
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": "how do boats come and go?"}], "cache_salt": "secret"}`)
	text := "\x01<user>how do boats come and go?</user><assistant>"
	holdAll(t, ix, "pod", 1, bytesOf(text))
	e := explain(t, ix, kvindex.Request{Body: body}, "pod")
	if e.Text != text || !slices.Equal(e.Tokens, bytesOf(text)) || e.Model != "m" || !strings.Contains(e.String(), ", with a salt") || e.Cause != "other_salt" {
		t.Errorf("%s", e)
	}
	for _, said := range []string{e.String(), fmt.Sprint(json.Marshal(e))} {
		if strings.Contains(said, "secret") {
			t.Errorf("it shows the salt: %s", said)
		}
	}
	other := open(t)
	if e := explain(t, other, kvindex.Request{Model: "m", Prompt: "hello"}, "pod"); e.Text != "hello" || !errors.Is(e.Err, kvindex.ErrNoTokenizer) || e.Detail != "no_tokenizer" {
		t.Errorf("%s", e)
	}
	if e := explain(t, other, kvindex.Request{Model: "m", Tokens: []uint32{1}}, "pod"); e.Text != "" {
		t.Errorf("the text of another request: %q", e.Text)
	}
}

// Old salts are forgotten; at most 64 are kept.
func TestRecentSalts(t *testing.T) {
	ix := open(t)
	var saltOf []*fakeengine.Stored
	for i := range 66 {
		s := fakeengine.NewPrompt(uint64(i+1), 16, 1).Stored(0, 1)
		s.Extra = [][]enginehash.Extra{{enginehash.Text(fmt.Sprint(i))}}
		saltOf = append(saltOf, s)
	}
	causeOf := func(i int) string {
		return explain(t, ix, kvindex.Request{Model: "m", Tokens: fakeengine.NewPrompt(uint64(i+1), 16, 1).Tokens}, "a").Cause
	}
	for _, s := range saltOf[:64] {
		ingest(t, ix, "a", s, s)
	}
	if got := causeOf(0); got != "other_salt" {
		t.Errorf("the first of 64: %v", got)
	}
	ingest(t, ix, "a", saltOf[64])
	if got := causeOf(0); got != "never_stored" {
		t.Errorf("the first of 65: %v", got)
	}
	ingest(t, ix, "a", saltOf[65])
	for i, want := range map[int]string{1: "never_stored", 2: "other_salt", 63: "other_salt", 64: "other_salt", 65: "other_salt"} {
		if got := causeOf(i); got != want {
			t.Errorf("salt %d of 66: %v, want %v", i, got, want)
		}
	}
}

// JSON has all fields of an Explanation and omits empty names.
func TestExplanationAsJSON(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	ingest(t, ix, "a", p.Stored(0, 3), p.Removed(1))
	read := func(e *kvindex.Explanation) (m map[string]any) {
		b, err := json.Marshal(e)
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		must(t, err)
		return m
	}
	m := read(explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens}, "a"))
	if m["Cause"] != "evicted" || m["Block"] != 1.0 || m["Err"] != nil || m["Detail"] != nil || m["Score"].(map[string]any)["CachedTokens"] != 16.0 {
		t.Errorf("%v", m)
	}
	m = read(explain(t, ix, kvindex.Request{Model: "m"}, "a"))
	if m["Cause"] != "error" || m["Err"] != "kvindex: bad request: the prompt is empty" || m["Detail"] != "bad_request" {
		t.Errorf("%v", m)
	}
	must(t, ix.MarkLost("a", 0))
	if m = read(explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens}, "a")); m["Detail"] != "marked" {
		t.Errorf("%v", m)
	}
	for i := range reflect.TypeFor[kvindex.Explanation]().NumField() - 1 { // the last one is not exported
		name := reflect.TypeFor[kvindex.Explanation]().Field(i).Name
		if _, ok := m[name]; !ok && name != "Err" && name != "Detail" {
			t.Errorf("JSON has no %s", name)
		}
	}
}

func TestExplanationAsText(t *testing.T) {
	ix := open(t, tokenizes("m"))
	text := "You are a helpful assistant. " + strings.Repeat("What is a KV cache? ", 12)
	p := fakeengine.Prompt{Tokens: append([]uint32{1}, bytesOf(text)...), Size: 16, Hash: 1 << 32}
	salty := p.Stored(0, 16)
	salty.Extra = make([][]enginehash.Extra, 16)
	salty.Extra[0] = []enginehash.Extra{enginehash.Text("pepper")}
	ingest(t, ix, "a", p.Stored(0, 16), p.Removed(5))
	ingest(t, ix, "b", salty)
	ingest(t, ix, "c", p.Stored(0, 16))
	for _, c := range []struct {
		r    kvindex.Request
		pod  string
		want string
	}{
		{kvindex.Request{Model: "m", Prompt: text}, "a", `
pod "a": 80 of 270 tokens cached, rank 0, live
  request: model "m"
  text:    "You are a helpful assistant. What is a KV cache? What is a KV cache? What is a K" ... "What is a KV cache? What is a KV cache? What is a KV cache? What is a KV cache? " (269 bytes)
  tokens:  [1 89 111 117 32 97 114 101 32] ... [101 63 32]
  blocks:  16 of 16 tokens; held from the first on: 5 (gpu=5); the next is 5, from token 80 on
  cause:   evicted
  The pod held block 5 (tokens 80 to 95) and has removed it, as an engine does when its cache is full.
`},
		{kvindex.Request{Model: "m", Prompt: text, Pods: []string{"b"}, Salt: "thyme"}, "b", `
pod "b": 0 of 270 tokens cached, rank 0, live
  request: model "m", with a salt
  text:    "You are a helpful assistant. What is a KV cache? What is a KV cache? What is a K" ... "What is a KV cache? What is a KV cache? What is a KV cache? What is a KV cache? " (269 bytes)
  tokens:  [1 89 111 117 32 97 114 101 32] ... [101 63 32]
  blocks:  16 of 16 tokens; held from the first on: 0; the next is 0, from token 0 on
  cause:   other_salt
  The pod holds the same tokens under another salt. An engine does not reuse them for this request. If they should be the same, compare the request here with the request to the engine.
`},
		{kvindex.Request{Model: "m", Tokens: p.Tokens[:40]}, "c", `
pod "c": 32 of 40 tokens cached, rank 0, live
  request: model "m"
  tokens:  [1 89 111 117 32 97 114 101 32] ... [32 97 32]
  blocks:  2 of 16 tokens; held from the first on: 2 (gpu=2); the next is 2, from token 32 on
  cause:   whole
  The pod holds all 2 whole blocks of the prompt. The rest is always computed: the last token, or a part of a block.
`},
		{kvindex.Request{Model: "m", Prompt: "fail"}, "c", `
pod "c": 0 of 0 tokens cached, rank 0, unknown
  request: model "m"
  text:    "fail"
  cause:   error
  The request is not scored: kvindex: tokenizing for model "m": no such text.
`},
		{kvindex.Request{Model: "m", Tokens: []uint32{7, 8}, Adapter: "sql", Media: []kvindex.Media{{Hash: "cat"}}}, "c", `
pod "c": 0 of 2 tokens cached, rank 0, live
  request: model "m", adapter "sql", 1 media
  tokens:  [7 8]
  blocks:  0 of 16 tokens; held from the first on: 0; the next is 0, from token 0 on
  cause:   unknown_adapter
  No pod holds anything: kvindex: unknown adapter "sql" of model "m": no event has named it, events have named 0 others: either no block of it was stored yet, or the events have another name for it (SGLang's events have no adapters).
`},
	} {
		if got := "\n" + explain(t, ix, c.r, c.pod).String(); got != c.want {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
}

// Holdings of one rank, pod or scope do not explain those of another.
func TestCausesOfRanks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	cpu := func(from, to int) *fakeengine.Stored {
		e := p.Stored(from, to)
		e.Tokens, e.BlockSize, e.Parent, e.Medium = nil, 0, nil, "cpu"
		return e
	}
	salty := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 9 << 32}.Stored(0, 2)
	salty.Extra = [][]enginehash.Extra{{enginehash.Text("pepper")}, nil}
	other := fakeengine.NewPrompt(2, 16, 8)
	of := func(seq uint64, evs ...fakeengine.Event) kvindex.Message {
		return message("s", seq, float64(seq+1), 0, evs...)
	}
	for name, c := range map[string]struct {
		ranks  [2][]fakeengine.Event
		stream []kvindex.Message
		tokens int
		cause  string
		size   int
	}{
		"in another rank's lower tier": {
			ranks: [2][]fakeengine.Event{{p.Stored(0, 3)}, {p.Stored(0, 7), cpu(3, 7), p.Removed(1, 2, 3, 4, 5, 6)}},
			cause: "never_stored", size: 16,
		},
		"on another rank": {
			ranks: [2][]fakeengine.Event{{p.Stored(0, 7)}, {p.Stored(0, 7), cpu(0, 7), p.Removed(1, 2, 3, 4, 5, 6)}},
			cause: "never_stored", size: 16,
		},
		"too short for one rank": {
			ranks:  [2][]fakeengine.Event{{fakeengine.NewPrompt(3, 64, 2).Stored(0, 2)}, {p.Stored(0, 2), p.Removed(0)}},
			tokens: 40, cause: "evicted", size: 16,
		},
		"less with another salt": {
			ranks: [2][]fakeengine.Event{{p.Stored(0, 3), salty}},
			cause: "never_stored", size: 16,
		},
		"emptied after a loss": {
			stream: []kvindex.Message{of(0, other.Stored(0, 1)), of(2, other.Stored(0, 1)), of(3, p.Stored(0, 8), fakeengine.Cleared{}, other.Stored(0, 1))},
			cause:  "cleared", size: 16,
		},
	} {
		ix := open(t)
		for rank, evs := range c.ranks {
			if len(evs) == 0 {
				continue
			}
			must(t, ix.Ingest("a", "m", fakeengine.Payload(1, rank, evs...)))
		}
		brings(c.stream...)(t, ix)
		if c.tokens == 0 {
			c.tokens = len(p.Tokens)
		}
		if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens[:c.tokens]}, "a"); e.Cause != c.cause || e.BlockTokens != c.size {
			t.Errorf("%s: want %v of %d tokens\n%s", name, c.cause, c.size, e)
		}
	}
}

// An explanation whose score has changed meanwhile has no cause.
func TestExplainOfOneMoment(t *testing.T) {
	m := &alteredIndex{Memory: memory(t)}
	p := fakeengine.NewPrompt(1, 16, 8)
	left, change := 0, func() {}
	m.match = func(ctx context.Context, q *index.Query, dst *index.Matches) error {
		if q.Held && left > 0 { // after the score
			left--
			change()
		}
		return m.Memory.Match(ctx, q, dst)
	}
	ix := open(t, kvindex.WithIndex(m))
	r := &kvindex.Request{Model: "m", Tokens: p.Tokens}
	ask := func() *kvindex.Explanation {
		t.Helper()
		e, err := ix.Explain(ctx, r, "a")
		must(t, err)
		return e
	}
	ingest(t, ix, "a", p.Stored(0, 6))
	left, change = 1, func() { ingest(t, ix, "a", p.Removed(2)) }
	if e := ask(); e.Score.CachedTokens != 32 || e.Block != 2 || e.Cause != "evicted" {
		t.Errorf("a block has gone: %s", e)
	}
	left, change = 1, func() { ingest(t, ix, "a", p.Removed(0)) }
	if e := ask(); e.Score.CachedTokens != 0 || e.Block != 0 || e.Cause != "evicted" {
		t.Errorf("all have gone: %s", e)
	}
	left, change = 1, func() { ingest(t, ix, "a", p.Stored(0, 1)) }
	if e := ask(); e.Score.CachedTokens != 32 || e.Block != 2 || e.Cause != "evicted" {
		t.Errorf("some have come: %s", e)
	}
	there := true
	left, change = 100, func() {
		if there = !there; there {
			ingest(t, ix, "a", p.Stored(0, 1))
		} else {
			ingest(t, ix, "a", p.Removed(0))
		}
	}
	if e := ask(); e.Cause != "unexplained" || left != 96 {
		t.Errorf("it goes on: %d tries, %s", 100-left, e)
	}
}
