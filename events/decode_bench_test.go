package events_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvindex/kvindex/events"
)

// The forms of today's engines.
var (
	vllmArray = shape{version: "2026-05", stored: 11, removed: 3, rank: true}
	vllmMap   = shape{version: "2026-07", rank: true, late: true}
	pageArray = shape{engine: "sglang", version: "2026-02", stored: 6, removed: 2, rank: true}
	pageMap   = shape{engine: "sglang", version: "2026-09", rank: true, salted: true}
)

// A load is a stream of messages of one shape. All of them are decoded before one is repeated:
// a repeated message trains the branch predictor and decodes three times as fast.
type load struct {
	name     string
	form     shape
	digest   int
	messages int
	blocks   int // in a message
	events   func(r *rand.Rand) []events.Event
}

var loads = []load{
	{"prefill/form=map", vllmMap, 0, 1024, 256, prefill},
	{"prefill/form=array", vllmArray, 0, 1024, 256, prefill},
	{"decode/form=map", vllmMap, 0, 2048, 64, singles(64, 0)},
	{"decode/form=array", vllmArray, 0, 2048, 64, singles(64, 0)},
	{"decode+evict/form=map", vllmMap, 0, 2048, 64, singles(32, 32)},
	{"sglang/form=array", pageArray, -1, 2048, 64, singles(64, 0)},
	{"sglang/form=map", pageMap, -1, 2048, 64, singles(64, 0)},
}

// prefill is 8 prompts of 32 blocks of 16 tokens.
func prefill(r *rand.Rand) (out []events.Event) {
	for range 8 {
		out = append(out, blocksOf(r, 32))
	}
	return out
}

// singles mixes so many Stored and Removed events of one block each.
func singles(stored, removed int) func(*rand.Rand) []events.Event {
	return func(r *rand.Rand) (out []events.Event) {
		for range stored {
			out = append(out, blocksOf(r, 1))
		}
		for range removed {
			out = append(out, events.Event{Kind: events.Removed, Hashes: randomFull(r, 1), Medium: "GPU"})
		}
		r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		return out
	}
}

func blocksOf(r *rand.Rand, blocks int) events.Event {
	e := events.Event{
		Kind: events.Stored, Hashes: randomFull(r, blocks), Parent: r.Uint64(), HasParent: true, BlockSize: 16, Medium: "GPU",
		HasExtra: true, GroupKind: "full_attention",
	}
	for range 16 * blocks {
		e.Tokens = append(e.Tokens, uint32(r.IntN(151_936)))
	}
	return e
}

func (l load) payloads(t testing.TB) [][]byte {
	r := rand.New(rand.NewPCG(uint64(l.blocks), 1))
	out := make([][]byte, l.messages)
	for i := range out {
		b := view{Time: float64(i) + 1.75e9, HasRank: true, Events: l.events(r)}
		out[i] = writer{shape: l.form, digest: l.digest}.batch(t, b)
	}
	return out
}

// TestLoads: the benchmark decodes as many blocks as it counts.
func TestLoads(t *testing.T) {
	for _, l := range loads {
		l.messages = 64
		var b events.Batch
		for _, p := range l.payloads(t) {
			must(t, events.Decode(p, &b))
			blocks := 0
			for _, e := range b.Events {
				blocks += len(e.Hashes)
			}
			if blocks != l.blocks {
				t.Fatalf("%s: %d blocks, want %d", l.name, blocks, l.blocks)
			}
		}
	}
}

// BenchmarkDecode compares Decode with msgpack/v5 decoding into an any, on new messages.
func BenchmarkDecode(b *testing.B) {
	for _, l := range loads {
		payloads := l.payloads(b)
		run := func(name string, decode func([]byte) error) {
			b.Run(l.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					must(b, decode(payloads[i%len(payloads)]))
					i++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*l.blocks), "ns/block")
			})
		}
		var batch events.Batch
		run("Decode", func(p []byte) error { return events.Decode(p, &batch) })
		reader := bytes.NewReader(nil)
		decoder := msgpack.NewDecoder(reader)
		run("msgpack-any", func(p []byte) error {
			reader.Reset(p)
			decoder.Reset(reader)
			_, err := decoder.DecodeInterface()
			return err
		})
	}
}
