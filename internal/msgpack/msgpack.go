// Package msgpack appends MessagePack items to bytes, each in its shortest form
// (https://github.com/msgpack/msgpack/blob/master/spec.md).
package msgpack

import (
	"encoding/binary"
	"math"
)

// Nil is an item without a value.
const Nil = 0xc0

// AppendIntOrNil appends an integer, or nil for 0.
func AppendIntOrNil(b []byte, n int) []byte {
	if n == 0 {
		return append(b, Nil)
	}
	return AppendInt(b, int64(n))
}

// AppendStringOrNil appends a string, or nil for "".
func AppendStringOrNil(b []byte, s string) []byte {
	if s == "" {
		return append(b, Nil)
	}
	return AppendString(b, s)
}

// AppendFloat appends a float of 64 bits.
func AppendFloat(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(f))
}

// AppendUint appends an integer.
func AppendUint(b []byte, n uint64) []byte {
	if n < 1<<7 {
		return append(b, byte(n))
	}
	return appendSized(b, n, [4]byte{0xcc, 0xcd, 0xce, 0xcf})
}

// AppendInt appends an integer.
func AppendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0:
		return AppendUint(b, uint64(n))
	case n >= -1<<5:
		return append(b, byte(n))
	case n >= math.MinInt8:
		return append(b, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

// AppendString appends a string.
func AppendString(b []byte, s string) []byte {
	if len(s) < 1<<5 {
		b = append(b, 0xa0|byte(len(s)))
	} else {
		b = appendSized(b, uint64(len(s)), [4]byte{0xd9, 0xda, 0xdb})
	}
	return append(b, s...)
}

// AppendBytes appends a byte string.
func AppendBytes(b, data []byte) []byte {
	return append(appendSized(b, uint64(len(data)), [4]byte{0xc4, 0xc5, 0xc6}), data...)
}

// AppendArrayLen appends the head of an array, before its items.
func AppendArrayLen(b []byte, n int) []byte {
	switch {
	case n < 1<<4:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

// AppendMapLen appends the head of a map of at most 15 pairs, before its keys and values.
func AppendMapLen(b []byte, n int) []byte { return append(b, 0x80|byte(n)) }

// appendSized writes n after the lead byte for its width: of 1, 2, 4, 8 bytes.
func appendSized(b []byte, n uint64, leads [4]byte) []byte {
	switch {
	case n < 1<<8:
		return append(b, leads[0], byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, leads[1]), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, leads[2]), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, leads[3]), n)
}
