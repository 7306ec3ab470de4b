package resp

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
)

var (
	hostile = flag.Int("resp.hostile", 1000, "long form: hostile connections, 10000")
	kills   = flag.Int("resp.kills", 25, "long form: kill -9 of a server, 500")
)

// TestSlow: clients that stop within a reply or a SET delay nobody else.
func TestSlow(t *testing.T) {
	cfg := small()
	cfg.MaxValue = 3 << 20
	s, sock := serve(t, cfg)
	c := dial(t, sock)
	c.want(ok, "SET", "large", made("large", 0, 1<<20))
	slow := stopped(t, sock)
	for i := range 100 {
		k, v := fmt.Sprint("k", i), made("k", i, 20_000)
		c.want(ok, "SET", k, v)
		c.want(one, "EXISTS", k)
		c.want(bulk(v), "GET", k)
	}
	for _, c := range slow {
		c.Close()
	}
	for s.connections() > 1 {
		time.Sleep(time.Millisecond)
	}
	if n := s.values.incoming; n != 0 {
		t.Errorf("%d bytes in flight", n)
	}
	c.want(bulk(made("large", 0, 1<<20)), "GET", "large")
}

// stopped returns clients that stop within a reply or a SET.
func stopped(t *testing.T, sock string) (slow []*client) {
	for range 5 {
		a, b := dial(t, sock), dial(t, sock)
		a.send(array("GET", "large"))
		b.send([]byte("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$3000000\r\n" + strings.Repeat("x", 50_000)))
		slow = append(slow, a, b)
	}
	return slow
}

// TestStall: clients that stop are disconnected.
func TestStall(t *testing.T) {
	cfg := small()
	cfg.MaxValue, cfg.Stall = 3<<20, 50*time.Millisecond
	cfg.Password = []byte("secret")
	_, sock := serve(t, cfg)
	if b, err := io.ReadAll(dial(t, sock).in); len(b) > 0 || err != nil { // it sends no password
		t.Errorf("%q, %v", b, err)
	}
	cfg.Password = nil
	s, sock := serve(t, cfg)
	d := s.values.draft(1 << 20)
	for b := d.buffer(); b != nil; b = d.buffer() {
		d.wrote(len(b))
	}
	if err := s.values.put(header{ref: ref{name: "large"}}, d); err != nil {
		t.Fatal(err)
	}
	slow := stopped(t, sock)
	for s.connections() > 0 || s.accepted() < int64(len(slow)) {
		time.Sleep(time.Millisecond)
	}
	for _, c := range slow {
		if n, _ := io.Copy(io.Discard, c.in); n >= 1<<20 { // a reset is as good as a close
			t.Errorf("a client that did not read has got %d bytes", n)
		}
	}
	if n := s.values.store.Stats().Leased; n != 0 {
		t.Errorf("%d pages are leased", n)
	}
}

// largest is a listener whose connections record the size of the largest write.
type largest struct {
	net.Listener
	most atomic.Int64
}

func (l *largest) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return measuringConn{nc, l}, err
}

type measuringConn struct {
	net.Conn
	l *largest
}

func (c measuringConn) Write(b []byte) (int, error) {
	c.l.most.Store(max(c.l.most.Load(), int64(len(b))))
	return c.Conn.Write(b)
}

// TestManySmall: the reply to one command with many values is not buffered as a whole.
func TestManySmall(t *testing.T) {
	s, sock := serve(t, small())
	l, err := net.Listen("unix", sock+"2")
	must(t, err)
	m := &largest{Listener: l}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(ctx, m) })
	c := dial(t, sock+"2")
	v := made("k", 0, 10_000)
	c.want(ok, "SET", "k", v)
	c.want("*1000\r\n"+strings.Repeat(bulk(v), 1000), append([]string{"MGET"}, slices.Repeat([]string{"k"}, 1000)...)...)
	cancel()
	serving.Wait()
	if n := m.most.Load(); n > 2*outBytes {
		t.Errorf("a write of %d bytes", n)
	}
}

