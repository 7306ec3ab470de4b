package chat_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A recordedChat is a body and, for some engines, the chat that vLLM's own functions made of it, or
// "!" and the exception.
type recordedChat struct {
	Body string
	Outs [][2]json.RawMessage // engines, and their chat
}

// readMade calls f for each row of a file, and of the file in an environment variable.
func readMade(t *testing.T, name, more string, f func(row recordedChat)) {
	t.Helper()
	files := []string{filepath.Join("testdata", name)}
	if file := os.Getenv(more); file != "" {
		files = append(files, file)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		z, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(z)
		lines.Buffer(nil, 1<<24)
		for n := 0; lines.Scan(); n++ {
			if !tried(n) {
				continue
			}
			var row recordedChat
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
				t.Fatal(err)
			}
			f(row)
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// compareMade compares the chats that the models make of a body with those of the engines.
func (n *outcomes) compareMade(t *testing.T, path string, row recordedChat, models map[string]*chat.Model) {
	t.Helper()
	for _, out := range row.Outs {
		var names []string
		var want string
		if err := errors.Join(json.Unmarshal(out[0], &names), json.Unmarshal(out[1], &want)); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			m := models[name]
			for _, parts := range []bool{false, true} {
				got, err := chat.Made(m, path, row.Body, parts)
				if strings.HasPrefix(want, "!") {
					if err == nil {
						n.lenient++
					}
					continue
				}
				if errors.Is(err, chat.ErrNotScorable) {
					n.refused++
					continue
				}
				made, chatErr := chat.Made(m, "/v1/chat/completions", want, parts)
				switch {
				case errors.Is(chatErr, chat.ErrNotScorable):
					n.refused++
				case (err == nil) != (chatErr == nil), got != made:
					t.Fatalf("%s of %s (parts: %t):\n got %s, %v\nwant %s, %v", name, row.Body, parts, got, err, made, chatErr)
				case err == nil:
					n.taken++
				}
			}
		}
	}
}

const showAll = "{{ messages }}{{ tools }}{{ reasoning_effort }}{{ enable_thinking }}"

// The chats of vLLM's functions for 1,500 random bodies of the Messages API: main (a8c3bdb20) with
// system messages kept and folded, 0.27 (aab1c5621) with a --chat-template that passes its probe
// and without one, 0.23 (949236297), 0.21, 0.19.1 and 0.18. Bodies have the types of main in the
// first three.
func TestMessagesMade(t *testing.T) {
	models := map[string]*chat.Model{
		"main/preserve": newModel(t, showAll, chat.Options{InlineSystem: "preserve"}),
		"main/fold":     newModel(t, showAll, chat.Options{InlineSystem: "fold"}),
		"0.27/keep":     newModel(t, showAll, chat.Options{Engine: "0.27", Template: showAll}),
		"0.27/merge":    newModel(t, showAll, chat.Options{Engine: "0.27"}),
	}
	for _, engine := range []string{"0.18", "0.19.1", "0.21", "0.23"} {
		models[engine] = newModel(t, showAll, chat.Options{Engine: engine})
	}
	var n outcomes
	readMade(t, "messages.jsonl.gz", "KVINDEX_MESSAGES", func(row recordedChat) {
		n.compareMade(t, "/v1/messages", row, models)
	})
	t.Logf("%+v", n)
	if n.taken < 7000 && !testing.Short() || n.refused > n.taken {
		t.Errorf("%+v", n)
	}
}

// The results of vLLM's probes (a8c3bdb20, aab1c5621) for eight small templates and those of
// models. They ran on Jinja2, with a tokenizer of words in place of the models'.
func TestInlineProbes(t *testing.T) {
	unknown := 0
	for _, row := range recorded[struct {
		Name, Source     string
		Added            []string
		Inline, Disabled map[string]string
		Merges           *bool
	}](t, "inline.json") {
		source := row.Source
		if source == "" {
			if os.Getenv("KVINDEX_TESTDATA") == "" {
				continue
			}
			b, err := os.ReadFile(testdata.Path(t, "the templates", "templates", row.Name))
			if err != nil {
				t.Fatal(err)
			}
			source = string(b)
		}
		m, err := chat.New("x", map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}, chat.Options{Template: source})
		if err != nil {
			t.Logf("%s: %v", row.Name, err)
			continue
		}
		keeps, disabled, passes, parts, err := chat.Probed(m, row.Added)
		format := "string"
		if parts {
			format = "parts"
		}
		if err != nil {
			t.Logf("%s: %v (%s)", row.Name, err, row.Inline[format])
			unknown++
		} else if want := row.Inline[format]; keeps != strings.HasPrefix(want, "preserve") {
			t.Errorf("%s keeps system messages: %t, want %s", row.Name, keeps, want)
		}
		if disabled != row.Disabled[format] {
			t.Errorf("%s: thinking that is disabled is %q, want %q", row.Name, disabled, row.Disabled[format])
		}
		if row.Merges != nil && passes == *row.Merges {
			t.Errorf("%s passes the old probe: %t", row.Name, passes)
		}
	}
	if unknown > 4 {
		t.Errorf("%d are unknown", unknown)
	}
}

