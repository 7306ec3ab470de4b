package tokenize

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// A preTokenizer cuts a normalized text into the pieces that are merged each by
// itself (tokenizers 0.23.2, pre_tokenizers/). The zero value leaves it whole.
type preTokenizer struct {
	steps     []step // each cuts the pieces of the one before; maxSteps at most
	byteLevel bool   // the model's symbols are bytes, not characters
	textStart bool   // a step does otherwise where a piece begins the whole text
}

// restarts reports whether, wherever r follows l in a text, the text may be cut between them
// and each part cut by the steps alone, the second one as inside: the pieces are then those of
// the whole text, except that the one with both l and r, if there is one, is cut between them.
func (p *preTokenizer) restarts(l, r rune) bool {
	for i := range p.steps {
		t := &p.steps[i]
		if i > 0 && t.prefixes {
			return false // r's piece gets a prefix if a step before ends one at l
		}
		l, r = t.rewritten(l), t.rewritten(r)
		if t.spans(l, r) || classOf(l)&t.looksAhead != 0 {
			return false
		}
		if t.ends(l, r) {
			return true
		}
	}
	return true
}

// rewritten returns the form of a character after all steps.
func (p *preTokenizer) rewritten(r rune) rune {
	for i := range p.steps {
		r = p.steps[i].rewritten(r)
	}
	return r
}

// ends reports whether a piece ends between l and r wherever r follows l in a text.
func (p *preTokenizer) ends(l, r rune) bool {
	for i := range p.steps {
		t := &p.steps[i]
		l, r = t.rewritten(l), t.rewritten(r)
		if t.ends(l, r) {
			return true
		}
	}
	return false
}

// A place is the context in front of the first step's text. Later steps get pieces, at
// pieceStart.
type place uint8

const (
	textStart  place = iota // nothing: it begins the whole text
	pieceStart              // an added token
	inside                  // the same text, up to where the pre-tokenizer restarts
)

// of returns the place of the part from from on of a text at p.
func (p place) of(from int) place {
	if from > 0 {
		return pieceStart
	}
	return p
}

// A step changes a piece, if it has a rewrite, and then cuts it by the matches of
// a pattern.
type step struct {
	// rewrite appends the changed form of s to dst; s is not empty. Nil changes nothing.
	rewrite  func(dst, s []byte, at place) []byte
	prefixes bool // rewrite may put a prefix before s, unless it is inside
	space    rune // the character for each space; 0 if it stays

	pattern
	behavior behavior
	invert   bool // the matches count as gaps and the gaps as matches

	// Properties of the pattern, for the places where a text can be cut.
	alone      func(r rune) bool // whether r matches by itself; nil for unknown
	single     bool              // each match is one character, whatever is around it
	looksAhead class             // a match that ends with one of these may depend on what follows
}

// A behavior decides which pieces the matches and the gaps between them become (tokenizers
// 0.23.2, tokenizer/normalizer.rs, split).
type behavior uint8

const (
	isolated           behavior = iota // each match and each gap
	removed                            // each gap
	contiguous                         // each run of matches and each gap
	mergedWithPrevious                 // a match together with the gap before it, if there is one
	mergedWithNext                     // a match together with the gap after it, if there is one
)

var behaviors = map[string]behavior{
	"Isolated":           isolated,
	"Removed":            removed,
	"Contiguous":         contiguous,
	"MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext":     mergedWithNext,
}

// next returns the piece s[from:to] that comes at or after i, from == to for none; i < len(s),
// and is 0 or the end of the piece before. A step that is isolated does without: its pieces
// are those of scan.
//
// It looks no further than one match or gap past the piece: one of each
// is merged, whatever is around them.
func (t *step) next(s []byte, i int) (from, to int) {
	to, match := t.item(s, i)
	switch t.behavior {
	case removed:
		for match && to < len(s) {
			i = to
			to, match = t.item(s, i)
		}
		if match {
			i = to
		}
	case contiguous:
		for to < len(s) {
			end, other := t.item(s, to)
			if other != match {
				break
			}
			to = end
		}
	case mergedWithPrevious, mergedWithNext:
		if to == len(s) || match != (t.behavior == mergedWithNext) {
			break
		}
		if end, other := t.item(s, to); other != match {
			to = end
		}
	}
	return i, to
}

