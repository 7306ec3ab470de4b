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

// limbo holds what was taken out of reach until it can be used again, oldest
// first.
type limbo struct {
	queue []leaving
	from  int // of the first that waits
}

type leaving struct {
	epoch uint64
	ref   uint32
}

func (l *limbo) add(e *epochs, ref uint32) {
	l.queue = append(l.queue, leaving{e.now.Load(), ref})
}

// next returns something that no reader can see any more.
func (l *limbo) next(e *epochs) (ref uint32, ok bool) {
	if l.from == len(l.queue) || l.queue[l.from].epoch+2 > e.now.Load() {
		return 0, false
	}
	ref = l.queue[l.from].ref
	l.from++
	switch {
	case l.from < len(l.queue) && (l.from < 1024 || 2*l.from < len(l.queue)):
	case l.from == len(l.queue) && cap(l.queue) > 4096:
		*l = limbo{}
	default:
		l.queue = l.queue[:copy(l.queue, l.queue[l.from:])]
		l.from = 0
	}
	return ref, true
}

func (l *limbo) len() int { return len(l.queue) - l.from }
