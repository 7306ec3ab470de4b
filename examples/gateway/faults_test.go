//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

// asEngine is the environment variable that makes this test binary an engine: its value is the
// engine's name. asGateway makes it the gateway.
const (
	asEngine  = "KVINDEX_GATEWAY_ENGINE"
	asGateway = "KVINDEX_GATEWAY"
)

func TestMain(m *testing.M) {
	if os.Getenv(asGateway) != "" {
		main()
		return
	}
	if pod := os.Getenv(asEngine); pod != "" {
		if err := playEngine(pod); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	zmtptest.Main(m)
}

// TestSecondSignal: a gateway that waits for the end of an answer ends at once at the second SIGTERM.
func TestSecondSignal(t *testing.T) {
	end := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-end
	}))
	defer engine.Close()
	defer close(end)
	at := "127.0.0.1:" + zmtptest.FreePort(t)
	cmd := exec.CommandContext(zmtptest.Context(t), os.Args[0], "-listen", at, "-model", model, "-folder", tinyModel(t), "-pods", "a="+engine.Listener.Addr().String(), "-estimated", "100")
	cmd.Env = append(os.Environ(), asGateway+"=1")
	ok(t, cmd.Start())
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	(&rig{t: t}).until("an answer", func() bool {
		resp, err := client.Post("http://"+at+"/v1/completions", "", strings.NewReader(hello))
		if err == nil {
			t.Cleanup(func() { resp.Body.Close() })
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	if err := zmtptest.Terminate(cmd); fmt.Sprint(err) != "signal: terminated" {
		t.Error(err)
	}
}

// playEngine runs an engine until its standard input, which has commands, ends. It writes its
// events.Pod, and then a line when a request comes and when its answer begins.
func playEngine(pod string) error {
	m, err := lettersModel()
	if err != nil {
		return err
	}
	engines, described, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: pod, Model: model, LLM: m, Blocks: 400, Replay: true, StepTime: time.Millisecond}, 1)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	described.Labels = map[string]string{"port": port}
	if err := json.NewEncoder(os.Stdout).Encode(described); err != nil {
		return err
	}
	var connections sync.Map
	server := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(c net.Conn, state http.ConnState) {
			connections.Store(c, true)
			if state == http.StateClosed {
				connections.Delete(c)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			id := req.Header.Get("X-Request-Id")
			if id != "" {
				say("came", id)
			}
			engines[0].ServeHTTP(&firstByteWriter{ResponseWriter: w, id: id}, req)
		}),
	}
	go server.Serve(listener)
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		switch commands.Text() {
		case "reset":
			connections.Range(func(c, _ any) bool {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.(*net.TCPConn).Close()
				return true
			})
		case "restart":
			if err := engines[0].Restart(); err != nil {
				return err
			}
		}
	}
	return nil
}

func say(what, id string) {
	fmt.Fprintln(os.Stdout, what, id, time.Now().UnixNano()) // in one Write
}

// firstByteWriter calls a function after the first byte of an answer.
type firstByteWriter struct {
	http.ResponseWriter
	id    string
	begun bool
}

func (w *firstByteWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *firstByteWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if !w.begun && w.id != "" {
		w.begun = true
		if http.NewResponseController(w.ResponseWriter).Flush() == nil && err == nil {
			say("began", w.id)
		}
	}
	return n, err
}

// process is an engine in a child process.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	pod events.Pod
}

// incident is a line that an engine wrote.
type incident struct {
	what, pod string
	at        int64
}

// siege is a gateway in front of engines in child processes, under the load of clients.
type siege struct {
	*rig
	engines map[string]*process
	readers sync.WaitGroup

	log     sync.Mutex // guards history
	history map[string][]incident

	stops       []incident // alternately when an engine was stopped and when it continued
	stop, pause atomic.Bool
	pending     atomic.Int32 // requests without an answer
	answers     map[string]*atomic.Int64
	broken      atomic.Int64
}

