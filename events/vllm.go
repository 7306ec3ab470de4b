package events

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// This file reads the batches of vLLM, vllm/distributed/kv_events.py. Its
// publisher encodes them with msgspec, which never shortens an array and sends
// nil for what is not set.
//
// A batch is an array of these positions, or (in one development snapshot) a
// map of these keys:
//
//	0  ts                  float, seconds
//	1  events              list
//	2  data_parallel_rank  int or nil; since 0.9.1
//
// An event is an array that begins with the name of its kind, or (since June
// 2026, PR 42892, in 0.24.0) a map with that name under "type". In a map, the
// fields up to lora_name, and to medium in a BlockRemoved, are always there;
// the others are left out at their defaults, which are nil.
//
//	   BlockStored                   type                   since
//	1  block_hashes                  [int or bytes]         0.9.0
//	2  parent_block_hash             int, bytes or nil      0.9.0
//	3  token_ids                     [int] or nil           0.9.0
//	4  block_size                    int; nil or 0 possible 0.9.0
//	5  lora_id                       int or nil             0.9.0
//	6  medium                        str or nil             0.10.2, PR 19737
//	7  lora_name                     str or nil             0.14.0, PR 27577
//	8  extra_keys                    list or nil            2026-02-20, PR 33304
//	9  group_idx                     int or nil             2026-04-12, PR 37688
//	10 kv_cache_spec_kind            str or nil             2026-05-12, PR 40984
//	11 kv_cache_spec_sliding_window  int or nil             2026-05-12, PR 40984
//	-  locality                      str or nil             2026-07-17, PR 48281
//	-  ownership                     str or nil             0.29.0, PR 52067
//	-  session_id                    str or nil             after 0.29.0, PR 51381; not read
//	-  origin                        str                    proposed, PR 51699
//
//	   BlockRemoved                  type                   since
//	1  block_hashes                  [int or bytes]         0.9.0
//	2  medium                        str or nil             0.10.2, PR 19737
//	3  group_idx                     int or nil             2026-04-12, PR 37688
//	-  locality                      str or nil             2026-07-17, PR 48281
//	-  ownership                     str or nil             0.29.0, PR 52067
//	-  remaining_copy_counts         [int]                  proposed, PR 48933
//
//	   AllBlocksCleared has no fields.
//
// The versions are hints: the form is decided by the types that are met, event
// by event. What is behind the last position or under another key is skipped.
// sglang.go has what SGLang's events have besides. LMCache and Mooncake inside
// vLLM, Dynamo's consolidator and TensorRT-LLM's publisher (PR 17023) send these
// forms too.

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
	// minExtraBytes is what an extra key takes of a payload at the least: a name
	// of a letter, and its share of its block's hash and list. A key of a byte
	// would cost 40 times that in memory.
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

// Decode reads the payload of one message into b, which it overwrites. It keeps
// nothing of payload. Once b has grown it allocates only the strings that it
// has not met lately: tiers, kinds of groups and a few dozen adapters, salts
// and media cost nothing.
//
// Decode reads the batches of vLLM since 0.9.0 and of SGLang since its first, of
// May 2025, in every published form, which it tells by what is in each event. It
// skips fields that it does not know, and events of kinds that it does not
// know, which it counts in b.Unknown. Everything else that it cannot read is an
// error that wraps [ErrMalformed], says what is wrong where, has a [Reason], and
// leaves b empty: a payload of more than 64 MiB, fields of another type than the
// engines', events that contradict themselves (more hashes than blocks, half a
// block), repeated keys, bytes behind the batch.
//
// For a payload of n bytes, whatever they are, Decode allocates at most 64*n
// bytes, and 16 KiB for an error.
//
// Decode is safe for concurrent use on different batches.
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
	clear(b.events)
	clear(b.extra)
	b.events, b.extra = b.events[:0], b.extra[:0]
	b.hashes, b.tokens, b.counts = b.hashes[:0], b.tokens[:0], b.counts[:0]
}

