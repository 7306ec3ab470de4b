// Outcomes: scores are counted in 16 tallies. Each has one word for the commonest outcome,
// with the number of its scores and their tokens, so a score costs one atomic operation. Three
// atomic operations would cost three times as much, and a mutex twice as much.

package kvindex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/registry"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// The errors that a caller can test for with errors.Is.
var (
	// ErrNoTokenizer is wrapped by errors about a text for a model without a tokenizer.
	ErrNoTokenizer = errors.New("kvindex: no tokenizer")
	// ErrNoTemplate is wrapped by errors about a chat for a model without a chat
	// template.
	ErrNoTemplate = chat.ErrNoTemplate
	// ErrUnknownModel is wrapped by errors about a model that has no pods, while other
	// models have some. The likely cause: the request and SubscriberConfig.Model have
	// different names for one model. WithResolver maps a name to another.
	ErrUnknownModel = catalog.ErrUnknownModel
	// ErrUnknownAdapter is wrapped by errors about an adapter that is in no event of
	// the pods of its model. Either no block of the adapter was stored yet, or the
	// events have another name for it.
	ErrUnknownAdapter = catalog.ErrUnknownAdapter
	// ErrRequest is wrapped by errors about wrong requests, which the engine would refuse
	// too.
	ErrRequest = prompt.ErrRequest
	// ErrMalformed is wrapped by errors about payloads that cannot be read.
	ErrMalformed = events.ErrMalformed
	// ErrFull is wrapped by errors about messages of a rank that the index has no room
	// for, because other ranks take all of its memory that cannot be evicted (WithMemory).
	// The message counts as lost: do not bring it again. When pods have gone, the next
	// message of the rank is applied. Errors about messages beyond a bound on pods, on the
	// models, ranks or streams of a pod wrap it too.
	ErrFull = index.ErrFull
	// ErrNotInRequest is wrapped by errors of Routed about a pod that is not in the answer,
	// because it was not in the request, and about a rank that no pod can have.
	ErrNotInRequest = predict.ErrNotInRequest
	// ErrAnswerUsed is wrapped by errors of Routed about an answer that was routed before,
	// or that a later ScoreRequest has overwritten.
	ErrAnswerUsed = errors.New("kvindex: the answer was already used")
	// ErrBlockSize is wrapped by errors of Routed about a pod whose block size is not known: the
	// pod has stored nothing yet, and the other pods of its model with the same Profile.Media
	// have stored nothing either, or have different block sizes. Then nothing can be predicted.
	ErrBlockSize = predict.ErrBlockSize
	// ErrClosed is returned after Close by every method that returns an error. Pods is empty
	// then, and Stats keeps its counters.
	ErrClosed = registry.ErrClosed
)

// outcome is the outcome of a score: outcomeScored if no other is true, else the first true
// outcome in this order.
type outcome uint8

const (
	outcomeScored outcome = iota
	outcomeCancelled
	outcomeUnknownModel
	outcomeUnknownAdapter
	outcomeRefused
	outcomeBadRequest
	outcomeNotScorable
	outcomeUnsupported
	outcomeNoTokenizer
	outcomeNoTemplate
	outcomeTooLong
	outcomeBusy
	outcomeFailed

	numOutcomes = iota
)

var outcomeNames = []string{
	outcomeScored: "scored", outcomeCancelled: "cancelled", outcomeUnknownModel: "unknown_model", outcomeUnknownAdapter: "unknown_adapter",
	outcomeRefused: "refused", outcomeBadRequest: "bad_request", outcomeNotScorable: "not_scorable", outcomeUnsupported: "unsupported",
	outcomeNoTokenizer: "no_tokenizer", outcomeNoTemplate: "no_template", outcomeTooLong: "too_long", outcomeBusy: "busy", outcomeFailed: "failed",
}

func (o outcome) String() string { return nameOf(outcomeNames, o) }

// outcomes maps errors to outcomes. The first match counts.
var outcomes = [...]struct {
	is      error
	outcome outcome
}{
	{context.Canceled, outcomeCancelled},
	{context.DeadlineExceeded, outcomeCancelled},
	{ErrUnknownModel, outcomeUnknownModel},
	{ErrUnknownAdapter, outcomeUnknownAdapter},
	{chat.ErrTemplate, outcomeRefused},
	{ErrRequest, outcomeBadRequest},
	{chat.ErrNotScorable, outcomeNotScorable},
	{chat.ErrUnsupported, outcomeUnsupported},
	{tokenize.ErrUnsupported, outcomeUnsupported},
	{ErrNoTokenizer, outcomeNoTokenizer},
	{ErrNoTemplate, outcomeNoTemplate},
	{tokenize.ErrTextTooLong, outcomeTooLong},
	{tokenize.ErrBusy, outcomeBusy},
}

func outcomeOf(err error) outcome {
	for _, o := range outcomes {
		if errors.Is(err, o.is) {
			return o.outcome
		}
	}
	return outcomeFailed
}

// scoreCounts are the sums behind stats.Scores.
type scoreCounts struct {
	outcomes                 [numOutcomes]uint64
	prompt, cached, degraded uint64
	rendered, unrendered     uint64
}

// add adds o to s.
func (s *scoreCounts) add(o *scoreCounts) {
	for i, n := range o.outcomes {
		s.outcomes[i] += n
	}
	s.prompt += o.prompt
	s.cached += o.cached
	s.degraded += o.degraded
	s.rendered += o.rendered
	s.unrendered += o.unrendered
}

