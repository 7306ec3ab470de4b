package kvindextest_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/picker"
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

// A proxy sends each request to one of three pods.
func ExampleNewPod() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ix, err := kvindex.New() // prompts of token ids need no tokenizer
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	if err != nil {
		log.Fatal(err)
	}

	engines := make(map[string]*kvindextest.Engine)
	hosts := make(map[string]string)
	var pods []events.Pod
	for _, name := range []string{"pod-a", "pod-b", "pod-c"} {
		ranks, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: name, Model: "llama", Replay: true}, 1)
		if err != nil {
			log.Fatal(err)
		}
		defer ranks[0].Close()
		server := httptest.NewServer(ranks[0])
		defer server.Close()
		engines[name], hosts[name], pods = ranks[0], strings.TrimPrefix(server.URL, "http://"), append(pods, pod)
	}
	if err := fleet.Set("test", pods); err != nil {
		log.Fatal(err)
	}
	go fleet.Run(ctx)

	ended := make(chan string, 1)
	p, err := picker.New(ix, picker.Config{
		Fleet: fleet, Model: "llama",
		Host: func(pod events.Pod) string { return hosts[pod.ID] },
		OnEnd: func(pick *picker.Pick, u kvindex.Usage, err error) {
			fmt.Println("predicted", pick.PredictedTokens, "of", u.PromptTokens, "tokens, cached were", u.CachedTokens)
			ended <- pick.Pod.Name
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	gateway := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "pod"}) },
		Transport: p.RoundTripper(nil),
	})
	defer gateway.Close()

	for _, e := range engines {
		if err := e.WaitSubscribers(ctx, 1); err != nil {
			log.Fatal(err)
		}
	}
	body := `{"model": "llama", "prompt": [` + strings.Repeat("7, ", 99) + `7]}`
	for range 2 {
		answer, err := http.Post(gateway.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err := engines[<-ended].WaitApplied(ctx, ix); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// predicted 0 of 100 tokens, cached were 0
	// predicted 96 of 100 tokens, cached were 96
}
