// Package chat makes the text of a chat request, byte by byte as vLLM does, so that its
// tokens are known without the engine.
//
//	model, err := chat.Load("/models/llama-3", chat.Options{Engine: "0.28"})
//	...
//	request, err := chat.Parse("/v1/chat/completions", body)
//	...
//	rendering, err := model.Render(request, nil)
//	...
//	ids, err := tokenizer.Encode(ctx, nil, rendering.Text, request.AddSpecial)
//
// An Indexer (package kvindex) does all of this for a Request with a Body. Then you
// need [Load], [Options] and [Model.Exclude] at most. Package chatcheck compares with a
// running engine.
//
// Before its template is rendered, a request is changed in many small ways. These
// follow vLLM from 0.9 to its main of autumn 2026: [Options].Engine says which version.
// versions.go has a table of the changes, each with its version and source; the sources
// of the releases up to 0.27.1 and of main were read. The choice and the rendering of
// templates follow transformers 4.57 and 5 (utils/chat_template_utils.py,
// tokenization_utils_base.py).
//
// What cannot be made exactly is refused: a model or template when it is loaded, a
// request when it is parsed or rendered. Nothing is approximated. SGLang changes
// requests in other ways, which this package does not know. Do not use it for SGLang.
package chat

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/jinja"
)

// Templates and tokenizers are apart. This package gives text and never ids, and package
// tokenize knows nothing of chats; the Indexer puts them together. A tokenizer from a
// tokenize.Pool serves any template, and a host that renders by itself says so
// (kvindex.Request.Rendered).
//
// Shared renders, and nothing is tracked. How far a text equals that of the turn before cannot
// be seen while it is rendered: templates drop earlier reasoning, or move the tools. So the
// earlier conversation is rendered too, for callers that ask.

// Options are the version of an engine and those of its arguments that have influence
// on the text of a chat. The zero Options are those of vLLM's main without arguments,
// with one difference: requests may have templates of their own.
type Options struct {
	// Engine is vLLM's version: a release such as "0.28" or "0.9.2", or "main" for vLLM's
	// main of autumn 2026. "" means "main", which is newer than most engines in use: set
	// it. For some changes after 0.27 it is not known with which release they came. If
	// Engine is a release that may or may not have such a change, chats that depend on it
	// are ErrNotScorable. The tokenizer depends on it, too: give tokenize.LoadPretrained
	// the same.
	Engine string

	// Template is the text of --chat-template. "" is the model's own template.
	Template string

	// Kwargs is --default-chat-template-kwargs, a JSON object. "" is none.
	Kwargs string

	// ContentFormat is --chat-template-content-format: "string", "openai" or "auto". ""
	// means "auto": the template decides.
	ContentFormat string

	// ExcludeTools is --exclude-tools-when-tool-choice-none.
	ExcludeTools bool

	// RefuseTemplates refuses requests that bring a template of their own, as an
	// engine without --trust-request-chat-template does.
	RefuseTemplates bool

	// UsesTemplate: the engine was started with --tokenizer-mode hf. Then vLLM renders the
	// chat template also for models for which it would use a program of its own.
	UsesTemplate bool

	// Now returns the time by the engine's clock and time zone, for templates that write
	// the date. nil is time.Now.
	Now func() time.Time
}

// A Model makes the texts of the chats of one model. It is safe for concurrent use.
type Model struct {
	options   Options
	engine    version
	kwargs    *jinja.Dict // of the options
	given     *template   // of the options
	named     map[string]*template
	single    bool      // named has one, the default, and it goes by no name
	processor *template // stands in for the model's where there are no tools
	special   []specialToken
	media     map[string]uint32 // the token that stands for media of a kind
	cache     templateCache
	buffers   sync.Pool                  // of *[]byte
	excluded  atomic.Pointer[exclusions] // nil: none
}

type specialToken struct{ name, content string }

// New returns a Model without a folder: source is its template, and special its special
// tokens by names such as "bos_token". If Options.Template is set, it is used in place
// of source.
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
	switch o.ContentFormat {
	case "", "auto", "string", "openai":
	default:
		return fmt.Errorf("content format %.60q is neither auto, string nor openai", o.ContentFormat)
	}
	if o.Kwargs != "" {
		v, err := decode(o.Kwargs)
		if err != nil {
			return fmt.Errorf("kwargs: %w", err)
		}
		kwargs, ok := v.(*jinja.Dict)
		if !ok {
			return fmt.Errorf("kwargs: %s, not an object", kind(v))
		}
		if err := addKwargs(new(jinja.Dict), kwargs, true); err != nil {
			return err
		}
		m.kwargs = kwargs
	}
	if o.Template != "" {
		m.given, err = m.compile(o.Template)
	}
	return err
}

// Media is a media item of a prompt, such as an image. Hash is the hash that the engine
// computes for it. Offset is the position of its first token in the prompt, and Length
// its number of tokens. For a chat Offset is not needed: Rendering.Expand finds it.
type Media struct {
	Hash           string
	Offset, Length int
}

// A Rendering is the text of a chat. An Indexer uses its methods; other programs may.
type Rendering struct {
	Text string

	model   *Model
	chat    *conversation
	media   []Media
	expands []uint32 // for each of media the token that stands for it

	features featureSet            // of the chat, if anything is excluded
	excluded map[string]featureSet // by pod, whether or not the chat uses them
}

// Render makes the text of a chat request. media has one item for each media part of
// the request, in their order. If the engine, in the version of Options, refuses the
// request too, the error wraps ErrMalformed or ErrTemplate. If the engine may accept
// it, the error wraps ErrNotScorable. A completion request is an error; it has Prompt
// or Tokens.
func (m *Model) Render(r *Request, media []Media) (*Rendering, error) {
	x := &Rendering{model: m, media: media}
	if err := x.exclude(r); err != nil {
		return nil, err
	}
	return x.renderChat(r)
}

// RenderAnyway is Render without regard to Exclude. It is for programs that compare
// with an engine, such as chatcheck.
func (m *Model) RenderAnyway(r *Request, media []Media) (*Rendering, error) {
	return (&Rendering{model: m, media: media}).renderChat(r)
}

func (x *Rendering) renderChat(r *Request) (*Rendering, error) {
	if r.chat == nil {
		return nil, malformed("a completion, not a chat")
	}
	m := x.model
	x.chat = r.chat
	t, vars, err := m.prepare(r.chat)
	if err != nil {
		return nil, err
	}
	if err := m.check(r, t); err != nil {
		return nil, err
	}
	if err := x.place(t); err != nil {
		return nil, err
	}
	x.Text, err = m.render(t, r.chat.messages, r.chat.continueFinal, vars)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// Shared returns how many bytes at the beginning of Text are equal to the text of the
// same conversation one turn before: of the request that was answered by the last
// assistant message before the final message. It is 0 if there is no such message.
// Shared renders that request, so it costs about as much as Render.
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

// render renders messages with the variables, which it adds them to.
func (m *Model) render(t *template, messages []message, continueFinal bool, vars *jinja.Dict) (string, error) {
	list := make([]jinja.Value, len(messages))
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
		if final, err = tagFinal(list[len(list)-1].(*jinja.Dict)); err != nil {
			return "", err
		}
	}
	vars.Set("messages", &jinja.List{Items: list})
	text, err := m.run(t, vars, t.limits(messages))
	if err != nil {
		return "", err
	}
	if continueFinal {
		return cutFinal(text, final)
	}
	return text, nil
}

func (m *Model) run(t *template, vars *jinja.Dict, limits jinja.Limits) (string, error) {
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
