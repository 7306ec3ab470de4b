package tokenize_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize"
)

// A preMatch is a match of a pattern, or the text between two.
type preMatch struct {
	text  string
	found bool
}

// plainSplit cuts by a complete list of matches, like the official library (tokenizers 0.23.2,
// tokenizer/normalizer.rs).
func plainSplit(matches []preMatch, behavior string, invert bool) (pieces []string) {
	if invert {
		matches = slices.Clone(matches)
		for i := range matches {
			matches[i].found = !matches[i].found
		}
	}
	switch behavior {
	case "Isolated":
		for _, m := range matches {
			pieces = append(pieces, m.text)
		}
	case "Removed":
		for _, m := range matches {
			if !m.found {
				pieces = append(pieces, m.text)
			}
		}
	case "Contiguous":
		for i, m := range matches {
			if i > 0 && m.found == matches[i-1].found {
				pieces[len(pieces)-1] += m.text
			} else {
				pieces = append(pieces, m.text)
			}
		}
	case "MergedWithPrevious":
		before := false // the one before was a match
		for _, m := range matches {
			if m.found && !before && len(pieces) > 0 {
				pieces[len(pieces)-1] += m.text
			} else {
				pieces = append(pieces, m.text)
			}
			before = m.found
		}
	case "MergedWithNext":
		after := false
		for _, m := range slices.Backward(matches) {
			if m.found && !after && len(pieces) > 0 {
				pieces[len(pieces)-1] = m.text + pieces[len(pieces)-1]
			} else {
				pieces = append(pieces, m.text)
			}
			after = m.found
		}
		slices.Reverse(pieces)
	default:
		panic(behavior)
	}
	return pieces
}

// matchesOf lists the matches of first, which returns the bounds of the first match in a text, or
// negative ones.
func matchesOf(text string, first func(string) (begin, end int)) (matches []preMatch) {
	for text != "" {
		begin, end := first(text)
		if begin < 0 {
			return append(matches, preMatch{text, false})
		}
		if begin > 0 {
			matches = append(matches, preMatch{text[:begin], false})
		}
		matches = append(matches, preMatch{text[begin:end], true})
		text = text[end:]
	}
	return matches
}

