package python

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// maxDigits is how many digits of an int CPython 3.11 reads or prints
// (sys.int_info.default_max_str_digits).
const maxDigits = 4300

// Str returns Python's str(v).
func (m *Machine) Str(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case Markup:
		return string(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	}
	var buf [64]byte
	b, err := m.AppendStr(buf[:0], v)
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// AppendStr appends str(v). Of a str it charges nothing.
func (m *Machine) AppendStr(dst []byte, v Value) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return append(dst, v...), nil
	case Markup:
		return append(dst, v...), nil
	case *Undefined:
		return dst, nil
	}
	return m.appendRepr(dst, v)
}

// appendRepr appends repr(v).
func (m *Machine) appendRepr(dst []byte, v Value) ([]byte, error) {
	p := printer{m: m, dst: dst}
	err := p.repr(v)
	if err != nil {
		return dst, err
	}
	return p.dst, nil
}

// Repr returns repr(v).
func (m *Machine) Repr(v Value) (string, error) {
	b, err := m.appendRepr(nil, v)
	return string(b), err
}

// A printer appends reprs to dst.
type printer struct {
	m   *Machine
	dst []byte
}

// write appends s, charged.
func (p *printer) write(s string) error {
	if err := p.m.Alloc(len(s)); err != nil {
		return err
	}
	p.dst = append(p.dst, s...)
	return nil
}

func (p *printer) repr(v Value) error {
	switch v := v.(type) {
	case nil:
		return p.write("None")
	case bool:
		if v {
			return p.write("True")
		}
		return p.write("False")
	case int64:
		if err := p.m.Alloc(20); err != nil {
			return err
		}
		p.dst = strconv.AppendInt(p.dst, v, 10)
		return nil
	case *big.Int:
		s, err := p.m.Decimal(v)
		if err != nil {
			return err
		}
		return p.write(s)
	case float64:
		if err := p.m.Alloc(24); err != nil {
			return err
		}
		if err := p.m.Step(3); err != nil {
			return err
		}
		p.dst = AppendFloat(p.dst, v)
		return nil
	case string:
		return p.reprString(v)
	case *Undefined:
		return p.write("Undefined")
	}
	return p.reprContainer(v)
}

func (p *printer) reprContainer(v Value) error {
	if err := p.m.Enter(); err != nil {
		return err
	}
	defer p.m.Leave()
	switch v := v.(type) {
	case *List:
		return p.items("[", v.Items, "]")
	case *Tuple:
		if len(v.Items) == 1 {
			return p.items("(", v.Items, ",)")
		}
		return p.items("(", v.Items, ")")
	case *Dict:
		return p.pairs(v, "{", ": ", "}")
	}
	// Through a namespace a value may hold itself, and a Markup has a form of its own in a list.
	return exception.Unsupported("printing a %s", TypeName(v))
}

func (p *printer) items(open string, items []Value, end string) error {
	if err := p.write(open); err != nil {
		return err
	}
	for i, item := range items {
		if i > 0 {
			if err := p.write(", "); err != nil {
				return err
			}
		}
		if err := p.element(item); err != nil {
			return err
		}
	}
	return p.write(end)
}

// element is repr of an element, which is a step.
func (p *printer) element(v Value) error {
	if err := p.m.Step(1); err != nil {
		return err
	}
	return p.repr(v)
}

// pairs prints a dict's keys and values, with sep between the two of each.
func (p *printer) pairs(d *Dict, open, sep, end string) error {
	for i, k := range d.keys {
		if err := p.write(open); err != nil {
			return err
		}
		open = ", "
		if err := p.element(k); err != nil {
			return err
		}
		if err := p.write(sep); err != nil {
			return err
		}
		if err := p.element(d.values[i]); err != nil {
			return err
		}
	}
	if len(d.keys) == 0 {
		end = open + end
	}
	return p.write(end)
}

// Pair returns the i-th key and its value as a tuple.
func (d *Dict) Pair(i int) *Tuple { return &Tuple{Items: []Value{d.keys[i], d.values[i]}} }

// Decimal returns the digits of n, or the ValueError for too many of them.
func (m *Machine) Decimal(n *big.Int) (string, error) {
	if n.BitLen() > maxDigits*10/3 {
		return "", tooManyDigits()
	}
	if err := m.Alloc(n.BitLen() / 3); err != nil {
		return "", err
	}
	if err := m.Step(10 + n.BitLen()/12); err != nil {
		return "", err
	}
	s := n.String()
	if len(strings.TrimPrefix(s, "-")) > maxDigits {
		return "", tooManyDigits()
	}
	return s, nil
}

func tooManyDigits() error {
	return exception.New("ValueError", "Exceeds the limit (%d digits) for integer string conversion; use sys.set_int_max_str_digits() to increase the limit", maxDigits)
}

// AppendFloat appends repr(f).
func AppendFloat(dst []byte, f float64) []byte {
	switch abs := math.Abs(f); {
	case f != f:
		return append(dst, "nan"...)
	case f > math.MaxFloat64:
		return append(dst, "inf"...)
	case f < -math.MaxFloat64:
		return append(dst, "-inf"...)
	case abs != 0 && (abs < 1e-4 || abs >= 1e16):
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[n:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// reprString appends the repr of a str.
func (p *printer) reprString(s string) error {
	if err := p.m.Alloc(len(s) + 2); err != nil {
		return err
	}
	if err := p.m.Chars(2 * len(s)); err != nil {
		return err
	}
	if !chars.IsASCII(s) {
		if err := p.m.Kinds(len(s)); err != nil {
			return err
		}
	}
	n := len(p.dst)
	p.dst = appendReprString(p.dst, s)
	more := len(p.dst) - n - len(s) - 2
	if err := p.m.Alloc(more); err != nil {
		return err
	}
	return p.m.Chars(2 * more)
}

// appendReprString appends repr(s), which is at most four times as long.
func appendReprString(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	dst = append(dst, quote)
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != quote && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			dst = appendEscape(dst, rune(c))
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if !chars.Of(r).Is(chars.Printable) {
			dst = append(dst, s[from:i]...)
			dst = appendEscape(dst, r)
			from = i + size
		}
		i += size
	}
	return append(append(dst, s[from:]...), quote)
}

// appendEscape appends the escape of r in a repr.
func appendEscape(dst []byte, r rune) []byte {
	switch r {
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	case '\\', '\'', '"':
		return append(dst, '\\', byte(r))
	}
	digits := 8
	switch {
	case r <= 0xff:
		dst, digits = append(dst, `\x`...), 2
	case r <= 0xffff:
		dst, digits = append(dst, `\u`...), 4
	default:
		dst = append(dst, `\U`...)
	}
	for i := digits - 1; i >= 0; i-- {
		dst = append(dst, "0123456789abcdef"[r>>(4*i)&15])
	}
	return dst
}
