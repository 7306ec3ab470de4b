package builtins

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// manyOf returns n copies of s as a list.
func manyOf(v python.Value, n int) *python.List {
	return &python.List{Items: slices.Repeat([]python.Value{v}, n)}
}

func deep(n int) python.Value {
	v := python.Value(int64(1))
	for range n {
		v = &python.List{Items: []python.Value{v}}
	}
	return v
}

func named(args ...any) (a python.Arguments) {
	for i := 0; i < len(args); i += 2 {
		a.Named = append(a.Named, python.Argument{Name: args[i].(string), Value: args[i+1]})
	}
	return a
}

func positional(args ...python.Value) python.Arguments { return python.Arguments{List: args} }

// TestFilterLimits is about what would take all memory or time.
func TestFilterLimits(t *testing.T) {
	const huge = int64(1) << 40
	long := strings.Repeat("<a-b ", 1<<16)
	for _, c := range []struct {
		filter string
		v      python.Value
		args   python.Arguments
	}{
		{"indent", "x", positional(huge)},
		{"indent", "x", positional(int64(1<<31 - 1))},
		{"indent", strings.Repeat("x\n", 1<<16), positional(int64(1 << 16))},
		{"tojson", deep(2), named("indent", huge)},
		{"tojson", deep(2), named("indent", int64(1<<31-1))},
		{"tojson", deep(1000), python.Arguments{}},
		{"tojson", manyOf(long, 20), named("separators", &python.Tuple{Items: []python.Value{long, long}})},
		{"tojson", manyOf(strings.Repeat("\x01", 1<<16), 20), python.Arguments{}},
		{"sort", &python.List{Items: []python.Value{deep(1000), deep(1000)}}, python.Arguments{}},
		{"replace", strings.Repeat("a", 1<<20), positional("", strings.Repeat("b", 1<<10))},
		{"join", manyOf("x", 1<<10), positional(strings.Repeat("y", 1<<20))},
		{"list", &python.Range{Stop: 1 << 30, Step: 1}, python.Arguments{}},
		{"map", &python.Range{Stop: 1 << 30, Step: 1}, positional("string")},
		{"select", &python.Range{Stop: 1 << 30, Step: 1}, positional("none")},
	} {
		m := python.NewMachine(python.Limits{Steps: 1 << 16, Memory: 1 << 22})
		v, err := filter(m, c.filter, c.v, c.args)
		if _, ok := v.(*python.Iterator); ok && err == nil {
			_, err = m.List(v)
		}
		if !errors.Is(err, exception.ErrLimit) {
			t.Errorf("%s%.40v: %v", c.filter, c.args, err)
		}
	}
}

// TestNestedGenerators is about a generator that a loop puts around another one again
// and again.
func TestNestedGenerators(t *testing.T) {
	m := python.NewMachine(python.Limits{})
	v := python.Value(manyOf("x", 3))
	for range 50000 {
		var err error
		if v, err = filter(m, "map", v, positional("upper")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.List(v); !errors.Is(err, exception.ErrLimit) {
		t.Errorf("%v, not a limit", err)
	}
}

// TestLazy is about when generators look at what they are given.
func TestLazy(t *testing.T) {
	m := python.NewMachine(python.Limits{})
	for _, c := range []struct {
		filter string
		v      python.Value
		args   python.Arguments
		class  string // raised when the first element is asked for
	}{
		{"map", int64(5), python.Arguments{}, "FilterArgumentError"},
		{"map", int64(0), python.Arguments{}, ""},
		{"map", int64(5), positional("upper"), "TypeError"},
		{"map", &python.List{}, positional("nosuch"), ""},
		{"map", manyOf("a", 1), positional("nosuch"), "TemplateRuntimeError"},
		{"select", int64(5), python.Arguments{}, "TypeError"},
		{"selectattr", manyOf("a", 1), python.Arguments{}, "FilterArgumentError"},
		{"selectattr", &python.List{}, python.Arguments{}, ""},
		{"items", int64(5), python.Arguments{}, "TypeError"},
	} {
		v, err := filter(m, c.filter, c.v, c.args)
		if err != nil {
			t.Errorf("%s: %v before it is gone through", c.filter, err)
			continue
		}
		it := v.(*python.Iterator)
		_, _, err = it.Next()
		if c.class == "" && err != nil || c.class != "" && !exception.Is(err, c.class) {
			t.Errorf("%s: %v, not %s", c.filter, err, c.class)
		}
		if _, ok, err := it.Next(); ok || err != nil {
			t.Errorf("%s: goes on behind its end", c.filter)
		}
	}
}

func TestRefused(t *testing.T) {
	m := python.NewMachine(python.Limits{})
	for name := range RefusedFilters {
		if _, err := filter(m, name, &python.List{}, python.Arguments{}); !errors.Is(err, exception.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzText gives the filters of text any text: they neither panic nor make what is
// no UTF-8.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a-b--c d", "<!-- x --> &amp; <b>", "http://a.b (c@d.ef)", "%-5d%c%%", "٣ 0x_1", "\r\n\x1c\u2028"} {
		f.Add(s, int64(3))
	}
	f.Fuzz(func(t *testing.T, s string, n int64) {
		s = strings.ToValidUTF8(s, "?")
		for name, args := range map[string]python.Arguments{
			"capitalize": {}, "safe": {}, "float": {}, "int": positional(n), "lower": {},
			"indent": positional(n, true, true), "title": {}, "trim": positional(s),
			"tojson": named("ensure_ascii", n%2 == 0, "indent", n), "format": positional(n),
		} {
			m := python.NewMachine(python.Limits{Memory: 1 << 20, Steps: 1 << 16})
			v, err := filter(m, name, s, args)
			if text, ok := python.AsString(v); ok && err == nil && !utf8.ValidString(text) {
				t.Errorf("%s of %q is %q", name, s, text)
			}
		}
		m := python.NewMachine(python.Limits{})
		if v, err := strftimeNow(m, positional(s)); err == nil && !utf8.ValidString(v.(string)) {
			t.Errorf("strftime of %q is %q", s, v)
		}
	})
}
