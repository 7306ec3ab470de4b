package chat_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

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

// What pydantic and vLLM's rules make of 250 random requests (testdata/record.py).
func TestShapes(t *testing.T) {
	type shape struct{ Messages, Tools, Err string }
	taken, refused := 0, 0
	for _, row := range recorded[struct {
		Body          string
		String, Parts shape
		Kept          *string
	}](t, "shapes.json") {
		for _, of := range []struct {
			name        string
			want        shape
			parts, keep bool
		}{
			{"string", row.String, false, false},
			{"parts", row.Parts, true, false},
			{"kept", shape{row.String.Messages, orNone(row.Kept), row.String.Err}, false, true},
		} {
			messages, tools, err := chat.Shapes(row.Body, of.parts, of.keep)
			if of.want.Err != "" || of.keep && row.Kept == nil {
				continue // what the engine refuses need not be refused here
			}
			if err != nil {
				refused++
				continue
			}
			taken++
			want, err := chat.ShowJSON(of.want.Messages)
			if err != nil {
				t.Fatal(err)
			}
			wantTools, err := chat.ShowJSON(of.want.Tools)
			if err != nil {
				t.Fatal(err)
			}
			if messages != want || tools != wantTools {
				t.Errorf("%s as %s:\n got %s, %s\nwant %s, %s", row.Body, of.name, messages, tools, want, wantTools)
			}
		}
	}
	t.Logf("%d taken, %d that the engine takes refused", taken, refused)
	if taken < 400 || refused > taken/8 {
		t.Errorf("%d taken, %d refused", taken, refused)
	}
}

func orNone(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func TestContinueFinal(t *testing.T) {
	type row struct {
		Template, Content string
		Out               *string
	}
	for _, row := range recorded[row](t, "final.json") {
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

// Of a final message in parts the last text is continued.
func TestContinueParts(t *testing.T) {
	m := newModel(t, "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", chat.Options{})
	r := parse(t, `{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b "}]}],`+
		`"add_generation_prompt":false,"continue_final_message":true}`)
	if x, err := m.Render(r, nil); err != nil || x.Text != "<a><b " {
		t.Errorf("%q, %v", text(x), err)
	}
}

func parse(tb testing.TB, body string) *chat.Request {
	tb.Helper()
	r, err := chat.Parse([]byte(body))
	if err != nil {
		tb.Fatalf("%s: %v", body, err)
	}
	return r
}
