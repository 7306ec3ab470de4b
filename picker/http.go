package picker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/kvindex/kvindex"
)

// RoundTripper returns a http.RoundTripper that sends each request to the pod that Pick picks
// for its body, by base (nil: http.DefaultTransport), and watches the answer. If a pod breaks
// the connection before its header, or answers 503, the request is sent to the Next pod; when
// no pod is left, the last error or answer is returned.
//
// Use it as the Transport of a httputil.ReverseProxy. It reads the whole body of a request into
// memory, so limit it by http.MaxBytesHandler. The host in the URL is replaced by Pod.Host, and
// its port is kept if Pod.Host has none. A request for a pod of several ranks gets the header
// X-data-parallel-rank. Status has the HTTP status for an error.
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
	body := []byte{} // no nil: an empty body is no JSON, which Pick says
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
	for {
		resp, err := t.base.RoundTrip(pick.outgoing(req, body))
		if err != nil {
			err = fmt.Errorf("picker: pod %.100q: %w", pick.Pod.Name, err)
			pick.report(unknownUsage, err)
		} else if resp.StatusCode != http.StatusServiceUnavailable {
			pick.Watch(resp)
			return resp, nil
		} else {
			pick.report(unknownUsage, pick.status(resp))
		}
		if ctx.Err() != nil {
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

// outgoing returns a copy of req for the pod of the pick.
func (k *Pick) outgoing(req *http.Request, body []byte) *http.Request {
	out := req.Clone(req.Context())
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	out.URL.Host = k.Pod.Host
	if _, _, err := net.SplitHostPort(k.Pod.Host); err != nil && req.URL.Port() != "" {
		out.URL.Host = net.JoinHostPort(k.Pod.Host, req.URL.Port())
	}
	out.Header.Del("Accept-Encoding") // a Transport asks for what it decompresses, so the usage can be read
	if k.Pod.Ranks > 1 {
		out.Header.Set("X-data-parallel-rank", strconv.Itoa(k.Rank))
	}
	return out
}

// Status returns the HTTP status for an error of Pick, Next or the RoundTripper: 400 if no
// engine would take the request, 503 if there is no pod, 413 if the body is larger than
// http.MaxBytesHandler allows, else 502.
func Status(err error) int {
	switch {
	case errors.Is(err, kvindex.ErrRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrNoPod):
		return http.StatusServiceUnavailable
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadGateway
}

// Watch lets the answer of the pod end the pick. It replaces resp.Body by one that calls
// FirstToken at the first byte, and Done with the usage in the answer at its end. If the
// answer breaks off, or the host closes it before its end and before its usage, it calls
// Failed. For a status other than 2xx it calls Failed at once, and does not change the Body.
func (k *Pick) Watch(resp *http.Response) {
	if resp.StatusCode/100 != 2 {
		k.Failed()
		k.report(unknownUsage, k.status(resp))
		return
	}
	resp.Body = &watched{usage: UsageOf(resp.Header, resp.Body), body: resp.Body, pick: k}
}

func (k *Pick) status(resp *http.Response) error {
	return fmt.Errorf("picker: pod %.100q answers %d", k.Pod.Name, resp.StatusCode)
}

// report calls Config.OnEnd.
func (k *Pick) report(u kvindex.Usage, err error) {
	if hook := k.picker.cfg.OnEnd; hook != nil {
		hook(k, u, err)
	}
}

// watched is the body of an answer.
type watched struct {
	usage *UsageReader
	body  io.Closer
	pick  *Pick
	once  sync.Once
	mu    sync.Mutex // guards usage: Close may be called while Read waits
}

func (w *watched) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.usage.Read(p)
	if n > 0 {
		w.pick.FirstToken()
	}
	if err != nil {
		u, why := w.usage.Usage()
		w.end(errors.Is(err, io.EOF), u, why)
	}
	return n, err
}

func (w *watched) Close() error {
	u, why := unknownUsage, ErrNoUsage
	if w.mu.TryLock() {
		u, why = w.usage.Usage()
		w.mu.Unlock()
	}
	w.end(why == nil, u, why)
	return w.body.Close()
}

func (w *watched) end(done bool, u kvindex.Usage, why error) {
	w.once.Do(func() {
		if done {
			w.pick.Done(u)
		} else {
			w.pick.Failed()
		}
		w.pick.report(u, why)
	})
}
