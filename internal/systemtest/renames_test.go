package systemtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// renames are the lines of docs/renames.txt.
type renames struct {
	rules []string            // for gofmt -r
	names map[string]string   // old to new
	gone  map[string]struct{} // in words
}

func readRenames(t *testing.T) renames {
	t.Helper()
	r := renames{names: make(map[string]string), gone: make(map[string]struct{})}
	for _, line := range strings.Split(read(t, "docs/renames.txt"), "\n") {
		switch old, now, _ := strings.Cut(line, " "); {
		case line == "" || line[0] == '#':
		case strings.Contains(line, " -> "):
			r.rules = append(r.rules, line)
		case strings.HasPrefix(now, "- "):
			r.gone[old] = struct{}{}
		default:
			r.names[old] = now
		}
	}
	return r
}

// TestRenames: each earlier public name exists, or docs/renames.txt has its new name.
func TestRenames(t *testing.T) {
	r, library := readRenames(t), loadAPI(t)
	there := func(name string) bool {
		pkg, rest, _ := strings.Cut(name, ".")
		return library[pkg][rest]
	}
	for _, name := range strings.Fields(read(t, "internal/systemtest/testdata/before/names.txt")) {
		_, gone := r.gone[name]
		if now, renamed := r.names[name]; !renamed && !gone && !there(name) {
			t.Errorf("%s is missing, and docs/renames.txt has no new name", name)
		} else if renamed && !there(now) {
			t.Errorf("%s is to be %s, which is not there", name, now)
		}
	}
}

// TestRenamesApply applies docs/renames.txt to the earlier examples, and builds them.
func TestRenamesApply(t *testing.T) {
	r := readRenames(t)
	for _, example := range []string{"router", "quickstart"} {
		files, err := filepath.Glob(filepath.Join("testdata/before", example, "*.go.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files of %s, %v", len(files), example, err)
		}
		dir, overlay := t.TempDir(), hidden(t, "../../examples/"+example)
		for _, file := range files {
			src, err := os.ReadFile(file)
			must(t, err)
			name := strings.TrimSuffix(filepath.Base(file), ".txt")
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(r.apply(string(src))), 0o600))
			overlay[absolute(t, filepath.Join("../../examples", example, name))] = filepath.Join(dir, name)
		}
		for _, rule := range r.rules {
			run(t, "gofmt", "-w", "-r", rule, dir)
		}
		text, err := json.Marshal(map[string]any{"Replace": overlay})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600))
		run(t, "go", "vet", "-overlay", filepath.Join(dir, "overlay.json"), "-tests=false", "../../examples/"+example)
	}
}

// hidden returns an overlay without the files of a present example, and with the tokenizer that an
// earlier one embeds.
func hidden(t *testing.T, dir string) map[string]string {
	t.Helper()
	overlay := make(map[string]string)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	for _, file := range files {
		overlay[absolute(t, file)] = ""
	}
	overlay[absolute(t, filepath.Join(dir, "tokenizer.json"))] = absolute(t, "../../tokenize/testdata/tiny.json")
	return overlay
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

var qualifiedName = regexp.MustCompile(`\b[a-z]\w*\.[A-Z]\w*\b`)

// apply renames the names of a file, and imports their present packages.
func (r renames) apply(src string) string {
	imports := ""
	src = qualifiedName.ReplaceAllStringFunc(src, func(old string) string {
		now, ok := r.names[old]
		if !ok {
			return old
		}
		if pkg, _, _ := strings.Cut(now, "."); !strings.Contains(src, `/`+pkg+`"`) && !strings.Contains(imports, pkg) {
			imports += "import \"github.com/kvindex/kvindex/" + pkg + "\"\n"
		}
		return now
	})
	clause := regexp.MustCompile(`(?m)^package \w+\n`)
	return clause.ReplaceAllString(src, "$0\n"+imports)
}
