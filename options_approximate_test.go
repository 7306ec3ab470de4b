package kvindex_test

import (
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

// A pod without events is followed by what is sent to it, from when it is named first.
func TestApproximate(t *testing.T) {
	now := time.Unix(1000, 0)
	ix := open(t, kvindex.WithPredictions(kvindex.PredictionConfig{Now: func() time.Time { return now }}),
		kvindex.WithProfile(func(pod, _ string) (p kvindex.Profile) {
			if pod != "exact" {
				p.Approximate = &kvindex.Approximate{BlockTokens: 16, Blocks: 8, TTL: time.Minute}
			}
			return p
		}))
	ask := func(from, n int) *kvindex.Answer {
		t.Helper()
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = uint32(from + i)
		}
		var a kvindex.Answer
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: tokens, Pods: []string{"a", "b", "exact"}}, &a))
		return &a
	}
	of := func(a *kvindex.Answer, pod string) (s kvindex.PodScore) {
		for _, s = range a.Pods {
			if s.Pod == pod {
				break
			}
		}
		return s
	}
	want := func(what string, a *kvindex.Answer, pod string, predicted int, state kvindex.State) {
		t.Helper()
		s := of(a, pod)
		if s.PredictedTokens != predicted || s.CachedTokens != 0 || s.State != state {
			t.Errorf("%s: %+v, want %d predicted in state %v", what, s, predicted, state)
		}
	}
	send := func(from, n int) kvindex.Ticket {
		t.Helper()
		ticket, err := ix.Routed(ask(from, n), "a", 0)
		must(t, err)
		return ticket
	}
	want("nothing was sent", ask(0, 100), "a", 0, kvindex.StateApproximate)
	want("no approximation", ask(0, 100), "exact", 0, kvindex.StateUnknown)
	first := send(0, 100)
	want("sent", ask(0, 100), "a", 96, kvindex.StateApproximate)
	want("to another", ask(0, 100), "b", 0, kvindex.StateApproximate)
	now = now.Add(10 * time.Second)
	want("behind the TTL of predictions", ask(0, 100), "a", 96, kvindex.StateApproximate)
	ix.Observe(first, kvindex.Usage{PromptTokens: 100, CachedTokens: 0})
	second := send(1000, 64)
	now = now.Add(10 * time.Second)
	want("the end of the first made room", ask(0, 100), "a", 64, kvindex.StateApproximate)
	ix.Abandon(second)
	want("taken back", ask(1000, 64), "a", 0, kvindex.StateApproximate)
	third := send(0, 64)
	ix.Observe(third, kvindex.Usage{PromptTokens: 64, CachedTokens: 48})
	now = now.Add(2 * time.Minute)
	want("aged", ask(0, 100), "a", 0, kvindex.StateApproximate)
	send(0, 64)
	if s := ix.Stats(); s.States["approximate"] != 2 || s.Pods != 2 || s.Predictions.Routed != 4 || len(s.Observed) != 1 {
		t.Errorf("%+v", s)
	}
	b := &events.Batch{Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16}}}
	now = now.Add(10 * time.Second)
	must(t, ix.ApplyBatch("a", "m", b))
	want("an event came", ask(0, 64), "a", 0, kvindex.StateLive)
}
