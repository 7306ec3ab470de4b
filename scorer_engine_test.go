package kvindex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
	"github.com/kvindex/kvindex/tokenize/remote"
)

var engineBodies = flag.Int("bodies.n", 1000, "bodies of TestEngineRenders; long form: 10000")

// renderServer renders bodies by a chat and the tokenizer words. An image of a chat with media is
// two tokens of id 7, and its URL is its hash.
type renderServer struct {
	chat  *chat.Model
	asked atomic.Int64
	wrong atomic.Bool // leaves out an image
}

func (s *renderServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	raw, _ := io.ReadAll(r.Body)
	path := strings.TrimSuffix(r.URL.Path, "/render")
	say := func(tokens []uint32, media []chat.Media, err error) {
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error()}})
			return
		}
		hashes, places := []string{}, []map[string]int{}
		for _, m := range media {
			hashes, places = append(hashes, m.Hash), append(places, map[string]int{"offset": m.Offset, "length": m.Length})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token_ids": tokens, "features": map[string]any{"mm_hashes": map[string]any{"image": hashes}, "mm_placeholders": map[string]any{"image": places}}})
	}
	if path == r.URL.Path {
		var text struct {
			Prompt  string `json:"prompt"`
			Special bool   `json:"add_special_tokens"`
		}
		_ = json.Unmarshal(raw, &text)
		tokens, err := words{}.Encode(ctx, nil, text.Prompt, text.Special)
		say(tokens, nil, err)
		return
	}
	if tokens, media := plainImages(raw); len(media) > 0 {
		if s.wrong.Load() {
			media = media[1:]
		}
		say(tokens, media, nil)
		return
	}
	request, err := chat.Parse(path, raw)
	if err != nil {
		say(nil, nil, err)
		return
	}
	x, err := s.chat.Render(request, nil)
	if err != nil {
		say(nil, nil, err)
		return
	}
	tokens, err := words{}.Encode(ctx, nil, x.Text, request.AddSpecial)
	say(tokens, nil, err)
}

// plainImages renders the contents of a chat with images.
func plainImages(body []byte) (tokens []uint32, media []chat.Media) {
	var b struct {
		Messages []struct{ Content []map[string]any }
	}
	if json.Unmarshal(body, &b) != nil {
		return nil, nil
	}
	for _, m := range b.Messages {
		for _, p := range m.Content {
			if image, ok := p["image_url"].(map[string]any); ok {
				media = append(media, chat.Media{Hash: fmt.Sprint(image["url"]), Offset: len(tokens), Length: 2})
				tokens = append(tokens, 7, 7)
			} else {
				tokens = append(tokens, bytesOf(fmt.Sprint(p["text"]))...)
			}
		}
	}
	return tokens, media
}

// withEngine returns a model whose tokenizer is the engine s.
func withEngine(t *testing.T, s *renderServer, m *chat.Model) kvindex.Model {
	t.Helper()
	server := httptest.NewServer(s)
	e := &remote.Engine{URLs: []string{server.URL}, Model: "m", Timeout: time.Minute}
	t.Cleanup(func() {
		_ = e.Close()
		server.Close()
	})
	return kvindex.Model{Tokenizer: e, Chat: m}
}

// tieOf returns the length of a request's prompt, and a hash of its tokens, media and salt.
func tieOf(ix *kvindex.Indexer, r kvindex.Request) (length int, tie uint64, err error) {
	r.Pods = []string{"pod"}
	var a kvindex.Answer
	if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
		return 0, 0, err
	}
	return a.PromptTokens, a.RoutePods(nil)[0].Tie, nil
}

