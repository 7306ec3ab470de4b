// Package chat renders chat requests as an inference engine does, byte by byte, so
// that their tokens can be told without asking it.
//
// Start with [Load], which reads a model's folder, and [Parse], which reads a
// request as it came over HTTP:
//
//	model, err := chat.Load("/models/llama-3", chat.Options{})
//	...
//	request, err := chat.Parse(body)
//	...
//	rendering, err := model.Render(request, nil)
//	...
//	ids, err := tokenizer.Encode(ctx, nil, rendering.Text, request.AddSpecial)
//
// What is done to a request before its template is rendered follows vLLM, from 0.9 to
// main of autumn 2026: [Options].Engine says which version. What changed when, and by
// which source, is the table in versions.go; the sources of the releases up to 0.27.1
// and of main were read. How templates are chosen and rendered follows transformers
// 4.57 and 5 (utils/chat_template_utils.py, tokenization_utils_base.py). A model or a
// template that asks for something else is refused when it is loaded, and a request
// when it is rendered; nothing is approximated. Package chatcheck compares with a
// running engine. SGLang's shaping is its own, and not known here.
package chat

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/jinja"
)

// Options are how an engine was started, as far as it bears on the text of a chat,
// by vLLM's arguments. The zero Options are those of an engine without arguments,
// but that requests may bring templates.
type Options struct {
	// Engine is vLLM's version, such as "0.28" or "0.9.2", or "main", as it was in
	// autumn 2026; so "". A version is as the last one up to it that changed
	// something. Of some changes after 0.27 the release is not known: chats that they
	// bear on are not scorable where Engine is one of the releases in question.
	Engine string

	// Template is --chat-template, as text. "": the model's own.
	Template string

	// Kwargs is --default-chat-template-kwargs, a JSON object. "": none.
	Kwargs string

	// ContentFormat is --chat-template-content-format: "string", "openai", or
	// "auto" or "", which goes by the template.
	ContentFormat string

	// ExcludeTools is --exclude-tools-when-tool-choice-none.
	ExcludeTools bool

	// RefuseTemplates refuses requests that bring a template of their own, as an
	// engine without --trust-request-chat-template does.
	RefuseTemplates bool

	// UsesTemplate says that the engine renders the model's template although its
	// files make vLLM choose otherwise: --tokenizer-mode hf.
	UsesTemplate bool

	// Now is the engine's clock and time zone, which templates that tell the date
	// read. Nil: time.Now.
	Now func() time.Time
}

// A Model renders the chats of one model. It is safe for concurrent use.
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

// New returns the model with a template and special tokens, by names such as
// "bos_token". It is for hosts that have no folder of the model; Options.Template
// goes before the template.
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

// Media is an image or the like of a chat: the engine's own hash of it, and how
// many tokens stand for it. Offset, the first of them in the prompt, is told by
// [Rendering.Expand].
type Media struct {
	Hash           string
	Offset, Length int
}

// A Rendering is the text of a chat.
type Rendering struct {
	Text string

	model   *Model
	chat    *conversation
	media   []Media
	expands []uint32 // for each of media the token that stands for it

	features Features            // of the chat, if anything is excluded
	excluded map[string]Features // by pod, whether or not the chat uses them
}

// Render renders a chat. Media are those of its parts, in order.
//
// Its errors wrap ErrMalformed and ErrTemplate where the engine of the version in
// Options would refuse the request, and ErrNotScorable where it would not.
func (m *Model) Render(r *Request, media []Media) (*Rendering, error) {
	x := &Rendering{model: m, media: media}
	if err := x.exclude(r); err != nil {
		return nil, err
	}
	return x.renderChat(r)
}

// RenderAnyway is Render as if nothing was excluded, for whoever compares the model
// with an engine, as chatcheck does.
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

// Shared returns up to which byte the text equals that of the conversation one
// turn earlier: the request that the last assistant message before the final
// message was the answer to. Without one it is 0. It renders that request.
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
