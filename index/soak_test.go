package index

import (
	"container/list"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

var soakFor = flag.Duration("soak", 2*time.Second, "how long TestSoak runs; from a minute on it wants a flat heap")

// What a soak is made of. An engine has room for soakGPU blocks in the gpu and
// soakCPU below, so that all of them hold a constant number.
const (
	soakEngines = 8
	soakReaders = 2
	soakPrompts = 150
	soakGPU     = 3000
	soakCPU     = 6000
	soakBlocks  = 400 // of a prompt, at most
	soakSamples = 40
)

// soakPrompt is a prompt with the engine's hashes of its blocks. It never
// changes: a longer one is another.
type soakPrompt struct {
	root   Key
	locals []Local
	hashes []Hash
}

// with returns p with more blocks, which no prompt had before.
func (p soakPrompt) with(r *rand.Rand, n int) soakPrompt {
	p.locals, p.hashes = slices.Clone(p.locals), slices.Clone(p.hashes)
	for range n {
		p.locals, p.hashes = append(p.locals, Local(r.Uint64())), append(p.hashes, Hash(r.Uint64()))
	}
	return p
}

func (p soakPrompt) first(n int) soakPrompt {
	return soakPrompt{p.root, p.locals[:n:n], p.hashes[:n:n]}
}

func (p soakPrompt) keys(Variant) (keys []Key, err error) {
	k := p.root
	for _, l := range p.locals {
		k = Chain(k, l)
		keys = append(keys, k)
	}
	return keys, nil
}

// soakPool is the conversations that go on, as many all the time.
type soakPool struct {
	systems []soakPrompt // what they begin with
	mu      sync.Mutex   // guards prompts
	prompts []soakPrompt
}

// next returns a prompt that has just grown, been forked, or begun.
func (p *soakPool) next(r *rand.Rand) soakPrompt {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := r.IntN(len(p.prompts))
	is := p.prompts[i]
	switch n := len(is.hashes); {
	case n > soakBlocks*3/4 || r.IntN(8) == 0:
		is = p.systems[r.IntN(len(p.systems))].with(r, 1+r.IntN(30))
	case r.IntN(6) == 0:
		is = is.first(1+r.IntN(n)).with(r, 1+r.IntN(20))
	case r.IntN(4) > 0:
		is = is.with(r, 1+r.IntN(20))
	}
	p.prompts[i] = is
	return is
}

// any returns a prompt as it is.
func (p *soakPool) any(r *rand.Rand) soakPrompt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prompts[r.IntN(len(p.prompts))]
}

// soakTier is the blocks of an engine in one tier, the one used longest ago
// first.
type soakTier struct {
	order list.List // of Hash
	at    map[Hash]*list.Element
}

func (s *soakTier) has(h Hash) bool { return s.at[h] != nil }

func (s *soakTier) use(h Hash) {
	if e := s.at[h]; e != nil {
		s.order.MoveToBack(e)
	} else {
		s.at[h] = s.order.PushBack(h)
	}
}

func (s *soakTier) clear() {
	s.order.Init()
	s.at = map[Hash]*list.Element{}
}

// evict drops all but room blocks and returns what it drops.
func (s *soakTier) evict(room int) (hashes []Hash) {
	for s.order.Len() > room {
		h := s.order.Remove(s.order.Front()).(Hash)
		delete(s.at, h)
		hashes = append(hashes, h)
	}
	return hashes
}

// soakEngine is an engine, as its events tell of it.
type soakEngine struct {
	r        *rand.Rand
	src      Source
	cur      Cursor
	lives    int
	gpu, cpu soakTier
	total    Counts
}

// step does one thing that engines do.
func (e *soakEngine) step(m *Memory, pool *soakPool) error {
	var changes []Change
	switch n := e.r.IntN(4000); {
	case n == 0: // it goes; another one comes, or the same again
		e.gpu.clear()
		e.cpu.clear()
		pod := e.src.Pod
		if e.lives++; e.r.IntN(2) == 0 {
			e.src.Pod = fmt.Sprintf("%s%d", pod[:1], e.lives)
		}
		e.cur = Cursor{Stream: "s"}
		return m.Remove(context.Background(), pod)
	case n < 3:
		e.gpu.clear()
		e.cpu.clear()
		changes = append(changes, Change{Op: OpClear})
	case n < 6:
		e.cpu.clear()
		changes = append(changes, Change{Op: OpClearTier, Tier: TierCPU})
	case n < 200:
		changes = e.report(pool.any(e.r))
	default:
		changes = e.serve(pool.next(e.r))
	}
	e.cur.Next++
	done, err := m.Apply(context.Background(), e.src, e.cur, changes)
	e.total.Add(done.Counts)
	return err
}

