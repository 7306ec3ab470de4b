package chat_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	ofMessages  = ": of Anthropic's Messages API, whose bodies are read if the path names it"
	ofResponses = ": of OpenAI's Responses API, whose bodies are read if the path names it"
)

// The path decides the API of a body, whatever it looks like.
func TestParseWithAPath(t *testing.T) {
	const both = `{"messages":[{"role":"user","content":"hi"}],"prompt":"a","system":"s","stop_sequences":[]}`
	for _, path := range []string{
		"/v1/chat/completions", "/openai/deployments/m/chat/completions?api-version=1", "https://host/v1/chat/completions/", "/v1/chat/completions#x",
	} {
		if r, err := chat.Parse(path, []byte(both)); err != nil || !r.Chat() || r.AddSpecial {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	for _, path := range []string{"/v1/completions", "/proxy/v1/completions?x=/v1/messages"} {
		if r, err := chat.Parse(path, []byte(both)); err != nil || r.Chat() || r.Text != "a" || !r.AddSpecial {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	for _, path := range []string{"", "/my/route", "/invocations"} { // the body decides
		if r, err := chat.Parse(path, []byte(`{`+hi+`}`)); err != nil || !r.Chat() {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"prompt":"a"}`, "malformed: messages: empty"},
		{"/v1/completions", `{` + hi + `}`, "malformed: prompt: missing"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"tool_result"}]}]}`, `malformed: messages[0].content[0].type: unknown: "tool_result"`},
		{"/v1/chat/completions", `{`, "malformed: not JSON: no key at byte 1"},
		{"/my/route", both, "not scorable: system" + ofMessages},
		{"/v1/messages", `{"model":"m",` + hi + `}`, "malformed: max_tokens: missing"},
		{"/v1/messages?beta=true", `not JSON`, "malformed: not JSON: no value at byte 0"},
		{"/v1/messages/count_tokens", `{}`, "not scorable: it was sent to an API for tokenizing, whose bodies are not read"},
		{"/v1/embeddings", `{` + hi + `}`, "not scorable: it was sent to OpenAI's embeddings, whose bodies are not read"},
		{"/v1/audio/transcriptions", "--x\r\n", "not scorable: it was sent to an API for audio, whose bodies are not read"},
		{"/v1/realtime", "", "not scorable: it was sent to an API for audio, whose bodies are not read"},
		{"/rerank", `{}`, "not scorable: it was sent to an API for reranking, whose bodies are not read"},
		{"/v1/score", `{}`, "not scorable: it was sent to an API for scoring, whose bodies are not read"},
		{"/classify", `{}`, "not scorable: it was sent to an API for classification, whose bodies are not read"},
		{"/pooling", `{` + hi + `}`, "not scorable: it was sent to an API for pooling, whose bodies are not read"},
		{"/tokenize", `{"prompt":"a"}`, "not scorable: it was sent to an API for tokenizing, whose bodies are not read"},
		{"/v1/chat/completions/batch", `{}`, "not scorable: it was sent to vLLM's batches of chats, whose bodies are not read"},
		{"/v1/chat/completions/render", `{` + hi + `}`, "not scorable: it was sent to vLLM's rendering, whose bodies are not read"},
		{"/v2/chat", `{` + hi + `}`, "not scorable: it was sent to Cohere's API, whose bodies are not read"},
		{"/api/chat", `{` + hi + `}`, "not scorable: it was sent to Ollama's API, whose bodies are not read"},
		{"/api/generate", `{"prompt":"a"}`, "not scorable: it was sent to Ollama's API, whose bodies are not read"},
		{"/v1beta/models/m:generateContent", `{}`, "not scorable: it was sent to Gemini's API, whose bodies are not read"},
	} {
		_, err := chat.Parse(c.path, []byte(c.body))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s of %s: %v, want %s", c.path, c.body, err, c.want)
		}
		if strings.HasPrefix(c.want, "not scorable") != errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}

// Without a path, a body of another API is recognised by its marks. It is not malformed: a gateway
// would answer that with 400.
func TestOtherAPIs(t *testing.T) {
	block := func(block string) string {
		return `{"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"user","content":[` + block + `]}]}`
	}
	for _, c := range []struct{ body, want string }{
		{`{"model":"m","max_tokens":5,"system":"s",` + hi + `}`, "system" + ofMessages},
		{`{"max_tokens":5,"system":[{"type":"text","text":"s"}],` + hi + `}`, "system" + ofMessages},
		{`{"anthropic_version":"bedrock-2023-05-31",` + hi + `}`, "anthropic_version" + ofMessages},
		{`{"stop_sequences":["x"],` + hi + `}`, "stop_sequences" + ofMessages},
		{`{"mcp_servers":[],` + hi + `}`, "mcp_servers" + ofMessages},
		{`{"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],` + hi + `}`, "tools.input_schema" + ofMessages},
		{`{"tool_choice":{"type":"any"},"tools":[],` + hi + `}`, "tool_choice.type" + ofMessages},
		{`{"tools":[{"type":"web_search_20250305","name":"web_search"}],` + hi + `}`, "tools.type" + ofMessages},
		{block(`{"type":"tool_use","id":"i","name":"f","input":{}}`), "messages.content" + ofMessages},
		{block(`{"type":"redacted_thinking","data":""}`), "messages.content" + ofMessages},
		{block(`{"type":"thinking","thinking":"a","signature":"s"}`), "messages.content.signature" + ofMessages},
		{`{"input":"a","instructions":"b"}`, "instructions" + ofResponses},
		{`{"input":[{"role":"user","content":"a"}]}`, "input" + ofResponses},
		{`{"input":[]}`, "input" + ofResponses},
		{`{"input":"a","previous_response_id":"r"}`, "previous_response_id" + ofResponses},
		{`{"prompt":{"id":"p"},"input":"a"}`, "prompt" + ofResponses},
		{`{"input":"a"}`, "input: of OpenAI's Responses API or of OpenAI's embeddings, which only the path tells"},
		{`{"input":["a","b"]}`, "input: of OpenAI's embeddings, whose bodies are not read"},
		{`{"input":"a","encoding_format":"float"}`, "encoding_format: of OpenAI's embeddings, whose bodies are not read"},
		{`{"dimensions":5,` + hi + `}`, "dimensions: of OpenAI's embeddings, whose bodies are not read"},
		{`{"query":"a","documents":["b"]}`, "query: of an API for reranking, whose bodies are not read"},
		{`{"queries":"a","documents":["b"]}`, "queries: of an API for scoring, whose bodies are not read"},
		{`{"text_1":"a","text_2":"b"}`, "text_1: of an API for scoring, whose bodies are not read"},
		{`{"contents":[{"parts":[]}]}`, "contents: of Gemini's API, whose bodies are not read"},
		{`{"text":"a","sampling_params":{}}`, "sampling_params: of an engine's own API for generating, whose bodies are not read"},
		{`{"inputs":"a"}`, "inputs: of an engine's own API for generating, whose bodies are not read"},
		{`{"text":"a"}`, "text: of an engine's own API for generating, whose bodies are not read"},
		{`{"messages":[[{"role":"user","content":"a"}]]}`, "messages: of vLLM's batches of chats, whose bodies are not read"},
		{`{"tokens":[1]}`, "tokens: of an API for tokenizing, whose bodies are not read"},
		{`{"file":"a"}`, "file: of an API for audio, whose bodies are not read"},
	} {
		_, err := chat.Parse("", []byte(c.body))
		if err == nil || err.Error() != "not scorable: "+c.want || !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s: %v, want %s", c.body, err, c.want)
		}
	}
	// Bodies of no API are malformed.
	for _, body := range []string{
		`{"tools":[5],` + hi + `}`, `{"tools":[{"type":"custom","custom":{"name":"f"}}],` + hi + `}`, `{"tools":[{"type":"function","name":"f"}],` + hi + `}`,
	} {
		if _, err := chat.Parse("", []byte(body)); !errors.Is(err, chat.ErrMalformed) {
			t.Errorf("%s: %v", body, err)
		}
	}
	// Fields that clients send with chats are no marks.
	for _, body := range []string{
		`{"max_tokens":5,"top_k":1,"thinking":{"type":"enabled"},"metadata":{"user_id":"u"},"system":null,` + hi + `}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`,
		`{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}]}`,
	} {
		if _, err := chat.Parse("", []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}
