package index

import (
	"container/list"
	"slices"
	"unsafe"
)

// What waits. A store of which a hash has no key is kept in a queue, because its
// blocks are held and nothing else would ever let go of them: at the bound in
// bytes the oldest is dropped, and its blocks that still have no key with it.
//
// A dense store whose parent has no key is parked as well: it knows how its blocks
// go on, and is placed when the parent gets its key, wherever that comes from. It
// is never attached anywhere else. Until then its blocks may be removed, and their
// hashes be used for something else; a parked store then has no say any more in
// what such a hash stands for (void). If the parent gets two keys at once, the store
// waits for its names alone.

// pending is a store of which at least one hash had no key.
type pending struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: what places the hashes once the parent has a key, and
	// which of them were removed meanwhile; nil: none.
	parked bool
	parent hashIn
	locals []Local
	cut    cut
	gone   []bool
	listed bool          // in source.listed
	waits  bool          // in source.waiting
	elem   *list.Element // nil: it waits no more
	// Masked stores of window groups have all of that but parked, and locals in
	// draft groups only.
	masking
	looked bool   // in source.masked
	since  uint32 // by the clock of the forest
}

// What a pending store costs in heap: it, its element of the queue and its entry of
// waiting; for each hash its name, which is rich, a copy, and an entry of listed.
const (
	pendingCost     = int(unsafe.Sizeof(pending{})+unsafe.Sizeof(list.Element{})) + 64
	pendingHashCost = int(unsafe.Sizeof(Hash(0))+unsafe.Sizeof(richName{})+unsafe.Sizeof(copyCount{})) + 96
	localBytes      = int(unsafe.Sizeof(Local(0)))
)

func (p *pending) cost() int {
	return pendingCost + pendingHashCost*len(p.hashes) + localBytes*len(p.locals)
}

// join places the parked stores that wait for a hash which has a key now, and
// those that wait for theirs. It works through a list because chains of
// orphans may be long.
func (s *source) join(at hashIn) {
	work := []hashIn{at}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for len(s.waiting[at]) > 0 {
			s.bury(at.hash)
			prev, n := s.locOf(at)
			if n == 0 {
				break
			}
			p := s.waiting[at][0]
			if !p.parked {
				s.unwait(p)
				s.look(p)
				continue
			}
			if n > 1 { // which of them it continues will never be known
				s.unpark(p)
				s.pendingBytes -= localBytes * len(p.locals)
				p.locals = nil
				s.counts.Dropped++
				continue
			}
			s.takeParked(p)
			s.counts.Joined++
			s.placeParked(p, prev)
			for _, h := range p.hashes {
				work = append(work, hashIn{h, at.variant})
			}
		}
	}
}

func (s *source) placeParked(p *pending, prev loc) {
	r := blockRange{prev, Key(s.f.Key(prev)), p.parent.variant, p.locals, p.cut.size / p.cut.variant.Unit}
	s.placeRange(r, func(from, to int, ends blockEnds) bool {
		for i := from; i < to; i++ {
			n := s.fresh(p.hashes[i])
			if p.isVoid(i) && (n.hasKeyIn(r.variant) || s.parkedAnew(hashIn{n.hash, r.variant})) {
				continue // it was removed, and then stored as something else
			}
			n.place(ends.of(i))
			s.trimIdle()
		}
		return true
	})
}

// parkedAnew reports whether a parked store says what a hash stands for now.
func (s *source) parkedAnew(at hashIn) bool {
	return slices.ContainsFunc(s.listed[at.hash], func(p *pending) bool {
		return p.parked && p.parent.variant == at.variant && !p.isVoid(slices.Index(p.hashes, at.hash))
	})
}

// isVoid reports whether p has no say in what its hash i stands for.
func (p *pending) isVoid(i int) bool { return p.gone != nil && p.gone[i] }

