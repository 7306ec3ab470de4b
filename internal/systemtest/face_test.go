package systemtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/decls"
)

// face is the permitted number of exported names and fields of each package: what users have to
// read. Raise a number only for a name that users call.
var face = map[string][2]int{
	".": {109, 120}, "stats": {12, 74},
	"events": {72, 127}, "events/discovery": {3, 6}, "events/k8s": {5, 15}, "events/publish": {8, 5},
	"index": {70, 81}, "index/indextest": {3, 3}, "index/redisindex": {5, 6},
	"epp": {2, 6}, "kvindextest": {20, 14}, "picker": {27, 26},
	"metrics/otel": {11, 0}, "metrics/prometheus": {14, 0},
	"route": {30, 17}, "route/field": {13, 19}, "route/load": {2, 3}, "offload": {75, 71}, "offload/backendtest": {1, 0},
	"tokenize": {28, 21}, "tokenize/hub": {6, 10}, "tokenize/chat": {25, 23}, "tokenize/chat/chatcheck": {6, 9},
	"tokenize/remote": {10, 10},
}

// TestFace counts exported functions, methods, types, variables, constants and fields; not the
// methods of interfaces.
func TestFace(t *testing.T) {
	const root = "../.."
	got := make(map[string][2]int)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case name == "internal", name == "examples", name == "bench", name == "testdata", strings.HasPrefix(name, ".") && path != root:
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		n := got[filepath.ToSlash(pkg)]
		for _, d := range file.Decls {
			n[0] += exported(decls.Names(d))
			n[1] += exported(fields(d))
		}
		got[filepath.ToSlash(pkg)] = n
		return err
	})
	must(t, err)
	var sum [2]int
	for pkg, n := range got {
		if most := face[pkg]; n[0] > most[0] || n[1] > most[1] {
			t.Errorf("package %s has %d names and %d fields, %d and %d at most", pkg, n[0], n[1], most[0], most[1])
		}
		sum[0], sum[1] = sum[0]+n[0], sum[1]+n[1]
	}
	t.Logf("%d names and %d fields in all", sum[0], sum[1])
}

// fields returns the fields of the structs that a declaration declares, as Type.Field.
func fields(d ast.Decl) (names []string) {
	g, _ := d.(*ast.GenDecl)
	if g == nil {
		return nil
	}
	for _, spec := range g.Specs {
		t, _ := spec.(*ast.TypeSpec)
		if t == nil {
			continue
		}
		if s, ok := t.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					names = append(names, t.Name.Name+"."+name.Name)
				}
			}
		}
	}
	return names
}

// exported counts names with only exported parts.
func exported(names []string) (n int) {
	for _, name := range names {
		of, member, _ := strings.Cut(name, ".")
		if token.IsExported(of) && (member == "" || token.IsExported(member)) {
			n++
		}
	}
	return n
}
