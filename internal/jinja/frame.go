package jinja

import (
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A rendering is a template that runs.
type rendering struct {
	python.Machine
	source  string         // of the template
	context []python.Value // of its names
}

// A frame holds the variables of a function while it runs.
type frame struct {
	slots []python.Value
	up    *frame // of the function around it
}

// newFrame returns a frame of n variables, none of them assigned.
func (m *rendering) newFrame(n int, up *frame) (*frame, error) {
	if err := m.Alloc(16*n + 48); err != nil {
		return nil, err
	}
	f := &frame{slots: make([]python.Value, n), up: up}
	for i := range f.slots {
		f.slots[i] = python.Missing
	}
	return f, nil
}

func (f *frame) variable(r syntax.Ref) *python.Value {
	for up := r.Up; up > 0; up-- {
		f = f.up
	}
	return &f.slots[r.Slot]
}

func (m *rendering) enterScope(f *frame, s *syntax.Scope) error {
	for i := range s.Loads {
		switch l := &s.Loads[i]; l.Kind {
		case syntax.LoadContext:
			f.slots[l.Slot] = m.context[l.Name]
		case syntax.LoadAlias:
			f.slots[l.Slot] = *f.variable(l.From)
		case syntax.LoadMissing:
			f.slots[l.Slot] = python.Missing
		}
	}
	return m.Step(len(s.Loads) / 8)
}

func (m *rendering) leaveScope(f *frame, s *syntax.Scope) error {
	for _, slot := range s.Clear {
		f.slots[slot] = python.Missing
	}
	return m.Step(len(s.Clear) / 8)
}
