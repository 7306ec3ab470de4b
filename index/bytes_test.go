package index

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/internal/hashunit"
)

// filler fills an index.
type filler struct {
	tb testing.TB
	m  *memory
	r  *rand.Rand
	// tolerant: stores continue without room for a source; full counts these.
	tolerant bool
	full     int
	evicted  uint64 // of the last pod
}

func fillerPod(pod int) Source {
	return Source{Pod: fmt.Sprintf("pod-%05d.fleet", pod), Model: "some-model"}
}

func (f *filler) apply(pod int, changes ...Change) {
	done, err := f.m.Apply(context.Background(), fillerPod(pod), Cursor{}, changes)
	f.evicted = done.Evicted
	f.check(err)
}

func (f *filler) check(err error) {
	if f.tolerant && errors.Is(err, ErrFull) {
		f.full++
	} else if err != nil {
		f.tb.Fatal(err)
	}
}

// chain stores new blocks after a root.
func (f *filler) chain(blocks int) Change { return f.sized(blocks, 16) }

// sized is chain with blocks of size tokens.
func (f *filler) sized(blocks, size int) Change {
	c := Change{Op: OpStore, Copies: CopiesGuarded, Variant: Variant{Unit: hashunit.Of(size)}, BlockSize: size, Root: Key(f.r.Uint64())}
	for range blocks {
		c.Hashes = append(c.Hashes, Hash(f.r.Uint64()))
	}
	for range blocks * size / c.Variant.Unit {
		c.Locals = append(c.Locals, Local(f.r.Uint64()))
	}
	return c
}

// behind moves c behind an unknown parent.
func (f *filler) behind(c Change) Change {
	c.HasParent, c.Parent = true, Hash(f.r.Uint64())
	return c
}

// masked is c in a group that keeps only the last blocks.
func masked(c Change, keep int) Change {
	c.Hashes = c.Hashes[len(c.Hashes)-keep:]
	c.Group = Group{ID: 1, Kind: GroupWindow, Window: 40}
	return c
}

// renamed is c with other hashes.
func (f *filler) renamed(c Change) Change {
	c.Hashes = make([]Hash, len(c.Hashes))
	for i := range c.Hashes {
		c.Hashes[i] = Hash(f.r.Uint64())
	}
	return c
}

// holders stores the same chains on several sources.
func (f *filler) holders(sources, chains int) {
	for range chains {
		c := f.chain(512)
		for i := range sources {
			f.apply(i, c)
		}
	}
}

func removal(c Change) Change { return Change{Op: OpRemove, Hashes: c.Hashes} }

