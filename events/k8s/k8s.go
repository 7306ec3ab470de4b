// Package k8s finds the pods of a Kubernetes cluster for an events.Fleet.
//
//	cfg := k8s.LLMD("inference", "meta-llama/Llama-3.1-8B-Instruct")
//	source, err := k8s.Source(client, cfg)
//	...
//	err = fleet.Run(ctx, source)
//
// Start with AIBrix or LLMD if the pods have the labels of one of these systems, and with a
// Config if not. The client needs the verbs list and watch on pods in the namespace of the
// Config, or in the whole cluster if that is "".
//
// A pod counts while its phase is Running, it has an address, it is Ready, and its deletion
// was not requested. Only the API server removes a pod: a watch that ends, another list and an
// API server that is away remove none.
package k8s

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/kvindex/kvindex/events"
)

// Config selects the pods, and the labels and annotations that have the fields of an
// events.Pod. Model needs a key or a default. All other fields may be zero.
type Config struct {
	// Namespace has the pods. "" is all namespaces.
	Namespace string
	// LabelSelector and FieldSelector have kubectl's syntax. "" selects all pods. A pod that
	// no longer matches is removed.
	LabelSelector, FieldSelector string
	// Unready includes pods that are not Ready.
	Unready bool
	// ByAddress uses the address of a pod as its ID. Without it the ID is namespace/name. If
	// two pods have one address, the younger one counts.
	ByAddress bool

	// Switch is the key of a label or annotation that is "true" or "false". A pod where it is
	// "false" or absent is ignored. With Switch "" all pods count.
	Switch string
	// Model is the name of the model, as clients name it in requests.
	Model From[string]
	// Port, ReplayPort, TiersPort, Ranks and Topic are those of an events.Pod, with its
	// defaults. A port in a label is in 1..65535, a number of ranks in 1..1024.
	Port, ReplayPort, TiersPort, Ranks From[int]
	Topic                              From[string]
	// Labels are the keys of labels that are copied to events.Pod.Labels. Other labels, and
	// all annotations, are dropped.
	Labels []string
}

// From is the place of a value.
type From[T string | int] struct {
	// Key is that of a label, or of an annotation if the pod has no such label. "" is none.
	Key string
	// Default is the value of a pod in which Key is absent or empty.
	Default T
}

// Bounds on the metadata of a pod.
const (
	maxPort = 65535
	// defaultPort is that of an events.Pod.
	defaultPort = 5557
	maxRanks    = 1024
	maxText     = 1024 // bytes
)

// Source returns a source for Fleet.Run. It returns an error for an invalid selector, for a
// default out of bounds, and without a Model. Its Name is "k8s": change it if a Fleet has several.
// The source may run several times, also at once.
//
// Each Run has three goroutines and one request that stays open, and one more request while it
// lists. It keeps under 1 KiB for a pod with short names. A burst of changes calls set once in
// 5 ms. client-go logs for it only if the context of Run has a logger (logr).
func Source(client kubernetes.Interface, cfg Config) (events.PodSource, error) {
	s, err := newSource(client, cfg)
	if err != nil {
		return events.PodSource{}, err
	}
	return events.PodSource{Name: "k8s", Run: s.run}, nil
}

func newSource(client kubernetes.Interface, cfg Config) (*source, error) {
	return &source{Config: cfg, client: client, wait: upToTenSeconds}, errors.Join(cfg.validate(client)...)
}

func (c *Config) validate(client kubernetes.Interface) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("k8s: "+format, args...)) }
	if client == nil {
		bad("the client is nil")
	}
	if _, err := labels.Parse(c.LabelSelector); err != nil {
		bad("LabelSelector: %w", err)
	}
	if _, err := fields.ParseSelector(c.FieldSelector); err != nil {
		bad("FieldSelector: %w", err)
	}
	if c.Model == (From[string]{}) {
		bad("Model has neither Key nor Default")
	}
	for _, f := range []struct {
		name, value string
	}{{"Model", c.Model.Default}, {"Topic", c.Topic.Default}} {
		if len(f.value) > maxText {
			bad("%s.Default has %d bytes, more than %d", f.name, len(f.value), maxText)
		}
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{{"Port", c.Port.Default, maxPort}, {"ReplayPort", c.ReplayPort.Default, maxPort}, {"TiersPort", c.TiersPort.Default, maxPort}, {"Ranks", c.Ranks.Default, maxRanks}} {
		if f.value < 0 || f.value > f.max {
			bad("%s.Default is %d, not in 0..%d", f.name, f.value, f.max)
		}
	}
	return errs
}
