package builtins

import (
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The filters of sequences (Jinja2 3.1.6, filters.py).

func lengthFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("len", "/obj"); err != nil {
		return nil, err
	}
	n, err := m.Length(v)
	return int64(n), err
}

func listFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_list", "value"); err != nil {
		return nil, err
	}
	items, err := m.List(v)
	return &python.List{Items: items}, err
}

func defaultFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_default", "value", "default_value?", "boolean?")
	if err != nil {
		return nil, err
	}
	if python.IsUndefined(v) {
		return or(b[1], ""), nil
	}
	boolean, err := option(m, b[2])
	if err != nil || !boolean {
		return v, err
	}
	if ok, err := m.Truth(v); err != nil || ok {
		return v, err
	}
	return or(b[1], ""), nil
}

func firstFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_first", "seq"); err != nil {
		return nil, err
	}
	it, err := m.Iterate(v)
	if err != nil {
		return nil, err
	}
	first, ok, err := it.Next()
	if err != nil || ok {
		return first, err
	}
	return undefined("No first item, sequence was empty."), nil
}

func lastFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_last", "seq"); err != nil {
		return nil, err
	}
	if s, ok := python.AsString(v); ok && s != "" {
		return m.Index(v, int64(-1))
	} else if ok {
		v = &python.Tuple{}
	}
	n, at := reversible(v)
	if at == nil {
		return nil, exception.New("TypeError", "'%s' object is not reversible", python.TypeName(v))
	}
	if n == 0 {
		return undefined("No last item, sequence was empty."), nil
	}
	return at(n - 1), nil
}

// reversible returns how many elements v has and what gives the i-th, for a v that is no
// string. A nil at: v cannot be reversed.
func reversible(v python.Value) (n int, at func(i int) python.Value) {
	switch v := v.(type) {
	case *python.List:
		return len(v.Items), func(i int) python.Value { return v.Items[i] }
	case *python.Tuple:
		return len(v.Items), func(i int) python.Value { return v.Items[i] }
	case *python.Range:
		return python.RangeLength(v), v.At
	case *python.Dict:
		keys, _ := v.Items()
		return v.Len(), func(i int) python.Value { return keys[i] }
	case *python.View:
		return v.Of.Len(), v.At
	case *python.Undefined:
		return 0, func(int) python.Value { return nil }
	}
	return 0, nil
}

// reverseFilter gives an iterator, unless v is a string or has to be gone through.
func reverseFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_reverse", "value"); err != nil {
		return nil, err
	}
	if _, ok := python.AsString(v); ok {
		return m.Slice(v, nil, nil, int64(-1))
	}
	if n, at := reversible(v); at != nil {
		return newIterator(m, func() (python.Value, bool, error) {
			if n == 0 {
				return nil, false, nil
			}
			n--
			return at(n), true, nil
		})
	}
	items, err := m.List(v)
	if exception.Is(err, "TypeError") {
		return nil, exception.New("FilterArgumentError", "argument must be iterable")
	}
	slices.Reverse(items)
	return &python.List{Items: items}, err
}

// itemsFilter does not look at v before it is gone through.
func itemsFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_items", "value"); err != nil {
		return nil, err
	}
	return newGenerator(m, func() (nextFunc, error) {
		if python.IsUndefined(v) {
			return nil, nil
		}
		d, ok := v.(*python.Dict)
		if !ok {
			return nil, exception.New("TypeError", "Can only get item pairs from a mapping.")
		}
		it, err := m.Iterate(&python.View{Of: d, Kind: python.ViewItems})
		if err != nil {
			return nil, err
		}
		return it.Next, nil
	})
}

func joinFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_join", "value", "d?", "attribute?")
	if err != nil {
		return nil, err
	}
	sep, err := m.Str(or(b[1], ""))
	if err != nil {
		return nil, err
	}
	get, err := newGetter(m, or(b[2], nil), nil, false)
	if err != nil {
		return nil, err
	}
	var out []byte
	first := true
	err = visit(m, v, func(item python.Value) error {
		item, err := get.get(m, item)
		if err != nil {
			return err
		}
		s, err := m.Str(item)
		if err != nil {
			return err
		}
		if err := m.Alloc(2 * (len(sep) + len(s))); err != nil {
			return err
		}
		if err := m.Chars(len(sep) + len(s)); err != nil {
			return err
		}
		if !first {
			out = append(out, sep...)
		}
		first = false
		out = append(out, s...)
		return nil
	})
	return string(out), err
}

