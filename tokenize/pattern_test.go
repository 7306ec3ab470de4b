package tokenize_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kvindex/kvindex/tokenize"
)

// A pattern is a regular expression matched by plain backtracking.
type pattern struct{ root node }

// A node matches s from i in each possible way, the preferred one first, and calls next with the
// end until next returns true.
type node func(s []rune, i int, next func(int) bool) bool

func patternOf(regex string) pattern {
	p := patternParser{rest: []rune(regex)}
	root := p.alternation()
	if len(p.rest) > 0 {
		panic("pattern " + regex + " has more: " + string(p.rest))
	}
	return pattern{root}
}

// match returns the end of the match at i, -1 for none.
func (p pattern) match(s []rune, i int) int {
	end := -1
	p.root(s, i, func(e int) bool { end = e; return true })
	return end
}

// A span is a match, or the text between two of them.
type span struct {
	text  string
	match bool
}

func (x span) String() string { return fmt.Sprintf("%q %v", x.text, x.match) }

func (p pattern) spans(text string) (spans []span) {
	s := []rune(text)
	from := 0
	gap := func(to int) {
		if from < to {
			spans = append(spans, span{string(s[from:to]), false})
		}
	}
	for i := 0; i < len(s); {
		end := p.match(s, i)
		if end <= i {
			i++
			continue
		}
		gap(i)
		spans = append(spans, span{string(s[i:end]), true})
		i, from = end, end
	}
	gap(len(s))
	return spans
}

func (p pattern) pieces(text string) (pieces []string) {
	for _, x := range p.spans(text) {
		pieces = append(pieces, x.text)
	}
	return pieces
}

type patternParser struct {
	rest []rune
	fold bool
}

func (p *patternParser) take(s string) bool {
	if !strings.HasPrefix(string(p.rest), s) {
		return false
	}
	p.rest = p.rest[len([]rune(s)):]
	return true
}

func (p *patternParser) next() rune {
	c := p.rest[0]
	p.rest = p.rest[1:]
	return c
}

func (p *patternParser) alternation() node {
	list := []node{p.sequence()}
	for p.take("|") {
		list = append(list, p.sequence())
	}
	return func(s []rune, i int, next func(int) bool) bool {
		for _, n := range list {
			if n(s, i, next) {
				return true
			}
		}
		return false
	}
}

func (p *patternParser) sequence() node {
	all := node(func(_ []rune, i int, next func(int) bool) bool { return next(i) })
	for len(p.rest) > 0 && p.rest[0] != '|' && p.rest[0] != ')' {
		before, n := all, p.quantified()
		all = func(s []rune, i int, next func(int) bool) bool {
			return before(s, i, func(j int) bool { return n(s, j, next) })
		}
	}
	return all
}

func (p *patternParser) quantified() node {
	n := p.atom()
	for {
		least, most := 1, 1<<30
		switch {
		case p.take("?"):
			least, most = 0, 1
		case p.take("*"):
			least = 0
		case p.take("+"):
		case len(p.rest) > 0 && p.rest[0] == '{':
			n = interval(n, p)
			continue // a plus after it repeats it
		default:
			return n
		}
		n = repeated(n, least, most, 0)
		if p.take("+") {
			n = possessive(n)
		}
	}
}

func interval(n node, p *patternParser) node {
	text, rest, _ := strings.Cut(string(p.rest[1:]), "}")
	p.rest = []rune(rest)
	low, high, ranged := strings.Cut(text, ",")
	least, _ := strconv.Atoi(low)
	most := least
	if ranged {
		most = 1 << 30
		if high != "" {
			most, _ = strconv.Atoi(high)
		}
	}
	return repeated(n, least, most, 0)
}

func repeated(n node, least, most, done int) node {
	return func(s []rune, i int, next func(int) bool) bool {
		if done < most && n(s, i, func(j int) bool {
			return (j > i || done < least) && repeated(n, least, most, done+1)(s, j, next)
		}) {
			return true
		}
		return done >= least && next(i)
	}
}

func possessive(n node) node {
	return func(s []rune, i int, next func(int) bool) bool {
		end := pattern{n}.match(s, i)
		return end >= 0 && next(end)
	}
}

