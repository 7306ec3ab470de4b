package sent_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/sent"
)

// fresh is how many different prompts a benchmark takes by turns.
const fresh = 512

// BenchmarkAdd adds a prompt of 512 keys and removes it, beside 1,000 others of 64 holders
// that share their first 100 keys.
func BenchmarkAdd(b *testing.B) {
	for _, same := range []int{0, 100, 511, 512} {
		b.Run(fmt.Sprintf("same=%d", same), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			tree, keys := crowd(r, 1000)
			var prompts [fresh][]index.Key
			for i := range prompts {
				prompts[i] = random(r, keys[:same], 512-same)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h := sent.Holder(i % 64)
				tree.Remove(h, tree.Add(h, prompts[i%fresh]))
			}
		})
	}
}

// BenchmarkMatch looks for a prompt of 512 keys among 1,000 of 64 holders that share their
// first 100 keys.
func BenchmarkMatch(b *testing.B) {
	for _, same := range []int{0, 50, 100, 300, 512} {
		b.Run(fmt.Sprintf("same=%d", same), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			tree, keys := crowd(r, 1000)
			var prompts [fresh][]index.Key
			for i := range prompts {
				prompts[i] = random(r, keys[:same], 512-same)
			}
			var longest [64]int
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tree.Match(prompts[i%fresh], func(h sent.Holder, n int) { longest[h] = n })
			}
		})
	}
}

// BenchmarkMatchNested looks for a prompt that was sent to 64 holders a turn at a time: each
// turn is a node, with a holder less than the one before.
func BenchmarkMatchNested(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var tree sent.Tree
	keys := random(r, nil, 512)
	for h := range sent.Holder(64) {
		for n := 8; n <= 8*int(h+1); n += 8 {
			tree.Add(h, keys[:n])
		}
	}
	var longest [64]int
	b.ReportAllocs()
	for b.Loop() {
		tree.Match(keys, func(h sent.Holder, n int) { longest[h] = n })
	}
}

// BenchmarkBytes reports what prompts of 512 keys take.
func BenchmarkBytes(b *testing.B) {
	for b.Loop() {
		tree, _ := crowd(rand.New(rand.NewPCG(1, 2)), 1000)
		b.ReportMetric(float64(tree.Bytes())/1000/512, "B/key")
	}
}
