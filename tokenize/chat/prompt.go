package chat

import (
	"bytes"
	"errors"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A Prompt is the prompt in the body of a request: a chat, or a completion with a text or token
// ids. A body of another API is the chat that engines make of it. A Prompt does not change after
// Parse, and is safe for concurrent use.
type Prompt struct {
	Model string // of the request; "" without one
	Salt  string // cache_salt; "" without one

	// AddSpecial: the tokenizer has to add its special tokens to the text. The default is true
	// for a completion, and false for a chat, whose template writes them.
	AddSpecial bool

	// Text or Tokens is the prompt of a completion.
	Text   string
	Tokens []uint32

	// Media are the media that a body with token ids names, in order of Offset.
	Media []Media

	chat  *conversation
	other otherBody // in place of chat
}

// An otherBody is a body of another API that engines make a chat of.
type otherBody interface {
	conversation(m *Model) (*conversation, error)
}

// Chat reports whether p is a chat, for Model.Render. Else it is a completion.
func (p *Prompt) Chat() bool { return p.chat != nil || p.other != nil }

// A conversation is the part of a chat that affects its text.
type conversation struct {
	messages            []message
	tools               []*tool
	assigned            bool // tools may be empty
	noTools             bool // tool_choice "none"
	needsTool           bool // tool_choice "required"
	template            string
	kwargs              *python.Dict // chat_template_kwargs, may be nil
	documents           *python.List // nil: none
	effort              python.Value // reasoning_effort, null if it is not there
	addGenerationPrompt bool
	continueFinal       bool
	mediaOptions        string         // a field that changes the tokens of media
	mediaError          error          // about media_io_kwargs, for versions that have it
	media               int            // parts
	clocked             []*python.Dict // calls whose ids are the engine's clock
	features            featureSet
}

// Parse reads the body of a request of OpenAI's chat, completion or Responses API, of
// Anthropic's Messages API, of vLLM's /inference/v1/generate or of SGLang's /generate. path is
// the path of the HTTP request, such as "/v1/chat/completions"; it may have a prefix and a
// query. The body of another API is an error that wraps ErrNotScorable and names the API. Of
// the Responses API, bodies that refer to stored responses are ErrNotScorable, too. If path is
// empty or unknown, a body with "messages" is a chat, a body with "prompt" a completion, one
// with "token_ids" vLLM's, and one with "input_ids" SGLang's. The body of another API then
// passes for one of them if no field shows its API. With an unknown path, any other body is
// ErrNotScorable, because it may be right for an API that is not known.
//
// A prompt may be a list of one. Several prompts in one body are ErrNotScorable, and so are raw
// media beside token ids, and SGLang's adapters, extra keys and sessions.
//
// A body of more than 256 MiB, or of more than 32 MiB beside its media, is ErrNotScorable.
//
// Of the fields that affect the text, Parse accepts and refuses the same values as vLLM
// (entrypoints/openai/chat_completion/protocol.py and completion/protocol.py). Where versions
// differ, Model.Render decides. It ignores other fields. The Prompt keeps nothing of body.
//
// Beside an error that wraps ErrNotScorable there may be a Prompt. It has nothing but Model and
// Salt then, for a Renderer.
func Parse(path string, body []byte) (*Prompt, error) {
	api := apiOf(path)
	p, err := parse(api, body)
	if api == unknown && path != "" && errors.Is(err, ErrMalformed) {
		return nil, notScorable("it was sent to %.100q, which is no API that is known: as a chat or completion it is %s", path, err)
	}
	return p, err
}

func parse(api api, body []byte) (*Prompt, error) {
	if !api.isRead() {
		return nil, notScorable("it was sent to %s, whose bodies are not read", api)
	}
	if len(body) > maxBody {
		return nil, beyond("", "longer than %d bytes", maxBody)
	}
	n := new(counts)
	v, err := n.decodeBody(bytes.TrimPrefix(body, []byte("\ufeff")), api)
	if err != nil {
		var syntax *syntaxError
		if errors.As(err, &syntax) {
			err = malformed("not JSON: %w", syntax)
		}
		return nil, err
	}
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, malformed("%s, not an object", kind(v))
	}
	if api == unknown {
		api, err = apiOfBody(o)
		if err != nil {
			return nil, err
		}
		p, err := parseObject(o, n, api)
		if err != nil {
			return nil, orAnother(err, o)
		}
		if p.chat != nil && p.chat.signed() {
			return nil, another("messages.content.signature", messages)
		}
		return p, nil
	}
	return parseObject(o, n, api)
}

// parseNames reads the model and the salt.
func (p *Prompt) parseNames(o *python.Dict) (err error) {
	if p.Model, err = optionalText(o, "model"); err != nil {
		return err
	}
	if p.Salt, err = optionalText(o, "cache_salt"); err != nil {
		return err
	}
	// A host may keep these strings, and they must not keep others in memory.
	p.Model, p.Salt = strings.Clone(p.Model), strings.Clone(p.Salt)
	return nil
}

func parseObject(o *python.Dict, n *counts, api api) (*Prompt, error) {
	switch api {
	case tokensOfVLLM:
		return parseTokenRequest(o)
	case generateOfSGLang:
		return parseSGLangRequest(o)
	}
	p := new(Prompt)
	err := p.parseNames(o)
	if err != nil {
		return nil, err
	}
	if optional(o, "cache_salt") != nil && p.Salt == "" {
		return nil, badField("cache_salt", "empty")
	}
	if err := p.parseRest(o, n, api); errors.Is(err, ErrNotScorable) {
		return &Prompt{Model: p.Model, Salt: p.Salt}, err
	} else if err != nil {
		return nil, err
	}
	return p, nil
}

