package tokenize_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unicode"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

var scanners = []struct {
	name      string
	scan      func(s []byte, i int) (int, bool)
	reference pattern
}{
	{"gpt2", tokenize.ScanGPT2, gpt2Reference},
	{"llama3", tokenize.ScanLlama3, llama3Reference},
}

// splitAll returns the pieces that a scanner cuts s into.
func splitAll(tb testing.TB, scan func([]byte, int) (int, bool), s string) (pieces []string) {
	for i := 0; i < len(s); {
		end, _ := scan([]byte(s), i)
		if end <= i || end > len(s) {
			tb.Fatalf("%q: the piece at %d ends at %d", s, i, end)
		}
		pieces = append(pieces, s[i:end])
		i = end
	}
	return pieces
}

func comparePieces(tb testing.TB, s string) {
	tb.Helper()
	for _, sp := range scanners {
		got, want := splitAll(tb, sp.scan, s), sp.reference.pieces(s)
		if !slices.Equal(got, want) {
			tb.Errorf("%s: %q\n got %q\nwant %q", sp.name, s, got, want)
		}
	}
}

// One of each kind of code point that an alternative treats in its own way.
var kinds = []rune("sSſrEvlLx1²'. \n\r\t\u00a0é日\u0301")

func TestPiecesOfAllShortTexts(t *testing.T) {
	n := 0
	text := make([]rune, 4)
	var fill func(i int)
	fill = func(i int) {
		if i == len(text) {
			comparePieces(t, string(text))
			n++
			return
		}
		for _, r := range kinds {
			text[i] = r
			fill(i + 1)
		}
	}
	fill(0)
	t.Logf("%d texts of 4 code points", n)
	if n < 100_000 {
		t.Errorf("only %d texts", n)
	}
}

func TestPiecesOfRandomTexts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		text := make([]rune, 1+r.IntN(24))
		for i := range text {
			switch r.IntN(8) {
			case 0:
				text[i] = rune(r.IntN(0x20000))
			case 1:
				text[i] = rune(r.IntN(0x3000))
			default:
				text[i] = kinds[r.IntN(len(kinds))]
			}
		}
		comparePieces(t, string(text))
	}
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
		if got := splitAll(t, tokenize.ScanGPT2, c.text); !slices.Equal(got, c.gpt2) {
			t.Errorf("gpt2 %q: got %q, want %q", c.text, got, c.gpt2)
		}
		if got := splitAll(t, tokenize.ScanLlama3, c.text); !slices.Equal(got, c.llama3) {
			t.Errorf("llama3 %q: got %q, want %q", c.text, got, c.llama3)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "it's  a\n\n test", "'ſ 12345 \u00a0\u0301x", "日本 \r\n."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1000 {
			t.Skip("the reference is slow")
		}
		comparePieces(t, string([]rune(s)))
	})
}

// The classes are those of the official tokenizer, code point by code point.
func TestClassesAsOfficial(t *testing.T) {
	data, err := os.ReadFile(testdata.Path(t, "the official tokenizer's character classes", "tokens", "unicode_classes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ranges map[string][][2]rune
	if err := json.Unmarshal(data, &ranges); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		in   func(rune) bool
		min  int
	}{{"L", tokenize.IsLetter, 140_000}, {"N", tokenize.IsNumber, 1900}, {"S", tokenize.IsSpace, 25}} {
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

// Go's tables were of Unicode 15.0.0, which has fewer code points of each class
// and none that 16.0.0 has not.
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
