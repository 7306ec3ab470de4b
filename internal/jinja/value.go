package jinja

import "math/big"

// A Value is a value of Python:
//
//	nil         None
//	bool        bool
//	int64       int that fits
//	*big.Int    int that does not fit int64; never one that does
//	float64     float
//	string      str, as UTF-8; always valid
//	Markup      markupsafe.Markup, a str that operators escape others into
//	*List       list
//	*Tuple      tuple
//	*Dict       dict, in order of insertion
//	*Range      range
//	*View       dict.keys(), .values(), .items()
//	*Iterator   a generator or another iterator: it is gone through once
//	*Undefined  jinja2's Undefined
//	*Namespace  jinja2's namespace()
//	callable    functions, bound methods, macros, loop, cycler, joiner
//
// Values but *Iterator, *Namespace and a few callables never change once made, as
// the sandbox lets no template change a list or a dict; so they are shared freely.
type Value any

// Markup is a string that is safe to stand in HTML. No chat template is rendered
// with autoescape, so only the filters that make one, and its own operators, know
// of it.
type Markup string

// A List is a list.
type List struct{ Items []Value }

// A Tuple is a tuple. Name, if not empty, makes it a namedtuple in its repr.
type Tuple struct {
	Items []Value
}

// A Range is range(Start, Stop, Step), with Step not 0.
type Range struct{ Start, Stop, Step int64 }

// A View is a view of a dict.
type View struct {
	of   *Dict
	kind viewKind
}

type viewKind uint8

const (
	viewKeys viewKind = iota
	viewValues
	viewItems
)

// An Iterator is what can be gone through once. next returns false at the end; it
// is not called again after the end or an error.
type Iterator struct {
	class string // Python's name for its type, such as "generator"
	next  func() (v Value, ok bool, err error)
}

// An Undefined is what a name or an attribute that is not there gives. Most uses
// of it raise an UndefinedError with its message.
type Undefined struct {
	Message string // that is raised; built when it is first needed if empty
	Class   string // of what is raised: "UndefinedError" or "SecurityError"
	Name    string
	Of      Value // whose attribute or item it is, or missing
}

// A Namespace is namespace(): the one value with attributes that templates set.
type Namespace struct{ attrs *Dict }

// missing stands for no value: a variable not yet assigned, an argument not given.
type missingValue struct{}

var missing Value = missingValue{}

// A callable is a value that can be called.
type callable interface {
	call(m *machine, args arguments) (Value, error)
}

// A function is a callable made of Go. Its name is for errors.
type function struct {
	name string
	fn   func(m *machine, args arguments) (Value, error)
}

func (f *function) call(m *machine, args arguments) (Value, error) { return f.fn(m, args) }

// integer returns n as an int64 if it fits, else as it is.
func integer(n *big.Int) Value {
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}
