package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/internal/hashunit"
)

// removeSome removes a source or its whole pod.
func (m *memory) removeSome(r *rand.Rand, src Source) error {
	if r.IntN(2) == 0 {
		return m.Remove(context.Background(), src.Pod)
	}
	return m.RemoveSource(context.Background(), src)
}

// TestInvariants draws hashes, parents and keys at random, so that they contradict each other
// unlike those of engines, with tiny bounds and sources that share keys.
func TestInvariants(t *testing.T) {
	seeds := uint64(choose(6, 12, 60))
	var total Counts
	var parked, removed, queries int
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 5))
		m, err := newMemory(MemoryConfig{pendingBytes: 8 << 10, idleNames: 1 + r.IntN(20)})
		must(t, err)
		var srcs []Source
		for pod := range 1 + r.IntN(4) {
			srcs = append(srcs, Source{Pod: fmt.Sprint(pod / 2), Model: "m", Rank: pod % 2})
		}
		for step := range 400 {
			src := srcs[min(r.IntN(2*len(srcs)), len(srcs)-1)] // one source writes most
			c := randomChange(r)
			if seed%2 > 0 {
				c.Group = Group{} // whose rows have bits on request only
			}
			done, err := m.Apply(context.Background(), src, Cursor{}, []Change{c})
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			total.Add(done.Counts)
			if r.IntN(80) == 0 {
				must(t, m.removeSome(r, srcs[r.IntN(len(srcs))]))
				removed++
			}
			md := (*m.models.Load())["m"]
			if md == nil { // the pod is gone
				continue
			}
			if err := m.check(); err != nil {
				t.Fatalf("seed %d, step %d, after %+v of %v: %v", seed, step, c, src, err)
			}
			if step%16 == 0 {
				queries++
				if diff := heldAndPlain(m, r); diff != "" {
					t.Fatalf("seed %d, step %d, after %+v of %v: %s", seed, step, c, src, diff)
				}
			}
		}
		for _, s := range m.Describe(nil) {
			parked += s.Parked
		}
	}
	t.Logf("%+v; %d removals, %d stores parked at the end, %d queries", total, removed, parked, queries)
	for name, got := range map[string][2]uint64{
		"parked": {total.Parked, 500}, "joined": {total.Joined, 100}, "dropped": {total.Dropped, 100},
		"forgotten": {total.Forgotten, 500}, "ambiguous": {total.Ambiguous, 100}, "restored": {total.Restored, 20},
		"reports": {total.Reports, 100}, "cleared": {total.Cleared, 50}, "removals": {uint64(removed), 100},
	} {
		if *Long && got[0]*60 < got[1]*seeds {
			t.Errorf("%d %s, want at least %d: the test tests too little", got[0], name, got[1]*seeds/60)
		}
	}
}

// floodedMemory is a Memory of the smallest budget.
type floodedMemory struct {
	testing.TB
	*memory
	next uint64
}

func (f *floodedMemory) apply(src Source, c Change) Counts {
	f.Helper()
	done, err := f.Apply(context.Background(), src, Cursor{}, []Change{c})
	if err != nil {
		f.Fatalf("%+v: %v", c, err)
	}
	return done.Counts
}

// flood stores a block of about a hundredth of the budget.
func (f *floodedMemory) flood() Counts {
	f.Helper()
	f.next++
	return f.apply(Source{Pod: "flood", Model: "n"}, Change{
		Op: OpStore, Copies: CopiesSet, Hashes: []Hash{Hash(f.next)}, Root: Key(f.next) << 32,
		Variant: Variant{Unit: 16}, BlockSize: 16 * 1024, Locals: make([]Local, 1024),
	})
}

// A hash that names prefixes in two variants loses one of them with its holders, and keeps the
// other.
func TestEvictedInOneVariant(t *testing.T) {
	m, err := newMemory(MemoryConfig{Bytes: MinMemory})
	must(t, err)
	defer m.Close()
	f := floodedMemory{TB: t, memory: m}
	src := Source{Pod: "a", Model: "m"}
	store := func(g, unit, blocks int, hashes ...Hash) Change {
		return Change{
			Op: OpStore, Copies: CopiesGuarded, Group: Group{ID: g}, Hashes: hashes, Root: Key(unit),
			Variant: Variant{Unit: unit}, BlockSize: unit * blocks, Locals: make([]Local, blocks*len(hashes)),
		}
	}
	stays, goes := store(0, 16, 1, 1, 2, 3, 4), store(1, 8, 3, 2)
	hidden := Change{Op: OpRemove, Hashes: []Hash{3}}
	for _, c := range []Change{stays, goes, stays, goes, {Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: []Hash{2}}, hidden, store(1, 8, 6, 3), store(1, 8, 9, 4), {Op: OpRemove, Hashes: []Hash{4}, Group: goes.Group}} {
		f.apply(src, c)
	}
	of := NewCandidates("m", []string{"a"})
	ask := func() (rows []Row) {
		var out Matches
		keys := func(v Variant) ([]Key, error) {
			if v != stays.Variant {
				return nil, nil
			}
			return []Key{Chain(16, 0), Chain(Chain(16, 0), 0)}, nil
		}
		must(t, m.Match(context.Background(), &Query{Candidates: of, Keys: keys}, &out))
		return out.Rows
	}
	info := func() SourceInfo {
		of := m.Describe(nil)
		return of[slices.IndexFunc(of, func(i SourceInfo) bool { return i.Source == src })]
	}
	for info().Evicted == 0 {
		f.flood()
		if rows := ask(); len(rows) != 1 || rows[0].Run != 2 {
			t.Fatalf("%+v", rows)
		}
	}
	must(t, m.check())
	if i := info(); i.Evicted != 2 || i.Blocks[TierGPU] != 3 || i.Blocks[TierCPU] != 1 || Names(m, src) != 4 {
		t.Errorf("%+v", i)
	}
	if n := f.apply(src, Change{Op: OpClearTier, Tier: TierDisk}); n.Forgotten != 1 { // hash 4, without a holder there
		t.Errorf("%+v", n)
	}
}

// TestInvariantsAtABound is TestInvariants with the smallest budget, which large blocks of another
// source exceed all the time.
func TestInvariantsAtABound(t *testing.T) {
	seeds := uint64(choose(1, 1, 8))
	var total Counts
	var evicted, cycles uint64
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 6))
		m, err := newMemory(MemoryConfig{Bytes: MinMemory, pendingBytes: 8 << 10, idleNames: 1 + r.IntN(200)})
		must(t, err)
		srcs := []Source{{Pod: "0", Model: "m"}, {Pod: "1", Model: "m"}, {Pod: "2", Model: "m"}}
		f := floodedMemory{TB: t, memory: m}
		for step := range choose(100, 150, 300) {
			src, c := srcs[r.IntN(len(srcs))], randomChange(r)
			c.Root = Key(r.IntN(3))<<16 | c.Root
			total.Add(f.apply(src, c))
			for n := (r.IntN(12) - 10) * r.IntN(120); n > 0; n-- {
				total.Add(f.flood())
			}
			if r.IntN(100) == 0 {
				must(t, m.removeSome(r, srcs[r.IntN(len(srcs))]))
			}
			if step%4 > 0 { // as it takes some milliseconds
				continue
			}
			if u := m.ground.mem.Load(); u > MinMemory {
				t.Fatalf("seed %d, step %d: %d bytes are taken", seed, step, u)
			}
			if err := m.check(); err != nil {
				t.Fatalf("seed %d, step %d, after %+v of %v: %v", seed, step, c, src, err)
			}
			if diff := heldAndPlain(m, r); diff != "" {
				t.Fatalf("seed %d, step %d, after %+v of %v: %s", seed, step, c, src, diff)
			}
		}
		evicted += m.MemoryUsage().Evicted
		cycles += uint64(m.ground.cycle)
		m.Close()
	}
	t.Logf("%+v; %d holdings evicted, %d cycles", total, evicted, cycles)
	for name, got := range map[string][2]uint64{
		"evicted": {evicted, 3000}, "cycles": {cycles, 500}, "dropped": {total.Dropped, 200}, "forgotten": {total.Forgotten, 50},
		"ambiguous": {total.Ambiguous, 40}, "parked": {total.Parked, 100}, "reports": {total.Reports, 60},
	} {
		if *Long && got[0]*8 < got[1]*seeds {
			t.Errorf("%d %s, want at least %d: the test tests too little", got[0], name, got[1]*seeds/8)
		}
	}
}

// heldAndPlain compares the answers with and without bits.
func heldAndPlain(m *memory, r *rand.Rand) string {
	p := make([]Local, 8)
	for i := range p {
		p[i] = Local(r.IntN(2))
	}
	root := r.IntN(2)
	keys := func(v Variant) (keys []Key, err error) {
		k := randomRoot(root, v)
		for _, l := range p {
			k = Chain(k, l)
			keys = append(keys, k)
		}
		return keys, nil
	}
	var held, plain Matches
	c := NewCandidates("m", nil)
	for _, q := range []struct {
		held bool
		out  *Matches
	}{{true, &held}, {false, &plain}} {
		if err := m.Match(context.Background(), &Query{Candidates: c, Keys: keys, Held: q.held}, q.out); err != nil {
			return err.Error()
		}
	}
	// Small blocks in chunks and larger blocks may have one size in two units.
	type answer struct {
		View
		run, gpu int32
		tiers    [NumTiers]int32
	}
	runs := map[answer]int{}
	for _, row := range held.Rows {
		if row.Run > 0 || len(row.Groups) != 1 || row.Groups[0].Kind != GroupFull {
			runs[answer{*row.View, row.Run, row.GPU, row.Tiers}]++
		}
	}
	for _, row := range plain.Rows {
		runs[answer{*row.View, row.Run, row.GPU, row.Tiers}]--
	}
	for a, n := range runs {
		if n != 0 {
			return fmt.Sprintf("%+v: %d more with bits than without", a, n)
		}
	}
	return ""
}

func randomRoot(n int, v Variant) Key { return Key(n)<<8 | Key(v.Unit) }

func randomChange(r *rand.Rand) Change {
	c := Change{
		Group:  []Group{{}, {}, {ID: 1, Kind: GroupWindow, Window: 32}}[r.IntN(3)],
		Tier:   []Tier{TierGPU, TierGPU, TierGPU, TierCPU}[r.IntN(4)],
		Copies: Copies(1 + r.IntN(3)), Partial: r.IntN(4) == 0,
		Reused: r.IntN(10) == 0, Unique: r.IntN(4) == 0,
	}
	hash := func() Hash { return Hash(r.IntN(40)) }
	for range 1 + r.IntN(4) {
		c.Hashes = append(c.Hashes, hash())
	}
	switch r.IntN(12) {
	case 0, 1, 2:
		c.Op = OpRemove
		if r.IntN(4) == 0 {
			c.Remaining = make([]uint32, len(c.Hashes))
			c.Remaining[0] = uint32(r.IntN(3))
		}
		return c
	case 3:
		switch r.IntN(8) {
		case 0:
			return Change{Op: OpClear}
		case 1:
			return Change{Op: OpClearTier, Tier: c.Tier}
		case 2, 3:
			return Change{Op: OpAge, Tier: TierCPU}
		}
	}
	c.Op = OpStore
	if r.IntN(6) == 0 {
		return c // by hash alone
	}
	c.BlockSize = []int{16, 16, 32, 8}[r.IntN(4)]
	c.Variant = Variant{Unit: hashunit.Of(c.BlockSize)}
	blocks := len(c.Hashes)
	if r.IntN(6) == 0 {
		blocks++ // masked
	}
	for range blocks * c.BlockSize / c.Variant.Unit {
		c.Locals = append(c.Locals, Local(r.IntN(2)))
	}
	c.Root = randomRoot(r.IntN(2), c.Variant)
	if r.IntN(2) == 0 {
		c.HasParent, c.Parent = true, hash()
	}
	return c
}

// A group has a bounded number of block sizes, and unused sizes make room.
func TestCutsBound(t *testing.T) {
	for name, change := range map[string]func(blocks int) Change{
		"block sizes": func(n int) Change { return Change{BlockSize: 16 * n, Hashes: []Hash{Hash(n)}} },
		"chunks": func(n int) Change {
			return Change{BlockSize: 16, Hashes: make([]Hash, n), Tier: TierCPU}
		},
		"masked": func(n int) Change { return Change{BlockSize: 8 * n, Hashes: []Hash{Hash(n)}} },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newMemory(MemoryConfig{})
			must(t, err)
			store := func(n int) uint64 {
				c := change(n)
				c.Op, c.Copies = OpStore, CopiesExact
				if c.Tier == TierCPU {
					c.Hashes[n-1] = Hash(n)
				}
				c.Variant = Variant{Unit: hashunit.Of(c.BlockSize)}
				blocks := len(c.Hashes)
				if name == "masked" {
					blocks++
				}
				c.Locals = make([]Local, blocks*c.BlockSize/c.Variant.Unit)
				return apply(t, m, c).Counts.Dropped
			}
			dropped := uint64(0)
			for n := 1; n <= 3*maxCuts; n++ {
				dropped += store(n)
			}
			s := (*m.models.Load())["m"].source(Source{Pod: "a", Model: "m"})
			cuts := func() int {
				seen := map[cut]bool{}
				for _, lanes := range s.lanes.group(0).lanes {
					for _, ln := range lanes {
						seen[ln.cut] = true
					}
				}
				return len(seen)
			}
			if cuts() != maxCuts || dropped < 2*maxCuts {
				t.Errorf("%d sizes, %d stores dropped", cuts(), dropped)
			}
			gone := change(1)
			gone.Op, gone.Hashes = OpRemove, nil
			for n := 1; n <= maxCuts; n++ {
				gone.Hashes = append(gone.Hashes, Hash(n))
			}
			apply(t, m, gone)
			if dropped = store(2 * maxCuts); dropped != 0 || cuts() > maxCuts {
				t.Errorf("%d sizes, %d stores dropped when nobody uses the others", cuts(), dropped)
			}
		})
	}
}
