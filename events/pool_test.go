package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
)

// clerk is a sink that records its calls for each pod, in order, and checks that a pod has one call
// at a time.
type clerk struct {
	t       testing.TB
	gate    chan struct{}                // nil: open; else each call waits for a value, or until it is closed
	gated   string                       // the pod that gate is for; "": all
	before  func(events.Message)         // called first
	refuse  func(m events.Message) error // of messages; nil: none
	fail    error                        // the result of RemovePod, RemoveStream and NoteRestarted
	most    int64                        // concurrent calls allowed
	entered chan string                  // gets each call, if there is room

	busy atomic.Int64
	mu   sync.Mutex
	in   map[string]bool
	said map[string][]string
}

func newClerk(t testing.TB) *clerk {
	return &clerk{t: t, most: 1 << 40, in: map[string]bool{}, said: map[string][]string{}, entered: make(chan string, 1000)}
}

func (c *clerk) take(pod, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	select {
	case c.entered <- pod + " " + text:
	default:
	}
	if n := c.busy.Add(1); n > c.most {
		c.t.Errorf("%d calls at once", n)
	}
	defer c.busy.Add(-1)
	c.mu.Lock()
	if c.in[pod] {
		c.t.Errorf("pod %s is served twice", pod)
	}
	c.in[pod] = true
	c.said[pod] = append(c.said[pod], text)
	c.mu.Unlock()
	if c.gate != nil && (c.gated == "" || c.gated == pod) {
		<-c.gate
	} else {
		runtime.Gosched()
	}
	c.mu.Lock()
	delete(c.in, pod)
	c.mu.Unlock()
}

var clerkReceipt = events.Receipt{Held: true, Gap: events.Gap{From: 3, To: 4, Lost: true}}

func (c *clerk) IngestMessage(m events.Message) (events.Receipt, error) {
	if c.before != nil {
		c.before(m)
	}
	flag := ""
	if m.Replayed {
		flag = "R"
	}
	if !bytes.Equal(m.Payload, poolPayload(m)) {
		flag += " with another's payload"
	}
	c.take(m.Pod, "%s%d%s", m.Stream, m.Seq, flag)
	switch {
	case m.Hold:
		return clerkReceipt, errClerk
	case c.refuse != nil:
		return events.Receipt{}, c.refuse(m)
	}
	return events.Receipt{Applied: true}, nil
}

func (c *clerk) StreamNext(pod, _, stream string) events.Position {
	c.take(pod, "%s?", stream)
	return events.Position{Next: 13}
}

func (c *clerk) StreamNote(pod, _, stream string, n events.Note) error {
	switch n {
	case events.NoteRestarted:
		c.take(pod, "%s restarted", stream)
		return c.fail
	case events.NoteRewound:
		c.take(pod, "%s rewound", stream)
		return nil
	}
	c.take(pod, "%s note %d", stream, n)
	return nil
}

func (c *clerk) RemovePod(pod string) error {
	c.take(pod, "removed")
	return c.fail
}

func (c *clerk) RemoveStream(pod, _, stream string) error {
	c.take(pod, "%s removed", stream)
	return c.fail
}

var errClerk = errors.New("the clerk is tired")

// expect checks all calls for a pod.
func (c *clerk) expect(pod, want string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.said[pod], ", "); got != want {
		c.t.Errorf("%s got %q, want %q", pod, got, want)
	}
}

// await waits until the clerk has this call.
func (c *clerk) await(what string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		select {
		case got := <-c.entered:
			if got == what {
				return
			}
		case <-ctx.Done():
			c.t.Fatalf("%q never came", what)
		}
	}
}

// poolPayload returns the payload of a test message, as long as the one it has.
func poolPayload(m events.Message) []byte {
	h := fnv.New64a()
	fmt.Fprint(h, m.Pod, m.Model, m.Stream, m.Seq)
	return bytes.Repeat([]byte{byte(h.Sum64())}, len(m.Payload))
}

func poolMessage(pod, stream string, seq uint64, n int) events.Message {
	m := events.Message{Pod: pod, Model: "m", Stream: stream, Seq: seq, Payload: make([]byte, n)}
	m.Payload = poolPayload(m)
	return m
}

func newPool(t testing.TB, sink events.Sink, cfg events.PoolConfig) *events.Pool {
	t.Helper()
	p, err := events.NewPool(sink, cfg)
	must(t, err)
	return p
}

func closePool(t testing.TB, p *events.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	must(t, p.Close(ctx))
	if s := p.Stats(); s.Messages != 0 || s.Bytes != 0 {
		t.Errorf("after Close there are %d messages of %d bytes", s.Messages, s.Bytes)
	}
}

