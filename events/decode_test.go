package events_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/vmihailenco/msgpack/v5"
)

var update = flag.Bool("update", false, "write the golden payloads anew")

// TestGolden decodes the payloads in testdata. An independent encoder has written them in every
// published form (-update writes them).
func TestGolden(t *testing.T) {
	var used events.Batch
	n := goldens(func(file string, w writer, want view) {
		payload := w.batch(t, want)
		if *update {
			must(t, os.WriteFile(file, payload, 0o644))
		}
		golden, err := os.ReadFile(file)
		must(t, err)
		if !bytes.Equal(golden, payload) {
			t.Errorf("%s: the encoder now writes\n%x", file, payload)
		}
		for _, b := range []*events.Batch{{}, &used} {
			if err := events.Decode(golden, b); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if got := kept(b); !reflect.DeepEqual(got, want) {
				t.Errorf("%s:\ngot  %+v\nwant %+v", file, got, want)
			}
		}
	})
	files, err := filepath.Glob("testdata/*.msgpack")
	if err != nil || len(files) != n {
		t.Errorf("%d files in testdata, %d payloads (%v)", len(files), n, err)
	}
	t.Logf("%d payloads", n)
}

// TestDamaged cuts the golden payloads at every byte, where Decode must fail, and changes every
// byte, where Decode must not panic.
func TestDamaged(t *testing.T) {
	cut, flipped, refused := 0, 0, 0
	goldens(func(file string, w writer, want view) {
		payload := w.batch(t, want)
		var b events.Batch
		for i := range payload {
			err := events.Decode(payload[:i:i], &b)
			if err == nil {
				t.Errorf("%s: accepted the first %d bytes of %d", file, i, len(payload))
			}
			checkRefused(t, err, &b)
			cut++
		}
		for i := range payload {
			for _, x := range []byte{0x01, 0x10, 0x20, 0x40, 0x80, 0xff, payload[i], payload[i] ^ 0xc0, payload[i] ^ 0xdd} {
				payload[i] ^= x
				err := events.Decode(payload, &b)
				checkRefused(t, err, &b)
				if err != nil {
					refused++
				}
				payload[i] ^= x
				flipped++
			}
		}
	})
	t.Logf("%d cut, %d changed, of which %d refused", cut, flipped, refused)
}

// TestRoundTrip decodes random events that an independent encoder wrote in random forms.
func TestRoundTrip(t *testing.T) {
	n := 6000
	if testing.Short() {
		n = 1000
	}
	r := rand.New(rand.NewPCG(1, 2))
	var b events.Batch
	seen := map[string]int{}
	for i := range n {
		s := shapes[r.IntN(len(shapes))]
		w := writer{shape: s, rand: r, digest: []int{0, -1, 8, 16, 32, 64}[r.IntN(6)]}
		sent := view{Time: float64(r.IntN(1e9)) / 64}
		if sent.HasRank = r.IntN(2) == 0; sent.HasRank {
			sent.Rank = r.IntN(300)
		}
		for range r.IntN(5) {
			sent.Events = append(sent.Events, randomEvent(r, seen))
		}
		want := s.carry(sent)
		payload := w.batch(t, want)
		if err := events.Decode(payload, &b); err != nil {
			t.Fatalf("batch %d, %+v: %v\n%x", i, s, err, payload)
		}
		if got := shown(&b); !reflect.DeepEqual(got, want) {
			t.Fatalf("batch %d, %+v:\n%x\ngot  %+v\nwant %+v", i, s, payload, got, want)
		}
		checkAccepted(t, payload, &b)
		seen[s.engine+s.version]++
	}
	t.Logf("%d batches: %v", n, seen)
	if len(seen) != 17+len(shapes) {
		t.Errorf("%d kinds of cases: %v", len(seen), seen)
	}
	for what, k := range seen {
		if k < n/100 {
			t.Errorf("only %d of %s", k, what)
		}
	}
}

