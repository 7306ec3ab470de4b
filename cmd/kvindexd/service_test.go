package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/route"
)

// journal is a log that tests read.
type journal struct {
	mu sync.Mutex // guards the field below
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// post sends a body and returns the answer.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	a, err := http.Post(url, "", strings.NewReader(body))
	must(t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	must(t, err)
	return a.StatusCode, strings.TrimSpace(string(text))
}

// payload is a prompt of 4 blocks, and the message that stores it.
func payload(n uint64) (tokens []uint32, message string) {
	p := fakeengine.NewPrompt(n, 16, 4)
	return p.Tokens, string(fakeengine.Payload(1, 0, p.Stored(0, 4)))
}

func scoreOf(tokens []uint32) string {
	b, _ := json.Marshal(map[string]any{"tokens": tokens, "model": "m"})
	return string(b)
}

// A service starts from its snapshot, and a replica from a running service. A damaged snapshot is
// ignored and replaced.
func TestRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "snapshot")
	tokens, message := payload(1)
	held := `"matched_blocks":4`
	_, admin, end := running(t, settings{snapshot: file})
	until(t, admin+"/readyz", 200)
	if code, got := post(t, admin+"/v1/events/a?model=m", message); code != 200 {
		t.Fatal(code, got)
	}
	replica, _, endReplica := running(t, settings{bootstrap: admin + "/v1/snapshot"})
	until(t, replica+"/readyz", 200)
	if _, got := post(t, replica+"/v1/score", scoreOf(tokens)); !strings.Contains(got, held) {
		t.Errorf("a replica: %s", got)
	}
	if err := endReplica(); err != nil {
		t.Error(err)
	}
	for range 2 { // a service that answers 404, and one that has ended
		_, err := fetch(t.Context(), strings.Replace(admin, "//", "//u:secret@", 1)+"/nothing?key=secret", "", nil)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("an error with a secret: %v", err)
		}
		must(t, end())
	}
	again, _, end := running(t, settings{snapshot: file, bootstrap: admin + "/v1/snapshot"}) // the service at admin has ended
	until(t, again+"/readyz", 200)
	if _, got := post(t, again+"/v1/score", scoreOf(tokens)); !strings.Contains(got, held) {
		t.Errorf("after a restart: %s", got)
	}
	must(t, end())
	whole, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, whole[:len(whole)/2], 0o600)
	}
	must(t, err)
	var log journal
	empty, _, end := running(t, settings{snapshot: file, log: logger(&log, slog.LevelInfo)})
	until(t, empty+"/readyz", 200)
	if _, got := post(t, empty+"/v1/score", scoreOf(tokens)); strings.Contains(got, held) || !strings.Contains(log.String(), "the snapshot was passed over") {
		t.Errorf("with half a snapshot: %s %s", got, log.String())
	}
	must(t, end())
	if ix, err := kvindex.LoadFile(t.Context(), file); err != nil {
		t.Error(err)
	} else {
		ix.Close()
	}
	_, admin, end = running(t, settings{snapshot: filepath.Join(file, "below a file")})
	until(t, admin+"/readyz", 200) // a service that ends before it is ready saves nothing
	if err := end(); err == nil {
		t.Error("a snapshot that cannot be saved is no error")
	}
}

// An error of a bootstrap does not show the secrets of its URL: it goes to the log.
func TestBootstrapSecret(t *testing.T) {
	public, _, end := running(t, settings{})
	for _, want := range []string{"404", "refused"} { // while the other service runs, and after its end
		_, err := fetch(t.Context(), strings.Replace(public, "//", "//user:secret@", 1)+"/none?token=secret", "", nil)
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
		if want == "404" {
			must(t, end())
		}
	}
}

