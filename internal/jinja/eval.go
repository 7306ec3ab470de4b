package jinja

import (
	"github.com/kvindex/kvindex/internal/jinja/builtins"
	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// eval evaluates an expression.
func (m *rendering) eval(f *frame, e syntax.Expr) (python.Value, error) {
	switch e := e.(type) {
	case *syntax.ConstExpr:
		return e.Value, nil
	case *syntax.NameExpr:
		if v := *f.variable(e.Ref); !python.IsMissing(v) {
			return v, nil
		}
	}
	if err := m.Step(1); err != nil {
		return nil, syntax.Locate(err, m.source, e.At())
	}
	v, err := m.compute(f, e)
	if err != nil {
		return nil, syntax.Locate(err, m.source, e.At())
	}
	return v, nil
}

func (m *rendering) compute(f *frame, e syntax.Expr) (python.Value, error) {
	switch e := e.(type) {
	case *syntax.NameExpr:
		if err := m.Alloc(80); err != nil {
			return nil, err
		}
		return unassigned(e)
	case *syntax.GetattrExpr:
		on, err := m.eval(f, e.On)
		if err != nil {
			return nil, err
		}
		if d, ok := on.(*python.Dict); ok && !e.Has.Dict {
			if err := m.Scan(python.LookupCost * len(e.Name)); err != nil {
				return nil, err
			}
			if v, ok := d.Lookup(e.Name); ok {
				return v, nil
			}
		}
		return m.Getattr(on, e.Name)
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
		return m.Binary(e.Op, left, right)
	case *syntax.SumExpr:
		return m.evalSum(f, e)
	case *syntax.ConcatExpr:
		return m.evalConcat(f, e)
	case *syntax.UnaryExpr:
		v, err := m.eval(f, e.On)
		if err != nil {
			return nil, err
		}
		return m.Unary(e.Op, v)
	case *syntax.ListExpr:
		items, err := m.evalItems(f, e.Items)
		return &python.List{Items: items}, err
	case *syntax.TupleExpr:
		items, err := m.evalItems(f, e.Items)
		return &python.Tuple{Items: items}, err
	case *syntax.DictExpr:
		return m.evalDict(f, e)
	}
	return nil, exception.Unsupported("this expression")
}

// unassigned returns the value of a variable without one.
func unassigned(e *syntax.NameExpr) (python.Value, error) {
	if e.Ref.Sure {
		// There Jinja2 prints "missing", an object of its own.
		return nil, exception.Unsupported("the variable %s of a block that has ended", e.Name)
	}
	return &python.Undefined{Name: e.Name, Of: python.Missing}, nil
}

func (m *rendering) evalBoth(f *frame, a, b syntax.Expr) (x, y python.Value, err error) {
	if x, err = m.eval(f, a); err == nil {
		y, err = m.eval(f, b)
	}
	return x, y, err
}

// isTrue returns the truth of an expression.
func (m *rendering) isTrue(f *frame, e syntax.Expr) (bool, error) {
	switch e := e.(type) {
	case *syntax.BoolExpr:
		ok, err := m.isTrue(f, e.Left)
		if err == nil {
			err = m.Scan(python.StepParts / 4)
		}
		if err != nil || ok != e.And {
			return ok, err
		}
		return m.isTrue(f, e.Right)
	case *syntax.NotExpr:
		ok, err := m.isTrue(f, e.On)
		if err == nil {
			err = m.Scan(python.StepParts / 4)
		}
		return !ok, err
	}
	v, err := m.look(f, e)
	if err != nil || python.IsMissing(v) {
		return false, err
	}
	if b, ok := v.(bool); ok {
		return b, nil
	}
	return m.Truth(v)
}

// look is eval, but it may return python.Missing where that makes an Undefined.
func (m *rendering) look(f *frame, e syntax.Expr) (python.Value, error) {
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
		err = m.Scan(python.StepParts + python.LookupCost*len(name))
	}
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *python.Dict:
		if item || !has.Dict {
			if v, ok := v.Lookup(name); ok {
				return v, nil
			}
		}
		if !has.Dict {
			return python.Missing, nil
		}
	case string:
		if !has.Str {
			return python.Missing, nil
		}
	}
	if item {
		v, err = m.Getitem(v, name)
	} else {
		v, err = m.Getattr(v, name)
	}
	if err != nil {
		err = syntax.Locate(err, m.source, e.At())
	}
	return v, err
}