// of is a body of the Messages API with these fields.
func of(fields string) string { return `{"model":"m","max_tokens":5,` + fields + `}` }

// renderOf is the text of a body by an engine, or the error.
func renderOf(t *testing.T, o chat.Options, template, path, body string) string {
	t.Helper()
	m := newModel(t, template, o)
	r, err := chat.Parse(path, []byte(body))
	if err != nil {
		return err.Error()
	}
	x, err := m.Render(r, nil)
	if err != nil {
		return err.Error()
	}
	return x.Text
}

// Errors name the field and the reason.
func TestMessagesErrors(t *testing.T) {
	user := func(content string) string { return of(`"messages":[{"role":"user","content":` + content + `}]`) }
	for _, c := range []struct{ body, want string }{
		{`{"max_tokens":5,"messages":[]}`, `malformed: model: missing`},
		{`{"model":"","max_tokens":5}`, `malformed: model: empty`},
		{`{"model":"m","max_tokens":0}`, `malformed: max_tokens: not positive`},
		{`{"model":"m","max_tokens":"x"}`, `malformed: max_tokens: a string, not an integer`},
		{of(`"messages":[]`), `malformed: messages: empty`},
		{of(`"messages":null`), `malformed: messages: missing`},
		{of(`"messages":[5]`), `malformed: messages[0]: a number, not an object`},
		{of(`"messages":[{"role":"tool","content":"x"}]`), `malformed: messages[0].role: neither user, assistant nor system`},
		{of(`"messages":[{"role":"user"}]`), `malformed: messages[0].content: missing`},
		{user(`null`), `malformed: messages[0].content: null, not a string or an array`},
		{user(`[{"text":"a"}]`), `malformed: messages[0].content[0].type: missing`},
		{user(`[{"type":"document"}]`), `malformed: messages[0].content[0].type: unknown: "document"`},
		{user(`[{"type":"text","text":5}]`), `malformed: messages[0].content[0].text: a number, which the engine does not take`},
		{user(`[{"type":"tool_result","content":[5]}]`), `malformed: messages[0].content[0].content[0]: a number, not an object`},
		{user(`[{"type":"tool_result","content":[{"type":"text","text":null}]}]`), `malformed: messages[0].content[0].content[0].text: null, not a string`},
		{user(`[{"type":"image","source":{"type":"url","url":5}}]`), `not scorable: messages[0].content[0].source.url: a number, not a string`},
		{user(`[{"type":"image","source":{"data":""}}]`), `not scorable: messages[0].content[0]: image: the engine's hash of it and the number of its tokens are needed`},
		{of(`"system":5,"messages":[]`), `malformed: system: a number, not a string or an array`},
		{of(`"tools":[{"type":"web_search_20250305","name":"web_search"}],"messages":[]`), `malformed: tools[0].input_schema: missing: of a tool that the engine does not have`},
		{of(`"tools":[{"name":"f","input_schema":{},"strict":[]}],"messages":[]`), `malformed: tools[0].strict: an array, not a boolean`},
		{of(`"tool_choice":{"type":"tool"},"messages":[]`), `malformed: tool_choice.name: missing`},
		{of(`"tool_choice":{"type":"x"},"messages":[]`), `malformed: tool_choice.type: neither auto, any, tool nor none`},
		{of(`"output_config":{"effort":"none"},"messages":[]`), `malformed: output_config.effort: none that the engine takes`},
		{of(`"kv_transfer_params":{"prompt_token_ids":[1]},"messages":[]`), `not scorable: kv_transfer_params.prompt_token_ids: the engine takes them for the prompt`},
		{of(`"cache_salt":"","messages":[]`), `malformed: cache_salt: empty`},
		{of(`"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]`),
			`not scorable: messages: whether the engine keeps system messages in place depends on the tokens that tokenizer_config.json adds, and it has none: set Options.InlineSystem`},
		{of(`"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f"}]}]`),
			`not scorable: a tool_use without an id, which the chat template prints: the engine's id is the second of its clock`},
	} {
		if got := renderOf(t, chat.Options{}, "{{ messages }}", "/v1/messages", c.body); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.body, got, c.want)
		}
	}
	const silent = "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls %} {{ c.function.name }}{% endfor %}{% endfor %}"
	if got := renderOf(t, chat.Options{}, silent, "/v1/messages", of(`"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f"}]}]`)); got != "assistant f" {
		t.Errorf("an id that is not printed: %s", got)
	}
	const first = "{% set ns = namespace(f='f') %}{% for c in messages[0].tool_calls | reverse %}{% if c.id == messages[1].tool_call_id %}{% set ns.f = c.function.name %}{% endif %}{% endfor %}{{ ns.f }}"
	if got := renderOf(t, chat.Options{}, first, "/v1/messages", of(`"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f"},`+
		`{"type":"tool_use","name":"g","id":"call_1700000000"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1700000000","content":"r"}]}]`)); !strings.HasPrefix(got, "not scorable: a tool_use without an id") {
		t.Errorf("an id of the client's that is like one of the clock: %s", got)
	}
	for _, body := range []string{`{"input":5}`, `{"input":"a","previous_response_id":"r"}`, `{"input":[{"type":"item_reference","id":"i"}]}`,
		`{"input":"a","conversation":"c"}`, `{"input":"a","prompt":{"id":"p"}}`, `{"input":[]}`, `{"input":"a","truncation":"auto"}`, `{"input":"a","tools":[{"type":"web_search"}]}`} {
		r, err := chat.Parse("/v1/responses", []byte(body))
		if err == nil || r != nil && (r.Chat() || !errors.Is(err, chat.ErrNotScorable)) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Versions of the engine differ in system messages among the messages, an effort and disabled
// thinking.
func TestMessagesVersions(t *testing.T) {
	const (
		show   = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ reasoning_effort }}"
		strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
		inline = `"system":"s","messages":[{"role":"user","content":"u"},{"role":"system","content":"i"},{"role":"assistant","content":"a"}]`
		effort = `"messages":[{"role":"user","content":"u"}],"chat_template_kwargs":{"reasoning_effort":"x"}`
		refers = `"messages":[{"role":"user","content":[{"type":"text","text":"u"},{"type":"tool_reference","name":"n"}]}]`
		result = `"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":"r"}]}]`
		moved  = "system:si;user:u;assistant:a;"
		kept   = "system:s;user:u;system:i;assistant:a;"
		folded = "system:s;user:u\n\ni;assistant:a;"
	)
	for _, c := range []struct {
		o          chat.Options
		body, want string
	}{
		{chat.Options{Engine: "0.10"}, inline, "not scorable: this version of the engine has no Messages API"},
		{chat.Options{Engine: "0.17"}, inline, "not scorable: vLLM 0.17 may or may not do this, and 0.18 does: it reads the Messages API in the way that is known here"},
		{chat.Options{Engine: "0.18"}, inline, "malformed: messages: a system message, which this version of the engine takes in system only"},
		{chat.Options{Engine: "0.22"}, inline, "malformed: messages: a system message, which this version of the engine takes in system only"},
		{chat.Options{Engine: "0.23"}, inline, moved},
		{chat.Options{Engine: "0.24"}, inline, moved},
		{chat.Options{Engine: "0.29", Template: show}, inline, kept},
		{chat.Options{Engine: "0.29", Template: strict}, inline, moved},
		{chat.Options{Engine: "0.30"}, inline, "not scorable: messages: vLLM 0.30 may or may not do this, and main does: system messages stay in place, or join the messages beside them, by a probe"},
		{chat.Options{InlineSystem: "preserve"}, inline, kept},
		{chat.Options{InlineSystem: "fold"}, inline, folded},
		{chat.Options{InlineSystem: "preserve"}, strings.Replace(inline, `"system":"s",`, "", 1), "user:u\n\ni;assistant:a;"},
		{chat.Options{}, `"messages":[{"role":"user","content":"u"}],"output_config":{"effort":"xhigh"}`, "user:u;xhigh"},
		{chat.Options{Engine: "0.22"}, `"messages":[{"role":"user","content":"u"}],"output_config":{"effort":"none"}`, "user:u;"},
		{chat.Options{Engine: "0.23"}, `"messages":[{"role":"user","content":"u"}],"output_config":{"effort":"none"}`, "malformed: output_config.effort: none that the engine takes"},
		{chat.Options{Engine: "0.19"}, effort, "user:u;"},
		{chat.Options{Engine: "0.20"}, effort, "not scorable: chat_template_kwargs: vLLM 0.20 may or may not do this, and 0.21 does: it passes chat_template_kwargs on"},
		{chat.Options{Engine: "0.21"}, effort, "user:u;x"},
		{chat.Options{Engine: "0.18", Kwargs: `{"reasoning_effort":"y"}`}, effort, "not scorable: this version of the engine does not use --default-chat-template-kwargs in this API"},
		{chat.Options{Engine: "0.19", Kwargs: `{"reasoning_effort":"y"}`}, effort, "user:u;y"},
		{chat.Options{Engine: "0.20"}, refers, "malformed: messages: a block of the type tool_reference, which this version of the engine does not take"},
		{chat.Options{Engine: "0.21"}, refers, "user:u;"},
		{chat.Options{Engine: "0.19"}, result, "tool:r;user:;"},
		{chat.Options{Engine: "0.19.1"}, result, "tool:r;"},
		{chat.Options{}, `"messages":[{"role":"user","content":"u"}],"output_config":{"effort":"low"},"thinking":{"type":"disabled"}`, "user:u;none"},
		{chat.Options{Engine: "0.28"}, `"messages":[{"role":"user","content":"u"}],"output_config":{"effort":"low"},"thinking":{"type":"disabled"}`, "user:u;low"},
		{chat.Options{}, `"messages":[{"role":"user","content":"u"}],"thinking":{"type":"enabled","budget_tokens":4}`, "malformed: thinking.budget_tokens: less than 1024, or not less than max_tokens"},
		{chat.Options{Engine: "0.26"}, `"cache_salt":"s","messages":[{"role":"user","content":"u"}]`, "not scorable: cache_salt: this version of the engine ignores it in this API"},
		{chat.Options{Engine: "0.27"}, `"cache_salt":"s","messages":[{"role":"user","content":"u"}]`, "user:u;"},
		{chat.Options{}, `"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]`, "system:s;user:u;"},
	} {
		if got := renderOf(t, c.o, show, "/v1/messages", of(c.body)); got != c.want {
			t.Errorf("%+v of %s:\n got %s\nwant %s", c.o, c.body, got, c.want)
		}
	}
	for o, fails := range map[[2]string]bool{
		{"merge", ""}: true, {"fold", "0.31"}: true, {"preserve", "0.24"}: true, {"auto", "0.24"}: false, {"fold", "main"}: false,
	} {
		if _, err := chat.New(show, nil, chat.Options{InlineSystem: o[0], Engine: o[1]}); (err != nil) != fails {
			t.Errorf("%q: %v", o, err)
		}
	}
}

