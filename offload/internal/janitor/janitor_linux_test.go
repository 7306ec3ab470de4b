package janitor

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/cputime"
)

// folder writes a config.json and returns the name of its folder.
func folder(t testing.TB, root, model string, tp, pp int) string {
	t.Helper()
	text := configText(model, tp, pp, 1, 1)
	_, name, err := parseConfig([]byte(text))
	must(t, err)
	write(t, filepath.Join(root, name, "config.json"), text)
	return name
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// blockName is vLLM's path of a file.
func blockName(folder string, rank int, hash []byte, group int) string {
	digits := hex.EncodeToString(hash)
	return fmt.Sprintf("%s_r%d/%s/%s_g%d/%s.bin", folder, rank, digits[:3], digits[3:5], group, digits)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// sinkState is the set of blocks reported to a sink.
type sinkState map[string]bool

func (s sinkState) sink(t testing.TB) func([]Change) {
	return func(changes []Change) {
		for _, c := range changes {
			name := fmt.Sprintf("%s %d %x", c.Space.Folder, c.Group, c.Hash)
			if s[name] == c.Stored {
				t.Errorf("%s is reported twice: %v", name, c.Stored)
			}
			if s[name] = c.Stored; !c.Stored {
				delete(s, name)
			}
		}
	}
}

// pass scans, and deletes until all bounds are kept.
func (j *Janitor) pass(t testing.TB) {
	t.Helper()
	if err := j.beginScan(nil); err != nil {
		t.Fatal(err)
	}
	for files := range j.scanning.files {
		j.apply(files)
	}
	j.endScan()
	for j.keep() {
	}
	j.flush()
}

// tree has all paths below a root with their sizes: -1 for a folder, -2 for anything but a file.
func tree(t testing.TB, root string) map[string]int64 {
	t.Helper()
	names := map[string]int64{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile
		} else if err != nil {
			return err
		}
		name, _ = filepath.Rel(root, name)
		switch {
		case d.IsDir():
			names[name] = -1
		case d.Type().IsRegular():
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
			names[name] = info.Size()
		default:
			names[name] = -2
		}
		return nil
	})
	must(t, err)
	return names
}

// plainFile is a file of the model. plainSet has the files of a block.
type plainFile struct{ size, written, access int64 }

type plainSet struct {
	used, written int64
	had           map[string]bool // files at the last scan
	read          bool            // since S3-FIFO last looked
}

// plainQueues are the queues of S3-FIFO, oldest first.
type plainQueues struct {
	small, main []string
	ghosts      map[string]bool
	// Consecutive young blocks of this pass, at the ends of the queues.
	passedSmall, passedMain int
}

func (q *plainQueues) add(block string) {
	switch {
	case slices.Contains(q.small, block) || slices.Contains(q.main, block):
	case q.ghosts[block]:
		delete(q.ghosts, block)
		q.main = append(q.main, block)
	default:
		q.small = append(q.small, block)
	}
}

func (q *plainQueues) remove(block string) {
	before := len(q.small)
	q.small = slices.DeleteFunc(q.small, func(s string) bool { return s == block })
	if len(q.small) < before {
		q.ghosts[block] = true
	}
	q.main = slices.DeleteFunc(q.main, func(s string) bool { return s == block })
}

// next returns the block to delete, after those to keep.
func (q *plainQueues) next(young func(string) bool, blocks map[string]*plainSet) string {
	for {
		isSmall := len(q.small) > (len(q.small)+len(q.main))/10 || len(q.main) == 0
		if isSmall && q.passedSmall >= len(q.small) || !isSmall && q.passedMain >= len(q.main) {
			isSmall = !isSmall
		}
		from := &q.main
		if isSmall {
			from = &q.small
		}
		if isSmall && q.passedSmall >= len(q.small) || !isSmall && q.passedMain >= len(q.main) {
			return ""
		}
		block := (*from)[0]
		switch {
		case young(block):
			*from = append((*from)[1:], block)
			if isSmall {
				q.passedSmall++
			} else {
				q.passedMain++
			}
		case blocks[block].read:
			blocks[block].read = false
			*from = (*from)[1:]
			q.main = append(q.main, block)
			q.passedMain = 0
		default:
			return block
		}
	}
}

