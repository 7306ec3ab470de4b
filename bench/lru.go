package bench

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kvindex/kvindex/index"
)

// LRU is the in-memory index of llm-d's KV-cache manager
// (pkg/kvcache/kvblock/in_memory.go, 2026): an LRU from keys to an LRU of pod
// entries each, and an LRU from the engines' hashes to keys, that all pods
// share. It differs where that would only make it slower or wrong here: an
// inner LRU has room for all pods instead of 10, a score walks the keys and
// counts in one pass instead of handing on a map of slices, it stops at the
// first key that nobody holds, and nothing is traced.
type LRU struct {
	pods   []string
	blocks *lru.Cache[index.Key, *lruHolders]
	keys   *lru.Cache[index.Hash, index.Key]
}

type lruHolders struct {
	mu   sync.Mutex // makes the last removal here and the outer one a step
	pods *lru.Cache[podEntry, struct{}]
}

// podEntry names its pod and tier as the original does.
type podEntry struct{ pod, tier string }

const gpu = "gpu"

// NewLRU returns an empty LRU for these pods, with room for size blocks.
func NewLRU(pods []string, size int) (*LRU, error) {
	blocks, err := lru.New[index.Key, *lruHolders](size)
	if err != nil {
		return nil, err
	}
	keys, err := lru.New[index.Hash, index.Key](size)
	if err != nil {
		return nil, err
	}
	return &LRU{pods: pods, blocks: blocks, keys: keys}, nil
}

// Store implements Index.
func (l *LRU) Store(pod int, s *Store) error {
	key := s.Root
	if s.HasParent {
		parent, ok := l.keys.Get(s.Parent)
		if !ok {
			return unknown(l.pods[pod], s.Parent)
		}
		key = parent
	}
	entry := podEntry{l.pods[pod], gpu}
	for i, local := range s.Locals {
		key = index.Chain(key, local)
		for !l.add(key, entry) {
		}
		l.keys.Add(s.Hashes[i], key)
	}
	return nil
}

// add reports false if the block was removed between finding and filling it.
func (l *LRU) add(key index.Key, entry podEntry) bool {
	h, ok := l.blocks.Get(key)
	if !ok {
		pods, _ := lru.New[podEntry, struct{}](len(l.pods)) // fails without pods, and then nobody stores
		pods.Add(entry, struct{}{})
		found, _ := l.blocks.ContainsOrAdd(key, &lruHolders{pods: pods})
		return !found
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pods.Len() == 0 {
		return false
	}
	h.pods.Add(entry, struct{}{})
	return true
}

// Remove implements Index.
func (l *LRU) Remove(pod int, hashes []index.Hash) error {
	entry := podEntry{l.pods[pod], gpu}
	for _, h := range hashes {
		key, ok := l.keys.Get(h)
		if !ok {
			return unknown(l.pods[pod], h)
		}
		l.drop(key, entry, h)
	}
	return nil
}

// RemovePod implements Index. Nothing says which blocks a pod holds, so it
// looks at all; nor which hashes named a block, so the names of those that go
// stay until the LRU drops them.
func (l *LRU) RemovePod(pod int) error {
	entry := podEntry{l.pods[pod], gpu}
	for _, key := range l.blocks.Keys() {
		l.drop(key, entry)
	}
	return nil
}

// drop takes a holder from a block, and the block and its names from the LRUs if
// that was the last. The names go first: a store of the block that comes between
// adds the block, and then its name, only after the block has gone.
func (l *LRU) drop(key index.Key, entry podEntry, names ...index.Hash) {
	h, ok := l.blocks.Peek(key)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pods.Remove(entry) || h.pods.Len() > 0 {
		return
	}
	for _, name := range names {
		l.keys.Remove(name)
	}
	l.blocks.Remove(key)
}

// Scorer implements Index.
func (l *LRU) Scorer(pods []int) Scorer {
	s := &lruScorer{l: l, position: make(map[string]int, len(pods))}
	for i, pod := range pods {
		s.position[l.pods[pod]] = i
	}
	return s
}

type lruScorer struct {
	l        *LRU
	position map[string]int // of a candidate, by name
}

// Score implements Scorer.
func (s *lruScorer) Score(keys []index.Key, runs []int32) error {
	clear(runs)
	for i, k := range keys {
		h, ok := s.l.blocks.Get(k)
		if !ok {
			return nil
		}
		anybody := false
		for _, e := range h.pods.Keys() {
			if p, ok := s.position[e.pod]; ok && runs[p] == int32(i) {
				runs[p]++
				anybody = true
			}
		}
		if !anybody {
			return nil
		}
	}
	return nil
}
