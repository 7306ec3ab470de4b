// Package fault has what can be wrong with the message of an engine.
package fault

import (
	"errors"
	"fmt"
)

// The reasons, each in one word, for counters. Each has another likely cause: see the docs
// of stats.Malformed.
const (
	Unknown       = "unknown"
	Truncated     = "truncated"
	Encoding      = "encoding"
	Type          = "type"
	Missing       = "missing"
	Contradiction = "contradiction"
	Limit         = "limit"
	Frames        = "frames"
)

// Reasons has all of them.
var Reasons = [...]string{Unknown, Truncated, Encoding, Type, Missing, Contradiction, Limit, Frames}

// Reason returns the reason of an error of this package, wrapped or not. It is Unknown for
// all other errors, and for no error.
func Reason(err error) string {
	var f *fault
	if errors.As(err, &f) {
		return f.reason
	}
	return Unknown
}

// A fault is a defect of a payload. It is the innermost error: those around it
// have its place.
type fault struct{ reason, text string }

func (f *fault) Error() string { return f.text }

// Errorf returns an error with a reason.
func Errorf(reason, format string, args ...any) error {
	return &fault{reason, fmt.Sprintf(format, args...)}
}
