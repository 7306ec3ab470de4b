package tokenize_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// outside returns a file or folder of the outside test data, and skips the test
// if there is none.
func outside(tb testing.TB, what string, path ...string) string {
	tb.Helper()
	root := os.Getenv("KVINDEX_TESTDATA")
	if root == "" {
		tb.Skipf("KVINDEX_TESTDATA is not set: skipped %s", what)
	}
	return filepath.Join(append([]string{root}, path...)...)
}

// openGzip returns the unpacked text of a file.
func openGzip(tb testing.TB, path string) io.Reader {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	return z
}

// lines calls f with each line of a gzip'd file.
func lines(tb testing.TB, path string, f func(line []byte)) {
	tb.Helper()
	s := bufio.NewScanner(openGzip(tb, path))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		tb.Fatal(err)
	}
}

func decodeLine[T any](tb testing.TB, line []byte) T {
	tb.Helper()
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		tb.Fatal(err)
	}
	return v
}

func loadOutside(tb testing.TB, family string) *tokenize.BPE {
	tb.Helper()
	t, err := tokenize.Load(outside(tb, "the "+family+" tokenizer", "tokens", family))
	if err != nil {
		tb.Fatal(err)
	}
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
var supported = []string{"gpt2", "llama3"}

func TestCorpusAsOfficial(t *testing.T) {
	var texts []string
	lines(t, outside(t, "4,200 texts of 28 languages for each family", "tokens", "corpus.jsonl.gz"), func(line []byte) {
		texts = append(texts, decodeLine[struct{ Text string }](t, line).Text)
	})
	for _, family := range supported {
		t.Run(family, func(t *testing.T) {
			bpe := loadOutside(t, family)
			row, special := 0, 0
			lines(t, outside(t, "", "tokens", family, "expected.jsonl.gz"), func(line []byte) {
				want := decodeLine[struct{ IDs, Special []uint32 }](t, line)
				if got := encode(t, bpe, texts[row], false); !slices.Equal(got, want.IDs) {
					t.Errorf("row %d %.80q: got %v, want %v", row, texts[row], clip(got), clip(want.IDs))
				}
				if want.Special != nil {
					special++
				} else {
					want.Special = want.IDs
				}
				if got := encode(t, bpe, texts[row], true); !slices.Equal(got, want.Special) {
					t.Errorf("row %d %.80q with special: got %v, want %v", row, texts[row], clip(got), clip(want.Special))
				}
				row++
			})
			t.Logf("%d rows, %d of them with special tokens", row, special)
			if row != len(texts) || row < 4000 {
				t.Errorf("%d rows for %d texts", row, len(texts))
			}
			if family == "llama3" && special != row {
				t.Errorf("%d of %d rows have a begin-of-text token", special, row)
			}
		})
	}
}

func TestProbesAsOfficial(t *testing.T) {
	var texts []string
	lines(t, outside(t, "13,063 texts with every code point for each family", "tokens", "probes.jsonl.gz"), func(line []byte) {
		texts = append(texts, decodeLine[string](t, line))
	})
	for _, family := range supported {
		t.Run(family, func(t *testing.T) {
			bpe := loadOutside(t, family)
			row := 0
			lines(t, outside(t, "", "tokens", family, "probes.jsonl.gz"), func(line []byte) {
				want := decodeLine[[]uint32](t, line)
				if got := encode(t, bpe, texts[row], false); !slices.Equal(got, want) {
					t.Errorf("row %d %.80q: got %v, want %v", row, texts[row], clip(got), clip(want))
				}
				row++
			})
			t.Logf("%d rows", row)
			if row != len(texts) || row < 13000 {
				t.Errorf("%d rows for %d texts", row, len(texts))
			}
		})
	}
}

func clip(ids []uint32) []uint32 { return ids[:min(len(ids), 40)] }

func TestOtherFamiliesAreRefused(t *testing.T) {
	for family, want := range map[string]string{
		"qwen25":     `normalizer "NFC"`,
		"deepseekv3": `normalizer "Sequence"`,
		"gemma2":     `normalizer "Replace"`,
		"llama2":     `normalizer "Sequence"`,
		"phi3":       `normalizer "Sequence"`,
		"o200k":      `pre_tokenizer Split`,
		"tekken":     `pre_tokenizer Split pattern "[^\\r\\n`,
	} {
		t.Run(family, func(t *testing.T) {
			_, err := tokenize.Load(outside(t, "the "+family+" tokenizer, to be refused", "tokens", family))
			if !errors.Is(err, tokenize.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			t.Log(err)
		})
	}
}
