package forest

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// fell removes all names of a chain.
func (o *orchard) fell(n int) {
	c := o.chains[n]
	o.chains = slices.Delete(o.chains, n, n+1)
	for i, l := range c.locs {
		if !slices.ContainsFunc(o.chains, func(o *tree) bool { return i < len(o.keys) && o.keys[i] == c.keys[i] }) {
			o.f.Release(l, o.ord)
		}
		o.f.Unref(l)
	}
}

// move empties as many chunks as possible, and returns the number of moved slabs.
func (o *orchard) move() (moved int) {
	var s Survey
	o.f.Empty(&s, 1<<30)
	for {
		_, n, done := o.f.Move(&s)
		if moved += n; done {
			return moved
		}
	}
}

func (o *orchard) relink() {
	var s Survey
	o.f.Begin(&s, 0)
	for !o.f.Relink(&s, 1+o.r.IntN(500)) {
	}
}

// check compares all names with the forest after moves.
func (o *orchard) check() {
	o.t.Helper()
	held, refs := map[Holding]uint32{}, map[uint32]uint32{}
	for _, c := range o.chains {
		for i, l := range c.locs {
			if o.f.Dead(l) {
				o.t.Fatalf("%x is dead", l)
			}
			here := o.f.Here(l)
			if o.f.Key(l) != c.keys[i] || o.f.Key(here) != c.keys[i] || !o.f.Holds(l, o.ord) {
				o.t.Fatalf("key %d of a chain is not at %x, or nobody holds it", i, l)
			}
			if i > 0 && (o.f.Up(l, 1) != o.f.Here(c.locs[i-1]) || o.f.Up(l, i) != o.f.Here(c.locs[0])) {
				o.t.Fatalf("%x and %x are before key %d of a chain", o.f.Up(l, 1), o.f.Up(l, i), i)
			}
			if n, ok := o.f.Between(c.locs[0], l, 1000); !ok || n != i {
				o.t.Fatalf("key %d of a chain is %d behind its first, %v", i, n, ok)
			}
			refs[l.Slab()]++
			held[Holding{here.Slab(), o.ord}] |= 1 << here.Slot()
		}
		if n := o.found(c, false); n != len(c.keys) {
			o.t.Fatalf("%d of %d keys are found", n, len(c.keys))
		}
	}
	if err := o.f.Check(held, refs); err != nil {
		o.t.Fatal(err)
	}
}

// Slabs that are held or referenced by place do not move.
func TestStay(t *testing.T) {
	for _, c := range []struct {
		name string
		keep func(f *Forest, l Loc)
		let  func(f *Forest, l Loc)
	}{
		{"pinned", (*Forest).Pin, (*Forest).Unpin},
		{"all pinned", func(f *Forest, l Loc) { f.PinAll([]Loc{l}) }, func(f *Forest, l Loc) { f.UnpinAll([]Loc{l}) }},
		{"known by its place", func(f *Forest, l Loc) { f.Stay(l) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(6, 5))}
			o.ord, _ = o.f.TakeOrdinal(new(Holders))
			for range 500 {
				o.plant()
			}
			for len(o.chains) > 100 {
				o.fell(o.r.IntN(len(o.chains)))
			}
			for range 3 {
				o.f.Reclaim()
			}
			var kept []Loc
			for _, at := range o.chains {
				l := at.locs[o.r.IntN(len(at.locs))]
				c.keep(o.f, l)
				kept = append(kept, l)
			}
			o.move()
			for _, l := range kept {
				if o.f.Here(l) != l {
					t.Fatalf("%x was moved", l)
				}
				if c.let != nil {
					c.let(o.f, l)
				}
			}
			if n := o.move(); c.let != nil && n == 0 {
				t.Error("nothing was moved afterwards")
			}
			o.check()
		})
	}
}

// Readers find whole chains while their slabs are moved.
func TestReadersFindWhatMoves(t *testing.T) {
	o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: rand.New(rand.NewPCG(7, 5))}
	o.ord, _ = o.f.TakeOrdinal(new(Holders))
	for range 50 {
		o.plant()
	}
	all := slices.Clone(o.chains)
	for _, c := range all {
		c.keys = slices.Clone(c.keys)
	}
	var stop atomic.Bool
	var looks atomic.Int64
	moved := 0
	var readers sync.WaitGroup
	for n := range uint64(2) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(n, 6))
			for !stop.Load() {
				c := all[r.IntN(len(all))]
				if n := o.found(c, true); n != len(c.keys) {
					t.Errorf("%d of %d keys are found", n, len(c.keys))
					return
				}
				looks.Add(1)
				runtime.Gosched()
			}
		})
	}
	for moved < 500 || looks.Load() < 2000 {
		for range 60 {
			o.plant()
		}
		for len(o.chains) > 2*len(all) { // the first ones stay
			o.fell(len(all) + o.r.IntN(len(o.chains)-len(all)))
		}
		moved += o.move()
		runtime.Gosched()
		for _, c := range o.chains {
			for i, l := range c.locs {
				c.locs[i] = o.f.Rehome(l)
			}
		}
		o.relink()
		o.f.Reclaim()
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	readers.Wait()
	o.check()
	t.Logf("%d slabs were moved, %d chains looked at", moved, looks.Load())
}
