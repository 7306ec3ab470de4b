// Package exception has the errors of templates: the exceptions that Jinja2 and Python raise, and
// refusals and limits, which are the interpreter's own.
package exception

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported is wrapped by the errors about constructs of Jinja2 or Python that the
	// interpreter lacks.
	ErrUnsupported = errors.New("not supported")
	// ErrLimit is wrapped by the errors about a rendering past one of its limits.
	ErrLimit = errors.New("limit exceeded")
)

// An Error is an error of a template, at compiling or rendering.
type Error struct {
	// Class is the exception that Jinja2 or Python raises, such as
	// "TemplateSyntaxError" or "TypeError"; "" with ErrUnsupported and ErrLimit.
	Class     string
	Message   string
	Line, Col int   // of the template, from 1, Col in code points; 0: not known
	Err       error // ErrUnsupported, ErrLimit or nil
}

func (e *Error) Error() string {
	msg := e.Message
	switch {
	case e.Class != "":
		msg = e.Class + ": " + msg
	case e.Err != nil:
		msg += ": " + e.Err.Error()
	}
	if e.Line == 0 {
		return msg
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Col, msg)
}

func (e *Error) Unwrap() error { return e.Err }

// New returns an exception of Jinja2 or Python. The evaluator fills in the place.
func New(class, format string, args ...any) error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...)}
}

// Unsupported returns an error that wraps ErrUnsupported.
func Unsupported(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Err: ErrUnsupported}
}

// OverLimit returns an error that wraps ErrLimit.
func OverLimit(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf(format, args...), Err: ErrLimit}
}

// Is reports whether err is an exception of one of the classes.
func Is(err error, classes ...string) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range classes {
		if e.Class == c {
			return true
		}
	}
	return false
}
