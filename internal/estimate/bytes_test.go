package estimate_test

import (
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/internal/estimate"
)

// heap returns the live bytes for each block of a full Cache, and those that Bytes reports.
func heap(blocks int) (each, claimed float64) {
	keys := chain(nil, 1, blocks)
	caches := make([]*estimate.Cache, 1+300_000/blocks)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // twice, to free what the first finalizes
	runtime.ReadMemStats(&before)
	for i := range caches {
		caches[i] = estimate.New(blocks, 0)
		for n := range 16 {
			caches[i].Sent(keys[:blocks*n/16], 1, 0)
		}
		caches[i].Sent(keys, 1, 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	all := float64(len(caches) * blocks)
	runtime.KeepAlive(keys)
	return (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / all, float64(caches[0].Bytes()) / float64(blocks)
}

func TestBytes(t *testing.T) {
	for _, blocks := range []int{1_000, 10_000, 65_536, 100_001} {
		each, claimed := heap(blocks)
		t.Logf("%d blocks: %.1f bytes each, Bytes says %.1f", blocks, each, claimed)
		if each > 40 || claimed < 0.95*each || claimed > 1.05*each {
			t.Errorf("%d blocks: %.1f bytes each, Bytes says %.1f", blocks, each, claimed)
		}
	}
}
