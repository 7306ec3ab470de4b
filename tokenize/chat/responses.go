// vLLM turns a body of OpenAI's Responses API into a chat, and renders that
// (entrypoints/openai/responses/utils.py, read at 01ca842df, and serving.py and protocol.py
// beside it). Bodies that need what a server has stored are not scorable.

package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A responsesBody is a request of the Responses API.
type responsesBody struct {
	base  conversation
	newer bool   // the chat depends on what only the newest version is known to do
	named bool   // the id of a call is one of MCP's
	items []item // of the assistant, in order
}

// An item is the place and the kind of an item of the assistant in the chat.
type item struct {
	at   int // the message
	kind itemKind
}

type itemKind uint8

const (
	itemContent itemKind = iota
	itemCall
	itemReasoning
)

// stored are fields that refer to what a server has stored.
var stored = []string{"previous_response_id", "previous_response", "previous_input_messages", "conversation"}

func parseResponses(o *python.Dict, n *counts) (*responsesBody, error) {
	for _, name := range stored {
		if v := optional(o, name); v != nil {
			return nil, unscored(name, "it refers to what the engine has stored, or to another response")
		}
	}
	if optional(o, "prompt") != nil {
		return nil, badField("prompt", "the engine takes no stored prompts")
	}
	for _, name := range []string{"chat_template_kwargs", "chat_template"} {
		if optional(o, name) != nil {
			return nil, unscored(name, "which versions of the engine read it in this API is not known")
		}
	}
	if v, ok := o.Lookup("truncation"); ok && v != "disabled" {
		return nil, unscored("truncation", "its effect on the tokens is not known here")
	}
	b := new(responsesBody)
	c := &b.base
	c.addGenerationPrompt = true
	if err := c.parseMediaOptions(o); err != nil {
		return nil, err
	}
	reasoning, err := optionalObject(o, "reasoning")
	if err != nil {
		return nil, err
	}
	if reasoning != nil {
		if c.effort = optional(reasoning, "effort"); c.effort != nil {
			if effort, ok := c.effort.(string); !ok || !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh"}, effort) {
				return nil, unscored("reasoning.effort", "none that all versions of the engine take")
			}
		}
	}
	if err := b.parseTools(o); err != nil {
		return nil, err
	}
	instructions, err := optionalText(o, "instructions")
	if err != nil {
		return nil, err
	}
	if instructions != "" {
		c.add(message{role: "system", content: []part{{text: instructions}}, features: featureSystem})
	}
	if err := b.parseInput(o, n); err != nil {
		return nil, err
	}
	c.findFeatures()
	c.features |= featureResponses
	return b, nil
}

func (b *responsesBody) parseTools(o *python.Dict) error {
	list, err := optionalList(o, "tools")
	if v, ok := o.Lookup("tools"); err == nil && ok && v == nil {
		err = wrongType("tools", v, "an array")
	}
	if err != nil || list == nil || len(list.Items) == 0 {
		return err
	}
	b.newer = true
	b.base.tools = make([]*tool, len(list.Items))
	for i, item := range list.Items {
		if b.base.tools[i], err = parseFlatTool(item); err != nil {
			return within(err, "tools[%d]", i)
		}
	}
	switch choice, ok := o.Lookup("tool_choice"); choice {
	case "none":
		b.base.noTools = true
	case "auto", "required":
	default:
		if _, object := choice.(*python.Dict); ok && !object {
			return badField("tool_choice", "neither none, auto, required nor an object")
		}
	}
	return nil
}

