package remote_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/remote"
)

// A fake is an engine whose tokens are the bytes of a text, after 1 for special tokens. Its chats
// are <role>content, with three tokens 9 for an image.
type fake struct {
	paths   string // the paths served
	chats   bool   // /tokenize and /v1/tokenize take chats
	harmony bool
	refuse  func(path string, body map[string]any) (status int, message string)
	change  func(path string, answer map[string]any)
	list    func(answers []any) any

	mu     sync.Mutex
	asked  []string
	bodies []map[string]any
	auth   string
}

const (
	tokenizes = " /tokenize /v1/tokenize "
	renders   = " /v1/chat/completions/render /v1/completions/render "
	renders4  = renders + "/v1/messages/render /v1/responses/render "
)

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	raw, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(raw, &body)
	f.mu.Lock()
	f.asked, f.bodies, f.auth = append(f.asked, r.URL.Path), append(f.bodies, body), r.Header.Get("Authorization")
	f.mu.Unlock()
	say := func(status int, answer any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	}
	switch {
	case !strings.Contains(f.paths, " "+r.URL.Path+" "):
		say(404, map[string]any{"detail": "Not Found"})
		return
	case body["model"] != "m":
		say(404, map[string]any{"error": map[string]any{"message": fmt.Sprintf("The model `%v` does not exist.", body["model"])}})
		return
	}
	if f.refuse != nil {
		if status, message := f.refuse(r.URL.Path, body); status != 0 {
			say(status, map[string]any{"error": map[string]any{"message": message}})
			return
		}
	}
	tokens, media := f.tokens(body)
	answer := map[string]any{"tokens": tokens, "count": len(tokens), "max_model_len": 4096, "token_strs": nil}
	if strings.HasSuffix(r.URL.Path, "/render") {
		answer = map[string]any{"request_id": "x", "token_ids": tokens, "model": "m", "cache_salt": body["cache_salt"], "sampling_params": map[string]any{"stop": []any{"]"}}, "features": nil}
		if len(media) > 0 {
			hashes, places := []any{}, []any{}
			for _, m := range media {
				hashes, places = append(hashes, m.Hash), append(places, map[string]any{"offset": m.Offset, "length": m.Length})
			}
			answer["features"] = map[string]any{"mm_hashes": map[string]any{"image": hashes}, "mm_placeholders": map[string]any{"image": places}, "kwargs_data": nil}
		}
	} else if body["messages"] != nil && !f.chats {
		say(400, map[string]any{"message": "1 validation error: {'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}"})
		return
	}
	if f.change != nil {
		f.change(r.URL.Path, answer)
	}
	if r.URL.Path == "/v1/completions/render" {
		list := []any{answer}
		if f.list != nil {
			say(200, f.list(list))
			return
		}
		say(200, list)
		return
	}
	say(200, answer)
}

