package main

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
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// fileOfWriter names the file that the process writes all the time, if it is one to be
// killed.
const fileOfWriter = "KVINDEX_EXAMPLE_WRITES"

func TestMain(m *testing.M) {
	if path := os.Getenv(fileOfWriter); path != "" {
		write(path)
	}
	os.Exit(m.Run())
}

// hear has an Indexer hear the next message of a pod.
func hear(ix *kvindex.Indexer) (next uint64, err error) {
	next = ix.Sink().StreamNext("a", "m", "s").Next
	p := fakeengine.NewPrompt(next%50, 16, 40)
	_, err = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: next, Payload: fakeengine.Payload(float64(next+1), 0, p.Stored(0, 40))})
	return next + 1, err
}

// write saves for ever, with a message more each time, and says how many were saved.
func write(path string) {
	ix, err := load(context.Background(), path)
	for err == nil {
		var n uint64
		if n, err = hear(ix); err == nil {
			err = save(context.Background(), ix, path)
		}
		fmt.Println(n)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKill: however often a process is killed that saves all the time, there is a whole
// snapshot, of the last save that has ended or of the one behind it.
func TestKill(t *testing.T) {
	times := 40
	if testing.Short() {
		times = 10
	}
	path := filepath.Join(t.TempDir(), "snapshot")
	r := rand.New(rand.NewPCG(1, 1))
	saved := uint64(0)
	for range times {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), fileOfWriter+"="+path)
		var said bytes.Buffer
		child.Stderr = &said
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 1 + r.IntN(3) {
			if !lines.Scan() {
				t.Fatalf("the writer has ended: %s", &said)
			}
			fmt.Sscan(lines.Text(), &saved)
		}
		for range r.IntN(1 << 18) { // to somewhere within a save
			_ = r.Uint64()
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it has said meanwhile
			fmt.Sscan(lines.Text(), &saved)
		}
		_ = child.Wait()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := kvindex.Restore(context.Background(), f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := ix.Sink().StreamNext("a", "m", "s").Next; got != saved && got != saved+1 {
			t.Fatalf("%d messages in the file, and %d were saved", got, saved)
		}
		saved = ix.Sink().StreamNext("a", "m", "s").Next
		ix.Close()
	}
}

// TestKeep: what is known is saved at each tick and at the end, for nobody else to read,
// and a file that cannot be used is no end.
func TestKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	ctx, cancel := context.WithCancel(context.Background())
	known := func() uint64 {
		t.Helper()
		ix, err := load(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer ix.Close()
		return ix.Sink().StreamNext("a", "m", "s").Next
	}
	ix, err := load(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer ix.Close()
	if known() != 0 {
		t.Error("there is a file already")
	}
	tick, ended := make(chan time.Time), make(chan struct{})
	go func() { keep(ctx, ix, path, tick); close(ended) }()
	for n := range uint64(3) {
		if _, err := hear(ix); err != nil {
			t.Fatal(err)
		}
		tick <- time.Time{}
		tick <- time.Time{} // so the first save has ended
		if got := known(); got != n+1 {
			t.Errorf("%d messages are in the file, want %d", got, n+1)
		}
	}
	if _, err := hear(ix); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if got := known(); got != 4 {
		t.Errorf("at the end %d messages are in the file", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	closed, err := kvindex.New()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if err := save(ctx, closed, path); !errors.Is(err, kvindex.ErrClosed) || known() != 4 {
		t.Errorf("a snapshot that fails: %v, %d messages in the file", err, known())
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if known() != 0 {
		t.Error("a torn file was used")
	}
}
