package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
)

// Defaults of a PoolConfig.
const (
	// defaultConcurrency is large, because a goroutine exists only while there is work.
	defaultConcurrency  = 64
	defaultPoolMessages = 1 << 16
	defaultPoolBytes    = 256 << 20
)

const (
	// poolTurn is how many messages of a pod are delivered before the next pod in line has its
	// turn.
	poolTurn = 32
	// About so many idle pods and streams are remembered.
	idlePods    = 1 << 10
	idleStreams = 1 << 6
)

// ErrPoolClosed is returned after Close by every method that returns an error.
var ErrPoolClosed = errors.New("events: pool is closed")

var errHold = errors.New("events: pool: a message with Hold needs the sink's receipt, which Offer does not have: use Pool.Sink")

// PoolConfig configures a Pool. A zero limit is its default.
type PoolConfig struct {
	// Concurrency is the number of pods that are served at the same time. Other pods wait
	// only when the sink is slow with that many pods. 0: 64.
	Concurrency int
	// MaxMessages and MaxBytes bound the Pool: messages that wait or are in the sink, and the
	// bytes of their payloads. A pod may use as much room as it leaves free, or one message
	// more. So one pod that floods the Pool gets a half. If k pods do, each gets one part of
	// k+1, and one part stays free for others. 0: 65,536 messages, and 256 MiB.
	MaxMessages int
	MaxBytes    int64
	// OnError gets each error of the sink about an offered message, with the message, whose
	// payload is valid during the call only. A sink counts an error that wraps ErrMalformed as
	// a loss. The goroutine that delivers the messages of the pod calls it, and waits for it.
	OnError func(Message, error)
}

// PoolStats counts messages. The sum of Messages, Delivered and Dropped is the number that
// Offer has accepted.
type PoolStats struct {
	Concurrency int // of the PoolConfig, or the default

	Messages int   // that wait or are in the sink
	Bytes    int64 // of their payloads

	Delivered uint64 // given to the sink, also if it returned an error
	Dropped   uint64 // with their pod or stream, or by Close
	Malformed uint64 // errors of the sink that wrap ErrMalformed
	Errors    uint64 // other errors of the sink
	Waited    uint64 // calls of Offer that had to wait for room
}

// Pool is a queue between a transport that must not wait and a Sink. A Subscriber
// needs none: it waits in the socket.
//
// Offer queues a message and returns at once, or waits while there is no room. Sink is for
// transports that need the sink's results.
//
// The messages of a stream come to the sink in the order in which they were offered, those of
// a pod one at a time, those of different pods concurrently and in turns. A pod that floods
// the Pool does not delay others, and neither does a pod with a slow sink: see Concurrency and
// MaxMessages.
//
// All methods are safe for concurrent use. NewPool starts no goroutine. There are at
// most Concurrency goroutines while there are messages, and none after Close. At most
// Concurrency of them and of calls are in the sink. The Pool does not recover a panic of
// the sink.
type Pool struct {
	sink    Sink
	cfg     PoolConfig
	work    func() // p.run: creating it each time would allocate
	entries [classes]sync.Pool
	waiters sync.Pool

	mu      sync.Mutex // guards the fields below, and all that is reached from them
	pods    map[string]*podQueue
	sweepAt int // pods that make room for another one
	line    podLine
	// starved are pods without a message that wait for room of others.
	starved []*podQueue
	stats   PoolStats
	calls   int // of Pool.Sink, that wait for their turn or are in the sink
	workers int // goroutines and calls that have a place, at most Concurrency

	closed   bool
	drained  chan struct{} // closed when closed, and workers is 0
	closeErr error
}

// NewPool returns a Pool, or an error that names each wrong field of cfg.
func NewPool(sink Sink, cfg PoolConfig) (*Pool, error) {
	var errs []error
	if sink == nil {
		errs = append(errs, errors.New("events: pool: the sink is nil"))
	}
	if cfg.Concurrency < 0 || cfg.MaxMessages < 0 || cfg.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("events: pool: Concurrency is %d, MaxMessages %d and MaxBytes %d, must not be negative", cfg.Concurrency, cfg.MaxMessages, cfg.MaxBytes))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p := &Pool{sink: sink, cfg: cfg.withDefaults(), pods: make(map[string]*podQueue), sweepAt: idlePods, drained: make(chan struct{})}
	p.work = p.run
	return p, nil
}

func (c PoolConfig) withDefaults() PoolConfig {
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.MaxMessages = cmp.Or(c.MaxMessages, defaultPoolMessages)
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultPoolBytes)
	return c
}

