package zmtp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// These tests cover faults of go-zeromq/zmq4 v0.17.0, one for each fault of a connection. Those of
// bound sockets and of reconnecting are with the subscriber, in package events.

// zmq4: Dial does not return. Here it returns when its context ends, at whatever byte the peer fell
// silent.
func TestFaultDialToASilentPeer(t *testing.T) {
	hello := zmtptest.Hello(1, "PUB")
	for _, said := range []int{0, 1, 10, 11, 40, 64, 65, 70, len(hello) - 1} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			_, _ = nc.Write(hello[:said])
			_, _ = io.ReadFull(nc, make([]byte, 64))
			cancel()
			_, _ = io.Copy(io.Discard, nc) // until the other end hangs up, as it must
		}()
		_, err = zmtp.Dial(ctx, zmtp.Name(ln.Addr()), zmtp.Config{Type: zmtp.SUB, HandshakeTimeout: patience})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d bytes: %v, want %v", said, err, context.Canceled)
		}
		if _, err = zmtp.Dial(ctx, zmtp.Name(ln.Addr()), zmtp.Config{Type: zmtp.SUB}); !errors.Is(err, context.Canceled) {
			t.Fatalf("with a context that had ended: %v", err)
		}
		<-done
		ln.Close()
	}
}

// zmq4: notices after 151 seconds that the other host is gone. Here, with the default Config, after
// 6 seconds of silence anywhere in the stream.
func TestFaultHalfOpenConnection(t *testing.T) {
	message := string(zmtptest.Message("topic", "12345678", "payload"))
	for _, tt := range []struct {
		name, last string
	}{
		{"after the handshake", ""},
		{"after a message", message},
		{"within a header", message + "\x01"},
		{"within a frame", message + "\x01\x05to"},
		{"between frames", message + "\x01\x05topic"},
		{"within a long frame", message + string(zmtptest.LongHeader(0, 1<<20)) + "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer := &halfOpen{script: append(zmtptest.Hello(1, "PUB"), tt.last...), gone: make(chan struct{})}
				c, err := zmtp.Handshake(t.Context(), peer, "the peer", zmtp.Config{Type: zmtp.SUB})
				must(t, err)
				defer c.Close()
				start := time.Now()
				for err == nil {
					_, err = c.Receive()
				}
				if at := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || at != 2*zmtp.DefaultHeartbeat || at > 6*time.Second {
					t.Errorf("%v after %v", err, at)
				}
			})
		})
	}
}

// halfOpen is a connection to a host that died after its script: bytes written to it are lost
// without an error.
type halfOpen struct {
	net.Conn
	script   []byte
	deadline time.Time
	gone     chan struct{}
}

func (h *halfOpen) Read(b []byte) (int, error) {
	if len(h.script) > 0 {
		n := copy(b, h.script)
		h.script = h.script[n:]
		return n, nil
	}
	select {
	case <-time.After(time.Until(h.deadline)):
		return 0, os.ErrDeadlineExceeded
	case <-h.gone:
		return 0, net.ErrClosed
	}
}

func (h *halfOpen) Write(b []byte) (int, error)        { return len(b), nil }
func (h *halfOpen) SetReadDeadline(at time.Time) error { h.deadline = at; return nil }
func (h *halfOpen) SetWriteDeadline(time.Time) error   { return nil }
func (h *halfOpen) Close() error                       { close(h.gone); return nil }

// zmq4: takes 5 to 8 times the CPU of libzmq, by reads and allocations for each frame. Here a read
// brings many messages, none allocates, and the deadline is not set for each. bench has the
// measurements.
func TestFaultWorkForEachFrame(t *testing.T) {
	const messages, heartbeats = 100_000, 2
	one := zmtptest.Message("kv@pod@model", "12345678", string(make([]byte, 256)))
	peer := &repeater{script: zmtptest.Hello(1, "PUB"), again: one, left: messages}
	c, err := zmtp.Handshake(t.Context(), peer, "the peer", zmtp.Config{Type: zmtp.SUB, Heartbeat: time.Hour})
	must(t, err)
	defer c.Close()
	for range 1000 {
		if _, err := c.Receive(); err != nil { // the buffer grows
			t.Fatal(err)
		}
	}
	peer.reads.Store(0)
	peer.deadlines.Store(0)
	got := 1000
	if n := testing.AllocsPerRun(messages-2000, func() {
		if m, err := c.Receive(); err != nil || len(m) != 3 {
			t.Fatal(m, err)
		}
		got++
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	if reads := int(peer.reads.Load()); got < 90*reads {
		t.Errorf("%d reads for %d messages of %d bytes", reads, got, len(one))
	}
	if n := peer.deadlines.Load(); n > heartbeats {
		t.Errorf("the deadline was set %d times for %d messages in less than a heartbeat", n, got)
	}
}

// repeater is a connection that sends a script and then one message many times.
type repeater struct {
	net.Conn
	script, again    []byte
	left             int
	reads, deadlines atomic.Int64
}

func (c *repeater) Read(b []byte) (n int, err error) {
	c.reads.Add(1)
	for n < len(b) {
		if len(c.script) == 0 {
			if c.left == 0 {
				break
			}
			c.left--
			c.script = c.again
		}
		k := copy(b[n:], c.script)
		c.script = c.script[k:]
		n += k
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c *repeater) Write(b []byte) (int, error)      { return len(b), nil }
func (c *repeater) SetReadDeadline(time.Time) error  { c.deadlines.Add(1); return nil }
func (c *repeater) SetWriteDeadline(time.Time) error { return nil }
func (c *repeater) Close() error                     { return nil }
