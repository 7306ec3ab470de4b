package chat_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// loadDeepSeek loads a DeepSeek model by its version, such as "V4".
func loadDeepSeek(tb testing.TB, name string, o chat.Options) *chat.Model {
	tb.Helper()
	m, err := chat.Load(folder(tb, map[string]string{"config.json": `{"architectures":["Deepseek` + name + `ForCausalLM"]}`}), o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// deepChat returns the body of a V4 chat with roles and outputs in random order.
func deepChat(r *rand.Rand) []byte {
	var messages []any
	calls := 0
	add := func(role string, more map[string]any) {
		m := map[string]any{"role": role, "content": oddText(r)}
		for name, v := range more {
			m[name] = v
		}
		messages = append(messages, m)
	}
	for range 1 + r.IntN(9) {
		switch role := pick(r, "user", "user", "user", "assistant", "assistant", "assistant", "tool", "system", "developer", "reminder"); role {
		case "user":
			more := map[string]any{}
			if r.IntN(5) == 0 {
				more["content"] = []any{map[string]any{"type": "text", "text": oddText(r)}, map[string]any{"type": "text", "text": "x"}}
			}
			add(role, more)
		case "assistant":
			more := map[string]any{}
			if r.IntN(2) == 0 {
				more[pick(r, "reasoning", "reasoning_content")] = pick(r, "I think.", oddText(r), "")
			}
			n := 0
			if r.IntN(2) == 0 {
				n = 1 + r.IntN(3)
				var list []any
				for range n {
					arguments := pick(r, "{}", `{"a": 1,"b":"x\ny"}`, `{"l":[1, 2.5,"é"],"o":{"k":null},"t":true,"f":1e5}`, `{"日":"","z":"{\"a\"}"}`)
					list = append(list, map[string]any{"id": fmt.Sprint("c", calls), "type": "function",
						"function": map[string]any{"name": pick(r, "f", "get_weather"), "arguments": arguments}})
					calls++
				}
				more["tool_calls"] = list
				more["content"] = pick[any](r, nil, "", oddText(r))
			}
			add(role, more)
			for _, i := range r.Perm(n) {
				if r.IntN(9) == 0 {
					add("user", nil)
				}
				add("tool", map[string]any{"tool_call_id": fmt.Sprint("c", calls-1-i)})
			}
		case "tool":
			add(role, map[string]any{"tool_call_id": fmt.Sprint("c", r.IntN(3))})
		case "reminder":
			if r.IntN(4) == 0 {
				add("latest_reminder", nil)
			}
		default:
			add(role, nil)
		}
	}
	if messages == nil || r.IntN(8) > 0 {
		add("user", nil)
	}
	body := map[string]any{"messages": messages}
	kwargs := map[string]any{}
	if r.IntN(3) > 0 {
		kwargs[pick(r, "thinking", "enable_thinking")] = r.IntN(3) > 0
	}
	if r.IntN(4) == 0 {
		kwargs["drop_thinking"] = r.IntN(2) == 0
	}
	if r.IntN(3) == 0 {
		kwargs["reasoning_effort"] = pick[any](r, 1, 42, 100, 0, 101, true, 2.5, "xhigh", "odd")
	}
	body["chat_template_kwargs"] = kwargs
	if effort := pick(r, "", "", "", "none", "minimal", "low", "high", "xhigh", "max"); effort != "" {
		body["reasoning_effort"] = effort
	}
	if r.IntN(3) == 0 {
		var tools []any
		for i := range 1 + r.IntN(2) {
			f := map[string]any{"name": fmt.Sprint("f", i), "description": "one\ntwo é", "parameters": oddSchema(r, 2)}
			tools = append(tools, map[string]any{"type": "function", "function": f})
		}
		body["tools"] = tools
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return b
}

// deepseek_v4.txt has digests of the texts of DeepSeek's programs for each body, as vLLM 0.28 and
// main call V4's, and as main calls V4.1's. "refused" is a failed assertion. The programs ran in
// Python: vLLM's deepseek_v4_encoding.py from before pull requests 50580 and 51262, patched with
// the lines of these and of V4.1's file.
func TestDeepSeekV4(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 6))
	bodies := make([][]byte, 400)
	for i := range bodies {
		bodies[i] = deepChat(r)
	}
	want := golden(t, "deepseek_v4.txt", bodies)
	for column, m := range []*chat.Model{
		loadDeepSeek(t, "V4", chat.Options{Engine: "0.28.0"}), loadDeepSeek(t, "V4", chat.Options{}), loadDeepSeek(t, "V41", chat.Options{}),
	} {
		scored, failed := 0, 0
		for i, body := range bodies {
			x, err := m.Render(parse(t, string(body)), nil)
			if errors.Is(err, chat.ErrNotScorable) {
				continue
			}
			got := digest([]byte(text(x)), 6)
			if err != nil {
				got = "refused"
			} else {
				scored++
			}
			if got != strings.Fields(want[i])[column] {
				t.Errorf("%d, column %d: %s: %q, %v", i, column, body, text(x), err)
				if failed++; failed > 3 {
					t.FailNow()
				}
			}
		}
		if scored < len(bodies)/5 {
			t.Errorf("column %d: %d scored of %d", column, scored, len(bodies))
		}
	}
}

func TestDeepSeekV4Refuses(t *testing.T) {
	const (
		user   = `{"role":"user","content":"u"}`
		system = `{"role":"system","content":"s"}`
		answer = `{"role":"assistant","content":"a"}`
		call   = `{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":""}}]}`
	)
	for _, c := range []struct{ name, engine, fields, text string }{
		{"V4", "", `"messages":[` + user + `],"chat_template":"x"`, "chat_template: "},
		{"V4", "", `"messages":[` + user + `],"add_generation_prompt":false`, "add_generation_prompt: "},
		{"V4", "", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`, "media"},
		{"V4", "", `"messages":[{"role":"user","content":"u","task":"query"}]`, "messages[0].task: "},
		{"V4", "", `"messages":[{"role":"developer","content":"u","tools":[{}]}]`, "messages[0].tools: "},
		{"V4", "0.28", `"messages":[` + user + `,` + system + `]`, "messages[1].role: "},
		{"V4", "0.28.1", `"messages":[` + system + `,` + answer + `,` + user + `]`, "messages[0].role: "},
		{"V4", "0.28", `"messages":[` + answer + `,` + user + `]` + benchTool, "tools: "},
		{"V4", "0.30", `"messages":[` + system + `,` + user + `]` + benchTool, "tools: "},
		{"V41", "", `"messages":[` + user + `]`, "reasoning_effort: "},
		{"V41", "", `"messages":[` + user + `],"reasoning_effort":"low"`, "reasoning_effort: "},
		{"V41", "", `"messages":[` + user + `],"chat_template_kwargs":{"thinking":false,"enable_thinking":true}`, "reasoning_effort: "},
		{"V41", "", `"messages":[` + user + `],"reasoning_effort":"medium"`, "reasoning_effort: "},
		{"V41", "", `"messages":[` + user + `,` + answer + `],"reasoning_effort":"max"`, "messages: "},
		{"V41", "", `"messages":[` + system + `],"reasoning_effort":"max"`, "messages: "},
		{"V41", "", `"messages":[` + call + `,` + user + `],"reasoning_effort":"max"`, "messages[0].tool_calls: "},
		{"V41", "", `"messages":[{"role":"user","content":["u"]}],"reasoning_effort":"max"`, "messages[0].content: "},
		{"V41", "", `"messages":[{"role":"user","content":[{"type":"input_text","text":"u"}]}],"reasoning_effort":"max"`, "messages[0].content: "},
		{"V41", "", `"messages":[{"role":"system","content":"x-anthropic-billing-header: x"},` + user + `],"reasoning_effort":"max"`, "messages[0].content: "},
		{"V41", "", `"messages":[{"role":"user","content":"u","wo_eos":true}],"reasoning_effort":"max"`, "messages[0].wo_eos: "},
	} {
		m := loadDeepSeek(t, c.name, chat.Options{Engine: c.engine})
		r, err := chat.Parse("", []byte(`{`+c.fields+`}`))
		if err == nil {
			_, err = m.Render(r, nil)
		}
		if !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s %s: %s: %v", c.name, c.engine, c.fields, err)
		}
	}
	for name, engines := range map[string][]string{"V4": {"0.27.1", "0.24"}, "V41": {"0.31", "0.24"}} {
		for _, engine := range engines {
			_, err := chat.Load(folder(t, map[string]string{"config.json": `{"architectures":["Deepseek` + name + `ForCausalLM"]}`}), chat.Options{Engine: engine})
			if !errors.Is(err, chat.ErrUnsupported) {
				t.Errorf("%s of %s: %v", name, engine, err)
			}
		}
	}
}

// A body of the Messages API becomes the chat that the engine makes, with outputs in the order of
// the calls.
func TestDeepSeekV4Messages(t *testing.T) {
	const body = `{"model":"m","max_tokens":5,"system":"s","messages":[{"role":"user","content":"u"},{"role":"assistant","content":[
		{"type":"thinking","thinking":"r"},{"type":"tool_use","id":"a","name":"f","input":{"x":1}},{"type":"tool_use","id":"b","name":"f","input":{}}]},{"role":"user","content":[
		{"type":"tool_result","tool_use_id":"b","content":"2"},{"type":"tool_result","tool_use_id":"a","content":"1"},{"type":"text","text":"v"}]}],"chat_template_kwargs":{"thinking":true,"reasoning_effort":"EFFORT"}}`
	for name, want := range map[string]string{
		"V4": "<｜begin▁of▁sentence｜>s<｜User｜>u<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n" +
			"<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>1</tool_result>\n\n<tool_result>2</tool_result>\n\nv<｜Assistant｜><think>",
		"V41": "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\ns<｜User｜>u<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n" +
			"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
			"<｜end▁of▁sentence｜><｜User｜><tool_result>1</tool_result>\n\n<tool_result>2</tool_result>\n\nv<｜Assistant｜><think>",
	} {
		effort := map[string]string{"V4": "low", "V41": "xhigh"}[name]
		r, err := chat.Parse("/v1/messages", []byte(strings.Replace(body, "EFFORT", effort, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if x, err := loadDeepSeek(t, name, chat.Options{}).Render(r, nil); err != nil || x.Text != want {
			t.Errorf("%s: %q, %v, want %q", name, text(x), err, want)
		}
	}
}