// dropEvent takes the last event for one of an unknown kind.
func (b *Batch) dropEvent() {
	n := len(b.events) - 1
	b.events[n] = Event{}
	b.events = b.events[:n]
	b.Unknown++
}

// maxRecent is the longest string worth remembering: an identifier, not a text.
const maxRecent = 256

// text turns raw into a string without allocating if it is a usual one or was
// met lately.
func (b *Batch) text(raw []byte) (string, error) {
	if s, ok := usual(raw); ok {
		return s, nil
	}
	var sum uint64
	for _, c := range raw[max(0, len(raw)-8):] {
		sum = sum<<8 | uint64(c)
	}
	// The upper bits of a product depend on all bits of its factors.
	set := &b.recent[(sum^uint64(len(raw)))*0x9e3779b97f4a7c15>>(64-recentBits)]
	for _, s := range set {
		if s == string(raw) {
			return s, nil
		}
	}
	if !utf8.Valid(raw) {
		return "", errUTF8
	}
	s := string(raw)
	if len(s) <= maxRecent {
		copy(set[1:], set[:])
		set[0] = s
	}
	return s, nil
}

// usual returns the strings that engines themselves put into events: their
// media, and vLLM's kinds of groups (vllm/v1/kv_cache_interface.py) and
// localities.
func usual(raw []byte) (string, bool) {
	switch string(raw) {
	case "":
		return "", true
	case "GPU":
		return "GPU", true
	case "CPU":
		return "CPU", true
	case "cpu":
		return "cpu", true
	case "STORAGE":
		return "STORAGE", true
	case "FS":
		return "FS", true
	case "OBJ":
		return "OBJ", true
	case "CPU_PINNED":
		return "CPU_PINNED", true
	case "DISK":
		return "DISK", true
	case "EXTERNAL":
		return "EXTERNAL", true
	case "LOCAL":
		return "LOCAL", true
	case "REMOTE":
		return "REMOTE", true
	case "full_attention":
		return "full_attention", true
	case "mla_attention":
		return "mla_attention", true
	case "sliding_window":
		return "sliding_window", true
	case "sliding_window_mla":
		return "sliding_window_mla", true
	case "mamba":
		return "mamba", true
	case "chunked_local_attention":
		return "chunked_local_attention", true
	case "sink_full_attention":
		return "sink_full_attention", true
	case "encoder_only_attention":
		return "encoder_only_attention", true
	case "cross_attention":
		return "cross_attention", true
	case "unknown":
		return "unknown", true
	}
	return "", false
}

// A field is a key of an event.
type field uint8

const (
	fieldHashes field = iota
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtraKeys
	fieldGroup
	fieldGroupKind
	fieldWindow
	fieldLocality
	fieldOwnership
	fieldOrigin
	fieldRemaining
	fieldCacheSalt
	fieldComponent
	fieldComponents
	fieldType
	fieldUnknown
	fieldNameOrMap // in an array: lora_name, or SGLang's map
)

// fieldNames must agree with fieldOf.
var fieldNames = [...]string{
	fieldHashes: "block_hashes", fieldParent: "parent_block_hash", fieldTokens: "token_ids",
	fieldBlockSize: "block_size", fieldLoraID: "lora_id", fieldMedium: "medium",
	fieldLoraName: "lora_name", fieldExtraKeys: "extra_keys", fieldGroup: "group_idx",
	fieldGroupKind: "kv_cache_spec_kind", fieldWindow: "kv_cache_spec_sliding_window",
	fieldLocality: "locality", fieldOwnership: "ownership", fieldOrigin: "origin",
	fieldRemaining: "remaining_copy_counts", fieldCacheSalt: "cache_salt",
	fieldComponent: "component_type", fieldComponents: "component_types", fieldType: "type",
	fieldNameOrMap: "lora_name",
}

