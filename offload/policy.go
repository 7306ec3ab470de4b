package offload

import (
	"fmt"

	"github.com/kvindex/kvindex/offload/internal/queues"
)

// Policy names an order in which blocks leave the memory.
type Policy string

// The policies. All insert and touch a chain from its last block to its first, so that the
// end of a chain goes first: without its beginning the rest of a chain is of no use.
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
	insert(slot uint32) (hot bool)
	// touch counts a use, and reports whether the block becomes hot by it.
	touch(slot uint32) (hot bool)
	// renew records that the chain of a block has grown, which is no use of it.
	renew(slot uint32)
	remove(slot uint32)
	// victim removes a slot that is not pinned, and reports false if there is none.
	// A pinned slot that it meets goes to the end of its queue.
	victim(pinned func(slot uint32) bool) (uint32, bool)
}

// newPolicy returns the policy of a store. key is that of a slot.
func newPolicy(cfg Config, slots, capacity int, key func(slot uint32) []byte, count *counts) (policy, error) {
	switch cfg.Policy {
	case LRU, FIFO:
		return &queue{rings: queues.NewRings(slots, 1), used: make([]bool, slots), moves: cfg.Policy == LRU, count: count}, nil
	case S3FIFO:
		share := int(float64(capacity) * cfg.SmallShare)
		p := queues.NewS3FIFO(slots, capacity-share)
		p.Share, p.PromoteAt, p.Key = share, uint8(cfg.PromoteAt), key
		return s3fifo{p}, nil
	}
	return nil, fmt.Errorf("offload: Config.Policy is %q, not one of %q, %q and %q", cfg.Policy, LRU, FIFO, S3FIFO)
}

// queue is FIFO, and LRU if uses move a slot.
type queue struct {
	rings queues.Rings
	used  []bool // since it was inserted
	moves bool
	count *counts
}

func (p *queue) insert(slot uint32) bool {
	p.rings.Push(0, slot)
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
		p.rings.Drop(0, slot)
		p.rings.Push(0, slot)
	}
}

func (p *queue) remove(slot uint32) { p.rings.Drop(0, slot) }

func (p *queue) victim(pinned func(uint32) bool) (uint32, bool) {
	for range p.rings.Len(0) {
		slot := p.rings.Last(0)
		p.rings.Drop(0, slot)
		if !pinned(slot) {
			return slot, true
		}
		p.rings.Push(0, slot)
		p.count.metPinned++
	}
	return 0, false
}

type s3fifo struct{ *queues.S3FIFO }

func (p s3fifo) insert(slot uint32) bool { return p.Insert(slot) }
func (p s3fifo) touch(slot uint32) bool  { return p.Touch(slot) }
func (p s3fifo) renew(uint32)            {}
func (p s3fifo) remove(slot uint32)      { p.Remove(slot) }

func (p s3fifo) victim(pinned func(uint32) bool) (uint32, bool) {
	for w := (queues.Walk{}); ; {
		slot, ok := p.Next(&w)
		switch {
		case !ok:
			return 0, false
		case pinned(slot):
			p.Pass(&w, slot)
		case !p.Stays(&w, slot):
			p.Evict(slot)
			return slot, true
		}
	}
}
