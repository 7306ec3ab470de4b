// Package zmtptest has what tests of ZeroMQ connections share: the bytes of the
// protocol written down by hand, peers that run in Python on libzmq, ports for
// them, and a check for goroutines that were left behind.
package zmtptest

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Greeting is the first bytes of a peer of version 3.minor.
func Greeting(minor byte) []byte {
	g := make([]byte, 64)
	g[0], g[8], g[9], g[10], g[11] = 0xff, 1, 0x7f, 3, minor
	copy(g[12:], "NULL")
	return g
}

// Frame is one frame with the length that its body has. Flags are as on the
// wire; the one for a long frame is added where it must be.
func Frame(flags byte, body string) []byte {
	if len(body) > 255 {
		return append(LongHeader(flags, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// LongHeader is the header of a frame that claims a length.
func LongHeader(flags byte, length uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, length)
}

// Command is a command frame.
func Command(name, data string) []byte {
	return Frame(4, string(rune(len(name)))+name+data)
}

// Property is one property of a READY command.
func Property(name, value string) string {
	return string(rune(len(name))) + name + string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
}

// Hello is the whole of what a peer with a socket type sends in a handshake.
func Hello(minor byte, socketType string) []byte {
	return append(Greeting(minor), Command("READY", Property("Socket-Type", socketType))...)
}

// Message is a message of some frames.
func Message(frames ...string) []byte {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = 1
		}
		b = append(b, Frame(flags, f)...)
	}
	return b
}

// Context bounds what a test waits for. It ends with the test, or so long before
// the deadline of the test binary that the test can still report what is missing:
// no machine is too slow for that.
func Context(tb testing.TB) context.Context {
	if t, ok := tb.(*testing.T); ok {
		if end, ok := t.Deadline(); ok {
			ctx, cancel := context.WithDeadline(t.Context(), end.Add(-5*time.Second))
			t.Cleanup(cancel)
			return ctx
		}
	}
	return tb.Context()
}

// FreePort returns a port of 127.0.0.1 that is free, for a server of another process. Systems give it
// to nobody who asks for any port, and no other call returns it before the test ends: its UDP port,
// which no server uses, is taken.
func FreePort(tb testing.TB) string {
	tb.Helper()
	const first, ports = 30_000, 2_768
	for range ports {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(ports)))
		taken, err := net.ListenPacket("udp4", at)
		if err != nil {
			continue
		}
		if ln, err := net.Listen("tcp4", at); err == nil {
			ln.Close()
			tb.Cleanup(func() { taken.Close() })
			_, port, _ := net.SplitHostPort(at)
			return port
		}
		taken.Close()
	}
	tb.Fatalf("no free port from %d to %d", first, first+ports-1)
	return ""
}

// Terminate sends SIGTERM to a process until it ends, and returns what Wait returns. It leaves time
// between two signals: Go's runtime handles one that nobody waits for on a stack of 32 KiB, which a
// flood of signals overflows.
func Terminate(cmd *exec.Cmd) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			return err
		case <-pace.C:
		}
	}
}

// Main is a TestMain: it runs the tests and fails if goroutines stay behind. Of parallel
// tests eight run at a time, unless -parallel is given or the package parsed its flags: they wait more than they compute.
func Main(m *testing.M) {
	if !flag.Parsed() {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if left := leftovers(time.Minute); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// NoLeaks makes a top-level test fail if goroutines stay behind when it and what
// it cleans up after this call have ended.
func NoLeaks(t *testing.T) {
	t.Cleanup(func() {
		if left := leftovers(time.Minute); left != "" {
			t.Errorf("goroutines left behind:\n%s", left)
		}
	})
}

// leftovers returns the stacks of goroutines that do not end in time. Those of
// github.com/go-zeromq/zmq4 are not counted: its sockets leave some behind.
func leftovers(patience time.Duration) string {
	deadline := time.After(patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		left := stacks()
		if left == "" {
			return ""
		}
		select {
		case <-deadline:
			return left
		case <-again.C:
		}
	}
}

// others are frames of goroutines that are not the tests' own.
var others = []string{"go-zeromq/zmq4", "os/signal.", "testing.(*T).Run", "testing.(*M).Run"}

func stacks() string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var left []string
	for _, s := range all[1:] { // the first is the caller
		if !slices.ContainsFunc(others, func(o string) bool { return strings.Contains(s, o) }) {
			left = append(left, s)
		}
	}
	return strings.Join(left, "\n\n")
}