// What engines write: the names in the short form of a str, and the type first.
var (
	writtenFields = func() (w [fieldUnknown]string) {
		for f := range w {
			w[f] = shortStr(fieldNames[f])
		}
		return w
	}()
	writtenTypes = [...]string{
		Stored:  writtenFields[fieldType] + shortStr(kinds[Stored].name),
		Removed: writtenFields[fieldType] + shortStr(kinds[Removed].name),
		Cleared: writtenFields[fieldType] + shortStr(kinds[Cleared].name),
	}
)

// shortStr is a str of less than 32 bytes as it is written.
func shortStr(s string) string { return string([]byte{0xa0 | byte(len(s))}) + s }

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoraName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldGroupKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "origin":
		return fieldOrigin
	case "remaining_copy_counts":
		return fieldRemaining
	case "cache_salt":
		return fieldCacheSalt
	case "component_type":
		return fieldComponent
	case "component_types":
		return fieldComponents
	case "type":
		return fieldType
	}
	return fieldUnknown
}

// A fieldSet has bit 1<<f for each field f in it.
type fieldSet uint32

func (s fieldSet) has(f field) bool { return s>>f&1 != 0 }

// A layout says how an event is written.
type layout struct {
	name       string
	positional []field  // the fields of the array form
	required   int      // the array form has that many of them at least
	order      []field  // the fields of the map form as they are written
	known      fieldSet // the keys of the map form
	always     fieldSet // the map form has these
	varying    fieldSet // what differs from event to event, and the type: these come first
}

// kinds has the layout of each Kind; the zero Kind stands for those that are
// not known.
var kinds = [...]layout{
	0: {name: "event of an unknown kind", known: 1 << fieldType},
	Stored: {
		name: "BlockStored",
		positional: []field{
			fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
			fieldNameOrMap, fieldExtraKeys, fieldGroup, fieldGroupKind, fieldWindow,
		},
		order: []field{
			fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
			fieldLoraName, fieldExtraKeys, fieldGroup, fieldGroupKind, fieldWindow,
			fieldLocality, fieldOwnership,
		},
		known:    (1<<fieldUnknown - 1) &^ (1 << fieldRemaining),
		required: 4,
		always:   1<<fieldHashes | 1<<fieldTokens,
		varying:  1<<fieldType | 1<<fieldHashes | 1<<fieldParent | 1<<fieldTokens,
	},
	Removed: {
		name:       "BlockRemoved",
		positional: []field{fieldHashes, fieldMedium, fieldGroup},
		order:      []field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwnership},
		known: 1<<fieldType | 1<<fieldHashes | 1<<fieldMedium | 1<<fieldGroup |
			1<<fieldLocality | 1<<fieldOwnership | 1<<fieldRemaining | 1<<fieldComponent,
		required: 1,
		always:   1 << fieldHashes,
		varying:  1<<fieldType | 1<<fieldHashes,
	},
	Cleared: {name: "AllBlocksCleared", known: 1 << fieldType},
}

var errUTF8 = faultf(ReasonEncoding, "a string that is not UTF-8")

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

// An ending is what follows the varying fields of an event: its block size,
// adapter, medium, group ... In most batches it is the same, byte for byte, in
// all events of a kind, which is as fast to see as one of its fields is to read.
type ending struct {
	fields     int // items of an array or pairs of a map: the same bytes are as many of both only if there are none
	start, end int // in the payload; both 0 if there is none
	event      int // index in Batch.events of one that has it
	entries    int // of its extra_keys
}

