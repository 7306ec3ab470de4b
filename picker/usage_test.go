package picker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unsafe"

	"github.com/kvindex/kvindex"
)

// quoted is a model's text that quotes usage in many ways, escaped for a JSON string.
const quoted = `{\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":6}}} \\\\\" \\ \u0022usage\u0022: \ud83d\ude00 ünï\n\ndata: {\"usage\": null}`

// answers has answers of engines, with 1234 prompt tokens and 1024 cached tokens unless a field says otherwise.
var answers = []struct {
	name, body string
	want       kvindex.Usage
	reason     string // in the error; empty: no error
}{
	{"vLLM chat", `{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"llama-3","choices":[{"index":0,"message":{"role":"assistant","content":"` + quoted + `","refusal":null,"tool_calls":[]},"logprobs":null,"finish_reason":"stop"}],"service_tier":null,"usage":{"prompt_tokens":1234,"total_tokens":1300,"completion_tokens":66,"prompt_tokens_details":{"cached_tokens":1024,"created_cache_tokens":210,"multimodal_tokens":{"image":17}}},"prompt_logprobs":null,"kv_transfer_params":null}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM chat, spaces", "{\r\n  \"id\": \"chatcmpl-1\",\r\n  \"choices\": [ ],\r\n  \"usage\": {\r\n    \"prompt_tokens\": 1234 ,\r\n    \"completion_tokens\" : 66,\r\n    \"prompt_tokens_details\": { \"cached_tokens\": 1024 } }\r\n}\r\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM chat, tool call", `{"usage":{"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1024},"prompt_tokens":1234},"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"bill","arguments":"` + quoted + `","parsed":{"usage":{"prompt_tokens":7,"error":{"a":[]}}}}}]},"usage":{"prompt_tokens":8}}],"error":null}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM chat without the flag", `{"choices":[],"usage":{"prompt_tokens":1234,"total_tokens":1300,"completion_tokens":66,"prompt_tokens_details":null}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: -1}, "--enable-prompt-tokens-details"},
	{"vLLM chat, nothing cached", `{"choices":[],"usage":{"prompt_tokens":1234,"prompt_tokens_details":{"cached_tokens":0}}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 0}, ""},
	{"vLLM completions", `{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"` + quoted + `"}],"usage":{"prompt_tokens":1234,"total_tokens":1300,"completion_tokens":66,"prompt_tokens_details":{"cached_tokens":1024}}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM stream", "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"" + quoted + "\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1234,\"total_tokens\":1300,\"prompt_tokens_details\":{\"cached_tokens\":1024}}}\n\ndata: [DONE]\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM stream, CRLF, no blank", ": keep-alive\r\n\r\nid: 7\r\nretry: 10\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"" + quoted + "\"}}]}\r\n\r\ndata:{\"choices\":[],\"usage\":{\"prompt_tokens\":1234,\"prompt_tokens_details\":{\"cached_tokens\":1024}}}\r\n\r\ndata:[DONE]\r\n\r\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM stream, usage in each chunk", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":1234,\"total_tokens\":1235,\"completion_tokens\":1}}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":{\"prompt_tokens\":1234,\"total_tokens\":1236,\"completion_tokens\":2}}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1234,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":1024}}}\n\ndata: [DONE]\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM stream without usage", "data: {\"choices\":[{\"delta\":{\"content\":\"" + quoted + "\"}}]}\n\ndata: [DONE]\n\n", kvindex.Usage{PromptTokens: -1, CachedTokens: -1}, "stream_options"},
	{"event of several lines, without end", "event: message\ndata: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":1234\ndata: ,\"prompt_tokens_details\":\ndata:\ndata: {\"cached_tokens\":1024}}\ndata: }", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"OpenAI responses", `{"id":"resp_1","object":"response","error":null,"output":[{"type":"message","content":[{"type":"output_text","text":"` + quoted + `"}]}],"usage":{"input_tokens":1234,"input_tokens_details":{"cached_tokens":1024,"input_tokens_per_turn":[1234],"cached_tokens_per_turn":[1024]},"output_tokens":66,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1300}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"OpenAI responses stream", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"output\":[],\"usage\":null}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"" + quoted + "\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"error\":null,\"usage\":{\"input_tokens\":1234,\"input_tokens_details\":{\"cached_tokens\":1024},\"output_tokens\":66}}}\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"Anthropic", `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"` + quoted + `"},{"type":"tool_use","id":"t","name":"bill","input":{"usage":{"input_tokens":7}}}],"stop_reason":"end_turn","usage":{"input_tokens":200,"output_tokens":66,"cache_creation_input_tokens":10,"cache_read_input_tokens":1024,"cache_creation":{"ephemeral_5m_input_tokens":10}}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"Anthropic stream", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"content\":[],\"usage\":{\"input_tokens\":210,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":1024,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"" + quoted + "\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":66}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM Anthropic stream", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"c\",\"content\":[],\"model\":\"m\",\"usage\":{\"input_tokens\":1234,\"output_tokens\":0}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":210,\"output_tokens\":66,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":1024}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM Anthropic without the flag", `{"id":"c","type":"message","content":[],"usage":{"input_tokens":1234,"output_tokens":66}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: -1}, "--enable-prompt-tokens-details"},
	{"SGLang Anthropic stream", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"input_tokens\":210,\"cache_read_input_tokens\":1024,\"output_tokens\":66}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"SGLang chat without the flag", `{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":1234,"total_tokens":1300,"completion_tokens":66,"prompt_tokens_details":null,"reasoning_tokens":0},"metadata":{"weight_version":"default"}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: -1}, "--enable-cache-report"},
	{"SGLang chat", `{"id":"1","choices":[],"usage":{"prompt_tokens":1234,"prompt_tokens_details":{"cached_tokens":1024},"reasoning_tokens":0},"metadata":{"usage":{"prompt_tokens":7}}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM generate", `{"request_id":"generate-tokens-1","choices":[{"index":0,"logprobs":null,"finish_reason":"length","token_ids":[9906,1917],"routed_experts":null}],"usage":{"prompt_tokens":1234,"total_tokens":1236,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1024}},"prompt_logprobs":null,"kv_transfer_params":null}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"vLLM generate stream", "data: {\"request_id\":\"1\",\"choices\":[{\"index\":0,\"token_ids\":[9906]}]}\n\ndata: {\"request_id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":1234,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1024}}}\n\ndata: [DONE]\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"SGLang generate", `{"text":"` + quoted + `","output_ids":[1,2],"meta_info":{"id":"1","finish_reason":{"type":"stop","matched":128009},"prompt_tokens":1234,"weight_version":"default","total_retractions":0,"completion_tokens":66,"cached_tokens":1024,"cached_tokens_details":{"device":1000,"host":24},"e2e_latency":1.5e-1}}`, kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
	{"SGLang generate stream", "data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":1234,\"completion_tokens\":1,\"cached_tokens\":1024}}\n\ndata: {\"text\":\"ab\",\"meta_info\":{\"prompt_tokens\":1234,\"completion_tokens\":2,\"cached_tokens\":1024}}\n\ndata: [DONE]\n\n", kvindex.Usage{PromptTokens: 1234, CachedTokens: 1024}, ""},
}

