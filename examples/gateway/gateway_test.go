package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

const model = "m"

// engine is an engine with its API, in which a test can cause faults.
type engine struct {
	*kvindextest.Engine
	pod     events.Pod
	api     *httptest.Server
	rig     *rig
	waiting atomic.Int64 // waiting requests of other gateways, for its metrics
}

// rig is a gateway in front of engines.
type rig struct {
	t       testing.TB
	ctx     context.Context
	gateway *gateway
	front   *httptest.Server
	client  *http.Client
	engines map[string]*engine

	mu   sync.Mutex // guards sent and its elements
	sent map[string][]*engineRequest
}

// engineRequest is a request that an engine received, and the bytes of the answer.
type engineRequest struct {
	pod       string
	header    http.Header
	body      []byte
	cancelled bool
}

// Faults of an engine, in the header X-Fault. All but hang affect the first attempt only.
const (
	hangUp  = "hang up" // close the connection before the first byte
	breakUp = "break"   // close the connection after the first byte
	stall   = "stall"   // stop after the first byte until the request is cancelled
	hang    = "hang"    // stop before the first byte until the request is cancelled, at each attempt
)

func (e *engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	id, fault := req.Header.Get("X-Request-Id"), req.Header.Get("X-Fault")
	if req.URL.Path == "/metrics" {
		fmt.Fprintf(w, "vllm:num_requests_waiting{engine=\"0\"} %d.0\nvllm:num_requests_running{engine=\"0\"} 1.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n", e.waiting.Load())
		return
	}
	if id == "" {
		e.Engine.ServeHTTP(w, req)
		return
	}
	s := &engineRequest{pod: e.pod.ID, header: req.Header}
	e.rig.mu.Lock()
	if len(e.rig.sent[id]) > 0 && fault != hang {
		fault = ""
	}
	e.rig.sent[id] = append(e.rig.sent[id], s)
	e.rig.mu.Unlock()
	if status, err := strconv.Atoi(fault); err == nil {
		w.WriteHeader(status)
		return
	}
	switch fault {
	case hangUp:
		panic(http.ErrAbortHandler)
	case hang:
		io.Copy(io.Discard, req.Body) // otherwise the server does not notice that the client goes
		s.wait(req, e.rig)
		return
	}
	e.Engine.ServeHTTP(&recorder{w, req, s, e.rig, fault}, req)
}

// wait waits until a request is cancelled.
func (s *engineRequest) wait(req *http.Request, r *rig) {
	<-req.Context().Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.cancelled = true
}

