// Package chat makes the text of a chat request, byte by byte as vLLM does, so that its
// tokens are known without the engine.
//
//	model, err := chat.Load("/models/llama-3", chat.Options{Engine: "0.31"})
//	...
//	prompt, err := chat.Parse("/v1/chat/completions", body)
//	...
//	rendering, err := model.Render(prompt, nil)
//	...
//	ids, err := rendering.Encode(ctx, nil, tokenizer)
//
// An Indexer (package kvindex) does all of this for a Request with a Body. Then you
// need [Load], [Options] and [Model.Exclude] at most. Package chatcheck compares with a
// running engine.
//
// Before its template is rendered, vLLM changes a request in many small ways. This package
// does as vLLM from 0.9 to 0.31, or as its main of autumn 2026: [Options].Engine is the
// version. versions.go has a table of the changes, each with its version and source. The
// choice and the rendering of templates follow transformers 4.57 and 5
// (utils/chat_template_utils.py, tokenization_utils_base.py).
//
// A body of Anthropic's Messages API or of OpenAI's Responses API is rendered as the chat that
// vLLM makes of it (entrypoints/anthropic and entrypoints/openai/responses).
//
// vLLM renders the chats of some models by a program. The package has harmony (gpt-oss),
// those of DeepSeek-V3.2, V4 and V4.1, and mistral-common with a tekken.json. [Rendering.Encode]
// encodes such a text piece by piece where the engine does.
//
// The package refuses a model, template or request that it cannot render exactly. It
// approximates nothing. SGLang changes requests in other ways: do not use this package for
// SGLang.
package chat

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/jinja"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// Templates and tokenizers are apart. This package makes text, and ids only by a tokenizer that it
// is given, and package tokenize reads no chats. A tokenizer from a tokenize.Pool serves
// any template, and a host that renders by itself sets kvindex.Request.Rendered.
//
// Shared renders the earlier conversation. A renderer cannot see how far its text equals that
// of the turn before: templates drop earlier reasoning, or move the tools.

// Options are the version of an engine and its arguments that affect the text of a chat. The
// zero Options are those of vLLM's main without arguments, with one difference: requests may
// have templates of their own.
type Options struct {
	// Engine is vLLM's version: a release such as "0.31" or "0.9.2", or "main" for vLLM's main
	// of autumn 2026. "" means "main", which is newer than most engines in use: set it. A later
	// release than 0.31 is an error. For a few changes it is not known whether 0.28 and later
	// releases have them: chats that depend on such a change are ErrNotScorable. The tokenizer
	// depends on the version, too: give tokenize.LoadPretrained the same.
	Engine string

	// Template is the text of --chat-template. "" is the model's own template.
	Template string

	// Kwargs is --default-chat-template-kwargs, a JSON object. "" is none.
	Kwargs string

	// ContentFormat is --chat-template-content-format: "string", "openai" or "auto". "" means
	// "auto": the template decides.
	ContentFormat string

	// ExcludeTools is --exclude-tools-when-tool-choice-none.
	ExcludeTools bool

	// RefuseTemplates refuses requests that bring a template of their own, as an
	// engine without --trust-request-chat-template does.
	RefuseTemplates bool

	// TokenizerMode is --tokenizer-mode: "auto", "hf", "mistral", "deepseek_v32",
	// "deepseek_v4" or "deepseek_v41". "" means "auto": the engine decides by the model.
	// "mistral" is mistral-common, for a folder with a tekken.json. With "hf" vLLM renders the
	// chat template also of models that it renders by a program by default, but not of gpt-oss.
	TokenizerMode string

	// InlineSystem places system messages among those of Anthropic's Messages API, as an option
	// of vLLM's Messages API in main of autumn 2026 does: "preserve" keeps them, "fold" joins
	// them to the messages beside them, and "auto" or "" probes the template. Other versions
	// have no such option: with them "preserve" and "fold" are an error.
	InlineSystem string

	// StartDate is VLLM_SYSTEM_START_DATE, the date in chats of gpt-oss, such as "2026-11-28". It
	// is written as it is. "" is the day of Now, as in vLLM up to 0.16, which has no such variable.
	StartDate string

	// Now returns the time by the engine's clock and time zone, for chats with the date. nil is
	// time.Now.
	Now func() time.Time
}

