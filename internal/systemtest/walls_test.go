package systemtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWalls bounds what a reader must have in mind at a time: the lines and files of the root and of
// each internal package, the fields of a struct, the parameters of a function. A list of settings
// or counts may be longer.
func TestWalls(t *testing.T) {
	const root = "../.."
	lists := []string{"config.Config", "main.settings", "main.options", "indextest.firings"}
	lines, files := make(map[string]int), make(map[string]int)
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		lines[dir] += bytes.Count(src, []byte("\n"))
		files[dir]++
		file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				s, ok := n.Type.(*ast.StructType)
				if name := file.Name.Name + "." + n.Name.Name; ok && entries(s.Fields) > 20 && !slices.Contains(lists, name) {
					t.Errorf("%s: %s has %d fields, 20 at most", path, name, entries(s.Fields))
				}
			case *ast.FuncDecl:
				if k := entries(n.Type.Params); k > 5 {
					t.Errorf("%s: %s has %d parameters, 5 at most", path, n.Name.Name, k)
				}
			}
			return true
		})
		return nil
	}))
	for dir, n := range lines {
		most := 3000
		if dir == root {
			most = 3500
		} else if !strings.Contains(dir, "/internal/") {
			continue
		}
		if n > most || files[dir] > 12 {
			t.Errorf("%s has %d lines in %d files, %d in 12 at most", dir, n, files[dir], most)
		}
	}
}

// entries is the number of names in a list of fields or parameters, and of those without a name.
func entries(l *ast.FieldList) (n int) {
	for _, f := range l.List {
		n += max(1, len(f.Names))
	}
	return n
}

// TestLayers: each package of the list in DESIGN.md imports only those behind it.
func TestLayers(t *testing.T) {
	_, list, _ := strings.Cut(read(t, "DESIGN.md"), "knows only those behind it in this list:")
	list, _, _ = strings.Cut(list, "\n## ")
	var layers []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(list, -1) {
		layers = append(layers, row[1])
	}
	if len(layers) < 9 {
		t.Fatalf("the list has %d packages", len(layers))
	}
	for i, layer := range layers {
		paths, err := filepath.Glob("../../internal/" + layer + "/*.go")
		must(t, err)
		if len(paths) == 0 {
			t.Errorf("there is no package %s", layer)
		}
		for _, path := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			must(t, err)
			for _, of := range file.Imports {
				name, ours := strings.CutPrefix(strings.Trim(of.Path.Value, `"`), "github.com/kvindex/kvindex/internal/")
				if ours && slices.Contains(layers[:i], name) && !strings.HasSuffix(path, "_test.go") {
					t.Errorf("%s imports %s, which is before it in the list", path, name)
				}
			}
		}
	}
}
