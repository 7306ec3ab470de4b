package bench

import "github.com/kvindex/kvindex/index"

// Chains makes unrelated chains of Len blocks out of their numbers, so that a
// workload of any size needs no memory of its own and is the same in each run.
// All begin at one root and differ from their first block on. All pods give a
// block one hash, as vLLM's do that share a PYTHONHASHSEED.
type Chains struct {
	Len int // at most 1<<maxLenBits
}

const (
	maxLenBits = 16
	chainRoot  = index.Key(0x6b76696e646578)
)

// Store fills s with blocks [from, to) of a chain, in the memory that s has.
func (c Chains) Store(s *Store, chain, from, to int) {
	s.HasParent = from > 0
	s.Parent, s.Root = 0, chainRoot
	if s.HasParent {
		s.Parent, s.Root = c.hash(chain, from-1), 0
	}
	s.Hashes = c.Hashes(s.Hashes[:0], chain, from, to)
	s.Locals = s.Locals[:0]
	for i := from; i < to; i++ {
		s.Locals = append(s.Locals, c.local(chain, i))
	}
}

// Hashes appends the engines' hashes of blocks [from, to) of a chain.
func (c Chains) Hashes(dst []index.Hash, chain, from, to int) []index.Hash {
	for i := from; i < to; i++ {
		dst = append(dst, c.hash(chain, i))
	}
	return dst
}

// Keys appends the prefix keys of a chain.
func (c Chains) Keys(dst []index.Key, chain int) []index.Key {
	key := chainRoot
	for i := range c.Len {
		key = index.Chain(key, c.local(chain, i))
		dst = append(dst, key)
	}
	return dst
}

func (c Chains) hash(chain, i int) index.Hash { return index.Hash(mix(blockID(chain, i))) }

func (c Chains) local(chain, i int) index.Local {
	return index.Local(mix(blockID(chain, i) | 1<<63))
}

func blockID(chain, i int) uint64 { return uint64(chain)<<maxLenBits | uint64(i) }

// mix is the finalizer of SplitMix64: a bijection, so distinct blocks have
// distinct hashes.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
