package events_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		patience = 6 * time.Second
	}
	zmtptest.Main(m)
}

// patience bounds every wait of these tests.
var patience = 20 * time.Second

// subscription is a running Subscriber and what came of it.
type subscription struct {
	t *testing.T
	*events.Subscriber
	messages  chan events.Message
	connected chan string
	listening chan string
	errors    chan error
	stop      func()

	fail  func(events.Message) error // what the sink answers; nil is no error
	stops chan error
}

// IngestMessage is the sink.
func (s *subscription) IngestMessage(m events.Message) (events.Receipt, error) {
	m.Payload = bytes.Clone(m.Payload)
	s.messages <- m
	if s.fail != nil {
		return events.Receipt{}, s.fail(m)
	}
	return events.Receipt{Applied: true}, nil
}

// subscribe runs a Subscriber until the test ends.
func subscribe(t *testing.T, cfg events.SubscriberConfig, fail ...func(events.Message) error) *subscription {
	t.Helper()
	s := &subscription{
		t:         t,
		messages:  make(chan events.Message, 100_000),
		connected: make(chan string, 10_000),
		listening: make(chan string, 1),
		errors:    make(chan error, 10_000),
		stops:     make(chan error, 1),
	}
	if len(fail) > 0 {
		s.fail = fail[0]
	}
	if !cfg.Bind && cfg.Pod == "" {
		cfg.Pod, cfg.Model = "pod-a", "model"
	}
	if cfg.BackoffMin == 0 {
		cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 10*time.Millisecond
	}
	cfg.OnListen = func(e string) { s.listening <- e }
	cfg.OnConnect = func(e string) { s.connected <- e }
	cfg.OnError = func(err error) { s.errors <- err }
	var err error
	if s.Subscriber, err = events.NewSubscriber(s, cfg); err != nil {
		t.Fatal(err)
	}
	s.run()
	t.Cleanup(func() { s.stop() })
	return s
}

// run starts Run; s.stop ends it.
func (s *subscription) run() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { s.stops <- s.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := wait(s.t, "Run to return", s.stops); !errors.Is(err, context.Canceled) {
			s.t.Errorf("Run: %v, want %v", err, context.Canceled)
		}
		s.stop = func() {}
	}
}

func wait[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

func (s *subscription) next() events.Message {
	s.t.Helper()
	return wait(s.t, "a message", s.messages)
}

// waitStats waits until the counts are as they must be.
func (s *subscription) waitStats(what string, ok func(events.SubscriberStats) bool) {
	s.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok(s.Stats()) {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("waited in vain for %s: %+v", what, s.Stats())
		}
	}
}

func (s *subscription) expect(want events.Message) {
	s.t.Helper()
	if got := s.next(); show(got) != show(want) || !bytes.Equal(got.Payload, want.Payload) {
		s.t.Fatalf("got  %s\nwant %s", show(got), show(want))
	}
}

func show(m events.Message) string {
	return fmt.Sprintf("{pod %q model %q stream %q number %d payload %.50q}", m.Pod, m.Model, m.Stream, m.Seq, m.Payload)
}

func publisher(t *testing.T, cfg fakeengine.PublisherConfig) *fakeengine.Publisher {
	t.Helper()
	p, err := fakeengine.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func waitSubscriber(t *testing.T, p *fakeengine.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.WaitSubscribers(ctx, 1); err != nil {
		t.Fatal(err)
	}
}

func TestSubscriberConnects(t *testing.T) {
	for name, cfg := range map[string]fakeengine.PublisherConfig{
		"tcp": {Topic: "kv@pod@model"},
		"ipc": {Topic: "", Endpoint: "ipc://" + filepath.Join(t.TempDir(), "pub")},
	} {
		t.Run(name, func(t *testing.T) {
			p := publisher(t, cfg)
			s := subscribe(t, events.SubscriberConfig{Endpoint: p.Endpoint(), Topic: cfg.Topic, Pod: "10.0.0.7:8000", Model: "org/model"})
			if got := wait(t, "OnConnect", s.connected); got != p.Endpoint() {
				t.Errorf("connected to %s, want %s", got, p.Endpoint())
			}
			for range 3 {
				waitSubscriber(t, p)
				for i := range uint64(200) {
					p.Publish(fmt.Append(nil, "batch ", i))
				}
				for i := range uint64(200) {
					s.expect(events.Message{
						Pod: "10.0.0.7:8000", Model: "org/model", Stream: p.Endpoint(),
						Seq: i, Payload: fmt.Append(nil, "batch ", i),
					})
				}
				if err := p.Restart(); err != nil {
					t.Fatal(err)
				}
			}
			s.stop()
			if got := s.Stats(); got.Messages != 600 || got.Malformed+got.BadTopics+got.SinkErrors != 0 || got.Connects < 3 || got.Connects != got.Disconnects {
				t.Errorf("stats %+v", got)
			}
		})
	}
}

// An engine may come after its subscriber, and go and come again.
func TestSubscriberKeepsTrying(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "pub")
	s := subscribe(t, events.SubscriberConfig{Endpoint: endpoint})
	for range 3 {
		if err := wait(t, "an error", s.errors); !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%q does not name %s", err, endpoint)
		}
	}
	for round := range uint64(2) {
		p := publisher(t, fakeengine.PublisherConfig{Endpoint: endpoint})
		waitSubscriber(t, p)
		p.Publish([]byte("x"))
		if m := s.next(); m.Seq != 0 || m.Stream != endpoint {
			t.Errorf("round %d: got %s", round, show(m))
		}
		if st := s.Stats(); st.Connects != round+1 || st.Disconnects != round {
			t.Errorf("round %d: stats %+v", round, st)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// rawServer is a hostile engine: it plays one script a connection, in turn, and
// the last one again and again. A script that is whole stays connected.
func rawServer(t *testing.T, scripts ...[]byte) (endpoint string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(served)
		for i := 0; ; i++ {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { nc.Close() })
			_, _ = nc.Write(scripts[min(i, len(scripts)-1)])
			go func() { _, _ = io.Copy(io.Discard, nc); nc.Close() }()
		}
	}()
	t.Cleanup(func() { cancel(); ln.Close(); <-served })
	return zmtp.Name(ln.Addr())
}

