package index

import (
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Stores that wait. A store with a hash that has no key is kept in a queue, because its
// blocks are held and nothing else would ever release them: at the bound in bytes the
// oldest store is dropped, with those of its blocks that still have no key.
//
// A dense store whose parent has no key is parked as well: it has the locals of its
// blocks, and is placed when the parent gets its key, from any store. It is never placed
// anywhere else. Until then its blocks may be removed, and their hashes be used for other
// blocks. The parked store does not place such a hash any more (void). If the parent gets
// two keys at once, the store waits for its names alone.
//
// The names of a store that is parked, or masked and of a window group, are rich until the
// store places them or is void for them. So they keep their numbers, which the store has,
// and they have the number of the store (waiter): nothing is looked up by hash.

// waitList is the stores of a source that wait, and the names that they wait for.
type waitList struct {
	s *source
	storeQueue
	parked int // stores that are
}

// waitingStore is a store with a hash that had no key.
type waitingStore struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: the locals place the hashes once the parent has a key. riches has
	// the numbers of the names in source.riches; 0: the store is void for the hash.
	parked bool
	parent variantHash
	locals []Local
	cut    cut
	riches []uint32
	waits  bool // in storeQueue.parents
	// Masked stores of window groups have these fields too, but for parked. They have
	// locals in draft groups only.
	maskedRange
	looked bool // in storeQueue.masked
	voided bool // by voidAll; so are all older ones
	blind  bool // at the last look none of its hashes had a key, and none followed

	since        uint32 // by the clock of the forest
	number       uint32 // in storeQueue.slots; 0: it waits no more
	older, newer *waitingStore
	// The neighbours among the stores that wait for a parent, by their numbers; 0: none.
	// Only the first of them has lastWait.
	prevWait, nextWait, lastWait uint32
}

// storeSlot is the place of a store that waits, by its number.
type storeSlot struct {
	p    *waitingStore
	free uint32 // number of the next free place
}

// bytes returns the bytes of p without its names.
func (p *waitingStore) bytes() int {
	return mem.SizeOf[waitingStore]() + mem.Size(8*cap(p.hashes)) + mem.Size(8*cap(p.locals)) + mem.Size(4*cap(p.riches))
}

// release removes all stores, of a source that is removed.
func (wl *waitList) release() {
	wl.storeQueue.release()
	wl.parked = 0
	wl.s.waiters.release()
}

// maxWaiters bounds the waiters of a name. A further store is void for the name: the others
// place it where that store would.
const maxWaiters = 64

// waiter is a hash of a store that is parked, or masked and of a window group. Its rich
// name keeps it until the store waits no more, or is void for the hash.
type waiter struct {
	store uint32 // number in storeQueue.slots
	i     uint32 // in its hashes, where it stands first
	next  uint32 // of the same name, in the order in which the stores came
	again bool   // it stands there more than once
}

// The heap that a waiting store costs: the store, its number and its entry in parents; for
// each hash its rich name with its number, a copy, and a waiter.
const (
	waitingCost     = int(unsafe.Sizeof(waitingStore{})+unsafe.Sizeof(&waitingStore{})) + 64
	waitingHashCost = int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(richName{}) + unsafe.Sizeof(copyCount{}) + unsafe.Sizeof(waiter{}))
	localBytes      = int(unsafe.Sizeof(Local(0)))
)

func (p *waitingStore) cost() int {
	return waitingCost + waitingHashCost*len(p.hashes) + localBytes*len(p.locals)
}

// join places the parked stores that wait for a hash which has a key now, and the stores
// that wait for their hashes. It works through a list because chains of orphans may be
// long.
func (wl *waitList) join(at variantHash) {
	s := wl.s
	work := []variantHash{at}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for {
			p := wl.next(at)
			if p == nil {
				break
			}
			s.bury(at.hash)
			prev, n := s.locOf(at)
			if n == 0 {
				break
			}
			if !p.parked {
				wl.unwait(p)
				wl.look(p)
				continue
			}
			if n > 1 { // it may continue either of them
				wl.unpark(p)
				wl.cost -= localBytes * len(p.locals)
				s.mem.Add(-p.bytes())
				p.locals, p.riches = nil, nil
				s.mem.Add(p.bytes())
				s.counts.Dropped++
				continue
			}
			wl.take(p)
			s.counts.Joined++
			wl.place(p, prev)
			for _, h := range p.hashes {
				work = append(work, variantHash{h, at.variant})
			}
		}
	}
}

// place places a parked store behind prev.
func (wl *waitList) place(p *waitingStore, prev loc) {
	s := wl.s
	r := blockRange{prev, Key(s.f.Key(prev)), p.parent.variant, p.locals, p.cut.size / p.cut.variant.Unit}
	placed := 0
	s.placeRange(r, func(from, to int, ends blockEnds) bool {
		placed = to
		for i := from; i < to; i++ {
			n := s.fresh(p.hashes[i])
			if p.isVoid(i) && (n.hasKeyIn(r.variant) || n.parkedIn(r.variant)) {
				continue // it was removed, and then stored as something else
			}
			n.place(ends.of(i))
			s.trimIdle()
		}
		return true
	})
	if wl.letGo(p, placed) {
		s.counts.Dropped++
	}
}

