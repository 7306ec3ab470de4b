package kvindextest_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
)

// The prediction of an Indexer for a prompt is equal to the cached tokens that the engine reports.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-a", Model: "llama"})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	// The parts of a gateway.
	ix, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	sub, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{Endpoint: e.Endpoint(), Pod: "pod-a", Model: "llama"})
	if err != nil {
		log.Fatal(err)
	}
	go sub.Run(ctx)

	// The test of the gateway.
	if err := e.WaitSubscribers(ctx, 1); err != nil {
		log.Fatal(err)
	}
	prompt := make([]uint32, 100)
	for range 2 {
		var answer kvindex.Answer
		if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "llama", Tokens: prompt, Pods: []string{"pod-a"}}, &answer); err != nil {
			log.Fatal(err)
		}
		cached, err := e.Serve(ctx, kvindextest.Request{Tokens: prompt})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("predicted", answer.Pods[0].CachedTokens, "of", answer.PromptTokens, "tokens, cached were", cached)
		if err := e.WaitApplied(ctx, ix); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// predicted 0 of 100 tokens, cached were 0
	// predicted 96 of 100 tokens, cached were 96
}
