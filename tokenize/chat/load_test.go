package chat_test

import (
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

func folder(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// The template of a chat without and with tools, by transformers 4.57 and 5 and vLLM's
// resolve_chat_template.
func TestChoice(t *testing.T) {
	list := `{"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"},{"name":"rag","template":"R"}]}`
	for _, c := range []struct {
		name             string
		files            map[string]string
		plain, tools, by string // by: with "chat_template": "rag"
	}{
		{"a string", map[string]string{"tokenizer_config.json": `{"chat_template":"C"}`}, "C", "C", "rag"},
		{"a list", map[string]string{"tokenizer_config.json": list}, "D", "T", "R"},
		{"an object", map[string]string{"tokenizer_config.json": `{"chat_template":{"default":"D","rag":"R"}}`}, "D", "D", "R"},
		{"a file before the config", map[string]string{"tokenizer_config.json": list, "chat_template.jinja": "J"}, "J", "J", "rag"},
		{"files", map[string]string{"tokenizer_config.json": `{}`, "chat_template.jinja": "J", "additional_chat_templates/tool_use.jinja": "A",
			"additional_chat_templates/rag.jinja": "G", "additional_chat_templates/README": "x"}, "J", "A", "G"},
		{"only a named file", map[string]string{"tokenizer_config.json": list, "additional_chat_templates/tool_use.jinja": "A"}, "", "A", "rag"},
		{"no default", map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"x","template":"X"}]}`}, "", "", "rag"},
		{"a processor", map[string]string{"tokenizer_config.json": `{"chat_template":"C"}`, "chat_template.json": `{"chat_template":"P"}`, "preprocessor_config.json": `{}`}, "P", "C", "rag"},
		{"a processor's config", map[string]string{"tokenizer_config.json": `{"chat_template":"C"}`, "processor_config.json": `{"chat_template":"P"}`}, "P", "C", "rag"},
		{"a processor alone", map[string]string{"tokenizer_config.json": `{}`, "chat_template.json": `{"chat_template":"P"}`}, "P", "P", "rag"},
		{"a processor with the same", map[string]string{"chat_template.jinja": "P", "chat_template.json": `{"chat_template":"P"}`}, "P", "P", "rag"},
		{"a processor without", map[string]string{"chat_template.jinja": "J", "preprocessor_config.json": `{}`}, "J", "J", "rag"},
	} {
		m, err := chat.Load(folder(t, c.files), chat.Options{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, of := range []struct{ more, want string }{
			{"", c.plain}, {`,"tools":[{"function":{"name":"f"}}]`, c.tools}, {`,"chat_template":"rag"`, c.by},
		} {
			x, err := m.Render(parse(t, `{`+hi+of.more+`}`), nil)
			if text(x) != of.want || (err != nil) != (of.want == "") || err != nil && !errors.Is(err, chat.ErrTemplate) {
				t.Errorf("%s%s: %q, %v", c.name, of.more, text(x), err)
			}
		}
	}
}

func TestSpecialTokens(t *testing.T) {
	const show = "{{ bos_token }}|{{ eos_token }}|{{ image_token }}"
	config := `{"bos_token":"<s>","eos_token":{"__type":"AddedToken","content":"</s>","lstrip":false},"unk_token":null,` +
		`"extra_special_tokens":{"image_token":"<i>"},"tokenizer_class":"LlamaTokenizer","added_tokens_decoder":{}}`
	m, err := chat.Load(folder(t, map[string]string{"tokenizer_config.json": config, "chat_template.jinja": show}), chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if x, err := m.Render(parse(t, `{`+hi+`}`), nil); err != nil || x.Text != "<s>|</s>|<i>" {
		t.Errorf("%q, %v", text(x), err)
	}
	if _, err := chat.Load(folder(t, map[string]string{"tokenizer_config.json": "{}"}), chat.Options{}); !errors.Is(err, chat.ErrNoTemplate) {
		t.Errorf("no template: %v", err)
	}
	for name, files := range map[string]map[string]string{
		"not told":          {"tokenizer_config.json": `{"tokenizer_class":"LlamaTokenizer"}`, "chat_template.jinja": show},
		"no config":         {"chat_template.jinja": show},
		"another file":      {"tokenizer_config.json": `{"bos_token":"a","eos_token":"b"}`, "special_tokens_map.json": `{}`, "chat_template.jinja": show},
		"a wrong type":      {"tokenizer_config.json": `{"bos_token":1}`, "chat_template.jinja": "x"},
		"an odd object":     {"tokenizer_config.json": `{"bos_token":{}}`, "chat_template.jinja": "x"},
		"code":              {"tokenizer_config.json": `{"auto_map":{}}`, "chat_template.jinja": "x"},
		"wrong template":    {"tokenizer_config.json": `{"chat_template":5}`},
		"wrong templates":   {"tokenizer_config.json": `{"chat_template":[{"name":"x"}]}`},
		"two processors":    {"chat_template.jinja": "J", "chat_template.json": `{"chat_template":"P"}`},
		"no processor":      {"tokenizer_config.json": `{"chat_template":"C"}`, "chat_template.json": `{"chat_template":"P"}`},
		"odd processor":     {"chat_template.json": `{"chat_template":["P"]}`},
		"several and one":   {"chat_template.jinja": "J", "additional_chat_templates/x.jinja": "x", "processor_config.json": `{}`},
		"a git LFS pointer": {"chat_template.jinja": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n"},
		"not UTF-8":         {"chat_template.jinja": "\xff"},
		"not JSON":          {"tokenizer_config.json": `{`, "chat_template.jinja": "x"},
		"config no object":  {"config.json": `[]`, "chat_template.jinja": "x"},
	} {
		if _, err := chat.Load(folder(t, files), chat.Options{}); !errors.Is(err, chat.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Log(err)
		}
	}
	// A class without default tokens leaves them undefined.
	m, err = chat.Load(folder(t, map[string]string{
		"tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast","bos_token":"b"}`, "chat_template.jinja": show,
	}), chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if x, err := m.Render(parse(t, `{`+hi+`}`), nil); err != nil || x.Text != "b||" {
		t.Errorf("%q, %v", text(x), err)
	}
}

