package tokenize_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/tokenize"
)

func readTiny(tb testing.TB) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/tiny.json")
	must(tb, err)
	return b
}

func loadTiny(tb testing.TB) *tokenize.BPE {
	tb.Helper()
	t, err := tokenize.Load("testdata/tiny.json")
	must(tb, err)
	return t
}

type hostileText struct{ name, text string }

// hostileTexts returns texts of n bytes. The first is prose, to compare with. Each of the others is
// one piece, or has one kind of piece.
func hostileTexts(tb testing.TB, n int) []hostileText {
	r := rand.New(rand.NewPCG(3, 4))
	letters := make([]byte, n)
	for i := range letters {
		letters[i] = byte('a' + r.IntN(26))
	}
	prose := readProse(tb)
	word := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, prose)
	fill := func(s string) string { return strings.Repeat(s, n/len(s)) }
	return []hostileText{
		{"prose", fill(prose)},
		{"one letter", fill("a")},
		{"spaces", fill(" ")},
		{"newlines", fill("\n")},
		{"two letters", fill("th")},
		{"letters of prose", fill(word)},
		{"random letters", string(letters)},
		{"symbols", fill("!")},
		{"one ideograph", fill("日")},
		{"spaces and letters", fill("   a")},
		{"quotes", fill("'")},
		{"special token cut short", fill("<|en")},
		{"special tokens", fill("<|end|>")},
	}
}

// forms is tiny.json in both forms that load, each with its plain reference.
func forms(tb testing.TB) map[string]form {
	llama3 := map[string]any{
		"type": "Sequence",
		"pretokenizers": []any{
			map[string]any{
				"type": "Split", "behavior": "Isolated", "invert": false,
				"pattern": map[string]any{"Regex": llama3Pattern},
			},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		},
	}
	all := map[string]form{}
	for name, f := range map[string]struct {
		file    []byte
		pattern pattern
	}{
		"gpt2":   {readTiny(tb), gpt2Reference},
		"llama3": {variant(tb, map[string]any{"pre_tokenizer": llama3}, map[string]any{"ignore_merges": true}), llama3Reference},
	} {
		all[name] = form{parse(tb, f.file), newReference(tb, f.file, f.pattern)}
	}
	return all
}

const llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

type form struct {
	bpe       *tokenize.BPE
	reference *reference
}

func parse(tb testing.TB, file []byte) *tokenize.BPE {
	tb.Helper()
	t, err := tokenize.Parse(bytes.NewReader(file))
	must(tb, err)
	return t
}

// check compares Encode with the reference and decodes the ids.
func (f form) check(tb testing.TB, text string) {
	tb.Helper()
	got, want := encode(tb, f.bpe, text, false), f.reference.encode(text)
	if !slices.Equal(got, want) {
		tb.Errorf("%.200q: got %v, want %v", text, clip(got), clip(want))
	}
	if back, want := f.reference.decode(got), string([]rune(text)); back != want {
		tb.Errorf("%.200q: decodes to %.200q", text, back)
	}
}

func TestEncodeAsReference(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	words := strings.Fields(readProse(t))
	texts := []string{
		"", readProse(t), "<|end|>x<|end|>",
		"\xff", "a\xffb", "\xff\xfe", "a\xc3", "\xe6\x97", "\xe6\x97a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "ok 日\x97本",
	}
	for range 200 / sampled() {
		texts = append(texts, englishLike(words, r.IntN(400), r))
	}
	// One piece each, below and above the length at which the algorithm changes.
	for n := tokenize.LongPiece - 2; n < 4*tokenize.LongPiece; n++ {
		piece := make([]byte, n)
		for i := range piece {
			piece[i] = "etahorsndi"[r.IntN(1+n%10)]
		}
		texts = append(texts, string(piece), " "+string(piece), strings.Repeat("the", n)[:n], strings.Join(words, "")[n:2*n])
	}
	for name, f := range forms(t) {
		t.Run(name, func(t *testing.T) {
			for _, text := range texts {
				f.check(t, text)
			}
		})
	}
}

// variantVocab returns the vocabulary of tiny.json reduced to the 256 bytes.
func variantVocab(tb testing.TB) []byte {
	file := fromJSON[struct {
		Model struct{ Vocab map[string]int }
	}](tb, readTiny(tb))
	for token, id := range file.Model.Vocab {
		if id >= 256 {
			delete(file.Model.Vocab, token)
		}
	}
	b, err := json.Marshal(file.Model.Vocab)
	must(tb, err)
	return b
}

