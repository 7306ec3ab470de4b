package mem

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

var (
	plain  [][]uint64
	linked [][]*int
)

// TestSize: what Size says is what the heap has more.
func TestSize(t *testing.T) {
	Size(1) // makes its table
	sizes := []int{1, 2, 3, 8, 63, 64, 65, 66, 100, 128, 500, 1000, 4000, 4095, 4096, 4097, 5000, 20000}
	for range 20 {
		sizes = append(sizes, 1+rand.IntN(30_000))
	}
	for _, n := range sizes {
		const times = 64
		plain, linked = make([][]uint64, times), make([][]*int, times)
		before := heap()
		for i := range times {
			plain[i] = make([]uint64, n)
		}
		between := heap()
		for i := range times {
			linked[i] = make([]*int, n)
		}
		after := heap()
		if got, want := float64(between-before), float64(times*Size(8*n)); got < want-2048 || got > want+2048 {
			t.Errorf("%d words take %v bytes each, want %v", n, got/times, want/times)
		}
		if got, want := float64(after-between), float64(times*PointerSize(8*n)); got < want-2048 || got > want+2048 {
			t.Errorf("%d pointers take %v bytes each, want %v", n, got/times, want/times)
		}
		plain, linked = nil, nil
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
