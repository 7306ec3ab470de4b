package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// rawServer is a hostile engine. Its n-th connection gets the n-th script, further ones the last
// script. A connection stays open if its script is a whole handshake.
func rawServer(t *testing.T, scripts ...[]byte) (endpoint string) {
	t.Helper()
	i := 0
	return listener(t, "127.0.0.1:0", func(nc net.Conn) {
		_, _ = nc.Write(scripts[min(i, len(scripts)-1)])
		i++
		go func() { _, _ = io.Copy(io.Discard, nc); nc.Close() }()
	})
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
				must(t, p.Restart())
			}
			s.stop()
			if got := s.Stats(); got.Messages != 600 || got.Dropped["malformed"]+got.Dropped["bad_topic"]+got.SinkErrors != 0 || got.Connects < 3 || got.Connects != got.Disconnects {
				t.Errorf("stats %+v", got)
			}
		})
	}
}

// An engine may start after its subscriber, and stop and start again.
func TestSubscriberKeepsTrying(t *testing.T) {
	t.Parallel()
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "pub")
	s := subscribe(t, events.SubscriberConfig{Endpoint: endpoint})
	for range 2 {
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
		must(t, p.Close())
	}
}

// The faults themselves are tested in internal/zmtp. After any of them the subscriber reconnects.
func TestSubscriberSurvivesHostileEngines(t *testing.T) {
	after := func(b []byte) []byte { return append(zmtptest.Hello(1, "PUB"), b...) }
	tests := []struct {
		name        string
		script      []byte
		handshaken  bool
		wantInError string
	}{
		{"wrong greeting", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false, "protocol error"},
		{"wrong socket type", zmtptest.Hello(1, "PUSH"), false, "PUSH"},
		{"frame of 2^60 bytes", after(zmtptest.LongHeader(0, 1<<60)), true, "limit exceeded"},
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
}

// An engine whose host died does not answer a heartbeat. The moment of the disconnect is tested
// in internal/zmtp, with a fake clock.
func TestSubscriberLeavesDeadEngines(t *testing.T) {
	dead := zmtptest.Hello(1, "PUB")
	within := append(zmtptest.Hello(1, "PUB"), zmtptest.Frame(1, "kv@pod@model")...) // a message that never ends
	good := append(zmtptest.Hello(1, "PUB"), zmtptest.Message("", number(7), "x")...)
	s := subscribe(t, events.SubscriberConfig{Endpoint: rawServer(t, dead, within, good), Heartbeat: 50 * time.Millisecond})
	if m := s.next(); m.Seq != 7 {
		t.Errorf("got %s", show(m))
	}
	for _, where := range []string{"heartbeat", "begun, but not complete"} {
		if err := wait(t, "OnError", s.errors); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), where) {
			t.Errorf("got %v, want it to say %q", err, where)
		}
	}
}
