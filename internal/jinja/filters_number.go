package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The filters of numbers (Jinja2 3.1.6, filters.py), and Python's int() and float().

func absFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("abs", "/x"); err != nil {
		return nil, err
	}
	switch n := v.(type) {
	case float64:
		return math.Abs(n), nil
	case bool, int64, *big.Int:
		negative, err := m.less("<", n, int64(0))
		if err != nil {
			return nil, err
		}
		if negative {
			return m.unary("-", n)
		}
		return m.unary("+", n)
	}
	return nil, raise("TypeError", "bad operand type for abs(): '%s'", typeName(v))
}

// sumFilter adds as CPython 3.11 does. From 3.12 on, sum() makes up for the rounding
// of floats: where that gives another result there is none.
func sumFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_sum", "iterable", "attribute?", "start?")
	if err != nil {
		return nil, err
	}
	get, err := m.newGetter(or(b[1], nil), nil, false)
	if err != nil {
		return nil, err
	}
	sum := or(b[2], int64(0))
	if _, ok := asString(sum); ok {
		return nil, raise("TypeError", "sum() can't sum strings [use ''.join(seq) instead]")
	}
	lost := 0.0 // by rounding
	err = m.visit(v, func(item Value) error {
		item, err := get.get(m, item)
		if err != nil {
			return err
		}
		before := sum
		if sum, err = m.binary("+", sum, item); err != nil {
			return err
		}
		x, ok := before.(float64)
		y, also := item.(float64)
		if ok && also {
			lost += rounded(x, y, x+y)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if f, ok := sum.(float64); ok && !math.IsInf(lost, 0) && lost == lost && f+lost != f && f == f {
		return nil, unsupported("a sum of floats that versions of Python round differently")
	}
	return sum, nil
}

// rounded is what t, which is x+y, lacks (Neumaier).
func rounded(x, y, t float64) float64 {
	if math.Abs(x) >= math.Abs(y) {
		return (x - t) + y
	}
	return (y - t) + x
}

func intFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_int", "value", "default?", "base?")
	if err != nil {
		return nil, err
	}
	if or(b[2], int64(10)) != Value(int64(10)) {
		return nil, unsupported("int by a base")
	}
	n, err := m.int(v)
	if !raised(err, "TypeError", "ValueError") {
		return n, err
	}
	f, err := m.float(v)
	if err == nil && f == f && !math.IsInf(f, 0) {
		return floatInt(f), nil
	}
	if err != nil && !raised(err, "TypeError", "ValueError", "OverflowError") {
		return nil, err
	}
	return or(b[1], int64(0)), nil
}

func floatFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_float", "value", "default?")
	if err != nil {
		return nil, err
	}
	f, err := m.float(v)
	if raised(err, "TypeError", "ValueError") {
		return or(b[1], 0.0), nil
	}
	return f, err
}

// int is Python's int(v).
func (m *machine) int(v Value) (Value, error) {
	switch v := v.(type) {
	case string:
		return m.parsedInt(v)
	case Markup:
		return m.parsedInt(string(v))
	case bool, int64, *big.Int:
		return m.unary("+", v)
	case float64:
		switch {
		case v != v:
			return nil, raise("ValueError", "cannot convert float NaN to integer")
		case math.IsInf(v, 0):
			return nil, raise("OverflowError", "cannot convert float infinity to integer")
		}
		return floatInt(v), m.step(floatWork(v) / 16)
	case *Undefined:
		return nil, v.fail()
	}
	return nil, raise("TypeError", "int() argument must be a string, a bytes-like object or a real number, not '%s'", typeName(v))
}

func (m *machine) parsedInt(s string) (Value, error) {
	if err := m.alloc(3 * len(s)); err != nil {
		return nil, err
	}
	if err := m.number(s); err != nil {
		return nil, err
	}
	if v, ok := parseInt(s); ok {
		return v, nil
	}
	return nil, raise("ValueError", "invalid literal for int() with base 10")
}

// number charges reading a number of the text s, or the error that it is none.
func (m *machine) number(s string) error {
	if err := m.step(raising); err != nil {
		return err
	}
	return m.kinds(2 * len(s))
}

// parseInt is int(s) of CPython 3.11.
func parseInt(s string) (Value, bool) {
	digits, negative := cutSign(asciiNumber(s))
	digits, ok := plainDigits(digits)
	if !ok || len(digits) > maxDigits {
		return nil, false
	}
	n, _ := new(big.Int).SetString(digits, 10)
	if negative {
		n.Neg(n)
	}
	return integer(n), true
}

