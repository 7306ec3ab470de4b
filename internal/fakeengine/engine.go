// Package fakeengine plays a vLLM engine with KV events: a real block pool and
// a real scheduler around a model that is faked. It publishes what such an
// engine publishes, byte for byte, and reports the blocks that it holds, so that
// an index fed with the events can be checked against the blocks.
//
// Start with [New]; give requests to [Engine.Submit], drive the engine with
// [Engine.Step], compare with [Engine.Cached] and [Engine.Held]. [Encoding] alone writes
// batches that no engine made; [Prompt] makes events for them.
//
// Reproduced: vLLM 017e9f4448b7 (2026-08-17), v1/core/block_pool.py,
// v1/core/kv_cache_manager.py and v1/core/sched/scheduler.py, for a model with
// one group of full attention, synchronous scheduling, first come first served,
// without speculation, media and connectors. An array [Form] makes it an
// engine of that form's time: see [Config].
package fakeengine

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// Config is that of the engine to play. A number that is 0 is replaced by its
// default.
type Config struct {
	// Model names the model; greedy outputs depend on it.
	Model string
	// Rank is the data-parallel rank that every batch carries.
	Rank int
	// BlockSize in tokens. Default 16.
	BlockSize int
	// Blocks of the pool. As in vLLM one of them, the null block, never holds
	// anything. Default 1024.
	Blocks int
	// TokenBudget is the most tokens computed in one step
	// (max_num_batched_tokens); longer prompts are prefilled in chunks.
	// Default 2048.
	TokenBudget int
	// ChunkTokens is the most tokens of one request in one step
	// (long_prefill_token_threshold), so that several prompts are prefilled
	// side by side. 0: as many as the budget allows.
	ChunkTokens int
	// MaxRunning is the most requests in one step (max_num_seqs). Default 64.
	MaxRunning int
	// AdmitByChunk admits a request when its first chunk fits into the free
	// blocks, instead of its whole prompt (scheduler_reserve_full_isl=False):
	// there is more preemption then.
	AdmitByChunk bool
	// HashSeed is PYTHONHASHSEED. Engines with one seed name blocks alike.
	HashSeed string
	// Encoding of the events. Both array forms put blocks without a hash at the
	// end of the queue of free blocks, as engines did until June 2026, and ignore
	// Request.ReportFull.
	Encoding Encoding
	// Seed of the outputs that are drawn at random.
	Seed uint64
	// Vocabulary: sampled tokens are below it. Default 32,000.
	Vocabulary uint32
	// Now is the engine's clock in seconds, read once for a batch. Default: a
	// clock that starts at 0 with the engine and advances by 1/64 s a step.
	Now func() float64
	// Publish gets the payload of each batch and may keep it. It is called
	// within Step, last, so that it may call the engine. Nil: nobody
	// listens.
	Publish func(payload []byte)
}

func (c Config) withDefaults() Config {
	c.BlockSize = cmp.Or(c.BlockSize, 16)
	c.Blocks = cmp.Or(c.Blocks, 1024)
	c.TokenBudget = cmp.Or(c.TokenBudget, 2048)
	c.MaxRunning = cmp.Or(c.MaxRunning, 64)
	c.Vocabulary = cmp.Or(c.Vocabulary, 32_000)
	return c
}

func (c Config) validate() error {
	var errs []error
	atLeast := func(name string, value, least int) {
		if value < least {
			errs = append(errs, fmt.Errorf("fakeengine: %s is %d, must be at least %d", name, value, least))
		}
	}
	atLeast("Rank", c.Rank, 0)
	atLeast("BlockSize", c.BlockSize, 1)
	atLeast("Blocks", c.Blocks, 2)
	atLeast("TokenBudget", c.TokenBudget, 1)
	atLeast("MaxRunning", c.MaxRunning, 1)
	atLeast("ChunkTokens", c.ChunkTokens, 0)
	return errors.Join(errs...)
}

// Engine is a fake engine. Its Config and the calls made on it decide all that
// it does. It is not safe for concurrent use: one goroutine
// calls it, or a mutex guards it and the handles of its requests.
type Engine struct {
	cfg    Config
	pool   *pool
	random *rand.Rand
	hasher enginehash.Hasher
	root   enginehash.Digest

	waiting []*Handle // in order of arrival, preempted requests first
	running []*Handle // in order of admission
	// ended: a request has ended since the last step. The engine makes one more
	// step to notify its workers, even if it has nothing to compute.
	ended bool
	steps int

	adapters map[string]int // name to id, in order of first use
	counts   Counts
}