// A Model renders the chats of one model. It is safe for concurrent use.
type Model struct {
	options   Options
	engine    version
	kwargs    *python.Dict // of the options
	program   program      // nil: templates render the chats
	mistral   *mistral     // of renderMistral
	encoding  *template    // a program that is written as a template; nil: none
	given     *template    // of the options
	named     map[string]*template
	single    bool      // named has only the default, which has no name
	processor *template // in place of the model's for chats without tools
	special   []specialToken
	media     map[string]uint32 // the placeholder token of a kind of media
	added     []string          // tokens that the tokenizer adds, the longest first; nil: unknown
	probe     probe
	cache     templateCache
	buffers   sync.Pool                  // of *[]byte
	excluded  atomic.Pointer[exclusions] // nil: none
}

type specialToken struct{ name, content string }

// New returns a Model without a folder. source is its template, and special its special tokens
// by names such as "bos_token". Options.Template replaces source.
func New(source string, special map[string]string, o Options) (*Model, error) {
	m := &Model{single: true}
	for _, name := range specialNames {
		if special[name] != "" {
			m.special = append(m.special, specialToken{name, special[name]})
		}
	}
	err := m.configure(o)
	if err == nil {
		err = m.name(map[string]string{defaultTemplate: source})
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return m, nil
}

func (m *Model) configure(o Options) error {
	m.options = o
	var err error
	if m.engine, err = parseVersion(o.Engine); err != nil {
		return err
	}
	switch o.TokenizerMode {
	case "", "auto", "hf", "mistral", "deepseek_v32", "deepseek_v4", "deepseek_v41":
	default:
		return unsupported("the tokenizer mode %.60q, which is none of auto, hf, mistral, deepseek_v32, deepseek_v4 and deepseek_v41", o.TokenizerMode)
	}
	switch o.ContentFormat {
	case "", "auto", "string", "openai":
	default:
		return fmt.Errorf("content format %.60q is neither auto, string nor openai", o.ContentFormat)
	}
	switch o.InlineSystem {
	case "", "auto", "preserve", "fold":
	default:
		return fmt.Errorf("inline system %.60q is neither auto, preserve nor fold", o.InlineSystem)
	}
	if (o.InlineSystem == "preserve" || o.InlineSystem == "fold") && !m.engine.does(placesSystem) {
		return fmt.Errorf("inline system %s is an option of vLLM's main of autumn 2026, which %s does not have", o.InlineSystem, o.Engine)
	}
	if o.Kwargs != "" {
		v, err := decode(o.Kwargs)
		if err != nil {
			return fmt.Errorf("kwargs: %w", err)
		}
		kwargs, ok := v.(*python.Dict)
		if !ok {
			return fmt.Errorf("kwargs: %s, not an object", kind(v))
		}
		if err := addKwargs(new(python.Dict), kwargs, true); err != nil {
			return err
		}
		m.kwargs = kwargs
	}
	if o.Template != "" {
		m.given, err = m.compile(o.Template)
	}
	return err
}

// Media is a media item of a prompt, such as an image. Hash is the engine's hash of it. Offset
// is the position of its first token in the prompt, and Length its number of tokens. For a
// chat leave Offset 0: Rendering.Expand finds it.
type Media struct {
	Hash           string
	Offset, Length int
}

// A Rendering is the text of a chat. An Indexer uses its methods; other programs may.
type Rendering struct {
	Text string

	model   *Model
	chat    *conversation
	pieces  []textPiece // of Text, nil if it is one
	special bool        // AddSpecial of the prompt
	media   []Media
	expands []uint32 // for each of media its placeholder token

	features featureSet            // of the chat, if anything is excluded
	excluded map[string]featureSet // by pod, whether or not the chat uses them
}

// Render renders a chat. media has one item for each media part of its messages, in
// their order. If the engine, in the version of Options, refuses the request too, the error
// wraps ErrMalformed or ErrTemplate. If the engine may accept it, the error wraps
// ErrNotScorable. A completion is an error; it has Text or Tokens.
func (m *Model) Render(p *Prompt, media []Media) (*Rendering, error) {
	x := &Rendering{model: m, media: media, special: p.AddSpecial}
	if err := x.convert(p); err != nil {
		return nil, err
	}
	if err := x.exclude(); err != nil {
		return nil, err
	}
	return x.renderChat(p)
}

// RenderAnyway is Render without Exclude. It is for programs that compare with an engine, such
// as chatcheck.
func (m *Model) RenderAnyway(p *Prompt, media []Media) (*Rendering, error) {
	x := &Rendering{model: m, media: media, special: p.AddSpecial}
	if err := x.convert(p); err != nil {
		return nil, err
	}
	return x.renderChat(p)
}

// convert sets the chat that the engine makes of a request.
func (x *Rendering) convert(p *Prompt) (err error) {
	switch {
	case p.chat != nil:
		x.chat = p.chat
	case p.other != nil:
		if _, ok := p.other.(*messagesBody); !ok && x.model.program != nil {
			return notScorable("a body of the Responses API, of a model whose chats the engine renders by a program")
		}
		x.chat, err = p.other.conversation(x.model)
	default:
		err = malformed("a completion, not a chat")
	}
	return err
}

func (x *Rendering) renderChat(p *Prompt) (*Rendering, error) {
	m, c := x.model, x.chat
	if c.mediaError != nil && m.engine.does(takesMediaOptions) {
		return nil, c.mediaError
	}
	if m.program != nil {
		if err := x.renderProgram(p); err != nil {
			return nil, err
		}
		return x, nil
	}
	t, vars, err := m.prepare(c)
	if err != nil {
		return nil, err
	}
	if err := m.check(p.Salt, c, t); err != nil {
		return nil, err
	}
	if err := x.place(t); err != nil {
		return nil, err
	}
	x.Text, err = m.render(t, c.messages, c.continueFinal, vars)
	if err != nil {
		return nil, err
	}
	if c.clocked == nil {
		return x, nil
	}
	// The engine's chat has other ids, which is right if its text is the same.
	c.changeClock()
	text, err := m.render(t, c.messages, c.continueFinal, vars)
	if err != nil {
		return nil, err
	}
	if text != x.Text {
		return nil, notScorable("a tool_use without an id, which the chat template prints: the engine's id is the second of its clock")
	}
	return x, nil
}

// Shared returns how many leading bytes of Text are equal to the text of the same conversation
// one turn before: of the request that the last assistant message before the final message
// answers. It is 0 without such a message. Shared renders that request, so it costs about as
// much as Render.
func (x *Rendering) Shared() (int, error) {
	c := x.chat
	at := len(c.messages) - 2
	for at > 0 && c.messages[at].role != "assistant" {
		at--
	}
	if at <= 0 {
		return 0, nil
	}
	earlier := *c
	earlier.addGenerationPrompt = true
	if p := x.model.program; p != nil {
		earlier.messages = c.messages[:at]
		text, _, err := p(x.model, &earlier)
		return commonPrefix(text, x.Text), err
	}
	t, vars, err := x.model.prepare(&earlier)
	if err != nil {
		return 0, err
	}
	text, err := x.model.render(t, c.messages[:at], false, vars)
	if err != nil {
		return 0, err
	}
	return commonPrefix(text, x.Text), nil
}

// commonPrefix returns how many bytes two texts have in common, in whole
// characters.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(b) && b[n]&0xc0 == 0x80 {
		n--
	}
	return n
}

