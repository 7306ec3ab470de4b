// Package kvindextest plays the engines in the tests of a gateway that uses kvindex. An
// [Engine] behaves like one vLLM engine with KV events switched on. It has a cache of blocks
// that fills and evicts, publishes real events on real ZeroMQ sockets of this host, and
// returns for each request how many tokens of the prompt were cached. It computes nothing, so
// it needs no GPU, and a model's tokenizer and template only for texts and chats over HTTP
// ([EngineConfig].LLM). A test compares kvindex's prediction with the engine's answer:
//
//	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-a", Model: "m"})
//	...
//	defer e.Close()
//	// The gateway under test has an Indexer ix and a Subscriber to e.Endpoint().
//	err = e.WaitSubscribers(ctx, 1)                                       // the gateway is connected
//	cached, err := e.Serve(ctx, kvindextest.Request{Tokens: prompt})      // 0: the cache was empty
//	err = e.WaitApplied(ctx, ix)                                          // ix has all events of that
//	err = ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: prompt}, &answer) // predicts
//	cached, err = e.Serve(ctx, kvindextest.Request{Tokens: prompt})       // the truth
//
// [NewPod] makes the engines of a pod with several data-parallel ranks, for a Fleet. An Engine
// is an http.Handler too, for gateways that proxy: see [Engine.ServeHTTP]. [Engine.Drop],
// [Engine.Disconnect], [Engine.Restart], [Engine.LoseReplies] and [Engine.FailHTTP] make faults.
//
// The engine is vLLM of August 2026 (commit 017e9f4448b7) with one KV-cache group of
// full attention. The blocks, the order in which they are evicted, the events and
// the counts are as in v1/core/block_pool.py, v1/core/kv_cache_manager.py,
// v1/core/sched/scheduler.py and distributed/kv_events.py of that version.
package kvindextest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/publisher"
	"github.com/kvindex/kvindex/internal/topic"
	"github.com/kvindex/kvindex/stats"
)

// ErrClosed is returned by the methods of an Engine after Close, and by calls of Serve that
// Close has ended.
var ErrClosed = errors.New("kvindextest: engine is closed")

var errRestarted = errors.New("kvindextest: engine restarted")

// EngineConfig describes an Engine. Pod and Model are required. A zero number is its default.
type EngineConfig struct {
	// Pod and Model are the gateway's names of the engine and of the model. The topic of the
	// events is kv@POD@MODEL.
	Pod, Model string
	// Rank is the data-parallel rank. A pod with two ranks is two Engines: NewPod makes them.
	Rank int
	// BlockSize is the number of tokens of a block. Default: 16.
	BlockSize int
	// Blocks is the size of the cache in blocks, one of which is never used, as in vLLM. A
	// prompt and its output have to fit into it. When it is full, the least recently used
	// blocks are evicted. Default: 1024.
	Blocks int
	// Replay opens a replay socket, which sends the last 10,000 messages again.
	Replay bool
	// Connect is the endpoint of a gateway that listens (SubscriberConfig.Bind), such
	// as tcp://127.0.0.1:5557: the engine connects there, again and again. "": the
	// engine listens on a free port, and the gateway connects.
	Connect string
	// StepTime is how long a step of the engine takes. A step computes up to StepTokens tokens
	// of prompts and outputs, and of each output one. Default: none, so that requests are
	// served as fast as possible.
	StepTime time.Duration
	// StepTokens is the size of a step, as max_num_batched_tokens of vLLM. Default: 2,048.
	StepTokens int
	// LLM has the tokenizer and the chat template for requests over HTTP: see ServeHTTP. The
	// zero value takes prompts of token ids alone.
	LLM kvindex.Model
}

