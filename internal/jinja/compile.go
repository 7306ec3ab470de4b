package jinja

import "github.com/kvindex/kvindex/internal/jinja/exception"

// Compile makes a Template of a source. It returns an error for a source that Jinja2 refuses,
// and ErrUnsupported for constructs that this package lacks.
func Compile(source string) (*Template, error) {
	root, err := parse(source)
	if err != nil {
		return nil, err
	}
	r := &resolver{source: source, names: make(map[string]int32), budget: maxNames}
	t := &Template{source: source, root: root}
	r.template(t)
	if r.budget < 0 {
		return nil, exception.OverLimit("too many names in too many blocks")
	}
	if r.err != nil {
		return nil, r.err
	}
	t.names = make([]string, len(r.names))
	t.globals = make([]Value, len(r.names))
	for name, i := range r.names {
		v, ok := global(name)
		if !ok {
			v = missing
		}
		t.names[i], t.globals[i] = name, v
	}
	return t, nil
}

// maxNames bounds the search for the variables of a template.
const maxNames = 1 << 20

func (r *resolver) template(t *Template) {
	if r.undeclared(t.root.body, "self")["self"] {
		r.fail(t.root.pos, exception.Unsupported("the variable self"))
	}
	in := newRoutine(nil)
	sym := newSymbols(in, &r.budget)
	sym.visit(t.root.body)
	t.scope = r.scope(sym, true)
	r.stmts(t.root.body, site{sym: sym})
	t.slots = len(in.slots)
}

// Render appends the template, rendered with the variables vars, to dst. With an
// error it returns dst as it was. A nil env is the zero Env.
func (t *Template) Render(dst []byte, vars *Dict, env *Env) ([]byte, error) {
	if env == nil {
		env = &Env{}
	}
	if vars == nil {
		vars = &Dict{}
	}
	m := newMachine(env, dst[len(dst):])
	m.source = t.source
	m.context = make([]Value, len(t.names))
	for i, name := range t.names {
		v, ok := vars.Lookup(name)
		if !ok {
			v = t.globals[i]
		}
		m.context[i] = v
	}
	f, err := m.newFrame(t.slots, nil)
	if err == nil {
		err = m.enterScope(f, &t.scope)
	}
	if err == nil {
		_, err = m.run(f, t.root.body)
	}
	if err != nil {
		return dst, err
	}
	return append(dst, m.out...), nil
}
