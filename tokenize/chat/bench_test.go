package chat_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// conversation is a request with so many messages after the system message.
func conversation(messages int, more string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := range messages {
		role := []string{"user", "assistant"}[i%2]
		fmt.Fprintf(&b, `,{"role":%q,"content":"This is message %d of the conversation, \"quoted\", with a line\nand some more words in it."}`, role, i)
	}
	return b.String() + "]" + more + "}"
}

const benchTool = `,"tools":[{"type":"function","function":{"name":"get_weather","description":"Get the weather","parameters":{"type":"object",` +
	`"properties":{"location":{"type":"string","description":"City"},"unit":{"type":"string","enum":["c","f"]}},"required":["location"]}}}]`

// ns/op from the body to the text.
func BenchmarkRender(b *testing.B) {
	for _, c := range []struct{ name, template, body string }{
		{"llama3.1/messages=5", "e2e-meta-llama_Llama-3.2-11B-Vision-Instruct", conversation(4, "")},
		{"llama3.1/messages=5/tools", "e2e-meta-llama_Llama-3.2-11B-Vision-Instruct", conversation(3, benchTool)},
		{"llama3.1/turns=50", "e2e-meta-llama_Llama-3.2-11B-Vision-Instruct", conversation(99, "")},
		{"qwen3/messages=5", "qwen3", conversation(4, "")},
		{"qwen3/turns=50", "qwen3", conversation(99, "")},
	} {
		b.Run(c.name, func(b *testing.B) {
			source, err := os.ReadFile(testdata.Path(b, "the templates", "templates", c.template+".jinja"))
			if err != nil {
				b.Fatal(err)
			}
			m := newModel(b, string(source), chat.Options{})
			b.ReportAllocs()
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				r, err := chat.Parse("", []byte(c.body))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.Render(r, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{4, 99} {
		body := []byte(conversation(n, benchTool))
		b.Run(fmt.Sprintf("messages=%d", n+1), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := chat.Parse("", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// "of-memchr" is the time for a body with 20 images of 5 MB, divided by the time to find a byte in
// it (the shortest of each).
func BenchmarkParseImages(b *testing.B) {
	body := imageBody(20, 5<<20*4/3)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	parsing, looking := time.Hour, time.Hour
	for b.Loop() {
		began := time.Now()
		if _, err := chat.Parse("", body); err != nil {
			b.Fatal(err)
		}
		parsed := time.Now()
		bytes.IndexByte(body, 0)
		parsing, looking = min(parsing, parsed.Sub(began)), min(looking, time.Since(parsed))
	}
	b.ReportMetric(float64(parsing.Nanoseconds()), "ns/op")
	b.ReportMetric(float64(parsing)/float64(looking), "of-memchr")
}

// A hostile tool schema must end within 50 ms.
func BenchmarkHostile(b *testing.B) {
	m := newModel(b, hostileTemplate, chat.Options{})
	for name, schema := range hostileSchemas() {
		body := []byte(`{` + hi + `,"tools":[{"function":{"name":"f","parameters":` + schema + `}}]}`)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r, err := chat.Parse("", body); err == nil {
					_, _ = m.Render(r, nil)
				}
			}
		})
	}
}

// A chat of 100 messages as a body of each API, with the same texts. The others may take 1.2 times
// as long as OpenAI's chat.
func BenchmarkAPIs(b *testing.B) {
	var chats, turns, items strings.Builder
	for i := range 100 {
		if i > 0 {
			chats.WriteByte(',')
			turns.WriteByte(',')
			items.WriteByte(',')
		}
		text := fmt.Sprintf(`"This is message %d of the conversation, \"quoted\", with a line\nand some more words in it."`, i)
		switch id := i / 4; i % 4 {
		case 0:
			fmt.Fprintf(&chats, `{"role":"user","content":%s}`, text)
			fmt.Fprintf(&turns, `{"role":"user","content":[{"type":"text","text":%s}]}`, text)
			fmt.Fprintf(&items, `{"role":"user","content":[{"type":"input_text","text":%s}]}`, text)
		case 1:
			fmt.Fprintf(&chats, `{"role":"assistant","content":%s,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}`, text, id)
			fmt.Fprintf(&turns, `{"role":"assistant","content":[{"type":"text","text":%s},{"type":"tool_use","id":"c%d","name":"f","input":{"a":1}}]}`, text, id)
			fmt.Fprintf(&items, `{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":%s,"annotations":[]}]},`+
				`{"type":"function_call","call_id":"c%d","name":"f","arguments":"{\"a\":1}"}`, text, id)
		case 2:
			fmt.Fprintf(&chats, `{"role":"tool","tool_call_id":"c%d","content":%s}`, id, text)
			fmt.Fprintf(&turns, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%d","content":%s}]}`, id, text)
			fmt.Fprintf(&items, `{"type":"function_call_output","call_id":"c%d","output":%s}`, id, text)
		default:
			fmt.Fprintf(&chats, `{"role":"assistant","content":%s}`, text)
			fmt.Fprintf(&turns, `{"role":"assistant","content":[{"type":"text","text":%s}]}`, text)
			fmt.Fprintf(&items, `{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":%s,"annotations":[]}]}`, text)
		}
	}
	source, err := os.ReadFile(testdata.Path(b, "the templates", "templates", "qwen3.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	m := newModel(b, string(source), chat.Options{})
	text := ""
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m","messages":[` + chats.String() + `]}`},
		{"/v1/messages", `{"model":"m","max_tokens":5,"messages":[` + turns.String() + `]}`},
		{"/v1/responses", `{"model":"m","input":[` + items.String() + `]}`},
	} {
		b.Run(c.path[4:], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := chat.Parse(c.path, []byte(c.body))
				if err != nil {
					b.Fatal(err)
				}
				x, err := m.Render(r, nil)
				if err != nil {
					b.Fatal(err)
				}
				if text == "" {
					text = x.Text
				}
				if x.Text != text {
					b.Fatalf("another text of %s", c.path)
				}
			}
		})
	}
}

// BenchmarkParseIDs reads a prompt of 65,000 token ids.
func BenchmarkParseIDs(b *testing.B) {
	ids := make([]string, 65_000)
	for i := range ids {
		ids[i] = fmt.Sprint(i * 7919 % 128_000)
	}
	body := []byte(`{"model":"m","sampling_params":{},"token_ids":[` + strings.Join(ids, ",") + `]}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := chat.Parse("", body); err != nil {
			b.Fatal(err)
		}
	}
}