func (d *decoder) batch() error {
	if len(d.data) > maxPayload {
		return faultf(ReasonLimit, "%d bytes are more than %d", len(d.data), maxPayload)
	}
	f, n, err := d.next()
	switch {
	case err != nil:
	case f == formArray && n >= 2:
		err = d.batchArray(int(n))
	case f == formArray:
		err = faultf(ReasonMissing, "a list of length %d is not a batch", n)
	case f == formMap:
		err = d.batchMap(int(n))
	default:
		err = faultf(ReasonType, "%s is not a batch", describe(f, n))
	}
	if err == nil && d.left() > 0 {
		err = faultf(ReasonEncoding, "%d bytes behind the batch", d.left())
	}
	return err
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
			return faultf(ReasonContradiction, "the key %s is repeated", key)
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
		return faultf(ReasonMissing, "a batch without events")
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
		// A broken clock must not cost the events, and must not reach anybody's
		// arithmetic: NaN is neither before nor after anything.
		if t := math.Float64frombits(bits); !math.IsNaN(t) && !math.IsInf(t, 0) {
			d.b.Time = t
		}
	case formInt:
		d.b.Time = float64(bits)
	case formNegative:
		d.b.Time = float64(int64(bits))
	default:
		return faultf(ReasonType, "ts: %s is not a time", describe(f, bits))
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
	return faultf(ReasonType, "%s is not an event", describe(f, n))
}

// eventArray reads the array form: the name of the kind and n-1 fields.
func (d *decoder) eventArray(n int) error {
	if n == 0 {
		return faultf(ReasonMissing, "an empty list is not an event")
	}
	k, err := d.kind()
	if err != nil {
		return err
	}
	n--
	d.begin(k)
	if n < kinds[k].required {
		return faultf(ReasonMissing, "%s: %d fields are too few", kinds[k].name, n)
	}
	err = d.items(&kinds[k], n)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	return nil
}

// items reads n items of an array: the values of the fields that have a
// position.
func (d *decoder) items(l *layout, n int) error {
	read := l.positional[:min(n, len(l.positional))]
	seen := fieldSet(1 << fieldType)
	for i, f := range read {
		if err := d.value(f); err != nil {
			return fmt.Errorf("%s: %w", fieldNames[f], err)
		}
		seen |= 1 << f
		if seen == l.varying && d.repeats(ending{fields: n - i - 1, start: d.off}) {
			return nil
		}
	}
	return d.skipItems(n - len(read))
}

// eventMap reads the map form, of n keys in any order.
func (d *decoder) eventMap(n int) error {
	start := d.off
	k, at, err := d.findType(n)
	if err != nil {
		return err
	}
	d.begin(k)
	if at == n {
		return nil // without a type, all of it was skipped
	}
	var seen fieldSet
	if at == 0 { // where vLLM puts it
		seen = 1 << fieldType
		n--
	} else {
		d.off = start
	}
	if err := d.pairs(&kinds[k], n, &seen); err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	if missing := kinds[k].always &^ seen; missing != 0 {
		for f := range fieldUnknown {
			if missing.has(f) {
				return faultf(ReasonMissing, "%s: %s is missing", kinds[k].name, fieldNames[f])
			}
		}
	}
	if err := d.end(); err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	return nil
}

// findType reads the pairs of a map up to its type, the pair number at. Without
// a type it reads all n and returns n.
func (d *decoder) findType(n int) (k Kind, at int, err error) {
	for k := Stored; n > 0 && k <= Cleared; k++ {
		if d.at(writtenTypes[k]) {
			return k, 0, nil
		}
	}
	for at = range n {
		f, err := d.key()
		if err != nil {
			return 0, 0, err
		}
		if f == fieldType {
			k, err = d.kind()
			return k, at, err
		}
		if err := d.skip(); err != nil {
			return 0, 0, err
		}
	}
	return 0, n, nil
}

