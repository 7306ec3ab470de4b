package jinja

import _ "embed"

// The forms of expressions, in testdata/grammar. A + before a name marks what Jinja2 3.1.2
// or MarkupSafe 2.1.2 does otherwise.
var (
	// The kind that a filter takes, the kind that it gives, its name, its arguments.
	//
	//go:embed testdata/grammar/filters.txt
	filterTable string
	// Whose, what it gives, the method, its arguments: "-" for none, "attribute" if it
	// is none.
	//
	//go:embed testdata/grammar/methods.txt
	methodTable string
	// The kind that a test takes, its name, its arguments.
	//
	//go:embed testdata/grammar/tests.txt
	testTable string
	// The kind that it gives, its precedence, the constructs, the pattern.
	//
	//go:embed testdata/grammar/expressions.txt
	expressionTable string
	// The like of the loop variable, where there is one.
	//
	//go:embed testdata/grammar/loops.txt
	loopTable string
	// Statements that are seldom written, or are errors.
	//
	//go:embed testdata/grammar/odds.txt
	oddTable string
)
