package index

import (
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
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

// pending is a store of which at least one hash had no key.
type pending struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: what places the hashes once the parent has a key, and the
	// numbers in source.riches of those that it has a say in; 0: it has none.
	parked bool
	parent hashIn
	locals []Local
	cut    cut
	riches []uint32
	waits  bool // in source.waiting
	// Masked stores of window groups have all of that but parked, and locals in
	// draft groups only.
	masking
	looked bool // in source.masked
	blind  bool // none of its hashes had a key when it was last looked at, and nothing follows

	since        uint32 // by the clock of the forest
	number       uint32 // in source.stores; 0: it waits no more
	older, newer *pending
	// Of those that wait for a parent, by their numbers; 0: none. lastWait is that of
	// the first one only.
	prevWait, nextWait, lastWait uint32
}

// storeSlot is the place of a store that waits, by its number.
type storeSlot struct {
	p    *pending
	free uint32 // number of the next free place
}

// takeNumber gives a store a number, from 1 on.
func (s *source) takeNumber(p *pending) {
	if s.numStores++; s.freeStore != 0 {
		p.number = s.freeStore
		s.freeStore = s.stores[p.number].free
		s.stores[p.number] = storeSlot{p: p}
		return
	}
	if len(s.stores) == 0 {
		s.stores = mem.Append(s.mem, s.stores, storeSlot{})
	}
	p.number = uint32(len(s.stores))
	s.stores = mem.Append(s.mem, s.stores, storeSlot{p: p})
}

// giveNumber takes it back.
func (s *source) giveNumber(p *pending) {
	s.stores[p.number] = storeSlot{free: s.freeStore}
	s.freeStore = p.number
	p.number = 0
	if s.numStores--; s.numStores == 0 {
		s.mem.Add(-mem.SliceSize(s.stores))
		s.stores, s.freeStore = nil, 0
	}
}

// bytes returns what p takes of the heap, but for its names.
func (p *pending) bytes() int {
	return mem.SizeOf[pending]() + mem.Size(8*cap(p.hashes)) + mem.Size(8*cap(p.locals)) + mem.Size(4*cap(p.riches))
}

// waitBytes is what the stores that wait take of the heap, but for their names.
func (s *source) waitBytes() int {
	n := mem.SliceSize(s.stores)
	for p := s.oldest; p != nil; p = p.newer {
		n += p.bytes()
	}
	if s.waiting != nil {
		n += mem.SizeOf[names.Table[Hash, uint32]]() + s.waiting.Bytes()
	}
	return n
}

// dropPending lets go of all that waits, of a source that is removed.
func (s *source) dropPending() {
	s.mem.Add(-s.waitBytes())
	s.oldest, s.newest, s.pendingBytes, s.parked = nil, nil, 0, 0
	s.stores, s.freeStore, s.numStores, s.waiting, s.masked = nil, 0, 0, nil, nil
	s.waiters.release()
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
	pendingCost     = int(unsafe.Sizeof(pending{})+unsafe.Sizeof(&pending{})) + 64
	pendingHashCost = int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(richName{}) + unsafe.Sizeof(copyCount{}) + unsafe.Sizeof(waiter{}))
	localBytes      = int(unsafe.Sizeof(Local(0)))
)

func (p *pending) cost() int {
	return pendingCost + pendingHashCost*len(p.hashes) + localBytes*len(p.locals)
}

// setAside makes room for a store that may have to wait, but for its names, and counts
// that until it does. It returns false if there is no room.
func (s *source) setAside(hashes, locals int) (bytes int, ok bool) {
	g := s.ground
	each := int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(waiter{}))
	bytes = mem.Size(each*hashes) + mem.Size(localBytes*locals)
	if int64(bytes) > g.slack/8 && !g.makeRoom(s, func() bool { return g.pages() > int64(bytes) }) {
		return 0, false
	}
	s.mem.Add(bytes)
	return bytes, true
}

