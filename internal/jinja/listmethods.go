package jinja

import (
	"math"
	"math/big"
	"math/bits"
)

// The methods of list, tuple, range and numbers that change nothing.
var (
	listMethods = map[string]method{
		"copy": {nil, func(m *machine, self Value, _ []Value) (Value, error) {
			return &List{Items: elements(self)}, m.alloc(24)
		}},
		"count": {[]string{"/value"}, countItems},
		"index": {[]string{"/value", "/start?", "/stop?"}, indexOf},
	}
	tupleMethods = map[string]method{
		"count": {[]string{"/value"}, countItems},
		"index": {[]string{"/value", "/start?", "/stop?"}, indexOf},
	}
	rangeMethods = map[string]method{
		"count": {[]string{"/value"}, countItems},
		"index": {[]string{"/value"}, rangeIndex},
	}
	intMethods = map[string]method{
		"as_integer_ratio": {nil, func(_ *machine, self Value, _ []Value) (Value, error) {
			return &Tuple{Items: []Value{integer(bigInt(self)), int64(1)}}, nil
		}},
		"bit_count":  {nil, bitCount},
		"bit_length": {nil, func(_ *machine, self Value, _ []Value) (Value, error) { return int64(bigInt(self).BitLen()), nil }},
		"conjugate":  {nil, func(_ *machine, self Value, _ []Value) (Value, error) { return integer(bigInt(self)), nil }},
	}
	floatMethods = map[string]method{
		"as_integer_ratio": {nil, floatRatio},
		"conjugate":        {nil, func(_ *machine, self Value, _ []Value) (Value, error) { return self, nil }},
		"is_integer":       {nil, isInteger},
	}
)

func elements(v Value) []Value {
	if t, ok := v.(*Tuple); ok {
		return t.Items
	}
	return v.(*List).Items
}

func countItems(m *machine, self Value, a []Value) (Value, error) {
	if r, ok := self.(*Range); ok && isInt(a[0]) {
		n, ok := asInt64(a[0])
		return boolInt(ok && r.has(n)), nil
	}
	items, err := m.list(self)
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for _, item := range items {
		ok, err := m.same(item, a[0])
		if err != nil {
			return nil, err
		}
		n += boolInt(ok)
	}
	return n, nil
}

// indexOf is index of a list or a tuple.
func indexOf(m *machine, self Value, a []Value) (Value, error) {
	items := elements(self)
	from, to := 0, len(items)
	for _, bound := range []struct {
		arg Value
		to  *int
	}{{a[1], &from}, {a[2], &to}} {
		if bound.arg == missing {
			continue
		}
		if bound.arg == nil {
			return nil, raise("TypeError", "slice indices must be integers or have an __index__ method")
		}
		i, err := clamped(bound.arg, 0, len(items), 0, len(items))
		if err != nil {
			return nil, err
		}
		*bound.to = i
	}
	for i := from; i < to; i++ {
		if ok, err := m.same(items[i], a[0]); err != nil || ok {
			return int64(i), err
		}
	}
	return nil, raise("ValueError", "%s.index(x): x not in %[1]s", typeName(self))
}

func rangeIndex(m *machine, self Value, a []Value) (Value, error) {
	r := self.(*Range)
	if n, ok := asInt64(a[0]); ok {
		if i := r.find(n); i >= 0 {
			return i, nil
		}
		return nil, raise("ValueError", "%d is not in range", n)
	}
	items, err := m.list(self)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		if ok, err := m.same(item, a[0]); err != nil || ok {
			return int64(i), err
		}
	}
	return nil, raise("ValueError", "sequence.index(x): x not in sequence")
}

func bitCount(m *machine, self Value, _ []Value) (Value, error) {
	if err := m.chars(bigInt(self).BitLen() / 8); err != nil {
		return nil, err
	}
	n := 0
	for _, w := range bigInt(self).Bits() {
		n += bits.OnesCount(uint(w))
	}
	return int64(n), nil
}

func isInteger(_ *machine, self Value, _ []Value) (Value, error) {
	f := self.(float64)
	return f == math.Trunc(f) && !math.IsInf(f, 0), nil
}

func floatRatio(m *machine, self Value, _ []Value) (Value, error) {
	f := self.(float64)
	if err := m.step(floatWork(f)); err != nil {
		return nil, err
	}
	switch {
	case f != f:
		return nil, raise("ValueError", "cannot convert NaN to integer ratio")
	case f-f != 0:
		return nil, raise("OverflowError", "cannot convert Infinity to integer ratio")
	}
	r := new(big.Rat).SetFloat64(f)
	return &Tuple{Items: []Value{integer(r.Num()), integer(r.Denom())}}, nil
}

// property returns an attribute that is no method.
func property(obj Value, name string) (Value, bool) {
	switch obj := obj.(type) {
	case bool, int64, *big.Int:
		switch name {
		case "real", "numerator":
			return integer(bigInt(obj)), true
		case "imag":
			return int64(0), true
		case "denominator":
			return int64(1), true
		}
	case float64:
		switch name {
		case "real":
			return obj, true
		case "imag":
			return 0.0, true
		}
	case *Range:
		switch name {
		case "start":
			return obj.Start, true
		case "stop":
			return obj.Stop, true
		case "step":
			return obj.Step, true
		}
	}
	return nil, false
}
