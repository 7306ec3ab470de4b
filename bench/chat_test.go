package bench_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const bos, eos = "<BOS>", "<EOS>"

// chatBody is a request and the variables for Jinja2.
type chatBody struct {
	Messages            []map[string]string `json:"messages"`
	Tools               []any               `json:"tools"`
	Documents           []any               `json:"documents"`
	AddGenerationPrompt bool                `json:"add_generation_prompt"`
	BOS                 string              `json:"bos_token"`
	EOS                 string              `json:"eos_token"`
}

// chatBodies are different conversations of turns after a system message.
func chatBodies(p *testdata.Prose, n, turns int) []chatBody {
	bodies := make([]chatBody, n)
	for i := range bodies {
		b := &bodies[i]
		b.AddGenerationPrompt, b.BOS, b.EOS = true, bos, eos
		say := func(role string, size int) {
			b.Messages = append(b.Messages, map[string]string{"role": role, "content": p.Text(size)})
		}
		say("system", 100)
		for j := range 2*turns - 1 {
			say([]string{"user", "assistant"}[j%2], 100+p.IntN(200))
		}
	}
	return bodies
}

// BenchmarkChat renders conversations from their JSON, and with Jinja2 on CPython, whose time is
// the metric jinja2-ns/op. The texts must be equal.
func BenchmarkChat(b *testing.B) {
	python := cmp.Or(os.Getenv("KVINDEX_PYTHON"), "python3")
	hasJinja := exec.Command(python, "-c", "import jinja2").Run() == nil
	p := testdata.NewProse(b, "chats to render", 1)
	for _, name := range []string{"llama3-8b", "qwen3", "deepseekv3", "e2e-meta-llama_Llama-3.2-11B-Vision-Instruct"} {
		template := testdata.Path(b, "chat templates", "templates", name+".jinja")
		source, err := os.ReadFile(template)
		must(b, err)
		m, err := chat.New(string(source), map[string]string{"bos_token": bos, "eos_token": eos}, chat.Options{
			ContentFormat: "string",
			Now:           func() time.Time { return time.Date(2024, 7, 26, 0, 0, 0, 0, time.UTC) }, // as in render.py
		})
		must(b, err)
		for _, turns := range []int{2, 50} {
			b.Run(fmt.Sprintf("template=%s/messages=%d", name, 2*turns), func(b *testing.B) {
				chats := chatBodies(p, 100, turns)
				raw := make([][]byte, len(chats))
				for i, c := range chats {
					raw[i], err = json.Marshal(map[string]any{"messages": c.Messages})
					must(b, err)
				}
				render := func(i int) string {
					r, err := chat.Parse("", raw[i%len(raw)])
					must(b, err)
					x, err := m.Render(r, nil)
					must(b, err)
					return x.Text
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					render(i)
					i++
				}
				if !hasJinja {
					return
				}
				ns, texts := byJinja2(b, python, template, chats)
				b.ReportMetric(ns, "jinja2-ns/op")
				for i, want := range texts {
					if got := render(i); got != want {
						b.Fatalf("%.200q, and by Jinja2 %.200q", got, want)
					}
				}
			})
		}
	}
}

func byJinja2(b *testing.B, python, template string, chats []chatBody) (ns float64, texts []string) {
	b.Helper()
	file := filepath.Join(b.TempDir(), "chats.json")
	raw, err := json.Marshal(chats)
	if err == nil {
		err = os.WriteFile(file, raw, 0o600)
	}
	must(b, err)
	out, err := exec.Command(python, filepath.Join("testdata", "render.py"), template, file).Output()
	must(b, err)
	var answer struct {
		Version string
		NS      float64
		Texts   []string
	}
	must(b, json.Unmarshal(out, &answer))
	b.Logf("Jinja2 %s", answer.Version)
	return answer.NS, answer.Texts
}
