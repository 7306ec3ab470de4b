package events_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvindex/kvindex/events"
)

// This file writes the batches of engines in every published form, with an independent encoder
// (msgpack/v5).

// A shape is a published form of batches.
type shape struct {
	engine   string // "" is vLLM
	version  string
	stored   int // positional fields of a BlockStored; 0: maps
	removed  int // of a BlockRemoved
	rank     bool
	batchMap bool
	late     bool // has the fields that vLLM added to its first maps
	salted   bool // has SGLang's cache_salt
}

func (s shape) sglang() bool { return s.engine == "sglang" }

var shapes = []shape{
	{version: "0.9.0", stored: 5, removed: 1},
	{version: "0.9.1", stored: 5, removed: 1, rank: true},
	{version: "0.10.2", stored: 6, removed: 2, rank: true},
	{version: "0.14.0", stored: 7, removed: 2, rank: true},
	{version: "2026-02", stored: 8, removed: 2, rank: true},
	{version: "2026-04", stored: 9, removed: 3, rank: true},
	{version: "2026-05", stored: 11, removed: 3, rank: true},
	{version: "2026-06", rank: true},
	{version: "snapshot", rank: true, batchMap: true},
	{version: "2026-07", rank: true, late: true},
	{engine: "sglang", version: "2025-05", stored: 5, removed: 1},
	{engine: "sglang", version: "2025-06", stored: 5, removed: 1, rank: true},
	{engine: "sglang", version: "2026-02", stored: 6, removed: 2, rank: true},
	{engine: "sglang", version: "2026-07", stored: 6, removed: 2, rank: true, salted: true},
	{engine: "sglang", version: "2026-09", rank: true, salted: true},
}

// pair is a key and its value. pairs is a map with ordered keys.
type pair struct {
	key   string
	value any
}

type pairs []pair

func (p pairs) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeMapLen(len(p)); err != nil {
		return err
	}
	for _, kv := range p {
		if err := e.EncodeString(kv.key); err != nil {
			return err
		}
		if err := e.Encode(kv.value); err != nil {
			return err
		}
	}
	return nil
}

// A writer writes events as an engine would. With rand it varies everything that an encoder may:
// the order of keys, the width of integers, nil or no value for an unset field, unknown fields.
type writer struct {
	shape
	rand   *rand.Rand
	digest int // bytes of a hash; 0: an unsigned integer, -1: a signed one
}

func (w writer) batch(t testing.TB, b view) []byte {
	t.Helper()
	list := make([]any, len(b.Events))
	for i, e := range b.Events {
		list[i] = w.event(e)
	}
	var rank any
	if b.HasRank {
		rank = b.Rank
	}
	var v any
	switch {
	case w.batchMap:
		v = w.loose(pairs{{"ts", b.Time}, {"events", list}, {"data_parallel_rank", rank}})
	case w.rank:
		v = []any{b.Time, list, rank}
	default:
		v = []any{b.Time, list}
	}
	return pack(t, v, w.rand == nil || w.rand.IntN(2) == 0)
}

// pack encodes v, with integers in the fewest bytes if compact.
func pack(t testing.TB, v any, compact bool) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(compact)
	must(t, enc.Encode(v))
	return buf.Bytes()
}

func (w writer) event(e events.Event) any {
	switch e.Kind {
	case events.Stored:
		var loraID, loraName any
		if id, err := strconv.Atoi(e.Adapter); err == nil {
			loraID = id
		} else if e.Adapter != "" {
			loraID, loraName = 1, e.Adapter
		}
		var parent any
		if e.HasParent {
			parent = w.hash(e.Parent)
		}
		if w.sglang() {
			return w.sglangStored(e, parent)
		}
		return w.fields("BlockStored", w.stored, 7, pairs{
			{"block_hashes", w.hashes(e.Hashes)}, {"parent_block_hash", parent}, {"token_ids", tokenIDs(e)},
			{"block_size", e.BlockSize}, {"lora_id", loraID}, {"medium", orNil(e.Medium)}, {"lora_name", loraName},
			{"extra_keys", extraKeys(e)}, {"group_idx", e.Group}, {"kv_cache_spec_kind", orNil(e.GroupKind)},
			{"kv_cache_spec_sliding_window", orNil(e.Window)}, {"locality", orNil(e.Locality)},
			{"ownership", orNil(e.Ownership)}, {"origin", map[bool]any{true: "REUSED"}[e.Reused]},
		})
	case events.Removed:
		var counts any
		if e.Remaining != nil {
			counts = e.Remaining
		}
		return w.fields("BlockRemoved", w.removed, 2, pairs{
			{"block_hashes", w.hashes(e.Hashes)}, {"medium", orNil(e.Medium)}, {"group_idx", e.Group},
			{"locality", orNil(e.Locality)}, {"ownership", orNil(e.Ownership)}, {"remaining_copy_counts", counts},
		})
	}
	return w.fields("AllBlocksCleared", 0, 0, nil)
}

