package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// seedTemplates are random programs for the native fuzzers to start from.
func seedTemplates() []string {
	list := []string{
		"{{ 'a' * 1000000000 }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ '%1000000000s' % '' }}",
		"{{ '%1000000000d' % 1 }}", "{{ '{:1000000000d}'.format(1) }}", "{{ 'a'|indent(1000000000) }}",
		"{{ [[1] * 99999] * 99999 }}", strings.Repeat("(", 1000), strings.Repeat("{% if a %}", 300),
		"{% for x in x recursive %}{{ loop(x) }}{% endfor %}", "{{ 'a,' * 9999|replace(',', 'b' * 9999) }}",
	}
	for i := range uint64(30) {
		list = append(list, generate(3, i, false).template)
	}
	return list
}

// FuzzRender: no panic, every error is an Error, and the limits hold.
func FuzzRender(f *testing.F) {
	for i, t := range seedTemplates() {
		f.Add(t, uint64(i))
	}
	limits := python.Limits{Steps: 20_000, Depth: 50, Output: 10_000, Memory: 1 << 20}
	f.Fuzz(func(t *testing.T, source string, seed uint64) {
		var e *Error
		compiled, err := Compile(source)
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		vars := generate(seed, 0, false).vars
		before := "before"
		var out []byte
		took := cputime.Of(func() {
			out, err = compiled.Render([]byte(before), vars, &Env{Now: func() time.Time { return oracleNow }, Limits: limits})
		})
		if took > 5*time.Second {
			t.Fatalf("took %v", took)
		}
		switch {
		case err != nil && !errors.As(err, &e):
			t.Fatalf("an error of another kind: %v", err)
		case err != nil && string(out) != before:
			t.Fatalf("an error, but the output became %q", out)
		case !strings.HasPrefix(string(out), before):
			t.Fatalf("the output does not follow what was there: %q", out)
		case len(out) > len(before)+limits.Output:
			t.Fatalf("%d bytes of output", len(out))
		}
	})
}
