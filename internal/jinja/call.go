package jinja

import "github.com/kvindex/kvindex/internal/jinja/exception"

// arguments are those of a call, as Python passes them.
type arguments struct {
	list  []Value
	named []argument
}

// An argument is a keyword argument.
type argument struct {
	name  string
	value Value
}

// bind returns the arguments in the order of params, as Python binds those of a
// function fn. A param is a name; with "?" behind it is optional, and missing if
// it was not given; with "/" before it is positional only.
func (a arguments) bind(fn string, params ...string) ([]Value, error) {
	if len(a.list) > len(params) {
		return nil, exception.New("TypeError", "%s() takes at most %d arguments (%d given)", fn, len(params), len(a.list))
	}
	values := make([]Value, len(params))
	copy(values, a.list)
	for i := len(a.list); i < len(values); i++ {
		values[i] = missing
	}
named:
	for _, arg := range a.named {
		for i, p := range params {
			if name := trimParam(p); name != arg.name || p[0] == '/' {
				continue
			}
			if values[i] != missing {
				return nil, exception.New("TypeError", "%s() got multiple values for argument '%s'", fn, arg.name)
			}
			values[i] = arg.value
			continue named
		}
		return nil, exception.New("TypeError", "%s() got an unexpected keyword argument '%s'", fn, arg.name)
	}
	for i, p := range params {
		if values[i] == missing && p[len(p)-1] != '?' {
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
