package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
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
//   - chat.ErrNotScorable if the engine does not return the tokens of this body,
//   - tokenize.ErrTextTooLong for a text of more than 16 MiB, or a body of more than 64 MiB,
//   - tokenize.ErrBusy if Waiting calls wait already, or the engine is busy (429, 503),
//   - net.ErrClosed after Close,
//   - the error of ctx, or context.DeadlineExceeded after Timeout.
//
// Any other error means that no engine was reached, that it failed or serves another model, or
// that its answer cannot be right. Only chat.ErrMalformed is about the text or body.
type Engine struct {
	// URLs are the addresses of one or more engines that serve the model alike, as
	// http://10.0.0.7:8000, https://engine.example, or unix:///run/vllm.sock. A "/v1" at the
	// end is removed. The first that can be connected to is used, and stays in use until a
	// connection to it fails or a call takes too long.
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

	once      sync.Once
	invalid   error // of the fields
	addresses []*address
	current   atomic.Uint32 // the address that is tried first
	name      []byte        // Model, in JSON
	places    chan struct{} // one for each request that runs
	waiting   atomic.Int64
	own       []*http.Transport

	closing context.Context // ends by Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed, and running.Add
	closed  bool
	running sync.WaitGroup
}

var (
	_ tokenize.Tokenizer = (*Engine)(nil)
	_ chat.Renderer      = (*Engine)(nil)
)

// Bounds of an Engine.
const (
	maxText   = 16 << 20 // bytes of a text, as in package tokenize
	maxBody   = 64 << 20 // bytes of a body
	maxAnswer = 64 << 20 // bytes; also see answerLimit

	defaultRequests = 16
	defaultWaiting  = 1024
	defaultTimeout  = 10 * time.Second
)

// init checks the fields, once.
func (e *Engine) init() error {
	e.once.Do(func() {
		e.closing, e.stop = context.WithCancel(context.Background())
		requests := e.Requests
		if requests == 0 {
			requests = defaultRequests
		}
		switch {
		case len(e.URLs) == 0:
			e.invalid = errors.New("no URLs")
		case e.Model == "":
			e.invalid = errors.New("no Model")
		case requests < 0 || e.Waiting < 0 || e.Timeout < 0:
			e.invalid = fmt.Errorf("negative: one of Requests %d, Waiting %d and Timeout %v", e.Requests, e.Waiting, e.Timeout)
		}
		if e.invalid != nil {
			return
		}
		e.places = make(chan struct{}, requests)
		if e.name, e.invalid = json.Marshal(e.Model); e.invalid == nil {
			e.invalid = e.dial(requests)
		}
	})
	if e.invalid != nil {
		return fmt.Errorf("remote: Engine: %w", e.invalid)
	}
	return nil
}

// begin is the start of a call: it waits for a place. end must be called if err is nil.
func (e *Engine) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	if err := e.init(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, nil, closedError()
	}
	e.running.Add(1)
	e.mu.Unlock()
	timeout := e.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	unhook := context.AfterFunc(e.closing, cancel)
	done := func() {
		unhook()
		cancel()
		e.running.Done()
	}
	if err := e.enter(ctx); err != nil {
		done()
		return nil, nil, err
	}
	return ctx, func() {
		<-e.places
		done()
	}, nil
}

func (e *Engine) enter(ctx context.Context) error {
	select {
	case e.places <- struct{}{}:
		return nil
	default:
	}
	most := int64(e.Waiting)
	if most == 0 {
		most = defaultWaiting
	}
	defer e.waiting.Add(-1)
	if n := e.waiting.Add(1); n > most {
		return fmt.Errorf("remote: %w: %d calls wait for %d requests", tokenize.ErrBusy, most, cap(e.places))
	}
	select {
	case e.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return e.ended(ctx)
	}
}

// ended returns the error of a call whose context has ended.
func (e *Engine) ended(ctx context.Context) error {
	if e.closing.Err() != nil {
		return closedError()
	}
	return fmt.Errorf("remote: model %q: %w", e.Model, ctx.Err())
}

func closedError() error { return fmt.Errorf("remote: the Engine is closed: %w", net.ErrClosed) }

// Close ends all calls, which get net.ErrClosed, and waits for them. It closes the connections
// of the Engine's own client. Its error is nil.
func (e *Engine) Close() error {
	_ = e.init() // a call may come later, and must find it closed
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
	e.running.Wait()
	for _, t := range e.own {
		t.CloseIdleConnections()
	}
	return nil
}