// mapFilter checks its arguments when the first element is requested.
func mapFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := late(args, "do_map"); err != nil {
		return nil, err
	}
	return through(m, v, func() (func(python.Value) (python.Value, bool, error), error) {
		if len(args.List) == 0 && has(args, "attribute") {
			return mapAttribute(m, args)
		}
		if len(args.List) == 0 {
			return nil, exception.New("FilterArgumentError", "map requires a filter argument")
		}
		rest := python.Arguments{List: args.List[1:], Named: args.Named}
		return func(item python.Value) (python.Value, bool, error) {
			name, err := lateName("filter", args.List[0])
			if err != nil {
				return nil, false, err
			}
			item, err = filter(m, name, item, rest)
			return item, true, err
		}, nil
	})
}

func mapAttribute(m *python.Machine, args python.Arguments) (func(python.Value) (python.Value, bool, error), error) {
	var attribute, def python.Value
	for _, arg := range args.Named {
		switch arg.Name {
		case "attribute":
			attribute = arg.Value
		case "default":
			def = arg.Value
		default:
			return nil, exception.New("FilterArgumentError", "Unexpected keyword argument '%s'", arg.Name)
		}
	}
	get, err := newGetter(m, attribute, def, false)
	return func(item python.Value) (python.Value, bool, error) {
		item, err := get.get(m, item)
		return item, true, err
	}, err
}

// late refuses the named arguments that stand for the first two of a function
// whose others are only looked at later.
func late(a python.Arguments, fn string) error {
	for _, arg := range a.Named {
		if arg.Name == "context" || arg.Name == "value" {
			return exception.New("TypeError", "%s() got multiple values for argument '%s'", fn, arg.Name)
		}
	}
	return nil
}

func has(a python.Arguments, name string) bool {
	return slices.ContainsFunc(a.Named, func(arg python.Argument) bool { return arg.Name == name })
}

// selectFilter is select, or reject if want is false, or theirs of an attribute.
func selectFilter(want, attribute bool) Filter {
	return func(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
		if err := late(args, "do_select"); err != nil {
			return nil, err
		}
		return through(m, v, func() (func(python.Value) (python.Value, bool, error), error) {
			list, get := args.List, getter{}
			if attribute {
				if len(list) == 0 {
					return nil, exception.New("FilterArgumentError", "Missing parameter for attribute name")
				}
				var err error
				if get, err = newGetter(m, list[0], nil, false); err != nil {
					return nil, err
				}
				list = list[1:]
			}
			return func(item python.Value) (python.Value, bool, error) {
				of, err := get.get(m, item)
				if err != nil {
					return nil, false, err
				}
				ok, err := selected(m, of, python.Arguments{List: list, Named: args.Named})
				return item, ok == want, err
			}, nil
		})
	}
}

// selected is the test that args begin with, or the truth of v if they do not.
func selected(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
	if len(args.List) == 0 {
		return m.Truth(v)
	}
	name, err := lateName("test", args.List[0])
	if err != nil {
		return false, err
	}
	return test(m, name, v, python.Arguments{List: args.List[1:], Named: args.Named})
}

// caseGetter is the getter of a filter with the parameter case_sensitive.
func caseGetter(m *python.Machine, attribute, caseSensitive python.Value) (getter, error) {
	sensitive, err := option(m, caseSensitive)
	if err != nil {
		return getter{}, err
	}
	return newGetter(m, attribute, nil, !sensitive)
}

// A sortItem is an element and its sort key.
type sortItem struct{ key, value python.Value }

// sortItems sorts as Python's sorted does, which keeps equal elements in their order,
// backwards if reverse.
func sortItems(m *python.Machine, items []sortItem, reverse bool) error {
	return sortBy(m, items, func(a, b python.Value) (bool, error) {
		if reverse {
			a, b = b, a
		}
		return m.Less("<", a, b)
	})
}

func sortBy(m *python.Machine, items []sortItem, less func(a, b python.Value) (bool, error)) error {
	if len(items) < 2 {
		return nil
	}
	var failed error
	for i := range items {
		if nan, err := hasNaN(m, items[i].key); err != nil {
			return err
		} else if nan {
			// The order then depends on which elements are compared.
			return exception.Unsupported("sorting by nan")
		}
	}
	slices.SortStableFunc(items, func(a, b sortItem) int {
		if failed != nil {
			return 0
		}
		before := false
		if failed = m.Step(1); failed == nil {
			before, failed = less(a.key, b.key)
		}
		if before {
			return -1
		}
		return 0
	})
	return failed
}