func (p *patternParser) atom() node {
	switch {
	case p.take("(?i:"):
		before := p.fold
		p.fold = true
		n := p.close(p.alternation())
		p.fold = before
		return n
	case p.take("(?:"):
		return p.close(p.alternation())
	case p.take("(?="):
		return looking(p.close(p.alternation()), true)
	case p.take("(?!"):
		return looking(p.close(p.alternation()), false)
	case p.take("("):
		return p.close(p.alternation())
	case p.take("$"):
		return at(func(s []rune, i int) bool { return i == len(s) || s[i] == '\n' })
	case p.take(`\b`):
		return at(func(s []rune, i int) bool {
			return (i > 0 && isPatternWord(s[i-1])) != (i < len(s) && isPatternWord(s[i]))
		})
	}
	in := p.set()
	if p.fold {
		unfolded := in
		in = func(r rune) bool {
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				if unfolded(f) {
					return true
				}
			}
			return unfolded(r)
		}
	}
	return func(s []rune, i int, next func(int) bool) bool {
		return i < len(s) && in(s[i]) && next(i+1)
	}
}

func isPatternWord(r rune) bool {
	latin1 := strings.ContainsRune("²³¹¼½¾", r)
	return (tokenize.IsWord(r) || latin1) && r != '\u200c' && r != '\u200d'
}

func (p *patternParser) close(n node) node {
	if !p.take(")") {
		panic("no ) before " + string(p.rest))
	}
	return n
}

func at(holds func(s []rune, i int) bool) node {
	return func(s []rune, i int, next func(int) bool) bool { return holds(s, i) && next(i) }
}

func looking(n node, want bool) node {
	return at(func(s []rune, i int) bool { return (pattern{n}.match(s, i) >= 0) == want })
}

func (p *patternParser) set() func(rune) bool {
	switch c := p.next(); c {
	case '[':
		return p.class()
	case '\\':
		return p.escape()
	default:
		return func(r rune) bool { return r == c }
	}
}

func (p *patternParser) class() func(rune) bool {
	complement := p.take("^")
	all := func(rune) bool { return true }
	for {
		part := p.union()
		before := all
		all = func(r rune) bool { return before(r) && part(r) }
		if !p.take("&&") {
			break
		}
	}
	p.next()
	return func(r rune) bool { return all(r) != complement }
}

func (p *patternParser) union() func(rune) bool {
	var list []func(rune) bool
	for p.rest[0] != ']' && !strings.HasPrefix(string(p.rest), "&&") {
		from := p.rest[0]
		in := p.set()
		if from == '\\' {
			from = onlyOf(in)
		}
		if from == '[' || from < 0 {
			list = append(list, in)
			continue
		}
		to := from
		if p.rest[0] == '-' && p.rest[1] != ']' {
			p.next()
			if to = p.next(); to == '\\' {
				to = onlyOf(p.escape())
			}
		}
		list = append(list, func(r rune) bool { return from <= r && r <= to })
	}
	return func(r rune) bool {
		return slices.ContainsFunc(list, func(in func(rune) bool) bool { return in(r) })
	}
}

// onlyOf returns the only code point below U+0302 in a set, or -1.
func onlyOf(in func(rune) bool) rune {
	found := rune(-1)
	for r := range rune(0x302) {
		if !in(r) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = r
	}
	return found
}

func (p *patternParser) escape() func(rune) bool {
	not := func(in func(rune) bool) func(rune) bool { return func(r rune) bool { return !in(r) } }
	c := p.next()
	switch c {
	case 'r':
		c = '\r'
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'u':
		n, _ := strconv.ParseUint(string(p.rest[:4]), 16, 16)
		p.rest = p.rest[4:]
		c = rune(n)
	case 's':
		return tokenize.IsSpace
	case 'S':
		return not(tokenize.IsSpace)
	case 'd', 'D':
		return func(r rune) bool { return tokenize.InProperty("Nd", r) == (c == 'd') }
	case 'p', 'P':
		name, rest, _ := strings.Cut(string(p.rest[1:]), "}")
		p.rest = []rune(rest)
		in := func(r rune) bool { return tokenize.InProperty(name, r) }
		if c == 'P' {
			return not(in)
		}
		return in
	}
	return func(r rune) bool { return r == c }
}

