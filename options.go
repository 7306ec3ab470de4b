package kvindex

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Option configures New.
type Option func(*config)

type config struct {
	index      index.Index
	seed       *[16]byte
	tokenizers map[string]tokenize.Tokenizer
	source     func(model string) tokenize.Tokenizer
	chats      func(ctx context.Context, model string) (*chat.Model, error)
	profile    func(pod, model string) Profile
	keep       bool // on a loss
	hooks      Hooks
	errs       []error
}

// WithIndex uses another backend than the in-memory index with its defaults.
// The backend stays the caller's: Close leaves it open.
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
// between processes. By default it is random, and it should be secret: who
// knows it can forge prompts with equal keys. A backend given by WithIndex has
// a seed of its own, so the two options exclude each other.
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

// WithTokenizer scores text prompts for model, and for the adapters on it, by
// the token ids of t. It may be given once for each model.
func WithTokenizer(model string, t tokenize.Tokenizer) Option {
	return func(c *config) {
		switch {
		case model == "":
			c.errs = append(c.errs, errors.New("WithTokenizer: the model is empty"))
		case t == nil:
			c.errs = append(c.errs, fmt.Errorf("WithTokenizer: the tokenizer of model %q is nil", model))
		case c.tokenizers[model] != nil:
			c.errs = append(c.errs, fmt.Errorf("WithTokenizer: model %q has two tokenizers", model))
		default:
			c.tokenizers[model] = t
		}
	}
}

// WithTokenizers scores text prompts for all other models by the tokenizers of
// source, such as the Tokenizer method of a [tokenize.Pool]. The function is called
// for each request with a text, and returns at once; nil, and not a nil *BPE: the
// model has none.
//
// It is asked for base models only: for the one that an adapter is on, if events
// told of the adapter. But any name in a request that nothing is known of is taken
// for a base model.
func WithTokenizers(source func(model string) tokenize.Tokenizer) Option {
	return func(c *config) {
		if source == nil {
			c.errs = append(c.errs, errors.New("WithTokenizers: the function is nil"))
		}
		if c.source != nil {
			c.errs = append(c.errs, errors.New("WithTokenizers is given twice"))
		}
		c.source = source
	}
}

// WithChats scores chats, given by Request.Body, by the templates of source, such as
// the Model method of a [chat.Models]. The function is called for each chat with the
// name of its base model, as that of WithTokenizers is; nil: the model has none.
func WithChats(source func(ctx context.Context, model string) (*chat.Model, error)) Option {
	return func(c *config) {
		if source == nil {
			c.errs = append(c.errs, errors.New("WithChats: the function is nil"))
		}
		if c.chats != nil {
			c.errs = append(c.errs, errors.New("WithChats is given twice"))
		}
		c.chats = source
	}
}

// WithProfile tells what events cannot tell about the engine of a pod. The
// function is called for each pod and model at its first message; it must not
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

// LossPolicy says what becomes of a view that lost messages which no replay
// brings back.
type LossPolicy uint8

// The policies.
const (
	// ForgetOnLoss forgets all that the rank held: what remains is never more
	// than the truth. It is the default.
	ForgetOnLoss LossPolicy = iota
	// KeepOnLoss keeps it and marks the rank StateUncertain until its engine
	// empties its cache or starts anew: blocks whose removal was lost are
	// claimed on.
	KeepOnLoss
)

// WithLossPolicy sets what follows from lost messages. An engine that started
// anew is forgotten under every policy.
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
	// of what the pod holds.
	Lost func(Loss)
	// State is called when the state of a pod for a model has changed. Calls
	// for changes that follow closely may come in another order.
	State func(pod, model string, from, to State)
}

// Loss is what is known of lost messages.
type Loss struct {
	Pod, Model, Stream string
	Rank               int // whose view was lost; -1: none of the stream is known yet
	Cause              LossCause
	Gap                Gap   // of LossGap
	Replayed           bool  // of LossGap: the engine was asked, and does not have the messages
	Err                error // of LossMalformed
	Kept               bool  // by KeepOnLoss; else the blocks were forgotten
}

// LossCause is why a view was lost.
type LossCause uint8

// The causes of losses.
const (
	LossGap       LossCause = iota + 1 // sequence numbers are missing
	LossMalformed                      // a message could not be read
	LossRestart                        // the engine started anew
	LossMarked                         // MarkLost
	LossMoved                          // another stream speaks for the rank now
)

func (c LossCause) String() string {
	switch c {
	case LossGap:
		return "gap"
	case LossMalformed:
		return "malformed"
	case LossRestart:
		return "restart"
	case LossMarked:
		return "marked"
	case LossMoved:
		return "moved"
	}
	return "unknown"
}

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
