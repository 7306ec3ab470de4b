package events_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
)

func TestReasonOf(t *testing.T) {
	seen := map[events.Reason]bool{}
	for _, tt := range []struct {
		payload string
		want    events.Reason
	}{
		{"", events.ReasonTruncated},
		{"93 00 91", events.ReasonTruncated},
		{"93 00 dd00ffffff 00", events.ReasonTruncated},
		{"93 00 91 92 ac|BlockRemoved| 91 cf00", events.ReasonTruncated},
		{"93 00 91 91 ff 00", events.ReasonType},
		{"|{}|", events.ReasonEncoding},
		{"93 00 91 c1 00", events.ReasonEncoding},
		{"93 00 91 91 a1ff 00", events.ReasonEncoding},
		{"93 00 90 00 00", events.ReasonEncoding},
		{"93 00 91 93 ac|BlockRemoved| 90 a1ff 00", events.ReasonEncoding},
		{"00", events.ReasonType},
		{"93 c0 90 00", events.ReasonType},
		{"93 00 90 ff", events.ReasonType},
		{"93 00 91 92 ac|BlockRemoved| 91 a0 00", events.ReasonType},
		{"93 00 91 92 ac|BlockRemoved| 91 c40100 00", events.ReasonType},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 ff 01 00", events.ReasonType},
		{"91 00", events.ReasonMissing},
		{"80", events.ReasonMissing},
		{"93 00 91 90 00", events.ReasonMissing},
		{"93 00 91 91 ac|BlockRemoved| 00", events.ReasonMissing},
		{"93 00 91 81 a4|type| ac|BlockRemoved| 00", events.ReasonMissing},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 00 00 00", events.ReasonMissing},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 00 02 00", events.ReasonContradiction},
		{"93 00 91 95 ab|BlockStored| 92 00 01 c0 91 00 01 00", events.ReasonContradiction},
		{"93 00 91 99 ab|BlockStored| 91 00 c0 c0 00 c0 c0 c0 90 00", events.ReasonContradiction},
		{"82 a6|events| 90 a6|events| 90", events.ReasonContradiction},
		{"93 00 91 83 a4|type| ac|BlockRemoved| ac|block_hashes| 90 ac|block_hashes| 90 00", events.ReasonContradiction},
		{"93 00 91 92 a1|x|" + strings.Repeat("91", 70) + "c0 00", events.ReasonLimit},
		{"93 00 91 99 ab|BlockStored| 91 00 c0 c0 00 c0 c0 c0 91 dc0040" + strings.Repeat("01", 64) + "00", events.ReasonLimit},
	} {
		var b events.Batch
		err := events.Decode(spell(t, tt.payload), &b)
		checkRefused(t, err, &b)
		if got := events.ReasonOf(fmt.Errorf("pod a: %w", err)); got != tt.want {
			t.Errorf("%s: %v: reason %v, want %v", tt.payload, err, got, tt.want)
		}
		seen[tt.want] = true
	}
	for r := events.ReasonTruncated; r <= events.ReasonLimit; r++ {
		if !seen[r] {
			t.Errorf("no payload is refused for %v", r)
		}
	}
	for _, err := range []error{nil, errors.New("other"), events.ErrMalformed} {
		if got := events.ReasonOf(err); got != events.ReasonUnknown {
			t.Errorf("%v: reason %v", err, got)
		}
	}
}

func TestReasonString(t *testing.T) {
	names := map[string]bool{}
	for r := events.ReasonUnknown; r <= events.ReasonLimit; r++ {
		name := r.String()
		if name == "" || names[name] {
			t.Errorf("reason %d is called %q", r, name)
		}
		names[name] = true
	}
	if got := events.Reason(99).String(); got != "reason 99" {
		t.Errorf("reason 99 is called %q", got)
	}
}

// TestReasonOfValidate: Validate tells reasons too.
func TestReasonOfValidate(t *testing.T) {
	for _, tt := range []struct {
		batch *events.Batch
		want  events.Reason
	}{
		{nil, events.ReasonMissing},
		{&events.Batch{Rank: -1}, events.ReasonType},
		{&events.Batch{Events: []events.Event{{}}}, events.ReasonType},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Group: -1}}}, events.ReasonType},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, BlockSize: -1}}}, events.ReasonType},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Tokens: []uint32{1}}}}, events.ReasonMissing},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Tokens: []uint32{1}, BlockSize: 1, Pairs: true}}}, events.ReasonContradiction},
		{&events.Batch{Events: []events.Event{{Kind: events.Removed, Remaining: []uint32{1}}}}, events.ReasonContradiction},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Extra: []events.ExtraKey{{}}}}}, events.ReasonContradiction},
	} {
		err := tt.batch.Validate()
		if got := events.ReasonOf(err); got != tt.want || !errors.Is(err, events.ErrMalformed) {
			t.Errorf("%v: reason %v, want %v", err, got, tt.want)
		}
	}
}
