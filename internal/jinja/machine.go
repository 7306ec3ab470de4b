package jinja

import (
	"fmt"
	"math"
)

// A machine is one rendering: its output and what is left of its limits. What it
// makes and does is charged before it is made or done.
type machine struct {
	env     *Env
	limits  Limits
	source  string  // of the template
	context []Value // what its names are; nil while it is compiled
	out     []byte  // of the template, and above it of the blocks being captured
	steps   int     // left
	memory  int     // left, in bytes
	depth   int     // of calls now
}

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
	return &machine{env: env, limits: l, out: out, steps: l.Steps, memory: l.Memory}
}

func overLimit(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Err: ErrLimit}
}

// step charges n steps: nodes evaluated, elements gone through.
func (m *machine) step(n int) error {
	if m.steps -= n; m.steps < 0 {
		return m.outOf("steps", m.limits.Steps)
	}
	return nil
}

// outOf is apart from step and alloc so that these are inlined.
func (m *machine) outOf(what string, limit int) error {
	return overLimit("more than %d %s", limit, what)
}

// scan charges going through n bytes of text.
func (m *machine) scan(n int) error {
	if n < 256 {
		return nil
	}
	return m.step(n / 256)
}

// alloc charges n bytes of values. Elements of containers count 16.
func (m *machine) alloc(n int) error {
	if m.memory -= n; m.memory < 0 || n < 0 {
		return m.outOf("bytes of memory", m.limits.Memory)
	}
	return nil
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
	return nil
}
