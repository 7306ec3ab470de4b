package jinja

import (
	"fmt"
	"math/big"
)

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
	class string // Python's name for its type, such as "generator"
	next  func() (v Value, ok bool, err error)
}

// An Undefined is the value of a missing name or attribute. Most uses
// of it raise an UndefinedError with its message (Jinja2 3.1.6, runtime.py).
type Undefined struct {
	Message string // that is raised; built when it is first needed if empty
	Class   string // of the exception: "UndefinedError" or "SecurityError"
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
		return v.class
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

// An object is a value of one of Jinja2's own classes: a macro, the loop, a cycler,
// a joiner.
type object interface {
	typeName() string
	// attr returns an attribute whose name does not begin with an underscore.
	attr(m *machine, name string) (Value, bool, error)
	// repr returns the result of str() and repr(), unsupported if that is an address.
	repr(m *machine) (string, error)
}

// modules are those of the classes that are not built in.
var modules = map[string]string{
	"Markup":      "markupsafe.",
	"Namespace":   "jinja2.utils.",
	"Cycler":      "jinja2.utils.",
	"Joiner":      "jinja2.utils.",
	"Undefined":   "jinja2.runtime.",
	"Macro":       "jinja2.runtime.",
	"LoopContext": "jinja2.runtime.",
	"_GroupTuple": "jinja2.filters.",
}

// fail returns the exception of Jinja2 when u is used.
func (u *Undefined) fail() error {
	class := u.Class
	if class == "" {
		class = "UndefinedError"
	}
	if u.Message != "" {
		return raise(class, "%s", u.Message)
	}
	if u.Of == missing {
		return raise(class, "%s is undefined", appendReprString(nil, u.Name))
	}
	return raise(class, "%s", attributeMessage(u.Of, appendReprString(nil, u.Name)))
}

// attributeMessage is the message that v has no attribute, whose name is quoted.
func attributeMessage(v Value, quoted []byte) string {
	return fmt.Sprintf("%s has no attribute %s", appendReprString(nil, objectName(v)), quoted)
}

// objectName is how Jinja2 calls v in a message (utils.py, object_type_repr).
func objectName(v Value) string {
	if v == nil {
		return "None"
	}
	name := typeName(v)
	return modules[name] + name + " object"
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