// marked has answers with a byte order mark, and lists.
var marked = []struct {
	body   string
	want   kvindex.Usage
	reason string
}{
	{"\ufeff{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}", kvindex.Usage{PromptTokens: 9, CachedTokens: 4}, ""},
	{"\ufeffdata: {\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n", kvindex.Usage{PromptTokens: 9, CachedTokens: 4}, ""},
	{`[{"text":"a","meta_info":{"prompt_tokens":9,"cached_tokens":8}},{"text":"b","meta_info":{"prompt_tokens":9,"cached_tokens":8}}]`, unknownUsage, "no JSON object"},
}

func TestUsageOfMarked(t *testing.T) {
	for _, a := range marked {
		for _, r := range []io.Reader{strings.NewReader(a.body), iotest.OneByteReader(strings.NewReader(a.body))} {
			u, err := readAll(t, nil, r, []byte(a.body))
			if u != a.want || (err == nil) != (a.reason == "") || err != nil && !strings.Contains(err.Error(), a.reason) {
				t.Errorf("%q: %+v, %v", a.body, u, err)
			}
		}
	}
}

const eventStream = "text/event-stream; charset=utf-8"

// readAll reads an answer through a UsageReader.
func readAll(t testing.TB, h http.Header, body io.Reader, want []byte) (kvindex.Usage, error) {
	t.Helper()
	u := UsageOf(h, body)
	if got, _ := io.ReadAll(u); !bytes.Equal(got, want) {
		t.Fatalf("read %q, want %q", got, want)
	}
	return u.Usage()
}

