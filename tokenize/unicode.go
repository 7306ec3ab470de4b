package tokenize

import "unicode/utf8"

//go:generate sh -c "go run ./internal/gentables $UNICODE_PACKAGE > unicode_tables.go.new && mv unicode_tables.go.new unicode_tables.go"

// A class is the set of a code point's properties that patterns ask for. Its
// bits are those that internal/gentables writes.
type class uint8

const (
	letter class = 1 << iota // \p{L}
	number                   // \p{N}
	space                    // \s
	word                     // \w, as the official added-token matcher's regexps have it
)

func classOf(r rune) class {
	block := int(classIndex[uint32(r)>>classShift])
	return class(classBlocks[block<<classShift|int(r&(1<<classShift-1))] & 0xf)
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

// skipOther returns the end of the run of code points in none of classes that begins at i.
func skipOther(s []byte, i int, classes class) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&classes != 0 {
			break
		}
		i += n
	}
	return i
}
