package redistest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports lie below those that systems give to outgoing connections. Otherwise a
// connection of another test could take the port of a server that is down for a
// moment. The port of a cluster node's bus is busOffset higher.
const (
	firstPort = 10_000
	ports     = 10_000
	busOffset = 10_000
)

// reservePort returns a free port whose bus port is free, too. No other call returns
// the port before the test ends, in this process or another: the reservation is
// the UDP port of the same number, which no server uses.
func reservePort(tb testing.TB) int {
	tb.Helper()
	for range ports {
		port := firstPort + rand.IntN(ports)
		reserved, err := net.ListenPacket("udp4", loopback(port))
		if err != nil {
			continue
		}
		if isFree(port) && isFree(port+busOffset) {
			tb.Cleanup(func() { reserved.Close() })
			return port
		}
		reserved.Close()
	}
	tb.Fatalf("redistest: no free port between %d and %d", firstPort, firstPort+ports-1)
	return 0
}

func isFree(port int) bool {
	ln, err := net.Listen("tcp4", loopback(port))
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