func TestUsageOf(t *testing.T) {
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			body := []byte(a.body)
			check := func(way string, r io.Reader) {
				t.Helper()
				u, err := readAll(t, nil, r, body)
				if u != a.want || (err == nil) != (a.reason == "") {
					t.Fatalf("%s: %+v, %v; want %+v", way, u, err, a.want)
				}
				if err != nil && (!errors.Is(err, ErrNoUsage) || !strings.Contains(err.Error(), a.reason)) {
					t.Fatalf("%s: error %v, want %q", way, err, a.reason)
				}
			}
			if u := reference(t, a.body); u != a.want {
				t.Fatalf("encoding/json finds %+v, want %+v", u, a.want)
			}
			check("whole", bytes.NewReader(body))
			check("byte by byte", iotest.OneByteReader(bytes.NewReader(body)))
			check("EOF with data", iotest.DataErrReader(bytes.NewReader(body)))
			for i := range body {
				check(fmt.Sprint("split at ", i), io.MultiReader(bytes.NewReader(body[:i]), bytes.NewReader(body[i:])))
				checkCut(t, body[:i], a.want)
			}
		})
	}
}

// checkCut checks that a part of an answer has no wrong figure, and that an error of the body is
// an error of Usage.
func checkCut(t *testing.T, part []byte, want kvindex.Usage) {
	t.Helper()
	broken := errors.New("connection reset")
	for _, end := range []error{io.EOF, broken} {
		u, err := readAll(t, nil, io.MultiReader(bytes.NewReader(part), iotest.ErrReader(end)), part)
		if u.PromptTokens != -1 && u.PromptTokens != want.PromptTokens || u.CachedTokens != -1 && u.CachedTokens != want.CachedTokens {
			t.Fatalf("%q: %+v, want %+v or less", part, u, want)
		}
		if end == broken && (!errors.Is(err, broken) || !errors.Is(err, ErrNoUsage)) {
			t.Fatalf("%q: error %v", part, err)
		}
		if err == nil && (u.PromptTokens < 0 || u.CachedTokens < 0) {
			t.Fatalf("%q: no error", part)
		}
	}
}

