package events_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// The tests here are for what goes wrong with go-zeromq/zmq4 v0.17.0 where
// sockets are bound and connections made anew; those of a single connection are
// with internal/zmtp.

// zmq4: a bound socket does the handshakes one after the other, and waits in each
// for ever.
func TestFaultIdleClientBlocksABoundSocket(t *testing.T) {
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	start := time.Now()
	hello := zmtptest.Hello(1, "PUB")
	for _, said := range []int{0, 0, 0, 1, 10, 63, 64, 65, len(hello) - 1, len(hello)} {
		guest(t, endpoint, hello[:said]) // says nothing more, and stays
	}
	for i := range 3 {
		p := publisher(t, fakeengine.PublisherConfig{Endpoint: endpoint, Connect: true, Topic: fmt.Sprintf("kv@pod-%d@model", i)})
		waitSubscriber(t, p)
		p.Publish([]byte("x"))
		if m := s.next(); m.Pod != fmt.Sprintf("pod-%d", i) {
			t.Errorf("got %s", show(m))
		}
	}
	other := zmq4.NewPub(t.Context())
	defer other.Close()
	if err := other.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	for again := time.Tick(5 * time.Millisecond); ; {
		if err := other.SendMulti(zmq4.NewMsgFrom([]byte("kv@zmq4@model"), []byte(number(0)), nil)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.messages:
		case <-again:
			continue
		}
		break
	}
	// The idlers are thrown out 5 seconds after they came, not before.
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("the engines were heard after %v", took)
	}
}

// zmq4: does not reconnect unless told to, and then only to the endpoint that was
// dialled last. Here each subscriber comes back to its engine, as often as that
// one goes.
func TestFaultOnlyTheLastEndpointIsRedialled(t *testing.T) {
	const engines, restarts = 3, 5
	var publishers []*fakeengine.Publisher
	var subscriptions []*subscription
	for range engines {
		p := publisher(t, fakeengine.PublisherConfig{})
		publishers = append(publishers, p)
		subscriptions = append(subscriptions, subscribe(t, events.SubscriberConfig{Endpoint: p.Endpoint()}))
	}
	for round := range restarts {
		for i, p := range publishers {
			waitSubscriber(t, p)
			p.Publish([]byte("x"))
			if m := subscriptions[i].next(); m.Seq != 0 || m.Stream != p.Endpoint() {
				t.Fatalf("round %d: got %s", round, show(m))
			}
		}
		for _, p := range publishers { // all of them, then all come back
			if err := p.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// zmq4: takes 151 seconds. That a silence of two heartbeats ends a connection is
// tested with internal/zmtp and, for shorter ones, above.
func TestFaultHalfOpenConnection(t *testing.T) {
	if noticed := 2 * events.DefaultHeartbeat; noticed > 6*time.Second {
		t.Errorf("a dead engine is noticed after %v", noticed)
	}
	dead := zmtptest.Hello(1, "PUB")
	within := append(zmtptest.Hello(1, "PUB"), zmtptest.Frame(1, "kv@pod@model")...) // a message that never ends
	good := append(zmtptest.Hello(1, "PUB"), zmtptest.Message("", number(7), "x")...)
	start := time.Now()
	s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, dead, within, good), Heartbeat: 50 * time.Millisecond})
	if m := s.next(); m.Seq != 7 {
		t.Errorf("got %s", show(m))
	}
	if st := s.Stats(); st.Connects != 3 || st.Disconnects != 2 {
		t.Errorf("stats %+v", st)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("two dead engines were noticed after %v", took)
	}
}
