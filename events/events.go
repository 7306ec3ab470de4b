// Package events receives the KV events of engines over ZeroMQ and decodes them.
//
// # Where to start
//
// If you use an Indexer (package kvindex) and ZeroMQ, give Indexer.Sink to one of these, and
// call Run:
//
//   - [Fleet] for many pods that come, move and go. Sources list the pods.
//     Read [NewFleet], [FleetConfig], [Pod], [PodSource] and [Fleet.Pods]. The packages
//     events/discovery and events/k8s have sources for files, DNS and Kubernetes.
//   - [Subscriber] for one engine whose address does not change, and for engines that
//     connect to you. Read [NewSubscriber] and [SubscriberConfig].
//
// You need nothing else of this package, but [TransportError].
//
// # Words
//
//   - An engine publishes messages. Its life lasts from its start to its end. An
//     engine that restarts has another life, and counts its messages from 0 again.
//   - A stream is a series of messages with sequence numbers of its own, of one pod
//     and one model. Its name is the endpoint of the engine; where engines connect
//     to a [Subscriber], it is the endpoint of the Subscriber and the topic. A
//     stream outlasts connections and lives.
//   - A topic is the text in front of each message in ZeroMQ. A Subscriber that
//     listens identifies the streams of its connections by their topics.
//   - A connection is a socket that is open to one peer. It can bring several
//     streams. If several connections bring one stream, only the newest of them
//     counts.
//   - A peer is the other end of a connection: an engine, if all is well.
//   - A gap is a range of sequence numbers that did not come.
//   - A sink receives messages, such as that of an Indexer. A transport brings them, such as a
//     Subscriber.
//   - A replay: the engine sends messages again that it still has, at its replay
//     socket, when a transport requests them.
//   - A pod is a running engine, by the name that your program gives it. Its ranks are
//     its data-parallel parts, each with a cache and a socket of its own.
//   - A source, in this package, lists pods, and gives a Fleet the new list at each change. The
//     index.Source of a block is another thing: one cache.
//   - A link is a Fleet's connection to one rank of a pod, and its state.
//
// One stream can be about several ranks (data-parallel parts) of a pod.
//
// # For authors of transports
//
// A transport of your own gives each [Message] to a [Sink], in order. If it must not
// wait for the sink, put a [Pool] between them. If it can request replays, or
// notices when a connection is lost, it uses [Position], [Note] and [Receipt], too; a
// Subscriber does the same.
//
// # For authors of sinks
//
// [Decode] reads a payload into a [Batch] of [Event]. An Indexer uses it.
package events

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvindex/kvindex/internal/fault"
)

// ErrMalformed is wrapped by every error about a payload that cannot be read. Nothing of such
// a payload may be applied. An Indexer counts the reasons: stats.Malformed.Reason.
var ErrMalformed = errors.New("events: malformed payload")

func malformed(err error) error { return fmt.Errorf("%w: %w", ErrMalformed, err) }

// Kind is the kind of an Event.
type Kind uint8

// The kinds of events.
const (
	Stored  Kind = iota + 1 // blocks are in the cache
	Removed                 // one copy of each block has left it
	Cleared                 // the cache was emptied, or the tier that Medium names
)

// Batch is the decoded payload of one message. Its zero value is ready for Decode. One Batch
// can be used for many calls of Decode: its memory is used again.
type Batch struct {
	Time    float64 // the engine's clock in seconds, never NaN or infinite; 0 if it sent none
	Rank    int     // data-parallel rank; 0 if HasRank is false
	HasRank bool
	Events  []Event
	Unknown int // skipped events: of unknown kinds, or about layers that an index does not use
	// Unrecognized describes parts of the batch that Decode does not recognize, behind the last
	// Cleared event that names no tier: at most a few, each once. MayRemove: some of them may
	// remove blocks from the cache.
	Unrecognized []string
	MayRemove    bool

	events []Event // the memory of Events, zero behind its length

	// The memory of the slices of all events.
	hashes []uint64
	tokens []uint32
	extra  []ExtraKey
	counts []uint32

	recent [1 << recentBits][4]string // strings met lately, by their last bytes, the newest first
}

// recentBits makes room for 128 strings: the adapters, salts and media in use
// at one time are a few dozen.
const recentBits = 5

