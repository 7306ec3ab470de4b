package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

const hello = `{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}`

// TestRefusals: the answer to a wrong request has the documented status, and its error names the
// mistake. A mistake that only an engine finds is answered by an engine.
func TestRefusals(t *testing.T) {
	zmtptest.NoLeaks(t)
	l := wide
	l.body = 1000
	r := newRig(t, l, kvindextest.EngineConfig{}, "a")
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
		byEngine           bool
	}{
		{"POST", "/v1/chat/completions", hello, 200, `"usage"`, true},
		{"GET", "/v1/models", "", 200, `"id":"m"`, true},
		{"POST", "/v1/embeddings", hello, 404, `there is no API at \"/v1/embeddings\"`, false},
		{"GET", "/", "", 404, "no API", false},
		{"GET", "/v1/completions", "", 405, "takes POST", false},
		{"POST", "/v1/models", hello, 405, "takes GET", false},
		{"POST", "/v1/completions", `{"prompt": "x"}`, 400, "names no model", false},
		{"POST", "/v1/completions", `{"model": null, "prompt": "x"}`, 400, "names no model", false},
		{"POST", "/v1/completions", `{"model": "m", "MODEL": null, "prompt": "x"}`, 200, `"usage"`, true},
		{"POST", "/v1/completions", `{"MODEL": "m", "prompt": "x"}`, 400, "names no model", false},
		{"POST", "/v1/completions", ``, 400, "malformed", false},
		{"POST", "/v1/completions", `{"model": "m", "prompt": `, 400, "malformed", false},
		{"POST", "/v1/completions", `[1]`, 400, "malformed", false},
		{"POST", "/v1/completions", `{"model": "m", "prompt": "` + strings.Repeat("x", 1000) + `"}`, 413, "longer than 1000 bytes", false},
		{"POST", "/v1/completions", `{"model": "other", "prompt": "x"}`, 404, `the model \"other\" does not exist`, true},
		{"POST", "/v1/completions", `{"model": "m", "prompt": 5}`, 400, "prompt", true},
		{"POST", "/v1/completions", `{"model": 5, "prompt": "x"}`, 400, "model", true},
	} {
		req, err := http.NewRequest(c.method, r.front.URL+c.path, strings.NewReader(c.body))
		ok(t, err)
		resp, err := r.client.Do(req)
		ok(t, err)
		answer, err := io.ReadAll(resp.Body)
		ok(t, err)
		var shaped struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		err = json.Unmarshal(answer, &shaped)
		if resp.StatusCode != c.status || !bytes.Contains(answer, []byte(c.says)) || err != nil ||
			c.status != 200 && (shaped.Error.Code != c.status || shaped.Error.Message == "" || shaped.Error.Type == "") {
			t.Errorf("%s %s %.50s: %d, want %d, %s: %s", c.method, c.path, c.body, resp.StatusCode, c.status, c.says, answer)
		}
		if byEngine := resp.Header.Get("X-Routed") != ""; byEngine != c.byEngine {
			t.Errorf("%s %s %.50s: answered by the engine: %t", c.method, c.path, c.body, byEngine)
		}
	}
	for path, says := range map[string]string{"/health": "", "/stats": `"Refused":11`} {
		resp, err := r.client.Get(r.front.URL + path)
		ok(t, err)
		if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), says) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, answer)
		}
	}
	ok(t, r.gateway.fleet.Set("test", nil))
	r.until("the end of the pod", func() bool { return len(r.gateway.picker.Pods()) == 0 })
	if a := r.post("/v1/chat/completions", "late", "", hello, false); a.status != 503 || !bytes.Contains(a.body, []byte("no pod")) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if resp, err := r.client.Get(r.front.URL + "/health"); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health: %v, %v", resp, err)
	}
}

