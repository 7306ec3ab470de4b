package kvindex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvindex/kvindex/index"
)

// Option configures New.
type Option func(*config)

type config struct {
	index   index.Index
	seed    *[16]byte
	given   map[string]Model
	source  func(ctx context.Context, name string) (Model, error)
	profile func(pod, model string) Profile
	keep    bool // on a loss
	hooks   Hooks
	errs    []error
}

// WithIndex uses another backend than the in-memory index with its defaults.
// The backend stays the caller's: Close leaves it open. Pods that it holds something
// of are known from the beginning, if it is an index.Describer, as StateUncertain
// until the stream that fed them last goes on. If another one speaks for a rank, what
// was held of it is forgotten. Pods that are no more are RemovePod's.
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

// WithKeySeed sets the seed of the prefix keys, so that keys can be compared
// between processes, and equal pods come in the same order in all of them. By
// default it is random, and it should be secret: who knows it can forge prompts
// with equal keys. A backend given by WithIndex has a seed of its own, so the two
// options exclude each other.
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

// WithModel scores texts and chats for a base model, and for the adapters on it, by
// what m has. It may be given once for each model.
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

// WithModels scores texts and chats for all other models by what source returns for
// their names, such as the Model method of [Models]. The function is called for each
// request with a text or a chat, by many goroutines at a time. A Model without a
// Tokenizer: there is no such model.
//
// It is asked for base models only: for the one that an adapter is on, if events
// told of the adapter. But any name in a request that nothing is known of is taken
// for a base model.
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

// WithProfile tells what events cannot tell about the engine of a pod. The
// function is called for each pod and model when it is heard of first; it must not
// call the Indexer.
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

// Profile is what events cannot tell about a pod's engine. The zero Profile suits
// vLLM since March 2026, and claims no more of another engine than that one's own
// does.
type Profile struct {
	// Media says how the engine's blocks tell of media.
	Media MediaForm

	// Copies says how gpu blocks are counted; 0: CopiesExact with MediaPad, else
	// CopiesGuarded. That is safe against clients that make an engine announce
	// again what it holds (vLLM's kv_cache_report_mode, a field of its requests).
	// CopiesExact misses nothing either, and is right if they cannot.
	Copies Copies
}

// MediaForm is how the media of a prompt show in an engine's blocks.
type MediaForm = index.MediaForm

// The forms of media. Prompts without media match the same in all of them.
const (
	// MediaOffsets: each block has the identifier of an item and where it
	// starts. So vLLM since March 2026. A request needs Media.Hash and Offset.
	MediaOffsets = index.MediaOffsets
	// MediaBare: each block has the identifiers of its items. So vLLM before,
	// from February 2026 on, when its events began to tell them. A request needs
	// Media.Length too. Such a vLLM itself does not tell a salt from a medium of
	// that name, nor where in a block an item starts.
	MediaBare = index.MediaBare
	// MediaPad: the tokens of an item are 1,000,000 + its hash mod 2^30. So
	// SGLang. A request's Media.Hash is SGLang's hash of the item, in decimal, and
	// Media.Length its tokens, which are overwritten, so any placeholder will do.
	// A request with tokens that are overwritten already names no media.
	//
	// SGLang's events do not tell everything. They have no adapter and no
	// extra_key, which part its cache: a prompt without an adapter is claimed
	// where it is held under any of them, and one with an adapter nowhere. They
	// leave out window and Mamba layers: of models that have some, CachedTokens
	// is an upper bound. They come late, after a batch of prefills or 40 steps of
	// decoding: what is not published yet is not claimed. Before November 2025
	// they named a page by its tokens alone: much of what is held then is not
	// found, and some is at another place.
	MediaPad = index.MediaPad
)

func (p Profile) validate() error {
	switch {
	case p.Copies > CopiesSet:
		return fmt.Errorf("unknown copies mode %d", p.Copies)
	case p.Media >= index.NumMediaForms:
		return fmt.Errorf("unknown media form %d", p.Media)
	}
	return nil
}

