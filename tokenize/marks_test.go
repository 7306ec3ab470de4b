package tokenize_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// markCounts counts the cases of growing texts.
type markCounts struct {
	texts, marks, kept, resumed int
	added                       []string       // special tokens whose cuts are counted
	ends                        map[string]int // cuts, by the kind of text around them
}

// A textMark is a mark with the text before it, and the ids before its Resume.
type textMark struct {
	text string
	tokenize.Mark
	ids []uint32
}

// checkMarks encodes text with marks at positions, from a known mark, compares the ids with a whole
// encoding and returns the marks that are kept.
func (n *markCounts) checkMarks(tb testing.TB, bpe tokenize.Marker, text string, special bool, from textMark, at []int) []textMark {
	tb.Helper()
	marks := make([]tokenize.Mark, len(at))
	for i := range at {
		marks[i].At = at[i]
	}
	want := encode(tb, bpe, text, special)
	got, kept, err := bpe.EncodeMarks(context.Background(), slices.Clone(from.ids), tokenize.Passage{Text: text, From: from.Resume, Special: special, Marks: marks})
	must(tb, err)
	if !slices.Equal(got, want) {
		tb.Fatalf("from %+v, marks at %v of %.300q: got %v, want %v", from.Mark, at, text, clip(got), clip(want))
	}
	n.texts++
	n.marks += len(marks)
	n.kept += len(kept)
	if from.Resume > 0 {
		n.resumed++
	}
	all := make([]textMark, 0, len(kept))
	last := from.Resume
	for _, m := range kept {
		tokens := from.Tokens + m.Tokens
		if m.Resume <= last || m.Resume >= m.At || !slices.Contains(at, m.At) || m.Tokens < 0 || tokens > len(want) {
			tb.Fatalf("%+v behind %d, from %+v, marks at %v of %.300q", m, last, from.Mark, at, text)
		}
		if p := bpe.Resume(text[:m.At]); p != m.Resume {
			tb.Fatalf("%+v, but Resume gives %d of %.300q", m, p, text[:m.At])
		}
		last = m.Resume
		m.Tokens = tokens
		all = append(all, textMark{text[:m.At], m, want[:tokens]})
	}
	return all
}

// grow encodes a text, and longer ones from the marks kept before.
func (n *markCounts) grow(tb testing.TB, bpe tokenize.Marker, r *rand.Rand, special bool, more func() string) {
	tb.Helper()
	text := more()
	var from textMark
	for range 5 {
		var at []int
		for range r.IntN(6) {
			at = append(at, n.cut(r, text, from.Resume))
		}
		if r.IntN(2) == 0 {
			at = append(at, len(text))
		}
		slices.Sort(at)
		all := append(n.checkMarks(tb, bpe, text, special, from, at), from)
		from = all[r.IntN(len(all))]
		for _, k := range all { // any text may follow the mark
			n.checkMarks(tb, bpe, k.text+more(), special, k, nil)
		}
		if r.IntN(3) == 0 {
			text = from.text + more()
		} else {
			text += more()
		}
	}
}

// cut returns a position of text, from or later, and counts the kind of text around it.
func (n *markCounts) cut(r *rand.Rand, text string, from int) int {
	at := from + r.IntN(len(text)-from+1)
	before, _ := utf8.DecodeLastRuneInString(text[:at])
	after, _ := utf8.DecodeRuneInString(text[at:])
	if n.ends == nil {
		n.ends = map[string]int{}
	}
	switch {
	case at < len(text) && !utf8.RuneStart(text[at]):
		n.ends["a character"]++
	case unicode.IsSpace(before) && unicode.IsSpace(after):
		n.ends["white space"]++
	case unicode.IsMark(after):
		n.ends["a combining sequence"]++
	}
	for _, token := range n.added {
		if i := strings.Index(text[max(0, at-len(token)+1):], token); i >= 0 && max(0, at-len(token)+1)+i < at {
			n.ends["a special token"]++
		}
	}
	return at
}

