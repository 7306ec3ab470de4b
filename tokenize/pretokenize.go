package tokenize

// A preTokenizer cuts a normalized text into the pieces that are merged each by
// itself (tokenizers 0.23.2, pre_tokenizers/).
type preTokenizer struct {
	steps     []step // each cuts the pieces of the one before; maxSteps at most
	byteLevel bool   // the model's symbols are bytes, not characters
}

// A step changes a piece, if it has a rewrite, and then cuts it.
type step struct {
	// rewrite appends to dst what s becomes. first says that s begins the whole
	// text. Nil changes nothing.
	rewrite func(dst, s []byte, first bool) []byte

	scan scanner
}

// next returns the piece s[from:to] that comes at or after i, and where the one
// after it is to be looked for; from == to for none.
func (t *step) next(s []byte, i int) (from, to, next int) {
	to, _ = t.scan(s, i)
	return i, to, to
}

// prefixSpace puts a space before a piece that does not begin with one.
func prefixSpace(dst, s []byte, first bool) []byte {
	if s[0] != ' ' {
		dst = append(dst, ' ')
	}
	return append(dst, s...)
}

// parsePreTokenizer reads the pre_tokenizer section; raw is empty or null for none.
func parsePreTokenizer(raw []byte) (preTokenizer, error) {
	scan, prefix, err := parseScan(raw)
	if err != nil {
		return preTokenizer{}, err
	}
	s := step{scan: scan}
	if prefix {
		s.rewrite = prefixSpace
	}
	return preTokenizer{steps: []step{s}, byteLevel: true}, nil
}

func parseScan(raw []byte) (split scanner, prefixSpace bool, err error) {
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
		return scanGPT2, b.addPrefixSpace, nil
	case "Sequence":
		split, err := parseSplitSequence(o)
		return split, false, err
	}
	return nil, false, unsupported("%s %.60q", where, o.kind)
}

// parseSplitSequence reads the one sequence that is supported: Split, then
// ByteLevel without its own pattern.
func parseSplitSequence(o component) (scanner, error) {
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

func parseSplit(o component) (scanner, error) {
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
	return scanLlama3, nil
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
