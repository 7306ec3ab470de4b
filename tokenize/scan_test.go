package tokenize_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// patternSpans returns the spans of s.
func patternSpans(tb testing.TB, p tokenize.Pattern, s string) (spans []span) {
	tb.Helper()
	for i := 0; i < len(s); {
		end, match := p.Scan([]byte(s), i)
		if end <= i || end > len(s) {
			tb.Fatalf("%q: what begins at %d ends at %d", s, i, end)
		}
		if n := len(spans); !match && n > 0 && !spans[n-1].match {
			tb.Fatalf("%q: nothing matches at %d, nor before", s, i)
		}
		spans = append(spans, span{s[i:end], match})
		i = end
	}
	return spans
}

// compareSpans checks a pattern against its reference, and that Spans allows all neighbours in a
// match.
func compareSpans(tb testing.TB, name string, got tokenize.Pattern, want pattern, s string) {
	tb.Helper()
	spans := want.spans(s)
	if is := patternSpans(tb, got, s); !slices.Equal(is, spans) {
		tb.Errorf("%s: %q\n got %v\nwant %v", name, s, is, spans)
	}
	for _, x := range spans {
		if !x.match {
			if got.Total {
				tb.Errorf("%s: %q of %q is no match", name, x.text, s)
			}
			continue
		}
		r := []rune(x.text)
		for i := range len(r) - 1 {
			if !got.Spans(r[i], r[i+1]) {
				tb.Errorf("%s: %q matches, but cannot have %q before %q", name, x.text, r[i], r[i+1])
			}
		}
	}
}

func eachPattern(tb testing.TB, f func(name string, got tokenize.Pattern, want pattern)) {
	tb.Helper()
	for _, p := range patterns {
		got, ok := tokenize.PatternOf(p.regex)
		if !ok {
			tb.Errorf("%s is not supported: %s", p.name, p.regex)
			continue
		}
		if got.Total != p.total {
			tb.Errorf("%s: total is %v", p.name, got.Total)
		}
		f(p.name, got, patternOf(p.regex))
	}
}

// A code point of each kind that some pattern treats differently.
var kinds = []rune("sSſrElAǅʰ1²'.(/ \n\r\t\u00a0日あé\u0301\u200d")

func TestPatternsOfAllShortTexts(t *testing.T) {
	n := 0
	eachPattern(t, func(name string, got tokenize.Pattern, want pattern) {
		for _, a := range kinds {
			for _, b := range kinds {
				for _, c := range kinds {
					if n++; n%sampled() == 0 {
						compareSpans(t, name, got, want, string([]rune{a, b, c}))
					}
				}
			}
		}
	})
	t.Logf("%d texts of 3 code points; one in %d tried", n, sampled())
}

// randomText returns a text mostly of a few kinds of code points, so that it has runs.
func randomText(r *rand.Rand, n int) string {
	few := make([]rune, 1+r.IntN(5))
	for i := range few {
		few[i] = kinds[r.IntN(len(kinds))]
	}
	text := make([]rune, 1+r.IntN(n))
	for i := range text {
		switch r.IntN(16) {
		case 0:
			text[i] = rune(r.IntN(0x20000))
		case 1:
			text[i] = rune(r.IntN(0x3000))
		case 2, 3, 4:
			text[i] = kinds[r.IntN(len(kinds))]
		default:
			text[i] = few[r.IntN(len(few))]
		}
	}
	return string(text)
}

func TestPieces(t *testing.T) {
	for _, c := range []struct {
		text         string
		gpt2, llama3 []string
	}{
		{"I'm HE'S", []string{"I", "'m", " HE", "'", "S"}, []string{"I", "'m", " HE", "'S"}},
		{"it'ſ", []string{"it", "'", "ſ"}, []string{"it", "'ſ"}},
		{"12345", []string{"12345"}, []string{"123", "45"}},
		{" 1", []string{" 1"}, []string{" ", "1"}},
		{"a  b", []string{"a", " ", " b"}, []string{"a", " ", " b"}},
		{"a  1", []string{"a", " ", " 1"}, []string{"a", " ", " ", "1"}},
		{"a \n\n b", []string{"a", " \n\n", " b"}, []string{"a", " \n\n", " b"}},
		{"a \n\t b", []string{"a", " \n\t", " b"}, []string{"a", " \n", "\t", " b"}},
		{"x.\n\ny", []string{"x", ".", "\n", "\n", "y"}, []string{"x", ".\n\n", "y"}},
		{"(ab", []string{"(", "ab"}, []string{"(ab"}},
		{"\tab", []string{"\t", "ab"}, []string{"\tab"}},
		{"\nab", []string{"\n", "ab"}, []string{"\n", "ab"}},
		{"ab  ", []string{"ab", "  "}, []string{"ab", "  "}},
	} {
		for regex, want := range map[string][]string{tokenize.GPT2Pattern: c.gpt2, llama3: c.llama3} {
			p, ok := tokenize.PatternOf(regex)
			if !ok {
				t.Fatal(regex)
			}
			var got []string
			for _, x := range patternSpans(t, p, c.text) {
				got = append(got, x.text)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q: got %q, want %q", regex, c.text, got, want)
			}
		}
	}
}

