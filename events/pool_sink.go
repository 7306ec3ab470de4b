package events

// The sink of a Pool is for transports that need the results of the sink behind it. A call
// waits in the queue of its pod like a message. When it has its turn, the caller gets the pod,
// with the place of the goroutine that served it, and calls the sink. So nothing else serves
// the pod, and no payload is copied.
//
// A goroutine of the Pool that comes to the call gives its place to it and ends. The caller
// passes the place on afterwards. So at most Concurrency are in the sink, and a call for an
// idle pod takes a place at once: 0.2 us, without another goroutine. For that, messages are in
// the queue as soon as they have room, in the order in which their offers began; an Offer that
// waits has made its copy before.

// Sink returns a Sink whose calls wait for their turn, behind all earlier offers for the pod,
// and return the results of p's sink. So a Fleet, and a transport that requests replays, can
// use p beside a host that calls Offer. Do not call it from a hook of p, or from the sink of
// p: it would wait for itself. After Close its calls do nothing, and return ErrPoolClosed or the
// zero Position.
//
// IngestMessage accepts any message, also one with Hold. OnError does not get its error.
//
// RemovePod drops all earlier messages of the pod, also those of calls of Offer that wait for
// room, which return nil. They count in Dropped. When the message in the sink and the calls
// that wait already are done, the sink's RemovePod is called. So no earlier message brings the
// pod back. After an error of the sink call RemovePod again. Without that call the sink gets a
// NoteRestarted with the next message of each stream, because of the drops. RemoveStream does
// the same for a stream.
func (p *Pool) Sink() Sink { return poolSink{p} }

// poolSink is the result of Pool.Sink.
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
		return Position{} // its position is about to be forgotten
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
	if n == NoteRestarted || n == NoteRewound { // this pays what is owed
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

// remove drops the waiting messages of some streams of a pod, and makes the sink forget the
// streams.
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
				s.owed = err != nil // else nothing shows the drops
			}
		}
		p.end(&q.whole)
		p.sweepPod(q)
	}()
	return forget()
}

// dropAll drops all messages of some streams of a pod that wait, for their turn or for room.
// p.mu is held.
func (p *Pool) dropAll(q *podQueue, gone func(*poolStream) bool) {
	e := q.first
	q.first = nil
	for e != nil {
		next := e.next
		e.next = nil
		if e.turn == nil && gone(e.stream) {
			p.drop(e)
		} else {
			q.put(e)
		}
		e = next
	}
	stay := q.waiters[:0]
	for _, w := range q.waiters {
		if w.entry.turn != nil || !gone(w.entry.stream) {
			stay = append(stay, w)
			continue
		}
		p.stats.Dropped++
		p.refuse(w, nil)
	}
	clear(q.waiters[len(stay):])
	q.waiters = stay
	p.serve(q)
	p.serveStarved()
}

// begin waits for the turn of a call about a stream. Without an error, finish ends it.
func (p *Pool) begin(pod, model, stream string) (*poolStream, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrPoolClosed
	}
	s := p.pod(pod).stream(model, stream)
	return s, p.await(s)
}

// await waits for the turn of a call. It is called with p.mu held, and returns without.
func (p *Pool) await(s *poolStream) error {
	q := s.pod
	p.noteOffer(s)
	p.calls++
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
	p.calls--
	p.forgetOffer(s)
	p.serve(q)
	p.serveStarved()
	if q.active = q.first != nil; q.active {
		p.line.add(q)
	}
	p.pass()
}

// pass gives a place to the first pod in line.
func (p *Pool) pass() {
	switch q := p.line.first; {
	case q == nil:
		p.workers--
		p.checkDrained()
	case q.first != nil && !q.hasMessage():
		p.leave(p.line.take())
	default:
		go p.work()
	}
}

// pay gives the sink a NoteRestarted that failed before.
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

// owe records whether the sink has to get a NoteRestarted.
func (p *Pool) owe(s *poolStream, owed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.owed = owed
}