// TestHung: each pod that does not answer in time gets the request once, and the request is
// cancelled there.
func TestHung(t *testing.T) {
	zmtptest.NoLeaks(t)
	l := wide
	l.firstByte = 200 * time.Millisecond
	r := newRig(t, l, kvindextest.EngineConfig{}, "a", "b", "c")
	n := 0
	r.until("a request at all pods", func() bool { // a slow machine may cancel a request before it arrives
		n++
		before := r.failovers()
		a := r.post("/v1/chat/completions", fmt.Sprint(n), hang, hello, false)
		if a.status != http.StatusGatewayTimeout || !bytes.Contains(a.body, []byte(errNoAnswer.Error())) {
			t.Errorf("%d, %v: %s", a.status, a.err, a.body)
		}
		if f := r.failovers() - before; f != 2 {
			t.Errorf("%d failovers", f)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.sent[fmt.Sprint(n)]) == 3
	})
	r.until("the end of the requests", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		got := map[string]bool{}
		for _, s := range r.sent[fmt.Sprint(n)] {
			got[s.pod] = s.cancelled
		}
		return got["a"] && got["b"] && got["c"]
	})
}

// TestGone: a client that closes its half of the connection counts as gone, and not as a failure
// of the pod or the gateway.
func TestGone(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a")
	c, err := net.Dial("tcp", r.front.Listener.Addr().String())
	ok(t, err)
	defer c.Close()
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: 1\r\nX-Fault: %s\r\nContent-Length: %d\r\n\r\n%s", hang, len(hello), hello)
	r.until("the request at the pod", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.sent["1"]) == 1
	})
	ok(t, c.(*net.TCPConn).CloseWrite())
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	ok(t, err)
	defer resp.Body.Close()
	r.gateway.mu.Lock()
	defer r.gateway.mu.Unlock()
	if n := r.gateway.counts; resp.StatusCode != 499 || n.Gone != 1 || n.Refused != 0 || n.Failovers != 0 || r.gateway.health.isDown("a") {
		t.Errorf("%s, %+v", resp.Status, n)
	}
}

// TestMaxTries: a request reaches three pods at most.
func TestMaxTries(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a", "b", "c", "d")
	for _, e := range r.engines {
		e.FailHTTP(1, http.StatusServiceUnavailable)
	}
	if a := r.post("/v1/chat/completions", "1", "", hello, false); a.status != http.StatusServiceUnavailable || r.failovers() != 2 {
		t.Errorf("%d of %s, %v, %d failovers: %s", a.status, a.pod, a.err, r.failovers(), a.body)
	}
	r.quiet()
}

// TestUnavailable: when all pods answer 503, the client gets the 503.
func TestUnavailable(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a", "b")
	for _, e := range r.engines {
		e.FailHTTP(1, http.StatusServiceUnavailable)
	}
	if a := r.post("/v1/completions", "1", "", `{"model": "m", "prompt": "x"}`, false); a.status != 503 || !bytes.Contains(a.body, []byte("FailHTTP")) || a.pod == "" {
		t.Errorf("%d of %s, %v: %s", a.status, a.pod, a.err, a.body)
	}
	// Both pods are excluded, and yet a request is sent.
	if a := r.post("/v1/completions", "2", "", `{"model": "m", "prompt": "x"}`, false); a.status != 200 {
		t.Errorf("%d of %s, %v: %s", a.status, a.pod, a.err, a.body)
	}
}

// TestSwitching: a pod that switches to another protocol unasked does not keep the request open.
func TestSwitching(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a")
	r.engines["a"].api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until the gateway ends it
	})
	if a := r.post("/v1/completions", "1", "", hello, false); a.status != http.StatusBadGateway || !bytes.Contains(a.body, []byte(errNoAnswer.Error())) {
		t.Errorf("%d, %v: %s", a.status, a.err, a.body)
	}
	if _, err := r.gateway.health.get(t.Context(), r.gateway.picker.Pods()[0], "/metrics"); err == nil || !strings.Contains(err.Error(), "it answers 101") {
		t.Errorf("the load: %v", err)
	}
}

