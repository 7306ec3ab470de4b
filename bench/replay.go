package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
)

// OpKind is what an Op does.
type OpKind uint8

// The kinds of operations.
const (
	OpScore OpKind = iota
	OpStore
	OpRemove
)

// Op is one call of a Memory.
type Op struct {
	Kind    OpKind
	Pod     int          // of OpScore the one that serves the request
	Request int          // of OpScore and OpStore: its number in the trace
	Store   Store        // of OpStore
	Hashes  []index.Hash // of OpRemove
	Keys    []index.Key  // of OpScore
	Runs    []int32      // the answer to OpScore, for all pods
}

// Recording has, in order, the scores that a router requests of an index, and the
// changes that the engines behind it publish.
type Recording struct {
	Pods     []string
	Ops      []Op
	Requests int

	// Blocks in all operations of a kind, and those of the prompts that were
	// cached where the request went.
	Requested, Stored, Removed, Hit int
}

// Blocks returns the number of block operations: blocks requested (whether or not a
// score reads them all), stored and removed.
func (r *Recording) Blocks() int { return r.Requested + r.Stored + r.Removed }

// Record keeps what Play does.
func Record(t *Trace, engines, blocks int, seed uint64) *Recording {
	r := &Recording{Pods: PodNames(engines)}
	Play(t, engines, blocks, seed, func(op *Op) { r.add(*op) })
	return r
}

// Play sends the requests of a trace to simulated engines, one or more, with a
// number of blocks each, and does all that follows until the last has ended. Each
// operation is a new one. They are the same in each run.
// Each request goes to the engine with the most cached blocks of its prompt
// less the blocks that it has to compute for others; of equal ones to one by
// chance. Prompts beyond the size of an engine are cut.
//
// A block of the trace is one block of one unit here, whatever its tokens.
func Play(t *Trace, engines, blocks int, seed uint64, do func(*Op)) {
	pool := make([]*engine, engines)
	for i := range pool {
		pool[i] = newEngine(i, blocks, max(1, stepTokens/t.BlockTokens), do)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	answers := uint64(answerNames)
	for i := range t.Requests {
		q := &t.Requests[i]
		j := newJob(q, t.BlockTokens, blocks, &answers)
		j.request = i
		best, value, equal := 0, 0, 0
		held := make([]int32, engines)
		for i, e := range pool {
			e.advance(q.At)
			hits := e.run(j.keys[:j.prompt])
			held[i] = int32(hits)
			switch v := hits - e.work; {
			case i == 0 || v > value:
				best, value, equal = i, v, 1
			case v == value:
				if equal++; random.IntN(equal) == 0 {
					best = i
				}
			}
		}
		do(&Op{Kind: OpScore, Pod: best, Request: i, Keys: j.keys[:j.prompt:j.prompt], Runs: held})
		pool[best].admit(q.At, j)
	}
	for _, e := range pool {
		for len(e.running) > 0 {
			e.finish()
		}
	}
}

func (r *Recording) add(op Op) {
	if op.Kind == OpScore {
		r.Requests++
		r.Hit += int(op.Runs[op.Pod])
		if len(op.Keys) == 0 {
			return
		}
	}
	r.Ops = append(r.Ops, op)
	r.Requested += len(op.Keys)
	r.Stored += len(op.Store.Hashes)
	r.Removed += len(op.Hashes)
}

// newJob names all blocks of a request; the answer's are new ones.
func newJob(q *Request, blockTokens, limit int, answers *uint64) job {
	answer := min((q.Input%blockTokens+q.Output)/blockTokens, limit)
	prompt := min(len(q.Blocks), limit-answer)
	n := prompt + answer
	j := job{
		chain:     chain{make([]index.Key, 0, n), make([]index.Hash, 0, n), make([]index.Local, 0, n)},
		prompt:    prompt,
		promptMS:  msPerPromptToken * float64(q.Input),
		perHitMS:  msPerPromptToken * float64(blockTokens),
		answersMS: msPerAnswerToken * float64(q.Output),
	}
	key := chainRoot
	for i := range n {
		var name uint64
		if i < prompt {
			name = q.Blocks[i]
		} else {
			*answers++
			name = *answers
		}
		local := index.Local(mix(name))
		key = index.Chain(key, local)
		j.keys = append(j.keys, key)
		j.hashes = append(j.hashes, HashOf(key))
		j.locals = append(j.locals, local)
	}
	return j
}

// ErrAnswer is wrapped by the error about a score that is not as recorded.
var ErrAnswer = errors.New("bench: wrong answer")

// Replay does the operations in order and checks the answers. It returns how
// long each score took.
func (r *Recording) Replay(m *Memory) ([]time.Duration, error) {
	pods := make([]int, len(r.Pods))
	for i := range pods {
		pods[i] = i
	}
	scorer, runs := m.Scorer(pods), make([]int32, len(pods))
	took := make([]time.Duration, 0, r.Requests)
	for i := range r.Ops {
		op := &r.Ops[i]
		var err error
		switch op.Kind {
		case OpScore:
			start := time.Now()
			err = scorer.Score(op.Keys, runs)
			took = append(took, time.Since(start))
			if err == nil && !slices.Equal(runs, op.Runs) {
				err = fmt.Errorf("%w: runs %v, want %v", ErrAnswer, runs, op.Runs)
			}
		case OpStore:
			err = m.Store(op.Pod, &op.Store)
		case OpRemove:
			err = m.Remove(op.Pod, op.Hashes)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return took, nil
}

// chainRoot is the key before the first block of each chain.
const chainRoot = index.Key(0x6b76696e646578)

// HashOf is the name that all engines of a recording give to a prefix.
func HashOf(k index.Key) index.Hash { return index.Hash(mix(uint64(k))) }

// mix is the finalizer of SplitMix64: a bijection, so distinct blocks have
// distinct hashes.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
