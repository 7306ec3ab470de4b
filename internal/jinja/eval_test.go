package jinja

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

func render(source string, vars *python.Dict, env *Env) (string, error) {
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
		{"{% if true %}\r\n{{ 1|zork }}{% endif %}{{ nobody.x.y }}", "TemplateRuntimeError", 2, 6},
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
		"{% for i in x %}{% if loop.cycle(1, 2) %}{% endif %}{% endfor %}",
		"{% macro f() %}{% if x %}{{ varargs }}{% endif %}{% endmacro %}",
		"{% macro f() %}{% if x %}{{ kwargs }}{% endif %}{% endmacro %}",
		"{% macro f(caller=1) %}{% endmacro %}",
		"{% if false %}{{ {[]: 1} }}{% endif %}",
		"{{ x is callable }}",
	} {
		if _, err := Compile(source); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: error %v, want one that is ErrUnsupported", source, err)
		}
	}
}

func TestUnsupportedAtRender(t *testing.T) {
	vars := &python.Dict{}
	vars.Set("n", int64(1))
	vars.Set("nan", math.NaN())
	vars.Set("big", new(big.Int).Lsh(big.NewInt(1), 64))
	for _, source := range []string{
		// Jinja2 prints "missing", or changes the dict.
		"{% set ns = namespace() %}{% for y in [1] %}{% macro f() %}{{ y }}{% endmacro %}{% set ns.f = f %}{% endfor %}{{ ns.f() }}",
		"{% set ns = namespace() %}{% set ns, ns.a = {}, 2 %}",
		// It has what is not here.
		"{{ 'a'.encode() }}",
		"{{ {}.fromkeys('ab') }}",
		"{{ strftime_now('%Q') }}",
		// It is one way or the other by what does not show.
		"{{ [nan, 1.0]|sort }}",
		"{{ [nan] == [nan] }}",
		"{% set a = 'ab' %}{{ a is sameas 'ab' }}",
		// Operations on values that no chat template has.
		"{{ big + 1 }}", "{{ big == 1.0 }}", "{{ -big }}", "{{ big|float }}", "{{ {big: 1} }}", "{{ 1.0 < 9007199254740993 }}", "{{ 4611686018427387904 * 2 }}",
		"{{ 9223372036854775807 + 1 }}", "{{ 9007199254740993 // 2 }}", "{{ 7.5 // 2 }}", "{{ 7.5 % 2 }}", "{{ 1e308 * 10 }}", "{{ nan|int }}",
		"{{ 'a'|safe + 'b' }}", "{{ 'a' + 'b'|safe }}", "{{ ('a'|safe).upper() }}", "{{ ('a'|safe)[0] }}", "{{ ('a'|safe)[1:] }}", "{{ ['a'|safe] }}", "{{ ('a'|safe).x }}",
		"{{ {'a': 1}.keys() == {'a': 1}.keys() }}", "{{ {'a': 1}.keys() < {'b': 1}.keys() }}", "{{ 1 in {}.items() }}", "{{ {}.keys() - {}.keys() }}",
		"{{ range(3) == range(3) }}", "{{ range(3)[1] }}", "{{ range(3)[1:] }}", "{{ range(3) }}", "{{ {1.5: 1} }}", "{{ {(1, 2): 1} }}", "{{ (5)[1:2] }}", "{{ 'abc'['a':] }}",
		"{% for i in [1] %}{{ loop }}{% endfor %}", "{% for i in [1] %}{{ loop|length }}{% endfor %}", "{% for i in [1] %}{% if loop %}{% endif %}{% endfor %}",
		"{% for i in [1] %}{{ loop['depth'] }}{% endfor %}", "{% macro f() %}{% endmacro %}{{ f }}{{ f.name }}", "{{ ''.__class__ }}", "{{ {}.__len__ }}", "{{ [].append }}", "{{ 'a'.startswith(('a', 'b')) }}",
		"{{ 'a'.find('a', 1) }}", "{{ '1_0'|int }}", "{{ '٣'|int }}", "{{ 'inf'|float }}", "{{ [[1]]|map(attribute='0')|list }}", "{{ dict([['a', 1]]) }}", "{{ '%s' is odd }}",
		"{{ [1]|tojson(separators='ab') }}", "{{ [1]|tojson(indent=' ') }}",
	} {
		if _, err := render(source, vars, nil); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: error %v, want one that is ErrUnsupported", source, err)
		}
	}
}

