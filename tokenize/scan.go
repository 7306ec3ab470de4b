package tokenize

import "bytes"

// A scanner finds the matches of a pattern. It returns the end of what begins at
// s[i], and whether that is a match; if not, it is the text before the next match,
// or before the end. i < len(s), s is valid UTF-8, and the end is past i.
type scanner func(s []byte, i int) (end int, match bool)

// The patterns are matched by exact text and scanned by hand: Go's regexp has no
// lookahead, and an engine for it would cost more than the merging. Each scanner
// is the pattern's first alternative that matches, with what its backtracking
// comes to.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scanGPT2 scans gpt2Pattern, which ByteLevel has built in
// (tokenizers 0.23.2, pre_tokenizers/byte_level.rs).
func scanGPT2(s []byte, i int) (int, bool) {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n, true
		}
	}
	c, _ := classAt(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if next, _ := classAt(s, i+1); next&space == 0 {
			c = next
			i++
		}
	}
	switch {
	case c&letter != 0:
		return skip(s, i, letter), true
	case c&number != 0:
		return skip(s, i, number), true
	case c&space == 0:
		return skipOther(s, i, letter|number|space), true
	}
	return spaces(s, i), true
}

// scanLlama3 scans llama3Pattern.
func scanLlama3(s []byte, i int) (int, bool) {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n, true
		}
	}
	c, n := classAt(s, i)
	if c&letter != 0 {
		return skip(s, i+n, letter), true
	}
	if c&number != 0 {
		return threeNumbers(s, i+n), true
	}
	if i+n < len(s) && !isNewline(s[i]) {
		next, width := classAt(s, i+n)
		if next&letter != 0 {
			return skip(s, i+n+width, letter), true
		}
		if s[i] == ' ' && next&(space|number) == 0 {
			return symbols(s, i+n+width), true
		}
	}
	if c&space == 0 {
		return symbols(s, i+n), true
	}
	if end := lastNewline(s, i); end > i {
		return end, true
	}
	return spaces(s, i), true
}

func isNewline(b byte) bool { return b == '\n' || b == '\r' }

// contraction returns the length of the s, t, re, ve, m, ll or d that s begins
// with, 0 for none. With fold its case is ignored, as the (?i:) of a pattern
// does: of all other code points only U+017F folds to one of these letters.
func contraction(s []byte, fold bool) int {
	if fold && bytes.HasPrefix(s, []byte("\u017f")) {
		return len("\u017f")
	}
	switch lower(s, 0, fold) {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if lower(s, 1, fold) == 'e' {
			return 2
		}
	case 'l':
		if lower(s, 1, fold) == 'l' {
			return 2
		}
	}
	return 0
}

// lower returns s[i], with fold in lower case if it is an ASCII letter; 0 past the end.
func lower(s []byte, i int, fold bool) byte {
	if i >= len(s) {
		return 0
	}
	b := s[i]
	if fold && 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}

// threeNumbers ends \p{N}{1,3}, whose first number ends at i.
func threeNumbers(s []byte, i int) int {
	for range 2 {
		if i == len(s) {
			break
		}
		c, n := classAt(s, i)
		if c&number == 0 {
			break
		}
		i += n
	}
	return i
}

// symbols ends [^\s\p{L}\p{N}]+[\r\n]*, whose first symbol ends at i.
func symbols(s []byte, i int) int {
	i = skipOther(s, i, letter|number|space)
	for i < len(s) && isNewline(s[i]) {
		i++
	}
	return i
}

// lastNewline scans \s*[\r\n]+ at i: it ends after the last newline of the run
// of white space, and at i if the run has none.
func lastNewline(s []byte, i int) int {
	end := i
	for i < len(s) {
		c, n := classAt(s, i)
		if c&space == 0 {
			break
		}
		i += n
		if isNewline(s[i-n]) {
			end = i
		}
	}
	return end
}

// spaces scans \s+(?!\S)|\s+ at i: the run of white space less its last code
// point, which goes to the word that follows; all of it if nothing follows or
// if it is that one code point.
func spaces(s []byte, i int) int {
	start, last := i, i
	for i < len(s) {
		c, n := classAt(s, i)
		if c&space == 0 {
			break
		}
		last = i
		i += n
	}
	if i == len(s) || last == start {
		return i
	}
	return last
}
