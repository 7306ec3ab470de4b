package chat

import (
	"context"
	"fmt"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat/internal/harmony"
)

// A program renders chats in place of a template.
type program func(m *Model, c *conversation) (text string, pieces []textPiece, err error)

// A textPiece is a part of a text that is encoded apart.
type textPiece struct {
	end     int    // in the text, where the next begins
	token   uint32 // that stands for it, if it is a control token
	control bool
}

// renderProgram is renderChat for a model with a program.
func (x *Rendering) renderProgram(p *Prompt) (err error) {
	switch {
	case p.AddSpecial:
		return unscored("add_special_tokens", "what the program of this model makes of it is not known here")
	case x.chat.media > 0:
		return notScorable("media, in a chat that the engine renders by a program")
	case len(x.media) > 0:
		return notScorable("%d media, and the messages have none", len(x.media))
	}
	if err := x.model.checkSalt(p.Salt); err != nil {
		return err
	}
	x.Text, x.pieces, err = x.model.program(x.model, x.chat)
	return err
}

// Whole reports whether Text is encoded as one text, so that Encode is one call of
// t.Encode. Text of a template is.
func (x *Rendering) Whole() bool { return len(x.pieces) == 0 }

// Encode appends the ids of Text to dst and returns the result. Of a chat that a program made,
// it encodes the parts that the engine encodes apart, and a client's text is no special
// token. If t makes other ids of it than the engine's tokenizer, as that of a tokenizer.json does
// for mistral-common, the error wraps ErrNotScorable. On an error Encode returns dst unchanged.
func (x *Rendering) Encode(ctx context.Context, dst []uint32, t tokenize.Tokenizer) ([]uint32, error) {
	if x.Whole() {
		return t.Encode(ctx, dst, x.Text, x.special)
	}
	ids, from, checked := dst, 0, false
	for _, p := range x.pieces {
		text := x.Text[from:p.end]
		from = p.end
		if !p.control || !checked {
			n := len(ids)
			all, err := t.Encode(ctx, ids, text, false)
			if err != nil {
				return dst, err
			}
			if !p.control {
				ids = all
				continue
			}
			if checked = true; len(all) == n+1 && all[n] == p.token {
				return dst, notScorable("a tokenizer to which %s in a text is a token: the engine encodes by %s", text, tekkenName)
			}
		}
		ids = append(ids, p.token)
	}
	return ids, nil
}

// renderHarmony renders a chat of gpt-oss as vLLM does (0.14 to 0.31 and main of autumn 2026:
// renderers/online_renderer.py, _make_request_with_harmony, and
// entrypoints/openai/parser/harmony_utils.py). From 0.23 a first message of the system's or
// developer's is the instructions. Reasoning before the last answer to the user is dropped.
func renderHarmony(m *Model, c *conversation) (string, []textPiece, error) {
	effort, err := m.harmonyEffort(c)
	if err != nil {
		return "", nil, err
	}
	tools, err := m.tools(c)
	if err != nil {
		return "", nil, err
	}
	var functions []harmony.Function
	if tools != nil {
		if functions, err = m.functions(c.tools); err != nil {
			return "", nil, err
		}
	}
	text := new(harmony.Text)
	size := 1 << 10
	for i := range c.messages {
		size += c.messages[i].size() + 1<<6
	}
	text.Grow(size)
	text.System(effort, m.startDate(), len(functions) > 0)
	rest, at := c.messages, 0
	var instructions *string
	folds := m.engine.does(foldsInstructions)
	if folds && rest[0].instructs() {
		if instructions, err = rest[0].text(); err != nil {
			return "", nil, within(err, "messages[0]")
		}
		if instructions != nil && *instructions == "" && len(functions) == 0 {
			instructions = nil
		}
		rest, at = rest[1:], 1
	}
	if instructions != nil || len(functions) > 0 || !folds && len(c.tools) > 0 {
		if err := text.Developer(instructions, functions); err != nil {
			return "", nil, unscored("tools", "a number or their size: %v", err)
		}
	}
	h := harmonyMessages{text: text, names: make(map[string]string), engine: m.engine}
	h.prepare(rest)
	for i := range rest {
		if err := h.message(&rest[i], i < h.answered); err != nil {
			return "", nil, within(err, "messages[%d]", at+i)
		}
	}
	text.Completion()
	all := text.String()
	return all, piecesAt(text.Cuts(), len(all)), nil
}

// piecesAt returns the pieces of a text of so many bytes that is cut in places, nil if it is one.
func piecesAt(cuts []int, length int) (pieces []textPiece) {
	for _, at := range cuts {
		pieces = append(pieces, textPiece{end: at})
	}
	if pieces != nil {
		pieces = append(pieces, textPiece{end: length})
	}
	return pieces
}

// harmonyEffort returns reasoning_effort, of which harmony has three values.
func (m *Model) harmonyEffort(c *conversation) (string, error) {
	switch c.effort {
	case nil:
		return "medium", nil
	case "low", "medium", "high":
		return c.effort.(string), nil
	}
	return "", badField("reasoning_effort", "neither low, medium nor high, which harmony has")
}

