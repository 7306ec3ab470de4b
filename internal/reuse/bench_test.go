package reuse_test

import (
	"fmt"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
)

// BenchmarkTokens judges one pod.
func BenchmarkTokens(b *testing.B) {
	window := reuse.Group{Kind: index.GroupWindow, Window: 1024, Block: 16}
	all := func(int, int) bool { return true }
	for _, c := range []struct {
		name   string
		groups []reuse.Group
		holds  func(group, block int) bool
	}{
		{"full", []reuse.Group{full}, all},
		{"full+window", []reuse.Group{full, window}, all},
		{"full+window+mamba", []reuse.Group{full, window, mamba}, all},
		{"sparse", []reuse.Group{full, window, mamba}, func(g, i int) bool { return g == 0 || g == 1 && i%128 >= 60 || g == 2 && i%128 == 127 }},
		{"joint", []reuse.Group{full, window, window, window, window, window}, all},
		{"draft", []reuse.Group{draft(full), window, mamba}, all},
		{"no-window", []reuse.Group{full, window}, func(g, i int) bool { return g == 0 || i%64 != 0 }},
		{"no-window-alternate", []reuse.Group{full, window}, func(g, i int) bool { return g == 0 || i%2 == 0 }},
		{"no-window-unaligned", []reuse.Group{of(full, 128), {Kind: index.GroupWindow, Window: 40, Block: 16}, mamba}, func(g, i int) bool { return g != 1 || i%8 != 7 }},
	} {
		for _, n := range []int{512, 14000} {
			b.Run(fmt.Sprintf("%s/blocks=%d", c.name, n), func(b *testing.B) {
				plan, err := reuse.New(c.groups, 0)
				if err != nil {
					b.Fatal(err)
				}
				held := make([]reuse.Held, len(c.groups))
				for g := range held {
					for i := range n * 16 / c.groups[g].Block {
						if c.holds(g, i) {
							held[g].Blocks = setBit(held[g].Blocks, i)
						}
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					plan.Tokens(16*n, held)
				}
			})
		}
	}
}
