package zmtp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func TestMain(m *testing.M) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: resolver.dial}
	zmtptest.Main(m)
}

// pair connects two sockets of this package over an endpoint.
func pair(t *testing.T, endpoint string, dialling, accepting zmtp.Config) (dialled, accepted *zmtp.Conn) {
	t.Helper()
	ln, err := zmtp.Listen(t.Context(), endpoint)
	must(t, err)
	defer ln.Close()
	type result struct {
		conn *zmtp.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			done <- result{nil, err}
			return
		}
		c, err := zmtp.Handshake(t.Context(), nc, "the dialler", accepting)
		done <- result{c, err}
	}()
	dialled, err = zmtp.Dial(t.Context(), strings.Replace(zmtp.Name(ln.Addr()), "[::]", "127.0.0.1", 1), dialling)
	must(t, err)
	t.Cleanup(func() { dialled.Close() })
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.conn.Close() })
	return dialled, r.conn
}

func TestMessagesArriveWhole(t *testing.T) {
	endpoints := map[string]string{
		"tcp":  "tcp://127.0.0.1:0",
		"any":  "tcp://*:0",
		"ipc":  "ipc://" + filepath.Join(t.TempDir(), "s"),
		"tcp6": "tcp://[::1]:0",
	}
	for name, endpoint := range endpoints {
		t.Run(name, func(t *testing.T) {
			needIPv6(t, endpoint)
			sub, pub := pair(t, endpoint, zmtp.Config{Type: zmtp.SUB}, zmtp.Config{Type: zmtp.PUB})
			must(t, sub.Subscribe("kv"))
			if topic, on, err := pub.ReceiveSubscription(); err != nil || string(topic) != "kv" || !on {
				t.Fatalf("subscription %q %v, %v", topic, on, err)
			}
			sizes := []int{0, 1, 255, 256, 65535, 65536, 3 << 20, 1, 1 << 20, 0}
			sent := make(chan error, 1)
			go func() {
				for i, n := range sizes {
					if err := pub.Buffer([]byte("kv"), nil, bytes.Repeat([]byte{byte(i)}, n)); err != nil {
						sent <- err
						return
					}
				}
				sent <- pub.Flush()
			}()
			for i, n := range sizes {
				m, err := sub.Receive()
				must(t, err)
				if len(m) != 3 || string(m[0]) != "kv" || len(m[1]) != 0 || !bytes.Equal(m[2], bytes.Repeat([]byte{byte(i)}, n)) {
					t.Fatalf("message %d of %d bytes differs", i, n)
				}
			}
			must(t, <-sent)
		})
	}
}

func TestSubscriptionForms(t *testing.T) {
	script := bytes.Join([][]byte{
		zmtptest.Hello(1, "SUB"),
		zmtptest.Command("SUBSCRIBE", "a"),
		zmtptest.Message("\x01b"),
		zmtptest.Message(""),           // skipped
		zmtptest.Message("\x02c"),      // skipped
		zmtptest.Message("\x01c", "d"), // skipped
		zmtptest.Command("NEWS", "?"),  // skipped
		zmtptest.Command("CANCEL", "a"),
		zmtptest.Message("\x00b"),
		zmtptest.Command("SUBSCRIBE", strings.Repeat("t", 300)),
	}, nil)
	pub := against(t, script, zmtp.Config{Type: zmtp.PUB})
	for _, want := range []struct {
		topic string
		on    bool
	}{{"a", true}, {"b", true}, {"a", false}, {"b", false}, {strings.Repeat("t", 300), true}} {
		topic, on, err := pub.ReceiveSubscription()
		if err != nil || string(topic) != want.topic || on != want.on {
			t.Errorf("got %q %v, %v; want %q %v", topic, on, err, want.topic, want.on)
		}
	}
}

// play is a peer that sends a script regardless of its input, and then hangs up.
func play(t *testing.T, script []byte) (endpoint string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = nc.Write(script)
		_ = nc.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, nc) // until we hang up: a reset would lose the script
		_ = nc.Close()
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return zmtp.Name(ln.Addr())
}

