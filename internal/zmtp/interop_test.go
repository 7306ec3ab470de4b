package zmtp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// patience bounds each wait of these tests.
const patience = time.Minute

// stranger is a publisher of another implementation.
type stranger struct {
	send  func(frames ...string) error
	flood func(n, size int) error // as in peer.py
}

func libzmqStranger(peer *zmtptest.Python) stranger {
	return stranger{
		send: func(frames ...string) error {
			for i, f := range frames {
				frames[i] = hex.EncodeToString([]byte(f))
			}
			_, err := peer.Do("send %s", strings.Join(frames, ","))
			return err
		},
		flood: func(n, size int) error { _, err := peer.Do("flood %d %d", n, size); return err },
	}
}

func zmq4Stranger(pub zmq4.Socket) stranger {
	send := func(frames ...[]byte) error { return pub.SendMulti(zmq4.NewMsgFrom(frames...)) }
	return stranger{
		send: func(frames ...string) error {
			var bs [][]byte
			for _, f := range frames {
				bs = append(bs, []byte(f))
			}
			return send(bs...)
		},
		flood: func(n, size int) error {
			for i := range n {
				if err := send([]byte("kv@flood"), binary.BigEndian.AppendUint64(nil, uint64(i)), bytes.Repeat([]byte{byte(i)}, size)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// libzmq starts a socket of libzmq and returns where it listens.
func libzmq(t *testing.T, args ...string) (peer *zmtptest.Python, endpoint string) {
	t.Helper()
	peer = zmtptest.StartPython(t, "testdata/peer.py", args...)
	return peer, peer.Ready["endpoint"].(string)
}

func dial(t *testing.T, endpoint string, cfg zmtp.Config) *zmtp.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := zmtp.Dial(ctx, endpoint, cfg)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// accept listens, makes a peer connect, and returns our end.
func accept(t *testing.T, endpoint string, cfg zmtp.Config, connect func(endpoint string)) *zmtp.Conn {
	t.Helper()
	ln, err := zmtp.Listen(t.Context(), endpoint)
	must(t, err)
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if nc, err := ln.Accept(); err == nil {
			accepted <- nc
		}
	}()
	connect(zmtp.Name(ln.Addr()))
	var nc net.Conn
	select {
	case nc = <-accepted:
	case <-time.After(patience):
		t.Fatal("nobody connected")
	}
	c, err := zmtp.Handshake(t.Context(), nc, "the peer", cfg)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSubHearsLibzmq(t *testing.T) {
	zmtptest.NeedLibzmq(t)
	endpoints := map[string]string{
		"tcp":  "tcp://127.0.0.1:*",
		"tcp6": "tcp://[::1]:*",
		"ipc":  "ipc://DIR/s",
	}
	n := 5000
	if testing.Short() {
		n = 2000
	}
	for name, endpoint := range endpoints {
		for _, kind := range []string{"PUB", "XPUB"} {
			if testing.Short() && (kind == "XPUB" && name != "tcp" || name == "tcp6") {
				continue
			}
			t.Run("connecting/"+name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				needIPv6(t, endpoint)
				peer, at := libzmq(t, kind, "bind", strings.Replace(endpoint, "DIR", t.TempDir(), 1))
				hear(t, dial(t, at, zmtp.Config{Type: zmtp.SUB}), libzmqStranger(peer), n)
			})
			t.Run("listening/"+name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				needIPv6(t, endpoint)
				var peer *zmtptest.Python
				sub := accept(t, strings.NewReplacer("*", "0", "DIR", t.TempDir()).Replace(endpoint), zmtp.Config{Type: zmtp.SUB}, func(at string) {
					peer, _ = libzmq(t, kind, "connect", at)
				})
				hear(t, sub, libzmqStranger(peer), n)
			})
		}
	}
}

// needIPv6 skips a test of an IPv6 endpoint where there is no IPv6.
func needIPv6(t *testing.T, endpoint string) {
	t.Helper()
	ln, err := net.Listen("tcp6", "[::1]:0")
	if err == nil {
		ln.Close()
	} else if strings.Contains(endpoint, "[") {
		t.Skipf("not tested: %s, there is no IPv6 here", endpoint)
	}
}

func TestSubHearsZMQ4(t *testing.T) {
	const flood = 2000
	t.Run("connecting", func(t *testing.T) {
		pub := zmq4.NewPub(t.Context())
		defer pub.Close()
		must(t, pub.Listen("tcp://127.0.0.1:0"))
		hear(t, dial(t, zmtp.Name(pub.Addr()), zmtp.Config{Type: zmtp.SUB}), zmq4Stranger(pub), flood)
	})
	t.Run("listening", func(t *testing.T) {
		pub := zmq4.NewPub(t.Context())
		defer pub.Close()
		dialled := make(chan error, 1)
		sub := accept(t, "tcp://127.0.0.1:0", zmtp.Config{Type: zmtp.SUB}, func(at string) {
			go func() { dialled <- pub.Dial(at) }() // it waits for the handshake
		})
		must(t, <-dialled)
		hear(t, sub, zmq4Stranger(pub), flood)
	})
}

// hear subscribes and checks that a publisher's messages arrive whole and in order: of all sizes,
// and many of them.
func hear(t *testing.T, sub *zmtp.Conn, pub stranger, flood int) {
	t.Helper()
	for _, topic := range []string{"kv@", "other"} {
		must(t, sub.Subscribe(topic))
	}
	sizes := []int{0, 1, 255, 256, 4095, 4096, 65_535, 65_536, 1 << 20, 10 << 20}
	heard, failed := make(chan string, 100), make(chan error, 1)
	go func() { // each topic as it arrives, but only the end of the flood
		numbers := make(map[int]uint64)
		for {
			m, err := sub.Receive()
			if err != nil {
				failed <- err
				return
			}
			if string(m[0]) != "kv@flood" {
				heard <- string(m[0])
				continue
			}
			size := len(m[2])
			n := binary.BigEndian.Uint64(m[1])
			if len(m) != 3 || n != numbers[size] || !bytes.Equal(m[2], bytes.Repeat([]byte{byte(n)}, size)) {
				failed <- fmt.Errorf("message %d of %d bytes, %d frames, where %d must be", n, size, len(m), numbers[size])
				return
			}
			numbers[size]++
			heard <- fmt.Sprintf("%d of %d", n+1, size)
		}
	}()
	next := func(what string) string {
		t.Helper()
		select {
		case topic := <-heard:
			return topic
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(patience):
			t.Fatalf("waited in vain for %s", what)
		}
		return ""
	}
	// Before it reads the subscription a publisher drops its messages.
	for again := time.Tick(5 * time.Millisecond); ; {
		must(t, pub.send("other", "hello"))
		select {
		case <-heard:
		case err := <-failed:
			t.Fatal(err)
		case <-again:
			continue
		}
		break
	}
	flooded := make(chan error, 1)
	go func() {
		for _, size := range sizes {
			if err := pub.flood(1, size); err != nil {
				flooded <- err
				return
			}
		}
		if err := pub.send("nobody's", "x"); err != nil {
			flooded <- err
			return
		}
		flooded <- pub.flood(flood, 100)
	}()
	var want []string
	for _, size := range sizes {
		want = append(want, fmt.Sprintf("1 of %d", size))
	}
	for i := range flood {
		want = append(want, fmt.Sprintf("%d of 100", i+1))
	}
	for _, w := range want {
		got := next(w)
		for got == "other" { // the hello again
			got = next(w)
		}
		if got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
	}
	if err := <-flooded; err != nil {
		t.Error(err)
	}
}

// Heartbeats in both directions, for longer than either end's timeout.
func TestHeartbeatsWithLibzmq(t *testing.T) {
	// The timeout is longer than libzmq has to wait for a processor.
	const heartbeat = time.Second
	for _, tt := range []struct {
		name  string
		cfg   zmtp.Config
		extra []string
		asks  func(w *wire) (asked, answered []byte)
	}{
		{"ours", zmtp.Config{Type: zmtp.SUB, Heartbeat: heartbeat}, nil, func(w *wire) ([]byte, []byte) { return w.wrote, w.read }},
		{"theirs", zmtp.Config{Type: zmtp.SUB}, []string{"--heartbeat", fmt.Sprint(heartbeat.Milliseconds())}, func(w *wire) ([]byte, []byte) { return w.read, w.wrote }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			peer, at := libzmq(t, append([]string{"PUB", "bind", "tcp://127.0.0.1:*"}, tt.extra...)...)
			nc, err := net.Dial("tcp", strings.TrimPrefix(at, "tcp://"))
			must(t, err)
			w := &wire{Conn: nc, said: make(chan struct{}, 1)}
			sub, err := zmtp.Handshake(t.Context(), w, at, tt.cfg)
			must(t, err)
			defer sub.Close()
			staysOpen(t, sub, libzmqStranger(peer), w, func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				asked, answered := tt.asks(w)
				return bytes.Count(asked, []byte("\x04PING")) >= 4 && bytes.Count(answered, []byte("\x04PONG")) >= 3
			})
		})
	}
}

// wire is a connection that records its bytes.
type wire struct {
	net.Conn
	said        chan struct{} // gets a value after new bytes, if it is empty
	mu          sync.Mutex    // guards read, wrote
	read, wrote []byte
}

func (w *wire) tell() {
	select {
	case w.said <- struct{}{}:
	default:
	}
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.mu.Lock()
	w.read = append(w.read, b[:n]...)
	w.mu.Unlock()
	w.tell()
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.wrote = append(w.wrote, b...)
	w.mu.Unlock()
	w.tell()
	return w.Conn.Write(b)
}

// staysOpen checks that the connection neither ends nor delivers messages for a while, and delivers
// them afterwards.
func staysOpen(t *testing.T, sub *zmtp.Conn, pub stranger, w *wire, enough func() bool) {
	t.Helper()
	must(t, sub.Subscribe(""))
	received := make(chan error, 1)
	go func() { _, err := sub.Receive(); received <- err }()
	for late := zmtptest.Context(t); !enough(); {
		select {
		case err := <-received:
			t.Fatalf("in the silence: %v", err)
		case <-w.said:
		case <-late.Done():
			t.Fatal("too few heartbeats")
		}
	}
	must(t, pub.send("news"))
	select {
	case err := <-received:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("no news")
	}
}

func TestDealerAsksLibzmqRouter(t *testing.T) {
	peer, at := libzmq(t, "ROUTER", "bind", "tcp://127.0.0.1:*")
	echoes(t, dial(t, at, zmtp.Config{Type: zmtp.DEALER}), func(n int) error { _, err := peer.Do("echo %d", n); return err })
}

func TestDealerAsksZMQ4Router(t *testing.T) {
	router := zmq4.NewRouter(t.Context())
	defer router.Close()
	must(t, router.Listen("tcp://127.0.0.1:0"))
	echoes(t, dial(t, zmtp.Name(router.Addr()), zmtp.Config{Type: zmtp.DEALER}), func(n int) error {
		for range n {
			m, err := router.Recv()
			if err == nil {
				err = router.SendMulti(m)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// echoes sends requests and checks the replies.
func echoes(t *testing.T, dealer *zmtp.Conn, echo func(n int) error) {
	t.Helper()
	sizes := []int{8, 0, 255, 256, 65_536, 3 << 20}
	echoed := make(chan error, 1)
	go func() { echoed <- echo(len(sizes)) }()
	for i, size := range sizes {
		body := bytes.Repeat([]byte{byte(i)}, size)
		must(t, dealer.Send(nil, body))
		m, err := dealer.Receive()
		if err != nil || len(m) != 2 || len(m[0]) != 0 || !bytes.Equal(m[1], body) {
			t.Fatalf("%d bytes come back as %d frames, %v", size, len(m), err)
		}
	}
	if err := <-echoed; err != nil {
		t.Error(err)
	}
}

// The reverse: a DEALER on libzmq with a ROUTER of this package.
func TestRouterAnswersLibzmqDealer(t *testing.T) {
	var peer *zmtptest.Python
	router := accept(t, "tcp://127.0.0.1:0", zmtp.Config{Type: zmtp.ROUTER}, func(at string) {
		peer, _ = libzmq(t, "DEALER", "connect", at, "--identity", "the asker")
	})
	must(t, libzmqStranger(peer).send("", "from 7"))
	m, err := router.Receive()
	if err != nil || len(m) != 2 || string(m[1]) != "from 7" {
		t.Fatalf("got %q, %v", m, err)
	}
	must(t, router.Send(nil, []byte("batch")))
	answer, err := peer.Do("recv")
	if got, want := fmt.Sprint(answer["frames"]), fmt.Sprintf("[ %x]", "batch"); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
