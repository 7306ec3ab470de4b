package redisindex_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/redis/go-redis/v9"
)

var (
	background = context.Background()
	byUnit     = index.Variant{Unit: 16}
)

// prompt is a prompt of blocks of 16 tokens.
type prompt struct {
	root   index.Key
	locals []index.Local
	hashes []index.Hash
	keys   []index.Key
}

func newPrompt(r *rand.Rand, blocks int) *prompt {
	p := &prompt{root: index.Key(r.Uint64())}
	return p.grow(r, blocks)
}

// grow returns a prompt that prolongs p.
func (p *prompt) grow(r *rand.Rand, blocks int) *prompt {
	n := len(p.keys)
	long := &prompt{p.root, p.locals[:n:n], p.hashes[:n:n], p.keys[:n:n]}
	k := p.root
	if n > 0 {
		k = p.keys[n-1]
	}
	for range blocks {
		l := index.Local(r.Uint64())
		k = index.Chain(k, l)
		long.locals, long.hashes, long.keys = append(long.locals, l), append(long.hashes, index.Hash(r.Uint64())), append(long.keys, k)
	}
	return long
}

// store stores the blocks from one on.
func (p *prompt) store(from int) index.Change {
	c := index.Change{
		Op: index.OpStore, Copies: index.CopiesExact, Hashes: p.hashes[from:], Root: p.root, Variant: byUnit,
		BlockSize: 16, Locals: p.locals[from:],
	}
	if from > 0 {
		c.HasParent, c.Parent = true, p.hashes[from-1]
	}
	return c
}

func podNamed(n int) index.Source {
	return index.Source{Pod: "pod-" + strconv.Itoa(n), Model: "llama-3"}
}

func storeAll(tb testing.TB, ix index.Index, src index.Source, p *prompt) {
	tb.Helper()
	if _, err := ix.Apply(background, src, index.Cursor{}, []index.Change{p.store(0)}); err != nil {
		tb.Fatal(err)
	}
}

func benchClient(b *testing.B) *redis.Client {
	return redistest.Standalone(b).Client(b)
}

// BenchmarkMatch scores a prompt, compared with fetching as many keys of two bytes, and with a hash
// for each block that has a field for each pod and tier.
func BenchmarkMatch(b *testing.B) {
	client := benchClient(b)
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []struct{ blocks, holders, pods int }{{512, 16, 16}, {512, 4, 1000}, {512, 256, 1000}, {14000, 16, 16}, {512, 0, 16}} {
		name := fmt.Sprintf("%d blocks of %d pods of %d", shape.blocks, shape.holders, shape.pods)
		writer := open(b, client, redisindex.Config{})
		const prompts = 16
		var all []*prompt
		for range prompts {
			all = append(all, newPrompt(r, shape.blocks))
		}
		short := newPrompt(r, 40)
		for n := range shape.pods {
			storeAll(b, writer, podNamed(n), short)
		}
		for i, p := range all {
			for n := range shape.holders {
				storeAll(b, writer, podNamed((n*61+i)%shape.pods), p)
			}
		}
		var names [][]string
		for i, p := range all {
			pipe := client.Pipeline()
			var of []string
			for j := range p.keys {
				of = append(of, fmt.Sprintf("plain:%d:%016x", i, uint64(p.keys[j])))
				pipe.Set(background, of[j], "xx", 0)
				for n := range shape.holders {
					pipe.HSet(background, "hash:"+of[j], fmt.Sprintf("pod-%d@gpu", n), 1)
				}
			}
			if _, err := pipe.Exec(background); err != nil {
				b.Fatal(err)
			}
			names = append(names, of)
		}
		b.Run(name+"/mget", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				must(b, client.MGet(background, names[i%prompts]...).Err())
			}
		})
		if shape.blocks == 512 && shape.holders > 0 {
			b.Run(name+"/hashes", func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					runs := hashesOf(b, client, names[i%prompts])
					if len(runs) != shape.holders {
						b.Fatal(len(runs))
					}
				}
			})
		}
		reader := open(b, client, redisindex.Config{Prefix: writer.Prefix()})
		b.Run(name+"/match", func(b *testing.B) {
			candidates := index.NewCandidates("llama-3", nil)
			var m index.Matches
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := all[i%prompts]
				q := index.Query{Candidates: candidates, Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
				must(b, reader.Match(background, &q, &m))
				if len(m.Rows) != shape.holders || len(m.Rows) > 0 && int(m.Rows[0].Run) != shape.blocks {
					b.Fatal(len(m.Rows))
				}
			}
		})
		writer.Close()
		reader.Close()
		client.FlushAll(background)
	}
}

