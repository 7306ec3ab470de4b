// This is vLLM's reading of a request, not OpenAI's. Tools go through the engine's model
// classes and come out in their field order; the template gets a conversation as dicts in the
// order in which the engine builds them; arguments of tool calls are parsed. The package has
// its own JSON decoder for this, because key order and the form of numbers show in the text.

package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A message is one of a conversation, with the fields that some version of vLLM keeps
// (entrypoints/chat_utils.py, since November 2026 renderers/chat_utils,
// _parse_chat_message_content). Other fields do not reach a template.
type message struct {
	role       string
	content    []part
	toolCalls  *python.List // nil: none; arguments that are odd are {}
	arguments  []string     // of the tool calls, as they came
	reasoning  python.Value // a string, or nil
	toolCallID python.Value // a string or nil, if hasID
	hasID      bool
	name       python.Value // a string, or nil
	features   featureSet
	rare       *rareMessage
}

// A rareMessage has the fields that few messages have.
type rareMessage struct {
	odd      []oddArguments // in order
	replaced python.Value   // reasoning_content, a string or nil
	task     python.Value   // a string, or nil
	lazy     bool           // the engine may have an iterator for an array
	encoded  string         // a field that a program of DeepSeek's reads; "" if none is there
}

// A part is a piece of a message's content.
type part struct {
	kind partKind
	text string // or the name of the tool, or the kind of the media
	rare *rarePart
}

type partKind uint8

const (
	partText partKind = iota
	partTool          // a tool_reference
	partMedia
	partSkipped // a text without text
)

// A rarePart has the fields that few parts have.
type rarePart struct {
	needs change  // came with the type of the part
	kind  string  // its type
	bare  bool    // it is a string
	open  bool    // a thought that has no end
	uuid  bool    // a text has one
	more  []field // unknown to vLLM, in order
}

// oddArguments are arguments of a tool call that are no object.
type oddArguments struct {
	call  int          // in toolCalls
	until change       // since then they are {}
	value python.Value // before, if they are JSON
	json  bool
}