// item returns the end of the match or gap that begins at s[i], and which it is.
func (t *step) item(s []byte, i int) (end int, match bool) {
	end, match = t.scan(s, i)
	return end, match != t.invert
}

// rewritten returns the form of r after rewrite.
func (t *step) rewritten(r rune) rune {
	if r == ' ' && t.space != 0 {
		return t.space
	}
	return r
}

// ends reports whether the step cuts between l and r wherever r follows l.
func (t *step) ends(l, r rune) bool {
	if t.spans(l, r) {
		return false
	}
	before, after := t.matches(l), t.matches(r)
	switch t.behavior {
	case isolated, removed:
		return before || after
	case contiguous:
		return t.single && before != after
	}
	if (t.behavior == mergedWithPrevious) != t.invert {
		return before
	}
	return after
}

// matches reports whether r is in a match in every text; with single, whether it
// is in any.
func (t *step) matches(r rune) bool {
	if t.total {
		return true
	}
	return t.alone != nil && classOf(r)&t.looksAhead == 0 && t.alone(r)
}

// matchesAlone returns a function that reports whether scan matches a character by itself.
func matchesAlone(scan scanner) func(rune) bool {
	var ascii [utf8.RuneSelf]bool
	for b := range ascii {
		_, ascii[b] = scan([]byte{byte(b)}, 0)
	}
	return func(r rune) bool {
		if r < utf8.RuneSelf {
			return ascii[r]
		}
		_, match := scan([]byte(string(r)), 0)
		return match
	}
}

// literal returns the pattern of a text that is not empty.
func literal(text string) pattern {
	sought := []byte(text)
	return pattern{
		scan: func(s []byte, i int) (int, bool) {
			switch n := bytes.Index(s[i:], sought); n {
			case -1:
				return len(s), false
			case 0:
				return i + len(sought), true
			default:
				return i + n, false
			}
		},
		spans: func(l, r rune) bool { return strings.Contains(text, string([]rune{l, r})) },
	}
}

// nothing is the pattern that never matches.
var nothing = pattern{
	scan:  func(s []byte, _ int) (int, bool) { return len(s), false },
	spans: func(_, _ rune) bool { return false },
}

// prefixSpace puts a space before a piece that does not begin with one.
func prefixSpace(dst, s []byte, at place) []byte {
	if at != inside && s[0] != ' ' {
		dst = append(dst, ' ')
	}
	return append(dst, s...)
}

// A metaspace writes spaces with another character (tokenizers 0.23.2,
// pre_tokenizers/metaspace.rs).
type metaspace struct {
	replacement []byte
	scheme      string // where the replacement is prefixed: always, first, never
}

func (m metaspace) rewrite(dst, s []byte, at place) []byte {
	prepend := m.scheme == "always" && at != inside || m.scheme == "first" && at == textStart
	if prepend && s[0] != ' ' && !bytes.HasPrefix(s, m.replacement) {
		dst = append(dst, m.replacement...)
	}
	for {
		n := bytes.IndexByte(s, ' ')
		if n < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:n]...)
		dst = append(dst, m.replacement...)
		s = s[n+1:]
	}
}

// parsePreTokenizer reads the pre_tokenizer section; raw is empty or null for none.
func parsePreTokenizer(raw []byte) (preTokenizer, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return preTokenizer{}, nil
	}
	var p preTokenizerParser
	err := p.parse(raw)
	return p.made, err
}

type preTokenizerParser struct {
	made       preTokenizer
	components int // parsed so far
}

// parse adds the steps of one component.
func (p *preTokenizerParser) parse(raw []byte) error {
	const where = "pre_tokenizer"
	if p.components++; p.components > maxSteps {
		return malformed("%s has more than %d components", where, maxSteps)
	}
	o, err := parseComponent(where, raw)
	if err != nil {
		return err
	}
	switch o.kind {
	case "Sequence":
		return p.parseSequence(o)
	case "ByteLevel":
		return p.parseByteLevel(o)
	case "Digits":
		return p.parseDigits(o)
	case "Split":
		return p.parseSplit(o)
	case "Punctuation":
		return p.parsePunctuation(o)
	case "Metaspace":
		return p.parseMetaspace(o)
	}
	return unsupported("%s %.60q", where, o.kind)
}

