package events_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// listener accepts connections for serve until the test ends.
func listener(t testing.TB, endpoint string, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	must(t, err)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			serve(nc)
		}
	}()
	t.Cleanup(func() { ln.Close(); <-gone })
	return zmtp.Name(ln.Addr())
}

// strangers returns endpoints that accept connections but are no ZeroMQ sockets, with the
// error expected for each.
func strangers(t *testing.T) map[string]string {
	srv := &http.Server{Handler: http.NotFoundHandler()}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close() })
	answers := func(text string) string {
		return listener(t, "127.0.0.1:0", func(nc net.Conn) { _, _ = io.WriteString(nc, text) })
	}
	return map[string]string{
		zmtp.Name(ln.Addr()): "sent nothing in 2s, so it is no ZeroMQ socket", // it waits for the end of a line
		answers(""):          "sent nothing in 2s, so it is no ZeroMQ socket",
		answers("HTTP/1.1 400 Bad Request\r\n\r\n"):                  "answers in HTTP",
		answers("\x15\x03\x01\x00\x02\x02\x16"):                      "answers in TLS",
		answers("SSH-2.0-OpenSSH_9.2p1\r\n"):                         "is no ZeroMQ socket",
		listener(t, "127.0.0.1:0", func(nc net.Conn) { nc.Close() }): "hung up without a word",
		answers(string(zmtptest.Hello(1, "PULL"))):                   "is it the port of another socket?",
	}
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	all := strangers(t)
	subscriptions := map[string]*subscription{}
	for endpoint := range all {
		subscriptions[endpoint] = subscribe(t, events.SubscriberConfig{Endpoint: endpoint})
	}
	for endpoint, want := range all {
		s := subscriptions[endpoint]
		if err := wait(t, "OnError", s.errors); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("got %v, want it to name %s and to say %q", err, endpoint, want)
		}
	}
}

// TestReplayOfNobody: messages are delivered without a wait for a replay socket that has never
// answered. The failure is reported, and all messages are requested when the socket answers.
func TestReplayOfNobody(t *testing.T) {
	t.Parallel()
	type socket struct{ endpoint, want string }
	mute := listener(t, "127.0.0.1:0", func(nc net.Conn) { _, _ = nc.Write(zmtptest.Hello(1, "ROUTER")) })
	sockets := []socket{{"tcp://127.0.0.1:1", "connection refused"}, {mute, "the replay socket does not answer"}}
	for endpoint, want := range strangers(t) {
		sockets = append(sockets, socket{endpoint, want})
	}
	type follower struct {
		socket
		*ledger
		told    chan error
		replays chan events.Replay
	}
	var all []follower
	for _, socket := range sockets {
		engine := publisher(t, fakeengine.PublisherConfig{})
		f := follower{socket: socket, ledger: newLedger(), told: make(chan error, 10_000)}
		f.notes = make(chan events.Note, 10_000)
		_, f.replays, _ = follow(t, f.ledger, events.SubscriberConfig{
			Endpoint: engine.Endpoint(), Replay: socket.endpoint, OnError: func(err error) { f.told <- err },
		})
		waitSubscriber(t, engine)
		engine.Publish(clock(0))
		engine.Skip(clock(1))
		engine.Publish(clock(2))
		all = append(all, f)
	}
	for _, f := range all {
		f.expect(t, "0 lost 1-1 2")
		err := wait(t, "OnError", f.told)
		for _, want := range []string{f.want, f.endpoint, `pod "a"`, "replay socket"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want it to say %q", f.endpoint, err, want)
			}
		}
		if r := wait(t, "a replay", f.replays); !strings.Contains(r.Err.Error(), f.want) {
			t.Errorf("%s: got %v, want it to say %q", f.endpoint, r.Err, f.want)
		}
		var notes []events.Note
		for !slices.Contains(notes, events.NoteNoReplay) {
			notes = append(notes, wait(t, "a note", f.notes))
		}
		if want := []events.Note{events.NoteOpened, events.NoteConnected, events.NoteNoReplay}; !slices.Equal(notes, want) {
			t.Errorf("%s: notes %v, want %v", f.endpoint, notes, want)
		}
	}
}

