package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// TestTwoRefusedAtTheEnd: the sink refuses the last two messages of a replay for good. They are
// requested once more and then no longer (replay.go, ended).
func TestTwoRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, refusedMessages := range []uint64{1, 2} {
		t.Run(fmt.Sprint(refusedMessages), func(t *testing.T) {
			t.Parallel()
			engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
			for i := range 8 {
				engine.Skip(clock(i))
			}
			l := newLedger()
			l.fail = func(m events.Message) error {
				if m.Seq >= 8-refusedMessages && m.Seq < 8 {
					return errors.New("one rank too many")
				}
				return nil
			}
			_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
			for i := 1; ; i++ {
				r := wait(t, "a replay", replays)
				if r.Err != nil && strings.Contains(r.Err.Error(), "the sink refuses the last messages") {
					break // it is not requested again
				}
				if i == 4 {
					t.Fatalf("still requested after %d replays: %+v", i, r)
				}
			}
		})
	}
}

// TestReplayTakesAnotherTopic: a replay has a topic that is too long, one that only begins with
// Topic, and then Topic itself, which is used.
func TestReplayTakesAnotherTopic(t *testing.T) {
	t.Parallel()
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < 6; seq++ {
			m := reply(seq)
			topic := "kv@p@m2"
			switch {
			case seq == 0:
				topic += strings.Repeat("2", 1024)
			case seq >= 2:
				topic = "kv@p@m"
			}
			answer = append(answer, [][]byte{nil, []byte(topic), m[1], m[2]})
		}
		return append(answer, endWithTopic())
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, Topic: "kv@p@m", Heartbeat: 20 * time.Millisecond})
	const end = " 2 3 4 5"
	all := ""
	l.wait(t, "..."+end, func(got string) bool { all = got; return strings.HasSuffix(got, end) })
	if strings.HasPrefix(all, "0 ") {
		t.Error("a message under a topic of more than 1,024 bytes was applied")
	}
}

// TestFramesToldAtDoublingTimes: two alternating kinds of frames are reported at doubling times.
func TestFramesToldAtDoublingTimes(t *testing.T) {
	var script [][]byte
	for i := range 1000 {
		script = append(script, zmtptest.Message("kv", "x"), zmtptest.Message("kv", number(uint64(i)), "a", "b"))
	}
	script = append(script, said("kv", number(0), 0))
	var told atomic.Int32
	l := newLedger()
	follow(t, l, events.SubscriberConfig{Endpoint: rawServer(t, append(zmtptest.Hello(1, "PUB"), bytes.Join(script, nil)...)), Topic: "kv", OnError: func(error) { told.Add(1) }})
	l.expectEnd(t, "unread 0")
	if n := told.Load(); n > 20 {
		t.Errorf("%d calls of OnError for 2,000 messages of two kinds", n)
	}
}

// TestLongNumbersOfTwoTopics: each of two topics has its own long numbers.
func TestLongNumbersOfTwoTopics(t *testing.T) {
	id := strings.Repeat("i", 8)
	var script [][]byte
	for i := range 10 {
		script = append(script, said("kv@a@m", number(uint64(i))+id, i), said("kv@b@m", number(uint64(i))+id, i))
	}
	listening := make(chan string, 1)
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Bind: true, Endpoint: "tcp://127.0.0.1:0", OnListen: func(e string) { listening <- e }})
	guest(t, wait(t, "OnListen", listening), append(zmtptest.Hello(1, "PUB"), bytes.Join(script, nil)...))
	l.wait(t, "20 messages", func(got string) bool { return len(strings.Fields(got)) == 20 })
	if st := s.Stats(); st.Dropped["malformed"] != 0 || st.Messages != 20 {
		t.Errorf("%+v", st)
	}
}

// TestLongTopicsAreNotKept: a connection may send topics of any length, and few of their bytes are
// kept.
func TestLongTopicsAreNotKept(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	listening := make(chan string, 1)
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Bind: true, Endpoint: "tcp://127.0.0.1:0", OnListen: func(e string) { listening <- e }})
	nc := guest(t, wait(t, "OnListen", listening), zmtptest.Hello(1, "PUB"))
	long, before := strings.Repeat("t", 1<<20), heap()
	for i := range 64 {
		say(t, nc, zmtptest.Message(fmt.Sprint("kv@a@", i, long), number(0)+"further bytes", "x"))
	}
	say(t, nc, said("kv@a@m", number(0), 0))
	l.wait(t, "0", func(got string) bool { return got == "0" })
	if more := heap() - before; more > 16<<20 {
		t.Errorf("%d bytes are kept of 64 topics of 1 MiB", more)
	}
	if n := s.Stats().Dropped["bad_topic"]; n != 64 {
		t.Errorf("%d topics were bad", n)
	}
}

// oneAtATime is a sink that detects concurrent messages of one stream.
type oneAtATime struct {
	*ledger
	in    atomic.Int32
	twice atomic.Int32
}

func (o *oneAtATime) IngestMessage(m events.Message) (events.Receipt, error) {
	if o.in.Add(1) > 1 {
		o.twice.Add(1)
	}
	defer o.in.Add(-1)
	for range 20 {
		runtime.Gosched()
	}
	return o.ledger.IngestMessage(m)
}