func number(seq uint64) string { return string(binary.BigEndian.AppendUint64(nil, seq)) }

func TestSubscriberSurvivesHostileEngines(t *testing.T) {
	after := func(b []byte) []byte { return append(zmtptest.Hello(1, "PUB"), b...) }
	tests := []struct {
		name        string
		script      []byte
		handshaken  bool
		wantInError string
	}{
		{"wrong greeting", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false, "protocol error"},
		{"wrong mechanism", bytes.Replace(zmtptest.Greeting(1), []byte("NULL"), []byte("CURVE"), 1)[:64], false, "mechanism"},
		{"wrong socket type", zmtptest.Hello(1, "PUSH"), false, "PUSH"},
		{"endless metadata", append(zmtptest.Greeting(1), zmtptest.Command("READY", strings.Repeat(zmtptest.Property("X", "y"), 5000))...), false, "limit exceeded"},
		{"READY of 2^60 bytes", append(zmtptest.Greeting(1), zmtptest.LongHeader(4, 1<<60)...), false, "limit exceeded"},
		{"frame of 2^60 bytes", after(zmtptest.LongHeader(0, 1<<60)), true, "limit exceeded"},
		{"frame of 2^40 bytes", after(zmtptest.LongHeader(1, 1<<40)), true, "limit exceeded"},
		{"command with more to follow", after([]byte{5, 0}), true, "protocol error"},
		{"PING with a huge context", after(zmtptest.Command("PING", strings.Repeat("x", 200))), true, "protocol error"},
		{"ERROR", after(zmtptest.Command("ERROR", "\x04busy")), true, "busy"},
		{"endless frames", after(bytes.Repeat([]byte{1, 0}, 100)), true, "limit exceeded"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			good := after(zmtptest.Message("topic", number(5), "payload"))
			s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, tt.script, good)})
			if m := s.next(); m.Seq != 5 || string(m.Payload) != "payload" {
				t.Errorf("got %s", show(m))
			}
			lost := uint64(0)
			if tt.handshaken {
				lost = 1
			}
			if st := s.Stats(); st.Connects != lost+1 || st.Disconnects != lost {
				t.Errorf("stats %+v, want %d lost connections", st, lost)
			}
			if err := <-s.errors; !strings.Contains(err.Error(), tt.wantInError) {
				t.Errorf("%q does not say %q", err, tt.wantInError)
			}
		})
	}
	t.Run("closed inside a frame", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		s := subscribe(t, events.SubscriberConfig{Endpoint: zmtp.Name(ln.Addr())})
		for _, end := range []string{"topi", "topic"} {
			nc, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			script := after(append(zmtptest.Frame(1, "topic")[:2], end...))
			if end == "topic" {
				script = after(zmtptest.Message("topic", number(1), "x"))
			}
			if _, err := nc.Write(script); err != nil {
				t.Fatal(err)
			}
			if end == "topi" {
				wait(t, "OnConnect", s.connected)
				_ = nc.(*net.TCPConn).CloseWrite()
			}
		}
		if m := s.next(); m.Seq != 1 {
			t.Errorf("got %s", show(m))
		}
		if st := s.Stats(); st.Connects != 2 || st.Disconnects != 1 {
			t.Errorf("stats %+v", st)
		}
		if err := <-s.errors; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v, want %v", err, io.ErrUnexpectedEOF)
		}
	})
}