// serve has a prompt in the gpu: it announces what is new of it, and what has to
// go for that, half of which goes to the cpu.
func (e *soakEngine) serve(p soakPrompt) (changes []Change) {
	for i := 0; i < len(p.hashes); i++ {
		from := i
		for i < len(p.hashes) && !e.gpu.has(p.hashes[i]) {
			i++
		}
		if i > from {
			changes = append(changes, e.store(p, from, i))
		}
	}
	for _, h := range p.hashes {
		e.gpu.use(h)
	}
	gone := e.gpu.evict(soakGPU)
	if len(gone) > 0 {
		moved := gone[:len(gone)/2]
		for _, h := range moved {
			e.cpu.use(h)
		}
		changes = append(changes,
			Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: moved},
			Change{Op: OpRemove, Hashes: gone})
	}
	if gone := e.cpu.evict(soakCPU); len(gone) > 0 {
		changes = append(changes, Change{Op: OpRemove, Tier: TierCPU, Hashes: gone})
	}
	return changes
}

// report announces again what is there of a prompt.
func (e *soakEngine) report(p soakPrompt) []Change {
	n := 0
	for n < len(p.hashes) && e.gpu.has(p.hashes[n]) {
		n++
	}
	if n == 0 {
		return nil
	}
	return []Change{e.store(p, 0, n)}
}

func (e *soakEngine) store(p soakPrompt, from, to int) Change {
	c := Change{
		Op: OpStore, Copies: CopiesGuarded, Hashes: p.hashes[from:to], Variant: Variant{Unit: 16}, BlockSize: 16,
		Locals: p.locals[from:to], Root: p.root,
	}
	if from > 0 {
		c.HasParent, c.Parent = true, p.hashes[from-1]
	}
	return c
}

// soak is a whole run.
type soak struct {
	m       *Memory
	pool    soakPool
	engines []*soakEngine
	// pause is held by whoever does a step, and by the sampler to have all stop.
	pause sync.RWMutex
	done  chan struct{}
}

