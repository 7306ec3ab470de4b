package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// filler makes the contents of an index.
type filler struct {
	tb testing.TB
	m  *Memory
	r  *rand.Rand
}

func (f *filler) apply(pod int, changes ...Change) {
	src := Source{Pod: fmt.Sprintf("pod-%05d.fleet", pod), Model: "some-model"}
	if _, err := f.m.Apply(context.Background(), src, Cursor{}, changes); err != nil {
		f.tb.Fatal(err)
	}
}

// chain is a store of fresh blocks behind a root.
func (f *filler) chain(blocks int) Change {
	c := Change{Op: OpStore, Copies: CopiesGuarded, Variant: Variant{Unit: 16}, BlockSize: 16, Root: Key(f.r.Uint64())}
	for range blocks {
		c.Locals, c.Hashes = append(c.Locals, Local(f.r.Uint64())), append(c.Hashes, Hash(f.r.Uint64()))
	}
	return c
}

// renamed is c by other hashes.
func (f *filler) renamed(c Change) Change {
	c.Hashes = make([]Hash, len(c.Hashes))
	for i := range c.Hashes {
		c.Hashes[i] = Hash(f.r.Uint64())
	}
	return c
}

func removal(c Change) Change { return Change{Op: OpRemove, Hashes: c.Hashes} }

// contents are what an index may be full of.
var contents = []struct {
	name string
	fill func(*filler)
}{
	{"chains", func(f *filler) {
		for i := range 200 {
			f.apply(i%4, f.chain(512))
		}
	}},
	{"chains of one block", func(f *filler) {
		for i := range 20_000 {
			f.apply(i%4, f.chain(1))
		}
	}},
	{"idle names", func(f *filler) {
		for i := range 100 {
			c := f.chain(512)
			f.apply(i%4, c, f.chain(512), removal(c))
		}
	}},
	{"hidden copies", func(f *filler) {
		for i := range 100 {
			c := f.chain(64)
			f.apply(i%2, c, c, removal(c))
		}
	}},
	{"shared keys", func(f *filler) {
		for i := range 100 {
			c := f.chain(256)
			f.apply(i%2, c, f.renamed(c), f.chain(256))
		}
	}},
	{"shared keys that are no more", func(f *filler) {
		for i := range 50 {
			c := f.chain(256)
			o := f.renamed(c)
			f.apply(i%2, c, o, removal(o))
		}
	}},
	{"many names of one key", func(f *filler) {
		for i := range 300 {
			c := f.chain(1)
			for range maxNames {
				f.apply(i%2, f.renamed(c))
			}
		}
	}},
	{"many keys of one name", func(f *filler) {
		for i := range 100 {
			c := f.chain(64)
			for _, c.Variant.Unit = range []int{16, 8, 4, 2, 1} {
				c.BlockSize = c.Variant.Unit
				c.Root++
				f.apply(i%2, c)
			}
		}
	}},
	{"churn", func(f *filler) {
		var held []Change
		for i := range 1500 {
			c := f.chain(1 + f.r.IntN(100))
			c.Group = []Group{{}, {ID: 3, Kind: GroupWindow, Window: 64}, {ID: 1, Kind: GroupMamba}}[f.r.IntN(3)]
			c.BlockSize = 16 << (f.r.IntN(10) / 9)
			c.Hashes = c.Hashes[:len(c.Locals)/(c.BlockSize/16)]
			c.Locals = c.Locals[:len(c.Hashes)*(c.BlockSize/16)]
			if len(c.Hashes) == 0 {
				continue
			}
			if held = append(held, c); f.r.IntN(3) == 0 {
				c = held[f.r.IntN(len(held))]
			}
			f.apply(i%3, c)
			if f.r.IntN(3) == 0 {
				f.apply(i%3, Change{Op: OpStore, Tier: TierCPU, Copies: CopiesSet, Group: c.Group, Hashes: c.Hashes})
			}
			if gone := held[f.r.IntN(len(held))]; f.r.IntN(2) == 0 {
				f.apply(i%3, Change{Op: OpRemove, Tier: Tier(f.r.IntN(2)), Group: gone.Group, Hashes: gone.Hashes})
			}
			switch i {
			case 500:
				f.apply(1, Change{Op: OpClear})
			case 700, 1400:
				f.apply(2, Change{Op: OpClearTier})
			}
		}
	}},
	{"sources with nothing", func(f *filler) {
		for i := range 10_000 {
			f.apply(i)
		}
	}},
	{"sources with cursors", func(f *filler) {
		for i := range 3_000 {
			for stream := range 1 + i%3 {
				src := Source{Pod: fmt.Sprintf("pod-%05d.fleet", i), Model: "m"}
				cur := Cursor{Stream: fmt.Sprintf("tcp://10.1.%d.%d:5557/%d", i/256, i%256, stream), Next: 1}
				if _, err := f.m.Apply(context.Background(), src, cur, nil); err != nil {
					f.tb.Fatal(err)
				}
			}
		}
	}},
	{"sources with a block in each of two groups", func(f *filler) {
		for i := range 2_000 {
			c := f.chain(1)
			o := c
			o.Group, o.Tier, o.BlockSize = Group{ID: 1, Kind: GroupMamba}, TierCPU, 16
			f.apply(i, c, o)
		}
	}},
	{"sources with all lanes", func(f *filler) {
		for i := range 50 {
			for n := range maxLanes {
				c := f.chain(1)
				c.Group.ID = n / 2 % 8
				c.BlockSize *= 1 + n/16
				for len(c.Locals) < c.BlockSize/16 {
					c.Locals = append(c.Locals, 1)
				}
				lower := c
				lower.Tier = TierCPU
				f.apply(i, c, lower)
			}
			if i%2 > 0 {
				f.apply(i, Change{Op: OpClearTier, Tier: TierGPU})
			}
			if i%8 > 5 {
				f.apply(i, Change{Op: OpClear})
			}
		}
	}},
}

