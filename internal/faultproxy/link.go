package faultproxy

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

var errCut = errors.New("faultproxy: cut")

// link is one connection through the proxy.
type link struct {
	lanes  [2]lane // by Direction
	silent atomic.Bool
	dead   atomic.Bool   // one of the ends is gone, or the link is silent
	once   sync.Once     // of over
	over   chan struct{} // closed when both ends were
}

// lane is one direction of a link. Its pump reads from src.
type lane struct {
	*link
	src, dst net.Conn

	mu    sync.Mutex // guards what follows, and is held for writes to dst
	armed []*ArmedFault
	holds []*ArmedFault // that have happened and are not released
	held  []byte
	freed chan struct{} // closed when holds becomes empty; nil if it is
}

func newLink(client, target net.Conn) *link {
	l := &link{over: make(chan struct{})}
	l.lanes[Up].link, l.lanes[Up].src, l.lanes[Up].dst = l, client, target
	l.lanes[Down].link, l.lanes[Down].src, l.lanes[Down].dst = l, target, client
	return l
}

func (l *link) silence() {
	l.silent.Store(true)
	l.dead.Store(true)
}

func (l *link) close() {
	l.once.Do(func() {
		l.dead.Store(true)
		close(l.over)
		_ = l.lanes[Up].src.Close()
		_ = l.lanes[Down].src.Close()
	})
}

func (l *link) arm(a *ArmedFault) {
	n := &l.lanes[a.fault.Direction]
	n.mu.Lock()
	defer n.mu.Unlock()
	a.lane = n
	if a.left == 0 {
		_ = n.fire(a) // a cut closes the connection, where the pump sees it
		return
	}
	n.armed = append(n.armed, a)
}

// pump moves bytes until src ends, and then ends dst: but behind what is held
// back, and not at all if the link is silent.
func (n *lane) pump() {
	buf := make([]byte, 32<<10)
	for {
		k, err := n.src.Read(buf)
		if err := n.forward(buf[:k]); err != nil {
			n.close()
			return
		}
		if err != nil {
			break
		}
	}
	n.dead.Store(true)
	n.mu.Lock()
	freed := n.freed
	n.mu.Unlock()
	if freed != nil {
		select {
		case <-freed:
		case <-n.over:
		}
	}
	if n.silent.Load() {
		<-n.over
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.dst.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// forward passes bytes on, with the faults among them.
func (n *lane) forward(b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		pass := len(b)
		for _, a := range n.armed {
			pass = min(pass, a.left)
		}
		if err := n.write(b[:pass]); err != nil {
			return err
		}
		b = b[pass:]
		var due []*ArmedFault
		n.armed = slices.DeleteFunc(n.armed, func(a *ArmedFault) bool {
			if a.left -= pass; a.left == 0 {
				due = append(due, a)
			}
			return a.left == 0
		})
		for _, a := range due {
			if err := n.fire(a); err != nil {
				return err
			}
		}
		if len(b) == 0 {
			return nil
		}
	}
}

// fire does what a fault is about; n.mu is held.
func (n *lane) fire(a *ArmedFault) error {
	if a.disarmed.Load() {
		return nil
	}
	defer close(a.fired)
	switch a.fault.Kind {
	case Cut:
		n.close()
		return errCut
	case Hold:
		if n.freed == nil {
			n.freed = make(chan struct{})
		}
		n.holds = append(n.holds, a)
	case Silence:
		n.silence()
	case Inject:
		return n.write(a.fault.Data)
	}
	return nil
}

func (n *lane) write(b []byte) error {
	switch {
	case len(b) == 0 || n.silent.Load():
		return nil
	case n.freed != nil:
		n.held = append(n.held, b...)
		return nil
	}
	_, err := n.dst.Write(b)
	return err
}

func (n *lane) release(a *ArmedFault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holds = slices.DeleteFunc(n.holds, func(h *ArmedFault) bool { return h == a })
	if len(n.holds) == 0 {
		n.free()
	}
}

func (n *lane) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed, n.holds = nil, nil
	n.free()
}

// free passes on what was held back; n.mu is held.
func (n *lane) free() {
	if n.freed == nil {
		return
	}
	close(n.freed)
	n.freed = nil
	held := n.held
	n.held = nil
	_ = n.write(held) // if dst is gone, so is what reads from it
}