func (m *rendering) evalItems(f *frame, list []syntax.Expr) ([]python.Value, error) {
	if err := m.Alloc(16*len(list) + 24); err != nil {
		return nil, err
	}
	if err := m.Step(len(list) / 4); err != nil {
		return nil, err
	}
	items := make([]python.Value, len(list))
	for i, e := range list {
		v, err := m.eval(f, e)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (m *rendering) evalDict(f *frame, e *syntax.DictExpr) (python.Value, error) {
	d := &python.Dict{}
	for i := range e.Keys {
		key, value, err := m.evalBoth(f, e.Keys[i], e.Values[i])
		if err == nil {
			err = d.SetValue(&m.Machine, key, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return d, m.Alloc(48)
}

func (m *rendering) evalItem(f *frame, e *syntax.GetitemExpr) (python.Value, error) {
	on, err := m.eval(f, e.On)
	if err != nil {
		return nil, err
	}
	if d, ok := on.(*python.Dict); ok && e.Name != "" {
		if err := m.Scan(python.LookupCost * len(e.Name)); err != nil {
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
		return m.Getitem(on, key)
	}
	var bounds [3]python.Value
	for i, b := range [...]syntax.Expr{s.Start, s.Stop, s.Step} {
		if b == nil {
			continue
		}
		if bounds[i], err = m.eval(f, b); err != nil {
			return nil, err
		}
	}
	return m.Slice(on, bounds[0], bounds[1], bounds[2])
}

func (m *rendering) evalBool(f *frame, e *syntax.BoolExpr) (python.Value, error) {
	left, err := m.eval(f, e.Left)
	if err != nil {
		return nil, err
	}
	ok, err := m.Truth(left)
	if err != nil || ok != e.And {
		return left, err
	}
	return m.eval(f, e.Right)
}

func (m *rendering) evalCond(f *frame, e *syntax.CondExpr) (python.Value, error) {
	ok, err := m.isTrue(f, e.Test)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return m.eval(f, e.Then)
	case e.Els != nil:
		return m.eval(f, e.Els)
	}
	return &python.Undefined{Message: "the inline if-expression evaluated to false and no else section was defined.", Of: python.Missing}, nil
}

func (m *rendering) evalCompare(f *frame, e *syntax.CompareExpr) (python.Value, error) {
	if op := e.Rest[0].Op; len(e.Rest) == 1 && (op == "==" || op == "!=") {
		ok, err := m.evalEqual(f, e.First, e.Rest[0].On)
		return ok == (op == "=="), err
	}
	left, err := m.eval(f, e.First)
	if err != nil {
		return nil, err
	}
	for i := range e.Rest {
		if err := m.Step(1); err != nil {
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
func (m *rendering) evalEqual(f *frame, a, b syntax.Expr) (bool, error) {
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
			return s == t, m.Scan(2 * min(len(s), len(t)))
		}
	}
	if python.IsMissing(x) {
		x, y = y, x
	}
	if python.IsMissing(y) {
		_, undefined := x.(*python.Undefined)
		return undefined || python.IsMissing(x), nil
	}
	return m.Equal(x, y)
}

func (m *rendering) compare(op string, a, b python.Value) (bool, error) {
	switch op {
	case "==":
		return m.Equal(a, b)
	case "!=":
		ok, err := m.Equal(a, b)
		return !ok, err
	case "in":
		return m.Contains(a, b)
	case "not in":
		ok, err := m.Contains(a, b)
		return !ok, err
	}
	return m.Less(op, a, b)
}

// evalSum evaluates "a + b + c ...". The strings that it begins with are joined
// above the output, to be copied once.
func (m *rendering) evalSum(f *frame, e *syntax.SumExpr) (python.Value, error) {
	mark := len(m.Out)
	last, err := m.sum(f, e, mark)
	if err != nil || len(m.Out) == mark {
		return last, err
	}
	if err := m.Write(last.(string)); err != nil {
		return nil, err
	}
	return m.captured(mark)
}

// sum writes the strings that a sum begins with and returns what is to be added to
// them: if any was written the last string, else the sum.
func (m *rendering) sum(f *frame, e *syntax.SumExpr, mark int) (python.Value, error) {
	sum, err := m.eval(f, e.Items[0])
	for _, item := range e.Items[1:] {
		if err != nil {
			return nil, err
		}
		var v python.Value
		if v, err = m.eval(f, item); err != nil {
			return nil, err
		}
		if s, ok := sum.(string); ok {
			if _, ok := v.(string); ok {
				err = m.Write(s)
				sum = v
				continue
			}
			if len(m.Out) > mark {
				if err := m.Write(s); err != nil {
					return nil, err
				}
				if sum, err = m.captured(mark); err != nil {
					return nil, err
				}
			}
		}
		sum, err = m.Binary("+", sum, v)
	}
	return sum, err
}

// captured takes what was written since mark off the output.
func (m *rendering) captured(mark int) (python.Value, error) {
	if err := m.Alloc(len(m.Out) - mark + 16); err != nil {
		return nil, err
	}
	s := string(m.Out[mark:])
	m.Out = m.Out[:mark]
	return s, nil
}

func (m *rendering) evalConcat(f *frame, e *syntax.ConcatExpr) (python.Value, error) {
	mark := len(m.Out)
	if err := m.printConcat(f, e); err != nil {
		return nil, err
	}
	return m.captured(mark)
}

// printConcat writes "a ~ b ~ c": all are evaluated before the first is made a
// string.
func (m *rendering) printConcat(f *frame, e *syntax.ConcatExpr) error {
	if err := m.Step(len(e.Items) / 2); err != nil {
		return err
	}
	var few [8]python.Value
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

func (m *rendering) evalFilter(f *frame, e *syntax.FilterExpr, v python.Value) (python.Value, error) {
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	fn, ok := e.Fn.(builtins.Filter)
	if !ok {
		return nil, exception.New("TemplateRuntimeError", "No filter named '%s' found.", e.Name)
	}
	if err := m.Step(2); err != nil {
		return nil, err
	}
	return fn(&m.Machine, v, args)
}

func (m *rendering) evalTest(f *frame, e *syntax.TestExpr) (python.Value, error) {
	if e.Args.None() && (e.Name == "defined" || e.Name == "undefined") {
		v, err := m.look(f, e.On)
		_, undefined := v.(*python.Undefined)
		return (undefined || python.IsMissing(v)) == (e.Name == "undefined"), err
	}
	v, err := m.eval(f, e.On)
	if err != nil {
		return nil, err
	}
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	fn, ok := e.Fn.(builtins.Test)
	if !ok {
		return nil, exception.New("TemplateRuntimeError", "No test named '%s' found.", e.Name)
	}
	return fn(&m.Machine, v, args)
}

func (m *rendering) evalCall(f *frame, e *syntax.CallExpr) (python.Value, error) {
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
func (m *rendering) evalMethod(f *frame, e *syntax.CallExpr, fn *syntax.GetattrExpr) (python.Value, error) {
	on, err := m.eval(f, fn.On)
	if err != nil {
		return nil, err
	}
	late := false
	switch on.(type) {
	case string, *python.Dict, *python.List:
		late = true
	}
	var method python.Value
	if !late {
		if method, err = m.Getattr(on, fn.Name); err != nil {
			return nil, syntax.Locate(err, m.source, fn.Pos)
		}
	}
	args, err := m.evalArgs(f, &e.Args)
	if err != nil {
		return nil, err
	}
	if late {
		if err := m.Step(2); err != nil {
			return nil, err
		}
		v, ok, err := m.CallMethod(on, fn.Name, args)
		if ok || err != nil {
			return v, err
		}
		if method, err = m.Getattr(on, fn.Name); err != nil {
			return nil, err
		}
	}
	return m.call(method, args)
}

// call calls a value.
func (m *rendering) call(fn python.Value, args python.Arguments) (python.Value, error) {
	c, ok := fn.(python.Callable)
	if !ok {
		if u, ok := fn.(*python.Undefined); ok {
			return nil, u.Fail()
		}
		return nil, exception.New("TypeError", "'%s' object is not callable", python.TypeName(fn))
	}
	if err := m.Enter(); err != nil {
		return nil, err
	}
	v, err := c.Call(&m.Machine, args)
	m.Leave()
	return v, err
}

// evalArgs evaluates arguments, in Python's order.
func (m *rendering) evalArgs(f *frame, a *syntax.ArgExprs) (python.Arguments, error) {
	var args python.Arguments
	var err error
	if len(a.List) > 0 {
		if args.List, err = m.evalItems(f, a.List); err != nil {
			return args, err
		}
	}
	if len(a.Named) > 0 {
		if err := m.Alloc(32 * len(a.Named)); err != nil {
			return args, err
		}
		args.Named = make([]python.Argument, len(a.Named))
		for i := range a.Named {
			v, err := m.eval(f, a.Named[i].Value)
			if err != nil {
				return args, err
			}
			args.Named[i] = python.Argument{Name: a.Named[i].Name, Value: v}
		}
	}
	return args, nil
}