// pairs reads n pairs of a map: the values of the known fields, which it adds to
// seen. Engines write them in order, but for those that they leave out.
func (d *decoder) pairs(l *layout, n int, seen *fieldSet) error {
	order := l.order
	for i := range n {
		var f field
		if len(order) > 0 && d.at(writtenFields[order[0]]) {
			f, order = order[0], order[1:]
		} else {
			var err error
			if f, err = d.key(); err != nil {
				return err
			}
			order = order[1+slices.Index(order, f):]
		}
		if !l.known.has(f) {
			if err := d.skip(); err != nil {
				return err
			}
			continue
		}
		if seen.has(f) {
			return faultf(ReasonContradiction, "the key %s is repeated", fieldNames[f])
		}
		*seen |= 1 << f
		if err := d.value(f); err != nil {
			return fmt.Errorf("%s: %w", fieldNames[f], err)
		}
		if *seen == l.varying && d.repeats(ending{fields: n - i - 1, start: d.off}) {
			return nil
		}
	}
	return nil
}

// repeats reads the ending that begins here if it is the latest of the kind.
func (d *decoder) repeats(here ending) bool {
	last := &d.endings[d.e.Kind]
	if last.start == 0 || last.fields != here.fields ||
		!bytes.HasPrefix(d.data[d.off:], d.data[last.start:last.end]) {
		d.ending = here
		return false
	}
	d.off += last.end - last.start
	e, like := d.e, &d.b.events[last.event]
	e.BlockSize, e.Adapter, e.Salt, e.Medium = like.BlockSize, like.Adapter, like.Salt, like.Medium
	e.Group, e.GroupKind, e.Window = like.Group, like.GroupKind, like.Window
	e.Locality, e.Ownership, e.Reused = like.Locality, like.Ownership, like.Reused
	e.HasExtra, d.entries = like.HasExtra, last.entries
	return true
}

// remember keeps the ending that has been read, if other events can have it
// too: what lies in slices is each event's own.
func (d *decoder) remember() {
	if d.ending.start == 0 || d.e.Extra != nil || d.e.Remaining != nil {
		return
	}
	d.ending.end, d.ending.event, d.ending.entries = d.off, len(d.b.events)-1, d.entries
	d.endings[d.e.Kind] = d.ending
}

func (d *decoder) key() (field, error) {
	key, err := d.str()
	if err != nil {
		return 0, fmt.Errorf("key: %w", err)
	}
	f := fieldOf(key)
	if f == fieldUnknown && !utf8.Valid(key) {
		return 0, fmt.Errorf("key: %w", errUTF8)
	}
	return f, nil
}

// kind reads the name of a kind: 0 if it is not known.
func (d *decoder) kind() (Kind, error) {
	name, err := d.str()
	if err != nil {
		return 0, fmt.Errorf("kind: %w", err)
	}
	switch string(name) {
	case "BlockStored":
		return Stored, nil
	case "BlockRemoved":
		return Removed, nil
	case "AllBlocksCleared":
		return Cleared, nil
	}
	if !utf8.Valid(name) {
		return 0, fmt.Errorf("kind: %w", errUTF8)
	}
	return 0, nil
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

// value reads the value of a field into the event. For all of them but the
// hashes nil is the same as not to be there.
func (d *decoder) value(f field) (err error) {
	if f != fieldHashes && d.isNil() {
		return nil
	}
	e := d.e
	switch f {
	case fieldHashes:
		e.Hashes, err = d.blockHashes()
	case fieldParent:
		e.HasParent = true
		e.Parent, err = d.hash()
	case fieldTokens:
		err = d.tokenIDs()
	case fieldBlockSize:
		e.BlockSize, err = d.size(maxBlockSize)
	case fieldLoraID:
		err = d.adapterID()
	case fieldMedium:
		e.Medium, err = d.text()
	case fieldLoraName:
		e.Adapter, err = d.text()
	case fieldNameOrMap:
		err = d.nameOrMap()
	case fieldExtraKeys:
		err = d.extraKeys()
	case fieldGroup:
		e.Group, err = d.size(maxGroup)
	case fieldGroupKind:
		e.GroupKind, err = d.text()
	case fieldWindow:
		e.Window, err = d.size(maxWindow)
	case fieldLocality:
		e.Locality, err = d.text()
	case fieldOwnership:
		e.Ownership, err = d.text()
	case fieldOrigin:
		e.Reused, err = d.reused()
	case fieldRemaining:
		e.Remaining, err = d.remaining()
	case fieldCacheSalt:
		e.Salt, err = d.text()
	case fieldComponent:
		err = d.component()
	case fieldComponents:
		d.aside = true
		err = d.skip()
	case fieldType:
		err = d.skip() // findType has read it
	}
	return err
}

// end checks what only the whole event can tell.
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
			return faultf(ReasonContradiction, "extra_keys: %d entries for %d hashes", d.entries, len(e.Hashes))
		}
		return e.checkBlocks()
	case Removed:
		if len(e.Remaining) != len(e.Hashes) {
			e.Remaining = nil
		}
	}
	return nil
}

