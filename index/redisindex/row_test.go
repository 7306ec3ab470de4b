package redisindex

import (
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// sourceOfRow returns a source with the contents of a row.
func sourceOfRow(of *row) *source {
	src := &source{behind: of.behind, layout: of.layout, note: of.note}
	for i, l := range of.lanes {
		src.holders = append(src.holders, &holder{
			memoryHolder: memoryHolder{ID: uint32(i), Group: l.group, Tier: l.tier, Variant: l.variant, BlockSize: l.size},
			number:       l.number, evicted: l.evicted,
		})
	}
	return src
}

func fullRow() *row {
	full := index.Group{ID: 0}
	window := index.Group{ID: 3, Kind: index.GroupWindow, Window: 300, Draft: true}
	return &row{
		writer: 0x0102030405060708, behind: true, note: []byte("note"),
		layout: &index.Layout{Groups: []index.GroupLayout{{Group: full, BlockSize: 16, Grain: 16}, {Group: window, BlockSize: 512, Grain: 32}}},
		lanes: []lane{
			{number: 7, group: full, tier: index.TierGPU, variant: index.Variant{Unit: 16}, size: 16},
			{number: 300, group: window, tier: index.TierDisk, variant: index.Variant{Unit: 16, Media: 1, Block: 512, Pairs: true}, size: 512, evicted: true},
		},
	}
}

// The layout of rows and cursors does not change by mistake.
func TestRowLayout(t *testing.T) {
	text := appendRow(nil, 0x0102030405060708, sourceOfRow(fullRow()))
	want := "0807060504030201" + "01" + // writer, behind
		"02" + "00" + "00" + "00" + "00" + "10" + "10" + // two groups, the full one
		"03" + "01" + "ac02" + "01" + "8004" + "20" + // the window group
		"02" + "07" + "00" + "00" + "10" + "00" + "00" + "00" + "10" + "00" + // two lanes
		"ac02" + "01" + "02" + "10" + "01" + "8004" + "01" + "8004" + "01" +
		hex.EncodeToString([]byte("note"))
	if got := hex.EncodeToString(text); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := hex.EncodeToString(appendCursor(nil, 5, 1.5)); got != "0500000000000000"+"000000000000f83f" {
		t.Errorf("cursor: %s", got)
	}
}

// A row is decoded as it was encoded.
func TestRows(t *testing.T) {
	empty := &row{writer: 1, layout: new(index.Layout), note: []byte{}}
	unknown := sourceOfRow(fullRow())
	unknown.holders = append(unknown.holders, &holder{memoryHolder: memoryHolder{Group: index.Group{ID: 3}}, number: 9})
	for _, c := range []struct {
		name string
		src  *source
		want *row
	}{
		{"all", sourceOfRow(fullRow()), fullRow()},
		{"a holder whose size is not known has no lane", unknown, fullRow()},
		{"no layout", new(source), empty},
	} {
		got, ok := readRow(string(appendRow(nil, c.want.writer, c.src)))
		if !ok || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", c.name, got, ok, c.want)
		}
	}
	text := string(appendRow(nil, 1, sourceOfRow(fullRow())))
	for n := range len(text) - len("note") {
		if _, ok := readRow(text[:n]); ok {
			t.Errorf("the first %d of %d bytes are a row", n, len(text))
		}
	}
}

