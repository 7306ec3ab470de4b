package builtins

import (
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The filter tojson as transformers 4.57 defines it (utils/chat_template_utils.py):
// json.dumps of CPython 3.11, with ensure_ascii false.

// A jsonWriter is one json.dumps.
type jsonWriter struct {
	m         *python.Machine
	dst       []byte
	ascii     bool // nothing but ASCII is written
	sorted    bool
	pretty    bool   // each element stands on a line
	indent    string // of a line, for each level
	item, key string // separators
}

func tojsonFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	w := jsonWriter{m: m, dst: make([]byte, 0, 512), item: ", ", key: ": "}
	if !args.None() {
		if err := w.configure(v, args); err != nil {
			return nil, err
		}
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	if err := m.Alloc(len(w.dst)); err != nil {
		return nil, err
	}
	return string(w.dst), nil
}

func (w *jsonWriter) configure(v python.Value, args python.Arguments) error {
	b, err := args.BindAfter(v, "tojson", "x", "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	if err != nil {
		return err
	}
	if w.ascii, err = option(w.m, b[1]); err != nil {
		return err
	}
	if w.sorted, err = option(w.m, b[4]); err != nil {
		return err
	}
	indent, separators := or(b[2], nil), or(b[3], nil)
	w.pretty = indent != nil
	if w.pretty {
		w.item = ","
	}
	if separators != nil {
		var texts [2]string
		pair, isTuple := separators.(*python.Tuple)
		if isTuple = isTuple && len(pair.Items) == len(texts); isTuple {
			for i := range texts {
				s, ok := pair.Items[i].(string)
				texts[i], isTuple = s, isTuple && ok
			}
		}
		if !isTuple {
			return exception.Unsupported("tojson with separators that are no two strings")
		}
		w.item, w.key = texts[0], texts[1]
	}
	switch indent.(type) {
	case nil:
	case bool, int64:
		s, err := w.m.Binary("*", " ", indent)
		if err != nil {
			return err
		}
		w.indent = s.(string)
	default:
		return exception.Unsupported("tojson with a %s as indent", python.TypeName(indent))
	}
	return nil
}

func (w *jsonWriter) write(s string) error {
	if err := w.m.Alloc(len(s)); err != nil {
		return err
	}
	w.dst = append(w.dst, s...)
	return nil
}

// value writes v, at a level of nesting.
func (w *jsonWriter) value(v python.Value, level int) error {
	if err := w.m.Step(1); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64:
		return w.scalar(v)
	case string:
		return w.text(v)
	case python.Markup:
		return w.text(string(v))
	case *python.List:
		return w.list(v.Items, level)
	case *python.Tuple:
		return w.list(v.Items, level)
	case *python.Dict:
		return w.dict(v, level)
	}
	return exception.New("TypeError", "Object of type %s is not JSON serializable", python.TypeName(v))
}

func (w *jsonWriter) scalar(v python.Value) error {
	if err := w.m.Alloc(24); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		w.dst = append(w.dst, "null"...)
	case bool:
		w.dst = strconv.AppendBool(w.dst, v)
	case int64:
		w.dst = strconv.AppendInt(w.dst, v, 10)
	case *big.Int:
		s, err := w.m.Decimal(v)
		if err != nil {
			return err
		}
		w.dst = append(w.dst, s...)
	case float64:
		switch {
		case v != v:
			w.dst = append(w.dst, "NaN"...)
		case math.IsInf(v, 1):
			w.dst = append(w.dst, "Infinity"...)
		case math.IsInf(v, -1):
			w.dst = append(w.dst, "-Infinity"...)
		default:
			w.dst = python.AppendFloat(w.dst, v)
		}
	}
	return nil
}

func (w *jsonWriter) list(items []python.Value, level int) error {
	if len(items) == 0 {
		return w.write("[]")
	}
	if err := w.m.Enter(); err != nil {
		return err
	}
	defer w.m.Leave()
	w.dst = append(w.dst, '[')
	for i, item := range items {
		if err := w.next(i, level+1); err != nil {
			return err
		}
		if err := w.value(item, level+1); err != nil {
			return err
		}
	}
	return w.end("]", level)
}

