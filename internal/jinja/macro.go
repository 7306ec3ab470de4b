package jinja

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A macro is a macro, or the body of a call block (Jinja2 3.1.6, runtime.py).
type macro struct {
	*macroScope
	up *frame // of the function that defines it
}

func (m *machine) newMacro(f *frame, s *macroScope) (*macro, error) {
	return &macro{s, f}, m.alloc(32)
}

func (c *macro) typeName() string { return "Macro" }

func (c *macro) attr(_ *machine, name string) (Value, bool, error) {
	return nil, false, exception.Unsupported("the attribute %s of a macro", name)
}

// call runs the macro and returns its output.
func (c *macro) call(m *machine, args arguments) (Value, error) {
	if err := m.step(2 + len(c.params)/4); err != nil {
		return nil, err
	}
	f, err := m.newFrame(c.slots, c.up)
	if err != nil {
		return nil, err
	}
	if err := c.bind(m, f, args); err != nil {
		return nil, err
	}
	if err := m.enterScope(f, &c.scope); err != nil {
		return nil, err
	}
	for i := range c.params {
		if err := c.setDefault(m, f, &c.params[i]); err != nil {
			return nil, err
		}
	}
	v, _, err := m.capture(f, c.body)
	return v, err
}

func (c *macro) setDefault(m *machine, f *frame, p *param) error {
	if f.slots[p.slot] != missing {
		return nil
	}
	var v Value
	var err error
	if p.def != nil {
		v, err = m.eval(f, p.def)
	} else {
		if err := m.alloc(128 + len(p.name)); err != nil {
			return err
		}
		v = &Undefined{Message: "parameter '" + p.name + "' was not provided", Name: p.name, Of: missing}
	}
	f.slots[p.slot] = v
	return err
}

// bind gives the parameters the arguments.
func (c *macro) bind(m *machine, f *frame, args arguments) error {
	given := min(len(args.list), len(c.params))
	for i := range given {
		f.slots[c.params[i].slot] = args.list[i]
	}
	named := args.named
	for _, p := range c.params[given:] {
		if err := m.taking(named, p.name); err != nil {
			return err
		}
		var v Value
		v, named = takeArgument(named, p.name)
		f.slots[p.slot] = v
	}
	if c.caller >= 0 {
		var v Value
		if v, named = takeArgument(named, "caller"); v == nil || isMissing(v) {
			v = &Undefined{Message: "No caller defined", Name: "caller", Of: missing}
		}
		f.slots[c.caller] = v
	}
	switch {
	case len(named) > 0:
		return exception.New("TypeError", "macro '%s' takes no keyword argument '%s'", c.name, named[0].name)
	case given < len(args.list):
		return exception.New("TypeError", "macro '%s' takes not more than %d argument(s)", c.name, len(c.params))
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
func (m *machine) callBlock(f *frame, st *callStmt) error {
	caller, err := m.newMacro(f, &st.scope)
	if err != nil {
		return err
	}
	fn, err := m.eval(f, st.call.fn)
	if err != nil {
		return err
	}
	args, err := m.evalArgs(f, &st.call.args)
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
func (m *machine) generation(f *frame, st *generationStmt) error {
	caller, err := m.newMacro(f, &st.scope)
	if err != nil {
		return err
	}
	v, err := m.call(caller, arguments{})
	if err != nil {
		return err
	}
	return m.writeText(v)
}