// The effort in a body of the Responses API sets enable_thinking, from 0.22 on, as that of a chat.
func TestResponsesEffort(t *testing.T) {
	const body = `{"input":"a","reasoning":{"effort":"low"},"store":false}`
	for _, c := range []struct {
		o          chat.Options
		body, want string
	}{
		{chat.Options{}, body, "True low"},
		{chat.Options{Engine: "0.22"}, strings.Replace(body, "low", "none", 1), "False none"},
		{chat.Options{Engine: "0.21"}, body, " low"},
		{chat.Options{Engine: "0.21"}, strings.Replace(body, "low", "minimal", 1), " minimal"},
		{chat.Options{Engine: "0.20"}, strings.Replace(body, "low", "minimal", 1), `not scorable: reasoning.effort: "minimal", which chats of this version of the engine do not have`},
		{chat.Options{Engine: "0.21", Kwargs: `{"x":1}`}, body, "not scorable: this version of the engine does not use --default-chat-template-kwargs in this API"},
		{chat.Options{Engine: "0.21"}, `{"input":[{"type":"function_call","id":"mcp_1","call_id":"c","name":"f","arguments":"{}"}]}`,
			"not scorable: input: a call with an id of MCP's, which this version of the engine may join to reasoning"},
		{chat.Options{Engine: "0.17"}, body, "not scorable: vLLM 0.17 may or may not do this, and 0.18 does: it reads the Responses API in the way that is known here"},
	} {
		if got := renderOf(t, c.o, "{{ enable_thinking }} {{ reasoning_effort }}", "/v1/responses", c.body); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
}

// A cut body is an error, and so is one sent to another API.
func TestCutBodies(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/messages":  of(`"system":[{"type":"text","text":"é\n"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}]}]}],"tools":[]`),
		"/v1/responses": `{"input":[{"role":"user","content":[{"type":"input_text","text":"é"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}],"instructions":"i"}`,
	} {
		if _, err := chat.Parse(path, []byte(body)); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		for i := range body {
			if _, err := chat.Parse(path, []byte(body[:i])); !errors.Is(err, chat.ErrMalformed) {
				t.Fatalf("%s: %v", body[:i], err)
			}
		}
		for _, other := range []string{"", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
			if _, err := chat.Parse(other, []byte(body)); err == nil && other != path {
				t.Errorf("%s takes %s", other, body)
			}
		}
	}
}

