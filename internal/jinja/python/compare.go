package python

import (
	"cmp"
	"math/big"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// Equal returns Python's a == b.
func (m *Machine) Equal(a, b Value) (bool, error) {
	switch a := a.(type) {
	case string:
		s, ok := AsString(b)
		return ok && a == s, m.Scan(2 * min(len(a), len(s)))
	case Markup:
		s, ok := AsString(b)
		return ok && string(a) == s, m.Scan(2 * min(len(a), len(s)))
	case nil:
		return b == nil, nil
	case bool, int64, *big.Int, float64:
		if !IsNumber(b) {
			return false, nil
		}
		c, ordered, err := compareNumbers(a, b)
		return ordered && c == 0, err
	case *Undefined:
		_, ok := b.(*Undefined)
		return ok, nil
	case *Range, *View, *boundMethod:
		if a != b && TypeName(a) == TypeName(b) {
			return false, exception.Unsupported("comparing two of the type %s", TypeName(a))
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
func (m *Machine) same(a, b Value) (bool, error) {
	if err := m.Step(1); err != nil {
		return false, err
	}
	if a, ok := a.(float64); ok && a != a {
		if b, ok := b.(float64); ok && b != b {
			return false, exception.Unsupported("comparing nan in a container")
		}
	}
	return m.Equal(a, b)
}

func (m *Machine) equalItems(a, b []Value, identical bool) (bool, error) {
	if identical || len(a) != len(b) {
		return identical, nil
	}
	if err := m.Enter(); err != nil {
		return false, err
	}
	defer m.Leave()
	for i := range a {
		if ok, err := m.same(a[i], b[i]); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (m *Machine) equalDicts(a, b *Dict) (bool, error) {
	if a == b || a.Len() != b.Len() {
		return a == b, nil
	}
	if err := m.Enter(); err != nil {
		return false, err
	}
	defer m.Leave()
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

// IsNumber reports whether v is an int, a bool or a float.
func IsNumber(v Value) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// compareNumbers returns -1, 0 or 1, and ordered false if one of them is nan.
func compareNumbers(a, b Value) (c int, ordered bool, err error) {
	x, aInt := AsInt64(a)
	y, bInt := AsInt64(b)
	if aInt && bInt {
		return cmp.Compare(x, y), true, nil
	}
	const exact = 1 << 53 // ints up to it are floats
	_, aBig := a.(*big.Int)
	_, bBig := b.(*big.Int)
	if aBig || bBig || max(x, y) > exact || min(x, y) < -exact {
		return 0, false, exception.Unsupported("comparing a number with an int that large")
	}
	f, _ := ToFloat(a)
	g, _ := ToFloat(b)
	return cmp.Compare(f, g), f == f && g == g, nil
}

// Less returns Python's a op b for one of < <= > >=.
func (m *Machine) Less(op string, a, b Value) (bool, error) {
	if u, ok := a.(*Undefined); ok {
		return false, u.Fail()
	}
	if u, ok := b.(*Undefined); ok {
		return false, u.Fail()
	}
	if IsNumber(a) && IsNumber(b) {
		c, ordered, err := compareNumbers(a, b)
		return ordered && holds(op, c), err
	}
	if s, ok := AsString(a); ok {
		if t, ok := AsString(b); ok {
			return holds(op, strings.Compare(s, t)), m.Scan(2 * min(len(s), len(t)))
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
	return false, exception.New("TypeError", "'%s' not supported between instances of '%s' and '%s'", op, TypeName(a), TypeName(b))
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

func (m *Machine) lessItems(op string, a, b []Value, identical bool) (bool, error) {
	if identical {
		return holds(op, 0), nil
	}
	if err := m.Enter(); err != nil {
		return false, err
	}
	defer m.Leave()
	for i := range min(len(a), len(b)) {
		ok, err := m.same(a[i], b[i])
		if err != nil {
			return false, err
		}
		if !ok {
			return m.Less(op, a[i], b[i])
		}
	}
	return holds(op, cmp.Compare(len(a), len(b))), nil
}

// Contains returns Python's needle in in.
func (m *Machine) Contains(needle, in Value) (bool, error) {
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
		return false, exception.New("TypeError", "argument of type '%s' is not iterable", TypeName(in))
	}
	return m.search(needle, in)
}

// search goes through what is iterated until it finds needle.
func (m *Machine) search(needle, in Value) (bool, error) {
	it, err := m.Iterate(in)
	if err != nil {
		return false, err
	}
	for {
		v, ok, err := it.Next()
		if err != nil || !ok {
			return false, err
		}
		if ok, err := m.same(v, needle); err != nil || ok {
			return ok, err
		}
	}
}

func (m *Machine) containsText(needle Value, in string) (bool, error) {
	s, ok := AsString(needle)
	if !ok {
		return false, exception.New("TypeError", "'in <string>' requires string as left operand, not %s", TypeName(needle))
	}
	if err := m.find(len(in), s); err != nil {
		return false, err
	}
	return strings.Contains(in, s), nil
}

func (m *Machine) containsItem(needle Value, items []Value) (bool, error) {
	for _, item := range items {
		if ok, err := m.same(item, needle); err != nil || ok {
			return ok, err
		}
	}
	return false, nil
}

func (m *Machine) viewContains(needle Value, in *View) (bool, error) {
	switch in.Kind {
	case ViewKeys:
		_, ok, err := in.Of.get(m, needle)
		return ok, err
	case ViewValues:
		return m.containsItem(needle, in.Of.values)
	}
	return false, exception.Unsupported("looking for an item of a dict")
}

// Truth returns Python's bool(v).
func (m *Machine) Truth(v Value) (bool, error) {
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
		return v.Of.Len() > 0, nil
	case *Range:
		return RangeLength(v) > 0, nil
	case Object:
		if err := v.Refuse("the truth of"); err != nil {
			return false, err
		}
	}
	return true, nil
}
