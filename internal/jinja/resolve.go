package jinja

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A resolver finds where the variables of a template lie, as the compiler of Jinja2
// 3.1.6 does (compiler.py), and refuses what that or this package refuses. It keeps
// the first error and goes on.
type resolver struct {
	source string
	names  map[string]int32 // of the variables that are taken from the host
	// budget is how many names may yet be gone through, or copied for the branches
	// of ifs, which grows with the square of a template's size.
	budget int
	// unset are the parameters whose defaults are not yet resolved, of the macro
	// that is being defined.
	unset map[*variable]bool
	err   error
}

// A site is the place of a node, for the compiler.
type site struct {
	sym  *symbols
	soft bool // of an if or inline if: Jinja2 lets a filter or test be unknown
}

func (r *resolver) fail(at pos, err error) {
	if r.err == nil {
		r.err = locate(err, r.source, at)
	}
}

// scope returns the actions at the beginning and the end of the scope of sym. Python
// forgets the variables of a function that ends, so they need no clearing.
func (r *resolver) scope(sym *symbols, endsFunction bool) scope {
	var s scope
	for v, l := range sym.loads {
		if !endsFunction {
			s.clear = append(s.clear, v.slot)
		}
		switch l.kind {
		case loadParam:
		case loadContext:
			s.loads = append(s.loads, load{slot: v.slot, kind: loadContext, name: r.name(l.name)})
		case loadAlias:
			s.loads = append(s.loads, load{slot: v.slot, kind: loadAlias, from: refFrom(sym.in, l.from)})
		case loadMissing:
			s.loads = append(s.loads, load{slot: v.slot, kind: loadMissing})
		}
	}
	slices.SortFunc(s.loads, func(a, b load) int { return int(a.slot - b.slot) })
	return s
}

// name returns the place of a name among those taken from the host.
func (r *resolver) name(name string) int32 {
	i, ok := r.names[name]
	if !ok {
		i = int32(len(r.names))
		r.names[name] = i
	}
	return i
}

// refFrom is where v lies, seen from a routine.
func refFrom(in *routine, v *variable) ref {
	t := ref{slot: v.slot}
	for ; in != v.in; in = in.up {
		t.up++
	}
	return t
}

// ref returns where a name of a site lies.
func (r *resolver) ref(name string, at pos, s site) (ref, *variable) {
	v := s.sym.find(name)
	if v == nil {
		r.fail(at, exception.New("AssertionError", "Tried to resolve a name to a reference that was unknown to the frame ('%s')", name))
		return ref{}, nil
	}
	return refFrom(s.sym.in, v), v
}

func (r *resolver) stmts(list []stmt, s site) {
	for _, st := range list {
		r.stmt(st, s)
	}
}

func (r *resolver) stmt(st stmt, s site) {
	switch st := st.(type) {
	case *outputStmt:
		for i := range st.items {
			r.output(&st.items[i], s)
		}
	case *forStmt:
		r.forLoop(st, s)
	case *ifStmt:
		s.soft = true
		r.branch(st, s)
		for _, e := range st.elifs {
			r.branch(e, s)
		}
		r.stmts(st.els, s)
	case *macroStmt:
		st.scope.name = st.name
		r.macro(&st.scope, definition{st.params, st.defaults, st.body, st.pos}, s)
		st.ref, _ = r.ref(st.name, st.pos, s)
	case *callStmt:
		r.macro(&st.scope, definition{st.params, st.defaults, st.body, st.pos}, s)
		eachChild(st.call, func(child *expr) { r.expr(child, s) })
	case *generationStmt:
		r.macro(&st.scope, definition{body: st.body, pos: st.pos}, s)
	case *setStmt:
		r.target(st.target, s)
		r.expr(&st.value, s)
	case *setBlockStmt:
		inner := site{sym: s.sym.inner(s.sym.in)}
		inner.sym.visit(st.body)
		st.scope = r.scope(inner.sym, false)
		r.stmts(st.body, inner)
		r.target(st.target, s)
	}
}

func (r *resolver) output(item *outputItem, s site) {
	if item.expr == nil {
		return
	}
	if c, ok := item.expr.(*constExpr); ok {
		if text, ok := c.value.(string); ok {
			*item = outputItem{text: text}
			return
		}
	}
	r.expr(&item.expr, s)
}

func (r *resolver) branch(st *ifStmt, s site) {
	r.expr(&st.test, s)
	r.stmts(st.body, s)
}

func (r *resolver) forLoop(st *forStmt, s site) {
	st.scope.loop = -1
	body := site{sym: s.sym.inner(s.sym.in)}
	if r.undeclared(st.body, "loop")["loop"] {
		st.scope.loop = body.sym.declare("loop").slot
	}
	body.sym.declareTarget(st.target)
	body.sym.visit(st.body)
	els := site{sym: s.sym.inner(s.sym.in)}
	els.sym.visit(st.els)
	r.condition(st, s)
	nameWalk(func(name string, use nameUse, at pos) {
		if use == nameStore && name == "loop" {
			r.fail(at, exception.New("TemplateAssertionError", "Can't assign to special loop variable in for-loop target"))
		}
	}).stmt(st)
	r.target(st.target, body)
	r.expr(&st.iter, s)
	st.scope.body = r.scope(body.sym, false)
	r.stmts(st.body, body)
	st.scope.els = r.scope(els.sym, false)
	r.stmts(st.els, els)
	st.scope.inert = inert(st)
}

