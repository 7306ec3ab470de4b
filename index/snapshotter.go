package index

import (
	"context"
	"errors"
)

// MaxSection is the most bytes that a section of a snapshot has.
const MaxSection = 4 << 20

// ErrNoSnapshot is returned for an index that is no [Snapshotter].
var ErrNoSnapshot = errors.New("index: the backend takes no snapshots")

// Snapshotter is an optional interface of an [Index].
type Snapshotter interface {
	// Snapshot has write write what the index holds, in sections of at most MaxSection
	// bytes, which only Restore understands. Nothing is held while write runs. For each
	// pod, cut is called once: it calls last once, at a moment at which no message of
	// that pod is being applied, and last notes what is left of the pod up to that
	// moment: it writes nothing, and takes at most some ms.
	Snapshot(ctx context.Context, write func(section []byte) error, cut func(pod string, last func() error) error) error
	// Restore fills an empty index from the sections that Snapshot wrote. read returns
	// io.EOF behind the last one.
	Restore(ctx context.Context, read func() ([]byte, error)) error
}
