package index

import (
	"runtime"
	"sync"
	"testing"
)

// On one processor nobody else runs unless pass lets them: each pass lets in one of those who
// wait, until all of them had a turn.
func TestPass(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const others = 3
	var tu turns
	var wait sync.WaitGroup
	served := 0 // guarded by tu
	tu.Lock()
	for range others {
		wait.Go(func() {
			tu.Lock()
			served++
			tu.Unlock()
		})
	}
	for tu.waiting.Load() < others {
		runtime.Gosched()
	}
	for n := range others {
		if tu.pass(); served <= n {
			t.Errorf("%d were served after %d turns", served, n+1)
		}
	}
	tu.pass() // nobody waits
	tu.Unlock()
	wait.Wait()
}