// reference reads the usage of an answer with encoding/json.
func reference(t *testing.T, body string) kvindex.Usage {
	t.Helper()
	docs := []string{body}
	if body[0] != '{' {
		docs = nil
		for event := range strings.SplitSeq(strings.ReplaceAll(body, "\r\n", "\n"), "\n\n") {
			var data []string
			for line := range strings.SplitSeq(event, "\n") {
				if d, ok := strings.CutPrefix(line, "data:"); ok {
					data = append(data, d)
				}
			}
			docs = append(docs, strings.Join(data, "\n"))
		}
	}
	type usage struct {
		Prompt  *int `json:"prompt_tokens"`
		Input   *int `json:"input_tokens"`
		Read    *int `json:"cache_read_input_tokens"`
		Created *int `json:"cache_creation_input_tokens"`
		Cached  *int `json:"cached_tokens"`
		Details struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Details2 struct {
			Cached *int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	var last usage
	for _, doc := range docs {
		var a struct {
			Usage    json.RawMessage
			Message  struct{ Usage json.RawMessage }
			Response struct{ Usage json.RawMessage }
			Meta     json.RawMessage `json:"meta_info"`
		}
		if !strings.HasPrefix(strings.TrimSpace(doc), "{") {
			continue
		}
		if err := json.Unmarshal([]byte(doc), &a); err != nil {
			t.Fatalf("%q: %v", doc, err)
		}
		for _, raw := range []json.RawMessage{a.Usage, a.Message.Usage, a.Response.Usage, a.Meta} {
			if len(raw) > 0 {
				if err := json.Unmarshal(raw, &last); err != nil { // figures that raw does not name stay
					t.Fatalf("%q: %v", raw, err)
				}
			}
		}
	}
	u := kvindex.Usage{PromptTokens: -1, CachedTokens: -1}
	if last.Input != nil {
		u.PromptTokens = 0
		for _, n := range []*int{last.Input, last.Read, last.Created} {
			if n != nil {
				u.PromptTokens += *n
			}
		}
	}
	if last.Prompt != nil {
		u.PromptTokens = *last.Prompt
	}
	for _, n := range []*int{last.Cached, last.Details.Cached, last.Details2.Cached, last.Read} {
		if n != nil {
			u.CachedTokens = *n
		}
	}
	return u
}

// TestUsageErrors: the error has the reason why there is no figure.
func TestUsageErrors(t *testing.T) {
	usage := func(fields string) string { return `{"usage":{` + fields + `}}` }
	none := kvindex.Usage{PromptTokens: -1, CachedTokens: -1}
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Add(pairs[i], pairs[i+1])
		}
		return h
	}
	good := usage(`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}`)
	for _, c := range []struct {
		name   string
		header http.Header
		body   string
		want   kvindex.Usage
		reason string
	}{
		{"gzip", header("Content-Encoding", "gzip"), "\x1f\x8b\x08", none, "the answer is gzip-encoded: drop Accept-Encoding"},
		{"two encodings", header("Content-Encoding", "br", "Content-Encoding", "zstd"), "x", none, "br, zstd-encoded"},
		{"identity", header("Content-Encoding", "identity"), good, kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, ""},
		{"empty", nil, "", none, "is empty"},
		{"blank", nil, " \r\n", none, "is empty"},
		{"HTML", header("Content-Type", "text/html"), "<html>\"usage\"</html>", none, `no JSON object (Content-Type "text/html")`},
		{"text", nil, "default backend - 404", none, "no JSON object"},
		{"array", nil, "[" + good + "]", none, "no JSON object"},
		{"number", nil, "12", none, "no JSON object"},
		{"stream of nothing", header("Content-Type", eventStream), "data: [DONE]\n\n", none, "no JSON object"},
		{"fields before data", header("Content-Type", eventStream), "x: 1\ndata: " + good, kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, ""},
		{"JSON for a stream", header("Content-Type", eventStream), good, kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, ""},
		{"error", nil, `{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}`, none, "error of the engine"},
		{"error in a stream", nil, "data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n", none, "error of the engine"},
		{"Anthropic error", nil, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"no\"}}\n\n", none, "error of the engine"},
		{"no usage", nil, `{"object":"list"}`, none, "the answer has no usage"},
		{"null usage", nil, `{"usage":null}`, none, "the answer has no usage"},
		{"usage in an array", nil, `{"usage":[{"prompt_tokens":9}]}`, none, "the answer has no usage"},
		{"cut", nil, good[:len(good)-1], kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, "cut off"},
		{"cut stream", nil, "data: " + good[:20], none, "cut off"},
		{"no message_delta", nil, "data: {\"message\":{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":0}}}\n\n", none, "message_delta"},
		{"event without end", nil, "data: {\"a\":\n\ndata: " + good + "\n\n", kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, "malformed"},
		{"no comma", nil, `{"a":1 "usage":{"prompt_tokens":9}}`, none, "malformed"},
		{"no value", nil, `{"a":,"usage":{"prompt_tokens":9}}`, none, "malformed"},
		{"more than an object", nil, good + "x", kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, "malformed"},
		{"long key", nil, usage(strings.Repeat(`"`+strings.Repeat("k", 100)+`":{"a":"\""},`, 3000) + `"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}`), kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, ""},
		{"nesting", nil, `{"a":` + strings.Repeat(`[{"usage":`, 50000) + "1" + strings.Repeat("}]", 50000) + "," + good[1:], kvindex.Usage{PromptTokens: 9, CachedTokens: 8}, ""},
		{"no prompt", nil, usage(`"prompt_tokens_details":{"cached_tokens":8}`), kvindex.Usage{PromptTokens: -1, CachedTokens: 8}, "no prompt_tokens"},
		{"fraction", nil, usage(`"prompt_tokens":9.0`), none, "not an integer"},
		{"exponent", nil, usage(`"prompt_tokens":9e1`), none, "not an integer"},
		{"negative", nil, usage(`"prompt_tokens":-9`), none, "not an integer"},
		{"leading zero", nil, usage(`"prompt_tokens":09`), none, "not an integer"},
		{"string", nil, usage(`"prompt_tokens":"9"`), none, "not an integer"},
		{"object", nil, usage(`"prompt_tokens":{"prompt_tokens":9}`), none, "not an integer"},
		{"largest", nil, usage(`"prompt_tokens":2147483647,"cache_read_input_tokens":2147483647`), kvindex.Usage{PromptTokens: 1<<31 - 1, CachedTokens: 1<<31 - 1}, ""},
		{"too large", nil, usage(`"prompt_tokens":2147483648`), none, "not an integer"},
		{"far too large", nil, usage(`"prompt_tokens":` + strings.Repeat("9", 100)), none, "not an integer"},
		{"sum too large", nil, usage(`"input_tokens":2147483647,"cache_read_input_tokens":1`), kvindex.Usage{PromptTokens: -1, CachedTokens: 1}, "not an integer"},
		{"wrong term", nil, usage(`"input_tokens":9,"cache_read_input_tokens":-1`), none, "not an integer"},
		{"wrong cached", nil, usage(`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":true}`), kvindex.Usage{PromptTokens: 9, CachedTokens: -1}, "cached tokens are not an integer"},
		{"more cached than prompt", nil, usage(`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":10}`), kvindex.Usage{PromptTokens: 9, CachedTokens: -1}, "exceed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := readAll(t, c.header, strings.NewReader(c.body), []byte(c.body))
			if u != c.want || (err == nil) != (c.reason == "") {
				t.Fatalf("%+v, %v; want %+v", u, err, c.want)
			}
			if err != nil && (!errors.Is(err, ErrNoUsage) || !strings.Contains(err.Error(), c.reason)) {
				t.Fatalf("error %q, want %q", err, c.reason)
			}
		})
	}
	if u, err := readAll(t, nil, nil, nil); u != none || err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("nil body: %+v, %v", u, err)
	}
}

