package picker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

// lasting makes predictions last so long that a slow machine does not see them expire.
var lasting = kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Minute})

// start makes a Picker with pods, and predictions that last. Without a Timeout a score has an hour: no
// machine is too slow for that.
func start(t *testing.T, cfg picker.Config, pods []picker.Pod, opts ...kvindex.Option) (*kvindex.Indexer, *picker.Picker) {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Hour
	}
	ix, err := kvindex.New(append(opts, lasting)...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	p, err := picker.New(ix, cfg)
	must(t, err)
	must(t, p.Set(pods))
	return ix, p
}

// load is the load of a pod's rank.
func load(p *picker.Picker, pod string, rank int) route.Load {
	at := []route.Pod{{Name: pod, Rank: rank}}
	p.Loads().Fill(at)
	return at[0].Load
}

// TestFallbacks: each fallback of a pick is the pod that a further pick without the pods before it
// would choose. A pod with several ranks is there once, and no load is counted at a fallback.
func TestFallbacks(t *testing.T) {
	pods := []picker.Pod{{Name: "a"}, {Name: "b", Ranks: 2}, {Name: "c"}, {Name: "down", Down: true}, {Name: "e"}}
	ix, p := start(t, picker.Config{Fallbacks: 9}, pods)
	prompt := fakeengine.NewPrompt(1, 16, 8)
	for i, name := range []string{"b", "a", "e"} {
		must(t, ix.Ingest(name, "m", fakeengine.Payload(1, 0, prompt.Stored(0, 7-2*i))))
	}
	request := kvindex.Request{Model: "m", Tokens: prompt.Tokens}
	first, err := p.Pick(t.Context(), &request)
	must(t, err)
	first.Failed()
	var got []string
	for _, pod := range append([]picker.Pod{first.Pod}, first.Fallbacks...) {
		got = append(got, pod.Name)
	}
	if want := "b a e c"; strings.Join(got, " ") != want {
		t.Fatalf("the order is %v, want %s", got, want)
	}
	for i := range got {
		limited := request
		limited.Pods = got[i:]
		pick, err := p.Pick(t.Context(), &limited)
		if err != nil || pick.Pod.Name != got[i] || len(pick.Fallbacks) != len(got)-i-1 {
			t.Errorf("of %v: %+v, %v", got[i:], pick, err)
		}
		pick.Failed()
		if l := load(p, got[i], 0); l != (route.Load{}) {
			t.Errorf("%s has %+v", got[i], l)
		}
	}
	if byLoad, err := p.Pick(t.Context(), nil); err != nil || len(byLoad.Fallbacks) != 3 {
		t.Errorf("without a prompt: %+v, %v", byLoad, err)
	}
}

// TestFallbacksTakeNoTurn: round-robin continues after the pod that was chosen, and the fallbacks
// are the pods whose turns are next.
func TestFallbacksTakeNoTurn(t *testing.T) {
	pods := []picker.Pod{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}
	_, p := start(t, picker.Config{Fallbacks: 2, Policy: route.TiesByChance(route.RoundRobin(), 1)}, pods)
	var turns []string
	for i := range 12 {
		pick, err := p.Pick(t.Context(), nil)
		if err != nil || len(pick.Fallbacks) != 2 {
			t.Fatal(err, pick)
		}
		turns = append(turns, pick.Pod.Name)
		if i >= 4 && turns[i] != turns[i-4] || i == 3 && strings.Count(strings.Join(turns, ""), turns[3]) != 1 {
			t.Errorf("the turns are %v", turns)
		}
		if i >= 6 && (pick.Fallbacks[0].Name != turns[i-3] || pick.Fallbacks[1].Name != turns[i-2]) {
			t.Errorf("turns %v: the fallbacks are %s and %s", turns, pick.Fallbacks[0].Name, pick.Fallbacks[1].Name)
		}
	}
}