func (w *jsonWriter) dict(d *python.Dict, level int) error {
	if d.Len() == 0 {
		return w.write("{}")
	}
	if err := w.m.Enter(); err != nil {
		return err
	}
	defer w.m.Leave()
	keys, values := d.Items()
	if w.sorted {
		var err error
		if keys, values, err = sortedDict(w.m, d); err != nil {
			return err
		}
	}
	w.dst = append(w.dst, '{')
	for i, key := range keys {
		if err := w.next(i, level+1); err != nil {
			return err
		}
		if err := w.keyText(key); err != nil {
			return err
		}
		if err := w.write(w.key); err != nil {
			return err
		}
		if err := w.value(values[i], level+1); err != nil {
			return err
		}
	}
	return w.end("}", level)
}

// sortedDict returns the keys and values of d in the order of the keys, which are
// never equal.
func sortedDict(m *python.Machine, d *python.Dict) (keys, values []python.Value, err error) {
	if err := m.Alloc(64 * d.Len()); err != nil {
		return nil, nil, err
	}
	keys, values = d.Items()
	items := make([]sortItem, d.Len())
	for i := range items {
		items[i] = sortItem{keys[i], values[i]}
	}
	if err := sortItems(m, items, false); err != nil {
		return nil, nil, err
	}
	keys, values = make([]python.Value, len(items)), make([]python.Value, len(items))
	for i, item := range items {
		keys[i], values[i] = item.key, item.value
	}
	return keys, values, nil
}

// keyText writes a key, which is a string whatever it was.
func (w *jsonWriter) keyText(key python.Value) error {
	switch key := key.(type) {
	case string:
		return w.text(key)
	case python.Markup:
		return w.text(string(key))
	case nil, bool, int64, *big.Int, float64:
		w.dst = append(w.dst, '"')
		if err := w.scalar(key); err != nil {
			return err
		}
		w.dst = append(w.dst, '"')
		return nil
	}
	return exception.New("TypeError", "keys must be str, int, float, bool or None, not %s", python.TypeName(key))
}

// next writes what stands before the i-th element at a level.
func (w *jsonWriter) next(i, level int) error {
	if i > 0 {
		if err := w.write(w.item); err != nil {
			return err
		}
	}
	return w.line(level)
}

func (w *jsonWriter) line(level int) error {
	if !w.pretty {
		return nil
	}
	if err := w.write("\n"); err != nil {
		return err
	}
	if err := w.m.Step(level / 8); err != nil {
		return err
	}
	for range level {
		if err := w.write(w.indent); err != nil {
			return err
		}
	}
	return nil
}

func (w *jsonWriter) end(bracket string, level int) error {
	if err := w.line(level); err != nil {
		return err
	}
	return w.write(bracket)
}

const hexDigits = "0123456789abcdef"

// text writes a string.
func (w *jsonWriter) text(s string) error {
	if err := w.m.Alloc(len(s) + 2); err != nil {
		return err
	}
	if err := w.m.Chars(2 * len(s)); err != nil {
		return err
	}
	n := len(w.dst)
	w.dst = append(w.dst, '"')
	from := 0
	for i := 0; i < len(s); {
		if c := s[i]; jsonPlain[c] && (c < 0x7f || !w.ascii) {
			i++
			continue
		}
		w.dst = append(w.dst, s[from:i]...)
		r, size := utf8.DecodeRuneInString(s[i:])
		w.dst = appendJSONEscape(w.dst, r)
		i += size
		from = i
	}
	w.dst = append(append(w.dst, s[from:]...), '"')
	// An escape is at most six times as long as what it stands for.
	more := len(w.dst) - n - len(s) - 2
	if err := w.m.Alloc(more); err != nil {
		return err
	}
	return w.m.Chars(2 * more)
}

// jsonPlain are the bytes that stand for themselves in a string.
var jsonPlain = func() (plain [256]bool) {
	for c := range plain {
		plain[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return plain
}()

func appendJSONEscape(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	case '\f':
		return append(dst, '\\', 'f')
	case '\b':
		return append(dst, '\\', 'b')
	}
	if r > 0xffff {
		r -= 0x10000
		dst = appendUnicode(dst, 0xd800+r>>10)
		r = 0xdc00 + r&0x3ff
	}
	return appendUnicode(dst, r)
}

func appendUnicode(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// JSON returns v as json.dumps writes it, within the default Limits. ascii is its ensure_ascii.
func JSON(v python.Value, ascii bool) (string, error) {
	s, err := tojsonFilter(python.NewMachine(python.Limits{}), v, python.Arguments{Named: []python.Argument{{Name: "ensure_ascii", Value: ascii}}})
	if err != nil {
		return "", err
	}
	return s.(string), nil
}