// deadlines is a ResponseWriter that records the last read deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.read = at; return nil }

// TestReadDeadline: the time limit of a body does not end a request without a body, or one whose
// body is complete.
func TestReadDeadline(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a")
	for _, c := range []struct {
		method, path, body string
		open               bool
	}{
		{"POST", "/v1/completions", hello, true},
		{"GET", "/v1/models", "", true},
		{"GET", "/v1/models", hello, false}, // a body that nobody reads
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r.gateway.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.read.IsZero() != c.open {
			t.Errorf("%s %s %s: %v", c.method, c.path, c.body, w.read)
		}
	}
}

// TestLeavingPod: a pod that leaves the fleet completes the answer that it has begun.
func TestLeavingPod(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{StepTime: time.Millisecond}, "a")
	resp, err := r.client.Post(r.front.URL+"/v1/completions", "", strings.NewReader(`{"model": "m", "prompt": "x", "stream": true, "max_tokens": 300}`))
	ok(t, err)
	defer resp.Body.Close()
	ok(t, r.gateway.fleet.Set("test", nil))
	r.until("the end of the pod", func() bool { return len(r.gateway.picker.Pods()) == 0 })
	if all, err := io.ReadAll(resp.Body); err != nil || !bytes.HasSuffix(all, []byte("data: [DONE]\n\n")) {
		t.Errorf("%v: %s", err, all)
	}
}

// TestAtOnce: requests above the limit are refused, and leave no load behind.
func TestAtOnce(t *testing.T) {
	zmtptest.NoLeaks(t)
	l := wide
	l.requests = 1
	r := newRig(t, l, kvindextest.EngineConfig{}, "a")
	first := make(chan reply)
	leave, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		req, _ := http.NewRequest(http.MethodPost, r.front.URL+"/v1/completions", strings.NewReader(`{"model": "m", "prompt": "x", "stream": true}`))
		req.Header.Set("X-Request-Id", "1")
		req.Header.Set("X-Fault", stall)
		resp, err := r.client.Do(req)
		if err != nil {
			first <- reply{err: err}
			return
		}
		first <- reply{status: resp.StatusCode}
		<-leave
		resp.Body.Close()
	}()
	if a := <-first; a.status != 200 {
		t.Fatal(a.status, a.err)
	}
	if a := r.post("/v1/completions", "2", "", `{"model": "m", "prompt": "x"}`, false); a.status != http.StatusTooManyRequests {
		t.Errorf("%d %s", a.status, a.body)
	}
	close(leave)
	<-gone
	r.until("the end of the request", func() bool { return r.gateway.present.Load() == 0 })
	if a := r.post("/v1/completions", "3", "", `{"model": "m", "prompt": "x"}`, false); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestHeaders: headers of one connection, and headers that choose a rank, are not forwarded; all
// others are.
func TestHeaders(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a")
	req, err := http.NewRequest(http.MethodPost, r.front.URL+"/v1/chat/completions?q=1", strings.NewReader(hello))
	ok(t, err)
	for name, value := range map[string]string{
		"X-Request-Id": "1", "Authorization": "Bearer x", "Connection": "X-Hop, Upgrade", "X-Hop": "1", "Upgrade": "websocket", "Te": "trailers",
		"X-Data-Parallel-Rank": "3", "Idempotency-Key": "1", "Accept-Encoding": "gzip",
	} {
		req.Header.Set(name, value)
	}
	resp, err := r.client.Do(req)
	ok(t, err)
	resp.Body.Close()
	got := r.sent["1"][0].header
	for _, name := range []string{"X-Hop", "Upgrade", "Connection", "X-Data-Parallel-Rank", "Idempotency-Key", "Accept-Encoding"} {
		if got.Get(name) != "" {
			t.Errorf("%s is passed on: %q", name, got.Get(name))
		}
	}
	if resp.StatusCode != http.StatusOK || got.Get("Authorization") != "Bearer x" || got.Get("X-Forwarded-For") == "" {
		t.Errorf("%d, %v", resp.StatusCode, got)
	}
}

