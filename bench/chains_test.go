package bench_test

import (
	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

// chains computes unrelated chains of a length from their numbers, so that a workload needs no
// memory and is the same in each run. All begin at one root and differ from their first block on.
// All pods have the same hash for a block, like vLLM's with the same PYTHONHASHSEED.
type chains struct{ length int }

const root = index.Key(1)

// store fills s, reusing its memory, with blocks [from, to) of a chain.
func (c chains) store(s *bench.Store, chain, from, to int) {
	s.HasParent, s.Parent, s.Root = from > 0, 0, root
	if s.HasParent {
		s.Parent, s.Root = hash(chain, from-1), 0
	}
	s.Hashes, s.Locals = c.hashes(s.Hashes[:0], chain, from, to), s.Locals[:0]
	for i := from; i < to; i++ {
		s.Locals = append(s.Locals, local(chain, i))
	}
}

func (c chains) hashes(dst []index.Hash, chain, from, to int) []index.Hash {
	for i := from; i < to; i++ {
		dst = append(dst, hash(chain, i))
	}
	return dst
}

func (c chains) keys(dst []index.Key, chain int) []index.Key {
	key := root
	for i := range c.length {
		key = index.Chain(key, local(chain, i))
		dst = append(dst, key)
	}
	return dst
}

func hash(chain, i int) index.Hash { return bench.HashOf(index.Key(chain)<<16 | index.Key(i)) }

func local(chain, i int) index.Local { return index.Local(hash(chain, i) ^ 0x9e3779b97f4a7c15) }
