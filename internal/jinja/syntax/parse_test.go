package syntax

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/testdata"
)

// TestParse compares nodes and errors with those of Jinja2 3.1.6 under CPython
// 3.11.7, whose environment Compile's is.
func TestParse(t *testing.T) {
	for _, row := range parseRows(t) {
		root, err := parse(row.In)
		if row.Err != "" {
			var e *exception.Error
			switch {
			case !errors.As(err, &e):
				t.Errorf("%q: %v, want %s", row.In, err, row.Err)
			case e.Err == nil && e.Class != row.Err:
				t.Errorf("%q: %v, want %s", row.In, err, row.Err)
			case row.Line != 0 && e.Line != row.Line:
				t.Errorf("%q: %v, want line %d", row.In, err, row.Line)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", row.In, err)
			continue
		}
		var s sexpr
		if s.field(root.body); s.String() != row.Out {
			t.Errorf("%q:\n%s, want\n%s", row.In, s.String(), row.Out)
		}
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

type parseRow struct {
	In, Out string
	Err     string // the class of what Jinja2 raises
	Line    int    // of a TemplateSyntaxError
}

func parseRows(tb testing.TB) (rows []parseRow) {
	f, err := os.Open("testdata/parse.jsonl")
	must(tb, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row parseRow
		must(tb, json.Unmarshal(lines.Bytes(), &row))
		rows = append(rows, row)
	}
	if len(rows) < 400 {
		tb.Fatalf("only %d rows", len(rows))
	}
	return rows
}

// realTemplates are the sources of the real templates.
func realTemplates(tb testing.TB) map[string]string {
	files, _ := filepath.Glob(filepath.Join(testdata.Path(tb, "the real templates", "templates"), "*.jinja"))
	sources := make(map[string]string)
	for _, file := range files {
		source, err := os.ReadFile(file)
		must(tb, err)
		sources[strings.TrimSuffix(filepath.Base(file), ".jinja")] = string(source)
	}
	if len(sources) < 40 {
		tb.Fatalf("only %d templates", len(sources))
	}
	tb.Logf("%d templates", len(sources))
	return sources
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"a\n{% include 'a' %}", "line 2, column 4: the tag include: not supported"},
		{"{% import 'a' as b %}", "line 1, column 4: the tag import: not supported"},
		{"{% from 'a' import b %}", "line 1, column 4: the tag from: not supported"},
		{"{% extends 'a' %}", "line 1, column 4: the tag extends: not supported"},
		{"{% block a %}{% endblock %}", "line 1, column 4: the tag block: not supported"},
		{"{% autoescape true %}{% endautoescape %}", "line 1, column 4: the tag autoescape: not supported"},
		{"{% filter upper %}{% endfilter %}", "line 1, column 4: the tag filter: not supported"},
		{"{% with a = 1 %}{% endwith %}", "line 1, column 4: the tag with: not supported"},
		{"{% print a %}", "line 1, column 4: the tag print: not supported"},
		{"{% for a in b recursive %}{% endfor %}", "line 1, column 15: a recursive loop: not supported"},
		{"{% set a|upper %}{% endset %}", "line 1, column 9: a filter of a set block: not supported"},
		{`{{ "\N{DASH}" }}`, `line 1, column 5: the escape "\\N{DASH}": not supported`},
		{`{{ "\101" }}`, `line 1, column 5: the escape "\\101": not supported`},
		{`{{ "\é" }}`, `line 1, column 5: the escape "\\é": not supported`},
		{`{{ "a\ud800" }}`, "line 1, column 6: a surrogate in a string: not supported"},
		{"{{ a\né }}", "line 2, column 1: the character 'é' of a name: not supported"},
		{"{{ x\u0301 }}", "line 1, column 5: the character '\u0301' of a name: not supported"},
		{"{{ 1٢ }}", "line 1, column 4: a number with other characters than digits: not supported"},
		{"{{ 0x1f }}", "line 1, column 4: a number with other characters than digits: not supported"},
		{"{{ 1_000 }}", "line 1, column 4: a number with other characters than digits: not supported"},
		{"{{ 1e999 }}", "line 1, column 4: the number 1e999: not supported"},
		{"{{ 9223372036854775808 }}", "line 1, column 4: the number 9223372036854775808: not supported"},
		{"{{ a[] }}", "line 1, column 5: no subscript: not supported"},
		{"{{ a[1:2, 3] }}", "line 1, column 5: several subscripts: not supported"},
		{"{{ a(*b) }}", "line 1, column 6: arguments behind *: not supported"},
		{"{{ a(b=1, **c) }}", "line 1, column 11: arguments behind **: not supported"},
		{"{{ a ** 2 }}", "line 1, column 6: the operator **: not supported"},
		{"{{ a(b=1, b=2) }}", "line 1, column 11: an argument b given twice: not supported"},
		{"{{ a(_loop_vars=1) }}", "line 1, column 5: an argument of the name _loop_vars: not supported"},
		{"{% call a(caller=1) %}{% endcall %}", "line 1, column 4: the argument caller given by a call block: not supported"},
	} {
		if _, err := parse(c.source); !errors.Is(err, exception.ErrUnsupported) || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.source, err, c.want)
		}
	}
}