// TestIncoming bounds the memory of values in transit: a value without room is lost, with the one
// it replaces, and counted.
func TestIncoming(t *testing.T) {
	cfg := small()
	cfg.MemoryBytes, cfg.IncomingBytes = 32<<20, 1<<20+64<<10
	s, sock := serve(t, cfg)
	c := dial(t, sock)
	var open []*client
	for i := range 10 {
		c.want(ok, "SET", fmt.Sprint("k", i), "old")
		o := dial(t, sock)
		o.send(fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$2\r\nk%d\r\n$1000000\r\n%s", i, strings.Repeat("x", 200_000)))
		open = append(open, o)
	}
	for i, o := range open {
		o.send([]byte(strings.Repeat("x", 800_000) + "\r\n"))
		if got, err := o.reply(); got != ok {
			t.Fatalf("%d: %q, %v", i, got, err)
		}
	}
	there := 0
	for i := range open {
		if got := c.ask("STRLEN", fmt.Sprint("k", i)); got == ":1000000\r\n" {
			there++
		} else if got != zero {
			t.Errorf("k%d: %q", i, got)
		}
	}
	s.values.mu.Lock()
	defer s.values.mu.Unlock()
	if lost := int(s.values.count.lost); there+lost < 10 || s.values.incoming != 0 {
		t.Errorf("%d are there, %d were lost, %d bytes in flight", there, lost, s.values.incoming)
	}
}

func TestClients(t *testing.T) {
	cfg := small()
	cfg.Clients = 3
	_, sock := serve(t, cfg)
	for range 3 {
		dial(t, sock).want("+PONG\r\n", "PING")
	}
	b, err := io.ReadAll(dial(t, sock).in)
	if string(b) != "-ERR max number of clients reached\r\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestHostile has connections that send invalid data and end anywhere. They leave nothing behind.
func TestHostile(t *testing.T) {
	cfg := small()
	cfg.Promise = time.Hour
	s, sock := serve(t, cfg)
	c := dial(t, sock)
	c.want(ok, "SET", "mine", made("mine", 0, 100_000))
	c.want(one, "EXISTS", "mine")
	pieces := []string{
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$99999999999999\r\n", "*1000000\r\n", "*65536\r\n", "$", "*", "\r\n", "\x00", "GET mine\r\n",
		"*2\r\n$3\r\nGET\r\n$4\r\nmine\r\n", strings.Repeat("*2\r\n$3\r\nGET\r\n$4\r\nmine\r\n", 50), strings.Repeat("x", 70_000), "*2\r\n$3\r\nDEL\r\n$9000000\r\n", "SET kkv_bytes v\r\n",
		"*3\r\n$4\r\nMGET\r\n$5000\r\n" + strings.Repeat("y", 5000) + "\r\n$1\r\nz\r\n", "HELLO 3\r\n", "QUIT\r\n", "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n$2\r\nEX\r\n",
	}
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := rand.New(rand.NewPCG(3, 3))
	for from := 0; from < *hostile; from += 100 {
		var running sync.WaitGroup
		for range 100 {
			seed := r.Uint64()
			running.Go(func() {
				r := rand.New(rand.NewPCG(seed, 1))
				nc, err := net.Dial("unix", sock)
				if err != nil {
					t.Error(err)
					return
				}
				defer nc.Close()
				for range r.IntN(6) {
					p := pieces[r.IntN(len(pieces))]
					if _, err := nc.Write([]byte(p[:len(p)-r.IntN(2)*r.IntN(len(p))])); err != nil {
						return
					}
				}
				if r.IntN(2) == 0 { // it reads a part of the replies
					nc.(*net.UnixConn).CloseWrite()
					io.CopyN(io.Discard, nc, int64(r.IntN(200_000)))
				}
			})
		}
		running.Wait()
	}
	for s.connections() > 1 || runtime.NumGoroutine() > goroutines || openFiles(t) > files {
		time.Sleep(time.Millisecond)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	c.want(bulk(made("mine", 0, 100_000)), "GET", "mine")
	s.values.mu.Lock()
	defer s.values.mu.Unlock()
	for _, el := range s.values.halves {
		s.values.dropHalf(el)
	}
	if s.values.incoming != 0 {
		t.Errorf("%d bytes in flight", s.values.incoming)
	}
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	return len(entries)
}

func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) accepted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextID
}

// TestKilledServer is the process that TestKill kills.
func TestKilledServer(t *testing.T) {
	dir := os.Getenv("KVOFFLOAD_SERVE")
	if dir == "" {
		return // TestKill runs it
	}
	segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: filepath.Join(dir, "kv"), Bytes: 1 << 20, Buffered: true})
	must(t, err)
	cfg := small()
	cfg.MemoryBytes, cfg.MaxValue, cfg.Segments, cfg.EpochFile = 512<<10, 40<<10, segments, filepath.Join(dir, "kv", "epoch")
	s, err := New(cfg)
	must(t, err)
	sock := filepath.Join(dir, "s")
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	must(t, err)
	fmt.Println("serving")
	t.Fatal(s.Serve(t.Context(), l))
}

