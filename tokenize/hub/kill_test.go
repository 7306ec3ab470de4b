//go:build unix

package hub_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/hub"
)

// TestMain is the process to be killed, or one of several with one cache, if childEnv is set. It
// has a cache, an endpoint, a model, and the number of the disk operation in which the process
// kills itself, or 0.
func TestMain(m *testing.M) {
	if c := strings.Fields(os.Getenv(childEnv)); len(c) == 4 {
		os.Exit(child(c[0], c[1], c[2], c[3]))
	}
	os.Exit(m.Run())
}

const childEnv = "KVINDEX_HUB_TEST_CHILD"

func child(dir, endpoint, model, at string) int {
	left, err := strconv.Atoi(at)
	if err != nil {
		return 2
	}
	c := &hub.Client{Repo: byName, Dir: dir, Endpoint: endpoint}
	c.SetPause(nil)
	var mu sync.Mutex
	kill := func() {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	c.SetFault(func(string, string) error { kill(); return nil })
	c.Progress = func(string, string, int64, int64) { kill() }
	got, err := c.Find(context.Background(), model)
	fmt.Println(got, err)
	if err != nil {
		return 1
	}
	return 0
}

func startChild(t *testing.T, dir, endpoint, model string, at int) (*exec.Cmd, *strings.Builder) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{dir, endpoint, model, strconv.Itoa(at)}, " "))
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	return cmd, out
}

// TestKilled: a killed process leaves nothing that looks complete, and the next one resumes its
// work. Every other process kills itself in a disk operation, the others are killed in a request. A
// cache is used until a process succeeds.
func TestKilled(t *testing.T) {
	h := newFake(t)
	want, killed := max(*schedules/20, 1), 0
	var dir, model string
	var f files
	for i, cache := 0, 0; killed < want; i++ {
		if dir == "" {
			cache++
			dir, model = t.TempDir(), fmt.Sprintf("org/m%d", cache)
			f = whole(model)
			f["tokenizer.json"] = strings.Repeat("tokenizer "+model, 1<<17)
			if commit := h.commit(model, "main", f); cache%2 == 1 { // a revision without a ref
				model += "@" + commit
			}
		}
		at, requests, begun := 0, 0, make(chan bool)
		if i%2 == 0 {
			at = 1 + i*7%43
		} else {
			h.setFault(func(string) string {
				if requests++; requests == 1+i%11 {
					close(begun)
				}
				return ""
			})
		}
		cmd, out := startChild(t, dir, h.server.URL, model, at)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var err error
		select {
		case <-begun:
			cmd.Process.Kill()
			err = <-ended
		case err = <-ended:
		}
		h.setFault(nil)
		state := cmd.ProcessState.Sys().(syscall.WaitStatus)
		wasKilled := state.Signaled() && state.Signal() == syscall.SIGKILL
		if err != nil && !wasKilled {
			t.Fatalf("a child: %v: %s", err, out)
		}
		for _, find := range []func(context.Context, string) (string, error){
			(&hub.Client{Repo: byName, Dir: dir, Offline: true}).Find, tokenize.Hub{Dir: dir}.Find,
		} {
			if got, err := find(t.Context(), model); err == nil {
				if err := check(got, f); err != nil {
					t.Errorf("kill %d: found offline: %v", i, err)
				}
			}
		}
		if wasKilled {
			killed++
			if killed < want {
				continue
			}
		}
		got, err := h.client(dir).Find(t.Context(), model)
		if err == nil {
			err = check(got, f)
		}
		if err != nil {
			t.Fatalf("after kill %d: %v", i, err)
		}
		blobs := filepath.Join(filepath.Dir(filepath.Dir(got)), "blobs")
		if left, err := filepath.Glob(filepath.Join(blobs, "*.kvindex.incomplete")); err != nil || len(left) > 0 {
			t.Errorf("after kill %d: %q is left, %v", i, left, err)
		}
		dir = ""
	}
}

// TestProcesses: eight processes with one cache download each file once.
func TestProcesses(t *testing.T) {
	h := newFake(t)
	f := whole("1")
	f["tokenizer.json"] = strings.Repeat("tokenizer", 1<<17)
	h.commit("org/m", "main", f)
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		cmd, out := startChild(t, dir, h.server.URL, "org/m", 0)
		all.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
				return
			}
			got, _, _ := strings.Cut(out.String(), " ")
			if err := check(got, f); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got := map[string]int{}
	for _, r := range h.asked() {
		got[r]++
	}
	for r, n := range got {
		if (strings.HasPrefix(r, "get") || strings.HasPrefix(r, "cdn")) && n != 1 && runtime.GOOS == "linux" {
			t.Errorf("%s: %d times", r, n)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "models--org--m", "blobs", "*.incomplete"))
	if err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}
