package chat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// deepseekV32 is DeepSeek's program for V3.2 (vLLM 0.18 to 0.31 and main of autumn 2026:
// tokenizers/deepseek_v32.py, apply_chat_template, and tokenizers/deepseek_v32_encoding.py,
// encode_messages), written as a template: its truth, its JSON and its bounds are those of
// templates. It loads no template of the model or the request.
//
// Tools come before a first message of the system's. Pull requests of September 2026 put them
// behind it (54370, 55141, 55820, of issue 54911): whether a later release has one of them is not
// known.
//
// A message raises what the program asserts. The last message of a user or developer, and what
// is behind it, may have thoughts.
const deepseekV32 = `
{%- set thinks = thinking or enable_thinking -%}
{%- set ns = namespace(last=-1, after=false, calls=0, answers=0) -%}
{%- for m in messages -%}
  {%- if m.role == 'user' or m.role == 'developer' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{{- '<｜begin▁of▁sentence｜>' -}}
{%- if tools -%}
{{- '\n\n## Tools
You have access to a set of tools you can use to answer the user\'s question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
' -}}
{%- for t in tools -%}{{- '\n' if not loop.first -}}{{- t.function | tojson -}}{%- endfor -%}
{{- '\n</functions>\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {%- set think = '<think>' if thinks and loop.index0 == ns.last else '</think>' -%}
  {%- if m.role == 'system' -%}
    {{- m.content -}}
  {%- elif m.role == 'user' -%}
    {{- '<｜User｜>' + m.content + '<｜Assistant｜>' + think -}}
  {%- elif m.role == 'developer' -%}
    {%- if not m.content -%}{{- raise_exception('a developer message without content') -}}{%- endif -%}
    {%- if thinks and messages[-1].role == 'user' -%}{{- raise_exception('a developer message before the last of the user') -}}{%- endif -%}
    {{- '<｜User｜>\n\n# The user\'s message is: ' + m.content + '<｜Assistant｜>' + think -}}
  {%- elif m.role == 'tool' -%}
    {%- set ns.answers = ns.answers + 1 -%}
    {%- if not ns.after or ns.answers > ns.calls -%}{{- raise_exception('the output of a tool without a call') -}}{%- endif -%}
    {{- '\n\n<function_results>' if ns.answers == 1 -}}
    {{- '\n<result>' + m.content + '</result>' -}}
    {%- if ns.answers == ns.calls -%}
      {{- '\n</function_results>\n\n' + ('<think>' if thinks and loop.index0 >= ns.last else '</think>') -}}
    {%- endif -%}
  {%- elif m.role == 'assistant' -%}
    {%- if thinks and loop.index0 > ns.last -%}
      {%- if not m.reasoning and not m.tool_calls -%}{{- raise_exception('an answer without reasoning') -}}{%- endif -%}
      {{- (m.reasoning or '') + '</think>' -}}
    {%- endif -%}
    {{- m.content -}}
    {%- if m.tool_calls -%}
      {{- '\n\n<｜DSML｜function_calls>' -}}
      {%- for call in m.tool_calls -%}
        {{- '\n<｜DSML｜invoke name="' + call.function.name + '">\n' -}}
        {%- for key, value in call.function.arguments.items() -%}
          {{- '\n' if not loop.first -}}
          {{- '<｜DSML｜parameter name="' + key + '" string="' + ('true' if value is string else 'false') + '">' -}}
          {{- value if value is string else value | tojson -}}
          {{- '</｜DSML｜parameter>' -}}
        {%- endfor -%}
        {{- '\n</｜DSML｜invoke>' -}}
      {%- endfor -%}
      {{- '\n</｜DSML｜function_calls>' -}}
    {%- endif -%}
    {{- '<｜end▁of▁sentence｜>' -}}
  {%- else -%}
    {{- raise_exception('an unknown role') -}}
  {%- endif -%}
  {%- if m.role != 'tool' -%}
    {%- set ns.after = m.role == 'assistant' -%}
    {%- set ns.answers = 0 -%}
    {%- set ns.calls = (m.tool_calls or []) | length -%}
  {%- endif -%}
{%- endfor -%}`

