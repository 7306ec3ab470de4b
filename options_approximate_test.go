package kvindex_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// A pod without events is scored by the requests routed to it, from its first name on.
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

// approximateFleet has pods without events, except those with another Profile. All names are of
// model "m".
type approximateFleet struct {
	*kvindex.Indexer
	t     *testing.T
	now   time.Time
	asked map[string]int // calls of WithProfile's function, by pod
}

func openApproximate(t *testing.T, profile func(pod, model string) kvindex.Profile, opts ...kvindex.Option) *approximateFleet {
	t.Helper()
	f := &approximateFleet{t: t, now: time.Unix(1000, 0), asked: make(map[string]int)}
	f.Indexer = open(t, append(opts, f.options(profile)...)...)
	return f
}

func (f *approximateFleet) options(profile func(pod, model string) kvindex.Profile) []kvindex.Option {
	return []kvindex.Option{
		kvindex.WithPredictions(kvindex.PredictionConfig{Now: func() time.Time { return f.now }}),
		kvindex.WithProfile(func(pod, model string) kvindex.Profile {
			f.asked[pod]++
			return profile(pod, model)
		}),
	}
}

// roomy is the Profile of a pod without events and with room for 100 blocks.
func roomy(string, string) kvindex.Profile {
	return kvindex.Profile{Approximate: &kvindex.Approximate{BlockTokens: 16, Blocks: 100}}
}

func (f *approximateFleet) ask(r kvindex.Request) *kvindex.Answer {
	f.t.Helper()
	if r.Model == "" && r.Candidates == nil {
		r.Model = "m"
	}
	a := new(kvindex.Answer)
	if err := f.ScoreRequest(ctx, &r, a); err != nil {
		f.t.Fatal(err)
	}
	return a
}

// send routes a request to a pod and lets predictions expire.
func (f *approximateFleet) send(r kvindex.Request, pod string, rank int) kvindex.Ticket {
	f.t.Helper()
	r.Pods = []string{pod}
	ticket, err := f.Routed(f.ask(r), pod, rank)
	if err != nil {
		f.t.Fatal(err)
	}
	f.now = f.now.Add(10 * time.Second)
	return ticket
}

// predicted returns the tokens that a pod is predicted to reuse of a request.
func (f *approximateFleet) predicted(r kvindex.Request, pod string) int {
	f.t.Helper()
	r.Pods = []string{pod}
	s := f.ask(r).Pods[0]
	if s.CachedTokens != 0 {
		f.t.Fatalf("proven without an event: %+v", s)
	}
	return s.PredictedTokens
}

var believed = fakeengine.NewPrompt(1, 16, 6)

// A routed request counts for its own model, adapter, salt and media alone.
func TestApproximateScopes(t *testing.T) {
	image := func(name string) []kvindex.Media {
		return []kvindex.Media{{Hash: name, Offset: 20, Length: 8}}
	}
	for _, form := range []kvindex.MediaForm{kvindex.MediaOffsets, kvindex.MediaBare, kvindex.MediaPad} {
		f := openApproximate(t, func(pod, model string) kvindex.Profile {
			p := roomy(pod, model)
			p.Media = form
			return p
		})
		request := kvindex.Request{Tokens: believed.Tokens, Adapter: "a", Salt: "s", Media: image("7")}
		f.send(request, "pod", 0)
		other := func(change func(*kvindex.Request)) kvindex.Request {
			r := request
			change(&r)
			return r
		}
		for _, c := range []struct {
			name string
			r    kvindex.Request
			want int
		}{
			{"the same", request, 80},
			{"another adapter", other(func(r *kvindex.Request) { r.Adapter = "b" }), 0},
			{"no adapter", other(func(r *kvindex.Request) { r.Adapter = "" }), 0},
			{"another salt", other(func(r *kvindex.Request) { r.Salt = "" }), 0},
			{"another image", other(func(r *kvindex.Request) { r.Media = image("8") }), 16},
			{"another model", other(func(r *kvindex.Request) { r.Model = "n" }), 0},
		} {
			if got := f.predicted(c.r, "pod"); got != c.want {
				t.Errorf("form %v: %s: %d tokens, want %d", form, c.name, got, c.want)
			}
		}
	}
}