// TestPickCached: a request goes to the pod that holds its prompt, and counts there as load and as
// a prediction until Done.
func TestPickCached(t *testing.T) {
	ix, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}, {Name: "b", Host: "10.0.0.8", Labels: map[string]string{"zone": "1"}}, {Name: "c"}})
	prompt := fakeengine.NewPrompt(1, 16, 8)
	must(t, ix.Ingest("b", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 4))))
	request := &kvindex.Request{Model: "m", Tokens: prompt.Tokens}
	first, err := p.Pick(t.Context(), request)
	if err != nil || first.Err != nil {
		t.Fatal(err, first.Err)
	}
	if first.Pod.Host != "10.0.0.8" || first.Pod.Labels["zone"] != "1" || first.PromptTokens != 128 || first.CachedTokens != 64 || first.PredictedTokens != 64 {
		t.Errorf("%+v", first)
	}
	second, err := p.Pick(t.Context(), request)
	if err != nil || second.Pod.Name != "b" || second.CachedTokens != 64 || second.PredictedTokens != 112 {
		t.Errorf("%v, its sibling: %+v", err, second)
	}
	if got, want := load(p, "b", 0), (route.Load{Requests: 2, Prefill: 64 + 16}); got != want {
		t.Errorf("the load is %+v, want %+v", got, want)
	}
	first.FirstToken()
	first.Done(kvindex.Usage{PromptTokens: 128, CachedTokens: 64})
	second.Failed()
	if got := load(p, "b", 0); got != (route.Load{}) {
		t.Errorf("the load is %+v at the end", got)
	}
	if s := ix.Stats().Tickets; s.Ended["observed"] != 1 || s.Ended["abandoned"] != 1 || s.Live != 0 || s.Unknown != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFailedAfterFirstToken: the prompt of an answer that was cut off was computed.
func TestFailedAfterFirstToken(t *testing.T) {
	ix, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}})
	prompt := fakeengine.NewPrompt(1, 16, 8)
	must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 4))))
	pick, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Tokens: prompt.Tokens})
	must(t, err)
	pick.FirstToken()
	pick.Failed()
	pick.Done(kvindex.Usage{}) // after the end
	if s := ix.Stats().Tickets; s.Ended["observed"] != 1 || s.Ended["abandoned"] != 0 || s.Unknown != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPickByLoad: a request that an engine would accept is picked by load if it cannot be scored,
// for any reason, and Err has the reason.
func TestPickByLoad(t *testing.T) {
	failing := errors.New("not now")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		request kvindex.Request
		tokens  int
		why     error
	}{
		"no tokenizer":    {t.Context(), kvindex.Request{Body: []byte(`{"model": "failing", "prompt": "` + strings.Repeat("word ", 20) + `"}`)}, 33, failing},
		"too slow":        {t.Context(), kvindex.Request{Body: []byte(`{"model": "slow", "prompt": "one two three"}`)}, 11, context.DeadlineExceeded},
		"ended":           {ended, kvindex.Request{Model: "m", Prompt: "one two three"}, 3, context.Canceled},
		"unknown model":   {t.Context(), kvindex.Request{Model: "unknown", Tokens: make([]uint32, 64)}, 64, kvindex.ErrUnknownModel},
		"no model at all": {t.Context(), kvindex.Request{Body: []byte(`{"prompt": [1, 2, 3, 4]}`)}, 6, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var timeout time.Duration
			if errors.Is(c.why, context.DeadlineExceeded) {
				timeout = 20 * time.Millisecond
			}
			ix, p := start(t, picker.Config{Timeout: timeout}, []picker.Pod{{Name: "a"}, {Name: "b", Ranks: 2}, {Name: "down", Down: true}},
				kvindex.WithModels(func(ctx context.Context, name string) (kvindex.Model, error) {
					if name == "slow" {
						<-ctx.Done()
						return kvindex.Model{}, ctx.Err()
					}
					return kvindex.Model{}, failing
				}))
			must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))))
			seen := map[string]bool{}
			for range 3 { // each goes to another rank, because the others are busy
				pick, err := p.Pick(c.ctx, &c.request)
				must(t, err)
				if pick.Err == nil || c.why != nil && !errors.Is(pick.Err, c.why) {
					t.Errorf("Err is %v, want %v", pick.Err, c.why)
				}
				if pick.PromptTokens != c.tokens || pick.CachedTokens != 0 || pick.PredictedTokens != 0 {
					t.Errorf("%+v", pick)
				}
				seen[fmt.Sprint(pick.Pod.Name, pick.Rank)] = true
				if got := load(p, pick.Pod.Name, pick.Rank); got.Requests != 1 || got.Prefill != c.tokens {
					t.Errorf("the load is %+v", got)
				}
			}
			if len(seen) != 3 || seen["down0"] {
				t.Errorf("picked %v", seen)
			}
		})
	}
}

