package jinja

import (
	"errors"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// locate gives an error that has none the place of the node at which it arose.
func locate(err error, source string, at pos) error {
	var e *exception.Error
	if !errors.As(err, &e) || e.Line > 0 {
		return err
	}
	located := *e
	located.Line, located.Col = place(source, at)
	return &located
}

// eval evaluates an expression.
func (m *machine) eval(f *frame, e expr) (Value, error) {
	switch e := e.(type) {
	case *constExpr:
		return e.value, nil
	case *nameExpr:
		if v := *f.variable(e.ref); !isMissing(v) {
			return v, nil
		}
	}
	if err := m.step(1); err != nil {
		return nil, locate(err, m.source, e.at())
	}
	v, err := m.compute(f, e)
	if err != nil {
		return nil, locate(err, m.source, e.at())
	}
	return v, nil
}

func (m *machine) compute(f *frame, e expr) (Value, error) {
	switch e := e.(type) {
	case *nameExpr:
		if err := m.alloc(80); err != nil {
			return nil, err
		}
		return unassigned(e)
	case *getattrExpr:
		on, err := m.eval(f, e.on)
		if err != nil {
			return nil, err
		}
		if d, ok := on.(*Dict); ok && !e.has.dict {
			if err := m.scan(lookup * len(e.name)); err != nil {
				return nil, err
			}
			if v, ok := d.Lookup(e.name); ok {
				return v, nil
			}
		}
		return m.getattr(on, e.name)
	case *getitemExpr:
		return m.evalItem(f, e)
	case *compareExpr:
		return m.evalCompare(f, e)
	case *callExpr:
		return m.evalCall(f, e)
	case *filterExpr:
		v, err := m.eval(f, e.on)
		if err != nil {
			return nil, err
		}
		return m.evalFilter(f, e, v)
	case *testExpr:
		return m.evalTest(f, e)
	case *boolExpr:
		return m.evalBool(f, e)
	case *notExpr:
		ok, err := m.isTrue(f, e.on)
		return !ok, err
	case *condExpr:
		return m.evalCond(f, e)
	case *binaryExpr:
		left, right, err := m.evalBoth(f, e.left, e.right)
		if err != nil {
			return nil, err
		}
		return m.binary(e.op, left, right)
	case *sumExpr:
		return m.evalSum(f, e)
	case *concatExpr:
		return m.evalConcat(f, e)
	case *unaryExpr:
		v, err := m.eval(f, e.on)
		if err != nil {
			return nil, err
		}
		return m.unary(e.op, v)
	case *listExpr:
		items, err := m.evalItems(f, e.items)
		return &List{Items: items}, err
	case *tupleExpr:
		items, err := m.evalItems(f, e.items)
		return &Tuple{Items: items}, err
	case *dictExpr:
		return m.evalDict(f, e)
	}
	return nil, exception.Unsupported("this expression")
}

// unassigned returns the value of a variable without one.
func unassigned(e *nameExpr) (Value, error) {
	if e.ref.sure {
		// There Jinja2 prints "missing", an object of its own.
		return nil, exception.Unsupported("the variable %s of a block that has ended", e.name)
	}
	return &Undefined{Name: e.name, Of: missing}, nil
}

func (m *machine) evalBoth(f *frame, a, b expr) (x, y Value, err error) {
	if x, err = m.eval(f, a); err == nil {
		y, err = m.eval(f, b)
	}
	return x, y, err
}

// isTrue returns the truth of an expression.
func (m *machine) isTrue(f *frame, e expr) (bool, error) {
	switch e := e.(type) {
	case *boolExpr:
		ok, err := m.isTrue(f, e.left)
		if err == nil {
			err = m.scan(stepParts / 4)
		}
		if err != nil || ok != e.and {
			return ok, err
		}
		return m.isTrue(f, e.right)
	case *notExpr:
		ok, err := m.isTrue(f, e.on)
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
func (m *machine) look(f *frame, e expr) (Value, error) {
	var on expr
	var name string
	var has attrOf
	item := false
	switch e := e.(type) {
	case *nameExpr:
		if !e.ref.sure {
			return *f.variable(e.ref), nil
		}
	case *getattrExpr:
		on, name, has = e.on, e.name, e.has
	case *getitemExpr:
		if e.name != "" {
			on, name, has, item = e.on, e.name, e.has, true
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
		if item || !has.dict {
			if v, ok := v.Lookup(name); ok {
				return v, nil
			}
		}
		if !has.dict {
			return missing, nil
		}
	case string:
		if !has.str {
			return missing, nil
		}
	}
	if item {
		v, err = m.getitem(v, name)
	} else {
		v, err = m.getattr(v, name)
	}
	if err != nil {
		err = locate(err, m.source, e.at())
	}
	return v, err
}

func (m *machine) evalItems(f *frame, list []expr) ([]Value, error) {
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

func (m *machine) evalDict(f *frame, e *dictExpr) (Value, error) {
	d := &Dict{}
	for i := range e.keys {
		key, value, err := m.evalBoth(f, e.keys[i], e.values[i])
		if err == nil {
			err = d.set(m, key, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return d, m.alloc(48)
}

func (m *machine) evalItem(f *frame, e *getitemExpr) (Value, error) {
	on, err := m.eval(f, e.on)
	if err != nil {
		return nil, err
	}
	if d, ok := on.(*Dict); ok && e.name != "" {
		if err := m.scan(lookup * len(e.name)); err != nil {
			return nil, err
		}
		if v, ok := d.Lookup(e.name); ok {
			return v, nil
		}
	}
	s, ok := e.key.(*sliceExpr)
	if !ok {
		key, err := m.eval(f, e.key)
		if err != nil {
			return nil, err
		}
		return m.getitem(on, key)
	}
	var bounds [3]Value
	for i, b := range [...]expr{s.start, s.stop, s.step} {
		if b == nil {
			continue
		}
		if bounds[i], err = m.eval(f, b); err != nil {
			return nil, err
		}
	}
	return m.slice(on, bounds[0], bounds[1], bounds[2])
}

func (m *machine) evalBool(f *frame, e *boolExpr) (Value, error) {
	left, err := m.eval(f, e.left)
	if err != nil {
		return nil, err
	}
	ok, err := m.truth(left)
	if err != nil || ok != e.and {
		return left, err
	}
	return m.eval(f, e.right)
}

func (m *machine) evalCond(f *frame, e *condExpr) (Value, error) {
	ok, err := m.isTrue(f, e.test)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return m.eval(f, e.then)
	case e.els != nil:
		return m.eval(f, e.els)
	}
	return &Undefined{Message: "the inline if-expression evaluated to false and no else section was defined.", Of: missing}, nil
}

func (m *machine) evalCompare(f *frame, e *compareExpr) (Value, error) {
	if op := e.rest[0].op; len(e.rest) == 1 && (op == "==" || op == "!=") {
		ok, err := m.evalEqual(f, e.first, e.rest[0].on)
		return ok == (op == "=="), err
	}
	left, err := m.eval(f, e.first)
	if err != nil {
		return nil, err
	}
	for i := range e.rest {
		if err := m.step(1); err != nil {
			return nil, err
		}
		right, err := m.eval(f, e.rest[i].on)
		if err != nil {
			return nil, err
		}
		ok, err := m.compare(e.rest[i].op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

// evalEqual evaluates "a == b". All Undefineds are equal, and to nothing else.
func (m *machine) evalEqual(f *frame, a, b expr) (bool, error) {
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
func (m *machine) evalSum(f *frame, e *sumExpr) (Value, error) {
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
func (m *machine) sum(f *frame, e *sumExpr, mark int) (Value, error) {
	sum, err := m.eval(f, e.items[0])
	for _, item := range e.items[1:] {
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

func (m *machine) evalConcat(f *frame, e *concatExpr) (Value, error) {
	mark := len(m.out)
	if err := m.printConcat(f, e); err != nil {
		return nil, err
	}
	return m.captured(mark)
}

// printConcat writes "a ~ b ~ c": all are evaluated before the first is made a
// string.
func (m *machine) printConcat(f *frame, e *concatExpr) error {
	if err := m.step(len(e.items) / 2); err != nil {
		return err
	}
	var few [8]Value
	items := few[:0]
	for _, item := range e.items {
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

func (m *machine) evalFilter(f *frame, e *filterExpr, v Value) (Value, error) {
	args, err := m.evalArgs(f, &e.args)
	if err != nil {
		return nil, err
	}
	if e.fn == nil {
		return nil, exception.New("TemplateRuntimeError", "No filter named '%s' found.", e.name)
	}
	if err := m.step(2); err != nil {
		return nil, err
	}
	return e.fn(m, v, args)
}

func (m *machine) evalTest(f *frame, e *testExpr) (Value, error) {
	if e.args.none() && (e.name == "defined" || e.name == "undefined") {
		v, err := m.look(f, e.on)
		_, undefined := v.(*Undefined)
		return (undefined || isMissing(v)) == (e.name == "undefined"), err
	}
	v, err := m.eval(f, e.on)
	if err != nil {
		return nil, err
	}
	args, err := m.evalArgs(f, &e.args)
	if err != nil {
		return nil, err
	}
	if e.fn == nil {
		return nil, exception.New("TemplateRuntimeError", "No test named '%s' found.", e.name)
	}
	return e.fn(m, v, args)
}

func (m *machine) evalCall(f *frame, e *callExpr) (Value, error) {
	if fn, ok := e.fn.(*getattrExpr); ok {
		return m.evalMethod(f, e, fn)
	}
	fn, err := m.eval(f, e.fn)
	if err != nil {
		return nil, err
	}
	args, err := m.evalArgs(f, &e.args)
	if err != nil {
		return nil, err
	}
	return m.call(fn, args)
}

// evalMethod evaluates on.name(args). To look a method up has no effect on these
// types, so that it may come behind the arguments.
func (m *machine) evalMethod(f *frame, e *callExpr, fn *getattrExpr) (Value, error) {
	on, err := m.eval(f, fn.on)
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
		if method, err = m.getattr(on, fn.name); err != nil {
			return nil, locate(err, m.source, fn.pos)
		}
	}
	args, err := m.evalArgs(f, &e.args)
	if err != nil {
		return nil, err
	}
	if late {
		if err := m.step(2); err != nil {
			return nil, err
		}
		v, ok, err := m.callMethod(on, fn.name, args)
		if ok || err != nil {
			return v, err
		}
		if method, err = m.getattr(on, fn.name); err != nil {
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
func (m *machine) evalArgs(f *frame, a *argExprs) (arguments, error) {
	var args arguments
	var err error
	if len(a.list) > 0 {
		if args.list, err = m.evalItems(f, a.list); err != nil {
			return args, err
		}
	}
	if len(a.named) > 0 {
		if err := m.alloc(32 * len(a.named)); err != nil {
			return args, err
		}
		args.named = make([]argument, len(a.named))
		for i := range a.named {
			v, err := m.eval(f, a.named[i].value)
			if err != nil {
				return args, err
			}
			args.named[i] = argument{a.named[i].name, v}
		}
	}
	return args, nil
}
