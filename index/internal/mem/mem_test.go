package mem

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"
)

var (
	plain  [][]uint64
	linked [][]*int
)

const pointer = int(unsafe.Sizeof(&plain)) // bytes

// noise is the heap's deviation for other reasons.
const noise = 8192

// TestSize: Size is the growth of the heap.
func TestSize(t *testing.T) {
	Size(1) // makes its table
	sizes := []int{2, 3, 8, 63, 64, 65, 66, 100, 128, 500, 1000, 4000, 4095, 4096, 4097, 5000, 20000}
	if !testing.Short() {
		for range 20 {
			sizes = append(sizes, 1+rand.IntN(30_000))
		}
	}
	for _, n := range sizes {
		times := max(64, 1<<17/n)
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
		if got, want := float64(between-before), float64(times*Size(8*n)); got < want-noise || got > want+noise {
			t.Errorf("%d words take %v bytes each, want %v", n, got/float64(times), want/float64(times))
		}
		if got, want := float64(after-between), float64(times*PointerSize(pointer*n)); got < want-noise || got > want+noise {
			t.Errorf("%d pointers take %v bytes each, want %v", n, got/float64(times), want/float64(times))
		}
		plain, linked = nil, nil
	}
}

// Pointer-free values below 16 bytes share memory that stays as long as one of them.
func TestTiny(t *testing.T) {
	Size(1)
	const times = 1 << 14
	tiny, all := make([]*uint64, times), make([]*uint64, 2*times)
	before := heap()
	for i := range all {
		all[i] = new(uint64)
	}
	for i := range tiny {
		tiny[i] = all[2*i]
	}
	clear(all)
	if got, want := heap()-before, int64(times*Size(8)); got < want-noise || got > want+noise {
		t.Errorf("%d numbers take %d bytes, want %d", times, got, want)
	}
	runtime.KeepAlive(tiny)
	runtime.KeepAlive(all)
}

// heap returns the live bytes. Collections run until three in a row find no more, because runtime
// and testing keep objects for some cycles, as in a sync.Pool or for a finalizer.
func heap() int64 {
	var m runtime.MemStats
	for last, same := uint64(0), 0; ; last = m.HeapAlloc {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc != last {
			same = 0
		} else if same++; same == 3 {
			return int64(last)
		}
	}
}

// The counted bytes are those of the slice that Append grows.
func TestAppend(t *testing.T) {
	Size(1)
	for _, n := range []int{1, 5, 64, 65, 100, 1000, 5000} {
		var c Count
		before := heap()
		slices := make([][]*int, 64)
		c.Add(SliceSize(slices))
		for i := range slices {
			for j := range n {
				slices[i] = Append(&c, slices[i], &j)
				if *slices[i][j] != j || len(slices[i]) != j+1 {
					t.Fatalf("element %d of %d is wrong", j, len(slices[i]))
				}
				slices[i][j] = nil
			}
		}
		if got, want := heap()-before, c.Load(); got < want-noise || got > want+noise {
			t.Errorf("64 slices of %d take %d bytes, counted %d", n, got, want)
		}
		for i := range slices {
			c.Add(-SliceSize(slices[i]))
		}
		if c.Add(-SliceSize(slices)); c.Load() != 0 {
			t.Errorf("%d bytes are counted when all are gone", c.Load())
		}
	}
}