func (n *markCounts) report(t *testing.T) {
	t.Helper()
	t.Logf("%d texts, %d of them resumed; %d of %d marks kept; cuts within %v", n.texts, n.resumed, n.kept, n.marks, n.ends)
	if n.resumed*4 < n.texts || n.kept*4 < n.marks {
		t.Error("too few were resumed, or marks kept")
	}
}

// TestMarksOfFamilies has every pipeline, with texts for all of its components.
func TestMarksOfFamilies(t *testing.T) {
	f, _ := readFamilies(t)
	var n markCounts
	for number, c := range f.Cases {
		if _, refused := refusedFamily(c.Name); refused {
			continue
		}
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			bpe := parse(t, f.file(t, c))
			n.added = addedContents(c)
			texts := newNasty(uint64(number)+100, n.added...)
			for i := range 40 / sampled() {
				n.grow(t, bpe, texts.Rand, i%2 == 0, texts.text)
			}
		})
	}
	n.report(t)
	for _, within := range []string{"a character", "white space", "a combining sequence", "a special token"} {
		if n.ends[within] < 1000/sampled() {
			t.Errorf("%d cuts within %s", n.ends[within], within)
		}
	}
}

// TestMarksOfCorpus has the tokenizers of models, with texts of many languages.
func TestMarksOfCorpus(t *testing.T) {
	var texts, long []string
	for _, row := range testdata.Rows[struct{ Text string }](t, testdata.Path(t, "marks in 4,200 texts for each family", "tokens", "corpus.jsonl.gz")) {
		if len(row.Text) < 4000 {
			texts = append(texts, row.Text)
		} else {
			long = append(long, row.Text)
		}
	}
	for _, family := range tried() {
		t.Run(family, func(t *testing.T) {
			bpe := loadOutside(t, family)
			r := rand.New(rand.NewPCG(21, 22))
			nasty := newNasty(23, "<|eot_id|>", "<|im_start|>", "<s>", "</s>", "<|endoftext|>")
			n := markCounts{added: nasty.added}
			for i := range 200 / sampled() {
				n.grow(t, bpe, r, i%2 == 0, func() string {
					if r.IntN(3) == 0 {
						return nasty.text()
					}
					return texts[r.IntN(len(texts))]
				})
			}
			for i, text := range long {
				if i%sampled() != 0 {
					continue
				}
				var at []int
				for _, m := range everyKiB(text) {
					at = append(at, m.At)
				}
				for _, k := range n.checkMarks(t, bpe, text, true, textMark{}, at) {
					n.checkMarks(t, bpe, k.text+" and more", true, k, nil)
				}
			}
			n.report(t)
		})
	}
}

// TestMarkedTokens: the tokens before a text count once, those after it in no mark.
func TestMarkedTokens(t *testing.T) {
	bpe := parse(t, variant(t, map[string]any{"post_processor": map[string]any{
		"type": "TemplateProcessing", "pair": []any{}, "special_tokens": map[string]any{
			"<|end|>": map[string]any{"id": "<|end|>", "ids": []int{3, 4}, "tokens": []string{"a", "b"}},
		},
		"single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<|end|>", "type_id": 0}},
			map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			map[string]any{"SpecialToken": map[string]any{"id": "<|end|>", "type_id": 0}},
		},
	}}, nil))
	const text = "the wall of the harbour"
	plain := encode(t, bpe, text[:15], false)
	for _, special := range []bool{false, true} {
		before := 0
		if special {
			before = 2
		}
		marks := []tokenize.Mark{{At: 10}, {At: len(text)}}
		dst := []uint32{7, 7, 7}
		ids, kept, err := bpe.EncodeMarks(t.Context(), dst, tokenize.Passage{Text: text, Special: special, Marks: marks})
		want := []tokenize.Mark{{10, 8, before + len(encode(t, bpe, text[:8], false))}, {len(text), 15, before + len(plain)}}
		if err != nil || !slices.Equal(kept, want) || !slices.Equal(ids, append(dst, encode(t, bpe, text, special)...)) {
			t.Errorf("special %v: %v, %+v, %v, want %+v", special, ids, kept, err, want)
		}
		_, kept, err = bpe.EncodeMarks(t.Context(), dst, tokenize.Passage{Text: text, From: 8, Special: special, Marks: []tokenize.Mark{{At: len(text)}}})
		if want := []tokenize.Mark{{len(text), 15, want[1].Tokens - want[0].Tokens}}; err != nil || !slices.Equal(kept, want) {
			t.Errorf("special %v, from a mark: %+v, %v, want %+v", special, kept, err, want)
		}
	}
}

