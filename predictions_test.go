package kvindex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// handClock is a clock that a test moves.
type handClock struct{ past atomic.Int64 }

func (c *handClock) now() time.Time        { return time.Unix(1e9, c.past.Load()) }
func (c *handClock) after(d time.Duration) { c.past.Add(int64(d)) }

// sending opens an Indexer with the default predictions and a clock.
func sending(t testing.TB, opts ...kvindex.Option) (*kvindex.Indexer, *handClock) {
	t.Helper()
	c := new(handClock)
	return open(t, append(opts, kvindex.WithPredictions(kvindex.PredictionConfig{Now: c.now}))...), c
}

// answerTo scores a prompt for all pods.
func answerTo(t testing.TB, ix *kvindex.Indexer, tokens []uint32) *kvindex.Answer {
	t.Helper()
	a := new(kvindex.Answer)
	must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: tokens}, a))
	return a
}

// sends routes a prompt to a rank of pod a.
func sends(t testing.TB, ix *kvindex.Indexer, tokens []uint32, rank int) kvindex.Ticket {
	t.Helper()
	ticket, err := ix.Routed(answerTo(t, ix, tokens), "a", rank)
	must(t, err)
	return ticket
}

// predicted returns the predicted and the cached tokens of a rank of pod a; -1: it has no entry.
func predicted(t testing.TB, ix *kvindex.Indexer, tokens []uint32, rank int) (predicted, cached int) {
	t.Helper()
	for _, s := range score(t, ix, kvindex.Request{Tokens: tokens, Pods: []string{"a"}, Ranks: true}) {
		if s.Rank == rank {
			return s.PredictedTokens, s.CachedTokens
		}
	}
	return -1, -1
}

// TestPredictionEnds: a prediction ends once, by its own cause, in cases outside
// TestPredictionsModel too. Each case begins with a prompt of eight blocks that was sent to rank 0
// of a, which holds the first two.
func TestPredictionEnds(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	next := func(seq uint64, evs ...fakeengine.Event) act {
		return brings(message("s", seq, float64(seq+1), 0, evs...))
	}
	const live, lost, expired = "", "lost", "expired"
	var clock *handClock
	var full bool
	later := func(d time.Duration) act { return func(*testing.T, *kvindex.Indexer) { clock.after(d) } }
	for _, c := range []struct {
		name string
		act  act
		want string // how it ended
	}{
		{"its blocks come in a lower tier", func(t *testing.T, ix *kvindex.Indexer) {
			below := p.Stored(2, 8)
			below.Medium = "CPU"
			next(1, below)(t, ix)
		}, live},
		{"another stream takes the rank", brings(message("t", 0, 50, 0)), lost},
		{"nobody can read a message", func(_ *testing.T, ix *kvindex.Indexer) {
			_, _ = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: 1})
		}, lost},
		{"what another rank loses", func(t *testing.T, ix *kvindex.Indexer) { said(t, ix, "a", 1, fakeengine.Cleared{}) }, live},
		{"what another model loses", func(t *testing.T, ix *kvindex.Indexer) {
			if err := ix.Ingest("a", "other", fakeengine.Payload(1, 0, fakeengine.Cleared{})); err != nil {
				t.Error(err)
			}
		}, live},
		{"the pod is removed", func(_ *testing.T, ix *kvindex.Indexer) { _ = ix.RemovePod("a") }, lost},
		{"the index has no room", func(_ *testing.T, ix *kvindex.Indexer) {
			full = true
			_, _ = ix.IngestMessage(message("s", 1, 2, 0))
		}, lost},
		{"just before the TTL", later(kvindex.DefaultPredictionTTL - 1), live},
		{"at the TTL", later(kvindex.DefaultPredictionTTL), expired},
		{"its blocks come at the TTL", func(t *testing.T, ix *kvindex.Indexer) {
			clock.after(kvindex.DefaultPredictionTTL)
			next(1, p.Stored(2, 8))(t, ix)
		}, expired},
		{"the cache is emptied at the TTL", func(t *testing.T, ix *kvindex.Indexer) {
			clock.after(kvindex.DefaultPredictionTTL)
			next(1, fakeengine.Cleared{})(t, ix)
		}, expired},
	} {
		t.Run(c.name, func(t *testing.T) {
			full = false
			bounded := &alteredIndex{Memory: memory(t), before: func(context.Context, string, index.Source) error {
				if full {
					return index.ErrFull
				}
				return nil
			}}
			var ix *kvindex.Indexer
			ix, clock = sending(t, kvindex.WithIndex(bounded))
			next(0, p.Stored(0, 2))(t, ix)
			ticket := sends(t, ix, p.Tokens, 0)
			if predicted, cached := predicted(t, ix, p.Tokens, 0); predicted != 112 || cached != 32 {
				t.Fatalf("predicted %d, cached %d", predicted, cached)
			}
			c.act(t, ix)
			want := stats.Predictions{Routed: 1, Live: 1}
			if c.want != live {
				want.Live, want.Ended = 0, map[string]uint64{c.want: 1}
			}
			if got := ix.Stats().Predictions; !samePredictions(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
			if predicted, cached := predicted(t, ix, p.Tokens, 0); predicted > cached != (want.Live > 0) {
				t.Errorf("predicted %d, cached %d", predicted, cached)
			}
			ix.Observe(ticket, kvindex.Usage{PromptTokens: 128, CachedTokens: 32})
			if s := ix.Stats(); !sameTickets(s.Tickets, stats.Tickets{Ended: map[string]uint64{"observed": 1}}) || s.Predictions.Live != 0 || len(s.Observed) != 1 || s.Observed[0].Cached["exact"].Requests != 1 {
				t.Errorf("the ticket: %+v", s)
			}
		})
	}
}

