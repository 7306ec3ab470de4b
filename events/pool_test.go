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

// desk is a sink that writes down, per stream, what it and the hooks get.
type desk struct {
	deaf
	before func(events.Message)       // called first, without the lock
	fail   func(events.Message) error // nil: never
	redo   func() error               // of NoteRestarted; nil: never fails

	mu   sync.Mutex
	next map[string]uint64 // by stream, if heard
	said map[string][]string
}

func newDesk() *desk {
	return &desk{next: make(map[string]uint64), said: make(map[string][]string)}
}

func streamOf(pod, model, stream string) string { return pod + "/" + model + "/" + stream }

func (d *desk) write(stream, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said[stream] = append(d.said[stream], fmt.Sprintf(format, args...))
}

func (d *desk) IngestMessage(m events.Message) (events.Receipt, error) {
	if d.before != nil {
		d.before(m)
	}
	stream, flag := streamOf(m.Pod, m.Model, m.Stream), ""
	if m.Replayed {
		flag += "R"
	}
	if want := poolPayload(stream, m.Seq, len(m.Payload)); !bytes.Equal(m.Payload, want) {
		flag += " with another's payload"
	}
	var err error
	if d.fail != nil {
		err = d.fail(m)
	}
	d.write(stream, "%d%s", m.Seq, flag)
	if err != nil {
		return events.Receipt{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next[stream] = m.Seq + 1
	return events.Receipt{Applied: true}, nil
}

func (d *desk) StreamNext(pod, model, stream string) events.Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	next, heard := d.next[streamOf(pod, model, stream)]
	return events.Position{Next: next, Received: heard}
}

func (d *desk) StreamNote(pod, model, stream string, n events.Note) error {
	if n != events.NoteRestarted {
		return nil
	}
	stream = streamOf(pod, model, stream)
	d.write(stream, "restarted")
	if d.redo != nil {
		if err := d.redo(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.next, stream)
	return nil
}

func (d *desk) OnDrop(l events.Drop) {
	d.write(streamOf(l.Pod, l.Model, l.Stream), "-%d..%d:%d", l.From, l.To, l.Messages)
}

func (d *desk) expect(t *testing.T, stream, want string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := strings.Join(d.said[stream], " "); got != want {
		t.Errorf("%s got %q, want %q", stream, got, want)
	}
}

// poolPayload is what the tests send with a number.
func poolPayload(stream string, seq uint64, n int) []byte {
	h := fnv.New64a()
	fmt.Fprint(h, stream, seq)
	return bytes.Repeat([]byte{byte(h.Sum64())}, n)
}

func poolMessage(pod, stream string, seq uint64, n int) events.Message {
	return events.Message{Pod: pod, Model: "m", Stream: stream, Seq: seq, Payload: poolPayload(streamOf(pod, "m", stream), seq, n)}
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

// gate stops the messages of one pod in the sink.
type gate struct {
	pod     string
	entered chan struct{} // one for each message that stops
	open    chan struct{}
}

func newGate(pod string) *gate {
	return &gate{pod: pod, entered: make(chan struct{}, 1000), open: make(chan struct{})}
}

func (g *gate) wait(m events.Message) {
	if m.Pod == g.pod {
		g.entered <- struct{}{}
		<-g.open
	}
}

// TestPoolAgainstModel offers from several goroutines to a sink that is slow at
// random, with bounds that are always reached, and follows every message.
func TestPoolAgainstModel(t *testing.T) {
	for _, dropping := range []bool{false, true} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("dropping=%t/%d", dropping, seed), func(t *testing.T) { runPoolModel(t, dropping, seed) })
		}
	}
}

