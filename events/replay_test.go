package events_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// ledger is a sink that records, for each stream, the numbers of the messages applied, and losses.
type ledger struct {
	messageSink
	mu      sync.Mutex
	seqs    map[string]*sequence.Sequencer
	partial map[string]bool
	entries []string
	notes   chan events.Note           // if not nil
	fail    func(events.Message) error // called first for each message
	room    func(events.Message) bool  // reports whether the message was accepted
	changed chan struct{}              // closed at each new entry
}

func streamOf(pod, model, stream string) string { return pod + "/" + model + "/" + stream }

func newLedger() *ledger {
	return &ledger{seqs: make(map[string]*sequence.Sequencer), partial: make(map[string]bool), changed: make(chan struct{})}
}

func (l *ledger) of(pod, model, stream string) *sequence.Sequencer {
	key := streamOf(pod, model, stream)
	if l.seqs[key] == nil {
		l.seqs[key] = new(sequence.Sequencer)
	}
	return l.seqs[key]
}

func (l *ledger) write(format string, args ...any) {
	l.entries = append(l.entries, fmt.Sprintf(format, args...))
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *ledger) IngestMessage(m events.Message) (events.Receipt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		if err := l.fail(m); err != nil {
			return events.Receipt{}, err
		}
	}
	if m.Seq == math.MaxUint64 {
		l.write("unread")
		return events.Receipt{}, m.Err
	}
	s := l.of(m.Pod, m.Model, m.Stream)
	a := sequence.Arrival{Seq: m.Seq, Digest: sequence.Digest(m.Payload), Decoded: m.Err == nil, Replayed: m.Replayed}
	_, _ = fmt.Sscan(string(m.Payload), &a.Time)
	v := s.Check(a)
	if m.Hold && (v.Gap.Lost || v.Missed || v.Restarted || v.Doubtful && s.Ask()) {
		g := v.Gap
		if v.Missed {
			g = events.Gap{From: 0, To: m.Seq - 1, Lost: true}
		}
		l.write("hold %d", m.Seq)
		return events.Receipt{Held: true, Gap: g, Restarted: v.Restarted}, nil
	}
	s.Advance(a, v)
	key := streamOf(m.Pod, m.Model, m.Stream)
	if v.Restarted || v.Missed || v.Gap.Lost {
		l.partial[key] = v.Missed || v.Gap.Lost
	}
	switch {
	case v.Duplicate:
		return events.Receipt{Duplicate: true}, nil
	case v.Restarted:
		l.write("restart")
	case v.Missed:
		l.write("late")
	case v.Gap.Lost:
		l.write("lost %d-%d", v.Gap.From, v.Gap.To)
	}
	if m.Err != nil {
		l.partial[key] = true
		l.write("bad %d", m.Seq)
		return events.Receipt{Gap: v.Gap, Restarted: v.Restarted}, m.Err
	}
	l.write("%d", m.Seq)
	if l.room != nil && !l.room(m) {
		return events.Receipt{NoRoom: true, Gap: v.Gap, Restarted: v.Restarted}, errors.New("no room")
	}
	return events.Receipt{Applied: true, Gap: v.Gap, Restarted: v.Restarted}, nil
}

func (l *ledger) StreamNext(pod, model, stream string) events.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, _ := l.of(pod, model, stream).Next()
	return events.Position{Next: next, Partial: l.partial[streamOf(pod, model, stream)]}
}

func (l *ledger) StreamNote(pod, model, stream string, n events.Note) error {
	switch n {
	case events.NoteRestarted:
		l.forget(pod, model, stream, "anew")
	case events.NoteRewound:
		l.forget(pod, model, stream, "rewound")
	default:
		if l.notes != nil {
			l.notes <- n
		}
	}
	return nil
}

func (l *ledger) forget(pod, model, stream, as string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(pod, model, stream).Restart()
	delete(l.partial, streamOf(pod, model, stream))
	l.write("%s", as)
}

// expect waits until the entries are want.
func (l *ledger) expect(t *testing.T, want string) {
	t.Helper()
	l.wait(t, want, func(got string) bool { return got == want })
}

// expectEnd waits until the entries end in want.
func (l *ledger) expectEnd(t *testing.T, want string) {
	t.Helper()
	l.wait(t, "... "+want, func(got string) bool { return strings.HasSuffix(got, " "+want) })
}