// sglangStored puts the salt into a map after the last position, or under a key.
func (w writer) sglangStored(e events.Event, parent any) any {
	all := pairs{
		{"block_hashes", w.hashes(e.Hashes)}, {"parent_block_hash", parent}, {"token_ids", tokenIDs(e)}, {"block_size", e.BlockSize}, {"lora_id", nil},
		{"medium", orNil(e.Medium)}, {"cache_salt", orNil(e.Salt)}, {"session_id", nil},
	}
	event := w.fields("BlockStored", w.stored, 5, all)
	if list, ok := event.([]any); ok && e.Salt != "" {
		return append(list, w.loose(pairs{{"cache_salt", e.Salt}}))
	}
	return event
}

// fields returns an event in its form: the positional fields, or a map with the fields that are
// always there and those of the others that are not nil.
func (w writer) fields(kind string, positional, always int, all pairs) any {
	if w.stored > 0 {
		out := []any{kind}
		for _, f := range all[:positional] {
			out = append(out, f.value)
		}
		if w.rand != nil && positional == 11 {
			for range w.rand.IntN(3) {
				out = append(out, future(w.rand))
			}
		}
		return out
	}
	m := pairs{{"type", kind}}
	for i, f := range all {
		if i < always || f.value != nil || w.rand != nil && w.rand.IntN(4) == 0 {
			m = append(m, f)
		}
	}
	return w.loose(m)
}

// loose shuffles the keys of m and adds unknown fields, if w is random.
func (w writer) loose(m pairs) pairs {
	if w.rand == nil {
		return m
	}
	for range w.rand.IntN(3) {
		m = append(m, pair{[]string{"session_id", "x", "block_hash", "Type", ""}[w.rand.IntN(5)], future(w.rand)})
	}
	if w.rand.IntN(2) == 0 {
		w.rand.Shuffle(len(m), func(i, j int) { m[i], m[j] = m[j], m[i] })
	}
	return m
}

func (w writer) hashes(hs []uint64) []any {
	out := make([]any, len(hs))
	for i, h := range hs {
		out[i] = w.hash(h)
	}
	return out
}

func (w writer) hash(h uint64) any {
	switch {
	case w.digest < 0:
		return int64(h)
	case w.digest == 0:
		return h
	}
	return binary.BigEndian.AppendUint64(bytes.Repeat([]byte{0xd1}, w.digest-8), h)
}

func tokenIDs(e events.Event) any {
	if !e.Pairs {
		return e.Tokens // a nil slice encodes as nil
	}
	out := make([]any, 0, len(e.Tokens)/2)
	for p := range slices.Chunk(e.Tokens, 2) {
		out = append(out, p)
	}
	return out
}

func extraKeys(e events.Event) any {
	if !e.HasExtra {
		return nil
	}
	out := make([]any, len(e.Hashes))
	for _, k := range e.Extra {
		var v any
		switch k.Kind {
		case events.ExtraText:
			v = k.Text
		case events.ExtraInt:
			v = k.Int
		case events.ExtraMedia:
			v = []any{k.Text, k.Int}
		case events.ExtraBytes:
			v = []byte(k.Text)
		case events.ExtraOpaque:
			v = msgpack.RawMessage(k.Text)
		}
		list, _ := out[k.Block].([]any)
		out[k.Block] = append(list, v)
	}
	return out
}

