package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// nodesFile is where a node of a cluster keeps the other nodes and its own id.
const nodesFile = "nodes.conf"

// Server is a server that runs, or was killed. It is safe for concurrent use.
type Server struct {
	binary string
	port   int
	folder string   // of the log and the data
	args   []string // of the command line, without the port
	head   []string // arguments that come before all others

	mu      sync.Mutex // guards running, and the starts of the server
	running *process
	stopped atomic.Bool // by Stop
	mayLoad atomic.Bool // it counts as started while it loads
}

// Standalone starts a server without persistence. The arguments are those of the
// server's command line, such as "--maxmemory", "10mb". They win over the
// arguments that Standalone gives.
func Standalone(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, nil, append([]string{
		"--save", "",
		"--appendonly", "no",
		"--repl-diskless-sync-delay", "0",
		"--repl-ping-replica-period", "1",
		"--repl-timeout", "10", // a replica that was denied to synchronize may wait that long
	}, args...))
}

// start starts a server at a port that is free.
func start(tb testing.TB, head, args []string) *Server {
	tb.Helper()
	s := &Server{binary: binary(tb), folder: tb.TempDir(), head: head, args: args}
	if err := os.Mkdir(s.data(), 0o700); err != nil {
		tb.Fatalf("redistest: data folder: %v", err)
	}
	tb.Cleanup(func() { s.end(tb) })
	for {
		s.port = reservePort(tb)
		err := s.run()
		if err == nil {
			return s
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			tb.Fatalf("redistest: %v", err)
		}
	}
}

// end is the last thing that happens to a server.
func (s *Server) end(tb testing.TB) {
	if s.process() != nil {
		s.process().kill()
	}
	if tb.Failed() {
		tb.Logf("redistest: log of the server at %s:\n%s", s.Addr(), s.log())
	}
}

// run starts the process and waits until it answers.
func (s *Server) run(extra ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.log())
	p, err := launch(s.logFile(), s.binary, slices.Concat(s.head, []string{
		"--port", strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--dir", s.data(),
		"--daemonize", "no",
	}, s.args, extra)...)
	if err != nil {
		return fmt.Errorf("start of %s: %w", s.binary, err)
	}
	s.running = p
	s.stopped.Store(false)
	deadline := time.Now().Add(patience)
	for {
		err := s.answers(p.cmd.Process.Pid)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			log := s.log()[before:]
			if strings.Contains(log, "Address already in use") {
				return fmt.Errorf("%s at port %d: %w", s.binary, s.port, syscall.EADDRINUSE)
			}
			return fmt.Errorf("%s ended: %v:\n%s", s.binary, p.cmd.ProcessState, log)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.kill()
			return fmt.Errorf("%s at port %d does not answer within %v: %w", s.binary, s.port, patience, err)
		}
	}
}

// answers returns nil when the process with that id answers at the port.
func (s *Server) answers(pid int) error {
	conn, err := net.Dial("tcp4", s.Addr())
	if err != nil {
		return err // the client would log it
	}
	conn.Close()
	got, err := s.info(context.Background(), "process_id")
	if err != nil {
		return err
	}
	if got != strconv.Itoa(pid) {
		return fmt.Errorf("process %s has the port", got)
	}
	loading, err := s.info(context.Background(), "loading")
	if err == nil && loading == "1" && !s.mayLoad.Load() {
		return errors.New("the server loads its data")
	}
	return nil
}

func (s *Server) data() string    { return filepath.Join(s.folder, "data") }
func (s *Server) logFile() string { return filepath.Join(s.folder, "log") }

