package index

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index/internal/mirroring"
)

// idleMirror does nothing.
type idleMirror struct{}

func (idleMirror) Holders(uint64, Source, *Layout, []mirrorHolder) {}
func (idleMirror) Gone(uint64)                                     {}
func (idleMirror) Held(uint32, mirroring.Run, uint32, uint32)      {}
func (idleMirror) Evicted(uint32)                                  {}

// BenchmarkMirror stores new chains of 512 blocks in an empty Memory, alternating with and without
// a mirror every few ms. Figures are of the quickest turns, the least disturbed; ratio is with a
// mirror to without.
func BenchmarkMirror(b *testing.B) {
	for _, c := range []struct {
		name                 string
		chains, step, copies int // a store has step blocks, on copies pods
	}{
		{"prefill", 24, 512, 1},
		{"decode", 8, 1, 1},
		{"prefill of 16 pods", 2, 512, 16},
		{"decode of 16 pods", 1, 1, 16},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			var changes [][]Change
			for range c.chains {
				root := Key(r.Uint64())
				var parent Hash
				for at := 0; at < 512; at += c.step {
					s := Change{Op: OpStore, Copies: CopiesExact, Variant: Variant{Unit: 16}, BlockSize: 16, Root: root, HasParent: at > 0, Parent: parent}
					for range c.step {
						s.Hashes, s.Locals = append(s.Hashes, Hash(r.Uint64())), append(s.Locals, Local(r.Uint64()))
					}
					parent = s.Hashes[c.step-1]
					changes = append(changes, []Change{s})
				}
			}
			var sources []Source
			for i := range 16 {
				sources = append(sources, Source{Pod: fmt.Sprint(i), Model: "m"})
			}
			run := func(mirror mirror) time.Duration {
				m, err := newMemory(MemoryConfig{Seed: [16]byte{1}})
				must(b, err)
				if mirror != nil {
					m.MirrorTo(mirror)
				}
				defer m.Close()
				runtime.GC()
				began := time.Now()
				for i := range changes {
					for n := range c.copies {
						src := sources[(i*c.step/512+n)%16]
						if _, err := m.Apply(context.Background(), src, Cursor{}, changes[i]); err != nil {
							b.Fatal(err)
						}
					}
				}
				return time.Since(began)
			}
			without, with := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			b.ReportAllocs()
			for b.Loop() {
				without = min(without, run(nil))
				with = min(with, run(idleMirror{}))
			}
			n := float64(len(changes) * c.copies)
			b.ReportMetric(float64(without)/n, "ns/store")
			b.ReportMetric(float64(with)/n, "ns/store-mirrored")
			b.ReportMetric(float64(with)/float64(without), "ratio")
		})
	}
}
