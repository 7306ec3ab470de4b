package jinja

import "github.com/kvindex/kvindex/internal/jinja/exception"

// A flow is how a statement ends.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

// run runs statements. A break or continue leaves the scopes in between as they
// are, as it does in the Python that Jinja2 makes.
func (m *machine) run(f *frame, list []stmt) (flow, error) {
	for _, st := range list {
		err := m.step(1)
		end := flowNext
		if err == nil {
			end, err = m.exec(f, st)
		}
		if err != nil {
			return end, locate(err, m.source, st.at())
		}
		if end != flowNext {
			return end, nil
		}
	}
	return flowNext, nil
}

func (m *machine) exec(f *frame, st stmt) (flow, error) {
	switch st := st.(type) {
	case *outputStmt:
		for i := range st.items {
			if err := m.output(f, &st.items[i]); err != nil {
				return flowNext, err
			}
		}
		return flowNext, nil
	case *setStmt:
		return flowNext, m.set(f, st)
	case *ifStmt:
		return m.execIf(f, st)
	case *forStmt:
		return m.execFor(f, st)
	case *setBlockStmt:
		return m.setBlock(f, st)
	case *macroStmt:
		macro, err := m.newMacro(f, &st.scope)
		*f.variable(st.ref) = macro
		return flowNext, err
	case *callStmt:
		return flowNext, m.callBlock(f, st)
	case *generationStmt:
		return flowNext, m.generation(f, st)
	case *breakStmt:
		return flowBreak, nil
	case *continueStmt:
		return flowContinue, nil
	}
	return flowNext, exception.Unsupported("this statement")
}

func (m *machine) output(f *frame, item *outputItem) error {
	if item.expr == nil {
		return m.write(item.text)
	}
	return m.print(f, item.expr)
}

// print writes the value of an expression, without first making one string of it
// where it is put together of several.
func (m *machine) print(f *frame, e expr) error {
	switch e := e.(type) {
	case *sumExpr:
		v, err := m.sum(f, e, len(m.out))
		if err != nil {
			return locate(err, m.source, e.pos)
		}
		return m.printValue(v)
	case *concatExpr:
		if err := m.printConcat(f, e); err != nil {
			return locate(err, m.source, e.pos)
		}
		return nil
	case *condExpr:
		ok, err := m.isTrue(f, e.test)
		if err == nil {
			err = m.step(1)
		}
		switch {
		case err != nil:
			return err
		case ok:
			return m.print(f, e.then)
		case e.els != nil:
			return m.print(f, e.els)
		}
		return nil
	}
	v, err := m.eval(f, e)
	if err != nil {
		return err
	}
	return m.printValue(v)
}

func (m *machine) printValue(v Value) error {
	if s, ok := v.(string); ok {
		return m.write(s)
	}
	out, err := m.appendStr(m.out, v)
	if err != nil {
		return err
	}
	m.out = out
	return m.write("")
}

func (m *machine) execIf(f *frame, st *ifStmt) (flow, error) {
	ok, err := m.isTrue(f, st.test)
	if err != nil {
		return flowNext, err
	}
	if ok {
		return m.run(f, st.body)
	}
	for _, e := range st.elifs {
		if err := m.step(1); err != nil {
			return flowNext, err
		}
		if ok, err = m.isTrue(f, e.test); err != nil {
			return flowNext, err
		}
		if ok {
			return m.run(f, e.body)
		}
	}
	return m.run(f, st.els)
}

func (m *machine) set(f *frame, st *setStmt) error {
	if n, ok := st.target.(*nameExpr); ok {
		v, err := m.eval(f, st.value)
		f.slots[n.ref.slot] = v
		return err
	}
	if err := namespaces(f, st.target); err != nil {
		return err
	}
	v, err := m.eval(f, st.value)
	if err != nil {
		return err
	}
	return m.assign(f, st.target, v)
}

// namespaces checks that what has attributes set are namespaces, which Jinja2 does
// before it evaluates the value.
func namespaces(f *frame, target expr) error {
	switch t := target.(type) {
	case *nsRefExpr:
		if _, ok := (*f.variable(t.ref)).(*Namespace); !ok {
			return exception.New("TemplateRuntimeError", "cannot assign attribute on non-namespace object")
		}
	case *tupleExpr:
		for _, item := range t.items {
			if err := namespaces(f, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// assign gives a target a value. Its names are variables of f itself.
func (m *machine) assign(f *frame, target expr, v Value) error {
	switch t := target.(type) {
	case *nameExpr:
		f.slots[t.ref.slot] = v
	case *nsRefExpr:
		return m.setAttr(*f.variable(t.ref), t.attr, v)
	case *tupleExpr:
		items, err := m.unpack(v, len(t.items))
		if err != nil {
			return err
		}
		if err := m.step(len(t.items) / 2); err != nil {
			return err
		}
		for i, item := range t.items {
			if err := m.assign(f, item, items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// setAttr is Python's "of[name] = v", as which Jinja2 sets the attributes of a
// namespace.
func (m *machine) setAttr(of Value, name string, v Value) error {
	switch of := of.(type) {
	case *Namespace:
		return of.attrs.set(m, name, v)
	case *Dict:
		return exception.Unsupported("a change of a dict")
	}
	return exception.New("TypeError", "'%s' object does not support item assignment", typeName(of))
}

// unpack returns the n elements of v.
func (m *machine) unpack(v Value, n int) ([]Value, error) {
	var items []Value
	switch v := v.(type) {
	case *Tuple:
		items = v.Items
	case *List:
		items = v.Items
	default:
		it, err := m.iterate(v)
		if err != nil {
			if exception.Is(err, "TypeError") {
				err = exception.New("TypeError", "cannot unpack non-iterable %s object", typeName(v))
			}
			return nil, err
		}
		for len(items) <= n {
			item, ok, err := it.next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if err := m.step(2); err != nil {
				return nil, err
			}
			items = append(items, item)
		}
	}
	switch {
	case len(items) < n:
		return nil, exception.New("ValueError", "not enough values to unpack (expected %d, got %d)", n, len(items))
	case len(items) > n:
		return nil, exception.New("ValueError", "too many values to unpack (expected %d)", n)
	}
	return items, nil
}

// capture runs statements and returns what they write.
func (m *machine) capture(f *frame, body []stmt) (Value, flow, error) {
	mark := len(m.out)
	end, err := m.run(f, body)
	if err != nil {
		return nil, end, err
	}
	if end != flowNext {
		m.out = m.out[:mark]
		return nil, end, nil
	}
	v, err := m.captured(mark)
	return v, end, err
}

func (m *machine) setBlock(f *frame, st *setBlockStmt) (flow, error) {
	if err := m.enterScope(f, &st.scope); err != nil {
		return flowNext, err
	}
	v, end, err := m.capture(f, st.body)
	if err != nil || end != flowNext {
		return end, err
	}
	if err := m.assign(f, st.target, v); err != nil {
		return flowNext, err
	}
	return flowNext, m.leaveScope(f, &st.scope)
}

// writeText writes the result of a call block, which Jinja2 does not make a string of.
func (m *machine) writeText(v Value) error {
	s, ok := asString(v)
	if !ok {
		return exception.New("TypeError", "expected str instance, %s found", typeName(v))
	}
	return m.write(s)
}