// Event is one event of a batch. Slices belong to the batch.
type Event struct {
	Kind Kind

	HasParent bool // Parent is set
	HasExtra  bool // Extra was sent
	HasGroup  bool // Group was sent
	// Pairs: Tokens has EAGLE's pairs of neighbouring tokens, t0 t1, t1 t2, and so on.
	Pairs bool
	// Reused: the event itself reports that its blocks were in the cache before.
	Reused bool

	// Hashes are the engine's names of the blocks: integers as their 64 bits,
	// byte strings folded to their last 8 bytes.
	Hashes []uint64
	// Parent is the hash of the block before the first block of a Stored event.
	Parent uint64
	// Tokens are those of all blocks of a Stored event. They may be empty (the event is
	// about another tier), and more than Hashes*BlockSize: a group that keeps only some of
	// its blocks names only those (the event is masked).
	Tokens    []uint32
	BlockSize int // tokens; 0 if not sent

	// Adapter is lora_name, or lora_id in decimal if no name was sent.
	Adapter string
	// Salt is cache_salt where the event has a field for it (SGLang); vLLM puts
	// it into Extra.
	Salt string
	// Medium is the tier as the engine spells it; "" means gpu and, of Cleared, all tiers.
	Medium string
	// Extra are the extra hash keys of the blocks: salts and media, in order of Block. If
	// HasExtra is true, the event lists all of them, maybe none. If it is false, the blocks
	// may have unknown salts or media. One exception: vLLM sends no keys with an event without
	// hashes, and there nothing is missing. Events of connectors about other tiers have no
	// keys. SGLang has none either: it has Salt, and writes media into the tokens.
	Extra []ExtraKey

	// Group is the KV cache group, 0 if not sent. An Indexer takes an event about a tier below
	// the gpu that has none for one about each group of the rank.
	Group     int
	GroupKind string // kv_cache_spec_kind, "" if not sent
	Window    int    // sliding window in tokens, 0 if not sent

	Locality  string // "LOCAL", "REMOTE" or ""
	Ownership string
	// Remaining has the copies left for each removed hash, if it was sent.
	Remaining []uint32
}

// Validate checks a Batch that did not come from Decode. Its error wraps ErrMalformed, and
// means that no payload can have this content.
func (b *Batch) Validate() error {
	switch {
	case b == nil:
		return malformed(fault.Errorf(fault.Missing, "the batch is nil"))
	case math.IsNaN(b.Time) || math.IsInf(b.Time, 0):
		return malformed(fault.Errorf(fault.Type, "the time is %v", b.Time))
	case b.Rank < 0 || b.Rank > maxRank:
		return malformed(fault.Errorf(fault.Type, "rank %d is not in 0..%d", b.Rank, maxRank))
	case b.Rank > 0 && !b.HasRank:
		return malformed(fault.Errorf(fault.Contradiction, "rank %d without HasRank", b.Rank))
	}
	for i := range b.Events {
		if err := b.Events[i].validate(); err != nil {
			return malformed(fmt.Errorf("event %d: %w", i, err))
		}
	}
	return nil
}

func (e *Event) validate() error {
	switch {
	case e.Kind < Stored || e.Kind > Cleared:
		return fault.Errorf(fault.Type, "unknown kind %d", e.Kind)
	case e.BlockSize < 0 || e.BlockSize > maxBlockSize:
		return fault.Errorf(fault.Type, "block size %d is not in 0..%d", e.BlockSize, maxBlockSize)
	case e.Group < 0 || e.Group > maxGroup:
		return fault.Errorf(fault.Type, "group %d is not in 0..%d", e.Group, maxGroup)
	case e.Window < 0 || e.Window > maxWindow:
		return fault.Errorf(fault.Type, "window %d is not in 0..%d", e.Window, maxWindow)
	case e.Parent != 0 && !e.HasParent:
		return fault.Errorf(fault.Contradiction, "parent %d without HasParent", e.Parent)
	case e.Pairs && len(e.Tokens)%2 != 0:
		return fault.Errorf(fault.Contradiction, "%d tokens are not pairs", len(e.Tokens))
	case e.Remaining != nil && len(e.Remaining) != len(e.Hashes):
		return fault.Errorf(fault.Contradiction, "%d remaining counts for %d hashes", len(e.Remaining), len(e.Hashes))
	}
	for i, k := range e.Extra {
		if k.Block < 0 || k.Block >= len(e.Hashes) || i > 0 && k.Block < e.Extra[i-1].Block {
			return fault.Errorf(fault.Contradiction, "extra key %d of block %d, of %d hashes, in order of block", i, k.Block, len(e.Hashes))
		}
	}
	return e.checkBlocks()
}

// checkBlocks checks that the tokens are whole blocks, and enough of them.
func (e *Event) checkBlocks() error {
	n := len(e.Tokens)
	if n == 0 {
		return nil
	}
	if e.Pairs {
		n /= 2
	}
	switch {
	case e.BlockSize == 0:
		return fault.Errorf(fault.Missing, "%d tokens without a block_size", n)
	case n%e.BlockSize != 0:
		return fault.Errorf(fault.Contradiction, "%d tokens are not a multiple of block_size %d", n, e.BlockSize)
	case len(e.Hashes) > n/e.BlockSize:
		return fault.Errorf(fault.Contradiction, "%d hashes for %d blocks", len(e.Hashes), n/e.BlockSize)
	}
	return nil
}

// ExtraKind is the form of an ExtraKey.
type ExtraKind uint8

// The forms of extra keys.
const (
	ExtraText   ExtraKind = iota + 1 // an adapter, a bare media identifier or a salt
	ExtraInt                         // an adapter's id
	ExtraMedia                       // a media identifier and its offset
	ExtraBytes                       // a digest of prompt embeddings
	ExtraOpaque                      // a form that is not known
)

// ExtraKey is a part of an engine's block hash besides the tokens.
type ExtraKey struct {
	Block int // index of the hash that it belongs to
	Kind  ExtraKind
	Text  string // of ExtraText, ExtraMedia; the raw bytes of ExtraBytes, ExtraOpaque
	Int   int64  // of ExtraInt; of ExtraMedia: first token of the item less the block's, may be negative
}
