// Package server answers HTTP requests about an Indexer: the endpoints of llm-d's online
// service, and those of kvindexd.
package server

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/route"
)

// Config configures a Server. A zero number or time is its default.
type Config struct {
	// Model is the model of requests that name none; "": such requests are refused.
	Model string
	// BlockTokens is how many tokens one block of a reference endpoint's score has. 0: 16.
	BlockTokens int
	// Deadline bounds a score. 0: 10 s.
	Deadline time.Duration
	// MaxBody bounds the bytes of a body. 0: 16 MiB. MaxBodies bounds those of all bodies that
	// are being read or used. 0: 256 MiB.
	MaxBody, MaxBodies int64
	// MaxRequests bounds the requests that are answered at a time. 0: 256.
	MaxRequests int
	// MaxReservations bounds the reservations of /v1/select. 0: 65,536.
	MaxReservations int
	// Lease is the time after which a reservation ends by itself, and the longest lease that a
	// request can have. 0: 10 minutes.
	Lease time.Duration
	// ReadyShare is the share of the Fleet's ranks that must be live before the service is
	// ready, from 0 to 1. Above 0 a Fleet without ranks is not ready. 0: none.
	ReadyShare float64
	// Policy chooses for /v1/select. nil: route.Default.
	Policy route.Policy
	// Token, if not empty, is the bearer token of requests to the admin address.
	Token string
	// ClientCerts: the listener of the admin address verifies its clients' certificates.
	ClientCerts bool
	// PublicPage: the public address has the page and /v1/watch, too.
	PublicPage bool
	// Metrics, if not nil, answers /metrics.
	Metrics http.Handler
	// Log gets a line for each request, at level debug, without its contents. nil: nothing is
	// logged.
	Log *slog.Logger
}

// A Server has the handlers of the two addresses. It is not ready until Open has set its
// Indexer. All methods are safe for concurrent use.
type Server struct {
	cfg      Config
	slots    chan struct{}
	bodies   atomic.Int64 // bytes of buffers in use
	buffers  sync.Pool    // of *buffer
	core     atomic.Pointer[core]
	draining atomic.Bool
	loads    route.Tracker
	feed     feed
	viewers  atomic.Int64  // of /v1/watch
	every    time.Duration // between two messages to a viewer
	slow     time.Duration // a viewer that takes longer for a message is cut off

	mu           sync.Mutex        // guards the fields below
	failing      map[string]string // checks, and why each fails
	reservations map[string]*reservation
	sessions     []session // at most maxSessions, the oldest first
	ended        bool      // Close was called
}

// core has the arguments of Open.
type core struct {
	ix    *kvindex.Indexer
	fleet *events.Fleet
	pods  atomic.Pointer[fleetPods]
}

// New returns a Server without an Indexer.
func New(cfg Config) *Server {
	def := func(n *int64, to int64) {
		if *n == 0 {
			*n = to
		}
	}
	def(&cfg.MaxBody, 16<<20)
	def(&cfg.MaxBodies, 256<<20)
	if cfg.BlockTokens == 0 {
		cfg.BlockTokens = 16
	}
	if cfg.Deadline == 0 {
		cfg.Deadline = 10 * time.Second
	}
	if cfg.MaxRequests == 0 {
		cfg.MaxRequests = 256
	}
	if cfg.MaxReservations == 0 {
		cfg.MaxReservations = 1 << 16
	}
	if cfg.Lease == 0 {
		cfg.Lease = 10 * time.Minute
	}
	if cfg.Policy == nil {
		cfg.Policy = route.Default
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, slots: make(chan struct{}, cfg.MaxRequests), every: time.Second, slow: 5 * time.Second,
		failing: map[string]string{"restored": "the index is not there yet"}, reservations: make(map[string]*reservation),
	}
	s.loads.MaxAge = cfg.Lease
	return s
}

// Open sets the Indexer and the Fleet that requests are answered from. fleet may be nil.
func (s *Server) Open(ix *kvindex.Indexer, fleet *events.Fleet) {
	s.core.Store(&core{ix: ix, fleet: fleet})
	s.Check("restored", "")
}

// Check sets a check of /readyz: why is the reason why it fails, "" if it passes.
func (s *Server) Check(name, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" {
		delete(s.failing, name)
	} else {
		s.failing[name] = why
	}
}

// noIndex returns the failure of a request that comes before Open.
func (s *Server) noIndex() *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return status(http.StatusServiceUnavailable, "not ready: %s", cmp.Or(s.failing["restored"], "the index is not there yet"))
}

