package janitor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var proof = flag.Duration("janitor.proof", time.Second, "long form: writers and readers beside janitors that are killed, 20m")

// start runs a janitor until stop or the end of the test.
func start(t *testing.T, cfg Settings) (j *Janitor, stop func()) {
	t.Helper()
	j, err := Open(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		j.Close()
	})
	t.Cleanup(stop)
	return j, stop
}

// await waits until is returns true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	end, ends := t.Deadline()
	for !is() {
		time.Sleep(time.Millisecond)
		if ends && time.Until(end) < 10*time.Second {
			t.Fatal("never: ", what)
		}
	}
}

// safe is a sinkState with a mutex.
type safe struct {
	mu sync.Mutex
	sinkState
}

func (s *safe) sink(t *testing.T) func([]Change) {
	tell := s.sinkState.sink(t)
	return func(c []Change) {
		s.mu.Lock()
		defer s.mu.Unlock()
		tell(c)
	}
}

func (s *safe) is(want sinkState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Equal(s.sinkState, want)
}

// TestRun reports new and deleted files by inotify, also in new folders, and by scans alone.
func TestRun(t *testing.T) {
	for _, blind := range []bool{false, true} {
		root := t.TempDir()
		said := &safe{sinkState: sinkState{}}
		cfg := Settings{Root: root, Unbounded: true, Log: quiet(), Sink: said.sink(t), NoInotify: blind, Rescan: time.Hour, Tick: 5 * time.Millisecond}
		if blind {
			cfg.Rescan = 2 * time.Millisecond
		}
		j, stop := start(t, cfg)
		await(t, "the first scan", func() bool { return j.Stats().Ready })
		if !blind && j.Stats().Blind != "" {
			t.Skip("inotify: ", j.Stats().Blind)
		}
		m := folder(t, root, "m", 2, 1)
		want := sinkState{}
		name := func(rank, i int) string {
			return filepath.Join(root, blockName(m, rank, []byte{byte(i), byte(i), byte(i)}, i%2))
		}
		for i := range 20 {
			write(t, name(0, i)+"_1.tmp", "x")
			if err := os.Rename(name(0, i)+"_1.tmp", name(0, i)); err != nil {
				t.Fatal(err)
			}
			want[fmt.Sprintf("%s %d %02x%02x%02x", m, i%2, i, i, i)] = true
		}
		await(t, "all are stored", func() bool { return said.is(want) })
		for i := range 10 {
			if err := os.Remove(name(0, i)); err != nil {
				t.Fatal(err)
			}
			delete(want, fmt.Sprintf("%s %d %02x%02x%02x", m, i%2, i, i, i))
		}
		await(t, "ten are removed", func() bool { return said.is(want) })
		write(t, name(1, 15), "x") // from now on a block has two files
		await(t, "one is complete", func() bool {
			return said.is(sinkState{fmt.Sprintf("%s 1 0f0f0f", m): true})
		})
		for i := 10; i < 20; i++ {
			write(t, name(1, i), "x")
		}
		await(t, "ten are complete", func() bool { return said.is(want) })
		write(t, filepath.Join(root, m, "config.json"), "{}")
		await(t, "the folder is left alone", func() bool { return said.is(sinkState{}) && j.Stats().Left == 1 })
		folder(t, root, "m", 2, 1)
		await(t, "all are there again", func() bool { return said.is(want) && j.Stats().Left == 0 })
		if err := os.RemoveAll(filepath.Join(root, m+"_r0")); err != nil {
			t.Fatal(err)
		}
		await(t, "all are gone", func() bool { return said.is(sinkState{}) })
		if st := j.Stats(); st.Deleted > 0 || st.Errors > 0 {
			t.Errorf("%+v", st)
		}
		stop()
	}
}

// TestLock: a second janitor waits for the first.
func TestLock(t *testing.T) {
	root := t.TempDir()
	cfg := Settings{Root: root, Unbounded: true, Log: quiet()}
	first, stop := start(t, cfg)
	await(t, "the first has the root", func() bool { return first.Stats().Ready })
	second, _ := start(t, cfg)
	await(t, "the second waits", func() bool { st := second.Stats(); return st.Waiting || st.Ready })
	if st := second.Stats(); st.Ready {
		t.Fatalf("two janitors have one root: %+v", st)
	}
	stop()
	await(t, "the second has the root", func() bool { return second.Stats().Ready && !second.Stats().Waiting })
}

