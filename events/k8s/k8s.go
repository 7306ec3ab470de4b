// Package k8s finds the pods of a Kubernetes cluster for an events.Fleet.
//
//	cfg := k8s.LLMD("inference", "meta-llama/Llama-3.1-8B-Instruct")
//	source, err := k8s.Source(client, cfg)
//	...
//	err = fleet.Run(ctx, source)
//
// Start with AIBrix or LLMD if the pods are labelled for one of these systems, and with a
// Config if not. The client needs the verbs list and watch on pods in the namespace of the
// Config, or in the whole cluster if that is "".
//
// A pod is there while its phase is Running, it has an address, it is Ready, and nobody has
// asked for its deletion. Only the API server's own word removes a pod: a watch that ends,
// another list and an API server that is away remove none.
package k8s

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/kvindex/kvindex/events"
)

// Config says which pods there are, and where the metadata of each says what an events.Pod
// needs. Model needs a key or a default. The zero value of everything else is of use.
type Config struct {
	// Name tells the source from others of the same Fleet. "" is "k8s".
	Name string
	// Namespace has the pods. "" is all namespaces.
	Namespace string
	// LabelSelector and FieldSelector are as kubectl takes them. "" selects all pods. A pod
	// that is not selected any more is removed.
	LabelSelector, FieldSelector string
	// Unready takes pods that are not Ready too.
	Unready bool
	// ByAddress has the address of a pod as its ID. Without it the ID is namespace/name. Of
	// two pods with one address the younger is taken.
	ByAddress bool

	// Switch is the key of a label or annotation that is "true" or "false". A pod where it
	// is "false" or absent is not there. Where Switch is "", all are.
	Switch string
	// Model is the name of the model, as clients name it in requests.
	Model From[string]
	// Port, ReplayPort, Ranks and Topic are those of an events.Pod, with its defaults where
	// nothing is said. A port in a label is in 1..65535, a number of ranks in 1..1024.
	Port, ReplayPort, Ranks From[int]
	Topic                   From[string]
	// Labels are the keys of labels that are copied to events.Pod.Labels. Others, and all
	// annotations, are not kept.
	Labels []string

	// OnError gets what does not end the source: pods whose labels cannot be read, each once
	// for one fault and not again at every list, and requests that failed. A request that
	// goes on failing in one way is told once a minute. Several goroutines may call OnError
	// at once. If it is nil, FleetConfig.OnError gets them, and in any case the pods that
	// the Fleet refuses, which are offered again.
	OnError func(error)
}

// From says where a value stands.
type From[T string | int] struct {
	// Key is that of a label, or of an annotation where the pod has no such label. "" is
	// none.
	Key string
	// Default is the value of a pod in which Key is absent or empty.
	Default T
}

// The bounds of what a pod says.
const (
	maxPort = 65535
	// defaultPort is that of an events.Pod.
	defaultPort = 5557
	maxRanks    = 1024
	maxText     = 1024 // bytes
)

// Source returns a source for Fleet.Run. It returns an error for a selector that cannot be
// read, for a default out of bounds, and if nothing says the Model. The source may run
// several times, also at once.
//
// Each Run has three goroutines and one request that stays open, and one more request while
// it lists. It keeps under 1 KiB for a pod with short names. A burst of changes calls set
// once in 5 ms. client-go logs for it only if the context of Run has a logger (logr).
func Source(client kubernetes.Interface, cfg Config) (events.Source, error) {
	s, err := newSource(client, cfg)
	if err != nil {
		return events.Source{}, err
	}
	return events.Source{Name: s.Name, Run: s.run}, nil
}

func newSource(client kubernetes.Interface, cfg Config) (*source, error) {
	if cfg.Name == "" {
		cfg.Name = "k8s"
	}
	return &source{Config: cfg, client: client, wait: upToTenSeconds}, errors.Join(cfg.validate(client)...)
}

func (c *Config) validate(client kubernetes.Interface) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("k8s: "+format, args...)) }
	if client == nil {
		bad("no client")
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
			bad("%s.Default has %d bytes, %d are allowed", f.name, len(f.value), maxText)
		}
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{{"Port", c.Port.Default, maxPort}, {"ReplayPort", c.ReplayPort.Default, maxPort}, {"Ranks", c.Ranks.Default, maxRanks}} {
		if f.value < 0 || f.value > f.max {
			bad("%s.Default is %d, and not in 0..%d", f.name, f.value, f.max)
		}
	}
	return errs
}
