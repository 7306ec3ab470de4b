package index

// Idle names. The name of an evicted block keeps its place in the forest: children
// may still name it as their parent, and a lower tier may still hold it by its
// hash. How many are kept is a share of what is held, a quarter: with a fixed
// budget of 65,536 names, engines of 16,384 blocks made the index spend 220 bytes
// for each block held. After a clear, which may stand for lost messages, all names
// stay, up to IdleNames, until new blocks push them out: they are parents of what
// comes next.

// minIdle is how many idle names even a small source keeps.
const minIdle = 1024

// idleName is an element of the queue of idle names, oldest first.
type idleName struct {
	hash       Hash
	loc        loc // 0: the name is rich
	prev, next uint32
	since      uint32 // by the clock of the forest
}

// becomeIdle makes a name that nobody holds idle: it has one key, which it refers
// to.
func (n *name) becomeIdle(l loc) {
	n.set(tagIdle | value(n.s.pushIdle(idleName{hash: n.hash, loc: l})))
}

func (s *source) pushIdle(n idleName) uint32 {
	n.since = s.f.Now()
	i := s.idle.take(n)
	s.linkIdle(i)
	s.dump.becameIdle(s, i)
	return i
}

// linkIdle puts an element behind the others.
func (s *source) linkIdle(i uint32) {
	n := s.idle.at(i)
	n.prev, n.next = s.idleLast, 0
	if s.idleLast == 0 {
		s.idleFirst = i
	} else {
		s.idle.at(s.idleLast).next = i
	}
	s.idleLast = i
}

// unlinkIdle takes an element from the queue.
func (s *source) unlinkIdle(i uint32) {
	n := *s.idle.at(i)
	if s.dump != nil && s.dump.next == i {
		s.dump.next = n.next
	}
	if n.prev == 0 {
		s.idleFirst = n.next
	} else {
		s.idle.at(n.prev).next = n.next
	}
	if n.next == 0 {
		s.idleLast = n.prev
	} else {
		s.idle.at(n.next).prev = n.prev
	}
	s.idle.give(i)
}

// trimIdle forgets the oldest of too many idle names. After much was released at
// once, names go two at a time, so that no Apply pays for all.
func (s *source) trimIdle() {
	n := s.idle.len()
	if s.ground.full() {
		s.forgetIdle(0, 2)
	}
	if n <= minIdle && n <= s.cfg.IdleNames {
		return
	}
	held := 0
	for _, b := range s.lanes.blocks {
		held += b
	}
	s.forgetIdle(min(max(minIdle, held/4), s.cfg.IdleNames), 2)
	s.forgetIdle(s.cfg.IdleNames, n)
}

// forgetIdle forgets idle names until there are no more than most, or at most n.
func (s *source) forgetIdle(most, n int) {
	for ; n > 0 && s.idle.len() > most; n-- {
		oldest := s.name(s.idle.at(s.idleFirst).hash)
		oldest.forget()
		s.counts.Forgotten++
	}
}
