package events_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestSGLang has the fields of SGLang alone: its map in the place of vLLM's lora_name, and the
// layers of an event.
func TestSGLang(t *testing.T) {
	array := func(seventh any) any {
		return []any{"BlockStored", []any{int64(-1)}, nil, []any{1, 2}, 2, nil, "GPU", seventh}
	}
	stored := func(more ...pair) any {
		return append(pairs{{"type", "BlockStored"}, {"block_hashes", []any{int64(-1)}}, {"token_ids", []any{1, 2}}, {"block_size", 2}, {"medium", "GPU"}}, more...)
	}
	removed := func(more ...pair) any {
		return append(pairs{{"type", "BlockRemoved"}, {"block_hashes", []any{int64(-1)}}, {"medium", "GPU"}}, more...)
	}
	one := func(salt, adapter string) []events.Event {
		return []events.Event{{
			Kind: events.Stored, Hashes: []uint64{1<<64 - 1}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "GPU", Salt: salt, Adapter: adapter,
		}}
	}
	gone := []events.Event{{Kind: events.Removed, Hashes: []uint64{1<<64 - 1}, Medium: "GPU"}}

	for _, tt := range []struct {
		name    string
		event   any
		want    []events.Event
		unknown int
	}{
		{"a salt", array(pairs{{"cache_salt", "s"}}), one("s", ""), 0},
		{"an empty map", array(pairs{}), one("", ""), 0},
		{"a salt that is nil", array(pairs{{"cache_salt", nil}}), one("", ""), 0},
		{"keys of the future", array(pairs{{"x", 1}, {"cache_salt", "s"}, {"lora_name", 5}, {"x", nil}}), one("s", ""), 0},
		{"vLLM's adapter", array("s"), one("", "s"), 0},
		{"a salt in a map", stored(pair{"cache_salt", "s"}, pair{"session_id", "x"}), one("s", ""), 0},
		{"an adapter and a salt", stored(pair{"lora_name", "a"}, pair{"cache_salt", "s"}), one("s", "a"), 0},
		{"a removal knows no salt", removed(pair{"cache_salt", 5}), gone, 0},
		{"full layers", array(pairs{{"component_type", "full"}}), one("", ""), 0},
		{"full layers in a map", stored(pair{"component_type", "full"}), one("", ""), 0},
		{"full layers removed", removed(pair{"component_type", "full"}), gone, 0},
		{"no layers", stored(pair{"component_type", nil}, pair{"component_types", nil}), one("", ""), 0},
		{"window layers", array(pairs{{"cache_salt", "s"}, {"component_type", "swa"}}), nil, 1},
		{"a state", stored(pair{"component_type", "mamba"}), nil, 1},
		{"layers of the future", stored(pair{"component_type", "new"}), nil, 1},
		{"a state removed", removed(pair{"component_type", "mamba"}), nil, 1},
		{"lists of layers", array([]any{"full", "swa"}), nil, 1},
		{"a list of full layers", array([]any{"full"}), nil, 1},
		{"lists of layers in a map", stored(pair{"component_types", []any{"full"}}), nil, 1},
		{"lists of layers removed", removed(pair{"component_types", []any{"full"}}), gone, 0},
		{"full layers behind the medium", array("full"), one("", ""), 0},
		{"a window behind the medium", array("swa"), nil, 1},
		{"an adapter of the name of layers", []any{"BlockStored", []any{int64(-1)}, nil, []any{1, 2}, 2, 7, "GPU", "full"}, one("", "full"), 0},
		{"full layers removed, behind the medium", []any{"BlockRemoved", []any{int64(-1)}, "GPU", "full"}, gone, 0},
		{"a state removed, behind the medium", []any{"BlockRemoved", []any{int64(-1)}, "GPU", "mamba"}, nil, 1},
		{"the kind says that there are layers", append(pairs{{"type", "BlockStoredWithComponentType"}}, stored(pair{"component_type", "full"}).(pairs)[1:]...), one("", ""), 0},
		{"and of a removal", append(pairs{{"type", "BlockRemovedWithComponentType"}}, removed(pair{"component_type", "swa"}).(pairs)[1:]...), nil, 1},
		{"a cleared tier", []any{"AllBlocksCleared", "CPU"}, []events.Event{{Kind: events.Cleared, Medium: "CPU"}}, 0},
		{"a cleared tier in a map", pairs{{"type", "AllBlocksCleared"}, {"medium", "CPU"}}, []events.Event{{Kind: events.Cleared, Medium: "CPU"}}, 0},
		{"all tiers cleared", []any{"AllBlocksCleared", nil}, []events.Event{{Kind: events.Cleared}}, 0},
		{"something cleared", []any{"AllBlocksCleared", []any{"CPU"}, 5}, []events.Event{{Kind: events.Cleared}}, 0},
		{"layers of a cleared cache", pairs{{"type", "AllBlocksCleared"}, {"component_type", "swa"}}, []events.Event{{Kind: events.Cleared}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Between two others, which must not change.
			other := []any{"BlockRemoved", []any{5}, "DISK"}
			payload := pack(t, []any{1.5, []any{other, tt.event, other}, 0}, true)
			var b events.Batch
			must(t, events.Decode(payload, &b))
			around := events.Event{Kind: events.Removed, Hashes: []uint64{5}, Medium: "DISK"}
			want := view{Time: 1.5, HasRank: true, Unknown: tt.unknown, Events: append(append([]events.Event{around}, tt.want...), around)}
			if got := shown(&b); !reflect.DeepEqual(got, want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, want)
			}
			checkAccepted(t, payload, &b)
		})
	}
}

