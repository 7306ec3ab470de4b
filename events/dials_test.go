package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// atRest checks that n places are free and nobody is in line.
func (d *dialLine) atRest(t *testing.T, n int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free != d.places || d.places+d.patient != n || d.waiting() != 0 {
		t.Errorf("of %d places %d of %d are free, and %d patient ones; %d wait", n, d.free, d.places, d.patient, d.waiting())
	}
}

// until waits for ok.
func (d *dialLine) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		d.mu.Lock()
		is := ok()
		d.mu.Unlock()
		if is {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// All get a place in the end, and no more of them at a time than there are places.
func TestDialLinePlaces(t *testing.T) {
	for _, n := range []int{1, 3, 4, 32} {
		synctest.Test(t, func(t *testing.T) {
			d := newDialLine(n)
			const all = 100
			in, done := make(chan *dialTurn, all), make(chan bool)
			for i := range all {
				go func() {
					turn := &dialTurn{turn: make(chan struct{})}
					if err := d.enter(t.Context(), turn, dialRank(i%int(ranksOfDial))); err != nil {
						t.Error(err)
					}
					in <- turn
					<-done
					d.leave(turn)
				}()
			}
			quick := d.places
			for left := all; left > 0; left-- {
				synctest.Wait()
				if got := len(in); got != min(left, quick) {
					t.Fatalf("of %d attempts %d are in, and there are %d places", left, got, quick)
				}
				<-in
				done <- true
			}
			synctest.Wait()
			d.atRest(t, n)
		})
	}
}

// Lost connections go first, then new ones, then failed ones. Each kind is first in, first out.
func TestDialLineOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialLine(1)
		first := &dialTurn{turn: make(chan struct{})}
		must(t, d.enter(t.Context(), first, dialAgain))
		order := make(chan string, 6)
		for i, rank := range []dialRank{dialAgain, dialNew, dialLost, dialAgain, dialNew, dialLost} {
			go func() {
				turn := &dialTurn{turn: make(chan struct{})}
				if err := d.enter(t.Context(), turn, rank); err != nil {
					t.Error(err)
				}
				order <- fmt.Sprint(rank, i)
				d.leave(turn)
			}()
			synctest.Wait()
		}
		d.leave(first)
		var got []string
		for range 6 {
			got = append(got, <-order)
		}
		if want := []string{"0 2", "0 5", "1 1", "1 4", "2 0", "2 3"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		d.atRest(t, 1)
	})
}

// A context that ends leaves nothing behind, in line or with a place.
func TestDialLineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialLine(1)
		first := &dialTurn{turn: make(chan struct{})}
		must(t, d.enter(t.Context(), first, dialNew))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		for i := range 9 {
			go func() { ended <- d.enter(ctx, &dialTurn{turn: make(chan struct{})}, dialRank(i%int(ranksOfDial))) }()
		}
		synctest.Wait()
		if n := d.waiting(); n != 9 {
			t.Errorf("%d wait", n)
		}
		cancel()
		for range 9 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		d.leave(first)
		d.atRest(t, 1)
	})
	// A place is free and the context has ended: either result is right.
	d := newDialLine(3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in := 0
	for range 200 {
		turn := &dialTurn{turn: make(chan struct{})}
		if d.enter(ctx, turn, dialNew) == nil {
			in++
			d.leave(turn)
		}
		d.atRest(t, 3)
	}
	if in == 0 || in == 200 {
		t.Errorf("in %d of 200 attempts the place counted, so not both were tried", in)
	}
}

