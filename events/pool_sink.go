package events

// The sink of a Pool is for transports that need what the sink behind it returns. A call
// stands in the queue of its pod like a message. When it is its turn, the caller gets the
// pod, with the place of the goroutine that served it, and calls the sink. So nobody else
// has the pod, and no payload is copied.
//
// A goroutine of the Pool that comes to the call gives its place away and goes. The caller
// gives the place on when it has done. So at most Concurrency are in the sink, and a call for
// a pod that nobody serves takes a place at once: 0.2 us, without another goroutine. For that,
// messages are in the queue as soon as they have room, in the order in which their offers
// began; an Offer that waits has made its copy before. A drop is noted at the message behind
// it, so it is reported in its place, whatever stands between, and a message before a call is
// not dropped for one behind it.

// Sink returns a Sink whose calls wait for their turn, behind all that was offered for the
// pod before, and return what the sink of p returns. So a Fleet, and a transport that asks
// engines for replays, can use p beside a host that calls Offer. Do not call it from a hook
// of p, or from the sink of p: it would wait for itself. After Close its calls do nothing
// but StreamView, and return ErrPoolClosed or the zero Position.
//
// IngestMessage takes any message, also one with Hold. OnError does not get its error.
// StreamView does not wait for a turn.
//
// RemovePod drops what was offered for the pod before, also by calls of Offer that wait for
// room, which return nil. It counts in Dropped, and OnDrop does not get it. When the sink
// has done with the message that it is working on, and with calls that wait already, its
// RemovePod is called. So nothing that was offered before brings the pod back. After an
// error of the sink call RemovePod again. Else the sink is told with the next message of
// each stream that it has restarted, because of what was dropped. RemoveStream does the
// same for a stream.
func (p *Pool) Sink() Sink { return poolSink{p} }

// poolSink is what Pool.Sink returns.
type poolSink struct{ p *Pool }

func (ps poolSink) IngestMessage(m Message) (Receipt, error) {
	p := ps.p
	s, err := p.begin(m.Pod, m.Model, m.Stream)
	if err != nil {
		return Receipt{}, err
	}
	defer p.finish(s)
	if err := p.pay(s); err != nil {
		return Receipt{}, err
	}
	return p.sink.IngestMessage(m)
}

func (ps poolSink) StreamNext(pod, model, stream string) Position {
	p := ps.p
	s, err := p.begin(pod, model, stream)
	if err != nil {
		return Position{}
	}
	defer p.finish(s)
	if p.pay(s) != nil {
		return Position{} // where it stands is to be forgotten
	}
	return p.sink.StreamNext(pod, model, stream)
}

func (ps poolSink) StreamNote(pod, model, stream string, n Note) error {
	p := ps.p
	s, err := p.begin(pod, model, stream)
	if err != nil {
		return err
	}
	defer p.finish(s)
	if err := p.sink.StreamNote(pod, model, stream, n); err != nil {
		return err
	}
	if n == NoteRestarted || n == NoteRewound { // what it is owed is done
		p.owe(s, false)
	}
	return nil
}

func (ps poolSink) RemovePod(pod string) error {
	p := ps.p
	return p.remove(pod, func(*poolStream) bool { return true }, func() error { return p.sink.RemovePod(pod) })
}

func (ps poolSink) RemoveStream(pod, model, stream string) error {
	p := ps.p
	return p.remove(pod, func(s *poolStream) bool { return s.streamName == streamName{model, stream} }, func() error {
		return p.sink.RemoveStream(pod, model, stream)
	})
}

func (ps poolSink) StreamView(pod, model, stream string) StreamView {
	return ps.p.sink.StreamView(pod, model, stream)
}

// remove drops what waits of some streams of a pod, and has the sink forget them.
func (p *Pool) remove(pod string, gone func(*poolStream) bool, forget func() error) (err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrPoolClosed
	}
	q := p.pod(pod)
	p.dropAll(q, gone)
	if err := p.await(&q.whole); err != nil {
		return err
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range q.streams {
			if gone(s) {
				s.owed = err != nil // else nothing tells of what was dropped
			}
		}
		p.end(&q.whole)
		p.sweepPod(q)
	}()
	return forget()
}

// dropAll drops all messages of some streams of a pod that wait, or wait for room. p.mu is
// held.
func (p *Pool) dropAll(q *podQueue, gone func(*poolStream) bool) {
	for e := q.first[waiting]; e != nil; {
		next := e.next[waiting]
		if e.turn == nil && gone(e.stream) {
			p.drop(e)
		}
		e = next
	}
	stay := q.waiters[:0]
	for _, w := range q.waiters {
		if w.entry.turn != nil || !gone(w.entry.stream) {
			stay = append(stay, w)
			continue
		}
		for _, s := range []*PoolStats{&q.stats, &p.stats} {
			s.Dropped++
		}
		p.refuse(w, nil)
	}
	clear(q.waiters[len(stay):])
	q.waiters = stay
	for _, s := range q.streams {
		if gone(s) {
			s.lost = poolLoss{}
		}
	}
	p.serve(q)
	p.serveStarved()
}

// begin waits for the turn of a call about a stream. If there is no error, finish ends it.
func (p *Pool) begin(pod, model, stream string) (*poolStream, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrPoolClosed
	}
	s := p.pod(pod).stream(model, stream)
	return s, p.await(s)
}

// await waits for the turn of a call. p.mu is held when it is called, and not when it
// returns.
func (p *Pool) await(s *poolStream) error {
	q := s.pod
	p.noteOffer(s)
	p.countCall(q, 1)
	if !q.active && len(q.waiters) == 0 && p.workers < p.cfg.Concurrency {
		q.active = true
		p.workers++
		p.mu.Unlock()
		return nil
	}
	e := p.newEntry(0)
	w := p.newWaiter(e)
	if e.stream, e.turn = s, w; len(q.waiters) == 0 {
		p.admit(e)
	} else {
		q.waiters = append(q.waiters, w)
	}
	p.mu.Unlock()
	<-w.ready
	err := w.err
	p.waiters.Put(w)
	return err
}

// finish ends a turn.
func (p *Pool) finish(s *poolStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(s)
}

// end ends a turn. p.mu is held.
func (p *Pool) end(s *poolStream) {
	q := s.pod
	p.countCall(q, -1)
	p.forgetOffer(s)
	p.serve(q)
	p.serveStarved()
	if q.active = q.first[waiting] != nil; q.active {
		p.line.add(q)
	}
	p.pass()
}

// pass gives a place on, to the pod that is first in line.
func (p *Pool) pass() {
	switch q := p.line.first; {
	case q == nil:
		p.workers--
		p.checkDrained()
	case q.first[waiting] != nil && !q.hasMessage():
		p.leave(p.line.take())
	default:
		go p.work()
	}
}

func (p *Pool) countCall(q *podQueue, n int) {
	q.stats.Calls += n
	p.stats.Calls += n
}

// pay tells the sink of a restart that it could not be told of before.
func (p *Pool) pay(s *poolStream) error {
	if !s.owed {
		return nil
	}
	err := p.sink.StreamNote(s.pod.name, s.model, s.name, NoteRestarted)
	if err == nil {
		p.owe(s, false)
	}
	return err
}

// owe notes whether the sink is to be told of a restart.
func (p *Pool) owe(s *poolStream, owed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.owed = owed
}
