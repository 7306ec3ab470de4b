package jinja

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A macro is a macro, or the body of a call block (Jinja2 3.1.6, runtime.py).
type macro struct {
	*syntax.MacroScope
	up *frame // of the function that defines it
}

func (m *machine) newMacro(f *frame, s *syntax.MacroScope) (*macro, error) {
	return &macro{s, f}, m.alloc(32)
}

func (c *macro) typeName() string { return "Macro" }

func (c *macro) attr(_ *machine, name string) (Value, bool, error) {
	return nil, false, exception.Unsupported("the attribute %s of a macro", name)
}

// call runs the macro and returns its output.
func (c *macro) call(m *machine, args arguments) (Value, error) {
	if err := m.step(2 + len(c.Params)/4); err != nil {
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

func (c *macro) setDefault(m *machine, f *frame, p *syntax.Param) error {
	if f.slots[p.Slot] != missing {
		return nil
	}
	var v Value
	var err error
	if p.Def != nil {
		v, err = m.eval(f, p.Def)
	} else {
		if err := m.alloc(128 + len(p.Name)); err != nil {
			return err
		}
		v = &Undefined{Message: "parameter '" + p.Name + "' was not provided", Name: p.Name, Of: missing}
	}
	f.slots[p.Slot] = v
	return err
}

// bind gives the parameters the arguments.
func (c *macro) bind(m *machine, f *frame, args arguments) error {
	given := min(len(args.list), len(c.Params))
	for i := range given {
		f.slots[c.Params[i].Slot] = args.list[i]
	}
	named := args.named
	for _, p := range c.Params[given:] {
		if err := m.taking(named, p.Name); err != nil {
			return err
		}
		var v Value
		v, named = takeArgument(named, p.Name)
		f.slots[p.Slot] = v
	}
	if c.Caller >= 0 {
		var v Value
		if v, named = takeArgument(named, "caller"); v == nil || isMissing(v) {
			v = &Undefined{Message: "No caller defined", Name: "caller", Of: missing}
		}
		f.slots[c.Caller] = v
	}
	switch {
	case len(named) > 0:
		return exception.New("TypeError", "macro '%s' takes no keyword argument '%s'", c.Name, named[0].name)
	case given < len(args.list):
		return exception.New("TypeError", "macro '%s' takes not more than %d argument(s)", c.Name, len(c.Params))
	}
	return nil
}

// taking charges takeArgument.
func (m *machine) taking(named []argument, name string) error {
	if len(named) == 0 {
		return nil
	}
	if err := m.alloc(32 * len(named)); err != nil {
		return err
	}
	return m.spend(int64(len(named)) * int64(len(name)+16))
}

// takeArgument returns the argument of a name, missing if there is none, and the
// others.
func takeArgument(named []argument, name string) (Value, []argument) {
	for i, arg := range named {
		if arg.name == name {
			return arg.value, slices.Concat(named[:i], named[i+1:])
		}
	}
	return missing, named
}

// callBlock calls the macro of a call block with its body as the argument caller.
func (m *machine) callBlock(f *frame, st *syntax.CallStmt) error {
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
	v, err := m.call(fn, arguments{list: args.list, named: append(args.named, argument{"caller", caller})})
	if err != nil {
		return err
	}
	return m.writeText(v)
}

// generation writes the body of a generation block, which is the caller of a
// function that returns caller().
func (m *machine) generation(f *frame, st *syntax.GenerationStmt) error {
	caller, err := m.newMacro(f, &st.Scope)
	if err != nil {
		return err
	}
	v, err := m.call(caller, arguments{})
	if err != nil {
		return err
	}
	return m.writeText(v)
}
