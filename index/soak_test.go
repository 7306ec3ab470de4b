package index

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

var soakFor = flag.Duration("soak", 0, "how long TestSoakAtTheBound runs; long form: a minute, from which on they want more; 0: for soakSteps steps from a sample to the next")

// The sizes of a soak. An engine has room for soakGPU blocks in the GPU and soakCPU below, so that
// all engines hold a constant number.
const (
	soakEngines = 8
	soakReaders = 2
	soakPrompts = 150
	soakGPU     = 1500
	soakCPU     = 3000
	soakBlocks  = 400 // of a prompt, maximum
	soakWarm    = 750 // steps until an engine is full
	soakSteps   = 300 // between samples, without -soak
	// soakOther is the memory of Go's runtime for waiting goroutines, and of the readers'
	// Candidates: 45 kB after some minutes, by a profile.
	soakOther = 64 << 10
)

// soakPrompt is a prompt with the engine's hashes of its blocks. It is immutable.
type soakPrompt struct {
	root   Key
	locals []Local
	hashes []Hash
}

// with returns p with more, new blocks. All prompts take the same memory.
func (p soakPrompt) with(r *rand.Rand, n int) soakPrompt {
	p.locals = append(make([]Local, 0, soakBlocks), p.locals...)
	p.hashes = append(make([]Hash, 0, soakBlocks), p.hashes...)
	for range n {
		p.locals, p.hashes = append(p.locals, Local(r.Uint64())), append(p.hashes, Hash(r.Uint64()))
	}
	return p
}

func (p soakPrompt) first(n int) soakPrompt {
	return soakPrompt{p.root, p.locals[:n:n], p.hashes[:n:n]}
}

// of returns p with the hashes of a model.
func (p soakPrompt) of(model int) soakPrompt {
	p.root += Key(model) << 32
	return p
}

func (p soakPrompt) keys(Variant) (keys []Key, err error) {
	k := p.root
	for _, l := range p.locals {
		k = Chain(k, l)
		keys = append(keys, k)
	}
	return keys, nil
}

// soakPool has a constant number of conversations.
type soakPool struct {
	systems []soakPrompt // common prefixes
	mu      sync.Mutex   // guards prompts
	prompts []soakPrompt
}

// next returns a prompt after it has grown, forked or begun.
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

// any returns an unchanged prompt.
func (p *soakPool) any(r *rand.Rand) soakPrompt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prompts[r.IntN(len(p.prompts))]
}

// soakTier is an engine's blocks in one tier, the least recently used first. Its memory is counted.
type soakTier struct {
	at          names.Table[Hash, uint32]
	blocks      pool[soakBlock]
	first, last uint32
}

type soakBlock struct {
	hash       Hash
	prev, next uint32
}

func (s *soakTier) init(count *mem.Count) {
	s.at.Init([2]uint64{1, 2}, count)
	s.blocks.mem = count
}

func (s *soakTier) len() int { return s.blocks.len() }

func (s *soakTier) has(h Hash) bool { return s.at.Get(h) != 0 }

func (s *soakTier) use(h Hash) {
	s.drop(h)
	i := s.blocks.take(soakBlock{hash: h, prev: s.last})
	if s.last == 0 {
		s.first = i
	} else {
		s.blocks.at(s.last).next = i
	}
	s.last = i
	s.at.Put(h, i)
}

func (s *soakTier) drop(h Hash) {
	i := s.at.Get(h)
	if i == 0 {
		return
	}
	b := *s.blocks.at(i)
	if b.prev == 0 {
		s.first = b.next
	} else {
		s.blocks.at(b.prev).next = b.next
	}
	if b.next == 0 {
		s.last = b.prev
	} else {
		s.blocks.at(b.next).prev = b.prev
	}
	s.blocks.give(i)
	s.at.Remove(h)
}

// evict drops all but room blocks and returns their hashes.
func (s *soakTier) evict(room int) (hashes []Hash) {
	for s.len() > room {
		h := s.blocks.at(s.first).hash
		s.drop(h)
		hashes = append(hashes, h)
	}
	return hashes
}

