package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// A percentFormatter is one "format % values" (CPython 3.11, unicodeobject.c:
// PyUnicode_Format).
type percentFormatter struct {
	m       *machine
	args    []Value // left; of a mapping's value, one
	mapping Value   // missing if values are no mapping
	markup  bool    // escape what is put in
	dst     []byte
}

// percent returns format % v of a str, or of a Markup, which escapes the values.
func (m *machine) percent(format string, markup bool, v Value) (Value, error) {
	p := percentFormatter{m: m, args: []Value{v}, mapping: missing, markup: markup}
	switch v := v.(type) {
	case *Tuple:
		p.args = v.Items
	case *Dict, *List, *Range, *Undefined:
		p.mapping = v
	}
	if err := p.format(format); err != nil {
		return nil, err
	}
	if markup {
		return Markup(p.dst), nil
	}
	return string(p.dst), nil
}

func (p *percentFormatter) format(s string) error {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			i = len(s)
		}
		if err := p.write(s[:i]); err != nil {
			return err
		}
		if i == len(s) {
			break
		}
		if err := p.m.step(1); err != nil {
			return err
		}
		if strings.HasPrefix(s[i:], "%%") {
			if err := p.write("%"); err != nil {
				return err
			}
			s = s[i+2:]
			continue
		}
		if err := p.m.step(8); err != nil {
			return err
		}
		d := directive{s: s[i+1:], precision: -1}
		if err := d.parse(p); err != nil {
			return err
		}
		if err := p.directive(&d); err != nil {
			return err
		}
		s = d.s
	}
	if len(p.args) > 0 && p.mapping == missing {
		return raise("TypeError", "not all arguments converted during string formatting")
	}
	return nil
}

// write appends s, charged.
func (p *percentFormatter) write(s string) error {
	if err := p.m.alloc(2 * len(s)); err != nil {
		return err
	}
	p.dst = append(p.dst, s...)
	return nil
}

// next takes the next value.
func (p *percentFormatter) next() (Value, error) {
	if len(p.args) == 0 {
		return nil, raise("TypeError", "not enough arguments for format string")
	}
	v := p.args[0]
	p.args = p.args[1:]
	return v, nil
}

// A directive is the part behind a percent sign.
type directive struct {
	s                             string // behind it
	left, plus, space, alt, zeros bool   // flags
	width                         int
	precision                     int // -1: none
	code                          rune
}

// parse parses the directive that d.s begins with, and takes the values that it
// names or that its stars stand for.
func (d *directive) parse(p *percentFormatter) error {
	if strings.HasPrefix(d.s, "(") {
		if err := d.key(p); err != nil {
			return err
		}
	}
flags:
	for ; d.s != ""; d.s = d.s[1:] {
		switch d.s[0] {
		case '-':
			d.left = true
		case '+':
			d.plus = true
		case ' ':
			d.space = true
		case '#':
			d.alt = true
		case '0':
			d.zeros = true
		default:
			break flags
		}
	}
	width, err := d.number(p)
	if err != nil {
		return err
	}
	if d.width = width; width < 0 {
		d.left, d.width = true, -width
	}
	if strings.HasPrefix(d.s, ".") {
		d.s = d.s[1:]
		precision, err := d.number(p)
		if err != nil {
			return err
		}
		d.precision = max(precision, 0)
	}
	if d.s != "" && strings.IndexByte("hlL", d.s[0]) >= 0 {
		d.s = d.s[1:]
	}
	if d.s == "" {
		return raise("ValueError", "incomplete format")
	}
	r, size := utf8.DecodeRuneInString(d.s)
	d.code, d.s = r, d.s[size:]
	return nil
}

// key parses "(key)" and takes its value.
func (d *directive) key(p *percentFormatter) error {
	if p.mapping == missing {
		return raise("TypeError", "format requires a mapping")
	}
	open := 0
	for i := range len(d.s) {
		switch d.s[i] {
		case '(':
			open++
		case ')':
			if open--; open > 0 {
				continue
			}
			v, err := p.m.index(p.mapping, d.s[1:i])
			p.args = []Value{v}
			d.s = d.s[i+1:]
			return err
		}
	}
	return raise("ValueError", "incomplete format key")
}

// number parses digits or a star; without either it is 0.
func (d *directive) number(p *percentFormatter) (int, error) {
	if strings.HasPrefix(d.s, "*") {
		d.s = d.s[1:]
		v, err := p.next()
		if err != nil {
			return 0, err
		}
		if !isInt(v) || p.markup {
			return 0, raise("TypeError", "* wants int")
		}
		return p.m.intArgument(v)
	}
	n := 0
	for d.s != "" && d.s[0] >= '0' && d.s[0] <= '9' {
		digit := int(d.s[0] - '0')
		if n > (math.MaxInt32-digit)/10 {
			return 0, raise("ValueError", "width too big")
		}
		n = n*10 + digit
		d.s = d.s[1:]
	}
	return n, nil
}

