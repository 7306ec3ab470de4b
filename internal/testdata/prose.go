package testdata

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// A Prose makes texts that nobody has seen: words of English and lines of code,
// as often as they stand in the corpus of the folder, in random order, and one
// word in sixteen made up.
type Prose struct {
	*rand.Rand
	words, lines, english []string
}

// NewProse reads the corpus, or skips the test and logs what for.
func NewProse(tb testing.TB, what string, seed uint64) *Prose {
	tb.Helper()
	p := &Prose{Rand: rand.New(rand.NewPCG(seed, 2))}
	type row struct{ Kind, Text string }
	for _, row := range Rows[row](tb, Path(tb, what, "tokens", "corpus.jsonl.gz")) {
		switch {
		case row.Kind == "english":
			p.words = append(p.words, strings.Fields(row.Text)...)
			p.english = append(p.english, row.Text)
		case strings.HasPrefix(row.Kind, "code-"):
			p.lines = append(p.lines, strings.SplitAfter(row.Text, "\n")...)
		}
	}
	if len(p.words) < 10_000 || len(p.lines) < 1000 {
		tb.Fatalf("%d words and %d lines of code are too few", len(p.words), len(p.lines))
	}
	return p
}

// Text returns one of size bytes, less a character cut at the end.
func (p *Prose) Text(size int) string {
	var b strings.Builder
	for b.Len() < size {
		switch p.IntN(64) {
		case 0:
			b.WriteString(".\n\n")
		case 1:
			for range 8 {
				b.WriteString(p.lines[p.IntN(len(p.lines))])
			}
		case 2, 3, 4, 5:
			for range 3 + p.IntN(8) {
				b.WriteByte(byte('a' + p.IntN(26)))
			}
			b.WriteByte(' ')
		default:
			b.WriteString(p.words[p.IntN(len(p.words))])
			b.WriteByte(' ')
		}
	}
	return strings.ToValidUTF8(b.String()[:size], "")
}

// English returns one of size bytes of the corpus's texts in English, in random
// order, less a character cut at the end.
func (p *Prose) English(size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(p.english[p.IntN(len(p.english))])
		b.WriteByte('\n')
	}
	return strings.ToValidUTF8(b.String()[:size], "")
}
