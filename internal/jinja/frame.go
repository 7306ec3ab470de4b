package jinja

import "github.com/kvindex/kvindex/internal/jinja/syntax"

// A frame holds the variables of a function while it runs.
type frame struct {
	slots []Value
	up    *frame // of the function around it
}

// isMissing is v == missing, faster.
func isMissing(v Value) bool {
	_, ok := v.(missingValue)
	return ok
}

// newFrame returns a frame of n variables, none of them assigned.
func (m *machine) newFrame(n int, up *frame) (*frame, error) {
	if err := m.alloc(16*n + 48); err != nil {
		return nil, err
	}
	f := &frame{slots: make([]Value, n), up: up}
	for i := range f.slots {
		f.slots[i] = missing
	}
	return f, nil
}

func (f *frame) variable(r syntax.Ref) *Value {
	for up := r.Up; up > 0; up-- {
		f = f.up
	}
	return &f.slots[r.Slot]
}

func (m *machine) enterScope(f *frame, s *syntax.Scope) error {
	for i := range s.Loads {
		switch l := &s.Loads[i]; l.Kind {
		case syntax.LoadContext:
			f.slots[l.Slot] = m.context[l.Name]
		case syntax.LoadAlias:
			f.slots[l.Slot] = *f.variable(l.From)
		case syntax.LoadMissing:
			f.slots[l.Slot] = missing
		}
	}
	return m.step(len(s.Loads) / 8)
}

func (m *machine) leaveScope(f *frame, s *syntax.Scope) error {
	for _, slot := range s.Clear {
		f.slots[slot] = missing
	}
	return m.step(len(s.Clear) / 8)
}