// A program renders a body of the Messages API like the chat that vLLM makes of it.
func TestMessagesOfPrograms(t *testing.T) {
	mistral := func(version int) func(o chat.Options) *chat.Model {
		return func(o chat.Options) *chat.Model { m, _ := loadMistral(t, version, o); return m }
	}
	for name, load := range map[string]func(o chat.Options) *chat.Model{
		"harmony":    func(o chat.Options) *chat.Model { o.StartDate = "2026-02-03"; return loadHarmony(t, o) },
		"Mistral 3":  mistral(3),
		"Mistral 13": mistral(13),
	} {
		models := map[string]*chat.Model{
			"main/preserve": load(chat.Options{InlineSystem: "preserve"}),
			"main/fold":     load(chat.Options{InlineSystem: "fold"}),
		}
		if name == "harmony" {
			models["0.27/keep"] = load(chat.Options{Engine: "0.27", Template: showAll})
			models["0.27/merge"] = load(chat.Options{Engine: "0.27"})
			for _, engine := range []string{"0.18", "0.19.1", "0.21", "0.23"} {
				models[engine] = load(chat.Options{Engine: engine})
			}
		}
		taken := 0
		readMade(t, "messages.jsonl.gz", "KVINDEX_MESSAGES", func(row recordedChat) {
			for _, out := range row.Outs {
				var names []string
				var want string
				if err := errors.Join(json.Unmarshal(out[0], &names), json.Unmarshal(out[1], &want)); err != nil {
					t.Fatal(err)
				}
				for _, engine := range names {
					m := models[engine]
					if m == nil || strings.HasPrefix(want, "!") {
						continue
					}
					got, err := textOf(m, "/v1/messages", longIDs(row.Body))
					made, chatErr := textOf(m, "/v1/chat/completions", longIDs(asChat(want)))
					unknown := errors.Is(err, chat.ErrNotScorable) || errors.Is(chatErr, chat.ErrNotScorable)
					if (err == nil) != (chatErr == nil) && !unknown || err == nil && chatErr == nil && got != made {
						t.Fatalf("%s, %s of %s:\n got %q, %v\nwant %q, %v", name, engine, row.Body, got, err, made, chatErr)
					}
					if err == nil {
						taken++
					}
				}
			}
		})
		if t.Logf("%s: %d taken", name, taken); taken < 400 && !testing.Short() {
			t.Error("these are few")
		}
	}
}