// TestRefused: an error names the fault and its place.
func TestRefused(t *testing.T) {
	t16 := tokensFrom(0, 16)
	stored := func(change ...pair) []any {
		fields := pairs{
			{"block_hashes", []any{uint64(1)}}, {"parent_block_hash", nil}, {"token_ids", t16}, {"block_size", 16}, {"lora_id", nil}, {"medium", "GPU"},
			{"lora_name", nil}, {"extra_keys", nil}, {"group_idx", 0}, {"kv_cache_spec_kind", "mamba"}, {"kv_cache_spec_sliding_window", nil},
		}
		out := []any{"BlockStored"}
		for _, f := range fields {
			for _, c := range change {
				if c.key == f.key {
					f.value = c.value
				}
			}
			out = append(out, f.value)
		}
		return out
	}
	with := func(key string, value any) any { return []any{1.5, []any{stored(pair{key, value})}, 0} }
	event := func(e ...any) any { return []any{1.5, e, 0} }
	raw := func(s string) msgpack.RawMessage { return spell(t, s) }
	good := []any{"BlockRemoved", []any{uint64(1)}, "GPU"}
	bad7 := slices.Clone([]any{1, 2, 3, 4, 5, 6, 7, -1})

	for _, tt := range []struct {
		batch any
		want  string
	}{
		{nil, "nil is not a batch"},
		{7, "7 is not a batch"},
		{msgpack.RawMessage(" \r\n"), "32 is not a batch"},
		{msgpack.RawMessage(`{"ts": 1.5, "events": []}`), "it looks like JSON: a batch is MessagePack, as the engine publishes it"},
		{msgpack.RawMessage("\r\n\t [1.5, []]"), "it looks like JSON: a batch is MessagePack, as the engine publishes it"},
		{[]any{}, "a list of length 0 is not a batch"},
		{[]any{1.5}, "a list of length 1 is not a batch"},
		{pairs{}, "the batch has no events"},
		{pairs{{"ts", 1}}, "the batch has no events"},
		{pairs{{"events", []any{}}, {"events", []any{}}}, "the key events is repeated"},
		{pairs{{"ts", 1}, {"events", []any{}}, {"ts", 1}}, "the key ts is repeated"},
		{raw("82 a6|events| 90 01 01"), "key: 1 is not a string"},
		{raw("82 a6|events| 90 a1ff 01"), "key: a string that is not UTF-8"},
		{raw("92 00 90 c0"), "1 bytes behind the batch"},
		{[]any{nil, []any{}}, "ts: nil is not a time"},
		{[]any{true, []any{}}, "ts: a bool is not a time"},
		{raw("92 d6ff00000001 90"), "ts: an extension is not a time"},
		{[]any{1.5, nil, 0}, "events: nil is not a list"},
		{[]any{1.5, map[string]any{}, 0}, "events: a map is not a list"},
		{[]any{1.5, []any{}, -1}, "data_parallel_rank: -1 is not a number from 0 to 65535"},
		{[]any{1.5, []any{}, 65536}, "data_parallel_rank: 65536 is not a number from 0 to 65535"},
		{[]any{1.5, []any{}, 0.5}, "data_parallel_rank: a float is not a number from 0 to 65535"},

		{event(good, nil), "event 1: nil is not an event"},
		{event(pack(t, good, true)), "event 0: a byte string is not an event"},
		{event([]any{}), "event 0: an empty list is not an event"},
		{event([]any{5, 1}), "event 0: kind: 5 is not a string"},
		{event([]any{"Bl\xff"}), "event 0: kind: a string that is not UTF-8"},
		{event(pairs{{"type", nil}}), "event 0: kind: nil is not a string"},
		{event(pairs{{"x", 1}, {"type", "X"}, {"type", "X"}}), "event 0: event of an unknown kind: the key type is repeated"},
		{event(pairs{{"type", "AllBlocksCleared"}, {"type", "AllBlocksCleared"}}), "event 0: AllBlocksCleared: the key type is repeated"},
		{event(raw("82 a4|type| a1|x| 05 01")), "event 0: event of an unknown kind: key: 5 is not a string"},
		{event(raw("81 a1ff 01")), "event 0: key: a string that is not UTF-8"},
		{event([]any{"BlockStored", []any{}, nil, nil}), "event 0: BlockStored: 3 fields are too few"},
		{event([]any{"BlockRemoved"}), "event 0: BlockRemoved: 0 fields are too few"},
		{event(pairs{{"type", "BlockStored"}, {"token_ids", nil}}), "event 0: BlockStored: block_hashes is missing"},
		{event(pairs{{"type", "BlockStored"}, {"block_hashes", []any{}}}), "event 0: BlockStored: token_ids is missing"},
		{event(pairs{{"medium", "GPU"}, {"type", "BlockRemoved"}}), "event 0: BlockRemoved: block_hashes is missing"},
		{
			event(pairs{{"type", "BlockRemoved"}, {"block_hashes", []any{}}, {"medium", "GPU"}, {"block_hashes", []any{}}}),
			"event 0: BlockRemoved: the key block_hashes is repeated",
		},
		{
			event(pairs{{"type", "BlockStored"}, {"block_hashes", []any{}}, {"token_ids", nil}, {"cache_salt", 5}}),
			"event 0: BlockStored: cache_salt: 5 is not a string",
		},

		{with("block_hashes", nil), "event 0: BlockStored: block_hashes: nil is not a list"},
		{with("block_hashes", []any{1, "x"}), "event 0: BlockStored: block_hashes: hash 1: a string is not a hash"},
		{with("block_hashes", []any{[]byte("1234567")}), "event 0: BlockStored: block_hashes: hash 0: 7 bytes are too few for a hash"},
		{with("block_hashes", []any{1, 2}), "event 0: BlockStored: 2 hashes for 1 blocks"},
		{with("parent_block_hash", 1.5), "event 0: BlockStored: parent_block_hash: a float is not a hash"},
		{with("token_ids", "x"), "event 0: BlockStored: token_ids: a string is not a list"},
		{event(good, good, good, stored(pair{"token_ids", bad7})), "event 3: BlockStored: token_ids: token 7: -1 is not a token id"},
		{with("token_ids", []any{int64(1) << 32}), "event 0: BlockStored: token_ids: token 0: 4294967296 is not a token id"},
		{with("token_ids", []any{1, []any{1, 2}}), "event 0: BlockStored: token_ids: token 1: a list is not a token id"},
		{with("token_ids", []any{[]any{1, 2}, 3}), "event 0: BlockStored: token_ids: pair 1: 3 is not a list"},
		{with("token_ids", []any{[]any{1, 2, 3}}), "event 0: BlockStored: token_ids: pair 0: 3 tokens are not a pair"},
		{with("token_ids", []any{[]any{1, nil}}), "event 0: BlockStored: token_ids: pair 0: nil is not a token id"},
		{with("token_ids", []any{[]any{1, 2}, []any{2, 3}}), "event 0: BlockStored: 2 tokens are not a multiple of block_size 16"},
		{
			event([]any{"BlockStored", []any{1, 2}, nil, []any{[]any{1, 2}, []any{2, 3}}, 2}),
			"event 0: BlockStored: 2 hashes for 1 blocks",
		},
		{with("token_ids", t16[:15]), "event 0: BlockStored: 15 tokens are not a multiple of block_size 16"},
		{with("block_size", 0), "event 0: BlockStored: 16 tokens without a block_size"},
		{with("block_size", nil), "event 0: BlockStored: 16 tokens without a block_size"},
		{with("block_size", -16), "event 0: BlockStored: block_size: -16 is not a number from 0 to 16777216"},
		{with("block_size", 1<<24+1), "event 0: BlockStored: block_size: 16777217 is not a number from 0 to 16777216"},
		{with("lora_id", true), "event 0: BlockStored: lora_id: a bool is not an id"},
		{with("medium", 1), "event 0: BlockStored: medium: 1 is not a string"},
		{with("medium", "G\xc3"), "event 0: BlockStored: medium: a string that is not UTF-8"},
		{with("lora_name", pairs{{"cache_salt", 5}}), "event 0: BlockStored: lora_name: cache_salt: 5 is not a string"},
		{with("lora_name", pairs{{"cache_salt", "\xff"}}), "event 0: BlockStored: lora_name: cache_salt: a string that is not UTF-8"},
		{with("lora_name", pairs{{"cache_salt", "s"}, {"x", 1}, {"cache_salt", "s"}}), "event 0: BlockStored: lora_name: the key cache_salt is repeated"},
		{with("lora_name", raw("81 01 02")), "event 0: BlockStored: lora_name: key: 1 is not a string"},
		{with("lora_name", pairs{{"component_type", 1}}), "event 0: BlockStored: lora_name: component_type: 1 is not a string"},
		{with("lora_name", []any{}), "event 0: BlockStored: lora_name: a list is not a string"},
		{with("lora_name", []any{"full", 1}), "event 0: BlockStored: lora_name: 1 is not a string"},
		{with("lora_name", 1), "event 0: BlockStored: lora_name: 1 is not a string"},
		{
			event(pairs{{"type", "BlockStored"}, {"block_hashes", []any{}}, {"token_ids", nil}, {"lora_name", pairs{{"cache_salt", "s"}}}}),
			"event 0: BlockStored: lora_name: a map is not a string",
		},
		{with("extra_keys", []any{nil, nil}), "event 0: BlockStored: extra_keys: 2 entries for 1 hashes"},
		{with("extra_keys", []any{}), "event 0: BlockStored: extra_keys: 0 entries for 1 hashes"},
		{with("extra_keys", []any{"salt"}), "event 0: BlockStored: extra_keys: entry 0: a string is not a list"},
		{with("extra_keys", []any{[]any{"a", "\xff"}}), "event 0: BlockStored: extra_keys: entry 0: key 1: a string that is not UTF-8"},
		{with("extra_keys", []any{[]any{[]any{"\xff", 1}}}), "event 0: BlockStored: extra_keys: entry 0: key 0: a string that is not UTF-8"},
		{with("extra_keys", []any{[]any{raw("c1")}}), "event 0: BlockStored: extra_keys: entry 0: key 0: the reserved byte 0xc1"},
		{with("group_idx", 1024), "event 0: BlockStored: group_idx: 1024 is not a number from 0 to 1023"},
		{with("kv_cache_spec_kind", 1), "event 0: BlockStored: kv_cache_spec_kind: 1 is not a string"},
		{with("kv_cache_spec_sliding_window", int64(1)<<31), "event 0: BlockStored: kv_cache_spec_sliding_window: 2147483648 is not a number from 0 to 2147483647"},
	} {
		p := pack(t, tt.batch, true)
		var b events.Batch
		err := events.Decode(p, &b)
		if want := "events: malformed payload: " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%x:\ngot  %v\nwant %s", p, err, want)
		}
		checkRefused(t, err, &b)
	}
}