// TestPickWithoutPrompt: a request without a prompt goes to the idle pod.
func TestPickWithoutPrompt(t *testing.T) {
	ix, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}, {Name: "b"}})
	seen := map[string]bool{}
	for range 2 {
		pick, err := p.Pick(t.Context(), nil)
		if err != nil || pick.Err != nil {
			t.Fatal(err, pick)
		}
		seen[pick.Pod.Name] = true
	}
	if s := ix.Stats().Scores; len(seen) != 2 || s.Outcomes["bad_request"] != 0 {
		t.Errorf("picked %v, %+v", seen, s)
	}
}

// TestPickWithoutPromptSpreads: requests without a prompt that follow each other on an idle fleet
// do not all go to the pod of the first name.
func TestPickWithoutPromptSpreads(t *testing.T) {
	_, p := start(t, picker.Config{Fallbacks: 1}, []picker.Pod{{Name: "a"}, {Name: "b", Ranks: 2}, {Name: "c"}})
	type place struct {
		pod  string
		rank int
	}
	first, second := make(map[place]int), make(map[string]int)
	for range 400 {
		pick, err := p.Pick(t.Context(), &kvindex.Request{Path: "/v1/models"})
		must(t, err)
		first[place{pick.Pod.Name, pick.Rank}]++
		second[pick.Fallbacks[0].Name]++
		pick.Done(kvindex.Usage{})
	}
	// Each of the four ranks gets a quarter. The probability that one gets less than an eighth is below 10^-9.
	for _, at := range []place{{"a", 0}, {"b", 0}, {"b", 1}, {"c", 0}} {
		if first[at] < 50 {
			t.Errorf("%v got %d of 400: %v", at, first[at], first)
		}
	}
	if len(second) != 3 {
		t.Errorf("the fallbacks are %v", second)
	}
}

// TestPickTaken: requests that an engine accepts are picked, although the library cannot read them
// as chats or completions.
func TestPickTaken(t *testing.T) {
	_, p := start(t, picker.Config{Model: "m"}, []picker.Pod{{Name: "a"}})
	for _, r := range []kvindex.Request{
		{Path: "/v1/responses/resp_1/cancel", Body: []byte{}},
		{Path: "/reset_prefix_cache", Body: []byte{}},
		{Path: "/v1/load_lora_adapter", Body: []byte(`{"lora_name": "a", "lora_path": "/a"}`)},
		{Path: "/v1/images/edits", Body: []byte("--x\r\n\r\n--x--")},
		{Path: "/v1/completions", Body: []byte(`{"model":"m","prompt":"def f(","suffix":"return 1"}`)},
		{Tokens: make([]uint32, 32)},
	} {
		if _, err := p.Pick(t.Context(), &r); err != nil {
			t.Errorf("%s: %v", r.Path, err)
		}
	}
}

