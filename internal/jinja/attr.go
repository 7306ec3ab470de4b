package jinja

import (
	"strings"
)

// A boundMethod is obj.name of a value that Python has built in.
type boundMethod struct {
	of   Value
	name string
}

func (b *boundMethod) call(m *machine, args arguments) (Value, error) {
	v, _, err := m.callMethod(b.of, b.name, args)
	return v, err
}

// A method is one of a type that Python has built in, but str.
type method struct {
	params []string // as of arguments.bind
	fn     func(m *machine, self Value, a []Value) (Value, error)
}

// methodsOf returns the methods of v's type that this package has, but those of str.
func methodsOf(v Value) map[string]method {
	switch v.(type) {
	case *Dict:
		return dictMethods
	case *List:
		return listMethods
	case *Tuple:
		return tupleMethods
	}
	return nil
}

// callMethod calls obj.name(args); ok is false, and nothing happened, if that is no
// method of a type that Python has built in.
func (m *machine) callMethod(obj Value, name string, args arguments) (v Value, ok bool, err error) {
	if s, ok := asString(obj); ok {
		_, markup := obj.(Markup)
		return m.callText(s, markup, name, args)
	}
	method, ok := methodsOf(obj)[name]
	if !ok {
		return nil, false, nil
	}
	a, err := args.fill(name, method.params)
	if err != nil {
		return nil, true, err
	}
	v, err = method.fn(m, obj, a)
	return v, true, err
}

// callText is callMethod of a str.
func (m *machine) callText(s string, markup bool, name string, args arguments) (v Value, ok bool, err error) {
	if name == "format" && !markup {
		v, err := m.strFormat(s, args)
		return v, true, err
	}
	method, ok := strMethods[name]
	if !ok || markup && listed(unsupportedAttrs["Markup"], name) {
		return nil, false, nil
	}
	a, err := args.fill(name, method.params)
	if err != nil {
		return nil, true, err
	}
	v, err = method.fn(m, s, a)
	if markup && err == nil {
		v, err = m.asMarkup(v)
	}
	return v, true, err
}

// fill is bind without a copy, where none is needed.
func (a arguments) fill(fn string, params []string) ([]Value, error) {
	if len(a.named) == 0 && len(a.list) == len(params) {
		return a.list, nil
	}
	return a.bind(fn, params...)
}

// Attributes that Python has and this package lacks, and those that the sandbox forbids
// (Jinja2 3.1.6, sandbox.py), by type.
var (
	unsupportedAttrs = map[string]string{
		"str":         unsupportedOfStr,
		"Markup":      unsupportedOfStr + "escape format join removesuffix replace striptags unescape ",
		"dict":        " fromkeys ",
		"int":         unsupportedOfInt,
		"bool":        unsupportedOfInt,
		"float":       " as_integer_ratio conjugate fromhex hex imag is_integer real ",
		"range":       " count index start step stop ",
		"dict_keys":   " isdisjoint mapping ",
		"dict_values": " mapping ",
		"dict_items":  " isdisjoint mapping ",
		"generator":   " close gi_running gi_suspended gi_yieldfrom send throw ",
	}
	unsafeAttrs = map[string]string{
		"dict":      " clear pop popitem setdefault update ",
		"list":      " append clear pop reverse insert sort extend remove ",
		"generator": " gi_frame gi_code ",
	}
)

const (
	unsupportedOfStr = " casefold center encode expandtabs format_map isidentifier isprintable istitle ljust maketrans rjust swapcase translate zfill "
	unsupportedOfInt = " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes "
)

// The names that begin with an underscore, by type: of all, and beyond them.
const privateAttrs = " __class__ __delattr__ __dir__ __doc__ __eq__ __format__ __ge__ __getattribute__ __getstate__ __gt__ __hash__ __init__ __init_subclass__ __le__ __lt__ __ne__ __new__ __reduce__ __reduce_ex__ __repr__ __setattr__ __sizeof__ __str__ __subclasshook__ "

const (
	privateOfStr  = " __add__ __contains__ __getitem__ __getnewargs__ __iter__ __len__ __mod__ __mul__ __rmod__ __rmul__ "
	privateOfInt  = " __abs__ __add__ __and__ __bool__ __ceil__ __divmod__ __float__ __floor__ __floordiv__ __getnewargs__ __index__ __int__ __invert__ __lshift__ __mod__ __mul__ __neg__ __or__ __pos__ __pow__ __radd__ __rand__ __rdivmod__ __rfloordiv__ __rlshift__ __rmod__ __rmul__ __ror__ __round__ __rpow__ __rrshift__ __rshift__ __rsub__ __rtruediv__ __rxor__ __sub__ __truediv__ __trunc__ __xor__ "
	privateOfSet  = " __and__ __contains__ __iter__ __len__ __or__ __rand__ __reversed__ __ror__ __rsub__ __rxor__ __sub__ __xor__ "
	privateOfCode = " __call__ __module__ __name__ __qualname__ __self__ __text_signature__ "
)

