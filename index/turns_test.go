package index

import (
	"runtime"
	"sync"
	"testing"
)

const crowdSize = 3

// beforeCrowd calls do while it holds a lock for which three others wait, each for one turn. do
// gets how many had theirs. On one processor nobody else runs unless the holder lets them.
func beforeCrowd(tu *turns, do func(served *int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var wait sync.WaitGroup
	served := 0 // guarded by tu
	tu.Lock()
	for range crowdSize {
		wait.Go(func() {
			tu.Lock()
			served++
			tu.Unlock()
		})
	}
	for tu.waiting.Load() < crowdSize {
		runtime.Gosched()
	}
	do(&served)
	tu.Unlock()
	wait.Wait()
}

// Each pass lets in one of those who wait, until all of them had a turn.
func TestPass(t *testing.T) {
	var tu turns
	beforeCrowd(&tu, func(served *int) {
		for n := range crowdSize {
			if tu.pass(); *served <= n {
				t.Errorf("%d were served after %d turns", *served, n+1)
			}
		}
		tu.pass() // nobody waits
	})
}

// A clear of many names passes often enough for all who wait.
func TestALargeClearPasses(t *testing.T) {
	c := newCrowd(t)
	src := Source{Pod: "a", Model: "m"}
	c.store(src, (crowdSize+1)*yieldAfter)
	s, err := c.m.source(src)
	if err != nil {
		t.Fatal(err)
	}
	beforeCrowd(&s.ground.mu, func(served *int) {
		if s.clear(); *served < crowdSize {
			t.Errorf("%d of %d were served during a clear of %d names", *served, crowdSize, (crowdSize+1)*yieldAfter)
		}
	})
}
