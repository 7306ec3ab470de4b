package events_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func TestMain(m *testing.M) {
	if n := os.Getenv("KVINDEX_MUTANT"); n != "" && n != "0" { // a broken mutant makes the tests wait in vain
		patience = 6 * time.Second
	}
	zmtptest.Main(m)
}

// patience bounds every wait of these tests.
var patience = time.Minute

// saysSilent reports whether err is that of an engine that publishes nothing.
func saysSilent(err error) bool { return strings.Contains(err.Error(), " has published ") }

// messageSink is the base of sinks for which only messages count.
type messageSink struct{}

func (messageSink) StreamNext(_, _, _ string) events.Position      { return events.Position{} }
func (messageSink) StreamNote(_, _, _ string, _ events.Note) error { return nil }
func (messageSink) RemovePod(string) error                         { return nil }
func (messageSink) RemoveStream(_, _, _ string) error              { return nil }

// subscription is a running Subscriber and its messages and errors.
type subscription struct {
	messageSink
	t *testing.T
	*events.Subscriber
	messages  chan events.Message
	connected chan string
	listening chan string
	errors    chan error
	stop      func()

	fail  func(events.Message) error // the result of IngestMessage; nil is no error
	stops chan error
}

func (s *subscription) IngestMessage(m events.Message) (events.Receipt, error) {
	if m.Err != nil {
		return events.Receipt{}, m.Err
	}
	m.Payload = bytes.Clone(m.Payload)
	s.messages <- m
	if s.fail != nil {
		err := s.fail(m)
		return events.Receipt{Applied: err == nil}, err
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
	if cfg.Backoff == 0 {
		cfg.Backoff = 10 * time.Millisecond
	}
	cfg.OnListen = func(e string) { s.listening <- e }
	cfg.OnConnect = func(e string) { s.connected <- e }
	cfg.OnError = func(err error) {
		if _, ok := err.(*events.TransportError); !ok {
			t.Errorf("OnError got a %T: %v", err, err)
		}
		s.errors <- err
	}
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

// waitStats waits until ok holds.
func (s *subscription) waitStats(what string, ok func(events.SubscriberStats) bool) {
	s.t.Helper()
	eventually(s.t, func() string {
		if st := s.Stats(); !ok(st) {
			return fmt.Sprintf("%s: %+v", what, st)
		}
		return ""
	})
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
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func waitSubscriber(t *testing.T, p *fakeengine.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, p.WaitSubscribers(ctx, 1))
}

func number(seq uint64) string { return string(binary.BigEndian.AppendUint64(nil, seq)) }

// Frames that are no message of an engine are dropped, and the connection stays.
func TestSubscriberDropsMalformed(t *testing.T) {
	script := bytes.Join([][]byte{
		zmtptest.Hello(1, "PUB"),
		zmtptest.Message("kv", number(0), "first"),
		zmtptest.Message("kv"),
		zmtptest.Message("kv", number(1)),
		zmtptest.Message("kv", number(1), "x", "y"),
		zmtptest.Message("kv", number(1)[1:], "x"),
		zmtptest.Message("kv", number(1)+"0", "x"), // a number of 9 bytes
		zmtptest.Message("", "", ""),
		zmtptest.Message("k", number(1), "x"), // not subscribed to
		zmtptest.Message("kw", number(1), "x"),
		zmtptest.Message("kvx", number(2), ""), // a pod has one topic
		zmtptest.Message("kv", number(2), "last"),
	}, nil)
	s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, script), Topic: "kv"})
	for _, want := range []uint64{0, 1, 2} {
		if m := s.next(); m.Seq != want {
			t.Errorf("got %s, want number %d", show(m), want)
		}
	}
	if got := s.Stats(); got.Messages != 3 || got.Dropped["malformed"] != 4 || got.Dropped["bad_topic"] != 4 || got.Connects != 1 || got.Disconnects != 0 {
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

// Run ends with its context in every state. The leak check of the package covers the goroutines.
func TestSubscriberStops(t *testing.T) {
	t.Run("at a silent engine", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer ln.Close()
		s := subscribe(t, events.SubscriberConfig{Endpoint: zmtp.Name(ln.Addr())})
		nc, err := ln.Accept()
		must(t, err)
		defer nc.Close()
		if _, err := io.ReadFull(nc, make([]byte, 64)); err != nil { // it waits for the peer's greeting
			t.Fatal(err)
		}
		s.stop()
	})
	t.Run("between two attempts", func(t *testing.T) {
		s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:1", Backoff: 10 * time.Hour})
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
			must(t, err)
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
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Run is already running") {
		t.Errorf("a second Run: %v", err)
	}
	p.Publish(nil)
	s.next()
	s.stop()
	if err := p.Restart(); err != nil { // else the publisher may not have noticed the end
		t.Fatal(err)
	}
	s.run()
	waitSubscriber(t, p)
	p.Publish(nil)
	if m := s.next(); m.Seq != 0 || s.Stats().Connects != 2 {
		t.Errorf("after a pause: got %s, stats %+v", show(m), s.Stats())
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
		{"one port for both", func(c *events.SubscriberConfig) { c.Replay = c.Endpoint }, "Replay and Endpoint are both tcp://10.0.0.1:5557"},
		{"bad replay socket", func(c *events.SubscriberConfig) { c.Replay = "udp://h:2" }, "udp"},
		{"one replay socket for many", func(c *events.SubscriberConfig) { c.Bind, c.Replay = true, "tcp://h:2" }, "ReplayOf"},
		{"many replay sockets for one", func(c *events.SubscriberConfig) { c.ReplayOf = func(string, string) string { return "" } }, "set Replay"},
		{"negative timeout", func(c *events.SubscriberConfig) { c.ReplayTimeout = -1 }, "ReplayTimeout -1ns"},
		{"no pod", func(c *events.SubscriberConfig) { c.Pod = "" }, "Pod"},
		{"no model", func(c *events.SubscriberConfig) { c.Model = "" }, "Model"},
		{"long topic", func(c *events.SubscriberConfig) { c.Topic = strings.Repeat("x", 1025) }, "Topic"},
		{"negative limit", func(c *events.SubscriberConfig) { c.MaxConns = -1 }, "MaxConns is -1, must"},
		{"negative time", func(c *events.SubscriberConfig) { c.Heartbeat = -1 }, "Heartbeat -1ns"},
		{"nanoseconds", func(c *events.SubscriberConfig) { c.Backoff = 5 }, "Backoff is 5ns"},
		{"long replay timeout", func(c *events.SubscriberConfig) { c.ReplayTimeout = math.MaxInt64 }, "must be at most 24h"},
		{"long backoff", func(c *events.SubscriberConfig) { c.Backoff = math.MaxInt64 }, "must be at most 24h"},
		{"large messages", func(c *events.SubscriberConfig) { c.MaxMessage = math.MaxInt/8 + 1 }, "MaxMessage is"},
		{"negative message", func(c *events.SubscriberConfig) { c.MaxMessage = -1 }, "MaxMessage is -1"},
	}
	for _, tt := range tests {
		cfg := good
		tt.edit(&cfg)
		if _, err := events.NewSubscriber(struct{ events.Sink }{}, cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want it to say %q", tt.name, err, tt.want)
		}
	}
	if _, err := events.NewSubscriber(nil, good); err == nil {
		t.Error("no sink was taken")
	}
}

// hushed is an engine of ZMTP 3.0, which has no heartbeats and so may be silent for ever. Its
// connections come from the channel.
func hushed(t *testing.T) (endpoint string, connections <-chan net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 100)
	return listener(t, "127.0.0.1:0", func(nc net.Conn) {
		_, _ = nc.Write(zmtptest.Hello(0, "PUB"))
		accepted <- nc
	}), accepted
}

