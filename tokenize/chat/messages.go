// vLLM turns a body of Anthropic's Messages API into a chat, and renders that
// (entrypoints/anthropic/serving.py and protocol.py). A body is kept as its blocks, because
// versions place its system messages in different ways.

package chat

import (
	"slices"
	"strings"
	"sync"

	"github.com/kvindex/kvindex/internal/jinja"
	"github.com/kvindex/kvindex/internal/jinja/builtins"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A messagesBody is a request of the Messages API.
type messagesBody struct {
	base     conversation // without messages
	system   turn
	turns    []turn
	inline   bool  // a turn is a system message
	effort   error // what is wrong with output_config
	salt     bool  // cache_salt is
	flags    bool  // strict or defer_loading of a tool is
	disabled bool  // thinking is
	over     bool  // the budget of thinking is out of its bounds
}

// A turn is a message, or the system prompt: a text, or blocks.
type turn struct {
	role   string
	plain  bool // it is a text
	text   string
	blocks []block
}

// A block is a piece of a turn.
type block struct {
	kind    string
	text    string       // a text; a thought
	some    bool         // there is a thought
	image   bool         // there is an image
	id      string       // of a tool_use, or tool_use_id
	name    string       // of a tool_use, or of another block
	input   *python.Dict // of a tool_use, may be nil
	content python.Value // of a tool_result: nil, a string, or a list of objects
}

// blockTypes are the types of blocks that vLLM takes.
var blockTypes = []string{"text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"}

func parseMessages(o *python.Dict) (*messagesBody, error) {
	b := new(messagesBody)
	b.base.addGenerationPrompt = true
	if model, err := text(o, "model"); err != nil || model == "" {
		if err == nil {
			err = badField("model", "empty")
		}
		return nil, err
	}
	limit, ok := o.Lookup("max_tokens")
	switch n, whole := limit.(int64); {
	case !ok:
		return nil, badField("max_tokens", "missing")
	case !isInteger(limit):
		return nil, wrongType("max_tokens", limit, "an integer")
	case whole && n <= 0:
		return nil, badField("max_tokens", "not positive")
	}
	b.salt = optional(o, "cache_salt") != nil
	var err error
	if b.base.kwargs, err = optionalObject(o, "chat_template_kwargs"); err != nil {
		return nil, err
	}
	if err := b.parseSettings(o); err != nil {
		return nil, err
	}
	if err := b.parseTools(o); err != nil {
		return nil, err
	}
	if v := optional(o, "system"); v != nil {
		if err := b.system.parseContent(v); err != nil {
			return nil, within(err, "system")
		}
	}
	return b, b.parseTurns(o)
}

// parseSettings reads the effort, and whether thinking is disabled.
func (b *messagesBody) parseSettings(o *python.Dict) error {
	config, err := optionalObject(o, "output_config")
	if err != nil {
		return err
	}
	if config != nil {
		b.base.effort = optional(config, "effort")
		switch b.base.effort {
		case nil, "low", "medium", "high", "xhigh", "max":
		default:
			b.effort = badField("output_config.effort", "none that the engine takes")
		}
	}
	thinking, ok := optional(o, "thinking").(*python.Dict)
	if !ok {
		return nil
	}
	switch optional(thinking, "type") {
	case "disabled":
		b.disabled = true
	case "enabled":
		budget, isInt := optional(thinking, "budget_tokens").(int64)
		limit, whole := optional(o, "max_tokens").(int64)
		b.over = isInt && (budget < 1024 || whole && budget >= limit)
	}
	return nil
}

func (b *messagesBody) parseTools(o *python.Dict) error {
	list, err := optionalList(o, "tools")
	if err != nil {
		return err
	}
	if list != nil {
		b.base.tools = make([]*tool, len(list.Items))
		b.base.assigned = true
		for i, item := range list.Items {
			if b.base.tools[i], err = b.parseTool(item); err != nil {
				return within(err, "tools[%d]", i)
			}
		}
	}
	choice, err := optionalObject(o, "tool_choice")
	if err != nil || choice == nil {
		return err
	}
	switch kind := optional(choice, "type"); kind {
	case "auto":
	case "any":
		b.base.needsTool = true
	case "none":
		b.base.noTools = true
	case "tool":
		if name, err := optionalText(choice, "name"); err != nil || name == "" {
			return badField("tool_choice.name", "missing")
		}
	default:
		return badField("tool_choice.type", "neither auto, any, tool nor none")
	}
	return nil
}

// parseTool reads a tool: its name, description and schema, and two flags. vLLM drops other
// fields, and writes a type into a schema without one.
func (b *messagesBody) parseTool(v python.Value) (*tool, error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, wrongType("", v, "an object")
	}
	t := new(tool)
	var err error
	if t.name, err = text(o, "name"); err != nil {
		return nil, err
	}
	if v := optional(o, "description"); v != nil {
		if _, err := text(o, "description"); err != nil {
			return nil, err
		}
		t.description = v
	}
	schema, err := optionalObject(o, "input_schema")
	if err == nil && schema == nil {
		err = badField("input_schema", "missing: of a tool that the engine does not have")
	}
	if err != nil {
		return nil, err
	}
	if _, ok := schema.Lookup("type"); !ok {
		schema.Set("type", "object")
	}
	t.parameters = schema
	for _, name := range []string{"strict", "defer_loading"} {
		v := optional(o, name)
		if v == nil {
			continue
		}
		if _, ok := asFlag(v); !ok {
			return nil, wrongType(name, v, "a boolean")
		}
		t.more = append(t.more, field{name, v})
		b.flags = true
	}
	return t, nil
}

