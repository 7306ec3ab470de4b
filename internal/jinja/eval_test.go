package jinja

import (
	"errors"
	"strings"
	"testing"
)

func render(source string, vars *Dict, env *Env) (string, error) {
	t, err := Compile(source)
	if err != nil {
		return "", err
	}
	out, err := t.Render(nil, vars, env)
	return string(out), err
}

// An error has the place of the innermost node that was being evaluated.
func TestErrorPlaces(t *testing.T) {
	for _, c := range []struct {
		source    string
		class     string
		line, col int
	}{
		{"a\n{{ 'é' + nobody.x }}", "UndefinedError", 2, 16},
		{"{{ 1 }}\n\n  {% for i in 5 %}{% endfor %}", "TypeError", 3, 6},
		{"{% macro f() %}\n{{ nobody() }}{% endmacro %}\n{{ f() }}", "UndefinedError", 2, 10},
		{"{% set a, b = [1] %}", "ValueError", 1, 4},
		{"{% set nobody.x = 1 %}", "TemplateRuntimeError", 1, 4},
		{"{% filter length %}a{% endfilter %}", "TypeError", 1, 4},
		{"{% if true %}\r\n{{ 1|zork }}{% endif %}{{ nobody.x.y }}", "TemplateRuntimeError", 2, 6},
		{"a\n{{ 1|zork }}", "TemplateAssertionError", 2, 6},
		{"{{ raise_exception('no') }}", "TemplateError", 1, 19},
		{"{% for i in [1, 2] %}\n{{ i + 'a' }}{% endfor %}", "TypeError", 2, 4},
	} {
		_, err := render(c.source, nil, nil)
		var e *Error
		if !errors.As(err, &e) || e.Class != c.class || e.Line != c.line || e.Col != c.col {
			t.Errorf("%q: error %v, want %s at line %d, column %d", c.source, err, c.class, c.line, c.col)
		}
	}
}

func TestUnsupportedAtCompile(t *testing.T) {
	for _, source := range []string{
		"{{ self }}",
		"{% if false %}{{ [1]|random }}{% endif %}",
		"{{ dict(class=1, **{'class': 2}) }}",
	} {
		if _, err := Compile(source); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: error %v, want one that is ErrUnsupported", source, err)
		}
	}
}

func TestUnsupportedAtRender(t *testing.T) {
	vars := &Dict{}
	vars.Set("n", int64(1))
	for _, source := range []string{
		// Jinja2 prints "missing", or changes the dict.
		"{% set ns = namespace() %}{% for y in [1] %}{% macro f() %}{{ y }}{% endmacro %}{% set ns.f = f %}{% endfor %}{{ ns.f() }}",
		"{% set ns = namespace() %}{% set ns, ns.a = {}, 2 %}",
		// It has what is not here.
		"{{ 'a'.encode() }}",
		"{{ {}.fromkeys('ab') }}",
		"{{ strftime_now('%Q') }}",
		// It is one way or the other by what does not show.
		"{% set b = 'nan' %}{% set a = b|float %}{{ [a, 1.0]|sort }}",
		"{% set b = 'nan' %}{% set a = b|float %}{{ [a] == [a] }}",
		"{% set a = 'ab' %}{{ a is sameas 'ab' }}",
		"{% set a = 2.5 %}{{ a ** 2.5 }}",
	} {
		if _, err := render(source, vars, nil); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: error %v, want one that is ErrUnsupported", source, err)
		}
	}
}

func TestOwnLimits(t *testing.T) {
	for _, c := range []struct {
		source string
		limits Limits
	}{
		{"{{ 'abc' }}", Limits{Output: 2}},
		{"{% set a = [1] %}{{ a }}", Limits{Output: 2}},
		{"{% for i in [1, 2, 3] %}{% endfor %}", Limits{Steps: 3}},
		{"{% set a = 'b' * 99999 %}{% if a|length %}{% endif %}", Limits{Steps: 100}},
		{"{% set a = 'b' * 99999 %}{% if a.islower() %}{% endif %}", Limits{Steps: 10_000}},
		{"{% set a = 'b' * 99999 %}{% set b = a ~ a %}", Limits{Steps: 1500}},
		{"{% set a = '<' * 99999 %}{% set b = a|e %}", Limits{Memory: 200_000}},
		{"{% macro f(n) %}{{ f(n - 1) if n }}{% endmacro %}{{ f(3) }}", Limits{Depth: 3}},
		{"{% set a %}{{ nobody }}" + strings.Repeat("a", 1000) + "{% endset %}", Limits{Memory: 900}},
	} {
		if _, err := render(c.source, nil, &Env{Limits: c.limits}); !errors.Is(err, ErrLimit) {
			t.Errorf("%q with %+v: error %v, want one that is ErrLimit", c.source, c.limits, err)
		}
		if _, err := render(c.source, nil, nil); err != nil {
			t.Errorf("%q: error %v", c.source, err)
		}
	}
}
