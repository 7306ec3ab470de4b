package jinja

import (
	"strings"
	"unicode/utf8"
)

// The filter wordwrap (Jinja2 3.1.6, filters.py), which is textwrap.wrap of
// CPython 3.11 for each line.

func wordwrapFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_wordwrap", "s", "width?", "break_long_words?", "wrapstring?", "break_on_hyphens?")
	if err != nil {
		return nil, err
	}
	end := or(b[3], nil)
	if end == nil {
		end = "\n"
	}
	if !isString(end) {
		return nil, noAttribute(end, "join")
	}
	s, ok := asString(v)
	if !ok {
		return nil, noAttribute(v, "splitlines")
	}
	if err := m.alloc(24 * len(s)); err != nil {
		return nil, err
	}
	if err := m.kinds(4 * len(s)); err != nil {
		return nil, err
	}
	w := wrapper{m: m, onHyphens: b[4] == missing || b[4] == true}
	if w.breakLong, err = m.truth(or(b[2], true)); err != nil {
		return nil, err
	}
	if w.breakHyphens, err = m.truth(or(b[4], true)); err != nil {
		return nil, err
	}
	if w.lines, err = m.linesOf(s); err != nil {
		return nil, err
	}
	if len(w.lines) > 0 {
		if w.width, err = m.wrapWidth(or(b[1], int64(79))); err != nil {
			return nil, err
		}
	}
	wrapped, err := w.wrapAll()
	if err != nil {
		return nil, err
	}
	return m.invoke(end, "join", &List{Items: wrapped})
}

func (m *machine) wrapWidth(v Value) (int, error) {
	none, err := m.less("<=", v, int64(0))
	if err != nil {
		return 0, err
	}
	if none {
		return 0, raise("ValueError", "invalid width (must be > 0)")
	}
	if n, ok := asInt64(v); ok {
		return nearestInt(n), nil
	}
	return 0, unsupported("wordwrap to a width of type %s", typeName(v))
}

// A chunk is a part of a line that is not broken if it fits in one.
type chunk struct {
	text string
	n    int // code points
}

func newChunk(text string) chunk { return chunk{text, utf8.RuneCountInString(text)} }

func (c chunk) blank() bool { return strings.IndexFunc(c.text, notSpace) < 0 }

func notSpace(r rune) bool { return !isSpace(r) }

type wrapper struct {
	m            *machine
	lines        []string
	width        int
	breakLong    bool // words longer than a line are broken
	onHyphens    bool // words are chunked behind hyphens
	breakHyphens bool // long words are broken behind a hyphen, if they have one
}

// wrapAll returns the wrapped lines; those of one line are joined like the others.
func (w *wrapper) wrapAll() ([]Value, error) {
	var all []Value
	for _, line := range w.lines {
		n := len(all)
		var err error
		if all, err = w.wrap(all, w.chunks(line)); err != nil {
			return nil, err
		}
		if len(all) == n {
			all = append(all, "")
		}
	}
	return all, nil
}

