package chat_test

import (
	"context"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// A request is parsed or rejected, and a parsed one is rendered or rejected. The error always has
// one of the sentinels.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"prompt":"a","cache_salt":"s"}`, `{"prompt":[[1,2]]}`, `{"messages":[{"role":"user","content":"hi"}]}`,
		`{"messages":[{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":[1.0,NaN]}"}}]},` +
			`{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"},"y"]}],"tools":[{"function":{"name":"f","strict":1,"x":{}}}]}`,
		`{"messages":[{"role":"developer","content":"d"},{"role":"system","content":[]},{"role":"assistant","content":" a "}],` +
			`"add_generation_prompt":false,"continue_final_message":"yes","reasoning_effort":"low","documents":[{"t":"x"}],"chat_template_kwargs":{"x":1e999}}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}],"chat_template":"{{ messages }}"}`,
		`{"messages":[{"role":"system","content":"x-anthropic-billing-header: a\nb"},{"role":"assistant","content":[{"type":"text","cache_control":{}},"s"],` +
			`"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"[1]"}}]}],"tools":[],"n":"2","cache_salt":"a/b"}`,
		`{"system":"s","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}`,
		`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header"}],"tools":[{"name":"f","input_schema":{}}],"messages":[{"role":"system","content":"a"},` +
			`{"role":"assistant","content":[{"type":"thinking","thinking":"r"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}},{"type":"tool_result","content":[{}]}]},{"role":"system","content":"b"},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"},{"type":"tool_reference","name":"f"}]}]}],"output_config":{"effort":"low"}}`,
		`{"input":"a","instructions":"b","reasoning":{"effort":"low"}}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"s"}]},` +
			`{"type":"message","role":"assistant","id":"m","status":"completed","content":[{"type":"output_text","text":"o","annotations":[]}]},` +
			`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}],"tools":[{"type":"function","name":"f"}]}`,
		`{"messages":[{"role":"system","content":"[INST]"},{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"thinking","thinking":"r","closed":false},{"type":"text","text":"a"}],` +
			`"tool_calls":[{"id":"call-123456789","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"123456789","content":"{\"r\":1e5}"},` +
			`{"role":"assistant","content":" a "}],"add_generation_prompt":false,"continue_final_message":true,"reasoning_effort":"high","tools":[{"type":"function","function":{"name":"f"}}]}`,
	} {
		f.Add([]byte(body))
	}
	var models []*chat.Model
	for _, source := range []string{
		"{{ messages }}{{ tools | tojson }}{{ documents }}{{ x }}",
		"{% for m in messages %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endfor %}",
	} {
		for _, engine := range []string{"", "main", "0.28", "0.9", "0.15", "0.18", "0.22"} {
			models = append(models, newModel(f, source, chat.Options{Engine: engine, RefuseTemplates: true}))
		}
		for _, inline := range []string{"fold", "preserve"} {
			models = append(models, newModel(f, source, chat.Options{InlineSystem: inline}))
		}
	}
	models = append(models, loadHarmony(f, chat.Options{}), loadHarmony(f, chat.Options{Engine: "0.22"}), loadV32(f, chat.Options{Engine: "0.28"}))
	models = append(models, loadDeepSeek(f, "V4", chat.Options{}), loadDeepSeek(f, "V41", chat.Options{Kwargs: `{"reasoning_effort":"max"}`}))
	for _, v := range mistralVersions {
		m, _ := loadMistral(f, v, chat.Options{})
		models = append(models, m)
	}
	parse := func(t *testing.T, path string, body []byte) {
		r, err := chat.Parse(path, body)
		if err != nil {
			if !errors.Is(err, chat.ErrMalformed) && !errors.Is(err, chat.ErrNotScorable) {
				t.Fatal(err)
			}
			return
		}
		if !r.Chat() {
			return
		}
		for _, m := range models {
			x, err := m.Render(r, nil)
			if err != nil {
				if !errors.Is(err, chat.ErrMalformed) && !errors.Is(err, chat.ErrNotScorable) && !errors.Is(err, chat.ErrTemplate) {
					t.Fatal(err)
				}
				continue
			}
			if !utf8.ValidString(x.Text) {
				t.Fatalf("%q is not UTF-8", x.Text)
			}
			var pieces spellTokenizer
			if _, err := x.Encode(t.Context(), nil, &pieces); err != nil || x.Whole() && pieces.text != x.Text || !pieces.within(x.Text) {
				t.Fatalf("%q is %q, %v", pieces.text, x.Text, err)
			}
			if n, err := x.Shared(); err == nil && (n < 0 || n > len(x.Text)) {
				t.Fatalf("%d of %d", n, len(x.Text))
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"", "/v1/messages", "/v1/responses"} {
			parse(t, path, body)
		}
	})
}

// spellTokenizer is a tokenizer that keeps the encoded text.
type spellTokenizer struct{ text string }

func (s *spellTokenizer) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	s.text += text
	return append(dst, 1<<31), nil
}

// within reports whether the encoded texts occur in text, in order.
func (s *spellTokenizer) within(text string) bool {
	i := 0
	for at := range len(text) {
		if i < len(s.text) && s.text[i] == text[at] {
			i++
		}
	}
	return i == len(s.text)
}
