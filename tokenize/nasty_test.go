package tokenize_test

import (
	"math/rand/v2"
	"strings"
)

// A nasty is a source of random texts that encoders get wrong: scripts, combining marks, emoji,
// white space, digits and punctuation in any order, contractions, and added tokens whole, cut,
// adjacent and within words.
type nasty struct {
	*rand.Rand
	added []string // the added tokens to mix in
}

func newNasty(seed uint64, added ...string) nasty {
	return nasty{rand.New(rand.NewPCG(seed, 1)), added}
}

type runeRange struct{ from, to rune }

var (
	nastyLetters = []runeRange{
		{'a', 'z'}, {'A', 'Z'}, {0xc0, 0x24f}, {0x250, 0x2ff}, {0x370, 0x3ff}, {0x400, 0x4ff}, {0x531, 0x587},
		{0x5d0, 0x5ea}, {0x620, 0x64a}, {0x904, 0x939}, {0x985, 0x9b9}, {0xb85, 0xbb9}, {0xe01, 0xe33},
		{0xe81, 0xeb3}, {0xf40, 0xf6c}, {0x1000, 0x102a}, {0x10a0, 0x10ff}, {0x1100, 0x11ff}, {0x13a0, 0x13fd},
		{0x1780, 0x17b3}, {0x1c90, 0x1cbf}, {0x1e00, 0x1fff}, {0x2c00, 0x2c7f}, {0x3041, 0x30ff}, {0x4e00, 0x9fff},
		{0xa640, 0xa69f}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfb00, 0xfb4f}, {0xfe70, 0xfefc}, {0xff21, 0xffdc},
		{0x10400, 0x1044f}, {0x16e40, 0x16e9a}, {0x1d400, 0x1d7ff}, {0x1e900, 0x1e943}, {0x20000, 0x2a6df}, {0x2f800, 0x2fa1d},
	}
	nastyMarks = []runeRange{
		{0x300, 0x36f}, {0x591, 0x5bd}, {0x64b, 0x65f}, {0x93c, 0x94d}, {0xe34, 0xe3a}, {0xf71, 0xf84}, {0x1161, 0x1175},
		{0x11a8, 0x11c2}, {0x1dc0, 0x1dff}, {0x20d0, 0x20f0}, {0x3099, 0x309a}, {0xfe00, 0xfe0f}, {0x1d165, 0x1d169}, {0xe0100, 0xe01ef},
	}
	nastyNumbers = []runeRange{
		{'0', '9'}, {0xb2, 0xb3}, {0xbc, 0xbe}, {0x660, 0x669}, {0x966, 0x96f}, {0xe50, 0xe59}, {0x2150, 0x218b}, {0x2460, 0x249b},
		{0x3007, 0x3007}, {0x3021, 0x3029}, {0xff10, 0xff19}, {0x104a0, 0x104a9}, {0x1d7ce, 0x1d7ff}, {0x1fbf0, 0x1fbf9},
	}
	nastyPoints = []runeRange{{0, 0x1f}, {0x7f, 0xff}, {0x2000, 0x206f}, {0xe000, 0xf8ff}, {0xfff0, 0xffff}, {0xe0000, 0xe007f}, {0, 0xd7ff}, {0x10000, 0x10ffff}}

	nastySpaces = []string{
		" ", " ", " ", "  ", "   ", "\t", "\n", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\u0085", "\u00a0", "\u1680", "\u2003",
		"\u2009", "\u2028", "\u2029", "\u202f", "\u3000", "\u180e", "\u200b", "\u2060", "\ufeff",
	}
	nastyWords = []string{
		"the", "of", "harbour", "encyclopaedia", "HTTPServer", "camelCase", "snake_case", "SHOUT", "McDonald", "x", "don't", "naïve", "Straße",
		"İstanbul", "Ñandú", "ǅungla", "ﬁne", "www.example.org", "https://a.b/c?d=e%20f", "3.14159", "1,234,567", "0x7fff", "2024-02-30", "a@b.co",
		"def f(x):\n\treturn x\n", "if (a==b) {\r\n}", "<div>&nbsp;</div>", `{"a": [1, null]}`, "C:\\x", "\\n", "日本語", "人工智能", "привет", "שלום", "नमस्ते", "각",
	}
	nastyContractions = []string{
		"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'vE", "'LL", "'\u017f", "'l\u0131", "'\u212a", "n't", "’s", "''", "'s's", "'", "'a",
	}
	nastySymbols = []string{
		"!", "\"", "#", "$", "%", "&", "(", ")", "*", "+", ",", "-", ".", "/", "//", ":", ";", "<", "=", "==", ">", "?", "@", "[", "\\", "]", "^", "_", "__",
		"`", "```", "{", "|", "}", "~", "...", "…", "—", "«", "»", "“", "”", "·", "§", "©", "€", "×", "→", "√", "、", "。", "！", "（", "・", "▁", "▁▁", "Ġ", "Ċ",
		"<0x41>", "<0x0A>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<!dummy-prefix!>",
	}
	nastyEmoji = []string{"😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🇺🇸🇬", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🧑🏿‍🚀", "\u200d", "\ufe0f", "🀄"}
)