// parseFlatTool reads a function. vLLM drops the fields that it does not know.
func parseFlatTool(v python.Value) (*tool, error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, wrongType("", v, "an object")
	}
	if kind, err := text(o, "type"); err != nil || kind != "function" {
		if err == nil {
			err = unscored("type", "%.60q: what the engine makes of it is not known here", kind)
		}
		return nil, err
	}
	t := new(tool)
	if err := t.parseFunction(o); err != nil {
		return nil, err
	}
	for _, f := range t.more {
		if f.name != "strict" && f.name != "defer_loading" || f.value == nil {
			continue
		}
		if _, ok := asFlag(f.value); !ok {
			return nil, wrongType(f.name, f.value, "a boolean")
		}
	}
	t.more = slices.DeleteFunc(t.more, func(f field) bool { return f.name != "strict" && f.name != "defer_loading" })
	return t, nil
}

func (b *responsesBody) parseInput(o *python.Dict, n *counts) error {
	switch v := optional(o, "input").(type) {
	case nil:
		return badField("input", "missing")
	case string:
		b.base.add(message{role: "user", content: []part{{text: v}}})
	case *python.List:
		b.base.messages = slices.Grow(b.base.messages, len(v.Items))
		b.items = make([]item, 0, len(v.Items))
		for i, item := range v.Items {
			o, ok := item.(*python.Dict)
			if !ok {
				return within(wrongType("", item, "an object"), "input[%d]", i)
			}
			if err := b.parseItem(o, n, i == len(v.Items)-1); err != nil {
				return within(doubtful(err), "input[%d]", i)
			}
		}
		if len(b.base.messages) == 0 {
			return unscored("input", "empty")
		}
	default:
		return wrongType("input", v, "a string or an array")
	}
	return nil
}

// doubtful returns an error about an item as one that the engine may not have: which items it
// accepts depends on its version of the package openai.
func doubtful(err error) error {
	var e *fieldError
	if !errors.As(err, &e) || !errors.Is(e.sentinel, ErrMalformed) {
		return err
	}
	return unscored(e.path, "%s", e.msg)
}

// note keeps that the last message has one more item.
func (b *responsesBody) note(kind itemKind) {
	b.items = append(b.items, item{len(b.base.messages) - 1, kind})
}

// last returns the last message if it is one of the assistant.
func (b *responsesBody) last() *message {
	if n := len(b.base.messages); n > 0 && b.base.messages[n-1].role == "assistant" {
		return &b.base.messages[n-1]
	}
	return nil
}

// parseItem adds an item of the input: to the last message if that is the assistant's and has
// none of the kind, or as a message of its own.
func (b *responsesBody) parseItem(o *python.Dict, n *counts, final bool) error {
	kind, ok := o.Lookup("type")
	if !ok {
		kind = "message"
	}
	switch kind {
	case "message":
		return b.parseMessage(o, final)
	case "function_call":
		return b.parseCall(o, n)
	case "function_call_output":
		return b.parseOutput(o)
	case "reasoning":
		return b.parseReasoning(o, final)
	}
	if s, ok := kind.(string); ok {
		return unscored("type", "%.60q: what the engine makes of it is not known here", s)
	}
	return wrongType("type", kind, "a string")
}

func (b *responsesBody) parseMessage(o *python.Dict, final bool) error {
	role, err := text(o, "role")
	if err != nil {
		return err
	}
	switch role {
	case "user", "system", "developer":
	case "assistant":
		return b.parseAnswer(o, final)
	default:
		return badField("role", "neither user, assistant, system nor developer")
	}
	if final && partial(o) {
		return unscored("status", "of a final message that is not the assistant's")
	}
	m := message{role: role, features: featuresOfRole(role)}
	content, ok := o.Lookup("content")
	if !ok {
		return badField("content", "missing")
	}
	if err := m.parseInputContent(content); err != nil {
		return within(err, "content")
	}
	for _, name := range []string{"name", "task", "tools", "tool_calls", "author"} {
		if _, ok := o.Lookup(name); ok {
			return unscored(name, "it is no field of this API")
		}
	}
	b.base.add(m)
	return nil
}

// partial reports whether the status of an item makes the engine continue it.
func partial(o *python.Dict) bool {
	status := optional(o, "status")
	return status == "in_progress" || status == "incomplete"
}

