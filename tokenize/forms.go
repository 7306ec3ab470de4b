package tokenize

import (
	_ "embed"
	"encoding/binary"
	"unicode/utf8"
)

//go:generate go run ./internal/genforms $UNICODE_DATA tables

// A form is one of Unicode's normalization forms, NFD with neither set
// (unicode-normalization-alignments 0.1.12, src/decompose.rs and recompose.rs).
// They are those of Unicode 9.0.0: golang.org/x/text has later ones, which change
// more.
type form struct{ compose, compat bool }

// A code point's value in the tables: 0 if no form affects it. For one that decomposes it is
// valueDecomposes and its place in formTexts, else the combining class and flags.
const (
	valueClass      = 1<<8 - 1
	valueBack       = 1 << 8  // composes with the code point before it
	valueForward    = 1 << 9  // composes with the code point after it
	valueHangul     = 1 << 10 // is a Hangul syllable: it decomposes by arithmetic
	valueDecomposes = 1 << 15
)

// The head of a decomposition in formTexts.
const (
	headLength  = 1<<4 - 1 // bytes of the canonical decomposition, which may be none
	headCompat  = 1 << 4   // has another for the compatibility forms
	headNo      = 1 << 5   // is not in NFC: its decomposition does not compose to it
	headForward = 1 << 6   // as valueForward
)

// Hangul syllables and the jamo that they decompose to (The Unicode Standard,
// section 3.12).
const (
	firstSyllable  = 0xac00
	firstLeading   = 0x1100
	firstVowel     = 0x1161
	beforeTrailing = 0x11a7 // no trailing consonant; the first one is the next
	leadings       = 19
	vowels         = 21
	trailings      = 28 // with none
	syllables      = leadings * vowels * trailings
)

const (
	formShift = 6
	valueSize = 2 // bytes of a value in formBlocks
	pairSize  = 8 // bytes of a pair in formPairs
)

// The numbers in these tables are little-endian.
var (
	// formIndex gives the block of a code point shifted right by formShift. Those past
	// its end have the value 0.
	//
	//go:embed tables/form_index
	formIndex string
	// formBlocks has the blocks one after the other, a value for each code point.
	//
	//go:embed tables/form_blocks
	formBlocks string
	// formPairs has the pairs that compose, sorted: the first, the second and what they
	// become, of 21 bits each.
	//
	//go:embed tables/form_pairs
	formPairs string
	// formTexts has the decompositions: a head, the canonical one, and with headCompat
	// the length of another for the compatibility forms, and that.
	//
	//go:embed tables/form_texts
	formTexts string
)

func formValue(r rune) uint16 {
	i := int(r) >> formShift
	if i >= len(formIndex) {
		return 0
	}
	at := (int(formIndex[i])<<formShift | int(r)&(1<<formShift-1)) * valueSize
	return uint16(formBlocks[at]) | uint16(formBlocks[at+1])<<8
}

// has reports whether a value has flag; the place of a decomposition has none.
func has(v, flag uint16) bool { return v&(valueDecomposes|flag) == flag }

// stays reports whether a code point of value v is itself in the form, whatever
// is around it but marks out of order.
func (f form) stays(v uint16) bool {
	switch {
	case v&valueDecomposes != 0:
		head := formTexts[v&^valueDecomposes]
		if f.compat && head&headCompat != 0 {
			return false
		}
		return head&headLength == 0 || f.compose && head&headNo == 0
	case has(v, valueHangul):
		return f.compose
	}
	return !f.compose || !has(v, valueBack)
}

// decomposition returns the decomposition of the code point of value v, "" for itself. Hangul
// is not among them.
func (f form) decomposition(v uint16) string {
	if v&valueDecomposes == 0 {
		return ""
	}
	at := int(v &^ valueDecomposes)
	head := formTexts[at]
	from, to := at+1, at+1+int(head&headLength)
	if f.compat && head&headCompat != 0 {
		from, to = to+1, to+1+int(formTexts[to])
	}
	return formTexts[from:to]
}

