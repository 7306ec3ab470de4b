package events_test

import (
	"fmt"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestOneIdentity: an engine may write the names of its blocks as integers in
// one place and as digests in another (vLLM's offloading before PR 43468), so
// the forms must mean the same blocks, in one batch and in several.
func TestOneIdentity(t *testing.T) {
	const h, parent = 0xfedc_ba98_7654_3210, 0x8000_0000_0000_0001
	forms := []int{0, -1, 8, 16, 32, 64}
	event := func(digest int) any {
		w := writer{digest: digest}
		return []any{"BlockStored", []any{w.hash(h)}, w.hash(parent), []any{1}, 1}
	}
	var all []any
	var b events.Batch
	for _, digest := range forms {
		all = append(all, event(digest))
		must(t, events.Decode(pack(t, []any{1.5, []any{event(digest)}}, true), &b))
		checkIdentity(t, fmt.Sprint("alone, ", digest), b.Events[0], h, parent)
	}
	must(t, events.Decode(pack(t, []any{1.5, all}, true), &b))
	for i, e := range b.Events {
		checkIdentity(t, fmt.Sprint("together, ", forms[i]), e, h, parent)
	}
	if len(b.Events) != len(forms) {
		t.Errorf("%d events", len(b.Events))
	}
}

func checkIdentity(t *testing.T, what string, e events.Event, h, parent uint64) {
	t.Helper()
	if len(e.Hashes) != 1 || e.Hashes[0] != h || !e.HasParent || e.Parent != parent {
		t.Errorf("%s: block %x, parent %x", what, e.Hashes, e.Parent)
	}
}