func (c *conversation) parseMessages(o *python.Dict, n *counts) error {
	list, err := optionalList(o, "messages")
	if err == nil && (list == nil || len(list.Items) == 0) {
		err = badField("messages", "empty")
	}
	if err != nil {
		return err
	}
	c.messages = make([]message, len(list.Items))
	for i, item := range list.Items {
		o, ok := item.(*python.Dict)
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

func (m *message) parse(o *python.Dict, n *counts) (err error) {
	if m.role, err = text(o, "role"); err != nil {
		return err
	}
	if _, ok := o.Lookup("author"); ok {
		return unscored("author", "the engine may take the message for one of harmony's")
	}
	m.features = featuresOfRole(m.role)
	content, given := o.Lookup("content")
	if err := m.parseContent(content, given); err != nil {
		return err
	}
	if err := m.parseName(o); err != nil {
		return err
	}
	if task, ok := optional(o, "task").(string); ok {
		m.rarely().task = task
	}
	for _, name := range encodedFields {
		if optional(o, name) != nil {
			m.rarely().encoded = name
		}
	}
	if m.features&featureParts != 0 && isLazy(o, m.role) {
		m.rarely().lazy = true
	}
	switch m.role {
	case "system":
		m.features |= featuresOfSystem(m.content)
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

// isLazy reports whether pydantic may take the message for one of OpenAI's types, of which an
// array is an iterator, and not for vLLM's own.
func isLazy(o *python.Dict, role string) bool {
	_, audio := o.Lookup("audio")
	_, call := o.Lookup("function_call")
	name, named := o.Lookup("name")
	_, text := name.(string)
	return role == "assistant" && (audio || call) || role == "tool" && named && !text
}

// encodedFields are the fields of messages that DeepSeek-V4.1's program reads and no template
// gets.
var encodedFields = []string{"task", "tools", "wo_eos", "content_blocks", "response_format"}

// parseName reads the name. That of a tool message may be anything, and is then ignored.
func (m *message) parseName(o *python.Dict) error {
	v, ok := o.Lookup("name")
	if _, text := v.(string); text {
		m.name = v
		m.features |= featureNames
		return nil
	}
	if _, id := optional(o, "tool_call_id").(string); !ok || m.role == "tool" && id {
		return nil
	}
	return wrongType("name", v, "a string")
}

func (m *message) parseReasoning(o *python.Dict) error {
	for _, name := range []string{"reasoning", "reasoning_content"} {
		v := optional(o, name)
		if _, ok := v.(string); !ok && v != nil { // pydantic keeps it, as an unknown field
			return unscored(name, "%s, not a string", kind(v))
		}
		if v != nil {
			m.features |= featureReasoning
		}
		switch {
		case name == "reasoning":
			m.reasoning = v
		case v != nil:
			m.rarely().replaced = v
		}
	}
	return nil
}

// rarely returns the rareMessage, to be set.
func (m *message) rarely() *rareMessage {
	if m.rare == nil {
		m.rare = new(rareMessage)
	}
	return m.rare
}

func (m *message) parseContent(v python.Value, given bool) error {
	switch v := v.(type) {
	case nil:
		if given && m.role != "assistant" && m.role != "function" {
			return wrongType("content", v, "a string or an array")
		}
	case string:
		m.content = []part{{text: v}}
	case *python.List:
		m.features |= featureParts
		m.content = make([]part, len(v.Items))
		for i, item := range v.Items {
			f, err := m.content[i].parse(item)
			if err != nil {
				return within(err, "content[%d]", i)
			}
			m.features |= f
		}
	default:
		return wrongType("content", v, "a string or an array")
	}
	return nil
}

// textParts are the types of parts that are text, the field of the text, and the change that
// introduced them.
var textParts = map[string]struct {
	field string
	needs change
}{
	"text": {"text", always}, "refusal": {"refusal", always},
	"thinking": {"thinking", takesThinking}, "input_text": {"text", takesThinking},
	"output_text": {"text", takesOutputText}, "tool_reference": {"name", takesReferences},
}

// mediaParts are the types of parts that are media, and their kinds. The order is the engine's
// for a part without a type.
var mediaParts = []struct{ name, media string }{
	{"image_url", "image"}, {"image_pil", "image"}, {"image_embeds", "image embeddings"},
	{"audio_embeds", "audio embeddings"}, {"video_embeds", "video embeddings"}, {"prompt_embeds", "prompt embeddings"},
	{"audio_url", "audio"}, {"input_audio", "audio"}, {"video_url", "video"},
	{"input_image", "image"}, {"file", "file"},
}

// partFields are the fields of parts that vLLM knows and does not give to the template
// (_collect_known_content_part_fields).
var partFields = map[string]bool{
	"type": true, "text": true, "image_url": true, "input_audio": true, "file": true, "refusal": true, "audio_url": true,
	"video_url": true, "image_pil": true, "uuid": true, "image_embeds": true, "audio_embeds": true, "data": true,
	"name": true, "thinking": true, "closed": true,
}

// mediaFields are those of partFields that are media. Nothing reads their values.
var mediaFields = map[string]bool{
	"image_url": true, "input_audio": true, "file": true, "audio_url": true, "video_url": true, "image_pil": true,
	"image_embeds": true, "audio_embeds": true,
}

func (p *part) parse(v python.Value) (featureSet, error) {
	switch v := v.(type) {
	case string:
		p.text, p.rare = v, &rarePart{bare: true}
		return featureStringParts, nil
	case *python.Dict:
		if err := p.parseObject(v); err != nil {
			return 0, err
		}
		return p.featuresOfPart(v), nil
	}
	return 0, wrongType("", v, "an object")
}

func (p *part) parseObject(o *python.Dict) error {
	typed := optional(o, "type")
	name, ok := typed.(string)
	if typed != nil && !ok {
		return wrongType("type", typed, "a string")
	}
	p.parseMore(o)
	untyped := typed == nil || optional(o, "uuid") != nil // a uuid is media's
	for _, m := range mediaParts {
		if _, has := o.Lookup(m.name); name == m.name || untyped && has {
			p.kind, p.text = partMedia, m.media
			return nil
		}
	}
	if typed == nil {
		return badField("type", "missing")
	}
	return p.parseText(o, name)
}

func (p *part) parseText(o *python.Dict, name string) error {
	t, ok := textParts[name]
	if !ok {
		return badField("type", "unknown: %.60q", name)
	}
	switch v := optional(o, t.field).(type) {
	case string:
		p.text = v
	case nil:
		if name != "text" && name != "refusal" {
			return unscored(t.field, "missing")
		}
		p.kind = partSkipped
	default:
		return unscored(t.field, "%s, not a string", kind(v))
	}
	if name == "tool_reference" {
		p.kind = partTool
	}
	if uuid := optional(o, "uuid") != nil; uuid || name != "text" || p.kind == partSkipped {
		r := p.rarely()
		r.needs, r.kind, r.uuid = t.needs, name, uuid
		if closed, ok := o.Lookup("closed"); ok && name == "thinking" {
			on, ok := asFlag(closed)
			r.open = ok && !on
		}
	}
	return nil
}

// rarely returns the rarePart, to be set.
func (p *part) rarely() *rarePart {
	if p.rare == nil {
		p.rare = new(rarePart)
	}
	return p.rare
}

// parseMore keeps the fields that are unknown to vLLM.
func (p *part) parseMore(o *python.Dict) {
	for i := range o.Len() {
		key, v := o.At(i)
		if name := key.(string); !partFields[name] {
			r := p.rarely()
			r.more = append(r.more, field{name, v})
		}
	}
}

func (m *message) parseToolCalls(o *python.Dict, n *counts) error {
	calls, err := optionalList(o, "tool_calls")
	if err != nil || calls == nil {
		return err
	}
	m.toolCalls = &python.List{Items: make([]python.Value, len(calls.Items))}
	m.arguments = make([]string, len(calls.Items))
	if len(calls.Items) == 0 {
		m.features |= featureEmptyCalls
	}
	for i, item := range calls.Items {
		call, odd, err := parseToolCall(item, n)
		if err != nil {
			return within(err, "tool_calls[%d]", i)
		}
		m.toolCalls.Items[i] = call
		function, _ := item.(*python.Dict).Lookup("function")
		m.arguments[i], _ = optional(function.(*python.Dict), "arguments").(string)
		m.features |= featureToolCalls
		if odd != nil {
			m.features |= featureArguments
			odd.call = i
			r := m.rarely()
			r.odd = append(r.odd, *odd)
		}
	}
	return nil
}

// parseToolCall puts the fields into the engine's order: those of OpenAI's types, which
// pydantic uses (openai-python 3.3, chat_completion_message_function_tool_call_param.py), then
// the others as they came.
func parseToolCall(v python.Value, n *counts) (call *python.Dict, odd *oddArguments, err error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, nil, wrongType("", v, "an object")
	}
	id, err := text(o, "id")
	if err != nil {
		return nil, nil, err
	}
	if kind, err := text(o, "type"); err != nil || kind != "function" {
		if err == nil {
			err = badField("type", `not "function"`)
		}
		return nil, nil, err
	}
	function, err := optionalObject(o, "function")
	if err == nil && function == nil {
		err = badField("function", "missing")
	}
	if err != nil {
		return nil, nil, err
	}
	called, odd, err := parseCalled(function, n)
	if err != nil {
		return nil, nil, within(err, "function")
	}
	others(called, function)
	call = new(python.Dict)
	call.Set("id", id)
	call.Set("function", called)
	call.Set("type", "function")
	others(call, o)
	return call, odd, nil
}

// parseCalled reads the name of a tool call and its arguments, a string of JSON. Arguments that
// are no object become {}, or are odd.
func parseCalled(o *python.Dict, n *counts) (called *python.Dict, odd *oddArguments, err error) {
	raw, err := text(o, "arguments")
	if err != nil {
		return nil, nil, err
	}
	name, err := text(o, "name")
	if err != nil {
		return nil, nil, err
	}
	v, err := n.decode(raw)
	args, ok := v.(*python.Dict)
	var syntax *syntaxError
	switch {
	case err != nil && !errors.As(err, &syntax):
		return nil, nil, within(err, "arguments")
	case !ok:
		args = new(python.Dict)
		odd = &oddArguments{until: takesAnyArguments, value: v, json: err == nil}
		if raw == "" {
			odd.until = takesEmptyArguments
		} else if err == nil && v == nil {
			odd.until = takesNullArguments
		}
	}
	called = new(python.Dict)
	called.Set("arguments", args)
	called.Set("name", name)
	return called, odd, nil
}

// others copies to to the fields of from that it lacks.
func others(to, from *python.Dict) {
	for i := range from.Len() {
		key, v := from.At(i)
		if _, ok := to.Lookup(key.(string)); !ok {
			to.Set(key.(string), v)
		}
	}
}

// check returns an error if the engine refuses the message, or treats it in an unknown way.
// parts: the template wants parts.
func (m *message) check(parts bool, engine version) error {
	for i := range m.content {
		p := &m.content[i]
		if m.role == "system" && strings.HasPrefix(p.text, billingHeader) && p.billed() {
			if err := engine.knows(dropsBillingHeader, "content"); err != nil {
				return err
			}
		}
		if p.rare == nil {
			continue
		}
		if err := p.check(m, parts, engine); err != nil {
			return within(err, "content[%d]", i)
		}
	}
	if m.rare == nil {
		return nil
	}
	for _, odd := range m.rare.odd {
		err := engine.knows(odd.until, "")
		if err == nil && !odd.json && !engine.does(odd.until) {
			err = badField("", "no JSON")
		}
		if err != nil {
			return within(err, "tool_calls[%d].function.arguments", odd.call)
		}
	}
	return nil
}

func (p *part) check(m *message, parts bool, engine version) error {
	r := p.rare
	_, answer := m.toolCallID.(string)
	switch {
	case !engine.does(r.needs):
		return badField("type", "unknown: %q", r.kind)
	case r.uuid && engine.does(skipsEmptyParts):
		return badField("uuid", "of a part that is no media")
	case p.kind == partSkipped && !engine.does(skipsEmptyParts):
		return badField(textParts[r.kind].field, "missing")
	case p.kind == partSkipped && m.role == "tool" && answer:
		return unscored(textParts[r.kind].field, "missing: whether the engine accepts it depends on the other parts")
	case !parts || !engine.does(handsPartFields):
		return nil
	}
	for _, f := range r.more {
		switch f.name {
		case "prompt_cache_breakpoint", "video_embeds":
			return unscored(f.name, "it depends on the engine's version of the package openai, and on its own, whether templates get it")
		}
	}
	return nil
}

// billingHeader begins the line that Claude Code puts before its system prompt, new in each
// request.
const billingHeader = "x-anthropic-billing-header"

// billed reports whether the engine would look for the header in the part.
func (p *part) billed() bool {
	return p.kind == partText && (p.rare == nil || p.rare.kind == "" || p.rare.kind == "text")
}

// unbilled returns the content without the header.
func unbilled(content []part) []part {
	var list []part
	for _, p := range content {
		if p.billed() && strings.HasPrefix(p.text, billingHeader) {
			_, p.text, _ = strings.Cut(p.text, "\n")
			if p.text == "" {
				continue
			}
		}
		list = append(list, p)
	}
	return list
}

// dict returns the message as the template gets it, its content as parts or as one string.
func (m *message) dict(parts bool, engine version) *python.Dict {
	d := new(python.Dict)
	d.Set("role", m.role)
	content := m.content
	if m.role == "system" && engine.does(dropsBillingHeader) {
		content = unbilled(content)
	}
	joins := m.role == "tool" && plain(content) && engine.does(joinsToolText)
	if parts && !joins {
		d.Set("content", partsOf(content, engine))
	} else {
		d.Set("content", joined(content, parts))
	}
	switch m.role {
	case "assistant":
		m.addCalls(d, engine)
		m.addReasoning(d, engine)
	case "tool":
		if m.hasID {
			d.Set("tool_call_id", m.toolCallID)
		}
	}
	if m.name != nil {
		d.Set("name", m.name)
	}
	if m.rare != nil && m.rare.task != nil && engine.does(handsTask) {
		d.Set("task", m.rare.task)
	}
	if m.role == "developer" && engine.does(handsDeveloperTools) {
		d.Set("tools", nil)
	}
	return d
}

func (m *message) addCalls(d *python.Dict, engine version) {
	if m.toolCalls == nil || len(m.toolCalls.Items) == 0 && engine.does(dropsEmptyCalls) {
		return
	}
	calls := m.toolCalls
	if m.rare != nil {
		for _, odd := range m.rare.odd {
			if !engine.does(odd.until) {
				calls = withArguments(calls, odd)
			}
		}
	}
	d.Set("tool_calls", calls)
}

// withArguments returns a list of tool calls with the arguments of one as they came.
func withArguments(calls *python.List, odd oddArguments) *python.List {
	call := calls.Items[odd.call].(*python.Dict)
	called, _ := call.Lookup("function")
	function := new(python.Dict)
	function.Set("arguments", odd.value)
	others(function, called.(*python.Dict))
	changed := new(python.Dict)
	changed.Set("id", optional(call, "id"))
	changed.Set("function", function)
	others(changed, call)
	list := &python.List{Items: slices.Clone(calls.Items)}
	list.Items[odd.call] = changed
	return list
}

func (m *message) addReasoning(d *python.Dict, engine version) {
	if v := m.reasoningOf(engine); v != nil {
		d.Set("reasoning", v)
		d.Set("reasoning_content", v)
	}
}

// reasoningOf returns the reasoning that the engine takes, nil without.
func (m *message) reasoningOf(engine version) python.Value {
	v := m.reasoning
	var replaced python.Value
	if m.rare != nil {
		replaced = m.rare.replaced
	}
	switch {
	case !engine.does(handsReasoning):
		return nil
	case !engine.does(readsReasoningAlone): // by Python's "or"
		if v == nil || v == "" {
			v = replaced
		}
	case v == nil && engine.does(renamesReasoning):
		v = replaced
	}
	return v
}

// plain reports whether content is all text.
func plain(content []part) bool {
	for _, p := range content {
		if p.kind == partTool || p.kind == partMedia {
			return false
		}
	}
	return true
}

func partsOf(content []part, engine version) *python.List {
	l := &python.List{Items: make([]python.Value, 0, len(content))}
	for _, p := range content {
		d := new(python.Dict)
		switch p.kind {
		case partSkipped:
			continue
		case partText:
			if p.rare != nil && p.rare.bare && !engine.does(wrapsStrings) {
				if p.text != "" {
					l.Items = append(l.Items, p.text)
				}
				continue
			}
			d.Set("type", "text")
			d.Set("text", p.text)
		case partTool:
			d.Set("type", "tool_reference")
			d.Set("name", p.text)
		case partMedia:
			d.Set("type", p.text)
		}
		if p.rare != nil && p.kind != partTool && engine.does(handsPartFields) {
			for _, f := range p.rare.more {
				d.Set(f.name, f.value)
			}
		}
		l.Items = append(l.Items, d)
	}
	return l
}

// joined returns content as one string. Empty parts leave no line, unless they were parts
// before (of a tool message).
func joined(content []part, empties bool) string {
	if len(content) == 1 {
		return content[0].text
	}
	var b strings.Builder
	first := true
	for _, p := range content {
		if p.kind == partSkipped || p.text == "" && !empties {
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
