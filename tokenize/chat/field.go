package chat

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A fieldError is an error about a field of a request. The reader of an outer field puts its
// name before the path.
type fieldError struct {
	sentinel error
	path     string // such as "messages[2].content[0].text"
	msg      string
}

func (e *fieldError) Error() string {
	if e.path == "" {
		return e.sentinel.Error() + ": " + e.msg
	}
	return e.sentinel.Error() + ": " + e.path + ": " + e.msg
}
func (e *fieldError) Unwrap() error { return e.sentinel }

func badField(path, format string, args ...any) error {
	return &fieldError{ErrMalformed, path, fmt.Sprintf(format, args...)}
}

func unscored(path, format string, args ...any) error {
	return &fieldError{ErrNotScorable, path, fmt.Sprintf(format, args...)}
}

// beyond is about a request past one of the limits of its reader.
func beyond(path, format string, args ...any) error {
	return &fieldError{errLimit{}, path, fmt.Sprintf(format, args...)}
}

func wrongType(path string, v python.Value, want string) error {
	return badField(path, "%s, not %s", kind(v), want)
}

// within puts an outer field before the path of an error.
func within(err error, format string, args ...any) error {
	var e *fieldError
	if !errors.As(err, &e) {
		return err
	}
	outer := fmt.Sprintf(format, args...)
	if e.path != "" && e.path[0] != '[' {
		outer += "."
	}
	return &fieldError{e.sentinel, outer + e.path, e.msg}
}

// Most fields may be null, which is the same as missing.

// optional returns a field, nil if it is null or missing.
func optional(o *python.Dict, name string) python.Value {
	v, _ := o.Lookup(name)
	return v
}

func optionalText(o *python.Dict, name string) (string, error) {
	switch v := optional(o, name).(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	default:
		return "", wrongType(name, v, "a string")
	}
}

func optionalObject(o *python.Dict, name string) (*python.Dict, error) {
	switch v := optional(o, name).(type) {
	case nil:
		return nil, nil
	case *python.Dict:
		return v, nil
	default:
		return nil, wrongType(name, v, "an object")
	}
}

func optionalList(o *python.Dict, name string) (*python.List, error) {
	switch v := optional(o, name).(type) {
	case nil:
		return nil, nil
	case *python.List:
		return v, nil
	default:
		return nil, wrongType(name, v, "an array")
	}
}

// text returns a field that has to be a string.
func text(o *python.Dict, name string) (string, error) {
	v, ok := o.Lookup(name)
	if !ok {
		return "", badField(name, "missing")
	}
	s, ok := v.(string)
	if !ok {
		return "", wrongType(name, v, "a string")
	}
	return s, nil
}

// flag returns a boolean field. Null counts as missing.
func flag(o *python.Dict, name string, or bool) (bool, error) {
	v, ok := o.Lookup(name)
	if !ok {
		return or, nil
	}
	on, ok := asFlag(v)
	if !ok {
		return false, wrongType(name, v, "a boolean")
	}
	return on, nil
}

// asFlag reads a boolean as pydantic 2.13 does, which accepts numbers and words too.
func asFlag(v python.Value) (on, ok bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case int64:
		return v == 1, v == 0 || v == 1
	case float64:
		return v == 1, v == 0 || v == 1
	case string:
		switch strings.ToLower(v) {
		case "1", "on", "t", "true", "y", "yes":
			return true, true
		case "0", "off", "f", "false", "n", "no":
			return false, true
		}
	}
	return false, false
}

// isInteger reports whether pydantic 2.13 reads a value as an integer: a boolean, a whole
// number or its decimal digits.
func isInteger(v python.Value) bool {
	switch v := v.(type) {
	case bool, int64, *big.Int:
		return true
	case float64:
		return v == math.Trunc(v) && math.Abs(v) < 1<<63
	case string:
		return len(v) <= maxDigits && integer.MatchString(v)
	}
	return false
}

// integer matches pydantic 2.13's texts of integers.
var integer = regexp.MustCompile(`^\s*[+-]?[0-9]+(_[0-9]+)*(\.0+)?\s*$`)
