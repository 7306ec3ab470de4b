package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/tokenize"
)

// modelDir returns a folder with the tokenizer of a model.
func modelDir(t *testing.T) string {
	t.Helper()
	from, dir := testdata.Path(t, "the tokenizer of a served model", "tokens", "llama3"), filepath.Join(t.TempDir(), "llama3")
	must(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		in, err := os.Open(filepath.Join(from, name+".gz"))
		must(t, err)
		z, err := gzip.NewReader(in)
		must(t, err)
		text, err := io.ReadAll(z)
		in.Close()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		must(t, err)
	}
	return dir
}

// The environment of the reference's chart starts the service. The test changes only the ports,
// to free ones.
func TestChart(t *testing.T) {
	ctx := zmtptest.Context(t)
	dir := modelDir(t)
	for name, value := range map[string]string{
		"ZMQ_ENDPOINT": "tcp://*:5557", "ZMQ_TOPIC": "kv@", "POOL_CONCURRENCY": "4", "PYTHONHASHSEED": "42", "BLOCK_SIZE": "16", "MODEL_NAME": dir, "HTTP_PORT": "8080",
	} {
		t.Setenv(name, value)
	}
	var log journal
	s, err := loadSettings(nil, &log)
	must(t, err)
	if len(s.subscribers) != 1 || s.subscribers[0].Endpoint != "tcp://*:5557" || !s.subscribers[0].Bind || s.subscribers[0].Topic != "kv@" || s.listen != ":8080" || s.pool != 4 {
		t.Errorf("%+v", s.subscribers)
	}
	at := make(chan string, 1)
	s.subscribers[0].Endpoint, s.grace = "tcp://127.0.0.1:0", 0
	s.listeningEvents = func(endpoint string) { at <- endpoint }
	public, _, _ := running(t, s)
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "10.0.0.7", Model: dir, Connect: <-at})
	must(t, err)
	defer e.Close()
	of, err := tokenize.LoadPretrained(dir)
	must(t, err)
	prompt := strings.Repeat("How do boats come and go, and where to? ", 10)
	tokens, err := of.Encode(ctx, nil, prompt, true)
	if err == nil {
		err = e.WaitSubscribers(ctx, 1)
	}
	if err == nil {
		_, err = e.Serve(ctx, kvindextest.Request{Tokens: tokens})
	}
	must(t, err)
	until(t, public+"/readyz", http.StatusOK)
	body, _ := json.Marshal(map[string]string{"prompt": prompt})
	for want := fmt.Sprintf(`{"10.0.0.7":%d}`, len(tokens)/16); ; {
		code, got := post(t, public+"/score_completions", string(body))
		if code == 200 && got == want {
			break
		}
		if ctx.Err() != nil || code != 200 {
			t.Fatalf("%d %s, want %s: %s", code, got, want, log.String())
		}
	}
	if !strings.Contains(log.String(), "PYTHONHASHSEED") {
		t.Errorf("the log does not say that the seed is not needed: %s", log.String())
	}
}

