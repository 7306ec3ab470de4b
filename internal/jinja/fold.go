package jinja

import (
	"errors"
	"math"
	"math/big"
)

// Jinja2 evaluates constant expressions while it compiles and writes the values into the
// Python that it makes (3.1.6, optimizer.py and as_const of nodes.py). It shows: unknown
// filters and tests raise no error in unreachable code, a negative constant before ** loses
// its sign to the result, and there are no literals of inf and nan. So it is done here.

// errNotConst ends the evaluation of an expression that is not constant.
var errNotConst = errors.New("not constant")

// contextFilters are the filters that get the context, so are never constant.
var contextFilters = map[string]bool{
	"map": true, "random": true, "reject": true, "rejectattr": true, "select": true, "selectattr": true,
}

// foldLimits bound all evaluation of constants of a template.
var foldLimits = Limits{Steps: 1 << 18, Memory: 1 << 20, Output: 1 << 20}

// fold replaces the constant parts of *p, innermost first, and reports whether *p has a
// constant value, if perhaps one that cannot be written.
func (r *resolver) fold(p *expr) bool {
	var constant []bool // of the children
	all := true
	eachChild(*p, func(child *expr) {
		ok := r.fold(child)
		constant = append(constant, ok)
		all = all && ok
	})
	switch e := (*p).(type) {
	case *constExpr:
		return true
	case *nameExpr, *callExpr, *raiseExpr:
		return false
	case *sliceExpr:
		return all
	case *dictExpr:
		r.checkKeys(e, constant)
	case *boolExpr, *condExpr, *compareExpr:
		// These may be constant though not all their children are.
		v, err := r.constant(*p)
		if err == nil && hasLiteral(v) {
			*p = &constExpr{pos: (*p).at(), value: v}
		}
		return err == nil
	}
	return all && r.foldAll(p)
}

// foldAll is fold of a node whose children all have constant values.
func (r *resolver) foldAll(p *expr) bool {
	v, err := r.constant(*p)
	switch {
	case err == nil && hasLiteral(v):
		*p = &constExpr{pos: (*p).at(), value: v}
	case errors.Is(err, ErrUnsupported) || errors.Is(err, ErrLimit):
		// A constant there, of a value not known here.
		*p = &raiseExpr{pos: (*p).at(), err: err}
	case err != nil:
		if _, ok := (*p).(*concatExpr); ok {
			r.fail((*p).at(), err)
		}
	}
	return err == nil
}

// checkKeys fails if the constant keys of a dict, up to the first that is not, have
// no hash: unlike other errors Jinja2 does not put this one off.
func (r *resolver) checkKeys(e *dictExpr, constant []bool) {
	d := &Dict{}
	for i := range e.keys {
		if !constant[2*i] || !constant[2*i+1] {
			return
		}
		key, err := r.constant(e.keys[i])
		if err == nil {
			err = d.set(r.consts, key, nil)
		}
		if raised(err, "TypeError") {
			r.fail(e.keys[i].at(), err)
		}
	}
}

// constant returns the value of e or, if it is none, an error.
func (r *resolver) constant(e expr) (Value, error) {
	v, err := r.consts.eval(nil, e)
	r.consts.out, r.consts.depth = r.consts.out[:0], 0
	return v, err
}

// text returns the printed form of e, if that is constant.
func (r *resolver) text(e expr) (string, bool) {
	v, err := r.constant(e)
	if err != nil {
		return "", false
	}
	s, err := r.consts.str(v)
	return s, err == nil
}

// hasLiteral reports whether Jinja2 writes v into what it compiles (compiler.py,
// has_safe_repr).
func hasLiteral(v Value) bool {
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64, string, Markup, *Range:
		return true
	case *List:
		return haveLiterals(v.Items)
	case *Tuple:
		return haveLiterals(v.Items)
	case *Dict:
		return haveLiterals(v.keys) && haveLiterals(v.values)
	}
	return false
}

func haveLiterals(items []Value) bool {
	for _, item := range items {
		if !hasLiteral(item) {
			return false
		}
	}
	return true
}

// literal replaces a constant by the value that Python reads back.
func (r *resolver) literal(p *expr) {
	e := (*p).(*constExpr)
	switch name := badLiteral(e.value); name {
	case "":
	case "int":
		r.fail(e.pos, raise("ValueError", "Exceeds the limit (4300 digits) for integer string conversion"))
	default:
		*p = &raiseExpr{pos: e.pos, err: raise("NameError", "name '%s' is not defined", name)}
	}
}

// badLiteral returns the part of v that Python does not read back: "inf", "nan" or "int",
// which is one of more than 4300 digits.
func badLiteral(v Value) string {
	switch v := v.(type) {
	case float64:
		if math.IsInf(v, 0) {
			return "inf"
		}
		if math.IsNaN(v) {
			return "nan"
		}
	case *big.Int:
		if v.BitLen() > 14284 && len(new(big.Int).Abs(v).Text(10)) > 4300 {
			return "int"
		}
	case *List:
		return badLiterals(v.Items)
	case *Tuple:
		return badLiterals(v.Items)
	case *Dict:
		if bad := badLiterals(v.keys); bad != "" {
			return bad
		}
		return badLiterals(v.values)
	}
	return ""
}

func badLiterals(items []Value) string {
	bad := ""
	for _, item := range items {
		if b := badLiteral(item); b == "int" {
			return b
		} else if bad == "" {
			bad = b
		}
	}
	return bad
}