var shortID = regexp.MustCompile(`"t(\d)"`)

// longIDs gives calls the long ids that mistral-common requires.
func longIDs(body string) string { return shortID.ReplaceAllString(body, `"call0000$1"`) }

var noTools = regexp.MustCompile(`, "tools": \[\], "tool_choice": ("\w+"|\{"type": "function", "function": \{"name": "[^"]*"\}\})`)

// asChat returns a chat that vLLM made as a client could send it. The probe of disabled thinking
// had another renderer, and a client may not send an empty list of tools.
func asChat(made string) string {
	made = strings.Replace(made, `"reasoning_effort": "none"`, `"reasoning_effort": "low"`, 1)
	return noTools.ReplaceAllString(made, "")
}

// The probe of system messages renders with the program: harmony gives them their own role, and
// mistral-common rejects them after an answer.
func TestInlineProbeOfPrograms(t *testing.T) {
	const body = `{"model":"m","max_tokens":5,"system":"s","messages":[{"role":"user","content":"u"},{"role":"system","content":"i"}]}`
	harmonyOf := func(o chat.Options) *chat.Model {
		o.StartDate = "2026-02-03"
		m, err := chat.Load(folder(t, map[string]string{
			"config.json":           `{"model_type":"gpt_oss"}`,
			"tokenizer_config.json": `{"added_tokens_decoder":{"200006":{"content":"<|start|>"},"200008":{"content":"<|message|>"},"200007":{"content":"<|end|>"},"200005":{"content":"<|channel|>"}}}`,
		}), o)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	mistralOf := func(o chat.Options) *chat.Model { m, _ := loadMistral(t, 13, o); return m }
	for want, load := range map[string]func(o chat.Options) *chat.Model{"preserve": harmonyOf, "fold": mistralOf} {
		probed, err := textOf(load(chat.Options{}), "/v1/messages", body)
		if err != nil {
			t.Fatal(err)
		}
		for _, option := range []string{"preserve", "fold"} {
			text, err := textOf(load(chat.Options{InlineSystem: option}), "/v1/messages", body)
			if err == nil && (text == probed) != (option == want) {
				t.Errorf("%s: %q, probed %q", option, text, probed)
			}
		}
	}
	if _, err := textOf(loadHarmony(t, chat.Options{}), "/v1/messages", body); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), "set Options.InlineSystem") {
		t.Error(err)
	}
}

func textOf(m *chat.Model, path, body string) (string, error) {
	r, err := chat.Parse(path, []byte(body))
	if err != nil {
		return "", err
	}
	x, err := m.Render(r, nil)
	if err != nil {
		return "", err
	}
	return x.Text, nil
}
