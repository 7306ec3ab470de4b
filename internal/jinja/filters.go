package jinja

import (
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The filters of Jinja2 3.1.6 (filters.py), with tojson as transformers has it.

// A filterFunc is a filter: "v|name(args)".
type filterFunc func(m *machine, v Value, args arguments) (Value, error)

// filters are all filters by name. It is filled by init as map looks filters up.
var filters map[string]filterFunc

// refusedFilters are those that Jinja2 has and this package lacks: random, which cannot be
// exact, and those that no chat template is known to use.
var refusedFilters = map[string]bool{
	"abs": true, "attr": true, "batch": true, "center": true, "e": true, "escape": true, "filesizeformat": true, "forceescape": true, "groupby": true,
	"max": true, "min": true, "pprint": true, "random": true, "round": true, "slice": true, "striptags": true, "sum": true, "truncate": true,
	"unique": true, "urlencode": true, "urlize": true, "wordcount": true, "wordwrap": true, "xmlattr": true,
}

func init() {
	filters = map[string]filterFunc{
		"capitalize": stringMethod("capitalize"),
		"count":      lengthFilter,
		"d":          defaultFilter,
		"default":    defaultFilter,
		"dictsort":   dictsortFilter,
		"first":      firstFilter,
		"float":      floatFilter,
		"format":     formatFilter,
		"indent":     indentFilter,
		"int":        intFilter,
		"items":      itemsFilter,
		"join":       joinFilter,
		"last":       lastFilter,
		"length":     lengthFilter,
		"list":       listFilter,
		"lower":      stringMethod("lower"),
		"map":        mapFilter,
		"reject":     selectFilter(false, false),
		"rejectattr": selectFilter(false, true),
		"replace":    replaceFilter,
		"reverse":    reverseFilter,
		"safe":       safeFilter,
		"select":     selectFilter(true, false),
		"selectattr": selectFilter(true, true),
		"sort":       sortFilter,
		"string":     stringFilter,
		"title":      titleFilter,
		"tojson":     tojsonFilter,
		"trim":       trimFilter,
		"upper":      stringMethod("upper"),
	}
}

// filter applies a filter by name, as Jinja2 does where it learns the name late.
func (m *machine) filter(name string, v Value, args arguments) (Value, error) {
	f := filters[name]
	switch {
	case refusedFilters[name]:
		return nil, exception.Unsupported("the filter %s", name)
	case f == nil:
		return nil, exception.New("TemplateRuntimeError", "No filter named '%s'.", name)
	}
	return f(m, v, args)
}

// lateName returns the name of a filter or test that is a value.
func lateName(kind string, name Value) (string, error) {
	s, ok := name.(string)
	if !ok {
		return "", exception.New("TemplateRuntimeError", "No %s named by a %s.", kind, typeName(name))
	}
	return s, nil
}

// bound are the arguments of a filter or test in the order of its parameters, of
// which none has more.
type bound [6]Value

// bindAfter binds v and behind it the arguments, as Jinja2 passes those of filters
// and tests.
func (a arguments) bindAfter(v Value, fn string, params ...string) (b bound, err error) {
	list := make([]Value, 0, len(b))
	if list = append(append(list, v), a.list...); len(a.named) > 0 || len(list) > len(params) {
		values, err := arguments{list: list, named: a.named}.bind(fn, params...)
		copy(b[:], values)
		return b, err
	}
	n := copy(b[:], list)
	for ; n < len(params); n++ {
		if p := params[n]; p[len(p)-1] != '?' {
			return b, exception.New("TypeError", "%s() missing required argument '%s'", fn, trimParam(p))
		}
		b[n] = missing
	}
	return b, nil
}

// only is bindAfter of a function with one parameter.
func (a arguments) only(fn, param string) error {
	if a.none() {
		return nil
	}
	_, err := a.bindAfter(nil, fn, param)
	return err
}

func (a arguments) none() bool { return len(a.list) == 0 && len(a.named) == 0 }

// or returns v, or the default if it was not given.
func or(v, def Value) Value {
	if v == missing {
		return def
	}
	return v
}

// option returns the truth of v, or false if it was not given.
func (m *machine) option(v Value) (bool, error) {
	if v == missing {
		return false, nil
	}
	return m.truth(v)
}

// softStr is markupsafe's soft_str: str(v), but a Markup stays one.
func (m *machine) softStr(v Value) (Value, error) {
	switch v.(type) {
	case string, Markup:
		return v, nil
	}
	return m.str(v)
}

// invoke calls a method that v must have.
func (m *machine) invoke(v Value, name string, args ...Value) (Value, error) {
	result, ok, err := m.callMethod(v, name, arguments{list: args})
	if err != nil || ok {
		return result, err
	}
	return nil, noAttribute(v, name)
}

// noAttribute is the error of getattr(v, name).
func noAttribute(v Value, name string) error {
	if u, ok := v.(*Undefined); ok {
		return u.fail()
	}
	return exception.New("AttributeError", "'%s' object has no attribute '%s'", typeName(v), name)
}

// visit calls f with the elements of v, each of which is a step.
func (m *machine) visit(v Value, f func(Value) error) error {
	var items []Value
	switch v := v.(type) {
	case *List:
		items = v.Items
	case *Tuple:
		items = v.Items
	default:
		return m.visitNext(v, f)
	}
	for _, item := range items {
		if err := m.step(1); err != nil {
			return err
		}
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) visitNext(v Value, f func(Value) error) error {
	it, err := m.iterate(v)
	if err != nil {
		return err
	}
	for {
		item, ok, err := it.next()
		if err != nil || !ok {
			return err
		}
		if err := m.step(1); err != nil {
			return err
		}
		if err := f(item); err != nil {
			return err
		}
	}
}

// A nextFunc is an Iterator's next.
type nextFunc func() (v Value, ok bool, err error)

// iterator returns an Iterator over what next gives, which is not called again
// after its end.
func (m *machine) iterator(next nextFunc) (Value, error) {
	if err := m.alloc(128); err != nil {
		return nil, err
	}
	done := false
	return &Iterator{next: func() (Value, bool, error) {
		if done {
			return nil, false, nil
		}
		// Generators may be built upon generators without end.
		if err := m.enter(); err != nil {
			return nil, false, err
		}
		defer m.leave()
		if err := m.step(1); err != nil {
			return nil, false, err
		}
		v, ok, err := next()
		done = err != nil || !ok
		return v, ok, err
	}}, nil
}

// generator returns a Python generator: start is its body up to the loop, which
// runs when the first element is requested. A nil nextFunc: there are none.
func (m *machine) generator(start func() (nextFunc, error)) (Value, error) {
	var next nextFunc
	return m.iterator(func() (Value, bool, error) {
		if next == nil {
			n, err := start()
			if err != nil || n == nil {
				return nil, false, err
			}
			next = n
		}
		return next()
	})
}

// through returns the generator of f's results for the elements of v. If f returns false the
// element is left out. start is run before the first element, unless v is false.
func (m *machine) through(v Value, start func() (func(Value) (Value, bool, error), error)) (Value, error) {
	return m.generator(func() (nextFunc, error) {
		if ok, err := m.truth(v); err != nil || !ok {
			return nil, err
		}
		f, err := start()
		if err != nil {
			return nil, err
		}
		it, err := m.iterate(v)
		if err != nil {
			return nil, err
		}
		return func() (Value, bool, error) {
			for {
				item, ok, err := it.next()
				if err != nil || !ok {
					return nil, false, err
				}
				if err := m.step(1); err != nil {
					return nil, false, err
				}
				item, ok, err = f(item)
				if err != nil || ok {
					return item, ok, err
				}
			}
		}, nil
	})
}

// A getter looks an attribute up in values, by a path of parts as in "a.b".
type getter struct {
	parts      []Value
	def        Value // for what is undefined; nil: that stays so
	ignoreCase bool  // strings are made lower case
}

// newGetter returns the getter of an attribute=, which is a path, another key, or
// nil for the value itself.
func (m *machine) newGetter(attribute, def Value, ignoreCase bool) (getter, error) {
	parts, err := m.pathParts(attribute)
	return getter{parts: parts, def: def, ignoreCase: ignoreCase}, err
}

// pathParts returns the parts of a path, of which those of digits are refused.
func (m *machine) pathParts(attribute Value) ([]Value, error) {
	if attribute == nil {
		return nil, nil
	}
	path, ok := asString(attribute)
	if !ok {
		return []Value{attribute}, nil
	}
	var parts []Value
	if err := m.kinds(len(path)); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(path, ".") {
		if err := m.alloc(48); err != nil {
			return nil, err
		}
		if isDigits(part) {
			return nil, exception.Unsupported("the number %.20s in a path of attributes", part)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func (g getter) get(m *machine, v Value) (Value, error) {
	for _, part := range g.parts {
		err := m.step(2)
		if err != nil {
			return nil, err
		}
		if v, err = m.getitem(v, part); err != nil {
			return nil, err
		}
		if g.def != nil && isUndefined(v) {
			v = g.def
		}
	}
	if !g.ignoreCase {
		return v, nil
	}
	return m.lowered(v)
}

// lowered returns a string in lower case, and other values unchanged.
func (m *machine) lowered(v Value) (Value, error) {
	if s, ok := asString(v); ok {
		return m.invoke(s, "lower")
	}
	return v, nil
}

func isUndefined(v Value) bool {
	_, ok := v.(*Undefined)
	return ok
}

// undefined is jinja2's Undefined with a hint.
func undefined(hint string) *Undefined { return &Undefined{Message: hint, Of: missing} }

func safeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_mark_safe", "value"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	return Markup(s), err
}

// isDigits is Python's str.isdigit.
func isDigits(s string) bool {
	for _, r := range s {
		if !chars.Of(r).Is(chars.Digit) {
			return false
		}
	}
	return s != ""
}
