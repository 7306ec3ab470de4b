// DNS is asked by Go's resolver, one question at a time, and the name is asked for with a dot
// at its end: with search domains the last candidate's NXDOMAIN takes the place of the first
// one's error, and a wild card may answer for another name. An answer over TCP that says that
// it is truncated is refused; package net (Go 1.26.8) takes it for whole. One fault of net
// stays: if a record in the middle of an answer cannot be read, those before it are the
// answer. A server that can send that can send a short list as well. An answer without
// records, and one that says NXDOMAIN, are the same to net and here.

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

// maxAsking bounds an asking with all that the resolver tries again.
const maxAsking = 15 * time.Second

// A podResolver resolves a name to pods.
type podResolver struct {
	cfg *DNSConfig
	r   *net.Resolver
}

// addresses asks for A records (ip4) or AAAA records (ip6). To ask for both at once would
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
	// It returns the records with a good target, also with an error about the others.
	_, records, err := a.r.LookupSRV(ctx, "", "", a.cfg.Name+".")
	err = noRecords(err)
	for _, r := range records {
		// DNS does not tell upper case from lower case. The target "." says that there is
		// no such service.
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

// byID puts pods in the order of their IDs, each once: servers shuffle their answers.
func byID(pods []events.Pod) []events.Pod {
	slices.SortFunc(pods, func(p, o events.Pod) int { return strings.Compare(p.ID, o.ID) })
	return slices.CompactFunc(pods, func(p, o events.Pod) bool { return p.ID == o.ID })
}

// noRecords returns nil for an error that says: there is no such name, or it has no
// records of this kind.
func noRecords(err error) error {
	var dns *net.DNSError
	var family *net.AddrError // the name has addresses, all of the other family: in /etc/hosts
	if errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &family) {
		return nil
	}
	return err
}

// kindOf returns what tells an error from others: its text may have a port that is another
// one each time.
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

// resolver returns a resolver with the Dial of another one, which ends as soon as its
// context does, and takes no truncated answer.
func resolver(r *net.Resolver) *net.Resolver {
	dial := new(net.Dialer).DialContext
	if r != nil && r.Dial != nil {
		dial = r.Dial
	}
	// A build with cgo may ask libc, which cannot be cancelled and does not say whether an
	// answer was truncated.
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		// The resolver looks at the context before it reads, and not while it does.
		context.AfterFunc(ctx, func() { c.Close() })
		if _, packets := c.(net.PacketConn); packets {
			return c, nil
		}
		return &wholeAnswer{Conn: c}, nil
	}}
}

var errTruncated = errors.New("the answer over TCP is truncated")

// wholeAnswer is a connection over which one answer comes, with two bytes for its length
// before it. net.Resolver takes a truncated one for whole.
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
