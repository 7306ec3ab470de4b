package offload_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/publish"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/offload"
)

var requests = flag.Int("offload.requests", 150, "requests of TestEndToEnd; long form: 1000")

// A node is an engine, a store, and an index that follows both over sockets.
type node struct {
	t      *testing.T
	r      *rand.Rand
	engine *fakeengine.Engine
	pub    *fakeengine.Publisher
	dir    string

	sp       offload.Space
	segments *offload.Segments
	store    *offload.Store
	daemon   *publish.Publisher
	whole    atomic.Int64 // number of times that the whole store was published again
	endDaemon,
	endIndex func()
	ix *kvindex.Indexer
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startEngine() {
	var err error
	n.engine, err = fakeengine.New(fakeengine.Config{Model: "m", Blocks: 60, Publish: func(payload []byte) { n.pub.Publish(payload) }})
	n.must(err)
}

// startStore opens the store and publishes its events at fixed endpoints.
func (n *node) startStore(endpoint, replay string) {
	var err error
	n.segments, err = offload.OpenSegments(offload.SegmentConfig{Dir: n.dir, Bytes: 160 << 10, SegmentBytes: 16 << 10, Buffered: true})
	n.must(err)
	changes := new(offload.Events)
	n.must(n.segments.Report(changes))
	n.store, err = offload.Open(offload.Config{Space: n.sp, MemoryBytes: int64(120 * n.sp.BlockBytes), Events: changes, Disk: offload.Disk{Backend: n.segments, Ingest: offload.All}})
	n.must(err)
	n.daemon, err = publish.New(publish.Config{Endpoint: endpoint, Replay: replay, Buffer: 40, Held: func() []events.Event {
		n.whole.Add(1)
		return offload.KV(changes.Held())
	}})
	n.must(err)
	ctx, cancel := context.WithCancel(n.t.Context())
	told := make(chan struct{})
	go func() {
		defer close(told)
		for {
			batch, err := changes.Next(ctx)
			if err != nil {
				return
			}
			if _, err := n.daemon.Publish(&events.Batch{Events: offload.KV(batch)}); err != nil {
				n.t.Error(err)
			}
		}
	}()
	n.endDaemon = func() {
		n.must(n.store.Close())
		n.must(n.segments.Close())
		cancel()
		<-told
		n.must(n.daemon.Close())
	}
}

func (n *node) startIndex() {
	var err error
	n.ix, err = kvindex.New()
	n.must(err)
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 2)
	for _, cfg := range []events.SubscriberConfig{
		{Endpoint: n.pub.Endpoint(), Replay: n.pub.ReplayEndpoint()},
		{Endpoint: n.daemon.Endpoint(), Replay: n.daemon.ReplayEndpoint(), Tiers: true},
	} {
		cfg.Pod, cfg.Model, cfg.Backoff = "a", "m", 50*time.Millisecond
		s, err := events.NewSubscriber(n.ix.Sink(), cfg)
		n.must(err)
		go func() { ended <- s.Run(ctx) }()
	}
	n.endIndex = func() {
		cancel()
		<-ended
		<-ended
		n.must(n.ix.Close())
	}
}

// keysOf returns the engine's hashes of the whole blocks of a prompt.
func keysOf(tokens []uint32) (keys []offload.Key) {
	var h enginehash.Hasher
	parent := enginehash.NoneHash("")
	for ; len(tokens) >= 16; tokens = tokens[16:] {
		parent = h.Block(parent, tokens[:16], nil)
		keys = append(keys, offload.Key(parent))
	}
	return keys
}

// serve runs a request like an engine with a connector: it loads the blocks of the store and
// compares their bytes, computes the prompt, and stores its blocks.
func (n *node) serve(tokens []uint32, keys []offload.Key) {
	l, err := n.store.Acquire(ctx, keys)
	n.must(err)
	for i := range l.Len() {
		if !bytes.Equal(l.Block(i), content(n.sp, keys[i])) {
			n.t.Fatalf("block %d has other bytes", i)
		}
	}
	from := l.Len()
	l.Release()
	_, err = n.engine.Submit(fakeengine.Request{Tokens: tokens, MaxTokens: 1})
	n.must(err)
	n.engine.Drain()
	_, err = n.store.Write(ctx, keys[:from], keys[from:], contents(n.sp, keys[from:]))
	n.must(err)
	n.must(n.store.Flush(ctx))
}

