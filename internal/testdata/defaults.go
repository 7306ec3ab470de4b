package testdata

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Default is a constant and the value that a configuration of zeros has in its
// place.
type Default struct {
	Name       string
	Zero, Want int64
}

// Defaults checks that each value is its constant, and that there is one for each
// constant of the package under test whose name begins with default or Default.
func Defaults(tb testing.TB, defaults ...Default) {
	tb.Helper()
	declared := constants(tb, "default")
	if len(declared) == 0 {
		tb.Error("the package has no constant default...")
	}
	for _, d := range defaults {
		if d.Zero != d.Want {
			tb.Errorf("%s is %d, zeros give %d", d.Name, d.Want, d.Zero)
		}
		i := slices.Index(declared, d.Name)
		if i < 0 {
			tb.Errorf("there is no constant %s, or it is checked twice", d.Name)
			continue
		}
		declared = slices.Delete(declared, i, i+1)
	}
	if len(declared) > 0 {
		tb.Errorf("nothing is known of %v", declared)
	}
}

// constants returns the constants of the package under test whose names in lower case begin with
// prefix.
func constants(tb testing.TB, prefix string) (names []string) {
	tb.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		tb.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			tb.Fatal(err)
		}
		for _, d := range f.Decls {
			c, ok := d.(*ast.GenDecl)
			if !ok || c.Tok != token.CONST {
				continue
			}
			for _, spec := range c.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(strings.ToLower(name.Name), prefix) {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}