var privateOf = map[string]string{
	"str":                        privateOfStr,
	"Markup":                     privateOfStr + "__html__ __html_format__ __module__ __radd__ __slots__ ",
	"int":                        privateOfInt,
	"bool":                       privateOfInt,
	"float":                      " __abs__ __add__ __bool__ __ceil__ __divmod__ __float__ __floor__ __floordiv__ __getformat__ __getnewargs__ __int__ __mod__ __mul__ __neg__ __pos__ __pow__ __radd__ __rdivmod__ __rfloordiv__ __rmod__ __rmul__ __round__ __rpow__ __rsub__ __rtruediv__ __sub__ __truediv__ __trunc__ ",
	"NoneType":                   " __bool__ ",
	"list":                       " __add__ __class_getitem__ __contains__ __delitem__ __getitem__ __iadd__ __imul__ __iter__ __len__ __mul__ __reversed__ __rmul__ __setitem__ ",
	"tuple":                      " __add__ __class_getitem__ __contains__ __getitem__ __getnewargs__ __iter__ __len__ __mul__ __rmul__ ",
	"dict":                       " __class_getitem__ __contains__ __delitem__ __getitem__ __ior__ __iter__ __len__ __or__ __reversed__ __ror__ __setitem__ ",
	"range":                      " __bool__ __contains__ __getitem__ __iter__ __len__ __reversed__ ",
	"dict_keys":                  privateOfSet,
	"dict_values":                " __iter__ __len__ __reversed__ ",
	"dict_items":                 privateOfSet,
	"generator":                  " __del__ __iter__ __name__ __next__ __qualname__ ",
	"builtin_function_or_method": privateOfCode,
	"function":                   privateOfCode + "__annotations__ __builtins__ __closure__ __code__ __defaults__ __dict__ __get__ __globals__ __kwdefaults__ ",
	"Undefined":                  " __add__ __aiter__ __bool__ __call__ __complex__ __div__ __float__ __floordiv__ __getattr__ __getitem__ __int__ __iter__ __len__ __mod__ __module__ __mul__ __neg__ __pos__ __pow__ __radd__ __rdiv__ __rfloordiv__ __rmod__ __rmul__ __rpow__ __rsub__ __rtruediv__ __slots__ __sub__ __truediv__ _fail_with_undefined_error _undefined_exception _undefined_hint _undefined_message _undefined_name _undefined_obj ",
	"LoopContext":                " __annotations__ __call__ __dict__ __iter__ __len__ __module__ __next__ __weakref__ _after _before _current _iterable _iterator _last_changed_value _length _peek_next _recurse _to_iterator _undefined ",
	"Macro":                      " __call__ __dict__ __module__ __weakref__ _argument_count _async_invoke _default_autoescape _environment _func _invoke ",
	"Cycler":                     " __dict__ __module__ __next__ __weakref__ ",
	"Joiner":                     " __call__ __dict__ __module__ __weakref__ ",
}

// listed reports whether name is one of the names, which stand between spaces.
func listed(names, name string) bool {
	return len(name) <= longestAttr && strings.Contains(names, " "+name+" ") && !strings.Contains(name, " ")
}

// longestAttr is no shorter than any name in the lists, in bytes.
const longestAttr = 32

// attr returns Python's getattr(obj, name); ok is false where that is an AttributeError. An
// attribute that the sandbox forbids is an Undefined.
func (m *machine) attr(obj Value, name string) (v Value, ok bool, err error) {
	if err := m.scan(4 * len(name)); err != nil { // it is looked up in several maps
		return nil, false, err
	}
	if strings.HasPrefix(name, "_") {
		if err := m.alloc(8 * len(name)); err != nil {
			return nil, false, err
		}
		return m.privateAttr(obj, name)
	}
	switch obj := obj.(type) {
	case *Dict:
		if !isDictAttr(name) {
			return nil, false, nil
		}
	case *Namespace:
		v, ok := obj.attrs.Lookup(name)
		return v, ok, nil
	case *Undefined:
		return nil, false, obj.fail()
	case object:
		return obj.attr(m, name)
	case string:
		if _, ok := strMethods[name]; ok || name == "format" {
			return &boundMethod{obj, name}, true, m.alloc(32)
		}
	case Markup:
		if _, ok := strMethods[name]; ok && !listed(unsupportedAttrs["Markup"], name) {
			return &boundMethod{obj, name}, true, m.alloc(32)
		}
	case *function:
		return classAttr(obj, name)
	}
	if _, ok := methodsOf(obj)[name]; ok {
		return &boundMethod{obj, name}, true, m.alloc(32)
	}
	switch class := typeName(obj); {
	case listed(unsafeAttrs[class], name):
		return unsafeAttr(obj, name), true, m.step(raising / 2)
	case listed(unsupportedAttrs[class], name):
		return nil, false, unsupported("%s.%s", class, name)
	}
	return nil, false, nil
}

