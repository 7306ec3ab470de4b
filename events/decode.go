package events

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/fault"
)

// This file has Decode, the limits of a payload, and the walk through the batch and its
// events. It is the decoder of all engines, with four files beside it:
//
//	msgpack.go  the cursor over the items of a payload, which never leaves it
//	fields.go   which field stands where in an event
//	values.go   the values of fields
//	endings.go  the common fields of a batch's events, read once
//
// A file named after an engine (vllm.go, sglang.go) opens with the table of the engine's
// fields by version, and reads fields that only this engine sends. A payload does not name its
// engine, and the decoder does not need it: it reads every event by its content.
//
// The format of another engine gets such a file. If its events are in the same batch and only
// have other fields, fields.go gets their names and places, and decoder.value calls the file
// for their values. If its batch differs, decoder.batch detects it by the first item, and the
// file reads it with the shared parts: the cursor, begin and end for each event, the values of
// values.go. These keep the limits below for any batch.

// Limits on what one payload may hold. They bound the memory of a Batch to a
// few hundred MB, whatever a pod sends, and leave room for the largest batch
// that an engine can be made to send: the report of all running prompts.
const (
	// maxPayload is the size of a payload in bytes.
	maxPayload = 64 << 20
	// maxEvents: an engine evicts one block an event, so a step over 64k tokens
	// in blocks of one token comes with 128k events.
	maxEvents = 1 << 18
	// maxTokens: 128 prompts of 128k tokens.
	maxTokens = 1 << 24
	// maxHashes: a quarter of that, since a block has 16 tokens as a rule.
	maxHashes = 1 << 22
	// maxExtra: an adapter for each block of 16 tokens, and media besides.
	maxExtra = 1 << 21
	// minExtraBytes is the least size of an extra key in a payload: a name of a letter, and
	// its share of its block's hash and list. A key of a byte would cost 40 times that in
	// memory.
	minExtraBytes = 4
	// minEventBytes is the shortest event of a known kind: a BlockRemoved with
	// nothing but an empty list of hashes.
	minEventBytes = len("\x92\xacBlockRemoved\x90")

	// maxRank: rank r publishes on port + r.
	maxRank = math.MaxUint16
	// maxGroup: a model has fewer groups than layers.
	maxGroup = 1<<10 - 1
	// maxBlockSize is longer than the context of any model, so that a larger
	// block could hold no prompt.
	maxBlockSize = 1 << 24
	// maxWindow keeps a window in an int everywhere.
	maxWindow = math.MaxInt32
)

// Decode reads the payload of one message into b, and overwrites what b had. It keeps
// nothing of payload. It is safe for concurrent use with different batches.
//
// Decode reads the batches of vLLM since 0.9.0 and of SGLang since May 2025, in every
// published form; an Indexer scores SGLang since November 2025. It detects the form event by
// event. It skips unknown fields. It also skips events of unknown kinds, and counts them in
// b.Unknown. Any other unreadable payload is an error that wraps ErrMalformed, names the place
// and the fault, and leaves b empty: a payload of more than 64 MiB, a field of a wrong type,
// an event that contradicts itself (more hashes than blocks, half a block), a key that comes
// twice, and bytes after the batch.
//
// For any payload of n bytes Decode allocates at most 64*n bytes, and 16 KiB for an error.
// With a used Batch it allocates only new strings: not for tiers, not for kinds of groups, and
// not for the few dozen adapters, salts and media that it has read last.
func Decode(payload []byte, b *Batch) error {
	b.reset()
	d := decoder{cursor: cursor{data: payload}, b: b}
	if err := d.batch(); err != nil {
		b.reset()
		return malformed(err)
	}
	b.Events = tail(b.events, 0)
	return nil
}

// reset empties b and keeps its memory. Events and extra keys hold strings,
// which must not outlive the batch that they came in.
func (b *Batch) reset() {
	b.Time, b.Rank, b.HasRank, b.Events, b.Unknown = 0, 0, false, nil, 0
	b.Unrecognized, b.MayRemove = nil, false
	clear(b.events)
	clear(b.extra)
	b.events, b.extra = b.events[:0], b.extra[:0]
	b.hashes, b.tokens, b.counts = b.hashes[:0], b.tokens[:0], b.counts[:0]
}

// maxUnrecognized bounds Batch.Unrecognized.
const maxUnrecognized = 4

// unrecognized records an unknown name.
func (b *Batch) unrecognized(mayRemove bool, what string, name []byte) {
	b.MayRemove = b.MayRemove || mayRemove
	if len(b.Unrecognized) < maxUnrecognized {
		text := what
		if name != nil {
			text = fmt.Sprintf("%s %.40q", what, name)
		}
		if !slices.Contains(b.Unrecognized, text) {
			b.Unrecognized = append(b.Unrecognized, text)
		}
	}
}

// dropEvent drops the last event as one of an unknown kind.
func (b *Batch) dropEvent() {
	n := len(b.events) - 1
	b.events[n] = Event{}
	b.events = b.events[:n]
	b.Unknown++
}

// A decoder reads one payload into b.
type decoder struct {
	cursor
	b *Batch

	rest int // events that are still to come, and the one that is being read

	// Of the event that is being read:
	e       *Event // nil if its kind is not known
	aside   bool   // it is about other layers than those of full attention
	loraID  form   // formInt, formNegative, or formInvalid if none was sent
	lora    uint64
	entries int // of extra_keys, if e.HasExtra
	ending  ending

	endings [Cleared + 1]ending // the latest of each kind
}

