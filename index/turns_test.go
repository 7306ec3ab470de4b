package index

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/cputime"
)

const crowdSize = 3

// beforeCrowd calls do while it holds a lock for which three others wait, for one turn each. do
// receives the number of turns taken. On one processor no other goroutine runs unless the holder
// yields.
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

// Each pass lets in one waiter, until all had a turn.
func TestPass(t *testing.T) {
	var tu turns
	beforeCrowd(&tu, func(served *int) {
		for n := range crowdSize {
			if tu.pass(); *served <= n {
				t.Errorf("%d were served after %d turns", *served, n+1)
			}
		}
		tu.pass() // without waiters
	})
}

// A clear of many names passes often enough for all waiters.
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

// An engine's batch blocks all writers, so many blocks that are removed and stored again are not
// compared pairwise.
func TestManyStoredAgainAtOnce(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 10))}
	const blocks = 30_000 // comparing all pairs takes some seconds
	c := f.chain(blocks)
	lower := Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: c.Hashes, Unique: true}
	f.apply(0, c, lower)
	var again []Change
	for _, op := range []Op{OpRemove, OpStore} {
		for i := range c.Hashes {
			one := lower
			one.Op, one.Hashes = op, c.Hashes[i:i+1]
			again = append(again, one)
		}
	}
	took := cputime.Of(func() { f.apply(0, again...) })
	if held := m.Describe(nil)[0].Blocks; held[TierCPU] != blocks {
		t.Errorf("%d blocks are held", held)
	}
	if took > time.Second {
		t.Errorf("%d stores of %d blocks that were removed took %v", blocks, blocks, took)
	}
}

// Many stores that may be reports are not compared pairwise either.
func TestManyReportsAtOnce(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 10))}
	var all []Change
	for range 30_000 {
		c := f.chain(1)
		c.Partial = true
		all = append(all, c)
	}
	if took := cputime.Of(func() { f.apply(0, all...) }); took > time.Second {
		t.Errorf("%d stores took %v", len(all), took)
	}
}

// A clear of the GPU does not invalidate waiting stores that earlier clears have.
func TestManyClearsBesideStoresThatWait(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 11))}
	var changes []Change
	for i := range 50_000 { // some thousand wait at a time
		changes = append(changes,
			Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: []Hash{Hash(i)}},
			Change{Op: OpClearTier, Tier: TierGPU})
	}
	if took := cputime.Of(func() { f.apply(0, changes...) }); took > time.Second {
		t.Errorf("%d clears took %v", len(changes)/2, took)
	}
}

// A clear of few blocks beside many names, held or not, does not scan all of them.
func TestManyClearsOfFewBlocks(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 13))}
	c := f.chain(30_000)
	lower := Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: c.Hashes[:1]}
	for _, small := range [][]Change{
		{lower, {Op: OpClearTier, Tier: TierCPU}},
		{{Op: OpClear}, f.chain(1)},
	} {
		f.apply(0, c)
		changes := slices.Repeat(small, 2000)
		if took := cputime.Of(func() { f.apply(0, changes...) }); took > time.Second {
			t.Errorf("%d clears took %v", len(changes)/2, took)
		}
	}
}

// Neither a hash nor a parent that many stores wait for makes each further one visit them all.
func TestManyStoresThatWait(t *testing.T) {
	const stores = 40_000
	wait := func(i int) (sameHash, sameParent Change) {
		c := Change{Op: OpStore, Copies: CopiesExact, HasParent: true, Variant: Variant{Unit: 16}, BlockSize: 16, Locals: []Local{Local(i)}}
		sameHash, sameParent = c, c
		sameHash.Hashes, sameHash.Parent = []Hash{1}, Hash(10+i)
		sameParent.Hashes, sameParent.Parent = []Hash{Hash(10 + i)}, 1
		return sameHash, sameParent
	}
	root := Change{Op: OpStore, Copies: CopiesExact, Hashes: []Hash{1}, Variant: Variant{Unit: 8}, BlockSize: 8, Locals: []Local{1}}
	var hashes, parents, roots []Change
	for i := range stores {
		h, p := wait(i)
		hashes, parents = append(hashes, h), append(parents, p)
	}
	for range stores / 4 {
		roots = append(roots, root, Change{Op: OpRemove, Hashes: root.Hashes})
	}
	for what, changes := range map[string][]Change{"one hash": hashes, "one parent of another variant": append(parents, roots...)} {
		m, err := newMemory(MemoryConfig{pendingBytes: 64 << 20})
		must(t, err)
		f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 14))}
		if took := cputime.Of(func() { f.apply(0, changes...) }); took > time.Second {
			t.Errorf("%d stores with %s took %v", stores, what, took)
		}
		if n := m.Describe(nil)[0].Parked; n != stores {
			t.Errorf("%d stores with %s wait", n, what)
		}
		m.Close()
	}
}

// A key that gets a second name repeatedly does not have all its names recorded each time.
func TestManySecondNames(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 12))}
	c := f.chain(30_000)
	f.apply(0, c)
	second := c
	second.Hashes, second.Locals = []Hash{1}, c.Locals[:len(c.Locals)/len(c.Hashes)]
	var changes []Change
	for range 10_000 {
		changes = append(changes, second, Change{Op: OpRemove, Hashes: second.Hashes})
	}
	if took := cputime.Of(func() { f.apply(0, changes...) }); took > time.Second {
		t.Errorf("%d second names took %v", len(changes)/2, took)
	}
	if n := m.Describe(nil)[0].Blocks[TierGPU]; n != len(c.Hashes) {
		t.Errorf("%d blocks are held", n)
	}
}
