package jinja

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
func (p *parser) later(at pos, err error) {
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

func (c *chain) link(at pos) {
	if *c++; *c > maxChain {
		panic(syntaxError{at, exception.OverLimit("a chain of more than %d", maxChain)})
	}
}

// statements parses up to one of the end tags, whose name is then the current
// token, or to the end of the template if there are none.
func (p *parser) statements(ends ...string) []stmt {
	p.enter()
	defer p.leave()
	var body []stmt
	var out *outputStmt
	add := func(at pos, item outputItem) {
		if out == nil {
			out = &outputStmt{pos: at}
			body = append(body, out)
		}
		out.items = append(out.items, item)
	}
	for !p.is(kindEnd) {
		switch t := p.next(); t.kind {
		case kindData:
			add(t.at, outputItem{text: t.text})
		case kindVarBegin:
			add(t.at, outputItem{expr: p.tuple(anyExpr)})
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
func (p *parser) block(ends ...string) ([]stmt, string) {
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
func (p *parser) function(end string) []stmt {
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

func (p *parser) statement() stmt {
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
		return &generationStmt{pos: at, body: p.function("endgeneration")}
	case "break":
		p.inLoop()
		return &breakStmt{at}
	case "continue":
		p.inLoop()
		return &continueStmt{at}
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

func (p *parser) forLoop() stmt {
	s := &forStmt{pos: p.next().at}
	p.fors++
	s.target = p.target(tupleForm{simple: true})
	p.expectWord("in")
	s.iter = p.tuple(tupleForm{noCond: true})
	if p.skipWord("if") {
		s.test = p.expression()
	}
	if p.word("recursive") {
		refuseAt(p.current.at, "a recursive loop")
	}
	around := p.loops
	if p.loops++; p.loops > maxLoops {
		p.later(s.pos, exception.New("SyntaxError", "more than %d loops within each other", maxLoops))
	}
	var end string
	s.body, end = p.block("endfor", "else")
	p.loops = around
	if end == "else" {
		s.els, _ = p.block("endfor")
	}
	p.fors--
	return s
}

func (p *parser) ifs() stmt {
	first := &ifStmt{pos: p.next().at}
	for s := first; ; {
		s.test = p.tuple(tupleForm{noCond: true})
		var end string
		s.body, end = p.block("elif", "else", "endif")
		switch end {
		case "elif":
			s = &ifStmt{pos: p.current.at}
			first.elifs = append(first.elifs, s)
			continue
		case "else":
			first.els, _ = p.block("endif")
		}
		return first
	}
}

func (p *parser) set() stmt {
	at := p.next().at
	target := p.target(tupleForm{simple: true, namespace: true})
	if p.skipIf("=") {
		return &setStmt{pos: at, target: target, value: p.tuple(anyExpr)}
	}
	s := &setBlockStmt{pos: at, target: target}
	if p.is("|") {
		refuseAt(p.current.at, "a filter of a set block")
	}
	s.body, _ = p.block("endset")
	return s
}

func (p *parser) macro() stmt {
	s := &macroStmt{pos: p.next().at}
	s.name = p.name().name
	s.params, s.defaults = p.signature()
	s.body = p.function("endmacro")
	return s
}

func (p *parser) callBlock() stmt {
	s := &callStmt{pos: p.next().at}
	if p.is("(") {
		s.params, s.defaults = p.signature()
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		failAt(s.pos, "expected a call")
	}
	for _, arg := range call.args.named {
		if arg.name == "caller" {
			p.later(s.pos, exception.Unsupported("the argument caller given by a call block"))
		}
	}
	s.call = call
	s.body = p.function("endcall")
	return s
}

func (p *parser) signature() (params []*nameExpr, defaults []expr) {
	var c chain
	p.expect("(")
	for !p.is(")") {
		if len(params) > 0 {
			p.expect(",")
		}
		param := p.name()
		c.link(param.pos)
		for _, other := range params {
			if other.name == param.name {
				p.later(param.pos, exception.New("SyntaxError", "a second parameter %s", param.name))
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
func (p *parser) name() *nameExpr {
	t := p.expect(kindName)
	n := &nameExpr{pos: t.at, name: t.text}
	p.assignable(n)
	return n
}

// target parses what a loop or a set assigns to.
func (p *parser) target(form tupleForm) expr {
	t := p.tuple(form)
	p.assignable(t)
	if p.fors > 0 {
		p.notLoop(t)
	}
	return t
}

func (p *parser) notLoop(target expr) {
	switch t := target.(type) {
	case *nameExpr:
		if t.name == "loop" {
			p.later(t.pos, exception.New("TemplateAssertionError", "cannot assign to loop within a loop"))
		}
	case *tupleExpr:
		for _, item := range t.items {
			p.notLoop(item)
		}
	}
}

func (p *parser) assignable(e expr) {
	switch e := e.(type) {
	case *nameExpr:
		switch e.name {
		case "true", "false", "none", "True", "False", "None":
			failAt(e.pos, "cannot assign to %s", e.name)
		}
		return
	case *nsRefExpr:
		return
	case *tupleExpr:
		for _, item := range e.items {
			p.assignable(item)
		}
		return
	}
	failAt(e.at(), "cannot assign to this expression")
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
func (p *parser) tuple(form tupleForm) expr {
	at := p.current.at
	var items []expr
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
	return &tupleExpr{pos: at, items: items}
}

// expression parses an expression with inline ifs.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	at := p.current.at
	e := p.or()
	var c chain
	for p.skipWord("if") {
		c.link(at)
		cond := &condExpr{pos: at, then: e}
		cond.test = p.or()
		if p.skipWord("else") {
			cond.els = p.expression()
		}
		e = cond
	}
	return e
}

func (p *parser) or() expr {
	at := p.current.at
	e := p.and()
	var c chain
	for p.skipWord("or") {
		c.link(at)
		e = &boolExpr{pos: at, left: e, right: p.and()}
	}
	return e
}

func (p *parser) and() expr {
	at := p.current.at
	e := p.not()
	var c chain
	for p.skipWord("and") {
		c.link(at)
		e = &boolExpr{pos: at, and: true, left: e, right: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if !p.word("not") {
		return p.compare()
	}
	p.enter()
	defer p.leave()
	return &notExpr{pos: p.next().at, on: p.not()}
}

func (p *parser) compare() expr {
	e := &compareExpr{pos: p.current.at}
	e.first = p.sum()
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
			case len(e.rest) == 0:
				return e.first
			default:
				return e
			}
		}
		e.rest = append(e.rest, operand{op: op, on: p.sum()})
	}
}

func (p *parser) sum() expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := &concatExpr{pos: p.current.at}
	e.items = append(e.items, p.product())
	for p.skipIf("~") {
		e.items = append(e.items, p.product())
	}
	if len(e.items) == 1 {
		return e.items[0]
	}
	return e
}

func (p *parser) product() expr { return p.binary(p.factor, "*", "/", "//", "%") }

func (p *parser) factor() expr {
	e := p.unary(true)
	if p.is("**") {
		refuseAt(p.current.at, "the operator **")
	}
	return e
}

func (p *parser) binary(part func() expr, ops ...string) expr {
	at := p.current.at
	e := part()
	var c chain
	for p.is(ops...) {
		c.link(at)
		op := p.next().kind
		e = &binaryExpr{pos: at, op: op, left: e, right: part()}
	}
	return e
}

// unary parses a sign, or none, before an operand. Filters and tests apply to what
// the outermost of some signs gives.
func (p *parser) unary(filtered bool) expr {
	var e expr
	if p.is("-", "+") {
		p.enter()
		t := p.next()
		e = &unaryExpr{pos: t.at, op: t.kind, on: p.unary(false)}
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

func (p *parser) primary(namespace bool) expr {
	t := p.current
	switch t.kind {
	case kindName:
		p.next()
		switch t.text {
		case "true", "True", "false", "False":
			return &constExpr{pos: t.at, value: t.text == "true" || t.text == "True"}
		case "none", "None":
			return &constExpr{pos: t.at}
		}
		if namespace && p.skipIf(".") {
			return &nsRefExpr{pos: t.at, name: t.text, attr: p.expect(kindName).text}
		}
		return &nameExpr{pos: t.at, name: t.text}
	case kindString:
		return &constExpr{pos: t.at, value: p.strings()}
	case kindInteger, kindFloat:
		p.next()
		return &constExpr{pos: t.at, value: t.value}
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

func (p *parser) list() expr {
	e := &listExpr{pos: p.next().at}
	for !p.is("]") {
		if len(e.items) > 0 {
			p.expect(",")
			if p.is("]") {
				break
			}
		}
		e.items = append(e.items, p.expression())
	}
	p.next()
	return e
}

func (p *parser) dict() expr {
	e := &dictExpr{pos: p.next().at}
	for !p.is("}") {
		if len(e.keys) > 0 {
			p.expect(",")
			if p.is("}") {
				break
			}
		}
		e.keys = append(e.keys, p.expression())
		p.expect(":")
		e.values = append(e.values, p.expression())
	}
	p.next()
	return e
}

// postfix parses the attributes, items and calls behind e.
func (p *parser) postfix(e expr) expr {
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
		c.link(e.at())
	}
}

// filtered parses the filters, tests and calls behind e.
func (p *parser) filtered(e expr) expr {
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
		c.link(e.at())
	}
}

func (p *parser) attribute(on expr) expr {
	at := p.next().at
	switch t := p.next(); t.kind {
	case kindName:
		return &getattrExpr{pos: at, on: on, name: t.text}
	case kindInteger:
		return &getitemExpr{pos: at, on: on, key: &constExpr{pos: t.at, value: t.value}}
	default:
		failAt(t.at, "expected a name or a number, got %q", t.describe())
		return nil
	}
}

func (p *parser) subscript(on expr) expr {
	at := p.next().at
	if p.is("]") {
		refuseAt(at, "no subscript")
	}
	e := &getitemExpr{pos: at, on: on, key: p.key()}
	if p.is(",") {
		refuseAt(at, "several subscripts")
	}
	p.expect("]")
	return e
}

// key parses what stands in brackets: an expression or a slice.
func (p *parser) key() expr {
	s := &sliceExpr{pos: p.current.at}
	if !p.is(":") {
		e := p.expression()
		if !p.is(":") {
			return e
		}
		s.start = e
	}
	p.next()
	s.stop = p.bound()
	if p.skipIf(":") {
		s.step = p.bound()
	}
	return s
}

// bound parses a part of a slice, which may be missing. Behind the step no colon
// may come; the subscript sees to that.
func (p *parser) bound() expr {
	if p.is(":", "]", ",") {
		return nil
	}
	return p.expression()
}

// reservedArgs are the names that Jinja2's own function for a call has parameters
// of, or takes out of the arguments.
var reservedArgs = []string{"_loop_vars", "_block_vars", "__self", "__context", "__obj"}

func (p *parser) call(fn expr) expr {
	e := &callExpr{pos: p.current.at, fn: fn}
	e.args = p.args()
	for _, arg := range e.args.named {
		if slices.Contains(reservedArgs, arg.name) {
			p.later(e.pos, exception.Unsupported("an argument of the name %s", arg.name))
		}
	}
	return e
}

func (p *parser) args() argExprs {
	var a argExprs
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
			a.named = append(a.named, p.namedArg(a.named))
		case a.named != nil:
			failAt(open.at, "arguments in a wrong order")
		default:
			a.list = append(a.list, p.expression())
		}
	}
	p.next()
	return a
}

func (p *parser) namedArg(before []namedExpr) namedExpr {
	t := p.next()
	if len(before) == maxChain {
		panic(syntaxError{t.at, exception.OverLimit("more than %d named arguments", maxChain)})
	}
	for _, other := range before {
		if other.name == t.text {
			p.later(t.at, exception.Unsupported("an argument %s given twice", t.text))
		}
	}
	p.next()
	return namedExpr{name: t.text, value: p.expression()}
}

// filters parses the filters behind e, of which there is one at least.
func (p *parser) filters(e expr) expr {
	var c chain
	for p.skipIf("|") {
		f := p.filterName(e)
		c.link(f.pos)
		e = f
	}
	return e
}

// filterName parses a filter without its bar.
func (p *parser) filterName(on expr) *filterExpr {
	f := &filterExpr{pos: p.current.at, on: on}
	f.name = p.dotted()
	if p.is("(") {
		f.args = p.args()
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
func (p *parser) test(on expr) expr {
	t := &testExpr{pos: p.next().at, on: on}
	negated := p.skipWord("not")
	t.name = p.dotted()
	switch {
	case p.is("("):
		t.args = p.args()
	case p.word("is"):
		failAt(p.current.at, "a test behind a test")
	case p.word("else", "or", "and"):
	case p.is(kindName, kindString, kindInteger, kindFloat, "[", "{"):
		t.args.list = []expr{p.postfix(p.primary(false))}
	}
	if negated {
		return &notExpr{pos: t.pos, on: t}
	}
	return t
}
