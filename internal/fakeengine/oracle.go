package fakeengine

import "github.com/kvindex/kvindex/internal/fakeengine/enginehash"

// Counts is what happened in an engine since New. Stored, Removed and what is
// in the cache agree: Stored - Removed - (what resets dropped) blocks have a
// hash.
type Counts struct {
	Hits      int // requests that had cached tokens when first admitted
	Preempted int // also by ResetRunning

	Stored        int // blocks announced, but for Reported
	StoredCopies  int // of these, blocks that another block was a copy of
	Removed       int // blocks removed
	RemovedCopies int // of these, blocks that another block stays a copy of
	Reported      int // blocks announced again for Request.ReportFull
	Cleared       int // resets
	Refused       int // resets refused because a request was running
}

// Counts returns the counters.
func (e *Engine) Counts() Counts { return e.counts }

// Cached is how many tokens of a prompt a request would find cached if it were
// admitted now: whole blocks, and at least one token is left to compute.
func (e *Engine) Cached(tokens []uint32, adapter, salt string) int {
	if len(tokens) == 0 {
		return 0
	}
	hashes := e.chain(tokens, adapter, salt)[:e.reusable(len(tokens))]
	return len(e.pool.leading(hashes)) * e.cfg.BlockSize
}

// Held is how many leading tokens of a prompt are in the cache, in whole
// blocks.
func (e *Engine) Held(tokens []uint32, adapter, salt string) int {
	return len(e.pool.leading(e.chain(tokens, adapter, salt))) * e.cfg.BlockSize
}

// Copies returns for each full block of a prompt the number of blocks of the pool
// that hold it.
func (e *Engine) Copies(tokens []uint32, adapter, salt string) []int {
	hashes := e.chain(tokens, adapter, salt)
	copies := make([]int, len(hashes))
	for i, h := range hashes {
		copies[i] = len(e.pool.cached[h])
	}
	return copies
}

// BlockIDs returns for each full block of a prompt the block of the pool that a
// request would hit, 0 for none.
func (e *Engine) BlockIDs(tokens []uint32, adapter, salt string) []int {
	hashes := e.chain(tokens, adapter, salt)
	ids := make([]int, len(hashes))
	for i, h := range hashes {
		if copies := e.pool.cached[h]; len(copies) > 0 {
			ids[i] = copies[0]
		}
	}
	return ids
}

func (e *Engine) chain(tokens []uint32, adapter, salt string) []enginehash.Digest {
	s, hashes := newScope(adapter, salt), []enginehash.Digest(nil)
	for range len(tokens) / e.cfg.BlockSize {
		hashes = e.appendHash(hashes, tokens, s)
	}
	return hashes
}

// Pending reports whether events wait for the next step: the published
// events do not yet show the cache.
func (e *Engine) Pending() bool { return len(e.pool.events) > 0 }

// Waiting is the number of requests that are to be admitted.
func (e *Engine) Waiting() int { return len(e.waiting) }

// Running is the number of requests that hold blocks.
func (e *Engine) Running() int { return len(e.running) }