func TestMarksThatAreNone(t *testing.T) {
	bpe := loadTiny(t)
	const text = "the wall of the harbour"
	for _, c := range []struct {
		from int
		at   []int
	}{
		{8, []int{7}},
		{0, []int{9, 8}},
		{0, []int{-1}},
		{0, []int{len(text) + 1}},
		{-1, nil},
		{len(text) + 1, nil},
	} {
		var marks []tokenize.Mark
		for _, at := range c.at {
			marks = append(marks, tokenize.Mark{At: at})
		}
		dst := []uint32{7}
		if ids, kept, err := bpe.EncodeMarks(t.Context(), dst, tokenize.Passage{Text: text, From: c.from, Special: true, Marks: marks}); err == nil || kept != nil || !slices.Equal(ids, dst) {
			t.Errorf("from %d, marks at %v: %v, %v, %v", c.from, c.at, ids, kept, err)
		}
	}
	// A mark without a position to resume from is left out.
	marks := []tokenize.Mark{{At: 0}, {At: 3}, {At: 3}, {At: 12}, {At: 13}, {At: 13}}
	if _, kept, err := bpe.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: text, Special: true, Marks: marks}); err != nil || len(kept) != 1 || kept[0].At != 12 {
		t.Errorf("%+v, %v", kept, err)
	}
}

// TestMarksLookNotFar: the position is searched in the 256 bytes before a mark, then in half as
// many after a mark without one, down to 16.
func TestMarksLookNotFar(t *testing.T) {
	bpe := loadTiny(t)
	text, want := "the wall", []int(nil)
	var marks []tokenize.Mark
	mark := func(letters int, kept bool) {
		text += " " + strings.Repeat("a", letters-1)
		marks = append(marks, tokenize.Mark{At: len(text)})
		if kept {
			want = append(want, len(text))
		}
	}
	mark(256, true)
	mark(257, false)
	mark(129, false)
	mark(64, true)
	mark(129, false)
	mark(64, true)
	mark(128, true)
	for _, letters := range []int{257, 129, 65, 33, 17, 17, 17} {
		mark(letters, false)
	}
	mark(16, true)
	mark(33, false)
	_, kept, err := bpe.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: text, Special: true, Marks: marks})
	var got []int
	for _, m := range kept {
		got = append(got, m.At)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("kept at %v, want %v, %v", got, want, err)
	}
}

func everyKiB(text string) (marks []tokenize.Mark) {
	for at := 1 << 10; at <= len(text); at += 1 << 10 {
		marks = append(marks, tokenize.Mark{At: at})
	}
	return marks
}

