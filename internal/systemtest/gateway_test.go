package systemtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// gateway sends each prompt to the engine that has most of it cached, less what
// that engine was given lately.
type gateway struct {
	*kvindex.Indexer
	t    *testing.T
	ctx  context.Context
	pods []*gatewayPod
	came chan struct{} // holds a token when a message was dealt with

	mu      sync.Mutex // guards what follows, and next and sent of pods
	changes []stateChange
	errors  []error
	longest time.Duration // from when a message was sent to when it was applied
}

type stateChange struct {
	pod      string
	from, to kvindex.State
}

type gatewayPod struct {
	name      string
	engine    *fakeengine.Engine
	publisher *fakeengine.Publisher
	replay    bool     // the engine has a replay socket
	drop      bool     // every seventh message
	batches   [][]byte // of the request that is being served
	published int
	due       bool // a message is to be dropped
	load      float64

	current bool   // caught up with, on the present connection
	next    uint64 // behind the last message that was dealt with
	sent    map[uint64]time.Time
}

// gatewayCase is what a gateway is put before.
type gatewayCase struct {
	prompts    int
	own        bool                                     // engines have replay sockets
	wrong      func(testing.TB) (replayEndpoint string) // what is set instead
	late       bool                                     // answers of these come as late as vLLM's
	drop, kill bool
	timeout    time.Duration // ReplayTimeout
}

func (c gatewayCase) start(t *testing.T) *gateway {
	g := &gateway{t: t, ctx: zmtptest.Context(t), came: make(chan struct{}, 1)}
	g.Indexer = open(t, kvindex.WithHooks(kvindex.Hooks{State: func(pod, _ string, from, to kvindex.State) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changes = append(g.changes, stateChange{pod, from, to})
	}}))
	for _, name := range []string{"a", "b", "c"} {
		g.pods = append(g.pods, &gatewayPod{name: name, replay: c.own, drop: c.drop})
	}
	for i, p := range g.pods {
		g.startEngine(p, uint64(i), fakeengine.PublisherConfig{})
		t.Cleanup(func() { p.publisher.Close() })
		if c.late { // vLLM's publisher waits for a batch before it looks
			p.publisher.LoseReplies(func(i, _ int) bool {
				if i == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				return false
			})
		}
		cfg := events.SubscriberConfig{
			Endpoint: p.publisher.Endpoint(), Replay: p.publisher.ReplayEndpoint(), Pod: p.name, Model: "m",
			BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, ReplayTimeout: c.timeout,
			OnError: func(err error) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.errors = append(g.errors, err)
				g.wake()
			},
		}
		if c.wrong != nil {
			cfg.Replay = c.wrong(t)
		}
		runSubscriber(t, g, cfg)
		g.listens(p)
	}
	return g
}

