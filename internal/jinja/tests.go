package jinja

import "github.com/kvindex/kvindex/internal/jinja/exception"

// The tests of Jinja2 3.1.6 (tests.py).

// A testFunc is a test: "v is name(args)".
type testFunc func(m *machine, v Value, args arguments) (bool, error)

// tests are all tests by name.
var tests = map[string]testFunc{
	"!=":          compareTest("!="),
	"<":           compareTest("<"),
	"<=":          compareTest("<="),
	"==":          compareTest("=="),
	">":           compareTest(">"),
	">=":          compareTest(">="),
	"boolean":     predicate("test_boolean", isBool),
	"defined":     predicate("test_defined", func(v Value) bool { return !isUndefined(v) }),
	"divisibleby": divisiblebyTest,
	"eq":          compareTest("=="),
	"equalto":     compareTest("=="),
	"even":        parityTest("test_even", 0),
	"false":       predicate("test_false", func(v Value) bool { return v == false }),
	"float":       predicate("test_float", isFloat),
	"ge":          compareTest(">="),
	"greaterthan": compareTest(">"),
	"gt":          compareTest(">"),
	"in":          inTest,
	"integer":     predicate("test_integer", func(v Value) bool { return isInt(v) && !isBool(v) }),
	"iterable":    iterableTest,
	"le":          compareTest("<="),
	"lessthan":    compareTest("<"),
	"lt":          compareTest("<"),
	"mapping":     predicate("test_mapping", isDict),
	"ne":          compareTest("!="),
	"none":        predicate("test_none", func(v Value) bool { return v == nil }),
	"number":      predicate("test_number", isNumber),
	"odd":         parityTest("test_odd", 1),
	"sameas":      sameasTest,
	"sequence":    predicate("test_sequence", isIndexable),
	"string":      predicate("test_string", isString),
	"true":        predicate("test_true", func(v Value) bool { return v == true }),
	"undefined":   predicate("test_undefined", isUndefined),
}

// refusedTests are those that Jinja2 has and this package lacks, as no chat template is known to
// use them.
var refusedTests = map[string]bool{"callable": true, "escaped": true, "filter": true, "lower": true, "test": true, "upper": true}

// test does a test by name, as Jinja2 does where it learns the name late.
func (m *machine) test(name string, v Value, args arguments) (bool, error) {
	t := tests[name]
	switch {
	case refusedTests[name]:
		return false, exception.Unsupported("the test %s", name)
	case t == nil:
		return false, exception.New("TemplateRuntimeError", "No test named '%s'.", name)
	}
	return t(m, v, args)
}

// predicate returns the test without arguments of is.
func predicate(name string, is func(Value) bool) testFunc {
	return func(_ *machine, v Value, args arguments) (bool, error) {
		if err := args.only(name, "value"); err != nil {
			return false, err
		}
		return is(v), nil
	}
}

func isBool(v Value) bool   { _, ok := v.(bool); return ok }
func isFloat(v Value) bool  { _, ok := v.(float64); return ok }
func isMarkup(v Value) bool { _, ok := v.(Markup); return ok }
func isDict(v Value) bool   { _, ok := v.(*Dict); return ok }
func isString(v Value) bool { _, ok := asString(v); return ok }

// isIndexable reports whether v has a length and __getitem__.
func isIndexable(v Value) bool {
	switch v.(type) {
	case string, Markup, *List, *Tuple, *Dict, *Range, *Undefined:
		return true
	}
	return false
}

// compareTest is the function of Python's module operator for op.
func compareTest(op string) testFunc {
	return func(m *machine, v Value, args arguments) (bool, error) {
		b, err := args.bindAfter(v, op, "/a", "/b")
		if err != nil {
			return false, err
		}
		switch op {
		case "==":
			return m.equal(v, b[1])
		case "!=":
			ok, err := m.equal(v, b[1])
			return !ok, err
		}
		return m.less(op, v, b[1])
	}
}

// parityTest is "v % 2 == rest".
func parityTest(name string, rest int64) testFunc {
	return func(m *machine, v Value, args arguments) (bool, error) {
		if err := args.only(name, "value"); err != nil {
			return false, err
		}
		return m.remains(v, int64(2), rest)
	}
}

func divisiblebyTest(m *machine, v Value, args arguments) (bool, error) {
	b, err := args.bindAfter(v, "test_divisibleby", "value", "num")
	if err != nil {
		return false, err
	}
	return m.remains(v, b[1], 0)
}

// remains is "v % by == rest".
func (m *machine) remains(v, by Value, rest int64) (bool, error) {
	if isString(v) {
		return false, exception.Unsupported("a format as a number")
	}
	r, err := m.binary("%", v, by)
	if err != nil {
		return false, err
	}
	return m.equal(r, rest)
}

func inTest(m *machine, v Value, args arguments) (bool, error) {
	b, err := args.bindAfter(v, "test_in", "value", "seq")
	if err != nil {
		return false, err
	}
	return m.contains(v, b[1])
}

func iterableTest(m *machine, v Value, args arguments) (bool, error) {
	if err := args.only("test_iterable", "value"); err != nil {
		return false, err
	}
	return m.iterable(v)
}

// iterable reports whether iter(v) works, which here is the same as that v is a
// collections.abc.Iterable.
func (m *machine) iterable(v Value) (bool, error) {
	if _, ok := v.(*loopContext); ok {
		return true, nil
	}
	_, err := m.iterate(v)
	if exception.Is(err, "TypeError") {
		return false, nil
	}
	return err == nil, err
}

// sameasTest is Python's "is" with None or a bool, of which there is one.
func sameasTest(_ *machine, v Value, args arguments) (bool, error) {
	b, err := args.bindAfter(v, "test_sameas", "value", "other")
	if err != nil {
		return false, err
	}
	if b[1] != nil && !isBool(b[1]) {
		return false, exception.Unsupported("sameas of a %s", typeName(b[1]))
	}
	return v == b[1], nil
}