// A pod that is dialled has the name in its topic, or else the configured name.
func TestDialled(t *testing.T) {
	ctx := zmtptest.Context(t)
	for _, c := range []struct{ format, want string }{{"%s", "pod-1"}, {"mine=%s", "mine"}} {
		e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-1", Model: "m", Replay: true})
		must(t, err)
		var log journal
		s, err := loadSettings([]string{"-model=m", "-grace=0s", "-zmq-endpoint=" + fmt.Sprintf(c.format, e.Endpoint()), "-replay-port=" + e.ReplayEndpoint()[strings.LastIndex(e.ReplayEndpoint(), ":")+1:]}, &log)
		must(t, err)
		public, _, end := running(t, s)
		must(t, e.WaitSubscribers(ctx, 1))
		for n := uint32(1); ; n++ { // a message introduces the engine, and each prompt has new blocks
			if _, err := e.Serve(ctx, kvindextest.Request{Tokens: append(make([]uint32, 33), slices.Repeat([]uint32{n}, 16)...)}); err != nil {
				t.Fatal(err)
			}
			_, got := post(t, public+"/v1/score", scoreOf(make([]uint32, 33)))
			if strings.Contains(got, `"pod":"`+c.want+`"`) && strings.Contains(got, `"matched_blocks":2`) {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %s %s", c.format, got, log.String())
			}
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		e.Close()
	}
}

// The message that introduces an engine is applied, also without a replay.
func TestFirstMessage(t *testing.T) {
	ctx := zmtptest.Context(t)
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-1", Model: "m"})
	must(t, err)
	defer e.Close()
	s, err := loadSettings([]string{"-model=m", "-grace=0s", "-zmq-endpoint=" + e.Endpoint()}, io.Discard)
	must(t, err)
	public, _, _ := running(t, s)
	must(t, e.WaitSubscribers(ctx, 1))
	if _, err := e.Serve(ctx, kvindextest.Request{Tokens: make([]uint32, 33)}); err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.Contains(got, `"pod":"pod-1"`) || !strings.Contains(got, `"matched_blocks":2`); _, got = post(t, public+"/v1/score", scoreOf(make([]uint32, 33))) {
		if ctx.Err() != nil {
			t.Fatal(got)
		}
	}
}

// An engine that connects to the service replays at a port of its own address.
func TestReplayOf(t *testing.T) {
	for port, want := range map[string]map[string]string{
		"0":    nil,
		"5657": {"tcp://10.0.0.7:40000": "tcp://10.0.0.7:5657", "tcp://[fd00::7]:40000": "tcp://[fd00::7]:5657", "/tmp/engine": ""},
	} {
		s, err := loadSettings([]string{"-replay-port=" + port}, io.Discard)
		must(t, err)
		defer s.models.Close()
		of := s.subscribers[0].ReplayOf
		if (of == nil) != (want == nil) {
			t.Fatalf("port %s: a function is there: %v", port, of != nil)
		}
		for peer, endpoint := range want {
			if got := of("pod", peer); got != endpoint {
				t.Errorf("port %s, %s: %q, want %q", port, peer, got, endpoint)
			}
		}
	}
}

// Names with SRV records are a source of pods, as names with addresses are.
func TestDNS(t *testing.T) {
	for _, args := range []string{"-dns=engines.example", "-dns=_kv._tcp.engines.example -dns-srv"} {
		s, err := loadSettings(append(strings.Fields(args), "-model=m", "-replay-port=5657"), io.Discard)
		if err != nil || len(s.sources) != 1 || len(s.subscribers) != 0 {
			t.Fatalf("%s: %d sources and %d subscribers, %v", args, len(s.sources), len(s.subscribers), err)
		}
		must(t, s.models.Close())
	}
}

// Only models of the settings are looked up outside of the local cache, and a path is never a
// repository.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"models/org/a", "hub", "b"} {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	for _, name := range []string{"HF_TOKEN", "HF_HOME", "KVINDEXD_CONFIG"} {
		t.Setenv(name, "")
	}
	s, err := loadSettings([]string{"-zmq-endpoint=none", "-download=false", "-models-dir=" + filepath.Join(dir, "models"), "-hub-dir=" + filepath.Join(dir, "hub"), "-models=b=" + filepath.Join(dir, "b") + ",c=org/c"}, io.Discard)
	must(t, err)
	defer s.models.Close()
	found := make(map[string]string)
	for _, name := range []string{"org/a", "b", "c", "../hub", "/etc", "x/../../hub", "", "org/d"} {
		if at, err := s.find(t.Context(), name); err == nil {
			found[name] = at
		}
	}
	if want := map[string]string{"org/a": filepath.Join(dir, "models/org/a"), "b": filepath.Join(dir, "b")}; !maps.Equal(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
	if strings.Join(s.preload, " ") != "b c" {
		t.Errorf("preloaded: %v", s.preload)
	}
}
