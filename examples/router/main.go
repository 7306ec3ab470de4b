// Router sends each chat to the pod where it does the least harm (route.Default).
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

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/route"
)

type router struct {
	*kvindex.Indexer
	pods []kvindex.PodScore // each host and port, without a score
	sent route.Tracker      // what each pod has to do
}

func main() {
	model := must(kvindex.LoadModel("/models/llama-3"))             // as the engines have it, without the weights
	index := must(kvindex.New(kvindex.WithModel("llama-3", model))) // the name that clients send
	r := &router{Indexer: index}
	for _, host := range []string{"10.0.0.7", "10.0.0.8", "10.0.0.9"} {
		r.add(context.Background(), host+":8000", "tcp://"+host+":5557", "tcp://"+host+":5657")
	}
	http.Handle("POST /v1/", http.MaxBytesHandler(r, 16<<20))
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func (r *router) add(ctx context.Context, pod, endpoint, replay string) {
	sub := must(events.NewSubscriber(r.Sink(), events.SubscriberConfig{
		Pod: pod, Model: "llama-3", Endpoint: endpoint, Replay: replay, OnError: func(err error) { log.Print(err) },
	}))
	r.pods = append(r.pods, kvindex.PodScore{Pod: pod})
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
		answer.PromptTokens, answer.Pods = len(body)/4, r.pods
	}
	pods := answer.RoutePods(nil)
	r.sent.Fill(pods)
	best := answer.Pods[route.Default(&route.Request{Tokens: answer.PromptTokens}, pods)]
	flight := r.sent.Sent(best.Pod, best.Rank, answer.PromptTokens, best.PredictedTokens)
	defer flight.Done()
	ticket, _ := r.Routed(&answer, best.Pod, best.Rank)                        // from now on the chat counts as cached there
	defer r.Observe(ticket, kvindex.Usage{PromptTokens: -1, CachedTokens: -1}) // docs/predictions.md: with what the answer says
	w.Header().Set("X-Routed", fmt.Sprintf("%s %d predicted", best.Pod, best.PredictedTokens))
	req.Body = io.NopCloser(bytes.NewReader(body))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: best.Pod})
	proxy.ModifyResponse = func(resp *http.Response) error {
		resp.Body = response{resp.Body, flight}
		return nil
	}
	proxy.ServeHTTP(w, req)
}

// response is the body of a response. When its first bytes come, the prompt is computed.
type response struct {
	io.ReadCloser
	flight *route.Flight
}

func (b response) Read(p []byte) (int, error) {
	defer b.flight.FirstToken() // only the first call counts
	return b.ReadCloser.Read(p)
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
