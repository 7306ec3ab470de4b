// Registry: the pods, and what was heard of them.

package kvindex

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// errClosed is the root's ErrClosed.
var errClosed = errors.New("kvindex: closed")

// registryConfig configures a registry. Functions may be nil where it says so; none is called
// with a lock held.
type registryConfig struct {
	Index       index.Index
	OwnsIndex   bool // Close closes it, and nothing of it waits
	Profile     func(pod, model string) (engine.Profile, error)
	Profiled    bool                                         // somebody gives Profiles
	Resolver    func(model string) (base, adapter string)    // may be nil
	Given       func(model string) bool                      // there is a tokenizer for the model
	Keep        bool                                         // the blocks on a loss
	Lost        func(loss)                                   // may be nil
	State       func(pod, model string, from, to view.State) // may be nil
	Predictions *predict.Config                              // nil: the defaults
}

// registry has what was heard of pods. Messages change it, and scores read it. All methods are
// safe for concurrent use.
type registry struct {
	registryConfig
	index     index.Index
	ownsIndex bool
	hash      hashing.Hasher
	directory directory // the index
	closed    atomic.Bool
	ingests   sync.Pool // of *ingest
	ledger    *predict.Ledger

	heard  atomic.Uint64 // raised, with mu held, when pods, models or adapters come or go
	mu     sync.RWMutex  // guards pods and models; taken after pod.mu, never before
	pods   map[string]*pod
	models map[string]*model

	statsMu     sync.Mutex // guards what follows; the last lock taken
	stats       stats.Counters
	malformedBy map[string]uint64 // by stats.Malformed.Reason
}

func newRegistry(c registryConfig) *registry {
	x := &registry{
		registryConfig: c, index: c.Index, ownsIndex: c.OwnsIndex, hash: hashing.New(c.Index.Seed()), ledger: predict.New(c.Predictions),
		pods: make(map[string]*pod), models: make(map[string]*model), malformedBy: make(map[string]uint64),
	}
	x.directory.of, _ = x.index.(sharedindex.Directory)
	x.directory.pods = make(map[servedAt]*podModel)
	return x
}

// Close makes every method return errClosed. A second Close does nothing.
func (x *registry) Close() error {
	if x.closed.Swap(true) || !x.ownsIndex {
		return nil
	}
	return x.index.Close()
}

// failed returns errClosed for an error that Close brought about.
func (x *registry) failed(err error) error {
	if x.closed.Load() && errors.Is(err, index.ErrClosed) {
		return errClosed
	}
	return err
}

// check refuses what no ingest can go on with.
func (x *registry) check(pod, model string) error {
	switch {
	case x.closed.Load():
		return errClosed
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

// loss is the root's Loss.
type loss struct {
	Pod, Model, Stream string
	Rank               int
	Cause              string
	Seq                uint64
	Time               time.Time
	Gap                events.Gap
	Replayed           bool
	Err                error
	Kept               bool
}
