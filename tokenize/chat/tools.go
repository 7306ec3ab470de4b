package chat

import "github.com/kvindex/kvindex/internal/jinja"

// A tool is what a request says of a function that the model may call.
type tool struct {
	name        string
	description jinja.Value // a string, or nil
	parameters  jinja.Value // a dict, or nil
	strict      jinja.Value // a bool, or nil
	deferred    jinja.Value // defer_loading of the function: a bool, or nil
	deferTool   jinja.Value // defer_loading of the tool: a bool, or nil

	// Fields that engines do not know, in order.
	more, moreOfTool []field
	strictAt         int // how many of more stand before strict
	nullStrict       bool
}

type field struct {
	name  string
	value jinja.Value
}

func (c *conversation) parseTools(o *jinja.Dict) error {
	tools, err := optionalList(o, "tools")
	if err != nil {
		return err
	}
	if tools != nil { // an empty list is one, as engines had it until 2026
		c.tools = make([]*tool, len(tools.Items))
		for i, item := range tools.Items {
			if c.tools[i], err = parseTool(item); err != nil {
				return within(err, "tools[%d]", i)
			}
		}
	}
	return c.parseToolChoice(o)
}

// parseToolChoice looks at tool_choice as far as it has a bearing: "none" can take
// the tools away.
func (c *conversation) parseToolChoice(o *jinja.Dict) error {
	const name = "tool_choice"
	switch v := optional(o, name).(type) {
	case nil:
	case *jinja.Dict:
		function, err := optionalObject(v, "function")
		if err == nil && function == nil {
			err = badField("function", "missing")
		}
		if err != nil {
			return within(err, name)
		}
		if _, err := text(function, "name"); err != nil {
			return within(err, name+".function")
		}
	case string:
		switch v {
		case "none":
			c.noTools = true
		case "auto", "required":
		default:
			return badField(name, "neither none, auto, required nor an object")
		}
	default:
		return wrongType(name, v, "a string or an object")
	}
	if c.tools == nil && !c.noTools && optional(o, name) != nil {
		return badField(name, "there are no tools")
	}
	return nil
}

func parseTool(v jinja.Value) (*tool, error) {
	o, ok := v.(*jinja.Dict)
	if !ok {
		return nil, wrongType("", v, "an object")
	}
	t := new(tool)
	var function *jinja.Dict
	for i := range o.Len() {
		key, v := o.At(i)
		var err error
		switch key {
		case "type":
			if v != "function" {
				err = badField("type", `not "function"`)
			}
		case "function":
			if function, ok = v.(*jinja.Dict); !ok {
				err = wrongType("function", v, "an object")
			}
		case "defer_loading":
			t.deferTool, err = optionalFlag(o, "defer_loading")
		default:
			t.moreOfTool = append(t.moreOfTool, field{key.(string), v})
		}
		if err != nil {
			return nil, err
		}
	}
	if function == nil {
		return nil, badField("function", "missing")
	}
	if err := t.parseFunction(function); err != nil {
		return nil, within(err, "function")
	}
	if t.deferred == nil {
		t.deferred = t.deferTool
	}
	return t, nil
}

func (t *tool) parseFunction(o *jinja.Dict) (err error) {
	if t.name, err = text(o, "name"); err != nil {
		return err
	}
	for i := range o.Len() {
		key, v := o.At(i)
		switch key {
		case "name":
		case "description":
			if _, ok := v.(string); !ok && v != nil {
				err = wrongType("description", v, "a string")
			}
			t.description = v
		case "parameters":
			if _, ok := v.(*jinja.Dict); !ok && v != nil {
				err = wrongType("parameters", v, "an object")
			}
			t.parameters = v
		case "strict":
			t.strictAt, t.nullStrict = len(t.more), v == nil
			t.strict, err = optionalFlag(o, "strict")
		case "defer_loading":
			t.deferred, err = optionalFlag(o, "defer_loading")
		default:
			t.more = append(t.more, field{key.(string), v})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// optionalFlag returns a bool, or nil if the field is null or not there.
func optionalFlag(o *jinja.Dict, name string) (jinja.Value, error) {
	if optional(o, name) == nil {
		return nil, nil
	}
	on, err := flag(o, name, false)
	if err != nil {
		return nil, err
	}
	return on, nil
}

// dump is the fields that the engine knows, in its own order, with null for a
// description and for parameters that are not there (vLLM's main of autumn 2026,
// entrypoints/openai/chat_completion/protocol.py, ChatCompletionToolsParam, and
// generate/base/protocol.py, FunctionDefinition).
func (t *tool) dump() *jinja.Dict {
	function := new(jinja.Dict)
	function.Set("name", t.name)
	function.Set("description", t.description)
	function.Set("parameters", t.parameters)
	if t.strict != nil {
		function.Set("strict", t.strict)
	}
	if t.deferred != nil {
		function.Set("defer_loading", t.deferred)
	}
	o := new(jinja.Dict)
	o.Set("type", "function")
	o.Set("function", function)
	if t.deferTool != nil {
		o.Set("defer_loading", t.deferTool)
	}
	return o
}

// dumpAll is dump with the other fields behind, as pydantic puts them in vLLM 0.9 to
// 0.24. Versions differ on the place of strict and of defer_loading among them.
func (t *tool) dumpAll() (*jinja.Dict, error) {
	switch {
	case t.deferred != nil:
		return nil, unscored("function.defer_loading", "versions of the engine differ on it")
	case t.nullStrict, t.strict != nil && t.strictAt > 0:
		return nil, unscored("function.strict", "versions of the engine differ on its place")
	}
	o := t.dump()
	function, _ := o.Lookup("function")
	for _, f := range t.more {
		function.(*jinja.Dict).Set(f.name, f.value)
	}
	for _, f := range t.moreOfTool {
		o.Set(f.name, f.value)
	}
	return o, nil
}
