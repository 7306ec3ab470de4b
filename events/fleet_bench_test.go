package events_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

var fleetPods = flag.Int("fleet.pods", 10_000, "unreachable pods of BenchmarkFleetUnreachable")
var fleetIdle = flag.Duration("fleet.idle", 10*time.Second, "how long BenchmarkFleetStream leaves 1,000 pods alone")

// dueSink is a sink that keeps only the next number of each stream.
type dueSink struct{ due sync.Map }

func (c *dueSink) IngestMessage(m events.Message) (events.Receipt, error) {
	if next, heard := c.due.Load(m.Pod); heard && m.Seq < next.(uint64) {
		return events.Receipt{Duplicate: true}, nil
	}
	c.due.Store(m.Pod, m.Seq+1)
	return events.Receipt{Applied: true}, nil
}

func (c *dueSink) StreamNext(pod, _, _ string) events.Position {
	next, heard := c.due.Load(pod)
	if !heard {
		return events.Position{}
	}
	return events.Position{Next: next.(uint64)}
}

func (c *dueSink) StreamNote(pod, _, _ string, n events.Note) error {
	if n == events.NoteRestarted || n == events.NoteRewound {
		return c.RemovePod(pod)
	}
	return nil
}

func (c *dueSink) RemoveStream(pod, _, _ string) error { return c.RemovePod(pod) }

func (c *dueSink) RemovePod(pod string) error {
	c.due.Delete(pod)
	return nil
}

// tarpit accepts connections at a port of all loopback addresses and sends nothing.
func tarpit(tb testing.TB) (port int) {
	return portOf(tb, listener(tb, "0.0.0.0:0", func(nc net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, nc); nc.Close() }()
	}))
}

func BenchmarkFleetUnreachable(b *testing.B) {
	for _, kind := range []string{"refused", "mute"} {
		b.Run(kind, func(b *testing.B) {
			port := 1
			if kind == "mute" {
				port = tarpit(b)
			}
			live := make(chan string, 1000)
			f, err := events.NewFleet(&dueSink{}, events.FleetConfig{OnChange: func(c events.FleetChange) {
				if c.Kind == "link changed" && c.To == "live" {
					live <- c.Pod.ID
				}
			}})
			must(b, err)
			var pods []events.Pod
			for i := range *fleetPods {
				pods = append(pods, events.Pod{ID: fmt.Sprint("dead-", i), Model: "m", Host: fmt.Sprintf("127.1.%d.%d", i/250, i%250+1), Port: port})
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var running sync.WaitGroup
			running.Go(func() { f.Run(ctx) })
			f.Set("dead", pods[:len(pods)/2])
			i := 0
			var took []time.Duration
			for b.Loop() {
				p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{})
				must(b, err)
				if i == 0 {
					f.Set("dead", pods)
				}
				i++
				begin := time.Now()
				f.Put("live", events.Pod{ID: fmt.Sprint("live-", i), Model: "m", Host: "127.0.0.1", Port: portOf(b, p.Endpoint())})
				<-live
				took = append(took, time.Since(begin))
				f.Remove("live", fmt.Sprint("live-", i))
				p.Close()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "ms-median")
			b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "ms-longest")
			cancel()
			running.Wait()
		})
	}
}

// benchFleet is a running fleet of pods at different addresses, all served by one engine with
// a replay socket.
type benchFleet struct {
	f       *events.Fleet
	pods    []events.Pod
	live    chan string // pods that have become live
	removed chan string
	stop    func()
}

