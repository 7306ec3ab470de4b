//go:build unix

package systemtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// fleetEnv makes the test binary serve a fleet of engines, so that the subscribers' memory can be
// measured without the engines'.
const fleetEnv = "KVINDEX_SERVE_FLEET"

const fleetSize = 500

func fleetTruth(i int) *truth { return newTruth(uint64(i+100), 4, 16) }

// serveFleet obeys the lines of its input: "publish N" makes each engine publish N batches,
// "restart FROM TO" restarts engines; each is answered by a line. Its first line has the endpoints
// of each engine.
func serveFleet() error {
	var engines []*fakeengine.Publisher
	var truths []*truth
	for i := range fleetSize {
		p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
		if err != nil {
			return err
		}
		defer p.Close()
		engines, truths = append(engines, p), append(truths, fleetTruth(i))
		fmt.Println(p.Endpoint(), p.ReplayEndpoint())
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var from, to int
		if n, _ := fmt.Sscanf(in.Text(), "restart %d %d", &from, &to); n == 2 {
			for i := from; i < to; i++ {
				if err := engines[i].Restart(); err != nil {
					return err
				}
				truths[i].restart()
			}
		} else if n, _ := fmt.Sscanf(in.Text(), "publish %d", &from); n == 1 {
			for i, p := range engines {
				for range from {
					p.Publish(truths[i].next())
				}
			}
		}
		fmt.Println("done")
	}
	return in.Err()
}

// servers are the programs in the test binary, by the environment variable that selects them.
var servers = map[string]func() error{fleetEnv: serveFleet}

