package jinja

import (
	"fmt"
	"math"
)

// A machine is one rendering: its output and what is left of its limits. What it
// makes and does is charged before it is made or done.
//
// A step is what evaluates a node of the template and goes through one element, or
// takes as long: 25 ns or so of a core of 2024. What takes longer is charged as many
// steps as it may take, by [machine.scan], [machine.chars] and [machine.call].
type machine struct {
	env     *Env
	limits  Limits
	source  string  // of the template
	context []Value // what its names are; nil while it is compiled
	out     []byte  // of the template, and above it of the blocks being captured
	work    int64   // left, in parts of a step
	memory  int64   // left, in bytes
	depth   int     // of calls now
}

const (
	stepShift = 8  // a step has 1<<stepShift parts
	raising   = 40 // steps of making an error
	allocWork = 2  // parts of a step that a byte of memory takes
)

func newMachine(env *Env, out []byte) *machine {
	l := env.Limits
	for _, d := range []struct {
		limit *int
		or    int
	}{{&l.Steps, DefaultSteps}, {&l.Depth, DefaultDepth}, {&l.Output, DefaultOutput}, {&l.Memory, DefaultMemory}} {
		if *d.limit == 0 {
			*d.limit = d.or
		}
	}
	work := int64(min(uint64(l.Steps), math.MaxInt64>>stepShift)) << stepShift
	return &machine{env: env, limits: l, out: out, work: work, memory: int64(l.Memory)}
}

func overLimit(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Err: ErrLimit}
}

// step charges n steps: nodes evaluated, elements gone through.
func (m *machine) step(n int) error {
	if m.work -= int64(n) << stepShift; m.work < 0 {
		return m.exhausted()
	}
	return nil
}

// scan charges going through n bytes with what looks at many at once, such as a copy
// or a search for a byte.
func (m *machine) scan(n int) error {
	if m.work -= int64(n); m.work < 0 {
		return m.exhausted()
	}
	return nil
}

// chars charges looking at each character of n bytes.
func (m *machine) chars(n int) error { return m.scan(8 * n) }

// kinds charges looking up the kind of each character of n bytes, or as much.
func (m *machine) kinds(n int) error { return m.scan(64 * n) }

// find charges looking for sub in n bytes, forwards.
func (m *machine) find(n int, sub string) error {
	switch {
	case len(sub) < 2:
		return m.scan(n)
	case len(sub) < 64:
		return m.scan(4 * n)
	}
	return m.chars(2 * n)
}

// alloc charges n bytes of values, and the work of making them. Elements of
// containers count 16.
func (m *machine) alloc(n int) error {
	m.memory -= int64(n)
	m.work -= allocWork * int64(n)
	if m.work|m.memory|int64(n) < 0 {
		return m.exhausted()
	}
	return nil
}

// exhausted is apart so that what calls it is inlined.
func (m *machine) exhausted() error {
	if m.work < 0 && m.memory >= 0 {
		return overLimit("more than %d steps", m.limits.Steps)
	}
	return overLimit("more than %d bytes of memory", m.limits.Memory)
}

// allocMany charges n values of size bytes each, without overflow.
func (m *machine) allocMany(n, size int) error {
	if size > 0 && n > math.MaxInt32/size {
		return m.alloc(-1)
	}
	return m.alloc(n * size)
}

// enter charges a level of nesting, which leave gives back.
func (m *machine) enter() error {
	if m.depth == m.limits.Depth {
		return overLimit("nested deeper than %d", m.limits.Depth)
	}
	m.depth++
	return nil
}

func (m *machine) leave() { m.depth-- }

// write appends to the output.
func (m *machine) write(s string) error {
	if len(m.out)+len(s) > m.limits.Output {
		return overLimit("more than %d bytes of output", m.limits.Output)
	}
	m.out = append(m.out, s...)
	return m.scan(len(s))
}
