package kvindex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/internal/view"
)

// Option configures New.
type Option func(*config)

type config struct {
	index    index.Index
	memory   *int64 // bytes
	seed     *[16]byte
	given    map[string]Model
	source   func(ctx context.Context, name string) (Model, error)
	resolver func(model string) (base, adapter string)
	profile  func(pod, model string) Profile
	keep     bool // on a loss
	hooks    Hooks
	hooked   bool  // WithHooks was given
	prompts  int64 // bytes of the prompt cache; 0: there is none
	errs     []error

	promptsGiven bool

	predictions *PredictionConfig // nil: the defaults
}

func configOf(opts []Option) config {
	c := config{given: make(map[string]Model)}
	for i, o := range opts {
		if o == nil {
			c.errs = append(c.errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		o(&c)
	}
	return c
}

// WithIndex uses another backend than the index in memory. Close does not close it.
// A backend is for one Indexer after another, and not for two at a time: both would apply the
// messages of a pod, and of a shared index neither would list the pods that the other feeds.
// Nothing reports such a mistake, because a backend cannot identify its callers. Processes that
// share an index open a backend each.
//
// If the backend is an index.Describer, the pods that have blocks in it are registered
// from the start. Each is in StateUncertain until the stream that brought its last message
// continues. If another stream brings messages of a rank, the blocks of the rank are
// forgotten. Messages without numbers (Ingest, ApplyBatch) show no loss: then the state ends
// when the engine empties its cache. Call RemovePod for pods in the backend that no longer exist.
//
// Several processes can share the index of package redisindex, and a process without a
// connection to any engine then scores like one with connections. The Indexer that receives
// the events of a pod publishes the states, ranks, adapters and groups of the pod. The other
// Indexers list the pod in Pods, score it without Request.Pods, and call their own function of
// WithProfile for it. A pod that leaves the index is no longer registered. If the published notes
// of a pod cannot be read, the pod is in StateUncertain. Entries beyond the bounds of an
// Indexer (65,536 pods, 16 models of a pod, 256 ranks, 4,096 adapters) are left out.
//
//   - If this Indexer receives events of a pod for a model, it ignores the notes of other
//     Indexers about it. Let one Indexer receive the events of all ranks of a pod.
//   - Hooks are not called for pods that other processes feed. Explain has less information about
//     such pods, and a prediction (Routed) ends by its TTL, Observe or Abandon, because none of
//     their events comes here.
//   - ScoreRequest requests the listing of pods, for at most half of the time that its context
//     has left. If the request fails, the last listing is used. If there was none, ScoreRequest
//     returns the error, unless the backend answers without rows (Answer.Degraded).
//   - A message that does not reach Redis in time is applied, and counts in
//     stats.Traffic.Delayed. The rank is StateUncertain until Redis has the message.
//
// During a call of a backend, messages of the same pod wait, for 5 seconds at most. A message
// whose call fails was not applied, and the rank is StateUncertain until one is applied. A
// Subscriber does not bring the message again: it calls OnError, and the next message shows
// the gap, which a replay fills or which counts as a loss. Messages of other pods wait only if
// they share a goroutine with the waiting message, as in the workers of an events.Pool.
//
// An index of this module can do more than the contract of package index: it explains, takes
// snapshots, and is shared. A wrapper around such an index cannot.
func WithIndex(ix index.Index) Option {
	return func(c *config) {
		if ix == nil {
			c.errs = append(c.errs, errors.New("WithIndex: the index is nil"))
		}
		if c.index != nil {
			c.errs = append(c.errs, errors.New("WithIndex is given twice"))
		}
		c.index = ix
	}
}

// WithMemory limits the heap memory of the index in memory, in bytes, at least 1 MiB.
// The default is 4 GiB, or 512 MiB on machines with addresses of 32 bits. The limit covers
// everything that the index keeps.
//
// When little memory is left, the index evicts the blocks that were not stored or matched
// for the longest time, starting at the ends of prompts. Then scores are too low, and never
// too high: RankInfo.Evicted counts the evicted blocks of a rank, and the state of the rank
// is StatePartial at best. If there is no room for a new rank, its messages are an error
// that wraps ErrFull.
//
// The limit does not cover the other data of the Indexer, Subscribers, or tokenizers.
// WithMemory and WithIndex exclude each other: a backend has its own limit.
func WithMemory(bytes int64) Option {
	return func(c *config) {
		if bytes < index.MinMemory {
			c.errs = append(c.errs, fmt.Errorf("WithMemory: bytes is %d, must be at least %d", bytes, index.MinMemory))
		}
		if c.memory != nil {
			c.errs = append(c.errs, errors.New("WithMemory is given twice"))
		}
		c.memory = &bytes
	}
}

const defaultPromptCache = 64 << 20 // bytes

// WithPromptCache limits the heap memory of the prompt cache, in bytes, at least
// 1 MiB. 0 is no cache. The default is 64 MiB, if there is a tokenizer (WithModel,
// WithModels).
//
// A text that is in the cache is not encoded again. If a text begins like one in the cache,
// only the rest of it is encoded. The cache keeps neither texts nor token ids, and it
// changes no answer. Request.Prompt and Request.Body share it. Prompts with media do not use
// it, and neither do chats in pieces (chat.Rendering.Whole).
//
// A tokenizer uses the cache if it is a tokenize.Identifier, like a tokenize.BPE, or if it has
// the method Hold(ctx, text) (tokenize.Identifier, error), like the tokenizers of a
// tokenize.Pool; a wrapper around one of these needs the method too. A text for which Hold
// returns nil does not use the cache, as after the verdict of a remote.Judge. A tokenizer without
// the EncodeMarks of a tokenize.BPE uses the cache for whole texts only. Stats.Prompts has the
// counters of the cache.
func WithPromptCache(bytes int64) Option {
	return func(c *config) {
		if bytes != 0 && bytes < prefixcache.MinBytes {
			c.errs = append(c.errs, fmt.Errorf("WithPromptCache: bytes is %d, must be 0 or at least %d", bytes, prefixcache.MinBytes))
		}
		if c.promptsGiven {
			c.errs = append(c.errs, errors.New("WithPromptCache is given twice"))
		}
		c.prompts, c.promptsGiven = bytes, true
	}
}

// WithPredictions configures predictions: a prompt that Routed has registered counts until
// events decide. Without the option, predictions have the defaults of PredictionConfig.
func WithPredictions(p PredictionConfig) Option {
	return func(c *config) {
		if p.TTL < 0 || p.TicketAge < 0 {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: TTL is %v and TicketAge is %v, must not be negative", p.TTL, p.TicketAge))
		}
		if p.TicketAge > 0 && p.TicketAge < cmp.Or(p.TTL, predict.DefaultTTL) {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: TicketAge is %v, must be at least the TTL of %v", p.TicketAge, cmp.Or(p.TTL, predict.DefaultTTL)))
		}
		if p.Bytes != 0 && p.Bytes < predict.MinBytes {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: Bytes is %d, must be at least %d", p.Bytes, predict.MinBytes))
		}
		if c.predictions != nil {
			c.errs = append(c.errs, errors.New("WithPredictions is given twice"))
		}
		c.predictions = &p
	}
}

// WithKeySeed sets the seed of the keys by which prompts are looked up. Give all
// gateways the same seed: then all have the same order of equal pods. The seed is not
// related to an engine's hash seed. A snapshot contains the seed, and Restore uses it.
//
// Keep the seed secret: with it anybody can make different prompts with equal keys. By
// default it is random. A backend that WithIndex gives has its own seed, so the two options
// exclude each other.
func WithKeySeed(seed [16]byte) Option {
	return func(c *config) {
		if seed == ([16]byte{}) {
			c.errs = append(c.errs, errors.New("WithKeySeed: the seed is all zeros"))
		}
		if c.seed != nil {
			c.errs = append(c.errs, errors.New("WithKeySeed is given twice"))
		}
		c.seed = &seed
	}
}

// WithModel sets the tokenizer and the chat template of a base model. They also serve
// the adapters on this model. Give the option once for each model. name is the name in
// SubscriberConfig.Model. Requests use the same name, or a name that WithResolver maps to
// it.
func WithModel(name string, m Model) Option {
	return func(c *config) {
		_, twice := c.given[name]
		switch {
		case name == "":
			c.errs = append(c.errs, errors.New("WithModel: the name is empty"))
		case m.Tokenizer == nil:
			c.errs = append(c.errs, fmt.Errorf("WithModel: model %q has no Tokenizer", name))
		case twice:
			c.errs = append(c.errs, fmt.Errorf("WithModel: model %q is given twice", name))
		default:
			c.given[name] = m
		}
	}
}

// WithModels sets a function that returns the Model for each name that no WithModel
// has, such as the Model method of [Models]. If there is no such model, the function
// returns a Model without a Tokenizer. It is called for each request with a text or a
// chat, by many goroutines at a time.
//
// The function gets names of base models. For a request that names an adapter it gets
// the base model of the adapter, if WithResolver or an event has named the adapter. Any
// other unknown name counts as a base model, so the function also gets names that clients
// invent.
func WithModels(source func(ctx context.Context, name string) (Model, error)) Option {
	return func(c *config) {
		if source == nil {
			c.errs = append(c.errs, errors.New("WithModels: the function is nil"))
		}
		if c.source != nil {
			c.errs = append(c.errs, errors.New("WithModels is given twice"))
		}
		c.source = source
	}
}

// WithResolver sets a function that resolves the model of a request: a name under which
// engines serve a model, an alias, or an adapter. The function returns base, the name of
// the base model in SubscriberConfig.Model, and adapter, the name of the adapter in events,
// "" for none. The request is then scored with base as its Model and adapter as its
// Adapter. WithModel and WithModels are looked up by base.
//
// For an unknown name, the function returns the name itself and "". Then the score is as
// without the function: the name is that of a base model or, if no such model is known,
// that of an adapter that an event has named. Any other result is final, whatever names
// are in events. If base is empty, the score fails with an error.
//
// Request.Adapter replaces adapter. The function does not get it.
//
// The function is called at most once for each score, with Request.Model or the model of
// the body. For Candidates it is called with their model at their first score, and again
// after pods, models or adapters have come or gone: make new Candidates when a result
// changes. Explain may call it several times. It gets every name that clients invent. It
// must be safe for concurrent use, and should be quick. No lock is held.
func WithResolver(resolver func(model string) (base, adapter string)) Option {
	return func(c *config) {
		if resolver == nil {
			c.errs = append(c.errs, errors.New("WithResolver: the function is nil"))
		}
		if c.resolver != nil {
			c.errs = append(c.errs, errors.New("WithResolver is given twice"))
		}
		c.resolver = resolver
	}
}

// WithProfile sets a function that returns the Profile of a pod: facts about its engine
// that are not in its events. The function is called once for each pod and model: for the
// first event or the Subscriber of the pod, for the first note of another process about it
// (WithIndex), or by Restore. Before, it is also called when a request names the pod, and only
// Profile.Approximate matters then; so it gets names of pods and models that are not registered.
//
// The Profile is kept until RemovePod. If it is not valid, each message for the pod and model
// is an error, and so is Restore; a pod that another process feeds stays unregistered then, and
// the function is called again. The function must not call the Indexer. Without it every pod
// has the zero Profile.
func WithProfile(profile func(pod, model string) Profile) Option {
	return func(c *config) {
		if profile == nil {
			c.errs = append(c.errs, errors.New("WithProfile: the function is nil"))
		}
		if c.profile != nil {
			c.errs = append(c.errs, errors.New("WithProfile is given twice"))
		}
		c.profile = profile
	}
}

// Profile has facts about the engine of a pod that are not in its events. The zero Profile
// is right for vLLM since March 2026 without draft layers (EAGLE, MTP). For a hybrid model,
// each missing fact makes scores upper bounds (PodScore.UpperBound).
type Profile struct {
	// Media is the form in which the engine puts media into blocks. It matters only for
	// prompts with media.
	Media MediaForm

	// Copies is the way of counting blocks in the gpu. The default, 0, is CopiesExact with
	// MediaPad, and CopiesGuarded otherwise.
	Copies Copies

	// Groups are groups of the model, by ID: their position in vLLM's list of groups. A
	// Group here replaces the facts in events about the group with its ID, but a Window of 0
	// changes nothing. Groups is needed where events lack these facts: for the chunk of
	// index.GroupChunked, and for groups that SGLang's events do not mention. With the
	// latter, scores are upper bounds (PodScore.UpperBound).
	Groups []index.Group

	// Draft shows whether the engine runs with draft layers (EAGLE, MTP), which give up
	// the end of each hit. This is not in events. On an engine with draft layers, a score
	// without it is too high by a block.
	Draft Draft

	// Grain is for models with Mamba layers, where a hit may end inside a block: at
	// multiples of Grain, in tokens. 0 takes the grain from the events. Block sizes must be
	// multiples of Grain.
	Grain int

	// Adapters has the names of LoRA adapters of a pod whose events have only their
	// numbers: vLLM before 0.14. A key is a number in decimal, and the value is the name. A
	// request for the name then finds the adapter on this pod too. A request for the
	// number does not find it.
	//
	// Each engine numbers its adapters itself: vLLM gives 1, 2 and so on to the adapters
	// of --lora-modules, in their order, and a higher number to each that is loaded
	// later, also to one that was unloaded (OpenAIServingModels, January to November
	// 2025). If an engine restarts and its numbers change, call RemovePod: then the
	// function of WithProfile is called again.
	//
	// A name must not be empty, and must not be a number. Two numbers must not have one
	// name, because engines that have numbers in their hashes do not reuse the blocks of
	// one for the other. The Indexer copies the map.
	Adapters map[string]string

	// Chunk is for engines that offload blocks to lower tiers: the blocks in a chunk of the
	// connector (vLLM's OffloadingConnector: blocks_per_chunk). 0: as events show or, where
	// they have hashes alone, one block; then PodScore.UpperBound is true for what is loaded.
	Chunk int
	// ClearsGPU is for vLLM with the OffloadingConnector: an event that empties the cache
	// (AllBlocksCleared) empties the gpu, and leaves the lower tiers as they are. It also means
	// that the connector stores a chunk in the cpu tier once: a second store of it proves that
	// the tier was emptied without an event, and the blocks of the tier are forgotten.
	ClearsGPU bool
	// Weights are those of a token in each tier, for PodScore.Score, from 0 to 1. 0 is the
	// default: 1 in the gpu, 0.8 in the cpu, 0.5 in the others. They count in scores of which
	// some candidate has stored blocks in a lower tier.
	Weights [index.NumTiers]float64
	// MaxAge is how long the blocks of a tier are kept that were not stored again, for feeds
	// that announce no removals. The clock is that of the times in the pod's batches or, where
	// they have none or one that is further ahead than MaxAge, the host's. A block goes with the
	// first batch after between one and one and a half of it. 0 is the default: an hour in disk,
	// remote and other, and until they are removed in the cpu. math.MaxInt64 is until they are
	// removed in any tier. That of the gpu must be 0.
	MaxAge [index.NumTiers]time.Duration

	// Approximate, if not nil, is for a pod whose engine publishes no events: the cache of
	// the pod is estimated from the prompts that are routed to it (Indexer.Routed). Its figure
	// is PredictedTokens: CachedTokens is 0, and the state is StateApproximate. The estimate
	// holds the last routed prompts, as many as fit, and evicts in the order of vLLM.
	// Observe corrects the estimate: tokens that the engine reused were in its cache, tokens
	// that it did not reuse had left it, and the size of the cache follows from both.
	//
	// The function of WithProfile is also called when a request or Candidates name a pod that
	// is not registered, and again until it returns an Approximate. It must return one for the
	// models that the pod serves, and none for names that clients invent. The first event of
	// the pod makes the pod exact, and the estimate is dropped.
	Approximate *Approximate
}

// Draft shows whether an engine runs with draft layers.
type Draft uint8

// The values of Draft.
const (
	// DraftUnknown: a model of one full-attention group is scored as with DraftNone. For any
	// other model PodScore.UpperBound is true.
	DraftUnknown Draft = iota
	// DraftNone: the engine has no draft layers.
	DraftNone
	// DraftLayers: the engine has draft layers in the Groups with Draft set, and in groups of
	// their kind, window and block size. If no group has Draft set, they are in all groups.
	DraftLayers
)

// MediaForm is the form in which an engine puts the media of a prompt into its blocks.
type MediaForm uint8

// The forms of media. Prompts without media match the same in all of them.
const (
	// MediaOffsets: a block has the hash and the start of each media item in it. vLLM does
	// so since March 2026. A request needs Media.Hash and Media.Offset.
	MediaOffsets MediaForm = iota
	// MediaBare: a block has the hash of each media item in it, but not its start. vLLM
	// did so from February to March 2026. A request needs Media.Hash, Media.Offset and
	// Media.Length. Such a vLLM itself cannot distinguish two prompts whose items start at
	// different places of a block, or a salt from an item of the same name.
	MediaBare
	// MediaPad: the engine writes the hash of an item over its tokens, as 1,000,000 +
	// hash mod 2^30. SGLang does so. Set Media.Hash to SGLang's hash of the item in
	// decimal, and Media.Offset and Media.Length to the place of its tokens; the values
	// of these tokens do not matter. If the tokens of a request are overwritten
	// already, leave Request.Media empty.
	//
	// SGLang's events lack some facts:
	//
	//   - They contain neither the adapter nor the extra_key, although the cache is
	//     separate for each. So a score without an adapter can be too high on a pod
	//     that serves adapters, and a score with an adapter is 0.
	//   - They leave out window and Mamba layers. For models that have such layers
	//     CachedTokens is an upper bound. Name these layers in Profile.Groups: this sets
	//     PodScore.UpperBound.
	//   - They come late: after a batch of prefills, or after 40 steps of decoding.
	//     A score can be too low until then.
	//   - Before November 2025 the hash of a page was made from the tokens of this
	//     page alone. Scores for such versions are wrong.
	MediaPad
)

func (p *Profile) validate() error {
	switch {
	case p.Copies > CopiesSet:
		return fmt.Errorf("field Copies: unknown value %d", p.Copies)
	case p.Media >= hashing.NumForms:
		return fmt.Errorf("field Media: unknown value %d", p.Media)
	case p.Draft > DraftLayers:
		return fmt.Errorf("field Draft: unknown value %d", p.Draft)
	case p.Grain < 0:
		return fmt.Errorf("field Grain: %d is negative", p.Grain)
	case p.Chunk < 0:
		return fmt.Errorf("field Chunk: %d is negative", p.Chunk)
	}
	for t, w := range p.Weights {
		if !(w >= 0 && w <= 1) {
			return fmt.Errorf("field Weights: %v of tier %v is not within 0 and 1", w, index.Tier(t))
		}
	}
	for t, age := range p.MaxAge {
		switch {
		case age < 0:
			return fmt.Errorf("field MaxAge: %v of tier %v is negative", age, index.Tier(t))
		case age > 0 && index.Tier(t) == index.TierGPU:
			return fmt.Errorf("field MaxAge: %v of tier %v: an engine announces what it removes there", age, index.TierGPU)
		}
	}
	if err := p.Approximate.validate(p); err != nil {
		return err
	}
	for i, g := range p.Groups {
		switch {
		case g.ID < 0 || g.ID >= index.MaxGroups:
			return fmt.Errorf("field Groups: ID %d is not in 0..%d", g.ID, index.MaxGroups-1)
		case slices.ContainsFunc(p.Groups[:i], func(o index.Group) bool { return o.ID == g.ID }):
			return fmt.Errorf("field Groups: ID %d is given twice", g.ID)
		case g.Kind > index.GroupOther:
			return fmt.Errorf("field Groups: group %d: unknown Kind %d", g.ID, g.Kind)
		case g.Window < 0:
			return fmt.Errorf("field Groups: group %d: Window %d is negative", g.ID, g.Window)
		case g.Draft && p.Draft != DraftLayers:
			return fmt.Errorf("field Groups: group %d has Draft, but Profile.Draft is not DraftLayers", g.ID)
		}
	}
	return validateAdapters(p.Adapters)
}

// Approximate configures the estimate of the cache of a pod whose engine publishes no events:
// see Profile.Approximate.
type Approximate struct {
	// BlockTokens is the engine's block size, in tokens.
	BlockTokens int
	// Blocks is the number of blocks in the cache of a rank. Observe corrects a wrong number,
	// to between a sixteenth and 16 times it. A block takes 36 bytes of memory.
	Blocks int
	// TTL is the time for which an unused block stays in the estimate; 0: until other blocks
	// take its place.
	TTL time.Duration
}

// maxApproximate bounds Approximate.Blocks.
const maxApproximate = 1 << 26

func (a *Approximate) validate(p *Profile) error {
	switch {
	case a == nil:
		return nil
	case a.BlockTokens < 1:
		return fmt.Errorf("field Approximate: BlockTokens is %d, must be at least 1", a.BlockTokens)
	case a.Blocks < 1 || a.Blocks > maxApproximate:
		return fmt.Errorf("field Approximate: Blocks is %d, not in 1..%d", a.Blocks, maxApproximate)
	case a.TTL < 0:
		return fmt.Errorf("field Approximate: TTL %v is negative", a.TTL)
	}
	if _, ok := engine.VariantOf(a.BlockTokens, false, uint8(p.Media)); !ok {
		return fmt.Errorf("field Approximate: BlockTokens %d is not possible with the Media of the Profile", a.BlockTokens)
	}
	return nil
}

// validateAdapters refuses names by which one adapter could be taken for another.
func validateAdapters(adapters map[string]string) error {
	numbers := make(map[string]string, len(adapters)) // by name
	for _, number := range slices.Sorted(maps.Keys(adapters)) {
		name := adapters[number]
		switch other, twice := numbers[name]; {
		case !isNumber(number):
			return fmt.Errorf("field Adapters: key %.100q is not a decimal number", number)
		case name == "":
			return fmt.Errorf("field Adapters: the name of number %s is empty", number)
		case isNumber(name):
			return fmt.Errorf("field Adapters: the name of number %s is a number, %q", number, name)
		case twice:
			return fmt.Errorf("field Adapters: numbers %s and %s have one name, %.100q", other, number, name)
		}
		numbers[name] = number
	}
	return nil
}

// isNumber reports whether events could have s as the number of an adapter.
func isNumber(s string) bool {
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == s
}

// complete returns p in the form that the internal packages use, with its defaults filled in,
// and the error of validate.
func (p *Profile) complete() (engine.Profile, error) {
	e := engine.Profile{Media: uint8(p.Media), Copies: p.Copies, Groups: slices.Clone(p.Groups), Draft: uint8(p.Draft), Grain: p.Grain, Adapters: maps.Clone(p.Adapters), Chunk: p.Chunk, ClearsGPU: p.ClearsGPU, Weights: p.Weights, MaxAge: p.MaxAge}
	if p.Approximate != nil {
		e.Approximate = &engine.Room{BlockTokens: p.Approximate.BlockTokens, Blocks: p.Approximate.Blocks, TTL: p.Approximate.TTL}
	}
	switch {
	case p.Copies != 0:
	case p.Media == MediaPad:
		// SGLang keeps a block once, but names those of several extra_keys
		// alike, and stores and removes each.
		e.Copies = CopiesExact
	default:
		e.Copies = CopiesGuarded
	}
	return e, p.validate()
}

// profileOf returns the Profile of which complete returned e.
func profileOf(e *engine.Profile) Profile {
	p := Profile{Media: MediaForm(e.Media), Copies: e.Copies, Groups: slices.Clone(e.Groups), Draft: Draft(e.Draft), Grain: e.Grain, Adapters: maps.Clone(e.Adapters), Chunk: e.Chunk, ClearsGPU: e.ClearsGPU, Weights: e.Weights, MaxAge: e.MaxAge}
	if a := e.Approximate; a != nil {
		p.Approximate = &Approximate{a.BlockTokens, a.Blocks, a.TTL}
	}
	return p
}

// WithKeepOnLoss keeps the blocks of a rank after a loss: messages were missed, and no
// replay brings them. The rank is in StateUncertain until its engine empties its cache or
// restarts. Until then blocks whose removal was missed still count. Without this option
// the blocks of the rank are forgotten at a loss, so that no score is too high. When an
// engine restarts, its blocks are always forgotten, and the reports of an offload daemon are
// forgotten at each of its losses.
func WithKeepOnLoss() Option {
	return func(c *config) { c.keep = true }
}

// WithHooks sets functions that the Indexer calls when something happens.
func WithHooks(h Hooks) Option {
	return func(c *config) {
		if c.hooked {
			c.errs = append(c.errs, errors.New("WithHooks is given twice"))
		}
		c.hooks, c.hooked = h, true
	}
}

// Hooks are functions that the Indexer calls. Each is optional. They are called
// synchronously, outside of all locks, by the goroutine that brings the event or requests
// the score. They may call the Indexer. They must be safe for concurrent use, and should
// be quick.
type Hooks struct {
	// Lost is called when messages of a pod were lost. It is also called once when two
	// streams begin to contest a rank.
	Lost func(Loss)
	// State is called when the state of a pod for a model has changed. Two changes
	// shortly after each other may be reported in the other order. The first state of a
	// pod is not reported: StateUnknown, or StateSilent if a Subscriber runs for it. States of
	// pods that another process feeds (WithIndex) are not reported either.
	State func(pod, model string, from, to State)
	// Scored is called at the end of each score, with any outcome, before ScoreRequest
	// returns, and gets the context of ScoreRequest. It is not called after Close. Times are
	// measured only if Scored is set.
	Scored func(context.Context, ScoreReport)
}

// Loss describes a loss of messages.
type Loss struct {
	Pod, Model, Stream string
	Rank               int // the rank that has lost its view; -1 if no rank of the stream had one yet
	// Cause is one of:
	//
	//	gap        sequence numbers are missing
	//	malformed  a message could not be read
	//	restart    the engine restarted
	//	marked     the caller reported it by MarkLost
	//	moved      the messages of the rank now come over another stream
	//	contested  two streams continue to bring messages of one rank
	//	full       the index has no room for the rank (ErrFull): the message was not applied
	//
	// At contested, probably two engines are configured with one pod and rank. Stream is the
	// stream that had the rank before. Its messages are not applied to the rank, and count in
	// stats.Traffic.Contested.
	Cause string
	// Seq is the number of the message at which the loss was noticed. It is zero if no
	// message showed the loss (MarkLost, NoteRestarted).
	Seq      uint64
	Gap      Gap   // at a gap: the missing numbers
	Replayed bool  // at a gap: a replay was requested, and the engine no longer had the messages
	Err      error // why message Seq could not be read, with any Cause; at contested and full, the reason
	Kept     bool  // true: the blocks were kept (WithKeepOnLoss, contested); false: they were forgotten
	// Tiers: the stream reports lower tiers alone (SubscriberConfig.Tiers). It has lost these,
	// and the gpu is as before.
	Tiers bool
}

// MarshalJSON writes Err as its text.
func (l Loss) MarshalJSON() ([]byte, error) {
	type fields Loss
	return json.Marshal(struct {
		fields
		Err string `json:",omitempty"`
	}{fields(l), textOf(l.Err)})
}

// LogValue returns a group of the fields that a log needs.
func (l Loss) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("cause", l.Cause), slog.String("pod", l.Pod), slog.String("model", l.Model), slog.Int("rank", l.Rank), slog.Bool("kept", l.Kept)}
	if l.Stream != "" {
		attrs = append(attrs, slog.String("stream", l.Stream), slog.Uint64("seq", l.Seq))
	}
	if l.Cause == view.LossGap {
		attrs = append(attrs, slog.Uint64("from", l.Gap.From), slog.Uint64("to", l.Gap.To), slog.Bool("replayed", l.Replayed))
	}
	if l.Err != nil {
		attrs = append(attrs, slog.String("err", l.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

// validate returns every illegal setting and combination in one error.
func (c *config) validate() error {
	errs := c.errs
	if c.index != nil && c.seed != nil {
		errs = append(errs, errors.New("WithKeySeed and WithIndex exclude each other: the backend has its own seed"))
	}
	if c.index != nil && c.memory != nil {
		errs = append(errs, errors.New("WithMemory and WithIndex exclude each other: the backend has its own limit"))
	}
	if !c.promptsGiven && (c.source != nil || len(c.given) > 0) {
		c.prompts = defaultPromptCache
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("kvindex: bad options: %w", errors.Join(errs...))
}