// tiers returns the tier of each block of a prompt, from the engine and the store.
func (n *node) tiers(tokens []uint32, keys []offload.Key) []string {
	copies := n.engine.Copies(tokens, "", "")
	memory, _ := n.store.Resident()
	disk := make([]bool, len(keys))
	n.must(n.segments.Has(ctx, n.sp.ID(), keys, disk))
	tiers := make([]string, len(keys))
	for i, k := range keys {
		switch {
		case copies[i] > 0:
			tiers[i] = "gpu"
		case memory[k]:
			tiers[i] = "cpu"
		case disk[i]:
			tiers[i] = "disk"
		}
	}
	return tiers
}

// TestEndToEnd: a fake engine stores real bytes. An index that follows the engine and the store
// over sockets has the tier of each block of the last prompt, and no wrong one, while engine, store
// and index are restarted.
func TestEndToEnd(t *testing.T) {
	zmtptest.NoLeaks(t)
	n := &node{t: t, r: rand.New(rand.NewPCG(7, 7)), dir: t.TempDir(), sp: space(300)}
	var err error
	n.pub, err = fakeengine.NewPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	n.must(err)
	defer n.pub.Close()
	n.startEngine()
	n.startStore("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	endpoint, replay := n.daemon.Endpoint(), n.daemon.ReplayEndpoint()
	n.startIndex()
	defer func() { n.endDaemon(); n.endIndex() }()

	var prompts [][]uint32
	late := zmtptest.Context(t)
	found, restarts := make(map[string]int), make(map[string]int)
	for i := range *requests {
		if i > 0 && i%12 == 0 {
			switch kind := []string{"store", "index", "engine and store"}[i/12%3]; kind {
			case "index":
				n.endIndex()
				n.startIndex()
				restarts[kind]++
			case "engine and store":
				n.startEngine()
				n.must(n.pub.Restart())
				fallthrough
			default:
				n.endDaemon()
				n.startStore(endpoint, replay)
				restarts[kind]++
			}
		}
		var tokens []uint32
		if len(prompts) > 0 && n.r.IntN(4) > 0 {
			old := prompts[len(prompts)-1-n.r.IntN(min(len(prompts), 12))]
			tokens = append(tokens, old[:16*n.r.IntN(len(old)/16+1)]...)
		}
		for range 16 * (2 + n.r.IntN(12)) {
			tokens = append(tokens, n.r.Uint32N(30_000))
		}
		tokens = tokens[:min(len(tokens), 16*40)]
		prompts = append(prompts, tokens)
		keys := keysOf(tokens)
		n.serve(tokens, keys)

		wrong := func() string {
			for _, older := range prompts[max(0, len(prompts)-40) : len(prompts)-1] {
				if wrong := n.compare(older, keysOf(older), found, false); wrong != "" {
					return "of an older prompt " + wrong
				}
			}
			return n.compare(tokens, keys, found, true)
		}
		for what := wrong(); what != ""; what = wrong() {
			select {
			case <-time.After(time.Millisecond):
			case <-late.Done():
				t.Fatalf("request %d after %v: %s", i, restarts, what)
			}
		}
	}
	t.Logf("%d requests: blocks by tier %v, restarts %v, %d times all of the store", *requests, found, restarts, n.whole.Load())
	if whole := n.whole.Load(); whole < int64(*requests/50) {
		t.Errorf("all of the store was published %d times", whole)
	}
	for _, tier := range []string{"gpu", "cpu", "disk", ""} {
		if found[tier] < 10**requests {
			t.Errorf("%d blocks in %q", found[tier], tier)
		}
	}
	for kind, times := range restarts {
		if times < *requests/50 {
			t.Errorf("%d restarts of %s", times, kind)
		}
	}
}

// compare returns a block whose tier in the index is wrong or, if all, missing.
func (n *node) compare(tokens []uint32, keys []offload.Key, found map[string]int, all bool) string {
	e, err := n.ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: tokens}, "a")
	if err != nil {
		return err.Error()
	}
	for i, want := range n.tiers(tokens, keys) {
		got := ""
		if e.Held != nil {
			got = e.Held[i]
		}
		if got != want && (all || got != "") {
			return fmt.Sprintf("block %d of %d is in %q, the index says %q", i, len(keys), want, got)
		}
		found[want]++
	}
	return ""
}
