// Package chatcheck checks whether a running engine renders chats as a [chat.Model]
// does, and lists the features in which they differ. It is apart from package chat
// because it speaks HTTP: programs without it need no HTTP client.
//
//	engine := chatcheck.Engine{URL: "http://10.0.0.7:8000", Model: "llama-3"}
//	report, err := engine.Check(ctx, model, tokenizer)
//	...
//	fmt.Println(report)
//	err = model.Exclude("pod-a", report.Differs()...)
package chatcheck

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A check has no consequence by itself. An engine that differs in tools renders all other
// chats alike, and a busy one shows nothing. So a check reports, and the host excludes. Each
// feature has a conversation of the feature alone, with those that it implies. A conversation
// that differs counts for its own feature, unless another feature that it uses differs by
// itself: a chat without the features that differ has only parts that were found equal.

// An Engine is a running vLLM or SGLang that serves a model. Of SGLang's versions it can be those
// whose /v1/tokenize takes chats (PR 23981, 2026).
type Engine struct {
	// URL is the engine's address. Check adds "/tokenize" or "/v1/tokenize", and removes a
	// "/v1" at the end, which OpenAI's clients need.
	URL string

	// Model is the served name of the model.
	Model string

	// Client sends the requests. Nil: http.DefaultClient. Its timeout and the context of
	// Check bound the wait for each answer.
	Client *http.Client
}

// Check requests the engine's tokens of some thirty conversations, one after the other,
// and compares them with those of m and its tokenizer t. It changes nothing: give
// Report.Differs to chat.Model.Exclude for an effect. Excluded features are compared
// like all others.
//
// Check returns an error if the engine cannot be reached, is busy, or answers anything
// but tokens or a refusal (400, 422), and if the tokenizer fails. The report is nil
// then, with one exception: if the engine fails (500, 501) at conversations other than
// the first, these have "no answer" in the report, and the error is that of the first of
// them.
//
// Check uses vLLM's /tokenize, which makes texts as its chat API does, but reads fewer
// fields (December 2025 to autumn 2026, entrypoints/serve/tokenize, protocol.py and
// serving.py). So Check cannot compare tool_choice, reasoning_effort, media and the old
// field reasoning_content, and /tokenize accepts an empty list of tools. Documents are
// sent in chat_template_kwargs. Before 2026 /tokenize ignored
// --default-chat-template-kwargs: a model with chat.Options.Kwargs may then differ from
// /tokenize and not from the engine's chats.
//
// Bodies of the Messages and Responses APIs are compared with /v1/messages/render and
// /v1/responses/render, if the engine has these (main of autumn 2026). The report has no
// conversations that these do not answer.
//
// If the engine refuses the first chat at /tokenize, or has no such path, Check uses SGLang's
// /v1/tokenize. Package chat renders chats as vLLM does: the report has the features in which
// SGLang renders otherwise. SGLang does not look at the name of the model.
//
// For gpt-oss, /tokenize renders the chat template and not harmony: Check proves nothing then.
//
// Check is safe for concurrent use.
func (e Engine) Check(ctx context.Context, m *chat.Model, t tokenize.Tokenizer) (Report, error) {
	p, err := e.dial()
	if err != nil {
		return nil, fmt.Errorf("chatcheck: %w", err)
	}
	var r Report
	var failed error
	for i, c := range conversations {
		a, err := p.ask(ctx, m, t, c)
		if i == 0 && (errors.Is(err, errNoPath) || a.engine.Refusal != "") {
			p.prefix = "/v1"
			if other, failed := p.ask(ctx, m, t, c); failed == nil && other.engine.Refusal == "" {
				a, err = other, nil
			} else {
				p.prefix = ""
			}
		}
		var f *failure
		if i == 0 && a.Outcome == engineRefuses || i == 0 && a.Outcome == bothRefuse {
			err = fmt.Errorf("%s takes no chat: %s (SGLang takes none before PR 23981; vLLM needs a chat template)", p.base, a.engine.Refusal)
		}
		switch {
		case err == nil:
		case paths[c.feature] != "" && ctx.Err() == nil: // older engines do not have it
			continue
		case i > 0 && errors.As(err, &f):
			a.Outcome, a.Difference = noAnswer, f.Error()
			if failed == nil {
				failed = fmt.Errorf("chatcheck: %s: %w", c.name, err)
			}
		default:
			return nil, fmt.Errorf("chatcheck: %s: %w", c.name, err)
		}
		r = append(r, a)
	}
	return r, failed
}