// against returns our end of a connection to such a peer.
func against(t *testing.T, script []byte, cfg zmtp.Config) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), play(t, script), cfg)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func edit(b []byte, at int, with string) []byte {
	b = bytes.Clone(b)
	copy(b[at:], with)
	return b
}

// metadata returns a PUB's handshake with a READY of n bytes.
func metadata(n int) []byte {
	typed := zmtptest.Property("Socket-Type", "PUB")
	filler := n - len("\x05READY") - len(typed) - len(zmtptest.Property("X-Filler", ""))
	return append(zmtptest.Greeting(1), zmtptest.Command("READY", typed+zmtptest.Property("X-Filler", strings.Repeat("x", filler)))...)
}

func TestHandshakeRefuses(t *testing.T) {
	greeting := zmtptest.Greeting(1)
	ready := func(data string) []byte { return append(zmtptest.Greeting(1), zmtptest.Command("READY", data)...) }
	then := func(b ...byte) []byte { return append(zmtptest.Greeting(1), b...) }
	tests := []struct {
		name   string
		script []byte
		want   error
	}{
		{"nothing", nil, io.ErrUnexpectedEOF},
		{"another protocol", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), zmtp.ErrProtocol},
		{"broken signature", edit(greeting, 9, "\x00"), zmtp.ErrProtocol},
		{"version 2", edit(greeting, 10, "\x01"), zmtp.ErrProtocol},
		{"version 2 waits for our answer", edit(greeting, 10, "\x01")[:11], zmtp.ErrProtocol},
		{"half a greeting", greeting[:40], io.ErrUnexpectedEOF},
		{"mechanism PLAIN", edit(greeting, 12, "PLAIN"), zmtp.ErrProtocol},
		{"mechanism unset", edit(greeting, 12, "\x00\x00\x00\x00"), zmtp.ErrProtocol},
		{"no READY", greeting, io.ErrUnexpectedEOF},
		{"half a READY", ready(zmtptest.Property("Socket-Type", "PUB"))[:80], io.ErrUnexpectedEOF},
		{"a message", append(greeting[:64:64], zmtptest.Message("\x05READY")...), zmtp.ErrProtocol},
		{"another command", append(greeting[:64:64], zmtptest.Command("PING", "\x00\x00")...), zmtp.ErrProtocol},
		{"an empty command", then(4, 0), zmtp.ErrProtocol},
		{"a command name of no bytes", then(4, 1, 0), zmtp.ErrProtocol},
		{"a command name that does not end", then(4, 3, 200, 'R', 'E'), zmtp.ErrProtocol},
		{"ERROR", append(greeting[:64:64], zmtptest.Command("ERROR", "\x07go away")...), zmtp.ErrRefused},
		{"ERROR without a reason", append(greeting[:64:64], zmtptest.Command("ERROR", "")...), zmtp.ErrRefused},
		{"socket type SUB", zmtptest.Hello(1, "SUB"), zmtp.ErrProtocol},
		{"no socket type", ready(zmtptest.Property("Identity", "x")), zmtp.ErrProtocol},
		{"two socket types", ready(zmtptest.Property("Socket-Type", "SUB") + zmtptest.Property("socket-type", "PUB")), zmtp.ErrProtocol},
		{"empty property name", ready("\x00\x00\x00\x00\x00"), zmtp.ErrProtocol},
		{"property name too long", ready("\xffSocket"), zmtp.ErrProtocol},
		{"property value too long", ready("\x0bSocket-Type\xff\xff\xff\xffPUB"), zmtp.ErrProtocol},
		{"property without a length", ready("\x0bSocket-Type\x00\x00"), zmtp.ErrProtocol},
		{"command with more to follow", then(5, 0), zmtp.ErrProtocol},
		{"reserved flag", then(0x84, 0), zmtp.ErrProtocol},
		{"READY of 2^63 bytes", append(greeting[:64:64], zmtptest.LongHeader(4, 1<<63)...), zmtp.ErrLimit},
		{"endless metadata", ready(strings.Repeat(zmtptest.Property("X-Name", "value"), 1<<10)), zmtp.ErrLimit},
		{"a byte too much metadata", metadata(8<<10 + 1), zmtp.ErrLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := play(t, tt.script)
			c, err := zmtp.Dial(t.Context(), endpoint, zmtp.Config{Type: zmtp.SUB})
			if c != nil {
				c.Close()
				t.Error("a connection")
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if !strings.Contains(err.Error(), endpoint) {
				t.Errorf("%q does not name %s", err, endpoint)
			}
		})
	}
}