// While the service ends it is not ready, accepts requests during the grace time, and answers all
// that it has accepted.
func TestDrain(t *testing.T) {
	started, answer := make(chan struct{}), make(chan struct{})
	public, _, end := running(t, settings{grace: time.Millisecond, server: server.Config{Model: "m"}, options: []kvindex.Option{
		kvindex.WithModels(func(context.Context, string) (kvindex.Model, error) {
			close(started)
			<-answer
			return kvindex.Model{Tokenizer: letters{}}, nil
		}),
	}})
	until(t, public+"/readyz", 200)
	got := make(chan string)
	go func() {
		a, err := http.Post(public+"/score_completions", "", strings.NewReader(`{"prompt": "x"}`))
		if err != nil {
			got <- err.Error()
			return
		}
		text, _ := io.ReadAll(a.Body)
		a.Body.Close()
		got <- fmt.Sprint(a.StatusCode, " ", string(text))
	}()
	<-started
	ended := make(chan error)
	go func() { ended <- end() }()
	for { // until a new connection is refused
		c, err := net.Dial("tcp", strings.TrimPrefix(public, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended before its answer: %v", err)
	default:
	}
	close(answer)
	if text := <-got; text != "200 {}\n" {
		t.Error(text)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	v := service{settings: settings{log: slog.New(slog.DiscardHandler)}, server: server.New(server.Config{})}
	v.drain(nil)
	ready := httptest.NewServer(v.server.Public())
	defer ready.Close()
	if text := until(t, ready.URL+"/readyz", 503); !strings.Contains(text, `"draining":"the service ends"`) {
		t.Errorf("a service that drains is ready but for %s", text)
	}
}

// A pod that another one replaces takes its load with it.
func TestReplaced(t *testing.T) {
	replace := make(chan struct{})
	public, _, _ := running(t, settings{server: server.Config{Model: "m", Policy: route.LeastRequests}, sources: []events.PodSource{{
		Name: "test", Run: func(ctx context.Context, set func([]events.Pod) error) error {
			pods := []events.Pod{{ID: "a", UID: "1", Model: "m", Host: "127.0.0.1", Port: 1}, {ID: "b", Model: "m", Host: "127.0.0.1", Port: 2}}
			err := set(pods)
			<-replace
			pods[0].UID = "2"
			err = errors.Join(err, set(pods))
			<-ctx.Done()
			return err
		}}}})
	until(t, public+"/readyz", 200)
	ctx := zmtptest.Context(t)
	choose := func(fields string) (id, pod string) {
		for {
			code, got := post(t, public+"/v1/select", `{"tokens": [1]`+fields+`}`)
			var s struct{ ID, Pod string }
			must(t, json.Unmarshal([]byte(got), &s))
			if code == 200 || ctx.Err() != nil { // 503: the Fleet has no pods yet
				return s.ID, s.Pod
			}
		}
	}
	for range 3 {
		choose(`, "pods": ["a"]`)
	}
	choose(`, "pods": ["b"]`)
	close(replace)
	for {
		id, pod := choose("")
		if pod == "a" {
			break
		}
		if post(t, public+"/v1/done", `{"id": "`+id+`", "failed": true}`); ctx.Err() != nil {
			t.Fatal("the new a has the load of the old one")
		}
	}
}

// The topics of engines that connect name their pods, up to the bound.
func TestGate(t *testing.T) {
	at := make(chan string, 1)
	var log journal
	public, admin, _ := running(t, settings{
		maxPods: 2, log: logger(&log, slog.LevelInfo), server: server.Config{Model: "m"},
		subscribers: []subscription{{SubscriberConfig: events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true}}}, listeningEvents: func(endpoint string) { at <- endpoint },
	})
	endpoint := <-at
	ctx := zmtptest.Context(t)
	for i, pod := range []string{"a", "b", "c"} {
		e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: pod, Model: "m", Connect: endpoint})
		must(t, err)
		defer e.Close()
		must(t, e.WaitSubscribers(ctx, 1))
		if _, err := e.Serve(ctx, kvindextest.Request{Tokens: make([]uint32, 40)}); err != nil {
			t.Fatal(err)
		}
		for {
			_, got := post(t, public+"/v1/score", scoreOf(make([]uint32, 40)))
			if strings.Count(got, `"matched_blocks":2`) == i+1 || i == 2 && strings.Contains(log.String(), "no further pods are heard") {
				if strings.Contains(got, `"c"`) {
					t.Errorf("a third pod: %s", got)
				}
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("pod %s: %s %s", pod, got, log.String())
			}
		}
	}
	if n := strings.Count(log.String(), "no further pods are heard"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
	if text := until(t, admin+"/metrics", 200); !strings.Contains(text, `kvindex_pods{state="live"} 2`) && !strings.Contains(text, `kvindex_pods{state="partial"} 2`) {
		t.Errorf("the metrics have not two pods: %.2000s", text)
	}
}

// Pods of a snapshot have their places among those that may connect.
func TestGateRestored(t *testing.T) {
	at := make(chan string, 1)
	var log journal
	s := settings{
		maxPods: 2, log: logger(&log, slog.LevelInfo), snapshot: filepath.Join(t.TempDir(), "snapshot"),
		subscribers: []subscription{{SubscriberConfig: events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true}}}, listeningEvents: func(endpoint string) { at <- endpoint },
	}
	_, admin, end := running(t, s)
	<-at
	until(t, admin+"/readyz", 200)
	_, message := payload(1)
	for _, pod := range []string{"a", "b"} {
		if code, got := post(t, admin+"/v1/events/"+pod+"?model=m&seq=0", message); code != 200 {
			t.Fatal(code, got)
		}
	}
	must(t, end())
	_, admin, _ = running(t, s)
	ctx := zmtptest.Context(t)
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "c", Model: "m", Connect: <-at})
	must(t, err)
	defer e.Close()
	must(t, e.WaitSubscribers(ctx, 1))
	if _, err := e.Serve(ctx, kvindextest.Request{Tokens: make([]uint32, 40)}); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(log.String(), "no further pods are heard") {
		if text := until(t, admin+"/v1/pods", 200); strings.Contains(text, `"pod":"c"`) || ctx.Err() != nil {
			t.Fatalf("a third pod: %s", text)
		}
	}
}

