package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

func TestMain(m *testing.M) { zmtptest.Main(m) }

// letters is a tokenizer: a token for each byte, and one for the beginning of the text.
type letters struct{}

func (letters) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	switch text {
	case "busy":
		return nil, tokenize.ErrBusy
	case "broken":
		return nil, fmt.Errorf("no tokens of this")
	}
	if special {
		dst = append(dst, 1000)
	}
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// tokensOf returns the tokens of a text, for an engine.
func tokensOf(text string, special bool) []uint32 {
	ids, _ := letters{}.Encode(context.Background(), nil, text, special)
	return ids
}

const template = `{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

// fleet is a service with its two addresses, and the engines that it follows.
type fleet struct {
	ctx           context.Context
	ix            *kvindex.Indexer
	fleet         *events.Fleet
	engines       []*kvindextest.Engine
	server        *server.Server
	public, admin *httptest.Server
}

// start starts a service for model "m", without engines.
func start(t testing.TB, cfg server.Config, options ...kvindex.Option) *fleet {
	t.Helper()
	f := &fleet{ctx: zmtptest.Context(t)}
	m, err := chat.New(template, map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}, chat.Options{})
	if err == nil {
		f.ix, err = kvindex.New(append(options, kvindex.WithModel("m", kvindex.Model{Tokenizer: letters{}, Chat: m}))...)
	}
	if err == nil {
		f.fleet, err = events.NewFleet(f.ix.Sink(), events.FleetConfig{})
	}
	must(t, err)
	ctx, cancel := context.WithCancel(f.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.fleet.Run(ctx)
	}()
	f.server = server.New(cfg)
	f.server.Open(f.ix, f.fleet)
	f.public, f.admin = httptest.NewServer(f.server.Public()), httptest.NewServer(f.server.Admin())
	t.Cleanup(func() {
		f.public.Close()
		f.admin.Close()
		f.server.Close()
		cancel()
		<-ended
		_ = f.ix.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return f
}

// add starts an engine and lets the fleet follow it.
func (f *fleet) add(t testing.TB, cfg kvindextest.EngineConfig) *kvindextest.Engine {
	t.Helper()
	cfg.Model = "m"
	engines, pod, err := kvindextest.NewPod(cfg, 1)
	if err == nil {
		err = f.fleet.Put("test", pod)
	}
	must(t, err)
	t.Cleanup(func() { _ = engines[0].Close() })
	must(t, engines[0].WaitSubscribers(f.ctx, 1))
	f.engines = append(f.engines, engines[0])
	return engines[0]
}

// serve lets an engine answer a prompt, and waits until its events are applied.
func (f *fleet) serve(t testing.TB, e *kvindextest.Engine, tokens []uint32) {
	t.Helper()
	_, err := e.Serve(f.ctx, kvindextest.Request{Tokens: tokens})
	if err == nil {
		err = e.WaitApplied(f.ctx, f.ix)
	}
	must(t, err)
}

// cachedBlocks returns the number of leading blocks of tokens in an engine's cache.
func cachedBlocks(e *kvindextest.Engine, tokens []uint32) int {
	longer := append(tokens[:len(tokens):len(tokens)], 1) // the last token never counts as cached
	return e.Cached(kvindextest.Request{Tokens: longer}) / 16
}

// ask sends a request and reads its answer into v, which may be nil.
func ask(t testing.TB, method, url, body string, v any) int {
	t.Helper()
	code, answer, _ := exchange(t, method, url, body)
	if v != nil {
		if err := json.Unmarshal([]byte(answer), v); err != nil {
			t.Fatalf("%s %s: %d %s: %v", method, url, code, answer, err)
		}
	}
	return code
}

// exchange sends a request with the Content-Type of curl's -d.
func exchange(t testing.TB, method, url, body string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := http.DefaultClient.Do(r)
	must(t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	must(t, err)
	return a.StatusCode, strings.TrimSuffix(string(b), "\n"), a.Header
}

func js(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
