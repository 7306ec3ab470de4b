package index

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// liveHeap returns the heap after a collection.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // sweeps the rest of the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A pool keeps its values, counts its memory, and takes little once it is empty.
func TestPool(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 31))
	var c mem.Count
	before := liveHeap()
	p := pool[idleName]{mem: &c}
	for range 3 {
		all := make(map[uint32]Hash)
		var numbers []uint32
		for range 100_000 {
			if r.IntN(3) > 0 {
				h := Hash(r.Uint64())
				i := p.take(idleName{hash: h})
				if all[i] != 0 || i == 0 {
					t.Fatalf("%d was taken twice", i)
				}
				all[i] = h
				numbers = append(numbers, i)
			} else if n := len(numbers); n > 0 {
				at := r.IntN(n)
				p.give(numbers[at])
				delete(all, numbers[at])
				numbers[at] = numbers[n-1]
				numbers = numbers[:n-1]
			}
		}
		for i, h := range all {
			if p.at(i).hash != h {
				t.Fatalf("%d is %+v, want %x", i, *p.at(i), h)
			}
		}
		if err := p.check(); err != nil || p.len() != len(all) || c.Load() != int64(p.bytes()) {
			t.Fatalf("%d things, want %d, in %d bytes, counted %d: %v", p.len(), len(all), p.bytes(), c.Load(), err)
		}
		if p.some*poolPage > len(all)*3/2+2*poolPage {
			t.Errorf("%d things on %d pages", len(all), p.some)
		}
		for _, i := range numbers {
			p.give(i)
		}
		if p.len() != 0 || c.Load() > int64(p.pageBytes()+64) {
			t.Errorf("an empty pool has %d things and %d bytes", p.len(), c.Load())
		}
	}
	for range 100_000 {
		p.take(idleName{})
	}
	if got := liveHeap() - before; got < c.Load()-8192 || got > c.Load()+8192 {
		t.Errorf("100,000 things take %d bytes, counted %d", got, c.Load())
	}
	runtime.KeepAlive(&p)
}
