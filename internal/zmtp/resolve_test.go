package zmtp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// A replaced pod has its old name and a new address.
func TestHostnamesAreResolvedAtEachDial(t *testing.T) {
	var address atomic.Value
	nameServer(t, func() net.IP { return net.ParseIP(address.Load().(string)) })
	listeners := make(map[string]net.Listener)
	port := "0"
	for _, at := range []string{"127.0.0.1", "127.0.0.2"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(at, port))
		if err != nil {
			t.Skipf("not tested: there is one loopback address only: %v", err)
		}
		defer ln.Close()
		_, port, _ = net.SplitHostPort(ln.Addr().String())
		listeners[at] = ln
		go func() {
			for {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = nc.Write(zmtptest.Hello(1, "PUB"))
				context.AfterFunc(t.Context(), func() { nc.Close() })
			}
		}()
	}
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"} {
		address.Store(at)
		c, err := zmtp.Dial(t.Context(), "tcp://engine.kvindex.test:"+port, zmtp.Config{Type: zmtp.SUB})
		must(t, err)
		if got, want := zmtp.NetConn(c).RemoteAddr().String(), listeners[at].Addr().String(); got != want {
			t.Errorf("connected to %s, want %s", got, want)
		}
		c.Close()
	}
}

// A name server that does not answer delays no cancelled Dial.
func TestDialEndsWhileItResolves(t *testing.T) {
	asked := make(chan struct{}, 100)
	nameServer(t, func() net.IP { asked <- struct{}{}; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := zmtp.Dial(ctx, "tcp://engine.kvindex.test:1", zmtp.Config{Type: zmtp.SUB, HandshakeTimeout: time.Hour}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// resolver is the name server of this process from before the first test on, because lookups
// outlive their Dial.
var resolver nameServers

// nameServers forwards queries to the name server of the running test.
type nameServers struct {
	mu    sync.Mutex // guards at, conns
	at    string
	conns []net.Conn
}

func (n *nameServers) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == "" {
		return nil, errors.New("no test has a name server")
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "udp", n.at)
	if err == nil {
		n.conns = append(n.conns, nc)
	}
	return nc, err
}

// use redirects later queries, and ends those under way.
func (n *nameServers) use(at string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, nc := range n.conns {
		nc.Close()
	}
	n.at, n.conns = at, nil
}

// nameServer answers each query for an IPv4 address until the test ends, unless answer returns nil.
func nameServer(t *testing.T, answer func() net.IP) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	resolver.use(pc.LocalAddr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			if ip := answer(); ip != nil {
				_, _ = pc.WriteTo(dnsAnswer(b[:n], ip), from)
			}
		}
	}()
	t.Cleanup(func() { resolver.use(""); pc.Close(); <-done })
}

// dnsAnswer returns one address for a query of type A, and none otherwise.
func dnsAnswer(query []byte, ip net.IP) []byte {
	const header, typeA, classIN = 12, 1, 1
	end := header + bytes.IndexByte(query[header:], 0) + 1 // of the name
	a := append([]byte{}, query[:end+4]...)
	a[2], a[3] = 0x84, 0x80                           // an authoritative answer
	copy(a[4:header], []byte{0, 1, 0, 0, 0, 0, 0, 0}) // of one query
	if binary.BigEndian.Uint16(query[end:]) == typeA {
		a[7] = 1                    // and one answer:
		a = append(a, 0xc0, header) // the queried name
		a = append(a, 0, typeA, 0, classIN)
		a = append(a, 0, 0, 0, 0, 0, net.IPv4len) // TTL 0
		a = append(a, ip.To4()...)
	}
	return a
}
