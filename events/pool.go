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
	// DropOldest: if a pod has used its room, its older messages are dropped. Without it, or
	// if no message may be dropped, Offer waits.
	DropOldest bool

	// The hooks may be nil. They are called by the goroutine that delivers the
	// pod's messages, which wait for them.

	// OnDrop gets dropped messages of a stream, just before the sink gets the message behind
	// them.
	OnDrop func(Drop)
	// OnError gets each error of the sink, with the message; for OfferRestart the message has
	// no payload. The payload is valid during the call only. A sink counts an error that wraps
	// ErrMalformed as a loss.
	OnError func(Message, error)
}

// Drop describes messages of one stream that a Pool dropped, one after the other.
type Drop struct {
	Pod, Model, Stream string
	// From and To are the lowest and the highest number, both inclusive.
	From, To uint64
	// Messages is less than To-From+1 if the numbers had gaps, and may be more if some
	// messages came twice.
	Messages uint64
}

// PoolStats counts messages, and calls of OfferRestart like messages. The sum of Messages,
// Delivered and Dropped is the number that Offer has accepted.
type PoolStats struct {
	Concurrency int // of the PoolConfig, or the default

	Messages int   // that wait or are in the sink
	Bytes    int64 // of their payloads

	Delivered uint64 // given to the sink, also if it returned an error
	Dropped   uint64
	Malformed uint64 // errors of the sink that wrap ErrMalformed
	Errors    uint64 // other errors of the sink
	Waited    uint64 // calls of Offer and OfferRestart that had to wait for room
}

// Pool is a queue between a transport that must not wait and a Sink. A Subscriber
// needs none: it waits in the socket.
//
// Offer queues a message and returns at once. Sink is for transports that need the sink's
// results.
//
// The messages of a stream come to the sink in the order in which they were offered, those of
// a pod one at a time, those of different pods concurrently and in turns. A pod that floods
// the Pool does not delay others, and neither does a pod with a slow sink: see Concurrency and
// MaxMessages.
//
// With DropOldest the Pool drops messages when it is full, and the sink always notices. The
// newest message of a stream is never dropped, so the sink sees a gap before it. If the
// numbers would not show the gap, because they went back or because the sink does not have the
// stream, the Pool gives the sink a NoteRestarted.
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
// is, or until ctx ends; it has the copy already. After an error the message was not queued:
// offer it again, or it is missing in its stream.
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
	return p.offer(ctx, m.Pod, m.Model, m.Stream, e)
}

// OfferRestart queues a NoteRestarted for the sink, behind the messages of the stream that
// were offered before. It waits as Offer does, and is never dropped.
func (p *Pool) OfferRestart(ctx context.Context, pod, model, stream string) error {
	e := p.newEntry(0)
	e.restart = true
	return p.offer(ctx, pod, model, stream, e)
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
// When ctx ends, messages that still wait are dropped. OnDrop gets them, and the sink does
// not. Every Close returns an error that wraps that of ctx then. If you go on to use the sink,
// give it a NoteRestarted for the streams that OnDrop has named. Close always waits for the
// message that is in the sink.
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
	for _, d := range p.unreported() {
		p.cfg.OnDrop(d)
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
		for e := q.first[waiting]; e != nil; e = q.first[waiting] {
			if e.turn == nil {
				p.drop(e)
				continue
			}
			q.take(e)
			p.refuse(e.turn, ErrPoolClosed)
		}
	}
	if n := p.stats.Dropped - before; n > 0 {
		p.closeErr = fmt.Errorf("events: pool: closed with %d messages not delivered: %w", n, cause)
	}
}

// unreported returns the dropped messages that have no message behind them.
func (p *Pool) unreported() (drops []Drop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.OnDrop == nil {
		return nil
	}
	for _, q := range p.pods {
		for _, s := range q.streams {
			if s.lost.messages > 0 {
				drops = append(drops, s.drop(s.lost))
				s.lost = poolLoss{}
			}
		}
	}
	return drops
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

	entryLists
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
	offers int        // that wait for room, wait, or are delivered; calls too
	newest *poolEntry // the last one in the queue; nil if there is none, or a call behind it

	lost poolLoss // dropped behind the queue
	// owed: a NoteRestarted to the sink has failed. Only the goroutine that serves the pod
	// changes it.
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
		if s.offers == 0 && !s.owed && s.lost.messages == 0 {
			delete(q.streams, name)
		}
	}
	q.sweepAt = max(idleStreams, 2*len(q.streams))
}

