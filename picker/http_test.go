package picker_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

const usage = `{"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 16}}}`

// engines has HTTP servers behind a Picker, named a, b and so on.
type engines struct {
	*picker.Picker
	ix       *kvindex.Indexer
	client   http.RoundTripper // by RoundTripper
	answers  chan error        // Usage's errors
	usages   chan kvindex.Usage
	received chan string // "a /path body rank"
}

// serve starts an engine for each handler.
func serve(t *testing.T, handlers ...http.HandlerFunc) *engines {
	zmtptest.NoLeaks(t)
	e := &engines{answers: make(chan error, 16), usages: make(chan kvindex.Usage, 16), received: make(chan string, 64)}
	e.ix, e.Picker = start(t, picker.Config{Model: "m", OnEnd: func(_ *picker.Pick, u kvindex.Usage, err error) {
		e.answers <- err
		e.usages <- u
	}}, nil)
	var pods []picker.Pod
	for i, h := range handlers {
		name := string(rune('a' + i))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			e.received <- fmt.Sprintf("%s %s %s%s", name, req.URL.Path, body, req.Header.Get("X-data-parallel-rank"))
			h(w, req)
		}))
		t.Cleanup(server.Close)
		pods = append(pods, picker.Pod{Name: name, Host: server.Listener.Addr().String()})
	}
	must(t, e.Set(pods))
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	e.client = e.RoundTripper(base)
	return e
}

// idle reports an error if a load or a ticket is left.
func (e *engines) idle(t *testing.T) {
	t.Helper()
	for _, pod := range e.Pods() {
		if got := load(e.Picker, pod.Name, 0); got != (route.Load{}) {
			t.Errorf("%s is left with %+v", pod.Name, got)
		}
	}
	if s := e.ix.Stats().Tickets; s.Live != 0 {
		t.Errorf("tickets: %+v", s)
	}
}

func post(t *testing.T, ctx context.Context, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pod/v1/completions", strings.NewReader(body))
	must(t, err)
	return req
}

func answerUsage(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, usage) }

func busy(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// prompt is a body of 40 tokens.
var prompt = `{"prompt": [` + strings.Repeat("7, ", 39) + `7]}`

// TestRoundTripper: the usage in an answer ends the pick.
func TestRoundTripper(t *testing.T) {
	e := serve(t, answerUsage)
	must(t, e.ix.Ingest("a", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))))
	req := post(t, t.Context(), prompt)
	req.Header.Set("X-data-parallel-rank", "3") // of the client: the pod has one rank
	resp, err := e.client.RoundTrip(req)
	must(t, err)
	if got := load(e.Picker, "a", 0); got.Requests != 1 {
		t.Errorf("before the body is read: %+v", got)
	}
	body, err := io.ReadAll(resp.Body)
	if string(body) != usage || err != nil {
		t.Errorf("%s, %v", body, err)
	}
	if err, u := <-e.answers, <-e.usages; err != nil || u != (kvindex.Usage{PromptTokens: 40, CachedTokens: 16}) {
		t.Errorf("%+v, %v", u, err)
	}
	resp.Body.Close()
	e.idle(t)
	if o := e.ix.Stats().Observed; len(o) != 1 || o[0].Predicted["under"].Requests != 1 {
		t.Errorf("%+v", o)
	}
	if got, want := <-e.received, "a /v1/completions "+prompt; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRetry: after a pod that refuses connections, has no TLS or answers 503, the next pod gets the whole
// body. If no pod is left, the client gets the last answer.
func TestRetry(t *testing.T) {
	e := serve(t, busy, answerUsage, busy)
	resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err, resp)
	}
	if body, err := io.ReadAll(resp.Body); string(body) != usage || err != nil {
		t.Errorf("%s, %v", body, err)
	}
	resp.Body.Close()
	e.idle(t)
	var ends []error
	for len(e.answers) > 0 {
		ends = append(ends, <-e.answers)
	}
	if last := ends[len(ends)-1]; last != nil || len(ends) > 3 || len(ends) > 1 && !strings.HasSuffix(ends[0].Error(), " answers 503") {
		t.Errorf("the attempts ended with %v", ends)
	}
	must(t, e.Set([]picker.Pod{{Name: "refuses", Host: "127.0.0.1:1"}, {Name: "also", Host: "127.0.0.1:2"}}))
	if resp, err := e.client.RoundTrip(post(t, t.Context(), prompt)); err == nil || picker.Status(err) != http.StatusBadGateway || !strings.HasPrefix(err.Error(), `picker: pod "`) {
		t.Errorf("%v, %v", resp, err)
	}
	e.idle(t)
	// No TLS: the handshakes fail.
	must(t, e.Set([]picker.Pod{{Name: "plain", Host: e.host(t, answerUsage)}, {Name: "also", Host: e.host(t, answerUsage)}}))
	req := post(t, t.Context(), prompt)
	req.URL.Scheme = "https"
	ended := len(e.answers)
	if resp, err := e.client.RoundTrip(req); err == nil || len(e.answers)-ended != 2 {
		t.Errorf("%v, %v, after %d pods", resp, err, len(e.answers)-ended)
	}
	e.idle(t)
	must(t, e.Set([]picker.Pod{{Name: "busy", Host: e.host(t, busy)}}))
	resp, err = e.client.RoundTrip(post(t, t.Context(), prompt))
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	e.idle(t)
}

