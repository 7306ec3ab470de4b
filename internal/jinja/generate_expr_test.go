package jinja

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

// The precedences of expressions, from the loosest.
const (
	levelNot     = 4
	levelUnary   = 10
	levelFilter  = 11
	levelPostfix = 12
)

// wider are types that stand for a choice of others.
var wider = map[string][]string{
	"value":  {"str", "str", "str", "int", "int", "float", "bool", "none", "lstr", "lint", "lnum", "lany", "lrec", "dint", "dstr", "dany", "rec", "tuple"},
	"any":    {"str", "str", "str", "markup", "int", "int", "float", "bool", "none", "lstr", "lint", "lnum", "lany", "llint", "lrec", "dint", "dany", "dmix", "rec", "tuple", "maybe", "unsure", "json", "lpair"},
	"list":   {"lstr", "lint", "lnum", "lany", "llint", "lrec"},
	"iter":   {"lstr", "lint", "lnum", "lany", "llint", "lrec", "xstr", "xint", "xany", "xrec", "range"},
	"sized":  {"str", "lstr", "lint", "lany", "dint", "dstr", "rec", "tuple", "range", "markup", "view"},
	"num":    {"int", "int", "float", "float", "bool"},
	"istr":   {"lstr", "lstr", "xstr", "str"},
	"iint":   {"lint", "lint", "xint", "range"},
	"irec":   {"lrec", "lrec", "xrec"},
	"dict":   {"dint", "dstr", "dany", "rec"},
	"scalar": {"str", "int", "float", "bool", "none"},
}

// elementOf tells what going through a type gives.
var elementOf = map[string]string{
	"lstr": "str", "lint": "int", "lnum": "num", "lany": "any", "llint": "lint", "lrec": "rec",
	"xstr": "str", "xint": "int", "xany": "any", "xrec": "rec", "range": "int",
	"dint": "int", "dstr": "str", "dany": "any",
}

// A row is a form of expression. Its pattern holds <type> or <type:level> for an
// expression, <type!> for one that takes a postfix, the name of a special part
// likewise, «optional parts» and ‹this¦that›.
type row struct {
	result  string
	level   int
	uses    []string
	pattern string
	since   bool // differs in Jinja2 3.1.2
	name    string
	args    string // of a filter, within parentheses
}

var (
	allRows   []*row // but those of loops
	rowsOf    = map[string][]*row{}
	loopRows  []*row
	filtersOf = map[string][]*row{} // by what they take
	testsOf   = map[string][]*row{}
	odd       []string
)

func init() {
	lines := func(table string, columns int, each func(c []string)) {
		for line := range strings.Lines(strings.TrimSpace(table)) {
			if line = strings.TrimSpace(line); line != "" {
				c := strings.SplitN(line, " ", columns)
				if len(c) != columns {
					panic("a row too short: " + line)
				}
				each(c)
			}
		}
	}
	add := func(r *row) {
		allRows = append(allRows, r)
		rowsOf[r.result] = append(rowsOf[r.result], r)
	}
	since := func(name *string) bool {
		n, ok := strings.CutPrefix(*name, "+")
		*name = n
		return ok
	}
	lines(filterTable, 4, func(c []string) {
		r := &row{result: c[1], level: levelFilter, since: since(&c[2]), uses: []string{"filter:" + c[2]}, name: c[2]}
		r.pattern = "<" + c[0] + ":11>" + "‹|¦|¦|¦ | ¦| ›" + c[2]
		if c[3] != "-" {
			r.args = "(" + c[3] + ")"
			r.pattern += r.args
		}
		add(r)
		filtersOf[c[0]] = append(filtersOf[c[0]], r)
	})
	lines(methodTable, 4, func(c []string) {
		r := &row{result: c[1], level: levelPostfix, since: since(&c[2]), name: c[2]}
		r.pattern = "<" + c[0] + "!>." + c[2]
		kind := map[string]string{"lstr": "list", "lint": "list", "lany": "list", "list": "list", "dint": "dict", "dstr": "dict", "dany": "dict", "rec": "dict", "bool": "int", "markup": "str"}
		owner := c[0]
		if k, ok := kind[owner]; ok {
			owner = k
		}
		r.uses = []string{owner + "." + c[2]}
		switch c[3] {
		case "attribute":
		case "-":
			r.pattern += "()"
		default:
			r.pattern += "(" + c[3] + ")"
		}
		add(r)
	})
	lines(testTable, 3, func(c []string) {
		r := &row{result: "bool", level: levelNot, since: since(&c[1]), uses: []string{"test:" + c[1]}, name: c[1]}
		not := "‹¦¦ not›"
		r.pattern = "<" + c[0] + ":11> is" + not + " " + c[1]
		if c[2] != "-" {
			r.args = ", " + c[2]
			r.pattern += "(" + c[2] + ")"
		}
		testsOf[c[0]] = append(testsOf[c[0]], r)
		if c[1][0] >= 'a' {
			add(r)
			if c[2] != "-" && strings.HasPrefix(c[2], "<") {
				bare := *r
				bare.uses = append([]string{"test without parentheses"}, r.uses...)
				bare.pattern = "<" + c[0] + ":11> is" + not + " " + c[1] + " " + strings.Replace(c[2], ">", "?>", 1)
				add(&bare)
			}
		}
	})
	general := func(c []string) *row {
		level, err := strconv.Atoi(c[1])
		if err != nil {
			panic(err)
		}
		r := &row{result: c[0], level: level, since: since(&c[2]), pattern: c[3]}
		if c[2] != "-" {
			r.uses = strings.Split(c[2], ",")
		}
		return r
	}
	lines(expressionTable, 4, func(c []string) { add(general(c)) })
	odd = strings.Split(strings.TrimSpace(oddTable), "\n{")
	for i := range odd[1:] {
		odd[i+1] = "{" + odd[i+1]
	}
	lines(loopTable, 4, func(c []string) { loopRows = append(loopRows, general(c)) })
}

