package jinja

import (
	"math/rand/v2"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// generateConversation makes the i-th conversation of a seed for a real template.
func generateConversation(template string, seed, i uint64, old bool) *program {
	g := &generator{rng: rand.New(rand.NewPCG(seed, i)), uses: map[string]int{}, old: old}
	if g.chance(200) {
		template = g.mutated(template)
	}
	return &program{template: template, vars: g.conversation()}
}

func (g *generator) conversation() *python.Dict {
	d := &python.Dict{}
	d.Set("messages", g.chat())
	d.Set("add_generation_prompt", g.chance(600))
	d.Set("tools", nil)
	if g.chance(400) {
		d.Set("tools", g.listOf(func() python.Value { return g.tool() }))
	}
	d.Set("documents", nil)
	if g.chance(100) {
		d.Set("documents", g.listOf(func() python.Value { return fields("title", g.text(), "text", g.words()) }))
	}
	for _, token := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		if g.chance(900) {
			d.Set(token, "<|"+token+"|>")
		}
	}
	for _, option := range []string{"enable_thinking", "thinking", "builtin_tools", "date_string", "xml_tools", "python_tools", "custom_instructions", "reasoning_effort", "safety_mode", "categories", "keep_past_thinking"} {
		if g.chance(100) {
			d.Set(option, g.json(1))
		}
	}
	return d
}

func fields(keysAndValues ...python.Value) *python.Dict {
	d := &python.Dict{}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Set(keysAndValues[i].(string), keysAndValues[i+1])
	}
	return d
}

// chat is messages: mostly in an order that templates take.
func (g *generator) chat() *python.List {
	l := &python.List{}
	if g.chance(500) {
		l.Items = append(l.Items, fields("role", g.pick("system", "system", "system", "developer"), "content", g.content()))
	}
	for i := range g.rng.IntN(7) {
		role := []string{"user", "assistant"}[i%2]
		if g.chance(40) {
			role = g.pick("user", "assistant", "system", "tool", "other", "")
		}
		m := fields("role", role, "content", g.content())
		if role == "assistant" {
			g.answer(l, m)
			continue
		}
		l.Items = append(l.Items, m)
	}
	return l
}

// answer adds a message of the assistant, with the answers of the tools it calls.
func (g *generator) answer(l *python.List, m *python.Dict) {
	l.Items = append(l.Items, m)
	if g.chance(150) {
		m.Set(g.pick("reasoning_content", "reasoning", "thinking"), g.text())
	}
	if g.chance(150) {
		m.Set("content", "<think>"+g.text()+"</think>"+g.text())
	}
	if !g.chance(250) {
		return
	}
	if g.chance(500) {
		m.Set("content", nil)
	}
	calls := &python.List{}
	for range 1 + g.rng.IntN(2) {
		id := g.pick("call_1", "abcdef123", "x", "functions.f:0")
		var arguments python.Value = g.dictOf(func() python.Value { return g.json(2) })
		if g.chance(200) {
			arguments = jsonOf(arguments)
		}
		calls.Items = append(calls.Items, fields("id", id, "type", "function", "function", fields("name", g.word(), "arguments", arguments)))
		if g.chance(800) {
			defer func() {
				l.Items = append(l.Items, fields("role", "tool", "tool_call_id", id, "name", g.word(), "content", g.content()))
			}()
		}
	}
	m.Set("tool_calls", calls)
}

func (g *generator) content() python.Value {
	switch n := g.rng.IntN(20); {
	case n == 0:
		return ""
	case n == 1:
		return nil
	case n < 4:
		return g.listOf(func() python.Value {
			if g.chance(200) {
				return fields("type", g.pick("image", "image_url", "video", "audio"))
			}
			return fields("type", "text", "text", g.text())
		})
	case n < 8:
		return g.words()
	}
	return g.pick("", " ", "\n", "  \n") + g.text() + g.pick("", " ", "\n", "\n\n")
}

// tool is a tool with a schema of its parameters.
func (g *generator) tool() *python.Dict {
	f := fields("name", g.word())
	if g.chance(900) {
		f.Set("description", g.text())
	}
	if g.chance(900) {
		f.Set("parameters", g.schema(3))
	}
	if g.chance(100) {
		f.Set("return", g.schema(1))
	}
	if g.chance(100) {
		return f
	}
	return fields("type", "function", "function", f)
}

func (g *generator) schema(depth int) *python.Dict {
	d := fields("type", g.pick("string", "integer", "number", "boolean"))
	if g.chance(100) {
		d.Set("type", &python.List{Items: []python.Value{"string", "null"}})
	}
	if depth > 0 && g.chance(600) {
		d.Set("type", "object")
		d.Set("properties", g.dictOf(func() python.Value { return g.schema(depth - 1) }))
		if g.chance(600) {
			d.Set("required", g.listOf(func() python.Value { return g.key() }))
		}
	} else if depth > 0 && g.chance(200) {
		d.Set("type", "array")
		d.Set("items", g.schema(depth-1))
	}
	if g.chance(500) {
		d.Set("description", g.text())
	}
	if g.chance(150) {
		d.Set("enum", g.listOf(func() python.Value { return g.json(0) }))
	}
	if g.chance(150) {
		d.Set("default", g.json(1))
	}
	if g.chance(50) {
		d.Set("oneOf", g.listOf(func() python.Value { return g.schema(0) }))
	}
	return d
}
