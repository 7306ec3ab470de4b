package main

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

// TestReplica: a gateway that starts from the snapshot of another one has the same scores, while
// the engine continues to serve.
func TestReplica(t *testing.T) {
	ctx := zmtptest.Context(t)
	engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-a", Model: "llama-3", Replay: true})
	must(t, err)
	defer engine.Close()
	prompt := func(n int) []uint32 {
		p := make([]uint32, 100)
		for i := range p {
			p[i] = uint32(100*n + i)
		}
		return p
	}
	serve := func(n int) {
		if _, err := engine.Serve(ctx, kvindextest.Request{Tokens: prompt(n)}); err != nil {
			t.Error(err)
		}
	}
	first, err := kvindex.New()
	must(t, err)
	defer first.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	subscribe(running, first, "pod-a", engine.Endpoint(), engine.ReplayEndpoint())
	must(t, engine.WaitSubscribers(ctx, 1))
	for n := range 20 {
		serve(n)
	}
	must(t, engine.WaitApplied(ctx, first))
	server := httptest.NewServer(handler(first, "secret"))
	defer server.Close()

	var serving sync.WaitGroup
	serving.Go(func() {
		for n := 20; n < 40; n++ {
			serve(n)
		}
	})
	second, err := restore(ctx, server.URL, "secret")
	must(t, err)
	defer second.Close()
	tokens := func(ix *kvindex.Indexer, n int) int {
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "llama-3", Tokens: prompt(n)}, &a); err != nil || len(a.Pods) != 1 {
			t.Fatalf("%+v, %v", a.Pods, err)
		}
		return a.Pods[0].CachedTokens
	}
	if got := tokens(second, 0); got != 96 {
		t.Errorf("%d tokens before any message", got)
	}
	subscribe(running, second, "pod-a", engine.Endpoint(), engine.ReplayEndpoint())
	serving.Wait()
	must(t, engine.WaitSubscribers(ctx, 2))
	for _, ix := range []*kvindex.Indexer{first, second} {
		must(t, engine.WaitApplied(ctx, ix))
		for n := range 40 {
			if got, want := tokens(ix, n), engine.Cached(kvindextest.Request{Tokens: prompt(n)}); got != want {
				t.Errorf("prompt %d: %d tokens, the engine has %d", n, got, want)
			}
		}
		if state := ix.Pods(nil)[0].State; state != kvindex.StateLive {
			t.Errorf("%v", state)
		}
	}
	// The snapshot needs the secret, and one that is cut off is not used.
	defer log.SetOutput(log.Writer())
	log.SetOutput(io.Discard)
	for _, secret := range []string{"", "another"} {
		if _, err := restore(ctx, server.URL, secret); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("secret %q: %v", secret, err)
		}
	}
	first.Close()
	if _, err := restore(ctx, server.URL, "secret"); err == nil {
		t.Error("a peer that has ended has sent a snapshot")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