// classOfValue returns the combining class of a code point that stays.
func classOfValue(v uint16) uint8 {
	if v&valueDecomposes != 0 {
		return 0
	}
	return uint8(v & valueClass)
}

// begins reports whether the text before a code point of value v does not change with it: a
// stretch of text that changes together begins at the latest there.
func (f form) begins(v uint16) bool { return classOfValue(v) == 0 && f.stays(v) }

// normalEnd returns the end of the normal text from i on, where a stretch begins:
// len(s), or where another does, up to which nothing changes whatever follows.
func (f form) normalEnd(s []byte, i int) int {
	end, last := i, uint8(0)
	for i < len(s) {
		if s[i] < utf8.RuneSelf {
			i = skipASCII(s, i)
			end, last = i-1, 0
			continue
		}
		r, n := utf8.DecodeRune(s[i:])
		v := formValue(r)
		if v == 0 {
			end, last = i, 0
			i += n
			continue
		}
		class := classOfValue(v)
		if !f.stays(v) || class != 0 && class < last {
			return end
		}
		if class == 0 {
			end = i
		}
		last = class
		i += n
	}
	return len(s)
}

// skipASCII returns the end of the run of ASCII that begins at i.
func skipASCII(s []byte, i int) int {
	for i+8 <= len(s) && binary.LittleEndian.Uint64(s[i:])&0x8080808080808080 == 0 {
		i += 8
	}
	for i < len(s) && s[i] < utf8.RuneSelf {
		i++
	}
	return i
}

func (f form) apply(w *normalScratch, dst, s []byte, _ bool) ([]byte, bool, error) {
	i := f.normalEnd(s, 0)
	if i == len(s) {
		return dst, false, nil
	}
	p := composer{form: f, dst: append(dst, s[:i]...), starter: -1, marks: w.marks[:0], sorted: w.sorted, most: w.left}
	for i < len(s) {
		next, ok := p.stretch(s, i)
		if ok {
			i = f.normalEnd(s, next)
			p.dst = append(p.dst, s[next:i]...)
			ok = len(p.dst) <= p.most
		}
		if !ok {
			return dst, false, w.tooLong()
		}
	}
	w.marks, w.sorted = p.marks, p.sorted
	return p.dst, true, nil
}

// A composer orders decomposed text, and composes it again in forms with compose. It holds
// back the part that the next code point could still change: a starter, which is a code point
// of combining class 0, and the marks after it.
type composer struct {
	form
	dst     []byte
	starter rune     // -1 for none yet
	marks   []uint32 // a combining class and a code point of 21 bits each
	sorted  []uint32 // scratch of the same form
	most    int      // bytes of dst
}

// stretch takes the text from i on, as far as it may change together, and returns
// the end of that; false if the result is too long.
func (p *composer) stretch(s []byte, i int) (end int, ok bool) {
	for from := i; i < len(s); {
		r, n := utf8.DecodeRune(s[i:])
		v := formValue(r)
		if i > from && p.begins(v) {
			break
		}
		p.add(r, v)
		i += n
		// A mark has at least two bytes; one that will yet compose has them, too.
		if len(p.dst)+2*len(p.marks) > p.most {
			return i, false
		}
	}
	p.settle()
	p.emit()
	p.starter = -1
	return i, true
}

// add takes the next code point of the text, of value v.
func (p *composer) add(r rune, v uint16) {
	if has(v, valueHangul) {
		n := r - firstSyllable
		p.push(firstLeading+n/(vowels*trailings), 0)
		p.push(firstVowel+n%(vowels*trailings)/trailings, 0)
		if n%trailings != 0 {
			p.push(beforeTrailing+n%trailings, 0)
		}
		return
	}
	d := p.decomposition(v)
	if d == "" {
		p.push(r, classOfValue(v))
	}
	for _, r := range d {
		p.push(r, classOfValue(formValue(r)))
	}
}

// push takes the next code point of the decomposed text.
func (p *composer) push(r rune, class uint8) {
	if class != 0 {
		p.marks = append(p.marks, uint32(class)<<21|uint32(r))
		return
	}
	p.settle()
	if p.compose && len(p.marks) == 0 {
		if c, ok := composed(p.starter, r); ok {
			p.starter = c
			return
		}
	}
	p.emit()
	p.starter = r
}

