package index

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

var snapshotBlocks = flag.Int("snapshot.blocks", 1<<20, "blocks of BenchmarkSnapshot and BenchmarkRestore")

const snapshotPods = 16

// filled returns an index of chains of 512 blocks, each of as many pods.
func filled(tb testing.TB, blocks, holders int) *Memory {
	m, err := NewMemory(MemoryConfig{Bytes: 8 << 30, Seed: [16]byte{1}})
	if err != nil {
		tb.Fatal(err)
	}
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
				if err != nil {
					b.Fatal(err)
				}
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
			was := m.Usage().Total
			sections := sectionsOf(b, m)
			m.Close()
			runtime.GC()
			var now int64
			for b.Loop() {
				m := restored(b, MemoryConfig{Bytes: 8 << 30, Seed: [16]byte{1}}, sections)
				now = m.Usage().Total
				m.Close()
			}
			reportBlocks(b)
			b.ReportMetric(100*float64(now)/float64(was), "%heap")
		})
	}
}

// BenchmarkSnapshotBeside has writers at 100,000 blocks a second, and tells the longest
// Apply of 100 blocks.
func BenchmarkSnapshotBeside(b *testing.B) {
	m := filled(b, *snapshotBlocks, 1)
	defer m.Close()
	ctx, cancel := context.WithCancel(context.Background())
	longest := make(chan time.Duration)
	go func() {
		var most time.Duration
		r := rand.New(rand.NewPCG(3, 4))
		var old []Change
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
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
			if _, err := m.Apply(context.Background(), Source{Pod: "0", Model: "m"}, Cursor{}, changes); err != nil {
				panic(err)
			}
			most = max(most, time.Since(begin))
		}
		longest <- most
	}()
	for b.Loop() {
		err := m.Snapshot(ctx, func(s []byte) error { _, err := io.Discard.Write(s); return err },
			func(_ string, last func() error) error { return last() })
		if err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	reportBlocks(b)
	b.ReportMetric(float64((<-longest).Microseconds()), "us-longest")
}
