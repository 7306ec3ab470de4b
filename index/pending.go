package index

import (
	"container/list"
	"slices"
)

// pending is a store of which at least one hash had no key.
type pending struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: what places the hashes once the parent has a key, and
	// which of them were removed meanwhile; nil: none.
	parent place
	locals []Local
	cut    cut
	gone   []bool
	elem   *list.Element
}

// What a pending store costs, beside its locals: rough figures for the heap
// that its entries and the names of its hashes take.
const (
	pendingBytes     = 256
	pendingHashBytes = 160
)

func (p *pending) cost() int {
	return pendingBytes + pendingHashBytes*len(p.hashes) + 8*len(p.locals)
}

// join places the parked stores that wait for a hash which has a key now, and
// those that wait for theirs. It works through a list because chains of
// orphans may be long.
func (s *source) join(at place) {
	work := []place{at}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for len(s.waiting[at]) > 0 {
			prev, ok := s.locOf(at)
			if !ok {
				break
			}
			p := s.waiting[at][0]
			s.unpark(p)
			s.counts.Joined++
			s.placeParked(p, prev)
			for _, h := range p.hashes {
				work = append(work, place{h, at.variant})
			}
		}
	}
}

func (s *source) placeParked(p *pending, prev loc) {
	s.placeRange(prev, p.parent.variant, Key(s.f.Key(prev)), p.locals, p.cut.size/p.cut.variant.Unit, func(from, to int, ends blockEnds) {
		for i := from; i < to; i++ {
			h := p.hashes[i]
			v := s.names.Get(h)
			if p.gone != nil && p.gone[i] && (s.hasKeyIn(h, v, p.parent.variant) || s.parkedAnew(place{h, p.parent.variant})) {
				continue // it was removed, and then stored as something else
			}
			s.name(h, v, ends.of(i))
			s.trimIdle()
		}
	})
}

// parkedAnew reports whether a parked store says what a hash stands for now.
func (s *source) parkedAnew(at place) bool {
	return slices.ContainsFunc(s.parkedBy[at.hash], func(p *pending) bool {
		return p.parent.variant == at.variant && (p.gone == nil || !p.gone[slices.Index(p.hashes, at.hash)])
	})
}

// leaveParked notes that the gpu does not hold a block of a group any more: a
// parked store that named it has no say in what its hash stands for next.
func (s *source) leaveParked(h Hash, g *group) {
	for _, p := range s.parkedBy[h] {
		if p.group != g {
			continue
		}
		if p.gone == nil {
			p.gone = make([]bool, len(p.hashes))
		}
		for i, o := range p.hashes {
			p.gone[i] = p.gone[i] || o == h
		}
	}
}

// park keeps a store until its parent has a key.
func (s *source) park(p *pending) {
	s.counts.Parked++
	s.parked++
	s.waiting[p.parent] = append(s.waiting[p.parent], p)
	for _, h := range p.hashes {
		if of := s.parkedBy[h]; len(of) == 0 || of[len(of)-1] != p {
			s.parkedBy[h] = append(of, p)
		}
	}
	s.await(p)
}

// await keeps a store in the queue of those that hold unplaced blocks.
func (s *source) await(p *pending) {
	p.elem = s.pending.PushBack(p)
	s.pendingBytes += p.cost()
	for s.pendingBytes > s.cfg.PendingBytes {
		s.abandon(s.pending.Front().Value.(*pending))
	}
}

// unpark takes a parked store from the queues.
func (s *source) unpark(p *pending) {
	s.parked--
	for _, h := range p.hashes {
		of := slices.DeleteFunc(s.parkedBy[h], func(o *pending) bool { return o == p })
		if s.parkedBy[h] = of; len(of) == 0 {
			delete(s.parkedBy, h)
		}
	}
	of := s.waiting[p.parent]
	if len(of) == 1 {
		delete(s.waiting, p.parent)
	} else {
		i := slices.Index(of, p)
		s.waiting[p.parent] = slices.Delete(of, i, i+1)
	}
	s.leave(p)
}

func (s *source) leave(p *pending) {
	s.pending.Remove(p.elem)
	s.pendingBytes -= p.cost()
}

// abandon gives up a store at the bound: its blocks that still have no key are
// forgotten.
func (s *source) abandon(p *pending) {
	if p.locals != nil {
		s.unpark(p)
	} else {
		s.leave(p)
	}
	lost := false
	for _, h := range p.hashes {
		if !s.unplaced(h) {
			continue
		}
		v := s.names.Get(h)
		if ln, n, copies := s.holding(v, p.group, p.tier); copies > 0 {
			s.copies.at(n).reported = false
			s.lose(h, v, ln, n)
			s.lossy, lost = true, true
		}
	}
	if lost || p.locals != nil {
		s.counts.Dropped++
	}
}
