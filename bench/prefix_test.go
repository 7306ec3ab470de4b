package bench_test

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/prefixcache"
)

// textOf returns the text of a request: four bytes for each token, the same for the same block.
func textOf(dst []byte, q *bench.Request, blockTokens int) []byte {
	for _, b := range q.Blocks {
		r := rand.NewPCG(b, 1)
		for range 4 * blockTokens / 8 {
			dst = binary.LittleEndian.AppendUint64(dst, r.Uint64())
		}
	}
	return dst
}

var prefixSeed = maphash.MakeSeed()

// beginnings appends the hashes of a text up to each grain, and returns that of the whole.
func beginnings(at []uint64, text []byte) (_ []uint64, whole uint64) {
	var h maphash.Hash
	h.SetSeed(prefixSeed)
	for i := prefixcache.Grain; i <= len(text); i += prefixcache.Grain {
		h.Write(text[i-prefixcache.Grain : i])
		at = append(at, h.Sum64())
	}
	h.Write(text[len(at)*prefixcache.Grain:])
	return at, h.Sum64()
}

// askFor looks up a text with units of 64 bytes, and adds the unknown part.
func askFor(c *prefixcache.Cache, p *prefixcache.Prompt, text string) (known int) {
	if c.Find(p, nil, text) {
		return len(text)
	}
	locals := make([]index.Local, len(text)/64)
	var marks []prefixcache.Mark
	for _, at := range p.Marks() {
		marks = append(marks, prefixcache.Mark{At: at, Resume: at, Tokens: at / 4, Locals: at / 64, Tail: make([]uint32, 7)})
	}
	known = p.Resume
	c.Add(p, locals, marks, prefixcache.Mark{At: len(text), Resume: len(text), Tokens: len(text) / 4, Locals: len(locals)})
	return known
}

// TestPrefixKept: with a budget for a part of a trace, the share of known text is at least that of
// a plain LRU with the same entries, in which a prompt is limited in the same way.
func TestPrefixKept(t *testing.T) {
	for name, requests := range map[string]int{"conversation_512": 0, "agentic_64": 2000} {
		t.Run(name, func(t *testing.T) {
			trace := load(t, name, requests)
			var buf []byte
			asked := 0
			play := func(do func(text []byte) (known int)) float64 {
				known, all := 0, 0
				for i := range trace.Requests {
					buf = textOf(buf[:0], &trace.Requests[i], trace.BlockTokens)
					known += do(buf)
					all += len(buf)
				}
				asked = all
				return float64(known) / float64(all)
			}
			ours := func(bytes int64) (float64, prefixcache.Stats) {
				c, err := prefixcache.New(bytes)
				must(t, err)
				var p prefixcache.Prompt
				return play(func(text []byte) int { return askFor(c, &p, string(text)) }), c.Stats()
			}
			all, s := ours(1 << 40)
			t.Logf("%d bytes of text, %.4f known; %d entries in %d bytes, %.3f for a byte of distinct text",
				asked, all, s.Entries, s.Bytes, float64(s.Bytes)/float64(s.BytesEncoded))
			for _, percent := range []int64{5, 20} {
				budget := max(prefixcache.MinBytes, s.Bytes*percent/100)
				known, s := ours(budget)
				// A page of the cache has 933 cells, and these entries take four each.
				room := int((budget - 32<<10) / (64<<10 + 16) * 933 / 4)
				l := bench.NewPrefixLRU(room)
				lru := play(func(text []byte) int {
					at, whole := beginnings(nil, text)
					return l.Ask(len(text), at[:min(len(at), room/8)], whole)
				})
				t.Logf("%d %%: %d bytes, %.4f known, by the LRU %.4f", percent, s.Bytes, known, lru)
				const noise = 0.0005 // evictions are partly random
				if known < lru-noise {
					t.Errorf("%d %%: %.4f known, by a plain LRU %.4f", percent, known, lru)
				}
			}
		})
	}
}

// BenchmarkPrefix looks for 32 kB that are known whole, among 64 MB, hashing included.
func BenchmarkPrefix(b *testing.B) {
	const size, texts = 32 << 10, 2000
	text := func(buf []byte, i int) []byte {
		r := rand.NewPCG(uint64(i), 2)
		for buf = buf[:0]; len(buf) < size; {
			buf = binary.LittleEndian.AppendUint64(buf, r.Uint64())
		}
		return buf
	}
	var all [100][]byte
	for i := range all {
		all[i] = text(nil, i*(texts/len(all)))
	}
	run := func(b *testing.B, keeps func() any, find func(text []byte) bool) {
		before := liveHeap()
		kept := keeps()
		heap := liveHeap() - before
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if !find(all[i%len(all)]) {
				b.Fatal("not known")
			}
		}
		b.ReportMetric(heap/(size*texts), "heap-B/B")
		runtime.KeepAlive(kept)
	}
	b.Run("impl=kvindex", func(b *testing.B) {
		var c *prefixcache.Cache
		var p prefixcache.Prompt
		run(b, func() any {
			c, _ = prefixcache.New(64 << 20)
			for i := range texts {
				askFor(c, new(prefixcache.Prompt), string(text(nil, i)))
			}
			return c
		}, func(text []byte) bool { return c.Find(&p, nil, unsafe.String(&text[0], len(text))) })
	})
	b.Run("impl=freelru", func(b *testing.B) {
		var f *bench.PrefixFree
		var at []uint64
		var locals []index.Local
		run(b, func() any {
			f, _ = bench.NewPrefixFree(texts * (size/prefixcache.Grain + 1))
			for i := range texts {
				t := text(nil, i)
				at, whole := beginnings(nil, t)
				f.Add(size, at, whole, make([]index.Local, size/64))
			}
			return f
		}, func(text []byte) (ok bool) {
			var whole uint64
			at, whole = beginnings(at[:0], text)
			locals, ok = f.Find(locals[:0], at, whole)
			return ok
		})
	})
}
