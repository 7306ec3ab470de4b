// Package jinja renders chat templates as Jinja2 3.1.6 does in the environment
// that transformers makes for them: an ImmutableSandboxedEnvironment with
// trim_blocks, lstrip_blocks, the loopcontrols extension and the generation tag,
// no autoescape, tojson as json.dumps without ASCII escapes, and the globals
// raise_exception and strftime_now (transformers 4.57, utils/chat_template_utils.py).
//
// A template either renders byte by byte as there, or it is an error: [Compile] refuses constructs
// of Jinja2 that this package lacks, by name and line, and Render those that only a value shows. It
// lacks what none of some 150 public chat templates uses: the tags filter, with and print, a
// variable twice in a set, recursive loops, cycle and changed of a loop, * and ** of calls, varargs
// and kwargs, 24 filters and 6 tests, seldom used methods, attributes of numbers, functions and
// macros, operators of Markup, arithmetic of ints beyond 64 bits, // and % of floats, keys other
// than None, bools, ints and strings, and all formats but %s, %d and fields without numbers.
package jinja

import (
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// Why an interpreter of our own. A chat is scored only if its text is the engine's, and no Go
// engine of Jinja is exact: gonja v2.9.1 and minijinja-go v2.24.0 render 81 % and 71 % of the
// recorded chats as Jinja2 does, and a client's tool schema can overflow the stack of the
// first. The interpreter is a tree of nodes with variables in slots, as idtracking.py of
// Jinja2 assigns them. Python's values are Go's, behind one interface type.
//
// An attribute of Python is never undefined: a method of strings that this package lacks is an
// error. Jinja2 evaluates constants while it compiles, which shows in errors, and in floats that
// are not finite: those are refused. TestDifferential generates programs for every construct of
// Jinja2's own lists and compares the texts.

// An Error is an error of a template, at compiling or rendering. Those about constructs that this
// package lacks wrap ErrUnsupported, those about a rendering past one of its Limits ErrLimit.
type Error = exception.Error

// The errors that an Error wraps.
var (
	ErrUnsupported = exception.ErrUnsupported
	ErrLimit       = exception.ErrLimit
)

// A Template is a compiled template. It is safe for concurrent use.
type Template struct {
	source  string
	tree    *syntax.Tree
	globals []python.Value // the value of each of tree.Names if the host does not set it
}

// Env is the environment of a rendering. The zero Env has the default Limits and the local
// time.
type Env struct {
	// Now is the clock of strftime_now, which uses its location. Nil: time.Now.
	Now    func() time.Time
	Limits python.Limits
}
