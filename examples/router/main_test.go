package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const template = `{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}`

// engine is a pod: vLLM's API before a fake engine, whose events go over a socket.
type engine struct {
	t         *testing.T
	model     kvindex.Model
	address   string
	publisher *fakeengine.Publisher
	mu        sync.Mutex // guards engine
	engine    *fakeengine.Engine
	hold      chan struct{} // nil: nothing is held; a request waits until it is closed
	began     chan string   // gets the address when a request comes
}

// usage is what an engine with --enable-prompt-tokens-details says of a prompt.
type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// ServeHTTP answers a chat. It does not answer before its events are published. Any
// other request it answers with its path.
func (e *engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	e.began <- e.address
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

type computed struct {
	*fakeengine.Handle
	prompt int
}

func (e *engine) compute(ctx context.Context, body []byte) (c computed, err error) {
	request, err := chat.Parse("", body)
	if err != nil {
		return c, err
	}
	rendering, err := e.model.Chat.Render(request, nil)
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
	return computed{h, len(tokens)}, err
}

// noting is an index that says when something was applied.
type noting struct {
	inmemory.Memory
	changed chan struct{} // holds a token when a stream has gone on, or a state has changed
}

func (x noting) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Applied, error) {
	applied, err := x.Memory.Apply(ctx, src, cur, changes)
	x.note()
	return applied, err
}

func (x noting) note() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// fleet is a router before three engines.
type fleet struct {
	t       *testing.T
	ctx     context.Context
	index   noting
	router  *router
	front   *httptest.Server
	engines map[string]*engine // by address
	pods    []string           // the addresses
	began   chan string
}