// TestPredictionConfirmedByNames: blocks return to the GPU from a lower tier, by an event with
// hashes and no tokens.
func TestPredictionConfirmedByNames(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix, _ := sending(t)
	named := func(medium string) *fakeengine.Stored {
		s := p.Stored(2, 8)
		s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, medium
		return s
	}
	said(t, ix, "a", 0, p.Stored(0, 8), named("CPU"), p.Removed(2, 3, 4, 5, 6, 7))
	sends(t, ix, p.Tokens, 0)
	said(t, ix, "a", 0, named("GPU"))
	if got, cached := predicted(t, ix, p.Tokens, 0); got != 112 || cached != 112 || ix.Stats().Predictions.Ended["confirmed"] != 1 {
		t.Errorf("predicted %d, cached %d, %+v", got, cached, ix.Stats().Predictions)
	}

	// Their store may precede that of their parent, and the Routed.
	said(t, ix, "a", 1, p.Stored(0, 2), p.Stored(3, 8))
	sends(t, ix, p.Tokens, 1)
	said(t, ix, "a", 1, p.Stored(2, 3))
	if got, cached := predicted(t, ix, p.Tokens, 1); got != 112 || cached != 112 || ix.Stats().Predictions.Ended["confirmed"] != 2 {
		t.Errorf("predicted %d, cached %d, %+v", got, cached, ix.Stats().Predictions)
	}
}

