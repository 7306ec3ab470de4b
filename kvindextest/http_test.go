package kvindextest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// over starts the API server of an engine.
func over(t *testing.T, cfg kvindextest.EngineConfig) (*kvindextest.Engine, *httptest.Server) {
	t.Helper()
	cfg.Model = model
	e, err := kvindextest.NewEngine(cfg)
	must(t, err)
	s := httptest.NewServer(e)
	t.Cleanup(func() { s.Close(); e.Close() })
	return e, s
}

// tiny returns a model with a small tokenizer and a chat template.
func tiny(t *testing.T) kvindex.Model {
	t.Helper()
	tokenizer, err := os.ReadFile("../tokenize/testdata/tiny.json")
	dir := t.TempDir()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizer, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"tokenizer_class": "PreTrainedTokenizerFast",
			"chat_template": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"}`), 0o600)
	}
	must(t, err)
	m, err := kvindex.LoadModel(dir)
	if err = errors.Join(err, m.ChatErr); err != nil {
		t.Fatal(err)
	}
	return m
}

// tokens returns the prompt of a body.
func tokens(t *testing.T, m kvindex.Model, body string) []uint32 {
	t.Helper()
	r, err := chat.Parse("", []byte(body))
	must(t, err)
	text := r.Text
	if r.Chat() {
		rendering, err := m.Chat.Render(r, nil)
		must(t, err)
		text = rendering.Text
	}
	if text == "" {
		return r.Tokens
	}
	ids, err := m.Tokenizer.Encode(t.Context(), nil, text, r.AddSpecial)
	must(t, err)
	return ids
}

func ask(t *testing.T, url, body string) (status int, answer string, u kvindex.Usage, err error) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", u, err
	}
	defer resp.Body.Close()
	reader := picker.UsageOf(resp.Header, resp.Body)
	all, err := io.ReadAll(reader)
	if err == nil {
		u, err = reader.Usage()
	}
	return resp.StatusCode, string(all), u, err
}

// TestServeHTTP: for many random requests, the usage has the figure that Cached returned before, and a
// stream has a chunk for each token.
func TestServeHTTP(t *testing.T) {
	zmtptest.NoLeaks(t)
	m := tiny(t)
	e, s := over(t, kvindextest.EngineConfig{Pod: "a", LLM: m, Blocks: 40})
	r := rand.New(rand.NewPCG(1, 2))
	hits, ids := 0, map[string]bool{}
	for range 300 {
		words := strings.Repeat("the old harbour ", 1+r.IntN(4)) + strings.Repeat("map ", r.IntN(20))
		fields := map[string]any{"model": model, "max_tokens": 1 + r.IntN(9)}
		path, text := "/v1/completions", "text"
		kind := r.IntN(4)
		switch kind {
		case 0:
			fields["prompt"] = words
		case 1:
			ids := make([]int, 1+r.IntN(100))
			for i := range ids {
				ids[i] = i
			}
			fields["prompt"] = ids
		default:
			path, text = "/v1/chat/completions", "content"
			fields["messages"] = []map[string]string{{"role": "user", "content": words}}
			if kind == 3 {
				path, text = "/v1/messages", "text_delta"
			}
		}
		stream, usage := r.IntN(2) == 0, r.IntN(2) == 0
		if stream {
			fields["stream"] = true
			fields["stream_options"] = map[string]bool{"include_usage": usage}
		}
		if r.IntN(8) == 0 {
			fields["cache_salt"] = "s"
		}
		b, _ := json.Marshal(fields)
		body := string(b)
		prompt := tokens(t, m, body)
		salt, _ := fields["cache_salt"].(string)
		want := kvindex.Usage{PromptTokens: len(prompt), CachedTokens: e.Cached(kvindextest.Request{Tokens: prompt, Salt: salt})}
		status, answer, got, err := ask(t, s.URL+path, body)
		switch {
		case status != http.StatusOK, strings.Contains(answer, `"error"`):
			t.Fatalf("%s: %d %s", body, status, answer)
		case stream && !usage && kind != 3:
			if !errors.Is(err, picker.ErrNoUsage) {
				t.Fatalf("%s: %+v, %v", answer, got, err)
			}
		case err != nil || got != want:
			t.Fatalf("%s\n%s: %+v, %v, want %+v", body, answer, got, err, want)
		}
		hits += want.CachedTokens
		n := fields["max_tokens"].(int)
		events, end := n+1, "data: [DONE]\n\n"
		if kind == 3 {
			events, end = n, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		}
		if stream && (strings.Count(answer, text) != events && kind > 1 || !strings.HasSuffix(answer, end)) {
			t.Fatalf("%d tokens: %s", n, answer)
		}
		id := regexp.MustCompile(`"id":"[^"]+"`).FindString(answer)
		if id == "" || ids[id] {
			t.Fatalf("the id is not new: %s", answer)
		}
		ids[id] = true
		if !stream && !json.Valid([]byte(answer)) {
			t.Fatal(answer)
		}
	}
	if hits == 0 {
		t.Error("nothing was cached")
	}
}

