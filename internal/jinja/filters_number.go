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
	n, err := m.int(v, or(b[2], int64(10)))
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

// int is Python's int(v), or int(v, base) if v is a str.
func (m *machine) int(v, base Value) (Value, error) {
	switch v := v.(type) {
	case string:
		return m.parsedInt(v, base)
	case Markup:
		return m.parsedInt(string(v), base)
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

func (m *machine) parsedInt(s string, base Value) (Value, error) {
	n, err := m.intArgument(base)
	if err != nil {
		// A base that is no ssize_t is none between 2 and 36 either.
		if raised(err, "OverflowError") {
			err = raise("ValueError", "int() base must be >= 2 and <= 36, or 0")
		}
		return nil, err
	}
	if n != 0 && (n < 2 || n > 36) {
		return nil, raise("ValueError", "int() base must be >= 2 and <= 36, or 0")
	}
	// Bases of powers of two have no limit of digits, and big.Int.SetString is
	// quadratic in them.
	if err := m.quadratic(len(s) / 128); err != nil {
		return nil, err
	}
	if err := m.alloc(3 * len(s)); err != nil {
		return nil, err
	}
	if err := m.number(s); err != nil {
		return nil, err
	}
	if v, ok := parseInt(s, n); ok {
		return v, nil
	}
	return nil, raise("ValueError", "invalid literal for int() with base %d", n)
}

// number charges reading a number of the text s, or the error that it is none.
func (m *machine) number(s string) error {
	if err := m.step(raising); err != nil {
		return err
	}
	return m.kinds(2 * len(s))
}

// quadratic charges n*n steps.
func (m *machine) quadratic(n int) error {
	n = min(n, 1<<15) // whose square any int holds
	return m.step(n * n)
}

// parseInt is int(s, base) of CPython 3.11, for base 0 or 2 to 36.
func parseInt(s string, base int) (Value, bool) {
	s = asciiNumber(s)
	digits, negative := cutSign(s)
	zero := false // only 0 may begin with 0
	if len(digits) > 1 && digits[0] == '0' {
		prefix := 0
		switch digits[1] | 0x20 {
		case 'x':
			prefix = 16
		case 'o':
			prefix = 8
		case 'b':
			prefix = 2
		}
		switch {
		case prefix != 0 && (base == 0 || base == prefix):
			base = prefix
			digits = strings.TrimPrefix(digits[2:], "_")
		case base == 0:
			zero = true
		}
	}
	if base == 0 {
		base = 10
	}
	digits, ok := plainDigits(digits, base)
	if !ok || base&(base-1) != 0 && len(digits) > maxDigits {
		return nil, false
	}
	var v Value
	if n, err := strconv.ParseInt(digits, base, 64); err == nil {
		v = n
		if negative {
			v = -n
		}
	} else {
		n, _ := new(big.Int).SetString(digits, base)
		if negative {
			n.Neg(n)
		}
		v = integer(n)
	}
	return v, !zero || v == int64(0)
}

// cutSign returns what is behind a sign.
func cutSign(s string) (rest string, negative bool) {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[1:], s[0] == '-'
	}
	return s, false
}

// plainDigits returns digits of a base without the underscores between them.
func plainDigits(s string, base int) (string, bool) {
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") {
		return "", false
	}
	s = strings.ReplaceAll(s, "_", "")
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		d := 99
		switch {
		case s[i] >= '0' && s[i] <= '9':
			d = int(s[i] - '0')
		case c >= 'a' && c <= 'z':
			d = int(c-'a') + 10
		}
		if d >= base {
			return "", false
		}
	}
	return s, true
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
		return m.int(v, nil)
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
	if big, ok := digits.(*big.Int); ok && big.Sign() > 0 {
		return v, nil
	}
	n, err := m.intArgument(digits)
	if err != nil {
		return nil, err
	}
	return m.roundInt(v, n)
}

// The digits that rounding a float goes by (CPython 3.11, floatobject.c): it has
// none behind the most, and nothing before the least.
const (
	mostDigits  = 323
	leastDigits = -308
)

func roundFloat(f float64, digits int) (Value, error) {
	switch {
	case f != f || math.IsInf(f, 0) || digits > mostDigits:
		return f, nil
	case digits < leastDigits:
		return 0 * f, nil
	}
	var text string
	if digits >= 0 {
		text = strconv.FormatFloat(f, 'f', digits, 64)
	} else {
		whole, _ := new(big.Float).SetFloat64(f).Int(nil)
		text = roundTens(whole, -digits, f != math.Trunc(f)).String() + ".0"
		if math.Signbit(f) && text[0] != '-' {
			text = "-" + text
		}
	}
	rounded, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, raise("OverflowError", "rounded value too large to represent")
	}
	return rounded, nil
}

// roundInt rounds to 10**-digits, halves to even.
func (m *machine) roundInt(v Value, digits int) (Value, error) {
	n := bigInt(v)
	if digits >= 0 {
		return integer(n), nil
	}
	// Far more digits than n has.
	if digits < -n.BitLen()-1 {
		return int64(0), nil
	}
	if err := m.quadratic(n.BitLen() / 256); err != nil {
		return nil, err
	}
	if err := m.alloc(n.BitLen()); err != nil {
		return nil, err
	}
	return integer(roundTens(n, -digits, false)), nil
}

// roundTens rounds n to tens digits, halves to even; more: n is cut, and something
// lies behind it.
func roundTens(n *big.Int, digits int, more bool) *big.Int {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil)
	q, r := new(big.Int).QuoRem(new(big.Int).Abs(n), unit, new(big.Int))
	c := r.Lsh(r, 1).Cmp(unit)
	if c > 0 || c == 0 && (more || q.Bit(0) == 1) {
		q.Add(q, big.NewInt(1))
	}
	q.Mul(q, unit)
	if n.Sign() < 0 {
		q.Neg(q)
	}
	return q
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