// Offer queues a message and a copy of its payload. If there is no room it waits until there
// is, or until ctx ends. After an error the message was not queued: offer it again, or it is
// missing in its stream.
func (p *Pool) Offer(ctx context.Context, m Message) error {
	n := len(m.Payload)
	switch {
	case m.Hold:
		return errHold
	case int64(n) > p.cfg.MaxBytes:
		return fmt.Errorf("events: pool: pod %q: message %d of %q has %d bytes, MaxBytes is %d", m.Pod, m.Seq, m.Stream, n, p.cfg.MaxBytes)
	}
	e := p.newEntry(n)
	e.size, e.seq, e.replayed, e.err = n, m.Seq, m.Replayed, m.Err
	copy(e.buf, m.Payload) // without the lock: it may be long

	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.freeEntry(e)
		return ErrPoolClosed
	}
	q := p.pod(m.Pod)
	e.stream = q.stream(m.Model, m.Stream)
	p.noteOffer(e.stream)
	if len(q.waiters) == 0 && p.fits(q, n) {
		p.admit(e)
		p.serveStarved()
		p.mu.Unlock()
		return nil
	}
	w := p.newWaiter(e)
	q.waiters = append(q.waiters, w)
	p.stats.Waited++
	p.noteStarved(q)
	p.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
		p.cancel(w, ctx.Err())
		<-w.ready
	}
	err := w.err
	p.waiters.Put(w)
	return err
}

// Stats returns the counts so far.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Concurrency = p.cfg.Concurrency
	return s
}

// Close accepts no more messages, gives the sink those that wait, and waits for the goroutines
// of the Pool, and for calls that have their turn or come to it. Calls of Offer that wait for
// room return ErrPoolClosed, and so do calls behind them.
//
// When ctx ends, messages that still wait are dropped, and every Close returns an error that
// wraps that of ctx. If you go on to use the sink, give it a NoteRestarted for each stream
// then. Close always waits for the message that is in the sink.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		for _, q := range p.pods {
			for _, w := range q.waiters {
				p.refuse(w, ErrPoolClosed)
			}
			q.waiters = nil
		}
		p.checkDrained()
	}
	p.mu.Unlock()

	select {
	case <-p.drained:
	case <-ctx.Done():
		p.abandon(ctx.Err())
		<-p.drained
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeErr
}

// abandon drops all waiting messages.
func (p *Pool) abandon(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.stats.Dropped
	for _, q := range p.pods {
		for q.first != nil {
			if e := q.take(); e.turn == nil {
				p.drop(e)
			} else {
				p.refuse(e.turn, ErrPoolClosed)
			}
		}
	}
	if n := p.stats.Dropped - before; n > 0 {
		p.closeErr = fmt.Errorf("events: pool: closed with %d messages not delivered: %w", n, cause)
	}
}

// checkDrained lets Close return.
func (p *Pool) checkDrained() {
	if p.closed && p.workers == 0 {
		close(p.drained)
	}
}

// A podQueue is a pod and its queue.
type podQueue struct {
	name    string
	whole   poolStream // of calls about the pod, and not about one of its streams
	streams map[streamName]*poolStream
	sweepAt int         // streams that make room for another one
	recent  *poolStream // the last one looked up
	offers  int         // of all streams

	first, last *poolEntry

	messages int           // as in PoolStats
	bytes    int64         // as in PoolStats
	waiters  []*poolWaiter // callers, in order

	active  bool // in line or being served
	starved bool // in Pool.starved
	next    *podQueue
}

type streamName struct {
	model, name string // Message.Model, Message.Stream
}

// A poolStream is one stream of a pod.
type poolStream struct {
	pod *podQueue
	streamName
	offers int // that wait for room, wait, or are delivered; calls too
	// owed: the sink has to get a NoteRestarted first. Only a goroutine that has the turn of
	// the pod changes it.
	owed bool
}

// pod finds a pod or makes it.
func (p *Pool) pod(name string) *podQueue {
	q := p.pods[name]
	if q == nil {
		if len(p.pods) >= p.sweepAt {
			p.sweep()
		}
		q = &podQueue{name: strings.Clone(name), streams: make(map[streamName]*poolStream), sweepAt: idleStreams}
		q.whole.pod = q
		p.pods[q.name] = q
	}
	return q
}

