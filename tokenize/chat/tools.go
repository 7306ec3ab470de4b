package chat

import "github.com/kvindex/kvindex/internal/jinja/python"

// A tool is a function that the model may call.
type tool struct {
	name        string
	description python.Value // a string, or nil
	parameters  python.Value // a dict, or nil

	// The other fields, in order. vLLM learned to read strict and defer_loading in later
	// versions.
	more, moreOfTool []field
}

type field struct {
	name  string
	value python.Value
}

func (c *conversation) parseTools(o *python.Dict) error {
	tools, err := optionalList(o, "tools")
	if err != nil {
		return err
	}
	if tools != nil { // an empty list counts
		c.tools = make([]*tool, len(tools.Items))
		for i, item := range tools.Items {
			if c.tools[i], err = parseTool(item); err != nil {
				return within(err, "tools[%d]", i)
			}
		}
	}
	return c.parseToolChoice(o)
}

// parseToolChoice reads tool_choice as far as it matters: "none" can drop the tools.
func (c *conversation) parseToolChoice(o *python.Dict) error {
	const name = "tool_choice"
	switch v := optional(o, name).(type) {
	case nil:
	case *python.Dict:
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
		case "required":
			c.needsTool = true
		case "auto":
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

func parseTool(v python.Value) (*tool, error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, wrongType("", v, "an object")
	}
	t := new(tool)
	var function *python.Dict
	for i := range o.Len() {
		key, v := o.At(i)
		var err error
		switch key {
		case "type":
			if v != "function" {
				err = badField("type", `not "function"`)
			}
		case "function":
			if function, ok = v.(*python.Dict); !ok {
				err = wrongType("function", v, "an object")
			}
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
	return t, nil
}

func (t *tool) parseFunction(o *python.Dict) (err error) {
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
			if _, ok := v.(*python.Dict); !ok && v != nil {
				err = wrongType("parameters", v, "an object")
			}
			t.parameters = v
		default:
			t.more = append(t.more, field{key.(string), v})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dump returns the tool as the template gets it: the fields that the engine knows in its own
// order, with null for a missing description and missing parameters, then the others, if the
// engine passes them on (entrypoints/openai/chat_completion/protocol.py,
// ChatCompletionToolsParam, and generate/base/protocol.py, FunctionDefinition).
func (t *tool) dump(engine version) (*python.Dict, error) {
	function := new(python.Dict)
	function.Set("name", t.name)
	function.Set("description", t.description)
	function.Set("parameters", t.parameters)
	if err := addFlag(function, t.more, "strict", engine.does(takesStrict)); err != nil {
		return nil, within(err, "function")
	}
	defers := engine.does(takesDeferLoading)
	if err := addFlag(function, t.more, "defer_loading", defers); err != nil {
		return nil, within(err, "function")
	}
	o := new(python.Dict)
	o.Set("type", "function")
	o.Set("function", function)
	if err := addFlag(o, t.moreOfTool, "defer_loading", defers); err != nil {
		return nil, err
	}
	if v, ok := o.Lookup("defer_loading"); ok {
		if _, own := function.Lookup("defer_loading"); !own {
			function.Set("defer_loading", v)
		}
	}
	if !engine.does(dropsToolFields) {
		addOthers(function, t.more, engine.does(takesStrict), defers)
		addOthers(o, t.moreOfTool, false, defers)
	}
	return o, nil
}

// addFlag adds a field of the name to o as a bool, if the engine knows it and it is there and
// not null.
func addFlag(o *python.Dict, fields []field, name string, known bool) error {
	if !known {
		return nil
	}
	for _, f := range fields {
		if f.name != name || f.value == nil {
			continue
		}
		on, ok := asFlag(f.value)
		if !ok {
			return wrongType(name, f.value, "a boolean")
		}
		o.Set(name, on)
	}
	return nil
}

// addOthers adds the unknown fields to o.
func addOthers(o *python.Dict, fields []field, strict, defers bool) {
	for _, f := range fields {
		if strict && f.name == "strict" || defers && f.name == "defer_loading" {
			continue
		}
		o.Set(f.name, f.value)
	}
}
