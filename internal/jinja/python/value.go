// Package python has the values of Python and what CPython 3.11 and Jinja2's sandbox do with them:
// operators, items, attributes, and the methods of str and dict. A [Machine] does it, and charges
// the work. It knows no templates.
package python

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
//	Callable    functions, bound methods, macros
//	Object      macros, loop
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
	Of   *Dict
	Kind ViewKind
}

// A ViewKind is the kind of a view.
type ViewKind uint8

// The kinds of views.
const (
	ViewKeys ViewKind = iota
	ViewValues
	ViewItems
)

// An Iterator can be gone through once. Next returns false at the end and
// ever after; it is not called again after an error.
type Iterator struct {
	Next func() (v Value, ok bool, err error)
}

// An Undefined is the value of a missing name or attribute. Most uses
// of it raise an UndefinedError with its message (Jinja2 3.1.6, runtime.py).
type Undefined struct {
	Message string // that is raised; built when it is first needed if empty
	Name    string
	Of      Value // whose attribute or item it is, or Missing
}

// A Namespace is namespace(): the one value with attributes that templates set.
type Namespace struct{ Attrs *Dict }

type missingValue struct{}

// Missing stands for no value: a variable not yet assigned, an argument not given.
var Missing Value = missingValue{}

// IsMissing is v == Missing, faster.
func IsMissing(v Value) bool {
	_, ok := v.(missingValue)
	return ok
}

// A Callable is a value that can be called.
type Callable interface {
	Call(m *Machine, args Arguments) (Value, error)
}

// A Function is a callable made of Go. Its name is for errors.
type Function struct {
	Name string
	Fn   func(m *Machine, args Arguments) (Value, error)
}

// Call calls the function.
func (f *Function) Call(m *Machine, args Arguments) (Value, error) { return f.Fn(m, args) }

// TypeName returns the name of v's type in Python.
func TypeName(v Value) string {
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
		return v.Kind.String()
	case *Iterator:
		return "generator"
	case *Undefined:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	case *boundMethod:
		return "builtin_function_or_method"
	case Object:
		return v.TypeName()
	}
	return "function"
}

// String returns the name of the type in Python.
func (k ViewKind) String() string {
	return [...]string{ViewKeys: "dict_keys", ViewValues: "dict_values", ViewItems: "dict_items"}[k]
}

// An Object is a value of one of Jinja2's own classes: a macro or the loop.
type Object interface {
	TypeName() string
	// Attr returns an attribute whose name does not begin with an underscore.
	Attr(m *Machine, name string) (Value, bool, error)
	// Refuse returns the error of a use of it, such as "the length of", that Jinja2 has and the
	// interpreter lacks, or nil.
	Refuse(use string) error
}

// Fail returns the exception of Jinja2 when u is used.
func (u *Undefined) Fail() error {
	switch name := appendReprString(nil, u.Name); {
	case u.Message != "":
		return exception.New("UndefinedError", "%s", u.Message)
	case u.Of == Missing:
		return exception.New("UndefinedError", "%s is undefined", name)
	default:
		return exception.New("UndefinedError", "'%s object' has no attribute %s", TypeName(u.Of), name)
	}
}

// AsString returns a str, a Markup among them.
func AsString(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Markup:
		return string(v), true
	}
	return "", false
}

// AsInt64 returns an int that fits, a bool among them.
func AsInt64(v Value) (int64, bool) {
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

// IsMarkup reports whether v is a Markup.
func IsMarkup(v Value) bool { _, ok := v.(Markup); return ok }

// IsUndefined reports whether v is an Undefined.
func IsUndefined(v Value) bool {
	_, ok := v.(*Undefined)
	return ok
}

// undefined is jinja2's Undefined with a hint.
