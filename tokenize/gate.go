// Why slots are passed on. Cutting a long text into parts for several workers would need the
// same answers as marks and gain little. Limiting long texts to fewer slots would leave slots
// empty. A text that gives its slot to the first in line every 64 KiB or earlier, and lines up again,
// costs nothing while no text waits.

package tokenize

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

const (
	// longText is the number of bytes from which a text gives its slot to waiting ones, each
	// time that so many are encoded.
	longText = checkEvery

	// waitCost is the least count of a waiting text, in bytes: for the call that waits with
	// it.
	waitCost = 4 << 10

	// waitShare: a text waits only if the room left has so many times its size, so that small
	// ones find room where long ones do not.
	waitShare = 8
)

// A gate lets a number of texts be encoded at a time, first come, first served.
//
// Texts are of any length, and a long one must not keep the short ones waiting. So
// it passes its slot on every longText bytes and lines up again. It holds memory
// all the while, in proportion to its size; hence a second line, of long texts that
// have not begun, which bounds the bytes of those that have. Short texts, and those
// that go on, never stand behind it.
type gate struct {
	slots                int
	maxBegun, maxWaiting int64

	mu      sync.Mutex // guards all fields below, and the fields of each visit
	closed  bool
	free    int       // slots; if any is free, line is empty
	line    list.List // of *visit, waiting for a slot
	long    list.List // of *visit, not begun; the first would be too much
	begun   int64     // bytes of long texts from their place in line to their end; at most maxBegun
	waiting int64     // bytes of texts that wait to begin or for their tokenizer
	waiters int       // their number
	refused uint64
}

// A visit is a text on its way through the gate.
type visit struct {
	size   int64
	inside bool          // it has a slot
	begun  bool          // it counts in gate.begun
	waits  bool          // it counts in gate.waiting
	turn   chan struct{} // closed when it gets a slot, or the gate closes
	in     *list.List    // that at is in
	at     *list.Element // nil if it is in no line
}

func (v *visit) long() bool  { return v.size >= longText }
func (v *visit) cost() int64 { return max(v.size, waitCost) }

// enter waits for a slot for a text of size bytes. Without an error the visit must
// leave.
func (g *gate) enter(ctx context.Context, size int64) (*visit, error) {
	v := &visit{size: size}
	inside, err := g.arrive(v)
	if err == nil && !inside {
		err = v.wait(ctx)
	}
	if err != nil {
		g.leave(v)
		return nil, err
	}
	return v, nil
}

// arrive gives v a slot or a place in line.
func (g *gate) arrive(v *visit) (inside bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return false, ErrPoolClosed
	case v.long():
		g.stand(v, &g.long)
		g.serve()
	case g.free > 0:
		g.free--
		v.inside = true
	default:
		g.stand(v, &g.line)
	}
	if v.inside {
		return true, nil
	}
	return false, g.admit(v)
}

// leave ends a visit, wherever it is.
func (g *gate) leave(v *visit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.at != nil {
		v.in.Remove(v.at)
		v.at = nil
	}
	if v.inside {
		v.inside = false
		g.free++
	}
	if v.begun {
		v.begun = false
		g.begun -= v.size
	}
	g.admitted(v)
	g.serve()
}

// pass gives the slot of v to the first in line, if there is one, and waits for another. It
// returns the error of ctx once that is done; with an error v may have a slot or none.
func (g *gate) pass(ctx context.Context, v *visit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrPoolClosed
	}
	if g.line.Len() == 0 {
		g.mu.Unlock()
		return nil
	}
	v.inside = false
	g.free++
	g.stand(v, &g.line)
	g.serve()
	g.mu.Unlock()
	return v.wait(ctx)
}

// stand puts v at the end of a line.
func (g *gate) stand(v *visit, in *list.List) {
	v.turn = make(chan struct{})
	v.in, v.at = in, in.PushBack(v)
}

// serve admits as many as it can.
func (g *gate) serve() {
	for e := g.long.Front(); e != nil; e = g.long.Front() {
		v := e.Value.(*visit)
		if g.begun > 0 && g.begun+v.size > g.maxBegun {
			break
		}
		g.long.Remove(e)
		v.begun = true
		g.begun += v.size
		v.in, v.at = &g.line, g.line.PushBack(v)
	}
	for ; g.free > 0 && g.line.Len() > 0; g.free-- {
		v := g.line.Remove(g.line.Front()).(*visit)
		v.at = nil
		v.inside = true
		g.admitted(v)
		close(v.turn)
	}
}

// wait waits until v has a slot. With an error it may have got one all the same, at
// the same moment.
func (v *visit) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-v.turn:
		if !v.inside { // nothing else changes it now
			return ErrPoolClosed
		}
		return nil
	}
}

// admit counts v as a text that waits, or returns ErrBusy. If none waits, any may.
func (g *gate) admit(v *visit) error {
	if g.waiters > 0 && v.cost() > (g.maxWaiting-g.waiting)/waitShare {
		g.refused++
		return fmt.Errorf("%w: %d texts of %d bytes wait", ErrBusy, g.waiters, g.waiting)
	}
	v.waits = true
	g.waiters++
	g.waiting += v.cost()
	return nil
}

// admitted undoes admit.
func (g *gate) admitted(v *visit) {
	if v.waits {
		v.waits = false
		g.waiters--
		g.waiting -= v.cost()
	}
}

// queue counts a text that waits for something other than a slot. Without an error the visit,
// which never gets inside, must leave.
func (g *gate) queue(size int64) (*visit, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := &visit{size: size}
	return v, g.admit(v)
}

// close refuses waiting and new texts. Those inside may leave.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, line := range []*list.List{&g.line, &g.long} {
		for line.Len() > 0 {
			v := line.Remove(line.Front()).(*visit)
			v.at = nil
			close(v.turn)
		}
	}
}
