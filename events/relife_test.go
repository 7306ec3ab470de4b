package events_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// quietly is how long nothing must happen.
const quietly = 100 * time.Millisecond

// life is what an engine has between its start and its end: as many messages,
// and the time of message 0, which tells the lives of an engine apart.
type life struct{ from, n int }

func (l life) payload(seq uint64) []byte { return clock(l.from + int(seq)) }

func (l life) reply(seq uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), l.payload(seq)}
}

// answer is that of an engine which loses nothing.
func (l life) answer(start uint64) (answer [][][]byte) {
	for seq := start; seq < uint64(l.n); seq++ {
		answer = append(answer, l.reply(seq))
	}
	return append(answer, end())
}

// lives is a replay socket whose engine may be replaced.
type lives struct {
	*router
	mu  sync.Mutex
	now life
}

func newLives(t *testing.T, now life) *lives {
	l := &lives{now: now}
	l.router = newRouter(t, func(_ int, start uint64) [][][]byte {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.now.answer(start)
	})
	return l
}

func (l *lives) become(now life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = now
}

// TestRestartBetweenRequests: an answer has a hole, and the engine starts anew
// before it is asked for that. What the new one has under those numbers does not
// fill it.
func TestRestartBetweenRequests(t *testing.T) {
	old, now := life{100, 10}, life{200, 12}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		switch n {
		case 0:
			return [][][]byte{end()}
		case 1: // 3 and 4 were dropped
			whole := old.answer(start)
			return append(whole[:3:3], whole[5:]...)
		}
		return now.answer(start)
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	s, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint})
	wait(t, "the first replay", replays)
	waitSubscriber(t, engine)
	engine.Publish(old.payload(0))
	for seq := range uint64(8) {
		engine.Skip(old.payload(1 + seq))
	}
	engine.Publish(old.payload(9))
	l.expect(t, "0 hold 9 1 2 hold 2 anew "+numbers(0, 11))
	if got := wait(t, "a replay", replays); !got.Restarted || got.Err != nil || got.Attempts != 3 || got.From != 1 {
		t.Errorf("%+v", got)
	}
	// The connection may be the old engine's too.
	if got := wait(t, "a replay on a new connection", replays); got.Restarted || got.Err != nil || got.From != 12 {
		t.Errorf("%+v", got)
	}
	if got, want := r.asked(), []uint64{0, 0, 2, 0, 11}; !slices.Equal(got, want) {
		t.Errorf("asked for what is from %v on, want %v", got, want)
	}
	if st := s.Stats(); st.Connects != 2 {
		t.Errorf("%d connections, want 2", st.Connects)
	}
}

// speaker is an engine that says on each connection what comes next, whoever
// listens. What it says on the first one is not heard if the first replay brings
// something: it is left for another one.
func speaker(t *testing.T, connections ...[][]byte) (endpoint string) {
	t.Helper()
	var scripts [][]byte
	for _, messages := range connections {
		scripts = append(scripts, slices.Concat(zmtptest.Hello(1, "PUB"), slices.Concat(messages...)))
	}
	return rawServer(t, scripts...)
}

func (l life) live(seq uint64) []byte {
	return zmtptest.Message("kv@a@m", number(seq), string(l.payload(seq)))
}

