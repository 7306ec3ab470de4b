package index

import "github.com/kvindex/kvindex/index/internal/forest"

// Idle names. The name of a block that its engine dropped keeps its place in the forest:
// children may still name it as their parent, and a lower tier may still hold it by its
// hash. A source keeps a quarter as many idle names as it holds blocks: with a fixed
// budget of 65,536 names, engines of 16,384 blocks made the index spend 220 bytes
// for each block held. After a clear, which may stand for lost messages, all names
// stay, up to idleNames, until new blocks push them out: the next stores may name them as
// parents.

// minIdle is how many idle names even a small source keeps.
const minIdle = 1024

// idleName is an element of the queue of idle names, oldest first.
type idleName struct {
	hash       Hash
	loc        loc // 0: the name is rich
	prev, next uint32
	since      uint32 // by the clock of the forest
}

// idleQueue is the idle names of a source, oldest first: at most idleNames of them after
// each change, and in the long run a quarter of the blocks held. They all have keys: a
// name without keys and holders is forgotten.
type idleQueue struct {
	f *forest.Forest
	pool[idleName]
	first, last uint32
	order       *idleOrder // nil: no snapshot numbers the queue
}

// push adds a name, and returns its number.
func (q *idleQueue) push(n idleName) uint32 {
	n.since = q.f.Now()
	i := q.take(n)
	q.link(i)
	q.order.add(i)
	return i
}

// link puts an element behind the others.
func (q *idleQueue) link(i uint32) {
	n := q.at(i)
	n.prev, n.next = q.last, 0
	if q.last == 0 {
		q.first = i
	} else {
		q.at(q.last).next = i
	}
	q.last = i
}

// remove takes an element from the queue.
func (q *idleQueue) remove(i uint32) {
	n := *q.at(i)
	q.order.skip(i, n.next)
	if n.prev == 0 {
		q.first = n.next
	} else {
		q.at(n.prev).next = n.next
	}
	if n.next == 0 {
		q.last = n.prev
	} else {
		q.at(n.next).prev = n.prev
	}
	q.give(i)
}

// becomeIdle makes a name that nobody holds idle. Its one key is at l.
func (n *name) becomeIdle(l loc) {
	n.set(tagIdle | value(n.s.idle.push(idleName{hash: n.hash, loc: l})))
}

// trimIdle forgets the oldest idle names if there are too many. After a large release,
// names go two at a time, so that no Apply pays for all.
func (s *source) trimIdle() {
	n := s.idle.len()
	if s.ground.full() {
		s.forgetIdle(0, 2)
	}
	if n <= minIdle && n <= s.cfg.idleNames {
		return
	}
	held := 0
	for _, b := range s.lanes.blocks {
		held += b
	}
	s.forgetIdle(min(max(minIdle, held/4), s.cfg.idleNames), 2)
	s.forgetIdle(s.cfg.idleNames, n)
}

// forgetIdle forgets at most n idle names, until there are no more than most.
func (s *source) forgetIdle(most, n int) {
	for ; n > 0 && s.idle.len() > most; n-- {
		oldest := s.name(s.idle.at(s.idle.first).hash)
		oldest.forget()
		s.counts.Forgotten++
	}
}