func TestRoutedErrors(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	template, err := chat.New(turns+"{{ tools }}", map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	template.Exclude("excluded", "tools")
	ix, _ := sending(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: template}))
	foreign, _ := sending(t)
	for _, ix := range []*kvindex.Indexer{ix, foreign} {
		said(t, ix, "a", 0, p.Stored(0, 2))
		said(t, ix, "excluded", 0, p.Stored(0, 2))
		said(t, ix, "silent", 0)
	}
	body := kvindex.Request{Body: []byte(`{"model":"m","messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function","function":{"name":"tide"}}]}`)}
	tokens := kvindex.Request{Model: "m", Tokens: p.Tokens}
	named := func(pods ...string) kvindex.Request {
		return kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: append([]string{}, pods...)}
	}
	ok := kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{"a"}}
	for _, c := range []struct {
		name string
		q    kvindex.Request
		do   func(a *kvindex.Answer)
		pod  string
		rank int
		want error
	}{
		{"all pods", tokens, nil, "a", 0, nil},
		{"the rank is not known", tokens, nil, "a", 7, nil},
		{"not asked about", ok, nil, "b", 0, kvindex.ErrNotInRequest},
		{"nobody was asked about", named(), nil, "a", 0, kvindex.ErrNotInRequest},
		{"a negative rank", ok, nil, "a", -1, kvindex.ErrNotInRequest},
		{"a huge rank", ok, nil, "a", math.MaxInt, kvindex.ErrNotInRequest},
		{"a rank that no event can name", ok, nil, "a", 1 << 16, kvindex.ErrNotInRequest},
		{"the last rank", ok, nil, "a", 1<<16 - 1, nil},
		{"no score", ok, func(a *kvindex.Answer) { *a = kvindex.Answer{} }, "a", 0, kvindex.ErrNotInRequest},
		{"another Indexer's score", ok, func(a *kvindex.Answer) { _ = foreign.ScoreRequest(ctx, &ok, a) }, "a", 0, kvindex.ErrNotInRequest},
		{"never heard", named("a", "never"), nil, "never", 0, nil},
		{"heard, and nothing stored", named("a", "silent"), nil, "silent", 0, nil},
		{"routed", ok, func(a *kvindex.Answer) { _, _ = ix.Routed(a, "a", 0) }, "a", 0, kvindex.ErrAnswerUsed},
		{"a copy was routed", ok, func(a *kvindex.Answer) { b := *a; _, _ = ix.Routed(&b, "a", 0) }, "a", 0, kvindex.ErrAnswerUsed},
		{"scored again, and a copy is routed", ok, func(a *kvindex.Answer) { b := *a; _ = ix.ScoreRequest(ctx, &ok, &b) }, "a", 0, kvindex.ErrAnswerUsed},
		{"a score that failed", ok, func(a *kvindex.Answer) { _ = ix.ScoreRequest(ctx, &kvindex.Request{Model: "m"}, a) }, "a", 0, kvindex.ErrAnswerUsed},
		{"a refusal uses nothing up", ok, func(a *kvindex.Answer) { _, _ = ix.Routed(a, "b", 0) }, "a", 0, nil},
		{"scored again", ok, func(a *kvindex.Answer) { _, _ = ix.Routed(a, "a", 0); _ = ix.ScoreRequest(ctx, &ok, a) }, "a", 0, nil},
		{"Top leaves the pod out", kvindex.Request{Model: "m", Tokens: p.Tokens, Top: 1, Pods: []string{"a", "excluded", "x", "y"}}, nil, "excluded", 0, nil},
		{"the chat is not scorable", body, nil, "excluded", 0, chat.ErrNotScorable},
		{"the chat is scorable", body, nil, "a", 0, nil},
	} {
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &c.q, &a); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if c.do != nil {
			c.do(&a)
		}
		before := ix.Stats()
		ticket, err := ix.Routed(&a, c.pod, c.rank)
		if !errors.Is(err, c.want) || c.want == nil && err != nil || (ticket == kvindex.Ticket{}) != (err != nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if after := ix.Stats(); err != nil && (!samePredictions(after.Predictions, before.Predictions) || !sameTickets(after.Tickets, before.Tickets)) {
			t.Errorf("%s: %+v, then %+v", c.name, before.Predictions, after.Predictions)
		}
	}
	if _, err := ix.Routed(nil, "a", 0); !errors.Is(err, kvindex.ErrNotInRequest) {
		t.Errorf("no answer: %v", err)
	}
	a := answerTo(t, ix, p.Tokens)
	ix.Close()
	if _, err := ix.Routed(a, "a", 0); !errors.Is(err, kvindex.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestPredictionEndsWithItsLender: a prompt sent to a pod that has stored nothing is lost with the
// last pod of its block size.
func TestPredictionEndsWithItsLender(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix, _ := sending(t)
	said(t, ix, "b", 0, p.Stored(0, 2))
	var a kvindex.Answer
	must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{"a"}}, &a))
	if _, err := ix.Routed(&a, "a", 0); err != nil {
		t.Fatal(err)
	}
	must(t, ix.RemovePod("b"))
	if s := ix.Stats().Predictions; !samePredictions(s, stats.Predictions{Routed: 1, Ended: map[string]uint64{"lost": 1}}) {
		t.Errorf("%+v", s)
	}
}

// TestRoutedWhileThePodReports: the prompt counts for a pod whose first message comes during Routed.
func TestRoutedWhileThePodReports(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	m := &alteredIndex{Memory: memory(t)}
	ix, _ := sending(t, kvindex.WithIndex(m))
	said(t, ix, "b", 0, p.Stored(0, 2))
	var a kvindex.Answer
	must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{"a"}}, &a))
	m.match = func(ctx context.Context, q *index.Query, dst *index.Matches) error {
		m.match = nil
		ingest(t, ix, "a", p.Stored(0, 1))
		return m.Match(ctx, q, dst)
	}
	_, err := ix.Routed(&a, "a", 0)
	if got, cached := predicted(t, ix, p.Tokens, 0); err != nil || got != 112 || cached != 16 {
		t.Errorf("predicted %d, cached %d, %v", got, cached, err)
	}
	if _, err := ix.Routed(&a, "a", 0); !errors.Is(err, kvindex.ErrAnswerUsed) {
		t.Errorf("the second Routed: %v", err)
	}
}

