package python

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

func nestedLists(depth int) Value {
	v := Value(&List{})
	for range depth {
		v = &List{Items: []Value{v}}
	}
	return v
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// A value that would be too large is refused before it is made.
func TestValueLimits(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	nested := nestedLists(10000)
	call := func(obj Value, name string, args ...Value) func(m *Machine) (Value, error) {
		return func(m *Machine) (Value, error) {
			v, _, err := m.CallMethod(obj, name, Arguments{List: args})
			return v, err
		}
	}
	binary := func(op string, a, b Value) func(m *Machine) (Value, error) {
		return func(m *Machine) (Value, error) { return m.Binary(op, a, b) }
	}
	for name, run := range map[string]func(m *Machine) (Value, error){
		"str * int":       binary("*", "abc", int64(1e9)),
		"str * max":       binary("*", "abc", int64(math.MaxInt64)),
		"list * int":      binary("*", &List{Items: []Value{nil, nil}}, int64(math.MaxInt64/2)),
		"replace":         call(long, "replace", "a", strings.Repeat("b", 1000)),
		"join":            call(long, "join", long),
		"nested repr":     func(m *Machine) (Value, error) { return m.Repr(nested) },
		"nested equality": func(m *Machine) (Value, error) { return m.Equal(nested, nestedLists(10000)) },
		"range in":        func(m *Machine) (Value, error) { return m.Contains(0.5, &Range{0, math.MaxInt32, 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			var v Value
			var err error
			took := cputime.Of(func() { v, err = run(NewMachine(Limits{})) })
			if !errors.Is(err, exception.ErrLimit) && !errors.Is(err, exception.ErrUnsupported) {
				t.Errorf("%T, %v, want %v", v, err, exception.ErrLimit)
			}
			if took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// A key is found whatever number it is written as, among many keys of all kinds.
func TestDictKeys(t *testing.T) {
	m := NewMachine(Limits{})
	d := &Dict{}
	for i := range int64(40) {
		for _, k := range []Value{i, "k" + string(rune('a'+i))} {
			must(t, d.SetValue(m, k, i))
		}
	}
	if d.Len() != 80 {
		t.Errorf("%d keys, want 80", d.Len())
	}
	for _, k := range []Value{true, int64(1), "kb", Markup("kb")} {
		if v, ok, err := d.get(m, k); v != int64(1) || !ok || err != nil {
			t.Errorf("key %v: %v, %v, %v", k, v, ok, err)
		}
	}
	for _, k := range []Value{&List{}, d} {
		if _, _, err := d.get(m, k); !exception.Is(err, "TypeError") {
			t.Errorf("key %T: %v, want TypeError", k, err)
		}
	}
}

// Neither kind of format ends in a panic, or in a text that is no UTF-8.
func FuzzFormat(f *testing.F) {
	for _, s := range []string{"{}{}", "{a} {:d}", "{a:d}", "%d%%", "%s %d", "{{}}{a", "{9}", "%012d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return // no value is such a string
		}
		m := NewMachine(Limits{Memory: 1 << 20})
		args := Arguments{List: []Value{int64(7), "é<", 1.5}, Named: []Argument{{"a", int64(-1234567)}}}
		for _, run := range []func() (Value, error){
			func() (Value, error) { return m.strFormat(s, args) },
			func() (Value, error) { return m.Binary("%", s, &Tuple{Items: args.List}) },
			func() (Value, error) { return m.Binary("%", s, 2.5) },
		} {
			v, err := run()
			if text, ok := AsString(v); err == nil && (!ok || !utf8.ValidString(text)) {
				t.Errorf("%T %q", v, text)
			}
		}
	})
}
