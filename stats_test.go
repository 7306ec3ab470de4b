package kvindex_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

// TestCountersAreWords of 64 bits, without exception: so they are added.
func TestCountersAreWords(t *testing.T) {
	var walk func(path string, of reflect.Type) (bytes uintptr)
	walk = func(path string, of reflect.Type) (bytes uintptr) {
		switch of.Kind() {
		case reflect.Struct:
			for i := range of.NumField() {
				bytes += walk(path+"."+of.Field(i).Name, of.Field(i).Type)
			}
		case reflect.Array:
			bytes = uintptr(of.Len()) * walk(path+"[]", of.Elem())
		case reflect.Uint64:
			bytes = 8
		default:
			t.Errorf("%s is of type %v", path, of)
		}
		if bytes != of.Size() {
			t.Errorf("%s takes %d bytes, its parts %d", path, of.Size(), bytes)
		}
		return bytes
	}
	walk("Counters", reflect.TypeFor[kvindex.Counters]())
	walk("ScoreStats", reflect.TypeFor[kvindex.ScoreStats]())
	walk("StreamStats", reflect.TypeFor[kvindex.StreamStats]())
}

// TestCountsByKind says 0 of what it has never heard of.
func TestCountsByKind(t *testing.T) {
	tiers := kvindex.TierCountsOf(3, 0, 1)
	if got := tiers.String(); got != "gpu=3 disk=1" || tiers.Of(kvindex.TierGPU) != 3 || tiers.Of(kvindex.TierCPU) != 0 || tiers.Of(200) != 0 {
		t.Errorf("tiers: %v", got)
	}
	var names string
	for tier, n := range tiers.All() {
		if names += tier.String(); tier == kvindex.TierDisk && n == 1 {
			break
		}
	}
	if names != "gpucpudisk" {
		t.Errorf("the tiers are %s", names)
	}
	var reasons kvindex.ReasonCounts
	n := 0
	for r, m := range reasons.All() {
		if r != events.Reason(n) || m != 0 {
			t.Errorf("reason %v: %d", r, m)
		}
		n++
	}
	if n != events.NumReasons || reasons.Of(200) != 0 || reasons.String() != "" {
		t.Errorf("%d reasons, %v", n, reasons)
	}
	text, err := json.Marshal(map[string]any{"tiers": tiers, "reasons": reasons})
	var back struct{ Tiers, Reasons map[string]int }
	if err != nil || json.Unmarshal(text, &back) != nil || back.Tiers["gpu"] != 3 || back.Tiers["disk"] != 1 || len(back.Reasons) != events.NumReasons {
		t.Errorf("%s, %v", text, err)
	}
}
