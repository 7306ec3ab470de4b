package offload_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/backendtest"
)

func openSegments(t testing.TB, cfg offload.SegmentConfig) *offload.Segments {
	t.Helper()
	s, err := offload.OpenSegments(cfg)
	must(t, err)
	return s
}

func TestSegments(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		t.Run(fmt.Sprintf("buffered=%t", buffered), func(t *testing.T) {
			backendtest.Run(t, func(t testing.TB) (offload.Backend, func() offload.Backend) {
				cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 32 << 20, SegmentBytes: 1 << 20, Buffered: buffered}
				again := func() offload.Backend { return openSegments(t, cfg) }
				return again(), again
			})
		})
	}
}

// filled returns a directory with one segment of 6 blocks of 40 bytes, one deleted, and the name
// and bytes of its file.
func filled(t testing.TB) (cfg offload.SegmentConfig, name string, image []byte) {
	cfg = offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, Buffered: true}
	s := openSegments(t, cfg)
	sp, c := space(40), chain(0, 6)
	for i := range c {
		if _, err := s.Put(ctx, sp.ID(), c[i:i+1], contents(sp, c[i:i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Delete(ctx, sp.ID(), c[3:4]), s.Close()); err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.seg"))
	image, err := os.ReadFile(names[0])
	if len(names) != 1 || err != nil {
		t.Fatal(names, err)
	}
	return cfg, names[0], image
}

// right opens a directory, checks the blocks of a chain in it, and returns their number.
func right(t testing.TB, cfg offload.SegmentConfig, sp offload.Space, c []offload.Key) (n int) {
	t.Helper()
	s := openSegments(t, cfg)
	defer s.Close()
	dst := [][]byte{make([]byte, sp.BlockBytes)}
	for _, k := range c {
		m, err := s.Get(ctx, sp.ID(), []offload.Key{k}, dst)
		if err != nil && !errors.Is(err, offload.ErrCorrupt) || m == 1 && !bytes.Equal(dst[0], content(sp, k)) {
			t.Fatalf("Get: %d, %v", m, err)
		}
		n += m
	}
	return n
}

// TestCutAndFlip cuts a segment at each byte, and flips each byte: a block is right or absent, and
// verify distinguishes a cut from a flip.
func TestCutAndFlip(t *testing.T) {
	cfg, name, image := filled(t)
	sp, c := space(40), chain(0, 6)
	const header, record, body = 64, 192, 96 + 40
	write := func(b []byte) offload.Verification {
		os.Remove(name) // else ext4 waits for the disk
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		v, err := offload.VerifySegments(cfg.Dir)
		must(t, err)
		return v
	}
	for cut := range image {
		v := write(image[:cut])
		whole := 0 // records before the cut
		for whole < 6 && header+whole*record+body <= cut {
			whole++
		}
		want := whole
		if header+6*record+96 <= cut {
			want = 5 // the deletion is complete
		}
		if v.Right != want || v.Corrupt != 0 || v.Absent > 1 {
			t.Fatalf("cut at %d: %+v, want %d right", cut, v, want)
		}
		if n := right(t, cfg, sp, c); n != want {
			t.Fatalf("cut at %d: %d blocks, want %d", cut, n, want)
		}
	}
	found := 0
	for at := range image {
		flipped := bytes.Clone(image)
		flipped[at] ^= byte(1 + at%255)
		v := write(flipped)
		in := (at - header) % record
		of := (at - header) / record
		damaged := at < 28 || at >= header && in < body && (of < 6 || in < 96)
		if damaged != (v.Corrupt == 1) || v.Absent != 0 {
			if v.Corrupt+v.Absent == 0 || !damaged {
				t.Fatalf("flipped at %d: %+v", at, v)
			}
		}
		found += v.Corrupt
		if n, least := right(t, cfg, sp, c), 4; n != v.Right || at >= header && n < least {
			t.Fatalf("flipped at %d: %d blocks, %+v", at, n, v)
		}
	}
	if found < 6*body {
		t.Errorf("%d flips were found", found)
	}
}

// FuzzSegment changes and cuts a segment: its reader finds only blocks that were in it, and counts
// the others.
func FuzzSegment(f *testing.F) {
	_, _, image := filled(f)
	sp, c := space(40), chain(0, 6)
	f.Add(uint16(64), uint16(len(image)), image[64:256])
	f.Add(uint16(256), uint16(len(image)), image[64:256]) // a record at another position
	f.Add(uint16(448), uint16(700), make([]byte, 192))
	f.Fuzz(func(t *testing.T, at, size uint16, patch []byte) {
		b := bytes.Clone(image)
		copy(b[min(int(at), len(b)):], patch)
		keys, v, err := offload.VerifyImage(sp.ID(), b[:min(int(size), len(b))])
		if err != nil {
			return // of another version
		}
		for _, k := range keys {
			if !slices.Contains(c, k) {
				t.Errorf("%x was not in it", k)
			}
		}
		if most := len(b)/64 + 1; v.Right != len(keys) || v.Absent+v.Corrupt > most {
			t.Errorf("%+v of %d bytes, %d keys", v, len(b), len(keys))
		}
	})
}

func dirBytes(t testing.TB, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return sum
}

// faulty is a file that fails at times. It allows concurrent reads.
type faulty struct {
	offload.BlockFile
	mu   *sync.Mutex
	r    *rand.Rand
	on   *bool
	seen map[string]int
}

func (f faulty) WriteAt(b []byte, at int64) (int, error) {
	if !*f.on || f.r.IntN(6) > 0 {
		return f.BlockFile.WriteAt(b, at)
	}
	errno := []error{syscall.ENOSPC, syscall.EIO}[f.r.IntN(2)]
	f.seen[errno.Error()]++
	n, _ := f.BlockFile.WriteAt(b[:f.r.IntN(len(b))&^4095], at)
	return n, errno
}

func (f faulty) Truncate(size int64) error {
	if *f.on && f.r.IntN(2) == 0 {
		f.seen["truncate"]++
		return syscall.EIO
	}
	return f.BlockFile.Truncate(size)
}

func (f faulty) ReadAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	fails := *f.on && f.r.IntN(10) == 0
	if fails {
		f.seen["read"]++
	}
	f.mu.Unlock()
	if fails {
		return 0, syscall.EIO
	}
	return f.BlockFile.ReadAt(b, at)
}

// TestSegmentsRandom compares segments that are too small for all blocks with a map, with restarts
// and failing disks: each block is right, the last ones put are there, deleted ones are not, and
// the files keep their bound.
func TestSegmentsRandom(t *testing.T) {
	sum := make(map[string]int)
	for seed := range uint64(max(*seeds/2, 4)) {
		r := rand.New(rand.NewPCG(seed, 2))
		cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 4 << 15, SegmentBytes: 1 << 15, Buffered: seed%2 == 0}
		if !cfg.Buffered {
			cfg.Bytes, cfg.SegmentBytes = 4<<17, 1<<17
		}
		sp := space(100 + r.IntN(1000))
		faults, mu := false, new(sync.Mutex)
		open := func() *offload.Segments {
			if cfg.Buffered {
				return openSegments(t, cfg)
			}
			s, err := offload.OpenSegmentsOn(cfg, func(f offload.BlockFile) offload.BlockFile {
				return faulty{f, mu, r, &faults, sum}
			})
			must(t, err)
			return s
		}
		s := open()
		gone := make(map[offload.Key]bool)  // deleted and not put since
		again := make(map[offload.Key]bool) // to be deleted again after an error
		for step := range 400 {
			c := chain(r.IntN(12), 4+r.IntN(70))
			from := max(0, len(c)-1-r.IntN(6))
			faults = !cfg.Buffered && step%100 > 50
			switch r.IntN(20) {
			case 0:
				if faults {
					break
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open()
				sum["restarts"]++
			case 1:
				if err := s.Delete(ctx, sp.ID(), c[from:from+1]); err == nil {
					gone[c[from]] = true
				} else if again[c[from]] = true; !faults {
					t.Fatal(err)
				}
			case 2, 3, 4, 5, 6, 7, 8, 9:
				had := make([]bool, len(c)-from)
				if err := s.Has(ctx, sp.ID(), c[from:], had); err != nil {
					t.Fatal(err)
				}
				n, err := s.Put(ctx, sp.ID(), c[from:], contents(sp, c[from:]))
				if (err == nil) != (n == len(c)-from) || err != nil && !faults {
					t.Fatalf("seed %d, step %d: Put: %d of %d, %v", seed, step, n, len(c)-from, err)
				}
				for i, k := range c[from:] {
					delete(gone, k)
					if i < n { // else an older write may still be on disk
						delete(again, k)
					}
				}
				if n < len(had) && !had[n] && len(has(t, s, sp, c[from+n:][:1])) > 0 {
					t.Fatalf("seed %d, step %d: block %d is there, and Put returned %d, %v", seed, step, n, n, err)
				}
				hit := make([]bool, n)
				if err := s.Has(ctx, sp.ID(), c[from:from+n], hit); err != nil {
					t.Fatal(err)
				}
				for i, h := range hit {
					if !h && !had[i] { // one that was there before may go with its file
						t.Fatalf("seed %d, step %d: block %d of %d that Put returned for is absent", seed, step, i, n)
					}
				}
			default:
				dst := contents(sp, c)
				for _, b := range dst {
					clear(b)
				}
				n, err := s.Get(ctx, sp.ID(), c, dst)
				if err != nil && (!faults || !errors.Is(err, syscall.EIO)) {
					t.Fatalf("seed %d, step %d: Get: %v", seed, step, err)
				}
				for i, k := range c[:n] {
					if !bytes.Equal(dst[i], content(sp, k)) || gone[k] {
						t.Fatalf("seed %d, step %d: Get: block %d has other bytes, or was deleted", seed, step, i)
					}
				}
				sum["hits"] += n
			}
			if n := dirBytes(t, cfg.Dir); n > cfg.Bytes {
				t.Fatalf("seed %d, step %d: %d bytes, at most %d", seed, step, n, cfg.Bytes)
			}
		}
		faults = false
		if err := s.Delete(ctx, sp.ID(), slices.Collect(maps.Keys(again))); err != nil {
			t.Fatal(err)
		}
		st := s.Stats()
		sum["freed"] += int(st.Freed)
		sum["copied"] += int(st.Copied)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if v, err := offload.VerifySegments(cfg.Dir); v.Corrupt > 0 || v.Right != st.Blocks || err != nil {
			t.Fatalf("seed %d: %+v, %v; want %d right", seed, v, err, st.Blocks)
		}
	}
	for _, name := range []string{"restarts", "freed", "copied", "hits", "read", "truncate", syscall.ENOSPC.Error(), syscall.EIO.Error()} {
		if sum[name] < 20 {
			t.Errorf("%s: %d", name, sum[name])
		}
	}
	t.Log(sum)
}

// damagedFile is a file in which the records of some keys are unreadable or have other bytes.
type damagedFile struct {
	offload.BlockFile
	keys  map[offload.Key]error
	reads *atomic.Int64
}

func (f damagedFile) ReadAt(b []byte, at int64) (int, error) {
	f.reads.Add(1)
	n, err := f.BlockFile.ReadAt(b, at)
	for k, why := range f.keys {
		switch i := bytes.Index(b[:n], k[:]); {
		case i < 0:
		case why == syscall.EIO:
			return 0, why
		default:
			b[i+64] ^= 1 // after the header
		}
	}
	return n, err
}

// TestGetRandom compares Get with a map, for adjacent blocks and others, in files with deleted,
// corrupt and unreadable ones.
func TestGetRandom(t *testing.T) {
	sum := make(map[string]int)
	for seed := range uint64(max(*seeds/2, 6)) {
		r := rand.New(rand.NewPCG(seed, 3))
		sp := space([]int{900, 5000, 40000, 200000}[seed%4])
		f := damagedFile{keys: make(map[offload.Key]error), reads: new(atomic.Int64)}
		s, err := offload.OpenSegmentsOn(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 28, SegmentBytes: 2 << 20},
			func(other offload.BlockFile) offload.BlockFile { f := f; f.BlockFile = other; return f })
		must(t, err)
		c := chain(0, 40)
		there := make(map[offload.Key]bool)
		for from := 0; from < len(c); {
			part := slices.Clone(c[from:min(from+1+r.IntN(20), len(c))])
			if from += len(part); r.IntN(2) == 0 {
				slices.Reverse(part)
			}
			if n, err := s.Put(ctx, sp.ID(), part, contents(sp, part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
			for _, k := range part {
				there[k] = true
			}
		}
		if gone := c[r.IntN(len(c))]; r.IntN(2) == 0 {
			delete(there, gone)
			if err := s.Delete(ctx, sp.ID(), []offload.Key{gone}); err != nil {
				t.Fatal(err)
			}
		}
		for range r.IntN(3) {
			f.keys[c[r.IntN(len(c))]] = []error{syscall.EIO, offload.ErrCorrupt}[r.IntN(2)]
		}
		for range 8 {
			asked := slices.Clone(c[r.IntN(len(c)):])
			if r.IntN(3) == 0 {
				r.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
			}
			dst := contents(sp, asked)
			for _, b := range dst {
				clear(b)
			}
			want, why := len(asked), error(nil)
			for i, k := range asked {
				if !there[k] || f.keys[k] != nil {
					if want = i; there[k] {
						why = f.keys[k]
					}
					break
				}
			}
			before := f.reads.Load()
			n, err := s.Get(ctx, sp.ID(), asked, dst)
			if n != want || !errors.Is(err, why) {
				t.Fatalf("seed %d: Get: %d, %v; want %d, %v", seed, n, err, want, why)
			}
			for i, k := range asked[:n] {
				if !bytes.Equal(dst[i], content(sp, k)) {
					t.Fatalf("seed %d: block %d has other bytes", seed, i)
				}
			}
			sum["blocks"] += n
			sum["reads"] += int(f.reads.Load() - before)
			if n < len(asked) {
				sum[fmt.Sprintf("ended by %v", why)]++
			}
			now := make(map[offload.Key]bool)
			for _, at := range has(t, s, sp, c) {
				now[c[at]] = true
			}
			for _, k := range c { // a block read ahead may be found corrupt, too
				if there[k] != now[k] && f.keys[k] != offload.ErrCorrupt || why == offload.ErrCorrupt && now[asked[want]] {
					t.Fatalf("seed %d: %x is there: %v, and was: %v", seed, k, now[k], there[k])
				}
				if there[k] != now[k] && !errors.Is(err, offload.ErrCorrupt) {
					t.Fatalf("seed %d: %x has gone, and Get returned %v", seed, k, err)
				}
			}
			there = now
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, least := range map[string]int{"blocks": 400, "ended by <nil>": 5, "ended by offload: corrupt block": 1, "ended by input/output error": 1} {
		if sum[name] < least {
			t.Errorf("%s: %d, at least %d", name, sum[name], least)
		}
	}
	if sum["reads"] > sum["blocks"] {
		t.Errorf("%d reads for %d blocks", sum["reads"], sum["blocks"])
	}
	t.Log(sum)
}

// meeting is a file whose reads wait until want of them have begun.
type meeting struct {
	offload.BlockFile
	want, reads int
	on          *sync.Cond
}

func (f *meeting) ReadAt(b []byte, at int64) (int, error) {
	f.on.L.Lock()
	f.reads++
	f.on.Broadcast()
	for f.reads < f.want {
		f.on.Wait()
	}
	f.on.L.Unlock()
	return f.BlockFile.ReadAt(b, at)
}

// TestReadAhead has the maximum of concurrent reads, and no more reads than needed.
func TestReadAhead(t *testing.T) {
	for name, c := range map[string]struct{ blocks, bytes, atOnce, all int }{
		"one for small blocks":         {19, 48 << 10, 1, 1},
		"sixteen of a mebibyte":        {17, 1 << 20, 16, 17},
		"one of blocks that are large": {3, 9 << 20, 1, 3},
	} {
		f := &meeting{want: c.atOnce, on: sync.NewCond(new(sync.Mutex))}
		s, err := offload.OpenSegmentsOn(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 28, SegmentBytes: 1 << 27}, func(other offload.BlockFile) offload.BlockFile {
			f.BlockFile = other
			return f
		})
		must(t, err)
		sp, ks, blocks := space(c.bytes), chain(0, c.blocks), make([][]byte, c.blocks)
		for i := range blocks {
			blocks[i] = make([]byte, c.bytes)
		}
		if n, err := s.Put(ctx, sp.ID(), ks, blocks); n != len(ks) || err != nil {
			t.Fatal(n, err)
		}
		if n, err := s.Get(ctx, sp.ID(), ks, blocks); n != len(ks) || err != nil || f.reads != c.all {
			t.Errorf("%s: %d, %v, %d reads", name, n, err, f.reads)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCorruptAhead: Get reports a corrupt block after an unreadable one.
func TestCorruptAhead(t *testing.T) {
	sp, c := space(1<<20), chain(0, 2)
	f := damagedFile{keys: make(map[offload.Key]error), reads: new(atomic.Int64)}
	m := &meeting{want: 2, on: sync.NewCond(new(sync.Mutex))}
	s, err := offload.OpenSegmentsOn(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 26, SegmentBytes: 1 << 23}, func(other offload.BlockFile) offload.BlockFile {
		f.BlockFile = other
		m.BlockFile = f
		return m
	})
	must(t, err)
	defer s.Close()
	if _, err := s.Put(ctx, sp.ID(), c, contents(sp, c)); err != nil {
		t.Fatal(err)
	}
	f.keys[c[0]], f.keys[c[1]] = syscall.EIO, offload.ErrCorrupt
	if n, err := s.Get(ctx, sp.ID(), c, contents(sp, c)); n != 0 || !errors.Is(err, syscall.EIO) || !errors.Is(err, offload.ErrCorrupt) {
		t.Error(n, err)
	}
}

// failFile is a file whose operations fail so many times.
type failFile struct {
	offload.BlockFile
	times map[string]int
}

func (f failFile) fails(op string) bool {
	f.times[op]--
	return f.times[op] >= 0
}

func (f failFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.BlockFile.WriteAt(b, at)
	if f.fails("write") {
		return n, syscall.EIO // though all is there
	}
	return n, err
}

func (f failFile) Truncate(size int64) error {
	if f.fails("truncate") {
		return syscall.EIO
	}
	return f.BlockFile.Truncate(size)
}

func (f failFile) ReadAt(b []byte, at int64) (int, error) {
	n, err := f.BlockFile.ReadAt(b, at)
	if f.fails("read") {
		b[200] ^= 1
	}
	return n, err
}

// TestDeletedStays has faults that hide a block from Delete, and opens the directory again: a block
// that Delete has removed is not there.
func TestDeletedStays(t *testing.T) {
	for name, c := range map[string]struct {
		put, get, del map[string]int // faults of each step
		deletes       int            // number that fail
	}{
		"the deletion is not written":      {del: map[string]int{"write": 1}, deletes: 1},
		"the deletion cannot be cut off":   {del: map[string]int{"write": 1, "truncate": 3}, deletes: 3},
		"the block seems corrupt":          {get: map[string]int{"read": 1}},
		"a failed block cannot be cut off": {put: map[string]int{"write": 1, "truncate": 2}, deletes: 1},
	} {
		cfg, times := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, SegmentBytes: 1 << 17}, map[string]int{}
		s, err := offload.OpenSegmentsOn(cfg, func(f offload.BlockFile) offload.BlockFile { return failFile{f, times} })
		must(t, err)
		w := newEventModel(t, 100)
		if err := s.Report(&w.events); err != nil {
			t.Fatal(err)
		}
		ks, sp := chain(1, 2), space(1000)
		written(t, opened(t, offload.Config{Space: sp, MemoryBytes: 1 << 20, Disk: offload.Disk{Backend: s, Ingest: offload.All}}), sp, nil, ks[:1])
		maps.Copy(times, c.put)
		if _, err := s.Put(ctx, sp.ID(), ks[1:], contents(sp, ks[1:])); (err != nil) != (c.put != nil) {
			t.Error(name, err)
		}
		maps.Copy(times, c.get)
		if _, err := s.Get(ctx, sp.ID(), ks[1:], [][]byte{make([]byte, 1000)}); errors.Is(err, offload.ErrCorrupt) != (c.get != nil) {
			t.Error(name, err)
		}
		maps.Copy(times, c.del)
		for i := range c.deletes + 1 {
			if err := s.Delete(ctx, sp.ID(), ks[1:]); (err == nil) != (i == c.deletes) {
				t.Errorf("%s: deletion %d: %v", name, i, err)
			}
			if w.read(); w.holds[heldBlock{offload.TierDisk, sp.ID(), ks[1]}] && len(has(t, s, sp, ks[1:])) == 0 {
				t.Errorf("%s: deletion %d was not reported", name, i)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again := openSegments(t, cfg)
		if got := has(t, again, sp, ks); !slices.Equal(got, []int{0}) {
			t.Errorf("%s: %v are there", name, got)
		}
		again.Close()
	}
}

// TestHotOutlives: blocks that are read outlive others.
func TestHotOutlives(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 4 << 16, SegmentBytes: 1 << 16, Buffered: true}
	s := openSegments(t, cfg)
	defer s.Close()
	sp := space(1000)
	put := func(c []offload.Key) {
		if n, err := s.Put(ctx, sp.ID(), c, contents(sp, c)); n != len(c) || err != nil {
			t.Fatal(n, err)
		}
	}
	c := chain(0, 20)
	put(c)
	dst := contents(sp, c[:10])
	for branch := range 12 {
		if n, err := s.Get(ctx, sp.ID(), c[:10], dst); n != 10 || err != nil {
			t.Fatalf("%d of 10 blocks that were read are there: %v", n, err)
		}
		put(chain(branch, 80)[20:])
	}
	hit := make([]bool, 20)
	if err := s.Has(ctx, sp.ID(), c, hit); err != nil || hit[15] || !hit[5] {
		t.Errorf("%v, %v", hit, err)
	}
	if n, err := s.Put(ctx, sp.ID(), c[:1], [][]byte{make([]byte, 1<<16)}); n != 1 || err != nil {
		t.Error(n, err) // it is there already
	}
	if n, err := s.Put(ctx, offload.SpaceID{}, c[:1], [][]byte{make([]byte, 1<<16)}); n != 0 || err == nil {
		t.Error("a block larger than a segment was put")
	}
}

// TestOneProcess: a directory can be opened once.
func TestOneProcess(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20}
	s := openSegments(t, cfg)
	if _, err := offload.OpenSegments(cfg); err == nil {
		t.Error("a directory is open twice")
	}
	s.Close()
	openSegments(t, cfg).Close()
	if info, err := os.Stat(cfg.Dir + "/lock"); err != nil || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others than the owner read prompts: %v, %v", info.Mode(), err)
	}
	for _, bad := range []offload.SegmentConfig{{Dir: cfg.Dir}, {Dir: cfg.Dir, Bytes: 1 << 20, SegmentBytes: 1<<19 + 1}, {Dir: cfg.Dir, Bytes: 1 << 20, SegmentBytes: 10}, {Dir: cfg.Dir, Bytes: 1 << 20, SegmentBytes: 8192}} {
		if _, err := offload.OpenSegments(bad); err == nil {
			t.Errorf("opened %+v", bad)
		}
	}
}

// fileSizes checks that no file is longer than a segment.
func fileSizes(t *testing.T, cfg offload.SegmentConfig) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*.seg"))
	must(t, err)
	for _, name := range names {
		info, err := os.Stat(name)
		must(t, err)
		if info.Size() > cfg.SegmentBytes {
			t.Fatalf("%s has %d bytes, a segment %d", name, info.Size(), cfg.SegmentBytes)
		}
	}
}

// TestLargeBlocks puts blocks of most of a segment between small, used ones: copied blocks leave
// room for them, and the last block put is there.
func TestLargeBlocks(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 2 << 16, SegmentBytes: 1 << 16, Buffered: true}
	s := openSegments(t, cfg)
	defer s.Close()
	dst := [][]byte{make([]byte, 5000)}
	large := [][]byte{make([]byte, 50000)}
	for i := range 60 {
		k := numbered(i)
		if i%6 == 5 {
			if n, err := s.Put(ctx, offload.SpaceID{}, k, large); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		} else if n, err := s.Put(ctx, offload.SpaceID{}, k, dst); n != 1 || err != nil {
			t.Fatal(n, err)
		} else if n, err := s.Get(ctx, offload.SpaceID{}, k, dst); n != 1 || err != nil {
			t.Fatal(i, n, err)
		}
		fileSizes(t, cfg)
	}
	if s.Stats().Copied == 0 {
		t.Error("nothing was copied on")
	}
}

// TestOtherBounds opens a directory with other bounds than before. They hold from then on.
func TestOtherBounds(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 8 << 16, SegmentBytes: 1 << 16, Buffered: true}
	src, next := [][]byte{make([]byte, 5000)}, 0
	for _, bounds := range [][2]int64{{8 << 16, 1 << 16}, {4 << 16, 1 << 16}, {4 << 16, 2 << 16}, {7 << 16, 3 << 16}, {7 << 16, 1 << 16}} {
		cfg.Bytes, cfg.SegmentBytes = bounds[0], bounds[1]
		s := openSegments(t, cfg)
		for range 110 { // more than all files can have
			if n, err := s.Put(ctx, offload.SpaceID{}, numbered(next), src); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			next++
			if n := dirBytes(t, cfg.Dir); n > cfg.Bytes {
				t.Fatalf("block %d: %d bytes, at most %d", next, n, cfg.Bytes)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSegmentBytes opens directories without SegmentBytes.
func TestSegmentBytes(t *testing.T) {
	for bytes, want := range map[int64]int64{1 << 30: 128 << 20, 180 << 30: 2 << 30, 1 << 40: 4 << 30, 1 << 50: 64 << 30} {
		s := openSegments(t, offload.SegmentConfig{Dir: t.TempDir(), Bytes: bytes})
		if n, err := s.Put(ctx, offload.SpaceID{}, numbered(1), [][]byte{make([]byte, 5000)}); n != 1 || err != nil || s.SegmentBytes() != want {
			t.Errorf("%d bytes: segments of %d, want %d; %d blocks, %v", bytes, s.SegmentBytes(), want, n, err)
		}
		must(t, s.Close())
	}
}

// TestBlockSizes has buffers and blocks of wrong sizes: each is an error that loses nothing.
func TestBlockSizes(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, SegmentBytes: 1 << 16, Buffered: true}
	s := openSegments(t, cfg)
	src := [][]byte{make([]byte, 100)}
	if n, err := s.Put(ctx, offload.SpaceID{}, numbered(0), src); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for _, size := range []int{0, 99, 101, 5000} { // the file ends before the last two
		if n, err := s.Get(ctx, offload.SpaceID{}, numbered(0), [][]byte{make([]byte, size)}); n != 0 || !errors.Is(err, offload.ErrMisaligned) {
			t.Errorf("Get into %d bytes: %d, %v", size, n, err)
		}
	}
	if n, err := s.Get(ctx, offload.SpaceID{}, numbered(0), src); n != 1 || err != nil {
		t.Errorf("Get: %d, %v", n, err)
	}
	both := append(numbered(1), numbered(2)...)
	if n, err := s.Put(ctx, offload.SpaceID{}, both, [][]byte{src[0], make([]byte, cfg.SegmentBytes)}); n != 1 || !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("Put of a block as long as a segment: %d, %v", n, err)
	}
	if n, err := s.Get(ctx, offload.SpaceID{}, both, [][]byte{src[0], src[0]}); n != 1 || err != nil {
		t.Errorf("Get: %d, %v", n, err)
	}
	if _, err := offload.Open(offload.Config{Space: space(1 << 16), MemoryBytes: 1 << 20, Disk: offload.Disk{Backend: s}}); !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("a store whose blocks fit in no segment: %v", err)
	}
	s.Close()
	cfg.Bytes, cfg.SegmentBytes = 1<<33, 1<<32
	s = openSegments(t, cfg)
	defer s.Close()
	if most := s.MaxBlock(); most != 1<<30 { // the limit of the reader
		t.Errorf("a block of %d bytes", most)
	}
}

// TestNoDirect has a file system that creates a file and then rejects direct I/O, as tmpfs did
// before Linux 6.6.
func TestNoDirect(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, SegmentBytes: 1 << 17}
	s, err := offload.OpenSegmentsWith(cfg, func(name string, flag int) (*os.File, error) {
		f, err := os.OpenFile(name, flag, 0o600)
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(syscall.EINVAL, f.Close())
	})
	must(t, err)
	defer s.Close()
	if n, err := s.Put(ctx, offload.SpaceID{}, numbered(0), [][]byte{{1}}); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, err := s.Get(ctx, offload.SpaceID{}, numbered(0), [][]byte{{0}}); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestLastNumber has a file with the last number: its blocks are there, and no other file follows.
func TestLastNumber(t *testing.T) {
	cfg, name, _ := filled(t)
	if err := os.Rename(name, filepath.Join(cfg.Dir, "ffffffff.seg")); err != nil {
		t.Fatal(err)
	}
	s := openSegments(t, cfg)
	defer s.Close()
	block := make([]byte, 100<<10)
	if n, err := s.Put(ctx, offload.SpaceID{}, append(numbered(1), numbered(2)...), [][]byte{block, block}); n != 1 || err == nil {
		t.Error(n, err)
	}
	if n, err := s.Get(ctx, offload.SpaceID{}, numbered(1), [][]byte{block}); n != 1 || err != nil {
		t.Error(n, err)
	}
}
