package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A floatStyle is how a float is written (CPython 3.11, pystrtod.c).
type floatStyle struct {
	code      byte // e, f, g, or r for repr
	precision int  // not of r
	alt       bool // keep the point, and the zeros of g
	dotZero   bool // at least one digit behind the point, of g and r
	noNegZero bool // no sign of a value that is rounded to zero
	upper     bool
}

// floatText writes f.
func (m *machine) floatText(f float64, style floatStyle) (string, error) {
	if err := m.alloc(min(style.precision, math.MaxInt32) + 330); err != nil {
		return "", err
	}
	if err := m.step(floatWork(f)); err != nil {
		return "", err
	}
	s := finiteText(math.Abs(f), style)
	switch {
	case f != f:
		s = "nan"
	case math.IsInf(f, 0):
		s = "inf"
	}
	if style.upper {
		s = strings.ToUpper(s)
	}
	signed := !style.noNegZero || strings.ContainsAny(s, "123456789iI")
	if f == f && math.Signbit(f) && signed {
		s = "-" + s
	}
	return s, nil
}

// floatWork is how many steps the digits of f take, or reading f of its digits.
func floatWork(f float64) int {
	_, exp := math.Frexp(f)
	return 20 + max(exp, -exp)/2
}

// finiteText writes f, which is at least 0; infinities and nan it writes somehow.
func finiteText(f float64, style floatStyle) string {
	point := func(s string) string {
		if style.alt && style.precision == 0 {
			return s[:1] + "." + s[1:]
		}
		return s
	}
	switch style.code {
	case 'e':
		return point(strconv.FormatFloat(f, 'e', style.precision, 64))
	case 'f':
		s := strconv.FormatFloat(f, 'f', style.precision, 64)
		if style.alt && style.precision == 0 {
			s += "."
		}
		return s
	}
	if f-f != 0 {
		return ""
	}
	return digitsText(f, style)
}

