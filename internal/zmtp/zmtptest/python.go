package zmtptest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// python is the interpreter of the system, the one that Debian's python3-zmq is
// installed for.
const python = "/usr/bin/python3"

// Python is a running script that reads one command a line and answers each by
// one line of JSON. It is safe for concurrent use.
type Python struct {
	Ready map[string]any // the line that reports it

	mu  sync.Mutex // one command at a time
	in  io.WriteCloser
	out *bufio.Scanner
}

// NeedLibzmq skips the test where Python has no libzmq, or fails it if the
// environment has KVINDEX_REQUIRE_ZMQ=1.
func NeedLibzmq(t testing.TB) {
	t.Helper()
	out, err := exec.Command(python, "-c", "import zmq; print(zmq.zmq_version())").CombinedOutput()
	if err == nil {
		t.Logf("the peer is libzmq %s", strings.TrimSpace(string(out)))
		return
	}
	if os.Getenv("KVINDEX_REQUIRE_ZMQ") == "1" {
		t.Fatalf("KVINDEX_REQUIRE_ZMQ is set, but %s cannot import zmq: %v", python, err)
	}
	t.Skipf("not tested against libzmq: %s cannot import zmq (Debian: python3-zmq)", python)
}

// StartPython runs a script until the test ends, and returns when it has reported that
// it is ready.
func StartPython(t testing.TB, script string, args ...string) *Python {
	t.Helper()
	NeedLibzmq(t)
	cmd := exec.Command(python, append([]string{script}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the scripts end with their input
		_ = in.Close()
		_ = cmd.Wait()
	})
	p := &Python{in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 64<<20)
	if p.Ready, err = p.answer(); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return p
}

// Do sends a command and returns the answer.
func (p *Python) Do(format string, args ...any) (map[string]any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return nil, err
	}
	a, err := p.answer()
	if err == nil && a["ok"] != true {
		err = fmt.Errorf("%s: %v", fmt.Sprintf(format, args...), a["error"])
	}
	return a, err
}

func (p *Python) answer() (map[string]any, error) {
	if !p.out.Scan() {
		return nil, fmt.Errorf("the script ended: %w", errors.Join(io.EOF, p.out.Err()))
	}
	var a map[string]any
	return a, json.Unmarshal(p.out.Bytes(), &a)
}