// New makes an engine with an empty cache. The error names the field of the Config
// that is out of range.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:      cfg,
		random:   rand.New(rand.NewPCG(cfg.Seed, 0)),
		root:     enginehash.NoneHash(cfg.HashSeed),
		adapters: map[string]int{},
	}
	e.pool = newPool(cfg.Blocks, cfg.Encoding.Form == FormMaps, &e.counts)
	return e, nil
}

// Submit queues a request; the steps that follow serve it. It keeps none
// of the slices. A request is refused if the prompt is
// empty, or if prompt and output do not fit into the pool.
func (e *Engine) Submit(r Request) (*Handle, error) {
	if len(r.Tokens) == 0 {
		return nil, errors.New("fakeengine: a request without tokens")
	}
	if r.MaxTokens < 0 {
		return nil, fmt.Errorf("fakeengine: a request for %d tokens", r.MaxTokens)
	}
	if r.MaxTokens == 0 {
		r.MaxTokens = max(1, len(r.Output))
	}
	if total, room := len(r.Tokens)+r.MaxTokens, (e.cfg.Blocks-1)*e.cfg.BlockSize; total > room {
		return nil, fmt.Errorf("fakeengine: prompt and output of %d tokens, the pool holds %d", total, room)
	}
	h := e.newHandle(r)
	e.waiting = append(e.waiting, h)
	return h, nil
}

// Step schedules, computes and publishes one step, and reports false if there
// was nothing to do: then no event leaves either, however long it has been
// pending. A batch is published only if there are events.
func (e *Engine) Step() bool {
	if len(e.waiting)+len(e.running) == 0 && !e.ended {
		return false
	}
	e.ended = false
	e.steps++
	e.compute(e.schedule())
	e.publish()
	return true
}

// Drain steps until nothing is left to do.
func (e *Engine) Drain() {
	for e.Step() {
	}
}

// schedule gives the tokens of this step to requests, running ones first, and
// returns those that got some. Their blocks are announced here, before any of
// it is computed, and from here on can be hit.
func (e *Engine) schedule() []*Handle {
	var scheduled []*Handle
	budget, preempted := e.cfg.TokenBudget, false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		h := e.running[i]
		n := e.chunk(len(h.tokens)-h.computed, budget)
		fits := e.allocate(h, n)
		for !fits && len(e.running) > i {
			// The last one goes, which got nothing in this step yet, down to
			// the request itself.
			preempted = true
			e.preemptLast()
			fits = len(e.running) > i && e.allocate(h, n)
		}
		if !fits {
			break
		}
		scheduled, budget = append(scheduled, h), budget-n
	}
	// Nobody is admitted in a step in which somebody had to go.
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxRunning {
		h := e.waiting[0]
		n, ok := e.admit(h, budget)
		if !ok {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, h)
		scheduled, budget = append(scheduled, h), budget-n
	}
	return scheduled
}

// admit gives a waiting request the blocks that it hits and those for the
// first n tokens after them, unless there are too few.
func (e *Engine) admit(h *Handle, budget int) (n int, ok bool) {
	var hit []int
	if !h.request.SkipReadingPrefixCache {
		hit = e.pool.leading(h.hashes[:e.reusable(len(h.tokens))])
	}
	if len(hit) > 0 && h.request.ReportFull && e.cfg.Encoding.Form == FormMaps {
		// Each attempt reports, also one that fails for want of blocks.
		e.announce(h, 0, len(hit))
		e.counts.Reported += len(hit)
	}
	n = e.chunk(len(h.tokens)-len(hit)*e.cfg.BlockSize, budget)

	// A hit that lies in the queue of free blocks is not free any more.
	queued := e.pool.queued(hit)
	if !e.cfg.AdmitByChunk && e.blocksFor(len(h.tokens))-len(hit)+queued > e.pool.free {
		return 0, false
	}
	if e.blocksFor(len(hit)*e.cfg.BlockSize+n)-len(hit)+queued > e.pool.free {
		return 0, false
	}
	e.pool.hold(hit)
	h.blocks, h.stored, h.computed = hit, len(hit), len(hit)*e.cfg.BlockSize
	e.countAdmission(h)
	return n, e.allocate(h, n)
}

func (e *Engine) countAdmission(h *Handle) {
	if h.admitted {
		return
	}
	h.admitted, h.cached = true, h.computed
	if h.cached > 0 {
		e.counts.Hits++
	}
}