func pick[T any](n nasty, from []T) T { return from[n.IntN(len(from))] }

func (n nasty) within(ranges []runeRange) string {
	r := pick(n, ranges)
	return string(r.from + n.Int32N(r.to-r.from+1))
}

// times joins the results of 1 to most calls of f.
func (n nasty) times(most int, f func() string) string {
	var b strings.Builder
	for range 1 + n.IntN(most) {
		b.WriteString(f())
	}
	return b.String()
}

// text returns a text of up to some hundred bytes, sometimes an empty one.
func (n nasty) text() string {
	if n.IntN(100) == 0 {
		return ""
	}
	return n.times(4+n.IntN(20), n.part)
}

func (n nasty) part() string {
	if len(n.added) > 0 && n.IntN(4) == 0 {
		return n.addedPart()
	}
	switch n.IntN(16) {
	case 0, 1:
		return pick(n, nastyWords)
	case 2, 3:
		return " " + pick(n, nastyWords)
	case 4:
		return strings.ToUpper(pick(n, nastyWords))
	case 5:
		script := []runeRange{pick(n, nastyLetters)}
		return n.times(8, func() string { return n.within(script) })
	case 6:
		return n.within(nastyLetters) + n.times(3, func() string { return n.within(nastyMarks) })
	case 7:
		return n.within(nastyMarks)
	case 8:
		return pick(n, nastySpaces)
	case 9:
		return n.times(5, func() string { return pick(n, nastySpaces) })
	case 10:
		return n.times(8, func() string { return string('0' + n.Int32N(10)) })
	case 11:
		return n.times(3, func() string { return n.within(nastyNumbers) })
	case 12:
		return pick(n, nastyContractions)
	case 13:
		return n.times(3, func() string { return pick(n, nastySymbols) })
	case 14:
		return pick(n, nastyEmoji)
	default:
		if n.IntN(3) == 0 {
			return strings.Repeat(pick(n, []string{"a", " ", "\n", "!", "7", "日", "é", "\u0301", "Aa", " x"}), 1+n.IntN(70))
		}
		return n.within(nastyPoints)
	}
}

func (n nasty) addedPart() string {
	token, other := pick(n, n.added), pick(n, n.added)
	switch n.IntN(6) {
	case 0:
		return pick(n, nastySpaces) + token + pick(n, nastySpaces)
	case 1:
		return token + other
	case 2:
		return token[:n.IntN(len(token)+1)] + other
	case 3:
		return token[n.IntN(len(token)+1):]
	case 4:
		return pick(n, nastyWords) + token + pick(n, nastyWords)
	default:
		return token
	}
}