// An engine whose host died says nothing more, not even to a heartbeat.
func TestSubscriberLeavesDeadEngines(t *testing.T) {
	dead := zmtptest.Hello(1, "PUB")
	good := append(zmtptest.Hello(1, "PUB"), zmtptest.Message("", number(9), "x")...)
	s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, dead, good), Heartbeat: 20 * time.Millisecond})
	if m := s.next(); m.Seq != 9 {
		t.Errorf("got %s", show(m))
	}
	if st := s.Stats(); st.Connects != 2 || st.Disconnects != 1 {
		t.Errorf("stats %+v", st)
	}
	if err := <-s.errors; !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "heartbeat") {
		t.Errorf("got %v", err)
	}
}

// What is no message of an engine is dropped, and the connection stays.
func TestSubscriberDropsMalformed(t *testing.T) {
	script := bytes.Join([][]byte{
		zmtptest.Hello(1, "PUB"),
		zmtptest.Message("kv", number(0), "first"),
		zmtptest.Message("kv"),
		zmtptest.Message("kv", number(1)),
		zmtptest.Message("kv", number(1), "x", "y"),
		zmtptest.Message("kv", number(1)[1:], "x"),
		zmtptest.Message("kv", number(1)+"0", "x"),
		zmtptest.Message("", "", ""),
		zmtptest.Message("k", number(1), "x"), // nobody subscribed to that
		zmtptest.Message("kw", number(1), "x"),
		zmtptest.Message("kvx", number(2), ""),
	}, nil)
	s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, script), Topic: "kv"})
	for _, want := range []uint64{0, 2} {
		if m := s.next(); m.Seq != want {
			t.Errorf("got %s, want number %d", show(m), want)
		}
	}
	if got := s.Stats(); got.Messages != 2 || got.Malformed != 6 || got.BadTopics != 2 || got.Connects != 1 || got.Disconnects != 0 {
		t.Errorf("stats %+v", got)
	}
}

func TestSubscriberGoesOnAfterSinkErrors(t *testing.T) {
	full := errors.New("the index is full")
	p := publisher(t, fakeengine.PublisherConfig{})
	s := subscribe(t, events.SubscriberConfig{Endpoint: p.Endpoint()}, func(m events.Message) error {
		if m.Seq%2 == 1 {
			return full
		}
		return nil
	})
	waitSubscriber(t, p)
	for range 10 {
		p.Publish(nil)
	}
	for i := range uint64(10) {
		if m := s.next(); m.Seq != i {
			t.Fatalf("number %d, want %d", m.Seq, i)
		}
	}
	for range 5 {
		if err := wait(t, "OnError", s.errors); !errors.Is(err, full) || !strings.Contains(err.Error(), p.Endpoint()) {
			t.Errorf("got %v", err)
		}
	}
	if got := s.Stats(); got.SinkErrors != 5 || got.Messages != 10 || got.Disconnects != 0 {
		t.Errorf("stats %+v", got)
	}
}

// Run ends with its context whatever it is doing. The leak check of the package
// sees to the goroutines.
func TestSubscriberStops(t *testing.T) {
	t.Run("at a silent engine", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		s := subscribe(t, events.SubscriberConfig{Endpoint: zmtp.Name(ln.Addr())})
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.ReadFull(nc, make([]byte, 64)); err != nil { // it waits for our greeting
			t.Fatal(err)
		}
		s.stop()
	})
	t.Run("between two attempts", func(t *testing.T) {
		s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:1", BackoffMin: time.Hour, BackoffMax: time.Hour})
		wait(t, "the first failure", s.errors)
		s.stop()
	})
	t.Run("while nothing comes", func(t *testing.T) {
		p := publisher(t, fakeengine.PublisherConfig{})
		s := subscribe(t, events.SubscriberConfig{Endpoint: p.Endpoint()})
		waitSubscriber(t, p)
		s.stop()
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, cfg := range []events.SubscriberConfig{
			{Endpoint: "tcp://127.0.0.1:1", Pod: "p", Model: "m"},
			{Endpoint: "tcp://127.0.0.1:0", Bind: true},
		} {
			s, err := events.NewSubscriber(&subscription{}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		}
	})
	t.Run("listening, with guests at every step", func(t *testing.T) {
		s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
		endpoint := wait(t, "OnListen", s.listening)
		guest(t, endpoint, nil)
		guest(t, endpoint, zmtptest.Greeting(1))
		guest(t, endpoint, append(zmtptest.Hello(1, "PUB"), 0))
		wait(t, "OnConnect", s.connected)
		s.stop()
	})
}

