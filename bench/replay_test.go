package bench_test

import (
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

// eachRecording runs a test on a generated trace and on those of KVINDEX_TESTDATA.
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

// load reads a recorded trace, or skips the test.
func load(tb testing.TB, name string, limit int) *bench.Trace {
	tb.Helper()
	data := os.Getenv("KVINDEX_TESTDATA")
	if data == "" {
		tb.Skipf("KVINDEX_TESTDATA is unset: trace %s is not replayed", name)
	}
	trace, err := bench.Load(filepath.Join(data, "traces"), name, limit)
	must(tb, err)
	return trace
}

// madeTrace has concurrent conversations with the same system prompt. Each turn continues the last
// one.
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

// checkRecording checks that an engine can announce a recording: it stores missing blocks after
// blocks it has, removes blocks it has but never the parent of one that stays, and keeps its number
// of blocks.
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

// TestReplay: the index returns the recorded answers.
func TestReplay(t *testing.T) {
	eachRecording(t, func(t *testing.T, r *bench.Recording, _ int) {
		took, err := r.Replay(newMemory(t, len(r.Pods)))
		must(t, err)
		if len(took) < 200 {
			t.Errorf("%d scores", len(took))
		}
	})
}

// BenchmarkReplay replays traces in order on one goroutine. An operation is a replay into an empty
// index, until its last call has returned.
func BenchmarkReplay(b *testing.B) {
	for _, tr := range []struct {
		name     string
		requests int
	}{{"conversation_512", 0}, {"synthetic_512", 0}, {"agentic_64", *agentic}} {
		b.Run("trace="+tr.name, func(b *testing.B) {
			benchReplay(b, bench.Record(load(b, tr.name, tr.requests), *engines, *pool, 1))
		})
	}
}

func benchReplay(b *testing.B, r *bench.Recording) {
	var took []time.Duration
	var heap float64
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		took = slices.Grow(took, r.Requests)
		before := liveHeap() + 8*float64(r.Requests) // of the latencies
		ix := newMemory(b, len(r.Pods))
		b.StartTimer()
		t, err := r.Replay(ix)
		b.StopTimer()
		must(b, err)
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
}