// resolve picks a type that t stands for.
func (g *generator) resolve(t string) string {
	for {
		c, ok := wider[t]
		if !ok {
			return t
		}
		t = c[g.rng.IntN(len(c))]
	}
}

// expr makes an expression of a type that binds at least as tightly as level.
func (g *generator) expr(t string, depth, level int) string {
	if g.chance(g.wrong) {
		t = "any"
	}
	if t == "any" && g.chance(150) {
		if name, ok := g.anyName(); ok {
			return name
		}
	}
	t = g.resolve(t)
	var text string
	var got int
	rows := rowsOf[t]
	switch {
	case g.inLoop > 0 && g.chance(120):
		if text, got = g.loopOf(t, depth); text != "" {
			break
		}
		fallthrough
	default:
		if len(rows) == 0 || depth <= 0 || g.chance(350) {
			if text, got = g.leaf(t); text != "" {
				break
			}
		}
		if len(rows) == 0 {
			panic("nothing of type " + t)
		}
		r := rows[g.rng.IntN(len(rows))]
		for tries := 0; g.old && r.since && tries < 20; tries++ {
			r = rows[g.rng.IntN(len(rows))]
		}
		text, got = g.row(r, depth-1)
	}
	if g.chance(30) {
		return "(" + text + ")"
	}
	return wrap(text, got, level)
}

func wrap(text string, got, level int) string {
	if got < level {
		return "(" + text + ")"
	}
	return text
}

func (g *generator) row(r *row, depth int) (string, int) {
	for _, u := range r.uses {
		g.use(u)
	}
	return g.expand(r.pattern, depth), r.level
}

// loopOf is an expression of the loop variable, of type t if there is one.
func (g *generator) loopOf(t string, depth int) (string, int) {
	r := loopRows[g.rng.IntN(len(loopRows))]
	if r.result != t {
		return "", 0
	}
	return g.row(r, depth-1)
}

// expand fills in a pattern.
func (g *generator) expand(p string, depth int) string {
	var b strings.Builder
	for len(p) > 0 {
		switch {
		case strings.HasPrefix(p, "«"):
			inside, rest := matching(p, "«", "»")
			if g.chance(500) {
				b.WriteString(g.expand(inside, depth))
			}
			p = rest
		case strings.HasPrefix(p, "‹"):
			inside, rest := matching(p, "‹", "›")
			choices := alternatives(inside)
			b.WriteString(g.expand(choices[g.rng.IntN(len(choices))], depth))
			p = rest
		case p[0] == '<' && len(p) > 1 && p[1] >= 'a' && p[1] <= 'z':
			end := strings.IndexByte(p, '>')
			hole := p[1:end]
			p = p[end+1:]
			level := 1
			if h, ok := strings.CutSuffix(hole, "!"); ok {
				hole, level = h, levelPostfix
			} else if h, ok := strings.CutSuffix(hole, "?"); ok {
				// A text that begins with a parenthesis would be taken for arguments.
				text := g.hole(h, depth, levelPostfix)
				if text[0] == '(' {
					text = "(" + text + ")"
				}
				b.WriteString(text)
				continue
			} else if h, l, ok := strings.Cut(hole, ":"); ok {
				hole = h
				level, _ = strconv.Atoi(l)
			}
			b.WriteString(g.hole(hole, depth, level))
		default:
			b.WriteByte(p[0])
			p = p[1:]
		}
	}
	return strings.ReplaceAll(b.String(), "(, ", "(")
}

