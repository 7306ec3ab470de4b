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
//
// If the backend is an index.Describer, the pods that it holds blocks of are known from
// the start. Each is in StateUncertain until the stream that brought its last message
// continues. If another stream brings messages of a rank, the blocks of the rank are
// forgotten. Call RemovePod for pods in the backend that no longer exist.
//
// Several processes can share the index of package redisindex, and a process that
// hears no engine scores as one that does. The Indexer that hears a pod tells the others of its
// states, ranks, adapters and groups. They list it in Pods, score it without Request.Pods, and
// ask their own function of WithProfile about it. A pod that leaves the index is not known
// any more. If its notes cannot be read, it is in StateUncertain. What the index has beyond
// the bounds of an Indexer (65,536 pods, 16 models of a pod, 256 ranks, 4,096 adapters) is left out.
//
//   - A pod that is heard here for a model is known by that alone, whatever others say of it.
//     Let one Indexer hear all ranks of a pod.
//   - Hooks are not called for the pods of others. Explain knows less of them, and a prediction
//     (Routed) ends by its TTL, Observe or Abandon, because no event of theirs comes here.
//   - ScoreRequest asks for the listing, for half of the time that its context has. If there is
//     none, it goes on with what was known last. If nothing was ever known, the error is that of
//     ScoreRequest, unless the backend answers without rows (Answer.Degraded).
//   - A message that Redis does not have in time is applied, and counts in
//     stats.Traffic.Delayed. The rank is StateUncertain until Redis has it.
//
// While a call of a backend lasts, messages of the same pod wait, for 5 seconds at most. A
// message that then is an error was not applied, and the rank is StateUncertain until one is.
// A Subscriber does not bring it again: it tells OnError, and the next message shows the gap,
// which a replay fills or which counts as a loss. Messages of other pods wait only where they share a
// goroutine with it, as the workers of an events.Pool.
//
// An index of this module can do more than package index says: it explains, takes snapshots,
// and is shared. A wrapper around one can not.
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

// WithMemory sets how many bytes of heap the index in memory may take, at least 1 MiB.
// The default is 4 GiB, or 512 MiB on machines with addresses of 32 bits. Everything that the index keeps counts.
//
// When little is left, the index forgets the blocks that were not stored nor asked for
// for the longest time, from the ends of prompts on. Then scores are too low, and never
// too high: RankInfo.Evicted counts what a rank has lost in this way, and its state is
// StatePartial at best. If there is no room for a new rank, its messages are an error
// that wraps ErrFull.
//
// What the Indexer keeps beside the index, and what Subscribers and tokenizers take, is
// not in the bytes. WithMemory and WithIndex exclude each other: a backend has a bound of
// its own.
func WithMemory(bytes int64) Option {
	return func(c *config) {
		if bytes < index.MinMemory {
			c.errs = append(c.errs, fmt.Errorf("WithMemory: %d bytes, at least %d", bytes, index.MinMemory))
		}
		if c.memory != nil {
			c.errs = append(c.errs, errors.New("WithMemory is given twice"))
		}
		c.memory = &bytes
	}
}

const defaultPromptCache = 64 << 20 // bytes

// WithPromptCache sets how many bytes of heap the prompt cache may take, at least
// 1 MiB. 0 is no cache. The default is 64 MiB, if there is a tokenizer (WithModel,
// WithModels).
//
// The cache remembers of texts what a score needs of them, so that a text that was there
// before is not encoded again, and of one that begins as another was only the rest. It
// keeps neither texts nor token ids. Each answer is what it is without the cache.
// Request.Prompt and Request.Body share what is remembered. Prompts with media do not use
// it. A tokenizer does if it is a tokenize.Identified, as a tokenize.BPE, or has the method
// Hold(ctx, text) (tokenize.Identified, error), as those of a tokenize.Pool; a wrapper around
// one of a Pool needs it too. One without the EncodeMarks of a tokenize.BPE uses the cache for
// whole texts only. Stats.Prompts says how it does.
func WithPromptCache(bytes int64) Option {
	return func(c *config) {
		if bytes != 0 && bytes < prefixcache.MinBytes {
			c.errs = append(c.errs, fmt.Errorf("WithPromptCache: %d bytes, at least %d, or 0 for none", bytes, prefixcache.MinBytes))
		}
		if c.promptsGiven {
			c.errs = append(c.errs, errors.New("WithPromptCache is given twice"))
		}
		c.prompts, c.promptsGiven = bytes, true
	}
}