// stream finds a stream or makes it.
func (q *podQueue) stream(model, name string) *poolStream {
	if s := q.recent; s != nil && s.model == model && s.name == name {
		return s
	}
	s := q.streams[streamName{model, name}]
	if s == nil {
		if len(q.streams) >= q.sweepAt {
			q.sweep()
		}
		s = &poolStream{pod: q, streamName: streamName{strings.Clone(model), strings.Clone(name)}}
		q.streams[s.streamName] = s
	}
	q.recent = s
	return s
}

// sweep forgets idle pods: peers may invent names.
func (p *Pool) sweep() {
	for _, q := range p.pods {
		p.sweepPod(q)
	}
	p.sweepAt = max(idlePods, 2*len(p.pods))
}

// sweepPod forgets a pod if it is idle.
func (p *Pool) sweepPod(q *podQueue) {
	if q.offers == 0 {
		if q.sweep(); len(q.streams) == 0 {
			delete(p.pods, q.name)
		}
	}
}

// sweep forgets idle streams of which the sink has everything.
func (q *podQueue) sweep() {
	q.recent = nil
	for name, s := range q.streams {
		if s.offers == 0 && !s.owed {
			delete(q.streams, name)
		}
	}
	q.sweepAt = max(idleStreams, 2*len(q.streams))
}

func (p *Pool) noteOffer(s *poolStream) {
	s.offers++
	s.pod.offers++
}

// forgetOffer undoes noteOffer.
func (p *Pool) forgetOffer(s *poolStream) {
	s.offers--
	s.pod.offers--
}

// fits: a pod may have as much as it leaves free. So the room of a pod shrinks with the use of
// all, and a pod without messages always has some.
func (p *Pool) fits(q *podQueue, n int) bool {
	return q.messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&
		q.bytes+int64(n) <= p.cfg.MaxBytes-p.stats.Bytes
}

// charge counts messages and bytes.
func (p *Pool) charge(q *podQueue, messages, bytes int) {
	q.messages += messages
	q.bytes += int64(bytes)
	p.stats.Messages += messages
	p.stats.Bytes += int64(bytes)
}

// admit puts an entry that has room into its queue. A call needs no room.
func (p *Pool) admit(e *poolEntry) {
	q := e.stream.pod
	if e.turn == nil {
		p.charge(q, 1, e.size)
	}
	q.put(e)
	if q.active {
		return
	}
	q.active = true
	p.line.add(q)
	if p.workers < p.cfg.Concurrency {
		p.workers++
		go p.work()
	}
}

// drop gives up a message that was taken out of its queue.
func (p *Pool) drop(e *poolEntry) {
	p.charge(e.stream.pod, -1, -e.size)
	p.stats.Dropped++
	p.forgetOffer(e.stream)
	p.freeEntry(e)
}

// run delivers messages until the line is empty.
func (p *Pool) run() {
	p.mu.Lock()
	for q := p.line.take(); q != nil; q = p.line.take() {
		for i := 0; q.hasMessage() && (i < poolTurn || p.line.first == nil); i++ {
			p.serveOne(q)
		}
		if !p.leave(q) {
			continue
		}
		if p.workers == p.cfg.Concurrency {
			p.mu.Unlock() // a call has the place
			return
		}
		p.workers++
	}
	p.workers--
	p.checkDrained()
	p.mu.Unlock()
}

// hasMessage reports whether a message is next, and not a call.
func (q *podQueue) hasMessage() bool { return q.first != nil && q.first.turn == nil }

// leave ends the service of a pod. If a call is next, it gets the pod and the place of the
// caller of leave.
func (p *Pool) leave(q *podQueue) (given bool) {
	switch {
	case q.first == nil:
		q.active = false
	case q.hasMessage():
		p.line.add(q)
	default:
		e := q.take()
		w := e.turn
		p.freeEntry(e)
		w.settle(nil)
		return true
	}
	return false
}

// serveOne delivers the first message of a pod. It releases the lock meanwhile.
func (p *Pool) serveOne(q *podQueue) {
	e := q.take()
	s := e.stream
	m := Message{
		Pod:      q.name,
		Model:    s.model,
		Stream:   s.name,
		Seq:      e.seq,
		Payload:  e.buf[:e.size],
		Err:      e.err,
		Replayed: e.replayed,
	}

	p.mu.Unlock()
	err := p.pay(s)
	if err == nil {
		_, err = p.sink.IngestMessage(m)
	}
	if err != nil && p.cfg.OnError != nil {
		p.cfg.OnError(m, err)
	}
	p.mu.Lock()

	switch {
	case errors.Is(err, ErrMalformed):
		p.stats.Malformed++
	case err != nil:
		p.stats.Errors++
	}
	p.stats.Delivered++
	p.charge(q, -1, -e.size)
	p.forgetOffer(s)
	p.freeEntry(e)
	p.serve(q)
	p.serveStarved()
}