// runSubscriber has a Subscriber run until the test ends.
func runSubscriber(t testing.TB, sink events.Sink, cfg events.SubscriberConfig) {
	t.Helper()
	sub, err := events.NewSubscriber(sink, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = sub.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

func (g *gateway) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// startEngine starts an engine with an empty cache, for which the configuration
// has the ports.
func (g *gateway) startEngine(p *gatewayPod, seed uint64, cfg fakeengine.PublisherConfig) {
	if p.replay {
		cfg.Replay = cmp.Or(cfg.Replay, "tcp://127.0.0.1:0")
	}
	var err error
	p.publisher, err = fakeengine.NewPublisher(cfg)
	g.must(err)
	p.engine, err = fakeengine.New(fakeengine.Config{
		Model: "m", Blocks: 250, ChunkTokens: 64, HashSeed: fmt.Sprint(seed), Seed: seed,
		Now:     func() float64 { return float64(time.Now().UnixNano()) / 1e9 },
		Publish: func(payload []byte) { p.batches = append(p.batches, payload) },
	})
	g.must(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	p.next, p.sent = 0, make(map[uint64]time.Time)
}

// restart kills an engine and starts it again at its ports.
func (g *gateway) restart(p *gatewayPod) {
	old := p.publisher
	g.must(old.Close())
	g.until("the loss of "+p.name, func() bool { return g.state(p.name) < kvindex.StateReplaying })
	g.startEngine(p, 7, fakeengine.PublisherConfig{Endpoint: old.Endpoint(), Replay: old.ReplayEndpoint()})
	g.listens(p)
}

func (g *gateway) state(pod string) kvindex.State {
	for _, info := range g.Pods(nil) {
		if info.Pod == pod {
			return info.State
		}
	}
	return kvindex.StateUnknown
}

// IngestMessage takes note of what was dealt with.
func (g *gateway) IngestMessage(m kvindex.Message) (kvindex.Receipt, error) {
	r, err := g.Indexer.IngestMessage(m)
	if r.Applied {
		g.mu.Lock()
		p := g.pod(m.Pod)
		p.next = m.Seq + 1
		if at, ok := p.sent[m.Seq]; ok {
			g.longest = max(g.longest, time.Since(at))
		}
		g.mu.Unlock()
		g.wake()
	}
	return r, err
}

func (g *gateway) StreamNote(pod, model, stream string, n events.Note) {
	g.Indexer.StreamNote(pod, model, stream, n)
	g.mu.Lock()
	switch p := g.pod(pod); n {
	case events.NoteLost:
		p.current = false
	case events.NoteCurrent:
		p.current = true
	}
	g.mu.Unlock()
	g.wake()
}

// listens waits until a pod's Subscriber reads what its engine publishes.
func (g *gateway) listens(p *gatewayPod) {
	g.must(p.publisher.WaitSubscribers(g.ctx, 1))
	if p.replay {
		g.until(p.name+" to be caught up with", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return p.current
		})
	}
}

func (g *gateway) wake() {
	select {
	case g.came <- struct{}{}:
	default:
	}
}

func (g *gateway) until(what string, cond func() bool) {
	g.t.Helper()
	for !cond() {
		select {
		case <-g.came:
		case <-g.ctx.Done():
			g.mu.Lock()
			defer g.mu.Unlock()
			g.t.Fatalf("%s does not come: %+v, errors %v", what, g.Pods(nil), g.errors)
		}
	}
}

func (g *gateway) pod(name string) *gatewayPod {
	return g.pods[slices.IndexFunc(g.pods, func(p *gatewayPod) bool { return p.name == name })]
}

// route chooses a pod for a prompt.
func (g *gateway) route(prompt []uint32) (p *gatewayPod, told kvindex.PodScore) {
	best := 0.
	for _, s := range score(g.t, g.Indexer, kvindex.Request{Model: "m", Tokens: prompt, Pods: []string{"a", "b", "c"}}) {
		if s.State < kvindex.StateReplaying { // what is claimed of it may have gone
			s.CachedTokens = 0
		}
		pod := g.pod(s.Pod)
		if worth := float64(s.CachedTokens) - pod.load; p == nil || worth > best {
			p, told, best = pod, s, worth
		}
	}
	for _, o := range g.pods {
		o.load *= 0.9
	}
	p.load += float64(len(prompt)-told.CachedTokens) / 4
	return p, told
}

// serve has an engine answer a prompt, and waits for its events.
func (g *gateway) serve(p *gatewayPod, prompt []uint32, output int) *fakeengine.Handle {
	h, err := p.engine.Submit(fakeengine.Request{Tokens: prompt, MaxTokens: output})
	g.must(err)
	p.engine.Drain()
	for i, payload := range p.batches {
		p.published++
		p.due = p.due || p.drop && p.published%7 == 0
		if last := i == len(p.batches)-1; p.due && !last { // what is lost shows by the next
			p.due = false
			p.publisher.Skip(payload)
			continue
		}
		g.mu.Lock()
		p.sent[p.publisher.Next()] = time.Now()
		g.mu.Unlock()
		p.publisher.Publish(payload)
	}
	p.batches = nil
	g.until("the last message of "+p.name, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return p.next == p.publisher.Next()
	})
	return h
}

// TestGateway: what a gateway is told of the engines before it is what they reuse,
// as long as a message comes and whatever stands at the replay endpoint.
func TestGateway(t *testing.T) {
	zmtptest.NoLeaks(t)
	const forever = time.Hour // a message that waits for a replay never comes
	for name, c := range map[string]gatewayCase{
		"no replay":                  {prompts: 1000},
		"replay":                     {prompts: 1000, own: true},
		"drops, no replay":           {prompts: 300, drop: true},
		"drops, replay":              {prompts: 300, own: true, drop: true},
		"drops, late replay":         {prompts: 100, own: true, late: true, drop: true},
		"restart, no replay":         {prompts: 300, kill: true},
		"restart, replay":            {prompts: 300, own: true, kill: true},
		"replay port closed":         {prompts: 300, wrong: closedEndpoint, timeout: forever},
		"replay port of HTTP":        {prompts: 300, wrong: httpEndpoint, timeout: forever},
		"replay port refuses":        {prompts: 300, wrong: refusingEndpoint, timeout: forever},
		"replay port accepts":        {prompts: 300, wrong: muteEndpoint, timeout: forever},
		"replay port closed, killed": {prompts: 300, wrong: closedEndpoint, timeout: forever, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := c.start(t)
			g.run(c)
		})
	}
}

