package chat_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/tokenize/chat"
)

func newModel(tb testing.TB, template string, o chat.Options) *chat.Model {
	tb.Helper()
	m, err := chat.New(template, map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": ""}, o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

const hi = `"messages":[{"role":"user","content":"hi"}]`

// The variables of a template, by their source in vLLM and transformers.
func TestVariables(t *testing.T) {
	tool := `"tools":[{"function":{"parameters":{"b":1.0,"a":1},"name":"f"}}]`
	for _, c := range []struct {
		name, template, fields, want string
		o                            chat.Options
	}{
		{"special tokens", "{{ bos_token }}{{ unk_token is defined }}{{ pad_token }}", hi, "<s>False", chat.Options{}},
		{"special tokens overwritten", "{{ bos_token }}", hi + `,"chat_template_kwargs":{"bos_token":"x"}`, "x", chat.Options{}},
		{"generation prompt", "{{ add_generation_prompt }}", hi, "True", chat.Options{}},
		{"no generation prompt", "{{ add_generation_prompt }}", hi + `,"add_generation_prompt":false`, "False", chat.Options{}},
		{"the field before the kwargs", "{{ add_generation_prompt }}", hi + `,"chat_template_kwargs":{"add_generation_prompt":false}`, "True", chat.Options{}},
		{"nothing", "{{ tools }} {{ documents }} {{ x is defined }}", hi, "None None False", chat.Options{}},
		{"kwargs", "{{ x }}", hi + `,"chat_template_kwargs":{"x":[1.0,{"b":null}]}`, "[1.0, {'b': None}]", chat.Options{}},
		{"kwargs of the engine", "{{ x }} {{ y }}", hi + `,"chat_template_kwargs":{"x":"auto","y":2}`, "1 2", chat.Options{Kwargs: `{"x":1,"y":1}`}},
		{"null leaves those of the engine", "{{ x }}", hi + `,"chat_template_kwargs":{"x":null}`, "1", chat.Options{Kwargs: `{"x":1}`}},
		{"null is none", "{{ x is defined }}", hi + `,"chat_template_kwargs":{"x":null}`, "False", chat.Options{}},
		{"null of the engine", "{{ x is none }}", hi, "True", chat.Options{Kwargs: `{"x":null}`}},
		{"names of Jinja2's own", "{{ range(2) | list }}", hi + `,"chat_template_kwargs":{"range":5,"namespace":1}`, "[0, 1]", chat.Options{}},
		{"effort", "{{ reasoning_effort }} {{ enable_thinking }}", hi + `,"reasoning_effort":"low"`, "low True", chat.Options{}},
		{"no effort", "{{ reasoning_effort }} {{ enable_thinking }}", hi + `,"reasoning_effort":"none"`, "none False", chat.Options{}},
		{"effort null", "{{ reasoning_effort is defined }}", hi + `,"reasoning_effort":null`, "False", chat.Options{}},
		{"effort and thinking", "{{ reasoning_effort }} {{ enable_thinking }}",
			hi + `,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"x"}`, "none True", chat.Options{}},
		{"documents", "{{ documents[0].title }}", hi + `,"documents":[{"title":"T"}],"chat_template_kwargs":{"documents":[]}`, "T", chat.Options{}},
		{"documents as kwargs", "{{ documents[0].n }}", hi + `,"chat_template_kwargs":{"documents":[{"n":1}]}`, "1", chat.Options{}},
		{"tools", "{{ tools | tojson }}", hi + "," + tool,
			`[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1.0, "a": 1}}}]`, chat.Options{}},
		{"tools and no choice", "{{ tools | length }}", hi + "," + tool + `,"tool_choice":"none"`, "1", chat.Options{}},
		{"tools taken away", "{{ tools }}", hi + "," + tool + `,"tool_choice":"none"`, "None", chat.Options{ExcludeTools: true}},
		{"tools chosen", "{{ tools | length }}", hi + "," + tool + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, "1", chat.Options{ExcludeTools: true}},
		{"tools as kwargs", "{{ tools[0].x }}", hi + `,"chat_template_kwargs":{"tools":[{"x":1}]}`, "1", chat.Options{}},
		{"a clock", "{{ strftime_now('%Y-%m-%d %H') }}", hi, "2026-03-07 09",
			chat.Options{Now: func() time.Time { return time.Date(2026, 3, 7, 9, 5, 3, 0, time.UTC) }}},
	} {
		r := parse(t, "{"+c.fields+"}")
		x, err := newModel(t, c.template, c.o).Render(r, nil)
		if err != nil || x.Text != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, text(x), err, c.want)
		}
	}
}

