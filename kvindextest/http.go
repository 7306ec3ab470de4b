package kvindextest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// maxBody bounds the body of a request over HTTP.
const maxBody = 64 << 20

// defaultOutput is how many tokens an answer has if the request does not say it.
const defaultOutput = 16

// ServeHTTP is the API server of the engine: give the Engine to httptest.NewServer. It answers
// /v1/completions and /v1/chat/completions as vLLM with --enable-prompt-tokens-details, whole
// or as a stream, and GET of /health and /v1/models.
//
// The prompt is made by chat.Parse and EngineConfig.LLM. Of the other fields of a body, the
// engine reads max_tokens, max_completion_tokens, stream and stream_options.include_usage. An
// answer has as many tokens as max_tokens allows, 16 by default. The engine draws them, and the
// text of each is its id. A stream has a chunk for each token. It has usage only if the
// request wants it. Usage has the cached tokens that Serve returns. StepTime makes an answer
// take its time.
//
// A wrong request is answered by 400, another model than that of the engine by 404, and so is
// an adapter. A request with the header X-data-parallel-rank of another rank is answered by
// 400: in front of a pod of several ranks, the test has to choose the Engine. When a Restart,
// Close or FailHTTP ends a request, the connection breaks by a panic with
// http.ErrAbortHandler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	isChat := strings.HasSuffix(req.URL.Path, "/v1/chat/completions")
	switch {
	case req.Method == http.MethodGet && req.URL.Path == "/health":
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	case req.Method == http.MethodGet && req.URL.Path == "/v1/models":
		writeJSON(w, http.StatusOK, object{"object": "list", "data": []object{{"id": e.cfg.Model, "object": "model"}}})
		return
	case req.Method != http.MethodPost || !isChat && !strings.HasSuffix(req.URL.Path, "/v1/completions"):
		refuse(w, http.StatusNotFound, fmt.Errorf("no API at %.100q", req.URL.Path))
		return
	}
	a := answer{w: w, object: "text_completion", model: e.cfg.Model}
	if isChat {
		a.object = "chat.completion"
	}
	r, status, err := e.read(req, &a)
	if err != nil {
		refuse(w, status, err)
		return
	}
	status, fails := e.failure()
	if fails && status != 0 {
		refuse(w, status, errors.New("FailHTTP"))
		return
	}
	a.promptTokens = len(r.Tokens)
	c, err := e.submit(r)
	if err != nil && !errors.Is(err, ErrClosed) {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if err != nil || !e.answer(req, c, &a, fails) {
		panic(http.ErrAbortHandler)
	}
}

// FailHTTP makes the next n requests for completions fail that the engine could serve. They
// are answered by status; with status 0, the connection breaks after the first token, when
// the prompt is computed and in the cache. FailHTTP replaces an earlier one, so FailHTTP(0, 0)
// ends it.
func (e *Engine) FailHTTP(n, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failing, e.failStatus = n, status
}

func (e *Engine) failure() (status int, fails bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failing <= 0 {
		return 0, false
	}
	e.failing--
	return e.failStatus, true
}