// TestIdle: messages from before the subscription, and the last message before a silence, leave no
// gap in the numbers while the engine is silent. They are requested once a silence.
func TestIdle(t *testing.T) {
	has := []int{1, 1, 3, 5} // at each request
	r := newRouter(t, func(n int, start uint64) [][][]byte { return life{100, has[min(n, 3)]}.answer(start) })
	endpoint, connections := hushed(t)
	l := newLedger()
	const heartbeat = 50 * time.Millisecond
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint, Heartbeat: heartbeat})
	l.expect(t, "0 1 2")
	wait(t, "a connection", connections)
	nc := wait(t, "the next connection", connections)
	say(t, nc, life{from: 100}.live(3)) // 4 is lost
	l.expect(t, "0 1 2 3 4")
	for i, messages := range []int{1, 1, 3, 2} {
		if got := wait(t, "a replay", replays); got.Err != nil || got.Messages != messages || got.Restarted {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	// A PING ends the silence, but is no message. The other Subscriber's requests show that the
	// next silence has been long enough.
	say(t, nc, zmtptest.Command("PING", "\x00\x00"))
	other, _ := hushed(t)
	_, others, _ := follow(t, newLedger(), events.SubscriberConfig{Endpoint: other, Replay: newLives(t, life{100, 1}).endpoint, Heartbeat: heartbeat})
	for _, what := range []string{"the first contact", "the next connection", "the silence"} {
		wait(t, what, others)
	}
	say(t, nc, life{from: 100}.live(5))
	l.expect(t, "0 1 2 3 4 5")
	if got := wait(t, "a replay", replays); got.From != 6 {
		t.Errorf("requested again, from %d", got.From)
	}
}

func TestBoundIdle(t *testing.T) {
	r := newRouter(t, func(n int, start uint64) [][][]byte { return life{100, 1 + n}.answer(start) })
	b := newBound(t, r.endpoint, events.SubscriberConfig{Heartbeat: 50 * time.Millisecond})
	b.say(guest(t, b.endpoint, zmtptest.Hello(0, "PUB")), life{from: 100}, 0)
	b.expect(t, "0 1 2")
	if got, want := r.asked(), []uint64{0, 0, 0}; !slices.Equal(got, want) { // for all, for message 0, for missing messages
		t.Errorf("replays requested from %v, want from %v", got, want)
	}
}

// TestIdleFindsAnOtherLife: the connection is still open, but the replay socket is the next
// engine's. A message of the old connection is not applied, even with the expected number.
func TestIdleFindsAnOtherLife(t *testing.T) {
	old, now := life{100, 1}, life{200, 3}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		switch n {
		case 0, 1:
			return old.answer(start)
		case 2, 3:
			return now.answer(start)
		}
		return life{200, 5}.answer(start)
	})
	endpoint, connections := hushed(t)
	l := newLedger()
	follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint, Heartbeat: 50 * time.Millisecond})
	l.expect(t, "0 hold 0 anew 0 1 2")
	wait(t, "a connection", connections)
	say(t, wait(t, "the next connection", connections), old.live(3))
	l.expect(t, "0 hold 0 anew 0 1 2 3 4")
}