// render renders messages with vars, and adds them to vars.
func (m *Model) render(t *template, messages []message, continueFinal bool, vars *python.Dict) (string, error) {
	if t.encodes == encodesV4 || t.encodes == encodesV41 {
		messages = encoded(messages, t.encodes == encodesV41)
	}
	list := make([]python.Value, len(messages))
	developer := false
	for i := range messages {
		list[i] = messages[i].dict(t.parts, m.engine)
		developer = developer || messages[i].role == "developer"
	}
	if developer && !t.developer && m.engine.does(makesDeveloperSystem) {
		list = systemFirst(list)
	}
	final := ""
	if continueFinal {
		var err error
		if final, err = tagFinal(list[len(list)-1].(*python.Dict)); err != nil {
			return "", err
		}
	}
	vars.Set("messages", &python.List{Items: list})
	text, err := m.run(t, vars, t.limits(messages))
	if err != nil {
		return "", err
	}
	if continueFinal {
		return cutFinal(text, final)
	}
	return text, nil
}

func (m *Model) run(t *template, vars *python.Dict, limits python.Limits) (string, error) {
	buf, _ := m.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer m.buffers.Put(buf)
	out, err := t.program.Render((*buf)[:0], vars, &jinja.Env{Now: m.options.Now, Limits: limits})
	if err != nil {
		return "", renderError(err)
	}
	text := string(out)
	if cap(out) <= maxKept {
		*buf = out
	}
	return text, nil
}

// maxKept is the largest buffer that is kept for the next rendering, in bytes.
const maxKept = 1 << 20

func renderError(err error) error {
	switch {
	case errors.Is(err, jinja.ErrUnsupported), errors.Is(err, jinja.ErrLimit):
		return notScorable("the chat template: %w", err)
	}
	return of(ErrTemplate, "%w", err)
}