func matching(p, open, end string) (inside, rest string) {
	depth := 0
	for i := 0; i < len(p); i++ {
		switch {
		case strings.HasPrefix(p[i:], open):
			depth++
		case strings.HasPrefix(p[i:], end):
			if depth--; depth == 0 {
				return p[len(open):i], p[i+len(end):]
			}
		}
	}
	panic("unbalanced: " + p)
}

func alternatives(p string) []string {
	var list []string
	depth, start := 0, 0
	for i := range p {
		switch {
		case strings.HasPrefix(p[i:], "‹"):
			depth++
		case strings.HasPrefix(p[i:], "›"):
			depth--
		case depth == 0 && strings.HasPrefix(p[i:], "¦"):
			list = append(list, p[start:i])
			start = i + len("¦")
		}
	}
	return append(list, p[start:])
}

// hole makes a special part, or an expression of a type.
func (g *generator) hole(hole string, depth, level int) string {
	small := func(from, to int) string {
		n := from + g.rng.IntN(to-from+1)
		if n < 0 && level > levelUnary {
			return fmt.Sprintf("(%d)", n)
		}
		return strconv.Itoa(n)
	}
	switch hole {
	case "w":
		return small(0, 16)
	case "n":
		return small(0, 5)
	case "npos":
		return small(1, 5)
	case "k":
		return small(-4, 4)
	case "nz":
		return wrap(g.pick("1", "2", "3", "7", "10", "-2", "-3", "64"), levelUnary, level)
	case "ch":
		return g.quote(g.pick("*", " ", "é", "0", "日", "-", "<", "'"))
	case "chars":
		return g.quote(g.pick("a", " ", "ab", "xyz", " \n", "é", "aeiou", "<>", "B", "--", "", "日本", "'\""))
	case "sub":
		return g.quote(g.pick("a", "e", "an", " ", "\n", "l", "o", "B", "é", "", "1", "<b>", "-", "apple", "日"))
	case "sep":
		return g.quote(g.pick(",", " ", "a", ", ", "-", "\n", "e", "--", "é", "an"))
	case "key":
		return g.quote(g.key())
	case "attr":
		return g.quote(g.pick("name", "n", "f", "ok", "sub.k", "name", "n"))
	case "optattr":
		return g.quote(g.pick("opt", "nope", "sub.nope", "name", "n"))
	case "strattr":
		return g.quote(g.pick("name", "sub.k"))
	case "numattr":
		return g.quote(g.pick("n", "f", "ok"))
	case "sortattr":
		return g.quote(g.pick("name", "n", "f", "ok", "sub.k", "name,n", "n,name", "ok,f,name"))
	case "aname":
		return g.pick("a", "b", "key", "x", "name", "if_")
	case "fmtcall":
		return g.formatCall(depth)
	case "percent":
		f, args := g.percents(depth)
		return f + " % (" + strings.Join(args, ", ") + ",)"
	case "fmtfilter":
		f, args := g.percents(depth)
		return f + "|format(" + strings.Join(args, ", ") + ")"
	case "strf":
		return g.quote(g.strftime())
	case "jsonargs":
		return g.jsonArgs(depth)
	case "mapstr":
		return g.mapArgs("str", depth)
	case "mapany":
		return g.mapArgs(g.pick("value", "any", "float"), depth)
	case "teststr":
		return g.testArgs(g.pick("str", "str", "scalar", "any"), depth)
	case "testint":
		return g.testArgs(g.pick("int", "num", "scalar", "any"), depth)
	case "testany":
		return g.testArgs("any", depth)
	case "attrtest":
		switch g.rng.IntN(3) {
		case 0:
			return g.hole("numattr", depth, 1) + ", " + g.testArgs("num", depth)
		case 1:
			return g.hole("strattr", depth, 1) + ", " + g.testArgs("str", depth)
		default:
			return g.hole("optattr", depth, 1) + ", " + g.quote(g.pick("defined", "undefined", "none", "string"))
		}
	case "slicing":
		return g.slicing(depth)
	case "stringlit":
		return g.quote(g.text())
	case "adjacent":
		return g.quote(g.text()) + " " + g.quote(g.word())
	case "numberlit":
		return wrap(g.number(), levelUnary, level)
	case "numtext":
		return g.quote(g.pick("12", " 12 ", "1_000", "0x1f", "-0b11", "+5", "+-5", "1.5", "1e3", "nan", "-inf", "٣٤", "", " ", "_1", "zz", "1e400", "0", "-0", "007", "12.", ".5", "9223372036854775808", "1e19", "½", "0x", "1\u00a0"))
	case "macro":
		if len(g.macros) > 0 {
			m := g.macros[g.rng.IntN(len(g.macros))]
			if !m.callsCaller {
				return g.macroCall(m)
			}
		}
		return "'no macro'"
	}
	return g.expr(hole, depth, level)
}