// interruptions is a ledger that sends the streams whose connection was lost.
type interruptions struct {
	*ledger
	streams chan string
}

func (i interruptions) StreamNote(pod, model, stream string, n events.Note) error {
	if n == events.NoteLost {
		i.streams <- pod + " " + model + " " + stream
	}
	return i.ledger.StreamNote(pod, model, stream, n)
}

// TestInterrupted: the sink gets NoteLost when the connection of a stream is lost, but not if
// another connection has replaced it.
func TestInterrupted(t *testing.T) {
	sink := interruptions{newLedger(), make(chan string, 1000)}
	run := func(cfg events.SubscriberConfig) *events.Subscriber {
		cfg.Backoff = 5 * time.Millisecond
		s, err := events.NewSubscriber(sink, cfg)
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			wait(t, "Run to return", ended)
		})
		return s
	}
	told := func(want string) {
		t.Helper()
		if got := wait(t, "an interruption", sink.streams); got != want {
			t.Errorf("lost %q, want %q", got, want)
		}
	}
	endpoint, connections := hushed(t)
	connected := make(chan string, 1000)
	run(events.SubscriberConfig{Endpoint: endpoint, Pod: "a", Model: "m", OnConnect: func(e string) { connected <- e }})
	wait(t, "the subscription", connected)
	wait(t, "the connection", connections).Close()
	told("a m " + endpoint)

	listening := make(chan string, 1)
	b := &bindSubscriber{T: t, ledger: sink.ledger}
	cfg := events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, OnListen: func(e string) { listening <- e }}
	b.Subscriber = run(cfg)
	b.endpoint = wait(t, "the listener", listening)
	engine := life{100, 10}
	older := b.connect(engine, 0)
	b.expect(t, "0")
	newer := b.connect(engine, 1)
	b.expect(t, "0 1")
	older.Close()
	b.waitDisconnects(1)
	newer.Close()
	told("a m " + cfg.Endpoint + " kv@a@m")
	b.waitDisconnects(2)
	if n := len(sink.streams); n != 0 {
		t.Errorf("reported %d times more: %q", n, <-sink.streams)
	}
}

// contestedSink is a sink that gets the rank from another stream.
type contestedSink struct{ messageSink }

func (contestedSink) IngestMessage(events.Message) (events.Receipt, error) {
	return events.Receipt{}, nil
}

// TestContested: OnError gets a fault, at intervals, if another stream has the rank.
func TestContested(t *testing.T) {
	script := zmtptest.Hello(0, "PUB")
	for i := range uint64(100) {
		script = append(script, zmtptest.Message("", number(i), "x")...)
	}
	endpoint := rawServer(t, script)
	told := make(chan error, 100)
	s, err := events.NewSubscriber(contestedSink{}, events.SubscriberConfig{Pod: "a", Model: "m", Endpoint: endpoint, OnError: func(err error) { told <- err }})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	begin := time.Now()
	go func() { ended <- s.Run(ctx) }()
	want := fmt.Sprintf(`events: subscriber: pod "a": messages of %s are not applied: another stream has their rank: are two engines configured under one pod and rank?`, endpoint)
	if err := wait(t, "OnError", told); err.Error() != want {
		t.Errorf("reported %v, want %s", err, want)
	}
	for s.Stats().Messages < 100 {
		runtime.Gosched()
	}
	cancel()
	<-ended
	if n := len(told); time.Since(begin) < time.Second && n > 0 {
		t.Errorf("reported %d times more", n)
	}
}

