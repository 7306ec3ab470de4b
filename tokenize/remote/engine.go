package remote

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// An Engine has the tokens of a model made by engines that serve it: vLLM, SGLang or
// TensorRT-LLM. Only URLs and Model must be set. The fields must not change after the first
// call. All methods are safe for concurrent use.
//
// Errors of Encode and RenderBody wrap
//   - chat.ErrMalformed if the engine refuses the text or body (400, 413, 422),
//   - chat.ErrNotScorable if the engine does not tell the tokens of this body,
//   - tokenize.ErrTextTooLong for a text or body that is longer than what is sent,
//   - tokenize.ErrBusy if Waiting calls wait already, or the engine is busy (429, 503),
//   - net.ErrClosed after Close,
//   - the error of ctx, or context.DeadlineExceeded after Timeout.
//
// Any other error means that no engine was reached, that it failed or serves another model, or
// that its answer is not one that can be trusted. Only chat.ErrMalformed says something about
// the text or body.
type Engine struct {
	// URLs are the addresses of one or more engines that serve the model alike, as
	// http://10.0.0.7:8000, https://engine.example, or unix:///run/vllm.sock. A "/v1" at the
	// end is removed. The first that can be connected to is used, and stays in use until a
	// connection to it fails.
	URLs []string

	// Model is the name under which the engines serve the model. It replaces the model of each
	// body.
	Model string

	// Token is sent as a bearer token (vLLM's and SGLang's --api-key). "" sends none. Redirects
	// are not followed.
	Token string

	// HTTP makes the requests to http and https addresses, with a proxy or a CA of your own. Its
	// CheckRedirect is not called. nil is a client of the Engine's own, whose connections
	// Close closes.
	HTTP *http.Client

	// Requests limits the requests to engines at a time. 0 is 16. Waiting limits the calls that
	// wait for their turn. 0 is 1,024.
	Requests, Waiting int

	// Timeout bounds a call, with its wait and all addresses that are tried. 0 is 10 s.
	Timeout time.Duration
}

var (
	_ tokenize.Tokenizer = (*Engine)(nil)
	_ chat.Renderer      = (*Engine)(nil)
)

// Encode is the Encode of a tokenize.Tokenizer. Invalid UTF-8 is sent as U+FFFD.
func (e *Engine) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	return dst, errors.ErrUnsupported
}

// RenderBody is the RenderBody of a chat.Renderer.
func (e *Engine) RenderBody(ctx context.Context, path string, body []byte) (*chat.Rendered, error) {
	return nil, errors.ErrUnsupported
}

// Close ends all calls, which get net.ErrClosed, and waits for them. It closes the connections
// of the Engine's own client. Its error is nil.
func (e *Engine) Close() error { return nil }