// TestUsageBeforeTheEnd: Usage returns the figures before the body has ended.
func TestUsageBeforeTheEnd(t *testing.T) {
	body := `{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}},"choices":[]}`
	u := UsageOf(nil, strings.NewReader(body))
	for _, n := range []int64{0, 75} {
		want := kvindex.Usage{PromptTokens: -1, CachedTokens: -1}
		if n > 0 {
			want = kvindex.Usage{PromptTokens: 9, CachedTokens: 8}
		}
		u = UsageOf(nil, strings.NewReader(body))
		io.CopyN(io.Discard, u, n)
		if got, err := u.Usage(); got != want || err == nil || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("after %d bytes: %+v, %v; want %+v", n, got, err, want)
		}
	}
	io.CopyN(io.Discard, u, int64(len(body))-75)
	if got, err := u.Usage(); got != (kvindex.Usage{PromptTokens: 9, CachedTokens: 8}) || err != nil {
		t.Errorf("whole JSON before the end of the body: %+v, %v", got, err)
	}
}

// chunks is a body that returns one chunk for each Read.
type chunks struct {
	all  [][]byte
	next int
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.next == len(c.all) {
		return 0, io.EOF
	}
	c.next++
	return copy(p, c.all[c.next-1]), nil
}

// longStream is a stream of 2000 chunks, usage in the last one.
func longStream() (c *chunks) {
	c = new(chunks)
	for i := range 2000 {
		c.all = append(c.all, fmt.Appendf(nil, "data: {\"id\":\"chatcmpl-8f2c7a6f4e9d4b0f9d53\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"llama-3\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word %d\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n", i))
	}
	c.all = append(c.all, []byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n"))
	return c
}

func TestUsageMemory(t *testing.T) {
	if size := unsafe.Sizeof(UsageReader{}); size > 1024 {
		t.Errorf("a UsageReader takes %d bytes", size)
	}
	c, p := longStream(), make([]byte, 4096)
	u := UsageOf(nil, c)
	if n := testing.AllocsPerRun(1000, func() { u.Read(p) }); n != 0 {
		t.Errorf("%v allocations for each Read", n)
	}
	io.Copy(io.Discard, u)
	if got, err := u.Usage(); err != nil || got.PromptTokens != 9 || got.CachedTokens != 8 {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzUsageOf reads any bytes in parts of any size, and an answer that is cut at each byte.
func FuzzUsageOf(f *testing.F) {
	for i, a := range answers {
		f.Add([]byte(a.body), uint8(i), uint16(1000), uint16(1024), "\"usage\": {\"prompt_tokens\": 7}\\")
	}
	f.Fuzz(func(t *testing.T, body []byte, size uint8, more, cached uint16, text string) {
		var parts chunks
		for part := range slices.Chunk(body, int(size)+1) {
			parts.all = append(parts.all, part)
		}
		u := UsageOf(nil, &parts)
		for _, want := range parts.all {
			p := make([]byte, len(want)+1)
			if n, err := u.Read(p); err != nil || !bytes.Equal(p[:n], want) {
				t.Fatalf("read %q, %v; want %q", p[:n], err, want)
			}
		}
		if n, err := u.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Fatalf("%d, %v at the end", n, err)
		}
		got, err := u.Usage()
		if min(got.PromptTokens, got.CachedTokens) < -1 || err == nil && min(got.PromptTokens, got.CachedTokens) < 0 ||
			got.PromptTokens >= 0 && got.CachedTokens > got.PromptTokens {
			t.Fatalf("%+v, %v", got, err)
		}
		if whole, other := readAll(t, nil, bytes.NewReader(body), body); whole != got || fmt.Sprint(err) != fmt.Sprint(other) {
			t.Fatalf("in parts %+v, %v; whole %+v, %v", got, err, whole, other)
		}

		quoted, _ := json.Marshal(text[:min(len(text), 200)])
		prompt := int(more) + int(cached)
		openAI := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, prompt, cached)
		answer := []string{
			fmt.Sprintf(`{"choices":[{"text":%s}],%s}`, quoted, openAI),
			fmt.Sprintf("data: {\"choices\":[{\"text\":%s}],\"usage\":{\"prompt_tokens\":%d}}\n\ndata: {%s}\n\n", quoted, prompt, openAI),
			fmt.Sprintf("data: {\"message\":{\"usage\":{\"input_tokens\":0}}}\n\ndata: {\"delta\":%s}\n\ndata: {\"usage\":{\"input_tokens\":%d,\"cache_read_input_tokens\":%d}}\n\n", quoted, more, cached),
			fmt.Sprintf(`{"text":%s,"meta_info":{"prompt_tokens":%d,"cached_tokens":%d}}`, quoted, prompt, cached),
		}[size%4]
		want := kvindex.Usage{PromptTokens: prompt, CachedTokens: int(cached)}
		if got, err := readAll(t, nil, strings.NewReader(answer), []byte(answer)); got != want || err != nil {
			t.Fatalf("%q: %+v, %v; want %+v", answer, got, err, want)
		}
		for i := range answer {
			checkCut(t, []byte(answer[:i]), want)
		}
	})
}

func BenchmarkUsageOf(b *testing.B) {
	stream := longStream()
	streamBytes := bytes.Join(stream.all, nil)
	whole := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("A sentence of an answer.\\n", 10000) + `"}}],"usage":{"prompt_tokens":9}}`)
	buf := make([]byte, 32<<10)
	sink := struct{ io.Writer }{io.Discard}
	for _, c := range []struct {
		name string
		size int
		body func() io.Reader
	}{
		{"chunks", len(streamBytes), func() io.Reader { stream.next = 0; return stream }},
		{"stream", len(streamBytes), func() io.Reader { return struct{ io.Reader }{bytes.NewReader(streamBytes)} }},
		{"whole", len(whole), func() io.Reader { return struct{ io.Reader }{bytes.NewReader(whole)} }},
	} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"copy":  func(r io.Reader) io.Reader { return r },
			"usage": func(r io.Reader) io.Reader { return UsageOf(nil, r) },
		} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					io.CopyBuffer(sink, wrap(c.body()), buf)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.size), "ns/byte")
			})
		}
	}
}