func join(tb testing.TB, n int) *benchFleet {
	tb.Helper()
	p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: "tcp://*:0", Replay: "tcp://*:0", MaxConns: 2 * n})
	must(tb, err)
	for range 100 {
		p.Publish([]byte("x"))
	}
	j := &benchFleet{live: make(chan string, n), removed: make(chan string, n)}
	live := map[string]bool{} // a link may become live again
	j.f, err = events.NewFleet(&dueSink{}, events.FleetConfig{OnChange: func(c events.FleetChange) {
		switch {
		case c.To == "live" && !live[c.Pod.ID]:
			live[c.Pod.ID] = true
			j.live <- c.Pod.ID
		case c.Kind == "replaced":
			delete(live, c.Pod.ID)
		case c.Kind == "removed":
			delete(live, c.Pod.ID)
			j.removed <- c.Pod.ID
		}
	}})
	must(tb, err)
	port, replay := portOf(tb, p.Endpoint()), portOf(tb, p.ReplayEndpoint())
	for i := range n {
		j.pods = append(j.pods, events.Pod{
			ID: fmt.Sprintf("namespace/pod-%05d", i), Model: "m", Host: fmt.Sprintf("127.2.%d.%d", i/250, i%250+1),
			Port: port, ReplayPort: replay, Labels: map[string]string{"zone": "a", "node": fmt.Sprint(i)},
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { j.f.Run(ctx) })
	j.stop = func() {
		cancel()
		running.Wait()
		p.Close()
	}
	return j
}

func (j *benchFleet) set(tb testing.TB, pods []events.Pod) {
	tb.Helper()
	must(tb, j.f.Set("bench", pods))
}

func portOf(tb testing.TB, endpoint string) int {
	_, text, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	port, err := strconv.Atoi(text)
	must(tb, err)
	return port
}

// BenchmarkFleetSet is the cost of a list of 1,000 pods.
func BenchmarkFleetSet(b *testing.B) {
	j := join(b, 1000)
	defer j.stop()
	j.set(b, j.pods)
	for range j.pods {
		<-j.live
	}
	copied := func() []events.Pod { // new slices and maps each time, as from a source
		pods := slices.Clone(j.pods)
		for i := range pods {
			pods[i].ID, pods[i].Host, pods[i].Labels = strings.Clone(pods[i].ID), strings.Clone(pods[i].Host), maps.Clone(pods[i].Labels)
		}
		return pods
	}
	b.Run("unchanged", func(b *testing.B) {
		b.ReportAllocs()
		pods := copied()
		for b.Loop() {
			j.set(b, pods)
		}
	})
	b.Run("one-changed", func(b *testing.B) {
		b.ReportAllocs()
		pods := copied()
		for i := 0; b.Loop(); i++ {
			pods[i%1000].UID = fmt.Sprint(i)
			j.set(b, pods)
			b.StopTimer()
			<-j.live
			b.StartTimer()
		}
	})
	b.Run("pods", func(b *testing.B) {
		b.ReportAllocs()
		var pods []events.FleetPod
		for b.Loop() {
			pods = j.f.Pods(pods[:0])
		}
	})
}

// BenchmarkFleetJoin is the time until new pods are live with all that their engine has
// published, and until a removed pod is gone.
func BenchmarkFleetJoin(b *testing.B) {
	for _, n := range []int{1, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			j := join(b, n)
			defer j.stop()
			var forgetting time.Duration
			for b.Loop() {
				j.set(b, j.pods)
				for range j.pods {
					<-j.live
				}
				b.StopTimer()
				begin := time.Now()
				j.set(b, j.pods[1:])
				<-j.removed
				forgetting = max(forgetting, time.Since(begin))
				j.set(b, nil)
				for range j.pods[1:] {
					<-j.removed
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(forgetting.Microseconds())/1e3, "ms-forget-longest")
		})
	}
}

// BenchmarkFleetStream is the cost of a connected, idle stream. The engine is libzmq's, in its
// own process.
func BenchmarkFleetStream(b *testing.B) {
	zmtptest.NeedLibzmq(b)
	const n = 1000
	memory := func() (bytes, goroutines int64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse), int64(runtime.NumGoroutine())
	}
	for b.Loop() {
		port := zmtptest.FreePort(b)
		zmtptest.StartPython(b, "testdata/publisher.py", "tcp://*:"+port)
		live := make(chan bool, n)
		f, err := events.NewFleet(&dueSink{}, events.FleetConfig{OnChange: func(c events.FleetChange) {
			if c.To == "live" {
				live <- true
			}
		}})
		must(b, err)
		var pods []events.Pod
		for i := range n {
			pods = append(pods, events.Pod{ID: fmt.Sprintf("namespace/pod-%05d", i), Model: "m", Host: fmt.Sprintf("127.2.%d.%d", i/250, i%250+1), Port: portOf(b, "tcp://x:"+port)})
		}
		bytes, goroutines := memory()
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { f.Run(ctx) })
		must(b, f.Set("bench", pods))
		for range pods {
			<-live
		}
		more, others := memory()
		b.ReportMetric(float64(more-bytes)/n, "B/stream")
		b.ReportMetric(float64(others-goroutines)/n, "goroutines/stream")
		idle := time.NewTimer(*fleetIdle)
		used := cputime.Of(func() { <-idle.C })
		b.ReportMetric(100*used.Seconds()/fleetIdle.Seconds(), "%-of-a-core-idle")
		cancel()
		running.Wait()
	}
}
