package estimate_test

import (
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/estimate"
)

// full returns a full Cache of 10,000 blocks, and the prompts of 512 blocks that
// it has, the oldest first. They share 20 blocks.
func full(tb testing.TB) (*estimate.Cache, [][]index.Key) {
	c := estimate.New(10_000, 0)
	shared := chain(nil, 1, 20)
	var prompts [][]index.Key
	for word := range uint64(25) {
		prompts = append(prompts, chain(shared, 100+word, 492))
		c.Sent(prompts[word], 1, 0)
	}
	if c.Len() != 10_000 {
		tb.Fatalf("%d blocks", c.Len())
	}
	return c, prompts[6:]
}

func BenchmarkRun(b *testing.B) {
	c, prompts := full(b)
	for name, bench := range map[string]struct {
		prompts [][]index.Key
		want    int
	}{
		"all":    {prompts, 512},
		"shared": {[][]index.Key{chain(prompts[0][:20], 7, 492)}, 20},
		"miss":   {[][]index.Key{chain(nil, 7, 512)}, 0},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if got := c.Run(bench.prompts[i%len(bench.prompts)], 1, 0); got != bench.want {
					b.Fatalf("%d blocks", got)
				}
				i++
			}
		})
	}
}

func BenchmarkSent(b *testing.B) {
	b.Run("there", func(b *testing.B) {
		c, prompts := full(b)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			c.Sent(prompts[i%len(prompts)], 1, 0)
			i++
		}
	})
	// Each prompt is of 512 blocks that are not there.
	b.Run("new", func(b *testing.B) {
		c, _ := full(b)
		var prompts [][]index.Key
		for word := range uint64(64) {
			prompts = append(prompts, chain(nil, 1000+word, 512))
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			c.Sent(prompts[i%len(prompts)], 1, 0)
			i++
		}
	})
}

func BenchmarkObserved(b *testing.B) {
	// A correction walks over all that is lost, and over what is sent again.
	for name, reused := range map[string]int{"as expected": 512, "a restart": 0} {
		b.Run(name, func(b *testing.B) {
			c, prompts := full(b)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				c.Observed(c.Sent(prompts[i%len(prompts)], 1, 0), reused, 0)
				i++
			}
		})
	}
}

// heap returns how many bytes each block of a full Cache keeps alive, and how
// many Bytes says.
func heap(blocks int) (each, claimed float64) {
	keys := chain(nil, 1, blocks)
	caches := make([]*estimate.Cache, 1+300_000/blocks)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one has found to be garbage
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

func BenchmarkBytes(b *testing.B) {
	for b.Loop() {
		each, _ := heap(10_000)
		b.ReportMetric(each, "B/block")
	}
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
