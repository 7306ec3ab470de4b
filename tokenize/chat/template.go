package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kvindex/kvindex/internal/jinja"
	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
)

// A template is one of a model's or a request's.
type template struct {
	program   *jinja.Template
	parts     bool   // it wants content as parts, not as one string
	unsure    bool   // the engine's version leaves open which of the two
	developer bool   // it uses the role developer
	foreign   bool   // of a request
	encodes   change // a program of DeepSeek's: the change that introduced it
}

// Limits of a rendering. Tools must not take long, whatever schema a client sends. But a
// conversation may be long: one known template takes 1,600 steps for each of a thousand
// messages.
const (
	baseSteps    = 5 << 18 // a catalog of 400 kB of tools takes 760,000
	messageSteps = 1 << 12
	textOfAStep  = 8 // bytes of content for each further step
	maxSteps     = 1 << 23

	foreignSteps    = 1 << 18 // in place of baseSteps
	maxForeignSteps = 1 << 20

	// Some templates copy the text so far for each message.
	baseMemory    = 128 << 20
	messageMemory = 512 << 10
	maxMemory     = 512 << 20
)

func (t *template) limits(messages []message) python.Limits {
	text := 0
	for i := range messages {
		for j := range messages[i].content {
			text += len(messages[i].content[j].text)
		}
	}
	base, most := baseSteps, maxSteps
	if t.foreign {
		base, most = foreignSteps, maxForeignSteps
	}
	return python.Limits{
		Steps:  min(base+len(messages)*messageSteps+text/textOfAStep, most),
		Memory: min(baseMemory+len(messages)*messageMemory, maxMemory),
	}
}

// Names of templates that transformers uses.
const (
	defaultTemplate = "default"
	toolTemplate    = "tool_use"
)

// Bounds of a template, in bytes; models have up to 30,000. Compiling a hostile one takes half
// a microsecond a byte.
const (
	maxTemplate        = 1 << 20 // of a model
	maxRequestTemplate = 1 << 16 // of a request
)

func (m *Model) compile(source string) (*template, error) {
	if len(source) > maxTemplate {
		return nil, unsupported("a chat template longer than %d bytes", maxTemplate)
	}
	if strings.Contains(source, "<|start|>") && strings.Contains(source, "<|channel|>") {
		return nil, elsewhere("harmony's (gpt-oss)")
	}
	for _, name := range []string{"additional_special_tokens", "extra_special_tokens"} {
		if strings.Contains(source, name) {
			return nil, unsupported("a chat template that reads %s, which versions of transformers differ on", name)
		}
	}
	program, err := jinja.Compile(source)
	if err != nil {
		return nil, unsupported("the chat template: %w", err)
	}
	t := &template{program: program}
	switch m.options.ContentFormat {
	case "string":
	case "openai":
		t.parts = true
	default:
		m.detect(t)
	}
	// vLLM, renderers/hf.py, _detect_developer_role_support.
	t.developer = strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`)
	return t, nil
}

// detect finds the content that the template wants, as the engine does.
func (m *Model) detect(t *template) {
	loops := syntax.LoopsOverMessages
	switch {
	case m.engine.does(findsLoopsOverParameters):
		loops = syntax.LoopsOverParameters
	case m.engine.does(findsLoopsOverContent):
		loops = syntax.LoopsOverContent
	}
	t.parts = t.program.WantsParts(loops)
	if m.engine.knows(findsLoopsOverParameters, "") != nil {
		t.unsure = t.parts != t.program.WantsParts(syntax.LoopsOverParameters)
	}
}

// name compiles the model's own templates.
func (m *Model) name(sources map[string]string) error {
	m.named = make(map[string]*template, len(sources))
	for name, source := range sources {
		t, err := m.compile(source)
		if err != nil {
			return err
		}
		m.named[name] = t
	}
	return nil
}

// choose returns the template of a chat: its own, that of the options, or the model's (vLLM,
// renderers/hf.py, resolve_chat_template; transformers, get_chat_template).
func (m *Model) choose(c *conversation, tools bool) (*template, error) {
	if c.template != "" {
		if m.options.RefuseTemplates {
			return nil, badField("chat_template", "the engine takes none from requests")
		}
		if t, ok := m.named[c.template]; ok && !m.single {
			if !m.engine.does(looksUpTemplates) {
				return nil, unscored("chat_template", "this version of the engine takes the name for a template when it detects the content format")
			}
			return t, nil
		}
		t, err := m.cache.compile(m, c.template)
		var raised *jinja.Error
		switch {
		case errors.As(err, &raised) && raised.Class != "": // an exception of Jinja2: safe_apply_chat_template there
			return nil, of(ErrTemplate, "chat_template: %w", raised)
		case err != nil:
			return nil, notScorable("chat_template: %w", err)
		}
		return t, nil
	}
	if m.given != nil {
		return m.given, nil
	}
	if !tools && m.processor != nil {
		return m.processor, nil
	}
	if t, ok := m.named[toolTemplate]; ok && tools && !m.single {
		return t, nil
	}
	if t, ok := m.named[defaultTemplate]; ok {
		return t, nil
	}
	names := make([]string, 0, len(m.named))
	for name := range m.named {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, of(ErrTemplate, "the model has none for it, only %q", names)
}

// A templateCache has the compiled templates of requests.
type templateCache struct {
	mu     sync.Mutex
	of     map[string]*template // guarded by mu, as oldest is
	oldest []string             // the keys of the map
}

// maxCached bounds a templateCache.
const maxCached = 16

func (c *templateCache) compile(m *Model, source string) (*template, error) {
	c.mu.Lock()
	t := c.of[source]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if len(source) > maxRequestTemplate {
		return nil, fmt.Errorf("longer than %d bytes: %w", maxRequestTemplate, jinja.ErrLimit)
	}
	source = strings.Clone(source)
	t, err := m.compile(source)
	if err != nil {
		return nil, err
	}
	t.foreign = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[source] != nil {
		return t, nil
	}
	if len(c.oldest) == maxCached {
		delete(c.of, c.oldest[0])
		c.oldest = slices.Delete(c.oldest, 0, 1)
	}
	if c.of == nil {
		c.of = make(map[string]*template, maxCached)
	}
	c.of[source] = t
	c.oldest = append(c.oldest, source)
	return t, nil
}
