package chatcheck

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// A port is an engine's address, and sends requests to it.
type port struct {
	client *http.Client
	base   string // the address, without a password
	url    *url.URL
	name   string // of the model, in JSON
	prefix string // of /tokenize and /detokenize: "/v1" for SGLang
}

// errNoPath is wrapped by the error of a path that the engine does not have.
var errNoPath = errors.New("no such path")

// dial parses the address. It sends nothing.
func (e Engine) dial() (*port, error) {
	u, err := url.Parse(e.URL)
	switch {
	case strings.Contains(e.URL, "@") && (err != nil || u.Host == ""):
		return nil, errors.New("the address has a user name and is not valid: is it http://user:password@10.0.0.7:8000?")
	case !strings.Contains(e.URL, "://"):
		return nil, fmt.Errorf("the address %q has no scheme: is it http://%[1]s or https://%[1]s?", e.URL)
	case err != nil:
		return nil, fmt.Errorf("the address: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("the address %q is not that of an HTTP server, as http://10.0.0.7:8000 is", u.Redacted())
	case e.Model == "":
		return nil, errors.New("the model's name is empty")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.Path = strings.TrimRight(strings.TrimSuffix(u.Path, "/v1"), "/")
	u.RawPath, u.RawQuery, u.Fragment = "", "", ""
	name, err := json.Marshal(e.Model)
	return &port{client: cmp.Or(e.Client, http.DefaultClient), base: u.Redacted(), url: u, name: string(name)}, err
}

// A failure is an engine's answer that it failed, perhaps because of the conversation.
type failure struct{ error }

// maxAnswer bounds an engine's answer, in bytes.
const maxAnswer = 1 << 20

// post returns the body of an answer of status 200, or the refusal of the engine.
func (p *port) post(ctx context.Context, path, body string) (answer []byte, refusal string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url.JoinPath(path).String(), strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		// A ZeroMQ port sends its greeting first, perhaps before the request.
		if strings.Contains(err.Error(), "malformed HTTP") || strings.Contains(err.Error(), "readLoopPeekFail") {
			err = fmt.Errorf("the server at %s is no HTTP server: %w", p.base, err)
		}
		return nil, "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(raw) > maxAnswer {
		err = fmt.Errorf("more than %d bytes", maxAnswer)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the answer of %s: %w", p.base, err)
	}
	why := response.Status
	if r := response.Request; r != nil && (r.URL.Host != p.url.Host || r.URL.Scheme != p.url.Scheme) {
		why += " of " + r.URL.Redacted() // redirected
	}
	if m := message(raw); m != "" {
		why += ": " + m
	}
	switch response.StatusCode {
	case http.StatusOK:
		return raw, "", nil
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return nil, why, nil
	case http.StatusNotFound:
		if json.Valid(raw) && strings.Contains(message(raw), "model") { // and no page of a proxy
			return nil, "", fmt.Errorf("%s does not serve model %s: %s", p.base, p.name, why)
		}
		return nil, "", fmt.Errorf("%s has no %s (%w): %s: is it the address of a vLLM or SGLang server?", p.base, path, errNoPath, why)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return nil, "", fmt.Errorf("%s is busy: %s", p.base, why)
	case http.StatusInternalServerError, http.StatusNotImplemented:
		return nil, "", &failure{fmt.Errorf("%s failed: %s", p.base, why)}
	}
	return nil, "", fmt.Errorf("%s answers %s", p.base, why)
}

// message returns an answer as one line of some 200 bytes: its message, where vLLM and
// SGLang have one, or all of it.
func message(raw []byte) string {
	var answer struct {
		Message string
		Error   json.RawMessage
	}
	var inner struct{ Message string }
	var text string
	_ = json.Unmarshal(raw, &answer) // it may be anything
	_ = json.Unmarshal(answer.Error, &inner)
	_ = json.Unmarshal(answer.Error, &text)
	text = cmp.Or(inner.Message, answer.Message, text, string(raw))
	return cut(strings.Join(strings.Fields(strings.ToValidUTF8(text, "\ufffd")), " "), 200)
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// tokens requests the tokens of a chat from /tokenize, or from a path that renders.
func (p *port) tokens(ctx context.Context, path, body string) (tokens []uint32, refusal string, err error) {
	raw, refusal, err := p.post(ctx, path, body)
	if err != nil || refusal != "" {
		return nil, refusal, err
	}
	var answer struct {
		Tokens   []uint32
		Rendered []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, "", fmt.Errorf("%s answers something other than tokens: %q: %w", p.base, message(raw), err)
	}
	if tokens = answer.Tokens; len(tokens) == 0 {
		tokens = answer.Rendered
	}
	if len(tokens) == 0 {
		return nil, "", fmt.Errorf("%s answers without tokens: %s", p.base, message(raw))
	}
	return tokens, "", nil
}

// text requests the text of tokens. It returns "" without an answer. SGLang would leave out
// special tokens (srt/entrypoints/openai/protocol.py, DetokenizeRequest).
func (p *port) text(ctx context.Context, tokens []uint32) string {
	body, err := json.Marshal(map[string]any{"model": json.RawMessage(p.name), "tokens": tokens, "skip_special_tokens": false})
	if err != nil {
		return ""
	}
	raw, _, err := p.post(ctx, p.prefix+"/detokenize", string(body))
	var answer struct{ Prompt, Text string } // vLLM's, SGLang's
	if err != nil || json.Unmarshal(raw, &answer) != nil {
		return ""
	}
	return cmp.Or(answer.Prompt, answer.Text)
}