func TestSubscriberRunsOnceAtATime(t *testing.T) {
	p := publisher(t, fakeengine.PublisherConfig{})
	s := subscribe(t, events.SubscriberConfig{Endpoint: p.Endpoint()})
	waitSubscriber(t, p)
	if err := s.Run(t.Context()); !errors.Is(err, events.ErrRunning) {
		t.Errorf("a second Run: %v, want %v", err, events.ErrRunning)
	}
	p.Publish(nil)
	s.next()
	s.stop()
	if err := p.Restart(); err != nil { // else the publisher may not have noticed
		t.Fatal(err)
	}
	s.run()
	waitSubscriber(t, p)
	p.Publish(nil)
	if m := s.next(); m.Seq != 0 || s.Stats().Connects != 2 {
		t.Errorf("after a pause: got %s, stats %+v", show(m), s.Stats())
	}
}

// guest is a raw connection to a listening subscriber.
func guest(t *testing.T, endpoint string, script []byte) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	say(t, nc, script)
	return nc
}

func say(t *testing.T, nc net.Conn, b []byte) {
	t.Helper()
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
}

// engine is a guest that greets as a publisher and says something.
func engine(t *testing.T, endpoint string, messages ...[]byte) net.Conn {
	t.Helper()
	return guest(t, endpoint, bytes.Join(append([][]byte{zmtptest.Hello(1, "PUB")}, messages...), nil))
}