func start(t *testing.T) *fleet {
	zmtptest.NoLeaks(t)
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	memory, err := inmemory.New(index.MemoryConfig{})
	ok(t, err)
	f := &fleet{t: t, ctx: ctx, engines: map[string]*engine{}, began: make(chan string, 16)}
	f.index = noting{memory, make(chan struct{}, 1)}
	model := load(t)
	ix, err := kvindex.New(kvindex.WithModel("llama-3", model), kvindex.WithIndex(f.index),
		kvindex.WithHooks(kvindex.Hooks{State: func(string, string, kvindex.State, kvindex.State) { f.index.note() }}))
	ok(t, err)
	t.Cleanup(func() { cancel(); ix.Close(); memory.Close() })
	f.router = &router{Indexer: ix}
	for i := range 3 {
		e := &engine{t: t, model: model, began: f.began}
		e.publisher, err = fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
		ok(t, err)
		t.Cleanup(func() { e.publisher.Close() })
		e.engine, err = fakeengine.New(fakeengine.Config{
			Model: "llama-3", BlockSize: 8 << i, Blocks: 3000 >> i, HashSeed: fmt.Sprint(i), Seed: uint64(i),
			Publish: func(payload []byte) { e.publisher.Publish(payload) },
		})
		ok(t, err)
		api := httptest.NewServer(e)
		t.Cleanup(api.Close)
		e.address = api.Listener.Addr().String()
		f.engines[e.address], f.pods = e, append(f.pods, e.address)
		// What it computed before the router comes is what a replay brings.
		_, err = e.compute(ctx, body(t, []message{{"user", "the harbour of the old town"}}))
		ok(t, err)
		f.router.add(ctx, e.address, e.publisher.Endpoint(), e.publisher.ReplayEndpoint())
	}
	f.until("all pods to be live", func() bool {
		live := 0
		for _, p := range ix.Pods(nil) {
			if p.State == kvindex.StateLive {
				live++
			}
		}
		return live == len(f.engines)
	})
	f.front = httptest.NewServer(f.router)
	t.Cleanup(f.front.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return f
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

// post sends a body to the router, and returns what it predicted, and of which pod.
func (f *fleet) post(path string, body []byte) (status int, text, pod string, predicted int) {
	f.t.Helper()
	r, err := http.Post(f.front.URL+path, "application/json", bytes.NewReader(body))
	ok(f.t, err)
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	ok(f.t, err)
	if r.StatusCode == http.StatusOK {
		if _, err := fmt.Sscanf(r.Header.Get("X-Routed"), "%s %d predicted", &pod, &predicted); err != nil {
			f.t.Fatalf("X-Routed is %q", r.Header.Get("X-Routed"))
		}
	}
	return r.StatusCode, string(all), pod, predicted
}

// chat has a chat answered, and waits until the events of it are applied.
func (f *fleet) chat(messages []message) (pod string, predicted int, u usage) {
	f.t.Helper()
	status, text, pod, predicted := f.post("/v1/chat/completions", body(f.t, messages))
	<-f.began
	var answer struct{ Usage usage }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK {
		f.t.Fatalf("%d, %v: %s", status, err, text)
	}
	e := f.engines[pod]
	f.until("what "+pod+" says", func() bool {
		cur, err := f.index.Cursor(f.ctx, index.Source{Pod: pod, Model: "llama-3"}, e.publisher.Endpoint())
		return err == nil && cur.Next == e.publisher.Next()
	})
	return pod, predicted, answer.Usage
}

func (f *fleet) until(what string, cond func() bool) {
	f.t.Helper()
	for !cond() {
		select {
		case <-f.index.changed:
		case <-f.ctx.Done():
			f.t.Fatalf("%s does not come: %+v", what, f.router.Pods(nil))
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

// TestRouter: 1,000 chats go over real sockets to three engines of different block
// sizes and hash seeds, and each engine reuses just what was predicted of it.
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
		for _, pod := range f.pods { // as if other chats were on their way
			others = append(others, f.router.sent.Sent(pod, 0, r.IntN(400), 0))
		}
		pod, predicted, u := f.chat(talk)
		for _, o := range others {
			o.Done()
		}
		if got := u.PromptTokensDetails.CachedTokens; predicted != got {
			t.Fatalf("chat %d: %d tokens of %s are predicted, the engine reused %d", n, predicted, pod, got)
		}
		chats[pod], prompt, cached = chats[pod]+1, prompt+u.PromptTokens, cached+u.PromptTokensDetails.CachedTokens
		if len(talk) < 12 {
			talks = append(talks, append(talk[:len(talk):len(talk)], message{"assistant", speech(r, 20)}))
		}
	}
	t.Logf("%.1f %% of %d tokens cached, chats by pod %v", 100*float64(cached)/float64(prompt), prompt, chats)
	if cached*2 < prompt || len(chats) < 3 {
		t.Error("cache and load decided nothing")
	}
}

// TestLoad: a chat goes where it saves more than is to be computed, and while a pod
// has more to compute than it saves, another one gets the chat.
func TestLoad(t *testing.T) {
	f, r := start(t), rand.New(rand.NewPCG(1, 2))
	system := message{"system", speech(r, 50)}
	first, _, _ := f.chat([]message{system, {"user", "where"}})
	other := f.router.sent.Sent(first, 0, 20, 0)
	if pod, predicted, _ := f.chat([]message{system, {"user", "when"}}); pod != first || predicted <= 20 {
		t.Fatalf("%d tokens of %s, the first chat went to %s", predicted, pod, first)
	}
	other.Done()
	f.engines[first].hold = make(chan struct{})
	long := make(chan string)
	go func() {
		_, _, pod, _ := f.post("/v1/chat/completions", body(t, []message{system, {"user", speech(r, 500)}}))
		long <- pod
	}()
	if at := <-f.began; at != first {
		t.Fatalf("the long chat went to %s", at)
	}
	if pod, _, _ := f.chat([]message{system, {"user", "who"}}); pod == first {
		t.Error("a chat waits behind a long one")
	}
	close(f.engines[first].hold)
	<-long
	f.front.Close() // waits until the router is done with all
	pods := (&kvindex.Answer{Pods: f.router.pods}).RoutePods(nil)
	f.router.sent.Fill(pods)
	for _, p := range pods {
		if p.Load != (route.Load{}) {
			t.Errorf("%s is left with %+v", p.Name, p.Load)
		}
	}
}

// TestSiblings: a chat that comes again before the engine has begun with the first one goes
// to the same pod, and what is predicted of it is what the engine then reuses.
func TestSiblings(t *testing.T) {
	f, r := start(t), rand.New(rand.NewPCG(1, 3))
	f.router.sent.Sent(f.pods[1], 0, 10_000, 0)
	f.router.sent.Sent(f.pods[2], 0, 10_000, 0)
	e := f.engines[f.pods[0]]
	e.hold = make(chan struct{})
	chat := body(t, []message{{"user", speech(r, 200)}})
	answers := make(chan [2]int) // predicted, and reused
	post := func() {
		_, text, _, predicted := f.post("/v1/chat/completions", chat)
		var answer struct{ Usage usage }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Error(err)
		}
		answers <- [2]int{predicted, answer.Usage.PromptTokensDetails.CachedTokens}
	}
	for range 4 {
		go post()
		if at := <-f.began; at != e.address {
			t.Fatalf("a chat went to %s", at)
		}
	}
	close(e.hold)
	predicted, reused, most := 0, 0, 0
	for range 4 {
		a := <-answers
		predicted, reused, most = predicted+a[0], reused+a[1], max(most, a[0])
	}
	if predicted != reused || predicted < 3*most || most < 200 {
		t.Errorf("%d tokens predicted, at most %d of a chat, and %d reused", predicted, most, reused)
	}
	f.front.Close() // waits until the router is done with all
	if s := f.router.Stats(); s.Predictions.Routed != 4 || s.Tickets.Observed != 4 || s.Predictions.Live != 0 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
}

// TestErrors: what the engines refuse is answered with 400, and what cannot be scored
// goes to the pod with the least load.
func TestErrors(t *testing.T) {
	f := start(t)
	for _, bad := range []string{`{"model": "llama-3", "messages": 3}`, `no JSON`, ``} {
		if status, text, _, _ := f.post("/v1/chat/completions", []byte(bad)); status != http.StatusBadRequest || !strings.Contains(text, "bad request") {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
	f.router.sent.Sent(f.pods[0], 0, 10, 0)
	f.router.sent.Sent(f.pods[2], 0, 10, 0)
	for path, body := range map[string]string{
		"/v1/responses":        `{"model": "llama-3", "input": "hello"}`,
		"/v1/embeddings":       `{"model": "llama-3", "input": "hello"}`,
		"/v1/completions":      `{"model": "llama-3", "prompt": ["a", "b"]}`,
		"/v1/chat/completions": `{"model": "other", "messages": [{"role": "user", "content": "hello"}]}`,
	} {
		status, text, pod, predicted := f.post(path, []byte(body))
		<-f.began
		if path != "/v1/chat/completions" && (status != http.StatusOK || !strings.HasPrefix(text, path)) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if predicted != 0 || pod != f.pods[1] {
			t.Errorf("%s: %d tokens of %s", path, predicted, pod)
		}
	}
}

// TestFirstToken: a prompt counts as computed when the first bytes of the answer come. The header
// comes before.
func TestFirstToken(t *testing.T) {
	zmtptest.NoLeaks(t)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	first, rest := make(chan struct{}), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		flush := w.(http.Flusher).Flush
		flush()
		<-first
		io.WriteString(w, "a")
		flush()
		<-rest
		io.WriteString(w, "b")
	}))
	t.Cleanup(api.Close)
	ix, err := kvindex.New()
	ok(t, err)
	t.Cleanup(func() { ix.Close() })
	pod := api.Listener.Addr().String()
	r := &router{Indexer: ix, pods: []kvindex.PodScore{{Pod: pod}}}
	front := httptest.NewServer(r)
	t.Cleanup(front.Close)
	load := func(when string, want route.Load) {
		t.Helper()
		pods := []route.Pod{{Name: pod}}
		if r.sent.Fill(pods); pods[0].Load != want {
			t.Errorf("%s: %+v, want %+v", when, pods[0].Load, want)
		}
	}
	resp, err := http.Post(front.URL+"/v1/responses", "application/json", bytes.NewReader(make([]byte, 400)))
	ok(t, err)
	defer resp.Body.Close()
	load("the header has come", route.Load{Requests: 1, Prefill: 100})
	close(first)
	_, err = io.ReadFull(resp.Body, make([]byte, 1))
	ok(t, err)
	load("the first token has come", route.Load{Requests: 1, Decode: 100})
	close(rest)
	if end, err := io.ReadAll(resp.Body); err != nil || string(end) != "b" {
		t.Errorf("the end is %q, %v", end, err)
	}
	front.Close() // waits until the router is done
	load("all has come", route.Load{})
}
