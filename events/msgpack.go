// Why not vmihailenco/msgpack v5, which the tests have as an independent encoder and decoder:
// five bytes (dd ff ff ff ff) ask for 34 GB, and deep nesting overflows the stack. Into []any
// it takes 8 to 16 times as long as this cursor (BENCHMARKS.md).

package events

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kvindex/kvindex/internal/fault"
)

// maxDepth bounds the nesting of arrays and maps in a skipped value. Known values of engines
// are two deep.
const maxDepth = 64

// A form is the kind of a MessagePack item, whatever the width of its encoding.
type form uint8

const (
	formInvalid form = iota // 0xc1, which is reserved
	formNil
	formBool
	formInt      // an integer that is not negative
	formNegative // a negative integer
	formFloat
	formStr
	formBin
	formArray
	formMap
	formExt

	// next resolves the rest and never returns it.
	formSigned
	formFloat32
	formFixExt
)

// leads describes the lead bytes from 0xc0 to 0xdf: the form, and how many
// bytes after the lead hold the item's number or length.
var leads = [32]struct {
	form  form
	width int
}{
	{formNil, 0}, {formInvalid, 0}, {formBool, 0}, {formBool, 0},
	{formBin, 1}, {formBin, 2}, {formBin, 4},
	{formExt, 1}, {formExt, 2}, {formExt, 4},
	{formFloat32, 4}, {formFloat, 8},
	{formInt, 1}, {formInt, 2}, {formInt, 4}, {formInt, 8},
	{formSigned, 1}, {formSigned, 2}, {formSigned, 4}, {formSigned, 8},
	{formFixExt, 0}, {formFixExt, 0}, {formFixExt, 0}, {formFixExt, 0}, {formFixExt, 0},
	{formStr, 1}, {formStr, 2}, {formStr, 4},
	{formArray, 2}, {formArray, 4},
	{formMap, 2}, {formMap, 4},
}

var (
	errEnds     = fault.Errorf(fault.Truncated, "the payload ends here")
	errReserved = fault.Errorf(fault.Encoding, "the reserved byte 0xc1")
	errUTF8     = fault.Errorf(fault.Encoding, "a string that is not UTF-8")
	errDepth    = fault.Errorf(fault.Limit, "nested more than %d deep", maxDepth)
)

// A cursor reads the items of a MessagePack object one after the other
// (https://github.com/msgpack/msgpack/blob/master/spec.md). It allocates nothing but errors,
// and it never returns a length that the remaining bytes could not fill: an item takes a byte
// at least.
type cursor struct {
	data []byte
	off  int // of the next item; 0 <= off <= len(data)
}

func (c *cursor) left() int { return len(c.data) - c.off }

// next reads the head of an item: the value of a bool, the 64 bits of an integer (two's
// complement) or of a float, the length of an array in items, of a map in pairs, of a str, bin
// or ext in bytes (the type of an ext is one of them). The content of the last five is still
// to be read.
func (c *cursor) next() (form, uint64, error) {
	if c.left() == 0 {
		return 0, 0, errEnds
	}
	lead := c.data[c.off]
	c.off++
	switch {
	case lead < 0x80:
		return formInt, uint64(lead), nil
	case lead < 0x90:
		return c.sized(formMap, uint64(lead&0x0f))
	case lead < 0xa0:
		return c.sized(formArray, uint64(lead&0x0f))
	case lead < 0xc0:
		return c.sized(formStr, uint64(lead&0x1f))
	case lead >= 0xe0:
		return formNegative, uint64(int64(int8(lead))), nil
	}
	l := leads[lead-0xc0]
	if c.left() < l.width {
		return 0, 0, errEnds
	}
	bits := c.number(l.width)
	switch l.form {
	case formInvalid:
		return 0, 0, errReserved
	case formBool:
		return formBool, uint64(lead & 1), nil
	case formFloat32:
		return formFloat, math.Float64bits(float64(math.Float32frombits(uint32(bits)))), nil
	case formSigned:
		unused := 64 - 8*l.width
		n := int64(bits<<unused) >> unused
		if n < 0 {
			return formNegative, uint64(n), nil
		}
		return formInt, uint64(n), nil
	case formFixExt:
		return c.sized(formExt, 1<<(lead-0xd4)+1)
	case formExt:
		return c.sized(formExt, bits+1)
	case formStr, formBin, formArray, formMap:
		return c.sized(l.form, bits)
	}
	return l.form, bits, nil
}

