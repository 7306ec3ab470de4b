package tokenize_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

func fromJSON[T any](tb testing.TB, text []byte) T {
	tb.Helper()
	var v T
	must(tb, json.Unmarshal(text, &v))
	return v
}

// outside caches the families that tests have loaded, by name.
var outside sync.Map

func loadOutside(tb testing.TB, family string) *tokenize.BPE {
	tb.Helper()
	path := testdata.Path(tb, "the "+family+" tokenizer", "tokens", family)
	if t, ok := outside.Load(family); ok {
		return t.(*tokenize.BPE)
	}
	t, err := tokenize.Load(path)
	must(tb, err)
	outside.Store(family, t)
	return t
}

func encode(tb testing.TB, t tokenize.Tokenizer, text string, special bool) []uint32 {
	tb.Helper()
	ids, err := t.Encode(context.Background(), nil, text, special)
	if err != nil {
		tb.Fatalf("Encode(%.60q): %v", text, err)
	}
	return ids
}

// supported are the families of the outside data that load.
var supported = []string{"gpt2", "llama3", "qwen25", "deepseekv3", "o200k", "tekken", "llama2", "phi3", "gemma2"}

func TestCorpusAsOfficial(t *testing.T) {
	var texts []string
	for _, row := range testdata.Rows[struct{ Text string }](t, testdata.Path(t, "4,200 texts of 28 languages for each family", "tokens", "corpus.jsonl.gz")) {
		texts = append(texts, row.Text)
	}
	for _, family := range tried() {
		t.Run(family, func(t *testing.T) {
			bpe := loadOutside(t, family)
			rows, compared, special := 0, 0, 0
			for row, want := range testdata.Each[struct{ IDs, Special []uint32 }](t, testdata.Path(t, "", "tokens", family, "expected.jsonl.gz"), sampled()) {
				rows++
				if row%sampled() != 0 {
					continue
				}
				compared++
				if want.Special != nil {
					special++
				}
				if got := encode(t, bpe, texts[row], false); !slices.Equal(got, want.IDs) {
					t.Errorf("row %d %.80q: got %v, want %v", row, texts[row], clip(got), clip(want.IDs))
				}
				if want.Special == nil {
					want.Special = want.IDs
				}
				if got := encode(t, bpe, texts[row], true); !slices.Equal(got, want.Special) {
					t.Errorf("row %d %.80q with special: got %v, want %v", row, texts[row], clip(got), clip(want.Special))
				}
			}
			t.Logf("%d rows, %d of them with special tokens; one in %d tried", rows, special, sampled())
			if rows != len(texts) || rows < 4000 {
				t.Errorf("%d rows for %d texts", rows, len(texts))
			}
			if family == "llama3" && special != compared {
				t.Errorf("%d of %d rows have a begin-of-text token", special, rows)
			}
		})
	}
}

func TestProbesAsOfficial(t *testing.T) {
	var texts []string
	for _, text := range testdata.Each[string](t, testdata.Path(t, "13,063 texts with every code point for each family", "tokens", "probes.jsonl.gz"), sampled()) {
		texts = append(texts, text)
	}
	for _, family := range tried() {
		t.Run(family, func(t *testing.T) {
			bpe := loadOutside(t, family)
			rows := 0
			for row, want := range testdata.Each[[]uint32](t, testdata.Path(t, "", "tokens", family, "probes.jsonl.gz"), sampled()) {
				rows++
				if row%sampled() != 0 {
					continue
				}
				if got := encode(t, bpe, texts[row], false); !slices.Equal(got, want) {
					t.Errorf("row %d %.80q: got %v, want %v", row, texts[row], clip(got), clip(want))
				}
			}
			t.Logf("%d rows, one in %d tried", rows, sampled())
			if rows != len(texts) || rows < 13000 {
				t.Errorf("%d rows for %d texts", rows, len(texts))
			}
		})
	}
}

func clip(ids []uint32) []uint32 { return ids[:min(len(ids), 40)] }
