package tokenize_test

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize"
)

var formNames = []string{"NFC", "NFD", "NFKC", "NFKD"}

func formOf(tb testing.TB, name string) *tokenize.Normalizer {
	return normalizerOf(tb, `{"type":"`+name+`"}`)
}

// TestFormsOfficial compares each code point and its combining class with the official library.
func TestFormsOfficial(t *testing.T) {
	file := readNormal(t)
	for _, name := range formNames {
		n := formOf(t, name)
		for plane, want := range file.Digests[name] {
			h := sha256.New()
			for c := rune(plane) << 16; c < rune(plane+1)<<16; c++ {
				if utf8.ValidRune(c) {
					out, err := n.Apply(utf8.AppendRune(nil, c), true)
					must(t, err)
					h.Write(append(out[:len(out):len(out)], '\n'))
				}
			}
			if got := hex.EncodeToString(h.Sum(nil))[:32]; got != want {
				t.Errorf("%s of plane %d differs", name, plane)
			}
		}
	}

	classes := map[rune]int{}
	for _, r := range file.Classes {
		for c := r[0]; c <= r[1]; c++ {
			classes[rune(c)] = r[2]
		}
	}
	for c := range rune(utf8.MaxRune + 1) {
		if v := tokenize.FormValue(c); v < 1<<15 && int(v&0xff) != classes[c] {
			t.Errorf("%U has class %d, want %d", c, v&0xff, classes[c])
		}
	}
	t.Logf("%d code points with a class", len(classes))
}

// A plainForms normalizes by the definitions of the standard, from the decompositions of single
// code points.
type plainForms struct {
	decompositions [2]map[rune][]rune // canonical, compatibility
	pairs          map[[2]rune]rune
}

func newPlainForms(tb testing.TB) *plainForms {
	p := &plainForms{pairs: map[[2]rune]rune{}}
	for i, name := range []string{"NFD", "NFKD"} {
		p.decompositions[i] = map[rune][]rune{}
		n := formOf(tb, name)
		for c := range rune(utf8.MaxRune + 1) {
			if tokenize.FormValue(c) != 0 {
				p.decompositions[i][c] = []rune(apply(tb, n, string(c), true))
			}
		}
	}
	for _, x := range tokenize.FormPairs {
		p.pairs[[2]rune{rune(x >> 42), rune(x >> 21 & (1<<21 - 1))}] = rune(x & (1<<21 - 1))
	}
	for l := range rune(19) {
		for v := range rune(21) {
			lv := 0xac00 + (l*21+v)*28
			p.pairs[[2]rune{0x1100 + l, 0x1161 + v}] = lv
			for t := rune(1); t < 28; t++ {
				p.pairs[[2]rune{lv, 0x11a7 + t}] = lv + t
			}
		}
	}
	return p
}

func plainClass(r rune) int {
	if v := tokenize.FormValue(r); v < 1<<15 {
		return int(v & 0xff)
	}
	return 0
}

func (p *plainForms) normalize(name, s string) string {
	var text []rune
	table := p.decompositions[strings.Count(name, "K")]
	for _, r := range s {
		if d, ok := table[r]; ok {
			text = append(text, d...)
		} else {
			text = append(text, r)
		}
	}
	for i := 0; i < len(text); {
		end := i + 1
		for end < len(text) && plainClass(text[end]) != 0 {
			end++
		}
		if plainClass(text[i]) != 0 {
			i--
		}
		slices.SortStableFunc(text[i+1:end], func(a, b rune) int { return plainClass(a) - plainClass(b) })
		i = end
	}
	if strings.HasSuffix(name, "D") {
		return string(text)
	}
	// Each code point composes with the last starter, unless a code point between them is a
	// starter or has its class or a higher one.
	var out []rune
	starter := -1
	for _, r := range text {
		class := plainClass(r)
		blocked := starter < 0
		for _, between := range out[starter+1:] {
			if c := plainClass(between); c == 0 || c >= class {
				blocked = true
			}
		}
		if !blocked {
			if c, ok := p.pairs[[2]rune{out[starter], r}]; ok {
				out[starter] = c
				continue
			}
		}
		out = append(out, r)
		if class == 0 {
			starter = len(out) - 1
		}
	}
	return string(out)
}

func checkForms(t *testing.T, plain *plainForms, forms []*tokenize.Normalizer, s string) {
	t.Helper()
	got := map[string]string{}
	for i, name := range formNames {
		got[name] = apply(t, forms[i], s, true)
		if want := plain.normalize(name, s); got[name] != want {
			t.Errorf("%s of %+q is %+q, want %+q", name, s, got[name], want)
		}
		if again := apply(t, forms[i], got[name], true); again != got[name] {
			t.Errorf("%s of %+q is %+q, and of that %+q", name, s, got[name], again)
		}
	}
	for i, name := range formNames {
		for _, of := range []string{"NFC", "NFD"} {
			if again := apply(t, forms[i], got[of], true); again != got[name] {
				t.Errorf("%s of %+q is %+q, but of its %s %+q", name, s, got[name], of, again)
			}
		}
	}
}

func allForms(tb testing.TB) []*tokenize.Normalizer {
	var forms []*tokenize.Normalizer
	for _, name := range formNames {
		forms = append(forms, formOf(tb, name))
	}
	return forms
}

func TestFormsPlain(t *testing.T) {
	plain, forms := newPlainForms(t), allForms(t)
	var known []rune
	for c := range rune(utf8.MaxRune + 1) {
		if tokenize.FormValue(c) != 0 && (c < 0xac00 || c > 0xd7a3) {
			known = append(known, c)
		}
	}
	r := rand.New(rand.NewPCG(11, 12))
	for range 8000 {
		s := nastyText(r, 10)
		for range r.IntN(4) {
			s += string(known[r.IntN(len(known))]) + nastyText(r, 3)
		}
		checkForms(t, plain, forms, s)
		if t.Failed() {
			return
		}
	}
	// Each pair that composes, and sequences that block it.
	for _, x := range tokenize.FormPairs {
		a, b := string(rune(x>>42)), string(rune(x>>21&(1<<21-1)))
		checkForms(t, plain, forms, a+b+"x"+a+"\u0334"+b+a+"\u0345"+b+b)
	}
}

// TestManyMarks: a run of marks of any length is sorted.
func TestManyMarks(t *testing.T) {
	plain, forms := newPlainForms(t), allForms(t)
	r := rand.New(rand.NewPCG(13, 14))
	marks := []rune("\u0301\u0300\u0327\u0334\u0345\u0323\u0344\u0f73\u05b0\u3099")
	for _, n := range []int{1, 31, 32, 33, 34, 1000, 100000} {
		text := []rune{'e'}
		for range n {
			text = append(text, marks[r.IntN(len(marks))])
		}
		for i, name := range formNames {
			got := apply(t, forms[i], string(text), true)
			if n <= 1000 && got != plain.normalize(name, string(text)) {
				t.Errorf("%s of %d marks differs", name, n)
			}
			last := 0
			for _, m := range []rune(got)[1:] {
				if plainClass(m) < last {
					t.Fatalf("%s of %d marks is out of order", name, n)
				}
				last = plainClass(m)
			}
		}
	}
}
