package offload_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/publish"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/offload"
)

// A store publishes its blocks, and an index follows it. At each connection the index gets all of
// them.
func ExampleEvents() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	changes := new(offload.Events)
	store, err := offload.Open(offload.Config{
		Space:       offload.Space{Model: "m", BlockTokens: 16, BlockBytes: 4096, Ranks: 1},
		MemoryBytes: 100 * 4096,
		Events:      changes,
	})
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := publish.New(publish.Config{
		Replay: "tcp://127.0.0.1:0",
		Held:   func() []events.Event { return offload.KV(changes.Held()) },
	})
	if err != nil {
		log.Fatal(err)
	}
	running.Go(func() {
		for {
			told, err := changes.Next(ctx)
			if err != nil {
				return
			}
			if _, err := publisher.Publish(&events.Batch{Events: offload.KV(told)}); err != nil {
				log.Print(err)
			}
		}
	})
	hashes := offload.Keys(offload.Key{}, 16, make([]uint32, 20*16))
	blocks, err := store.Alloc(ctx, len(hashes)) // fill the blocks here
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.Commit(ctx, nil, hashes, blocks); err != nil {
		log.Fatal(err)
	}

	// In the process of a gateway, beside the subscriber that follows the engine:
	ix, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{
		Pod: "a", Model: "m", Endpoint: publisher.Endpoint(), Replay: publisher.ReplayEndpoint(), Tiers: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	running.Go(func() { _ = subscriber.Run(ctx) })
	inMemory := 0
	for range time.Tick(time.Millisecond) {
		for _, pod := range ix.Pods(nil) {
			for _, rank := range pod.Ranks {
				inMemory = rank.Blocks[index.TierCPU]
			}
		}
		if inMemory == len(hashes) {
			break
		}
	}
	fmt.Println("the index knows of all blocks")

	cancel()
	running.Wait()
	for _, close := range []func() error{ix.Close, publisher.Close, store.Close} {
		if err := close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output: the index knows of all blocks
}
