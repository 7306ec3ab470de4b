package builtins

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// The filters int and float (Jinja2 3.1.6, filters.py), without ints of strings beyond 64 bits,
// digits beyond ASCII, inf and nan.

func intFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_int", "value", "default?", "base?")
	if err != nil {
		return nil, err
	}
	if b[2] != python.Missing {
		return nil, exception.Unsupported("int by a base")
	}
	switch n := v.(type) {
	case bool, int64:
		return m.Unary("+", n)
	case *big.Int:
		return n, nil
	}
	if s, ok := python.AsString(v); ok {
		if err := number(m, s); err != nil {
			return nil, err
		}
		if n, err := strconv.ParseInt(strings.Trim(s, numberSpace), 10, 64); err == nil {
			return n, nil
		}
	}
	f, ok, err := float(m, v)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return or(b[1], int64(0)), nil
	case math.Abs(f) >= 1<<53:
		return nil, exception.Unsupported("an int that large of a %s", python.TypeName(v))
	}
	return int64(f), nil
}

func floatFilter(m *python.Machine, v python.Value, args python.Arguments) (python.Value, error) {
	b, err := args.BindAfter(v, "do_float", "value", "default?")
	if err != nil {
		return nil, err
	}
	f, ok, err := float(m, v)
	if err != nil {
		return nil, err
	}
	if !ok {
		return or(b[1], 0.0), nil
	}
	return f, nil
}

// numberSpace is the white space that may stand around a number.
const numberSpace = " \t\n\v\f\r"

// number charges reading a number of the text s, or the error that it is none, and refuses a
// text that is, or may be, a number to Python alone.
func number(m *python.Machine, s string) error {
	if err := m.Step(python.RaisingSteps); err != nil {
		return err
	}
	if err := m.Kinds(2 * len(s)); err != nil {
		return err
	}
	switch bare := strings.ToLower(strings.Trim(s, numberSpace+"+-")); {
	case !chars.IsASCII(s), strings.ContainsRune(s, '_'), bare == "inf", bare == "infinity", bare == "nan":
		return exception.Unsupported("the number %.20q", s)
	}
	return nil
}

// float is Python's float(v); ok is false where that is a TypeError or a ValueError.
func float(m *python.Machine, v python.Value) (f float64, ok bool, err error) {
	switch v := v.(type) {
	case bool, int64, *big.Int, float64:
		f, err = python.ToFloat(v)
		if err == nil && f-f != 0 {
			err = exception.Unsupported("a float that is not finite")
		}
		return f, err == nil, err
	case *python.Undefined:
		return 0, false, v.Fail()
	}
	s, ok := python.AsString(v)
	if !ok {
		return 0, false, nil
	}
	if err := number(m, s); err != nil {
		return 0, false, err
	}
	s = strings.Trim(s, numberSpace)
	if strings.Trim(s, "0123456789+-.eE") != "" {
		return 0, false, nil
	}
	f, err = strconv.ParseFloat(s, 64)
	if math.IsInf(f, 0) {
		return 0, false, exception.Unsupported("the number %.20q", s)
	}
	return f, err == nil, nil
}
