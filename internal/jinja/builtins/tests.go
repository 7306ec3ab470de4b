package builtins

import (
	"errors"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The tests of Jinja2 3.1.6 (tests.py).

// A Test is a test: "v is name(args)".
type Test func(m *python.Machine, v python.Value, args python.Arguments) (bool, error)

// Tests are all tests by name.
var Tests = map[string]Test{
	"!=":          compareTest("!="),
	"<":           compareTest("<"),
	"<=":          compareTest("<="),
	"==":          compareTest("=="),
	">":           compareTest(">"),
	">=":          compareTest(">="),
	"boolean":     predicate("test_boolean", isBool),
	"defined":     predicate("test_defined", func(v python.Value) bool { return !python.IsUndefined(v) }),
	"divisibleby": divisiblebyTest,
	"eq":          compareTest("=="),
	"equalto":     compareTest("=="),
	"even":        parityTest("test_even", 0),
	"false":       predicate("test_false", func(v python.Value) bool { return v == false }),
	"float":       predicate("test_float", isFloat),
	"ge":          compareTest(">="),
	"greaterthan": compareTest(">"),
	"gt":          compareTest(">"),
	"in":          inTest,
	"integer":     predicate("test_integer", func(v python.Value) bool { return python.IsInt(v) && !isBool(v) }),
	"iterable":    iterableTest,
	"le":          compareTest("<="),
	"lessthan":    compareTest("<"),
	"lt":          compareTest("<"),
	"mapping":     predicate("test_mapping", isDict),
	"ne":          compareTest("!="),
	"none":        predicate("test_none", func(v python.Value) bool { return v == nil }),
	"number":      predicate("test_number", python.IsNumber),
	"odd":         parityTest("test_odd", 1),
	"sameas":      sameasTest,
	"sequence":    predicate("test_sequence", isIndexable),
	"string":      predicate("test_string", isString),
	"true":        predicate("test_true", func(v python.Value) bool { return v == true }),
	"undefined":   predicate("test_undefined", python.IsUndefined),
}

// RefusedTests are those that Jinja2 has and this package lacks, as no chat template is known to
// use them.
var RefusedTests = map[string]bool{"callable": true, "escaped": true, "filter": true, "lower": true, "test": true, "upper": true}

// test does a test by name, as Jinja2 does where it learns the name late.
func test(m *python.Machine, name string, v python.Value, args python.Arguments) (bool, error) {
	t := Tests[name]
	switch {
	case RefusedTests[name]:
		return false, exception.Unsupported("the test %s", name)
	case t == nil:
		return false, exception.New("TemplateRuntimeError", "No test named '%s'.", name)
	}
	return t(m, v, args)
}

// predicate returns the test without arguments of is.
func predicate(name string, is func(python.Value) bool) Test {
	return func(_ *python.Machine, v python.Value, args python.Arguments) (bool, error) {
		if err := args.Only(name, "value"); err != nil {
			return false, err
		}
		return is(v), nil
	}
}

func isBool(v python.Value) bool   { _, ok := v.(bool); return ok }
func isFloat(v python.Value) bool  { _, ok := v.(float64); return ok }
func isDict(v python.Value) bool   { _, ok := v.(*python.Dict); return ok }
func isString(v python.Value) bool { _, ok := python.AsString(v); return ok }

// isIndexable reports whether v has a length and __getitem__.
func isIndexable(v python.Value) bool {
	switch v.(type) {
	case string, python.Markup, *python.List, *python.Tuple, *python.Dict, *python.Range, *python.Undefined:
		return true
	}
	return false
}

// compareTest is the function of Python's module operator for op.
func compareTest(op string) Test {
	return func(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
		b, err := args.BindAfter(v, op, "/a", "/b")
		if err != nil {
			return false, err
		}
		switch op {
		case "==":
			return m.Equal(v, b[1])
		case "!=":
			ok, err := m.Equal(v, b[1])
			return !ok, err
		}
		return m.Less(op, v, b[1])
	}
}

// parityTest is "v % 2 == rest".
func parityTest(name string, rest int64) Test {
	return func(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
		if err := args.Only(name, "value"); err != nil {
			return false, err
		}
		return remains(m, v, int64(2), rest)
	}
}

func divisiblebyTest(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
	b, err := args.BindAfter(v, "test_divisibleby", "value", "num")
	if err != nil {
		return false, err
	}
	return remains(m, v, b[1], 0)
}

// remains is "v % by == rest".
func remains(m *python.Machine, v, by python.Value, rest int64) (bool, error) {
	if isString(v) {
		return false, exception.Unsupported("a format as a number")
	}
	r, err := m.Binary("%", v, by)
	if err != nil {
		return false, err
	}
	return m.Equal(r, rest)
}

func inTest(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
	b, err := args.BindAfter(v, "test_in", "value", "seq")
	if err != nil {
		return false, err
	}
	return m.Contains(v, b[1])
}

func iterableTest(m *python.Machine, v python.Value, args python.Arguments) (bool, error) {
	if err := args.Only("test_iterable", "value"); err != nil {
		return false, err
	}
	return iterable(m, v)
}

// iterable reports whether iter(v) works, which here is the same as that v is a
// collections.abc.Iterable.
func iterable(m *python.Machine, v python.Value) (bool, error) {
	_, err := m.Iterate(v)
	switch {
	case errors.Is(err, exception.ErrUnsupported): // of the loop variable
		return true, nil
	case exception.Is(err, "TypeError"):
		return false, nil
	}
	return err == nil, err
}

// sameasTest is Python's "is" with None or a bool, of which there is one.
func sameasTest(_ *python.Machine, v python.Value, args python.Arguments) (bool, error) {
	b, err := args.BindAfter(v, "test_sameas", "value", "other")
	if err != nil {
		return false, err
	}
	if b[1] != nil && !isBool(b[1]) {
		return false, exception.Unsupported("sameas of a %s", python.TypeName(b[1]))
	}
	return v == b[1], nil
}
