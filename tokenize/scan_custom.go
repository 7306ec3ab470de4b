package tokenize

import "unicode/utf8"

// A custom is a part of a pattern that is not a sequence of sets, by its text. The text behind
// it does not change its match.
type custom struct {
	match func(s []byte, i int) int // the end, or none
	first *runeSet                  // its first code points

	// pairs are the code points that it can have one after the other; lasts its last ones.
	pairs [][2]*runeSet
	lasts []*runeSet

	sure *runeSet // of which each code point is a match, if not a longer one begins with it
	skip *runeSet // see program
}

// custom takes the text of a custom, nil if none is next.
func (r *regexReader) custom() *custom {
	switch {
	case r.take(`(?:\r?\n)+(?!\r?\n)`):
		return newlineRun()
	case r.take(`(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`):
		return phrase()
	case r.take(`\d{1,3}(?=(?:\d{3})*\b)`):
		return digitGroups()
	}
	return nil
}

// newlineRun is of Laguna. Its lookahead never fails: the run takes what it looks for.
func newlineRun() *custom {
	cr, lf := charSet('\r'), charSet('\n')
	first := charSet('\r')
	first.union(lf)
	return &custom{
		match: func(s []byte, i int) int {
			end := none
			for i < len(s) {
				if s[i] == '\r' {
					i++
				}
				if i == len(s) || s[i] != '\n' {
					break
				}
				i++
				end = i
			}
			return end
		},
		first: first,
		pairs: [][2]*runeSet{{cr, lf}, {lf, cr}, {lf, lf}},
		lasts: []*runeSet{lf},
	}
}

// phrase is of K-EXAONE: letters with their marks, and single spaces between them.
func phrase() *custom {
	letters, marked, blank := classSet(letter), classSet(letter|mark), charSet(' ')
	letters.seal()
	marked.seal()
	return &custom{
		match: func(s []byte, i int) int {
			n := letters.width(s, i)
			if n == 0 {
				return none
			}
			for n > 0 {
				i = marked.run(s, i+n)
				if i == len(s) || s[i] != ' ' {
					break
				}
				if n = letters.width(s, i+1); n > 0 {
					n++
				}
			}
			return i
		},
		first: letters,
		sure:  letters,
		pairs: [][2]*runeSet{{marked, marked}, {marked, blank}, {blank, letters}},
		lasts: []*runeSet{marked},
	}
}

// digitGroups is of Cohere: of a run of digits that a word does not go on after,
// groups of three from its end.
func digitGroups() *custom {
	all := classSet(digit)
	all.seal()
	return &custom{
		match: func(s []byte, i int) int {
			if all.width(s, i) == 0 {
				return none
			}
			count := 3
			// A digit before it is of a group: where a run has no groups it has been
			// skipped.
			if before, _ := utf8.DecodeLastRune(s[:i]); !all.has(before) {
				count = 0
				end := i
				for n := all.width(s, end); n > 0; n = all.width(s, end) {
					end += n
					count++
				}
				if r, _ := utf8.DecodeRune(s[end:]); end < len(s) && isPatternWord(r) {
					return none
				}
				count = (count-1)%3 + 1
			}
			for range count {
				i += all.width(s, i)
			}
			return i
		},
		first: all,
		pairs: [][2]*runeSet{{all, all}},
		lasts: []*runeSet{all},
		skip:  all,
	}
}

// isPatternWord reports whether r is of Oniguruma's \w, of which \b is the edge.
func isPatternWord(r rune) bool {
	if r < 0x100 && classOf(r)&number != 0 {
		return true
	}
	return classOf(r)&word != 0 && r != '\u200c' && r != '\u200d'
}

func charSet(c rune) *runeSet {
	t := &runeSet{}
	t.add(c, c)
	t.seal()
	return t
}