// number reads a big-endian number of width bytes, which must be there.
func (c *cursor) number(width int) uint64 {
	b := c.data[c.off:]
	c.off += width
	switch width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// sized refuses a length that the remaining bytes cannot fill.
func (c *cursor) sized(f form, n uint64) (form, uint64, error) {
	if n > uint64(c.left()) {
		return 0, 0, c.tooLong(f, n)
	}
	return f, n, nil
}

func (c *cursor) tooLong(f form, n uint64) error {
	return fault.Errorf(fault.Truncated, "%s of length %d, with %d bytes left", f, n, c.left())
}

// bytes reads the n bytes of a str, bin or ext whose head has been read. They
// lie in the payload.
func (c *cursor) bytes(n uint64) []byte {
	b := c.data[c.off : c.off+int(n)]
	c.off += int(n)
	return b
}

// str reads a str. The result lies in the payload and may be invalid UTF-8.
func (c *cursor) str() ([]byte, error) {
	if c.left() > 0 {
		// Every key and nearly every string of engines is this short.
		if n := int(c.data[c.off]) - 0xa0; 0 <= n && n < 0x20 && n < c.left() {
			b := c.data[c.off+1 : c.off+1+n]
			c.off += 1 + n
			return b, nil
		}
	}
	f, n, err := c.next()
	if err != nil {
		return nil, err
	}
	if f != formStr {
		return nil, fault.Errorf(fault.Type, "%s is not a string", describe(f, n))
	}
	return c.bytes(n), nil
}

// at reads the bytes of item if they are the next.
func (c *cursor) at(item string) bool {
	if c.left() < len(item) || string(c.data[c.off:c.off+len(item)]) != item {
		return false
	}
	c.off += len(item)
	return true
}

// isNil reads a nil if there is one.
func (c *cursor) isNil() bool {
	if c.left() == 0 || c.data[c.off] != 0xc0 {
		return false
	}
	c.off++
	return true
}

// atArray reports whether the next item is an array. There must be one.
func (c *cursor) atArray() bool {
	lead := c.data[c.off]
	return lead&0xf0 == 0x90 || lead == 0xdc || lead == 0xdd
}

// atStr reports whether the next item is a str.
func (c *cursor) atStr() bool {
	if c.left() == 0 {
		return false
	}
	lead := c.data[c.off]
	return lead&0xe0 == 0xa0 || lead >= 0xd9 && lead <= 0xdb
}

// array reads the head of an array.
func (c *cursor) array() (int, error) {
	if c.left() > 0 {
		if n := int(c.data[c.off]) - 0x90; 0 <= n && n < 0x10 && n < c.left() {
			c.off++
			return n, nil
		}
	}
	f, n, err := c.next()
	if err != nil {
		return 0, err
	}
	if f != formArray {
		return 0, fault.Errorf(fault.Type, "%s is not a list", describe(f, n))
	}
	return int(n), nil
}

// tokens fills dst with token ids. If one is missing it returns its index and the reason.
//
// The widths of token ids are as good as random, so a branch on them is
// mispredicted on every second token: 72 ns for 16 tokens, against 41 with the
// tables, which leave one branch that is always taken.
func (c *cursor) tokens(dst []uint32) (int, error) {
	data, off := c.data, c.off
	for i := range dst {
		if len(data)-off >= 8 {
			if size := shortSize[data[off]]; size > 0 {
				s := shortBits[data[off]]
				dst[i] = uint32(binary.BigEndian.Uint64(data[off:])>>(s.shift&63)) & s.mask
				off += int(size)
				continue
			}
		}
		c.off = off
		f, bits, err := c.next()
		if err != nil {
			return i, err
		}
		if f != formInt || bits > math.MaxUint32 {
			return i, fault.Errorf(fault.Type, "%s is not a token id", describe(f, bits))
		}
		dst[i] = uint32(bits)
		off = c.off
	}
	c.off = off
	return len(dst), nil
}

// shortSize has, by lead byte, the encoded size of the integers that are
// written in at most 32 bits without a sign; 0 for all else.
var shortSize = func() (size [256]uint8) {
	for lead := range 0x80 {
		size[lead] = 1
	}
	size[0xcc], size[0xcd], size[0xce] = 2, 3, 5
	return size
}()

// shortBits has the place of such an integer's value in the 8 bytes, read as one big-endian
// number, that begin at its lead byte.
var shortBits = func() (b [256]struct {
	shift uint8
	mask  uint32
}) {
	for lead := range 0x80 {
		b[lead].shift, b[lead].mask = 56, 0x7f
	}
	b[0xcc].shift, b[0xcc].mask = 48, math.MaxUint8
	b[0xcd].shift, b[0xcd].mask = 40, math.MaxUint16
	b[0xce].shift, b[0xce].mask = 24, math.MaxUint32
	return b
}()

// hashes fills dst with block hashes: the 64 bits of an integer, or the last 8 bytes of a byte
// string. If one is missing it returns its index and the reason.
func (c *cursor) hashes(dst []uint64) (int, error) {
	for i := range dst {
		h, err := c.hash()
		if err != nil {
			return i, err
		}
		dst[i] = h
	}
	return len(dst), nil
}

// wide has a bit for each lead byte from 0xcf on behind which an integer lies in
// 64 bits: one without and one with a sign.
const wide = 1 | 1<<(0xd3-0xcf)

// hash reads one block hash.
func (c *cursor) hash() (uint64, error) {
	// The sign of an integer is as good as random: no branch may depend on it.
	if c.left() > 8 && uint(wide)>>(c.data[c.off]-0xcf)&1 != 0 {
		h := binary.BigEndian.Uint64(c.data[c.off+1:])
		c.off += 9
		return h, nil
	}
	f, n, err := c.next()
	if err != nil {
		return 0, err
	}
	switch f {
	case formInt, formNegative:
		return n, nil
	case formBin:
		b := c.bytes(n)
		if n < 8 {
			return 0, fault.Errorf(fault.Type, "%d bytes are too few for a hash", n)
		}
		return binary.BigEndian.Uint64(b[n-8:]), nil
	}
	return 0, fault.Errorf(fault.Type, "%s is not a hash", describe(f, n))
}

// skip reads an item of any form with all its content.
func (c *cursor) skip() error {
	start := c.off
	f, n, err := c.next()
	if err != nil {
		return err
	}
	switch f {
	case formStr, formBin, formExt:
		c.off += int(n)
	case formArray, formMap:
		c.off = start
		return c.skipItems(1)
	}
	return nil
}

// skipItems reads n items of any form with all their content.
func (c *cursor) skipItems(n int) error {
	if n == 0 {
		return nil
	}
	// todo[i] is the number of items still to come in the array or map that
	// is open at depth i; depth is that of the innermost.
	var todo [1 + maxDepth]int
	depth := 0
	todo[0] = n
	for {
		f, n, err := c.next()
		if err != nil {
			return err
		}
		todo[depth]--
		switch f {
		case formStr, formBin, formExt:
			c.off += int(n)
		case formArray, formMap:
			if f == formMap {
				n *= 2
			}
			if n > 0 {
				if depth++; depth > maxDepth {
					return errDepth
				}
				todo[depth] = int(n)
			}
		}
		for todo[depth] == 0 {
			if depth == 0 {
				return nil
			}
			depth--
		}
	}
}

// describe names an item in an error.
func describe(f form, bits uint64) string {
	switch f {
	case formInt:
		return fmt.Sprint(bits)
	case formNegative:
		return fmt.Sprint(int64(bits))
	}
	return f.String()
}

func (f form) String() string { return formNames[f] }

var formNames = [...]string{
	formInvalid: "an invalid item", formNil: "nil", formBool: "a bool",
	formInt: "an integer", formNegative: "an integer", formFloat: "a float",
	formStr: "a string", formBin: "a byte string", formArray: "a list",
	formMap: "a map", formExt: "an extension",
}
