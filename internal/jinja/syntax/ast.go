// Package syntax makes the tree of a template: it lexes, parses, and finds where the variables lie,
// as Jinja2 3.1.6 does. Start with [Resolve]. Of values it knows constants alone.
package syntax

// The nodes of a template, which are Jinja2's (nodes.py) as far as its syntax can
// make them without include, import, block and extends.

// A Pos is a place in the source: a byte offset. Errors turn it into line and column.
type Pos int32

// An Expr is an expression.
type Expr interface{ At() Pos }

// At returns the place of a node.
func (p Pos) At() Pos { return p }

type (
	// A ConstExpr is a literal: None, a bool, a number or a string.
	ConstExpr struct {
		Pos
		Value any
	}
	// A NameExpr is a variable that is read; of a target, one that is assigned.
	NameExpr struct {
		Pos
		Name string
		Ref  Ref // set by Resolve
	}
	// An NsRefExpr is a target ns.attr.
	NsRefExpr struct {
		Pos
		Name string
		Attr string
		Ref  Ref
	}
	// A TupleExpr is "a, b".
	TupleExpr struct {
		Pos
		Items []Expr // targets, if it is one
	}
	// A ListExpr is "[a, b]".
	ListExpr struct {
		Pos
		Items []Expr
	}
	// A DictExpr is "{key: value}".
	DictExpr struct {
		Pos
		Keys, Values []Expr
	}
	// A CondExpr is "then if test else els"; els nil: undefined.
	CondExpr struct {
		Pos
		Test, Then, Els Expr
	}
	// A FilterExpr is "on|name(args)".
	FilterExpr struct {
		Pos
		On   Expr
		Name string
		Args ArgExprs
		Fn   any // of Names.Filters; nil: no such filter
	}
	// A TestExpr is "on is name(args)".
	TestExpr struct {
		Pos
		On   Expr
		Name string
		Args ArgExprs
		Fn   any // of Names.Tests; nil: no such test
	}
	// A CallExpr is "fn(args)".
	CallExpr struct {
		Pos
		Fn   Expr
		Args ArgExprs
	}
	// A GetattrExpr is "on.name".
	GetattrExpr struct {
		Pos
		On   Expr
		Name string
		Has  Attrs // set by Resolve
	}
	// A GetitemExpr is "on[key]"; key may be a SliceExpr.
	GetitemExpr struct {
		Pos
		On, Key Expr
		Name    string // key, if it is a constant str; set by Resolve
		Has     Attrs  // set by Resolve
	}
	// A SliceExpr is "start:stop:step", each of which may be nil.
	SliceExpr struct {
		Pos
		Start, Stop, Step Expr
	}
	// A ConcatExpr is "a ~ b ~ c".
	ConcatExpr struct {
		Pos
		Items []Expr
	}
	// A CompareExpr is "first op expr op expr ...", chained.
	CompareExpr struct {
		Pos
		First Expr
		Rest  []Operand
	}
	// A BinaryExpr is one of + - * / // %.
	BinaryExpr struct {
		Pos
		Op          string
		Left, Right Expr
	}
	// A SumExpr is "a + b + c ..." of at least three, which Resolve makes of
	// BinaryExprs.
	SumExpr struct {
		Pos
		Items []Expr
	}
	// A UnaryExpr is + or -.
	UnaryExpr struct {
		Pos
		Op string
		On Expr
	}
	// A BoolExpr is "and" or "or".
	BoolExpr struct {
		Pos
		And         bool
		Left, Right Expr
	}
	// A NotExpr is "not on".
	NotExpr struct {
		Pos
		On Expr
	}
)

// An Operand is a comparison's: == != < <= > >= in, or "not in".
type Operand struct {
	Op string
	On Expr
}

// ArgExprs are the arguments of a call: a, b=.
type ArgExprs struct {
	List  []Expr
	Named []NamedExpr
}

// None reports whether there are no arguments.
func (a *ArgExprs) None() bool { return a.List == nil && a.Named == nil }

// A NamedExpr is "name=value".
type NamedExpr struct {
	Name  string
	Value Expr
}

// A Stmt is a statement.
type Stmt interface{ At() Pos }

type (
	// An OutputStmt is text and expressions to print.
	OutputStmt struct {
		Pos
		Items []OutputItem
	}
	// A ForStmt is "{% for target in iter if test %}body{% else %}els{% endfor %}".
	ForStmt struct {
		Pos
		Target Expr
		Iter   Expr
		Test   Expr // nil: none
		Body   []Stmt
		Els    []Stmt
		Scope  ForScope // set by Resolve
	}
	// An IfStmt is "{% if test %}body{% elif ... %}{% else %}els{% endif %}".
	IfStmt struct {
		Pos
		Test  Expr
		Body  []Stmt
		Elifs []*IfStmt // each without Elifs and Els
		Els   []Stmt
	}
	// A MacroStmt is "{% macro name(params) %}body{% endmacro %}".
	MacroStmt struct {
		Pos
		Name     string
		Ref      Ref // where it is assigned
		Params   []*NameExpr
		Defaults []Expr // of the last params
		Body     []Stmt
		Scope    MacroScope
	}
	// A CallStmt is "{% call(params) fn(args) %}body{% endcall %}".
	CallStmt struct {
		Pos
		Call     *CallExpr
		Params   []*NameExpr
		Defaults []Expr
		Body     []Stmt
		Scope    MacroScope
	}
	// A GenerationStmt is "{% generation %}body{% endgeneration %}": in
	// transformers a call block whose callee returns caller().
	GenerationStmt struct {
		Pos
		Body  []Stmt
		Scope MacroScope
	}
	// A SetStmt is "{% set target = value %}".
	SetStmt struct {
		Pos
		Target Expr
		Value  Expr
	}
	// A SetBlockStmt is "{% set target %}body{% endset %}".
	SetBlockStmt struct {
		Pos
		Target Expr
		Body   []Stmt
		Scope  Scope
	}
	// A BreakStmt is "{% break %}".
	BreakStmt struct{ Pos }
	// A ContinueStmt is "{% continue %}".
	ContinueStmt struct{ Pos }
)

// An OutputItem is Text, if Expr is nil, or an expression.
type OutputItem struct {
	Text string
	Expr Expr
}
