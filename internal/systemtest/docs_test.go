package systemtest

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/internal/decls"
)

// TestWhereIsWhat: DESIGN.md names a file and a declaration in it for each
// behaviour, and both are there.
func TestWhereIsWhat(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| ([^|`]+) \\| `([^`]+\\.go)` \\| `([^`]+)` \\|$").FindAllStringSubmatch(read(t, "DESIGN.md"), -1)
	if len(rows) < 40 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		file, name := row[2], row[3]
		src, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", row[1], err)
			continue
		}
		found := false
		for _, d := range src.Decls {
			found = found || slices.Contains(decls.Names(d), name)
		}
		if !found {
			t.Errorf("%s: %s declares no %s", row[1], file, name)
		}
	}
}

// TestLinks: what the documents link to or name as a file of the repository is
// there.
func TestLinks(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, doc := range []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md"} {
		for _, l := range links.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join("../..", l[1])); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