// TestErrorsAMinute: of many errors of a kind the log has one a minute, and the counter all.
func TestErrorsAMinute(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1e9, 0)
	j, err := Open(Settings{Root: t.TempDir(), Unbounded: true, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for i := range 1000 {
		j.failed("a file", fmt.Sprint(i), unix.EROFS)
	}
	j.failed("a scan", "", unix.EROFS)
	now = now.Add(time.Minute)
	j.failed("a file", "last", unix.EROFS)
	j.flush()
	if n := strings.Count(log.String(), "\n"); n != 3 || !strings.Contains(log.String(), "name=last") || j.Stats().Errors != 1002 {
		t.Errorf("%d errors, %d lines: %.500s", j.Stats().Errors, n, log.String())
	}
}

// TestSettings has invalid settings.
func TestSettings(t *testing.T) {
	root := t.TempDir()
	for want, cfg := range map[string]Settings{
		"no bound":                  {Root: root},
		"no root":                   {Unbounded: true},
		"below zero":                {Root: root, Bytes: -1},
		"the marks of the disk are": {Root: root, DiskHigh: 0.8},
		"are 0.9 and 0.8":           {Root: root, DiskHigh: 0.8, DiskLow: 0.9},
		"are NaN and NaN":           {Root: root, DiskHigh: math.NaN(), DiskLow: math.NaN()},
		"the order is \"arc\"":      {Root: root, Bytes: 1, Order: "arc"},
		"the oldest age is 1s":      {Root: root, MaxAge: time.Second},
		"no such file":              {Root: root + "/none", Bytes: 1},
		"none of -bytes":            {Root: root, Unbounded: true, Bytes: 1},
		"max-age and -temporary":    {Root: root, Unbounded: true, Temporary: time.Hour},
	} {
		if j, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v, want %q", cfg, j, err, want)
		}
	}
}

// TestTemporary deletes old temporary files of writers, if enabled, and no young ones.
func TestTemporary(t *testing.T) {
	root := t.TempDir()
	m := folder(t, root, "m", 1, 1)
	old := filepath.Join(root, blockName(m, 0, []byte("abc"), 0)+"_1.tmp")
	young := filepath.Join(root, blockName(m, 0, []byte("abd"), 0)+"_1.tmp")
	write(t, young, "x")
	for _, after := range []time.Duration{0, time.Hour} {
		write(t, old, "x")
		past := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(old, past, past); err != nil {
			t.Fatal(err)
		}
		j, err := Open(Settings{Root: root, Bytes: 1 << 40, Temporary: after, Log: quiet()})
		must(t, err)
		j.pass(t)
		_, errOld := os.Stat(old)
		if _, err := os.Stat(young); err != nil || (errOld != nil) != (after > 0) || j.Stats().Temporary != int64(after/time.Hour) {
			t.Errorf("%s: old %v, young %v, %+v", after, errOld, err, j.Stats())
		}
		j.Close()
	}
}

