// Package kvindex reads the KV events of LLM engines. For a prompt, it reports how many of
// its tokens each engine has cached, so that a gateway can choose the engine.
//
//	model, err := kvindex.LoadModel("/models/llama-3")
//	...
//	index, err := kvindex.New(kvindex.WithModel("llama-3", model))
//	...
//	sub, err := events.NewSubscriber(index.Sink(), events.SubscriberConfig{ // or events.NewFleet, for many pods
//		Pod: "pod-a", Model: "llama-3",
//		Endpoint: "tcp://10.0.0.7:5557",
//		Replay:   "tcp://10.0.0.7:5657", // without it, blocks stored earlier stay unknown
//		OnError: func(err error) { log.Print(err) },
//	})
//	...
//	go sub.Run(ctx) // until ctx ends
//
//	var answer kvindex.Answer
//	err = index.ScoreRequest(ctx, &kvindex.Request{Body: body}, &answer) // the body of a chat
//	...
//	if len(answer.Pods) > 0 { // else no pod is registered: see answer.Unknown
//		best := answer.Pods[0] // it would reuse the most tokens: weigh them against load
//		ticket, err := index.Routed(&answer, best.Pod, best.Rank) // from now on the prompt counts there
//		... // send the request and wait for its answer
//		index.Observe(ticket, kvindex.Usage{PromptTokens: u.PromptTokens, CachedTokens: u.CachedTokens})
//	}
//
// # Words
//
//   - pod: one running engine, under a name that your program chooses.
//   - rank: one data-parallel part of a pod. Each rank has a cache of its own. A
//     pod without data parallelism has rank 0 alone.
//   - block: the unit that an engine stores and removes: the cache of a fixed number
//     of tokens, for example 16.
//   - parent: the block before a block, in the same prompt.
//   - source: one rank and one model: one cache. View: the blocks that the index has
//     of a source.
//   - tier: the place of a block: the gpu, the memory of the host (cpu), a disk, or
//     remote storage.
//   - copy: an engine may have a block twice in its gpu. It announces and removes
//     each copy.
//   - group: hybrid models have several kinds of layers, and a group of blocks for
//     each kind.
//   - adapter: a LoRA on a base model. Salt: the cache_salt of a request. Media:
//     images and the like in a prompt.
//   - stream: the numbered messages of one socket of an engine. Each rank has a
//     socket: run one Subscriber for each.
//   - transport: code that brings the messages of streams to the Indexer, such as an
//     [events.Subscriber].
//   - replay: an engine sends its last messages again when a transport requests them.
//   - loss: messages that did not arrive and that no replay brings.
//   - prediction: a prompt that was routed to a rank. It counts as cached there until
//     events decide. Ticket: a routed request, until its answer has come.
//
// # Where to start
//
// For a gateway, start with package picker, which makes the calls below. Read [New] and
// [Option], [Indexer.ScoreRequest] with [Request], [Answer] and [PodScore], and [State].
// [Indexer.Score] is the short form for a text. [Indexer.Pods] and [Indexer.Stats] describe
// the pods, and [Indexer.Explain] explains a score.
//
// Call [Indexer.Routed] when a request is sent, and [Indexer.Observe] or
// [Indexer.Abandon] when its answer has come. Then requests with the same beginning count
// before the engine's first event arrives ([PodScore.PredictedTokens]), and
// [stats.Stats.Observed] shows how accurate the figures are.
//
// An [events.Fleet] follows pods that come, move and go: it finds them in a file, in DNS
// or in Kubernetes, runs a Subscriber for each rank, and removes pods that have gone from
// the Indexer. Without a Fleet, when a pod has gone: end its Subscribers, wait until Run has
// returned, and call [Indexer.RemovePod]. Call [Indexer.Close] at the end.
//
// Set [WithProfile] at once for SGLang with media, for EAGLE or MTP, and for hybrid
// models. [WithHooks], [WithMemory], [WithKeepOnLoss], [WithModels], [WithResolver],
// [WithPredictions] and [Indexer.Candidates] can wait. [Indexer.Snapshot] and [Restore]
// keep the index over a restart of the process.
//
// # Promises
//
// [PodScore.CachedTokens] counts a block only if the pod holds it according to the events
// that were applied. It can be too high in these cases:
//
//   - In [StateReplaying] and [StateUncertain] events about removals may be missing.
//   - Where [PodScore.UpperBound] is set, a fact about a hybrid model is missing.
//   - Not marked: the events of some engines lack information, see [MediaBare] and
//     [MediaPad]; and an engine may have draft layers that [Profile] does not name.
//
// A score can be too low: it misses blocks that were stored before the first event, blocks
// that were forgotten after a loss, blocks that the index had no room for ([WithMemory]), and
// blocks whose parent is not known. All but the last show in the [State] of the pod;
// [stats.Stats] counts losses, evicted blocks, and blocks that wait for a parent.
//
// [PodScore.PredictedTokens] adds the prompts that [Indexer.Routed] has registered. It is too
// high, for the TTL at most, if a request did not reach the engine, or reached it in another
// order.
//
// Any number of pods can hold one block.
//
// All methods are safe for concurrent use. An Indexer does not log. It starts no goroutine,
// except short ones: after RemovePod, to clean up, and when the delay of a backend ends
// (stats.Traffic.Delayed).
//
// # For events that do not come over ZeroMQ
//
// Use [Indexer.IngestMessage] if your messages have the engine's sequence numbers, else
// [Indexer.Ingest] for payloads or [Indexer.ApplyBatch] for decoded batches.
// [Indexer.MarkLost] reports a loss that your program has noticed.
//
// # For authors of transports
//
// [Indexer.Sink], with [Message] and [Receipt], is for a transport that can request a replay
// from engines, or that follows pods with several ranks, as an [events.Fleet] does.
// [events.Sink] has the rules. Only transports call its methods.
//
// # For authors of backends
//
// [WithIndex] replaces the index in memory by another backend. Package index has the
// contract, and package indextest has the tests that a backend must pass.
package kvindex

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/internal/registry"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Types that other packages own and users of this one need.
type (
	// Tier is the place of a block.
	Tier = index.Tier
	// Copies is a way of counting the copies of a block in the gpu.
	Copies = index.Copies
	// Message is one message of a transport with sequence numbers.
	Message = events.Message
	// Receipt is the outcome of a Message.
	Receipt = events.Receipt
	// Gap is a range of sequence numbers that did not arrive.
	Gap = events.Gap
	// Media is an image, or another item, that stands in a prompt as a run of
	// placeholder tokens.
	Media = chat.Media
)