func (c EngineConfig) validate() error {
	var errs []error
	if pod, model, err := topic.Parse(c.topic()); err != nil || pod != c.Pod || model != c.Model {
		errs = append(errs, fmt.Errorf("kvindextest: an engine needs a Pod without @ and a Model, not %q and %q", c.Pod, c.Model))
	}
	if c.StepTime < 0 {
		errs = append(errs, fmt.Errorf("kvindextest: StepTime is %v, must not be negative", c.StepTime))
	}
	if c.StepTokens < 0 {
		errs = append(errs, fmt.Errorf("kvindextest: StepTokens is %d, must not be negative", c.StepTokens))
	}
	return errors.Join(errs...)
}

func (c EngineConfig) topic() string { return "kv@" + c.Pod + "@" + c.Model }

// A Request is a client's request to an engine.
type Request struct {
	Tokens  []uint32 // the prompt, at least one token
	Adapter string   // the LoRA adapter; "": none
	Salt    string   // the request's cache_salt; "": none
	// Output is the engine's answer. All of it but the last token enters the cache behind the
	// prompt. Empty: one token that the engine draws.
	Output []uint32
}

// An Engine plays one vLLM engine: one data-parallel rank of one pod. It owns its sockets and
// goroutines until Close. All methods are safe for concurrent use.
type Engine struct {
	cfg       EngineConfig
	publisher *fakeengine.Publisher
	stop      context.CancelFunc
	running   sync.WaitGroup
	work      chan struct{} // holds a token while there may be something to do

	mu     sync.Mutex // guards the fields below; taken before the publisher's
	engine *fakeengine.Engine
	lives  int // restarts, and the first start
	calls  []*call
	drop   int // messages
	closed bool

	failing, failStatus int // of FailHTTP

	answers atomic.Int64 // over HTTP
}

// A call is a request that is served.
type call struct {
	handle *fakeengine.Handle
	moved  chan struct{} // holds a token after a step
	ended  chan struct{} // closed when what follows is final
	cached int
	err    error
}

// NewEngine starts an engine with an empty cache. The error names a wrong field of the
// configuration, or the reason why a socket cannot be opened.
func NewEngine(cfg EngineConfig) (*Engine, error) {
	return newEngine(cfg, 0, 0)
}

// newEngine is NewEngine with the ports of the sockets; 0 is any free one.
func newEngine(cfg EngineConfig, port, replayPort int) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, work: make(chan struct{}, 1)}
	if err := e.start(); err != nil {
		return nil, err
	}
	sockets := fakeengine.PublisherConfig{Topic: cfg.topic(), Endpoint: cfg.Connect, Connect: cfg.Connect != ""}
	if cfg.Connect == "" {
		sockets.Endpoint = fmt.Sprintf("tcp://127.0.0.1:%d", port)
	}
	if cfg.Replay {
		sockets.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", replayPort)
	}
	var err error
	if e.publisher, err = fakeengine.NewPublisher(sockets); err != nil {
		return nil, fmt.Errorf("kvindextest: %w", err)
	}
	var ctx context.Context
	ctx, e.stop = context.WithCancel(context.Background())
	e.running.Go(func() { e.run(ctx) })
	return e, nil
}

// portAttempts is how often NewPod and freePorts look for consecutive free ports.
const portAttempts = 100

// NewPod starts the engines of a pod with data-parallel ranks: one for each rank, from 0 on.
// Rank r publishes at the port of rank 0 plus r and, with Replay, answers replays at the
// replay port of rank 0 plus r. Give the events.Pod to a Fleet, by Fleet.Set or a source of
// the test. cfg is for each rank; its Rank and Connect must be zero. Close each engine.
//
// The events.Pod has the ports of the events only. For a gateway that proxies, serve each Engine
// by httptest.NewServer, and let picker.Config.Host return its host and port, as in the example.
func NewPod(cfg EngineConfig, ranks int) ([]*Engine, events.Pod, error) {
	const maxRanks = 256 // the bound of an Indexer
	if cfg.Rank != 0 || cfg.Connect != "" || ranks < 1 || ranks > maxRanks {
		return nil, events.Pod{}, fmt.Errorf("kvindextest: a pod has 1 to %d ranks, not %d, and for each of them Rank is not set (%d), nor Connect (%q)", maxRanks, ranks, cfg.Rank, cfg.Connect)
	}
	if err := cfg.validate(); err != nil {
		return nil, events.Pod{}, err
	}
	for attempt := 1; ; attempt++ {
		engines, pod, err := newRanks(cfg, ranks)
		if err == nil {
			return engines, pod, nil
		}
		for _, e := range engines {
			_ = e.Close()
		}
		if attempt == portAttempts {
			return nil, events.Pod{}, err
		}
	}
}