// TestLargeRequests: a pick does not keep the names and images of a large body in memory, and an
// image does not make its pod look busy for minutes.
func TestLargeRequests(t *testing.T) {
	_, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}, {Name: "b"}})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc >> 20
	}
	before := heap()
	for i := range 16 {
		body := fmt.Sprintf(`{"model": "%d%s", "prompt": [1, 2, 3]}`, i, strings.Repeat("x", 4<<20))
		pick, err := p.Pick(t.Context(), &kvindex.Request{Body: []byte(body)})
		must(t, err)
		pick.Failed()
	}
	if after := heap(); after > before+8 {
		t.Errorf("%d MiB are kept", after-before)
	}
	image := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 4<<20) + `"}}]}]}`
	pick, err := p.Pick(t.Context(), &kvindex.Request{Body: []byte(image)})
	if err != nil || pick.PromptTokens != 8192 {
		t.Errorf("%v: %d tokens", err, pick.PromptTokens)
	}
	runtime.KeepAlive(p)
}

// TestLateContext: the context of a score can be used after the pick, and ends with the Timeout,
// which is 200 ms by default.
func TestLateContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		contexts := make(chan context.Context, 1)
		ix := mustIndexer(t, kvindex.WithModels(func(ctx context.Context, _ string) (kvindex.Model, error) {
			contexts <- ctx
			return kvindex.Model{}, errors.New("none")
		}))
		p, err := picker.New(ix, picker.Config{})
		if err == nil {
			err = p.Set([]picker.Pod{{Name: "a"}})
		}
		must(t, err)
		if _, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Prompt: "one two"}); err != nil {
			t.Fatal(err)
		}
		late := <-contexts
		<-late.Done()
		if at, ok := late.Deadline(); !ok || time.Until(at) != 200*time.Millisecond || late.Err() == nil {
			t.Errorf("%v %v %v", at, ok, late.Err())
		}
	})
}

// TestFirstTokenOnce: only the first byte of an answer changes the load.
func TestFirstTokenOnce(t *testing.T) {
	_, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}})
	pick, err := p.Pick(t.Context(), nil)
	must(t, err)
	pick.FirstToken()
	p.Loads().Changes()
	quiet := p.Loads().Changes()
	pick.FirstToken()
	if b := p.Loads().Changes(); len(b) != len(quiet) {
		t.Errorf("%x of an unchanged load, want as many bytes as %x", b, quiet)
	}
}

// TestPickWithoutModel: a body that names no model is scored for Config.Model.
func TestPickWithoutModel(t *testing.T) {
	ix, p := start(t, picker.Config{Model: "m"}, []picker.Pod{{Name: "a"}, {Name: "b"}})
	prompt := fakeengine.NewPrompt(1, 16, 2)
	must(t, ix.Ingest("b", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 2))))
	tokens := strings.ReplaceAll(fmt.Sprint(prompt.Tokens), " ", ", ")
	for _, c := range []struct {
		more   string
		cached int
		bad    uint64 // requests that are scored twice
	}{
		{``, 16, 0},
		{`, "user": "caf\u00e9"`, 16, 0},
		{`, "user": "model \u0061"`, 16, 1},
		{`, "metadata": {"model": "x"}`, 16, 1},
		{`, "model": null`, 16, 1},
		{`, "mo\u0064el": "other"`, 0, 0},
		{`, "MODEL": "other"`, 16, 0},
		{`, "prompt": ["a", "b"], "metadata": {"model": "x"}`, 0, 1},
	} {
		before := ix.Stats().Scores.Outcomes["bad_request"]
		pick, err := p.Pick(t.Context(), &kvindex.Request{Path: "/v1/completions", Body: []byte(`{"prompt": ` + tokens + c.more + `}`)})
		if err != nil || (pick.Err != nil) != (c.cached == 0) || pick.CachedTokens != c.cached || c.cached > 0 && pick.Pod.Name != "b" {
			t.Errorf("%s: %v, %+v", c.more, err, pick)
		}
		if bad := ix.Stats().Scores.Outcomes["bad_request"] - before; bad != c.bad {
			t.Errorf("%s: %d bad requests", c.more, bad)
		}
		pick.Failed()
	}
}