// soakEngine is an engine with the state of its events.
type soakEngine struct {
	r        *rand.Rand
	src      Source
	model    int
	cur      Cursor
	lives    int
	mu       sync.Mutex // guards the blocks
	gpu, cpu soakTier
	total    Counts
	dropped  uint64 // stores, since the last clear
}

// step makes a random change.
func (e *soakEngine) step(m *memory, pool *soakPool) error {
	var changes []Change
	switch n := e.r.IntN(4000); {
	case n == 0: // it stops; a new one or the same starts
		e.gpu.evict(0)
		e.cpu.evict(0)
		e.dropped = 0
		pod := e.src.Pod
		if e.lives++; e.r.IntN(2) == 0 {
			e.src.Pod = fmt.Sprintf("%s%d", pod[:1], e.lives)
		}
		e.cur = Cursor{Stream: "s"}
		return m.Remove(context.Background(), pod)
	case n < 3:
		e.gpu.evict(0)
		e.cpu.evict(0)
		e.dropped = 0
		changes = append(changes, Change{Op: OpClear})
	case n < 6:
		e.cpu.evict(0)
		changes = append(changes, Change{Op: OpClearTier, Tier: TierCPU})
	case n < 200:
		changes = e.report(pool.any(e.r).of(e.model))
	default:
		p := pool.next(e.r).of(e.model)
		if err := e.ask(m, p, e.r.IntN(8) == 0); err != nil { // as its router did before
			return err
		}
		changes = e.serve(p)
	}
	e.cur.Next++
	done, err := m.Apply(context.Background(), e.src, e.cur, changes)
	e.total.Add(done.Counts)
	e.dropped += done.Counts.Dropped
	return err
}

// ask matches a prompt and compares the answer with the engine's blocks.
func (e *soakEngine) ask(m *memory, p soakPrompt, held bool) error {
	var got Matches
	q := Query{Candidates: NewCandidates(e.src.Model, []string{e.src.Pod}), Keys: p.keys, Held: held}
	if err := m.Match(context.Background(), &q, &got); err != nil {
		return err
	}
	var row Row
	if len(got.Rows) > 0 {
		row = got.Rows[0]
	}
	return e.compare(m, p, row)
}

// compare compares the row of a prompt with the engine's blocks: all of them, or fewer after an
// eviction.
func (e *soakEngine) compare(m *memory, p soakPrompt, row Row) error {
	run, gpu := int32(0), int32(0)
	for i, h := range p.hashes {
		inGPU := e.gpu.has(h)
		if !inGPU && !e.cpu.has(h) {
			break
		}
		if inGPU && gpu == run {
			gpu++
		}
		if i == int(run) {
			run++
		}
	}
	if row.Run > run || row.GPU > gpu || (row.Run < run || row.GPU < gpu) && !row.Evicted && !e.forgotten(m) {
		return fmt.Errorf("%v holds %d blocks, %d in the gpu; the index has %d, %d", e.src, run, gpu, row.Run, row.GPU)
	}
	if row.Held == nil {
		return nil
	}
	for i, h := range p.hashes {
		for t, tier := range []*soakTier{TierGPU: &e.gpu, TierCPU: &e.cpu} {
			if bits := row.Held[t]; bits != nil && bits[i/64]>>(i%64)&1 != 0 && !tier.has(h) {
				return fmt.Errorf("%v does not hold block %d in tier %d", e.src, i, t)
			}
		}
	}
	return nil
}

// forgotten reports whether m has evicted blocks that the engine may hold. Dead slabs are counted
// when their names are swept.
func (e *soakEngine) forgotten(m *memory) bool {
	m.ground.mu.Lock()
	dying := m.ground.forest.Dying() > 0
	m.ground.mu.Unlock()
	return dying || e.dropped > 0 || (*m.models.Load())[e.src.Model].source(e.src).describe().Evicted > 0
}

// serve puts a prompt in the GPU: it publishes the new blocks and the evicted ones, half of which
// go to the CPU.
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

// report publishes the held blocks of a prompt again.
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
	m       *memory
	pool    soakPool
	engines []*soakEngine
	// The limits of the test: base when the index was made, and the counts.
	base  int64
	count mem.Count
	// pause is held for reading during steps, and for writing by the sampler.
	pause sync.RWMutex
	done  chan struct{}
	steps atomic.Int64
	due   chan struct{} // receives after soakSteps steps, or after an error
}

