package bench

import (
	"math/bits"
	"sync"

	"github.com/kvindex/kvindex/index"
)

// mapShards is a power of two above the number of goroutines that meet in a
// shard on any machine of today.
const mapShards = 256

// Map keeps the holders of each key in a Go map, cut into shards that each have
// a lock, and for each pod a Go map from its hashes to keys.
type Map struct {
	shards [mapShards]mapShard
	pods   []mapPod
}

type mapShard struct {
	mu      sync.RWMutex
	holders map[index.Key]bitset // never empty sets
	_       [32]byte             // a shard is a cache line: locks of two do not share one
}

type mapPod struct {
	mu   sync.Mutex
	name string
	keys map[index.Hash]index.Key // of the blocks held
}

// bitset is a set of pods, as long as its greatest pod needs.
type bitset []uint64

func (s bitset) with(pod int) bitset {
	for len(s) <= pod/64 {
		s = append(s, 0)
	}
	s[pod/64] |= 1 << (pod % 64)
	return s
}

// without returns nil if no pod is left.
func (s bitset) without(pod int) bitset {
	if pod/64 < len(s) {
		s[pod/64] &^= 1 << (pod % 64)
	}
	for len(s) > 0 && s[len(s)-1] == 0 {
		s = s[:len(s)-1]
	}
	if len(s) == 0 {
		return nil
	}
	return s
}

// NewMap returns an empty Map for these pods.
func NewMap(pods []string) *Map {
	m := &Map{pods: make([]mapPod, len(pods))}
	for i := range m.shards {
		m.shards[i].holders = make(map[index.Key]bitset)
	}
	for i, name := range pods {
		m.pods[i].name = name
		m.pods[i].keys = make(map[index.Hash]index.Key)
	}
	return m
}

// shard spreads by the high bits: the low ones choose a slot in the Go map.
func (m *Map) shard(k index.Key) *mapShard { return &m.shards[k>>56] }

// Store implements Index.
func (m *Map) Store(pod int, s *Store) error {
	p := &m.pods[pod]
	p.mu.Lock()
	defer p.mu.Unlock()
	key := s.Root
	if s.HasParent {
		parent, ok := p.keys[s.Parent]
		if !ok {
			return unknown(p.name, s.Parent)
		}
		key = parent
	}
	for i, l := range s.Locals {
		key = index.Chain(key, l)
		p.keys[s.Hashes[i]] = key
		sh := m.shard(key)
		sh.mu.Lock()
		sh.holders[key] = sh.holders[key].with(pod)
		sh.mu.Unlock()
	}
	return nil
}

// Remove implements Index.
func (m *Map) Remove(pod int, hashes []index.Hash) error {
	p := &m.pods[pod]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range hashes {
		key, ok := p.keys[h]
		if !ok {
			return unknown(p.name, h)
		}
		delete(p.keys, h)
		m.drop(pod, key)
	}
	return nil
}

// RemovePod implements Index.
func (m *Map) RemovePod(pod int) error {
	p := &m.pods[pod]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range p.keys {
		m.drop(pod, key)
	}
	p.keys = make(map[index.Hash]index.Key)
	return nil
}

func (m *Map) drop(pod int, key index.Key) {
	sh := m.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if left := sh.holders[key].without(pod); left != nil {
		sh.holders[key] = left
	} else {
		delete(sh.holders, key)
	}
}

// Scorer implements Index.
func (m *Map) Scorer(pods []int) Scorer {
	s := &mapScorer{m: m, position: make([]int, len(m.pods))}
	for i, pod := range pods {
		s.candidates = s.candidates.with(pod)
		s.position[pod] = i
	}
	s.alive = make(bitset, len(s.candidates))
	return s
}

type mapScorer struct {
	m          *Map
	candidates bitset
	position   []int  // of a candidate, by pod
	alive      bitset // the candidates that hold all keys so far
}

// Score implements Scorer.
func (s *mapScorer) Score(keys []index.Key, runs []int32) error {
	clear(runs)
	copy(s.alive, s.candidates)
	for i, k := range keys {
		if !s.narrow(k, int32(i), runs) {
			return nil
		}
	}
	for w, word := range s.alive {
		s.settle(w, word, int32(len(keys)), runs)
	}
	return nil
}

// narrow keeps those alive that hold key i, and gives the others their run. It
// reports whether anybody is left.
func (s *mapScorer) narrow(k index.Key, i int32, runs []int32) bool {
	sh := s.m.shard(k)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	holders := sh.holders[k]
	left := uint64(0)
	for w, word := range s.alive {
		if word == 0 {
			continue
		}
		held := uint64(0)
		if w < len(holders) {
			held = holders[w]
		}
		if gone := word &^ held; gone != 0 {
			s.settle(w, gone, i, runs)
		}
		s.alive[w] = word & held
		left |= word & held
	}
	return left != 0
}

// settle gives the pods of one word their run.
func (s *mapScorer) settle(w int, word uint64, run int32, runs []int32) {
	for ; word != 0; word &= word - 1 {
		runs[s.position[w*64+bits.TrailingZeros64(word)]] = run
	}
}