// ask sends one conversation and compares the answer.
func (p *port) ask(ctx context.Context, m *chat.Model, t tokenize.Tokenizer, c conversation) (a Conversation, err error) {
	body := `{"model":` + p.name + "," + c.fields + "}"
	a = Conversation{Name: c.name, Feature: c.feature, Features: c.features(), Request: body, Outcome: equal}
	path, endpoint := paths[c.feature], p.prefix+"/tokenize"
	if path != "" {
		endpoint = path + "/render"
	}
	if a.engine.Tokens, a.engine.Refusal, err = p.tokens(ctx, endpoint, body); err != nil {
		return a, err
	}
	prompt, refusal := chat.Parse(path, []byte(body))
	if refusal == nil {
		var x *chat.Rendering
		if x, refusal = m.RenderAnyway(prompt, nil); refusal == nil {
			a.here.Text = x.Text
			if a.here.Tokens, err = x.Encode(ctx, nil, t); err != nil {
				return a, fmt.Errorf("tokenizing: %w", err)
			}
		}
	}
	if refusal != nil {
		a.here.Refusal = refusal.Error()
	}
	switch {
	case errors.Is(refusal, chat.ErrNotScorable):
		a.Outcome = notScorable
	case refusal != nil && a.engine.Refusal != "":
		a.Outcome = bothRefuse
	case refusal != nil:
		a.Outcome = engineTakes
	case a.engine.Refusal != "":
		a.Outcome = engineRefuses
	case slices.Equal(a.here.Tokens, a.engine.Tokens):
		a.engine.Text = a.here.Text
		return a, nil
	default:
		a.Outcome = differs
	}
	if a.Outcome == differs || a.Outcome == engineTakes {
		a.engine.Text = p.text(ctx, a.engine.Tokens)
	}
	a.Difference = a.difference()
	return a, nil
}

// A conversation is one that is sent. Each feature has one of the feature alone and the
// features that it implies, which come before it, so that a difference is the feature's.
type conversation struct {
	name    string
	feature string   // that it is about
	with    []string // that it uses besides, but for plain
	fields  string   // of a request
}

// features returns all that c uses.
func (c *conversation) features() []string {
	all := []string{"plain"}
	if c.feature != "plain" {
		all = append(all, c.feature)
	}
	return append(all, c.with...)
}

// Messages and tools of conversations.
const (
	hello   = `{"role":"user","content":"Hello"}`
	reply   = `{"role":"assistant","content":"Hi! How can I help?"}`
	weather = `{"type":"function","function":{"name":"weather","description":"Tells the <weather>.","parameters":` +
		`{"type":"object","properties":{"city":{"type":"string","description":"as \"Zürich\""},"days":{"type":"integer","default":1e0}},"required":["city"]}`
)

// call is messages with a tool call, with arguments in JSON as a JSON string.
func call(arguments string) string {
	return `"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[` +
		`{"type":"function","id":"abcdef123","function":{"name":"weather","arguments":` + arguments + `}}]},` +
		`{"role":"tool","tool_call_id":"abcdef123","content":"{\"t\": 21.5}"}]`
}

