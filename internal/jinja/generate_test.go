package jinja

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A program is a random template with the variables it is rendered with.
type program struct {
	template string
	vars     *python.Dict
	uses     map[string]int // constructs of it, such as "filter:upper"
}

// A generator makes programs. It follows the types of expressions, so that most
// programs render, and now and then does not, so that errors occur.
type generator struct {
	rng    *rand.Rand
	uses   map[string]int
	wrong  int  // ill-typed expressions per thousand
	odd    int  // weight of the odd statements
	old    bool // avoid what Jinja2 3.1.2 or MarkupSafe 2.1.2 does otherwise
	names  []binding
	macros []macroShape
	inLoop int // loops around whose variable can be seen
	fresh  int // numbers macros
}

type binding struct{ name, typ string }

type macroShape struct {
	name         string
	params       []binding
	defaults     int // of the last params
	callsCaller  bool
	callerParams []string // types
}

// generate makes the i-th program of a seed.
func generate(seed, i uint64, old bool) *program {
	g := &generator{rng: rand.New(rand.NewPCG(seed, i)), uses: map[string]int{}, old: old}
	if g.chance(400) {
		g.wrong, g.odd = 25, 6
	}
	vars := g.variables()
	t := g.body(3, 4+g.rng.IntN(7))
	if g.chance(30) {
		t = strings.ReplaceAll(t, "\n", "\r\n")
	}
	if g.chance(40) {
		t = g.mutated(t)
		clear(g.uses)
	}
	return &program{template: t, vars: vars, uses: g.uses}
}

// tokens are what mutated moves: coarser than the lexer's, and never fails.
var tokens = regexp.MustCompile(`(?s)\{%[-+]?|[-+]?%\}|\{\{[-+]?|-?\}\}|\{#.*?#\}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\w+|\s+|[*/=!<>]+|.`)

// mutated drops, doubles or moves a few tokens of a template.
func (g *generator) mutated(t string) string {
	list := tokens.FindAllString(t, -1)
	for range 1 + g.rng.IntN(2) {
		if len(list) == 0 {
			break
		}
		i, j := g.rng.IntN(len(list)), g.rng.IntN(len(list))
		switch g.rng.IntN(4) {
		case 0:
			list = slices.Delete(list, i, i+1)
		case 1:
			list[i] += list[i]
		case 2:
			list[i], list[j] = list[j], list[i]
		default:
			list[i] += list[j]
		}
	}
	return strings.Join(list, "")
}

func (g *generator) oddStatement(int) string {
	t := odd[g.rng.IntN(len(odd))]
	if g.old && strings.Contains(t, "zz") {
		return ""
	}
	return g.expand(t, 1)
}

func (g *generator) chance(perThousand int) bool { return g.rng.IntN(1000) < perThousand }

func (g *generator) use(construct string) { g.uses[construct]++ }

func (g *generator) pick(choices ...string) string { return choices[g.rng.IntN(len(choices))] }

// variables makes those of the rendering and binds them.
func (g *generator) variables() *python.Dict {
	d := &python.Dict{}
	add := func(name, typ string, v python.Value) {
		d.Set(name, v)
		g.names = append(g.names, binding{name, typ})
	}
	add("s", "str", g.text())
	add("t", "str", g.text())
	add("words", "str", g.words())
	add("html", "str", g.pick("<b>a</b> & \"c\"", "<p class='x'>one <br/> two</p>", "a<!-- c -->b < 3 > 2", "see http://a.example/b?c=1&d=2 or www.example.org, mail x@example.com."))
	add("i", "int", g.integer())
	add("j", "int", int64(g.rng.IntN(10)))
	add("f", "float", g.float())
	add("h", "float", float64(g.rng.IntN(2000)-1000)/8)
	add("yes", "bool", true)
	add("no", "bool", false)
	add("nil", "none", nil)
	add("ls", "lstr", g.listOf(func() python.Value { return g.text() }))
	add("lw", "lstr", g.listOf(func() python.Value { return g.word() }))
	add("li", "lint", g.listOf(func() python.Value { return int64(g.rng.IntN(20) - 5) }))
	add("lf", "lnum", g.listOf(func() python.Value {
		if g.chance(500) {
			return int64(g.rng.IntN(9))
		}
		return g.float()
	}))
	add("lx", "lany", g.listOf(func() python.Value { return g.json(2) }))
	add("ll", "llint", g.listOf(func() python.Value { return g.listOf(func() python.Value { return int64(g.rng.IntN(9)) }) }))
	add("lr", "lrec", g.listOf(func() python.Value { return g.record() }))
	add("r", "rec", g.record())
	add("di", "dint", g.dictOf(func() python.Value { return int64(g.rng.IntN(20) - 5) }))
	add("ds", "dstr", g.dictOf(func() python.Value { return g.text() }))
	add("dx", "dany", g.dictOf(func() python.Value { return g.json(2) }))
	add("messages", "messages", g.messages())
	add("tools", "json", g.json(4))
	return d
}