// TestTiers: NoteTiers is the first note of a stream with Tiers.
func TestTiers(t *testing.T) {
	t.Parallel()
	daemon := publisher(t, fakeengine.PublisherConfig{})
	connects, listens := newLedger(), newLedger()
	connects.notes, listens.notes = make(chan events.Note, 100), make(chan events.Note, 100)
	follow(t, connects, events.SubscriberConfig{Endpoint: daemon.Endpoint(), Tiers: true})
	at := make(chan string, 1)
	follow(t, listens, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Tiers: true, OnListen: func(e string) { at <- e }})
	engine(t, wait(t, "OnListen", at), zmtptest.Message("kv@a@m", number(0), "x"))
	for l, want := range map[*ledger][]events.Note{
		connects: {events.NoteTiers, events.NoteOpened, events.NoteConnected}, listens: {events.NoteTiers, events.NoteConnected},
	} {
		for i := range want {
			if n := wait(t, "a note", l.notes); n != want[i] {
				t.Errorf("note %d is %d, want %d", i, n, want[i])
			}
		}
	}
}

// TestReplayComesLater: when a replay socket answers for the first time, the replay from
// message 0 replaces the messages received before.
func TestReplayComesLater(t *testing.T) {
	t.Parallel()
	at := "ipc://" + filepath.Join(t.TempDir(), "replay")
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	l.notes = make(chan events.Note, 10_000)
	told := make(chan error, 10_000)
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: at, OnError: func(err error) { told <- err }})
	waitSubscriber(t, engine)
	now := life{100, 5}
	engine.Publish(now.payload(0))
	for seq := range uint64(3) {
		engine.Skip(now.payload(1 + seq))
	}
	engine.Publish(now.payload(4))
	l.expect(t, "0 lost 1-3 4")
	wait(t, "OnError", told)
	newRouterAt(t, at, func(_ int, start uint64) [][][]byte { return now.answer(start) })
	l.expect(t, "0 lost 1-3 4 rewound 0 1 2 3 4")
	for want := range slices.Values([]events.Note{events.NoteCurrent, events.NoteReplay}) {
		for wait(t, "a note", l.notes) != want {
		}
	}
	engine.Publish(life{100, 6}.payload(5))
	l.expectEnd(t, "rewound 0 1 2 3 4 5")
}

// TestReplayFromMessage0: a replay that starts behind message 0 does not show that the engine
// has dropped its first messages. So all of them are requested when a mute socket answers again.
func TestReplayFromMessage0(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), ReplayTimeout: 200 * time.Millisecond})
	wait(t, "the first replay", replays)
	waitSubscriber(t, engine)
	now := life{100, 5}
	engine.Publish(now.payload(0))
	engine.Skip(now.payload(1))
	engine.Publish(now.payload(2))
	l.expect(t, "0 hold 2 1 2")
	engine.LoseReplies(func(int, int) bool { return true })
	engine.Skip(now.payload(3))
	engine.Publish(now.payload(4))
	l.expect(t, "0 hold 2 1 2 hold 4 lost 3-3 4")
	engine.LoseReplies(nil)
	l.expect(t, "0 hold 2 1 2 hold 4 lost 3-3 4 rewound 0 1 2 3 4")
}

