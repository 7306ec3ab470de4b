package chat_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// Valid versions of engines, and the errors for others.
func TestEngine(t *testing.T) {
	for _, engine := range []string{"", "main", "0.9", "0.9.0.1", "0.28", "0.28.1", "0.31.7"} {
		if _, err := chat.New("x", nil, chat.Options{Engine: engine}); err != nil {
			t.Errorf("%q: %v", engine, err)
		}
	}
	for engine, want := range map[string]string{
		"28":           `chat: an Engine of "28" is no version of vLLM, such as "0.28" or "main"`,
		"v0.28":        `chat: an Engine of "v0.28" is no version of vLLM, such as "0.28" or "main"`,
		"0.28rc1":      `chat: an Engine of "0.28rc1" is no version of vLLM, such as "0.28" or "main"`,
		"0.1000":       `chat: an Engine of "0.1000" is no version of vLLM, such as "0.28" or "main"`,
		"0.28.":        `chat: an Engine of "0.28." is no version of vLLM, such as "0.28" or "main"`,
		"0.28.0.0.0":   `chat: an Engine of "0.28.0.0.0" is no version of vLLM, such as "0.28" or "main"`,
		"sglang-0.5.9": `chat: an Engine of "sglang-0.5.9" is no version of vLLM, such as "0.28" or "main"`,
		"0.32":         `chat: an Engine of "0.32" is newer than 0.31, the last release that is known: "main" is vLLM's of autumn 2026`,
		"1.0":          `chat: an Engine of "1.0" is newer than 0.31, the last release that is known: "main" is vLLM's of autumn 2026`,
		"0.8.5":        `chat: an Engine of "0.8.5" is older than 0.9, the first version that is known`,
	} {
		if _, err := chat.New("x", nil, chat.Options{Engine: engine}); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", engine, err, want)
		}
	}
	if err := chat.CheckHistory(); err != nil {
		t.Error(err)
	}
}

// render is the text of a body by an engine, or the error.
func render(t *testing.T, o chat.Options, template, body string) string {
	t.Helper()
	m, err := chat.New(template, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := chat.Parse("", []byte(body))
	if err != nil {
		return err.Error()
	}
	x, err := m.Render(r, nil)
	if err != nil {
		if !errors.Is(err, chat.ErrMalformed) && !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s: %v", body, err)
		}
		return err.Error()
	}
	return x.Text
}