func (f *fake) tokens(body map[string]any) (tokens []uint32, media []chat.Media) {
	tokens = []uint32{}
	special := body["add_special_tokens"]
	if _, completion := body["prompt"]; special == true || special == nil && completion {
		tokens = append(tokens, 1)
	}
	add := func(text any) {
		for _, b := range []byte(fmt.Sprint(text)) {
			tokens = append(tokens, uint32(b))
		}
	}
	if prompt, ok := body["prompt"].(string); ok {
		if f.harmony && strings.HasPrefix(prompt, "<|start|>") {
			return append(tokens, 200006, 200005, 200008, 200002), nil
		}
		add(prompt)
	}
	messages, _ := body["messages"].([]any)
	if input, ok := body["input"].([]any); ok {
		messages = input
	}
	for _, m := range messages {
		m := m.(map[string]any)
		add("<" + fmt.Sprint(m["role"]) + ">")
		parts, ok := m["content"].([]any)
		if !ok {
			add(m["content"])
		}
		for _, p := range parts {
			p := p.(map[string]any)
			if text := p["text"]; text != nil {
				add(text)
				continue
			}
			media = append(media, chat.Media{Hash: fmt.Sprint(p), Offset: len(tokens), Length: 3})
			tokens = append(tokens, 9, 9, 9)
		}
	}
	return tokens, media
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// engineOf returns an Engine of servers with these handlers, closed at the end of the test.
func engineOf(t testing.TB, handlers ...http.Handler) *remote.Engine {
	t.Helper()
	e := &remote.Engine{Model: "m", Timeout: 30 * time.Second}
	for _, h := range handlers {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		e.URLs = append(e.URLs, s.URL+"/v1/")
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

const chatPath = "/v1/chat/completions"

func TestEncode(t *testing.T) {
	const text = "a<b> \xff \u2028 \"q\" \\ \x00\n\x1f\x7f 日\xe6"
	const sent = "a<b> \ufffd \u2028 \"q\" \\ \x00\n\x1f\x7f 日\ufffd"
	want := []uint32{7}
	for _, b := range []byte(sent) {
		want = append(want, uint32(b))
	}
	for name, c := range map[string]struct {
		paths string
		first []string // requests of the first call
	}{
		"vLLM":                 {tokenizes, []string{"/tokenize"}},
		"SGLang by its path":   {" /v1/tokenize ", []string{"/tokenize", "/v1/tokenize"}},
		"TensorRT-LLM":         {renders, []string{"/tokenize", "/v1/tokenize", "/v1/completions/render"}},
		"vLLM launch render":   {tokenizes + renders4, []string{"/tokenize"}},
		"a server of no texts": {"", []string{"/tokenize", "/v1/tokenize", "/v1/completions/render"}},
	} {
		f := &fake{paths: c.paths}
		e := engineOf(t, f)
		e.Token = "secret"
		for i := range 3 {
			special := i == 1
			got, err := e.Encode(t.Context(), []uint32{7}, text, special)
			if c.paths == "" {
				if err == nil || !slices.Equal(got, []uint32{7}) || !strings.Contains(err.Error(), "--enable-scale-out") {
					t.Errorf("%s: %v, %v", name, got, err)
				}
			} else if w := want; err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				if special {
					w = slices.Insert(slices.Clone(want), 1, 1)
				}
				if !slices.Equal(got, w) {
					t.Errorf("%s: got %v, want %v", name, got, w)
				}
			}
			asked := f.requests()
			if i == 0 && !slices.Equal(asked, c.first) || i > 0 && !slices.Equal(asked, c.first[min(len(c.first), 3)-1:]) && c.paths != "" || i > 0 && c.paths == "" && len(asked) > 0 {
				t.Errorf("%s, call %d: requests %v", name, i, asked)
			}
		}
		if f.auth != "Bearer secret" {
			t.Errorf("%s: authorization %q", name, f.auth)
		}
	}
	f := &fake{paths: " /v1/tokenize "}
	proxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			http.Error(w, "<title>Model gateway: nothing is here</title>", http.StatusNotFound)
			return
		}
		f.ServeHTTP(w, r)
	})
	if got, err := engineOf(t, proxy).Encode(t.Context(), nil, "a", false); err != nil || !slices.Equal(got, []uint32{'a'}) {
		t.Errorf("behind a proxy with a page of its own for a path that is not served: %v, %v", got, err)
	}
	f = new(fake)
	if got, err := engineOf(t, f).Encode(t.Context(), nil, "", false); err != nil || len(got) > 0 || len(f.requests()) > 0 {
		t.Errorf("an empty text: %v, %v", got, err)
	}
}