// offered is the number of messages that a Pool has accepted.
func offered(s events.PoolStats) uint64 { return uint64(s.Messages) + s.Delivered + s.Dropped }

func mustOffer(t testing.TB, p *events.Pool, ms ...events.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, m := range ms {
		must(t, p.Offer(ctx, m))
	}
}

func poolUntil(t testing.TB, p *events.Pool, what string, ok func(events.PoolStats) bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(p.Stats()); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: never; the counts are %+v", what, p.Stats())
		}
	}
}

// TestPoolAgainstModel offers from several goroutines to a randomly slow sink, with bounds that are
// always reached: each message comes, in the order of its stream.
func TestPoolAgainstModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runPoolModel(t, seed) })
	}
}

func runPoolModel(t *testing.T, seed uint64) {
	const pods, streams, messages = 9, 3, 150
	c := newClerk(t)
	cfg := events.PoolConfig{Concurrency: 3, MaxMessages: 40, MaxBytes: 20_000}
	c.most = int64(cfg.Concurrency)
	var p *events.Pool
	var most atomic.Int64
	c.before = func(m events.Message) {
		s := p.Stats()
		if s.Messages > cfg.MaxMessages || s.Bytes > cfg.MaxBytes {
			t.Errorf("%d messages of %d bytes are waiting", s.Messages, s.Bytes)
		}
		most.Store(max(most.Load(), int64(s.Messages)))
		for range m.Seq * (seed + 7) % 50 {
			runtime.Gosched()
		}
	}
	p = newPool(t, c, cfg)

	largest := []int{1500, 100}[seed%2] // so that either bound is reached first
	var producers sync.WaitGroup
	for pod := range pods {
		for st := range streams {
			producers.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(pod*streams+st)))
				for seq := range uint64(messages) {
					m := poolMessage(fmt.Sprint("pod", pod), string(rune('s'+st)), seq, r.IntN(largest))
					m.Replayed = seq%5 == 0
					mustOffer(t, p, m)
					clear(m.Payload) // Offer has copied it
				}
			})
		}
	}
	producers.Wait()
	closePool(t, p)

	for pod := range pods {
		next := map[string]int{}
		for _, got := range c.said[fmt.Sprint("pod", pod)] {
			stream := got[:1]
			want := fmt.Sprint(stream, next[stream])
			if next[stream]%5 == 0 {
				want += "R"
			}
			if got != want {
				t.Fatalf("pod%d: %s, want %s", pod, got, want)
			}
			next[stream]++
		}
		if want := map[string]int{"s": messages, "t": messages, "u": messages}; !maps.Equal(next, want) {
			t.Errorf("pod%d got %v messages, want %v", pod, next, want)
		}
	}
	s := p.Stats()
	if s.Delivered != pods*streams*messages || s.Dropped+s.Malformed+s.Errors != 0 {
		t.Errorf("%+v", s)
	}
	if of, bytes := p.PodMessages(); bytes != 0 || slices.Max(slices.Collect(maps.Values(of))) != 0 {
		t.Errorf("the pods have %v, %d bytes", of, bytes)
	}
	if s.Waited < 20 || most.Load() < 10 {
		t.Errorf("the bounds were hardly reached: %d waits, at most %d messages", s.Waited, most.Load())
	}
}

func TestPoolBlockedPodDelaysNoOther(t *testing.T) {
	c := newClerk(t)
	c.gate, c.gated = make(chan struct{}), "stuck"
	p := newPool(t, c, events.PoolConfig{Concurrency: 2, MaxMessages: 16, MaxBytes: 1000})
	const flood = 100
	var stuck, others sync.WaitGroup
	stuck.Go(func() {
		for seq := range uint64(flood) {
			mustOffer(t, p, poolMessage("stuck", "s", seq, 20))
		}
	})
	poolUntil(t, p, "the producer waits", func(s events.PoolStats) bool { return s.Waited == 1 })
	for i := range 8 {
		others.Go(func() {
			for seq := range uint64(200) {
				mustOffer(t, p, poolMessage(fmt.Sprint("pod", i), "s", seq, 20))
			}
		})
	}
	others.Wait()
	poolUntil(t, p, "the others are through", func(s events.PoolStats) bool { return s.Delivered == 8*200 })
	close(c.gate)
	stuck.Wait()
	closePool(t, p)
	if n := len(c.said["stuck"]); n != flood {
		t.Errorf("the stuck pod got %d messages", n)
	}
}

