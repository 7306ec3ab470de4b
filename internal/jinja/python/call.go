package python

import "github.com/kvindex/kvindex/internal/jinja/exception"

// Arguments are those of a call, as Python passes them.
type Arguments struct {
	List  []Value
	Named []Argument
}

// An Argument is a keyword argument.
type Argument struct {
	Name  string
	Value Value
}

// Bind returns the arguments in the order of params, as Python binds those of a
// function fn. A param is a name; with "?" behind it is optional, and Missing if
// it was not given; with "/" before it is positional only.
func (a Arguments) Bind(fn string, params ...string) ([]Value, error) {
	if len(a.List) > len(params) {
		return nil, exception.New("TypeError", "%s() takes at most %d arguments (%d given)", fn, len(params), len(a.List))
	}
	values := make([]Value, len(params))
	copy(values, a.List)
	for i := len(a.List); i < len(values); i++ {
		values[i] = Missing
	}
named:
	for _, arg := range a.Named {
		for i, p := range params {
			if name := trimParam(p); name != arg.Name || p[0] == '/' {
				continue
			}
			if values[i] != Missing {
				return nil, exception.New("TypeError", "%s() got multiple values for argument '%s'", fn, arg.Name)
			}
			values[i] = arg.Value
			continue named
		}
		return nil, exception.New("TypeError", "%s() got an unexpected keyword argument '%s'", fn, arg.Name)
	}
	for i, p := range params {
		if values[i] == Missing && p[len(p)-1] != '?' {
			return nil, exception.New("TypeError", "%s() missing required argument '%s'", fn, trimParam(p))
		}
	}
	return values, nil
}

// trimParam returns the name of a param.
func trimParam(p string) string {
	if p[0] == '/' {
		p = p[1:]
	}
	if p[len(p)-1] == '?' {
		p = p[:len(p)-1]
	}
	return p
}

// Bound are the arguments of a filter or test in the order of its parameters, of
// which none has more.
type Bound [6]Value

// BindAfter binds v and behind it the arguments, as Jinja2 passes those of filters
// and tests.
func (a Arguments) BindAfter(v Value, fn string, params ...string) (b Bound, err error) {
	list := make([]Value, 0, len(b))
	if list = append(append(list, v), a.List...); len(a.Named) > 0 || len(list) > len(params) {
		values, err := Arguments{List: list, Named: a.Named}.Bind(fn, params...)
		copy(b[:], values)
		return b, err
	}
	n := copy(b[:], list)
	for ; n < len(params); n++ {
		if p := params[n]; p[len(p)-1] != '?' {
			return b, exception.New("TypeError", "%s() missing required argument '%s'", fn, trimParam(p))
		}
		b[n] = Missing
	}
	return b, nil
}

// Only is BindAfter of a function with one parameter.
func (a Arguments) Only(fn, param string) error {
	if a.None() {
		return nil
	}
	_, err := a.BindAfter(nil, fn, param)
	return err
}

// None reports whether there are no arguments.
func (a Arguments) None() bool { return len(a.List) == 0 && len(a.Named) == 0 }