func TestRenderBody(t *testing.T) {
	const (
		hello = `"messages":[{"role":"user","content":"hi"}]`
		image = `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"hi"},{"image_url":"v"}]}]`
	)
	vllm, old := &fake{paths: tokenizes + renders4}, &fake{paths: tokenizes, chats: true}
	for _, c := range []struct {
		engine     *fake
		path, body string
		want       string // tokens as text, and media; or the sentinel and a part of the error
		asked      string
	}{
		{vllm, chatPath, `{"model":"alias",` + hello + `,"cache_salt":"s"}`, `<user>hi [] s`, "/v1/chat/completions/render"},
		{vllm, chatPath, `{"model":"a","model":"b","use_beam_search":false,` + image + `}`, "<user>\t\t\thi\t\t\t [6+3 11+3] ", "/v1/chat/completions/render"},
		{vllm, "", `{` + hello + `}`, `<user>hi [] `, "/v1/chat/completions/render"},
		{vllm, "/v1/completions?x=1", `{"prompt":"hi"}`, "\x01hi [] ", "/v1/completions/render"},
		{vllm, "/v1/messages", `{` + hello + `}`, `<user>hi [] `, "/v1/messages/render"},
		{vllm, "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, "<user>\t\t\t [6+3] ", "/v1/messages/render"},
		{vllm, "/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, "<user>\t\t\t [6+3] ", "/v1/responses/render"},
		{old, chatPath, `{` + hello + `}`, `<user>hi [] `, "/v1/chat/completions/render /tokenize /tokenize"},
		{old, chatPath, `{` + hello + `,"documents":null}`, `<user>hi [] `, "/tokenize"},
		{old, "/v1/completions", `{"prompt":["hi"]}`, "\x01hi [] ", "/v1/completions/render /tokenize"},
		{old, "/v1/completions", `{"prompt":[72,73]}`, "HI [] ", ""},
		{old, "/v1/completions", `{"prompt":""}`, "\x01 [] ", "/v1/completions/render /tokenize"},
		{&fake{paths: " /v1/tokenize ", chats: true}, chatPath, `{` + hello + `}`, `<user>hi [] `, "/v1/chat/completions/render /tokenize /v1/tokenize /tokenize /v1/tokenize"},
		{&fake{paths: renders}, chatPath, `{` + hello + `}`, `<user>hi [] `, "/v1/chat/completions/render"},

		{old, chatPath, `{` + image + `}`, "not scorable: leaves out media", ""},
		{old, chatPath, `{` + hello + `,"documents":[{"text":"d"}]}`, "not scorable: leaves out documents", ""},
		{old, chatPath, `{` + hello + `,"reasoning_effort":"low"}`, "not scorable: leaves out reasoning_effort", ""},
		{old, chatPath, `{` + hello + `,"tool_choice":"none"}`, "not scorable: leaves out tool_choice", ""},
		{old, chatPath, `{"messages":[{"role":"user","content":"a","reasoning_content":"b"}]}`, "not scorable: leaves out messages.reasoning_content", ""},
		{old, chatPath, `{"messages":[{"role":"user"},{"role":5}]}`, "malformed: role", ""},
		{old, "/v1/completions", `{"prompt":"a","truncate_prompt_tokens":3}`, "not scorable: truncate_prompt_tokens", ""},
		{old, "/v1/messages", `{` + hello + `}`, "not scorable: --enable-scale-out", "/v1/messages/render"},
		{&fake{paths: tokenizes, chats: true, harmony: true}, chatPath, `{` + hello + `}`, "not scorable: a chat of gpt-oss", "/v1/chat/completions/render /tokenize"},
		{&fake{paths: tokenizes}, chatPath, `{` + hello + `}`, "not scorable: has no", "/v1/chat/completions/render /tokenize /tokenize /v1/tokenize"},
		{vllm, "/v1/embeddings", `{"input":"a"}`, "not scorable: embeddings", ""},
		{vllm, chatPath, `[]`, "malformed: not an object", ""},
		{vllm, chatPath, `{"messages":`, "malformed: not JSON", ""},
		{vllm, chatPath, `{` + hello + `,"cache_salt":5}`, "malformed: cache_salt", ""},
		{vllm, chatPath, `{` + hello + `,"use_beam_search":true}`, "not scorable: use_beam_search", ""},
		{vllm, chatPath, `{"messages":[{"role":"user","content":[{"type":"smell"}]}]}`, `not scorable: messages[0].content[0]: whether a part of type "smell"`, ""},
		{&fake{paths: renders, refuse: func(string, map[string]any) (int, string) { return 400, "no such tool" }}, chatPath, `{` + hello + `}`, "malformed: no such tool", "/v1/chat/completions/render"},
		{&fake{paths: renders, refuse: func(string, map[string]any) (int, string) { return 400, "Multimodal" }}, chatPath, `{` + image + `}`, "not scorable: Multimodal", "/v1/chat/completions/render"},
		{&fake{paths: renders, refuse: func(string, map[string]any) (int, string) { return 503, "wait" }}, chatPath, `{` + hello + `}`, "busy: wait", "/v1/chat/completions/render"},
		{&fake{paths: renders, refuse: func(string, map[string]any) (int, string) { return 500, "CUDA" }}, chatPath, `{` + hello + `}`, "500: CUDA", "/v1/chat/completions/render"},
		{&fake{paths: renders, refuse: func(string, map[string]any) (int, string) { return 307, "" }}, chatPath, `{` + hello + `}`, "307: ", "/v1/chat/completions/render"},
		{&fake{paths: renders, list: func(a []any) any { return append(a, a...) }}, "/v1/completions", `{"prompt":["a","b"]}`, "not scorable: several prompts", "/v1/completions/render"},
	} {
		e := engineOf(t, c.engine)
		if c.engine == old && !strings.Contains(c.asked, "/render") { // the Engine remembers what the engine has
			_, _ = e.RenderBody(t.Context(), chatPath, []byte(`{`+hello+`}`))
			_, _ = e.RenderBody(t.Context(), "/v1/completions", []byte(`{"prompt":"a"}`))
			c.engine.requests()
		}
		x, err := e.RenderBody(t.Context(), c.path, []byte(c.body))
		got := fmt.Sprint(err)
		if err == nil {
			text := ""
			for _, id := range x.Tokens {
				text += string(rune(id))
			}
			places := []string{}
			for _, m := range x.Media {
				places = append(places, fmt.Sprintf("%d+%d", m.Offset, m.Length))
			}
			got = fmt.Sprintf("%s %v %s", text, places, x.Salt)
			if got != c.want {
				t.Errorf("%s %s: got %q, want %q", c.path, c.body, got, c.want)
			}
		} else {
			kind, part, _ := strings.Cut(c.want, ": ")
			of := map[string]error{"malformed": chat.ErrMalformed, "not scorable": chat.ErrNotScorable, "busy": tokenize.ErrBusy}
			for name, sentinel := range of {
				if errors.Is(err, sentinel) != (name == kind) {
					t.Errorf("%s %s: %v", c.path, c.body, err)
				}
			}
			if !strings.Contains(got, part) {
				t.Errorf("%s %s: got %s, want %s", c.path, c.body, got, c.want)
			}
		}
		if asked := strings.Join(c.engine.requests(), " "); asked != c.asked {
			t.Errorf("%s %s: requests %s, want %s", c.path, c.body, asked, c.asked)
		}
	}
}

// A body is sent whole, except for its model.
func TestBodyIsSentWhole(t *testing.T) {
	f := &fake{paths: renders}
	const body = `{"messages":[{"role":"user","content":"\u003c\ud83d\ude00"}],"model":"x","odd \" key":[1e400,-0,{"a":null}],"n":12345678901234567890}`
	if _, err := engineOf(t, f).RenderBody(t.Context(), chatPath, []byte("\ufeff"+body)); err != nil {
		t.Fatal(err)
	}
	// The fake cannot decode 1e400.
	f = &fake{paths: renders}
	sent := strings.Replace(body, "1e400", "1e40", 1)
	if _, err := engineOf(t, f).RenderBody(t.Context(), chatPath, []byte(sent)); err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	_ = json.Unmarshal([]byte(sent), &want)
	want["model"] = "m"
	if got := f.bodies[0]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWrongAnswers(t *testing.T) {
	two := func(places ...any) func(string, map[string]any) {
		return func(_ string, a map[string]any) {
			a["features"] = map[string]any{"mm_hashes": map[string]any{"image": []any{"h", "i"}}, "mm_placeholders": map[string]any{"image": places}}
		}
	}
	at := func(offset, length any) any { return map[string]any{"offset": offset, "length": length} }
	set := func(key string, v any) func(string, map[string]any) {
		return func(_ string, a map[string]any) { a[key] = v }
	}
	for name, c := range map[string]struct {
		change func(string, map[string]any)
		want   string
	}{
		"an id past 31 bits":    {set("token_ids", []any{1, int64(1) << 31}), "token 1: its id is more than"},
		"an id past 64 bits":    {set("token_ids", []any{json.Number("99999999999999999999999")}), "its id is more than"},
		"a negative id":         {set("token_ids", []any{-1}), "a token id"},
		"an id with a fraction": {set("token_ids", []any{json.Number("1.0")}), "a token id"},
		"null":                  {set("token_ids", nil), "a list of token ids"},
		"lists of ids":          {set("token_ids", []any{[]any{1}}), "a token id"},
		"no tokens":             {set("token_ids", []any{}), "no tokens"},
		"none named":            {func(_ string, a map[string]any) { delete(a, "token_ids") }, "no tokens"},
		"two lists":             {set("tokens", []any{1}), "tokens twice"},
		"a wrong count":         {set("count", 3), "a count of 3"},
		"another model":         {set("model", "other"), `of model "other"`},
		"another salt":          {set("cache_salt", "t"), "cache_salt"},
		"no trust": {func(_ string, a map[string]any) {
			a["tokens_trusted"], a["untrusted_reason"] = false, "named_tool_choice"
		}, "named_tool_choice"},
		"no media":          {set("features", nil), "0 media, and the body has 2"},
		"one medium":        {two(at(6, 3)), "2 hashes and 1 places"},
		"wrong order":       {two(at(11, 3), at(6, 3)), "before the end"},
		"one in another":    {two(at(6, 3), at(7, 1)), "before the end"},
		"past the end":      {two(at(6, 3), at(12, 3)), "3 tokens at 12, of 14"},
		"far past the end":  {two(at(6, 3), at(2147483647, 2147483647)), "media 1"},
		"an overflow":       {two(at(6, 3), at(json.Number("9223372036854775807"), 1)), "media"},
		"a negative offset": {two(at(-1, 3), at(6, 3)), "before the end"},
		"no length":         {two(at(6, 0), at(6, 3)), "0 tokens"},
		"no place":          {two(at(6, nil), at(6, 3)), "lacks"},
		"no hashes": {func(_ string, a map[string]any) {
			a["features"].(map[string]any)["mm_hashes"] = nil
		}, "0 hashes and 2 places"},
		"no places": {func(_ string, a map[string]any) { a["features"].(map[string]any)["mm_placeholders"] = nil }, "2 hashes and 0 places"},
		"two kinds": {func(_ string, a map[string]any) {
			f := a["features"].(map[string]any)
			h := f["mm_hashes"].(map[string]any)
			p := f["mm_placeholders"].(map[string]any)
			h["audio"], p["audio"] = h["image"], p["image"]
		}, "4 media, and the body has 2"},
		"other JSON":  {set("features", 5), "number"},
		"an odd salt": {set("cache_salt", []any{}), "array"},
	} {
		f := &fake{paths: renders, change: c.change}
		_, err := engineOf(t, f).RenderBody(t.Context(), chatPath, []byte(`{"messages":[{"role":"user","content":[{"type":"image_url"},{"type":"text","text":"hi"},{"type":"image_url"}]}]}`))
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrNotScorable) != (name == "no trust") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	for _, answer := range []string{"", "{", "[]", "null", `{"tokens":[1]`, `{"tokens":[1,]}`, `{"tokens":[01]}`, `{"tokens":[1]}}`, `{"tokens":[1]} x`, `{"tokens":[1] "count":1}`,
		`{"a":tru,"tokens":[1]}`, `{"a":"\x","tokens":[1]}`, `{"tokens":[1],}`, `{,"tokens":[1]}`, `{5:5,"tokens":[1]}`, `{"a":` + strings.Repeat("[", 1000), `<html>`, `{"tokens":[1 2]}`, `{"tokens":[1],"count":1.5}`} {
		e := engineOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		if got, err := e.Encode(t.Context(), nil, "a", false); err == nil || errors.Is(err, chat.ErrMalformed) {
			t.Errorf("%.60s: %v, %v", answer, got, err)
		}
	}
}

// At most the bound is read of an endless answer.
func TestLongAnswers(t *testing.T) {
	var written atomic.Int64
	for _, told := range []bool{false, true} {
		written.Store(0)
		e := engineOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			const size = 100 << 20
			if told {
				w.Header().Set("Content-Length", fmt.Sprint(size))
			}
			chunk := []byte(strings.Repeat("1,", 1<<15))
			n, err := io.WriteString(w, `{"tokens":[`)
			for ; err == nil && written.Load() < size; n, err = w.Write(chunk) {
				written.Add(int64(n))
			}
		}))
		_, err := e.Encode(t.Context(), nil, "a", false)
		if err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("length sent %v: %v", told, err)
		}
		_ = e.Close()
		if n := written.Load(); n > 32<<20 { // the rest is in the buffers of the system
			t.Errorf("length sent %v: %d bytes were read", told, n)
		}
	}
	if _, err := engineOf(t, new(fake)).Encode(t.Context(), nil, strings.Repeat("a", 16<<20+1), false); !errors.Is(err, tokenize.ErrTextTooLong) {
		t.Errorf("a long text: %v", err)
	}
	if _, err := engineOf(t, new(fake)).RenderBody(t.Context(), chatPath, make([]byte, 64<<20+1)); !errors.Is(err, tokenize.ErrTextTooLong) {
		t.Errorf("a long body: %v", err)
	}
}

