package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/tokenize"
)

// checks are the conversations of [Model.Check], as fields of a request.
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

// Check asks an engine for the tokens of a dozen conversations and compares them
// with the model's by t, its tokenizer. url is the engine's address, to which
// "/tokenize" is added, and model the name that it serves the model by. A nil
// client is http.DefaultClient; its timeout, if any, and ctx bound the wait.
//
// A conversation that both refuse is the same to both, and one that the model
// calls not scorable is passed over. The engine has to be vLLM: SGLang's /tokenize
// takes no chats. Before 2026 vLLM's did not know --default-chat-template-kwargs,
// so a model with Options.Kwargs differs there. If any conversation differs, the model refuses every
// Render from then on: both that error and Check's wrap ErrCheckFailed. An engine
// that cannot be reached, or answers something else, is an error too but no
// verdict.
func (m *Model) Check(ctx context.Context, client *http.Client, url, model string, t tokenize.Tokenizer) error {
	if failed := m.failed.Load(); failed != nil {
		return *failed
	}
	if client == nil {
		client = http.DefaultClient
	}
	for i, c := range checks {
		want, refused, err := engineTokens(ctx, client, url, model, c.fields)
		if i == 0 && refused != "" {
			err = fmt.Errorf("the engine takes no chat: %.200s", refused)
		}
		if err == nil {
			err = m.compare(ctx, t, c.fields, want, refused)
		}
		if err != nil {
			err = fmt.Errorf("chat: checking %s: %w", c.name, err)
			if errors.Is(err, ErrCheckFailed) {
				m.failed.CompareAndSwap(nil, &err)
			}
			return err
		}
	}
	return nil
}

// compare returns an error that wraps ErrCheckFailed if the model's tokens are not
// want, or it does not refuse what the engine does.
func (m *Model) compare(ctx context.Context, t tokenize.Tokenizer, fields string, want []uint32, refused string) error {
	r, err := Parse([]byte("{" + fields + "}"))
	if err != nil {
		return err
	}
	x, err := m.Render(r, nil)
	switch {
	case errors.Is(err, ErrNotScorable):
		return nil
	case err != nil && refused != "":
		return nil
	case err != nil:
		return of(ErrCheckFailed, "it takes what here is refused: %w", err)
	case refused != "":
		return of(ErrCheckFailed, "it refuses what here is taken: %.200s", refused)
	}
	got, err := t.Encode(ctx, nil, x.Text, r.AddSpecial)
	if err != nil || slices.Equal(got, want) {
		return err
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return of(ErrCheckFailed, "%d tokens, and here %d, which differ from token %d on", len(want), len(got), at)
}

// maxAnswer bounds an engine's answer, in bytes.
const maxAnswer = 1 << 20

// engineTokens asks for the tokens of a chat (vLLM of autumn 2026,
// entrypoints/serve/tokenize/protocol.py). refused is what the engine says if it
// does not take the request.
func engineTokens(ctx context.Context, client *http.Client, url, model, fields string) (tokens []uint32, refused string, err error) {
	name, err := json.Marshal(model)
	if err != nil {
		return nil, "", err
	}
	body := `{"model":` + string(name) + "," + fields + "}"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/tokenize", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
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
