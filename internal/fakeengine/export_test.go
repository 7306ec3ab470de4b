package fakeengine

import "fmt"

// Free returns the number of blocks that no request holds, cached or not.
func (e *Engine) Free() int { return e.pool.free }

// CheckInvariants returns an error if the engine is inconsistent.
func (e *Engine) CheckInvariants() error {
	p := e.pool
	refs := make([]int, len(p.blocks))
	for _, h := range e.running {
		bs := e.cfg.BlockSize
		if len(h.blocks) != e.blocksFor(h.computed) || h.stored != h.computed/bs || h.computed > len(h.tokens) || len(h.hashes) != len(h.tokens)/bs {
			return fmt.Errorf("a running request has %d tokens, %d hashes, %d computed, %d blocks, %d stored", len(h.tokens), len(h.hashes), h.computed, len(h.blocks), h.stored)
		}
		for i, id := range h.blocks {
			refs[id]++
			// Evicted blocks lost their hash; none has another one.
			if b := &p.blocks[id]; b.hashed && (i >= h.stored || b.hash != h.hashes[i]) {
				return fmt.Errorf("block %d holds %x, not block %d of its request", id, b.hash, i)
			}
		}
	}
	for _, h := range e.waiting {
		if len(h.blocks)+h.computed+h.stored > 0 || h.done {
			return fmt.Errorf("a waiting request holds %d blocks, done: %v", len(h.blocks), h.done)
		}
	}
	if refs[0] != 0 || p.blocks[0].hashed || len(e.running) > e.cfg.MaxRunning {
		return fmt.Errorf("%d references to the null block, %d running", refs[0], len(e.running))
	}

	queued, last := map[int]bool{}, 0
	for id := p.blocks[0].next; id != 0; id = p.blocks[id].next {
		if queued[id] || p.blocks[id].prev != last {
			return fmt.Errorf("the queue is broken at block %d", id)
		}
		queued[id], last = true, id
	}
	if len(queued) != p.free || p.blocks[0].prev != last {
		return fmt.Errorf("%d blocks in the queue, counted %d", len(queued), p.free)
	}
	hashed := 0
	for id := 1; id < len(p.blocks); id++ {
		b := &p.blocks[id]
		if b.refs != refs[id] || queued[id] != (b.refs == 0) {
			return fmt.Errorf("block %d: %d references, counted %d, queued: %v", id, refs[id], b.refs, queued[id])
		}
		if b.hashed {
			hashed++
		}
	}
	for h, copies := range p.cached {
		hashed -= len(copies)
		seen := map[int]bool{}
		for _, id := range copies {
			if b := &p.blocks[id]; seen[id] || !b.hashed || b.hash != h {
				return fmt.Errorf("block %d is cached as %x, is %x: %v", id, h, b.hash, b.hashed)
			}
			seen[id] = true
		}
		if len(copies) == 0 {
			return fmt.Errorf("no block is cached as %x", h)
		}
	}
	if hashed != 0 {
		return fmt.Errorf("%d blocks have a hash but are not cached", hashed)
	}
	return nil
}
