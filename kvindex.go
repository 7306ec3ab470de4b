// Package kvindex reads the KV events of LLM engines, and says for a prompt how many of
// its tokens each engine has cached, so that a gateway can send the prompt to the right
// one.
//
//	model, err := kvindex.LoadModel("/models/llama-3")
//	...
//	index, err := kvindex.New(kvindex.WithModel("llama-3", model))
//	...
//	sub, err := events.NewSubscriber(index.Sink(), events.SubscriberConfig{ // or events.NewFleet, for many pods
//		Pod: "pod-a", Model: "llama-3",
//		Endpoint: "tcp://10.0.0.7:5557",
//		Replay:   "tcp://10.0.0.7:5657", // else what was stored before is not known
//		OnError: func(err error) { log.Print(err) },
//	})
//	...
//	go sub.Run(ctx) // until ctx ends
//
//	var answer kvindex.Answer
//	err = index.ScoreRequest(ctx, &kvindex.Request{Body: body}, &answer) // the body of a chat
//	...
//	if len(answer.Pods) > 0 { // else no pod is known, and answer.Unknown says why
//		best := answer.Pods[0] // most tokens that it would reuse first: weigh them against load
//		ticket, err := index.Routed(&answer, best.Pod, best.Rank) // the prompt counts there from now on
//		... // send the request, and wait for its answer
//		index.Observe(ticket, kvindex.Usage{PromptTokens: u.PromptTokens, CachedTokens: u.CachedTokens})
//	}
//
// # Words
//
//   - pod: one running engine, by the name that your program gives to it.
//   - rank: one data-parallel part of a pod. Each rank has a cache of its own. A
//     pod without data parallelism has rank 0 alone.
//   - block: what an engine stores and removes: the cache of a fixed number of
//     tokens, 16 for instance.
//   - parent: the block before a block, in the same prompt.
//   - source: what is known of one rank and one model: which blocks it holds. Also
//     called its view.
//   - tier: where a block lies: in the gpu, in the memory of the host (cpu), on a
//     disk, or remote.
//   - copy: an engine may have a block twice in its gpu. It announces and removes
//     each copy.
//   - group: hybrid models have several kinds of layers, and a group of blocks for
//     each kind.
//   - adapter: a LoRA on a base model. Salt: the cache_salt of a request. Media:
//     images and the like in a prompt.
//   - stream: the numbered messages of one socket of an engine. Each rank has a
//     socket: run one Subscriber for each.
//   - transport: what brings the messages of streams to the Indexer, such as an
//     [events.Subscriber].
//   - replay: an engine sends its last messages again, if a transport asks.
//   - loss: messages that did not come and that no replay brings.
//   - prediction: a prompt that was sent to a rank. It counts as cached there until
//     events say what became of it. Ticket: the request, until its answer has come.
//
// # Where to start
//
// Read [New] and [Option], [Indexer.ScoreRequest] with [Request], [Answer] and
// [PodScore], and [State]. [Indexer.Score] is the short form for a text. [Indexer.Pods]
// and [Indexer.Stats] say what is known, [Indexer.Explain] why a score is what it is.
//
// Call [Indexer.Routed] when a request is sent, and [Indexer.Observe] or
// [Indexer.Abandon] when its answer has come. Then requests with the same beginning count
// before the first event of the first of them comes ([PodScore.PredictedTokens]), and
// [stats.Stats.Observed] says how right the figures are.
//
// An [events.Fleet] follows pods that come, move and go: it finds them in a file, in DNS
// or in Kubernetes, has a Subscriber for each rank, and has the Indexer forget what has
// gone. Without it, when a pod has gone: end its Subscribers, wait until Run has returned,
// and call [Indexer.RemovePod]. Call [Indexer.Close] at the end.
//
// Set [WithProfile] at once for SGLang with media, for EAGLE or MTP, and for hybrid
// models. [WithHooks], [WithMemory], [WithKeepOnLoss], [WithModels], [WithResolver],
// [WithPredictions] and [Indexer.Candidates] can wait. [Indexer.Snapshot] and [Restore]
// keep what is known when the process ends.
//
// # Promises
//
// [PodScore.CachedTokens] counts a block only if the events that were applied say that
// the pod holds it. It can be too high in these cases:
//
//   - In [StateReplaying] and [StateUncertain] events about removals may be missing.
//   - Where [PodScore.UpperBound] is set, something is not known of a hybrid model.
//   - Not marked: events of some engines do not say enough, see [MediaBare] and
//     [MediaPad]; and an engine has draft layers that [Profile] does not name.
//
// A score can be too low: for what was stored before the first event, after a loss, for
// what the index had no room for ([WithMemory]), and for blocks whose parent is not known.
// All but the last show in the [State] of the pod; [stats.Stats] counts losses, what was given
// up, and what waits for a parent.
//
// [PodScore.PredictedTokens] adds what [Indexer.Routed] has told. It is too high, for the
// TTL at most, if the request did not come to the engine, or not in that order.
//
// There is no limit to how many pods can hold one block.
//
// All methods are safe for concurrent use. An Indexer does not log. It starts no
// goroutine, except a short one that cleans up after RemovePod.
//
// # For events that do not come over ZeroMQ
//
// Use [Indexer.IngestMessage] if your messages have the engine's sequence numbers, else
// [Indexer.Ingest] for payloads or [Indexer.ApplyBatch] for decoded batches.
// [Indexer.MarkLost] reports a loss that you know of.
//
// # For authors of transports
//
// [Indexer.Sink], with [Message] and [Receipt], is for a transport that can ask engines for a
// replay, or that follows pods with several ranks, as an [events.Fleet] does. [events.Sink]
// has the rules. Nobody else calls its methods.
//
// # For authors of backends
//
// [WithIndex] takes another backend than the index in memory. Package index has the
// contract, package indextest the tests that a backend has to pass.
package kvindex

