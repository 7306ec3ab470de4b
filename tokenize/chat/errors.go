package chat

import (
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/internal/jinja"
)

var (
	// ErrMalformed is wrapped by the errors about a request that an engine
	// refuses: not JSON, a field of a wrong type, fields that exclude one another.
	// They name the field.
	ErrMalformed = errors.New("malformed")

	// ErrNotScorable is wrapped by the errors about a request that an engine may
	// take and whose tokens this package cannot tell, such as media without
	// hashes, or whose features are excluded. They name the field or the features.
	ErrNotScorable = errors.New("not scorable")

	// ErrUnsupported is wrapped by the errors about a model whose engine renders
	// chats in a way that this package does not know, and about a template with a
	// construct that it does not know.
	ErrUnsupported = errors.New("not supported")

	// ErrNoTemplate is wrapped by the error about a model that has no chat template.
	ErrNoTemplate = errors.New("no chat template")

	// ErrTemplate is wrapped by what a template raises about a conversation. The
	// engine refuses it too.
	ErrTemplate = errors.New("the chat template refused it")
)

// of wraps sentinel with a message that ends as the sentinel says.
func of(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)
}

func malformed(format string, args ...any) error   { return of(ErrMalformed, format, args...) }
func notScorable(format string, args ...any) error { return of(ErrNotScorable, format, args...) }
func unsupported(format string, args ...any) error { return of(ErrUnsupported, format, args...) }

// kind names the type of a JSON value in errors.
func kind(v jinja.Value) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case *jinja.List:
		return "an array"
	case *jinja.Dict:
		return "an object"
	}
	return "a number"
}
