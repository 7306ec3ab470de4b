package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
)

// model is the one that all pods serve.
const model = "m"

// variant and blockSize make a block one unit.
var variant = index.Variant{Unit: blockSize}

const blockSize = 16

// ErrUnknown is wrapped by the errors about blocks that are not where the caller must
// know them to be.
var ErrUnknown = errors.New("bench: unknown block")

// Memory is an index of index.NewMemory of pods that go by their numbers. Its methods are safe for
// concurrent use, except that those of one pod are called one at a time.
type Memory struct {
	m    inmemory.Memory
	pods []memoryPod
}

// memoryPod keeps the change of a call, so that the calls allocate nothing that
// an event decoder would not.
type memoryPod struct {
	source index.Source
	change [1]index.Change
}

// NewMemory returns an empty Memory for n pods, with the default configuration.
func NewMemory(n int) (*Memory, error) {
	m, err := inmemory.New(index.MemoryConfig{})
	if err != nil {
		return nil, err
	}
	b := &Memory{m: m, pods: make([]memoryPod, n)}
	for i, pod := range PodNames(n) {
		b.pods[i].source = index.Source{Pod: pod, Model: model}
	}
	return b, nil
}

// Store adds the blocks of s to a pod, which holds the parent and none of them.
func (b *Memory) Store(pod int, s *Store) error {
	return b.apply(&b.pods[pod], index.Change{
		Op: index.OpStore, Copies: index.CopiesExact,
		Hashes: s.Hashes, Variant: variant, BlockSize: blockSize, Locals: s.Locals,
		HasParent: s.HasParent, Parent: s.Parent, Root: s.Root,
	})
}

// Remove takes blocks that the pod holds from it.
func (b *Memory) Remove(pod int, hashes []index.Hash) error {
	return b.apply(&b.pods[pod], index.Change{Op: index.OpRemove, Hashes: hashes})
}

func (b *Memory) apply(p *memoryPod, c index.Change) error {
	p.change[0] = c
	a, err := b.m.Apply(context.Background(), p.source, index.Cursor{}, p.change[:])
	if err != nil {
		return err
	}
	if n := a.Counts.Parked + a.Counts.Dropped + a.Counts.Ambiguous + a.Counts.UnknownRemove; n > 0 {
		return fmt.Errorf("%w: %s: %+v", ErrUnknown, p.source.Pod, a.Counts)
	}
	return nil
}

// RemovePod takes all blocks from a pod.
func (b *Memory) RemovePod(pod int) error {
	return b.m.Remove(context.Background(), b.pods[pod].source.Pod)
}

// Settle waits until nothing of removed pods is left.
func (b *Memory) Settle() {
	for b.m.Unswept() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// Scorer returns a scorer of these pods, resolved once.
func (b *Memory) Scorer(pods []int) *Scorer {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = b.pods[pod].source.Pod
	}
	s := &Scorer{m: b.m}
	s.query = index.Query{
		Candidates: index.NewCandidates(model, names),
		Keys:       func(index.Variant) ([]index.Key, error) { return s.keys, nil },
	}
	return s
}

// Scorer answers for the pods that it was made for. It is for one goroutine.
type Scorer struct {
	m       inmemory.Memory
	query   index.Query
	keys    []index.Key
	matches index.Matches
}

// Score sets runs[i] to the number of leading keys that pod i of the scorer holds.
// Keys are of one prompt, runs has an element for each pod.
func (s *Scorer) Score(keys []index.Key, runs []int32) error {
	clear(runs)
	s.keys = keys
	if err := s.m.Match(context.Background(), &s.query, &s.matches); err != nil {
		return err
	}
	for i := range s.matches.Rows {
		row := &s.matches.Rows[i]
		runs[row.Pod] = row.Run
	}
	return nil
}
