package redisindex_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/redis/go-redis/v9"
)

// TestReaderHearsNoEngine: an Indexer scores by the events that another process receives over
// ZeroMQ. The engine publishes true events.
func TestReaderHearsNoEngine(t *testing.T) {
	client := redistest.Standalone(t).Client(t)
	shared := open(t, client, redisindex.Config{Lease: 500 * time.Millisecond})
	writer, reader := indexerOf(t, shared), indexerOf(t, open(t, client, redisindex.Config{Prefix: shared.Prefix()}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)

	var engines []*kvindextest.Engine
	for _, pod := range []string{"pod-a", "pod-b"} {
		e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: pod, Model: "llama-3", Blocks: 64})
		must(t, err)
		t.Cleanup(func() { e.Close() })
		engines = append(engines, e)
		s, err := events.NewSubscriber(writer.Sink(), events.SubscriberConfig{
			Endpoint: e.Endpoint(), Pod: pod, Model: "llama-3",
		})
		must(t, err)
		running.Go(func() { s.Run(ctx) })
		must(t, e.WaitSubscribers(ctx, 1))
	}
	r := rand.New(rand.NewPCG(9, 9))
	prompts := make([][]uint32, 40)
	for i := range prompts {
		if i > 0 { // shares a prefix with another
			of := prompts[r.IntN(i)]
			prompts[i] = append(prompts[i], of[:r.IntN(len(of))]...)
		}
		for range 40 + r.IntN(200) {
			prompts[i] = append(prompts[i], r.Uint32N(1000))
		}
	}
	hits, without := 0, 0
	for i := range 200 {
		n := r.IntN(len(engines))
		request := kvindextest.Request{Tokens: prompts[r.IntN(len(prompts))]}
		if _, err := engines[n].Serve(ctx, request); err != nil {
			t.Fatal(err)
		}
		must(t, engines[n].WaitApplied(ctx, writer))
		if i == len(prompts) {
			waitFor(t, "the reader lists both pods", func() bool { return len(reader.Pods(nil)) == len(engines) })
		}
		asked := prompts[r.IntN(len(prompts))]
		var answer kvindex.Answer
		must(t, reader.ScoreRequest(ctx, &kvindex.Request{Model: "llama-3", Tokens: asked}, &answer))
		for _, s := range answer.Pods {
			e := engines[0]
			if s.Pod == "pod-b" {
				e = engines[1]
			}
			if want := e.Cached(kvindextest.Request{Tokens: asked}); s.CachedTokens != want {
				t.Fatalf("%s: the reader has %d tokens, the engine %d", s.Pod, s.CachedTokens, want)
			} else if want > 0 {
				hits++
			} else {
				without++
			}
		}
	}
	t.Logf("%d entries with tokens, %d without", hits, without)
	if hits < 100 || without < 20 {
		t.Error("the test tests too little")
	}
	want := writer.Pods(nil)
	waitFor(t, "the reader has the states of the writer", func() bool {
		got := reader.Pods(nil)
		for i := range got {
			if got[i].Pod != want[i].Pod || got[i].State != want[i].State || got[i].State != kvindex.StateLive {
				return false
			}
		}
		return len(got) == len(want)
	})
}

// stateOf returns the state of a pod.
func stateOf(ix *kvindex.Indexer, pod string) kvindex.State {
	for _, p := range ix.Pods(nil) {
		if p.Pod == pod {
			return p.State
		}
	}
	return kvindex.StateUnknown
}

// TestIndexersInTrouble: with Degrade, scores have no error while Redis is stopped, and an Apply
// does not wait for changes of others. A pod without further events is live again in all processes
// once its last change is written.
func TestIndexersInTrouble(t *testing.T) {
	s := redistest.Standalone(t)
	c := redisindex.Config{Prefix: "trouble:", Lease: 2 * time.Second, Timeout: time.Second, Degrade: true}
	indexer := func() *kvindex.Indexer {
		return indexerOf(t, startWith(t, redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true}), c).RedisIndex)
	}
	writer, reader := indexer(), indexer()
	p := fakeengine.NewPrompt(1, 16, 4)
	say := func(pod string, blocks int) {
		t.Helper()
		must(t, writer.Ingest(pod, "m", fakeengine.Payload(1, 0, p.Stored(blocks-1, blocks))))
	}
	score := func(ix *kvindex.Indexer) (a kvindex.Answer) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens}, &a))
		return a
	}
	for _, pod := range []string{"a", "b", "c"} {
		say(pod, 1)
	}
	waitFor(t, "the reader lists all", func() bool { return len(score(reader).Pods) == 3 })
	s.Stop(t)
	began := time.Now()
	for _, pod := range []string{"a", "b", "c"} {
		say(pod, 2)
	}
	if took := time.Since(began); took >= 3*c.Timeout {
		t.Errorf("three Applies took %v: each has waited", took)
	}
	for _, pod := range []string{"a", "b", "c"} {
		if state := stateOf(writer, pod); state != kvindex.StateUncertain {
			t.Errorf("%s is %v", pod, state)
		}
	}
	for range 10 {
		if a := score(reader); a.Degraded == nil || len(a.Pods) != 3 {
			t.Errorf("%+v", a)
		}
	}
	s.Cont(t)
	for _, ix := range []*kvindex.Indexer{writer, reader} {
		waitFor(t, "all are live again", func() bool {
			var a kvindex.Answer
			if ix.ScoreRequest(t.Context(), &kvindex.Request{Model: "m", Tokens: p.Tokens}, &a) != nil || len(a.Pods) != 3 {
				return false
			}
			for _, row := range a.Pods {
				if row.State != kvindex.StateLive || row.CachedTokens != 32 || stateOf(ix, row.Pod) != kvindex.StateLive {
					return false
				}
			}
			return true
		})
	}
}

// waitFor waits until is returns true.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so after 30 seconds: %s", what)
		}
	}
}