// TestHeldOfAnOtherLife: connections still have a message of the engine that was
// there before the one that is known by its replay. Its number is far ahead; and
// it is not applied, but left with its connection, each time.
func TestHeldOfAnOtherLife(t *testing.T) {
	old, now := life{100, 10}, life{200, 5}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		if n < 6 {
			return now.answer(start)
		}
		return life{200, 6}.answer(start)
	})
	endpoint := speaker(t, nil, [][]byte{old.live(9)}, [][]byte{now.live(5), old.live(9)}, [][]byte{now.live(6)})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, numbers(0, 4)+" hold 9 5 hold 9 6")
	for i, from := range []uint64{0, 5, 5, 5, 6, 6} {
		inVain := i == 2 || i == 4 // the others are of new connections
		if got := wait(t, "a replay", replays); (got.Err != nil) != inVain || got.Restarted || got.From != from {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	if got, want := r.asked(), []uint64{0, 4, 4, 4, 4, 4, 5, 5, 5, 5}; !slices.Equal(got, want) {
		t.Errorf("asked for what is from %v on, want %v", got, want)
	}
}

// TestReplayOfTheEngineBefore: the engine has started anew, and the replay socket
// is still that of the one before. The second message that says so is believed.
func TestReplayOfTheEngineBefore(t *testing.T) {
	old, now := life{100, 5}, life{200, 5}
	r := newLives(t, old)
	endpoint := speaker(t, nil, [][]byte{now.live(2)}, [][]byte{now.live(3), now.live(4)})
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, numbers(0, 4)+" hold 2 hold 3 restart 3 4")
	if st := s.Stats(); st.Connects != 3 {
		t.Errorf("%d connections, want 3", st.Connects)
	}
}

// TestAnswerBeginsTooEarly: what is before the number that was asked for is no
// answer.
func TestAnswerBeginsTooEarly(t *testing.T) {
	engine := life{100, 10}
	r := newRouter(t, func(n int, _ uint64) [][][]byte {
		if n < 2 {
			return life{100, 5}.answer(0)
		}
		return engine.answer(0)
	})
	endpoint := speaker(t, nil, [][]byte{engine.live(9)})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, numbers(0, 4)+" hold 9 "+numbers(5, 9))
	wait(t, "the first replay", replays)
	wait(t, "the next connection's", replays)
	if got := wait(t, "a replay", replays); got.Err != nil || got.Restarted || got.Messages != 6 {
		t.Errorf("%+v", got)
	}
}

// TestRepairEnds: what the engine has behind the message that is held comes on
// the connection, so it is not waited for.
func TestRepairEnds(t *testing.T) {
	engine := life{100, 20}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		if n == 0 {
			return [][][]byte{end()}
		}
		return engine.answer(start)
	})
	endpoint := speaker(t, [][]byte{engine.live(0), engine.live(9), engine.live(10)})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, "0 hold 9 "+numbers(1, 10))
	wait(t, "the first replay", replays)
	if got := wait(t, "a replay", replays); got.Err != nil || got.Messages != 10 || got.Attempts != 1 {
		t.Errorf("%+v", got)
	}
}

// TestReplaySlowly: an answer may take as long as it likes while it goes on.
func TestReplaySlowly(t *testing.T) {
	t.Parallel()
	const n, pace, timeout = 8, 150 * time.Millisecond, time.Second
	asked := make(chan net.Conn, 10)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			asked <- nc
		}
	}()
	t.Cleanup(func() { ln.Close(); <-gone })
	engine := life{100, n}
	endpoint := speaker(t, nil)
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: zmtp.Name(ln.Addr()), ReplayTimeout: timeout})
	nc := wait(t, "a request", asked)
	say(t, nc, zmtptest.Hello(0, "ROUTER"))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for seq := range uint64(n) {
		wait(t, "the time for the next", tick.C)
		say(t, nc, zmtptest.Message("", number(seq), string(engine.payload(seq))))
	}
	say(t, nc, zmtptest.Message("", number(math.MaxUint64), ""))
	if got := wait(t, "a replay", replays); got.Err != nil || got.Messages != n || got.Attempts != 1 {
		t.Errorf("%+v", got)
	}
}

// bound is a Subscriber that listens to engines with one replay socket.
type bound struct {
	*testing.T
	*events.Subscriber
	*ledger
	endpoint string
	replays  chan events.Replay
}

func newBound(t *testing.T, replay string, cfg events.SubscriberConfig) *bound {
	b := &bound{T: t, ledger: newLedger()}
	listening := make(chan string, 1)
	cfg.Endpoint, cfg.Bind = "tcp://127.0.0.1:0", true
	cfg.OnListen = func(e string) { listening <- e }
	cfg.ReplayOf = func(string, string) string { return replay }
	b.Subscriber, b.replays, _ = follow(t, b.ledger, cfg)
	b.endpoint = wait(t, "the listener", listening)
	return b
}

