// Router sends each request to the pod that serves it best. pods.json has the pods (docs/fleet.md).
package main

import (
	"context"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/picker"
)

func main() {
	model := must(kvindex.LoadModel("/models/llama-3"))          // the engines' folder, without the weights
	ix := must(kvindex.New(kvindex.WithModel("llama-3", model))) // "llama-3" is the name in requests
	fleet := must(events.NewFleet(ix.Sink(), events.FleetConfig{OnError: func(err error) { log.Print(err) }}))
	go func() { _ = fleet.Run(context.Background(), discovery.File("pods.json")) }()
	p := must(picker.New(ix, picker.Config{Fleet: fleet, Model: "llama-3", OnEnd: func(pick *picker.Pick, u kvindex.Usage, err error) {
		log.Printf("%s: %d tokens predicted, %d cached (%v, %v)", pick.Pod.Name, pick.PredictedTokens, u.CachedTokens, pick.Err, err)
	}}))
	go func() {
		for client := (&http.Client{Timeout: time.Second}); ; time.Sleep(5 * time.Second) {
			checkHealth(p, client, "8000")
		}
	}()
	log.Fatal(http.ListenAndServe(":8080", http.MaxBytesHandler(proxy(p, "8000"), 16<<20)))
}

// proxy forwards requests to the picked pod, at the port.
func proxy(p *picker.Picker, port string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "pod:" + port}) },
		Transport: p.RoundTripper(nil), // puts the host of the pod in place of "pod"
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, http.StatusText(picker.Status(err)), picker.Status(err))
		},
	}
}

func checkHealth(p *picker.Picker, client *http.Client, port string) {
	for _, pod := range p.Pods() {
		resp, err := client.Get("http://" + pod.Host + ":" + port + "/health")
		p.SetDown(pod.Name, err != nil || resp.StatusCode != http.StatusOK)
		if err == nil {
			resp.Body.Close()
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
