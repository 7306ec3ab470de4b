package index_test

import (
	"context"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// BenchmarkMasked stores 64 blocks of a window group of which nothing is known, behind
// the blocks of a full group: blocks that follow each other (dense), and two of every
// four (masked), of which the full group names one.
func BenchmarkMasked(b *testing.B) {
	const hashes = 64
	for _, kind := range []struct {
		name   string
		blocks int
		kept   func(block int) bool
	}{
		{"dense", hashes, func(int) bool { return true }},
		{"masked", 2 * hashes, func(block int) bool { return block%4 > 1 }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			ix, err := index.NewMemory(index.MemoryConfig{})
			if err != nil {
				b.Fatal(err)
			}
			defer ix.Close()
			src := index.Source{Pod: "a", Model: "m"}
			apply := func(c ...index.Change) {
				if _, err := ix.Apply(context.Background(), src, index.Cursor{}, c); err != nil {
					b.Fatal(err)
				}
			}
			base := index.Change{Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16}
			base.Locals = make([]index.Local, kind.blocks)
			fresh := index.Hash(0)
			for b.Loop() {
				b.StopTimer()
				full, window := base, base
				full.BlockSize, window.Group = 64, index.Group{ID: 1, Kind: index.GroupWindow, Window: 32}
				base.Root++
				full.Root, window.Root = base.Root, base.Root
				for block := range kind.blocks {
					fresh++
					if block%4 == 3 {
						full.Hashes = append(full.Hashes, fresh)
					}
					if kind.kept(block) {
						window.Hashes = append(window.Hashes, fresh)
					}
				}
				apply(full)
				b.StartTimer()
				apply(window)
				b.StopTimer()
				apply(index.Change{Op: index.OpRemove, Hashes: full.Hashes}, index.Change{Op: index.OpRemove, Group: window.Group, Hashes: window.Hashes})
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/hashes, "ns/hash")
		})
	}
}