// mapArgs are the arguments that make map apply a filter to each of a type.
func (g *generator) mapArgs(t string, depth int) string {
	rows := filtersOf[t]
	r := rows[g.rng.IntN(len(rows))]
	for tries := 0; (g.old && r.since || strings.HasPrefix(r.result, "x")) && tries < 50; tries++ {
		r = rows[g.rng.IntN(len(rows))]
	}
	g.use("map:" + r.name)
	args := strings.Trim(r.args, "()")
	if r.args != "" {
		full := g.expand(r.args, depth)
		args = full[1 : len(full)-1]
	}
	if args == "" {
		return g.quote(r.name)
	}
	return g.quote(r.name) + ", " + args
}

func (g *generator) testArgs(t string, depth int) string {
	rows := testsOf[t]
	r := rows[g.rng.IntN(len(rows))]
	g.use("test:" + r.name)
	return g.quote(r.name) + g.expand(r.args, depth)
}

func (g *generator) slicing(depth int) string {
	g.use("operator:slice")
	part := func() string {
		if g.chance(400) {
			return ""
		}
		if g.chance(100) {
			return "none"
		}
		return g.hole("k", depth, 1)
	}
	t := part() + ":" + part()
	if g.chance(400) {
		step := g.pick("1", "2", "-1", "-2", "3", "", "none", "7")
		if g.chance(10) {
			step = "0"
		}
		t += ":" + step
	}
	return t
}

// Names.

func (g *generator) visible(want func(typ string) bool) (string, bool) {
	var found []string
	shadowed := map[string]bool{}
	for i := len(g.names) - 1; i >= 0; i-- {
		b := g.names[i]
		if shadowed[b.name] {
			continue
		}
		shadowed[b.name] = true
		if want(b.typ) {
			found = append(found, b.name)
		}
	}
	if len(found) == 0 {
		return "", false
	}
	// The younger the likelier.
	n := min(g.rng.IntN(len(found)), g.rng.IntN(len(found)))
	return found[n], true
}

func (g *generator) anyName() (string, bool) {
	return g.visible(func(string) bool { return true })
}

