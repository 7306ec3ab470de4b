// Package kvindex tells a gateway or scheduler of LLM engines which pod holds
// how much of a prompt in its KV cache.
//
// Start with [New]. Feed the engines' own KV events to [Indexer.Ingest], or let
// an [events.Subscriber] feed them from the engines' ZeroMQ sockets through
// [Indexer.IngestMessage]. Then ask [Indexer.Score] for each request:
//
//	m, err := kvindex.LoadModel("/models/llama-3")
//	...
//	ix, err := kvindex.New(kvindex.WithModel("llama-3", m))
//	...
//	err = ix.Ingest(podID, model, payload)
//	...
//	scores, err := ix.Score(ctx, prompt, model, pods) // best first
//
// # Guarantees
//
// A score never claims a block that the pod, by the events applied, did not
// hold. It may claim too little: for history that was never seen, after a loss
// of messages, for blocks whose parents are unknown. Each of these is counted
// in [Stats] and visible in the [State] of the pod. All holders of a block are
// known, however many.
//
// All methods are safe for concurrent use. An Indexer logs nothing and starts no
// goroutine, but for one that tidies up behind RemovePod and ends.
package kvindex

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Types that other packages own and users of this one need.
type (
	// Tier is where a copy of a block lies.
	Tier = index.Tier
	// Copies says how the copies of a gpu block are counted.
	Copies = index.Copies
	// Message is one message of a transport with sequence numbers.
	Message = events.Message
	// Receipt says what became of a Message.
	Receipt = events.Receipt
	// Gap is a run of sequence numbers that never came.
	Gap = events.Gap
	// Media is an image or another item whose placeholder tokens are in the
	// prompt.
	Media = chat.Media
)

// The tiers, fastest first, and the modes of counting copies.
const (
	TierGPU    = index.TierGPU
	TierCPU    = index.TierCPU
	TierDisk   = index.TierDisk
	TierRemote = index.TierRemote
	TierOther  = index.TierOther

	CopiesGuarded = index.CopiesGuarded
	CopiesExact   = index.CopiesExact
	CopiesSet     = index.CopiesSet
)

var (
	// ErrClosed is returned after Close by every method that returns an error;
	// Pods and Stats then have nothing more to tell.
	ErrClosed = errors.New("kvindex: closed")
	// ErrMalformed is wrapped by the errors about payloads that cannot be
	// read.
	ErrMalformed = events.ErrMalformed
	// ErrNoTokenizer is wrapped by the errors about text for a model without
	// a tokenizer.
	ErrNoTokenizer = errors.New("kvindex: no tokenizer")
	// ErrNoTemplate is wrapped by the errors about chats for a model without a
	// template.
	ErrNoTemplate = chat.ErrNoTemplate
	// ErrUnknownModel is wrapped by the errors about a model that no pod is known
	// for, while pods are known for others: its name is likely another one than
	// the pods' events come under.
	ErrUnknownModel = errors.New("kvindex: unknown model")
	// ErrUnknownAdapter is wrapped by the errors about an adapter that no pod of
	// its model has told of: none of them holds a block of it, or its name is
	// another one in their events.
	ErrUnknownAdapter = errors.New("kvindex: unknown adapter")
	// ErrRequest is wrapped by the errors about requests that make no sense.
	ErrRequest = errors.New("kvindex: bad request")
)

// Indexer is the whole of the library: it takes events in and gives scores
// out. It must be made by New. All methods are safe for concurrent use.
type Indexer struct {
	index     index.Index
	ownsIndex bool
	hash      hasher
	given     map[string]Model
	source    func(ctx context.Context, name string) (Model, error) // of other models; may be nil
	profile   func(pod, model string) Profile
	keep      bool // on a loss
	hooks     Hooks
	closed    atomic.Bool

	ingests sync.Pool // of *ingest
	scorers sync.Pool // of *scorer
	made    atomic.Uint32
	tallies [16]tally // of scores; each scorer has one of them

	heard  atomic.Uint64 // raised, with mu held, when pods, models or adapters come or go
	mu     sync.RWMutex  // guards pods and models; taken after pod.mu, never before
	pods   map[string]*pod
	models map[string]*model

	statsMu sync.Mutex // guards stats; the last lock taken
	stats   Counters
}

// New returns an Indexer that knows no pods but those of its index, which is empty
// unless WithIndex gives another. Without options it takes the events of any
// model and scores prompts given as token ids.
func New(opts ...Option) (*Indexer, error) {
	c := config{given: make(map[string]Model)}
	for _, o := range opts {
		o(&c)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	x := &Indexer{
		index:   c.index,
		given:   c.given,
		source:  c.source,
		profile: c.profile,
		keep:    c.keep,
		hooks:   c.hooks,
		pods:    make(map[string]*pod),
		models:  make(map[string]*model),
	}
	if x.index == nil {
		var mc index.MemoryConfig
		if c.seed != nil {
			mc.Seed = *c.seed
		}
		m, err := index.NewMemory(mc)
		if err != nil {
			return nil, fmt.Errorf("kvindex: %w", err)
		}
		x.index, x.ownsIndex = m, true
	}
	x.hash = newHasher(x.index.Seed())
	if !x.ownsIndex {
		if err := x.recall(); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Score says how much of prompt each pod holds for model, best first; equal ones
// in the order of Answer.Pods. The prompt is tokenized as an engine's
// /v1/completions does, special tokens included, so the model needs a tokenizer
// (WithModel, WithModels). Pods nil: every pod heard for the model; empty:
// none. A pod that was asked for and holds nothing is in the answer, with zeros;
// so are all pods if the model is not known, which Answer.Unknown of ScoreRequest
// and Stats.Scores tell.
func (x *Indexer) Score(ctx context.Context, prompt, model string, pods []string) ([]PodScore, error) {
	var a Answer
	err := x.ScoreRequest(ctx, &Request{Model: model, Prompt: prompt, Pods: pods}, &a)
	return a.Pods, err
}

// Ingest applies the payload of one message as an engine publishes it, without
// the transport's sequence number: the host vouches for order and
// completeness, and may say otherwise by MarkLost. The order of a pod's calls
// is the order applied. A malformed payload is an error that wraps
// ErrMalformed, and none of it is applied. Ingest keeps nothing of payload.
func (x *Indexer) Ingest(podID, model string, payload []byte) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	return in.unnumbered(events.Decode(payload, in.batch))
}

// Close makes every method return ErrClosed and closes the index, unless it
// was given by WithIndex. It is idempotent.
func (x *Indexer) Close() error {
	if x.closed.Swap(true) || !x.ownsIndex {
		return nil
	}
	return x.index.Close()
}

// failed returns ErrClosed for an error that Close brought about.
func (x *Indexer) failed(err error) error {
	if x.closed.Load() && errors.Is(err, index.ErrClosed) {
		return ErrClosed
	}
	return err
}

// check refuses what no ingest can go on with.
func (x *Indexer) check(pod, model string) error {
	switch {
	case x.closed.Load():
		return ErrClosed
	case pod == "":
		return errors.New("kvindex: the pod is empty")
	case model == "":
		return fmt.Errorf("kvindex: pod %q: the model is empty", pod)
	}
	return nil
}