func (s *siege) launch(pod string) {
	t := s.t
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), asEngine+"="+pod)
	p.Stderr = os.Stderr
	var err error
	p.in, err = p.StdinPipe()
	ok(t, err)
	out, err := p.StdoutPipe()
	ok(t, err)
	ok(t, p.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadBytes('\n')
	ok(t, err)
	ok(t, json.Unmarshal(first, &p.pod))
	s.engines[pod] = p
	s.readers.Go(func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			h := incident{pod: pod}
			var id string
			if _, err := fmt.Sscan(line, &h.what, &id, &h.at); err != nil {
				t.Errorf("%s wrote %q: %v", pod, line, err)
				return
			}
			s.log.Lock()
			s.history[id] = append(s.history[id], h)
			s.log.Unlock()
		}
	})
}

func (s *siege) note(id, what, pod string) {
	s.log.Lock()
	defer s.log.Unlock()
	s.history[id] = append(s.history[id], incident{what, pod, time.Now().UnixNano()})
}

// late reports whether a request was sent before or while its engine was stopped, and reached the
// engine when it continued.
func (s *siege) late(all []incident, came incident) bool {
	for i := 0; i < len(s.stops); i += 2 {
		if stopped, continued := s.stops[i], s.stops[i+1]; stopped.pod == came.pod && stopped.at < came.at {
			for _, h := range all {
				if h.what == "asked" && h.at < continued.at {
					return true
				}
			}
		}
	}
	return false
}

func (s *siege) pods() (pods []events.Pod) {
	for _, p := range s.engines {
		pods = append(pods, p.pod)
	}
	return pods
}

func (p *process) end() {
	_ = p.Process.Signal(syscall.SIGCONT)
	_ = p.Process.Kill()
	_ = p.Wait()
}

var ids = regexp.MustCompile(`"id":"cmpl-([abc])-\d+"`)

// ask sends a request, and returns the pod that answered. It fails the test if the request fails
// before its answer begins, or if several engines wrote the answer.
func (s *siege) ask(id, body string) (pod string) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.front.URL+"/v1/chat/completions", strings.NewReader(body))
	ok(s.t, err)
	req.Header.Set("X-Request-Id", id)
	s.note(id, "asked", "")
	s.pending.Add(1)
	resp, err := s.client.Do(req)
	if err != nil {
		s.pending.Add(-1)
		s.t.Errorf("%s: %v", id, err)
		return ""
	}
	defer resp.Body.Close()
	answer := bufio.NewReader(resp.Body)
	_, err = answer.Peek(1)
	s.pending.Add(-1)
	if err != nil || resp.StatusCode != http.StatusOK {
		all, _ := io.ReadAll(answer)
		s.t.Errorf("%s: %s, %v: %s", id, resp.Status, err, all)
		return ""
	}
	all, err := io.ReadAll(answer)
	_, _ = fmt.Sscanf(resp.Header.Get("X-Routed"), "pod=%1s", &pod)
	if err != nil {
		s.broken.Add(1)
		return pod
	}
	named := ids.FindAllSubmatch(all, -1)
	for _, n := range named {
		if string(n[0]) != string(named[0][0]) || string(n[1]) != pod {
			s.t.Errorf("%s, answered by %s: %s", id, pod, all)
		}
	}
	if len(named) == 0 {
		s.t.Errorf("%s, answered by %s: %s", id, pod, all)
	}
	s.answers[pod].Add(1)
	return pod
}

// load is a client that has conversations until stop.
func (s *siege) load(client int) {
	random := rand.New(rand.NewPCG(uint64(client), 3))
	for n := 0; !s.stop.Load(); {
		messages := []message{{"system", strings.Repeat(fmt.Sprint("system ", random.IntN(3), ", "), 20)}}
		for turn := 0; turn < 4 && !s.stop.Load(); turn++ {
			messages = append(messages, message{"user", randomText(random, 60)})
			s.until("the end of a pause", func() bool { return !s.pause.Load() })
			n++
			s.ask(fmt.Sprint(client, ".", n), bodyOf(map[string]any{"model": model, "messages": messages, "max_tokens": 8, "stream": n%2 == 0}))
			messages = append(messages, message{"assistant", randomText(random, 40)})
		}
	}
}

// cachedTokens returns the gateway's score of a prompt at a pod.
func (s *siege) cachedTokens(pod, body string) int {
	var answer kvindex.Answer
	ok(s.t, s.gateway.index.ScoreRequest(s.ctx, &kvindex.Request{Body: []byte(body), Pods: []string{pod}}, &answer))
	return answer.Pods[0].CachedTokens
}

var episodes = flag.Int("episodes", 1, "how often each fault of TestFaults happens; the long form is 20")

