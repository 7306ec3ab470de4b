// Package inmemory has the abilities of an index of index.NewMemory beside the contract.
package inmemory

import (
	"context"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/trace"
)

// Memory is an index of index.NewMemory.
type Memory interface {
	index.Index
	index.Describer
	index.SourceRemover
	Explainer
	Snapshotter
	// SetBounds sets the bounds of each source, for tests: the bytes of stores that wait for a
	// name, and the names kept of blocks that nobody holds. 0 is the default. It is called
	// before any Apply.
	SetBounds(pendingBytes, idleNames int)
	// Unswept is the number of sources that were removed and still have memory.
	Unswept() int
}

// New is index.NewMemory.
func New(c index.MemoryConfig) (Memory, error) {
	m, err := index.NewMemory(c)
	if err != nil {
		return nil, err
	}
	return m.(Memory), nil
}

// Explainer is an optional ability of an index.Index.
type Explainer interface {
	// Explain returns the Trace of a block in a source. It is zero for a source that is not there. It changes nothing. A block whose Size is not a multiple of its unit is
	// an error that wraps index.ErrInvalid.
	Explain(ctx context.Context, src index.Source, b Block) (trace.Trace, error)
}

// Block is a block of a prompt.
type Block = trace.Block[index.Variant, index.Key, index.Local]

// Snapshotter is an optional ability of an index.Index.
type Snapshotter interface {
	// Snapshot has write write what the index holds, in sections of at most
	// 4 MiB, which only Restore understands. Nothing is held while write runs. For each
	// pod, cut is called once: it calls last once, at a moment at which no message of
	// that pod is being applied, and last notes what is left of the pod up to that
	// moment: it writes nothing, and takes at most some ms.
	Snapshot(ctx context.Context, write func(section []byte) error, cut func(pod string, last func() error) error) error
	// Restore fills an empty index from the sections that Snapshot wrote. read returns
	// io.EOF behind the last one.
	Restore(ctx context.Context, read func() ([]byte, error)) error
}