// WithPredictions configures predictions: what Routed says counts until events catch up. It
// is not needed for the defaults.
func WithPredictions(p PredictionConfig) Option {
	return func(c *config) {
		if p.TTL < 0 || p.TicketAge < 0 {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: a TTL of %v and a TicketAge of %v: neither can be negative", p.TTL, p.TicketAge))
		}
		if p.TicketAge > 0 && p.TicketAge < cmp.Or(p.TTL, predict.DefaultTTL) {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: a TicketAge of %v is less than the TTL of %v", p.TicketAge, cmp.Or(p.TTL, predict.DefaultTTL)))
		}
		if p.Bytes != 0 && p.Bytes < predict.MinBytes {
			c.errs = append(c.errs, fmt.Errorf("WithPredictions: %d bytes, at least %d", p.Bytes, predict.MinBytes))
		}
		if c.predictions != nil {
			c.errs = append(c.errs, errors.New("WithPredictions is given twice"))
		}
		c.predictions = &p
	}
}

// WithKeySeed sets the seed of the keys by which prompts are looked up. Give all
// gateways the same seed: then all have the same order of equal pods. It has nothing to
// do with an engine's hash seed. A snapshot contains the seed, and Restore takes it from
// there.
//
// Keep the seed secret: who knows it can make different prompts with equal keys. By
// default it is random. A backend that WithIndex gives has a seed of its own, so the
// two options exclude each other.
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
// the adapters on this model. Give it once for each model. name is the name in
// SubscriberConfig.Model. Requests have the same name, or one that WithResolver maps to
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
// has, such as the Model method of [Models]. To say that there is no such model, it
// returns a Model without a Tokenizer. It is called for each request with a text or a
// chat, by many goroutines at a time.
//
// The function gets names of base models. For a request that names an adapter it gets
// the base model of the adapter, if WithResolver or an event has named it. Any other name
// that is not known counts as a base model, so names that clients invent come to the
// function too.
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

// WithResolver sets a function that says what the model of a request means: a name under
// which engines serve a model, an alias, or an adapter. The function returns base, the
// name of the base model in SubscriberConfig.Model, and adapter, the name of the adapter
// in events, "" for none. The request is then scored as one with base as its Model and
// adapter as its Adapter. WithModel and WithModels are asked for base.
//
// For a name that it does not know, the function returns the name itself and "". Then
// the score is as without the function: the name is that of a base model or, if no such
// model is known, that of an adapter that an event has named. Any other answer is final,
// whatever names are in events. If base is empty, the score fails with an error.
//
// Request.Adapter takes the place of adapter. The function does not get it.
//
// The function is called at most once for each score, with Request.Model or the model of
// the body. For Candidates it is called with their model at their first score, and again
// after pods, models or adapters have come or gone: make new Candidates when an answer
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

// WithProfile sets a function that returns the Profile of a pod: what its events do not
// tell. The function is called once for each pod and model, when its first event or its
// Subscriber comes, when another process first tells of it (WithIndex), or by Restore. Before, it is also called when a request names the pod,
// and only Profile.Approximate matters then; so it gets names of pods and models that are
// not known. What it returns is kept until RemovePod. If that cannot be used, each message
// for the pod and model is an error, and so is Restore; a pod of another process is not known
// then, and the function is asked again. The function must not call the Indexer. Without it every pod has the zero Profile.
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