func TestSubscriberListens(t *testing.T) {
	for name, endpoint := range map[string]string{"tcp": "tcp://127.0.0.1:0", "ipc": "ipc://" + filepath.Join(t.TempDir(), "sub")} {
		t.Run(name, func(t *testing.T) {
			s := subscribe(t, events.SubscriberConfig{Endpoint: endpoint, Bind: true, Topic: "kv@"})
			stream := endpoint + " "
			endpoint := wait(t, "OnListen", s.listening)
			engines := []struct{ topic, pod, model string }{
				{"kv@10.0.0.1:8000@org/model", "10.0.0.1:8000", "org/model"},
				{"kv@pod-b@model@v2", "pod-b", "model@v2"},
			}
			var publishers []*fakeengine.Publisher
			for _, e := range engines {
				publishers = append(publishers, publisher(t, fakeengine.PublisherConfig{Endpoint: endpoint, Connect: true, Topic: e.topic}))
			}
			for range 3 {
				for i, p := range publishers {
					waitSubscriber(t, p)
					for seq := range uint64(50) {
						p.Publish(fmt.Append(nil, seq))
					}
					for seq := range uint64(50) {
						s.expect(events.Message{
							Pod: engines[i].pod, Model: engines[i].model, Stream: stream + engines[i].topic,
							Seq: seq, Payload: fmt.Append(nil, seq),
						})
					}
					if err := p.Restart(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

func TestSubscriberListensWithFixedNames(t *testing.T) {
	for _, tt := range []struct {
		pod, model, topic  string
		wantPod, wantModel string
	}{
		{"p", "m", "anything", "p", "m"},
		{"p", "m", "", "p", "m"},
		{"p", "", "kv@pod@model", "p", "model"},
		{"", "m", "kv@pod@model", "pod", "m"},
	} {
		s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Pod: tt.pod, Model: tt.model})
		endpoint := wait(t, "OnListen", s.listening)
		engine(t, endpoint, zmtptest.Message(tt.topic, number(3), "x"))
		s.expect(events.Message{Pod: tt.wantPod, Model: tt.wantModel, Stream: "tcp://127.0.0.1:0 " + tt.topic, Seq: 3, Payload: []byte("x")})
	}
}

// Idle, silent, slow and hostile guests must not keep engines from being heard.
func TestSubscriberServesBesideHostileGuests(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	for range 5 {
		guest(t, endpoint, nil)                      // silent
		guest(t, endpoint, zmtptest.Greeting(1))     // silent in the handshake
		guest(t, endpoint, zmtptest.Greeting(1)[:9]) // slow
		guest(t, endpoint, []byte("GET / HTTP/1.1\r\n\r\n"))
		guest(t, endpoint, zmtptest.Hello(1, "SUB"))
		engine(t, endpoint) // idle
		engine(t, endpoint, zmtptest.LongHeader(0, 1<<60))
		engine(t, endpoint, zmtptest.LongHeader(0, 1<<40))
		engine(t, endpoint, []byte{0, 100, 'x'}) // stops inside a frame
		engine(t, endpoint, []byte{5, 0})
		engine(t, endpoint, zmtptest.Message("not a topic", number(0), "x"))
		engine(t, endpoint, zmtptest.Command("PING", strings.Repeat("x", 100)))
		engine(t, endpoint, zmtptest.Frame(1, "kv@a@b")).Close()
	}
	p := publisher(t, fakeengine.PublisherConfig{Endpoint: endpoint, Connect: true, Topic: "kv@pod@model"})
	waitSubscriber(t, p)
	for i := range uint64(1000) {
		p.Publish(make([]byte, i))
	}
	for i := range uint64(1000) {
		if m := s.next(); m.Pod != "pod" || m.Seq != i || len(m.Payload) != int(i) {
			t.Fatalf("got %s, want number %d", show(m), i)
		}
	}
	s.waitStats("bad topics", func(st events.SubscriberStats) bool { return st.BadTopics == 5 })
}

func TestSubscriberSlowStreamBlocksNoOther(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true}, func(m events.Message) error {
		if m.Pod == "slow" {
			close(entered)
			<-release
		}
		return nil
	})
	defer close(release) // before Run is waited for
	endpoint := wait(t, "OnListen", s.listening)
	engine(t, endpoint, zmtptest.Message("kv@slow@model", number(0), "x"))
	wait(t, "the slow message", entered)
	s.next()
	for i := range uint64(10) {
		engine(t, endpoint, zmtptest.Message(fmt.Sprintf("kv@pod-%d@model", i), number(i), "x"))
		if m := s.next(); m.Seq != i {
			t.Fatalf("got %s, want number %d", show(m), i)
		}
	}
}

func TestSubscriberBoundsTopics(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, MaxTopics: 4})
	endpoint := wait(t, "OnListen", s.listening)
	var script [][]byte
	for i := range 7 { // 3 too many
		script = append(script, zmtptest.Message(fmt.Sprintf("kv@pod-%d@model", i), number(uint64(i)), "x"))
	}
	script = append(script,
		zmtptest.Message("kv@pod@"+strings.Repeat("m", 5000), number(0), "x"),
		zmtptest.Message("kv@pod-0@model", number(100), "x")) // still heard
	engine(t, endpoint, script...)
	for _, want := range []uint64{0, 1, 2, 3, 100} {
		if m := s.next(); m.Seq != want {
			t.Fatalf("got %s, want number %d", show(m), want)
		}
	}
	if got := s.Stats(); got.BadTopics != 4 || got.Messages != 5 {
		t.Errorf("stats %+v", got)
	}
	engine(t, endpoint, zmtptest.Message("kv@pod-6@model", number(0), "x")) // has room of its own
	if m := s.next(); m.Pod != "pod-6" {
		t.Errorf("got %s", show(m))
	}
}

func TestSubscriberBoundsConnections(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, MaxConns: 2})
	endpoint := wait(t, "OnListen", s.listening)
	a := engine(t, endpoint, zmtptest.Message("kv@a@model", number(0), "x"))
	s.next()
	idle := engine(t, endpoint)
	wait(t, "a", s.connected)
	wait(t, "the idle one", s.connected)

	engine(t, endpoint, zmtptest.Message("kv@b@model", number(0), "x")) // takes the idle one's place
	if m := s.next(); m.Pod != "b" {
		t.Fatalf("got %s", show(m))
	}
	if _, err := io.Copy(io.Discard, idle); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("the idle one: %v", err) // a reset is as good as an end
	}
	refused := guest(t, endpoint, nil) // both places are taken by engines that publish
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a third connection was taken")
	}
	say(t, a, zmtptest.Message("kv@a@model", number(1), "x"))
	if m := s.next(); m.Pod != "a" || m.Seq != 1 {
		t.Errorf("got %s", show(m))
	}
	if got := s.Stats().Refused; got != 2 {
		t.Errorf("%d refused, want 2", got)
	}
}

// The newest connection has the topic; when it is gone an older one may have it
// again.
func TestSubscriberNewestConnectionWins(t *testing.T) {
	const topic = "kv@pod@model"
	message := func(seq uint64) []byte { return zmtptest.Message(topic, number(seq), "x") }
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	expect := func(seq uint64) {
		t.Helper()
		if m := s.next(); m.Seq != seq {
			t.Fatalf("got %s, want %d", show(m), seq)
		}
	}
	older := engine(t, endpoint, message(100), message(101))
	expect(100)
	expect(101)
	newer := engine(t, endpoint, message(0), message(1))
	expect(0)
	expect(1)
	say(t, older, message(102))
	if err := wait(t, "OnError", s.errors); !strings.Contains(err.Error(), topic) {
		t.Errorf("%q does not name the topic", err)
	}
	say(t, older, message(103))
	s.waitStats("the older one's messages", func(st events.SubscriberStats) bool { return st.Superseded == 2 })
	say(t, newer, message(2))
	expect(2)
	newer.Close()
	s.waitStats("the newer one to go", func(st events.SubscriberStats) bool { return st.Disconnects == 1 })
	wait(t, "OnError", s.errors)
	say(t, older, message(104))
	expect(104)
	say(t, older, message(105))
	expect(105)
	if len(s.errors) != 0 {
		t.Errorf("more errors: %v", <-s.errors)
	}
}

