package picker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex"
)

// maxTries bounds the pods that a RoundTripper sends a request to: when the whole fleet is busy,
// retries must not multiply its load.
const maxTries = 3

// RoundTripper returns a http.RoundTripper that sends each request to the pod that Pick picks
// for its body, by base (nil: http.DefaultTransport), and watches the answer. If no connection to
// the pod can be made, or it answers 503, the request is sent to the Next pod, up to three pods
// in all; then the last error or answer is returned. A connection that breaks later is an error:
// the pod may have computed the prompt, and may have died of it.
//
// Use it as the Transport of a httputil.ReverseProxy. It reads the whole body of a request into
// memory, so limit it by http.MaxBytesHandler. The host in the URL is replaced by Pod.Host, and
// its port is kept if Pod.Host has none. A request for a pod of several ranks gets the header
// X-data-parallel-rank; that of a client is removed, and so is an Idempotency-Key, with which a
// Transport would repeat the request to the same pod. Status has the HTTP status for an error.
// http.DefaultTransport keeps two idle connections to each pod: busy gateways give a Transport
// with more.
func (p *Picker) RoundTripper(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return roundTripper{p, base}
}

type roundTripper struct {
	*Picker
	base http.RoundTripper
}

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	body := []byte{} // not nil: Pick refuses an empty body, which is no JSON
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	ctx := req.Context()
	var scored *kvindex.Request // a GET has no prompt
	if req.Method == http.MethodPost {
		scored = &kvindex.Request{Body: body, Path: req.URL.Path}
	}
	pick, err := t.Pick(ctx, scored)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		resp, unsent, err := t.send(pick, req, body)
		if err == nil && resp.StatusCode != http.StatusServiceUnavailable {
			pick.Watch(resp)
			return resp, nil
		}
		pick.report(unknownUsage, cmp.Or(err, pick.status(resp)))
		if try == maxTries || ctx.Err() != nil || err != nil && !unsent {
			pick.Failed()
			return resp, err
		}
		next, none := pick.Next(ctx)
		if none != nil {
			return resp, err
		}
		if err == nil {
			resp.Body.Close()
		}
		pick = next
	}
}

// send sends a request to the pod of a pick. unsent: the pod has not received it.
func (t roundTripper) send(k *Pick, req *http.Request, body []byte) (resp *http.Response, unsent bool, err error) {
	host := strings.TrimSuffix(strings.TrimPrefix(k.Pod.Host, "["), "]")
	if port := req.URL.Port(); strings.Contains(host, "]:") || strings.Count(host, ":") == 1 {
		host = k.Pod.Host // with its own port
	} else if port != "" {
		host = net.JoinHostPort(host, port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if host == "" || strings.HasPrefix(host, ":") {
		return nil, true, fmt.Errorf("picker: pod %.100q: it has no Host", k.Pod.Name)
	}
	// A connection also fails in its TLS handshake.
	var connects, connected atomic.Bool
	out := req.Clone(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { connects.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	out.URL.Host, out.Body, out.ContentLength = host, http.NoBody, int64(len(body))
	if len(body) > 0 {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		out.Body, _ = out.GetBody()
	}
	out.Header.Del("Accept-Encoding") // a Transport sets its own and decompresses the answer, so the usage can be read
	out.Header.Del("Expect")          // the body is here already
	out.Header.Del("Idempotency-Key") // with it, or the other form, a Transport repeats the request to a pod that may have died of it
	out.Header.Del("X-Idempotency-Key")
	out.Header.Del("X-data-parallel-rank")
	if k.Pod.Ranks > 1 {
		out.Header.Set("X-data-parallel-rank", strconv.Itoa(k.Rank))
	}
	if resp, err = t.base.RoundTrip(out); err != nil {
		var op *net.OpError
		unsent = connects.Load() && !connected.Load() || errors.As(err, &op) && op.Op == "dial"
		err = fmt.Errorf("picker: pod %.100q: %w", k.Pod.Name, err)
	}
	return resp, unsent, err
}

// Status returns the HTTP status for an error of Pick, Next or the RoundTripper: 400 if no
// engine would take the request, 503 if there is no pod, 413 if the body is larger than
// http.MaxBytesHandler allows, 504 after a deadline, 499 if the context was canceled, as that of
// a request is whose client has gone, else 502. A net/http server also takes a client for gone
// that closes only its own half of the connection: that one reads the status.
func Status(err error) int {
	switch {
	case errors.Is(err, kvindex.ErrRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrNoPod):
		return http.StatusServiceUnavailable
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		return 499 // as nginx logs it
	}
	return http.StatusBadGateway
}

// Watch lets the answer of the pod end the pick. It replaces resp.Body by one that calls
// FirstToken at the first byte, and Done with the usage in the answer when that is known and the
// answer has ended, or the host closes it. If the answer breaks off, or is closed, without its
// usage, it calls Failed. For a status other than 2xx it calls Failed at once, and does not change
// the Body.
func (k *Pick) Watch(resp *http.Response) {
	if resp.StatusCode/100 != 2 {
		k.Failed()
		k.report(unknownUsage, k.status(resp))
		return
	}
	body := resp.Body
	if body == nil {
		body = http.NoBody
	}
	resp.Body = &watchedBody{usage: UsageOf(resp.Header, body), body: body, pick: k}
}

func (k *Pick) status(resp *http.Response) error {
	if resp == nil {
		return nil
	}
	return fmt.Errorf("picker: pod %.100q answers %d", k.Pod.Name, resp.StatusCode)
}

// report calls Config.OnEnd.
func (k *Pick) report(u kvindex.Usage, err error) {
	if hook := k.picker.cfg.OnEnd; hook != nil {
		hook(k, u, err)
	}
}

// watchedBody is the body of an answer.
type watchedBody struct {
	usage *UsageReader
	body  io.Closer
	pick  *Pick
	ended atomic.Bool
	mu    sync.Mutex // guards usage: Close may be called while Read waits
}

func (w *watchedBody) Read(p []byte) (int, error) {
	w.mu.Lock()
	n, err := w.usage.Read(p)
	u, why := unknownUsage, error(nil)
	if err != nil {
		u, why = w.usage.Usage()
	}
	w.mu.Unlock()
	if n > 0 {
		w.pick.FirstToken()
	}
	if err != nil {
		w.end(errors.Is(err, io.EOF), u, why)
	}
	return n, err
}

func (w *watchedBody) Close() error {
	u, why := unknownUsage, ErrNoUsage
	if w.mu.TryLock() {
		u, why = w.usage.Usage()
		w.mu.Unlock()
	}
	w.end(false, u, why)
	return w.body.Close()
}

// end ends the pick; whole: the answer has come whole.
func (w *watchedBody) end(whole bool, u kvindex.Usage, why error) {
	if !w.ended.CompareAndSwap(false, true) {
		return
	}
	switch known := u.PromptTokens >= 0 && u.CachedTokens >= 0; {
	case known:
		why = nil
		fallthrough
	case whole:
		w.pick.Done(u)
	default:
		w.pick.Failed()
	}
	w.pick.report(u, why)
}