// A late attempt gets a patient place, or goes on while the line is empty, or is cut.
func TestDialLineLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialLine(4)
		var cut []string
		enter := func(name string) *dialTurn {
			turn := &dialTurn{turn: make(chan struct{}), cut: func() { cut = append(cut, name) }}
			turn.timer = time.AfterFunc(time.Hour, func() { d.late(turn) })
			if err := d.enter(t.Context(), turn, dialNew); err != nil {
				t.Error(err)
			}
			return turn
		}
		a, b, c := enter("a"), enter("b"), enter("c")
		next := make(chan *dialTurn)
		go func() { next <- enter("d") }()
		synctest.Wait()
		d.late(a)
		e := <-next // has the place of a
		if !a.patient || d.patient != 0 || d.free != 0 || cut != nil {
			t.Errorf("a is patient: %v; %d patient and %d other places are free; %q were cut", a.patient, d.patient, d.free, cut)
		}
		d.late(a)
		d.late(b) // while the line is empty
		if b.hurried || cut != nil {
			t.Errorf("%q were cut, and nobody waited", cut)
		}
		time.Sleep(2 * maxPatience) // late asked for an extension, and is called once more
		synctest.Wait()
		if b.hurried || cut != nil {
			t.Errorf("%q were cut, and nobody waited", cut)
		}
		go func() { next <- enter("f") }()
		time.Sleep(2 * maxPatience)
		synctest.Wait()
		if !b.hurried || !slices.Equal(cut, []string{"b"}) {
			t.Errorf("one waits, and %q were cut", cut)
		}
		c.over = true
		d.late(c)
		if c.hurried || c.patient {
			t.Error("an attempt that was over was late")
		}
		d.leave(b)
		f := <-next
		for _, turn := range []*dialTurn{a, c, e, f} {
			d.leave(turn)
			turn.timer.Stop()
		}
		b.timer.Stop()
		d.atRest(t, 4)
	})
}

func TestDialLinePatience(t *testing.T) {
	for _, test := range []struct {
		places, wait int
		want         time.Duration
	}{
		{32, 0, 250 * time.Millisecond},
		{32, 23, 250 * time.Millisecond},
		{32, 47, 250 * time.Millisecond},
		{32, 119, 100 * time.Millisecond},
		{32, 5999, 2 * time.Millisecond},
		{32, 1 << 20, 2 * time.Millisecond},
		{1, 0, 250 * time.Millisecond},
		{1, 9, 50 * time.Millisecond},
	} {
		d := newDialLine(test.places)
		for i := range test.wait {
			d.lines[i%int(ranksOfDial)] = append(d.lines[i%int(ranksOfDial)], nil)
		}
		if got := d.patience(); got != test.want {
			t.Errorf("%d places, and %d wait: %v, want %v", test.places, test.wait, got, test.want)
		}
	}
}

// silentPeer accepts connections and sends nothing.
func silentPeer(t *testing.T) (endpoint string, conns chan net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	conns = make(chan net.Conn, 1000)
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-ended
		for len(conns) > 0 {
			_ = (<-conns).Close()
		}
	})
	return "tcp://" + ln.Addr().String(), conns
}