func (g *generator) listOf(item func() python.Value) *python.List {
	l := &python.List{}
	for range g.rng.IntN(6) {
		l.Items = append(l.Items, item())
	}
	return l
}

func (g *generator) dictOf(value func() python.Value) *python.Dict {
	d := &python.Dict{}
	for range g.rng.IntN(6) {
		d.Set(g.key(), value())
	}
	return d
}

// record makes a dict of type rec.
func (g *generator) record() *python.Dict {
	d := &python.Dict{}
	d.Set("name", g.word())
	d.Set("n", int64(g.rng.IntN(6)))
	d.Set("f", float64(g.rng.IntN(40))/4)
	d.Set("ok", g.chance(500))
	sub := &python.Dict{}
	sub.Set("k", g.word())
	sub.Set("l", &python.List{Items: []python.Value{int64(g.rng.IntN(5)), g.word()}})
	d.Set("sub", sub)
	if g.chance(600) {
		d.Set("opt", g.word())
	}
	return d
}

func (g *generator) messages() *python.List {
	l := &python.List{}
	for i := range g.rng.IntN(5) {
		m := &python.Dict{}
		m.Set("role", []string{"user", "assistant", "system", "tool"}[(i+g.rng.IntN(2))%4])
		if g.chance(700) {
			m.Set("content", g.text())
		} else {
			part := &python.Dict{}
			part.Set("type", "text")
			part.Set("text", g.text())
			m.Set("content", &python.List{Items: []python.Value{part}})
		}
		if g.chance(200) {
			m.Set("tool_calls", g.json(3))
		}
		l.Items = append(l.Items, m)
	}
	return l
}

func (g *generator) json(depth int) python.Value {
	n := 8
	if depth == 0 {
		n = 6
	}
	switch g.rng.IntN(n) {
	case 0, 1:
		return g.text()
	case 2:
		return g.integer()
	case 3:
		return g.float()
	case 4:
		return g.chance(500)
	case 5:
		return nil
	case 6:
		return g.listOf(func() python.Value { return g.json(depth - 1) })
	default:
		return g.dictOf(func() python.Value { return g.json(depth - 1) })
	}
}

func (g *generator) integer() python.Value {
	switch g.rng.IntN(8) {
	case 0:
		return []int64{math.MaxInt64, math.MinInt64, 1 << 53, -1 << 53, 1<<53 + 1, math.MaxInt32}[g.rng.IntN(6)]
	case 1:
		n := new(big.Int).Lsh(big.NewInt(int64(g.rng.IntN(99)-49)), uint(60+g.rng.IntN(60)))
		return parsedInt(n.Add(n, big.NewInt(int64(g.rng.IntN(5)-2))).String())
	default:
		return int64(g.rng.IntN(200) - 60)
	}
}

func (g *generator) float() float64 {
	switch g.rng.IntN(8) {
	case 0:
		return []float64{0, math.Copysign(0, -1), 1e16, 1e22, 1e-7, 123456789.125, 5e-324, 1.7976931348623157e308, 0.1, 1e15, 9999999999999998, 2.5, 0.0001, 1 << 53, 1 << 63, math.MaxInt32}[g.rng.IntN(16)]
	case 1:
		return math.Float64frombits(g.rng.Uint64N(1<<62) | uint64(g.rng.IntN(2))<<63)
	case 2:
		return float64(g.rng.IntN(100))
	default:
		return float64(g.rng.IntN(20000)-10000) / []float64{1, 2, 3, 4, 8, 10, 100, 1000}[g.rng.IntN(8)]
	}
}

func (g *generator) key() string {
	return g.pick("a", "b", "c", "name", "role", "content", "x y", "Zed", "é", "items", "n", "type", "0", "")
}

func (g *generator) word() string {
	return g.pick("apple", "Banana", "cherry", "Éclair", "straße", "xyz", "ABC", "a1", "", "Don't", "foo-bar", "日本", "user", "zed", "10", "ǆ", "ΑΣ")
}