// deepseekV4 is DeepSeek's program for V4 (vLLM 0.28 to 0.31 and main of autumn 2026:
// tokenizers/deepseek_v4.py and tokenizers/deepseek_v4_encoding.py) and V4.1 (main of autumn
// 2026: tokenizers/deepseek_v41.py and tokenizers/deepseek_v41_encoding.py), behind the line of
// variables by which they and their versions differ:
//
//	v41       it is V4.1's
//	attaches  tools follow the first message of the system's, if there is one
//	opens     what follows a message of the system's is an answer
//
// Outputs of tools are part of the user's messages, and come in the order of their calls. Each
// turn of the user's ends when it is known what follows: ns.role and ns.at are the message that
// may get an answer.
const deepseekV4 = `
{%- set space = ' ' if v41 else '' -%}
{%- set block = ' calls' if v41 else 'tool_calls' -%}
{%- set thinks = thinking or enable_thinking or thinking is not defined and enable_thinking is not defined -%}
{%- if reasoning_effort == 'none' -%}{%- set thinks = false -%}{%- endif -%}
{%- set effort = '' -%}
{%- if v41 -%}
  {%- set budget = 75 if reasoning_effort == 'xhigh' else 100 if reasoning_effort == 'max' else reasoning_effort -%}
  {%- if budget is string and budget not in ['low', 'high', 'none'] or budget is not string and budget is not none and budget is defined and not (budget is integer and budget >= 1 and budget <= 100) -%}
    {{- raise_exception('an unknown reasoning_effort') -}}
  {%- endif -%}
  {%- if thinks -%}{%- set effort = 'Reasoning Effort: ' ~ budget ~ ' (range 1-100, the higher the value, the more thorough the reasoning)\n\n' -%}{%- endif -%}
{%- elif thinks and reasoning_effort == 'max' -%}
  {%- set effort = 'Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n' -%}
{%- elif thinks and reasoning_effort not in ['low', 'minimal', 'medium'] -%}
  {%- set effort = 'Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n' -%}
{%- endif -%}
{%- set drops = thinks and (drop_thinking is not defined or drop_thinking) and not tools -%}
{%- set ns = namespace(cut=-1, last=-1, system=-1, kept=false, begun=false, role='', at=-1) -%}
{%- for m in messages -%}
  {%- if m.role in ['user', 'tool', 'developer'] or v41 and m.role == 'system' and loop.index0 > 0 -%}{%- set ns.cut = loop.index0 -%}{%- endif -%}
  {%- if m.role == 'system' and ns.system < 0 -%}{%- set ns.system = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set ns.last = ns.cut -%}
{%- if v41 and drops and ns.cut > 0 and messages[ns.cut].role == 'system' -%}
  {%- for m in messages -%}
    {%- if loop.index0 < ns.cut and m.role != 'developer' -%}{%- set ns.kept = true -%}{%- endif -%}
  {%- endfor -%}
  {%- if not ns.kept -%}{%- set ns.last = -1 -%}{%- endif -%}
{%- endif -%}
{%- macro answer() -%}
  {{- '<｜Assistant｜>' + ('<think>' if thinks and (not drops or ns.at >= ns.last) else '</think>') -}}
{%- endmacro -%}
{%- macro catalog() -%}
{{- '\n\n## Tools

You have access to a set of tools to help answer the user\'s question. You can invoke tools by writing a "<｜DSML｜' ~ block ~ '>" block like the following:

<｜DSML｜' ~ block ~ '>
<｜DSML｜' ~ space ~ 'invoke name="$TOOL_NAME">
<｜DSML｜' ~ space ~ 'parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜' ~ space ~ 'parameter>
...
</｜DSML｜' ~ space ~ 'invoke>
<｜DSML｜' ~ space ~ 'invoke name="$TOOL_NAME2">
...
</｜DSML｜' ~ space ~ 'invoke>
</｜DSML｜' ~ block ~ '>

String parameters should be specified as is and set ` + "`" + `string="true"` + "`" + `. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set ` + "`" + `string="false"` + "`" + `.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

' -}}
{%- for t in tools -%}{{- '\n' if not loop.first -}}{{- t.function | tojson -}}{%- endfor -%}
{{- '\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n' -}}
{%- endmacro -%}
{{- '<｜begin▁of▁sentence｜>' -}}
{%- if tools and (not attaches or ns.system < 0) -%}
  {{- ('<｜System｜>' if v41 else '') + effort + catalog() -}}
  {%- set ns.begun = true -%}
  {%- set ns.system = -1 -%}
  {%- set ns.role = 'system' if opens and not v41 else '' -%}
{%- endif -%}
{%- for m in messages -%}
  {%- if not drops or loop.index0 >= ns.cut or m.role in ['user', 'system', 'tool', 'assistant', 'latest_reminder', 'direct_search_results'] -%}
  {%- set joins = m.role in ['user', 'tool'] and not loop.first and loop.previtem.role in ['user', 'tool'] -%}
  {%- set first = not ns.begun -%}
  {%- if m.role == 'assistant' and ns.role or m.role == 'latest_reminder' and ns.role == 'user' -%}{{- answer() -}}{%- endif -%}
  {%- if first -%}
    {{- ('<｜System｜>' if v41 and (effort or m.role == 'system') else '') + effort -}}
    {%- set ns.begun = true -%}
  {%- endif -%}
  {%- set ns.role = '' -%}
  {%- set ns.at = loop.index0 -%}
  {%- if m.role == 'system' -%}
    {{- ('<｜System｜>' if v41 and not first else '') + m.content -}}
    {{- catalog() if tools and loop.index0 == ns.system else '' -}}
    {%- set ns.role = 'system' if opens and not (v41 and first) else '' -%}
  {%- elif m.role == 'user' or m.role == 'tool' -%}
    {{- '\n\n' if joins else '<｜User｜>' -}}
    {{- m.content if m.role == 'user' else '<tool_result>' + m.content + '</tool_result>' -}}
    {%- set ns.role = 'user' -%}
  {%- elif m.role == 'developer' -%}
    {%- if not m.content -%}{{- raise_exception('a developer message without content') -}}{%- endif -%}
    {{- '<｜User｜>' + m.content -}}
    {%- set ns.role = 'user' -%}
  {%- elif m.role == 'latest_reminder' and not v41 -%}
    {{- '<｜latest_reminder｜>' + m.content -}}
  {%- elif m.role == 'assistant' -%}
    {{- (m.reasoning or '') + '</think>' if thinks and (not drops or loop.index0 > ns.last) else '' -}}
    {{- m.content -}}
    {%- if m.tool_calls -%}
      {{- '\n\n<｜DSML｜' + block + '>\n' -}}
      {%- for call in m.tool_calls -%}
        {{- '\n' if not loop.first -}}
        {{- '<｜DSML｜' + space + 'invoke name="' + call.function.name + '">\n' -}}
        {%- for key, value in call.function.arguments.items() -%}
          {{- '\n' if not loop.first -}}
          {{- '<｜DSML｜' + space + 'parameter name="' + key + '" string="' + ('true' if value is string else 'false') + '">' -}}
          {{- value if value is string else value | tojson -}}
          {{- '</｜DSML｜' + space + 'parameter>' -}}
        {%- endfor -%}
        {{- '\n</｜DSML｜' + space + 'invoke>' -}}
      {%- endfor -%}
      {{- '\n</｜DSML｜' + block + '>' -}}
    {%- endif -%}
    {{- '<｜end▁of▁sentence｜>' -}}
  {%- else -%}
    {{- raise_exception('an unknown role') -}}
  {%- endif -%}
  {%- elif v41 and m.role != 'developer' -%}
    {{- raise_exception('an unknown role') -}}
  {%- endif -%}
{%- endfor -%}
{{- answer() if ns.role else '' -}}`

