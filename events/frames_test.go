package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// said is a message of a script. The time in its payload is its number.
func said(topic, number string, seq int) []byte {
	return zmtptest.Message(topic, number, string(clock(seq)))
}

// TestUnread: messages without a readable number come to the sink, and to OnError once.
func TestUnread(t *testing.T) {
	id := strings.Repeat("i", 16)
	script := [][]byte{zmtptest.Hello(1, "PUB")}
	script = append(script, said("kv", number(0)+id, 0), said("kv", number(1)+id, 1), said("kv", number(3)+id, 3))
	for i := range 5 {
		script = append(script, zmtptest.Message("kv", string([]byte{byte(255 - 40*i)})+"1234567"+id, "x")) // the first bytes are no number
	}
	script = append(script, zmtptest.Message("kv", "x"), zmtptest.Message("kv", "x"), said("kv", number(4), 4))
	told := make(chan error, 100)
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: rawServer(t, bytes.Join(script, nil)), Topic: "kv", OnError: func(err error) { told <- err }})
	l.expect(t, "0 1 lost 2-2 3 unread unread unread unread unread unread unread 4")
	if got := s.Stats(); got.Dropped["malformed"] != 7 || got.Messages != 4 {
		t.Errorf("stats %+v", got)
	}
	for _, want := range []string{"a number of 24 bytes where engines send 8", "2 frames where engines send 3"} {
		if err := wait(t, want, told); !strings.Contains(err.Error(), want) || fault.Reason(err) != fault.Frames || !errors.Is(err, events.ErrMalformed) {
			t.Errorf("reported %v, want %s", err, want)
		}
	}
	if len(told) != 0 {
		t.Errorf("also reported %v", <-told)
	}
}

// TestOneTopic: a pod has one topic: Topic itself as soon as it comes. The messages of another
// topic are dropped then.
func TestOneTopic(t *testing.T) {
	var script [][]byte
	for i := range 3 {
		script = append(script, said("kv@p@m2", number(uint64(i)), i))
	}
	for i := range 4 {
		script = append(script, said("kv@p@m", number(uint64(i)), 10+i), said("kv@p@m2", number(uint64(3+i)), 3+i), said("kv@p@m3", number(0), 0))
	}
	told := make(chan error, 100)
	l := newLedger()
	s, _, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: rawServer(t, append(zmtptest.Hello(1, "PUB"), bytes.Join(script, nil)...)), Topic: "kv@p@m", OnError: func(err error) { told <- err },
	})
	l.expect(t, "0 1 2 anew 0 1 2 3")
	s.Stats()
	for _, want := range []string{
		`pod "a" has the topic "kv@p@m": its blocks of the topic "kv@p@m2" are forgotten`,
		`pod "a" has the topic "kv@p@m": messages of the topic "kv@p@m2" are dropped`,
		`pod "a" has the topic "kv@p@m": messages of the topic "kv@p@m3" are dropped`,
	} {
		if err := wait(t, want, told); !strings.Contains(err.Error(), want) {
			t.Errorf("reported %v, want %s", err, want)
		}
	}
	if len(told) != 0 {
		t.Errorf("also reported %v", <-told)
	}
}

// TestEmptyTopic: without Topic the first topic is the pod's, and an empty topic is another one.
func TestEmptyTopic(t *testing.T) {
	l := newLedger()
	script := [][]byte{zmtptest.Hello(1, "PUB"), said("kv", number(0), 0), said("", number(0), 7), said("kv", number(1), 1)}
	s, _, _ := follow(t, l, events.SubscriberConfig{Endpoint: rawServer(t, bytes.Join(script, nil))})
	l.expect(t, "0 1")
	if got := s.Stats().Dropped["bad_topic"]; got != 1 {
		t.Errorf("%d messages are dropped, want 1", got)
	}
}

// TestTopicChanges: after a reconnect, another topic means another engine.
func TestTopicChanges(t *testing.T) {
	var n atomic.Int32
	l := newLedger()
	follow(t, l, events.SubscriberConfig{Endpoint: listener(t, "tcp://127.0.0.1:0", func(nc net.Conn) {
		i := int(n.Add(1))
		if i > 2 {
			return
		}
		_, _ = nc.Write(append(zmtptest.Hello(1, "PUB"), said(fmt.Sprint("kv-", i), number(uint64(6+i)), 6+i)...))
		l.wait(t, "the message", func(got string) bool { return strings.HasSuffix(got, fmt.Sprint(6+i)) })
		nc.Close()
	})})
	l.expect(t, "late 7 anew late 8")
}

// TestTopicChangesBetweenRuns: the topic of a stream is known in the next Run.
func TestTopicChangesBetweenRuns(t *testing.T) {
	script := func(topic string, seq int) []byte {
		return append(zmtptest.Hello(1, "PUB"), said(topic, number(uint64(seq)), seq)...)
	}
	l := newLedger()
	s, _, stop := follow(t, l, events.SubscriberConfig{Endpoint: rawServer(t, script("kv-1", 7), script("kv-2", 8))})
	l.expect(t, "late 7")
	stop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	l.expect(t, "late 7 anew late 8")
	cancel()
	wait(t, "Run to return", ended)
}