func orNil[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// future is a value that no version sends.
func future(r *rand.Rand) any {
	return []any{
		nil, true, -1, int64(1) << 40, 1.5, "s", []byte{0xff}, []any{1, map[string]any{"k": []byte("x")}}, map[string]any{"n": nil},
		msgpack.RawMessage{0xd5, 1, 2, 3}, msgpack.RawMessage{0xa1, 0xff},
	}[r.IntN(11)]
}

// carry returns b without the fields that this form does not have.
func (s shape) carry(b view) view {
	if !s.rank {
		b.Rank, b.HasRank = 0, false
	}
	b.Events = slices.Clone(b.Events)
	for i := range b.Events {
		s.carryEvent(&b.Events[i])
	}
	return b
}

func (s shape) carryEvent(e *events.Event) {
	e.HasGroup = e.Kind == events.Removed && s.stored == 0 || e.Kind != events.Cleared && !s.sglang()
	if !s.salted {
		e.Salt = ""
	}
	if s.sglang() {
		e.Adapter, e.Extra, e.HasExtra, e.Group, e.GroupKind, e.Window = "", nil, false, 0, "", 0
		if e.Kind == events.Removed && s.stored == 0 {
			e.Remaining = nil
		}
	}
	if !s.late {
		e.Locality, e.Ownership, e.Reused, e.Remaining = "", "", false, nil
	}
	if s.stored == 0 {
		return
	}
	if e.Kind == events.Removed {
		if s.removed < 2 {
			e.Medium = ""
		}
		if s.removed < 3 {
			e.Group, e.HasGroup = 0, false
		}
		return
	}
	if s.stored < 6 {
		e.Medium = ""
	}
	if _, err := strconv.Atoi(e.Adapter); s.stored < 7 && err != nil && e.Adapter != "" {
		e.Adapter = "1" // the id that writer adds to every name
	}
	if s.stored < 8 {
		e.Extra, e.HasExtra = nil, false
	}
	if s.stored < 9 {
		e.Group, e.HasGroup = 0, false
	}
	if s.stored < 11 {
		e.GroupKind, e.Window = "", 0
	}
}

func tokensFrom(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32((first + i) * 7919 % 151_936)
	}
	return out
}

// mediaID is an image identifier of vLLM: 64 hex digits.
var mediaID = strings.Repeat("5eed", 16)