// Invalid tickets change nothing, and are counted.
func TestTicketsThatAreNotGood(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix, clock := sending(t)
	foreign, _ := sending(t)
	for _, ix := range []*kvindex.Indexer{ix, foreign} {
		said(t, ix, "a", 0, p.Stored(0, 2))
	}
	sends(t, ix, p.Tokens, 0)
	other := sends(t, foreign, p.Tokens, 0) // as old as the last one
	used, gone := sends(t, ix, p.Tokens, 0), sends(t, ix, p.Tokens, 0)
	ix.Observe(used, kvindex.Usage{PromptTokens: 128, CachedTokens: 32})
	ix.Abandon(gone)
	sends(t, ix, p.Tokens, 0) // takes the place of one of these
	before := ix.Stats()
	for i, c := range []kvindex.Ticket{{}, used, gone, other} {
		ix.Observe(c, kvindex.Usage{PromptTokens: 1, CachedTokens: 1})
		ix.Abandon(c)
		if got := ix.Stats(); got.Tickets.Unknown != uint64(2*i+2) || !samePredictions(got.Predictions, before.Predictions) || !reflect.DeepEqual(got.Observed, before.Observed) {
			t.Errorf("ticket %d: %+v %+v", i, got.Predictions, got.Tickets)
		}
	}
	if s := foreign.Stats(); !sameTickets(s.Tickets, stats.Tickets{Live: 1}) {
		t.Errorf("the other's: %+v", s.Tickets)
	}
	old := sends(t, ix, p.Tokens, 0)
	clock.after(kvindex.DefaultTicketAge - 1)
	if s := ix.Stats().Tickets; s.Live != 3 || s.Ended["aged"] != 0 {
		t.Errorf("before their age: %+v", s)
	}
	clock.after(1)
	ix.Observe(old, kvindex.Usage{})
	if s := ix.Stats().Tickets; !sameTickets(s, stats.Tickets{Ended: map[string]uint64{"observed": 1, "abandoned": 1, "aged": 3}, Unknown: 9}) {
		t.Errorf("at their age: %+v", s)
	}
}

func TestWithPredictionsErrors(t *testing.T) {
	ok := kvindex.WithPredictions(kvindex.PredictionConfig{})
	for want, c := range map[string][]kvindex.Option{
		"TTL is -1ns":                          {kvindex.WithPredictions(kvindex.PredictionConfig{TTL: -1})},
		"TicketAge is -1ns":                    {kvindex.WithPredictions(kvindex.PredictionConfig{TicketAge: -1})},
		"must be at least the TTL of 3s":       {kvindex.WithPredictions(kvindex.PredictionConfig{TTL: 3 * time.Second, TicketAge: time.Second})},
		"must be at least the TTL of 2s":       {kvindex.WithPredictions(kvindex.PredictionConfig{TicketAge: time.Second})},
		fmt.Sprint(kvindex.MinPredictionBytes): {kvindex.WithPredictions(kvindex.PredictionConfig{Bytes: kvindex.MinPredictionBytes - 1})},
		"Bytes is -5":                          {kvindex.WithPredictions(kvindex.PredictionConfig{Bytes: -5})},
		"given twice":                          {ok, ok},
	} {
		if ix, err := kvindex.New(c...); err == nil || ix != nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "WithPredictions") {
			t.Errorf("%s: %v", want, err)
		}
	}
	// A TTL above the default age holds for tickets too.
	p, c := fakeengine.NewPrompt(1, 16, 8), new(handClock)
	ix := open(t, kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Hour, Now: c.now}))
	said(t, ix, "a", 0, p.Stored(0, 2))
	sends(t, ix, p.Tokens, 0)
	c.after(time.Hour - 1)
	if s := ix.Stats(); s.Predictions.Live != 1 || s.Tickets.Live != 1 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
}

