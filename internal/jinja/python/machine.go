// Limits are time. A client's tools and messages steer a template's loops and recursion, and a
// request may bring its own template. So all work is charged, and past a limit the rendering
// is an error. The steps of a chat grow with its messages and its text, so that a long
// conversation fits and a small hostile schema does not. Python's own limits (4,300 digits of a
// printed int, ranges of 100,000) are there as well.

package python

import (
	"cmp"
	"math"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// Limits bound a rendering; each zero stands for its default. A template that goes through all
// messages for each of them, or adds to a text again and again, reaches a limit of Steps or
// Memory with some hundred messages.
type Limits struct {
	Steps  int // nodes evaluated, elements gone through, and other work as long; defaultSteps
	Depth  int // nested calls, and nested containers of a value; defaultDepth
	Output int // bytes of the result; defaultOutput
	Memory int // bytes of all values made on the way; defaultMemory
}

// The defaults of Limits.
const (
	defaultSteps  = 5 << 18 // 50 ms or so
	defaultDepth  = 256
	defaultOutput = 16 << 20
	defaultMemory = 96 << 20
)

// A Machine runs Python: it has the rest of the limits. All that it makes and does is charged
// before it is made or done.
//
// A step is what it takes to evaluate a node of the template, or to go through one
// element: at most some 40 ns of a server's core of 2024, so that defaultSteps are
// about 50 ms. Longer work is charged more: text by [Machine.Scan],
// [Machine.Chars] or [Machine.Kinds], values by [Machine.Alloc].
type Machine struct {
	Now    func() time.Time // the clock; nil: time.Now
	Out    []byte           // of the template, and above it of the blocks being captured
	limits Limits
	work   int64 // left, in parts of a step
	memory int64 // left, in bytes
	depth  int   // of calls now
}

// StepParts is how many parts a step has. Work is counted in them, so that little of it adds up.
const StepParts = 256

// RaisingSteps is how many steps an error takes that is not the end.
const RaisingSteps = 20

// NewMachine returns a machine within limits.
func NewMachine(l Limits) *Machine {
	l.Steps = cmp.Or(l.Steps, defaultSteps)
	l.Depth = cmp.Or(l.Depth, defaultDepth)
	l.Output = cmp.Or(l.Output, defaultOutput)
	l.Memory = cmp.Or(l.Memory, defaultMemory)
	work := StepParts * min(int64(l.Steps), math.MaxInt64/StepParts)
	return &Machine{limits: l, work: work, memory: int64(l.Memory)}
}

// Step charges n steps: nodes evaluated, elements gone through.
func (m *Machine) Step(n int) error { return m.Spend(StepParts * int64(n)) }

// Scan charges n bytes that are gone through many at once, as in a copy, a
// comparison, or a search for one byte.
func (m *Machine) Scan(n int) error { return m.Spend(int64(n)) }

// Chars charges n bytes of which each is looked at.
func (m *Machine) Chars(n int) error { return m.Spend(8 * int64(n)) }

// Kinds charges n bytes of which the kind of each character is looked up, or where
// each is as much work as that.
func (m *Machine) Kinds(n int) error { return m.Spend(64 * int64(n)) }

// find charges looking for sub in n bytes, from the left.
func (m *Machine) find(n int, sub string) error {
	switch {
	case len(sub) < 2:
		return m.Scan(n)
	case len(sub) < 64: // for which there are instructions
		return m.Spend(4 * int64(n))
	}
	return m.Chars(2 * n)
}

// Spend charges parts of a step.
func (m *Machine) Spend(parts int64) error {
	if m.work -= parts; m.work < 0 {
		return m.exhausted()
	}
	return nil
}

// Alloc charges n bytes of values, and half a step and more for making them.
// Elements of containers count 16.
func (m *Machine) Alloc(n int) error {
	m.memory -= int64(n)
	m.work -= StepParts/2 + 2*int64(n)
	if m.work|m.memory|int64(n) < 0 {
		return m.exhausted()
	}
	return nil
}

// exhausted is apart so that its callers are inlined.
func (m *Machine) exhausted() error {
	if m.work < 0 && m.memory >= 0 {
		return exception.OverLimit("more than %d steps", m.limits.Steps)
	}
	return exception.OverLimit("more than %d bytes of memory", m.limits.Memory)
}

// AllocMany charges n values of size bytes each, without overflow.
func (m *Machine) AllocMany(n, size int) error {
	if size > 0 && n > math.MaxInt32/size {
		return m.Alloc(-1)
	}
	return m.Alloc(n * size)
}

// Enter charges a level of nesting, which Leave gives back.
func (m *Machine) Enter() error {
	if m.depth == m.limits.Depth {
		return exception.OverLimit("nested deeper than %d", m.limits.Depth)
	}
	m.depth++
	return nil
}

// Leave gives back a level of nesting.
func (m *Machine) Leave() { m.depth-- }

// Write appends to the output.
func (m *Machine) Write(s string) error {
	if len(m.Out)+len(s) > m.limits.Output {
		return exception.OverLimit("more than %d bytes of output", m.limits.Output)
	}
	m.Out = append(m.Out, s...)
	return m.Scan(len(s))
}