func (b *messagesBody) parseTurns(o *python.Dict) error {
	list, err := optionalList(o, "messages")
	if err == nil && list == nil {
		err = badField("messages", "missing")
	}
	if err != nil {
		return err
	}
	b.turns = make([]turn, len(list.Items))
	for i, item := range list.Items {
		if err := b.turns[i].parse(item); err != nil {
			return within(err, "messages[%d]", i)
		}
		b.inline = b.inline || b.turns[i].role == "system"
	}
	return nil
}

func (t *turn) parse(v python.Value) (err error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return wrongType("", v, "an object")
	}
	if t.role, err = text(o, "role"); err != nil {
		return err
	}
	switch t.role {
	case "user", "assistant", "system":
	default:
		return badField("role", "neither user, assistant nor system")
	}
	content, ok := o.Lookup("content")
	if !ok {
		return badField("content", "missing")
	}
	return within(t.parseContent(content), "content")
}

func (t *turn) parseContent(v python.Value) error {
	switch v := v.(type) {
	case string:
		t.plain, t.text = true, v
	case *python.List:
		t.blocks = make([]block, len(v.Items))
		for i, item := range v.Items {
			if err := t.blocks[i].parse(item, t.role); err != nil {
				return within(err, "[%d]", i)
			}
		}
	default:
		return wrongType("", v, "a string or an array")
	}
	return nil
}

// parse reads a block of a turn with a role. vLLM checks the types of all fields that it
// knows, whatever the type of the block.
func (b *block) parse(v python.Value, role string) (err error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return wrongType("", v, "an object")
	}
	if b.kind, err = text(o, "type"); err != nil {
		return err
	}
	if !slices.Contains(blockTypes, b.kind) {
		return badField("type", "unknown: %.60q", b.kind)
	}
	var source *python.Dict
	var written, thought, id, use string
	for i := range o.Len() {
		key, v := o.At(i)
		name := key.(string)
		s, isText := v.(string)
		d, isObject := v.(*python.Dict)
		var fits bool
		switch name {
		case "text":
			written, fits = s, isText
		case "thinking":
			thought, b.some, fits = s, isText, isText
		case "id":
			id, fits = s, isText
		case "tool_use_id":
			use, fits = s, isText
		case "name":
			b.name, fits = s, isText
		case "signature", "data", "tool_name":
			fits = isText
		case "source":
			source, fits = d, isObject
		case "input":
			b.input, fits = d, isObject
		case "is_error":
			_, fits = asFlag(v)
		case "content":
			b.content, fits = v, true
		default:
			continue
		}
		if !fits && v != nil {
			return badField(name, "%s, which the engine does not take", kind(v))
		}
	}
	if err := checkResult(b.content); err != nil {
		return within(err, "content")
	}
	switch b.kind {
	case "text":
		b.text = written
	case "thinking":
		b.text = thought
	case "tool_use":
		b.id = id
	case "tool_result":
		b.id = use
		if role == "user" {
			return within(checkParts(b.content), "content")
		}
		return within(checkPrinted(b.content), "content")
	case "image":
		if b.image = source != nil && source.Len() > 0; b.image {
			_, err := imageOf(source)
			return within(err, "source")
		}
	}
	return nil
}

