package forest

import (
	"flag"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// chain is index.Chain.
func chain(prev Key, local uint64) Key {
	return Key(bits.RotateLeft64((uint64(prev)+(local^0x9e3779b97f4a7c15))*(2*local+0xbf58476d1ce4e5b9), 32))
}

var benchBlocks = flag.Int("blocks", 1_000_000, "blocks of the benchmarks of the forest")

// BenchmarkForestInsert adds fresh chains of 512 blocks for one holder to a
// forest, without names, up to the number of blocks of the flag; then it begins
// with an empty one.
func BenchmarkForestInsert(b *testing.B) {
	const n = 512
	r := rand.New(rand.NewPCG(1, 1))
	f := New(new(mem.Count), 1<<40)
	ord, _ := f.TakeOrdinal(new(Holders))
	keys, locs := make([]Key, n), make([]Loc, n)
	b.ReportAllocs()
	for b.Loop() {
		if f.slots >= *benchBlocks {
			b.StopTimer()
			f = New(new(mem.Count), 1<<40)
			b.StartTimer()
		}
		key := Key(r.Uint64())
		for i := range keys {
			key = chain(key, uint64(i))
			keys[i] = key
		}
		f.Place(0, 0, keys, locs)
		for i := 0; i < n; {
			id, mask := locs[i].Slab(), uint32(0)
			for ; i < n && locs[i].Slab() == id; i++ {
				mask |= 1 << locs[i].Slot()
			}
			f.RefAndHold(id, ord, mask)
		}
	}
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}
