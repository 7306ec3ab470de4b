package index

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// turns is a mutex whose holder can let those in who wait. A sync.Mutex that is unlocked and
// locked again at once stays with its goroutine for up to 1 ms, and on one processor until the
// goroutine is preempted, because a waiter has to be woken first. The zero value is unlocked.
type turns struct {
	mu      sync.Mutex
	waiting atomic.Int32
	served  atomic.Uint32 // of those who waited
}

func (t *turns) Lock() {
	if t.mu.TryLock() {
		return
	}
	t.waiting.Add(1)
	t.mu.Lock()
	t.waiting.Add(-1)
	t.served.Add(1)
}

func (t *turns) Unlock() { t.mu.Unlock() }

// pass lets one of those in who wait, if there is one. The caller holds t, and does so again
// afterwards. It gives up on a waiter that gets no processor for long.
func (t *turns) pass() {
	if t.waiting.Load() == 0 {
		return
	}
	before := t.served.Load()
	t.mu.Unlock()
	for tries := 100; tries > 0 && t.served.Load() == before; tries-- {
		runtime.Gosched()
	}
	t.Lock()
}