// link is a connection of an engine that says something.
func (b *bound) link(l life, seqs ...uint64) net.Conn {
	b.Helper()
	nc := engine(b.T, b.endpoint)
	b.say(nc, l, seqs...)
	return nc
}

func (b *bound) say(nc net.Conn, l life, seqs ...uint64) {
	b.Helper()
	for _, seq := range seqs {
		say(b.T, nc, l.live(seq))
	}
}

// left waits until the Subscriber has ended a connection.
func (b *bound) left(nc net.Conn) {
	b.Helper()
	if err := nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
		b.Fatal("the connection was not ended")
	}
}

// TestBoundHeldOfAnOtherLife is TestHeldOfAnOtherLife for engines that connect.
// The next connection's messages are taken.
func TestBoundHeldOfAnOtherLife(t *testing.T) {
	old, now := life{100, 10}, life{200, 5}
	r := newLives(t, now)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	b.left(b.link(old, 9))
	b.expect(t, numbers(0, 4)+" hold 9")
	r.become(life{200, 6})
	b.link(now, 5, 6)
	b.expect(t, numbers(0, 4)+" hold 9 5 6")
}

// TestBoundOldLink: a connection to an engine that is no more has no say, also
// not when no newer one is there, and also not if the number is the one that is
// due.
func TestBoundOldLink(t *testing.T) {
	old, now := life{100, 2}, life{200, 3}
	r := newLives(t, old)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	older := b.link(old, 1)
	b.expect(t, "0 1")
	r.become(now)
	b.left(b.link(now, 2)) // it may be the old engine's, for all that is known
	want := "0 1 hold 1 anew 0 1 2"
	b.expect(t, want)
	newer := b.link(now, 3)
	want += " 3"
	b.expect(t, want)
	newer.Close()
	b.waitDisconnects(2)
	b.say(older, old, 4)
	b.left(older)
	r.become(life{200, 4})
	b.link(now, 4, 5)
	b.expect(t, want+" 4 5")
}

// waitDisconnects waits until as many connections were ended.
func (b *bound) waitDisconnects(n uint64) {
	b.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for b.Stats().Disconnects < n {
		select {
		case <-tick.C:
		case <-deadline:
			b.Fatalf("%d connections have ended, want %d", b.Stats().Disconnects, n)
		}
	}
}

// TestEngineThatDoesNotKeep: an engine confirms what was applied, but does not
// have what it said since. The first time its connection may be another's; from
// then on what is missing is lost, and the connection stays.
func TestEngineThatDoesNotKeep(t *testing.T) {
	engine := life{100, 4} // has no more than these
	r := newLives(t, engine)
	endpoint := speaker(t, nil, [][]byte{engine.live(9)}, [][]byte{engine.live(10), engine.live(11)})
	l := newLedger()
	s, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, numbers(0, 3)+" hold 9 hold 10 lost 4-9 10 11")
	for i, inVain := range []bool{false, false, true, false, true} {
		if got := wait(t, "a replay", replays); (got.Err != nil) != inVain || got.Restarted {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	if st := s.Stats(); st.Connects != 3 {
		t.Errorf("%d connections, want 3", st.Connects)
	}
}

// TestBoundEngineThatDoesNotKeep is TestEngineThatDoesNotKeep for engines that
// connect. When the second connection comes there is none that has its topic.
func TestBoundEngineThatDoesNotKeep(t *testing.T) {
	engine := life{100, 4}
	r := newLives(t, engine)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	b.left(b.link(engine, 9))
	b.link(engine, 10, 11)
	b.expect(t, numbers(0, 3)+" hold 9 hold 10 lost 4-9 10 11")
	if st := b.Stats(); st.Connects != 2 {
		t.Errorf("%d connections, want 2", st.Connects)
	}
}

// hushed is an engine of ZMTP 3.0, which knows no heartbeats: it may be silent for
// as long as it likes. Its connections come from the channel.
func hushed(t *testing.T) (endpoint string, connections <-chan net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted, gone := make(chan net.Conn, 100), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			_, _ = nc.Write(zmtptest.Hello(0, "PUB"))
			accepted <- nc
		}
	}()
	t.Cleanup(func() { ln.Close(); <-gone })
	return zmtp.Name(ln.Addr()), accepted
}