// checkResult returns an error if a block's content is neither a text nor a list of objects.
func checkResult(v python.Value) error {
	switch v := v.(type) {
	case nil, string:
	case *python.List:
		for i, item := range v.Items {
			if _, ok := item.(*python.Dict); !ok {
				return within(wrongType("", item, "an object"), "[%d]", i)
			}
		}
	default:
		return wrongType("", v, "a string or an array")
	}
	return nil
}

// checkParts returns an error if vLLM fails on a part of a user's tool result.
func checkParts(v python.Value) error {
	list, ok := v.(*python.List)
	if !ok {
		return nil
	}
	for i, item := range list.Items {
		o := item.(*python.Dict)
		var err error
		switch optional(o, "type") {
		case "text":
			if v, ok := o.Lookup("text"); ok {
				if _, ok := v.(string); !ok {
					err = wrongType("text", v, "a string")
				}
			}
		case "image":
			if source, ok := o.Lookup("source"); ok {
				d, ok := source.(*python.Dict)
				if !ok {
					err = wrongType("source", source, "an object")
				} else {
					_, err = imageOf(d)
				}
			}
		case "tool_reference":
			_, err = referenceOf(o)
		}
		if err != nil {
			return within(err, "[%d]", i)
		}
	}
	return nil
}

// checkPrinted returns an error if there is an image in a result of the assistant: vLLM prints
// it as Python does, with its data, which was passed over.
func checkPrinted(v python.Value) error {
	list, _ := v.(*python.List)
	for i := 0; list != nil && i < len(list.Items); i++ {
		if source, ok := optional(list.Items[i].(*python.Dict), "source").(*python.Dict); ok {
			if _, ok := optional(source, "data").(media); ok {
				return within(unscored("source.data", "of a tool result of the assistant"), "[%d]", i)
			}
		}
	}
	return nil
}

// imageOf reports whether a source has an image: it has no address that is empty.
func imageOf(source *python.Dict) (bool, error) {
	if optional(source, "type") != "url" {
		return true, nil
	}
	switch v := optional(source, "url").(type) {
	case nil:
		return false, nil
	case string:
		return v != "", nil
	default:
		return false, unscored("url", "%s, not a string", kind(v))
	}
}

// referenceOf returns the name of a tool_reference, "" without one.
func referenceOf(o *python.Dict) (string, error) {
	for _, name := range []string{"tool_name", "name"} {
		switch v := optional(o, name).(type) {
		case nil:
		case string:
			if v != "" {
				return v, nil
			}
		default:
			return "", unscored(name, "%s, not a string", kind(v))
		}
	}
	return "", nil
}

// conversation makes the chat of a body as the model's engine does.
func (b *messagesBody) conversation(m *Model) (*conversation, error) {
	if err := b.check(m.engine); err != nil {
		return nil, err
	}
	c := b.base
	if b.flags && !m.engine.does(passesStrict) {
		c.tools = flagsKnown(c.tools, m.engine)
	}
	if !m.engine.does(takesOutputConfig) {
		c.effort = nil
	}
	if !m.engine.does(passesKwargs) {
		c.kwargs = nil
	}
	if !m.engine.does(takesDefaultKwargs) && m.kwargs != nil {
		return nil, notScorable("this version of the engine does not use --default-chat-template-kwargs in this API")
	}
	if b.disabled && m.engine.does(disablesThinking) {
		effort, err := m.disabledEffort()
		if err != nil {
			return nil, within(err, "thinking")
		}
		c.effort = effort
	}
	turns, err := b.place(m, &c)
	if err != nil {
		return nil, err
	}
	for i := range turns {
		if err := c.addTurn(&turns[i], m.engine); err != nil {
			return nil, err
		}
	}
	if len(c.messages) == 0 {
		return nil, badField("messages", "empty")
	}
	if m.program != nil {
		if err := c.writeArguments(); err != nil {
			return nil, err
		}
	}
	c.findFeatures()
	c.features |= featureMessages
	return &c, nil
}