// TestPoolShares: a pod may use half of the room that the others leave.
func TestPoolShares(t *testing.T) {
	for _, tt := range []struct {
		name        string
		cfg         events.PoolConfig
		size        int
		first, then int
	}{
		{"messages", events.PoolConfig{MaxMessages: 100}, 1, 50, 25},
		{"bytes", events.PoolConfig{MaxBytes: 1000}, 10, 50, 25},
		{"odd bytes", events.PoolConfig{MaxBytes: 1000}, 300, 2, 1},
		{"one", events.PoolConfig{MaxMessages: 1}, 1, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClerk(t)
			c.gate = make(chan struct{})
			p := newPool(t, c, tt.cfg)
			done, cancel := context.WithCancel(context.Background())
			cancel()
			for _, pod := range []struct {
				name string
				want int
			}{{"a", tt.first}, {"b", tt.then}} {
				n := 0
				for p.Offer(done, poolMessage(pod.name, "s", uint64(n), tt.size)) == nil {
					n++
				}
				if n != pod.want {
					t.Errorf("%s may have %d messages, want %d", pod.name, n, pod.want)
				}
			}
			close(c.gate)
			closePool(t, p)
		})
	}
}

// TestPoolTurns: with Concurrency 1, pods with a long queue let others in between.
// in between.
func TestPoolTurns(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	var order []string
	c.before = func(m events.Message) { order = append(order, m.Pod) }
	p := newPool(t, c, events.PoolConfig{Concurrency: 1})
	for seq := range uint64(100) {
		mustOffer(t, p, poolMessage("a", "s", seq, 1))
	}
	mustOffer(t, p, poolMessage("b", "s", 0, 1))
	close(c.gate)
	closePool(t, p)
	if i := slices.Index(order, "b"); i != 32 || len(order) != 101 {
		t.Errorf("b came as number %d of %d", i, len(order))
	}
}

// TestPoolRemembersWhatItOwes: a restart still to be sent survives any number of new names.
func TestPoolRemembersWhatItOwes(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{})
	mustOffer(t, p, poolMessage("p", "s", 0, 1))
	c.fail = errClerk
	if err := p.Sink().RemovePod("p"); err != errClerk {
		t.Error(err)
	}
	c.fail = nil
	said := len(c.said["p"]) // with or without message 0
	for i := range 5000 {
		mustOffer(t, p, poolMessage(fmt.Sprint("q", i), "s", 0, 1))
	}
	mustOffer(t, p, poolMessage("p", "s", 1, 1))
	closePool(t, p)
	if got := strings.Join(c.said["p"][said:], ", "); got != "s restarted, s1" {
		t.Error(got)
	}
}

func TestPoolPoison(t *testing.T) {
	c := newClerk(t)
	c.refuse = func(m events.Message) error {
		switch m.Seq {
		case 1, 2:
			return fmt.Errorf("message %d: %w", m.Seq, events.ErrMalformed)
		case 4:
			return errors.New("no connection")
		}
		return nil
	}
	var reported []string
	p := newPool(t, c, events.PoolConfig{OnError: func(m events.Message, err error) {
		if !bytes.Equal(m.Payload, poolPayload(m)) {
			t.Errorf("the hook got the payload %q", m.Payload)
		}
		reported = append(reported, fmt.Sprint(m.Seq, errors.Is(err, events.ErrMalformed)))
	}})
	for seq := range uint64(6) {
		mustOffer(t, p, poolMessage("p", "s", seq, 9))
	}
	closePool(t, p)
	c.expect("p", "s0, s1, s2, s3, s4, s5")
	if want := []string{"1 true", "2 true", "4 false"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if s := p.Stats(); s.Malformed != 2 || s.Errors != 1 || s.Delivered != 6 {
		t.Errorf("%+v", s)
	}
}

func TestPoolCancel(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	p := newPool(t, c, events.PoolConfig{MaxMessages: 1000, MaxBytes: 40})
	mustOffer(t, p, poolMessage("p", "s", 0, 15))
	ctx, cancel := context.WithCancel(t.Context())
	failed, taken := make(chan error), make(chan error)
	go func() { failed <- p.Offer(ctx, poolMessage("p", "s", 1, 20)) }()
	poolUntil(t, p, "it waits", func(s events.PoolStats) bool { return s.Waited == 1 })
	go func() { taken <- p.Offer(t.Context(), poolMessage("p", "t", 0, 5)) }()
	poolUntil(t, p, "it waits behind it", func(s events.PoolStats) bool { return s.Waited == 2 })
	cancel()
	if err := wait(t, "the cancelled caller", failed); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	// The other one waited only for it.
	if err := wait(t, "the other caller", taken); err != nil {
		t.Error(err)
	}
	close(c.gate)
	closePool(t, p)
	c.expect("p", "s0, t0")
}

func TestPoolClose(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	p := newPool(t, c, events.PoolConfig{MaxMessages: 6})
	mustOffer(t, p, poolMessage("p", "s", 0, 1), poolMessage("p", "s", 1, 1), poolMessage("p", "s", 2, 1))
	late, closed := make(chan error), make(chan error)
	for range 3 {
		go func() { late <- p.Offer(t.Context(), poolMessage("p", "t", 0, 1)) }()
	}
	poolUntil(t, p, "three wait", func(s events.PoolStats) bool { return s.Waited == 3 })
	for range 2 {
		go func() { closed <- p.Close(t.Context()) }()
	}
	for range 3 {
		if err := wait(t, "a caller", late); !errors.Is(err, events.ErrPoolClosed) {
			t.Errorf("error %v", err)
		}
	}
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	default:
	}
	close(c.gate)
	for range 2 {
		if err := wait(t, "Close", closed); err != nil {
			t.Error(err)
		}
	}
	closePool(t, p)
	c.expect("p", "s0, s1, s2")
	if err := p.Offer(t.Context(), poolMessage("p", "s", 3, 1)); !errors.Is(err, events.ErrPoolClosed) {
		t.Errorf("Offer after Close: %v", err)
	}
}

