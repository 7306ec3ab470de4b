// Package bench compares index.Memory with two other designs, on made
// workloads and on recorded traces. Start at README.md for the commands, at
// [Index] for what the designs have in common, and at [Record] for how a trace
// becomes operations.
//
// The designs are [Memory], the adapter of index.Memory; [Map], the sharded Go
// map that one would write first; and [LRU], the two LRU levels of llm-d's
// KV-cache manager. All three are given the same calls and must give the same
// answers, which the tests check.
package bench

import (
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/index"
)

// Index is what the designs have in common. Pods are named when an index is
// made and go by their position in those names after that.
//
// All methods are safe for concurrent use, except that Store, Remove and
// RemovePod of one pod are called one at a time, as its events arrive.
type Index interface {
	// Store adds the blocks of s to a pod. The pod holds the parent and none of
	// the blocks.
	Store(pod int, s *Store) error
	// Remove takes blocks that the pod holds from it.
	Remove(pod int, hashes []index.Hash) error
	// RemovePod takes all blocks from a pod.
	RemovePod(pod int) error
	// Scorer returns a scorer of these pods, resolved once.
	Scorer(pods []int) Scorer
}

// Scorer answers for the pods that it was made for. It is for one goroutine.
type Scorer interface {
	// Score sets runs[i] to the number of leading keys that pod i of the scorer
	// holds. Keys are of one prompt, runs has an element for each pod.
	Score(keys []index.Key, runs []int32) error
}

// Store is a run of consecutive blocks, one unit each. It continues the block
// Parent if HasParent, else it begins a chain at Root.
type Store struct {
	HasParent bool
	Parent    index.Hash
	Root      index.Key
	Hashes    []index.Hash
	Locals    []index.Local
}

// ErrUnknown is wrapped by the errors about blocks that are not where the
// caller of an Index must know them to be.
var ErrUnknown = errors.New("bench: unknown block")

func unknown(pod string, h index.Hash) error {
	return fmt.Errorf("%w: hash %#x of %s", ErrUnknown, uint64(h), pod)
}

// PodNames returns the names of n pods, of the form that a gateway knows them by.
func PodNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
	}
	return names
}