// The Engine asks a restarted engine again for its endpoints.
func TestRestart(t *testing.T) {
	f := &fake{paths: tokenizes, chats: true}
	socket := filepath.Join(t.TempDir(), "s") // no other process can listen there meanwhile
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip("no unix sockets: ", err)
	}
	s := &http.Server{Handler: f}
	go func() { _ = s.Serve(l) }()
	e := &remote.Engine{URLs: []string{"unix://" + socket}, Model: "m", Timeout: 30 * time.Second}
	defer e.Close()
	ask := func() []string {
		t.Helper()
		if _, err := e.RenderBody(t.Context(), chatPath, []byte(`{"messages":[{"role":"user","content":"a"}]}`)); err != nil {
			t.Error(err)
		}
		return f.requests()
	}
	ask()
	if asked := ask(); !slices.Equal(asked, []string{"/tokenize"}) {
		t.Errorf("the second time: requests %v", asked)
	}
	_ = s.Close()
	if _, err := e.Encode(t.Context(), nil, "a", false); err == nil {
		t.Error("no engine, and no error")
	}
	f.paths += renders
	if l, err = net.Listen("unix", socket); err != nil {
		t.Fatal(err)
	}
	s = &http.Server{Handler: f}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	if asked := ask(); !slices.Equal(asked, []string{chatPath + "/render"}) {
		t.Errorf("after a restart: requests %v", asked)
	}
	f.mu.Lock()
	f.paths = tokenizes
	f.mu.Unlock()
	if asked := ask(); len(asked) < 2 || asked[len(asked)-1] != "/tokenize" {
		t.Errorf("without /render again: requests %v", asked)
	}
}