// TestUntouched deletes a block and a temporary file, and nothing that only resembles one.
func TestUntouched(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	m, two := folder(t, root, "m", 1, 1), folder(t, root, "two", 2, 1)
	other := m[:len(m)-1] + map[bool]string{true: "1", false: "0"}[m[len(m)-1] == '0']
	write(t, filepath.Join(root, other, "config.json"), configText("m", 1, 1, 1, 1))
	gone := []string{m + "_r0/abc/de_g0/abcdef.bin", m + "_r0/abc/de_g0/abcdef.bin_7.tmp"}
	stays := []string{other + "_r0/abc/de_g0/abcdef.bin", m + "_r1/abc/de_g0/abcdef.bin", m + "_r0/abc/de_g0/abcdef.bin.bak",
		m + "_r0/abc/de_g0/abcdef.bin_x.tmp", m + "_r0/abc/dd_g0/abcdef.bin", "outside/de_g0/abcdef.bin", "outside/abcdef.bin"}
	past := time.Now().Add(-2 * time.Hour)
	for _, name := range append(gone, stays...) {
		at := filepath.Join(root, name)
		if after, ok := strings.CutPrefix(name, "outside"); ok {
			at = outside + after
		}
		write(t, at, "x")
		if err := os.Chtimes(at, past, past); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"_r0/abd", "_r0/abc/df_g0", "_r0/abc/de_g0/abcde0.bin"} {
		to := outside
		if strings.HasSuffix(link, ".bin") {
			to += "/abcdef.bin"
		}
		if err := os.Symlink(to, filepath.Join(root, m+link)); err != nil {
			t.Fatal(err)
		}
	}
	// Files behind the links have names of blocks.
	write(t, filepath.Join(outside, "de_g0", "abddef.bin"), "x")
	write(t, filepath.Join(outside, "abcdff.bin"), "x")
	for _, name := range []string{"de_g0/abddef.bin", "abcdff.bin"} {
		if err := os.Chtimes(filepath.Join(outside, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	want, wantOutside := tree(t, root), tree(t, outside)
	for _, name := range gone {
		delete(want, name)
	}
	write(t, filepath.Join(root, m+"_r0/abc/de_g0/abcde1.bin"), "young")
	want[m+"_r0/abc/de_g0/abcde1.bin"] = 5
	for _, name := range []string{two + "_r0/abc/de_g0/abcdef.bin", two + "_r1/abc/de_g0/abcde2.bin"} { // each lacks a rank
		write(t, filepath.Join(root, name), "young")
		want[name], want[filepath.Dir(name)], want[filepath.Dir(filepath.Dir(name))], want[name[:len(two)+3]] = 5, -1, -1, -1
	}
	var said []string
	j, err := Open(Settings{Root: root, Bytes: 1, Temporary: time.Hour, Log: quiet(), Sink: func(changes []Change) {
		for _, c := range changes {
			said = append(said, fmt.Sprintf("%v %s %x", c.Stored, c.Space.Model, c.Hash))
		}
	}})
	must(t, err)
	defer j.Close()
	j.pass(t)
	if got := tree(t, root); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := tree(t, outside); !maps.Equal(got, wantOutside) {
		t.Errorf("outside: %v, want %v", got, wantOutside)
	}
	slices.Sort(said)
	if want := []string{"false m abcdef", "true m abcde1", "true m abcdef"}; !slices.Equal(said, want) {
		t.Errorf("reported %q, want %q", said, want)
	}
	if st := j.Stats(); st.Deleted != 1 || st.Temporary != 1 || st.Left != 1 || st.Incomplete != 2 || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
}

const (
	proofBlock = 4096
	proofBytes = 400 * proofBlock
	proofAge   = 200 * time.Millisecond
	writers    = 8
)

func proofSettings(root string) Settings {
	return Settings{Root: root, Bytes: proofBytes, MinAge: proofAge, Log: quiet(), Rescan: 100 * time.Millisecond, Tick: 10 * time.Millisecond}
}

// TestProofChild is the janitor that TestProof kills.
func TestProofChild(t *testing.T) {
	root := os.Getenv("KVOFFLOAD_PROOF")
	if root == "" {
		return // TestProof runs it
	}
	cfg := proofSettings(root)
	cfg.Sink = func(changes []Change) { fmt.Println(len(changes)) }
	j, err := Open(cfg)
	must(t, err)
	t.Fatal(j.Run(context.Background()))
}

// TestProof has writers and readers behave like vLLM's tier while janitors are killed at random
// points: no young and no other file is deleted, and in the end the bound is kept and the reported
// blocks are there.
func TestProof(t *testing.T) {
	root := t.TempDir()
	m := folder(t, root, "m", 1, 1)
	write(t, filepath.Join(root, m+"_r0", "abc", "de_g0", "notes.txt"), "foreign")
	var done atomic.Bool
	var wait sync.WaitGroup
	defer wait.Wait()
	defer done.Store(true)
	var wrote, missed, failed atomic.Int64
	for w := range writers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			tier := newTier(t)
			written := map[int]time.Time{}
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for i := 0; !done.Load(); i++ {
				hash := binary.BigEndian.AppendUint64(nil, uint64(i%16)<<56|uint64(w)<<32|uint64(i))
				name := filepath.Join(root, blockName(m, 0, hash, 0))
				written[i] = time.Now()
				if err := tier.store(name); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				wrote.Add(1)
				back := i - r.IntN(min(i+1, 100))
				hash = binary.BigEndian.AppendUint64(nil, uint64(back%16)<<56|uint64(w)<<32|uint64(back))
				name = filepath.Join(root, blockName(m, 0, hash, 0))
				at, known := written[back]
				switch err := tier.load(name); {
				case err == nil:
					if r.IntN(50) == 0 { // as after a short read
						os.Remove(name)
						delete(written, back)
						failed.Add(1)
					}
				case !errors.Is(err, os.ErrNotExist):
					t.Errorf("writer %d: %v", w, err)
				case known:
					missed.Add(1)
					// The clock of a file system is up to 10 ms behind that of the process.
					if age := time.Since(at); age < proofAge-50*time.Millisecond {
						t.Errorf("writer %d: a block went %s after it was written", w, age)
					}
					delete(written, back)
				}
				if i%8 == 7 {
					tier.pause()
				}
			}
		}()
	}
	r := rand.New(rand.NewPCG(1, 9))
	var kills int
	for begin := time.Now(); time.Since(begin) < *proof && !t.Failed(); kills++ {
		child := exec.Command(os.Args[0], "-test.run=^TestProofChild$")
		child.Env = append(os.Environ(), "KVOFFLOAD_PROOF="+root)
		out, err := child.StdoutPipe()
		must(t, err)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for left := r.IntN(200); lines.Scan() && left > 0; left-- {
		}
		child.Process.Kill()
		child.Wait()
	}
	said := &safe{sinkState: sinkState{}}
	cfg := proofSettings(root)
	cfg.Sink = said.sink(t)
	j, stop := start(t, cfg)
	n := int64(0)
	await(t, "a janitor deletes beside writers", func() bool { n = j.Stats().Deleted; return n > 200 || t.Failed() })
	done.Store(true)
	wait.Wait()
	await(t, "the bound is kept", func() bool {
		st := j.Stats()
		return st.Bytes <= proofBytes && !st.Over && onDisk(t, root, m) <= proofBytes
	})
	await(t, "the reported blocks to be those on disk", func() bool {
		want := sinkState{}
		for name, size := range tree(t, root) {
			if hash, ok := strings.CutSuffix(filepath.Base(name), ".bin"); ok && size >= 0 {
				want[m+" 0 "+hash] = true
			}
		}
		return said.is(want)
	})
	stop()
	if _, err := os.Stat(filepath.Join(root, m+"_r0", "abc", "de_g0", "notes.txt")); err != nil {
		t.Error(err)
	}
	if st := j.Stats(); st.Errors > 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d written, %d found missing, %d removed by readers, %d kills", wrote.Load(), missed.Load(), failed.Load(), kills)
}

// TestBound has writers that wait until the janitor has made room for their last block. The bound
// is exceeded by at most a block of each writer, and the one being deleted.
func TestBound(t *testing.T) {
	root := t.TempDir()
	m := folder(t, root, "m", 1, 1)
	const most = 40
	var mu sync.Mutex
	came, held := map[string]bool{}, 0
	j, stop := start(t, Settings{Root: root, Bytes: most * proofBlock * 20 / 19, MinAge: 1, Tick: 5 * time.Millisecond, Log: quiet(), Sink: func(changes []Change) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range changes {
			if c.Stored {
				came[string(c.Hash)] = true
				held++
			} else {
				held--
			}
		}
	}})
	await(t, "the first scan", func() bool { return j.Stats().Ready })
	var writing sync.RWMutex
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			tier := newTier(t)
			for i := range 20 {
				hash := fmt.Appendf(nil, "%x%02d", w, i)
				writing.RLock()
				err := tier.store(filepath.Join(root, blockName(m, 0, hash, 0)))
				writing.RUnlock()
				if err != nil {
					t.Error(err)
					return
				}
				await(t, "there is room", func() bool {
					mu.Lock()
					defer mu.Unlock()
					return came[string(hash)] && held <= most
				})
				if i%5 == 0 {
					writing.Lock()
					if n := onDisk(t, root, m); n > (most+writers+1)*proofBlock {
						t.Errorf("%d blocks, with %d writers and a bound of %d", n/proofBlock, writers, most)
					}
					writing.Unlock()
				}
			}
		})
	}
	wait.Wait()
	stop()
	if st := j.Stats(); st.Deleted != 20*writers-most || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
}