// Patterns that may take more than linear time or match the empty text, and unknown syntax.
func TestRefusedPatterns(t *testing.T) {
	for _, regex := range []string{
		``, `a|`, `|a`, `a**`, `a+?`, `a{2}+`, `a{1,2}?`, `a{1000}`, `a{,3}`, `a{3,2}`, `a{0}`, `a{1`, `a*`, `a?b?`, `(?!a)`, `(?=a)b`, `^a`, `.`,
		`(a`, `a)`, `[`, `[]`, `[]a]`, `[^]`, `[a`, `[b-a]`, `[a-b-c]`, `[a&&]`, `[&&a]`, `[[:alpha:]]`, `[^\s一]+[^[^一]]`, `[一&&\p{L}]`,
		`\`, `\w`, `\b`, `\A`, `\G`, `\h`, `\x41`, `\u12`, `\ud800`, `\1`, `\'`, `\<`, `\p`, `\p{`, `\p{X}`, `\p{^L}`, `\pL`,
		`(?<=a)b`, `(?<n>a)`, `(?>a)`, `(?m:a)`, `(?i)a`, `(?i:é)`, `(?i:[^a])`, `(?i:\p{L})`, `(?i:ss)`, `(?i:ﬁ)`, `(?:a|ab)c`, `(?:ab)+`, `(?:|a)`,
		`(?!\s\S)a`, `(?!a|b)c`, `\p{L}+:|a`, `\s*[\r\n]*x|\s*[\r\n]+|\s+`, `\s+\n+x`, `\s*[\r\n]+|\s`, `a\s*b|\s+`, `\s+(?!\n)|\s+x`,
		`(?:\r?\n)+(?!\r?\n)a`, `\d{1,3}(?=(?:\d{3})*\b)|a`, `\d{1,3}(?=(?:\d{3})*\b)a?`, `(?:\r?\n)+(?!\r\n)`,
	} {
		if _, ok := tokenize.PatternOf(regex); ok {
			t.Errorf("%q is not refused", regex)
		}
	}
}

// A scanner that goes back over a long run would take minutes.
func TestLongRuns(t *testing.T) {
	const n = 1 << 15
	eachPattern(t, func(name string, got tokenize.Pattern, _ pattern) {
		for _, part := range longRuns {
			s := []byte(strings.Repeat(part, n/len(part)) + "x")
			for i := 0; i < len(s); {
				end, _ := got.Scan(s, i)
				if end <= i {
					t.Fatalf("%s: %q: no end at %d", name, part, i)
				}
				i = end
			}
		}
	})
}

var longRuns = []string{"a", "A", "aA", "Aa", " ", "\n", "\r\n", " \n", "\n ", "'", "'s", "1", ".", ". ", "日", "ʰ", "Aʰ", "\u0301", "\u0301 ", "é", "a ", "。", "\x00"}

func FuzzPatternOf(f *testing.F) {
	for _, p := range patterns {
		f.Add(p.regex, "it's  12345\n\n. é日本")
	}
	f.Fuzz(func(t *testing.T, regex, s string) {
		if len(regex) > 400 || len(s) > 40 {
			return // the reference is slow
		}
		if got, ok := tokenize.PatternOf(regex); ok {
			compareSpans(t, regex, got, patternOf(regex), string([]rune(s)))
		}
	})
}

func TestComponentCharacters(t *testing.T) {
	if testing.Short() {
		t.Skip("not every code point is scanned: -short")
	}
	for _, c := range []struct {
		name string
		p    tokenize.Pattern
		in   func(r rune) bool
		size int
	}{
		// char::is_numeric of Unicode 17.0.0: 13 more than \p{N}.
		{"Digits", tokenize.Digits, func(r rune) bool {
			return tokenize.InProperty("N", r) || 0x11de0 <= r && r <= 0x11de9 || 0x16ff4 <= r && r <= 0x16ff6
		}, 1_924},
		// All punctuation of Unicode 8.0.0 and of ASCII: \p{P} of 16.0.0 without 140 code points,
		// and two that are no longer in it.
		{"Punctuation", tokenize.Punctuation, nil, 726},
	} {
		size := 0
		for r := range rune(unicode.MaxRune + 1) {
			s := "a" + string(r) + "a"
			got := patternSpans(t, c.p, s)
			in := len(got) == 3 && got[1].match && got[1].text == string(r)
			if !in && (len(got) != 1 || got[0].match) {
				t.Fatalf("%s: %q: %v", c.name, s, got)
			}
			if in {
				size++
			}
			if c.in != nil && in != c.in(r) {
				t.Errorf("%s: %U is %v", c.name, r, in)
			}
		}
		if size != c.size {
			t.Errorf("%s: %d code points, want %d", c.name, size, c.size)
		}
		if c.p.Total || c.p.Spans('1', '1') || c.p.Spans('.', '.') {
			t.Errorf("%s: a match is not one code point", c.name)
		}
	}
	for s, want := range map[string]bool{".": true, "$": true, "\u166d": true, "\U000111c9": true, "\u061d": false, "\u2e43": false, "€": false, "a": false} {
		if _, in := tokenize.Punctuation.Scan([]byte(s), 0); in != want {
			t.Errorf("Punctuation: %q is %v", s, in)
		}
	}
}

