package events_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/kvindex/kvindex/events"
)

// A peer decodes the payloads that Decode has accepted, by the same tables but with another
// MessagePack decoder and without limits. It trusts its input.
type peer struct {
	*msgpack.Decoder
	view
	aside bool
}

func newPeer(p []byte) *peer { return &peer{Decoder: msgpack.NewDecoder(bytes.NewReader(p))} }

// peerKeys are the fields of the array forms.
var peerKeys = map[string][]string{
	"BlockStored": {
		"", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	},
	"BlockRemoved":     {"", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"", "medium"},
}

var peerKinds = map[string]events.Kind{"BlockStored": events.Stored, "BlockRemoved": events.Removed, "AllBlocksCleared": events.Cleared}

// layersOf is the kind of an event whose kind on the wire ends in WithComponentType.
func layersOf(kind string) string {
	if kind, ok := strings.CutSuffix(kind, "WithComponentType"); ok && (kind == "BlockStored" || kind == "BlockRemoved") {
		return kind
	}
	return kind
}

func isLayers(name string) bool { return name == "full" || name == "swa" || name == "mamba" }

// orPanic panics with err; read recovers and returns it.
func orPanic[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (p *peer) code() byte { return orPanic(p.PeekCode()) }

func (p *peer) skip() { orPanic(p, p.Skip()) }

func (p *peer) is(codes ...byte) bool { return slices.Contains(codes, p.code()) }

func (p *peer) isArray() bool {
	return msgpcode.IsFixedArray(p.code()) || p.is(msgpcode.Array16, msgpcode.Array32)
}

func (p *peer) isMap() bool {
	return msgpcode.IsFixedMap(p.code()) || p.is(msgpcode.Map16, msgpcode.Map32)
}

func (p *peer) isString() bool { return msgpcode.IsString(p.code()) }

func (p *peer) length() int { return orPanic(p.DecodeArrayLen()) }

func (p *peer) text() string { return orPanic(p.DecodeString()) }

func (p *peer) read() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("peer: %v", v)
		}
	}()
	if p.isMap() {
		for range orPanic(p.DecodeMapLen()) {
			p.batchField(p.text())
		}
		return nil
	}
	n := p.length()
	for _, key := range append([]string{"ts", "events", "data_parallel_rank"}, slices.Repeat([]string{""}, n)...)[:n] {
		p.batchField(key)
	}
	return nil
}

func (p *peer) batchField(key string) {
	switch key {
	case "ts":
		if p.code() == msgpcode.Uint64 {
			p.Time = float64(orPanic(p.DecodeUint64()))
		} else if t := orPanic(p.DecodeFloat64()); !math.IsNaN(t) && !math.IsInf(t, 0) {
			p.Time = t
		}
	case "events":
		for range p.length() {
			p.event()
		}
	case "data_parallel_rank":
		p.HasRank = p.code() != msgpcode.Nil
		p.Rank = orPanic(p.DecodeInt())
	default:
		p.skip()
	}
}

func (p *peer) event() {
	raw := orPanic(p.DecodeRaw())
	q := newPeer(raw)
	var keys []string
	var kind string
	var n int
	if q.isArray() {
		n = q.length()
		kind = layersOf(q.text())
		keys = append(slices.Clone(peerKeys[kind]), slices.Repeat([]string{"-"}, n)...)[:n]
	} else {
		n = orPanic(q.DecodeMapLen())
		for range n {
			if q.text() == "type" {
				kind = layersOf(q.text())
				break
			}
			q.skip()
		}
		q.Reset(bytes.NewReader(raw))
		orPanic(q.DecodeMapLen())
	}
	e := events.Event{Kind: peerKinds[kind]}
	loraID := ""
	for i := range n {
		if keys == nil {
			q.field(q.text(), true, &e, &loraID)
		} else if i > 0 {
			q.field(keys[i], false, &e, &loraID)
		}
	}
	if e.Kind == 0 || q.aside {
		p.Unknown++
		return
	}
	if e.Adapter == "" {
		e.Adapter = loraID
	}
	if len(e.Remaining) != len(e.Hashes) {
		e.Remaining = nil
	}
	p.Events = append(p.Events, e)
}

func (p *peer) field(key string, isMap bool, e *events.Event, loraID *string) {
	stored, removed := e.Kind == events.Stored, e.Kind == events.Removed
	switch {
	case key == "block_hashes" && (stored || removed):
		for range p.length() {
			e.Hashes = append(e.Hashes, p.hash())
		}
	case key == "group_idx" && removed && !isMap && p.isString():
		p.field("component_type", false, e, nil)
	case key == "medium" && e.Kind == events.Cleared && !p.isString():
		p.skip()
	case key == "medium" && e.Kind != 0:
		e.Medium = p.text()
	case key == "group_idx" && (stored || removed):
		e.HasGroup = p.code() != msgpcode.Nil
		e.Group = orPanic(p.DecodeInt())
	case key == "locality" && (stored || removed):
		e.Locality = p.text()
	case key == "ownership" && (stored || removed):
		e.Ownership = p.text()
	case key == "component_type" && (stored || removed):
		name := p.text()
		p.aside = p.aside || name != "" && name != "full"
	case key == "component_types" && stored:
		p.aside = p.aside || p.code() != msgpcode.Nil
		p.skip()
	case key == "remaining_copy_counts" && removed:
		e.Remaining = p.counts()
	case stored && key == "lora_name" && !isMap && p.isMap():
		for range orPanic(p.DecodeMapLen()) {
			p.metadata(p.text(), e)
		}
	case stored && key == "lora_name" && !isMap && p.isArray():
		p.aside = true
		p.skip()
	case stored:
		p.storedField(key, isMap, e, loraID)
	default:
		p.skip()
	}
}

