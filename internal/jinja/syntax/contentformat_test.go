package syntax

import "testing"

// The answers are those of vLLM v0.31.0's rules, applied to the nodes of Jinja2
// 3.1.6.
func TestWantsParts(t *testing.T) {
	const loop = "{% for m in messages %}"
	const end = "{% endfor %}"
	for source, want := range map[string]bool{
		"":                             false,
		loop + "{{ m.content }}" + end: false,
		loop + "{{ m.content[0] }}{% if m.content is string %}{% endif %}" + end:                                                                            false,
		loop + "{% for c in m.content %}" + end + end:                                                                                                       true,
		loop + "{% for c in m['content'] %}" + end + end:                                                                                                    true,
		loop + "{% for c in m['con' 'tent'] %}" + end + end:                                                                                                 true,
		loop + "{% for c in m['con' ~ 'tent'] %}" + end + end:                                                                                               false,
		loop + "{% for c in m.content|selectattr('type')|list %}" + end + end:                                                                               true,
		loop + "{% for c in m.content[1:] %}" + end + end:                                                                                                   true,
		loop + "{% for c in m.content is sequence %}" + end + end:                                                                                           true,
		loop + "{% for c in m.content is not sequence %}" + end + end:                                                                                       false,
		loop + "{% for c in m.content.items() %}" + end + end:                                                                                               false,
		loop + "{% for c in m.parts %}" + end + end:                                                                                                         false,
		loop + "{% for c in m %}" + end + end:                                                                                                               false,
		loop + "{% for c, d in m.content %}" + end + end:                                                                                                    false,
		loop + "{% for c, d in m.content %}" + end + "{% for c in m.content %}" + end + end:                                                                 false,
		loop + "{% for c in m.content %}" + end + "{% for c, d in m.content %}" + end + end:                                                                 true,
		loop + end + "{% for c in m.content %}" + end:                                                                                                       true,
		"{% for c in m.content %}" + end + loop + end:                                                                                                       true,
		"{% for c in m.content %}" + end:                                                                                                                    false,
		"{% for c in messages[0].content %}" + end:                                                                                                          false,
		"{% for m, n in messages %}" + end + loop + "{% for c in m.content %}" + end + end:                                                                  false,
		"{% for m in messages[1:]|list %}{% for c in m.content %}" + end + end:                                                                              true,
		"{% set a = messages %}{% for m in a %}{% for c in m.content %}" + end + end:                                                                        true,
		"{% set b = a %}{% set a = messages[1:] %}{% for m in b %}{% for c in m.content %}" + end + end:                                                     true,
		"{% set a = messages + [] %}{% for m in a %}{% for c in m.content %}" + end + end:                                                                   false,
		"{% set a = messages %}{% set messages = a %}" + loop + "{% for c in m.content %}" + end + end:                                                      true,
		"{% set ns.a = messages %}" + loop + "{% for c in m.content %}" + end + end:                                                                         false,
		"{% set a, b = messages %}" + loop + "{% for c in m.content %}" + end + end:                                                                         false,
		"{% set a, b = 1, messages %}" + loop + "{% for c in m.content %}" + end + end:                                                                      true,
		"{% set a %}{{ messages }}{% endset %}{% for m in a %}{% for c in m.content %}" + end + end:                                                         false,
		loop + "{% set a = m.content %}{% for c in a %}" + end + end:                                                                                        false,
		loop + "{% set content = m.content %}{% for c in content %}" + end + end:                                                                            true,
		"{% for c in content %}" + end:                                                                                                                      true,
		"{% for c in content|list %}" + end:                                                                                                                 false,
		"{% for c in content[1:] %}" + end:                                                                                                                  false,
		"{% for c, d in content %}" + end:                                                                                                                   false,
		"{% macro f(content) %}{% for c in content %}" + end + "{% endmacro %}":                                                                             false,
		"{% macro f(content) %}{% for c in content %}" + end + "{% endmacro %}" + loop + "{{ f(m.content) }}" + end:                                         true,
		"{% macro f(a, b) %}{% for c in b %}" + end + "{% endmacro %}" + loop + "{{ f(1, m.content) }}" + end:                                               true,
		"{% macro f(a, b) %}{% for c in b %}" + end + "{% endmacro %}" + loop + "{{ f(m.content, 1) }}" + end:                                               false,
		"{% macro f(a, b) %}{% for c in b %}" + end + "{% endmacro %}" + loop + "{{ f(b=m['content'][1:]) }}" + end:                                         true,
		"{% macro f(a) %}{% for c in a|list %}" + end + "{% endmacro %}" + loop + "{{ f(m.content) }}" + end:                                                false,
		"{% macro f(a) %}{% for c in a %}" + end + "{% endmacro %}" + loop + "{% set x = [1 + g(k={1: f(m.content)})] %}" + end:                             true,
		"{% macro f(a) %}{% for c in a %}" + end + "{% endmacro %}" + loop + "{% call f(m.content) %}{% endcall %}" + end:                                   true,
		"{% macro f(a) %}{% for c in a %}" + end + "{% endmacro %}" + loop + "{{ x.f(m.content) }}" + end:                                                   false,
		"{% macro f(a) %}{% macro g(b) %}{% for c in a %}" + end + "{% endmacro %}{% endmacro %}" + loop + "{{ f(m.content) }}" + end:                       true,
		"{% macro f(a) %}{% macro g(b) %}{% for c in a %}" + end + "{% endmacro %}{% endmacro %}" + loop + "{{ f(m.content) }}{{ g(m.content) }}" + end:     false,
		"{% macro f(content) %}{% for c in content %}" + end + "{% endmacro %}" + loop + "{% generation %}{{ f(m.content)|trim }}{% endgeneration %}" + end: true,
	} {
		if _, err := parse(source); err != nil {
			t.Fatalf("%q: %v", source, err)
		}
		if got := WantsParts(source, LoopsOverParameters); got != want {
			t.Errorf("%q: %v, want %v", source, got, want)
		}
	}
}

func TestWantsPartsOfRealTemplates(t *testing.T) {
	want := map[string]bool{
		"e2e-HuggingFaceTB_SmolVLM-Instruct":           true,
		"e2e-Qwen_Qwen2.5-VL-7B-Instruct":              true,
		"e2e-Qwen_Qwen3.5-4B":                          true,
		"e2e-meta-llama_Llama-3.2-11B-Vision-Instruct": true,
		"e2e-meta-llama_Llama-Guard-3-11B-Vision":      true,
		"e2e-zai-org_GLM-5.1":                          true,
		"gemma4":                                       true,
		"kimi-k2":                                      true,
	}
	for name, source := range realTemplates(t) {
		if got := WantsParts(source, LoopsOverParameters); got != want[name] {
			t.Errorf("%s: %v", name, got)
		}
	}
}
