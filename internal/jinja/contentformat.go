package jinja

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

// WantsParts reports whether vLLM by itself gives the template the content of messages as
// lists of parts, its format "openai", and not as strings: it does if the template loops over
// the content of a message.
func (t *Template) WantsParts(loops ContentLoops) bool {
	// Parse again, because Compile changes the nodes, and vLLM does not fold.
	root, err := parse(t.source)
	if err != nil {
		return false
	}
	f := &contentFinder{
		assigned: make(map[string][]*setStmt),
		calls:    make(map[string][]*callExpr),
		messages: make(map[string]bool),
	}
	f.stmts(root.body, nil)
	return f.findMessages() && f.loopsOverContent(loops)
}

// A contentFinder has the statements of a template that matter, in the order of
// Jinja2's find_all: those around others before them.
type contentFinder struct {
	assigned map[string][]*setStmt  // by the variable whose elements they assign
	calls    map[string][]*callExpr // by the name of what they call
	loops    []contentLoop
	macros   []*contentMacro
	messages map[string]bool // the variables that loops over messages have
}

type contentLoop struct {
	*forStmt
	in *contentMacro // the innermost around, or nil
}

type contentMacro struct {
	*macroStmt
	up *contentMacro
	// fed are its parameters that some call gives the content of a message; those
	// of the macro around if none.
	fed map[string]bool
}

func (f *contentFinder) stmts(list []stmt, in *contentMacro) {
	for _, s := range list {
		f.stmt(s, in)
	}
}

func (f *contentFinder) stmt(s stmt, in *contentMacro) {
	switch s := s.(type) {
	case *outputStmt:
		for i := range s.items {
			some(&s.items[i].expr, f.expr)
		}
	case *forStmt:
		f.loops = append(f.loops, contentLoop{s, in})
		f.expr(&s.iter)
		some(&s.test, f.expr)
		f.stmts(s.body, in)
		f.stmts(s.els, in)
	case *ifStmt:
		f.expr(&s.test)
		f.stmts(s.body, in)
		for _, e := range s.elifs {
			f.stmt(e, in)
		}
		f.stmts(s.els, in)
	case *macroStmt:
		each(s.defaults, f.expr)
		m := &contentMacro{macroStmt: s, up: in}
		f.macros = append(f.macros, m)
		f.stmts(s.body, m)
	case *callStmt:
		var call expr = s.call
		f.expr(&call)
		each(s.defaults, f.expr)
		f.stmts(s.body, in)
	case *generationStmt:
		f.stmts(s.body, in)
	case *setStmt:
		if name, ok := elementsOf(s.value, ""); ok {
			f.assigned[name] = append(f.assigned[name], s)
		}
		f.expr(&s.value)
	case *setBlockStmt:
		f.stmts(s.body, in)
	}
}

func (f *contentFinder) expr(e *expr) {
	if call, ok := (*e).(*callExpr); ok {
		if fn, ok := call.fn.(*nameExpr); ok {
			f.calls[fn.name] = append(f.calls[fn.name], call)
		}
	}
	eachChild(*e, f.expr)
}

// elementsOf returns the name of the variable that e is, or, with a key, whose
// attribute or item of that key it is; filters, tests and slices of it count.
func elementsOf(e expr, key string) (name string, ok bool) {
	switch e := e.(type) {
	case *filterExpr:
		return elementsOf(e.on, key)
	case *testExpr:
		return elementsOf(e.on, key)
	case *nameExpr:
		return e.name, key == ""
	case *getattrExpr:
		if e.name == key {
			return elementsOfName(e.on)
		}
	case *getitemExpr:
		if _, ok := e.key.(*sliceExpr); ok {
			return elementsOf(e.on, key)
		}
		if c, ok := e.key.(*constExpr); ok && key != "" && c.value == Value(key) {
			return elementsOfName(e.on)
		}
	}
	return "", false
}

func elementsOfName(e expr) (string, bool) {
	if n, ok := e.(*nameExpr); ok {
		return n.name, true
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
			to, ok := s.target.(*nameExpr)
			if !ok {
				return false
			}
			if !lists[to.name] {
				lists[to.name] = true
				open = append(open, to.name)
			}
		}
	}
	for _, l := range f.loops {
		if name, ok := elementsOf(l.iter, ""); !ok || !lists[name] {
			continue
		}
		to, ok := l.target.(*nameExpr)
		if !ok {
			return false
		}
		f.messages[to.name] = true
	}
	return true
}

// isContent reports whether e is the content of a message.
func (f *contentFinder) isContent(e expr) bool {
	name, ok := elementsOf(e, "content")
	return ok && f.messages[name]
}

func (f *contentFinder) loopsOverContent(loops ContentLoops) bool {
	f.feed()
	for _, l := range f.loops {
		if !f.isContent(l.iter) && !l.overOther(loops) {
			continue
		}
		_, ok := l.target.(*nameExpr)
		return ok // else vLLM's search ends without a result
	}
	return false
}

// overOther reports whether the loop goes over a variable that counts as the content of a
// message.
func (l contentLoop) overOther(loops ContentLoops) bool {
	n, ok := l.iter.(*nameExpr)
	switch {
	case !ok, loops == LoopsOverMessages:
		return false
	case l.in == nil, loops == LoopsOverContent:
		return n.name == "content"
	}
	return l.in.fed[n.name]
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
			for i, arg := range call.args.list {
				if f.isContent(arg) {
					g.places[i] = true
				}
			}
			for _, arg := range call.args.named {
				if f.isContent(arg.value) {
					g.names[arg.name] = true
				}
			}
		}
		byName[name] = g
	}
	for _, m := range f.macros {
		m.fed = make(map[string]bool)
		g := byName[m.name]
		for i, p := range m.params {
			if g.places[i] || g.names[p.name] {
				m.fed[p.name] = true
			}
		}
		if len(m.fed) == 0 && m.up != nil {
			m.fed = m.up.fed
		}
	}
}