// Encode is the Encode of a tokenize.Tokenizer, by the first that the engine has of /tokenize
// (vLLM and SGLang), /v1/tokenize (SGLang) and /v1/completions/render (TensorRT-LLM). Invalid
// UTF-8 is sent as U+FFFD.
func (e *Engine) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if text == "" && !special {
		return dst, ctx.Err() // vLLM refuses it in some versions
	}
	if len(text) > maxText {
		return dst, fmt.Errorf("remote: %w: %d bytes, of at most %d", tokenize.ErrTextTooLong, len(text), maxText)
	}
	ctx, end, err := e.begin(ctx)
	if err != nil {
		return dst, err
	}
	defer end()
	return e.encode(ctx, dst, text, special)
}

func (e *Engine) encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	body := make([]byte, 0, len(text)+len(text)/8+len(e.name)+80)
	body = append(append(append(body, `{"model":`...), e.name...), `,"add_special_tokens":`...)
	if special {
		body = append(body, "true"...)
	} else {
		body = append(body, "false"...)
	}
	body = append(appendString(append(body, `,"prompt":`...), text), '}')
	a, err := e.ask(ctx, question{routes: encodings, body: body, dst: dst})
	if err != nil {
		return dst, err
	}
	return a.tokens, nil
}

// RenderBody is the RenderBody of a chat.Renderer: for a body of OpenAI's chat, completion or
// Responses API, or of Anthropic's Messages API. The model of the body is replaced by Model.
//
// It uses /render behind the path of the API. vLLM has that since 0.18, for Messages and
// Responses in its main of autumn 2026, from 0.30 on only with --enable-scale-out or as "vllm
// launch render"; TensorRT-LLM has it with TRTLLM_ENABLE_RENDER_ENDPOINTS=1. Without it,
// completions and chats go to /tokenize (vLLM) or /v1/tokenize (SGLang since PR 23981). A
// request with parts that /tokenize would leave out is chat.ErrNotScorable then: media, documents, reasoning efforts,
// tool choices, and all chats of gpt-oss. vLLM before 2026 also left out
// --default-chat-template-kwargs there, which cannot be seen from here: such an engine needs
// /render.
//
// The answer is refused if it has not as many media as the body, each within the prompt. Media
// in a body with an unknown kind of part cannot be counted: it is chat.ErrNotScorable.
func (e *Engine) RenderBody(ctx context.Context, path string, body []byte) (*chat.RenderedBody, error) {
	if len(body) > maxBody {
		return nil, fmt.Errorf("remote: %w: a body of %d bytes, of at most %d", tokenize.ErrTextTooLong, len(body), maxBody)
	}
	b, err := readBody(path, bytes.TrimPrefix(body, []byte("\ufeff")))
	if err != nil {
		return nil, fmt.Errorf("remote: the body: %w", err)
	}
	ctx, end, err := e.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	q := question{routes: []route{b.render}, body: b.with(e.name), media: b.media}
	a, err := e.ask(ctx, q)
	switch {
	case errors.Is(err, errNoRoute):
		a, err = e.withoutRender(ctx, path, body, b, err)
	case errors.Is(err, chat.ErrMalformed) && b.media > 0: // TensorRT-LLM renders no media, but takes them
		err = fmt.Errorf("%w: a body with media: %s", chat.ErrNotScorable, err.Error())
	}
	if err != nil {
		return nil, err
	}
	if a.salt != "" && a.salt != b.salt {
		return nil, fmt.Errorf("remote: the engine answers with a cache_salt that the body does not have")
	}
	return &chat.RenderedBody{Tokens: a.tokens, Media: a.media, Salt: b.salt}, nil
}

// withoutRender uses /tokenize for bodies that it reads whole. why is the error of the rendering.
func (e *Engine) withoutRender(ctx context.Context, path string, body []byte, b *body, why error) (answer, error) {
	if b.render != renderChat && b.render != renderCompletion {
		return answer{}, fmt.Errorf("%w: %w", chat.ErrNotScorable, why)
	}
	prompt, err := chat.Parse(path, body)
	if err != nil {
		return answer{}, fmt.Errorf("remote: the body: %w (%w)", err, why)
	}
	if !prompt.Chat() {
		if prompt.Text == "" && (prompt.Tokens != nil || !prompt.AddSpecial) {
			return answer{tokens: prompt.Tokens}, nil
		}
		tokens, err := e.encode(ctx, nil, prompt.Text, prompt.AddSpecial)
		return answer{tokens: tokens}, err
	}
	if dropped := b.dropped(); dropped != "" {
		return answer{}, fmt.Errorf("%w: /tokenize leaves out %s: %w", chat.ErrNotScorable, dropped, why)
	}
	a, err := e.ask(ctx, question{routes: chats, body: b.with(e.name)})
	if errors.Is(err, errNoRoute) {
		err = fmt.Errorf("%w: %w", chat.ErrNotScorable, err)
	}
	return a, err
}
