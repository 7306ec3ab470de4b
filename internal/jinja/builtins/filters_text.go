package builtins

import (
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The filters of text (Jinja2 3.1.6, filters.py).

// stringMethod is the filter that is a method of str without arguments.
func stringMethod(name string) Filter {
	fn := "do_" + name
	return func(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
		if err := args.Only(fn, "s"); err != nil {
			return nil, err
		}
		s, err := softStr(m, v)
		if err != nil {
			return nil, err
		}
		return invoke(m, s, name)
	}
}

func stringFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("soft_str", "/s"); err != nil {
		return nil, err
	}
	return softStr(m, v)
}

func trimFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_trim", "value", "chars?")
	if err != nil {
		return nil, err
	}
	s, err := softStr(m, v)
	if err != nil {
		return nil, err
	}
	return invoke(m, s, "strip", or(b[1], nil))
}

// replaceFilter gives a str, whatever it was given.
func replaceFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_replace", "s", "old", "new", "count?")
	if err != nil {
		return nil, err
	}
	var texts [3]python.Value
	for i := range texts {
		if texts[i], err = m.Str(b[i]); err != nil {
			return nil, err
		}
	}
	count := or(b[3], nil)
	if count == nil {
		count = int64(-1)
	}
	return invoke(m, texts[0], "replace", texts[1], texts[2], count)
}

// titleFilter differs from str.title in what begins a word.
func titleFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if err := args.Only("do_title", "s"); err != nil {
		return nil, err
	}
	s, err := m.Str(v)
	if err != nil {
		return nil, err
	}
	if err := m.Alloc(2 * len(s)); err != nil {
		return nil, err
	}
	if err := m.Chars(6 * len(s)); err != nil {
		return nil, err
	}
	var out strings.Builder
	for s != "" {
		if err := m.Step(10); err != nil {
			return nil, err
		}
		n := strings.IndexFunc(s, beginsWords)
		if n < 0 {
			n = len(s)
		}
		if err := titleWord(m, &out, s[:n]); err != nil {
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
func titleWord(m *python.Machine, out *strings.Builder, word string) error {
	_, n := utf8.DecodeRuneInString(word)
	for _, part := range [...]struct{ text, method string }{{word[:n], "upper"}, {word[n:], "lower"}} {
		if part.text == "" {
			continue
		}
		v, err := invoke(m, part.text, part.method)
		if err != nil {
			return err
		}
		s, _ := python.AsString(v)
		out.WriteString(s)
	}
	return nil
}

// formatFilter is "v % args".
func formatFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	if len(args.Named) > 0 {
		return nil, exception.Unsupported("format by names")
	}
	s, err := softStr(m, v)
	if err != nil {
		return nil, err
	}
	return m.Binary("%", s, &python.Tuple{Items: args.List})
}

func indentFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_indent", "s", "width?", "first?", "blank?")
	if err != nil {
		return nil, err
	}
	width := or(b[1], int64(4))
	if python.IsMarkup(width) {
		return nil, exception.Unsupported("indent by a Markup")
	}
	if _, ok := width.(string); !ok {
		if width, err = m.Binary("*", " ", width); err != nil {
			return nil, err
		}
	}
	first, err := option(m, b[2])
	if err != nil {
		return nil, err
	}
	blank, err := option(m, b[3])
	if err != nil {
		return nil, err
	}
	prefix, _ := python.AsString(width)
	switch v := v.(type) {
	case string:
		return indent(m, v, prefix, first, blank)
	case *python.Undefined:
		return nil, v.Fail()
	}
	return nil, exception.Unsupported("indent of a %s", python.TypeName(v))
}

// indent puts prefix before the lines of s: before the first only with first, and before
// empty ones only with blank. A newline at the end of s is not kept.
func indent(m *python.Machine, s, prefix string, first, blank bool) (string, error) {
	if err := m.Alloc(3 * len(s)); err != nil {
		return "", err
	}
	lines, err := linesOf(m, s+"\n")
	if err != nil {
		return "", err
	}
	if err := m.AllocMany(len(lines), len(prefix)+1); err != nil {
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
func linesOf(m *python.Machine, s string) ([]string, error) {
	v, err := m.SplitLines(s, []python.Value{python.Missing})
	if err != nil {
		return nil, err
	}
	items := v.(*python.List).Items
	if err := m.Alloc(16 * len(items)); err != nil {
		return nil, err
	}
	lines := make([]string, len(items))
	for i, item := range items {
		lines[i] = item.(string)
	}
	return lines, nil
}
