package fakeengine_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// object is a decoded map with its keys in wire order.
type object struct {
	keys   []string
	values map[string]any
}

// item reads one item with a decoder from another project. Integers are int64, or uint64 if too
// large.
func item(d *msgpack.Decoder) (any, error) {
	code, err := d.PeekCode()
	if err != nil {
		return nil, err
	}
	switch {
	case code == msgpcode.Nil:
		return nil, d.DecodeNil()
	case code == msgpcode.Double:
		return d.DecodeFloat64()
	case msgpcode.IsString(code):
		return d.DecodeString()
	case msgpcode.IsBin(code):
		return d.DecodeBytes()
	case code == msgpcode.Uint64:
		n, err := d.DecodeUint64()
		if n <= math.MaxInt64 {
			return int64(n), err
		}
		return n, err
	case msgpcode.IsFixedNum(code) || msgpcode.Uint8 <= code && code <= msgpcode.Int64:
		return d.DecodeInt64()
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		items := []any{}
		for i := 0; i < n && err == nil; i++ {
			var v any
			if v, err = item(d); err == nil {
				items = append(items, v)
			}
		}
		return items, err
	case msgpcode.IsFixedMap(code):
		n, err := d.DecodeMapLen()
		o := object{values: map[string]any{}}
		for i := 0; i < n && err == nil; i++ {
			var k string
			if k, err = d.DecodeString(); err == nil {
				o.keys = append(o.keys, k)
				o.values[k], err = item(d)
			}
		}
		return o, err
	}
	return nil, fmt.Errorf("code %#x", code)
}

// decodedBatch is a batch that was read back.
type decodedBatch struct {
	fakeengine.Batch
	shapes []string // for each event its tag, and its keys or length
	bytes  bool     // hashes are bytes
}

