package events

import (
	"errors"
	"fmt"
	"slices"
)

// Reason says in one word why a message could not be read, for counters. Each Reason
// has another likely cause.
type Reason uint8

// The reasons of errors.
const (
	ReasonUnknown       Reason = iota // not an error about what an engine sends
	ReasonTruncated                   // the payload ends too early: it was cut, or a length in it lies
	ReasonEncoding                    // not one MessagePack object, or a string that is not UTF-8: no engine's payload, or damaged
	ReasonType                        // a field has a type or a value that no known version sends
	ReasonMissing                     // a field that every known version sends is not there
	ReasonContradiction               // fields exclude one another, or one is there twice
	ReasonLimit                       // more of something than an engine can be made to send, or than the transport takes
	ReasonFrames                      // not the frames that engines send: a topic, a number of 8 bytes, a payload

	NumReasons = iota
)

var reasonNames = [...]string{
	ReasonUnknown: "unknown", ReasonTruncated: "truncated", ReasonEncoding: "encoding", ReasonType: "type",
	ReasonMissing: "missing", ReasonContradiction: "contradiction", ReasonLimit: "limit", ReasonFrames: "frames",
}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// MarshalText returns the String of r.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasonNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("events: %q is no reason", text)
	}
	*r = Reason(i)
	return nil
}

// ReasonOf returns the Reason of an error of Decode or Batch.Validate, or of Message.Err
// of a Subscriber, wrapped or not. It is ReasonUnknown for all other errors, and for no
// error of these.
func ReasonOf(err error) Reason {
	var f *fault
	if errors.As(err, &f) {
		return f.reason
	}
	return ReasonUnknown
}

// A fault is what is wrong with a payload. It is the innermost error: those
// around it say where.
type fault struct {
	reason Reason
	text   string
}

func (f *fault) Error() string { return f.text }

func faultf(r Reason, format string, args ...any) error {
	return &fault{r, fmt.Sprintf(format, args...)}
}