func TestOtherRenderers(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		forHF bool // the host asserts that the template is used
		want  string
	}{
		{map[string]string{"config.json": `{"architectures":["GptOssForCausalLM"]}`}, true, "harmony"},
		{map[string]string{"chat_template.jinja": "<|start|>assistant<|channel|>"}, false, "harmony"},
		{map[string]string{"config.json": `{"model_type":"deepseek_v32"}`}, true, "DeepSeek-V3.2"},
		{map[string]string{"config.json": `{"architectures":["DeepseekV4VisionForConditionalGeneration"]}`}, true, "DeepSeek-V4"},
		{map[string]string{"config.json": `{"architectures":["DeepseekV41Other"]}`}, true, "DeepSeek-V4.1"},
		{map[string]string{"config.json": `{"model_type":"deepseek_v41"}`}, true, "DeepSeek-V4.1"},
		{map[string]string{"config.json": `{"architectures":["KimiK3ForConditionalGeneration"]}`}, true, "Kimi-K3"},
		{map[string]string{"config.json": `{"architectures":["Grok1ForCausalLM"]}`}, true, "Grok-2"},
		{map[string]string{"config.json": `{"architectures":["InklingForCausalLM"]}`}, true, "Inkling"},
		{map[string]string{"tokenizer.model.v3": ``}, true, "mistral-common"},
	} {
		files := map[string]string{"tokenizer_config.json": `{}`, "chat_template.jinja": "x"}
		for name, content := range c.files {
			files[name] = content
		}
		dir := folder(t, files)
		_, err := chat.Load(dir, chat.Options{})
		if !errors.Is(err, chat.ErrUnsupported) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "remote") {
			t.Errorf("%v: %v", c.files, err)
		}
		if _, err := chat.Load(dir, chat.Options{TokenizerMode: "hf"}); (err == nil) != c.forHF {
			t.Errorf("%v, said to use its template: %v", c.files, err)
		}
	}
	if _, err := chat.Load(folder(t, map[string]string{"config.json": `{"is_encoder_decoder":true}`, "chat_template.jinja": "x"}), chat.Options{}); !errors.Is(err, chat.ErrUnsupported) {
		t.Errorf("an encoder: %v", err)
	}
	if _, err := chat.Load(folder(t, map[string]string{"config.json": `{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3"}`, "chat_template.jinja": "x"}), chat.Options{}); err != nil {
		t.Error(err)
	}
}

func TestGzip(t *testing.T) {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(`{"chat_template":"Z"}`)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := chat.Load(folder(t, map[string]string{"tokenizer_config.json.gz": b.String()}), chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if x, err := m.Render(parse(t, `{`+hi+`}`), nil); err != nil || x.Text != "Z" {
		t.Errorf("%q, %v", text(x), err)
	}
	if _, err := chat.Load(folder(t, map[string]string{"tokenizer_config.json.gz": "x"}), chat.Options{}); err == nil {
		t.Error("what is not gzip'd is taken")
	}
	if _, err := chat.Load(filepath.Join(t.TempDir(), "none"), chat.Options{}); err == nil {
		t.Error("a folder that is not there is taken")
	}
}
