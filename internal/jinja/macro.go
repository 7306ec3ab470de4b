package jinja

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A macro is a macro, or the body of a call block (Jinja2 3.1.6, runtime.py).
type macro struct {
	*syntax.MacroScope
	up *frame     // of the function that defines it
	in *rendering // that defines it
}

var (
	_ python.Callable = (*macro)(nil)
	_ python.Object   = (*macro)(nil)
	_ python.Object   = (*loopContext)(nil)
)

func (m *rendering) newMacro(f *frame, s *syntax.MacroScope) (*macro, error) {
	return &macro{s, f, m}, m.Alloc(32)
}

func (c *macro) TypeName() string { return "Macro" }

func (c *macro) Refuse(string) error { return nil }

func (c *macro) Attr(_ *python.Machine, name string) (python.Value, bool, error) {
	return nil, false, exception.Unsupported("the attribute %s of a macro", name)
}

// Call runs the macro and returns its output.
func (c *macro) Call(_ *python.Machine, args python.Arguments) (python.Value, error) {
	m := c.in
	if err := m.Step(2 + len(c.Params)/4); err != nil {
		return nil, err
	}
	f, err := m.newFrame(c.Slots, c.up)
	if err != nil {
		return nil, err
	}
	if err := c.bind(m, f, args); err != nil {
		return nil, err
	}
	if err := m.enterScope(f, &c.Scope); err != nil {
		return nil, err
	}
	for i := range c.Params {
		if err := c.setDefault(m, f, &c.Params[i]); err != nil {
			return nil, err
		}
	}
	v, _, err := m.capture(f, c.Body)
	return v, err
}

func (c *macro) setDefault(m *rendering, f *frame, p *syntax.Param) error {
	if f.slots[p.Slot] != python.Missing {
		return nil
	}
	var v python.Value
	var err error
	if p.Def != nil {
		v, err = m.eval(f, p.Def)
	} else {
		if err := m.Alloc(128 + len(p.Name)); err != nil {
			return err
		}
		v = &python.Undefined{Message: "parameter '" + p.Name + "' was not provided", Name: p.Name, Of: python.Missing}
	}
	f.slots[p.Slot] = v
	return err
}

// bind gives the parameters the arguments.
func (c *macro) bind(m *rendering, f *frame, args python.Arguments) error {
	given := min(len(args.List), len(c.Params))
	for i := range given {
		f.slots[c.Params[i].Slot] = args.List[i]
	}
	named := args.Named
	for _, p := range c.Params[given:] {
		if err := m.taking(named, p.Name); err != nil {
			return err
		}
		var v python.Value
		v, named = takeArgument(named, p.Name)
		f.slots[p.Slot] = v
	}
	if c.Caller >= 0 {
		var v python.Value
		if v, named = takeArgument(named, "caller"); v == nil || python.IsMissing(v) {
			v = &python.Undefined{Message: "No caller defined", Name: "caller", Of: python.Missing}
		}
		f.slots[c.Caller] = v
	}
	switch {
	case len(named) > 0:
		return exception.New("TypeError", "macro '%s' takes no keyword argument '%s'", c.Name, named[0].Name)
	case given < len(args.List):
		return exception.New("TypeError", "macro '%s' takes not more than %d argument(s)", c.Name, len(c.Params))
	}
	return nil
}

// taking charges takeArgument.
func (m *rendering) taking(named []python.Argument, name string) error {
	if len(named) == 0 {
		return nil
	}
	if err := m.Alloc(32 * len(named)); err != nil {
		return err
	}
	return m.Spend(int64(len(named)) * int64(len(name)+16))
}

// takeArgument returns the argument of a name, Missing if there is none, and the
// others.
func takeArgument(named []python.Argument, name string) (python.Value, []python.Argument) {
	for i, arg := range named {
		if arg.Name == name {
			return arg.Value, slices.Concat(named[:i], named[i+1:])
		}
	}
	return python.Missing, named
}

// callBlock calls the macro of a call block with its body as the argument caller.
func (m *rendering) callBlock(f *frame, st *syntax.CallStmt) error {
	caller, err := m.newMacro(f, &st.Scope)
	if err != nil {
		return err
	}
	fn, err := m.eval(f, st.Call.Fn)
	if err != nil {
		return err
	}
	args, err := m.evalArgs(f, &st.Call.Args)
	if err != nil {
		return err
	}
	v, err := m.call(fn, python.Arguments{List: args.List, Named: append(args.Named, python.Argument{Name: "caller", Value: caller})})
	if err != nil {
		return err
	}
	return m.writeText(v)
}

// generation writes the body of a generation block, which is the caller of a
// function that returns caller().
func (m *rendering) generation(f *frame, st *syntax.GenerationStmt) error {
	caller, err := m.newMacro(f, &st.Scope)
	if err != nil {
		return err
	}
	v, err := m.call(caller, python.Arguments{})
	if err != nil {
		return err
	}
	return m.writeText(v)
}
