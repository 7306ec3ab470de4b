package jinja

import (
	"strings"
	"unicode/utf8"
)

// A fieldFormatter is one call of str.format or str.format_map in the sandbox
// (Jinja2 3.1.6, sandbox.py; CPython 3.11, string.py and unicode_format.h).
type fieldFormatter struct {
	m       *machine
	list    []Value
	named   []argument
	mapping Value // of format_map, else missing
	markup  bool  // escape what is put in
	auto    int   // the number of the next field without one
	manual  bool  // fields have had numbers
}

// strFormat calls the method name of s.
func (m *machine) strFormat(s string, markup bool, name string, args arguments) (Value, error) {
	f := fieldFormatter{m: m, list: args.list, named: args.named, mapping: missing, markup: markup}
	if name == "format_map" {
		switch {
		case len(args.named) > 0:
			return nil, raise("TypeError", "format_map() takes no keyword arguments")
		case len(args.list) != 1:
			return nil, raise("TypeError", "format_map() takes exactly one argument (%d given)", len(args.list))
		}
		f.list, f.mapping = nil, args.list[0]
	}
	b, err := f.format(nil, s, 2)
	if err != nil {
		return nil, err
	}
	if markup {
		return Markup(b), nil
	}
	return string(b), nil
}

// format appends s with its fields filled in; fields may hold fields depth deep.
func (f *fieldFormatter) format(dst []byte, s string, depth int) ([]byte, error) {
	if depth < 0 {
		return nil, raise("ValueError", "Max string recursion exceeded")
	}
	if err := f.m.charge(len(s)); err != nil {
		return nil, err
	}
	for s != "" {
		if err := f.m.step(1); err != nil {
			return nil, err
		}
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			return append(dst, s...), nil
		}
		brace := s[i]
		dst = append(dst, s[:i]...)
		s = s[i+1:]
		if s != "" && s[0] == brace {
			dst = append(dst, brace)
			s = s[1:]
			continue
		}
		if brace == '}' || s == "" {
			return nil, raise("ValueError", "Single '%c' encountered in format string", brace)
		}
		name, conversion, spec, rest, err := cutField(s)
		if err != nil {
			return nil, err
		}
		s = rest
		if dst, err = f.field(dst, name, conversion, spec, depth); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// cutField cuts s behind the field that it begins with, just behind its brace.
// conversion is 0 if there is none.
func cutField(s string) (name string, conversion rune, spec, rest string, err error) {
	fail := func(msg string) (string, rune, string, string, error) {
		return "", 0, "", "", raise("ValueError", "%s", msg)
	}
	end := byte(0)
	i := 0
name:
	for i < len(s) {
		end = s[i]
		i++
		switch end {
		case '{':
			return fail("unexpected '{' in field name")
		case '[':
			for i < len(s) && s[i] != ']' {
				i++
			}
		case '}', ':', '!':
			break name
		}
	}
	switch end {
	case '}':
		return s[:i-1], 0, "", s[i:], nil
	case ':', '!':
		name = s[:i-1]
	default:
		return fail("expected '}' before end of string")
	}
	s = s[i:]
	if end == '!' {
		if s == "" {
			return fail("end of string while looking for conversion specifier")
		}
		r, size := utf8.DecodeRuneInString(s)
		conversion, s = r, s[size:]
		switch {
		case strings.HasPrefix(s, "}"):
			return name, conversion, "", s[1:], nil
		case s != "" && s[0] != ':':
			return fail("expected ':' after conversion specifier")
		case s != "":
			s = s[1:]
		}
	}
	open := 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			open++
		case '}':
			if open--; open == 0 {
				return name, conversion, s[:i], s[i+1:], nil
			}
		}
	}
	return fail("unmatched '{' in format spec")
}