func runPoolModel(t *testing.T, dropping bool, seed uint64) {
	const pods, streams, messages = 9, 3, 150
	d := newDesk()
	cfg := events.PoolConfig{Concurrency: 3, MaxMessages: 40, MaxBytes: 20_000, DropOldest: dropping, OnDrop: d.OnDrop}
	var p *events.Pool
	var most struct{ messages, bytes atomic.Int64 }
	d.before = func(m events.Message) {
		s := p.Stats()
		if s.Messages > cfg.MaxMessages || s.Bytes > cfg.MaxBytes {
			t.Errorf("%d messages of %d bytes are waiting", s.Messages, s.Bytes)
		}
		most.messages.Store(max(most.messages.Load(), int64(s.Messages)))
		most.bytes.Store(max(most.bytes.Load(), s.Bytes))
		for range m.Seq * (seed + 7) % 50 {
			runtime.Gosched()
		}
	}
	p = newPool(t, d, cfg)

	largest := []int{1500, 100}[seed%2] // either bound comes first
	var producers sync.WaitGroup
	for pod := range pods {
		for st := range streams {
			producers.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(pod*streams+st)))
				for seq := range uint64(messages) {
					m := poolMessage(fmt.Sprint("pod", pod), fmt.Sprint(st), seq, r.IntN(largest))
					mustOffer(t, p, m)
					clear(m.Payload) // ours again
				}
			})
		}
	}
	producers.Wait()
	closePool(t, p)

	var delivered, dropped, runs, restarts uint64
	for pod := range pods {
		for st := range streams {
			stream := streamOf(fmt.Sprint("pod", pod), "m", fmt.Sprint(st))
			next, heard, lost, told := uint64(0), false, false, false
			for _, line := range d.said[stream] {
				var from, to, n uint64
				switch _, err := fmt.Sscanf(line, "-%d..%d:%d", &from, &to, &n); {
				case err == nil:
					if from != next || n != to-from+1 || lost {
						t.Fatalf("%s: %q behind %d: %v", stream, line, next, d.said[stream])
					}
					next, dropped, lost = to+1, dropped+n, true
					runs++
				case line == "restarted":
					if heard || !lost {
						t.Fatalf("%s restarted at %d: %v", stream, next, d.said[stream])
					}
					told = true
					restarts++
				case line != fmt.Sprint(next):
					t.Fatalf("%s: %q, want %d: %v", stream, line, next, d.said[stream])
				default:
					if lost && !heard && !told {
						t.Fatalf("%s: a loss before %d was not told", stream, next)
					}
					next, heard, lost = next+1, true, false
					delivered++
				}
			}
			if next != messages || lost {
				t.Errorf("%s ends at %d, lost %t", stream, next, lost)
			}
		}
	}
	s := p.Stats()
	if s.Dropped != dropped || offered(s) != pods*streams*messages || s.Delivered != delivered || s.Malformed+s.Errors != 0 {
		t.Errorf("%+v, want %d delivered and %d dropped", s, delivered, dropped)
	}
	of, bytes := p.PodMessages()
	for _, n := range of {
		s.Messages -= n
	}
	if s.Messages != 0 || bytes != s.Bytes {
		t.Errorf("the pods have %v, %d bytes: %+v", of, bytes, p.Stats())
	}
	t.Logf("%d delivered, %d dropped in %d runs, %d restarts, %d waits, at most %d messages and %d bytes",
		delivered, dropped, runs, restarts, s.Waited, most.messages.Load(), most.bytes.Load())
	if dropping != (runs >= 10) || !dropping && s.Waited < 20 || most.messages.Load() < 10 {
		t.Error("the bounds were hardly reached")
	}
}

func TestPoolBlockedPodDelaysNoOther(t *testing.T) {
	for _, dropping := range []bool{false, true} {
		t.Run(fmt.Sprintf("dropping=%t", dropping), func(t *testing.T) {
			d, g := newDesk(), newGate("stuck")
			d.before = g.wait
			p := newPool(t, d, events.PoolConfig{Concurrency: 2, MaxMessages: 16, MaxBytes: 1000, DropOldest: dropping, OnDrop: d.OnDrop})
			const flood = 100
			var stuck, others sync.WaitGroup
			mustOffer(t, p, poolMessage("stuck", "s", 0, 20))
			<-g.entered
			stuck.Go(func() {
				for seq := uint64(1); seq < flood; seq++ {
					mustOffer(t, p, poolMessage("stuck", "s", seq, 20))
				}
			})
			if dropping {
				stuck.Wait() // nobody makes it wait
			} else {
				poolUntil(t, p, "the producer waits", func(s events.PoolStats) bool { return s.Waited == 1 })
			}
			for i := range 8 {
				others.Go(func() {
					for seq := range uint64(200) {
						mustOffer(t, p, poolMessage(fmt.Sprint("pod", i), "s", seq, 20))
					}
				})
			}
			others.Wait()
			poolUntil(t, p, "the others are through", func(events.PoolStats) bool {
				of, _ := p.PodMessages()
				delete(of, "stuck")
				return !slices.ContainsFunc(slices.Collect(maps.Values(of)), func(n int) bool { return n > 0 })
			})
			close(g.open)
			stuck.Wait()
			closePool(t, p)
			for i := range 8 {
				if got := d.said[streamOf(fmt.Sprint("pod", i), "m", "s")]; !dropping && len(got) != 200 {
					t.Errorf("pod%d got %d messages", i, len(got))
				}
			}
			if dropping {
				d.expect(t, "stuck/m/s", "0 -1..92:92 93 94 95 96 97 98 99")
			} else if n := len(d.said["stuck/m/s"]); n != flood {
				t.Errorf("the stuck pod got %d messages", n)
			}
		})
	}
}