func TestMain(m *testing.M) {
	for env, serve := range servers {
		if os.Getenv(env) == "" {
			continue
		}
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	zmtptest.Main(m)
}

// remoteFleet has engines in another process, and an Indexer that follows them all.
type remoteFleet struct {
	events.Sink // of ix
	tb          testing.TB
	ix          *kvindex.Indexer
	truths      []*truth
	in          io.Writer
	out         *bufio.Scanner
	changed     chan struct{} // a message was applied
}

func startFleet(tb testing.TB) *remoteFleet {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fleetEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(tb, err)
	out, err := cmd.StdoutPipe()
	must(tb, err)
	must(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	f := &remoteFleet{tb: tb, ix: open(tb), in: in, out: bufio.NewScanner(out), changed: make(chan struct{}, 1)}
	f.Sink = f.ix.Sink()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for i := range fleetSize {
		if !f.out.Scan() {
			tb.Fatal("the fleet ended")
		}
		endpoint, replay, _ := strings.Cut(f.out.Text(), " ")
		sub, err := events.NewSubscriber(f, events.SubscriberConfig{
			Endpoint: endpoint, Replay: replay, Pod: fleetPod(i), Model: "m",
			Backoff: 100 * time.Millisecond,
		})
		must(tb, err)
		f.truths = append(f.truths, fleetTruth(i))
		running.Go(func() { _ = sub.Run(ctx) })
	}
	return f
}

func fleetPod(i int) string { return fmt.Sprintf("pod-%03d", i) }

func (f *remoteFleet) IngestMessage(m kvindex.Message) (kvindex.Receipt, error) {
	r, err := f.ix.IngestMessage(m)
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return r, err
}

func (f *remoteFleet) do(format string, args ...any) {
	f.tb.Helper()
	if _, err := fmt.Fprintf(f.in, format+"\n", args...); err != nil || !f.out.Scan() {
		f.tb.Fatal("the fleet ended: ", err)
	}
}

func (f *remoteFleet) publish(n int) {
	f.tb.Helper()
	f.do("publish %d", n)
	for _, e := range f.truths {
		for range n {
			e.next()
		}
	}
}

func (f *remoteFleet) restart(from, to int) {
	f.tb.Helper()
	f.do("restart %d %d", from, to)
	for _, e := range f.truths[from:to] {
		e.restart()
	}
}

// settle waits until the index has the engines' blocks.
func (f *remoteFleet) settle() {
	f.tb.Helper()
	late := zmtptest.Context(f.tb)
	for {
		wrong := f.wrong()
		if wrong == "" {
			return
		}
		select {
		case <-f.changed:
		case <-time.After(50 * time.Millisecond):
		case <-late.Done():
			f.tb.Fatal(wrong)
		}
	}
}

func (f *remoteFleet) wrong() string {
	infos := f.ix.Pods(nil)
	if len(infos) != fleetSize {
		return fmt.Sprintf("%d pods are known", len(infos))
	}
	for i, info := range infos { // ordered by name
		held := 0
		for j, blocks := range f.truths[i].held {
			leading := 0
			for b, h := range blocks {
				if h {
					held++
				}
				if h && leading == b {
					leading++
				}
			}
			p := f.truths[i].prompts[j]
			if s := score(f.tb, f.ix, kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{info.Pod}})[0]; s.MatchedBlocks != leading {
				return fmt.Sprintf("%s: %d blocks of prompt %d, the engine has %d", info.Pod, s.MatchedBlocks, j, leading)
			}
		}
		if info.State != kvindex.StateLive || info.Ranks[0].Blocks[kvindex.TierGPU] != held || info.Streams[0].Missing > 0 {
			return fmt.Sprintf("%d blocks: %+v", held, info)
		}
	}
	return ""
}

// footprint returns the live heap and stacks of the process for each engine.
func footprint() (bytes, goroutines float64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / fleetSize, float64(runtime.NumGoroutine()) / fleetSize
}

// TestFleet follows 500 engines, 50 of which restart at once.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until 500 connections have been silent for a heartbeat")
	}
	before, goroutinesBefore := footprint()
	f := startFleet(t)
	f.publish(3)
	f.settle()
	fresh, _ := footprint()
	f.publish(1100) // more than are remembered
	f.settle()
	busy, _ := footprint()
	// A connection frees its buffer after a silent heartbeat, once the machine gets to it.
	const most = 64 << 10
	var bytes, goroutines float64
	for late, rest := zmtptest.Context(t), 2*zmtp.DefaultHeartbeat; ; rest = zmtp.DefaultHeartbeat {
		select {
		case <-time.After(rest):
		case <-late.Done():
		}
		f.settle()
		bytes, goroutines = footprint()
		if bytes-before <= most && goroutines-goroutinesBefore <= 2 || raceEnabled || late.Err() != nil {
			break
		}
	}
	t.Logf("KiB an engine: %.1f at first, %.1f while there is traffic, %.1f at rest; %.2f goroutines",
		(fresh-before)/1024, (busy-before)/1024, (bytes-before)/1024, goroutines-goroutinesBefore)
	if bytes-before > most && !raceEnabled {
		t.Errorf("%.1f KiB an engine", (bytes-before)/1024)
	}
	if goroutines-goroutinesBefore > 2 {
		t.Errorf("%.2f goroutines an engine", goroutines-goroutinesBefore)
	}
	f.restart(100, 150)
	f.publish(5)
	f.settle()
	if s := f.ix.Stats(); s.Restarts != 50 || s.Missing != 0 {
		t.Errorf("%+v", s.Traffic)
	}
}

// BenchmarkFleetIdle measures the cost of following 500 silent engines.
func BenchmarkFleetIdle(b *testing.B) {
	f := startFleet(b)
	f.publish(1)
	f.settle()
	used := func() time.Duration {
		var u syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for b.Loop() {
		<-time.After(10 * time.Second)
	}
	b.ReportMetric(100*float64(used()-before)/float64(b.Elapsed()), "%core")
	bytes, goroutines := footprint()
	b.ReportMetric(bytes/1024, "KiB/engine")
	b.ReportMetric(goroutines, "goroutines/engine")
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
