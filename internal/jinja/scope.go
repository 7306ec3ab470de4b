package jinja

// A ref is where a variable lies; the resolver fills it in. (The author of
// resolve.go owns this file and shapes these types as the rules of jinja2's
// idtracking.py need.)
type ref struct {
	up   int // functions outwards
	slot int
}

type (
	scope      struct{}
	forScope   struct{}
	macroScope struct{}
)