func TestParseErrorPlaces(t *testing.T) {
	for _, c := range []struct {
		source    string
		line, col int
	}{
		{"{{ a b }}", 1, 6},
		{"é\r\né {{ 'é' b }}", 2, 10},
		{"\r\r\n{{ ! }}", 3, 4},
		{"{% if a %}\n", 1, 9}, // the end lies where the last token does
		{"a\n  {% foo %}", 2, 6},
		{"{{ '\n\\x4' }}", 2, 1},
		{"{#\n", 0, 0},
		{"{#\na", 1, 3},
		{"{% raw %}\n\na", 1, 10},
		{"{% set a =\n\t1 + %}", 2, 6},
		{"{% macro a(b, b) %}{% endmacro %}", 1, 15},
		{"{% break %}", 1, 4},
		{"{{ (a] }}", 1, 6},
	} {
		_, err := parse(c.source)
		var e *exception.Error
		if !errors.As(err, &e) {
			e = &exception.Error{}
		}
		if e.Line != c.line || e.Col != c.col {
			t.Errorf("%q: %v, want line %d, column %d", c.source, err, c.line, c.col)
		}
	}
}

func TestParseLimits(t *testing.T) {
	rep := strings.Repeat
	for name, source := range map[string]string{
		"brackets":   "{{ " + rep("(", 101) + "a" + rep(")", 101) + " }}",
		"lists":      "{{ " + rep("[", 1<<19),
		"if":         rep("{% if a %}", 101) + rep("{% endif %}", 101),
		"not":        "{{ " + rep("not ", 101) + "a }}",
		"signs":      "{{ " + rep("-", 101) + "a }}",
		"else":       "{{ " + rep("a if b else ", 101) + "a }}",
		"sum":        "{{ a" + rep("+a", 201) + " }}",
		"and":        "{{ a" + rep(" and a", 201) + " }}",
		"if if":      "{{ a" + rep(" if a", 201) + " }}",
		"attributes": "{{ a" + rep(".a", 201) + " }}",
		"calls":      "{{ a" + rep("()", 201) + " }}",
		"filters":    "{{ a" + rep("|a", 201) + " }}",
		"tests":      "{{ a" + rep(" is a()", 201) + " }}",
		"parameters": "{% macro a(" + rep("b,", 201) + "c) %}{% endmacro %}",
		"arguments":  "{{ a(" + rep("b=1,", 201) + ") }}",
		"size":       rep("a", maxSource+1),
	} {
		if _, err := parse(source); !errors.Is(err, exception.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, source := range map[string]string{
		"brackets": "{{ " + rep("(", 70) + "a" + rep(")", 70) + " }}",
		"if":       rep("{% if a %}", 98) + rep("{% endif %}", 98),
		"elif":     "{% if a %}" + rep("{% elif a %}", 2900) + "{% endif %}",
		"sum":      "{{ a" + rep("+a", 197) + " }}",
		"concat":   "{{ a" + rep("~a", 5000) + " }}",
		"list":     "{{ [" + rep("a,", 5000) + "] }}",
		"strings":  "{{ " + rep("'a' ", 5000) + "}}",
		"loops":    rep("{% for a in b %}", 20) + rep("{% endfor %}", 20),
		"size":     rep("a", maxSource),
	} {
		if _, err := parse(source); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parse(rep("{% for a in b %}", 21) + rep("{% endfor %}", 21)); !exception.Is(err, "SyntaxError") {
		t.Errorf("loops: %v", err)
	}
	if _, err := parse("a\xff"); !exception.Is(err, "UnicodeDecodeError") {
		t.Error(err)
	}
}

// FuzzParse looks for panics, and for places outside of the source.
func FuzzParse(f *testing.F) {
	for _, row := range parseRows(f) {
		f.Add(row.In)
	}
	f.Fuzz(func(t *testing.T, source string) {
		root, err := parse(source)
		if (root == nil) != (err != nil) {
			t.Fatal(root, err)
		}
		var e *exception.Error
		if err != nil && (!errors.As(err, &e) || e.Line > 1+strings.Count(normalizeNewlines(source), "\n")) {
			t.Fatal(err)
		}
		WantsParts(source, LoopsOverParameters)
	})
}

// sexpr writes nodes in the form of testdata/parse.jsonl: (kind field ...), with
// lists in brackets and None for what is not there.
type sexpr struct{ strings.Builder }

func (s *sexpr) node(kind string, fields ...any) {
	s.WriteString("(" + kind)
	for _, f := range fields {
		s.WriteByte(' ')
		s.field(f)
	}
	s.WriteByte(')')
}

func (s *sexpr) list(n int, item func(i int)) {
	s.WriteByte('[')
	for i := range n {
		if i > 0 {
			s.WriteByte(' ')
		}
		item(i)
	}
	s.WriteByte(']')
}

func (s *sexpr) field(f any) {
	switch f := f.(type) {
	case nil:
		s.WriteString("None")
	case string:
		s.WriteString(f)
	case bool:
		s.WriteString(map[bool]string{true: "True", false: "False"}[f])
	case []Stmt:
		s.list(len(f), func(i int) { s.stmt(f[i]) })
	case []Expr:
		s.list(len(f), func(i int) { s.expr(f[i]) })
	case []*NameExpr:
		s.list(len(f), func(i int) { s.expr(f[i]) })
	case []NamedExpr:
		s.list(len(f), func(i int) { s.node("kw", f[i].Name, f[i].Value) })
	case []Operand:
		s.list(len(f), func(i int) { s.node("op", strings.ReplaceAll(f[i].Op, " ", ""), f[i].On) })
	case Expr:
		s.expr(f)
	default:
		panic(fmt.Sprintf("%T", f))
	}
}

// quote writes text in ASCII.
func (s *sexpr) quote(text string) {
	s.WriteByte('"')
	for _, r := range text {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			fmt.Fprintf(s, "<%x>", r)
		} else {
			s.WriteRune(r)
		}
	}
	s.WriteByte('"')
}

func (s *sexpr) value(v any) {
	switch v := v.(type) {
	case nil, bool:
		s.field(v)
	case string:
		s.quote(v)
	case int64:
		fmt.Fprint(s, v)
	case float64:
		fmt.Fprintf(s, "%.17e", v)
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

func (s *sexpr) expr(e Expr) {
	args := func(kind string, on Expr, name string, a ArgExprs) {
		if name == "" {
			s.node(kind, on, a.List, a.Named, nil, nil)
		} else {
			s.node(kind, on, name, a.List, a.Named, nil, nil)
		}
	}
	switch e := e.(type) {
	case *ConstExpr:
		s.WriteString("(const ")
		s.value(e.Value)
		s.WriteByte(')')
	case *NameExpr:
		s.node("name", e.Name)
	case *NsRefExpr:
		s.node("nsref", e.Name, e.Attr)
	case *TupleExpr:
		s.node("tuple", e.Items)
	case *ListExpr:
		s.node("list", e.Items)
	case *DictExpr:
		s.node("dict", e.Keys, e.Values)
	case *CondExpr:
		s.node("cond", e.Test, e.Then, e.Els)
	case *FilterExpr:
		args("filter", e.On, e.Name, e.Args)
	case *TestExpr:
		args("test", e.On, e.Name, e.Args)
	case *CallExpr:
		args("call", e.Fn, "", e.Args)
	case *GetattrExpr:
		s.node("getattr", e.On, e.Name)
	case *GetitemExpr:
		s.node("getitem", e.On, e.Key)
	case *SliceExpr:
		s.node("slice", e.Start, e.Stop, e.Step)
	case *ConcatExpr:
		s.node("concat", e.Items)
	case *CompareExpr:
		s.node("compare", e.First, e.Rest)
	case *BinaryExpr:
		s.node(e.Op, e.Left, e.Right)
	case *UnaryExpr:
		s.node(e.Op, e.On)
	case *BoolExpr:
		s.node(map[bool]string{true: "and", false: "or"}[e.And], e.Left, e.Right)
	case *NotExpr:
		s.node("not", e.On)
	default:
		panic(fmt.Sprintf("%T", e))
	}
}

func (s *sexpr) stmt(n Stmt) {
	switch n := n.(type) {
	case *OutputStmt:
		s.WriteString("(output ")
		s.list(len(n.Items), func(i int) {
			if n.Items[i].Expr == nil {
				s.quote(n.Items[i].Text)
			} else {
				s.expr(n.Items[i].Expr)
			}
		})
		s.WriteByte(')')
	case *ForStmt:
		s.node("for", n.Target, n.Iter, n.Body, n.Els, n.Test, false)
	case *IfStmt:
		elifs := make([]Stmt, len(n.Elifs))
		for i, e := range n.Elifs {
			elifs[i] = e
		}
		s.node("if", n.Test, n.Body, elifs, n.Els)
	case *MacroStmt:
		s.node("macro", n.Name, n.Params, n.Defaults, n.Body)
	case *CallStmt:
		s.node("callblock", n.Call, n.Params, n.Defaults, n.Body)
	case *GenerationStmt:
		s.node("generation", n.Body)
	case *SetStmt:
		s.node("set", n.Target, n.Value)
	case *SetBlockStmt:
		s.node("setblock", n.Target, nil, n.Body)
	case *BreakStmt:
		s.node("break")
	case *ContinueStmt:
		s.node("continue")
	default:
		panic(fmt.Sprintf("%T", n))
	}
}