// TestReplayComesAfterARestart: without a replay socket a restart is not noticed if the next
// number received happens to be the expected one. It is noticed when the socket answers.
func TestReplayComesAfterARestart(t *testing.T) {
	t.Parallel()
	at := "ipc://" + filepath.Join(t.TempDir(), "replay")
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	told := make(chan error, 10_000)
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: at, OnError: func(err error) { told <- err }})
	waitSubscriber(t, engine)
	before, now := life{100, 3}, life{200, 4}
	for seq := range uint64(3) {
		engine.Publish(before.payload(seq))
	}
	l.expect(t, "0 1 2")
	must(t, engine.Restart())
	for seq := range uint64(3) {
		engine.Skip(now.payload(seq))
	}
	waitSubscriber(t, engine)
	engine.Publish(now.payload(3))
	l.expect(t, "0 1 2 3")
	engine.Disconnect()
	waitSubscriber(t, engine)
	engine.Publish(now.payload(4))
	l.expect(t, "0 1 2 3 4")
	now.n++
	newRouterAt(t, at, func(_ int, start uint64) [][][]byte { return now.answer(start) })
	l.expect(t, "0 1 2 3 4 hold 2 anew 0 1 2 3 4")
}

// TestReplayIsSlow: a slow socket is reported when no message waits for it any more.
func TestReplayIsSlow(t *testing.T) {
	t.Parallel()
	mute := listener(t, "127.0.0.1:0", func(nc net.Conn) { _, _ = nc.Write(zmtptest.Hello(1, "ROUTER")) })
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	l.notes = make(chan events.Note, 10_000)
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: mute, ReplayTimeout: time.Hour})
	for wait(t, "a note", l.notes) != events.NoteNoReplay {
	}
}

// TestReplayFailsUntested: a socket fails before it is verified to be the engine's own. The next
// request is for all missed messages, not only for the verification.
func TestReplayFailsUntested(t *testing.T) {
	t.Parallel()
	now := life{100, 7}
	var down atomic.Bool
	socket := newRouter(t, func(n int, start uint64) [][][]byte {
		switch {
		case down.Load():
			return nil
		case n < 2:
			return life{100, 5}.answer(start)
		}
		return now.answer(start)
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	for seq := range uint64(5) {
		engine.Skip(now.payload(seq))
	}
	l := newLedger()
	l.fail = func(m events.Message) error { // the subscriber has given up on the socket
		if m.Seq == 6 && !m.Hold && !m.Replayed {
			down.Store(false)
		}
		return nil
	}
	_, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: engine.Endpoint(), Replay: socket.endpoint, ReplayTimeout: 200 * time.Millisecond,
		Heartbeat: time.Hour, // the stream never falls idle
	})
	wait(t, "the first replay", replays)
	wait(t, "that of the connection made once more", replays)
	waitSubscriber(t, engine)
	down.Store(true)
	engine.Skip(now.payload(5))
	engine.Publish(now.payload(6))
	l.expect(t, "0 1 2 3 4 lost 5-5 6 rewound 0 1 2 3 4 5 6")
}

// TestSinkIsSlowInAReplay: the time of the sink does not count as silence of the socket.
func TestSinkIsSlowInAReplay(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	long := append(clock(105), bytes.Repeat([]byte{' '}, 1<<20)...) // so large that a connection closed meanwhile has only a part
	socket := newRouter(t, func(n int, start uint64) [][][]byte {
		if n == 0 {
			return life{100, 5}.answer(start)
		}
		whole := life{100, 6}.answer(0)
		whole[5][2] = long
		return whole[start:]
	})
	l := newLedger()
	l.fail = func(m events.Message) error {
		if m.Seq == 4 && m.Hold {
			<-time.After(2 * timeout)
		}
		return nil
	}
	_, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: publisher(t, fakeengine.PublisherConfig{}).Endpoint(), Replay: socket.endpoint, ReplayTimeout: timeout, Heartbeat: time.Hour,
	})
	wait(t, "the first replay", replays)
	if r := wait(t, "that of the connection made once more", replays); r.Err != nil {
		t.Errorf("%+v", r)
	}
	l.expect(t, numbers(0, 5))
}

// TestSinkIsSlowInATest: the same holds while the first message of a connection is compared with
// the replayed one. The rest of the answer is read after that.
func TestSinkIsSlowInATest(t *testing.T) {
	t.Parallel()
	for n := 1; sinkIsSlowInATest(t); n++ { // a busy machine may delay the socket itself
		if n == 5 {
			t.Fatal("the socket is silent each time")
		}
	}
}