func (d *decoder) batch() error {
	if len(d.data) > maxPayload {
		return fault.Errorf(fault.Limit, "the payload has %d bytes, more than %d", len(d.data), maxPayload)
	}
	f, n, err := d.next()
	switch {
	case err != nil:
	case f == formArray && n >= 2:
		err = d.batchArray(int(n))
	case f == formArray:
		err = fault.Errorf(fault.Missing, "a list of length %d is not a batch", n)
	case f == formMap:
		err = d.batchMap(int(n))
	case looksLikeJSON(d.data):
		err = fault.Errorf(fault.Encoding, "it looks like JSON: a batch is MessagePack, as the engine publishes it")
	default:
		err = fault.Errorf(fault.Type, "%s is not a batch", describe(f, n))
	}
	if err == nil && d.left() > 0 {
		err = fault.Errorf(fault.Encoding, "%d bytes behind the batch", d.left())
	}
	return err
}

// looksLikeJSON reports whether a payload begins as JSON's objects and arrays do. In
// MessagePack these are small numbers.
func looksLikeJSON(payload []byte) bool {
	text := bytes.TrimLeft(payload, " \t\r\n")
	return len(text) > 0 && (text[0] == '{' || text[0] == '[')
}

func (d *decoder) batchArray(n int) error {
	if err := d.time(); err != nil {
		return err
	}
	if err := d.events(); err != nil {
		return err
	}
	if n == 2 {
		return nil
	}
	if err := d.rank(); err != nil {
		return err
	}
	return d.skipItems(n - 3)
}

func (d *decoder) batchMap(n int) error {
	const ts, events, rank, unknown = 0, 1, 2, 3
	var seen [4]bool
	for range n {
		key, err := d.str()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		f := unknown
		switch string(key) {
		case "ts":
			f = ts
		case "events":
			f = events
		case "data_parallel_rank":
			f = rank
		}
		if f != unknown && seen[f] {
			return fault.Errorf(fault.Contradiction, "the key %s is repeated", key)
		}
		seen[f] = true
		switch f {
		case ts:
			err = d.time()
		case events:
			err = d.events()
		case rank:
			err = d.rank()
		case unknown:
			if !utf8.Valid(key) {
				return fmt.Errorf("key: %w", errUTF8)
			}
			err = d.skip()
		}
		if err != nil {
			return err
		}
	}
	if !seen[events] {
		return fault.Errorf(fault.Missing, "the batch has no events")
	}
	return nil
}

func (d *decoder) time() error {
	f, bits, err := d.next()
	if err != nil {
		return fmt.Errorf("ts: %w", err)
	}
	switch f {
	case formFloat:
		// A broken clock must not cost the events, and must not reach any arithmetic: NaN is
		// neither before nor after anything.
		if t := math.Float64frombits(bits); !math.IsNaN(t) && !math.IsInf(t, 0) {
			d.b.Time = t
		}
	case formInt:
		d.b.Time = float64(bits)
	case formNegative:
		d.b.Time = float64(int64(bits))
	default:
		return fault.Errorf(fault.Type, "ts: %s is not a time", describe(f, bits))
	}
	return nil
}

func (d *decoder) rank() error {
	if d.isNil() {
		return nil
	}
	n, err := d.size(maxRank)
	if err != nil {
		return fmt.Errorf("data_parallel_rank: %w", err)
	}
	d.b.Rank, d.b.HasRank = n, true
	return nil
}

func (d *decoder) events() error {
	n, err := d.array()
	if err == nil {
		err = limit(n, maxEvents, "events")
	}
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	for i := range n {
		d.rest = n - i
		if err := d.event(); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}

func (d *decoder) event() error {
	f, n, err := d.next()
	if err != nil {
		return err
	}
	switch f {
	case formArray:
		return d.eventArray(int(n))
	case formMap:
		return d.eventMap(int(n))
	}
	return fault.Errorf(fault.Type, "%s is not an event", describe(f, n))
}

// begin starts an event of a kind.
func (d *decoder) begin(k Kind) {
	d.e, d.loraID, d.aside, d.ending = nil, formInvalid, false, ending{}
	if k == 0 {
		d.b.Unknown++
		return
	}
	d.e = d.newEvent()
	d.e.Kind = k
}

// newEvent appends an event. Those behind len(b.events) are always zero.
func (d *decoder) newEvent() *Event {
	b, n := d.b, len(d.b.events)
	if n == cap(b.events) {
		// Of the rest, more than fit into the payload can only be of unknown
		// kinds, which leave nothing.
		b.events = grow(b.events, min(d.rest, 1+d.left()/minEventBytes), n+d.rest)
	}
	b.events = b.events[:n+1]
	return &b.events[n]
}

// end checks the rules about the whole event.
func (d *decoder) end() error {
	e := d.e
	switch {
	case e == nil:
		return nil
	case d.aside:
		d.b.dropEvent()
		return nil
	}
	d.remember()
	switch e.Kind {
	case Stored:
		if e.Adapter == "" && d.loraID != formInvalid {
			e.Adapter = d.adapter()
		}
		if e.HasExtra && d.entries != len(e.Hashes) {
			return fault.Errorf(fault.Contradiction, "extra_keys: %d entries for %d hashes", d.entries, len(e.Hashes))
		}
		return e.checkBlocks()
	case Cleared:
		if e.Medium == "" {
			d.b.Unrecognized, d.b.MayRemove = nil, false
		}
	case Removed:
		if len(e.Remaining) != len(e.Hashes) {
			e.Remaining = nil
		}
	}
	return nil
}

// limit returns an error for more than most things.
func limit(n, most int, things string) error {
	if n > most {
		return fault.Errorf(fault.Limit, "more than %d %s", most, things)
	}
	return nil
}