// parseInputContent reads content: a text, or a list of texts and images.
func (m *message) parseInputContent(v python.Value) error {
	switch v := v.(type) {
	case string:
	case *python.List:
		for i, item := range v.Items {
			o, ok := item.(*python.Dict)
			if !ok {
				return within(wrongType("", item, "an object"), "[%d]", i)
			}
			var err error
			switch optional(o, "type") {
			case "input_text":
				_, err = text(o, "text")
			case "input_image":
				if optional(o, "image_url") == nil {
					err = unscored("image_url", "missing: a stored file")
				}
			default:
				err = unscored("type", "neither input_text nor input_image")
			}
			if err != nil {
				return within(err, "[%d]", i)
			}
		}
	default:
		return wrongType("", v, "a string or an array")
	}
	return m.parseContent(v, true)
}

// parseAnswer reads a message of the assistant: a text, or the first part of an output.
func (b *responsesBody) parseAnswer(o *python.Dict, final bool) error {
	content, ok := o.Lookup("content")
	if !ok {
		return badField("content", "missing")
	}
	var answer string
	output := false
	switch v := content.(type) {
	case string:
		if answer = v; optional(o, "id") != nil { // the engine's types take it for the parts of an output
			return unscored("content", "a string, in an item with an id")
		}
	case *python.List:
		output = optional(o, "type") != nil
		b.newer = b.newer || len(v.Items) > 1
		for _, name := range []string{"id", "status"} {
			if _, ok := optional(o, name).(string); !ok {
				return unscored(name, "missing: whether the engine accepts it depends on its version of the package openai")
			}
		}
		if len(v.Items) == 0 {
			return unscored("content", "empty")
		}
		for i, item := range v.Items {
			p, ok := item.(*python.Dict)
			if !ok || optional(p, "type") != "output_text" {
				return within(unscored("", "not an output_text"), "content[%d]", i)
			}
			s, err := text(p, "text")
			if err != nil {
				return within(err, "content[%d]", i)
			}
			if _, ok := optional(p, "annotations").(*python.List); !ok {
				return within(unscored("annotations", "missing"), "content[%d]", i)
			}
			if i == 0 {
				answer = s
			}
		}
	default:
		return wrongType("content", v, "a string or an array")
	}
	if final && partial(o) {
		b.base.continueFinal, b.base.addGenerationPrompt = true, false
	}
	if m := b.last(); m != nil && m.content == nil {
		b.newer = b.newer || !output
		m.content = []part{{text: answer}}
	} else {
		b.base.add(message{role: "assistant", content: []part{{text: answer}}, features: featureTurns})
	}
	b.note(itemContent)
	return nil
}

func (b *responsesBody) parseCall(o *python.Dict, n *counts) error {
	id, err := text(o, "call_id")
	if err != nil {
		return err
	}
	for _, name := range []string{"namespace", "caller"} {
		if optional(o, name) != nil {
			return unscored(name, "which versions of the engine read it is not known")
		}
	}
	called, odd, err := parseCalled(o, n)
	if err != nil {
		return err
	}
	if odd != nil {
		return unscored("arguments", "no JSON object")
	}
	call := new(python.Dict)
	call.Set("id", id)
	call.Set("function", called)
	call.Set("type", "function")
	m := b.last()
	if m == nil {
		b.base.add(message{role: "assistant", features: featureTurns})
		m = b.last()
	}
	if m.toolCalls == nil {
		m.toolCalls = new(python.List)
	}
	m.toolCalls.Items = append(m.toolCalls.Items, call)
	m.features |= featureToolCalls
	own, _ := optional(o, "id").(string)
	b.named = b.named || strings.HasPrefix(own, "mcp_")
	b.note(itemCall)
	return nil
}

