package tokenize_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// families is testdata/families.json.gz. record_families.js, which makes it, explains the fields.
type families struct {
	Bases map[string]struct {
		Vocab  map[string]int
		Merges [][2]string
	}
	Cases []familyCase
	Rows  []struct {
		Text    string
		Results []struct {
			IDs   []uint32
			Cases []int
		}
	}
}

type familyCase struct {
	Name, Base string
	File       map[string]any
	Drop       []string
	Vocab      map[string]int
	Legacy     bool
	Around     [2][]uint32
}

// A familyRow is a text and its ids without special tokens.
type familyRow struct {
	text string
	ids  []uint32
}

func readFamilies(tb testing.TB) (families, [][]familyRow) {
	tb.Helper()
	var f families
	must(tb, json.NewDecoder(testdata.Open(tb, "testdata/families.json.gz")).Decode(&f))
	rows := make([][]familyRow, len(f.Cases))
	for _, row := range f.Rows {
		for _, result := range row.Results {
			for _, number := range result.Cases {
				rows[number] = append(rows[number], familyRow{row.Text, result.IDs})
			}
		}
	}
	return f, rows
}

func (f families) file(tb testing.TB, c familyCase) []byte {
	tb.Helper()
	vocab := map[string]int{}
	for _, tokens := range []map[string]int{f.Bases[c.Base].Vocab, c.Vocab} {
		for token, id := range tokens {
			if !slices.Contains(c.Drop, token) {
				vocab[token] = id
			}
		}
	}
	var merges []any
	if c.Legacy {
		merges = append(merges, "#version: 0.2")
	}
	for _, m := range f.Bases[c.Base].Merges {
		_, left := vocab[m[0]]
		_, right := vocab[m[1]]
		_, joined := vocab[m[0]+m[1]]
		switch {
		case !left || !right || !joined:
		case c.Legacy:
			merges = append(merges, m[0]+" "+m[1])
		default:
			merges = append(merges, m)
		}
	}
	model := c.File["model"].(map[string]any)
	model["vocab"], model["merges"] = vocab, merges
	b, err := json.Marshal(c.File)
	must(tb, err)
	return b
}

// refusedFamilies are the cases that do not load: a part of the name, and a part of the error.
var refusedFamilies = map[string]string{
	"lowercase":                             `"Lowercase"`,
	"accents stripped":                      `"StripAccents"`,
	"a run of spaces and one that takes it": "",
	// The text removed before such a segment decides whether it is the first one.
	"Metaspace first after": "first",
	"added id":              "<|x|>",
	"the id of the token":   "both have id",
}

func refusedFamily(name string) (names string, ok bool) {
	for part, names := range refusedFamilies {
		if strings.Contains(name, part) {
			return names, true
		}
	}
	return "", false
}

func TestFamiliesAsOfficial(t *testing.T) {
	f, rows := readFamilies(t)
	exact, refused := 0, 0
	for number, c := range f.Cases {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			bpe, err := tokenize.Parse(bytes.NewReader(f.file(t, c)))
			if names, ok := refusedFamily(c.Name); ok {
				refused++
				if err == nil || !errors.Is(err, tokenize.ErrUnsupported) && !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), names) {
					t.Errorf("got %v, want an error that names %s", err, names)
				}
				return
			}
			must(t, err)
			for _, row := range rows[number] {
				if got := encode(t, bpe, row.text, false); !slices.Equal(got, row.ids) {
					t.Errorf("%.200q: got %v, want %v", row.text, clip(got), clip(row.ids))
				}
				want := slices.Concat(c.Around[0], row.ids, c.Around[1])
				if got := encode(t, bpe, row.text, true); !slices.Equal(got, want) {
					t.Errorf("%.200q with special: got %v, want %v", row.text, clip(got), clip(want))
				}
				exact++
			}
		})
	}
	t.Logf("%d rows of %d files, %d more files refused", exact, len(f.Cases)-refused, refused)
	if exact < 50_000 {
		t.Errorf("only %d rows", exact)
	}
}
