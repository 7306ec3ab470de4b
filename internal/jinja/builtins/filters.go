// Package builtins has the filters, tests and globals of Jinja2 and of transformers, on the values
// of package python.
package builtins

import (
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The filters of Jinja2 3.1.6 (filters.py), with tojson as transformers has it.

// A Filter is a filter: "v|name(args)".
type Filter func(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error)

// Filters are all filters by name. It is filled by init as map looks filters up.
var Filters map[string]Filter

// RefusedFilters are those that Jinja2 has and this package lacks: random, which cannot be
// exact, and those that no chat template is known to use.
var RefusedFilters = map[string]bool{
	"abs": true, "attr": true, "batch": true, "center": true, "e": true, "escape": true, "filesizeformat": true, "forceescape": true, "groupby": true,
	"max": true, "min": true, "pprint": true, "random": true, "round": true, "slice": true, "striptags": true, "sum": true, "truncate": true,
	"unique": true, "urlencode": true, "urlize": true, "wordcount": true, "wordwrap": true, "xmlattr": true,
}

func init() {
	Filters = map[string]Filter{
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
func filter(m *python.Machine, name string, v python.Value, args python.Arguments) (python.Value, error) {
	f := Filters[name]
	switch {
	case RefusedFilters[name]:
		return nil, exception.Unsupported("the filter %s", name)
	case f == nil:
		return nil, exception.New("TemplateRuntimeError", "No filter named '%s'.", name)
	}
	return f(m, v, args)
}

// lateName returns the name of a filter or test that is a value.
func lateName(kind string, name python.Value) (string, error) {
	s, ok := name.(string)
	if !ok {
		return "", exception.New("TemplateRuntimeError", "No %s named by a %s.", kind, python.TypeName(name))
	}
	return s, nil
}

// or returns v, or the default if it was not given.
func or(v, def python.Value) python.Value {
	if v == python.Missing {
		return def
	}
	return v
}

// option returns the truth of v, or false if it was not given.
func option(m *python.Machine, v python.Value) (bool, error) {
	if v == python.Missing {
		return false, nil
	}
	return m.Truth(v)
}

// softStr is markupsafe's soft_str: str(v), but a Markup stays one.
func softStr(m *python.Machine, v python.Value) (python.Value, error) {
	switch v.(type) {
	case string, python.Markup:
		return v, nil
	}
	return m.Str(v)
}

// invoke calls a method that v must have.
func invoke(m *python.Machine, v python.Value, name string, args ...python.Value) (python.Value, error) {
	result, ok, err := m.CallMethod(v, name, python.Arguments{List: args})
	if err != nil || ok {
		return result, err
	}
	return nil, noAttribute(v, name)
}

// noAttribute is the error of getattr(v, name).
func noAttribute(v python.Value, name string) error {
	if u, ok := v.(*python.Undefined); ok {
		return u.Fail()
	}
	return exception.New("AttributeError", "'%s' object has no attribute '%s'", python.TypeName(v), name)
}

// visit calls f with the elements of v, each of which is a step.
func visit(m *python.Machine, v python.Value, f func(python.Value) error) error {
	var items []python.Value
	switch v := v.(type) {
	case *python.List:
		items = v.Items
	case *python.Tuple:
		items = v.Items
	default:
		return visitNext(m, v, f)
	}
	for _, item := range items {
		if err := m.Step(1); err != nil {
			return err
		}
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

func visitNext(m *python.Machine, v python.Value, f func(python.Value) error) error {
	it, err := m.Iterate(v)
	if err != nil {
		return err
	}
	for {
		item, ok, err := it.Next()
		if err != nil || !ok {
			return err
		}
		if err := m.Step(1); err != nil {
			return err
		}
		if err := f(item); err != nil {
			return err
		}
	}
}

// A nextFunc is an Iterator's next.
type nextFunc func() (v python.Value, ok bool, err error)

// newIterator returns an Iterator over what next gives, which is not called again
// after its end.
func newIterator(m *python.Machine, next nextFunc) (python.Value, error) {
	if err := m.Alloc(128); err != nil {
		return nil, err
	}
	done := false
	return &python.Iterator{Next: func() (python.Value, bool, error) {
		if done {
			return nil, false, nil
		}
		// Generators may be built upon generators without end.
		if err := m.Enter(); err != nil {
			return nil, false, err
		}
		defer m.Leave()
		if err := m.Step(1); err != nil {
			return nil, false, err
		}
		v, ok, err := next()
		done = err != nil || !ok
		return v, ok, err
	}}, nil
}

// newGenerator returns a Python generator: start is its body up to the loop, which
// runs when the first element is requested. A nil nextFunc: there are none.
func newGenerator(m *python.Machine, start func() (nextFunc, error)) (python.Value, error) {
	var next nextFunc
	return newIterator(m, func() (python.Value, bool, error) {
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
func through(m *python.Machine, v python.Value, start func() (func(python.Value) (python.Value, bool, error), error)) (python.Value, error) {
	return newGenerator(m, func() (nextFunc, error) {
		if ok, err := m.Truth(v); err != nil || !ok {
			return nil, err
		}
		f, err := start()
		if err != nil {
			return nil, err
		}
		it, err := m.Iterate(v)
		if err != nil {
			return nil, err
		}
		return func() (python.Value, bool, error) {
			for {
				item, ok, err := it.Next()
				if err != nil || !ok {
					return nil, false, err
				}
				if err := m.Step(1); err != nil {
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
	parts      []python.Value
	def        python.Value // for what is undefined; nil: that stays so
	ignoreCase bool         // strings are made lower case
}

// newGetter returns the getter of an attribute=, which is a path, another key, or
// nil for the value itself.
func newGetter(m *python.Machine, attribute, def python.Value, ignoreCase bool) (getter, error) {
	parts, err := pathParts(m, attribute)
	return getter{parts: parts, def: def, ignoreCase: ignoreCase}, err
}

// pathParts returns the parts of a path, of which those of digits are refused.
func pathParts(m *python.Machine, attribute python.Value) ([]python.Value, error) {
	if attribute == nil {
		return nil, nil
	}
	path, ok := python.AsString(attribute)
	if !ok {
		return []python.Value{attribute}, nil
	}
	var parts []python.Value
	if err := m.Kinds(len(path)); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(path, ".") {
		if err := m.Alloc(48); err != nil {
			return nil, err
		}
		if python.IsDigits(part) {
			return nil, exception.Unsupported("the number %.20s in a path of attributes", part)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func (g getter) get(m *python.Machine, v python.Value) (python.Value, error) {
	for _, part := range g.parts {
		err := m.Step(2)
		if err != nil {
			return nil, err
		}
		if v, err = m.Getitem(v, part); err != nil {
			return nil, err
		}
		if g.def != nil && python.IsUndefined(v) {
			v = g.def
		}
	}
	if !g.ignoreCase {
		return v, nil
	}
	return lowered(m, v)
}

// lowered returns a string in lower case, and other values unchanged.
func lowered(m *python.Machine, v python.Value) (python.Value, error) {
	if s, ok := python.AsString(v); ok {
		return invoke(m, s, "lower")
	}
	return v, nil
}

func undefined(hint string) *python.Undefined {
	return &python.Undefined{Message: hint, Of: python.Missing}
}

func safeFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_mark_safe", "value"); err != nil {
		return nil, err
	}
	s, err := m.Str(v)
	return python.Markup(s), err
}