// TestAccepted has odd payloads that are valid.
func TestAccepted(t *testing.T) {
	stored := func(more ...pair) pairs {
		return append(pairs{{"type", "BlockStored"}, {"block_hashes", []any{uint64(1)}}, {"token_ids", []any{1, 2}}, {"block_size", 2}}, more...)
	}
	one := events.Event{Kind: events.Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2}, BlockSize: 2}
	change := func(f func(*events.Event)) view {
		e := one
		f(&e)
		return view{Time: 1.5, Events: []events.Event{e}}
	}
	batch := func(e ...any) any { return []any{1.5, e} }
	removed := func(more ...pair) any {
		return batch(append(pairs{{"type", "BlockRemoved"}, {"block_hashes", []any{uint64(1), uint64(2)}}}, more...))
	}
	gone := view{Time: 1.5, Events: []events.Event{{Kind: events.Removed, Hashes: []uint64{1, 2}}}}
	plain := view{Time: 1.5, Events: []events.Event{one}}

	for _, tt := range []struct {
		name  string
		batch any
		want  view
	}{
		{"a time that is not a number", []any{math.NaN(), []any{stored()}}, view{Events: []events.Event{one}}},
		{"an endless time", []any{math.Inf(-1), []any{stored()}}, view{Events: []events.Event{one}}},
		{"a whole time", []any{1750000000, []any{stored()}}, view{Time: 1750000000, Events: []events.Event{one}}},
		{"a negative time", []any{-2, []any{stored()}}, view{Time: -2, Events: []events.Event{one}}},
		{"a short float", []any{float32(0.5), []any{stored()}}, view{Time: 0.5, Events: []events.Event{one}}},
		{"no time", pairs{{"events", []any{stored()}}}, view{Events: []events.Event{one}}},
		{"no rank", []any{1.5, []any{stored()}, nil}, plain},
		{"rank 0", []any{1.5, []any{stored()}, 0}, view{Time: 1.5, HasRank: true, Events: []events.Event{one}}},
		{"no events", []any{1.5, []any{}}, view{Time: 1.5}},
		{
			"unknown kinds", batch([]any{"BlockMoved", 1, pairs{{"x", 1}}}, stored(), pairs{{"type", "BlockMoved"}, {"x", 1}, {"x", 1}}, pairs{{"block_hashes", 5}}, pairs{}),
			view{Time: 1.5, Events: []events.Event{one}, Unknown: 4},
		},
		{"an unknown kind after a tier update", batch([]any{"BlockStored", []any{uint64(1)}, nil, nil, nil, 9}, []any{"X"}), view{
			Time: 1.5, Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1}, Adapter: "9"}}, Unknown: 1,
		}},
		{
			"an unknown kind after extra keys", batch(stored(pair{"extra_keys", []any{nil}}), []any{"X"}, pairs{{"type", "X"}}),
			view{Time: 1.5, Events: change(func(e *events.Event) { e.HasExtra = true }).Events, Unknown: 2},
		},
		{"unknown keys twice", batch(stored(pair{"x", 1}, pair{"x", 2})), plain},
		{"a session", batch(stored(pair{"session_id", 5}, pair{"session_id", "s"})), plain},
		{"nothing but nil", batch(stored(
			pair{"parent_block_hash", nil}, pair{"lora_id", nil}, pair{"medium", nil}, pair{"lora_name", nil}, pair{"extra_keys", nil}, pair{"group_idx", nil},
			pair{"kv_cache_spec_kind", nil}, pair{"kv_cache_spec_sliding_window", nil}, pair{"locality", nil}, pair{"ownership", nil}, pair{"origin", nil}, pair{"cache_salt", nil},
		)), plain},
		{"parent 0", batch(stored(pair{"parent_block_hash", 0})), change(func(e *events.Event) { e.HasParent = true })},
		{"adapter by id", batch(stored(pair{"lora_id", 4})), change(func(e *events.Event) { e.Adapter = "4" })},
		{"adapter by a negative id", batch(stored(pair{"lora_id", -4})), change(func(e *events.Event) { e.Adapter = "-4" })},
		{"adapter by a huge id", batch(stored(pair{"lora_id", uint64(math.MaxUint64)})), change(func(e *events.Event) { e.Adapter = "18446744073709551615" })},
		{"adapter by name", batch(stored(pair{"lora_name", "a"}, pair{"lora_id", 4})), change(func(e *events.Event) { e.Adapter = "a" })},
		{"an adapter whose name is empty", batch(stored(pair{"lora_name", ""}, pair{"lora_id", 4})), change(func(e *events.Event) { e.Adapter = "4" })},
		{"extra keys, all nil", batch(stored(pair{"extra_keys", []any{nil}})), change(func(e *events.Event) { e.HasExtra = true })},
		{"extra keys, all empty", batch(stored(pair{"extra_keys", []any{[]any{}}})), change(func(e *events.Event) { e.HasExtra = true })},
		{"extra keys before the hashes", batch(pairs{
			{"extra_keys", []any{[]any{"s"}}}, {"block_size", 2}, {"token_ids", []any{1, 2}}, {"block_hashes", []any{uint64(1)}}, {"type", "BlockStored"},
		}), change(func(e *events.Event) {
			e.HasExtra, e.Extra = true, []events.ExtraKey{{Kind: events.ExtraText, Text: "s"}}
		})},
		{"new origin", batch(stored(pair{"origin", "NEW"})), plain},
		{"reused", batch(stored(pair{"origin", "REUSED"})), change(func(e *events.Event) { e.Reused = true })},
		{"an odd origin", batch(stored(pair{"origin", []any{"REUSED"}})), plain},
		{"counts", removed(pair{"remaining_copy_counts", []any{0, 3}}), view{Time: 1.5, Events: []events.Event{
			{Kind: events.Removed, Hashes: []uint64{1, 2}, Remaining: []uint32{0, 3}},
		}}},
		{"counts of a stored event", batch(stored(pair{"remaining_copy_counts", []any{1}}, pair{"remaining_copy_counts", 1})), plain},
		{"too few counts", removed(pair{"remaining_copy_counts", []any{0}}), gone},
		{"negative counts", removed(pair{"remaining_copy_counts", []any{0, -1}}), gone},
		{"counts of another type", removed(pair{"remaining_copy_counts", pairs{{"x", []any{1, 2}}}}), gone},
		{"counts that are nil", removed(pair{"remaining_copy_counts", nil}), gone},
		{"fields of another kind", removed(pair{"token_ids", "x"}, pair{"token_ids", 5}, pair{"lora_name", 3}), gone},
		{"a cleared event with fields", batch([]any{"AllBlocksCleared", "GPU"}, pairs{{"type", "AllBlocksCleared"}, {"medium", 5}}), view{
			Time: 1.5, Events: []events.Event{{Kind: events.Cleared, Medium: "GPU"}, {Kind: events.Cleared}},
		}},
		{"a tier update", batch([]any{"BlockStored", []any{uint64(1), uint64(2)}, nil, nil, nil, nil, "CPU"}), view{
			Time: 1.5, Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1, 2}, Medium: "CPU"}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b events.Batch
			must(t, events.Decode(pack(t, tt.batch, true), &b))
			if got := shown(&b); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, tt.want)
			}
			checkAccepted(t, pack(t, tt.batch, true), &b)
		})
	}
}

