package python

import (
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A boundMethod is obj.name of a value that Python has built in.
type boundMethod struct {
	of   Value
	name string
}

// Call calls the method.
func (b *boundMethod) Call(m *Machine, args Arguments) (Value, error) {
	v, _, err := m.CallMethod(b.of, b.name, args)
	return v, err
}

// A method is one of a type that Python has built in, but str.
type method struct {
	params []string // as of Arguments.Bind
	fn     func(m *Machine, self *Dict, a []Value) (Value, error)
}

// dictMethods are the methods of dict.
var dictMethods = map[string]method{
	"get":    {[]string{"/key", "/default?"}, dictGet},
	"items":  {nil, viewOf(ViewItems)},
	"keys":   {nil, viewOf(ViewKeys)},
	"values": {nil, viewOf(ViewValues)},
}

func dictGet(m *Machine, self *Dict, a []Value) (Value, error) {
	v, ok, err := self.get(m, a[0])
	if err == nil && !ok && a[1] != Missing {
		return a[1], nil
	}
	return v, err
}

func viewOf(kind ViewKind) func(*Machine, *Dict, []Value) (Value, error) {
	return func(m *Machine, self *Dict, _ []Value) (Value, error) {
		return &View{self, kind}, m.Alloc(16)
	}
}

// CallMethod calls obj.name(args); ok is false, and nothing happened, if that is no
// method of a type that Python has built in.
func (m *Machine) CallMethod(obj Value, name string, args Arguments) (v Value, ok bool, err error) {
	switch obj := obj.(type) {
	case string:
		return m.callText(obj, name, args)
	case *Dict:
		method, ok := dictMethods[name]
		if !ok {
			return nil, false, nil
		}
		a, err := args.fill(name, method.params)
		if err != nil {
			return nil, true, err
		}
		v, err = method.fn(m, obj, a)
		return v, true, err
	case Markup:
		return nil, false, exception.Unsupported("a method of a Markup")
	}
	return nil, false, nil
}

// callText is CallMethod of a str.
func (m *Machine) callText(s string, name string, args Arguments) (v Value, ok bool, err error) {
	if name == "format" {
		v, err := m.strFormat(s, args)
		return v, true, err
	}
	method, ok := strMethods[name]
	if !ok {
		return nil, false, nil
	}
	a, err := args.fill(name, method.params)
	if err != nil {
		return nil, true, err
	}
	v, err = method.fn(m, s, a)
	return v, true, err
}

// fill is Bind without a copy, where none is needed.
func (a Arguments) fill(fn string, params []string) ([]Value, error) {
	if len(a.Named) == 0 && len(a.List) == len(params) {
		return a.List, nil
	}
	return a.Bind(fn, params...)
}

// lackingAttrs are the attributes that Python has and this package lacks, or the sandbox forbids
// (Jinja2 3.1.6, sandbox.py), by type. Those that begin with an underscore are not in it.
var lackingAttrs = map[string]string{
	"str": " casefold center encode expandtabs format_map index isalnum isalpha isascii isdecimal isidentifier islower " +
		"isnumeric isprintable isspace istitle isupper ljust maketrans partition rindex rjust rpartition swapcase translate zfill ",
	"list":        " append clear copy count extend index insert pop remove reverse sort ",
	"tuple":       " count index ",
	"dict":        " clear copy fromkeys pop popitem setdefault update ",
	"int":         lackingOfInt,
	"bool":        lackingOfInt,
	"float":       " as_integer_ratio conjugate fromhex hex imag is_integer real ",
	"range":       " count index start step stop ",
	"dict_keys":   " isdisjoint mapping ",
	"dict_values": " mapping ",
	"dict_items":  " isdisjoint mapping ",
	"generator":   " close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw ",
}

const lackingOfInt = " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes "

// listed reports whether name is one of the names, which stand between spaces.
func listed(names, name string) bool {
	return len(name) <= longestAttr && strings.Contains(names, " "+name+" ") && !strings.Contains(name, " ")
}

// longestAttr is no shorter than any name in the lists, in bytes.
const longestAttr = 32

// attr returns Python's getattr(obj, name); ok is false where that is an AttributeError.
func (m *Machine) attr(obj Value, name string) (v Value, ok bool, err error) {
	if err := m.Scan(4 * len(name)); err != nil { // it is looked up in several maps
		return nil, false, err
	}
	switch obj := obj.(type) {
	case *Dict:
		if !isDictAttr(name) {
			return nil, false, nil
		}
		if _, ok := dictMethods[name]; ok {
			return &boundMethod{obj, name}, true, m.Alloc(32)
		}
	case *Undefined:
		if !isDunder(name) {
			return nil, false, obj.Fail()
		}
	case string:
		if _, ok := strMethods[name]; ok || name == "format" {
			return &boundMethod{obj, name}, true, m.Alloc(32)
		}
	case *Function, Markup:
		return nil, false, exception.Unsupported("an attribute of a %s", TypeName(obj))
	}
	class := TypeName(obj)
	if strings.HasPrefix(name, "_") || listed(lackingAttrs[class], name) {
		return nil, false, exception.Unsupported("%s.%.40s", class, name)
	}
	switch obj := obj.(type) {
	case *Namespace:
		v, ok := obj.Attrs.Lookup(name)
		return v, ok, nil
	case Object:
		return obj.Attr(m, name)
	}
	return nil, false, nil
}

// isDictAttr reports whether a dict has, or may have, an attribute of the name.
func isDictAttr(name string) bool {
	_, ok := dictMethods[name]
	return ok || listed(lackingAttrs["dict"], name) || isDunder(name)
}

// Attrs reports whether a dict and a str may have an attribute of the name, and whether it is a
// method of str that is refused.
func Attrs(name string) (dict, str, refusedOfStr bool) {
	if name == "" || name[0] == '_' {
		return true, true, false
	}
	_, str = strMethods[name]
	refusedOfStr = listed(lackingAttrs["str"], name)
	return isDictAttr(name), str || name == "format" || refusedOfStr, refusedOfStr
}

func isDunder(name string) bool {
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// Getattr is obj.name in a template (sandbox.py, getattr): the attribute, else the
// item.
func (m *Machine) Getattr(obj Value, name string) (Value, error) {
	v, ok, err := m.attr(obj, name)
	if err != nil || ok {
		return v, err
	}
	if d, ok := obj.(*Dict); ok {
		if err := m.Scan(LookupCost * len(name)); err != nil {
			return nil, err
		}
		if v, ok := d.Lookup(name); ok {
			return v, nil
		}
	}
	return &Undefined{Name: name, Of: obj}, m.Alloc(64)
}

// Getitem is obj[key] in a template (sandbox.py, getitem): the item, else the
// attribute.
func (m *Machine) Getitem(obj, key Value) (Value, error) {
	name, isText := AsString(key)
	if err := m.Scan(LookupCost * len(name)); err != nil {
		return nil, err
	}
	if !isText {
		v, err := m.Index(obj, key)
		if exception.Is(err, "TypeError", "KeyError", "IndexError") {
			if err := m.Step(RaisingSteps); err != nil {
				return nil, err
			}
			return &Undefined{Message: TypeName(obj) + " object has no such element", Of: obj}, m.Alloc(64)
		}
		return v, err
	}
	// Of all that has items, only a dict's have names.
	switch obj := obj.(type) {
	case *Dict:
		if v, ok := obj.Lookup(name); ok {
			return v, nil
		}
	case *Undefined:
		return nil, obj.Fail()
	}
	v, ok, err := m.attr(obj, name)
	if err != nil || ok {
		return v, err
	}
	return &Undefined{Name: name, Of: obj}, m.Alloc(64)
}