// writeArguments sets the arguments of calls as the engine writes them for a program.
func (c *conversation) writeArguments() error {
	if c.clocked != nil {
		return notScorable("a tool_use without an id: the engine's id is the second of its clock")
	}
	for i := range c.messages {
		m := &c.messages[i]
		if m.toolCalls == nil {
			continue
		}
		m.arguments = make([]string, len(m.toolCalls.Items))
		for j, call := range m.toolCalls.Items {
			function, _ := call.(*python.Dict).Lookup("function")
			s, err := builtins.JSON(optional(function.(*python.Dict), "arguments"), true)
			if err != nil {
				return notScorable("the input of a tool_use: %w", err)
			}
			m.arguments[j] = s
		}
	}
	return nil
}

// check returns an error if the engine refuses a field, or treats it in an unknown way.
func (b *messagesBody) check(engine version) error {
	uses := []struct {
		change change
		used   bool
		path   string
	}{
		{readsMessages, true, ""},
		{takesInlineSystem, b.inline, "messages"},
		{passesKwargs, b.base.kwargs != nil, "chat_template_kwargs"},
		{passesSalt, b.salt, "cache_salt"},
		{disablesThinking, b.disabled || b.over, "thinking"},
		{placesSystem, b.inline, "messages"},
	}
	for _, u := range uses {
		if !u.used {
			continue
		}
		if err := engine.knows(u.change, u.path); err != nil {
			return err
		}
	}
	switch {
	case !engine.does(readsMessages):
		return notScorable("this version of the engine has no Messages API")
	case b.effort != nil && engine.does(takesOutputConfig):
		return b.effort
	case !engine.does(takesReferences) && b.refers():
		return badField("messages", "a block of the type tool_reference, which this version of the engine does not take")
	case b.inline && !engine.does(takesInlineSystem):
		return badField("messages", "a system message, which this version of the engine takes in system only")
	case b.over && engine.does(disablesThinking):
		return badField("thinking.budget_tokens", "less than 1024, or not less than max_tokens")
	case b.salt && !engine.does(passesSalt):
		return unscored("cache_salt", "this version of the engine ignores it in this API")
	}
	return nil
}

// refers reports whether a block is a tool_reference.
func (b *messagesBody) refers() bool {
	reference := func(b block) bool { return b.kind == "tool_reference" }
	return slices.ContainsFunc(b.system.blocks, reference) ||
		slices.ContainsFunc(b.turns, func(t turn) bool { return slices.ContainsFunc(t.blocks, reference) })
}

// flagsKnown returns the tools with those flags only that the engine passes on.
func flagsKnown(tools []*tool, engine version) []*tool {
	list := make([]*tool, len(tools))
	for i, t := range tools {
		own := *t
		own.more = slices.DeleteFunc(slices.Clone(t.more), func(f field) bool {
			return f.name == "strict" || !engine.does(takesDeferLoading)
		})
		list[i] = &own
	}
	return list
}

// addTurn adds the messages of a turn: those of its tool results, then one of the rest.
func (c *conversation) addTurn(t *turn, engine version) error {
	m := message{role: t.role, features: featuresOfRole(t.role)}
	if t.plain {
		m.content = []part{{text: t.text}}
		c.add(m)
		return nil
	}
	var thoughts []string
	m.content = make([]part, 0, len(t.blocks))
	for i := range t.blocks {
		b := &t.blocks[i]
		switch {
		case b.kind == "text" && b.text != "":
			m.content = append(m.content, part{text: b.text})
		case b.kind == "image" && b.image:
			m.content = append(m.content, part{kind: partMedia, text: "image"})
		case b.kind == "thinking" && b.some:
			thoughts = append(thoughts, b.text)
		case b.kind == "tool_use":
			m.addCall(b, c)
		case b.kind == "tool_result" && t.role == "user":
			c.addResult(b, engine)
		case b.kind == "tool_result":
			s, err := pythonString(b.content)
			if err != nil {
				return err
			}
			m.content = append(m.content, part{text: "Tool result: " + s})
		}
	}
	switch len(m.content) {
	case 0:
		m.content = nil
	case 1:
	default:
		m.features |= featureParts
	}
	if t.role == "user" && len(m.content) == 0 && engine.does(dropsEmptyTurns) {
		return nil
	}
	if t.role != "assistant" {
		m.toolCalls = nil
	} else if thoughts != nil {
		m.reasoning = strings.Join(thoughts, "")
		m.features |= featureReasoning
	}
	c.add(m)
	return nil
}

