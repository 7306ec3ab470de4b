package forest

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

// epochs tell when memory that readers may still look at can be used again.
//
// A reader enters the epoch that is now and leaves it when it is done. What a
// writer takes out of reach in epoch r is reused at r+2 at the earliest. The
// step from e to e+1 waits until nobody is left in e-1, so while a reader is in
// e, the epoch is at most e+1: whatever was within reach when it entered was
// taken out in e or later, and is not reused before it leaves.
//
// Nobody waits: a reader retries only if the epoch went on between two of its
// instructions, and a writer that cannot go on takes fresh memory instead.
type epochs struct {
	now     atomic.Uint64
	stripes []stripe // a power of two of them
}

// stripe counts the readers in even and odd epochs, for a part of the readers,
// on cache lines of its own.
type stripe struct {
	readers [2]atomic.Int64
	_       [112]byte
}

func newEpochs() *epochs {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 64 {
		n *= 2
	}
	return &epochs{stripes: make([]stripe, n)}
}

// enter returns what the reader has to count down when it leaves.
func (e *epochs) enter() *atomic.Int64 {
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

// step goes on to the next epoch if it can. One caller at a time.
func (e *epochs) step() {
	now := e.now.Load()
	for i := range e.stripes {
		if e.stripes[i].readers[(now+1)&1].Load() != 0 {
			return
		}
	}
	e.now.Store(now + 1)
}

// mark returns what to note of something that is taken out of reach now.
func (e *epochs) mark() uint32 { return uint32(e.now.Load()) }

// passed reports whether no reader can see what was taken out of reach at a mark.
func (e *epochs) passed(mark uint32) bool { return int32(e.mark()-mark) >= 2 }
