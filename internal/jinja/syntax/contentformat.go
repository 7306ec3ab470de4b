package syntax

// ContentLoops are the loops over the content of a message, as vLLM finds them, which changed
// (vllm/renderers/hf.py, _detect_content_format).
type ContentLoops uint8

const (
	// LoopsOverMessages are loops over the content of a variable of a loop over messages, in
	// all versions.
	LoopsOverMessages ContentLoops = iota

	// LoopsOverContent are these and all over a variable content, as 0.22.0 has it.
	LoopsOverContent

	// LoopsOverParameters are, beside the first, loops over a parameter of a macro that is
	// given the content of a message, and outside of macros those over a variable content, as
	// in v0.31.0.
	LoopsOverParameters
)

// WantsParts reports whether vLLM by itself gives a template of this source the content of
// messages as lists of parts, its format "openai", and not as strings: it does if the template
// loops over the content of a message.
func WantsParts(source string, loops ContentLoops) bool {
	// Parse again, because Resolve changes the nodes, and vLLM does not fold.
	root, err := parse(source)
	if err != nil {
		return false
	}
	f := &contentFinder{
		assigned: make(map[string][]*SetStmt),
		calls:    make(map[string][]*CallExpr),
		messages: make(map[string]bool),
	}
	f.stmts(root.body, nil)
	return f.findMessages() && f.loopsOverContent(loops)
}

// A contentFinder has the statements of a template that matter, in the order of
// Jinja2's find_all: those around others before them.
type contentFinder struct {
	assigned map[string][]*SetStmt  // by the variable whose elements they assign
	calls    map[string][]*CallExpr // by the name of what they call
	loops    []contentLoop
	macros   []*contentMacro
	messages map[string]bool // the variables that loops over messages have
}

type contentLoop struct {
	*ForStmt
	in *contentMacro // the innermost around, or nil
}

type contentMacro struct {
	*MacroStmt
	up *contentMacro
	// fed are its parameters that some call gives the content of a message; those
	// of the macro around if none.
	fed map[string]bool
}

func (f *contentFinder) stmts(list []Stmt, in *contentMacro) {
	for _, s := range list {
		f.stmt(s, in)
	}
}

func (f *contentFinder) stmt(s Stmt, in *contentMacro) {
	switch s := s.(type) {
	case *OutputStmt:
		for i := range s.Items {
			some(&s.Items[i].Expr, f.expr)
		}
	case *ForStmt:
		f.loops = append(f.loops, contentLoop{s, in})
		f.expr(&s.Iter)
		some(&s.Test, f.expr)
		f.stmts(s.Body, in)
		f.stmts(s.Els, in)
	case *IfStmt:
		f.expr(&s.Test)
		f.stmts(s.Body, in)
		for _, e := range s.Elifs {
			f.stmt(e, in)
		}
		f.stmts(s.Els, in)
	case *MacroStmt:
		each(s.Defaults, f.expr)
		m := &contentMacro{MacroStmt: s, up: in}
		f.macros = append(f.macros, m)
		f.stmts(s.Body, m)
	case *CallStmt:
		var call Expr = s.Call
		f.expr(&call)
		each(s.Defaults, f.expr)
		f.stmts(s.Body, in)
	case *GenerationStmt:
		f.stmts(s.Body, in)
	case *SetStmt:
		if name, ok := elementsOf(s.Value, ""); ok {
			f.assigned[name] = append(f.assigned[name], s)
		}
		f.expr(&s.Value)
	case *SetBlockStmt:
		f.stmts(s.Body, in)
	}
}

func (f *contentFinder) expr(e *Expr) {
	if call, ok := (*e).(*CallExpr); ok {
		if fn, ok := call.Fn.(*NameExpr); ok {
			f.calls[fn.Name] = append(f.calls[fn.Name], call)
		}
	}
	eachChild(*e, f.expr)
}

// elementsOf returns the name of the variable that e is, or, with a key, whose
// attribute or item of that key it is; filters, tests and slices of it count.
func elementsOf(e Expr, key string) (name string, ok bool) {
	switch e := e.(type) {
	case *FilterExpr:
		return elementsOf(e.On, key)
	case *TestExpr:
		return elementsOf(e.On, key)
	case *NameExpr:
		return e.Name, key == ""
	case *GetattrExpr:
		if e.Name == key {
			return elementsOfName(e.On)
		}
	case *GetitemExpr:
		if _, ok := e.Key.(*SliceExpr); ok {
			return elementsOf(e.On, key)
		}
		if c, ok := e.Key.(*ConstExpr); ok && key != "" && c.Value == any(key) {
			return elementsOfName(e.On)
		}
	}
	return "", false
}

func elementsOfName(e Expr) (string, bool) {
	if n, ok := e.(*NameExpr); ok {
		return n.Name, true
	}
	return "", false
}

// findMessages fills in messages: from loops over the variable "messages" and over
// those assigned from it, directly or not. False: a target is no plain name, which
// ends vLLM's search.
func (f *contentFinder) findMessages() bool {
	lists := map[string]bool{"messages": true}
	for open := []string{"messages"}; len(open) > 0; open = open[1:] {
		for _, s := range f.assigned[open[0]] {
			to, ok := s.Target.(*NameExpr)
			if !ok {
				return false
			}
			if !lists[to.Name] {
				lists[to.Name] = true
				open = append(open, to.Name)
			}
		}
	}
	for _, l := range f.loops {
		if name, ok := elementsOf(l.Iter, ""); !ok || !lists[name] {
			continue
		}
		to, ok := l.Target.(*NameExpr)
		if !ok {
			return false
		}
		f.messages[to.Name] = true
	}
	return true
}

// isContent reports whether e is the content of a message.
func (f *contentFinder) isContent(e Expr) bool {
	name, ok := elementsOf(e, "content")
	return ok && f.messages[name]
}

func (f *contentFinder) loopsOverContent(loops ContentLoops) bool {
	f.feed()
	for _, l := range f.loops {
		if !f.isContent(l.Iter) && !l.overOther(loops) {
			continue
		}
		_, ok := l.Target.(*NameExpr)
		return ok // else vLLM's search ends without a result
	}
	return false
}

// overOther reports whether the loop goes over a variable that counts as the content of a
// message.
func (l contentLoop) overOther(loops ContentLoops) bool {
	n, ok := l.Iter.(*NameExpr)
	switch {
	case !ok, loops == LoopsOverMessages:
		return false
	case l.in == nil, loops == LoopsOverContent:
		return n.Name == "content"
	}
	return l.in.fed[n.Name]
}

// feed fills in which parameters of the macros are given the content of a message.
func (f *contentFinder) feed() {
	type given struct {
		places map[int]bool
		names  map[string]bool
	}
	byName := make(map[string]given)
	for name, calls := range f.calls {
		g := given{make(map[int]bool), make(map[string]bool)}
		for _, call := range calls {
			for i, arg := range call.Args.List {
				if f.isContent(arg) {
					g.places[i] = true
				}
			}
			for _, arg := range call.Args.Named {
				if f.isContent(arg.Value) {
					g.names[arg.Name] = true
				}
			}
		}
		byName[name] = g
	}
	for _, m := range f.macros {
		m.fed = make(map[string]bool)
		g := byName[m.Name]
		for i, p := range m.Params {
			if g.places[i] || g.names[p.Name] {
				m.fed[p.Name] = true
			}
		}
		if len(m.fed) == 0 && m.up != nil {
			m.fed = m.up.fed
		}
	}
}