func (g *gateway) run(c gatewayCase) {
	t, r := g.t, rand.New(rand.NewPCG(1, 1))
	var systems, talks [][]uint32
	for range 6 {
		systems = append(systems, randomTokens(r, 50+r.IntN(150)))
	}
	prompt, cached, under := 0, 0, 0
	for n := range c.prompts {
		tokens := systems[r.IntN(len(systems))]
		if len(talks) > 20 && r.IntN(3) > 0 {
			tokens = talks[len(talks)-1-r.IntN(20)]
		}
		tokens = append(slices.Clone(tokens), randomTokens(r, 1+r.IntN(60))...)
		if c.kill && n%50 == 49 {
			g.restart(g.pods[n/50%len(g.pods)])
		}
		p, told := g.route(tokens)
		h := g.serve(p, tokens, 1+r.IntN(40))
		switch got, want := told.CachedTokens, h.CachedTokens(); {
		case got > want, got < want && (!c.drop || c.own):
			t.Fatalf("prompt %d: pod %s is said to have %d tokens cached, the engine reuses %d: %+v", n, p.name, got, want, told)
		case got < want:
			under++
		}
		prompt, cached = prompt+len(tokens), cached+h.CachedTokens()
		if turn := append(tokens, h.Output()...); len(turn) < 1000 {
			talks = append(talks, turn)
		}
	}
	if c.wrong != nil {
		g.until("what is wrong with the replay endpoint", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.errors) > 0
		})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := make(map[kvindex.State]int)
	for _, change := range g.changes {
		seen[change.to]++
	}
	t.Logf("%.1f %% of %d tokens cached, %d predictions too low, states %v, longest way of a message %v, %d errors", 100*float64(cached)/float64(prompt), prompt, under, seen, g.longest, len(g.errors))
	for state := range seen {
		switch {
		case state == kvindex.StateSilent, state == kvindex.StatePartial, state == kvindex.StateLive:
		case state == kvindex.StateUncertain && c.kill:
		case state == kvindex.StateReplaying && (c.drop || c.kill) && c.own:
		default:
			t.Errorf("a pod was %v: %v", state, g.changes)
		}
	}
	switch {
	case cached*2 < prompt:
		t.Error("too little is cached")
	case c.wrong == nil && !c.kill && len(g.errors) > 0:
		t.Errorf("errors: %v", errors.Join(g.errors...))
	}
}

// TestNormalChanges: an engine that starts, and one that restarts, change the state
// of their pod once, and nothing is reported before the connection is lost.
func TestNormalChanges(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", own), func(t *testing.T) {
			g := gatewayCase{own: own}.start(t)
			r := rand.New(rand.NewPCG(1, 2))
			p := g.pods[0]
			changes := func(want ...stateChange) {
				t.Helper()
				g.until(fmt.Sprint(want), func() bool { return g.state(p.name) == want[len(want)-1].to })
				g.mu.Lock()
				defer g.mu.Unlock()
				got := slices.DeleteFunc(slices.Clone(g.changes), func(c stateChange) bool { return c.pod != p.name })
				if !slices.Equal(got, want) {
					t.Errorf("changes %v, want %v", got, want)
				}
				g.changes = nil
			}
			for range 3 {
				g.serve(p, randomTokens(r, 100), 10)
			}
			changes(stateChange{"a", kvindex.StateSilent, kvindex.StateLive})
			g.mu.Lock()
			if len(g.errors) > 0 {
				t.Errorf("errors of a normal start: %v", g.errors)
			}
			g.mu.Unlock()
			g.restart(p)
			for range 3 {
				g.serve(p, randomTokens(r, 100), 10)
			}
			changes(stateChange{"a", kvindex.StateLive, kvindex.StateUncertain}, stateChange{"a", kvindex.StateUncertain, kvindex.StateLive})
		})
	}
}
