package python

import (
	"math"
	"math/big"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// Binary returns Python's a op b for one of + - * / // %. It lacks ints beyond 64 bits, floats
// that are not finite, and // and % of floats.
func (m *Machine) Binary(op string, a, b Value) (Value, error) {
	x, aInt := AsInt64(a)
	y, bInt := AsInt64(b)
	switch {
	case aInt && bInt:
		return ints(op, x, y)
	case IsNumber(a) && IsNumber(b):
		return floats(op, a, b)
	case IsMarkup(a) || IsMarkup(b):
		return nil, exception.Unsupported("%s of a Markup", op)
	}
	if s, ok := a.(string); ok && op == "%" {
		return m.percent(s, b)
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(*Undefined); ok {
			return nil, u.Fail()
		}
		if _, ok := v.(*View); ok && op == "-" {
			return nil, exception.Unsupported("a difference of sets")
		}
	}
	switch op {
	case "+":
		return m.add(a, b)
	case "*":
		if IsInt(b) {
			return m.repeat(a, b)
		}
		if IsInt(a) {
			return m.repeat(b, a)
		}
	}
	return nil, operandError(op, a, b)
}

func operandError(op string, a, b Value) error {
	return exception.New("TypeError", "unsupported operand type(s) for %s: '%s' and '%s'", op, TypeName(a), TypeName(b))
}

// IsInt reports whether v is an int, a bool among them.
func IsInt(v Value) bool {
	switch v.(type) {
	case bool, int64, *big.Int:
		return true
	}
	return false
}

func ints(op string, x, y int64) (Value, error) {
	switch op {
	case "+":
		if n := x + y; (n > x) == (y > 0) {
			return n, nil
		}
	case "-":
		if n := x - y; (n < x) == (y > 0) {
			return n, nil
		}
	case "*":
		if x == int64(int32(x)) && y == int64(int32(y)) {
			return x * y, nil
		}
	default:
		return quotient(op, x, y)
	}
	return nil, exception.Unsupported("%s of ints that large", op)
}

// quotient is x op y for / // %, of which / gives a float.
func quotient(op string, x, y int64) (Value, error) {
	const exact = 1 << 53 // ints up to it are floats
	switch {
	case y == 0:
		return nil, exception.New("ZeroDivisionError", "division by zero")
	case max(x, y) >= exact || min(x, y) <= -exact:
		return nil, exception.Unsupported("%s of ints that large", op)
	case op == "/":
		return float64(x) / float64(y), nil
	}
	q, r := x/y, x%y
	if r != 0 && (r < 0) != (y < 0) {
		q, r = q-1, r+y
	}
	if op == "%" {
		return r, nil
	}
	return q, nil
}

func floats(op string, a, b Value) (Value, error) {
	x, err := ToFloat(a)
	if err != nil {
		return nil, err
	}
	y, err := ToFloat(b)
	if err != nil {
		return nil, err
	}
	var f float64
	switch op {
	case "+":
		f = x + y
	case "-":
		f = x - y
	case "*":
		f = x * y
	case "/":
		if y == 0 {
			return nil, exception.New("ZeroDivisionError", "float division by zero")
		}
		f = x / y
	default:
		return nil, exception.Unsupported("%s of a float", op)
	}
	if f-f != 0 {
		// Of constants Jinja2 makes a name inf or nan.
		return nil, exception.Unsupported("a float that is not finite")
	}
	return f, nil
}

// ToFloat returns Python's float(v) of a number.
func ToFloat(v Value) (float64, error) {
	if f, ok := v.(float64); ok {
		return f, nil
	}
	n, ok := AsInt64(v)
	if !ok {
		return 0, exception.Unsupported("a float of an int that large")
	}
	return float64(n), nil
}

// add is + of others than numbers.
func (m *Machine) add(a, b Value) (Value, error) {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return a + b, m.Alloc(len(a) + len(b))
		}
	case *List:
		if b, ok := b.(*List); ok {
			items, err := m.join(a.Items, b.Items)
			return &List{Items: items}, err
		}
	case *Tuple:
		if b, ok := b.(*Tuple); ok {
			items, err := m.join(a.Items, b.Items)
			return &Tuple{Items: items}, err
		}
	}
	return nil, operandError("+", a, b)
}

func (m *Machine) join(a, b []Value) ([]Value, error) {
	if err := m.makeItems(len(a) + len(b)); err != nil {
		return nil, err
	}
	return append(append(make([]Value, 0, len(a)+len(b)), a...), b...), nil
}

// repeat returns v * times.
func (m *Machine) repeat(v, times Value) (Value, error) {
	n, err := m.intArgument(times)
	if err != nil {
		return nil, err
	}
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		return m.repeatText(v, n)
	case *List:
		items, err := m.repeatItems(v.Items, n)
		return &List{Items: items}, err
	case *Tuple:
		items, err := m.repeatItems(v.Items, n)
		return &Tuple{Items: items}, err
	}
	return nil, operandError("*", v, times)
}

func (m *Machine) repeatText(s string, n int) (Value, error) {
	if s == "" || n == 0 {
		return "", nil
	}
	if err := m.AllocMany(n, len(s)); err != nil {
		return nil, err
	}
	return strings.Repeat(s, n), nil
}

func (m *Machine) repeatItems(items []Value, n int) ([]Value, error) {
	if len(items) == 0 || n == 0 {
		return nil, nil
	}
	if err := m.AllocMany(n, 16*len(items)); err != nil {
		return nil, err
	}
	if err := m.Step(n * len(items) / 8); err != nil {
		return nil, err
	}
	all := make([]Value, 0, n*len(items))
	for range n {
		all = append(all, items...)
	}
	return all, nil
}

// Unary returns Python's op v for + or -.
func (m *Machine) Unary(op string, v Value) (Value, error) {
	n, isInt := AsInt64(v)
	f, isFloat := v.(float64)
	switch {
	case isInt && op == "+":
		return n, nil
	case isInt && n > math.MinInt64:
		return -n, nil
	case isFloat && op == "+":
		return f, nil
	case isFloat:
		return -f, nil
	case IsNumber(v):
		return nil, exception.Unsupported("%s of an int that large", op)
	}
	if u, ok := v.(*Undefined); ok {
		return nil, u.Fail()
	}
	return nil, exception.New("TypeError", "bad operand type for unary %s: '%s'", op, TypeName(v))
}
