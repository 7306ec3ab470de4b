package index_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
)

// BenchmarkMasked stores 64 unknown blocks of a window group behind those of a full group:
// consecutive blocks (dense), and two of every four (masked), of which the full group names one. If
// the full group's store comes in a later Apply (late), the cost of a hash is that of both stores
// minus that of the full group's store when it comes first. Medians, because stores are short.
func BenchmarkMasked(b *testing.B) {
	const hashes = 64
	for _, kind := range []struct {
		name   string
		blocks int
		kept   func(block int) bool
		late   bool
	}{
		{"dense", hashes, func(int) bool { return true }, false},
		{"masked", 2 * hashes, func(block int) bool { return block%4 > 1 }, false},
		{"late", 2 * hashes, func(block int) bool { return block%4 > 1 }, true},
	} {
		b.Run(kind.name, func(b *testing.B) {
			ix, err := inmemory.New(index.MemoryConfig{})
			must(b, err)
			defer ix.Close()
			apply := func(c ...index.Change) time.Duration {
				began := time.Now()
				if _, err := ix.Apply(context.Background(), index.Source{Pod: "a", Model: "m"}, index.Cursor{}, c); err != nil {
					b.Fatal(err)
				}
				return time.Since(began)
			}
			base := index.Change{Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16}
			base.Locals = make([]index.Local, kind.blocks)
			hash := index.Hash(0)
			fresh := func() (full, window index.Change) {
				base.Root++
				full, window = base, base
				full.BlockSize, window.Group = 64, index.Group{ID: 1, Kind: index.GroupWindow, Window: 32}
				for block := range kind.blocks {
					hash++
					if block%4 == 3 {
						full.Hashes = append(full.Hashes, hash)
					}
					if kind.kept(block) {
						window.Hashes = append(window.Hashes, hash)
					}
				}
				return full, window
			}
			remove := func(full, window index.Change) {
				apply(index.Change{Op: index.OpRemove, Hashes: full.Hashes}, index.Change{Op: index.OpRemove, Group: window.Group, Hashes: window.Hashes})
			}
			var took []time.Duration
			for b.Loop() {
				full, window := fresh()
				first, second := apply(full), apply(window)
				remove(full, window)
				if !kind.late {
					took = append(took, second)
					continue
				}
				full, window = fresh()
				took = append(took, apply(window)+apply(full)-first)
				remove(full, window)
			}
			b.ReportMetric(0, "ns/op")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/hashes, "ns/hash")
		})
	}
}

// TestMaskedLargestWindow: in a group with the largest window, only a block of another group ends
// a run, also where an int has 32 bits.
func TestMaskedLargestWindow(t *testing.T) {
	ix, err := inmemory.New(index.MemoryConfig{})
	must(t, err)
	defer ix.Close()
	dense := index.Change{
		Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16,
		Group:  index.Group{ID: 1, Kind: index.GroupWindow, Window: math.MaxInt32},
		Locals: []index.Local{1, 2, 3, 4}, Hashes: []index.Hash{1, 2, 3, 4},
	}
	masked := dense
	masked.Hashes = []index.Hash{9, 3}
	_, err = ix.Apply(context.Background(), index.Source{Pod: "a", Model: "m"}, index.Cursor{}, []index.Change{dense, masked})
	must(t, err)
	if info := ix.Describe(nil)[0]; info.Unplaced != 1 {
		t.Errorf("%d hashes have no place, want 1", info.Unplaced)
	}
}