// isDictAttr reports whether a dict has an attribute, whose name begins with no
// underscore.
func isDictAttr(name string) bool {
	switch name {
	case "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values":
		return true
	}
	return false
}

// classAttr is attr of a function. Those that are classes have more attributes.
func classAttr(f *function, name string) (Value, bool, error) {
	switch f.name {
	case "dict", "namespace", "cycler", "joiner":
		return nil, false, unsupported("an attribute of %s", f.name)
	}
	return nil, false, nil
}

// privateAttr is attr of a name that begins with an underscore.
func (m *machine) privateAttr(obj Value, name string) (Value, bool, error) {
	class := typeName(obj)
	has := listed(privateAttrs, name) || listed(privateOf[class], name)
	switch obj := obj.(type) {
	case *Namespace:
		_, has = obj.attrs.Lookup(name)
		has = has || name == "__class__" || name == "_Namespace__attrs"
	case *Iterator:
		if _, known := privateOf[class]; !known && !has {
			return nil, false, unsupported("%s.%s", class, name)
		}
	case *Undefined:
		if !has && (!strings.HasPrefix(name, "__") || !strings.HasSuffix(name, "__")) {
			return nil, false, obj.fail()
		}
	}
	if has {
		return unsafeAttr(obj, name), true, m.step(raising / 2)
	}
	return nil, false, nil
}

// unsafeAttr returns the sandbox's value for an attribute (sandbox.py, unsafe_undefined).
func unsafeAttr(obj Value, name string) Value {
	return &Undefined{
		Message: "access to attribute " + string(appendReprString(nil, name)) + " of " +
			string(appendReprString(nil, typeName(obj))) + " object is unsafe.",
		Class: "SecurityError",
		Name:  name,
		Of:    obj,
	}
}

// getattr is obj.name in a template (sandbox.py, getattr): the attribute, else the
// item.
func (m *machine) getattr(obj Value, name string) (Value, error) {
	if d, ok := obj.(*Dict); ok && !isDictAttr(name) && !strings.HasPrefix(name, "_") {
		if err := m.scan(lookup * len(name)); err != nil {
			return nil, err
		}
		if v, ok := d.Lookup(name); ok {
			return v, nil
		}
		return &Undefined{Name: name, Of: obj}, m.alloc(64)
	}
	v, ok, err := m.attr(obj, name)
	if err != nil || ok {
		return v, err
	}
	switch obj := obj.(type) {
	case *Dict:
		if v, ok := obj.Lookup(name); ok {
			return v, nil
		}
	case *Undefined:
		return nil, obj.fail()
	}
	return &Undefined{Name: name, Of: obj}, m.alloc(64)
}

// getitem is obj[key] in a template (sandbox.py, getitem): the item, else the
// attribute.
func (m *machine) getitem(obj, key Value) (Value, error) {
	name, isText := asString(key)
	if err := m.scan(lookup * len(name)); err != nil {
		return nil, err
	}
	if !isText {
		v, err := m.index(obj, key)
		if raised(err, "TypeError", "KeyError", "IndexError") {
			if err := m.step(raising); err != nil {
				return nil, err
			}
			return m.noElement(obj, key)
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
		return nil, obj.fail()
	}
	v, ok, err := m.attr(obj, name)
	if err != nil || ok {
		return v, err
	}
	u := &Undefined{Name: name, Of: obj}
	if mark, ok := key.(Markup); ok {
		u.Message = attributeMessage(obj, append(appendReprString([]byte("Markup("), string(mark)), ')'))
	}
	return u, m.alloc(64)
}

// noElement is the Undefined for a key that is no str.
func (m *machine) noElement(obj, key Value) (Value, error) {
	s, err := m.repr(key)
	switch {
	case raised(err, "ValueError") || isUnsupported(err):
		s = typeName(key)
	case err != nil:
		return nil, err
	}
	return &Undefined{Message: objectName(obj) + " has no element " + s, Of: obj}, m.alloc(64)
}