// TestNoRetryAfterSending: a request that a pod has received is not sent again, because it may have
// crashed the pod. The number of pods that a request is sent to is bounded.
func TestNoRetryAfterSending(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		pods    int
	}{
		"dies": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1},
		"busy": {busy, 3},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, c.handler, c.handler, c.handler, c.handler, c.handler)
			resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
			if (err == nil) != (name == "busy") || len(e.received) != c.pods {
				t.Errorf("%d pods received it: %v", len(e.received), err)
			}
			if err == nil {
				resp.Body.Close()
			}
			e.idle(t)
		})
	}
}

// TestNoRepetition: no header of a client makes a Transport send a request again to a pod that has
// received it.
func TestNoRepetition(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		t.Run(header, func(t *testing.T) {
			var served atomic.Int32
			e := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if served.Add(1) > 1 {
					panic(http.ErrAbortHandler)
				}
				answerUsage(w, r)
			})
			resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
			must(t, err)
			_, _ = io.Copy(io.Discard, resp.Body) // the next request has the same connection
			resp.Body.Close()
			req := post(t, t.Context(), prompt)
			req.Header.Set(header, "x")
			if _, err := e.client.RoundTrip(req); err == nil || served.Load() != 2 {
				t.Errorf("%v: the second request was received %d times", err, served.Load()-1)
			}
			e.idle(t)
		})
	}
}

// TestStaleConnection: a request on an idle connection that the engine has closed is sent on a new
// one.
func TestStaleConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { // answers once, and closes when a second request begins
				defer c.Close()
				r := bufio.NewReader(c)
				if req, err := http.ReadRequest(r); err == nil {
					io.Copy(io.Discard, req.Body)
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
					r.ReadByte()
				}
			})
		}
	})
	_, p := start(t, picker.Config{Model: "m"}, []picker.Pod{{Name: "a", Host: l.Addr().String()}})
	base := new(http.Transport)
	client := p.RoundTripper(base)
	for range 3 {
		get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pod/v1/models", nil)
		must(t, err)
		resp, err := client.RoundTrip(get)
		must(t, err)
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
		resp.Body.Close()
	}
	base.CloseIdleConnections()
	l.Close()
	serving.Wait()
}

// TestCloseAfterUsage: a host may stop reading at the end mark of a stream.
func TestCloseAfterUsage(t *testing.T) {
	hold := make(chan struct{})
	e := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: "+usage+"\n\ndata: [DONE]\n\n")
		w.(http.Flusher).Flush()
		<-hold
	})
	resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
	must(t, err)
	for r, line := bufio.NewReader(resp.Body), ""; line != "data: [DONE]\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	resp.Body.Close()
	close(hold)
	if err, u := <-e.answers, <-e.usages; err != nil || u != (kvindex.Usage{PromptTokens: 40, CachedTokens: 16}) {
		t.Errorf("%+v, %v", u, err)
	}
	e.idle(t)
}

// TestHookCloses: OnEnd may close the answer, and an answer may have no body.
func TestHookCloses(t *testing.T) {
	var resp *http.Response
	_, p := start(t, picker.Config{OnEnd: func(*picker.Pick, kvindex.Usage, error) { resp.Body.Close() }}, []picker.Pod{{Name: "a"}})
	for range 2 {
		pick, err := p.Pick(t.Context(), nil)
		must(t, err)
		resp = &http.Response{StatusCode: http.StatusOK}
		pick.Watch(resp)
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
	}
}