// TestPickRefused: the errors of a request that no engine accepts, and of a pick without a pod.
func TestPickRefused(t *testing.T) {
	_, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}, {Name: "b"}})
	for _, body := range []string{`{"model": "m", "prompt": `, `{"model": "m"}`, `[]`, `{"model": "m", "messages": 7}`, `{"prompt": true}`} {
		if pick, err := p.Pick(t.Context(), &kvindex.Request{Body: []byte(body)}); !errors.Is(err, kvindex.ErrRequest) || pick != nil {
			t.Errorf("%s: %v, %v", body, pick, err)
		}
	}
	request := &kvindex.Request{Model: "m", Tokens: make([]uint32, 32), Pods: []string{"b", "unknown"}}
	pick, err := p.Pick(t.Context(), request)
	if err != nil || pick.Pod.Name != "b" {
		t.Fatalf("%v, %+v", err, pick)
	}
	if _, err := pick.Next(t.Context()); !errors.Is(err, picker.ErrNoPod) {
		t.Errorf("a second pod of one: %v", err)
	}
	p.SetDown("b", true)
	p.SetDown("nobody", true)
	if _, err := p.Pick(t.Context(), request); !errors.Is(err, picker.ErrNoPod) || err.Error() != "picker: no pod: of the 2 pods that the request names, none is up" {
		t.Errorf("all are down: %v", err)
	}
	p.SetDown("b", false)
	if _, err := p.Pick(t.Context(), request); err != nil {
		t.Error(err)
	}
	must(t, p.Set(nil))
	if _, err := p.Pick(t.Context(), request); !errors.Is(err, picker.ErrNoPod) || err.Error() != "picker: no pod: neither Set nor the Fleet has named one" || p.Ready().OK() {
		t.Errorf("no pods: %v, ready %v", err, p.Ready())
	}
	never, err := picker.New(mustIndexer(t), picker.Config{Policy: func(*route.Request, []route.Pod) int { return -1 }})
	must(t, err)
	must(t, never.Set([]picker.Pod{{Name: "a"}}))
	if _, err := never.Pick(t.Context(), request); !errors.Is(err, picker.ErrNoPod) {
		t.Errorf("the policy chooses none: %v", err)
	}
}

func mustIndexer(t *testing.T, opts ...kvindex.Option) *kvindex.Indexer {
	ix, err := kvindex.New(opts...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	return ix
}

// TestMistakes: an error names the mistake in a configuration.
func TestMistakes(t *testing.T) {
	ix := mustIndexer(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	for want, f := range map[string]func() (*picker.Picker, error){
		"picker: the Indexer is nil": func() (*picker.Picker, error) { return picker.New(nil, picker.Config{}) },
		"picker: Timeout is -1ns":    func() (*picker.Picker, error) { return picker.New(ix, picker.Config{Timeout: -1}) },
		"picker: Fallbacks is -1":    func() (*picker.Picker, error) { return picker.New(ix, picker.Config{Fallbacks: -1}) },
		"picker: Lease is -1s":       func() (*picker.Picker, error) { return picker.New(ix, picker.Config{Lease: -time.Second}) },
		"picker: a Fleet needs Model: its pods may serve several models": func() (*picker.Picker, error) { return picker.New(ix, picker.Config{Fleet: fleet}) },
	} {
		if p, err := f(); err == nil || err.Error() != want || p != nil {
			t.Errorf("%v, want %s", err, want)
		}
	}
	_, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}})
	for want, pods := range map[string][]picker.Pod{
		"picker: pods[1] has no name": {{Name: "b"}, {}},
		`picker: pod "b": Host is "http://b": it is an address, with or without a port`: {{Name: "b", Host: "http://b"}},
		`picker: pod "b": Speed is -1`:                                {{Name: "b", Speed: -1}},
		`picker: pod "b" is named twice`:                              {{Name: "b"}, {Name: "b"}},
		`picker: pod "b" has -1 ranks, from 0 to 1024 are possible`:   {{Name: "b", Ranks: -1}},
		`picker: pod "b" has 1025 ranks, from 0 to 1024 are possible`: {{Name: "b", Ranks: 1025}},
	} {
		if err := p.Set(pods); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if pods := p.Pods(); len(pods) != 1 || pods[0].Name != "a" {
		t.Errorf("after refused lists: %+v", pods)
	}
}