// Profile is what events do not tell about the engine of a pod. The zero Profile is
// right for vLLM since March 2026 without draft layers (EAGLE, MTP). What it does not
// say of a hybrid model makes scores upper bounds (PodScore.UpperBound).
type Profile struct {
	// Media is how the engine puts media into blocks. It matters only for prompts with
	// media.
	Media MediaForm

	// Copies is how blocks in the gpu are counted. The default, 0, is CopiesExact with
	// MediaPad and CopiesGuarded else.
	Copies Copies

	// Groups are groups of the model, by ID: their position in vLLM's list of groups. A
	// Group here takes the place of what events say of the group with its ID, but a
	// Window of 0 changes nothing. It is needed where events do not say enough: the chunk
	// of index.GroupChunked, and groups of which SGLang's events say nothing. For the latter
	// scores are upper bounds then, and PodScore.UpperBound says so.
	Groups []index.Group

	// Draft says whether the engine runs with draft layers (EAGLE, MTP), which give up
	// the end of each hit. Events do not say so. A score without it is too high by a
	// block on an engine with draft layers.
	Draft Draft

	// Grain is for models with Mamba layers, where a hit may end inside a block: at
	// multiples of Grain, in tokens. 0: as the events show. Block sizes must be multiples
	// of it.
	Grain int

	// Adapters has the names of LoRA adapters of a pod whose events have only their
	// numbers: vLLM before 0.14. A key is a number in decimal, the value is the name. A
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

	// Approximate, if not nil, is for a pod whose engine publishes no events: the pod is
	// followed by what is sent to it (Indexer.Routed). Its figure is PredictedTokens:
	// CachedTokens is 0, and its state StateApproximate. What it has is believed to be what
	// was sent last, as far as it has room, in the order in which vLLM gives up blocks.
	// Observe corrects that: what the engine reused it had, what it did not reuse it has
	// lost, and its room is what follows from that.
	//
	// The function of WithProfile is asked for it also when a request or Candidates names a
	// pod that is not known, and again until it gives one. It must give one for the models
	// that the pod serves, and for no names that clients invent. The first event of the pod
	// makes it exact, and what was believed is dropped.
	Approximate *Approximate
}

// Draft says whether an engine runs with draft layers.
type Draft uint8

// What is known of draft layers. With DraftUnknown, a model of one full-attention group
// is judged as with DraftNone. For any other model PodScore.UpperBound is true.
const (
	DraftUnknown = Draft(engine.DraftUnknown)
	DraftNone    = Draft(engine.DraftNone)
	DraftLayers  = Draft(engine.DraftLayers) // in the Groups with Draft set, and in groups of their kind, window and block size; in all groups if none has it
)

// MediaForm is how an engine puts the media of a prompt into its blocks.
type MediaForm uint8

// The forms of media. Prompts without media match the same in all of them.
const (
	// MediaOffsets: a block has the hash of each media item in it, and where the item
	// starts. vLLM does so since March 2026. A request needs Media.Hash and
	// Media.Offset.
	MediaOffsets = MediaForm(hashing.FormOffsets)
	// MediaBare: a block has the hash of each media item in it, but not where the item
	// starts. vLLM did so from February to March 2026. A request needs Media.Hash,
	// Media.Offset and Media.Length. Such a vLLM itself takes two prompts for equal
	// whose items start at different places of a block, and a salt for an item of the
	// same name.
	MediaBare = MediaForm(hashing.FormBare)
	// MediaPad: the engine writes the hash of an item over its tokens, as 1,000,000 +
	// hash mod 2^30. SGLang does so. Set Media.Hash to SGLang's hash of the item in
	// decimal, and Media.Offset and Media.Length to the place of its tokens; the values
	// of these tokens do not matter. If the tokens of a request are overwritten
	// already, leave Request.Media empty.
	//
	// SGLang's events do not tell everything:
	//
	//   - They contain neither the adapter nor the extra_key, although the cache is
	//     separate for each. So a score without an adapter can be too high on a pod
	//     that serves some, and a score with an adapter is 0.
	//   - They leave out window and Mamba layers. For models that have such layers
	//     CachedTokens is an upper bound. Name them in Profile.Groups, and
	//     PodScore.UpperBound says so.
	//   - They come late: after a batch of prefills, or after 40 steps of decoding.
	//     A score can be too low until then.
	//   - Before November 2025 the name of a page was made of the tokens of this
	//     page alone. Scores for such versions are wrong.
	MediaPad = MediaForm(hashing.FormPad)
)