func TestPoolCloseInTime(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	p := newPool(t, c, events.PoolConfig{})
	for seq := range uint64(6) {
		mustOffer(t, p, poolMessage("p", "s", seq, 1))
	}
	c.await("p s0")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closed := make(chan error)
	go func() { closed <- p.Close(ctx) }()
	poolUntil(t, p, "dropped", func(s events.PoolStats) bool { return s.Dropped == 5 })
	close(c.gate)
	err := wait(t, "Close", closed)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "5 messages") {
		t.Errorf("error %v", err)
	}
	if again := p.Close(t.Context()); !errors.Is(again, err) {
		t.Errorf("the second Close: %v", again)
	}
	c.expect("p", "s0")
}

// TestPoolCloseUnderLoad: a message that Offer accepted is delivered or counted, whenever Close
// comes.
func TestPoolCloseUnderLoad(t *testing.T) {
	for i := range 20 {
		c := newClerk(t)
		p := newPool(t, c, events.PoolConfig{MaxMessages: 8})
		var taken atomic.Uint64
		var producers sync.WaitGroup
		for pod := range 4 {
			producers.Go(func() {
				for seq := uint64(0); ; seq++ {
					err := p.Offer(t.Context(), poolMessage(fmt.Sprint(pod), "s", seq, 1))
					if err != nil {
						if !errors.Is(err, events.ErrPoolClosed) {
							t.Error(err)
						}
						return
					}
					taken.Add(1)
				}
			})
		}
		poolUntil(t, p, "some are through", func(s events.PoolStats) bool { return s.Delivered > uint64(i) })
		ctx, cancel := context.WithCancel(t.Context())
		if i%2 == 0 {
			cancel()
		}
		if err := p.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cancel()
		producers.Wait()
		delivered := uint64(0)
		for _, said := range c.said {
			delivered += uint64(len(said))
		}
		if s := p.Stats(); s.Delivered != delivered || offered(s) != taken.Load() || s.Messages != 0 {
			t.Errorf("%d were taken, %d delivered: %+v", taken.Load(), delivered, s)
		}
	}
}

// TestPoolForgetsNames: peers can invent pods and streams. A pod in service is not evicted.
func TestPoolForgetsNames(t *testing.T) {
	c := newClerk(t)
	c.gate, c.gated = make(chan struct{}), "busy"
	p := newPool(t, c, events.PoolConfig{})
	mustOffer(t, p, poolMessage("busy", "s", 0, 1))
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	long := strings.Repeat("x", 2000)
	for i := range 10_000 {
		name := fmt.Sprint(long, i)
		c.mu.Lock()
		clear(c.said)
		c.mu.Unlock()
		mustOffer(t, p, events.Message{Pod: name, Model: "m"}, events.Message{Pod: "p", Model: name})
		if i%20 == 0 { // else they stay busy
			poolUntil(t, p, "delivered", func(s events.PoolStats) bool { return s.Messages == 1 })
		}
	}
	if pods, _ := p.PodMessages(); len(pods) > 2048 {
		t.Errorf("%d pods are kept", len(pods))
	}
	for len(c.entered) > 0 {
		<-c.entered
	}
	if grown := int64(heap() - before); grown > 10<<20 {
		t.Errorf("%d bytes are kept of names of 40 MB", grown)
	}
	mustOffer(t, p, poolMessage("busy", "s", 1, 1))
	if of, _ := p.PodMessages(); of["busy"] != 2 {
		t.Errorf("the busy pod has %d messages, want 2", of["busy"])
	}
	close(c.gate)
	closePool(t, p)
}

