package jinja

import (
	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// eval evaluates an expression.
func (m *machine) eval(f *frame, e syntax.Expr) (Value, error) {
	switch e := e.(type) {
	case *syntax.ConstExpr:
		return e.Value, nil
	case *syntax.NameExpr:
		if v := *f.variable(e.Ref); !isMissing(v) {
			return v, nil
		}
	}
	if err := m.step(1); err != nil {
		return nil, syntax.Locate(err, m.source, e.At())
	}
	v, err := m.compute(f, e)
	if err != nil {
		return nil, syntax.Locate(err, m.source, e.At())
	}
	return v, nil
}

func (m *machine) compute(f *frame, e syntax.Expr) (Value, error) {
	switch e := e.(type) {
	case *syntax.NameExpr:
		if err := m.alloc(80); err != nil {
			return nil, err
		}
		return unassigned(e)
	case *syntax.GetattrExpr:
		on, err := m.eval(f, e.On)
		if err != nil {
			return nil, err
		}
		if d, ok := on.(*Dict); ok && !e.Has.Dict {
			if err := m.scan(lookup * len(e.Name)); err != nil {
				return nil, err
			}
			if v, ok := d.Lookup(e.Name); ok {
				return v, nil
			}
		}
		return m.getattr(on, e.Name)
	case *syntax.GetitemExpr:
		return m.evalItem(f, e)
	case *syntax.CompareExpr:
		return m.evalCompare(f, e)
	case *syntax.CallExpr:
		return m.evalCall(f, e)
	case *syntax.FilterExpr:
		v, err := m.eval(f, e.On)
		if err != nil {
			return nil, err
		}
		return m.evalFilter(f, e, v)
	case *syntax.TestExpr:
		return m.evalTest(f, e)
	case *syntax.BoolExpr:
		return m.evalBool(f, e)
	case *syntax.NotExpr:
		ok, err := m.isTrue(f, e.On)
		return !ok, err
	case *syntax.CondExpr:
		return m.evalCond(f, e)
	case *syntax.BinaryExpr:
		left, right, err := m.evalBoth(f, e.Left, e.Right)
		if err != nil {
			return nil, err
		}
		return m.binary(e.Op, left, right)
	case *syntax.SumExpr:
		return m.evalSum(f, e)
	case *syntax.ConcatExpr:
		return m.evalConcat(f, e)
	case *syntax.UnaryExpr:
		v, err := m.eval(f, e.On)
		if err != nil {
			return nil, err
		}
		return m.unary(e.Op, v)
	case *syntax.ListExpr:
		items, err := m.evalItems(f, e.Items)
		return &List{Items: items}, err
	case *syntax.TupleExpr:
		items, err := m.evalItems(f, e.Items)
		return &Tuple{Items: items}, err
	case *syntax.DictExpr:
		return m.evalDict(f, e)
	}
	return nil, exception.Unsupported("this expression")
}

// unassigned returns the value of a variable without one.
func unassigned(e *syntax.NameExpr) (Value, error) {
	if e.Ref.Sure {
		// There Jinja2 prints "missing", an object of its own.
		return nil, exception.Unsupported("the variable %s of a block that has ended", e.Name)
	}
	return &Undefined{Name: e.Name, Of: missing}, nil
}

func (m *machine) evalBoth(f *frame, a, b syntax.Expr) (x, y Value, err error) {
	if x, err = m.eval(f, a); err == nil {
		y, err = m.eval(f, b)
	}
	return x, y, err
}

// isTrue returns the truth of an expression.
func (m *machine) isTrue(f *frame, e syntax.Expr) (bool, error) {
	switch e := e.(type) {
	case *syntax.BoolExpr:
		ok, err := m.isTrue(f, e.Left)
		if err == nil {
			err = m.scan(stepParts / 4)
		}
		if err != nil || ok != e.And {
			return ok, err
		}
		return m.isTrue(f, e.Right)
	case *syntax.NotExpr:
		ok, err := m.isTrue(f, e.On)
		if err == nil {
			err = m.scan(stepParts / 4)
		}
		return !ok, err
	}
	v, err := m.look(f, e)
	if err != nil || isMissing(v) {
		return false, err
	}
	if b, ok := v.(bool); ok {
		return b, nil
	}
	return m.truth(v)
}

// look is eval, but it may return missing where that makes an Undefined.
func (m *machine) look(f *frame, e syntax.Expr) (Value, error) {
	var on syntax.Expr
	var name string
	var has syntax.Attrs
	item := false
	switch e := e.(type) {
	case *syntax.NameExpr:
		if !e.Ref.Sure {
			return *f.variable(e.Ref), nil
		}
	case *syntax.GetattrExpr:
		on, name, has = e.On, e.Name, e.Has
	case *syntax.GetitemExpr:
		if e.Name != "" {
			on, name, has, item = e.On, e.Name, e.Has, true
		}
	}
	if on == nil {
		return m.eval(f, e)
	}
	v, err := m.eval(f, on)
	if err == nil {
		err = m.scan(stepParts + lookup*len(name))
	}
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *Dict:
		if item || !has.Dict {
			if v, ok := v.Lookup(name); ok {
				return v, nil
			}
		}
		if !has.Dict {
			return missing, nil
		}
	case string:
		if !has.Str {
			return missing, nil
		}
	}
	if item {
		v, err = m.getitem(v, name)
	} else {
		v, err = m.getattr(v, name)
	}
	if err != nil {
		err = syntax.Locate(err, m.source, e.At())
	}
	return v, err
}

