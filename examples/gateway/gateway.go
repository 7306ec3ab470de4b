package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/picker"
)

// apis has the paths of requests that are forwarded, and their methods.
var apis = map[string]string{
	"/v1/chat/completions": http.MethodPost,
	"/v1/completions":      http.MethodPost,
	"/v1/messages":         http.MethodPost,
	"/v1/models":           http.MethodGet,
}

// limits bounds the requests of clients and the times of pods.
type limits struct {
	body      int64         // bytes of a request's body
	bodyTime  time.Duration // from the header of a request to the end of its body
	requests  int64         // concurrent requests
	firstByte time.Duration // of an answer, from the time when a pod gets the request
	answer    time.Duration // from the request to the end of its answer
}

// A gateway forwards each request to the pod that its Picker picks.
type gateway struct {
	limits
	index     *kvindex.Indexer
	fleet     *events.Fleet
	sources   []events.PodSource
	loads     time.Duration // between two readings of a pod's load
	picker    *picker.Picker
	health    health
	transport *http.Transport
	proxy     httputil.ReverseProxy // without a Transport: each request has its own
	log       *log.Logger
	present   atomic.Int64 // requests

	mu     sync.Mutex // guards counts
	counts counts
}

// counts has the figures of /stats, counted since the start.
type counts struct {
	Requests         int // well-formed requests
	Refused          int // requests, well-formed or not, that the gateway itself answered with an error
	Gone             int // requests whose clients went away before an answer had begun
	Failovers        int // attempts after the first one of a request
	Broken           int // answers that a pod began and did not end
	ByLoad           int // answers to requests that were picked by load because they had no score
	WithoutUsage     int // other answers without usage: the request failed, or the client did not want it
	Exact, Low, High int // the other answers, by their predicted cached tokens against their usage

	PromptTokens, PredictedTokens, CachedTokens int // sums over Exact, Low and High
}

func (g *gateway) count(f func(*counts)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.counts)
}

// ServeHTTP refuses requests that no engine would accept, and forwards the others.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTime))
	method := apis[r.URL.Path]
	own := method == ""
	if r.URL.Path == "/health" || r.URL.Path == "/stats" {
		method = http.MethodGet
	}
	switch {
	case method == "":
		g.refuse(w, http.StatusNotFound, fmt.Errorf("there is no API at %.100q", r.URL.Path))
	case r.Method != method:
		w.Header().Set("Allow", method)
		g.refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%s takes %s, not %.20q", r.URL.Path, method, r.Method))
	case own:
		g.report(w, r.URL.Path)
	default:
		defer g.present.Add(-1)
		if g.present.Add(1) > g.requests {
			g.refuse(w, http.StatusTooManyRequests, fmt.Errorf("there are %d requests already", g.requests))
			return
		}
		g.pass(w, r)
	}
}

// report answers requests about the gateway itself.
func (g *gateway) report(w http.ResponseWriter, path string) {
	if path == "/health" {
		if g.picker.Ready().Pods == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	g.mu.Lock()
	counts := g.counts
	g.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(counts)
}

// pass forwards a request to a pod, and the answer to the client.
func (g *gateway) pass(w http.ResponseWriter, r *http.Request) {
	var body []byte
	if r.Method == http.MethodPost {
		var status int
		var err error
		if body, status, err = g.read(w, r); err != nil {
			g.refuse(w, status, err)
			return
		}
	} else if r.ContentLength == 0 {
		hasCome(w)
	}
	g.count(func(c *counts) { c.Requests++ })
	r.Header.Del("Upgrade") // engines speak HTTP only
	ctx, cancel := context.WithTimeout(r.Context(), g.answer)
	defer cancel()
	proxy := g.proxy
	proxy.Transport = attempts{g, body}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// hasCome clears the read deadline when the whole request is here. From then on the server reads
// the connection only to notice that the client has gone.
func hasCome(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// read reads a body. It must be JSON that names a model; the engine checks the rest. status is
// the status of the error.
func (g *gateway) read(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, g.body))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", g.body)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, http.StatusRequestTimeout, fmt.Errorf("the body takes longer than %v", g.bodyTime)
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the body: %w", err)
	}
	hasCome(w)
	var fields map[string]json.RawMessage // a struct would take MODEL for model
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the body is malformed: %w", err)
	}
	if model := fields["model"]; model == nil || string(model) == "null" {
		return nil, http.StatusBadRequest, errors.New("the body names no model")
	}
	return body, 0, nil
}

// refuse answers with an error in the form of OpenAI's API.
func (g *gateway) refuse(w http.ResponseWriter, status int, err error) {
	g.count(func(c *counts) { c.Refused++ })
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error(), "type": kind, "param": nil, "code": status}})
}

// attempts is a RoundTripper that sends a request to one pod after the other, until one begins to
// answer.
type attempts struct {
	*gateway
	body []byte // nil: the request has no prompt
}