func (g *generator) words() string {
	var b strings.Builder
	for range 2 + g.rng.IntN(12) {
		b.WriteString(g.word())
		b.WriteString(g.pick(" ", " ", " ", "\n", "  ", "-", ", ", "\t", " (", ". "))
	}
	return b.String()
}

// nasty are what a string of a program is made of.
var nasty = []string{
	"a", "B", "hello", "World", " ", "  ", "\n", "\t", "'", "\"", "\\", "<", ">", "&", "<b>", "</b>", "{{", "}}", "{%", "%}", "{#",
	"é", "ß", "日本語", "😀", "İ", "ŉ", "ﬁ", "Σ", "ς", "ǅ", "\u00a0", "\u2028", "\u200b", "\u0301", "\r\n", "\r", "\x0b", "\x1c", "\u0085", "\x00", "\x7f", "\u00ad",
	"1", "42", "-7", "3.5", "²", "٣", "½", "Ⅷ", "%", "%s", "{}", "{0}", ",", ";", ":", "=", "/", "?", "#", "@", "_", "-", "true", "None", "\U000e0001", "\ufeff", "\ue000", "ａ",
}

func (g *generator) text() string {
	if g.chance(250) {
		return g.word()
	}
	var b strings.Builder
	for range g.rng.IntN(8) {
		switch n := g.rng.IntN(100); {
		case n < 40:
			b.WriteString(g.word())
			b.WriteString(g.pick("", " ", "\n"))
		case n < 95:
			b.WriteString(nasty[g.rng.IntN(len(nasty))])
		default:
			if r := rune(g.rng.IntN(0x20000)); utf8.ValidRune(r) {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// Statements.

// space is white space inside of a tag.
func (g *generator) space() string {
	if g.chance(900) {
		return " "
	}
	if g.chance(50) {
		return g.pick("\f", "\u00a0", "\v", "\u2003", "\x1c", "\u0085", "\u3000")
	}
	return g.pick("", "\n", "  ", "\t", "\n  ")
}

// tag wraps a statement.
func (g *generator) tag(content string) string {
	open, end := g.control("%-", "%+"), g.control("-%", "+%")
	sep := g.space()
	if sep == "" && (content[0] == '-' || content[0] == '+') {
		sep = " "
	}
	return "{%" + open + sep + content + g.space() + end + "%}"
}

// control is a sign of white space control or none.
func (g *generator) control(minus, plus string) string {
	switch n := g.rng.IntN(1000); {
	case n < 120:
		g.use("control:" + minus)
		return "-"
	case n < 170:
		g.use("control:" + plus)
		return "+"
	default:
		return ""
	}
}

// rarer is a sign of white space control of a tag that is rarer itself.
func (g *generator) rarer(tag string) string {
	sign := g.pick("", "", "-", "+")
	if sign != "" {
		g.use("control:" + tag + sign)
	}
	return sign
}

// output wraps an expression.
func (g *generator) output(e string) string {
	g.use("statement:output")
	open, end := g.control("{-", "{+"), ""
	if g.chance(120) {
		g.use("control:-}")
		end = "-"
	}
	sep := g.space()
	if e[0] == '-' || e[0] == '+' || e[0] == '{' || e[0] == '%' || e[0] == '#' {
		sep = " "
	}
	after := g.space()
	if e[len(e)-1] == '}' || e[len(e)-1] == '-' {
		after = " "
	}
	return "{{" + open + sep + e + after + end + "}}"
}

// data is text between tags.
func (g *generator) data() string {
	var b strings.Builder
	for range g.rng.IntN(4) {
		b.WriteString(g.pick("\n", "\n", " ", "  ", "\n\n", "\t", " \n ", "x", "text", "é", "<|im_start|>", "'", "\"", "\\n", ": ", "|", "日", "\u00a0", "{ ", "}", "% ", "#", "<b>", "-", "\r", "\x0c", "\x1f"))
	}
	return b.String()
}

func (g *generator) body(depth, statements int) string {
	var b strings.Builder
	for range statements {
		b.WriteString(g.data())
		b.WriteString(g.statement(depth))
	}
	b.WriteString(g.data())
	return b.String()
}

// inner is the body of a statement: a few statements, in a scope of their own.
func (g *generator) inner(depth int) string {
	names, macros := len(g.names), len(g.macros)
	t := g.body(depth-1, 1+g.rng.IntN(2))
	g.names, g.macros = g.names[:names], g.macros[:macros]
	return t
}

func (g *generator) statement(depth int) string {
	if depth <= 0 || g.chance(560) {
		return g.output(g.printed(depth))
	}
	type choice struct {
		weight int
		write  func(depth int) string
	}
	choices := []choice{
		{10, g.setStatement}, {5, g.setBlock}, {14, g.forStatement}, {10, g.ifStatement},
		{7, g.macroStatement}, {5, g.callStatement},
		{5, g.rawStatement}, {6, g.commentStatement}, {4, g.generationStatement},
		{g.odd, g.oddStatement}, {4, g.namespaceStatement},
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := g.rng.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			return c.write(depth)
		}
	}
	panic("unreachable")
}

// printed is an expression to print: more often than not one that a row of the
// tables starts, all rows being as likely.
func (g *generator) printed(depth int) string {
	if g.chance(700) {
		r := allRows[g.rng.IntN(len(allRows))]
		if g.old && r.since {
			return g.expr("any", 2, 1)
		}
		text, level := g.row(r, 2)
		if strings.HasPrefix(r.result, "x") || r.result == "view" || r.result == "range" {
			return wrap(text, level, levelFilter) + "|list"
		}
		return text
	}
	return g.expr("any", 3, 1)
}

func (g *generator) newName() string {
	if g.chance(100) {
		return g.pick("s", "i", "ls", "r", "words")
	}
	return g.pick("x", "y", "z", "foo", "bar", "item", "value", "_u", "a1", "key", "set2")
}

func (g *generator) bind(name, typ string) { g.names = append(g.names, binding{name, typ}) }

// valueType is a type that a variable may have.
func (g *generator) valueType() string { return g.resolve("value") }

func (g *generator) setStatement(int) string {
	g.use("statement:set")
	switch g.rng.IntN(10) {
	case 0, 1:
		g.use("target:tuple")
		a, b := g.newName(), g.newName()
		ta, tb := g.valueType(), g.valueType()
		values := g.expr(ta, 2, 1) + ", " + g.expr(tb, 2, 1)
		if g.chance(300) {
			values = "(" + values + ")"
		}
		t := a + ", " + b
		if g.chance(200) {
			t = "(" + t + ")"
		}
		g.bind(a, ta)
		g.bind(b, tb)
		return g.tag("set " + t + " = " + values)
	case 2:
		name, typ := g.newName(), g.resolve("list")
		v := g.expr(typ, 2, 1)
		g.bind(name, "tuple")
		return g.tag("set " + name + " = " + v + ", " + g.expr("value", 2, 1))
	default:
		name, typ := g.newName(), g.valueType()
		v := g.expr(typ, 3, 1)
		g.bind(name, typ)
		return g.tag("set " + name + g.pick(" = ", "=", "  =\n") + v)
	}
}

func (g *generator) setBlock(depth int) string {
	g.use("statement:set block")
	name := g.newName()
	t := g.tag("set "+name) + g.inner(depth) + g.tag("endset")
	g.bind(name, "str")
	return t
}

func (g *generator) ifStatement(depth int) string {
	g.use("statement:if")
	var changed []string
	branch := func() string {
		names, macros := len(g.names), len(g.macros)
		t := g.body(depth-1, 1+g.rng.IntN(2))
		for _, b := range g.names[names:] {
			changed = append(changed, b.name)
		}
		g.names, g.macros = g.names[:names], g.macros[:macros]
		return t
	}
	var b strings.Builder
	b.WriteString(g.tag("if " + g.condition()))
	b.WriteString(branch())
	for g.chance(300) {
		g.use("statement:elif")
		b.WriteString(g.tag("elif " + g.condition()))
		b.WriteString(branch())
	}
	if g.chance(450) {
		g.use("statement:else")
		b.WriteString(g.tag("else"))
		if g.old {
			// 3.1.2 and 3.1.6 differ over names set in every branch.
			b.WriteString(g.output(g.printed(1)))
		} else {
			b.WriteString(branch())
		}
	}
	b.WriteString(g.tag("endif"))
	for _, name := range changed {
		g.bind(name, "unsure")
	}
	return b.String()
}

// condition is what an if tests: mostly a bool, else anything.
func (g *generator) condition() string {
	if g.chance(200) {
		return g.expr("any", 2, 1)
	}
	return g.expr("bool", 2, 1)
}

func (g *generator) rawStatement(int) string {
	g.use("statement:raw")
	inside := g.data() + g.pick("{{ x }}", "{% if %}", "{# c #}", "{{", "%}", "{{ 'a' }} {%- b -%}") + g.data()
	return "{%" + g.rarer("raw") + " raw " + g.pick("", "", "-") + "%}" + inside +
		"{%" + g.pick("", "", "-", "+") + " endraw " + g.pick("", "", "-", "+") + "%}"
}

func (g *generator) commentStatement(int) string {
	g.use("statement:comment")
	return "{#" + g.rarer("#") + g.pick(" c ", "", "\n", " {{ x }} {% if %} ", " # ", " '") + g.pick("", " -", "-", "+") + "#}"
}

func (g *generator) generationStatement(depth int) string {
	g.use("statement:generation")
	return g.tag("generation") + g.inner(depth) + g.tag("endgeneration")
}

func (g *generator) namespaceStatement(depth int) string {
	g.use("global:namespace")
	typ := g.resolve("value")
	def := g.tag("set ns = namespace(v=" + g.expr(typ, 2, 1) + ", count=0)")
	g.bind("ns", "namespace")
	var b strings.Builder
	b.WriteString(def)
	b.WriteString(g.data())
	g.use("statement:set")
	g.use("target:namespace")
	switch g.rng.IntN(4) {
	case 0:
		b.WriteString(g.tag("set ns.v = " + g.expr(typ, 2, 1)))
	case 1:
		if g.old {
			b.WriteString(g.tag("set ns.count = " + g.expr("int", 2, 1)))
		} else {
			g.use("target:tuple")
			b.WriteString(g.tag("set ns.v, ns.count = " + g.expr(typ, 2, 1) + ", ns.count + 1"))
		}
	case 2:
		g.use("statement:for")
		b.WriteString(g.tag("for q in "+g.expr("list", 2, levelPostfix)) + g.tag("set ns.count = ns.count + 1") + g.output("ns.count") + g.tag("endfor"))
	default:
		g.use("statement:set block")
		b.WriteString(g.tag("set ns.v") + g.inner(depth) + g.tag("endset"))
	}
	b.WriteString(g.output(g.pick("ns.v", "ns.count", "ns['v']", "ns.v is defined", "ns.nope", "ns.nope is defined", "[ns.v, ns.count]", "ns.v|string")))
	return b.String()
}

func (g *generator) forStatement(depth int) string {
	g.use("statement:for")
	names := len(g.names)
	var target, over string
	var bound []binding
	switch g.rng.IntN(8) {
	case 0:
		g.use("target:tuple")
		typ := g.pick("dint", "dstr", "dany")
		over = g.expr(typ, 1, levelPostfix) + g.pick(".items()", "|items", "|dictsort")
		target, bound = "k, v", []binding{{"k", "str"}, {"v", elementOf[typ]}}
	case 1:
		g.use("target:tuple")
		n := 1 + g.rng.IntN(3)
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf("(%s, [%s, %s])", g.expr("str", 1, 1), g.expr("int", 1, 1), g.expr("value", 1, 1))
		}
		over = "[" + strings.Join(items, ", ") + "]"
		target, bound = g.pick("a, (b, c)", "a,(b,c)", "(a, (b, c))"), []binding{{"a", "str"}, {"b", "int"}, {"c", "any"}}
	case 2:
		over = g.expr("str", 1, levelPostfix)
		target, bound = "ch", []binding{{"ch", "str"}}
	case 3:
		over = "messages"
		target, bound = "message", []binding{{"message", "message"}}
	default:
		typ := g.resolve("iter")
		over = g.expr(typ, 2, levelPostfix)
		name := g.newName()
		target, bound = name, []binding{{name, elementOf[typ]}}
	}
	head := "for " + target + " in " + over
	loops := g.inLoop
	if g.chance(250) {
		g.use("statement:for filter")
		g.names = append(g.names, bound...)
		g.inLoop = 0
		head += " if " + g.expr("bool", 2, 2)
		g.inLoop = loops
		g.names = g.names[:names]
	}
	g.names = append(g.names, bound...)
	g.inLoop++
	var b strings.Builder
	b.WriteString(g.tag(head))
	if g.chance(250) {
		use := g.pick("break", "continue")
		g.use("statement:" + use)
		b.WriteString(g.tag("if "+g.expr("bool", 2, 1)) + g.data() + g.tag(use) + g.pick("", "never") + g.tag("endif"))
	}
	b.WriteString(g.inner(depth))
	if g.chance(300) {
		b.WriteString(g.data() + g.output(g.loopPart()))
	}
	g.inLoop--
	g.names = g.names[:names]
	if g.chance(200) {
		g.use("statement:for else")
		b.WriteString(g.tag("else") + g.inner(depth))
	}
	b.WriteString(g.tag("endfor"))
	return b.String()
}

// loopPart is an expression of the loop variable.
func (g *generator) loopPart() string {
	r := loopRows[g.rng.IntN(len(loopRows))]
	text, _ := g.row(r, 1)
	return text
}

func (g *generator) macroStatement(depth int) string {
	g.use("statement:macro")
	g.fresh++
	m := macroShape{name: g.pick("m", "render", "mac") + strconv.Itoa(g.fresh)}
	var params []string
	for i := range g.rng.IntN(4) {
		p := binding{[]string{"p", "q", "arg", "last"}[i], g.valueType()}
		m.params = append(m.params, p)
		if m.defaults > 0 || g.chance(400) {
			m.defaults++
			g.use("macro:default")
			names := len(g.names)
			if g.chance(500) {
				g.names = append(g.names, m.params[:i]...)
			}
			params = append(params, p.name+"="+g.expr(p.typ, 1, 1))
			g.names = g.names[:names]
		} else {
			params = append(params, p.name)
		}
	}
	t := g.tag("macro " + m.name + "(" + strings.Join(params, ", ") + ")")
	names, loops, size := len(g.names), g.inLoop, len(g.macros)
	g.inLoop = 0
	g.names = append(g.names, m.params...)
	body := g.body(depth-1, 1+g.rng.IntN(2))
	if g.chance(350) {
		g.use("macro:caller")
		m.callsCaller = true
		var args []string
		for range g.rng.IntN(3) {
			typ := g.valueType()
			m.callerParams = append(m.callerParams, typ)
			args = append(args, g.expr(typ, 1, 1))
		}
		call := g.output("caller("+strings.Join(args, ", ")+")") + g.data()
		if g.chance(300) {
			call += g.output("caller(" + strings.Join(args, ", ") + ")|upper")
		}
		body += call
	}
	g.names, g.inLoop, g.macros = g.names[:names], loops, g.macros[:size]
	g.macros = append(g.macros, m)
	t += body + g.tag("endmacro")
	if !m.callsCaller {
		t += g.data() + g.output(g.macroCall(m))
	} else {
		t += g.data() + g.callOf(m, depth)
	}
	return t
}

func (g *generator) macroCall(m macroShape) string {
	g.use("call:macro")
	var args []string
	named := false
	for i, p := range m.params {
		if i >= len(m.params)-m.defaults && g.chance(300) {
			named = true
			continue
		}
		v := g.expr(p.typ, 1, 1)
		if named || g.chance(250) {
			named = true
			g.use("call:keyword")
			v = p.name + "=" + v
		}
		args = append(args, v)
	}
	return m.name + "(" + strings.Join(args, ", ") + ")"
}

// callOf is a call block of a macro.
func (g *generator) callOf(m macroShape, depth int) string {
	g.use("statement:call")
	call := g.macroCall(m)
	names, loops := len(g.names), g.inLoop
	g.inLoop = 0
	params := ""
	if len(m.callerParams) > 0 {
		g.use("statement:call arguments")
		var list []string
		for i, typ := range m.callerParams {
			name := []string{"u", "v", "w2"}[i]
			g.bind(name, typ)
			list = append(list, name)
		}
		if g.chance(150) {
			list = append(list, "more="+g.expr("value", 1, 1))
			g.bind("more", "any")
		}
		params = "(" + strings.Join(list, ", ") + ")"
	}
	body := g.inner(depth)
	g.names, g.inLoop = g.names[:names], loops
	return g.tag("call"+params+" "+call) + body + g.tag("endcall")
}

// callStatement calls a macro that is there, or makes one that wraps its caller.
func (g *generator) callStatement(depth int) string {
	for _, m := range g.macros {
		if m.callsCaller && g.chance(700) {
			return g.callOf(m, depth)
		}
	}
	g.fresh++
	g.use("statement:macro")
	g.use("macro:caller")
	typ := g.valueType()
	m := macroShape{name: "wrap" + strconv.Itoa(g.fresh), callsCaller: true, callerParams: []string{typ}}
	loops := g.inLoop
	g.inLoop = 0
	body := g.data() + "[" + g.output("caller("+g.expr(typ, 2, 1)+")") + "]" + g.data()
	g.inLoop = loops
	g.macros = append(g.macros, m)
	return g.tag("macro "+m.name+"()") + body + g.tag("endmacro") + g.callOf(m, depth)
}
