package forest

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// garden is the world of TestReadersKeepWhatTheySee. Keys and holders of a chain follow from its
// number, so that readers can recognize those of another.
type garden struct {
	f          *Forest
	mu         sync.Mutex // held by writers
	keys       [][]Key
	held       []bool         // planted chains
	locs       []Loc          // their references
	last       map[uint32]int // the chain that used a slab last
	made, anew atomic.Int64   // chains, and slabs of them that another chain had before
}

const (
	gardenOrds  = 300
	gardenChain = slabSlots + 7 // more than a slab
)

func newGarden(chains int) *garden {
	g := &garden{f: New(new(mem.Count), 1<<40), keys: make([][]Key, chains), held: make([]bool, chains), locs: make([]Loc, chains), last: map[uint32]int{}}
	for c := range g.keys {
		k := Key(c + 1)
		for i := range gardenChain {
			k = chain(k, uint64(i))
			g.keys[c] = append(g.keys[c], k)
		}
	}
	return g
}

// mask returns a holder's slots of the first slab of a chain. A holder that moves inside a record
// may have both masks.
func (g *garden) mask(chain int, ord uint32, other bool) uint32 {
	if other {
		chain += len(g.keys)
	}
	return []uint32{0xFF, 0xFFFF, 0xFFFFFFFF, 0xF0F0F0F0, 0x80000001, 1<<(uint(ord)%32) | 1}[(uint32(chain)*7+ord)%6]
}

// plant adds a chain with some holders, changes these, and removes everything.
func (g *garden) plant(t *testing.T, r *rand.Rand) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := r.IntN(len(g.keys))
	locs := make([]Loc, gardenChain)
	if !g.held[c] {
		if !g.f.Place(0, 0, g.keys[c], locs) {
			t.Error("no room")
		}
		g.held[c], g.locs[c] = true, locs[gardenChain-1]
		g.f.Ref(g.locs[c])
		g.made.Add(1)
		for _, l := range locs {
			if last, ok := g.last[l.Slab()]; ok && last != c {
				g.anew.Add(1)
			}
			g.last[l.Slab()] = c
		}
	}
	id := g.f.heads.find(g.f, g.keys[c][0])
	for range r.IntN(60) {
		ord := r.Uint32N(gardenOrds)
		g.f.setMask(id, ord, []uint32{g.mask(c, ord, false), g.mask(c, ord, true), 0}[r.IntN(3)])
	}
	if r.IntN(3) == 0 {
		for ord := range readHolders(g.f, id) {
			g.f.setMask(id, ord, 0)
		}
		g.f.Unref(g.locs[c])
		g.held[c] = false
	}
	g.f.Reclaim()
}

// visit reads a chain repeatedly, and returns how often it was there.
func (g *garden) visit(t *testing.T, r *rand.Rand) (keys, holders int) {
	c := r.IntN(len(g.keys))
	reader := g.f.Enter()
	defer reader.Leave()
	for at := 0; at < gardenChain; {
		id := g.f.heads.find(g.f, g.keys[c][at])
		if id == 0 {
			return keys, holders
		}
		slots, h := g.f.keys(id), g.f.meta(id).load()
		n := h.written()
		for range 3 {
			// Meanwhile the header may lose its holders or the slab may be freed, but while this
			// reader is inside, no other chain gets the slab, and its keys stay.
			for i := range min(n, gardenChain-at) {
				if got := Key(atomic.LoadUint64(&slots[i])); got != g.keys[c][at+i] {
					t.Errorf("slot %d of a slab of chain %d became %x", i, c, got)
				}
				keys++
			}
			if at == 0 {
				holders += g.visitHolders(t, c, h)
			}
			runtime.Gosched()
		}
		if n == 0 {
			return keys, holders
		}
		at += n
	}
	return keys, holders
}

// visitHolders reads an old header. Its record is not reused either, and each word was valid at
// some moment.
func (g *garden) visitHolders(t *testing.T, chain int, h header) (n int) {
	see := func(ord, mask uint32) {
		n++
		if ord >= gardenOrds || mask != g.mask(chain, ord, false) && mask != g.mask(chain, ord, true) {
			t.Errorf("%d has %b of chain %d", ord, mask, chain)
		}
	}
	switch h.kind() {
	case kindOne:
		see(h.ord(), h.mask())
	case kindRecord:
		rec := g.f.recs.at(h.record())
		for i := range rec.rows() {
			mask, bitmap := rec.row(i)
			for w := range bitmap {
				for set, b := atomic.LoadUint64(&bitmap[w]), uint32(0); set != 0; set, b = set>>1, b+1 {
					if set&1 != 0 {
						see(uint32(rec.first()+w)<<6|b, mask)
					}
				}
			}
		}
		entries := rec.entries()
		for i := range entries {
			if e := atomic.LoadUint64(&entries[i]); e != 0 {
				see(uint32(e>>32), uint32(e))
			}
		}
	}
	return n
}

// Writers free and reuse slabs and records as fast as they can, while readers read them.
func TestReadersKeepWhatTheySee(t *testing.T) {
	g := newGarden(12)
	var stop atomic.Bool
	var writers, readers sync.WaitGroup
	for n := range uint64(2) {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(n, 19))
			for !stop.Load() {
				g.plant(t, r)
				runtime.Gosched() // with one processor, readers and writers take turns
			}
		})
	}
	var keys, holders atomic.Int64
	visits := 20_000
	if testing.Short() {
		visits = 4000
	}
	for n := range uint64(2) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(n, 20))
			for i := 0; i < visits || g.anew.Load() < 500; i++ {
				k, h := g.visit(t, r)
				keys.Add(int64(k))
				holders.Add(int64(h))
				if t.Failed() {
					return
				}
			}
		})
	}
	readers.Wait()
	stop.Store(true)
	writers.Wait()
	t.Logf("%d keys and %d holders looked at, %d chains made, of slabs that another one had %d times",
		keys.Load(), holders.Load(), g.made.Load(), g.anew.Load())
	if keys.Load() < 50_000 || holders.Load() < 10_000 {
		t.Error("the test tests too little")
	}
	for range 3 {
		g.f.Reclaim()
	}
	if g.f.slabs.waiting != 0 || g.f.recs.waiting != 0 {
		t.Errorf("nobody reads, and %d slabs and %d records wait", g.f.slabs.waiting, g.f.recs.waiting)
	}
}