// recorder keeps the bytes that an engine writes.
type recorder struct {
	http.ResponseWriter
	req   *http.Request
	sent  *engineRequest
	rig   *rig
	fault string
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) Write(p []byte) (int, error) {
	if w.fault != "" {
		p = p[:(len(p)+1)/2]
	}
	w.rig.mu.Lock()
	w.sent.body = append(w.sent.body, p...)
	w.rig.mu.Unlock()
	n, err := w.ResponseWriter.Write(p)
	if w.fault != "" {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		if w.fault == stall {
			w.sent.wait(w.req, w.rig)
		}
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// wide has limits that no test reaches.
var wide = limits{body: 1 << 20, bodyTime: time.Minute, requests: 1000, firstByte: time.Minute, answer: 5 * time.Minute}

// newRig starts engines of this process, and a gateway.
func newRig(t testing.TB, l limits, cfg kvindextest.EngineConfig, pods ...string) *rig {
	t.Helper()
	r := &rig{t: t, engines: map[string]*engine{}, sent: map[string][]*engineRequest{}}
	cfg.Model, cfg.Replay, cfg.LLM = model, true, llm(t)
	var list []events.Pod
	for _, pod := range pods {
		cfg.Pod = pod
		engines, described, err := kvindextest.NewPod(cfg, 1)
		ok(t, err)
		e := &engine{Engine: engines[0], pod: described, rig: r}
		e.api = httptest.NewUnstartedServer(e)
		e.api.Config.ErrorLog = log.New(io.Discard, "", 0)
		e.api.Start()
		_, port, err := net.SplitHostPort(e.api.Listener.Addr().String())
		ok(t, err)
		e.pod.Labels = map[string]string{"port": port}
		r.engines[pod] = e
		list = append(list, e.pod)
		t.Cleanup(func() { e.api.Close(); e.Close() })
	}
	r.start(l, list)
	for _, e := range r.engines {
		ok(t, e.WaitSubscribers(zmtptest.Context(t), 1))
	}
	return r
}

func llm(t testing.TB) kvindex.Model {
	t.Helper()
	m, err := lettersModel()
	ok(t, err)
	return m
}

// start starts a gateway in front of pods.
func (r *rig) start(l limits, list []events.Pod) {
	t := r.t
	t.Helper()
	var err error
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(t.Context())
	r.gateway, err = open(settings{model: model, policy: route.Default, pause: 20 * time.Millisecond, limits: l, log: log.New(io.Discard, "", 0)}, llm(t))
	ok(t, err)
	ok(t, r.gateway.fleet.Set("test", list))
	var running sync.WaitGroup
	running.Go(func() { r.gateway.run(r.ctx) })
	r.front = httptest.NewUnstartedServer(nil)
	r.front.Config = r.gateway.server()
	r.front.Start()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		r.front.Close()
		cancel()
		running.Wait()
		r.gateway.index.Close()
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reply is an answer as a client receives it.
type reply struct {
	status                         int
	body                           []byte
	err                            error // of reading the body
	pod                            string
	prompt, cached, predicted      int // the figures in X-Routed
	reportedPrompt, reportedCached int // -1: the answer has no usage
}

// post sends a request and reads its answer. With leave the client disconnects after the first
// bytes.
func (r *rig) post(path, id, fault, body string, leave bool) (a reply) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.front.URL+path, strings.NewReader(body))
	ok(r.t, err)
	req.Header.Set("X-Request-Id", id)
	req.Header.Set("X-Fault", fault)
	resp, err := r.client.Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	_, _ = fmt.Sscanf(resp.Header.Get("X-Routed"), "pod=%1s; prompt=%d; cached=%d; predicted=%d", &a.pod, &a.prompt, &a.cached, &a.predicted)
	if leave {
		a.body = make([]byte, 8)
		_, a.err = io.ReadFull(resp.Body, a.body)
		return a
	}
	usage := picker.UsageOf(resp.Header, resp.Body)
	a.body, a.err = io.ReadAll(usage)
	u, _ := usage.Usage()
	a.reportedPrompt, a.reportedCached = u.PromptTokens, u.CachedTokens
	return a
}

// until polls until state returns true.
func (r *rig) until(what string, state func() bool) {
	r.t.Helper()
	ctx := zmtptest.Context(r.t)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !state() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			r.t.Fatalf("%s does not come", what)
		}
	}
}

// waitApplied waits until the gateway has applied the events of all engines.
func (r *rig) waitApplied() {
	r.t.Helper()
	for _, e := range r.engines {
		ok(r.t, e.WaitApplied(zmtptest.Context(r.t), r.gateway.index))
	}
}

func bodyOf(fields map[string]any) string {
	b, _ := json.Marshal(fields) // strings and numbers
	return string(b)
}

var conversations = flag.Int("conversations", 300, "conversations of TestConversations, 100 at most with -short; the long form is 1000")

