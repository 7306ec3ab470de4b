package jinja

// eachChild calls f on the places of e's subexpressions, in the order in which
// Jinja2's nodes (3.1.6, nodes.py) have them.
func eachChild(e expr, f func(*expr)) {
	switch e := e.(type) {
	case *tupleExpr:
		each(e.items, f)
	case *listExpr:
		each(e.items, f)
	case *dictExpr:
		for i := range e.keys {
			f(&e.keys[i])
			f(&e.values[i])
		}
	case *condExpr:
		f(&e.test)
		f(&e.then)
		some(&e.els, f)
	case *filterExpr:
		f(&e.on)
		eachArg(&e.args, f)
	case *testExpr:
		f(&e.on)
		eachArg(&e.args, f)
	case *callExpr:
		f(&e.fn)
		eachArg(&e.args, f)
	case *getattrExpr:
		f(&e.on)
	case *getitemExpr:
		f(&e.on)
		f(&e.key)
	case *sliceExpr:
		some(&e.start, f)
		some(&e.stop, f)
		some(&e.step, f)
	case *concatExpr:
		each(e.items, f)
	case *compareExpr:
		f(&e.first)
		for i := range e.rest {
			f(&e.rest[i].on)
		}
	case *binaryExpr:
		f(&e.left)
		f(&e.right)
	case *unaryExpr:
		f(&e.on)
	case *boolExpr:
		f(&e.left)
		f(&e.right)
	case *notExpr:
		f(&e.on)
	}
}

func eachArg(a *argExprs, f func(*expr)) {
	each(a.list, f)
	for i := range a.named {
		f(&a.named[i].value)
	}
}

func each(list []expr, f func(*expr)) {
	for i := range list {
		f(&list[i])
	}
}

func some(e *expr, f func(*expr)) {
	if *e != nil {
		f(e)
	}
}

// A nameUse is how a name stands in a template: Jinja2's ctx.
type nameUse uint8

const (
	nameLoad nameUse = iota
	nameStore
	nameParam
)

// A nameWalk goes through all names of statements, those of scopes within them
// too, in the order of Jinja2's nodes.
type nameWalk func(name string, use nameUse, at pos)

func (w nameWalk) stmts(list []stmt) {
	for _, st := range list {
		w.stmt(st)
	}
}

func (w nameWalk) stmt(st stmt) {
	switch st := st.(type) {
	case *outputStmt:
		for i := range st.items {
			w.expr(&st.items[i].expr)
		}
	case *forStmt:
		w.target(st.target, nameStore)
		w.expr(&st.iter)
		w.stmts(st.body)
		w.stmts(st.els)
		w.expr(&st.test)
	case *ifStmt:
		w.expr(&st.test)
		w.stmts(st.body)
		for _, e := range st.elifs {
			w.stmt(e)
		}
		w.stmts(st.els)
	case *macroStmt:
		w.macro(st.params, st.defaults, st.body)
	case *callStmt:
		eachChild(st.call, w.expr)
		w.macro(st.params, st.defaults, st.body)
	case *generationStmt:
		w.stmts(st.body)
	case *setStmt:
		w.target(st.target, nameStore)
		w.expr(&st.value)
	case *setBlockStmt:
		w.target(st.target, nameStore)
		w.stmts(st.body)
	}
}

func (w nameWalk) macro(params []*nameExpr, defaults []expr, body []stmt) {
	for _, p := range params {
		w(p.name, nameParam, p.pos)
	}
	each(defaults, w.expr)
	w.stmts(body)
}

func (w nameWalk) target(t expr, use nameUse) {
	switch t := t.(type) {
	case *nameExpr:
		w(t.name, use, t.pos)
	case *tupleExpr:
		for _, item := range t.items {
			w.target(item, use)
		}
	}
}

func (w nameWalk) expr(e *expr) {
	if n, ok := (*e).(*nameExpr); ok {
		w(n.name, nameLoad, n.pos)
	} else if *e != nil {
		eachChild(*e, w.expr)
	}
}

// undeclared returns which of the names the statements read before they are
// declared anywhere in them (compiler.py, find_undeclared).
func (r *resolver) undeclared(list []stmt, names ...string) map[string]bool {
	open, found := make(map[string]bool), make(map[string]bool)
	for _, n := range names {
		open[n] = true
	}
	if r.budget < 0 {
		return found
	}
	nameWalk(func(name string, use nameUse, _ pos) {
		r.budget--
		if !open[name] {
			return
		}
		if use == nameLoad {
			found[name] = true
		} else {
			delete(open, name)
		}
	}).stmts(list)
	return found
}