// digitsText writes f as g or r: as few digits as it has, with an exponent if
// that is short or long.
func digitsText(f float64, style floatStyle) string {
	precision := -1
	if style.code == 'g' {
		style.precision = max(style.precision, 1)
		precision = style.precision - 1
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', precision, 64), "e")
	exp, _ := strconv.Atoi(exponent)
	digits := strings.Replace(mantissa, ".", "", 1)
	last := 16
	if style.code == 'g' {
		last = style.precision
		if style.dotZero {
			last--
		}
	}
	if !style.alt || style.code == 'r' {
		digits = strings.TrimRight(digits, "0")
	}
	if digits == "" {
		digits = "0"
	}
	useExp := exp < -4 || exp+1 > last
	at := exp + 1 // the place of the point in digits
	if useExp {
		at = 1
	}
	if at <= 0 {
		digits, at = strings.Repeat("0", 1-at)+digits, 1
	}
	whole := at
	if style.dotZero && !useExp {
		whole++
	}
	if n := whole - len(digits); n > 0 {
		digits += strings.Repeat("0", n)
	}
	s := digits[:at]
	if at < len(digits) || style.alt {
		s += "." + digits[at:]
	}
	if !useExp {
		return s
	}
	sign := "+"
	if exp < 0 {
		sign, exp = "-", -exp
	}
	if exp < 10 {
		sign += "0"
	}
	return s + "e" + sign + strconv.Itoa(exp)
}

// intText returns the digits of an int, without its sign, in a base.
func (m *machine) intText(n *big.Int, base int) (digits string, negative bool, err error) {
	negative = n.Sign() < 0
	if base == 10 {
		s, err := m.decimal(n)
		return strings.TrimPrefix(s, "-"), negative, err
	}
	if err := m.charge(2 * n.BitLen()); err != nil {
		return "", false, err
	}
	return strings.TrimPrefix(n.Text(base), "-"), negative, nil
}

// A formatSpec is the part behind the colon of a format field (CPython 3.11,
// formatter_unicode.c).
type formatSpec struct {
	fill      string
	align     byte
	sign      byte // 0: none given
	noNegZero bool
	alt       bool
	width     int    // -1: none
	separator string // of thousands
	group     int    // digits between separators, 0: none
	precision int    // -1: none
	kind      rune   // 0: none given
}

// parseSpec parses the spec for a value of the type class, which is aligned by
// default by align.
func parseSpec(spec, class string, align byte) (formatSpec, error) {
	f := formatSpec{fill: " ", align: align, width: -1, precision: -1}
	s := spec
	filled, aligned := false, false
	if r, size := utf8.DecodeRuneInString(s); size < len(s) && isAlign(s[size]) {
		f.fill, f.align = string(r), s[size]
		s = s[size+1:]
		filled, aligned = true, true
	} else if s != "" && isAlign(s[0]) {
		f.align, aligned = s[0], true
		s = s[1:]
	}
	eat := func(chars string) byte {
		if s == "" || strings.IndexByte(chars, s[0]) < 0 {
			return 0
		}
		c := s[0]
		s = s[1:]
		return c
	}
	f.sign = eat(" +-")
	f.noNegZero = eat("z") != 0
	f.alt = eat("#") != 0
	if !filled && eat("0") != 0 {
		f.fill = "0"
		if !aligned && align == '>' {
			f.align = '='
		}
	}
	var err error
	if f.width, s, err = specInt(s); err != nil {
		return f, err
	}
	if s, err = f.grouping(s); err != nil {
		return f, err
	}
	if eat(".") != 0 {
		if f.precision, s, err = specInt(s); err != nil {
			return f, err
		}
		if f.precision < 0 {
			return f, raise("ValueError", "Format specifier missing precision")
		}
	}
	r, size := utf8.DecodeRuneInString(s)
	if size < len(s) {
		return f, raise("ValueError", "Invalid format specifier '%s' for object of type '%s'", spec, class)
	}
	if size > 0 {
		if f.kind = r; r == 0 && class != "float" { // CPython takes it for none of a float only
			return f, raise("ValueError", "Unknown format code '\\x0' for object of type '%s'", class)
		}
	} else if class == "str" || class == "Markup" {
		f.kind = 's'
	}
	return f, f.checkGrouping()
}

func isAlign(c byte) bool { return c == '<' || c == '>' || c == '=' || c == '^' }

// grouping parses the separator of thousands.
func (f *formatSpec) grouping(s string) (rest string, err error) {
	if strings.HasPrefix(s, ",_") || strings.HasPrefix(s, "_,") {
		return s, raise("ValueError", "Cannot specify both ',' and '_'.")
	}
	if s != "" && (s[0] == ',' || s[0] == '_') {
		f.separator, f.group = s[:1], 3
		return s[1:], nil
	}
	return s, nil
}

func (f *formatSpec) checkGrouping() error {
	if f.group == 0 {
		return nil
	}
	switch f.kind {
	case 'd', 'e', 'f', 'g', 'E', 'G', '%', 'F', 0:
		return nil
	case 'b', 'o', 'x', 'X':
		if f.separator == "_" {
			f.group = 4
			return nil
		}
	}
	return raise("ValueError", "Cannot specify '%s' with '%c'.", f.separator, f.kind)
}

// specInt parses the digits that s begins with; n is -1 if there are none.
func specInt(s string) (n int, rest string, err error) {
	n = -1
	for i, r := range s {
		d, ok := decimalDigit(r)
		if !ok {
			return n, s[i:], nil
		}
		if n = max(n, 0); n > (math.MaxInt-d)/10 {
			return n, s, raise("ValueError", "Too many decimal digits in format string")
		}
		n = n*10 + d
	}
	return n, "", nil
}

// formatValue returns Python's format(v, spec).
func (m *machine) formatValue(v Value, spec string) (string, error) {
	if spec == "" {
		return m.str(v)
	}
	class := typeName(v)
	if err := m.step(10); err != nil {
		return "", err
	}
	if err := m.kinds(len(spec)); err != nil {
		return "", err
	}
	if s, ok := asString(v); ok {
		f, err := parseSpec(spec, class, '<')
		if err != nil {
			return "", err
		}
		return m.formatText(s, class, f)
	}
	if !isNumber(v) {
		return "", raise("TypeError", "unsupported format string passed to %s.__format__", class)
	}
	f, err := parseSpec(spec, class, '>')
	if err != nil {
		return "", err
	}
	switch f.kind {
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return m.formatFloat(v, f)
	case 'b', 'c', 'd', 'o', 'x', 'X', 0, 'n':
		if isInt(v) {
			return m.formatInt(bigInt(v), f)
		}
		if f.kind == 0 || f.kind == 'n' {
			return m.formatFloat(v, f)
		}
	}
	return "", raise("ValueError", "Unknown format code '%c' for object of type '%s'", f.kind, class)
}

func (m *machine) formatText(s, class string, f formatSpec) (string, error) {
	switch {
	case f.kind != 's':
		return "", raise("ValueError", "Unknown format code '%c' for object of type '%s'", f.kind, class)
	case f.sign == ' ':
		return "", raise("ValueError", "Space not allowed in string format specifier")
	case f.sign != 0:
		return "", raise("ValueError", "Sign not allowed in string format specifier")
	case f.noNegZero:
		return "", raise("ValueError", "Negative zero coercion (z) not allowed in string format specifier")
	case f.alt:
		return "", raise("ValueError", "Alternate form (#) not allowed in string format specifier")
	case f.align == '=':
		return "", raise("ValueError", "'=' alignment not allowed in string format specifier")
	}
	if f.precision >= 0 {
		var err error
		if s, err = m.cut(s, f.precision); err != nil {
			return "", err
		}
	}
	if f.width <= 0 {
		return s, nil
	}
	length, err := m.runes(s)
	n := f.width - length
	if err != nil || n <= 0 {
		return s, err
	}
	left, _, right := f.padding(n)
	return m.padded(s, f.fill, left, right)
}

// cut returns the first n code points of s.
func (m *machine) cut(s string, n int) (string, error) {
	to, err := m.offset(s, n)
	return s[:to], err
}

// padding divides n fills: left, between sign and digits, right.
func (f *formatSpec) padding(n int) (left, middle, right int) {
	switch f.align {
	case '<':
		return 0, 0, n
	case '^':
		return n / 2, 0, n - n/2
	case '=':
		return 0, n, 0
	}
	return n, 0, 0
}

func (m *machine) formatInt(n *big.Int, f formatSpec) (string, error) {
	switch {
	case f.precision >= 0:
		return "", raise("ValueError", "Precision not allowed in integer format specifier")
	case f.noNegZero:
		return "", raise("ValueError", "Negative zero coercion (z) not allowed in integer format specifier")
	case f.kind == 'c':
		return m.formatChar(n, f)
	}
	base, prefix := 10, ""
	switch f.kind {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0x"
	}
	digits, negative, err := m.intText(n, base)
	if err != nil {
		return "", err
	}
	if !f.alt {
		prefix = ""
	}
	if f.kind == 'X' {
		digits, prefix = strings.ToUpper(digits), strings.ToUpper(prefix)
	}
	return m.formatNumber(numeral{negative, prefix, digits, ""}, f)
}

func (m *machine) formatChar(n *big.Int, f formatSpec) (string, error) {
	switch {
	case f.sign != 0:
		return "", raise("ValueError", "Sign not allowed with integer format specifier 'c'")
	case f.alt:
		return "", raise("ValueError", "Alternate form (#) not allowed with integer format specifier 'c'")
	}
	s, err := charText(n)
	if err != nil {
		return "", err
	}
	return m.formatNumber(numeral{rest: s}, f)
}

// charText returns the code point n as a text.
func charText(n *big.Int) (string, error) {
	if !n.IsInt64() || n.Int64() < 0 || n.Int64() > utf8.MaxRune {
		return "", raise("OverflowError", "%%c arg not in range(0x110000)")
	}
	if r := rune(n.Int64()); utf8.ValidRune(r) {
		return string(r), nil
	}
	return "", unsupported("a surrogate")
}

func (m *machine) formatFloat(v Value, f formatSpec) (string, error) {
	x, err := toFloat(v)
	if err != nil {
		return "", err
	}
	style := floatStyle{code: byte(f.kind), precision: f.precision, alt: f.alt, noNegZero: f.noNegZero}
	switch f.kind {
	case 0:
		style.code, style.dotZero = 'r', true
	case 'n':
		style.code = 'g'
	case '%':
		style.code = 'f'
		x *= 100
	case 'E', 'F', 'G':
		style.code, style.upper = byte(f.kind)|0x20, true
	}
	switch {
	case f.precision >= 0 && style.code == 'r':
		style.code = 'g'
	case f.precision < 0:
		style.precision = 6
	}
	s, err := m.floatText(x, style)
	if err != nil {
		return "", err
	}
	if f.kind == '%' {
		s += "%"
	}
	rest := strings.TrimPrefix(s, "-")
	n := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	return m.formatNumber(numeral{len(rest) < len(s), "", rest[:n], rest[n:]}, f)
}

// A numeral is a number to be padded and grouped.
type numeral struct {
	negative bool
	prefix   string
	digits   string
	rest     string // from the point on, or what is no number
}

// formatNumber puts sign, prefix, grouped digits, rest and padding together.
func (m *machine) formatNumber(n numeral, f formatSpec) (string, error) {
	sign := ""
	switch {
	case n.negative:
		sign = "-"
	case f.sign == '+' || f.sign == ' ':
		sign = string(f.sign)
	}
	around := len(sign) + len(n.prefix) + utf8.RuneCountInString(n.rest)
	least := 0
	if f.fill == "0" && f.align == '=' {
		least = f.width - around
	}
	if err := m.allocMany(max(f.width, len(n.digits), around), 8); err != nil {
		return "", err
	}
	digits := n.digits
	if err := m.step(10 + max(len(digits), least)/4); err != nil {
		return "", err
	}
	if digits != "" {
		digits = f.grouped(digits, least)
	}
	left, middle, right := 0, 0, 0
	if pad := f.width - around - len(digits); pad > 0 {
		left, middle, right = f.padding(pad)
	}
	return strings.Repeat(f.fill, left) + sign + n.prefix + strings.Repeat(f.fill, middle) +
		digits + n.rest + strings.Repeat(f.fill, right), nil
}

// grouped puts separators between the digits, with zeros before them up to a width
// of least.
func (f *formatSpec) grouped(digits string, least int) string {
	if f.group == 0 {
		return strings.Repeat("0", max(0, least-len(digits))) + digits
	}
	var groups []string // from the right
	for {
		n := min(f.group, max(len(digits), least, 1))
		cut := max(0, len(digits)-n)
		group := digits[cut:]
		digits = digits[:cut]
		groups = append(groups, strings.Repeat("0", n-len(group))+group)
		if least -= n; digits == "" && least <= 0 {
			break
		}
		least--
	}
	var b strings.Builder
	for i := len(groups) - 1; i >= 0; i-- {
		b.WriteString(groups[i])
		if i > 0 {
			b.WriteString(f.separator)
		}
	}
	return b.String()
}
