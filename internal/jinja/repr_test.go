package jinja

import "testing"

// What holds itself through a namespace is printed as CPython 3.11 does.
func TestReprOfWhatHoldsItself(t *testing.T) {
	for _, c := range []struct{ template, want string }{
		{"{% set ns = namespace() %}{% set ns.v = ns %}{{ ns }}", "<Namespace {'v': <Namespace {...}>}>"},
		{"{% set ns = namespace() %}{% set ns.v = {'é': ns} %}{{ ns.v }}", "{'é': <Namespace {'v': {...}}>}"},
		{"{% set ns = namespace() %}{% set ns.v = [ns, (ns,)] %}{{ ns.v }}", "[<Namespace {'v': [...]}>, (<Namespace {'v': [...]}>,)]"},
		{"{% set ns = namespace() %}{% set ns.v = (ns, 1) %}{{ ns.v }}", "(<Namespace {'v': (...)}>, 1)"},
		{"{% set ns = namespace() %}{% set ns.v = {'a': ns}.values() %}{{ ns.v }}", "dict_values([<Namespace {'v': ...}>])"},
		{"{% set d = [1] %}{% set ns = namespace(a=d, b=d) %}{{ [d, d, ns] }}", "[[1], [1], <Namespace {'a': [1], 'b': [1]}>]"},
	} {
		if got, err := render(c.template, nil, nil); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.template, got, err, c.want)
		}
	}
}