func (p *composer) emit() {
	if p.starter >= 0 {
		p.dst = utf8.AppendRune(p.dst, p.starter)
	}
	for _, m := range p.marks {
		p.dst = utf8.AppendRune(p.dst, rune(m&(1<<21-1)))
	}
	p.marks = p.marks[:0]
}

// settle sorts the marks by class, and composes with the starter those that none
// of their own class keeps from it.
func (p *composer) settle() {
	p.sort()
	if !p.compose || p.starter < 0 {
		return
	}
	kept := p.marks[:0]
	for _, m := range p.marks {
		if len(kept) == 0 || kept[len(kept)-1]>>21 < m>>21 {
			if c, ok := composed(p.starter, rune(m&(1<<21-1))); ok {
				p.starter = c
				continue
			}
		}
		kept = append(kept, m)
	}
	p.marks = kept
}

// sort sorts the marks by class and leaves those of a class in their order.
func (p *composer) sort() {
	const few = 32
	if len(p.marks) > few {
		p.sortMany()
		return
	}
	for i, m := range p.marks {
		for ; i > 0 && p.marks[i-1]>>21 > m>>21; i-- {
			p.marks[i] = p.marks[i-1]
		}
		p.marks[i] = m
	}
}

// sortMany counts the marks of each class: a hostile text is one run of them.
func (p *composer) sortMany() {
	var starts [1 << 8]int
	for _, m := range p.marks {
		starts[m>>21]++
	}
	at := 0
	for class, n := range starts {
		starts[class] = at
		at += n
	}
	p.sorted = append(p.sorted[:0], p.marks...)
	for _, m := range p.sorted {
		p.marks[starts[m>>21]] = m
		starts[m>>21]++
	}
}

// composed returns the composition of a and b; a is negative for none.
func composed(a, b rune) (rune, bool) {
	if n, v := a-firstLeading, b-firstVowel; 0 <= n && n < leadings && 0 <= v && v < vowels {
		return firstSyllable + (n*vowels+v)*trailings, true
	}
	if n, t := a-firstSyllable, b-beforeTrailing; 0 <= n && n < syllables && n%trailings == 0 && 0 < t && t < trailings {
		return a + t, true
	}
	if a < 0 || !has(formValue(b), valueBack) {
		return 0, false
	}
	key := uint64(a)<<21 | uint64(b)
	lo, hi := 0, len(formPairs)/pairSize
	for lo < hi {
		mid := (lo + hi) / 2
		packed := pairAt(mid)
		switch pair := packed >> 21; {
		case pair == key:
			return rune(packed & (1<<21 - 1)), true
		case pair < key:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

// pairAt returns the i-th pair of formPairs.
func pairAt(i int) uint64 {
	p := formPairs[i*pairSize:][:pairSize]
	return uint64(p[0]) | uint64(p[1])<<8 | uint64(p[2])<<16 | uint64(p[3])<<24 |
		uint64(p[4])<<32 | uint64(p[5])<<40 | uint64(p[6])<<48 | uint64(p[7])<<56
}

// boundary is that of normalizer: between two starters that stay, of which the second begins
// nothing that later text could change.
func (f form) boundary(l, r rune) (rune, rune, bool) {
	return l, r, f.begins(formValue(l)) && f.beginsAlone(r)
}

func (form) keepsStart() bool { return true }

// beginsAlone reports whether r stays as it is at the beginning of any text.
func (f form) beginsAlone(r rune) bool {
	v := formValue(r)
	if has(v, valueHangul) {
		return f.compose && (r-firstSyllable)%trailings != 0
	}
	if v&valueDecomposes != 0 {
		return f.decomposition(v) == "" && (!f.compose || formTexts[v&^valueDecomposes]&headForward == 0)
	}
	return classOfValue(v) == 0 && (!f.compose || v&(valueBack|valueForward) == 0)
}
