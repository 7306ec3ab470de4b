package jinja

import "slices"

// A macro is a macro, or the body of a call block (Jinja2 3.1.6, runtime.py).
type macro struct {
	*macroScope
	up *frame // of the function that defines it
}

func (m *machine) newMacro(f *frame, s *macroScope) (*macro, error) {
	return &macro{s, f}, m.alloc(32)
}

func (c *macro) typeName() string { return "Macro" }

func (c *macro) repr(m *machine) (string, error) {
	if c.name == "" {
		return "<Macro anonymous>", nil
	}
	name, err := m.appendRepr(nil, c.name)
	return "<Macro " + string(name) + ">", err
}

func (c *macro) attr(_ *machine, name string) (Value, bool, error) {
	switch name {
	case "name":
		if c.name == "" {
			return nil, true, nil
		}
		return c.name, true, nil
	case "arguments":
		return c.names, true, nil
	case "catch_kwargs":
		return c.kwargs >= 0, true, nil
	case "catch_varargs":
		return c.varargs >= 0, true, nil
	case "caller":
		return c.hasCaller, true, nil
	case "explicit_caller":
		return c.isParam, true, nil
	}
	return nil, false, nil
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
	foundCaller := c.isParam && given == len(c.params)
	named := args.named
	for _, p := range c.params[given:] {
		if err := m.taking(named, p.name); err != nil {
			return err
		}
		var v Value
		v, named = takeArgument(named, p.name)
		f.slots[p.slot] = v
		foundCaller = foundCaller || p.name == "caller"
	}
	if c.hasCaller && !foundCaller {
		if c.isParam {
			return raise("TypeError", "macro() got one argument too many")
		}
		var v Value
		if v, named = takeArgument(named, "caller"); v == nil || isMissing(v) {
			v = &Undefined{Message: "No caller defined", Name: "caller", Of: missing}
		}
		f.slots[c.caller] = v
	}
	return c.bindRest(m, f, args.list[given:], named)
}

// bindRest gives kwargs and varargs what is left of the arguments, and refuses it
// if the macro does not take it.
func (c *macro) bindRest(m *machine, f *frame, list []Value, named []argument) error {
	switch {
	case c.kwargs >= 0:
		d := &Dict{}
		for _, arg := range named {
			if err := d.set(m, arg.name, arg.value); err != nil {
				return err
			}
		}
		f.slots[c.kwargs] = d
	case len(named) > 0:
		for _, arg := range named {
			if arg.name == "caller" {
				return raise("TypeError", "macro '%s' was invoked with two values for the special caller argument. This is most likely a bug.", c.name)
			}
		}
		return raise("TypeError", "macro '%s' takes no keyword argument '%s'", c.name, named[0].name)
	}
	switch {
	case c.varargs >= 0:
		f.slots[c.varargs] = &Tuple{Items: list}
		return m.alloc(24)
	case len(list) > 0:
		return raise("TypeError", "macro '%s' takes not more than %d argument(s)", c.name, len(c.params))
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
	for _, arg := range args.named {
		if arg.name == "caller" {
			return raise("TypeError", "got multiple values for keyword argument 'caller'")
		}
	}
	// Those of "**" come behind those by name.
	named := slices.Insert(slices.Clip(args.named), len(st.call.args.named), argument{"caller", caller})
	v, err := m.call(fn, arguments{list: args.list, named: named})
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
