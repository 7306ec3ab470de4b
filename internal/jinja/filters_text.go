package jinja

import (
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The filters of text (Jinja2 3.1.6, filters.py).

// stringMethod is the filter that is a method of str without arguments.
func stringMethod(name string) filterFunc {
	fn := "do_" + name
	return func(m *machine, v Value, args arguments) (Value, error) {
		if err := args.only(fn, "s"); err != nil {
			return nil, err
		}
		s, err := m.softStr(v)
		if err != nil {
			return nil, err
		}
		return m.invoke(s, name)
	}
}

func stringFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("soft_str", "/s"); err != nil {
		return nil, err
	}
	return m.softStr(v)
}

func trimFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_trim", "value", "chars?")
	if err != nil {
		return nil, err
	}
	s, err := m.softStr(v)
	if err != nil {
		return nil, err
	}
	return m.invoke(s, "strip", or(b[1], nil))
}

// replaceFilter gives a str, whatever it was given.
func replaceFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_replace", "s", "old", "new", "count?")
	if err != nil {
		return nil, err
	}
	var texts [3]Value
	for i := range texts {
		if texts[i], err = m.str(b[i]); err != nil {
			return nil, err
		}
	}
	count := or(b[3], nil)
	if count == nil {
		count = int64(-1)
	}
	return m.invoke(texts[0], "replace", texts[1], texts[2], count)
}

// titleFilter differs from str.title in what begins a word.
func titleFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_title", "s"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	if err := m.alloc(2 * len(s)); err != nil {
		return nil, err
	}
	if err := m.chars(6 * len(s)); err != nil {
		return nil, err
	}
	var out strings.Builder
	for s != "" {
		if err := m.step(10); err != nil {
			return nil, err
		}
		n := strings.IndexFunc(s, beginsWords)
		if n < 0 {
			n = len(s)
		}
		if err := m.titleWord(&out, s[:n]); err != nil {
			return nil, err
		}
		s = s[n:]
		rest := strings.TrimLeftFunc(s, beginsWords)
		out.WriteString(s[:len(s)-len(rest)])
		s = rest
	}
	return out.String(), nil
}

// beginsWords reports whether c is one of those before a word of title.
func beginsWords(c rune) bool {
	return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || chars.IsSpace(c)
}

// titleWord appends a word with its first character in upper case and the rest, as
// a text of its own, in lower case.
func (m *machine) titleWord(out *strings.Builder, word string) error {
	_, n := utf8.DecodeRuneInString(word)
	for _, part := range [...]struct{ text, method string }{{word[:n], "upper"}, {word[n:], "lower"}} {
		if part.text == "" {
			continue
		}
		v, err := m.invoke(part.text, part.method)
		if err != nil {
			return err
		}
		s, _ := asString(v)
		out.WriteString(s)
	}
	return nil
}

// formatFilter is "v % args".
func formatFilter(m *machine, v Value, args arguments) (Value, error) {
	if len(args.named) > 0 {
		return nil, exception.Unsupported("format by names")
	}
	s, err := m.softStr(v)
	if err != nil {
		return nil, err
	}
	return m.binary("%", s, &Tuple{Items: args.list})
}

func indentFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_indent", "s", "width?", "first?", "blank?")
	if err != nil {
		return nil, err
	}
	width := or(b[1], int64(4))
	if isMarkup(width) {
		return nil, exception.Unsupported("indent by a Markup")
	}
	if _, ok := width.(string); !ok {
		if width, err = m.binary("*", " ", width); err != nil {
			return nil, err
		}
	}
	first, err := m.option(b[2])
	if err != nil {
		return nil, err
	}
	blank, err := m.option(b[3])
	if err != nil {
		return nil, err
	}
	prefix, _ := asString(width)
	switch v := v.(type) {
	case string:
		return m.indent(v, prefix, first, blank)
	case *Undefined:
		return nil, v.fail()
	}
	return nil, exception.Unsupported("indent of a %s", typeName(v))
}

// indent puts prefix before the lines of s: before the first only with first, and before
// empty ones only with blank. A newline at the end of s is not kept.
func (m *machine) indent(s, prefix string, first, blank bool) (string, error) {
	if err := m.alloc(3 * len(s)); err != nil {
		return "", err
	}
	lines, err := m.linesOf(s + "\n")
	if err != nil {
		return "", err
	}
	if err := m.allocMany(len(lines), len(prefix)+1); err != nil {
		return "", err
	}
	var out strings.Builder
	for i, line := range lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || line != "") {
			out.WriteString(prefix)
		}
		out.WriteString(line)
	}
	return out.String(), nil
}

// linesOf is s.splitlines().
func (m *machine) linesOf(s string) ([]string, error) {
	v, err := m.splitLines(s, []Value{missing})
	if err != nil {
		return nil, err
	}
	items := v.(*List).Items
	if err := m.alloc(16 * len(items)); err != nil {
		return nil, err
	}
	lines := make([]string, len(items))
	for i, item := range items {
		lines[i] = item.(string)
	}
	return lines, nil
}
