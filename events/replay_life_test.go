package events_test

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// This file has the tests of replays by engines that restart or lose messages.

// life is one run of an engine: its number of messages, and the time of message 0, which
// distinguishes the runs.
type life struct{ from, n int }

func (l life) payload(seq uint64) []byte { return clock(l.from + int(seq)) }

func (l life) reply(seq uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), l.payload(seq)}
}

// answer is the replay of an engine that loses nothing.
func (l life) answer(start uint64) (answer [][][]byte) {
	for seq := start; seq < uint64(l.n); seq++ {
		answer = append(answer, l.reply(seq))
	}
	return append(answer, end())
}

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

// speaker is an engine that sends the messages of its n-th connection to any subscriber. The
// first connection may be closed unread: if the first replay has messages, it is made again.
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

// TestRestartBetweenRequests: an answer has a gap, and the engine restarts before it is asked to
// fill it. The new engine's messages with these numbers do not fill the gap.
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
	// The connection may still be the old engine's.
	if got := wait(t, "a replay on a new connection", replays); got.Restarted || got.Err != nil || got.From != 12 {
		t.Errorf("%+v", got)
	}
	if got, want := r.asked(), []uint64{0, 0, 2, 0, 11}; !slices.Equal(got, want) {
		t.Errorf("replays requested from %v, want from %v", got, want)
	}
	if st := s.Stats(); st.Connects != 2 {
		t.Errorf("%d connections, want 2", st.Connects)
	}
}

// TestHeldOfAnOtherLife: connections still bring a message of the engine before the one that
// replays. Its number is far ahead. It is not applied, and its connection is closed each time.
func TestHeldOfAnOtherLife(t *testing.T) {
	old, now := life{100, 10}, life{200, 5}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		if n < 3 {
			return now.answer(start)
		}
		return life{200, 6}.answer(start)
	})
	endpoint := speaker(t, nil, [][]byte{old.live(9)}, [][]byte{now.live(5), old.live(9)}, [][]byte{now.live(6)})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	// The first 9 comes before the replay socket is verified.
	l.expect(t, numbers(0, 4)+" rewound hold 5 "+numbers(0, 5)+" hold 9 6")
	for i, from := range []uint64{0, 5, 0, 6, 6} {
		if got := wait(t, "a replay", replays); (got.Err != nil) != (i == 3) || got.Restarted || got.From != from {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	if got, want := r.asked(), []uint64{0, 4, 9, 4, 0, 5, 0, 5, 5, 5, 5}; !slices.Equal(got, want) {
		t.Errorf("replays requested from %v, want from %v", got, want)
	}
}

// TestReplayOfTheEngineBefore: the engine has restarted, and the replay socket is still that of the
// engine before. The first message that shows this drops the replayed ones.
func TestReplayOfTheEngineBefore(t *testing.T) {
	old, now := life{100, 5}, life{200, 5}
	r := newLives(t, old)
	endpoint := speaker(t, nil, [][]byte{now.live(2)}, [][]byte{now.live(3), now.live(4)})
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint})
	l.expect(t, numbers(0, 4)+" rewound late 3 4")
	if st := s.Stats(); st.Connects != 3 {
		t.Errorf("%d connections, want 3", st.Connects)
	}
}

// TestReplaySlowly: an answer may take any time while messages come.
func TestReplaySlowly(t *testing.T) {
	t.Parallel()
	const n, pace, timeout = 15, 150 * time.Millisecond, 2 * time.Second
	asked := make(chan net.Conn, 10)
	socket := listener(t, "127.0.0.1:0", func(nc net.Conn) { asked <- nc })
	engine := life{100, n}
	endpoint := speaker(t, nil)
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: socket, ReplayTimeout: timeout})
	nc := wait(t, "a request", asked)
	say(t, nc, slices.Concat(zmtptest.Hello(0, "ROUTER"), zmtptest.Message("", number(math.MaxUint64), ""))) // it answers
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

// bindSubscriber is a Subscriber that listens to engines with one replay socket.
type bindSubscriber struct {
	*testing.T
	*events.Subscriber
	*ledger
	endpoint string
	replays  chan events.Replay
	ended    uint64 // connections
}

func newBound(t *testing.T, replay string, cfg events.SubscriberConfig) *bindSubscriber {
	b := &bindSubscriber{T: t, ledger: newLedger()}
	listening := make(chan string, 1)
	cfg.Endpoint, cfg.Bind = "tcp://127.0.0.1:0", true
	cfg.OnListen = func(e string) { listening <- e }
	cfg.ReplayOf = func(string, string) string { return replay }
	b.Subscriber, b.replays, _ = follow(t, b.ledger, cfg)
	b.endpoint = wait(t, "the listener", listening)
	return b
}

// connect opens a connection of an engine and sends messages on it.
func (b *bindSubscriber) connect(l life, seqs ...uint64) net.Conn {
	b.Helper()
	nc := engine(b.T, b.endpoint)
	b.say(nc, l, seqs...)
	return nc
}