// allocate gives a request blocks for its next n tokens and announces the
// blocks that these fill. It does nothing if there are too few.
func (e *Engine) allocate(h *Handle, n int) bool {
	need := e.blocksFor(h.computed+n) - len(h.blocks)
	if need > e.pool.free {
		return false
	}
	h.blocks = append(h.blocks, e.pool.take(need)...)
	h.computed += n
	if full := h.computed / e.cfg.BlockSize; full > h.stored {
		for i := h.stored; i < full; i++ {
			e.pool.store(h.blocks[i], h.hashes[i])
		}
		e.announce(h, h.stored, full)
		h.stored = full
	}
	return true
}

// announce queues the event for blocks from to to of a request.
func (e *Engine) announce(h *Handle, from, to int) {
	s := &Stored{
		Hashes:    h.hashes[from:to:to],
		Tokens:    h.tokens[from*e.cfg.BlockSize : to*e.cfg.BlockSize],
		BlockSize: e.cfg.BlockSize,
		Adapter:   h.request.Adapter,
		AdapterID: e.adapters[h.request.Adapter],
		Medium:    MediumGPU,
		Extra:     make([][]enginehash.Extra, to-from),
		Kind:      KindFullAttention,
	}
	if from > 0 {
		s.Parent = &h.hashes[from-1]
	}
	for i := range s.Extra {
		s.Extra[i] = h.scope.extra(from + i)
	}
	e.pool.events = append(e.pool.events, s)
}

// compute samples a token for each request whose tokens are all computed. Its
// own KV follows in the step after, so the last token of an output never is in
// the cache.
func (e *Engine) compute(scheduled []*Handle) {
	for _, h := range scheduled {
		if h.computed < len(h.tokens) {
			continue
		}
		e.append(h, e.sample(h))
		if len(h.tokens)-h.prompt == h.request.MaxTokens {
			e.end(h)
		}
	}
}

// end takes a request out of the engine.
func (e *Engine) end(h *Handle) {
	h.done, e.ended = true, true
	e.release(h)
	same := func(x *Handle) bool { return x == h }
	e.running = slices.DeleteFunc(e.running, same)
	e.waiting = slices.DeleteFunc(e.waiting, same)
}

func (e *Engine) preemptLast() {
	last := len(e.running) - 1
	h := e.running[last]
	e.running = e.running[:last]
	e.release(h)
	e.waiting = slices.Insert(e.waiting, 0, h)
	e.counts.Preempted++
}

// release gives back all blocks of a request, which keep what they hold.
func (e *Engine) release(h *Handle) {
	e.pool.release(h.blocks)
	h.blocks, h.stored, h.computed = nil, 0, 0
}

func (e *Engine) publish() {
	if len(e.pool.events) == 0 {
		return
	}
	batch := Batch{Time: float64(e.steps) / 64, Events: e.pool.events, Rank: e.cfg.Rank}
	if e.cfg.Now != nil {
		batch.Time = e.cfg.Now()
	}
	payload := e.cfg.Encoding.Append(nil, &batch)
	e.pool.events = nil
	if e.cfg.Publish != nil {
		e.cfg.Publish(payload)
	}
}

// Reset empties the cache, if no request is running, and reports whether it
// did. Its event leaves with the next step that has something to do, first in
// the batch: an idle engine publishes nothing until then.
func (e *Engine) Reset() bool {
	if !e.pool.reset() {
		e.counts.Refused++
		return false
	}
	return true
}

// ResetRunning preempts all running requests and then empties the cache
// (reset_running_requests=True).
func (e *Engine) ResetRunning() {
	for len(e.running) > 0 {
		e.preemptLast()
	}
	e.Reset()
}

// EvictBlocks empties blocks, by the ids that BlockIDs returns, also
// of blocks in use. vLLM does so to blocks that could not be loaded from
// elsewhere; nothing else makes holes in a prefix. Ids of blocks that hold
// nothing are passed over. The events leave with the next step.
func (e *Engine) EvictBlocks(ids ...int) {
	for _, id := range ids {
		if id > 0 && id < len(e.pool.blocks) {
			e.pool.evict(id)
		}
	}
}

// chunk is how many of a request's missing tokens this step computes.
func (e *Engine) chunk(missing, budget int) int {
	if e.cfg.ChunkTokens > 0 {
		missing = min(missing, e.cfg.ChunkTokens)
	}
	return min(missing, budget)
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize
}

// reusable is how many blocks of a request with so many tokens may be hits:
// the last token is always computed, its logits are needed.
func (e *Engine) reusable(tokens int) int { return (tokens - 1) / e.cfg.BlockSize }
