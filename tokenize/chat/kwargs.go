package chat

import (
	"slices"

	"github.com/kvindex/kvindex/internal/jinja"
)

// refusedKwargs are parameters of the functions that a template's variables pass
// through: they do not reach it, or end the request.
var refusedKwargs = []string{
	"chat_template", "tokenize", "return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs",
	"processor_kwargs", "sanitize_special_tokens", "truncation", "padding", "max_length",
	"self", "model_config", "tokenizer", "conversation", "conversations", "messages",
}

// droppedKwargs are names of Jinja2's own, which the engine does not count among a
// template's variables and drops.
var droppedKwargs = []string{"range", "dict", "lipsum", "cycler", "joiner", "namespace"}

// prepare chooses the template of a chat and sets all of its variables but the
// messages: those of the engine's options, of the request, and the special tokens,
// each going before the next (vLLM, renderers/params.py, merge_kwargs, and
// renderers/hf.py, resolve_chat_template_kwargs; transformers,
// apply_chat_template).
//
// A variable that the template does not mention makes no difference, so the
// engine's filter for those is not needed.
func (m *Model) prepare(c *conversation) (*template, *jinja.Dict, error) {
	vars := new(jinja.Dict)
	for _, s := range m.special {
		vars.Set(s.name, s.content)
	}
	if err := addKwargs(vars, m.kwargs, true); err != nil {
		return nil, nil, err
	}
	tools, err := m.tools(c)
	if err != nil {
		return nil, nil, err
	}
	if tools != nil {
		vars.Set("tools", tools)
	}
	if err := addKwargs(vars, c.kwargs, false); err != nil {
		return nil, nil, err
	}
	if c.documents != nil {
		vars.Set("documents", c.documents)
	}
	if c.effort != "" {
		vars.Set("reasoning_effort", c.effort)
		if _, ok := lookup(c.kwargs, "enable_thinking"); !ok {
			vars.Set("enable_thinking", c.effort != "none")
		}
	}
	for _, name := range []string{"tools", "documents"} {
		if err := checkObjects(vars, name); err != nil {
			return nil, nil, err
		}
	}
	vars.Set("add_generation_prompt", c.addGenerationPrompt)
	t, err := m.choose(c, optional(vars, "tools") != nil)
	return t, vars, err
}

func lookup(o *jinja.Dict, name string) (jinja.Value, bool) {
	if o == nil {
		return nil, false
	}
	return o.Lookup(name)
}

// addKwargs adds kwargs, which may be nil, to vars. Without unset, which is for a
// request's, null and "auto" leave what is there.
func addKwargs(vars, kwargs *jinja.Dict, unset bool) error {
	if kwargs == nil {
		return nil
	}
	for i := range kwargs.Len() {
		key, v := kwargs.At(i)
		name := key.(string)
		switch {
		case !unset && (v == nil || v == "auto"):
			continue
		case slices.Contains(refusedKwargs, name):
			return unscored("chat_template_kwargs."+name, "it is no variable of a template")
		case slices.Contains(droppedKwargs, name), name == "continue_final_message":
			continue
		}
		vars.Set(name, v)
	}
	return nil
}

// checkObjects makes a variable null if it is not there, and an error if it is no
// list of objects.
func checkObjects(vars *jinja.Dict, name string) error {
	v, ok := vars.Lookup(name)
	if v == nil {
		if !ok {
			vars.Set(name, nil)
		}
		return nil
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return wrongType("chat_template_kwargs."+name, v, "an array")
	}
	for i, item := range list.Items {
		if _, ok := item.(*jinja.Dict); !ok {
			return within(wrongType("", item, "an object"), "chat_template_kwargs.%s[%d]", name, i)
		}
	}
	return nil
}

// tools are those of the request as its template gets them, nil if there are none.
func (m *Model) tools(c *conversation) (*jinja.List, error) {
	if c.tools == nil || c.noTools && m.options.ExcludeTools {
		return nil, nil
	}
	l := &jinja.List{Items: make([]jinja.Value, len(c.tools))}
	for i, t := range c.tools {
		if m.options.DropToolFields {
			l.Items[i] = t.dump()
			continue
		}
		all, err := t.dumpAll()
		if err != nil {
			return nil, within(err, "tools[%d]", i)
		}
		l.Items[i] = all
	}
	return l, nil
}