func (b *bindSubscriber) say(nc net.Conn, l life, seqs ...uint64) {
	b.Helper()
	for _, seq := range seqs {
		say(b.T, nc, l.live(seq))
	}
}

// left waits until the Subscriber has closed and counted a connection.
func (b *bindSubscriber) left(nc net.Conn) {
	b.Helper()
	must(b, nc.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
		b.Fatal("the connection was not ended")
	}
	b.ended++
	b.waitDisconnects(b.ended)
}

// waitDisconnects waits until so many connections are closed.
func (b *bindSubscriber) waitDisconnects(n uint64) {
	b.Helper()
	eventually(b.T, func() string {
		if got := b.Stats().Disconnects; got < n {
			return fmt.Sprintf("%d connections have ended, want %d", got, n)
		}
		return ""
	})
}

// TestBoundHeldOfAnOtherLife is TestHeldOfAnOtherLife for engines that connect. The messages of the
// next connection are applied.
func TestBoundHeldOfAnOtherLife(t *testing.T) {
	old, now := life{100, 10}, life{200, 5}
	r := newLives(t, now)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	b.left(b.connect(old, 9))
	b.expect(t, numbers(0, 4)+" rewound")
	r.become(life{200, 6})
	b.connect(now, 5, 6)
	b.expect(t, numbers(0, 4)+" rewound hold 5 "+numbers(0, 6))
}

// TestBoundRestartBeforeTheFirstMessage: an engine connects, replays and restarts before the first
// message of the connection verifies the replay socket. The socket no longer has the replayed
// messages, so the sink gets NoteRestarted.
func TestBoundRestartBeforeTheFirstMessage(t *testing.T) {
	old, now := life{100, 5}, life{200, 6}
	for _, c := range []struct {
		seq   uint64
		held  string
		asked []uint64
	}{
		{4, " hold 4", []uint64{0, 4, 4}},
		{5, " hold 4 hold 4", []uint64{0, 4, 4, 5}},
		{7, " hold 4", []uint64{0, 7, 4}},
	} {
		t.Run(fmt.Sprintf("message %d", c.seq), func(t *testing.T) {
			r := newRouter(t, func(n int, start uint64) [][][]byte {
				if n == 0 {
					return old.answer(start)
				}
				return now.answer(start)
			})
			b := newBound(t, r.endpoint, events.SubscriberConfig{})
			b.left(b.connect(old, c.seq))
			b.expect(t, numbers(0, 4)+c.held+" anew")
			if got := r.asked(); !slices.Equal(got, c.asked) {
				t.Errorf("replays requested from %v, want from %v", got, c.asked)
			}
			b.connect(now, 5, 6)
			b.expect(t, numbers(0, 4)+c.held+" anew hold 5 "+numbers(0, 6))
		})
	}
}

// TestEngineThatDoesNotKeep: an engine has the applied messages, but none published since. The
// first time its connection may be another engine's. After that, missing messages are lost and the
// connection stays.
func TestEngineThatDoesNotKeep(t *testing.T) {
	engine := life{100, 4} // all that it keeps
	r := newLives(t, engine)
	endpoint := speaker(t, nil, [][]byte{engine.live(3), engine.live(9)}, [][]byte{engine.live(10), engine.live(11)})
	l := newLedger()
	told := make(chan error, 10)
	s, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: r.endpoint, OnError: func(err error) {
		if strings.Contains(err.Error(), "incomplete") {
			told <- err
		}
	}})
	l.expect(t, numbers(0, 3)+" hold 9 hold 10 lost 4-9 10 11")
	var fault *events.TransportError
	want := fmt.Sprintf(`pod "a": the replay of %s from message 4 is incomplete: the engine does not have the missing messages`, endpoint)
	if err := wait(t, "OnError", told); !errors.As(err, &fault) || fault.Pod != "a" || fault.Endpoint != endpoint || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %+v, want %s", err, want)
	}
	for i, inVain := range []bool{false, false, true, false, true} {
		if got := wait(t, "a replay", replays); (got.Err != nil) != inVain || got.Restarted {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	if st := s.Stats(); st.Connects != 3 {
		t.Errorf("%d connections, want 3", st.Connects)
	}
}

// TestBoundEngineThatDoesNotKeep is TestEngineThatDoesNotKeep for engines that connect. No other
// connection has the stream when the second one comes.
func TestBoundEngineThatDoesNotKeep(t *testing.T) {
	engine := life{100, 4}
	r := newLives(t, engine)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	b.left(b.connect(engine, 3, 9))
	b.connect(engine, 10, 11)
	b.expect(t, numbers(0, 3)+" hold 9 hold 10 lost 4-9 10 11")
	if st := b.Stats(); st.Connects != 2 {
		t.Errorf("%d connections, want 2", st.Connects)
	}
}
