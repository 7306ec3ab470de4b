package server_test

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/openloop"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// The service beside a bare handler: with 8,000 token ids a handler that reads and decodes the
// body, with 32 kB of text one that calls Score. Half sends N rounds of 400 requests to each,
// at half of the rate that the bare handler can sustain.
func BenchmarkBeside(b *testing.B) {
	path := testdata.Path(b, "the time of texts", "tokens", "llama3")
	t, err := tokenize.Load(filepath.Join(path, "tokenizer.json.gz"))
	must(b, err)
	ix, err := kvindex.New(kvindex.WithModel("m", kvindex.Model{Tokenizer: t}), kvindex.WithPromptCache(0))
	must(b, err)
	defer ix.Close()
	p := fakeengine.NewPrompt(1, 16, 500)
	for _, pod := range []string{"a", "b", "c", "d"} {
		must(b, ix.Ingest(pod, "m", fakeengine.Payload(1, 0, p.Stored(0, 500))))
	}
	s := server.New(server.Config{Model: "m"})
	s.Open(ix, nil)
	defer s.Close()
	tokens := js(map[string]any{"model": "m", "tokens": p.Tokens})
	random := rand.New(rand.NewPCG(1, 1))
	var text strings.Builder
	for text.Len() < 32_000 {
		text.WriteString([]string{"how ", "do ", "boats ", "come ", "and ", "go ", "to ", "where ", "they ", "are, "}[random.IntN(10)])
	}
	prompt := js(map[string]any{"model": "m", "prompt": text.String()})
	bare := func(answer func(ctx context.Context, body []byte) any) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(err)
			}
			_ = json.NewEncoder(w).Encode(answer(r.Context(), body))
		})
	}
	serve := func(path, body string, h http.Handler) (ask func()) {
		at := httptest.NewServer(h)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
		b.Cleanup(func() { client.CloseIdleConnections(); at.Close() })
		return func() {
			a, err := client.Post(at.URL+path, "application/json", strings.NewReader(body))
			if err != nil {
				panic(err)
			}
			if _, err := io.Copy(io.Discard, a.Body); err != nil || a.StatusCode != http.StatusOK {
				panic(a.Status)
			}
			a.Body.Close()
		}
	}
	for _, c := range []struct {
		name, body string
		bare       http.Handler
	}{
		{"tokens", tokens, bare(func(_ context.Context, body []byte) any {
			var q struct {
				Model  string
				Tokens []uint32
			}
			if err := json.Unmarshal(body, &q); err != nil || len(q.Tokens) != 8000 {
				panic("the body")
			}
			return map[string]int{"a": len(q.Tokens)}
		})},
		{"text", prompt, bare(func(ctx context.Context, body []byte) any {
			var q struct{ Model, Prompt string }
			if err := json.Unmarshal(body, &q); err != nil {
				panic(err)
			}
			pods, err := ix.Score(ctx, q.Prompt, q.Model, nil)
			if err != nil {
				panic(err)
			}
			return pods
		})},
	} {
		bare, service := serve("/v1/score", c.body, c.bare), serve("/v1/score", c.body, s.Public())
		for name, ask := range map[string]func(){"bare": bare, "service": service} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				each := openloop.Full(max(b.N, 8), ask)
				b.ReportMetric(float64(time.Second/each), "requests/s")
			})
		}
		b.Run(c.name+"/half", func(b *testing.B) {
			p99, ours, ratio := openloop.Half(b.N, 400, bare, service)
			b.ReportMetric(float64(p99.Microseconds()), "bare-p99-us")
			b.ReportMetric(float64(ours.Microseconds()), "p99-us")
			b.ReportMetric(ratio, "ratio")
		})
	}
}