func TestHandshakeAccepts(t *testing.T) {
	tests := []struct {
		name   string
		ours   zmtp.SocketType
		script []byte
	}{
		{"3.0", zmtp.SUB, zmtptest.Hello(0, "PUB")},
		{"3.1", zmtp.SUB, zmtptest.Hello(1, "XPUB")},
		{"a later minor version", zmtp.SUB, zmtptest.Hello(9, "PUB")},
		{"a later major version", zmtp.SUB, edit(zmtptest.Hello(0, "PUB"), 10, "\x04\x00")},
		{"names in any case", zmtp.SUB, append(zmtptest.Greeting(1), zmtptest.Command("READY",
			zmtptest.Property("X-Other", "1")+zmtptest.Property("sOCKET-tYPE", "PUB")+zmtptest.Property("Identity", ""))...)},
		{"a long frame for a short READY", zmtp.SUB, append(append(zmtptest.Greeting(1),
			zmtptest.LongHeader(4, 25)...), "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"[:25]...)},
		{"as much metadata as may be", zmtp.SUB, metadata(8 << 10)},
		{"an asking peer", zmtp.ROUTER, zmtptest.Hello(1, "REQ")},
		{"an answering peer", zmtp.DEALER, zmtptest.Hello(1, "REP")},
		{"a subscribing peer", zmtp.PUB, zmtptest.Hello(1, "XSUB")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { against(t, tt.script, zmtp.Config{Type: tt.ours}) })
	}
	if _, err := zmtp.Dial(t.Context(), play(t, zmtptest.Hello(1, "PUSH")), zmtp.Config{Type: "PULL"}); err == nil {
		t.Error("a socket type that is not supported was taken")
	}
}