// A gate bounds pods and models. A pod whose models have all been away for goneAfter makes room,
// and so do a pod without a readable message, and a model without a pod.
func TestGateNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, err := kvindex.New()
		must(t, err)
		defer ix.Close()
		var log journal
		g := gate{most: 2, ix: ix, log: logger(&log, slog.LevelInfo), pods: make(map[string]time.Time), models: make(map[string]time.Time)}
		for _, c := range []struct {
			topic string
			heard bool
		}{
			{"kv@a@m", true}, {"kv@a@n", true}, {"kv@a@o", false}, {"kv@b@m", true}, {"kv@c@m", false}, {"kv@a@m", true}, {"x", false},
		} {
			pod, model, err := g.parse(c.topic)
			if (err == nil) != c.heard || c.heard && c.topic != "kv@"+pod+"@"+model {
				t.Errorf("%s: %q, %q, %v", c.topic, pod, model, err)
			}
		}
		if n := strings.Count(log.String(), "no further pods are heard"); n != 1 {
			t.Errorf("the log has the refusal of further pods %d times", n)
		}
		_, message := payload(1)
		must(t, ix.Ingest("a", "n", []byte(message)))
		time.Sleep(goneAfter)
		if _, _, err := g.parse("kv@c@m"); err == nil {
			t.Error("a pod with a recent message has lost its place")
		}
		time.Sleep(goneAfter)
		must(t, ix.Ingest("a", "m", []byte(message)))
		if pod, _, err := g.parse("kv@c@m"); err != nil || pod != "c" || len(ix.Pods(nil)) != 2 {
			t.Errorf("b has brought nothing, and a something for m: %v, %+v", err, ix.Pods(nil))
		}
		for pod, heard := range map[string]bool{"a": true, "b": false} { // the connection of b is still there
			_, err := (gatedSink{ix.Sink(), &g}).IngestMessage(events.Message{Pod: pod, Model: "m", Payload: []byte(message)})
			if (err == nil) != heard || len(ix.Pods(nil)) != 2 {
				t.Errorf("a message of %s: %v, %+v", pod, err, ix.Pods(nil))
			}
		}
		time.Sleep(2 * goneAfter)
		if pod, _, err := g.parse("kv@d@o"); err != nil || pod != "d" || len(ix.Pods(nil)) != 0 {
			t.Errorf("a pod that is away keeps its place: %v", err)
		}
		for _, topic := range []string{"kv@e@o", "kv@f@o"} {
			_, _, err = g.parse(topic)
		}
		if n := strings.Count(log.String(), "no further pods are heard"); err == nil || n != 3 {
			t.Errorf("full again: %v, in the log %d times", err, n)
		}
	})
}