func (d *decoder) blockHashes() ([]uint64, error) {
	n, err := d.array()
	if err != nil {
		return nil, err
	}
	start := len(d.b.hashes)
	if err := limit(start+n, maxHashes, "hashes"); err != nil {
		return nil, err
	}
	d.b.hashes = grow(d.b.hashes, n, start+d.left())[:start+n]
	if i, err := d.hashes(d.b.hashes[start:]); err != nil {
		return nil, fmt.Errorf("hash %d: %w", i, err)
	}
	return tail(d.b.hashes, start), nil
}

func (d *decoder) tokenIDs() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	// The first one decides whether these are pairs, so that a mixture fails
	// at the first of the other form.
	width := 1
	if d.e.Pairs = n > 0 && d.atArray(); d.e.Pairs {
		width = 2
	}
	start := len(d.b.tokens)
	if err := limit(start+n*width, maxTokens, "tokens"); err != nil {
		return err
	}
	d.b.tokens = grow(d.b.tokens, n*width, start+d.left())[:start+n*width]
	dst := d.b.tokens[start:]
	if d.e.Pairs {
		err = d.tokenPairs(dst)
	} else if i, bad := d.tokens(dst); bad != nil {
		err = fmt.Errorf("token %d: %w", i, bad)
	}
	d.e.Tokens = tail(d.b.tokens, start)
	return err
}

func (d *decoder) tokenPairs(dst []uint32) error {
	for i := 0; i < len(dst); i += 2 {
		n, err := d.array()
		if err == nil && n != 2 {
			err = faultf(ReasonType, "%d tokens are not a pair", n)
		}
		if err == nil {
			_, err = d.tokens(dst[i : i+2])
		}
		if err != nil {
			return fmt.Errorf("pair %d: %w", i/2, err)
		}
	}
	return nil
}

// size reads a number from 0 to most.
func (d *decoder) size(most uint64) (int, error) {
	f, n, err := d.next()
	if err != nil {
		return 0, err
	}
	if f != formInt || n > most {
		return 0, faultf(ReasonType, "%s is not a number from 0 to %d", describe(f, n), most)
	}
	return int(n), nil
}

// text reads a string.
func (d *decoder) text() (string, error) {
	raw, err := d.str()
	if err != nil {
		return "", err
	}
	return d.b.text(raw)
}

func (d *decoder) adapterID() error {
	f, n, err := d.next()
	if err != nil {
		return err
	}
	if f != formInt && f != formNegative {
		return faultf(ReasonType, "%s is not an id", describe(f, n))
	}
	d.loraID, d.lora = f, n
	return nil
}

// adapter names the adapter by its id.
func (d *decoder) adapter() string {
	var buf [20]byte
	digits := strconv.AppendUint(buf[:0], d.lora, 10)
	if d.loraID == formNegative {
		digits = strconv.AppendInt(buf[:0], int64(d.lora), 10)
	}
	s, _ := d.b.text(digits) // digits are UTF-8
	return s
}

func (d *decoder) extraKeys() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	d.e.HasExtra, d.entries = true, n
	start := len(d.b.extra)
	for block := range n {
		if d.isNil() {
			continue
		}
		if err := d.extraKeysOf(block); err != nil {
			return fmt.Errorf("entry %d: %w", block, err)
		}
	}
	d.e.Extra = tail(d.b.extra, start)
	return nil
}

