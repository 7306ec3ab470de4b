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

// defaultOutput is the number of tokens of an answer if the request sets none.
const defaultOutput = 16

// ServeHTTP is the API server of the engine: give the Engine to httptest.NewServer. It answers
// /v1/completions and /v1/chat/completions as vLLM with --enable-prompt-tokens-details, whole
// or as a stream, /v1/messages as Anthropic's API, and GET of /health and /v1/models.
//
// The prompt is made by chat.Parse and EngineConfig.LLM. Of the other fields of a body, the
// engine reads max_tokens, max_completion_tokens, stream and stream_options.include_usage. An
// answer has as many tokens as max_tokens allows, 16 by default. The engine draws them, and the
// text of each is its id. A stream has a chunk for each token. It has usage only if the
// request wants it, and of a message always. Usage has the cached tokens that Serve returns;
// the input_tokens of a message are without them. Each answer of an Engine has an id of its
// own. StepTime makes an answer take its time.
//
// A wrong request is answered by 400, another model than that of the engine by 404, and so is
// an adapter. A request with the header X-data-parallel-rank of another rank is answered by
// 400: in front of a pod of several ranks, the test has to choose the Engine. When a Restart,
// Close or FailHTTP ends a request, the connection breaks by a panic with
// http.ErrAbortHandler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	object := objectOf(req.URL.Path)
	switch {
	case req.Method == http.MethodGet && req.URL.Path == "/health":
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	case req.Method == http.MethodGet && req.URL.Path == "/v1/models":
		writeJSON(w, http.StatusOK, fields{"object": "list", "data": []fields{{"id": e.cfg.Model, "object": "model"}}})
		return
	case req.Method != http.MethodPost || object == "":
		refuse(w, http.StatusNotFound, fmt.Errorf("no API at %.100q", req.URL.Path))
		return
	}
	a := answer{w: w, object: object, model: e.cfg.Model}
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
	a.id = fmt.Sprintf("cmpl-%s-%d", e.cfg.Pod, e.answers.Add(1))
	c, err := e.submit(r)
	if err != nil && !errors.Is(err, ErrClosed) {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if err != nil || !e.answer(req, c, &a, fails) {
		panic(http.ErrAbortHandler)
	}
}

// The kinds of objects in the answers of the APIs.
const (
	completionObject = "text_completion"
	chatObject       = "chat.completion"
	messageObject    = "message"
)

// objectOf returns the kind of object in the answers of the API at a path; "": there is no such API.
func objectOf(path string) string {
	switch {
	case strings.HasSuffix(path, "/v1/chat/completions"):
		return chatObject
	case strings.HasSuffix(path, "/v1/completions"):
		return completionObject
	case strings.HasSuffix(path, "/v1/messages"):
		return messageObject
	}
	return ""
}

// FailHTTP makes the next n POST requests fail that the engine could serve (/health goes on). They
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

// read reads a request, and sets the fields of its answer. status is the status of the error.
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

var errNoTokenizer = errors.New("EngineConfig.LLM has no Tokenizer")

