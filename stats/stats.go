// Package stats has the counters and descriptions of kvindex.Indexer.Stats and Indexer.Pods.
// All of it is plain data: copies that belong to the caller. A counter stops at 2^64-1. A map by
// word has all words of its list as keys, also those that count 0.
package stats

import (
	"time"

	"github.com/kvindex/kvindex/index"
)

// Stats has counters since New, and present figures. Each known reason for a score that is too
// low has a counter.
type Stats struct {
	// Present figures.
	Models, Pods, Ranks int
	Blocks              [index.NumTiers]int // of all pods, by Tier; 0 if the index does not report them
	Parked              int                 // events about stored blocks that wait for the parent
	Unplaced            int                 // hashes of all pods without a known prefix: no prompt matches them
	Index               index.MemoryUsage   // memory of the index; 0 if it is no index.Describer
	// States has the number of pods in each state, by the text of the kvindex.State. A pod
	// counts once for each of its models.
	States map[string]int
	// Connected, Waiting and NoReplay are numbers of streams: with a connection, with Replay
	// waiting, and with Replay none.
	Connected, Waiting, NoReplay int

	Scores      Scores
	Predictions Predictions // of Routed
	Tickets     Tickets
	// Observed has a row for each model, and each state of the ranks that requests were sent
	// to, by model and state in alphabetical order. With more than 1,024 rows the other models
	// are one, "".
	Observed []Observations

	Prompts Prompts // of the prompt cache; 0 without one. A prompt counts once for each unit of the pods' blocks

	Counters
	MalformedBy map[string]uint64 // Malformed, by Malformed.Reason
	// Events has the events in readable messages, by kind:
	//
	//	stored   blocks are in a cache
	//	removed  blocks are no longer there
	//	cleared  a cache was emptied
	//	unknown  any other kind: skipped
	Events map[string]uint64
}

// Counters counts since the Indexer was made.
type Counters struct {
	Traffic        // of all streams
	Marked  uint64 // losses that MarkLost reported, for each rank and model

	Foreign     uint64 // of Events: about copies in a store that several pods share, and skipped
	Unscored    uint64 // stored blocks that no prompt can match: prompt embeddings, unknown extra keys
	Scopeless   uint64 // stored blocks whose events lack the salt, the media or the adapter, as all of SGLang do: prompts with and without count as equal
	OtherChunks uint64 // chunks that describe themselves and are of another length than Profile.Chunk: theirs counts
	Adapters    uint64 // adapters beyond 4,096 of a pod and model, or with a name of more than 1,024 bytes: only Request.Adapter finds them

	// Counts are the counters of the index.
	Counts index.Counts
}

// Traffic counts the messages of one stream, or of all streams.
type Traffic struct {
	Messages   uint64 // received, applied or not
	Malformed  uint64 // payloads that could not be read
	Duplicates uint64 // messages that were received before
	Gaps       uint64 // gaps in the sequence numbers
	Missing    uint64 // messages in gaps that no replay filled
	Replayed   uint64 // messages of replays that were applied
	PassedOver uint64 // of Missing: left out by a replay, because the engine did not have them
	Restarts   uint64 // restarts of engines
	Contested  uint64 // messages that were not applied, because another stream has the rank
	Delayed    uint64 // messages that were applied, and not yet visible to other processes (a shared index)
	NoRoom     uint64 // messages that were not applied, because the index has no room for their rank (kvindex.ErrFull)
}

// Stream describes a stream of a pod and model.
type Stream struct {
	Stream string
	Next   uint64 // the sequence number that is due
	// State is the worst kvindex.State of the ranks that the stream feeds. Tiers: the stream
	// reports lower tiers alone, as that of an offload daemon does. Then State is that of its
	// reports, and the states of its ranks and of the pod do not depend on it.
	State string
	Tiers bool
	// Connected is the time since when the stream is connected. It is zero without a
	// connection, or if the transport does not report it. LastMessage is the time of the last
	// message, applied or not; zero if there was none.
	Connected, LastMessage time.Time
	// Replay is the state of the replay socket of the stream:
	//
	//	idle     no request is under way, or there is no replay socket
	//	waiting  messages wait for missing ones, or older messages are being applied
	//	none     the socket does not answer: missed messages are lost
	Replay        string
	LastMalformed Malformed

	Traffic
}