// read reads a request, and what its answer has to be. status is for the error.
func (e *Engine) read(req *http.Request, a *answer) (r fakeengine.Request, status int, err error) {
	status = http.StatusBadRequest
	if rank := req.Header.Get("X-data-parallel-rank"); rank != "" && rank != strconv.Itoa(e.cfg.Rank) {
		return r, status, fmt.Errorf("data-parallel rank %.20q: this engine is rank %d", rank, e.cfg.Rank)
	}
	body, err := io.ReadAll(http.MaxBytesReader(a.w, req.Body, maxBody))
	if err != nil {
		return r, status, err
	}
	var more struct {
		MaxTokens           *int `json:"max_tokens"`
		MaxCompletionTokens *int `json:"max_completion_tokens"`
		N                   *int `json:"n"`
		Stream              bool `json:"stream"`
		StreamOptions       struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	parsed, err := chat.Parse(req.URL.Path, body)
	if err == nil {
		err = json.Unmarshal(body, &more)
	}
	if err != nil {
		return r, status, err
	}
	if parsed.Model != "" && parsed.Model != e.cfg.Model {
		return r, http.StatusNotFound, fmt.Errorf("the model %.100q does not exist", parsed.Model)
	}
	r.MaxTokens = defaultOutput
	if n := cmp.Or(more.MaxCompletionTokens, more.MaxTokens); n != nil {
		r.MaxTokens = *n
	}
	if r.MaxTokens < 1 || more.N != nil && *more.N != 1 {
		return r, status, errors.New("this engine answers max_tokens of at least 1, and n of 1")
	}
	a.stream, a.usage = more.Stream, more.StreamOptions.IncludeUsage || !more.Stream
	r.Salt = parsed.Salt
	r.Tokens, err = e.tokens(req, parsed)
	return r, status, err
}

// tokens returns the prompt of a request.
func (e *Engine) tokens(req *http.Request, r *chat.Request) ([]uint32, error) {
	llm, text := &e.cfg.LLM, r.Prompt
	switch {
	case len(r.Media) > 0:
		return nil, errors.New("this engine takes no media")
	case r.Chat() && llm.Chat == nil:
		return nil, fmt.Errorf("EngineConfig.LLM has no Chat: %w", cmp.Or(llm.ChatErr, errors.ErrUnsupported))
	case r.Chat():
		rendering, err := llm.Chat.Render(r, nil)
		if err != nil {
			return nil, err
		}
		if rendering.Pieces() != nil {
			return nil, errors.New("this engine takes no chat that is encoded in pieces")
		}
		text = rendering.Text
	case text == "":
		return r.Tokens, nil
	}
	if llm.Tokenizer == nil {
		return nil, errors.New("EngineConfig.LLM has no Tokenizer")
	}
	return llm.Tokenizer.Encode(req.Context(), nil, text, r.AddSpecial)
}

// answer writes the answer to a call as its tokens come, and reports whether all of it was
// written. With fails it ends after the first token.
func (e *Engine) answer(req *http.Request, c *call, a *answer, fails bool) bool {
	for ended := false; ; {
		e.mu.Lock()
		tokens, err := c.handle.Output(), c.err
		a.cached = c.handle.CachedTokens()
		e.mu.Unlock()
		fails := fails && len(tokens) > 0
		if fails && a.stream {
			a.next(tokens[:1])
		}
		if err != nil || fails {
			e.abort(c)
			return false
		}
		a.next(tokens)
		if ended {
			a.end()
			return true
		}
		select {
		case <-c.moved:
		case <-c.ended:
			ended = true
		case <-req.Context().Done():
			e.abort(c)
			return false
		}
	}
}

// object is a JSON object.
type object map[string]any

// An answer is what is written for a request.
type answer struct {
	w                    http.ResponseWriter
	object, model        string
	stream, usage        bool
	text                 strings.Builder
	written              int // tokens
	promptTokens, cached int
}

// next writes the new ones of all tokens so far.
func (a *answer) next(tokens []uint32) {
	for ; a.written < len(tokens); a.written++ {
		text := fmt.Sprint(tokens[a.written], " ")
		if a.text.WriteString(text); a.stream {
			a.chunk(object{"choices": []object{a.choice(text, nil)}})
		}
	}
}

// choice is a text as the only choice.
func (a *answer) choice(text string, finish any) object {
	c := object{"index": 0, "finish_reason": finish}
	switch {
	case a.object == "text_completion":
		c["text"] = text
	case a.stream:
		c["delta"] = object{"role": "assistant", "content": text}
	default:
		c["message"] = object{"role": "assistant", "content": text}
	}
	return c
}

// chunk writes an event of a stream.
func (a *answer) chunk(o object) {
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	data, _ := json.Marshal(a.named(o))
	fmt.Fprintf(a.w, "data: %s\n\n", data)
	_ = http.NewResponseController(a.w).Flush()
}

// named adds what each object of an answer has.
func (a *answer) named(o object) object {
	o["id"], o["model"], o["object"] = "cmpl-0", a.model, a.object
	if a.stream && a.object == "chat.completion" {
		o["object"] = "chat.completion.chunk"
	}
	if o["usage"] == nil && a.usage && !a.stream {
		o["usage"] = a.usageOf()
	}
	return o
}

func (a *answer) usageOf() object {
	return object{
		"prompt_tokens": a.promptTokens, "completion_tokens": a.written, "total_tokens": a.promptTokens + a.written,
		"prompt_tokens_details": object{"cached_tokens": a.cached},
	}
}

// end writes the end of the answer.
func (a *answer) end() {
	if !a.stream {
		writeJSON(a.w, http.StatusOK, a.named(object{"choices": []object{a.choice(a.text.String(), "length")}}))
		return
	}
	a.chunk(object{"choices": []object{a.choice("", "length")}})
	if a.usage {
		a.chunk(object{"choices": []object{}, "usage": a.usageOf()})
	}
	fmt.Fprint(a.w, "data: [DONE]\n\n")
}

// refuse answers by an error as vLLM does.
func refuse(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, object{"error": object{"message": err.Error(), "type": http.StatusText(status), "code": status}})
}

func writeJSON(w http.ResponseWriter, status int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o)
}
