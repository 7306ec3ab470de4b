package resp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve runs a server on a Unix socket and returns its path.
func serve(t testing.TB, cfg Config) (*Server, string) { return serveAt(t, cfg, time.Now) }

// serveAt is serve with a clock.
func serveAt(t testing.TB, cfg Config, now func() time.Time) (*Server, string) {
	t.Helper()
	s, err := New(cfg)
	must(t, err)
	s.values.now = now
	dir, err := os.MkdirTemp("", "resp") // a short path
	must(t, err)
	sock := filepath.Join(dir, "s")
	l, err := net.Listen("unix", sock)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	running.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := s.values.store.Stats().Leased; n != 0 {
			t.Errorf("%d pages are leased after the end", n)
		}
		os.RemoveAll(dir)
	})
	return s, sock
}

// redisServer runs redis-server on a Unix socket.
func redisServer(t testing.TB, flags ...string) string {
	t.Helper()
	name, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("KVINDEX_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip("redis-server is not installed")
	}
	dir, err := os.MkdirTemp("", "redis")
	must(t, err)
	sock := filepath.Join(dir, "s")
	cmd := exec.Command(name, append([]string{"--port", "0", "--unixsocket", sock, "--save", "", "--dir", dir}, flags...)...)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		os.RemoveAll(dir)
	})
	for {
		if nc, err := net.Dial("unix", sock); err == nil {
			nc.Close()
			return sock
		}
		select {
		case <-ended:
			t.Fatalf("redis-server has ended: %s", out)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// client sends commands and reads the bytes of replies.
type client struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func dial(t testing.TB, sock string) *client {
	t.Helper()
	nc, err := net.Dial("unix", sock)
	must(t, err)
	t.Cleanup(func() { nc.Close() })
	return newClient(t, nc)
}

func newClient(t testing.TB, nc net.Conn) *client { return &client{t, nc, bufio.NewReader(nc)} }

// array encodes a command.
func array(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

func (c *client) reply() (string, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return line, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return line, nil
		}
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.in, b)
		return line + string(b), err
	case '%':
		n *= 2
	case '*':
	default:
		return line, nil
	}
	for range n {
		s, err := c.reply()
		if err != nil {
			return line, err
		}
		line += s
	}
	return line, nil
}

