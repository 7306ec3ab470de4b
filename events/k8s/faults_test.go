package k8s_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// faults is a proxy before an API server with the faults of networks, proxies and busy servers.
type faults struct {
	next http.Handler
	addr string // where the server listens unless it is away

	mu     sync.Mutex // guards the fields below
	rand   *rand.Rand
	often  int           // percentage of requests with a fault
	always string        // the fault of all requests; "": chosen by often
	more   chan struct{} // closed at the next fault
	healed chan struct{} // closed when hanging requests are to end
	server *http.Server  // nil: it is away
	port   net.Listener  // of server
	ends   map[*http.Request]context.CancelFunc
	met    map[string]int // number of requests with each fault
}

func newFaults(next http.Handler, addr string, r *rand.Rand) (*faults, error) {
	f := &faults{next: next, addr: addr + ":0", rand: r, healed: make(chan struct{}), more: make(chan struct{}), ends: make(map[*http.Request]context.CancelFunc), met: make(map[string]int)}
	return f, f.come()
}

// come starts the server at its former address.
func (f *faults) come() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server != nil {
		return nil
	}
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		return err
	}
	f.addr, f.port = l.Addr().String(), l
	f.server = &http.Server{Handler: f}
	go f.server.Serve(l)
	return nil
}

// leave closes the server and breaks all connections.
func (f *faults) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server != nil {
		f.port.Close() // the server does not close it before Serve has begun
		f.server.Close()
		f.server = nil
		f.met["away"]++
	}
}

// trouble sets the percentage of requests with a fault.
func (f *faults) trouble(often int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.often = often
	if often == 0 {
		close(f.healed)
		f.healed = make(chan struct{})
	}
}

// only sets the fault of all requests, or "".
func (f *faults) only(fault string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.always = fault
}

// until waits until n requests had a fault.
func (f *faults) until(ctx context.Context, fault string, n int) {
	for {
		f.mu.Lock()
		met, more := f.met[fault], f.more
		f.mu.Unlock()
		if met >= n {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}

// end ends all open requests, as a server does at their timeout.
func (f *faults) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.ends {
		cancel()
		f.met["ended"]++
	}
}

// Watches may have both kinds of faults.
var (
	faultsOfAll     = []string{"429", "429 with a time", "500", "500 with a time", "503", "403", "410", "no JSON", "half a list", "closed", "hangs"}
	faultsOfWatches = []string{"cut", "cut", "cut", "error event 410", "error event 500", "no event"}
)

func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	fault, after, healed := f.begin(r, cancel)
	defer func() {
		f.mu.Lock()
		delete(f.ends, r)
		f.mu.Unlock()
	}()
	status := func(err error) { answer(w, nil, err) }
	text := func(s string) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, s)
		w.(http.Flusher).Flush()
	}
	switch fault {
	case "":
		f.next.ServeHTTP(w, r)
	case "cut":
		f.next.ServeHTTP(&cutWriter{w, after}, r)
	case "429", "429 with a time":
		if fault != "429" {
			w.Header().Set("Retry-After", fmt.Sprint(after%4/3))
		}
		status(apierrors.NewTooManyRequestsError("busy"))
	case "500", "500 with a time":
		if fault != "500" {
			w.Header().Set("Retry-After", fmt.Sprint(after%4/3))
		}
		status(apierrors.NewInternalError(io.ErrNoProgress))
	case "503":
		http.Error(w, "no upstream", http.StatusServiceUnavailable)
	case "403", "watch 403":
		http.Error(w, "no", http.StatusForbidden)
	case "410":
		status(apierrors.NewResourceExpired("too old resource version"))
	case "no JSON":
		text("<html>")
	case "half a list":
		text(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"`)
		panic(http.ErrAbortHandler)
	case "closed":
		panic(http.ErrAbortHandler)
	case "hangs":
		select {
		case <-healed:
		case <-ctx.Done():
		}
		panic(http.ErrAbortHandler)
	case "error event 410":
		text(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}}` + "\n")
	case "error event 500":
		text(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcd","reason":"InternalError","code":500}}` + "\n")
	case "no event":
		text(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":7}}` + "\n")
	}
}

// begin registers a request and chooses its fault.
func (f *faults) begin(r *http.Request, cancel context.CancelFunc) (fault string, after int, healed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends[r] = cancel
	fault = f.always
	if (strings.HasPrefix(fault, "error event") || strings.HasPrefix(fault, "watch")) && !r.URL.Query().Has("watch") {
		fault = ""
	}
	if f.always == "" && f.rand.IntN(100) < f.often {
		those := faultsOfAll
		if r.URL.Query().Has("watch") && f.rand.IntN(2) == 0 {
			those = faultsOfWatches
		}
		fault = those[f.rand.IntN(len(those))]
	}
	if fault != "" {
		f.met[fault]++
		close(f.more)
		f.more = make(chan struct{})
	}
	return fault, f.rand.IntN(2000), f.healed
}

// cutWriter breaks the connection after left bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b[:min(len(b), w.left)])
	if w.left -= n; w.left == 0 {
		w.Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

func (w *cutWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }
