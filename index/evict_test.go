package index

import (
	"context"
	"math/rand/v2"
	"testing"
)

// evictor applies changes at the bound, and checks the bound.
type evictor struct {
	t *testing.T
	m *memory
}

// prompt is a stored chain.
type prompt struct {
	root   Key
	locals []Local
}

func (p *prompt) keys(v Variant) ([]Key, error) {
	keys := make([]Key, len(p.locals))
	k := p.root
	for i, l := range p.locals {
		k = Chain(k, l)
		keys[i] = k
	}
	return keys, nil
}

func (e *evictor) apply(src Source, changes ...Change) {
	e.t.Helper()
	if _, err := e.m.Apply(context.Background(), src, Cursor{}, changes); err != nil {
		e.t.Fatal(err)
	}
	if u := e.m.MemoryUsage(); u.Total > u.Budget {
		e.t.Fatalf("%d bytes are taken of %d", u.Total, u.Budget)
	}
}

// Idle names are evicted first, then waiting stores, then held blocks.
func TestWhatGoesFirst(t *testing.T) {
	m, err := newMemory(MemoryConfig{Bytes: 2 << 20})
	must(t, err)
	defer m.Close()
	e := &evictor{t: t, m: m}
	f := filler{r: rand.New(rand.NewPCG(1, 9))}
	src := Source{Pod: "a", Model: "m"}
	for i := range 200 {
		c := f.chain(100)
		e.apply(src, c)
		if i%2 == 0 {
			e.apply(src, Change{Op: OpRemove, Hashes: c.Hashes})
		}
	}
	for range 200 {
		e.apply(Source{Pod: "b", Model: "m"}, f.behind(f.chain(8)))
	}
	g := m.ground
	idle, waits := g.total.idle, g.total.waits
	for g.forest.Dying() == 0 && g.lost == 0 {
		e.apply(Source{Pod: "c", Model: "m"}, f.chain(20))
		if g.total.waits < waits && g.total.idle > 100 {
			t.Fatalf("stores that wait went, and %d idle names were left", g.total.idle)
		}
	}
	t.Logf("%d idle names and %d bytes of stores, then %d and %d", idle, waits, g.total.idle, g.total.waits)
	if idle < 2000 || waits < 100_000 {
		t.Error("the test tests too little")
	}
	if g.total.idle > 100 || g.total.waits > 0 {
		t.Errorf("blocks were evicted, and %d idle names and %d bytes of stores were left", g.total.idle, g.total.waits)
	}
}

// Room for a waiting store is made before it is kept.
func TestALargeStoreThatWaits(t *testing.T) {
	for _, kind := range []string{"parked", "by hash", "masked"} {
		for _, blocks := range []int{3_000, 10_000, 30_000, 100_000} {
			m, err := newMemory(MemoryConfig{Bytes: MinMemory, pendingBytes: 1 << 30})
			must(t, err)
			f := filler{tb: t, m: m, r: rand.New(rand.NewPCG(1, 9))}
			c := f.chain(blocks)
			switch kind {
			case "parked":
				c = f.behind(c)
			case "by hash":
				c.Locals = nil
			case "masked":
				c = masked(c, blocks/2)
			}
			s, err := m.source(Source{Pod: "a", Model: "m"})
			must(t, err)
			s.writer.Lock()
			m.ground.mu.Lock()
			s.store(&c)
			if got := m.ground.mem.Load(); got > MinMemory {
				t.Errorf("%d blocks, %s: %d bytes are taken of %d", blocks, kind, got, MinMemory)
			}
			s.settle()
			m.ground.mu.Unlock()
			s.writer.Unlock()
			if err := m.check(); err != nil {
				t.Errorf("%d blocks, %s: %v", blocks, kind, err)
			}
			m.Close()
		}
	}
}

// A name that waits for a key is forgotten without room to record that it shares the key: otherwise
// no waiting store would release it.
func TestNoRoomToShareAKey(t *testing.T) {
	ctx := context.Background()
	src := Source{Pod: "a", Model: "m"}
	v := Variant{Unit: 16}
	store := func(first Hash, locals []Local, parent Hash) Change {
		c := Change{Op: OpStore, Copies: CopiesExact, Hashes: make([]Hash, len(locals)), Locals: locals, Variant: v, BlockSize: 16, Root: 7, Parent: parent, HasParent: parent != 0}
		for i := range c.Hashes {
			c.Hashes[i] = first + Hash(i)
		}
		return c
	}
	bare := func(h Hash) Change { return Change{Op: OpStore, Copies: CopiesSet, Tier: TierCPU, Hashes: []Hash{h}} }
	for name, play := range map[string][]Change{
		"parked":  {store(11, []Local{2}, 10), store(10, []Local{1}, 0)},
		"by name": {bare(11), store(11, []Local{2}, 1), bare(12), bare(13)},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newMemory(MemoryConfig{Bytes: MinMemory, pendingBytes: 2*(waitingCost+waitingHashCost) + localBytes})
			must(t, err)
			defer m.Close()
			apply := func(c Change) Counts {
				done, err := m.Apply(ctx, src, Cursor{}, []Change{c})
				must(t, err)
				if err := m.check(); err != nil {
					t.Fatalf("after %+v: %v", c, err)
				}
				return done.Counts
			}
			for h := Hash(1 << 32); m.ground.pages() > MinMemory/4; h += 64 {
				c := store(h, make([]Local, 64), 0)
				c.Root = Key(h)
				if _, err := m.Apply(ctx, src, Cursor{}, []Change{c}); err != nil {
					t.Fatal(err)
				}
			}
			apply(store(1, []Local{1, 2}, 0))
			var total Counts
			for _, c := range play {
				total.Add(apply(c))
			}
			if total.Ambiguous == 0 {
				t.Fatal("there was room")
			}
		})
	}
}

// A masked store may name idle blocks. At the bound they are not evicted for other blocks of the
// store.
func TestMaskedStoreOfAnIdleNameAtTheBound(t *testing.T) {
	ctx := context.Background()
	m, err := newMemory(MemoryConfig{Bytes: MinMemory})
	must(t, err)
	defer m.Close()
	src := Source{Pod: "a", Model: "m"}
	window := Group{ID: 1, Kind: GroupWindow, Window: 32}
	store := func(g Group, size, blocks int, hashes ...Hash) Change {
		return Change{
			Op: OpStore, Group: g, Copies: CopiesSet, Hashes: hashes, Locals: []Local{1, 2, 3, 4, 5, 6, 7, 8}[:blocks],
			Variant: Variant{Unit: 16}, BlockSize: size, Root: 7,
		}
	}
	apply := func(c Change) Counts {
		t.Helper()
		done, err := m.Apply(ctx, src, Cursor{}, []Change{c})
		must(t, err)
		must(t, m.check())
		return done.Counts
	}
	apply(store(Group{}, 64, 8, 4, 8))
	apply(store(window, 16, 4, 3, 4))
	apply(Change{Op: OpRemove, Group: window, Hashes: []Hash{3, 4}})
	apply(Change{Op: OpStore, Copies: CopiesSet, Tier: TierCPU, Hashes: []Hash{7}}) // so it is placed alone
	slack := m.ground.slack
	m.ground.slack = m.ground.budget // it is full
	n := apply(store(window, 16, 8, 3, 4, 7, 8))
	m.ground.slack = slack
	if n.Stored != 4 || n.Dropped+n.Forgotten > 0 {
		t.Errorf("%+v", n)
	}
}