import (
	"context"
	"errors"
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
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/registry"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Types that other packages own and users of this one need.
type (
	// Tier is where a block lies.
	Tier = index.Tier
	// Copies says how the copies of a block in the gpu are counted.
	Copies = index.Copies
	// Message is one message of a transport with sequence numbers.
	Message = events.Message
	// Receipt says what became of a Message.
	Receipt = events.Receipt
	// Gap is a range of sequence numbers that did not come.
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
	// report: an announcement of held blocks that a request has asked for (vLLM's
	// request field kv_cache_report_mode=full). Reports never make a score too high.
	// A score may be a little too low.
	CopiesGuarded = index.CopiesGuarded
	// CopiesExact counts each announcement as a copy. It is exact if no client can ask
	// for reports. With reports, scores are too high.
	CopiesExact = index.CopiesExact
	// CopiesSet does not count: the first removal takes the block.
	CopiesSet = index.CopiesSet
)

var (
	// ErrClosed is returned after Close by every method that returns an error. Pods is empty
	// then, and Stats has what was counted.
	ErrClosed = registry.ErrClosed
	// ErrMalformed is wrapped by errors about payloads that cannot be read.
	ErrMalformed = events.ErrMalformed
	// ErrFull is wrapped by errors about messages of a rank that the index has no room
	// for, because what must be kept of others takes all its memory (WithMemory). The
	// message counts as lost: do not bring it again. When pods have gone, the rank is
	// taken in with its next message.
	ErrFull = index.ErrFull
	// ErrNoTokenizer is wrapped by errors about a text for a model without a tokenizer.
	ErrNoTokenizer = errors.New("kvindex: no tokenizer")
	// ErrNoTemplate is wrapped by errors about a chat for a model without a chat
	// template.
	ErrNoTemplate = chat.ErrNoTemplate
	// ErrUnknownModel is wrapped by errors about a model that has no pods, while other
	// models have some. The likely cause: the request and SubscriberConfig.Model have
	// different names for one model. WithResolver maps one to the other.
	ErrUnknownModel = catalog.ErrUnknownModel
	// ErrUnknownAdapter is wrapped by errors about an adapter that is in no event of
	// the pods of its model. Either no block of the adapter was stored yet, or the
	// events have another name for it.
	ErrUnknownAdapter = catalog.ErrUnknownAdapter
	// ErrRequest is wrapped by errors about requests that are wrong, and that the
	// engine would refuse too.
	ErrRequest = prompt.ErrRequest
)

// Indexer takes events in and gives scores out. It must be made by New. All methods are
// safe for concurrent use.
type Indexer struct {
	reg      *registry.Registry // what was heard of pods: messages write it
	names    *catalog.Catalog   // what scores know of pods
	ledger   *predict.Ledger
	index    index.Index
	hash     hashing.Hasher
	given    map[string]Model
	source   func(ctx context.Context, name string) (Model, error) // of other models; may be nil
	scored   func(context.Context, Scored)                         // may be nil
	prompts  *prefixcache.Cache                                    // of texts; nil: none
	snapshot chan struct{}                                         // has one while a Snapshot is under way
	scorers  sync.Pool                                             // of *scorer
	prompted sync.Pool                                             // of *keptPrompt
	made     atomic.Uint32
	tallies  [16]tally  // of scores; each scorer has one of them
	unheard  view.Plans // of pods that the index holds blocks of, and that were not heard
}

// New returns an Indexer. Without options it takes the events of any model, and scores
// prompts of token ids only; WithModel adds texts and chats. It knows no pods, but
// those of the index that WithIndex gives. The error names each option that is wrong.
func New(opts ...Option) (*Indexer, error) {
	c := configOf(opts)
	if err := c.validate(); err != nil {
		return nil, err
	}
	return c.open()
}

// open is New with options that are valid.
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
		Index: of, OwnsIndex: c.index == nil, Profiled: c.profile != nil, Keep: c.keep,
		Profile: func(pod, model string) (engine.Profile, error) {
			var p Profile
			if c.profile != nil {
				p = c.profile(pod, model)
			}
			return p.complete()
		},
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
// so the model needs a tokenizer (WithModel, WithModels). With pods nil, all known pods
// of the model are scored; with pods empty, none. A pod that holds nothing is in the
// answer with 0. If the model is not known, all pods have 0, and only ScoreRequest says
// so, by Answer.Unknown.
func (x *Indexer) Score(ctx context.Context, prompt, model string, pods []string) ([]PodScore, error) {
	var a Answer
	err := x.ScoreRequest(ctx, &Request{Model: model, Prompt: prompt, Pods: pods}, &a)
	if a.sent != nil { // nobody can route it
		x.prompted.Put(a.sent)
	}
	return a.Pods, err
}

// Ingest applies the payload of one message, as an engine publishes it, without the
// sequence number. The caller must bring all messages of a pod in their order; the
// order of calls is the order in which they are applied. If the caller knows that
// messages were lost, it calls MarkLost.
//
// Without numbers nothing shows that messages came before the first one: the rank is
// StateLive from its first payload on. A caller that begins behind the engine's first
// message calls MarkLost once for each rank, behind the first payload of that rank. What
// this payload said is forgotten, and the rank is StatePartial.
//
// A malformed payload is an error that wraps ErrMalformed, and nothing of it is
// applied. Call MarkLost then, too: what the payload said is missing. If the index has no
// room for the rank, the error wraps ErrFull, and the rank has lost what the payload
// said: no MarkLost is needed. Ingest keeps nothing of payload.
func (x *Indexer) Ingest(podID, model string, payload []byte) error {
	return x.reg.Ingest(podID, model, payload)
}

// Close makes every method return ErrClosed, and closes the index unless WithIndex gave
// it. A second Close does nothing.
func (x *Indexer) Close() error { return x.reg.Close() }
