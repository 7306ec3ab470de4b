package python

import (
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// "format % values" (CPython 3.11, unicodeobject.c: PyUnicode_Format) and str.format
// (unicode_format.h), as far as chat templates go: %s and %d; fields without attributes, items,
// conversions and numbers, with nothing or d behind a colon. All else is refused.

// percent returns format % v of a str.
func (m *Machine) percent(format string, v Value) (Value, error) {
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
		if rest == "" || rest[0] != 's' && rest[0] != 'd' {
			return nil, exception.Unsupported("the format %%%.20q", rest)
		}
		if len(args) == 0 {
			return nil, exception.New("TypeError", "not enough arguments for format string")
		}
		s, err := m.formatted(args[0], rest[:1])
		if err != nil {
			return nil, err
		}
		dst, args, format = append(dst, s...), args[1:], rest[1:]
	}
	if len(args) > 0 && all {
		return nil, exception.New("TypeError", "not all arguments converted during string formatting")
	}
	return string(dst), nil
}

// written charges n bytes of a format, and finding where they end.
func (m *Machine) written(n int) error {
	if err := m.Step(9); err != nil {
		return err
	}
	return m.charge(n)
}

// formatted writes v by s, or as an int by d.
func (m *Machine) formatted(v Value, code string) (string, error) {
	if code == "d" {
		n, ok := AsInt64(v)
		if !ok {
			return "", exception.Unsupported("the format of a %s by d", TypeName(v))
		}
		return strconv.FormatInt(n, 10), nil
	}
	s, err := m.Str(v)
	if err != nil {
		return "", err
	}
	return s, m.Alloc(2 * len(s))
}

// strFormat returns s.format(args).
func (m *Machine) strFormat(s string, args Arguments) (Value, error) {
	var dst []byte
	list := args.List
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
			return nil, exception.New("ValueError", "Single '%c' encountered in format string", s[0])
		}
		name, spec, _ := strings.Cut(s[1:end], ":")
		if s = s[end+1:]; strings.ContainsAny(name, "{[.!0123456789") || spec != "" && spec != "d" {
			return nil, exception.Unsupported("the format field %.20q", name+":"+spec)
		}
		var v Value
		var err error
		switch {
		case name != "":
			v, err = m.namedArgument(args.Named, name)
		case len(list) == 0:
			err = exception.New("IndexError", "Replacement index out of range for positional args tuple")
		default:
			v, list = list[0], list[1:]
		}
		if err != nil {
			return nil, err
		}
		text, err := m.formatted(v, spec)
		if err != nil {
			return nil, err
		}
		dst = append(dst, text...)
	}
	return string(dst), nil
}

func (m *Machine) namedArgument(named []Argument, name string) (Value, error) {
	if err := m.Step(len(named) / 8); err != nil {
		return nil, err
	}
	for _, a := range named {
		if a.Name == name {
			return a.Value, nil
		}
	}
	return nil, exception.New("KeyError", "%s", name)
}