func TestPoolRefuses(t *testing.T) {
	c := newClerk(t)
	for _, tt := range []struct {
		sink events.Sink
		cfg  events.PoolConfig
		want string
	}{
		{nil, events.PoolConfig{}, "the sink is nil"},
		{c, events.PoolConfig{Concurrency: -1}, "must not be negative"},
		{c, events.PoolConfig{MaxMessages: -1}, "must not be negative"},
		{c, events.PoolConfig{MaxBytes: -1}, "must not be negative"},
	} {
		if p, err := events.NewPool(tt.sink, tt.cfg); p != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	p := newPool(t, c, events.PoolConfig{MaxBytes: 10})
	held := poolMessage("p", "s", 0, 1)
	held.Hold = true
	if err := p.Offer(t.Context(), held); err == nil || !strings.Contains(err.Error(), "Hold") {
		t.Errorf("Hold: %v", err)
	}
	if err := p.Offer(t.Context(), poolMessage("p", "s", 0, 11)); err == nil || !strings.Contains(err.Error(), "11 bytes") {
		t.Errorf("a message that is too large: %v", err)
	}
	mustOffer(t, p, poolMessage("p", "s", 0, 10))
	closePool(t, p)
}

func TestPoolCalls(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{OnError: func(m events.Message, err error) { t.Errorf("message %d: %v", m.Seq, err) }})
	m := poolMessage("a", "s", 0, 10)
	if r, err := p.Sink().IngestMessage(m); err != nil || !r.Applied {
		t.Errorf("%+v, %v", r, err)
	}
	m.Hold = true
	if r, err := p.Sink().IngestMessage(m); err != errClerk || r != clerkReceipt {
		t.Errorf("%+v, %v", r, err)
	}
	if at := p.Sink().StreamNext("a", "m", "s"); at.Next != 13 {
		t.Errorf("%+v", at)
	}
	_ = p.Sink().StreamNote("a", "m", "s", events.NoteHeld)
	if err := errors.Join(p.Sink().StreamNote("a", "m", "s", events.NoteRestarted), p.Sink().StreamNote("a", "m", "s", events.NoteRewound), p.Sink().RemoveStream("a", "m", "s"), p.Sink().RemovePod("a"), p.Sink().RemovePod("b")); err != nil {
		t.Error(err)
	}
	c.fail = errClerk
	for _, err := range []error{p.Sink().StreamNote("a", "m", "s", events.NoteRestarted), p.Sink().RemovePod("a"), p.Sink().RemoveStream("a", "m", "s")} {
		if err != errClerk {
			t.Errorf("%v", err)
		}
	}
	c.fail = nil
	c.expect("a", "s0, s0, s?, s note 4, s restarted, s rewound, s removed, removed, s restarted, removed, s removed")
	if s := p.Stats(); s != (events.PoolStats{Concurrency: 64}) {
		t.Errorf("%+v", s)
	}
	closePool(t, p)
	if _, err := p.Sink().IngestMessage(m); err != events.ErrPoolClosed {
		t.Errorf("%v", err)
	}
	for _, err := range []error{p.Sink().StreamNote("a", "m", "s", events.NoteRestarted), p.Sink().StreamNote("a", "m", "s", events.NoteRewound), p.Sink().RemovePod("a"), p.Sink().RemoveStream("a", "m", "s")} {
		if err != events.ErrPoolClosed {
			t.Errorf("closed: %v", err)
		}
	}
	if _ = p.Sink().StreamNote("a", "m", "s", events.NoteHeld); p.Sink().StreamNext("a", "m", "s") != (events.Position{}) {
		t.Error("closed: there is a position")
	}
	if len(c.said["a"]) != 11 {
		t.Errorf("after Close the sink got %q", c.said["a"][11:])
	}
}

