package faultproxy_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

const (
	patience = 2 * time.Minute
	// quiet is the time in which nothing may arrive, where no later event can show it.
	quiet = 30 * time.Millisecond
)

// rig is a proxy with a listener as its target.
type rig struct {
	*testing.T
	*faultproxy.Proxy
	target net.Listener
}

func newRig(t *testing.T) *rig {
	zmtptest.NoLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p, err := faultproxy.Listen(ln.Addr().String())
	must(t, err)
	r := &rig{t, p, ln}
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		ln.Close()
	})
	return r
}

func (r *rig) dial() net.Conn {
	r.Helper()
	c, err := net.Dial("tcp", r.Addr())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// connect returns both ends of a connection.
func (r *rig) connect() (client, server net.Conn) {
	r.Helper()
	client = r.dial()
	server, err := r.target.Accept()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { server.Close() })
	_ = server.SetDeadline(time.Now().Add(patience))
	r.say(client, "ready?")
	r.hear(server, "ready?") // the proxy has the connection now
	return client, server
}

func (r *rig) say(c net.Conn, text string) {
	r.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) hear(c net.Conn, want string) {
	r.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		r.Fatalf("received %q, want %q: %v", got[:n], want, err)
	}
}

func (r *rig) hearNothing(c net.Conn) {
	r.Helper()
	_ = c.SetReadDeadline(time.Now().Add(quiet))
	var b [100]byte
	if n, err := c.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		r.Fatalf("received %q, %v", b[:n], err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
}

// held waits until so much is held back, and checks that none of it was passed on.
func (r *rig) held(hold *faultproxy.ArmedFault, want string) {
	r.Helper()
	for late := zmtptest.Context(r.T); hold.Held() != want; runtime.Gosched() {
		if late.Err() != nil {
			r.Fatalf("%q is held, want %q", hold.Held(), want)
		}
	}
}

// hearEnd checks that the connection ends, with or without a reset.
func (r *rig) hearEnd(c net.Conn) {
	r.Helper()
	var b [100]byte
	if n, err := c.Read(b[:]); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		r.Fatalf("received %q, %v, not the end", b[:n], err)
	}
}

func (r *rig) fired(a *faultproxy.ArmedFault) {
	r.Helper()
	select {
	case <-a.Fired():
	case <-time.After(patience):
		r.Fatal("a fault did not come")
	}
}

func TestTransparent(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	up, down := bytes.Repeat([]byte("up"), 1<<20), bytes.Repeat([]byte("down"), 1<<20)
	send := func(c net.Conn, b []byte) {
		if _, err := c.Write(b); err != nil {
			t.Error(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	}
	receive := func(c net.Conn, want []byte) {
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came, want %d: %v", len(got), len(want), err)
		}
	}
	var all sync.WaitGroup
	all.Go(func() { send(client, up) })
	all.Go(func() { send(server, down) })
	all.Go(func() { receive(server, up) })
	all.Go(func() { receive(client, down) })
	all.Wait()
}

func TestCut(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		after int
		want  string
	}{{0, ""}, {1, "a"}, {4, "abcd"}, {6, "abcdef"}} {
		client, server := r.connect()
		cut := r.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Down, After: tt.after})
		if tt.after > 0 && cut.HasFired() {
			t.Fatal("cut at once")
		}
		r.say(client, "bytes of the other direction do not count")
		_, _ = io.WriteString(server, "abc") // fails after the cut
		_, _ = io.WriteString(server, "def")
		r.hear(client, tt.want)
		r.fired(cut)
		r.hearEnd(client)
		r.hearEndBehind(server)
	}
}

// hearEndBehind is hearEnd after the bytes under way.
func (r *rig) hearEndBehind(c net.Conn) {
	r.Helper()
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		r.Fatal("the connection does not end")
	}
}

func TestHold(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	hold := r.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Down, After: 2})
	hold.Release() // too early
	if hold.Take() != nil {
		t.Error("something is held too early")
	}
	r.say(server, "abcd")
	r.hear(client, "ab")
	r.fired(hold)
	r.say(client, "x")
	r.hear(server, "x")
	again := r.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Down})
	r.say(server, "ef")
	r.held(again, "cdef")
	hold.Release()
	r.held(again, "cdef")
	server.Close() // held bytes outlive their sender
	again.Release()
	r.hear(client, "cdef")
	r.hearEnd(client)
	again.Release()
}