// TestOneMessageAtATime: the sink gets one message of a stream at a time.
func TestOneMessageAtATime(t *testing.T) {
	t.Parallel()
	script := [][]byte{zmtptest.Hello(1, "PUB")}
	for range 2000 {
		script = append(script, zmtptest.Message("kv", "x"))
	}
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < 2000; seq++ {
			answer = append(answer, reply(seq))
		}
		return append(answer, end())
	})
	o := &oneAtATime{ledger: newLedger()}
	// The socket has never answered, so the connection is read during the request.
	sub, err := events.NewSubscriber(o, events.SubscriberConfig{
		Pod: "a", Model: "m", Endpoint: speaker(t, [][]byte{bytes.Join(script[1:], nil)}, [][]byte{bytes.Join(script[1:], nil)}), Replay: socket.endpoint,
		Backoff: 5 * time.Millisecond,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sub.Run(ctx) }()
	o.wait(t, "all messages", func(got string) bool {
		return strings.Contains(got, " 1999") && strings.HasSuffix(got, strings.Repeat(" unread", 100))
	})
	cancel()
	wait(t, "Run to return", ended)
	if n := o.twice.Load(); n > 0 {
		t.Errorf("%d messages came while another one was being taken", n)
	}
}

// TestReplayOfManyFrames: a replayed message has too many frames. It is lost once, and later
// messages do not wait.
func TestReplayOfManyFrames(t *testing.T) {
	t.Parallel()
	for _, frames := range []int{2, 5, 17} {
		t.Run(fmt.Sprint(frames), func(t *testing.T) {
			t.Parallel()
			engine := publisher(t, fakeengine.PublisherConfig{})
			socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
				for seq := start; seq < engine.Next(); seq++ {
					m := reply(seq)
					if seq == 4 {
						for len(m) < frames {
							m = append(m, []byte("x"))
						}
						m = m[:frames]
					}
					answer = append(answer, m)
				}
				return append(answer, end())
			})
			for i := range 8 {
				engine.Skip(clock(i))
			}
			l := newLedger()
			follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, Heartbeat: 30 * time.Millisecond, ReplayTimeout: 500 * time.Millisecond})
			l.expectEnd(t, "5 6 7")
			waitSubscriber(t, engine)
			engine.Publish(clock(8))
			l.expectEnd(t, "8")
		})
	}
}

// TestReplayUnderAnotherTopic: a proxy publishes under another topic than the replay socket's. No
// live message is lost for that.
func TestReplayUnderAnotherTopic(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Topic: "kv@proxy@m"})
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < engine.Next(); seq++ {
			answer = append(answer, replyWithTopic(seq))
		}
		return append(answer, endWithTopic())
	})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint})
	wait(t, "a replay", replays)
	waitSubscriber(t, engine)
	n := 0
	next := func(how func([]byte) uint64) { how(clock(n)); n++ }
	for range 3 {
		next(engine.Publish)
	}
	l.expectEnd(t, "2")
	next(engine.Skip)
	for range 5 {
		next(engine.Publish)
	}
	l.wait(t, "the last message", func(got string) bool { return strings.HasSuffix(got, " 8") && !strings.HasSuffix(got, "hold 8") })
}

// TestJointNumbersWithReplay: a publisher numbers three topics together, and one is subscribed to.
// With the publisher's replay socket either nothing is lost or a fault is reported.
func TestJointNumbersWithReplay(t *testing.T) {
	t.Parallel()
	var published atomic.Int64
	tick := time.NewTicker(5 * time.Millisecond) // between messages, so that each misses the replay of those before
	t.Cleanup(tick.Stop)
	l := newLedger()
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < uint64(published.Load()); seq++ {
			m := reply(seq)
			answer = append(answer, [][]byte{nil, fmt.Appendf(nil, "kv@p%d@m", seq%3), m[1], m[2]})
		}
		return append(answer, endWithTopic())
	})
	endpoint := listener(t, "tcp://127.0.0.1:0", func(nc net.Conn) {
		_, _ = nc.Write(zmtptest.Hello(1, "PUB"))
		for i := published.Load(); i < 180; i += 3 {
			published.Store(i + 3)
			if _, err := nc.Write(said("kv@p0@m", number(uint64(i)), int(i))); err != nil {
				return
			}
			<-tick.C
		}
		_, _ = io.Copy(io.Discard, nc)
	})
	told := make(chan error, 1000)
	follow(t, l, events.SubscriberConfig{Endpoint: endpoint, Replay: socket.endpoint, Topic: "kv@p0@m", OnError: func(err error) { told <- err }})
	l.expectEnd(t, "177")
	l.mu.Lock()
	defer l.mu.Unlock()
	got := strings.Join(l.entries, " ")
	losses := strings.Count(got, "lost")
	said := false
	for len(told) > 0 {
		err := <-told
		t.Log(err)
		said = said || strings.Contains(err.Error(), "numbers several topics") || strings.Contains(err.Error(), "share their numbers")
	}
	if losses > 20 && !said {
		t.Errorf("%d losses, and nothing is reported: %s", losses, got)
	}
}