// newSoak returns a soak with full engines of some models.
func newSoak(t *testing.T, models int, cfg MemoryConfig) *soak {
	s := &soak{done: make(chan struct{}), due: make(chan struct{}, 1)}
	r := rand.New(rand.NewPCG(1, 21))
	for root := range Key(5) {
		s.pool.systems = append(s.pool.systems, soakPrompt{root: root}.with(r, 20))
	}
	for i := range soakPrompts {
		s.pool.prompts = append(s.pool.prompts, s.pool.systems[i%5].with(r, 1+r.IntN(50)))
	}
	for n := range soakEngines {
		e := &soakEngine{
			r: rand.New(rand.NewPCG(uint64(n), 22)), model: n % models,
			src: Source{Pod: string('a' + rune(n)), Model: fmt.Sprint("m", n%models)}, cur: Cursor{Stream: "s"},
		}
		e.gpu.init(&s.count)
		e.cpu.init(&s.count)
		s.engines = append(s.engines, e)
	}
	s.base = liveHeap() - s.count.Load()
	var err error
	if s.m, err = newMemory(cfg); err != nil {
		t.Fatal(err)
	}
	for range soakWarm {
		for _, e := range s.engines {
			must(t, e.step(s.m, &s.pool))
		}
	}
	return s
}

// held returns the number of blocks of all engines.
func (s *soak) held() (n int) {
	for _, e := range s.engines {
		n += e.gpu.len() + e.cpu.len()
	}
	return n
}

// run runs engines and readers, and takes samples.
func (s *soak) run(t *testing.T, sample func(r *rand.Rand)) {
	var wg sync.WaitGroup
	for _, e := range s.engines {
		wg.Go(func() {
			s.while(t, func() error {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.step(s.m, &s.pool)
			})
		})
	}
	every := map[string]*Candidates{}
	for _, e := range s.engines {
		every[e.src.Model] = NewCandidates(e.src.Model, nil)
	}
	for n := range uint64(soakReaders) {
		r := rand.New(rand.NewPCG(n, 23))
		wg.Go(func() {
			s.while(t, func() error {
				e := s.engines[r.IntN(len(s.engines))]
				p := s.pool.any(r).of(e.model)
				if r.IntN(2) == 0 {
					var out Matches
					return s.m.Match(context.Background(), &Query{Candidates: every[e.src.Model], Keys: p.keys, Held: r.IntN(8) == 0}, &out)
				}
				e.mu.Lock() // all other engines continue
				defer e.mu.Unlock()
				return e.ask(s.m, p, r.IntN(8) == 0)
			})
		})
	}
	goroutines := runtime.NumGoroutine()
	samples := max(10, *soakFor/(6*time.Second))
	next := func() { <-s.due }
	if *soakFor > 0 {
		tick := time.NewTicker(*soakFor / samples)
		defer tick.Stop()
		next = func() { <-tick.C }
	}
	r := rand.New(rand.NewPCG(1, 24))
	for range samples {
		next()
		s.pause.Lock()
		sample(r)
		s.m.sweepers.Wait() // no removal is running
		// Finished goroutines may not have ended yet.
		for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
			if time.Now().After(end) {
				t.Errorf("%d goroutines, were %d", runtime.NumGoroutine(), goroutines)
				break
			}
		}
		s.pause.Unlock()
		if t.Failed() {
			break
		}
	}
	close(s.done)
	wg.Wait()
	var total Counts
	lives := 0
	for _, e := range s.engines {
		total.Add(e.total)
		lives += e.lives
	}
	t.Logf("%+v, %d engines came anew, %d steps, %+v", total, lives, s.steps.Load(), s.m.MemoryUsage())
	if *soakFor >= time.Minute && (total.Cleared < 10 || lives < 3 || total.Reports < 1000 || total.Forgotten < 1000) {
		t.Error("the test tests too little")
	}
}