func sinkIsSlowInATest(t *testing.T) (late bool) {
	const first = 500 * time.Millisecond // the time that a socket has to answer for the comparison
	now := life{100, 5}
	long := append(now.payload(5), bytes.Repeat([]byte{' '}, 1<<20)...) // so large that a connection closed meanwhile has only a part
	socket := newRouter(t, func(n int, start uint64) [][][]byte {
		if n < 2 {
			return now.answer(start)
		}
		whole := life{100, 8}.answer(0)
		whole[5][2] = long
		return whole[start:]
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	for seq := range uint64(5) {
		engine.Skip(now.payload(seq))
	}
	l := newLedger()
	tests := 0
	l.fail = func(m events.Message) error {
		if m.Seq == 4 && m.Hold {
			if tests++; tests == 2 { // the first was the replay of the second connection
				<-time.After(first + first/5)
			}
		}
		return nil
	}
	var silent atomic.Bool
	_, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: engine.Endpoint(), Replay: socket.endpoint, Heartbeat: time.Hour, // the stream never falls idle
		OnError: func(err error) {
			if strings.Contains(err.Error(), "does not answer") {
				silent.Store(true)
			}
		},
	})
	wait(t, "the first replay", replays)
	wait(t, "that of the connection made once more", replays)
	waitSubscriber(t, engine)
	engine.Publish(long)
	engine.Skip(now.payload(6))
	engine.Publish(now.payload(7))
	want := numbers(0, 5) + " hold 7 6 7"
	l.wait(t, want, func(got string) bool { return got == want || silent.Load() })
	return silent.Load()
}

// TestReplayOfNewEngine: the first answer was empty, so the engine still has its first message.
// All messages are requested again after a failed replay.
func TestReplayOfNewEngine(t *testing.T) {
	t.Parallel()
	var down, spoken atomic.Bool
	socket := newRouter(t, func(_ int, start uint64) [][][]byte {
		switch {
		case down.Load():
			return nil
		case spoken.Load():
			return life{100, 3}.answer(start)
		}
		return [][][]byte{end()}
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	l.fail = func(m events.Message) error { // the subscriber has given up on the socket
		if m.Seq == 2 && !m.Hold && !m.Replayed {
			down.Store(false)
		}
		return nil
	}
	_, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: engine.Endpoint(), Replay: socket.endpoint, ReplayTimeout: 200 * time.Millisecond,
		Heartbeat: time.Hour, // the stream never falls idle
	})
	wait(t, "the first replay", replays)
	waitSubscriber(t, engine)
	spoken.Store(true)
	down.Store(true)
	now := life{100, 3}
	engine.Publish(now.payload(0))
	engine.Skip(now.payload(1))
	engine.Publish(now.payload(2))
	l.expect(t, "0 hold 2 lost 1-1 2 rewound 0 1 2")
}

// TestReplayTooShort: a replay without the first messages does not replace those received.
func TestReplayTooShort(t *testing.T) {
	t.Parallel()
	at := "ipc://" + filepath.Join(t.TempDir(), "replay")
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	told := make(chan error, 10_000)
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: at, OnError: func(err error) { told <- err }})
	waitSubscriber(t, engine)
	now := life{100, 5}
	engine.Skip(now.payload(0))
	for seq := range uint64(4) {
		engine.Publish(now.payload(1 + seq))
	}
	l.expect(t, "late 1 2 3 4")
	wait(t, "OnError", told)
	r := newRouterAt(t, at, func(_ int, start uint64) [][][]byte { return now.answer(max(start, 2)) })
	for wait(t, "a replay", replays).Err != nil {
	}
	engine.Publish(life{100, 6}.payload(5))
	l.expect(t, "late 1 2 3 4 5")
	if got, want := r.asked(), []uint64{4, 0}; !slices.Equal(got, want) {
		t.Errorf("replays requested from %v, want from %v", got, want)
	}
}

