package forest

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// holdings are the holders of slots, from a Watcher's calls.
type holdings struct {
	o    *orchard
	held map[uint32]map[Key]uint32 // by ordinal: the depth of each key
	lost map[uint32]bool
	// gains and losses count keys, deep those at depth 100 or more.
	gains, losses, deep int
}

func (o *orchard) watch() *holdings {
	w := &holdings{o: o, held: map[uint32]map[Key]uint32{}, lost: map[uint32]bool{}}
	o.f.Watch(Watcher{Changed: w.changed, Lost: w.losing})
	return w
}

func (w *holdings) changed(slab, ord, was, now uint32) {
	o := w.o
	depth := o.f.Depth(slab)
	if was == now || uint64(was|now)>>o.f.Written(slab) != 0 {
		o.t.Fatalf("%d has %b of slab %d, with %d keys, and had %b", ord, now, slab, o.f.Written(slab), was)
	}
	if w.held[ord] == nil {
		w.held[ord] = map[Key]uint32{}
	}
	for i := range uint32(o.f.Written(slab)) {
		k := o.f.KeyAt(slab, int(depth+i))
		at, has := w.held[ord][k]
		if had := was>>i&1 != 0; has != had || had && at != depth+i {
			o.t.Fatalf("%d had the key at depth %d: %v, and the Watcher: %v, at depth %d", ord, at, has, had, depth+i)
		}
		switch {
		case now>>i&1 == 0 && has:
			delete(w.held[ord], k)
			w.losses++
		case now>>i&1 != 0 && !has:
			w.held[ord][k] = depth + i
			w.gains++
			if depth > 100 {
				w.deep++
			}
		}
	}
}

func (w *holdings) losing(ord uint32) {
	if w.lost[ord] {
		w.o.t.Fatalf("%d lost its first block twice", ord)
	}
	w.lost[ord] = true
}

// check compares the calls with the chains: all of their live keys are held.
func (w *holdings) check() {
	o := w.o
	o.t.Helper()
	want := map[Key]uint32{}
	for _, c := range o.chains {
		for i, l := range c.locs {
			if o.f.Dead(l) {
				break
			}
			want[c.keys[i]] = uint32(i)
			if j := o.r.IntN(i + 1); o.f.KeyAt(o.f.Here(l).Slab(), j) != c.keys[j] {
				o.t.Fatalf("the key at depth %d is not before that at %d", j, i)
			}
		}
	}
	got := w.held[o.ord]
	if len(got) != len(want) {
		o.t.Fatalf("%d keys are held, want %d", len(got), len(want))
	}
	for k, depth := range want {
		if at, ok := got[k]; !ok || at != depth {
			o.t.Fatalf("a key of depth %d is held at %d: %v", depth, at, ok)
		}
	}
	if o.f.Lost(o.ord) != w.lost[o.ord] {
		o.t.Fatalf("%d lost blocks: %v", o.ord, w.lost[o.ord])
	}
}

// A Watcher receives the holders of slots while chains fork, grow and are removed, and slabs are
// evicted and moved. Places stay valid while names and slabs refer to them, and in the end the
// chunks are free.
func TestWatch(t *testing.T) {
	var evicted, moved, late, gains, losses, deep int
	for seed := range uint64(choose(2, 8)) {
		o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(seed, 8))}
		w := o.watch()
		o.ord, _ = o.f.TakeOrdinal(new(Holders))
		for range 30 {
			for range 60 {
				o.plant()
				o.f.Tick()
			}
			for len(o.chains) > 60 {
				o.fell(o.r.IntN(len(o.chains)))
			}
			w.check()
			o.f.Reclaim()
			o.f.Reclaim()
			moved += o.move()
			o.check()
			w.check()
			if o.r.IntN(2) == 0 {
				var s Survey
				o.f.Begin(&s, 16)
				o.f.Look(&s, 1<<20)
				before := w.losses
				if s.Choose(s.all/8, s.all/2) {
					o.f.Evict(&s, 1<<20)
				}
				evicted += w.losses - before
				w.check()
				dying := o.f.Dying()
				o.forget()
				late += dying - o.f.Dying()
				w.check()
			}
			if o.r.IntN(2) == 0 {
				for _, c := range o.chains {
					for i, l := range c.locs {
						c.locs[i] = o.f.Rehome(l)
					}
				}
				o.relink()
			}
			for range 3 {
				o.f.Reclaim()
			}
			o.check()
			w.check()
		}
		o.relink()
		for len(o.chains) > 0 {
			o.fell(0)
		}
		if w.check(); o.f.Dying() != 0 || o.f.Len() != 0 {
			t.Fatalf("%d old places and %d keys are left", o.f.Dying(), o.f.Len())
		}
		for range 3 {
			o.f.Reclaim()
		}
		if left := o.f.slabs.free; left[0]+left[1]+left[2] > slabSizes*chunkSlabs {
			t.Errorf("%v slabs are left", left)
		}
		gains, losses, deep = gains+w.gains, losses+w.losses, deep+w.deep
	}
	t.Logf("%d keys were gained, %d of them deep, %d lost, %d by evictions; %d dead slabs were tidied up, %d slabs moved", gains, deep, losses, evicted, late, moved)
	if part := choose(8, 1); gains < 100_000/part || deep < 10_000/part || losses < 100_000/part || evicted < 5000/part || late < 500/part || moved < 2000/part {
		t.Error("the test tests too little")
	}
}

// Depths are kept for a Watcher only, and are counted.
func TestDepthsAreCounted(t *testing.T) {
	bytes := func(watch bool) int {
		o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(9, 8))}
		if watch {
			o.f.Watch(Watcher{Changed: func(_, _, _, _ uint32) {}, Lost: func(uint32) {}})
		}
		o.ord, _ = o.f.TakeOrdinal(new(Holders))
		for range 500 {
			o.plant()
		}
		if chunks := len(o.f.slabs.depths); !watch && chunks > 0 || watch && chunks != len(o.f.slabs.chunks) {
			t.Errorf("%d chunks have depths, holdings: %v", chunks, watch)
		}
		for len(o.chains) > 0 {
			o.fell(0)
		}
		for range 3 {
			o.f.Reclaim()
		}
		for n, depths := range o.f.slabs.depths {
			if (*o.f.chunks.Load())[n].meta == nil && depths != nil {
				t.Errorf("chunk %d has gone, and has depths", n)
			}
		}
		return o.f.slabs.bytes
	}
	chunks := slabSizes // one of each size stays
	if more, most := bytes(true)-bytes(false), chunks*mem.Size(depthBytes)+mem.PointerSize(128*wordBytes); more < mem.Size(depthBytes) || more > most {
		t.Errorf("depths take %d bytes, want %d at most", more, most)
	}
}
