package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// A body is that of a client's request.
type body struct {
	render route
	fields map[string]json.RawMessage
	salt   string
	media  int
}

// readBody reads what an answer is checked by, and leaves the rest to the engine.
func readBody(path string, raw []byte) (*body, error) {
	b := &body{render: renderOf(path)}
	if b.render == numRoutes {
		prompt, err := chat.Parse(path, raw)
		if err != nil {
			return nil, err
		}
		if b.render = renderCompletion; prompt.Chat() {
			b.render = renderChat
		}
	}
	if err := json.Unmarshal(raw, &b.fields); err != nil {
		if _, parsed := chat.Parse(path, raw); errors.Is(parsed, chat.ErrMalformed) {
			return nil, parsed
		}
		return nil, fmt.Errorf("%w: %w", chat.ErrNotScorable, err) // as NaN, which Python reads
	}
	if err := b.text("cache_salt", &b.salt); err != nil {
		return nil, err
	}
	if beam := b.fields["use_beam_search"]; beam != nil && string(beam) != "false" && string(beam) != "null" {
		return nil, fmt.Errorf("%w: use_beam_search: engines do not render it", chat.ErrNotScorable)
	}
	return b, b.count()
}

// renderOf returns the route that renders bodies of a path, numRoutes if it is not known.
func renderOf(path string) route {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	path = strings.TrimRight(path, "/")
	for _, r := range []route{renderChat, renderCompletion, renderMessages, renderResponses} {
		if strings.HasSuffix(path, strings.TrimSuffix(strings.TrimPrefix(r.String(), "/v1"), "/render")) {
			return r
		}
	}
	return numRoutes
}

func (b *body) text(name string, to *string) error {
	if raw := b.fields[name]; raw != nil {
		if err := json.Unmarshal(raw, to); err != nil {
			return fmt.Errorf("%w: %s: not a string", chat.ErrMalformed, name)
		}
	}
	return nil
}

// with returns the body with another model. Keys that it has twice are there once: the last
// counts, as in Python.
func (b *body) with(model []byte) []byte {
	size := 2 + len(model) + len(`"model":`)
	for key, value := range b.fields {
		size += len(key) + len(value) + 8
	}
	out := append(append(make([]byte, 0, size), `{"model":`...), model...)
	for _, key := range slices.Sorted(maps.Keys(b.fields)) {
		if key == "model" {
			continue
		}
		out = append(append(appendString(append(out, ','), key), ':'), b.fields[key]...)
	}
	return append(out, '}')
}

// appendString appends a JSON string. Each byte that is not UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' {
				dst = append(append(dst, s[from:i]...), '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
				from = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, s[from:i]...), "\ufffd"...)
			from = i + 1
		}
		i += size
	}
	return append(append(dst, s[from:]...), '"')
}

// The types of parts of content, for what engines make of them: no media, one medium, or what is
// in their content. Sources: vLLM's main of autumn 2026, entrypoints/chat_utils.py,
// entrypoints/anthropic/protocol.py and entrypoints/openai/responses/utils.py.
const (
	noMedia = 1 + iota
	oneMedium
	nested
)

var parts = map[string]int{
	"text": noMedia, "refusal": noMedia, "thinking": noMedia, "input_text": noMedia, "output_text": noMedia,
	"tool_reference": noMedia, "redacted_thinking": noMedia, "tool_use": noMedia, "reasoning_text": noMedia, "summary_text": noMedia,

	"image_url": oneMedium, "image_pil": oneMedium, "image_embeds": oneMedium, "audio_url": oneMedium, "input_audio": oneMedium,
	"audio_embeds": oneMedium, "video_url": oneMedium, "video_embeds": oneMedium, "input_image": oneMedium, "image": oneMedium,

	"tool_result": nested,

	// Items of the Responses API.
	"message": nested, "reasoning": nested, "function_call": noMedia, "function_call_output": nested,
}

// count counts the media.
func (b *body) count() (err error) {
	switch b.render {
	case renderCompletion:
		return nil
	case renderResponses:
		b.media, err = mediaIn(b.fields["input"], "input", 0)
	default:
		var system int
		if b.media, err = mediaIn(b.fields["messages"], "messages", 0); err == nil && b.render == renderMessages {
			system, err = mediaIn(b.fields["system"], "system", 0)
		}
		b.media += system
	}
	return err
}

// mediaIn returns the number of media in a list of messages, items or parts.
func mediaIn(raw json.RawMessage, where string, depth int) (n int, err error) {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) == 0 || raw[0] != '[' || depth > 8 {
		return 0, nil // a text, or what the engine refuses
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return 0, err
	}
	for i, item := range items {
		if item[0] != '{' {
			continue
		}
		var o map[string]json.RawMessage
		if err := json.Unmarshal(item, &o); err != nil {
			return 0, err
		}
		kind := nested // a message
		if raw, ok := o["type"]; ok || o["role"] == nil {
			var name string
			_ = json.Unmarshal(raw, &name) // "" is no type
			if kind = parts[name]; kind == 0 && name == "" {
				for key := range o { // the engine goes by the fields
					if parts[key] == oneMedium {
						kind = oneMedium
					}
				}
			}
			if kind == 0 {
				return 0, fmt.Errorf("%w: %s[%d]: whether a part of type %.60q is a medium is not known", chat.ErrNotScorable, where, i, name)
			}
		}
		switch kind {
		case oneMedium:
			n++
		case nested:
			for _, key := range []string{"content", "output"} {
				more, err := mediaIn(o[key], fmt.Sprintf("%s[%d].%s", where, i, key), depth+1)
				if err != nil {
					return 0, err
				}
				n += more
			}
		}
	}
	return n, nil
}

// dropped names a field of a chat that /tokenize would leave out (vLLM from December 2025 to
// autumn 2026, entrypoints/serve/tokenize/protocol.py, TokenizeChatRequest), "" if there is
// none.
func (b *body) dropped() string {
	if b.media > 0 {
		return "media"
	}
	for _, name := range []string{"documents", "reasoning_effort", "reasoning", "thinking", "mm_processor_kwargs", "media_io_kwargs"} {
		if raw := b.fields[name]; raw != nil && string(raw) != "null" {
			return name
		}
	}
	if raw := b.fields["tool_choice"]; raw != nil && string(raw) != "null" && string(raw) != `"auto"` {
		return "tool_choice"
	}
	var messages []map[string]json.RawMessage
	if json.Unmarshal(b.fields["messages"], &messages) == nil {
		for _, m := range messages {
			if m["reasoning_content"] != nil {
				return "messages.reasoning_content"
			}
		}
	}
	return ""
}