// endsSoon reports whether the entries end in want within two seconds.
func (l *ledger) endsSoon(want string) bool {
	return l.within(2*time.Second, func(got string) bool { return strings.HasSuffix(got, " "+want) })
}

func (l *ledger) wait(t *testing.T, want string, ok func(got string) bool) {
	t.Helper()
	if !l.within(patience, ok) {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Fatalf("got  %s\nwant %s", strings.Join(l.entries, " "), want)
	}
}

// within reports whether ok holds within d.
func (l *ledger) within(d time.Duration, ok func(got string) bool) bool {
	deadline := time.After(d)
	for {
		l.mu.Lock()
		got, changed := strings.Join(l.entries, " "), l.changed
		l.mu.Unlock()
		if ok(got) {
			return true
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

// follow runs a Subscriber with a ledger until the test ends or stop is called.
func follow(t *testing.T, l *ledger, cfg events.SubscriberConfig) (s *events.Subscriber, replays chan events.Replay, stop func()) {
	t.Helper()
	replays = make(chan events.Replay, 1000)
	if !cfg.Bind {
		cfg.Pod, cfg.Model = "a", "m"
	}
	cfg.Backoff = 5 * time.Millisecond
	cfg.OnReplay(func(r events.Replay) { replays <- r })
	s, err := events.NewSubscriber(l, cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		wait(t, "Run to return", ended)
	})
	t.Cleanup(stop)
	return s, replays, stop
}

// clock is a payload: the time of a message.
func clock(n int) []byte { return fmt.Append(nil, n) }

// numbers lists from..to as a ledger does.
func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, " %d", i)
	}
	return strings.TrimSpace(b.String())
}

// TestReplayFillsGaps follows an engine through all kinds of gaps.
func TestReplayFillsGaps(t *testing.T) {
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0", Buffer: 100})
	now := 0
	publish := func(n int, how func([]byte)) {
		for range n {
			now++
			how(clock(now))
		}
	}
	sent := func(p []byte) { engine.Publish(p) }
	missed := func(p []byte) { engine.Skip(p) }
	l := newLedger()
	s, replays, stop := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	if r := wait(t, "a replay", replays); r.Messages != 0 || r.Err != nil || r.From != 0 || r.Restarted {
		t.Errorf("first contact: %+v", r)
	}
	waitSubscriber(t, engine)

	publish(5, sent)
	want := numbers(0, 2)
	publish(4, missed)
	publish(1, sent)
	want += " 3 4 hold 9 " + numbers(5, 9)
	l.expect(t, want)
	if r := wait(t, "a replay", replays); r.Messages != 6 || r.Err != nil || r.From != 5 {
		t.Errorf("a gap: %+v", r)
	}

	// After a short absence the last message is confirmed, and the others are replayed.
	stop()
	publish(5, missed)
	_, replays, stop = follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	want += " " + numbers(10, 14)
	l.expect(t, want)
	if r := wait(t, "a replay", replays); r.Messages != 6 || r.Err != nil || r.From != 10 || r.Restarted {
		t.Errorf("back again: %+v", r)
	}

	// After a long absence the engine has dropped the last message.
	stop()
	publish(150, missed)
	_, replays, stop = follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	want += " anew late " + numbers(65, 164)
	l.expect(t, want)
	if r := wait(t, "a replay", replays); r.Messages != 100 || r.Err != nil || !r.Restarted {
		t.Errorf("forgotten: %+v", r)
	}

	// The engine restarts and passes the last number, with an earlier clock.
	stop()
	must(t, engine.Restart())
	now = 0
	publish(60, missed)
	l2 := len(want)
	_, replays, stop = follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	want += " anew " + numbers(0, 59)
	l.expect(t, want)
	if r := wait(t, "a replay", replays); r.Messages != 60 || r.Err != nil || !r.Restarted {
		t.Errorf("restarted: %+v %s", r, want[l2:])
	}
	// Or it restarts and comes just as far: the number is there, with other bytes.
	stop()
	must(t, engine.Restart())
	now = 1000
	publish(70, missed)
	_, replays, _ = follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	want += " hold 59 anew " + numbers(0, 69)
	l.expect(t, want)
	if r := wait(t, "a replay", replays); r.Messages != 71 || r.Err != nil || !r.Restarted {
		t.Errorf("restarted further: %+v", r)
	}
	if st := s.Stats(); st.Replays != 2 || st.Replayed != 6 || st.ReplayErrors != 0 {
		t.Errorf("%+v", st)
	}
}

