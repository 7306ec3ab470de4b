package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A route is a path of an engine. Sources: vLLM's main of autumn 2026,
// entrypoints/serve/tokenize and entrypoints/scale_out/render, api_router.py; SGLang's main of
// autumn 2026, srt/entrypoints/http_server.py; TensorRT-LLM's main of autumn 2026,
// serve/render/api_router.py.
type route uint8

const (
	tokenizeText route = iota
	tokenizeV1
	tokenizeChat // the same paths, for a chat
	tokenizeChatV1
	renderCompletion // all that render are behind it
	renderChat
	renderMessages
	renderResponses
	numRoutes
)

func (r route) String() string {
	return [...]string{"/tokenize", "/v1/tokenize", "/tokenize", "/v1/tokenize", "/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/render", "/v1/responses/render"}[r]
}

// The routes that take a text, or a chat without rendering it, in the order in which they are
// tried.
var (
	encodings = []route{tokenizeText, tokenizeV1, renderCompletion}
	chats     = []route{tokenizeChat, tokenizeChatV1}
)

// An address is that of one engine, with what is known about it.
type address struct {
	base   string // for errors, without a password
	url    *url.URL
	client *http.Client

	// missing is the time until which the engine is taken to lack a route, in Unix nanoseconds.
	missing [numRoutes]atomic.Int64
	harmony atomic.Uint32 // 0: not known yet
	running atomic.Int32  // requests
}

const (
	notHarmony = 1 + iota
	isHarmony
)

// missingFor is how long an engine is taken to lack a route. A restart that shows ends it.
const missingFor = time.Minute

// forget forgets what the engine offers: it may be another one.
func (a *address) forget() {
	for i := range a.missing {
		a.missing[i].Store(0)
	}
	a.harmony.Store(0)
}

// dial parses the addresses. It sends nothing.
func (e *Engine) dial(requests int) error {
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	transport := func() *http.Transport {
		t, ok := http.DefaultTransport.(*http.Transport)
		if ok {
			t = t.Clone()
		} else {
			t = new(http.Transport)
		}
		t.MaxIdleConns, t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = 0, requests, 64<<10
		e.own = append(e.own, t)
		return t
	}
	var client *http.Client
	for i, s := range e.URLs {
		u, err := url.Parse(s)
		switch {
		case strings.Contains(s, "@") && (err != nil || u.Host == ""):
			return fmt.Errorf("URLs[%d] has a user name and is not valid", i)
		case err != nil:
			return fmt.Errorf("URLs[%d] is not that of an HTTP server, as http://10.0.0.7:8000 or unix:///run/vllm.sock is", i) // it may have a password
		case u.Scheme == "unix" && u.Host == "" && u.Path != "":
			socket := u.Path
			t := transport()
			t.Proxy = nil
			t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}
			e.addresses = append(e.addresses, &address{base: s, url: &url.URL{Scheme: "http", Host: "localhost"}, client: &http.Client{Transport: t, CheckRedirect: noRedirect}})
			continue
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return fmt.Errorf("URLs[%d] %q is not that of an HTTP server, as http://10.0.0.7:8000 or unix:///run/vllm.sock is", i, u.Redacted())
		}
		if client == nil {
			client = &http.Client{Transport: nil, CheckRedirect: noRedirect}
			if e.HTTP != nil {
				*client = *e.HTTP
				client.CheckRedirect = noRedirect
			} else {
				client.Transport = transport()
			}
		}
		u.Path = strings.TrimRight(u.Path, "/")
		u.Path = strings.TrimRight(strings.TrimSuffix(u.Path, "/v1"), "/")
		u.RawPath, u.RawQuery, u.Fragment = "", "", ""
		e.addresses = append(e.addresses, &address{base: u.Redacted(), url: u, client: client})
	}
	return nil
}

// A question is a request to an engine, with the facts by which its answer is checked.
type question struct {
	routes []route // the first that the engine has is used
	body   []byte
	dst    []uint32 // the tokens are appended
	media  int      // in the body
	left   int      // addresses not tried before, with this one
}