// Each change: the last version without it and the first with it.
func TestVersions(t *testing.T) {
	const (
		show    = "{{ messages[0] }}"
		content = "{{ messages[0].content }}"
		calls   = "{% for c in messages[0].tool_calls %}{{ c.function.arguments }};{% endfor %}{{ messages[0].tool_calls is defined }}"
		tools   = "{{ tools }}"
		effort  = "{{ reasoning_effort is defined }} {{ reasoning_effort }} {{ enable_thinking }}"
	)
	say := func(role, content string) string {
		return `{"messages":[{"role":"` + role + `","content":` + content + `}]}`
	}
	called := func(arguments string) string {
		return `{"messages":[{"role":"assistant","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":` + arguments + `}}]}]}`
	}
	with := func(fields string) string { return `{` + hi + `,` + fields + `}` }
	unknown := func(path, does string) string {
		return "not scorable: " + path + ": vLLM ENGINE may or may not do this, and " + does
	}
	const (
		anyArguments = "main does: arguments of a tool call that are no JSON, or no object, are {}"
		billing      = "main does: it drops a first line x-anthropic-billing-header of system texts"
		salts        = "0.31 does: it refuses salts of more than 128 characters or with @, /, \\ or NUL"
		atArguments  = "messages[0].tool_calls[0].function.arguments"
		atContent    = "messages[0].content"
		tool         = `{"x":1,"function":{"y":2,"strict":true,"name":"f","defer_loading":null},"type":"function","defer_loading":true}`
	)
	for _, c := range []struct {
		template, format, body string
		by                     []string // versions, and the text of each
	}{
		{tools, "", with(`"tools":[{"function":{"name":"f"}}],"tool_choice":"none"`), []string{
			"0.9.1", "None", "0.9.2", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None}}]"}},
		{content, "", say("user", `[{"type":"thinking","thinking":"a"}]`), []string{
			"0.9.2", `malformed: messages[0].content[0].type: unknown: "thinking"`, "0.10", "a", "", "a"}},
		{content, "", say("user", `[{"type":"input_text","text":"a"}]`), []string{"0.9.2", `malformed: messages[0].content[0].type: unknown: "input_text"`, "0.10", "a"}},
		{effort, "", with(`"reasoning_effort":"high"`), []string{
			"0.9", "False  ", "0.10.1", "False  ", "0.13", "False  ", "0.14", "True high ", "0.16", "True high ", "0.21", "True high ", "0.22", "True high True", "", "True high True"}},
		{effort, "", with(`"reasoning_effort":"none"`), []string{
			"0.10.0", "False  ", "0.10.1", `malformed: reasoning_effort: "none" is none that the engine takes`,
			"0.17", `malformed: reasoning_effort: "none" is none that the engine takes`, "0.18", "True none ", "0.22", "True none False"}},
		{effort, "", with(`"reasoning_effort":"max"`), []string{"0.20.2", `malformed: reasoning_effort: "max" is none that the engine takes`, "0.21", "True max "}},
		{effort, "", with(`"reasoning_effort":"huge"`), []string{"0.10.0", "False  ", "", `malformed: reasoning_effort: "huge" is none that the engine takes`}},
		{effort, "", with(`"reasoning_effort":5`), []string{"0.10.0", "False  ", "", `malformed: reasoning_effort: a number, not a string`}},
		{effort, "", with(`"x":1`), []string{"0.13", "False  ", "0.14", "True None ", "0.15", "True None ", "0.16", "False  ", "", "False  "}},
		{content, "openai", say("user", `[{"type":"text"},{"type":"refusal","refusal":null},{"type":"text","text":"a"}]`), []string{
			"0.10.2", "malformed: messages[0].content[0].text: missing", "0.11", "[{'type': 'text', 'text': 'a'}]", "main", "[{'type': 'text', 'text': 'a'}]"}},
		{content, "", say("user", `[{"type":"text"},{"type":"text","text":"a"},{"type":"text","text":"b"}]`), []string{"0.11", "a\nb"}},
		{content, "", `{"messages":[{"role":"tool","tool_call_id":"i","content":[{"type":"text"}]}]}`, []string{
			"0.10.2", "malformed: messages[0].content[0].text: missing",
			"", "not scorable: messages[0].content[0].text: missing: whether the engine accepts it depends on the other parts"}},
		{content, "", say("user", `[{"type":"text","text":"a","uuid":"u"}]`), []string{"0.10.2", "a", "0.11", "malformed: messages[0].content[0].uuid: of a part that is no media"}},
		{calls, "", called(`""`), []string{"0.10.2", "malformed: " + atArguments + ": no JSON", "0.11", "{};True"}},
		{"{{ range(2) | list }}", "", with(`"chat_template_kwargs":{"range":1}`), []string{
			"0.10.2", "not scorable: chat_template_kwargs.range: what this version of the engine makes of it is not known here", "0.11", "[0, 1]", "", "[0, 1]"}},
		{show, "", `{"messages":[{"role":"assistant","content":"a","reasoning":"r"}]}`, []string{
			"0.11.0", "{'role': 'assistant', 'content': 'a'}", "0.11.1", "{'role': 'assistant', 'content': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}"}},
		{"{{ messages[0].reasoning }}", "", `{"messages":[{"role":"assistant","reasoning":"","reasoning_content":"r"}]}`, []string{"0.11.1", "r", "0.15", "r", "0.16", "", "0.22", ""}},
		{"{{ messages[0].reasoning }}", "", `{"messages":[{"role":"assistant","reasoning_content":"r"}]}`, []string{"0.11.0", "", "0.15", "r", "0.16", "", "0.21", "", "0.22", "r", "main", "r"}},
		{content, "", say("user", `[{"type":"output_text","text":"a"}]`), []string{"0.11.2", `malformed: messages[0].content[0].type: unknown: "output_text"`, "0.12", "a"}},
		{calls, "", `{"messages":[{"role":"assistant","tool_calls":[]}]}`, []string{"0.12", "True", "0.13", "False", "", "False"}},
		{show + "{# 'developer' #}", "", say("developer", `"d"`), []string{
			"0.12", "{'role': 'developer', 'content': 'd'}", "0.13", "{'role': 'developer', 'content': 'd', 'tools': None}", "0.23", "{'role': 'developer', 'content': 'd', 'tools': None}"}},
		{"{{ x }} {{ add_generation_prompt }}", "", with(`"chat_template_kwargs":{"x":null,"add_generation_prompt":false}`), []string{"0.15", "None False", "0.16", " True"}},
		{"x", "", with(`"chat_template_kwargs":{"continue_final_message":true}`), []string{
			"0.15", "not scorable: chat_template_kwargs.continue_final_message: what this version of the engine makes of it is not known here", "0.16", "x"}},
		{content, "", with(`"media_io_kwargs":5`), []string{"0.17", "hi", "0.18", "malformed: media_io_kwargs: a number, not an object", "", "malformed: media_io_kwargs: a number, not an object"}},
		{content, "openai", say("user", `["a","",{"type":"text","text":"b"}]`), []string{
			"0.17", "['a', {'type': 'text', 'text': 'b'}]", "0.18", "[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': ''}, {'type': 'text', 'text': 'b'}]"}},
		{content, "openai", `{"messages":[{"role":"user","content":["a"]}],"continue_final_message":true,"add_generation_prompt":false}`, []string{
			"0.17", "not scorable: continue_final_message: the final message has a string among its parts"}},
		{show, "openai", `{"messages":[{"role":"tool","task":"t","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, []string{
			"0.19", "{'role': 'tool', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}", "0.20", "{'role': 'tool', 'content': 'a\\nb', 'task': 't'}"}},
		{tools, "", with(`"tools":[]`), []string{"0.19", "[]", "0.20", "malformed: tools: empty", "", "malformed: tools: empty"}},
		{tools, "", with(`"tools":[],"tool_choice":"required"`), []string{
			"0.19", "not scorable: tools: empty, and a tool is required: what this version of the engine makes of it is not known here", "0.20", "malformed: tools: empty"}},
		{content, "", say("tool", `[{"type":"tool_reference","name":"n"}]`), []string{"0.20", `malformed: messages[0].content[0].type: unknown: "tool_reference"`, "0.21", "n"}},
		{tools, "", with(`"tools":[` + tool + `]`), []string{
			"0.20", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None, 'y': 2, 'strict': True, 'defer_loading': None}, 'x': 1, 'defer_loading': True}]",
			"0.21", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None, 'defer_loading': True, 'y': 2, 'strict': True}, 'defer_loading': True, 'x': 1}]",
			"0.24", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None, 'strict': True, 'defer_loading': True, 'y': 2}, 'defer_loading': True, 'x': 1}]",
			"0.27", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None, 'strict': True, 'defer_loading': True}, 'defer_loading': True}]",
			"", "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': None, 'strict': True, 'defer_loading': True}, 'defer_loading': True}]"}},
		{"{{ tools[0].function.strict }}", "", with(`"tools":[{"function":{"name":"f","strict":"x"}}]`), []string{
			"0.23", "x", "0.24", "malformed: tools[0].function.strict: a string, not a boolean"}},
		{"{{ tools[0].defer_loading }}", "", with(`"tools":[{"function":{"name":"f"},"defer_loading":5}]`), []string{
			"0.20", "5", "0.21", "malformed: tools[0].defer_loading: a number, not a boolean"}},
		{calls, "", called(`"null"`), []string{"0.22.1", "None;True", "0.23", "{};True", "", "{};True", "main", "{};True"}},
		{"{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}", "", `{"messages":[{"role":"user","content":"u"},{"role":"developer","content":"d"}]}`, []string{
			"0.22", "user u;developer d;", "0.23", "system d;user u;"}},
		{content, "openai", say("user", `[{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"name":"n"}]`), []string{
			"0.25.1", "[{'type': 'text', 'text': 'a'}]", "0.26", "[{'type': 'text', 'text': 'a', 'cache_control': {'type': 'ephemeral'}}]",
			"main", "[{'type': 'text', 'text': 'a', 'cache_control': {'type': 'ephemeral'}}]"}},
		{content, "openai", say("user", `[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]`), []string{
			"0.25.1", "[{'type': 'text', 'text': 'a'}]",
			"0.26", "not scorable: messages[0].content[0].prompt_cache_breakpoint: it depends on the engine's version of the package openai, and on its own, whether templates get it"}},
		{content, "", say("user", `[{"type":"text","text":"a","cache_control":1,"prompt_cache_breakpoint":{}}]`), []string{"0.26", "a"}},
		{calls, "", called(`"[1]"`), []string{"0.28", "[1];True", "0.29", unknown(atArguments, anyArguments), "0.31", unknown(atArguments, anyArguments), "", "{};True", "main", "{};True"}},
		{calls, "", called(`"{'a':1}"`), []string{"0.11", "malformed: " + atArguments + ": no JSON", "0.28.1", "malformed: " + atArguments + ": no JSON",
			"0.31", unknown(atArguments, anyArguments), "main", "{};True"}},
		{content, "", say("system", `"x-anthropic-billing-header: cch=1\nb\nc"`), []string{
			"0.27.1", "x-anthropic-billing-header: cch=1\nb\nc", "0.28", unknown(atContent, billing), "0.31", unknown(atContent, billing), "", "b\nc", "main", "b\nc"}},
		{content, "openai", say("system", `["x-anthropic-billing-header",{"type":"text","text":"x-anthropic-billing-header: a\nb","z":1},{"type":"refusal","refusal":"x-anthropic-billing-header\nr"}]`), []string{
			"main", "[{'type': 'text', 'text': 'b', 'z': 1}, {'type': 'text', 'text': 'x-anthropic-billing-header\\nr'}]"}},
		{content, "", say("user", `"x-anthropic-billing-header: cch=1\nb"`), []string{"", "x-anthropic-billing-header: cch=1\nb", "main", "x-anthropic-billing-header: cch=1\nb"}},
		{content, "", with(`"cache_salt":"a@b"`), []string{"0.28", "hi", "0.30", unknown("cache_salt", salts), "", "malformed: cache_salt: more than 128 characters, or one that the engine takes in none"}},
		{content, "", with(`"cache_salt":"` + strings.Repeat("ü", 128) + `"`), []string{"0.30", "hi", "main", "hi"}},
		{content, "", with(`"cache_salt":"` + strings.Repeat("ü", 129) + `"`), []string{"0.28", "hi", "main", "malformed: cache_salt: more than 128 characters, or one that the engine takes in none"}},
	} {
		for i := 0; i < len(c.by); i += 2 {
			o := chat.Options{Engine: c.by[i], ContentFormat: c.format}
			if got := render(t, o, c.template, c.body); got != strings.ReplaceAll(c.by[i+1], "ENGINE", c.by[i]) {
				t.Errorf("%q of %s:\n got %s\nwant %s", c.by[i], c.body, got, c.by[i+1])
			}
		}
	}
}

// The loops that iterate over content, by version.
func TestContentFormatByVersion(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"a"}]}`
	const unknown = "not scorable: vLLM ENGINE may or may not do this, and 0.31 does: a template wants parts if a macro loops over content that it is given"
	macro := "{%% macro f(%s) %%}{%% for c in %[1]s %%}{{ c.text }}{%% endfor %%}{%% endmacro %%}{%% for m in messages %%}{{ f(%s) }}{{ m.content is string }}{%% endfor %%}"
	for _, c := range []struct {
		template string
		by       []string
	}{
		{"{% for m in messages %}{% for c in m.content %}{% endfor %}{{ m.content is string }}{% endfor %}", []string{"0.9", "False", "", "False"}},
		{fmt.Sprintf(macro, "content", "m.content"), []string{"0.21", "True", "0.22", "aFalse", "0.30", "aFalse", "", "aFalse"}},
		{fmt.Sprintf(macro, "content", "[]"), []string{"0.21", "True", "0.22", "False", "0.28", "False", "0.29", unknown, "0.30.1", unknown, "0.31", "True"}},
		{fmt.Sprintf(macro, "x", "m.content"), []string{"0.21", "True", "0.28", "True", "0.29", unknown, "", "aFalse", "main", "aFalse"}},
	} {
		for i := 0; i < len(c.by); i += 2 {
			if got := render(t, chat.Options{Engine: c.by[i]}, c.template, body); got != strings.ReplaceAll(c.by[i+1], "ENGINE", c.by[i]) {
				t.Errorf("%q of %s: %s, want %s", c.by[i], c.template, got, c.by[i+1])
			}
		}
	}
}

// A Prompt keeps all that versions need, and rendering for one engine does not change it for
// another.
func TestOnePromptOfManyEngines(t *testing.T) {
	r := parse(t, `{"messages":[{"role":"system","content":"x-anthropic-billing-header\ns"},{"role":"assistant","tool_calls":[`+
		`{"id":"i","type":"function","function":{"name":"f","arguments":"[1]"}},{"id":"j","type":"function","function":{"name":"f","arguments":"2"}}]}]}`)
	for range 2 {
		for engine, want := range map[string]string{
			"0.27": "x-anthropic-billing-header\ns [1] 2", "main": "s {} {}",
		} {
			m := newModel(t, "{{ messages[0].content }}{% for c in messages[1].tool_calls %} {{ c.function.arguments }}{% endfor %}", chat.Options{Engine: engine})
			if x, err := m.Render(r, nil); err != nil || x.Text != want {
				t.Errorf("%s: %q, %v, want %q", engine, text(x), err, want)
			}
		}
	}
}