// TestPoolShares: a pod may have what it leaves free.
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
			open := make(chan struct{})
			d := newDesk()
			d.before = func(events.Message) { <-open }
			p := newPool(t, d, tt.cfg)
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
			close(open)
			closePool(t, p)
		})
	}
}

// TestPoolTurns: with one place to serve them, pods with a long queue let others
// in between.
func TestPoolTurns(t *testing.T) {
	d, g := newDesk(), newGate("a")
	var order []string
	d.before = func(m events.Message) {
		if m.Seq == 0 {
			g.wait(m)
		}
		order = append(order, m.Pod)
	}
	p := newPool(t, d, events.PoolConfig{Concurrency: 1})
	for seq := range uint64(100) {
		mustOffer(t, p, poolMessage("a", "s", seq, 1))
	}
	mustOffer(t, p, poolMessage("b", "s", 0, 1))
	close(g.open)
	closePool(t, p)
	if i := slices.Index(order, "b"); i != 32 || len(order) != 101 {
		t.Errorf("b came as number %d of %d", i, len(order))
	}
}

// TestPoolDropsAreTold has a message stuck in the sink while others are offered,
// of which there is room for one.
func TestPoolDropsAreTold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before []uint64 // applied
		behind []uint64
		want   string
	}{
		{"nothing", nil, []uint64{1}, "0 1"},
		{"a hole that shows", nil, []uint64{1, 2, 3, 4}, "0 -1..3:3 4"},
		{"a hole beside another", nil, []uint64{5, 9}, "0 -5..5:1 9"},
		{"a restart that would look whole", []uint64{4, 5}, []uint64{0, 1, 2, 3, 4, 5, 6, 7}, "4 5 6 -0..6:7 restarted 7"},
		{"a restart that goes on", nil, []uint64{0, 1}, "0 -0..0:1 restarted 1"},
		{"what came twice", nil, []uint64{1, 2, 1}, "0 -1..2:2 restarted 1"},
		{"what came twice and went on", nil, []uint64{1, 2, 1, 2, 3}, "0 -1..2:4 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, g := newDesk(), newGate("p")
			p := newPool(t, d, events.PoolConfig{MaxMessages: 3, DropOldest: true, OnDrop: d.OnDrop})
			first := uint64(0)
			for _, seq := range tt.before {
				mustOffer(t, p, poolMessage("p", "s", seq, 1))
				poolUntil(t, p, "delivered", func(s events.PoolStats) bool { return s.Messages == 0 })
				first = seq + 1
			}
			d.before = g.wait
			mustOffer(t, p, poolMessage("p", "s", first, 1))
			<-g.entered
			for _, seq := range tt.behind {
				mustOffer(t, p, poolMessage("p", "s", seq, 1))
			}
			close(g.open)
			closePool(t, p)
			d.expect(t, "p/m/s", tt.want)
		})
	}
}

