//go:build linux

package bench_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sys/unix"

	"github.com/kvindex/kvindex/offload"
)

// blockStore is a way to keep blocks on disk.
type blockStore interface {
	put(keys []offload.Key, src [][]byte) error
	settle() error // no more blocks come: write all to files
	get(keys []offload.Key, dst [][]byte) error
	close() error
}

// plainFile is a file of consecutive blocks, and their positions.
type plainFile struct {
	*os.File
	at map[offload.Key]int64
}

func (f plainFile) put(keys []offload.Key, src [][]byte) error {
	for i, b := range src {
		f.at[keys[i]] = int64(len(f.at)) * int64(len(b))
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (f plainFile) get(keys []offload.Key, dst [][]byte) error {
	for i, k := range keys {
		if _, err := f.ReadAt(dst[i], f.at[k]); err != nil {
			return err
		}
	}
	return nil
}

func (f plainFile) settle() error { return nil }
func (f plainFile) close() error  { return f.Close() }

type segmentFiles struct{ *offload.Segments }

func (s segmentFiles) put(keys []offload.Key, src [][]byte) error {
	for len(keys) > 0 { // in batches as of a Store
		n := min(len(keys), 32)
		if _, err := s.Put(context.Background(), offload.SpaceID{}, keys[:n], src[:n]); err != nil {
			return err
		}
		keys, src = keys[n:], src[n:]
	}
	return nil
}

func (s segmentFiles) get(keys []offload.Key, dst [][]byte) error {
	n, err := s.Get(context.Background(), offload.SpaceID{}, keys, dst)
	if err == nil && n < len(keys) {
		return fmt.Errorf("%d of %d blocks", n, len(keys))
	}
	return err
}

func (s segmentFiles) settle() error { return nil }
func (s segmentFiles) close() error  { return s.Close() }

type pebbleDB struct{ *pebble.DB }

func (d pebbleDB) put(keys []offload.Key, src [][]byte) error {
	for i, k := range keys {
		if err := d.Set(k[:], src[i], pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}

func (d pebbleDB) get(keys []offload.Key, dst [][]byte) error {
	for i, k := range keys {
		v, done, err := d.Get(k[:])
		if err != nil {
			return err
		}
		copy(dst[i], v)
		if err := done.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (d pebbleDB) settle() error { return d.Flush() }
func (d pebbleDB) close() error  { return d.Close() }

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

// blockStores open each kind in an empty folder.
var blockStores = []struct {
	name string
	open func(dir string) (blockStore, error)
}{
	{"plain", func(dir string) (blockStore, error) {
		f, err := os.Create(filepath.Join(dir, "plain"))
		return plainFile{f, make(map[offload.Key]int64)}, err
	}},
	{"segments", func(dir string) (blockStore, error) {
		s, err := offload.OpenSegments(offload.SegmentConfig{Dir: dir, Bytes: 1 << 30})
		return segmentFiles{s}, err
	}},
	{"buffered", func(dir string) (blockStore, error) {
		s, err := offload.OpenSegments(offload.SegmentConfig{Dir: dir, Bytes: 1 << 30, Buffered: true})
		return segmentFiles{s}, err
	}},
	{"pebble", func(dir string) (blockStore, error) {
		opts := &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}, MemTableSize: 64 << 20}
		opts.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy { // large values in their own files
			return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: 1024, MaxBlobReferenceDepth: 10, TargetGarbageRatio: 1}
		}
		opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
		d, err := pebble.Open(dir, opts)
		return pebbleDB{d}, err
	}},
}

// forgetPages drops the pages of all files of a folder from the page cache.
func forgetPages(b *testing.B, dir string) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(b, err)
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) { // Pebble deletes files meanwhile
			continue
		}
		must(b, err)
		must(b, f.Sync())
		must(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		must(b, f.Close())
	}
}

// BenchmarkSegments writes and reads chains of 64 MiB in blocks of a size, with each kind in turn.
// A write lasts from an empty folder to the end of close.
func BenchmarkSegments(b *testing.B) {
	const total = 64 << 20
	bytes := make([]byte, total)
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < total; i += 8 { // incompressible bytes
		binary.LittleEndian.PutUint64(bytes[i:], r.Uint64())
	}
	out := make([]byte, total)
	for _, size := range []int{64 << 10, 1 << 20} {
		var keys []offload.Key
		var src, dst [][]byte
		for at := 0; at < total; at += size {
			var k offload.Key
			for i := 0; i < len(k); i += 8 {
				binary.LittleEndian.PutUint64(k[i:], r.Uint64())
			}
			keys, src, dst = append(keys, k), append(src, bytes[at:][:size]), append(dst, out[at:][:size])
		}
		speed := make(map[string]map[string][]float64) // MB/s by operation and kind, for each round
		for _, op := range []string{"write", "cold", "warm"} {
			speed[op] = make(map[string][]float64)
		}
		took := func(op, way string, f func()) {
			unix.Sync()
			begun := time.Now()
			f()
			speed[op][way] = append(speed[op][way], total/1e6/time.Since(begun).Seconds())
		}
		read := func(s blockStore) func() {
			return func() {
				for i := 0; i < len(keys); i += 64 {
					end := min(i+64, len(keys))
					must(b, s.get(keys[i:end], dst[i:end]))
				}
			}
		}
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			for _, ways := range speed {
				clear(ways)
			}
			for i := range b.N {
				for w := range blockStores {
					way := blockStores[(i+w)%len(blockStores)]
					dir := b.TempDir()
					took("write", way.name, func() {
						s, err := way.open(dir)
						must(b, err)
						must(b, s.put(keys, src))
						must(b, s.settle())
						must(b, s.close())
					})
					must(b, os.RemoveAll(dir))
					must(b, os.Mkdir(dir, 0o700))
					s, err := way.open(dir)
					must(b, err)
					must(b, s.put(keys, src))
					must(b, s.settle())
					forgetPages(b, dir)
					clear(out)
					took("cold", way.name, read(s))
					if !slices.Equal(out, bytes) {
						b.Fatalf("%s has other bytes", way.name)
					}
					took("warm", way.name, read(s))
					must(b, s.close())
					must(b, os.RemoveAll(dir))
				}
			}
			for op, ways := range speed {
				for way, got := range ways {
					ratios := make([]float64, len(got))
					for i := range got {
						ratios[i] = got[i] / ways["plain"][i]
					}
					b.ReportMetric(middle(slices.Clone(got)), op+"-"+way+"-MB/s")
					b.ReportMetric(middle(ratios), op+"-"+way+"-ratio")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