func TestTake(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	hold := r.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up})
	r.fired(hold)
	r.say(client, "late")
	r.held(hold, "late")
	late := hold.Take()
	r.Cut()
	r.hearEnd(client)
	r.hearEnd(server)
	client, server = r.connect()
	r.say(client, "new")
	r.hear(server, "new")
	r.fired(r.Arm(faultproxy.Fault{Kind: faultproxy.Inject, Direction: faultproxy.Up, Data: late}))
	r.hear(server, "late")
}

func TestSilence(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	silence := r.Arm(faultproxy.Fault{Kind: faultproxy.Silence, Direction: faultproxy.Up, After: 3})
	r.say(client, "abcdef")
	r.hear(server, "abc")
	r.fired(silence)
	r.say(server, "x")
	r.hearNothing(client)
	r.hearNothing(server)
	server.Close()
	r.hearNothing(client)
	next := r.Arm(faultproxy.Fault{Kind: faultproxy.Inject, Direction: faultproxy.Up, Data: []byte("first ")})
	if next.HasFired() {
		t.Error("a fault goes to a silent connection")
	}
	client2 := r.dial()
	server2, err := r.target.Accept()
	must(t, err)
	defer server2.Close()
	r.say(client2, "x")
	r.hear(server2, "first x")
	r.Heal()
	r.hearEnd(client)
	r.say(client2, "y")
	r.hear(server2, "y")
}

func TestBlackhole(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	r.Blackhole(true)
	r.say(client, "x")
	r.say(server, "x")
	client2 := r.dial()
	server2, err := r.target.Accept()
	must(t, err)
	defer server2.Close()
	r.say(client2, "x")
	r.hearNothing(client)
	r.hearNothing(server)
	r.hearNothing(server2)
	r.Blackhole(false)
	r.hearEnd(client)
	r.hearEnd(client2)
	r.connect()
}

func TestRedirect(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer other.Close()
	r.Redirect(other.Addr().String())
	r.say(client, "still")
	r.hear(server, "still")
	client = r.dial()
	server, err = other.Accept()
	must(t, err)
	defer server.Close()
	r.say(client, "there")
	r.hear(server, "there")
}

func TestInject(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	for _, f := range []faultproxy.Fault{
		{Kind: faultproxy.Inject, After: 4, Data: []byte("2")},
		{Kind: faultproxy.Inject, After: 2, Data: []byte("1")},
		{Kind: faultproxy.Inject, After: 4, Data: []byte("3")},
		{Kind: faultproxy.Inject, Data: []byte("0")},
	} {
		f.Direction = faultproxy.Down
		r.Arm(f)
	}
	never := r.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Down, After: 1})
	never.Disarm()
	r.say(server, "abcdef")
	r.hear(client, "0ab1cd23ef")
	if never.HasFired() {
		t.Error("a fault that was disarmed has happened")
	}
	// A later connection.
	a := r.ArmNext(faultproxy.Fault{Kind: faultproxy.Inject, Direction: faultproxy.Up, After: 3, Data: []byte("...")})
	r.say(client, "here")
	r.hear(server, "here")
	if a.HasFired() {
		t.Error("the fault came before its connection")
	}
	client = r.dial()
	server, err := r.target.Accept()
	must(t, err)
	defer server.Close()
	r.say(client, "there")
	r.hear(server, "the...re")
	r.fired(a)
}

func TestRefuse(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	r.Refuse(true)
	r.hearEnd(r.dial())
	if c, err := r.target.Accept(); err == nil {
		r.hearEnd(c)
		c.Close()
	}
	r.say(client, "still")
	r.hear(server, "still")
	r.Refuse(false)
	r.connect()
}

func TestHeal(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	hold := r.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up})
	r.fired(hold)
	r.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Down, After: 1})
	r.ArmNext(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Up})
	r.Refuse(true)
	r.say(client, "held")
	r.held(hold, "held")
	r.Heal()
	r.hear(server, "held")
	r.say(server, "well")
	r.hear(client, "well")
	r.connect()
}

// TestCloseWhileHeld: Close ends a proxy in any state.
func TestCloseWhileHeld(t *testing.T) {
	r := newRig(t)
	client, server := r.connect()
	r.fired(r.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Down}))
	r.say(server, "held")
	server.Close()
	silent, _ := r.connect()
	r.fired(r.Arm(faultproxy.Fault{Kind: faultproxy.Silence, Direction: faultproxy.Down}))
	must(t, r.Close())
	r.hearEnd(client)
	r.hearEnd(silent)
	if _, err := net.Dial("tcp", r.Addr()); err == nil {
		t.Error("a closed proxy accepts")
	}
}

func TestNoTarget(t *testing.T) {
	r := newRig(t)
	r.target.Close()
	r.hearEnd(r.dial())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
