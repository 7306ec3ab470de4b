package index_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/internal/inmemory"
)

var (
	bounded = context.Background()
	podA    = index.Source{Pod: "a", Model: "m"}
	podB    = index.Source{Pod: "b", Model: "m"}
)

// blocksFrom stores n blocks of one unit after a root, with hashes of their own.
func blocksFrom(root index.Key, n int) index.Change {
	c := index.Change{Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16, Root: root}
	for i := range n {
		c.Locals = append(c.Locals, index.Local(i))
		c.Hashes = append(c.Hashes, index.Hash(root)<<32|index.Hash(i))
	}
	return c
}

func openMemory(t *testing.T) inmemory.Memory {
	t.Helper()
	m, err := inmemory.New(index.MemoryConfig{})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func apply(t *testing.T, m inmemory.Memory, src index.Source, changes ...index.Change) index.Counts {
	t.Helper()
	done, err := m.Apply(bounded, src, index.Cursor{}, changes)
	must(t, err)
	return done.Counts
}

// Names without a holder are at most a quarter of the held ones, or 1,000.
func TestIdleNames(t *testing.T) {
	m := openMemory(t)
	kept, gone := blocksFrom(1, 8000), blocksFrom(2, 5000)
	apply(t, m, podA, kept, gone, index.Change{Op: index.OpRemove, Hashes: gone.Hashes})
	if n := index.Names(m, podA) - 8000; n != 2000 {
		t.Errorf("%d idle names beside 8,000 held ones", n)
	}
	apply(t, m, podA, index.Change{Op: index.OpRemove, Hashes: kept.Hashes})
	if n := index.Names(m, podA); n != 1024 {
		t.Errorf("%d idle names", n)
	}
}

// A clear forgets names without a holder, also those of blocks that a report hid. It leaves a whole
// view, in which a store of a held and a new block counts both.
func TestViewIsWholeAfterAClear(t *testing.T) {
	for _, op := range []index.Op{index.OpClear, index.OpClearTier} {
		m := newBound(t, [16]byte{}, indextest.Config{IdleNames: 8})
		guarded := func(root index.Key, blocks int) index.Change {
			c := blocksFrom(root, blocks)
			c.Copies = index.CopiesGuarded
			return c
		}
		for root := range index.Key(8) {
			c := guarded(root, 1)
			apply(t, m, podA, c, c, index.Change{Op: index.OpRemove, Hashes: c.Hashes})
		}
		if n := apply(t, m, podA, blocksFrom(100, 1000), index.Change{Op: op}); n.Forgotten != 1000 {
			t.Fatalf("counts %+v", n)
		}
		if n := apply(t, m, podA, guarded(200, 1), guarded(200, 2)); n.Reports != 0 {
			t.Errorf("op %d: counts %+v", op, n)
		}
		m.Close()
	}
}

// Engines with hidden salts have several names for one prefix; the number of names that are held
// for it is bounded.
func TestNamesOfOneKey(t *testing.T) {
	m := openMemory(t)
	c := blocksFrom(1, 1)
	var total index.Counts
	for i := range 100 {
		c.Hashes = []index.Hash{index.Hash(i)}
		total.Add(apply(t, m, podA, c))
	}
	if info := m.Describe(nil)[0]; total.Ambiguous != 36 || info.Blocks[index.TierGPU] != 64 {
		t.Errorf("%+v, counts %+v", info, total)
	}
}

// A model has a bounded number of variants; stores in further ones are dropped.
func TestVariantsBound(t *testing.T) {
	m := openMemory(t)
	var total index.Counts
	for unit := 1; unit <= 40; unit++ {
		c := blocksFrom(index.Key(unit), 2)
		c.Variant.Unit, c.BlockSize = unit, unit
		total.Add(apply(t, m, podA, c))
	}
	if total.Dropped != 8 {
		t.Errorf("counts %+v", total)
	}
	rows := 0
	var out index.Matches
	q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(v index.Variant) ([]index.Key, error) {
		first := index.Chain(index.Key(v.Unit), 0)
		return []index.Key{first, index.Chain(first, 1)}, nil
	}}
	must(t, m.Match(bounded, &q, &out))
	for _, r := range out.Rows {
		if rows++; r.Run != 2 {
			t.Errorf("row %+v", r)
		}
	}
	if rows != 32 {
		t.Errorf("%d rows", rows)
	}
}

// Memory of keys without names is reused for sources that hold none of them.
func TestMemoryIsUsedAgain(t *testing.T) {
	m := openMemory(t)
	apply(t, m, podB, blocksFrom(1, 3)) // keeps the slab of these blocks and its contents
	shared := blocksFrom(1, 40)
	keys := func(index.Variant) (keys []index.Key, err error) {
		k := shared.Root
		for _, l := range shared.Locals {
			k = index.Chain(k, l)
			keys = append(keys, k)
		}
		return keys, nil
	}
	var out index.Matches
	q := index.Query{Candidates: index.NewCandidates("m", []string{"a"}), Keys: keys}
	var first [3]int
	for life := range 50 {
		n := 40 - life%2*35
		apply(t, m, podA, blocksFrom(1, n))
		for root := range index.Key(20) {
			c := blocksFrom(100*index.Key(life+1)+root, 300)
			c.Hashes = blocksFrom(100+root, 300).Hashes
			apply(t, m, podA, c)
		}
		must(t, m.Match(bounded, &q, &out))
		if len(out.Rows) != 1 || int(out.Rows[0].Run) != n {
			t.Fatalf("life %d: %+v, want a run of %d", life, out.Rows, n)
		}
		if got := m.MemoryUsage().Prefixes; got < n+20*300 || got > 40+20*300 {
			t.Fatalf("life %d: %d prefixes", life, got)
		}
		must(t, m.Remove(bounded, "a"))
		for m.Unswept() > 0 { // a sweep clears the pod in the background
			runtime.Gosched()
		}
		u := m.MemoryUsage()
		if u.Prefixes > 40 || u.Memberships != 3 {
			t.Fatalf("life %d: %+v", life, u)
		}
		for range 4 {
			apply(t, m, podB, index.Change{Op: index.OpRemove, Hashes: []index.Hash{7}}) // lets the memory of a be reused
		}
		bytes := index.ForestBytes(m)
		if life == 4 {
			first = bytes
		}
		if life > 4 && (bytes[0] > first[0] || bytes[1] > first[1] || bytes[2] > first[2]) {
			t.Fatalf("life %d: %v bytes, after the first %v", life, bytes, first)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