// TestServeHTTPRefuses: the answer to a wrong request is vLLM's, and the request does not change the
// cache.
func TestServeHTTPRefuses(t *testing.T) {
	zmtptest.NoLeaks(t)
	e, s := over(t, kvindextest.EngineConfig{Pod: "a", Blocks: 4})
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/v1/completions", `{"prompt": [1]}`, 200, `"prompt_tokens":1`},
		{"/v1/completions", `{"prompt": [1], "model": "other"}`, 404, "does not exist"},
		{"/v1/completions", `{"prompt": [1], "max_tokens": 0}`, 400, "max_tokens"},
		{"/v1/completions", `{"prompt": [1], "n": 2}`, 400, "n of 1"},
		{"/v1/completions", `{"prompt": [1], "max_tokens": 99}`, 400, "pool holds 48"},
		{"/v1/completions", `{"prompt": "text"}`, 400, "EngineConfig.LLM"},
		{"/v1/completions", `{`, 400, "malformed"},
		{"/v1/chat/completions", `{"messages": [{"role": "user", "content": "x"}]}`, 400, "EngineConfig.LLM"},
		{"/v1/embeddings", `{}`, 404, "no API"},
	} {
		status, answer, _, _ := ask(t, s.URL+c.path, c.body)
		if status != c.status || !strings.Contains(answer, c.says) {
			t.Errorf("%s: %d %s, want %d %s", c.body, status, answer, c.status, c.says)
		}
	}
	req, _ := http.NewRequest(http.MethodPost, s.URL+"/v1/completions", strings.NewReader(`{"prompt": [1]}`))
	req.Header.Set("X-data-parallel-rank", "1")
	for _, path := range []string{"", "/health", "/v1/models"} {
		want := http.StatusOK
		if path == "" {
			want = http.StatusBadRequest
		} else {
			req, _ = http.NewRequest(http.MethodGet, s.URL+path, nil)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%q: %v, %v", path, resp, err)
		}
		resp.Body.Close()
	}
	e.Close()
	if resp, err := http.Get(s.URL + "/health"); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("closed: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// TestFailHTTP: a failure with a status does not change the cache. A connection that FailHTTP breaks
// after the first token leaves the prompt in the cache, and a Restart leaves nothing.
func TestFailHTTP(t *testing.T) {
	zmtptest.NoLeaks(t)
	e, s := over(t, kvindextest.EngineConfig{Pod: "a"})
	ids := make([]uint32, 64)
	b, _ := json.Marshal(map[string]any{"prompt": ids, "stream": true})
	cached := func(want int) {
		t.Helper()
		if got := e.Cached(kvindextest.Request{Tokens: append(ids, 1)}); got != want {
			t.Errorf("%d tokens are cached, want %d", got, want)
		}
	}
	e.FailHTTP(1, http.StatusServiceUnavailable)
	if status, answer, _, _ := ask(t, s.URL+"/v1/completions", string(b)); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, answer)
	}
	cached(0)
	e.FailHTTP(1, 0)
	if status, answer, _, err := ask(t, s.URL+"/v1/completions", string(b)); status != http.StatusOK || strings.Count(answer, `"text"`) != 1 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d %s, %v", status, answer, err)
	}
	cached(64)
	if status, answer, _, _ := ask(t, s.URL+"/v1/completions", string(b)); status != http.StatusOK || !strings.Contains(answer, "[DONE]") {
		t.Errorf("%d %s", status, answer)
	}
	// An answer of 160 s has not ended when its first bytes have come.
	e, s = over(t, kvindextest.EngineConfig{Pod: "a", StepTime: 10 * time.Millisecond})
	resp, err := http.Post(s.URL+"/v1/completions", "", bytes.NewReader([]byte(`{"prompt": [1, 2], "stream": true, "max_tokens": 16000}`)))
	must(t, err)
	defer resp.Body.Close()
	must(t, e.Restart())
	if all, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the answer ends: %.50q of %d bytes", all, len(all))
	}
	cached(0)
}

// TestHTTPBehindPicker: a gateway in front of two engines sends a prompt to the engine that has computed
// it, and the usage in the answer is equal to the gateway's prediction.
func TestHTTPBehindPicker(t *testing.T) {
	zmtptest.NoLeaks(t)
	ctx := zmtptest.Context(t)
	ix, err := kvindex.New()
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	engines := map[string]*kvindextest.Engine{}
	var pods []picker.Pod
	for _, pod := range []string{"a", "b"} {
		e, s := over(t, kvindextest.EngineConfig{Pod: pod})
		subscribe(t, ix, events.SubscriberConfig{Endpoint: e.Endpoint(), Pod: pod, Model: model})
		must(t, e.WaitSubscribers(ctx, 1))
		engines[pod] = e
		pods = append(pods, picker.Pod{Name: pod, Host: s.Listener.Addr().String()})
	}
	type end struct {
		pod               string
		predicted, cached int
		err               error
	}
	ends := make(chan end, 1)
	p, err := picker.New(ix, picker.Config{Model: model, Timeout: time.Hour, OnEnd: func(k *picker.Pick, u kvindex.Usage, err error) {
		ends <- end{k.Pod.Name, k.CachedTokens, u.CachedTokens, err}
	}})
	if err == nil {
		err = p.Set(pods)
	}
	must(t, err)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := http.Client{Transport: p.RoundTripper(base)}
	at := map[string]string{}
	for i := range 20 {
		prompt := fmt.Sprintf("%d", i%5) + strings.Repeat(", 7", 40)
		resp, err := client.Post("http://pods/v1/completions", "", strings.NewReader(`{"model": "m", "prompt": [`+prompt+`]}`))
		must(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		got := <-ends
		want := end{got.pod, 0, 0, nil}
		if i >= 5 {
			want = end{at[prompt], 32, 32, nil}
		}
		if got != want {
			t.Errorf("request %d: %+v, want %+v", i, got, want)
		}
		at[prompt] = got.pod
		must(t, engines[got.pod].WaitApplied(ctx, ix))
	}
}
