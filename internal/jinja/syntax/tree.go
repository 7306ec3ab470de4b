package syntax

import "github.com/kvindex/kvindex/internal/jinja/exception"

// A Tree is a parsed template. Its nodes have the places of its variables.
type Tree struct {
	Body  []Stmt
	Scope Scope
	Slots int      // of the frame in which it runs
	Names []string // of the variables that the host sets
}

// Names are those that a template may use beside its variables.
type Names struct {
	// Filters and Tests are given to the nodes as Fn. Those of Jinja2's that are refused are nil.
	Filters, Tests map[string]any
	// Attrs returns which values may have an attribute.
	Attrs func(name string) Attrs
}

// Attrs are the values that may have an attribute.
type Attrs struct {
	Dict, Str    bool
	RefusedOfStr bool // it is a method of str that is refused
}

// A templateNode is the whole of a template.
type templateNode struct {
	Pos
	body []Stmt
}

// maxNames bounds the search for the variables of a template.
const maxNames = 1 << 20

// Resolve makes the Tree of a source. It returns an error for a source that Jinja2 refuses, and
// exception.ErrUnsupported for constructs that the interpreter lacks.
func Resolve(source string, names *Names) (*Tree, error) {
	root, err := parse(source)
	if err != nil {
		return nil, err
	}
	r := &resolver{source: source, known: names, names: make(map[string]int32), budget: maxNames}
	t := r.template(root)
	if r.budget < 0 {
		return nil, exception.OverLimit("too many names in too many blocks")
	}
	if r.err != nil {
		return nil, r.err
	}
	t.Names = make([]string, len(r.names))
	for name, i := range r.names {
		t.Names[i] = name
	}
	return t, nil
}

// template resolves the whole of a template.
func (r *resolver) template(root *templateNode) *Tree {
	if r.undeclared(root.body, "self")["self"] {
		r.fail(root.Pos, exception.Unsupported("the variable self"))
	}
	in := newRoutine(nil)
	sym := newSymbols(in, &r.budget)
	sym.visit(root.body)
	scope := r.scope(sym, true)
	r.stmts(root.body, site{sym: sym})
	return &Tree{Body: root.body, Scope: scope, Slots: len(in.slots)}
}
