package jinja

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// charHashes are of what CPython 3.11.7 makes of code points: classes of all, the
// rest of every fifth, and of all before U+3000, in seven surroundings (testdata/record_chars.py).
var charHashes = map[string]string{
	"isalnum":    "896a2a1386ba796b",
	"isalpha":    "9cfbb5fd685998f7",
	"isdecimal":  "68e6c5404b536a41",
	"isdigit":    "ccec4d80996daa6f",
	"islower":    "be23fca3d014949f",
	"isnumeric":  "4b6a811ca9151aa3",
	"isspace":    "009e12cac976d3fb",
	"isupper":    "34c9cd5a5cd9d75f",
	"capitalize": "22ef248e70bba4bc",
	"lower":      "f09de7cd826d58b4",
	"split":      "f97ea83bdecff21d",
	"splitlines": "657ab56fb4aa4a1e",
	"strip":      "40abb79b441df545",
	"title":      "541d89c84ca6e9b2",
	"upper":      "523848ee325f9f29",
	"repr":       "57edf11ced871829",
}

func TestCodePoints(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(charHashes)) {
		want := charHashes[name]
		if !longRun() && i%3 > 0 && name != "lower" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forms, end := []string{"{}", "A{}", "1{}Σ", "A{}Σ", "AΣ{}", "AΣ{}a", "a{}a"}, rune(0x20000)
			if strings.HasPrefix(name, "is") {
				forms, end = forms[:1], utf8.MaxRune+1
			}
			if got := charHash(t, name, forms, end); got != want {
				t.Errorf("%s of all code points: hash %s, want %s", name, got, want)
			}
		})
	}
}

// charHash hashes what a method makes of the code points before end in forms.
func charHash(t *testing.T, name string, forms []string, end rune) string {
	h := sha256.New()
	m := newMachine(&Env{Limits: Limits{Steps: math.MaxInt, Memory: math.MaxInt}}, nil)
	for c := range end {
		for _, form := range forms {
			if !utf8.ValidRune(c) || len(forms) > 1 && c >= 0x3000 && c%5 != 0 {
				continue
			}
			s := strings.Replace(form, "{}", string(c), 1)
			var v Value
			var err error
			if name == "repr" {
				v, err = m.repr(s)
			} else {
				v, _, err = m.callMethod(s, name, arguments{})
			}
			must(t, err)
			text, err := m.str(v)
			must(t, err)
			h.Write(append([]byte(text), 0))
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// Digits of int() of all scripts.
func TestDecimalDigit(t *testing.T) {
	n := 0
	for c := range rune(utf8.MaxRune + 1) {
		if _, ok := decimalDigit(c); ok {
			n++
		}
	}
	if n != 660 {
		t.Errorf("%d decimal digits, want 660", n)
	}
	for _, zero := range []rune{'0', '٠', '०', '０', '\U0001d7ce', '\U0001d7d8', '\U0001fbf0'} {
		for want := range 10 {
			if got, ok := decimalDigit(zero + rune(want)); !ok || got != want {
				t.Errorf("digit %U: %d, %v, want %d", zero+rune(want), got, ok, want)
			}
		}
	}
}