// Each rank counts its own routed requests.
func TestApproximateRanks(t *testing.T) {
	f := openApproximate(t, roomy)
	f.send(kvindex.Request{Tokens: believed.Tokens[:50]}, "pod", 3)
	f.send(kvindex.Request{Tokens: believed.Tokens}, "pod", 1)
	f.send(kvindex.Request{Tokens: believed.Tokens[:20]}, "pod", 1<<16-1)
	a := f.ask(kvindex.Request{Tokens: believed.Tokens, Pods: []string{"pod"}, Ranks: true})
	got := make(map[int]int)
	for _, s := range a.Pods {
		got[s.Rank] = s.PredictedTokens
		if s.State != kvindex.StateApproximate {
			t.Errorf("%+v", s)
		}
	}
	if want := map[int]int{1: 80, 3: 48, 1<<16 - 1: 16}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("ranks %v, want %v", got, want)
	}
	if _, err := f.Routed(a, "pod", -1); !errors.Is(err, kvindex.ErrNotInRequest) {
		t.Errorf("rank -1: %v", err)
	}
	if s := f.ask(kvindex.Request{Tokens: believed.Tokens, Pods: []string{"pod"}}).Pods[0]; s.Rank != 1 || s.PredictedTokens != 80 {
		t.Errorf("without Ranks: %+v", s)
	}
}

// Observe corrects the rank of its request, and no other.
func TestApproximateObserve(t *testing.T) {
	f := openApproximate(t, roomy)
	oldest := fakeengine.NewPrompt(2, 16, 4).Tokens
	for _, pod := range []string{"a", "b"} {
		for rank := range 2 {
			f.send(kvindex.Request{Tokens: oldest}, pod, rank)
			f.send(kvindex.Request{Tokens: believed.Tokens}, pod, rank)
		}
	}
	older := f.send(kvindex.Request{Tokens: make([]uint32, 64)}, "a", 0)
	ticket := f.send(kvindex.Request{Tokens: believed.Tokens}, "a", 0)
	f.Observe(ticket, kvindex.Usage{PromptTokens: 96, CachedTokens: 16})
	// All blocks used before the second one are lost. The request itself was computed since.
	for _, c := range []struct {
		pod    string
		rank   int
		tokens []uint32
		want   int
	}{
		{"a", 0, oldest, 0}, {"a", 1, oldest, 48}, {"b", 0, oldest, 48}, {"b", 1, oldest, 48},
		{"a", 0, believed.Tokens, 80}, {"a", 1, believed.Tokens, 80}, {"b", 0, believed.Tokens, 80}, {"b", 1, believed.Tokens, 80},
	} {
		a := f.ask(kvindex.Request{Tokens: c.tokens, Pods: []string{c.pod}, Ranks: true})
		got := 0
		for _, s := range a.Pods {
			if s.Rank == c.rank {
				got = s.PredictedTokens
			}
		}
		if got != c.want {
			t.Errorf("pod %s, rank %d: %d, want %d", c.pod, c.rank, got, c.want)
		}
	}
	// Impossible numbers and invalid tickets change nothing.
	must(t, f.RemovePod("b"))
	f.send(kvindex.Request{Tokens: oldest}, "b", 0)
	f.send(kvindex.Request{Tokens: believed.Tokens}, "b", 0)
	for _, u := range []kvindex.Usage{{-1, -1}, {-1, 1 << 30}, {96, math.MaxInt}, {math.MaxInt, math.MaxInt - 1}, {math.MinInt, math.MinInt}} {
		f.Observe(f.send(kvindex.Request{Tokens: believed.Tokens}, "b", 0), u)
	}
	f.Observe(ticket, kvindex.Usage{PromptTokens: 96})
	f.Observe(kvindex.Ticket{}, kvindex.Usage{PromptTokens: 96})
	must(t, f.RemovePod("a"))
	f.Observe(older, kvindex.Usage{PromptTokens: 64})
	if got := f.predicted(kvindex.Request{Tokens: oldest}, "b"); got != 48 {
		t.Errorf("%d tokens of pod b", got)
	}
	if got := f.predicted(kvindex.Request{Tokens: believed.Tokens}, "a"); got != 0 {
		t.Errorf("%d tokens of a pod that was removed", got)
	}
	if s := f.Stats(); s.Tickets.Unknown != 2 || s.Tickets.Ended["observed"] != 7 {
		t.Errorf("%+v", s.Tickets)
	}
}