// TestReplayOfAnother: the first message of the connection shows that a replay socket belongs to
// another engine, whatever the numbers of both. Its messages are dropped. It is not
// asked again at every message, and is used again when it is the engine's own.
func TestReplayOfAnother(t *testing.T) {
	t.Parallel()
	own := life{100, 100}
	for name, tt := range map[string]struct {
		others int // messages of the other engine
		first  int // the first number received
	}{
		"at the same number":                 {10, 10},
		"behind":                             {5, 10},
		"ahead":                              {60, 10},
		"ahead, and both from the beginning": {60, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := newLives(t, life{500, tt.others})
			engine := publisher(t, fakeengine.PublisherConfig{})
			for seq := range uint64(tt.first) {
				engine.Skip(own.payload(seq))
			}
			l := newLedger()
			told := make(chan error, 10_000)
			s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, OnError: func(err error) { told <- err }})
			// A connection closed to make room for the next may lose a message.
			seq := uint64(tt.first)
			publish := func() { engine.Publish(own.payload(seq)); seq++ }
			for ended := false; !ended; {
				waitSubscriber(t, engine)
				publish()
				select {
				case err := <-told:
					late := strings.Contains(err.Error(), "does not answer") // on a busy machine
					if !late && !strings.Contains(err.Error(), "another engine") {
						t.Errorf("reported %v", err)
					}
					ended = !late && strings.Contains(err.Error(), "does not work")
				case <-time.After(20 * time.Millisecond):
				}
			}
			if n := int(seq) - tt.first; n > 200 { // 20 ms each, on a busy machine too
				t.Errorf("reported after %d messages", n)
			}
			asked := len(socket.asked())
			for range 20 {
				publish()
			}
			l.wait(t, "the engine's own messages alone", func(got string) bool {
				i := strings.LastIndex(got, "rewound ")
				return i >= 0 && !strings.Contains(got[i:], "lost") && strings.HasSuffix(got, " "+numbers(int(seq)-20, int(seq)-1))
			})
			if n := len(socket.asked()); n > asked+10 {
				t.Errorf("%d requests for 20 messages", n-asked)
			}
			if st := s.Stats(); st.Connects > 16 {
				t.Errorf("%d connections", st.Connects)
			}
		})
	}
}

// TestReplayFallsSilent: a socket that answered before, and does not answer the request for the
// first message of the connection, is reported as one that does not answer.
func TestReplayFallsSilent(t *testing.T) {
	t.Parallel()
	own := life{100, 3}
	var silent atomic.Bool
	r := newRouter(t, func(_ int, start uint64) [][][]byte {
		if silent.Load() {
			return nil
		}
		return own.answer(start)
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	for seq := range uint64(own.n) {
		engine.Skip(own.payload(seq))
	}
	told := make(chan error, 100)
	_, replays, _ := follow(t, newLedger(), events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint, OnError: func(err error) { told <- err }})
	wait(t, "the first replay", replays)
	wait(t, "that of the second connection", replays)
	silent.Store(true)
	waitSubscriber(t, engine)
	engine.Publish(own.payload(uint64(own.n)))
	for ended := false; !ended; { // the end of the first connection is reported, too
		err := wait(t, "an error", told)
		if ended = strings.Contains(err.Error(), "does not work"); ended && !strings.HasSuffix(err.Error(), "the replay socket does not answer") {
			t.Errorf("reported %v", err)
		}
	}
}

// TestReplayBelievedAgain: a socket that was another engine's is tried again by the first
// message after a silence. When it is the engine's own, the sink gets NoteReplay.
func TestReplayBelievedAgain(t *testing.T) {
	t.Parallel()
	own, others := life{100, 10}, life{500, 10}
	socket := newLives(t, others)
	engine := publisher(t, fakeengine.PublisherConfig{})
	for seq := range uint64(10) {
		engine.Skip(own.payload(seq))
	}
	l := newLedger()
	l.notes = make(chan events.Note, 10_000)
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, Heartbeat: 50 * time.Millisecond})
	publish := func() { engine.Publish(own.payload(uint64(own.n))); own.n++ }
	for told := false; !told; { // a connection closed to make room for the next may lose a message
		waitSubscriber(t, engine)
		publish()
		select {
		case n := <-l.notes:
			told = n == events.NoteNoReplay
		case <-time.After(20 * time.Millisecond):
		}
	}
	publish()
	l.expectEnd(t, numbers(own.n-1, own.n-1))
	for told := false; !told; {
		socket.become(life{own.from, own.n + 1})
		publish()
		select {
		case n := <-l.notes:
			told = n == events.NoteReplay
		case <-time.After(150 * time.Millisecond): // a silence
		}
	}
	l.expectEnd(t, "rewound "+numbers(0, own.n-1))
}

