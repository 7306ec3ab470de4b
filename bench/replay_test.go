package bench_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

// eachRecording runs a test on the traces: one that it makes itself, and those of
// KVINDEX_TESTDATA.
func eachRecording(t *testing.T, do func(t *testing.T, r *bench.Recording, blocks int)) {
	t.Run("made", func(t *testing.T) {
		const blocks = 256
		do(t, bench.Record(madeTrace(600), 3, blocks, 1), blocks)
	})
	for _, tr := range []struct {
		name             string
		requests, blocks int
	}{{"conversation_512", 600, 1024}, {"synthetic_512", 600, 1024}, {"agentic_64", 200, 8192}} {
		t.Run(tr.name, func(t *testing.T) {
			do(t, bench.Record(load(t, tr.name, tr.requests), 4, tr.blocks, 1), tr.blocks)
		})
	}
}

// load reads a recorded trace, or skips.
func load(tb testing.TB, name string, limit int) *bench.Trace {
	tb.Helper()
	data := os.Getenv("KVINDEX_TESTDATA")
	if data == "" {
		tb.Skipf("KVINDEX_TESTDATA is unset: trace %s is not replayed", name)
	}
	trace, err := bench.Load(filepath.Join(data, "traces"), name, limit)
	if err != nil {
		tb.Fatal(err)
	}
	return trace
}

// madeTrace has conversations that begin with one system prompt and of which each
// turn goes on where the last one ended, several at a time.
func madeTrace(requests int) *bench.Trace {
	t := &bench.Trace{BlockTokens: 512}
	for i := range requests {
		conversation, turn := i%20+i/200*20, i/20%10
		q := bench.Request{At: int64(i) * 40, Input: (10 + 3*turn) * 512, Output: 700}
		for b := range 10 + 3*turn {
			name := uint64(b)
			if b >= 5 {
				name += uint64(conversation+1) * 1000
			}
			q.Blocks = append(q.Blocks, name)
		}
		t.Requests = append(t.Requests, q)
	}
	return t
}

// checkRecording checks a recording against what an engine can announce: it
// stores what it lacks behind what it holds, removes what it holds, never the
// block before one that stays, and has no more blocks than there are.
func checkRecording(t *testing.T, r *bench.Recording, blocks int) {
	t.Helper()
	held := make([]map[index.Hash]index.Hash, len(r.Pods)) // to the parent
	names := make([]map[index.Key]bool, len(r.Pods))
	keys := make(map[index.Hash]index.Key)
	for i := range held {
		held[i], names[i] = make(map[index.Hash]index.Hash), make(map[index.Key]bool)
	}
	for n, op := range r.Ops {
		switch of := held[op.Pod]; op.Kind {
		case bench.OpScore:
			for pod := range held {
				run := 0
				for run < len(op.Keys) && names[pod][op.Keys[run]] {
					run++
				}
				if int(op.Runs[pod]) != run {
					t.Fatalf("operation %d: pod %d has a run of %d, recorded as %d", n, pod, run, op.Runs[pod])
				}
			}
		case bench.OpStore:
			parent, key := op.Store.Parent, op.Store.Root
			if op.Store.HasParent {
				if _, ok := of[parent]; !ok {
					t.Fatalf("operation %d: stored behind an unknown block", n)
				}
				key = keys[parent]
			}
			for i, h := range op.Store.Hashes {
				if _, ok := of[h]; ok {
					t.Fatalf("operation %d: stored twice", n)
				}
				key = index.Chain(key, op.Store.Locals[i])
				of[h], keys[h], parent = parent, key, h
				names[op.Pod][key] = true
			}
		case bench.OpRemove:
			for _, h := range op.Hashes {
				if _, ok := of[h]; !ok {
					t.Fatalf("operation %d: removed what is not there", n)
				}
				delete(of, h)
				delete(names[op.Pod], keys[h])
			}
			for parent := range maps.Values(of) {
				if _, ok := of[parent]; !ok && parent != 0 {
					t.Fatalf("operation %d: removed in the middle of a chain", n)
				}
			}
		}
		if len(held[op.Pod]) > blocks {
			t.Fatalf("operation %d: %d blocks in an engine of %d", n, len(held[op.Pod]), blocks)
		}
	}
	left := 0
	for _, of := range held {
		left += len(of)
	}
	if r.Stored-r.Removed != left {
		t.Fatalf("%d stored, %d removed, %d left", r.Stored, r.Removed, left)
	}
}