// A stream that is doubted stays so while no connection brings it; peers may
// invent topics, so that the memory of it has a bound.
func TestSubscriberRemembersDoubts(t *testing.T) {
	var names []string
	for i := range 2*events.RememberedDoubts + 1 {
		names = append(names, fmt.Sprint("pod-", i))
	}
	if got := events.DoubtsOf(names[:2*events.RememberedDoubts]); len(got) != 2*events.RememberedDoubts {
		t.Errorf("%d topics are doubted still, want all %d", len(got), 2*events.RememberedDoubts)
	}
	// One more makes room by half.
	if got, want := events.DoubtsOf(names), names[events.RememberedDoubts:]; !slices.Equal(got, want) {
		t.Errorf("%d topics are doubted still, want the last %d", len(got), len(want))
	}
}

func TestNewSubscriberValidates(t *testing.T) {
	good := events.SubscriberConfig{Endpoint: "tcp://10.0.0.1:5557", Pod: "pod", Model: "model"}
	if _, err := events.NewSubscriber(&subscription{}, good); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		edit func(*events.SubscriberConfig)
		want string
	}{
		{"no endpoint", func(c *events.SubscriberConfig) { c.Endpoint = "" }, "tcp://host:port"},
		{"inproc", func(c *events.SubscriberConfig) { c.Endpoint = "inproc://x" }, "inproc"},
		{"connecting to all", func(c *events.SubscriberConfig) { c.Endpoint = "tcp://*:5557" }, "host"},
		{"binding without a port", func(c *events.SubscriberConfig) { c.Bind, c.Endpoint = true, "tcp://*" }, "port"},
		{"no pod", func(c *events.SubscriberConfig) { c.Pod = "" }, "Pod"},
		{"no model", func(c *events.SubscriberConfig) { c.Model = "" }, "Model"},
		{"long topic", func(c *events.SubscriberConfig) { c.Topic = strings.Repeat("x", 1025) }, "Topic"},
		{"negative limit", func(c *events.SubscriberConfig) { c.MaxConns = -1 }, "limit"},
		{"negative time", func(c *events.SubscriberConfig) { c.Heartbeat = -1 }, "time"},
		{"backoff upside down", func(c *events.SubscriberConfig) { c.BackoffMin = time.Minute }, "BackoffMin"},
		{"small budget", func(c *events.SubscriberConfig) { c.MaxBuffered = 1 << 20 }, "MaxBuffered"},
	}
	for _, tt := range tests {
		cfg := good
		tt.edit(&cfg)
		if _, err := events.NewSubscriber(&subscription{}, cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want it to say %q", tt.name, err, tt.want)
		}
	}
	if _, err := events.NewSubscriber(nil, good); err == nil {
		t.Error("no sink was taken")
	}
}

func TestSubscriberCannotListen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	endpoint := zmtp.Name(ln.Addr())
	s, err := events.NewSubscriber(&subscription{}, events.SubscriberConfig{Endpoint: endpoint, Bind: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("Run at a taken port: %v", err)
	}
}

func TestParseTopic(t *testing.T) {
	tests := []struct{ topic, pod, model string }{
		{"kv@10.0.0.1@model", "10.0.0.1", "model"},
		{"kv@10.0.0.1:8000@org/model-7b", "10.0.0.1:8000", "org/model-7b"},
		{"kv@[::1]:8000@m", "[::1]:8000", "m"},
		{"kv@pod@model@v2", "pod", "model@v2"},
		{"kv@pod@@", "pod", "@"},
		{"", "", ""},
		{"kv", "", ""},
		{"kv@", "", ""},
		{"kv@pod", "", ""},
		{"kv@pod@", "", ""},
		{"kv@@model", "", ""},
		{"KV@pod@model", "", ""},
		{"xkv@pod@model", "", ""},
		{"kv@pod\xff@model", "", ""},
	}
	for _, tt := range tests {
		pod, model, err := events.ParseTopic(tt.topic)
		if pod != tt.pod || model != tt.model || (err == nil) != (tt.pod != "") {
			t.Errorf("%q: got %q %q, %v", tt.topic, pod, model, err)
		}
	}
}

