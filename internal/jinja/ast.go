package jinja

// The nodes of a template, which are Jinja2's (nodes.py) as far as its syntax can
// make them without include, import, block and extends.

// pos is a place in the source: a byte offset. Errors turn it into line and column.
type pos int32

// An expr is an expression.
type expr interface{ at() pos }

func (p pos) at() pos { return p }

type (
	// A constExpr is a literal: None, a bool, a number or a string.
	constExpr struct {
		pos
		value Value
	}
	// A nameExpr is a variable that is read; of a target, one that is assigned.
	nameExpr struct {
		pos
		name string
		ref  ref // set by resolve
	}
	// An nsRefExpr is a target ns.attr.
	nsRefExpr struct {
		pos
		name string
		attr string
		ref  ref
	}
	tupleExpr struct {
		pos
		items []expr // targets, if it is one
	}
	listExpr struct {
		pos
		items []expr
	}
	dictExpr struct {
		pos
		keys, values []expr
	}
	// A condExpr is "then if test else els"; els nil: undefined.
	condExpr struct {
		pos
		test, then, els expr
	}
	// A filterExpr is "on|name(args)".
	filterExpr struct {
		pos
		on   expr
		name string
		args argExprs
		fn   filterFunc // set by resolve; nil: no such filter
	}
	// A testExpr is "on is name(args)".
	testExpr struct {
		pos
		on   expr
		name string
		args argExprs
		fn   testFunc // set by resolve; nil: no such test
	}
	callExpr struct {
		pos
		fn   expr
		args argExprs
	}
	// A getattrExpr is "on.name".
	getattrExpr struct {
		pos
		on   expr
		name string
		has  attrOf // set by resolve
	}
	// A getitemExpr is "on[key]"; key may be a sliceExpr.
	getitemExpr struct {
		pos
		on, key expr
		name    string // key, if it is a constant str; set by resolve
		has     attrOf // set by resolve
	}
	// A sliceExpr is "start:stop:step", each of which may be nil.
	sliceExpr struct {
		pos
		start, stop, step expr
	}
	// A concatExpr is "a ~ b ~ c".
	concatExpr struct {
		pos
		items []expr
	}
	// A compareExpr is "first op expr op expr ...", chained.
	compareExpr struct {
		pos
		first expr
		rest  []operand
	}
	// A binaryExpr is one of + - * / // %.
	binaryExpr struct {
		pos
		op          string
		left, right expr
	}
	// A sumExpr is "a + b + c ..." of at least three, which resolve makes of
	// binaryExprs.
	sumExpr struct {
		pos
		items []expr
	}
	// A unaryExpr is + or -.
	unaryExpr struct {
		pos
		op string
		on expr
	}
	// A boolExpr is "and" or "or".
	boolExpr struct {
		pos
		and         bool
		left, right expr
	}
	notExpr struct {
		pos
		on expr
	}
)

// An attrOf reports whether a name may be an attribute of a dict, or of a str.
type attrOf struct{ dict, str bool }

// An operand is a comparison's: == != < <= > >= in, or "not in".
type operand struct {
	op string
	on expr
}

// argExprs are the arguments of a call: a, b=.
type argExprs struct {
	list  []expr
	named []namedExpr
}

func (a *argExprs) none() bool { return a.list == nil && a.named == nil }

type namedExpr struct {
	name  string
	value expr
}

// A stmt is a statement.
type stmt interface{ at() pos }

type (
	templateNode struct {
		pos
		body []stmt
	}
	// An outputStmt is text and expressions to print; text is a constExpr with
	// data set.
	outputStmt struct {
		pos
		items []outputItem
	}
	forStmt struct {
		pos
		target expr
		iter   expr
		test   expr // may be nil
		body   []stmt
		els    []stmt
		scope  forScope // set by resolve
	}
	ifStmt struct {
		pos
		test  expr
		body  []stmt
		elifs []*ifStmt // each without elifs and els
		els   []stmt
	}
	macroStmt struct {
		pos
		name     string
		ref      ref // where it is assigned
		params   []*nameExpr
		defaults []expr // of the last params
		body     []stmt
		scope    macroScope
	}
	// A callStmt is "{% call(params) fn(args) %}body{% endcall %}".
	callStmt struct {
		pos
		call     *callExpr
		params   []*nameExpr
		defaults []expr
		body     []stmt
		scope    macroScope
	}
	// A generationStmt is "{% generation %}body{% endgeneration %}": in
	// transformers a call block whose callee returns caller().
	generationStmt struct {
		pos
		body  []stmt
		scope macroScope
	}
	setStmt struct {
		pos
		target expr
		value  expr
	}
	// A setBlockStmt is "{% set target %}body{% endset %}".
	setBlockStmt struct {
		pos
		target expr
		body   []stmt
		scope  scope
	}
	breakStmt    struct{ pos }
	continueStmt struct{ pos }
)

// An outputItem is text, if expr is nil, or an expression.
type outputItem struct {
	text string
	expr expr
}