// TestReplayFirstContact: an engine that published before the first connection is connected to
// twice, as nothing showed that the replay socket is its own.
func TestReplayFirstContact(t *testing.T) {
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	for i := range 3 {
		engine.Skip(clock(i))
	}
	l := newLedger()
	s, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), Heartbeat: 250 * time.Millisecond})
	for _, want := range []events.Replay{{From: 0, Messages: 3}, {From: 3, Messages: 1}} {
		if r := wait(t, "a replay", replays); r.Messages != want.Messages || r.From != want.From || r.Err != nil || r.Restarted {
			t.Errorf("got %+v, want %+v", r, want)
		}
	}
	if st := s.Stats(); st.Connects != 2 {
		t.Errorf("%d connections", st.Connects)
	}
	engine.Publish(clock(3)) // perhaps before the subscription arrives
	l.expect(t, numbers(0, 3))
}

// router is a replay socket with scripted answers.
type router struct {
	endpoint string
	mu       sync.Mutex
	starts   []uint64 // the first number of each request
	answer   func(n int, start uint64) [][][]byte
	close    bool // after each answer
}

// newRouter answers request n, for the messages from start on, with answer(n, start).
func newRouter(t *testing.T, answer func(n int, start uint64) [][][]byte) *router {
	t.Helper()
	return newRouterAt(t, "tcp://127.0.0.1:0", answer)
}

func newRouterAt(t *testing.T, endpoint string, answer func(n int, start uint64) [][][]byte) *router {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ln, err := zmtp.Listen(ctx, endpoint)
	must(t, err)
	r := &router{endpoint: zmtp.Name(ln.Addr()), answer: answer}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(ctx, nc) })
		}
	})
	t.Cleanup(func() {
		cancel()
		ln.Close()
		all.Wait()
	})
	return r
}

func (r *router) serve(ctx context.Context, nc net.Conn) {
	c, err := zmtp.Handshake(ctx, nc, "asker", zmtp.Config{Type: zmtp.ROUTER})
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	for {
		m, err := c.Receive()
		if err != nil || len(m) != 2 || len(m[0]) != 0 || len(m[1]) != 8 {
			return
		}
		start := binary.BigEndian.Uint64(m[1])
		if start == events.ProbeStart {
			if c.Send(end()...) != nil {
				return
			}
			continue
		}
		r.mu.Lock()
		n := len(r.starts)
		r.starts = append(r.starts, start)
		r.mu.Unlock()
		for _, frames := range r.answer(n, start) {
			if c.Buffer(frames...) != nil {
				return
			}
		}
		if c.Flush() != nil || r.close {
			return
		}
	}
}

func (r *router) asked() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.starts)
}

// waitAsked waits for n requests.
func (r *router) waitAsked(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() string {
		if got := len(r.asked()); got < n {
			return fmt.Sprintf("%d requests, want %d", got, n)
		}
		return ""
	})
}

func reply(seq uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), clock(int(seq))}
}

func replyWithTopic(seq uint64) [][]byte {
	return [][]byte{nil, []byte("kv@a@m"), binary.BigEndian.AppendUint64(nil, seq), clock(int(seq))}
}

func end() [][]byte { return [][]byte{nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil} }

func endWithTopic() [][]byte {
	return [][]byte{nil, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil}
}

