//go:build unix

package bench_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
)

// asSubscriber is the environment variable that makes this test binary the subscriber of
// BenchmarkSubscriber. Its value is "ENDPOINT COUNT".
const asSubscriber = "KVINDEX_BENCH_SUBSCRIBER"

// BenchmarkSubscriber compares events.Subscriber with a subscriber in C on libzmq, each in its own
// process, from the first message to the last. The publishers are in C too (testdata/zmq.c) and
// drop nothing, so they are as fast as their readers: "plain" writes prepared bytes to a socket,
// "libzmq" is libzmq's. The publisher's own limit is measured with a reader that discards its bytes
// in the kernel.
//
// An operation is one run of each reader. The figures are medians of all runs.
func BenchmarkSubscriber(b *testing.B) {
	if args := os.Getenv(asSubscriber); args != "" {
		subscriberProcess(b, args)
		return
	}
	program := libzmqProgram(b)
	for _, publisher := range []string{"plain", "libzmq"} {
		for _, load := range []struct{ size, count int }{{256, 1_000_000}, {4 << 10, 300_000}, {64 << 10, 40_000}} {
			b.Run(fmt.Sprintf("publisher=%s/bytes=%d", publisher, load.size), func(b *testing.B) {
				runs := make(map[string][]cost)
				for b.Loop() {
					for _, reader := range []string{"drain", "libzmq", "kvindex"} {
						runs[reader] = append(runs[reader], receive(b, program, publisher, reader, load.size, load.count))
					}
				}
				alone, theirs, ours := median(runs["drain"]), median(runs["libzmq"]), median(runs["kvindex"])
				b.ReportMetric(0, "ns/op") // meaningless here
				b.ReportMetric(1/ours.wall, "msgs/s")
				b.ReportMetric(1/theirs.wall, "libzmq-msgs/s")
				b.ReportMetric(1/alone.wall, "publisher-msgs/s")
				b.ReportMetric(1e6*ours.cpu, "cpu-us/msg")
				b.ReportMetric(1e6*theirs.cpu, "libzmq-cpu-us/msg")
				b.ReportMetric(theirs.wall/ours.wall, "throughput-ratio")
				b.ReportMetric(ours.cpu/theirs.cpu, "cpu-ratio")
			})
		}
	}
}

// cost is the time of a message in seconds.
type cost struct {
	wall, cpu float64
}

func median(runs []cost) cost {
	of := func(what func(cost) float64) float64 {
		runs := slices.SortedFunc(slices.Values(runs), func(a, b cost) int { return cmp.Compare(what(a), what(b)) })
		return what(runs[len(runs)/2])
	}
	return cost{of(func(c cost) float64 { return c.wall }), of(func(c cost) float64 { return c.cpu })}
}

func libzmqProgram(b *testing.B) string {
	b.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		b.Skip("not compared with libzmq: there is no cc")
	}
	const header = "#include <zmq.h>\n"
	check := exec.Command("cc", "-E", "-")
	check.Stdin = strings.NewReader(header)
	if check.Run() != nil {
		b.Skip("not compared with libzmq: there is no zmq.h (Debian: libzmq3-dev)")
	}
	program := filepath.Join(b.TempDir(), "zmq")
	if out, err := exec.Command("cc", "-O2", "-o", program, filepath.Join("testdata", "zmq.c"), "-lzmq").CombinedOutput(); err != nil {
		b.Fatalf("compiling the peers: %v\n%s", err, out)
	}
	return program
}

// receive runs a publisher and a reader until both end.
func receive(b *testing.B, program, publisher, reader string, size, count int) cost {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	mode := map[string]string{"plain": "blast", "libzmq": "publish"}[publisher]
	p := exec.CommandContext(ctx, program, mode, fmt.Sprint(size), fmt.Sprint(count))
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	must(b, err)
	must(b, p.Start())
	defer func() { cancel(); _, _ = io.Copy(io.Discard, out); _ = p.Wait() }()
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("the publisher named no port: %v", err)
	}
	port = strings.TrimSpace(port)
	endpoint := "tcp://127.0.0.1:" + port
	var r *exec.Cmd
	switch reader {
	case "drain":
		r = exec.CommandContext(ctx, program, "drain", port)
	case "libzmq":
		r = exec.CommandContext(ctx, program, "subscribe", endpoint, fmt.Sprint(count))
	case "kvindex":
		r = exec.CommandContext(ctx, os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkSubscriber$", "-test.benchtime=1x")
		r.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", asSubscriber, endpoint, count))
	}
	answer, err := r.Output()
	if err != nil {
		b.Fatalf("%s: %v\n%s", reader, err, answer)
	}
	for line := range strings.Lines(string(answer)) {
		var c cost
		if n, _ := fmt.Sscanf(line, "%f %f\n", &c.wall, &c.cpu); n == 2 {
			c.wall /= float64(count)
			c.cpu /= float64(count)
			return c
		}
	}
	b.Fatalf("%s prints no time:\n%s", reader, answer)
	return cost{}
}

// subscriberProcess receives all messages and prints its cost like the others.
func subscriberProcess(b *testing.B, args string) {
	sink := &countingSink{done: make(chan struct{})}
	var endpoint string
	if _, err := fmt.Sscan(args, &endpoint, &sink.want); err != nil {
		b.Fatal(err)
	}
	s, err := events.NewSubscriber(sink, events.SubscriberConfig{Endpoint: endpoint, Pod: "pod", Model: "model"})
	must(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	<-sink.done
	cancel()
	<-ended
	if sink.err != nil {
		b.Fatal(sink.err)
	}
	fmt.Printf("%.6f %.6f\n", sink.to.Sub(sink.from).Seconds(), (sink.cpuTo - sink.cpuFrom).Seconds())
}

// countingSink checks only the numbers.
type countingSink struct {
	events.Sink    // without replays it gets messages and notes only
	next, want     uint64
	from, to       time.Time
	cpuFrom, cpuTo time.Duration
	err            error
	done           chan struct{}
}

func (s *countingSink) IngestMessage(m events.Message) (events.Receipt, error) {
	if m.Seq != s.next && s.err == nil {
		s.err = fmt.Errorf("message %d where %d must be", m.Seq, s.next)
	}
	if s.next == 0 {
		s.from, s.cpuFrom = time.Now(), processTime()
	}
	if s.next++; s.next == s.want {
		s.to, s.cpuTo = time.Now(), processTime()
		close(s.done)
	}
	return events.Receipt{Applied: true}, nil
}

func (*countingSink) StreamNote(_, _, _ string, _ events.Note) error { return nil }

// processTime is the CPU time of this process, user and system.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it fails for bad arguments only
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
