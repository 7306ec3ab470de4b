package tokenize_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/kvindex/kvindex/tokenize"
)

// normalFile is testdata/normal.json, made by the official library.
type normalFile struct {
	Digests map[string][]string
	Classes [][3]int
	Cases   []struct {
		Normalizer json.RawMessage
		Rows       [][2]string
	}
}

func readNormal(tb testing.TB) normalFile {
	tb.Helper()
	b, err := os.ReadFile("testdata/normal.json")
	must(tb, err)
	var f normalFile
	must(tb, json.Unmarshal(b, &f))
	return f
}

func normalizerOf(tb testing.TB, section string) *tokenize.Normalizer {
	tb.Helper()
	n, err := tokenize.ParseNormalizer(section)
	if err != nil {
		tb.Fatalf("%s: %v", section, err)
	}
	return n
}

func apply(tb testing.TB, n *tokenize.Normalizer, s string, start bool) string {
	tb.Helper()
	out, err := n.Apply([]byte(s), start)
	if err != nil {
		tb.Fatalf("%+q: %v", s, err)
	}
	return string(out)
}

func TestNormalizeOfficial(t *testing.T) {
	rows := 0
	for _, c := range readNormal(t).Cases {
		n := normalizerOf(t, string(c.Normalizer))
		for _, row := range c.Rows {
			rows++
			if got := apply(t, n, row[0], true); got != row[1] {
				t.Errorf("%s: %+q became %+q, want %+q", c.Normalizer, row[0], got, row[1])
			}
		}
	}
	t.Logf("%d rows", rows)
}

func TestNormalizerRefusals(t *testing.T) {
	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	nested := func(depth int) string {
		return strings.Repeat(`{"type":"Sequence","normalizers":[`, depth) + strings.Repeat("]}", depth)
	}
	many := func(n int) string {
		return `{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"NFC"},`, n-1) + `{"type":"NFC"}]}`
	}
	for _, c := range []struct {
		section string
		want    error
		message string
	}{
		{"", nil, ""},
		{"null", nil, ""},
		{nested(8), nil, ""},
		{nested(9), unsupported, "normalizer Sequence more than 8 deep"},
		{many(64), nil, ""},
		{many(65), malformed, "more than 64"},
		{`{"type":"Sequence","normalizers":[` + many(40) + "," + many(40) + "]}", malformed, "more than 64 steps"},
		{`[]`, malformed, "not an object"},
		{`{}`, malformed, `field "type"`},
		{`{"type":"Lowercase"}`, unsupported, `normalizer "Lowercase"`},
		{`{"type":"BertNormalizer"}`, unsupported, `normalizer "BertNormalizer"`},
		{`{"type":"ByteLevel"}`, unsupported, `normalizer "ByteLevel"`},
		{`{"type":"Precompiled","precompiled_charsmap":""}`, unsupported, `normalizer "Precompiled"`},
		{`{"type":"nfc"}`, unsupported, `normalizer "nfc"`},
		{`{"type":"NFC","form":"D"}`, unsupported, `normalizer NFC field "form"`},
		{`{"type":"Sequence"}`, malformed, `field "normalizers"`},
		{`{"type":"Sequence","normalizers":[null]}`, unsupported, "normalizer null"},
		{`{"type":"Sequence","normalizers":[{"type":"Nmt"}]}`, unsupported, `normalizer "Nmt"`},
		{`{"type":"Sequence","normalizers":[],"x":1}`, unsupported, `normalizer Sequence field "x"`},
		{`{"type":"Prepend"}`, malformed, `normalizer Prepend: field "prepend"`},
		{`{"type":"Prepend","prepend":"a","x":1}`, unsupported, `normalizer Prepend field "x"`},
		{`{"type":"Prepend","prepend":""}`, unsupported, "normalizer Prepend of nothing"},
		{`{"type":"Strip","strip_left":true}`, malformed, `normalizer Strip: field "strip_right"`},
		{`{"type":"Strip","strip_right":true}`, malformed, `normalizer Strip: field "strip_left"`},
		{`{"type":"Strip","strip_left":true,"strip_right":true,"x":1}`, unsupported, `normalizer Strip field "x"`},
		{`{"type":"Replace","content":"a"}`, malformed, "normalizer Replace pattern is missing"},
		{`{"type":"Replace","pattern":"a","content":"b"}`, malformed, "normalizer Replace pattern is not an object"},
		{`{"type":"Replace","pattern":{"String":"a"}}`, malformed, `normalizer Replace: field "content"`},
		{`{"type":"Replace","pattern":{"String":"a"},"content":"b","x":1}`, unsupported, `normalizer Replace field "x"`},
		{`{"type":"Replace","pattern":{},"content":"b"}`, malformed, "0 fields"},
		{`{"type":"Replace","pattern":{"String":"a","Regex":"b"},"content":"b"}`, malformed, "2 fields"},
		{`{"type":"Replace","pattern":{"Char":"a"},"content":"b"}`, unsupported, `normalizer Replace pattern field "Char"`},
		{`{"type":"Replace","pattern":{"String":1},"content":"b"}`, malformed, `normalizer Replace pattern: field "String"`},
		{`{"type":"Replace","pattern":{"Regex":null},"content":"b"}`, malformed, `normalizer Replace pattern: field "Regex"`},
		{`{"type":"Replace","pattern":{"String":""},"content":"b"}`, unsupported, "empty pattern"},
		{`{"type":"Replace","pattern":{"Regex":""},"content":"b"}`, unsupported, `normalizer Replace pattern ""`},
		{`{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"}`, unsupported, `normalizer Replace pattern "a+"`},
		{`{"type":"Replace","pattern":{"Regex":"(?<!\\n)^"},"content":"b"}`, unsupported, `normalizer Replace pattern "(?<!\\n)^"`},
		{`{"type":"Replace","pattern":{"Regex":"^"},"content":"b"}`, unsupported, `normalizer Replace pattern "^"`},
		{`{"type":"Replace","pattern":{"Regex":"\\n"},"content":"b"}`, unsupported, `normalizer Replace pattern "\\n"`},
	} {
		_, err := tokenize.ParseNormalizer(c.section)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.message) {
			t.Errorf("%.200s: got %v, want %v with %q", c.section, err, c.want, c.message)
		}
	}
}