// The engine renders the chats that cannot be scored locally, and its tokens and media count. Other
// chats are rendered locally, and invalid ones are sent nowhere.
func TestEngineRenders(t *testing.T) {
	const odd = `{% if messages[0].role == 'odd' %}{{ raise_exception('odd') }}{% endif %}`
	m, err := chat.New(odd+turns, map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	s := &renderServer{chat: m}
	seed := kvindex.WithKeySeed([16]byte{1})
	ix, local := open(t, seed, kvindex.WithModel("m", withEngine(t, s, m))), open(t, seed, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
	rng := rand.New(rand.NewPCG(1, 2))
	sent, failed := uint64(0), uint64(0)
	for i := range *engineBodies {
		salt := []string{"", "s"}[rng.IntN(2)]
		text := fmt.Sprint("Hello ", rng.Int64())
		body := map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": text}}}
		if salt != "" {
			body["cache_salt"] = salt
		}
		kind := rng.IntN(30)
		if kind < 4 {
			parts := []any{}
			for j := range 1 + rng.IntN(3) {
				parts = append(parts, map[string]any{"type": "text", "text": fmt.Sprint(text, j)}, map[string]any{"type": "image_url", "image_url": map[string]any{"url": fmt.Sprint("u", rng.IntN(3))}})
			}
			body["messages"] = []any{map[string]any{"role": "user", "content": parts}}
		}
		switch kind {
		case 3:
			s.wrong.Store(true)
			failed++
		case 4:
			body["messages"] = []any{map[string]any{"role": "odd", "content": text}}
		case 5:
			body["messages"] = []any{map[string]any{"role": "user", "content": text}, map[string]any{"role": 5}}
		}
		raw := []byte(jsonOf(body))
		before := s.asked.Load()
		n, tie, err := tieOf(ix, kvindex.Request{Path: "/v1/chat/completions", Body: raw})
		s.wrong.Store(false)
		asked := s.asked.Load() - before
		if kind < 4 {
			sent++
			tokens, media := plainImages(raw)
			wantN, want, wantErr := tieOf(local, kvindex.Request{Model: "m", Tokens: tokens, Media: media, Salt: salt})
			switch {
			case asked != 1:
				t.Fatalf("body %d, %s: %d requests", i, raw, asked)
			case kind == 3 && (err == nil || errors.Is(err, kvindex.ErrRequest)), kind < 3 && (err != nil || wantErr != nil || n != wantN || tie != want):
				t.Fatalf("body %d, %s: %d tokens, %v, want %d, %v", i, raw, n, err, wantN, wantErr)
			}
			continue
		}
		wantN, want, wantErr := tieOf(local, kvindex.Request{Path: "/v1/chat/completions", Body: raw})
		switch {
		case kind == 4 || kind == 5:
			if asked != 0 || !errors.Is(err, kvindex.ErrRequest) {
				t.Fatalf("body %d, %s: %d requests, %v", i, raw, asked, err)
			}
		case err != nil || wantErr != nil || n != wantN || tie != want:
			t.Fatalf("body %d, %s: %d tokens, %v, want %d, %v", i, raw, n, err, wantN, wantErr)
		}
	}
	if got := ix.Stats().Scores; got.Rendered != sent-failed || got.Unrendered != failed || sent < uint64(*engineBodies)/10 || failed == 0 {
		t.Errorf("%d rendered and %d not, want %d and %d", got.Rendered, got.Unrendered, sent-failed, failed)
	}
	for path, body := range map[string]string{"/v1/completions": `{"model":"m","prompt":["a","b"]}`, "/v1/responses": `{"model":"m","input":"a","truncation":"auto"}`} {
		if _, _, err := tieOf(local, kvindex.Request{Path: path, Body: []byte(body)}); !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s without an engine: %v", body, err)
		}
		before := s.asked.Load()
		if _, _, err := tieOf(ix, kvindex.Request{Path: path, Body: []byte(body)}); err == nil || s.asked.Load() == before {
			t.Errorf("%s: %v, after %d requests", body, err, s.asked.Load()-before)
		}
	}
}

// An engine that renders by the same template and tokenizer makes the same prompts, for a model
// without a chat and for each real template.
func TestEngineAgainstTemplates(t *testing.T) {
	cases := map[string]map[string]any{}
	raw, err := os.ReadFile(testdata.Path(t, "chat templates", "templates", "cases.json"))
	must(t, err)
	must(t, json.Unmarshal(raw, &cases))
	compared, refused := 0, 0
	for _, path := range testdata.Glob(t, "chat templates", "templates", "*.jinja") {
		name := filepath.Base(path)
		source, err := os.ReadFile(path)
		must(t, err)
		m, err := chat.New(string(source), map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}, chat.Options{Now: func() time.Time { return time.Unix(1e9, 0) }})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		seed := kvindex.WithKeySeed([16]byte{1})
		here := open(t, seed, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
		there := open(t, seed, kvindex.WithModel("m", withEngine(t, &renderServer{chat: m}, nil)))
		for of, c := range cases {
			body := map[string]any{"model": "m"}
			for key, v := range c {
				if v != nil && !strings.HasSuffix(key, "_token") {
					body[key] = v
				}
			}
			r := kvindex.Request{Path: "/v1/chat/completions", Body: []byte(jsonOf(body))}
			n, tie, err := tieOf(there, r)
			wantN, want, wantErr := tieOf(here, r)
			if (err == nil) != (wantErr == nil) || n != wantN || tie != want || errors.Is(wantErr, kvindex.ErrRequest) && !errors.Is(err, kvindex.ErrRequest) {
				t.Errorf("%s, %s: %d tokens, %v, want %d, %v", name, of, n, err, wantN, wantErr)
			}
			if err != nil {
				refused++
			} else {
				compared++
			}
		}
	}
	if compared < 500 {
		t.Errorf("%d prompts were compared", compared)
	}
	t.Logf("%d prompts are equal, and %d refused", compared, refused)
}

// An engine as the tokenizer encodes texts.
func TestEngineEncodes(t *testing.T) {
	m, err := chat.New(turns, nil, chat.Options{})
	must(t, err)
	ix := open(t, kvindex.WithModel("m", withEngine(t, &renderServer{chat: m}, nil)))
	n, tie, err := tieOf(ix, kvindex.Request{Model: "m", Prompt: "abc"})
	wantN, want, _ := tieOf(ix, kvindex.Request{Model: "m", Tokens: slices.Concat([]uint32{1}, bytesOf("abc"))})
	if err != nil || n != wantN || tie != want {
		t.Errorf("%d tokens, %v, want %d", n, err, wantN)
	}
}

// A model whose engine renders all chats lacks no template.
func TestEngineAloneFails(t *testing.T) {
	m, err := chat.New("{{ raise_exception('no chats today') }}", nil, chat.Options{})
	must(t, err)
	ix := open(t, kvindex.WithModel("m", withEngine(t, &renderServer{chat: m}, nil)))
	_, _, err = tieOf(ix, kvindex.Request{Path: "/v1/chat/completions", Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`)})
	if err == nil || !strings.Contains(err.Error(), "no chats today") || strings.Contains(err.Error(), "give one") || errors.Is(err, kvindex.ErrNoTemplate) {
		t.Error(err)
	}
}

// judging is a Judge of an engine that makes tokens by there, and two tokens of each chat.
func judging(t *testing.T, there tokenize.Tokenizer) (*remote.Judge, *atomic.Int64) {
	t.Helper()
	asks := new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks.Add(1)
		raw, _ := io.ReadAll(r.Body)
		var body struct {
			Prompt   string
			Messages []any
			Special  bool `json:"add_special_tokens"`
		}
		if r.URL.Path != "/tokenize" || json.Unmarshal(raw, &body) != nil {
			http.NotFound(w, r)
			return
		}
		ids, _ := there.Encode(r.Context(), nil, body.Prompt, body.Special)
		if body.Messages != nil {
			ids = []uint32{1, 2}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "tokens": append([]uint32{}, ids...)})
	}))
	t.Cleanup(s.Close)
	engine := &remote.Engine{URLs: []string{s.URL}, Model: "boats"}
	t.Cleanup(func() { engine.Close() })
	return &remote.Judge{Engine: engine}, asks
}

// anonymous is a tokenizer without an identity.
type anonymous struct{ of *tokenize.BPE }

func (b anonymous) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	return b.of.Encode(ctx, dst, text, special)
}

// After a verdict texts and chats go to the engine or are errors, those in a prompt cache too;
// after Reset they are local again.
func TestVerdictStopsLocalWork(t *testing.T) {
	const file = "tokenize/testdata/tiny.json"
	wrong, err := tokenize.Load(file)
	must(t, err)
	raw, err := os.ReadFile(file)
	must(t, err)
	raw = bytes.Replace(raw, []byte(`["Ġ","t"],`), nil, 1) // the first merge
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	must(t, os.WriteFile(path, raw, 0o600))
	right, err := tokenize.Load(path)
	must(t, err)
	m, err := chat.New("{% for m in messages %}{{ m.content }}{% endfor %}", nil, chat.Options{})
	must(t, err)
	pool, err := tokenize.NewPool(tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return file, nil }})
	must(t, err)
	defer pool.Close()
	for _, local := range []tokenize.Tokenizer{wrong, anonymous{wrong}, pool.Tokenizer("any")} {
		for _, fallback := range []bool{false, true} {
			j, asks := judging(t, right)
			if fallback {
				j.Fallback = j.Engine
			}
			model := kvindex.Model{Tokenizer: j.Tokenizer(local), Chat: m}
			ix, err := kvindex.New(kvindex.WithModel("boats", model), kvindex.WithPromptCache(1<<20))
			must(t, err)
			const text = "The boats come and go, and come again, and then the water goes and comes."
			tokens := func(r kvindex.Request) (int, error) {
				var a kvindex.Answer
				err := ix.ScoreRequest(t.Context(), &r, &a)
				return a.PromptTokens, err
			}
			prompt := kvindex.Request{Model: "boats", Prompt: text}
			body := kvindex.Request{Path: "/v1/chat/completions", Body: []byte(`{"model":"boats","messages":[{"role":"user","content":"The boats come and go."}]}`)}
			before, err := tokens(prompt)
			chatBefore, chatErr := tokens(body)
			again, err2 := tokens(prompt)
			if errors.Join(err, chatErr, err2) != nil || again != before || asks.Load() > 0 {
				t.Fatalf("before: %v, %v, %v, and %d requests", err, chatErr, err2, asks.Load())
			}
			if err := j.Check(t.Context(), local, model.Chat); !errors.Is(err, remote.ErrCheckFailed) {
				t.Fatalf("no verdict: %v", err)
			}
			for range 2 {
				n, err := tokens(prompt)
				c, chatErr := tokens(body)
				if !fallback {
					if !errors.Is(err, remote.ErrCheckFailed) || !errors.Is(chatErr, remote.ErrCheckFailed) {
						t.Errorf("after a verdict: %v, and for a chat %v", err, chatErr)
					}
					continue
				}
				ids, _ := right.Encode(t.Context(), nil, text, true)
				if err != nil || chatErr != nil || n != len(ids) || n == before || c == chatBefore {
					t.Errorf("after a verdict: %d tokens, %v, and for a chat %d, %v; before %d and %d", n, err, c, chatErr, before, chatBefore)
				}
			}
			j.Reset()
			n, err := tokens(prompt)
			c, chatErr := tokens(body)
			if err != nil || chatErr != nil || n != before || c != chatBefore {
				t.Errorf("after Reset: %d tokens, %v, and for a chat %d, %v; before %d and %d", n, err, c, chatErr, before, chatBefore)
			}
			if err := ix.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// excluding opens an Indexer with a model and two chats, one with tools: pods "a" and "b" hold all
// of both, "c" holds neither.
func excluding(t *testing.T) (ix *kvindex.Indexer, m *chat.Model, plain, tools []byte) {
	t.Helper()
	m, err := chat.New(turns+"{{ tools }}", map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	ix = open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
	plain = []byte(`{"model":"m","messages":[{"role":"user","content":"how do boats come and go?"}]}`)
	tools = []byte(`{"model":"m","messages":[{"role":"user","content":"how do boats come and go?"}],"tools":[{"type":"function","function":{"name":"tide"}}]}`)
	for i, body := range [][]byte{plain, tools} {
		r, err := chat.Parse("", body)
		must(t, err)
		x, err := m.Render(r, nil)
		must(t, err)
		holdAll(t, ix, "a", uint64(i+1), bytesOf(x.Text))
		holdAll(t, ix, "b", uint64(i+1), bytesOf(x.Text))
	}
	holdAll(t, ix, "c", 3, bytesOf("another prompt of 32 characters!"))
	return ix, m, plain, tools
}

// A check finds an engine that drops tools: its pod is scored for all other chats, and other pods
// for all.
func TestExcludeWhatACheckFinds(t *testing.T) {
	ix, m, plain, tools := excluding(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenize" {
			http.NotFound(w, r)
			return
		}
		raw, _ := io.ReadAll(r.Body)
		if at := strings.Index(string(raw), `,"tools"`); at > 0 {
			raw = append(raw[:at:at], '}')
		}
		request, err := chat.Parse("", raw)
		var x *chat.Rendering
		if err == nil {
			x, err = m.RenderAnyway(request, nil)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"tokens": bytesOf(x.Text)})
	}))
	defer s.Close()
	report, err := chatcheck.Engine{URL: s.URL, Model: "m"}.Check(ctx, m, words{})
	if err != nil || !slices.Equal(report.Differs(), []string{"tools"}) {
		t.Fatalf("%v\n%s", err, report)
	}

	m.Exclude("a", report.Differs()...)
	for _, c := range []struct {
		body []byte
		want string
	}{{plain, "a b"}, {tools, "b"}} {
		if got := holders(score(t, ix, kvindex.Request{Body: c.body})); got != c.want {
			t.Errorf("%s: held by %q, want %q", c.body, got, c.want)
		}
	}
	if a := score(t, ix, kvindex.Request{Body: tools})[2]; a != (kvindex.PodScore{Pod: "a", NotScorable: true, State: a.State}) || a.State == kvindex.StateUnknown {
		t.Errorf("%+v", a)
	}

	m.Exclude("", report.Differs()...)
	var answer kvindex.Answer
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Body: tools}, &answer); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), ": tools") {
		t.Error(err)
	}
	if got := ix.Stats().Scores.Outcomes["not_scorable"]; got != 1 {
		t.Errorf("%d not scorable", got)
	}
	if got := holders(score(t, ix, kvindex.Request{Body: plain})); got != "a b" {
		t.Errorf("held by %q", got)
	}
	m.Exclude("")
	m.Exclude("a")
	if got := holders(score(t, ix, kvindex.Request{Body: tools})); got != "a b" {
		t.Errorf("held by %q", got)
	}
}

// An excluded pod is last, also with Top, Candidates and ties.
func TestExcludedPodsAreLast(t *testing.T) {
	ix, m, plain, tools := excluding(t)
	all := []string{"a", "b", "c", "d", "never"}
	for _, excluded := range [][]string{{"a"}, {"d"}, {"a", "b"}, {"a", "b", "c", "d"}, {"a", "c", "never"}, all} {
		for _, pod := range all {
			m.Exclude(pod)
		}
		for _, pod := range excluded {
			m.Exclude(pod, "tools")
		}
		want := score(t, ix, kvindex.Request{Body: tools, Pods: all})
		for i, s := range want {
			if out := slices.Contains(excluded, s.Pod); s.NotScorable != out || out != (i >= len(all)-len(excluded)) || out && (s.CachedTokens != 0 || s.MatchedBlocks != 0) {
				t.Errorf("without %v: %+v at %d", excluded, s, i)
			}
			if i > 0 && s.CachedTokens > want[i-1].CachedTokens {
				t.Errorf("without %v: %+v behind %+v", excluded, s, want[i-1])
			}
		}
		for top := 1; top <= len(all); top++ {
			for _, r := range []kvindex.Request{{Pods: all}, {Candidates: ix.Candidates("m", all)}} {
				r.Body, r.Top = tools, top
				if got := score(t, ix, r); !slices.Equal(got, want[:top]) {
					t.Errorf("without %v, the best %d: %+v, want %+v", excluded, top, got, want[:top])
				}
			}
		}
		for _, r := range []kvindex.Request{{Body: plain}, {Model: "m", Prompt: "how do boats come and go?"}} {
			score(t, ix, kvindex.Request{Body: tools}) // leaves no trace
			for _, s := range score(t, ix, r) {
				if s.NotScorable {
					t.Errorf("without %v: %+v", excluded, s)
				}
			}
		}
	}
	raw, err := json.Marshal(score(t, ix, kvindex.Request{Body: tools, Pods: []string{"a"}}))
	if err != nil || !strings.Contains(string(raw), `"NotScorable":true`) {
		t.Errorf("%s, %v", raw, err)
	}
}

func holders(scores []kvindex.PodScore) string {
	var names []string
	for _, s := range scores {
		if s.MatchedBlocks > 0 {
			names = append(names, s.Pod)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