func (b *responsesBody) parseOutput(o *python.Dict) error {
	id, err := text(o, "call_id")
	if err != nil {
		return err
	}
	v, ok := o.Lookup("output")
	if !ok {
		return badField("output", "missing")
	}
	m := message{role: "tool", toolCallID: id, hasID: true, features: featuresOfRole("tool")}
	if err := m.parseInputContent(v); err != nil {
		return within(err, "output")
	}
	if _, list := v.(*python.List); list && optional(o, "id") != nil {
		return unscored("output", "a list, in an item with an id")
	}
	b.base.add(m)
	return nil
}

func (b *responsesBody) parseReasoning(o *python.Dict, final bool) error {
	if _, err := text(o, "id"); err != nil {
		return err
	}
	if optional(o, "encrypted_content") != nil {
		return unscored("encrypted_content", "what the engine makes of it is not known here")
	}
	if final {
		return unscored("type", "reasoning as the last item")
	}
	summary, err := optionalList(o, "summary")
	if err == nil && summary == nil {
		err = badField("summary", "missing")
	}
	if err != nil {
		return err
	}
	content, err := optionalList(o, "content")
	if err != nil {
		return err
	}
	thought := ""
	for _, list := range []*python.List{summary, content} { // the content goes before the summary
		if list == nil {
			continue
		}
		for i, item := range list.Items {
			p, ok := item.(*python.Dict)
			if !ok {
				return wrongType("content", item, "an object")
			}
			s, err := text(p, "text")
			if err != nil {
				return err
			}
			want := "summary_text"
			if list == content {
				want = "reasoning_text"
			}
			if optional(p, "type") != want {
				return badField("content.type", "not %q", want)
			}
			if i == 0 {
				thought = s
			}
		}
	}
	if len(summary.Items) > 0 && (content != nil && len(content.Items) > 0 || len(summary.Items) > 1) {
		b.newer = true
	}
	m := b.last()
	if m == nil || m.reasoning != nil {
		b.base.add(message{role: "assistant", features: featureTurns})
		m = b.last()
	}
	m.reasoning = thought
	m.features |= featureReasoning
	b.note(itemReasoning)
	return nil
}

// conversation returns the chat that the model's engine makes of the body.
func (b *responsesBody) conversation(m *Model) (*conversation, error) {
	if err := m.engine.knows(readsResponses, ""); err != nil {
		return nil, err
	}
	if !m.engine.does(readsResponses) {
		return nil, notScorable("this version of the engine has no Responses API")
	}
	if b.newer {
		if err := m.engine.knows(readsResponseTools, "input"); err != nil {
			return nil, err
		}
	}
	if m.engine.does(joinsItems) {
		return &b.base, nil
	}
	effort, _ := b.base.effort.(string)
	switch {
	case !m.engine.does(efforts[effort]):
		return nil, unscored("reasoning.effort", "%q, which chats of this version of the engine do not have", effort)
	case b.named:
		return nil, unscored("input", "a call with an id of MCP's, which this version of the engine may join to reasoning")
	case m.kwargs != nil:
		return nil, notScorable("this version of the engine does not use --default-chat-template-kwargs in this API")
	}
	return b.apart(), nil
}

// apart returns the chat with a message for each item.
func (b *responsesBody) apart() *conversation {
	c := b.base
	c.messages = make([]message, 0, len(b.base.messages)+len(b.items))
	items := b.items
	for i := range b.base.messages {
		m := &b.base.messages[i]
		if m.role != "assistant" {
			c.messages = append(c.messages, *m)
			continue
		}
		for calls := 0; len(items) > 0 && items[0].at == i; items = items[1:] {
			one := message{role: m.role, features: m.features}
			switch items[0].kind {
			case itemContent:
				one.content = m.content
			case itemCall:
				one.toolCalls = &python.List{Items: m.toolCalls.Items[calls : calls+1 : calls+1]}
				calls++
			case itemReasoning:
				one.reasoning = m.reasoning
			}
			c.messages = append(c.messages, one)
		}
	}
	return &c
}