func (c *client) ask(args ...string) string {
	c.t.Helper()
	c.send(array(args...))
	s, err := c.reply()
	if err != nil {
		c.t.Fatalf("%.80q: %q, %v", args, s, err)
	}
	return s
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// want sends a command and compares its reply.
func (c *client) want(reply string, args ...string) {
	c.t.Helper()
	if got := c.ask(args...); got != reply {
		c.t.Fatalf("%.80q: %.200q, not %.200q", args, got, reply)
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

const (
	null = "$-1\r\n"
	ok   = "+OK\r\n"
	one  = ":1\r\n"
	zero = ":0\r\n"
)

// small is a config in which a value of a few kilobytes has several pages.
func small() Config {
	return Config{MemoryBytes: 16 << 20, PageBytes: 4096, MaxValue: 1 << 20, Promise: -1, FlushAll: true}
}

// TestRedis sends the same bytes to redis-server and to a Server, and compares the bytes of all
// replies.
func TestRedis(t *testing.T) {
	_, ours := serve(t, small())
	theirs := redisServer(t)
	for _, resp := range []string{"2", "3"} {
		a, b := dial(t, ours), dial(t, theirs)
		if resp == "3" {
			for _, c := range []*client{a, b} {
				if got := c.ask("HELLO", "3"); !strings.HasPrefix(got, "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n") {
					t.Fatalf("HELLO: %q", got)
				}
			}
		}
		compare := func(sent []byte, replies int) {
			t.Helper()
			a.send(sent)
			b.send(sent)
			for i := range replies {
				x, errX := a.reply()
				y, errY := b.reply()
				if x != y || !errors.Is(errX, errY) && (errX == nil) != (errY == nil) {
					t.Fatalf("RESP%s, %.300q, reply %d: %.300q, %v; redis-server %.300q, %v", resp, sent, i, x, errX, y, errY)
				}
			}
		}
		big := strings.Repeat("0123456789abcdef", 5000)
		for _, args := range [][]string{
			{"PING"}, {"ping", "x"}, {"PING", "x", "y"}, {"GET", "none"}, {"GET"}, {"GET", "a", "b"}, {"get", "none"},
			{"SET", "k"}, {"SET", "k", "v"}, {"GET", "k"}, {"STRLEN", "k"}, {"EXISTS", "k"}, {"EXISTS", "k", "k", "none"}, {"TTL", "k"}, {"TTL", "none"}, {"PTTL", "k"},
			{"SET", "k", big}, {"GET", "k"}, {"STRLEN", "k"}, {"SET", "k", ""}, {"GET", "k"}, {"MGET", "k", "none", "k"}, {"MGET"},
			{"SET", "", "empty"}, {"GET", ""}, {"DEL", ""}, {"DEL", "k", "k", "none"}, {"DEL", "k"}, {"DEL"}, {"EXISTS"}, {"STRLEN", "none"},
			{"SET", "k", "v", "EX"}, {"SET", "k", "v", "EX", "x"}, {"SET", "k", "v", "EX", "0"}, {"SET", "k", "v", "PX", "-1"}, {"SET", "k", "v", "EX", "1", "PX", "1"},
			{"SET", "k", "v", "EX", "9223372036854775807"}, {"SET", "k", "v", "ex", "100000"}, {"GET", "k"}, {"SET", "k", "v"}, {"TTL", "k"},
			{"SELECT", "1"}, {"GET", "k"}, {"SET", "k", "other"}, {"DBSIZE"}, {"SELECT", "0"}, {"GET", "k"}, {"DBSIZE"}, {"SELECT", "16"}, {"SELECT", "-1"}, {"SELECT", "x"},
			{"SET", "p:kv_bytes", big}, {"SET", "p:metadata", "meta"}, {"GET", "p:kv_bytes"}, {"GET", "p:metadata"}, {"MGET", "p:metadata", "p:kv_bytes", "p:"}, {"EXISTS", "p:metadata", "p:kv_bytes"},
			{"STRLEN", "p:kv_bytes"}, {"STRLEN", "p:metadata"}, {"DBSIZE"}, {"DEL", "p:kv_bytes", "p:metadata"}, {"GET", "p:metadata"}, {"DBSIZE"},
			{"CLIENT", "GETNAME"}, {"CLIENT", "SETNAME", "me"}, {"CLIENT", "GETNAME"}, {"CLIENT", "SETNAME", "a b"}, {"CLIENT", "FOO"}, {"CLIENT", "ID", "x"}, {"CLIENT"},
			{"AUTH", "x"}, {"AUTH", "default", "x"}, {"AUTH", "other", "x"}, {"AUTH"}, {"AUTH", "a", "b", "c"}, {"HELLO", "4"}, {"HELLO", "x"}, {"HELLO", resp, "FOO"},
			{"CONFIG", "GET", "save"}, {"CONFIG", "GET", "SAV?"}, {"CONFIG", "GET", "none"}, {"CONFIG", "GET"}, {"CONFIG"},
			{"SCAN", "x"}, {"SCAN", "0", "MATCH"}, {"SCAN", "0", "COUNT", "0"}, {"SCAN", "0", "COUNT", "x"}, {"SCAN"}, {"SCAN", "0", "MATCH", "k*", "COUNT", "100"}, {"SCAN", "0", "MATCH", "[^k]"},
			{"NOSUCH"}, {"NOSUCH", "a b", "c"}, {"NO\r\nSUCH", "a"}, {"NOSUCH", strings.Repeat("x", 300), "y"},
			{"FLUSHALL", "FOO"}, {"FLUSHALL"}, {"DBSIZE"}, {"GET", "k"}, {"SELECT", "1"}, {"GET", "k"}, {"SELECT", "0"}, {"FLUSHALL", "ASYNC"},
			{"DBSIZE", "x"}, {"CLIENT", "SETNAME", ""}, {"CLIENT", "GETNAME"},
		} {
			compare(array(args...), 1)
		}
		compare([]byte("PING\r\n\r\n  \r\nping x\nSET in line\r\nGET in\r\n*0\r\n*-1\r\nDEL in\r\n"), 5)
		r := rand.New(rand.NewPCG(uint64(len(resp)), 1))
		for range 300 { // pipelines
			var sent []byte
			replies := 0
			add := func(args ...string) {
				sent = append(sent, array(args...)...)
				replies++
			}
			for range 1 + r.IntN(20) {
				k := "k" + strconv.Itoa(r.IntN(10))
				v := big[:[]int{0, 1, 100, 2047, 2048, 2049, 4096, 10000, 16384, 16385, 50000}[r.IntN(11)]]
				meta := v[:min(len(v), 28)]
				switch r.IntN(11) {
				case 0, 1:
					add("SET", k, v)
				case 2:
					add("SET", k+"kv_bytes", v)
					add("SET", k+"metadata", meta)
				case 3:
					add("SET", k+"metadata", meta)
					add("SET", k+"kv_bytes", v)
				case 4:
					add("MGET", k+"metadata", k+"kv_bytes", k)
				case 5:
					add("EXISTS", k, k+"metadata", k)
				case 6:
					add("DEL", k, k)
				case 7:
					add("DEL", k+"metadata", k+"kv_bytes")
				case 8:
					add("DBSIZE")
				case 9:
					add("STRLEN", k)
				default:
					add("GET", k)
				}
			}
			compare(sent, replies)
		}
		compare([]byte("*1\r\n$8\r\nFLUSHALL\r\n"), 1)
	}
	// Bytes that end a connection.
	for _, sent := range []string{
		"*x\r\n", "*1\r\nPING\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n", "*1\r\n$01\r\n", "*-x\r\n", "*1048577000000\r\n", "*2\r\n$3\r\nGET\r\n:1\r\n", "*1\r\n$+1\r\n", "*1\r\n$-0\r\n", "QUIT\r\nPING\r\n",
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$-1\r\n", "*1\r\n$4\r\nQUIT\r\n",
	} {
		var got [2]string
		for i, sock := range []string{ours, theirs} {
			c := dial(t, sock)
			c.send([]byte(sent))
			b, _ := io.ReadAll(c.in) // a reset is as good as a close
			got[i] = string(b)
		}
		if got[0] != got[1] {
			t.Errorf("%q: %q; redis-server %q", sent, got[0], got[1])
		}
	}
}

// TestRedisPassword compares the commands allowed before the password.
func TestRedisPassword(t *testing.T) {
	cfg := small()
	cfg.Password = []byte("secret")
	_, ours := serve(t, cfg)
	theirs := redisServer(t, "--requirepass", "secret")
	for _, script := range [][][]string{
		{{"GET", "k"}, {"SET", "k", "v"}, {"PING"}, {"NOSUCH"}, {"GET"}, {"AUTH", "wrong"}, {"AUTH", "other", "secret"}, {"HELLO", "3"}, {"HELLO", "3", "AUTH", "default", "wrong"}, {"AUTH", "secret"}, {"GET", "none"}, {"AUTH", "wrong"}, {"GET", "none"}},
		{{"AUTH", "default", "secret"}, {"PING"}}, {{"QUIT"}},
	} {
		a, b := dial(t, ours), dial(t, theirs)
		for _, args := range script {
			if x, y := a.ask(args...), b.ask(args...); x != y {
				t.Errorf("%q: %q; redis-server %q", args, x, y)
			}
		}
	}
	for _, sent := range []string{"*11\r\n", "*2\r\n$3\r\nGET\r\n$16385\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16385\r\n"} {
		var got [2]string
		for i, sock := range []string{ours, theirs} {
			c := dial(t, sock)
			c.send([]byte(sent))
			b, _ := io.ReadAll(c.in)
			got[i] = string(b)
		}
		if got[0] != got[1] {
			t.Errorf("%q: %q; redis-server %q", sent, got[0], got[1])
		}
	}
	if got := dial(t, ours).ask("HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"); !strings.HasPrefix(got, "%7\r\n") {
		t.Errorf("%q", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
