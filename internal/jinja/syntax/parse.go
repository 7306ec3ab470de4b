package syntax

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The parser is Jinja2 3.1.6's (parser.py), with the loopcontrols extension and the
// generation tag. It also finds the errors that there only the compilation of the
// Python made of a template does, as far as they are errors of form.

const (
	// maxSource is the length in bytes up to which a template is parsed.
	maxSource = 1 << 20
	// maxNesting bounds statements and brackets within each other, and maxChain the
	// operators, filters and the like of one chain, of which each nests those
	// before. Jinja2 in CPython 3.11 itself comes to 98 if, 74 brackets, 198
	// operators.
	maxNesting = 100
	maxChain   = 200
	// maxLoops is how many loops within each other CPython compiles.
	maxLoops = 20
)

type parser struct {
	lexer   lexer
	current token
	ahead   token // behind current, if it has been looked at
	nesting int
	// awaited are the end tags of the open statements, outermost first.
	awaited [][]string
	// loops is the number of loops of this function: of the template, or of the
	// innermost macro, call block or generation block.
	loops  int
	fors   int          // number of for statements around, in whatever function
	failed *syntaxError // the first error that does not end the parsing
}

// parse makes nodes of a source. Their places are those in the source with
// normalized newlines, which the function place takes.
func parse(source string) (root *templateNode, err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case syntaxError:
			root, err = nil, placeError(source, e)
		default:
			panic(e)
		}
	}()
	if len(source) > maxSource {
		return nil, exception.OverLimit("a template of more than %d bytes", maxSource)
	}
	if !utf8.ValidString(source) {
		return nil, exception.New("UnicodeDecodeError", "a template that is not UTF-8")
	}
	p := &parser{lexer: lexer{source: strings.TrimSuffix(normalizeNewlines(source), "\n")}}
	p.next()
	root = &templateNode{body: p.statements()}
	if p.failed != nil {
		return nil, placeError(source, *p.failed)
	}
	return root, nil
}

func placeError(source string, e syntaxError) error {
	var placed *exception.Error
	if errors.As(e.err, &placed) {
		placed.Line, placed.Col = place(source, e.at)
	}
	return e.err
}

// later keeps an error that Jinja2 finds only when the parsing is done.
func (p *parser) later(at Pos, err error) {
	if p.failed == nil {
		p.failed = &syntaxError{at, err}
	}
}

// next goes to the next token and returns the one before.
func (p *parser) next() token {
	t := p.current
	p.current, p.ahead = p.ahead, token{}
	if p.current.kind == "" {
		p.current = p.lexer.next()
	}
	return t
}

// look returns the token behind the current one.
func (p *parser) look() token {
	if p.ahead.kind == "" {
		p.ahead = p.lexer.next()
	}
	return p.ahead
}

func (p *parser) is(kinds ...string) bool { return slices.Contains(kinds, p.current.kind) }

func (t token) isWord(words ...string) bool {
	return t.kind == kindName && slices.Contains(words, t.text)
}

func (p *parser) word(words ...string) bool { return p.current.isWord(words...) }

func (p *parser) skipIf(kind string) bool {
	if p.current.kind != kind {
		return false
	}
	p.next()
	return true
}

