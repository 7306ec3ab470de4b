package jinja

import (
	"github.com/kvindex/kvindex/internal/jinja/builtins"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// names are the filters, tests and attributes that templates may use.
var names = func() *syntax.Names {
	n := &syntax.Names{Filters: make(map[string]any), Tests: make(map[string]any), Attrs: attrsOf}
	for name, f := range builtins.Filters {
		n.Filters[name] = f
	}
	for name := range builtins.RefusedFilters {
		n.Filters[name] = nil
	}
	for name, f := range builtins.Tests {
		n.Tests[name] = f
	}
	for name := range builtins.RefusedTests {
		n.Tests[name] = nil
	}
	return n
}()

func attrsOf(name string) (a syntax.Attrs) {
	a.Dict, a.Str, a.RefusedOfStr = python.Attrs(name)
	return a
}

// Compile makes a Template of a source. It returns an error for a source that Jinja2 refuses,
// and ErrUnsupported for constructs that this package lacks.
func Compile(source string) (*Template, error) {
	tree, err := syntax.Resolve(source, names)
	if err != nil {
		return nil, err
	}
	t := &Template{source: source, tree: tree, globals: make([]python.Value, len(tree.Names))}
	for i, name := range tree.Names {
		v, ok := builtins.Global(name)
		if !ok {
			v = python.Missing
		}
		t.globals[i] = v
	}
	return t, nil
}

// WantsParts is [syntax.WantsParts] of the template.
func (t *Template) WantsParts(loops syntax.ContentLoops) bool {
	return syntax.WantsParts(t.source, loops)
}

// Render appends the template, rendered with the variables vars, to dst. With an
// error it returns dst as it was. A nil env is the zero Env.
func (t *Template) Render(dst []byte, vars *python.Dict, env *Env) ([]byte, error) {
	if env == nil {
		env = &Env{}
	}
	if vars == nil {
		vars = &python.Dict{}
	}
	m := &rendering{Machine: *python.NewMachine(env.Limits), source: t.source, context: make([]python.Value, len(t.tree.Names))}
	m.Now, m.Out = env.Now, dst[len(dst):]
	for i, name := range t.tree.Names {
		v, ok := vars.Lookup(name)
		if !ok {
			v = t.globals[i]
		}
		m.context[i] = v
	}
	f, err := m.newFrame(t.tree.Slots, nil)
	if err == nil {
		err = m.enterScope(f, &t.tree.Scope)
	}
	if err == nil {
		_, err = m.run(f, t.tree.Body)
	}
	if err != nil {
		return dst, err
	}
	return append(dst, m.Out...), nil
}