func (p *preTokenizerParser) parseSequence(o component) error {
	if err := o.only("pretokenizers"); err != nil {
		return err
	}
	items, err := o.list("pretokenizers", maxSteps)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := p.parse(item); err != nil {
			return err
		}
	}
	return nil
}

func (p *preTokenizerParser) parseByteLevel(o component) error {
	b, err := parseByteLevel(o)
	if err != nil {
		return err
	}
	if p.made.byteLevel {
		return afterByteLevel(o)
	}
	p.made.byteLevel = true
	t := step{pattern: nothing}
	if b.useRegex {
		if t, err = regexStep(o.where, gpt2Pattern); err != nil {
			return err
		}
	}
	if b.addPrefixSpace {
		t.rewrite, t.prefixes = prefixSpace, true
	} else if !b.useRegex {
		return nil
	}
	p.add(t)
	return nil
}

// afterByteLevel is the error for a component that follows ByteLevel. Its input would be the
// characters that stand for the bytes of the text.
func afterByteLevel(o component) error {
	return unsupported("%s after ByteLevel", o.where)
}

// add appends t, and simplifies its behavior if all of a text is matches.
func (p *preTokenizerParser) add(t step) {
	if t.total && (t.behavior != removed || t.invert) {
		if t.behavior == contiguous {
			return
		}
		t.behavior = isolated
	}
	p.made.steps = append(p.made.steps, t)
}

func (p *preTokenizerParser) parseDigits(o component) error {
	if err := o.only("individual_digits"); err != nil {
		return err
	}
	individual, err := o.flag("individual_digits")
	if err != nil {
		return err
	}
	t := step{pattern: mappedDigits}
	if !p.made.byteLevel {
		t = step{pattern: digits, single: true, alone: matchesAlone(digits.scan)}
	}
	if !individual {
		t.behavior = contiguous
	}
	p.add(t)
	return nil
}

func (p *preTokenizerParser) parsePunctuation(o component) error {
	if err := o.only("behavior"); err != nil {
		return err
	}
	t := step{pattern: punctuation, single: true, alone: matchesAlone(punctuation.scan)}
	if _, ok := o.values["behavior"]; ok {
		var err error
		if t.behavior, err = parseBehavior(o); err != nil {
			return err
		}
	}
	if p.made.byteLevel {
		return afterByteLevel(o)
	}
	p.add(t)
	return nil
}

func parseBehavior(o component) (behavior, error) {
	name, err := o.text("behavior")
	if err != nil {
		return 0, err
	}
	b, ok := behaviors[name]
	if !ok {
		return 0, unsupported("%s behavior %.60q", o.where, name)
	}
	return b, nil
}

func (p *preTokenizerParser) parseSplit(o component) error {
	if err := o.only("pattern", "behavior", "invert"); err != nil {
		return err
	}
	sought, err := parseObject(o.where+" pattern", o.values["pattern"])
	if err != nil {
		return err
	}
	t, err := p.parsePattern(o, sought)
	if err != nil {
		return err
	}
	if t.behavior, err = parseBehavior(o); err != nil {
		return err
	}
	if t.invert, err = o.flag("invert"); err != nil {
		return err
	}
	p.add(t)
	return nil
}

// threeDigits is the one pattern that may follow ByteLevel: its matches are written the same
// there.
const threeDigits = "[0-9][0-9][0-9]"

// parsePattern reads the pattern of a Split: a text or a regular expression.
func (p *preTokenizerParser) parsePattern(o component, sought object) (step, error) {
	if err := sought.only("String", "Regex"); err != nil {
		return step{}, err
	}
	if len(sought.values) != 1 {
		return step{}, malformed("%s has %d values, not 1", sought.where, len(sought.values))
	}
	if _, ok := sought.values["Regex"]; ok {
		regex, err := sought.text("Regex")
		if err != nil {
			return step{}, err
		}
		if p.made.byteLevel && regex != threeDigits {
			return step{}, afterByteLevel(o)
		}
		return regexStep(sought.where, regex)
	}
	text, err := sought.text("String")
	switch {
	case err != nil:
		return step{}, err
	case p.made.byteLevel:
		return step{}, afterByteLevel(o)
	case text == "": // it matches between all characters
		return step{}, unsupported("%s of no text", sought.where)
	}
	t := step{pattern: literal(text)}
	t.single = utf8.RuneCountInString(text) == 1
	t.alone = matchesAlone(t.scan)
	return t, nil
}

