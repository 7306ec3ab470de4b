package chatcheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

// checked is a template that tells all that it gets.
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

// bytesAs is a tokenizer with a token for each byte, and one more before a text.
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

// A body is a request as the fakes read it.
type body map[string]any

func (b body) messages() (list []body) {
	for _, m := range b["messages"].([]any) {
		list = append(list, m.(map[string]any))
	}
	return list
}

// texts puts what f makes of a text in its place, also in parts.
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

// each makes a fake's rule of one for messages of a role, "" for all.
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

// Fakes do otherwise in one feature each: rule changes the request before it is
// rendered.
var fakes = []struct {
	name string
	want chat.Features
	rule func(b body)
}{
	{"nothing", 0, func(body) {}},
	{"another text", chat.FeaturePlain, each("", func(m body) { m.texts(mark) })},
	{"special tokens are text", chat.FeaturePlain, each("", func(m body) {
		m.texts(func(s string) string { return strings.ReplaceAll(s, "<|", "< |") })
	})},
	{"always a generation prompt", chat.FeatureNoGenerationPrompt, func(b body) {
		if b["continue_final_message"] == nil {
			delete(b, "add_generation_prompt")
		}
	}},
	{"the final message is closed", chat.FeatureContinueFinal, func(b body) { delete(b, "continue_final_message") }},
	{"only an assistant's final message is closed", chat.FeatureContinueFinal, func(b body) {
		if list := b.messages(); list[len(list)-1]["role"] == "assistant" {
			delete(b, "continue_final_message")
		}
	}},
	{"system is joined", chat.FeatureSystem, each("system", func(m body) { m.texts(strings.TrimSpace); m["role"] = "user" })},
	{"the billing header is another", chat.FeatureBillingHeader, each("system", func(m body) {
		m.texts(func(s string) string { return strings.Replace(s, "x-anthropic-billing-header", "header", 1) })
	})},
	{"developer is kept", chat.FeatureDeveloper, each("developer", func(m body) { m["role"] = "developers" })},
	{"answers are another", chat.FeatureTurns, each("assistant", func(m body) { m.texts(mark) })},
	{"reasoning is dropped", chat.FeatureReasoning, each("assistant", func(m body) { delete(m, "reasoning"); delete(m, "reasoning_content") })},
	{"reasoning by its old name is dropped, as by /tokenize", 0, each("assistant", func(m body) { delete(m, "reasoning_content") })},
	{"tool calls are dropped", chat.FeatureToolCalls, each("assistant", func(m body) { delete(m, "tool_calls") })},
	{"answers of tools are quoted", chat.FeatureToolCalls, each("tool", func(m body) { m.texts(mark) })},
	{"null arguments are another", chat.FeatureArguments, arguments(func(s string) bool { return s == "null" })},
	{"arguments that are no object are another", chat.FeatureArguments, arguments(func(s string) bool { return s == "" || s[0] != '{' })},
	{"arguments that are no JSON are another", chat.FeatureArguments, arguments(func(s string) bool { return !json.Valid([]byte(s)) })},
	{"empty lists of tool calls are another", chat.FeatureEmptyCalls, each("assistant", func(m body) {
		if calls, ok := m["tool_calls"].([]any); ok && len(calls) == 0 {
			m.texts(mark)
		}
	})},
	{"tools are dropped", chat.FeatureTools, func(b body) { delete(b, "tools") }},
	{"tools without parameters are another", chat.FeatureTools, func(b body) {
		for _, f := range b.tools() {
			if f["parameters"] == nil {
				f["parameters"] = map[string]any{}
			}
		}
	}},
	{"tools beside calls are dropped", chat.FeatureToolCalls, func(b body) {
		if len(b.messages()) > 2 {
			delete(b, "tools")
		}
	}},
	{"unknown fields of tools are dropped", chat.FeatureToolFields, func(b body) {
		for _, f := range b.tools() {
			delete(f, "x-note")
			delete(f, "strict")
		}
	}},
	{"parts are joined otherwise", chat.FeatureParts, each("user", func(m body) {
		var texts []string
		for _, p := range m.parts() {
			s, _ := p["text"].(string)
			texts = append(texts, s)
		}
		if texts != nil {
			m["content"] = strings.Join(texts, " | ")
		}
	})},
	{"unknown fields of parts are told", chat.FeaturePartFields, each("user", func(m body) {
		for _, p := range m.parts() {
			if p["cache_control"] != nil {
				p["text"] = "cached"
			}
		}
	})},
	{"parts without text have one", chat.FeatureEmptyParts, each("user", func(m body) {
		for _, p := range m.parts() {
			if p["text"] == nil || p["text"] == "" {
				p["text"] = "none"
			}
		}
	})},
	{"strings among parts are another", chat.FeatureStringParts, each("user", func(m body) {
		if parts, ok := m["content"].([]any); ok && parts[0] == "one" {
			parts[0] = "1"
		}
	})},
	{"names are dropped", chat.FeatureNames, each("", func(m body) { delete(m, "name") })},
	{"documents are ignored", chat.FeatureDocuments, func(b body) {
		if kwargs, ok := b["chat_template_kwargs"].(map[string]any); ok {
			delete(kwargs, "documents")
		}
	}},
	{"kwargs are ignored", chat.FeatureKwargs, func(b body) {
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

// An engine answers as one that serves na"me and renders with m what rule makes of
// requests.
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
		if after, _ := json.Marshal(b); string(after) != string(before) { // else keys stay in order
			raw = after
		}
		request, err := chat.Parse(raw)
		var x *chat.Rendering
		if err == nil {
			x, err = m.RenderAnyway(request, nil)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens, _ := bytesAs{}.Encode(r.Context(), nil, x.Text, request.AddSpecial)
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

func check(t *testing.T, e chatcheck.Engine, m *chat.Model) *chatcheck.Report {
	t.Helper()
	r, err := e.Check(t.Context(), m, bytesAs{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The report names the feature that differs, and no other, whether the template
// takes content as a string or in parts.
func TestCheckNamesTheFeature(t *testing.T) {
	for _, format := range []string{"string", "openai"} {
		m := newModel(t, checked, chat.Options{ContentFormat: format})
		for _, f := range fakes {
			r := check(t, engine(t, m, f.rule), m)
			if got := r.Differs(); got != f.want {
				t.Errorf("%s, content as %s: %s differs, want %s\n%s", f.name, format, got, f.want, r)
			}
			if s := r.String(); !strings.HasPrefix(s, `na"me at http://127.0.0.1:`) || f.want != 0 && !strings.Contains(s, "what differs is "+f.want.String()) {
				t.Errorf("%s: %s", f.name, s)
			}
		}
	}
}

// What is excluded makes no difference to a check, and a check none to the model.
func TestChecksDoNotSeeEachOther(t *testing.T) {
	m := newModel(t, checked, chat.Options{})
	m.Exclude("", chat.FeatureTools|chat.FeatureParts)
	const hi = `{"messages":[{"role":"user","content":"hi"}]}`
	r, err := chat.Parse([]byte(hi))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, f := range fakes[len(fakes)-8:] {
		e := engine(t, m, f.rule)
		wg.Go(func() {
			report, err := e.Check(t.Context(), m, bytesAs{})
			if err != nil || report.Differs() != f.want {
				t.Errorf("%s: %v\n%s", f.name, err, report)
			}
			if _, err := m.Render(r, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Each feature has a conversation of nothing but it and what it implies, which a
// difference is laid to.
func TestConversations(t *testing.T) {
	implied := map[chat.Features]chat.Features{
		chat.FeatureContinueFinal: chat.FeatureNoGenerationPrompt,
		chat.FeatureBillingHeader: chat.FeatureSystem,
		chat.FeatureReasoning:     chat.FeatureTurns,
		chat.FeatureToolCalls:     chat.FeatureTurns,
		chat.FeatureArguments:     chat.FeatureTurns | chat.FeatureToolCalls,
		chat.FeatureToolFields:    chat.FeatureTools,
		chat.FeaturePartFields:    chat.FeatureParts,
		chat.FeatureEmptyParts:    chat.FeatureParts,
		chat.FeatureStringParts:   chat.FeatureParts,
		chat.FeatureEmptyCalls:    chat.FeatureTurns,
	}
	m := newModel(t, checked, chat.Options{})
	var alone, before chat.Features
	for _, c := range check(t, engine(t, m, func(body) {}), m).Conversations {
		if r, err := chat.Parse([]byte(c.Request)); err == nil && r.Features() != c.Features {
			t.Errorf("%s uses %s, not %s", c.Name, r.Features(), c.Features)
		}
		if c.Features == chat.FeaturePlain|c.Feature|implied[c.Feature] {
			alone |= c.Feature
		}
		if c.Features&c.Feature == 0 || c.Features&^c.Feature&^before != 0 {
			t.Errorf("%s: it uses %s, and %s is before it", c.Name, c.Features, before)
		}
		before |= c.Feature
	}
	if all := 2*chat.FeatureKwargs - 1; alone != all {
		t.Errorf("nothing asks for %s alone", all&^alone)
	}
}

// A report has what was asked, both sides, and where they part.
func TestReport(t *testing.T) {
	find := func(r *chatcheck.Report, name string) chatcheck.Conversation {
		t.Helper()
		for _, c := range r.Conversations {
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
		outcome            chatcheck.Outcome
		differs            chat.Features
		here, engine       string // text
		says               string
	}{
		{"equal", checked, checked, "a turn", chatcheck.Equal, 0, "<user>Hello</><assistant>", "<user>Hello</><assistant>", ""},
		{"longer", checked, checked + "x", "a turn", chatcheck.Differs, chat.FeaturePlain, "<user>Hello</><assistant>", "<user>Hello</><assistant>x",
			`token 25 is 120 in the engine and none (the end of 25) here; byte 25 begins "x" in the engine and "" here`},
		{"within a character", "é", "ê", "a turn", chatcheck.Differs, chat.FeaturePlain, "é", "ê",
			`token 1 is 170 in the engine and 169 here; byte 0 begins "ê" in the engine and "é" here`},
		{"refused here", raises, checked, "tools", chatcheck.EngineTakes, chat.FeatureTools, "", "*", "TemplateError: no tools"},
		{"refused there", checked, raises, "tools", chatcheck.EngineRefuses, chat.FeatureTools, "*", "", "in the engine 400 Bad Request: the chat template refused it: "},
		{"refused by both", raises, raises, "tools", chatcheck.BothRefuse, 0, "", "", "here the chat template"},
		{"not scorable here", "{% if tools %}{{ ('a' * 10**9) | length }}{% endif %}" + checked, checked, "tools", chatcheck.NotScorable, 0, "", "", "not scorable"},
	} {
		m := newModel(t, c.ours, chat.Options{})
		r := check(t, engine(t, newModel(t, c.theirs, chat.Options{}), func(body) {}), m)
		got := find(r, c.conversation)
		if got.Outcome != c.outcome || r.Differs() != c.differs || (got.Difference == "") != (c.says == "") || !strings.Contains(got.Difference, c.says) {
			t.Errorf("%s: %s, %s differs, %q", c.name, got.Outcome, r.Differs(), got.Difference)
		}
		for _, s := range []struct {
			side chatcheck.Side
			want string
		}{{got.Here, c.here}, {got.Engine, c.engine}} {
			if s.want == "*" && s.side.Text == "" || s.want != "*" && s.side.Text != s.want {
				t.Errorf("%s: text %q, want %q", c.name, s.side.Text, s.want)
			}
		}
		if !strings.HasPrefix(got.Request, `{"model":"na\"me","messages":[`) || !json.Valid([]byte(got.Request)) {
			t.Errorf("%s: asked %s", c.name, got.Request)
		}
		text := r.String()
		if !strings.Contains(text, got.Difference) {
			t.Errorf("%s: %s", c.name, text)
		}
		if c.differs != 0 && !strings.Contains(text, got.Request) {
			t.Errorf("%s: no request in %s", c.name, text)
		}
		raw, err := json.Marshal(r)
		var back chatcheck.Report
		if err == nil {
			err = json.Unmarshal(raw, &back)
		}
		if err != nil || !reflect.DeepEqual(&back, r) {
			t.Errorf("%s: %v, %s", c.name, err, raw)
		}
	}
}

// A report is one line if all is equal, and tells at length what shows a difference.
func TestReportPrints(t *testing.T) {
	r := &chatcheck.Report{URL: "http://h", Model: "m", Conversations: []chatcheck.Conversation{
		{Name: "turn", Feature: chat.FeaturePlain, Features: chat.FeaturePlain},
	}}
	want := "m at http://h: 1 of 1 conversations are equal, none differs"
	if got := r.String(); got != want {
		t.Error(got)
	}
	const tools, fields = chat.FeaturePlain | chat.FeatureTools, chat.FeaturePlain | chat.FeatureTools | chat.FeatureToolFields
	r.Conversations = append(r.Conversations,
		chatcheck.Conversation{Name: "t", Feature: chat.FeatureTools, Features: tools, Request: "{1}", Outcome: chatcheck.Differs, Difference: "here"},
		chatcheck.Conversation{Name: "u", Feature: chat.FeatureTools, Features: tools, Request: "{2}", Outcome: chatcheck.EngineTakes, Difference: "there"},
		chatcheck.Conversation{Name: "f", Feature: chat.FeatureToolFields, Features: fields, Request: "{3}", Outcome: chatcheck.EngineRefuses},
		chatcheck.Conversation{Name: "n", Feature: chat.FeatureNames, Features: chat.FeatureNames, Outcome: chatcheck.BothRefuse, Difference: "no"},
	)
	want = `m at http://h: 1 of 5 conversations are equal, what differs is tools
t (tools): differs: here
  asked: {1}
u (tools): engine takes: there
  asked: {2}
for that, or by more, also: f
not compared: n (names): both refuse: no`
	if got := r.String(); got != want {
		t.Error(got)
	}
	var o chatcheck.Outcome
	if err := o.UnmarshalText([]byte("boats")); err == nil || chatcheck.Outcome(99).String() != "outcome 99" {
		t.Error(err)
	}
}

// A tokenizer that differs is told as such, and so is an engine that does not tell
// texts.
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
		if got := check(t, e, m).Conversations[0].Difference; !strings.Contains(got, c.says) || strings.Contains(got, "byte") {
			t.Errorf("%s: %s", c.detokenize, got)
		}
	}
}

// What is no answer is no verdict, and says what may be wrong.
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
		{"a password without a scheme", "me:secret@host:8000", good.Model, "the address with a user's name is none"},
		{"a password in a broken address", "http://me:secret@[::1", good.Model, "the address with a user's name is none"},
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
		{"not found", status(404, `{"detail":"Not Found"}`), good.Model, `has no /tokenize: 404 Not Found: {"detail":"Not Found"}: is it the address of a vLLM server?`},
		{"SGLang", status(400, `{"object":"error","message":"[{'type': 'missing', 'loc': ('body', 'prompt')}]","code":400}`), good.Model,
			`takes no chat: 400 Bad Request: [{'type': 'missing', 'loc': ('body', 'prompt')}] (SGLang's`},
		{"an older error", status(400, `{"error": "no  chats"}`), good.Model, "takes no chat: 400 Bad Request: no chats ("},
		{"an answer for a prompt", status(200, `{"tokens":[],"count":0}`), good.Model, "answers without tokens"},
		{"not JSON", status(200, `<html>`), good.Model, `no tokens: "<html>": invalid character`},
		{"busy", status(429, ``), good.Model, "is busy: 429"},
		{"not up", status(503, ``), good.Model, "is busy: 503"},
		{"failing", status(500, `{"error":{"message":"out of\n memory"}}`), good.Model, "failed: 500 Internal Server Error: out of memory"},
		{"without a key", status(401, `{"error":"Unauthorized"}`), good.Model, "answers 401 Unauthorized"},
		{"a long answer", status(200, strings.Repeat("0", 2<<20)), good.Model, "more than 1048576 bytes"},
		{"a long error", status(404, strings.Repeat("x", 1<<19)), good.Model, "x...: is it"},
	} {
		r, err := chatcheck.Engine{URL: c.url, Model: c.model}.Check(t.Context(), m, bytesAs{})
		if (err == nil) != (c.says == "") || err == nil && (r.Differs() != 0 || strings.Contains(r.URL, "/v1")) {
			t.Errorf("%s: %v\n%s", c.name, err, r)
		}
		if err != nil && (r != nil || !strings.HasPrefix(err.Error(), "chatcheck: ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") || len(err.Error()) > 500) {
			t.Errorf("%s: %v, and a report: %t", c.name, err, r != nil)
		}
	}
	early := good // who answers before it is asked
	early.Client = &http.Client{Transport: failed{errors.New("readLoopPeekFailLocked: %!w(<nil>)")}}
	if _, err := early.Check(t.Context(), m, bytesAs{}); err == nil || !strings.Contains(err.Error(), "is no HTTP server") {
		t.Error(err)
	}
	withPassword := strings.Replace(good.URL, "http://", "http://me:secret@", 1)
	r, err := chatcheck.Engine{URL: withPassword, Model: "x"}.Check(t.Context(), m, bytesAs{})
	if r != nil || err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// An engine that goes away in the middle, is busy or hangs leaves no report; one that
// fails at a conversation leaves it out.
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
		if s := r.String(); r.Differs() != 0 || !strings.Contains(s, "not compared: tools (tools): no answer") || strings.Count(s, "no answer") != 5 {
			t.Errorf("%s: %s", c.name, s)
		}
	}
	if _, err := good.Check(t.Context(), m, failing{}); err == nil || !strings.Contains(err.Error(), "tokenizing: out of order") {
		t.Error(err)
	}
}

// failed is a transport that fails.
type failed struct{ error }

func (f failed) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

type failing struct{}

func (failing) Encode(context.Context, []uint32, string, bool) ([]uint32, error) {
	return nil, fmt.Errorf("out of order")
}
