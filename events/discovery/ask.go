// DNS queries go through Go's resolver, one at a time, with a dot at the end of the name: with
// search domains the last candidate's NXDOMAIN would replace the first one's error, and a wild
// card might answer for another name. A truncated answer over TCP is refused; package net (Go
// 1.26.8) accepts it as complete. One fault of net stays: if a record in the middle of an
// answer cannot be read, those before it are the answer. A server that can send that can send
// a short list as well. An answer without records and NXDOMAIN are the same to net and here.

package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvindex/kvindex/events"
)

// maxAsking bounds a query with all attempts of the resolver.
const maxAsking = 15 * time.Second

// A podResolver resolves a name to pods.
type podResolver struct {
	cfg *DNSConfig
	r   *net.Resolver
}

// addresses looks up A records (ip4) or AAAA records (ip6). A lookup of both at once would
// lose the error of one behind the answer of the other.
func (a podResolver) addresses(ctx context.Context, network string) (pods []events.Pod, err error) {
	addrs, err := a.r.LookupNetIP(ctx, network, a.cfg.Name+".")
	for _, addr := range addrs {
		addr = addr.Unmap()
		p := a.cfg.Pod
		p.ID, p.Host = netip.AddrPortFrom(addr, uint16(p.Port)).String(), addr.String()
		pods = append(pods, p)
	}
	return byID(pods), noRecords(err)
}

func (a podResolver) srv(ctx context.Context) (pods []events.Pod, err error) {
	// LookupSRV returns the records with a good target, also with an error about the others.
	_, records, err := a.r.LookupSRV(ctx, "", "", a.cfg.Name+".")
	err = noRecords(err)
	for _, r := range records {
		// DNS ignores case. The target "." means that there is no such service.
		host := strings.ToLower(strings.TrimSuffix(r.Target, "."))
		switch {
		case host == "":
		case r.Port == 0:
			err = errors.Join(err, fmt.Errorf("the target %q has port 0", host))
		default:
			p := a.cfg.Pod
			p.ID, p.Host, p.Port = net.JoinHostPort(host, strconv.Itoa(int(r.Port))), host, int(r.Port)
			pods = append(pods, p)
		}
	}
	return byID(pods), err
}

// byID sorts pods by ID and removes duplicates: servers shuffle their answers.
func byID(pods []events.Pod) []events.Pod {
	slices.SortFunc(pods, func(p, o events.Pod) int { return strings.Compare(p.ID, o.ID) })
	return slices.CompactFunc(pods, func(p, o events.Pod) bool { return p.ID == o.ID })
}

// noRecords returns nil for an error that means: there is no such name, or it has no records
// of this kind.
func noRecords(err error) error {
	var dns *net.DNSError
	var family *net.AddrError // all addresses of the name are of the other family: in /etc/hosts
	if errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &family) {
		return nil
	}
	return err
}

// kindOf returns a stable text for an error: its own may have a port that changes each time.
func kindOf(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsTimeout:
		return "timeout"
	case errors.As(err, &dns) && dns.IsTemporary:
		return "temporary"
	}
	return err.Error()
}

// resolver returns a resolver with the Dial of another one. It ends as soon as its context
// does, and refuses truncated answers.
func resolver(r *net.Resolver) *net.Resolver {
	dial := new(net.Dialer).DialContext
	if r != nil && r.Dial != nil {
		dial = r.Dial
	}
	// A build with cgo may use libc, which cannot be cancelled and does not report truncated
	// answers.
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		// The resolver checks the context before it reads, and not while it reads.
		context.AfterFunc(ctx, func() { c.Close() })
		if _, packets := c.(net.PacketConn); packets {
			return c, nil
		}
		return &wholeAnswer{Conn: c}, nil
	}}
}

var errTruncated = errors.New("the answer over TCP is truncated")

// A wholeAnswer is a connection for one answer, with two bytes for its length before it.
// net.Resolver accepts a truncated one as complete.
type wholeAnswer struct {
	net.Conn
	read int
}

func (c *wholeAnswer) Read(b []byte) (int, error) {
	const flags, truncated = 4, 0x02 // behind the length and the id
	n, err := c.Conn.Read(b)
	if at := flags - c.read; 0 <= at && at < n && b[at]&truncated != 0 {
		return 0, errTruncated
	}
	c.read += n
	return n, err
}