// An admin address that is neither a loopback address nor guarded is refused.
func TestAdminAddress(t *testing.T) {
	listen := func(s settings) error {
		s.listen, s.log = "127.0.0.1:0", slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithCancel(t.Context())
		s.listening = func(string, string) { cancel() }
		defer cancel()
		return serve(ctx, s)
	}
	for _, admin := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		if err := listen(settings{admin: admin}); err == nil || !strings.Contains(err.Error(), "no loopback address") {
			t.Errorf("%s: %v", admin, err)
		}
		if err := listen(settings{admin: admin, token: "x"}); err != nil {
			t.Errorf("%s with a token: %v", admin, err)
		}
	}
	if err := listen(settings{admin: ""}); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	ca, caCert, caKey := certificate(t, dir, "ca", nil, nil)
	_, _, _ = certificate(t, dir, "server", caCert, caKey)
	_, _, _ = certificate(t, dir, "client", caCert, caKey)
	_, other, otherKey := certificate(t, dir, "other-ca", nil, nil)
	_, _, _ = certificate(t, dir, "stranger", other, otherKey)
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, wrong := range []settings{{cert: path("none"), key: path("none")}, {cert: path("server.pem"), key: path("server.key"), clientCA: path("none")}, {cert: path("server.pem"), key: path("server.key"), clientCA: path("server.key")}} {
		wrong.admin = "127.0.0.1:0"
		if err := listen(wrong); err == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
	_, admin, _ := running(t, settings{cert: path("server.pem"), key: path("server.key"), clientCA: path("ca.pem")})
	url := strings.Replace(admin, "http:", "https:", 1) + "/healthz"
	get := func(name string) (int, error) {
		c := &tls.Config{RootCAs: x509.NewCertPool()}
		c.RootCAs.AddCert(ca)
		if name != "" {
			pair, err := tls.LoadX509KeyPair(path(name+".pem"), path(name+".key"))
			must(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		tr := &http.Transport{TLSClientConfig: c}
		defer tr.CloseIdleConnections()
		a, err := (&http.Client{Transport: tr}).Get(url)
		if err != nil {
			return 0, err
		}
		a.Body.Close()
		return a.StatusCode, nil
	}
	if code, err := get("client"); code != 200 || err != nil {
		t.Errorf("with its certificate: %d, %v", code, err)
	}
	for _, name := range []string{"", "stranger"} {
		if code, err := get(name); err == nil {
			t.Errorf("with certificate %q: %d", name, code)
		}
	}
	if a, err := http.Get(admin + "/healthz"); err == nil {
		if a.Body.Close(); a.StatusCode == http.StatusOK {
			t.Error("it answers without TLS")
		}
	}
}

// certificate writes a certificate and its key, signed by a parent or by itself.
func certificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600)
	}
	must(t, err)
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	return parsed, parsed, key
}