// TestReplayAnswers has an engine publish 0 and then 9, and answer in every way that engines and
// others do.
func TestReplayAnswers(t *testing.T) {
	// has answers like an engine with the messages seqs.
	has := func(reply func(uint64) [][]byte, end func() [][]byte, seqs ...uint64) func(int, uint64) [][][]byte {
		return func(_ int, start uint64) (answer [][][]byte) {
			for _, s := range seqs {
				if s >= start {
					answer = append(answer, reply(s))
				}
			}
			return append(answer, end())
		}
	}
	all := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, c := range map[string]struct {
		answer func(n int, start uint64) [][][]byte // for requests 1 and later; request 0 is the first contact
		close  bool
		timed  bool // the number of repeated requests depends on the clock
		want   string
		asked  []uint64 // the first requests
		failed string
		then   string // after 10 is published
	}{
		"without topic": {answer: has(reply, end, all...), want: numbers(1, 9), asked: []uint64{0}, then: "10"},
		"with topic":    {answer: has(replyWithTopic, endWithTopic, all...), want: numbers(1, 9), asked: []uint64{0}, then: "10"},
		"a hole that the next answer fills": {
			answer: func(n int, start uint64) [][][]byte {
				if n == 1 {
					return has(reply, end, 0, 1, 2, 5, 6, 7, 8, 9)(n, start)
				}
				return has(reply, end, all...)(n, start)
			},
			want: numbers(1, 9), asked: []uint64{0, 2}, then: "10",
		},
		"an answer that begins too early": {
			answer: func(n int, start uint64) [][][]byte {
				if n == 1 {
					return has(reply, end, 0, 1, 2, 5)(n, start)
				}
				return has(reply, end, all...)(n, 0)
			},
			want: numbers(1, 9), asked: []uint64{0, 2}, then: "10",
		},
		"more than is waited for": {answer: has(reply, end, append(slices.Clone(all), 11, 12)...), want: numbers(1, 9), asked: []uint64{0}, then: "10"},
		"numbers that the engine never had": {
			answer: has(reply, end, 0, 1, 2, 5, 6, 9),
			want:   "1 2 lost 3-4 5 6 lost 7-8 9", asked: []uint64{0, 2, 6}, then: "10",
		},
		"no end": {
			answer: func(n int, start uint64) [][][]byte {
				whole := has(reply, end, all...)(n, start)
				return whole[:min(len(whole)-1, 3)]
			},
			timed: true,
			want:  numbers(1, 9), asked: []uint64{0, 2, 4, 6, 8}, then: "10",
		},
		"cut off": {
			answer: func(n int, start uint64) [][][]byte { return has(reply, end, all...)(n, start)[:2] },
			close:  true,
			want:   numbers(1, 9), asked: []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8}, then: "10",
		},
		"older ones, and twice": {
			answer: func(int, uint64) [][][]byte {
				return [][][]byte{reply(0), reply(1), reply(0), reply(1), reply(2), reply(2), reply(3), reply(4), reply(5), reply(6), reply(7), reply(8), reply(9), end()}
			},
			want: numbers(1, 9), asked: []uint64{0}, then: "10",
		},
		"the start is forgotten":     {answer: has(reply, end, 6, 7, 8, 9), want: "anew late " + numbers(6, 9), asked: []uint64{0, 0, 0, 9}, failed: "does not have", then: "10"},
		"nothing":                    {answer: has(reply, end), want: "anew", asked: []uint64{0, 0, 0}, failed: "does not have", then: "hold 10 late 10"},
		"one answer is enough to go": {answer: has(reply, end, 0, 9), want: "lost 1-8 9", asked: []uint64{0}, then: "10"},
		// Messages that the replaying engine does not have are taken for another engine's, once.
		"not all": {
			answer: has(reply, end, 0, 1, 2, 3), want: "1 2 3", asked: []uint64{0, 3, 3, 3, 3}, failed: "does not have",
			then: "hold 10 lost 4-9 10",
		},
		"silence": {
			answer: func(int, uint64) [][][]byte { return nil },
			timed:  true,
			want:   "lost 1-8 9", asked: []uint64{0}, failed: "does not answer", then: "10",
		},
		"no answer to a request": {
			answer: func(int, uint64) [][][]byte { return [][][]byte{{[]byte("what?")}} },
			timed:  true,
			want:   "lost 1-8 9", asked: []uint64{0}, failed: "does not belong to a replay", then: "10",
		},
		"a number of seven bytes": {
			answer: func(int, uint64) [][][]byte { return [][][]byte{{nil, make([]byte, 7), nil}} },
			timed:  true,
			want:   "lost 1-8 9", asked: []uint64{0}, failed: "does not belong to a replay", then: "10",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ten atomic.Bool // 10 was published
			r := newRouter(t, func(n int, start uint64) [][][]byte {
				if n == 0 {
					return [][][]byte{end()}
				}
				answer := c.answer(n, start)
				if ten.Load() && start >= 9 && len(answer) > 0 {
					answer = slices.Insert(answer, len(answer)-1, reply(10))
				}
				return answer
			})
			r.close = c.close
			engine := publisher(t, fakeengine.PublisherConfig{})
			l := newLedger()
			timeout := patience
			if c.timed {
				timeout = 300 * time.Millisecond
			}
			_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint, ReplayTimeout: timeout})
			wait(t, "the first replay", replays)
			waitSubscriber(t, engine)
			engine.Publish(clock(0))
			for seq := range 8 {
				engine.Skip(clock(seq + 1))
			}
			engine.Publish(clock(9))
			l.expect(t, "0 hold 9 "+c.want)
			done := wait(t, "a replay", replays)
			if c.failed == "" && done.Err != nil || c.failed != "" && (done.Err == nil || !strings.Contains(done.Err.Error(), c.failed)) {
				t.Errorf("%+v", done)
			}
			left := 0 // connections
			if strings.HasPrefix(c.want, "anew") {
				left = 2
			} else if name == "not all" {
				left = 1
			}
			for range left {
				wait(t, "a replay on a new connection", replays)
			}
			waitSubscriber(t, engine)
			got := r.asked()[1:]
			if c.timed {
				if got = slices.Compact(got); done.Attempts < 2 {
					t.Errorf("requested once: %+v", done)
				}
			}
			if len(got) < len(c.asked) || !slices.Equal(got[:len(c.asked)], c.asked) {
				t.Errorf("replays requested from %v, want from %v: %+v", got, c.asked, done)
			}
			ten.Store(true)
			engine.Publish(clock(10))
			want := "0 hold 9 " + c.want + " " + c.then
			l.wait(t, want, func(got string) bool { // a late look has the replay of one more connection
				return got == want || name == "not all" && strings.HasPrefix(got, want+" rewound")
			})
		})
	}
}

