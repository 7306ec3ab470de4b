package tokenize

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// parseRegex reads the regular expressions that are sequences of sets with quantifiers, in
// Oniguruma's syntax. It refuses all others.
func parseRegex(regex string) (*program, bool) {
	r := regexReader{rest: regex}
	p := &program{}
	for {
		p.alternatives = append(p.alternatives, r.alternative())
		if !r.take("|") {
			break
		}
	}
	if r.failed || r.rest != "" || len(p.alternatives) > maxAlternatives {
		return nil, false
	}
	return p, true
}

// A regexReader takes a regular expression from the front. After the first thing
// that is not supported it has failed and has no more.
type regexReader struct {
	rest   string
	fold   bool // case is ignored: inside (?i:
	failed bool
}

func (r *regexReader) fail() {
	r.failed = true
	r.rest = ""
}

// take takes prefix if that is next.
func (r *regexReader) take(prefix string) bool {
	rest, ok := strings.CutPrefix(r.rest, prefix)
	if ok {
		r.rest = rest
	}
	return ok
}

func (r *regexReader) need(prefix string) {
	if !r.take(prefix) {
		r.fail()
	}
}

// next takes one code point, 0 at the end.
func (r *regexReader) next() rune {
	if r.rest == "" {
		r.fail()
		return 0
	}
	c, n := utf8.DecodeRuneInString(r.rest)
	r.rest = r.rest[n:]
	return c
}

// peek reports whether the next byte is one of chars.
func (r *regexReader) peek(chars string) bool {
	return r.rest != "" && strings.IndexByte(chars, r.rest[0]) >= 0
}

func (r *regexReader) alternative() alternative {
	var a alternative
	for r.rest != "" && !r.peek("|") {
		a = append(a, r.item())
	}
	if !a.sound() {
		r.fail()
	}
	return a
}

func (r *regexReader) item() item {
	if c := r.custom(); c != nil {
		return item{kind: byHand, custom: c}
	}
	switch {
	case r.take("(?!"):
		return item{kind: notAhead, set: r.lookahead()}
	case r.take("(?="):
		return item{kind: ahead, set: r.lookahead()}
	case r.take("$"):
		return item{kind: lineEnd}
	case r.take("(?i:"):
		r.fold = true
		t := r.group()
		r.fold = false
		return t
	case r.take("(?:"), r.peek("(") && !strings.HasPrefix(r.rest, "(?") && r.take("("):
		return r.group()
	}
	return r.quantified(r.set())
}

func (r *regexReader) lookahead() *runeSet {
	t := r.set()
	r.need(")")
	return t
}

// group takes the words of a group and what follows it. A group of single sets is
// one set.
func (r *regexReader) group() item {
	var list [][]*runeSet
	for {
		var word []*runeSet
		for !r.failed && !r.peek("|)") {
			word = append(word, r.set())
		}
		if len(word) == 0 || r.fold && foldsAsOne(word) {
			r.fail()
		}
		list = append(list, word)
		if !r.take("|") {
			break
		}
	}
	r.need(")")
	if r.failed {
		return item{}
	}
	if t, ok := oneSet(list); ok {
		return r.quantified(t)
	}
	t := item{kind: words, words: list, optional: r.take("?")}
	if r.peek("?*+{") {
		r.fail()
	}
	return t
}

func oneSet(list [][]*runeSet) (*runeSet, bool) {
	t := &runeSet{}
	for _, word := range list {
		if len(word) > 1 || !t.union(word[0]) {
			return nil, false
		}
	}
	t.seal()
	return t, true
}

// foldsAsOne reports whether a word holds two letters that a single code point
// folds to, as U+00DF does to ss.
func foldsAsOne(word []*runeSet) bool {
	for i := range len(word) - 1 {
		for _, two := range []string{"ss", "ff", "fi", "fl", "st"} {
			if word[i].has(rune(two[0])) && word[i+1].has(rune(two[1])) {
				return true
			}
		}
	}
	return false
}

// quantified takes the quantifier of a set.
func (r *regexReader) quantified(t *runeSet) item {
	q := item{set: t, min: 1, max: 1}
	switch {
	case r.take("?"):
		q.min = 0
	case r.take("*"):
		q.min, q.max = 0, unbounded
	case r.take("+"):
		q.max = unbounded
	case r.peek("{"):
		r.interval(&q)
		q.kind = kindOf(q.min, q.max)
		return q
	default:
		return q
	}
	q.kind = kindOf(q.min, q.max)
	q.keeps = r.take("+")
	if r.peek("?*+{") {
		r.fail()
	}
	return q
}

// interval takes {n}, {n,} or {n,m}. A plus after it is a quantifier of its own:
// only after a quantifier of one character it makes that possessive.
func (r *regexReader) interval(q *item) {
	r.need("{")
	q.min = r.count()
	q.max = q.min
	if r.take(",") {
		q.max = unbounded
		if !r.peek("}") {
			q.max = r.count()
		}
	}
	r.need("}")
	if q.min > q.max || q.max == 0 {
		r.fail()
	}
	if q.min == 1 && r.take("+") {
		q.max = unbounded
	}
	if r.peek("?*+{") {
		r.fail()
	}
}

