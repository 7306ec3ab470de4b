package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
)

const (
	pods      = 3
	blockSize = 16
	blocks    = 400              // of a pod; as in vLLM, one of them is never used
	stepTime  = time.Millisecond // of a step of an engine
)

// pod is an engine.
type pod struct {
	name string
	*kvindextest.Engine
}

// fleet is the pods, and an Indexer that listens to them.
type fleet struct {
	indexer *kvindex.Indexer
	pods    []*pod
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start brings the pods up, and waits until the Indexer has heard all of them, if it is to
// listen.
func start(ctx context.Context, listen bool, opts ...kvindex.Option) (*fleet, error) {
	indexer, err := kvindex.New(opts...)
	if err != nil {
		return nil, err
	}
	f := &fleet{indexer: indexer}
	ctx, f.cancel = context.WithCancel(ctx)
	for i := range pods {
		p, err := f.add(fmt.Sprintf("pod-%c", 'a'+i))
		if err == nil && listen {
			err = f.listen(ctx, p)
		}
		if err != nil {
			f.stop()
			return nil, err
		}
	}
	return f, nil
}

func (f *fleet) add(name string) (*pod, error) {
	engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{
		Pod: name, Model: model, BlockSize: blockSize, Blocks: blocks, StepTime: stepTime,
	})
	if err != nil {
		return nil, err
	}
	p := &pod{name, engine}
	f.pods = append(f.pods, p)
	return p, nil
}

// listen has the Indexer follow the events of a pod. A first request makes the pod publish
// some: until then nobody knows the size of its blocks, and nothing can be predicted.
func (f *fleet) listen(ctx context.Context, p *pod) error {
	sub, err := events.NewSubscriber(f.indexer, events.SubscriberConfig{
		Endpoint: p.Endpoint(), Pod: p.name, Model: model,
	})
	if err != nil {
		return err
	}
	f.running.Go(func() { _ = sub.Run(ctx) }) // it ends with ctx only
	if err := p.WaitSubscribers(ctx, 1); err != nil {
		return err
	}
	if _, err := p.Serve(ctx, kvindextest.Request{Tokens: make([]uint32, 2*blockSize)}); err != nil {
		return err
	}
	return p.WaitApplied(ctx, f.indexer)
}

func (f *fleet) names() (names []string) {
	for _, p := range f.pods {
		names = append(names, p.name)
	}
	return names
}

// stop ends everything that start began and waits for it.
func (f *fleet) stop() {
	f.cancel()
	f.running.Wait()
	for _, p := range f.pods {
		_ = p.Close()
	}
	_ = f.indexer.Close()
}
