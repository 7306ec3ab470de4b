// Package pagetest tests the page of kvindexd in a browser: Debian's chromium, without a window.
// KVINDEX_CHROMIUM names another one, and NODE_PATH has the folder of axe-core. Without them the
// tests are skipped, or fail if KVINDEX_REQUIRE_CHROMIUM is 1. KVINDEX_SHOTS names a folder for
// screenshots of each view, in both schemes and two widths.
package pagetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/tokenize/chat"
)

var long = flag.Bool("long", false, "long form: the memory of the browser over a minute")

// browser is the browser of all tests.
var browser context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	at, err := exec.LookPath(cmp.Or(os.Getenv("KVINDEX_CHROMIUM"), "chromium"))
	if err != nil {
		if os.Getenv("KVINDEX_REQUIRE_CHROMIUM") == "1" {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, "no browser: the page is not tested:", err)
		os.Exit(0)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(at), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(3*time.Minute),
		chromedp.Flag("js-flags", "--expose-gc"), chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	browser = ctx
	code := 1
	if err := chromedp.Do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "the browser:", err)
	} else {
		code = m.Run()
	}
	cancel()
	stop()
	os.Exit(code)
}

// A tab is a page of the browser, with cookies of its own. It records errors and requests.
type tab struct {
	*testing.T
	ctx context.Context

	mu      sync.Mutex // guards the fields below
	wrong   []string   // errors of the console, and exceptions
	urls    []string   // of all requests
	refusal bool       // the test expects answers that are errors
}

func open(t *testing.T) *tab {
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	b := &tab{T: t, ctx: ctx}
	deadline, ok := t.Deadline()
	if !ok {
		deadline = time.Now().Add(10 * time.Minute)
	}
	ctx, done := context.WithDeadline(ctx, deadline.Add(-5*time.Second))
	b.ctx = ctx
	t.Cleanup(func() { done(); cancel() })
	err := chromedp.Listen(ctx, func(e any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			b.wrong = append(b.wrong, fmt.Sprintf("%s %s:%d", e.ExceptionDetails.Text, e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber))
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
				b.wrong = append(b.wrong, fmt.Sprintf("%s: %s", e.Type, e.Args[0].Value))
			}
		case *cdplog.EventEntryAdded:
			meant := b.refusal && e.Entry.Source == cdplog.EntrySourceNetwork
			if e.Entry.Level == cdplog.EntryLevelError && !meant {
				b.wrong = append(b.wrong, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
			}
		case *network.EventRequestWillBeSent:
			b.urls = append(b.urls, e.Request.URL)
		case *page.EventJavascriptDialogOpening:
			b.wrong = append(b.wrong, "a dialog: "+e.Message)
		}
	})
	must(t, err)
	call(b, network.Enable, network.EnableParams{})
	call(b, cdplog.Enable, cdp.Empty{})
	return b
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	must(b, chromedp.Do(b.ctx, actions...))
}

// do runs statements of JavaScript.
func (b *tab) do(statements string) {
	b.Helper()
	value[chromedp.Void](b, statements)
}

// value evaluates an expression.
func value[T any](b *tab, expression string) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	must(b, err)
	return v
}

// call sends a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	must(b, err)
	return r
}

// taskTime returns the processor time of the page since performance.Enable was called.
func taskTime(b *tab) time.Duration {
	b.Helper()
	for _, m := range call(b, performance.GetMetrics, cdp.Empty{}).Metrics {
		if m.Name == "TaskDuration" {
			return time.Duration(m.Value * float64(time.Second))
		}
	}
	b.Fatal("the browser reports no task time")
	return 0
}

// until waits until an expression is true.
func (b *tab) until(what, expression string) {
	b.Helper()
	for !value[bool](b, "Boolean("+expression+")") {
		if b.ctx.Err() != nil {
			b.Fatalf("not so: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// open loads a page, and waits until it shows a picture.
func (b *tab) open(at string) {
	b.Helper()
	b.run(chromedp.Navigate(at))
	b.until("there is a picture", `document.getElementById("link").className === "live"`)
}

// clean fails if there was an error, or a request to another host.
func (b *tab) clean(at string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.Errorf("%s", w)
	}
	for _, url := range b.urls {
		if !strings.HasPrefix(url, at) && !strings.HasPrefix(url, "data:") {
			b.Errorf("a request to %s", url)
		}
	}
}

// A service is kvindexd's server over simulated engines.
type service struct {
	t       *testing.T
	cfg     server.Config
	options []kvindex.Option
	at      string // host and port

	ix     *kvindex.Indexer
	fleet  *events.Fleet
	server *server.Server
	stop   func()
}

// letters has a token for each byte.
type letters struct{}

func (letters) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

const template = `{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

// serve starts a service for model "m" on a port of its own.
func serve(t *testing.T, cfg server.Config, options ...kvindex.Option) *service {
	s := &service{t: t, cfg: cfg, options: options, at: "127.0.0.1:0"}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// start starts the service, the first time or again.
func (s *service) start() {
	m, err := chat.New(template, nil, chat.Options{})
	if err == nil {
		hooks := kvindex.Hooks{Lost: func(l kvindex.Loss) { s.server.Lost(l) }}
		s.ix, err = kvindex.New(append(slices.Clone(s.options), kvindex.WithHooks(hooks), kvindex.WithModel("m", kvindex.Model{Tokenizer: letters{}, Chat: m}))...)
	}
	if err == nil {
		s.fleet, err = events.NewFleet(s.ix.Sink(), events.FleetConfig{})
	}
	var l net.Listener
	for err == nil {
		if l, err = net.Listen("tcp", s.at); err == nil {
			break
		}
		if s.t.Context().Err() == nil { // retry: the port is not free yet
			err = nil
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.at = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.fleet.Run(ctx) })
	s.server = server.New(s.cfg)
	s.server.Open(s.ix, s.fleet)
	h := s.server.HTTP(s.server.Admin())
	running.Go(func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
	})
	s.stop = sync.OnceFunc(func() { // without a shutdown, like a kill
		_ = h.Close()
		cancel()
		running.Wait()
		s.server.Close()
		_ = s.ix.Close()
	})
}

func (s *service) url() string { return "http://" + s.at + "/" }

// engine starts an engine and lets the service follow it.
func (s *service) engine(pod string) (*kvindextest.Engine, events.Pod) {
	engines, p, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: pod, Model: "m", Replay: true}, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = engines[0].Close() })
	s.follow(p)
	if err := engines[0].WaitSubscribers(s.t.Context(), 1); err != nil {
		s.t.Fatal(err)
	}
	return engines[0], p
}

func (s *service) follow(p events.Pod) {
	if err := s.fleet.Put("test", p); err != nil {
		s.t.Fatal(err)
	}
}

// computes lets an engine compute a prompt, and waits until the service has applied its events.
func (s *service) computes(e *kvindextest.Engine, prompt string) {
	s.t.Helper()
	tokens, _ := letters{}.Encode(s.t.Context(), nil, prompt, true)
	_, err := e.Serve(s.t.Context(), kvindextest.Request{Tokens: tokens})
	if err == nil {
		err = e.WaitApplied(s.t.Context(), s.ix)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func quote(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
