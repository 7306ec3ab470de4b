package builtins

import (
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The globals of Jinja2 3.1.6 (defaults.py, sandbox.py, utils.py) and those that
// transformers 4.57 adds (utils/chat_template_utils.py).

// globals are all of them. Each is one value, as Python's are.
var globals = map[string]python.Value{
	"range":           &python.Function{Name: "range", Fn: safeRange},
	"dict":            &python.Function{Name: "dict", Fn: newDict},
	"namespace":       &python.Function{Name: "namespace", Fn: newNamespace},
	"cycler":          &python.Function{Name: "cycler", Fn: lacking("cycler")},
	"joiner":          &python.Function{Name: "joiner", Fn: lacking("joiner")},
	"lipsum":          &python.Function{Name: "lipsum", Fn: lacking("lipsum")},
	"raise_exception": &python.Function{Name: "raise_exception", Fn: raiseException},
	"strftime_now":    &python.Function{Name: "strftime_now", Fn: strftimeNow},
}

// Global returns a global variable.
func Global(name string) (python.Value, bool) {
	v, ok := globals[name]
	return v, ok
}

func lacking(name string) func(*python.Machine, python.Arguments) (python.Value, error) {
	return func(*python.Machine, python.Arguments) (python.Value, error) {
		return nil, exception.Unsupported("the function %s", name)
	}
}

// maxRange is how many elements the sandbox lets a range have.
const maxRange = 100000

func safeRange(m *python.Machine, args python.Arguments) (python.Value, error) {
	if len(args.Named) > 0 || len(args.List) == 0 || len(args.List) > 3 {
		return nil, exception.New("TypeError", "range expected 1 to 3 positional arguments")
	}
	r := &python.Range{Step: 1}
	places := []*int64{&r.Start, &r.Stop, &r.Step}
	if len(args.List) == 1 {
		places = places[1:2]
	}
	for i, arg := range args.List {
		n, ok := python.AsInt64(arg)
		switch {
		case ok:
			*places[i] = n
		case python.IsInt(arg):
			return nil, exception.Unsupported("a range of ints that large")
		default:
			return nil, exception.New("TypeError", "'%s' object cannot be interpreted as an integer", python.TypeName(arg))
		}
	}
	if r.Step == 0 {
		return nil, exception.New("ValueError", "range() arg 3 must not be zero")
	}
	if python.RangeLength(r) > maxRange {
		return nil, exception.New("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r, m.Alloc(32)
}

func newDict(m *python.Machine, args python.Arguments) (python.Value, error) {
	if len(args.List) > 1 {
		return nil, exception.New("TypeError", "dict expected at most 1 argument, got %d", len(args.List))
	}
	d := &python.Dict{}
	if err := m.Alloc(64); err != nil {
		return nil, err
	}
	if len(args.List) == 1 {
		if err := updateDict(m, d, args.List[0]); err != nil {
			return nil, err
		}
	}
	for _, arg := range args.Named {
		if err := d.SetValue(m, arg.Name, arg.Value); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// updateDict is d.update(v) of a dict.
func updateDict(m *python.Machine, d *python.Dict, v python.Value) error {
	of, ok := v.(*python.Dict)
	if !ok {
		return exception.Unsupported("a dict of a %s", python.TypeName(v))
	}
	for i := range of.Len() {
		if err := m.Step(1); err != nil {
			return err
		}
		key, value := of.At(i)
		if err := d.SetValue(m, key, value); err != nil {
			return err
		}
	}
	return nil
}

func newNamespace(m *python.Machine, args python.Arguments) (python.Value, error) {
	d, err := newDict(m, args)
	if err != nil {
		return nil, err
	}
	return &python.Namespace{Attrs: d.(*python.Dict)}, nil
}

func raiseException(m *python.Machine, args python.Arguments) (python.Value, error) {
	b, err := args.Bind("raise_exception", "message")
	if err != nil {
		return nil, err
	}
	message, err := m.Str(b[0])
	if err != nil {
		return nil, err
	}
	return nil, exception.New("TemplateError", "%s", message)
}

func strftimeNow(m *python.Machine, args python.Arguments) (python.Value, error) {
	b, err := args.Bind("strftime_now", "format")
	if err != nil {
		return nil, err
	}
	format, ok := python.AsString(b[0])
	if !ok {
		return nil, exception.New("TypeError", "strftime() argument 1 must be str, not %s", python.TypeName(b[0]))
	}
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	return strftime(m, now(), format)
}