// TestPoolOrder begins offers and calls in turn while the sink blocks, and checks that the sink
// gets those of each pod in that order.
func TestPoolOrder(t *testing.T) {
	waited, calls := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 22))
		c := newClerk(t)
		c.gate = make(chan struct{})
		cfg := events.PoolConfig{Concurrency: 1 + r.IntN(4), MaxMessages: 4 + r.IntN(20)}
		c.most = int64(cfg.Concurrency)
		p := newPool(t, c, cfg)
		want := map[string][]string{}
		var all sync.WaitGroup
		for seq := range uint64(40) {
			pod, stream := fmt.Sprint("pod", r.IntN(3)), string(rune('s'+r.IntN(2)))
			var do func()
			var text string
			call := true
			switch r.IntN(6) {
			case 0:
				text, do = fmt.Sprint(stream, seq), func() { p.Sink().IngestMessage(poolMessage(pod, stream, seq, 10)) }
			case 1:
				text, do = stream+"?", func() { p.Sink().StreamNext(pod, "m", stream) }
			case 2:
				text, do = stream+" note 2", func() { _ = p.Sink().StreamNote(pod, "m", stream, 2) }
			case 3:
				text, do = stream+" rewound", func() { _ = p.Sink().StreamNote(pod, "m", stream, events.NoteRewound) }
			default:
				call = false
				text, do = fmt.Sprint(stream, seq), func() { mustOffer(t, p, poolMessage(pod, stream, seq, 10)) }
			}
			want[pod] = append(want[pod], text)
			before, callsBefore, done := p.Stats(), p.Calls(), make(chan struct{})
			all.Go(func() {
				defer close(done)
				do()
			})
			poolUntil(t, p, "it begins", func(s events.PoolStats) bool {
				return p.Calls() > callsBefore || offered(s) > offered(before) || s.Waited > before.Waited
			})
			if call {
				calls++
			}
		}
		waited += int(p.Stats().Waited)
		close(c.gate)
		all.Wait()
		closePool(t, p)
		for pod := range want {
			c.expect(pod, strings.Join(want[pod], ", "))
		}
		if n := p.Calls(); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	}
	if waited < 100 || calls < 500 {
		t.Errorf("%d offers waited, %d calls: the test tests too little", waited, calls)
	}
}

// TestPoolPlaces: a call takes over the place of the goroutine that served its pod, and no other
// pod is served meanwhile.
func TestPoolPlaces(t *testing.T) {
	for range 20 {
		c := newClerk(t)
		c.gate = make(chan struct{}) // gets a value for each call
		c.most = 1
		p := newPool(t, c, events.PoolConfig{Concurrency: 1})
		mustOffer(t, p, poolMessage("a", "s", 0, 1))
		c.await("a s0")
		var calls sync.WaitGroup
		calls.Go(func() { p.Sink().IngestMessage(poolMessage("a", "s", 1, 1)) })
		poolUntil(t, p, "the call waits", func(events.PoolStats) bool { return p.Calls() == 1 })
		calls.Go(func() { p.Sink().IngestMessage(poolMessage("c", "s", 1, 1)) })
		poolUntil(t, p, "both wait", func(events.PoolStats) bool { return p.Calls() == 2 })
		mustOffer(t, p, poolMessage("b", "s", 0, 1))
		c.gate <- struct{}{}
		c.await("a s1")
		for range 100 { // any other call that got a place is in the sink by then
			p.Stats()
			runtime.Gosched()
		}
		for range 3 {
			c.gate <- struct{}{}
		}
		calls.Wait()
		closePool(t, p)
		c.expect("a", "s0, s1")
		c.expect("b", "s0")
		c.expect("c", "s1")
	}
}

// TestPoolRemovePod: earlier offers do not bring the pod back, and later ones stay.
func TestPoolRemovePod(t *testing.T) {
	for _, fail := range []error{nil, errClerk} {
		t.Run(fmt.Sprint(fail), func(t *testing.T) {
			c := newClerk(t)
			c.gate = make(chan struct{})
			c.fail = fail
			var reported []string
			p := newPool(t, c, events.PoolConfig{Concurrency: 2, MaxMessages: 8, OnError: func(m events.Message, err error) {
				reported = append(reported, fmt.Sprint(m.Stream, m.Seq, " ", err))
			}})
			mustOffer(t, p, poolMessage("a", "s", 0, 1), poolMessage("b", "s", 0, 1))
			c.await("a s0")
			mustOffer(t, p, poolMessage("a", "s", 1, 1), poolMessage("a", "t", 2, 1))
			var offers, calls sync.WaitGroup
			for i := range 4 {
				offers.Go(func() { mustOffer(t, p, poolMessage("a", fmt.Sprint("w", i), 1, 1)) })
				poolUntil(t, p, "it is offered", func(s events.PoolStats) bool { return s.Waited+offered(s) == uint64(5+i) })
			}
			waits := p.Stats().Waited
			calls.Go(func() { _ = p.Sink().StreamNote("a", "m", "s", 1) })
			poolUntil(t, p, "the call waits", func(events.PoolStats) bool { return p.Calls() == 1 })
			calls.Go(func() {
				if err := p.Sink().RemovePod("a"); err != fail {
					t.Error(err)
				}
			})
			poolUntil(t, p, "the removal waits", func(events.PoolStats) bool { return p.Calls() == 2 })
			offers.Wait() // they were dropped and wait no more
			if s := p.Stats(); waits == 0 || s.Messages != 2 || offered(s) != s.Dropped+2 {
				t.Errorf("%d waited, %+v", waits, s)
			}
			mustOffer(t, p, poolMessage("a", "s", 9, 1))
			close(c.gate)
			calls.Wait()
			poolUntil(t, p, "it is through", func(s events.PoolStats) bool { return s.Messages == 0 })
			c.fail = nil
			mustOffer(t, p, poolMessage("a", "s", 10, 1), poolMessage("a", "s", 11, 1))
			closePool(t, p)
			s := p.Stats()
			if fail == nil {
				c.expect("a", "s0, s note 1, removed, s9, s10, s11")
			} else {
				c.expect("a", "s0, s note 1, removed, s restarted, s restarted, s10, s11")
			}
			if failed := fail != nil; failed != slices.Equal(reported, []string{"s9 the clerk is tired"}) || failed != (s.Errors == 1) || s.Delivered != 5 {
				t.Errorf("reported %q, %+v", reported, s)
			}
			c.expect("b", "s0")
		})
	}
}

