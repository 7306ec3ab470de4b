package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja"
)

// A message is one of a conversation, as vLLM of autumn 2026 keeps it
// (entrypoints/chat_utils.py, _parse_chat_message_content). Fields that it does
// not name do not reach a template.
type message struct {
	role       string
	content    []part
	toolCalls  *jinja.List // nil: none
	reasoning  jinja.Value // a string, or nil
	toolCallID jinja.Value // a string or nil, if hasID
	hasID      bool
	name, task jinja.Value // a string, or nil
}

// A part is a piece of a message's content.
type part struct {
	kind partKind
	text string // or the name of the tool, or the kind of the media
}

type partKind uint8

const (
	partText partKind = iota
	partTool          // a tool_reference
	partMedia
)

func (c *conversation) parseMessages(o *jinja.Dict, n *counts) error {
	list, err := optionalList(o, "messages")
	if err == nil && (list == nil || len(list.Items) == 0) {
		err = badField("messages", "empty")
	}
	if err != nil {
		return err
	}
	c.messages = make([]message, len(list.Items))
	for i, item := range list.Items {
		o, ok := item.(*jinja.Dict)
		if !ok {
			return within(wrongType("", item, "an object"), "messages[%d]", i)
		}
		m := &c.messages[i]
		if err := m.parse(o, n); err != nil {
			return within(err, "messages[%d]", i)
		}
		for _, p := range m.content {
			if p.kind == partMedia {
				c.media++
			}
		}
	}
	return nil
}

func (m *message) parse(o *jinja.Dict, n *counts) (err error) {
	if m.role, err = text(o, "role"); err != nil {
		return err
	}
	if _, ok := o.Lookup("author"); ok {
		return unscored("author", "the engine may take the message for one of harmony's")
	}
	if err := m.parseContent(o); err != nil {
		return err
	}
	if err := m.parseName(o); err != nil {
		return err
	}
	if task, ok := optional(o, "task").(string); ok {
		m.task = task
	}
	switch m.role {
	case "assistant":
		if err := m.parseReasoning(o); err != nil {
			return err
		}
		return m.parseToolCalls(o, n)
	case "tool":
		m.toolCallID, m.hasID = o.Lookup("tool_call_id")
		if _, ok := m.toolCallID.(string); !ok && m.toolCallID != nil {
			return wrongType("tool_call_id", m.toolCallID, "a string")
		}
	case "developer":
		if optional(o, "tools") != nil {
			return unscored("tools", "tools of a developer message")
		}
	}
	return nil
}

// parseName reads the name. That of a tool message may be anything, and is then as
// if it was not there.
func (m *message) parseName(o *jinja.Dict) error {
	v, ok := o.Lookup("name")
	if _, text := v.(string); text {
		m.name = v
		return nil
	}
	if _, id := optional(o, "tool_call_id").(string); !ok || m.role == "tool" && id {
		return nil
	}
	return wrongType("name", v, "a string")
}

// parseReasoning reads reasoning, or reasoning_content in its stead.
func (m *message) parseReasoning(o *jinja.Dict) error {
	for _, name := range []string{"reasoning", "reasoning_content"} {
		switch v := optional(o, name).(type) {
		case nil:
		case string:
			m.reasoning = v
			return nil
		default: // pydantic keeps it, as a field that it does not know
			return unscored(name, "%s, not a string", kind(v))
		}
	}
	return nil
}

func (m *message) parseContent(o *jinja.Dict) error {
	v, ok := o.Lookup("content")
	switch v := v.(type) {
	case nil:
		if ok && m.role != "assistant" && m.role != "function" {
			return wrongType("content", v, "a string or an array")
		}
	case string:
		m.content = []part{{text: v}}
	case *jinja.List:
		m.content = make([]part, len(v.Items))
		for i, item := range v.Items {
			if s, ok := item.(string); ok {
				m.content[i].text = s
			} else if err := m.content[i].parse(item); err != nil {
				return m.leniently(within(err, "content[%d]", i))
			}
		}
	default:
		return wrongType("content", v, "a string or an array")
	}
	return nil
}

// roles are those of OpenAI's API. Engines read messages of others by a type of
// their own, which is less strict.
var roles = []string{"developer", "system", "user", "assistant", "tool", "function"}

// leniently makes an error about a part of a message with another role one about
// what an engine may take.
func (m *message) leniently(err error) error {
	var e *fieldError
	if slices.Contains(roles, m.role) || !errors.As(err, &e) {
		return err
	}
	return &fieldError{ErrNotScorable, e.path, e.msg}
}

// textParts are the types of parts that are text, and the field that has it.
var textParts = map[string]string{
	"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking",
}

// mediaParts are the types of parts that are media, and of what kind; those that a
// part without a type may be by its fields come first, as the engine looks.
var mediaParts = []struct{ name, media string }{
	{"image_url", "image"}, {"image_pil", "image"}, {"image_embeds", "image embeddings"},
	{"audio_embeds", "audio embeddings"}, {"prompt_embeds", "prompt embeddings"},
	{"audio_url", "audio"}, {"input_audio", "audio"}, {"video_url", "video"},
	{"input_image", "image"}, {"file", "file"},
}