// TestConversations: several clients have conversations with engines that evict and fail. Each
// answer is, byte by byte, the answer of the last engine of its own request. Only a client, or an
// engine that had begun, cuts an answer. In the end the predictions are exact.
func TestConversations(t *testing.T) {
	zmtptest.NoLeaks(t)
	n := *conversations
	if testing.Short() {
		n = min(n, 100)
	}
	r := newRig(t, wide, kvindextest.EngineConfig{Blocks: 150}, "a", "b", "c")
	random := rand.New(rand.NewPCG(1, 1))
	systems := []string{randomText(random, 240), randomText(random, 240), randomText(random, 240)}
	var mu sync.Mutex // guards seen
	seen := map[string]int{}
	var clients sync.WaitGroup
	for client := range 8 {
		random := rand.New(rand.NewPCG(2, uint64(client)))
		clients.Go(func() {
			for talk := client; talk < n; talk += 8 {
				messages := []message{{"system", systems[random.IntN(3)]}}
				for turn := range 3 {
					messages = append(messages, message{"user", randomText(random, 30+random.IntN(60))})
					what := r.converse(random, fmt.Sprint(talk, ".", turn), messages)
					mu.Lock()
					seen[what]++
					mu.Unlock()
					messages = append(messages, message{"assistant", randomText(random, 48)})
				}
			}
		})
	}
	clients.Wait()
	r.gateway.mu.Lock()
	counts := r.gateway.counts
	r.gateway.mu.Unlock()
	t.Logf("%v %+v", seen, counts)
	for what, count := range map[string]int{"left by the client": seen[stall], "broken before the first byte": seen[hangUp], "broken behind it": seen[breakUp],
		"not scorable": counts.ByLoad, "retries": counts.Failovers} {
		if least := n / 20; count < least {
			t.Errorf("%s: %d, want %d", what, count, least)
		}
	}
	if counts.Requests != 3*n || counts.Broken != seen[breakUp] || counts.Failovers != seen[hangUp]+seen["503"]+seen["502"]+seen["504"] {
		t.Errorf("%d requests: %+v", 3*n, counts)
	}
	r.until("the end of all pauses", func() bool {
		return !r.gateway.health.isDown("a") && !r.gateway.health.isDown("b") && !r.gateway.health.isDown("c")
	})
	before := r.quiet()
	hits := 0
	for i := range 60 {
		r.waitApplied()
		messages := []message{{"system", systems[i%3]}, {"user", randomText(random, 30)}}
		a := r.post("/v1/chat/completions", fmt.Sprint("quiet", i), "", bodyOf(map[string]any{"model": model, "messages": messages}), false)
		if a.status != http.StatusOK || a.err != nil || a.predicted != a.reportedCached || a.prompt != a.reportedPrompt {
			t.Fatalf("%d of %s, %v, %d tokens are predicted: %s", a.status, a.pod, a.err, a.predicted, a.body)
		}
		hits += a.reportedCached
	}
	if hits == 0 {
		t.Error("nothing was cached")
	}
	if after := r.quiet(); after.Exact != before.Exact+60 || after.Low != before.Low || after.High != before.High {
		t.Errorf("60 exact predictions: %+v, before %+v", after, before)
	}
}

// quiet waits until there are no requests, and returns the counts: a client may have the whole
// answer before the gateway has ended the request.
func (r *rig) quiet() counts {
	r.t.Helper()
	r.until("the end of all requests", func() bool { return r.gateway.present.Load() == 0 })
	r.gateway.mu.Lock()
	defer r.gateway.mu.Unlock()
	return r.gateway.counts
}

// converse plays a turn. It returns the mistake that it found, or "".
func (r *rig) converse(random *rand.Rand, id string, messages []message) string {
	t := r.t
	fields := map[string]any{"model": model, "messages": messages, "max_tokens": 1 + random.IntN(8)}
	path, what := "/v1/chat/completions", "chat"
	switch random.IntN(4) {
	case 0:
		path, what = "/v1/messages", "messages"
		fields["system"], fields["messages"] = messages[0].Content, messages[1:]
	case 1:
		path, what = "/v1/completions", "completion"
		fields["prompt"] = messages[0].Content
		delete(fields, "messages")
	}
	if random.IntN(2) == 0 {
		fields["stream"] = true
		fields["stream_options"] = map[string]any{"include_usage": random.IntN(2) == 0}
	}
	faults := []string{"503", "502", "504", hangUp, breakUp, stall, "not scorable"}
	fault := ""
	if at := random.IntN(3 * len(faults)); at < len(faults) {
		what, fault = faults[at], faults[at]
	}
	status := http.StatusOK
	if fault == "not scorable" {
		path, fault, status = "/v1/completions", "", http.StatusBadRequest
		delete(fields, "messages")
		fields["prompt"] = []string{"two", "prompts"}
	}
	a := r.post(path, id, fault, bodyOf(fields), fault == stall)
	attempts := 1
	if fault != "" && fault != breakUp && fault != stall {
		attempts = 2
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent[id]
	if len(sent) != attempts {
		t.Errorf("%s, %s: %d attempts, %d of %s, %v", id, what, len(sent), a.status, a.pod, a.err)
		return what
	}
	last := sent[len(sent)-1]
	whole := a.err == nil && bytes.Equal(a.body, last.body)
	if fault == breakUp || fault == stall {
		whole = len(a.body) > 0 && bytes.HasPrefix(last.body, a.body) && (fault == stall) == (a.err == nil)
	}
	if a.status != status || !whole || a.pod != last.pod {
		t.Errorf("%s, %s: %d of %s, %v:\n%s\n%s wrote\n%s", id, what, a.status, a.pod, a.err, a.body, last.pod, last.body)
	}
	if attempts == 2 && sent[0].pod == last.pod {
		t.Errorf("%s, %s: %s got it twice", id, what, last.pod)
	}
	return what
}

func (r *rig) failovers() int {
	r.gateway.mu.Lock()
	defer r.gateway.mu.Unlock()
	return r.gateway.counts.Failovers
}
