package syntax

// eachChild calls f on the places of e's subexpressions, in the order in which
// Jinja2's nodes (3.1.6, nodes.py) have them.
func eachChild(e Expr, f func(*Expr)) {
	switch e := e.(type) {
	case *TupleExpr:
		each(e.Items, f)
	case *ListExpr:
		each(e.Items, f)
	case *DictExpr:
		for i := range e.Keys {
			f(&e.Keys[i])
			f(&e.Values[i])
		}
	case *CondExpr:
		f(&e.Test)
		f(&e.Then)
		some(&e.Els, f)
	case *FilterExpr:
		f(&e.On)
		eachArg(&e.Args, f)
	case *TestExpr:
		f(&e.On)
		eachArg(&e.Args, f)
	case *CallExpr:
		f(&e.Fn)
		eachArg(&e.Args, f)
	case *GetattrExpr:
		f(&e.On)
	case *GetitemExpr:
		f(&e.On)
		f(&e.Key)
	case *SliceExpr:
		some(&e.Start, f)
		some(&e.Stop, f)
		some(&e.Step, f)
	case *ConcatExpr:
		each(e.Items, f)
	case *CompareExpr:
		f(&e.First)
		for i := range e.Rest {
			f(&e.Rest[i].On)
		}
	case *BinaryExpr:
		f(&e.Left)
		f(&e.Right)
	case *UnaryExpr:
		f(&e.On)
	case *BoolExpr:
		f(&e.Left)
		f(&e.Right)
	case *NotExpr:
		f(&e.On)
	}
}

func eachArg(a *ArgExprs, f func(*Expr)) {
	each(a.List, f)
	for i := range a.Named {
		f(&a.Named[i].Value)
	}
}

func each(list []Expr, f func(*Expr)) {
	for i := range list {
		f(&list[i])
	}
}

func some(e *Expr, f func(*Expr)) {
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
type nameWalk func(name string, use nameUse, at Pos)

func (w nameWalk) stmts(list []Stmt) {
	for _, st := range list {
		w.stmt(st)
	}
}

func (w nameWalk) stmt(st Stmt) {
	switch st := st.(type) {
	case *OutputStmt:
		for i := range st.Items {
			w.expr(&st.Items[i].Expr)
		}
	case *ForStmt:
		w.target(st.Target, nameStore)
		w.expr(&st.Iter)
		w.stmts(st.Body)
		w.stmts(st.Els)
		w.expr(&st.Test)
	case *IfStmt:
		w.expr(&st.Test)
		w.stmts(st.Body)
		for _, e := range st.Elifs {
			w.stmt(e)
		}
		w.stmts(st.Els)
	case *MacroStmt:
		w.macro(st.Params, st.Defaults, st.Body)
	case *CallStmt:
		eachChild(st.Call, w.expr)
		w.macro(st.Params, st.Defaults, st.Body)
	case *GenerationStmt:
		w.stmts(st.Body)
	case *SetStmt:
		w.target(st.Target, nameStore)
		w.expr(&st.Value)
	case *SetBlockStmt:
		w.target(st.Target, nameStore)
		w.stmts(st.Body)
	}
}

func (w nameWalk) macro(params []*NameExpr, defaults []Expr, body []Stmt) {
	for _, p := range params {
		w(p.Name, nameParam, p.Pos)
	}
	each(defaults, w.expr)
	w.stmts(body)
}

func (w nameWalk) target(t Expr, use nameUse) {
	switch t := t.(type) {
	case *NameExpr:
		w(t.Name, use, t.Pos)
	case *TupleExpr:
		for _, item := range t.Items {
			w.target(item, use)
		}
	}
}

func (w nameWalk) expr(e *Expr) {
	if n, ok := (*e).(*NameExpr); ok {
		w(n.Name, nameLoad, n.Pos)
	} else if *e != nil {
		eachChild(*e, w.expr)
	}
}

// undeclared returns which of the names the statements read before they are
// declared anywhere in them (compiler.py, find_undeclared).
func (r *resolver) undeclared(list []Stmt, names ...string) map[string]bool {
	open, found := make(map[string]bool), make(map[string]bool)
	for _, n := range names {
		open[n] = true
	}
	if r.budget < 0 {
		return found
	}
	nameWalk(func(name string, use nameUse, _ Pos) {
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
