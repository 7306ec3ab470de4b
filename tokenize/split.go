package tokenize

import "strings"

// A splitter returns the end of the piece that begins at s[i]. i < len(s), and
// s is valid UTF-8. The pieces of a text are what BPE then merges, each by itself.
type splitter func(s string, i int) int

// The patterns are matched by exact text and scanned by hand: Go's regexp has no
// lookahead, and an engine for it would cost more than the merging. Each scanner
// is the pattern's first alternative that matches, with what its backtracking
// comes to.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitGPT2 scans gpt2Pattern, which ByteLevel has built in
// (tokenizers 0.23.2, pre_tokenizers/byte_level.rs).
func splitGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
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
		return skip(s, i, letter)
	case c&number != 0:
		return skip(s, i, number)
	case c&space == 0:
		return skipOther(s, i, letter|number|space)
	}
	return spaces(s, i)
}

// splitLlama3 scans llama3Pattern.
func splitLlama3(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	c, n := classAt(s, i)
	if c&letter != 0 {
		return skip(s, i+n, letter)
	}
	if c&number != 0 {
		return threeNumbers(s, i+n)
	}
	if i+n < len(s) && !isNewline(s[i]) {
		next, width := classAt(s, i+n)
		if next&letter != 0 {
			return skip(s, i+n+width, letter)
		}
		if s[i] == ' ' && next&(space|number) == 0 {
			return symbols(s, i+n+width)
		}
	}
	if c&space == 0 {
		return symbols(s, i+n)
	}
	if end := lastNewline(s, i); end > i {
		return end
	}
	return spaces(s, i)
}

func isNewline(b byte) bool { return b == '\n' || b == '\r' }

// contraction returns the length of the s, t, re, ve, m, ll or d that s begins
// with, 0 for none. With fold its case is ignored, as the (?i:) of a pattern
// does: of all other code points only U+017F folds to one of these letters.
func contraction(s string, fold bool) int {
	if fold && strings.HasPrefix(s, "\u017f") {
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
func lower(s string, i int, fold bool) byte {
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
func threeNumbers(s string, i int) int {
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
func symbols(s string, i int) int {
	i = skipOther(s, i, letter|number|space)
	for i < len(s) && isNewline(s[i]) {
		i++
	}
	return i
}

// lastNewline scans \s*[\r\n]+ at i: it ends after the last newline of the run
// of white space, and at i if the run has none.
func lastNewline(s string, i int) int {
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
func spaces(s string, i int) int {
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

// parsePreTokenizer reads the pre_tokenizer section: the splitter it asks for,
// and whether text that does not begin with a space gets one.
func parsePreTokenizer(raw []byte) (split splitter, prefixSpace bool, err error) {
	const where = "pre_tokenizer"
	o, err := parseComponent(where, raw)
	if err != nil {
		return nil, false, err
	}
	switch o.kind {
	case "ByteLevel":
		b, err := parseByteLevel(o)
		if err != nil {
			return nil, false, err
		}
		if !b.useRegex {
			return nil, false, unsupported("%s ByteLevel without its pattern and without a Split before it", where)
		}
		return splitGPT2, b.addPrefixSpace, nil
	case "Sequence":
		split, err := parseSplitSequence(o)
		return split, false, err
	}
	return nil, false, unsupported("%s %.60q", where, o.kind)
}

// parseSplitSequence reads the one sequence that is supported: Split, then
// ByteLevel without its own pattern.
func parseSplitSequence(o component) (splitter, error) {
	if err := o.only("pretokenizers"); err != nil {
		return nil, err
	}
	items, err := o.list("pretokenizers", maxSteps)
	if err != nil {
		return nil, err
	}
	if len(items) != 2 {
		return nil, unsupported("pre_tokenizer Sequence of %d, not of Split and ByteLevel,", len(items))
	}
	first, err := parseComponent("pre_tokenizer", items[0])
	if err != nil {
		return nil, err
	}
	second, err := parseComponent("pre_tokenizer", items[1])
	if err != nil {
		return nil, err
	}
	if first.kind != "Split" || second.kind != "ByteLevel" {
		return nil, unsupported("pre_tokenizer Sequence of %.60q and %.60q, not of Split and ByteLevel,", first.kind, second.kind)
	}
	split, err := parseSplit(first)
	if err != nil {
		return nil, err
	}
	b, err := parseByteLevel(second)
	if err != nil {
		return nil, err
	}
	if b.useRegex {
		return nil, unsupported("pre_tokenizer ByteLevel with its pattern after a Split")
	}
	if b.addPrefixSpace {
		return nil, unsupported("pre_tokenizer ByteLevel with add_prefix_space after a Split")
	}
	return split, nil
}

func parseSplit(o component) (splitter, error) {
	if err := o.only("pattern", "behavior", "invert"); err != nil {
		return nil, err
	}
	behavior, err := o.text("behavior")
	if err != nil {
		return nil, err
	}
	if behavior != "Isolated" {
		return nil, unsupported("pre_tokenizer Split behavior %.60q", behavior)
	}
	invert, err := o.flag("invert")
	if err != nil {
		return nil, err
	}
	if invert {
		return nil, unsupported("pre_tokenizer Split with invert")
	}
	p, err := parseObject("pre_tokenizer Split pattern", o.values["pattern"])
	if err != nil {
		return nil, err
	}
	if err := p.only("Regex"); err != nil {
		return nil, err
	}
	pattern, err := p.text("Regex")
	if err != nil {
		return nil, err
	}
	if pattern != llama3Pattern {
		return nil, unsupported("pre_tokenizer Split pattern %.400q", pattern)
	}
	return splitLlama3, nil
}

// byteLevel has the fields of a ByteLevel component that matter to ids.
type byteLevel struct{ addPrefixSpace, useRegex bool }

// parseByteLevel reads ByteLevel, which is a pre-tokenizer, a post-processor and
// a decoder. trim_offsets moves offsets only.
func parseByteLevel(o component) (byteLevel, error) {
	b := byteLevel{useRegex: true}
	if err := o.only("add_prefix_space", "trim_offsets", "use_regex"); err != nil {
		return b, err
	}
	var err error
	if b.addPrefixSpace, err = o.flag("add_prefix_space"); err != nil {
		return b, err
	}
	if _, err = o.flag("trim_offsets"); err != nil {
		return b, err
	}
	if _, ok := o.values["use_regex"]; ok {
		b.useRegex, err = o.flag("use_regex")
	}
	return b, err
}
