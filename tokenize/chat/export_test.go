package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// Shapes returns the template's messages or tools for a chat request by an engine, in a notation
// with types and order.
func Shapes(body string, parts bool, engine string) (messages, tools string, err error) {
	r, err := Parse("", []byte(body))
	if err != nil {
		return "", "", err
	}
	m := new(Model)
	if err := m.configure(Options{Engine: engine}); err != nil {
		return "", "", err
	}
	if err := m.check(r.Salt, r.chat, &template{parts: parts}); err != nil {
		return "", "", err
	}
	var list []python.Value
	for i := range r.chat.messages {
		list = append(list, r.chat.messages[i].dict(parts, m.engine))
	}
	dumped, err := m.tools(r.chat)
	if err != nil {
		return "", "", err
	}
	tools = "None"
	if dumped != nil {
		tools = show(dumped)
	}
	return show(&python.List{Items: list}), tools, nil
}

// ShowJSON is a JSON text in the notation of Shapes.
func ShowJSON(s string) (string, error) {
	v, err := decode(s)
	return show(v), err
}

// DecodeString decodes a JSON string, and DecodeBorrowed one in a body.
func DecodeString(s string) (string, error) { return asText(decode(s)) }

func DecodeBorrowed(body []byte) (string, error) {
	return asText(new(counts).decodeBody(body, unknown))
}

func asText(v python.Value, err error) (string, error) {
	if _, ok := v.(string); !ok && err == nil {
		err = errors.New("no string")
	}
	s, _ := v.(string)
	return s, err
}

// MediaField returns a field that is skipped as media but passed to templates, or "".
func MediaField() string {
	for name := range mediaFields {
		if !partFields[name] {
			return name
		}
	}
	return ""
}

// SyntaxError reports whether decode fails with a syntax error.
func SyntaxError(s string) bool {
	_, err := decode(s)
	var e *syntaxError
	return errors.As(err, &e)
}

func show(v python.Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return strconv.Quote(v)
	case float64:
		return "f" + strconv.FormatFloat(v, 'g', -1, 64)
	case *python.List:
		items := make([]string, len(v.Items))
		for i, item := range v.Items {
			items[i] = show(item)
		}
		return "[" + strings.Join(items, " ") + "]"
	case *python.Dict:
		items := make([]string, v.Len())
		for i := range items {
			key, value := v.At(i)
			items[i] = show(key) + ":" + show(value)
		}
		return "{" + strings.Join(items, " ") + "}"
	}
	return fmt.Sprint(v)
}

const (
	MaxCached = maxCached
	MaxBody   = maxBody
	MaxText   = maxText
)

// CachedTemplates returns the number of cached templates of requests.
func (m *Model) CachedTemplates() int {
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	return len(m.cache.of)
}

var CutFinal = cutFinal

// CheckHistory returns an error if the history is not in order, or a change has no description or
// source.
func CheckHistory() error {
	for c := always + 1; c < changes; c++ {
		h := history[c]
		switch {
		case h.does == "" || h.source == "":
			return fmt.Errorf("change %d has no words, or no source", c)
		case h.since < history[c-1].since && c != readsMessages && c != readsResponses:
			return fmt.Errorf("%q is older than what is before it", h.does)
		case h.unknown >= h.since:
			return fmt.Errorf("%q is known before it is not", h.does)
		}
	}
	return nil
}

var (
	AllFeatures = allFeatures
	FeaturesOf  = featuresOf
)

// Features returns the features that a chat uses. A completion has none.
func Features(p *Prompt) string {
	if p.chat == nil {
		return ""
	}
	return p.chat.features.String()
}

// Made returns the template's variables for the chat that a model's engine makes of a body, without
// media: messages, tools, effort and kwargs, in the notation of Shapes.
func Made(m *Model, path, body string, parts bool) (string, error) {
	r, err := Parse(path, []byte(body))
	if err != nil {
		return "", err
	}
	x := Rendering{model: m}
	if err := x.convert(r); err != nil {
		return "", err
	}
	c := *x.chat
	c.assigned = true // tools may be empty
	if err := m.check("", &c, &template{parts: parts}); err != nil {
		return "", err
	}
	var list []python.Value
	for i := range c.messages {
		list = append(list, c.messages[i].dict(parts, m.engine))
	}
	tools, err := m.tools(&c)
	if err != nil {
		return "", err
	}
	dumped := "None"
	if tools != nil {
		dumped = show(tools)
	}
	kwargs := "None"
	if c.kwargs != nil {
		kwargs = show(c.kwargs)
	}
	vars := new(python.Dict)
	if err := m.addEffort(vars, &c); err != nil {
		return "", err
	}
	return strings.Join([]string{show(&python.List{Items: list}), dumped, kwargs, show(vars), fmt.Sprint(c.addGenerationPrompt, c.continueFinal)}, "\n"), nil
}

// Probed returns the results of a model's probes: whether system messages stay in place, the effort
// of disabled thinking, whether Options.Template passes the old probe, and whether the template
// wants parts.
func Probed(m *Model, added []string) (keeps bool, disabled string, passes, parts bool, unknown error) {
	m.added = added
	slices.SortFunc(m.added, func(a, b string) int { return len(b) - len(a) })
	keeps, unknown = m.keepsInline()
	disabled, _ = m.disabledEffort()
	old := &Model{options: m.options, engine: 27_000, given: m.given}
	passes, _ = old.passesOldProbe()
	return keeps, disabled, passes, m.given.parts, unknown
}
