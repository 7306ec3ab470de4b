package index

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var benchBlocks = flag.Int("blocks", 1_000_000, "blocks of the benchmarks of the forest")

// BenchmarkForestInsert adds fresh chains of 512 blocks for one holder to a
// forest, without names, up to the number of blocks of the flag; then it begins
// with an empty one.
func BenchmarkForestInsert(b *testing.B) {
	const n = 512
	r := rand.New(rand.NewPCG(1, 1))
	f := newForest()
	v, _ := f.variant(Variant{Unit: 16})
	ord, _ := f.ords.take()
	keys, locs := make([]Key, n), make([]loc, n)
	b.ReportAllocs()
	for b.Loop() {
		if f.slots >= *benchBlocks {
			b.StopTimer()
			f = newForest()
			v, _ = f.variant(Variant{Unit: 16})
			b.StartTimer()
		}
		key := Key(r.Uint64())
		for i := range keys {
			key = Chain(key, Local(i))
			keys[i] = key
		}
		f.place(0, v, keys, locs)
		for i := 0; i < n; {
			id, mask, refs := locs[i].slab(), uint32(0), uint32(0)
			for ; i < n && locs[i].slab() == id; i++ {
				mask |= 1 << locs[i].slot()
				refs++
			}
			f.meta(id).refs += refs
			f.setMask(id, ord, mask)
		}
	}
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}