// TestPredictionsOfOtherBlocks: an engine that returns with another block size has lost the prompts
// sent before, even if no event reports it.
func TestPredictionsOfOtherBlocks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 48, 4)
	coarse := fakeengine.Prompt{Tokens: p.Tokens, Size: 24, Hash: 5 << 32} // of 8 tokens a unit
	ix, _ := sending(t)
	said(t, ix, "a", 0, p.Stored(0, 1))
	sends(t, ix, p.Tokens, 1) // in blocks of rank 0
	said(t, ix, "a", 1, coarse.Stored(0, 1))
	a := answerTo(t, ix, p.Tokens[:100])
	if _, err := ix.Routed(a, "a", 1); err != nil {
		t.Fatal(err)
	}
	if s := ix.Stats().Predictions; !samePredictions(s, stats.Predictions{Routed: 2, Live: 1, Ended: map[string]uint64{"lost": 1}}) {
		t.Errorf("%+v", s)
	}
	if got, cached := predicted(t, ix, p.Tokens, 1); got != 96 || cached != 24 {
		t.Errorf("predicted %d, cached %d", got, cached)
	}
	said(t, ix, "a", 1, coarse.Stored(1, 4))
	if s := ix.Stats().Predictions; !samePredictions(s, stats.Predictions{Routed: 2, Ended: map[string]uint64{"confirmed": 1, "lost": 1}}) {
		t.Errorf("%+v", s)
	}
}

// TestPredictionsOfGroups: a prompt of which one group, or parts of a block, hold the most ends no
// prediction of another prompt.
func TestPredictionsOfGroups(t *testing.T) {
	p, other := fakeengine.NewPrompt(1, 64, 8), fakeengine.NewPrompt(2, 64, 8)
	parts := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 5 << 32}
	in := func(group int, kind string, s *fakeengine.Stored) *fakeengine.Stored {
		s.Group, s.Kind, s.Window = group, kind, 256-128*group
		return s
	}
	gone := p.Removed(0)
	for _, c := range []struct {
		name   string
		events []fakeengine.Event
		prompt []uint32
	}{
		{"a window group that holds more than the first", []fakeengine.Event{in(0, "sliding_window", p.Stored(0, 6)), gone, in(1, "sliding_window", p.Stored(0, 6))}, p.Tokens},
		{"parts of a block alone", []fakeengine.Event{in(0, "full_attention", p.Stored(0, 1)), gone, in(0, "", parts.Stored(0, 2)), in(1, "mamba", p.Stored(0, 1)), in(1, "", parts.Stored(0, 2))}, p.Tokens[:100]},
		{"a part after a block", []fakeengine.Event{in(0, "full_attention", p.Stored(0, 1)), in(0, "", parts.Stored(4, 6)), in(1, "mamba", p.Stored(0, 1)), in(1, "", parts.Stored(4, 6))}, p.Tokens},
	} {
		ix, _ := sending(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Copies: kvindex.CopiesExact, Grain: 16}))
		ingest(t, ix, "a", c.events...)
		sends(t, ix, other.Tokens, 0)
		want, _ := predicted(t, ix, other.Tokens, 0)
		sends(t, ix, c.prompt, 0)
		if got, _ := predicted(t, ix, other.Tokens, 0); got != want || want == 0 {
			t.Errorf("%s: %d tokens are predicted, want %d", c.name, got, want)
		}
		if s := ix.Stats().Predictions; !samePredictions(s, stats.Predictions{Routed: 2, Live: 2}) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// TestManySiblings: one prompt is sent 70,000 times before its blocks are stored.
func TestManySiblings(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	ix, _ := sending(t)
	said(t, ix, "a", 0, p.Stored(0, 1))
	n := 1 << 16
	if raced {
		n = 1000
	}
	for range n {
		sends(t, ix, p.Tokens, 0)
	}
	said(t, ix, "a", 0, p.Stored(1, 2))
	if s := ix.Stats().Predictions; s.Ended["confirmed"] != uint64(n) {
		t.Errorf("%+v", s)
	}
}

// TestAnswerJSON: the data for Routed is not in JSON, and comparisons of fields do not see it.
func TestAnswerJSON(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	ix, _ := sending(t)
	said(t, ix, "a", 0, p.Stored(0, 1))
	a := answerTo(t, ix, p.Tokens)
	before, err := json.Marshal(a)
	must(t, err)
	var fields map[string]any
	if err := json.Unmarshal(before, &fields); err != nil || len(fields) != 2 || fields["PromptTokens"] == nil || fields["Pods"] == nil {
		t.Errorf("%s, %v", before, err)
	}
	if _, err := ix.Routed(a, "a", 0); err != nil {
		t.Fatal(err)
	}
	if after, err := json.Marshal(a); err != nil || string(after) != string(before) {
		t.Errorf("%s, then %s, %v", before, after, err)
	}
	copied := kvindex.Answer{PromptTokens: a.PromptTokens, Pods: a.Pods}
	if s, err := json.Marshal(copied); err != nil || string(s) != string(before) {
		t.Errorf("%s, %v", s, err)
	}
}