// The tiers, fastest first. TierOther is any other place that an engine names.
const (
	TierGPU    = index.TierGPU
	TierCPU    = index.TierCPU
	TierDisk   = index.TierDisk
	TierRemote = index.TierRemote
	TierOther  = index.TierOther
)

// The ways of counting copies.
const (
	// CopiesGuarded counts an announcement as a copy, except where it may be a
	// report: a repeated announcement of held blocks, which a client can request (vLLM's
	// request field kv_cache_report_mode=full). Reports never make a score too high.
	// A score may be a little too low.
	CopiesGuarded = index.CopiesGuarded
	// CopiesExact counts each announcement as a copy. It is exact if no client can
	// request reports. With reports, scores are too high.
	CopiesExact = index.CopiesExact
	// CopiesSet does not count copies: the first removal removes the block.
	CopiesSet = index.CopiesSet
)

// Indexer applies events and scores prompts. It must be made by New or Restore. All methods
// are safe for concurrent use.
type Indexer struct {
	reg          *registry.Registry // the write side: pods, ranks and streams
	names        *catalog.Catalog   // the names and views of pods that scores read
	ledger       *predict.Ledger
	index        index.Index
	hash         hashing.Hasher
	given        map[string]Model
	source       func(ctx context.Context, name string) (Model, error) // loads other models; may be nil
	scored       func(context.Context, ScoreReport)                    // Hooks.Scored; may be nil
	prompts      *prefixcache.Cache                                    // of texts; nil: none
	snapshot     chan struct{}                                         // full while a Snapshot runs
	scorers      sync.Pool                                             // of *scorer
	keptPrompts  sync.Pool                                             // of *keptPrompt
	made         atomic.Uint32
	tallies      [16]tally  // counts of scores; each scorer has one of them
	unregistered view.Plans // plans for pods that have blocks in the index and are not registered
}

