package record

import (
	"encoding/binary"
	"math"
	"testing"
)

// words appends a record, and read reads it.
func words() (b []byte) {
	b = AppendBool(AppendBool(append(b, 7), true), false)
	b = binary.LittleEndian.AppendUint32(b, 1<<31)
	b = binary.LittleEndian.AppendUint64(b, 1<<63)
	b = binary.AppendUvarint(b, 300)
	b = binary.AppendVarint(b, -300)
	return AppendText(AppendText(b, "pod"), "")
}

type record struct {
	b      byte
	yes    bool
	no     bool
	u32    uint32
	u64    uint64
	uv     uint64
	v      int
	text   string
	nobody string
}

func read(r *Reader) record {
	return record{r.Byte(), r.Bool(), r.Bool(), r.Uint32(), r.Uint64(), r.Uvarint(), r.Int(), r.Text(), r.Text()}
}

func TestReader(t *testing.T) {
	r := Reader{Rest: words()}
	want := record{7, true, false, 1 << 31, 1 << 63, 300, -300, "pod", ""}
	if got := read(&r); got != want || r.Short || len(r.Rest) > 0 {
		t.Errorf("%+v, want %+v; %+v", got, want, r)
	}
}

// A record cut off anywhere is short, and fields after the cut are zero.
func TestCutOff(t *testing.T) {
	all := words()
	for n := range all {
		r := Reader{Rest: all[:n]}
		if got := read(&r); !r.Short || len(r.Rest) > 0 || got.nobody != "" {
			t.Errorf("%d of %d bytes: %+v, %+v", n, len(all), got, r)
		}
	}
}

func TestNumbersThatAreNone(t *testing.T) {
	for _, b := range [][]byte{{}, {0x80}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}} {
		u, i := Reader{Rest: b}, Reader{Rest: b}
		if u.Uvarint() != 0 || i.Int() != 0 || !u.Short || !i.Short {
			t.Errorf("%x: %+v, %+v", b, u, i)
		}
	}
	r := Reader{Rest: binary.AppendVarint(nil, math.MaxInt64)}
	if v := r.Int(); math.MaxInt < math.MaxInt64 != r.Short || !r.Short && v != math.MaxInt {
		t.Errorf("%d, %+v", v, r)
	}
	r = Reader{Rest: binary.AppendUvarint(nil, math.MaxUint64)} // too long for any record
	if text := r.Text(); text != "" || !r.Short {
		t.Errorf("%q, %+v", text, r)
	}
}
