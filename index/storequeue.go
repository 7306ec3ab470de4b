package index

import (
	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// storeQueue is the stores of a source that wait because a hash has no key, oldest first.
type storeQueue struct {
	f    *forest.Forest
	mem  *mem.Count
	salt *[2]uint64 // of the table of names

	slots          []storeSlot
	free           uint32 // the number of the first free slot
	n              int
	oldest, newest *waitingStore
	cost           int // the sum of their costs
	// parents has the stores that are parked, and masked ones of draft groups whose parent
	// has no key, by the variant and that parent. The value is the number of the first one.
	parents []*names.Table[Hash, uint32] // nil: the variant never had one
	behind  int                          // stores in parents
	masked  []*waitingStore              // for a look after the Apply
}

// push puts a store behind the others that wait.
func (q *storeQueue) push(p *waitingStore) {
	p.since = q.f.Now()
	q.takeNumber(p)
	q.mem.Add(p.bytes())
	if p.older = q.newest; p.older == nil {
		q.oldest = p
	} else {
		p.older.newer = p
	}
	q.newest = p
	q.cost += p.cost()
}

// remove removes a store.
func (q *storeQueue) remove(p *waitingStore) {
	if p.older == nil {
		q.oldest = p.newer
	} else {
		p.older.newer = p.newer
	}
	if p.newer == nil {
		q.newest = p.older
	} else {
		p.newer.older = p.older
	}
	q.mem.Add(-p.bytes())
	q.giveNumber(p)
	p.older, p.newer = nil, nil
	q.cost -= p.cost()
}

// takeNumber gives a store a number, from 1 on.
func (q *storeQueue) takeNumber(p *waitingStore) {
	if q.n++; q.free != 0 {
		p.number = q.free
		q.free = q.slots[p.number].free
		q.slots[p.number] = storeSlot{p: p}
		return
	}
	if len(q.slots) == 0 {
		q.slots = mem.Append(q.mem, q.slots, storeSlot{})
	}
	p.number = uint32(len(q.slots))
	q.slots = mem.Append(q.mem, q.slots, storeSlot{p: p})
}

// giveNumber takes the number of a store back.
func (q *storeQueue) giveNumber(p *waitingStore) {
	q.slots[p.number] = storeSlot{free: q.free}
	q.free = p.number
	p.number = 0
	if q.n--; q.n == 0 {
		q.mem.Add(-mem.SliceSize(q.slots))
		q.slots, q.free = nil, 0
	}
}

// hasParents reports whether a store may wait for its parent.
func (q *storeQueue) hasParents() bool { return q.behind > 0 }

// next returns the store that waits longest for a hash, nil if none does.
func (q *storeQueue) next(at variantHash) *waitingStore {
	if !q.hasParents() || int(at.variant) >= len(q.parents) || q.parents[at.variant] == nil {
		return nil
	}
	return q.slots[q.parents[at.variant].Get(at.hash)].p
}

// wait begins the wait of a store for its parent.
func (q *storeQueue) wait(p *waitingStore) {
	p.waits = true
	q.behind++
	for int(p.parent.variant) >= len(q.parents) {
		q.parents = mem.Append(q.mem, q.parents, nil)
	}
	parents := &q.parents[p.parent.variant]
	if *parents == nil {
		q.mem.Add(mem.SizeOf[names.Table[Hash, uint32]]())
		*parents = new(names.Table[Hash, uint32])
		(*parents).Init(*q.salt, q.mem)
	}
	i := (*parents).Get(p.parent.hash)
	if i == 0 {
		(*parents).Put(p.parent.hash, p.number)
		p.prevWait, p.nextWait, p.lastWait = 0, 0, p.number
		return
	}
	first := q.slots[i].p
	p.prevWait, p.nextWait = first.lastWait, 0
	q.slots[first.lastWait].p.nextWait = p.number
	first.lastWait = p.number
}

// unwait ends the wait of a store for its parent.
func (q *storeQueue) unwait(p *waitingStore) {
	if !p.waits {
		return
	}
	p.waits = false
	q.behind--
	parents := q.parents[p.parent.variant]
	first := q.slots[parents.Get(p.parent.hash)].p
	switch {
	case p != first:
		q.slots[p.prevWait].p.nextWait = p.nextWait
	case p.nextWait == 0:
		parents.Remove(p.parent.hash)
		return
	default:
		parents.Put(p.parent.hash, p.nextWait)
		first = q.slots[p.nextWait].p
		first.lastWait = p.lastWait
	}
	if p.nextWait == 0 {
		first.lastWait = p.prevWait
	} else {
		q.slots[p.nextWait].p.prevWait = p.prevWait
	}
}

// look queues a masked store for a look after the changes of the Apply.
func (q *storeQueue) look(p *waitingStore) {
	p.blind = false
	if !p.looked {
		p.looked = true
		q.masked = append(q.masked, p)
	}
}

// eachParent calls each with the first store that waits for each parent.
func (q *storeQueue) eachParent(each func(first uint32)) {
	for _, parents := range q.parents {
		if parents != nil {
			parents.Each(func(_ Hash, first uint32) { each(first) })
		}
	}
}

// bytes returns the bytes of the stores that wait without their names.
func (q *storeQueue) bytes() int {
	n := mem.SliceSize(q.slots)
	for p := q.oldest; p != nil; p = p.newer {
		n += p.bytes()
	}
	n += mem.SliceSize(q.parents)
	for _, parents := range q.parents {
		if parents != nil {
			n += mem.SizeOf[names.Table[Hash, uint32]]() + parents.Bytes()
		}
	}
	return n
}

// release removes all stores.
func (q *storeQueue) release() {
	q.mem.Add(-q.bytes())
	*q = storeQueue{f: q.f, mem: q.mem, salt: q.salt}
}