// onDisk is the sum of the files of a folder.
func onDisk(t *testing.T, root, folder string) (sum int64) {
	for name, size := range tree(t, root) {
		if strings.HasPrefix(name, folder+"_r") && strings.HasSuffix(name, ".bin") {
			sum += size
		}
	}
	return sum
}

// tier stores and loads like vllm/v1/kv_offload/tiering/fs/io.py of vLLM 0.27.
type tier struct {
	page   []byte
	direct int
}

func newTier(t *testing.T) *tier {
	page, err := unix.Mmap(-1, 0, proofBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, err)
	if uintptr(unsafe.Pointer(&page[0]))%proofBlock != 0 {
		t.Fatal("a page is not aligned")
	}
	return &tier{page: page, direct: syscall.O_DIRECT}
}

func (s *tier) open(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag|s.direct, 0o644)
	if errors.Is(err, unix.EINVAL) {
		s.direct = 0
		return os.OpenFile(name, flag, 0o644)
	}
	return f, err
}

func (s *tier) store(name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp := name + "_1.tmp"
	f, err := s.open(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	if err != nil {
		return err
	}
	if _, err := f.Write(s.page); err != nil {
		return err
	}
	f.Close()
	return os.Rename(tmp, name)
}

func (s *tier) load(name string) error {
	f, err := s.open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(s.page)
	return err
}

// pause is the time of a computation. Without it the disk is full of young blocks.
func (s *tier) pause() { time.Sleep(50 * time.Millisecond) }

// TestDisk deletes for the share of the disk, and reports Over if all blocks are too young.
func TestDisk(t *testing.T) {
	root := t.TempDir()
	m := folder(t, root, "m", 1, 1)
	past := time.Now().Add(-time.Hour)
	for i := range 10 {
		name := filepath.Join(root, blockName(m, 0, []byte{1, 2, byte(i)}, 0))
		write(t, name, "x")
		if i < 7 {
			if err := os.Chtimes(name, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	j, err := Open(Settings{Root: root, DiskHigh: 2e-12, DiskLow: 1e-12, Log: quiet()})
	must(t, err)
	defer j.Close()
	j.lookAtDisk()
	j.pass(t)
	if st := j.Stats(); st.Deleted != 7 || st.Blocks != 3 || !st.Over || st.DiskUsed <= 0 || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
	j.cfg.DiskHigh, j.cfg.DiskLow = 1, 0.9999
	j.lookAtDisk()
	j.pass(t)
	if st := j.Stats(); st.Blocks != 3 || st.Over {
		t.Errorf("%+v", st)
	}
	j.cfg.DiskHigh, j.cfg.DiskLow = 0.8, 0.5
	j.measure(&unix.Statfs_t{Bsize: 1 << 20, Frsize: 1 << 12, Blocks: 1000, Bfree: 100, Bavail: 100})
	if j.disk.over != 400<<12 {
		t.Errorf("%d bytes are over", j.disk.over)
	}
}

// TestGoneDuringScan: a file deleted between a scan and its application is not reported.
func TestGoneDuringScan(t *testing.T) {
	root := t.TempDir()
	name := filepath.Join(root, blockName(folder(t, root, "m", 1, 1), 0, []byte{1, 2, 3}, 0))
	write(t, name, "x")
	sink := sinkState{}
	j, err := Open(Settings{Root: root, Bytes: 1 << 20, Sink: sink.sink(t), Log: quiet()})
	must(t, err)
	defer j.Close()
	j.pass(t)
	k := j.table.at(j.table.heap[0]).key
	must(t, j.beginScan(nil))
	found := <-j.scanning.files
	must(t, os.Remove(name))
	p, base := of(&k, 0)
	j.note(event{place: p, name: base})
	j.apply(found)
	j.flush()
	if len(sink) != 0 {
		t.Errorf("%v are there", sink)
	}
	for range j.scanning.files {
	}
	j.endScan()
	j.flush()
}
