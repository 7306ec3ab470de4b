package forest

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// chain is index.Chain.
func chain(prev Key, local uint64) Key {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(prev))
	binary.LittleEndian.PutUint64(b[8:], local)
	return Key(xxh3.Hash(b[:]))
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
