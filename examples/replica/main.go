// Replica is one of several gateways. A new gateway starts from the snapshot of another one.
package main

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

func main() {
	ctx, secret := context.Background(), os.Getenv("GATEWAY_SECRET")
	ix, err := restore(ctx, "http://10.0.0.2:8081/snapshot", secret) // pass the same options as to New
	if err != nil {
		log.Printf("beginning with nothing: %v", err)
		ix, err = kvindex.New()
	}
	if err != nil {
		log.Fatal(err)
	}
	subscribe(ctx, ix, "pod-a", "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657")
	http.Handle("GET /snapshot", handler(ix, secret))
	log.Fatal(http.ListenAndServe("10.0.0.3:8081", nil)) // an address that only gateways can reach
}

// handler sends a snapshot of an Indexer to clients that have the secret: the snapshot contains
// the seed of the keys. Messages and scores continue meanwhile.
func handler(ix *kvindex.Indexer, secret string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if given := req.Header.Get("Authorization"); secret == "" || subtle.ConstantTimeCompare([]byte(given), []byte("Bearer "+secret)) != 1 {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		if err := ix.Snapshot(req.Context(), w); err != nil {
			log.Print(err)
			panic(http.ErrAbortHandler) // otherwise the snapshot would end like a whole one
		}
	})
}

// restore returns an Indexer that is restored from the snapshot of another gateway.
func restore(ctx context.Context, peer, secret string, opts ...kvindex.Option) (*kvindex.Indexer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peer, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", peer, answer.Status)
	}
	return kvindex.Restore(ctx, answer.Body, opts...)
}

// subscribe must be called after restore. The Subscriber requests a replay of the messages since
// the snapshot. The endpoint must be that of the other gateway, because it names the stream.
func subscribe(ctx context.Context, ix *kvindex.Indexer, pod, endpoint, replay string) {
	sub, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{
		Pod: pod, Model: "llama-3", Endpoint: endpoint, Replay: replay, OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Print(sub.Run(ctx)) }()
}