// count takes a number below 100: a text that fails after as many code points fails at each of
// them.
func (r *regexReader) count() int {
	if !r.peek("0123456789") {
		r.fail()
		return 0
	}
	n := int(r.next() - '0')
	if r.peek("0123456789") {
		n = n*10 + int(r.next()-'0')
	}
	return n
}

func kindOf(least, most int) itemKind {
	switch {
	case least == 1 && most == 1:
		return single
	case least == 0 && most == 1:
		return maybe
	case least == 1 && most == unbounded:
		return some
	case least == 0 && most == unbounded:
		return anyOf
	}
	return counted
}

// set takes the part for one code point.
func (r *regexReader) set() *runeSet {
	t := &runeSet{}
	switch {
	case r.take("["):
		t = r.class()
	case r.take(`\`):
		t = r.escape()
	case r.peek(".^$*+?{}()|]"):
		r.fail()
	default:
		c := r.next()
		t.add(c, c)
	}
	if r.fold {
		r.ignoreCase(t)
	}
	t.seal()
	return t
}

// ignoreCase adds the other case of the set's letters. Of the code points past
// ASCII U+017F and U+212A fold to one letter of ASCII.
func (r *regexReader) ignoreCase(t *runeSet) {
	if t.pastASCII() {
		r.fail()
	}
	for c := 'a'; c <= 'z'; c++ {
		if either := t.bytes[c] | t.bytes[c-'a'+'A']; either == yes {
			t.add(c, c)
			t.add(c-'a'+'A', c-'a'+'A')
			switch c {
			case 's':
				t.add('\u017f', '\u017f')
			case 'k':
				t.add('\u212a', '\u212a')
			}
		}
	}
}

// class takes the rest of a class in brackets.
func (r *regexReader) class() *runeSet {
	complement := r.take("^")
	if complement && r.fold {
		r.fail()
	}
	t := r.classUnion()
	for r.take("&&") {
		if !t.intersect(r.classUnion()) {
			r.fail()
		}
	}
	r.need("]")
	if complement {
		t.complement()
	}
	return t
}

// classUnion takes the members of a class up to its end or an intersection.
func (r *regexReader) classUnion() *runeSet {
	t := &runeSet{}
	for members := 0; !r.failed; members++ {
		if r.peek("]") || strings.HasPrefix(r.rest, "&&") {
			if members == 0 {
				r.fail()
			}
			break
		}
		if !t.union(r.member(members == 0)) {
			r.fail()
		}
	}
	return t
}

// member takes a nested class, an escape, a range or a character. A hyphen stands
// for itself where it is escaped, first or last.
func (r *regexReader) member(first bool) *runeSet {
	if strings.HasPrefix(r.rest, "[:") {
		r.fail()
	}
	if r.take("[") {
		return r.class()
	}
	t := &runeSet{}
	from := r.next()
	if from == '-' && !first && !r.peek("]") {
		r.fail()
	}
	if from == '\\' {
		if t = r.escape(); !r.peek("-") || strings.HasPrefix(r.rest, "-]") {
			return t
		}
		var ok bool
		if from, ok = t.only(); !ok {
			r.fail()
			return t
		}
	}
	to := from
	if !strings.HasPrefix(r.rest, "-]") && r.take("-") {
		if to = r.next(); to == '\\' {
			u := r.escape()
			to, _ = u.only()
		}
		if to < from || r.peek("-") {
			r.fail()
			return t
		}
	}
	t.add(from, to)
	return t
}

// only returns the ASCII character that is all of the set.
func (t *runeSet) only() (rune, bool) {
	found := rune(-1)
	for b := range rune(utf8.RuneSelf) {
		if t.bytes[b] == yes {
			if found >= 0 {
				return 0, false
			}
			found = b
		}
	}
	return found, found >= 0 && !t.pastASCII()
}

// escape takes the part behind a backslash.
func (r *regexReader) escape() *runeSet {
	t := &runeSet{}
	switch c := r.next(); c {
	case 'r':
		t.add('\r', '\r')
	case 'n':
		t.add('\n', '\n')
	case 't':
		t.add('\t', '\t')
	case 'u':
		c = r.hex4()
		t.add(c, c)
	case 's':
		return classSet(space)
	case 'S':
		return classSet(anything &^ space)
	case 'd':
		return classSet(digit)
	case 'D':
		return classSet(anything &^ digit)
	case 'p':
		return classSet(r.property())
	case 'P':
		return classSet(anything &^ r.property())
	default:
		if !strings.ContainsRune(`.^$*+?{}()|[]\/-&!"#%,:;=@_~ `, c) {
			r.fail()
		}
		t.add(c, c)
	}
	return t
}

// hex4 takes the four digits of a \u.
func (r *regexReader) hex4() rune {
	n, err := strconv.ParseUint(r.rest[:min(4, len(r.rest))], 16, 16)
	if err != nil || len(r.rest) < 4 || utf16.IsSurrogate(rune(n)) {
		r.fail()
		return 0
	}
	r.rest = r.rest[4:]
	return rune(n)
}

// property takes the {name} of a \p.
func (r *regexReader) property() class {
	r.need("{")
	name, rest, _ := strings.Cut(r.rest, "}")
	c, ok := property(name)
	if !ok {
		r.fail()
		return 0
	}
	r.rest = rest
	return c
}
