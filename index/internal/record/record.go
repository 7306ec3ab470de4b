// Package record has the words of which the records of a snapshot consist. Numbers are
// varints, or little endian.
package record

import "encoding/binary"

// Reader reads words. After a word that is cut off, Short is true and Rest is empty.
// A word that is cut off is zero.
type Reader struct {
	Rest  []byte
	Short bool
}

// Take returns the next n bytes, or 8 zeros if there are fewer.
func (r *Reader) Take(n int) []byte {
	if n > len(r.Rest) {
		r.cutOff()
		return make([]byte, 8)
	}
	b := r.Rest[:n]
	r.Rest = r.Rest[n:]
	return b
}

func (r *Reader) cutOff() { r.Short, r.Rest = true, nil }

// Byte reads a byte.
func (r *Reader) Byte() byte { return r.Take(1)[0] }

// Bool reads a byte that is not 0 for true.
func (r *Reader) Bool() bool { return r.Byte() != 0 }

// Uint32 reads 4 bytes.
func (r *Reader) Uint32() uint32 { return binary.LittleEndian.Uint32(r.Take(4)) }

// Uint64 reads 8 bytes.
func (r *Reader) Uint64() uint64 { return binary.LittleEndian.Uint64(r.Take(8)) }

// Uvarint reads a varint without a sign.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.cutOff()
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Int reads a varint with a sign. A number that is no int on this machine is cut off.
func (r *Reader) Int() int {
	v, n := binary.Varint(r.Rest)
	if n <= 0 || int64(int(v)) != v {
		r.cutOff()
		return 0
	}
	r.Rest = r.Rest[n:]
	return int(v)
}

// Text reads a string.
func (r *Reader) Text() string {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.cutOff()
		return ""
	}
	return string(r.Take(int(n)))
}

// AppendText appends a string.
func AppendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// AppendBool appends a bool.
func AppendBool(b []byte, yes bool) []byte {
	if yes {
		return append(b, 1)
	}
	return append(b, 0)
}
