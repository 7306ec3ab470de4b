package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/offload"
)

// TestMetrics has each figure of both tiers, and none of an absent tier.
func TestMetrics(t *testing.T) {
	segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, Buffered: true})
	must(t, err)
	defer segments.Close()
	st := offload.Stats{
		Blocks: 3, Hits: 5, Misses: 7, Stored: 11, Evicted: 8, Refused: 2, Acquires: offload.Times{N: 3, Sum: 1500 * time.Millisecond, Below: [12]uint64{1, 0, 1, 11: 1}},
		Disk: offload.DiskStats{InFlight: 4, Reading: 1, Hits: 9, Misses: 6, Late: 12, Written: 10, Unwritten: 13, OverQuota: 14, Failed: 15},
	}
	var both, memory strings.Builder
	writeMetrics(&both, 100, st, segments)
	writeMetrics(&memory, 100, st, nil)
	for _, want := range []string{
		"hit_pages_total{tier=\"memory\"} 5", "hit_pages_total{tier=\"disk\"} 9", "missed_pages_total{tier=\"memory\"} 7", "missed_pages_total{tier=\"disk\"} 6",
		"read_bytes_total{tier=\"memory\"} 500", "read_bytes_total{tier=\"disk\"} 900", "written_bytes_total{tier=\"memory\"} 1100", "written_bytes_total{tier=\"disk\"} 1000",
		"stored_pages_total{tier=\"memory\"} 11", "stored_pages_total{tier=\"disk\"} 10", "evicted_pages_total{tier=\"memory\"} 8", "evicted_pages_total{tier=\"disk\"} 0",
		"refused_pages_total{tier=\"memory\"} 2", "refused_pages_total{tier=\"disk\"} 14", "failed_writes_pages_total{tier=\"disk\"} 13", "failed_reads_total{tier=\"disk\"} 15",
		"late_reads_total{tier=\"disk\"} 12", "in_flight_pages{tier=\"disk\"} 4", "reads_in_flight{tier=\"disk\"} 1", "pages{tier=\"memory\"} 3", "used_bytes{tier=\"memory\"} 300", "used_bytes{tier=\"disk\"} 0",
		"corrupt_records_total{tier=\"disk\"} 0", "torn_records_total{tier=\"disk\"} 0", "copied_pages_total{tier=\"disk\"} 0",
		"operation_seconds_bucket{tier=\"memory\",op=\"acquire\",le=\"1e-06\"} 1", "operation_seconds_bucket{tier=\"memory\",op=\"acquire\",le=\"1.6e-05\"} 2",
		"operation_seconds_bucket{tier=\"memory\",op=\"acquire\",le=\"1.048576\"} 2", "operation_seconds_bucket{tier=\"memory\",op=\"acquire\",le=\"+Inf\"} 3",
		"operation_seconds_sum{tier=\"memory\",op=\"acquire\"} 1.5", "operation_seconds_count{tier=\"memory\",op=\"acquire\"} 3", "operation_seconds_count{tier=\"disk\",op=\"write\"} 0",
	} {
		want = "\nkvoffload_" + want + "\n"
		if !strings.Contains(both.String(), want) {
			t.Errorf("no %q", want)
		}
		if onDisk := strings.Contains(want, "disk"); strings.Contains(memory.String(), want) == onDisk {
			t.Errorf("memory alone: %q: %t", want, !onDisk)
		}
	}
	if t.Failed() {
		t.Log(both.String())
	}
}

// TestAIBrixMetrics has the names and labels of AIBrix's exporter.
func TestAIBrixMetrics(t *testing.T) {
	st := offload.Stats{
		Blocks: 3, Capacity: 10, Acquires: offload.Times{N: 3, Sum: 1500 * time.Millisecond, Below: [12]uint64{1, 0, 1, 11: 1}},
		Disk: offload.DiskStats{Reads: offload.Times{N: 4}, Writes: offload.Times{N: 5}, Failed: 1},
	}
	var both, memory strings.Builder
	writeAIBrix(&both, 100, st, true)
	writeAIBrix(&memory, 100, st, false)
	for _, want := range []string{
		`num_ops_total{cache_type="l1cache",op_type="acquire"} 3`, `num_ops_total{cache_type="l2cache",op_type="get"} 4`, `num_ops_total{cache_type="l2cache",op_type="put"} 5`,
		`num_errors_total{cache_type="l2cache",op_type="get",reason="error"} 1`,
		`iteration_op_lat_ms_bucket{cache_type="l1cache",op_type="acquire",le="0.016"} 2`, `iteration_op_lat_ms_bucket{cache_type="l1cache",op_type="acquire",le="+Inf"} 3`,
		`iteration_op_lat_ms_sum{cache_type="l1cache",op_type="acquire"} 1500`, `iteration_op_lat_ms_count{cache_type="l2cache",op_type="put"} 5`,
		`used{cache_type="l1cache",resource_type="l1_allocator"} 300`, `capacity{cache_type="l1cache",resource_type="l1_allocator"} 1000`,
	} {
		want = "\nkv_cache_ol_" + want + "\n"
		if !strings.Contains(both.String(), want) {
			t.Errorf("no %q", want)
		}
		if onDisk := strings.Contains(want, "l2cache"); strings.Contains(memory.String(), want) == onDisk {
			t.Errorf("memory alone: %q: %t", want, !onDisk)
		}
	}
	if t.Failed() {
		t.Log(both.String())
	}
}

