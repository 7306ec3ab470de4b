// Package registry is the write side of an Indexer: it has the pods with their locks, applies
// messages to streams and to the index, follows pods that other processes feed, and publishes
// the views that scores read.
package registry

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// ErrClosed is kvindex.ErrClosed.
var ErrClosed = errors.New("kvindex: closed")

// applyTimeout limits calls of a backend (WithIndex) for which the Indexer has no context of
// its caller: Apply, Cursor, Remove and RemoveSource, and Match for Routed. The context of the
// call ends then.
const applyTimeout = 5 * time.Second

// Config configures a Registry. Functions may be nil where a comment allows it. Profile may be
// called with the locks of its pod held; Estimated, Lost and State are called without locks.
type Config struct {
	Index     index.Index
	OwnsIndex bool // Close closes the index, and no call of it can hang
	Profile   func(pod, model string) (engine.Profile, error)
	Estimated func(pod, model string) bool                 // the Profile has an Approximate; nil: no Profile has
	Keep      bool                                         // keeps the blocks on a loss (WithKeepOnLoss)
	Lost      func(Loss)                                   // may be nil
	State     func(pod, model string, from, to view.State) // may be nil
}

// Registry has the pods. Messages change it, and scores read the views that it publishes. All
// methods are safe for concurrent use.
type Registry struct {
	Config
	hash      hashing.Hasher
	directory directory // pods that other processes feed
	closed    atomic.Bool
	ingests   sync.Pool // of *ingest
	ledger    *predict.Ledger
	catalog   *catalog.Catalog

	mu   sync.RWMutex // guards pods; taken after pod.mu, never before
	pods map[string]*pod

	statsMu sync.Mutex // guards stats; the last lock taken
	stats   Counts
}

// Counts has the counters of messages.
type Counts struct {
	stats.Counters
	events    [events.Cleared + 1]uint64 // by Kind; 0: unknown
	malformed [len(fault.Reasons)]uint64 // in the order of fault.Reasons
}

// New returns a Registry without pods that publishes to a Catalog.
func New(c Config, names *catalog.Catalog) *Registry {
	x := &Registry{Config: c, hash: names.Hash, ledger: names.Ledger, catalog: names, pods: make(map[string]*pod)}
	x.directory.of, _ = x.Index.(sharedindex.Directory)
	x.directory.pods = make(map[servedAt]*podModel)
	return x
}

// Close makes every method return ErrClosed. A second Close does nothing.
func (x *Registry) Close() error {
	if x.closed.Swap(true) || !x.OwnsIndex {
		return nil
	}
	return x.Index.Close()
}

// Closed reports whether Close was called.
func (x *Registry) Closed() bool { return x.closed.Load() }

// Failed returns ErrClosed for an error that Close has caused, else err.
func (x *Registry) Failed(err error) error {
	if x.closed.Load() && errors.Is(err, index.ErrClosed) {
		return ErrClosed
	}
	return err
}

// check refuses names that no message may have, and every name after Close.
func (x *Registry) check(pod, model string) error {
	switch {
	case x.closed.Load():
		return ErrClosed
	case pod == "":
		return errors.New("kvindex: the pod is empty")
	case model == "":
		return fmt.Errorf("kvindex: pod %q: the model is empty", pod)
	case len(pod) > engine.MaxName:
		return fmt.Errorf("kvindex: the name of the pod has %d bytes, more than %d: %.100q", len(pod), engine.MaxName, pod)
	case len(model) > engine.MaxName:
		return fmt.Errorf("kvindex: pod %q: the name of the model has %d bytes, more than %d: %.100q", pod, len(model), engine.MaxName, model)
	}
	return nil
}

// Loss has the fields of kvindex.Loss.
type Loss struct {
	Pod, Model, Stream string
	Rank               int
	Cause              string
	Seq                uint64
	Gap                events.Gap
	Replayed           bool
	Err                error
	Kept               bool
	Tiers              bool
}
