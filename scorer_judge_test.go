package kvindex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/remote"
)

// judging is a Judge of an engine that makes tokens by t, and two tokens of each chat.
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

// bare is a tokenizer without an identity.
type bare struct{ of *tokenize.BPE }

func (b bare) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	return b.of.Encode(ctx, dst, text, special)
}

// After a verdict texts and chats go to the engine, or are errors, also those that a prompt cache
// has; after Reset they are local again.
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
	for _, local := range []tokenize.Tokenizer{wrong, bare{wrong}, pool.Tokenizer("any")} {
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
			again, err2 := tokens(prompt) // from the cache
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
