package kvindex_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/vmihailenco/msgpack/v5"
)

func TestBadIngests(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 1)
	for name, err := range map[string]error{
		"pod":   ix.Ingest("", "m", fakeengine.Payload(1, 0)),
		"model": ix.Ingest("a", "", fakeengine.Payload(1, 0)),
		"rank":  ix.MarkLost("a", 0),
		"batch": ix.ApplyBatch("a", "m", nil),
		"note":  ix.Sink().StreamNote("", "m", "s", events.NoteOpened),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "kvindex: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := message("s", math.MaxUint64, 1, 0, p.Stored(0, 1))
	if _, err := ix.IngestMessage(m); err == nil || !strings.Contains(err.Error(), `stream "s"`) {
		t.Errorf("the end mark as a message: %v", err)
	}
	ingest(t, ix, "a", p.Stored(0, 1))
	if err := ix.MarkLost("a", 3); err == nil || !strings.Contains(err.Error(), "no rank 3") {
		t.Errorf("MarkLost of no rank: %v", err)
	}
	// Ranks and streams are bounded.
	var last error
	for rank := range kvindex.MaxRanks + 1 {
		last = ix.Ingest("r", "m", fakeengine.Payload(1, rank))
	}
	if last == nil || !strings.Contains(last.Error(), "rank 256") {
		t.Errorf("rank %d: %v", kvindex.MaxRanks, last)
	}
	for n := range kvindex.MaxStreams + 1 {
		m := message(fmt.Sprint(n), 0, 1, 0)
		m.Payload = nil // without a rank, as a stream with a rank would take the rank over
		_, last = ix.IngestMessage(m)
	}
	if last == nil || !strings.Contains(last.Error(), `stream "1024"`) {
		t.Errorf("stream %d: %v", kvindex.MaxStreams, last)
	}
}

func TestMalformedPayloads(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 3)
	good := fakeengine.Payload(1, 0, p.Stored(0, 2), p.Stored(2, 3))
	for n := range good {
		if err := ix.Ingest("a", "m", good[:n]); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), `pod "a"`) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]; s.MatchedBlocks != 0 {
		t.Errorf("something was applied: %+v", s)
	}
	if err := ix.Ingest("a", "m", good); err != nil || blocks(t, ix, "a", p) != 3 {
		t.Errorf("the next good batch: %v", err)
	}
	for _, size := range []int{-16, math.MaxInt32} {
		s := p.Stored(0, 1)
		s.BlockSize = size
		if err := ix.Ingest("a", "m", fakeengine.Payload(1, 0, s)); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), "block_size") {
			t.Errorf("block size %d: %v", size, err)
		}
	}
}

// BenchmarkApplyBatch applies decoded batches of 64 new blocks. At a million blocks it removes the
// pod and goes on.
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
			must(b, ix.RemovePod("a"))
		}
		e.Tokens[0]++
		for j := range e.Hashes {
			e.Hashes[j] = (i<<6 | uint64(j)) * 0x9E3779B97F4A7C15
		}
		must(b, ix.ApplyBatch("a", "m", &batch))
	}
	b.ReportMetric(float64(b.N)*64/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkIngestMessage ingests messages as engines send them: a prefill stores 8 prompts of 32
// blocks, a decode step one block for each of 64 requests. "fill" fills an index with 262,144
// blocks; emptying it is not timed. "steady" also ingests the removals of an engine of 131,072
// blocks: Mblocks/s counts the stored blocks alone. msgpack/v5 decodes the storing messages for
// comparison.
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
					must(b, ix.RemovePod("a"))
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

// BenchmarkIngestTiers ingests messages of 64 stores in the host memory, each of a chunk by hashes
// that the GPU has stored: of new chunks, of the same again, and of the same in a new generation.
func BenchmarkIngestTiers(b *testing.B) {
	const prompts, each = 128, 64
	r := rand.New(rand.NewPCG(1, 1))
	profile := withProfile(kvindex.Profile{MaxAge: [index.NumTiers]time.Duration{index.TierCPU: 2 * time.Second}})
	for name, step := range map[string]float64{"new": 10, "again": 0, "renewed": 1} {
		b.Run(name, func(b *testing.B) {
			ix := open(b, profile)
			var payloads [][]byte
			for range prompts {
				p := fakeengine.Prompt{Tokens: randomTokens(r, 512*16), Size: 16, Hash: r.Uint64() &^ 0xff}
				ingest(b, ix, "a", p.Stored(0, 512))
				for at := 0; at < 512; at += each {
					var evs []fakeengine.Event
					for i := at; i < at+each; i++ {
						evs = append(evs, inTier("CPU", p.Stored(i, i+1)))
					}
					payloads = append(payloads, fakeengine.Payload(1, 0, evs...))
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				at := i % len(payloads)
				if at == 0 && step > 0 {
					b.StopTimer()
					aged(b, ix, "a", 1+step*float64(i/len(payloads)))
					b.StartTimer()
				}
				must(b, ix.Ingest("a", "m", payloads[at]))
			}
			b.ReportMetric(float64(b.N)*each/b.Elapsed().Seconds()/1e6, "Mevents/s")
		})
	}
}

// engineCycle returns the messages of a cycle that ends as it began. Each stores evs events of so
// many blocks, which prolong prompts of 32 blocks; removals come before some.
func engineCycle(form fakeengine.Encoding, evs, blocks int) (stored, removed [][]byte) {
	const cycle = 1 << 18 // blocks
	r := rand.New(rand.NewPCG(1, 1))
	groups := make([][]fakeengine.Prompt, cycle/evs/32) // prompts that grow together
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
