package jinja

import (
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A source is the iterable of a for.
type source struct {
	items []python.Value // of a list or tuple
	text  string         // of a str
	it    *python.Iterator
	ended bool
}

func (m *rendering) newSource(v python.Value) (source, error) {
	switch v := v.(type) {
	case *python.List:
		return source{items: v.Items}, nil
	case *python.Tuple:
		return source{items: v.Items}, nil
	case string:
		return source{text: v}, nil
	}
	it, err := m.Iterate(v)
	return source{it: it}, err
}

func (s *source) next(m *python.Machine) (python.Value, bool, error) {
	if err := m.Step(1); err != nil {
		return nil, false, err
	}
	switch {
	case len(s.items) > 0:
		v := s.items[0]
		s.items = s.items[1:]
		return v, true, nil
	case s.text != "":
		if c := s.text[0]; c < utf8.RuneSelf {
			s.text = s.text[1:]
			return python.ASCIIChars[c], true, nil
		}
		_, size := utf8.DecodeRuneInString(s.text)
		c := s.text[:size]
		s.text = s.text[size:]
		return c, true, m.Alloc(16)
	case s.it == nil:
		return nil, false, nil
	}
	if s.ended {
		return nil, false, nil
	}
	v, ok, err := s.it.Next()
	s.ended = err != nil || !ok
	return v, ok, err
}

func (m *rendering) execFor(f *frame, st *syntax.ForStmt) (flow, error) {
	iterable, err := m.eval(f, st.Iter)
	if err != nil {
		return flowNext, err
	}
	return m.loop(f, st, iterable)
}

func (m *rendering) loop(f *frame, st *syntax.ForStmt, iterable python.Value) (flow, error) {
	if st.Test != nil {
		var err error
		if iterable, err = m.filtered(f, st, iterable); err != nil {
			return flowNext, err
		}
	}
	src, err := m.newSource(iterable)
	if err != nil {
		return flowNext, err
	}
	if src.text != "" && st.Scope.Inert {
		if err := m.Chars(len(src.text)); err != nil {
			return flowNext, err
		}
		return flowNext, m.leaveScope(f, &st.Scope.Body)
	}
	turns := &src
	if st.Scope.Loop >= 0 {
		l := &loopContext{
			iterable: iterable, source: src, length: -1, index0: -1,
			after: python.Missing, current: python.Missing, before: python.Missing,
		}
		if err := m.Alloc(256); err != nil {
			return flowNext, err
		}
		f.slots[st.Scope.Loop] = l
		turns = nil
	}
	empty, err := m.turns(f, st, turns)
	if err != nil {
		return flowNext, err
	}
	if err := m.leaveScope(f, &st.Scope.Body); err != nil {
		return flowNext, err
	}
	if !empty || len(st.Els) == 0 {
		return flowNext, nil
	}
	if err := m.enterScope(f, &st.Scope.Els); err != nil {
		return flowNext, err
	}
	if end, err := m.run(f, st.Els); err != nil || end != flowNext {
		return end, err
	}
	return flowNext, m.leaveScope(f, &st.Scope.Els)
}

// turns runs the body for each element of src or, if it is nil, of the variable loop. It
// reports whether no turn came to the end of the body: one that was broken off does not count,
// so that the else of the for runs all the same.
func (m *rendering) turns(f *frame, st *syntax.ForStmt, src *source) (empty bool, err error) {
	var loop *loopContext
	if src == nil {
		loop = f.slots[st.Scope.Loop].(*loopContext)
	}
	empty = true
	for {
		var v python.Value
		var ok bool
		if loop != nil {
			v, ok, err = loop.next(&m.Machine)
			// The body may have a macro of that name.
			f.slots[st.Scope.Loop] = loop
		} else {
			v, ok, err = src.next(&m.Machine)
		}
		if err != nil || !ok {
			return empty, err
		}
		if err := m.assign(f, st.Target, v); err != nil {
			return empty, err
		}
		if err := m.enterScope(f, &st.Scope.Body); err != nil {
			return empty, err
		}
		end, err := m.run(f, st.Body)
		if err != nil || end == flowBreak {
			return empty, err
		}
		if end == flowNext {
			empty = false
		}
	}
}

// filtered is the generator of the elements for which the condition of a for holds.
// It has a frame of its own.
func (m *rendering) filtered(up *frame, st *syntax.ForStmt, iterable python.Value) (python.Value, error) {
	f, err := m.newFrame(st.Scope.TestSlots, up)
	if err != nil {
		return nil, err
	}
	var src source
	begun, running := false, false
	next := func() (python.Value, bool, error) {
		if running {
			return nil, false, exception.New("ValueError", "generator already executing")
		}
		running = true
		defer func() { running = false }()
		if !begun {
			begun = true
			if err := m.enterScope(f, &st.Scope.Test); err != nil {
				return nil, false, err
			}
			if src, err = m.newSource(iterable); err != nil {
				return nil, false, err
			}
		}
		for {
			v, ok, err := src.next(&m.Machine)
			if err != nil || !ok {
				return nil, false, err
			}
			if err := m.assign(f, st.Scope.TestTarget, v); err != nil {
				return nil, false, err
			}
			if ok, err = m.isTrue(f, st.Test); err != nil {
				return nil, false, err
			}
			if ok {
				// A tuple is made again of its unpacked elements.
				v, err := m.eval(f, st.Scope.TestTarget)
				return v, err == nil, err
			}
		}
	}
	return &python.Iterator{Next: next}, nil
}

// A loopContext is the variable loop (Jinja2 3.1.6, runtime.py, LoopContext).
type loopContext struct {
	source
	iterable python.Value
	length   int // -1: not yet known
	index0   int
	after    python.Value // the next element if it has been looked at, else Missing
	current  python.Value
	before   python.Value
}

func (l *loopContext) next(m *python.Machine) (python.Value, bool, error) {
	v, ok, err := l.after, true, error(nil)
	if python.IsMissing(v) {
		v, ok, err = l.source.next(m)
	}
	l.after = python.Missing
	if err != nil || !ok {
		return nil, false, err
	}
	l.index0++
	l.before, l.current = l.current, v
	return v, true, nil
}

// peek returns the next element, or Missing.
func (l *loopContext) peek(m *python.Machine) (python.Value, error) {
	if python.IsMissing(l.after) {
		v, ok, err := l.source.next(m)
		if err != nil {
			return nil, err
		}
		if ok {
			l.after = v
		}
	}
	return l.after, nil
}

// count returns how many elements there are, for which a generator is gone through
// to its end.
func (l *loopContext) count(m *python.Machine) (int, error) {
	if l.length >= 0 {
		return l.length, nil
	}
	if _, ok := l.iterable.(*python.Iterator); !ok {
		n, err := m.Length(l.iterable)
		if err == nil {
			l.length = n
		}
		return n, err
	}
	var rest []python.Value
	for {
		v, ok, err := l.source.next(m)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		if err := m.Alloc(32); err != nil {
			return 0, err
		}
		rest = append(rest, v)
	}
	l.source = source{items: rest}
	l.length = len(rest) + l.index0 + 1
	if !python.IsMissing(l.after) {
		l.length++
	}
	return l.length, nil
}

func (l *loopContext) Refuse(use string) error {
	return exception.Unsupported("%s the loop variable", use)
}

func (l *loopContext) TypeName() string { return "LoopContext" }

func (l *loopContext) Attr(m *python.Machine, name string) (python.Value, bool, error) {
	switch name {
	case "index":
		return int64(l.index0 + 1), true, nil
	case "index0":
		return int64(l.index0), true, nil
	case "first":
		return l.index0 == 0, true, nil
	case "last":
		v, err := l.peek(m)
		return python.IsMissing(v), true, err
	case "length", "revindex", "revindex0":
		n, err := l.count(m)
		switch name {
		case "revindex":
			n -= l.index0
		case "revindex0":
			n -= l.index0 + 1
		}
		return int64(n), true, err
	case "previtem":
		if l.index0 == 0 {
			return &python.Undefined{Message: "there is no previous item", Of: python.Missing}, true, nil
		}
		return l.before, true, nil
	case "nextitem":
		v, err := l.peek(m)
		if python.IsMissing(v) {
			v = &python.Undefined{Message: "there is no next item", Of: python.Missing}
		}
		return v, true, err
	}
	if syntax.RefusedOfLoop[name] {
		return nil, false, exception.Unsupported("loop.%s", name)
	}
	return nil, false, nil
}