func (p *part) parse(v jinja.Value) (err error) {
	o, ok := v.(*jinja.Dict)
	if !ok {
		return wrongType("", v, "an object")
	}
	name, typed := o.Lookup("type")
	kind, ok := name.(string)
	if typed && !ok {
		return wrongType("type", name, "a string")
	}
	for _, m := range mediaParts {
		if _, has := o.Lookup(m.name); kind == m.name || !typed && has {
			p.kind, p.text = partMedia, m.media
			return nil
		}
	}
	if !typed {
		return badField("type", "missing")
	}
	if optional(o, "uuid") != nil {
		return badField("uuid", "of a part that is no media")
	}
	if kind == "tool_reference" {
		p.kind = partTool
		p.text, err = text(o, "name")
		return err
	}
	field, ok := textParts[kind]
	if !ok {
		return badField("type", "unknown: %.60q", kind)
	}
	p.text, err = text(o, field)
	return err
}

func (m *message) parseToolCalls(o *jinja.Dict, n *counts) error {
	calls, err := optionalList(o, "tool_calls")
	if err != nil || calls == nil || len(calls.Items) == 0 {
		return err
	}
	m.toolCalls = &jinja.List{Items: make([]jinja.Value, len(calls.Items))}
	for i, item := range calls.Items {
		if m.toolCalls.Items[i], err = parseToolCall(item, n); err != nil {
			return within(err, "tool_calls[%d]", i)
		}
	}
	return nil
}

// parseToolCall puts the fields into the engine's order: those of OpenAI's types
// (openai-python 3.3, chat_completion_message_function_tool_call_param.py), which
// pydantic makes it by, then the others as they came.
func parseToolCall(v jinja.Value, n *counts) (jinja.Value, error) {
	o, ok := v.(*jinja.Dict)
	if !ok {
		return nil, wrongType("", v, "an object")
	}
	id, err := text(o, "id")
	if err != nil {
		return nil, err
	}
	if kind, err := text(o, "type"); err != nil || kind != "function" {
		if err == nil {
			err = badField("type", `not "function"`)
		}
		return nil, err
	}
	function, err := optionalObject(o, "function")
	if err == nil && function == nil {
		err = badField("function", "missing")
	}
	if err != nil {
		return nil, err
	}
	called, err := parseCalled(function, n)
	if err != nil {
		return nil, within(err, "function")
	}
	call := new(jinja.Dict)
	call.Set("id", id)
	call.Set("function", called)
	call.Set("type", "function")
	others(call, o)
	return call, nil
}

// parseCalled reads the function of a tool call. Its arguments are a string of
// JSON; one that is none is taken for no arguments (_postprocess_messages).
func parseCalled(o *jinja.Dict, n *counts) (*jinja.Dict, error) {
	raw, err := text(o, "arguments")
	if err != nil {
		return nil, err
	}
	name, err := text(o, "name")
	if err != nil {
		return nil, err
	}
	args, err := n.decode(raw)
	if err != nil {
		var syntax *syntaxError
		if !errors.As(err, &syntax) {
			return nil, within(err, "arguments")
		}
		args = new(jinja.Dict)
	}
	called := new(jinja.Dict)
	called.Set("arguments", args)
	called.Set("name", name)
	others(called, o)
	return called, nil
}

// others gives to the fields of from that it does not have.
func others(to, from *jinja.Dict) {
	for i := range from.Len() {
		key, v := from.At(i)
		if _, ok := to.Lookup(key.(string)); !ok {
			to.Set(key.(string), v)
		}
	}
}

// dict is the message as the template gets it, its content as parts or as one
// string.
func (m *message) dict(parts bool) *jinja.Dict {
	d := new(jinja.Dict)
	d.Set("role", m.role)
	if parts && (m.role != "tool" || !m.plain()) {
		d.Set("content", m.parts())
	} else {
		d.Set("content", m.joined(parts))
	}
	switch m.role {
	case "assistant":
		if m.toolCalls != nil {
			d.Set("tool_calls", m.toolCalls)
		}
		if m.reasoning != nil {
			d.Set("reasoning", m.reasoning)
			d.Set("reasoning_content", m.reasoning)
		}
	case "tool":
		if m.hasID {
			d.Set("tool_call_id", m.toolCallID)
		}
	}
	if m.name != nil {
		d.Set("name", m.name)
	}
	if m.task != nil {
		d.Set("task", m.task)
	}
	if m.role == "developer" {
		d.Set("tools", nil)
	}
	return d
}

// plain tells whether the content is all text.
func (m *message) plain() bool {
	for _, p := range m.content {
		if p.kind != partText {
			return false
		}
	}
	return true
}

func (m *message) parts() *jinja.List {
	l := &jinja.List{Items: make([]jinja.Value, len(m.content))}
	for i, p := range m.content {
		d := new(jinja.Dict)
		switch p.kind {
		case partText:
			d.Set("type", "text")
			d.Set("text", p.text)
		case partTool:
			d.Set("type", "tool_reference")
			d.Set("name", p.text)
		case partMedia:
			d.Set("type", p.text)
		}
		l.Items[i] = d
	}
	return l
}

// joined is the content as one string. Empty parts leave no line, unless they
// were parts before (of a tool message).
func (m *message) joined(empties bool) string {
	if len(m.content) == 1 {
		return m.content[0].text
	}
	var b strings.Builder
	first := true
	for _, p := range m.content {
		if p.text == "" && !empties {
			continue
		}
		if !first {
			b.WriteByte('\n')
		}
		first = false
		b.WriteString(p.text)
	}
	return b.String()
}