// newRanks starts the engines of a pod at ports that were free a moment ago. With an error it
// also returns the engines that it has started.
func newRanks(cfg EngineConfig, ranks int) (engines []*Engine, pod events.Pod, err error) {
	port, err := freePorts(2 * ranks)
	if err != nil {
		return nil, pod, err
	}
	pod = events.Pod{ID: cfg.Pod, Model: cfg.Model, Host: "127.0.0.1", Port: port, Ranks: ranks}
	if cfg.Replay {
		pod.ReplayPort = port + ranks
	}
	for cfg.Rank = range ranks {
		e, err := newEngine(cfg, port+cfg.Rank, port+ranks+cfg.Rank)
		if err != nil {
			return engines, pod, err
		}
		engines = append(engines, e)
	}
	return engines, pod, nil
}

// freePorts returns the first of n consecutive ports that are free.
func freePorts(n int) (int, error) {
	var err error
	for range portAttempts {
		l, listens := net.Listen("tcp", "127.0.0.1:0")
		if listens != nil {
			return 0, fmt.Errorf("kvindextest: looking for a free port: %w", listens)
		}
		defer l.Close() // at the end, so that each attempt gets another port
		first := l.Addr().(*net.TCPAddr).Port
		if err = areFree(first+1, n-1); err == nil {
			return first, nil
		}
	}
	return 0, fmt.Errorf("kvindextest: looking for %d free ports in a row: %w", n, err)
}

func areFree(first, n int) error {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		_ = l.Close()
	}
	return nil
}

// start begins a life of the engine, with a hash seed of its own: vLLM does so unless
// PYTHONHASHSEED is set.
func (e *Engine) start() error {
	e.lives++
	engine, err := fakeengine.New(fakeengine.Config{
		Model: e.cfg.Model, Rank: e.cfg.Rank, BlockSize: e.cfg.BlockSize, Blocks: e.cfg.Blocks, TokenBudget: e.cfg.StepTokens,
		HashSeed: fmt.Sprint(e.cfg.Pod, e.cfg.Rank, e.lives),
		Now:      func() float64 { return float64(time.Now().UnixNano()) / 1e9 },
		Publish:  e.publish,
	})
	if err != nil {
		return fmt.Errorf("kvindextest: %w", err)
	}
	e.engine = engine
	return nil
}

// publish is called by the engine, with e.mu held.
func (e *Engine) publish(payload []byte) {
	if e.drop > 0 {
		e.drop--
		e.publisher.Skip(payload)
		return
	}
	e.publisher.Publish(payload)
}

// Endpoint returns where the engine publishes, for SubscriberConfig.Endpoint; with
// Connect, the endpoint of the gateway.
func (e *Engine) Endpoint() string { return e.publisher.Endpoint() }

// ReplayEndpoint returns where the engine sends messages again, for
// SubscriberConfig.Replay; "" without EngineConfig.Replay.
func (e *Engine) ReplayEndpoint() string { return e.publisher.ReplayEndpoint() }

// Serve makes the engine serve a request and waits for its end. It returns how many tokens of
// the prompt were cached, as usage.prompt_tokens_details.cached_tokens of vLLM's answer. All
// events of the request are published then, but a subscriber may not have read them yet: see
// WaitApplied. Concurrent calls are served side by side.
//
// The error describes a wrong request, or is ctx.Err(), ErrClosed or that of a Restart that
// ended the request.
func (e *Engine) Serve(ctx context.Context, r Request) (cached int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	wait, err := e.Submit(r)
	if err != nil {
		return 0, err
	}
	return wait(ctx)
}

