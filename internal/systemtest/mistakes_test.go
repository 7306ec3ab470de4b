package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

// These are endpoints without an engine.

// closedEndpoint returns one on which nothing listens.
func closedEndpoint(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

// httpEndpoint is Go's HTTP server, which waits for the end of a line.
func httpEndpoint(t testing.TB) string {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return "tcp://" + strings.TrimPrefix(s.URL, "http://")
}

// refusingEndpoint is an HTTP server that answers at once, as uvicorn does.
func refusingEndpoint(t testing.TB) string {
	return serveTCP(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\nInvalid HTTP request received.")
		}
	})
}

// muteEndpoint accepts connections and sends nothing.
func muteEndpoint(t testing.TB) string {
	return serveTCP(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// serveTCP has each connection served, and then closed, until the test ends.
func serveTCP(t testing.TB, serve func(net.Conn)) (endpoint string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var (
		done  sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			done.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return "tcp://" + l.Addr().String()
}

// wrongReplays are replay endpoints that never answer.
var wrongReplays = []struct {
	name     string
	endpoint func(testing.TB) string
}{
	{"replay port closed", closedEndpoint},
	{"replay port of HTTP", httpEndpoint},
	{"replay port refuses", refusingEndpoint},
	{"replay port accepts", muteEndpoint},
}

// runSubscriber runs a Subscriber until the test ends.
func runSubscriber(t testing.TB, sink events.Sink, cfg events.SubscriberConfig) {
	t.Helper()
	sub, err := events.NewSubscriber(sink, cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = sub.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// mistake is a wrong setup with its report.
type mistake struct {
	name  string
	wire  func(w *wiring)
	told  string // regular expression for the error of OnError
	state kvindex.State
}

var mistakes = []mistake{
	{"replay endpoint closed", func(w *wiring) { w.Replay = closedEndpoint(w.t) }, `replay.*refused`, kvindex.StateLive},
	{"replay endpoint of Go's HTTP", func(w *wiring) { w.Replay = httpEndpoint(w.t) }, `(?i)replay.*\b(no|not) (zmtp|zeromq)`, kvindex.StateLive},
	{"replay endpoint of uvicorn", func(w *wiring) { w.Replay = refusingEndpoint(w.t) }, `replay.*HTTP`, kvindex.StateLive},
	{"replay endpoint accepts", func(w *wiring) { w.Replay = muteEndpoint(w.t) }, `(?i)replay.*\b(no|not) (zmtp|zeromq)`, kvindex.StateLive},
	{"replay endpoint of another engine", (*wiring).anotherReplay, `(?i)replay.*another`, kvindex.StatePartial},
	{"endpoint closed", func(w *wiring) { w.Endpoint = closedEndpoint(w.t) }, `refused`, kvindex.StateSilent},
	{"endpoint of Go's HTTP", func(w *wiring) { w.Endpoint = httpEndpoint(w.t) }, `(?i)\b(no|not) (zmtp|zeromq)`, kvindex.StateSilent},
	{"endpoint of uvicorn", func(w *wiring) { w.Endpoint = refusingEndpoint(w.t) }, `HTTP`, kvindex.StateSilent},
	{"endpoint accepts", func(w *wiring) { w.Endpoint = muteEndpoint(w.t) }, `(?i)\b(no|not) (zmtp|zeromq)`, kvindex.StateSilent},
	{"endpoint is a ROUTER", func(w *wiring) { w.Endpoint = w.replay }, `ROUTER`, kvindex.StateSilent},
}

// wiring is a Subscriber for an engine that publishes.
type wiring struct {
	events.SubscriberConfig
	t         *testing.T
	ix        *kvindex.Indexer
	publisher *fakeengine.Publisher
	replay    string // endpoint of the engine's replay socket
	errors    chan error
}

func newWiring(t *testing.T) *wiring {
	p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	w := &wiring{t: t, ix: open(t), publisher: p, replay: p.ReplayEndpoint(), errors: make(chan error, 1000)}
	w.SubscriberConfig = events.SubscriberConfig{Endpoint: p.Endpoint(), Pod: "a", Model: "m", OnError: func(err error) {
		select {
		case w.errors <- err:
		default:
		}
	}}
	return w
}

// anotherReplay returns the replay socket of another engine with as many messages.
func (w *wiring) anotherReplay() {
	other, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { other.Close() })
	w.Replay = other.ReplayEndpoint()
	for i := range uint64(3) {
		other.Skip(fakeengine.Payload(1e9+float64(i), 0, fakeengine.NewPrompt(100+i, 16, 2).Stored(0, 2)))
		w.publisher.Skip(w.batch(i))
	}
}

func (w *wiring) batch(i uint64) []byte {
	return fakeengine.Payload(1e9+float64(i), 0, fakeengine.NewPrompt(i%100, 16, 1).Stored(0, 1))
}

// publishOn publishes until the test ends, because a message may be lost with a reconnection.
func (w *wiring) publishOn() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			w.publisher.Publish(w.batch(w.publisher.Next()))
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	w.t.Cleanup(func() { close(stop); <-stopped })
}

// told waits for an error, and logs how long it took.
func (w *wiring) told(text string) error {
	w.t.Helper()
	start := time.Now()
	var others []error
	for wanted := regexp.MustCompile(text); ; {
		select {
		case err := <-w.errors:
			if wanted.MatchString(err.Error()) {
				w.t.Logf("after %v: %v", time.Since(start).Round(time.Millisecond), err)
				return err
			}
			others = append(others, err)
		case <-zmtptest.Context(w.t).Done():
			w.t.Fatalf("no error with %q, but %v", text, others)
		}
	}
}

// reaches waits for a state of the pod.
func (w *wiring) reaches(state kvindex.State) {
	w.t.Helper()
	for {
		pods := w.ix.Pods(nil)
		if len(pods) == 1 && pods[0].Pod == "a" && pods[0].State == state {
			return
		}
		select {
		case <-time.After(pollEvery):
		case <-zmtptest.Context(w.t).Done():
			w.t.Fatalf("pods %+v, want one that is %v", pods, state)
		}
	}
}

// TestMistakes: each wrong setting is reported, and the correct parts do not wait for it.
func TestMistakes(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := newWiring(t)
			m.wire(w)
			runSubscriber(t, w.ix.Sink(), w.SubscriberConfig)
			if m.state == kvindex.StateSilent {
				w.told(m.told)
				w.reaches(kvindex.StateSilent)
				return
			}
			must(t, w.publisher.WaitSubscribers(zmtptest.Context(t), 1))
			w.publishOn()
			w.told(m.told)
			w.reaches(m.state)
			for i := range uint64(3) {
				if n := blocks(t, w.ix, "a", fakeengine.NewPrompt(100+i, 16, 2)); n > 0 {
					t.Errorf("%d blocks of another engine", n)
				}
			}
		})
	}
}

