package events_test

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// spell decodes hex with optional blanks and |quoted| ASCII.
func spell(t testing.TB, s string) []byte {
	t.Helper()
	var out []byte
	for i, part := range strings.Split(s, "|") {
		if i%2 == 1 {
			out = append(out, part...)
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		out = append(out, b...)
	}
	return out
}

// TestWidths decodes every number and length in each width that MessagePack has.
func TestWidths(t *testing.T) {
	stored := func(tokens string) string { return "92 00 91 95 ab|BlockStored| 91 07 c0 " + tokens + " 02" }
	removed := func(hashes string) string { return "92 00 91 92 ac|BlockRemoved| " + hashes }
	trailing := func(item string) string { return "92 00 91 94 b0|AllBlocksCleared| c0 " + item + " 01" }
	b8, b40 := "0102030405060708", strings.Repeat("00", 32)+"0102030405060708"
	const folded = 0x0102030405060708

	type test struct {
		name    string
		payload string
		want    events.Event
	}
	var tests []test
	for _, tokens := range []string{
		"92 05 06", "92 cc05 cc06", "92 cd0005 cd0006", "92 ce00000005 ce00000006",
		"92 cf0000000000000005 cf0000000000000006", "92 d005 d006", "92 d10005 d10006", "92 d200000005 d200000006",
		"92 d30000000000000005 d30000000000000006", "dc0002 05 06", "dd00000002 05 cd0006",
	} {
		want := events.Event{Kind: events.Stored, Hashes: []uint64{7}, Tokens: []uint32{5, 6}, BlockSize: 2}
		tests = append(tests, test{"tokens " + tokens, stored(tokens), want})
	}
	for _, tokens := range []string{"92 920506 920607", "dc0002 dc0002 05 cd0006 92 06 07", "dd00000002 dd00000002 05 06 dc0002 06 07"} {
		want := events.Event{Kind: events.Stored, Hashes: []uint64{7}, Tokens: []uint32{5, 6, 6, 7}, Pairs: true, BlockSize: 2}
		tests = append(tests, test{"pairs " + tokens, stored(tokens), want})
	}
	for encoded, token := range map[string]uint32{
		"7f": 127, "cc80": 128, "ccff": 255, "cdffff": 65535, "ce00010000": 65536, "ceffffffff": 1<<32 - 1,
		"cf00000000ffffffff": 1<<32 - 1, "d07f": 127, "d17fff": 32767, "d27fffffff": 1<<31 - 1, "d300000000ffffffff": 1<<32 - 1,
	} {
		want := events.Event{Kind: events.Stored, Hashes: []uint64{7}, Tokens: []uint32{token, 0}, BlockSize: 2}
		tests = append(tests, test{"token " + encoded, stored("92 " + encoded + " 00"), want})
	}
	for encoded, hash := range map[string]uint64{
		"00": 0, "7f": 127, "ff": 1<<64 - 1, "e0": 1<<64 - 32, "d080": 1<<64 - 128, "d18000": 1<<64 - 1<<15, "d280000000": 1<<64 - 1<<31,
		"d38000000000000000": 1 << 63, "d37fffffffffffffff": 1<<63 - 1, "cfffffffffffffffff": 1<<64 - 1,
		"c408" + b8: folded, "c50008" + b8: folded, "c600000008" + b8: folded, "c428" + b40: folded,
	} {
		want := events.Event{Kind: events.Removed, Hashes: []uint64{hash}}
		tests = append(tests, test{"hash " + encoded, removed("91 " + encoded), want})
	}
	for _, item := range []string{
		"c0", "c2", "c3", "00", "ff", "ca00000000", "cb0000000000000000", "a1 78", "d901 78", "d900", "da0001 78", "db00000001 78",
		"c400", "c40100", "c5000100", "c60000000100", "90", "91c0", "dc0001c0", "dd00000001c0", "80", "810102", "de00010102", "df000000010102",
		"d40000", "d5000000", "d600" + "00000000", "d700" + "0000000000000000", "d800" + strings.Repeat("00", 16),
		"c70000", "c7010000", "c800010000", "c9000000010000", "d9 02 fffe", "a2 fffe",
	} {
		tests = append(tests, test{"skipped " + item, trailing(item), events.Event{Kind: events.Cleared}})
	}
	for _, payload := range []string{
		"dc0002 00 dc0001 dc0001 d910|AllBlocksCleared|", "dd00000002 00 dd00000001 dd00000001 da0010|AllBlocksCleared|",
		"82 d902|ts| 00 da0006|events| 91 81 db00000004|type| db00000010|AllBlocksCleared|",
		"de0001 a6|events| 91 de0001 a4|type| b0|AllBlocksCleared|", "df00000001 a6|events| 91 df00000001 a4|type| b0|AllBlocksCleared|",
	} {
		tests = append(tests, test{"frame " + payload, payload, events.Event{Kind: events.Cleared}})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b events.Batch
			must(t, events.Decode(spell(t, tt.payload), &b))
			if want := []events.Event{tt.want}; !reflect.DeepEqual(b.Events, want) {
				t.Errorf("got %+v\nwant %+v", b.Events, want)
			}
		})
	}
}