// TestPoolKeepsTheNewest: it is what shows that others were dropped.
func TestPoolKeepsTheNewest(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 7, DropOldest: true, OnDrop: d.OnDrop})
	mustOffer(t, p, poolMessage("p", "a", 0, 1))
	<-g.entered
	mustOffer(t, p, poolMessage("p", "a", 1, 1), poolMessage("p", "b", 0, 1), poolMessage("p", "b", 1, 1))
	mustOffer(t, p, poolMessage("p", "b", 2, 1)) // drops b0
	mustOffer(t, p, poolMessage("p", "c", 0, 1)) // drops b1
	mustOffer(t, p, poolMessage("p", "c", 1, 1)) // drops c0
	// Now a1, b2 and c1 wait, and nothing of it may go for a fourth stream.
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Offer(done, poolMessage("p", "d", 0, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(g.open)
	closePool(t, p)
	d.expect(t, "p/m/a", "0 1")
	d.expect(t, "p/m/b", "-0..1:2 restarted 2")
	d.expect(t, "p/m/c", "-0..0:1 restarted 1")
	d.expect(t, "p/m/d", "")
}

// TestPoolDropsNothingInVain: the newest message goes for the next one alone.
func TestPoolDropsNothingInVain(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxBytes: 100, DropOldest: true, OnDrop: d.OnDrop})
	mustOffer(t, p, poolMessage("p", "s", 0, 40))
	<-g.entered
	mustOffer(t, p, poolMessage("p", "s", 1, 10))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Offer(done, poolMessage("p", "s", 2, 70)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(g.open)
	closePool(t, p)
	d.expect(t, "p/m/s", "0 1")
}

// TestPoolPassesReplayed: the mark is of its message alone, also if that is
// dropped.
func TestPoolPassesReplayed(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 3, DropOldest: true, OnDrop: d.OnDrop})
	mustOffer(t, p, poolMessage("p", "s", 0, 1))
	<-g.entered
	m := poolMessage("p", "s", 1, 1)
	m.Replayed = true
	mustOffer(t, p, m, poolMessage("p", "s", 2, 1))
	close(g.open)
	poolUntil(t, p, "delivered", func(s events.PoolStats) bool { return s.Messages == 0 })
	m = poolMessage("p", "s", 3, 1)
	m.Replayed = true
	mustOffer(t, p, m)
	closePool(t, p)
	d.expect(t, "p/m/s", "0 -1..1:1 2 3R")
}

// TestPoolRestartIsNotDropped, and tells of what was dropped before it.
func TestPoolRestartIsNotDropped(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 5, DropOldest: true, OnDrop: d.OnDrop})
	mustOffer(t, p, poolMessage("p", "s", 0, 1))
	<-g.entered
	mustOffer(t, p, poolMessage("p", "s", 1, 1), poolMessage("p", "s", 2, 1))
	must(t, p.OfferRestart(t.Context(), "p", "m", "s"))
	mustOffer(t, p, poolMessage("p", "s", 0, 1), poolMessage("p", "s", 1, 1))
	// All the room that is left goes to restarts, and they stay.
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.OfferRestart(done, "p", "m", "s"); err != nil {
		t.Error(err)
	}
	if err := p.Offer(done, poolMessage("p", "s", 2, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(g.open)
	closePool(t, p)
	d.expect(t, "p/m/s", "0 -1..2:2 restarted -0..1:2 restarted")
}

// TestPoolOwesRestarts: until the sink has learnt of a restart it gets nothing
// that came after.
func TestPoolOwesRestarts(t *testing.T) {
	d := newDesk()
	failures := 2
	d.redo = func() error {
		if failures--; failures >= 0 {
			return errors.New("no connection")
		}
		return nil
	}
	var reported []string
	p := newPool(t, d, events.PoolConfig{OnError: func(m events.Message, err error) {
		reported = append(reported, fmt.Sprint(m.Seq, " ", len(m.Payload), " ", err))
	}})
	must(t, p.OfferRestart(t.Context(), "p", "m", "s"))
	mustOffer(t, p, poolMessage("p", "s", 1, 1), poolMessage("p", "s", 2, 1), poolMessage("p", "s", 3, 1))
	closePool(t, p)
	d.expect(t, "p/m/s", "restarted restarted restarted 2 3")
	if want := []string{"0 0 no connection", "1 1 no connection"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if s := p.Stats(); s.Errors != 2 || s.Delivered != 4 {
		t.Errorf("%+v", s)
	}
}

// TestPoolRemembersWhatItOwes, however many other names come.
func TestPoolRemembersWhatItOwes(t *testing.T) {
	d := newDesk()
	failed := make(chan struct{})
	d.redo = func() error {
		select {
		case <-failed:
			return nil
		default:
			close(failed)
			return errors.New("no connection")
		}
	}
	p := newPool(t, d, events.PoolConfig{})
	must(t, p.OfferRestart(t.Context(), "p", "m", "s"))
	<-failed
	for i := range 5000 {
		mustOffer(t, p, poolMessage(fmt.Sprint("q", i), "s", 0, 1))
	}
	mustOffer(t, p, poolMessage("p", "s", 1, 1))
	closePool(t, p)
	d.expect(t, "p/m/s", "restarted restarted 1")
}

func TestPoolPoison(t *testing.T) {
	d := newDesk()
	d.fail = func(m events.Message) error {
		switch m.Seq {
		case 1, 2:
			return fmt.Errorf("message %d: %w", m.Seq, events.ErrMalformed)
		case 4:
			return errors.New("no connection")
		}
		return nil
	}
	var reported []string
	p := newPool(t, d, events.PoolConfig{OnError: func(m events.Message, err error) {
		if !bytes.Equal(m.Payload, poolPayload("p/m/s", m.Seq, 9)) {
			t.Errorf("the hook got the payload %q", m.Payload)
		}
		reported = append(reported, fmt.Sprint(m.Seq, errors.Is(err, events.ErrMalformed)))
	}})
	for seq := range uint64(6) {
		mustOffer(t, p, poolMessage("p", "s", seq, 9))
	}
	closePool(t, p)
	d.expect(t, "p/m/s", "0 1 2 3 4 5")
	if want := []string{"1 true", "2 true", "4 false"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if s := p.Stats(); s.Malformed != 2 || s.Errors != 1 || s.Delivered != 6 {
		t.Errorf("%+v", s)
	}
}

func TestPoolCancel(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 1000, MaxBytes: 40})
	mustOffer(t, p, poolMessage("p", "s", 0, 15))
	<-g.entered
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
	// The other one was in line behind it alone.
	if err := wait(t, "the other caller", taken); err != nil {
		t.Error(err)
	}
	close(g.open)
	closePool(t, p)
	d.expect(t, "p/m/s", "0")
	d.expect(t, "p/m/t", "0")
}

func TestPoolClose(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 6})
	mustOffer(t, p, poolMessage("p", "s", 0, 1), poolMessage("p", "s", 1, 1), poolMessage("p", "s", 2, 1))
	<-g.entered
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
	close(g.open)
	for range 2 {
		if err := wait(t, "Close", closed); err != nil {
			t.Error(err)
		}
	}
	closePool(t, p)
	d.expect(t, "p/m/s", "0 1 2")
	d.expect(t, "p/m/t", "")
	if err := p.Offer(t.Context(), poolMessage("p", "s", 3, 1)); !errors.Is(err, events.ErrPoolClosed) {
		t.Errorf("Offer after Close: %v", err)
	}
	if err := p.OfferRestart(t.Context(), "p", "m", "s"); !errors.Is(err, events.ErrPoolClosed) {
		t.Errorf("OfferRestart after Close: %v", err)
	}
}

