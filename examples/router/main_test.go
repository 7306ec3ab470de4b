package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const template = `{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}`

// engine is a pod: vLLM's API in front of a fake engine that publishes its events over a socket.
type engine struct {
	t         *testing.T
	model     kvindex.Model
	name      string
	api       *httptest.Server
	publisher *fakeengine.Publisher
	mu        sync.Mutex // guards engine
	engine    *fakeengine.Engine
	hold      chan struct{} // requests wait until it is closed; nil: they do not wait
	began     chan string   // gets the engine's name when a request comes
	down      atomic.Bool   // the health check fails
}

// usage is the usage in an answer of an engine with --enable-prompt-tokens-details.
type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// ServeHTTP answers a chat after its events are published. The answer to any other request is the
// request's path.
func (e *engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/health" {
		if e.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	e.began <- e.name
	if e.hold != nil {
		<-e.hold
	}
	body, err := io.ReadAll(req.Body)
	if err != nil || req.URL.Path != "/v1/chat/completions" {
		fmt.Fprintf(w, "%s %v", req.URL.Path, err)
		return
	}
	h, err := e.compute(req.Context(), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var u usage
	u.PromptTokens, u.PromptTokensDetails.CachedTokens = h.prompt, h.CachedTokens()
	json.NewEncoder(w).Encode(map[string]any{"usage": u})
}

type computation struct {
	*fakeengine.Handle
	prompt int
}

func (e *engine) compute(ctx context.Context, body []byte) (c computation, err error) {
	prompt, err := chat.Parse("", body)
	if err != nil {
		return c, err
	}
	rendering, err := e.model.Chat.Render(prompt, nil)
	if err != nil {
		return c, err
	}
	tokens, err := e.model.Tokenizer.Encode(ctx, nil, rendering.Text, false)
	if err != nil {
		return c, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h, err := e.engine.Submit(fakeengine.Request{Tokens: tokens, MaxTokens: 8})
	e.engine.Drain()
	return computation{h, len(tokens)}, err
}

// notifyingIndex is an index that signals when something was applied.
type notifyingIndex struct {
	inmemory.Memory
	changed chan struct{} // has an element after a stream has advanced or a state has changed
}

func (x notifyingIndex) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	applied, err := x.Memory.Apply(ctx, src, cur, changes)
	x.note()
	return applied, err
}

func (x notifyingIndex) note() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// outcome has the arguments of a call of Config.OnEnd.
type outcome struct {
	pod                       string
	predicted, prompt, reused int
	why, err                  error
}

// fleet is a router in front of three engines.
type fleet struct {
	t       *testing.T
	ctx     context.Context
	ix      *kvindex.Indexer
	index   notifyingIndex
	picker  *picker.Picker
	port    string
	front   *httptest.Server
	engines map[string]*engine
	began   chan string
	answers chan outcome
}

var names = []string{"a", "b", "c"}

func start(t *testing.T) *fleet {
	zmtptest.NoLeaks(t)
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	memory, err := inmemory.New(index.MemoryConfig{})
	ok(t, err)
	f := &fleet{t: t, ctx: ctx, engines: map[string]*engine{}, began: make(chan string, 16), answers: make(chan outcome, 16)}
	f.index = notifyingIndex{memory, make(chan struct{}, 1)}
	model := load(t)
	f.ix, err = kvindex.New(kvindex.WithModel("llama-3", model), kvindex.WithIndex(f.index), kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Minute}),
		kvindex.WithHooks(kvindex.Hooks{State: func(string, string, kvindex.State, kvindex.State) { f.index.note() }}))
	ok(t, err)
	pods, err := events.NewFleet(f.ix.Sink(), events.FleetConfig{})
	ok(t, err)
	f.picker, err = picker.New(f.ix, picker.Config{Fleet: pods, Model: "llama-3", Timeout: time.Hour, OnEnd: func(p *picker.Pick, u kvindex.Usage, err error) {
		f.answers <- outcome{p.Pod.Name, p.PredictedTokens, u.PromptTokens, u.CachedTokens, p.Err, err}
	}})
	ok(t, err)
	ended := make(chan error)
	go func() { ended <- pods.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; f.ix.Close(); memory.Close() })
	for i, name := range names {
		host := fmt.Sprintf("127.0.1.%d", i+1)
		e := &engine{t: t, model: model, name: name, began: f.began}
		e.publisher, err = fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: "tcp://" + host + ":0", Replay: "tcp://" + host + ":0"})
		ok(t, err)
		t.Cleanup(func() { e.publisher.Close() })
		e.engine, err = fakeengine.New(fakeengine.Config{
			Model: "llama-3", BlockSize: 8 << i, Blocks: 3000 >> i, HashSeed: fmt.Sprint(i), Seed: uint64(i),
			Publish: func(payload []byte) { e.publisher.Publish(payload) },
		})
		ok(t, err)
		// All APIs have the same port, as in a Deployment.
		listener, err := net.Listen("tcp", net.JoinHostPort(host, cmp.Or(f.port, "0")))
		ok(t, err)
		_, f.port, err = net.SplitHostPort(listener.Addr().String())
		ok(t, err)
		e.api = &httptest.Server{Listener: listener, Config: &http.Server{Handler: e}}
		e.api.Start()
		t.Cleanup(e.api.Close)
		f.engines[name] = e
		// The events of prompts before the router's start come with the replay.
		_, err = e.compute(ctx, body(t, []message{{"user", "the harbour of the old town"}}))
		ok(t, err)
		ok(t, pods.Put("test", events.Pod{ID: name, Model: "llama-3", Host: host, Port: port(t, e.publisher.Endpoint()), ReplayPort: port(t, e.publisher.ReplayEndpoint())}))
	}
	f.until("all pods to be live", func() bool {
		live := 0
		for _, p := range f.ix.Pods(nil) {
			if p.State == kvindex.StateLive {
				live++
			}
		}
		return live == len(f.engines)
	})
	f.front = httptest.NewServer(proxy(f.picker, f.port))
	t.Cleanup(f.front.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return f
}

