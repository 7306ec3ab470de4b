package events_test

import (
	"reflect"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestSGLang has what only SGLang sends: its map in the place of vLLM's
// lora_name, and the layers that its events are about.
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
		{"layers of a cleared cache", pairs{{"type", "AllBlocksCleared"}, {"component_type", "swa"}}, []events.Event{{Kind: events.Cleared}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Between two others, which it must leave as they are.
			other := []any{"BlockRemoved", []any{5}, "DISK"}
			payload := pack(t, []any{1.5, []any{other, tt.event, other}, 0}, true)
			var b events.Batch
			if err := events.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
			around := events.Event{Kind: events.Removed, Hashes: []uint64{5}, Medium: "DISK"}
			want := view{Time: 1.5, HasRank: true, Unknown: tt.unknown, Events: append(append([]events.Event{around}, tt.want...), around)}
			if got := shown(&b); !reflect.DeepEqual(got, want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, want)
			}
			checkAccepted(t, payload, &b)
		})
	}
}