// sums checks that the counters of routed tokens add up.
func sums(t testing.TB, s *stats.Stats) {
	t.Helper()
	p, k := s.Predictions, s.Tickets
	if p.Routed != p.Live+counted(p.Ended) || p.Routed != k.Live+counted(k.Ended) || p.Live > k.Live {
		t.Errorf("%+v %+v", p, k)
	}
}

func samePredictions(a, b stats.Predictions) bool {
	return a.Routed == b.Routed && a.Live == b.Live && sameWords(a.Ended, b.Ended)
}

func sameTickets(a, b stats.Tickets) bool {
	return a.Live == b.Live && a.Unknown == b.Unknown && sameWords(a.Ended, b.Ended)
}

// sameWords reports whether each word counts the same; 0 if it is missing.
func sameWords(a, b map[string]uint64) bool {
	for _, words := range []map[string]uint64{a, b} {
		for word := range words {
			if a[word] != b[word] {
				return false
			}
		}
	}
	return true
}

// TestPredictionsTogether: the sums hold at every moment of concurrent calls.
func TestPredictionsTogether(t *testing.T) {
	rounds := choose(400, 3000)
	clock := new(handClock)
	ix := open(t, kvindex.WithPredictions(kvindex.PredictionConfig{Bytes: kvindex.MinPredictionBytes, Now: clock.now}))
	var prompts []fakeengine.Prompt
	for n := range uint64(6) {
		prompts = append(prompts, fakeengine.NewPrompt(n/2, 16, 20+int(n%2)*20))
	}
	pods := []string{"a", "b", "c"}
	for _, pod := range pods {
		said(t, ix, pod, 0, prompts[0].Stored(0, 2))
	}
	var mu sync.Mutex
	var tickets []kvindex.Ticket
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 8))
			var a kvindex.Answer
			for range rounds {
				p, pod, rank := prompts[r.IntN(len(prompts))], pods[r.IntN(3)], r.IntN(3)
				switch op := r.IntN(20); {
				case op < 8:
					q := kvindex.Request{Model: "m", Tokens: p.Tokens, Ranks: op%2 == 0}
					if op%4 > 1 {
						q.Pods = pods // some of them removed
					}
					if err := ix.ScoreRequest(ctx, &q, &a); err != nil {
						t.Error(err)
						return
					}
					for _, s := range a.Pods {
						if s.PredictedTokens < s.CachedTokens || s.PredictedTokens >= len(p.Tokens) {
							t.Errorf("%+v", s)
						}
					}
					ticket, err := ix.Routed(&a, pod, rank)
					if err != nil && !errors.Is(err, kvindex.ErrNotInRequest) && !errors.Is(err, kvindex.ErrBlockSize) {
						t.Error(err)
					}
					mu.Lock()
					tickets = append(tickets, ticket)
					mu.Unlock()
				case op < 12:
					mu.Lock()
					ticket := kvindex.Ticket{}
					if n := len(tickets); n > 0 {
						ticket = tickets[r.IntN(n)] // maybe a used one
					}
					mu.Unlock()
					if op < 10 {
						ix.Observe(ticket, kvindex.Usage{PromptTokens: len(p.Tokens), CachedTokens: 16})
					} else {
						ix.Abandon(ticket)
					}
				case op < 17:
					evs := []fakeengine.Event{p.Stored(0, r.IntN(len(p.Tokens)/16)+1)}
					switch op {
					case 12:
						evs = append(evs, p.Removed(0, 3))
					case 13:
						evs = []fakeengine.Event{fakeengine.Cleared{}}
					}
					said(t, ix, pod, rank, evs...)
				case op == 17:
					clock.after(100 * time.Millisecond)
				case op == 18 && r.IntN(10) == 0:
					if err := ix.RemovePod(pod); err != nil {
						t.Error(err)
					}
				default:
					s := ix.Stats()
					sums(t, &s)
				}
			}
		})
	}
	wg.Wait()
	s := ix.Stats()
	sums(t, &s)
	t.Logf("%+v %+v", s.Predictions, s.Tickets)
	for _, pod := range pods {
		must(t, ix.RemovePod(pod))
	}
	if s := ix.Stats(); s.Predictions.Live != 0 {
		t.Errorf("%+v of pods that are gone", s.Predictions)
	}
	clock.after(kvindex.DefaultTicketAge)
	if s := ix.Stats(); s.Tickets.Live != 0 || s.Predictions.Routed == 0 {
		t.Errorf("%+v", s.Tickets)
	}
}

