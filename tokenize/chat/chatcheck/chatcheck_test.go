package chatcheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

// checked is a template that prints all its variables.
const checked = `{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>` +
	`{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}</>{% endfor %}` +
	`{% if tools %}{{ tools }}{% endif %}{% if documents %}{{ documents }}{% endif %}{{ enable_thinking }}{% if add_generation_prompt %}<assistant>{% endif %}`

func newModel(t *testing.T, template string, o chat.Options) *chat.Model {
	t.Helper()
	m, err := chat.New(template, map[string]string{"bos_token": "<s>", "eos_token": "</s>"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// bytesAs is a tokenizer with a token for each byte, after one special token.
type bytesAs struct{}

func (bytesAs) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if special {
		dst = append(dst, 1000)
	}
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// A body is a request as the fakes decode it.
type body map[string]any

func (b body) messages() (list []body) {
	for _, m := range b["messages"].([]any) {
		list = append(list, m.(map[string]any))
	}
	return list
}

// texts replaces each text of the content, also in parts, by f of it.
func (b body) texts(f func(string) string) {
	if s, ok := b["content"].(string); ok {
		b["content"] = f(s)
	}
	for _, p := range b.parts() {
		if s, ok := p["text"].(string); ok {
			p["text"] = f(s)
		}
	}
}

func (b body) parts() (list []body) {
	parts, _ := b["content"].([]any)
	for _, p := range parts {
		if p, ok := p.(map[string]any); ok {
			list = append(list, p)
		}
	}
	return list
}

func (b body) tools() (list []body) {
	tools, _ := b["tools"].([]any)
	for _, v := range tools {
		list = append(list, v.(map[string]any)["function"].(map[string]any))
	}
	return list
}

// each makes a rule for a body of one for the messages of a role; "" is all roles.
func each(role string, f func(m body)) func(b body) {
	return func(b body) {
		for _, m := range b.messages() {
			if role == "" || m["role"] == role {
				f(m)
			}
		}
	}
}

func mark(s string) string { return s + "!" }

// Each fake differs in one feature: its rule changes the request before it is rendered.
var fakes = []struct {
	name string
	want string // the feature that differs
	rule func(b body)
}{
	{"nothing", "", func(body) {}},
	{"another text", "plain", each("", func(m body) { m.texts(mark) })},
	{"special tokens are text", "plain", each("", func(m body) {
		m.texts(func(s string) string { return strings.ReplaceAll(s, "<|", "< |") })
	})},
	{"always a generation prompt", "no_generation_prompt", func(b body) {
		if b["continue_final_message"] == nil {
			delete(b, "add_generation_prompt")
		}
	}},
	{"the final message is closed", "continue_final", func(b body) { delete(b, "continue_final_message") }},
	{"only an assistant's final message is closed", "continue_final", func(b body) {
		if list := b.messages(); list[len(list)-1]["role"] == "assistant" {
			delete(b, "continue_final_message")
		}
	}},
	{"system is joined", "system", each("system", func(m body) { m.texts(strings.TrimSpace); m["role"] = "user" })},
	{"the billing header is another", "billing_header", each("system", func(m body) {
		m.texts(func(s string) string { return strings.Replace(s, "x-anthropic-billing-header", "header", 1) })
	})},
	{"developer is kept", "developer", each("developer", func(m body) { m["role"] = "developers" })},
	{"answers are another", "turns", each("assistant", func(m body) { m.texts(mark) })},
	{"reasoning is dropped", "reasoning", each("assistant", func(m body) { delete(m, "reasoning"); delete(m, "reasoning_content") })},
	{"reasoning by its old name is dropped, as by /tokenize", "", each("assistant", func(m body) { delete(m, "reasoning_content") })},
	{"tool calls are dropped", "tool_calls", each("assistant", func(m body) { delete(m, "tool_calls") })},
	{"answers of tools are quoted", "tool_calls", each("tool", func(m body) { m.texts(mark) })},
	{"null arguments are another", "arguments", arguments(func(s string) bool { return s == "null" })},
	{"arguments that are no object are another", "arguments", arguments(func(s string) bool { return s == "" || s[0] != '{' })},
	{"arguments that are no JSON are another", "arguments", arguments(func(s string) bool { return !json.Valid([]byte(s)) })},
	{"empty lists of tool calls are another", "empty_calls", each("assistant", func(m body) {
		if calls, ok := m["tool_calls"].([]any); ok && len(calls) == 0 {
			m.texts(mark)
		}
	})},
	{"tools are dropped", "tools", func(b body) { delete(b, "tools") }},
	{"tools without parameters are another", "tools", func(b body) {
		for _, f := range b.tools() {
			if f["parameters"] == nil {
				f["parameters"] = map[string]any{}
			}
		}
	}},
	{"tools beside calls are dropped", "tool_calls", func(b body) {
		if len(b.messages()) > 2 {
			delete(b, "tools")
		}
	}},
	{"unknown fields of tools are dropped", "tool_fields", func(b body) {
		for _, f := range b.tools() {
			delete(f, "x-note")
			delete(f, "strict")
		}
	}},
	{"parts are joined otherwise", "parts", each("user", func(m body) {
		var texts []string
		for _, p := range m.parts() {
			s, _ := p["text"].(string)
			texts = append(texts, s)
		}
		if texts != nil {
			m["content"] = strings.Join(texts, " | ")
		}
	})},
	{"unknown fields of parts are told", "part_fields", each("user", func(m body) {
		for _, p := range m.parts() {
			if p["cache_control"] != nil {
				p["text"] = "cached"
			}
		}
	})},
	{"parts without text have one", "empty_parts", each("user", func(m body) {
		for _, p := range m.parts() {
			if p["text"] == nil || p["text"] == "" {
				p["text"] = "none"
			}
		}
	})},
	{"strings among parts are another", "string_parts", each("user", func(m body) {
		if parts, ok := m["content"].([]any); ok && parts[0] == "one" {
			parts[0] = "1"
		}
	})},
	{"names are dropped", "names", each("", func(m body) { delete(m, "name") })},
	{"documents are ignored", "documents", func(b body) {
		if kwargs, ok := b["chat_template_kwargs"].(map[string]any); ok {
			delete(kwargs, "documents")
		}
	}},
	{"kwargs are ignored", "kwargs", func(b body) {
		if kwargs, ok := b["chat_template_kwargs"].(map[string]any); ok {
			delete(kwargs, "enable_thinking")
		}
	}},
}

func arguments(other func(string) bool) func(b body) {
	return each("assistant", func(m body) {
		calls, _ := m["tool_calls"].([]any)
		for _, c := range calls {
			f := c.(map[string]any)["function"].(map[string]any)
			if other(f["arguments"].(string)) {
				f["arguments"] = `{"other": 1}`
			}
		}
	})
}

// engine is an engine that serves na"me and renders requests with m, changed by rule.
func engine(t *testing.T, m *chat.Model, rule func(b body)) chatcheck.Engine {
	t.Helper()
	return serve(t, answers(m, rule).ServeHTTP)
}

func answers(m *chat.Model, rule func(b body)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var b body
		if err := json.Unmarshal(raw, &b); err != nil || b["model"] != `na"me` {
			noModel(w, r)
			return
		}
		before, _ := json.Marshal(b)
		rule(b)
		if after, _ := json.Marshal(b); string(after) != string(before) { // else the keys keep their order
			raw = after
		}
		prompt, err := chat.Parse("", raw)
		var x *chat.Rendering
		if err == nil {
			x, err = m.RenderAnyway(prompt, nil)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens, _ := bytesAs{}.Encode(r.Context(), nil, x.Text, prompt.AddSpecial)
		json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "max_model_len": 99, "tokens": tokens})
	})
	mux.HandleFunc("POST /detokenize", func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Model  string
			Tokens []uint32
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Model != `na"me` {
			noModel(w, r)
			return
		}
		var text []byte
		for _, id := range asked.Tokens {
			text = append(text, byte(id))
		}
		json.NewEncoder(w).Encode(map[string]any{"prompt": string(text)})
	})
	return mux
}