// contents are the ways to fill an index.
var contents = []struct {
	name string
	fill func(*filler)
}{
	{"chains", func(f *filler) {
		for i := range 200 {
			f.apply(i%4, f.chain(512))
		}
	}},
	{"chains of 20 blocks", func(f *filler) {
		for i := range 3_000 {
			f.apply(i%4, f.chain(20))
		}
	}},
	{"blocks of a token", func(f *filler) {
		for i := range 100 {
			f.apply(i%4, f.sized(512, 1))
		}
	}},
	{"blocks of 64 tokens", func(f *filler) {
		for i := range 100 {
			f.apply(i%4, f.sized(512, 64))
		}
	}},
	{"two holders", func(f *filler) { f.holders(2, 40) }},
	{"eight holders", func(f *filler) { f.holders(8, 20) }},
	{"256 holders", func(f *filler) { f.holders(256, 4) }},
	{"holders that have parts", func(f *filler) {
		for range 20 {
			c := f.chain(256)
			for i := range 32 {
				f.apply(i, c)
				for range 3 {
					from := f.r.IntN(200)
					f.apply(i, Change{Op: OpRemove, Hashes: c.Hashes[from : from+40]})
				}
			}
		}
	}},
	{"all tiers", func(f *filler) {
		for i := range 60 {
			c := f.chain(256)
			f.apply(i%4, c)
			for tier := TierCPU; tier < NumTiers; tier++ {
				f.apply(i%4, Change{Op: OpStore, Tier: tier, Copies: CopiesSet, Hashes: c.Hashes[:256/(int(tier)+i%2)]})
			}
		}
	}},
	{"chunks of a lower tier", func(f *filler) {
		for i := range 200 {
			c := f.chain(64)
			lower := c
			lower.Tier = TierDisk
			f.apply(i%4, c)
			for at := 0; at < 64; at += 16 {
				lower.Hashes, lower.Locals = c.Hashes[at:at+16], c.Locals[at:at+16]
				f.apply(i%4, lower)
			}
		}
	}},
	{"sparse groups", func(f *filler) {
		for i := range 100 {
			c := f.chain(320)
			f.apply(i%4, c)
			window, state := c, c
			window.Group = Group{ID: 1, Kind: GroupWindow, Window: 64}
			f.apply(i%4, window, Change{Op: OpRemove, Group: window.Group, Hashes: c.Hashes[:300]})
			state.Group = Group{ID: 2, Kind: GroupMamba}
			f.apply(i%4, state, Change{Op: OpRemove, Group: state.Group, Hashes: c.Hashes[:319]})
		}
	}},
	{"parked stores", func(f *filler) {
		for i := range 600 {
			f.apply(i%4, f.behind(f.chain(1+i%60)))
		}
	}},
	{"parked stores of one block", func(f *filler) {
		for i := range 6_000 {
			f.apply(i%4, f.behind(f.chain(1)))
		}
	}},
	{"parked stores that were dropped", func(f *filler) {
		for i := range 800 {
			f.apply(i%2, f.behind(f.chain(100)))
		}
	}},
	{"stores that wait by hash", func(f *filler) {
		for i := range 1_000 {
			c := f.chain(1 + i%60)
			c.Locals = nil
			c.Tier = Tier(i % 2)
			f.apply(i%4, c)
		}
	}},
	{"masked stores that wait", func(f *filler) {
		for i := range 800 {
			c := masked(f.chain(20+i%40), 3+i%5)
			if i%2 > 0 {
				c = f.behind(c)
			}
			c.Group.Draft = i%4 > 1
			f.apply(i%4, c)
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
				_, err := f.m.Apply(context.Background(), src, cur, nil)
				f.check(err)
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
		for i := range 16 {
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

// The counted bytes are the live heap of the index. A removed source no longer counts once its
// names are swept.
func TestBytes(t *testing.T) {
	for i, c := range contents {
		if testing.Short() && i%3 > 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			measure(t, nil, c.fill)
		})
	}
}

// A Mirror costs the depths, which are counted.
func TestBytesWithAMirror(t *testing.T) {
	if testing.Short() {
		t.Skip("TestBytes measures without a mirror: -short")
	}
	for _, c := range contents {
		switch c.name {
		case "chains of 20 blocks", "chains of one block", "churn", "sources with all lanes":
			t.Run(c.name, func(t *testing.T) {
				measure(t, idleMirror{}, c.fill)
			})
		}
	}
}

// measure fills a Memory, and compares the counted bytes with the heap.
func measure(t *testing.T, to mirror, fill func(*filler)) {
	f := &filler{tb: t, r: rand.New(rand.NewPCG(3, 32))}
	before := liveHeap()
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	if to != nil {
		m.MirrorTo(to)
	}
	f.m = m
	f.apply(-1, f.chain(1))
	first, firstBy := m.usage()
	fill(f)
	f.m = nil
	got := liveHeap() - before
	u := m.MemoryUsage()
	must(t, m.check())
	t.Logf("%d bytes, counted %d: %.4f; %+v", got, u.Total, float64(u.Total)/float64(got), u)
	over := int64(106)
	if math.MaxInt == math.MaxInt32 { // the sizes of maps and sources are known for 64 bits
		over = 115
	}
	if noise := int64(4096); u.Total < got-noise || u.Total > got*over/100+noise {
		t.Errorf("%d bytes are counted, the heap has %d", u.Total, got)
	}
	if u.Evicted > 0 {
		t.Errorf("%+v", u)
	}
	discard(t, m, first, firstBy)
	runtime.KeepAlive(m)
}

// discard removes all sources but the first, and checks that the Usage of first is left.
func discard(t *testing.T, m *memory, first MemoryUsage, firstBy usageParts) {
	for i, s := range m.Describe(nil) {
		switch {
		case s.Source.Pod == "pod--0001.fleet":
		case i%2 == 0:
			m.Remove(context.Background(), s.Source.Pod)
		default:
			m.RemoveSource(context.Background(), s.Source)
		}
	}
	m.sweepers.Wait()
	for range 4 {
		m.ground.forest.Reclaim()
	}
	must(t, m.check())
	// Some empty pages and tables are kept for reuse.
	if u, by := m.usage(); by.names+by.sources+by.pending != firstBy.names+firstBy.sources+firstBy.pending || u.Total > first.Total+512<<10 {
		t.Errorf("%+v are left, of %+v", u, first)
	}
}
