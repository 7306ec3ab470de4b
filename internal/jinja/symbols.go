package jinja

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
	kind loadKind
	name string    // loadContext
	from *variable // loadAlias
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
	return symbolLoad{kind: loadMissing}
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
	return s.define(name, symbolLoad{kind: loadParam})
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if s.refs[name] != nil {
		return
	}
	if outer := s.parent.find(name); outer != nil {
		s.define(name, symbolLoad{kind: loadAlias, from: outer})
		return
	}
	s.define(name, symbolLoad{kind: loadMissing})
}

func (s *symbols) load(name string) {
	if s.find(name) == nil {
		s.define(name, symbolLoad{kind: loadContext, name: name})
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
		l := symbolLoad{kind: loadContext, name: name}
		if outer := s.parent.find(name); outer != nil {
			l = symbolLoad{kind: loadAlias, from: outer}
		}
		s.loads[s.find(name)] = l
	}
}

// visit tracks the names of statements of this scope; those of scopes within it
// are left to them, but for what is evaluated here.
func (s *symbols) visit(list []stmt) {
	for _, st := range list {
		switch st := st.(type) {
		case *outputStmt:
			for i := range st.items {
				s.names(&st.items[i].expr)
			}
		case *forStmt:
			s.names(&st.iter)
		case *ifStmt:
			s.visitIf(st)
		case *macroStmt:
			s.store(st.name)
		case *callStmt:
			eachChild(st.call, s.names)
		case *setStmt:
			s.names(&st.value)
			s.target(st.target)
		case *setBlockStmt:
			s.target(st.target)
		}
	}
}

func (s *symbols) visitIf(st *ifStmt) {
	s.names(&st.test)
	body, elifs, els := s.branch(), s.branch(), s.branch()
	if els == nil {
		return
	}
	body.visit(st.body)
	for _, e := range st.elifs {
		elifs.visitIf(e)
	}
	els.visit(st.els)
	*s.budget -= 2 * (len(body.refs) + len(elifs.refs) + len(els.refs) - 3*len(s.refs))
	if *s.budget >= 0 {
		s.merge(body, elifs, els)
	}
}

// names tracks the names that an expression reads.
func (s *symbols) names(e *expr) {
	if n, ok := (*e).(*nameExpr); ok {
		s.load(n.name)
	} else if *e != nil {
		eachChild(*e, s.names)
	}
}

func (s *symbols) target(t expr) {
	switch t := t.(type) {
	case *nameExpr:
		s.store(t.name)
	case *nsRefExpr:
		s.load(t.name)
	case *tupleExpr:
		for _, item := range t.items {
			s.target(item)
		}
	}
}

// declareTarget tracks a target whose names are parameters of the scope.
func (s *symbols) declareTarget(t expr) {
	switch t := t.(type) {
	case *nameExpr:
		s.declare(t.name)
	case *tupleExpr:
		for _, item := range t.items {
			s.declareTarget(item)
		}
	}
}