// inert reports whether the body of a for does nothing if its elements are strings:
// it only reads items that strings never have. Templates for messages that may
// be lists of parts go through strings so, character by character.
func inert(st *forStmt) bool {
	target, ok := st.target.(*nameExpr)
	if !ok || st.test != nil || st.scope.loop >= 0 {
		return false
	}
	for _, s := range st.body {
		branch, ok := s.(*ifStmt)
		if !ok || branch.els != nil || !neverOfText(branch.test, target.name) {
			return false
		}
		for _, e := range branch.elifs {
			if !neverOfText(e.test, target.name) {
				return false
			}
		}
	}
	return true
}

// neverOfText reports whether e is "name[key] == constant", with a key that is no
// attribute of a string.
func neverOfText(e expr, name string) bool {
	c, ok := e.(*compareExpr)
	if !ok || len(c.rest) != 1 || c.rest[0].op != "==" {
		return false
	}
	item, ok := c.first.(*getitemExpr)
	if !ok || item.name == "" || item.has.str {
		return false
	}
	on, ok := item.on.(*nameExpr)
	_, constant := c.rest[0].on.(*constExpr)
	return ok && on.name == name && constant
}

// condition resolves the condition of a for, which is a function of its own with
// variables for the target of its own.
func (r *resolver) condition(st *forStmt, s site) {
	if st.test == nil {
		return
	}
	test := site{sym: s.sym.inner(newRoutine(s.sym.in))}
	test.sym.declareTarget(st.target)
	test.sym.names(&st.test)
	st.scope.test = r.scope(test.sym, true)
	st.scope.testTarget = copyTarget(st.target)
	r.target(st.scope.testTarget, test)
	r.expr(&st.test, test)
	st.scope.testSlots = len(test.sym.in.slots)
}

func copyTarget(t expr) expr {
	switch t := t.(type) {
	case *nameExpr:
		n := *t
		return &n
	case *tupleExpr:
		c := &tupleExpr{pos: t.pos}
		for _, item := range t.items {
			c.items = append(c.items, copyTarget(item))
		}
		return c
	}
	return t
}

// A definition is that of a macro or call block.
type definition struct {
	params   []*nameExpr
	defaults []expr // of the last params
	body     []stmt
	pos
}

// macro resolves a macro or call block.
func (r *resolver) macro(m *macroScope, d definition, s site) {
	in := newRoutine(s.sym.in)
	inner := site{sym: s.sym.inner(in)}
	m.pos, m.body = d.pos, d.body
	d.visit(inner.sym)
	used := r.undeclared(d.body, "caller", "kwargs", "varargs")
	for _, p := range d.params {
		if p.name == "caller" || used[p.name] {
			r.fail(p.pos, exception.Unsupported("a parameter %s", p.name))
		}
	}
	for _, name := range []string{"kwargs", "varargs"} {
		if used[name] {
			r.fail(d.pos, exception.Unsupported("the variable %s of a macro", name))
		}
	}
	m.caller = -1
	if used["caller"] {
		m.caller = inner.sym.declare("caller").slot
		d.visit(inner.sym)
	}
	m.scope = r.scope(inner.sym, true)
	r.params(m, d, inner)
	r.stmts(d.body, inner)
	m.slots = len(in.slots)
}

func (d definition) visit(sym *symbols) {
	for _, p := range d.params {
		sym.declare(p.name)
	}
	each(d.defaults, sym.names)
	sym.visit(d.body)
}

// params resolves the parameters of a macro and their defaults, each of which may
// use the parameters before it.
func (r *resolver) params(m *macroScope, d definition, s site) {
	r.unset = make(map[*variable]bool)
	for v, l := range s.sym.loads {
		r.unset[v] = l.kind == loadParam
	}
	first := len(d.params) - len(d.defaults)
	m.params = make([]param, len(d.params))
	for i, p := range d.params {
		v := s.sym.find(p.name)
		m.params[i] = param{name: p.name, slot: v.slot}
		if i >= first {
			m.params[i].def = d.defaults[i-first]
			r.expr(&m.params[i].def, s)
		}
		delete(r.unset, v)
	}
	r.unset = nil
}

// target resolves what is assigned to.
func (r *resolver) target(t expr, s site) {
	switch t := t.(type) {
	case *nameExpr:
		t.ref, _ = r.ref(t.name, t.pos, s)
		t.ref.sure = true
	case *nsRefExpr:
		t.ref, _ = r.ref(t.name, t.pos, s)
	case *tupleExpr:
		for _, item := range t.items {
			r.target(item, s)
		}
	}
}