func TestReceiveRefuses(t *testing.T) {
	small := zmtp.Config{Type: zmtp.SUB, MaxFrame: 1000, MaxMessage: 1500}
	tests := []struct {
		name   string
		script []byte
		want   error
	}{
		{"clean end", nil, io.EOF},
		{"end in a header", []byte{0}, io.ErrUnexpectedEOF},
		{"end in a long header", zmtptest.LongHeader(0, 500)[:5], io.ErrUnexpectedEOF},
		{"end in a frame", zmtptest.Frame(0, "payload")[:5], io.ErrUnexpectedEOF},
		{"end between frames", zmtptest.Frame(1, "topic"), io.ErrUnexpectedEOF},
		{"frame of 2^64-1 bytes", zmtptest.LongHeader(1, 1<<64-1), zmtp.ErrLimit},
		{"frame above the limit", zmtptest.LongHeader(0, 1001), zmtp.ErrLimit},
		{"message above the limit", append(zmtptest.Frame(1, strings.Repeat("x", 800)), zmtptest.LongHeader(0, 701)...), zmtp.ErrLimit},
		{"too many frames", zmtptest.Message(make([]string, 17)...), zmtp.ErrLimit},
		{"endless empty frames", bytes.Repeat([]byte{1, 0}, 1000), zmtp.ErrLimit},
		{"command above the limit", zmtptest.LongHeader(4, 8<<10+1), zmtp.ErrLimit},
		{"command with more to follow", []byte{5, 5, 4, 'P', 'O', 'N', 'G'}, zmtp.ErrProtocol},
		{"reserved flag", []byte{8, 0}, zmtp.ErrProtocol},
		{"PING with a huge context", zmtptest.Command("PING", "\x00\x00"+strings.Repeat("c", 17)), zmtp.ErrProtocol},
		{"PING without its time to live", zmtptest.Command("PING", "\x00"), zmtp.ErrProtocol},
		{"ERROR", zmtptest.Command("ERROR", "\x03bye"), zmtp.ErrRefused},
		{"nameless command", zmtptest.Frame(4, ""), zmtp.ErrProtocol},
		{"subscription inside a message", append(zmtptest.Frame(1, "a"), zmtptest.Command("SUBSCRIBE", "")...), zmtp.ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := against(t, append(zmtptest.Hello(1, "PUB"), tt.script...), small)
			if m, err := c.Receive(); !errors.Is(err, tt.want) {
				t.Fatalf("got %q, %v, want %v", m, err, tt.want)
			}
		})
	}
	t.Run("what the limits allow", func(t *testing.T) {
		x, y := strings.Repeat("x", 1000), strings.Repeat("y", 500)
		frames := append(make([]string, 14), x, y)
		script := bytes.Join([][]byte{zmtptest.Hello(1, "PUB"), zmtptest.Command("NEWS", strings.Repeat("n", 8<<10-5)), zmtptest.Message(frames...)}, nil)
		m, err := against(t, script, small).Receive()
		if err != nil || len(m) != 16 || string(m[14]) != x || string(m[15]) != y {
			t.Fatalf("got %q, %v", m, err)
		}
	})
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func TestBudgetIsShared(t *testing.T) {
	budget := zmtp.NewBudget(400 << 10)
	cfg := zmtp.Config{Type: zmtp.SUB, Budget: budget}
	message := func(kib int) []byte {
		hello := append(zmtptest.Hello(1, "PUB"), zmtptest.Message(strings.Repeat("x", kib<<10))...)
		return append(hello, zmtptest.Message("after")...)
	}
	first := against(t, message(100), cfg)
	if m, err := first.Receive(); err != nil || len(m[0]) != 100<<10 {
		t.Fatalf("the first: %v", err)
	}
	second := against(t, message(200), cfg)
	if _, err := second.Receive(); !errors.Is(err, zmtp.ErrLimit) {
		t.Fatalf("beside the first: %v, want %v", err, zmtp.ErrLimit)
	}
	first.Close()
	second.Close()
	if m, err := against(t, message(200), cfg).Receive(); err != nil || len(m[0]) != 200<<10 {
		t.Fatalf("after both were closed: %v", err)
	}
}

// TestBudgetGoesToTheSmall: peers that never complete their large messages yield to those that send
// smaller ones.
func TestBudgetGoesToTheSmall(t *testing.T) {
	cfg := zmtp.Config{Type: zmtp.SUB, Budget: zmtp.NewBudget(4 << 20)}
	unfinished := append(zmtptest.Hello(1, "PUB"), zmtptest.LongHeader(0, 8<<20)...)
	unfinished = append(unfinished, make([]byte, 700<<10)...)
	ended := make(chan error, 4)
	for range 4 {
		server, client := net.Pipe()
		defer client.Close()
		go func() { _, _ = client.Write(unfinished) }() // without the end
		go func() { _, _ = io.Copy(io.Discard, client) }()
		c, err := zmtp.Handshake(t.Context(), server, "hog", cfg)
		must(t, err)
		defer c.Close()
		go func() {
			_, err := c.Receive()
			ended <- err
		}()
	}
	small := append(zmtptest.Hello(1, "PUB"), zmtptest.Message(strings.Repeat("x", 200<<10))...)
	for i := range 10 {
		c := against(t, small, cfg)
		if m, err := c.Receive(); err != nil || len(m[0]) != 200<<10 {
			t.Fatalf("small message %d: %v", i, err)
		}
	}
	select {
	case err := <-ended:
		if !errors.Is(err, zmtp.ErrLimit) {
			t.Errorf("%v, want %v", err, zmtp.ErrLimit)
		}
	case <-time.After(patience):
		t.Error("none of the large ones was ended")
	}
}