// parseRest parses what is beside the names.
func (p *Prompt) parseRest(o *python.Dict, n *counts, api api) (err error) {
	if api == messages || api == responses { // other fields have no meaning there
		if err := refuseTransfer(o); err != nil {
			return err
		}
		if api == messages {
			p.other, err = parseMessages(o)
		} else {
			p.other, err = parseResponses(o, n)
		}
		return err
	}
	if v, ok := o.Lookup("n"); ok && !isInteger(v) && (v != nil || api == completions) {
		return wrongType("n", v, "an integer")
	}
	if p.AddSpecial, err = flag(o, "add_special_tokens", api == completions); err != nil {
		return err
	}
	if err := refuseFields(o); err != nil {
		return err
	}
	if api == completions {
		return p.parsePrompt(o)
	}
	p.chat, err = parseConversation(o, n)
	return err
}

// refuseFields refuses fields that change the tokens of a text.
func refuseFields(o *python.Dict) error {
	for _, name := range []string{"truncate_prompt_tokens", "prompt_embeds"} {
		if optional(o, name) != nil {
			return unscored(name, "its effect on the tokens is not known here")
		}
	}
	return refuseTransfer(o)
}

// refuseTransfer refuses token ids that come with the KV cache.
func refuseTransfer(o *python.Dict) error {
	transfer, err := optionalObject(o, "kv_transfer_params")
	if err != nil || transfer == nil {
		return err
	}
	if optional(transfer, "prompt_token_ids") != nil {
		return unscored("kv_transfer_params.prompt_token_ids", "the engine takes them for the prompt")
	}
	return nil
}

func (p *Prompt) parsePrompt(o *python.Dict) error {
	if optional(o, "suffix") != nil {
		return unscored("suffix", "SGLang makes another prompt of it, and vLLM refuses it")
	}
	switch v := optional(o, "prompt").(type) {
	case nil:
		return badField("prompt", "missing")
	case string:
		p.Text = v
	case tokenList:
		p.Tokens = v
	case *python.List:
		return p.parsePrompts(v.Items)
	default:
		return wrongType("prompt", v, "a string or an array")
	}
	return nil
}

func (p *Prompt) parsePrompts(items []python.Value) (err error) {
	if len(items) == 0 {
		return badField("prompt", "empty")
	}
	if _, ok := items[0].(int64); ok {
		p.Tokens, err = tokenIDs("prompt", items, isLax)
		return err
	}
	if len(items) > 1 {
		return unscored("prompt", "%d prompts in one request", len(items))
	}
	switch v := items[0].(type) {
	case string:
		p.Text = v
	case tokenList:
		p.Tokens = v
	case *python.List:
		if len(v.Items) == 0 {
			return badField("prompt[0]", "empty")
		}
		p.Tokens, err = tokenIDs("prompt[0]", v.Items, isLax)
	default:
		if err = wrongType("prompt[0]", v, "a string or an array"); isLax(v) {
			err = unscored("prompt[0]", "not the id of a token as it is written")
		}
	}
	return err
}

func parseConversation(o *python.Dict, n *counts) (*conversation, error) {
	c := new(conversation)
	var err error
	if c.addGenerationPrompt, err = flag(o, "add_generation_prompt", true); err != nil {
		return nil, err
	}
	if c.continueFinal, err = flag(o, "continue_final_message", false); err != nil {
		return nil, err
	}
	if c.continueFinal && c.addGenerationPrompt {
		return nil, badField("continue_final_message", "it needs add_generation_prompt false")
	}
	if c.template, err = optionalText(o, "chat_template"); err != nil {
		return nil, err
	}
	if c.kwargs, err = optionalObject(o, "chat_template_kwargs"); err != nil {
		return nil, err
	}
	c.effort = optional(o, "reasoning_effort")
	if err := c.parseDocuments(o); err != nil {
		return nil, err
	}
	if err := c.parseTools(o); err != nil {
		return nil, err
	}
	if err := c.parseMediaOptions(o); err != nil {
		return nil, err
	}
	if err := c.parseMessages(o, n); err != nil {
		return nil, err
	}
	c.findFeatures()
	return c, nil
}

func (c *conversation) parseMediaOptions(o *python.Dict) error {
	for _, name := range []string{"mm_processor_kwargs", "media_io_kwargs"} {
		options, err := optionalObject(o, name)
		if name == "media_io_kwargs" {
			c.mediaError, err = err, nil
		}
		if err != nil {
			return err
		}
		if options != nil && options.Len() > 0 {
			c.mediaOptions = name
		}
	}
	return nil
}

// parseDocuments accepts objects with strings only.
func (c *conversation) parseDocuments(o *python.Dict) (err error) {
	if c.documents, err = optionalList(o, "documents"); err != nil || c.documents == nil {
		return err
	}
	for i, item := range c.documents.Items {
		d, ok := item.(*python.Dict)
		if !ok {
			return within(wrongType("", item, "an object"), "documents[%d]", i)
		}
		for j := range d.Len() {
			key, v := d.At(j)
			if _, ok := v.(string); !ok {
				return within(wrongType(key.(string), v, "a string"), "documents[%d]", i)
			}
		}
	}
	return nil
}
