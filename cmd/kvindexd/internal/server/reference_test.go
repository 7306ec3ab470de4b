package server_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/kvindextest"
)

// Each score is the number of leading blocks that the engine itself has cached.
func TestScoreCompletions(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	for _, pod := range []string{"a", "b", "c"} {
		f.add(t, kvindextest.EngineConfig{Pod: pod, Blocks: 120})
	}
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'a' + byte(random.IntN(26))
		}
		return string(b)
	}
	beginnings := []string{text(100), text(240), text(399)}
	var asked []string
	const requests = 1000
	partial, whole, evicted := 0, 0, 0
	had := make(map[string]int) // leading blocks in an engine's cache after it served a prompt
	for n := range requests {
		prompt := beginnings[random.IntN(3)] + text(random.IntN(200))
		if n > 0 && random.IntN(2) == 0 {
			prompt = asked[max(0, n-1-random.IntN(200))]
			if random.IntN(3) == 0 {
				prompt = prompt[:1+random.IntN(len(prompt))] + text(30)
			}
		}
		asked = append(asked, prompt)
		tokens := tokensOf(prompt, true)
		var got map[string]int
		body := map[string]any{"prompt": prompt}
		if n%2 == 0 {
			body["model"] = "m"
		}
		if code := ask(t, "POST", f.public.URL+"/score_completions", js(body), &got); code != http.StatusOK {
			t.Fatalf("request %d: %d %v", n, code, got)
		}
		want := make(map[string]int)
		for i, e := range f.engines {
			blocks := cachedBlocks(e, tokens)
			want[string(rune('a'+i))] = blocks
			switch of := len(tokens) / 16; {
			case blocks == of:
				whole++
			case blocks > 0:
				partial++
			}
			if blocks < had[prompt+string(rune('a'+i))] {
				evicted++
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("request %d of %d tokens: %v, and the engines have %v", n, len(tokens), got, want)
		}
		e := random.IntN(3)
		f.serve(t, f.engines[e], tokens)
		had[prompt+string(rune('a'+e))] = cachedBlocks(f.engines[e], tokens)
	}
	t.Logf("%d prompts beside 3 engines: %d partial, %d whole, %d of blocks that were held and are gone", requests, partial, whole, evicted)
	if partial < 300 || evicted < 100 {
		t.Errorf("only %d partial matches, and %d after evictions", partial, evicted)
	}
}

// The recorded chats: the text is equal to Jinja2's, and the scores to the engine's blocks.
func TestScoreChats(t *testing.T) {
	var cases map[string]map[string]any
	read := func(v any, elem ...string) {
		text, err := os.ReadFile(testdata.Path(t, "chats by 44 templates", append([]string{"templates"}, elem...)...))
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		must(t, err)
	}
	read(&cases, "cases.json")
	f := start(t, server.Config{})
	e := f.add(t, kvindextest.EngineConfig{Pod: "a", Blocks: 4000})
	same, other := 0, 0
	for _, path := range testdata.Glob(t, "chats by 44 templates", "templates", "*.jinja") {
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		source, err := os.ReadFile(path)
		must(t, err)
		var expected map[string]struct{ Out, Err *string }
		read(&expected, "expected", name+".json")
		for _, key := range []string{"user", "user-nogen", "system", "multi", "unicode"} {
			if expected[key].Out == nil {
				continue
			}
			body := map[string]any{"model": "m", "chat_template": string(source)}
			for _, field := range []string{"messages", "add_generation_prompt"} {
				if v, ok := cases[key][field]; ok {
					body[field] = v
				}
			}
			var got struct {
				Scores map[string]int `json:"podScores"`
				Text   string         `json:"templated_messages"`
				Error  string
			}
			code := ask(t, "POST", f.public.URL+"/score_chat_completions", js(body), &got)
			if code != http.StatusOK || got.Text != *expected[key].Out {
				other++ // engines change the messages for some templates
				continue
			}
			tokens := tokensOf(got.Text, false)
			if want := map[string]int{"a": cachedBlocks(e, tokens)}; !maps.Equal(got.Scores, want) {
				t.Fatalf("%s, %s: %v, and the engine has %v", name, key, got.Scores, want)
			}
			f.serve(t, e, tokens)
			if code := ask(t, "POST", f.public.URL+"/score_chat_completions", js(body), &got); code != http.StatusOK || got.Scores["a"] != len(tokens)/16 {
				t.Fatalf("%s, %s: %d %v after the engine has computed it", name, key, code, got)
			}
			same++
		}
	}
	t.Logf("%d chats are as Jinja2 makes them, %d are others", same, other)
	if same < 100 {
		t.Errorf("only %d chats", same)
	}
}

