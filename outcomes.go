package kvindex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Outcome is how a score ended. In JSON it is its String.
type Outcome uint8

// The outcomes. Each score has one: OutcomeScored if no other is true, else the first
// true one in this order.
const (
	OutcomeScored         Outcome = iota
	OutcomeCancelled              // the context ended
	OutcomeUnknownModel           // no pod is known for the model: Answer.Unknown, or the error, wraps ErrUnknownModel
	OutcomeUnknownAdapter         // no event has named the adapter: Answer.Unknown, or the error, wraps ErrUnknownAdapter
	OutcomeRefused                // the chat template refuses the chat. The engine does too, if it has the same template
	OutcomeBadRequest             // any other ErrRequest
	OutcomeNotScorable            // chat.ErrNotScorable: the engine may take the request, but its tokens cannot be worked out
	OutcomeUnsupported            // chat.ErrUnsupported or tokenize.ErrUnsupported: no chat, or no text, of the model is scored
	OutcomeNoTokenizer            // ErrNoTokenizer
	OutcomeNoTemplate             // ErrNoTemplate
	OutcomeTooLong                // tokenize.ErrTextTooLong
	OutcomeBusy                   // tokenize.ErrBusy
	OutcomeFailed                 // any other error, such as that of a backend

	numOutcomes = iota
)

var outcomeNames = []string{
	OutcomeScored: "scored", OutcomeCancelled: "cancelled", OutcomeUnknownModel: "unknown_model", OutcomeUnknownAdapter: "unknown_adapter",
	OutcomeRefused: "refused", OutcomeBadRequest: "bad_request", OutcomeNotScorable: "not_scorable", OutcomeUnsupported: "unsupported",
	OutcomeNoTokenizer: "no_tokenizer", OutcomeNoTemplate: "no_template", OutcomeTooLong: "too_long", OutcomeBusy: "busy", OutcomeFailed: "failed",
}

func (o Outcome) String() string { return nameOf(outcomeNames, o) }

// MarshalText returns the String of o.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (o *Outcome) UnmarshalText(text []byte) error { return setByName(o, outcomeNames, text) }

// outcomes are the errors of outcomes, in the order of Outcome.
var outcomes = [...]struct {
	is error
	Outcome
}{
	{context.Canceled, OutcomeCancelled},
	{context.DeadlineExceeded, OutcomeCancelled},
	{ErrUnknownModel, OutcomeUnknownModel},
	{ErrUnknownAdapter, OutcomeUnknownAdapter},
	{chat.ErrTemplate, OutcomeRefused},
	{ErrRequest, OutcomeBadRequest},
	{chat.ErrNotScorable, OutcomeNotScorable},
	{chat.ErrUnsupported, OutcomeUnsupported},
	{tokenize.ErrUnsupported, OutcomeUnsupported},
	{ErrNoTokenizer, OutcomeNoTokenizer},
	{ErrNoTemplate, OutcomeNoTemplate},
	{tokenize.ErrTextTooLong, OutcomeTooLong},
	{tokenize.ErrBusy, OutcomeBusy},
}

func outcomeOf(err error) Outcome {
	for _, o := range outcomes {
		if errors.Is(err, o.is) {
			return o.Outcome
		}
	}
	return OutcomeFailed
}

// OutcomeCounts is a number for each outcome. It is comparable. The zero value has 0
// for all outcomes.
type OutcomeCounts struct {
	n [numOutcomes]uint64
}

// Of returns the number for an outcome, 0 if there is no such outcome.
func (c OutcomeCounts) Of(o Outcome) uint64 {
	if int(o) < len(c.n) {
		return c.n[o]
	}
	return 0
}

// All goes through the outcomes and their numbers.
func (c OutcomeCounts) All() iter.Seq2[Outcome, uint64] {
	return func(yield func(Outcome, uint64) bool) {
		for o, n := range c.n {
			if !yield(Outcome(o), n) {
				return
			}
		}
	}
}

// String names the outcomes whose number is not 0, as "scored=3 bad_request=1".
func (c OutcomeCounts) String() string { return notZero(c.All()) }

// MarshalJSON writes an object of all outcomes by name.
func (c OutcomeCounts) MarshalJSON() ([]byte, error) { return object(c.All()), nil }

// UnmarshalJSON reads what MarshalJSON has written.
func (c *OutcomeCounts) UnmarshalJSON(b []byte) error { return readObject[Outcome](b, c.n[:]) }