// join places the parked stores that wait for a hash which has a key now, and
// those that wait for theirs. It works through a list because chains of
// orphans may be long.
func (s *source) join(at hashIn) {
	work := []hashIn{at}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for {
			p := s.nextWaiting(at)
			if p == nil {
				break
			}
			s.bury(at.hash)
			prev, n := s.locOf(at)
			if n == 0 {
				break
			}
			if !p.parked {
				s.unwait(p)
				s.look(p)
				continue
			}
			if n > 1 { // which of them it continues will never be known
				s.unpark(p)
				s.pendingBytes -= localBytes * len(p.locals)
				s.mem.Add(-p.bytes())
				p.locals, p.riches = nil, nil
				s.mem.Add(p.bytes())
				s.counts.Dropped++
				continue
			}
			s.take(p)
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
	placed := 0
	s.placeRange(r, func(from, to int, ends blockEnds) bool {
		placed = to
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
	if s.letGo(p, placed) {
		s.counts.Dropped++
	}
}

// parkedAnew reports whether a parked store says what a hash stands for now.
func (s *source) parkedAnew(at hashIn) bool {
	n := s.name(at.hash)
	if !n.isRich() {
		return false
	}
	for i := n.rich().waits; i != 0; {
		w := s.waiters.at(i)
		if p := s.stores[w.store].p; p.parked && p.parent.variant == at.variant {
			return true
		}
		i = w.next
	}
	return false
}

// isVoid reports whether p has no say in what its hash i stands for.
func (p *pending) isVoid(i int) bool { return p.riches != nil && p.riches[i] == 0 }

// waitingName returns the name of hash i of p. While p waits, it is rich and keeps its
// number, unless p has no say in it.
func (s *source) waitingName(p *pending, i int) name {
	if p.riches == nil || p.isVoid(i) {
		return s.name(p.hashes[i])
	}
	if s.dump != nil {
		s.dump.name(p.hashes[i])
	}
	return name{s, p.hashes[i], tagRich | value(p.riches[i])}
}

// anyUnplaced reports whether a hash of p is held and has no key.
func (s *source) anyUnplaced(p *pending) bool {
	for i := range p.hashes {
		if n := s.waitingName(p, i); n.unplaced() {
			return true
		}
	}
	return false
}

// void notes that some stores that wait have no say any more in what a rich name stands
// for next: the gpu does not hold its block any more in their group.
func (n *name) void(of func(*pending) bool) {
	n.dropWaiters(func(w *waiter) bool {
		p := n.s.stores[w.store].p
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
func (s *source) voidAll() {
	for p := s.oldest; p != nil; p = p.newer {
		s.unlist(p)
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
func (s *source) park(p *pending) {
	s.counts.Parked++
	s.parked++
	p.parked = true
	if s.await(p); p.number != 0 {
		s.wait(p)
	}
}

// anyWaits reports whether a store may wait for its parent.
func (s *source) anyWaits() bool { return s.waiting != nil && s.waiting.Len() > 0 }

// nextWaiting returns the store that waits longest for a hash, nil if none does.
func (s *source) nextWaiting(at hashIn) *pending {
	if !s.anyWaits() {
		return nil
	}
	for i := s.waiting.Get(at.hash); i != 0; {
		p := s.stores[i].p
		if p.parent.variant == at.variant {
			return p
		}
		i = p.nextWait
	}
	return nil
}

// wait has a store wait for its parent.
func (s *source) wait(p *pending) {
	p.waits = true
	if s.waiting == nil {
		s.mem.Add(mem.SizeOf[names.Table[Hash, uint32]]())
		s.waiting = new(names.Table[Hash, uint32])
		s.waiting.Init(s.names.Salt(), s.mem)
	}
	i := s.waiting.Get(p.parent.hash)
	if i == 0 {
		s.waiting.Put(p.parent.hash, p.number)
		p.prevWait, p.nextWait, p.lastWait = 0, 0, p.number
		return
	}
	first := s.stores[i].p
	p.prevWait, p.nextWait = first.lastWait, 0
	s.stores[first.lastWait].p.nextWait = p.number
	first.lastWait = p.number
}

// unwait ends that.
func (s *source) unwait(p *pending) {
	if !p.waits {
		return
	}
	p.waits = false
	first := s.stores[s.waiting.Get(p.parent.hash)].p
	switch {
	case p != first:
		s.stores[p.prevWait].p.nextWait = p.nextWait
	case p.nextWait == 0:
		s.waiting.Remove(p.parent.hash)
		return
	default:
		s.waiting.Put(p.parent.hash, p.nextWait)
		first = s.stores[p.nextWait].p
		first.lastWait = p.lastWait
	}
	if p.nextWait == 0 {
		first.lastWait = p.prevWait
	} else {
		s.stores[p.nextWait].p.prevWait = p.prevWait
	}
}

// list has what happens to the hashes of a store noted from now on. The names that are
// unplaced are rich, and p has their numbers.
func (s *source) list(p *pending) {
	for i := range p.hashes {
		s.enlist(p, i)
	}
}

// enlist is list for a hash.
func (s *source) enlist(p *pending, i int) {
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
		w := s.waiters.at(*last)
		if w.store == p.number {
			w.again = true
			return
		}
		last = &w.next
	}
	*last = s.waiters.take(waiter{store: p.number, i: uint32(i)})
}

// unlist ends that.
func (s *source) unlist(p *pending) {
	for i, number := range slices.Backward(p.riches) { // a hash goes where it stands first
		if number != 0 {
			n := s.waitingName(p, i)
			n.dropWaiters(func(w *waiter) bool { return w.store == p.number && w.i == uint32(i) })
			n.simplify()
		}
	}
}

// await keeps a store in the queue of those that hold unplaced blocks.
func (s *source) await(p *pending) {
	s.enqueue(p)
	if p.parked || p.need > 0 {
		s.list(p)
	}
	for s.pendingBytes > s.cfg.PendingBytes {
		s.drop(s.oldest)
	}
}

// enqueue puts a store behind the others that wait.
func (s *source) enqueue(p *pending) {
	p.since = s.f.Now()
	s.takeNumber(p)
	s.mem.Add(p.bytes())
	if p.older = s.newest; p.older == nil {
		s.oldest = p
	} else {
		p.older.newer = p
	}
	s.newest = p
	s.pendingBytes += p.cost()
}

// unpark has a store wait for its names alone.
func (s *source) unpark(p *pending) {
	if p.parked {
		s.parked--
		p.parked = false
	}
	s.unlist(p)
	s.unwait(p)
}

// take takes a store out of all queues.
func (s *source) take(p *pending) {
	s.unpark(p)
	if p.older == nil {
		s.oldest = p.newer
	} else {
		p.older.newer = p.newer
	}
	if p.newer == nil {
		s.newest = p.older
	} else {
		p.newer.older = p.older
	}
	s.mem.Add(-p.bytes())
	s.giveNumber(p)
	p.older, p.newer = nil, nil
	s.pendingBytes -= p.cost()
}

// drop gives up a store at the bound: its blocks that still have no key are
// released, and with them their names forgotten.
func (s *source) drop(p *pending) {
	lost := p.parked
	s.take(p)
	if s.letGo(p, 0) || lost {
		s.counts.Dropped++
	}
}

// letGo releases the blocks of p from one on that still have no key, and reports whether
// there were any.
func (s *source) letGo(p *pending, from int) (any bool) {
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