func TestDepth(t *testing.T) {
	for _, tt := range []struct {
		name, open, last string
	}{
		{"arrays", "91", "c0"}, {"maps by value", "81a161", "c0"}, {"maps by key", "81", "c0"}, {"empty", "91", "90"},
	} {
		for _, depth := range []int{1, 40, 63, 64, 65, 1000, 100_000} {
			t.Run(fmt.Sprint(tt.name, depth), func(t *testing.T) {
				close := ""
				if tt.name == "maps by key" {
					close = strings.Repeat("c0", depth)
				}
				p := spell(t, "92 00 91 92 b0|AllBlocksCleared| "+strings.Repeat(tt.open, depth)+tt.last+close)
				var b events.Batch
				err := events.Decode(p, &b)
				if wantErr := depth > 64; wantErr != (err != nil) {
					t.Errorf("depth %d: %v", depth, err)
				}
			})
		}
	}
}

// claims are heads of items that claim more bytes than follow.
var claims = []string{
	"ddffffffff", "dd80000000", "dd00ffffff", "dcffff", "9f", "dfffffffff", "df80000000", "df7fffffff", "deffff", "8f",
	"dbffffffff", "db7fffffff", "daffff", "d9ff", "bf", "c6ffffffff", "c5ffff", "c4ff", "c9ffffffff01", "c8ffff01", "c7ff01", "d8",
	"cf", "ce", "cd", "cc", "cb", "ca", "d3", "c1",
}

// places are payloads that end before an item.
var places = map[string]string{
	"top":             "",
	"ts":              "93",
	"events":          "93 00",
	"event":           "93 00 91",
	"second event":    "93 00 92 91 a1|x|",
	"rank":            "93 00 90",
	"behind the rank": "94 00 90 c0",
	"kind":            "93 00 91 96",
	"hashes":          "93 00 91 96 ab|BlockStored|",
	"hash":            "93 00 91 96 ab|BlockStored| 91",
	"second hash":     "93 00 91 96 ab|BlockStored| 92 07",
	"parent":          "93 00 91 96 ab|BlockStored| 90",
	"tokens":          "93 00 91 96 ab|BlockStored| 90 c0",
	"token":           "93 00 91 96 ab|BlockStored| 90 c0 91",
	"pair":            "93 00 91 96 ab|BlockStored| 90 c0 92 92 01 02",
	"half a pair":     "93 00 91 96 ab|BlockStored| 90 c0 92 92 01",
	"block_size":      "93 00 91 96 ab|BlockStored| 90 c0 90",
	"lora_id":         "93 00 91 9f ab|BlockStored| 90 c0 90 00",
	"medium":          "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0",
	"lora_name":       "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0",
	"extra_keys":      "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0 c0",
	"entry":           "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0 c0 92",
	"extra key":       "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0 c0 92 92",
	"in an extra key": "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0 c0 92 92 92",
	"media offset":    "93 00 91 9f ab|BlockStored| 90 c0 90 00 c0 c0 c0 92 92 92 a1|x|",
	"trailing":        "93 00 91 dc0020 ab|BlockStored| 90 c0 90 00 c0 c0 c0 c0 c0 c0 c0",
	"in trailing":     "93 00 91 dc0020 ab|BlockStored| 90 c0 90 00 c0 c0 c0 c0 c0 c0 c0 91",
	"map key":         "93 00 91 82",
	"map kind":        "93 00 91 82 a4|type|",
	"late kind":       "93 00 91 83 a1|x| 01 a4|type|",
	"unknown kind":    "93 00 91 82 a4|type| a1|x| a1|y|",
	"unknown key":     "93 00 91 82 a4|type| ac|BlockRemoved| a1|x|",
	"map hashes":      "93 00 91 82 a4|type| ac|BlockRemoved| ac|block_hashes|",
	"counts":          "93 00 91 83 a4|type| ac|BlockRemoved| b5|remaining_copy_counts|",
	"origin":          "93 00 91 83 a4|type| ab|BlockStored| a6|origin|",
	"batch key":       "82",
	"batch events":    "82 a6|events|",
	"batch unknown":   "82 a1|x|",
}

// TestClaims puts such heads wherever an item can stand, with few and many bytes after them.
// Nothing may be allocated for a claim.
func TestClaims(t *testing.T) {
	n := 0
	for place, prefix := range places {
		for _, claim := range claims {
			for _, behind := range []int{0, 3, 4096} {
				p := append(spell(t, prefix+claim), make([]byte, behind)...)
				var b events.Batch
				var err error
				if got := allocated(func() { err = events.Decode(p, &b) }); got > uint64(bytesPerByte*len(p)+slack) {
					t.Errorf("%s: %s: %d bytes allocated for a payload of %d", place, claim, got, len(p))
				}
				if err == nil && behind == 0 {
					t.Errorf("%s: %s: accepted", place, claim)
				}
				checkRefused(t, err, &b)
				n++
			}
		}
	}
	t.Logf("%d payloads", n)
}
