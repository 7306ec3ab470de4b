package sections

import (
	"encoding/binary"
	"errors"
	"math"
)

// Fields reads the fields of a payload one after the other. After a missing or invalid field,
// all others are zero, and End returns an error.
type Fields struct {
	b   []byte
	bad error
}

// NewFields returns the fields of a payload.
func NewFields(b []byte) *Fields { return &Fields{b: b} }

var errShort = errors.New("fields are missing")

// Refuse makes End return err, unless there was an error before.
func (f *Fields) Refuse(err error) {
	if f.bad == nil {
		f.bad, f.b = err, nil
	}
}

// End returns the first error. Unread bytes are one too.
func (f *Fields) End() error {
	if len(f.b) > 0 {
		f.Refuse(errors.New("more fields than are known"))
	}
	return f.bad
}

// Err returns the first error so far.
func (f *Fields) Err() error { return f.bad }

// Byte reads a byte.
func (f *Fields) Byte() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint64 reads 8 bytes, little endian.
func (f *Fields) Uint64() uint64 {
	if b := f.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Float64 reads the bits of a number.
func (f *Fields) Float64() float64 { return math.Float64frombits(f.Uint64()) }

// Uvarint reads a number as binary.AppendUvarint writes it.
func (f *Fields) Uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.Refuse(errShort)
		return 0
	}
	f.b = f.b[n:]
	return v
}

// Int reads a number that is at most most.
func (f *Fields) Int(most int) int {
	v := f.Uvarint()
	if v > uint64(most) {
		f.Refuse(errors.New("a number is out of bounds"))
		return 0
	}
	return int(v)
}

// Count reads how many things follow, each of which takes at least a byte.
func (f *Fields) Count() int {
	n := f.Uvarint()
	if n > uint64(len(f.b)) {
		f.Refuse(errShort)
		return 0
	}
	return int(n)
}

// Bytes reads bytes behind their number. They are a part of the payload.
func (f *Fields) Bytes() []byte { return f.take(f.Count()) }

// String reads a text behind its length.
func (f *Fields) String() string { return string(f.Bytes()) }

func (f *Fields) take(n int) []byte {
	if n > len(f.b) {
		f.Refuse(errShort)
		return nil
	}
	b := f.b[:n:n]
	f.b = f.b[n:]
	return b
}

// AppendString appends a text as String reads it.
func AppendString[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
