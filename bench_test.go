package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// BenchmarkScoreRequest scores 512 blocks of token ids that every pod holds;
// the first token of the last block is new each time.
func BenchmarkScoreRequest(b *testing.B) {
	for _, pods := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("blocks=512/pods=%d", pods), func(b *testing.B) {
			ix := open(b)
			p := fakeengine.NewPrompt(1, 16, 512)
			for i := range pods {
				ingest(b, ix, fmt.Sprint("pod", i), p.Stored(0, 511))
			}
			q := kvindex.Request{Model: "m", Tokens: p.Tokens}
			var a kvindex.Answer
			b.ReportAllocs()
			for b.Loop() {
				q.Tokens[511*16]++
				if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].MatchedBlocks != 511 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScoreBest is BenchmarkScoreRequest for the best 8 of 256 pods that
// were resolved before, beside the hashing alone.
func BenchmarkScoreBest(b *testing.B) {
	ix := open(b)
	p := fakeengine.NewPrompt(1, 16, 512)
	var pods []string
	for i := range 256 {
		pods = append(pods, fmt.Sprint("pod", i))
		ingest(b, ix, pods[i], p.Stored(0, 511))
	}
	b.Run("hashing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Tokens[511*16]++
			kvindex.HashPrompt(ix, "m", p.Tokens)
		}
	})
	b.Run("best=8/pods=256", func(b *testing.B) {
		q := kvindex.Request{Candidates: ix.Candidates("m", pods), Tokens: p.Tokens, Top: 8}
		var a kvindex.Answer
		b.ReportAllocs()
		for b.Loop() {
			p.Tokens[511*16]++
			if err := ix.ScoreRequest(ctx, &q, &a); err != nil || len(a.Pods) != 8 || a.Pods[7].MatchedBlocks != 511 {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkApplyBatch takes decoded batches of 64 fresh blocks, up to a million
// blocks; then the pod is removed and all begins again.
func BenchmarkApplyBatch(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	ix := open(b)
	batch := events.Batch{Events: []events.Event{{
		Kind: events.Stored, Hashes: make([]uint64, 64), Tokens: randomTokens(r, 64*16), BlockSize: 16, HasExtra: true,
	}}}
	e := &batch.Events[0]
	b.ReportAllocs()
	for i := uint64(1); b.Loop(); i++ {
		if i%(1_000_000/64) == 0 {
			if err := ix.RemovePod("a"); err != nil {
				b.Fatal(err)
			}
		}
		e.Tokens[0]++
		for j := range e.Hashes {
			e.Hashes[j] = (i<<6 | uint64(j)) * 0x9E3779B97F4A7C15
		}
		if err := ix.ApplyBatch("a", "m", &batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*64/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkIngestMessage takes messages as they come from the wire: a prefill
// announces 8 prompts of 32 blocks, a decode step one block of each of 64
// requests. "fill" fills an empty index with 262,144 blocks, which is then
// emptied untimed. "steady" removes as well what an engine of 131,072
// blocks would evict for them, by messages of their own: Mblocks/s are those
// stored, and as many are removed in the same time. msgpack/v5 decodes the
// messages that store, beside.
func BenchmarkIngestMessage(b *testing.B) {
	for _, shape := range []struct {
		name           string
		events, blocks int
	}{{"prefill", 8, 32}, {"decode", 64, 1}} {
		for _, form := range []struct {
			name string
			fakeengine.Form
		}{{"maps", fakeengine.FormMaps}, {"arrays", fakeengine.FormArrays12}} {
			stored, removed := engineCycle(fakeengine.Encoding{Form: form.Form}, shape.events, shape.blocks)
			run := func(name string, step func(b *testing.B, i int)) {
				b.Run(shape.name+"/"+form.name+"/"+name, func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						step(b, i%len(stored))
					}
					b.ReportMetric(float64(b.N)*float64(shape.events*shape.blocks)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
				})
			}
			ix := open(b)
			m := kvindex.Message{Pod: "a", Model: "m", Stream: "s"}
			ingest := func(payload []byte) {
				m.Payload = payload
				if _, err := ix.IngestMessage(m); err != nil {
					b.Fatal(err)
				}
				m.Seq++
			}
			run("fill", func(b *testing.B, i int) {
				if i == 0 {
					b.StopTimer()
					if err := ix.RemovePod("a"); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				ingest(stored[i])
			})
			steady := func(_ *testing.B, i int) {
				if removed[i] != nil {
					ingest(removed[i])
				}
				ingest(stored[i])
			}
			for i := range stored {
				steady(b, i)
			}
			run("steady", steady)
			run("msgpack-v5-decoding-only", func(b *testing.B, i int) {
				var batch []any
				if err := msgpack.Unmarshal(stored[i], &batch); err != nil || len(batch) != 3 {
					b.Fatal(err)
				}
			})
		}
	}
}

// engineCycle is what an engine publishes in a cycle after which it holds again
// what it held: messages of that many events of that many blocks, which prolong
// prompts of 32 blocks, and before some of them what is evicted.
func engineCycle(form fakeengine.Encoding, evs, blocks int) (stored, removed [][]byte) {
	const cycle = 1 << 18 // blocks
	r := rand.New(rand.NewPCG(1, 1))
	groups := make([][]fakeengine.Prompt, cycle/evs/32) // of prompts that grow together
	for i := range groups {
		for range evs {
			groups[i] = append(groups[i], fakeengine.Prompt{Tokens: randomTokens(r, 32*16), Size: 16, Hash: r.Uint64() &^ 0xff})
		}
	}
	for i := range groups {
		for at := 0; at < 32; at += blocks {
			batch := fakeengine.Batch{Time: 1}
			for _, p := range groups[i] {
				s := p.Stored(at, at+blocks)
				s.Kind = fakeengine.KindFullAttention
				batch.Events = append(batch.Events, s)
			}
			stored, removed = append(stored, form.Append(nil, &batch)), append(removed, nil)
		}
		evicted := fakeengine.Batch{Time: 1}
		for _, p := range groups[(i+len(groups)/2)%len(groups)] {
			all := make([]int, 32)
			for j := range all {
				all[j] = 31 - j
			}
			evicted.Events = append(evicted.Events, p.Removed(all...))
		}
		removed[len(removed)-32/blocks] = form.Append(nil, &evicted)
	}
	return stored, removed
}

// BenchmarkIngest takes fresh payloads of 8 blocks: prompts of 64 blocks, one
// after the other, until the pod is removed and all begins again.
func BenchmarkIngest(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const kept = 4096
	ix := open(b)
	var payloads [][]byte
	for i := range kept {
		p := fakeengine.Prompt{Tokens: randomTokens(r, 64*16), Size: 16, Hash: uint64(i+1) << 32}
		for from := 0; from < 64; from += 8 {
			payloads = append(payloads, fakeengine.Payload(1, 0, p.Stored(from, from+8)))
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i == len(payloads) {
			b.StopTimer()
			if err := ix.RemovePod("a"); err != nil {
				b.Fatal(err)
			}
			i = 0
			b.StartTimer()
		}
		if err := ix.Ingest("a", "m", payloads[i]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/8, "ns/block")
}

// BenchmarkRejectMalformed reads 64 blocks before it finds the fault.
func BenchmarkRejectMalformed(b *testing.B) {
	ix := open(b)
	bad := fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 64).Stored(0, 64), fakeengine.Cleared{})
	bad = bad[:len(bad)-1]
	b.ReportAllocs()
	for b.Loop() {
		if err := ix.Ingest("a", "m", bad); err == nil {
			b.Fatal("no error")
		}
	}
	b.SetBytes(int64(len(bad)))
}

var _ events.Sink = (*kvindex.Indexer)(nil)

// BenchmarkHeap reports the live heap for each held block, all included.
func BenchmarkHeap(b *testing.B) {
	const prompts, size = 400, 512
	for b.Loop() {
		r := rand.New(rand.NewPCG(1, 1))
		ix := open(b)
		before := liveHeap()
		for i := range prompts {
			p := fakeengine.Prompt{Tokens: randomTokens(r, size*16), Size: 16, Hash: uint64(i+1) << 32}
			ingest(b, ix, "a", p.Stored(0, size))
		}
		b.ReportMetric(float64(liveHeap()-before)/(prompts*size), "B/block")
		runtime.KeepAlive(ix)
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