// startDate returns the date that harmony writes.
func (m *Model) startDate() string {
	if m.options.StartDate != "" {
		return m.options.StartDate
	}
	now := time.Now
	if m.options.Now != nil {
		now = m.options.Now
	}
	return now().Format(time.DateOnly)
}

func (m *Model) functions(tools []*tool) ([]harmony.Function, error) {
	list := make([]harmony.Function, len(tools))
	for i, t := range tools {
		list[i].Name = t.name
		list[i].Description, _ = t.description.(string)
		list[i].Parameters, _ = t.parameters.(*python.Dict)
		if t.description == nil && !m.engine.does(takesSilentTools) {
			path := fmt.Sprintf("tools[%d].function.description", i)
			if err := m.engine.knows(takesSilentTools, path); err != nil {
				return nil, err
			}
			return nil, badField(path, "missing")
		}
	}
	return list, nil
}

// instructs reports whether a message is of the system's or developer's.
func (m *message) instructs() bool { return m.role == "system" || m.role == "developer" }

// size returns the bytes of a message's texts.
func (m *message) size() (n int) {
	for i := range m.content {
		n += len(m.content[i].text)
	}
	for _, s := range m.arguments {
		n += len(s)
	}
	if s, ok := m.reasoning.(string); ok {
		n += len(s)
	}
	return n
}

// text returns the content, nil if there is none.
func (m *message) text() (*string, error) {
	switch {
	case m.features&featureParts != 0:
		return nil, unscored("content", "an array, which may reach the engine as an iterator, of which it makes nothing")
	case len(m.content) == 0:
		return nil, nil
	}
	return &m.content[0].text, nil
}

// harmonyMessages writes messages.
type harmonyMessages struct {
	text     *harmony.Text
	names    map[string]string // of functions, by the ids of calls
	answered int               // messages up to the last answer to the user
	engine   version
}

// prepare finds what a message has to know of the others.
func (h *harmonyMessages) prepare(messages []message) {
	for i := range messages {
		m := &messages[i]
		for j := range m.arguments {
			id, name := m.called(j)
			h.names[id] = name
		}
		if m.role == "assistant" && len(m.arguments) == 0 && len(m.content) > 0 && m.content[0].text != "" {
			h.answered = i + 1
		}
	}
}

// called returns the id and the name of a tool call.
func (m *message) called(i int) (id, name string) {
	call := m.toolCalls.Items[i].(*python.Dict)
	function, _ := call.Lookup("function")
	id, _ = optional(call, "id").(string)
	name, _ = optional(function.(*python.Dict), "name").(string)
	return id, name
}

// message writes a message. answered: it is not behind the last answer to the user, so that its
// reasoning is dropped.
func (h *harmonyMessages) message(m *message, answered bool) error {
	if m.role == "user" || m.instructs() && !h.engine.does(foldsInstructions) {
		return h.plain(m)
	}
	content, err := m.text()
	if err != nil {
		return err
	}
	s := ""
	if content != nil {
		s = *content
	}
	switch m.role {
	case "assistant":
		h.assistant(m, s, answered)
	case "tool":
		id, _ := m.toolCallID.(string)
		h.text.Message(harmony.Header{Author: "functions." + h.names[id], Recipient: "assistant", Channel: "commentary"}, s)
	case "system", "developer":
		if content != nil {
			return h.text.Developer(content, nil)
		}
	default:
		return badField("role", "%.60q is none of harmony's", m.role)
	}
	return nil
}

// plain writes a message with its texts as they are.
func (h *harmonyMessages) plain(m *message) error {
	if len(m.content) == 1 && m.features&featureParts == 0 {
		h.text.Message(harmony.Header{Author: m.role}, m.content[0].text)
		return nil
	}
	var texts []string
	for i, p := range m.content {
		if p.kind != partText || p.rare != nil && (p.rare.kind != "" || p.rare.bare) {
			return within(unscored("", "no plain text"), "content[%d]", i)
		}
		texts = append(texts, p.text)
	}
	h.text.Message(harmony.Header{Author: m.role}, texts...)
	return nil
}

func (h *harmonyMessages) assistant(m *message, content string, answered bool) {
	reasoning, _ := m.reasoningOf(h.engine).(string)
	calls := len(m.arguments) > 0
	if calls && content != "" {
		h.text.Message(harmony.Header{Author: "assistant", Channel: "commentary"}, content)
	}
	if reasoning != "" && !answered {
		h.text.Message(harmony.Header{Author: "assistant", Channel: "analysis"}, reasoning)
	}
	for i, arguments := range m.arguments {
		_, name := m.called(i)
		h.text.Message(harmony.Header{
			Author: "assistant", Recipient: "functions." + name, Channel: "commentary", Type: "json",
		}, arguments)
	}
	if !calls && content != "" {
		h.text.Message(harmony.Header{Author: "assistant", Channel: "final"}, content)
	}
}