// What is counted is what the heap has: with the index it has as much more as without.
func TestBytes(t *testing.T) {
	for _, c := range contents {
		t.Run(c.name, func(t *testing.T) {
			f := &filler{tb: t, r: rand.New(rand.NewPCG(3, 32))}
			before := liveHeap()
			m, err := NewMemory(MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			f.m = m
			c.fill(f)
			f.m = nil
			got := liveHeap() - before
			u := m.Usage()
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes, counted %d: %.4f; %+v", got, u.Total, float64(u.Total)/float64(got), u)
			if noise := int64(4096); u.Total < got-noise || u.Total > got*106/100+noise {
				t.Errorf("%d bytes are counted, the heap has %d", u.Total, got)
			}
			runtime.KeepAlive(m)
		})
	}
}

// A source that was removed is not counted any more when its names are tidied up.
func TestDiscard(t *testing.T) {
	for _, c := range contents {
		m, err := NewMemory(MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		f := &filler{t, m, rand.New(rand.NewPCG(3, 33))}
		f.apply(-1, f.chain(1))
		first := m.Usage()
		c.fill(f)
		for _, s := range m.Describe(nil) {
			if s.Source.Pod != "pod--0001.fleet" {
				m.Remove(context.Background(), s.Source.Pod)
			}
		}
		m.sweepers.Wait()
		for range 4 {
			m.ground.forest.Reclaim()
		}
		if err := m.check(); err != nil {
			t.Fatal(err)
		}
		// Some empty pages are kept for what comes next, and tables of what was.
		if u := m.Usage(); u.Names+u.Sources+u.Pending != first.Names+first.Sources+first.Pending || u.Total > first.Total+512<<10 {
			t.Errorf("%s: %+v are left, of %+v", c.name, u, first)
		}
	}
}