// TestKill kills a server at random points of SET, DEL and FLUSHALL, again and again with one
// directory: each value is right or absent, no pair is torn, and deleted values stay deleted.
func TestKill(t *testing.T) {
	dir, err := os.MkdirTemp("", "resp")
	must(t, err)
	defer os.RemoveAll(dir)
	r := rand.New(rand.NewPCG(1, 9))
	set := make(map[string]map[string]bool) // by key: the possible values
	found, absent := 0, 0
	for kill := range *kills {
		child := exec.Command(os.Args[0], "-test.run=^TestKilledServer$")
		child.Env = append(os.Environ(), "KVOFFLOAD_SERVE="+dir)
		out, err := child.StdoutPipe()
		must(t, err)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("serving\n"))
		if _, err := io.ReadFull(out, line); string(line) != "serving\n" {
			t.Fatalf("kill %d: %q, %v", kill, line, err)
		}
		c := dial(t, filepath.Join(dir, "s"))
		for k, may := range set {
			got := c.ask("MGET", k+"metadata", k+"kv_bytes")
			switch {
			case got == "*2\r\n"+null+null:
				absent++
			case !may[got]:
				t.Fatalf("kill %d: %s has %.100q", kill, k, got)
			default:
				found++
			}
		}
		// The command in progress may have taken effect or not.
		stop := r.IntN(60)
		for i := 0; ; i++ {
			k := fmt.Sprint("k", r.IntN(30))
			v := made(k, r.IntN(1000), r.IntN(30_000))
			meta := fmt.Sprint(len(v))
			var cmd []byte
			n := 1
			before := set[k]
			switch op := r.IntN(40); {
			case op == 0:
				cmd = array("FLUSHALL")
			case op < 5:
				cmd = array("DEL", k+"metadata")
				set[k] = map[string]bool{}
			default:
				cmd, n = append(array("SET", k+"kv_bytes", v), array("SET", k+"metadata", meta)...), 2
				set[k] = map[string]bool{"*2\r\n" + bulk(meta) + bulk(v): true}
			}
			if i == stop {
				for old := range before {
					set[k][old] = true
				}
				c.send(cmd[:r.IntN(len(cmd)+1)])
				if kill%5 == 0 { // and kill before all is on disk
					break
				}
				c2 := dial(t, filepath.Join(dir, "s"))
				c2.want("+PONG\r\n", "PING")
				break
			}
			c.send(cmd)
			for range n {
				if got, err := c.reply(); err != nil || got[0] == '-' {
					t.Fatalf("kill %d: %q, %v", kill, got, err)
				}
			}
			if string(cmd) == string(array("FLUSHALL")) {
				clear(set)
			}
		}
		child.Process.Kill()
		child.Wait()
		c.Close()
		if v, err := offload.VerifySegments(filepath.Join(dir, "kv")); err != nil || v.Corrupt > 0 {
			t.Fatalf("kill %d: %+v, %v", kill, v, err)
		}
	}
	t.Logf("%d kills: %d pairs were there, %d not", *kills, found, absent)
	if found < *kills {
		t.Errorf("%d pairs were there after %d kills", found, *kills)
	}
}
