package tokenize

import (
	"math/bits"
	"unicode/utf8"
)

// mayFail reports whether the item may match nowhere.
func (t *item) mayFail() bool {
	switch t.kind {
	case maybe, anyOf:
		return false
	case counted:
		return t.min > 0
	case words:
		return !t.optional
	}
	return true
}

// lookaround reports whether the item matches without taking anything.
func (t *item) lookaround() bool {
	return t.kind == ahead || t.kind == notAhead || t.kind == lineEnd
}

// mayBeEmpty reports whether the item may take nothing.
func (t *item) mayBeEmpty() bool { return t.lookaround() || !t.mayFail() }

// firsts are the first code points of the item.
func (t *item) firsts() []*runeSet {
	switch {
	case t.lookaround():
		return nil
	case t.kind == byHand:
		return []*runeSet{t.custom.first}
	case t.kind == words:
		var list []*runeSet
		for _, word := range t.words {
			list = append(list, word[0])
		}
		return list
	}
	return []*runeSet{t.set}
}

// pairs are the code points that the item can have one after the other, and lasts its last
// ones.
func (t *item) pairs() (pairs [][2]*runeSet, lasts []*runeSet) {
	switch {
	case t.lookaround():
		return nil, nil
	case t.kind == byHand:
		return t.custom.pairs, t.custom.lasts
	case t.kind == words:
		for _, word := range t.words {
			for i := range len(word) - 1 {
				pairs = append(pairs, [2]*runeSet{word[i], word[i+1]})
			}
			lasts = append(lasts, word[len(word)-1])
		}
		return pairs, lasts
	case t.max > 1:
		pairs = [][2]*runeSet{{t.set, t.set}}
	}
	return pairs, []*runeSet{t.set}
}

func (a alternative) mayFail() bool {
	for i := range a {
		if a[i].mayFail() {
			return true
		}
	}
	return false
}

// firsts are the first code points of a match; ok is false if it can begin with a lookaround.
func (a alternative) firsts() (list []*runeSet, ok bool) {
	for i := range a {
		if a[i].lookaround() {
			return nil, false
		}
		list = append(list, a[i].firsts()...)
		if !a[i].mayBeEmpty() {
			break
		}
	}
	return list, true
}

// sound reports whether the alternative takes something whenever it matches, and
// whether its words and customs need not be tried again, with others, after what
// follows them has failed.
func (a alternative) sound() bool {
	takes := false
	for i := range a {
		if !a[i].mayBeEmpty() {
			takes = true
		}
		if (a[i].kind == words || a[i].kind == byHand) && a[i+1:].mayFail() {
			return false
		}
	}
	_, ok := a.firsts()
	return takes && ok
}

// prepare fills in the tables of the scanning.
func (p *program) prepare() {
	for n, a := range p.alternatives {
		for i := range a {
			a.prepareGiving(i)
			a[i].beginWords()
		}
		list, _ := a.firsts()
		for _, t := range list {
			for b := range t.bytes {
				if t.bytes[b] != no {
					p.starts[b] |= 1 << n
				}
			}
		}
	}
	for n, a := range p.alternatives {
		if q := a.quick(); q != nil {
			p.addQuick(n, q, a[0].set)
		}
	}
}

// quick returns the alternative as a quick match without a lead; nil if it is none.
func (a alternative) quick() *quickMatch {
	if len(a) > 0 && a[0].kind == maybe {
		a = a[1:]
	}
	var skipped *runeSet
	if len(a) > 0 && a[0].kind == anyOf {
		skipped = a[0].set
		a = a[1:]
	}
	if len(a) == 0 || a[0].kind != some || a[1:].mayFail() {
		return nil
	}
	q := &quickMatch{run: a[0].set, tail: a[1:]}
	for b := range utf8.RuneSelf {
		q.begin[b] = q.run.bytes[b] == yes && (skipped == nil || skipped.bytes[b] == no)
	}
	list, _ := q.tail.firsts()
	for _, t := range list {
		for b, in := range t.bytes {
			q.goesOn[b] = q.goesOn[b] || in != no
		}
	}
	return q
}

// addQuick records where alternative n, which may begin with one of first, is the first to
// try.
func (p *program) addQuick(n int, q *quickMatch, first *runeSet) {
	led := *q
	led.lead = true
	for b := range utf8.RuneSelf {
		switch {
		case bits.TrailingZeros32(p.starts[b]) != n:
		case p.alternatives[n][0].kind == maybe && first.bytes[b] == yes:
			p.quick[b] = &led
		case q.begin[b]:
			p.quick[b] = q
		}
	}
}

