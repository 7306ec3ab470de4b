package chat

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja"
)

// maxBody bounds the bodies that Parse reads, in bytes.
const maxBody = 32 << 20

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

// Limits of a JSON text. An engine's own are Python's: a thousand levels and 4,300
// digits.
const (
	maxDepth  = 100     // arrays and objects in one another
	maxValues = 1 << 17 // keys and values
	maxTokens = 1 << 20 // of a prompt of token ids, which do not count as values
	maxDigits = 4300    // of an integer, as Python's int has it
	maxTools  = 2 << 20 // bytes of a request's tools; a catalog of 260 has 400,000
	maxLong   = 1 << 18 // digits of all integers that do not fit 64 bits
)

// A decoder reads JSON as json.loads of Python 3.12 does: keys in order, of equal ones the
// last value at the first's place, integers of any size apart from floats, and NaN, Infinity
// and -Infinity. It refuses a lone surrogate, which only Python can hold.
type decoder struct {
	s     string // valid UTF-8
	at    int
	depth int
	*counts
}

// counts are the counts of a request, over all of its texts.
type counts struct {
	values int
	tokens int
	long   int // digits of integers that do not fit 64 bits
}

// A syntaxError stands for a JSONDecodeError of json.loads.
type syntaxError struct {
	at  int
	msg string
}

func (e *syntaxError) Error() string { return e.msg + " at byte " + strconv.Itoa(e.at) }

// decode reads a whole text. Its errors are syntaxErrors, and fieldErrors without a
// path.
func decode(s string) (jinja.Value, error) { return new(counts).decode(s) }

func (n *counts) decode(s string) (jinja.Value, error) {
	d := decoder{s: s, counts: n}
	v, err := d.value()
	if err != nil {
		return nil, err
	}
	if d.space(); d.at < len(s) {
		return nil, d.fail("more text behind the value")
	}
	return v, nil
}

func (d *decoder) fail(msg string) error { return &syntaxError{d.at, msg} }

func (d *decoder) space() {
	for d.at < len(d.s) && (d.s[d.at] == ' ' || d.s[d.at] == '\n' || d.s[d.at] == '\t' || d.s[d.at] == '\r') {
		d.at++
	}
}

// next returns the next byte that is not space, without reading it; 0 at the end.
func (d *decoder) next() byte {
	if d.space(); d.at < len(d.s) {
		return d.s[d.at]
	}
	return 0
}

// words are the values that are neither strings, numbers nor containers.
var words = []struct {
	text  string
	value jinja.Value
}{
	{"null", nil}, {"true", true}, {"false", false}, {"NaN", nan}, {"Infinity", inf}, {"-Infinity", -inf},
}

func (d *decoder) value() (jinja.Value, error) {
	switch c := d.next(); c {
	case '"':
		return d.string()
	case '{', '[':
		if err := d.count(); err != nil {
			return nil, err
		}
		if d.depth++; d.depth > maxDepth {
			return nil, unscored("", "nested deeper than %d", maxDepth)
		}
		d.at++
		container := d.array
		if c == '{' {
			container = d.object
		}
		v, err := container()
		d.depth--
		return v, err
	}
	if err := d.countSmall(); err != nil {
		return nil, err
	}
	if rest := strings.TrimPrefix(d.s[d.at:], "-"); rest != "" && isDigit(rest[0]) {
		return d.number()
	}
	for _, w := range words {
		if strings.HasPrefix(d.s[d.at:], w.text) {
			d.at += len(w.text)
			return w.value, nil
		}
	}
	return nil, d.fail("no value")
}

// countSmall counts a number or a word. Token ids count apart.
func (d *decoder) countSmall() error {
	if d.depth > tokenDepth {
		return d.count()
	}
	if d.tokens++; d.tokens > maxTokens {
		return unscored("", "more than %d numbers", maxTokens)
	}
	return nil
}

// tokenDepth is that of a token id in {"prompt": [[1]]}.
const tokenDepth = 3

// count counts a string, a container, or a small value.
func (d *decoder) count() error {
	if d.values++; d.values > maxValues {
		return unscored("", "more than %d values", maxValues)
	}
	return nil
}

