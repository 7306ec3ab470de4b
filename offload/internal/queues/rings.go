// Package queues orders slots, which are numbers from 0 on, for the memory of a store and for
// the files of a janitor. Its types have no locks.
package queues

// Rings are doubly linked queues of slots. Each slot is in one of them at most. Their heads
// are before the first slot.
type Rings struct {
	next, prev []uint32
	n          []int // slots in each queue
}

// NewRings returns empty queues for slots below a number.
func NewRings(slots, queues int) Rings {
	r := Rings{n: make([]int, queues)}
	for h := range uint32(queues) {
		r.next, r.prev = append(r.next, h), append(r.prev, h)
	}
	r.grow(slots)
	return r
}

// grow allows slots below a number that is not lower than the last one.
func (r *Rings) grow(slots int) {
	more := make([]uint32, slots+len(r.n)-len(r.next))
	r.next, r.prev = append(r.next, more...), append(r.prev, more...)
}

// Push adds a slot that is in no queue.
func (r *Rings) Push(q int, slot uint32) {
	at, h := slot+uint32(len(r.n)), uint32(q)
	first := r.next[h]
	r.next[h], r.prev[at] = at, h
	r.next[at], r.prev[first] = first, at
	r.n[q]++
}

// Drop removes a slot from its queue.
func (r *Rings) Drop(q int, slot uint32) {
	at := slot + uint32(len(r.n))
	r.next[r.prev[at]], r.prev[r.next[at]] = r.next[at], r.prev[at]
	r.n[q]--
}

// Last returns the slot that was pushed before all others of a queue that is not empty.
func (r *Rings) Last(q int) uint32 { return r.prev[q] - uint32(len(r.n)) }

// Len returns how many slots a queue has.
func (r *Rings) Len(q int) int { return r.n[q] }