func TestEncodeAppends(t *testing.T) {
	bpe := loadTiny(t)
	dst := make([]uint32, 0, 64)
	dst = append(dst, 1, 2, 3)
	got, err := bpe.Encode(context.Background(), dst, "the harbour", false)
	must(t, err)
	if want := append([]uint32{1, 2, 3}, encode(t, bpe, "the harbour", false)...); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if &got[0] != &dst[0] {
		t.Error("dst had room and was copied")
	}
}

func TestEncodeTooLong(t *testing.T) {
	dst := []uint32{7}
	for name, text := range map[string]string{
		"text":                     strings.Repeat("a", tokenize.MaxText+1),
		"text when it is replaced": strings.Repeat("\xff", tokenize.MaxText/3+1),
	} {
		got, err := loadTiny(t).Encode(context.Background(), dst, text, false)
		if !errors.Is(err, tokenize.ErrTextTooLong) {
			t.Errorf("%s: got %v", name, err)
		}
		if !slices.Equal(got, dst) {
			t.Errorf("%s: dst became %v", name, got)
		}
	}
}

// A countdown is a context that ends at the n-th call of Err.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestEncodeStopsWithContext(t *testing.T) {
	bpe := loadTiny(t)
	for name, text := range map[string]string{
		"prose":      strings.Repeat(readProse(t), 30),
		"one word":   strings.Repeat("the", 100_000),
		"after word": "<|end|>" + strings.Repeat("the", 100_000),
	} {
		looks := &countdown{context.Background(), 1 << 30}
		want, err := bpe.Encode(looks, nil, text, false)
		must(t, err)
		n := 1<<30 - looks.left
		t.Logf("%s: %d looks", name, n)
		if n < 3 {
			t.Errorf("%s: the context was looked at %d times", name, n)
		}
		for left := range n {
			got, err := bpe.Encode(&countdown{context.Background(), left}, []uint32{7}, text, true)
			if !errors.Is(err, context.Canceled) || !slices.Equal(got, []uint32{7}) {
				t.Errorf("%s, stopped at look %d: %d ids, %v", name, left, len(got), err)
			}
		}
		if got := encode(t, bpe, text, false); !slices.Equal(got, want) {
			t.Errorf("%s: other ids after a stop", name)
		}
	}
}

// With room in dst an encoding allocates nothing for each token. The bound is above zero because a
// sync.Pool drops items at random under the race detector.
func TestEncodeAllocations(t *testing.T) {
	text := freshTexts(t, 36<<10)[0] + strings.Repeat("<|end|>the ", 1000) + strings.Repeat("harbour", 50)
	for name, f := range forms(t) {
		ids := encode(t, f.bpe, text, true)
		allocs := testing.AllocsPerRun(20, func() {
			var err error
			if ids, err = f.bpe.Encode(context.Background(), ids[:0], text, true); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s: %v allocations for %d tokens", name, allocs, len(ids))
		if allocs > 20 {
			t.Errorf("%s: %v allocations for %d tokens", name, allocs, len(ids))
		}
	}
}

// A quadratic step would take tens of thousands of times longer than prose.
func TestEncodeHostileTextsInTime(t *testing.T) {
	bpe := loadTiny(t)
	took := func(text string) time.Duration {
		best := time.Hour
		for range 2 {
			best = min(best, cputime.Of(func() { encode(t, bpe, text, false) }))
		}
		return best
	}
	texts := hostileTexts(t, 1<<19)
	prose := max(took(texts[0].text), 10*time.Millisecond) // the clock of some systems has ticks of 10 ms
	for _, h := range texts {
		d := took(h.text)
		t.Logf("%s: %v for 512 kB", h.name, d)
		if d > 200*prose {
			t.Errorf("%s: %v, prose %v", h.name, d, prose)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{
		"", "The harbour master walks along the wall.", "it's 12345  \n\n x", "a<|end|>b", "\xff\xfe日本",
		strings.Repeat("the", 50), strings.Repeat(" ", 100), fmt.Sprint(strings.Repeat("x", 70), " they'LL"),
	} {
		f.Add(s)
	}
	all := forms(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			return // the reference is slow
		}
		for _, form := range all {
			form.check(t, text)
		}
	})
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
