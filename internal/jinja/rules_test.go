package jinja

import (
	"errors"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// Rules that random programs seldom need, as Jinja2 3.1.6 has them on CPython 3.11
// with n = 10, at noon of the first of January 2019. An exclamation mark stands
// before the class of an error.
func TestRules(t *testing.T) {
	vars := &python.Dict{}
	vars.Set("n", int64(10))
	env := &Env{Now: func() time.Time { return time.Date(2019, 1, 1, 12, 0, 0, 0, time.UTC) }}
	for _, c := range []struct{ template, want string }{
		{"{% set a = 1 %}{% for i in [1] %}{% if false %}{% set a = 2 %}{% endif %}{{ a }}{% endfor %}", "1"},
		{"{% set a = 1 %}{% for i in [1, 2] %}{% if i == 2 %}{% set a = 2 %}{% endif %}{{ a }}{% endfor %}", "12"},
		{"{% for i in [1, 2] %}{% macro f() %}[{{ x }}]{% endmacro %}{{ f() }}{% set x = i %}{{ f() }}{% endfor %}", "[][1][][2]"},
		{"{% macro f(a=b, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f() }}{{ f(b=3) }}", "[2][33]"},
		{"{% for i in [1, 2] %}[{{ loop.previtem }}]{% endfor %}", "[][1]"},
		{"{{ n < 30 < 20 }}{{ n < 20 < 30 }}", "FalseTrue"},
		{"{% set k = 'items' %}{{ {'items': 1}[k] }}{{ [{'keys': 2}]|map(attribute='keys')|first }}", "12"},
		{"{% for c in 'ab' %}{% if c['x'] == nobody %}{{ c }}{% endif %}{% endfor %}", "ab"},
		{"{{ range(100000)|length }}", "100000"},
		{"{{ range(100001) }}", "!OverflowError"},
		{"{{ range(10, 15)|map('string')|sort(attribute=0)|join }}{{ range(15)|map('string')|sort(true, attribute=0)|join(' ') }}", "10111213149 8 7 6 5 4 3 2 1 10 11 12 13 14 0"},
		{`{{ 'a\n\nb'|indent }}|{{ 'a\n\nb'|indent(blank=true) }}`, "a\n\n    b|a\n    \n    b"},
		{"{{ 'é😀'|tojson(ensure_ascii=true) }}", `"\u00e9\ud83d\ude00"`},
		{"{{ {'a': {'b': [1]}}|tojson(indent=2) }}", "{\n  \"a\": {\n    \"b\": [\n      1\n    ]\n  }\n}"},
		{"{{ 'xyaxy'.strip('yx') }}", "a"},
		{`{{ 'a\vb\x1cc'.splitlines() }}`, "['a', 'b', 'c']"},
		{"{{ 9007199254740992 == 9007199254740992.0 }}{{ 9223372036854775807 < 9223372036854775806 }}", "TrueFalse"},
		{"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 0 / -5 }}", "-4 2 -2 -0.0"},
		{"{{ '<a>'|safe }}{{ ('<a>'|safe) == '<a>' }}{{ ('<a>'|safe) ~ '<b>' }}", "<a>True<a><b>"},
		{"{{ 'inf.'|int(7) }} {{ ' 1.9e1 '|int }} {{ '-007'|int }} {{ 'x'|float(2) }} {{ [1]|int }}", "7 19 -7 2 0"},
		{"{{ '%s' % (1, 2) }}", "!TypeError"},
		{"{{ '%s' % [1, 2] }}", "[1, 2]"},
		{"{{ strftime_now('%I %p %j %-d %a %A %b %B %y %Y-%m-%d %H:%M:%S %-H %%') }}", "12 PM 001 1 Tue Tuesday Jan January 19 2019-01-01 12:00:00 12 %"},
	} {
		got, err := render(c.template, vars, env)
		if e := new(Error); errors.As(err, &e) && e.Class != "" {
			got, err = "!"+e.Class, nil
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.template, got, err, c.want)
		}
	}
}