// TestModel compares a janitor with a plain model over random histories of writers, readers and
// others, with a fake clock: the files that stay, and the reported blocks.
func TestModel(t *testing.T) {
	for seed := range *seeds {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		root := t.TempDir()
		one, two := folder(t, root, "org/one", 1, 1), folder(t, root, "two", 2, 1)
		scheduler := folder(t, root, "scheduler", 4, 1)                                            // files of rank 0 only
		other := one[:len(one)-1] + map[bool]string{true: "1", false: "0"}[one[len(one)-1] == '0'] // a wrong digest
		write(t, filepath.Join(root, other, "config.json"), configText("org/one", 1, 1, 1, 1))

		begin := time.Now().Add(-1000 * time.Hour)
		clock := begin
		cfg := Settings{Root: root, Order: []Order{LRU, FIFO, S3FIFO}[seed/2%3], MinAge: 10 * time.Minute, Log: quiet(), Now: func() time.Time { return clock }}
		if seed%3 != 0 {
			cfg.Bytes = 5000
		}
		if seed%3 != 1 {
			cfg.MaxAge = 40 * time.Minute
		}
		queues := plainQueues{ghosts: map[string]bool{}}
		sink := sinkState{}
		cfg.Sink = sink.sink(t)
		j, err := Open(cfg)
		must(t, err)
		files, blocks := map[string]plainFile{}, map[string]*plainSet{}
		foreigners := []string{"notes.txt", other + "_r0/abc/de_g0/abcdef.bin", one + "_r1/abc/de_g0/abcdef.bin", one + "_r0/abc/de_g0/abcdef.bin.bak",
			one + "_r0/abc/dd_g0/abcdef.bin", one + "_r0/abc/de_g0/ABCDEF.bin", one + "_r0/abc/de_g0/abcdef.bin_7.tmp", "nobody_0123456789ab_r0/abc/de_g0/abcdef.bin"}
		for _, name := range foreigners {
			write(t, filepath.Join(root, name), "foreign")
			if err := os.Chtimes(filepath.Join(root, name), begin, begin); err != nil {
				t.Fatal(err)
			}
		}
		for _, link := range []string{one + "_r0/abd", two + "_r0", one + "_r0/abc/df_g0", one + "_r0/abc/de_g0/abcde0.bin"} {
			outside := filepath.Join(root, "outside", filepath.Base(link))
			write(t, filepath.Join(outside, "de_g0/abddef.bin"), "outside")
			write(t, filepath.Join(outside, "abcdff.bin"), "outside")
			if link == two+"_r0" && seed%4 != 0 {
				continue // the ranks of two are usually folders
			}
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, filepath.Join(root, link)); err != nil {
				t.Fatal(err)
			}
		}
		before := tree(t, root)

		names := func() (folder string, rank int, name, block string) {
			folder = []string{one, two, two, scheduler}[r.IntN(4)]
			for folder == two && cfg.Order == S3FIFO { // the file looked at first can make a difference
				folder = []string{one, scheduler}[r.IntN(2)]
			}
			if folder == two && seed%4 != 0 {
				rank = r.IntN(2)
			} else if folder == two {
				rank = 1
			}
			hash, group := []byte{byte(r.IntN(2)), byte(r.IntN(3)), byte(r.IntN(6))}, r.IntN(2)
			return folder, rank, blockName(folder, rank, hash, group), fmt.Sprintf("%s %d %x", folder, group, hash)
		}
		blockOf := map[string]string{}
		for range 60 {
			for range 1 + r.IntN(8) {
				clock = clock.Add(time.Duration(r.IntN(120)) * time.Second)
				_, _, name, block := names()
				blockOf[name] = block
				at, now := filepath.Join(root, name), clock.UnixNano()
				f, there := files[name]
				switch op := r.IntN(10); {
				case op < 5:
					f = plainFile{size: int64(100 + r.IntN(300)), written: now, access: now}
					if r.IntN(10) == 0 {
						f.written = clock.Add(time.Hour).UnixNano() // by another clock
					}
					write(t, at, strings.Repeat("x", int(f.size)))
				case op < 8 && there:
					f.access = now
				case op == 8 && there:
					delete(files, name)
					if err := os.Remove(at); err != nil {
						t.Fatal(err)
					}
					continue
				default:
					continue
				}
				files[name] = f
				if err := os.Chtimes(at, time.Unix(0, f.access), time.Unix(0, f.written)); err != nil {
					t.Fatal(err)
				}
			}
			clock = clock.Add(time.Duration(r.IntN(60)) * time.Second)
			j.pass(t)

			// The model: the blocks that are there, in the order of deletion.
			now := clock.UnixNano()
			sets := map[string]map[string]plainFile{}
			var size int64
			for name, f := range files {
				if sets[blockOf[name]] == nil {
					sets[blockOf[name]] = map[string]plainFile{}
				}
				sets[blockOf[name]][name] = f
				size += f.size
			}
			for block, set := range sets {
				b := blocks[block]
				if b == nil {
					b = &plainSet{}
					blocks[block] = b
				}
				had := map[string]bool{}
				for _, name := range slices.Sorted(maps.Keys(set)) {
					f := set[name]
					written := f.written
					if written > now {
						if written = now; b.had[name] {
							written = b.written
						}
					}
					used := written
					if f.access > f.written {
						used = f.access
					}
					b.read = b.read || used > b.used && used > written
					b.written, b.used = max(b.written, written), max(b.used, used)
					had[name] = true
				}
				b.had = had
			}
			for block := range blocks {
				if sets[block] == nil {
					delete(blocks, block)
					queues.remove(block)
				}
			}
			when := func(block string) int64 {
				if b := blocks[block]; cfg.Order == FIFO {
					return b.written + int64(cfg.MinAge)
				} else {
					return max(b.used, b.written+int64(cfg.MinAge))
				}
			}
			sorted := func(when func(string) int64) []string {
				return slices.SortedFunc(maps.Keys(blocks), func(a, b string) int {
					af, bf := strings.Fields(a), strings.Fields(b) // folder, group, hash
					return cmp.Or(cmp.Compare(when(a), when(b)), strings.Compare(af[2]+af[1]+af[0], bf[2]+bf[1]+bf[0]))
				})
			}
			written := func(block string) int64 { return blocks[block].written }
			young := func(block string) bool { return now-written(block) < int64(cfg.MinAge) }
			arranged := false
			queues.passedSmall, queues.passedMain = 0, 0
			for len(blocks) > 0 {
				block := sorted(when)[0]
				last := written(block)
				if cfg.Order != FIFO {
					last = max(last, blocks[block].used)
				}
				aged := cfg.MaxAge > 0 && last < now-int64(cfg.MaxAge)
				over := cfg.Bytes > 0 && size > cfg.Bytes-cfg.Bytes/20
				if !over && !aged || young(block) {
					break
				}
				if cfg.Order == S3FIFO && !aged {
					if !arranged {
						arranged = true
						for _, b := range sorted(written) {
							queues.add(b)
						}
					}
					if block = queues.next(young, blocks); block == "" {
						break
					}
				}
				queues.remove(block)
				for name, f := range sets[block] {
					size -= f.size
					delete(files, name)
				}
				delete(blocks, block)
				delete(sets, block)
			}

			want := map[string]int64{}
			for name, n := range before {
				want[name] = n
			}
			for name, f := range files {
				want[name] = f.size
			}
			for name, n := range tree(t, root) {
				if n == -1 {
					continue
				}
				if m, ok := want[name]; !ok || m != n {
					t.Fatalf("seed %d: %s has %d bytes, want %d (%v)", seed, name, n, m, ok)
				}
				delete(want, name)
			}
			for name, n := range want {
				if n != -1 {
					t.Fatalf("seed %d: %s is gone", seed, name)
				}
			}
			complete := sinkState{}
			_, err := os.Stat(filepath.Join(root, two+"_r1"))
			for block, set := range sets {
				if n := len(set); n == 2 || err != nil || !strings.HasPrefix(block, two) {
					complete[block] = true
				}
			}
			if !maps.Equal(complete, sink) {
				t.Fatalf("seed %d: reported %v, want %v", seed, sink, complete)
			}
			if st := j.Stats(); st.Bytes != size || st.Blocks != int64(len(complete)) || st.Incomplete != int64(len(blocks)-len(complete)) || st.Errors > 0 {
				t.Fatalf("seed %d: %+v; want %d bytes, %d of %d blocks", seed, st, size, len(complete), len(blocks))
			}
		}
		j.Close()
	}
}

