package index_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
)

var budgetBlocks = flag.Int("budget.blocks", 200_000, "blocks that the budget of a benchmark has room for; prompts are cold from some millions on")

// feed stores new chains of chainBlocks in four pods, stepBlocks at a time.
type feed struct {
	testing.TB
	inmemory.Memory
	sources []index.Source
	change  [1]index.Change
	step    int // the next one
	chains  atomic.Int64
	dropped uint64 // stores
}

const (
	chainBlocks = 512
	stepBlocks  = 64
)

func newFeed(tb testing.TB, bytes int64) *feed {
	m, err := inmemory.New(index.MemoryConfig{Bytes: bytes})
	must(tb, err)
	tb.Cleanup(func() { m.Close() })
	f := &feed{TB: tb, Memory: m}
	for _, pod := range []string{"a", "b", "c", "d"} {
		f.sources = append(f.sources, index.Source{Pod: pod, Model: "m"})
	}
	return f
}

// block returns the hash of a block of a chain. The block's tokens are derived from it.
func block(chain, i int) uint64 {
	x := (uint64(chain)*chainBlocks + uint64(i) + 1) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// store makes the next step and returns how long its Apply took.
func (f *feed) store() time.Duration {
	c := &f.change[0]
	chain, from := f.step/(chainBlocks/stepBlocks), f.step%(chainBlocks/stepBlocks)*stepBlocks
	*c = index.Change{Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16,
		Hashes: c.Hashes[:0], Locals: c.Locals[:0], HasParent: from > 0}
	if c.HasParent {
		c.Parent = index.Hash(block(chain, from-1))
	}
	for i := range stepBlocks {
		c.Hashes = append(c.Hashes, index.Hash(block(chain, from+i)))
		c.Locals = append(c.Locals, index.Local(block(chain, from+i)))
	}
	took := f.apply(chain)
	f.step++
	f.chains.Store(int64(f.step / (chainBlocks / stepBlocks)))
	return took
}

// remove removes a chain.
func (f *feed) remove(chain int) {
	c := &f.change[0]
	*c = index.Change{Op: index.OpRemove, Hashes: c.Hashes[:0], Locals: c.Locals}
	for i := range chainBlocks {
		c.Hashes = append(c.Hashes, index.Hash(block(chain, i)))
	}
	f.apply(chain)
}

func (f *feed) apply(chain int) time.Duration {
	start := time.Now()
	done, err := f.Apply(context.Background(), f.sources[chain%len(f.sources)], index.Cursor{}, f.change[:])
	if err != nil {
		f.Error(err)
	}
	f.dropped += done.Counts.Dropped
	return time.Since(start)
}

func (f *feed) fill(blocks int) *feed {
	for range blocks / stepBlocks {
		f.store()
	}
	return f
}

// atBudget runs a benchmark without a budget, and with one for about budgetBlocks.
func atBudget(b *testing.B, do func(b *testing.B, bytes int64)) {
	bytes := newFeed(b, 0).fill(*budgetBlocks).MemoryUsage().Total
	b.Run("budget=none", func(b *testing.B) { do(b, 0) })
	b.Run("budget=full", func(b *testing.B) { do(b, bytes) })
}

// BenchmarkBudgetStore stores 64 blocks of new chains an operation, from budgetBlocks on; without a
// budget from an empty index on.
func BenchmarkBudgetStore(b *testing.B) {
	atBudget(b, func(b *testing.B, bytes int64) {
		f := newFeed(b, bytes).fill(*budgetBlocks * 3 / 2)
		perBlock := bytesPerBlock(f)
		var each []time.Duration
		for b.Loop() {
			if bytes == 0 && f.step*stepBlocks >= *budgetBlocks {
				b.StopTimer()
				f.Close()
				f = newFeed(b, 0)
				b.StartTimer()
			}
			each = append(each, f.store())
		}
		if bytes > 0 {
			perBlock = bytesPerBlock(f)
		}
		b.ReportMetric(perBlock, "B/block")
		b.ReportMetric(float64(b.N)*stepBlocks/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		reportTimes(b, each)
	})
}

// BenchmarkBudgetRead scores 512 recently stored blocks, while a goroutine stores new chains as
// fast as possible. Without a budget it removes the oldest chain for each new one.
func BenchmarkBudgetRead(b *testing.B) {
	atBudget(b, func(b *testing.B, bytes int64) {
		f := newFeed(b, bytes).fill(*budgetBlocks)
		chains := *budgetBlocks / chainBlocks
		stop, stopped := make(chan struct{}), make(chan struct{})
		defer func() {
			close(stop)
			<-stopped
		}()
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				before := f.chains.Load()
				f.store()
				if now := f.chains.Load(); bytes == 0 && now > before && now > int64(chains) {
					f.remove(int(now) - chains - 1)
				}
			}
		}()
		var keys []index.Key
		q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return keys, nil }}
		var m index.Matches
		r := rand.New(rand.NewPCG(1, 2))
		var each []time.Duration
		for b.Loop() {
			chain := int(f.chains.Load()) - 1 - r.IntN(max(1, chains/4))
			var key index.Key
			keys = keys[:0]
			for i := range chainBlocks {
				key = index.Chain(key, index.Local(block(chain, i)))
				keys = append(keys, key)
			}
			start := time.Now()
			must(b, f.Match(context.Background(), &q, &m))
			each = append(each, time.Since(start))
			if (len(m.Rows) != 1 || m.Rows[0].Run != chainBlocks) && int(f.chains.Load())-chain < chains/2 { // the reader was not delayed
				b.Fatalf("chain %d: %+v", chain, m.Rows)
			}
		}
		reportTimes(b, each)
	})
}

func bytesPerBlock(f *feed) float64 {
	u := f.MemoryUsage()
	return float64(u.Total) / float64(max(1, u.Memberships))
}

func reportTimes(b *testing.B, each []time.Duration) {
	slices.Sort(each)
	us := func(i int) float64 { return float64(each[i].Nanoseconds()) / 1e3 }
	b.ReportMetric(us(len(each)/2), "p50-us")
	b.ReportMetric(us(len(each)*99/100), "p99-us")
	b.ReportMetric(us(len(each)-1), "max-us")
}