// The rules of the reference endpoints, each with one request.
func TestReferenceRules(t *testing.T) {
	f := start(t, server.Config{Model: "m", BlockTokens: 32})
	e, _ := f.add(t, kvindextest.EngineConfig{Pod: "a"}), f.add(t, kvindextest.EngineConfig{Pod: "b"})
	const text = "<BOS><user>" + "how do boats come and go, and where to? " + "</user>"
	chatText := text + "<assistant>"
	f.serve(t, e, tokensOf(chatText, false))
	messages := `"messages": [{"role": "user", "content": "how do boats come and go, and where to? "}]`
	for _, c := range []struct {
		name, path, body string
		code             int
		want             string
	}{
		{"a prompt of whole blocks scores all", "/score_completions", js(map[string]string{"prompt": strings.Repeat("x", 63)}), 200, `{"a":0,"b":0}`},
		{"blocks of the engine are counted in the service's", "/score_chat_completions", `{` + messages + `, "add_generation_prompt": true}`, 200, `{"podScores":{"a":2,"b":0},"templated_messages":` + js(chatText) + `}`},
		{"no generation prompt by default", "/score_chat_completions", `{` + messages + `}`, 200, `{"podScores":{"a":1,"b":0},"templated_messages":` + js(text) + `}`},
		{"nor if it is null", "/score_chat_completions", `{` + messages + `, "add_generation_prompt": null} `, 200, `{"podScores":{"a":1,"b":0},"templated_messages":` + js(text) + `}`},
		{"pods narrow", "/score_completions", `{"prompt": "x", "pods": ["b", "nobody"]}`, 200, `{"b":0}`},
		{"an empty list is none", "/score_completions", `{"prompt": "x", "pods": []}`, 200, `{"a":0,"b":0}`},
		{"pods narrow chats", "/score_chat_completions", `{"pods": ["b"], ` + messages + `}`, 200, `{"podScores":{"b":0},"templated_messages":` + js(text) + `}`},
		{"a role of the template", "/score_chat_completions", `{"messages": [{"role": "pirate", "content": "x"}]}`, 200, `{"podScores":{"a":0,"b":0},"templated_messages":"\u003cBOS\u003e\u003cpirate\u003ex\u003c/pirate\u003e"}`},
		{"all fields", "/score_chat_completions", `{"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [{"type": "function", "function": {"name": "f"}}], "documents": [{"title": "d", "text": "t"}],
			"chat_template": "{{ tools | length }}{{ documents | length }}{{ k }}{{ messages | length }}", "return_assistant_tokens_mask": true, "continue_final_message": false, "chat_template_kwargs": {"k": 7}}`, 200,
			`{"podScores":{"a":0,"b":0},"templated_messages":"1171"}`},
		{"no prompt", "/score_completions", `{"model": "m"}`, 400, `{"error":"prompt: it is empty"}`},
		{"a prompt of another type", "/score_completions", `{"prompt": 1}`, 400, `{"error":"prompt: a JSON number, want string"}`},
		{"not JSON", "/score_completions", `{"prompt": "x"`, 400, `{"error":"body: not JSON: it ends too early"}`},
		{"no body", "/score_completions", ``, 400, `{"error":"body: it is empty, want a JSON object"}`},
		{"two values", "/score_completions", `{"prompt": "x"} {}`, 400, `body: more than one JSON value`},
		{"half a character", "/score_completions", `{"prompt": "\ud83d x"}`, 400, `half of a character`},
		{"not UTF-8", "/score_completions", "{\"prompt\": \"\xff\"}", 400, `not UTF-8`},
		{"a pair is a character", "/score_completions", `{"prompt": "\ud83d\ude00 \\ud83d"}`, 200, `{"a":0,"b":0}`},
		{"no messages", "/score_chat_completions", `{"messages": []}`, 400, `{"error":"messages: it is empty"}`},
		{"messages of another type", "/score_chat_completions", `{"messages": "x"}`, 400, `{"error":"messages: want an array"}`},
		{"too deep", "/score_chat_completions", `{"documents": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `, ` + messages + `}`, 400, `nested deeper than 100`},
		{"too many values", "/score_chat_completions", `{"metadata": [` + strings.Repeat(`"",`, 1<<17) + `""], ` + messages + `}`, 400, `more than 131072 values`},
		{"too many numbers", "/score_chat_completions", `{"metadata": [` + strings.Repeat("0,", 1<<20) + `0], ` + messages + `}`, 400, `more than 1048576 numbers`},
		{"too many long integers", "/score_chat_completions", `{"metadata": [` + strings.Repeat(strings.Repeat("1", 4300)+",", 60) + strings.Repeat("1", 4300) + `], ` + messages + `}`, 400, `more than 262144 digits`},
		{"tools that are too long", "/score_chat_completions", `{"tools": ["` + strings.Repeat("x", 2<<20) + `"], ` + messages + `}`, 400, `tools: longer than 2097152 bytes`},
		{"a template that is too long", "/score_chat_completions", `{"chat_template": "` + strings.Repeat("x", 1<<16+1) + `", ` + messages + `}`, 400, `chat_template: longer than 65536 bytes`},
		{"a template that works too long", "/score_chat_completions", `{"chat_template": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", ` + messages + `}`, 400, `steps`},
		{"a template with a syntax error", "/score_chat_completions", `{"chat_template": "{% if x %}", ` + messages + `}`, 400, `chat_template: line 1, column `},
		{"a template with an unknown tag", "/score_chat_completions", `{"chat_template": "{% trans %}x{% endtrans %}", ` + messages + `}`, 400, `unknown tag \"trans\"`},
		{"a template with what is not supported", "/score_chat_completions", `{"chat_template": "{{ self.x() }}", ` + messages + `}`, 500, `self`},
		{"as deep as it may be", "/score_chat_completions", `{"metadata": ["\"[", ` + strings.Repeat("[", 98) + strings.Repeat("]", 98) + `], ` + messages + `}`, 200, `{"podScores":{"a":1,"b":0},"templated_messages":` + js(text) + `}`},
		{"no role", "/score_chat_completions", `{"messages": [{"content": "x"}]}`, 400, `role`},
		{"the template refuses", "/score_chat_completions", `{"chat_template": "{{ raise_exception('no pirates') }}", ` + messages + `}`, 400, `no pirates`},
		{"a text without tokens", "/score_completions", `{"prompt": "broken"}`, 500, `no tokens of this`},
		{"a model without a tokenizer", "/score_completions", `{"prompt": "x", "model": "other"}`, 500, `no tokenizer`},
		{"a chat that cannot be scored", "/score_chat_completions", `{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]}`, 500, `image`},
		{"busy", "/score_completions", `{"prompt": "busy"}`, 503, `busy`},
	} {
		code, got, h := exchange(t, "POST", f.public.URL+c.path, c.body)
		if code != c.code || code == http.StatusOK && got != c.want || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, code, got, c.code, c.want)
		}
		if (h.Get("Retry-After") != "") != (code == http.StatusServiceUnavailable) || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d with %v", c.name, code, h)
		}
	}
	f.serve(t, e, tokensOf(strings.Repeat("x", 63), true))
	if _, got, _ := exchange(t, "POST", f.public.URL+"/score_completions", js(map[string]string{"prompt": strings.Repeat("x", 63)})); got != `{"a":2,"b":0}` {
		t.Errorf("a prompt of four blocks of 16: %s, want two of 32", got)
	}
	for _, c := range []struct {
		method, path string
		code         int
		allow        string
	}{
		{"GET", "/score_completions", 200, ""}, {"HEAD", "/score_completions", 200, ""}, {"PUT", "/score_completions", 405, "GET, HEAD, POST"},
		{"GET", "/score_chat_completions", 405, "POST"}, {"HEAD", "/score_chat_completions", 405, "POST"}, {"OPTIONS", "/v1/score", 405, "POST"},
		{"GET", "/", 404, ""}, {"POST", "/v1/explain", 404, ""}, {"GET", "/v1/pods", 404, ""}, {"GET", "/debug/pprof/", 404, ""},
	} {
		if code, _, h := exchange(t, c.method, f.public.URL+c.path, ""); code != c.code || h.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, allowed %q, want %d, %q", c.method, c.path, code, h.Get("Allow"), c.code, c.allow)
		}
	}
	without := start(t, server.Config{})
	if code, got, _ := exchange(t, "POST", without.public.URL+"/score_completions", `{"prompt": "x"}`); code != http.StatusBadRequest || !strings.Contains(got, "model: ") {
		t.Errorf("no model anywhere: %d %s", code, got)
	}
}
