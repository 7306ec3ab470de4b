//go:build kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"k8s.io/client-go/rest"
)

// The settings select the pods of an API server that are followed. The API server of this test
// has one pod, with the labels of both systems.
func TestKubernetes(t *testing.T) {
	const pod = `{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "vllm-0", "namespace": "inference", "uid": "u", "resourceVersion": "7",
		"labels": {"llm-d.ai/model": "short", "model.aibrix.ai/name": "labelled", "model.aibrix.ai/kv-events-enabled": "true"}},
		"status": {"phase": "Running", "podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}}`
	const bookmark = `{"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}}`
	for _, c := range []struct {
		args  []string
		asked string
		want  events.Pod
	}{
		{[]string{"-kubernetes=llm-d", "-model=m", "-namespace=inference"}, "GET /api/v1/namespaces/inference/pods llm-d.ai/inference-serving=true",
			events.Pod{ID: "inference/vllm-0", UID: "u", Model: "m", Host: "10.0.0.7", Port: 5557, Ranks: 1, Labels: map[string]string{"llm-d.ai/model": "short"}}},
		{[]string{"-kubernetes=llm-d", "-model=m", "-selector=app=vllm", "-engine-port=6000", "-replay-port=6100", "-tiers-port=6200", "-ranks=2"}, "GET /api/v1/pods app=vllm",
			events.Pod{ID: "inference/vllm-0", UID: "u", Model: "m", Host: "10.0.0.7", Port: 6000, ReplayPort: 6100, TiersPort: 6200, Ranks: 2, Labels: map[string]string{"llm-d.ai/model": "short"}}},
		{[]string{"-kubernetes=aibrix", "-namespace=inference"}, "GET /api/v1/namespaces/inference/pods model.aibrix.ai/kv-events-enabled",
			events.Pod{ID: "inference/vllm-0", UID: "u", Model: "labelled", Host: "10.0.0.7", Port: 5557, ReplayPort: 5558, Ranks: 1}},
	} {
		asked := make(chan string, 1)
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			select {
			case asked <- r.Method + " " + r.URL.Path + " " + q.Get("labelSelector"):
			default: // the first request has all that is checked
			}
			w.Header().Set("Content-Type", "application/json")
			if q.Get("watch") == "" {
				fmt.Fprintf(w, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [%s]}`, pod)
				return
			}
			if q.Get("sendInitialEvents") == "true" {
				fmt.Fprintf(w, `{"type": "ADDED", "object": %s}{"type": "BOOKMARK", "object": %s}`, pod, bookmark)
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		settings, err := config.Load(c.args, nil, nil)
		must(t, err)
		source, err := podsOf(&rest.Config{Host: api.URL}, settings, events.Pod{Model: settings.Model, Port: settings.EnginePort, ReplayPort: settings.ReplayPort, TiersPort: settings.TiersPort, Ranks: settings.Ranks})
		must(t, err)
		ctx, cancel := context.WithCancel(zmtptest.Context(t))
		var got []events.Pod
		err = source.Run(ctx, func(pods []events.Pod) error {
			if len(pods) > 0 {
				got = pods
				cancel()
			}
			return nil
		})
		cancel()
		if len(got) != 1 || !reflect.DeepEqual(got[0], c.want) {
			t.Errorf("%v: %+v, want %+v; %v", c.args, got, c.want, err)
		}
		if at := <-asked; at != c.asked {
			t.Errorf("%v: %s, want %s", c.args, at, c.asked)
		}
		api.Close()
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := loadSettings([]string{"-kubernetes=llm-d", "-model=m", "-zmq-endpoint=none"}, io.Discard); !errors.Is(err, rest.ErrNotInCluster) {
		t.Errorf("outside of a cluster: %v", err)
	}
}