// TestIdle: what an engine published before it knew of the subscription, and the
// last message before a silence, show by no later number while the engine is
// silent. They are asked for, once a silence.
func TestIdle(t *testing.T) {
	has := []int{1, 1, 3, 5} // when it is asked
	r := newRouter(t, func(n int, start uint64) [][][]byte { return life{100, has[min(n, 3)]}.answer(start) })
	endpoint, connections := hushed(t)
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint, Heartbeat: 50 * time.Millisecond})
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
	say(t, nc, zmtptest.Command("PING", "\x00\x00")) // a sign of life is no message
	select {
	case got := <-replays:
		t.Errorf("asked again: %+v", got)
	case <-time.After(quietly):
	}
}

// TestBoundIdle is TestIdle for engines that connect.
func TestBoundIdle(t *testing.T) {
	r := newRouter(t, func(n int, start uint64) [][][]byte { return life{100, 1 + 2*n}.answer(start) })
	b := newBound(t, r.endpoint, events.SubscriberConfig{Heartbeat: 50 * time.Millisecond})
	b.say(guest(t, b.endpoint, zmtptest.Hello(0, "PUB")), life{from: 100}, 0)
	b.expect(t, "0 1 2")
	if got, want := r.asked(), []uint64{0, 0}; !slices.Equal(got, want) {
		t.Errorf("asked for what is from %v on, want %v", got, want)
	}
}

// TestIdleFindsAnOtherLife: the connection is still open, but who replays is the
// next engine. What the connection brings then is not applied, though its number
// is the one that is due.
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

// interruptions is a ledger that says of which streams the connection was lost.
type interruptions struct {
	*ledger
	streams chan string
}

func (i interruptions) StreamInterrupted(pod, model, stream string) {
	i.streams <- pod + " " + model + " " + stream
}

// TestInterrupted: the sink is told when the connection of a stream is lost, but
// not of one that another has taken its place of.
func TestInterrupted(t *testing.T) {
	sink := interruptions{newLedger(), make(chan string, 1000)}
	run := func(cfg events.SubscriberConfig) *events.Subscriber {
		cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 5*time.Millisecond
		s, err := events.NewSubscriber(sink, cfg)
		if err != nil {
			t.Fatal(err)
		}
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
			t.Errorf("told of %q, want %q", got, want)
		}
	}
	endpoint, connections := hushed(t)
	connected := make(chan string, 1000)
	run(events.SubscriberConfig{Endpoint: endpoint, Pod: "a", Model: "m", OnConnect: func(e string) { connected <- e }})
	wait(t, "the subscription", connected)
	wait(t, "the connection", connections).Close()
	told("a m " + endpoint)

	listening := make(chan string, 1)
	b := &bound{T: t, ledger: sink.ledger}
	cfg := events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, OnListen: func(e string) { listening <- e }}
	b.Subscriber = run(cfg)
	b.endpoint = wait(t, "the listener", listening)
	engine := life{100, 10}
	older := b.link(engine, 0)
	b.expect(t, "0")
	newer := b.link(engine, 1)
	b.expect(t, "0 1")
	older.Close()
	b.waitDisconnects(1)
	newer.Close()
	told("a m " + cfg.Endpoint + " kv@a@m")
	b.waitDisconnects(2)
	if n := len(sink.streams); n != 0 {
		t.Errorf("told %d times more: %q", n, <-sink.streams)
	}
}
