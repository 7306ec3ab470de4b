// Package faultproxy is a TCP proxy that does to connections what networks and
// dying machines do: it cuts them in the middle of a message, holds their bytes
// back, goes silent without closing, slips in bytes that nobody sent.
//
// Start with [Listen]. A [Fault] comes behind a number of bytes of a
// connection, never at a time, so that the bytes that a test sends determine
// where the fault comes.
package faultproxy

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// Direction is the way of bytes through a proxy.
type Direction uint8

// The directions.
const (
	Up   Direction = iota // from who connected to the target
	Down                  // from the target to who connected
)

// Kind is what a Fault does.
type Kind uint8

// The kinds of faults.
const (
	// Cut closes both ends of the connection.
	Cut Kind = iota + 1
	// Hold keeps back the bytes of one direction, and its end, until they are
	// released.
	Hold
	// Silence swallows what comes, in both directions, and keeps from each end
	// that the other one is gone: a half-open connection.
	Silence
	// Inject slips in Data.
	Inject
)

// Fault is something to be done to a connection, once, when After more bytes
// have passed in a direction. With After 0 it is done at once, whether or not
// more bytes come.
type Fault struct {
	Kind      Kind
	Direction Direction
	After     int
	Data      []byte // of Inject
}

// ArmedFault is a Fault that waits for its connection or byte. It is safe for
// concurrent use.
type ArmedFault struct {
	fault Fault
	fired chan struct{}
	left  int   // bytes until then; guarded by lane.mu
	lane  *lane // set when the connection is known, so before fired is closed

	disarmed atomic.Bool
}

func newArmed(f Fault) *ArmedFault {
	return &ArmedFault{fault: f, fired: make(chan struct{}), left: f.After}
}

// Fired is closed when the fault has happened.
func (a *ArmedFault) Fired() <-chan struct{} { return a.fired }

// HasFired reports whether the fault has happened.
func (a *ArmedFault) HasFired() bool {
	select {
	case <-a.fired:
		return true
	default:
		return false
	}
}

// Disarm sees to it that the fault does not happen any more.
func (a *ArmedFault) Disarm() { a.disarmed.Store(true) }

// Release lets go what a Hold keeps back. It does nothing if the Hold has not
// happened.
func (a *ArmedFault) Release() {
	if a.HasFired() {
		a.lane.release(a)
	}
}

// Take returns what is kept back in the direction of a Hold, which forgets it:
// bytes that never arrive, or are injected elsewhere.
func (a *ArmedFault) Take() []byte {
	if !a.HasFired() {
		return nil
	}
	a.lane.mu.Lock()
	defer a.lane.mu.Unlock()
	held := a.lane.held
	a.lane.held = nil
	return held
}

// Held returns what is kept back in the direction of a Hold that has happened.
func (a *ArmedFault) Held() string {
	a.lane.mu.Lock()
	defer a.lane.mu.Unlock()
	return string(a.lane.held)
}

// Proxy forwards TCP connections from a port of the loopback interface to a
// target. It is transparent but for the faults that are armed. It owns its
// goroutines until Close and is safe for concurrent use.
type Proxy struct {
	ln     net.Listener
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex // guards what follows; taken before a lane's, never after
	target string
	links  []*link       // the newest last
	next   []*ArmedFault // for the next connection
	refuse bool
	dark   bool
}

// Listen opens a proxy to target, a host and port.
func Listen(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, ln: ln}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.done.Go(p.accept)
	return p, nil
}

// Addr is the host and port to connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Arm arms a fault for the newest connection or, if that one is gone or
// silent, for the next.
func (p *Proxy) Arm(f Fault) *ArmedFault {
	a := newArmed(f)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.links); n > 0 && !p.links[n-1].dead.Load() {
		p.links[n-1].arm(a)
	} else {
		p.next = append(p.next, a)
	}
	return a
}

// ArmNext arms a fault for the next connection.
func (p *Proxy) ArmNext(f Fault) *ArmedFault {
	a := newArmed(f)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = append(p.next, a)
	return a
}

// Refuse has new connections closed as they come, or ends that.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Redirect has new connections forwarded to another target.
func (p *Proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Blackhole is what the death of a host looks like from outside: all connections
// go silent, and the new ones too. When that ends the silent ones are closed, as a
// host does that has no memory of them.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dark = on
	for _, l := range p.links {
		if on {
			l.silence()
		} else if l.silent.Load() {
			l.close()
		}
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.close()
	}
}

// Heal makes the proxy transparent: no fault waits, nothing is held back or
// refused, and silent connections are closed.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.refuse, p.dark = nil, false, false
	for _, l := range p.links {
		l.lanes[Up].heal()
		l.lanes[Down].heal()
		if l.silent.Load() {
			l.close()
		}
	}
}

// Close closes the port and all connections, and waits for the goroutines. It
// may be called again.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.ln.Close()
	p.Cut()
	p.done.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.done.Go(func() { p.serve(c) })
		}
	}
}

// serve is the life of a connection.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	var d net.Dialer
	p.mu.Lock()
	address := p.target
	p.mu.Unlock()
	target, err := d.DialContext(p.ctx, "tcp", address)
	if err != nil {
		return
	}
	defer target.Close()
	l := p.join(client, target)
	if l == nil {
		return
	}
	var pumps sync.WaitGroup
	for i := range l.lanes {
		pumps.Go(l.lanes[i].pump)
	}
	pumps.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = slices.DeleteFunc(p.links, func(o *link) bool { return o == l })
}

// join makes a link of a connection, with the faults that wait for one. It
// returns nil if there is to be none.
func (p *Proxy) join(client, target net.Conn) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.ctx.Err() != nil {
		return nil
	}
	l := newLink(client, target)
	if p.dark {
		l.silence()
	}
	p.links = append(p.links, l)
	next := p.next
	p.next = nil
	for _, a := range next {
		l.arm(a)
	}
	return l
}
