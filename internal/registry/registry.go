// Package registry has the pods, and what was heard of them: it brings messages to their streams
// and to the index, follows the pods of other processes, and publishes what scores read.
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
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// ErrClosed is the root's ErrClosed.
var ErrClosed = errors.New("kvindex: closed")

// ApplyTimeout is how long a backend (WithIndex) may take for a call that the Indexer makes
// for a pod and for which it was given no context: Apply, Cursor, Remove and RemoveSource, and
// Match for Routed. The context of the call ends then.
const ApplyTimeout = 5 * time.Second

// Config configures a Registry. Functions may be nil where it says so; none is called
// with a lock held.
type Config struct {
	Index     index.Index
	OwnsIndex bool // Close closes it, and nothing of it waits
	Profile   func(pod, model string) (engine.Profile, error)
	Profiled  bool                                         // somebody gives Profiles
	Keep      bool                                         // the blocks on a loss
	Lost      func(Loss)                                   // may be nil
	State     func(pod, model string, from, to view.State) // may be nil
}

// Registry has what was heard of pods. Messages change it, and scores read it. All methods are
// safe for concurrent use.
type Registry struct {
	Config
	index     index.Index
	ownsIndex bool
	hash      hashing.Hasher
	directory directory // the index
	Closed    atomic.Bool
	ingests   sync.Pool // of *ingest
	ledger    *predict.Ledger
	catalog   *catalog.Catalog

	mu   sync.RWMutex // guards pods; taken after pod.mu, never before
	pods map[string]*pod

	statsMu     sync.Mutex // guards what follows; the last lock taken
	stats       stats.Counters
	malformedBy map[string]uint64 // by stats.Malformed.Reason
}

func New(c Config, names *catalog.Catalog) *Registry {
	x := &Registry{
		Config: c, index: c.Index, ownsIndex: c.OwnsIndex, hash: names.Hash, ledger: names.Ledger, catalog: names,
		pods: make(map[string]*pod), malformedBy: make(map[string]uint64),
	}
	x.directory.of, _ = x.index.(sharedindex.Directory)
	x.directory.pods = make(map[servedAt]*podModel)
	return x
}

// Close makes every method return errClosed. A second Close does nothing.
func (x *Registry) Close() error {
	if x.Closed.Swap(true) || !x.ownsIndex {
		return nil
	}
	return x.index.Close()
}

// Failed returns errClosed for an error that Close brought about.
func (x *Registry) Failed(err error) error {
	if x.Closed.Load() && errors.Is(err, index.ErrClosed) {
		return ErrClosed
	}
	return err
}

// check refuses what no ingest can go on with.
func (x *Registry) check(pod, model string) error {
	switch {
	case x.Closed.Load():
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

// Loss is the root's Loss.
type Loss struct {
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