func port(t *testing.T, endpoint string) int {
	u, err := url.Parse(endpoint)
	ok(t, err)
	n, err := strconv.Atoi(u.Port())
	ok(t, err)
	return n
}

// load reads a model from a folder, as main does.
func load(t *testing.T) kvindex.Model {
	dir := t.TempDir()
	tokenizer, err := os.ReadFile("../../tokenize/testdata/tiny.json")
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizer, 0o600))
	config, err := json.Marshal(map[string]string{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600))
	model, err := kvindex.LoadModel(dir)
	ok(t, err)
	ok(t, model.ChatErr)
	return model
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// post sends a body to the router.
func (f *fleet) post(path string, body []byte) (status int, text string) {
	f.t.Helper()
	r, err := http.Post(f.front.URL+path, "application/json", bytes.NewReader(body))
	ok(f.t, err)
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	ok(f.t, err)
	return r.StatusCode, string(all)
}

// chat sends a chat, and waits until its events are applied.
func (f *fleet) chat(messages []message) outcome {
	f.t.Helper()
	if status, text := f.post("/v1/chat/completions", body(f.t, messages)); status != http.StatusOK {
		f.t.Fatalf("%d: %s", status, text)
	}
	<-f.began
	a := <-f.answers
	if a.why != nil || a.err != nil {
		f.t.Fatalf("%+v", a)
	}
	e := f.engines[a.pod]
	f.until("what "+a.pod+" publishes", func() bool {
		cur, err := f.index.Cursor(f.ctx, index.Source{Pod: a.pod, Model: "llama-3"}, e.publisher.Endpoint())
		return err == nil && cur.Next == e.publisher.Next()
	})
	return a
}