func text(x *chat.Rendering) string {
	if x == nil {
		return ""
	}
	return x.Text
}

func TestMessages(t *testing.T) {
	parts := `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]}`
	loop := "{% for m in messages %}{% for p in m.content %}{{ p.type }} {{ p.text }};{% endfor %}{% endfor %}"
	dev := `{"messages":[{"role":"user","content":"u"},{"role":"developer","content":"d","name":"n"},{"role":"system","content":"s"}]}`
	roles := "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}"
	for _, c := range []struct{ name, template, body, want string }{
		{"as a string", "{{ messages[0].content }}", parts, "a\nb"},
		{"as parts", loop, parts, "text a;text ;text b;"},
		{"developer made system", roles, dev, "system d\n\ns;user u;"},
		{"developer known", roles + "{# 'developer' #}", dev, "user u;developer d;system s;"},
		{"developer first and alone", "{{ messages[0] }}", `{"messages":[{"role":"developer","content":"d","name":"n"}]}`,
			"{'role': 'system', 'content': 'd', 'name': 'n'}"},
		{"systems stay", roles, `{"messages":[{"role":"user","content":"u"},{"role":"system","content":"s"}]}`, "user u;system s;"},
		{"a tool's answer with an odd name", "{{ messages[0] }}", `{"messages":[{"role":"tool","content":"a","tool_call_id":"t","name":5}]}`,
			"{'role': 'tool', 'content': 'a', 'tool_call_id': 't'}"},
	} {
		x, err := newModel(t, c.template, chat.Options{}).Render(parse(t, c.body), nil)
		if err != nil || x.Text != c.want {
			t.Errorf("%s: %q, %v", c.name, text(x), err)
		}
	}
	for format, want := range map[string]string{"": "text a;text ;text b;", "auto": "text a;text ;text b;", "openai": "text a;text ;text b;", "string": " ; ; ;"} {
		x, err := newModel(t, loop, chat.Options{ContentFormat: format}).Render(parse(t, parts), nil)
		if err != nil || x.Text != want {
			t.Errorf("format %q: %q, %v", format, text(x), err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, template, fields string
		want                   error
	}{
		{"raised", "{{ raise_exception('no') }}", hi, chat.ErrTemplate},
		{"limits", "{{ ('a' * 1000000000) | length }}", hi, chat.ErrNotScorable},
		{"no final text", "{{ messages }}", `"messages":[{"role":"user","content":"a"},{"role":"assistant"}],` +
			`"add_generation_prompt":false,"continue_final_message":true,"chat_template":"{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}"`,
			chat.ErrMalformed},
		{"its own template broken", "x", hi + `,"chat_template":"{% if %}"`, chat.ErrTemplate},
		{"its own template with what is not supported", "x", hi + `,"chat_template":"{{ self.x() }}"`, chat.ErrNotScorable},
		{"kwarg tokenize", "x", hi + `,"chat_template_kwargs":{"tokenize":true}`, chat.ErrNotScorable},
		{"kwarg chat_template", "x", hi + `,"chat_template_kwargs":{"chat_template":"y"}`, chat.ErrNotScorable},
		{"kwarg messages", "x", hi + `,"chat_template_kwargs":{"messages":[]}`, chat.ErrNotScorable},
		{"kwarg tools", "x", hi + `,"chat_template_kwargs":{"tools":[1]}`, chat.ErrMalformed},
		{"kwarg documents", "x", hi + `,"chat_template_kwargs":{"documents":{}}`, chat.ErrMalformed},
		{"media", "x", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]`, chat.ErrNotScorable},
	} {
		x, err := newModel(t, c.template, chat.Options{}).Render(parse(t, "{"+c.fields+"}"), nil)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v", c.name, text(x), err)
		}
	}
	if _, err := newModel(t, "x", chat.Options{}).Render(parse(t, `{"prompt":"a"}`), nil); !errors.Is(err, chat.ErrMalformed) {
		t.Errorf("a completion: %v", err)
	}
	if _, err := newModel(t, "x", chat.Options{RefuseTemplates: true}).Render(parse(t, `{`+hi+`,"chat_template":"y"}`), nil); !errors.Is(err, chat.ErrMalformed) {
		t.Errorf("a request's template: %v", err)
	}
	for _, o := range []chat.Options{{Kwargs: "{"}, {Kwargs: "[]"}, {Kwargs: `{"tokenize":true}`}, {ContentFormat: "x"}, {Template: "{% include 'x' %}"}, {Engine: "x"}} {
		if _, err := chat.New("x", nil, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	for _, template := range []string{"{% include 'x' %}", "{% if %}", "<|start|><|channel|>", "{{ additional_special_tokens }}", strings.Repeat(" ", 1<<20+1)} {
		if _, err := chat.New(template, nil, chat.Options{}); !errors.Is(err, chat.ErrUnsupported) {
			t.Errorf("%.40q: %v", template, err)
		}
	}
}

func TestOwnTemplate(t *testing.T) {
	m := newModel(t, "model", chat.Options{})
	for range 2 {
		for i := range 40 {
			x, err := m.Render(parse(t, fmt.Sprintf(`{%s,"chat_template":"own %d"}`, hi, i)), nil)
			if want := fmt.Sprintf("own %d", i); err != nil || x.Text != want {
				t.Fatalf("%q, %v", text(x), err)
			}
		}
	}
	if n := m.CachedTemplates(); n != chat.MaxCached {
		t.Errorf("%d templates are kept, want %d", n, chat.MaxCached)
	}
	// A single template is used for every name.
	if x, err := m.Render(parse(t, `{`+hi+`,"chat_template":"default"}`), nil); err != nil || x.Text != "default" {
		t.Errorf("default: %q, %v", text(x), err)
	}
	if x, err := m.Render(parse(t, `{`+hi+`,"chat_template":""}`), nil); err != nil || x.Text != "model" {
		t.Errorf("an empty one: %q, %v", text(x), err)
	}
	given := newModel(t, "model", chat.Options{Template: "given"})
	if x, err := given.Render(parse(t, `{`+hi+`}`), nil); err != nil || x.Text != "given" {
		t.Errorf("%q, %v", text(x), err)
	}
	if x, err := given.Render(parse(t, `{`+hi+`,"chat_template":"own"}`), nil); err != nil || x.Text != "own" {
		t.Errorf("%q, %v", text(x), err)
	}
}

func TestShared(t *testing.T) {
	m := newModel(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}", chat.Options{})
	u, a := `{"role":"user","content":"é"}`, `{"role":"assistant","content":"ê"}`
	for _, c := range []struct {
		messages, more string
		want           int
	}{
		{u, "", 0},
		{a, "", 0},
		{u + "," + a + "," + u, "", len("<user>é<assistant>")},
		{u + "," + a + "," + u + "," + u, "", len("<user>é<assistant>")},
		{u + "," + a + "," + u + "," + a + "," + u, "", len("<user>é<assistant>ê<user>é<assistant>")},
		{u + "," + a, `,"add_generation_prompt":false`, 0},
		{u + "," + a + "," + u + "," + a, `,"add_generation_prompt":false,"continue_final_message":true`, len("<user>é<assistant>")},
		{a + "," + u, "", 0},
	} {
		x, err := m.Render(parse(t, `{"messages":[`+c.messages+`]`+c.more+`}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := x.Shared(); err != nil || n != c.want {
			t.Errorf("%s: %d of %q, %v, want %d", c.messages, n, x.Text, err, c.want)
		}
	}
	// The texts differ within a character.
	m = newModel(t, "{{ 'ê' if messages | length > 1 else 'é' }}", chat.Options{})
	x, err := m.Render(parse(t, `{"messages":[`+u+","+a+","+u+`]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := x.Shared(); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestConcurrent(t *testing.T) {
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	r := parse(t, `{`+hi+`}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			own := parse(t, fmt.Sprintf(`{%s,"chat_template":"{{ messages[0].content }}%d"}`, hi, i%3))
			for range 100 {
				x, err := m.Render(r, nil)
				if err != nil || x.Text != "hi" {
					t.Errorf("%q, %v", text(x), err)
				}
				if x, err := m.Render(own, nil); err != nil || x.Text != fmt.Sprintf("hi%d", i%3) {
					t.Errorf("%q, %v", text(x), err)
				}
			}
		})
	}
	wg.Wait()
}

// hostileTemplate follows the references of a schema, like functionary's and other templates.
const hostileTemplate = `{%- macro show(s, defs) -%}{%- if s['$ref'] is defined -%}{{ show(defs[s['$ref'][8:]], defs) }}` +
	`{%- else -%}{% for k, v in s.items() %}{{ k }}{% if v is mapping %}{{ show(v, defs) }}{% endif %}{% endfor %}{%- endif -%}{%- endmacro -%}` +
	`{% for t in tools %}{{ show(t.function.parameters, t.function.parameters['$defs']) }}{{ t | tojson(indent=4) }}{% endfor %}`

// Any tools of a client end in an error, or in a text within the limits.
func TestHostileTools(t *testing.T) {
	m := newModel(t, hostileTemplate, chat.Options{})
	for name, schema := range hostileSchemas() {
		r, err := chat.Parse("", []byte(`{`+hi+`,"tools":[{"function":{"name":"f","parameters":`+schema+`}}]}`))
		if err == nil {
			_, err = m.Render(r, nil)
		}
		if short := name == "wide" || name == "long"; short != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func hostileSchemas() map[string]string {
	return map[string]string{
		"cyclic":    `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
		"branching": `{"x":{"$ref":"#/$defs/a"},"$defs":{"a":{"p":{"$ref":"#/$defs/a"},"q":{"$ref":"#/$defs/a"}}}}`,
		"deep":      strings.Repeat(`{"x":`, 99) + "1" + strings.Repeat("}", 99),
		"deeper":    strings.Repeat(`{"x":`, 10000) + "1" + strings.Repeat("}", 10000),
		"wide":      `{"x":[` + strings.Repeat("0,", 1<<14) + `0]}`,
		"huge":      "{" + strings.Repeat(`"x":{"type":"string","description":"d"},`, 1<<18) + `"y":1}`,
		"huge list": `{"x":[[0],` + strings.Repeat("0,", 1<<22) + `0]}`,
		"long":      `{"x":"` + strings.Repeat("\\u0001", 2<<20/6-100) + `"}`,
		"longer":    `{"x":"` + strings.Repeat("\\u0001", 8<<20/6) + `"}`,
	}
}

// Absent tools were an empty list in old versions.
func TestNoTools(t *testing.T) {
	m := newModel(t, "{{ tools }}", chat.Options{Engine: "0.19"})
	for fields, want := range map[string]string{``: "None", `,"tools":null`: "None", `,"tools":[]`: "[]", `,"tools":[],"tool_choice":"auto"`: "[]"} {
		x, err := m.Render(parse(t, `{`+hi+fields+`}`), nil)
		if err != nil || x.Text != want {
			t.Errorf("%s: %q, %v, want %q", fields, text(x), err, want)
		}
	}
}
