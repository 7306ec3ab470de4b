package jinja

import (
	"math"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The globals of Jinja2 3.1.6 (defaults.py, sandbox.py, utils.py) and those that
// transformers 4.57 adds (utils/chat_template_utils.py).

// globals are all of them. Each is one value, as Python's are.
var globals = map[string]Value{
	"range":           &function{"range", safeRange},
	"dict":            &function{"dict", newDict},
	"namespace":       &function{"namespace", newNamespace},
	"cycler":          &function{"cycler", lacking("cycler")},
	"joiner":          &function{"joiner", lacking("joiner")},
	"lipsum":          &function{"lipsum", lacking("lipsum")},
	"raise_exception": &function{"raise_exception", raiseException},
	"strftime_now":    &function{"strftime_now", strftimeNow},
}

// global returns a global variable.
func global(name string) (Value, bool) {
	v, ok := globals[name]
	return v, ok
}

func lacking(name string) func(*machine, arguments) (Value, error) {
	return func(*machine, arguments) (Value, error) { return nil, exception.Unsupported("the function %s", name) }
}

// maxRange is how many elements the sandbox lets a range have.
const maxRange = 100000

func safeRange(m *machine, args arguments) (Value, error) {
	if len(args.named) > 0 || len(args.list) == 0 || len(args.list) > 3 {
		return nil, exception.New("TypeError", "range expected 1 to 3 positional arguments")
	}
	r := &Range{Step: 1}
	places := []*int64{&r.Start, &r.Stop, &r.Step}
	if len(args.list) == 1 {
		places = places[1:2]
	}
	for i, arg := range args.list {
		n, ok := asInt64(arg)
		switch {
		case ok:
			*places[i] = n
		case isInt(arg):
			return nil, exception.Unsupported("a range of ints that large")
		default:
			return nil, exception.New("TypeError", "'%s' object cannot be interpreted as an integer", typeName(arg))
		}
	}
	if r.Step == 0 {
		return nil, exception.New("ValueError", "range() arg 3 must not be zero")
	}
	if rangeLength(r) > maxRange {
		return nil, exception.New("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r, m.alloc(32)
}

// rangeLength returns the length of r, however far apart its ends are, or at most 2^31-1.
func rangeLength(r *Range) int {
	low, high, step := r.Start, r.Stop, uint64(r.Step)
	if r.Step < 0 {
		low, high, step = high, low, -step
	}
	if low >= high {
		return 0
	}
	return int(min((uint64(high)-uint64(low)-1)/step, math.MaxInt32-1)) + 1
}

func newDict(m *machine, args arguments) (Value, error) {
	if len(args.list) > 1 {
		return nil, exception.New("TypeError", "dict expected at most 1 argument, got %d", len(args.list))
	}
	d := &Dict{}
	if err := m.alloc(64); err != nil {
		return nil, err
	}
	if len(args.list) == 1 {
		if err := m.updateDict(d, args.list[0]); err != nil {
			return nil, err
		}
	}
	for _, arg := range args.named {
		if err := d.set(m, arg.name, arg.value); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// updateDict is d.update(v) of a dict.
func (m *machine) updateDict(d *Dict, v Value) error {
	of, ok := v.(*Dict)
	if !ok {
		return exception.Unsupported("a dict of a %s", typeName(v))
	}
	for i := range of.Len() {
		if err := m.step(1); err != nil {
			return err
		}
		key, value := of.At(i)
		if err := d.set(m, key, value); err != nil {
			return err
		}
	}
	return nil
}

func newNamespace(m *machine, args arguments) (Value, error) {
	d, err := newDict(m, args)
	if err != nil {
		return nil, err
	}
	return &Namespace{attrs: d.(*Dict)}, nil
}

func raiseException(m *machine, args arguments) (Value, error) {
	b, err := args.bind("raise_exception", "message")
	if err != nil {
		return nil, err
	}
	message, err := m.str(b[0])
	if err != nil {
		return nil, err
	}
	return nil, exception.New("TemplateError", "%s", message)
}

func strftimeNow(m *machine, args arguments) (Value, error) {
	b, err := args.bind("strftime_now", "format")
	if err != nil {
		return nil, err
	}
	format, ok := asString(b[0])
	if !ok {
		return nil, exception.New("TypeError", "strftime() argument 1 must be str, not %s", typeName(b[0]))
	}
	now := time.Now
	if m.env.Now != nil {
		now = m.env.Now
	}
	return m.strftime(now(), format)
}
