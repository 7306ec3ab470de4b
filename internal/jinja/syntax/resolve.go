package syntax

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A resolver finds where the variables of a template lie, as the compiler of Jinja2
// 3.1.6 does (compiler.py), and refuses what that or the interpreter refuses. It keeps
// the first error and goes on.
type resolver struct {
	source string
	known  *Names
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

func (r *resolver) fail(at Pos, err error) {
	if r.err == nil {
		r.err = Locate(err, r.source, at)
	}
}

// scope returns the actions at the beginning and the end of the scope of sym. Python
// forgets the variables of a function that ends, so they need no clearing.
func (r *resolver) scope(sym *symbols, endsFunction bool) Scope {
	var s Scope
	for v, l := range sym.loads {
		if !endsFunction {
			s.Clear = append(s.Clear, v.slot)
		}
		switch l.kind {
		case LoadParam:
		case LoadContext:
			s.Loads = append(s.Loads, Load{Slot: v.slot, Kind: LoadContext, Name: r.name(l.name)})
		case LoadAlias:
			s.Loads = append(s.Loads, Load{Slot: v.slot, Kind: LoadAlias, From: refFrom(sym.in, l.from)})
		case LoadMissing:
			s.Loads = append(s.Loads, Load{Slot: v.slot, Kind: LoadMissing})
		}
	}
	slices.SortFunc(s.Loads, func(a, b Load) int { return int(a.Slot - b.Slot) })
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
func refFrom(in *routine, v *variable) Ref {
	t := Ref{Slot: v.slot}
	for ; in != v.in; in = in.up {
		t.Up++
	}
	return t
}

// ref returns where a name of a site lies.
func (r *resolver) ref(name string, at Pos, s site) (Ref, *variable) {
	v := s.sym.find(name)
	if v == nil {
		r.fail(at, exception.New("AssertionError", "Tried to resolve a name to a reference that was unknown to the frame ('%s')", name))
		return Ref{}, nil
	}
	return refFrom(s.sym.in, v), v
}

func (r *resolver) stmts(list []Stmt, s site) {
	for _, st := range list {
		r.stmt(st, s)
	}
}

func (r *resolver) stmt(st Stmt, s site) {
	switch st := st.(type) {
	case *OutputStmt:
		for i := range st.Items {
			r.output(&st.Items[i], s)
		}
	case *ForStmt:
		r.forLoop(st, s)
	case *IfStmt:
		s.soft = true
		r.branch(st, s)
		for _, e := range st.Elifs {
			r.branch(e, s)
		}
		r.stmts(st.Els, s)
	case *MacroStmt:
		st.Scope.Name = st.Name
		r.macro(&st.Scope, definition{st.Params, st.Defaults, st.Body, st.Pos}, s)
		st.Ref, _ = r.ref(st.Name, st.Pos, s)
	case *CallStmt:
		r.macro(&st.Scope, definition{st.Params, st.Defaults, st.Body, st.Pos}, s)
		eachChild(st.Call, func(child *Expr) { r.expr(child, s) })
	case *GenerationStmt:
		r.macro(&st.Scope, definition{body: st.Body, Pos: st.Pos}, s)
	case *SetStmt:
		r.distinct(st.Target)
		r.target(st.Target, s)
		r.expr(&st.Value, s)
	case *SetBlockStmt:
		inner := site{sym: s.sym.inner(s.sym.in)}
		inner.sym.visit(st.Body)
		st.Scope = r.scope(inner.sym, false)
		r.stmts(st.Body, inner)
		r.target(st.Target, s)
	}
}

func (r *resolver) output(item *OutputItem, s site) {
	if item.Expr == nil {
		return
	}
	if c, ok := item.Expr.(*ConstExpr); ok {
		if text, ok := c.Value.(string); ok {
			*item = OutputItem{Text: text}
			return
		}
	}
	r.expr(&item.Expr, s)
}

func (r *resolver) branch(st *IfStmt, s site) {
	r.expr(&st.Test, s)
	r.stmts(st.Body, s)
}

func (r *resolver) forLoop(st *ForStmt, s site) {
	st.Scope.Loop = -1
	body := site{sym: s.sym.inner(s.sym.in)}
	if r.undeclared(st.Body, "loop")["loop"] {
		st.Scope.Loop = body.sym.declare("loop").slot
	}
	body.sym.declareTarget(st.Target)
	body.sym.visit(st.Body)
	els := site{sym: s.sym.inner(s.sym.in)}
	els.sym.visit(st.Els)
	r.condition(st, s)
	nameWalk(func(name string, use nameUse, at Pos) {
		if use == nameStore && name == "loop" {
			r.fail(at, exception.New("TemplateAssertionError", "Can't assign to special loop variable in for-loop target"))
		}
	}).stmt(st)
	r.target(st.Target, body)
	r.expr(&st.Iter, s)
	st.Scope.Body = r.scope(body.sym, false)
	r.stmts(st.Body, body)
	st.Scope.Els = r.scope(els.sym, false)
	r.stmts(st.Els, els)
	st.Scope.Inert = inert(st)
}

// inert reports whether the body of a for does nothing if its elements are strings:
// it only reads items that strings never have. Templates for messages that may
// be lists of parts go through strings so, character by character.
func inert(st *ForStmt) bool {
	target, ok := st.Target.(*NameExpr)
	if !ok || st.Test != nil || st.Scope.Loop >= 0 {
		return false
	}
	for _, s := range st.Body {
		branch, ok := s.(*IfStmt)
		if !ok || branch.Els != nil || !neverOfText(branch.Test, target.Name) {
			return false
		}
		for _, e := range branch.Elifs {
			if !neverOfText(e.Test, target.Name) {
				return false
			}
		}
	}
	return true
}

// neverOfText reports whether e is "name[key] == constant", with a key that is no
// attribute of a string.
func neverOfText(e Expr, name string) bool {
	c, ok := e.(*CompareExpr)
	if !ok || len(c.Rest) != 1 || c.Rest[0].Op != "==" {
		return false
	}
	item, ok := c.First.(*GetitemExpr)
	if !ok || item.Name == "" || item.Has.Str {
		return false
	}
	on, ok := item.On.(*NameExpr)
	_, constant := c.Rest[0].On.(*ConstExpr)
	return ok && on.Name == name && constant
}

// condition resolves the condition of a for, which is a function of its own with
// variables for the target of its own.
func (r *resolver) condition(st *ForStmt, s site) {
	if st.Test == nil {
		return
	}
	test := site{sym: s.sym.inner(newRoutine(s.sym.in))}
	test.sym.declareTarget(st.Target)
	test.sym.names(&st.Test)
	st.Scope.Test = r.scope(test.sym, true)
	st.Scope.TestTarget = copyTarget(st.Target)
	r.target(st.Scope.TestTarget, test)
	r.expr(&st.Test, test)
	st.Scope.TestSlots = len(test.sym.in.slots)
}

func copyTarget(t Expr) Expr {
	switch t := t.(type) {
	case *NameExpr:
		n := *t
		return &n
	case *TupleExpr:
		c := &TupleExpr{Pos: t.Pos}
		for _, item := range t.Items {
			c.Items = append(c.Items, copyTarget(item))
		}
		return c
	}
	return t
}

// A definition is that of a macro or call block.
type definition struct {
	params   []*NameExpr
	defaults []Expr // of the last params
	body     []Stmt
	Pos
}

// macro resolves a macro or call block.
func (r *resolver) macro(m *MacroScope, d definition, s site) {
	in := newRoutine(s.sym.in)
	inner := site{sym: s.sym.inner(in)}
	m.Pos, m.Body = d.Pos, d.body
	d.visit(inner.sym)
	used := r.undeclared(d.body, "caller", "kwargs", "varargs")
	for _, p := range d.params {
		if p.Name == "caller" || used[p.Name] {
			r.fail(p.Pos, exception.Unsupported("a parameter %s", p.Name))
		}
	}
	for _, name := range []string{"kwargs", "varargs"} {
		if used[name] {
			r.fail(d.Pos, exception.Unsupported("the variable %s of a macro", name))
		}
	}
	m.Caller = -1
	if used["caller"] {
		m.Caller = inner.sym.declare("caller").slot
		d.visit(inner.sym)
	}
	m.Scope = r.scope(inner.sym, true)
	r.params(m, d, inner)
	r.stmts(d.body, inner)
	m.Slots = len(in.slots)
}

func (d definition) visit(sym *symbols) {
	for _, p := range d.params {
		sym.declare(p.Name)
	}
	each(d.defaults, sym.names)
	sym.visit(d.body)
}

// params resolves the parameters of a macro and their defaults, each of which may
// use the parameters before it.
func (r *resolver) params(m *MacroScope, d definition, s site) {
	r.unset = make(map[*variable]bool)
	for v, l := range s.sym.loads {
		r.unset[v] = l.kind == LoadParam
	}
	first := len(d.params) - len(d.defaults)
	m.Params = make([]Param, len(d.params))
	for i, p := range d.params {
		v := s.sym.find(p.Name)
		m.Params[i] = Param{Name: p.Name, Slot: v.slot}
		if i >= first {
			m.Params[i].Def = d.defaults[i-first]
			r.expr(&m.Params[i].Def, s)
		}
		delete(r.unset, v)
	}
	r.unset = nil
}

// distinct refuses a target that has a name twice: CPython 3.11 leaves it the first value of a
// tuple, and other versions the last one.
func (r *resolver) distinct(target Expr) {
	seen := make(map[string]bool)
	nameWalk(func(name string, _ nameUse, at Pos) {
		if seen[name] {
			r.fail(at, exception.Unsupported("the variable %s twice in a target", name))
		}
		seen[name] = true
	}).target(target, nameStore)
}

// target resolves what is assigned to.
func (r *resolver) target(t Expr, s site) {
	switch t := t.(type) {
	case *NameExpr:
		t.Ref, _ = r.ref(t.Name, t.Pos, s)
		t.Ref.Sure = true
	case *NsRefExpr:
		t.Ref, _ = r.ref(t.Name, t.Pos, s)
	case *TupleExpr:
		for _, item := range t.Items {
			r.target(item, s)
		}
	}
}
