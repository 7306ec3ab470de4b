package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// "format % values" (CPython 3.11, unicodeobject.c: PyUnicode_Format) and str.format
// (unicode_format.h), as far as chat templates go: %s, and d and f with zeros, width and
// precision; fields without attributes, items and conversions. All else is refused.

// percent returns format % v of a str.
func (m *machine) percent(format string, v Value) (Value, error) {
	args, all := []Value{v}, true
	switch v := v.(type) {
	case *Tuple:
		args = v.Items
	case *Dict, *List, *Range, *Undefined:
		all = false // a mapping may be left
	}
	var dst []byte
	for {
		text, rest, found := strings.Cut(format, "%")
		if err := m.written(len(text)); err != nil {
			return nil, err
		}
		dst = append(dst, text...)
		if !found {
			break
		}
		if rest, found = strings.CutPrefix(rest, "%"); found {
			dst, format = append(dst, '%'), rest
			continue
		}
		d, rest, ok := parseDirective(rest)
		if !ok {
			return nil, unsupported("the format %%%.20q", rest)
		}
		if len(args) == 0 {
			return nil, raise("TypeError", "not enough arguments for format string")
		}
		s, err := m.formatted(args[0], d)
		if err != nil {
			return nil, err
		}
		dst, args, format = append(dst, s...), args[1:], rest
	}
	if len(args) > 0 && all {
		return nil, raise("TypeError", "not all arguments converted during string formatting")
	}
	return string(dst), nil
}

// written charges n bytes of a format, and finding where they end.
func (m *machine) written(n int) error {
	if err := m.step(9); err != nil {
		return err
	}
	return m.charge(n)
}

// A directive is how a value is written.
type directive struct {
	left, zeros bool
	width       int
	precision   int // -1: none
	code        byte
}

// parseDirective parses the part behind a percent sign or a colon.
func parseDirective(s string) (d directive, rest string, ok bool) {
	d.precision = -1
	for ; s != "" && (s[0] == '-' || s[0] == '0'); s = s[1:] {
		d.left, d.zeros = d.left || s[0] == '-', d.zeros || s[0] == '0'
	}
	if d.width, s, ok = leadingInt(s); !ok {
		return d, s, false
	}
	if after, point := strings.CutPrefix(s, "."); point {
		if d.precision, s, ok = leadingInt(after); !ok {
			return d, s, false
		}
	}
	if s == "" || strings.IndexByte("sdf", s[0]) < 0 || s[0] != 'f' && d.precision >= 0 {
		return d, s, false
	}
	d.code = s[0]
	return d, s[1:], true
}

// leadingInt reads the digits that s begins with; without any it is 0.
func leadingInt(s string) (n int, rest string, ok bool) {
	i := 0
	for ; i < len(s) && isDigit(s[i]); i++ {
		if n = 10*n + int(s[i]-'0'); n > math.MaxInt32 {
			return 0, s, false
		}
	}
	return n, s[i:], true
}

// formatted writes v by d.
func (m *machine) formatted(v Value, d directive) (string, error) {
	var s string
	var err error
	switch d.code {
	case 's':
		s, err = m.str(v)
		d.zeros = false
	case 'd':
		s, err = m.wholeText(v)
	default:
		s, err = m.pointText(v, max(d.precision, -6*d.precision))
	}
	if err != nil {
		return "", err
	}
	length, err := m.runes(s)
	if err != nil {
		return "", err
	}
	switch n := max(0, d.width-length); {
	case d.left:
		return m.padded(s, " ", 0, n)
	case d.zeros:
		digits, negative := strings.CutPrefix(s, "-")
		if digits, err = m.padded(digits, "0", n, 0); negative {
			digits = "-" + digits
		}
		return digits, err
	default:
		return m.padded(s, " ", n, 0)
	}
}