// TestLimits decodes lists at each limit and one item longer.
func TestLimits(t *testing.T) {
	// repeat is a list of n times an item, after a head of five bytes.
	repeat := func(n int, item string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n)), bytes.Repeat([]byte(item), n)...)
	}
	for _, tt := range []struct {
		name string
		most int
		want string
		make func(n int) []byte
	}{
		{"events", 1 << 18, "events: more than 262144 events", func(n int) []byte {
			return append([]byte{0x92, 0}, repeat(n, "\x91\xa1x")...)
		}},
		{"hashes", 1 << 22, "event 0: BlockRemoved: block_hashes: more than 4194304 hashes", func(n int) []byte {
			return append(spell(t, "92 00 91 92 ac|BlockRemoved|"), repeat(n, "\x07")...)
		}},
		{"tokens", 1 << 24, "event 0: BlockStored: token_ids: more than 16777216 tokens", func(n int) []byte {
			return append(append(spell(t, "92 00 91 95 ab|BlockStored| 90 c0"), repeat(n, "\x07")...), 1)
		}},
		{"extra keys", 1 << 21, "event 0: BlockStored: extra_keys: entry 0: more than 2097152 extra keys", func(n int) []byte {
			return append(spell(t, "92 00 91 99 ab|BlockStored| 91 07 c0 c0 00 c0 c0 c0 91"), repeat(n, "\xa3abc")...)
		}},
		{"extra keys of a byte", 1000, "event 0: BlockStored: extra_keys: entry 0: more than 1000 extra keys", func(n int) []byte {
			p := append(spell(t, "92 00 91 9d ab|BlockStored| 91 07 c0 c0 00 c0 c0 c0 91"), repeat(n, "\x07")...)
			p = append(p, 0xc0, 0xc0, 0xc0, 0xc5, 0, 0)
			padding := 4001 - len(p)
			binary.BigEndian.PutUint16(p[len(p)-2:], uint16(padding))
			return append(p, make([]byte, padding)...)
		}},
		{"bytes", 64 << 20, "the payload has 67108865 bytes, more than 67108864", func(n int) []byte {
			return append(binary.BigEndian.AppendUint32([]byte{0x93, 0, 0x90, 0xc6}, uint32(n-8)), make([]byte, n-8)...)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// One batch for both, so that limits are tested on used batches too.
			var b events.Batch
			err := events.Decode(tt.make(tt.most), &b)
			if rank := "events: malformed payload: data_parallel_rank: a byte string is not"; tt.name == "bytes" {
				if err == nil || !strings.HasPrefix(err.Error(), rank) {
					t.Errorf("%d: %v", tt.most, err)
				}
			} else if err != nil {
				t.Errorf("%d: %v", tt.most, err)
			}
			err = events.Decode(tt.make(tt.most+1), &b)
			if want := "events: malformed payload: " + tt.want; err == nil || err.Error() != want {
				t.Errorf("%d:\ngot  %v\nwant %s", tt.most+1, err, want)
			}
			checkRefused(t, err, &b)
		})
	}
}