// TestFleetFeeds: the pods are those of a Fleet for one model, without the removed ones, and a
// pod of Set replaces one of the Fleet.
func TestFleetFeeds(t *testing.T) {
	ix := mustIndexer(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	pod := func(id, model, engine string, ranks int) events.Pod {
		return events.Pod{ID: id, Model: model, Host: "127.0.0.1", Port: 1000 + 100*int(id[0]), Engine: engine, Ranks: ranks, Labels: map[string]string{"id": id}}
	}
	must(t, fleet.Set("test", []events.Pod{pod("a", "m", "", 2), pod("b", "other", "", 1), pod("c", "m", events.EngineNone, 1)}))
	p, err := picker.New(ix, picker.Config{Fleet: fleet, Model: "m"})
	must(t, err)
	see := func(when, want string) {
		t.Helper()
		var got []string
		for _, pod := range p.Pods() {
			got = append(got, fmt.Sprint(pod.Name, pod.Host, pod.Ranks, pod.Labels["id"]))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	see("at first", "a127.0.0.12a c127.0.0.10c")
	if got, want := p.Ready(), (picker.Readiness{Pods: 2, Ranks: 2}); got != want {
		t.Errorf("ready: %+v, want %+v", got, want)
	}
	must(t, fleet.Put("test", pod("d", "m", "", 1)))
	see("one comes", "a127.0.0.12a c127.0.0.10c d127.0.0.11d")
	must(t, p.Set([]picker.Pod{{Name: "d", Host: "mine"}, {Name: "e"}}))
	see("Set", "a127.0.0.12a c127.0.0.10c dmine0 e0")
	pick, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Tokens: make([]uint32, 32), Pods: []string{"a"}})
	if err != nil || load(p, "a", pick.Rank).Requests != 1 {
		t.Fatal(err)
	}
	fleet.Remove("test", "a")
	see("one goes", "c127.0.0.10c dmine0 e0")
	if got := load(p, "a", pick.Rank); got != (route.Load{}) {
		t.Errorf("a pod that has gone has a load of %+v", got)
	}
	pick.Done(kvindex.Usage{PromptTokens: -1, CachedTokens: -1})
}

// TestWrongModel: the error of a Picker whose Fleet has only pods of another model says so.
func TestWrongModel(t *testing.T) {
	ix := mustIndexer(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	p, err := picker.New(ix, picker.Config{Fleet: fleet, Model: "llama3"})
	must(t, err)
	must(t, fleet.Put("test", events.Pod{ID: "a", Model: "llama-3", Host: "127.0.0.1"}))
	const want = `picker: no pod: the Fleet has pods of model "llama-3", and none of Config.Model, "llama3"`
	if _, err := p.Pick(t.Context(), nil); !errors.Is(err, picker.ErrNoPod) || err.Error() != want || p.Ready().OK() {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestAnotherPodOfTheName: a pod with the name of an earlier pod and another UID does not inherit
// the load and the health of the earlier one. Host can name the address of each pod.
func TestAnotherPodOfTheName(t *testing.T) {
	ix := mustIndexer(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	pod := events.Pod{ID: "vllm-0", Model: "m", Host: "10.0.0.7", UID: "1", Labels: map[string]string{"port": "81"}}
	must(t, fleet.Put("k8s", pod))
	p, err := picker.New(ix, picker.Config{Fleet: fleet, Model: "m", Host: func(p events.Pod) string { return p.Host + ":" + p.Labels["port"] }})
	must(t, err)
	pick, err := p.Pick(t.Context(), nil)
	if err != nil || pick.Pod.Host != "10.0.0.7:81" {
		t.Fatal(err, pick)
	}
	p.SetDown("vllm-0", true)
	pod.UID = "2"
	must(t, fleet.Put("k8s", pod))
	if got := p.Pods(); got[0].Down || load(p, "vllm-0", 0) != (route.Load{}) {
		t.Errorf("%+v %+v", got, load(p, "vllm-0", 0))
	}
}

// TestLease: a pick that is never ended ends by itself.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := start(t, picker.Config{Lease: time.Minute}, []picker.Pod{{Name: "a"}})
		pick, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Tokens: make([]uint32, 64)})
		if err != nil || load(p, "a", 0).Requests != 1 {
			t.Fatal(err, load(p, "a", 0))
		}
		time.Sleep(time.Minute)
		if got := load(p, "a", 0); got != (route.Load{}) {
			t.Errorf("after the lease the load is %+v", got)
		}
		pick.Done(kvindex.Usage{PromptTokens: 64, CachedTokens: 0})
		if got := load(p, "a", 0); got != (route.Load{}) {
			t.Errorf("after the end the load is %+v", got)
		}
	})
}

