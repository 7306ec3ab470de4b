package tokenize_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// An officialCase is a case of testdata/official.json: changes to tiny.json, and the ids that the
// official library then gives. testdata/record.js recorded the ids and explains the changes.
type officialCase struct {
	Name   string
	Set    map[string]any
	Model  map[string]any
	Drop   []string
	Vocab  map[string]any
	Merges []any
	Legacy bool
	Rows   []struct {
		Text         string
		IDs, Special []uint32
	}
}

func (c officialCase) file(tb testing.TB) []byte {
	file := fromJSON[map[string]any](tb, readTiny(tb))
	for name, v := range c.Set {
		file[name] = v
	}
	model := file["model"].(map[string]any)
	for name, v := range c.Model {
		model[name] = v
	}
	for _, name := range c.Drop {
		delete(model, name)
	}
	for token, id := range c.Vocab {
		model["vocab"].(map[string]any)[token] = id
	}
	merges := append(model["merges"].([]any), c.Merges...)
	if c.Legacy {
		for i, m := range merges {
			merges[i] = m.([]any)[0].(string) + " " + m.([]any)[1].(string)
		}
		merges = append([]any{"#version: 0.2"}, merges...)
	}
	model["merges"] = merges
	b, err := json.Marshal(file)
	must(tb, err)
	return b
}

func TestCasesAsOfficial(t *testing.T) {
	data, err := os.ReadFile("testdata/official.json")
	must(t, err)
	rows := 0
	for _, c := range fromJSON[[]officialCase](t, data) {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			bpe, err := tokenize.Parse(bytes.NewReader(c.file(t)))
			must(t, err)
			for _, row := range c.Rows {
				if got := encode(t, bpe, row.Text, false); !slices.Equal(got, row.IDs) {
					t.Errorf("%q: got %v, want %v", row.Text, got, row.IDs)
				}
				if got := encode(t, bpe, row.Text, true); !slices.Equal(got, row.Special) {
					t.Errorf("%q with special: got %v, want %v", row.Text, got, row.Special)
				}
				rows++
			}
		})
	}
	t.Logf("%d rows", rows)
	if rows < 300 {
		t.Errorf("only %d rows", rows)
	}
}
