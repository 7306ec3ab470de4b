package forest

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// orchard is a forest of chains that are planted, read and evicted, with the expected state.
type orchard struct {
	t      *testing.T
	f      *Forest
	r      *rand.Rand
	chains []*tree
	ord    uint32
}

type tree struct {
	keys []Key
	locs []Loc
}

func (o *orchard) plant() {
	r := o.r
	t := &tree{}
	key := Key(r.Uint64())
	if len(o.chains) > 0 && r.IntN(2) == 0 { // shares a prefix
		old := o.chains[r.IntN(len(o.chains))]
		t.keys = append(t.keys, old.keys[:1+r.IntN(len(old.keys))]...)
		key = t.keys[len(t.keys)-1]
	}
	for i := range 1 + r.IntN(120) {
		key = chain(key, r.Uint64()+uint64(i))
		t.keys = append(t.keys, key)
	}
	t.locs = make([]Loc, len(t.keys))
	if !o.f.Place(0, 0, t.keys, t.locs) {
		o.t.Fatal("no room")
	}
	for _, l := range t.locs {
		o.f.Ref(l)
		o.f.Hold(l, o.ord)
	}
	o.chains = append(o.chains, t)
}

// grow plants a chain of n keys that shares nothing.
func (o *orchard) grow(n int) *tree {
	at := &tree{locs: make([]Loc, n)}
	for key := Key(o.r.Uint64()); len(at.keys) < n; {
		key = chain(key, o.r.Uint64())
		at.keys = append(at.keys, key)
	}
	o.f.Place(0, 0, at.keys, at.locs)
	for _, l := range at.locs {
		o.f.Ref(l)
		o.f.Hold(l, o.ord)
	}
	return at
}

// found returns how many keys of a chain a reader finds.
func (o *orchard) found(t *tree, touch bool) (n int) {
	in := o.f.Enter()
	defer in.Leave()
	var p Path
	Begin(&p, o.f, t.keys)
	for i := 0; ; i++ {
		s, ok := p.Span(i)
		if !ok {
			break
		}
		if ord, mask, ok := s.Holder(); ok && ord == o.ord && mask&(1<<s.N-1) == 1<<s.N-1 {
			n += s.N
		}
	}
	if touch {
		p.Touch()
	}
	return n
}

// forget drops the names of dead slabs, as sweeps do.
func (o *orchard) forget() {
	kept := o.chains[:0]
	for _, t := range o.chains {
		n := 0
		for n < len(t.locs) && !o.f.Dead(t.locs[n]) {
			n++
		}
		for _, l := range t.locs[n:] {
			if !o.f.Dead(l) {
				o.t.Fatalf("%x is not dead, and behind a dead slab", l)
			}
			o.f.Release(l, o.ord)
			o.f.Unref(l)
		}
		if t.keys, t.locs = t.keys[:n], t.locs[:n]; n > 0 {
			kept = append(kept, t)
		}
	}
	clear(o.chains[len(kept):])
	o.chains = kept
}

// Only leaves are evicted, the coldest first, none of those used last; readers find a prefix, and
// the room is reused.
func TestEvict(t *testing.T) {
	var killed, cut, spared int
	for seed := range uint64(choose(6, 20)) {
		count := new(mem.Count)
		o := &orchard{t: t, f: New(count, 1<<40), r: rand.New(rand.NewPCG(seed, 3))}
		o.ord, _ = o.f.TakeOrdinal(new(Holders))
		for range 60 {
			for range 20 {
				o.plant()
				o.f.Tick()
				for range 3 {
					asked := o.chains[o.r.IntN(len(o.chains))]
					if n := o.found(asked, true); n != len(asked.keys) {
						t.Fatalf("%d of %d keys are found", n, len(asked.keys))
					}
				}
			}
			var s Survey
			o.f.Begin(&s, 16)
			for !o.f.Look(&s, 1+o.r.IntN(500)) {
			}
			total := s.all
			ages := map[uint32]int{}
			for _, c := range o.chains {
				id := c.locs[len(c.locs)-1].Slab()
				ages[id] = s.ageOf(o.f, o.f.meta(id))
			}
			want, keep := total/4*int64(1+2*o.r.IntN(2)), total/2
			if !s.Choose(want, keep) {
				continue
			}
			before := total
			for {
				freed, done := o.f.Evict(&s, 1+o.r.IntN(500))
				if before -= freed; done {
					break
				}
			}
			if gone := total - before; gone > want+40*1024 {
				t.Fatalf("%d bytes went, %d were wanted", gone, want)
			}
			young := total
			for _, n := range s.tail[s.least:] {
				young -= n
			}
			if young < keep-total/100 {
				t.Fatalf("%d bytes are younger than what went, %d are to be kept", young, keep)
			}
			for id, age := range ages {
				switch dead := o.f.Dead(locOf(id, 0)); {
				case dead && age < s.least:
					t.Fatalf("slab %d of age %d died, from %d on", id, age, s.least)
				case dead:
					killed++
				case age >= s.least:
					spared++ // enough was evicted
				}
			}
			for _, c := range o.chains {
				alive := 0
				for alive < len(c.locs) && !o.f.Dead(c.locs[alive]) {
					alive++
				}
				if n := o.found(c, false); n != alive {
					t.Fatalf("%d of %d keys are found, %d are alive", n, len(c.keys), alive)
				}
				if alive > 0 && alive < len(c.locs) {
					cut++
				}
			}
			if o.r.IntN(3) > 0 {
				o.forget()
			}
			o.f.Reclaim()
			held, refs := map[Holding]uint32{}, map[uint32]uint32{}
			for _, c := range o.chains {
				for _, l := range c.locs {
					refs[l.Slab()]++
					held[Holding{l.Slab(), o.ord}] |= 1 << l.Slot()
				}
			}
			if err := o.f.Check(held, refs); err != nil {
				t.Fatal(err)
			}
			o.forget()
		}
		for _, c := range o.chains {
			for _, l := range c.locs {
				o.f.Unref(l)
			}
		}
	}
	t.Logf("%d leaves died, %d chains were cut, %d were spared", killed, cut, spared)
	if part := choose(4, 1); killed < 1000/part || cut < 200/part {
		t.Error("the test tests too little")
	}
}