// TestConcurrent: many goroutines pick, end and retry, while pods come, go and are down. No
// pod is picked that was down before and after, and no load is left.
func TestConcurrent(t *testing.T) {
	ix, p := start(t, picker.Config{}, nil)
	names := []string{"a", "b", "c", "d"}
	prompt := fakeengine.NewPrompt(1, 16, 8)
	var stop atomic.Bool
	var changing, working sync.WaitGroup
	set := func(r *rand.Rand) {
		pods := []picker.Pod{{Name: "always"}, {Name: "never", Down: true}}
		for _, name := range names {
			if r.IntN(3) > 0 {
				pods = append(pods, picker.Pod{Name: name, Ranks: r.IntN(3)})
			}
		}
		if err := p.Set(pods); err != nil {
			t.Error(err)
		}
	}
	set(rand.New(rand.NewPCG(1, 1)))
	changing.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for !stop.Load() {
			set(r)
			p.SetDown(names[r.IntN(len(names))], r.IntN(2) == 0)
			if err := ix.Ingest(names[r.IntN(len(names))], "m", fakeengine.Payload(1, 0, prompt.Stored(0, 1+r.IntN(8)))); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 4 {
		working.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(i)))
			for range 300 {
				pick, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Tokens: prompt.Tokens[:16*(1+r.IntN(8))]})
				for err == nil {
					if pick.Pod.Name == "never" {
						t.Error("picked a pod that is down")
					}
					if r.IntN(2) == 0 {
						pick.FirstToken()
					}
					var ending sync.WaitGroup
					next := r.IntN(3)
					was := pick
					ending.Go(func() { was.Done(kvindex.Usage{PromptTokens: was.PromptTokens, CachedTokens: -1}) })
					ending.Go(was.Failed)
					if next > 0 {
						ending.Wait()
						break
					}
					if pick, err = was.Next(t.Context()); err != nil && pick != nil {
						t.Error("an error and a pick")
					}
					ending.Wait()
				}
			}
		})
	}
	working.Wait()
	stop.Store(true)
	changing.Wait()
	for _, pod := range append(names, "always", "never") {
		for rank := range 3 {
			if got := load(p, pod, rank); got != (route.Load{}) {
				t.Errorf("%s rank %d has a load of %+v at the end", pod, rank, got)
			}
		}
	}
	if live := ix.Stats().Tickets.Live; live != 0 {
		t.Errorf("%d tickets are left", live)
	}
}