// tokens returns the prompt of a request.
func (e *Engine) tokens(req *http.Request, p *chat.Prompt) ([]uint32, error) {
	llm, text := &e.cfg.LLM, p.Text
	switch {
	case len(p.Media) > 0:
		return nil, errors.New("this engine takes no media")
	case p.Chat() && llm.Chat == nil:
		return nil, fmt.Errorf("EngineConfig.LLM has no Chat: %w", cmp.Or(llm.ChatErr, errors.ErrUnsupported))
	case p.Chat():
		rendering, err := llm.Chat.Render(p, nil)
		if err != nil {
			return nil, err
		}
		if llm.Tokenizer == nil {
			return nil, errNoTokenizer
		}
		return rendering.Encode(req.Context(), nil, llm.Tokenizer)
	case text == "":
		return p.Tokens, nil
	}
	if llm.Tokenizer == nil {
		return nil, errNoTokenizer
	}
	return llm.Tokenizer.Encode(req.Context(), nil, text, p.AddSpecial)
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

// fields is a JSON object.
type fields map[string]any

// An answer writes the answer to a request.
type answer struct {
	w                    http.ResponseWriter
	object, model, id    string
	stream, usage        bool
	text                 strings.Builder
	begun                bool // a stream has an event
	written              int  // tokens
	promptTokens, cached int
}

// next writes the tokens that are new since the last call.
func (a *answer) next(tokens []uint32) {
	for ; a.written < len(tokens); a.written++ {
		text := fmt.Sprint(tokens[a.written], " ")
		if a.text.WriteString(text); !a.stream {
			continue
		}
		if a.object != messageObject {
			a.chunk(fields{"choices": []fields{a.choice(text, nil)}})
			continue
		}
		if !a.begun {
			a.event("message_start", fields{"message": a.message("", nil)})
			a.event("content_block_start", fields{"index": 0, "content_block": fields{"type": "text", "text": ""}})
		}
		a.event("content_block_delta", fields{"index": 0, "delta": fields{"type": "text_delta", "text": text}})
	}
}

// choice returns the object of a text that is the only choice.
func (a *answer) choice(text string, finish any) fields {
	c := fields{"index": 0, "finish_reason": finish}
	switch {
	case a.object == completionObject:
		c["text"] = text
	case a.stream:
		c["delta"] = fields{"role": "assistant", "content": text}
	default:
		c["message"] = fields{"role": "assistant", "content": text}
	}
	return c
}

// message returns an answer of Anthropic's API.
func (a *answer) message(text string, stop any) fields {
	content := []fields{}
	if text != "" {
		content = append(content, fields{"type": "text", "text": text})
	}
	return fields{"id": a.id, "type": messageObject, "role": "assistant", "model": a.model, "content": content, "stop_reason": stop, "usage": a.usageOf()}
}

// chunk writes an event of a stream of OpenAI's API.
func (a *answer) chunk(o fields) { a.send("", a.named(o)) }

// event writes an event of a stream of Anthropic's API.
func (a *answer) event(name string, o fields) {
	o["type"] = name
	a.send("event: "+name+"\n", o)
}

func (a *answer) send(head string, o fields) {
	a.begun = true
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	data, _ := json.Marshal(o)
	fmt.Fprintf(a.w, "%sdata: %s\n\n", head, data)
	_ = http.NewResponseController(a.w).Flush()
}

// named adds the fields that each object of OpenAI's API has.
func (a *answer) named(o fields) fields {
	o["id"], o["model"], o["object"] = a.id, a.model, a.object
	if a.stream && a.object == chatObject {
		o["object"] = "chat.completion.chunk"
	}
	if o["usage"] == nil && a.usage && !a.stream {
		o["usage"] = a.usageOf()
	}
	return o
}

func (a *answer) usageOf() fields {
	if a.object == messageObject {
		return fields{"input_tokens": a.promptTokens - a.cached, "cache_read_input_tokens": a.cached, "output_tokens": a.written}
	}
	return fields{
		"prompt_tokens": a.promptTokens, "completion_tokens": a.written, "total_tokens": a.promptTokens + a.written,
		"prompt_tokens_details": fields{"cached_tokens": a.cached},
	}
}

// end writes the end of the answer.
func (a *answer) end() {
	isMessage := a.object == messageObject
	switch {
	case isMessage && a.stream:
		a.event("content_block_stop", fields{"index": 0})
		a.event("message_delta", fields{"delta": fields{"stop_reason": "max_tokens"}, "usage": a.usageOf()})
		a.event("message_stop", fields{})
	case isMessage:
		writeJSON(a.w, http.StatusOK, a.message(a.text.String(), "max_tokens"))
	case !a.stream:
		writeJSON(a.w, http.StatusOK, a.named(fields{"choices": []fields{a.choice(a.text.String(), "length")}}))
	default:
		a.chunk(fields{"choices": []fields{a.choice("", "length")}})
		if a.usage {
			a.chunk(fields{"choices": []fields{}, "usage": a.usageOf()})
		}
		fmt.Fprint(a.w, "data: [DONE]\n\n")
	}
}

// refuse answers with an error in vLLM's form.
func refuse(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, fields{"error": fields{"message": err.Error(), "type": http.StatusText(status), "code": status}})
}

func writeJSON(w http.ResponseWriter, status int, o fields) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o)
}