// encodings are DeepSeek's programs: the tokenizer modes, the architectures of which vLLM
// chooses them (config/model.py, tokenizer_mode), and the changes that introduced them.
var encodings = []struct {
	mode, architecture, name string
	since                    change
}{
	{"deepseek_v32", "DeepseekV32ForCausalLM", "DeepSeek-V3.2's", encodesV32},
	{"deepseek_v4", "DeepseekV4ForCausalLM", "DeepSeek-V4's", encodesV4},
	{"deepseek_v41", "DeepseekV41ForCausalLM", "DeepSeek-V4.1's", encodesV41},
}

// encodingOf sets the program of a model of DeepSeek's, if it has one that is known.
func (m *Model) encodingOf(config *python.Dict) (err error) {
	mode := m.options.TokenizerMode
	for _, e := range encodings {
		if mode != e.mode && (mode != "" && mode != "auto" || !strings.HasPrefix(architecture(config), e.architecture)) {
			continue
		}
		if !m.engine.does(e.since) {
			return unsupported("%s chats of this version of vLLM: %s", e.name, history[e.since].does)
		}
		m.encoding, err = m.compile(m.encodingSource(e.since))
		if err == nil {
			m.encoding.parts, m.encoding.unsure, m.encoding.developer = false, false, true
			m.encoding.encodes = e.since
		}
		return err
	}
	return nil
}