func (f *fleet) until(what string, cond func() bool) {
	f.t.Helper()
	for !cond() {
		select {
		case <-f.index.changed:
		case <-f.ctx.Done():
			f.t.Fatalf("%s does not come: %+v", what, f.ix.Pods(nil))
		}
	}
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func body(t *testing.T, messages []message) []byte {
	b, err := json.Marshal(map[string]any{"model": "llama-3", "messages": messages})
	ok(t, err)
	return b
}

func speech(r *rand.Rand, n int) string {
	words := strings.Fields("the a book shelf harbour town archive reading room old map ship captain letter story about where when")
	var b strings.Builder
	for range n {
		b.WriteString(words[r.IntN(len(words))] + " ")
	}
	return b.String()
}

// TestRouter: 1,000 chats go over real sockets to three engines of different block sizes and hash
// seeds. The cached tokens that an engine reports are equal to the prediction.
func TestRouter(t *testing.T) {
	f, r := start(t), rand.New(rand.NewPCG(1, 1))
	systems := make([]string, 4)
	for i := range systems {
		systems[i] = speech(r, 100)
	}
	var talks [][]message
	prompt, cached, chats := 0, 0, map[string]int{}
	for n := range 1000 {
		talk := []message{{"system", systems[r.IntN(len(systems))]}}
		if len(talks) > 30 && r.IntN(4) > 0 {
			talk = talks[len(talks)-1-r.IntN(30)]
		}
		talk = append(talk[:len(talk):len(talk)], message{"user", speech(r, 5+r.IntN(40))})
		var others []*route.Flight
		for _, pod := range names { // load, as of other chats in flight
			others = append(others, f.picker.Loads().Sent(pod, 0, r.IntN(400), 0))
		}
		a := f.chat(talk)
		for _, o := range others {
			o.Done()
		}
		if a.predicted != a.reused {
			t.Fatalf("chat %d: %d tokens of %s are predicted, the engine reused %d", n, a.predicted, a.pod, a.reused)
		}
		chats[a.pod], prompt, cached = chats[a.pod]+1, prompt+a.prompt, cached+a.reused
		if len(talk) < 12 {
			talks = append(talks, append(talk[:len(talk):len(talk)], message{"assistant", speech(r, 20)}))
		}
	}
	t.Logf("%.1f %% of %d tokens cached, chats by pod %v", 100*float64(cached)/float64(prompt), prompt, chats)
	if cached*2 < prompt || len(chats) < 3 {
		t.Error("cache and load decided nothing")
	}
	for _, o := range f.ix.Stats().Observed {
		if p := o.Predicted; p["exact"].Requests != 1000 || p["over"].Requests+p["under"].Requests > 0 {
			t.Errorf("%+v", o)
		}
	}
}

// TestSiblings: a chat that is repeated before the engine has begun the first one goes to the same
// pod, and the engine reuses as many tokens as predicted.
func TestSiblings(t *testing.T) {
	f, r := start(t), rand.New(rand.NewPCG(1, 3))
	for _, busy := range names[1:] {
		defer f.picker.Loads().Sent(busy, 0, 10_000, 0).Done()
	}
	e := f.engines["a"]
	e.hold = make(chan struct{})
	chat := body(t, []message{{"user", speech(r, 200)}})
	for range 4 {
		go f.post("/v1/chat/completions", chat)
		if at := <-f.began; at != "a" {
			t.Fatalf("a chat went to %s", at)
		}
	}
	close(e.hold)
	predicted, reused, most := 0, 0, 0
	for range 4 {
		a := <-f.answers
		predicted, reused, most = predicted+a.predicted, reused+a.reused, max(most, a.predicted)
	}
	if predicted != reused || predicted < 3*most || most < 200 {
		t.Errorf("%d tokens predicted, at most %d of a chat, and %d reused", predicted, most, reused)
	}
	f.front.Close() // waits until the router has ended all requests
	if s := f.ix.Stats(); s.Predictions.Routed != 4 || s.Tickets.Ended["observed"] != 4 || s.Predictions.Live != 0 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
}

// TestErrors: a request that the engines refuse is answered with 400. A request that cannot be
// scored goes to the pod with the least load.
func TestErrors(t *testing.T) {
	f := start(t)
	for _, bad := range []string{`{"model": "llama-3", "messages": 3}`, `no JSON`, ``} {
		if status, text := f.post("/v1/chat/completions", []byte(bad)); status != http.StatusBadRequest || text != "Bad Request\n" {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
	for _, busy := range []string{"a", "c"} {
		defer f.picker.Loads().Sent(busy, 0, 1000, 0).Done()
	}
	for path, body := range map[string]string{
		"/v1/responses":   `{"model": "llama-3", "input": "hello", "previous_response_id": "r"}`,
		"/v1/embeddings":  `{"model": "llama-3", "input": "hello"}`,
		"/v1/completions": `{"model": "llama-3", "prompt": ["a", "b"]}`,
	} {
		status, text := f.post(path, []byte(body))
		if at := <-f.began; status != http.StatusOK || !strings.HasPrefix(text, path) || at != "b" {
			t.Errorf("%s: %d %s at %s", path, status, text, at)
		}
		if a := <-f.answers; a.why == nil || a.err == nil || a.predicted != 0 || a.reused != -1 {
			t.Errorf("%+v", a)
		}
	}
}

// TestPodsDown: a request to a pod that refuses connections is retried at another pod. After a
// health check the pod is not picked. When all pods are down, the answer is 503.
func TestPodsDown(t *testing.T) {
	f := start(t)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	chat := body(t, []message{{"user", "the harbour of the old town"}})
	for _, busy := range names[1:] {
		defer f.picker.Loads().Sent(busy, 0, 10_000, 0).Done()
	}
	f.engines["a"].api.Close()
	if status, text := f.post("/v1/chat/completions", chat); status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	if at := <-f.began; at == "a" {
		t.Error("an engine that is down has answered")
	}
	<-f.answers
	f.engines["b"].down.Store(true)
	checkHealth(f.picker, client, f.port)
	var down []string
	for _, pod := range f.picker.Pods() {
		if pod.Down {
			down = append(down, pod.Name)
		}
	}
	if fmt.Sprint(down) != "[a b]" {
		t.Errorf("down: %q", down)
	}
	if status, text := f.post("/v1/chat/completions", chat); status != http.StatusOK || <-f.began != "c" {
		t.Errorf("%d: %s", status, text)
	}
	f.engines["c"].down.Store(true)
	checkHealth(f.picker, client, f.port)
	if status, text := f.post("/v1/chat/completions", chat); status != http.StatusServiceUnavailable || text != "Service Unavailable\n" {
		t.Errorf("%d: %s", status, text)
	}
	f.engines["b"].down.Store(false)
	checkHealth(f.picker, client, f.port)
	if status, text := f.post("/v1/chat/completions", chat); status != http.StatusOK || <-f.began != "b" {
		t.Errorf("%d: %s", status, text)
	}
}