// Malformed describes the last malformed message of a stream. The zero value is none.
type Malformed struct {
	Seq  uint64    // math.MaxUint64: the number could not be read either
	Time time.Time // of the message
	// Reason is the fault in one word, for counters; each has another likely cause:
	//
	//	unknown        not an error about an engine's message
	//	truncated      the payload ends too early: it was cut, or a length in it lies
	//	encoding       no MessagePack object, or a string that is not UTF-8: of no engine, or damaged
	//	type           a field has a type or a value that no known version sends
	//	missing        a field that every known version sends is missing
	//	contradiction  fields exclude one another, or one is repeated
	//	limit          more of something than an engine can be made to send, or than a transport accepts
	//	frames         not the frames that engines send: a topic, a number of 8 bytes, a payload
	Reason string
	Error  string
}

// Group describes a KV-cache group of a rank.
type Group struct {
	index.Group
	BlockSize int // in tokens, of the newest event
}

// Scores counts scores, without those that end with kvindex.ErrClosed.
type Scores struct {
	Outcomes     map[string]uint64 // by kvindex.ScoreReport.Outcome
	PromptTokens uint64            // of the prompts, of scores without an error
	CachedTokens uint64            // of them, cached in the best pod
	Degraded     uint64            // scores without an error for which the index could not be queried (Answer.Degraded)
	Rendered     uint64            // bodies that a chat.Renderer has rendered, because they are not rendered here
	Unrendered   uint64            // bodies that were sent to it and that it has not rendered
}

// Prompts are the counters of the prompt cache (kvindex.WithPromptCache), and its size.
type Prompts struct {
	// Lookups has the prompts by result:
	//
	//	whole    the prompt was in the cache
	//	grown    a beginning of the prompt was in the cache
	//	unknown  nothing of the prompt was in the cache
	//	past     the prompt bypassed the cache
	Lookups map[string]uint64

	BytesKnown   uint64 // of text that was in the cache
	BytesEncoded uint64 // of text that was encoded

	Entries int   // cached beginnings and texts
	Bytes   int64 // of heap
	Evicted uint64
}

// Predictions counts predictions. Routed is the sum of Live and of those that have ended.
type Predictions struct {
	Routed uint64 // made
	Live   uint64 // count now
	// Ended has the predictions that have ended, by how:
	//
	//	confirmed   by events
	//	expired     by the TTL
	//	observed    by Observe
	//	abandoned   by Abandon
	//	lost        the rank has lost its blocks
	//	pushed_out  for lack of room
	Ended map[string]uint64
}

// Tickets counts tickets. The sum of Live and of those that have ended is Predictions.Routed.
type Tickets struct {
	Live uint64 // usable
	// Ended has the tickets that have ended, by how:
	//
	//	observed   by Observe
	//	abandoned  by Abandon
	//	aged       too old, or without room
	Ended   map[string]uint64
	Unknown uint64 // calls of Observe and Abandon with an invalid Ticket
}

// Observations compare the reports of engines with the predictions, for one model.
type Observations struct {
	Model string
	State string // kvindex.State of the rank when the request was sent; of the pod if the rank was unknown
	// Cached and Predicted compare PodScore.CachedTokens and PredictedTokens when the request
	// was sent with the cached tokens that the engine reported:
	//
	//	exact  equal. Tokens are these tokens
	//	over   the figure was too high. Tokens are the differences
	//	under  the figure was too low. Tokens are the differences
	Cached, Predicted map[string]Accuracy
	// OtherLength is the number of requests whose prompt had another length in the engine: the
	// tokenizer, the template, or the request itself differs from the engine's.
	OtherLength uint64
}

// Accuracy counts requests with one result of a comparison, and tokens.
type Accuracy struct{ Requests, Tokens uint64 }