// leaf is a name or a literal of a type; "" if there is none.
func (g *generator) leaf(t string) (string, int) {
	if g.chance(550) {
		if name, ok := g.visible(func(typ string) bool { return typ == t }); ok {
			return name, levelPostfix
		}
	}
	items := func(n int, item func() string) string {
		list := make([]string, g.rng.IntN(n))
		for i := range list {
			list[i] = item()
		}
		return strings.Join(list, ", ")
	}
	quoted := func() string { return g.quote(g.word()) }
	digit := func() string { return strconv.Itoa(g.rng.IntN(12)) }
	switch t {
	case "str":
		g.use("literal:str")
		return g.quote(g.text()), levelPostfix
	case "markup":
		g.use("filter:safe")
		return g.quote(g.pick("<b>x</b>", "a & b", "&amp; &#39; &lt;", "plain", "<i>Don't</i>")) + "|safe", levelFilter
	case "int":
		g.use("literal:int")
		if g.chance(600) {
			return digit(), levelPostfix
		}
		return g.integerLiteral()
	case "float":
		g.use("literal:float")
		return g.floatLiteral(), levelPostfix
	case "bool":
		g.use("literal:bool")
		return g.pick("true", "false", "True", "False"), levelPostfix
	case "none":
		g.use("literal:none")
		return g.pick("none", "None"), levelPostfix
	case "lstr":
		g.use("literal:list")
		return "[" + items(5, quoted) + "]", levelPostfix
	case "lint":
		g.use("literal:list")
		return "[" + items(6, digit) + "]", levelPostfix
	case "lnum":
		g.use("literal:list")
		return "[" + items(5, func() string { return g.pick(digit(), g.floatLiteral(), "-"+digit(), "true") }) + "]", levelPostfix
	case "lany":
		g.use("literal:list")
		return "[" + items(5, func() string { return g.expr("scalar", 0, 1) }) + "]", levelPostfix
	case "llint":
		g.use("literal:list")
		return "[" + items(4, func() string { return "[" + items(4, digit) + "]" }) + "]", levelPostfix
	case "lpair":
		g.use("literal:tuple")
		return "[" + items(4, func() string { return "(" + quoted() + ", " + digit() + ")" }) + "]", levelPostfix
	case "lrec":
		return "lr", levelPostfix
	case "rec":
		g.use("literal:dict")
		return fmt.Sprintf("{'name': %s, 'n': %s, 'f': %s, 'ok': true, 'sub': {'k': %s, 'l': [%s, %s]}}", quoted(), digit(), g.floatLiteral(), quoted(), digit(), quoted()), levelPostfix
	case "tuple":
		g.use("literal:tuple")
		return g.pick("(1, 'a')", "()", "(s,)", "(1, (2, 3))", "('x', none, 1.5)", "(1, 2, 3, 4)"), levelPostfix
	case "dint":
		g.use("literal:dict")
		return "{" + items(5, func() string { return g.quote(g.key()) + ": " + digit() }) + "}", levelPostfix
	case "dstr":
		g.use("literal:dict")
		return "{" + items(5, func() string { return g.quote(g.key()) + ": " + g.quote(g.word()) }) + "}", levelPostfix
	case "dany":
		g.use("literal:dict")
		return "{" + items(5, func() string { return g.quote(g.key()) + ": " + g.expr("scalar", 0, 1) }) + "}", levelPostfix
	case "dmix":
		g.use("literal:dict")
		return "{" + items(6, func() string {
			return g.pick("1", "true", "none", "'1'", "-3", "false", "0") + ": " + g.expr("scalar", 0, 1)
		}) + "}", levelPostfix
	case "range":
		g.use("global:range")
		return g.pick("range(3)", "range(0)", "range(1, 7, 2)", "range(5, 0, -1)", "range(-2, 2)"), levelPostfix
	case "json":
		return "tools", levelPostfix
	case "messages":
		return t, levelPostfix
	case "message":
		return "(messages|first|default({'role': 'user', 'content': 'hi'}))", levelPostfix
	case "unsure":
		return g.pick("nope", "missing_one", "r.nope", "dx['none such']", "ls[99]", "r.sub.zz"), levelPostfix
	case "namespace":
		return "namespace(v=1)", levelPostfix
	case "xint":
		return g.pick("range(4)", "[3, 1, 2]|map('int')"), levelFilter
	case "xstr":
		return g.pick("lw|map('upper')", "lw|select", "'abc'|reverse|map('lower')"), levelFilter
	case "xany":
		return g.pick("lx|select('defined')", "lx|reject('undefined')", "dx.values()"), levelFilter
	case "xrec":
		return g.pick("lr|selectattr('ok')", "lr|rejectattr('ok')", "lr|reject('none')"), levelFilter
	}
	return "", 0
}

func (g *generator) integerLiteral() (string, int) {
	n, _ := g.integer().(int64)
	n = max(n, -math.MaxInt64) // its digits are those of an int64
	t := strings.TrimPrefix(strconv.FormatInt(n, 10), "-")
	if g.chance(250) {
		return "-" + t, levelUnary
	}
	return t, levelPostfix
}

func (g *generator) number() string {
	if g.chance(400) {
		return g.floatLiteral()
	}
	t, _ := g.integerLiteral()
	return t
}

func (g *generator) floatLiteral() string {
	return g.pick("0.5", "1.0", "2.5", "3.14159", "1e3", "1.5e-7", "2E+2", "0.1", "100.0", "1e16", "123456789.125", "1e22", "5e-324", "0.0", "7.25")
}

