package chat_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// tried reports whether a test compares recorded row i: all, or every fourth with -short.
func tried(i int) bool { return !testing.Short() || i%4 == 0 }

func recorded[T any](t *testing.T, name string) []T {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var rows []T
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// A row is a random request and a vLLM version's result (testdata/record.py).
type row struct {
	Engine, Body  string
	String, Parts struct{ Messages, Tools, Err string }
}

// outcomes counts accepted rows, rows refused although the engine accepts them, and rows accepted
// although the engine refuses them, which does no harm.
type outcomes struct{ taken, refused, lenient int }

func (n *outcomes) compare(t *testing.T, row row) {
	t.Helper()
	for _, parts := range []bool{false, true} {
		recorded := row.String
		if parts {
			recorded = row.Parts
		}
		messages, tools, err := chat.Shapes(row.Body, parts, row.Engine)
		switch {
		case recorded.Err != "" && err == nil:
			n.lenient++
			continue
		case recorded.Err != "":
			continue
		case errors.Is(err, chat.ErrMalformed):
			t.Errorf("%s takes %s (parts: %t): %v", row.Engine, row.Body, parts, err)
			continue
		case err != nil:
			n.refused++
			continue
		}
		n.taken++
		want, err := chat.ShowJSON(recorded.Messages)
		if err != nil {
			t.Fatal(err)
		}
		wantTools, err := chat.ShowJSON(recorded.Tools)
		if err != nil {
			t.Fatal(err)
		}
		if messages != want || tools != wantTools {
			t.Errorf("%s of %s (parts: %t):\n got %s, %s\nwant %s, %s", row.Engine, row.Body, parts, messages, tools, want, wantTools)
		}
	}
}

// The results of pydantic and vLLM's rules for 360 random requests, by eleven versions.
func TestShapes(t *testing.T) {
	var n outcomes
	for _, row := range recorded[row](t, "shapes.json") {
		n.compare(t, row)
	}
	t.Logf("%+v", n)
	if n.taken < 450 || n.refused > n.taken/8 {
		t.Errorf("%+v", n)
	}
	if dir := os.Getenv("KVINDEX_SHAPES"); dir != "" {
		manyShapes(t, dir)
	}
}

// manyShapes compares more requests, from a folder written by testdata/record.py.
func manyShapes(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rows in %s: %v", dir, err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var n outcomes
			rows := json.NewDecoder(f)
			for rows.More() {
				var row row
				if err := rows.Decode(&row); err != nil {
					t.Fatal(err)
				}
				n.compare(t, row)
			}
			t.Logf("%+v", n)
			if n.taken == 0 || n.refused > n.taken/8 {
				t.Errorf("%+v", n)
			}
		})
	}
}

func TestContinueFinal(t *testing.T) {
	for _, row := range recorded[struct {
		Template, Content string
		Out               *string
	}](t, "final.json") {
		m, err := chat.New(row.Template, nil, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(row.Content)
		if err != nil {
			t.Fatal(err)
		}
		r := parse(t, `{"messages":[{"role":"assistant","content":`+string(content)+`}],"add_generation_prompt":false,"continue_final_message":true}`)
		x, err := m.Render(r, nil)
		switch {
		case err != nil && row.Out != nil:
			t.Errorf("%s of %q: %v", row.Template, row.Content, err)
		case err == nil && (row.Out == nil || x.Text != *row.Out):
			t.Errorf("%s of %q gives %q", row.Template, row.Content, x.Text)
		}
	}
}

// The last text part of a final message is continued.
func TestContinueParts(t *testing.T) {
	m := newModel(t, "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", chat.Options{})
	r := parse(t, `{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b "}]}],`+
		`"add_generation_prompt":false,"continue_final_message":true}`)
	if x, err := m.Render(r, nil); err != nil || x.Text != "<a><b " {
		t.Errorf("%q, %v", text(x), err)
	}
}

func parse(tb testing.TB, body string) *chat.Prompt {
	tb.Helper()
	r, err := chat.Parse("", []byte(body))
	if err != nil {
		tb.Fatalf("%s: %v", body, err)
	}
	return r
}