// TestHealth: the pause of a pod grows from check to check and from failure to failure. A check
// that the pod passes ends the pause, and an answer resets it. A policy does not choose an
// excluded pod unless there is no other.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the variables below
		var asked []time.Duration
		begun := time.Now()
		healthy := false
		pods := []picker.Pod{{Name: "a", Host: "a"}, {Name: "b", Host: "b"}}
		locked := func(do func()) { mu.Lock(); defer mu.Unlock(); do() }
		check := roundTrip(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, time.Since(begun))
			if !healthy {
				return nil, errors.New("it is dead")
			}
			return httptest.NewRecorder().Result(), nil
		})
		h := health{pause: time.Second, client: &http.Client{Transport: check}, failed: map[string]*failure{}}
		policy := h.around(route.RoundRobin())
		two := []route.Pod{{Name: "a"}, {Name: "b"}}
		chosen := func(pods []route.Pod) string {
			seen := map[string]bool{}
			for range 4 {
				seen[pods[policy(new(route.Request), pods)].Name] = true
			}
			all := []string{}
			for name := range seen {
				all = append(all, name)
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		go watch(t.Context(), h.pause/4, func() []picker.Pod {
			mu.Lock()
			defer mu.Unlock()
			return h.due(pods)
		}, h.check)
		expect := func(want string) {
			t.Helper()
			if got := chosen(two); got != want || chosen(two[:1]) != "a" {
				t.Errorf("chosen of both are %s, want %s; of a %s", got, want, chosen(two[:1]))
			}
		}
		expect("a b")
		h.fail("a")
		h.fail("a")
		h.succeed("a") // an answer to a request from before the failure
		expect("b")
		time.Sleep(8 * time.Second)
		locked(func() {
			if got := fmt.Sprint(asked); got != "[1s 3s 7s]" {
				t.Errorf("checked after %s", got)
			}
			healthy = true
		})
		time.Sleep(8 * time.Second) // the next check is after 15 s
		expect("a b")
		h.fail("a")
		time.Sleep(15 * time.Second)
		expect("b")
		time.Sleep(2 * time.Second)
		expect("a b")
		h.succeed("a")
		h.fail("a")
		time.Sleep(2 * time.Second)
		expect("a b")
		h.fail("a")
		locked(func() { pods = pods[1:] }) // the pod leaves the fleet
		time.Sleep(2 * time.Second)
		expect("a b")
		synctest.Wait()
		if len(h.failed) != 0 {
			t.Errorf("%d pods are kept", len(h.failed))
		}
	})
}