func regexStep(where, regex string) (step, error) {
	known, ok := patternOf(regex)
	if !ok {
		return step{}, unsupported("%s %.400q", where, regex)
	}
	t := step{pattern: known, alone: matchesAlone(known.scan)}
	if t.looksAhead, ok = lookahead(regex); !ok {
		t.spans = func(_, _ rune) bool { return true }
	}
	return t, nil
}

// lookaheads are the known ones of patterns, with the ends of matches that depend on them.
var lookaheads = []struct {
	text string
	ends class
}{
	{`\s+(?!\S)`, space},
	{`\s++$`, space},
	{`(?:\r?\n)+(?!\r?\n)`, space},
	{`\d{1,3}(?=(?:\d{3})*\b)`, number},
}

// lookahead returns the ends of a regular expression's matches that depend on the text behind;
// false for unknown.
func lookahead(regex string) (ends class, ok bool) {
	for _, l := range lookaheads {
		if strings.Contains(regex, l.text) {
			ends |= l.ends
			regex = strings.ReplaceAll(regex, l.text, "")
		}
	}
	depth := 0 // of classes in brackets
	for i := 0; i < len(regex); i++ {
		switch regex[i] {
		case '\\':
			i++
			if i < len(regex) && strings.IndexByte("bBAzZG", regex[i]) >= 0 {
				return 0, false
			}
		case '[':
			depth++
		case ']':
			depth--
		case '$', '^':
			if depth <= 0 {
				return 0, false
			}
		case '(':
			rest := regex[i+1:]
			if depth <= 0 && strings.HasPrefix(rest, "?") && !strings.HasPrefix(rest, "?:") && !strings.HasPrefix(rest, "?i:") {
				return 0, false
			}
		}
	}
	return ends, true
}

func (p *preTokenizerParser) parseMetaspace(o component) error {
	m, split, err := parseMetaspace(o)
	if err != nil {
		return err
	}
	if p.made.byteLevel {
		return afterByteLevel(o)
	}
	if m.scheme == "first" && len(p.made.steps) > 0 {
		// It depends on the place of a piece in the original text, and more than one piece can
		// begin with the first character.
		return unsupported("%s with prepend_scheme first after another component", o.where)
	}
	p.made.textStart = p.made.textStart || m.scheme == "first"
	t := step{pattern: nothing, rewrite: m.rewrite, prefixes: m.scheme != "never"}
	t.space, _ = utf8.DecodeRune(m.replacement)
	if split {
		t.pattern, t.behavior = literal(string(m.replacement)), mergedWithNext
		t.single, t.alone = true, matchesAlone(t.scan)
	}
	p.add(t)
	return nil
}

func parseMetaspace(o component) (m metaspace, split bool, err error) {
	if err := o.only("replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"); err != nil {
		return m, false, err
	}
	replacement, err := o.text("replacement")
	if err != nil {
		return m, false, err
	}
	if utf8.RuneCountInString(replacement) != 1 {
		return m, false, malformed("%s: replacement %.60q is not one character", o.where, replacement)
	}
	if !o.absent("str_rep") { // of old files; it repeats the others
		if _, err := o.text("str_rep"); err != nil {
			return m, false, err
		}
	}
	m = metaspace{replacement: []byte(replacement), scheme: "always"}
	if _, ok := o.values["prepend_scheme"]; ok {
		if m.scheme, err = o.text("prepend_scheme"); err != nil {
			return m, false, err
		}
	}
	switch m.scheme {
	case "always", "first", "never":
	default:
		return m, false, unsupported("%s prepend_scheme %.60q", o.where, m.scheme)
	}
	if !o.absent("add_prefix_space") {
		prefix, err := o.flag("add_prefix_space")
		if err != nil {
			return m, false, err
		}
		if !prefix && m.scheme != "never" {
			return m, false, malformed("%s: add_prefix_space false with prepend_scheme %s", o.where, m.scheme)
		}
	}
	if o.absent("split") {
		return m, true, nil
	}
	split, err = o.flag("split")
	return m, split, err
}

// byteLevel has the fields of a ByteLevel component that affect ids.
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