func TestOwnLimits(t *testing.T) {
	for _, c := range []struct {
		source string
		limits python.Limits
	}{
		{"{{ 'abc' }}", python.Limits{Output: 2}},
		{"{% set a = [1] %}{{ a }}", python.Limits{Output: 2}},
		{"{% for i in [1, 2, 3] %}{% endfor %}", python.Limits{Steps: 3}},
		{"{% set a = 'b' * 99999 %}{% if a|length %}{% endif %}", python.Limits{Steps: 100}},
		{"{% set a = '1' * 99999 %}{% if a.isdigit() %}{% endif %}", python.Limits{Steps: 10_000}},
		{"{% set a = 'b' * 99999 %}{% set b = a ~ a %}", python.Limits{Steps: 1500}},
		{"{% set a = '<' * 99999 %}{% set b = a|replace('<', '&lt;') %}", python.Limits{Memory: 200_000}},
		{"{% macro f(n) %}{{ f(n - 1) if n }}{% endmacro %}{{ f(3) }}", python.Limits{Depth: 3}},
		{"{% set a %}{{ nobody }}" + strings.Repeat("a", 1000) + "{% endset %}", python.Limits{Memory: 900}},
	} {
		if _, err := render(c.source, nil, &Env{Limits: c.limits}); !errors.Is(err, ErrLimit) {
			t.Errorf("%q with %+v: error %v, want one that is ErrLimit", c.source, c.limits, err)
		}
		if _, err := render(c.source, nil, nil); err != nil {
			t.Errorf("%q: error %v", c.source, err)
		}
	}
}

func TestRefusedTemplates(t *testing.T) {
	for _, template := range []string{
		"{{ ''|urlize if x }}", "{{ ['']|map('pprint')|list }}", "{{ ['']|select('upper')|list }}", "{{ lipsum() }}", "{{ cycler(1) }}", "{{ joiner() }}", "{% if x %}{{ x.swapcase() }}{% endif %}",
		"{{ ''['encode']() }}", "{{ (''|safe).striptags() }}", "{{ (1).real }}", "{{ range(3).stop }}", "{{ {}.keys().isdisjoint([]) }}", "{{ '1'|int(base=16) }}",
		"{{ 'a'|indent('>'|safe) }}", "{{ ('a'|safe).join([]) }}", "{{ namespace() }}", "{{ [namespace()] }}", "{{ '%s'|format(a=1) }}", "{{ 'a' is sameas 'a' }}", "{{ ('a'|safe)['replace']('a', 'b') }}",
		"{{ '%x' % 1 }}", "{{ '%+d' % 1 }}", "{{ '%(a)s' % {'a': 1} }}", "{{ '%.3s' % 'a' }}", "{{ '%s'|safe % 1 }}", "{{ '%f' % 1.5 }}", "{{ '%5s' % 1 }}", "{{ '%d' % 1.5 }}", "{{ '%' % 1 }}",
		"{{ '{!r}'.format(1) }}", "{{ '{a.b}'.format(a=1) }}", "{{ '{[0]}'.format([1]) }}", "{{ '{:x}'.format(1) }}", "{{ '{:d}'.format(1.5) }}", "{{ '{:5s}'.format('a') }}", "{{ '{0}'.format('a') }}", "{{ '{:{}}'.format(1, 2) }}",
		"{{ strftime_now('%^a') }}", "{{ strftime_now('%5d') }}", "{{ strftime_now('%Q') }}", "{{ strftime_now('%') }}", "{{ strftime_now('%-f') }}", "{{ strftime_now('%c') }}", "{{ strftime_now('%-') }}",
	} {
		if _, err := render(template, nil, nil); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", template, err)
		}
	}
	for _, template := range []string{"{{ x|urlize if x }}", "{% if x %}{{ x|map('upper')|unique }}{% endif %}", "{% if x %}{% if x is lower %}{% endif %}{% endif %}", "{% if x %}{{ x.translate({}) }}{% endif %}", "{% set x, (y, x) = 1, (2, 3) %}"} {
		if _, err := Compile(template); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v when it is loaded", template, err)
		}
	}
}
