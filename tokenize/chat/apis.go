package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// An api is the API of a body: those that are read, then the others.
type api uint8

const (
	unknown api = iota
	chats
	completions
	tokensOfVLLM
	generateOfSGLang
	messages
	responses
	batches
	embeddings
	reranking
	scoring
	classification
	pooling
	audio
	tokenizing
	rendering
	generating
	cohere
	ollama
	gemini
)

func (a api) String() string {
	return [...]string{
		chats: "OpenAI's chat completions", completions: "OpenAI's completions",
		tokensOfVLLM: "vLLM's generating from token ids", generateOfSGLang: "SGLang's generating", batches: "vLLM's batches of chats",
		messages: "Anthropic's Messages API", responses: "OpenAI's Responses API", embeddings: "OpenAI's embeddings",
		reranking: "an API for reranking", scoring: "an API for scoring", classification: "an API for classification",
		pooling: "an API for pooling", audio: "an API for audio", tokenizing: "an API for tokenizing",
		rendering: "vLLM's rendering", generating: "an engine's own API for generating", cohere: "Cohere's API",
		ollama: "Ollama's API", gemini: "Gemini's API",
	}[a]
}

// isRead reports whether bodies of the API, which may be unknown, are read.
func (a api) isRead() bool { return a <= responses }

// paths are the ends of paths, the longer of two equal ends first.
var paths = []struct {
	end string
	api api
}{
	{"/chat/completions", chats},
	{"/completions", completions},
	{"/chat/completions/batch", batches},
	{"/messages", messages},
	{"/messages/count_tokens", tokenizing},
	{"/responses", responses},
	{"/embeddings", embeddings},
	{"/rerank", reranking},
	{"/score", scoring},
	{"/classify", classification},
	{"/pooling", pooling},
	{"/audio/transcriptions", audio},
	{"/audio/translations", audio},
	{"/audio/speech", audio},
	{"/realtime", audio},
	{"/tokenize", tokenizing},
	{"/detokenize", tokenizing},
	{"/completions/render", rendering},
	{"/completions/derender", rendering},
	{"/v2/embed", cohere},
	{"/v2/chat", cohere},
	{"/api/chat", ollama},
	{"/api/generate", ollama},
	{"/api/embed", ollama},
	{"/inference/v1/generate", tokensOfVLLM},
	{"/generate", generateOfSGLang},
	{"/encode", pooling},
	{":generateContent", gemini},
	{":streamGenerateContent", gemini},
}

// apiOf returns the API of a path.
func apiOf(path string) api {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	path = strings.TrimRight(path, "/")
	for _, p := range paths {
		if strings.HasSuffix(path, p.end) {
			return p.api
		}
	}
	return unknown
}

// markOf returns the other API that a field belongs to. Fields that engines ignore, but people
// send with chats, belong to none.
func markOf(name string) api {
	switch name {
	case "system", "anthropic_version", "anthropic_beta", "stop_sequences", "output_config", "context_management", "mcp_servers":
		return messages
	case "encoding_format", "dimensions":
		return embeddings
	}
	return unknown
}

// alone are fields of bodies with neither messages nor a prompt.
var alone = []struct {
	field string
	api   api
}{
	{"previous_response_id", responses}, {"instructions", responses}, {"max_output_tokens", responses},
	{"query", reranking}, {"queries", scoring}, {"text_1", scoring}, {"data_1", scoring},
	{"contents", gemini}, {"tokens", tokenizing}, {"file", audio}, {"inputs", generating},
	{"token_ids", tokensOfVLLM}, {"input_ids", generateOfSGLang},
	{"sampling_params", generating}, {"text", generating},
}