// TestReplayNothingKept: an engine that keeps nothing loses nothing while its connection stays, so
// nothing is reported.
func TestReplayNothingKept(t *testing.T) {
	r := newRouter(t, func(int, uint64) [][][]byte { return [][][]byte{end()} })
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	s, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: engine.Endpoint(), Replay: r.endpoint, Heartbeat: 250 * time.Millisecond,
		OnError: func(err error) { t.Error(err) },
	})
	wait(t, "the first replay", replays)
	waitSubscriber(t, engine)
	for i := range 5 {
		engine.Publish(clock(i))
		l.expect(t, numbers(0, i))
		if i == 0 {
			wait(t, "a replay while the connection is idle", replays)
		}
	}
	if st := s.Stats(); st.Connects != 1 {
		t.Errorf("%d connections", st.Connects)
	}
}

// TestReplayWithoutEnd: an engine that always has one more message to replay does not block its
// live messages for ever.
func TestReplayWithoutEnd(t *testing.T) {
	t.Parallel()
	r := newRouter(t, func(_ int, start uint64) [][][]byte {
		return [][][]byte{reply(start), reply(start + 1)} // the last one, and one more
	})
	engine := publisher(t, fakeengine.PublisherConfig{})
	// The limit is 150 times the timeout. A machine that is too slow for one gets a longer one.
	for timeout := 10 * time.Millisecond; timeout < time.Second; timeout *= 2 {
		s, replays, stop := follow(t, newLedger(), events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint, ReplayTimeout: timeout})
		got := wait(t, "a replay", replays)
		stop()
		st := s.Stats()
		if got.Err == nil || got.Restarted || st.ReplayErrors == 0 {
			t.Fatalf("%+v, %+v", got, st)
		}
		if strings.Contains(got.Err.Error(), "the answer does not end") && st.Replayed >= 10 {
			return
		}
		t.Logf("timeout %v: %v", timeout, got.Err)
	}
	t.Error("every answer was too slow")
}

// TestReplaySinkErrors: messages that the sink did not accept are requested again.
func TestReplaySinkErrors(t *testing.T) {
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	for i := range 5 {
		engine.Skip(clock(i))
	}
	l := newLedger()
	busy := errors.New("busy")
	failures := 0
	l.fail = func(m events.Message) error {
		if m.Seq == 2 && failures < 2 {
			failures++
			return busy
		}
		return nil
	}
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	l.expect(t, numbers(0, 4))
	if r := wait(t, "a replay", replays); r.Err != nil || r.Attempts != 3 || r.Messages != 7 {
		t.Errorf("%+v", r)
	}
}