// field appends a field.
func (f *fieldFormatter) field(dst []byte, name string, conversion rune, spec string, depth int) ([]byte, error) {
	if err := f.m.step(10); err != nil {
		return nil, err
	}
	v, err := f.lookup(name)
	if err != nil {
		return nil, err
	}
	switch conversion {
	case 0:
	case 's':
		v, err = f.m.str(v)
	case 'r':
		v, err = f.m.repr(v)
	case 'a':
		v, err = f.m.ascii(v)
	default:
		err = raise("ValueError", "Unknown conversion specifier %c", conversion)
	}
	if err != nil {
		return nil, err
	}
	expanded, err := f.format(nil, spec, depth-1)
	if err != nil {
		return nil, err
	}
	s, err := f.value(v, string(expanded))
	if err != nil {
		return nil, err
	}
	return append(dst, s...), f.m.alloc(2 * len(s))
}

// value formats v by its spec.
func (f *fieldFormatter) value(v Value, spec string) (string, error) {
	if !f.markup {
		return f.m.formatValue(v, spec)
	}
	if s, ok := v.(Markup); ok {
		if spec != "" {
			return "", raise("ValueError", "Unsupported format specification for Markup.")
		}
		return string(s), nil
	}
	s, err := f.m.formatValue(v, spec)
	if err != nil {
		return "", err
	}
	return f.m.escape(s)
}

// lookup returns the value of a field by its name, such as a.b[0].
func (f *fieldFormatter) lookup(name string) (Value, error) {
	switch isNumber, _ := everyFlag(charDigit)(f.m, name, nil); {
	case name == "":
		if f.manual {
			return nil, mixedNumbering()
		}
		f.auto++
		return f.argument(f.auto - 1)
	case isNumber == true:
		if f.auto > 0 {
			return nil, mixedNumbering()
		}
		f.manual = true
	}
	n := strings.IndexAny(name, ".[")
	if n < 0 {
		n = len(name)
	}
	v, err := f.first(name[:n])
	if err != nil {
		return nil, err
	}
	return f.path(v, name[n:])
}

func mixedNumbering() error {
	return raise("ValueError", "cannot switch from manual field specification to automatic field numbering")
}

// argument returns the i-th argument.
func (f *fieldFormatter) argument(i int) (Value, error) {
	if i >= len(f.list) {
		return nil, raise("IndexError", "tuple index out of range")
	}
	return f.list[i], nil
}

// first returns the value of the first name of a field.
func (f *fieldFormatter) first(name string) (Value, error) {
	i, rest, err := specInt(name)
	switch {
	case err != nil:
		return nil, err
	case i >= 0 && rest == "":
		return f.argument(i)
	case f.mapping != missing:
		return f.m.index(f.mapping, name)
	}
	if err := f.m.step(len(f.named) / 8); err != nil {
		return nil, err
	}
	for _, a := range f.named {
		if a.name == name {
			return a.value, nil
		}
	}
	return nil, f.m.keyError(name)
}

// path goes from v along the attributes and items of a field's name.
func (f *fieldFormatter) path(v Value, path string) (Value, error) {
	for path != "" {
		kind := path[0]
		path = path[1:]
		var n, skip int
		switch kind {
		case '.':
			if n = strings.IndexAny(path, ".["); n < 0 {
				n = len(path)
			}
		case '[':
			if n = strings.IndexByte(path, ']'); n < 0 {
				return nil, raise("ValueError", "Missing ']' in format string")
			}
			skip = 1
		default:
			return nil, raise("ValueError", "Only '.' or '[' may follow ']' in format field specifier")
		}
		name := path[:n]
		if path = path[n+skip:]; name == "" {
			return nil, raise("ValueError", "Empty attribute in format string")
		}
		var err error
		if err := f.m.step(4); err != nil {
			return nil, err
		}
		if v, err = f.step(v, name, kind == '.'); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (f *fieldFormatter) step(v Value, name string, attr bool) (Value, error) {
	if attr {
		return f.m.getattr(v, name)
	}
	i, rest, err := specInt(name)
	switch {
	case err != nil:
		return nil, err
	case i >= 0 && rest == "":
		return f.m.getitem(v, int64(i))
	}
	return f.m.getitem(v, name)
}
