package names

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// BenchmarkTable has names come and go in a table of a million.
func BenchmarkTable(b *testing.B) {
	const size = 1 << 20
	r := rand.New(rand.NewPCG(9, 10))
	hashes := make([]Hash, 2*size)
	for i := range hashes {
		hashes[i] = Hash(r.Uint64())
	}
	filled := func() *Table[Hash, value] {
		var t Table[Hash, value]
		t.Init([2]uint64{r.Uint64(), r.Uint64()}, new(mem.Count))
		for i, h := range hashes[:size] {
			t.Add(h, value(i+1))
		}
		return &t
	}
	b.Run("get", func(b *testing.B) {
		t, i, found := filled(), 0, value(0)
		for b.Loop() {
			found += t.Get(hashes[uint32(i)*0x9E3779B1&(size-1)])
			i++
		}
		hashes[0] ^= Hash(found & 1)
	})
	b.Run("put", func(b *testing.B) {
		t, i := filled(), 0
		for b.Loop() {
			t.Put(hashes[uint32(i)*0x9E3779B1&(size-1)], 7)
			i++
		}
	})
	b.Run("turnover", func(b *testing.B) { // one comes, the oldest goes
		t, i := filled(), 0
		for b.Loop() {
			t.Add(hashes[(i+size)&(2*size-1)], 7)
			t.Remove(hashes[i&(2*size-1)])
			i++
		}
	})
	b.Run("fill", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			filled()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/name")
	})
}