func TestPoolRemoveStream(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	p := newPool(t, c, events.PoolConfig{MaxMessages: 10})
	other := poolMessage("a", "s", 7, 1)
	other.Model = "other"
	other.Payload = poolPayload(other)
	mustOffer(t, p, poolMessage("a", "s", 0, 1))
	c.await("a s0")
	mustOffer(t, p, poolMessage("a", "s", 1, 1), poolMessage("a", "t", 1, 1), other, poolMessage("a", "s", 2, 1))
	var calls sync.WaitGroup
	for i, stream := range []string{"s", "t"} {
		calls.Go(func() { mustOffer(t, p, poolMessage("a", stream, 3, 1)) })
		poolUntil(t, p, "it waits", func(s events.PoolStats) bool { return s.Waited == uint64(i+1) })
	}
	calls.Go(func() {
		if err := p.Sink().RemoveStream("a", "m", "s"); err != nil {
			t.Error(err)
		}
	})
	poolUntil(t, p, "the removal waits", func(events.PoolStats) bool { return p.Calls() == 1 })
	if s := p.Stats(); s.Dropped != 3 || s.Messages != 4 {
		t.Errorf("%+v", s)
	}
	mustOffer(t, p, poolMessage("a", "s", 4, 1))
	close(c.gate)
	calls.Wait()
	closePool(t, p)
	c.expect("a", "s0, t1, s7, t3, s removed, s4")
}

// TestPoolRemovedLeavesNothing: not even the name of a removed pod stays.
func TestPoolRemovedLeavesNothing(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{})
	for range 3 {
		mustOffer(t, p, poolMessage("a", "s", 0, 1), poolMessage("a", "t", 0, 1))
		if err := p.Sink().RemoveStream("a", "m", "s"); err != nil {
			t.Error(err)
		}
		if err := p.Sink().RemovePod("a"); err != nil {
			t.Error(err)
		}
		if pods, _ := p.PodMessages(); len(pods) != 0 {
			t.Errorf("%+v", pods)
		}
	}
	closePool(t, p)
}

// TestPoolCallPays: a call sends the restart first if the sink has not accepted it.
func TestPoolCallPays(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{})
	fail := func(stream string) {
		mustOffer(t, p, poolMessage("a", stream, 0, 1))
		_ = p.Sink().StreamNote("a", "m", stream, 1) // it is delivered
		c.fail = errClerk
		if err := p.Sink().RemoveStream("a", "m", stream); err != errClerk {
			t.Error(err)
		}
	}
	fail("s")
	if r, err := p.Sink().IngestMessage(poolMessage("a", "s", 1, 1)); err != errClerk || r != (events.Receipt{}) {
		t.Errorf("%+v, %v", r, err)
	}
	if at := p.Sink().StreamNext("a", "m", "s"); at != (events.Position{}) {
		t.Errorf("%+v", at)
	}
	c.fail = nil
	for range 2 {
		if r, err := p.Sink().IngestMessage(poolMessage("a", "s", 1, 1)); err != nil || !r.Applied {
			t.Errorf("%+v, %v", r, err)
		}
	}
	want := "s0, s note 1, s removed, s restarted, s restarted, s restarted, s1, s1"
	c.expect("a", want)
	fail("t")
	c.fail = nil
	for range 2 {
		if err := p.Sink().StreamNote("a", "m", "t", events.NoteRewound); err != nil {
			t.Error(err)
		}
	}
	if at := p.Sink().StreamNext("a", "m", "t"); at.Next != 13 {
		t.Errorf("%+v", at)
	}
	c.expect("a", want+", t0, t note 1, t removed, t rewound, t rewound, t?")
	closePool(t, p)
}