// parkedIn reports whether a parked store places the hash in a variant.
func (n *name) parkedIn(variant uint32) bool {
	if !n.isRich() {
		return false
	}
	for i := n.rich().waits; i != 0; {
		w := n.s.waiters.at(i)
		if p := n.s.waits.slots[w.store].p; p.parked && p.parent.variant == variant {
			return true
		}
		i = w.next
	}
	return false
}

// isVoid reports whether p does not place its hash i.
func (p *waitingStore) isVoid(i int) bool { return p.riches != nil && p.riches[i] == 0 }

// name returns the name of hash i of p. While p waits, the name is rich and keeps its
// number, unless p is void for it.
func (wl *waitList) name(p *waitingStore, i int) name {
	s := wl.s
	if p.riches == nil || p.isVoid(i) {
		return s.name(p.hashes[i])
	}
	if s.dump != nil {
		s.dump.name(p.hashes[i])
	}
	return name{s, p.hashes[i], tagRich | value(p.riches[i])}
}

// anyUnplaced reports whether a hash of p is held and has no key.
func (wl *waitList) anyUnplaced(p *waitingStore) bool {
	for i := range p.hashes {
		if n := wl.name(p, i); n.unplaced() {
			return true
		}
	}
	return false
}

// void makes some stores that wait void for a rich name: the gpu does not hold its block
// any more in their group.
func (n *name) void(of func(*waitingStore) bool) {
	n.dropWaiters(func(w *waiter) bool {
		p := n.s.waits.slots[w.store].p
		if !of(p) {
			return false
		}
		p.riches[w.i] = 0
		for i := int(w.i); w.again && i < len(p.hashes); i++ {
			if p.hashes[i] == n.hash {
				p.riches[i] = 0
			}
		}
		return true
	})
}

// voidAll makes all stores void for their names: the gpu holds nothing any more.
func (wl *waitList) voidAll() {
	for p := wl.newest; p != nil && !p.voided; p = p.older {
		wl.unlist(p)
		clear(p.riches)
		p.voided = true
	}
}

// dropWaiters removes some waiters of a rich name.
func (n *name) dropWaiters(which func(*waiter) bool) {
	s := n.s
	for at := &n.rich().waits; *at != 0; {
		i := *at
		w := s.waiters.at(i)
		if !which(w) {
			at = &w.next
			continue
		}
		*at = w.next
		s.waiters.give(i)
	}
}

// park keeps a store until its parent has a key.
func (wl *waitList) park(p *waitingStore) {
	s := wl.s
	s.counts.Parked++
	wl.parked++
	p.parked = true
	if wl.add(p); p.number != 0 {
		wl.wait(p)
	}
}

// enlist gives the name of hash i a waiter. A name that is unplaced is rich, and p gets
// its number. enlist returns false if the name has too many waiters.
func (wl *waitList) enlist(p *waitingStore, i int) bool {
	s := wl.s
	if p.riches[i] == 0 {
		n := s.name(p.hashes[i])
		if n.value == 0 { // it could not be held, and is forgotten
			return true
		}
		n.enrich()
		p.riches[i] = n.number()
	}
	last, others := &s.riches.at(p.riches[i]).waits, 0
	for ; *last != 0; others++ {
		w := s.waiters.at(*last)
		if w.store == p.number {
			w.again = true
			return true
		}
		last = &w.next
	}
	if others >= maxWaiters {
		p.riches[i] = 0
		return false
	}
	*last = s.waiters.take(waiter{store: p.number, i: uint32(i)})
	return true
}

// unlist removes the waiters of a store.
func (wl *waitList) unlist(p *waitingStore) {
	for i, number := range slices.Backward(p.riches) { // a hash goes where it stands first
		if number != 0 {
			n := wl.name(p, i)
			n.dropWaiters(func(w *waiter) bool { return w.store == p.number && w.i == uint32(i) })
			n.simplify()
		}
	}
}

// add keeps a store in the queue of those that hold unplaced blocks.
func (wl *waitList) add(p *waitingStore) {
	wl.push(p)
	if p.parked || p.need > 0 {
		full := false
		for i := range p.hashes {
			full = !wl.enlist(p, i) || full
		}
		if full {
			wl.s.counts.Dropped++
		}
	}
	for wl.cost > wl.s.cfg.pendingBytes {
		wl.drop(wl.oldest)
	}
}

// unpark ends the wait of a store for its parent: it waits for its names alone.
func (wl *waitList) unpark(p *waitingStore) {
	if p.parked {
		wl.parked--
		p.parked = false
	}
	wl.unlist(p)
	wl.unwait(p)
}

// take removes a store from all queues.
func (wl *waitList) take(p *waitingStore) {
	wl.unpark(p)
	wl.remove(p)
}

// drop gives up a store at the bound. It releases the blocks that still have no key, and
// so forgets their names.
func (wl *waitList) drop(p *waitingStore) {
	s := wl.s
	lost := p.parked
	wl.take(p)
	if wl.letGo(p, 0) || lost {
		s.counts.Dropped++
	}
}

// letGo releases the blocks of p from block from on that still have no key, and reports
// whether there were any.
func (wl *waitList) letGo(p *waitingStore, from int) (any bool) {
	s := wl.s
	for _, hash := range p.hashes[from:] {
		n := s.name(hash)
		if !n.unplaced() {
			continue
		}
		if h := n.holding(p.group, p.tier); h.copies > 0 {
			n.copyCount(&h).reported = false
			n.release(h)
			s.doubts, any = true, true
		}
	}
	return any
}