// TestReplayOfAnotherUntilNow: the messages of another engine's socket are dropped also
// if the right engine answers at its address before the first message is tested.
func TestReplayOfAnotherUntilNow(t *testing.T) {
	t.Parallel()
	socket := newLives(t, life{500, 10})
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint})
	wait(t, "the first replay", replays)
	wait(t, "that of the connection made once more", replays)
	waitSubscriber(t, engine)
	own := life{100, 11}
	socket.become(own)
	for seq := range uint64(10) {
		engine.Skip(own.payload(seq))
	}
	engine.Publish(own.payload(10))
	l.wait(t, "another engine's to be forgotten", func(got string) bool { return strings.Contains(got, "rewound") })
	for all := false; !all; { // a connection closed to make room for the next may lose a message
		own.n++
		socket.become(own)
		engine.Publish(own.payload(uint64(own.n - 1)))
		select {
		case r := <-replays:
			all = r.From == 0 && r.Messages > 10
		case <-time.After(20 * time.Millisecond):
		}
	}
	l.expectEnd(t, numbers(own.n-1, own.n-1))
	l.wait(t, "the engine's own life", func(got string) bool {
		i := strings.LastIndex(got, "rewound")
		return i >= 0 && strings.Contains(got[i:], numbers(0, 10))
	})
}

// TestReplayOfARestartedIdleEngine: an engine restarts during a request for its earlier
// messages and publishes no more. Its empty answer ends the wait.
func TestReplayOfARestartedIdleEngine(t *testing.T) {
	t.Parallel()
	before := life{100, 10}
	socket := newLives(t, before)
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	l.notes = make(chan events.Note, 10_000)
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint})
	wait(t, "the first replay", replays)
	wait(t, "that of the connection made once more", replays)
	waitSubscriber(t, engine)
	for seq := range uint64(10) {
		engine.Skip(before.payload(seq))
	}
	socket.become(life{200, 0})
	engine.Publish(before.payload(10))
	l.expect(t, numbers(0, 9)+" anew")
	for wait(t, "a note", l.notes) != events.NoteHeld {
	}
	for wait(t, "a note", l.notes) != events.NoteCurrent {
	}
}

// TestReplayOfARestartedEngine: an engine restarts before the first message of the connection
// is tested, publishes before the next connection and is idle then. Its messages are requested
// as after any lost connection.
func TestReplayOfARestartedEngine(t *testing.T) {
	t.Parallel()
	before, now := life{100, 10}, life{200, 11}
	engine := publisher(t, fakeengine.PublisherConfig{})
	var restarted atomic.Bool
	socket := newRouter(t, func(n int, start uint64) [][][]byte {
		if n < 2 {
			return before.answer(start)
		}
		if restarted.CompareAndSwap(false, true) {
			if err := engine.Restart(); err != nil {
				t.Error(err)
			}
		}
		return now.answer(start)
	})
	l := newLedger()
	l.notes = make(chan events.Note, 10_000)
	told := make(chan error, 10_000)
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, OnError: func(err error) { told <- err }})
	wait(t, "the first replay", replays)
	wait(t, "that of the connection made once more", replays)
	waitSubscriber(t, engine)
	for seq := range uint64(10) {
		engine.Skip(before.payload(seq))
	}
	for wait(t, "a note", l.notes) != events.NoteCurrent {
	}
	engine.Publish(before.payload(10))
	l.wait(t, "what the engine has said since", func(got string) bool { return strings.HasSuffix(got, "anew "+numbers(0, 10)) })
	for wait(t, "a note", l.notes) != events.NoteCurrent {
	}
	for len(told) > 0 {
		if err := <-told; strings.Contains(err.Error(), "another engine") {
			t.Error(err)
		}
	}
}

