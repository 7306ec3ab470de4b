//go:build linux

package systemtest

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// churnZone is a DNS server with one name, whose A records are the hosts of pods.
type churnZone struct {
	conn net.PacketConn
	done sync.WaitGroup

	mu    sync.Mutex // guards hosts
	hosts []netip.Addr
}

func serveZone(t *testing.T) *churnZone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	z := &churnZone{conn: conn}
	z.done.Go(func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if a := z.answer(buf[:n]); a != nil {
				_, _ = conn.WriteTo(a, from)
			}
		}
	})
	return z
}

func (z *churnZone) close() {
	_ = z.conn.Close()
	z.done.Wait()
}

func (z *churnZone) set(pods []events.Pod) {
	var hosts []netip.Addr
	for _, p := range pods {
		hosts = append(hosts, netip.MustParseAddr(p.Host))
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hosts = hosts
}

// resolver returns a resolver that queries the server.
func (z *churnZone) resolver() *net.Resolver {
	return &net.Resolver{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", z.conn.LocalAddr().String())
	}}
}

// answer answers a query (RFC 1035, section 4): all hosts for A, no record for other types.
func (z *churnZone) answer(query []byte) []byte {
	const header, typeA, classIN = 12, 1, 1
	end := header // of the query
	for end < len(query) && query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5 // the root, type and class
	if end > len(query) {
		return nil
	}
	var hosts []netip.Addr
	if binary.BigEndian.Uint16(query[end-4:]) == typeA {
		z.mu.Lock()
		hosts = z.hosts
		z.mu.Unlock()
	}
	a := append([]byte{}, query[:2]...)
	a = append(a, 0x84, 0, 0, 1) // authoritative, with one query
	a = binary.BigEndian.AppendUint16(a, uint16(len(hosts)))
	a = append(a, 0, 0, 0, 0)
	a = append(a, query[header:end]...)
	for _, h := range hosts {
		a = append(a, 0xc0, header, 0, typeA, 0, classIN, 0, 0, 0, 1, 0, 4) // the queried name, valid for a second
		a = append(a, h.AsSlice()...)
	}
	return a
}