// TestJointNumbers: topics with joint numbers are reported once, live or replayed. If only one of
// them is subscribed to, the gaps are reported.
func TestJointNumbers(t *testing.T) {
	var all, one [][]byte
	for i := range 60 {
		m := said(fmt.Sprintf("kv@p%d@m", i%3), number(uint64(i)), i)
		if all = append(all, m); i%3 == 0 {
			one = append(one, m)
		}
	}
	for name, tt := range map[string]struct {
		script [][]byte
		topic  string
		want   string
	}{
		"all":    {all, "", "share their numbers"},
		"of one": {one, "kv@p0@m", "most messages of"},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan error, 100)
			l := newLedger()
			follow(t, l, events.SubscriberConfig{
				Endpoint: rawServer(t, append(zmtptest.Hello(1, "PUB"), bytes.Join(tt.script, nil)...)), Topic: tt.topic, OnError: func(err error) { told <- err },
			})
			l.expectEnd(t, "lost 55-56 57")
			n := 0
			for len(told) > 0 {
				if err := <-told; strings.Contains(err.Error(), tt.want) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("reported %d times", n)
			}
		})
	}
}

// TestReplayPassesOver: a replayed message that is unreadable or refused is lost once. The others
// are kept, and later messages do not wait.
func TestReplayPassesOver(t *testing.T) {
	t.Parallel()
	large := slices.Concat(clock(4), []byte(" "), make([]byte, 5000))
	for name, tt := range map[string]struct {
		fourth []byte
		refuse bool
		at     uint64 // the number of the message
		want   string
	}{
		"too large":     {large, false, 4, "0 1 2 3 bad 4 5 6 7"},
		"the last":      {large, false, 7, "0 1 2 3 4 5 6 bad 7"},
		"refused":       {clock(4), true, 4, "0 1 2 3 lost 4-4 5 6 7"},
		"the last, too": {clock(7), true, 7, "0 1 2 3 4 5 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
			for i := range uint64(8) {
				if i == tt.at {
					engine.Skip(tt.fourth)
				} else {
					engine.Skip(clock(int(i)))
				}
			}
			l := newLedger()
			l.fail = func(m events.Message) error {
				if tt.refuse && m.Seq == tt.at {
					return errors.New("one rank too many")
				}
				return nil
			}
			var told atomic.Int32
			began := time.Now()
			// The stream falls idle all the time.
			_, replays, _ := follow(t, l, events.SubscriberConfig{
				Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(),
				MaxMessage: 1000, Heartbeat: 30 * time.Millisecond,
				OnError: func(err error) {
					if strings.Contains(err.Error(), fmt.Sprintf("message %d ", tt.at)) {
						told.Add(1)
					}
				},
			})
			l.expectEnd(t, tt.want[2:])
			for range 2 {
				t.Logf("%+v", wait(t, "a replay", replays))
			}
			waitSubscriber(t, engine)
			start := time.Now()
			engine.Publish(clock(8))
			end := " 8"
			if tt.refuse && tt.at == 7 {
				end = " lost 7-7 8"
			}
			l.wait(t, tt.want+end, func(got string) bool {
				i := strings.LastIndex(got, "rewound")
				return strings.HasSuffix(got[max(i, 0):], tt.want+end)
			})
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("the next message waited for %v", d)
			}
			// Once, again after a replay of the whole life, and each second at most while a fault lasts.
			if n := told.Load(); n < 1 || n > 3+2*int32(time.Since(began)/time.Second) {
				t.Errorf("reported %d times", n)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if n := strings.Count(strings.Join(l.entries, " "), "rewound"); n > 1 {
				t.Errorf("rewound %d times: %s", n, l.entries)
			}
		})
	}
}

// TestReplayDiffers: a replay socket whose bytes differ from the published ones, always, each time
// in another way or only sometimes, is detected and not used. The connection stays.
func TestReplayDiffers(t *testing.T) {
	t.Parallel()
	const messages = 40
	for name, differs := range map[string]func(seq uint64) []byte{
		"always":          func(uint64) []byte { return []byte(" again") },
		"each time":       func(uint64) []byte { return fmt.Append(nil, " ", rand.Uint64()) },
		"every other one": func(seq uint64) []byte { return make([]byte, seq%2) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := publisher(t, fakeengine.PublisherConfig{})
			socket := newRouter(t, func(_ int, start uint64) (answer [][][]byte) {
				for seq := start; seq < engine.Next(); seq++ {
					m := reply(seq)
					m[2] = append(m[2], differs(seq)...)
					answer = append(answer, m)
				}
				return append(answer, end())
			})
			l := newLedger()
			var told atomic.Int32
			s, _, _ := follow(t, l, events.SubscriberConfig{
				Endpoint: engine.Endpoint(), Replay: socket.endpoint, Heartbeat: 10 * time.Millisecond, Silence: time.Second / 2,
				OnError: func(err error) {
					told.Add(1)
					if saysSilent(err) {
						t.Error(err)
					}
				},
			})
			tick := time.NewTicker(25 * time.Millisecond) // the connection falls idle in between
			defer tick.Stop()
			for i := range messages {
				waitSubscriber(t, engine)
				engine.Publish(clock(i))
				<-tick.C
			}
			// On a slow machine this Heartbeat ends connections. Messages published meanwhile are
			// lost, as the replay is not used. So more are published until the last one arrives.
			last := messages - 1
			for !l.endsSoon(strconv.Itoa(last)) && last < 2*messages {
				last++
				waitSubscriber(t, engine)
				engine.Publish(clock(last))
			}
			l.expectEnd(t, strconv.Itoa(last))
			if st := s.Stats(); st.Connects > messages/2 || told.Load() > messages/2 {
				t.Errorf("%d connections for %d messages, %d errors reported", st.Connects, last+1, told.Load())
			}
		})
	}
}