// TestPoolCallsAtClose: queued calls are served, unless the context of Close has ended. Calls
// behind offers that wait for room are not.
func TestPoolCallsAtClose(t *testing.T) {
	for _, hurry := range []bool{false, true} {
		c := newClerk(t)
		c.gate = make(chan struct{})
		p := newPool(t, c, events.PoolConfig{MaxMessages: 4})
		mustOffer(t, p, poolMessage("a", "s", 0, 1))
		c.await("a s0")
		var calls sync.WaitGroup
		rewind := func(want error) {
			before := p.Calls()
			calls.Go(func() {
				if err := p.Sink().StreamNote("a", "m", "s", events.NoteRewound); err != want {
					t.Errorf("%v, want %v", err, want)
				}
			})
			poolUntil(t, p, "it waits", func(events.PoolStats) bool { return p.Calls() > before })
		}
		if hurry {
			rewind(events.ErrPoolClosed)
		} else {
			rewind(nil)
		}
		mustOffer(t, p, poolMessage("a", "s", 1, 1))
		calls.Go(func() {
			if err := p.Offer(context.Background(), poolMessage("a", "s", 2, 1)); err != events.ErrPoolClosed {
				t.Errorf("%v", err)
			}
		})
		poolUntil(t, p, "it waits", func(s events.PoolStats) bool { return s.Waited == 1 })
		rewind(events.ErrPoolClosed)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if hurry {
			cancel()
		}
		closed := make(chan error, 1)
		go func() { closed <- p.Close(ctx) }()
		poolUntil(t, p, "Close has begun", func(s events.PoolStats) bool {
			return p.Calls() == 1 && !hurry || p.Calls() == 0 && s.Dropped == 1
		})
		close(c.gate)
		calls.Wait()
		if err := <-closed; (err != nil) != hurry {
			t.Errorf("%v", err)
		}
		if hurry {
			c.expect("a", "s0")
		} else {
			c.expect("a", "s0, s rewound, s1")
		}
		if n := p.Calls(); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	}
}

// TestPoolCallsBesideAll does everything concurrently. A pod has one call at a time, and a removed
// pod does not come back.
func TestPoolCallsBesideAll(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{Concurrency: 3, MaxMessages: 20})
	c.most = 3
	const pods = 6
	var all sync.WaitGroup
	for pod := range pods {
		name := fmt.Sprint("pod", pod)
		for g := range 3 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(pod), uint64(g)))
				for seq := range uint64(200) {
					switch m := poolMessage(name, fmt.Sprint("s", g), seq, 1+r.IntN(20)); r.IntN(12) {
					case 0:
						p.Sink().StreamNext(name, "m", m.Stream)
					case 1:
						_ = p.Sink().StreamNote(name, "m", m.Stream, events.NoteCurrent)
					case 2:
						_ = p.Sink().StreamNote(name, "m", m.Stream, events.NoteRestarted)
					case 3:
						p.Sink().RemoveStream(name, "m", m.Stream)
					case 4, 5:
						p.Sink().IngestMessage(m)
					default:
						mustOffer(t, p, m)
					}
				}
			})
		}
		all.Go(func() {
			for range 20 {
				if err := p.Sink().RemovePod(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for pod := range pods {
		name := fmt.Sprint("pod", pod)
		if err := p.Sink().RemovePod(name); err != nil {
			t.Error(err)
		}
		c.mu.Lock() // the other pods are still served
		said := c.said[name]
		c.mu.Unlock()
		if said[len(said)-1] != "removed" {
			t.Errorf("%s was removed, and got %q", name, said[slices.Index(said, "removed"):])
		}
	}
	if pods, _ := p.PodMessages(); p.Calls()+p.Stats().Messages != 0 || len(pods) != 0 {
		t.Errorf("%d calls, %+v, %v", p.Calls(), p.Stats(), pods)
	}
	closePool(t, p)
}

type noopSink struct{ events.Sink }

func (noopSink) IngestMessage(events.Message) (events.Receipt, error) { return events.Receipt{}, nil }

func TestPoolCallAllocates(t *testing.T) {
	p := newPool(t, noopSink{}, events.PoolConfig{})
	m := poolMessage("a", "s", 0, 100)
	if n := testing.AllocsPerRun(100, func() { p.Sink().IngestMessage(m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	closePool(t, p)
}