// TestNoAllocation decodes new payloads without allocating.
func TestNoAllocation(t *testing.T) {
	for _, s := range shapes[6:] {
		ring := ring(t, s, 200, 8, func(i int, e *events.Event) {
			e.Adapter = fmt.Sprint("adapter-", i%8)
			e.Medium = []string{"GPU", "CPU", "STORAGE", "tape"}[i%4]
			for block := range e.Hashes {
				e.Extra = append(e.Extra,
					events.ExtraKey{Block: block, Kind: events.ExtraText, Text: e.Adapter},
					events.ExtraKey{Block: block, Kind: events.ExtraMedia, Text: fmt.Sprint(mediaID, i%3), Int: int64(i)})
			}
		})
		var b events.Batch
		for _, p := range ring {
			must(t, events.Decode(p, &b))
		}
		i := 0
		if n := testing.AllocsPerRun(1000, func() {
			if events.Decode(ring[i%len(ring)], &b) != nil {
				t.Fail()
			}
			i++
		}); n != 0 {
			t.Errorf("%s: %v allocations", s.version, n)
		}
	}
}

// odd are payloads of fields in the positions of single engines.
var odd = []string{
	"93 00 91 98 ab|BlockStored| 91 07 c0 91 01 01 c0 c0 81 aa|cache_salt| a1|s| c0",
	"93 00 91 98 ab|BlockStored| 91 07 c0 91 01 01 c0 c0 82 a1|x| c3 ae|component_type| a4|full| c0",
	"93 00 91 98 ab|BlockStored| 91 07 c0 91 01 01 c0 c0 91 a4|full| c0",
	"93 00 91 85 a4|type| ab|BlockStored| ac|block_hashes| 91 d3ffffffffffffffff a9|token_ids| 91 920102 aa|block_size| 01 aa|cache_salt| a1|s| c0",
	"93 00 91 83 a4|type| ac|BlockRemoved| ac|block_hashes| 91 07 ae|component_type| a5|mamba| c0",
	"93 00 91 83 ac|block_hashes| 91 c4080102030405060708 b5|remaining_copy_counts| 91 02 a4|type| ac|BlockRemoved| c0",
	"93 00 91 99 ab|BlockStored| 91 07 c0 c0 00 ff c0 c0 91 95 01 a1|s| 92 a1|i| fd c4021234 92 01 01 02",
}

