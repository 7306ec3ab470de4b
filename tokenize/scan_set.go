package tokenize

import "unicode/utf8"

// A runeSet is a set of code points, as a pattern writes it.
type runeSet struct {
	// bytes has for a code point's first byte whether the code point is in the set: no, yes,
	// or, for all but ASCII, ask.
	bytes [256]uint8

	// Of the code points past ASCII those are in the set that are of class or in
	// ranges; with not, all the others are. not goes with ranges only.
	class  class
	ranges []runeRange
	not    bool
}

const (
	no uint8 = iota
	yes
	ask
)

type runeRange struct{ from, to rune }

func (t *runeSet) has(r rune) bool {
	if r < utf8.RuneSelf {
		return t.bytes[r] == yes
	}
	if classOf(r)&t.class != 0 {
		return !t.not
	}
	for _, x := range t.ranges {
		if x.from <= r && r <= x.to {
			return !t.not
		}
	}
	return t.not
}

// width returns the length of the code point at s[i:] if that is in the set, and
// 0 if not or if i is the end.
func (t *runeSet) width(s []byte, i int) int {
	if i == len(s) {
		return 0
	}
	switch t.bytes[s[i]] {
	case yes:
		return 1
	case ask:
		if r, n := utf8.DecodeRune(s[i:]); t.has(r) {
			return n
		}
	}
	return 0
}

// run returns the end of the longest run of the set at i.
func (t *runeSet) run(s []byte, i int) int {
	for {
		for i < len(s) && t.bytes[s[i]] == yes {
			i++
		}
		if i == len(s) || t.bytes[s[i]] == no {
			return i
		}
		r, n := utf8.DecodeRune(s[i:])
		if !t.has(r) {
			return i
		}
		i += n
	}
}

// add puts the code points from..to into the set, which is not a complement.
func (t *runeSet) add(from, to rune) {
	for ; from <= to && from < utf8.RuneSelf; from++ {
		t.bytes[from] = yes
	}
	if from <= to {
		t.ranges = append(t.ranges, runeRange{from, to})
	}
}

// classSet returns the set of the code points of class c.
func classSet(c class) *runeSet {
	t := &runeSet{class: c}
	for b := range rune(utf8.RuneSelf) {
		if classOf(b)&c != 0 {
			t.bytes[b] = yes
		}
	}
	return t
}

// complement turns the set into that of all other code points.
func (t *runeSet) complement() {
	for b := range utf8.RuneSelf {
		t.bytes[b] ^= yes
	}
	if len(t.ranges) == 0 {
		t.class = anything &^ t.class
		return
	}
	t.not = !t.not
}

// union adds the code points of u. It returns false if the result is no runeSet.
func (t *runeSet) union(u *runeSet) bool {
	if t.not || u.not {
		return false
	}
	for b := range utf8.RuneSelf {
		t.bytes[b] |= u.bytes[b]
	}
	t.class |= u.class
	t.ranges = append(t.ranges, u.ranges...)
	return true
}

// intersect keeps the code points of u. It returns false if the result is no runeSet.
func (t *runeSet) intersect(u *runeSet) bool {
	if len(t.ranges)+len(u.ranges) > 0 {
		return false
	}
	for b := range utf8.RuneSelf {
		t.bytes[b] &= u.bytes[b]
	}
	t.class &= u.class
	return true
}

// meets reports whether the two sets may have a code point in common; false is certain.
func (t *runeSet) meets(u *runeSet) bool {
	for b := range utf8.RuneSelf {
		if t.bytes[b]&u.bytes[b] == yes {
			return true
		}
	}
	if len(t.ranges)+len(u.ranges) == 0 {
		return t.class&u.class != 0
	}
	return t.pastASCII() && u.pastASCII()
}

func (t *runeSet) pastASCII() bool { return t.not || t.class != 0 || len(t.ranges) > 0 }

// seal finishes the set: its bytes past ASCII show where to look further.
func (t *runeSet) seal() {
	if t.pastASCII() {
		for b := utf8.RuneSelf; b < len(t.bytes); b++ {
			t.bytes[b] = ask
		}
	}
}

// same reports whether the sets are written alike.
func (t *runeSet) same(u *runeSet) bool {
	if t.bytes != u.bytes || t.class != u.class || t.not != u.not || len(t.ranges) != len(u.ranges) {
		return false
	}
	for i, x := range t.ranges {
		if x != u.ranges[i] {
			return false
		}
	}
	return true
}
