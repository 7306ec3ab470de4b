package syntax

import "github.com/kvindex/kvindex/internal/jinja/exception"

// RefusedOfLoop are the attributes of the loop variable that the interpreter lacks.
var RefusedOfLoop = map[string]bool{"changed": true, "cycle": true, "depth": true, "depth0": true}

// expr resolves an expression that is read.
func (r *resolver) expr(p *Expr, s site) {
	switch e := (*p).(type) {
	case *NameExpr:
		r.nameRead(e, s)
		return
	case *FilterExpr:
		r.filter(e, s)
		return
	case *TestExpr:
		r.test(e, s)
		return
	case *CallExpr:
		if of, ok := e.Fn.(*GetattrExpr); ok && r.known.Attrs(of.Name).RefusedOfStr {
			r.fail(e.Pos, exception.Unsupported("str.%s", of.Name))
		}
	case *CondExpr:
		s.soft = true
	case *DictExpr:
		for _, key := range e.Keys {
			switch key.(type) {
			case *ListExpr, *DictExpr:
				// Of constants that is an error when Jinja2 compiles, else when it renders.
				r.fail(key.At(), exception.Unsupported("a list or a dict as a key"))
			}
		}
	case *GetattrExpr:
		if on, ok := e.On.(*NameExpr); ok && on.Name == "loop" && RefusedOfLoop[e.Name] {
			r.fail(e.Pos, exception.Unsupported("loop.%s", e.Name))
		}
		e.Has = r.known.Attrs(e.Name)
	case *GetitemExpr:
		if key, ok := e.Key.(*ConstExpr); ok {
			e.Name, _ = key.Value.(string)
			e.Has = r.known.Attrs(e.Name)
		}
	}
	eachChild(*p, func(child *Expr) { r.expr(child, s) })
	if e, ok := (*p).(*BinaryExpr); ok {
		r.binary(p, e)
	}
}

func (r *resolver) nameRead(e *NameExpr, s site) {
	t, v := r.ref(e.Name, e.Pos, s)
	t.Sure = v != nil && s.sym.findLoad(v).kind == LoadParam && !r.unset[v]
	e.Ref = t
}

func (r *resolver) binary(p *Expr, e *BinaryExpr) {
	if e.Op != "+" {
		return
	}
	switch left := e.Left.(type) {
	case *SumExpr:
		left.Items = append(left.Items, e.Right)
		*p = left
	case *BinaryExpr:
		if left.Op == "+" {
			*p = &SumExpr{Pos: left.Pos, Items: []Expr{left.Left, left.Right, e.Right}}
		}
	}
}

func (r *resolver) filter(e *FilterExpr, s site) {
	fn, known := r.known.Filters[e.Name]
	if e.Fn = fn; fn == nil && (known || !s.soft) {
		r.fail(e.Pos, exception.Unsupported("the filter %s", e.Name))
	}
	r.expr(&e.On, s)
	eachArg(&e.Args, func(child *Expr) { r.expr(child, s) })
}

func (r *resolver) test(e *TestExpr, s site) {
	fn, known := r.known.Tests[e.Name]
	if e.Fn = fn; fn == nil && (known || !s.soft) {
		r.fail(e.Pos, exception.Unsupported("the test %s", e.Name))
	}
	r.expr(&e.On, s)
	eachArg(&e.Args, func(child *Expr) { r.expr(child, s) })
}
