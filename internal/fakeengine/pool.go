package fakeengine

import (
	"slices"

	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// pool is the engine's block pool (vLLM v1/core/block_pool.py).
//
// Every block but the null block is either held by running requests (refs > 0)
// or in the queue of free blocks, never both. A block with a hash can be hit in
// either place; it loses the hash when it is taken from the queue for new
// tokens, and only then does its BlockRemoved event go out. Nothing is
// deduplicated: several blocks may have one hash.
type pool struct {
	// blocks by id. blocks[0] is the null block; it is the anchor of the ring
	// that is the queue of free blocks: its next is taken first.
	blocks []block
	free   int // blocks in the queue
	// cached has the blocks with a hash, the oldest first: that is the one
	// which is hit. No list is empty.
	cached map[enginehash.Digest][]int
	// recycle: blocks without a hash are used again first.
	recycle bool
	events  []Event // not yet published
	counts  *Counts
}

type block struct {
	hash       enginehash.Digest // if hashed
	hashed     bool
	refs       int // running requests that hold it
	prev, next int // neighbours in the queue, while refs == 0
}

func newPool(blocks int, recycle bool, counts *Counts) *pool {
	p := &pool{
		blocks:  make([]block, blocks),
		cached:  map[enginehash.Digest][]int{},
		recycle: recycle,
		counts:  counts,
	}
	for id := 1; id < blocks; id++ {
		p.enqueue(id, p.blocks[0].prev)
	}
	return p
}

// leading returns the blocks of the leading run of hashes that are cached.
func (p *pool) leading(hashes []enginehash.Digest) []int {
	var ids []int
	for _, h := range hashes {
		copies := p.cached[h]
		if len(copies) == 0 {
			break
		}
		ids = append(ids, copies[0])
	}
	return ids
}

// queued counts the blocks that are in the queue.
func (p *pool) queued(ids []int) int {
	n := 0
	for _, id := range ids {
		if p.blocks[id].refs == 0 {
			n++
		}
	}
	return n
}

// hold adds a reference to each block and takes it off the queue.
func (p *pool) hold(ids []int) {
	for _, id := range ids {
		if p.blocks[id].refs == 0 {
			p.dequeue(id)
		}
		p.blocks[id].refs++
	}
}

// take takes n <= p.free blocks from the front of the queue for new tokens.
func (p *pool) take(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		id := p.blocks[0].next
		p.dequeue(id)
		p.evict(id)
		p.blocks[id].refs = 1
		ids[i] = id
	}
	return ids
}

// store gives a block its hash.
func (p *pool) store(id int, h enginehash.Digest) {
	b := &p.blocks[id]
	b.hash, b.hashed = h, true
	p.cached[h] = append(p.cached[h], id)
	p.counts.Stored++
	if len(p.cached[h]) > 1 {
		p.counts.StoredCopies++
	}
}

// evict takes the hash of a block away, if it has one, and reports whether it had.
func (p *pool) evict(id int) {
	b := &p.blocks[id]
	if !b.hashed {
		return
	}
	b.hashed = false
	copies := p.cached[b.hash]
	copies = slices.Delete(copies, slices.Index(copies, id), slices.Index(copies, id)+1)
	if len(copies) == 0 {
		delete(p.cached, b.hash)
	} else {
		p.cached[b.hash] = copies
		p.counts.RemovedCopies++
	}
	p.counts.Removed++
	p.events = append(p.events, &Removed{Hashes: []enginehash.Digest{b.hash}, Medium: MediumGPU})
}

// release drops a reference to each block of a request. Those that nobody
// holds any more join the queue, the request's last block first, so that
// prefixes are evicted from their ends.
func (p *pool) release(ids []int) {
	front := 0
	for _, id := range slices.Backward(ids) {
		b := &p.blocks[id]
		b.refs--
		switch {
		case b.refs > 0:
		case p.recycle && !b.hashed:
			p.enqueue(id, front)
			front = id
		default:
			p.enqueue(id, p.blocks[0].prev)
		}
	}
}

// reset forgets what all blocks hold, if none is in use. The order of the
// queue stays.
func (p *pool) reset() bool {
	if p.free != len(p.blocks)-1 {
		return false
	}
	for id := range p.blocks {
		p.blocks[id].hashed = false
	}
	clear(p.cached)
	p.events = append(p.events, Cleared{})
	p.counts.Cleared++
	return true
}

// enqueue puts a block into the queue behind another, 0 for the front.
func (p *pool) enqueue(id, after int) {
	next := p.blocks[after].next
	p.blocks[id].prev, p.blocks[id].next = after, next
	p.blocks[after].next = id
	p.blocks[next].prev = id
	p.free++
}

func (p *pool) dequeue(id int) {
	b := &p.blocks[id]
	p.blocks[b.prev].next = b.next
	p.blocks[b.next].prev = b.prev
	p.free--
}