// samples are the batches of the golden payloads.
var samples = []struct {
	what   string
	digest int
	since  func(shape) bool
	batch  view
}{
	{what: "mixed", digest: 0, batch: view{Time: 1_750_000_000.25, Rank: 3, HasRank: true, Events: []events.Event{
		{
			Kind: events.Stored, Hashes: []uint64{0xfeed_0000_0000_0001, 0xfeed_0000_0000_0002}, Tokens: tokensFrom(0, 32), BlockSize: 16,
			Medium: "GPU", HasExtra: true, GroupKind: "full_attention",
		},
		{
			Kind: events.Stored, Hashes: []uint64{3}, Parent: 0xfeed_0000_0000_0002, HasParent: true, Tokens: tokensFrom(32, 16), BlockSize: 16,
			Medium: "GPU", HasExtra: true, GroupKind: "full_attention",
		},
		{Kind: events.Removed, Hashes: []uint64{0xfeed_0000_0000_0001}, Medium: "GPU"},
		{Kind: events.Cleared},
	}}},
	{what: "lora", digest: -1, since: func(s shape) bool { return !s.sglang() }, batch: view{Time: 1_750_000_001, Events: []events.Event{
		{
			Kind: events.Stored, Hashes: []uint64{math.MaxUint64, 5}, Tokens: tokensFrom(7, 8), BlockSize: 4, Adapter: "sql-adapter", Medium: "GPU",
			Extra: []events.ExtraKey{
				{Block: 0, Kind: events.ExtraText, Text: "sql-adapter"}, {Block: 0, Kind: events.ExtraText, Text: "tenant-7"},
				{Block: 1, Kind: events.ExtraText, Text: "sql-adapter"},
			}, HasExtra: true, GroupKind: "full_attention",
		},
		{Kind: events.Stored, Hashes: []uint64{6}, Tokens: tokensFrom(9, 4), BlockSize: 4, Adapter: "12", Medium: "GPU"},
	}}},
	{what: "digests", digest: 32, since: func(s shape) bool { return s.stored != 5 && !s.sglang() }, batch: view{
		Time: 1_750_000_002, HasRank: true, Events: []events.Event{
			{Kind: events.Stored, Hashes: []uint64{11, 12}, Parent: 10, HasParent: true, Tokens: tokensFrom(0, 32), BlockSize: 16, Medium: "GPU"},
			{Kind: events.Stored, Hashes: []uint64{12}, BlockSize: 256, Medium: "CPU"},
			{Kind: events.Removed, Hashes: []uint64{11, 12}, Medium: "CPU"},
		},
	}},
	{what: "hybrid", digest: 0, since: func(s shape) bool { return (s.stored == 11 || s.stored == 0) && !s.sglang() }, batch: view{
		Time: 1_750_000_003.5, HasRank: true, Events: []events.Event{
			{
				Kind: events.Stored, Hashes: []uint64{21}, Tokens: tokensFrom(0, 64), BlockSize: 16, Medium: "GPU", HasExtra: true, Group: 1,
				GroupKind: "sliding_window", Window: 1024, Locality: "LOCAL", Extra: []events.ExtraKey{
					{Kind: events.ExtraMedia, Text: mediaID, Int: -11}, {Kind: events.ExtraBytes, Text: strings.Repeat("\xe5", 32)},
				},
			},
			{Kind: events.Stored, Tokens: tokensFrom(0, 64), BlockSize: 16, Medium: "GPU", Group: 2, GroupKind: "mamba"},
			{
				Kind: events.Stored, Hashes: []uint64{21, 22}, Tokens: tokensFrom(0, 32), BlockSize: 16, Medium: "GPU", HasExtra: true,
				GroupKind: "full_attention", Ownership: "peer", Reused: true,
			},
			{Kind: events.Removed, Hashes: []uint64{21, 22}, Medium: "GPU", Group: 1, Locality: "REMOTE", Ownership: "peer", Remaining: []uint32{0, 1}},
		},
	}},
	{what: "pages", digest: -1, since: shape.sglang, batch: view{Time: 1_750_000_004, HasRank: true, Events: []events.Event{
		{Kind: events.Cleared},
		{Kind: events.Stored, Hashes: []uint64{1 << 63}, Tokens: tokensFrom(0, 1), BlockSize: 1, Medium: "GPU"},
		{Kind: events.Stored, Hashes: []uint64{2}, Parent: 1 << 63, HasParent: true, Tokens: tokensFrom(1, 1), BlockSize: 1, Medium: "GPU"},
		{Kind: events.Stored, Hashes: []uint64{3}, Tokens: tokensFrom(0, 1), BlockSize: 1, Medium: "GPU", Salt: "tenant-a"},
		{Kind: events.Stored, Hashes: []uint64{2}, Tokens: tokensFrom(1, 1), BlockSize: 1, Medium: "CPU_PINNED"},
		{Kind: events.Removed, Hashes: []uint64{1 << 63}, Medium: "GPU"},
		{Kind: events.Removed, Hashes: []uint64{2}, Medium: "DISK"},
		{Kind: events.Removed, Hashes: []uint64{2}, Medium: "EXTERNAL"},
	}}},
	{what: "eagle", digest: -1, since: shape.sglang, batch: view{Time: 1_750_000_005, HasRank: true, Events: []events.Event{
		{Kind: events.Stored, Hashes: []uint64{4, math.MaxUint64}, Tokens: pairsFrom(0, 4), Pairs: true, BlockSize: 2, Medium: "GPU", Salt: "соль"},
	}}},
}

// pairsFrom are n EAGLE pairs.
func pairsFrom(first, n int) (out []uint32) {
	tokens := tokensFrom(first, n+1)
	for i := range n {
		out = append(out, tokens[i], tokens[i+1])
	}
	return out
}

// goldens calls f for every golden payload: its file, its writer and its content.
func goldens(f func(file string, w writer, want view)) int {
	n := 0
	for _, s := range shapes {
		for _, x := range samples {
			if x.since != nil && !x.since(s) {
				continue
			}
			engine := cmp.Or(s.engine, "vllm")
			f(filepath.Join("testdata", engine+"-"+s.version+"-"+x.what+".msgpack"), writer{shape: s, digest: x.digest}, s.carry(x.batch))
			n++
		}
	}
	return n
}

