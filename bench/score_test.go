package bench_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

// BenchmarkScoreHot scores one chain repeatedly. All pods hold it.
func BenchmarkScoreHot(b *testing.B) {
	for _, shape := range []struct{ length, pods int }{{promptLen, 1}, {promptLen, 16}, {promptLen, 256}, {14_000, 16}} {
		b.Run(fmt.Sprintf("blocks=%d/holders=%d", shape.length, shape.pods), func(b *testing.B) {
			c := chains{shape.length}
			ix := newMemory(b, shape.pods)
			for pod := range shape.pods {
				fill(b, ix, c.store, pod, 1, shape.length, stepLen)
			}
			keys, runs, scorer := c.keys(nil, 0), make([]int32, shape.pods), ix.Scorer(upTo(shape.pods))
			warm(b, scorer, keys, runs)
			b.ReportAllocs()
			for b.Loop() {
				if err := scorer.Score(keys, runs); err != nil || runs[0] != int32(shape.length) {
					b.Fatal(runs[0], err)
				}
			}
		})
	}
}

// warm makes a first score, which resolves the candidates.
func warm(b *testing.B, s *bench.Scorer, keys []index.Key, runs []int32) {
	b.Helper()
	must(b, s.Score(keys, runs))
}

// BenchmarkScoreCold scores a random chain each time. Its ns/op is the time of the scores alone.
func BenchmarkScoreCold(b *testing.B) {
	for _, pods := range []int{1, 16} {
		b.Run(fmt.Sprintf("holders=%d", pods), func(b *testing.B) {
			ix, c, n := filled(b, pods)
			cold := newCold(ix, c, n, pods)
			var sum time.Duration
			b.ReportAllocs()
			for b.Loop() {
				sum += cold.score()
				if cold.runs[0] != promptLen {
					b.Fatal(cold.runs[0], cold.err)
				}
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(n*promptLen), "blocks")
		})
	}
}

// BenchmarkScoreMiss scores prompts whose first block no pod holds.
func BenchmarkScoreMiss(b *testing.B) {
	ix, c, _ := filled(b, 1)
	keys, runs, scorer := c.keys(nil, 0), make([]int32, 1), ix.Scorer([]int{0})
	r := rand.New(rand.NewPCG(7, 8))
	warm(b, scorer, keys, runs)
	b.ReportAllocs()
	for b.Loop() {
		keys[0] = index.Key(r.Uint64())
		if err := scorer.Score(keys, runs); err != nil || runs[0] != 0 {
			b.Fatal(runs[0], err)
		}
	}
}

// BenchmarkInsert stores -blocks blocks of new chains in an empty index each time.
func BenchmarkInsert(b *testing.B) {
	for _, step := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("step=%d", step), func(b *testing.B) {
			c, n := chains{promptLen}, chainsOf(promptLen)
			m := newMade(c, n)
			b.ReportAllocs()
			for b.Loop() {
				fill(b, newMemory(b, 1), m.store, 0, n, promptLen, step)
			}
			blocks := float64(n * promptLen)
			b.ReportMetric(float64(b.N)*blocks/b.Elapsed().Seconds(), "blocks/s")
			b.ReportMetric(b.Elapsed().Seconds()*1e9/blocks/float64(b.N), "ns/block")
			b.ReportMetric(blocks, "blocks")
		})
	}
}

// chainNames has the precomputed hashes and locals of chains, so that their computation is not
// timed.
type chainNames struct {
	chains chains
	hashes []index.Hash
	locals []index.Local
}

func newMade(c chains, n int) *chainNames {
	m := &chainNames{chains: c}
	var s bench.Store
	for chain := range n {
		c.store(&s, chain, 0, c.length)
		m.hashes, m.locals = append(m.hashes, s.Hashes...), append(m.locals, s.Locals...)
	}
	return m
}

func (m *chainNames) store(s *bench.Store, chain, from, to int) {
	m.chains.store(s, chain, from, from) // the parent or the root
	at := chain * m.chains.length
	s.Hashes, s.Locals = m.hashes[at+from:at+to], m.locals[at+from:at+to]
}