// wholeText is %d of v.
func (m *machine) wholeText(v Value) (string, error) {
	switch v := v.(type) {
	case bool, int64, *big.Int:
		return m.decimal(bigInt(v))
	case float64:
		n, err := m.int(v)
		if err != nil {
			return "", err
		}
		return m.decimal(bigInt(n))
	case *Undefined:
		return "", v.fail()
	}
	return "", raise("TypeError", "%%d format: a real number is required, not %s", typeName(v))
}

// pointText is %f of v.
func (m *machine) pointText(v Value, precision int) (string, error) {
	if u, ok := v.(*Undefined); ok {
		return "", u.fail()
	}
	if !isNumber(v) {
		return "", raise("TypeError", "must be real number, not %s", typeName(v))
	}
	f, err := toFloat(v)
	if err != nil {
		return "", err
	}
	if f-f != 0 {
		return "", unsupported("%%f of what is not finite")
	}
	if err := m.alloc(precision + 330); err != nil {
		return "", err
	}
	return strconv.FormatFloat(f, 'f', precision, 64), m.step(floatWork(f))
}

// floatWork is how many steps the digits of f take, or reading f of its digits.
func floatWork(f float64) int {
	_, exp := math.Frexp(f)
	return 20 + max(exp, -exp)/2
}

// strFormat returns s.format(args).
func (m *machine) strFormat(s string, args arguments) (Value, error) {
	var dst []byte
	auto, manual := 0, false
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			i = len(s)
		}
		if err := m.written(i); err != nil {
			return nil, err
		}
		dst = append(dst, s[:i]...)
		if s = s[i:]; s == "" {
			break
		}
		if len(s) > 1 && s[0] == s[1] {
			dst, s = append(dst, s[0]), s[2:]
			continue
		}
		end := strings.IndexByte(s, '}')
		if end <= 0 {
			return nil, raise("ValueError", "Single '%c' encountered in format string", s[0])
		}
		name, spec, _ := strings.Cut(s[1:end], ":")
		if s = s[end+1:]; strings.ContainsAny(name, "{[.!") || !isASCII(name) {
			return nil, unsupported("the format field %.20q", name)
		}
		number := auto
		switch digits := name != "" && strings.Trim(name, "0123456789") == ""; {
		case digits && auto > 0, name == "" && manual:
			return nil, raise("ValueError", "cannot switch from manual field specification to automatic field numbering")
		case name == "":
			auto++
		case digits:
			manual = true
			var ok bool
			if number, _, ok = leadingInt(name); !ok {
				return nil, raise("ValueError", "Too many decimal digits in format string")
			}
		default:
			number = -1
		}
		v, err := m.formatArgument(args, number, name)
		if err != nil {
			return nil, err
		}
		text, err := m.formatField(v, spec)
		if err != nil {
			return nil, err
		}
		dst = append(dst, text...)
	}
	return string(dst), nil
}

// formatArgument returns the argument of a number, or if that is -1 of a name.
func (m *machine) formatArgument(args arguments, number int, name string) (Value, error) {
	switch {
	case number >= len(args.list):
		return nil, raise("IndexError", "Replacement index %d out of range for positional args tuple", number)
	case number >= 0:
		return args.list[number], nil
	}
	if err := m.step(len(args.named) / 8); err != nil {
		return nil, err
	}
	for _, a := range args.named {
		if a.name == name {
			return a.value, nil
		}
	}
	return nil, m.keyError(name)
}

// formatField returns format(v, spec).
func (m *machine) formatField(v Value, spec string) (string, error) {
	if spec == "" {
		s, err := m.str(v)
		if err != nil {
			return "", err
		}
		return s, m.alloc(2 * len(s))
	}
	d, rest, ok := parseDirective(spec)
	if !ok || rest != "" || d.left || strings.HasSuffix(spec, ".f") || d.code == 's' || d.code == 'd' && !isInt(v) || !isNumber(v) {
		return "", unsupported("the format of a %s by %.20q", typeName(v), spec)
	}
	return m.formatted(v, d)
}