// A pod is approximate for one model and exact for another. Its first event drops the beliefs; so
// does a report, and one event of one rank for all ranks.
func TestApproximateBecomesExact(t *testing.T) {
	stored := believed.Stored(0, 2)
	for _, c := range []struct {
		name string
		tell func(f *approximateFleet) error
		want kvindex.State
	}{
		{"ApplyBatch", func(f *approximateFleet) error {
			return f.ApplyBatch("pod", "m", &events.Batch{Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1, 2}, Tokens: believed.Tokens[:32], BlockSize: 16}}})
		}, kvindex.StateLive},
		{"Ingest", func(f *approximateFleet) error { return f.Ingest("pod", "m", fakeengine.Payload(1e9, 0, stored)) }, kvindex.StateLive},
		{"another rank", func(f *approximateFleet) error { return f.Ingest("pod", "m", fakeengine.Payload(1e9, 7, stored)) }, kvindex.StateLive},
		{"another block size", func(f *approximateFleet) error {
			return f.Ingest("pod", "m", fakeengine.Payload(1e9, 0, &fakeengine.Stored{Hashes: stored.Hashes[:1], Tokens: believed.Tokens[:32], BlockSize: 32, Medium: fakeengine.MediumGPU}))
		}, kvindex.StateLive},
		{"the first message of a stream", func(f *approximateFleet) error {
			_, err := f.IngestMessage(kvindex.Message{Pod: "pod", Model: "m", Stream: "s", Seq: 0, Payload: fakeengine.Payload(1e9, 0, stored)})
			return err
		}, kvindex.StateLive},
		{"a later message of a stream", func(f *approximateFleet) error {
			_, err := f.IngestMessage(kvindex.Message{Pod: "pod", Model: "m", Stream: "s", Seq: 5, Payload: fakeengine.Payload(1e9, 0, stored)})
			return err
		}, kvindex.StatePartial},
	} {
		t.Run(c.name, func(t *testing.T) {
			var states []string
			f := openApproximate(t, roomy, kvindex.WithHooks(kvindex.Hooks{State: func(pod, model string, from, to kvindex.State) {
				states = append(states, fmt.Sprintf("%s %s %v %v", pod, model, from, to))
			}}))
			request := kvindex.Request{Tokens: believed.Tokens}
			ticket := f.send(request, "pod", 0)
			f.send(kvindex.Request{Tokens: believed.Tokens, Model: "n"}, "pod", 0)
			_ = f.Sink().StreamNote("pod", "m", "s", events.NoteOpened)
			if got := f.predicted(request, "pod"); got != 80 {
				t.Errorf("a transport is there: %d tokens", got)
			}
			_ = f.Sink().StreamNote("pod", "m", "s", events.NoteClosed)
			if got := f.predicted(request, "pod"); got != 80 {
				t.Errorf("a transport went: %d tokens", got)
			}
			if err := f.Ingest("pod", "m", []byte("nothing")); !errors.Is(err, kvindex.ErrMalformed) {
				t.Error(err)
			}
			if got := f.predicted(request, "pod"); got != 80 {
				t.Errorf("what cannot be read is no event: %d tokens", got)
			}
			must(t, c.tell(f))
			request.Pods = []string{"pod"}
			if s := f.ask(request).Pods[0]; s.CachedTokens != 32 || s.PredictedTokens != 32 || s.State != c.want {
				t.Errorf("%+v, want the blocks of the event, in state %v", s, c.want)
			}
			f.Observe(ticket, kvindex.Usage{PromptTokens: 96, CachedTokens: 96})
			if s := f.ask(request).Pods[0]; s.PredictedTokens != 32 {
				t.Errorf("after Observe: %+v", s)
			}
			if got := f.predicted(kvindex.Request{Tokens: believed.Tokens, Model: "n"}, "pod"); got != 80 {
				t.Errorf("of the other model: %d tokens", got)
			}
			if want := fmt.Sprintf("[pod m approximate %v]", c.want); fmt.Sprint(states) != want {
				t.Errorf("states %v, want %s", states, want)
			}
			if s := f.Stats(); s.States["approximate"] != 1 || s.Pods != 1 {
				t.Errorf("%+v", s)
			}
			// A removed pod starts again.
			must(t, f.RemovePod("pod"))
			if s := f.ask(request).Pods[0]; s.PredictedTokens != 0 || s.State != kvindex.StateApproximate {
				t.Errorf("removed: %+v", s)
			}
		})
	}
}

