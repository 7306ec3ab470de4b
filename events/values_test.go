package events_test

import (
	"reflect"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestUsualStrings: strings from the table of usual strings equal those in the payload.
func TestUsualStrings(t *testing.T) {
	for _, s := range []string{
		"", "GPU", "CPU", "cpu", "STORAGE", "FS", "OBJ", "CPU_PINNED", "DISK", "EXTERNAL", "LOCAL", "REMOTE", "full_attention", "mla_attention", "sliding_window", "sliding_window_mla",
		"mamba", "chunked_local_attention", "sink_full_attention", "encoder_only_attention", "cross_attention", "unknown", "tape",
	} {
		var b events.Batch
		must(t, events.Decode(pack(t, []any{0, []any{[]any{"BlockRemoved", []any{}, s}}}, true), &b))
		if got := b.Events[0].Medium; got != s {
			t.Errorf("%q was read as %q", s, got)
		}
	}
}

// TestSlicesApart: an append to a slice of an event changes no other slice.
func TestSlicesApart(t *testing.T) {
	var b events.Batch
	goldens(func(file string, w writer, want view) {
		for range 2 { // once into new memory, once into used
			must(t, events.Decode(w.batch(t, want), &b))
		}
		for _, e := range b.Events {
			_ = append(e.Hashes, 99)
			_ = append(e.Tokens, 99)
			_ = append(e.Extra, events.ExtraKey{Block: 99})
			_ = append(e.Remaining, 99)
		}
		_ = append(b.Events, events.Event{Medium: "tape"})
		if got := shown(&b); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", file, got, want)
		}
	})
}
