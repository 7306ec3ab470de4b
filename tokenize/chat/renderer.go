package chat

import "context"

// A Renderer makes the prompt of a whole body, as an engine does on request, such as a
// remote.Engine. An Indexer calls the Tokenizer of a Model that is a Renderer, for bodies
// that the Chat of the Model cannot render. A Renderer is safe for concurrent use.
type Renderer interface {
	// RenderBody returns the prompt of a body that was sent to path. path is as for Parse, and
	// the body is not kept. If the engine refuses the body too, the error wraps ErrMalformed.
	// If the Renderer does not have the exact prompt, it wraps ErrNotScorable.
	RenderBody(ctx context.Context, path string, body []byte) (*RenderedBody, error)
}

// RenderedBody is the prompt of a body.
type RenderedBody struct {
	Tokens []uint32
	Media  []Media // in order of Offset
	Salt   string  // cache_salt
}
