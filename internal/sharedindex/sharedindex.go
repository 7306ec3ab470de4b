// Package sharedindex is what an index can do beyond its contract if several processes share it.
package sharedindex

import (
	"context"
	"errors"

	"github.com/kvindex/kvindex/index"
)

// Directory is an optional ability of an index.Index that several processes share: one learns
// from it what others feed. If such an index is an index.Describer, it describes what this process
// feeds alone. Remove and RemoveSource take notes with the rest.
type Directory interface {
	// Publish keeps a note about a source that this process feeds, in place of the last
	// one, for Listing in other processes. It waits for nobody: they may see the note a
	// moment later. A source without blocks can have one too. The index does not read
	// notes. It keeps the slice. If several processes feed a pod, the index
	// decides whose notes are listed.
	Publish(src index.Source, note []byte)
	// Listing returns the sources that are fed, of all models. It may be half a second
	// old, and is the same pointer as long as nothing has changed.
	Listing(ctx context.Context) (*Listing, error)
}

// Listing is what a Directory has. It never changes.
type Listing struct {
	Entries []Entry // ordered by Model, Pod, Rank
}

// Entry is a source of a Directory.
type Entry struct {
	Source index.Source
	Note   []byte // published last; nil: none
	// Fed: this process has applied something of the source, so it has more about it than the
	// entry.
	Fed bool
	// Stale is that of index.Row.
	Stale bool
}

// ErrDelayed is wrapped by the error of an Apply that was done, cursor and all, but is not
// yet visible to other processes. It will be; until then the source is Stale for them. The Effect is
// that of a call without the error. An Apply of the same cursor is a duplicate.
var ErrDelayed = errors.New("index: applied, but not yet visible to other processes")

// Delay is an error that wraps ErrDelayed, of a backend that reports the end of the delay.
type Delay interface {
	error
	// Seen is done as soon as others see what was applied. Delays that last at the same time may
	// share one, so that a long one of many sources costs little.
	Seen() context.Context
}
