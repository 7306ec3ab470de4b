// Package chatcheck finds out whether a running engine renders chats as a
// [chat.Model] does. It is apart from package chat because it speaks HTTP: who does
// not import it has no HTTP client in the program.
//
//	engine := chatcheck.Engine{URL: "http://10.0.0.7:8000", Model: "llama-3"}
//	err := engine.Check(ctx, model, tokenizer)
package chatcheck

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// An Engine is where a running engine serves a model. It has to be vLLM: SGLang's
// /tokenize takes no chats.
type Engine struct {
	// URL is the engine's address, to which "/tokenize" is added.
	URL string

	// Model is the name that the engine serves the model by.
	Model string

	// Client sends the requests. Nil: http.DefaultClient. Its timeout, if it has
	// one, bounds the wait beside the context of Check.
	Client *http.Client
}

// Check asks the engine for the tokens of a dozen conversations and compares them
// with those of m by t, its tokenizer.
//
// If the tokens of any conversation differ, or only one of the two refuses it, m
// refuses every Render from then on, and the errors of Check and of Render wrap
// [chat.ErrCheckFailed]. For a model that is refused already Check returns that
// error and asks nothing. A conversation that both refuse is the same to both, and
// one that m calls not scorable is passed over. An engine that cannot be reached,
// or that answers something else, is an error too but no verdict.
//
// Before 2026 vLLM's /tokenize did not know --default-chat-template-kwargs, so a
// model with chat.Options.Kwargs differs there.
func (e Engine) Check(ctx context.Context, m *chat.Model, t tokenize.Tokenizer) error {
	if err := m.Refused(); err != nil {
		return err
	}
	for i, c := range checks {
		want, refused, err := e.tokens(ctx, c.fields)
		if i == 0 && refused != "" {
			err = fmt.Errorf("the engine takes no chat: %.200s", refused)
		}
		var difference error
		if err == nil {
			difference, err = compare(ctx, m, t, c.fields, want, refused)
		}
		if err != nil {
			return fmt.Errorf("chatcheck: checking %s: %w", c.name, err)
		}
		if difference != nil {
			m.Refuse(fmt.Errorf("checking %s: %w", c.name, difference))
			break
		}
	}
	return m.Refused()
}

// checks are the conversations of [Engine.Check], as fields of a request.
var checks = []struct{ name, fields string }{
	{"a turn", `"messages":[{"role":"user","content":"Hello"}]`},
	{"no generation prompt", `"messages":[{"role":"user","content":"Hello"}],"add_generation_prompt":false`},
	{"a system message", `"messages":[{"role":"system","content":"  You are a pirate.\n"},{"role":"user","content":" Hi there \n"}]`},
	{"turns", `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},` +
		`{"role":"assistant","content":"Hello! How can I help?"},{"role":"user","content":"Tell me a joke"}]`},
	{"text that is no ASCII", `"messages":[{"role":"user","content":"日本語 Ω≈ç é \u00a0 😀 \"q\" <b>&'x'</b> {{ x }}"}]`},
	{"special tokens in a text", `"messages":[{"role":"user","content":"<|im_end|></s><|eot_id|><|end|><eos>"}]`},
	{"parts", `"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]`},
	{"reasoning", `"messages":[{"role":"user","content":"1+1?"},{"role":"assistant","content":"2","reasoning":"add"},` +
		`{"role":"user","content":"2+2?"}]`},
	{"the final message continued", `"messages":[{"role":"user","content":"Write"},{"role":"assistant","content":"Sure, "}],` +
		`"add_generation_prompt":false,"continue_final_message":true`},
	{"a developer message", `"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}]`},
	{"tools", `"messages":[{"role":"user","content":"Weather?"}],"tools":[` + checkTool + `}}]`},
	{"a tool with an unknown field", `"messages":[{"role":"user","content":"Weather?"}],"tools":[` + checkTool + `,"x-note":"y"}}]`},
	{"tool calls", `"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[` +
		`{"type":"function","id":"abcdef123","function":{"name":"weather","arguments":"{\"city\": \"Zürich\", \"days\": 3}"}}]},` +
		`{"role":"tool","tool_call_id":"abcdef123","content":"{\"t\": 21.5}"},{"role":"assistant","content":"It is 21.5."},` +
		`{"role":"user","content":"Thanks"}],"tools":[` + checkTool + `}}]`},
}

// checkTool is a tool without its end.
const checkTool = `{"type":"function","function":{"parameters":{"type":"object","properties":{"city":{"type":"string","description":"as \"Zürich\""},` +
	`"days":{"type":"integer","default":1e0}},"required":["city"]},"name":"weather","description":"Tells the <weather>."`

// compare returns how the model differs if its tokens are not want, or if it does
// not refuse what the engine does.
func compare(ctx context.Context, m *chat.Model, t tokenize.Tokenizer, fields string, want []uint32, refused string) (difference, err error) {
	r, err := chat.Parse([]byte("{" + fields + "}"))
	if err != nil {
		return nil, err
	}
	x, err := m.Render(r, nil)
	switch {
	case errors.Is(err, chat.ErrNotScorable):
		return nil, nil
	case err != nil && refused != "":
		return nil, nil
	case err != nil:
		return fmt.Errorf("it takes what here is refused: %w", err), nil
	case refused != "":
		return fmt.Errorf("it refuses what here is taken: %.200s", refused), nil
	}
	got, err := t.Encode(ctx, nil, x.Text, r.AddSpecial)
	if err != nil || slices.Equal(got, want) {
		return nil, err
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("%d tokens, and here %d, which differ from token %d on", len(want), len(got), at), nil
}

// maxAnswer bounds an engine's answer, in bytes.
const maxAnswer = 1 << 20

// tokens asks for the tokens of a chat (vLLM of autumn 2026,
// entrypoints/serve/tokenize/protocol.py). refused is what the engine says if it
// does not take the request.
func (e Engine) tokens(ctx context.Context, fields string) (tokens []uint32, refused string, err error) {
	name, err := json.Marshal(e.Model)
	if err != nil {
		return nil, "", err
	}
	body := `{"model":` + string(name) + "," + fields + "}"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(e.URL, "/")+"/tokenize", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := cmp.Or(e.Client, http.DefaultClient).Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(raw) > maxAnswer:
		return nil, "", fmt.Errorf("an answer longer than %d bytes", maxAnswer)
	case response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusUnprocessableEntity:
		return nil, response.Status + ": " + string(bytes.ToValidUTF8(raw, nil)), nil
	case response.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("the engine answers %s", response.Status)
	}
	var answer struct{ Tokens []uint32 }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, "", fmt.Errorf("the engine's answer: %w", err)
	}
	if len(answer.Tokens) == 0 {
		return nil, "", errors.New("the engine's answer has no tokens")
	}
	return answer.Tokens, "", nil
}
