package jinja

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/testdata"
)

// TestConformance renders every conversation by every real template: what Jinja2
// rendered byte for byte, what it refused as an error.
func TestConformance(t *testing.T) {
	templates := testdata.Glob(t, "real templates", "templates", "*.jinja")
	cases := readCases(t)
	env := &Env{Now: func() time.Time { return time.Date(2026, 3, 7, 9, 5, 3, 0, time.UTC) }}
	rendered, failed := 0, 0
	for _, path := range templates {
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		source, err := os.ReadFile(path)
		must(t, err)
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "expected", name+".json"))
		must(t, err)
		var expected map[string]struct{ Out, Err *string }
		if err := json.Unmarshal(text, &expected); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		compiled, err := Compile(string(source))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range cases.Len() {
			key, vars := cases.At(i)
			want, ok := expected[key.(string)]
			out, err := compiled.Render(nil, vars.(*python.Dict), env)
			switch {
			case !ok || (want.Out == nil) == (want.Err == nil):
				t.Errorf("%s: %s: nothing is recorded", name, key)
			case want.Err != nil && err == nil:
				t.Errorf("%s: %s: no error, but Jinja2's is %s", name, key, *want.Err)
			case want.Err != nil:
				failed++
			case err != nil:
				t.Errorf("%s: %s: %v", name, key, err)
			case string(out) != *want.Out:
				t.Errorf("%s: %s:\n got %q\nwant %q", name, key, out, *want.Out)
			default:
				rendered++
			}
		}
	}
	total := len(templates) * cases.Len()
	t.Logf("%d templates by %d conversations: %d rendered byte for byte, %d errors as there, %d wrong", len(templates), cases.Len(), rendered, failed, total-rendered-failed)
	if rendered+failed != total {
		t.Error("not all are right")
	}
}

// readCases reads the conversations, by name the variables of each.
func readCases(t *testing.T) *python.Dict {
	text, err := os.ReadFile(testdata.Path(t, "conversations", "templates", "cases.json"))
	must(t, err)
	cases, err := valueOfJSON(text)
	must(t, err)
	return cases.(*python.Dict)
}
