package jinja

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// hostile are programs that would take seconds, or for ever, if what they do were
// not charged as what it takes. s is a million bytes of text that is no ASCII, a
// one of ASCII, l a list and d a dict of 62,500.
var hostile = []struct{ name, template string }{
	{"empty loops", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"},
	{"loops", "{% for i in range(99999) %}{% for j in range(99999) %}{% if i == j and not i %}{% endif %}{% endfor %}{% endfor %}"},
	{"recursion", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"},
	{"branching recursion", "{% macro f(x) %}{% if x %}{{ f(x-1) }}{{ f(x-1) }}{% endif %}{% endmacro %}{{ f(200) }}"},
	{"doubling", "{% set ns = namespace(s='a') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"},
	{"appending", "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ 'abc' %}{% endfor %}"},
	{"attributes with long names", "{% for i in range(99999) %}{% if l[s] is undefined %}{% endif %}{% endfor %}"},
	{"attributes of elements", "{{ d|selectattr(s)|list }}"},
	{"long keys", "{% for i in range(99999) %}{% if d.get(s) %}{% endif %}{% endfor %}"},
	{"prefixes", "{% for i in range(99999) %}{% if s.removeprefix(s) %}{% endif %}{% endfor %}"},
	{"first", "{% for i in range(99999) %}{{ s|first }}{% endfor %}"},
	{"title", "{% for i in range(99999) %}{% if a|title %}{% endif %}{% endfor %}"},
	{"length", "{% for i in range(99999) %}{% if s|length %}{% endif %}{% endfor %}"},
	{"count", "{% for i in range(99999) %}{% if s.count('é') %}{% endif %}{% endfor %}"},
	{"replace", "{% for i in range(99999) %}{% if a|replace('a', 'bb') %}{% endif %}{% endfor %}"},
	{"split", "{% for i in range(99999) %}{% if a.split('a') %}{% endif %}{% endfor %}"},
	{"repr", "{% for i in range(99999) %}{% if [s]|string %}{% endif %}{% endfor %}"},
	{"sort", "{% for i in range(99999) %}{% if l|sort %}{% endif %}{% endfor %}"},
	{"tojson", "{% for i in range(99999) %}{% if d|tojson(indent=4) %}{% endif %}{% endfor %}"},
	{"large numbers", "{% set n = ('9' * 300) * one %}{% for i in range(99999) %}{% for j in range(99) %}{% if n|float %}{% endif %}{% endfor %}{% endfor %}"},
	{"lazy lists", "{% for i in range(99999) %}{% for j in range(99) %}{% set x = [i, j]|map('string')|join %}{% endfor %}{% endfor %}"},
}

func hostileVars() *python.Dict {
	vars, d, l := &python.Dict{}, &python.Dict{}, &python.List{}
	for i := range 62_500 {
		d.Set(fmt.Sprint("key", i), int64(i))
		l.Items = append(l.Items, int64(i))
	}
	vars.Set("s", strings.Repeat("é ", 1<<19))
	vars.Set("a", strings.Repeat("a b", 1<<18))
	vars.Set("d", d)
	vars.Set("l", l)
	vars.Set("one", int64(1)) // so that nothing is worked out when it is compiled
	return vars
}

func TestHostilePrograms(t *testing.T) {
	vars := hostileVars()
	for _, p := range hostile {
		if _, err := render(p.template, vars, nil); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// ns/op is what a hostile program takes until the default Limits end it.
func BenchmarkHostile(b *testing.B) {
	vars := hostileVars()
	for _, p := range hostile {
		b.Run(strings.ReplaceAll(p.name, " ", "-"), func(b *testing.B) {
			t, err := Compile(p.template)
			must(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := t.Render(nil, vars, nil); !errors.Is(err, ErrLimit) {
					b.Fatal(err)
				}
			}
		})
	}
}
