package server_test

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// The service beside a bare handler: of 8,000 token ids one that reads and decodes the body, of
// 32 kB of text one that calls Score. p99 is at half of the requests that were served before.
func BenchmarkBeside(b *testing.B) {
	path := testdata.Path(b, "the time of texts", "tokens", "llama3")
	t, err := tokenize.Load(filepath.Join(path, "tokenizer.json.gz"))
	if err != nil {
		b.Fatal(err)
	}
	ix, err := kvindex.New(kvindex.WithModel("m", kvindex.Model{Tokenizer: t}), kvindex.WithPromptCache(0))
	if err != nil {
		b.Fatal(err)
	}
	defer ix.Close()
	p := fakeengine.NewPrompt(1, 16, 500)
	for _, pod := range []string{"a", "b", "c", "d"} {
		if err := ix.Ingest(pod, "m", fakeengine.Payload(1, 0, p.Stored(0, 500))); err != nil {
			b.Fatal(err)
		}
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
	for _, c := range []struct {
		name, body string
		h          http.Handler
	}{
		{"tokens/bare", tokens, bare(func(_ context.Context, body []byte) any {
			var q struct {
				Model  string
				Tokens []uint32
			}
			if err := json.Unmarshal(body, &q); err != nil || len(q.Tokens) != 8000 {
				panic("the body")
			}
			return map[string]int{"a": len(q.Tokens)}
		})},
		{"tokens/service", tokens, s.Public()},
		{"text/bare", prompt, bare(func(ctx context.Context, body []byte) any {
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
		{"text/service", prompt, s.Public()},
	} {
		b.Run(c.name, func(b *testing.B) {
			at := httptest.NewServer(c.h)
			defer at.Close()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer client.CloseIdleConnections()
			path := at.URL + "/v1/score"
			ask := func() {
				a, err := client.Post(path, "application/json", strings.NewReader(c.body))
				if err != nil {
					panic(err)
				}
				if _, err := io.Copy(io.Discard, a.Body); err != nil || a.StatusCode != http.StatusOK {
					panic(a.Status)
				}
				a.Body.Close()
			}
			b.SetParallelism(4)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ask()
				}
			})
			each := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(float64(time.Second/each), "requests/s")
			if b.N > 100 {
				b.ReportMetric(float64(p99AtHalf(each, b.N, ask).Microseconds()), "p99-us")
			}
		})
	}
}

// p99AtHalf sends n requests at half of the rate of one in each, and returns the p99 of their times.
func p99AtHalf(each time.Duration, n int, ask func()) time.Duration {
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	var next atomic.Int64
	began := time.Now()
	for range 16 {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				due := began.Add(2 * each * time.Duration(i))
				time.Sleep(time.Until(due))
				ask()
				took[i] = time.Since(due)
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[n*99/100]
}
