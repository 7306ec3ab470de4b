package bench_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"testing"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

// BenchmarkHeap reports the live heap per block at one pod, per further pod with the block, after
// the removal of all pods but one (back), and of all (left).
func BenchmarkHeap(b *testing.B) {
	for _, shape := range []struct{ length, step int }{{promptLen, stepLen}, {promptLen, 1}, {20, 20}} {
		b.Run(fmt.Sprintf("chain=%d/step=%d", shape.length, shape.step), func(b *testing.B) {
			benchHeap(b, shape.length, shape.step)
		})
	}
}

func benchHeap(b *testing.B, length, step int) {
	const pods = 8
	c, n := chains{length}, chainsOf(length)
	blocks := float64(n * length)
	var empty, one, all, back, left float64
	b.ReportAllocs()
	for b.Loop() {
		ix := newMemory(b, pods)
		empty = liveHeap()
		fill(b, ix, c.store, 0, n, length, step)
		one = liveHeap()
		for pod := 1; pod < pods; pod++ {
			fill(b, ix, c.store, pod, n, length, step)
		}
		all = liveHeap()
		removePods(b, ix, 1, pods)
		ix.Settle()
		back = liveHeap()
		removePods(b, ix, 0, 1)
		left = liveHeap()
		runtime.KeepAlive(ix)
	}
	b.ReportMetric((one-empty)/blocks, "B/block")
	b.ReportMetric((all-one)/blocks/(pods-1), "B/further")
	b.ReportMetric((back-empty)/blocks, "back-B/block")
	b.ReportMetric((left-empty)/blocks, "left-B/block")
	b.ReportMetric(blocks, "blocks")
}

func removePods(b *testing.B, ix *bench.Memory, from, to int) {
	b.Helper()
	for pod := from; pod < to; pod++ {
		must(b, ix.RemovePod(pod))
	}
}

// BenchmarkChurn has chains of promptLen that some of 256 pods hold. It removes and adds blocks at
// all holders but one of each chain, until nine of ten blocks have other holders than the block
// before. It reports heap and cold scores before (uniform) and after. A score looks at all blocks,
// as one holder has them all.
func BenchmarkChurn(b *testing.B) {
	const pods, scores = 256, 2000
	c, n := chains{promptLen}, chainsOf(promptLen)
	for b.Loop() {
		ix := newMemory(b, pods)
		w := newChurn(ix, c, n, pods)
		cold := newCold(ix, c, n, pods)
		empty := liveHeap()
		w.fill(b)
		b.ReportMetric((liveHeap()-empty)/float64(w.memberships()), "uniform-B/membership")
		b.ReportMetric(cold.mean(scores), "uniform-ns/score")

		for rounds := 0; w.distinct() < 0.9; rounds++ {
			if rounds == 100 {
				b.Fatalf("%.2f of the blocks are distinct", w.distinct())
			}
			w.round(b)
		}
		b.ReportMetric((liveHeap()-empty)/float64(w.memberships()), "B/membership")
		b.ReportMetric(cold.mean(scores), "ns/score")
		b.ReportMetric(100*w.distinct(), "distinct-%")

		removePods(b, ix, 0, pods)
		cold.score() // a score completes the removals
		b.ReportMetric((liveHeap()-empty)/float64(n*promptLen), "left-B/block")
		b.ReportMetric(float64(n*promptLen), "blocks")
		if cold.err != nil {
			b.Fatal(cold.err)
		}
		runtime.KeepAlive(w)
	}
}

// churn has the blocks of each holder of each chain.
type churn struct {
	ix      *bench.Memory
	chains  chains
	random  *rand.Rand
	holders [][]holder
	store   bench.Store
	hashes  []index.Hash
}

type holder struct {
	pod  int
	held [promptLen / 64]uint64
}

func (h *holder) has(i int) bool { return h.held[i/64]>>(i%64)&1 == 1 }
func (h *holder) flip(i int)     { h.held[i/64] ^= 1 << (i % 64) }

func newChurn(ix *bench.Memory, c chains, n, pods int) *churn {
	w := &churn{ix: ix, chains: c, random: rand.New(rand.NewPCG(5, 6)), holders: make([][]holder, n)}
	for chain := range w.holders {
		for _, pod := range w.random.Perm(pods)[:4+w.random.IntN(9)] {
			w.holders[chain] = append(w.holders[chain], holder{pod: pod})
		}
	}
	return w
}

// fill stores all chains, holder by holder.
func (w *churn) fill(b *testing.B) {
	for turn := range 12 {
		for chain, of := range w.holders {
			if turn >= len(of) {
				continue
			}
			for from := 0; from < promptLen; from += stepLen {
				w.add(b, &of[turn], chain, from, from+stepLen)
			}
		}
	}
}

func (w *churn) add(b *testing.B, h *holder, chain, from, to int) {
	w.chains.store(&w.store, chain, from, to)
	must(b, w.ix.Store(h.pod, &w.store))
	for i := from; i < to; i++ {
		h.flip(i)
	}
}

// round visits each holder once, except the first of each chain.
func (w *churn) round(b *testing.B) {
	for _, chain := range w.random.Perm(len(w.holders)) {
		for i := range w.holders[chain][1:] {
			w.visit(b, &w.holders[chain][1+i], chain)
		}
	}
}

// visit removes random blocks of a holder, and stores half as many missing ones after blocks it
// has.
func (w *churn) visit(b *testing.B, h *holder, chain int) {
	const taken, given = 48, 24
	w.hashes = w.hashes[:0]
	for range taken {
		if i := w.random.IntN(promptLen); h.has(i) {
			h.flip(i)
			w.hashes = w.chains.hashes(w.hashes, chain, i, i+1)
		}
	}
	must(b, w.ix.Remove(h.pod, w.hashes))
	for n, i := 0, w.random.IntN(promptLen); n < given; n++ {
		for tries := 0; tries < promptLen && (h.has(i) || i > 0 && !h.has(i-1)); tries++ {
			i = (i + 7) % promptLen
		}
		if h.has(i) || i > 0 && !h.has(i-1) {
			return
		}
		w.add(b, h, chain, i, i+1)
	}
}

func (w *churn) memberships() (n int) {
	for _, of := range w.holders {
		for i := range of {
			for _, word := range of[i].held {
				n += bits.OnesCount64(word)
			}
		}
	}
	return n
}

// distinct is the share of blocks with other holders than the block before.
func (w *churn) distinct() float64 {
	differ := 0
	for _, of := range w.holders {
		for i := 1; i < promptLen; i++ {
			for k := range of {
				if of[k].has(i) != of[k].has(i-1) {
					differ++
					break
				}
			}
		}
	}
	return float64(differ) / float64(len(w.holders)*(promptLen-1))
}

// BenchmarkGC times forced collections, and reports the CPU time of marking, with and without the
// index.
func BenchmarkGC(b *testing.B) {
	const rounds = 5
	runtime.GC()
	start := markSeconds()
	for range rounds {
		runtime.GC()
	}
	empty := (markSeconds() - start) * 1e3 / rounds

	ix, _, n := filled(b, 1)
	runtime.GC()
	start = markSeconds()
	for b.Loop() {
		runtime.GC()
	}
	b.ReportMetric((markSeconds()-start)*1e3/float64(b.N), "mark-ms")
	b.ReportMetric(empty, "empty-mark-ms")
	b.ReportMetric(float64(n*promptLen), "blocks")
	runtime.KeepAlive(ix)
}

// markSeconds is the CPU time of marking so far, in all goroutines.
func markSeconds() (sum float64) {
	samples := []metrics.Sample{
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		sum += s.Value.Float64()
	}
	return sum
}
