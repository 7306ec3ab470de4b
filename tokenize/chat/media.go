package chat

import "github.com/kvindex/kvindex/internal/jinja/python"

// mediaOf returns the placeholder tokens of a model's media by its config.json. The text has
// each once, and the engine repeats it for every token of the media. It lists only models
// whose engine does exactly that (vLLM of autumn 2026, model_executor/models: qwen2_vl.py,
// qwen2_5_vl.py, qwen3_vl.py, llava.py); their videos are more complicated.
func mediaOf(config *python.Dict) map[string]uint32 {
	name := ""
	switch optional(config, "model_type") {
	case "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe":
		name = "image_token_id"
	case "llava":
		vision, _ := optional(config, "vision_config").(*python.Dict)
		if vision == nil {
			return nil
		}
		switch optional(vision, "model_type") {
		case "clip_vision_model", "siglip_vision_model":
			name = "image_token_index"
		}
	}
	id, ok := optional(config, name).(int64)
	if !ok || id < 0 || id >= maxToken {
		return nil
	}
	return map[string]uint32{"image": uint32(id)}
}

const (
	maxToken    = 1 << 31
	maxExpanded = 1 << 24 // tokens
)

// place finds the placeholder tokens of a chat's media.
func (x *Rendering) place(t *template) error {
	c := x.chat
	if c.media == 0 {
		if len(x.media) > 0 {
			return notScorable("%d media, and the messages have none", len(x.media))
		}
		return nil
	}
	for i, m := range c.messages {
		for j, p := range m.content {
			if p.kind != partMedia {
				continue
			}
			id, ok := x.model.media[p.text]
			var err error
			switch {
			case len(x.media) == 0:
				err = unscored("", "%s: the engine's hash of it and the number of its tokens are needed", p.text)
			case !ok:
				err = unscored("", "%s: how the engine of this model places it is not known", p.text)
			case !t.parts:
				err = unscored("", "%s: the template wants content as a string", p.text)
			case c.mediaOptions != "":
				err = unscored("", "%s: with %s", p.text, c.mediaOptions)
			}
			if err != nil {
				return within(err, "messages[%d].content[%d]", i, j)
			}
			x.expands = append(x.expands, id)
		}
	}
	if len(x.media) != len(x.expands) {
		return notScorable("%d media, and the messages have %d", len(x.media), len(x.expands))
	}
	return nil
}

// Expand appends tokens, the ids of Text, to dst. It writes the placeholder token of a media
// item Media.Length times, as the engine does. It also returns the media with their offsets,
// in a new slice if there are any.
func (x *Rendering) Expand(dst, tokens []uint32) ([]uint32, []Media, error) {
	if len(x.media) == 0 {
		return append(dst, tokens...), nil, nil
	}
	from := len(dst)
	media := make([]Media, 0, len(x.media))
	for _, token := range tokens {
		if !x.isPlaceholder(token) {
			dst = append(dst, token)
			continue
		}
		n := len(media)
		if n == len(x.media) || x.expands[n] != token {
			return dst[:from], nil, notScorable("a token of the text stands for media and is none's")
		}
		m := x.media[n]
		m.Offset = len(dst) - from
		if m.Length < 0 || m.Length > maxExpanded-m.Offset {
			return dst[:from], nil, notScorable("media %q of %d tokens at token %d", m.Hash, m.Length, m.Offset)
		}
		for range m.Length {
			dst = append(dst, token)
		}
		media = append(media, m)
	}
	if len(media) < len(x.media) {
		return dst[:from], nil, notScorable("the text has places for %d of %d media", len(media), len(x.media))
	}
	return dst, media, nil
}

func (x *Rendering) isPlaceholder(token uint32) bool {
	for _, id := range x.model.media {
		if id == token {
			return true
		}
	}
	return false
}