func findRune(in func(rune) bool) func(string) (int, int) {
	return func(s string) (int, int) {
		i := strings.IndexFunc(s, in)
		if i < 0 {
			return i, i
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		return i, i + n
	}
}

func findText(text string) func(string) (int, int) {
	return func(s string) (int, int) {
		i := strings.Index(s, text)
		return i, i + len(text)
	}
}

// findRegex finds a regular expression of splitRegexps.
func findRegex(expr string) func(string) (int, int) {
	re := splitRegexps[expr]
	ahead := re.NumSubexp() > 0
	return func(s string) (int, int) {
		at := re.FindStringSubmatchIndex(s)
		if at == nil {
			return -1, -1
		}
		if ahead && at[2] >= 0 && at[1] < len(s) && at[1]-at[0] > 1 {
			at[1]-- // white space is one byte long here
		}
		return at[0], at[1]
	}
}

// splitRegexps have (\s+) in place of \s+(?!\S)|\s+, which package regexp does not support.
var splitRegexps = func() map[string]*regexp.Regexp {
	all := map[string]*regexp.Regexp{}
	for _, expr := range []string{gpt2Split, llama3Split, `\p{N}{1,3}`, ` ?\p{N}+`, "[0-9][0-9][0-9]"} {
		if before, ahead := strings.CutSuffix(expr, `|\s+(?!\S)|\s+`); ahead {
			all[expr] = regexp.MustCompile(before + `|(\s+)`)
		} else {
			all[expr] = regexp.MustCompile(expr)
		}
	}
	return all
}()

func isPunct(r rune) bool {
	return unicode.IsPunct(r) || r < 0x80 && unicode.IsSymbol(r)
}

// A preTokenizer is a decoded component of the file.
type preTokenizer = map[string]any

// plainPieces applies a component to all pieces of a text. The first piece is at offset 0 only at
// the start of the text. Bytes are mapped to characters as in the file.
func plainPieces(c preTokenizer, pieces []string, atStart bool) (cut []string) {
	each := func(f func(i int, piece string) []string) {
		for i, p := range pieces {
			cut = append(cut, f(i, p)...)
		}
	}
	bySplit := func(first func(string) (int, int), behavior string, invert bool) {
		each(func(_ int, p string) []string { return plainSplit(matchesOf(p, first), behavior, invert) })
	}
	switch c["type"] {
	case "Sequence":
		for _, item := range c["pretokenizers"].([]any) {
			pieces = plainPieces(item.(preTokenizer), pieces, atStart)
		}
		cut = pieces
	case "Split":
		pattern := c["pattern"].(preTokenizer)
		find := findRegex
		text, ok := pattern["Regex"].(string)
		if !ok {
			find, text = findText, pattern["String"].(string)
		}
		bySplit(find(text), c["behavior"].(string), c["invert"].(bool))
	case "Digits":
		behavior := "Contiguous"
		if c["individual_digits"].(bool) {
			behavior = "Isolated"
		}
		bySplit(findRune(unicode.IsNumber), behavior, false)
	case "Punctuation":
		behavior, ok := c["behavior"].(string)
		if !ok {
			behavior = "Isolated"
		}
		bySplit(findRune(isPunct), behavior, false)
	case "Metaspace":
		with := c["replacement"].(string)
		each(func(i int, p string) []string {
			p = strings.ReplaceAll(p, " ", with)
			prepend := c["prepend_scheme"] == "always" || c["prepend_scheme"] == "first" && i == 0 && atStart
			if prepend && !strings.HasPrefix(p, with) {
				p = with + p
			}
			if !c["split"].(bool) {
				return []string{p}
			}
			return plainSplit(matchesOf(p, findText(with)), "MergedWithNext", false)
		})
	case "ByteLevel":
		each(func(_ int, p string) []string {
			if c["add_prefix_space"].(bool) && !strings.HasPrefix(p, " ") {
				p = " " + p
			}
			if !c["use_regex"].(bool) {
				return []string{inAlphabet(p)}
			}
			var words []string
			for _, m := range matchesOf(p, findRegex(gpt2Split)) {
				words = append(words, inAlphabet(m.text))
			}
			return words
		})
	}
	return slices.DeleteFunc(cut, func(p string) bool { return p == "" })
}

const (
	gpt2Split   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Split = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// byteCharacters are the characters of ByteLevel for each byte.
var byteCharacters = func() (chars [256]rune) {
	next := rune(0x100)
	for b := range rune(256) {
		if unicode.IsGraphic(b) && b != ' ' && b != 0xa0 {
			chars[b] = b
			continue
		}
		chars[b] = next
		next++
	}
	return chars
}()

func inAlphabet(s string) string {
	var chars []rune
	for _, b := range []byte(s) {
		chars = append(chars, byteCharacters[b])
	}
	return string(chars)
}

func fromAlphabet(s string) string {
	var bytes []byte
	for _, r := range s {
		bytes = append(bytes, byte(slices.Index(byteCharacters[:], r)))
	}
	return string(bytes)
}

// A preSection is a section and its plain model.
type preSection struct {
	json  string
	plain preTokenizer
	made  tokenize.PreTokenizer
}

func newPreSection(tb testing.TB, c preTokenizer) preSection {
	tb.Helper()
	s := preSection{json: asJSON(tb, c)}
	s.plain = fromJSON[preTokenizer](tb, []byte(s.json))
	var err error
	if s.made, err = tokenize.NewPreTokenizer(s.json); err != nil {
		tb.Fatalf("%s: %v", s.json, err)
	}
	return s
}

func (s preSection) plainPieces(text string, atStart bool) []string {
	if text == "" {
		return nil // a prefix needs a character
	}
	pieces := plainPieces(s.plain, []string{text}, atStart)
	if s.made.ByteLevel() {
		for i, p := range pieces {
			pieces[i] = fromAlphabet(p)
		}
	}
	return pieces
}

// check compares the pieces of text, at the start of a text and after an added token.
func (s preSection) check(tb testing.TB, text string) {
	tb.Helper()
	if got, want := s.made.Pieces(text, tokenize.TextStart), s.plainPieces(text, true); !slices.Equal(got, want) {
		tb.Errorf("%s: %q\n got %q\nwant %q", s.json, text, got, want)
	}
	if got, want := s.made.Pieces(text, tokenize.PieceStart), s.plainPieces(text, false); !slices.Equal(got, want) {
		tb.Errorf("%s: %q after a token\n got %q\nwant %q", s.json, text, got, want)
	}
}

// checkCuts cuts text wherever restarts allows, and returns the number of cuts, and of those at the
// end of a piece.
func (s preSection) checkCuts(tb testing.TB, text string) (restarts, ends int) {
	tb.Helper()
	whole := s.made.Pieces(text, tokenize.TextStart)
	for at := range text {
		if at == 0 {
			continue
		}
		l, _ := utf8.DecodeLastRuneInString(text[:at])
		r, _ := utf8.DecodeRuneInString(text[at:])
		restart, end := s.made.Restarts(l, r), s.made.Ends(l, r)
		if end && !s.endsAt(whole, text, at) {
			tb.Errorf("%s: %q: no piece of %q ends at %d", s.json, text, whole, at)
		}
		if !restart {
			continue
		}
		left, right := s.made.Pieces(text[:at], tokenize.TextStart), s.made.Pieces(text[at:], tokenize.Inside)
		restarts++
		if slices.Equal(whole, slices.Concat(left, right)) {
			if end {
				ends++
			}
			continue
		}
		if !end && len(left) > 0 && len(right) > 0 {
			right[0] = left[len(left)-1] + right[0]
			left = left[:len(left)-1]
			if slices.Equal(whole, slices.Concat(left, right)) {
				continue
			}
		}
		tb.Errorf("%s: %q cut at %d\n got %q and %q\nwant %q", s.json, text, at, left, right, whole)
	}
	return restarts, ends
}

// endsAt reports whether a piece ends at text[at]. It is true if the pieces do not add up to the
// text.
func (s preSection) endsAt(pieces []string, text string, at int) bool {
	if strings.Contains(s.json, "Removed") || strings.Join(pieces, "") != text {
		return true
	}
	n := 0
	for _, p := range pieces {
		if n += len(p); n == at {
			return true
		}
	}
	return false
}

func splitBy(pattern preTokenizer, behavior string, invert bool) preTokenizer {
	return preTokenizer{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
}

func levelStep(prefix, regex bool) preTokenizer {
	return preTokenizer{"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex}
}

func cutDigits(individual bool) preTokenizer {
	return preTokenizer{"type": "Digits", "individual_digits": individual}
}

func metaspace(scheme string, split bool) preTokenizer {
	return preTokenizer{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
}

func inSequence(items ...preTokenizer) preTokenizer {
	return preTokenizer{"type": "Sequence", "pretokenizers": append([]preTokenizer{}, items...)}
}

var (
	splitBehaviors = []string{"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"}
	splitPatterns  = []preTokenizer{
		{"Regex": `\p{N}{1,3}`}, {"Regex": ` ?\p{N}+`}, {"Regex": "[0-9][0-9][0-9]"}, {"Regex": gpt2Split}, {"Regex": llama3Split},
		{"String": " "}, {"String": "▁"}, {"String": "a"}, {"String": "aa"}, {"String": "aba"}, {"String": ". "}, {"String": "日é"},
	}

	falconLike = inSequence(preTokenizer{"type": "Punctuation", "behavior": "Contiguous"}, levelStep(false, true), cutDigits(false),
		splitBy(preTokenizer{"Regex": "[0-9][0-9][0-9]"}, "Isolated", false))
	commandRLike = inSequence(cutDigits(true), levelStep(false, true))
	llama3Like   = inSequence(splitBy(preTokenizer{"Regex": llama3Split}, "Isolated", false), levelStep(false, false))
	gpt4Like     = inSequence(splitBy(preTokenizer{"Regex": llama3Split}, "Removed", true), levelStep(false, false))
	gemmaLike    = splitBy(preTokenizer{"String": " "}, "MergedWithPrevious", false)
)

// randomPreTokenizer returns a section of a few components.
func randomPreTokenizer(r *rand.Rand) preTokenizer {
	flag := func() bool { return r.IntN(2) == 0 }
	one := func() preTokenizer {
		switch r.IntN(6) {
		case 0:
			return cutDigits(flag())
		case 1:
			c := preTokenizer{"type": "Punctuation"}
			if flag() {
				c["behavior"] = splitBehaviors[r.IntN(len(splitBehaviors))]
			}
			return c
		case 2:
			return metaspace([]string{"always", "never"}[r.IntN(2)], flag())
		}
		return splitBy(splitPatterns[r.IntN(len(splitPatterns))], splitBehaviors[r.IntN(len(splitBehaviors))], flag())
	}
	if r.IntN(3) == 0 {
		return one()
	}
	var items []preTokenizer
	if r.IntN(8) == 0 {
		items = append(items, metaspace("first", flag()))
	}
	for range r.IntN(4) {
		if c := one(); r.IntN(4) > 0 {
			items = append(items, c)
		} else {
			items = append(items, inSequence(c), inSequence())
		}
	}
	if flag() {
		items = append(items, levelStep(flag(), flag()))
		if flag() {
			items = append(items, cutDigits(flag()))
		}
		if flag() {
			items = append(items, splitBy(preTokenizer{"Regex": "[0-9][0-9][0-9]"}, splitBehaviors[r.IntN(len(splitBehaviors))], flag()))
		}
	}
	return inSequence(items...)
}

// The bytes of ², ½ and 粽 are mapped to digits.
var preSnippets = []string{
	"a", "a", "b", "B", "aba", "aa", "1", "2", "12", "1234", "²", "½", "粽", " ", " ", " ", "  ", "\n", "\t", "'", "'s",
	".", ". ", "_", "▁", "é", "日", "日é", "-", "+", "$", "·",
}

func randomSnippets(r *rand.Rand) string {
	var b strings.Builder
	for range r.IntN(16) {
		b.WriteString(preSnippets[r.IntN(len(preSnippets))])
	}
	return b.String()
}

func TestPreTokenizersAsPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	texts, cuts, ends, inPieces := 0, 0, 0, 0
	check := func(s preSection, n int) {
		for range max(1, n/sampled()) {
			text := randomSnippets(r)
			s.check(t, text)
			restarts, end := s.checkCuts(t, text)
			texts++
			cuts += restarts
			ends += end
			inPieces += restarts - end
		}
	}
	for _, pattern := range splitPatterns {
		for _, behavior := range splitBehaviors {
			check(newPreSection(t, splitBy(pattern, behavior, false)), 100)
			check(newPreSection(t, splitBy(pattern, behavior, true)), 100)
		}
	}
	for _, c := range []preTokenizer{
		falconLike, commandRLike, llama3Like, gpt4Like, gemmaLike, inSequence(), levelStep(true, true), levelStep(true, false), levelStep(false, false),
		metaspace("always", true), metaspace("always", false), metaspace("first", true), metaspace("first", false), metaspace("never", true), metaspace("never", false),
		inSequence(cutDigits(false), levelStep(true, true)), inSequence(cutDigits(true), metaspace("always", true)),
	} {
		check(newPreSection(t, c), 500)
	}
	for range 2000 {
		check(newPreSection(t, randomPreTokenizer(r)), 10)
	}
	t.Logf("%d texts, cut at %d ends of pieces and at %d other places", texts, ends, inPieces)
	if *long && (ends < 20_000 || inPieces < 20_000) {
		t.Error("too few cuts")
	}
}

// Prose can be cut at most words.
func TestCutsOfProse(t *testing.T) {
	prose := readProse(t)
	words := strings.Count(prose, " ")
	for _, c := range []struct {
		name string
		preTokenizer
	}{
		{"gpt2", levelStep(false, true)},
		{"gpt2 with a prefix", levelStep(true, true)},
		{"falcon", falconLike},
		{"commandR", commandRLike},
		{"llama3", llama3Like},
		{"gpt4", gpt4Like},
		{"gemma", gemmaLike},
		{"metaspace", metaspace("always", true)},
		{"metaspace first", metaspace("first", true)},
		{"spaces, then a prefix", inSequence(splitBy(preTokenizer{"String": " "}, "Isolated", false), levelStep(true, true))},
	} {
		s := newPreSection(t, c.preTokenizer)
		s.check(t, prose)
		n := 0
		for i := range prose[1:] {
			l, r := rune(prose[i]), rune(prose[i+1])
			if (l == ' ' || r == ' ') && s.made.Restarts(l, r) && s.made.Ends(l, r) {
				n++
			}
		}
		t.Logf("%s: %d of %d spaces", c.name, n, words)
		if n < words*9/10 {
			t.Errorf("%s: only %d of %d spaces", c.name, n, words)
		}
		for i := 0; i+300 < len(prose); i += 900 {
			s.checkCuts(t, prose[i:i+300])
		}
	}
}

func TestCuts(t *testing.T) {
	number := preTokenizer{"Regex": `\p{N}{1,3}`}
	const (
		no   = "no"
		cut  = "restarts"
		ends = "restarts, ends"
	)
	for _, c := range []struct {
		preTokenizer
		lr   string
		want string
	}{
		{inSequence(), "ab", cut},
		{cutDigits(true), "a1", ends},
		{cutDigits(true), "1a", ends},
		{cutDigits(true), "11", ends},
		{cutDigits(true), "ab", cut},
		{cutDigits(false), "a1", ends},
		{cutDigits(false), "11", cut},
		{splitBy(number, "Isolated", false), "11", no},
		{splitBy(number, "Isolated", false), "1a", ends},
		{splitBy(number, "Removed", true), "1a", ends},
		{splitBy(number, "MergedWithPrevious", false), "1a", ends},
		{splitBy(number, "MergedWithPrevious", false), "a1", cut},
		{splitBy(number, "MergedWithPrevious", true), "1a", cut},
		{splitBy(number, "MergedWithPrevious", true), "a1", ends},
		{splitBy(number, "MergedWithNext", false), "1a", cut},
		{splitBy(number, "MergedWithNext", false), "a1", ends},
		{splitBy(number, "MergedWithNext", true), "1a", ends},
		{splitBy(number, "MergedWithNext", true), "a1", cut},
		{splitBy(preTokenizer{"Regex": ` ?\p{N}+`}, "Contiguous", false), "1 ", cut},
		{splitBy(preTokenizer{"Regex": `\p{N}|\s+(?!\S)`}, "Isolated", false), "a ", cut},
		{splitBy(preTokenizer{"Regex": `\p{N}|\s+(?!\S)`}, "Isolated", false), " a", no},
		{gemmaLike, " a", ends},
		{gemmaLike, "a ", cut},
		{metaspace("always", true), "a ", ends},
		{metaspace("always", true), "a▁", ends},
		{metaspace("always", true), " a", cut},
		{metaspace("always", false), "a ", cut},
		{llama3Like, "a ", ends},
		{llama3Like, " a", no},
		{llama3Like, "\na", no},
		{llama3Like, "a\n", ends},
		{inSequence(cutDigits(true), levelStep(true, true)), "a ", no},
		{inSequence(cutDigits(true), levelStep(true, true)), "1 ", ends},
		{falconLike, "a ", ends},
		{inSequence(levelStep(false, false), cutDigits(true)), "a1", cut},
		{inSequence(metaspace("never", false), splitBy(preTokenizer{"String": "▁"}, "Isolated", false)), "a ", ends},
	} {
		s := newPreSection(t, c.preTokenizer)
		lr := []rune(c.lr)
		got := no
		if s.made.Restarts(lr[0], lr[1]) {
			if got = cut; s.made.Ends(lr[0], lr[1]) {
				got = ends
			}
		}
		if got != c.want {
			t.Errorf("%s: %q: %s, want %s", s.json, c.lr, got, c.want)
		}
	}
}

// Each match and each gap is searched for at most three times.
func TestPiecesOfHostileTexts(t *testing.T) {
	const n = 10_000
	for _, behavior := range splitBehaviors {
		for _, invert := range []bool{false, true} {
			for _, text := range []string{"a", "b", "ab", "ba", "aab", "abb"} {
				text = strings.Repeat(text, n)
				section := asJSON(t, splitBy(preTokenizer{"String": "a"}, behavior, invert))
				if scans := tokenize.CountScans(section, text); scans > 3*len(text) {
					t.Errorf("%s: %d scans of %d bytes", section, scans, len(text))
				}
			}
		}
	}
}

// Fields of older files, and optional ones. TestPreTokenizersAsPlain has the others.
func TestPreTokenizers(t *testing.T) {
	for _, c := range []struct {
		preTokenizer
		text string
		want []string
	}{
		{preTokenizer{"type": "Metaspace", "replacement": "_", "add_prefix_space": true, "str_rep": "?"}, "a b", []string{"_a", "_b"}},
		{preTokenizer{"type": "Metaspace", "replacement": "_", "add_prefix_space": nil, "split": nil, "str_rep": nil}, "a b", []string{"_a", "_b"}},
		{preTokenizer{"type": "Metaspace", "replacement": " ", "prepend_scheme": "always"}, "a  b", []string{" a", " ", " b"}},
		{preTokenizer{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}, "a b", []string{"a", " b"}},
	} {
		s := asJSON(t, c.preTokenizer)
		p, err := tokenize.NewPreTokenizer(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got := p.Pieces(c.text, tokenize.TextStart); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q: got %q, want %q", s, c.text, got, c.want)
		}
	}
	if p, err := tokenize.NewPreTokenizer("null"); err != nil || p.ByteLevel() || len(p.Pieces("a b", tokenize.TextStart)) != 1 {
		t.Errorf("null: %v", err)
	}
}

// A step that cuts nothing is left out. One that keeps all matches of a pattern without gaps costs
// no more than an isolated one.
func TestStepsMade(t *testing.T) {
	for _, c := range []struct {
		preTokenizer
		steps int
	}{
		{inSequence(), 0},
		{levelStep(false, false), 0},
		{splitBy(preTokenizer{"Regex": gpt2Split}, "Contiguous", false), 0},
		{llama3Like, 1},
		{gpt4Like, 1},
		{splitBy(preTokenizer{"Regex": gpt2Split}, "MergedWithNext", false), 1},
		{levelStep(true, false), 1},
	} {
		s := newPreSection(t, c.preTokenizer)
		if got := s.made.Steps(); got != c.steps {
			t.Errorf("%s: %d steps, want %d", s.json, got, c.steps)
		}
		if c.steps > 0 && !s.made.Isolated(0) {
			t.Errorf("%s: not isolated", s.json)
		}
	}
}

func TestPreTokenizerRefusals(t *testing.T) {
	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	text := preTokenizer{"String": "a"}
	with := func(c preTokenizer, name string, value any) preTokenizer {
		d := preTokenizer{name: value}
		for k, v := range c {
			if k != name {
				d[k] = v
			}
		}
		return d
	}
	nested := inSequence()
	for range 64 {
		nested = inSequence(nested)
	}
	after := func(c preTokenizer) preTokenizer { return inSequence(levelStep(false, true), c) }
	for _, c := range []struct {
		section any
		kind    error
		want    string
	}{
		{preTokenizer{"type": "Whitespace"}, unsupported, `pre_tokenizer "Whitespace"`},
		{inSequence(cutDigits(true), inSequence(preTokenizer{"type": "Other"})), unsupported, `pre_tokenizer "Other"`},
		{1, malformed, "not an object"},
		{preTokenizer{}, malformed, `"type"`},
		{preTokenizer{"type": "Sequence", "pretokenizers": []any{nil}}, unsupported, "pre_tokenizer null"},
		{preTokenizer{"type": "Sequence"}, malformed, `"pretokenizers"`},
		{with(inSequence(), "x", 1), unsupported, `Sequence field "x"`},
		{nested, malformed, "more than 64 components"},
		{inSequence(slices.Repeat([]preTokenizer{inSequence(inSequence())}, 32)...), malformed, "more than 64 components"},

		{after(levelStep(false, false)), unsupported, "pre_tokenizer ByteLevel after ByteLevel"},
		{after(preTokenizer{"type": "Punctuation"}), unsupported, "pre_tokenizer Punctuation after ByteLevel"},
		{after(metaspace("always", true)), unsupported, "pre_tokenizer Metaspace after ByteLevel"},
		{after(splitBy(text, "Isolated", false)), unsupported, "pre_tokenizer Split after ByteLevel"},
		{after(inSequence(inSequence(splitBy(text, "Isolated", false)))), unsupported, "pre_tokenizer Split after ByteLevel"},

		{with(splitBy(text, "Isolated", false), "x", 1), unsupported, `Split field "x"`},
		{splitBy(text, "Merged", false), unsupported, `Split behavior "Merged"`},
		{with(splitBy(text, "Isolated", false), "behavior", nil), malformed, `"behavior"`},
		{with(splitBy(text, "Isolated", false), "invert", nil), malformed, `"invert"`},
		{with(splitBy(text, "Isolated", false), "pattern", "a"), malformed, "Split pattern is not an object"},
		{splitBy(preTokenizer{}, "Isolated", false), malformed, "pattern has 0 values"},
		{splitBy(preTokenizer{"String": "a", "Regex": "a"}, "Isolated", false), malformed, "pattern has 2 values"},
		{splitBy(preTokenizer{"Other": "a"}, "Isolated", false), unsupported, `pattern field "Other"`},
		{splitBy(preTokenizer{"String": ""}, "Isolated", false), unsupported, "pattern of no text"},
		{splitBy(preTokenizer{"String": 1}, "Isolated", false), malformed, `"String"`},
		{splitBy(preTokenizer{"Regex": 1}, "Isolated", false), malformed, `"Regex"`},
		{splitBy(preTokenizer{"Regex": `(?<=a)b`}, "Isolated", false), unsupported, `Split pattern "(?<=a)b"`},

		{preTokenizer{"type": "Digits"}, malformed, `"individual_digits"`},
		{with(cutDigits(true), "x", 1), unsupported, `Digits field "x"`},
		{preTokenizer{"type": "Punctuation", "behavior": nil}, malformed, `"behavior"`},
		{preTokenizer{"type": "Punctuation", "behavior": "isolated"}, unsupported, `behavior "isolated"`},
		{preTokenizer{"type": "Punctuation", "x": 1}, unsupported, `Punctuation field "x"`},

		{with(metaspace("always", true), "x", 1), unsupported, `Metaspace field "x"`},
		{with(metaspace("always", true), "replacement", ""), malformed, "not one character"},
		{with(metaspace("always", true), "replacement", "▁▁"), malformed, "not one character"},
		{with(metaspace("always", true), "replacement", nil), malformed, `"replacement"`},
		{with(metaspace("always", true), "prepend_scheme", nil), malformed, `"prepend_scheme"`},
		{with(metaspace("always", true), "split", 1), malformed, `"split"`},
		{with(metaspace("always", true), "str_rep", 1), malformed, `"str_rep"`},
		{with(metaspace("always", true), "add_prefix_space", 1), malformed, `"add_prefix_space"`},
		{with(metaspace("always", true), "add_prefix_space", false), malformed, "add_prefix_space false with prepend_scheme always"},
		{metaspace("last", true), unsupported, `prepend_scheme "last"`},
		{inSequence(cutDigits(true), metaspace("first", true)), unsupported, "first after another component"},
	} {
		s := asJSON(t, c.section)
		if _, err := tokenize.NewPreTokenizer(s); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q and %v", s, err, c.want, c.kind)
		}
	}
}

func TestLookahead(t *testing.T) {
	for _, c := range []struct {
		regex          string
		known          bool
		atSpace, digit bool // a match that ends with it depends on what follows
	}{
		{gpt2Split, true, true, false},
		{llama3Split, true, true, false},
		{`(?i:a)|(?:b)|[(?=$]\$|\(?`, true, false, false},
		{`a|\s++$|b`, true, true, false},
		{`(?:\r?\n)+(?!\r?\n)`, true, true, false},
		{`\d{1,3}(?=(?:\d{3})*\b)`, true, false, true},
		{`a(?=b)`, false, false, false},
		{`\s+(?!\S)|a(?!b)`, false, false, false},
		{`(?<=a)b`, false, false, false},
		{`a$`, false, false, false},
		{`[a]$`, false, false, false},
		{`a\b`, false, false, false},
		{`a\B|\s+(?!\S)`, false, false, false},
	} {
		if known, s, d := tokenize.Lookahead(c.regex); known != c.known || s != c.atSpace || d != c.digit {
			t.Errorf("%s: got %v, %v, %v", c.regex, known, s, d)
		}
	}
}