func (s *Server) log() string {
	text, _ := os.ReadFile(s.logFile()) // none before the first start
	return string(text)
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// up reports whether the server can answer.
func (s *Server) up() bool { return !s.process().ended() && !s.stopped.Load() }

// Addr returns the host and port of the server.
func (s *Server) Addr() string { return loopback(s.port) }

// Client returns a client of the server that retries nothing. It is closed when the
// test ends.
func (s *Server) Client(tb testing.TB) *redis.Client {
	client := s.client()
	tb.Cleanup(func() { client.Close() })
	return client
}

func (s *Server) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                     s.Addr(),
		Protocol:                 2,
		MaxRetries:               -1,
		DialerRetries:            1,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// do sends one command over a connection of its own.
func (s *Server) do(ctx context.Context, args ...any) (any, error) {
	client := s.client()
	defer client.Close()
	answer, err := client.Do(ctx, args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v at %s: %w", args, s.Addr(), err)
	}
	return answer, nil
}

// Do sends a command and returns its answer, or nil if that is null.
func (s *Server) Do(tb testing.TB, args ...any) any {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := s.do(ctx, args...)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return answer
}

// Set changes a setting of the running server with CONFIG SET.
func (s *Server) Set(tb testing.TB, name string, value any) {
	tb.Helper()
	s.Do(tb, "CONFIG", "SET", name, value)
}

// Info returns a field of INFO, such as "used_memory".
func (s *Server) Info(tb testing.TB, field string) string {
	tb.Helper()
	value, err := s.info(context.Background(), field)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return value
}

func (s *Server) info(ctx context.Context, field string) (string, error) {
	answer, err := s.do(ctx, "INFO", "all")
	if err != nil {
		return "", err
	}
	value, ok := fieldOf(answer, field)
	if !ok {
		return "", fmt.Errorf("INFO at %s has no field %q", s.Addr(), field)
	}
	return value, nil
}

// fieldOf finds a field in the answer to INFO or CLUSTER INFO.
func fieldOf(answer any, field string) (string, bool) {
	text, _ := answer.(string)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// Kill ends the server with SIGKILL. It does nothing if the server was killed
// before.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.process().kill()
}

func (s *Server) signal(tb testing.TB, sig syscall.Signal) {
	tb.Helper()
	if err := s.process().cmd.Process.Signal(sig); err != nil {
		tb.Fatalf("redistest: %v to the server at %s: %v", sig, s.Addr(), err)
	}
}

// Restart kills the server, if it runs, and starts it at the same port. The server
// finds what it wrote to disk before. Settings and users are those of the command
// line.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.restart(tb)
}

// restart adds arguments for this start only.
func (s *Server) restart(tb testing.TB, extra ...string) {
	tb.Helper()
	s.Kill(tb)
	eventually(tb, "restart", func(context.Context) error {
		err := s.run(extra...)
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			tb.Fatalf("redistest: restart: %v", err)
		}
		return err
	})
}

// RestartLoading is Restart of a server that answers LOADING at first: each key that it finds on
// disk takes so long, until LoadFast.
func (s *Server) RestartLoading(tb testing.TB, eachKey time.Duration) {
	tb.Helper()
	s.mayLoad.Store(true)
	defer s.mayLoad.Store(false)
	s.restart(tb,
		"--key-load-delay", strconv.FormatInt(eachKey.Microseconds(), 10),
		"--loading-process-events-interval-bytes", "1024",
	)
}

// LoadFast has a server load the rest without delay.
func (s *Server) LoadFast(tb testing.TB) {
	tb.Helper()
	s.Set(tb, "key-load-delay", 0)
}

// RestartEmpty is Restart after everything that the server wrote to disk was
// removed. A node of a cluster keeps its id and what it knows of the other nodes.
func (s *Server) RestartEmpty(tb testing.TB) {
	tb.Helper()
	s.Kill(tb)
	entries, err := os.ReadDir(s.data())
	if err != nil {
		tb.Fatalf("redistest: data folder: %v", err)
	}
	for _, entry := range entries {
		if entry.Name() == nodesFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.data(), entry.Name())); err != nil {
			tb.Fatalf("redistest: data folder: %v", err)
		}
	}
	s.restart(tb)
}

// UserArgs returns arguments that give a server a user who may use only keys that
// begin with prefix, and only some commands. The default user may still do all.
func UserArgs(name, password, prefix string, commands ...string) []string {
	args := []string{"--user", name, "on", ">" + password, "~" + prefix + "*"}
	for _, command := range commands {
		args = append(args, "+"+command)
	}
	return args
}
