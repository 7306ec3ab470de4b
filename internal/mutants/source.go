package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/decls"
)

// source is a parsed file.
type source struct {
	*ast.File
	file string // its path
	fset *token.FileSet
	src  string
}

func parse(file, src string) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution|parser.ParseComments)
	return &source{f, file, fset, src}, err
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

func (s *source) text(n ast.Node) string { return s.src[s.offset(n.Pos()):s.offset(n.End())] }

// pkgSource has the files of a package that are not tests.
type pkgSource []*source

func load(dir string) (p pkgSource, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s, err := parse(file, string(src))
		if err != nil {
			return nil, err
		}
		p = append(p, s)
	}
	if len(p) == 0 {
		return nil, fmt.Errorf("there is no package in %s", dir)
	}
	return p, nil
}

// place is the declaration that a mutant breaks, and where in it its text is.
type place struct {
	*source
	decl     int
	from, to int
}

// find returns what m breaks. A function that stands in several files, for other
// systems, is the one with the text in it.
func (p pkgSource) find(m mutant) (at place, err error) {
	named, times := false, 0
	for _, s := range p {
		for i, d := range s.Decls {
			if !slices.Contains(decls.Names(d), m.breaks) {
				continue
			}
			named = true
			text := s.text(d)
			if n := strings.Count(text, m.old); n > 0 {
				times += n
				from := s.offset(d.Pos()) + strings.Index(text, m.old)
				at = place{s, i, from, from + len(m.old)}
			}
		}
	}
	switch {
	case !named:
		return at, fmt.Errorf("nothing is called %s", m.breaks)
	case times != 1:
		return at, fmt.Errorf("%q stands in %s %d times", m.old, m.breaks, times)
	}
	return at, nil
}

// broken returns the file as the mutant has it.
func (t *trial) broken() []byte {
	return []byte(t.at.src[:t.at.from] + t.new + t.at.src[t.at.to:])
}

// body returns the body of the function as the mutant has it, or "" if it is not
// the body of a function, and that alone, that is another one.
func (t *trial) body() string {
	was, ok := t.at.Decls[t.at.decl].(*ast.FuncDecl)
	broken, err := parse(t.at.file, string(t.broken()))
	if !ok || err != nil || len(broken.Decls) != len(t.at.Decls) {
		return ""
	}
	is, ok := broken.Decls[t.at.decl].(*ast.FuncDecl)
	if !ok || was.Name.Name == "init" || directive(was) || (function{t.at.source, was}).head(0) != (function{broken, is}).head(0) {
		return ""
	}
	return broken.text(is.Body)
}