// TestReplayOfTwo: a replay endpoint with two engines behind it is reported.
func TestReplayOfTwo(t *testing.T) {
	t.Parallel()
	socket := newRouter(t, func(n int, start uint64) [][][]byte { return life{100 + 400*(n%2), 10}.answer(start) })
	engine := publisher(t, fakeengine.PublisherConfig{})
	told := make(chan error, 10_000)
	follow(t, newLedger(), events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, OnError: func(err error) { told <- err }})
	if err := wait(t, "OnError", told); !strings.Contains(err.Error(), "belongs to another engine than the connection") {
		t.Errorf("reported %v", err)
	}
}

// TestReplayAnswersNothing: a replay has one attempt if the socket has answered nothing but a
// probe, and each failure is reported once.
func TestReplayAnswersNothing(t *testing.T) {
	t.Parallel()
	socket := newRouter(t, func(int, uint64) [][][]byte { return nil })
	engine := publisher(t, fakeengine.PublisherConfig{})
	s, replays, stop := follow(t, newLedger(), events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, ReplayTimeout: 100 * time.Millisecond})
	for i := range 3 {
		if r := wait(t, "a replay", replays); i > 0 && r.Attempts != 1 || r.Err == nil {
			t.Errorf("replay %d: %+v", i, r)
		}
	}
	stop()
	if got, want := s.Stats().Replays, uint64(len(socket.asked())); got > want {
		t.Errorf("%d replays for %d requests", got, want)
	}
}

// TestDeadHost: a dead host is detected by its heartbeat before the replay times out.
func TestDeadHost(t *testing.T) {
	t.Parallel()
	const heartbeat = 50 * time.Millisecond
	var n atomic.Int64
	socket := newRouter(t, func(int, uint64) [][][]byte {
		if n.Add(1) == 1 {
			return [][][]byte{end()}
		}
		return nil // silent
	})
	dead := rawServer(t, zmtptest.Hello(1, "PUB"))
	told := make(chan error, 10_000)
	follow(t, newLedger(), events.SubscriberConfig{
		Endpoint: dead, Replay: socket.endpoint, Heartbeat: heartbeat, ReplayTimeout: time.Hour, OnError: func(err error) { told <- err },
	})
	if err := wait(t, "OnError", told); !strings.Contains(err.Error(), "no answer to a heartbeat") {
		t.Errorf("got %v", err)
	}
}