// encodingSource returns a program of DeepSeek's as a template.
func (m *Model) encodingSource(c change) string {
	if c == encodesV32 {
		return deepseekV32
	}
	v41 := c == encodesV41
	return fmt.Sprintf("{%%- set v41, attaches, opens = %t, %t, %t -%%}%s", v41, v41 || m.engine.does(attachesTools), v41 || m.engine.does(opensAnswers), deepseekV4)
}

// architecture returns the first of a model.
func architecture(config *python.Dict) string {
	list, _ := optional(config, "architectures").(*python.List)
	if list == nil || len(list.Items) == 0 {
		return ""
	}
	a, _ := list.Items[0].(string)
	return a
}

// checkEncoding returns an error about a chat of which the program may make something else.
func (m *Model) checkEncoding(c *conversation, vars *python.Dict) error {
	tools := optional(vars, "tools") != nil
	system := slices.ContainsFunc(c.messages, func(m message) bool { return m.role == "system" })
	switch v := m.engine; {
	case c.template != "":
		return unscored("chat_template", "the engine renders chats of this model by a program")
	case c.continueFinal, !c.addGenerationPrompt:
		return unscored("add_generation_prompt", "what the program of this model makes of it is not known here")
	case c.media > 0:
		return notScorable("media, in a chat that the engine renders by a program")
	case m.encoding.encodes == encodesV41:
		return checkV41(c.messages, vars)
	case m.encoding.encodes == encodesV4:
		for i := range c.messages {
			if err := c.messages[i].checkV4(c.messages[i+1:], v); err != nil {
				return within(err, "messages[%d]", i)
			}
		}
		if tools && system {
			return v.knows(attachesTools, "tools")
		}
		if tools && c.messages[0].role == "assistant" {
			return v.knows(opensAnswers, "tools")
		}
	case c.messages[0].role == "tool":
		return unscored("messages[0].role", "the program looks for the call at the end of the chat")
	case tools && v >= mayMoveTools && (system || slices.ContainsFunc(c.messages, func(m message) bool { return m.role == "developer" })):
		return unscored("tools", "whether this version of the engine puts them behind a system message is not known")
	}
	return nil
}

// mayMoveTools is the first release of which it is not known where V3.2's program puts tools.
const mayMoveTools version = 29_000