// while runs step until the end, except during samples.
func (s *soak) while(t *testing.T, step func() error) {
	for {
		select {
		case <-s.done:
			return
		default:
		}
		s.pause.RLock()
		err := step()
		n := s.steps.Add(1)
		if n%16 == 0 && err == nil {
			if u := s.m.MemoryUsage(); u.Total > u.Budget {
				err = fmt.Errorf("more is taken than the budget: %+v", u)
			}
		}
		s.pause.RUnlock()
		if err != nil {
			t.Error(err)
		}
		if n%soakSteps == 0 || err != nil {
			select {
			case s.due <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

// TestSoakAtTheBound: engines of three models hold 1.2 times the budget. Answers are an engine's
// blocks, or fewer after evictions. The budget is always kept, by the count and by the heap, and at
// least four fifths of it are used for held blocks.
func TestSoakAtTheBound(t *testing.T) {
	if testing.Short() {
		t.Skip("the heap at the bound is not measured: -short")
	}
	const models = 3
	var fits int
	var bytes int64
	{
		whole := newSoak(t, models, MemoryConfig{idleNames: 1})
		fits, bytes = whole.held()*10/12, whole.m.MemoryUsage().Total*10/12
	}
	s := newSoak(t, models, MemoryConfig{Bytes: bytes, idleNames: 4096})
	var heaps, shares []int64
	s.run(t, func(r *rand.Rand) {
		s.sample(t, r)
		heap := liveHeap() - s.base - s.count.Load()
		u := s.m.MemoryUsage()
		if heaps = append(heaps, heap); heap > u.Budget+soakOther || u.Total > u.Budget {
			t.Errorf("the heap has %d bytes, counted %d, of %d", heap, u.Total, u.Budget)
		}
		seen := u.Memberships
		for _, info := range s.m.Describe(nil) {
			seen -= info.Unplaced
		}
		shares = append(shares, int64(100*seen/min(fits, s.held())))
	})
	t.Logf("heap in kB of %d: %v", bytes/1024, inKB(heaps))
	t.Logf("blocks held in percent of %d: %v", fits, shares)
	slices.Sort(shares) // blocks that others lost for a removed pod do not return at once
	if usual := shares[len(shares)/2]; usual < 80 {
		t.Errorf("usually %d %% of what would fit are held", usual)
	}
	if s.m.MemoryUsage().Evicted < 1000 {
		t.Error("the test tests too little")
	}
}

// sample checks everything.
func (s *soak) sample(t *testing.T, r *rand.Rand) {
	t.Helper()
	if err := s.m.check(); err != nil {
		t.Error(err)
	}
	infos := s.m.Describe(nil)
	for _, e := range s.engines {
		i := slices.IndexFunc(infos, func(i SourceInfo) bool { return i.Source == e.src })
		var got SourceInfo
		if i >= 0 {
			got = infos[i]
		}
		want := [NumTiers]int{TierGPU: e.gpu.len(), TierCPU: e.cpu.len()}
		whole := got.Evicted+e.dropped == 0
		for tier, n := range got.Blocks {
			if n > want[tier] || whole && n < want[tier] {
				t.Errorf("%v holds %v, not the result of Describe: %+v", e.src, want, got)
			}
		}
	}
	if u := s.m.MemoryUsage(); u.Prefixes > soakEngines*(soakGPU+soakCPU+2*s.m.cfg.idleNames) {
		t.Errorf("usage %+v", u)
	}
	for range 20 {
		s.compare(t, s.pool.any(r))
	}
}

// compare matches a prompt and compares the answer with the engines' blocks.
func (s *soak) compare(t *testing.T, p soakPrompt) {
	t.Helper()
	rows := map[Source]Row{}
	for _, e := range s.engines {
		var got Matches
		q := Query{Candidates: NewCandidates(e.src.Model, nil), Keys: p.of(e.model).keys}
		must(t, s.m.Match(context.Background(), &q, &got))
		for _, r := range got.Rows {
			rows[r.Source] = r
		}
	}
	for _, e := range s.engines {
		if err := e.compare(s.m, p, rows[e.src]); err != nil {
			t.Error(err)
		}
		delete(rows, e.src)
	}
	if len(rows) > 0 {
		t.Errorf("nobody has the rows %+v", rows)
	}
}

func inKB(heaps []int64) (kb []int64) {
	for _, h := range heaps {
		kb = append(kb, h/1024)
	}
	return kb
}