// mappedDigits cuts bytes where digits cuts their characters.
func TestMappedDigits(t *testing.T) {
	alphabet := newReference(t, readTiny(t), gpt2Reference).alphabet
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		text := []byte(randomText(r, 12))
		var mapped strings.Builder
		starts := map[int]int{0: 0} // byte positions, by character positions
		for i, b := range text {
			mapped.WriteString(alphabet[b])
			starts[mapped.Len()] = i + 1
		}
		var want []span
		at := 0
		for _, x := range patternSpans(t, tokenize.Digits, mapped.String()) {
			want = append(want, span{string(text[starts[at]:starts[at+len(x.text)]]), x.match})
			at += len(x.text)
		}
		if got := patternSpans(t, tokenize.MappedDigits, string(text)); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestClassesAsOfficial(t *testing.T) {
	data, err := os.ReadFile(testdata.Path(t, "the official tokenizer's character classes", "tokens", "unicode_classes.json"))
	must(t, err)
	var ranges map[string][][2]rune
	must(t, json.Unmarshal(data, &ranges))
	for _, c := range []struct {
		name string
		in   func(rune) bool
		min  int
	}{
		{"L", tokenize.IsLetter, 140_000}, {"N", tokenize.IsNumber, 1900}, {"S", tokenize.IsSpace, 25},
		{"M", property("M"), 2400}, {"P", property("P"), 800}, {"Sy", property("S"), 8000},
		{"Lu", property("Lu"), 1800}, {"Ll", property("Ll"), 2200}, {"Lt", property("Lt"), 31},
		{"Lm", property("Lm"), 400}, {"Lo", property("Lo"), 136_000},
	} {
		want := map[rune]bool{}
		for _, r := range ranges[c.name] {
			for x := r[0]; x <= r[1]; x++ {
				want[x] = true
			}
		}
		for r := range rune(unicode.MaxRune + 1) {
			if c.in(r) != want[r] {
				t.Errorf("%s: %U is %v, want %v", c.name, r, c.in(r), want[r])
			}
		}
		t.Logf("%s: %d code points", c.name, len(want))
		if len(want) < c.min {
			t.Errorf("%s has only %d code points", c.name, len(want))
		}
	}
}

func property(name string) func(rune) bool {
	return func(r rune) bool { return tokenize.InProperty(name, r) }
}

// Go's tables were of Unicode 15.0.0: each class has fewer code points there, and none that 16.0.0
// does not have.
func TestClassesOfUnicode16(t *testing.T) {
	for _, c := range []struct {
		name string
		in   func(rune) bool
		size int
		gos  []*unicode.RangeTable
	}{
		{"letter", tokenize.IsLetter, 141_028, []*unicode.RangeTable{unicode.L}},
		{"number", tokenize.IsNumber, 1_911, []*unicode.RangeTable{unicode.N}},
		{"space", tokenize.IsSpace, 25, []*unicode.RangeTable{unicode.White_Space}},
		{"mark", property("M"), 2_501, []*unicode.RangeTable{unicode.M}},
		{"punctuation", property("P"), 855, []*unicode.RangeTable{unicode.P}},
		{"symbol", property("S"), 8_514, []*unicode.RangeTable{unicode.S}},
		{"digit", property("Nd"), 760, []*unicode.RangeTable{unicode.Nd}},
		{"Han", property("Han"), 99_030, []*unicode.RangeTable{unicode.Han}},
		{"word", tokenize.IsWord, 144_667, []*unicode.RangeTable{
			unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control,
		}},
	} {
		size := 0
		for r := range rune(unicode.MaxRune + 1) {
			if c.in(r) {
				size++
			} else if unicode.Version == "15.0.0" && unicode.In(r, c.gos...) {
				t.Errorf("%s: %U is not", c.name, r)
			}
		}
		if size != c.size {
			t.Errorf("%s: %d code points, want %d", c.name, size, c.size)
		}
	}
}
