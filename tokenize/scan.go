// The commonest patterns are scanned by hand, all others by a program of sets. Five exact
// pattern texts (GPT-2, Llama 3, Qwen 2, o200k, tekken) have scanners of their own. A list of
// all others could never be complete, and a general engine would be slow and could be made
// quadratic by a text. So the rest are parsed in Oniguruma's syntax into sequences of runs of
// sets, and a pattern is refused if it is not provably linear, or has a part with another
// meaning. The tests hold both against a plain backtracking reading of the same pattern text.

package tokenize

import (
	"math/bits"
	"unicode/utf8"
)

// A scanner finds the matches of a pattern. It returns the end of the match at s[i], or of the
// text before the next match, or before the end, and whether it is a match. i < len(s), and
// the end is past i. It is called with 0 and then with each end that it has returned.
type scanner func(s []byte, i int) (end int, match bool)

// A pattern cuts a text into its matches and the text between them.
type pattern struct {
	scan scanner

	// spans reports whether a match may have l right before r. It may report true for two that
	// never meet in a match, but not the contrary.
	spans func(l, r rune) bool

	// total: no text is outside the matches.
	total bool
}

// gpt2Pattern is built into ByteLevel (tokenizers 0.23.2, pre_tokenizers/byte_level.rs).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// Of the characters of the text, the components Digits and Punctuation match each
// by itself (tokenizers 0.23.2, pre_tokenizers/digits.rs and punctuation.rs).
var (
	digits      = characters(isNumeric)
	punctuation = characters(isPunctuation)
)

func isNumeric(r rune) bool { return classOf(r)&numeric != 0 }

func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return classOf(r)&(punct|symbolic) != 0
	}
	return classOf(r)&oldPunct != 0
}

// mappedDigits is digits for a text that ByteLevel has already mapped to its
// alphabet, but on the bytes themselves: of the characters that stand for bytes
// ASCII's digits, ², ³, ¹, ¼, ½ and ¾ are numeric, each of which stands for the
// byte of its own number.
var mappedDigits = pattern{
	scan: func(s []byte, i int) (int, bool) {
		if isNumeric(rune(s[i])) {
			return i + 1, true
		}
		for i++; i < len(s) && !isNumeric(rune(s[i])); i++ {
		}
		return i, false
	},
	spans: func(_, _ rune) bool { return false },
}

func characters(in func(rune) bool) pattern {
	scan := func(s []byte, i int) (int, bool) {
		r, n := utf8.DecodeRune(s[i:])
		if in(r) {
			return i + n, true
		}
		for i += n; i < len(s); i += n {
			if r, n = utf8.DecodeRune(s[i:]); in(r) {
				break
			}
		}
		return i, false
	}
	return pattern{scan: scan, spans: func(_, _ rune) bool { return false }}
}

// patternOf returns the pattern of a regular expression, and false if a part of it is not
// supported. Its meaning is Oniguruma's, which the official tokenizers 0.23.2 uses
// (utils/onig.rs).
func patternOf(regex string) (pattern, bool) {
	p, ok := parseRegex(regex)
	if !ok || !p.linear() {
		return pattern{}, false
	}
	p.prepare()
	scan, ok := knownScanners[regex]
	if !ok {
		scan = p.scan
	}
	return pattern{scan: scan, spans: p.spans(), total: p.total()}, true
}

// A program is a regular expression to scan with: its alternatives, of which the
// first that matches counts.
type program struct {
	alternatives []alternative
	starts       [256]uint32      // by first byte: a bit for each alternative that may begin with it
	quick        [256]*quickMatch // by first byte: how the first of these matches most often, if so
	skip         *runeSet         // if not nil: where nothing matches, nothing does in this set's run
}

const maxAlternatives = 32

func (p *program) scan(s []byte, i int) (int, bool) {
	if end := p.match(s, i); end > i {
		return end, true
	}
	for i < len(s) {
		if p.skip != nil {
			i = max(p.skip.run(s, i), i+1)
		} else {
			i++
		}
		for i < len(s) && !utf8.RuneStart(s[i]) {
			i++
		}
		if i < len(s) && p.match(s, i) > i {
			break
		}
	}
	return i, false
}

// A quickMatch is the match of a word, of which most of a text consists: perhaps
// one character, a run, and what cannot fail after it.
type quickMatch struct {
	lead  bool      // the first byte is the character before it
	begin [256]bool // ASCII that the run can begin with: none is of what may come before the run
	run   *runeSet

	tail   alternative
	goesOn [256]bool // the bytes that tail can begin with
}

