package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/offload/internal/janitor"
)

// tierFolder is vLLM's folder for this config.json, by Python's hashlib.
const (
	tierConfig = `{"blocks_per_file":1,"dcp_size":1,"model_name":"org/m","pcp_size":1,"pp_size":1,"tokens_per_hash":16,"tp_size":1}`
	tierFolder = "org_m_530f59abce7c"
)

// tierRoot has four blocks of 1000 bytes, oldest first, and other files.
func tierRoot(t *testing.T) (root string, blocks []string) {
	t.Helper()
	root = t.TempDir()
	put := func(name, text string, age time.Duration) string {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
		return name
	}
	put(tierFolder+"/config.json", tierConfig, 0)
	put("other_0123456789ab/config.json", tierConfig, 0)
	for i := range 4 {
		blocks = append(blocks, put(fmt.Sprintf("%s_r0/abc/de_g1/abcde00000%016x.bin", tierFolder, i), strings.Repeat("x", 1000), time.Duration(10-i)*time.Hour))
	}
	return root, blocks
}

func TestJanitorCommands(t *testing.T) {
	root, blocks := tierRoot(t)
	for _, c := range []struct {
		args string
		want []string // in the output, or the error if the first is "error"
	}{
		{"ls ROOT", []string{"folder=" + tierFolder + " model=org/m ranks=1 blocks_per_file=1 blocks=4 incomplete=0 bytes=4000 oldest=", `folder=other_0123456789ab left_alone="config.json is that of ` + tierFolder}},
		{"janitor -bytes 3000 -dry-run ROOT", []string{"hash=abcde000000000000000000000 bytes=1000", "hash=abcde000000000000000000001 bytes=1000"}},
		{"janitor -bytes 3000 -policy s3fifo -dry-run ROOT", []string{"0000000 bytes", "0000001 bytes"}},
		{"janitor -max-age 8h30m -dry-run ROOT", []string{"0000000 bytes", "0000001 bytes"}},
		{"check-config -disk-high 0.9 ROOT", []string{"blocks=4", "network=false reads="}},
		{"ls", []string{"error", "usage"}},
		{"janitor -bytes 1", []string{"error", "usage"}},
		{"janitor ROOT", []string{"error", "no bound: set -bytes,"}},
		{"-h", []string{"kvoffload check-config [flags] ROOT...", "kvoffload COMMAND -h"}},
		{"janitor -bytes 1XB ROOT", []string{"error", "not a number of bytes"}},
		{"janitor -bytes 1 -publish x ROOT", []string{"error", `"x" is not MODEL=tcp://HOST:PORT`}},
		{"janitor -bytes 1 -publish m=tcp://127.0.0.1:0 ROOT ROOT", []string{"error", "-publish is for one root"}},
		{"check-config -bytes 1 ROOT/none", []string{"error", "no such file"}},
	} {
		var out bytes.Buffer
		err := run(strings.Fields(strings.ReplaceAll(c.args, "ROOT", root)), &out)
		text := out.String()
		if c.want[0] == "error" {
			if err == nil {
				t.Errorf("%s: no error", c.args)
				continue
			}
			c.want, text = c.want[1:], err.Error()
		} else if err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", c.args, text, want)
			}
		}
		if strings.Contains(c.args, "dry-run") && strings.Count(text, "\n") != 2 {
			t.Errorf("%s: %q, want two blocks", c.args, text)
		}
	}
	for _, name := range blocks {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

// TestJanitorPublishes runs the command: a late subscriber gets the blocks that are there and those
// that go. Metrics and health agree.
func TestJanitorPublishes(t *testing.T) {
	root, blocks := tierRoot(t)
	f, err := parseJanitor("janitor", []string{"-bytes", "1GiB", "-listen", "127.0.0.1:0",
		"-publish", "org/m=tcp://127.0.0.1:0,tcp://127.0.0.1:0", "-publish", "else=tcp://127.0.0.1:0", root}, io.Discard)
	must(t, err)
	if err := f.begin(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.serve(ctx) }()
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + f.listener.Addr().String() + path)
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never: ", what)
			}
		}
	}
	wait("healthy", func() bool { code, _ := get("/healthz"); return code == http.StatusOK })

	ix, err := kvindex.New()
	must(t, err)
	sink := &tierSink{Sink: ix.Sink(), t: t, held: map[uint64]bool{}}
	sub, err := events.NewSubscriber(sink, events.SubscriberConfig{Pod: "p", Model: "m", Endpoint: f.publishers[0].Endpoint(), Replay: f.publishers[0].ReplayEndpoint(), Tiers: true})
	must(t, err)
	subscribed := make(chan error, 1)
	go func() { subscribed <- sub.Run(ctx) }()
	if err := os.Remove(blocks[0]); err != nil {
		t.Fatal(err)
	}
	wait("three blocks are held", func() bool { return sink.is(1, 2, 3) })
	wait("metrics", func() bool {
		_, text := get("/metrics")
		return strings.Contains(text, "kvoffload_janitor_blocks{root="+label(root)+"} 3\n") && strings.Contains(text, "kvoffload_janitor_gone_blocks_total{root="+label(root)+"} 1\n")
	})
	cancel()
	<-subscribed
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestJanitorHeld: blocks of the janitor do not change those on the GPU.
func TestJanitorHeld(t *testing.T) {
	j, err := janitor.Open(janitor.Settings{Root: t.TempDir(), Unbounded: true})
	must(t, err)
	defer j.Close()
	ix, err := kvindex.New()
	must(t, err)
	prompt := make([]uint32, 17)
	for _, b := range []*events.Batch{
		{Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1}, Tokens: prompt[:16], BlockSize: 16}}},
		{Events: new(stream).held(j)},
	} {
		if err := ix.ApplyBatch("p", "m", b); err != nil {
			t.Fatal(err)
		}
	}
	var answer kvindex.Answer
	if err := ix.ScoreRequest(t.Context(), &kvindex.Request{Model: "m", Tokens: prompt}, &answer); err != nil || len(answer.Pods) != 1 || answer.Pods[0].CachedTokens != 16 {
		t.Errorf("%+v, %v", answer, err)
	}
}

// tierSink keeps the blocks in the messages of one stream.
type tierSink struct {
	events.Sink
	t    *testing.T
	mu   sync.Mutex
	held map[uint64]bool
}

func (s *tierSink) IngestMessage(m events.Message) (events.Receipt, error) {
	var b events.Batch
	if err := events.Decode(m.Payload, &b); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	for _, ev := range b.Events {
		if ev.Kind == events.Cleared {
			clear(s.held)
			continue
		}
		if ev.Medium != "STORAGE" || !ev.HasGroup || ev.Group != 1 {
			s.t.Errorf("%+v", ev)
		}
		for _, h := range ev.Hashes {
			if s.held[h] = ev.Kind == events.Stored; !s.held[h] {
				delete(s.held, h)
			}
		}
	}
	s.mu.Unlock()
	return s.Sink.IngestMessage(m)
}

// is reports whether exactly these blocks are held.
func (s *tierSink) is(hashes ...uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		if !s.held[h] {
			return false
		}
	}
	return len(s.held) == len(hashes)
}