// sections are normalizers of every kind.
var sections = []string{
	"null",
	`{"type":"NFC"}`, `{"type":"NFD"}`, `{"type":"NFKC"}`, `{"type":"NFKD"}`,
	`{"type":"Prepend","prepend":"▁"}`,
	`{"type":"Prepend","prepend":"\u0301 "}`,
	`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`,
	`{"type":"Replace","pattern":{"String":" "},"content":""}`,
	`{"type":"Replace","pattern":{"String":" "},"content":"a "}`,
	`{"type":"Replace","pattern":{"String":"aa"},"content":"a"}`,
	`{"type":"Replace","pattern":{"String":"aba"},"content":"b"}`,
	`{"type":"Replace","pattern":{"String":"a b"},"content":""}`,
	`{"type":"Replace","pattern":{"String":"e\u0301"},"content":"e"}`,
	`{"type":"Replace","pattern":{"Regex":"b"},"content":"▁▁"}`,
	`{"type":"Replace","pattern":{"Regex":" +"},"content":" "}`,
	`{"type":"Replace","pattern":{"Regex":" {2,}"},"content":"b"}`,
	`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"ab"}`,
	`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":""}`,
	`{"type":"Strip","strip_left":true,"strip_right":true}`,
	`{"type":"Strip","strip_left":true,"strip_right":false}`,
	`{"type":"Strip","strip_left":false,"strip_right":true}`,
	`{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":" "},"content":"▁"},{"type":"Prepend","prepend":"▁"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "},
		{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Prepend","prepend":"a"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"Replace","pattern":{"String":"\u0301"},"content":""},{"type":"NFC"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":"b"},"content":"\u0301"},{"type":"NFC"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":" "},"content":"aa"},{"type":"Replace","pattern":{"String":"aa"},"content":"b"}]}`,
	`{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":"a"},"content":" "},{"type":"Strip","strip_left":true,"strip_right":true}]}`,
}

