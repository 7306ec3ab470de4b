package jinja

import (
	"math/big"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A Value is a value of Python:
//
//	nil         None
//	bool        bool
//	int64       int that fits
//	*big.Int    int that does not fit int64, to be printed; never one that does
//	float64     float
//	string      str, as UTF-8; always valid
//	Markup      markupsafe.Markup, the result of the filter safe
//	*List       list
//	*Tuple      tuple
//	*Dict       dict, in order of insertion
//	*Range      range
//	*View       dict.keys(), .values(), .items()
//	*Iterator   a generator or another iterator: it is gone through once
//	*Undefined  jinja2's Undefined
//	*Namespace  jinja2's namespace()
//	callable    functions, bound methods, macros
//	object      macros, loop
//
// Values but *Iterator, *Namespace and loop never change once made, as
// the sandbox lets no template change a list or a dict; so they are shared freely.
type Value any

// Markup is a string that is safe to stand in HTML. No chat template is rendered with
// autoescape, so it is printed and compared as the string that it is; its operators and methods,
// which escape what they add, are refused.
type Markup string

// A List is a list.
type List struct{ Items []Value }

// A Tuple is a tuple.
type Tuple struct{ Items []Value }

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

// An Iterator can be gone through once. next returns false at the end and
// ever after; it is not called again after an error.
type Iterator struct {
	next func() (v Value, ok bool, err error)
}

// An Undefined is the value of a missing name or attribute. Most uses
// of it raise an UndefinedError with its message (Jinja2 3.1.6, runtime.py).
type Undefined struct {
	Message string // that is raised; built when it is first needed if empty
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

// typeName returns the name of v's type in Python.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case Markup:
		return "Markup"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *Range:
		return "range"
	case *View:
		return v.kind.String()
	case *Iterator:
		return "generator"
	case *Undefined:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	case *boundMethod:
		return "builtin_function_or_method"
	case object:
		return v.typeName()
	}
	return "function"
}

func (k viewKind) String() string {
	return [...]string{viewKeys: "dict_keys", viewValues: "dict_values", viewItems: "dict_items"}[k]
}

// An object is a value of one of Jinja2's own classes: a macro or the loop.
type object interface {
	typeName() string
	// attr returns an attribute whose name does not begin with an underscore.
	attr(m *machine, name string) (Value, bool, error)
}

// fail returns the exception of Jinja2 when u is used.
func (u *Undefined) fail() error {
	switch name := appendReprString(nil, u.Name); {
	case u.Message != "":
		return exception.New("UndefinedError", "%s", u.Message)
	case u.Of == missing:
		return exception.New("UndefinedError", "%s is undefined", name)
	default:
		return exception.New("UndefinedError", "'%s object' has no attribute %s", typeName(u.Of), name)
	}
}

// asString returns a str, a Markup among them.
func asString(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Markup:
		return string(v), true
	}
	return "", false
}

// asInt64 returns an int that fits, a bool among them.
func asInt64(v Value) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return boolInt(v), true
	}
	return 0, false
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