// rendering is like answers, and also renders bodies of other APIs.
func rendering(m *chat.Model) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", answers(m, func(body) {}))
	for _, path := range []string{"/v1/messages", "/v1/responses"} {
		mux.HandleFunc("POST "+path+"/render", func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			prompt, err := chat.Parse(path, raw)
			var x *chat.Rendering
			if err == nil {
				x, err = m.RenderAnyway(prompt, nil)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			tokens, _ := bytesAs{}.Encode(r.Context(), nil, x.Text, prompt.AddSpecial)
			json.NewEncoder(w).Encode(map[string]any{"request_id": "r", "token_ids": tokens})
		})
	}
	return mux
}

func serve(t *testing.T, handler http.HandlerFunc) chatcheck.Engine {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return chatcheck.Engine{URL: s.URL, Model: `na"me`}
}

func noModel(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"error":{"message":"The model `+"`m`"+` does not exist.","type":"NotFoundError","param":"model","code":404}}`)
}

// differing returns the features that differ.
func differing(r chatcheck.Report) string { return strings.Join(r.Differs(), ",") }

func check(t *testing.T, e chatcheck.Engine, m *chat.Model) chatcheck.Report {
	t.Helper()
	r, err := e.Check(t.Context(), m, bytesAs{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The report names exactly the feature that differs, for content as a string and in parts.
func TestCheckNamesTheFeature(t *testing.T) {
	for _, format := range []string{"string", "openai"} {
		m := newModel(t, checked, chat.Options{ContentFormat: format})
		for _, f := range fakes {
			r := check(t, engine(t, m, f.rule), m)
			if got := differing(r); got != f.want {
				t.Errorf("%s, content as %s: %q differs, want %q\n%s", f.name, format, got, f.want, r)
			}
			if s := r.String(); f.want != "" && !strings.Contains(s, "these features differ: "+f.want+"\n") {
				t.Errorf("%s: %s", f.name, s)
			}
		}
	}
}

// Exclusions do not affect a check, nor a check the model.
func TestChecksDoNotSeeEachOther(t *testing.T) {
	m := newModel(t, checked, chat.Options{})
	m.Exclude("", "tools", "parts")
	const hi = `{"messages":[{"role":"user","content":"hi"}]}`
	r, err := chat.Parse("", []byte(hi))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, f := range fakes[len(fakes)-8:] {
		e := engine(t, m, f.rule)
		wg.Go(func() {
			report, err := e.Check(t.Context(), m, bytesAs{})
			if err != nil || differing(report) != f.want {
				t.Errorf("%s: %v\n%s", f.name, err, report)
			}
			if _, err := m.Render(r, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Bodies of other APIs are compared if the engine renders them.
func TestCheckOfOtherAPIs(t *testing.T) {
	keeps := newModel(t, checked, chat.Options{InlineSystem: "preserve"})
	folds := newModel(t, checked, chat.Options{InlineSystem: "fold"})
	e := serve(t, rendering(keeps).ServeHTTP)
	if r := check(t, e, keeps); differing(r) != "" || len(r) != 40 {
		t.Error(r)
	}
	if r := check(t, e, folds); differing(r) != "messages" {
		t.Error(r)
	}
	if r := check(t, engine(t, keeps, func(body) {}), folds); differing(r) != "" || len(r) != 34 {
		t.Error(r)
	}
}

// SGLang accepts chats at /v1/tokenize. If /tokenize rejects them or does not exist, the report is
// the same, with texts from /v1/detokenize.
func TestCheckOfSGLang(t *testing.T) {
	m, other := newModel(t, checked, chat.Options{}), newModel(t, checked+"x", chat.Options{})
	for _, status := range []int{http.StatusNotFound, http.StatusBadRequest} {
		of := func(m *chat.Model) chatcheck.Engine {
			return serve(t, func(w http.ResponseWriter, r *http.Request) {
				path, ok := strings.CutPrefix(r.URL.Path, "/v1")
				if !ok {
					http.Error(w, `{"message":"'prompt' is required"}`, status)
					return
				}
				raw, _ := io.ReadAll(r.Body)
				if path == "/detokenize" {
					if !strings.Contains(string(raw), `"skip_special_tokens":false`) {
						t.Errorf("detokenized by %s", raw)
					}
					fmt.Fprint(w, `{"text":"boats"}`)
					return
				}
				r.URL.Path, r.Body = path, io.NopCloser(bytes.NewReader(raw))
				answers(m, func(body) {}).ServeHTTP(w, r)
			})
		}
		if r := check(t, of(m), m); differing(r) != "" || len(r) != 34 {
			t.Errorf("%d: %s", status, r)
		}
		if r := check(t, of(other), m); differing(r) != "plain" || !strings.Contains(r.String(), `begins "boats" in the engine`) {
			t.Errorf("%d: %s", status, r)
		}
	}
}

// Each feature has a conversation that uses only it and the features it implies, so that a
// difference can be attributed to it.
func TestConversations(t *testing.T) {
	implied := map[string]string{
		"continue_final": "no_generation_prompt",
		"billing_header": "system",
		"reasoning":      "turns",
		"tool_calls":     "turns",
		"arguments":      "turns,tool_calls",
		"tool_fields":    "tools",
		"part_fields":    "parts",
		"empty_parts":    "parts",
		"string_parts":   "parts",
		"empty_calls":    "turns",
	}
	m := newModel(t, checked, chat.Options{InlineSystem: "preserve"})
	all := allFeatures(t)
	m.Exclude("pod", all...)
	var before []string
	alone := map[string]bool{}
	for _, c := range check(t, serve(t, rendering(m).ServeHTTP), m) {
		uses := slices.Sorted(slices.Values(c.Features))
		path := map[string]string{"messages": "/v1/messages", "responses": "/v1/responses"}[c.Feature]
		if r, err := chat.Parse(path, []byte(c.Request)); err == nil && !slices.Equal(used(m, r), uses) {
			t.Errorf("%s uses %s, not %s", c.Name, used(m, r), uses)
		}
		lone := []string{"plain"}
		if c.Feature != "plain" {
			lone = append(lone, c.Feature)
		}
		if more := implied[c.Feature]; more != "" {
			lone = append(lone, strings.Split(more, ",")...)
		}
		if slices.Sort(lone); slices.Equal(uses, lone) {
			alone[c.Feature] = true
		}
		if !slices.Contains(uses, c.Feature) || slices.ContainsFunc(uses, func(f string) bool { return f != c.Feature && !slices.Contains(before, f) }) {
			t.Errorf("%s: it uses %s, and %s is before it", c.Name, uses, before)
		}
		before = append(before, c.Feature)
	}
	for _, f := range all {
		if !alone[f] {
			t.Errorf("no conversation uses %s alone", f)
		}
	}
}

// used returns the features of a chat, sorted. m excludes all features for one pod.
func used(m *chat.Model, p *chat.Prompt) []string {
	x, err := m.Render(p, nil)
	if err != nil {
		return nil
	}
	for pod := range x.Excluded() {
		return slices.Sorted(strings.SplitSeq(x.ExcludedFor(pod), ","))
	}
	return nil
}

// allFeatures returns all features, from an error of Exclude.
func allFeatures(t *testing.T) []string {
	t.Helper()
	_, names, ok := strings.Cut(fmt.Sprint(newModel(t, "", chat.Options{}).Exclude("", "boats")), "they are ")
	if all := strings.Split(names, ", "); ok && len(all) == 22 {
		return all
	}
	t.Fatalf("the features are %s", names)
	return nil
}

// The comment of Conversation.Outcome lists exactly the outcomes.
func TestOutcomesAreDocumented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "report.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Names != nil && n.Names[0].Name == "Outcome" {
				for _, row := range regexp.MustCompile(`(?m)^\t(\w+( \w+)*)`).FindAllStringSubmatch(n.Doc.Text(), -1) {
					listed = append(listed, strconv.Quote(row[1]))
				}
			}
		case *ast.GenDecl:
			for _, spec := range n.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && n.Tok == token.CONST {
					there = append(there, v.Values[0].(*ast.BasicLit).Value)
				}
			}
		}
		return true
	})
	if len(there) != 7 || !slices.Equal(listed, there) {
		t.Errorf("listed are %v, there are %v", listed, there)
	}
}

// A report has the request, both sides, and the first difference.
func TestReport(t *testing.T) {
	find := func(r chatcheck.Report, name string) chatcheck.Conversation {
		t.Helper()
		for _, c := range r {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no conversation %q", name)
		return chatcheck.Conversation{}
	}
	raises := checked + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
	for _, c := range []struct {
		name, ours, theirs string
		conversation       string
		outcome            string
		differs            string
		here, engine       string // text
		says               string
	}{
		{"equal", checked, checked, "a turn", "equal", "", "<user>Hello</><assistant>", "<user>Hello</><assistant>", ""},
		{"longer", checked, checked + "x", "a turn", "differs", "plain", "<user>Hello</><assistant>", "<user>Hello</><assistant>x",
			`token 25 is 120 in the engine and none (the end of 25) here; byte 25 begins "x" in the engine and "" here`},
		{"within a character", "é", "ê", "a turn", "differs", "plain", "é", "ê",
			`token 1 is 170 in the engine and 169 here; byte 0 begins "ê" in the engine and "é" here`},
		{"refused here", raises, checked, "tools", "engine takes", "tools", "", "*", "TemplateError: no tools"},
		{"refused there", checked, raises, "tools", "engine refuses", "tools", "*", "", "in the engine 400 Bad Request: the chat template refused it: "},
		{"refused by both", raises, raises, "tools", "both refuse", "", "", "", "here the chat template"},
		{"not scorable here", "{% if tools %}{{ ('a' * 1000000000) | length }}{% endif %}" + checked, checked, "tools", "not scorable here", "", "", "", "not scorable"},
	} {
		m := newModel(t, c.ours, chat.Options{})
		r := check(t, engine(t, newModel(t, c.theirs, chat.Options{}), func(body) {}), m)
		got := find(r, c.conversation)
		if got.Outcome != c.outcome || differing(r) != c.differs || (got.Difference == "") != (c.says == "") || !strings.Contains(got.Difference, c.says) {
			t.Errorf("%s: %s, %s differs, %q", c.name, got.Outcome, differing(r), got.Difference)
		}
		here, engine := got.Sides()
		for _, s := range []struct {
			side chatcheck.Side
			want string
		}{{here, c.here}, {engine, c.engine}} {
			if s.want == "*" && s.side.Text == "" || s.want != "*" && s.side.Text != s.want {
				t.Errorf("%s: text %q, want %q", c.name, s.side.Text, s.want)
			}
		}
		if !strings.HasPrefix(got.Request, `{"model":"na\"me","messages":[`) || !json.Valid([]byte(got.Request)) {
			t.Errorf("%s: request %s", c.name, got.Request)
		}
		text := r.String()
		if !strings.Contains(text, got.Difference) {
			t.Errorf("%s: %s", c.name, text)
		}
		if c.differs != "" && !strings.Contains(text, got.Request) {
			t.Errorf("%s: no request in %s", c.name, text)
		}
		raw, err := json.Marshal(r)
		var back chatcheck.Report
		if err == nil {
			err = json.Unmarshal(raw, &back)
		}
		again, _ := json.Marshal(&back)
		if err != nil || back.String() != text || string(again) != string(raw) {
			t.Errorf("%s: %v, %.500s", c.name, err, raw)
		}
	}
}

// A report is one line if all is equal. Otherwise it lists the differences.
func TestReportPrints(t *testing.T) {
	r := chatcheck.Report{{Name: "turn", Feature: "plain", Features: []string{"plain"}, Outcome: "equal"}}
	want := "1 of 1 conversations are equal, none differs"
	if got := r.String(); got != want {
		t.Error(got)
	}
	tools, fields := []string{"plain", "tools"}, []string{"plain", "tool_fields", "tools"}
	r = append(r,
		chatcheck.Conversation{Name: "t", Feature: "tools", Features: tools, Request: "{1}", Outcome: "differs", Difference: "here"},
		chatcheck.Conversation{Name: "u", Feature: "tools", Features: tools, Request: "{2}", Outcome: "engine takes", Difference: "there"},
		chatcheck.Conversation{Name: "f", Feature: "tool_fields", Features: fields, Request: "{3}", Outcome: "engine refuses"},
		chatcheck.Conversation{Name: "n", Feature: "names", Features: []string{"names"}, Outcome: "both refuse", Difference: "no"},
	)
	want = `1 of 5 conversations are equal, these features differ: tools
t (tools): differs: here
  request: {1}
u (tools): engine takes: there
  request: {2}
by the same features, also: f
not compared: n (names): both refuse: no`
	if got := r.String(); got != want {
		t.Error(got)
	}
}

// A difference of the tokenizers is reported as one. Without texts the report compares the tokens.
func TestCheckTokenizers(t *testing.T) {
	m := newModel(t, "{{ messages }}", chat.Options{})
	for _, c := range []struct{ detokenize, says string }{
		{`{"prompt":"TEXT"}`, "the texts are equal, so the tokenizers differ"},
		{`{}`, "token 0 is 5 in the engine and 91 here"},
		{`x`, "token 0 is 5 in the engine and 91 here"},
	} {
		e := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/tokenize" {
				fmt.Fprint(w, `{"tokens":[5]}`)
				return
			}
			fmt.Fprint(w, strings.ReplaceAll(c.detokenize, "TEXT", `[{'role': 'user', 'content': 'Hello'}]`))
		})
		if got := check(t, e, m)[0].Difference; !strings.Contains(got, c.says) || strings.Contains(got, "byte") {
			t.Errorf("%s: %s", c.detokenize, got)
		}
	}
}

// An invalid answer is an error that names possible causes.
func TestCheckErrors(t *testing.T) {
	m := newModel(t, checked, chat.Options{})
	status := func(code int, text string) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); fmt.Fprint(w, text) }).URL
	}
	good := engine(t, m, func(body) {})
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL\r\n\r\n")
			c.Close()
		}
	}()
	host := strings.TrimPrefix(good.URL, "http://")
	for _, c := range []struct{ name, url, model, says string }{
		{"with /v1", good.URL + "/v1", good.Model, ""},
		{"with /v1/", good.URL + "/v1/", good.Model, ""},
		{"with a slash", good.URL + "/", good.Model, ""},
		{"without a scheme", host, good.Model, `no scheme: is it http://` + host},
		{"without a scheme, a name", "localhost:8000", good.Model, `no scheme: is it http://localhost:8000`},
		{"no address", "", good.Model, "no scheme"},
		{"another scheme", "tcp://" + host, good.Model, `"tcp://` + host + `" is not that of an HTTP server`},
		{"a password without a scheme", "me:secret@host:8000", good.Model, "the address has a user name and is not valid"},
		{"a password in a broken address", "http://me:secret@[::1", good.Model, "the address has a user name and is not valid"},
		{"sent on", serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, good.URL+r.URL.Path, http.StatusFound)
		}).URL, good.Model,
			"answers 405 Method Not Allowed of " + good.URL + "/tokenize"},
		{"no host", "http:///x", good.Model, "not that of an HTTP server"},
		{"broken", "http://[::1", good.Model, "the address: "},
		{"TLS", "https://" + host, good.Model, "HTTP response to HTTPS client"},
		{"no model", good.URL, "", "the model's name is empty"},
		{"another model", good.URL, "llama", `does not serve model "llama": 404 Not Found: The model ` + "`m`" + ` does not exist.`},
		{"a closed port", closed.URL, good.Model, "connection refused"},
		{"a port that is no HTTP", "http://" + listener.Addr().String(), good.Model, "is no HTTP server"},
		{"not found", status(404, `{"detail":"Not Found"}`), good.Model, `has no /tokenize (no such path): 404 Not Found: {"detail":"Not Found"}: is it the address of a vLLM or SGLang server?`},
		{"SGLang", status(400, `{"object":"error","message":"[{'type': 'missing', 'loc': ('body', 'prompt')}]","code":400}`), good.Model,
			`takes no chat: 400 Bad Request: [{'type': 'missing', 'loc': ('body', 'prompt')}] (SGLang takes none before`},
		{"an older error", status(400, `{"error": "no  chats"}`), good.Model, "takes no chat: 400 Bad Request: no chats ("},
		{"an answer for a prompt", status(200, `{"tokens":[],"count":0}`), good.Model, "answers without tokens"},
		{"not JSON", status(200, `<html>`), good.Model, `other than tokens: "<html>": invalid character`},
		{"busy", status(429, ``), good.Model, "is busy: 429"},
		{"not up", status(503, ``), good.Model, "is busy: 503"},
		{"failing", status(500, `{"error":{"message":"out of\n memory"}}`), good.Model, "failed: 500 Internal Server Error: out of memory"},
		{"without a key", status(401, `{"error":"Unauthorized"}`), good.Model, "answers 401 Unauthorized"},
		{"a long answer", status(200, strings.Repeat("0", 2<<20)), good.Model, "more than 1048576 bytes"},
		{"a proxy", status(404, "<title>model gateway</title>"), good.Model, "has no /tokenize (no such path): 404 Not Found: <title>model gateway</title>"},
		{"a long error", status(404, strings.Repeat("x", 1<<19)), good.Model, "x...: is it"},
	} {
		r, err := chatcheck.Engine{URL: c.url, Model: c.model}.Check(t.Context(), m, bytesAs{})
		if (err == nil) != (c.says == "") || err == nil && r.Differs() != nil {
			t.Errorf("%s: %v\n%s", c.name, err, r)
		}
		if err != nil && (r != nil || !strings.HasPrefix(err.Error(), "chatcheck: ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") || len(err.Error()) > 500) {
			t.Errorf("%s: %v, and a report: %t", c.name, err, r != nil)
		}
	}
	early := good // answers before the request
	early.Client = &http.Client{Transport: failingTransport{errors.New("readLoopPeekFailLocked: %!w(<nil>)")}}
	if _, err := early.Check(t.Context(), m, bytesAs{}); err == nil || !strings.Contains(err.Error(), "is no HTTP server") {
		t.Error(err)
	}
	withPassword := strings.Replace(good.URL, "http://", "http://me:secret@", 1)
	r, err := chatcheck.Engine{URL: withPassword, Model: "x"}.Check(t.Context(), m, bytesAs{})
	if r != nil || err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// An engine that disconnects, is busy or hangs causes an error without a report. A failed
