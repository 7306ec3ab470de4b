package server_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

// The document of an address has exactly the endpoints that are served there.
func TestOpenAPI(t *testing.T) {
	for _, metrics := range []http.Handler{nil, http.NotFoundHandler()} {
		f := start(t, server.Config{Metrics: metrics})
		for _, admin := range []bool{false, true} {
			at := f.public.URL
			if admin {
				at = f.admin.URL
			}
			var doc struct {
				OpenAPI string
				Paths   map[string]map[string]struct {
					OperationID string
					Responses   map[string]any
				}
			}
			if code := ask(t, "GET", at+"/openapi.json", "", &doc); code != http.StatusOK || doc.OpenAPI != "3.1.0" {
				t.Fatal(code, doc.OpenAPI)
			}
			served := f.server.Served()
			maps.DeleteFunc(served, func(_ string, public bool) bool { return !public && !admin })
			ids := make(map[string]bool)
			for path, methods := range doc.Paths {
				for method, op := range methods {
					if _, ok := served[method+" "+path]; !ok {
						t.Errorf("admin %v: %s %s is in the document and is not served", admin, method, path)
					}
					delete(served, method+" "+path)
					if op.OperationID == "" || ids[op.OperationID] || len(op.Responses) == 0 {
						t.Errorf("%s %s: %+v", method, path, op)
					}
					ids[op.OperationID] = true
				}
			}
			for endpoint := range served {
				t.Errorf("admin %v: %s is not in the document", admin, endpoint)
			}
		}
	}
}

// paths returns a path of each endpoint of a service, and paths that do not exist.
func paths(s *server.Server) (all []string) {
	for endpoint := range s.Served() {
		_, path, _ := strings.Cut(endpoint, " ")
		all = append(all, strings.NewReplacer("{pod}", "a", "{profile}", "heap").Replace(path))
	}
	return append(all, "/", "//v1/pods", "/v1/../v1/pods", "/v1/pods/", "/nothing", "/%2e%2e/v1/pods")
}

var allMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"}

// send sends a request without following redirections, and returns the status.
func send(t *testing.T, method, url string, change func(*http.Request)) int {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(`{"model":"m","host":"h"}`))
	must(t, err)
	change(r)
	a, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	a.Body.Close()
	return a.StatusCode
}

// The admin address refuses requests without its credential, by every method and path.
func TestAdminGuard(t *testing.T) {
	guarded := start(t, server.Config{Token: "secret", Model: "m"})
	open := start(t, server.Config{Model: "m"})
	guarded.add(t, kvindextest.EngineConfig{Pod: "a"})
	for _, path := range paths(guarded.server) {
		for _, method := range allMethods {
			for _, bearer := range []string{"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "bearer secret", "Basic secret", "Bearer  secret"} {
				want := http.StatusUnauthorized
				switch read := method == "GET" || method == "HEAD"; {
				case read && (path == "/" || strings.HasPrefix(path, "/page.")): // files without data
					want = http.StatusOK
				case method == "POST" && path == "/login":
					want = http.StatusBadRequest
				}
				if code := send(t, method, guarded.admin.URL+path, func(r *http.Request) { r.Header["Authorization"] = []string{bearer} }); code != want {
					t.Fatalf("%s %s with %q: %d", method, path, bearer, code)
				}
			}
			for name, c := range map[string]func(*http.Request){
				"another host":         func(r *http.Request) { r.Host = "rebound.example.com" },
				"another host by port": func(r *http.Request) { r.Host = "rebound.example.com:8081" },
				"an address outside":   func(r *http.Request) { r.Host = "192.0.2.1" },
			} {
				if code := send(t, method, open.admin.URL+path, c); code != http.StatusForbidden {
					t.Fatalf("%s %s from %s: %d", method, path, name, code)
				}
			}
			for _, site := range []string{"cross-site", "same-site"} {
				if code := send(t, method, open.admin.URL+path, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", site) }); code != http.StatusForbidden {
					t.Fatalf("%s %s of another site's page (%s): %d", method, path, site, code)
				}
			}
		}
	}
	if pods := guarded.fleet.Pods(nil); len(pods) != 1 || pods[0].Host != "127.0.0.1" {
		t.Errorf("refused requests have changed something: %+v", pods)
	}
	for _, host := range []string{"localhost", "localhost:8081", "127.0.0.1", "[::1]:8081"} {
		if code := send(t, "GET", open.admin.URL+"/v1/pods", func(r *http.Request) { r.Host = host }); code != http.StatusOK {
			t.Errorf("%s: %d", host, code)
		}
	}
	if code := send(t, "GET", guarded.admin.URL+"/v1/pods", func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }); code != http.StatusOK {
		t.Errorf("with the token: %d", code)
	}
	proven := start(t, server.Config{ClientCerts: true})
	if code := send(t, "GET", proven.admin.URL+"/v1/pods", func(r *http.Request) { r.Host = "kvindexd.example.com" }); code != http.StatusOK {
		t.Errorf("with a verified certificate: %d", code)
	}
}

