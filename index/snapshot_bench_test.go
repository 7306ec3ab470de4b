package index

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

var snapshotBlocks = flag.Int("snapshot.blocks", 1<<20, "blocks of BenchmarkSnapshot and BenchmarkRestore")

const snapshotPods = 16

// filled returns an index of chains of 512 blocks, each on holders pods.
func filled(tb testing.TB, blocks, holders int) *memory {
	m, err := newMemory(MemoryConfig{Bytes: 8 << 30, Seed: [16]byte{1}})
	must(tb, err)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range blocks / holders / 512 {
		c := Change{Op: OpStore, Copies: CopiesExact, Root: Key(1), Variant: Variant{Unit: 16}, BlockSize: 16}
		for range 512 {
			c.Hashes, c.Locals = append(c.Hashes, Hash(r.Uint64())), append(c.Locals, Local(r.Uint64()))
		}
		for i := range holders {
			src := Source{Pod: fmt.Sprint((n + i) % snapshotPods), Model: "m"}
			if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return m
}

func BenchmarkSnapshot(b *testing.B) {
	for _, holders := range []int{1, 8} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			m := filled(b, *snapshotBlocks, holders)
			defer m.Close()
			bytes := 0
			for b.Loop() {
				bytes = 0
				err := m.Snapshot(context.Background(), func(section []byte) error {
					bytes += len(section)
					return nil
				}, func(_ string, last func() error) error { return last() })
				must(b, err)
			}
			reportBlocks(b)
			b.ReportMetric(float64(bytes)/float64(*snapshotBlocks), "B/block")
		})
	}
}

func reportBlocks(b *testing.B) {
	b.ReportMetric(float64(*snapshotBlocks)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

func BenchmarkRestore(b *testing.B) {
	for _, holders := range []int{1, 8} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			m := filled(b, *snapshotBlocks, holders)
			was := m.MemoryUsage().Total
			sections := sectionsOf(b, m)
			m.Close()
			runtime.GC()
			var now int64
			for b.Loop() {
				m := restored(b, MemoryConfig{Bytes: 8 << 30, Seed: [16]byte{1}}, sections)
				now = m.MemoryUsage().Total
				m.Close()
			}
			reportBlocks(b)
			b.ReportMetric(100*float64(now)/float64(was), "%heap")
		})
	}
}

// BenchmarkSnapshotBeside runs a writer at 100,000 blocks a second and a reader of cold chains of
// 512 blocks, with consecutive snapshots and without. It reports the longest Apply, the slowest of
// 100 scores, and the growth of the index.
func BenchmarkSnapshotBeside(b *testing.B) {
	for _, bench := range []struct {
		name string
		do   func(*testing.B, *memory)
	}{
		{"nothing", func(*testing.B, *memory) { time.Sleep(200 * time.Millisecond) }},
		{"snapshots", func(b *testing.B, m *memory) {
			err := m.Snapshot(context.Background(), func([]byte) error { return nil },
				func(_ string, last func() error) error { return last() })
			must(b, err)
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			m := filled(b, *snapshotBlocks, 1)
			defer m.Close()
			was := m.MemoryUsage().Total
			runtime.GC()
			ctx, cancel := context.WithCancel(context.Background())
			var wait sync.WaitGroup
			var applies, scores []time.Duration
			var most int64
			wait.Go(func() { applies, most = writeSteadily(ctx, b, m) })
			wait.Go(func() { scores = readSteadily(ctx, b, m) })
			for b.Loop() {
				bench.do(b, m)
			}
			cancel()
			wait.Wait()
			slices.Sort(applies)
			slices.Sort(scores)
			b.ReportMetric(float64(applies[len(applies)*99/100].Nanoseconds())/1e3, "us-p99-Apply")
			b.ReportMetric(float64(applies[len(applies)-1].Nanoseconds())/1e3, "us-longest-Apply")
			b.ReportMetric(float64(scores[len(scores)*99/100].Nanoseconds())/1e3, "us-p99-score")
			b.ReportMetric(100*float64(most-was)/float64(was), "%more")
			b.ReportMetric(float64(most-was)/(1<<20), "MiB-more")
		})
	}
}

// writeSteadily stores 100 blocks each millisecond, and removes them later.
func writeSteadily(ctx context.Context, b *testing.B, m *memory) (took []time.Duration, most int64) {
	r := rand.New(rand.NewPCG(3, 4))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for old := []Change(nil); ctx.Err() == nil; <-tick.C {
		c := Change{Op: OpStore, Copies: CopiesExact, Root: Key(1), Variant: Variant{Unit: 16}, BlockSize: 16}
		for range 100 {
			c.Hashes, c.Locals = append(c.Hashes, Hash(r.Uint64())), append(c.Locals, Local(r.Uint64()))
		}
		changes := []Change{c}
		if old = append(old, Change{Op: OpRemove, Hashes: c.Hashes}); len(old) > 100 {
			changes = append(changes, old[0])
			old = old[1:]
		}
		begin := time.Now()
		if _, err := m.Apply(ctx, Source{Pod: "0", Model: "m"}, Cursor{}, changes); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
		took = append(took, time.Since(begin))
		most = max(most, m.ground.mem.Load())
	}
	return took, most
}

// readSteadily matches a chain each millisecond.
func readSteadily(ctx context.Context, b *testing.B, m *memory) (took []time.Duration) {
	r := rand.New(rand.NewPCG(1, 2)) // the seed of filled
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	q := Query{Candidates: NewCandidates("m", nil)}
	var got Matches
	for n := 0; ctx.Err() == nil; <-tick.C {
		if n++; n > *snapshotBlocks/512 {
			n, r = 1, rand.New(rand.NewPCG(1, 2))
		}
		keys := make([]Key, 0, 512)
		for k := Key(1); len(keys) < 512; {
			r.Uint64() // skips the hash
			k = Chain(k, Local(r.Uint64()))
			keys = append(keys, k)
		}
		q.Keys = func(Variant) ([]Key, error) { return keys, nil }
		begin := time.Now()
		if err := m.Match(ctx, &q, &got); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
		took = append(took, time.Since(begin))
		if len(got.Rows) != 1 || got.Rows[0].Run != 512 {
			b.Error("a chain is not there")
			return took
		}
	}
	return took
}

// BenchmarkSnapshotFile writes a snapshot to a file, and a plain file of the same bytes.
func BenchmarkSnapshotFile(b *testing.B) {
	m := filled(b, *snapshotBlocks, 1)
	defer m.Close()
	sections := sectionsOf(b, m)
	for _, bench := range []struct {
		name string
		to   func(write func([]byte) error) error
	}{
		{"snapshot", func(write func([]byte) error) error {
			return m.Snapshot(context.Background(), write, func(_ string, last func() error) error { return last() })
		}},
		{"bytes", func(write func([]byte) error) error {
			for _, s := range sections {
				if err := write(s); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				f, err := os.CreateTemp(b.TempDir(), "")
				if err == nil {
					err = bench.to(func(section []byte) error { _, err := f.Write(section); return err })
				}
				if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
					b.Fatal(err)
				}
			}
			reportBlocks(b)
		})
	}
}