// ScoreStats counts scores since New, without those that end with ErrClosed. A counter
// stops at 2^64-1.
type ScoreStats struct {
	Outcomes     OutcomeCounts
	PromptTokens uint64 // tokens of the prompts, of scores without an error
	CachedTokens uint64 // of them, those cached in the best pod
	Degraded     uint64 // scores without an error for which the index could not be asked (Answer.Degraded)
}

// Scored describes one score that has ended.
type Scored struct {
	// Model is the base model and Adapter the adapter that were scored, also if the request
	// has the adapter's name as its model, or an alias. After an error they may be those of
	// the request.
	Model, Adapter string
	Outcome        Outcome
	Err            error // what ScoreRequest returns
	Unknown        error // Answer.Unknown
	Degraded       error // Answer.Degraded

	PromptTokens int
	CachedTokens int // of the best pod

	// Render is the time for reading a body and making the text of a chat. Tokenize is the
	// time for finding the Model and making tokens of a text, with all waiting. Match is
	// the time for hashing the prompt and asking the index.
	Render, Tokenize, Match time.Duration
}

// MarshalJSON writes errors as their text.
func (s Scored) MarshalJSON() ([]byte, error) {
	type fields Scored
	return json.Marshal(struct {
		fields
		Err, Unknown, Degraded string `json:",omitempty"`
	}{fields(s), textOf(s.Err), textOf(s.Unknown), textOf(s.Degraded)})
}

// tell counts a score and calls the hook.
func (sc *scorer) tell(r *Request, dst *Answer, err error) {
	outcome, cached := OutcomeScored, 0
	if err != nil || dst.Unknown != nil {
		outcome = outcomeOf(cmp.Or(err, dst.Unknown))
	}
	if len(dst.Pods) > 0 {
		cached = dst.Pods[0].CachedTokens
	}
	sc.tally.count(outcome, dst.PromptTokens, cached)
	if dst.Degraded != nil {
		sc.tally.countDegraded()
	}
	if hook := sc.x.hooks.Scored; hook != nil {
		s := Scored{
			Model: r.Model, Adapter: r.Adapter, Outcome: outcome, Err: err, Unknown: dst.Unknown, Degraded: dst.Degraded,
			PromptTokens: dst.PromptTokens, CachedTokens: cached,
			Render: sc.times.render, Tokenize: sc.times.tokenize, Match: sc.times.match,
		}
		if sc.set != nil {
			s.Model, s.Adapter = sc.prompt.scope.model, sc.prompt.scope.adapter
		}
		hook(s)
	}
}

// clock returns the time if a hook asks for it.
func (sc *scorer) clock() (now time.Time) {
	if sc.x.hooks.Scored != nil {
		now = time.Now()
	}
	return now
}

// spend adds the time since clock returned began.
func (sc *scorer) spend(on *time.Duration, began time.Time) {
	if sc.x.hooks.Scored != nil {
		*on += time.Since(began)
	}
}

// A tally counts scores. Most of them cost one atomic operation.
type tally struct {
	// few are scores of OutcomeScored that all does not have yet: their number
	// from bit 48 on, their prompt tokens from 24 on, and their cached tokens. No
	// part is ever half full, so that two sums do not run into one another.
	few atomic.Uint64

	mu  sync.Mutex
	all ScoreStats

	_ [64]byte // the next one is in another cache line
}

const halfFull = 1<<63 | 1<<47 | 1<<23

func (t *tally) count(o Outcome, prompt, cached int) {
	if o == OutcomeScored && prompt < 1<<23 {
		few := t.few.Load()
		sum := few + (1<<48 | uint64(prompt)<<24 | uint64(cached))
		if sum&halfFull == 0 && t.few.CompareAndSwap(few, sum) {
			return
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	t.add(o, 1, uint64(prompt), uint64(cached))
}

func (t *tally) countDegraded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	addCounters(&t.all, &ScoreStats{Degraded: 1})
}

// settle moves few to all. mu is held.
func (t *tally) settle() {
	few := t.few.Swap(0)
	t.add(OutcomeScored, few>>48, few>>24&(1<<24-1), few&(1<<24-1))
}

func (t *tally) add(o Outcome, n, prompt, cached uint64) {
	s := ScoreStats{PromptTokens: prompt, CachedTokens: cached}
	s.Outcomes.n[o] = n
	addCounters(&t.all, &s)
}

// scores returns what all tallies have.
func (x *Indexer) scores() (s ScoreStats) {
	for i := range x.tallies {
		t := &x.tallies[i]
		t.mu.Lock()
		t.settle()
		addCounters(&s, &t.all)
		t.mu.Unlock()
	}
	return s
}