func (p *peer) metadata(key string, e *events.Event) {
	switch key {
	case "cache_salt":
		e.Salt = p.text()
	case "component_type", "component_types":
		p.field(key, false, e, nil)
	default:
		p.skip()
	}
}

func (p *peer) storedField(key string, isMap bool, e *events.Event, loraID *string) {
	switch key {
	case "parent_block_hash":
		if e.HasParent = p.code() != msgpcode.Nil; e.HasParent {
			e.Parent = p.hash()
			return
		}
		p.skip()
	case "token_ids":
		for range p.length() {
			if e.Pairs = p.isArray(); e.Pairs {
				p.length()
				e.Tokens = append(e.Tokens, orPanic(p.DecodeUint32()))
			}
			e.Tokens = append(e.Tokens, orPanic(p.DecodeUint32()))
		}
	case "block_size":
		e.BlockSize = orPanic(p.DecodeInt())
	case "lora_id":
		switch {
		case p.code() == msgpcode.Nil:
			p.skip()
		case p.code() == msgpcode.Uint64:
			*loraID = fmt.Sprint(orPanic(p.DecodeUint64()))
		default:
			*loraID = fmt.Sprint(orPanic(p.DecodeInt64()))
		}
	case "lora_name":
		e.Adapter = p.text()
		if !isMap && *loraID == "" && isLayers(e.Adapter) {
			p.aside, e.Adapter = e.Adapter != "full", ""
		}
	case "extra_keys":
		n := p.length()
		e.HasExtra = n >= 0
		for block := range n {
			for range p.length() {
				e.Extra = append(e.Extra, p.extraKey(block))
			}
		}
	case "kv_cache_spec_kind":
		e.GroupKind = p.text()
	case "kv_cache_spec_sliding_window":
		e.Window = orPanic(p.DecodeInt())
	case "origin":
		if p.isString() {
			e.Reused = p.text() == "REUSED"
			return
		}
		p.skip()
	case "cache_salt":
		e.Salt = p.text()
	default:
		p.skip()
	}
}

func (p *peer) hash() uint64 {
	if msgpcode.IsBin(p.code()) {
		b := orPanic(p.DecodeBytes())
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	return orPanic(p.DecodeUint64())
}

func (p *peer) counts() (counts []uint32) {
	raw := orPanic(p.DecodeRaw())
	q := newPeer(raw)
	if !q.isArray() {
		return nil
	}
	for range q.length() {
		if n, err := q.DecodeInterface(); err != nil {
			return nil
		} else if f, ok := asFloat(n); ok && f >= 0 && f <= math.MaxUint32 {
			counts = append(counts, uint32(f))
		} else {
			return nil
		}
	}
	return counts
}

func (p *peer) extraKey(block int) events.ExtraKey {
	raw := orPanic(p.DecodeRaw())
	k := events.ExtraKey{Block: block, Kind: events.ExtraOpaque, Text: string(raw)}
	q := newPeer(raw)
	switch {
	case q.isString():
		k.Kind, k.Text = events.ExtraText, q.text()
	case msgpcode.IsBin(q.code()):
		k.Kind, k.Text = events.ExtraBytes, string(orPanic(q.DecodeBytes()))
	case q.isArray() && q.length() == 2 && q.isString():
		id := q.text()
		if (id == "lora" || id == "cache_salt") && q.isString() {
			k.Kind, k.Text = events.ExtraText, q.text()
		} else if offset, ok := q.int64(); ok {
			k.Kind, k.Text, k.Int = events.ExtraMedia, id, offset
		}
	default:
		if n, ok := newPeer(raw).int64(); ok {
			k.Kind, k.Text, k.Int = events.ExtraInt, "", n
		}
	}
	return k
}

// int64 reads an integer if the next value is one and fits.
func (p *peer) int64() (int64, bool) {
	c := p.code()
	if !msgpcode.IsFixedNum(c) && (c < msgpcode.Uint8 || c > msgpcode.Int64) {
		return 0, false
	}
	if c == msgpcode.Uint64 {
		n := orPanic(p.DecodeUint64())
		return int64(n), n <= math.MaxInt64
	}
	return orPanic(p.DecodeInt64()), true
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int8:
		return float64(v), true
	case int16:
		return float64(v), true
	case int32:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint8:
		return float64(v), true
	case uint16:
		return float64(v), true
	case uint32:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}
