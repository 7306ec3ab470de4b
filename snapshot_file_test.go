package kvindex_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// fileOfWriter names the file that a process to be killed writes repeatedly.
const fileOfWriter = "KVINDEX_EXAMPLE_WRITES"

// saveForEver saves after each message, and prints the number of saved messages.
func saveForEver(t *testing.T, path string) {
	ix, err := kvindex.LoadFile(ctx, path)
	for err == nil {
		var n uint64
		if n, err = hear(ix); err == nil {
			err = ix.SaveFile(ctx, path)
		}
		fmt.Println(n)
	}
	t.Fatal(err)
}

// hear ingests the next message of a pod.
func hear(ix *kvindex.Indexer) (next uint64, err error) {
	next = ix.Sink().StreamNext("a", "m", "s").Next
	p := fakeengine.NewPrompt(next%50, 16, 40)
	_, err = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: next, Payload: fakeengine.Payload(float64(next+1), 0, p.Stored(0, 40))})
	return next + 1, err
}

// TestKill: a process killed while saving leaves a whole snapshot, of the last complete save or of
// the one after it.
func TestKill(t *testing.T) {
	if path := os.Getenv(fileOfWriter); path != "" {
		saveForEver(t, path)
	}
	times := 40
	if testing.Short() {
		times = 10
	}
	path := filepath.Join(t.TempDir(), "snapshot")
	r := rand.New(rand.NewPCG(1, 1))
	saved := uint64(0)
	for range times {
		child := exec.Command(os.Args[0], "-test.run=^TestKill$")
		child.Env = append(os.Environ(), fileOfWriter+"="+path)
		var said bytes.Buffer
		child.Stderr = &said
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewScanner(out)
		for range 1 + r.IntN(3) {
			if !lines.Scan() {
				t.Fatalf("the writer has ended: %s", &said)
			}
			fmt.Sscan(lines.Text(), &saved)
		}
		for range r.IntN(1 << 18) { // stop inside of a save
			_ = r.Uint64()
		}
		must(t, child.Process.Kill())
		for lines.Scan() { // its last lines
			fmt.Sscan(lines.Text(), &saved)
		}
		_ = child.Wait()
		ix, err := kvindex.LoadFile(ctx, path)
		must(t, err)
		if got := ix.Sink().StreamNext("a", "m", "s").Next; got != saved && got != saved+1 {
			t.Fatalf("%d messages in the file, and %d were saved", got, saved)
		}
		saved = ix.Sink().StreamNext("a", "m", "s").Next
		ix.Close()
	}
}

// TestFile: SaveFile replaces the file as a whole, readable by its owner alone, and LoadFile
// distinguishes a missing file from an unusable one.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	saved := func() uint64 {
		t.Helper()
		ix, err := kvindex.LoadFile(ctx, path)
		must(t, err)
		defer ix.Close()
		return ix.Sink().StreamNext("a", "m", "s").Next
	}
	if saved() != 0 {
		t.Error("there is a file already")
	}
	ix := open(t)
	for n := range uint64(3) {
		if _, err := hear(ix); err != nil {
			t.Fatal(err)
		}
		var saving sync.WaitGroup
		for range 4 {
			saving.Go(func() {
				if err := ix.SaveFile(ctx, path); err != nil {
					t.Error(err)
				}
			})
		}
		saving.Wait()
		if got := saved(); got != n+1 {
			t.Errorf("%d messages are in the file, want %d", got, n+1)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := ix.SaveFile(ended, path); !errors.Is(err, context.Canceled) || saved() != 3 {
		t.Errorf("a context that has ended: %v, %d messages in the file", err, saved())
	}
	closed := open(t)
	closed.Close()
	if err := closed.SaveFile(ctx, path); !errors.Is(err, kvindex.ErrClosed) || saved() != 3 {
		t.Errorf("a snapshot that fails: %v, %d messages in the file", err, saved())
	}
	precious := filepath.Join(t.TempDir(), "precious")
	must(t, errors.Join(os.WriteFile(precious, []byte("precious"), 0o644), os.Symlink(precious, path+".unfinished")))
	if err := ix.SaveFile(ctx, path); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("after a link was in the way: %v, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(precious); string(text) != "precious" || err != nil {
		t.Errorf("the target of the link: %q, %v", text, err)
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
	if err := ix.SaveFile(ctx, filepath.Join(path, "below", "a file")); err == nil {
		t.Error("saved below a file")
	}
	must(t, os.WriteFile(path, []byte("torn"), 0o600))
	if _, err := kvindex.LoadFile(ctx, path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a torn file: %v", err)
	}
}
