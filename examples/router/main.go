// Router sends each chat to the pod that has the least to compute for it.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

type router struct {
	*kvindex.Indexer
	load map[string]*atomic.Int64 // by pod (its host and port): tokens to compute for chats without an answer yet
}

func main() {
	model := must(kvindex.LoadModel("/models/llama-3"))             // as the engines have it, without the weights
	index := must(kvindex.New(kvindex.WithModel("llama-3", model))) // the name that clients send
	r := &router{Indexer: index, load: map[string]*atomic.Int64{}}
	for _, host := range []string{"10.0.0.7", "10.0.0.8", "10.0.0.9"} {
		r.add(context.Background(), host+":8000", "tcp://"+host+":5557", "tcp://"+host+":5657")
	}
	http.Handle("POST /v1/", http.MaxBytesHandler(r, 16<<20))
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func (r *router) add(ctx context.Context, pod, endpoint, replay string) {
	sub := must(events.NewSubscriber(r, events.SubscriberConfig{
		Pod: pod, Model: "llama-3", Endpoint: endpoint, Replay: replay, OnError: func(err error) { log.Print(err) },
	}))
	r.load[pod] = new(atomic.Int64)
	go func() { log.Print(sub.Run(ctx)) }()
}

func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body) // a body that was cut off is no JSON, which ScoreRequest says
	var answer kvindex.Answer
	err := r.ScoreRequest(req.Context(), &kvindex.Request{Body: body, Path: req.URL.Path}, &answer)
	if errors.Is(err, kvindex.ErrRequest) { // a bad request
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	} else if err != nil || len(answer.Pods) == 0 { // there are no scores: the load decides
		log.Print(errors.Join(err, answer.Unknown)) // Unknown: why no pod is known
		answer.PromptTokens, answer.Pods = len(body)/4, nil
		for pod := range r.load {
			answer.Pods = append(answer.Pods, kvindex.PodScore{Pod: pod})
		}
	}
	worth := func(s kvindex.PodScore) int { return s.PredictedTokens - int(r.load[s.Pod].Load()) }
	best := slices.MaxFunc(answer.Pods, func(a, b kvindex.PodScore) int { return worth(a) - worth(b) })
	r.load[best.Pod].Add(int64(answer.PromptTokens - best.PredictedTokens))
	defer r.load[best.Pod].Add(int64(best.PredictedTokens - answer.PromptTokens))
	ticket, _ := r.Routed(&answer, best.Pod, best.Rank)                        // from now on the chat counts as cached there
	defer r.Observe(ticket, kvindex.Usage{PromptTokens: -1, CachedTokens: -1}) // docs/operations.md: with what the answer says
	w.Header().Set("X-Routed", fmt.Sprintf("%s %d predicted", best.Pod, best.PredictedTokens))
	req.Body = io.NopCloser(bytes.NewReader(body))
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: best.Pod}).ServeHTTP(w, req)
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