// TestReads notices reads, also by O_DIRECT, in the file system of the test's folder.
func TestReads(t *testing.T) {
	root := t.TempDir()
	m := folder(t, root, "m", 1, 1)
	name := filepath.Join(root, blockName(m, 0, []byte("abc"), 0))
	write(t, name, strings.Repeat("x", 4096))
	j, err := Open(Settings{Root: root, Unbounded: true, Log: quiet()})
	must(t, err)
	defer j.Close()
	write(t, filepath.Join(root, ".kvoffload-probe"), "of a janitor that was killed")
	if err := probeReads(j.root, time.Now().UnixNano()); err != nil {
		t.Skip("reads are not noticed here: ", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, ".kvoffload*")); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, past, past); err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		j.pass(t)
		slot, ok := j.table.first()
		if !ok {
			t.Fatal("the block is not there")
		}
		return j.table.at(slot).used
	}
	j.unread = fmt.Errorf("a file to try it with: %w", syscall.ENOSPC) // as if the disk was full when the janitor started
	last := used()
	if j.unread != nil {
		t.Error("a disk that has room again: ", j.unread)
	}
	if last != past.UnixNano() {
		t.Fatalf("used at %d before it was read, want %d", last, past.UnixNano())
	}
	for i := range 3 {
		for again := 0; ; again++ { // the clock of a file system has ticks of some ms
			if _, err := os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
			if now := used(); now > last {
				last = now
				break
			}
			if again == 1<<14 {
				t.Fatalf("read %d is not noticed", i)
			}
		}
	}
}