// A connection does not keep the memory of a large message.
func TestBudgetComesBack(t *testing.T) {
	budget := zmtp.NewBudget(1200 << 10)
	cfg := zmtp.Config{Type: zmtp.SUB, Budget: budget}
	big := append(zmtptest.Hello(1, "PUB"), zmtptest.Message(strings.Repeat("x", 500<<10))...)
	big = append(big, zmtptest.Message("after")...)
	for range 3 {
		c := against(t, big, cfg) // stays open
		for _, want := range []int{500 << 10, 5} {
			if m, err := c.Receive(); err != nil || len(m) != 1 || len(m[0]) != want {
				t.Fatalf("want %d bytes: %v", want, err)
			}
		}
		if _, err := c.Receive(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

// The tests below have their own clock and pipes without buffers.

// rawPeer is the other end of a pipe: it sends a hello and then the test's bytes; a channel has its
// input, frame by frame.
type rawPeer struct {
	net.Conn
	heard chan string
}

func newRawPeer(hello []byte) (*rawPeer, net.Conn) {
	ours, theirs := net.Pipe()
	p := &rawPeer{theirs, make(chan string, 100)}
	go func() {
		defer close(p.heard)
		_, err := io.ReadFull(theirs, make([]byte, 64))
		for err == nil {
			var h [2]byte
			if _, err = io.ReadFull(theirs, h[:]); err != nil {
				return
			}
			body := make([]byte, h[1])
			_, err = io.ReadFull(theirs, body)
			p.heard <- fmt.Sprintf("%02x %s", h[0], body)
		}
	}()
	go p.Write(hello)
	return p, ours
}

func TestNoHeartbeatBefore31(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, nc := newRawPeer(zmtptest.Hello(0, "PUB"))
		defer peer.Close()
		c, err := zmtp.Handshake(t.Context(), nc, "the peer", zmtp.Config{Type: zmtp.SUB})
		must(t, err)
		defer c.Close()
		<-peer.heard // READY
		must(t, c.Subscribe("kv@"))
		if got := <-peer.heard; got != "00 \x01kv@" {
			t.Errorf("subscribed by %q, want a message", got)
		}
		go func() {
			<-time.After(24 * time.Hour)
			peer.Write(zmtptest.Message("late"))
		}()
		if m, err := c.Receive(); err != nil || string(m[0]) != "late" {
			t.Errorf("after a day of silence: %q, %v", m, err)
		}
		if len(peer.heard) != 0 {
			t.Errorf("an old peer received %q", <-peer.heard)
		}
	})
}

// Each silence is reported once, in either version.
func TestOnIdle(t *testing.T) {
	for minor := range byte(2) {
		synctest.Test(t, func(t *testing.T) {
			peer, nc := newRawPeer(zmtptest.Hello(minor, "PUB"))
			defer peer.Close()
			start := time.Now()
			var idle []time.Duration
			cfg := zmtp.Config{Type: zmtp.SUB, Heartbeat: 3 * time.Second, OnIdle: func() { idle = append(idle, time.Since(start)) }}
			c, err := zmtp.Handshake(t.Context(), nc, "the peer", cfg)
			must(t, err)
			defer c.Close()
			go func() {
				for _, after := range []time.Duration{11, 8, 1} {
					<-time.After(after * time.Second)
					peer.Write(zmtptest.Message("news"))
				}
			}()
			go func() {
				for heard := range peer.heard {
					if strings.Contains(heard, "PING") {
						peer.Write(zmtptest.Command("PONG", ""))
					}
				}
			}()
			for range 3 {
				if _, err := c.Receive(); err != nil {
					t.Fatal(err)
				}
			}
			want := "[3s 14s]"
			if minor == 1 { // the answer to a PING ends a silence and begins another
				want = "[3s 6s 9s 14s 17s]"
			}
			if got := fmt.Sprint(idle); got != want {
				t.Errorf("3.%d: idle at %s, want %s", minor, got, want)
			}
		})
	}
}

func TestPingIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, nc := newRawPeer(zmtptest.Hello(1, "PUB"))
		defer peer.Close()
		c, err := zmtp.Handshake(t.Context(), nc, "the peer", zmtp.Config{Type: zmtp.SUB})
		must(t, err)
		defer c.Close()
		<-peer.heard // READY
		must(t, c.Subscribe("kv@"))
		if got := <-peer.heard; got != "04 \x09SUBSCRIBEkv@" {
			t.Errorf("subscribed by %q, want a command", got)
		}
		go peer.Write(bytes.Join([][]byte{
			zmtptest.Command("PING", "\x00\x0ffrom the outside"[:18]),
			zmtptest.Frame(1, "topic"),
			zmtptest.Command("PING", "\x00\x00between"),
			zmtptest.Frame(1, "sequence"),
			zmtptest.Frame(0, "payload"),
			zmtptest.Message("next"),
		}, nil))
		m, err := c.Receive()
		if err != nil || len(m) != 3 || string(bytes.Join(m, []byte("|"))) != "topic|sequence|payload" {
			t.Fatalf("got %q, %v", m, err)
		}
		if m, err = c.Receive(); err != nil || string(m[0]) != "next" {
			t.Fatalf("got %q, %v", m, err)
		}
		for _, want := range []string{"04 \x04PONGfrom the outside", "04 \x04PONGbetween"} {
			if got := <-peer.heard; got != want {
				t.Errorf("answered %q, want %q", got, want)
			}
		}
	})
}

func TestCloseEndsWhatWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		said []byte // by the peer, before we wait
		call func(c *zmtp.Conn) error
	}{
		{"Receive", nil, func(c *zmtp.Conn) error { _, err := c.Receive(); return err }},
		{"Receive within a message", zmtptest.Frame(1, "topic"), func(c *zmtp.Conn) error { _, err := c.Receive(); return err }},
		{"Receive within a frame", zmtptest.LongHeader(0, 1<<20), func(c *zmtp.Conn) error { _, err := c.Receive(); return err }},
		{"Send", nil, func(c *zmtp.Conn) error { return c.Send(make([]byte, 100)) }},
		{"Subscribe", nil, func(c *zmtp.Conn) error { return c.Subscribe("kv@") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				go func() {
					ready := zmtptest.Command("READY", zmtptest.Property("Socket-Type", "SUB"))
					_, _ = io.ReadFull(theirs, make([]byte, 64))
					_, _ = theirs.Write(zmtptest.Greeting(1))
					_, _ = io.ReadFull(theirs, make([]byte, len(ready)))
					_, _ = theirs.Write(zmtptest.Hello(1, "PUB")[64:])
					if len(tt.said) > 0 {
						_, _ = theirs.Write(tt.said)
					} // and reads nothing more
				}()
				c, err := zmtp.Handshake(t.Context(), ours, "the peer", zmtp.Config{Type: zmtp.SUB})
				must(t, err)
				ended := make(chan error, 1)
				go func() { ended <- tt.call(c) }()
				synctest.Wait() // it waits for the peer
				select {
				case err := <-ended:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				start := time.Now()
				c.Close()
				if err := <-ended; err == nil || time.Since(start) != 0 {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				if _, err := c.Receive(); err == nil {
					t.Error("received after Close")
				}
			})
		})
	}
}

