package jinja

// expr resolves an expression that is read.
func (r *resolver) expr(p *expr, s site) {
	switch (*p).(type) {
	case *constExpr, *nameExpr, *tupleExpr, *listExpr, *dictExpr, *sliceExpr:
	default:
		if !s.folded {
			r.fold(p)
			s.folded = true
		}
	}
	switch e := (*p).(type) {
	case *constExpr:
		r.literal(p)
		return
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
		r.args(&e.args, e.pos)
		if of, ok := e.fn.(*getattrExpr); ok && listed(unsupportedAttrs["str"], of.name) {
			r.fail(e.pos, unsupported("str.%s", of.name))
		}
	case *condExpr:
		s.soft = true
	case *getattrExpr:
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
	return attrOf{dict: isDictAttr(name), str: str || name == "format" || listed(unsupportedAttrs["Markup"], name)}
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
	if refusedFilters[e.name] {
		r.fail(e.pos, unsupported("the filter %s", e.name))
	}
	if e.fn = filters[e.name]; e.fn == nil && !s.soft {
		r.fail(e.pos, raise("TemplateAssertionError", "No filter named '%s'.", e.name))
	}
	if e.on != nil {
		r.expr(&e.on, s)
	}
	r.args(&e.args, e.pos)
	eachArg(&e.args, func(child *expr) { r.expr(child, s) })
}

func (r *resolver) test(e *testExpr, s site) {
	if e.fn = tests[e.name]; e.fn == nil && !s.soft {
		r.fail(e.pos, raise("TemplateAssertionError", "No test named '%s'.", e.name))
	}
	r.expr(&e.on, s)
	r.args(&e.args, e.pos)
	eachArg(&e.args, func(child *expr) { r.expr(child, s) })
}

// blockFilter resolves the filters of a filter or set block, of which the innermost
// has no operand.
func (r *resolver) blockFilter(e *filterExpr, s site) {
	var p expr = e
	r.fold(&p)
	s.folded = true
	r.filter(e, s)
}

func (r *resolver) callBlock(st *callStmt, s site) {
	var p expr = st.call
	r.fold(&p)
	s.folded = true
	r.args(&st.call.args, st.call.pos)
	eachChild(st.call, func(child *expr) { r.expr(child, s) })
}

// args refuses what Jinja2 passes in a way of its own: of arguments named as
// Python's keywords those of "**" take the place, where else both are an error.
func (r *resolver) args(a *argExprs, at pos) {
	for _, arg := range a.named {
		if a.stars != nil && pythonKeywords[arg.name] {
			r.fail(at, unsupported("the argument %s together with **", arg.name))
		}
	}
}

var pythonKeywords = map[string]bool{
	"False": true, "None": true, "True": true, "and": true, "as": true, "assert": true, "async": true,
	"await": true, "break": true, "class": true, "continue": true, "def": true, "del": true,
	"elif": true, "else": true, "except": true, "finally": true, "for": true, "from": true,
	"global": true, "if": true, "import": true, "in": true, "is": true, "lambda": true,
	"nonlocal": true, "not": true, "or": true, "pass": true, "raise": true, "return": true,
	"try": true, "while": true, "with": true, "yield": true,
}