// cutSign returns what is behind a sign.
func cutSign(s string) (rest string, negative bool) {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[1:], s[0] == '-'
	}
	return s, false
}

// plainDigits returns digits without the underscores between them.
func plainDigits(s string) (string, bool) {
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") {
		return "", false
	}
	s = strings.ReplaceAll(s, "_", "")
	return s, strings.Trim(s, "0123456789") == ""
}

// asciiNumber returns a number's text with decimal digits of any script as ASCII
// ones, "?" for what cannot be in a number, and no space around it. As in CPython,
// that of ASCII is only what C's isspace takes for it.
func asciiNumber(s string) string {
	if !isASCII(s) {
		b := make([]byte, 0, len(s))
		for _, r := range s {
			d, decimal := decimalDigit(r)
			switch {
			case r < utf8.RuneSelf:
				b = append(b, byte(r))
			case isSpace(r):
				b = append(b, ' ')
			case decimal:
				b = append(b, byte('0'+d))
			default:
				b = append(b, '?')
			}
		}
		s = string(b)
	}
	return strings.Trim(s, " \t\n\v\f\r")
}

// float is Python's float(v).
func (m *machine) float(v Value) (float64, error) {
	switch v := v.(type) {
	case bool, int64, *big.Int, float64:
		return toFloat(v)
	case *Undefined:
		return 0, v.fail()
	}
	s, ok := asString(v)
	if !ok {
		return 0, raise("TypeError", "float() argument must be a string or a real number, not '%s'", typeName(v))
	}
	if err := m.alloc(2 * len(s)); err != nil {
		return 0, err
	}
	if err := m.number(s); err != nil {
		return 0, err
	}
	f, ok := parseFloat(s)
	if !ok {
		return 0, raise("ValueError", "could not convert string to float")
	}
	return f, nil
}

// parseFloat is float(s).
func parseFloat(s string) (float64, bool) {
	s = asciiNumber(s)
	digits, _ := cutSign(s)
	switch strings.ToLower(digits) {
	case "inf", "infinity", "nan":
		f, err := strconv.ParseFloat(s, 64)
		if f != f {
			return math.NaN(), true
		}
		return f, err == nil
	}
	for i := 0; i < len(digits); i++ {
		switch c := digits[i]; {
		case c >= '0' && c <= '9' || c == '.':
		case c == '_':
			if i == 0 || i+1 == len(digits) || !isDigit(digits[i-1]) || !isDigit(digits[i+1]) {
				return 0, false
			}
		case c == 'e' || c == 'E':
		case (c == '-' || c == '+') && i > 0 && digits[i-1]|0x20 == 'e':
		default:
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func roundFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_round", "value", "precision?", "method?")
	if err != nil {
		return nil, err
	}
	if or(b[2], "common") != "common" {
		return nil, unsupported("round by a method")
	}
	return m.round(v, or(b[1], int64(0)))
}

// round is Python's round(v, digits): an int stays one.
func (m *machine) round(v, digits Value) (Value, error) {
	f, isFloat := v.(float64)
	if !isFloat && !isNumber(v) {
		return nil, raise("TypeError", "type %s doesn't define __round__ method", typeName(v))
	}
	if digits == nil {
		if isFloat {
			v = math.RoundToEven(f)
		}
		return m.int(v)
	}
	if isFloat {
		n, err := m.intArgument(digits)
		if err != nil {
			return nil, err
		}
		if err := m.step(floatWork(f) + max(min(n, mostDigits), 0)); err != nil {
			return nil, err
		}
		return roundFloat(f, n)
	}
	if n, ok := asInt64(digits); !ok || n < 0 {
		return nil, unsupported("round to digits before the point")
	}
	return m.unary("+", v)
}

// mostDigits are as many as a float has behind the point (CPython 3.11, floatobject.c).
const mostDigits = 323

func roundFloat(f float64, digits int) (Value, error) {
	switch {
	case f-f != 0 || digits > mostDigits:
		return f, nil
	case digits < 0:
		return nil, unsupported("round to digits before the point")
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	if err != nil {
		return nil, raise("OverflowError", "rounded value too large to represent")
	}
	return rounded, nil
}

// isDigits is Python's str.isdigit.
func isDigits(s string) bool {
	for _, r := range s {
		if !charOf(r).is(charDigit) {
			return false
		}
	}
	return s != ""
}
