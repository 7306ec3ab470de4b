package jinja

import (
	"math"
	"math/big"
	"strings"
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
		c, ordered, err := m.compareNumbers(a, b)
		return ordered && c == 0, err
	case *Undefined:
		_, ok := b.(*Undefined)
		return ok, nil
	case *Range:
		r, ok := b.(*Range)
		return ok && rangeHash(a) == rangeHash(r), nil
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
	case *View:
		return m.equalViews(a, b)
	case *boundMethod:
		if a == b {
			return true, nil
		}
		if _, ok := b.(*boundMethod); ok {
			return false, unsupported("comparing methods")
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
			return false, unsupported("comparing nan in a container")
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

// equalViews compares as Python does: views of keys and items are sets, and those
// of values are only themselves.
func (m *machine) equalViews(a *View, other Value) (bool, error) {
	b, ok := other.(*View)
	if !ok || a == b || a.kind == viewValues || b.kind == viewValues {
		return ok && a == b, nil
	}
	if a.of.Len() != b.of.Len() {
		return false, nil
	}
	return m.subset(a, b)
}

// subset reports whether all elements of a are in b.
func (m *machine) subset(a, b *View) (bool, error) {
	if err := m.enter(); err != nil {
		return false, err
	}
	defer m.leave()
	for i := range a.of.keys {
		if err := m.step(4); err != nil {
			return false, err
		}
		if ok, err := m.contains(a.at(i), b); err != nil || !ok {
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
func (m *machine) compareNumbers(a, b Value) (c int, ordered bool, err error) {
	x, aInt := asInt64(a)
	y, bInt := asInt64(b)
	if aInt && bInt {
		return compare(x, y), true, nil
	}
	f, aFloat := a.(float64)
	g, bFloat := b.(float64)
	switch {
	case aFloat && bFloat:
		return compare(f, g), f == f && g == g, nil
	case aFloat:
		c, ordered, err = m.compareFloat(f, b)
		return c, ordered, err
	case bFloat:
		c, ordered, err = m.compareFloat(g, a)
		return -c, ordered, err
	}
	p, q := bigInt(a), bigInt(b)
	return p.Cmp(q), true, m.scan(min(p.BitLen(), q.BitLen()) / 8)
}

// compareFloat compares f with an int, exactly.
func (m *machine) compareFloat(f float64, n Value) (c int, ordered bool, err error) {
	switch {
	case f != f:
		return 0, false, nil
	case math.IsInf(f, 1):
		return 1, true, nil
	case math.IsInf(f, -1):
		return -1, true, nil
	}
	if i, ok := asInt64(n); ok && i > -1<<53 && i < 1<<53 {
		return compare(f, float64(i)), true, nil
	}
	if err := m.step(floatWork(f) / 8); err != nil {
		return 0, false, err
	}
	whole, _ := big.NewFloat(f).Int(nil)
	if c := whole.Cmp(bigInt(n)); c != 0 {
		return c, true, nil
	}
	return compare(f, math.Trunc(f)), true, nil
}

func compare[T int64 | float64 | int](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
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
		c, ordered, err := m.compareNumbers(a, b)
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
		if b, ok := b.(*View); ok && a.kind != viewValues && b.kind != viewValues {
			return m.lessViews(op, a, b)
		}
	}
	return false, raise("TypeError", "'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
}

// holds reports whether a op b, given c as compare(a, b) would be.
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
	return holds(op, compare(len(a), len(b))), nil
}

// lessViews compares views as sets: < is a proper subset.
func (m *machine) lessViews(op string, a, b *View) (bool, error) {
	if op[0] == '>' {
		a, b = b, a
	}
	if n, of := a.of.Len(), b.of.Len(); n > of || len(op) == 1 && n == of {
		return false, nil
	}
	return m.subset(a, b)
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
	case *Range:
		if n, ok := asInt64(needle); ok {
			return in.has(n), nil
		}
		if _, ok := needle.(*big.Int); ok {
			return false, nil
		}
	case *Undefined:
		return false, nil
	case *Iterator:
	default:
		return false, raise("TypeError", "argument of type '%s' is not iterable", typeName(in))
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
		return false, raise("TypeError", "'in <string>' requires string as left operand, not %s", typeName(needle))
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
	t, ok := needle.(*Tuple)
	if !ok || len(t.Items) != 2 {
		return false, nil
	}
	v, ok, err := in.of.get(m, t.Items[0])
	if err != nil || !ok {
		return false, err
	}
	return m.same(v, t.Items[1])
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
		return v.length() > 0, nil
	case object:
		if v.typeName() == "LoopContext" {
			n, err := m.length(v)
			return n > 0, err
		}
	}
	return true, nil
}
