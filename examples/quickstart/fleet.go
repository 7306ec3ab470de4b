package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

const (
	pods      = 3
	blockSize = 16
	stepTime  = time.Millisecond // of a step of an engine
)

// pod is an engine that runs: it steps by itself and publishes what changes.
type pod struct {
	name      string
	publisher *fakeengine.Publisher

	mu     sync.Mutex // guards engine, which has no lock of its own
	engine *fakeengine.Engine
}

// fleet is the pods, and an Indexer that listens to them.
type fleet struct {
	indexer *kvindex.Indexer
	pods    []*pod
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start brings the pods up and waits until the Indexer hears all of them.
func start(ctx context.Context, opts ...kvindex.Option) (*fleet, error) {
	indexer, err := kvindex.New(opts...)
	if err != nil {
		return nil, err
	}
	f := &fleet{indexer: indexer}
	ctx, f.cancel = context.WithCancel(ctx)
	for i := range pods {
		if err := f.add(ctx, fmt.Sprintf("pod-%c", 'a'+i)); err != nil {
			f.stop()
			return nil, err
		}
	}
	return f, nil
}

func (f *fleet) add(ctx context.Context, name string) error {
	publisher, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Topic: "kv@" + name + "@" + model})
	if err != nil {
		return err
	}
	p := &pod{name: name, publisher: publisher}
	f.pods = append(f.pods, p)
	p.engine, err = fakeengine.New(fakeengine.Config{
		Model: model, BlockSize: blockSize, Blocks: 400, TokenBudget: 256, HashSeed: "0",
		Publish: func(payload []byte) { publisher.Publish(payload) },
	})
	if err != nil {
		return err
	}
	sub, err := events.NewSubscriber(f.indexer, events.SubscriberConfig{
		Endpoint: publisher.Endpoint(), Pod: name, Model: model,
	})
	if err != nil {
		return err
	}
	f.running.Go(func() { _ = sub.Run(ctx) }) // it ends with ctx only
	f.running.Go(func() { p.run(ctx) })
	return publisher.WaitSubscribers(ctx, 1)
}

func (f *fleet) names() (names []string) {
	for _, p := range f.pods {
		names = append(names, p.name)
	}
	return names
}

func (p *pod) run(ctx context.Context) {
	tick := time.NewTicker(stepTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.mu.Lock()
			p.engine.Step()
			p.mu.Unlock()
		}
	}
}

// serve has the pod answer a prompt, and returns how many of its tokens were
// cached.
func (p *pod) serve(ctx context.Context, prompt, answer []uint32) (cached int, err error) {
	p.mu.Lock()
	h, err := p.engine.Submit(fakeengine.Request{Tokens: prompt, Output: answer})
	p.mu.Unlock()
	if err != nil {
		return 0, err
	}
	tick := time.NewTicker(stepTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
			p.mu.Lock()
			done, cached := h.Done(), h.CachedTokens()
			p.mu.Unlock()
			if done {
				return cached, nil
			}
		}
	}
}

// stop ends everything that start began and waits for it.
func (f *fleet) stop() {
	f.cancel()
	f.running.Wait()
	for _, p := range f.pods {
		_ = p.publisher.Close()
	}
	_ = f.indexer.Close()
}