var (
	errNoRoute = errors.New("the path is not served")
	errAway    = errors.New("not reached") // another address may do
)

// ask sends a question to the current address, and to the next ones if it is away.
func (e *Engine) ask(ctx context.Context, q question) (answer, error) {
	from := e.current.Load()
	var errs []error
	for i := range e.addresses {
		at := (from + uint32(i)) % uint32(len(e.addresses))
		q.left = len(e.addresses) - i
		a, err := e.askOne(ctx, e.addresses[at], q)
		if !errors.Is(err, errAway) {
			if i > 0 {
				e.current.Store(at)
			}
			return a, err
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			e.current.CompareAndSwap(from, (at+1)%uint32(len(e.addresses)))
			return answer{}, fmt.Errorf("%w: %w", e.ended(ctx), errors.Join(errs...))
		}
	}
	return answer{}, errors.Join(errs...)
}

// askOne sends a question to one address, by the first of the routes that it has.
func (e *Engine) askOne(ctx context.Context, to *address, q question) (answer, error) {
	if q.routes[0] == tokenizeChat {
		if err := e.refuseHarmony(ctx, to, q.left); err != nil {
			return answer{}, err
		}
	}
	var missing error
	for _, r := range q.routes {
		if time.Now().UnixNano() < to.missing[r].Load() {
			continue
		}
		buf, _ := buffers.Get().(*bytes.Buffer)
		if buf == nil {
			buf = new(bytes.Buffer)
		}
		err := e.post(ctx, to, r, q, buf)
		var a answer
		if err == nil {
			a, err = decodeAnswer(buf.Bytes(), q.dst, r)
			if err == nil {
				err = a.check(q, e.Model, len(q.dst))
			}
			if err != nil && !errors.Is(err, errNoRoute) {
				a = answer{}
				err = fmt.Errorf("remote: the answer of %s%s: %w", to.base, r, err)
			}
		}
		if buf.Cap() <= maxKept {
			buffers.Put(buf)
		}
		if !errors.Is(err, errNoRoute) {
			return a, err
		}
		to.missing[r].Store(time.Now().Add(missingFor).UnixNano())
		missing = err
	}
	if missing == nil {
		missing = errNoRoute
	}
	return answer{}, fmt.Errorf("remote: %s has no %s%s: %w", to.base, q.routes[len(q.routes)-1], hint(q.routes), missing)
}

func hint(routes []route) string {
	if routes[len(routes)-1] < renderCompletion {
		return ""
	}
	return " (vLLM from 0.30 on has it with --enable-scale-out, TensorRT-LLM with TRTLLM_ENABLE_RENDER_ENDPOINTS=1)"
}

// refuseHarmony refuses a chat if the tokenizer is that of gpt-oss, whose chats /tokenize renders
// by a template, and vLLM's chat API by a program.
func (e *Engine) refuseHarmony(ctx context.Context, to *address, left int) error {
	harmony := to.harmony.Load()
	if harmony == 0 {
		body := append(append([]byte(`{"model":`), e.name...), `,"add_special_tokens":false,"prompt":"<|start|><|channel|><|message|><|return|>"}`...)
		a, err := e.askOne(ctx, to, question{routes: encodings[:2], body: body, left: left})
		if err != nil {
			return err
		}
		harmony = notHarmony
		if len(a.tokens) == 4 {
			harmony = isHarmony
		}
		to.harmony.Store(harmony)
	}
	if harmony == isHarmony {
		return fmt.Errorf("remote: %s: %w: a chat of gpt-oss needs %s%s", to.base, chat.ErrNotScorable, renderChat, hint([]route{renderChat}))
	}
	return nil
}

// answerLimit is the most bytes of an answer. An answer with media may have what the engine made
// of them.
func (q *question) answerLimit() int64 {
	if q.media > 0 {
		return maxAnswer
	}
	return min(1<<20+16*int64(len(q.body)), maxAnswer)
}

// buffers are those of answers; a larger one is not kept.
var buffers sync.Pool // of *bytes.Buffer

