package jinja

import (
	"math"
	"math/big"
	"strings"
)

// binary returns Python's a op b for one of + - * / // %.
func (m *machine) binary(op string, a, b Value) (Value, error) {
	if x, ok := a.(int64); ok {
		if y, ok := b.(int64); ok {
			if v, ok := smallInts(op, x, y); ok {
				return v, nil
			}
		}
	}
	if isNumber(a) && isNumber(b) {
		return m.numbers(op, a, b)
	}
	if s, ok := asString(a); ok && op == "%" {
		_, markup := a.(Markup)
		if markup {
			return nil, unsupported("a format that is a Markup")
		}
		return m.percent(s, b)
	}
	if u, ok := a.(*Undefined); ok {
		return nil, u.fail()
	}
	if isSetView(a) && op == "-" {
		return nil, unsupported("a difference of sets")
	}
	if u, ok := b.(*Undefined); ok {
		if _, markup := a.(Markup); !markup || op != "*" {
			return nil, u.fail()
		}
	}
	switch op {
	case "+":
		return m.add(a, b)
	case "*":
		if isInt(b) {
			return m.repeat(a, b)
		}
		if isInt(a) {
			return m.repeat(b, a)
		}
		if isSequence(a) {
			return nil, raise("TypeError", "can't multiply sequence by non-int of type '%s'", typeName(b))
		}
	case "-":
		if isSetView(b) {
			return nil, unsupported("a difference of sets")
		}
	}
	return nil, operandError(op, a, b)
}

func operandError(op string, a, b Value) error {
	return raise("TypeError", "unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func isInt(v Value) bool {
	switch v.(type) {
	case bool, int64, *big.Int:
		return true
	}
	return false
}

// isSetView reports whether v has the operators of a set.
func isSetView(v Value) bool {
	view, ok := v.(*View)
	return ok && view.kind != viewValues
}

// smallInts is binary of ints where no step leaves int64; ok is false elsewhere.
func smallInts(op string, x, y int64) (v Value, ok bool) {
	switch op {
	case "+":
		n := x + y
		return n, (n > x) == (y > 0)
	case "-":
		n := x - y
		return n, (n < x) == (y > 0)
	case "*":
		if x == int64(int32(x)) && y == int64(int32(y)) {
			return x * y, true
		}
	case "/":
		if y != 0 && max(x, -x, y, -y) < 1<<53 && min(x, y) > math.MinInt64 {
			return float64(x) / float64(y), true
		}
	case "//", "%":
		if y == 0 || y == -1 {
			return nil, false
		}
		q, r := x/y, x%y
		if r != 0 && (r < 0) != (y < 0) {
			q, r = q-1, r+y
		}
		if op == "%" {
			return r, true
		}
		return q, true
	}
	return nil, false
}

// bigInt returns an int as a big.Int, which must not be changed.
func bigInt(v Value) *big.Int {
	if n, ok := v.(*big.Int); ok {
		return n
	}
	n, _ := asInt64(v)
	return big.NewInt(n)
}

// numbers is binary of numbers: of ints, and of floats if one of them is.
func (m *machine) numbers(op string, a, b Value) (Value, error) {
	if isInt(a) && isInt(b) {
		return m.ints(op, bigInt(a), bigInt(b))
	}
	x, err := toFloat(a)
	if err != nil {
		return nil, err
	}
	y, err := toFloat(b)
	if err != nil {
		return nil, err
	}
	return m.floats(op, x, y)
}

// toFloat returns Python's float(v) of a number.
func toFloat(v Value) (float64, error) {
	switch v := v.(type) {
	case float64:
		return v, nil
	case *big.Int:
		f := math.Inf(1)
		if v.BitLen() <= 1024 {
			f, _ = new(big.Float).SetInt(v).Float64()
		}
		if math.IsInf(f, 0) {
			return 0, raise("OverflowError", "int too large to convert to float")
		}
		return f, nil
	}
	n, _ := asInt64(v)
	return float64(n), nil
}

// floatInt returns the whole part of f, which must be finite, as an int.
func floatInt(f float64) Value {
	if f = math.Trunc(f); math.Abs(f) < 1<<62 {
		return int64(f)
	}
	n, _ := big.NewFloat(f).Int(nil)
	return integer(n)
}

// quadratic is how many steps an operation takes that is quadratic in numbers of so
// many bits.
func quadratic(xBits, yBits int) int {
	return int(min(int64(xBits/64+1)*int64(yBits/64+1)/32, math.MaxInt32))
}

// intWork is how many steps an operation on big ints of so many bits takes.
func intWork(op string, xBits, yBits int) int {
	switch op {
	case "+", "-":
		return 8
	case "/": // a fraction in its lowest terms
		return 80 + 16*min(quadratic(xBits, yBits), math.MaxInt32/32)
	}
	return 10 + xBits/512 + quadratic(xBits, yBits)
}

func (m *machine) ints(op string, x, y *big.Int) (Value, error) {
	if y.Sign() == 0 && op != "+" && op != "-" && op != "*" {
		return nil, zeroDivision(op, "integer")
	}
	if err := m.alloc((x.BitLen() + y.BitLen()) / 8); err != nil {
		return nil, err
	}
	if err := m.step(intWork(op, x.BitLen(), y.BitLen())); err != nil {
		return nil, err
	}
	n := new(big.Int)
	switch op {
	case "+":
		n.Add(x, y)
	case "-":
		n.Sub(x, y)
	case "*":
		n.Mul(x, y)
	case "/":
		if x.Sign() == 0 && y.Sign() < 0 {
			return math.Copysign(0, -1), nil
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			return nil, raise("OverflowError", "integer division result too large for a float")
		}
		return f, nil
	default:
		q, r := new(big.Int).QuoRem(x, y, n)
		if r.Sign() != 0 && r.Sign() != y.Sign() {
			q.Sub(q, big.NewInt(1))
			r.Add(r, y)
		}
		if op == "//" {
			n = q
		}
	}
	return integer(n), nil
}

func zeroDivision(op, kind string) error {
	if kind == "integer" {
		if op == "/" {
			return raise("ZeroDivisionError", "division by zero")
		}
		return raise("ZeroDivisionError", "integer division or modulo by zero")
	}
	switch op {
	case "/":
		return raise("ZeroDivisionError", "float division by zero")
	case "//":
		return raise("ZeroDivisionError", "float floor division by zero")
	}
	return raise("ZeroDivisionError", "float modulo")
}

func (m *machine) floats(op string, x, y float64) (Value, error) {
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	}
	if y == 0 {
		return nil, zeroDivision(op, "float")
	}
	if op == "/" {
		return x / y, nil
	}
	// It goes through the bits that x has before y.
	if err := m.step(floatWork(x/y) / 2); err != nil {
		return nil, err
	}
	// CPython 3.11, floatobject.c: float_rem and _float_div_mod.
	mod := math.Mod(x, y)
	div := (x - mod) / y
	switch {
	case mod == 0:
		mod = math.Copysign(0, y)
	case (mod < 0) != (y < 0):
		mod += y
		div--
	}
	if op == "%" {
		return mod, nil
	}
	if div == 0 {
		return math.Copysign(0, x/y), nil
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor, nil
}

// add is + of others than numbers.
func (m *machine) add(a, b Value) (Value, error) {
	s, aText := asString(a)
	t, bText := asString(b)
	if aText && bText {
		_, aMarkup := a.(Markup)
		_, bMarkup := b.(Markup)
		var err error
		if aMarkup != bMarkup {
			if aMarkup {
				t, err = m.escape(b)
			} else {
				s, err = m.escape(a)
			}
		}
		if err != nil {
			return nil, err
		}
		if err := m.alloc(len(s) + len(t)); err != nil {
			return nil, err
		}
		if aMarkup || bMarkup {
			return Markup(s + t), nil
		}
		return s + t, nil
	}
	switch a := a.(type) {
	case *List:
		if b, ok := b.(*List); ok {
			items, err := m.join(a.Items, b.Items)
			return &List{Items: items}, err
		}
		return nil, concatError("list", b)
	case *Tuple:
		if b, ok := b.(*Tuple); ok {
			items, err := m.join(a.Items, b.Items)
			return &Tuple{Items: items}, err
		}
		return nil, concatError("tuple", b)
	case string:
		return nil, concatError("str", b)
	}
	return nil, operandError("+", a, b)
}

func concatError(class string, other Value) error {
	return raise("TypeError", "can only concatenate %s (not \"%s\") to %s", class, typeName(other), class)
}

func (m *machine) join(a, b []Value) ([]Value, error) {
	if err := m.makeItems(len(a) + len(b)); err != nil {
		return nil, err
	}
	return append(append(make([]Value, 0, len(a)+len(b)), a...), b...), nil
}

// isSequence reports whether v can be repeated by *.
func isSequence(v Value) bool {
	switch v.(type) {
	case string, Markup, *List, *Tuple:
		return true
	}
	return false
}

// repeat returns v * times.
func (m *machine) repeat(v, times Value) (Value, error) {
	if !isSequence(v) {
		return nil, operandError("*", v, times)
	}
	if _, ok := times.(*big.Int); ok {
		return nil, raise("OverflowError", "cannot fit 'int' into an index-sized integer")
	}
	n, err := m.intArgument(times)
	if err != nil {
		return nil, err
	}
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		s, err := m.repeatText(v, n)
		return s, err
	case Markup:
		s, err := m.repeatText(string(v), n)
		return Markup(s), err
	case *List:
		items, err := m.repeatItems(v.Items, n)
		return &List{Items: items}, err
	}
	items, err := m.repeatItems(v.(*Tuple).Items, n)
	return &Tuple{Items: items}, err
}