func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*.msgpack")
	if err != nil || len(files) == 0 {
		f.Fatal("no testdata: ", err)
	}
	var dirt [][]byte
	for _, file := range files {
		p, err := os.ReadFile(file)
		must(f, err)
		f.Add(p)
		dirt = append(dirt, p)
	}
	for _, prefix := range places {
		f.Add(spell(f, prefix+claims[0]))
		f.Add(spell(f, prefix+"c0 c0 c0 c0 c0 c0 c0 c0 c0 c0 c0 c0 c0 c0 c0"))
	}
	heap := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for _, s := range odd {
		f.Add(spell(f, s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		payload := bytes.Clone(p)
		var b events.Batch
		metrics.Read(heap)
		before := heap[0].Value.Uint64()
		err := events.Decode(payload, &b)
		metrics.Read(heap)
		if got := heap[0].Value.Uint64() - before; got > uint64(bytesPerByte*len(p)+1<<20) {
			t.Errorf("%d bytes allocated for a payload of %d", got, len(p))
		}
		checkRefused(t, err, &b)
		first := kept(&b)
		if err == nil {
			checkAccepted(t, payload, &b)
		}

		for i := range payload {
			payload[i] ^= 0xff
		}
		if !reflect.DeepEqual(kept(&b), first) {
			t.Error("the batch changed with the payload")
		}

		for _, d := range dirt[:3] {
			must(t, events.Decode(d, &b))
		}
		again := events.Decode(p, &b)
		if fmt.Sprint(again) != fmt.Sprint(err) || !reflect.DeepEqual(kept(&b), first) {
			t.Errorf("fresh: %+v, %v\nused: %+v, %v", first, err, kept(&b), again)
		}
	})
}