const maxKept = 1 << 20 // bytes

// post reads the body of an answer of status 200.
func (e *Engine) post(call context.Context, to *address, r route, q question, buf *bytes.Buffer) error {
	ctx, cancel := context.WithCancel(call)
	defer cancel()
	connecting := func() bool { return true }
	if deadline, ok := ctx.Deadline(); ok && q.left > 1 { // an address that swallows connections leaves time for the others
		connecting = time.AfterFunc(time.Until(deadline)/time.Duration(q.left), cancel).Stop
	}
	defer connecting()
	alone := to.running.Add(1) == 1
	defer to.running.Add(-1)
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		connecting()
		if alone && !c.Reused { // none of the connections is left: the engine may have restarted
			to.forget()
		}
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, to.url.JoinPath(r.String()).String(), bytes.NewReader(q.body))
	if err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header["Idempotency-Key"] = nil // sent again on a new connection if a kept one was closed; not sent itself
	if e.Token != "" {
		request.Header.Set("Authorization", "Bearer "+e.Token)
	}
	away := func(err error) error {
		if call.Err() == nil {
			to.forget()
		}
		return fmt.Errorf("remote: %s: %w: %w", to.base, errAway, err)
	}
	response, err := to.client.Do(request)
	if err != nil {
		return away(err)
	}
	defer response.Body.Close()
	limit := q.answerLimit()
	if response.StatusCode != http.StatusOK {
		limit = 64 << 10
	}
	if err := readAll(buf, response, limit); err != nil {
		if errors.Is(err, errTooLong) {
			return fmt.Errorf("remote: the answer of %s%s: %w: more than %d bytes", to.base, r, err, limit)
		}
		return away(err)
	}
	if response.StatusCode == http.StatusOK {
		return nil
	}
	raw := buf.Bytes()
	failure := fmt.Errorf("%s%s answers %d: %s", to.base, r, response.StatusCode, message(raw))
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		if (r == tokenizeChat || r == tokenizeChatV1) && wantsPrompt(raw) { // SGLang before PR 23981
			return fmt.Errorf("%w: %w", errNoRoute, failure)
		}
		return fmt.Errorf("remote: the engine refuses it: %w: %w", chat.ErrMalformed, failure)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if json.Valid(raw) && strings.Contains(strings.ToLower(message(raw)), "model") { // and no page of a proxy
			return fmt.Errorf("remote: not the model %q: %w", e.Model, failure)
		}
		return fmt.Errorf("%w: %w", errNoRoute, failure)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return fmt.Errorf("remote: %w: %w", tokenize.ErrBusy, failure)
	}
	return fmt.Errorf("remote: %w", failure)
}

// wantsPrompt reports whether a refusal is for want of a prompt, and not one of several forms of a
// request that each had something wrong.
func wantsPrompt(raw []byte) bool {
	return bytes.Contains(raw, []byte("prompt")) && bytes.Contains(raw, []byte("required")) && !bytes.Contains(raw, []byte("Chat"))
}

var errTooLong = errors.New("too long")

// readAll reads an answer of at most so many bytes.
func readAll(buf *bytes.Buffer, r *http.Response, limit int64) error {
	if r.ContentLength > limit {
		return errTooLong
	}
	buf.Reset()
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	if err == nil && n > limit {
		err = errTooLong
	}
	return err
}

// message returns an answer as one line of some 200 bytes: its message, where engines have one,
// or all of it.
func message(raw []byte) string {
	var answer struct {
		Message string
		Error   json.RawMessage
		Detail  json.RawMessage
	}
	var inner struct{ Message string }
	var text, detail string
	_ = json.Unmarshal(raw, &answer) // it may be anything
	_ = json.Unmarshal(answer.Error, &inner)
	_ = json.Unmarshal(answer.Error, &text)
	_ = json.Unmarshal(answer.Detail, &detail)
	text = cmp.Or(inner.Message, answer.Message, text, detail, string(raw))
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text[:min(len(text), 2000)], "\ufffd")), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "..."
	}
	return strconv.QuoteToGraphic(text)
}
