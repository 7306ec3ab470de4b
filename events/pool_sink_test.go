package events_test

import (
	"context"
	"errors"
	"fmt"
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

// clerk is a sink that writes down what it gets for each pod, in order.
type clerk struct {
	t    testing.TB
	gate chan struct{} // nil: open; else each call waits until it is closed
	fail error         // of RemovePod, RemoveStream and NoteRestarted
	most int64         // calls that may be in it at once

	entered chan string // gets each call as it comes, if there is room

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
	if c.gate != nil {
		<-c.gate
	} else {
		runtime.Gosched()
	}
	c.mu.Lock()
	c.in[pod] = false
	c.mu.Unlock()
}

var clerkReceipt = events.Receipt{Held: true, Gap: events.Gap{From: 3, To: 4, Lost: true}}

func (c *clerk) IngestMessage(m events.Message) (events.Receipt, error) {
	c.take(m.Pod, "%s%d", m.Stream, m.Seq)
	if m.Hold {
		return clerkReceipt, errClerk
	}
	return events.Receipt{Applied: true}, nil
}

func (c *clerk) StreamNext(pod, _, stream string) events.Position {
	c.take(pod, "%s?", stream)
	return events.Position{Next: 13, Received: true}
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

func (c *clerk) StreamView(pod, model, stream string) events.StreamView {
	return events.StreamView{State: pod + model + stream}
}

var errClerk = errors.New("the clerk is tired")

// expect checks all that a pod got.
func (c *clerk) expect(pod, want string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.said[pod], ", "); got != want {
		c.t.Errorf("%s got %q, want %q", pod, got, want)
	}
}

// await waits until the clerk gets a call.
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

// TestPoolCalls: a call gets what the sink returns.
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
	if at := p.Sink().StreamNext("a", "m", "s"); at.Next != 13 || !at.Received {
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
	if v := p.Sink().StreamView("a", "m", "s"); v.State != "ams" {
		t.Errorf("%+v", v)
	}
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

// TestPoolOrder begins offers and calls one after the other while the sink hangs, and
// checks that the sink gets those of each pod in the order in which they began.
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
			switch r.IntN(7) {
			case 0:
				text, do = fmt.Sprint(stream, seq), func() { p.Sink().IngestMessage(poolMessage(pod, stream, seq, 10)) }
			case 1:
				text, do = stream+"?", func() { p.Sink().StreamNext(pod, "m", stream) }
			case 2:
				text, do = stream+" note 2", func() { _ = p.Sink().StreamNote(pod, "m", stream, 2) }
			case 3:
				text, do = stream+" rewound", func() { _ = p.Sink().StreamNote(pod, "m", stream, events.NoteRewound) }
			case 4:
				call = false
				text, do = stream+" restarted", func() { p.OfferRestart(context.Background(), pod, "m", stream) }
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

// TestPoolPlaces: a call has the place of the goroutine that served its pod, and no other
// pod is served beside it.
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
		for range 100 { // whoever else got a place is in the sink by then
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

// TestPoolOrderOfDrops: a drop is reported in its place, whatever call comes between.
func TestPoolOrderOfDrops(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	var drops []events.Drop
	p := newPool(t, c, events.PoolConfig{MaxMessages: 8, DropOldest: true, OnDrop: func(d events.Drop) { drops = append(drops, d) }})
	mustOffer(t, p, poolMessage("a", "s", 10, 1))
	c.await("a s10")
	mustOffer(t, p, poolMessage("a", "s", 11, 1))
	var calls sync.WaitGroup
	calls.Go(func() { p.Sink().IngestMessage(poolMessage("a", "s", 12, 1)) })
	poolUntil(t, p, "the call waits", func(events.PoolStats) bool { return p.Calls() == 1 })
	for seq := range uint64(9) {
		mustOffer(t, p, poolMessage("a", "s", 13+seq, 1))
	}
	close(c.gate)
	calls.Wait()
	closePool(t, p)
	if len(drops) != 1 || drops[0].From != 13 || drops[0].To != 19 || drops[0].Messages != 7 {
		t.Errorf("%+v", drops)
	}
	c.expect("a", "s10, s11, s12, s?, s20, s21")
}

// TestPoolRemovePod: nothing that was offered before brings the pod back, and what is
// offered later stays.
func TestPoolRemovePod(t *testing.T) {
	for _, dropping := range []bool{false, true} {
		for _, fail := range []error{nil, errClerk} {
			t.Run(fmt.Sprintf("dropping=%v/%v", dropping, fail), func(t *testing.T) {
				c := newClerk(t)
				c.gate = make(chan struct{})
				c.fail = fail
				p := newPool(t, c, events.PoolConfig{Concurrency: 2, MaxMessages: 8, DropOldest: dropping, OnDrop: func(d events.Drop) { t.Errorf("%+v", d) }})
				mustOffer(t, p, poolMessage("a", "s", 0, 1), poolMessage("b", "s", 0, 1))
				c.await("a s0")
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				for seq := uint64(1); seq < 3; seq++ {
					mustOffer(t, p, poolMessage("a", "s", seq, 1))
				}
				must(t, p.OfferRestart(ctx, "a", "m", "t"))
				// Streams of which nothing may be dropped wait for room.
				var offers, calls sync.WaitGroup
				waits := uint64(0)
				for i := range 4 {
					offers.Go(func() {
						if err := p.Offer(ctx, poolMessage("a", fmt.Sprint("w", i), 1, 1)); err != nil {
							t.Error(err)
						}
					})
					poolUntil(t, p, "it is offered", func(s events.PoolStats) bool {
						waits = s.Waited
						return s.Waited+offered(s) == uint64(6+i)
					})
				}
				calls.Go(func() { _ = p.Sink().StreamNote("a", "m", "s", 1) })
				poolUntil(t, p, "the call waits", func(events.PoolStats) bool { return p.Calls() == 1 })
				calls.Go(func() {
					if err := p.Sink().RemovePod("a"); err != fail {
						t.Error(err)
					}
				})
				poolUntil(t, p, "the removal waits", func(events.PoolStats) bool { return p.Calls() == 2 })
				offers.Wait() // they were dropped, and wait no more
				if s := p.Stats(); waits == 0 || s.Messages != 2 || offered(s) != s.Dropped+2 {
					t.Errorf("%d waited, %+v", waits, s)
				}
				mustOffer(t, p, poolMessage("a", "s", 9, 1))
				close(c.gate)
				calls.Wait()
				poolUntil(t, p, "it is through", func(s events.PoolStats) bool { return s.Messages == 0 })
				if fail != nil {
					c.fail = nil
					c.expect("a", "s0, s note 1, removed, s restarted")
					mustOffer(t, p, poolMessage("a", "s", 10, 1))
				}
				closePool(t, p)
				if fail == nil {
					c.expect("a", "s0, s note 1, removed, s9")
				} else {
					c.expect("a", "s0, s note 1, removed, s restarted, s restarted, s10")
				}
				c.expect("b", "s0")
			})
		}
	}
}

// TestPoolRemoveStream: the other streams of the pod lose nothing.
func TestPoolRemoveStream(t *testing.T) {
	c := newClerk(t)
	c.gate = make(chan struct{})
	p := newPool(t, c, events.PoolConfig{MaxMessages: 10, OnDrop: func(d events.Drop) { t.Errorf("%+v", d) }})
	other := poolMessage("a", "s", 7, 1)
	other.Model = "other"
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

// TestPoolRemovedLeavesNothing, not even a name.
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

// TestPoolCallPays: a call comes behind a restart that the sink could not be told of.
func TestPoolCallPays(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{})
	ctx := context.Background()
	fail := func(stream string) {
		c.fail = errClerk
		must(t, p.OfferRestart(ctx, "a", "m", stream))
		_ = p.Sink().StreamNote("a", "m", stream, 1) // it is through
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
	c.expect("a", "s restarted, s note 1, s restarted, s restarted, s restarted, s1, s1")
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
	c.expect("a", "s restarted, s note 1, s restarted, s restarted, s restarted, s1, s1, t restarted, t note 1, t rewound, t rewound, t?")
	closePool(t, p)
}

// TestPoolCallsAtClose: calls in the queue get their turn, unless Close has to end; those
// behind offers that wait for room do not.
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

// TestPoolCallsBesideAll does everything at once, and looks whether a pod is served by one
// at a time and a removed one comes back.
func TestPoolCallsBesideAll(t *testing.T) {
	c := newClerk(t)
	p := newPool(t, c, events.PoolConfig{Concurrency: 3, MaxMessages: 20, DropOldest: true})
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
					case 4:
						p.OfferRestart(context.Background(), name, "m", m.Stream)
					case 5, 6:
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

// nobody is a sink that does nothing.
type nobody struct{ events.Sink }

func (nobody) IngestMessage(events.Message) (events.Receipt, error) { return events.Receipt{}, nil }

// TestPoolCallAllocates nothing when it does not wait.
func TestPoolCallAllocates(t *testing.T) {
	p := newPool(t, nobody{}, events.PoolConfig{})
	m := poolMessage("a", "s", 0, 100)
	if n := testing.AllocsPerRun(100, func() { p.Sink().IngestMessage(m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	closePool(t, p)
}