// directive appends a value by d.
func (p *percentFormatter) directive(d *directive) error {
	v, err := p.next()
	if err != nil {
		return err
	}
	var s string
	switch d.code {
	case 's', 'r', 'a':
		if s, err = p.text(v, d.code); err == nil && d.precision >= 0 {
			s, err = p.m.cut(s, d.precision)
		}
		return p.pad(s, "", d, false, err)
	case 'c':
		s, err = p.char(v)
		return p.pad(s, "", d, false, err)
	case 'd', 'i', 'u', 'o', 'x', 'X':
		return p.integer(v, d)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		return p.float(v, d)
	}
	return raise("ValueError", "unsupported format character '%c' (0x%x)", d.code, d.code)
}

// text returns the text of %s, %r or %a.
func (p *percentFormatter) text(v Value, code rune) (string, error) {
	var s string
	var err error
	switch {
	case code != 's':
		s, err = p.m.repr(v)
		v = s
	case !p.markup:
		return p.m.str(v)
	}
	if p.markup && err == nil {
		s, err = p.m.escape(v)
	}
	if code == 'a' && err == nil {
		s, err = p.m.asciiOf(s)
	}
	return s, err
}

func (p *percentFormatter) char(v Value) (string, error) {
	if s, ok := asString(v); ok && !p.markup && len(s) <= utf8.UTFMax && utf8.RuneCountInString(s) == 1 {
		return s, nil
	}
	if isInt(v) && !p.markup {
		return charText(bigInt(v))
	}
	return "", raise("TypeError", "%%c requires int or char")
}

// integer appends an int.
func (p *percentFormatter) integer(v Value, d *directive) error {
	n, err := p.int(v, d.code)
	if err != nil {
		return err
	}
	base, prefix := 10, ""
	switch d.code {
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0x"
	}
	digits, negative, err := p.m.intText(n, base)
	if err != nil {
		return err
	}
	if zeros := d.precision - len(digits); zeros > 0 {
		if digits, err = p.m.padded(digits, "0", zeros, 0); err != nil {
			return err
		}
	}
	if !d.alt {
		prefix = ""
	}
	if d.code == 'X' {
		digits, prefix = strings.ToUpper(digits), strings.ToUpper(prefix)
	}
	return p.pad(digits, d.sign(negative)+prefix, d, d.zeros, nil)
}

// sign returns the sign of a number.
func (d *directive) sign(negative bool) string {
	switch {
	case negative:
		return "-"
	case d.plus:
		return "+"
	case d.space:
		return " "
	}
	return ""
}

// int returns v as an int, which hexadecimal and octal do not make of a float.
func (p *percentFormatter) int(v Value, code rune) (*big.Int, error) {
	switch decimal := base10(code); v := v.(type) {
	case bool, int64, *big.Int:
		if !p.markup || decimal {
			return bigInt(v), nil
		}
	case float64:
		switch {
		case !decimal:
		case v != v:
			return nil, raise("ValueError", "cannot convert float NaN to integer")
		case math.IsInf(v, 0):
			return nil, raise("OverflowError", "cannot convert float infinity to integer")
		default:
			return bigInt(floatInt(v)), nil
		}
	case *Undefined:
		if decimal {
			return nil, v.fail()
		}
	case string, Markup:
		if p.markup && decimal {
			return nil, unsupported("%%%c of a str", code)
		}
	}
	if base10(code) {
		return nil, raise("TypeError", "%%%c format: a real number is required, not %s", code, typeName(v))
	}
	return nil, raise("TypeError", "%%%c format: an integer is required, not %s", code, typeName(v))
}

func base10(code rune) bool { return code == 'd' || code == 'i' || code == 'u' }

// float appends a float.
func (p *percentFormatter) float(v Value, d *directive) error {
	if u, ok := v.(*Undefined); ok {
		return u.fail()
	}
	if _, ok := asString(v); ok && p.markup {
		return unsupported("%%%c of a str", d.code)
	}
	if !isNumber(v) {
		return raise("TypeError", "must be real number, not %s", typeName(v))
	}
	f, err := toFloat(v)
	if err != nil {
		return err
	}
	style := floatStyle{code: byte(d.code) | 0x20, precision: d.precision, alt: d.alt, upper: d.code < 'a'}
	if d.precision < 0 {
		style.precision = 6
	}
	s, err := p.m.floatText(f, style)
	if err != nil {
		return err
	}
	digits := strings.TrimPrefix(s, "-")
	return p.pad(digits, d.sign(len(digits) < len(s)), d, d.zeros, nil)
}

// pad appends head and s with what fills the width: behind, between or before.
func (p *percentFormatter) pad(s, head string, d *directive, zeros bool, err error) error {
	if err != nil {
		return err
	}
	n := max(0, d.width-len(head))
	if n > 0 {
		length, err := p.m.runes(s)
		if err != nil {
			return err
		}
		n = max(0, n-length)
	}
	switch {
	case n == 0:
	case d.left:
		s, err = p.m.padded(s, " ", 0, n)
	case zeros:
		s, err = p.m.padded(s, "0", n, 0)
	default:
		head, err = p.m.padded(head, " ", n, 0)
	}
	if err != nil {
		return err
	}
	if err := p.write(head); err != nil {
		return err
	}
	return p.write(s)
}