// Drain makes the service not ready. Requests are still answered.
func (s *Server) Drain() { s.draining.Store(true) }

// Forget drops the load of a pod that has gone, or that another one replaces.
func (s *Server) Forget(pod string) { s.loads.Forget(pod) }

// Close ends all reservations and sessions.
func (s *Server) Close() {
	s.mu.Lock()
	all, sessions := s.reservations, s.sessions
	s.reservations, s.sessions, s.ended = nil, nil, true
	s.mu.Unlock()
	for _, of := range sessions {
		of.end()
	}
	for _, r := range all {
		r.expire()
	}
}

// An endpoint is a method of a path.
type endpoint struct {
	method, path string
	public       bool // on both addresses; else on the admin address alone
	handle       http.HandlerFunc
}

// endpoints returns all endpoints, of both addresses.
func (s *Server) endpoints() []endpoint {
	list := []endpoint{
		{"GET", "/score_completions", true, s.listens},
		{"POST", "/score_completions", true, s.handle(s.scoreCompletions, true)},
		{"POST", "/score_chat_completions", true, s.handle(s.scoreChat, true)},
		{"POST", "/v1/score", true, s.handle(s.score, false)},
		{"POST", "/v1/select", true, s.handle(s.selectPod, false)},
		{"POST", "/v1/done", true, s.handle(s.done, false)},
		{"GET", "/healthz", true, s.healthy},
		{"GET", "/readyz", true, s.ready},
		{"GET", "/openapi.json", true, nil}, // see router
		{"GET", "/v1/pods", false, s.handle(s.listPods, false)},
		{"PUT", "/v1/pods/{pod}", false, s.handle(s.putPod, false)},
		{"DELETE", "/v1/pods/{pod}", false, s.handle(s.deletePod, false)},
		{"POST", "/v1/events/{pod}", false, s.handle(s.ingest, false)},
		{"GET", "/v1/explain", false, s.handle(s.explain, false)},
		{"POST", "/v1/explain", false, s.handle(s.explain, false)},
		{"GET", "/v1/snapshot", false, s.snapshot},
		{"GET", "/v1/watch", s.cfg.PublicPage, s.watch},
		{"POST", "/login", false, s.login},
		{"DELETE", "/login", false, s.logout},
	}
	for path := range pageTypes {
		list = append(list, endpoint{"GET", path, s.cfg.PublicPage, s.page})
	}
	if s.cfg.Metrics != nil {
		list = append(list, endpoint{"GET", "/metrics", true, s.cfg.Metrics.ServeHTTP})
	}
	return append(list, profiles()...)
}

// Public returns the handler of the public address.
func (s *Server) Public() http.Handler {
	return s.logRequests(s.router(func(e endpoint) bool { return e.public }))
}

// Admin returns the handler of the admin address, which has all endpoints. The caller must
// serve it on a loopback address, unless Token or ClientCerts guards it.
func (s *Server) Admin() http.Handler {
	return s.logRequests(s.guard(s.router(func(endpoint) bool { return true })))
}

// methods are the methods of one path.
type methods map[string]http.HandlerFunc

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if handle := m[method]; handle != nil {
		handle(w, r)
		return
	}
	var allowed []string
	for name := range m {
		allowed = append(allowed, name)
		if name == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	slices.Sort(allowed)
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	write(w, http.StatusMethodNotAllowed, fail("method %.20s: this path has %s", r.Method, strings.Join(allowed, ", ")))
}

func (s *Server) router(has func(endpoint) bool) http.Handler {
	paths := make(map[string]methods)
	for _, e := range s.endpoints() {
		if !has(e) {
			continue
		}
		if paths[e.path] == nil {
			paths[e.path] = make(methods)
		}
		paths[e.path][e.method] = e.handle
	}
	paths["/openapi.json"][http.MethodGet] = document(paths)
	mux := http.NewServeMux()
	for path, m := range paths {
		if path == "/" {
			path = "/{$}" // and nothing below it
		}
		mux.Handle(path, m)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		write(w, http.StatusNotFound, fail("path: %.100q is not served here: /openapi.json lists the paths", r.URL.Path))
	})
	return mux
}

// HTTP returns a server for one of the handlers, with the timeouts of llm-d's online service.
func (s *Server) HTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 20 * time.Second, ReadTimeout: 60 * time.Second, WriteTimeout: 60 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// deadline returns the context of a score.
func (s *Server) deadline(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), s.cfg.Deadline)
}
