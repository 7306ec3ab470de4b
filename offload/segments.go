package offload

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

// SegmentConfig is what Segments are made of.
type SegmentConfig struct {
	Dir string // is created if it is not there
	// Bytes is the bound of all files, at every moment; at least two segments. The disk must have
	// them: on a disk that is full before, Put fails, and no older file goes.
	Bytes int64
	// SegmentBytes is the bound of a file. 0 is an eighth of Bytes, but at most 2 GiB, or a 256th of
	// Bytes if that is more. A block has 8,288 bytes less, and at most 1 GiB. Put waits while half a
	// file is copied.
	SegmentBytes int64
	// Buffered writes through the page cache, where small blocks take 64 bytes more than
	// theirs. Without it a block takes up to 4 KiB more.
	Buffered bool
}

// Segments is a Backend in the files of a directory. It appends blocks to a file, and
// when the bound is met it removes the oldest file. It first appends the blocks of that
// file again which were read, or put again, since they were written, as far as half a segment
// holds them.
//
// Nothing is synced. Blocks that Put has stored survive kill -9, and not the end of the
// machine. A block that is torn or corrupt is absent: Get compares a checksum.
// An index of its own has at most 64 bytes for each block.
// On Linux a directory that is open cannot be opened again. Elsewhere nothing keeps two
// processes from spoiling each other's files.
// The files can be read by their owner alone.
type Segments struct {
	cfg  SegmentConfig
	seed maphash.Seed
	lock *os.File
	open func(name string, flag int) (blockFile, bool, error)

	// writer is held by those that append or remove files. It is taken before mu.
	writer sync.Mutex
	buf    []byte         // aligned; records that are being written
	staged []stagedRecord // what is in buf
	torn   bool           // the last file can have records behind its end

	mu     sync.Mutex // guards what follows
	closed bool
	index  map[uint64]place
	hidden map[uint64]uint32 // blocks that index lacks, and the newest file that can have them
	files  []*segment        // the oldest first; the last is written, if any
	stats  SegmentStats
}

// SegmentStats counts what Segments hold, and what happened since they were opened.
type SegmentStats struct {
	Blocks  int
	Bytes   int64  // of the files, with what is reserved for the one that is written
	Torn    int    // records that were found to be cut off
	Corrupt int    // records that were found to have other bytes
	Copied  uint64 // blocks that were read, and so outlived their file
	Freed   uint64 // blocks that went with their file
}

// place is where a record lies. The high bit of at is set if it was read since it was
// written.
type place struct{ file, at uint32 }

const hotBit = 1 << 31

// blockFile is a file of blocks; tests have others than *os.File.
type blockFile interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Close() error
}

type segment struct {
	format
	number  uint32
	name    string
	f       blockFile // nil if the file could not be removed yet
	end     int64     // where the next record begins, of the last file; else the size
	records int64     // where the last record ended when the file was opened
	prints  []uint64  // of its blocks
	// reading is held for reading while bytes are read, and for writing when the file goes.
	reading sync.RWMutex
}

// OpenSegments opens a directory by the headers of the records in it: it reads no block.
func OpenSegments(cfg SegmentConfig) (*Segments, error) {
	// A header and a block fit in the least one. A place has 31 bits, of 64 bytes each.
	const least, most = 4 * maxAlign, int64(1) << 36
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = min(cfg.Bytes/8, max(2<<30, cfg.Bytes/256), most)
	}
	if cfg.SegmentBytes < least || cfg.SegmentBytes > most || cfg.Bytes/2 < cfg.SegmentBytes {
		return nil, fmt.Errorf("offload: segments of %d bytes in %d: a segment has %d to %d, and two fit", cfg.SegmentBytes, cfg.Bytes, least, most)
	}
	return openSegments(cfg, openBy(openDirect))
}