func (d *decoder) object() (jinja.Value, error) {
	o := new(jinja.Dict)
	if d.next() == '}' {
		d.at++
		return o, nil
	}
	for {
		if d.next() != '"' {
			return nil, d.fail("no key")
		}
		key, err := d.string()
		if err != nil {
			return nil, err
		}
		if d.next() != ':' {
			return nil, d.fail("no ':'")
		}
		d.at++
		from := d.at
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		if d.depth == 1 && key == "tools" && d.at-from > maxTools {
			return nil, unscored("tools", "longer than %d bytes", maxTools)
		}
		o.Set(key, v)
		switch d.next() {
		case ',':
			d.at++
		case '}':
			d.at++
			return o, nil
		default:
			return nil, d.fail("neither ',' nor '}'")
		}
	}
}

func (d *decoder) array() (jinja.Value, error) {
	l := new(jinja.List)
	if d.next() == ']' {
		d.at++
		return l, nil
	}
	for {
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
		switch d.next() {
		case ',':
			d.at++
		case ']':
			d.at++
			return l, nil
		default:
			return nil, d.fail("neither ',' nor ']'")
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (d *decoder) digits() {
	for d.at < len(d.s) && isDigit(d.s[d.at]) {
		d.at++
	}
}

// number reads a number that begins with a digit, or with '-' and a digit.
func (d *decoder) number() (jinja.Value, error) {
	from := d.at
	if d.s[d.at] == '-' {
		d.at++
	}
	if d.s[d.at] == '0' {
		d.at++
	} else {
		d.digits()
	}
	whole := d.at
	if rest := d.s[d.at:]; len(rest) > 1 && rest[0] == '.' && isDigit(rest[1]) {
		d.at++
		d.digits()
	}
	if rest := d.s[d.at:]; len(rest) > 1 && (rest[0] == 'e' || rest[0] == 'E') {
		sign := 0
		if rest[1] == '+' || rest[1] == '-' {
			sign = 1
		}
		if len(rest) > 1+sign && isDigit(rest[1+sign]) {
			d.at += 1 + sign
			d.digits()
		}
	}
	text := d.s[from:d.at]
	if d.at > whole {
		f, _ := strconv.ParseFloat(text, 64) // too large a number is infinite, as in Python
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	digits := len(strings.TrimPrefix(text, "-"))
	if digits > maxDigits {
		return nil, badField("", "an integer of more than %d digits", maxDigits)
	}
	if d.long += digits; d.long > maxLong {
		return nil, unscored("", "more than %d digits of long integers", maxLong)
	}
	n, _ := new(big.Int).SetString(text, 10)
	return n, nil
}

// string reads a string from its quotation mark on.
func (d *decoder) string() (string, error) {
	if err := d.count(); err != nil {
		return "", err
	}
	d.at++
	from := d.at
	for d.at < len(d.s) {
		switch c := d.s[d.at]; {
		case c == '"':
			d.at++
			return d.s[from : d.at-1], nil
		case c == '\\':
			return d.escaped(from)
		case c < ' ':
			return "", d.fail("a control character in a string")
		}
		d.at++
	}
	return "", d.fail("a string without end")
}

// escaped reads on from the first escape of a string that began at from.
func (d *decoder) escaped(from int) (string, error) {
	var b strings.Builder
	for d.at < len(d.s) {
		switch c := d.s[d.at]; {
		case c == '"':
			b.WriteString(d.s[from:d.at])
			d.at++
			return b.String(), nil
		case c == '\\':
			b.WriteString(d.s[from:d.at])
			r, err := d.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
			from = d.at
			continue
		case c < ' ':
			return "", d.fail("a control character in a string")
		}
		d.at++
	}
	return "", d.fail("a string without end")
}

const (
	escapes = `"\/bfnrt`
	meaning = "\"\\/\b\f\n\r\t"
)

func (d *decoder) escape() (rune, error) {
	if d.at+1 == len(d.s) {
		return 0, d.fail("a string without end")
	}
	if i := strings.IndexByte(escapes, d.s[d.at+1]); i >= 0 {
		d.at += 2
		return rune(meaning[i]), nil
	}
	r, ok := d.unicode()
	if !ok {
		return 0, d.fail("no such escape")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if low, ok := d.unicode(); ok {
		if r := utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, badField("", "a lone surrogate in a string, which no tokenizer takes")
}

// unicode reads an escape of \u and four digits.
func (d *decoder) unicode() (rune, bool) {
	s := d.s[d.at:]
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	d.at += 6
	return r, true
}
