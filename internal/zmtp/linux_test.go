//go:build linux

package zmtp_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// A peer of ZMTP 3.0 answers no heartbeats, so TCP keepalives have to find dead hosts, on dialled
// and on accepted connections.
func TestKeepAliveFindsDeadHostsInSeconds(t *testing.T) {
	ln, err := zmtp.Listen(t.Context(), "tcp://127.0.0.1:0")
	must(t, err)
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
	must(t, err)
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
	must(t, err)
	if ctlErr := raw.Control(func(fd uintptr) { value, err = syscall.GetsockoptInt(int(fd), level, name) }); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	return value
}