var conversations = []conversation{
	{"a turn", "plain", nil, `"messages":[` + hello + `]`},
	{"space around a text", "plain", nil, `"messages":[{"role":"user","content":"  Hi there \n"}]`},
	{"text that is no ASCII", "plain", nil, `"messages":[{"role":"user","content":"日本語 Ω≈ç é \u00a0 😀 \"q\" <b>&'x'</b> {{ x }}"}]`},
	{"special tokens in a text", "plain", nil, `"messages":[{"role":"user","content":"<|im_end|></s><|eot_id|><|end|><eos>"}]`},
	{"no generation prompt", "no_generation_prompt", nil, `"messages":[` + hello + `],"add_generation_prompt":false`},
	{"a system message", "system", nil, `"messages":[{"role":"system","content":"  You are a pirate.\n"},` + hello + `]`},
	{"a developer message", "developer", nil, `"messages":[{"role":"developer","content":"Be brief."},` + hello + `]`},
	{"turns", "turns", nil, `"messages":[` + hello + `,` + reply + `,{"role":"user","content":"Tell me a joke"}]`},
	{"a name", "names", nil, `"messages":[{"role":"user","name":"ann","content":"Hello"}]`},
	{"parts", "parts", nil, `"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]`},
	{"tools", "tools", nil, `"messages":[` + hello + `],"tools":[` + weather + `}}]`},
	{"a tool without parameters", "tools", nil, `"messages":[` + hello + `],"tools":[{"type":"function","function":{"name":"now"}}]`},
	{"documents", "documents", nil, `"messages":[` + hello + `],"chat_template_kwargs":{"documents":[{"title":"Boats","text":"They come and go."}]}`},
	{"template kwargs", "kwargs", nil, `"messages":[` + hello + `],"chat_template_kwargs":{"enable_thinking":false,"thinking":false}`},

	{"the final message continued", "continue_final", []string{"no_generation_prompt"}, `"messages":[{"role":"user","content":"Write, "}],` + continued},
	{"the assistant's final message continued", "continue_final", []string{"no_generation_prompt", "turns"}, `"messages":[` + hello + `,{"role":"assistant","content":"Sure, "}],` + continued},
	{"Claude Code's billing header", "billing_header", []string{"system"}, `"messages":[{"role":"system","content":"x-anthropic-billing-header: cc_version=2.1.77; cch=1f2e3;\nBe brief."},` + hello + `]`},
	{"reasoning", "reasoning", []string{"turns"}, `"messages":[` + hello + `,{"role":"assistant","content":"Hi!","reasoning":"a greeting"}]`},
	{"reasoning before the last turn", "reasoning", []string{"turns"}, `"messages":[` + hello + `,{"role":"assistant","content":"Hi!","reasoning":"a greeting"},` + hello + `]`},
	{"a part with an unknown field", "part_fields", []string{"parts"}, `"messages":[{"role":"user","content":[{"type":"text","text":"one","cache_control":{"type":"ephemeral"}},{"type":"text","text":"two"}]}]`},
	{"a part without text", "empty_parts", []string{"parts"}, `"messages":[{"role":"user","content":[{"type":"text","text":null},{"type":"text","text":"two"}]}]`},
	{"a part with an empty text", "empty_parts", []string{"parts"}, `"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":""},{"type":"text","text":"two"}]}]`},
	{"a string among parts", "string_parts", []string{"parts"}, `"messages":[{"role":"user","content":["one",{"type":"text","text":"two"}]}]`},
	{"a tool with an unknown field", "tool_fields", []string{"tools"}, `"messages":[` + hello + `],"tools":[` + weather + `,"x-note":"y"}}]`},
	{"a strict tool", "tool_fields", []string{"tools"}, `"messages":[` + hello + `],"tools":[` + weather + `,"strict":true}}]`},
	{"an empty list of tool calls", "empty_calls", []string{"turns"}, `"messages":[` + hello + `,{"role":"assistant","content":"Hi!","tool_calls":[]},` + hello + `]`},
	{"a tool call", "tool_calls", []string{"turns"}, call(`"{\"city\": \"Zürich\", \"days\": 3}"`)},
	{"a tool call among tools", "tool_calls", []string{"turns", "tools"}, call(`"{\"city\": \"Zürich\"}"`) + `,"tools":[` + weather + `}}]`},
	{"arguments that are null", "arguments", []string{"turns", "tool_calls"}, call(`"null"`)},
	{"arguments that are a list", "arguments", []string{"turns", "tool_calls"}, call(`"[1, \"a\"]"`)},
	{"arguments that are a number", "arguments", []string{"turns", "tool_calls"}, call(`"7"`)},
	{"arguments that are a string", "arguments", []string{"turns", "tool_calls"}, call(`"\"Zürich\""`)},
	{"arguments that are empty", "arguments", []string{"turns", "tool_calls"}, call(`""`)},
	{"arguments that are no JSON", "arguments", []string{"turns", "tool_calls"}, call(`"{\"city\": "`)},

	{"Messages: a turn", "messages", nil, `"max_tokens":5,"messages":[` + hello + `]`},
	{"Messages: a system prompt", "messages", []string{"system"}, `"max_tokens":5,"system":[{"type":"text","text":"Be brief."},{"type":"text","text":" Be kind."}],"messages":[` + hello + `]`},
	{"Messages: a system message", "messages", []string{"system", "turns"}, `"max_tokens":5,"system":"Be brief.","messages":[` + hello + `,{"role":"system","content":"Be kind."},` + reply + `]`},
	{"Messages: a tool", "messages", []string{"turns", "tool_calls", "tools"}, `"max_tokens":5,"messages":[` + hello + `,{"role":"assistant","content":[{"type":"tool_use","id":"abcdef123","name":"now","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"abcdef123","content":[{"type":"text","text":"noon"}]},{"type":"text","text":"And now?"}]}],"tools":[{"name":"now","input_schema":{"type":"object"}}]`},
	{"Responses: a text", "responses", nil, `"input":"Hello"`},
	{"Responses: a call", "responses", []string{"system", "turns", "tool_calls"}, `"instructions":"Be brief.","input":[` + hello + `,{"type":"function_call","call_id":"abcdef123","name":"now","arguments":"{}"},` +
		`{"type":"function_call_output","call_id":"abcdef123","output":"noon"}]`},
}

// paths are those of the APIs other than OpenAI's chat, by the features of their conversations.
// Some engines render their bodies.
var paths = map[string]string{"messages": "/v1/messages", "responses": "/v1/responses"}

const continued = `"add_generation_prompt":false,"continue_final_message":true`