// Among silent peers, all in line get their turn and a slow peer is connected to.
func TestDialSlowPeer(t *testing.T) {
	t.Parallel()
	const n, silent = 4, 20
	slow, slows := silentPeer(t)
	dead, _ := silentPeer(t)
	d := newDialLine(n)
	wire := zmtp.Config{Type: zmtp.SUB, HandshakeTimeout: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type result struct {
		conn *zmtp.Conn
		err  error
	}
	begin := func(to string, results chan result) {
		go func() {
			conn, err := d.dial(ctx, dialNew, to, wire)
			results <- result{conn, err}
		}()
	}
	connected, failed := make(chan result, 1), make(chan result, silent)
	begin(slow, connected)
	d.until(t, "the slow one has the patient place", func() bool { return d.patient == 0 })
	for range silent {
		begin(dead, failed)
	}
	for range silent - (n - n/4) { // the last ones go on, as the line is empty
		if r := <-failed; !errors.Is(r.err, errHurried) {
			t.Errorf("%v, want %v", r.err, errHurried)
		}
	}
	if len(connected) > 0 {
		t.Fatal((<-connected).err)
	}
	peer, err := zmtp.Handshake(ctx, <-slows, "the peer", zmtp.Config{Type: zmtp.PUB})
	must(t, err)
	defer peer.Close()
	r := <-connected
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.conn.Close()
	cancel()
	canceled := 0
	for range n - n/4 { // several may have been cut for the last one in line
		r := <-failed
		if errors.Is(r.err, context.Canceled) {
			canceled++
		} else if !errors.Is(r.err, errHurried) {
			t.Error(r.err)
		}
	}
	if canceled == 0 {
		t.Error("the last one in line was cut, and nobody waited")
	}
	d.atRest(t, n)
}

// quietSink discards everything.
type quietSink struct{}

func (quietSink) IngestMessage(Message) (Receipt, error)  { return Receipt{Applied: true}, nil }
func (quietSink) StreamNext(_, _, _ string) Position      { return Position{} }
func (quietSink) StreamNote(_, _, _ string, _ Note) error { return nil }
func (quietSink) RemovePod(string) error                  { return nil }
func (quietSink) RemoveStream(_, _, _ string) error       { return nil }

// A link is in line as new, as lost and as failed.
func TestDialRanks(t *testing.T) {
	engine, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
	must(t, err)
	defer engine.Close()
	f, err := NewFleet(quietSink{}, FleetConfig{Subscriber: SubscriberConfig{Backoff: time.Millisecond}})
	must(t, err)
	d := newDialLine(1)
	f.dials = d
	// occupy takes the only place, ahead of the line.
	occupy := func() *dialTurn {
		turn := &dialTurn{turn: make(chan struct{})}
		must(t, d.enter(t.Context(), turn, dialLost))
		return turn
	}
	inLine := func(rank dialRank) {
		t.Helper()
		d.until(t, fmt.Sprint("one waits with rank ", rank), func() bool { return d.waiting() == 1 && len(d.lines[rank]) == 1 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	defer func() { cancel(); <-ended; d.atRest(t, 1) }()

	place := occupy()
	p := Pod{ID: "a", Model: "m", Host: "127.0.0.1"}
	if _, err := fmt.Sscanf(engine.Endpoint(), "tcp://127.0.0.1:%d", &p.Port); err != nil {
		t.Fatal(err)
	}
	must(t, f.Put("s", p))
	inLine(dialNew)
	d.leave(place)
	d.until(t, "it is live", func() bool { return f.Pods(nil)[0].Streams[0].Link == linkLive })
	place = occupy()
	engine.Close()
	inLine(dialLost)
	d.leave(place)
	place = occupy()
	inLine(dialAgain)
	d.leave(place)
}

// A late result of a connection does not undo the end of its link.
func TestLinkEnds(t *testing.T) {
	f, err := NewFleet(quietSink{}, FleetConfig{})
	must(t, err)
	m := &member{id: "a", is: &Pod{Model: "m", Host: "h", Port: 1}}
	f.mu.Lock()
	l := newLink(f, m, 0)
	l.set(linkEnding, nil)
	f.mu.Unlock()
	for n := range Note(100) {
		l.noted(n)
	}
	l.failed(errors.New("it is lost"))
	if l.link != linkEnding || l.err != nil {
		t.Errorf("%v, %v", l.link, l.err)
	}
}

// A line of one place has no patient place, so it cuts no attempt short. A line of two has one.
func TestDialLineOfOne(t *testing.T) {
	for n, patient := range map[int]int{1: 0, 2: 1, 3: 1, 4: 1, 8: 2, 32: 8} {
		if d := newDialLine(n); d.patient != patient || d.free != n-patient {
			t.Errorf("of %d places %d are patient, and %d others are free", n, d.patient, d.free)
		}
	}
	d := newDialLine(1)
	a := &dialTurn{turn: make(chan struct{}), cut: func() { t.Error("it is cut short") }}
	must(t, d.enter(t.Context(), a, dialNew))
	a.timer = time.AfterFunc(time.Hour, func() {})
	defer a.timer.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.enter(ctx, &dialTurn{turn: make(chan struct{})}, dialNew) }()
	d.until(t, "another one waits", func() bool { return d.waiting() == 1 })
	d.late(a)
	if a.hurried {
		t.Error("it is hurried")
	}
	cancel()
	<-ended
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
