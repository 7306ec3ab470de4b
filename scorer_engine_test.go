package kvindex_test

import (
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
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/remote"
)

var engineBodies = flag.Int("bodies.n", 1000, "bodies of TestEngineRenders; long form: 10000")

// A renderServer renders bodies by a chat and the tokenizer words. An image in a chat with media
// is two tokens of 7, with its URL for a hash.
type renderServer struct {
	chat  *chat.Model
	asked atomic.Int64
	wrong atomic.Bool // one image is left out
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
	if path == r.URL.Path { // a text
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

// withEngine returns a model whose tokenizer is an engine that s is.
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

// tieOf returns the length of the prompt of a request, and a hash of all its tokens, media and
// salt.
func tieOf(ix *kvindex.Indexer, r kvindex.Request) (length int, tie uint64, err error) {
	r.Pods = []string{"pod"}
	var a kvindex.Answer
	if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
		return 0, 0, err
	}
	return a.PromptTokens, a.RoutePods(nil)[0].Tie, nil
}

// Chats that are not scorable here go to the engine, and are those of its tokens and media;
// others are rendered here, and what is wrong is asked of nobody.
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

// An engine that renders by our own chat and tokenizer has the prompts that are made here, for
// a model without a chat and each real template.
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

// A text of a model whose tokenizer is an engine is encoded by it.
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

// A model of which the engine makes all chats is not said to lack a template.
func TestEngineAloneFails(t *testing.T) {
	m, err := chat.New("{{ raise_exception('no chats today') }}", nil, chat.Options{})
	must(t, err)
	ix := open(t, kvindex.WithModel("m", withEngine(t, &renderServer{chat: m}, nil)))
	_, _, err = tieOf(ix, kvindex.Request{Path: "/v1/chat/completions", Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`)})
	if err == nil || !strings.Contains(err.Error(), "no chats today") || strings.Contains(err.Error(), "give one") || errors.Is(err, kvindex.ErrNoTemplate) {
		t.Error(err)
	}
}
