//go:build kubernetes

package main

import (
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/k8s"
	client "k8s.io/client-go/kubernetes"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// pods is a client of the API of pods alone: a whole clientset links the client of every API.
type pods struct {
	client.Interface
	core core.CoreV1Interface
}

func (p pods) CoreV1() core.CoreV1Interface { return p.core }

// kubernetes returns a source of the pods that have the labels of llm-d or of AIBrix. It uses
// the service account of the pod in which the service runs.
func kubernetes(c *config.Config, pod events.Pod) (events.PodSource, error) {
	account, err := rest.InClusterConfig()
	if err != nil {
		return events.PodSource{}, err
	}
	return podsOf(account, c, pod)
}

func podsOf(account *rest.Config, c *config.Config, pod events.Pod) (events.PodSource, error) {
	of, err := core.NewForConfig(account)
	if err != nil {
		return events.PodSource{}, err
	}
	return k8s.Source(pods{core: of}, kubernetesConfig(c, pod))
}

func kubernetesConfig(c *config.Config, pod events.Pod) k8s.Config {
	cfg := k8s.LLMD(c.Namespace, pod.Model)
	if c.Kubernetes == "aibrix" {
		cfg = k8s.AIBrix(c.Namespace)
		cfg.Model.Default = pod.Model
	}
	if c.Selector != "" {
		cfg.LabelSelector = c.Selector
	}
	cfg.Port.Default, cfg.TiersPort.Default, cfg.Ranks.Default = pod.Port, pod.TiersPort, pod.Ranks
	if pod.ReplayPort > 0 {
		cfg.ReplayPort.Default = pod.ReplayPort
	}
	return cfg
}