func FuzzParseTopic(f *testing.F) {
	f.Add("kv@10.0.0.1:8000@org/model")
	f.Add("kv@pod@model@v2")
	f.Add("kv@@")
	f.Fuzz(func(t *testing.T, topic string) {
		pod, model, err := events.ParseTopic(topic)
		if err != nil {
			if pod != "" || model != "" {
				t.Fatalf("%q %q beside an error", pod, model)
			}
			return
		}
		if pod == "" || model == "" || strings.Contains(pod, "@") || "kv@"+pod+"@"+model != topic {
			t.Fatalf("%q became %q and %q", topic, pod, model)
		}
	})
}

func TestSubscriberHearsZMQ4(t *testing.T) {
	publish := func(t *testing.T, s *subscription, pub zmq4.Socket, topic string) {
		t.Helper()
		defer pub.Close()
		untilHeard(t, s, func(seq uint64) error {
			return pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), []byte(number(seq)), payload(seq)))
		})
	}
	t.Run("connecting", func(t *testing.T) {
		pub := zmq4.NewPub(t.Context())
		if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		s := subscribe(t, events.SubscriberConfig{Endpoint: zmtp.Name(pub.Addr())})
		publish(t, s, pub, "")
	})
	t.Run("listening", func(t *testing.T) {
		s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Topic: "kv@"})
		pub := zmq4.NewPub(t.Context())
		if err := pub.Dial(wait(t, "OnListen", s.listening)); err != nil {
			t.Fatal(err)
		}
		publish(t, s, pub, "kv@pod-a@model")
	})
}

func payload(seq uint64) []byte { return fmt.Append(nil, strings.Repeat("p", int(seq)*7), seq) }

// untilHeard publishes number 0 until the first message arrives, for a publisher
// drops everything before it hears of the subscription; then 500 more.
func untilHeard(t *testing.T, s *subscription, publish func(seq uint64) error) {
	t.Helper()
	var seq uint64
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for heard := false; !heard; seq++ {
		if err := publish(seq); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-s.messages:
			heard = true
			s.messages <- m // looked at below; it is alone or not, the order is checked by number
		case <-tick.C:
		case <-deadline:
			t.Fatal("nothing was heard")
		}
	}
	const more = 500
	last := seq + more - 1
	for ; seq <= last; seq++ {
		if err := publish(seq); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[uint64]events.Message)
	for {
		m := s.next()
		if m.Pod != "pod-a" || m.Model != "model" || !bytes.Equal(m.Payload, payload(m.Seq)) {
			t.Fatalf("got %s", show(m))
		}
		if got[m.Seq] = m; m.Seq == last {
			break
		}
	}
	if len(got) < more+1 || s.Stats().Malformed != 0 {
		t.Errorf("%d messages, stats %+v", len(got), s.Stats())
	}
}

// libzmqScripts are the publishers to test against: the project's own and, if
// there is one, that of the data folder.
func libzmqScripts(t *testing.T) []string {
	scripts := []string{"testdata/publisher.py"}
	if dir := os.Getenv("KVINDEX_TESTDATA"); dir != "" {
		scripts = append(scripts, filepath.Join(dir, "wire", "publisher.py"))
	} else {
		t.Log("not tested: the publisher of the data folder, KVINDEX_TESTDATA is unset")
	}
	return scripts
}

func TestSubscriberHearsLibzmq(t *testing.T) {
	zmtptest.NeedLibzmq(t)
	scripts := libzmqScripts(t)
	for _, script := range scripts {
		for _, bind := range []bool{false, true} {
			for _, transport := range []string{"tcp", "ipc"} {
				if bind && transport == "ipc" {
					continue // the scripts, as vLLM, bind every ipc endpoint
				}
				t.Run(fmt.Sprintf("%s/bind=%v/%s", filepath.Base(filepath.Dir(script)), bind, transport), func(t *testing.T) {
					hearLibzmq(t, script, bind, transport)
				})
			}
		}
	}
	t.Logf("%d scripts", len(scripts))
}

