package chat_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

var recordBodies = flag.String("record", "", "write the bodies of the tests of programs to files of this folder, a line each")

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// odds are texts that are easily misread.
var odds = []string{
	"", " ", "\n", "  \n", "Hello, world!", "Don't stop", "日本語のテキスト", "a <|end|> b", "<|start|>system<|message|>", "x<|channel|>final",
	"<|reserved_200014|>", "<|", "|>", "<|call", "<| end|>", "<<|end|>>", " <|return|> ", "é\u0301", "\tcode\r\n", "1234567", "  spaces  ",
	"<|END|>", "<|end|><|end|>", "x\n\n", "\n\ny", "'s", "naïve's", "🙂🙂", "/path/to", ".\n/", "<|message|>\n", "ſ", "<|fim_prefix|>",
}

func oddText(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(3) {
		b.WriteString(odds[r.IntN(len(odds))])
	}
	return b.String()
}

// oddSchema returns a random JSON schema, often an invalid one.
func oddSchema(r *rand.Rand, depth int) map[string]any {
	s := map[string]any{}
	kind := pick[any](r, "object", "object", "string", "number", "integer", "boolean", "array", "null", []any{"integer", "null"}, []any{}, nil, 5)
	if kind != nil {
		s["type"] = kind
	}
	with := func(n int, name string, v func() any) {
		if r.IntN(n) == 0 {
			s[name] = v()
		}
	}
	text := func() any { return pick(r, "A city", "two\nlines", "null", `"quoted"`, "日本", "<|end|>", "") }
	with(3, "description", text)
	with(5, "title", text)
	with(6, "nullable", func() any { return pick[any](r, true, false, "true") })
	with(4, "default", func() any {
		return pick[any](r, "x", 5, -1, 0.25, true, nil, []any{1, "a\n"}, map[string]any{"k": "\u0001\"\\é"}, 1e-7, 123456.789, int64(12345678901), "")
	})
	with(5, "enum", func() any { return pick(r, []any{"a", "b"}, []any{1, "c"}, []any{}, []any{1}) })
	with(6, "examples", func() any { return pick(r, []any{"e1", 2, "e2"}, []any{}, []any{3}) })
	if depth == 0 {
		return s
	}
	with(4, "oneOf", func() any {
		list := []any{}
		for range r.IntN(4) {
			list = append(list, oddSchema(r, depth-1))
		}
		return pick[any](r, list, list, list, "none")
	})
	if kind == "array" {
		with(2, "items", func() any { return oddSchema(r, depth-1) })
	}
	if kind == "object" {
		properties := map[string]any{}
		for _, name := range []string{"alpha", "beta", "γ", "d e"} {
			if r.IntN(2) == 0 {
				properties[name] = oddSchema(r, depth-1)
			}
		}
		s["properties"] = properties
		with(2, "required", func() any { return []any{"alpha", 1, "γ"} })
	}
	return s
}

