package jinja

// Jinja2 compiles a template to functions of Python: the root, each macro and call
// block, the condition of a for. A variable is a local
// of one of them, named by its name and by how deep its scope lies, so that sibling
// scopes share it; a function sees those of the functions around it as they are
// when it runs (Jinja2 3.1.6, compiler.py). Here such a function running is a frame
// and such a variable one of its slots.

// A ref is where a variable lies.
type ref struct {
	up   int32 // functions outwards
	slot int32
	// sure is that Jinja2 takes the variable for assigned and does not look.
	sure bool
}

// A frame holds the variables of a function while it runs.
type frame struct {
	slots []Value
	up    *frame // of the function around it
}

// isMissing is v == missing, faster.
func isMissing(v Value) bool {
	_, ok := v.(missingValue)
	return ok
}

// newFrame returns a frame of n variables, none of them assigned.
func (m *machine) newFrame(n int, up *frame) (*frame, error) {
	if err := m.alloc(16*n + 48); err != nil {
		return nil, err
	}
	f := &frame{slots: make([]Value, n), up: up}
	for i := range f.slots {
		f.slots[i] = missing
	}
	return f, nil
}

func (f *frame) variable(r ref) *Value {
	for up := r.up; up > 0; up-- {
		f = f.up
	}
	return &f.slots[r.slot]
}

// A scope has the actions on the variables of a block before and after it.
type scope struct {
	loads []load
	clear []int32 // slots that are missing again after it
}

// A load gives a slot what it holds at the beginning of a scope.
type load struct {
	slot int32
	kind loadKind
	name int32 // loadContext: of the template's names
	from ref   // loadAlias
}

type loadKind uint8

const (
	loadParam   loadKind = iota // nothing: it is assigned elsewhere
	loadContext                 // the host's variable, or the global
	loadAlias                   // that of a scope around
	loadMissing
)

func (m *machine) enterScope(f *frame, s *scope) error {
	for i := range s.loads {
		switch l := &s.loads[i]; l.kind {
		case loadContext:
			f.slots[l.slot] = m.context[l.name]
		case loadAlias:
			f.slots[l.slot] = *f.variable(l.from)
		case loadMissing:
			f.slots[l.slot] = missing
		}
	}
	return m.step(len(s.loads) / 8)
}

func (m *machine) leaveScope(f *frame, s *scope) error {
	for _, slot := range s.clear {
		f.slots[slot] = missing
	}
	return m.step(len(s.clear) / 8)
}

// A forScope is the resolved form of a for.
type forScope struct {
	// inert is that the body does nothing if the elements are characters.
	inert      bool
	loop       int32 // slot of the variable loop, -1 if its body does not name it
	body, els  scope
	test       scope
	testSlots  int  // of the frame that the condition has
	testTarget expr // the target in that frame
}

// A macroScope is a macro or a call block, ready to be made a value of.
type macroScope struct {
	pos
	name   string // "" of a call block
	slots  int
	scope  scope
	params []param
	caller int32 // slot, -1 if the body does not name it
	body   []stmt
}

type param struct {
	name string
	slot int32
	def  expr // nil: none
}