// TestLoads: the load that an engine reports counts for its pod, as long as the engine reports it.
func TestLoads(t *testing.T) {
	zmtptest.NoLeaks(t)
	r := newRig(t, wide, kvindextest.EngineConfig{}, "a", "b")
	r.engines["a"].waiting.Store(50)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); watch(ctx, time.Millisecond, r.gateway.picker.Pods, r.gateway.readLoad) }()
	requests := func() int {
		pods := []route.Pod{{Name: "a"}}
		r.gateway.picker.Loads().Fill(pods)
		return pods[0].Load.Requests
	}
	r.until("the load of a", func() bool { return requests() == 51 })
	r.engines["a"].waiting.Store(0)
	r.until("the end of the load of a", func() bool { return requests() == 1 })
	cancel()
	<-done
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// TestSources: pods of the command line and of a file have the addresses of their APIs.
func TestSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pods.json")
	ok(t, os.WriteFile(file, []byte(`[{"id": "c", "model": "m", "host": "10.0.0.9", "engine": "none"}, {"id": "d", "model": "m", "host": "::1", "engine": "none", "labels": {"port": "81"}}]`), 0o600))
	s := settings{model: model, policy: route.Default, pause: time.Second, pods: "a=10.0.0.7:80,b=[::2]:8080", file: file, port: "8000", estimated: 100, limits: wide}
	g, err := open(s, llm(t))
	ok(t, err)
	defer g.index.Close()
	r := &rig{t: t}
	done := make(chan struct{})
	ctx := zmtptest.Context(t)
	go func() { defer close(done); g.run(ctx) }()
	r.until("all pods", func() bool { return len(g.picker.Pods()) == 4 })
	var got []string
	for _, pod := range g.picker.Pods() {
		got = append(got, pod.Name+"="+pod.Host)
	}
	if want := "a=10.0.0.7:80 b=[::2]:8080 c=10.0.0.9:8000 d=[::1]:81"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	for _, wrong := range []settings{{pods: "a"}, {pods: "10.0.0.7:80"}, {pods: "a=10.0.0.7"}, {dns: "no name"}} {
		wrong.model = model
		if _, err := wrong.sources(); err == nil {
			t.Errorf("%+v has no error", wrong)
		}
	}
	if _, err := open(settings{model: model}, llm(t)); err == nil || !strings.Contains(err.Error(), "-pause") {
		t.Error(err)
	}
	if _, err := policyOf("best"); err == nil || !strings.Contains(err.Error(), "dynamo") {
		t.Error(err)
	}
}

// tinyModel returns a folder with a model.
func tinyModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tokenizer, err := os.ReadFile("../../tokenize/testdata/tiny.json")
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizer, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"}`), 0o600))
	return dir
}

// TestServe: a gateway with settings of the command line answers. When it is interrupted, it ends
// after the answer that has begun is complete.
func TestServe(t *testing.T) {
	zmtptest.NoLeaks(t)
	dir := tinyModel(t)
	end := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprint(w, "begun, ")
		_ = http.NewResponseController(w).Flush()
		<-end
		fmt.Fprint(w, "ended")
	}))
	defer engine.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := settings{
		model: model, folder: dir, policy: route.Default, pause: time.Second, limits: wide, log: log.New(io.Discard, "", 0),
		pods: "a=" + engine.Listener.Addr().String(), estimated: 100, all: events.Pod{Port: 5557, ReplayPort: 5657, Ranks: 1},
	}
	ctx, interrupt := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, listener, s) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	r := &rig{t: t}
	var resp *http.Response
	r.until("an answer", func() bool {
		if resp, err = client.Post("http://"+listener.Addr().String()+"/v1/completions", "", strings.NewReader(hello)); err == nil && resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return false
		}
		return err == nil
	})
	defer resp.Body.Close()
	interrupt()
	close(end)
	if all, err := io.ReadAll(resp.Body); err != nil || string(all) != "begun, ended" || resp.Header.Get("X-Routed") == "" {
		t.Errorf("%v: %s", err, all)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	listener.Close()
	if err := serve(context.WithoutCancel(ctx), listener, s); !errors.Is(err, net.ErrClosed) { // its listener is closed
		t.Errorf("a listener that is closed: %v", err)
	}
	s.folder = t.TempDir()
	if err := serve(ctx, nil, s); err == nil {
		t.Error("a folder without a model is served")
	}
	s.folder, s.pods = dir, ""
	if err := serve(ctx, nil, s); err == nil || !strings.Contains(err.Error(), "no pods") {
		t.Error(err)
	}
}

var hostile = flag.Int("hostile", 300, "hostile requests of TestHostile; the long form is 10000")