func (e *engines) host(t *testing.T, h http.HandlerFunc) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestEarlyEnds: answers that break off, that the host closes, that lack usage, or that have an
// error status.
func TestEarlyEnds(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		read    int // bytes; -1: all
		usage   kvindex.Usage
		failed  bool
	}{
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			io.WriteString(w, long)
		}, -1, kvindex.Usage{PromptTokens: -1, CachedTokens: -1}, true},
		"closed":          {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) }, 10, kvindex.Usage{PromptTokens: -1, CachedTokens: -1}, true},
		"closed at usage": {answerUsage, len(usage), kvindex.Usage{PromptTokens: 40, CachedTokens: 16}, false},
		"no usage":        {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"choices": []}`) }, -1, kvindex.Usage{PromptTokens: -1, CachedTokens: -1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, c.handler)
			resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
			must(t, err)
			if c.read < 0 {
				_, _ = io.ReadAll(resp.Body)
			} else if _, err := io.ReadFull(resp.Body, make([]byte, c.read)); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if err, u := <-e.answers, <-e.usages; (err != nil) != c.failed || u != c.usage {
				t.Errorf("%+v, %v", u, err)
			}
			if len(e.answers) > 0 {
				t.Error("OnEnd is called twice")
			}
			e.idle(t)
		})
	}
	e := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) })
	resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Fatal(err, resp)
	}
	e.idle(t) // before the body is read
	resp.Body.Close()
}

// TestFirstToken: a prompt counts as computed when the first bytes of the answer's body come, not
// when its header comes.
func TestFirstToken(t *testing.T) {
	first, rest := make(chan struct{}), make(chan struct{})
	e := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		flush := w.(http.Flusher).Flush
		flush()
		<-first
		io.WriteString(w, "a")
		flush()
		<-rest
		io.WriteString(w, "b")
	})
	resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
	must(t, err)
	if got, want := load(e.Picker, "a", 0), (route.Load{Requests: 1, Prefill: 40}); got != want {
		t.Errorf("the header has come: %+v, want %+v", got, want)
	}
	close(first)
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if got, want := load(e.Picker, "a", 0), (route.Load{Requests: 1, Decode: 40}); got != want {
		t.Errorf("the first byte has come: %+v, want %+v", got, want)
	}
	close(rest)
	if end, err := io.ReadAll(resp.Body); err != nil || string(end) != "b" {
		t.Errorf("the end is %q, %v", end, err)
	}
	resp.Body.Close()
	e.idle(t)
}

// TestCloseWhileReading: a host may close an answer while it waits for the next bytes.
func TestCloseWhileReading(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	e := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		close(begun)
		<-end
	})
	resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
	must(t, err)
	<-begun
	read := make(chan error)
	go func() {
		_, err := resp.Body.Read(make([]byte, 1))
		read <- err
	}()
	resp.Body.Close()
	if err := <-read; err == nil {
		t.Error("a closed body is read")
	}
	close(end)
	e.idle(t)
}

// TestClientGone: the request of a client that has gone is not sent again.
func TestClientGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	hang := func(http.ResponseWriter, *http.Request) { cancel(); <-end }
	e := serve(t, hang, hang)
	if _, err := e.client.RoundTrip(post(t, ctx, prompt)); !errors.Is(err, context.Canceled) || picker.Status(err) != 499 {
		t.Error(err)
	}
	close(end)
	if <-e.received; len(e.received) > 0 {
		t.Error("sent again")
	}
	e.idle(t)
}

// TestRoundTripperErrors: each error has its status; a GET is sent to a pod, and the rank is in a
// header.
func TestRoundTripperErrors(t *testing.T) {
	e := serve(t, answerUsage)
	if _, err := e.client.RoundTrip(post(t, t.Context(), `no JSON`)); picker.Status(err) != http.StatusBadRequest {
		t.Error(err)
	}
	broken := post(t, t.Context(), prompt)
	broken.Body = io.NopCloser(iotest.ErrReader(errBody))
	if _, err := e.client.RoundTrip(broken); !errors.Is(err, errBody) || picker.Status(err) != http.StatusBadGateway {
		t.Error(err)
	}
	get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pod/v1/models", nil)
	must(t, err)
	resp, err := e.client.RoundTrip(get)
	if err != nil || <-e.received != "a /v1/models " {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	pods := e.Pods()
	pods[0].Ranks = 2
	must(t, e.Set(pods))
	seen := map[string]bool{}
	for range 2 {
		resp, err := e.client.RoundTrip(post(t, t.Context(), prompt))
		must(t, err)
		defer resp.Body.Close()
		got := <-e.received
		seen[got[len(got)-1:]] = true
	}
	if !seen["0"] || !seen["1"] {
		t.Errorf("ranks %v", seen)
	}
	e.SetDown("a", true)
	if _, err := e.client.RoundTrip(post(t, t.Context(), prompt)); picker.Status(err) != http.StatusServiceUnavailable {
		t.Error(err)
	}
	for _, host := range []string{"10.0.0.7", "10.0.0.7:81", "fd00::7", "[fd00::7]", "[fd00::7]:81", ""} {
		var url string
		p, err := picker.New(e.ix, picker.Config{Model: "m"})
		must(t, err)
		must(t, p.Set([]picker.Pod{{Name: "x", Host: host}}))
		rt := p.RoundTripper(roundTrip(func(req *http.Request) (*http.Response, error) {
			url = req.URL.String()
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(nil))}, nil
		}))
		req := post(t, t.Context(), prompt)
		req.URL.Host = "pod:8000"
		if _, err := rt.RoundTrip(req); (err != nil) != (host == "") {
			t.Fatal(err)
		}
		want := map[string]string{
			"10.0.0.7": "http://10.0.0.7:8000/v1/completions", "10.0.0.7:81": "http://10.0.0.7:81/v1/completions",
			"fd00::7": "http://[fd00::7]:8000/v1/completions", "[fd00::7]": "http://[fd00::7]:8000/v1/completions", "[fd00::7]:81": "http://[fd00::7]:81/v1/completions",
		}[host]
		if url != want {
			t.Errorf("%s: %s, want %s", host, url, want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var errBody = errors.New("the body breaks off")
