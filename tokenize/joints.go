// SentencePiece text is cut at joints. Such a model's word is the whole segment, so without
// cuts no part would be short enough for the word cache. The pairs are read from the merges
// when a file is loaded. No cut is made where an unknown character could fuse or a byte token
// merges.

package tokenize

import (
	"slices"
	"unicode/utf8"
)

// joints are the pairs of characters that a merge joins: the last of its left part
// and the first of its right part. Only such a merge makes a token that has both,
// so that a text may be cut between any other two, and each part be merged by
// itself. A family that does not cut its text into words before it merges has
// megabytes in one piece, but few merges that join anything to a word's start.
type joints struct {
	near [nearCharacters][nearCharacters / 64]uint64 // bits, of pairs of the commonest
	far  pairTable                                   // all pairs
}

// The near characters are those of ASCII below nearStart, and wordStart, which is
// as common as all others.
const (
	nearCharacters = 128
	nearStart      = nearCharacters - 1
	wordStart      = '▁'
)

func near(r rune) (uint, bool) {
	if r == wordStart {
		return nearStart, true
	}
	return uint(r), r < nearStart
}

func newJoints(l *mergeList) *joints {
	pairs := make([]uint64, 0, l.len())
	_ = l.each(func(_ int, a, b []byte) error {
		last, _ := utf8.DecodeLastRune(a)
		first, _ := utf8.DecodeRune(b)
		pairs = append(pairs, pairKey(uint32(last), uint32(first)))
		return nil
	})
	slices.Sort(pairs)
	pairs = slices.Compact(pairs)
	j := &joints{far: newPairTable(len(pairs))}
	for _, p := range pairs {
		l, r := rune(p>>idBits), rune(p&(1<<idBits-1))
		j.far.set(uint32(l), uint32(r), 0)
		a, ok1 := near(l)
		b, ok2 := near(r)
		if ok1 && ok2 {
			j.near[a][b/64] |= 1 << (b % 64)
		}
	}
	return j
}

func (j *joints) size() int { return 8 * (nearCharacters*nearCharacters/64 + cap(j.far.slots)) }

// join reports whether a merge joins l and r.
func (j *joints) join(l, r rune) bool {
	a, ok1 := near(l)
	b, ok2 := near(r)
	if ok1 && ok2 {
		return j.near[a][b/64]>>(b%64)&1 != 0
	}
	return j.far.value(uint32(l), uint32(r)) != noMerge
}

// cut returns the end of the first part of s.
func (j *joints) cut(s []byte) int {
	l, n := runeAt(s, 0)
	for n < len(s) {
		r, width := runeAt(s, n)
		if !j.join(l, r) {
			break
		}
		l = r
		n += width
	}
	return n
}

// runeAt returns the character at s[i:] and its length.
func runeAt(s []byte, i int) (rune, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	return utf8.DecodeRune(s[i:])
}