func hasNaN(m *python.Machine, v python.Value) (bool, error) {
	var items []python.Value
	switch v := v.(type) {
	case float64:
		return v != v, nil
	case *python.List:
		items = v.Items
	case *python.Tuple:
		items = v.Items
	default:
		return false, nil
	}
	if err := m.Enter(); err != nil {
		return false, err
	}
	defer m.Leave()
	for _, item := range items {
		if err := m.Step(1); err != nil {
			return false, err
		}
		if nan, err := hasNaN(m, item); err != nil || nan {
			return nan, err
		}
	}
	return false, nil
}

// sortOrder returns sorted's reverse. CPython 3.11 takes only an int for it, 3.12
// anything.
func sortOrder(m *python.Machine, reverse python.Value) (bool, error) {
	switch n := or(reverse, false).(type) {
	case bool:
		return n, nil
	case int64:
		if n == int64(int32(n)) {
			return n != 0, nil
		}
	}
	return false, exception.Unsupported("reverse by a %s", python.TypeName(reverse))
}

// dictsortFilter gives a list of key and value tuples.
func dictsortFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_dictsort", "value", "case_sensitive?", "by?", "reverse?")
	if err != nil {
		return nil, err
	}
	part := int64(0)
	switch by, _ := python.AsString(or(b[2], "key")); by {
	case "key":
	case "value":
		part = 1
	default:
		return nil, exception.New("FilterArgumentError", `You can only sort by either "key" or "value"`)
	}
	d, ok := v.(*python.Dict)
	if !ok {
		return nil, noAttribute(v, "items")
	}
	get, err := caseGetter(m, part, b[1])
	if err != nil {
		return nil, err
	}
	if err := m.Alloc(96 * d.Len()); err != nil {
		return nil, err
	}
	pairs := make([]python.Value, d.Len())
	for i := range pairs {
		pairs[i] = d.Pair(i)
	}
	return sortedBy(m, &python.List{Items: pairs}, b[3], func(pair python.Value) (python.Value, error) { return get.get(m, pair) })
}

// sortedBy is sorted(v, key=key, reverse=reverse).
func sortedBy(m *python.Machine, v, reverse python.Value, key func(python.Value) (python.Value, error)) (python.Value, error) {
	items, err := keyed(m, v, key)
	if err != nil {
		return nil, err
	}
	backwards, err := sortOrder(m, reverse)
	if err != nil {
		return nil, err
	}
	if err := sortItems(m, items, backwards); err != nil {
		return nil, err
	}
	if err := m.Alloc(16 * len(items)); err != nil {
		return nil, err
	}
	sorted := make([]python.Value, len(items))
	for i, item := range items {
		sorted[i] = item.value
	}
	return &python.List{Items: sorted}, nil
}

func keyed(m *python.Machine, v python.Value, key func(python.Value) (python.Value, error)) ([]sortItem, error) {
	var items []sortItem
	err := visit(m, v, func(item python.Value) error {
		if err := m.Alloc(64); err != nil {
			return err
		}
		k, err := key(item)
		items = append(items, sortItem{k, item})
		return err
	})
	return items, err
}

// sortFilter compares lists of attributes, so that those equal need no order.
func sortFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_sort", "value", "reverse?", "case_sensitive?", "attribute?")
	if err != nil {
		return nil, err
	}
	attributes := []python.Value{or(b[3], nil)}
	if s, ok := python.AsString(attributes[0]); ok {
		attributes = nil
		for part := range strings.SplitSeq(s, ",") {
			attributes = append(attributes, part)
		}
	}
	if err := m.Alloc(96 * len(attributes)); err != nil {
		return nil, err
	}
	gets := make([]getter, len(attributes))
	for i, a := range attributes {
		if gets[i], err = caseGetter(m, a, b[2]); err != nil {
			return nil, err
		}
	}
	return sortedBy(m, v, b[1], func(item python.Value) (python.Value, error) {
		if err := m.Alloc(24 + 16*len(gets)); err != nil {
			return nil, err
		}
		keys := make([]python.Value, len(gets))
		for i, get := range gets {
			err := m.Step(1)
			if err != nil {
				return nil, err
			}
			if keys[i], err = get.get(m, item); err != nil {
				return nil, err
			}
		}
		return &python.List{Items: keys}, nil
	})
}
