package chat_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// Errors name the field and the fault.
func TestParseErrors(t *testing.T) {
	const call = `{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":`
	for _, c := range []struct{ body, want string }{
		{``, `malformed: not JSON: no value at byte 0`},
		{"{\"prompt\":\"\xff\"}", `malformed: not JSON: a string that is not UTF-8 at byte 13`},
		{`[]`, `malformed: an array, not an object`},
		{strings.Repeat("[", 101), `not scorable: nested deeper than 100`},
		{`"\ud800"`, `malformed: a lone surrogate in a string, which no tokenizer takes`},
		{`{}`, `malformed: it needs messages or a prompt`},
		{`{` + hi + `,"prompt":"a"}`, `not scorable: it has both messages and a prompt`},
		{`{"messages":null}`, `malformed: it needs messages or a prompt`},
		{`{"messages":null,"prompt":[]}`, `malformed: prompt: empty`},
		{`{"messages":[]}`, `malformed: messages: empty`},
		{`{"messages":{}}`, `malformed: messages: an object, not an array`},
		{`{"messages":[5]}`, `malformed: messages[0]: a number, not an object`},
		{`{"messages":[{"content":"x"}]}`, `malformed: messages[0].role: missing`},
		{`{"messages":[{"role":null}]}`, `malformed: messages[0].role: null, not a string`},
		{`{"messages":[{"role":"user","content":5}]}`, `malformed: messages[0].content: a number, not a string or an array`},
		{`{"messages":[{"role":"user","content":null}]}`, `malformed: messages[0].content: null, not a string or an array`},
		{`{"messages":[{"role":"user","content":[5]}]}`, `malformed: messages[0].content[0]: a number, not an object`},
		{`{"messages":[{"role":"user","content":[{"type":"text","text":5}]}]}`, `not scorable: messages[0].content[0].text: a number, not a string`},
		{`{"messages":[{"role":"user","content":[{"type":"thinking"}]}]}`, `not scorable: messages[0].content[0].thinking: missing`},
		{`{` + hi + `,"n":"two"}`, `malformed: n: a string, not an integer`},
		{`{` + hi + `,"n":1.5}`, `malformed: n: a number, not an integer`},
		{`{` + hi + `,"n":[1]}`, `malformed: n: an array, not an integer`},
		{`{"prompt":"a","n":null}`, `malformed: n: null, not an integer`},
		{`{"prompt_embeds":"b"}`, `not scorable: prompt_embeds: its effect on the tokens is not known here`},
		{`{"messages":[{"role":"user","content":[{"text":"a"}]}]}`, `malformed: messages[0].content[0].type: missing`},
		{`{"messages":[{"role":"user","content":[{"type":5}]}]}`, `malformed: messages[0].content[0].type: a number, not a string`},
		{`{"messages":[{"role":"user","content":[{"type":"x"}]}]}`, `malformed: messages[0].content[0].type: unknown: "x"`},
		{`{"messages":[{"role":"user","content":"a","name":1}]}`, `malformed: messages[0].name: a number, not a string`},
		{`{"messages":[{"role":"tool","content":"a","tool_call_id":1}]}`, `malformed: messages[0].tool_call_id: a number, not a string`},
		{`{"messages":[{"role":"assistant","reasoning":1}]}`, `not scorable: messages[0].reasoning: a number, not a string`},
		{`{"messages":[{"role":"assistant","tool_calls":"x"}]}`, `malformed: messages[0].tool_calls: a string, not an array`},
		{`{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}`, `malformed: messages[0].tool_calls[0].type: missing`},
		{`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"custom"}]}]}`, `malformed: messages[0].tool_calls[0].type: not "function"`},
		{call + `{}}}]}]}`, `malformed: messages[0].tool_calls[0].function.arguments: an object, not a string`},
		{call + `"\"\\ud800\""}}]}]}`,
			`malformed: messages[0].tool_calls[0].function.arguments: a lone surrogate in a string, which no tokenizer takes`},
		{call + `"` + strings.Repeat("[", 101) + `"}}]}]}`, `not scorable: messages[0].tool_calls[0].function.arguments: nested deeper than 100`},
		{`{"messages":[{"role":"developer","content":"","tools":[]}]}`, `not scorable: messages[0].tools: tools of a developer message`},
		{`{"messages":[{"role":"user","author":{}}]}`, `not scorable: messages[0].author: the engine may take the message for one of harmony's`},
		{`{` + hi + `,"model":1}`, `malformed: model: a number, not a string`},
		{`{` + hi + `,"cache_salt":""}`, `malformed: cache_salt: empty`},
		{`{` + hi + `,"cache_salt":1}`, `malformed: cache_salt: a number, not a string`},
		{`{` + hi + `,"add_generation_prompt":null}`, `malformed: add_generation_prompt: null, not a boolean`},
		{`{` + hi + `,"add_generation_prompt":2}`, `malformed: add_generation_prompt: a number, not a boolean`},
		{`{` + hi + `,"continue_final_message":true}`, `malformed: continue_final_message: it needs add_generation_prompt false`},
		{`{` + hi + `,"chat_template":1}`, `malformed: chat_template: a number, not a string`},
		{`{` + hi + `,"chat_template_kwargs":[]}`, `malformed: chat_template_kwargs: an array, not an object`},
		{`{` + hi + `,"documents":[{"title":1}]}`, `malformed: documents[0].title: a number, not a string`},
		{`{` + hi + `,"documents":["x"]}`, `malformed: documents[0]: a string, not an object`},
		{`{` + hi + `,"mm_processor_kwargs":5}`, `malformed: mm_processor_kwargs: a number, not an object`},
		{`{` + hi + `,"tools":[{}]}`, `malformed: tools[0].function: missing`},
		{`{` + hi + `,"tools":[{"type":"custom","function":{"name":"f"}}]}`, `malformed: tools[0].type: not "function"`},
		{`{` + hi + `,"tools":[{"function":{"name":1}}]}`, `malformed: tools[0].function.name: a number, not a string`},
		{`{` + hi + `,"tools":[{"function":{"name":"f","description":1}}]}`, `malformed: tools[0].function.description: a number, not a string`},
		{`{` + hi + `,"tools":[{"function":{"name":"f","parameters":"{}"}}]}`, `malformed: tools[0].function.parameters: a string, not an object`},
		{`{` + hi + `,"tool_choice":"auto"}`, `malformed: tool_choice: there are no tools`},
		{`{` + hi + `,"tool_choice":"x"}`, `malformed: tool_choice: neither none, auto, required nor an object`},
		{`{` + hi + `,"tool_choice":{"function":{}}}`, `malformed: tool_choice.function.name: missing`},
		{`{` + hi + `,"tool_choice":{}}`, `malformed: tool_choice.function: missing`},
		{`{` + hi + `,"truncate_prompt_tokens":5}`, `not scorable: truncate_prompt_tokens: its effect on the tokens is not known here`},
		{`{` + hi + `,"kv_transfer_params":{"prompt_token_ids":[1]}}`,
			`not scorable: kv_transfer_params.prompt_token_ids: the engine takes them for the prompt`},
		{`{"prompt":null}`, `malformed: it needs messages or a prompt`},
		{`{"prompt":[]}`, `malformed: prompt: empty`},
		{`{"prompt":[[]]}`, `malformed: prompt[0]: empty`},
		{`{"prompt":["a","b"]}`, `not scorable: prompt: 2 prompts in one request`},
		{`{"prompt":[1,-1]}`, `malformed: prompt[1]: not the id of a token`},
		{`{"prompt":[[1,"a"]]}`, `malformed: prompt[0][1]: not the id of a token`},
		{`{"prompt":[1.5]}`, `malformed: prompt[0]: a number, not a string or an array`},
		{`{"prompt":"a","suffix":"b"}`, `not scorable: suffix: SGLang makes another prompt of it, and vLLM refuses it`},
		{`{"prompt":"a","prompt_embeds":"b"}`, `not scorable: prompt_embeds: its effect on the tokens is not known here`},
	} {
		_, err := chat.Parse("", []byte(c.body))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		sentinel := chat.ErrMalformed
		if strings.HasPrefix(c.want, "not scorable") {
			sentinel = chat.ErrNotScorable
		}
		if !errors.Is(err, sentinel) {
			t.Errorf("%s: %v does not wrap %v", c.body, err, sentinel)
		}
	}
	if _, err := chat.Parse("", make([]byte, chat.MaxBody+1)); !errors.Is(err, chat.ErrNotScorable) {
		t.Errorf("a long body: %v", err)
	}
}