// view is the content of a Batch.
type view struct {
	Time    float64
	Rank    int
	HasRank bool
	Events  []events.Event
	Unknown int
}

func shown(b *events.Batch) view {
	return view{b.Time, b.Rank, b.HasRank, b.Events, b.Unknown}
}

// kept is a copy of the content of b that does not share memory with it.
func kept(b *events.Batch) view {
	v := shown(b)
	v.Events = slices.Clone(v.Events)
	for i := range v.Events {
		e := &v.Events[i]
		e.Hashes, e.Tokens, e.Extra, e.Remaining = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Extra), slices.Clone(e.Remaining)
	}
	return v
}

// checkRefused fails unless err is nil, or is a valid error and b is empty.
func checkRefused(t testing.TB, err error, b *events.Batch) {
	t.Helper()
	if err == nil {
		return
	}
	if !errors.Is(err, events.ErrMalformed) {
		t.Errorf("error %v does not wrap ErrMalformed", err)
	}
	if fault.Reason(err) == fault.Unknown {
		t.Errorf("error %v has no reason", err)
	}
	if !reflect.DeepEqual(shown(b), view{}) {
		t.Errorf("refused with %v, but the batch holds %+v", err, shown(b))
	}
}

// checkAccepted fails unless b, decoded from p, is valid and equal to the result of a peer.
func checkAccepted(t testing.TB, p []byte, b *events.Batch) {
	t.Helper()
	if err := b.Validate(); err != nil {
		t.Errorf("%v\n%x", err, p)
	}
	peer := newPeer(p)
	if err := peer.read(); err != nil {
		t.Fatalf("%v\n%x", err, p)
	}
	if got := shown(b); !reflect.DeepEqual(got, peer.view) {
		t.Errorf("%x:\ngot  %+v\npeer %+v", p, got, peer.view)
	}
}