// The log has no part of a prompt, at any level and for any outcome of a request.
func TestLog(t *testing.T) {
	var log journal
	s, engines, err := demoSettings(zmtptest.Context(t))
	for _, e := range engines {
		defer e.Close()
	}
	must(t, err)
	s.log = logger(&log, slog.LevelDebug-4)
	public, admin, end := running(t, s)
	until(t, public+"/readyz", 200)
	const secret = "xyzzy"
	for path, body := range map[string]string{
		"/score_completions":                    `{"prompt": "` + secret + `"}`,
		"/score_chat_completions":               `{"messages": [{"role": "` + secret + `", "content": "` + secret + `"}], "chat_template": "{{ raise_exception(messages[0].content) }}"}`,
		"/v1/score":                             `{"prompt": "` + secret + `", "model": "` + secret + `"}`,
		"/v1/select":                            `{"body": {"prompt": ["` + secret + `", "b"]}}`,
		"/v1/done":                              `{"id": "` + secret + `"`,
		"/v1/explain?pod=pod-0&model=" + secret: `{"prompt": "` + secret + `"}`,
	} {
		post(t, admin+path, body)
	}
	until(t, admin+"/v1/explain?pod=pod-0&prompt="+secret, 200)
	until(t, admin+"/page.js", 200)
	const added = `"change":{"kind":"added","pod":"pod-0"`
	for ctx := zmtptest.Context(t); !strings.Contains(log.String(), added) && ctx.Err() == nil; {
		runtime.Gosched()
	}
	must(t, end())
	text := log.String()
	if strings.Contains(text, secret) || strings.Contains(text, "remembered other prompts") {
		t.Errorf("the log has a part of a request: %s", text)
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	if strings.Contains(text, `"status":0`) {
		t.Errorf("an answer without a status: %s", text)
	}
	for _, want := range []string{`"path":"/v1/select"`, `"status":422`, `"method":"POST"`, "draining", added} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

// The page of a service shows a loss with its cause.
func TestPageShowsLosses(t *testing.T) {
	s, engines, err := demoSettings(zmtptest.Context(t))
	for _, e := range engines {
		defer e.Close()
	}
	must(t, err)
	s.log = slog.New(slog.DiscardHandler)
	public, admin, end := running(t, s)
	until(t, public+"/readyz", 200)
	for seq, n := range []uint64{1, 5} { // 2 to 4 are missing
		_, message := payload(uint64(seq))
		if code, got := post(t, fmt.Sprintf("%s/v1/events/lossy?model=m&stream=s&seq=%d", admin, n), message); code != 200 {
			t.Fatal(code, got)
		}
	}
	a, err := http.Get(admin + "/v1/watch?pod=lossy&model=m")
	must(t, err)
	defer a.Body.Close()
	first, err := bufio.NewReaderSize(a.Body, 1<<17).ReadString('\n')
	if err != nil || !strings.Contains(first, `"Cause":"gap"`) || !strings.Contains(first, `"Gap":{"From":2,"To":4,"Lost":true}`) {
		t.Errorf("%s, %v", first, err)
	}
	_ = a.Body.Close()
	must(t, end())
}

// tail prints the events of a restarted engine that is already past the number of the last message.
func TestTailOfARestart(t *testing.T) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	must(t, err)
	defer p.Close()
	var out, errs journal
	ended := make(chan error)
	go func() { ended <- run(ctx, []string{"tail", "-replay", p.ReplayEndpoint(), p.Endpoint()}, &out, &errs) }()
	must(t, p.WaitSubscribers(ctx, 1))
	for n, publish := range []func([]byte) uint64{p.Publish, p.Skip, p.Skip} {
		if n == 1 {
			must(t, p.Restart())
		}
		_, message := payload(uint64(n))
		publish([]byte(message))
		for n == 0 && !strings.Contains(out.String(), `"seq":0`) && ctx.Err() == nil {
			runtime.Gosched()
		}
	}
	for !strings.Contains(out.String(), `"seq":1`) && ctx.Err() == nil {
		runtime.Gosched()
	}
	if text := out.String(); strings.Count(text, `"seq":0`) != 2 || strings.Count(text, `"seq":1`) != 1 {
		t.Errorf("%s%s", text, errs.String())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// tail prints an engine's events, and healthcheck reports whether a service answers.
func TestCommands(t *testing.T) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "a", Model: "m", Replay: true})
	must(t, err)
	defer e.Close()
	if _, err := e.Serve(ctx, kvindextest.Request{Tokens: make([]uint32, 40)}); err != nil {
		t.Fatal(err)
	}
	var out, errs journal
	ended := make(chan error)
	go func() {
		ended <- run(ctx, []string{"tail", "-tokens", "-replay", e.ReplayEndpoint(), e.Endpoint()}, &out, &errs)
	}()
	for _, want := range []string{`"event":"BlockStored"`, `"seq":1`} {
		for !strings.Contains(out.String(), want) {
			if ctx.Err() != nil {
				t.Fatalf("no %s: %s %s", want, out.String(), errs.String())
			}
		}
		if want == `"event":"BlockStored"` {
			first := strings.Split(out.String(), "\n")[0]
			var l line
			if err := json.Unmarshal([]byte(first), &l); err != nil || len(l.Hashes) != 2 || l.Count != 32 || len(l.IDs) != 32 || l.BlockSize != 16 || l.Seq != 0 {
				t.Errorf("%s, %v", first, err)
			}
			must(t, e.WaitSubscribers(ctx, 1))
			if _, err := e.Serve(ctx, kvindextest.Request{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), `"seq":0`); n != 1 {
		t.Errorf("message 0 came %d times: %s", n, out.String())
	}
	for _, args := range [][]string{{"-h"}, {"tail", "-h"}, {"check-config", "-h"}, {"-demo", "-h"}, {"healthcheck", "-h"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, io.Discard); err != nil || out.String() != usage {
			t.Errorf("%v: %v, %s", args, err, out.Bytes())
		}
	}
	var late bytes.Buffer
	year10000 := events.Message{Payload: fakeengine.Payload(maxTime, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))}
	if _, err := (&printer{to: json.NewEncoder(&late)}).IngestMessage(year10000); err != nil || !strings.Contains(late.String(), "BlockStored") {
		t.Errorf("a time that JSON lacks: %v %s", err, late.Bytes())
	}
	for _, args := range [][]string{{"tail"}, {"tail", "a", "b"}, {"tail", "http://x"}, {"tail", "-x"}, {"healthcheck", "-x"}, {"healthcheck", "a", "b"}, {"healthcheck", "http://127.0.0.1:1/healthz"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	public, admin, _ := running(t, settings{})
	for want, args := range map[string][]string{
		"setting listen: listen tcp": {"--demo", "-listen", strings.TrimPrefix(public, "http://"), "-admin=none"},
		"setting admin: listen tcp":  {"-listen=127.0.0.1:0", "-demo", "-admin", strings.TrimPrefix(admin, "http://")},
		"flag -memory: -demo takes":  {"-demo", "-memory=1GiB"},
		"address already in use":     {"-model", "demo", "-zmq-endpoint=none", "-admin=none", "-listen", strings.TrimPrefix(public, "http://")},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", args, err, want)
		}
	}
	if err := run(t.Context(), []string{"healthcheck", public + "/healthz"}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	_, port, _ := strings.Cut(public, "127.0.0.1:")
	for name, listen := range map[string]string{"HTTP_PORT": port, "KVINDEXD_LISTEN": "0.0.0.0:" + port} {
		t.Setenv(name, listen)
		if err := run(t.Context(), []string{"healthcheck"}, io.Discard, io.Discard); err != nil {
			t.Errorf("by %s: %v", name, err)
		}
		t.Setenv(name, "")
	}
	if err := run(t.Context(), []string{"healthcheck", public + "/nothing"}, io.Discard, io.Discard); err == nil {
		t.Error("an answer of 404 is healthy")
	}
}

// Several services share one index on Redis; each follows its own engines.
func TestRedis(t *testing.T) {
	binary, err := exec.LookPath(cmp.Or(os.Getenv("KVINDEX_REDIS_SERVER"), "redis-server"))
	if err != nil {
		if os.Getenv("KVINDEX_REQUIRE_REDIS") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no redis-server to share an index on")
	}
	dir, err := os.MkdirTemp("", "") // the path of a socket has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis")
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	config := settings{redis: "unix://" + socket + "?dial_timeout=1m&read_timeout=1m&write_timeout=1m", redisConfig: redisindex.Config{Timeout: time.Minute}}
	early, earlyAdmin, end := running(t, config) // starts before Redis
	defer end()
	until(t, earlyAdmin+"/readyz", 503)
	redis := exec.CommandContext(ctx, binary, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	must(t, redis.Start())
	defer redis.Wait()
	defer cancel()
	for c, err := net.Dial("unix", socket); ; c, err = net.Dial("unix", socket) {
		if err == nil {
			c.Close()
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	var public []string
	tokens, message := payload(1)
	for i := range 2 {
		at, admin := early, earlyAdmin
		if i > 0 {
			at, admin, end = running(t, config)
			defer end()
		}
		until(t, admin+"/readyz", 200)
		if code, got := post(t, fmt.Sprintf("%s/v1/events/%c?model=m", admin, 'a'+i), message); code != 200 {
			t.Fatal(code, got)
		}
		public = append(public, at)
	}
	for _, at := range public {
		for {
			_, got := post(t, at+"/v1/score", scoreOf(tokens))
			if strings.Count(got, `"matched_blocks":4`) == 2 {
				break
			}
			if ctx.Err() != nil {
				t.Fatal(got)
			}
		}
	}
	if err := serve(t.Context(), settings{listen: "127.0.0.1:0", redis: "redis://:secret@host:port", log: slog.New(slog.DiscardHandler)}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// The log of a process is JSON, with the messages of Redis' client, too.
func TestLogOfRedis(t *testing.T) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-redis=unix://"+filepath.Join(t.TempDir(), "none"), "-listen=127.0.0.1:0", "-admin=none", "-zmq-endpoint=none")
	cmd.Env = append(os.Environ(), child+"=main")
	out, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && json.Valid(lines.Bytes()) && !strings.Contains(lines.Text(), `"msg":"redis","message":"redis: connection pool`) {
	}
	if !json.Valid(lines.Bytes()) {
		t.Errorf("%s, %v", lines.Text(), lines.Err())
	}
	cancel()
	_ = cmd.Wait()
}

// A service waits for a Redis that is away or starting, and logs that. It ends at any other error.
func TestRedisAway(t *testing.T) {
	dir, err := os.MkdirTemp("", "")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis")
	ctx := zmtptest.Context(t)
	waits := func(log *journal, public, want string) {
		for !strings.Contains(log.String(), want) || !strings.Contains(until(t, public+"/readyz", 503), want) {
			if ctx.Err() != nil {
				t.Fatalf("no %q: %s", want, log.String())
			}
		}
		until(t, public+"/healthz", 200)
		until(t, public+"/score_completions", 503)
	}
	start := func() (log *journal, public string, end func() error) {
		log = new(journal)
		public, _, end = running(t, settings{redis: "unix://" + socket, log: logger(log, slog.LevelInfo)})
		return log, public, end
	}
	log, public, end := start()
	waits(log, public, "dial unix")
	if err := end(); err != nil {
		t.Errorf("a service that ends while it waits: %v", err)
	}

	var says atomic.Value
	says.Store("-LOADING the data is being read\r\n")
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					if strings.HasPrefix(in.Text(), "*") { // the beginning of a command
						_, _ = io.WriteString(c, says.Load().(string))
					}
				}
			}()
		}
	}()
	log, public, end = start()
	waits(log, public, "LOADING")
	says.Store("-WRONGPASS no such user\r\n")
	for ctx.Err() == nil {
		a, err := http.Get(public + "/healthz")
		if err != nil {
			break // the service has ended
		}
		a.Body.Close()
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("Redis that refuses the password: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
