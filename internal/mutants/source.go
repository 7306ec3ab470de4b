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
	src  string
}

var fset = token.NewFileSet()

func parse(file string) (*source, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	return &source{f, file, string(src)}, err
}

func offset(p token.Pos) int { return fset.Position(p).Offset }

// pkgSource has the files of a package, and what those of its tests declare.
type pkgSource struct {
	files []*source
	tests map[string]bool
}

func load(dir string) (*pkgSource, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	p := &pkgSource{tests: make(map[string]bool)}
	for _, file := range files {
		s, err := parse(file)
		if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(file, "_test.go") {
			p.files = append(p.files, s)
			continue
		}
		for _, d := range s.Decls {
			for _, name := range decls.Names(d) {
				p.tests[name] = true
			}
		}
	}
	return p, err
}

// find looks for what the mutant breaks. A function that stands in several files,
// for other systems, is the one with the text in it.
func (t *trial) find(p *pkgSource, tests map[string]bool) error {
	dir, name := t.place()
	named, times := false, 0
	for _, s := range p.files {
		for _, d := range s.Decls {
			if !slices.Contains(decls.Names(d), name) {
				continue
			}
			named = true
			text := s.src[offset(d.Pos()):offset(d.End())]
			if n := strings.Count(text, t.old); n > 0 {
				times += n
				t.source, t.decl, t.from = s, d, offset(d.Pos())+strings.Index(text, t.old)
			}
		}
	}
	switch {
	case !named:
		return fmt.Errorf("nothing in %s is called %s", dir, name)
	case times != 1:
		return fmt.Errorf("%q stands in %s of %s %d times", t.old, name, dir, times)
	case !tests[t.function()]:
		return fmt.Errorf("%s has no test %s", t.pkg, t.function())
	}
	return nil
}

// place returns the package that the mutant breaks, and what in it.
func (m mutant) place() (dir, name string) {
	if dir, name, ok := strings.Cut(m.breaks, ":"); ok {
		return "./" + dir, name
	}
	return m.pkg, m.breaks
}

// function returns the function of the mutant's test, which may be one within it.
func (m mutant) function() string {
	name, _, _ := strings.Cut(m.test, "/")
	return name
}

// broken returns the text between two places of the file as the mutant has it.
func (t *trial) broken(from, to int) string {
	return t.src[from:t.from] + t.new + t.src[t.from+len(t.old):to]
}

// body returns a statement that does what the body of the function does as the
// mutant has it, or "" if something else is broken.
func (t *trial) body() string {
	fn, ok := t.decl.(*ast.FuncDecl)
	if !ok || t.err != nil || fn.Name.Name == "init" || t.from <= offset(fn.Body.Lbrace) {
		return ""
	}
	body := t.broken(offset(fn.Body.Lbrace), offset(fn.Body.End()))
	if r := fn.Type.Results; r != nil {
		return "return func() " + t.src[offset(r.Pos()):offset(r.End())] + body + "()"
	}
	return "func() " + body + "()\nreturn"
}

// weave returns the file with further beginnings of bodies.
func (s *source) weave(beginnings map[ast.Decl]string) string {
	var b strings.Builder
	at := 0
	for _, d := range s.Decls {
		if begins := beginnings[d]; begins != "" {
			body := offset(d.(*ast.FuncDecl).Body.Lbrace) + 1
			b.WriteString(s.src[at:body] + begins)
			at = body
		}
	}
	return b.String() + s.src[at:]
}
