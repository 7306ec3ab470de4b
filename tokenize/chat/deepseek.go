package chat

import (
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja"
)

// deepseekV32 is DeepSeek's program for V3.2 (vLLM 0.24 to 0.31 and main of autumn 2026:
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

// encodingOf sets the program of a model of DeepSeek's, if it has one that is known.
func (m *Model) encodingOf(config *jinja.Dict) (err error) {
	mode := m.options.TokenizerMode
	if mode != "deepseek_v32" && (mode != "" && mode != "auto" || !isV32(config)) {
		return nil
	}
	if !m.engine.does(encodesV32) {
		return unsupported("DeepSeek-V3.2's chats of vLLM before 0.24")
	}
	m.encoding, err = m.compile(deepseekV32)
	if err == nil {
		m.encoding.parts, m.encoding.unsure, m.encoding.developer = false, false, true
	}
	return err
}

// isV32 reports whether vLLM takes a model for DeepSeek-V3.2 (config/model.py, tokenizer_mode).
func isV32(config *jinja.Dict) bool {
	list, _ := optional(config, "architectures").(*jinja.List)
	if list == nil || len(list.Items) == 0 {
		return false
	}
	a, _ := list.Items[0].(string)
	return strings.HasPrefix(a, "DeepseekV32ForCausalLM")
}

// checkEncoding returns an error about a chat of which the program may make something else.
func (m *Model) checkEncoding(c *conversation, tools bool) error {
	switch {
	case c.template != "":
		return unscored("chat_template", "the engine renders chats of this model by a program")
	case c.continueFinal, !c.addGenerationPrompt:
		return unscored("add_generation_prompt", "what the program of this model makes of it is not known here")
	case c.messages[0].role == "tool":
		return unscored("messages[0].role", "the program looks for the call at the end of the chat")
	case c.media > 0:
		return notScorable("media, in a chat that the engine renders by a program")
	case tools && m.engine >= mayMoveTools && slices.ContainsFunc(c.messages, func(m message) bool { return m.role == "system" || m.role == "developer" }):
		return unscored("tools", "whether this version of the engine puts them behind a system message is not known")
	}
	return nil
}

// mayMoveTools is the first release of which it is not known where the program puts tools.
const mayMoveTools version = 29_000
