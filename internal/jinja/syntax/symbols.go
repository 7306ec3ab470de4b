package syntax

import "maps"

// A routine is a function of Python that Jinja2 makes.
type routine struct {
	up    *routine
	slots map[slotKey]*variable
}

type slotKey struct {
	level int
	name  string
}

type variable struct {
	in   *routine
	slot int32
}

func newRoutine(up *routine) *routine {
	return &routine{up: up, slots: make(map[slotKey]*variable)}
}

// symbols are the names of a scope, as idtracking.py of Jinja2 3.1.6 tracks them.
type symbols struct {
	level  int
	in     *routine
	parent *symbols
	refs   map[string]*variable
	loads  map[*variable]symbolLoad
	stores map[string]bool
	budget *int // of the resolver
}

type symbolLoad struct {
	kind LoadKind
	name string    // LoadContext
	from *variable // LoadAlias
}

func newSymbols(in *routine, budget *int) *symbols {
	return &symbols{
		in: in, budget: budget,
		refs: make(map[string]*variable), loads: make(map[*variable]symbolLoad), stores: make(map[string]bool),
	}
}

func (s *symbols) inner(in *routine) *symbols {
	i := newSymbols(in, s.budget)
	i.level, i.parent = s.level+1, s
	return i
}

// branch returns a copy for a branch of an if, or nil when the budget is spent.
func (s *symbols) branch() *symbols {
	b := *s
	// It is copied here and again by merge.
	*s.budget -= 2 * (len(s.refs) + len(s.loads) + len(s.stores))
	if *s.budget < 0 {
		return nil
	}
	b.refs, b.loads, b.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)
	return &b
}

func (s *symbols) find(name string) *variable {
	for ; s != nil; s = s.parent {
		if v := s.refs[name]; v != nil {
			return v
		}
	}
	return nil
}

func (s *symbols) findLoad(v *variable) symbolLoad {
	for ; s != nil; s = s.parent {
		if l, ok := s.loads[v]; ok {
			return l
		}
	}
	return symbolLoad{kind: LoadMissing}
}

func (s *symbols) define(name string, l symbolLoad) *variable {
	key := slotKey{s.level, name}
	v := s.in.slots[key]
	if v == nil {
		v = &variable{in: s.in, slot: int32(len(s.in.slots))}
		s.in.slots[key] = v
	}
	s.refs[name], s.loads[v] = v, l
	return v
}

func (s *symbols) declare(name string) *variable {
	s.stores[name] = true
	return s.define(name, symbolLoad{kind: LoadParam})
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if s.refs[name] != nil {
		return
	}
	if outer := s.parent.find(name); outer != nil {
		s.define(name, symbolLoad{kind: LoadAlias, from: outer})
		return
	}
	s.define(name, symbolLoad{kind: LoadMissing})
}

func (s *symbols) load(name string) {
	if s.find(name) == nil {
		s.define(name, symbolLoad{kind: LoadContext, name: name})
	}
}

// merge takes over the names in the branches of an if. A name that only some of them store
// is loaded before.
func (s *symbols) merge(branches ...*symbols) {
	stores := make(map[string]bool)
	for _, b := range branches {
		for name := range b.stores {
			if !s.stores[name] {
				stores[name] = true
			}
		}
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name := range stores {
		l := symbolLoad{kind: LoadContext, name: name}
		if outer := s.parent.find(name); outer != nil {
			l = symbolLoad{kind: LoadAlias, from: outer}
		}
		s.loads[s.find(name)] = l
	}
}

// visit tracks the names of statements of this scope; those of scopes within it
// are left to them, but for what is evaluated here.
func (s *symbols) visit(list []Stmt) {
	for _, st := range list {
		switch st := st.(type) {
		case *OutputStmt:
			for i := range st.Items {
				s.names(&st.Items[i].Expr)
			}
		case *ForStmt:
			s.names(&st.Iter)
		case *IfStmt:
			s.visitIf(st)
		case *MacroStmt:
			s.store(st.Name)
		case *CallStmt:
			eachChild(st.Call, s.names)
		case *SetStmt:
			s.names(&st.Value)
			s.target(st.Target)
		case *SetBlockStmt:
			s.target(st.Target)
		}
	}
}

func (s *symbols) visitIf(st *IfStmt) {
	s.names(&st.Test)
	body, elifs, els := s.branch(), s.branch(), s.branch()
	if els == nil {
		return
	}
	body.visit(st.Body)
	for _, e := range st.Elifs {
		elifs.visitIf(e)
	}
	els.visit(st.Els)
	*s.budget -= 2 * (len(body.refs) + len(elifs.refs) + len(els.refs) - 3*len(s.refs))
	if *s.budget >= 0 {
		s.merge(body, elifs, els)
	}
}

// names tracks the names that an expression reads.
func (s *symbols) names(e *Expr) {
	if n, ok := (*e).(*NameExpr); ok {
		s.load(n.Name)
	} else if *e != nil {
		eachChild(*e, s.names)
	}
}

func (s *symbols) target(t Expr) {
	switch t := t.(type) {
	case *NameExpr:
		s.store(t.Name)
	case *NsRefExpr:
		s.load(t.Name)
	case *TupleExpr:
		for _, item := range t.Items {
			s.target(item)
		}
	}
}

// declareTarget tracks a target whose names are parameters of the scope.
func (s *symbols) declareTarget(t Expr) {
	switch t := t.(type) {
	case *NameExpr:
		s.declare(t.Name)
	case *TupleExpr:
		for _, item := range t.Items {
			s.declareTarget(item)
		}
	}
}
