package fakeengine

import (
	"encoding/binary"

	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/msgpack"
)

// Form is the shape that the engine's events have, by the time of its release.
//
//	position  BlockStored field             FormMaps  FormArrays12  FormArrays7
//	1         block_hashes                  always    yes           yes
//	2         parent_block_hash             always    yes           yes
//	3         token_ids                     always    yes           yes
//	4         block_size                    always    yes           yes
//	5         lora_id                       always    yes           yes
//	6         medium                        always    yes           yes
//	7         lora_name                     always    yes
//	8         extra_keys                    if set    yes
//	9         group_idx                     always    yes
//	10        kv_cache_spec_kind            if set    yes
//	11        kv_cache_spec_sliding_window  if set    yes
//
// Position 0 is the tag. BlockRemoved has block_hashes, medium and, but for
// FormArrays7, group_idx; AllBlocksCleared has nothing. A field that is not
// set is nil in an array and left out of a map where the table says so
// (vLLM distributed/kv_events.py, msgspec structs with omit_defaults).
type Form uint8

// The forms of vLLM's events.
const (
	FormMaps     Form = iota // since June 2026; checked against 017e9f4448b7 (2026-08-17)
	FormArrays12             // the last arrays; checked against 59401ac9f18c (2026-06-09)
	FormArrays7              // without adapter names and extra keys; checked against 00b31a36a2d0 (2025-11-02)
)

// Encoding is how an engine writes its batches. The zero value is that of an
// engine of today with nothing configured: maps, and hashes as integers.
type Encoding struct {
	Form Form
	// ByteHashes writes hashes as the whole digest instead of the integer
	// Digest.Int (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0).
	ByteHashes bool
	// SignedHashes writes Digest.Int as a signed integer, as SGLang does.
	SignedHashes bool
}

// Batch is what one message of an engine carries.
type Batch struct {
	Time   float64 // the engine's clock in seconds
	Events []Event
	Rank   int // data-parallel rank
}

// Event is a *Stored, a *Removed or a Cleared.
type Event interface {
	appendMap(b []byte, e Encoding) []byte
	appendArray(b []byte, e Encoding) []byte
}

// The values of fields that the engine fills in for its one group of full
// attention on the GPU.
const (
	MediumGPU         = "GPU"
	KindFullAttention = "full_attention"
)

// Stored is a BlockStored event: blocks have entered the cache.
type Stored struct {
	Hashes    []enginehash.Digest
	Parent    *enginehash.Digest // of the first block; nil at the root
	Tokens    []uint32           // of all blocks, one after the other
	BlockSize int
	Adapter   string // lora_name; "" is nil
	AdapterID int    // lora_id; 0 is nil
	Medium    string // "" is nil
	// Extra are the extra keys, one entry for each hash, nil for a block
	// without any. A nil Extra is a field that is not set.
	Extra  [][]enginehash.Extra
	Group  int
	Kind   string // kv_cache_spec_kind; "" is not set
	Window int    // kv_cache_spec_sliding_window in tokens; 0 is not set
}

// Removed is a BlockRemoved event: one copy of each block has left the cache.
type Removed struct {
	Hashes []enginehash.Digest
	Medium string // "" is nil
	Group  int
}

// Cleared is an AllBlocksCleared event: the cache was emptied.
type Cleared struct{}

// IntHash is a hash for a batch that is written by hand: the digest whose
// integer form is n.
func IntHash(n uint64) enginehash.Digest {
	var d enginehash.Digest
	binary.BigEndian.PutUint64(d[len(d)-8:], n)
	return d
}

// Append appends the payload of a batch to b, byte for byte as the engine's
// own encoder writes it.
func (e Encoding) Append(b []byte, batch *Batch) []byte {
	b = msgpack.AppendFloat(msgpack.AppendArrayLen(b, 3), batch.Time)
	b = msgpack.AppendArrayLen(b, len(batch.Events))
	for _, ev := range batch.Events {
		if e.Form == FormMaps {
			b = ev.appendMap(b, e)
		} else {
			b = ev.appendArray(b, e)
		}
	}
	return msgpack.AppendInt(b, int64(batch.Rank))
}

func (s *Stored) appendMap(b []byte, e Encoding) []byte {
	fields := 9
	if s.Extra != nil {
		fields++
	}
	if s.Kind != "" {
		fields++
	}
	if s.Window != 0 {
		fields++
	}
	b = msgpack.AppendMapLen(b, fields)
	b = msgpack.AppendString(msgpack.AppendString(b, "type"), "BlockStored")
	b = e.appendHashes(msgpack.AppendString(b, "block_hashes"), s.Hashes)
	b = s.appendParent(msgpack.AppendString(b, "parent_block_hash"), e)
	b = appendTokens(msgpack.AppendString(b, "token_ids"), s.Tokens)
	b = msgpack.AppendInt(msgpack.AppendString(b, "block_size"), int64(s.BlockSize))
	b = msgpack.AppendIntOrNil(msgpack.AppendString(b, "lora_id"), s.AdapterID)
	b = msgpack.AppendStringOrNil(msgpack.AppendString(b, "medium"), s.Medium)
	b = msgpack.AppendStringOrNil(msgpack.AppendString(b, "lora_name"), s.Adapter)
	if s.Extra != nil {
		b = s.appendExtra(msgpack.AppendString(b, "extra_keys"))
	}
	b = msgpack.AppendInt(msgpack.AppendString(b, "group_idx"), int64(s.Group))
	if s.Kind != "" {
		b = msgpack.AppendString(msgpack.AppendString(b, "kv_cache_spec_kind"), s.Kind)
	}
	if s.Window != 0 {
		b = msgpack.AppendInt(msgpack.AppendString(b, "kv_cache_spec_sliding_window"), int64(s.Window))
	}
	return b
}