// nastyText returns up to n code points that normalizers change.
func nastyText(r *rand.Rand, n int) string {
	alphabet := []rune("aaabbe   \n\t\u00a0\u3000éé▁가각갂\u1100\u1161\u11a8\u212b\ufb01か\u3099\u00a8" +
		"\u0301\u0301\u0327\u0334\u0344\u0f73\u0dd9\u0dca\u0dcf\ufdfa\uff9e\u3131\U0001d15e\U0002f800\U00011099\U000110ba")
	var b strings.Builder
	for range r.IntN(n + 1) {
		b.WriteRune(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

// TestNormalizeModels compares all steps but the Unicode forms with plain ones.
func TestNormalizeModels(t *testing.T) {
	replaceAll := func(pattern, content string) func(string) string {
		return func(s string) string { return strings.ReplaceAll(s, pattern, content) }
	}
	replaceRegexp := func(pattern, content string) func(string) string {
		p := regexp.MustCompile(pattern)
		return func(s string) string { return p.ReplaceAllLiteralString(s, content) }
	}
	prepend := func(s string) string {
		if s == "" {
			return s
		}
		return "▁" + s
	}
	const white = `[\s\v\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+`
	models := map[string]func(string) string{
		sections[0]:  func(s string) string { return s },
		sections[5]:  prepend,
		sections[7]:  replaceAll(" ", "▁"),
		sections[8]:  replaceAll(" ", ""),
		sections[10]: replaceAll("aa", "a"),
		sections[11]: replaceAll("aba", "b"),
		sections[14]: replaceAll("b", "▁▁"),
		sections[15]: replaceRegexp(" +", " "),
		sections[16]: replaceRegexp(" {2,}", "b"),
		sections[17]: replaceRegexp(white, "ab"),
		sections[19]: strings.TrimSpace,
		sections[20]: func(s string) string { return strings.TrimLeftFunc(s, unicode.IsSpace) },
		sections[21]: func(s string) string { return strings.TrimRightFunc(s, unicode.IsSpace) },
		sections[22]: func(s string) string { return strings.ReplaceAll(prepend(s), " ", "▁") },
	}
	r := rand.New(rand.NewPCG(5, 6))
	for section, model := range models {
		n := normalizerOf(t, section)
		for range 3000 {
			s := nastyText(r, 12)
			if got, want := apply(t, n, s, true), model(s); got != want {
				t.Fatalf("%s: %+q became %+q, want %+q", section, s, got, want)
			}
		}
	}
}

// TestNormalizeContinued: without start, nothing is added or stripped at the beginning.
func TestNormalizeContinued(t *testing.T) {
	for _, c := range []struct{ section, text, want string }{
		{sections[5], "ab", "ab"},
		{sections[19], " ab ", " ab"},
		{sections[22], " ab", "▁ab"},
		{sections[24], "  ab  ", " ab"},
	} {
		if got := apply(t, normalizerOf(t, c.section), c.text, false); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.section, c.text, got, c.want)
		}
	}
}

// TestBoundary: a text cut at a boundary normalizes to the parts of the whole, with the edges that
// Boundary returned.
func TestBoundary(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, section := range sections {
		n := normalizerOf(t, section)
		held := 0
		for range 8000 {
			text := []rune(nastyText(r, 14))
			if len(text) < 2 {
				continue
			}
			cut := 1 + r.IntN(len(text)-1)
			nl, nr, ok := n.Boundary(text[cut-1], text[cut])
			if !ok {
				continue
			}
			held++
			whole := apply(t, n, string(text), true)
			left := apply(t, n, string(text[:cut]), true)
			right := apply(t, n, string(text[cut:]), false)
			if whole != left+right || !strings.HasSuffix(left, string(nl)) || !strings.HasPrefix(right, string(nr)) {
				t.Fatalf("%s: %+q cut at %d became %+q and %+q, in all %+q; want a cut between %+q and %+q",
					section, string(text), cut, left, right, whole, nl, nr)
			}
		}
		if held < 100 {
			t.Errorf("%s: only %d boundaries", section, held)
		}
	}
}

func TestBoundaryCases(t *testing.T) {
	const nfc, llama = `{"type":"NFC"}`, `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`
	for _, c := range []struct {
		section string
		l, r    rune
		want    string // "" for no boundary
	}{
		{"null", 'a', '\u0301', "a\u0301"},
		{nfc, 'e', ' ', "e "},
		{nfc, 'é', '\n', "é\n"},
		{nfc, '中', '文', "中文"},
		{nfc, '가', '각', "가각"},
		{nfc, '.', 'q', ".q"},
		{nfc, ' ', 'e', ""}, // an accent may follow
		{nfc, ' ', 'é', ""}, // a cedilla may follow
		{nfc, 'e', '\u0301', ""},
		{nfc, '\u0301', ' ', ""},
		{nfc, '각', '가', ""},
		{nfc, 'ᄀ', 'ᅡ', ""},
		{nfc, '\u212b', ' ', ""},
		{`{"type":"NFD"}`, ' ', 'e', " e"},
		{`{"type":"NFD"}`, 'é', ' ', ""},
		{`{"type":"NFKC"}`, ' ', '\u00a0', ""},
		{llama, 'e', ' ', "e▁"},
		{llama, ' ', 'e', "▁e"},
		{llama, ' ', ' ', "▁▁"},
		{sections[10], 'a', 'a', ""},
		{sections[10], 'b', 'a', ""},
		{sections[10], 'a', 'b', ""},
		{sections[10], 'b', 'b', "bb"},
		{sections[16], 'b', ' ', ""},
		{sections[17], 'b', ' ', "ba"},
		{sections[17], ' ', 'e', "be"},
		{sections[17], ' ', '\n', ""},
		{sections[19], 'a', 'b', "ab"},
		{sections[19], 'a', ' ', ""},
	} {
		got := ""
		if nl, nr, ok := normalizerOf(t, c.section).Boundary(c.l, c.r); ok {
			got = string([]rune{nl, nr})
		}
		if got != c.want {
			t.Errorf("%s between %+q and %+q: got %+q, want %+q", c.section, c.l, c.r, got, c.want)
		}
	}
}

// TestNormalizeUnchanged: an unchanged text is returned without a copy.
func TestNormalizeUnchanged(t *testing.T) {
	for _, c := range []struct{ section, text string }{
		{"null", "any\u0301"},
		{sections[1], "plain ASCII, longer than eight bytes"},
		{sections[1], "déjà vu, 中文 각 가 \u0334\u0316\u0305"},
		{sections[2], "plain e\u0327\u0301 中文"},
		{sections[3], "déjà vu, 中文 각 가"},
		{sections[7], "no-blank"},
		{sections[16], "single blanks only "},
		{sections[19], "not at the ends"},
	} {
		s := []byte(c.text)
		got, err := normalizerOf(t, c.section).Apply(s, true)
		if err != nil || &got[0] != &s[0] || len(got) != len(s) {
			t.Errorf("%s: %+q became %+q, %v, not itself", c.section, c.text, got, err)
		}
	}
}

func TestNormalizeAllocates(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	text := []byte(nastyText(r, 1000) + strings.Repeat("\u0301\u0327", 100))
	for _, section := range sections {
		n := normalizerOf(t, section)
		allocs := testing.AllocsPerRun(10, func() {
			if _, err := n.Apply(text, true); err != nil {
				t.Fatal(err)
			}
			n.Boundary('a', ' ')
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", section, allocs)
		}
	}
}

func TestNormalizeTooLong(t *testing.T) {
	if testing.Short() {
		t.Skip("texts of the longest length are not normalized: -short")
	}
	const most = tokenize.MaxText
	dots := `{"type":"Replace","pattern":{"String":" "},"content":"` + strings.Repeat(".", 1000) + `"}`
	gaps := `{"type":"Replace","pattern":{"Regex":" +"},"content":"` + strings.Repeat(".", 1000) + `"}`
	for _, c := range []struct {
		section, text string
		tooLong       int // repetitions that are too long
		longer        int // bytes added by each
	}{
		{sections[4], "\ufdfa", 1000, 30},
		{sections[4], "\ufdfa", most / 3, 0},
		{sections[1], "\u0958", 1000, 3},
		{sections[2], "\u0344", 1000, 2},
		{sections[5], "a", 1, 3},
		{dots, " ", 1000, 999},
		{dots, " ", most, 0},
		{gaps, " a", 1000, 999},
		{sections[23], "a", 1, 3},
	} {
		n := normalizerOf(t, c.section)
		text := strings.Repeat(c.text, c.tooLong)
		if c.longer > 0 {
			pad := most - len(text) - c.tooLong*c.longer
			text = strings.Repeat("a", pad) + text
			if out, err := n.Apply([]byte(text), true); err != nil || len(out) != most {
				t.Errorf("%.60s of %+q: %d bytes, %v", c.section, c.text, len(out), err)
			}
			text = "a" + text
		}
		if _, err := n.Apply([]byte(text), true); !errors.Is(err, tokenize.ErrTextTooLong) {
			t.Errorf("%.60s of %+q: %v, not too long", c.section, c.text, err)
		}
	}
}