func (d *decoder) extraKeysOf(block int) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	most := min(maxExtra, len(d.data)/minExtraBytes)
	if err := limit(len(d.b.extra)+n, most, "extra keys"); err != nil {
		return err
	}
	d.b.extra = grow(d.b.extra, n, most)
	for i := range n {
		key := ExtraKey{Block: block}
		if err := d.extraKey(&key); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
		d.b.extra = append(d.b.extra, key)
	}
	return nil
}

func (d *decoder) extraKey(key *ExtraKey) error {
	start := d.off
	f, n, err := d.next()
	if err != nil {
		return err
	}
	switch {
	case f == formStr:
		key.Kind = ExtraText
		key.Text, err = d.b.text(d.bytes(n))
		return err
	case isInt64(f, n):
		key.Kind, key.Int = ExtraInt, int64(n)
		return nil
	case f == formBin:
		key.Kind, key.Text = ExtraBytes, string(d.bytes(n))
		return nil
	case f == formArray && n == 2:
		if media, err := d.media(key); media {
			return err
		}
	}
	// The bytes of the item stand for it, because no two items have the same.
	d.off = start
	if err := d.skip(); err != nil {
		return err
	}
	key.Kind, key.Text = ExtraOpaque, string(d.data[start:d.off])
	return nil
}

// media reads the two items of a media key and reports whether they are that.
func (d *decoder) media(key *ExtraKey) (bool, error) {
	f, n, err := d.next()
	if err != nil || f != formStr {
		return false, nil
	}
	identifier := d.bytes(n)
	f, n, err = d.next()
	if err != nil || !isInt64(f, n) {
		return false, nil
	}
	key.Kind, key.Int = ExtraMedia, int64(n)
	key.Text, err = d.b.text(identifier)
	return true, err
}

// isInt64 reports whether an item is an integer that an int64 can hold.
func isInt64(f form, bits uint64) bool {
	return f == formNegative || f == formInt && bits <= math.MaxInt64
}

// reused reads an origin. It was proposed only, so it is skipped where it is
// not what was proposed.
func (d *decoder) reused() (bool, error) {
	start := d.off
	if origin, err := d.str(); err == nil {
		return string(origin) == "REUSED", nil
	}
	d.off = start
	return false, d.skip()
}

// remaining reads remaining_copy_counts. They were proposed only, so they are
// skipped where they are not what was proposed.
func (d *decoder) remaining() ([]uint32, error) {
	start, from := d.off, len(d.b.counts)
	f, n, err := d.next()
	if err == nil && f == formArray && from+int(n) <= maxHashes {
		d.b.counts = grow(d.b.counts, int(n), from+d.left())
		counts := d.b.counts[:from+int(n)]
		if _, err := d.tokens(counts[from:]); err == nil {
			d.b.counts = counts
			return tail(counts, from), nil
		}
	}
	d.off = start
	return nil, d.skip()
}

// limit refuses more than most things.
func limit(n, most int, things string) error {
	if n > most {
		return faultf(ReasonLimit, "more than %d %s", most, things)
	}
	return nil
}

// grow returns s with room for n more, where at most most can ever be needed.
// It doubles, but not beyond that, so that what one payload makes of s in all
// its steps is less than three times what it could need.
func grow[T any](s []T, n, most int) []T {
	need := len(s) + n
	if need <= cap(s) {
		return s
	}
	bigger := make([]T, len(s), max(need, min(2*cap(s), most)))
	copy(bigger, s)
	return bigger
}

// tail returns s[start:], nil if that is empty, so that the holder can neither
// reach what is appended to s later nor tell what s held before.
func tail[T any](s []T, start int) []T {
	if start == len(s) {
		return nil
	}
	return s[start:len(s):len(s)]
}
