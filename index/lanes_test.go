package index

import (
	"context"
	"fmt"
	"testing"
)

// Ordinals of removed lanes are reused, but not while a reader may take them for the old ones.
func TestOrdinals(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	tier := TierGPU
	apply := func(pod string, op Op) {
		t.Helper()
		c := Change{Op: op, Tier: tier, Copies: CopiesExact, Hashes: []Hash{1}, Variant: Variant{Unit: 16}, BlockSize: 16, Locals: []Local{1}}
		if _, err := m.Apply(context.Background(), Source{Pod: pod, Model: "m"}, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	apply("a", OpStore)
	apply("b", OpStore)
	md := (*m.models.Load())["m"]
	ord := func(pod string) uint32 {
		for _, ln := range md.source(Source{Pod: pod, Model: "m"}).lanes.all {
			if ln != nil && ln.tier == tier && ln.age == 0 {
				return ln.ord
			}
		}
		t.Fatalf("pod %s has no lane in tier %v", pod, tier)
		return 0
	}
	goes := map[string]func(){
		"cleared":          func() { apply("a", OpClear) },
		"its tier cleared": func() { apply("a", OpClearTier) },
		"aged": func() {
			for range oldest {
				apply("a", OpAge)
			}
		},
		"removed": func() {
			must(t, m.Remove(context.Background(), "a"))
		},
	}
	n := 0
	for name, end := range goes {
		if tier = TierGPU; name == "aged" {
			tier = TierCPU
		}
		apply("a", OpStore)
		was := ord("a")
		reader := md.ground.forest.Enter()
		end()
		for range 8 {
			apply(fmt.Sprint(n), OpStore)
			if n++; ord(fmt.Sprint(n-1)) == was {
				t.Errorf("%s: the ordinal %d is used anew while somebody reads", name, was)
			}
		}
		reader.Leave()
		m.sweepers.Wait()
		anew := false
		for range 8 {
			apply(fmt.Sprint(n), OpStore)
			anew = anew || ord(fmt.Sprint(n)) == was
			n++
		}
		if !anew {
			t.Errorf("%s: the ordinal %d is not used anew", name, was)
		}
	}
}

// apply applies changes of one source, and checks the index.
func apply(t *testing.T, m *memory, changes ...Change) Effect {
	t.Helper()
	done, err := m.Apply(context.Background(), Source{Pod: "a", Model: "m"}, Cursor{}, changes)
	must(t, err)
	must(t, m.check())
	return done
}

// A source has a bounded number of lanes. Empty ones make room, except those that may still have a
// block.
func TestLanesBound(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	store := func(group, size int, hash Hash) Change {
		return Change{
			Op: OpStore, Copies: CopiesExact, Group: Group{ID: group}, Hashes: []Hash{hash},
			Variant: Variant{Unit: 16}, BlockSize: size, Locals: make([]Local, size/16),
		}
	}
	hidden := store(0, 16, 1<<20)
	hidden.Copies = CopiesGuarded
	apply(t, m, hidden, hidden, Change{Op: OpRemove, Hashes: hidden.Hashes})
	dropped := uint64(0)
	for i := range 2 * maxLanes {
		dropped += apply(t, m, store(i%MaxGroups, 32+16*(i/MaxGroups), Hash(i))).Counts.Dropped
	}
	if dropped != maxLanes+1 {
		t.Errorf("%d stores dropped", dropped)
	}
	for g := range MaxGroups {
		gone := Change{Op: OpRemove, Group: Group{ID: g}}
		for i := range Hash(maxLanes) {
			gone.Hashes = append(gone.Hashes, i)
		}
		apply(t, m, gone)
	}
	if apply(t, m, store(0, 1600, 1)).Counts.Dropped != 0 {
		t.Error("no room where all is empty")
	}
	child := store(0, 16, 2)
	child.Copies, child.HasParent, child.Parent = CopiesGuarded, true, 1<<20
	if apply(t, m, child); m.Describe(nil)[0].Blocks[TierGPU] != 3 {
		t.Errorf("%+v", m.Describe(nil))
	}
}

// The lane of a store does not make room for the lane of its parts of blocks.
func TestLaneOfPartsBound(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	store := func(group, size int, hash Hash) {
		t.Helper()
		apply(t, m, Change{
			Op: OpStore, Copies: CopiesExact, Group: Group{ID: group}, Hashes: []Hash{hash}, Root: Key(hash),
			Variant: Variant{Unit: 16}, BlockSize: size, Locals: make([]Local, size/16),
		})
	}
	store(0, 32, 1)
	store(0, 16, 2) // a part of a block
	others := MaxGroups - 1
	for i := range maxLanes - 3 {
		store(1+i%others, 32+16*(i/others), Hash(3+i))
	}
	both := Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Hashes: []Hash{1, 2}}
	if dropped := apply(t, m, both).Counts.Dropped; dropped != 1 {
		t.Errorf("%d stores dropped", dropped)
	}
	md := (*m.models.Load())["m"]
	was := md.gen.Load()
	if apply(t, m, both); md.gen.Load() != was {
		t.Error("a store that is dropped at the bound changes what readers see")
	}
}

// A clear visits names only if it takes blocks. The clock shows how many it visits.
func TestClearOfEmptyLanes(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	c := Change{Op: OpStore, Copies: CopiesSet, Variant: Variant{Unit: 16}, BlockSize: 16}
	for i := range Hash(100 * yieldAfter) {
		c.Hashes, c.Locals = append(c.Hashes, i), append(c.Locals, Local(i))
	}
	lower := Change{Op: OpStore, Copies: CopiesSet, Tier: TierCPU, Hashes: []Hash{1}}
	apply(t, m, c, lower, Change{Op: OpRemove, Tier: TierCPU, Hashes: lower.Hashes})
	for _, op := range []Op{OpClearTier, OpAge} {
		was := m.ground.forest.Now()
		for range oldest {
			apply(t, m, Change{Op: op, Tier: TierCPU})
		}
		if n := m.ground.forest.Now() - was - oldest; n > 3 {
			t.Errorf("op %d: %d times %d names", op, n, yieldAfter)
		}
		apply(t, m, lower, Change{Op: OpRemove, Tier: TierCPU, Hashes: lower.Hashes})
	}
	was := m.ground.forest.Now()
	if apply(t, m, Change{Op: OpClear}); m.ground.forest.Now()-was < 100 {
		t.Error("the clock does not show the names that a clear visits")
	}
}

// The blocks that a source without groups lost count until a clear.
func TestEvictedWithoutGroups(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	apply(t, m, Change{Op: OpClear})
	m.ground.setBudget(1)
	if n := apply(t, m, Change{Op: OpStore, Copies: CopiesSet, Hashes: []Hash{1, 2}}).Evicted; n != 2 {
		t.Fatalf("%d blocks are lost", n)
	}
	m.ground.setBudget(MinMemory)
	if n := apply(t, m, Change{Op: OpClear}).Evicted; n != 0 {
		t.Errorf("%d blocks are lost since the clear", n)
	}
}
