//go:build linux

package offload_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvindex/kvindex/offload"
)

// benchStore returns a store with a chain of 64 blocks.
func benchStore(b *testing.B, blockBytes int) (*offload.Store, []offload.Key) {
	s, err := offload.Open(offload.Config{Space: space(blockBytes), MemoryBytes: int64(blockBytes) * 80})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	c := chain(0, 64)
	if n, err := s.Write(ctx, nil, c, contents(space(blockBytes), c)); n != 64 || err != nil {
		b.Fatal(n, err)
	}
	return s, c
}

// BenchmarkAcquire leases 64 blocks, beside a copy of 64 blocks of 1 MiB.
func BenchmarkAcquire(b *testing.B) {
	b.Run("lease", func(b *testing.B) {
		s, c := benchStore(b, 4096)
		b.ReportAllocs()
		for b.Loop() {
			l, err := s.Acquire(ctx, c)
			if l.Len() != 64 || err != nil {
				b.Fatal(l.Len(), err)
			}
			l.Release()
		}
	})
	b.Run("copy", func(b *testing.B) {
		from, to := content(space(64<<20), offload.Key{1}), make([]byte, 64<<20)
		for b.Loop() {
			copy(to, from)
		}
	})
}

// BenchmarkRead copies blocks out of a store, beside copies of slices.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
		const n = 8
		dst, src := make([][]byte, n), make([][]byte, n)
		for i := range dst {
			dst[i], src[i] = make([]byte, size), content(space(size), numbered(i)[0])
		}
		b.Run(fmt.Sprintf("store/KiB=%d", size>>10), func(b *testing.B) {
			s, c := benchStore(b, size)
			b.SetBytes(int64(n * size))
			for b.Loop() {
				if got, err := s.Read(ctx, c[:n], dst); got != n || err != nil {
					b.Fatal(got, err)
				}
			}
		})
		b.Run(fmt.Sprintf("copy/KiB=%d", size>>10), func(b *testing.B) {
			b.SetBytes(int64(n * size))
			for b.Loop() {
				for i := range dst {
					copy(dst[i], src[i])
				}
			}
		})
	}
}

// benchBlocks are blocks of 1 MiB, 64 of them.
func benchBlocks() (keys []offload.Key, src [][]byte) {
	for i := range 64 {
		keys = append(keys, numbered(i)...)
		src = append(src, content(space(1<<20), keys[i]))
	}
	return keys, src
}

// drop has the kernel forget the pages of all files of a directory.
func drop(b *testing.B, dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		f.Sync()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// BenchmarkSegments writes, reads and opens 64 blocks of 1 MiB, beside a plain file.
func BenchmarkSegments(b *testing.B) {
	keys, src := benchBlocks()
	sp := offload.SpaceID{1}
	put := func(b *testing.B, dir string) *offload.Segments {
		s := openSegments(b, offload.SegmentConfig{Dir: dir, Bytes: 1 << 30})
		if n, err := s.Put(ctx, sp, keys, src); n != 64 || err != nil {
			b.Fatal(n, err)
		}
		return s
	}
	plain := func(b *testing.B, dir string) string {
		name := filepath.Join(dir, "plain")
		f, err := os.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		for _, block := range src {
			if _, err := f.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		return name
	}
	b.Run("write/segments", func(b *testing.B) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			put(b, b.TempDir()).Close()
		}
	})
	b.Run("write/plain", func(b *testing.B) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			plain(b, b.TempDir())
		}
	})
	dst := make([][]byte, 64)
	for i := range dst {
		dst[i] = make([]byte, 1<<20)
	}
	b.Run("cold/segments", func(b *testing.B) {
		dir := b.TempDir()
		s := put(b, dir)
		defer s.Close()
		b.SetBytes(64 << 20)
		for b.Loop() {
			b.StopTimer()
			drop(b, dir)
			b.StartTimer()
			if n, err := s.Get(ctx, sp, keys, dst); n != 64 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("cold/plain", func(b *testing.B) {
		dir := b.TempDir()
		f, err := os.Open(plain(b, dir))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		b.SetBytes(64 << 20)
		for b.Loop() {
			b.StopTimer()
			drop(b, dir)
			b.StartTimer()
			for i, d := range dst {
				if _, err := f.ReadAt(d, int64(i)<<20); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		const n = 20000
		cfg := offload.SegmentConfig{Dir: b.TempDir(), Bytes: 1 << 28, Buffered: true}
		s := openSegments(b, cfg)
		for i := range n {
			if _, err := s.Put(ctx, sp, numbered(i), [][]byte{src[0][:4096]}); err != nil {
				b.Fatal(err)
			}
		}
		s.Close()
		for b.Loop() {
			openSegments(b, cfg).Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/block")
	})
}
