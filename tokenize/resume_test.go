package tokenize_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize"
)

// resumeCounts counts the results of checkResume.
type resumeCounts struct {
	checks, found int
	behind        int // bytes from the positions to the ends of the texts
}

// checkResume encodes text up to the position of Resume for text[:cut] and the rest with
// EncodeMarks, and compares the ids with those of the whole.
func (n *resumeCounts) checkResume(tb testing.TB, bpe *tokenize.BPE, text string, cut int) {
	tb.Helper()
	p := bpe.Resume(text[:cut])
	n.checks++
	if p < 0 || p > cut {
		tb.Fatalf("%.200q: resumes at %d of %d", text[:cut], p, cut)
	}
	if p == 0 {
		return
	}
	n.found++
	n.behind += cut - p
	got := encode(tb, bpe, text[:p], false)
	got, _, err := bpe.EncodeMarks(context.Background(), got, tokenize.Passage{Text: text, From: p})
	must(tb, err)
	if want := encode(tb, bpe, text, false); !slices.Equal(got, want) {
		from := max(0, p-60)
		tb.Errorf("cut at %d, resumed at %d: ...%q | %.60q: got %v, want %v", cut, p, text[from:p], text[p:], clip(got), clip(want))
	}
}

func addedContents(c familyCase) (contents []string) {
	added, _ := c.File["added_tokens"].([]any)
	for _, token := range added {
		contents = append(contents, token.(map[string]any)["content"].(string))
	}
	return contents
}

func (n *resumeCounts) report(t *testing.T) {
	t.Helper()
	t.Logf("%d cuts, %d resumed, on average %.1f bytes behind", n.checks, n.found, float64(n.behind)/float64(max(n.found, 1)))
	if n.found*2 < n.checks {
		t.Errorf("only %d of %d cuts have a position to resume from", n.found, n.checks)
	}
}

// Every word of prose has a position: the last one is a word from the end.
func TestResumeOfProse(t *testing.T) {
	words := strings.Fields(readProse(t))
	for name, f := range forms(t) {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(13, 14))
			var n resumeCounts
			for range 300 {
				text := englishLike(words, 200+r.IntN(200), r)
				n.checkResume(t, f.bpe, text, 100+r.IntN(100))
			}
			n.report(t)
			if n.found != n.checks || n.behind > 12*n.checks {
				t.Errorf("%d of %d, %d bytes behind", n.found, n.checks, n.behind)
			}
		})
	}
}

func TestResumeIsBetweenCharacters(t *testing.T) {
	bpe := loadTiny(t)
	text := "日本 \u00a0é, <|end|>\xff\xe6\x97 the harbour\xe6"
	for cut := range len(text) + 1 {
		if p := bpe.Resume(text[:cut]); p > 0 && !utf8.RuneStart(text[p]) {
			t.Errorf("%q: resumes at %d, within a character", text[:cut], p)
		}
	}
	for _, c := range []struct {
		text string
		want int
	}{
		{"", 0},
		{"the", 0},
		{"the wall", 3},
		{"the wall ", 8},
		{"the wall  ", 8},
		{"the wall\n", 8},
		{"the <|end|>", 3},
		{"the<|end|>", 3},
		{"the<|end|", 3}, // between a letter and a symbol
		{"the wall\xe6", 3},
	} {
		if got := bpe.Resume(c.text); got != c.want {
			t.Errorf("%q: got %d, want %d", c.text, got, c.want)
		}
	}
}