func (s *Stored) appendArray(b []byte, e Encoding) []byte {
	fields := 12
	if e.Form == FormArrays7 {
		fields = 7
	}
	b = msgpack.AppendString(msgpack.AppendArrayLen(b, fields), "BlockStored")
	b = e.appendHashes(b, s.Hashes)
	b = s.appendParent(b, e)
	b = appendTokens(b, s.Tokens)
	b = msgpack.AppendInt(b, int64(s.BlockSize))
	b = msgpack.AppendIntOrNil(b, s.AdapterID)
	b = msgpack.AppendStringOrNil(b, s.Medium)
	if e.Form == FormArrays7 {
		return b
	}
	b = msgpack.AppendStringOrNil(b, s.Adapter)
	b = s.appendExtra(b)
	b = msgpack.AppendInt(b, int64(s.Group))
	b = msgpack.AppendStringOrNil(b, s.Kind)
	return msgpack.AppendIntOrNil(b, s.Window)
}

func (s *Stored) appendParent(b []byte, e Encoding) []byte {
	if s.Parent == nil {
		return append(b, msgpack.Nil)
	}
	return e.appendHash(b, *s.Parent)
}

func (s *Stored) appendExtra(b []byte) []byte {
	if s.Extra == nil {
		return append(b, msgpack.Nil)
	}
	b = msgpack.AppendArrayLen(b, len(s.Extra))
	for _, keys := range s.Extra {
		if len(keys) == 0 {
			b = append(b, msgpack.Nil)
			continue
		}
		b = msgpack.AppendArrayLen(b, len(keys))
		for _, k := range keys {
			b = appendExtraKey(b, k)
		}
	}
	return b
}

func appendExtraKey(b []byte, k enginehash.Extra) []byte {
	switch k.Kind {
	case enginehash.ExtraInt:
		return msgpack.AppendInt(b, k.Int)
	case enginehash.ExtraMedia:
		return msgpack.AppendInt(msgpack.AppendString(msgpack.AppendArrayLen(b, 2), k.Text), k.Int)
	case enginehash.ExtraBytes:
		return msgpack.AppendBytes(b, []byte(k.Text))
	}
	return msgpack.AppendString(b, k.Text)
}

func (r *Removed) appendMap(b []byte, e Encoding) []byte {
	b = msgpack.AppendMapLen(b, 4)
	b = msgpack.AppendString(msgpack.AppendString(b, "type"), "BlockRemoved")
	b = e.appendHashes(msgpack.AppendString(b, "block_hashes"), r.Hashes)
	b = msgpack.AppendStringOrNil(msgpack.AppendString(b, "medium"), r.Medium)
	return msgpack.AppendInt(msgpack.AppendString(b, "group_idx"), int64(r.Group))
}

func (r *Removed) appendArray(b []byte, e Encoding) []byte {
	fields := 4
	if e.Form == FormArrays7 {
		fields = 3
	}
	b = msgpack.AppendString(msgpack.AppendArrayLen(b, fields), "BlockRemoved")
	b = e.appendHashes(b, r.Hashes)
	b = msgpack.AppendStringOrNil(b, r.Medium)
	if e.Form == FormArrays7 {
		return b
	}
	return msgpack.AppendInt(b, int64(r.Group))
}

func (Cleared) appendMap(b []byte, _ Encoding) []byte {
	return msgpack.AppendString(msgpack.AppendString(msgpack.AppendMapLen(b, 1), "type"), "AllBlocksCleared")
}

func (Cleared) appendArray(b []byte, _ Encoding) []byte {
	return msgpack.AppendString(msgpack.AppendArrayLen(b, 1), "AllBlocksCleared")
}

func (e Encoding) appendHashes(b []byte, hashes []enginehash.Digest) []byte {
	b = msgpack.AppendArrayLen(b, len(hashes))
	for _, h := range hashes {
		b = e.appendHash(b, h)
	}
	return b
}

func (e Encoding) appendHash(b []byte, h enginehash.Digest) []byte {
	switch {
	case e.ByteHashes:
		return msgpack.AppendBytes(b, h[:])
	case e.SignedHashes:
		return msgpack.AppendInt(b, int64(h.Int()))
	}
	return msgpack.AppendUint(b, h.Int())
}

func appendTokens(b []byte, tokens []uint32) []byte {
	b = msgpack.AppendArrayLen(b, len(tokens))
	for _, t := range tokens {
		b = msgpack.AppendUint(b, uint64(t))
	}
	return b
}
