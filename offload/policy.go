package offload

import (
	"fmt"
	"hash/maphash"
)

// Policy names an order in which blocks leave the memory.
type Policy string

// The policies. All insert and touch a chain from its last block to its first, so that what
// goes first is the end of a chain: without its beginning the rest of a chain is of no use.
const (
	LRU    Policy = "lru"
	FIFO   Policy = "fifo"
	S3FIFO Policy = "s3fifo" // Yang et al., SOSP 2023, with the settings of Config
)

// DefaultPolicy has the highest mean of prefixes found on recorded traces: docs/offload.md.
const DefaultPolicy = S3FIFO

// policy orders the resident slots of a store. The lock of the store guards it.
type policy interface {
	// insert adds a slot that is not resident, and reports whether its block is hot already.
	insert(slot uint32, key Key) (hot bool)
	// touch counts a use, and reports whether the block becomes hot by it.
	touch(slot uint32) (hot bool)
	// renew says that the chain of a block has grown, which is no use of it.
	renew(slot uint32)
	remove(slot uint32)
	// victim removes a slot that is not pinned, and reports false if there is none.
	// A pinned slot that it meets goes to the end of its queue.
	victim(pinned func(slot uint32) bool) (uint32, bool)
}

func newPolicy(cfg Config, slots, capacity int, count *counts) (policy, error) {
	switch cfg.Policy {
	case LRU, FIFO:
		return &queue{rings: newRings(slots, 1), used: make([]bool, slots), moves: cfg.Policy == LRU, count: count}, nil
	case S3FIFO:
		share := int(float64(capacity) * cfg.SmallShare)
		main := capacity - share
		return &s3fifo{
			rings: newRings(slots, 2), uses: make([]uint8, slots), inMain: make([]bool, slots), keys: make([]Key, slots),
			share: share, promoteAt: uint8(cfg.PromoteAt), ghosts: newGhosts(main), count: count,
		}, nil
	}
	return nil, fmt.Errorf("offload: Config.Policy is %q, not one of %q, %q and %q", cfg.Policy, LRU, FIFO, S3FIFO)
}

// rings are doubly linked queues of slot numbers. Each slot is in one of them at most.
// The slots behind the last are the heads of the queues.
type rings struct {
	next, prev []uint32
	head       uint32 // of queue 0
	n          []int  // slots in each queue
}

func newRings(slots, queues int) rings {
	r := rings{next: make([]uint32, slots+queues), prev: make([]uint32, slots+queues), head: uint32(slots), n: make([]int, queues)}
	for q := range queues {
		h := r.head + uint32(q)
		r.next[h], r.prev[h] = h, h
	}
	return r
}

func (r *rings) push(q int, slot uint32) {
	h := r.head + uint32(q)
	first := r.next[h]
	r.next[h], r.prev[slot] = slot, h
	r.next[slot], r.prev[first] = first, slot
	r.n[q]++
}

func (r *rings) drop(q int, slot uint32) {
	r.next[r.prev[slot]], r.prev[r.next[slot]] = r.next[slot], r.prev[slot]
	r.n[q]--
}

// last returns the slot that was pushed before all others of a queue that is not empty.
func (r *rings) last(q int) uint32 { return r.prev[r.head+uint32(q)] }

// queue is FIFO, and LRU if uses move a slot.
type queue struct {
	rings
	used  []bool // since it was inserted
	moves bool
	count *counts
}

func (p *queue) insert(slot uint32, _ Key) bool {
	p.push(0, slot)
	p.used[slot] = false
	return false
}

func (p *queue) touch(slot uint32) bool {
	p.renew(slot)
	hot := !p.used[slot]
	p.used[slot] = true
	return hot
}

func (p *queue) renew(slot uint32) {
	if p.moves {
		p.drop(0, slot)
		p.push(0, slot)
	}
}

func (p *queue) remove(slot uint32) { p.drop(0, slot) }

