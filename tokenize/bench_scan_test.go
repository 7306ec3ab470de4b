package tokenize_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

func BenchmarkScan(b *testing.B) {
	texts := freshTexts(b, 36<<10)
	for _, p := range patterns {
		if !p.bench {
			continue
		}
		b.Run(p.name, func(b *testing.B) {
			got, ok := tokenize.PatternOf(p.regex)
			if !ok {
				b.Fatal("not supported")
			}
			raw := make([][]byte, len(texts))
			for i, s := range texts {
				raw[i] = []byte(s)
			}
			b.SetBytes(int64(len(raw[0])))
			b.ReportAllocs()
			n, pieces := 0, 0
			for b.Loop() {
				s := raw[n%len(raw)]
				n++
				pieces = 0
				for i := 0; i < len(s); pieces++ {
					i, _ = got.Scan(s, i)
				}
			}
			b.ReportMetric(float64(pieces), "pieces")
		})
	}
}

// BenchmarkScanLongRuns has texts of 1 MB that a scanner must not go back over.
func BenchmarkScanLongRuns(b *testing.B) {
	for _, p := range patterns {
		if !p.bench {
			continue
		}
		got, ok := tokenize.PatternOf(p.regex)
		if !ok {
			b.Fatal("not supported")
		}
		for _, part := range longRuns {
			s := bytes.Repeat([]byte(part), 1<<20/len(part))
			b.Run(fmt.Sprintf("%s/%q", p.name, part), func(b *testing.B) {
				b.SetBytes(int64(len(s)))
				b.ReportAllocs()
				for b.Loop() {
					for i := 0; i < len(s); {
						i, _ = got.Scan(s, i)
					}
				}
			})
		}
	}
}