// match returns the end of the match at i, or none.
func (p *program) match(s []byte, i int) int {
	if q := p.quick[s[i]]; q != nil {
		if end := q.match(s, i); end != none {
			return end
		}
	}
	for m := p.starts[s[i]]; m != 0; m &= m - 1 {
		if end := p.alternatives[bits.TrailingZeros32(m)].match(s, i); end != none {
			return end
		}
	}
	return none
}

// match returns the end of a match at i; none if it is not as it is most often.
func (q *quickMatch) match(s []byte, i int) int {
	if q.lead {
		i++
	}
	if i == len(s) || !q.begin[s[i]] {
		return none
	}
	run := q.run
	for i++; i < len(s) && run.bytes[s[i]] == yes; i++ {
	}
	if i < len(s) && run.bytes[s[i]] == ask {
		i = run.run(s, i)
	}
	if i == len(s) || !q.goesOn[s[i]] {
		return i
	}
	return q.tail.match(s, i)
}

const none = -1

// An alternative is a sequence of items.
type alternative []item

// An item matches a part of the text.
type item struct {
	kind itemKind
	set  *runeSet
	// A run has from min to max code points of set, as many as there are; if the
	// items behind it then fail and gives is set, one less at a time.
	min, max int
	keeps    bool // a possessive quantifier: it gives nothing back
	gives    bool
	next     [256]bool    // with gives: the bytes that the rest can begin with
	words    [][]*runeSet // of which the first that matches counts
	begin    [4]uint64    // the bytes that words begin with
	optional bool         // words may be missing
	custom   *custom
}

type itemKind uint8

const (
	single   itemKind = iota // one of set
	maybe                    // one of set, or nothing
	some                     // one or more of set
	anyOf                    // as many of set as there are
	counted                  // from min to max of set
	words                    // one of words
	ahead                    // nothing, where one of set follows
	notAhead                 // nothing, where none of set follows
	lineEnd                  // nothing, before a newline or the end
	byHand                   // what custom does
)

const unbounded = 1 << 30

// match returns the end of the match at i, or none. Most often each item takes all it can and
// gives nothing back.
func (a alternative) match(s []byte, i int) int {
	start := i
	gives := false
	for k := range a {
		t := &a[k]
		end := t.match(s, i)
		if end == none {
			if gives {
				return a.matchGiving(s, start)
			}
			return none
		}
		if t.gives && end > i && (t.kind != maybe || t.next[s[i]]) {
			gives = true
		}
		i = end
	}
	return i
}

// matchGiving returns the end of the match at i, or none: an item gives back what
// the others fail after.
func (a alternative) matchGiving(s []byte, i int) int {
	if len(a) == 0 {
		return i
	}
	t := &a[0]
	end := t.match(s, i)
	if end == none {
		return none
	}
	if !t.gives {
		return a[1:].matchGiving(s, end)
	}
	least := i
	for range t.min {
		least += t.set.width(s, least)
	}
	for {
		if end == len(s) || t.next[s[end]] {
			if e := a[1:].matchGiving(s, end); e != none {
				return e
			}
		}
		if end == least {
			return none
		}
		_, n := utf8.DecodeLastRune(s[:end])
		end -= n
	}
}

// match matches the item alone, which takes what it can.
func (t *item) match(s []byte, i int) int {
	switch t.kind {
	case single:
		if n := t.set.width(s, i); n > 0 {
			return i + n
		}
		return none
	case maybe:
		return i + t.set.width(s, i)
	case some:
		if end := t.set.run(s, i); end > i {
			return end
		}
		return none
	case anyOf:
		return t.set.run(s, i)
	case counted:
		return t.matchCounted(s, i)
	case words:
		return t.matchWords(s, i)
	case ahead:
		if t.set.width(s, i) == 0 {
			return none
		}
	case notAhead:
		if t.set.width(s, i) > 0 {
			return none
		}
	case lineEnd:
		if i < len(s) && s[i] != '\n' {
			return none
		}
	case byHand:
		return t.custom.match(s, i)
	}
	return i
}

func (t *item) matchCounted(s []byte, i int) int {
	for n := range t.max {
		w := t.set.width(s, i)
		if w == 0 {
			if n < t.min {
				return none
			}
			break
		}
		i += w
	}
	return i
}

func (t *item) matchWords(s []byte, i int) int {
	if i == len(s) || t.begin[s[i]>>6]>>(s[i]&63)&1 == 0 {
		return t.unmatchedWords(i)
	}
	for _, word := range t.words {
		end := i
		for _, set := range word {
			n := set.width(s, end)
			if n == 0 {
				end = none
				break
			}
			end += n
		}
		if end != none {
			return end
		}
	}
	return t.unmatchedWords(i)
}

func (t *item) unmatchedWords(i int) int {
	if t.optional {
		return i
	}
	return none
}