// The public address has no endpoint that changes or reveals anything.
func TestPublic(t *testing.T) {
	f := start(t, server.Config{Metrics: http.NotFoundHandler()})
	for endpoint, public := range f.server.Served() {
		method, path, _ := strings.Cut(endpoint, " ")
		secret := strings.HasPrefix(path, "/v1/pods") || strings.HasPrefix(path, "/v1/e") || strings.HasPrefix(path, "/v1/snap") || strings.HasPrefix(path, "/debug") ||
			path == "/" || strings.HasPrefix(path, "/page") || path == "/login" || path == "/v1/watch"
		if public == secret {
			t.Errorf("%s: public is %v", endpoint, public)
		}
		_, got, _ := exchange(t, strings.ToUpper(method), f.public.URL+strings.NewReplacer("{pod}", "a", "{profile}", "heap").Replace(path), "")
		if strings.Contains(got, "is not served here") == public {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}

// The service reports that it is not ready before it has an index and while it ends.
func TestReady(t *testing.T) {
	f := start(t, server.Config{ReadyShare: 0.5, Model: "m"})
	ready := func(s *server.Server) (code int, failing map[string]string) {
		r, err := http.NewRequest(http.MethodGet, "/readyz", nil)
		must(t, err)
		var w memory
		s.Public().ServeHTTP(&w, r)
		var got struct {
			Ready   bool
			Failing map[string]string
		}
		if err := json.Unmarshal(w.Bytes(), &got); err != nil || got.Ready != (w.code == 200) {
			t.Fatalf("%d %s, %v", w.code, w.Bytes(), err)
		}
		return w.code, got.Failing
	}
	if code, failing := ready(f.server); code != 503 || !strings.HasPrefix(failing["pods"], "0 of 0 ranks are live") || len(failing) != 1 {
		t.Errorf("without pods: %d %v", code, failing)
	}
	must(t, f.fleet.Put("x", events.Pod{ID: "away", Model: "m", Host: "127.0.0.1", Port: 1, TiersPort: 2}))
	const away = "0 of 1 ranks are live (connected, and not replaying), a share of 0.5 is needed"
	for code, failing := ready(f.server); code != 503 || failing["pods"] != away || len(failing) != 1; code, failing = ready(f.server) {
		if f.ctx.Err() != nil { // the Fleet's Run has not begun the streams yet
			t.Fatalf("with a pod that is away: %d %v", code, failing)
		}
	}
	f.add(t, kvindextest.EngineConfig{Pod: "a"})
	for code, failing := ready(f.server); code != 200; code, failing = ready(f.server) {
		if f.ctx.Err() != nil {
			t.Fatalf("with one of two: %d %v", code, failing)
		}
	}
	f.server.Check("tokenizers", "m: no file")
	if code := ask(t, "GET", f.public.URL+"/score_completions", "", nil); code != 200 {
		t.Errorf("a check that fails answers the reference's probe for liveness with %d", code)
	}
	f.server.Drain()
	if code, failing := ready(f.server); code != 503 || failing["tokenizers"] != "m: no file" || failing["draining"] == "" || len(failing) != 2 {
		t.Errorf("with two checks that fail: %d %v", code, failing)
	}
	if code := ask(t, "POST", f.public.URL+"/score_completions", `{"prompt": "x"}`, nil); code != 200 {
		t.Errorf("while it drains: %d", code)
	}
	if code, got, _ := exchange(t, "GET", f.public.URL+"/score_completions", ""); code != 503 || !strings.Contains(got, "the service ends") {
		t.Errorf("the reference's probe while it drains: %d %s", code, got)
	}
	exact := start(t, server.Config{ReadyShare: 0.28, Model: "m"}) // 0.28 * 25 is more than 7
	must(t, exact.fleet.Put("x", events.Pod{ID: "away", Model: "m", Host: "127.0.0.1", Port: 1, Ranks: 18}))
	for i := range 7 {
		exact.add(t, kvindextest.EngineConfig{Pod: strconv.Itoa(i)})
	}
	for code, failing := ready(exact.server); code != 200; code, failing = ready(exact.server) {
		if exact.ctx.Err() != nil {
			t.Fatalf("with 7 of 25: %d %v", code, failing)
		}
	}
	early := server.New(server.Config{Model: "m"})
	early.Check("restored", "nobody has it")
	if code, failing := ready(early); code != 503 || failing["restored"] != "nobody has it" {
		t.Errorf("without an index: %d %v", code, failing)
	}
	for ask, want := range map[string]int{"POST /score_completions": 503, "GET /score_completions": 503, "POST /v1/score": 503, "GET /v1/snapshot": 503, "GET /healthz": 200} {
		method, path, _ := strings.Cut(ask, " ")
		r, _ := http.NewRequest(method, path, strings.NewReader(`{"prompt": "x"}`))
		r.Host = "localhost"
		var w memory
		early.Admin().ServeHTTP(&w, r)
		if said := w.String(); w.code != want || (w.header.Get("Retry-After") == "") != (want == 200) || strings.Contains(said, "not ready: nobody has it") != (want == 503) {
			t.Errorf("%s without an index: %d %s", ask, w.code, said)
		}
	}
}

// stuck is a Sink whose RemovePod waits.
type stuck struct {
	events.Sink
	called, goOn chan struct{}
}

func (s stuck) RemovePod(pod string) error {
	close(s.called)
	<-s.goOn
	return s.Sink.RemovePod(pod)
}

// A pod that was removed is no rank that must be live, even if its blocks are not forgotten yet.
func TestReadyRemoved(t *testing.T) {
	ix, err := kvindex.New()
	must(t, err)
	defer ix.Close()
	sink := stuck{ix.Sink(), make(chan struct{}), make(chan struct{})}
	f, err := events.NewFleet(sink, events.FleetConfig{})
	must(t, err)
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Run(ctx)
	}()
	s := server.New(server.Config{ReadyShare: 1})
	s.Open(ix, f)
	failing := func(ranks string) bool {
		w := httptest.NewRecorder()
		s.Public().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return strings.Contains(w.Body.String(), ranks+" ranks are live")
	}
	must(t, f.Put("x", events.Pod{ID: "away", Model: "m", Host: "127.0.0.1", Port: 1}))
	for !failing("0 of 1") && ctx.Err() == nil { // the Fleet's Run has not begun the stream yet
		runtime.Gosched()
	}
	f.Remove("x", "away")
	<-sink.called
	if !failing("0 of 0") {
		t.Error("the rank of the removed pod counts")
	}
	close(sink.goOn)
	cancel()
	<-ended
}

// A blocked index delays a request until the deadline at most.
func TestDeadline(t *testing.T) {
	f := start(t, server.Config{Model: "slow", Deadline: 1}, kvindex.WithModels(func(ctx context.Context, name string) (kvindex.Model, error) {
		<-ctx.Done()
		return kvindex.Model{}, ctx.Err()
	}))
	if code, got, _ := exchange(t, "POST", f.public.URL+"/score_completions", `{"prompt": "x"}`); code != http.StatusGatewayTimeout || !strings.Contains(got, "deadline") {
		t.Errorf("%d %s", code, got)
	}
}