// Submit is the first half of Serve: it returns when the request is in the engine's queue,
// behind earlier ones. wait is the other half. So a test can send several requests in an order
// of its own before any of them is served.
func (e *Engine) Submit(r Request) (wait func(ctx context.Context) (cached int, err error), err error) {
	c, err := e.submit(fakeengine.Request{Tokens: r.Tokens, Adapter: r.Adapter, Salt: r.Salt, Output: r.Output})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (int, error) {
		select {
		case <-c.ended:
			return c.cached, c.err
		case <-ctx.Done():
			e.abort(c)
			return 0, ctx.Err()
		}
	}, nil
}

// abort ends a request that nobody waits for.
func (e *Engine) abort(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.handle.Abort()
	e.wake()
}

func (e *Engine) submit(r fakeengine.Request) (*call, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	h, err := e.engine.Submit(r)
	if err != nil {
		return nil, fmt.Errorf("kvindextest: pod %q: %w", e.cfg.Pod, err)
	}
	c := &call{handle: h, moved: make(chan struct{}, 1), ended: make(chan struct{})}
	e.calls = append(e.calls, c)
	e.wake()
	return c, nil
}

func (e *Engine) wake() {
	select {
	case e.work <- struct{}{}:
	default:
	}
}

// run steps the engine while it has work.
func (e *Engine) run(ctx context.Context) {
	for {
		select {
		case <-e.work:
		case <-ctx.Done():
			return
		}
		for more := true; more && ctx.Err() == nil; more = e.step() {
			pause(ctx, e.cfg.StepTime)
		}
	}
}

// step makes one step, ends the calls whose requests have ended with it, and reports whether
// there was work.
func (e *Engine) step() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	more := e.engine.Step()
	e.calls = slices.DeleteFunc(e.calls, func(c *call) bool {
		if c.handle.Done() {
			c.cached = c.handle.CachedTokens()
			close(c.ended)
		}
		select {
		case c.moved <- struct{}{}:
		default:
		}
		return c.handle.Done()
	})
	return more
}

// endCalls ends all calls with an error; e.mu is held.
func (e *Engine) endCalls(err error) {
	for _, c := range e.calls {
		c.err = err
		close(c.ended)
	}
	e.calls = nil
}

func pause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Cached returns how many tokens of the prompt Serve would find cached now. It changes
// nothing, and ignores Output.
func (e *Engine) Cached(r Request) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.engine.Cached(r.Tokens, r.Adapter, r.Salt)
}

// Drop loses the next n messages on the way to the subscribers. It replaces an earlier Drop,
// so Drop(0) ends it. A replay has the lost messages. The engine publishes one message for
// each step in which its cache changed: one for a short prompt that is not cached, and more
// for its output.
func (e *Engine) Drop(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop = n
}

// LoseReplies makes the replay socket send only the first keep messages of each answer,
// without the message that ends the answer. (vLLM loses messages in this way if they do not
// fit the socket's queue of 1,000.) With 0 the socket is mute. With 1 it brings nothing new,
// because a Subscriber's request begins with the last message that it has. A negative number
// ends the fault.
func (e *Engine) LoseReplies(keep int) {
	e.publisher.LoseReplies(func(i, _ int) bool { return keep >= 0 && i >= keep })
}

// Disconnect closes all connections, with the messages that wait in them. Subscribers connect
// again by themselves. Messages from before that are lost for them, except for a replay.
func (e *Engine) Disconnect() { e.publisher.Disconnect() }

// Restart is a crash and a new start of the engine: the cache is empty, message numbers begin
// at 0, a replay has no earlier messages, the hash seed is another one, connections are
// closed, and calls of Serve end with an error. The endpoints stay the same. The error of
// Restart is ErrClosed after Close.
func (e *Engine) Restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.endCalls(errRestarted)
	if err := e.start(); err != nil {
		return err
	}
	return e.publisher.Restart()
}