// A request registers a pod only if the pod's Profile says so.
func TestApproximateIsAskedFor(t *testing.T) {
	set := false
	f := openApproximate(t, func(pod, model string) (p kvindex.Profile) {
		switch {
		case pod != "none" && set:
			return roomy(pod, model)
		case pod == "wrong":
			p.Approximate = new(kvindex.Approximate)
		}
		return p
	})
	c := f.Candidates("m", []string{"pod", "wrong", "none"})
	for range 3 {
		for _, s := range f.ask(kvindex.Request{Tokens: believed.Tokens, Candidates: c}).Pods {
			if s.State != kvindex.StateUnknown {
				t.Errorf("%+v", s)
			}
		}
	}
	if n := len(f.Pods(nil)); n != 0 || f.Stats().Pods != 0 {
		t.Errorf("%d pods", n)
	}
	a := f.ask(kvindex.Request{Tokens: believed.Tokens, Candidates: c})
	if _, err := f.Routed(a, "wrong", 0); !errors.Is(err, kvindex.ErrBlockSize) || !strings.Contains(err.Error(), "BlockTokens is 0") {
		t.Errorf("a Profile that cannot be used: %v", err)
	}
	if _, err := f.Routed(a, "none", 0); !errors.Is(err, kvindex.ErrBlockSize) {
		t.Error(err)
	}
	set = true
	if got := f.predicted(kvindex.Request{Tokens: believed.Tokens}, "pod"); got != 0 {
		t.Errorf("%d tokens", got)
	}
	if s := f.ask(kvindex.Request{Tokens: believed.Tokens, Candidates: c}).Pods; s[indexOf(s, "wrong")].State != kvindex.StateApproximate {
		t.Errorf("a Profile that was mended: %+v", s)
	}
	asked := f.asked["pod"]
	for _, r := range []kvindex.Request{{Candidates: c}, {}, {Pods: []string{"pod"}}} { // in all of them
		r.Tokens = believed.Tokens
		a := f.ask(r)
		if s := a.Pods[max(0, indexOf(a.Pods, "pod"))]; s.Pod != "pod" || s.State != kvindex.StateApproximate {
			t.Errorf("%+v", s)
		}
	}
	if f.asked["pod"] != asked {
		t.Errorf("%d further calls for a known pod", f.asked["pod"]-asked)
	}
	for _, bad := range []kvindex.Approximate{{Blocks: 1}, {BlockTokens: 16}, {BlockTokens: -16, Blocks: 1}, {BlockTokens: 16, Blocks: -1}, {BlockTokens: 16, Blocks: 1 << 30}, {BlockTokens: 16, Blocks: 1, TTL: -1}, {BlockTokens: 17, Blocks: -1}} {
		f := openApproximate(t, func(string, string) kvindex.Profile { return kvindex.Profile{Approximate: &bad} })
		if err := f.Ingest("pod", "m", fakeengine.Payload(1e9, 0, believed.Stored(0, 1))); err == nil || !strings.Contains(err.Error(), "Approximate") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func indexOf(scores []kvindex.PodScore, pod string) int {
	for i := range scores {
		if scores[i].Pod == pod {
			return i
		}
	}
	return -1
}

// Model names that clients invent take no room from models of events.
func TestApproximateInventedModels(t *testing.T) {
	f := openApproximate(t, roomy)
	f.send(kvindex.Request{Model: "a", Tokens: believed.Tokens}, "pod", 0)
	for i := range 100 {
		f.predicted(kvindex.Request{Model: fmt.Sprint("invented-", i), Tokens: believed.Tokens}, "pod")
	}
	if n := len(f.Pods(nil)); n != kvindex.MaxModels {
		t.Errorf("%d models, want %d", n, kvindex.MaxModels)
	}
	must(t, f.Ingest("pod", "real", fakeengine.Payload(1e9, 0, believed.Stored(0, 6))))
	if s := f.ask(kvindex.Request{Model: "real", Tokens: believed.Tokens, Pods: []string{"pod"}}).Pods[0]; s.CachedTokens != 80 {
		t.Errorf("%+v", s)
	}
	if got := f.predicted(kvindex.Request{Model: "a", Tokens: believed.Tokens}, "pod"); got != 80 {
		t.Errorf("a model that is used was forgotten for another: %d tokens", got)
	}
	for i := range kvindex.MaxModels - 1 {
		must(t, f.Ingest("pod", fmt.Sprint("real-", i), fakeengine.Payload(1e9, 0, believed.Stored(0, 6))))
	}
	if err := f.Ingest("pod", "one more", fakeengine.Payload(1e9, 0, believed.Stored(0, 6))); err == nil {
		t.Error("more than MaxModels")
	}
	if s := f.Stats(); s.States["approximate"] != 0 {
		t.Errorf("%d are approximate", s.States["approximate"])
	}
}

// A snapshot has no beliefs, and keeps exact pods.
func TestApproximateSnapshot(t *testing.T) {
	f := openApproximate(t, roomy)
	f.send(kvindex.Request{Tokens: believed.Tokens}, "pod", 0)
	f.send(kvindex.Request{Tokens: believed.Tokens}, "other", 0)
	must(t, f.Ingest("pod", "exact", fakeengine.Payload(1e9, 0, believed.Stored(0, 6))))
	var file bytes.Buffer
	must(t, f.Snapshot(ctx, &file))
	for _, still := range []bool{true, false} {
		g := &approximateFleet{t: t, now: f.now, asked: make(map[string]int)}
		var err error
		g.Indexer, err = kvindex.Restore(ctx, bytes.NewReader(file.Bytes()), g.options(func(pod, model string) (p kvindex.Profile) {
			if still {
				return roomy(pod, model)
			}
			return p
		})...)
		must(t, err)
		t.Cleanup(func() { g.Close() })
		if pods := g.Pods(nil); len(pods) != 1 || pods[0].Model != "exact" || pods[0].State != kvindex.StateUncertain {
			t.Errorf("restored: %+v", pods)
		}
		if s := g.ask(kvindex.Request{Model: "exact", Tokens: believed.Tokens}).Pods[0]; s.CachedTokens != 80 || s.State != kvindex.StateUncertain {
			t.Errorf("%+v", s)
		}
		want := kvindex.StateUnknown
		if still {
			want = kvindex.StateApproximate
		}
		if s := g.ask(kvindex.Request{Tokens: believed.Tokens, Pods: []string{"pod"}}).Pods[0]; s.PredictedTokens != 0 || s.State != want {
			t.Errorf("%+v, want state %v", s, want)
		}
	}
}

// Explain reports for a pod without events that nothing is proven, and its beliefs.
func TestApproximateExplain(t *testing.T) {
	f := openApproximate(t, func(pod, model string) (p kvindex.Profile) {
		switch pod {
		case "wrong":
			p.Approximate = &kvindex.Approximate{BlockTokens: 16}
		case "pod":
			return roomy(pod, model)
		}
		return p
	})
	f.send(kvindex.Request{Tokens: believed.Tokens}, "pod", 2)
	must(t, f.Ingest("exact", "m", fakeengine.Payload(1e9, 0, believed.Stored(0, 1))))
	for _, c := range []struct {
		pod    string
		tokens []uint32
		cause  string
		says   string
	}{
		{"pod", believed.Tokens, "approximate", "80 tokens"},
		{"pod", make([]uint32, 40), "approximate", " 0 tokens"},
		{"pod", make([]uint32, 4), "no_block", "4 tokens"},
		{"wrong", believed.Tokens, "unknown_pod", "Blocks is 0"},
		{"exact", believed.Tokens, "never_stored", "block 1"},
	} {
		e := explain(t, f.Indexer, kvindex.Request{Model: "m", Tokens: c.tokens}, c.pod)
		if e.Cause != c.cause || !strings.Contains(e.Why, c.says) {
			t.Errorf("pod %s, %d tokens: %v, %q, want %v and %q", c.pod, len(c.tokens), e.Cause, e.Why, c.cause, c.says)
		}
	}
	// A prompt routed to a rank that holds nothing is explained by the rank's holdings.
	if _, err := f.Routed(f.ask(kvindex.Request{Tokens: believed.Tokens, Pods: []string{"exact"}}), "exact", 1); err != nil {
		t.Fatal(err)
	}
	e := explain(t, f.Indexer, kvindex.Request{Model: "m", Tokens: believed.Tokens}, "exact")
	if e.Cause == "unexplained" || e.Score.PredictedTokens != 80 || !strings.Contains(e.String(), "80 predicted") {
		t.Errorf("of a rank that it was sent to:\n%v", e)
	}
}