// FuzzPredictions: false reports about pod a change no figure of pod b and break no sum.
func FuzzPredictions(f *testing.F) {
	for _, seed := range []string{"", "rrro", "rrxRrsrsooaazzhfqtTrsREko", "rRRRhhhhqqqq", "rsssstttttrroooo", strings.Repeat("rqRSzfT", 30)} {
		f.Add([]byte(seed))
	}
	p, long := fakeengine.NewPrompt(1, 16, 8), fakeengine.NewPrompt(1, 16, 40)
	f.Fuzz(func(t *testing.T, ops []byte) {
		ix, clock := sending(t)
		foreign, _ := sending(t)
		for _, ix := range []*kvindex.Indexer{ix, foreign} {
			said(t, ix, "a", 0, p.Stored(0, 2))
			said(t, ix, "b", 0, p.Stored(0, 3))
		}
		sentB := answerTo(t, ix, p.Tokens[:100])
		if _, err := ix.Routed(sentB, "b", 0); err != nil {
			t.Fatal(err)
		}
		tickets := []kvindex.Ticket{{}, sends(t, foreign, p.Tokens, 0)}
		lies := []int{-1, 0, 1, 127, 128, 1 << 20, math.MaxInt32, math.MaxInt, math.MinInt}
		a := new(kvindex.Answer)
		waited := time.Duration(0)
		for i, op := range ops[:min(len(ops), 300)] {
			lie, ticket := lies[(i+int(op))%len(lies)], tickets[(i*7+int(op))%len(tickets)]
			switch op % 16 {
			case 0, 1, 2:
				a = answerTo(t, ix, [][]uint32{p.Tokens, long.Tokens, p.Tokens[:17], p.Tokens[:1]}[i%4])
				fallthrough
			case 3: // a used answer
				if ticket, err := ix.Routed(a, "a", max(lie%5, 0)); err == nil {
					tickets = append(tickets, ticket)
				}
			case 4:
				_, _ = ix.Routed(a, "a", lie)
				_, _ = ix.Routed(a, "\xff", 0)
				_, _ = ix.Routed(new(kvindex.Answer), "a", 0)
			case 5, 6, 7:
				ix.Observe(ticket, kvindex.Usage{PromptTokens: lie, CachedTokens: lies[i%len(lies)]})
			case 8:
				ix.Abandon(ticket)
			case 9:
				foreign.Observe(ticket, kvindex.Usage{PromptTokens: lie, CachedTokens: lie})
				foreign.Abandon(ticket)
			case 10:
				_ = ix.RemovePod("a")
			case 11:
				said(t, ix, "a", i%3, p.Stored(0, 1+i%8))
			case 12:
				said(t, ix, "a", i%3, fakeengine.Cleared{})
			case 13:
				_ = ix.MarkLost("a", lie)
				_ = ix.Sink().RemoveStream("a", "m", "")
			case 14:
				if waited < kvindex.DefaultPredictionTTL/2 {
					waited += kvindex.DefaultPredictionTTL / 8
					clock.after(kvindex.DefaultPredictionTTL / 8)
				}
			case 15:
				_ = ix.Sink().StreamNote("a", "m", "s", events.NoteOpened)
			}
			s := ix.Stats()
			sums(t, &s)
			b := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"b"}})[0]
			want := kvindex.PodScore{Pod: "b", PredictedTokens: 96, Score: 96, CachedTokens: 48, MatchedBlocks: 3, BlockTokens: 16, Tiers: [index.NumTiers]int{3}, State: kvindex.StateLive}
			if b != want {
				t.Fatalf("operation %d: %+v, want %+v", i, b, want)
			}
			if s.Predictions.Live == 0 || t.Failed() {
				t.Fatalf("operation %d: %+v", i, s.Predictions)
			}
		}
	})
}

