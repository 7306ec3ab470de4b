// Package chars has the properties of code points in CPython 3.11, which are those of Unicode 14.0.
package chars

import (
	_ "embed"
	"encoding/binary"
	"strings"
	"sync"
	"unicode/utf8"
)

// The tables are CPython's own, not those of package unicode, which change with the Go toolchain.
// testdata/unicode_tables.py writes them. Their numbers are little-endian.

var (
	// kindTable has the kinds of code points: flags, and what upper, lower and title
	// add, of four bytes each.
	//
	//go:embed tables/unicode_kinds
	kindTable []byte
	// charRuns are the code points from which on another kind holds, in order, four
	// bytes each: code point<<8 | kind.
	//
	//go:embed tables/unicode_runs
	charRuns string
	// formTable has a line for each code point of which a form is several: the code
	// point, upper, lower and title.
	//
	//go:embed tables/unicode_forms
	formTable string
)

// charKinds are the kinds of code points.
var charKinds = func() []Char {
	const size = 4 * 4
	kinds := make([]Char, len(kindTable)/size)
	for i := range kinds {
		row := kindTable[i*size:]
		kinds[i].flags = Flags(binary.LittleEndian.Uint32(row))
		for form := range kinds[i].add {
			kinds[i].add[form] = int32(binary.LittleEndian.Uint32(row[(form+1)*4:]))
		}
	}
	return kinds
}()

// charForms returns the forms of the code points of formTable.
var charForms = sync.OnceValue(func() map[rune][]string {
	all := map[rune][]string{}
	for line := range strings.Lines(formTable) {
		forms := strings.Fields(line)
		r, _ := utf8.DecodeRuneInString(forms[0])
		all[r] = forms[1:]
	}
	return all
})

// A Char is the kind of a code point.
type Char struct {
	flags Flags
	add   [3]int32 // by form: what the form's code point is ahead of it
}

// Flags are properties of a code point.
type Flags uint16

// The properties: of str.isdigit, of str.isprintable, and those that lower and title look at.
const (
	Digit Flags = 1 << iota
	Printable
	Cased
	Ignorable // looked through by final sigma
	special   // is in charForms
)

// A Form is one that a code point is converted to.
type Form int

// The forms that the methods of str make.
const (
	Upper Form = iota
	Lower
	Title
)

// Is reports whether c has one of the properties f.
func (c *Char) Is(f Flags) bool { return c.flags&f != 0 }

const runSize = 4 // bytes of a run in charRuns

// runAt returns the i-th run of charRuns: where it begins, and the kind of its code
// points.
func runAt(i int) (begin rune, kind uint8) {
	run := charRuns[i*runSize:][:runSize]
	return rune(run[1]) | rune(run[2])<<8 | rune(run[3])<<16, run[0]
}

// Of returns the kind of r.
func Of(r rune) *Char {
	if r < utf8.RuneSelf {
		return &charKinds[asciiKinds[r]]
	}
	_, kind := runAt(charRun(r))
	return &charKinds[kind]
}

// asciiKinds are the kinds of ASCII, which needs no search.
var asciiKinds = func() (kinds [utf8.RuneSelf]uint8) {
	for r := range kinds {
		_, kinds[r] = runAt(charRun(rune(r)))
	}
	return kinds
}()

// charRun returns the place of the run that r is in.
func charRun(r rune) int {
	low, high := 0, len(charRuns)/runSize
	for high-low > 1 {
		mid := (low + high) / 2
		if begin, _ := runAt(mid); begin <= r {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// AppendForm appends r in a form.
func AppendForm(dst []byte, r rune, f Form) []byte {
	c := Of(r)
	if c.Is(special) {
		return append(dst, charForms()[r][f]...)
	}
	return utf8.AppendRune(dst, r+c.add[f])
}

// IsSpace reports whether Python's str.isspace holds of r.
func IsSpace(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1c && r <= 0x1f
	}
	switch r {
	case 0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000:
		return true
	}
	return r >= 0x2000 && r <= 0x200a
}

// IsLineEnd reports whether Python's str.splitlines ends a line at r.
func IsLineEnd(r rune) bool {
	switch r {
	case '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

// IsASCII reports whether all of s is ASCII.
func IsASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