func TestDripsHaveAnEnd(t *testing.T) {
	drip := func(nc net.Conn, b []byte) (done chan struct{}) {
		done = make(chan struct{})
		go func() {
			defer close(done)
			for _, x := range b {
				if _, err := nc.Write([]byte{x}); err != nil {
					return
				}
				<-time.After(time.Second)
			}
		}()
		return done
	}
	t.Run("handshake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go io.Copy(io.Discard, theirs)
			done := drip(theirs, zmtptest.Hello(1, "PUB"))
			start := time.Now()
			_, err := zmtp.Handshake(t.Context(), ours, "the peer", zmtp.Config{Type: zmtp.SUB, HandshakeTimeout: 5 * time.Second})
			if at := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || at != 5*time.Second {
				t.Errorf("%v after %v", err, at)
			}
			<-done
		})
	})
	t.Run("message", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			peer, nc := newRawPeer(zmtptest.Hello(1, "PUB"))
			defer peer.Close()
			c, err := zmtp.Handshake(t.Context(), nc, "the peer", zmtp.Config{Type: zmtp.SUB})
			must(t, err)
			done := drip(peer, zmtptest.Message(strings.Repeat("x", 200)))
			start := time.Now()
			_, err = c.Receive()
			if at := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || at != 30*time.Second {
				t.Errorf("%v after %v", err, at)
			}
			c.Close()
			<-done
		})
	})
	t.Run("a peer that does not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go func() {
				_, _ = io.ReadFull(theirs, make([]byte, 64))
				_, _ = theirs.Write(zmtptest.Hello(1, "SUB"))
			}()
			go func() { // the READY, then nothing more
				<-time.After(time.Second)
				_, _ = io.ReadFull(theirs, make([]byte, 27))
			}()
			c, err := zmtp.Handshake(t.Context(), ours, "the peer", zmtp.Config{Type: zmtp.PUB, WriteTimeout: 10 * time.Second})
			must(t, err)
			defer c.Close()
			start := time.Now()
			err = c.Send([]byte("x"))
			if at := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || at != 10*time.Second {
				t.Errorf("%v after %v", err, at)
			}
		})
	})
}

func TestEndpoints(t *testing.T) {
	tests := []struct {
		endpoint     string
		dial, listen bool
	}{
		{"tcp://127.0.0.1:5557", true, true},
		{"tcp://pod-3.engines.svc:5557", true, true},
		{"tcp://*:5557", false, true},
		{"tcp://:5557", false, true},
		{"tcp://127.0.0.1:0", false, true},
		{"ipc:///run/engine.sock", true, true},
		{"ipc://@abstract", true, true},
		{"", false, false},
		{"tcp://", false, false},
		{"ipc://", false, false},
		{"127.0.0.1:5557", false, false},
		{"tcp://127.0.0.1", false, false},
		{"tcp://::1:5557", false, false},
		{"tcp://host:port", false, false},
		{"tcp://host:65536", false, false},
		{"inproc://engine", false, false},
	}
	for _, tt := range tests {
		for what, check := range map[string]struct {
			f    func(string) error
			want bool
		}{"dial": {zmtp.CheckDial, tt.dial}, "listen": {zmtp.CheckListen, tt.listen}} {
			err := check.f(tt.endpoint)
			if (err == nil) != check.want {
				t.Errorf("%s %q: %v", what, tt.endpoint, err)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%q", tt.endpoint)) {
				t.Errorf("%q does not name %q", err, tt.endpoint)
			}
		}
	}
	if _, err := zmtp.Dial(t.Context(), "tcp://*:1", zmtp.Config{}); err == nil {
		t.Error("dialled a wildcard")
	}
	if _, err := zmtp.Listen(t.Context(), "tcp://host"); err == nil {
		t.Error("listened without a port")
	}
}

func TestListenReplacesDeadSocketsOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	living, err := zmtp.Listen(t.Context(), "ipc://"+path)
	if err != nil {
		t.Fatalf("where a dead process left its socket: %v", err)
	}
	defer living.Close()
	if ln, err := zmtp.Listen(t.Context(), "ipc://"+path); err == nil {
		ln.Close()
		t.Error("took the socket of a living process")
	}
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, []byte("data"), 0o600))
	if ln, err := zmtp.Listen(t.Context(), "ipc://"+file); err == nil {
		ln.Close()
		t.Error("replaced a file that is no socket")
	}
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// TestLargestMessage: MaxMessage may be the largest int.
func TestLargestMessage(t *testing.T) {
	body := strings.Repeat("x", 100<<10)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	go func() { _, _ = theirs.Write(append(zmtptest.Hello(1, "PUB"), zmtptest.Frame(0, body)...)) }()
	c, err := zmtp.Handshake(t.Context(), ours, "x", zmtp.Config{Type: zmtp.SUB, MaxFrame: math.MaxInt, MaxMessage: math.MaxInt})
	must(t, err)
	defer c.Close()
	if m, err := c.Receive(); err != nil || string(m[0]) != body {
		t.Errorf("%d frames, %v", len(m), err)
	}
}
