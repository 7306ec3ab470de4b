package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

var kills = flag.Int("kills", 3, "times that TestKilled kills a service and ends another; long form: 20")

// child is the environment variable with the settings of a service in a child process, or "main" for
// a child process that is the program.
const child = "TEST_OF_KVINDEXD"

type childSettings struct {
	Pods     []events.Pod
	Snapshot string
}

func TestMain(m *testing.M) {
	switch text := os.Getenv(child); text {
	case "":
		zmtptest.Main(m)
	case "main":
		main()
	default:
		os.Exit(runChild(text))
	}
}

func runChild(text string) int {
	var c childSettings
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := serve(ctx, settings{
		listen: "127.0.0.1:0", admin: "127.0.0.1:0", snapshot: c.Snapshot, every: 20 * time.Millisecond, log: logger(os.Stderr, slog.LevelInfo),
		server: server.Config{Model: "m"}, sources: []events.PodSource{sourceOf(c.Pods)},
		listening: func(public, admin string) { fmt.Println(public, admin) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func sourceOf(pods []events.Pod) events.PodSource {
	return events.PodSource{Name: "test", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		if err := set(pods); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}
}

// process is a service in a child process.
type process struct {
	cmd    *exec.Cmd
	url    string
	stderr bytes.Buffer
}

func startChild(t *testing.T, ctx context.Context, c childSettings) *process {
	t.Helper()
	text, err := json.Marshal(c)
	must(t, err)
	p := &process{cmd: exec.CommandContext(ctx, os.Args[0])}
	p.cmd.Env = append(os.Environ(), child+"="+string(text))
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	must(t, err)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, p.stderr.Bytes())
	}
	p.url = "http://" + strings.Fields(line)[0]
	return p
}

// view is a service's score of a prompt at a pod.
type view struct {
	Pod           string
	State         string
	MatchedBlocks int `json:"matched_blocks"`
}

// views returns the scores of a prompt, nil if the service does not answer or is not ready.
func (p *process) views(t *testing.T, tokens []uint32) []view {
	t.Helper()
	body, err := json.Marshal(map[string]any{"tokens": tokens})
	must(t, err)
	a, err := http.Post(p.url+"/v1/score", "", bytes.NewReader(body))
	if err != nil {
		return nil
	}
	defer a.Body.Close()
	var got struct{ Pods []view }
	if a.StatusCode != http.StatusOK || json.NewDecoder(a.Body).Decode(&got) != nil {
		return nil
	}
	return got.Pods
}

// A service is killed or stopped under load and started again. Its scores of live and partial
// pods are never too high, and become equal to the engines' caches.
func TestKilled(t *testing.T) {
	ctx := zmtptest.Context(t)
	defer http.DefaultClient.CloseIdleConnections()
	random := rand.New(rand.NewPCG(5, 6))
	var prompts [][]uint32
	for range 30 {
		var tokens []uint32
		if len(prompts) > 0 {
			from := prompts[random.IntN(len(prompts))]
			tokens = append(tokens, from[:random.IntN(len(from))]...)
		}
		for len(tokens) < 64 || random.IntN(40) > 0 && len(tokens) < 600 {
			tokens = append(tokens, random.Uint32N(1000))
		}
		prompts = append(prompts, tokens)
	}
	engines := make(map[string]*kvindextest.Engine)
	c := childSettings{Snapshot: filepath.Join(t.TempDir(), "snapshot")}
	for _, pod := range []string{"a", "b", "c"} {
		ranks, at, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: pod, Model: "m", Blocks: 150, Replay: true}, 1)
		must(t, err)
		defer ranks[0].Close()
		engines[pod], c.Pods = ranks[0], append(c.Pods, at)
		if _, err := ranks[0].Serve(ctx, kvindextest.Request{Tokens: prompts[0]}); err != nil {
			t.Fatal(err)
		}
	}
	held := func(pod string, tokens []uint32) int {
		longer := append(tokens[:len(tokens):len(tokens)], 1)
		return engines[pod].Cached(kvindextest.Request{Tokens: longer}) / 16
	}
	compared, early := 0, 0
	for n := range 2 * *kills {
		p := startChild(t, ctx, c)
		for same := false; !same; {
			if ctx.Err() != nil {
				t.Fatalf("round %d: the service does not come to what the engines have: %s", n, p.stderr.Bytes())
			}
			same = true
			for _, tokens := range prompts {
				views := p.views(t, tokens)
				same = same && len(views) == len(engines)
				for _, v := range views {
					blocks := held(v.Pod, tokens)
					if compared++; v.MatchedBlocks > blocks && (v.State == "live" || v.State == "partial") {
						t.Fatalf("round %d: %+v, and the engine has %d blocks", n, v, blocks)
					}
					if v.State != "live" || v.MatchedBlocks != blocks {
						early++
						same = false
					}
				}
			}
		}
		var load sync.WaitGroup
		stop := make(chan struct{})
		reached := make(chan struct{}, 1)
		for _, e := range engines {
			seed := random.Uint64()
			load.Go(func() {
				random := rand.New(rand.NewPCG(seed, 0))
				for served := 0; ; served++ {
					if served == 10+int(seed%50) {
						select {
						case reached <- struct{}{}:
						default:
						}
					}
					tokens := prompts[random.IntN(len(prompts))]
					if _, err := e.Serve(ctx, kvindextest.Request{Tokens: tokens}); err != nil {
						return
					}
					p.views(t, tokens)
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		<-reached
		kill, want := syscall.SIGKILL, "signal: killed"
		if n%2 == 1 {
			kill, want = syscall.SIGTERM, ""
		}
		began := time.Now()
		must(t, p.cmd.Process.Signal(kill))
		err := p.cmd.Wait()
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Fatalf("round %d: %v ends it with %v: %s", n, kill, err, p.stderr.Bytes())
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("round %d: the end took %v", n, took)
		}
		close(stop)
		load.Wait()
		if kill == syscall.SIGTERM {
			ix, err := kvindex.LoadFile(ctx, c.Snapshot)
			if err != nil || len(ix.Pods(nil)) != 3 {
				t.Fatalf("round %d: its snapshot: %v", n, err)
			}
			ix.Close()
			if strings.Contains(p.stderr.String(), "passed over") {
				t.Errorf("round %d: %s", n, p.stderr.Bytes())
			}
		}
	}
	t.Logf("%d times killed, and %d times ended: %d figures compared, %d of them before the service knew all", *kills, *kills, compared, early)
}

// running starts a service in this process. end stops it.
func running(t *testing.T, s settings) (public, admin string, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	at := make(chan [2]string, 1)
	s.listen, s.admin = "127.0.0.1:0", "127.0.0.1:0"
	s.listening = func(public, admin string) { at <- [2]string{"http://" + public, "http://" + admin} }
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, s) }()
	var once sync.Once
	var err error
	end = func() error {
		once.Do(func() {
			cancel()
			err = <-ended
			http.DefaultClient.CloseIdleConnections()
		})
		return err
	}
	t.Cleanup(func() { _ = end() })
	select {
	case a := <-at:
		return a[0], a[1], end
	case err := <-ended:
		t.Fatal(err)
	}
	return "", "", nil
}

// until requests url until the answer has the status code, and returns the answer.
func until(t *testing.T, url string, code int) string {
	t.Helper()
	for {
		a, err := http.Get(url)
		if err == nil {
			text, _ := io.ReadAll(a.Body)
			a.Body.Close()
			if a.StatusCode == code {
				return string(text)
			}
			err = fmt.Errorf("%d %s", a.StatusCode, text)
		}
		if zmtptest.Context(t).Err() != nil {
			t.Fatal(err)
		}
	}
}

// The commands of the documentation run unchanged, with the demo.
func TestDocumentation(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl to run the commands of the documentation with")
	}
	page, err := os.ReadFile("../../docs/kvindexd.md")
	must(t, err)
	s, engines, err := demoSettings(zmtptest.Context(t))
	for _, e := range engines {
		defer e.Close()
	}
	must(t, err)
	public, admin, _ := running(t, s)
	until(t, public+"/readyz", http.StatusOK)
	random := regexp.MustCompile(`"id":"[^"]*"`)
	place := strings.NewReplacer("localhost:8080", public, "localhost:8081", admin)
	run := func(command string) string {
		t.Helper()
		out, err := exec.Command("bash", "-c", strings.Replace(place.Replace(command), "curl", curl, 1)).CombinedOutput()
		if err != nil || len(out) == 0 || bytes.HasPrefix(out, []byte(`{"error"`)) {
			t.Errorf("%s\n%s%v", command, out, err)
		}
		return random.ReplaceAllString(strings.TrimSpace(string(out)), `"id":"..."`)
	}
	ran := 0
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		ran++
		if got := run(line); strings.HasPrefix(lines[i+1], "{") && got != lines[i+1] {
			t.Errorf("%s\n%s, and the page has\n%s", line, got, lines[i+1])
		}
	}
	for _, command := range tries(strings.TrimPrefix(public, "http://"), strings.TrimPrefix(admin, "http://")) {
		ran++
		run(command)
	}
	if ran < 15 {
		t.Errorf("only %d commands", ran)
	}
}
