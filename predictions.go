package kvindex

import (
	"time"

	"github.com/kvindex/kvindex/internal/predict"
)

// PredictionConfig configures predictions: see WithPredictions. A field that is 0 has its
// default.
type PredictionConfig struct {
	// TTL is the time for which a routed prompt counts, if nothing ends the prediction
	// before; 0: 2 seconds.
	TTL time.Duration
	// TicketAge is the time for which a Ticket is valid, at least TTL; 0: 10 minutes.
	TicketAge time.Duration
	// Bytes bounds the memory of all predictions and tickets, at least 256 KiB; 0: 64 MiB. A
	// prompt takes 8 bytes for each 16 of its tokens, and a ticket some 150 bytes. The oldest
	// go first. The bound does not cover some 1.3 kB for each rank that prompts were routed to.
	Bytes int64
	// Now is the clock; nil: time.Now. A simulator has its own. Many goroutines call it at a
	// time, and it must not go back.
	Now func() time.Time
}

// Ticket stands for a request that was sent to a pod. The zero value stands for no request.
// A Ticket is comparable and can be copied; it is used once, by Observe or Abandon.
type Ticket struct{ of predict.Ticket }

// Usage is the report of an engine about a request that it has answered: usage.prompt_tokens
// and usage.prompt_tokens_details.cached_tokens of its answer. -1 is a missing number; the zero
// Usage, which no prompt has, reports nothing.
type Usage struct {
	PromptTokens, CachedTokens int
}

// Routed registers that the prompt of an answer was sent to a rank of a pod. From then on the
// prompt counts in PredictedTokens of that rank, until one of these:
//
//   - Events have confirmed all of its blocks.
//   - The TTL has passed (WithPredictions).
//   - Observe or Abandon was called with the Ticket.
//   - The rank has lost its blocks: its cache was emptied, its engine restarted, there was a
//     loss, or RemovePod was called.
//
// Events and losses of a pod that another process feeds (WithIndex) do not come here.
//
// Call Routed when the request is sent, and Observe when the answer has come. a is the answer
// as ScoreRequest has filled it. An answer is for one Routed: a retry, or a second pod for the
// same request, needs a new score. The pod must be one of the pods of the request, also if
// Request.Top has left it out. The rank may be one that has published nothing yet.
//
// A pod that has stored nothing yet is assumed to have the block size of the other pods of its
// model with the same Profile.Media, if these have one. If its first blocks have another size,
// its predictions end. The pod may also be one that has never reported. Routed does not
// register it: it is only in answers to requests that name it.
//
// An error wraps ErrNotInRequest, ErrAnswerUsed, ErrBlockSize, ErrClosed or, if this chat is not
// scorable for the pod, chat.ErrNotScorable. Then nothing is predicted, the Ticket is zero,
// and the request can still be sent.
func (x *Indexer) Routed(a *Answer, pod string, rank int) (Ticket, error) {
	if x.reg.Closed() {
		return Ticket{}, ErrClosed
	}
	return x.routed(a, pod, rank)
}

// Observe registers the report of the engine about a request. It ends the prediction, and
// Stats compares the report with the figures at the time when the request was sent. A number
// that cannot be right counts as missing. A Ticket that is zero, used, too old or from another
// Indexer changes nothing, and counts in stats.Tickets.Unknown.
func (x *Indexer) Observe(t Ticket, u Usage) {
	x.ledger.Observe(t.of, u.PromptTokens, u.CachedTokens)
}

// Abandon registers that a request never reached its pod, or was not computed there. It ends
// the prediction. Invalid Tickets are treated as in Observe.
func (x *Indexer) Abandon(t Ticket) { x.ledger.Abandon(t.of) }
