package events

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file bounds how many connections of a Fleet are being made at one time. Engines that do
// not answer must not hold up those that do. So an attempt is cut short while others wait in
// line, earlier for a longer line, so that the whole line has its turn in about half a second.
// Its Subscriber tries again. Some of the places are for slow attempts: the first attempt that
// is late gets a free one. So a distant peer is connected in the end.
//
// Each attempt takes a descriptor and a handshake of up to 2 seconds. With 10,000 addresses
// that do not answer, a plain semaphore of 32 would keep a good pod in line for ten minutes.
// Here an attempt gets between 2 and 250 ms, and a quarter of the places are for slow
// attempts. Pods that were connected before go first, then new ones, then those that failed:
// existing views are worth most.

const (
	// lineTime is the time in which the whole line should have its turn.
	lineTime = 500 * time.Millisecond
	// An attempt has at least minPatience, and at most maxPatience before it is cut short for
	// others in line.
	minPatience = 2 * time.Millisecond
	maxPatience = 250 * time.Millisecond
)

var errHurried = errors.New("events: the pod did not answer at once, and other pods waited to be connected")

// A dialLine has the places for connections that are being made, and the line for them.
type dialLine struct {
	places  int  // for quick attempts
	hurries bool // attempts are cut short, because there are places for slow ones

	mu      sync.Mutex // guards what follows
	free    int        // of places
	patient int        // free places for slow attempts
	lines   [ranksOfDial][]*dialTurn
}

// A dialRank is the order in line.
type dialRank uint8

const (
	dialLost  dialRank = iota // the pod was connected before this attempt
	dialNew                   // it was never tried
	dialAgain                 // the last attempt failed
	ranksOfDial
)

// A dialTurn is an attempt.
type dialTurn struct {
	turn    chan struct{} // closed when it has a place
	patient bool          // it has a place for slow attempts
	over    bool
	timer   *time.Timer
	cut     context.CancelFunc
	hurried bool // it was cut
}

func newDialLine(n int) *dialLine {
	patient := max(n/4, min(n-1, 1))
	return &dialLine{places: n - patient, free: n - patient, patient: patient, hurries: patient > 0}
}

// dial connects when the attempt has its turn.
func (d *dialLine) dial(ctx context.Context, rank dialRank, endpoint string, wire zmtp.Config) (*zmtp.Conn, error) {
	t := &dialTurn{turn: make(chan struct{})}
	if err := d.enter(ctx, t, rank); err != nil {
		return nil, err
	}
	defer d.leave(t)
	ctx, t.cut = context.WithCancel(ctx)
	defer t.cut()
	d.mu.Lock()
	t.timer = time.AfterFunc(d.patience(), func() { d.late(t) })
	d.mu.Unlock()
	conn, err := zmtp.Dial(ctx, endpoint, wire)
	d.mu.Lock()
	t.over = true
	t.timer.Stop()
	if err != nil && t.hurried {
		err = errHurried
	}
	d.mu.Unlock()
	return conn, err
}

// enter waits for a place.
func (d *dialLine) enter(ctx context.Context, t *dialTurn, rank dialRank) error {
	d.mu.Lock()
	d.lines[rank] = append(d.lines[rank], t)
	d.admit()
	d.mu.Unlock()
	select {
	case <-t.turn:
		return nil
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-t.turn: // it has got a place meanwhile
		d.free++
		d.admit()
	default:
		i := slices.Index(d.lines[rank], t)
		d.lines[rank] = slices.Delete(d.lines[rank], i, i+1)
	}
	return ctx.Err()
}

// admit gives free places to attempts in line. d.mu is held.
func (d *dialLine) admit() {
	for i := range d.lines {
		line := &d.lines[i]
		for ; d.free > 0 && len(*line) > 0; d.free-- {
			close((*line)[0].turn)
			(*line)[0] = nil
			*line = (*line)[1:]
		}
	}
}

func (d *dialLine) waiting() (n int) {
	for i := range d.lines {
		n += len(d.lines[i])
	}
	return n
}

// patience returns how long an attempt may last while others wait. d.mu is held.
func (d *dialLine) patience() time.Duration {
	each := lineTime * time.Duration(d.places) / time.Duration(d.waiting()+1)
	return min(max(each, minPatience), maxPatience)
}

// late is called when an attempt has lasted for its patience.
func (d *dialLine) late(t *dialTurn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case t.over || t.patient:
	case d.patient > 0:
		d.patient--
		t.patient = true
		d.free++
		d.admit()
	case d.waiting() == 0 || !d.hurries:
		t.timer.Reset(d.patience())
	default:
		t.hurried = true
		t.cut()
	}
}

// leave returns a place.
func (d *dialLine) leave(t *dialTurn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.patient {
		d.patient++
		return
	}
	d.free++
	d.admit()
}