func (p *Profile) validate() error {
	switch {
	case p.Copies > CopiesSet:
		return fmt.Errorf("unknown copies mode %d", p.Copies)
	case p.Media >= hashing.NumForms:
		return fmt.Errorf("unknown media form %d", p.Media)
	case p.Draft > DraftLayers:
		return fmt.Errorf("unknown Draft %d", p.Draft)
	case p.Grain < 0:
		return fmt.Errorf("the Grain is negative: %d", p.Grain)
	}
	if err := p.Approximate.validate(p); err != nil {
		return err
	}
	for i, g := range p.Groups {
		switch {
		case g.ID < 0 || g.ID >= index.MaxGroups:
			return fmt.Errorf("field Groups: the ID %d is not within 0 and %d", g.ID, index.MaxGroups-1)
		case slices.ContainsFunc(p.Groups[:i], func(o index.Group) bool { return o.ID == g.ID }):
			return fmt.Errorf("field Groups: the ID %d is there twice", g.ID)
		case g.Kind > index.GroupOther:
			return fmt.Errorf("field Groups: group %d: unknown Kind %d", g.ID, g.Kind)
		case g.Window < 0:
			return fmt.Errorf("field Groups: group %d: the Window is negative: %d", g.ID, g.Window)
		case g.Draft && p.Draft != DraftLayers:
			return fmt.Errorf("field Groups: group %d has Draft, but Profile.Draft is not DraftLayers", g.ID)
		}
	}
	return validateAdapters(p.Adapters)
}

// Approximate describes a pod whose engine publishes no events, as far as it is followed by
// what is sent to it: see Profile.Approximate.
type Approximate struct {
	// BlockTokens is the engine's block size, in tokens.
	BlockTokens int
	// Blocks is how many blocks the cache of a rank has. A wrong number is corrected by what
	// Observe tells, between a sixteenth and 16 times it. A block takes 36 bytes.
	Blocks int
	// TTL is how long a block is believed to be there that no prompt has used; 0: until
	// others take its place.
	TTL time.Duration
}

// maxApproximate bounds Approximate.Blocks.
const maxApproximate = 1 << 26

func (a *Approximate) validate(p *Profile) error {
	switch {
	case a == nil:
		return nil
	case a.BlockTokens < 1:
		return fmt.Errorf("field Approximate: BlockTokens is %d, at least 1", a.BlockTokens)
	case a.Blocks < 1 || a.Blocks > maxApproximate:
		return fmt.Errorf("field Approximate: Blocks is %d, at least 1 and at most %d", a.Blocks, maxApproximate)
	case a.TTL < 0:
		return fmt.Errorf("field Approximate: the TTL is negative: %v", a.TTL)
	}
	if _, ok := engine.VariantOf(a.BlockTokens, false, uint8(p.Media)); !ok {
		return errors.New("field Approximate: no prompt is cut in blocks of such a BlockTokens with the Media of the Profile")
	}
	return nil
}