// TestReplayWithoutRoom: messages that the sink has no room for are not requested again.
func TestReplayWithoutRoom(t *testing.T) {
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	for i := range 5 {
		engine.Skip(clock(i))
	}
	l, errs := newLedger(), 0
	l.room = func(m events.Message) bool {
		if m.Seq%2 == 0 {
			errs++
		}
		return m.Seq%2 != 0
	}
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()})
	l.expect(t, numbers(0, 4))
	if r := wait(t, "a replay", replays); r.Err != nil || r.Attempts != 1 || r.Messages != 5 || errs != 3 {
		t.Errorf("%+v, %d errors", r, errs)
	}
}

// TestReplayConfirmsLater: the replay socket of a restarted engine is unreachable when the
// connection is new. When a gap has it asked again, it does not fill the gap like the old engine.
func TestReplayConfirmsLater(t *testing.T) {
	t.Parallel()
	const old, now = 1000, 2000 // times of message 0
	var answers func(n int, start uint64) [][][]byte
	has := func(clockOf0, to int) func(int, uint64) [][][]byte {
		return func(_ int, start uint64) (answer [][][]byte) {
			for s := start; s < uint64(to); s++ {
				answer = append(answer, [][]byte{nil, binary.BigEndian.AppendUint64(nil, s), clock(clockOf0 + int(s))})
			}
			return append(answer, end())
		}
	}
	var mu sync.Mutex
	set := func(f func(int, uint64) [][][]byte) {
		mu.Lock()
		defer mu.Unlock()
		answers = f
	}
	r := newRouter(t, func(n int, start uint64) [][][]byte {
		mu.Lock()
		defer mu.Unlock()
		return answers(n, start)
	})
	set(has(old, 5))
	engine := publisher(t, fakeengine.PublisherConfig{})
	l := newLedger()
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint, ReplayTimeout: 250 * time.Millisecond})
	l.expect(t, numbers(0, 4))
	wait(t, "the first replay", replays)
	waitSubscriber(t, engine)

	set(func(int, uint64) [][][]byte { return nil }) // silent
	must(t, engine.Restart())
	wait(t, "a replay in vain", replays)
	waitSubscriber(t, engine)
	set(has(now, 10))
	for i := range 9 {
		engine.Skip(clock(now + i))
	}
	engine.Publish(clock(now + 9))
	// Message 9 is not held, unless the engine has answered again before.
	l.wait(t, "all of the new life", func(got string) bool {
		return strings.HasSuffix(got, "anew "+numbers(0, 9)) || strings.HasSuffix(got, "rewound "+numbers(0, 9))
	})
}

// TestReplayBound: engines that connect to a bound subscriber are asked for replays at the sockets
// that ReplayOf returns.
func TestReplayBound(t *testing.T) {
	l := newLedger()
	listening := make(chan string, 1)
	var mu sync.Mutex
	sockets := make(map[string]string)
	_, replays, _ := follow(t, l, events.SubscriberConfig{
		Endpoint: "tcp://127.0.0.1:0", Bind: true, OnListen: func(e string) { listening <- e },
		ParseTopic: func(topic string) (string, string, error) { return strings.TrimPrefix(topic, "pod-"), "m", nil },
		ReplayOf: func(pod, peer string) string {
			if !strings.HasPrefix(peer, "tcp://127.0.0.1:") {
				t.Errorf("peer %q", peer)
			}
			mu.Lock()
			defer mu.Unlock()
			return sockets[pod]
		},
	})
	endpoint := wait(t, "the listener", listening)
	engine := publisher(t, fakeengine.PublisherConfig{Endpoint: endpoint, Connect: true, Topic: "pod-x", Replay: "tcp://127.0.0.1:0"})
	mu.Lock()
	sockets["x"] = engine.ReplayEndpoint()
	mu.Unlock()
	engine.Skip(clock(0))
	engine.Skip(clock(1))
	waitSubscriber(t, engine)
	engine.Publish(clock(2))
	l.expect(t, "0 1 2")
	if r := wait(t, "a replay", replays); r.Messages != 3 {
		t.Errorf("%+v", r)
	}
	engine.Skip(clock(3))
	engine.Publish(clock(4))
	l.expect(t, "0 1 2 hold 4 3 4")
	must(t, engine.Restart())
	waitSubscriber(t, engine)
	for i := range 10 {
		engine.Skip(clock(20 + i))
	}
	engine.Publish(clock(30))
	l.expect(t, "0 1 2 hold 4 3 4 hold 4 anew "+numbers(0, 10))
}