// add adds a message.
func (c *conversation) add(m message) {
	if m.role == "system" {
		m.features |= featuresOfSystem(m.content)
	}
	for i := range m.content {
		if m.content[i].kind == partMedia {
			c.media++
		}
	}
	c.messages = append(c.messages, m)
}

// addCall adds a call to a message. One without an id gets the second of the engine's clock.
func (m *message) addCall(b *block, c *conversation) {
	if m.role != "assistant" {
		return
	}
	id, input := b.id, b.input
	call := new(python.Dict)
	if id == "" {
		c.clocked = append(c.clocked, call)
		id = clockID
	}
	if input == nil {
		input = new(python.Dict)
	}
	called := new(python.Dict)
	called.Set("arguments", input)
	called.Set("name", b.name)
	call.Set("id", id)
	call.Set("function", called)
	call.Set("type", "function")
	if m.toolCalls == nil {
		m.toolCalls = new(python.List)
	}
	m.toolCalls.Items = append(m.toolCalls.Items, call)
	m.features |= featureToolCalls
}

// clockID is the id of a call without one, at some second.
const clockID = "call_1700000000"

// changeClock changes the ids of calls without one to those of another second.
func (c *conversation) changeClock() {
	for _, call := range c.clocked {
		call.Set("id", "call_1812345679")
	}
}

// addResult adds the messages of a user's tool result: one of the tool with the texts, one of
// the user with the images, and one of the tool with its references.
func (c *conversation) addResult(b *block, engine version) {
	var texts []string
	var images, references []part
	switch v := b.content.(type) {
	case string:
		texts = []string{v}
	case *python.List:
		for _, item := range v.Items {
			o := item.(*python.Dict)
			switch optional(o, "type") {
			case "text":
				s, _ := optional(o, "text").(string)
				texts = append(texts, s)
			case "image":
				source, _ := optional(o, "source").(*python.Dict)
				if source == nil {
					source = new(python.Dict)
				}
				if some, _ := imageOf(source); some {
					images = append(images, part{kind: partMedia, text: "image"})
				}
			case "tool_reference":
				if name, _ := referenceOf(o); name != "" {
					references = append(references, part{kind: partTool, text: name, rare: &rarePart{needs: takesReferences, kind: "tool_reference"}})
				}
			}
		}
	}
	m := message{role: "tool", toolCallID: b.id, hasID: true, features: featuresOfRole("tool")}
	m.content = []part{{text: strings.Join(texts, "\n")}}
	c.add(m)
	if images != nil {
		c.add(message{role: "user", content: images, features: featureParts})
	}
	if references != nil && engine.does(takesReferences) {
		m.content = references
		m.features |= featureParts
		c.add(m)
	}
}

// printer writes a value as Python's str does.
var printer = sync.OnceValues(func() (*jinja.Template, error) { return jinja.Compile("{{ x }}") })

func pythonString(v python.Value) (string, error) {
	if s, ok := v.(string); ok || v == nil {
		return s, nil
	}
	if list, ok := v.(*python.List); ok && len(list.Items) == 0 {
		return "", nil
	}
	t, err := printer()
	if err != nil {
		return "", err
	}
	vars := new(python.Dict)
	vars.Set("x", v)
	out, err := t.Render(nil, vars, nil)
	if err != nil {
		return "", notScorable("a tool result of the assistant: %w", err)
	}
	return string(out), nil
}
