package jinja

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// often is how many times, in a long run, each construct is to occur in programs
// that both render.
const often = 1000

// nodeUses tells of Jinja2's nodes which construct shows that one occurred, or what
// template has it, starting with "{", if it must be refused. "" marks those that no
// template of this environment can have.
var nodeUses = map[string]string{
	"Add": "operator:+", "And": "operator:and", "Assign": "statement:set", "AssignBlock": "statement:set block",
	"Block": "{% block a %}{% endblock %}", "Break": "statement:break", "Call": "call:macro", "CallBlock": "statement:call",
	"Compare": "operator:==", "Concat": "operator:~", "CondExpr": "expression:if", "Const": "literal:int",
	"ContextReference": "", "Continue": "statement:continue", "DerivedContextReference": "", "Dict": "literal:dict",
	"Div": "operator:/", "EnvironmentAttribute": "", "EvalContextModifier": "", "ExprStmt": "",
	"Extends": "{% extends 'a' %}", "ExtensionAttribute": "", "Filter": "filter:upper", "FilterBlock": "{% filter upper %}{% endfilter %}",
	"FloorDiv": "operator://", "For": "statement:for", "FromImport": "{% from 'a' import b %}", "Getattr": "operator:.",
	"Getitem": "operator:[]", "If": "statement:if", "Import": "{% import 'a' as b %}", "ImportedName": "",
	"Include": "{% include 'a' %}", "InternalName": "", "Keyword": "call:keyword", "List": "literal:list",
	"Macro": "statement:macro", "MarkSafe": "", "MarkSafeIfAutoescape": "", "Mod": "operator:%", "Mul": "operator:*",
	"NSRef": "target:namespace", "Name": "statement:output", "Neg": "operator:neg", "Not": "operator:not",
	"Operand": "operator:==", "Or": "operator:or", "Output": "statement:output", "OverlayScope": "", "Pair": "literal:dict",
	"Pos": "operator:pos", "Pow": "{{ 2 ** 3 }}", "Scope": "", "ScopedEvalContextModifier": "{% autoescape true %}{% endautoescape %}",
	"Slice": "operator:slice", "Sub": "operator:-", "Template": "statement:output", "TemplateData": "statement:output",
	"Test": "test:defined", "Tuple": "literal:tuple", "With": "{% with a = 1 %}{% endwith %}",
	// The bases of operators are not abstract to Jinja2's eyes.
	"BinExpr": "", "EvalContext": "", "Expr": "", "Helper": "", "Literal": "", "Node": "", "Stmt": "", "UnaryExpr": "",
}

// operatorUses are the constructs of Jinja2's operators.
var operatorUses = map[string]string{
	"(": "call:macro", ")": "call:macro", "[": "operator:[]", "]": "operator:[]", "{": "literal:dict", "}": "literal:dict",
	",": "literal:tuple", ".": "operator:.", ":": "operator:slice", "=": "statement:set", "|": "filter:upper", ";": "",
}

// expected are the constructs that must occur, with templates that try them, to
// find out whether they are refused here.
func expected(names oracleNames) map[string][]string {
	want := map[string][]string{}
	for _, n := range names.Filters {
		want["filter:"+n] = []string{"{% if x|" + n + " %}{% endif %}"}
	}
	for _, n := range names.Tests {
		want["test:"+n] = []string{"{% if x is " + n + " %}{% endif %}"}
	}
	for _, n := range names.Globals {
		want["global:"+n] = []string{"{% if " + n + "() %}{% endif %}"}
	}
	for _, n := range names.Operators {
		use, ok := operatorUses[n]
		if !ok {
			use = "operator:" + n
		}
		if use != "" {
			want[use] = nil
		}
	}
	want["operator:**"] = []string{"{% if x ** 2 %}{% endif %}"}
	for _, op := range []string{"and", "or", "not", "in", "notin", "neg", "pos", "slice", "chained"} {
		want["operator:"+op] = nil
	}
	for _, s := range []string{"output", "set", "set block", "for", "for filter", "for else", "break", "continue", "if", "elif", "else", "macro", "call", "call arguments", "raw", "comment", "generation"} {
		want["statement:"+s] = nil
	}
	for _, s := range []string{"control:%-", "control:%+", "control:-%", "control:+%", "control:{-", "control:{+", "control:-}", "control:#-", "control:#+", "control:raw-", "control:raw+", "macro:default", "macro:caller", "target:tuple", "target:namespace", "expression:if_without_else"} {
		want[s] = nil
	}
	for owner, attributes := range names.Attributes {
		probe := map[string]string{"str": "''", "list": "[]", "tuple": "()", "dict": "{}", "int": "1", "float": "1.0", "range": "range(1)", "cycler": "cycler(1)"}[owner]
		for _, n := range attributes {
			want[owner+"."+n] = nil
			switch owner {
			case "loop":
				want["loop."+n] = []string{"{% for i in [1] %}{% if loop." + n + " %}{% endif %}{% endfor %}"}
			case "macro":
				want["macro."+n] = []string{"{% macro m() %}{% endmacro %}{{ m." + n + " }}"}
			}
			if probe != "" {
				try := "{% if (" + probe + ")." + n
				want[owner+"."+n] = []string{try + " %}{% endif %}", try + "() %}{% endif %}", try + "('') %}{% endif %}"}
			}
		}
	}
	return want
}

// refusal is the error with which one of the templates is refused here.
func refusal(templates ...string) error {
	for _, t := range templates {
		p := program{template: t, vars: &python.Dict{}}
		if _, err := p.render(); errors.Is(err, ErrUnsupported) {
			return err
		}
	}
	return nil
}

// reportCoverage tells how often what Jinja2 has occurred in programs that both
// rendered, and what is refused here.
func (c *comparison) reportCoverage(t *testing.T) {
	need := 0
	if *programs >= 100*often {
		need = often
	}
	want := expected(c.oracle.names)
	for _, node := range c.oracle.names.Nodes {
		use, ok := nodeUses[node]
		switch {
		case !ok:
			t.Errorf("the node %s of Jinja2 is not known to this test", node)
		case strings.HasPrefix(use, "{") && refusal(use) == nil:
			t.Errorf("%s is not refused", use)
		case strings.HasPrefix(use, "{"):
			t.Logf("refused: %v", refusal(use))
		case use != "":
			want[use] = nil
		}
	}
	counts := map[string]int{}
	for _, construct := range slices.Sorted(maps.Keys(want)) {
		n := c.uses[construct]
		if err := refusal(want[construct]...); err != nil && (n == 0 || n < need) {
			t.Logf("refused: %s (%v)", construct, err)
			continue
		}
		counts[construct] = n
		if n < need {
			t.Errorf("%s occurred %d times of %d in programs that both rendered (generated %d)", construct, n, need, c.generated[construct])
		}
	}
	t.Logf("%d constructs that Jinja2 has; the rarest:%s", len(counts), rarest(counts, 25))
	others := map[string]int{}
	for construct := range c.generated {
		if _, ok := want[construct]; !ok {
			others[construct] = c.uses[construct]
		}
	}
	t.Logf("%d further forms; the rarest:%s", len(others), rarest(others, 25))
}
