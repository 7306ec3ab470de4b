package jinja

import "github.com/kvindex/kvindex/internal/jinja/exception"

// expr resolves an expression that is read.
func (r *resolver) expr(p *expr, s site) {
	switch e := (*p).(type) {
	case *nameExpr:
		r.nameRead(e, s)
		return
	case *filterExpr:
		r.filter(e, s)
		return
	case *testExpr:
		r.test(e, s)
		return
	case *callExpr:
		if of, ok := e.fn.(*getattrExpr); ok && listed(lackingAttrs["str"], of.name) {
			r.fail(e.pos, exception.Unsupported("str.%s", of.name))
		}
	case *condExpr:
		s.soft = true
	case *dictExpr:
		for _, key := range e.keys {
			switch key.(type) {
			case *listExpr, *dictExpr:
				// Of constants that is an error when Jinja2 compiles, else when it renders.
				r.fail(key.at(), exception.Unsupported("a list or a dict as a key"))
			}
		}
	case *getattrExpr:
		if on, ok := e.on.(*nameExpr); ok && on.name == "loop" && refusedOfLoop[e.name] {
			r.fail(e.pos, exception.Unsupported("loop.%s", e.name))
		}
		e.has = attrs(e.name)
	case *getitemExpr:
		if key, ok := e.key.(*constExpr); ok {
			e.name, _ = key.value.(string)
			e.has = attrs(e.name)
		}
	}
	eachChild(*p, func(child *expr) { r.expr(child, s) })
	if e, ok := (*p).(*binaryExpr); ok {
		r.binary(p, e)
	}
}

func (r *resolver) nameRead(e *nameExpr, s site) {
	t, v := r.ref(e.name, e.pos, s)
	t.sure = v != nil && s.sym.findLoad(v).kind == loadParam && !r.unset[v]
	e.ref = t
}

func attrs(name string) attrOf {
	if name == "" || name[0] == '_' {
		return attrOf{dict: true, str: true}
	}
	_, str := strMethods[name]
	return attrOf{dict: isDictAttr(name), str: str || name == "format" || listed(lackingAttrs["str"], name)}
}

func (r *resolver) binary(p *expr, e *binaryExpr) {
	if e.op != "+" {
		return
	}
	switch left := e.left.(type) {
	case *sumExpr:
		left.items = append(left.items, e.right)
		*p = left
	case *binaryExpr:
		if left.op == "+" {
			*p = &sumExpr{pos: left.pos, items: []expr{left.left, left.right, e.right}}
		}
	}
}

func (r *resolver) filter(e *filterExpr, s site) {
	if e.fn = filters[e.name]; e.fn == nil && (refusedFilters[e.name] || !s.soft) {
		r.fail(e.pos, exception.Unsupported("the filter %s", e.name))
	}
	r.expr(&e.on, s)
	eachArg(&e.args, func(child *expr) { r.expr(child, s) })
}

func (r *resolver) test(e *testExpr, s site) {
	if e.fn = tests[e.name]; e.fn == nil && (refusedTests[e.name] || !s.soft) {
		r.fail(e.pos, exception.Unsupported("the test %s", e.name))
	}
	r.expr(&e.on, s)
	eachArg(&e.args, func(child *expr) { r.expr(child, s) })
}
