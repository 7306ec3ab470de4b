package chat

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// refusedKwargs are parameters of functions that a template's variables pass through: they do
// not reach it, or end the request.
var refusedKwargs = []string{
	"chat_template", "tokenize", "return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs",
	"processor_kwargs", "sanitize_special_tokens", "truncation", "padding", "max_length",
	"self", "model_config", "tokenizer", "conversation", "conversations", "messages",
}

// droppedKwargs are names of Jinja2's own, which the engine does not count among a template's
// variables and drops.
var droppedKwargs = []string{"range", "dict", "lipsum", "cycler", "joiner", "namespace"}

// prepare chooses the template of a chat and sets all of its variables but the messages: those
// of the engine's options, of the request, and the special tokens, each before the next (vLLM,
// renderers/params.py, merge_kwargs, and renderers/hf.py, resolve_chat_template_kwargs;
// transformers, apply_chat_template). Before vLLM 0.16 the request's kwargs come before all.
//
// A variable that the template does not use makes no difference, so the engine's filter for
// those is not needed.
func (m *Model) prepare(c *conversation) (*template, *python.Dict, error) {
	vars := new(python.Dict)
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
	merges := m.engine.does(mergesKwargs)
	if merges {
		if err := addKwargs(vars, c.kwargs, false); err != nil {
			return nil, nil, err
		}
	}
	if c.documents != nil {
		vars.Set("documents", c.documents)
	}
	vars.Set("add_generation_prompt", c.addGenerationPrompt)
	if !merges {
		if err := m.addOldKwargs(vars, c.kwargs); err != nil {
			return nil, nil, err
		}
	}
	if err := m.addEffort(vars, c); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"tools", "documents"} {
		if err := checkObjects(vars, name); err != nil {
			return nil, nil, err
		}
	}
	if m.encoding != nil {
		return m.encoding, vars, m.checkEncoding(c, vars)
	}
	t, err := m.choose(c, optional(vars, "tools") != nil)
	return t, vars, err
}

// addOldKwargs adds kwargs as vLLM did before 0.16.
func (m *Model) addOldKwargs(vars, kwargs *python.Dict) error {
	if kwargs == nil {
		return nil
	}
	for i := range kwargs.Len() {
		name, _ := kwargs.At(i)
		if name == "continue_final_message" || !m.engine.does(filtersKwargs) && slices.Contains(droppedKwargs, name.(string)) {
			return unscored("chat_template_kwargs."+name.(string), "what this version of the engine makes of it is not known here")
		}
	}
	return addKwargs(vars, kwargs, true)
}

// efforts are the values of reasoning_effort, and the changes that introduced them.
var efforts = map[string]change{
	"low": takesEffort, "medium": takesEffort, "high": takesEffort, "none": takesEffortNone,
	"minimal": takesAllEfforts, "xhigh": takesAllEfforts, "max": takesAllEfforts,
}

func (m *Model) addEffort(vars *python.Dict, c *conversation) error {
	const name = "reasoning_effort"
	if !m.engine.does(takesEffort) { // like any other field
		return nil
	}
	effort, ok := c.effort.(string)
	switch needs, known := efforts[effort]; {
	case !ok && c.effort != nil:
		return wrongType(name, c.effort, "a string")
	case ok && (!known || !m.engine.does(needs)):
		return badField(name, "%.60q is none that the engine takes", effort)
	case !m.engine.does(handsEffort), !ok && m.engine.does(mergesKwargs):
		return nil
	}
	vars.Set(name, c.effort)
	if _, ok := lookup(c.kwargs, "enable_thinking"); !ok && m.engine.does(enablesThinking) {
		vars.Set("enable_thinking", effort != "none")
	}
	return nil
}

func lookup(o *python.Dict, name string) (python.Value, bool) {
	if o == nil {
		return nil, false
	}
	return o.Lookup(name)
}

// addKwargs adds kwargs, which may be nil, to vars. Without unset, which is for a request's,
// null and "auto" change nothing.
func addKwargs(vars, kwargs *python.Dict, unset bool) error {
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

// checkObjects sets a missing variable to null, and returns an error if it is no list of
// objects.
func checkObjects(vars *python.Dict, name string) error {
	v, ok := vars.Lookup(name)
	if v == nil {
		if !ok {
			vars.Set(name, nil)
		}
		return nil
	}
	list, ok := v.(*python.List)
	if !ok {
		return wrongType("chat_template_kwargs."+name, v, "an array")
	}
	for i, item := range list.Items {
		if _, ok := item.(*python.Dict); !ok {
			return within(wrongType("", item, "an object"), "chat_template_kwargs.%s[%d]", name, i)
		}
	}
	return nil
}

// tools returns the tools of the request as its template gets them, nil without tools.
func (m *Model) tools(c *conversation) (*python.List, error) {
	switch {
	case c.tools == nil:
		return nil, nil
	case len(c.tools) == 0 && m.engine.does(refusesEmptyTools) && !c.assigned:
		return nil, badField("tools", "empty")
	case len(c.tools) == 0 && c.needsTool:
		return nil, unscored("tools", "empty, and a tool is required: what this version of the engine makes of it is not known here")
	}
	l := &python.List{Items: make([]python.Value, len(c.tools))}
	for i, t := range c.tools {
		o, err := t.dump(m.engine)
		if err != nil {
			return nil, within(err, "tools[%d]", i)
		}
		l.Items[i] = o
	}
	if c.noTools && (m.options.ExcludeTools || !m.engine.does(keepsTools)) {
		return nil, nil
	}
	return l, nil
}

// check returns an error if the engine refuses a field that affects a chat beside its
// template, or treats it in an unknown way.
func (m *Model) check(salt string, c *conversation, t *template) error {
	if err := m.checkSalt(salt); err != nil {
		return err
	}
	if t.unsure {
		return m.engine.knows(findsLoopsOverParameters, "")
	}
	messages := c.messages
	for i := range messages {
		if err := messages[i].check(t.parts, m.engine); err != nil {
			return within(err, "messages[%d]", i)
		}
	}
	return nil
}

func (m *Model) checkSalt(salt string) error {
	if !oddSalt(salt) {
		return nil
	}
	if err := m.engine.knows(checksSalts, "cache_salt"); err != nil {
		return err
	}
	if m.engine.does(checksSalts) {
		return badField("cache_salt", "more than 128 characters, or one that the engine takes in none")
	}
	return nil
}

// maxSalt bounds the characters of a salt.
const maxSalt = 128

func oddSalt(s string) bool {
	return strings.ContainsAny(s, "@/\\\x00") || len(s) > maxSalt && utf8.RuneCountInString(s) > maxSalt
}
