package offload_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
)

var soak = flag.Duration("offload.soak", 0, "long form: how long TestSoak has a store at full load, 10m")

// TestSoak runs a store with segments at full load, in rounds. At the end of each, nothing is
// leased or in flight, and heap, files and goroutines have not grown since the second round.
func TestSoak(t *testing.T) {
	const (
		blocks  = 60
		workers = 6
		MiB     = 1 << 20
	)
	sp := space(4 << 10)
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: MiB, SegmentBytes: MiB / 8}
	segments := openSegments(t, cfg)
	events := newEventModel(t, 500)
	if err := segments.Report(&events.events); err != nil {
		t.Fatal(err)
	}
	s := opened(t, offload.Config{
		Space: sp, MemoryBytes: blocks * 4 << 10, SlabBytes: 16 * 4 << 10, Events: &events.events,
		Disk: offload.Disk{Backend: segments, Ingest: offload.All, MinMissing: 1},
	})
	var first, now struct {
		heap              int64
		files, goroutines int
	}
	rounds := 0
	for until := time.Now().Add(*soak); rounds < 4 || time.Now().Before(until) && !t.Failed(); rounds++ {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(rounds), uint64(worker)))
				for range 200 {
					anything(t, s, sp, r)
				}
			})
		}
		wg.Wait()
		events.read()
		for st := s.Stats(); st.Leased > 0 || st.Disk.InFlight > 0 || st.Disk.Reading > 0; st = s.Stats() {
			runtime.Gosched() // abandoned reads and prefetches
		}
		for rounds > 1 && runtime.NumGoroutine() > first.goroutines+workers {
			runtime.Gosched() // goroutines of abandoned reads
		}
		now.heap, now.goroutines, now.files = heap(), runtime.NumGoroutine(), 0
		if open, err := os.ReadDir("/proc/self/fd"); err == nil {
			now.files = len(open)
		}
		if rounds == 1 {
			first = now
		}
		if rounds > 1 && (now.heap > first.heap+MiB || now.files > first.files+8) {
			t.Errorf("round %d: %+v, and after the second %+v", rounds, now, first)
		}
		if st := segments.Stats(); st.Bytes > cfg.Bytes || st.Torn+st.Corrupt > 0 {
			t.Errorf("round %d: %+v", rounds, st)
		}
	}
	st, on := s.Stats(), segments.Stats()
	t.Logf("%d rounds of %d operations: after the second %+v, after the last %+v; %+v; %+v", rounds, workers*200, first, now, st, on)
	if st.Evicted < 100 || st.Disk.Hits < 100 || st.Disk.Written < 100 || on.Freed < 10 {
		t.Error("too little of this happened")
	}
	closed(t, s)
	if err := segments.Close(); err != nil {
		t.Error(err)
	}
	if v, err := offload.VerifySegments(cfg.Dir); err != nil || v.Corrupt+v.Absent > 0 {
		t.Errorf("%+v, %v", v, err)
	}
}
