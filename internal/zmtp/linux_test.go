//go:build linux

package zmtp_test

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// A peer that speaks 3.0 is not asked for a sign of life, so TCP has to ask, on
// dialled and on accepted connections.
func TestKeepAliveFindsDeadHostsInSeconds(t *testing.T) {
	ln, err := zmtp.Listen(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan net.Conn, 1)
	go func() {
		nc, _ := ln.Accept()
		if nc != nil {
			_, _ = nc.Write(zmtptest.Hello(0, "PUB"))
		}
		done <- nc
	}()
	c, err := zmtp.Dial(t.Context(), zmtp.Name(ln.Addr()), zmtp.Config{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted := <-done
	defer accepted.Close()
	for name, nc := range map[string]net.Conn{"dialled": zmtp.NetConn(c), "accepted": accepted} {
		if on := option(t, nc, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE); on == 0 {
			t.Errorf("%s: no keepalive", name)
		}
		tcp := func(o int) int { return option(t, nc, syscall.IPPROTO_TCP, o) }
		seconds := tcp(syscall.TCP_KEEPIDLE) + tcp(syscall.TCP_KEEPINTVL)*tcp(syscall.TCP_KEEPCNT)
		if seconds < 4 || seconds > 8 {
			t.Errorf("%s: a dead host is noticed after %d seconds", name, seconds)
		}
	}
}

func option(t *testing.T, nc net.Conn, level, name int) (value int) {
	t.Helper()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if ctlErr := raw.Control(func(fd uintptr) { value, err = syscall.GetsockoptInt(int(fd), level, name) }); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	return value
}

// BenchmarkIdle is what 500 connections cost that only exchange heartbeats: the
// operation is a second of all of them, this process being both ends.
func BenchmarkIdle(b *testing.B) {
	const conns = 500
	before := live()
	f := newFleet(b, conns, 1, zmtp.Config{Type: zmtp.SUB})
	for _, p := range f.peers {
		f.readers.Go(func() {
			if _, err := io.ReadFull(p, make([]byte, len(zmtptest.Hello(1, "SUB")))); err != nil {
				return
			}
			ping, pong := make([]byte, len(zmtptest.Command("PING", "\x00\x00"))), zmtptest.Command("PONG", "")
			for {
				if _, err := io.ReadFull(p, ping); err != nil {
					return
				}
				if _, err := p.Write(pong); err != nil {
					return
				}
			}
		})
	}
	bytes := float64(live()-before) / conns
	start := processTime()
	for b.Loop() {
		<-time.After(time.Second)
	}
	b.ReportMetric(bytes, "B/conn")
	b.ReportMetric(100*(processTime()-start).Seconds()/b.Elapsed().Seconds(), "%core")
}

// processTime is the CPU time of this process.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it fails for bad arguments only
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