// TestHostile: the answers to hostile requests have documented statuses, and the requests leave
// nothing behind.
func TestHostile(t *testing.T) {
	zmtptest.NoLeaks(t)
	l := wide
	l.bodyTime, l.body = 20*time.Millisecond, 64<<10
	r := newRig(t, l, kvindextest.EngineConfig{}, "a", "b")
	random := rand.New(rand.NewPCG(5, 5))
	documented := []int{200, 400, 404, 405, 408, 413, 417, 429, 431, 499, 501, 502, 503, 504, 505}
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hello))
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(hello), hello)
	forms := []func() string{
		func() string { return head + length + "Transfer-Encoding: chunked\r\n\r\n" + chunked + "\r\n" },
		func() string { return head + length + "Content-Length: 3\r\n\r\n" + hello },
		func() string { return head + "Content-Length: -5\r\n\r\n" + hello },
		func() string { return head + "Content-Length: 1e1\r\n\r\n" + hello },
		func() string { return head + "Transfer-Encoding: chunked, identity\r\n\r\n" + chunked + "\r\n" },
		func() string { return head + "Transfer-Encoding: xchunked\r\n\r\n" + chunked + "\r\n" },
		func() string { return head + "Transfer-Encoding : chunked\r\n\r\n" + chunked + "\r\n" },
		func() string { return head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + hello },
		func() string { return head + "Transfer-Encoding: chunked\r\n\r\n" + hello },
		func() string {
			return head + "Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n" + chunked + "X-Late: 1\r\nContent-Length: 5\r\n\r\n"
		},
		func() string { return head + "X-Large: " + strings.Repeat("x", 1<<20) + "\r\n\r\n" },
		func() string { return head + strings.Repeat("X-Many: x\r\n", 10_000) + "\r\n" },
		func() string { return head + length + "Connection: Content-Length, X-Routed\r\n\r\n" + hello },
		func() string { return head + length + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + hello },
		func() string { return head + length + "Expect: 100-continue\r\n\r\n" + hello },
		func() string { return head + length + "Expect: 200-maybe\r\n\r\n" + hello },
		func() string { return head + length + "X-Bad: a\x00b\r\n\r\n" + hello },
		func() string { return head + length + "\r\n" + hello[:random.IntN(len(hello))] }, // a body that stops early
		func() string { return "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n" + length + "\r\n" + hello[:9] },
		func() string { return head + "Content-Length: 99999999\r\n\r\n" + strings.Repeat(hello, 1000) },
		func() string {
			return "POST http://other/v1/chat/completions HTTP/1.1\r\nHost: y\r\n" + length + "\r\n" + hello
		},
		func() string {
			return "POST //v1/../v1/chat/completions HTTP/1.1\r\nHost: y\r\n" + length + "\r\n" + hello
		},
		func() string { return "CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n" },
		func() string { return "GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n" },
		func() string { return "POST /v1/chat/completions HTTP/1.1\r\n" + length + "\r\n" + hello },
		func() string { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" },
		func() string { return head + length + "\r\n" + strings.Repeat("[", len(hello)) },
		func() string { // some bytes changed
			b := []byte(head + length + "\r\n" + hello)
			for range 1 + random.IntN(4) {
				b[random.IntN(len(b))] = byte(random.IntN(256))
			}
			return string(b)
		},
	}
	statuses := map[int]int{}
	for i := range *hostile {
		c, err := net.Dial("tcp", r.front.Listener.Addr().String())
		ok(t, err)
		text := forms[i%len(forms)]()
		go func() { // the gateway may answer before it has read everything
			_, _ = io.WriteString(c, text)
			// Closing ends a request of which the gateway expects more.
			if i%2 == 0 {
				_ = c.(*net.TCPConn).CloseWrite()
			}
		}()
		answer := bufio.NewReader(c)
		resp, err := http.ReadResponse(answer, nil)
		if err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(answer, nil)
		}
		if err == nil {
			statuses[resp.StatusCode]++
			if !slices.Contains(documented, resp.StatusCode) {
				t.Errorf("%d for %.300q", resp.StatusCode, text)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		c.Close()
	}
	t.Logf("%v", statuses)
	r.until("the end of all requests", func() bool { return r.gateway.present.Load() == 0 })
	r.until("an answer", func() bool { // a slow machine may exceed the time limit of a body
		return r.post("/v1/chat/completions", "", "", hello, false).status == http.StatusOK
	})
}
