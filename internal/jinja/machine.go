// Limits are time. A client's tools and messages steer a template's loops and recursion, and a
// request may bring its own template. So all work is charged, and past a limit the rendering
// is an error. The steps of a chat grow with its messages and its text, so that a long
// conversation fits and a small hostile schema does not. Python's own limits (4,300 digits of a
// printed int, ranges of 100,000) are there as well.

package jinja

import (
	"cmp"
	"math"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A machine is one rendering: its output and the rest of its limits. All that it
// makes and does is charged before it is made or done.
//
// A step is what it takes to evaluate a node of the template, or to go through one
// element: at most some 40 ns of a server's core of 2024, so that DefaultSteps are
// about 50 ms. Longer work is charged more: text by [machine.scan],
// [machine.chars] or [machine.kinds], values by [machine.alloc].
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

// Work is counted in parts of a step, so that little of it adds up.
const stepParts = 256

// raising is how many steps an error takes that is not the end.
const raising = 20

func newMachine(env *Env, out []byte) *machine {
	l := env.Limits
	l.Steps = cmp.Or(l.Steps, DefaultSteps)
	l.Depth = cmp.Or(l.Depth, DefaultDepth)
	l.Output = cmp.Or(l.Output, DefaultOutput)
	l.Memory = cmp.Or(l.Memory, DefaultMemory)
	work := stepParts * min(int64(l.Steps), math.MaxInt64/stepParts)
	return &machine{env: env, limits: l, out: out, work: work, memory: int64(l.Memory)}
}

// step charges n steps: nodes evaluated, elements gone through.
func (m *machine) step(n int) error { return m.spend(stepParts * int64(n)) }

// scan charges n bytes that are gone through many at once, as in a copy, a
// comparison, or a search for one byte.
func (m *machine) scan(n int) error { return m.spend(int64(n)) }

// chars charges n bytes of which each is looked at.
func (m *machine) chars(n int) error { return m.spend(8 * int64(n)) }

// kinds charges n bytes of which the kind of each character is looked up, or where
// each is as much work as that.
func (m *machine) kinds(n int) error { return m.spend(64 * int64(n)) }

// find charges looking for sub in n bytes, from the left.
func (m *machine) find(n int, sub string) error {
	switch {
	case len(sub) < 2:
		return m.scan(n)
	case len(sub) < 64: // for which there are instructions
		return m.spend(4 * int64(n))
	}
	return m.chars(2 * n)
}

// spend charges parts of a step.
func (m *machine) spend(parts int64) error {
	if m.work -= parts; m.work < 0 {
		return m.exhausted()
	}
	return nil
}

// alloc charges n bytes of values, and half a step and more for making them.
// Elements of containers count 16.
func (m *machine) alloc(n int) error {
	m.memory -= int64(n)
	m.work -= stepParts/2 + 2*int64(n)
	if m.work|m.memory|int64(n) < 0 {
		return m.exhausted()
	}
	return nil
}

// exhausted is apart so that what calls it is inlined.
func (m *machine) exhausted() error {
	if m.work < 0 && m.memory >= 0 {
		return exception.OverLimit("more than %d steps", m.limits.Steps)
	}
	return exception.OverLimit("more than %d bytes of memory", m.limits.Memory)
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
		return exception.OverLimit("nested deeper than %d", m.limits.Depth)
	}
	m.depth++
	return nil
}

func (m *machine) leave() { m.depth-- }

// write appends to the output.
func (m *machine) write(s string) error {
	if len(m.out)+len(s) > m.limits.Output {
		return exception.OverLimit("more than %d bytes of output", m.limits.Output)
	}
	m.out = append(m.out, s...)
	return m.scan(len(s))
}
