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

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// charHashes are of what CPython 3.11.7 makes of code points: classes of all, the
// rest of every fifth, and of all before U+3000, in seven surroundings (testdata/record_chars.py).
var charHashes = map[string]string{
	"isdigit":    "ccec4d80996daa6f",
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
	m := python.NewMachine(python.Limits{Steps: math.MaxInt, Memory: math.MaxInt})
	for c := range end {
		for _, form := range forms {
			if !utf8.ValidRune(c) || len(forms) > 1 && c >= 0x3000 && c%5 != 0 {
				continue
			}
			s := strings.Replace(form, "{}", string(c), 1)
			var v python.Value
			var err error
			if name == "repr" {
				v, err = m.Repr(s)
			} else {
				v, _, err = m.CallMethod(s, name, python.Arguments{})
			}
			must(t, err)
			text, err := m.Str(v)
			must(t, err)
			h.Write(append([]byte(text), 0))
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}