// TestPredictionBytes: predictions and tickets stay within their bound, and the dropped ones add
// up.
func TestPredictionBytes(t *testing.T) {
	n := choose(5000, 100_000)
	clock := new(handClock)
	ix := open(t, kvindex.WithPredictions(kvindex.PredictionConfig{Bytes: kvindex.MinPredictionBytes, Now: clock.now}))
	said(t, ix, "a", 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))
	r := rand.New(rand.NewPCG(5, 5))
	tokens := make([]uint32, 8192)
	var a kvindex.Answer
	q := kvindex.Request{Model: "m"}
	send := func() {
		for i := range 4 { // often equal to the one before up to some block
			tokens[[4]int{0, 100, 4000, 8000}[i]] = r.Uint32() % 4
		}
		q.Tokens = tokens[:64+r.IntN(8100)]
		must(t, ix.ScoreRequest(ctx, &q, &a))
		if _, err := ix.Routed(&a, "a", r.IntN(4)); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	send()
	began := heap()
	most := int64(0)
	for i := range n {
		send()
		if i%(n/20) == 0 {
			most = max(most, heap()-began)
			s := ix.Stats()
			sums(t, &s)
		}
	}
	s := ix.Stats()
	sums(t, &s)
	t.Logf("%d bytes at most, of %d; %+v %+v", most, kvindex.MinPredictionBytes, s.Predictions, s.Tickets)
	const slack = 64 << 10
	if !raced && most > kvindex.MinPredictionBytes+slack {
		t.Errorf("%d bytes, the bound is %d", most, kvindex.MinPredictionBytes)
	}
	if s.Predictions.Ended["pushed_out"] == 0 || s.Predictions.Live+s.Predictions.Ended["pushed_out"] != s.Predictions.Routed || s.Tickets.Live+s.Tickets.Ended["aged"] != s.Predictions.Routed || s.Predictions.Live == 0 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
	// The newest is kept, the oldest are not.
	if got, _ := predicted(t, ix, q.Tokens, 0); got < 0 {
		t.Errorf("predicted %d", got)
	}

	// A prompt of more than a quarter of the bound is dropped at once.
	long := make([]uint32, 16*(kvindex.MinPredictionBytes/4/8+1))
	before, _ := predicted(t, ix, long, 0)
	ticket := sends(t, ix, long, 0)
	after := ix.Stats()
	if after.Predictions.Ended["pushed_out"] != s.Predictions.Ended["pushed_out"]+1 || after.Predictions.Live != s.Predictions.Live {
		t.Errorf("%+v, then %+v", s.Predictions, after.Predictions)
	}
	if got, _ := predicted(t, ix, long, 0); got != before {
		t.Errorf("predicted %d, before %d", got, before)
	}
	ix.Observe(ticket, kvindex.Usage{PromptTokens: len(long), CachedTokens: 0})
	if last := ix.Stats(); last.Tickets.Ended["observed"] != 1 || !samePredictions(last.Predictions, after.Predictions) {
		t.Errorf("%+v %+v", last.Predictions, last.Tickets)
	}

	// Tickets without a prediction are bounded too: a prompt without a whole block has none.
	for range 10_000 {
		sends(t, ix, tokens[:10], 0)
	}
	s = ix.Stats()
	sums(t, &s)
	if s.Tickets.Live > kvindex.MinPredictionBytes/2/64 || s.Tickets.Live < 1000 || s.Predictions.Ended["confirmed"] != 10_000 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
	clock.after(kvindex.DefaultTicketAge)
	if s := ix.Stats(); s.Predictions.Live != 0 || s.Tickets.Live != 0 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
}

// TestClearOfTheGPU: predictions end by a clear of all tiers, and by one of the GPU.
func TestClearOfTheGPU(t *testing.T) {
	for _, clear := range [][]byte{fakeengine.Payload(2, 0, fakeengine.Cleared{}), cleared("GPU"), cleared("CPU")} {
		ix := open(t)
		p, q := fakeengine.NewPrompt(1, 16, 4), fakeengine.NewPrompt(2, 16, 4)
		must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 4))))
		r := kvindex.Request{Model: "m", Tokens: append(q.Tokens, 1)}
		var a kvindex.Answer
		must(t, ix.ScoreRequest(t.Context(), &r, &a))
		if _, err := ix.Routed(&a, "a", 0); err != nil {
			t.Fatal(err)
		}
		must(t, ix.Ingest("a", "m", clear))
		want := 0
		if bytes.Contains(clear, []byte("CPU")) {
			want = 64
		}
		if s := score(t, ix, r)[0]; s.PredictedTokens != want {
			t.Errorf("behind %q: %d tokens are predicted, want %d", clear, s.PredictedTokens, want)
		}
	}
}