// WaitSubscribers waits until at least n subscribers are connected to the engine. A subscriber
// does not get messages from before its connection, except by a replay. The error is
// ErrClosed, or wraps ctx.Err() and has the number that came.
func (e *Engine) WaitSubscribers(ctx context.Context, n int) error {
	err := e.publisher.WaitSubscribers(ctx, n)
	switch {
	case errors.Is(err, publisher.ErrClosed):
		return ErrClosed
	case err != nil:
		return fmt.Errorf("kvindextest: pod %q: %w", e.cfg.Pod, err)
	}
	return nil
}

// WaitApplied waits until an Indexer has applied all published messages that it can get: then
// a score equals Cached, unless messages were lost for good. An events.Subscriber must feed
// the Indexer, under the Pod and Model of the EngineConfig. If the engine has a replay socket,
// the Subscriber must use it; WaitApplied then waits for lost messages too. The loss of the
// newest message shows at the next one, or when the connection has been idle for
// SubscriberConfig.Heartbeat.
//
// Serve nothing meanwhile. The error is ErrClosed, or wraps ctx.Err() and names what the
// Indexer lacks.
func (e *Engine) WaitApplied(ctx context.Context, ix *kvindex.Indexer) error {
	poll := time.NewTicker(100 * time.Microsecond)
	defer poll.Stop()
	for {
		if err := e.WaitSubscribers(ctx, 1); err != nil {
			return err
		}
		lacks := e.lacks(ix)
		if lacks == "" {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("kvindextest: pod %q: %s: %w", e.cfg.Pod, lacks, ctx.Err())
		}
	}
}

// lacks describes what an Indexer still has to get; "" is nothing.
func (e *Engine) lacks(ix *kvindex.Indexer) string {
	pods := ix.Pods(nil)
	i := slices.IndexFunc(pods, func(p kvindex.PodInfo) bool { return p.Pod == e.cfg.Pod && p.Model == e.cfg.Model })
	if i < 0 {
		var known []string
		for _, p := range pods {
			known = append(known, fmt.Sprintf("%q of model %q", p.Pod, p.Model))
		}
		return fmt.Sprintf("the Indexer has no such pod of model %q, but [%s]", e.cfg.Model, strings.Join(known, ", "))
	}
	sent := e.publisher.Sent()
	next := sent
	if e.cfg.Replay {
		next = e.publisher.Next()
	}
	p := &pods[i]
	i = slices.IndexFunc(p.Ranks, func(s kvindex.RankInfo) bool { return s.Rank == e.cfg.Rank })
	switch {
	case i < 0 && next == 0, !e.cfg.Replay && sent == 0:
		return ""
	case i < 0:
		return fmt.Sprintf("the Indexer has received no message of rank %d, which has sent all before message %d", e.cfg.Rank, next)
	}
	source := p.Ranks[i]
	i = slices.IndexFunc(p.Streams, func(s stats.Stream) bool { return s.Stream == source.Stream })
	if i < 0 {
		return "no events.Subscriber feeds the Indexer"
	}
	stream := p.Streams[i]
	// The number that is due proves nothing by itself, because it may be the same as before a
	// restart. A message on the present connection proves it. (A gateway that listens
	// registers a connection behind its first message.) So does an answer to a replay: until
	// then the view of a lost connection is uncertain.
	came := sent > 0 && !stream.Connected.IsZero() && (e.cfg.Connect != "" || !stream.LastMessage.Before(stream.Connected))
	if e.cfg.Replay && source.State != kvindex.StateUncertain {
		came = true
	}
	if came && stream.Next == next && stream.Replay != "waiting" {
		return ""
	}
	return fmt.Sprintf("the Indexer waits for message %d, and the engine has sent all before message %d; the state is %v", stream.Next, next, source.State)
}

// Close ends calls of Serve with ErrClosed, closes the sockets and waits for all goroutines of
// the engine. It may be called again. A new Engine with the same Pod is a pod that comes back
// at another address.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.endCalls(ErrClosed)
	e.mu.Unlock()
	e.stop()
	e.running.Wait()
	return e.publisher.Close()
}
