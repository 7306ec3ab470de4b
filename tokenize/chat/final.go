package chat

import (
	"strings"
	"unicode"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// finalTag marks the end of a chat's final message in the text, if the model is to continue it
// (transformers, utils/chat_template_utils.py, render_jinja_template).
const finalTag = "CONTINUE_FINAL_MESSAGE_TAG "

// tagFinal puts the tag behind the last text of a message and returns the text.
func tagFinal(m *python.Dict) (string, error) {
	content, _ := m.Lookup("content")
	if s, ok := content.(string); ok {
		m.Set("content", s+finalTag)
		return s, nil
	}
	parts := content.(*python.List).Items
	for i := len(parts) - 1; i >= 0; i-- {
		p, ok := parts[i].(*python.Dict)
		if !ok {
			return "", unscored("continue_final_message", "the final message has a string among its parts")
		}
		if s, ok := p.Lookup("text"); ok {
			p.Set("text", s.(string)+finalTag)
			return s.(string), nil
		}
	}
	return "", badField("continue_final_message", "the final message has no text")
}

// cutFinal cuts a rendering at the tag.
func cutFinal(text, final string) (string, error) {
	tag := strings.TrimRight(finalTag, " ")
	at := strings.LastIndex(text, tag)
	if at < 0 || !strings.Contains(text, strings.TrimFunc(final, isSpace)) {
		return "", of(ErrTemplate, "continue_final_message: the final message is not in its text")
	}
	if strings.HasPrefix(text[at:], finalTag) {
		return text[:at], nil
	}
	return strings.TrimRightFunc(text[:at], isSpace), nil
}

// isSpace reports whether str.strip of Python 3.12 strips r.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// systemFirst turns developer messages into system messages, and joins all of these into one,
// the first (vLLM, renderers/hf.py, _convert_developer_to_system and
// _consolidate_system_messages).
func systemFirst(messages []python.Value) []python.Value {
	var system []string
	rest := make([]python.Value, 1, len(messages)+1)
	misplaced := false
	for i, v := range messages {
		m := v.(*python.Dict)
		role, _ := m.Lookup("role")
		if role == "developer" {
			m = withoutTools(m)
			messages[i] = m
			role = "system"
		}
		if role != "system" {
			rest = append(rest, m)
			continue
		}
		misplaced = misplaced || i > 0
		if s := contentText(m); s != "" {
			system = append(system, s)
		}
	}
	if !misplaced {
		return messages
	}
	first := new(python.Dict)
	first.Set("role", "system")
	first.Set("content", strings.Join(system, "\n\n"))
	rest[0] = first
	return rest
}

// withoutTools returns a developer message as a system message.
func withoutTools(m *python.Dict) *python.Dict {
	d := new(python.Dict)
	for i := range m.Len() {
		if key, v := m.At(i); key != "tools" {
			d.Set(key.(string), v)
		}
	}
	d.Set("role", "system")
	return d
}

// contentText returns the content of a message, its parts joined.
func contentText(m *python.Dict) string {
	content, _ := m.Lookup("content")
	if s, ok := content.(string); ok {
		return s
	}
	var texts []string
	for _, part := range content.(*python.List).Items {
		if s, ok := part.(*python.Dict).Lookup("text"); ok {
			texts = append(texts, s.(string))
		}
	}
	return strings.Join(texts, "\n")
}