// TestTransportError: a fault has its pod, rank, connection and cause.
func TestTransportError(t *testing.T) {
	const closed, port = "tcp://127.0.0.1:2", 2 // no listener there, nor at the port before
	quiet := rawServer(t, zmtptest.Hello(0, "PUB"))
	spoken := slices.Concat(zmtptest.Hello(0, "PUB"), zmtptest.Message("kv@b@n", number(0), "x"))
	guests := func(script []byte) func(*testing.T) (chan error, string) {
		return func(t *testing.T) (chan error, string) {
			s := subscribe(t, events.SubscriberConfig{Bind: true, Endpoint: "tcp://127.0.0.1:0", Silence: time.Millisecond})
			c := guest(t, wait(t, "OnListen", s.listening), script)
			if bytes.Equal(script, spoken) {
				s.next()
				c.Close()
			}
			return s.errors, zmtp.Name(c.LocalAddr())
		}
	}
	fleet := func(t *testing.T, sink events.Sink, source ...events.PodSource) chan error {
		errs := make(chan error, 100)
		f := newFleet(t, sink, events.FleetConfig{OnError: func(err error) { errs <- err }})
		mustSet(t, f, "s", events.Pod{ID: "b", Model: "n", Host: "127.0.0.1", Port: port - 1, Ranks: 2})
		runFleet(t, f, source...)
		mustSet(t, f, "s")
		mustSet(t, f, "s", events.Pod{ID: "b", Model: "n", Host: "127.0.0.1", Port: port - 1, Ranks: 2})
		return errs
	}
	broken := errors.New("broken")
	refused := func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
	lost := func(err error) bool { return strings.Contains(err.Error(), `pod "b": connection lost`) }
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	for _, tt := range []struct {
		what  string
		begin func(t *testing.T) (chan error, string)
		want  events.TransportError // begin returns the Endpoint
		cause func(error) bool
	}{
		{"refused", func(t *testing.T) (chan error, string) {
			return subscribe(t, events.SubscriberConfig{Pod: "b", Model: "n", Endpoint: closed}).errors, closed
		}, events.TransportError{Pod: "b", Model: "n", Rank: -1}, refused},
		{"silent", func(t *testing.T) (chan error, string) {
			return subscribe(t, events.SubscriberConfig{Pod: "b", Model: "n", Endpoint: quiet, Silence: time.Millisecond}).errors, quiet
		}, events.TransportError{Pod: "b", Model: "n", Rank: -1}, saysSilent},
		{"refused, in a Fleet", func(t *testing.T) (chan error, string) { return fleet(t, newFleetSink()), closed },
			events.TransportError{Pod: "b", Model: "n", Rank: 1}, refused},
		{"not forgotten", func(t *testing.T) (chan error, string) {
			sink := newFleetSink()
			sink.refuse = func(string) error { return broken }
			return fleet(t, sink), ""
		}, events.TransportError{Pod: "b", Model: "n", Rank: -1}, is(broken)},
		{"a source", func(t *testing.T) (chan error, string) {
			return fleet(t, newFleetSink(), events.PodSource{Name: "x", Run: func(context.Context, func([]events.Pod) error) error { return broken }}), ""
		}, events.TransportError{Rank: -1}, is(broken)},
		{"a guest that is silent", guests(zmtptest.Hello(0, "PUB")), events.TransportError{Rank: -1}, saysSilent},
		{"a guest that leaves", guests(spoken), events.TransportError{Pod: "b", Model: "n", Rank: -1}, lost},
	} {
		t.Run(tt.what, func(t *testing.T) {
			errs, endpoint := tt.begin(t)
			want := tt.want
			want.Endpoint = endpoint
			for {
				err := wait(t, "the fault", errs)
				var got *events.TransportError
				if !errors.As(err, &got) || err.Error() != got.Err.Error() {
					t.Fatalf("%T: %v", err, err)
				}
				if !tt.cause(err) || want.Rank > 0 && got.Rank != want.Rank {
					continue
				}
				if want.Err = got.Err; *got != want {
					t.Errorf("%+v, want %+v", *got, want)
				}
				return
			}
		})
	}
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
