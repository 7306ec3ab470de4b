package queues

import "hash/maphash"

const (
	small = iota // for what is new
	main         // for what was used
)

// S3FIFO is that of Yang et al., SOSP 2023: a small queue for new blocks, and a main queue for
// those that were used there, or came back soon after they went. Its fields may change.
type S3FIFO struct {
	Share     int                      // slots that the small queue may keep
	PromoteAt uint8                    // uses that bring a block from the small queue into the main one, 1 to 3
	Key       func(slot uint32) []byte // of the block in a slot that is, or is being inserted
	S3FIFOCounts

	rings  Rings
	uses   []uint8 // 0 to 3, since the slot came into its queue
	inMain []bool
	ghosts ghosts
}

// S3FIFOCounts are what has happened.
type S3FIFOCounts struct{ Passed, Promoted, Reinserted, GhostHits uint64 }

// NewS3FIFO returns one without blocks, for slots below a number, and so many ghosts.
func NewS3FIFO(slots, ghosts int) *S3FIFO {
	return &S3FIFO{rings: NewRings(slots, 2), uses: make([]uint8, slots), inMain: make([]bool, slots), ghosts: newGhosts(ghosts)}
}

// Grow allows slots below a number that is not lower than the last one.
func (p *S3FIFO) Grow(slots int) {
	p.rings.grow(slots)
	p.uses = append(p.uses, make([]uint8, slots-len(p.uses))...)
	p.inMain = append(p.inMain, make([]bool, slots-len(p.inMain))...)
}

// Ghosts returns how many blocks are remembered that are not there.
func (p *S3FIFO) Ghosts() int { return len(p.ghosts.at) }

// Insert adds a slot that is not there, and reports whether its block is hot already.
func (p *S3FIFO) Insert(slot uint32) (hot bool) {
	back := p.ghosts.take(p.Key(slot))
	if back {
		p.GhostHits++
	}
	p.uses[slot], p.inMain[slot] = 0, back
	p.rings.Push(p.of(slot), slot)
	return back
}

// of returns the queue of a slot.
func (p *S3FIFO) of(slot uint32) int {
	if p.inMain[slot] {
		return main
	}
	return small
}

// Touch counts a use, and reports whether the block becomes hot by it.
func (p *S3FIFO) Touch(slot uint32) (hot bool) {
	hot = !p.inMain[slot] && p.uses[slot] == p.PromoteAt-1
	p.uses[slot] = min(p.uses[slot]+1, 3)
	return hot
}

// Remove removes a slot.
func (p *S3FIFO) Remove(slot uint32) { p.rings.Drop(p.of(slot), slot) }

// Evict removes a slot, whose block is a ghost then if it was new.
func (p *S3FIFO) Evict(slot uint32) {
	if !p.inMain[slot] {
		p.ghosts.add(p.Key(slot))
	}
	p.Remove(slot)
}

// Walk is a search for a slot to evict. The zero Walk is its beginning.
type Walk struct{ passed [2]int } // slots in a row; as many as the queue has: it has none that may go

// Next returns the slot to look at next, and false if none may go. The caller calls Pass, Stays,
// Evict or Remove for it.
func (p *S3FIFO) Next(w *Walk) (uint32, bool) {
	q := main
	if p.rings.Len(small) > p.Share || p.rings.Len(main) == 0 {
		q = small
	}
	if w.passed[q] >= p.rings.Len(q) {
		q = small + main - q
	}
	if w.passed[q] >= p.rings.Len(q) {
		return 0, false
	}
	return p.rings.Last(q), true
}

// Pass moves a slot that may not go to the end of its queue.
func (p *S3FIFO) Pass(w *Walk, slot uint32) {
	w.passed[p.of(slot)]++
	p.Passed++
	p.Remove(slot)
	p.rings.Push(p.of(slot), slot)
}

// Stays reports whether a slot stays because it was used.
func (p *S3FIFO) Stays(w *Walk, slot uint32) bool {
	switch {
	case !p.inMain[slot] && p.uses[slot] >= p.PromoteAt:
		p.Remove(slot)
		p.uses[slot], p.inMain[slot] = 0, true
		p.Promoted++
	case p.inMain[slot] && p.uses[slot] > 0:
		p.Remove(slot)
		p.uses[slot]--
		p.Reinserted++
	default:
		return false
	}
	p.rings.Push(main, slot)
	w.passed[main] = 0
	return true
}

// ghosts are the keys of blocks that went from the small queue last. Two keys of one
// fingerprint are one ghost: the price is a block in the wrong queue.
type ghosts struct {
	seed maphash.Seed
	ring []uint64 // fingerprints, the oldest at next
	next int
	at   map[uint64]uint32 // fingerprint to its newest place in ring
}

func newGhosts(n int) ghosts {
	return ghosts{seed: maphash.MakeSeed(), ring: make([]uint64, n), at: make(map[uint64]uint32)}
}

func (g *ghosts) add(key []byte) {
	if len(g.ring) == 0 {
		return
	}
	if old := g.ring[g.next]; g.at[old] == uint32(g.next) {
		delete(g.at, old)
	}
	print := maphash.Bytes(g.seed, key)
	g.ring[g.next], g.at[print] = print, uint32(g.next)
	g.next = (g.next + 1) % len(g.ring)
}

// take reports whether a key is a ghost, which it is no longer then.
func (g *ghosts) take(key []byte) bool {
	print := maphash.Bytes(g.seed, key)
	_, ok := g.at[print]
	delete(g.at, print)
	return ok
}
