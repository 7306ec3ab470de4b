// Tables are pinned: character classes to Unicode 16.0.0, normalization to 9.0.0, Digits to
// 17.0.0, Punctuation to 8.0.0, because the parts of tokenizers 0.23.2 have these. Go's
// unicode and x/text are of other versions and differ on hundreds of code points.
// internal/gentables and internal/genforms write the tables from published packages.

package tokenize

import (
	_ "embed"
	"unicode/utf8"
)

//go:generate go run ./internal/gentables $UNICODE_PACKAGES .

// A class is a set of kinds of code points: code points of one kind have the same
// properties. A code point's own class has its kind alone, so that it is in a
// class c if their intersection is not 0.
type class uint64

const classShift = 8

var (
	// classIndex gives the block of a code point shifted right by classShift.
	//
	//go:embed tables/class_index
	classIndex string
	// classBlocks has the blocks one after the other, a byte for each code point: its
	// kind.
	//
	//go:embed tables/class_blocks
	classBlocks string
)

func classOf(r rune) class {
	block := int(classIndex[uint32(r)>>classShift])
	return 1 << classBlocks[block<<classShift|int(r&(1<<classShift-1))]
}

// classAt returns the class and the length of the code point at s[i:].
func classAt(s []byte, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return classOf(rune(b)), 1
	}
	r, n := utf8.DecodeRune(s[i:])
	return classOf(r), n
}

// skip returns the end of the run of code points in any of classes that begins at i.
func skip(s []byte, i int, classes class) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&classes == 0 {
			break
		}
		i += n
	}
	return i
}