// TestReady: connections count for pods of a host's own transports, too.
func TestReady(t *testing.T) {
	ix, p := start(t, picker.Config{}, []picker.Pod{{Name: "a"}, {Name: "b"}})
	for _, step := range []struct {
		pod, stream string
		note        events.Note
		want        picker.Readiness
	}{
		{"a", "0", events.NoteOpened, picker.Readiness{Pods: 2, Ranks: 1}},
		{"a", "daemon", events.NoteTiers, picker.Readiness{Pods: 2, Ranks: 1}},
		{"a", "daemon", events.NoteConnected, picker.Readiness{Pods: 2, Ranks: 1}},
		{"a", "1", events.NoteOpened, picker.Readiness{Pods: 2, Ranks: 2}},
		{"a", "1", events.NoteConnected, picker.Readiness{Pods: 2, Ranks: 2, Connected: 1}},
		{"a", "1", events.NoteHeld, picker.Readiness{Pods: 2, Ranks: 2, Connected: 1, Replaying: 1}},
		{"b", "0", events.NoteOpened, picker.Readiness{Pods: 2, Ranks: 3, Connected: 1, Replaying: 1}},
		{"unpicked", "0", events.NoteOpened, picker.Readiness{Pods: 2, Ranks: 3, Connected: 1, Replaying: 1}},
		{"a", "1", events.NoteCurrent, picker.Readiness{Pods: 2, Ranks: 3, Connected: 1}},
		{"b", "0", events.NoteConnected, picker.Readiness{Pods: 2, Ranks: 3, Connected: 2}},
		{"a", "0", events.NoteConnected, picker.Readiness{Pods: 2, Ranks: 3, Connected: 3}},
		{"a", "1", events.NoteLost, picker.Readiness{Pods: 2, Ranks: 3, Connected: 2}},
	} {
		must(t, ix.Sink().StreamNote(step.pod, "m", step.stream, step.note))
		if got := p.Ready(); got != step.want || got.OK() != (got == picker.Readiness{Pods: 2, Ranks: 3, Connected: 3}) {
			t.Errorf("after %v of %s: %+v, want %+v", step.note, step.pod, got, step.want)
		}
	}
}

// TestReadyWithoutDaemon: a connection to the offload daemon of a Fleet's pod does not count as a
// connection to a rank.
func TestReadyWithoutDaemon(t *testing.T) {
	ctx := zmtptest.Context(t)
	ix := mustIndexer(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	daemon, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
	must(t, err)
	defer daemon.Close()
	pod := events.Pod{ID: "a", Model: "m", Host: "127.0.0.1", Port: 1}
	if _, err := fmt.Sscanf(daemon.Endpoint(), "tcp://127.0.0.1:%d", &pod.TiersPort); err != nil {
		t.Fatal(err)
	}
	must(t, fleet.Put("test", pod))
	p, err := picker.New(ix, picker.Config{Fleet: fleet, Model: "m"})
	must(t, err)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() { _ = fleet.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for connected := false; !connected; runtime.Gosched() {
		for _, s := range fleet.Pods(nil)[0].Streams {
			connected = connected || s.Tiers && s.Link == "live"
		}
		if ctx.Err() != nil {
			t.Fatal("the daemon is not connected")
		}
	}
	if got, want := p.Ready(), (picker.Readiness{Pods: 1, Ranks: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestAffinity: Rendezvous sends requests of one Affinity to one pod, whatever their prompts,
// also as a fallback and as a retry, and requests of many to all pods.
func TestAffinity(t *testing.T) {
	policy := route.Rendezvous{Factor: 100}.Policy()
	_, p := start(t, picker.Config{
		Policy: policy, Fallbacks: 1,
		Affinity: func(r *kvindex.Request) uint64 { return uint64(r.Tokens[0]) },
	}, []picker.Pod{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	at := map[string]bool{}
	for session := range uint32(30) {
		var first, second string
		for turn := range uint32(4) {
			pick, err := p.Pick(t.Context(), &kvindex.Request{Model: "m", Tokens: []uint32{session, turn}})
			must(t, err)
			next, err := pick.Next(t.Context())
			must(t, err)
			next.Failed()
			if turn > 0 && (pick.Pod.Name != first || next.Pod.Name != second) || pick.Fallbacks[0].Name != next.Pod.Name {
				t.Errorf("session %d went to %s and %s, then to %s and %s", session, first, second, pick.Pod.Name, next.Pod.Name)
			}
			first, second = pick.Pod.Name, next.Pod.Name
		}
		at[first] = true
	}
	if len(at) != 3 {
		t.Errorf("30 sessions went to %v", at)
	}
	if pick, err := p.Pick(t.Context(), nil); err != nil {
		t.Error(err)
	} else {
		pick.Failed()
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