// TestPoolCloseInTime: messages that cannot be delivered any more are dropped and reported.
func TestPoolCloseInTime(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{OnDrop: d.OnDrop})
	for seq := range uint64(5) {
		mustOffer(t, p, poolMessage("p", "s", seq, 1))
	}
	mustOffer(t, p, poolMessage("p", "t", 3, 1))
	<-g.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closed := make(chan error)
	go func() { closed <- p.Close(ctx) }()
	poolUntil(t, p, "dropped", func(s events.PoolStats) bool { return s.Dropped == 5 })
	close(g.open)
	err := wait(t, "Close", closed)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "5 messages") {
		t.Errorf("error %v", err)
	}
	if again := p.Close(t.Context()); !errors.Is(again, err) {
		t.Errorf("the second Close: %v", again)
	}
	d.expect(t, "p/m/s", "0 -1..4:4")
	d.expect(t, "p/m/t", "-3..3:1")
}

// TestPoolCloseUnderLoad: a message that Offer has taken is delivered or reported, whenever
// Close comes.
func TestPoolCloseUnderLoad(t *testing.T) {
	for i := range 20 {
		d := newDesk()
		p := newPool(t, d, events.PoolConfig{MaxMessages: 8, DropOldest: i%2 == 0, OnDrop: d.OnDrop})
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
		if i%4 < 2 {
			cancel()
		}
		if err := p.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cancel()
		producers.Wait()
		s := p.Stats()
		if offered(s) != taken.Load() || s.Messages != 0 {
			t.Errorf("%d were taken: %+v", taken.Load(), s)
		}
		told := uint64(0)
		for _, lines := range d.said {
			for _, line := range lines {
				var from, to, n uint64
				if _, err := fmt.Sscanf(line, "-%d..%d:%d", &from, &to, &n); err == nil {
					told += n
				}
			}
		}
		if told != s.Dropped {
			t.Errorf("%d were dropped, %d told", s.Dropped, told)
		}
	}
}

