package events_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestEndings: an event that ends in the same bytes as another must be decoded as if it stood
// alone, whatever the other was. The events are mixed at random and compared with a peer, which
// decodes each one on its own.
func TestEndings(t *testing.T) {
	array := func(fields ...any) any { return append([]any{"BlockStored"}, fields...) }
	object := func(kind string, fields ...pair) any { return append(pairs{{"type", kind}}, fields...) }
	one, two := []any{1}, []any{1, 2}
	forms := []any{
		array(one, nil, one, 1),
		array(two, 7, two, 1),
		array(one, nil, one, 1, nil, "GPU"),
		array(one, nil, one, 1, 5, "GPU"),
		array(one, nil, one, 1, nil, "CPU", pairs{{"cache_salt", "s"}}),
		array(two, nil, two, 1, nil, "CPU", pairs{{"cache_salt", "s"}}),
		array(two, nil, two, 1, nil, "CPU", pairs{{"component_type", "swa"}}),
		array(one, nil, one, 1, nil, nil, "a", []any{nil}),
		array(one, nil, one, 1, nil, nil, "a", []any{[]any{"s"}}, 3, "mamba", 4, "future"),
		array(one, nil, one, 1, nil, nil, "a", []any{[]any{"s"}}, 3, "mamba", 4, "fusion"),
		array(one, nil, one, 1, nil, nil, "a", []any{nil}, 3, "mamba", 4, "future"),
		object("BlockStored", pair{"block_hashes", one}, pair{"parent_block_hash", nil}, pair{"token_ids", one}, pair{"block_size", 1}, pair{"medium", "GPU"}),
		object("BlockStored", pair{"block_hashes", two}, pair{"parent_block_hash", 9}, pair{"token_ids", two}, pair{"block_size", 1}, pair{"medium", "GPU"}),
		object("BlockStored", pair{"block_hashes", one}, pair{"parent_block_hash", nil}, pair{"token_ids", one}, pair{"medium", "GPU"}, pair{"block_size", 1}),
		// An adapter before the ending, the parent in it, or an unknown field.
		object("BlockStored", pair{"lora_id", 5}, pair{"block_hashes", one}, pair{"parent_block_hash", nil}, pair{"token_ids", one}, pair{"block_size", 1}),
		object("BlockStored", pair{"lora_id", 6}, pair{"block_hashes", one}, pair{"parent_block_hash", nil}, pair{"token_ids", one}, pair{"block_size", 1}),
		object("BlockStored", pair{"block_hashes", one}, pair{"token_ids", one}, pair{"parent_block_hash", 3}, pair{"block_size", 1}),
		object("BlockStored", pair{"x", 5}, pair{"block_hashes", one}, pair{"parent_block_hash", nil}, pair{"token_ids", one}, pair{"block_size", 1}, pair{"x", 1}),
		object("BlockStored", pair{"block_hashes", one}, pair{"parent_block_hash", 4}, pair{"token_ids", one}, pair{"block_size", 1}, pair{"component_type", "swa"}),
		object("BlockStored", pair{"block_hashes", one}, pair{"parent_block_hash", 4}, pair{"token_ids", nil}, pair{"medium", "CPU"}, pair{"locality", "REMOTE"},
			pair{"ownership", "o"}, pair{"group_idx", 2}, pair{"kv_cache_spec_sliding_window", 8}, pair{"origin", "REUSED"}, pair{"cache_salt", "s"}),
		object("BlockRemoved", pair{"block_hashes", one}, pair{"remaining_copy_counts", []any{4, 5}}),
		object("BlockRemoved", pair{"block_hashes", two}, pair{"remaining_copy_counts", []any{4, 5}}),
		object("BlockRemoved", pair{"block_hashes", one}, pair{"medium", "GPU"}),
		object("BlockRemoved", pair{"block_hashes", two}, pair{"medium", "GPU"}),
		object("BlockRemoved", pair{"medium", "CPU"}, pair{"block_hashes", two}),
		object("BlockRemoved", pair{"block_hashes", two}),
		[]any{"BlockRemoved", one, "GPU"}, []any{"BlockRemoved", two, "GPU"}, []any{"BlockRemoved", two}, []any{"BlockRemoved", two, "CPU", 2, 5},
		// The same bytes behind the hashes.
		[]any{"BlockRemoved", one, "group_idx", 5}, object("BlockRemoved", pair{"block_hashes", one}, pair{"group_idx", 5}),
		// A field that nobody knows, whose value is the bytes of an event.
		object("BlockRemoved", pair{"block_hashes", one}, pair{"GPU", []any{"BlockRemoved", one}}), []any{"BlockRemoved", one},
		[]any{"AllBlocksCleared"}, object("AllBlocksCleared"), []any{"x"}, object("x"),
	}
	r := rand.New(rand.NewPCG(5, 6))
	var b events.Batch
	follows := map[[2]int]bool{}
	for range 4000 {
		var list []any
		last := -1
		for range 6 {
			i := r.IntN(len(forms))
			follows[[2]int{last, i}] = true
			list, last = append(list, forms[i]), i
		}
		payload := pack(t, []any{1.5, list}, true)
		if err := events.Decode(payload, &b); err != nil {
			t.Fatalf("%v\n%x", err, payload)
		}
		checkAccepted(t, payload, &b)
	}
	if n := len(forms) * (len(forms) + 1); len(follows) != n {
		t.Errorf("%d of %d pairs of events", len(follows), n)
	}
}

// TestEndingsChecked: an ending is checked again in each event, and its values belong to that
// event alone.
func TestEndingsChecked(t *testing.T) {
	event := func(hashes, tokens string) string {
		return "99 ab|BlockStored| " + hashes + " c0 " + tokens + " 02 c0 c0 c0 92 c0 c0"
	}
	good := event("92 01 02", "94 01 02 03 04")
	var b events.Batch
	if err := events.Decode(spell(t, "92 00 92"+good+good), &b); err != nil || !b.Events[1].HasExtra {
		t.Fatalf("%+v: %v", b.Events, err)
	}
	for bad, want := range map[string]string{
		event("91 01", "92 01 02"):       "event 1: BlockStored: extra_keys: 2 entries for 1 hashes",
		event("92 01 02", "92 01 02"):    "event 1: BlockStored: 2 hashes for 1 blocks",
		event("92 01 02", "93 01 02 03"): "event 1: BlockStored: 3 tokens are not a multiple of block_size 2",
	} {
		err := events.Decode(spell(t, "92 00 92"+good+bad), &b)
		if err == nil || err.Error() != "events: malformed payload: "+want {
			t.Errorf("%s:\ngot  %v\nwant %s", bad, err, want)
		}
	}

	// A batch's earlier payload does not lend its endings either.
	first, second := spell(t, "92 00 91 93 ac|BlockRemoved| 91 01 a3|CPU|"), spell(t, "92 00 91 93 ac|BlockRemoved| 91 01 a3|GPU|")
	for _, p := range [][]byte{first, second, bytes.Clone(first)} {
		must(t, events.Decode(p, &b))
		if want := string(p[slices.Index(p, 0xa3)+1:]); b.Events[0].Medium != want {
			t.Errorf("medium %s, want %s", b.Events[0].Medium, want)
		}
	}
}
