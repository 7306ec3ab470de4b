package jinja

import (
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The filters of sequences (Jinja2 3.1.6, filters.py).

func lengthFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("len", "/obj"); err != nil {
		return nil, err
	}
	n, err := m.length(v)
	return int64(n), err
}

func listFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_list", "value"); err != nil {
		return nil, err
	}
	items, err := m.list(v)
	return &List{Items: items}, err
}

func defaultFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_default", "value", "default_value?", "boolean?")
	if err != nil {
		return nil, err
	}
	if isUndefined(v) {
		return or(b[1], ""), nil
	}
	boolean, err := m.option(b[2])
	if err != nil || !boolean {
		return v, err
	}
	if ok, err := m.truth(v); err != nil || ok {
		return v, err
	}
	return or(b[1], ""), nil
}

func firstFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_first", "seq"); err != nil {
		return nil, err
	}
	it, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	first, ok, err := it.next()
	if err != nil || ok {
		return first, err
	}
	return undefined("No first item, sequence was empty."), nil
}

func lastFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_last", "seq"); err != nil {
		return nil, err
	}
	if s, ok := asString(v); ok && s != "" {
		return m.index(v, int64(-1))
	} else if ok {
		v = &Tuple{}
	}
	n, at := reversible(v)
	if at == nil {
		return nil, exception.New("TypeError", "'%s' object is not reversible", typeName(v))
	}
	if n == 0 {
		return undefined("No last item, sequence was empty."), nil
	}
	return at(n - 1), nil
}

// reversible returns how many elements v has and what gives the i-th, for a v that is no
// string. A nil at: v cannot be reversed.
func reversible(v Value) (n int, at func(i int) Value) {
	switch v := v.(type) {
	case *List:
		return len(v.Items), func(i int) Value { return v.Items[i] }
	case *Tuple:
		return len(v.Items), func(i int) Value { return v.Items[i] }
	case *Range:
		return rangeLength(v), v.At
	case *Dict:
		return v.Len(), func(i int) Value { return v.keys[i] }
	case *View:
		return v.of.Len(), v.At
	case *Undefined:
		return 0, func(int) Value { return nil }
	}
	return 0, nil
}

// reverseFilter gives an iterator, unless v is a string or has to be gone through.
func reverseFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_reverse", "value"); err != nil {
		return nil, err
	}
	if _, ok := asString(v); ok {
		return m.slice(v, nil, nil, int64(-1))
	}
	if n, at := reversible(v); at != nil {
		return m.iterator(func() (Value, bool, error) {
			if n == 0 {
				return nil, false, nil
			}
			n--
			return at(n), true, nil
		})
	}
	items, err := m.list(v)
	if exception.Is(err, "TypeError") {
		return nil, exception.New("FilterArgumentError", "argument must be iterable")
	}
	slices.Reverse(items)
	return &List{Items: items}, err
}

// itemsFilter does not look at v before it is gone through.
func itemsFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_items", "value"); err != nil {
		return nil, err
	}
	return m.generator(func() (nextFunc, error) {
		if isUndefined(v) {
			return nil, nil
		}
		d, ok := v.(*Dict)
		if !ok {
			return nil, exception.New("TypeError", "Can only get item pairs from a mapping.")
		}
		it, err := m.iterate(&View{of: d, kind: viewItems})
		if err != nil {
			return nil, err
		}
		return it.next, nil
	})
}

func joinFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_join", "value", "d?", "attribute?")
	if err != nil {
		return nil, err
	}
	sep, err := m.str(or(b[1], ""))
	if err != nil {
		return nil, err
	}
	get, err := m.newGetter(or(b[2], nil), nil, false)
	if err != nil {
		return nil, err
	}
	var out []byte
	first := true
	err = m.visit(v, func(item Value) error {
		item, err := get.get(m, item)
		if err != nil {
			return err
		}
		s, err := m.str(item)
		if err != nil {
			return err
		}
		if err := m.alloc(2 * (len(sep) + len(s))); err != nil {
			return err
		}
		if err := m.chars(len(sep) + len(s)); err != nil {
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
func mapFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.late("do_map"); err != nil {
		return nil, err
	}
	return m.through(v, func() (func(Value) (Value, bool, error), error) {
		if len(args.list) == 0 && args.has("attribute") {
			return m.mapAttribute(args)
		}
		if len(args.list) == 0 {
			return nil, exception.New("FilterArgumentError", "map requires a filter argument")
		}
		rest := arguments{list: args.list[1:], named: args.named}
		return func(item Value) (Value, bool, error) {
			name, err := lateName("filter", args.list[0])
			if err != nil {
				return nil, false, err
			}
			item, err = m.filter(name, item, rest)
			return item, true, err
		}, nil
	})
}

func (m *machine) mapAttribute(args arguments) (func(Value) (Value, bool, error), error) {
	var attribute, def Value
	for _, arg := range args.named {
		switch arg.name {
		case "attribute":
			attribute = arg.value
		case "default":
			def = arg.value
		default:
			return nil, exception.New("FilterArgumentError", "Unexpected keyword argument '%s'", arg.name)
		}
	}
	get, err := m.newGetter(attribute, def, false)
	return func(item Value) (Value, bool, error) {
		item, err := get.get(m, item)
		return item, true, err
	}, err
}

// late refuses the named arguments that stand for the first two of a function
// whose others are only looked at later.
func (a arguments) late(fn string) error {
	for _, arg := range a.named {
		if arg.name == "context" || arg.name == "value" {
			return exception.New("TypeError", "%s() got multiple values for argument '%s'", fn, arg.name)
		}
	}
	return nil
}

func (a arguments) has(name string) bool {
	return slices.ContainsFunc(a.named, func(arg argument) bool { return arg.name == name })
}

// selectFilter is select, or reject if want is false, or theirs of an attribute.
func selectFilter(want, attribute bool) filterFunc {
	return func(m *machine, v Value, args arguments) (Value, error) {
		if err := args.late("do_select"); err != nil {
			return nil, err
		}
		return m.through(v, func() (func(Value) (Value, bool, error), error) {
			list, get := args.list, getter{}
			if attribute {
				if len(list) == 0 {
					return nil, exception.New("FilterArgumentError", "Missing parameter for attribute name")
				}
				var err error
				if get, err = m.newGetter(list[0], nil, false); err != nil {
					return nil, err
				}
				list = list[1:]
			}
			return func(item Value) (Value, bool, error) {
				of, err := get.get(m, item)
				if err != nil {
					return nil, false, err
				}
				ok, err := m.selected(of, arguments{list: list, named: args.named})
				return item, ok == want, err
			}, nil
		})
	}
}

// selected is the test that args begin with, or the truth of v if they do not.
func (m *machine) selected(v Value, args arguments) (bool, error) {
	if len(args.list) == 0 {
		return m.truth(v)
	}
	name, err := lateName("test", args.list[0])
	if err != nil {
		return false, err
	}
	return m.test(name, v, arguments{list: args.list[1:], named: args.named})
}

// caseGetter is the getter of a filter with the parameter case_sensitive.
func (m *machine) caseGetter(attribute, caseSensitive Value) (getter, error) {
	sensitive, err := m.option(caseSensitive)
	if err != nil {
		return getter{}, err
	}
	return m.newGetter(attribute, nil, !sensitive)
}

// A sortItem is an element and its sort key.
type sortItem struct{ key, value Value }

// sort sorts as Python's sorted does, which keeps equal elements in their order,
// backwards if reverse.
func (m *machine) sort(items []sortItem, reverse bool) error {
	return m.sortBy(items, func(a, b Value) (bool, error) {
		if reverse {
			a, b = b, a
		}
		return m.less("<", a, b)
	})
}

func (m *machine) sortBy(items []sortItem, less func(a, b Value) (bool, error)) error {
	if len(items) < 2 {
		return nil
	}
	var failed error
	for i := range items {
		if nan, err := m.hasNaN(items[i].key); err != nil {
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
		if failed = m.step(1); failed == nil {
			before, failed = less(a.key, b.key)
		}
		if before {
			return -1
		}
		return 0
	})
	return failed
}

func (m *machine) hasNaN(v Value) (bool, error) {
	var items []Value
	switch v := v.(type) {
	case float64:
		return v != v, nil
	case *List:
		items = v.Items
	case *Tuple:
		items = v.Items
	default:
		return false, nil
	}
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	for _, item := range items {
		if err := m.step(1); err != nil {
			return false, err
		}
		if nan, err := m.hasNaN(item); err != nil || nan {
			return nan, err
		}
	}
	return false, nil
}

// sortOrder returns sorted's reverse. CPython 3.11 takes only an int for it, 3.12
// anything.
func (m *machine) sortOrder(reverse Value) (bool, error) {
	switch n := or(reverse, false).(type) {
	case bool:
		return n, nil
	case int64:
		if n == int64(int32(n)) {
			return n != 0, nil
		}
	}
	return false, exception.Unsupported("reverse by a %s", typeName(reverse))
}

// dictsortFilter gives a list of key and value tuples.
func dictsortFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_dictsort", "value", "case_sensitive?", "by?", "reverse?")
	if err != nil {
		return nil, err
	}
	part := int64(0)
	switch by, _ := asString(or(b[2], "key")); by {
	case "key":
	case "value":
		part = 1
	default:
		return nil, exception.New("FilterArgumentError", `You can only sort by either "key" or "value"`)
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, noAttribute(v, "items")
	}
	get, err := m.caseGetter(part, b[1])
	if err != nil {
		return nil, err
	}
	if err := m.alloc(96 * d.Len()); err != nil {
		return nil, err
	}
	pairs := make([]Value, d.Len())
	for i := range pairs {
		pairs[i] = d.pair(i)
	}
	return m.sortedBy(&List{Items: pairs}, b[3], func(pair Value) (Value, error) { return get.get(m, pair) })
}

// sortedBy is sorted(v, key=key, reverse=reverse).
func (m *machine) sortedBy(v, reverse Value, key func(Value) (Value, error)) (Value, error) {
	items, err := m.keyed(v, key)
	if err != nil {
		return nil, err
	}
	backwards, err := m.sortOrder(reverse)
	if err != nil {
		return nil, err
	}
	if err := m.sort(items, backwards); err != nil {
		return nil, err
	}
	if err := m.alloc(16 * len(items)); err != nil {
		return nil, err
	}
	sorted := make([]Value, len(items))
	for i, item := range items {
		sorted[i] = item.value
	}
	return &List{Items: sorted}, nil
}

func (m *machine) keyed(v Value, key func(Value) (Value, error)) ([]sortItem, error) {
	var items []sortItem
	err := m.visit(v, func(item Value) error {
		if err := m.alloc(64); err != nil {
			return err
		}
		k, err := key(item)
		items = append(items, sortItem{k, item})
		return err
	})
	return items, err
}

// sortFilter compares lists of attributes, so that those equal need no order.
func sortFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_sort", "value", "reverse?", "case_sensitive?", "attribute?")
	if err != nil {
		return nil, err
	}
	attributes := []Value{or(b[3], nil)}
	if s, ok := asString(attributes[0]); ok {
		attributes = nil
		for part := range strings.SplitSeq(s, ",") {
			attributes = append(attributes, part)
		}
	}
	if err := m.alloc(96 * len(attributes)); err != nil {
		return nil, err
	}
	gets := make([]getter, len(attributes))
	for i, a := range attributes {
		if gets[i], err = m.caseGetter(a, b[2]); err != nil {
			return nil, err
		}
	}
	return m.sortedBy(v, b[1], func(item Value) (Value, error) {
		if err := m.alloc(24 + 16*len(gets)); err != nil {
			return nil, err
		}
		keys := make([]Value, len(gets))
		for i, get := range gets {
			err := m.step(1)
			if err != nil {
				return nil, err
			}
			if keys[i], err = get.get(m, item); err != nil {
				return nil, err
			}
		}
		return &List{Items: keys}, nil
	})
}