// openBy returns a function that opens a file past the page cache if it can, and reports
// whether it has.
func openBy(direct func(string, int) (*os.File, error)) func(string, int) (blockFile, bool, error) {
	return func(name string, flag int) (blockFile, bool, error) {
		f, err := direct(name, flag)
		if err == nil {
			return f, true, nil
		} else if errors.Is(err, fs.ErrExist) {
			return nil, false, err
		}
		return openPlain(name, flag&^os.O_EXCL) // some make the file before they refuse it
	}
}

func openPlain(name string, flag int) (blockFile, bool, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	return f, false, err
}

func openSegments(cfg SegmentConfig, open func(string, int) (blockFile, bool, error)) (*Segments, error) {
	s := &Segments{cfg: cfg, seed: maphash.MakeSeed(), open: open, index: make(map[uint64]place), hidden: make(map[uint64]uint32)}
	if cfg.Buffered {
		s.open = openPlain
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("offload: %w", err)
	}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("offload: %w", err)
	}
	if err := lockFile(s.lock); err != nil {
		return nil, fmt.Errorf("offload: %s: %w", cfg.Dir, errors.Join(err, s.lock.Close()))
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// load reads the files of the directory, the oldest first.
func (s *Segments) load() error {
	names, err := segmentNames(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := s.loadFile(name)
		if err != nil {
			return fmt.Errorf("offload: %s: %w", name, err)
		}
		if f != nil {
			s.files = append(s.files, f)
		}
	}
	if f := s.active(); f != nil { // more can follow its records
		if err := f.f.Truncate(f.records); err != nil {
			return fmt.Errorf("offload: %s: %w", f.name, err)
		}
		f.end = f.records
		return s.shrink(s.cfg.Bytes - max(s.cfg.SegmentBytes-f.end, 0)) // as it grows
	}
	return s.shrink(s.cfg.Bytes)
}

// segmentNames returns the paths of all segments of a directory, the oldest first.
func segmentNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("offload: %w", err)
	}
	var names []string
	for _, e := range entries {
		if _, err := segmentNumber(e.Name()); err == nil {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names, nil // ReadDir sorts, and all names are of one length
}

func segmentName(number uint32) string { return fmt.Sprintf("%08x.seg", number) }

func segmentNumber(name string) (uint32, error) {
	digits, ok := strings.CutSuffix(filepath.Base(name), ".seg")
	n, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil || segmentName(uint32(n)) != filepath.Base(name) {
		return 0, fmt.Errorf("%q is no name of a segment", name)
	}
	return uint32(n), nil
}

// loadFile reads the headers of a segment. It removes a file that does not begin as a
// segment, whose blocks nobody can find, and returns nil.
func (s *Segments) loadFile(name string) (*segment, error) {
	number, err := segmentNumber(name)
	if err != nil {
		return nil, err
	}
	seg := &segment{number: number, name: name}
	plain, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	size, err := plain.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	seg.format, err = readFormat(plain)
	if errors.Is(err, errNoSegment) {
		if size < fileHeader {
			s.stats.Torn++
		} else {
			s.stats.Corrupt++
		}
		return nil, errors.Join(plain.Close(), os.Remove(name)) // Windows removes no open file
	} else if err != nil {
		return nil, err
	}
	end, d, err := seg.scan(plain, size, func(rec record, at int64) error {
		print := s.print(rec.space, rec.key)
		if rec.kind == kindDeletion {
			delete(s.index, print)
			return nil
		}
		s.index[print] = place{number, uint32(at / 64)}
		seg.prints = append(seg.prints, print)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.stats.Torn += d.torn
	s.stats.Corrupt += d.corrupt
	seg.end, seg.records = size, end
	seg.f, _, err = s.openAs(name, os.O_RDWR, seg.align)
	return seg, err
}

// openAs opens a file of an alignment, past the page cache only if that allows it.
func (s *Segments) openAs(name string, flag int, align int64) (blockFile, bool, error) {
	if align < maxAlign {
		return openPlain(name, flag)
	}
	return s.open(name, flag)
}

func (s *Segments) print(space SpaceID, key Key) uint64 {
	name := nameOf(space, key)
	return maphash.Bytes(s.seed, name[:])
}

func (s *Segments) usable(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// Has implements Backend. It compares hashes of 64 bits: a block can seem to be there that
// Get does not return.
func (s *Segments) Has(ctx context.Context, space SpaceID, keys []Key, hit []bool) error {
	if len(keys) != len(hit) {
		return fmt.Errorf("%w: %d keys and %d hits", ErrMisaligned, len(keys), len(hit))
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		_, hit[i] = s.index[s.print(space, k)]
	}
	return nil
}

// readAhead is how many bytes of one Get are read at the same time, if its blocks are no larger.
const readAhead = 16 << 20

// Get implements Backend. Blocks that lie side by side are one read of up to a mebibyte, and up
// to 16 reads are under way at the same time, for which it has buffers beside dst.
func (s *Segments) Get(ctx context.Context, space SpaceID, keys []Key, dst [][]byte) (n int, err error) {
	if len(keys) != len(dst) {
		return 0, fmt.Errorf("%w: %d keys and %d buffers", ErrMisaligned, len(keys), len(dst))
	}
	if err := s.usable(ctx); err != nil || len(keys) == 0 {
		return 0, err
	}
	var mu sync.Mutex // guards n and err
	n = len(keys)
	ends := func(at int, why error) {
		mu.Lock()
		defer mu.Unlock()
		if at < n {
			n, err, why = at, why, err
		}
		if errors.Is(why, ErrCorrupt) { // of a block behind n, which is absent from now on as well
			err = errors.Join(err, why)
		}
	}
	goesOn := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return n == len(keys)
	}
	var reads sync.WaitGroup
	busy := make(chan struct{}, max(1, readAhead/max(readBatch, len(dst[0]))))
	for at := 0; at < len(keys) && goesOn(); {
		busy <- struct{}{}
		if why := s.usable(ctx); why != nil {
			ends(at, why)
			break
		}
		r, from := s.run(space, keys[at:], dst[at:]), at
		if at += len(r.at); len(r.at) == 0 {
			ends(at, nil)
			break
		}
		read := func() {
			defer r.f.reading.RUnlock()
			if done, why := s.read(r); done < len(r.at) {
				ends(from+done, why)
			}
			<-busy
		}
		if at == len(keys) {
			read()
		} else {
			reads.Go(read)
		}
	}
	reads.Wait()
	return n, err
}

// run is blocks that lie side by side in a file, in any order.
type run struct {
	f        *segment
	space    SpaceID
	keys     []Key
	dst      [][]byte
	at       []int64 // where the record of each begins
	from, to int64   // what all have in the file
}

// run returns the blocks that can be read with the first one, none if that is not there. They
// count as read, and their file stays until its reading is unlocked.
func (s *Segments) run(space SpaceID, keys []Key, dst [][]byte) run {
	r := run{space: space, keys: keys, dst: dst}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		print := s.print(space, k)
		p, ok := s.index[print]
		if !ok || i > 0 && p.file != r.f.number {
			break
		}
		if i == 0 {
			r.f = s.file(p.file)
			r.f.reading.RLock() // before mu is released: else the file could go
		}
		at := int64(p.at&^hotBit) * 64
		end := at + r.f.padded(len(dst[i]))
		switch {
		case i == 0:
			r.from, r.to = at, end
		case end-at > readBatch-(r.to-r.from):
			return r
		case at == r.to:
			r.to = end
		case end == r.from: // a store writes the end of a chain first
			r.from = at
		default:
			return r
		}
		r.at = append(r.at, at)
		s.index[print] = place{p.file, p.at | hotBit}
	}
	return r
}

// read reads a run, and returns how many of its blocks are right, from the first on.
func (s *Segments) read(r run) (n int, err error) {
	b, done, err := r.f.load(r.from, int(r.to-r.from))
	defer done()
	if err != nil && len(r.at) > 1 { // it can be one of the last that cannot be read
		for i, at := range r.at {
			one := run{r.f, r.space, r.keys[i:], r.dst[i:], r.at[i : i+1], at, at + r.f.padded(len(r.dst[i]))}
			if n, err := s.read(one); n == 0 {
				return i, err
			}
		}
		return len(r.at), nil
	}
	for i, at := range r.at {
		if ok, err := s.get(r, i, b[min(int(at-r.from), len(b)):], err); !ok {
			return i, err
		}
	}
	return len(r.at), nil
}

// get copies a block of a run from where its record begins, and reports false if it is not there.
func (s *Segments) get(r run, i int, b []byte, failed error) (bool, error) {
	key, dst, at := r.keys[i], r.dst[i], r.at[i]
	rec, body, err := r.f.record(b, at, len(dst), failed)
	switch {
	case err == nil && (rec.space != r.space || rec.key != key):
		return false, nil // another block with the same print
	case err == nil && rec.length != len(dst):
		return false, fmt.Errorf("%w: a block of %d bytes into %d", ErrMisaligned, rec.length, len(dst))
	case err == nil && crc32.Checksum(body, castagnoli) != rec.sum:
		err = ErrCorrupt
	}
	if errors.Is(err, ErrCorrupt) {
		print := s.print(r.space, key)
		s.mu.Lock()
		if p := s.index[print]; p.file == r.f.number && int64(p.at&^hotBit)*64 == at {
			delete(s.index, print)
			s.hidden[print] = p.file
		}
		s.stats.Corrupt++
		s.mu.Unlock()
	}
	if err != nil {
		return false, fmt.Errorf("%w: block %x in %s at %d", err, key, r.f.name, at)
	}
	copy(dst, body)
	return true, nil
}

// file returns a file by its number. It must be there; mu is held.
func (s *Segments) file(number uint32) *segment {
	i, _ := slices.BinarySearchFunc(s.files, number, func(f *segment, n uint32) int { return cmp.Compare(f.number, n) })
	return s.files[i]
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// load reads so many bytes of a file, or those that it has. They are valid until done is called.
func (f *segment) load(at int64, n int) (b []byte, done func(), err error) {
	p := scratch.Get().(*[]byte)
	*p = aligned((*p)[:0], n)
	got, err := f.f.ReadAt((*p)[:n], at)
	if errors.Is(err, io.EOF) { // the file can end before the padding
		err = nil
	}
	return (*p)[:got], func() { scratch.Put(p) }, err
}

// record returns the record that b begins with. Its body is expected to have n bytes; if it has
// others the body is nil. failed is why there is no more in b.
func (f *segment) record(b []byte, at int64, n int, failed error) (rec record, body []byte, err error) {
	if len(b) < recordBytes+n && failed != nil {
		return rec, nil, failed
	} else if len(b) < recordBytes {
		return rec, nil, ErrCorrupt
	}
	rec, ok := f.parse(b, at)
	switch {
	case !ok:
		return rec, nil, ErrCorrupt
	case rec.length != n: // and the file can end before n bytes
		return rec, nil, nil
	case len(b) < recordBytes+n:
		return rec, nil, ErrCorrupt
	}
	return rec, b[recordBytes:][:n], nil
}

// aligned returns b with room for n more bytes, at an address that O_DIRECT takes if
// b has no memory yet or was of aligned.
func aligned(b []byte, n int) []byte {
	if len(b)+n <= cap(b) {
		return b
	}
	size := max(len(b)+n, 2*cap(b))
	m := make([]byte, size+maxAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) & (maxAlign - 1)
	return append(m[skip:skip:skip+size], b...)
}

// Put implements Backend. It writes four mebibytes at once, or a block if that is larger.
func (s *Segments) Put(ctx context.Context, space SpaceID, keys []Key, src [][]byte) (n int, err error) {
	if len(keys) != len(src) {
		return 0, fmt.Errorf("%w: %d keys and %d blocks", ErrMisaligned, len(keys), len(src))
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.staged, s.buf = s.staged[:0], s.buf[:0]
	for i, k := range keys {
		print := s.print(space, k)
		if err = s.usable(ctx); err == nil && s.use(print) {
			continue
		} else if err == nil {
			err = s.fits(len(src[i]))
		}
		if err != nil {
			err = errors.Join(err, s.flush())
		} else if err = s.stage(record{kind: kindBlock, space: space, key: k}, print, src[i]); err == nil && len(s.staged) == 1 {
			n = i // the blocks before it are written
		}
		if err != nil && len(s.staged) > 0 {
			return n, err
		} else if err != nil {
			return i, err
		}
	}
	if err := s.flush(); err != nil {
		return n, err
	}
	return len(keys), nil
}

// maxBlock returns the bytes of the largest block.
func (s *Segments) maxBlock() int64 {
	return min(s.cfg.SegmentBytes-2*maxAlign-recordBytes, maxBlockBytes)
}

func (s *Segments) fits(n int) error {
	if most := s.maxBlock(); int64(n) > most {
		return fmt.Errorf("%w: a block of %d bytes, at most %d in segments of %d", ErrMisaligned, n, most, s.cfg.SegmentBytes)
	}
	return nil
}

// use reports whether a block is there, and marks it as read if so.
func (s *Segments) use(print uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.index[print]
	if ok {
		s.index[print] = place{p.file, p.at | hotBit}
	}
	return ok
}

// Delete implements Backend. The blocks stay deleted when the directory is opened again.
func (s *Segments) Delete(ctx context.Context, space SpaceID, keys []Key) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.staged, s.buf = s.staged[:0], s.buf[:0]
	var errs []error
	for _, k := range keys {
		print := s.print(space, k)
		s.mu.Lock()
		_, there := s.index[print]
		_, hidden := s.hidden[print]
		s.mu.Unlock()
		if !there && !hidden {
			continue
		}
		if err := s.stage(record{kind: kindDeletion, space: space, key: k}, print, nil); err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		if p, ok := s.index[print]; ok { // stage can have copied it
			delete(s.index, print) // whatever happens to the record
			s.hidden[print] = p.file
		}
		s.mu.Unlock()
	}
	return errors.Join(append(errs, s.flush())...)
}

// stagedRecord is a record in Segments.buf.
type stagedRecord struct {
	print uint64
	at    int64
	block bool
}

// The bytes of records that are written at once, and read, unless a block is larger.
const (
	writeBatch = 4 << 20
	readBatch  = 1 << 20
)

// stage appends a record to those that flush writes, and flushes if there is no room.
// If it fails, either nothing is staged or the staged records were not written.
func (s *Segments) stage(rec record, print uint64, body []byte) error {
	f := s.active()
	if f == nil || f.end+int64(len(s.buf))+f.padded(len(body)) > s.cfg.SegmentBytes || len(s.buf) >= writeBatch {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if f == nil || f.end+f.padded(len(body)) > s.cfg.SegmentBytes {
		var err error
		if f, err = s.roll(len(body)); err != nil {
			return err
		}
	}
	at := f.end + int64(len(s.buf))
	rec.length, rec.sum = len(body), crc32.Checksum(body, castagnoli)
	size := int(f.padded(len(body)))
	s.buf = aligned(s.buf, size)
	s.buf = append(rec.append(s.buf, f.format, at), body...)
	s.buf = append(s.buf, make([]byte, size-recordBytes-len(body))...)
	s.staged = append(s.staged, stagedRecord{print, at, rec.kind == kindBlock})
	return nil
}

// active returns the file that is written, nil if there is none.
func (s *Segments) active() *segment {
	if len(s.files) == 0 || s.files[len(s.files)-1].f == nil {
		return nil
	}
	return s.files[len(s.files)-1]
}

// flush writes the staged records, and then lets others find them. If it fails nothing of them is
// there, and the next write begins at the same place.
func (s *Segments) flush() error {
	f := s.active()
	if s.torn && f != nil { // else what Delete has removed could come back from there
		if err := f.f.Truncate(f.end); err != nil {
			return fmt.Errorf("offload: %w", err)
		}
	}
	s.torn = false
	if len(s.staged) == 0 {
		return nil
	}
	if _, err := f.f.WriteAt(s.buf, f.end); err != nil {
		cut := f.f.Truncate(f.end)
		s.torn = cut != nil
		return fmt.Errorf("offload: %w", errors.Join(err, cut))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.end += int64(len(s.buf))
	for _, st := range s.staged {
		if st.block {
			s.index[st.print] = place{f.number, uint32(st.at / 64)}
			f.prints = append(f.prints, st.print)
		} else {
			delete(s.hidden, st.print)
		}
	}
	s.staged, s.buf = s.staged[:0], s.buf[:0]
	return nil
}

// roll begins a file for a block of n bytes and more, and makes room for the one after it.
func (s *Segments) roll(n int) (*segment, error) {
	if err := s.shrink(s.cfg.Bytes - s.cfg.SegmentBytes); err != nil {
		return nil, err
	}
	f, err := s.create()
	if err != nil {
		return nil, fmt.Errorf("offload: %w", err)
	}
	s.mu.Lock()
	s.files = append(s.files, f)
	s.mu.Unlock()
	most := min(f.end+s.cfg.SegmentBytes/2, s.cfg.SegmentBytes-f.padded(n))
	for len(s.files) > 1 && s.size()-f.end+2*s.cfg.SegmentBytes > s.cfg.Bytes {
		if err := s.copyHot(s.files[0], most); err != nil {
			return nil, err
		}
		if err := s.remove(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// size returns the bytes of all files.
func (s *Segments) size() (sum int64) {
	for _, f := range s.files {
		sum += f.end
	}
	return sum
}

// shrink removes the oldest files until all have so many bytes.
func (s *Segments) shrink(most int64) error {
	for len(s.files) > 0 && s.size() > most {
		if err := s.remove(); err != nil {
			return err
		}
	}
	return nil
}

// create makes a file with a header.
func (s *Segments) create() (*segment, error) {
	seg := &segment{}
	if n := len(s.files); n > 0 {
		if seg.number = s.files[n-1].number + 1; seg.number == 0 {
			return nil, fmt.Errorf("no number follows %s", s.files[n-1].name)
		}
	}
	seg.name = filepath.Join(s.cfg.Dir, segmentName(seg.number))
	var err error
	var direct bool
	if seg.f, direct, err = s.open(seg.name, os.O_RDWR|os.O_CREATE|os.O_EXCL); err != nil {
		return nil, err
	}
	seg.align = 64
	if direct {
		seg.align = maxAlign
	}
	var nonce [8]byte
	rand.Read(nonce[:])
	seg.nonce = binary.LittleEndian.Uint64(nonce[:])
	header := seg.append(aligned(nil, int(seg.align)))
	header = append(header, make([]byte, int(seg.align)-len(header))...)
	if _, err := seg.f.WriteAt(header, 0); err != nil {
		return nil, errors.Join(err, seg.f.Close(), os.Remove(seg.name))
	}
	seg.end = seg.align
	return seg, nil
}

// copyHot appends what was read of a file, until the last file has most bytes.
func (s *Segments) copyHot(f *segment, most int64) error {
	for _, print := range f.prints {
		s.mu.Lock()
		p, ok := s.index[print]
		s.mu.Unlock()
		if !ok || p.file != f.number || p.at&hotBit == 0 {
			continue
		}
		rec, body, done, err := f.whole(int64(p.at&^hotBit) * 64)
		if to := s.active(); err == nil && to.end+int64(len(s.buf))+to.padded(len(body)) <= most {
			if err := s.stage(rec, print, body); err != nil {
				done()
				s.staged, s.buf = s.staged[:0], s.buf[:0]
				return err
			}
			s.mu.Lock()
			s.stats.Copied++
			s.mu.Unlock()
		}
		done() // a block that cannot be read goes with its file
	}
	err := s.flush()
	s.staged, s.buf = s.staged[:0], s.buf[:0] // for others
	return err
}

// whole reads a record whose length nobody has. Its body is valid until done is called.
func (f *segment) whole(at int64) (rec record, body []byte, done func(), err error) {
	b, done, err := f.load(at, int(f.padded(0)))
	if rec, _, err = f.record(b, at, 0, err); err != nil {
		return rec, nil, done, err
	}
	done()
	b, done, err = f.load(at, int(f.padded(rec.length)))
	if rec, body, err = f.record(b, at, rec.length, err); err == nil && crc32.Checksum(body, castagnoli) != rec.sum {
		err = ErrCorrupt
	}
	return rec, body, done, err
}

// remove deletes the oldest file.
func (s *Segments) remove() error {
	f := s.files[0]
	s.mu.Lock()
	for _, print := range f.prints {
		if p, ok := s.index[print]; ok && p.file == f.number {
			delete(s.index, print)
			s.stats.Freed++
		}
	}
	s.mu.Unlock()
	f.reading.Lock() // nobody can begin to read it
	defer f.reading.Unlock()
	if f.f != nil {
		f.f.Close()
		f.f = nil
	}
	if err := os.Remove(f.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, print := range f.prints {
			s.hidden[print] = max(s.hidden[print], f.number)
		}
		return fmt.Errorf("offload: %w", err) // it still counts
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = s.files[1:]
	for _, print := range f.prints {
		if s.hidden[print] == f.number {
			delete(s.hidden, print)
		}
	}
	return nil
}

// Stats returns the counters.
func (s *Segments) Stats() SegmentStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Blocks = len(s.index)
	for _, f := range s.files {
		st.Bytes += f.end
	}
	return st
}

// Close implements Backend. It waits for reads and writes.
func (s *Segments) Close() error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.staged, s.buf = s.staged[:0], s.buf[:0]
	errs := []error{s.flush()}
	s.mu.Lock()
	files := s.files
	s.closed, s.files = true, nil
	clear(s.index)
	s.mu.Unlock()
	for _, f := range files {
		f.reading.Lock()
		if f.f != nil {
			errs = append(errs, f.f.Close())
		}
		f.reading.Unlock()
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}

// Verification counts the records of a directory of segments.
type Verification struct {
	Right   int // blocks that are there, each byte of which is right
	Absent  int // records that were cut off before they were written whole
	Corrupt int // records and files with other bytes than those that were written
}

// VerifySegments reads each byte of a directory of segments, and changes nothing. It needs
// no lock: files that go meanwhile are not counted.
func VerifySegments(dir string) (v Verification, err error) {
	names, err := segmentNames(dir)
	if err != nil {
		return v, err
	}
	live := make(map[blockName]bool)
	for _, name := range names {
		if err := v.file(name, live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return v, fmt.Errorf("offload: %s: %w", name, err)
		}
	}
	v.Right = len(live)
	return v, nil
}

// blockName is a space and a key.
type blockName [len(SpaceID{}) + len(Key{})]byte

func nameOf(space SpaceID, key Key) (n blockName) {
	copy(n[:], space[:])
	copy(n[len(space):], key[:])
	return n
}

func (v *Verification) file(name string, live map[blockName]bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	return v.read(f, size, live)
}

// read counts what a file of so many bytes has.
func (v *Verification) read(f io.ReaderAt, size int64, live map[blockName]bool) error {
	form, err := readFormat(f)
	if errors.Is(err, errNoSegment) && size < fileHeader {
		v.Absent++
		return nil
	} else if errors.Is(err, errNoSegment) {
		v.Corrupt++
		return nil
	} else if err != nil {
		return err
	}
	var body []byte
	_, d, err := form.scan(f, size, func(rec record, at int64) error {
		name := nameOf(rec.space, rec.key)
		body = slices.Grow(body[:0], rec.length)[:rec.length]
		if _, err := f.ReadAt(body, at+recordBytes); err != nil {
			return err
		}
		delete(live, name)
		if crc32.Checksum(body, castagnoli) != rec.sum {
			v.Corrupt++
		} else if rec.kind == kindBlock {
			live[name] = true
		}
		return nil
	})
	v.Absent += d.torn
	v.Corrupt += d.corrupt
	return err
}