func TestRecord(t *testing.T) {
	eachRecording(t, func(t *testing.T, r *bench.Recording, blocks int) {
		checkRecording(t, r, blocks)
		t.Logf("%d requests, %d operations; blocks: %d requested, %d hit, %d stored, %d removed",
			r.Requests, len(r.Ops), r.Requested, r.Hit, r.Stored, r.Removed)
		if r.Requests < 200 || r.Hit < r.Requested/50 || r.Removed < 1000 {
			t.Error("too few")
		}
	})
}

// TestReplay: each design answers as recorded, in order, and has the same in the
// end when all is done at once.
func TestReplay(t *testing.T) {
	eachRecording(t, func(t *testing.T, r *bench.Recording, blocks int) {
		forEach(t, func(t *testing.T, d design) {
			for _, parallel := range []bool{false, true} {
				ix := d.index(t, len(r.Pods), blocks*len(r.Pods))
				replay := r.Replay
				if parallel {
					replay = r.Cut(2).Replay
				}
				took, err := replay(ix)
				if err != nil {
					t.Fatalf("parallel %v: %v", parallel, err)
				}
				if len(took) < 200 {
					t.Errorf("%d scores", len(took))
				}
				checkEnd(t, r, ix)
			}
		})
	})
}

// checkEnd scores all prompts of a recording against what the pods hold after it.
func checkEnd(t *testing.T, r *bench.Recording, ix bench.Index) {
	t.Helper()
	held := make([]map[index.Hash]index.Key, len(r.Pods))
	all := make([]int, len(r.Pods))
	for i := range held {
		all[i] = i
		held[i] = make(map[index.Hash]index.Key)
	}
	for _, op := range r.Ops {
		key := op.Store.Root
		if op.Store.HasParent {
			key = held[op.Pod][op.Store.Parent]
		}
		for i, h := range op.Store.Hashes {
			key = index.Chain(key, op.Store.Locals[i])
			held[op.Pod][h] = key
		}
		for _, h := range op.Hashes {
			delete(held[op.Pod], h)
		}
	}
	keys := make([]map[index.Key]bool, len(r.Pods))
	for pod := range held {
		keys[pod] = make(map[index.Key]bool)
		for key := range maps.Values(held[pod]) {
			keys[pod][key] = true
		}
	}
	scorer, runs := ix.Scorer(all), make([]int32, len(all))
	for _, op := range r.Ops {
		if op.Kind != bench.OpScore {
			continue
		}
		if err := scorer.Score(op.Keys, runs); err != nil {
			t.Fatal(err)
		}
		for pod, got := range runs {
			run := 0
			for run < len(op.Keys) && keys[pod][op.Keys[run]] {
				run++
			}
			if int(got) != run {
				t.Fatalf("after all, pod %d has a run of %d, want %d", pod, got, run)
			}
		}
	}
}

// BenchmarkReplay replays traces in order on one goroutine, and cut for GOMAXPROCS
// writers and as many readers. An operation is a whole replay until its last call
// has returned, into an index that was empty.
func BenchmarkReplay(b *testing.B) {
	for _, tr := range []struct {
		name     string
		requests int
	}{{"conversation_512", 0}, {"synthetic_512", 0}, {"agentic_64", *agentic}} {
		b.Run("trace="+tr.name, func(b *testing.B) {
			r := bench.Record(load(b, tr.name, tr.requests), *engines, *pool, 1)
			b.Run("in-order", func(b *testing.B) { benchReplay(b, r, r.Replay) })
			n := runtime.GOMAXPROCS(0)
			b.Run(fmt.Sprintf("writers=%d/readers=%d", n, n), func(b *testing.B) { benchReplay(b, r, r.Cut(n).Replay) })
		})
	}
}

func benchReplay(b *testing.B, r *bench.Recording, replay func(bench.Index) ([]time.Duration, error)) {
	compare(b, func(b *testing.B, d design) {
		var took []time.Duration
		var heap float64
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			took = slices.Grow(took, r.Requests)
			before := liveHeap() + 8*float64(r.Requests) // for the latencies
			ix := d.index(b, len(r.Pods), len(r.Pods)**pool)
			b.StartTimer()
			t, err := replay(ix)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			heap = liveHeap() - before
			runtime.KeepAlive(ix)
			took = append(took, t...)
			b.StartTimer()
		}
		perSecond := float64(b.N) / b.Elapsed().Seconds()
		b.ReportMetric(float64(r.Blocks())*perSecond, "blocks/s")
		b.ReportMetric(float64(len(r.Ops))*perSecond, "ops/s")
		b.ReportMetric(float64(r.Requests)*perSecond, "requests/s")
		b.ReportMetric(heap/float64(r.Stored-r.Removed), "B/membership")
		b.ReportMetric(100*float64(r.Hit)/float64(r.Requested), "hit-%")
		reportLatency(b, took)
	})
}
