package jinja

import (
	"cmp"
	"math/big"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// equal returns Python's a == b.
func (m *machine) equal(a, b Value) (bool, error) {
	switch a := a.(type) {
	case string:
		s, ok := asString(b)
		return ok && a == s, m.scan(2 * min(len(a), len(s)))
	case Markup:
		s, ok := asString(b)
		return ok && string(a) == s, m.scan(2 * min(len(a), len(s)))
	case nil:
		return b == nil, nil
	case bool, int64, *big.Int, float64:
		if !isNumber(b) {
			return false, nil
		}
		c, ordered, err := compareNumbers(a, b)
		return ordered && c == 0, err
	case *Undefined:
		_, ok := b.(*Undefined)
		return ok, nil
	case *Range, *View, *boundMethod:
		if a != b && typeName(a) == typeName(b) {
			return false, exception.Unsupported("comparing two of the type %s", typeName(a))
		}
	case *List:
		if b, ok := b.(*List); ok {
			return m.equalItems(a.Items, b.Items, a == b)
		}
		return false, nil
	case *Tuple:
		if b, ok := b.(*Tuple); ok {
			return m.equalItems(a.Items, b.Items, a == b)
		}
		return false, nil
	case *Dict:
		if b, ok := b.(*Dict); ok {
			return m.equalDicts(a, b)
		}
		return false, nil
	}
	return a == b, nil
}

// same is equal of two elements of containers, which Python first compares by
// identity. Two nan are equal if they are one object, which is not known here.
func (m *machine) same(a, b Value) (bool, error) {
	if err := m.step(1); err != nil {
		return false, err
	}
	if a, ok := a.(float64); ok && a != a {
		if b, ok := b.(float64); ok && b != b {
			return false, exception.Unsupported("comparing nan in a container")
		}
	}
	return m.equal(a, b)
}

func (m *machine) equalItems(a, b []Value, identical bool) (bool, error) {
	if identical || len(a) != len(b) {
		return identical, nil
	}
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	for i := range a {
		if ok, err := m.same(a[i], b[i]); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (m *machine) equalDicts(a, b *Dict) (bool, error) {
	if a == b || a.Len() != b.Len() {
		return a == b, nil
	}
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	for i, k := range a.keys {
		v, ok, err := b.get(m, k)
		if err != nil || !ok {
			return false, err
		}
		if ok, err := m.same(a.values[i], v); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func isNumber(v Value) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// compareNumbers returns -1, 0 or 1, and ordered false if one of them is nan.
func compareNumbers(a, b Value) (c int, ordered bool, err error) {
	x, aInt := asInt64(a)
	y, bInt := asInt64(b)
	if aInt && bInt {
		return cmp.Compare(x, y), true, nil
	}
	const exact = 1 << 53 // ints up to it are floats
	_, aBig := a.(*big.Int)
	_, bBig := b.(*big.Int)
	if aBig || bBig || max(x, y) > exact || min(x, y) < -exact {
		return 0, false, exception.Unsupported("comparing a number with an int that large")
	}
	f, _ := toFloat(a)
	g, _ := toFloat(b)
	return cmp.Compare(f, g), f == f && g == g, nil
}

// less returns Python's a op b for one of < <= > >=.
func (m *machine) less(op string, a, b Value) (bool, error) {
	if u, ok := a.(*Undefined); ok {
		return false, u.fail()
	}
	if u, ok := b.(*Undefined); ok {
		return false, u.fail()
	}
	if isNumber(a) && isNumber(b) {
		c, ordered, err := compareNumbers(a, b)
		return ordered && holds(op, c), err
	}
	if s, ok := asString(a); ok {
		if t, ok := asString(b); ok {
			return holds(op, strings.Compare(s, t)), m.scan(2 * min(len(s), len(t)))
		}
	}
	switch a := a.(type) {
	case *List:
		if b, ok := b.(*List); ok {
			return m.lessItems(op, a.Items, b.Items, a == b)
		}
	case *Tuple:
		if b, ok := b.(*Tuple); ok {
			return m.lessItems(op, a.Items, b.Items, a == b)
		}
	case *View:
		if _, ok := b.(*View); ok {
			return false, exception.Unsupported("an order of views")
		}
	}
	return false, exception.New("TypeError", "'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
}

// holds reports whether a op b, given c as cmp.Compare(a, b) would be.
func holds(op string, c int) bool {
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (m *machine) lessItems(op string, a, b []Value, identical bool) (bool, error) {
	if identical {
		return holds(op, 0), nil
	}
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	for i := range min(len(a), len(b)) {
		ok, err := m.same(a[i], b[i])
		if err != nil {
			return false, err
		}
		if !ok {
			return m.less(op, a[i], b[i])
		}
	}
	return holds(op, cmp.Compare(len(a), len(b))), nil
}

// contains returns Python's needle in in.
func (m *machine) contains(needle, in Value) (bool, error) {
	switch in := in.(type) {
	case string:
		return m.containsText(needle, in)
	case Markup:
		return m.containsText(needle, string(in))
	case *List:
		return m.containsItem(needle, in.Items)
	case *Tuple:
		return m.containsItem(needle, in.Items)
	case *Dict:
		_, ok, err := in.get(m, needle)
		return ok, err
	case *View:
		return m.viewContains(needle, in)
	case *Undefined:
		return false, nil
	case *Range, *Iterator:
	default:
		return false, exception.New("TypeError", "argument of type '%s' is not iterable", typeName(in))
	}
	return m.search(needle, in)
}

// search goes through what is iterated until it finds needle.
func (m *machine) search(needle, in Value) (bool, error) {
	it, err := m.iterate(in)
	if err != nil {
		return false, err
	}
	for {
		v, ok, err := it.next()
		if err != nil || !ok {
			return false, err
		}
		if ok, err := m.same(v, needle); err != nil || ok {
			return ok, err
		}
	}
}

func (m *machine) containsText(needle Value, in string) (bool, error) {
	s, ok := asString(needle)
	if !ok {
		return false, exception.New("TypeError", "'in <string>' requires string as left operand, not %s", typeName(needle))
	}
	if err := m.find(len(in), s); err != nil {
		return false, err
	}
	return strings.Contains(in, s), nil
}

func (m *machine) containsItem(needle Value, items []Value) (bool, error) {
	for _, item := range items {
		if ok, err := m.same(item, needle); err != nil || ok {
			return ok, err
		}
	}
	return false, nil
}

func (m *machine) viewContains(needle Value, in *View) (bool, error) {
	switch in.kind {
	case viewKeys:
		_, ok, err := in.of.get(m, needle)
		return ok, err
	case viewValues:
		return m.containsItem(needle, in.of.values)
	}
	return false, exception.Unsupported("looking for an item of a dict")
}

// truth returns Python's bool(v).
func (m *machine) truth(v Value) (bool, error) {
	switch v := v.(type) {
	case nil, *Undefined:
		return false, nil
	case bool:
		return v, nil
	case int64:
		return v != 0, nil
	case float64:
		return v != 0, nil
	case string:
		return v != "", nil
	case Markup:
		return v != "", nil
	case *List:
		return len(v.Items) > 0, nil
	case *Tuple:
		return len(v.Items) > 0, nil
	case *Dict:
		return v.Len() > 0, nil
	case *View:
		return v.of.Len() > 0, nil
	case *Range:
		return rangeLength(v) > 0, nil
	case *loopContext:
		return false, exception.Unsupported("the truth of the loop variable")
	}
	return true, nil
}