const (
	shortened    = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	upperish     = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lowerish     = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	upperNoHan   = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`
	lowerNoHan   = `[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`
	llama3       = shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	casedLetters = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-\u1f15Ἐ-\u1f1dἠ-\u1f45Ὀ-\u1f4dὐ-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d" +
		"\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

// patterns are those of models' tokenizers, each with the name of a family.
var patterns = []struct {
	name  string
	regex string
	total bool
}{
	{name: "gpt2", total: true, regex: tokenize.GPT2Pattern},
	{name: "llama3", total: true, regex: llama3},
	{name: "qwen2", total: true, regex: strings.Replace(llama3, `{1,3}`, ``, 1)},
	{name: "minicpm5", total: true, regex: strings.Replace(llama3, `{1,3}`, `+`, 1)},
	{name: "cl100k", total: true, regex: `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`},
	{name: "cl100k older", total: true, regex: `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`},
	{name: "r50k", total: true, regex: `'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`},
	{name: "nanochat", total: true, regex: `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`},
	{name: "ling", total: true, regex: `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`},
	{name: "seed-oss", total: true, regex: shortened + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
	{name: "qwen3.5", total: true, regex: shortened + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "o200k", total: true, regex: `[^\r\n\p{L}\p{N}]?` + upperish + `*` + lowerish + `+` + shortened + `?|[^\r\n\p{L}\p{N}]?` +
		upperish + `+` + lowerish + `*` + shortened + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "falcon-h1", total: true, regex: `[^\r\n\p{L}\p{N}]?` + upperish + `*` + lowerish + `+` + shortened + `?|[^\r\n\p{L}\p{N}]?` +
		upperish + `+` + lowerish + `*` + shortened + `?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "tekken", total: true, regex: `[^\r\n\p{L}\p{N}]?` + upperish + `*` + lowerish + `+|[^\r\n\p{L}\p{N}]?` +
		upperish + `+` + lowerish + `*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "kimi-k2", total: true, regex: `[\p{Han}]+|[^\r\n\p{L}\p{N}]?` + upperNoHan + `*` + lowerNoHan + `+` + shortened + `?|[^\r\n\p{L}\p{N}]?` +
		upperNoHan + `+` + lowerNoHan + `*` + shortened + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "k-exaone", total: true, regex: shortened + `|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`},
	{name: "k2-horizon", total: true, regex: shortened + `|[^\r\n\p{L}\p{N}]?(?:\p{L}|\p{M}|\u200C|\u200D)+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	{name: "deepseek-v3 numbers", regex: `\p{N}{1,3}`},
	{name: "deepseek-v3 script", regex: `[一-龥぀-ゟ゠-ヿ]+`},
	{name: "deepseek-v3", regex: "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
	{name: "spark", regex: "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+"},
	{name: "deepseek-llm newlines", regex: "[\r\n]"},
	{name: "deepseek-llm letters", regex: `\s?[` + casedLetters + `]+`},
	{name: "deepseek-llm punctuation", regex: `\s?[!-/:-~！-／：-～‘-‟　-。]+`},
	{name: "deepseek-llm space", regex: `\s+$`},
	{name: "deepseek-llm script", regex: `[一-龥ࠀ-一가-퟿]+`},
	{name: "deepseek-coder letters", regex: `\s?\p{L}+`},
	{name: "deepseek-coder punctuation", regex: `\s?\p{P}+`},
	{name: "deepseek-llm numbers", regex: `\p{N}+`},
	{name: "youtu", regex: `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+`},
	{name: "afmoe script", regex: "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-ゟ゠-ヿ\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff]+"},
	{name: "falcon", regex: `[0-9][0-9][0-9]`},
	{name: "bloom", regex: ` ?[^(\s|[.,!?…。，、।۔،])]+`},
	{name: "clip", regex: `<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+`},
	{name: "cohere2", regex: `\d{1,3}(?=(?:\d{3})*\b)`},
	{name: "laguna", regex: `(?:\r?\n)+(?!\r?\n)`},
	{name: "chameleon", regex: `([\t\n]|    |  )`},
	{name: "white space", regex: `\s+`},
	{name: "spaces", regex: ` {2,}`},
}

// The patterns of the references in reference_test.go.
var (
	gpt2Reference   = patternOf(tokenize.GPT2Pattern)
	llama3Reference = patternOf(llama3)
)
