package tokenize

import "unicode/utf8"

// The patterns that most prompts pass are scanned by hand, each for its exact
// text: what its alternatives and their backtracking come to, in one look at most
// characters. Every other pattern is scanned by a program.
var knownScanners = map[string]scanner{
	gpt2Pattern:   scanGPT2,
	llama3Pattern: scanCL100k(3),
	qwen2Pattern:  scanCL100k(1),
	o200kPattern:  scanO200k(3, true),
	tekkenPattern: scanO200k(1, false),
}

const (
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kPattern  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

var (
	letters = sealed(classSet(letter))
	numbers = sealed(classSet(number))
	spaces  = sealed(classSet(space))
	others  = sealed(classSet(anything &^ (letter | number | space)))
	leads   = sealed(withoutNewlines(classSet(anything &^ (letter | number)))) // of a word
	capital = sealed(classSet(upperCase | titleCase | modifierLetter | otherLetter | mark))
	small   = sealed(classSet(lowerCase | modifierLetter | otherLetter | mark))
)

func sealed(t *runeSet) *runeSet {
	t.seal()
	return t
}

func withoutNewlines(t *runeSet) *runeSet {
	t.bytes['\r'], t.bytes['\n'] = no, no
	return t
}

func scanGPT2(s []byte, i int) (int, bool) {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n, true
		}
	}
	word := i
	if s[i] == ' ' {
		word++
	}
	for _, set := range [...]*runeSet{letters, numbers, others} {
		if end := set.run(s, word); end > word {
			return end, true
		}
	}
	return spaceEnd(s, i, false), true
}

// scanCL100k scans llama3Pattern, with so many digits together.
func scanCL100k(digits int) scanner {
	return func(s []byte, i int) (int, bool) {
		if s[i] == '\'' {
			if n := contraction(s[i+1:], true); n > 0 {
				return i + 1 + n, true
			}
		}
		word := i + leads.width(s, i)
		if end := letters.run(s, word); end > word {
			return end, true
		}
		return endOfRest(s, i, digits, false), true
	}
}

// scanO200k scans o200kPattern, with so many digits together, and with or without
// contractions.
func scanO200k(digits int, contractions bool) scanner {
	return func(s []byte, i int) (int, bool) {
		end := cased(s, i)
		if end == i {
			return endOfRest(s, i, digits, true), true
		}
		if contractions && end < len(s) && s[end] == '\'' {
			if n := contraction(s[end+1:], true); n > 0 {
				end += 1 + n
			}
		}
		return end, true
	}
}

// cased ends a word of o200kPattern, and is i if none begins there. Its first
// alternative is sought with and without a lead before the second is: a mark can
// be a lead or a word, and is a word by itself where only capitals follow it.
func cased(s []byte, i int) int {
	word := i + leads.width(s, i)
	capitals := capital.run(s, word)
	if end := endsSmall(s, word, capitals); end > word {
		return end
	}
	if word > i {
		if end := endsSmall(s, i, capital.run(s, i)); end > i {
			return end
		}
	}
	if capitals > word {
		return capitals
	}
	return i
}

// endsSmall ends [capital]*[small]+ at i, whose capitals end at capitals; at i if
// it does not match. A character that is both goes to the capitals, which give it back if
// nothing small follows.
func endsSmall(s []byte, i, capitals int) int {
	if end := small.run(s, capitals); end > capitals {
		return end
	}
	for end := capitals; end > i; {
		r, n := utf8.DecodeLastRune(s[i:end])
		if small.has(r) {
			return end
		}
		end -= n
	}
	return i
}

// endOfRest ends what is no word: \p{N}{1,digits}, ` ?[^\s\p{L}\p{N}]+[\r\n]*`, in
// which slashes may go with the newlines, or white space.
func endOfRest(s []byte, i, digits int, slashes bool) int {
	if n := numbers.width(s, i); n > 0 {
		for ; n > 0 && digits > 0; digits-- {
			i += n
			n = numbers.width(s, i)
		}
		return i
	}
	symbol := i
	if s[i] == ' ' {
		symbol++
	}
	end := others.run(s, symbol)
	if end == symbol {
		return spaceEnd(s, i, true)
	}
	for end < len(s) && (s[end] == '\r' || s[end] == '\n' || slashes && s[end] == '/') {
		end++
	}
	return end
}

// spaceEnd ends \s+(?!\S)|\s+ at i: the run of white space less its last character,
// which goes to the word that follows; all of it if nothing follows or if it is
// that one character. With newlines \s*[\r\n]+ comes first, which ends behind the
// last newline of the run.
func spaceEnd(s []byte, i int, newlines bool) int {
	end, last := i, i
	for n := spaces.width(s, end); n > 0; n = spaces.width(s, end) {
		last = end
		end += n
	}
	if newlines {
		for e := end; e > i; e-- {
			if s[e-1] == '\r' || s[e-1] == '\n' {
				return e
			}
		}
	}
	if end == len(s) || last == i {
		return end
	}
	return last
}

// contraction returns the length of the s, t, re, ve, m, ll or d that s begins
// with, 0 for none. With fold its case is ignored, as the (?i:) of a pattern does:
// of all other code points only U+017F folds to one of these letters.
func contraction(s []byte, fold bool) int {
	if fold && len(s) >= 2 && s[0] == 0xc5 && s[1] == 0xbf {
		return 2
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