// TestFaults: under load one of three engines is killed, stopped, restarted with an empty cache,
// or resets its connections. No request fails before its answer has begun. No request is retried
// after the first byte of its answer, or sent to one engine twice. The cache of a dead engine
// attracts no request, and the engine gets requests again when it is back.
func TestFaults(t *testing.T) {
	zmtptest.NoLeaks(t)
	s := &siege{rig: &rig{t: t}, engines: map[string]*process{}, history: map[string][]incident{}, answers: map[string]*atomic.Int64{}}
	names := []string{"a", "b", "c"}
	t.Cleanup(func() {
		for _, p := range s.engines {
			p.end()
		}
		s.readers.Wait()
	})
	for _, pod := range names {
		s.answers[pod] = new(atomic.Int64)
		s.launch(pod)
	}
	l := wide
	l.firstByte = 5 * time.Second
	s.start(l, s.pods())
	s.until("a connection to all", func() bool { return s.gateway.picker.Ready().OK() })
	var clients sync.WaitGroup
	for client := range 6 {
		clients.Go(func() { s.load(client) })
	}
	share := func(pod string) {
		t.Helper()
		least := s.answers[pod].Load() + 3
		s.until("an answer of "+pod, func() bool { return s.answers[pod].Load() >= least })
	}
	probes := 0
	n := 4 * *episodes
	if testing.Short() {
		n = 1
	}
	for i := range n {
		fault, pod := []string{"killed", "stopped", "restart", "reset"}[i%4], names[i/4%3]
		share(pod)
		// probe is a prompt that this pod alone holds.
		var probe string
		for at := ""; at != pod; probes++ {
			probe = bodyOf(map[string]any{"model": model, "messages": []message{{"user", strings.Repeat(fmt.Sprint("probe ", probes, ", "), 20)}}})
			at = s.ask(fmt.Sprint("probe", probes), probe)
		}
		s.until("an event of "+pod, func() bool { return s.cachedTokens(pod, probe) > 0 })
		engine := s.engines[pod]
		switch fault {
		case "killed":
			ok(t, engine.Process.Kill())
		case "stopped":
			s.stops = append(s.stops, incident{pod: pod, at: time.Now().UnixNano()})
			ok(t, engine.Process.Signal(syscall.SIGSTOP))
		default:
			fmt.Fprintln(engine.in, fault)
		}
		switch fault {
		case "killed", "stopped":
			s.until("that it is seen", func() bool { return s.gateway.health.isDown(pod) })
			s.pause.Store(true)
			s.until("answers of all others", func() bool { return s.pending.Load() == 0 })
			before := s.failovers()
			for n := range 5 {
				if at := s.ask(fmt.Sprint("again", probes, ".", n), probe); at == pod {
					t.Errorf("%s answers, which is %s", pod, fault)
				}
			}
			if after := s.failovers(); after != before {
				t.Errorf("%d requests were sent to %s, which is %s", after-before, pod, fault)
			}
			s.pause.Store(false)
			if fault == "killed" {
				_ = engine.Wait()
				s.launch(pod)
				ok(t, s.gateway.fleet.Set("test", s.pods()))
			} else {
				s.stops = append(s.stops, incident{pod: pod, at: time.Now().UnixNano()})
				ok(t, engine.Process.Signal(syscall.SIGCONT))
			}
		case "restart":
			s.until("the score of an empty cache", func() bool { return s.cachedTokens(pod, probe) == 0 })
		}
		share(pod)
	}
	s.stop.Store(true)
	clients.Wait()
	sent, again := 0, 0
	s.log.Lock()
	defer s.log.Unlock()
	for id, all := range s.history {
		for i, h := range all {
			if h.what != "came" {
				continue
			}
			sent++
			for k, other := range all {
				switch {
				case k == i:
				case other.what == "began" && other.at < h.at && !s.late(all, h):
					t.Errorf("%s: %s had begun to answer when %s got it", id, other.pod, h.pod)
				case other.what == "came" && k < i:
					again++
					if other.pod == h.pod {
						t.Errorf("%s: %s got it twice", id, h.pod)
					}
				}
			}
		}
	}
	t.Logf("%d requests were sent, %d of them again; %d answers broke; %+v", sent, again, s.broken.Load(), s.gateway.counts)
}