// validateAdapters refuses what would take one adapter for another.
func validateAdapters(adapters map[string]string) error {
	numbers := make(map[string]string, len(adapters)) // by name
	for _, number := range slices.Sorted(maps.Keys(adapters)) {
		name := adapters[number]
		switch other, twice := numbers[name]; {
		case !isNumber(number):
			return fmt.Errorf("key %.100q of Adapters is not a number in decimal", number)
		case name == "":
			return fmt.Errorf("number %s of Adapters has an empty name", number)
		case isNumber(name):
			return fmt.Errorf("number %s of Adapters has a number as its name, %q", number, name)
		case twice:
			return fmt.Errorf("numbers %s and %s of Adapters have one name, %.100q", other, number, name)
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

// complete returns p as the write and the read path use it, with what depends on the rest
// filled in, and what is wrong with it.
func (p *Profile) complete() (engine.Profile, error) {
	e := engine.Profile{Media: uint8(p.Media), Copies: p.Copies, Groups: slices.Clone(p.Groups), Draft: uint8(p.Draft), Grain: p.Grain, Adapters: maps.Clone(p.Adapters)}
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

// profileOf is complete, back to what a user reads.
func profileOf(e *engine.Profile) Profile {
	p := Profile{Media: MediaForm(e.Media), Copies: e.Copies, Groups: slices.Clone(e.Groups), Draft: Draft(e.Draft), Grain: e.Grain, Adapters: maps.Clone(e.Adapters)}
	if a := e.Approximate; a != nil {
		p.Approximate = &Approximate{a.BlockTokens, a.Blocks, a.TTL}
	}
	return p
}

// WithKeepOnLoss keeps the blocks of a rank after a loss: messages were missed, and no
// replay brings them. The rank is in StateUncertain until its engine empties its cache or
// restarts. Until then blocks whose removal was missed still count. Without this option
// a rank's blocks are forgotten at a loss, so that no score is too high. When an engine
// restarts, its blocks are always forgotten.
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
// synchronously, outside of all locks, by the goroutine that brings the event or asks
// for the score. They may call the Indexer. They must be safe for concurrent use, and should
// be quick.
type Hooks struct {
	// Lost is called when messages of a pod were lost. It is also called once when two
	// streams begin to contest a rank.
	Lost func(Loss)
	// State is called when the state of a pod for a model has changed. Two changes
	// shortly after each other may be reported in the other order. The first state of a
	// pod is not reported: StateUnknown, or StateSilent if a Subscriber runs for it. Nor is a
	// state of a pod that another process feeds (WithIndex).
	State func(pod, model string, from, to State)
	// Scored is called at the end of each score, with any outcome, before ScoreRequest
	// returns, with the context that it was given. It is not called after Close. Times are
	// measured only if it is set.
	Scored func(context.Context, Scored)
}

// Loss describes a loss of messages.
type Loss struct {
	Pod, Model, Stream string
	Rank               int // the rank whose view was lost; -1 if no rank of the stream is known yet
	// Cause is one of:
	//
	//	gap        sequence numbers are missing
	//	malformed  a message could not be read
	//	restart    the engine restarted
	//	marked     the caller reported it by MarkLost
	//	moved      the messages of the rank come over another stream now
	//	contested  two streams go on to bring messages of one rank
	//	full       the index has no room for the rank (ErrFull): the message was not applied
	//
	// At contested, probably two engines are configured with one pod and rank. Stream is the
	// one that had the rank before. Its messages are not applied to the rank, and count in
	// stats.Traffic.Contested.
	Cause string
	// Seq is the number of the message at which the loss was noticed, and Time the time
	// that its batch has, by the engine's clock. Both are zero if no message showed the
	// loss (MarkLost, NoteRestarted). Time is also zero if the batch has none.
	Seq      uint64
	Time     time.Time
	Gap      Gap   // at a gap: the missing numbers
	Replayed bool  // at a gap: the engine was asked, and did not have the messages
	Err      error // why message Seq could not be read, with any Cause; or, at contested and full, what was seen
	Kept     bool  // the blocks were kept (WithKeepOnLoss, contested); else they were forgotten
}

// MarshalJSON writes Err as its text.
func (l Loss) MarshalJSON() ([]byte, error) {
	type fields Loss
	return json.Marshal(struct {
		fields
		Err string `json:",omitempty"`
	}{fields(l), textOf(l.Err)})
}

// LogValue is a group of what a log needs of a loss.
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

// validate names every illegal setting and combination at once.
func (c *config) validate() error {
	errs := c.errs
	if c.index != nil && c.seed != nil {
		errs = append(errs, errors.New("WithKeySeed contradicts WithIndex: the backend carries the seed"))
	}
	if c.index != nil && c.memory != nil {
		errs = append(errs, errors.New("WithMemory contradicts WithIndex: the backend has a bound of its own"))
	}
	if !c.promptsGiven && (c.source != nil || len(c.given) > 0) {
		c.prompts = defaultPromptCache
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("kvindex: bad options: %w", errors.Join(errs...))
}
