package chat

import (
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/internal/jinja"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

var (
	// ErrMalformed is wrapped by errors about a request that an engine refuses too: it
	// is not JSON, a field has a wrong type, two fields exclude each other. The error
	// names the field.
	ErrMalformed = errors.New("malformed")

	// ErrNotScorable is wrapped by errors about a request that an engine may accept, but whose
	// tokens this package cannot compute. Either it has something unknown, such as media
	// without hashes, or it uses features that Model.Exclude excludes. The error names the
	// field or the features.
	ErrNotScorable = errors.New("not scorable")

	// ErrUnsupported is wrapped by errors about a model whose chats the engine renders in an
	// unknown way, and about a template with an unknown construct.
	ErrUnsupported = errors.New("not supported")

	// ErrNoTemplate is wrapped by errors about a model without a chat template.
	ErrNoTemplate = errors.New("no chat template")

	// ErrTemplate is wrapped by errors that a template raises about a conversation, and by those
	// of Jinja2 about the template of a request. The engine refuses it too.
	ErrTemplate = errors.New("the chat template refused it")
)

// errLimit is ErrNotScorable, and jinja.ErrLimit, too: kvindexd distinguishes by that the errors that the sender
// of a request can mend.
type errLimit struct{}

func (errLimit) Error() string   { return ErrNotScorable.Error() }
func (errLimit) Unwrap() []error { return []error{ErrNotScorable, jinja.ErrLimit} }

// of wraps sentinel with a message in front.
func of(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)
}

func malformed(format string, args ...any) error   { return of(ErrMalformed, format, args...) }
func notScorable(format string, args ...any) error { return of(ErrNotScorable, format, args...) }
func unsupported(format string, args ...any) error { return of(ErrUnsupported, format, args...) }

// kind names the type of a JSON value in errors.
func kind(v python.Value) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string, media:
		return "a string"
	case *python.List, tokenList:
		return "an array"
	case *python.Dict:
		return "an object"
	}
	return "a number"
}