// void notes that the gpu does not hold a block of a group any more: a parked
// store that named it has no say in what its hash stands for next.
func (s *source) void(h Hash, g *group) {
	s.listMasked()
	for _, p := range s.listed[h] {
		if p.group == g {
			p.void(func(o Hash) bool { return o == h })
		}
	}
}

// voidAll notes that the gpu holds nothing any more.
func (s *source) voidAll() {
	for e := s.pending.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*pending); p.parked || p.need > 0 {
			p.void(func(Hash) bool { return true })
		}
	}
}

func (p *pending) void(which func(Hash) bool) {
	if p.gone == nil {
		p.gone = make([]bool, len(p.hashes))
	}
	for i, h := range p.hashes {
		p.gone[i] = p.gone[i] || which(h)
	}
}

// park keeps a store until its parent has a key.
func (s *source) park(p *pending) {
	s.counts.Parked++
	s.parked++
	p.parked = true
	s.wait(p)
	s.list(p)
	s.await(p)
}

// wait has a store wait for its parent.
func (s *source) wait(p *pending) {
	p.waits = true
	s.waiting[p.parent] = append(s.waiting[p.parent], p)
}

// unwait ends that.
func (s *source) unwait(p *pending) {
	if !p.waits {
		return
	}
	p.waits = false
	of := s.waiting[p.parent]
	if len(of) == 1 {
		delete(s.waiting, p.parent)
		return
	}
	i := slices.Index(of, p)
	s.waiting[p.parent] = slices.Delete(of, i, i+1)
}

// list has what happens to the hashes of a store noted from now on.
func (s *source) list(p *pending) {
	if p.listed {
		return
	}
	p.listed = true
	for _, h := range p.hashes {
		if of := s.listed[h]; len(of) == 0 || of[len(of)-1] != p {
			s.listed[h] = append(of, p)
		}
	}
}

// unlist ends that.
func (s *source) unlist(p *pending) {
	if !p.listed {
		return
	}
	p.listed = false
	for _, h := range p.hashes {
		of := slices.DeleteFunc(s.listed[h], func(o *pending) bool { return o == p })
		if s.listed[h] = of; len(of) == 0 {
			delete(s.listed, h)
		}
	}
}

// await keeps a store in the queue of those that hold unplaced blocks.
func (s *source) await(p *pending) {
	p.since = s.f.Now()
	p.elem = s.pending.PushBack(p)
	s.pendingBytes += p.cost()
	for s.pendingBytes > s.cfg.PendingBytes {
		s.drop(s.pending.Front().Value.(*pending))
	}
}

// takeParked takes a parked store out of all queues.
func (s *source) takeParked(p *pending) {
	s.unpark(p)
	s.take(p)
}

// unpark has a parked store wait for its names alone.
func (s *source) unpark(p *pending) {
	s.parked--
	s.unlist(p)
	s.unwait(p)
	p.parked = false
}

// take takes a store out of the queue.
func (s *source) take(p *pending) {
	s.pending.Remove(p.elem)
	p.elem = nil
	s.pendingBytes -= p.cost()
}

// drop gives up a store at the bound: its blocks that still have no key are
// released, and with them their names forgotten.
func (s *source) drop(p *pending) {
	lost := p.parked
	if p.parked {
		s.takeParked(p)
	} else {
		s.unlist(p)
		s.unwait(p)
		s.take(p)
	}
	for _, hash := range p.hashes {
		n := s.name(hash)
		if !n.unplaced() {
			continue
		}
		if h := n.holding(p.group, p.tier); h.copies > 0 {
			n.copyCount(&h).reported = false
			n.release(h)
			s.doubts, lost = true, true
		}
	}
	if lost {
		s.counts.Dropped++
	}
}

// clearPending lets go of all that waits.
func (s *source) clearPending() {
	s.pending.Init()
	s.pendingBytes, s.parked = 0, 0
	s.waiting = make(map[hashIn][]*pending)
	s.listed = make(map[Hash][]*pending)
	s.masked, s.noted = nil, 0
}
