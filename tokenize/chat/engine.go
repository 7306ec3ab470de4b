package chat

import (
	"maps"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/tokenize/chat/internal/harmony"
)

// otherRenderers are the architectures whose chats vLLM renders by programs of its own, or
// reads with a tokenizer of its own (autumn 2026: config/model.py, tokenizer_mode, and
// renderers/registry.py), by the beginnings of their names.
var otherRenderers = []struct{ architecture, renderer string }{
	{"GptOssForCausalLM", "harmony's (gpt-oss, without its model_type)"},
	{"DeepseekV32ForCausalLM", "DeepSeek-V3.2's own"},
	{"DeepseekV41", "DeepSeek-V4.1's own"},
	{"DeepseekV4", "DeepSeek-V4's own"},
	{"KimiK3ForConditionalGeneration", "Kimi-K3's own"},
	{"Inkling", "Inkling's own"},
	{"Grok1ForCausalLM", "Grok-2's own"},
	{"MoonshotKimiaForCausalLM", "Kimi-Audio's own"},
	{"QwenVLForConditionalGeneration", "Qwen-VL's own"},
	{"Terratorch", "Terratorch's"},
}

// otherTypes are the same by model_type.
var otherTypes = map[string]string{
	"deepseek_v32": "DeepSeek-V3.2's own",
	"deepseek_v4":  "DeepSeek-V4's own",
	"deepseek_v41": "DeepSeek-V4.1's own",
	"kimi_k3":      "Kimi-K3's own",
}

// elsewhere refuses a model that is not rendered from a template.
func elsewhere(renderer string) error {
	return unsupported("the engine renders chats of this model by a program, %s, and not by a template: use the engine's own tokenizer, by a remote one", renderer)
}

// programOf returns the program that renders the chats of a model, nil if there is none or
// none is known.
func (m *Model) programOf(dir string, config *python.Dict) (program, error) {
	if optional(config, "model_type") != "gpt_oss" {
		uses, err := m.usesMistral(dir)
		if err != nil || !uses {
			return nil, err
		}
		if m.mistral, err = readMistral(dir); err != nil {
			return nil, err
		}
		m.added = slices.SortedFunc(maps.Keys(m.mistral.tokens), longestFirst)
		return renderMistral, nil
	}
	if !m.engine.does(rendersHarmony) {
		return nil, unsupported("harmony's chats (gpt-oss) of vLLM before 0.14")
	}
	return renderHarmony, m.knowTokens(dir)
}

// knowTokens refuses a tokenizer with tokens that harmony's text is not cut for. Harmony has an
// encoder of its own, which knows none of them.
func (m *Model) knowTokens(dir string) error {
	tokenizer, err := readObject(dir, "tokenizer_config.json")
	if err != nil {
		return err
	}
	m.added = addedTokens(tokenizer)
	tokens, _ := optional(tokenizer, "added_tokens_decoder").(*python.Dict)
	if tokens == nil {
		return nil
	}
	for i := range tokens.Len() {
		id, v := tokens.At(i)
		content, err := tokenContent(id.(string), v)
		if err == nil && !harmony.IsSpecial(content) {
			err = unsupported("the token %.60q, which harmony does not have", content)
		}
		if err != nil {
			return within(err, "added_tokens_decoder")
		}
	}
	return nil
}

// refuseModel refuses models whose engine does not render a template, unless usesTemplate.
func refuseModel(dir string, config *python.Dict, usesTemplate bool) error {
	kind, _ := optional(config, "model_type").(string)
	if renderer, ok := otherTypes[kind]; ok && !usesTemplate {
		return elsewhere(renderer)
	}
	if usesTemplate {
		return nil
	}
	if encoder, _ := optional(config, "is_encoder_decoder").(bool); encoder {
		return unsupported("a model with an encoder")
	}
	architectures, _ := optional(config, "architectures").(*python.List)
	if architectures == nil {
		architectures = new(python.List)
	}
	for _, v := range architectures.Items {
		for _, o := range otherRenderers {
			if a, _ := v.(string); strings.HasPrefix(a, o.architecture) {
				return elsewhere(o.renderer)
			}
		}
	}
	return nil
}
