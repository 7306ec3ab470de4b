package bench_test

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

var (
	blocks  = flag.Int("blocks", 200_000, "blocks in the index")
	agentic = flag.Int("agentic-requests", 300, "requests of the agentic trace that are replayed; 0: all")
	engines = flag.Int("engines", 8, "engines that a trace is replayed with")
	pool    = flag.Int("engine-blocks", 16384, "blocks of such an engine")
)

func newMemory(tb testing.TB, pods int) *bench.Memory {
	tb.Helper()
	m, err := bench.NewMemory(pods)
	must(tb, err)
	return m
}

// promptLen is the default length of chains: 8,192 tokens in blocks of 16.
const promptLen = 512

// stepLen is the default number of blocks in an event.
const stepLen = 64

// fill stores chains [0, n) at a pod, in steps. 32 chains take turns, like concurrent requests, and
// each pod has its own order of chains.
func fill(tb testing.TB, ix *bench.Memory, store func(s *bench.Store, chain, from, to int), pod, n, length, step int) {
	tb.Helper()
	const together = 32
	var s bench.Store
	for first := 0; first < n; first += together {
		for from := 0; from < length; from += step {
			for i := first; i < min(first+together, n); i++ {
				store(&s, (i*1_000_003+pod)%n, from, min(from+step, length))
				must(tb, ix.Store(pod, &s))
			}
		}
	}
}

// chainsOf returns the number of chains of this length for -blocks blocks.
func chainsOf(length int) int { return max(1, *blocks/length) }

// filled returns an index in which the pods hold the same chains of promptLen.
func filled(b *testing.B, pods int) (ix *bench.Memory, c chains, n int) {
	b.Helper()
	ix, c, n = newMemory(b, pods), chains{promptLen}, chainsOf(promptLen)
	for pod := range pods {
		fill(b, ix, c.store, pod, n, promptLen, stepLen)
	}
	return ix, c, n
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// cold scores random chains of an index, whose keys have just been computed like those of a prompt.
type cold struct {
	scorer *bench.Scorer
	chains chains
	n      int
	random *rand.Rand
	keys   []index.Key
	runs   []int32
	err    error // of the last score with one
}

func newCold(ix *bench.Memory, c chains, n, pods int) *cold {
	cold := &cold{scorer: ix.Scorer(upTo(pods)), chains: c, n: n, random: rand.New(rand.NewPCG(3, 4)),
		keys: make([]index.Key, 0, c.length), runs: make([]int32, pods)}
	cold.score()
	return cold
}

// score returns the time of the score alone.
func (c *cold) score() time.Duration {
	c.keys = c.chains.keys(c.keys[:0], c.random.IntN(c.n))
	start := time.Now()
	err := c.scorer.Score(c.keys, c.runs)
	took := time.Since(start)
	if err != nil {
		c.err = err
	}
	return took
}

// mean returns the mean time of n scores in ns.
func (c *cold) mean(n int) float64 {
	var sum time.Duration
	for range n {
		sum += c.score()
	}
	return float64(sum.Nanoseconds()) / float64(n)
}

func liveHeap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second one sweeps the garbage of the first
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func reportLatency(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	us := func(i int) float64 { return float64(took[i].Nanoseconds()) / 1e3 }
	b.ReportMetric(us(len(took)/2), "p50-us")
	b.ReportMetric(us(len(took)*99/100), "p99-us")
	b.ReportMetric(us(len(took)-1), "max-us")
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