// apiOfBody returns the API of a body that is read, by its fields.
func apiOfBody(o *python.Dict) (api, error) {
	chat := optional(o, "messages") != nil
	prompt := optional(o, "prompt")
	completion := prompt != nil || optional(o, "prompt_embeds") != nil
	for i := range o.Len() {
		key, v := o.At(i)
		if a := markOf(key.(string)); a != unknown && v != nil {
			return unknown, another(key.(string), a)
		}
	}
	_, object := prompt.(*python.Dict)
	switch {
	case chat && completion: // the path decides
		return unknown, notScorable("it has both messages and a prompt")
	case object && !chat:
		return unknown, another("prompt", responses)
	case chat:
		return chats, nil
	case completion:
		return completions, nil
	}
	for _, m := range alone {
		switch {
		case optional(o, m.field) == nil:
		case m.api != tokensOfVLLM && m.api != generateOfSGLang:
			return unknown, another(m.field, m.api)
		case optional(o, "token_ids") != nil && optional(o, "input_ids") != nil:
			return unknown, notScorable("it has both token_ids and input_ids")
		default:
			return m.api, nil
		}
	}
	switch v := optional(o, "input").(type) {
	case nil:
		return unknown, malformed("it needs messages or a prompt")
	case *python.List:
		if len(v.Items) > 0 {
			if _, ok := v.Items[0].(*python.Dict); !ok {
				return unknown, another("input", embeddings)
			}
		}
		return unknown, another("input", responses)
	}
	return unknown, unscored("input", "of %s or of %s, which only the path tells", responses, embeddings)
}

func another(path string, a api) error {
	if a.isRead() {
		return unscored(path, "of %s, whose bodies are read if the path names it", a)
	}
	return unscored(path, "of %s, whose bodies are not read", a)
}

// orAnother returns err, or, where a chat is malformed because it is Anthropic's or a batch of
// chats, an error that names that API.
func orAnother(err error, o *python.Dict) error {
	if !errors.Is(err, ErrMalformed) {
		return err
	}
	if list, ok := optional(o, "messages").(*python.List); ok && len(list.Items) > 0 {
		if _, ok := list.Items[0].(*python.List); ok {
			return another("messages", batches)
		}
	}
	if path := messagesMark(o); path != "" {
		return another(path, messages)
	}
	return err
}

// signed reports whether a thought is signed, as only Anthropic's are.
func (c *conversation) signed() bool {
	for i := range c.messages {
		for _, p := range c.messages[i].content {
			if p.rare == nil || p.rare.kind != "thinking" {
				continue
			}
			if slices.ContainsFunc(p.rare.more, func(f field) bool { return f.name == "signature" }) {
				return true
			}
		}
	}
	return false
}

// messagesMark returns a field that only Anthropic's API has, "" if there is none.
func messagesMark(o *python.Dict) string {
	if tools, ok := optional(o, "tools").(*python.List); ok {
		for _, item := range tools.Items {
			tool, ok := item.(*python.Dict)
			if !ok {
				continue
			}
			if optional(tool, "input_schema") != nil {
				return "tools.input_schema"
			}
			kind, _ := optional(tool, "type").(string)
			if _, named := optional(tool, "name").(string); named && kind != "" && kind != "function" {
				return "tools.type"
			}
		}
	}
	if choice, ok := optional(o, "tool_choice").(*python.Dict); ok {
		switch optional(choice, "type") {
		case "auto", "any", "tool", "none":
			return "tool_choice.type"
		}
	}
	list, _ := optional(o, "messages").(*python.List)
	if list == nil {
		return ""
	}
	for _, item := range list.Items {
		m, ok := item.(*python.Dict)
		if !ok {
			continue
		}
		content, _ := optional(m, "content").(*python.List)
		if content != nil && hasBlock(content) {
			return "messages.content"
		}
	}
	return ""
}

// blocks are the types of parts that only Anthropic's API has.
var blocks = map[string]bool{
	"tool_use": true, "tool_result": true, "image": true, "document": true, "search_result": true,
	"redacted_thinking": true, "server_tool_use": true, "web_search_tool_result": true,
}

func hasBlock(content *python.List) bool {
	for _, item := range content.Items {
		p, ok := item.(*python.Dict)
		if !ok {
			continue
		}
		if name, _ := optional(p, "type").(string); blocks[name] {
			return true
		}
	}
	return false
}
