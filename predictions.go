package kvindex

import (
	"errors"
	"time"

	"github.com/kvindex/kvindex/internal/predict"
)

// PredictionConfig configures predictions: see WithPredictions. A field that is 0 has its
// default.
type PredictionConfig struct {
	// TTL is how long a prompt counts that was sent, if nothing else ends that before; 0: 2
	// seconds.
	TTL time.Duration
	// TicketAge is how long a Ticket is good, at least TTL; 0: 10 minutes.
	TicketAge time.Duration
	// Bytes bounds the memory of all predictions and tickets, at least 256 KiB; 0: 64 MiB. A
	// prompt takes 8 bytes for each 16 of its tokens, and a ticket some 150. The oldest go
	// first. What is kept of a rank that something was sent to, some 1.3 kB, is not in it.
	Bytes int64
	// Now is the clock; nil: time.Now. A simulator has its own. It is called by many
	// goroutines at a time, and must not go back.
	Now func() time.Time
}

var (
	// ErrNotAsked is wrapped by errors of Routed about a pod that the answer says nothing of,
	// because the request did not ask about it.
	ErrNotAsked = predict.ErrNotAsked
	// ErrAnswerUsed is wrapped by errors of Routed about an answer that was routed before,
	// or that a later ScoreRequest has overwritten.
	ErrAnswerUsed = errors.New("kvindex: the answer was used")
	// ErrBlockSize is wrapped by errors of Routed about a pod whose block size nobody knows: it
	// has stored nothing yet, and the other pods of its model with the same Profile.Media have
	// not either, or have different block sizes. Nothing can be predicted for it.
	ErrBlockSize = predict.ErrBlockSize
)

// Ticket stands for a request that was sent to a pod. The zero value is none. It is
// comparable, and can be copied; it is used once, by Observe or Abandon.
type Ticket struct{ of predict.Ticket }

// Usage is what an engine reports of a request that it has answered: usage.prompt_tokens and
// usage.prompt_tokens_details.cached_tokens of its answer. -1 is a number that it did not tell.
type Usage struct {
	PromptTokens, CachedTokens int
}

// Routed says that the prompt of an answer was sent to a rank of a pod. From then on the
// prompt counts in PredictedTokens of that rank, until one of these:
//
//   - Events have confirmed all of its blocks.
//   - The TTL has passed (WithPredictions).
//   - Observe or Abandon was called with the Ticket.
//   - The rank has lost what it held: its cache was emptied, its engine restarted, there was a
//     loss, or RemovePod was called.
//
// Of a pod that another process feeds (WithIndex), events and losses are not seen here.
//
// Call it when the request is sent, and Observe when the answer has come. a is the answer of
// a ScoreRequest, as that has filled it. An answer is for one Routed: a retry, or a second pod
// for the same request, needs a new score. The pod must be one of those that were asked about,
// also if Request.Top has left it out. A rank that is not known yet can be named.
//
// A pod that has stored nothing yet is taken to have the block size of the other pods of its
// model with the same Profile.Media, if these have one. When its first blocks come, and they are of another size, what was
// sent to it counts no more. A pod that was never heard can be named too. It is not known by
// that: it is in no answer to a request that does not name it.
//
// An error wraps ErrNotAsked, ErrAnswerUsed, ErrBlockSize, ErrClosed or, if this chat is not
// scorable for the pod, chat.ErrNotScorable. Then nothing is predicted, the Ticket is the zero
// one, and the request can be sent all the same.
func (x *Indexer) Routed(a *Answer, pod string, rank int) (Ticket, error) {
	if x.reg.Closed.Load() {
		return Ticket{}, ErrClosed
	}
	return x.routed(a, pod, rank)
}

// Observe says what the engine has reported of a request. It ends the prediction, and Stats
// compares the report with what was expected when the request was sent. A number that cannot
// be right counts as not told. A Ticket that is zero, was used, is too old or is another
// Indexer's changes nothing, and counts in stats.Tickets.Unknown.
func (x *Indexer) Observe(t Ticket, u Usage) {
	x.ledger.Observe(t.of, u.PromptTokens, u.CachedTokens)
}

// Abandon says that a request never got to its pod, or was not computed there. It ends the
// prediction. About a Ticket that is not good see Observe.
func (x *Indexer) Abandon(t Ticket) { x.ledger.Abandon(t.of) }