func (p *queue) victim(pinned func(uint32) bool) (uint32, bool) {
	for range p.n[0] {
		slot := p.last(0)
		p.drop(0, slot)
		if !pinned(slot) {
			return slot, true
		}
		p.push(0, slot)
		p.count.metPinned++
	}
	return 0, false
}

const (
	small = iota // queue of s3fifo for what is new
	main         // queue for what was used
)

// s3fifo has a small queue for new blocks, and a main queue for those that were used there,
// or came back soon after they went.
type s3fifo struct {
	rings
	uses      []uint8 // 0 to 3, since the slot came into its queue
	inMain    []bool
	keys      []Key // of the resident slots
	share     int   // slots that the small queue may keep
	promoteAt uint8 // uses that bring a block from the small queue into the main one
	ghosts    *ghosts
	count     *counts
}

func (p *s3fifo) insert(slot uint32, key Key) bool {
	back := p.ghosts.take(key)
	if back {
		p.count.ghostHits++
	}
	p.uses[slot], p.inMain[slot], p.keys[slot] = 0, back, key
	p.push(p.of(slot), slot)
	return back
}

// of returns the queue of a slot.
func (p *s3fifo) of(slot uint32) int {
	if p.inMain[slot] {
		return main
	}
	return small
}

func (p *s3fifo) touch(slot uint32) bool {
	hot := !p.inMain[slot] && p.uses[slot] == p.promoteAt-1
	p.uses[slot] = min(p.uses[slot]+1, 3)
	return hot
}

func (p *s3fifo) renew(uint32) {}

func (p *s3fifo) remove(slot uint32) { p.drop(p.of(slot), slot) }

func (p *s3fifo) victim(pinned func(uint32) bool) (uint32, bool) {
	var passed [2]int // pinned slots in a row; as many as the queue has: all are pinned
	for {
		q := main
		if p.n[small] > p.share || p.n[main] == 0 {
			q = small
		}
		if passed[q] >= p.n[q] {
			q = small + main - q
		}
		if passed[q] >= p.n[q] {
			return 0, false
		}
		slot := p.last(q)
		p.drop(q, slot)
		switch {
		case pinned(slot):
			passed[q]++
			p.count.metPinned++
			p.push(q, slot)
			continue
		case q == small && p.uses[slot] >= p.promoteAt:
			p.uses[slot], p.inMain[slot] = 0, true
			p.push(main, slot)
			p.count.promoted++
		case q == main && p.uses[slot] > 0:
			p.uses[slot]--
			p.push(main, slot)
			p.count.reinserted++
		default:
			if q == small {
				p.ghosts.add(p.keys[slot])
			}
			return slot, true
		}
		passed[main] = 0
	}
}

// ghosts are the keys of blocks that went from the small queue last, at most as many as the
// main queue may have blocks. Two keys of one fingerprint are one ghost: the price is a
// block in the wrong queue.
type ghosts struct {
	seed maphash.Seed
	ring []uint64 // fingerprints, the oldest at next
	next int
	at   map[uint64]uint32 // fingerprint to its newest place in ring
}

func newGhosts(n int) *ghosts {
	return &ghosts{seed: maphash.MakeSeed(), ring: make([]uint64, n), at: make(map[uint64]uint32)}
}

func (g *ghosts) add(key Key) {
	if len(g.ring) == 0 {
		return
	}
	if old := g.ring[g.next]; g.at[old] == uint32(g.next) {
		delete(g.at, old)
	}
	print := maphash.Bytes(g.seed, key[:])
	g.ring[g.next], g.at[print] = print, uint32(g.next)
	g.next = (g.next + 1) % len(g.ring)
}

// take reports whether a key is a ghost, which it is no longer then.
func (g *ghosts) take(key Key) bool {
	print := maphash.Bytes(g.seed, key[:])
	_, ok := g.at[print]
	delete(g.at, print)
	return ok
}