// A poolWaiter is a caller that waits: of Offer for room, or another one for its turn.
type poolWaiter struct {
	entry *poolEntry
	done  bool
	err   error
	ready chan struct{} // gets one value when done
}

func (p *Pool) newWaiter(e *poolEntry) *poolWaiter {
	w, _ := p.waiters.Get().(*poolWaiter)
	if w == nil {
		w = &poolWaiter{ready: make(chan struct{}, 1)}
	}
	w.entry, w.done, w.err = e, false, nil
	return w
}

func (w *poolWaiter) settle(err error) {
	w.entry, w.done, w.err = nil, true, err
	w.ready <- struct{}{}
}

// refuse settles a waiter whose entry is in no queue.
func (p *Pool) refuse(w *poolWaiter, err error) {
	s := w.entry.stream
	if w.entry.turn != nil {
		p.calls--
	}
	p.forgetOffer(s)
	p.freeEntry(w.entry)
	w.settle(err)
}

// cancel settles a waiter whose context has ended, if it is not settled yet.
func (p *Pool) cancel(w *poolWaiter, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.done {
		return
	}
	q := w.entry.stream.pod
	i := slices.Index(q.waiters, w)
	q.waiters = slices.Delete(q.waiters, i, i+1)
	p.refuse(w, fmt.Errorf("events: pool: pod %q: waiting for room: %w", q.name, cause))
	p.serve(q) // the next one may be smaller
}

// serve admits waiters of a pod in order, as there is room.
func (p *Pool) serve(q *podQueue) {
	for len(q.waiters) > 0 {
		w := q.waiters[0]
		e := w.entry
		if e.turn == nil && !p.fits(q, e.size) {
			p.noteStarved(q)
			return
		}
		q.waiters = slices.Delete(q.waiters, 0, 1)
		if p.admit(e); e.turn == nil {
			w.settle(nil)
		}
	}
}

// noteStarved: a pod with a message is served when that is delivered; one without depends on
// others.
func (p *Pool) noteStarved(q *podQueue) {
	if q.messages == 0 && !q.starved {
		q.starved = true
		p.starved = append(p.starved, q)
	}
}

func (p *Pool) serveStarved() {
	if len(p.starved) == 0 {
		return
	}
	p.starved = slices.DeleteFunc(p.starved, func(q *podQueue) bool {
		p.serve(q) // it does not call noteStarved for q again
		q.starved = len(q.waiters) > 0 && q.messages == 0
		return !q.starved
	})
}

// A podLine is the pods that have messages and are not served, in order.
type podLine struct {
	first, last *podQueue
}

func (l *podLine) add(q *podQueue) {
	if l.first == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
}

func (l *podLine) take() *podQueue {
	q := l.first
	if q != nil {
		l.first, q.next = q.next, nil
	}
	return q
}

// A poolEntry is a message or a call that waits. Unused ones are zero, but for class and buf.
type poolEntry struct {
	stream   *poolStream
	turn     *poolWaiter // of a call; nil: it is none
	seq      uint64
	size     int
	err      error
	replayed bool
	class    int8
	buf      []byte // its first size bytes are the payload
	next     *poolEntry
}

// put adds an entry at the end.
func (q *podQueue) put(e *poolEntry) {
	if q.first == nil {
		q.first = e
	} else {
		q.last.next = e
	}
	q.last = e
}

// take removes the first entry.
func (q *podQueue) take() *poolEntry {
	e := q.first
	q.first, e.next = e.next, nil
	return e
}

// Entries are used again by the size of their buffers, powers of 2 from 256 B to 1 MiB; larger
// ones are rare and left to the garbage collector.
const (
	minClassBits = 8
	maxClassBits = 20
	classes      = maxClassBits - minClassBits + 1
)

func (p *Pool) newEntry(n int) *poolEntry {
	c := max(bits.Len(uint(max(n, 1)-1)), minClassBits) - minClassBits
	if c >= classes {
		return &poolEntry{class: -1, buf: make([]byte, n)}
	}
	if e, _ := p.entries[c].Get().(*poolEntry); e != nil {
		return e
	}
	return &poolEntry{class: int8(c), buf: make([]byte, 1<<(c+minClassBits))}
}

func (p *Pool) freeEntry(e *poolEntry) {
	if *e = (poolEntry{class: e.class, buf: e.buf}); e.class >= 0 {
		p.entries[e.class].Put(e)
	}
}