// TestMarksTooLong: marks do not change whether a text is too long.
func TestMarksTooLong(t *testing.T) {
	if testing.Short() {
		t.Skip("texts of the longest length are not encoded: -short")
	}
	const most = tokenize.MaxText
	normalizer := func(raw string) *tokenize.BPE {
		return parse(t, variant(t, map[string]any{"normalizer": fromJSON[any](t, []byte(raw))}, nil))
	}
	spaces := `{"type":"Replace","pattern":{"String":"o"},"content":"ooo"}`
	for name, c := range map[string]struct {
		bpe        *tokenize.BPE
		unit       string
		long       int // bytes of the unit after normalization
		normalized bool
		end        string // not changed by the normalizer
	}{
		"as it comes":            {loadTiny(t), "a wall ", 7, false, "a"},
		"not UTF-8":              {loadTiny(t), "a wall \xff", 10, false, "a"},
		"replaced":               {normalizer(spaces), "tot wall ", 11, true, "a"},
		"replaced, with another": {normalizer(`{"type":"Sequence","normalizers":[` + spaces + `,{"type":"Replace","pattern":{"String":"ooo"},"content":"u"}]}`), "tot wall ", 11, true, "a"},
		"composed":               {normalizer(`{"type":"NFKC"}`), "\ufdfa wall ", 39, true, "a"},
	} {
		if !*long && name != "composed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, over := range []int{0, 1} {
				text := strings.Repeat("the sea ", 1000) // not changed by any of the normalizers
				left := most - len(text)
				text += strings.Repeat(c.unit, left/c.long) + strings.Repeat(c.end, left%c.long+over)
				marks := everyKiB(text)
				var want error
				if over > 0 {
					_, want = c.bpe.Encode(t.Context(), nil, text, true)
				}
				ids, kept, err := c.bpe.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: text, Special: true, Marks: marks})
				if fmt.Sprint(err) != fmt.Sprint(want) || errors.Is(err, tokenize.ErrTextTooLong) != (over > 0) {
					t.Fatalf("%d over: %v, without marks %v", over, err, want)
				}
				if over > 0 {
					if kept != nil || ids != nil {
						t.Errorf("%d ids, %d marks", len(ids), len(kept))
					}
				} else if len(kept) < len(marks)/2 {
					t.Errorf("%d of %d marks are kept", len(kept), len(marks))
				}
				// With a position near the end, the whole text still counts.
				from := c.bpe.Resume(text[:len(text)-100])
				if from == 0 {
					t.Fatal("nowhere to resume")
				}
				if _, _, err := c.bpe.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: text, From: from, Special: true}); fmt.Sprint(err) != fmt.Sprint(want) {
					t.Errorf("%d over, from %d: %v, want %v", over, from, err, want)
				}
			}
		})
	}
}

// TestSegmentsCountApart: each text between added tokens has its own bound of normalized bytes, as
// without marks.
func TestSegmentsCountApart(t *testing.T) {
	bpe := parse(t, variant(t, map[string]any{"normalizer": map[string]any{
		"type": "Replace", "pattern": map[string]any{"String": "_"}, "content": strings.Repeat("the wall ", 100),
	}}, nil))
	text := strings.Repeat("a "+strings.Repeat("_", 9000)+" a<|end|>", 3)
	marks := []tokenize.Mark{{At: 9010}, {At: 9020}, {At: len(text)}}
	for _, from := range []int{0, bpe.Resume(text[:9020])} {
		if _, kept, err := bpe.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: text, From: from, Special: true, Marks: marks[min(from, 2):]}); err != nil || len(kept) == 0 {
			t.Errorf("from %d: %d marks, %v", from, len(kept), err)
		}
	}
}

func TestMarksAllocateNothing(t *testing.T) {
	bpe := loadTiny(t)
	text := englishLike(strings.Fields(readProse(t)), 32<<10, rand.New(rand.NewPCG(1, 2)))
	marks, scratch := everyKiB(text), make([]tokenize.Mark, 0, 64)
	ids := make([]uint32, 0, len(text))
	allocs := testing.AllocsPerRun(20, func() {
		scratch = append(scratch[:0], marks...)
		if _, kept, err := bpe.EncodeMarks(t.Context(), ids, tokenize.Passage{Text: text, Special: true, Marks: scratch}); err != nil || len(kept) < 30 {
			t.Fatal(len(kept), err)
		}
	})
	if allocs > 20 { // the bound of TestEncodeAllocations; zero without the race detector
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzMarks(f *testing.F) {
	f.Add("the wall <|end|> of the harbour", " and more", 9, 12)
	f.Add("日本 \xff the wall", "\x97", 4, 7)
	all := forms(f)
	f.Fuzz(func(t *testing.T, text, more string, cut, next int) {
		if cut < 0 || next < cut || next > len(text) {
			return
		}
		for _, form := range all {
			var n markCounts
			for _, k := range n.checkMarks(t, form.bpe, text, true, textMark{}, []int{cut, next}) {
				grown := k.text + more
				for _, again := range n.checkMarks(t, form.bpe, grown, true, k, []int{len(k.text), len(grown)}) {
					n.checkMarks(t, form.bpe, again.text+text, true, again, nil)
				}
			}
		}
	})
}
