package bench

import (
	"cmp"
	"slices"
	"sort"

	"github.com/kvindex/kvindex/index"
)

const (
	// stepTokens is how much of a prompt an engine computes, and announces, in
	// one step: vLLM's default for a server.
	stepTokens = 8192
	// Service times, of one GPU and a model of some 8B parameters.
	msPerPromptToken = 0.1
	msPerAnswerToken = 20
)

// engine simulates the block pool of one engine as vLLM keeps it: a block is
// taken from the head of a queue of free blocks and keeps until then what it
// had cached; a hit takes a block off the queue; a finished request puts its
// blocks at the tail, last block first, so that chains are evicted from their
// ends and the cached part of a prompt is always its beginning.
type engine struct {
	emit    func(*Op)
	pod     int
	step    int     // blocks of a step
	blocks  []block // the last one is head and tail of the free queue
	free    int     // length of the queue
	cached  map[index.Key]int32
	running []running // in the order in which they end
	work    int       // blocks that the running requests did not find cached
}

// block is a place in the pool.
type block struct {
	key        index.Key
	hash       index.Hash
	cached     bool  // engine.cached[key] is this block
	refs       int32 // running requests that use it; it is in the free queue if 0
	prev, next int32
}

type running struct {
	job
	ends   int64
	work   int
	blocks []int32
}

// job is a request as an engine sees it.
type job struct {
	chain
	request   int
	prompt    int // the first blocks are the prompt's, the rest the answer's
	promptMS  float64
	perHitMS  float64 // what a cached block saves
	answersMS float64
}

// chain is a run of blocks from the root on.
type chain struct {
	keys   []index.Key
	hashes []index.Hash
	locals []index.Local
}

// store is the operation that adds blocks [from, to) to a pod.
func (j *job) store(pod, from, to int) *Op {
	s := Store{Root: chainRoot, Hashes: j.hashes[from:to:to], Locals: j.locals[from:to:to]}
	if from > 0 {
		s.HasParent, s.Parent, s.Root = true, j.hashes[from-1], 0
	}
	return &Op{Kind: OpStore, Pod: pod, Request: j.request, Store: s}
}

func newEngine(pod, blocks, step int, emit func(*Op)) *engine {
	e := &engine{emit: emit, pod: pod, step: step, blocks: make([]block, blocks+1), cached: make(map[index.Key]int32)}
	end := e.end()
	e.blocks[end].prev, e.blocks[end].next = end, end
	for i := range end {
		e.release(i)
	}
	return e
}

func (e *engine) end() int32 { return int32(len(e.blocks) - 1) }

// run is the number of leading keys that are cached. No other keys are.
func (e *engine) run(keys []index.Key) int {
	return sort.Search(len(keys), func(i int) bool {
		_, ok := e.cached[keys[i]]
		return !ok
	})
}

// advance ends the requests that are over by now.
func (e *engine) advance(now int64) {
	for len(e.running) > 0 && e.running[0].ends <= now {
		e.finish()
	}
}

// admit starts a request; an empty engine must have room for it. It waits for
// running ones to end where there is none.
func (e *engine) admit(now int64, j job) {
	hits := e.run(j.keys[:j.prompt])
	r := running{job: j, work: len(j.keys) - hits, blocks: make([]int32, 0, len(j.keys))}
	for _, k := range j.keys[:hits] {
		i := e.cached[k]
		e.use(i)
		r.blocks = append(r.blocks, i)
	}
	for e.free < r.work {
		now = max(now, e.running[0].ends)
		e.finish()
	}
	for from := hits; from < j.prompt; {
		to := min(from+e.step, j.prompt)
		e.allocate(&r, from, to)
		for _, i := range r.blocks[from:] {
			e.cache(i)
		}
		e.emit(j.store(e.pod, from, to))
		from = to
	}
	e.allocate(&r, j.prompt, len(j.keys))
	e.work += r.work
	r.ends = now + int64(j.promptMS-float64(hits)*j.perHitMS+j.answersMS)
	i, _ := slices.BinarySearchFunc(e.running, r.ends+1, func(r running, t int64) int { return cmp.Compare(r.ends, t) })
	e.running = slices.Insert(e.running, i, r)
}

// allocate takes free blocks for [from, to) of a request and announces what was
// cached there until now.
func (e *engine) allocate(r *running, from, to int) {
	var evicted []index.Hash
	for i := from; i < to; i++ {
		at := e.blocks[e.end()].next
		b := &e.blocks[at]
		if b.cached {
			evicted = append(evicted, b.hash)
			delete(e.cached, b.key)
		}
		e.use(at)
		b.key, b.hash, b.cached = r.keys[i], r.hashes[i], false
		r.blocks = append(r.blocks, at)
	}
	if len(evicted) > 0 {
		e.emit(&Op{Kind: OpRemove, Pod: e.pod, Hashes: evicted})
	}
}

// finish ends a request: its answer is announced, block by block as it was
// written, and its blocks are let go.
func (e *engine) finish() {
	r := e.running[0]
	e.running = slices.Delete(e.running, 0, 1)
	for i := r.prompt; i < len(r.keys); i++ {
		e.cache(r.blocks[i])
		e.emit(r.store(e.pod, i, i+1))
	}
	for _, i := range slices.Backward(r.blocks) {
		if e.blocks[i].refs--; e.blocks[i].refs == 0 {
			e.release(i)
		}
	}
	e.work -= r.work
}

func (e *engine) cache(i int32) {
	e.blocks[i].cached = true
	e.cached[e.blocks[i].key] = i
}

// use takes a block for one more request, off the free queue if it is there.
func (e *engine) use(i int32) {
	b := &e.blocks[i]
	if b.refs == 0 {
		e.blocks[b.prev].next, e.blocks[b.next].prev = b.next, b.prev
		e.free--
	}
	b.refs++
}

// release puts a block at the tail of the free queue.
func (e *engine) release(i int32) {
	b, end := &e.blocks[i], e.end()
	b.prev, b.next = e.blocks[end].prev, end
	e.blocks[b.prev].next, e.blocks[end].prev = i, i
	e.free++
}
