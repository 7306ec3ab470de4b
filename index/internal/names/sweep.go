package names

import (
	"math/bits"
	"unsafe"
)

// Picked is a name that a Sweep picks.
type Picked[H ~uint64] struct {
	Hash  H
	Value uint32
}

// Sweep appends to dst those names of a segment whose values are picked: of values
// below 1<<31 by the bit v>>5 of a set, and all others. The segment is at a position,
// as in Some. It returns how many names it has seen, too. It looks at all places of a
// line, used or not, because a loop of one length without branches is several times
// faster.
func Sweep[H ~uint64, V ~uint32](t *Table[H, V], dst []Picked[H], pos uint64, set []uint64) (picked []Picked[H], next uint64, seen int) {
	s, next := t.at(pos)
	for i := range s.lines {
		l := &s.lines[i]
		mask := uint32(0)
		for j, v := range l.value {
			other := v >> 31
			word := set[v>>11&(other-1)] // the first, if it is another
			mask |= (uint32(word>>(v>>5&63))&1 | other) << j
		}
		for mask &= 1<<l.count() - 1; mask != 0; mask &= mask - 1 {
			j := bits.TrailingZeros32(mask)
			dst = append(dst, Picked[H]{H(l.hash[j]), l.value[j]})
		}
	}
	return dst, next, s.n
}

// Part appends to dst the names of a segment with their values, from a position on, as
// Some has them.
func Part[H ~uint64, V ~uint32](t *Table[H, V], dst []Picked[H], pos uint64) (names []Picked[H], next uint64) {
	s, next := t.at(pos)
	inside := pos<<s.depth != 0
	s.each(func(h uint64, v uint32) {
		if !inside || t.mixed(h) >= pos {
			dst = append(dst, Picked[H]{H(h), v})
		}
	})
	return dst, next
}

// Position returns where a hash is, or would be, among the positions of Some.
func (t *Table[H, V]) Position(h H) uint64 { return t.mixed(uint64(h)) }

// HasRoom reports whether a hash could be added without more memory.
func (t *Table[H, V]) HasRoom(h H) bool {
	s := t.segmentOf(t.mixed(uint64(h)))
	return s.n < s.limit || t.fits(s)
}

// Room returns about how many names could be added without more memory, if they fell
// where there is room.
func (t *Table[H, V]) Room() int {
	part := 85
	if t.mem.Frugal() {
		part = 94
	}
	return max(t.Bytes()/int(unsafe.Sizeof(line{}))*lineNames*part/100-t.n, 0)
}