// TestSilence: a silent engine is reported once, with possible causes.
func TestSilence(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, m := range []struct {
		name, told string
		wire       func(*wiring)
	}{
		{"topic that nothing matches", `kv@nobody`, func(w *wiring) { w.Topic = "kv@nobody" }},
		{"events off", `(?i)events`, func(*wiring) {}},
	} {
		t.Run(m.name, func(t *testing.T) {
			w := newWiring(t)
			w.Silence = 50 * time.Millisecond
			m.wire(w)
			runSubscriber(t, w.ix.Sink(), w.SubscriberConfig)
			w.reaches(kvindex.StateSilent)
			told := new(events.TransportError)
			if err := w.told(m.told); !errors.As(err, &told) || told.Pod != "a" || told.Model != "m" || told.Endpoint != w.Endpoint {
				t.Errorf("%#v", err)
			}
			w.reaches(kvindex.StateSilent)
			// After another such silence a second engine is reported, and the first not again.
			w.Pod = "b"
			runSubscriber(t, w.ix.Sink(), w.SubscriberConfig)
			if err := w.told(m.told); !errors.As(err, &told) || told.Pod != "b" {
				t.Errorf("%#v", err)
			}
		})
	}
}

// TestMistakesAtOnce: settings that are wrong by themselves are errors.
func TestMistakesAtOnce(t *testing.T) {
	malformed := func(s stats.Stats) uint64 { return s.Malformed }
	scores := func(o string) func(stats.Stats) uint64 {
		return func(s stats.Stats) uint64 { return s.Scores.Outcomes[o] }
	}
	for _, m := range []struct {
		name, told string
		counted    func(stats.Stats) uint64 // nil: do returns the error
		do         func(*kvindex.Indexer) error
	}{
		{"endpoint to connect to is any", `0\.0\.0\.0`, nil, func(ix *kvindex.Indexer) error {
			_, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{Endpoint: "tcp://0.0.0.0:5557", Pod: "a", Model: "m"})
			return err
		}},
		{"replay endpoint is any", `0\.0\.0\.0`, nil, func(ix *kvindex.Indexer) error {
			_, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{Endpoint: "tcp://10.0.0.1:5557", Replay: "tcp://0.0.0.0:5558", Pod: "a", Model: "m"})
			return err
		}},
		{"JSON", "JSON", malformed, func(ix *kvindex.Indexer) error {
			return ix.Ingest("a", "m", []byte(`[1754000000.5, [{"type": "BlockStored"}], 0]`))
		}},
		{"model under two names", `"org/m".*"m"`, scores("unknown_model"), func(ix *kvindex.Indexer) error { return unknown(t, ix, "org/m", "") }},
		{"adapter that nobody has told of", `"sql"`, scores("unknown_adapter"), func(ix *kvindex.Indexer) error { return unknown(t, ix, "m", "sql") }},
		{"text for an unknown name", "adapter", scores("unknown_model"), func(ix *kvindex.Indexer) error {
			_, err := ix.Score(t.Context(), "prompt", "sql", nil)
			return err
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			ix := open(t)
			must(t, ix.Ingest("a", "m", fakeengine.Payload(1e9, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))))
			err := m.do(ix)
			if err == nil || !regexp.MustCompile(m.told).MatchString(err.Error()) {
				t.Errorf("error %v, want one with %s", err, m.told)
			}
			if m.counted != nil && m.counted(ix.Stats()) != 1 {
				t.Errorf("not counted: %+v", ix.Stats())
			}
		})
	}
}

// unknown returns the answer's error about a prompt's names.
func unknown(t *testing.T, ix *kvindex.Indexer, model, adapter string) error {
	t.Helper()
	var a kvindex.Answer
	must(t, ix.ScoreRequest(t.Context(), &kvindex.Request{Model: model, Adapter: adapter, Tokens: make([]uint32, 20)}, &a))
	return a.Unknown
}