// quote writes a string as a literal, in one of many ways.
func (g *generator) quote(s string) string {
	q := g.pick("'", "'", "\"")
	var b strings.Builder
	b.WriteString(q)
	for _, r := range s {
		switch {
		case string(r) == q || r == '\\':
			b.WriteString("\\" + string(r))
		case r == '\n' && g.chance(800):
			b.WriteString("\\n")
		case r == '\t' && g.chance(500):
			b.WriteString("\\t")
		case r == '\r' || r == 0:
			fmt.Fprintf(&b, "\\x%02x", r)
		case g.chance(30):
			g.use("literal:escape")
			switch {
			case r < 256 && g.chance(500):
				fmt.Fprintf(&b, "\\x%02x", r)
			case r < 1<<16 && g.chance(700):
				fmt.Fprintf(&b, "\\u%04x", r)
			default:
				fmt.Fprintf(&b, "\\U%08X", r)
			}
		default:
			b.WriteRune(r)
		}
	}
	if g.chance(20) {
		g.use("literal:escape")
		b.WriteString(g.pick("\\q", "\\a\\b\\f\\v", "\\'\\\"", "\\-"))
	}
	b.WriteString(q)
	return b.String()
}

// Formats.

// formatted is an expression, and the directive of a format that suits it.
func (g *generator) formatted(depth int) (e, directive string) {
	kind := g.pick("int", "float", "str", "str", "value")
	directive = "s"
	if kind == "int" {
		directive = "d"
	}
	g.use("format:" + directive)
	return g.expr(kind, min(depth, 1), 1), directive
}

// formatCall is a call of str.format, of fields that are named or not.
func (g *generator) formatCall(depth int) string {
	var f strings.Builder
	var args, named []string
	for range 1 + g.rng.IntN(4) {
		f.WriteString(g.pick("", "", " ", "a", "{{", "}}", "|", "é", ", "))
		e, spec := g.formatted(depth)
		if spec == "s" || g.chance(500) {
			spec = ""
		} else {
			spec = ":" + spec
		}
		switch {
		case g.chance(200):
			g.use("format:name")
			name := string(rune('a' + len(named)))
			named = append(named, name+"="+e)
			f.WriteString("{" + name + spec + "}")
		default:
			args = append(args, e)
			f.WriteString("{" + spec + "}")
		}
	}
	return g.quote(f.String()) + ".format(" + strings.Join(append(args, named...), ", ") + ")"
}

// percents are a format and its values.
func (g *generator) percents(depth int) (f string, args []string) {
	for range 1 + g.rng.IntN(3) {
		e, directive := g.formatted(depth)
		f += g.pick("", " ", "a", "%%", "é", ": ") + "%" + directive
		args = append(args, e)
	}
	return g.quote(f), args
}

// directives are those of strftime that this package has.
const directives = "aAbBdHIjmMpSyY%"

func (g *generator) strftime() string {
	var b strings.Builder
	for range 1 + g.rng.IntN(9) {
		b.WriteString(g.pick("", " ", "-", "T", "é", ":"))
		d := string(directives[g.rng.IntN(len(directives))])
		g.use("strftime:%" + d)
		flag := ""
		if strings.Contains("dHImMS", d) && g.chance(120) {
			flag = "-"
		}
		b.WriteString("%" + flag + d)
	}
	return b.String()
}

// jsonArgs are the arguments of tojson, after an opening parenthesis.
func (g *generator) jsonArgs(depth int) string {
	if g.chance(250) {
		g.use("tojson:positional")
		list := []string{g.pick("true", "false"), g.pick("none", "2", "0"), g.pick("none", "(',', ':')"), g.pick("true", "false")}
		return strings.Join(list[:1+g.rng.IntN(4)], ", ")
	}
	options := map[string][]string{
		"ensure_ascii": {"true", "false", "yes", "1", "none"},
		"indent":       {"0", "1", "2", "4", "none", "-1", "true", "li|length"},
		"separators":   {"(',', ':')", "none", "(s, t)", "(' ', '=')"},
		"sort_keys":    {"true", "false", "no"},
	}
	names := make([]string, 0, len(options))
	for name := range options {
		names = append(names, name)
	}
	sort.Strings(names)
	var args []string
	for _, name := range names {
		if g.chance(400) {
			g.use("tojson:" + name)
			args = append(args, name+"="+g.pick(options[name]...))
		}
	}
	g.rng.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
	return strings.Join(args, ", ")
}