// while runs step until the end, unless the sampler is at work.
func (s *soak) while(t *testing.T, step func() error) {
	for {
		select {
		case <-s.done:
			return
		default:
		}
		s.pause.RLock()
		err := step()
		s.pause.RUnlock()
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// TestSoak has engines of a constant size store, evict, move, fork, report,
// clear, go and come, while readers ask. Now and then all stop: then the index
// holds exactly what the engines hold, nothing in it contradicts itself, and the
// heap is as large as before.
func TestSoak(t *testing.T) {
	m, err := NewMemory(MemoryConfig{IdleNames: 4096})
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{m: m, done: make(chan struct{})}
	r := rand.New(rand.NewPCG(1, 21))
	for root := range Key(5) {
		s.pool.systems = append(s.pool.systems, soakPrompt{root: root}.with(r, 20))
	}
	for i := range soakPrompts {
		s.pool.prompts = append(s.pool.prompts, s.pool.systems[i%5].with(r, 1+r.IntN(50)))
	}
	var wg sync.WaitGroup
	for n := range uint64(soakEngines) {
		e := &soakEngine{r: rand.New(rand.NewPCG(n, 22)), src: Source{Pod: string('a' + rune(n)), Model: "m"}, cur: Cursor{Stream: "s"}}
		e.gpu.clear()
		e.cpu.clear()
		s.engines = append(s.engines, e)
		wg.Go(func() { s.while(t, func() error { return e.step(m, &s.pool) }) })
	}
	every := NewCandidates("m", nil)
	for n := range uint64(soakReaders) {
		r := rand.New(rand.NewPCG(n, 23))
		var out Matches
		wg.Go(func() {
			s.while(t, func() error {
				p := s.pool.any(r)
				return m.Match(context.Background(), &Query{Candidates: every, Keys: p.keys, Held: r.IntN(8) == 0}, &out)
			})
		})
	}
	goroutines := runtime.NumGoroutine()
	var heaps []uint64
	tick := time.NewTicker(*soakFor / soakSamples)
	for range soakSamples {
		<-tick.C
		s.pause.Lock()
		heaps = append(heaps, s.sample(t, r))
		m.sweepers.Wait() // nobody removes anything meanwhile
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("%d goroutines, were %d", n, goroutines)
		}
		s.pause.Unlock()
		if t.Failed() {
			break
		}
	}
	close(s.done)
	wg.Wait()
	s.judge(t, heaps)
}

// sample checks everything, and returns the size of the heap.
func (s *soak) sample(t *testing.T, r *rand.Rand) uint64 {
	t.Helper()
	if err := s.m.check(); err != nil {
		t.Error(err)
	}
	infos := s.m.Describe(nil)
	members := 0
	for _, e := range s.engines {
		i := slices.IndexFunc(infos, func(i SourceInfo) bool { return i.Source == e.src })
		want := [NumTiers]int{TierGPU: e.gpu.order.Len(), TierCPU: e.cpu.order.Len()}
		if i < 0 && want != ([NumTiers]int{}) || i >= 0 && infos[i].Blocks != want {
			t.Errorf("%v holds %v, not what Describe says: %+v", e.src, want, infos)
		}
		members += want[TierGPU] + want[TierCPU]
	}
	if u := s.m.Usage(); u.Memberships != members || u.Prefixes > soakEngines*(soakGPU+soakCPU+2*s.m.cfg.IdleNames) {
		t.Errorf("usage %+v, %d blocks are held", u, members)
	}
	for range 20 {
		s.compare(t, s.pool.any(r))
	}
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}

// compare asks for a prompt and compares the answer with what the engines hold.
func (s *soak) compare(t *testing.T, p soakPrompt) {
	t.Helper()
	var got Matches
	if err := s.m.Match(context.Background(), &Query{Candidates: NewCandidates("m", nil), Keys: p.keys}, &got); err != nil {
		t.Fatal(err)
	}
	rows := map[Source]Row{}
	for _, r := range got.Rows {
		rows[r.Source] = r
	}
	for _, e := range s.engines {
		run, gpu := int32(0), int32(0)
		for _, h := range p.hashes {
			if !e.gpu.has(h) && !e.cpu.has(h) {
				break
			}
			if e.gpu.has(h) && gpu == run {
				gpu++
			}
			run++
		}
		if r := rows[e.src]; r.Run != run || r.GPU != gpu {
			t.Errorf("%v holds %d blocks, %d in the gpu; the index says %d, %d", e.src, run, gpu, r.Run, r.GPU)
		}
		delete(rows, e.src)
	}
	if len(rows) > 0 {
		t.Errorf("nobody has the rows %+v", rows)
	}
}

// judge says whether the heap was flat: after a fifth of the samples, the most of
// the later half is at most a tenth more than what was usual in the half before.
func (s *soak) judge(t *testing.T, heaps []uint64) {
	var total Counts
	lives := 0
	for _, e := range s.engines {
		total.Add(e.total)
		lives += e.lives
	}
	t.Logf("heap in kB: %v", heapsInKB(heaps))
	t.Logf("%+v, %d engines came anew, %+v", total, lives, s.m.Usage())
	if t.Failed() {
		return
	}
	heaps = heaps[len(heaps)/5:]
	earlier, later := slices.Sorted(slices.Values(heaps[:len(heaps)/2])), heaps[len(heaps)/2:]
	usual, most := earlier[len(earlier)/2], slices.Max(later)
	limit := usual + usual/10
	if *soakFor < time.Minute {
		limit = 2*usual + 16<<20 // it may just have begun
	} else if total.Cleared < 10 || lives < 3 || total.Reports < 1000 || total.Forgotten < 1000 {
		t.Error("the test tests too little")
	}
	t.Logf("usually %d kB, at most %d kB afterwards", usual/1024, most/1024)
	if most > limit {
		t.Errorf("the heap grew from %d to %d bytes", usual, most)
	}
}

func heapsInKB(heaps []uint64) (kb []uint64) {
	for _, h := range heaps {
		kb = append(kb, h/1024)
	}
	return kb
}