// Invalid rows are rejected.
func TestRowGarbage(t *testing.T) {
	head := strings.Repeat("w", 8) + "\x00"
	group, full := "\x01\x00\x00\x00\x00\x10\x10", "\x01\x00\x00\x00\x10\x00\x00\x00\x10\x00"
	if _, ok := readRow(head + group + full[:len(full)-1]); ok {
		t.Fatal("a lane has a byte too few")
	}
	if of, ok := readRow(head + group + full); !ok || len(of.lanes) != 1 {
		t.Fatal("a row is not read")
	}
	for _, c := range []struct{ name, text string }{
		{"more groups than bytes", head + "\xff\xff\xff\xff\x0f"},
		{"more lanes than bytes", head + group + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + full[1:]},
		{"group of a large ID", head + "\x01\x40\x00\x00\x00\x10\x10\x00"},
		{"two groups of one ID", head + "\x02" + group[1:] + group[1:] + "\x00"},
		{"lane of no group", head + "\x00" + full},
		{"lane of another group", head + group + "\x01\x01\x01\x00\x10\x00\x00\x00\x10\x00"},
		{"lane of no tier", head + group + "\x01\x01\x00\x05\x10\x00\x00\x00\x10\x00"},
		{"lane without a unit", head + group + "\x01\x01\x00\x00\x00\x00\x00\x00\x10\x00"},
		{"lane without a size", head + group + "\x01\x01\x00\x00\x10\x00\x00\x00\x00\x00"},
		{"size that is no multiple of the unit", head + group + "\x01\x01\x00\x00\x10\x00\x00\x00\x18\x00"},
		{"size beyond int32", head + group + "\x01\x01\x00\x00\x10\x00\x00\x00\x80\x80\x80\x80\x10\x00"},
	} {
		if of, ok := readRow(c.text); ok {
			t.Errorf("%s: %+v", c.name, of)
		}
	}
}

func TestReadCursor(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       float64
	}{
		{"a cursor", string(appendCursor(nil, 9, 1234.5)), 1234.5},
		{"nothing", "", 0},
		{"half a cursor", string(appendCursor(nil, 9, 1234.5))[:12], 0},
		{"no number", string(appendCursor(nil, 9, math.NaN())), 0},
		{"the end of time", string(appendCursor(nil, 9, math.Inf(1))), 0},
		{"before time", string(appendCursor(nil, 9, -1)), 0},
	} {
		if got := readCursor(c.text); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Sources and fields correspond one to one.
func TestFields(t *testing.T) {
	for _, src := range []index.Source{{Pod: "p", Model: "m"}, {Pod: "", Model: "m", Rank: 7}, {Pod: "a b s1 \x00", Model: "m", Rank: -3}} {
		if got, ok := sourceOf("m", fieldOf(src)); !ok || got != src {
			t.Errorf("%q: %+v, %v, want %+v", fieldOf(src), got, ok, src)
		}
	}
	for _, field := range []string{"", "v", "s", "s1", "s pod", "sx pod", "t1 pod", "s01 pod", "s+1 pod", "s-0 pod", "s99999999999999999999 pod"} {
		if got, ok := sourceOf("m", field); ok {
			t.Errorf("%q: %+v", field, got)
		}
	}
}

func FuzzRow(f *testing.F) {
	f.Add(appendRow(nil, 1, sourceOfRow(fullRow())))
	f.Add(appendRow(nil, 1, new(source)))
	f.Add([]byte("wwwwwwww\x00\x01\x00\x00\x00\x00\x10\x10\x01\x01\x00\x00\x10\x00\x00\x00\x10\x00note"))
	f.Add([]byte("wwwwwwww\x00\xff\xff\xff\xff\x0f"))
	f.Add([]byte("wwwwwwww\x00\x02\x00\x00\x00\x00\x10\x10\x00\x01\x00\x00\x10\x10\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		text := string(in)
		if at := readCursor(text); at < 0 || at > math.MaxFloat64 || at != at || at != 0 && len(text) < 16 {
			t.Errorf("cursor %v", at)
		}
		of, ok := readRow(text)
		if !ok {
			return
		}
		if 6*len(of.layout.Groups)+9*len(of.lanes)+len(of.note) > len(text) {
			t.Fatalf("%d groups, %d lanes and a note of %d bytes are of %d bytes", len(of.layout.Groups), len(of.lanes), len(of.note), len(text))
		}
		list(index.Source{}, of, text)
		again, ok := readRow(string(appendRow(nil, of.writer, sourceOfRow(of))))
		if !ok || !reflect.DeepEqual(again, of) {
			t.Fatalf("\n got %+v, %v\nwant %+v", again, ok, of)
		}
	})
}
