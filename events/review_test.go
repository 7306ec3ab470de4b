package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// TestReviewTwoRefusedAtTheEnd: the last two messages of a replay are refused for good. They are
// asked for once more, but no more often (replay.go, ended).
func TestReviewTwoRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, refusedMessages := range []uint64{1, 2} {
		t.Run(fmt.Sprint(refusedMessages), func(t *testing.T) {
			t.Parallel()
			engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
			for i := range 8 {
				engine.Skip(clock(i))
			}
			l := newLedger()
			var refused atomic.Int32
			l.fail = func(m events.Message) error {
				if m.Seq >= 8-refusedMessages && m.Seq < 8 {
					refused.Add(1)
					return errors.New("one rank too many")
				}
				return nil
			}
			_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
			wait(t, "a replay", replays)
			time.Sleep(6 * time.Second)
			before, n := refused.Load(), len(replays)
			time.Sleep(6 * time.Second)
			if more := refused.Load() - before; more > 4 {
				t.Errorf("in 6 s the sink was given refused messages %d times more, in %d more replays", more, len(replays)-n)
			}
		})
	}
}

// TestReviewReplayTakesAnotherTopic: "one topic is taken: Topic itself if it comes". The replay
// has a topic that only begins with Topic, and then Topic.
func TestReviewReplayTakesAnotherTopic(t *testing.T) {
	t.Parallel()
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < 6; seq++ {
			m := reply(seq)
			topic := "kv@p@m2"
			if seq >= 2 {
				topic = "kv@p@m"
			}
			answer = append(answer, [][]byte{nil, []byte(topic), m[1], m[2]})
		}
		return append(answer, endWithTopic())
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, Topic: "kv@p@m", Heartbeat: 20 * time.Millisecond})
	for range 2 {
		wait(t, "a replay", replays)
	}
	time.Sleep(300 * time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	got := strings.Join(l.entries, " ")
	if !strings.HasSuffix(got, "2 3 4 5") {
		t.Errorf("the pod holds what another topic said, and not what Topic did: %s", got)
	}
}

// TestReviewFramesToldAtDoublingTimes: two kinds of frames in turn are told of at doubling times.
func TestReviewFramesToldAtDoublingTimes(t *testing.T) {
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
		t.Errorf("OnError was told %d times of 2,000 messages of two kinds", n)
	}
}

// TestReviewLongNumbersOfTwoTopics: long numbers of each of two topics go on by themselves.
func TestReviewLongNumbersOfTwoTopics(t *testing.T) {
	id := strings.Repeat("i", 8)
	var script [][]byte
	for i := range 10 {
		script = append(script, said("kv@a@m", number(uint64(i))+id, i), said("kv@b@m", number(uint64(i))+id, i))
	}
	listening := make(chan string, 1)
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Bind: true, Endpoint: "tcp://127.0.0.1:0", OnListen: func(e string) { listening <- e }})
	guest(t, wait(t, "OnListen", listening), append(zmtptest.Hello(1, "PUB"), bytes.Join(script, nil)...))
	deadline := time.Now().Add(3 * time.Second)
	for st := s.Stats(); st.Messages+st.Malformed < 20 && time.Now().Before(deadline); st = s.Stats() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if st := s.Stats(); st.Malformed != 0 || st.Messages != 20 {
		t.Errorf("%+v", st)
	}
}

// oneAtATime is a sink that notices when two messages of a stream come to it at once.
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
	time.Sleep(time.Millisecond)
	return o.ledger.IngestMessage(m)
}

// TestReviewOneMessageAtATime: "The messages of one stream come to the sink one at a time".
func TestReviewOneMessageAtATime(t *testing.T) {
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
	// The socket has never answered: the connection is read while it is asked.
	sub, err := events.NewSubscriber(o, events.SubscriberConfig{
		Pod: "a", Model: "m", Endpoint: speaker(t, [][]byte{bytes.Join(script[1:], nil)}, [][]byte{bytes.Join(script[1:], nil)}), Replay: socket.endpoint,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	runFor(t, sub, 3*time.Second)
	if n := o.twice.Load(); n > 0 {
		t.Errorf("%d messages came while another one was being taken", n)
	}
}

func runFor(t *testing.T, s *events.Subscriber, d time.Duration) {
	t.Helper()
	ctx, cancel := contextWithTimeout(d)
	defer cancel()
	_ = s.Run(ctx)
}

func contextWithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// TestReviewReplayOfManyFrames: one message of a replay has more frames than are read. It is lost
// once, and what comes next does not wait.
func TestReviewReplayOfManyFrames(t *testing.T) {
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
			s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint, Heartbeat: 30 * time.Millisecond, ReplayTimeout: 500 * time.Millisecond})
			l.expectEnd(t, "5 6 7")
			waitSubscriber(t, engine)
			start := time.Now()
			engine.Publish(clock(8))
			l.expectEnd(t, "8")
			if d := time.Since(start); d > time.Second {
				t.Errorf("the next message waited for %v", d)
			}
			before := s.Stats()
			time.Sleep(2 * time.Second)
			after := s.Stats()
			if n := after.Replays - before.Replays; n > 10 {
				t.Errorf("%d replays in 2 s", n)
			}
		})
	}
}

// TestReviewReplayUnderAnotherTopic: a proxy gives the engine's messages another topic than its
// replay socket has. What came on the connection is not lost for that.
func TestReviewReplayUnderAnotherTopic(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Topic: "kv@proxy@m"})
	socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
		for seq := start; seq < engine.Next(); seq++ {
			answer = append(answer, replyWithTopic(seq))
		}
		return append(answer, endWithTopic())
	})
	l := newLedger()
	s, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: socket.endpoint})
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
	time.Sleep(time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.Join(l.entries, " "); !strings.HasSuffix(got, " 8") || strings.HasSuffix(got, "hold 8") {
		t.Errorf("messages that came on the connection are lost: %s; %+v", got, s.Stats())
	}
}

// TestReviewJointNumbersWithReplay: a publisher numbers three topics together. Of one of them that
// is subscribed to, with the publisher's replay socket, either nothing is lost or it is said.
func TestReviewJointNumbersWithReplay(t *testing.T) {
	t.Parallel()
	var published atomic.Int64
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
			time.Sleep(10 * time.Millisecond)
		}
		_, _ = nc.Read(make([]byte, 1<<16))
		time.Sleep(2 * time.Second)
	})
	told := make(chan error, 1000)
	l := newLedger()
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
		t.Errorf("%d losses, and nothing is said: %s", losses, got)
	}
}
