package index

import (
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
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
//
// The names of a store that is parked, or masked and of a window group, are rich as long
// as it has a say in them. So they keep their numbers, by which the store knows them, and
// they know the store by its own (waiter): nothing is looked up by hash.

// waitList is the stores of a source that wait, and the names that they wait for.
type waitList struct {
	s *source
	storeQueue
	parked int // stores that are
}

// waitingStore is a store of which at least one hash had no key.
type waitingStore struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: what places the hashes once the parent has a key, and the
	// numbers in source.riches of those that it has a say in; 0: it has none.
	parked bool
	parent variantHash
	locals []Local
	cut    cut
	riches []uint32
	waits  bool // in source.waiting
	// Masked stores of window groups have all of that but parked, and locals in
	// draft groups only.
	maskedRange
	looked bool // in source.masked
	blind  bool // none of its hashes had a key when it was last looked at, and nothing follows

	since        uint32 // by the clock of the forest
	number       uint32 // in source.stores; 0: it waits no more
	older, newer *waitingStore
	// Of those that wait for a parent, by their numbers; 0: none. lastWait is that of
	// the first one only.
	prevWait, nextWait, lastWait uint32
}

// storeSlot is the place of a store that waits, by its number.
type storeSlot struct {
	p    *waitingStore
	free uint32 // number of the next free place
}

// bytes returns what p takes of the heap, but for its names.
func (p *waitingStore) bytes() int {
	return mem.SizeOf[waitingStore]() + mem.Size(8*cap(p.hashes)) + mem.Size(8*cap(p.locals)) + mem.Size(4*cap(p.riches))
}

// release lets go of all that waits, of a source that is removed.
func (wl *waitList) release() {
	wl.storeQueue.release()
	wl.parked = 0
	wl.s.waiters.release()
}

// waiter is a hash of a store that is parked, or masked and of a window group. It is
// kept with the name, which is rich, until the store waits no more or has no say any
// more in what the hash stands for (void).
type waiter struct {
	store uint32 // number in source.stores
	i     uint32 // in its hashes, where it stands first
	next  uint32 // of the same name, in the order in which the stores came
	again bool   // it stands there more than once
}

// What a pending store costs in heap: it, its number and its entry of waiting; for
// each hash its name, which is rich and has a number, a copy, and a waiter.
const (
	waitingCost     = int(unsafe.Sizeof(waitingStore{})+unsafe.Sizeof(&waitingStore{})) + 64
	waitingHashCost = int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(richName{}) + unsafe.Sizeof(copyCount{}) + unsafe.Sizeof(waiter{}))
	localBytes      = int(unsafe.Sizeof(Local(0)))
)

func (p *waitingStore) cost() int {
	return waitingCost + waitingHashCost*len(p.hashes) + localBytes*len(p.locals)
}

// join places the parked stores that wait for a hash which has a key now, and
// those that wait for theirs. It works through a list because chains of
// orphans may be long.
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
			if n > 1 { // which of them it continues will never be known
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

// isVoid reports whether p has no say in what its hash i stands for.
func (p *waitingStore) isVoid(i int) bool { return p.riches != nil && p.riches[i] == 0 }

// waitingName returns the name of hash i of p. While p waits, it is rich and keeps its
// number, unless p has no say in it.
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

// void notes that some stores that wait have no say any more in what a rich name stands
// for next: the gpu does not hold its block any more in their group.
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

// voidAll notes that the gpu holds nothing any more.
func (wl *waitList) voidAll() {
	for p := wl.oldest; p != nil; p = p.newer {
		wl.unlist(p)
		clear(p.riches)
	}
}

// dropWaiters takes some of its waiters from a rich name.
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
// its number.
func (wl *waitList) enlist(p *waitingStore, i int) {
	s := wl.s
	if p.riches[i] == 0 {
		n := s.name(p.hashes[i])
		if n.value == 0 { // it could not be held, and is forgotten
			return
		}
		n.enrich()
		p.riches[i] = n.number()
	}
	last := &s.riches.at(p.riches[i]).waits
	for *last != 0 {
		w := wl.s.waiters.at(*last)
		if w.store == p.number {
			w.again = true
			return
		}
		last = &w.next
	}
	*last = wl.s.waiters.take(waiter{store: p.number, i: uint32(i)})
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
		for i := range p.hashes {
			wl.enlist(p, i)
		}
	}
	for wl.cost > wl.s.cfg.PendingBytes {
		wl.drop(wl.oldest)
	}
}

// unpark has a store wait for its names alone.
func (wl *waitList) unpark(p *waitingStore) {
	if p.parked {
		wl.parked--
		p.parked = false
	}
	wl.unlist(p)
	wl.unwait(p)
}

// take takes a store out of all queues.
func (wl *waitList) take(p *waitingStore) {
	wl.unpark(p)
	wl.remove(p)
}

// drop gives up a store at the bound: its blocks that still have no key are
// released, and with them their names forgotten.
func (wl *waitList) drop(p *waitingStore) {
	s := wl.s
	lost := p.parked
	wl.take(p)
	if wl.letGo(p, 0) || lost {
		s.counts.Dropped++
	}
}

// letGo releases the blocks of p from one on that still have no key, and reports whether
// there were any.
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
