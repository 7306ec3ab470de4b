package route_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// benchPods returns pods, and a Tracker that has something in flight at each.
func benchPods(n int) (*route.Tracker, []route.Pod) {
	t, pods := new(route.Tracker), make([]route.Pod, n)
	for i := range pods {
		pods[i].Name = fmt.Sprintf("vllm-decode-7f9c6d5b8-%05d", i)
		t.Sent(pods[i].Name, 0, 1000, 500)
	}
	return t, pods
}

// BenchmarkSentDone measures the life of a flight. Run it with -cpu 1,2 to see the gain from a second
// core.
func BenchmarkSentDone(b *testing.B) {
	for _, n := range []int{1, 256} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			t, pods := benchPods(n)
			var start atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for i := int(start.Add(97)); pb.Next(); i++ {
					t.Sent(pods[i%n].Name, 0, 1000, 500).Done()
				}
			})
		})
	}
}

// BenchmarkFill sets the load of all pods, alone and while another goroutine sends as fast as
// it can.
func BenchmarkFill(b *testing.B) {
	for _, others := range []int{0, 1} {
		b.Run(fmt.Sprintf("pods=256/senders=%d", others), func(b *testing.B) {
			b.ReportAllocs()
			t, pods := benchPods(256)
			names := make([]string, len(pods))
			for i := range names {
				names[i] = pods[i].Name
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range others {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
							t.Sent(names[i%len(names)], 0, 1000, 500).Done()
						}
					}
				})
			}
			for b.Loop() {
				t.Fill(pods)
			}
			close(stop)
			wg.Wait()
		})
	}
}

// BenchmarkNotes encodes and merges the notes of 256 pods.
func BenchmarkNotes(b *testing.B) {
	b.Run("Changes", func(b *testing.B) {
		b.ReportAllocs()
		t, pods := benchPods(256)
		for b.Loop() {
			b.StopTimer()
			for i := range pods {
				t.Sent(pods[i].Name, 0, 1000, 500).Done()
			}
			b.StartTimer()
			t.Changes()
		}
	})
	b.Run("State", func(b *testing.B) {
		b.ReportAllocs()
		t, _ := benchPods(256)
		for b.Loop() {
			t.State()
		}
	})
	b.Run("Merge", func(b *testing.B) {
		b.ReportAllocs()
		from, _ := benchPods(256)
		t := new(route.Tracker)
		for b.Loop() {
			b.StopTimer()
			n := from.State()
			b.StartTimer()
			if err := t.Merge("other", n); err != nil {
				b.Fatal(err)
			}
		}
	})
}