// ScoreReport describes one score that has ended. Outcome is scored if nothing else is true, else
// the first true word of
//
//	cancelled        the context ended
//	unknown_model    no pod is registered for the model: Answer.Unknown, or Err, wraps ErrUnknownModel
//	unknown_adapter  no event has named the adapter: Answer.Unknown, or Err, wraps ErrUnknownAdapter
//	refused          the chat template refuses the chat. The engine does too, if it has the same template
//	bad_request      any other ErrRequest
//	not_scorable     chat.ErrNotScorable: the engine may accept the request, but its tokens cannot be computed here
//	unsupported      chat.ErrUnsupported or tokenize.ErrUnsupported: no chat, or no text, of the model can be scored
//	no_tokenizer     ErrNoTokenizer
//	no_template      ErrNoTemplate
//	too_long         tokenize.ErrTextTooLong
//	busy             tokenize.ErrBusy
//	failed           any other error, such as that of a backend
type ScoreReport struct {
	// Model and Adapter are the base model and the adapter that were scored, also if the
	// request has the adapter's name, or an alias, as its model. After an error they may be
	// those of the request.
	Model, Adapter string
	Outcome        string // one of the words that ScoreReport lists
	Err            error  // the error of ScoreRequest
	Degraded       error  // Answer.Degraded

	PromptTokens int
	// CachedTokens and PredictedTokens are those of the best pod (PodScore).
	CachedTokens, PredictedTokens int

	Began time.Time // when ScoreRequest was called
	// Render is the time for reading a body and making the text of a chat. Tokenize is the
	// time for finding the Model and making tokens from a text, with all waiting. Match is
	// the time for hashing the prompt and querying the index.
	Render, Tokenize, Match time.Duration
}

// MarshalJSON writes errors as texts.
func (s ScoreReport) MarshalJSON() ([]byte, error) {
	type fields ScoreReport
	return json.Marshal(struct {
		fields
		Err, Degraded string `json:",omitempty"`
	}{fields(s), textOf(s.Err), textOf(s.Degraded)})
}

// report counts a score and calls the hook.
func (sc *scorer) report(ctx context.Context, r *Request, dst *Answer, err error) {
	outcome, cached, predicted := outcomeScored, 0, 0
	if err != nil || dst.Unknown != nil {
		outcome = outcomeOf(cmp.Or(err, dst.Unknown))
	}
	if len(dst.Pods) > 0 {
		cached, predicted = dst.Pods[0].CachedTokens, dst.Pods[0].PredictedTokens
	}
	sc.tally.count(outcome, dst.PromptTokens, cached)
	if dst.Degraded != nil {
		sc.tally.countDegraded()
	}
	if hook := sc.x.scored; hook != nil {
		s := ScoreReport{
			Model: r.Model, Adapter: r.Adapter, Outcome: outcome.String(), Err: err, Degraded: dst.Degraded,
			PromptTokens: dst.PromptTokens, CachedTokens: cached, PredictedTokens: predicted,
			Began: sc.began, Render: sc.times.render, Tokenize: sc.times.tokenize, Match: sc.times.match,
		}
		if sc.set != nil {
			s.Model, s.Adapter = sc.prompt.Scope.Model, sc.prompt.Scope.Adapter
		}
		hook(ctx, s)
	}
}

// clock returns the time if Hooks.Scored is set.
func (sc *scorer) clock() (now time.Time) {
	if sc.x.scored != nil {
		now = time.Now()
	}
	return now
}

// spend adds the time since clock returned began.
func (sc *scorer) spend(on *time.Duration, began time.Time) {
	if sc.x.scored != nil {
		*on += time.Since(began)
	}
}

// A tally counts scores. Most of them cost one atomic operation.
type tally struct {
	// few has the scores of outcomeScored that are not in all yet: their number
	// from bit 48 on, their prompt tokens from bit 24 on, and their cached tokens. No
	// part is ever half full, so a sum of two never overflows into the next part.
	few atomic.Uint64

	mu  sync.Mutex
	all scoreCounts

	_ [64]byte // keeps the next tally in another cache line
}

const halfFull = 1<<63 | 1<<47 | 1<<23

func (t *tally) count(o outcome, prompt, cached int) {
	if o == outcomeScored && prompt < 1<<23 {
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
	t.all.degraded++
}

// countByEngine counts a body that was sent to an engine for rendering.
func (t *tally) countByEngine(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.all.rendered++
	} else {
		t.all.unrendered++
	}
}

// settle moves few to all. mu is held.
func (t *tally) settle() {
	few := t.few.Swap(0)
	t.add(outcomeScored, few>>48, few>>24&(1<<24-1), few&(1<<24-1))
}

func (t *tally) add(o outcome, n, prompt, cached uint64) {
	s := scoreCounts{prompt: prompt, cached: cached}
	s.outcomes[o] = n
	t.all.add(&s)
}

// scores returns the sum of all tallies.
func (x *Indexer) scores() stats.Scores {
	var sum scoreCounts
	for i := range x.tallies {
		t := &x.tallies[i]
		t.mu.Lock()
		t.settle()
		sum.add(&t.all)
		t.mu.Unlock()
	}
	s := stats.Scores{Outcomes: make(map[string]uint64), PromptTokens: sum.prompt, CachedTokens: sum.cached, Degraded: sum.degraded, Rendered: sum.rendered, Unrendered: sum.unrendered}
	for o, n := range sum.outcomes {
		s.Outcomes[outcome(o).String()] = n
	}
	return s
}