// TestPoolForgetsNames: peers can invent pods and streams.
func TestPoolForgetsNames(t *testing.T) {
	p := newPool(t, nobody{}, events.PoolConfig{})
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
		mustOffer(t, p, events.Message{Pod: name, Model: "m"}, events.Message{Pod: "p", Model: name})
		if i%20 == 0 { // else they are busy
			poolUntil(t, p, "delivered", func(s events.PoolStats) bool { return s.Messages == 0 })
		}
	}
	if pods, _ := p.PodMessages(); len(pods) > 2048 {
		t.Errorf("%d pods are remembered", len(pods))
	}
	if grown := int64(heap() - before); grown > 10<<20 {
		t.Errorf("%d bytes are kept of names of 40 MB", grown)
	}
	closePool(t, p)
}

// TestPoolRemembersTheBusy while it forgets others.
func TestPoolRemembersTheBusy(t *testing.T) {
	d, g := newDesk(), newGate("p")
	d.before = g.wait
	p := newPool(t, d, events.PoolConfig{MaxMessages: 1000, DropOldest: true, OnDrop: d.OnDrop})
	mustOffer(t, p, poolMessage("p", "s", 0, 1))
	<-g.entered
	mustOffer(t, p, poolMessage("p", "s", 1, 1))
	for i := range 3000 {
		mustOffer(t, p, poolMessage(fmt.Sprint(i), "s", 0, 1))
		poolUntil(t, p, "delivered", func(s events.PoolStats) bool { return s.Messages == 2 })
	}
	for i := range 200 {
		mustOffer(t, p, poolMessage("p", fmt.Sprint(i), 0, 1))
	}
	mustOffer(t, p, poolMessage("p", "s", 2, 1))
	for i := range 298 { // one more than there is room for
		mustOffer(t, p, poolMessage("p", fmt.Sprint(200+i), 0, 1))
	}
	close(g.open)
	closePool(t, p)
	d.expect(t, "p/m/s", "0 -1..1:1 2")
	if n := p.Stats().Dropped; n != 1 {
		t.Errorf("%d were dropped", n)
	}
}

func TestPoolRefuses(t *testing.T) {
	p := newPool(t, newDesk(), events.PoolConfig{MaxBytes: 10})
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

func TestPoolDefaults(t *testing.T) {
	open := make(chan struct{})
	d := newDesk()
	var serving atomic.Int64
	d.before = func(events.Message) {
		serving.Add(1)
		<-open
	}
	p := newPool(t, d, events.PoolConfig{})
	done, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	for p.Offer(done, events.Message{Pod: "p", Model: "m", Seq: uint64(n)}) == nil {
		n++
	}
	if n != 65_536/2 {
		t.Errorf("one pod may have %d messages", n)
	}
	n = 0
	large := make([]byte, 8<<20)
	for p.Offer(done, events.Message{Pod: "q", Model: "m", Payload: large}) == nil {
		n++
	}
	if want := (256 << 20) / 2 / len(large); n < want-1 || n > want {
		t.Errorf("one pod may have %d messages of 8 MiB, want %d", n, want)
	}
	for i := range 2 * 64 {
		mustOffer(t, p, poolMessage(fmt.Sprint(i), "s", 0, 1))
	}
	poolUntil(t, p, "all places are taken", func(events.PoolStats) bool { return serving.Load() >= 64 })
	if got := serving.Load(); got != 64 {
		t.Errorf("%d pods are served at a time", got)
	}
	close(open)
	closePool(t, p)
}

func TestNewPoolValidates(t *testing.T) {
	for _, tt := range []struct {
		name string
		sink events.Sink
		cfg  events.PoolConfig
		want string
	}{
		{"no sink", nil, events.PoolConfig{}, "the sink is nil"},
		{"concurrency", newDesk(), events.PoolConfig{Concurrency: -1}, "must not be negative"},
		{"messages", newDesk(), events.PoolConfig{MaxMessages: -1}, "must not be negative"},
		{"bytes", newDesk(), events.PoolConfig{MaxBytes: -1}, "must not be negative"},
	} {
		if p, err := events.NewPool(tt.sink, tt.cfg); p != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
