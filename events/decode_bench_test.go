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

// A load is a stream of messages of one shape. Each is decoded once before the
// first is decoded again: a message that is repeated trains the processor's
// branch predictor, and is three times as fast.
type load struct {
	name     string
	form     shape
	digest   int
	messages int
	blocks   int // a message
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

// singles are that many blocks stored and removed, one an event, mixed.
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

// TestLoads: what the benchmarks decode is what they say, in no allocations.
func TestLoads(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			l.messages = 64
			payloads := l.payloads(t)
			var b events.Batch
			var structs structs
			for _, p := range payloads {
				must(t, events.Decode(p, &b))
				blocks := 0
				for _, e := range b.Events {
					blocks += len(e.Hashes)
				}
				if blocks != l.blocks {
					t.Fatalf("%d blocks, want %d", blocks, l.blocks)
				}
				if err := structs.decode(p); err != nil || len(structs.events) != len(b.Events) || structs.blocks != blocks {
					t.Fatalf("structs: %d events, %d blocks: %v", len(structs.events), structs.blocks, err)
				}
			}
			i := 0
			if n := testing.AllocsPerRun(len(payloads), func() {
				if events.Decode(payloads[i%len(payloads)], &b) != nil {
					t.Fail()
				}
				i++
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// BenchmarkDecode decodes ever new messages: with Decode, and with msgpack/v5
// token by token into structs and as a whole into an any.
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
		var structs structs
		run("msgpack-structs", structs.decode)
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

// structs are what a program with msgpack/v5 would decode batches into. It
// reuses all memory.
type structs struct {
	decoder *msgpack.Decoder
	reader  *bytes.Reader
	time    float64
	events  []structEvent
	blocks  int
}

type structEvent struct {
	Kind      string
	Hashes    []uint64
	Parent    uint64
	Tokens    []uint32
	BlockSize int
	LoraID    int
	Medium    string
	LoraName  string
	GroupKind string
}

// structFields are the fields of the array forms.
var structFields = []string{
	"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
}

func (s *structs) decode(p []byte) error {
	if s.decoder == nil {
		s.reader = bytes.NewReader(nil)
		s.decoder = msgpack.NewDecoder(s.reader)
	}
	s.reader.Reset(p)
	s.decoder.Reset(s.reader)
	s.events, s.blocks = s.events[:0], 0
	if _, err := s.decoder.DecodeArrayLen(); err != nil {
		return err
	}
	var err error
	if s.time, err = s.decoder.DecodeFloat64(); err != nil {
		return err
	}
	n, err := s.decoder.DecodeArrayLen()
	for range n {
		if err = s.event(); err != nil {
			return err
		}
	}
	return err
}

func (s *structs) event() error {
	if len(s.events) < cap(s.events) {
		s.events = s.events[:len(s.events)+1]
	} else {
		s.events = append(s.events, structEvent{})
	}
	e := &s.events[len(s.events)-1]
	*e = structEvent{Hashes: e.Hashes[:0], Tokens: e.Tokens[:0]}
	c, err := s.decoder.PeekCode()
	if err != nil {
		return err
	}
	isMap := c&0xf0 == 0x80
	var n int
	if isMap {
		n, err = s.decoder.DecodeMapLen()
	} else {
		n, err = s.decoder.DecodeArrayLen()
	}
	for i := 0; i < n && err == nil; i++ {
		key := "-"
		if isMap {
			key, err = s.decoder.DecodeString()
		} else if i < len(structFields) && (i < 2 || e.Kind == "BlockStored") {
			key = structFields[i]
		}
		if err == nil {
			err = s.field(e, key)
		}
	}
	s.blocks += len(e.Hashes)
	return err
}

func (s *structs) field(e *structEvent, key string) (err error) {
	d := s.decoder
	var n int
	switch key {
	case "type":
		e.Kind, err = d.DecodeString()
	case "block_hashes":
		n, err = d.DecodeArrayLen()
		for i := 0; i < n && err == nil; i++ {
			var h uint64
			h, err = d.DecodeUint64()
			e.Hashes = append(e.Hashes, h)
		}
	case "parent_block_hash":
		e.Parent, err = d.DecodeUint64()
	case "token_ids":
		n, err = d.DecodeArrayLen()
		for i := 0; i < n && err == nil; i++ {
			var token uint32
			token, err = d.DecodeUint32()
			e.Tokens = append(e.Tokens, token)
		}
	case "block_size":
		e.BlockSize, err = d.DecodeInt()
	case "lora_id":
		e.LoraID, err = d.DecodeInt()
	case "medium":
		e.Medium, err = d.DecodeString()
	case "lora_name":
		e.LoraName, err = d.DecodeString()
	case "kv_cache_spec_kind":
		e.GroupKind, err = d.DecodeString()
	default:
		err = d.Skip()
	}
	return err
}
