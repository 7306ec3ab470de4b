package discovery_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Kinds of records.
const (
	kindA    = 1
	kindAAAA = 28
	kindSRV  = 33
)

// A record is an address, or a target with a port.
type record struct {
	addr   netip.Addr
	target string
	port   uint16
}

// The behaviours of the server.
const (
	answers = iota
	fails   // SERVFAIL
	refuses
	denies         // NXDOMAIN
	truncates      // over UDP; whole over TCP
	truncatesAlone // over UDP; TCP connections are closed
	truncatesAll   // over UDP and TCP, with some of the records
	forges         // an answer with another id and no records, then the right one
	forgesAlone    // only the forged answer
	breaks         // the message ends within its first record
	sleeps         // no answer; the lookup's context is cancelled
)

type behaviour struct {
	does    int
	records []record
}

// dnsServer is a DNS server on UDP and TCP with a behaviour for each kind.
type dnsServer struct {
	udp *net.UDPConn
	tcp net.Listener
	wg  sync.WaitGroup

	mu     sync.Mutex
	does   map[uint16]behaviour
	giveUp map[string]context.CancelFunc // by the client's address
}

func newDNSServer(t *testing.T) *dnsServer {
	s := &dnsServer{does: make(map[uint16]behaviour), giveUp: make(map[string]context.CancelFunc)}
	for s.udp == nil { // until both listen on the same port
		var err error
		if s.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if s.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.tcp.Addr().(*net.TCPAddr).Port}); err != nil {
			s.tcp.Close()
		}
	}
	s.wg.Go(s.serveUDP)
	s.wg.Go(s.serveTCP)
	t.Cleanup(func() {
		s.udp.Close()
		s.tcp.Close()
		s.wg.Wait()
	})
	return s
}

func (s *dnsServer) set(kind uint16, b behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.does[kind] = b
}

// giveUpKey is the context key of the function that cancels a lookup.
type giveUpKey struct{}

// resolver dials the server and registers the lookup's giveUpKey there.
func (s *dnsServer) resolver() *net.Resolver {
	return &net.Resolver{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, s.tcp.Addr().String())
		if err != nil {
			return nil, err
		}
		if giveUp, ok := ctx.Value(giveUpKey{}).(context.CancelFunc); ok {
			s.mu.Lock()
			s.giveUp[c.LocalAddr().String()] = giveUp
			s.mu.Unlock()
		}
		return c, nil
	}}
}

func (s *dnsServer) serveUDP() {
	b := make([]byte, 4096)
	for {
		n, from, err := s.udp.ReadFromUDP(b)
		if err != nil {
			return
		}
		for _, reply := range s.reply(b[:n], from.String(), false) {
			s.udp.WriteToUDP(reply, from)
		}
	}
}

func (s *dnsServer) serveTCP() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			defer c.Close()
			var length [2]byte
			if _, err := io.ReadFull(c, length[:]); err != nil {
				return
			}
			query := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, err := io.ReadFull(c, query); err != nil {
				return
			}
			for _, reply := range s.reply(query, c.RemoteAddr().String(), true) {
				c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		})
	}
}

// reply returns the messages that answer a query.
func (s *dnsServer) reply(query []byte, from string, tcp bool) [][]byte {
	end := 12
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5
	kind := binary.BigEndian.Uint16(query[end-4:])
	s.mu.Lock()
	b := s.does[kind]
	giveUp := s.giveUp[from]
	s.mu.Unlock()
	const ok, nxdomain, servfail, refused = 0, 3, 2, 5
	message := func(rcode byte, truncated bool, records []record) []byte {
		m := append([]byte(nil), query[:end]...)
		m[2], m[3] = 0x81, 0x80|rcode // an answer, with recursion desired and available
		if truncated {
			m[2] |= 2
		}
		binary.BigEndian.PutUint16(m[6:], uint16(len(records)))
		binary.BigEndian.PutUint32(m[8:], 0)
		for _, r := range records {
			m = append(m, 0xc0, 12) // the name in the question
			m = binary.BigEndian.AppendUint16(m, kind)
			m = append(m, 0, 1, 0, 0, 0, 5) // class, and TTL in seconds
			var data []byte
			if kind == kindSRV {
				data = binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0}, r.port)
				for label := range strings.SplitSeq(strings.TrimSuffix(r.target, "."), ".") {
					data = append(append(data, byte(len(label))), label...)
				}
				if r.target != "." {
					data = append(data, 0)
				}
			} else {
				data = r.addr.AsSlice()
			}
			m = append(binary.BigEndian.AppendUint16(m, uint16(len(data))), data...)
		}
		if b.does == breaks && len(records) > 0 {
			m = m[:end+13] // within the first record
		}
		if !tcp && len(m) > 1232 {
			m = append(m[:end:end], nil...)
			m[2] |= 2
			binary.BigEndian.PutUint16(m[6:], 0)
		}
		return m
	}
	whole := message(ok, false, b.records)
	forged := message(nxdomain, false, nil)
	forged[0]++
	part := b.records[:len(b.records)/2]
	switch b.does {
	case fails:
		return [][]byte{message(servfail, false, nil)}
	case refuses:
		return [][]byte{message(refused, false, nil)}
	case denies:
		return [][]byte{message(nxdomain, false, nil)}
	case truncates:
		if !tcp {
			return [][]byte{message(ok, true, part)}
		}
	case truncatesAlone:
		if tcp {
			return nil
		}
		return [][]byte{message(ok, true, part)}
	case truncatesAll:
		return [][]byte{message(ok, true, part)}
	case forges:
		if !tcp {
			return [][]byte{forged, whole}
		}
	case forgesAlone:
		if giveUp != nil {
			defer giveUp()
		}
		return [][]byte{forged}
	case sleeps:
		if giveUp != nil {
			giveUp()
		}
		return nil
	}
	return [][]byte{whole}
}
