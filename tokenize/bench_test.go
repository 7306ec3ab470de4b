package tokenize_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// readProse returns the text that tiny.json was made from.
func readProse(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile("internal/gentiny/prose.txt")
	must(tb, err)
	return string(b)
}

// englishLike returns a text of about n bytes: the prose's words in random
// order, one in sixteen of them made up, with punctuation and line ends.
func englishLike(words []string, n int, r *rand.Rand) string {
	var b strings.Builder
	for b.Len() < n {
		switch r.IntN(16) {
		case 0:
			for range 3 + r.IntN(8) {
				b.WriteByte(byte('a' + r.IntN(26)))
			}
		case 1:
			b.WriteString(".\n\n")
		default:
			b.WriteString(words[r.IntN(len(words))])
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// freshTexts returns enough texts that no branch predictor learns them.
func freshTexts(tb testing.TB, n int) []string {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields(readProse(tb))
	texts := make([]string, 64)
	for i := range texts {
		texts[i] = englishLike(words, n, r)
	}
	return texts
}

func benchmarkEncode(b *testing.B, t tokenize.Tokenizer, texts []string) {
	var ids []uint32
	var err error
	b.SetBytes(int64(len(texts[0])))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		ids, err = t.Encode(context.Background(), ids[:0], texts[i%len(texts)], true)
		must(b, err)
		i++
	}
	b.ReportMetric(float64(len(ids)), "tokens")
}

// BenchmarkEncode encodes new texts: English, cold (nothing kept) and warm (the words of earlier
// texts kept), and, cold, harder texts of random words, made-up words and code.
func BenchmarkEncode(b *testing.B) {
	for _, family := range append([]string{"tiny"}, supported...) {
		run := func(name string, cold bool, texts func(b *testing.B) []string) {
			b.Run(family+"/"+name, func(b *testing.B) {
				texts := texts(b)
				t := loadFamily(b, family)
				if cold {
					defer tokenize.Cold(t)()
				}
				benchmarkEncode(b, t, texts)
			})
		}
		if family == "tiny" {
			texts := func(b *testing.B) []string { return freshTexts(b, 36<<10) }
			run("cold", true, texts)
			run("warm", false, texts)
			continue
		}
		outside := func(text func(p *testdata.Prose, size int) string) func(b *testing.B) []string {
			return func(b *testing.B) []string {
				p := testdata.NewProse(b, "encoding "+family, 1)
				texts := make([]string, 64)
				for i := range texts {
					texts[i] = text(p, 36<<10)
				}
				return texts
			}
		}
		run("cold", true, outside((*testdata.Prose).English))
		run("warm", false, outside((*testdata.Prose).English))
		run("harder", true, outside((*testdata.Prose).Text))
	}
}

func loadFamily(b *testing.B, family string) *tokenize.BPE {
	if family == "tiny" {
		return loadTiny(b)
	}
	return loadOutside(b, family)
}

// BenchmarkEncodeHostile has texts of 1 MB on which a quadratic merge would not end.
func BenchmarkEncodeHostile(b *testing.B) {
	for _, family := range append([]string{"tiny"}, supported...) {
		b.Run(family, func(b *testing.B) {
			t := loadFamily(b, family)
			for _, h := range hostileTexts(b, 1<<20) {
				b.Run(h.name, func(b *testing.B) { benchmarkEncode(b, t, []string{h.text}) })
			}
		})
	}
}

// peakHeap returns the largest growth of the heap, with garbage, while f runs. It samples
// metrics: runtime.ReadMemStats stops the world and would slow f down.
func peakHeap(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before := heap()
	peak := before
	done, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		often := time.NewTicker(50 * time.Microsecond)
		defer often.Stop()
		for {
			peak = max(peak, heap())
			select {
			case <-done:
				return
			case <-often.C:
			}
		}
	}()
	f()
	close(done)
	<-sampled
	return peak - before
}

// liveHeap returns the memory held by the result of f.
func liveHeap(f func() any) uint64 {
	var before, after runtime.MemStats
	for range 3 { // pools are empty after the second one
		runtime.GC()
	}
	runtime.ReadMemStats(&before)
	v := f()
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(v)
	return after.HeapAlloc - before.HeapAlloc
}

func BenchmarkLoad(b *testing.B) {
	load := func(b *testing.B, path string) {
		open := func() *tokenize.BPE {
			t, err := tokenize.Load(path)
			must(b, err)
			return t
		}
		b.ReportAllocs()
		for b.Loop() {
			open()
		}
		b.ReportMetric(float64(peakHeap(func() { open() }))/1e6, "peak-MB")
		b.ReportMetric(float64(liveHeap(func() any { return open() }))/1e6, "live-MB")
		b.ReportMetric(float64(tokenize.Size(open()))/1e6, "size-MB")
	}
	b.Run("tiny", func(b *testing.B) { load(b, "testdata/tiny.json") })
	for _, family := range supported {
		b.Run(family, func(b *testing.B) {
			load(b, testdata.Path(b, "loading "+family, "tokens", family, "tokenizer.json.gz"))
		})
	}
}