func TestServeFlags(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"-listen=":                         "neither -listen nor -unix",
		"-ingest hot":                      "-ingest needs -dir",
		"-aibrix-metrics":                  "-aibrix-metrics needs -metrics",
		"-dir x":                           "-dir needs -bytes, and -bytes needs -dir",
		"-bytes 1GiB":                      "-dir needs -bytes, and -bytes needs -dir",
		"-tls-cert x":                      "-tls-cert needs -tls-key, and -tls-key needs -tls-cert",
		"-memory 1GB":                      "not a number of bytes, KiB, MiB, GiB or TiB",
		"-memory -1":                       "not a number of bytes, KiB, MiB, GiB or TiB",
		"-memory 9000000TiB":               "not a number of bytes, KiB, MiB, GiB or TiB",
		"-password-file " + empty:          empty + ": not one line with a password",
		"-password-file " + dir + "/none":  "no such file",
		"-listen 127.0.0.1:0 -memory 1MiB": "too little for a value of one byte",
		"-listen 127.0.0.1:0 -policy mru":  `Config.Policy is "mru"`,
		"-listen 127.0.0.1:0 -page 100":    "resp: PageBytes is 100",
		"-listen 127.0.0.1:0 -promise x":   "invalid value",
		"x":                                "usage",
	} {
		if err := run(append([]string{"serve"}, strings.Fields(args)...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("serve %s: %v, not %s", args, err, want)
		}
	}
	for text, want := range map[string]size{"0": 0, "4096": 4096, "64KiB": 64 << 10, "512MiB": 512 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
}

// TestServeChild is the process of TestServe.
func TestServeChild(t *testing.T) {
	if args := os.Getenv("KVOFFLOAD_SERVE"); args != "" {
		if err := run(append([]string{"serve"}, strings.Fields(args)...), os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListenUnix: a socket of a dead process is replaced, and one of another type stays.
func TestListenUnix(t *testing.T) {
	dir, err := os.MkdirTemp("", "serve") // a short path
	must(t, err)
	defer os.RemoveAll(dir)
	dead, other := filepath.Join(dir, "dead"), filepath.Join(dir, "other")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	again, err := listenUnix(dead)
	must(t, err)
	defer again.Close()
	datagrams, err := net.ListenPacket("unixgram", other)
	must(t, err)
	defer datagrams.Close()
	for _, name := range []string{dead, other} {
		if l, err := listenUnix(name); err == nil {
			l.Close()
			t.Errorf("%s has two listeners", name)
		}
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
}

func TestSignalChild(t *testing.T) {
	if os.Getenv("KVOFFLOAD_SIGNAL") != "" {
		ctx, _ := untilSignal()
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("ending")
		io.Copy(io.Discard, os.Stdin) // until the test has ended
	}
}

// TestSignals: a signal ends a process that does not end by the one before it.
func TestSignals(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^TestSignalChild$")
	child.Env = append(os.Environ(), "KVOFFLOAD_SIGNAL=1")
	_, err := child.StdinPipe()
	must(t, err)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	lines := bufio.NewReader(out)
	for _, want := range []string{"ready\n", "ending\n"} {
		if line, err := lines.ReadString('\n'); line != want {
			t.Fatalf("%q, %v", line, err)
		}
		must(t, child.Process.Signal(syscall.SIGTERM))
	}
	if err := zmtptest.Terminate(child); fmt.Sprint(err) != "signal: terminated" {
		t.Error(err)
	}
}

// TestServe: a value on disk outlives a process that SIGTERM ends.
func TestServe(t *testing.T) {
	dir, err := os.MkdirTemp("", "serve") // a short path
	must(t, err)
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "s")
	value := strings.Repeat("v", 300_000)
	for _, script := range []struct{ send, want string }{
		{fmt.Sprintf("SET k x\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value), "+OK\r\n+OK\r\n"},
		{"GET k\r\n", fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)},
	} {
		child := exec.Command(os.Args[0], "-test.run=^TestServeChild$")
		child.Env = append(os.Environ(), "KVOFFLOAD_SERVE=-listen 127.0.0.1:0 -unix "+sock+" -metrics 127.0.0.1:0 -memory 64MiB -dir "+dir+"/kv -bytes 64MiB")
		out, err := child.StdoutPipe()
		must(t, err)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		var metrics string
		for _, want := range []string{"listening on 127.0.0.1:", "metrics on 127.0.0.1:", "listening on " + sock + "\n"} {
			line, err := lines.ReadString('\n')
			if !strings.HasPrefix(line, want) {
				t.Fatalf("%q, %v", line, err)
			}
			if addr, ok := strings.CutPrefix(line, "metrics on "); ok {
				metrics = strings.TrimSpace(addr)
			}
		}
		nc, err := net.Dial("unix", sock)
		must(t, err)
		if _, err := io.WriteString(nc, script.send); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(script.want))
		if _, err := io.ReadFull(nc, got); err != nil || string(got) != script.want {
			t.Fatalf("%.60q, %v", got, err)
		}
		nc.Close()
		answer, err := http.Get("http://" + metrics + "/metrics")
		must(t, err)
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if want := "\nkvoffload_pages{tier=\"disk\"} "; err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %q, %v, in %s", want, err, text)
		}
		child.Process.Signal(syscall.SIGTERM)
		io.Copy(io.Discard, lines)
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}
}