func TestParse(t *testing.T) {
	r := parse(t, `{"model":"m","prompt":"a\u00e9","cache_salt":"s","echo":true,"max_tokens":"x","user":5}`)
	if r.Chat() || r.Model != "m" || r.Text != "aé" || r.Salt != "s" || !r.AddSpecial {
		t.Errorf("%+v", r)
	}
	for _, body := range []string{`{"prompt":[1,2]}`, `{"prompt":[[1,2]]}`} {
		if r := parse(t, body); !slices.Equal(r.Tokens, []uint32{1, 2}) || r.Text != "" {
			t.Errorf("%s: %+v", body, r)
		}
	}
	if r := parse(t, `{"prompt":["a"],"add_special_tokens":false}`); r.Text != "a" || r.AddSpecial {
		t.Errorf("%+v", r)
	}
	if r := parse(t, "\ufeff"+`{`+hi+`,"model":null,"cache_salt":null}`); !r.Chat() || r.AddSpecial {
		t.Errorf("%+v", r)
	}
	for _, n := range []string{`1`, `true`, `2.0`, `" 1_0.0 "`, `"-3"`, `100000000000000000000`, `null`} {
		parse(t, `{`+hi+`,"n":`+n+`}`)
	}
	for _, n := range []string{`""`, `"1."`, `"1__0"`, `"0x1"`, `1e20`, `NaN`, `{}`} {
		if _, err := chat.Parse("", []byte(`{`+hi+`,"n":`+n+`}`)); !errors.Is(err, chat.ErrMalformed) {
			t.Errorf("n of %s: %v", n, err)
		}
	}
	// Booleans are parsed as by pydantic.
	for _, yes := range []string{`true`, `1`, `1.0`, `"1"`, `"ON"`, `"t"`, `"True"`, `"y"`, `"yes"`} {
		if r := parse(t, `{`+hi+`,"add_special_tokens":`+yes+`}`); !r.AddSpecial {
			t.Errorf("%s is false", yes)
		}
	}
	for _, no := range []string{`false`, `0`, `-0.0`, `"0"`, `"off"`, `"F"`, `"FALSE"`, `"n"`, `"no"`} {
		if r := parse(t, `{"prompt":"a","add_special_tokens":`+no+`}`); r.AddSpecial {
			t.Errorf("%s is true", no)
		}
	}
}

// The content of JSON strings counts toward the limits of the request.
func TestParseCountsAllOfARequest(t *testing.T) {
	call := func(arguments string) string {
		return `{"id":"c","type":"function","function":{"name":"f","arguments":` + strconv.Quote(arguments) + `}}`
	}
	calls := func(n int, arguments string) string {
		return `{"messages":[{"role":"assistant","tool_calls":[` + strings.Repeat(call(arguments)+",", n) + call("{}") + `]}]}`
	}
	list := `["` + strings.Repeat(`a","`, 4000) + `a"]`
	digits := "[" + strings.Repeat("7", 4000) + "]"
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"some lists", calls(20, list), nil},
		{"many lists", calls(40, list), chat.ErrNotScorable},
		{"some long integers", calls(60, digits), nil},
		{"many long integers", calls(70, digits), chat.ErrNotScorable},
	} {
		if _, err := chat.Parse("", []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}