func hearLibzmq(t *testing.T, script string, bind bool, transport string) {
	var s *subscription
	var peer *zmtptest.Python
	const topic = "kv@pod-a@model"
	switch {
	case bind:
		s = subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
		peer = zmtptest.StartPython(t, script, wait(t, "OnListen", s.listening), "--topic", topic)
	case transport == "ipc":
		endpoint := "ipc://" + filepath.Join(t.TempDir(), "pub")
		peer = zmtptest.StartPython(t, script, endpoint, "--topic", topic)
		s = subscribe(t, events.SubscriberConfig{Endpoint: endpoint, Topic: "kv@"})
	default:
		port := freePort(t)
		peer = zmtptest.StartPython(t, script, "tcp://*:"+port, "--topic", topic)
		s = subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:" + port, Topic: "kv@"})
	}
	do := func(command string) {
		t.Helper()
		if _, err := peer.Do("%s", command); err != nil {
			t.Fatal(err)
		}
	}
	untilHeard(t, s, func(seq uint64) error {
		_, err := peer.Do("pub %x", payload(seq))
		return err
	})

	connects := s.Stats().Connects
	do("restart")
	// Publishing goes on until the subscriber has found its way back.
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for heard := false; !heard; {
		do("pub " + fmt.Sprintf("%x", "again"))
		select {
		case m := <-s.messages:
			if heard = true; string(m.Payload) != "again" || s.Stats().Connects == connects {
				t.Fatalf("the first message after a restart: %s, stats %+v", show(m), s.Stats())
			}
		case <-tick.C:
		case <-deadline:
			t.Fatalf("nothing was heard after a restart: %+v", s.Stats())
		}
	}

	// Large messages, and many, on one connection.
	connects = s.Stats().Connects
	do("flood 3 " + strings.Repeat("ab", 5<<20))
	do("flood 20000 0102")
	for large, small := 0, 0; small < 20000; {
		switch m := s.next(); {
		case len(m.Payload) == 5<<20:
			large++
		case len(m.Payload) == 2:
			if small++; large != 3 {
				t.Fatalf("%d large messages before the small ones, want 3", large)
			}
		}
	}
	if st := s.Stats(); st.Connects != connects {
		t.Errorf("%d connections, want %d: %v", st.Connects, connects, <-s.errors)
	}
}

// libzmq answers heartbeats, so an engine that is merely idle is not left.
func TestSubscriberStaysWithIdleLibzmq(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "pub")
	peer := zmtptest.StartPython(t, "testdata/publisher.py", endpoint, "--topic", "kv@pod-a@model")
	const heartbeat = 400 * time.Millisecond
	s := subscribe(t, events.SubscriberConfig{Endpoint: endpoint, Heartbeat: heartbeat})
	wait(t, "OnConnect", s.connected)
	select {
	case <-time.After(3 * heartbeat):
	case err := <-s.errors:
		t.Fatal(err)
	}
	untilHeard(t, s, func(seq uint64) error {
		_, err := peer.Do("pub %x", payload(seq))
		return err
	})
	if got := s.Stats(); got.Disconnects != 0 {
		t.Errorf("stats %+v", got)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// counter is a sink that tells when it has counted another thousand.
type counter struct {
	n         atomic.Int64
	thousands chan struct{}
}

func (c *counter) IngestMessage(events.Message) (events.Receipt, error) {
	if c.n.Add(1)%1000 == 0 {
		c.thousands <- struct{}{}
	}
	return events.Receipt{}, nil
}

// BenchmarkSubscriber receives batches of 256 bytes over the loopback interface,
// a thousand in each step, from a publisher that waits for its reader.
func BenchmarkSubscriber(b *testing.B) {
	report := func(b *testing.B) { b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "msgs/s") }
	b.Run("kvindex", func(b *testing.B) {
		sink := &counter{thousands: make(chan struct{})}
		s, err := events.NewSubscriber(sink, events.SubscriberConfig{Endpoint: flood(b), Pod: "pod", Model: "model"})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		b.ReportAllocs()
		for b.Loop() {
			<-sink.thousands
		}
		report(b)
		cancel()
		for open := true; open; { // the sink may be waiting for us
			select {
			case <-sink.thousands:
			case <-done:
				open = false
			}
		}
	})
	b.Run("zmq4", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		sub := zmq4.NewSub(ctx)
		defer sub.Close()
		if err := errors.Join(sub.SetOption(zmq4.OptionSubscribe, ""), sub.Dial(flood(b))); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			for range 1000 {
				if _, err := sub.Recv(); err != nil {
					b.Fatal(err)
				}
			}
		}
		report(b)
	})
}

// flood publishes to the first subscriber that comes, as fast as that one reads.
func flood(b *testing.B) (endpoint string) {
	ln, err := zmtp.Listen(b.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		c, err := zmtp.Handshake(b.Context(), nc, "the subscriber", zmtp.Config{Type: zmtp.PUB})
		if err != nil {
			return
		}
		defer c.Close()
		if _, _, err := c.ReceiveSubscription(); err != nil {
			return
		}
		topic, seq, payload := []byte("kv@pod@model"), make([]byte, 8), make([]byte, 256)
		for n := uint64(0); ; n++ {
			binary.BigEndian.PutUint64(seq, n)
			if err := c.Buffer(topic, seq, payload); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() { ln.Close(); <-done })
	return zmtp.Name(ln.Addr())
}