func (m *message) checkV4(behind []message, engine version) error {
	if m.rare != nil && m.rare.task != nil {
		return unscored("task", "what the program of this model makes of it is not known here")
	}
	if m.role == "system" && (len(behind) == 0 || behind[0].role == "assistant" || behind[0].role == "developer") {
		return engine.knows(opensAnswers, "role")
	}
	return nil
}

// checkV41 is checkEncoding for V4.1. Its program gets the messages as they came.
func checkV41(messages []message, vars *python.Dict) error {
	const unknown = "what the program of this model makes of it is not known here"
	for i := range messages {
		m := &messages[i]
		field := ""
		switch {
		case m.rare != nil && m.rare.encoded != "":
			field = m.rare.encoded
		case m.rare != nil && len(m.rare.odd) > 0:
			field = "tool_calls"
		case slices.ContainsFunc(m.content, func(p part) bool {
			return p.kind != partText || p.rare != nil && (p.rare.bare || p.rare.kind != "") || m.role == "system" && strings.HasPrefix(p.text, billingHeader)
		}):
			field = "content"
		}
		if field != "" {
			return within(unscored(field, unknown), "messages[%d]", i)
		}
	}
	last := messages[len(messages)-1].role
	alone := !slices.ContainsFunc(messages, func(m message) bool { return m.role != "system" && m.role != "developer" })
	if last == "assistant" || last == "system" && alone {
		return unscored("messages", "the last is no turn to answer: "+unknown)
	}
	effort, set := vars.Lookup("reasoning_effort")
	switch {
	case effort == "minimal", effort == "medium":
		return unscored("reasoning_effort", "versions of the engine refuse it, or take another")
	case (effort == "low" || effort == "high" || !set || effort == nil) && !unthinking(vars):
		return unscored("reasoning_effort", "the budget of low, and of high, which is the default, differs between versions of the engine")
	}
	return nil
}

// unthinking reports whether a chat is surely one without thoughts.
func unthinking(vars *python.Dict) bool {
	set := false
	for _, name := range []string{"thinking", "enable_thinking"} {
		v, ok := vars.Lookup(name)
		if v != nil && v != false {
			return false
		}
		set = set || ok
	}
	return set
}

// encoded returns the messages as V4's programs take them: outputs of tools in the order of
// their calls, in a run of the user's messages and outputs. For V4.1 an empty line goes between
// the parts of a text.
func encoded(messages []message, v41 bool) []message {
	list := slices.Clone(messages)
	var order map[string]int
	var run []int // of outputs
	for i := range list {
		m := &list[i]
		if v41 && len(m.content) > 1 {
			texts := make([]string, len(m.content))
			for j := range m.content {
				texts[j] = m.content[j].text
			}
			m.content = []part{{text: strings.Join(texts, "\n\n")}}
		}
		if m.role == "tool" {
			run = append(run, i)
		}
		if m.toolCalls != nil && len(m.toolCalls.Items) > 0 {
			order = make(map[string]int, len(m.toolCalls.Items))
			for j := range m.toolCalls.Items {
				if id, _ := m.called(j); id != "" {
					order[id] = j
				}
			}
		}
		if len(run) > 0 && (i+1 == len(list) || list[i+1].role != "tool" && list[i+1].role != "user") {
			sortOutputs(list, run, order)
			run = run[:0]
		}
	}
	return list
}

// sortOutputs puts the messages at places into the order of their calls. Those of no call go
// with the first.
func sortOutputs(list []message, places []int, order map[string]int) {
	sorted := make([]message, len(places))
	for i, at := range places {
		sorted[i] = list[at]
	}
	slices.SortStableFunc(sorted, func(a, b message) int { return order[a.answers()] - order[b.answers()] })
	for i, at := range places {
		list[at] = sorted[i]
	}
}

// answers returns the id of the call that a message of a tool answers.
func (m *message) answers() string {
	id, _ := m.toolCallID.(string)
	return id
}