func (m *machine) repeatText(s string, n int) (string, error) {
	if s == "" || n == 0 {
		return "", nil
	}
	if err := m.allocMany(n, len(s)); err != nil {
		return "", err
	}
	return strings.Repeat(s, n), nil
}

func (m *machine) repeatItems(items []Value, n int) ([]Value, error) {
	if len(items) == 0 || n == 0 {
		return nil, nil
	}
	if err := m.allocMany(n, 16*len(items)); err != nil {
		return nil, err
	}
	if err := m.step(n * len(items) / 8); err != nil {
		return nil, err
	}
	all := make([]Value, 0, n*len(items))
	for range n {
		all = append(all, items...)
	}
	return all, nil
}

// unary returns Python's op v for + or -.
func (m *machine) unary(op string, v Value) (Value, error) {
	switch v := v.(type) {
	case bool, int64:
		n, _ := asInt64(v)
		switch {
		case op == "+":
			return n, nil
		case n == math.MinInt64:
			return new(big.Int).Neg(big.NewInt(n)), nil
		}
		return -n, nil
	case *big.Int:
		if op == "+" {
			return v, nil
		}
		if err := m.alloc(v.BitLen() / 8); err != nil {
			return nil, err
		}
		return integer(new(big.Int).Neg(v)), nil
	case float64:
		if op == "-" {
			return -v, nil
		}
		return v, nil
	case *Undefined:
		return nil, v.fail()
	}
	return nil, raise("TypeError", "bad operand type for unary %s: '%s'", op, typeName(v))
}
