package offload_test

import (
	"fmt"
	"testing"

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

// BenchmarkAcquire leases 64 blocks, compared with a copy of 64 blocks of 1 MiB.
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

// BenchmarkRead copies blocks out of a store, compared with copies of slices.
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

// BenchmarkOpen opens segments of 20,000 blocks. Module bench compares writes and reads with
// others.
func BenchmarkOpen(b *testing.B) {
	const n = 20000
	cfg := offload.SegmentConfig{Dir: b.TempDir(), Bytes: 1 << 28, Buffered: true}
	s := openSegments(b, cfg)
	block := content(space(4096), offload.Key{1})
	for i := range n {
		if _, err := s.Put(ctx, offload.SpaceID{1}, numbered(i), [][]byte{block}); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	for b.Loop() {
		openSegments(b, cfg).Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/block")
}