// complete fills in what depends on the rest.
func (p Profile) complete() Profile {
	switch {
	case p.Copies != 0:
	case p.Media == MediaPad:
		// SGLang keeps a block once, but names those of several extra_keys
		// alike, and stores and removes each.
		p.Copies = CopiesExact
	default:
		p.Copies = CopiesGuarded
	}
	return p
}

// LossPolicy says what becomes of a view that lost messages which no replay
// brings back.
type LossPolicy uint8

// The policies.
const (
	// ForgetOnLoss forgets all that the rank held: what remains is never more
	// than the truth. It is the default.
	ForgetOnLoss LossPolicy = iota
	// KeepOnLoss keeps it and marks the rank StateUncertain until its engine
	// empties its cache or restarts: blocks whose removal was lost are
	// claimed on.
	KeepOnLoss
)

// WithLossPolicy sets what follows from lost messages. An engine that
// restarted is forgotten under every policy.
func WithLossPolicy(p LossPolicy) Option {
	return func(c *config) {
		if p > KeepOnLoss {
			c.errs = append(c.errs, fmt.Errorf("WithLossPolicy: unknown policy %d", p))
		}
		c.keep = p == KeepOnLoss
	}
}

// WithHooks sets functions to be called when something happens that an
// operator should know.
func WithHooks(h Hooks) Option {
	return func(c *config) { c.hooks = h }
}

// Hooks are functions that the Indexer calls, each optional. They are called
// synchronously and outside of all locks, by the goroutine that ingests, and
// must be safe for concurrent use.
type Hooks struct {
	// Lost is called when messages of a pod were lost, and with them the view
	// of what the pod holds, and once when two streams begin to contest a rank.
	Lost func(Loss)
	// State is called when the state of a pod for a model has changed. Calls
	// for changes that follow closely may come in another order. A pod begins
	// unknown or, if a transport is to bring it, silent: that is no change.
	State func(pod, model string, from, to State)
	// Scored is called at the end of each score, by the goroutine that scores and
	// before it has its answer, whatever the outcome; not after Close. Without it
	// no times are taken.
	Scored func(Scored)
}

// Loss is what is known of lost messages.
type Loss struct {
	Pod, Model, Stream string
	Rank               int // whose view was lost; -1: none of the stream is known yet
	Cause              LossCause
	// Seq is the number of the message at which it was noticed, and Time the time
	// of its batch by the engine's clock, zero if it has none. Both are zero where
	// no message showed it: MarkLost, StreamRestarted.
	Seq      uint64
	Time     time.Time
	Gap      Gap   // of LossGap
	Replayed bool  // of LossGap: the engine was asked, and does not have the messages
	Err      error // why message Seq could not be read, whatever the Cause; or of LossContested
	Kept     bool  // by KeepOnLoss, or of LossContested; else the blocks were forgotten
}

// MarshalJSON writes Err as its text.
func (l Loss) MarshalJSON() ([]byte, error) {
	type fields Loss
	return json.Marshal(struct {
		fields
		Err string `json:",omitempty"`
	}{fields(l), textOf(l.Err)})
}

// LossCause is why a view was lost. It has its String in JSON.
type LossCause uint8

// The causes of losses.
const (
	LossGap       LossCause = iota + 1 // sequence numbers are missing
	LossMalformed                      // a message could not be read
	LossRestart                        // the engine restarted
	LossMarked                         // MarkLost
	LossMoved                          // another stream speaks for the rank now
	// LossContested: Stream, which had the rank before, goes on to speak for it, and
	// so does another. Two engines may be configured under one pod and rank. What
	// Stream says is not applied to the rank (StreamStats.Contested).
	LossContested
)

var lossNames = []string{"unknown", "gap", "malformed", "restart", "marked", "moved", "contested"}

func (c LossCause) String() string { return nameOf(lossNames, c) }

// MarshalText returns the String of c.
func (c LossCause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (c *LossCause) UnmarshalText(text []byte) error { return setByName(c, lossNames, text) }

// validate names every illegal setting and combination at once.
func (c *config) validate() error {
	errs := c.errs
	if c.index != nil && c.seed != nil {
		errs = append(errs, errors.New("WithKeySeed contradicts WithIndex: the backend carries the seed"))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("kvindex: bad options: %w", errors.Join(errs...))
}
