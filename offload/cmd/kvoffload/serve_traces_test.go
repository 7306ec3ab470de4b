package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/cmd/kvoffload/internal/resp"
)

var beside = flag.Int("serve.traces", 10, "long form: requests of each trace, and a tenth of so many long ones, 1000")

// valueBytes is the size of a block. Pages are a quarter of it, as with 1 MiB by default.
const valueBytes = 32 << 10

// TestServeTraces replays recorded traces on a server and on a redis-server with allkeys-lru and
// the same bytes, and logs the share of blocks that each finds in prefixes.
func TestServeTraces(t *testing.T) {
	data := os.Getenv("KVINDEX_TESTDATA")
	if data == "" {
		t.Skip("KVINDEX_TESTDATA names no recorded traces")
	}
	for name, requests := range map[string]int{"conversation_512": *beside, "synthetic_512": *beside, "agentic_64": *beside / 10} {
		tr, err := load(filepath.Join(data, "traces", name+".jsonl.gz"), requests)
		must(t, err)
		for _, share := range []float64{0.05, 0.2} {
			bytes := int64(share*float64(tr.blocks)) * valueBytes
			best := float64(tr.optimum(int(share*float64(tr.blocks)))) / float64(tr.touched)
			line := fmt.Sprintf("| %s | %g %% | %d | %.3f |", name, 100*share, bytes>>20, tr.hits(t, redisOf(t, bytes)))
			for _, policy := range []offload.Policy{offload.LRU, offload.S3FIFO} {
				hits := tr.hits(t, serverOf(t, bytes, policy))
				if line += fmt.Sprintf(" %.3f |", hits); hits > best {
					t.Errorf("%s, %v, %s: %v were found, of %v that can be", name, share, policy, hits, best)
				}
			}
			t.Logf("%s %.3f |", line, best)
		}
	}
}

// redisOf returns the socket of a redis-server that may use so many bytes more than when empty.
func redisOf(t *testing.T, bytes int64) net.Conn {
	dir := t.TempDir()
	sock := filepath.Join(dir, "s")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", sock, "--save", "", "--dir", dir, "--maxmemory-policy", "allkeys-lru")
	out, err := cmd.StdoutPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		if os.Getenv("KVINDEX_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip("redis-server: ", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), "ready to accept connections at"); {
	}
	go io.Copy(io.Discard, out)
	nc, err := net.Dial("unix", sock)
	must(t, err)
	in := bufio.NewReader(nc)
	fmt.Fprint(nc, "INFO memory\r\n")
	info, err := bulkOf(in)
	must(t, err)
	_, after, _ := strings.Cut(info, "used_memory:")
	digits, _, _ := strings.Cut(after, "\r\n")
	used, err := strconv.ParseInt(digits, 10, 64)
	must(t, err)
	fmt.Fprintf(nc, "CONFIG SET maxmemory %d\r\n", used+bytes)
	if line, err := in.ReadString('\n'); line != "+OK\r\n" {
		t.Fatal(line, err)
	}
	return nc
}

func serverOf(t *testing.T, bytes int64, policy offload.Policy) net.Conn {
	s, err := resp.New(resp.Config{MemoryBytes: bytes, PageBytes: valueBytes / 4, Policy: policy})
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), l) }()
	nc, err := net.Dial("unix", l.Addr().String())
	must(t, err)
	t.Cleanup(func() {
		nc.Close()
		s.Close()
		l.Close()
		<-ended
	})
	return nc
}

// hits returns the share of blocks found before the first missing one, which is stored with all
// later ones.
func (tr *trace) hits(t *testing.T, nc net.Conn) float64 {
	defer nc.Close()
	in, out, value := bufio.NewReaderSize(nc, 1<<16), bufio.NewWriterSize(nc, 1<<16), strings.Repeat("x", valueBytes)
	found := 0
	for _, q := range tr.requests {
		blocks := list(nil, q)
		for at := 0; at < len(blocks); {
			part := blocks[at:min(at+8, len(blocks))]
			fmt.Fprintf(out, "*%d\r\n$4\r\nMGET\r\n", len(part)+1)
			for _, b := range part {
				fmt.Fprintf(out, "$8\r\n%08d\r\n", b)
			}
			if err := out.Flush(); err != nil {
				t.Fatal(err)
			}
			if _, err := in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			n, all := 0, true
			for range part {
				v, err := bulkOf(in)
				must(t, err)
				if all = all && v != ""; all {
					n++
				}
			}
			at += n
			if n < len(part) {
				found += at
				for _, b := range blocks[at:] {
					fmt.Fprintf(out, "*3\r\n$3\r\nSET\r\n$8\r\n%08d\r\n$%d\r\n%s\r\n", b, len(value), value)
					if err := out.Flush(); err != nil {
						t.Fatal(err)
					}
					if line, err := in.ReadString('\n'); line != "+OK\r\n" {
						t.Fatal(line, err)
					}
				}
				break
			} else if at == len(blocks) {
				found += at
			}
		}
	}
	return float64(found) / float64(tr.touched)
}

// bulkOf reads a bulk string, "" for null.
func bulkOf(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if n < 0 || err != nil {
		return "", err
	}
	b := make([]byte, n+2)
	_, err = io.ReadFull(in, b)
	return string(b[:n]), err
}
