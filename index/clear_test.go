package index

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkDropGeneration drops a generation of -snapshot.blocks blocks of a pod's disk, beside a
// reader and a writer of another pod at 100,000 blocks a second.
func BenchmarkDropGeneration(b *testing.B) {
	for _, bench := range []struct {
		name  string
		drops bool
	}{{"nothing", false}, {"drop", true}} {
		b.Run(bench.name, func(b *testing.B) {
			m := filled(b, *snapshotBlocks, 1)
			defer m.Close()
			src := Source{Pod: "aged", Model: "m"}
			apply := func(changes ...Change) {
				if _, err := m.Apply(context.Background(), src, Cursor{}, changes); err != nil {
					b.Fatal(err)
				}
			}
			r := rand.New(rand.NewPCG(8, 8))
			for range *snapshotBlocks / 512 {
				c := (&filler{r: r}).chain(512)
				apply(c, Change{Op: OpStore, Tier: TierDisk, Copies: CopiesSet, Hashes: c.Hashes})
			}
			age := Change{Op: OpAge, Tier: TierDisk}
			apply(Change{Op: OpClearTier}, age, age)
			ctx, cancel := context.WithCancel(context.Background())
			var wait sync.WaitGroup
			var applies, scores []time.Duration
			wait.Go(func() { applies, _ = writeSteadily(ctx, b, m) })
			wait.Go(func() { scores = readSteadily(ctx, b, m) })
			begin := time.Now()
			if bench.drops {
				apply(age)
			} else {
				time.Sleep(500 * time.Millisecond)
			}
			took := time.Since(begin)
			cancel()
			wait.Wait()
			if info, _ := m.DescribeSource(src); bench.drops && info.Blocks[TierDisk] != 0 {
				b.Errorf("held are %v", info.Blocks)
			}
			b.ReportMetric(float64(took.Microseconds())/1e3, "ms-drop")
			for name, all := range map[string][]time.Duration{"Apply": applies, "Match": scores} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "us-p99-"+name)
				b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1e3, "us-longest-"+name)
			}
		})
	}
}