// The age of a slab is that of its last placement or read, or of the last use of an evicted slab
// behind it.
func TestAges(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(o *orchard, long *tree)
	}{
		{"asked for", func(o *orchard, long *tree) { o.found(long, true) }},
		{"placed", func(o *orchard, long *tree) { o.f.Place(0, 0, long.keys, make([]Loc, len(long.keys))) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(1, 3))}
			o.ord, _ = o.f.TakeOrdinal(new(Holders))
			long := o.grow(64)
			o.f.Tick()
			short := o.grow(32)
			o.f.Tick()
			c.use(o, long)
			for range 2 {
				o.f.Tick()
			}
			evict := func(want int64) {
				var s Survey
				o.f.Begin(&s, 0)
				o.f.Look(&s, 1<<20)
				if !s.Choose(want, 0) {
					t.Fatal("nothing can go")
				}
				for done := false; !done; {
					_, done = o.f.Evict(&s, 1<<20)
				}
			}
			left := func(tree *tree) (n int) {
				for _, l := range tree.locs {
					if !o.f.Dead(l) {
						n++
					}
				}
				return n
			}
			if evict(1); left(short) != 0 || left(long) != 64 {
				t.Fatalf("%d and %d keys are left, the short chain is older", left(long), left(short))
			}
			if evict(1); left(long) != 32 {
				t.Fatalf("%d keys are left of the long chain", left(long))
			}
			if age := o.f.Now() - o.f.meta(long.locs[0].Slab()).used; age != 2 {
				t.Errorf("what is left was used %d ticks ago", age)
			}
		})
	}
}

// Slabs of nearly one age are evicted in order, and in part.
func TestEvictOneAge(t *testing.T) {
	const chains = 400
	for _, ago := range []uint32{1, 30_000, 1 << 30, 3 << 30} {
		for _, ticks := range []int{1, 40, chains} {
			o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(uint64(ago), uint64(ticks)))}
			o.ord, _ = o.f.TakeOrdinal(new(Holders))
			all := make([]*tree, chains)
			for i := range all {
				all[i] = o.grow(64)
			}
			o.r.Shuffle(chains, func(i, j int) { all[i], all[j] = all[j], all[i] })
			for i, used := range all {
				if i%(chains/ticks) == 0 {
					o.f.Tick()
				}
				o.found(used, true)
			}
			o.f.SetNow(o.f.Now() + ago)
			var s Survey
			o.f.Begin(&s, 16)
			o.f.Look(&s, 1<<20)
			want, keep := s.all/48, s.all/2
			for s.Finer(want, keep) {
				o.f.Look(&s, 1<<20)
			}
			if !s.Choose(want, keep) {
				t.Fatalf("%d ticks, %d ago: nothing can go", ticks, ago)
			}
			gone := int64(0)
			for done := false; !done; {
				var freed int64
				freed, done = o.f.Evict(&s, 1<<20)
				gone += freed
			}
			if gone < want || gone > want+40*1024 {
				t.Errorf("%d ticks, %d ago: %d bytes went, %d were wanted", ticks, ago, gone, want)
			}
			for i, used := range all[chains/2:] {
				if ticks > 1 && o.f.Dead(used.locs[63]) {
					t.Fatalf("%d ticks, %d ago: chain %d of %d went", ticks, ago, i+chains/2, chains)
				}
			}
		}
	}
}