func (m *machine) evalItems(f *frame, list []syntax.Expr) ([]Value, error) {
	if err := m.alloc(16*len(list) + 24); err != nil {
		return nil, err
	}
	if err := m.step(len(list) / 4); err != nil {
		return nil, err
	}
	items := make([]Value, len(list))
	for i, e := range list {
		v, err := m.eval(f, e)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (m *machine) evalDict(f *frame, e *syntax.DictExpr) (Value, error) {
	d := &Dict{}
	for i := range e.Keys {
		key, value, err := m.evalBoth(f, e.Keys[i], e.Values[i])
		if err == nil {
			err = d.set(m, key, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return d, m.alloc(48)
}

func (m *machine) evalItem(f *frame, e *syntax.GetitemExpr) (Value, error) {
	on, err := m.eval(f, e.On)
	if err != nil {
		return nil, err
	}
	if d, ok := on.(*Dict); ok && e.Name != "" {
		if err := m.scan(lookup * len(e.Name)); err != nil {
			return nil, err
		}
		if v, ok := d.Lookup(e.Name); ok {
			return v, nil
		}
	}
	s, ok := e.Key.(*syntax.SliceExpr)
	if !ok {
		key, err := m.eval(f, e.Key)
		if err != nil {
			return nil, err
		}
		return m.getitem(on, key)
	}
	var bounds [3]Value
	for i, b := range [...]syntax.Expr{s.Start, s.Stop, s.Step} {
		if b == nil {
			continue
		}
		if bounds[i], err = m.eval(f, b); err != nil {
			return nil, err
		}
	}
	return m.slice(on, bounds[0], bounds[1], bounds[2])
}

func (m *machine) evalBool(f *frame, e *syntax.BoolExpr) (Value, error) {
	left, err := m.eval(f, e.Left)
	if err != nil {
		return nil, err
	}
	ok, err := m.truth(left)
	if err != nil || ok != e.And {
		return left, err
	}
	return m.eval(f, e.Right)
}

func (m *machine) evalCond(f *frame, e *syntax.CondExpr) (Value, error) {
	ok, err := m.isTrue(f, e.Test)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return m.eval(f, e.Then)
	case e.Els != nil:
		return m.eval(f, e.Els)
	}
	return &Undefined{Message: "the inline if-expression evaluated to false and no else section was defined.", Of: missing}, nil
}

func (m *machine) evalCompare(f *frame, e *syntax.CompareExpr) (Value, error) {
	if op := e.Rest[0].Op; len(e.Rest) == 1 && (op == "==" || op == "!=") {
		ok, err := m.evalEqual(f, e.First, e.Rest[0].On)
		return ok == (op == "=="), err
	}
	left, err := m.eval(f, e.First)
	if err != nil {
		return nil, err
	}
	for i := range e.Rest {
		if err := m.step(1); err != nil {
			return nil, err
		}
		right, err := m.eval(f, e.Rest[i].On)
		if err != nil {
			return nil, err
		}
		ok, err := m.compare(e.Rest[i].Op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

// evalEqual evaluates "a == b". All Undefineds are equal, and to nothing else.
func (m *machine) evalEqual(f *frame, a, b syntax.Expr) (bool, error) {
	x, err := m.look(f, a)
	if err != nil {
		return false, err
	}
	y, err := m.look(f, b)
	if err != nil {
		return false, err
	}
	if s, ok := x.(string); ok {
		if t, ok := y.(string); ok {
			return s == t, m.scan(2 * min(len(s), len(t)))
		}
	}
	if isMissing(x) {
		x, y = y, x
	}
	if isMissing(y) {
		_, undefined := x.(*Undefined)
		return undefined || isMissing(x), nil
	}
	return m.equal(x, y)
}

func (m *machine) compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return m.equal(a, b)
	case "!=":
		ok, err := m.equal(a, b)
		return !ok, err
	case "in":
		return m.contains(a, b)
	case "not in":
		ok, err := m.contains(a, b)
		return !ok, err
	}
	return m.less(op, a, b)
}

// evalSum evaluates "a + b + c ...". The strings that it begins with are joined
// above the output, to be copied once.
func (m *machine) evalSum(f *frame, e *syntax.SumExpr) (Value, error) {
	mark := len(m.out)
	last, err := m.sum(f, e, mark)
	if err != nil || len(m.out) == mark {
		return last, err
	}
	if err := m.write(last.(string)); err != nil {
		return nil, err
	}
	return m.captured(mark)
}

// sum writes the strings that a sum begins with and returns what is to be added to
// them: if any was written the last string, else the sum.
func (m *machine) sum(f *frame, e *syntax.SumExpr, mark int) (Value, error) {
	sum, err := m.eval(f, e.Items[0])
	for _, item := range e.Items[1:] {
		if err != nil {
			return nil, err
		}
		var v Value
		if v, err = m.eval(f, item); err != nil {
			return nil, err
		}
		if s, ok := sum.(string); ok {
			if _, ok := v.(string); ok {
				err = m.write(s)
				sum = v
				continue
			}
			if len(m.out) > mark {
				if err := m.write(s); err != nil {
					return nil, err
				}
				if sum, err = m.captured(mark); err != nil {
					return nil, err
				}
			}
		}
		sum, err = m.binary("+", sum, v)
	}
	return sum, err
}

// captured takes what was written since mark off the output.
func (m *machine) captured(mark int) (Value, error) {
	if err := m.alloc(len(m.out) - mark + 16); err != nil {
		return nil, err
	}
	s := string(m.out[mark:])
	m.out = m.out[:mark]
	return s, nil
}

func (m *machine) evalConcat(f *frame, e *syntax.ConcatExpr) (Value, error) {
	mark := len(m.out)
	if err := m.printConcat(f, e); err != nil {
		return nil, err
	}
	return m.captured(mark)
}

// printConcat writes "a ~ b ~ c": all are evaluated before the first is made a
// string.
func (m *machine) printConcat(f *frame, e *syntax.ConcatExpr) error {
	if err := m.step(len(e.Items) / 2); err != nil {
		return err
	}
	var few [8]Value
	items := few[:0]
	for _, item := range e.Items {
		v, err := m.eval(f, item)
		if err != nil {
			return err
		}
		items = append(items, v)
	}
	for _, v := range items {
		if err := m.printValue(v); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) evalFilter(f *frame, e *syntax.FilterExpr, v Value) (Value, error) {
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	fn, ok := e.Fn.(filterFunc)
	if !ok {
		return nil, exception.New("TemplateRuntimeError", "No filter named '%s' found.", e.Name)
	}
	if err := m.step(2); err != nil {
		return nil, err
	}
	return fn(m, v, args)
}

func (m *machine) evalTest(f *frame, e *syntax.TestExpr) (Value, error) {
	if e.Args.None() && (e.Name == "defined" || e.Name == "undefined") {
		v, err := m.look(f, e.On)
		_, undefined := v.(*Undefined)
		return (undefined || isMissing(v)) == (e.Name == "undefined"), err
	}
	v, err := m.eval(f, e.On)
	if err != nil {
		return nil, err
	}
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	fn, ok := e.Fn.(testFunc)
	if !ok {
		return nil, exception.New("TemplateRuntimeError", "No test named '%s' found.", e.Name)
	}
	return fn(m, v, args)
}

func (m *machine) evalCall(f *frame, e *syntax.CallExpr) (Value, error) {
	if fn, ok := e.Fn.(*syntax.GetattrExpr); ok {
		return m.evalMethod(f, e, fn)
	}
	fn, err := m.eval(f, e.Fn)
	if err != nil {
		return nil, err
	}
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	return m.call(fn, args)
}

// evalMethod evaluates on.name(args). To look a method up has no effect on these
// types, so that it may come behind the arguments.
func (m *machine) evalMethod(f *frame, e *syntax.CallExpr, fn *syntax.GetattrExpr) (Value, error) {
	on, err := m.eval(f, fn.On)
	if err != nil {
		return nil, err
	}
	late := false
	switch on.(type) {
	case string, *Dict, *List:
		late = true
	}
	var method Value
	if !late {
		if method, err = m.getattr(on, fn.Name); err != nil {
			return nil, syntax.Locate(err, m.source, fn.Pos)
		}
	}
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	if late {
		if err := m.step(2); err != nil {
			return nil, err
		}
		v, ok, err := m.callMethod(on, fn.Name, args)
		if ok || err != nil {
			return v, err
		}
		if method, err = m.getattr(on, fn.Name); err != nil {
			return nil, err
		}
	}
	return m.call(method, args)
}

// call calls a value.
func (m *machine) call(fn Value, args arguments) (Value, error) {
	c, ok := fn.(callable)
	if !ok {
		if u, ok := fn.(*Undefined); ok {
			return nil, u.fail()
		}
		return nil, exception.New("TypeError", "'%s' object is not callable", typeName(fn))
	}
	if err := m.enter(); err != nil {
		return nil, err
	}
	v, err := c.call(m, args)
	m.leave()
	return v, err
}

// evalArgs evaluates arguments, in Python's order.
func (m *machine) evalArgs(f *frame, a *syntax.ArgExprs) (arguments, error) {
	var args arguments
	var err error
	if len(a.List) > 0 {
		if args.list, err = m.evalItems(f, a.List); err != nil {
			return args, err
		}
	}
	if len(a.Named) > 0 {
		if err := m.alloc(32 * len(a.Named)); err != nil {
			return args, err
		}
		args.named = make([]argument, len(a.Named))
		for i := range a.Named {
			v, err := m.eval(f, a.Named[i].Value)
			if err != nil {
				return args, err
			}
			args.named[i] = argument{a.Named[i].Name, v}
		}
	}
	return args, nil
}
