package main

import (
	"errors"
	"fmt"
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// To build a test binary costs far more than most tests do. So the mutants of a
// package are woven into one: each function that they change is there once as it
// is and once as each of them has it, and the environment says which is called.

// chosenEnv is the variable with the number of the mutant that a woven binary
// is; it is none with 0.
const chosenEnv = "KVINDEX_MUTANT"

// chooser is added to each package with woven functions.
const chooser = `package %s

import (
	"os"
	"strconv"
)

var mutant__, _ = strconv.Atoi(os.Getenv("` + chosenEnv + `"))
`

// weaveAll builds a binary for the mutants of each package, less those that can
// only be built alone, and has it pass all of their tests while none is chosen.
func weaveAll(dir string, chosen []*trial) error {
	packages := make(map[string][]*trial)
	for _, t := range chosen {
		packages[t.pkg] = append(packages[t.pkg], t)
	}
	var failed []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for pkg, trials := range packages {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := weavePackage(filepath.Join(dir, "woven"+strings.ReplaceAll(pkg, "/", "_")), pkg, trials)
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

func weavePackage(bin, pkg string, trials []*trial) error {
	files, woven := make(map[string][]byte), []*trial(nil)
	for _, t := range trials {
		if t.err != nil || files[t.at.file] != nil {
			continue
		}
		src, in, err := weave(t.at.source, trials)
		if err != nil {
			return err
		}
		files[t.at.file] = src
		files[filepath.Join(filepath.Dir(t.at.file), "mutant__.go")] = fmt.Appendf(nil, chooser, t.at.Name.Name)
		woven = append(woven, in...)
	}
	if len(woven) == 0 {
		return nil
	}
	if err := build(bin, pkg, files); err != nil {
		fmt.Printf("%s: the mutants are built alone, together they do not build: %v\n", pkg, err)
		return nil
	}
	var tests []string
	for _, t := range woven {
		tests = append(tests, t.pattern())
	}
	begun := time.Now()
	if out, err := test(bin, pkg, 0, strings.Join(tests, "|"), 10*time.Minute); err != nil {
		return fmt.Errorf("%s: tests fail although nothing is broken: %w\n%s", pkg, err, out)
	}
	took := time.Since(begun)
	for _, t := range woven {
		t.woven, t.patience = bin, 10*time.Second+2*took
	}
	return nil
}

// weave returns a file with those of the mutants in it that it can have.
func weave(whole *source, trials []*trial) (src []byte, in []*trial, err error) {
	copies := make([]string, len(whole.Decls))
	cases := make([]string, len(whole.Decls))
	for _, t := range trials {
		if t.err != nil || t.at.source != whole {
			continue
		}
		i := t.at.decl
		body := t.body()
		if body == "" {
			continue
		}
		fn := function{whole, whole.Decls[i].(*ast.FuncDecl)}
		cases[i] += fmt.Sprintf("\tcase %d:\n\t\t%s\n", t.n, fn.call(t.n))
		copies[i] += fn.head(t.n) + body + "\n\n"
		in = append(in, t)
	}
	var b strings.Builder
	at := 0
	for i, d := range whole.Decls {
		if copies[i] == "" {
			continue
		}
		fn := function{whole, d.(*ast.FuncDecl)}
		from, to := whole.offset(d.Pos()), whole.offset(d.End())
		fmt.Fprintf(&b, "%s%s{\n\tswitch mutant__ {\n%s\tdefault:\n\t\t%s\n\t}\n}\n\n", whole.src[at:from], fn.dispatcher(), cases[i], fn.call(0))
		b.WriteString(copies[i] + fn.head(0) + whole.text(fn.decl.Body))
		at = to
	}
	b.WriteString(whole.src[at:])
	return []byte(b.String()), in, nil
}

// function is a function of a source.
type function struct {
	*source
	decl *ast.FuncDecl
}

// directive says whether the compiler is told something of a function.
func directive(f *ast.FuncDecl) bool {
	return f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:") })
}

// head returns all of copy n but its body.
func (f function) head(n int) string {
	name := f.decl.Name
	return f.src[f.offset(f.decl.Type.Pos()):f.offset(name.Pos())] + f.copy(n) + f.src[f.offset(name.End()):f.offset(f.decl.Body.Pos())]
}

func (f function) copy(n int) string { return fmt.Sprintf("%s__%d", f.decl.Name.Name, n) }

// dispatcher returns the head of the function in which all that it is given has
// a name.
func (f function) dispatcher() string {
	var b strings.Builder
	b.WriteString("func ")
	if f.decl.Recv != nil {
		fmt.Fprintf(&b, "(%s) ", f.fields(f.decl.Recv, "r"))
	}
	b.WriteString(f.decl.Name.Name)
	if f.decl.Type.TypeParams != nil {
		b.WriteString(f.text(f.decl.Type.TypeParams))
	}
	fmt.Fprintf(&b, "(%s) ", f.fields(f.decl.Type.Params, "p"))
	if f.decl.Type.Results != nil {
		b.WriteString(f.text(f.decl.Type.Results) + " ")
	}
	return b.String()
}

func (f function) fields(l *ast.FieldList, prefix string) string {
	var all []string
	f.each(l, prefix, func(name string, typ ast.Expr) { all = append(all, name+" "+f.text(typ)) })
	return strings.Join(all, ", ")
}

// call returns the statement that has copy n do the work.
func (f function) call(n int) string {
	callee := f.copy(n)
	if f.decl.Recv != nil {
		f.each(f.decl.Recv, "r", func(name string, _ ast.Expr) { callee = name + "." + callee })
	}
	var types, args []string
	if f.decl.Type.TypeParams != nil {
		f.each(f.decl.Type.TypeParams, "", func(name string, _ ast.Expr) { types = append(types, name) })
		callee += "[" + strings.Join(types, ", ") + "]"
	}
	f.each(f.decl.Type.Params, "p", func(name string, typ ast.Expr) {
		if _, ok := typ.(*ast.Ellipsis); ok {
			name += "..."
		}
		args = append(args, name)
	})
	call := fmt.Sprintf("%s(%s)", callee, strings.Join(args, ", "))
	if f.decl.Type.Results != nil {
		return "return " + call
	}
	return call
}

// each goes through a list of fields and names those that have none.
func (f function) each(l *ast.FieldList, prefix string, do func(name string, typ ast.Expr)) {
	i := 0
	for _, field := range l.List {
		for k := range max(len(field.Names), 1) {
			name := fmt.Sprintf("%s%d__", prefix, i)
			if len(field.Names) > 0 && field.Names[k].Name != "_" {
				name = field.Names[k].Name
			}
			do(name, field.Type)
			i++
		}
	}
}