func TestAddresses(t *testing.T) {
	f := &fake{paths: tokenizes}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip("no unix sockets: ", err)
	}
	s := &http.Server{Handler: f}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	gone := httptest.NewServer(f)
	gone.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"tokens":[1`)
	}))
	defer cut.Close()
	e := &remote.Engine{URLs: []string{gone.URL, cut.URL, "unix://" + socket}, Model: "m", Timeout: 30 * time.Second}
	defer e.Close()
	for range 2 {
		if got, err := e.Encode(t.Context(), nil, "ab", false); err != nil || !slices.Equal(got, []uint32{'a', 'b'}) {
			t.Errorf("%v, %v", got, err)
		}
	}
	if n := len(f.requests()); n != 2 {
		t.Errorf("%d requests", n)
	}
	for _, c := range []*remote.Engine{{}, {Model: "m"}, {URLs: []string{"10.0.0.7:8000"}, Model: "m"}, {URLs: []string{"ftp://a"}, Model: "m"}, {URLs: []string{"http://u:secret@"}, Model: "m"},
		{URLs: []string{"http://a"}}, {URLs: []string{"http://a"}, Model: "m", Requests: -1}, {URLs: []string{"unix://a/b"}, Model: "m"}} {
		_, err := c.Encode(t.Context(), nil, "a", false)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", c.URLs, err)
		}
		if len(c.URLs) == 1 && c.URLs[0] == "10.0.0.7:8000" && !strings.Contains(err.Error(), "URLs[0] is not that of an HTTP server") {
			t.Error(err)
		}
		_ = c.Close()
	}
}

// With a stalled engine, calls wait, obey their context and the deadline, get ErrBusy beyond the
// bound, and are ended by Close.
func TestStalls(t *testing.T) {
	before := runtime.NumGoroutine()
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	e := &remote.Engine{URLs: []string{s.URL}, Model: "m", Requests: 1, Waiting: 1, Timeout: time.Minute}
	errs := make(chan error, 2)
	encode := func(ctx context.Context) error {
		_, err := e.Encode(ctx, nil, "a", false)
		return err
	}
	go func() { errs <- encode(t.Context()) }()
	<-arrived
	waiting, cancel := context.WithCancel(t.Context())
	go func() {
		err := encode(waiting)
		for ; errors.Is(err, tokenize.ErrBusy); err = encode(waiting) { // until the probe below waits
			runtime.Gosched()
		}
		errs <- err
	}()
	for !errors.Is(encode(canceledSoon(t)), tokenize.ErrBusy) { // until the other one waits
		runtime.Gosched()
	}
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("a waiter that gave up: %v", err)
	}
	go func() { errs <- encode(t.Context()) }() // waits
	_ = e.Close()
	for range 2 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := encode(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a call after Close: %v", err)
	}
	short := &remote.Engine{URLs: []string{s.URL}, Model: "m", Timeout: 20 * time.Millisecond}
	if _, err := short.Encode(t.Context(), nil, "a", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the deadline: %v", err)
	}
	_ = short.Close()
	close(release)
	s.Close()
	for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// canceledSoon returns a context that ends after a millisecond, so that a call begins to wait.
func canceledSoon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		answer := []byte(fmt.Sprintf(`{"count":%d,"max_model_len":4096,"tokens":[%s100000],"token_strs":null}`, n, strings.Repeat("100000,", n-1)))
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = w.Write(answer)
		}))
		e := &remote.Engine{URLs: []string{s.URL}, Model: "m"}
		text := strings.Repeat("word ", n)
		var dst []uint32
		b.Run(fmt.Sprintf("ids=%d", n), func(b *testing.B) {
			for b.Loop() {
				var err error
				if dst, err = e.Encode(b.Context(), dst[:0], text, true); err != nil || len(dst) != n {
					b.Fatal(len(dst), err)
				}
			}
		})
		b.Run(fmt.Sprintf("bare/ids=%d", n), func(b *testing.B) {
			body := `{"model":"m","add_special_tokens":true,"prompt":"` + text + `"}`
			for b.Loop() {
				r, err := http.Post(s.URL+"/tokenize", "application/json", strings.NewReader(body))
				must(b, err)
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
		})
		_ = e.Close()
		s.Close()
	}
}