// oddChat returns the body of a chat with tools, reasoning and odd texts.
func oddChat(r *rand.Rand) []byte {
	body := map[string]any{}
	var messages []any
	calls := 0
	for i := range 1 + r.IntN(8) {
		role := pick(r, "user", "user", "assistant", "assistant", "tool", "system", "developer")
		if i == 0 && r.IntN(2) == 0 {
			role = pick(r, "system", "developer")
		}
		m := map[string]any{"role": role, "content": oddText(r)}
		switch role {
		case "user":
			if r.IntN(4) == 0 {
				parts := []any{}
				for range r.IntN(4) {
					parts = append(parts, map[string]any{"type": "text", "text": oddText(r)})
				}
				m["content"] = parts
			}
		case "assistant":
			if r.IntN(2) == 0 {
				m[pick(r, "reasoning", "reasoning_content")] = pick(r, oddText(r), "")
			}
			if r.IntN(2) == 0 {
				list := []any{}
				for range 1 + r.IntN(2) {
					calls++
					arguments := pick(r, "{}", `{"a": 1,"b":"<|call|>"}`, "", "not JSON", "[]", `{"a":"`+strings.Repeat("x", r.IntN(9))+`"}`)
					list = append(list, map[string]any{"id": fmt.Sprint("c", calls%3), "type": "function",
						"function": map[string]any{"name": pick(r, "f", "get_weather", "odd name ", "x<|end|>"), "arguments": arguments}})
				}
				m["tool_calls"] = list
				if r.IntN(2) == 0 {
					m["content"] = pick[any](r, nil, "")
				}
			}
		case "tool":
			m["tool_call_id"] = fmt.Sprint("c", r.IntN(4))
		}
		messages = append(messages, m)
	}
	body["messages"] = messages
	if effort := pick(r, "", "", "low", "medium", "high"); effort != "" {
		body["reasoning_effort"] = effort
	}
	if r.IntN(2) == 0 {
		var tools []any
		for i := range 1 + r.IntN(3) {
			f := map[string]any{"name": fmt.Sprint(pick(r, "f", "get_weather", "日"), i)}
			if r.IntN(3) > 0 {
				f["description"] = pick(r, "Gets it", "one\ntwo\r\n\nthree\r", "", "\n")
			}
			if r.IntN(4) > 0 {
				f["parameters"] = pick(r, oddSchema(r, 3), oddSchema(r, 3), map[string]any{})
			}
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

// agentChat returns the body of a chat in which most tools answer their calls.
func agentChat(r *rand.Rand) []byte {
	body := map[string]any{}
	var messages []any
	add := func(role string, more map[string]any) {
		m := map[string]any{"role": role, "content": oddText(r)}
		for name, v := range more {
			m[name] = v
		}
		messages = append(messages, m)
	}
	if r.IntN(2) == 0 {
		add(pick(r, "system", "system", "developer"), nil)
	}
	for range 1 + r.IntN(4) {
		switch r.IntN(12) {
		case 0:
			add("system", nil)
		case 1:
			add("developer", nil)
		case 2:
			add("user", map[string]any{"content": []any{map[string]any{"type": "text", "text": oddText(r)}, map[string]any{"type": "text", "text": "x"}}})
		default:
			add("user", nil)
		}
		if r.IntN(5) == 0 {
			continue
		}
		more := map[string]any{}
		if r.IntN(3) > 0 {
			more[pick(r, "reasoning", "reasoning_content")] = pick(r, "I think.", oddText(r), "")
		}
		n := 0
		if r.IntN(2) == 0 {
			n = 1 + r.IntN(3)
			var calls []any
			for i := range n {
				arguments := pick(r, "{}", "", `{"a": 1,"b":"x\ny"}`, `{"l":[1, 2.5,"é"],"o":{"k":null},"t":true,"f":1e5}`, `{"日":"","z":"{\"a\"}"}`)
				calls = append(calls, map[string]any{"id": fmt.Sprint("c", i), "type": "function",
					"function": map[string]any{"name": pick(r, "f", "get_weather"), "arguments": arguments}})
			}
			more["tool_calls"] = calls
			more["content"] = pick[any](r, nil, "", oddText(r))
		}
		add("assistant", more)
		if r.IntN(20) == 0 {
			n += r.IntN(3) - 1
		}
		for i := range n {
			add("tool", map[string]any{"tool_call_id": fmt.Sprint("c", i)})
		}
	}
	body["messages"] = messages
	if r.IntN(2) == 0 {
		body["chat_template_kwargs"] = map[string]any{pick(r, "thinking", "enable_thinking"): r.IntN(4) > 0}
	}
	if effort := pick(r, "", "", "", "none", "high"); effort != "" {
		body["reasoning_effort"] = effort
	}
	if r.IntN(2) == 0 {
		f := map[string]any{"name": "f"}
		if r.IntN(2) == 0 {
			f["description"], f["parameters"] = "one\ntwo é", oddSchema(r, 2)
		}
		body["tools"] = []any{map[string]any{"type": "function", "function": f}}
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return b
}

func loadHarmony(tb testing.TB, o chat.Options) *chat.Model {
	tb.Helper()
	m, err := chat.Load(folder(tb, map[string]string{"config.json": `{"model_type":"gpt_oss"}`}), o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// gptOSS is the tokenizer of gpt-oss: that of o200k with harmony's special tokens.
func gptOSS(tb testing.TB) tokenize.Tokenizer {
	tb.Helper()
	source, err := io.ReadAll(testdata.Open(tb, testdata.Path(tb, "the tokenizer of o200k", "tokens", "o200k", "tokenizer.json.gz")))
	if err != nil {
		tb.Fatal(err)
	}
	var added []string
	for i, name := range strings.Fields("startoftext endoftext reserved_200000 reserved_200001 return constrain reserved_200004 channel start end message " +
		"reserved_200009 reserved_200010 reserved_200011 call reserved_200013 reserved_200014 reserved_200015 reserved_200016 reserved_200017 endofprompt") {
		added = append(added, fmt.Sprintf(`{"id":%d,"content":"<|%s|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, 199998+i, name))
	}
	vocab := strings.Replace(string(source), ",\n      \"<|endoftext|>\": 199999,\n      \"<|endofprompt|>\": 200018", "", 1)
	head, rest, _ := strings.Cut(vocab, `"added_tokens": [`)
	_, rest, ok := strings.Cut(rest, "\n  ],")
	if !ok {
		tb.Fatal("the file has no added_tokens")
	}
	dir := folder(tb, map[string]string{"tokenizer.json": head + `"added_tokens": [` + strings.Join(added, ",") + "]," + rest})
	t, err := tokenize.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// idsOf encodes a rendering as an Indexer does.
func idsOf(tb testing.TB, t tokenize.Tokenizer, x *chat.Rendering) []uint32 {
	tb.Helper()
	ids, err := x.Encode(context.Background(), nil, t)
	if err != nil {
		tb.Fatal(err)
	}
	return ids
}

// golden returns the lines of a file of testdata, one for each body, or skips the test after
// -record has written the bodies.
func golden(tb testing.TB, name string, bodies [][]byte) []string {
	tb.Helper()
	if *recordBodies != "" {
		all := append(bytes.Join(bodies, []byte("\n")), '\n')
		if err := os.WriteFile(filepath.Join(*recordBodies, name), all, 0o600); err != nil {
			tb.Fatal(err)
		}
		tb.SkipNow()
	}
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != len(bodies) {
		tb.Fatalf("%d lines for %d bodies", len(lines), len(bodies))
	}
	return lines
}

func digest(b []byte, bytes int) string {
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%x", sum[:bytes])
}

func digestOfIDs(ids []uint32) string {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return digest(b, 8)
}

// harmony's files have, for each body, the number and digests of ids and text of openai-harmony
// (the crate, as npm's 0.4.0), for the messages that vLLM's harmony_utils.py and serving code made
// of it. "refused" is an error of pydantic.
func TestHarmony(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 4))
	bodies := make([][]byte, 2000)
	for i := range bodies {
		bodies[i] = oddChat(r)
	}
	var tokenizer tokenize.Tokenizer
	if os.Getenv("KVINDEX_TESTDATA") != "" {
		tokenizer = gptOSS(t)
	} else {
		t.Log("without KVINDEX_TESTDATA only texts are compared, not ids")
	}
	for _, c := range []struct {
		file    string
		bodies  [][]byte
		engines []string
	}{
		{"harmony.txt", bodies, []string{"main", "0.23"}},
		{"harmony_022.txt", bodies[:500], []string{"0.14", "0.22"}},
		{"harmony_021.txt", bodies[:500], []string{"0.16", "0.21"}},
	} {
		want := golden(t, c.file, c.bodies)
		for _, engine := range c.engines {
			m := loadHarmony(t, chat.Options{StartDate: "2026-02-03", Engine: engine})
			for i, body := range c.bodies {
				if !tried(i) {
					continue
				}
				checkHarmony(t, m, engine, body, want[i], tokenizer)
			}
			tokenizer = nil // ids are compared once
		}
	}
}

func checkHarmony(t *testing.T, m *chat.Model, engine string, body []byte, want string, tokenizer tokenize.Tokenizer) {
	t.Helper()
	prompt, err := chat.Parse("", body)
	var x *chat.Rendering
	if err == nil {
		x, err = m.Render(prompt, nil)
	}
	if err != nil {
		silent := strings.Contains(err.Error(), "].function.description: ")
		if errors.Is(err, chat.ErrMalformed) && want == "refused" || engine == "0.23" && silent && errors.Is(err, chat.ErrNotScorable) {
			return
		}
		t.Fatalf("%s: %s: %v", engine, body, err)
	}
	wanted := strings.Fields(want)
	got := digest([]byte(x.Text), 8)
	if want == "refused" || got != wanted[2] || tokenizer != nil && digestOfIDs(idsOf(t, tokenizer, x)) != wanted[1] {
		t.Fatalf("%s: %s: %q, whole %v, want %s", engine, body, x.Text, x.Whole(), want)
	}
}

func TestHarmonyText(t *testing.T) {
	m := loadHarmony(t, chat.Options{StartDate: "2026-02-03"})
	body := `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"u"},
		{"role":"assistant","content":"I look.","reasoning":"Hm.","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
		{"role":"tool","tool_call_id":"1","content":"r"},{"role":"developer","content":"d"}],
		"reasoning_effort":"high",` + benchTool[1:] + `}`
	const want = `<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: 2026-02-03

Reasoning: high

# Valid channels: analysis, commentary, final. Channel must be included for every message.
Calls to these tools must go to the commentary channel: 'functions'.<|end|><|start|>developer<|message|># Instructions

Be brief.

# Tools

## functions

namespace functions {

// Get the weather
type get_weather = (_: {
// City
location: string,
unit?: "c" | "f",
}) => any;

} // namespace functions<|end|><|start|>user<|message|>u<|end|>` +
		`<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>` +
		`<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>` +
		`<|start|>functions.f to=assistant<|channel|>commentary<|message|>r<|end|>` +
		`<|start|>developer<|message|># Instructions

d<|end|><|start|>assistant`
	if x, err := m.Render(parse(t, body), nil); err != nil || x.Text != want || !x.Whole() {
		t.Errorf("%s, %v, want %s", text(x), err, want)
	}
}

func TestHarmonyDate(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 3, 4, 23, 59, 0, 0, time.FixedZone("", -9*3600)) }
	for _, c := range []struct {
		o    chat.Options
		want string
	}{
		{chat.Options{Now: now}, "2026-03-04"},
		{chat.Options{Now: now, StartDate: "2025-01-01"}, "2025-01-01"},
		{chat.Options{StartDate: "2025-01-01", Engine: "0.24"}, "2025-01-01"},
		{chat.Options{}, time.Now().Format(time.DateOnly)},
	} {
		x, err := loadHarmony(t, c.o).Render(parse(t, `{`+hi+`}`), nil)
		if err != nil || !strings.Contains(x.Text, "\nCurrent date: "+c.want+"\n") {
			t.Errorf("%+v: %q, %v", c.o, text(x), err)
		}
	}
}

func TestHarmonyRefuses(t *testing.T) {
	m := loadHarmony(t, chat.Options{})
	const user = `{"messages":[{"role":"user","content":"x"}]`
	for _, c := range []struct {
		body string
		want error
		text string
	}{
		{user + `,"reasoning_effort":"none"}`, chat.ErrMalformed, "reasoning_effort: "},
		{user + `,"reasoning_effort":"max"}`, chat.ErrMalformed, "reasoning_effort: "},
		{user + `,"add_special_tokens":true}`, chat.ErrNotScorable, "add_special_tokens: "},
		{user + `,"tools":[]}`, chat.ErrMalformed, "tools: empty"},
		{user + `,"tools":[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"default":1e400}}}}}]}`, chat.ErrNotScorable, "tools: "},
		{user + `,"tools":[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"default":0.12345678901234567}}}}}]}`, chat.ErrNotScorable, "tools: "},
		{user + `,"tools":[{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"default":123456789012345678901}}}}}]}`, chat.ErrNotScorable, "tools: "},
		{`{"messages":[{"role":"system","content":[{"type":"text","text":"x"}]}]}`, chat.ErrNotScorable, "messages[0].content: "},
		{`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"text","text":"x"}]}]}`, chat.ErrNotScorable, "messages[1].content: "},
		{`{"messages":[{"role":"user","content":["x"]}]}`, chat.ErrNotScorable, "messages[0].content[0]: "},
		{`{"messages":[{"role":"user","content":[{"type":"refusal","refusal":"x"}]}]}`, chat.ErrNotScorable, "messages[0].content[0]: "},
		{`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, chat.ErrNotScorable, "media"},
		{`{"messages":[{"role":"function","content":"x"}]}`, chat.ErrMalformed, "messages[0].role: "},
	} {
		_, err := m.Render(parse(t, c.body), nil)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.body, err)
		}
	}
	if _, err := m.Render(parse(t, `{`+hi+`}`), []chat.Media{{Hash: "h", Length: 1}}); !errors.Is(err, chat.ErrNotScorable) {
		t.Errorf("media that are none's: %v", err)
	}
	for token, ok := range map[string]bool{"<|end|>": true, "<|reserved_200014|>": true, "[PAD]": false, "<|end|>x": false, "<||>": false, "<|1|>": false} {
		files := map[string]string{"config.json": `{"model_type":"gpt_oss"}`, "tokenizer_config.json": `{"added_tokens_decoder":{"200000":{"content":"` + token + `"}}}`}
		if _, err := chat.Load(folder(t, files), chat.Options{}); (err == nil) != ok || err != nil && !errors.Is(err, chat.ErrUnsupported) {
			t.Errorf("a tokenizer with %s: %v", token, err)
		}
	}
	for _, o := range []chat.Options{{Engine: "0.13.0"}, {TokenizerMode: "slow"}} {
		if _, err := chat.Load(folder(t, map[string]string{"config.json": `{"model_type":"gpt_oss"}`}), o); !errors.Is(err, chat.ErrUnsupported) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A chat shares its text up to the last answer with the turn before, which still has its reasoning.
func TestHarmonyShared(t *testing.T) {
	m := loadHarmony(t, chat.Options{StartDate: "2026-02-03"})
	x, err := m.Render(parse(t, `{"messages":[{"role":"user","content":"a"},{"role":"assistant","reasoning":"r","content":"b"},{"role":"user","content":"c"}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := x.Shared()
	if err != nil || !strings.HasSuffix(x.Text[:n], "<|start|>user<|message|>a<|end|><|start|>assistant") {
		t.Errorf("%q, %v", x.Text[:n], err)
	}
	if strings.Contains(x.Text, "analysis<|message|>r") {
		t.Errorf("earlier reasoning: %q", x.Text)
	}
}

// ns/op to render a chat of 100 messages from a parsed body.
func BenchmarkHarmony(b *testing.B) {
	m := loadHarmony(b, chat.Options{})
	r, err := chat.Parse("", []byte(conversation(99, benchTool)))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Render(r, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func loadV32(tb testing.TB, o chat.Options) *chat.Model {
	tb.Helper()
	m, err := chat.Load(folder(tb, map[string]string{"config.json": `{"architectures":["DeepseekV32ForCausalLM"],"model_type":"deepseek_v32"}`}), o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// The files have digests of the texts of DeepSeek's own program, as vLLM calls it
// (tokenizers/deepseek_v32.py), with arguments of tool calls as objects. "refused" is a failed
// assertion. Before 0.22 neither reasoning_content nor the effort has an effect.
func TestDeepSeekV32(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 5))
	bodies := make([][]byte, 5000)
	for i := range bodies {
		bodies[i] = agentChat(r)
	}
	for _, c := range []struct {
		file, engine string
		bodies       [][]byte
	}{
		{"deepseek_v32.txt", "0.28.1", bodies},
		{"deepseek_v32_021.txt", "0.21", bodies[:1000]},
		{"deepseek_v32_021.txt", "0.18", bodies[:1000]},
	} {
		want := golden(t, c.file, c.bodies)
		m := loadV32(t, chat.Options{Engine: c.engine})
		for i, body := range c.bodies {
			if !tried(i) {
				continue
			}
			x, err := m.Render(parse(t, string(body)), nil)
			got := digest([]byte(text(x)), 6)
			if errors.Is(err, chat.ErrTemplate) {
				got = "refused"
			}
			if got != want[i] {
				t.Fatalf("%s: %d: %s: %q, %v", c.engine, i, body, text(x), err)
			}
		}
	}
}

func TestDeepSeekV32Refuses(t *testing.T) {
	m := loadV32(t, chat.Options{})
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"x"},{"role":"system","content":"x"}]` + benchTool + `}`,
		`{` + hi + `,"chat_template":"x"}`, `{` + hi + `,"add_generation_prompt":false}`,
		`{"messages":[{"role":"tool","content":"x"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
	} {
		if _, err := m.Render(parse(t, body), nil); !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s: %v", body, err)
		}
	}
	files := map[string]string{"config.json": `{"architectures":["DeepseekV32ForCausalLM"]}`, "tokenizer_config.json": `{"chat_template":"x"}`}
	if _, err := chat.Load(folder(t, files), chat.Options{Engine: "0.17"}); !errors.Is(err, chat.ErrUnsupported) {
		t.Errorf("an older engine: %v", err)
	}
	for mode, want := range map[string]string{"hf": "x", "deepseek_v32": "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>"} {
		m, err := chat.Load(folder(t, map[string]string{"tokenizer_config.json": `{"chat_template":"x"}`}), chat.Options{TokenizerMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		if x, err := m.Render(parse(t, `{`+hi+`}`), nil); err != nil || x.Text != want {
			t.Errorf("%s: %q, %v", mode, text(x), err)
		}
	}
}