// offer puts an entry into the queue of its stream. It waits for room.
func (p *Pool) offer(ctx context.Context, pod, model, name string, e *poolEntry) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.freeEntry(e)
		return ErrPoolClosed
	}
	q := p.pod(pod)
	e.stream = q.stream(model, name)
	p.noteOffer(e.stream)
	if len(q.waiters) == 0 && p.room(e.stream, e.size) {
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

func (p *Pool) noteOffer(s *poolStream) {
	s.offers++
	s.pod.offers++
}

// forgetOffer undoes noteOffer.
func (p *Pool) forgetOffer(s *poolStream) {
	s.offers--
	s.pod.offers--
}

// room reports whether a message of n bytes fits. With DropOldest it makes room if it can. A
// caller that gets true admits the message.
func (p *Pool) room(s *poolStream, n int) bool {
	q := s.pod
	for !p.fits(q, n) {
		if !p.cfg.DropOldest {
			return false
		}
		if q.first[spare] == nil {
			return p.replace(s, n)
		}
		p.drop(q.first[spare])
	}
	return true
}

// fits: a pod may have as much as it leaves free. So the room of a pod shrinks with the use of
// all, and a pod without messages always has some.
func (p *Pool) fits(q *podQueue, n int) bool {
	return q.messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&
		q.bytes+int64(n) <= p.cfg.MaxBytes-p.stats.Bytes
}

// replace drops the newest message of a stream if that makes room for its next one. Otherwise
// it has to stay: nothing else would show the gap.
func (p *Pool) replace(s *poolStream, n int) bool {
	e := s.newest
	if e == nil || e.restart {
		return false
	}
	p.charge(s.pod, -1, -e.size)
	ok := p.fits(s.pod, n)
	p.charge(s.pod, 1, e.size)
	if ok {
		p.drop(e)
	}
	return ok
}

// charge counts messages and bytes.
func (p *Pool) charge(q *podQueue, messages, bytes int) {
	q.messages += messages
	q.bytes += int64(bytes)
	p.stats.Messages += messages
	p.stats.Bytes += int64(bytes)
}

// admit puts an entry that has room into its queue. A call needs no room. No message before a
// call is dropped for one behind it, so losses are reported in order.
func (p *Pool) admit(e *poolEntry) {
	s := e.stream
	q := s.pod
	if old := s.newest; e.turn == nil && old != nil && !old.restart {
		q.link(spare, old)
		old.then = e
	}
	if s.newest = e; e.turn != nil {
		s.newest = nil
	} else {
		e.lost, s.lost = s.lost, poolLoss{}
		p.charge(q, 1, e.size)
	}
	q.link(waiting, e)
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

// drop takes a message out of its queue and records the loss.
func (p *Pool) drop(e *poolEntry) {
	s := e.stream
	q := s.pod
	q.take(e)
	p.charge(q, -1, -e.size)
	p.stats.Dropped++
	p.forgetOffer(s)
	behind := &s.lost
	if e.then != nil {
		behind = &e.then.lost
	}
	behind.add(e.lost)
	if !e.restart {
		behind.add(poolLoss{e.seq, e.seq, 1})
	}
	p.freeEntry(e)
}

// A poolLoss is a run of dropped messages of a stream.
type poolLoss struct{ from, to, messages uint64 }

func (l *poolLoss) add(more poolLoss) {
	switch {
	case more.messages == 0:
	case l.messages == 0:
		*l = more
	default:
		*l = poolLoss{min(l.from, more.from), max(l.to, more.to), l.messages + more.messages}
	}
}

// drop returns the Drop of a loss.
func (s *poolStream) drop(l poolLoss) Drop {
	return Drop{Pod: s.pod.name, Model: s.model, Stream: s.name, From: l.from, To: l.to, Messages: l.messages}
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

// hasMessage reports whether a message or a restart is next, and not a call.
func (q *podQueue) hasMessage() bool {
	e := q.first[waiting]
	return e != nil && e.turn == nil
}

// leave ends the service of a pod. If a call is next, it gets the pod and the place of the
// caller of leave.
func (p *Pool) leave(q *podQueue) (given bool) {
	e := q.first[waiting]
	switch {
	case e == nil:
		q.active = false
	case e.turn == nil:
		p.line.add(q)
	default:
		q.take(e)
		w := e.turn
		p.freeEntry(e)
		w.settle(nil)
		return true
	}
	return false
}

// serveOne delivers the first message of a pod. It releases the lock meanwhile.
func (p *Pool) serveOne(q *podQueue) {
	e := q.first[waiting]
	q.take(e)
	s := e.stream
	d := s.prepare(e)

	p.mu.Unlock()
	err := p.deliver(&d)
	p.mu.Lock()

	s.owed = d.restart
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

// A poolDelivery is the sink's next input.
type poolDelivery struct {
	drop    Drop // before it; none if its Messages is 0
	restart bool // comes first; false when done
	message bool // and m is one
	m       Message
}

// prepare makes a delivery of an entry and of the drops before it.
func (s *poolStream) prepare(e *poolEntry) poolDelivery {
	return poolDelivery{
		drop:    s.drop(e.lost),
		message: !e.restart,
		restart: e.restart || s.owed,
		m: Message{
			Pod:      s.pod.name,
			Model:    s.model,
			Stream:   s.name,
			Seq:      e.seq,
			Payload:  e.buf[:e.size],
			Err:      e.err,
			Replayed: e.replayed,
		},
	}
}

// deliver calls the sink and the hooks. If the sink refuses a restart, it gets no message
// either: it would join the message to blocks that it should have forgotten.
func (p *Pool) deliver(d *poolDelivery) (err error) {
	if d.drop.Messages > 0 {
		if p.cfg.OnDrop != nil {
			p.cfg.OnDrop(d.drop)
		}
		d.restart = d.restart || p.hides(d)
	}
	if d.restart {
		err = p.sink.StreamNote(d.m.Pod, d.m.Model, d.m.Stream, NoteRestarted)
		d.restart = err != nil
	}
	if err == nil && d.message {
		_, err = p.sink.IngestMessage(d.m)
	}
	if err != nil && p.cfg.OnError != nil {
		p.cfg.OnError(d.m, err)
	}
	return err
}

// hides reports whether the message would hide a drop before it. A gap shows if all of it is
// beyond the sink's position and below the next message. An engine that restarted counts from
// 0: without its first messages the next one may seem to continue the old engine.
func (p *Pool) hides(d *poolDelivery) bool {
	at := p.sink.StreamNext(d.m.Pod, d.m.Model, d.m.Stream)
	return !at.Received || d.drop.From < at.Next || d.m.Seq <= d.drop.To
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
		if e.turn == nil && !p.room(e.stream, e.size) {
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

// The lists of a podQueue.
const (
	waiting = iota // all entries, in order
	spare          // messages that have a newer entry of their stream behind them
	lists
)

type entryLists struct {
	first, last [lists]*poolEntry
}

// A poolEntry is a message, a restart or a call that waits. Unused ones are zero, but for
// class and buf.
type poolEntry struct {
	stream     *poolStream
	turn       *poolWaiter // of a call; nil: it is none
	seq        uint64
	size       int
	err        error
	replayed   bool
	restart    bool
	spare      bool
	then       *poolEntry // the next message of the stream, if spare
	lost       poolLoss   // before it
	class      int8
	buf        []byte // its first size bytes are the payload
	next, prev [lists]*poolEntry
}

func (q *podQueue) link(l int, e *poolEntry) {
	e.spare = l == spare
	e.prev[l], e.next[l] = q.last[l], nil
	if q.last[l] == nil {
		q.first[l] = e
	} else {
		q.last[l].next[l] = e
	}
	q.last[l] = e
}

func (q *podQueue) unlink(l int, e *poolEntry) {
	if e.prev[l] == nil {
		q.first[l] = e.next[l]
	} else {
		e.prev[l].next[l] = e.next[l]
	}
	if e.next[l] == nil {
		q.last[l] = e.prev[l]
	} else {
		e.next[l].prev[l] = e.prev[l]
	}
	e.prev[l], e.next[l] = nil, nil
}

// take removes an entry from the lists of its pod.
func (q *podQueue) take(e *poolEntry) {
	q.unlink(waiting, e)
	if e.spare {
		q.unlink(spare, e)
	}
	if e.stream.newest == e {
		e.stream.newest = nil
	}
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