var (
	errNoAnswer = errors.New("no pod has answered")
	errLate     = fmt.Errorf("no byte of an answer came in time: %w", context.DeadlineExceeded)
)

// maxTries bounds the pods that get a request: one that kills engines must not reach all of them.
const maxTries = 3

// RoundTrip returns the first answer that a pod begins, else the result of the last attempt.
func (a attempts) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	pick, err := a.pick(ctx, req.URL.Path)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		resp, err := a.send(req, pick)
		if err == nil && !unavailable(resp.StatusCode) {
			a.health.succeed(pick.Pod.Name)
			pick.Watch(resp)
			return resp, nil
		}
		if ctx.Err() != nil { // the client has gone, or the request's time is over: the pod did not fail
			pick.Failed()
			if resp != nil {
				resp.Body.Close()
			}
			return nil, ctx.Err()
		}
		if err == nil {
			a.log.Printf("pod %s answers %s", pick.Pod.Name, resp.Status)
		} else {
			a.log.Printf("pod %s: %v", pick.Pod.Name, err)
		}
		a.health.fail(pick.Pod.Name)
		if try == maxTries {
			pick.Failed()
			return resp, err
		}
		next, none := pick.Next(ctx)
		if none != nil {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		a.count(func(c *counts) { c.Failovers++ })
		pick = next
	}
}

func unavailable(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// pick picks a pod. A request that no engine would accept is picked by load: the error is then
// that of an engine.
func (a attempts) pick(ctx context.Context, path string) (*picker.Pick, error) {
	if a.body != nil {
		pick, err := a.picker.Pick(ctx, &kvindex.Request{Body: a.body, Path: path})
		if !errors.Is(err, kvindex.ErrRequest) {
			return pick, err
		}
	}
	return a.picker.Pick(ctx, nil)
}

// send sends a request to the pod of a pick, and waits for the first byte of the answer. If it
// does not come in time, the request is cancelled.
func (a attempts) send(req *http.Request, pick *picker.Pick) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	late := time.AfterFunc(a.firstByte, cancel)
	out := req.WithContext(ctx)
	out.URL = &url.URL{Scheme: "http", Host: pick.Pod.Host, Path: req.URL.Path, RawQuery: req.URL.RawQuery}
	out.Body, out.ContentLength, out.TransferEncoding, out.Trailer = nil, int64(len(a.body)), nil, nil
	if a.body != nil {
		// With GetBody, a Transport repeats a request that a closed connection has not accepted.
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a.body)), nil }
		out.Body, _ = out.GetBody()
	}
	if pick.Pod.Ranks > 1 {
		out.Header = req.Header.Clone()
		out.Header.Set("X-data-parallel-rank", strconv.Itoa(pick.Rank))
	}
	resp, err := a.transport.RoundTrip(out)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols { // no context ends such a connection
		resp.Body.Close()
		resp, err = nil, errors.New("it answers by another protocol")
	}
	var begun *bufio.Reader
	if err == nil {
		begun = bufio.NewReaderSize(resp.Body, 512) // longer reads bypass the buffer
		if _, err = begun.Peek(1); errors.Is(err, io.EOF) {
			err = nil // the answer is empty
		}
	}
	if !late.Stop() {
		err = errLate
	}
	if err != nil {
		cancel()
		if resp != nil {
			resp.Body.Close()
		}
		return nil, err
	}
	resp.Header.Set("X-Routed", fmt.Sprintf("pod=%s; prompt=%d; cached=%d; predicted=%d", pick.Pod.Name, pick.PromptTokens, pick.CachedTokens, pick.PredictedTokens))
	resp.Body = &answer{gateway: a.gateway, pod: pick.Pod.Name, client: req.Context(), cancel: cancel, begun: begun, body: resp.Body}
	return resp, nil
}

// An answer is an answer that a pod has begun. If it breaks off, the gateway breaks the connection
// to the client, too.
type answer struct {
	*gateway
	pod    string
	client context.Context
	cancel func()
	begun  *bufio.Reader
	body   io.Closer
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.begun.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && a.client.Err() == nil {
		a.log.Printf("pod %s breaks an answer off: %v", a.pod, err)
		a.health.fail(a.pod)
		a.count(func(c *counts) { c.Broken++ })
	}
	return n, err
}

func (a *answer) Close() error {
	a.cancel()
	return a.body.Close()
}

// onEnd counts an answer, and compares its prediction with its usage. It is Config.OnEnd.
func (g *gateway) onEnd(pick *picker.Pick, u kvindex.Usage, err error) {
	g.count(func(c *counts) {
		switch {
		case pick.Err != nil:
			c.ByLoad++
			return
		case err != nil:
			c.WithoutUsage++
			return
		case pick.PredictedTokens == u.CachedTokens:
			c.Exact++
		case pick.PredictedTokens < u.CachedTokens:
			c.Low++
		default:
			c.High++
		}
		c.PromptTokens += u.PromptTokens
		c.PredictedTokens += pick.PredictedTokens
		c.CachedTokens += u.CachedTokens
	})
}