// randomEvent counts the features of the event in seen.
func randomEvent(r *rand.Rand, seen map[string]int) events.Event {
	note := func(what string, is bool) bool {
		if is {
			seen[what]++
		}
		return is
	}
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	switch r.IntN(6) {
	case 0:
		seen["cleared"]++
		return events.Event{Kind: events.Cleared}
	case 1, 2:
		seen["removed"]++
		e := events.Event{
			Kind: events.Removed, Hashes: randomHashes(r, r.IntN(4)), Medium: pick("", "GPU", "CPU", "cpu", "STORAGE", "tape"), Group: r.IntN(9),
			Locality: pick("", "LOCAL", "REMOTE"), Ownership: pick("", "peer"),
		}
		if note("remaining", len(e.Hashes) > 0 && r.IntN(2) == 0) {
			for range e.Hashes {
				e.Remaining = append(e.Remaining, uint32(r.IntN(4)))
			}
		}
		return e
	}
	seen["stored"]++
	e := events.Event{
		Kind: events.Stored, BlockSize: []int{1, 2, 16, 32}[r.IntN(4)], Adapter: pick("", "", "sql-adapter", "7", "läufer"),
		Medium: pick("", "GPU", "CPU", "cpu", "STORAGE", "tape"), Group: r.IntN(9), GroupKind: pick("", "full_attention", "sliding_window", "new_kind"),
		Window: r.IntN(2) * 1024, Locality: pick("", "LOCAL", "REMOTE"), Ownership: pick("", "peer"), Reused: note("reused", r.IntN(5) == 0),
	}
	if note("salt", r.IntN(4) == 0) {
		e.Salt = pick("tenant-a", "соль")
	}
	blocks := r.IntN(6)
	e.Hashes = randomHashes(r, blocks)
	if note("parent", r.IntN(2) == 0) {
		e.Parent, e.HasParent = r.Uint64(), true
	}
	if note("tokens", blocks > 0 && r.IntN(4) > 0) {
		n := blocks * e.BlockSize
		if e.Pairs = note("pairs", r.IntN(4) == 0); e.Pairs {
			n *= 2
		}
		for range n {
			e.Tokens = append(e.Tokens, uint32(r.Uint64()>>(32+r.IntN(32))))
		}
		if note("masked", r.IntN(4) == 0) {
			e.Hashes = tail(e.Hashes, r.IntN(blocks+1))
		}
		note("all masked", len(e.Hashes) == 0)
	}
	if e.HasExtra = note("extra keys", r.IntN(2) == 0); !e.HasExtra {
		return e
	}
	for block := range e.Hashes {
		for range r.IntN(3) {
			k := events.ExtraKey{Block: block, Kind: events.ExtraKind(1 + r.IntN(5))}
			switch k.Kind {
			case events.ExtraText:
				k.Text = pick("", "sql-adapter", "tenant-7", mediaID)
			case events.ExtraInt:
				k.Int = int64(r.Uint64())
			case events.ExtraMedia:
				k.Text, k.Int = mediaID, int64(r.IntN(64)-32)
			case events.ExtraBytes:
				k.Text = pick("", strings.Repeat("\xe5", 32))
			case events.ExtraOpaque:
				k.Text = opaque[r.IntN(len(opaque))]
			}
			seen[fmt.Sprint("extra of kind ", k.Kind)]++
			e.Extra = append(e.Extra, k)
		}
	}
	return e
}

// opaque are extra keys of unknown forms.
var opaque = []string{
	"\xc0", "\xc3", "\xcb\x40\x00\x00\x00\x00\x00\x00\x00", "\x81\xa4type\xa2mm", "\x80", "\x90", "\x91\xa1a", "\x92\x01\x02", "\x92\xa1a\xa1b",
	"\x93\xa1a\x01\x02", "\xd4\x01\x02", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "\x92\xa1a\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "\x92\xc4\x01a\x01",
}

func randomHashes(r *rand.Rand, n int) (out []uint64) {
	for range n {
		out = append(out, r.Uint64()>>(r.IntN(2)*r.IntN(64)))
	}
	return out
}

// tail returns s[n:], nil if that is empty.
func tail(s []uint64, n int) []uint64 {
	if n == len(s) {
		return nil
	}
	return s[n:]
}

// ring returns n different payloads of one event, with so many blocks of 16 tokens.
func ring(t testing.TB, s shape, n, blocks int, change func(i int, e *events.Event)) [][]byte {
	r := rand.New(rand.NewPCG(uint64(n), uint64(blocks)))
	out := make([][]byte, n)
	for i := range out {
		e := events.Event{
			Kind: events.Stored, Hashes: randomFull(r, blocks), Parent: r.Uint64(), HasParent: true, BlockSize: 16, Medium: "GPU",
			HasExtra: true, GroupKind: "full_attention",
		}
		for range 16 * blocks {
			e.Tokens = append(e.Tokens, uint32(r.IntN(151_936)))
		}
		if change != nil {
			change(i, &e)
		}
		out[i] = writer{shape: s}.batch(t, view{Time: float64(i) + 1.75e9, HasRank: true, Events: []events.Event{e}})
	}
	return out
}

func randomFull(r *rand.Rand, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}
