package zmtp_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// fleet is many connections to one listener, each with its reader.
type fleet struct {
	peers    []net.Conn // the other ends, without buffers of their own
	conns    []*zmtp.Conn
	received chan int // the bytes of each message
	readers  sync.WaitGroup
}

func newFleet(t testing.TB, n int, minor byte, cfg zmtp.Config) *fleet {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	f := &fleet{received: make(chan int, n)}
	t.Cleanup(func() {
		for _, c := range f.conns {
			c.Close()
		}
		for _, p := range f.peers {
			p.Close()
		}
		f.readers.Wait()
	})
	hello := zmtptest.Hello(minor, "PUB")
	for range n {
		dialled := make(chan error, 1)
		go func() {
			c, err := zmtp.Dial(t.Context(), zmtp.Name(ln.Addr()), cfg)
			if err == nil {
				f.conns = append(f.conns, c)
			}
			dialled <- err
		}()
		peer, err := ln.Accept()
		must(t, err)
		f.peers = append(f.peers, peer)
		if _, err := peer.Write(hello); err != nil {
			t.Fatal(err)
		}
		must(t, <-dialled)
	}
	for _, c := range f.conns {
		f.readers.Go(func() {
			for {
				m, err := c.Receive()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					return
				}
				f.received <- len(m[0])
			}
		})
	}
	return f
}

// say sends the same from every peer.
func (f *fleet) say(t testing.TB, b []byte, messages int) {
	t.Helper()
	for _, p := range f.peers {
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
		for range messages {
			select {
			case <-f.received:
			case <-time.After(patience):
				t.Fatal("a message did not come")
			}
		}
	}
}

// soon waits until holds returns true.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for again := time.Tick(20 * time.Millisecond); !holds(); {
		select {
		case <-again:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// live returns the memory in use, stacks included.
func live() int {
	runtime.GC()
	runtime.GC() // frees what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// A connection takes little memory before it has read anything, not much more during many small
// messages, and little again afterwards.
func TestMemoryOfConnections(t *testing.T) {
	const (
		conns     = 500
		idle      = 16 << 10 // with its other end, two stacks and the test's own memory
		busy      = 64 << 10
		heartbeat = 300 * time.Millisecond
	)
	before, goroutines := live(), runtime.NumGoroutine()
	// Peers of 3.0 get no PING, which these would not answer.
	f := newFleet(t, conns, 0, zmtp.Config{Type: zmtp.SUB, Heartbeat: heartbeat})
	soon(t, "one goroutine for each connection", func() bool { return runtime.NumGoroutine()-goroutines <= conns })
	perConn := func(state string, bound int) (within bool) {
		t.Helper()
		got := (live() - before) / conns
		t.Logf("%s: %d bytes a connection, at most %d are wanted", state, got, bound)
		return got <= bound
	}
	if !perConn("never used", idle) {
		t.Error("too much")
	}
	const burst = 200
	f.say(t, bytes.Repeat(zmtptest.Message(string(make([]byte, 1000))), burst), burst)
	if !perConn("busy", busy) {
		t.Error("too much")
	}
	soon(t, "memory to be given up", func() bool { return perConn("idle", idle) })
	f.say(t, zmtptest.Message("news"), 1)
}
