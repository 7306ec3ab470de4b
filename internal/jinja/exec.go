package jinja

import (
	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A flow is how a statement ends.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

// run runs statements. A break or continue leaves the scopes in between as they
// are, as it does in the Python that Jinja2 makes.
func (m *rendering) run(f *frame, list []syntax.Stmt) (flow, error) {
	for _, st := range list {
		err := m.Step(1)
		end := flowNext
		if err == nil {
			end, err = m.exec(f, st)
		}
		if err != nil {
			return end, syntax.Locate(err, m.source, st.At())
		}
		if end != flowNext {
			return end, nil
		}
	}
	return flowNext, nil
}

func (m *rendering) exec(f *frame, st syntax.Stmt) (flow, error) {
	switch st := st.(type) {
	case *syntax.OutputStmt:
		for i := range st.Items {
			if err := m.output(f, &st.Items[i]); err != nil {
				return flowNext, err
			}
		}
		return flowNext, nil
	case *syntax.SetStmt:
		return flowNext, m.set(f, st)
	case *syntax.IfStmt:
		return m.execIf(f, st)
	case *syntax.ForStmt:
		return m.execFor(f, st)
	case *syntax.SetBlockStmt:
		return m.setBlock(f, st)
	case *syntax.MacroStmt:
		macro, err := m.newMacro(f, &st.Scope)
		*f.variable(st.Ref) = macro
		return flowNext, err
	case *syntax.CallStmt:
		return flowNext, m.callBlock(f, st)
	case *syntax.GenerationStmt:
		return flowNext, m.generation(f, st)
	case *syntax.BreakStmt:
		return flowBreak, nil
	case *syntax.ContinueStmt:
		return flowContinue, nil
	}
	return flowNext, exception.Unsupported("this statement")
}

func (m *rendering) output(f *frame, item *syntax.OutputItem) error {
	if item.Expr == nil {
		return m.Write(item.Text)
	}
	return m.print(f, item.Expr)
}

// print writes the value of an expression, without first making one string of it
// where it is put together of several.
func (m *rendering) print(f *frame, e syntax.Expr) error {
	switch e := e.(type) {
	case *syntax.SumExpr:
		v, err := m.sum(f, e, len(m.Out))
		if err != nil {
			return syntax.Locate(err, m.source, e.Pos)
		}
		return m.printValue(v)
	case *syntax.ConcatExpr:
		if err := m.printConcat(f, e); err != nil {
			return syntax.Locate(err, m.source, e.Pos)
		}
		return nil
	case *syntax.CondExpr:
		ok, err := m.isTrue(f, e.Test)
		if err == nil {
			err = m.Step(1)
		}
		switch {
		case err != nil:
			return err
		case ok:
			return m.print(f, e.Then)
		case e.Els != nil:
			return m.print(f, e.Els)
		}
		return nil
	}
	v, err := m.eval(f, e)
	if err != nil {
		return err
	}
	return m.printValue(v)
}

func (m *rendering) printValue(v python.Value) error {
	if s, ok := v.(string); ok {
		return m.Write(s)
	}
	out, err := m.AppendStr(m.Out, v)
	if err != nil {
		return err
	}
	m.Out = out
	return m.Write("")
}

func (m *rendering) execIf(f *frame, st *syntax.IfStmt) (flow, error) {
	ok, err := m.isTrue(f, st.Test)
	if err != nil {
		return flowNext, err
	}
	if ok {
		return m.run(f, st.Body)
	}
	for _, e := range st.Elifs {
		if err := m.Step(1); err != nil {
			return flowNext, err
		}
		if ok, err = m.isTrue(f, e.Test); err != nil {
			return flowNext, err
		}
		if ok {
			return m.run(f, e.Body)
		}
	}
	return m.run(f, st.Els)
}

func (m *rendering) set(f *frame, st *syntax.SetStmt) error {
	if n, ok := st.Target.(*syntax.NameExpr); ok {
		v, err := m.eval(f, st.Value)
		f.slots[n.Ref.Slot] = v
		return err
	}
	if err := namespaces(f, st.Target); err != nil {
		return err
	}
	v, err := m.eval(f, st.Value)
	if err != nil {
		return err
	}
	return m.assign(f, st.Target, v)
}

// namespaces checks that attributes are set of namespaces only, which Jinja2 does
// before it evaluates the value.
func namespaces(f *frame, target syntax.Expr) error {
	switch t := target.(type) {
	case *syntax.NsRefExpr:
		if _, ok := (*f.variable(t.Ref)).(*python.Namespace); !ok {
			return exception.New("TemplateRuntimeError", "cannot assign attribute on non-namespace object")
		}
	case *syntax.TupleExpr:
		for _, item := range t.Items {
			if err := namespaces(f, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// assign gives a target a value. Its names are variables of f itself.
func (m *rendering) assign(f *frame, target syntax.Expr, v python.Value) error {
	switch t := target.(type) {
	case *syntax.NameExpr:
		f.slots[t.Ref.Slot] = v
	case *syntax.NsRefExpr:
		return m.setAttr(*f.variable(t.Ref), t.Attr, v)
	case *syntax.TupleExpr:
		items, err := m.unpack(v, len(t.Items))
		if err != nil {
			return err
		}
		if err := m.Step(len(t.Items) / 2); err != nil {
			return err
		}
		for i, item := range t.Items {
			if err := m.assign(f, item, items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// setAttr is Python's "of[name] = v", as which Jinja2 sets the attributes of a
// namespace.
func (m *rendering) setAttr(of python.Value, name string, v python.Value) error {
	switch of := of.(type) {
	case *python.Namespace:
		return of.Attrs.SetValue(&m.Machine, name, v)
	case *python.Dict:
		return exception.Unsupported("a change of a dict")
	}
	return exception.New("TypeError", "'%s' object does not support item assignment", python.TypeName(of))
}

// unpack returns the n elements of v.
func (m *rendering) unpack(v python.Value, n int) ([]python.Value, error) {
	var items []python.Value
	switch v := v.(type) {
	case *python.Tuple:
		items = v.Items
	case *python.List:
		items = v.Items
	default:
		it, err := m.Iterate(v)
		if err != nil {
			if exception.Is(err, "TypeError") {
				err = exception.New("TypeError", "cannot unpack non-iterable %s object", python.TypeName(v))
			}
			return nil, err
		}
		for len(items) <= n {
			item, ok, err := it.Next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if err := m.Step(2); err != nil {
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
func (m *rendering) capture(f *frame, body []syntax.Stmt) (python.Value, flow, error) {
	mark := len(m.Out)
	end, err := m.run(f, body)
	if err != nil {
		return nil, end, err
	}
	if end != flowNext {
		m.Out = m.Out[:mark]
		return nil, end, nil
	}
	v, err := m.captured(mark)
	return v, end, err
}

func (m *rendering) setBlock(f *frame, st *syntax.SetBlockStmt) (flow, error) {
	if err := m.enterScope(f, &st.Scope); err != nil {
		return flowNext, err
	}
	v, end, err := m.capture(f, st.Body)
	if err != nil || end != flowNext {
		return end, err
	}
	if err := m.assign(f, st.Target, v); err != nil {
		return flowNext, err
	}
	return flowNext, m.leaveScope(f, &st.Scope)
}

// writeText writes the result of a call block, which Jinja2 does not make a string of.
func (m *rendering) writeText(v python.Value) error {
	s, ok := python.AsString(v)
	if !ok {
		return exception.New("TypeError", "expected str instance, %s found", python.TypeName(v))
	}
	return m.Write(s)
}
