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

// What is counted of sources is what the heap has of them: with them it has as much
// more as with their models and forests alone.
func TestBytes(t *testing.T) {
	for _, c := range contents {
		t.Run(c.name, func(t *testing.T) {
			m, err := NewMemory(MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			c.fill(&filler{t, m, rand.New(rand.NewPCG(3, 32))})
			models := *m.models.Load()
			var sources []*source
			counted, names := int64(0), 0
			for _, md := range models {
				if err := md.check(); err != nil {
					t.Fatal(err)
				}
				md.pods.Range(func(_, p any) bool {
					sources = append(sources, *p.(*podSources).list.Load()...)
					return true
				})
				md.pods.Clear()
			}
			for _, s := range sources {
				counted += s.mem.Load()
				names += s.names.Len()
			}
			with := liveHeap()
			clear(sources)
			got := with - liveHeap()
			runtime.KeepAlive(sources)
			runtime.KeepAlive(models)
			t.Logf("%d sources with %d names take %d bytes, counted %d: %.4f", len(sources), names, got, counted, float64(counted)/float64(got))
			// Each has a Count of its own, and some things are so small that they have more
			// memory with the race detector.
			noise := got/100 + 8192 + 16*int64(len(sources))
			if d := counted - got; d < -noise || d > noise {
				t.Errorf("%d bytes are counted, the heap has %d", counted, got)
			}
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
		c.fill(&filler{t, m, rand.New(rand.NewPCG(3, 33))})
		for _, md := range *m.models.Load() {
			md.pods.Range(func(_, p any) bool {
				for _, s := range *p.(*podSources).list.Load() {
					s.retire()
					s.writer.Lock()
					s.discard()
					if n := s.mem.Load(); n != 0 {
						t.Errorf("%s: %d bytes are counted of %v", c.name, n, s.id)
					}
					s.writer.Unlock()
				}
				return true
			})
		}
	}
}