// TestUnrecognized: unknown values are named, up to a limit, unless a later event empties the
// cache.
func TestUnrecognized(t *testing.T) {
	kind := func(name string) any { return []any{name, []any{1}} }
	label := func(kind, name string) any {
		return pairs{{"type", kind}, {"block_hashes", []any{1}}, {"token_ids", []any{1, 2}}, {"block_size", 2}, {"component_type", name}}
	}
	long := strings.Repeat("x", 100)
	for _, tt := range []struct {
		name   string
		events []any
		want   []string
		may    bool
	}{
		{"nothing", []any{label("BlockStored", "mamba"), label("BlockRemoved", "full"), []any{"AllBlocksCleared", "CPU"}}, nil, false},
		{"kinds", []any{kind("BlockMoved"), kind("BlockSeen"), kind("BlockMoved")}, []string{`event kind "BlockMoved"`, `event kind "BlockSeen"`}, true},
		{"no kind", []any{pairs{{"block_hashes", []any{1}}}}, []string{"event without a type"}, true},
		{"a label of a store", []any{label("BlockStored", "new")}, []string{`component_type "new"`}, false},
		{"a label of a removal", []any{label("BlockRemoved", "new")}, []string{`component_type "new"`}, true},
		{"labels", []any{append(label("BlockStored", "full").(pairs), pair{"component_types", []any{"full"}})}, []string{"component_types"}, false},
		{"cleared before", []any{[]any{"AllBlocksCleared"}, kind("BlockMoved")}, []string{`event kind "BlockMoved"`}, true},
		{"cleared behind", []any{kind("BlockMoved"), []any{"AllBlocksCleared"}}, nil, false},
		{"a tier cleared behind", []any{kind("BlockMoved"), []any{"AllBlocksCleared", "CPU"}}, []string{`event kind "BlockMoved"`}, true},
		{"many", []any{kind("1"), kind("2"), kind(long), kind("4"), kind("5")}, []string{`event kind "1"`, `event kind "2"`, `event kind "` + long[:40] + `"`, `event kind "4"`}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := events.Batch{Unrecognized: []string{"of the batch before"}, MayRemove: true}
			must(t, events.Decode(pack(t, []any{1.5, tt.events, 0}, true), &b))
			if !slices.Equal(b.Unrecognized, tt.want) || b.MayRemove != tt.may {
				t.Errorf("%q, may remove %t", b.Unrecognized, b.MayRemove)
			}
		})
	}
}

// TestTaggedKeys: tagged entries of extra_keys.
func TestTaggedKeys(t *testing.T) {
	keys := []any{[]any{[]any{"lora", "a"}, []any{"cache_salt", "s"}, []any{"id", 3}}, []any{[]any{"lora", "a"}, []any{"other", "x"}}}
	var b events.Batch
	must(t, events.Decode(pack(t, []any{1.5, []any{[]any{"BlockStored", []any{1, 2}, nil, []any{1, 2}, 1, 7, "GPU", "a", keys}}, 0}, true), &b))
	got := b.Events[0].Extra
	opaque := string(pack(t, []any{"other", "x"}, true))
	want := []events.ExtraKey{
		{Block: 0, Kind: events.ExtraText, Text: "a"}, {Block: 0, Kind: events.ExtraText, Text: "s"}, {Block: 0, Kind: events.ExtraMedia, Text: "id", Int: 3},
		{Block: 1, Kind: events.ExtraText, Text: "a"}, {Block: 1, Kind: events.ExtraOpaque, Text: opaque},
	}
	if !slices.Equal(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
}