// decode reads a payload. Integer hashes become IntHash.
func decode(payload []byte) (*decodedBatch, error) {
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	v, err := item(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.PeekCode(); err != io.EOF {
		return nil, fmt.Errorf("bytes after the batch: %v", err)
	}
	top, ok := v.([]any)
	if !ok || len(top) != 3 {
		return nil, fmt.Errorf("the batch is %v", v)
	}
	b := &decodedBatch{}
	b.Time, b.Rank = top[0].(float64), int(top[2].(int64))
	for _, e := range top[1].([]any) {
		fields, shape := named(e)
		b.shapes = append(b.shapes, shape)
		b.Events = append(b.Events, b.event(fields))
	}
	return b, nil
}

// The fields by position.
var (
	storedFields  = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
	removedFields = []string{"type", "block_hashes", "medium", "group_idx"}
)

// named returns the fields of an event by name, and its shape.
func named(e any) (map[string]any, string) {
	if o, ok := e.(object); ok {
		return o.values, fmt.Sprintf("%s{%s}", o.values["type"], strings.Join(o.keys[1:], " "))
	}
	a, names := e.([]any), storedFields
	if a[0] == "BlockRemoved" {
		names = removedFields
	}
	fields := map[string]any{}
	for i, v := range a {
		fields[names[i]] = v
	}
	return fields, fmt.Sprintf("%s[%d]", a[0], len(a))
}

func (b *decodedBatch) event(f map[string]any) fakeengine.Event {
	text := func(name string) string { s, _ := f[name].(string); return s }
	number := func(name string) int { n, _ := f[name].(int64); return int(n) }
	switch f["type"] {
	case "AllBlocksCleared":
		return fakeengine.Cleared{}
	case "BlockRemoved":
		return &fakeengine.Removed{Hashes: b.hashes(f["block_hashes"]), Medium: text("medium"), Group: number("group_idx")}
	}
	s := &fakeengine.Stored{
		Hashes:    b.hashes(f["block_hashes"]),
		BlockSize: number("block_size"),
		Adapter:   text("lora_name"),
		AdapterID: number("lora_id"),
		Medium:    text("medium"),
		Group:     number("group_idx"),
		Kind:      text("kv_cache_spec_kind"),
		Window:    number("kv_cache_spec_sliding_window"),
	}
	if p := f["parent_block_hash"]; p != nil {
		s.Parent = &b.hashes([]any{p})[0]
	}
	for _, t := range f["token_ids"].([]any) {
		s.Tokens = append(s.Tokens, uint32(t.(int64)))
	}
	if keys, ok := f["extra_keys"].([]any); ok {
		s.Extra = make([][]enginehash.Extra, len(keys))
		for i, block := range keys {
			block, _ := block.([]any)
			for _, k := range block {
				s.Extra[i] = append(s.Extra[i], extraKey(k))
			}
		}
	}
	return s
}

func (b *decodedBatch) hashes(v any) []enginehash.Digest {
	var out []enginehash.Digest
	for _, h := range v.([]any) {
		switch h := h.(type) {
		case int64:
			out = append(out, fakeengine.IntHash(uint64(h)))
		case uint64:
			out = append(out, fakeengine.IntHash(h))
		case []byte:
			b.bytes = true
			var d enginehash.Digest
			copy(d[max(0, len(d)-len(h)):], h) // shorter ones are of other algorithms
			out = append(out, d)
		}
	}
	return out
}

func extraKey(k any) enginehash.Extra {
	switch k := k.(type) {
	case int64:
		return enginehash.Int(k)
	case []byte:
		return enginehash.Bytes(k)
	case []any:
		return enginehash.Media(k[0].(string), k[1].(int64))
	}
	return enginehash.Text(k.(string))
}

// TestEncodingReadBack: a decoder from another project reads what Append writes, with every width
// of every item, and each field set and unset.
func TestEncodingReadBack(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	tokens := make([]uint32, 70_000)
	for i := range tokens {
		tokens[i] = uint32(i) * 61_356
	}
	digest := enginehash.NoneHash("0")
	var many []enginehash.Digest
	var extra [][]enginehash.Extra
	for i := range 70_000 {
		many = append(many, fakeengine.IntHash(1<<(i%64)))
		extra = append(extra, nil)
	}
	offsets := []int64{-1, -32, -33, -128, -129, -32768, -32769, math.MinInt32, math.MinInt32 - 1, math.MaxInt64}
	for i, n := range offsets {
		extra[i] = []enginehash.Extra{enginehash.Media("m", n), enginehash.Int(n), enginehash.Bytes([]byte{1, 2})}
	}
	extra[20] = slices.Repeat([]enginehash.Extra{enginehash.Text(long), enginehash.Text(long[:300]), enginehash.Text(long[:32]), enginehash.Bytes([]byte(long[:300]))}, 5)

	stored := []*fakeengine.Stored{
		{},
		{Hashes: many[:1], Parent: &many[40], Tokens: tokens[:16], BlockSize: 16, Medium: "CPU", Window: 1024, Group: 3},
		{Hashes: many, Tokens: tokens, BlockSize: 1, Adapter: "tuned", AdapterID: 70_000, Medium: "GPU", Extra: extra, Kind: "mla_attention"},
		{Hashes: many[:16], Tokens: tokens[:16], BlockSize: 1, Extra: extra[:16], Kind: "sliding_window", Window: 5},
	}
	for _, e := range []fakeengine.Encoding{
		{Form: fakeengine.FormMaps}, {Form: fakeengine.FormMaps, ByteHashes: true},
		{Form: fakeengine.FormArrays12}, {Form: fakeengine.FormArrays12, ByteHashes: true},
		{Form: fakeengine.FormArrays7}, {Form: fakeengine.FormArrays7, ByteHashes: true}, {Form: fakeengine.FormArrays7, SignedHashes: true},
	} {
		t.Run(fmt.Sprintf("form %d, bytes %v, signed %v", e.Form, e.ByteHashes, e.SignedHashes), func(t *testing.T) {
			batch := &fakeengine.Batch{Time: 1.7e9, Rank: 200, Events: []fakeengine.Event{
				fakeengine.Cleared{}, &fakeengine.Removed{Hashes: []enginehash.Digest{digest}, Medium: "GPU", Group: 2}, &fakeengine.Removed{},
			}}
			for _, s := range stored {
				batch.Events = append(batch.Events, s)
			}
			got, err := decode(e.Append(nil, batch))
			must(t, err)
			if want := expected(batch, e); !equalBatches(&got.Batch, want) {
				t.Errorf("read back\n%s\nwant\n%s", describe(&got.Batch), describe(want))
			}
		})
	}
}

// expected returns the part of a batch that an encoding keeps.
func expected(b *fakeengine.Batch, e fakeengine.Encoding) *fakeengine.Batch {
	hash := func(d enginehash.Digest) enginehash.Digest {
		if e.ByteHashes {
			return d
		}
		return fakeengine.IntHash(d.Int())
	}
	hashes := func(in []enginehash.Digest) (out []enginehash.Digest) {
		for _, d := range in {
			out = append(out, hash(d))
		}
		return out
	}
	want := &fakeengine.Batch{Time: b.Time, Rank: b.Rank}
	for _, ev := range b.Events {
		switch ev := ev.(type) {
		case *fakeengine.Stored:
			s := *ev
			s.Hashes = hashes(s.Hashes)
			if s.Parent != nil {
				p := hash(*s.Parent)
				s.Parent = &p
			}
			if e.Form == fakeengine.FormArrays7 {
				s.Adapter, s.Extra, s.Group, s.Kind, s.Window = "", nil, 0, "", 0
			}
			want.Events = append(want.Events, &s)
		case *fakeengine.Removed:
			r := *ev
			r.Hashes = hashes(r.Hashes)
			if e.Form == fakeengine.FormArrays7 {
				r.Group = 0
			}
			want.Events = append(want.Events, &r)
		default:
			want.Events = append(want.Events, ev)
		}
	}
	return want
}

func equalBatches(a, b *fakeengine.Batch) bool {
	return a.Time == b.Time && a.Rank == b.Rank && slices.EqualFunc(a.Events, b.Events, equalEvents)
}

func equalEvents(a, b fakeengine.Event) bool {
	switch a := a.(type) {
	case *fakeengine.Stored:
		b, ok := b.(*fakeengine.Stored)
		return ok && slices.Equal(a.Hashes, b.Hashes) && slices.Equal(a.Tokens, b.Tokens) &&
			(a.Parent == nil) == (b.Parent == nil) && (a.Parent == nil || *a.Parent == *b.Parent) &&
			(a.Extra == nil) == (b.Extra == nil) && slices.EqualFunc(a.Extra, b.Extra, slices.Equal[[]enginehash.Extra]) &&
			a.BlockSize == b.BlockSize && a.Adapter == b.Adapter && a.AdapterID == b.AdapterID &&
			a.Medium == b.Medium && a.Group == b.Group && a.Kind == b.Kind && a.Window == b.Window
	case *fakeengine.Removed:
		b, ok := b.(*fakeengine.Removed)
		return ok && slices.Equal(a.Hashes, b.Hashes) && a.Medium == b.Medium && a.Group == b.Group
	}
	return a == b
}

// describe abbreviates a batch.
func describe(b *fakeengine.Batch) string {
	var s strings.Builder
	fmt.Fprintf(&s, "time %v, rank %d", b.Time, b.Rank)
	for _, e := range b.Events {
		line := fmt.Sprintf("\n%T %+v", e, e)
		s.WriteString(line[:min(len(line), 300)])
	}
	return s.String()
}