// beginWords records the first bytes of the item's words.
func (t *item) beginWords() {
	for _, word := range t.words {
		for b, in := range word[0].bytes {
			if in != no {
				t.begin[b>>6] |= 1 << (b & 63)
			}
		}
	}
}

// prepareGiving records whether it can help that item i gives back a part of its match: the
// items after it must be able to begin with that.
func (a alternative) prepareGiving(i int) {
	t, rest := &a[i], a[i+1:]
	if t.set == nil || t.keeps || t.lookaround() || t.min == t.max || !rest.mayFail() {
		return
	}
	list, ok := rest.firsts()
	t.gives = !ok
	for b := range t.next {
		t.next[b] = !ok
	}
	for _, f := range list {
		t.gives = t.gives || f.meets(t.set)
		for b, in := range f.bytes {
			t.next[b] = t.next[b] || in != no
		}
	}
}

// linear reports whether the time to scan a text is linear in its length. It
// would not be if an alternative could look through a long run, fail, and see
// the match begin elsewhere or end early, again and again. So one that fails after
// a run must be followed by an alternative that then takes the run, but for its
// last code point; or, being the only alternative, begin with the run, so that
// it fails in all of it.
func (p *program) linear() bool {
	for n, a := range p.alternatives {
		runs := 0
		for i := range a {
			if a[i].max != unbounded || a[i:].takesRun() || !a[i+1:].mayFail() {
				continue
			}
			// Each code point that one run gives back could begin another.
			if runs++; runs > 1 {
				return false
			}
			if len(p.alternatives) == 1 && i == 0 {
				p.skip = a[0].set
				continue
			}
			if !p.backed(n, i) {
				return false
			}
		}
		for i := range a {
			if a[i].kind != byHand || a[i].custom.skip == nil {
				continue
			}
			if len(p.alternatives) > 1 || len(a) > 1 {
				return false
			}
			p.skip = a[i].custom.skip
		}
	}
	return true
}

// takesRun reports whether the items take the run of the first one's set, or all
// but its last code point, wherever there is more than that one.
func (a alternative) takesRun() bool {
	if a[0].max != unbounded || a[0].min > 1 {
		return false
	}
	if len(a) == 2 && a[1].kind == notAhead {
		return !a[0].keeps && !a[1].set.meets(a[0].set)
	}
	return !a[1:].mayFail()
}

// backed reports whether alternative n, if it fails after the run of its item i,
// is followed by one that takes the run, with nothing but its like between them.
func (p *program) backed(n, i int) bool {
	a := p.alternatives[n]
	for _, b := range p.alternatives[n+1:] {
		if len(b) <= i || b[i].max != unbounded || !b[i].set.same(a[i].set) {
			return false
		}
		for k := range i {
			if b[k].kind != a[k].kind || b[k].set == nil || a[k].set == nil || !b[k].set.same(a[k].set) {
				return false
			}
		}
		if b[i:].takesRun() {
			return true
		}
	}
	return false
}

// spans returns the function of a pattern.
func (p *program) spans() func(l, r rune) bool {
	var pairs [][2]*runeSet
	for _, a := range p.alternatives {
		var before []*runeSet // what can stand before the next item
		for i := range a {
			for _, l := range before {
				for _, f := range a[i].firsts() {
					pairs = append(pairs, [2]*runeSet{l, f})
				}
			}
			inner, lasts := a[i].pairs()
			pairs = append(pairs, inner...)
			if !a[i].mayBeEmpty() {
				before = nil
			}
			before = append(before, lasts...)
		}
	}
	return func(l, r rune) bool {
		for _, p := range pairs {
			if p[0].has(l) && p[1].has(r) {
				return true
			}
		}
		return false
	}
}

// total reports whether each code point begins a match, wherever it stands.
func (p *program) total() bool {
	all := &runeSet{}
	for _, a := range p.alternatives {
		if t := a.sure(); t != nil {
			all.union(t)
		}
	}
	for _, b := range all.bytes[:0x80] {
		if b != yes {
			return false
		}
	}
	return all.class == anything
}

// sure returns a set of which each code point is a match of the alternative, if
// not a longer one begins with it; nil if there is none.
func (a alternative) sure() *runeSet {
	var t *runeSet
	for i := range a {
		switch {
		case !a[i].mayFail():
		case t == nil && a[i].kind == byHand && a[i].custom.sure != nil:
			t = a[i].custom.sure
		case t != nil || a[i].set == nil || a[i].min != 1 || a[i].lookaround():
			return nil
		default:
			t = a[i].set
		}
	}
	for i := range a {
		if a[i].keeps && a[i].set != t && a[i].set.meets(t) {
			return nil
		}
	}
	return t
}
