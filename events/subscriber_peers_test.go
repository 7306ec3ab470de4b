package events_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// This file has the tests against publishers of other libraries.

func payload(seq uint64) []byte { return fmt.Append(nil, strings.Repeat("p", int(seq)*7), seq) }

// untilHeard publishes until the first message arrives, as a publisher drops all messages before
// the subscription, and then 500 more.
func untilHeard(t *testing.T, s *subscription, publish func(seq uint64) error) {
	t.Helper()
	var seq uint64
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for heard := false; !heard; seq++ {
		must(t, publish(seq))
		select {
		case m := <-s.messages:
			heard = true
			s.messages <- m // checked below with the others
		case <-tick.C:
		case <-deadline:
			t.Fatal("no message arrived")
		}
	}
	const more = 500
	last := seq + more - 1
	for ; seq <= last; seq++ {
		must(t, publish(seq))
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
	if len(got) < more+1 || s.Stats().Dropped["malformed"] != 0 {
		t.Errorf("%d messages, stats %+v", len(got), s.Stats())
	}
}

// libzmqScripts are the publishers to test against: testdata's and, if there is one, that of the
// data folder.
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
	t.Parallel()
	zmtptest.NeedLibzmq(t)
	scripts := libzmqScripts(t)
	if testing.Short() {
		scripts = scripts[:1]
	}
	for _, script := range scripts {
		for _, bind := range []bool{false, true} {
			for _, transport := range []string{"tcp", "ipc"} {
				if bind && transport == "ipc" {
					continue // the scripts, as vLLM, bind every ipc endpoint
				}
				t.Run(fmt.Sprintf("%s/bind=%v/%s", filepath.Base(filepath.Dir(script)), bind, transport), func(t *testing.T) {
					t.Parallel()
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
		port := zmtptest.FreePort(t)
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
	// Publish until the subscriber has reconnected.
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
			t.Fatalf("no message arrived after a restart: %+v", s.Stats())
		}
	}

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

// libzmq answers heartbeats, so the connection to an idle engine stays.
func TestSubscriberStaysWithIdleLibzmq(t *testing.T) {
	t.Parallel()
	port := zmtptest.FreePort(t)
	peer := zmtptest.StartPython(t, "testdata/publisher.py", "tcp://*:"+port, "--topic", "kv@pod-a@model")
	between, err := faultproxy.Listen("127.0.0.1:" + port)
	must(t, err)
	defer between.Close()
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://" + between.Addr(), Heartbeat: time.Second})
	wait(t, "OnConnect", s.connected)
	// The second PONG shows that the first PING was answered in time.
	pongs := faultproxy.Fault{Kind: faultproxy.Inject, Direction: faultproxy.Down, After: 2 * len(zmtptest.Command("PONG", ""))}
	wait(t, "two answers to heartbeats", between.Arm(pongs).Fired())
	untilHeard(t, s, func(seq uint64) error {
		_, err := peer.Do("pub %x", payload(seq))
		return err
	})
	if got := s.Stats(); got.Disconnects != 0 {
		t.Errorf("stats %+v", got)
	}
}