func (w *wrapper) wrap(lines []Value, chunks []chunk) ([]Value, error) {
	for first := true; len(chunks) > 0; {
		if !first && chunks[0].blank() {
			chunks = chunks[1:]
		}
		var line []chunk
		length := 0
		for len(chunks) > 0 && length+chunks[0].n <= w.width {
			line = append(line, chunks[0])
			length += chunks[0].n
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && chunks[0].n > w.width {
			line, chunks = w.cutWord(line, chunks, w.width-length)
		}
		if last := len(line) - 1; last >= 0 && line[last].blank() {
			line = line[:last]
		}
		if err := w.m.step(1 + len(line)); err != nil {
			return nil, err
		}
		if err := w.m.alloc(64); err != nil {
			return nil, err
		}
		if len(line) > 0 {
			lines = append(lines, joined(line))
			first = false
		}
	}
	return lines, nil
}

// cutWord puts as much of chunks' first, which fits in no line, as there is space
// for at the end of line, maybe nothing.
func (w *wrapper) cutWord(line, chunks []chunk, space int) (newLine, rest []chunk) {
	if !w.breakLong {
		if len(line) == 0 {
			line, chunks = append(line, chunks[0]), chunks[1:]
		}
		return line, chunks
	}
	word := chunks[0]
	end, n := 0, space // byte and code point to cut at
	for range space {
		_, size := utf8.DecodeRuneInString(word.text[end:])
		end += size
	}
	if w.breakHyphens && word.n > space {
		hyphen := strings.LastIndexByte(word.text[:end], '-')
		if hyphen > 0 && strings.Trim(word.text[:hyphen], "-") != "" {
			end = hyphen + 1
			n = utf8.RuneCountInString(word.text[:end])
		}
	}
	chunks[0] = chunk{word.text[end:], word.n - n}
	return append(line, chunk{word.text[:end], n}), chunks
}

func joined(chunks []chunk) string {
	var b strings.Builder
	for _, c := range chunks {
		b.WriteString(c.text)
	}
	return b.String()
}

// chunks splits a line as textwrap's wordsep_re, or wordsep_simple_re, does.
func (w *wrapper) chunks(line string) []chunk {
	var chunks []chunk
	for line != "" {
		n := strings.IndexFunc(line, func(r rune) bool { return !isWrapSpace(r) })
		if n == 0 {
			n = strings.IndexFunc(line, isWrapSpace)
		}
		if n < 0 {
			n = len(line)
		}
		part := line[:n]
		line = line[n:]
		if !w.onHyphens || isWrapSpace(rune(part[0])) {
			chunks = append(chunks, newChunk(part))
			continue
		}
		chunks = appendWords(chunks, []rune(part))
	}
	return chunks
}

// isWrapSpace is of the white space that textwrap breaks lines at.
func isWrapSpace(r rune) bool { return r == ' ' || r >= '\t' && r <= '\r' }

// appendWords splits what has no white space behind hyphens in words and around
// dashes of two or more.
func appendWords(chunks []chunk, s []rune) []chunk {
	from := 0
	for i := 0; i < len(s); i++ {
		if i > from && endsWord(s, i) {
			chunks = append(chunks, newChunk(string(s[from:i])))
			from = i
		}
		if i == from {
			// A dash that stands between words is a chunk.
			if n := dash(s, i); n > 0 {
				chunks = append(chunks, newChunk(string(s[i:i+n])))
				from = i + n
				i = from - 1
				continue
			}
		}
		if s[i] == '-' && i > from && breaksAfter(s, i) {
			chunks = append(chunks, newChunk(string(s[from:i+1])))
			from = i + 1
		}
	}
	if from < len(s) {
		chunks = append(chunks, newChunk(string(s[from:])))
	}
	return chunks
}

// endsWord reports whether a word ends before a dash at i.
func endsWord(s []rune, i int) bool { return s[i] == '-' && dash(s, i) > 0 }

// dash returns the length of a dash at i, between something of a word and a word, or
// 0.
func dash(s []rune, i int) int {
	if i == 0 || s[i] != '-' || !isWord(s[i-1]) && !strings.ContainsRune(`!"'&.,?`, s[i-1]) {
		return 0
	}
	n := 0
	for i+n < len(s) && s[i+n] == '-' {
		n++
	}
	if n < 2 || i+n == len(s) || !isWord(s[i+n]) {
		return 0
	}
	return n
}

// breaksAfter reports whether the hyphen at i is one in a word with letters before and
// behind it.
func breaksAfter(s []rune, i int) bool {
	letter := func(i int) bool { return i >= 0 && i < len(s) && isLetter(s[i]) }
	hyphen := func(i int) bool { return i >= 0 && i < len(s) && s[i] == '-' }
	return letter(i-1) && (letter(i-2) || hyphen(i-2) && letter(i-3)) &&
		letter(i+1) && (letter(i+2) || hyphen(i+2) && letter(i+3))
}

// isWord is \w of Python's regular expressions, isLetter [^\d\W].
func isWord(r rune) bool {
	return r == '_' || charOf(r).is(charAlpha|charDecimal|charDigit|charNumeric)
}

func isLetter(r rune) bool { return isWord(r) && !charOf(r).is(charDecimal) }