// TestReplayStopsBeforeAMessage: if Run ends while a message waits for an answer, the message is
// not applied, so no earlier one is lost. The next Run requests all of them.
func TestReplayStopsBeforeAMessage(t *testing.T) {
	t.Parallel()
	for name, heartbeat := range map[string]time.Duration{"requested in a silence": 50 * time.Millisecond, "requested for the message": time.Hour} {
		t.Run(name, func(t *testing.T) {
			engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
			l := newLedger()
			l.notes = make(chan events.Note, 10_000)
			s, replays, stop := follow(t, l, events.SubscriberConfig{
				Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), ReplayTimeout: time.Hour, Heartbeat: heartbeat,
				OnError: func(err error) { t.Errorf("reported: %v", err) },
			})
			wait(t, "the first replay", replays)
			waitSubscriber(t, engine)
			engine.Publish(clock(0))
			l.expect(t, "0")
			asked := make(chan struct{}, 100)
			engine.LoseReplies(func(int, int) bool { asked <- struct{}{}; return true })
			want := "0"
			if heartbeat < time.Hour {
				wait(t, "a request", asked)
			} else {
				want += " hold 2"
			}
			engine.Skip(clock(1))
			engine.Publish(clock(2))
			if heartbeat < time.Hour {
				for wait(t, "a note", l.notes) != events.NoteHeld {
				}
			} else {
				wait(t, "a request", asked)
			}
			stop()
			l.expect(t, want)

			engine.LoseReplies(nil)
			for range len(l.notes) {
				<-l.notes
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			l.expect(t, want+" 1 2")
			cancel()
			wait(t, "Run to return", ended)
			for range len(l.notes) {
				if n := <-l.notes; n == events.NoteReplay || n == events.NoteNoReplay {
					t.Errorf("note %v: the socket has always answered", n)
				}
			}
		})
	}
}

// FuzzReplay has an engine answer anything: the replay ends, and nothing is applied twice or out of
// order.
func FuzzReplay(f *testing.F) {
	f.Add([]byte{1, 2, 3, 255}, []byte{4, 255})
	f.Add([]byte{1, 3, 3, 2, 0, 9}, []byte{})
	f.Add([]byte{255}, []byte{9})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := newRouter(t, func(n int, start uint64) (answer [][][]byte) {
			script := [][]byte{{255}, append([]byte{0}, first...), append([]byte{0}, second...)}[min(n, 2)]
			for _, b := range script[:min(len(script), 50)] {
				switch b {
				case 255:
					answer = append(answer, end())
				case 254:
					answer = append(answer, [][]byte{nil})
				default:
					answer = append(answer, reply(uint64(b)))
				}
			}
			return answer
		})
		engine := publisher(t, fakeengine.PublisherConfig{})
		l := newLedger()
		_, replays, stop := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: r.endpoint, ReplayTimeout: 20 * time.Millisecond})
		wait(t, "the first replay", replays)
		waitSubscriber(t, engine)
		engine.Publish(clock(0))
		engine.Skip(clock(1))
		engine.Publish(clock(2))
		wait(t, "a replay", replays)
		engine.Publish(clock(3))
		last := -1
		for deadline := time.After(patience); last < 2; {
			l.mu.Lock()
			last = -1
			for _, e := range l.entries {
				if e == "anew" || e == "rewound" {
					last = -1
				}
				var n int
				if _, err := fmt.Sscan(e, &n); err != nil {
					continue
				}
				if n <= last {
					t.Errorf("%d behind %d: %v", n, last, l.entries)
				}
				last = n
			}
			changed := l.changed
			l.mu.Unlock()
			if last >= 2 {
				break
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%v", l.entries)
			}
		}
		stop()
		if strings.Contains(strings.Join(l.entries, " "), "restart") {
			t.Fatalf("%v", l.entries)
		}
	})
}