// TestSilence: an engine that publishes nothing is reported once, with the possible causes.
func TestSilence(t *testing.T) {
	t.Parallel()
	const silence = 50 * time.Millisecond
	quiet := zmtptest.Hello(0, "PUB")
	other := slices.Concat(quiet, zmtptest.Message("metrics", number(0), "x"), zmtptest.Message("", "no number", "x"))
	nobodys := slices.Concat(quiet, zmtptest.Message("kv@", number(0), "x"), zmtptest.Message("kv@pod", number(1), "x"))
	for name, tt := range map[string]struct {
		script []byte
		bind   bool
		want   string
	}{
		"nothing":               {quiet, false, "has published nothing"},
		"other messages":        {other, false, "but 2 other messages"},
		"nothing, bound":        {quiet, true, "has published nothing"},
		"other messages, bound": {other, true, "but 2 other messages"},
		"of no pod, bound":      {nobodys, true, "but 2 other messages"},
	} {
		cfg := events.SubscriberConfig{Silence: silence, Topic: "kv@", Bind: tt.bind, Endpoint: "tcp://127.0.0.1:0"}
		if !tt.bind {
			cfg.Endpoint = rawServer(t, tt.script)
		}
		s := subscribe(t, cfg)
		if tt.bind {
			guest(t, wait(t, "OnListen", s.listening), tt.script)
		}
		err := wait(t, "OnError", s.errors)
		var told *events.TransportError
		if !errors.As(err, &told) || told.Endpoint == "" {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range []string{tt.want, silence.String(), `do not begin with "kv@"`, "enable_kv_cache_events"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want it to say %q", name, err, want)
			}
		}
	}
}

// TestSilenceOfOneOfTwo: the report about an engine does not count the messages of another one.
func TestSilenceOfOneOfTwo(t *testing.T) {
	t.Parallel()
	s := subscribe(t, events.SubscriberConfig{Silence: 200 * time.Millisecond, Bind: true, Endpoint: "tcp://127.0.0.1:0"})
	endpoint := wait(t, "OnListen", s.listening)
	quiet := engine(t, endpoint)
	wait(t, "the connection", s.connected)
	engine(t, endpoint, zmtptest.Message("not a topic", number(0), "x"))
	for {
		err := wait(t, "OnError", s.errors)
		var told *events.TransportError
		if errors.As(err, &told) && told.Endpoint == zmtp.Name(quiet.LocalAddr()) {
			if !strings.Contains(err.Error(), "has published nothing") {
				t.Error(err)
			}
			return
		}
	}
}

// TestSilenceOfTopic: replayed messages do not hide that the Topic is wrong.
func TestSilenceOfTopic(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Topic: "kv@a@m", Replay: "tcp://127.0.0.1:0"})
	engine.Publish(clock(0))
	s := subscribe(t, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), Topic: "other", Silence: 200 * time.Millisecond})
	if m := s.next(); !m.Replayed {
		t.Errorf("the connection has brought %v", m)
	}
	for !strings.Contains(wait(t, "the error about the topic", s.errors).Error(), `do not begin with "other"`) {
	}
}

// TestSilenceEnds: a message ends the wait of the silence report.
func TestSilenceEnds(t *testing.T) {
	t.Parallel()
	spoken := slices.Concat(zmtptest.Hello(0, "PUB"), zmtptest.Message("", number(0), "x"))
	for attempt := 1; ; attempt++ { // on a slow machine the message may come too late
		s := subscribe(t, events.SubscriberConfig{Silence: 200 * time.Millisecond, Endpoint: rawServer(t, spoken)})
		s.next()
		late := subscribe(t, events.SubscriberConfig{Silence: 400 * time.Millisecond, Endpoint: rawServer(t, zmtptest.Hello(0, "PUB"))})
		wait(t, "the silence of another", late.errors)
		if len(s.errors) == 0 {
			return
		}
		if err := <-s.errors; attempt == 10 {
			t.Fatal(err)
		}
	}
}

// TestTellOnce: a failure that lasts is not reported at every attempt.
func TestTellOnce(t *testing.T) {
	t.Parallel()
	attempts := make(chan struct{}, 100_000)
	router := listener(t, "127.0.0.1:0", func(nc net.Conn) {
		_, _ = nc.Write(zmtptest.Hello(1, "ROUTER"))
		attempts <- struct{}{}
	})
	s := subscribe(t, events.SubscriberConfig{Endpoint: router, Backoff: time.Millisecond})
	for range 50 {
		wait(t, "an attempt", attempts)
	}
	wait(t, "OnError", s.errors)
	if n := len(s.errors); n > 10 { // it is reported again after 1, 3, 7, 15 seconds
		t.Errorf("reported %d times more", n)
	}
}