// conversation is left out of the report.
func TestCheckWithoutAnAnswer(t *testing.T) {
	m := newModel(t, checked, chat.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	good := engine(t, m, func(body) {})
	for _, c := range []struct {
		name    string
		with    func(w http.ResponseWriter, r *http.Request)
		reports bool
		says    string
	}{
		{"away", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "EOF"},
		{"busy", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, false, "busy"},
		{"not up", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, false, "busy"},
		{"failing", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, true, "failed: 500"},
		{"hanging", func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }, false, "context canceled"},
	} {
		e := serve(t, func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			if strings.Contains(string(raw), `"tools"`) {
				c.with(w, r)
				return
			}
			response, err := http.Post(good.URL+r.URL.Path, "application/json", strings.NewReader(string(raw)))
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			w.WriteHeader(response.StatusCode)
			io.Copy(w, response.Body)
		})
		r, err := e.Check(ctx, m, bytesAs{})
		if err == nil || (r != nil) != c.reports || !strings.Contains(err.Error(), "chatcheck: tools: ") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", c.name, r, err)
		}
		if r == nil {
			continue
		}
		if s := r.String(); r.Differs() != nil || !strings.Contains(s, "not compared: tools (tools): no answer") || strings.Count(s, "no answer") != 5 {
			t.Errorf("%s: %s", c.name, s)
		}
	}
	if _, err := good.Check(t.Context(), m, failingTokenizer{}); err == nil || !strings.Contains(err.Error(), "tokenizing: out of order") {
		t.Error(err)
	}
}

// failingTransport is a transport that fails.
type failingTransport struct{ error }

func (f failingTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

type failingTokenizer struct{}

func (failingTokenizer) Encode(context.Context, []uint32, string, bool) ([]uint32, error) {
	return nil, fmt.Errorf("out of order")
}
