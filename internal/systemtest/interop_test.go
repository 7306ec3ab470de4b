package systemtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// libzmqPublisher starts a publisher on real libzmq, and returns its endpoint
// and a function that gives it a command.
func libzmqPublisher(t *testing.T) (endpoint string, command func(format string, args ...any)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint = l.Addr().String()
	l.Close()
	script := filepath.Join("..", "..", "events", "testdata", "publisher.py")
	if dir := os.Getenv("KVINDEX_TESTDATA"); dir != "" {
		script = filepath.Join(dir, "wire", "publisher.py")
	}
	_, port, _ := net.SplitHostPort(endpoint)
	python := zmtptest.StartPython(t, script, "tcp://*:"+port, "--topic", "kv@a@m")
	return "tcp://" + endpoint, func(format string, args ...any) {
		t.Helper()
		if _, err := python.Do(format, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// applied is a sink that tells of each message that its Indexer applied.
type applied struct {
	events.Sink // of ix
	ix          *kvindex.Indexer
	seqs        chan uint64
}

func (a applied) IngestMessage(m kvindex.Message) (kvindex.Receipt, error) {
	r, err := a.Sink.IngestMessage(m)
	if r.Applied {
		a.seqs <- m.Seq
	}
	return r, err
}

func newApplied(ix *kvindex.Indexer) applied { return applied{ix.Sink(), ix, make(chan uint64, 1000)} }

// TestLibzmqToScores sends an engine's batches through real libzmq: first the
// way from a socket to a score as it is in production, then a loss and a
// restart on the way.
func TestLibzmqToScores(t *testing.T) {
	endpoint, command := libzmqPublisher(t)
	var losses []string
	sink := newApplied(open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l.Cause) }})))
	connected := make(chan struct{}, 10)
	sub, err := events.NewSubscriber(sink, events.SubscriberConfig{
		Endpoint: endpoint, Pod: "a", Model: "m", BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		OnConnect: func(string) { connected <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	defer cancel()
	ended := make(chan error)
	go func() { ended <- sub.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	wait := func(what string, c <-chan uint64) uint64 {
		t.Helper()
		select {
		case seq := <-c:
			return seq
		case <-ctx.Done():
			t.Fatalf("no %s", what)
			return 0
		}
	}
	reach := func() {
		t.Helper()
		select {
		case <-connected:
		case <-ctx.Done():
			t.Fatal("no connection")
		}
	}
	reach()
	// A libzmq publisher drops what it sends before it has read the
	// subscription: the first message is sent until it is heard.
	first := func(payload []byte) {
		t.Helper()
		for {
			command("seq 0")
			command("pub %x", payload)
			select {
			case <-sink.seqs:
				return
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("no first message")
			}
		}
	}

	engine, payloads := servedEngine(t)
	first(payloads[0])
	for i, p := range payloads[1:] {
		command("pub %x", p)
		if seq := wait("message", sink.seqs); seq != uint64(i+1) {
			t.Fatalf("message %d comes as %d", i+1, seq)
		}
	}
	hits := 0
	for _, p := range engine.prompts {
		s := score(t, sink.ix, kvindex.Request{Model: "m", Tokens: p, Pods: []string{"a"}})[0]
		want := engine.Cached(p, "", "")
		if s.CachedTokens != want || s.State != kvindex.StateLive {
			t.Errorf("%d tokens: %+v, the engine reuses %d", len(p), s, want)
		}
		if want > 0 {
			hits++
		}
	}
	if hits < 5 {
		t.Errorf("only %d prompts hit", hits)
	}

	command("seq %d", len(payloads)+2)
	command("pub %x", fakeengine.Payload(1e9, 0, fakeengine.NewPrompt(7, 16, 2).Stored(0, 2)))
	wait("message behind a gap", sink.seqs)
	if got := blocks(t, sink.ix, "a", fakeengine.NewPrompt(7, 16, 2)); got != 2 || sink.ix.Stats().Blocks[kvindex.TierGPU] != 2 {
		t.Errorf("%d blocks behind a gap, %+v", got, sink.ix.Stats())
	}
	command("restart")
	reach()
	first(fakeengine.Payload(2e9, 0, fakeengine.NewPrompt(8, 16, 3).Stored(0, 3)))
	if got := sink.ix.Stats().Blocks[kvindex.TierGPU]; got != 3 {
		t.Errorf("%d blocks after a restart", got)
	}
	if !slices.Equal(losses, []string{"gap", "restart"}) {
		t.Errorf("losses %v", losses)
	}
}

// TestManyEnginesToScores: engines that connect to one bound subscriber are told
// apart by their topics.
func TestManyEnginesToScores(t *testing.T) {
	sink := newApplied(open(t))
	listening := make(chan string, 1)
	sub, err := events.NewSubscriber(sink, events.SubscriberConfig{
		Endpoint: "tcp://127.0.0.1:0", Bind: true, OnListen: func(endpoint string) { listening <- endpoint },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	defer cancel()
	ended := make(chan error)
	go func() { ended <- sub.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	endpoint := <-listening
	p := fakeengine.NewPrompt(1, 16, 3)
	for i, pod := range []string{"10.0.0.1:8000", "b"} {
		engine, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: endpoint, Connect: true, Topic: "kv@" + pod + "@m"})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		if err := engine.WaitSubscribers(ctx, 1); err != nil {
			t.Fatal(err)
		}
		engine.Publish(fakeengine.Payload(1, 0, p.Stored(0, 2+i)))
		select {
		case <-sink.seqs:
		case <-ctx.Done():
			t.Fatal("no message of ", pod)
		}
		if got := blocks(t, sink.ix, pod, p); got != 2+i {
			t.Errorf("pod %s: %d blocks, want %d", pod, got, 2+i)
		}
	}
}

type servedPrompts struct {
	*fakeengine.Engine
	prompts [][]uint32
}

// servedEngine is an engine that has served some prompts, and what it
// published.
func servedEngine(t *testing.T) (e servedPrompts, payloads [][]byte) {
	t.Helper()
	engine, err := fakeengine.New(fakeengine.Config{Model: "m", Blocks: 64, Publish: func(p []byte) { payloads = append(payloads, p) }})
	if err != nil {
		t.Fatal(err)
	}
	e.Engine = engine
	base := fakeengine.NewPrompt(1, 16, 30).Tokens
	for i := range 20 {
		p := append(slices.Clone(base[:16*(1+i%3)]), fakeengine.NewPrompt(uint64(i+2), 16, 8).Tokens[:20+5*i]...)
		e.prompts = append(e.prompts, p)
		if _, err := e.Submit(fakeengine.Request{Tokens: p, MaxTokens: 4}); err != nil {
			t.Fatal(err)
		}
		e.Drain()
	}
	return e, payloads
}
