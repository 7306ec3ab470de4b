package jinja

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/testdata"
)

// conversation has a system message, and users and an assistant in turn, n messages
// of about 200 bytes in all.
func conversation(n int) *python.Dict {
	messages := &python.List{}
	for i := range n {
		role := []string{"user", "assistant"}[(i+1)%2]
		if i == 0 {
			role = "system"
		}
		m := &python.Dict{}
		m.Set("role", role)
		m.Set("content", fmt.Sprintf("message %d: ", i)+"What do you think of the weather in Zürich? It has been raining for days, and I would like to go for a walk along the river, if only the clouds went away. Tell me what to do, and why.")
		messages.Items = append(messages.Items, m)
	}
	vars := &python.Dict{}
	vars.Set("messages", messages)
	vars.Set("tools", nil)
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", true)
	vars.Set("bos_token", "<|begin_of_text|>")
	vars.Set("eos_token", "<|eot_id|>")
	return vars
}

func BenchmarkRender(b *testing.B) {
	for _, name := range []string{"e2e-meta-llama_Llama-3.2-11B-Vision-Instruct", "llama3-8b", "qwen3", "deepseekv3"} {
		for _, n := range []int{5, 100} {
			b.Run(fmt.Sprintf("template=%s/messages=%d", name, n), func(b *testing.B) {
				t := readTemplate(b, name)
				vars := conversation(n)
				var out []byte
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if out, err = t.Render(out[:0], vars, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func readTemplate(tb testing.TB, name string) *Template {
	tb.Helper()
	source, err := os.ReadFile(testdata.Path(tb, "chat templates", "templates", name+".jinja"))
	must(tb, err)
	t, err := Compile(string(source))
	must(tb, err)
	return t
}