func (p *parser) skipWord(word string) bool {
	if !p.word(word) {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(kind string) token {
	if p.current.kind != kind {
		p.expected(kind)
	}
	return p.next()
}

func (p *parser) expectWord(word string) {
	if !p.skipWord(word) {
		p.expected(word)
	}
}

func (p *parser) expected(what string) {
	failAt(p.current.at, "expected %q, got %q", what, p.current.describe())
}

// enter goes a level deeper, which leave ends.
func (p *parser) enter() {
	if p.nesting++; p.nesting > maxNesting {
		panic(syntaxError{p.current.at, exception.OverLimit("a template nested deeper than %d", maxNesting)})
	}
}

func (p *parser) leave() { p.nesting-- }

// A chain counts its links.
type chain int

func (c *chain) link(at Pos) {
	if *c++; *c > maxChain {
		panic(syntaxError{at, exception.OverLimit("a chain of more than %d", maxChain)})
	}
}

// statements parses up to one of the end tags, whose name is then the current
// token, or to the end of the template if there are none.
func (p *parser) statements(ends ...string) []Stmt {
	p.enter()
	defer p.leave()
	var body []Stmt
	var out *OutputStmt
	add := func(at Pos, item OutputItem) {
		if out == nil {
			out = &OutputStmt{Pos: at}
			body = append(body, out)
		}
		out.Items = append(out.Items, item)
	}
	for !p.is(kindEnd) {
		switch t := p.next(); t.kind {
		case kindData:
			add(t.at, OutputItem{Text: t.text})
		case kindVarBegin:
			add(t.at, OutputItem{Expr: p.tuple(anyExpr)})
			p.expect(kindVarEnd)
		case kindTagBegin:
			out = nil
			if p.word(ends...) {
				return body
			}
			body = append(body, p.statement())
			p.expect(kindTagEnd)
		}
	}
	return body
}

// block parses what stands between a tag, whose end is current, and one of the end
// tags, and returns that one's name, behind which it goes.
func (p *parser) block(ends ...string) ([]Stmt, string) {
	p.skipIf(":")
	p.expect(kindTagEnd)
	p.awaited = append(p.awaited, ends)
	body := p.statements(ends...)
	if p.is(kindEnd) {
		failAt(p.current.at, "unexpected end of template%s", p.looking())
	}
	p.awaited = p.awaited[:len(p.awaited)-1]
	return body, p.next().text
}

// function parses a block that is a function of its own to Python.
func (p *parser) function(end string) []Stmt {
	loops := p.loops
	p.loops = 0
	body, _ := p.block(end)
	p.loops = loops
	return body
}

func (p *parser) looking() string {
	if len(p.awaited) == 0 {
		return ""
	}
	return ", looking for " + strings.Join(p.awaited[len(p.awaited)-1], " or ")
}

func (p *parser) statement() Stmt {
	if !p.is(kindName) {
		failAt(p.current.at, "expected the name of a tag, got %q", p.current.describe())
	}
	at := p.current.at
	switch p.current.text {
	case "for":
		return p.forLoop()
	case "if":
		return p.ifs()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock()
	case "generation":
		p.next()
		return &GenerationStmt{Pos: at, Body: p.function("endgeneration")}
	case "break":
		p.inLoop()
		return &BreakStmt{at}
	case "continue":
		p.inLoop()
		return &ContinueStmt{at}
	case "block", "extends", "include", "import", "from", "autoescape", "filter", "print", "with":
		refuseAt(at, "the tag %s", p.current.text)
	}
	failAt(at, "unknown tag %q%s", p.current.text, p.looking())
	return nil
}

func (p *parser) inLoop() {
	if t := p.next(); p.loops == 0 {
		p.later(t.at, exception.New("SyntaxError", "%s outside of a loop", t.text))
	}
}

func (p *parser) forLoop() Stmt {
	s := &ForStmt{Pos: p.next().at}
	p.fors++
	s.Target = p.target(tupleForm{simple: true})
	p.expectWord("in")
	s.Iter = p.tuple(tupleForm{noCond: true})
	if p.skipWord("if") {
		s.Test = p.expression()
	}
	if p.word("recursive") {
		refuseAt(p.current.at, "a recursive loop")
	}
	around := p.loops
	if p.loops++; p.loops > maxLoops {
		p.later(s.Pos, exception.New("SyntaxError", "more than %d loops within each other", maxLoops))
	}
	var end string
	s.Body, end = p.block("endfor", "else")
	p.loops = around
	if end == "else" {
		s.Els, _ = p.block("endfor")
	}
	p.fors--
	return s
}

func (p *parser) ifs() Stmt {
	first := &IfStmt{Pos: p.next().at}
	for s := first; ; {
		s.Test = p.tuple(tupleForm{noCond: true})
		var end string
		s.Body, end = p.block("elif", "else", "endif")
		switch end {
		case "elif":
			s = &IfStmt{Pos: p.current.at}
			first.Elifs = append(first.Elifs, s)
			continue
		case "else":
			first.Els, _ = p.block("endif")
		}
		return first
	}
}

func (p *parser) set() Stmt {
	at := p.next().at
	target := p.target(tupleForm{simple: true, namespace: true})
	if p.skipIf("=") {
		return &SetStmt{Pos: at, Target: target, Value: p.tuple(anyExpr)}
	}
	s := &SetBlockStmt{Pos: at, Target: target}
	if p.is("|") {
		refuseAt(p.current.at, "a filter of a set block")
	}
	s.Body, _ = p.block("endset")
	return s
}

func (p *parser) macro() Stmt {
	s := &MacroStmt{Pos: p.next().at}
	s.Name = p.name().Name
	s.Params, s.Defaults = p.signature()
	s.Body = p.function("endmacro")
	return s
}

func (p *parser) callBlock() Stmt {
	s := &CallStmt{Pos: p.next().at}
	if p.is("(") {
		s.Params, s.Defaults = p.signature()
	}
	call, ok := p.expression().(*CallExpr)
	if !ok {
		failAt(s.Pos, "expected a call")
	}
	for _, arg := range call.Args.Named {
		if arg.Name == "caller" {
			p.later(s.Pos, exception.Unsupported("the argument caller given by a call block"))
		}
	}
	s.Call = call
	s.Body = p.function("endcall")
	return s
}

func (p *parser) signature() (params []*NameExpr, defaults []Expr) {
	var c chain
	p.expect("(")
	for !p.is(")") {
		if len(params) > 0 {
			p.expect(",")
		}
		param := p.name()
		c.link(param.Pos)
		for _, other := range params {
			if other.Name == param.Name {
				p.later(param.Pos, exception.New("SyntaxError", "a second parameter %s", param.Name))
			}
		}
		if p.skipIf("=") {
			defaults = append(defaults, p.expression())
		} else if len(defaults) > 0 {
			failAt(p.current.at, "a parameter without a default behind one with")
		}
		params = append(params, param)
	}
	p.expect(")")
	return params, defaults
}

// name parses the name of a macro or a parameter.
func (p *parser) name() *NameExpr {
	t := p.expect(kindName)
	n := &NameExpr{Pos: t.at, Name: t.text}
	p.assignable(n)
	return n
}

// target parses what a loop or a set assigns to.
func (p *parser) target(form tupleForm) Expr {
	t := p.tuple(form)
	p.assignable(t)
	if p.fors > 0 {
		p.notLoop(t)
	}
	return t
}

func (p *parser) notLoop(target Expr) {
	switch t := target.(type) {
	case *NameExpr:
		if t.Name == "loop" {
			p.later(t.Pos, exception.New("TemplateAssertionError", "cannot assign to loop within a loop"))
		}
	case *TupleExpr:
		for _, item := range t.Items {
			p.notLoop(item)
		}
	}
}

func (p *parser) assignable(e Expr) {
	switch e := e.(type) {
	case *NameExpr:
		switch e.Name {
		case "true", "false", "none", "True", "False", "None":
			failAt(e.Pos, "cannot assign to %s", e.Name)
		}
		return
	case *NsRefExpr:
		return
	case *TupleExpr:
		for _, item := range e.Items {
			p.assignable(item)
		}
		return
	}
	failAt(e.At(), "cannot assign to this expression")
}

// A tupleForm is the form of the items of a tuple without parentheses.
type tupleForm struct {
	simple    bool // names and literals only
	namespace bool // also x.y; with simple
	noCond    bool // no inline if
	parens    bool // stands in parentheses, so it may be empty
}

var anyExpr = tupleForm{}

// tuple parses an expression or, if commas follow, a tuple. No name ends one behind
// a comma: "for x, in y" is an error in Jinja2 too, against its intention.
func (p *parser) tuple(form tupleForm) Expr {
	at := p.current.at
	var items []Expr
	comma := false
	for {
		if len(items) > 0 {
			p.expect(",")
		}
		if p.is(kindVarEnd, kindTagEnd, ")") {
			break
		}
		switch {
		case form.simple:
			items = append(items, p.primary(form.namespace))
		case form.noCond:
			items = append(items, p.or())
		default:
			items = append(items, p.expression())
		}
		if !p.is(",") {
			break
		}
		comma = true
	}
	if !comma {
		if len(items) > 0 {
			return items[0]
		}
		if !form.parens {
			failAt(p.current.at, "expected an expression, got %q", p.current.describe())
		}
	}
	return &TupleExpr{Pos: at, Items: items}
}

// expression parses an expression with inline ifs.
func (p *parser) expression() Expr {
	p.enter()
	defer p.leave()
	at := p.current.at
	e := p.or()
	var c chain
	for p.skipWord("if") {
		c.link(at)
		cond := &CondExpr{Pos: at, Then: e}
		cond.Test = p.or()
		if p.skipWord("else") {
			cond.Els = p.expression()
		}
		e = cond
	}
	return e
}

func (p *parser) or() Expr {
	at := p.current.at
	e := p.and()
	var c chain
	for p.skipWord("or") {
		c.link(at)
		e = &BoolExpr{Pos: at, Left: e, Right: p.and()}
	}
	return e
}

func (p *parser) and() Expr {
	at := p.current.at
	e := p.not()
	var c chain
	for p.skipWord("and") {
		c.link(at)
		e = &BoolExpr{Pos: at, And: true, Left: e, Right: p.not()}
	}
	return e
}

func (p *parser) not() Expr {
	if !p.word("not") {
		return p.compare()
	}
	p.enter()
	defer p.leave()
	return &NotExpr{Pos: p.next().at, On: p.not()}
}

func (p *parser) compare() Expr {
	e := &CompareExpr{Pos: p.current.at}
	e.First = p.sum()
	for {
		op := p.current.kind
		switch op {
		case "==", "!=", "<", "<=", ">", ">=":
			p.next()
		default:
			switch {
			case p.skipWord("in"):
				op = "in"
			case p.word("not") && p.look().isWord("in"):
				p.next()
				p.next()
				op = "not in"
			case len(e.Rest) == 0:
				return e.First
			default:
				return e
			}
		}
		e.Rest = append(e.Rest, Operand{Op: op, On: p.sum()})
	}
}

func (p *parser) sum() Expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() Expr {
	e := &ConcatExpr{Pos: p.current.at}
	e.Items = append(e.Items, p.product())
	for p.skipIf("~") {
		e.Items = append(e.Items, p.product())
	}
	if len(e.Items) == 1 {
		return e.Items[0]
	}
	return e
}

func (p *parser) product() Expr { return p.binary(p.factor, "*", "/", "//", "%") }

func (p *parser) factor() Expr {
	e := p.unary(true)
	if p.is("**") {
		refuseAt(p.current.at, "the operator **")
	}
	return e
}

func (p *parser) binary(part func() Expr, ops ...string) Expr {
	at := p.current.at
	e := part()
	var c chain
	for p.is(ops...) {
		c.link(at)
		op := p.next().kind
		e = &BinaryExpr{Pos: at, Op: op, Left: e, Right: part()}
	}
	return e
}

// unary parses a sign, or none, before an operand. Filters and tests apply to what
// the outermost of some signs gives.
func (p *parser) unary(filtered bool) Expr {
	var e Expr
	if p.is("-", "+") {
		p.enter()
		t := p.next()
		e = &UnaryExpr{Pos: t.at, Op: t.kind, On: p.unary(false)}
		p.leave()
	} else {
		e = p.primary(false)
	}
	e = p.postfix(e)
	if filtered {
		e = p.filtered(e)
	}
	return e
}

func (p *parser) primary(namespace bool) Expr {
	t := p.current
	switch t.kind {
	case kindName:
		p.next()
		switch t.text {
		case "true", "True", "false", "False":
			return &ConstExpr{Pos: t.at, Value: t.text == "true" || t.text == "True"}
		case "none", "None":
			return &ConstExpr{Pos: t.at}
		}
		if namespace && p.skipIf(".") {
			return &NsRefExpr{Pos: t.at, Name: t.text, Attr: p.expect(kindName).text}
		}
		return &NameExpr{Pos: t.at, Name: t.text}
	case kindString:
		return &ConstExpr{Pos: t.at, Value: p.strings()}
	case kindInteger, kindFloat:
		p.next()
		return &ConstExpr{Pos: t.at, Value: t.value}
	case "(":
		p.next()
		e := p.tuple(tupleForm{parens: true})
		p.expect(")")
		return e
	case "[":
		return p.list()
	case "{":
		return p.dict()
	}
	failAt(t.at, "unexpected %q", t.describe())
	return nil
}

// strings joins the string literals that follow each other.
func (p *parser) strings() string {
	s := p.next().value.(string)
	if !p.is(kindString) {
		return s
	}
	all := []string{s}
	for p.is(kindString) {
		all = append(all, p.next().value.(string))
	}
	return strings.Join(all, "")
}

func (p *parser) list() Expr {
	e := &ListExpr{Pos: p.next().at}
	for !p.is("]") {
		if len(e.Items) > 0 {
			p.expect(",")
			if p.is("]") {
				break
			}
		}
		e.Items = append(e.Items, p.expression())
	}
	p.next()
	return e
}

func (p *parser) dict() Expr {
	e := &DictExpr{Pos: p.next().at}
	for !p.is("}") {
		if len(e.Keys) > 0 {
			p.expect(",")
			if p.is("}") {
				break
			}
		}
		e.Keys = append(e.Keys, p.expression())
		p.expect(":")
		e.Values = append(e.Values, p.expression())
	}
	p.next()
	return e
}

// postfix parses the attributes, items and calls behind e.
func (p *parser) postfix(e Expr) Expr {
	var c chain
	for {
		switch p.current.kind {
		case ".":
			e = p.attribute(e)
		case "[":
			e = p.subscript(e)
		case "(":
			e = p.call(e)
		default:
			return e
		}
		c.link(e.At())
	}
}

// filtered parses the filters, tests and calls behind e.
func (p *parser) filtered(e Expr) Expr {
	var c chain
	for {
		switch {
		case p.is("|"):
			e = p.filters(e)
		case p.word("is"):
			e = p.test(e)
		case p.is("("):
			e = p.call(e)
		default:
			return e
		}
		c.link(e.At())
	}
}

func (p *parser) attribute(on Expr) Expr {
	at := p.next().at
	switch t := p.next(); t.kind {
	case kindName:
		return &GetattrExpr{Pos: at, On: on, Name: t.text}
	case kindInteger:
		return &GetitemExpr{Pos: at, On: on, Key: &ConstExpr{Pos: t.at, Value: t.value}}
	default:
		failAt(t.at, "expected a name or a number, got %q", t.describe())
		return nil
	}
}

func (p *parser) subscript(on Expr) Expr {
	at := p.next().at
	if p.is("]") {
		refuseAt(at, "no subscript")
	}
	e := &GetitemExpr{Pos: at, On: on, Key: p.key()}
	if p.is(",") {
		refuseAt(at, "several subscripts")
	}
	p.expect("]")
	return e
}

// key parses what stands in brackets: an expression or a slice.
func (p *parser) key() Expr {
	s := &SliceExpr{Pos: p.current.at}
	if !p.is(":") {
		e := p.expression()
		if !p.is(":") {
			return e
		}
		s.Start = e
	}
	p.next()
	s.Stop = p.bound()
	if p.skipIf(":") {
		s.Step = p.bound()
	}
	return s
}

// bound parses a part of a slice, which may be missing. Behind the step no colon
// may come; the subscript sees to that.
func (p *parser) bound() Expr {
	if p.is(":", "]", ",") {
		return nil
	}
	return p.expression()
}

// reservedArgs are the names that Jinja2's own function for a call has parameters
// of, or takes out of the arguments.
var reservedArgs = []string{"_loop_vars", "_block_vars", "__self", "__context", "__obj"}

func (p *parser) call(fn Expr) Expr {
	e := &CallExpr{Pos: p.current.at, Fn: fn}
	e.Args = p.args()
	for _, arg := range e.Args.Named {
		if slices.Contains(reservedArgs, arg.Name) {
			p.later(e.Pos, exception.Unsupported("an argument of the name %s", arg.Name))
		}
	}
	return e
}

func (p *parser) args() ArgExprs {
	var a ArgExprs
	open := p.expect("(")
	for first := true; !p.is(")"); first = false {
		if !first {
			p.expect(",")
			if p.is(")") {
				break
			}
		}
		switch {
		case p.is("*", "**"):
			refuseAt(p.current.at, "arguments behind %s", p.current.kind)
		case p.is(kindName) && p.look().kind == "=":
			a.Named = append(a.Named, p.namedArg(a.Named))
		case a.Named != nil:
			failAt(open.at, "arguments in a wrong order")
		default:
			a.List = append(a.List, p.expression())
		}
	}
	p.next()
	return a
}

func (p *parser) namedArg(before []NamedExpr) NamedExpr {
	t := p.next()
	if len(before) == maxChain {
		panic(syntaxError{t.at, exception.OverLimit("more than %d named arguments", maxChain)})
	}
	for _, other := range before {
		if other.Name == t.text {
			p.later(t.at, exception.Unsupported("an argument %s given twice", t.text))
		}
	}
	p.next()
	return NamedExpr{Name: t.text, Value: p.expression()}
}

// filters parses the filters behind e, of which there is one at least.
func (p *parser) filters(e Expr) Expr {
	var c chain
	for p.skipIf("|") {
		f := p.filterName(e)
		c.link(f.Pos)
		e = f
	}
	return e
}

// filterName parses a filter without its bar.
func (p *parser) filterName(on Expr) *FilterExpr {
	f := &FilterExpr{Pos: p.current.at, On: on}
	f.Name = p.dotted()
	if p.is("(") {
		f.Args = p.args()
	}
	return f
}

// dotted parses the name of a filter or a test.
func (p *parser) dotted() string {
	name := p.expect(kindName).text
	for p.skipIf(".") {
		name += "." + p.expect(kindName).text
	}
	return name
}

// test parses "is name", with an argument or arguments.
func (p *parser) test(on Expr) Expr {
	t := &TestExpr{Pos: p.next().at, On: on}
	negated := p.skipWord("not")
	t.Name = p.dotted()
	switch {
	case p.is("("):
		t.Args = p.args()
	case p.word("is"):
		failAt(p.current.at, "a test behind a test")
	case p.word("else", "or", "and"):
	case p.is(kindName, kindString, kindInteger, kindFloat, "[", "{"):
		t.Args.List = []Expr{p.postfix(p.primary(false))}
	}
	if negated {
		return &NotExpr{Pos: t.Pos, On: t}
	}
	return t
}
