package events_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fault"
)

func TestReasonOf(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range []struct {
		payload string
		want    string
	}{
		{"", fault.Truncated},
		{"93 00 91", fault.Truncated},
		{"93 00 dd00ffffff 00", fault.Truncated},
		{"93 00 91 92 ac|BlockRemoved| 91 cf00", fault.Truncated},
		{"93 00 91 91 ff 00", fault.Type},
		{"|{}|", fault.Encoding},
		{"93 00 91 c1 00", fault.Encoding},
		{"93 00 91 91 a1ff 00", fault.Encoding},
		{"93 00 90 00 00", fault.Encoding},
		{"93 00 91 93 ac|BlockRemoved| 90 a1ff 00", fault.Encoding},
		{"00", fault.Type},
		{"93 c0 90 00", fault.Type},
		{"93 00 90 ff", fault.Type},
		{"93 00 91 92 ac|BlockRemoved| 91 a0 00", fault.Type},
		{"93 00 91 92 ac|BlockRemoved| 91 c40100 00", fault.Type},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 ff 01 00", fault.Type},
		{"91 00", fault.Missing},
		{"80", fault.Missing},
		{"93 00 91 90 00", fault.Missing},
		{"93 00 91 91 ac|BlockRemoved| 00", fault.Missing},
		{"93 00 91 81 a4|type| ac|BlockRemoved| 00", fault.Missing},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 00 00 00", fault.Missing},
		{"93 00 91 95 ab|BlockStored| 90 c0 91 00 02 00", fault.Contradiction},
		{"93 00 91 95 ab|BlockStored| 92 00 01 c0 91 00 01 00", fault.Contradiction},
		{"93 00 91 99 ab|BlockStored| 91 00 c0 c0 00 c0 c0 c0 90 00", fault.Contradiction},
		{"82 a6|events| 90 a6|events| 90", fault.Contradiction},
		{"93 00 91 83 a4|type| ac|BlockRemoved| ac|block_hashes| 90 ac|block_hashes| 90 00", fault.Contradiction},
		{"93 00 91 92 a1|x|" + strings.Repeat("91", 70) + "c0 00", fault.Limit},
		{"93 00 91 99 ab|BlockStored| 91 00 c0 c0 00 c0 c0 c0 91 dc0040" + strings.Repeat("01", 64) + "00", fault.Limit},
	} {
		var b events.Batch
		err := events.Decode(spell(t, tt.payload), &b)
		checkRefused(t, err, &b)
		if got := fault.Reason(fmt.Errorf("pod a: %w", err)); got != tt.want {
			t.Errorf("%s: %v: reason %v, want %v", tt.payload, err, got, tt.want)
		}
		seen[tt.want] = true
	}
	for _, r := range []string{fault.Truncated, fault.Encoding, fault.Type, fault.Missing, fault.Contradiction, fault.Limit} {
		if !seen[r] {
			t.Errorf("no payload is refused for %v", r)
		}
	}
	for _, err := range []error{nil, errors.New("other"), events.ErrMalformed} {
		if got := fault.Reason(err); got != fault.Unknown {
			t.Errorf("%v: reason %v", err, got)
		}
	}
}

func TestReasonOfValidate(t *testing.T) {
	for _, tt := range []struct {
		batch *events.Batch
		want  string
	}{
		{nil, fault.Missing},
		{&events.Batch{Rank: -1}, fault.Type},
		{&events.Batch{Rank: 1}, fault.Contradiction},
		{&events.Batch{Time: math.NaN()}, fault.Type},
		{&events.Batch{Time: math.Inf(-1)}, fault.Type},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Window: -1}}}, fault.Type},
		{&events.Batch{Events: []events.Event{{}}}, fault.Type},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Group: -1}}}, fault.Type},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, BlockSize: -1}}}, fault.Type},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Tokens: []uint32{1}}}}, fault.Missing},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Tokens: []uint32{1}, BlockSize: 1, Pairs: true}}}, fault.Contradiction},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Parent: 1}}}, fault.Contradiction},
		{&events.Batch{Events: []events.Event{{Kind: events.Removed, Remaining: []uint32{1}}}}, fault.Contradiction},
		{&events.Batch{Events: []events.Event{{Kind: events.Stored, Extra: []events.ExtraKey{{}}}}}, fault.Contradiction},
	} {
		err := tt.batch.Validate()
		if got := fault.Reason(err); got != tt.want || !errors.Is(err, events.ErrMalformed) {
			t.Errorf("%v: reason %v, want %v", err, got, tt.want)
		}
	}
}