// writer stores new chains and removes the oldest, ends first. It has at most windowChains chains
// and a part of one.
type writer struct {
	ix     *bench.Memory
	pods   int
	chains chains
	first  int // the writer's first chain
	steps  int
	store  bench.Store
	hashes []index.Hash
}

const (
	windowChains = 64
	chainSteps   = promptLen / stepLen
)

// step stores stepLen blocks and, when the window is full, removes as many.
func (w *writer) step() error {
	chain, at := w.steps/chainSteps, w.steps%chainSteps
	w.steps++
	w.chains.store(&w.store, w.first+chain, at*stepLen, (at+1)*stepLen)
	if err := w.ix.Store(chain%w.pods, &w.store); err != nil {
		return err
	}
	if chain -= windowChains; chain < 0 {
		return nil
	}
	from := promptLen - (at+1)*stepLen
	w.hashes = w.chains.hashes(w.hashes[:0], w.first+chain, from, from+stepLen)
	return w.ix.Remove(chain%w.pods, w.hashes)
}

// BenchmarkReadWhileWriting reports the latency of cold scores, alone and while another goroutine
// stores and removes blocks of the same pods as fast as possible. An operation is 2,000 scores.
func BenchmarkReadWhileWriting(b *testing.B) {
	for _, writers := range []int{0, 1} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			benchReadWhileWriting(b, writers)
		})
	}
}

func benchReadWhileWriting(b *testing.B, writers int) {
	const pods, scores = 4, 2000
	ix, c, n := filled(b, pods)
	w := &writer{ix: ix, pods: pods, chains: c, first: n}
	var stop atomic.Bool
	done := make(chan error, 1)
	for range writers {
		go func() {
			for !stop.Load() {
				if err := w.step(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	cold := newCold(ix, c, n, pods)
	var took []time.Duration
	for b.Loop() {
		for range scores {
			took = append(took, cold.score())
			if cold.runs[0] != promptLen {
				b.Fatal(cold.runs[0], cold.err)
			}
		}
	}
	stop.Store(true)
	for range writers {
		must(b, <-done)
	}
	reportLatency(b, took)
	b.ReportMetric(float64(w.steps*stepLen)/b.Elapsed().Seconds(), "written-blocks/s")
}

// BenchmarkRemovePod removes a pod with -blocks blocks that three others hold, too. Its ns/op is
// the time of the call. The latency is that of concurrent cold scores. Deferred work shows when the
// pod stores all blocks again: compare refill with fill.
func BenchmarkRemovePod(b *testing.B) {
	const pods = 4
	c, n := chains{promptLen}, chainsOf(promptLen)
	ix := newMemory(b, pods)
	timedFill := func(pod int) time.Duration {
		start := time.Now()
		fill(b, ix, c.store, pod, n, promptLen, stepLen)
		return time.Since(start)
	}
	var filled, removed, refilled time.Duration
	for pod := range pods {
		filled = timedFill(pod)
	}
	var took []time.Duration
	for b.Loop() {
		r := startReader(newCold(ix, c, n, pods))
		start := time.Now()
		must(b, ix.RemovePod(0))
		removed += time.Since(start)
		t, err := r.stop()
		must(b, err)
		took = append(took, t...)
		refilled += timedFill(0)
	}
	blocks := float64(n * promptLen)
	b.ReportMetric(float64(removed.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(filled.Nanoseconds())/blocks, "fill-ns/block")
	b.ReportMetric(float64(refilled.Nanoseconds())/blocks/float64(b.N), "refill-ns/block")
	b.ReportMetric(blocks, "blocks")
	reportLatency(b, took)
}

// reader scores until stop.
type reader struct {
	cold    *cold
	stopped atomic.Bool
	took    []time.Duration
	done    chan struct{}
}

// startReader returns after the first score.
func startReader(c *cold) *reader {
	r := &reader{cold: c, done: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(r.done)
		c.score()
		close(ready)
		for {
			r.took = append(r.took, c.score())
			if r.stopped.Load() {
				return
			}
		}
	}()
	<-ready
	return r
}

// stop returns the times of the scores, with the last one.
func (r *reader) stop() ([]time.Duration, error) {
	r.stopped.Store(true)
	<-r.done
	return r.took, r.cold.err
}
