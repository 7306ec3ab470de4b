package jinja

import (
	"reflect"
)

// The tests of Jinja2 3.1.6 (tests.py).

// A testFunc is a test: "v is name(args)".
type testFunc func(m *machine, v Value, args arguments) (bool, error)

// tests are all tests by name. It is filled by init as the test named test looks
// tests up.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"!=":          compareTest("!="),
		"<":           compareTest("<"),
		"<=":          compareTest("<="),
		"==":          compareTest("=="),
		">":           compareTest(">"),
		">=":          compareTest(">="),
		"boolean":     predicate("test_boolean", isBool),
		"callable":    callableTest,
		"defined":     predicate("test_defined", func(v Value) bool { return !isUndefined(v) }),
		"divisibleby": divisiblebyTest,
		"eq":          compareTest("=="),
		"equalto":     compareTest("=="),
		"escaped":     predicate("test_escaped", isMarkup),
		"even":        parityTest("test_even", 0),
		"false":       predicate("test_false", func(v Value) bool { return v == false }),
		"filter":      nameTest("test_filter", knownFilter),
		"float":       predicate("test_float", isFloat),
		"ge":          compareTest(">="),
		"greaterthan": compareTest(">"),
		"gt":          compareTest(">"),
		"in":          inTest,
		"integer":     predicate("test_integer", func(v Value) bool { return isInt(v) && !isBool(v) }),
		"iterable":    iterableTest,
		"le":          compareTest("<="),
		"lessthan":    compareTest("<"),
		"lower":       caseTest("test_lower", "islower"),
		"lt":          compareTest("<"),
		"mapping":     predicate("test_mapping", isDict),
		"ne":          compareTest("!="),
		"none":        predicate("test_none", func(v Value) bool { return v == nil }),
		"number":      predicate("test_number", isNumber),
		"odd":         parityTest("test_odd", 1),
		"sameas":      sameasTest,
		"sequence":    predicate("test_sequence", isIndexable),
		"string":      predicate("test_string", isString),
		"test":        nameTest("test_test", knownTest),
		"true":        predicate("test_true", func(v Value) bool { return v == true }),
		"undefined":   predicate("test_undefined", isUndefined),
		"upper":       caseTest("test_upper", "isupper"),
	}
}

// knownTest reports whether Jinja2 has the test.
func knownTest(name string) bool { return tests[name] != nil }

// test does a test by name, as Jinja2 does where it learns the name late.
func (m *machine) test(name string, v Value, args arguments) (bool, error) {
	t := tests[name]
	if t == nil {
		return false, raise("TemplateRuntimeError", "No test named '%s'.", name)
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

// parityTest is "v % 2 == rest", which some strings have too.
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

// caseTest is a method of str(v).
func caseTest(name, method string) testFunc {
	return func(m *machine, v Value, args arguments) (bool, error) {
		if err := args.only(name, "value"); err != nil {
			return false, err
		}
		s, err := m.str(v)
		if err != nil {
			return false, err
		}
		is, err := m.invoke(s, method)
		return is == true, err
	}
}

// nameTest returns the test of a name by known.
func nameTest(fn string, known func(string) bool) testFunc {
	return func(m *machine, v Value, args arguments) (bool, error) {
		if err := args.only(fn, "value"); err != nil {
			return false, err
		}
		if name, ok := asString(v); ok {
			return known(name), m.scan(2 * len(name))
		}
		_, err := m.hashKey(v)
		return false, err
	}
}

func callableTest(_ *machine, v Value, args arguments) (bool, error) {
	if err := args.only("callable", "/obj"); err != nil {
		return false, err
	}
	_, ok := v.(callable)
	return ok || isUndefined(v), nil
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
	if o, ok := v.(object); ok && o.typeName() == "LoopContext" {
		return true, nil
	}
	_, err := m.iterate(v)
	if raised(err, "TypeError") {
		return false, nil
	}
	return err == nil, err
}

// sameasTest is Python's "is". Of values that are equal and may be one object or two
// it is not known.
func sameasTest(m *machine, v Value, args arguments) (bool, error) {
	b, err := args.bindAfter(v, "test_sameas", "value", "other")
	if err != nil {
		return false, err
	}
	other := b[1]
	if reflect.TypeOf(v) != reflect.TypeOf(other) {
		return false, nil
	}
	switch v.(type) {
	case nil, bool, *List, *Dict, *Range, *View, *Iterator, *Undefined, *Namespace, *function, object:
		return v == other, nil
	}
	equal, err := m.equal(v, other)
	if f, ok := v.(float64); err == nil && (equal || ok && f != f) {
		err = unsupported("sameas of equal values")
	}
	return false, err
}
