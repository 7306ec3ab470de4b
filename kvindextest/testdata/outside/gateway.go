// Package gateway is a small gateway as a user of the library would write it. Its test
// needs only kvindextest. TestOutside of kvindextest runs that test in a separate
// module.
package gateway

import (
	"context"
	"sync"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

const model = "llama"

// Pod has the name and the endpoints of an engine.
type Pod struct{ Name, Endpoint, Replay string }

// Gateway routes prompts to the pod that has most of them cached.
type Gateway struct {
	index   *kvindex.Indexer
	names   []string
	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex // guards load
	load map[string]int
}

// New connects to the pods.
func New(pods []Pod) (*Gateway, error) {
	index, err := kvindex.New()
	if err != nil {
		return nil, err
	}
	g := &Gateway{index: index, load: make(map[string]int)}
	var ctx context.Context
	ctx, g.stop = context.WithCancel(context.Background())
	for _, p := range pods {
		sub, err := events.NewSubscriber(index.Sink(), events.SubscriberConfig{Endpoint: p.Endpoint, Replay: p.Replay, Pod: p.Name, Model: model})
		if err != nil {
			g.Close()
			return nil, err
		}
		g.names = append(g.names, p.Name)
		g.running.Go(func() { _ = sub.Run(ctx) })
	}
	return g, nil
}

// Route returns the pod for a prompt, and the number of its tokens that the pod has
// cached. A pod whose view is uncertain counts as empty.
func (g *Gateway) Route(ctx context.Context, prompt []uint32) (pod string, cached int, err error) {
	var a kvindex.Answer
	if err := g.index.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: prompt, Pods: g.names}, &a); err != nil {
		return "", 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range a.Pods {
		if s.State <= kvindex.StateUncertain {
			s.CachedTokens = 0
		}
		if pod == "" || s.CachedTokens-g.load[s.Pod] > cached-g.load[pod] {
			pod, cached = s.Pod, s.CachedTokens
		}
	}
	for name := range g.load {
		g.load[name] = g.load[name] * 9 / 10
	}
	g.load[pod] += len(prompt) - cached
	return pod, cached, nil
}

// Close ends the gateway.
func (g *Gateway) Close() {
	g.stop()
	g.running.Wait()
	_ = g.index.Close()
}