// New returns an Indexer. Without options it applies the events of any model, and scores
// prompts of token ids only; WithModel adds texts and chats. Its only pods are those of the
// index that WithIndex gives. The error names each option that is wrong.
func New(opts ...Option) (*Indexer, error) {
	c := configOf(opts)
	if err := c.validate(); err != nil {
		return nil, err
	}
	return c.open()
}

// open returns an Indexer with valid options.
func (c *config) open() (*Indexer, error) {
	of := c.index
	if of == nil {
		var mc index.MemoryConfig
		if c.seed != nil {
			mc.Seed = *c.seed
		}
		if c.memory != nil {
			mc.Bytes = *c.memory
		}
		m, err := index.NewMemory(mc)
		if err != nil {
			return nil, fmt.Errorf("kvindex: %w", err)
		}
		of = m
	}
	rc := registry.Config{
		Index: of, OwnsIndex: c.index == nil, Keep: c.keep,
		Profile: func(pod, model string) (engine.Profile, error) {
			var p Profile
			if c.profile != nil {
				p = c.profile(pod, model)
			}
			return p.complete()
		},
	}
	if c.profile != nil {
		rc.Estimated = func(pod, model string) bool { return c.profile(pod, model).Approximate != nil }
	}
	if hook := c.hooks.Lost; hook != nil {
		rc.Lost = func(l registry.Loss) { hook(Loss(l)) }
	}
	if hook := c.hooks.State; hook != nil {
		rc.State = func(pod, model string, from, to view.State) { hook(pod, model, State(from), State(to)) }
	}
	x := &Indexer{
		index: of, hash: hashing.New(of.Seed()), ledger: predict.New((*predict.Config)(c.predictions)), given: c.given, source: c.source, scored: c.hooks.Scored,
		snapshot: make(chan struct{}, 1),
	}
	x.names = catalog.New(catalog.Config{
		Resolver:  c.resolver,
		Given:     func(model string) bool { _, ok := c.given[model]; return ok },
		Introduce: func(pod, model string) bool { return x.reg.Introduce(pod, model) },
	}, x.hash, x.ledger)
	x.reg = registry.New(rc, x.names)
	if c.prompts > 0 {
		cache, err := prefixcache.New(c.prompts)
		if err != nil {
			return nil, fmt.Errorf("kvindex: %w", err)
		}
		x.prompts = cache
	}
	if c.index != nil {
		if err := x.reg.Recall(); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Score returns for each pod how many tokens of prompt it has cached, best first. It is
// the short form of ScoreRequest for a text.
//
// The prompt is tokenized with special tokens, as an engine does for /v1/completions,
// so the model needs a tokenizer (WithModel, WithModels). With pods nil, all registered
// pods of the model are scored; with pods empty, none. A pod that holds nothing is in the
// answer with 0. If no pod is registered for the model, all pods have 0; only
// ScoreRequest reports this, by Answer.Unknown.
func (x *Indexer) Score(ctx context.Context, prompt, model string, pods []string) ([]PodScore, error) {
	var a Answer
	err := x.ScoreRequest(ctx, &Request{Model: model, Prompt: prompt, Pods: pods}, &a)
	if a.sent != nil { // Score returns no Answer, so it cannot be routed
		x.keptPrompts.Put(a.sent)
	}
	return a.Pods, err
}

// Ingest applies the payload of one message, as an engine publishes it, without the
// sequence number. The caller must bring all messages of a pod in their order: the
// Indexer applies them in the order of the calls. If messages were lost, the caller calls
// MarkLost.
//
// Without numbers nothing shows that there were messages before the first one: the rank is
// StateLive from its first payload on. A caller that begins after the engine's first
// message calls MarkLost once for each rank, after the first payload of that rank. The
// blocks of this payload are forgotten, and the rank is StatePartial.
//
// A malformed payload is an error that wraps ErrMalformed, and nothing of it is
// applied. Call MarkLost then, too: the events of the payload are missing. If the index has
// no room for the rank, the error wraps ErrFull, and the rank has lost the events of the
// payload: no MarkLost is needed. Ingest keeps nothing of payload.
func (x *Indexer) Ingest(podID, model string, payload []byte) error {
	return x.reg.Ingest(podID, model, payload)
}

// Close makes every method return ErrClosed, and closes the index unless it came from
// WithIndex. A second Close does nothing.
func (x *Indexer) Close() error { return x.reg.Close() }
