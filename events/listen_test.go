package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// guest is a raw connection to a listening subscriber.
func guest(t *testing.T, endpoint string, script []byte) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	must(t, err)
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

// engine is a guest with a publisher's handshake, and sends messages.
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
					must(t, p.Restart())
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

// TestProbesToldAtDoublingTimes: probes of the port from different ports are reported as one fault.
func TestProbesToldAtDoublingTimes(t *testing.T) {
	t.Parallel()
	var told atomic.Int32
	listening := make(chan string, 1)
	follow(t, newLedger(), events.SubscriberConfig{
		Bind: true, Endpoint: "tcp://127.0.0.1:0", OnListen: func(e string) { listening <- e }, OnError: func(error) { told.Add(1) },
	})
	endpoint := wait(t, "OnListen", listening)
	for range 100 {
		_, _ = io.Copy(io.Discard, guest(t, endpoint, []byte("GET / HTTP/1.1\r\n")))
	}
	if n := told.Load(); n == 0 || n > 20 {
		t.Errorf("%d calls of OnError for 100 probes", n)
	}
}

// full is a listener of a process that has no file descriptors left, for 100 calls.
type full struct {
	net.Listener
	calls int
}

func (f *full) Accept() (net.Conn, error) {
	if f.calls++; f.calls <= 100 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// TestAcceptFails: a fault of Accept that lasts is reported at intervals, and engines come when it
// has passed.
func TestAcceptFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	reports := make(chan error, 100)
	l := newLedger()
	s, err := events.NewSubscriber(l, events.SubscriberConfig{
		Bind: true, Endpoint: zmtp.Name(ln.Addr()), Backoff: time.Millisecond, OnError: func(err error) { reports <- err },
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Accept(ctx, &full{Listener: ln}) }()
	engine(t, zmtp.Name(ln.Addr()), said("kv@a@m", number(0), 0))
	l.wait(t, "0", func(got string) bool { return got == "0" })
	cancel()
	wait(t, "the end", ended)
	if n := len(reports); n == 0 || n > 20 {
		t.Errorf("%d reports of 100 failures", n)
	}
}

// Idle, silent, slow and hostile guests do not block the messages of engines.
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
	s.waitStats("bad topics", func(st events.SubscriberStats) bool { return st.Dropped["bad_topic"] == 5 })
}

// TestPoolTopics: topics of a fleet-wide pool belong to no pod and are reported once.
func TestPoolTopics(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	pools := []string{"kv@SHARED_STORAGE@m", "kv@pool:redis@m", "kv@OBJECT_STORE@m"}
	var script [][]byte
	for i := range 9 {
		script = append(script, zmtptest.Message(pools[i%3], number(uint64(i)), "x"))
	}
	engine(t, endpoint, append(script, zmtptest.Message("kv@pod@m", number(9), "x"))...)
	if m := s.next(); m.Pod != "pod" || m.Seq != 9 {
		t.Errorf("got %s", show(m))
	}
	for _, pool := range pools {
		if err := wait(t, "OnError", s.errors); !strings.Contains(err.Error(), pool) {
			t.Errorf("%v, want %s", err, pool)
		}
	}
	if got := s.Stats(); got.Dropped["bad_topic"] != 9 {
		t.Errorf("%+v", got)
	}
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
	defer close(release) // before the wait for Run
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
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	var script [][]byte
	for i := range 67 { // 3 too many
		script = append(script, zmtptest.Message(fmt.Sprintf("kv@pod-%d@model", i), number(uint64(i)), "x"))
	}
	script = append(script,
		zmtptest.Message("kv@pod@"+strings.Repeat("m", 5000), number(0), "x"),
		zmtptest.Message("kv@pod-0@model", number(100), "x")) // still accepted
	engine(t, endpoint, script...)
	for want := range uint64(65) {
		if want == 64 {
			want = 100
		}
		if m := s.next(); m.Seq != want {
			t.Fatalf("got %s, want number %d", show(m), want)
		}
	}
	if got := s.Stats(); got.Dropped["bad_topic"] != 4 || got.Messages != 65 {
		t.Errorf("stats %+v", got)
	}
	engine(t, endpoint, zmtptest.Message("kv@pod-66@model", number(0), "x")) // has its own quota
	if m := s.next(); m.Pod != "pod-66" {
		t.Errorf("got %s", show(m))
	}
}

func TestSubscriberBoundsConnections(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, MaxConns: 2})
	endpoint := wait(t, "OnListen", s.listening)
	a := engine(t, endpoint, zmtptest.Message("kv@a@model", number(0), "x"))
	s.next()
	idle := engine(t, endpoint, zmtptest.Message("not a topic", number(0), "x"))
	s.waitStats("the idle one", func(st events.SubscriberStats) bool { return st.Dropped["bad_topic"] == 1 })

	engine(t, endpoint, zmtptest.Message("kv@b@model", number(0), "x")) // replaces the idle connection
	if m := s.next(); m.Pod != "b" {
		t.Fatalf("got %s", show(m))
	}
	if _, err := io.Copy(io.Discard, idle); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("the idle one: %v", err) // a reset is as good as a close
	}
	refused := guest(t, endpoint, nil) // both connections are of engines that publish
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

func TestSubscriberCannotListen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	endpoint := zmtp.Name(ln.Addr())
	s, err := events.NewSubscriber(&subscription{}, events.SubscriberConfig{Endpoint: endpoint, Bind: true})
	must(t, err)
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("Run at a taken port: %v", err)
	}
}