var scanned = flag.Int("janitor.files", 2000, "files that the benchmark of a scan has")

// TestLeft: once another config.json is found in a folder, its files are not deleted and its blocks
// are reported as removed.
func TestLeft(t *testing.T) {
	root, now := t.TempDir(), time.Now()
	name := folder(t, root, "m", 1, 1)
	for i := range 20 {
		write(t, filepath.Join(root, blockName(name, 0, []byte{1, 2, 3, byte(i)}, 0)), "bytes")
	}
	known := sinkState{}
	j, err := Open(Settings{Root: root, Bytes: 1000, Sink: known.sink(t), Log: quiet(), Now: func() time.Time { return now }})
	must(t, err)
	defer j.Close()
	if j.pass(t); len(known) != 20 {
		t.Fatalf("%d blocks are known", len(known))
	}
	before := tree(t, root)
	write(t, filepath.Join(root, name, "config.json"), "{}")
	before[filepath.Join(name, "config.json")] = 2
	j.cfg.Bytes, now = 1, now.Add(time.Hour) // all would be deleted
	if _, err := j.readRoot(); err != nil {
		t.Fatal(err)
	}
	for j.keep() {
	}
	if j.flush(); len(known) > 0 || j.Stats().Left != 1 || !maps.Equal(tree(t, root), before) {
		t.Errorf("%d blocks are known, %+v", len(known), j.Stats())
	}
}

// TestManyChanges: a file that went after a scan found it is not reported, however much changed
// meanwhile.
func TestManyChanges(t *testing.T) {
	root, known := t.TempDir(), sinkState{}
	file := filepath.Join(root, blockName(folder(t, root, "m", 1, 1), 0, []byte{1, 2, 3}, 0))
	write(t, file, "bytes")
	j, err := Open(Settings{Root: root, Unbounded: true, Sink: known.sink(t), Log: quiet()})
	must(t, err)
	defer j.Close()
	must(t, j.beginScan(nil))
	found := <-j.scanning.files
	must(t, os.Remove(file))
	for i := range maxDuring {
		j.remember(event{name: fmt.Sprint(i)})
	}
	j.note(event{place: found[0].place, name: filepath.Base(file)})
	j.apply(found)
	if j.flush(); len(known) > 0 {
		t.Errorf("%v is reported as stored", known)
	}
	for range j.scanning.files { // until its goroutines have ended
	}
}

// BenchmarkScan scans files of one rank as vLLM spreads them: nearly each has its own folder.
func BenchmarkScan(b *testing.B) {
	root := b.TempDir()
	m := folder(b, root, "m", 1, 1)
	for i := range *scanned {
		hash := sha256.Sum256([]byte(strconv.Itoa(i)))
		name := filepath.Join(root, blockName(m, 0, hash[:], 0))
		if err := os.Mkdir(filepath.Dir(name), 0o700); errors.Is(err, fs.ErrNotExist) {
			os.MkdirAll(filepath.Dir(name), 0o700)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	took := cputime.Of(func() {
		for b.Loop() {
			j, err := Open(Settings{Root: root, Unbounded: true, Log: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := j.Look(b.Context()); err != nil || j.table.len() != *scanned {
				b.Fatal(j.table.len(), err)
			}
			j.Close()
		}
	})
	b.ReportMetric(float64(took.Microseconds())/float64(*scanned*b.N), "cpu-us/file")
	b.ReportMetric(float64(*scanned)*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}