// hashesOf scores by a hash for each block, and returns the run of each pod.
func hashesOf(b *testing.B, client *redis.Client, names []string) map[string]int {
	pipe := client.Pipeline()
	replies := make([]*redis.StringSliceCmd, len(names))
	for i, name := range names {
		replies[i] = pipe.HKeys(background, "hash:"+name)
	}
	if _, err := pipe.Exec(background); err != nil {
		b.Fatal(err)
	}
	runs := make(map[string]int)
	for i, reply := range replies {
		for _, field := range reply.Val() {
			if pod, _, _ := strings.Cut(field, "@"); runs[pod] == i {
				runs[pod]++
			}
		}
	}
	return runs
}

// BenchmarkApply stores new blocks: a prompt of 512 with each Apply, and one more block of a prompt
// of each of 64 pods.
func BenchmarkApply(b *testing.B) {
	b.Run("prefill", func(b *testing.B) {
		ix := open(b, benchClient(b), redisindex.Config{})
		r := rand.New(rand.NewPCG(3, 4))
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			b.StopTimer()
			p := newPrompt(r, 512)
			b.StartTimer()
			storeAll(b, ix, podNamed(n%16), p)
			n++
		}
		b.ReportMetric(float64(512*n)/b.Elapsed().Seconds(), "blocks/s")
	})
	b.Run("decode", func(b *testing.B) {
		ix := open(b, benchClient(b), redisindex.Config{})
		var next atomic.Int64
		b.SetParallelism(64)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			n := next.Add(1)
			r := rand.New(rand.NewPCG(5, uint64(n)))
			p := newPrompt(r, 4096)
			at := 0
			for pb.Next() {
				if at == len(p.keys) {
					p, at = newPrompt(r, 4096), 0
				}
				c := (&prompt{p.root, p.locals[:at+1], p.hashes[:at+1], p.keys[:at+1]}).store(at)
				if _, err := ix.Apply(background, podNamed(int(n)), index.Cursor{}, []index.Change{c}); err != nil {
					b.Error(err)
					return
				}
				at++
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
	})
}

// BenchmarkHeap measures a writer's memory for each block, beside its Memory.
func BenchmarkHeap(b *testing.B) {
	live := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for _, length := range []int{512, 20} {
		b.Run(fmt.Sprintf("prompts of %d blocks", length), func(b *testing.B) {
			for b.Loop() {
				client := benchClient(b)
				r := rand.New(rand.NewPCG(9, 1))
				var prompts []*prompt
				for range 50_000 / length {
					prompts = append(prompts, newPrompt(r, length))
				}
				blocks := float64(len(prompts) * length)
				before := live()
				ix := open(b, client, redisindex.Config{})
				rest := func(from, to int) float64 {
					for n := from; n < to; n++ {
						for _, p := range prompts {
							storeAll(b, ix, podNamed(n), p)
						}
					}
					return live() - before - float64(ix.MemoryUsage().Total)
				}
				b.ReportMetric(rest(0, 1)/blocks, "B/block-of-1")
				b.ReportMetric(rest(1, 16)/blocks, "B/block-of-16")
				runtime.KeepAlive(prompts)
				ix.Close()
			}
		})
	}
}

// BenchmarkServer measures a server's memory for each block, and for each further holder.
func BenchmarkServer(b *testing.B) {
	for b.Loop() {
		client := benchClient(b)
		used := func() int {
			info := client.Info(background, "memory").Val()
			_, rest, _ := strings.Cut(info, "used_memory:")
			line, _, _ := strings.Cut(rest, "\r")
			n, err := strconv.Atoi(line)
			must(b, err)
			return n
		}
		ix := open(b, client, redisindex.Config{})
		r := rand.New(rand.NewPCG(6, 7))
		var prompts []*prompt
		for range 200 {
			prompts = append(prompts, newPrompt(r, 512))
		}
		const blocks = 200 * 512
		store := func(from, to int) {
			for n := from; n < to; n++ {
				for _, p := range prompts {
					storeAll(b, ix, podNamed(n), p)
				}
			}
		}
		store(0, 1)
		one := float64(used())
		store(1, 16)
		sixteen := float64(used())
		store(16, 32)
		more := float64(used())
		client.FlushAll(background)
		bare := float64(used())
		b.ReportMetric((sixteen-bare)/blocks, "B/block-of-16")
		b.ReportMetric((one-bare)/blocks, "B/block-of-1")
		b.ReportMetric((more-sixteen)/16/blocks*32, "B/holder-of-32")
	}
}
