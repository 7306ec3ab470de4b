package syntax

// Jinja2 compiles a template to functions of Python: the root, each macro and call block, the
// condition of a for. A variable is a local of one of them, named by its name and by how deep its
// scope lies, so that sibling scopes share it; a function sees those of the functions around it as
// they are when it runs (Jinja2 3.1.6, compiler.py). When it runs, such a function is a frame, and
// such a variable is one of the frame's slots.

// A Ref is where a variable lies.
type Ref struct {
	Up   int32 // functions outwards
	Slot int32
	// Sure is that Jinja2 takes the variable for assigned and does not look.
	Sure bool
}

// A Scope has the actions on the variables of a block before and after it.
type Scope struct {
	Loads []Load
	Clear []int32 // slots that are missing again after it
}

// A Load gives a slot what it holds at the beginning of a scope.
type Load struct {
	Slot int32
	Kind LoadKind
	Name int32 // LoadContext: of the template's names
	From Ref   // LoadAlias
}

// A LoadKind is the source of a load's value.
type LoadKind uint8

// The kinds of loads.
const (
	LoadParam   LoadKind = iota // nothing: it is assigned elsewhere
	LoadContext                 // the host's variable, or the global
	LoadAlias                   // that of a scope around
	LoadMissing                 // none: it is not assigned
)

// A ForScope is the resolved form of a for.
type ForScope struct {
	// Inert is that the body does nothing if the elements are characters.
	Inert      bool
	Loop       int32 // slot of the variable loop, -1 if its body does not name it
	Body, Els  Scope
	Test       Scope
	TestSlots  int  // of the frame that the condition has
	TestTarget Expr // the target in that frame
}

// A MacroScope is a macro or a call block, ready to be made a value of.
type MacroScope struct {
	Pos
	Name   string // "" of a call block
	Slots  int
	Scope  Scope
	Params []Param
	Caller int32 // slot, -1 if the body does not name it
	Body   []Stmt
}

// A Param is a parameter of a macro.
type Param struct {
	Name string
	Slot int32
	Def  Expr // nil: none
}
