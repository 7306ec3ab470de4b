// Package epochs reports when memory that readers may still look at can be used again.
package epochs

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Epochs count the epochs of one structure. Readers enter and leave at any time; a structure has
// one writer at a time.
//
// A reader enters the present epoch and leaves it when it is done. Memory that a writer takes
// out of reach in epoch r is reused at r+2 at the earliest. The step from e to e+1 waits until
// nobody is left in e-1, so while a reader is in e, the epoch is at most e+1: all that was within
// reach when it entered was taken out in e or later, and is not reused before it leaves.
//
// Nobody waits: a reader retries only if the epoch changed between two of its instructions, and
// a writer that cannot go on takes fresh memory instead.
type Epochs struct {
	now     atomic.Uint64
	stripes []stripe // a power of two of them
}

// stripe counts the readers in even and odd epochs, for a part of the readers,
// on cache lines of its own.
type stripe struct {
	readers [2]atomic.Int64
	_       [112]byte
}

// New returns the first epoch.
func New() *Epochs {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 64 {
		n *= 2
	}
	return &Epochs{stripes: make([]stripe, n)}
}

// Bytes returns the memory of e.
func (e *Epochs) Bytes() int {
	return mem.SizeOf[Epochs]() + mem.Size(len(e.stripes)*int(unsafe.Sizeof(stripe{})))
}

// Enter returns the counter that the reader has to lower by one when it leaves.
func (e *Epochs) Enter() *atomic.Int64 {
	s := &e.stripes[0]
	if n := uint32(len(e.stripes)); n > 1 {
		s = &e.stripes[rand.Uint32()&(n-1)]
	}
	for {
		now := e.now.Load()
		readers := &s.readers[now&1]
		readers.Add(1)
		if e.now.Load() == now {
			return readers
		}
		readers.Add(-1)
	}
}

// Step goes on to the next epoch, unless a reader is left in the epoch before. The writer alone
// may call it.
func (e *Epochs) Step() {
	now := e.now.Load()
	for i := range e.stripes {
		if e.stripes[i].readers[(now+1)&1].Load() != 0 {
			return
		}
	}
	e.now.Store(now + 1)
}

// Mark returns the mark of memory that is taken out of reach now.
func (e *Epochs) Mark() uint32 { return uint32(e.now.Load()) }

// Passed reports whether no reader can see memory that was taken out of reach at a mark.
func (e *Epochs) Passed(mark uint32) bool { return int32(e.Mark()-mark) >= 2 }
