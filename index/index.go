// Package index records the KV-cache blocks that each pod holds, by memory tier, and
// finds the prefix of a prompt that each pod holds.
//
// [Index] is the contract of every backend. [NewMemory] returns the backend that lives in
// the process. A new backend must pass the suite of package indextest.
//
// # Keys
//
// Tokens are hashed in units: runs of as many tokens as the greatest common divisor
// of the block size and 16. The key of a prefix is
//
//	Chain(... Chain(Chain(root, local 0), local 1) ..., local n-1)
//
// Local i is a seeded hash of the tokens of unit i alone. The root stands for everything
// that separates equal tokens: the model, the adapter, the cache salt, the variant. So one
// prefix has one key, whatever the block size, and equal keys mean equal prefixes. The
// keys of a+b are those of a, then those of b chained from the last key of a.
//
// Engines name prefixes in their own way, by a [Hash]. The backend maps the hashes of an
// engine to keys, and chains the keys itself.
//
// # Masked stores
//
// A masked store lists fewer hashes than its range has blocks, in the order of the
// range. A backend finds the blocks of a gpu store of a [GroupWindow] group whose Window
// is set, because such a group keeps runs of blocks:
//
//   - A run that ends where a block ends has the blocks that its last Window-1 tokens
//     touch.
//   - It ends at a boundary. A hash is a boundary if another group holds it in the gpu
//     tier, in blocks that are larger than those of the store. In a [Group] with Draft
//     the block behind a boundary is kept too.
//   - If the larger block is shorter than a run, the boundary may be in the middle of
//     a run. That run ends at the last placed hash that follows without a gap, if that
//     hash is a boundary. In a group with Draft it may be the block behind a boundary.
//   - A store lists all blocks of its runs. Only the first run may have begun before
//     the store.
//
// A hash of the store that has one key is placed. Other hashes follow from the placed
// ones, if no hash of the store has two keys and no two contradict the order:
//
//   - The hashes between two placed ones, if the store lists a hash for each block
//     between them.
//   - Else the hashes before a placed one, back to the beginning of its run. None follows
//     if there is a placed hash before them, and the store lists fewer than the run has.
//   - With Draft, the hash behind a boundary, if the store lists more hashes up to the
//     next placed one than the run of that has.
//   - With Draft, the first hash of a store that begins at a root or behind a boundary:
//     if it is one more than the run of the first placed hash has, or if it is the
//     only hash, and a run is longer than a block. But if the store begins so, and
//     the run may go on behind the store because its boundary is shorter than a run,
//     the first hash of the run does not follow.
//
// A hash that was removed since the store is not placed, and does not follow. A hash that
// follows before a placed hash has the prefix of that hash. A hash that follows behind a
// boundary, or where the store begins, is placed by the Locals of the store, unless
// [Change].UncertainLocals is set.
//
// # Reports
//
// An engine may announce again the blocks that a request finds in its cache
// ([CopiesGuarded]). Such a report is a gpu store without a parent in each group, in
// the order of their IDs. It lists all blocks from the first to the end of the hit. A full
// group holds them all. Another group holds some of them, and the last one unless it is
// [GroupChunked]. If the source has a [GroupMamba] group and parts of blocks, a hit may end
// inside a block. Then perhaps no group holds the last block of the report.
//
// A view is whole if [Change].Partial is not set, and the index forgot no block
// since the last OpClear that the engine may hold. A group has a block in view if its gpu
// tier holds the block, or hides it. A part of a block is a block that is smaller than the
// largest of its group. There are parts if a group had two sizes since the last OpClear.
//
// A guarded store without a parent counts if it is of parts of blocks, or masked and not of a
// full group. The rules for other stores:
//
//   - A store of a full group is taken for a report if all its blocks are in view, or the
//     view is not whole. No held block of such a store counts. If a hit may end
//     inside a block, a dense store is a report too if all its blocks but the last are in
//     view, and its last block is hidden if it was not in view. In a view that is not whole,
//     a hit may end inside a block if the source has a GroupMamba group, or the Apply a
//     store of one.
//   - A store of another group counts if the view is whole, and the latest store of a full
//     group without a parent in the same Apply was of a lower ID and not taken
//     for a report.
//   - It counts if the view is whole, and a full group that had a gpu store lacks the last
//     block in view, unless a hit may end inside a block.
//   - It counts if the view is whole, and its own group lacks the last block in view, unless
//     a store of the group was taken for a report since the last OpClear. This is not so for
//     GroupChunked, for a Window of 1, and for GroupMamba if a hit may end inside a block.
//   - Any other one is taken for a report. No held block of it counts, and the last
//     blocks become held: with GroupWindow those that the last Window-1 tokens touch; with
//     GroupMamba one, unless a hit may end inside a block; with GroupChunked those of the chunk
//     of Window tokens in which the store ends, if chunks do not cut blocks. Without
//     Locals, or without a Window that those need, none becomes held.
//
// A block that a full group's store hid in this way comes back at a masked store of another
// group without a parent, if both are of the same Variant, Root and Locals, no other store of
// a full group without a parent is between them in the Apply, and [Change].UncertainLocals
// is not set in the masked one.
package index

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Key identifies a prefix, with its tokens and its scope.
type Key uint64

// Local is the seeded hash of the tokens (and media) of one unit. The tokens before the
// unit do not change it.
type Local uint64

// Hash is the name that an engine gives to a prefix. It means something only
// together with its [Source], whose groups and tiers share the names.
type Hash uint64

// Chain extends the prefix key prev by one unit. It is one step of the chain
// rule of the package comment; prev is a root at the beginning of a chain.
//
// It is a bijection of either argument: different locals give different keys from one
// prev, and different prevs give different keys for one local.
func Chain(prev Key, l Local) Key {
	// The second factor is odd, so different prevs give different products. Of two locals,
	// the lowest bit that differs is also the lowest in which the products do: the first
	// factors differ in it, and the second ones above it only.
	const a, b = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9
	return Key(bits.RotateLeft64((uint64(prev)+(uint64(l)^a))*(2*uint64(l)+b), 32))
}

// Tier is where a copy of a block lies. Lower values are faster.
type Tier uint8

// The tiers. TierOther is any medium that is none of the others.
const (
	TierGPU Tier = iota
	TierCPU
	TierDisk
	TierRemote
	TierOther

	// NumTiers is the number of tiers.
	NumTiers = iota
)

// Source is one cache: the cache of one model in one data-parallel rank of one
// pod. Sources share nothing, not even engine hashes.
type Source struct {
	Pod   string
	Model string
	Rank  int
}

// Cursor is the position up to which a stream of a source was applied. Cursors of
// one stream are ordered by Epoch, then Next. The zero Cursor belongs to no
// stream and is never checked.
type Cursor struct {
	Stream string
	Epoch  uint64 // raised when the engine restarts
	Next   uint64 // the next sequence number
	// Time is the engine's clock in seconds, and Digest the xxh3 hash of the payload of
	// message Next-1; 0: not set. A backend stores both and interprets neither. They are
	// for the reader who goes on from the stored cursor.
	Time   float64
	Digest uint64
}

// Before reports whether c stands before d, both of one stream.
func (c Cursor) Before(d Cursor) bool {
	return c.Epoch < d.Epoch || c.Epoch == d.Epoch && c.Next < d.Next
}

// GroupKind is how a KV-cache group uses its blocks.
type GroupKind uint8

// The kinds of groups. GroupFull, the zero value, is what an engine without
// groups has: every block of a prefix is needed and kept.
const (
	GroupFull   GroupKind = iota
	GroupWindow           // sliding window
	GroupMamba
	GroupChunked // chunked local attention
	GroupOther   // any other kind: the library does not judge its blocks
)

// Group is a KV-cache group of a hybrid model. Each group has blocks of its
// own. Only ID identifies it. Any store announces its group, also a store without hashes.
// The other fields are those of the first gpu store since the last clear, or, before that
// store, those of a lower tier's store.
type Group struct {
	ID     int
	Kind   GroupKind
	Window int // tokens, of GroupWindow and GroupChunked; 0: not set
	// Draft: the engine drops the last block of each hit in this group, because
	// draft layers (EAGLE, MTP) compute it again. Such a group keeps one block more.
	Draft bool
}

// Copies is how a backend counts the gpu stores of a source. Lower tiers are
// always sets.
type Copies uint8

const (
	// CopiesGuarded counts one copy a store, but no store that may be a report. It never
	// claims a block that has gone, whatever reports are mixed in. The package comment
	// has the rules.
	CopiesGuarded Copies = iota + 1
	// CopiesExact counts every store. It is right if each store stands for a
	// physical copy, and a removal of that copy will follow.
	CopiesExact
	// CopiesSet counts nothing: the first removal takes the block.
	CopiesSet
)

// Variant is a way of cutting prompts into units. Chains of different variants
// never meet, because the variant is part of the root. A backend compares
// variants, and interprets only Unit.
type Variant struct {
	Unit int // tokens
	// Media is how the media of a prompt enter its units, by a number below 3.
	Media uint8
	// Block is the block size in tokens where media enter by blocks; else 0.
	Block int
	// Pairs: the engine caches EAGLE's pairs of neighbouring tokens, one fewer than
	// tokens. Then Unit and block sizes count pairs.
	Pairs bool
}

// Op is the operation of a Change.
type Op uint8

// The operations.
const (
	OpStore Op = iota + 1
	OpRemove
	OpClear     // drops all blocks of the source, in every tier and group, but no cursor
	OpClearTier // drops all blocks of the source in Tier, in every group
	// OpAge begins a new generation of Tier, of a lower tier of the source, in every group.
	// Blocks that were stored neither in the new generation nor in the two before it are
	// dropped. A store of a block that is held is a store of it, a report too.
	OpAge
)

// Change is one event, hashed. Op decides which fields count: OpClear has
// none, OpClearTier and OpAge have Tier, OpRemove has Tier, Group.ID, Hashes and
// Remaining, OpStore has all but Remaining.
type Change struct {
	Op    Op
	Tier  Tier
	Group Group
	// Copies matters in the gpu tier only.
	Copies Copies
	// Partial, with CopiesGuarded: the index never received a part of the source's
	// history. Then a report may name blocks that are not in view, so nearly no store
	// without a parent counts a block that is held: see the package comment.
	Partial bool

	// Hashes name the blocks. A store whose Locals cover more blocks than it
	// has Hashes is masked: it keeps only some blocks of its range, and does not
	// identify them. Its Hashes are in the order of the range. A hash of it is
	// placed once another store names it, or it follows from hashes that are
	// placed (see the package comment).
	Hashes []Hash

	// Variant, BlockSize (tokens) and Locals describe the whole range of a
	// store. Without Locals a store has hashes alone: each block is in rows once
	// another store names it, with the block size of its group. That is the largest
	// BlockSize of the group's gpu stores so far; a larger one does not change the
	// blocks before it. A gpu store with a smaller BlockSize is of a part of a block:
	// it counts at its own end, in a row of its size, until it is removed. So does a hash
	// alone in a lower tier that has one key in the Variant of the largest blocks, if that
	// ends inside a block and is whole blocks of the smallest such size. A store with
	// Locals in a lower tier is one chunk: one block of the length of the range, held
	// under the last hash once a gpu store names that. With a smaller BlockSize than the
	// largest of the group it ends inside a block, and is held as a block of BlockSize.
	Variant   Variant
	BlockSize int
	Locals    []Local

	// A store with Locals continues the prefix with the hash Parent if HasParent is
	// true, else it begins a chain at Root. Without Locals, HasParent and Parent still
	// count for the rules of Copies.
	HasParent bool
	Parent    Hash
	Root      Key

	// UncertainLocals: the Locals of a masked store, or of a lower tier's, may be wrong, because
	// the event does not assign its media to blocks. Then the backend places nothing by them.
	UncertainLocals bool

	// Reused marks a store that announces again what is there: it never
	// counts a copy.
	Reused bool
	// Unique marks a store in a lower tier of a source that never announces there what it
	// holds. If the group holds a block of it already, which no earlier change of the Apply
	// removes or clears, the tier was emptied unseen: all that it held before the Apply is
	// dropped first, and counts as Cleared.
	Unique bool
	// Remaining, if not nil, has for each removed hash the number of copies
	// that are left.
	Remaining []uint32
}

// Blocks is the number of blocks in the range of a store.
func (c *Change) Blocks() int {
	if c.BlockSize <= 0 {
		return 0
	}
	return len(c.Locals) * c.Variant.Unit / c.BlockSize
}

// Counts are the effects of changes. Every undercount that a backend detects is in
// one of these counters. All fields are uint64.
type Counts struct {
	Stored   uint64 // hashes stored, copies and reports included
	Removed  uint64 // hashes removed
	Cleared  uint64 // clears
	Reports  uint64 // hashes of stores that were not counted, because they may be reports
	Restored uint64 // blocks whose presence a child proved after they were forgotten

	Parked    uint64 // stores with an unknown parent, kept until it is named
	Joined    uint64 // parked stores whose parent was named
	Dropped   uint64 // stores given up: at a bound, or as children of a hash that names two prefixes
	Forgotten uint64 // names of blocks that nobody holds, given up at a bound

	Ambiguous     uint64 // stores that gave a held hash another key, or a key more hashes than a backend keeps
	UnknownRemove uint64 // removals of blocks that were not held

	Aged uint64 // blocks that OpAge dropped; once for each group
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	sum, more := c.words(), d.words()
	for i := range sum {
		sum[i] += more[i]
	}
}

// words are the counters one after the other.
func (c *Counts) words() *[unsafe.Sizeof(Counts{}) / 8]uint64 {
	return (*[unsafe.Sizeof(Counts{}) / 8]uint64)(unsafe.Pointer(c))
}

// Effect is the outcome of an Apply.
type Effect struct {
	// Duplicate: the cursor was at or below the stored one, so Apply did nothing.
	Duplicate bool
	Counts    Counts
	// Evicted is SourceInfo.Evicted after the call.
	Evicted uint64
}

// Candidates are the pods of a query, for one model. A backend resolves their names once
// and stores the result in them, so make them once and use them for many queries. They
// are safe for concurrent use, and the names in them never change.
type Candidates struct {
	model string
	pods  []string
	memo  atomic.Pointer[any]
}

// NewCandidates returns candidates of the named pods. A pod must not be named twice. Nil
// stands for every pod that holds something for the model, an empty slice for none.
func NewCandidates(model string, pods []string) *Candidates {
	return &Candidates{model: model, pods: pods}
}

// Model returns the model.
func (c *Candidates) Model() string { return c.model }

// Pods returns the names that NewCandidates received.
func (c *Candidates) Pods() []string { return c.pods }

// Memo returns the value that SetMemo stored last, or nil. It may be of another
// backend.
func (c *Candidates) Memo() any {
	if p := c.memo.Load(); p != nil {
		return *p
	}
	return nil
}

// SetMemo stores what a backend resolved c to. It is for backends.
func (c *Candidates) SetMemo(v any) { c.memo.Store(&v) }

// Query is a request for the prefixes of one prompt that the sources of a model hold.
type Query struct {
	Candidates *Candidates
	// Keys returns the prefix keys of the prompt in a variant: element i is
	// the key after (i+1)*Unit tokens. A backend calls it at most once for
	// each variant in which a candidate has blocks, and keeps the slice for
	// the length of Match only. An error ends Match, which returns it without
	// rows. A backend holds no lock during the call, because keys take long and Keys
	// may call the index. The rows show the blocks that are held after the last call.
	Keys func(Variant) ([]Key, error)
	// Held requests Row.Held in all rows, also of sources of one full group.
	Held bool
	// Behind, with Held, is a number of leading tokens, or pairs, of the prompt that the
	// caller does not need. A block that ends there has its bits or none, and runs may
	// be missing. A source that holds nothing behind them has its rows or none.
	Behind int
}

// Matches is the answer to a Query. Its zero value is ready to use. It keeps its memory
// for the next Match. It is for one goroutine at a time.
type Matches struct {
	Rows []Row
	// Memo is reusable memory of the backend that filled m last. It may be of another
	// backend.
	Memo any
	// Degraded is the reason why there are no rows, if the index failed and its user
	// chose to go on without it; nil: the rows are the answer.
	Degraded error

	bits []uint64
}

// Reset empties m.
func (m *Matches) Reset() {
	m.Rows, m.Degraded = m.Rows[:0], nil
	m.bits = m.bits[:0]
}

// Bits returns a zeroed bit set of n bits that lives as long as the answer.
func (m *Matches) Bits(n int) []uint64 {
	at := m.more((n + 63) / 64) // rows keep an array alive that became too small
	return m.bits[at:len(m.bits):len(m.bits)]
}

// more makes room for n zeroed words of bits, and returns where they begin.
func (m *Matches) more(n int) (at int) {
	at = len(m.bits)
	m.bits = slices.Grow(m.bits, n)[:at+n]
	clear(m.bits[at:])
	return at
}

// View identifies the blocks of a row: those of one group of one source, in one size. A
// View never changes. A row of a later answer may have another View.
type View struct {
	Source    Source
	Group     Group
	BlockSize int // tokens, or pairs
	// Pairs is that of the blocks' Variant.
	Pairs bool
	*Layout
}

// Layout is the groups that a source has announced since its last OpClear, also
// those that hold nothing. A Layout never changes. All rows of a source in one
// answer share it. NewMemory returns the same pointer in later answers until a store
// changes a group, so a caller can cache results by the pointer.
type Layout struct {
	Groups []GroupLayout // by ID
}

// GroupLayout is a group and the sizes of its gpu blocks, in tokens or pairs.
type GroupLayout struct {
	Group
	// BlockSize is the largest BlockSize of the gpu stores with Locals, and Grain the
	// smallest. They differ if the engine also caches parts of a block. Both are 0 if
	// there was no such store.
	BlockSize, Grain int
}

// Row is the blocks of a prompt that one group of one source holds, in one size. A block
// counts if it ends where a block of the prompt does.
type Row struct {
	*View
	// Pod is the position of the pod among the candidates, -1 if those were
	// not named.
	Pod int32

	// Run is the number of leading blocks that are held, in any tier.
	Run int32
	// GPU is the number of leading blocks that are held in the gpu tier.
	GPU int32
	// Tiers splits Run: the blocks of the run by their best tier.
	Tiers [NumTiers]int32
	// Evicted: the backend gave up blocks of the row's group and size at a bound since the
	// last OpClear, so the source may hold more than the row shows. It stays true after
	// the blocks were stored again.
	Evicted bool
	// Stale: the row was true and may not be any more, because the writer of the source is
	// away, or cannot reach the index. NewMemory returns no such rows.
	Stale bool
	// Held has the tiers of each block of the whole prompt, also beyond the run: bit
	// b%64 of word b/64 of a tier stands for block b, in blocks of the row's size. There
	// is a word for each 64 blocks of the prompt, and one for the rest; an unfinished
	// block has no bit. A tier without a block is nil. Held is nil in the rows of a
	// source whose only group is GroupFull, unless Query.Held is true.
	Held *[NumTiers][]uint64
}

// ErrFull is wrapped by the error about a source for which a backend has no room, because
// others need all the memory that it may use.
var ErrFull = errors.New("index: full")

// ErrClosed is returned by every method of a closed backend.
var ErrClosed = errors.New("index: closed")

// Index keeps blocks and their holders. A holder is a source, a tier and a group. A
// block is a prefix key and a block size. A backend makes these promises, which package
// indextest checks:
//
//   - Never over. A row claims a block only if its source held it at some
//     moment between call and return; with no concurrent Apply of the source,
//     rows are exact, but for the undercounts in [Counts]. Holes are exact: a source
//     without block 7 has a run of 7, whatever follows. During an Apply two blocks of an
//     answer may be of two moments.
//   - All holders. There is no limit on how many sources share a block.
//   - Order. Changes of one Apply are applied in order.
//   - Copies. A gpu block is held until each counted copy was removed, by the
//     rules of [Copies]. Lower tiers are sets. With CopiesGuarded, a block that was
//     forgotten although a store of it was not counted comes back when a later gpu store
//     of a full group names it as its parent, or when a store without a parent reports it
//     again. With a parent come its ancestors, up to one that was counted and has gone,
//     or one whose hash is not certain: two hashes of its prefix were hidden at one time,
//     or a hidden one was forgotten since the last OpClear. A backend may bound the number
//     of ancestors. A clear of the gpu ends that. Once a backend forgot a block that may
//     be there, at a bound or by an ambiguous removal, stores count until the next OpClear
//     as with [Change.Partial].
//   - Ages. A block of a lower tier is of the generation in which it was stored last
//     (OpAge). It stays as it was cut when it was stored again.
//   - Names. All groups and tiers of a source share the names of its hashes. A backend
//     keeps a name while any group of the source holds the block, and after that within
//     a bounded budget, which drops the oldest first. Only gpu stores give names: the
//     events of a lower tier leave out salts and media. One of parts of a block with a
//     parent (a BlockSize smaller than the largest of its group) names its hashes that have
//     no key in the Variant, unless UncertainLocals is set. A hash names one prefix in each
//     variant. One prefix may have several hashes: it is held as long as one of them is.
//   - Ambiguity. A held hash to which a second store gives another key of the
//     same variant names both, but not a third. Its removal removes both. A store that
//     names it as its parent is never placed. A hash that nobody holds can be used again:
//     the next key replaces the old one.
//   - Masked stores. A backend places the hashes of a masked store that follow, by the
//     rules of the package comment: at once, if each of its hashes is placed or follows.
//     Else it places them after all changes of the Apply that brings the store, and of
//     each later Apply that places a hash of it or its parent. The other hashes are
//     held, and wait within the bound of parked stores.
//   - Missing parents. A store whose parent has no name is parked within a
//     bound, and placed when the parent is named. Removals apply to it
//     meanwhile. A hash of it that was removed stands for the block that a later store
//     gave it, if there was one.
//   - Scopes. Sources share nothing. A chain inherits its root from its
//     parent.
//   - Bounds. A backend may forget blocks at a bound of its own, on bytes or another
//     count, of any source and at any moment. Nobody holds a forgotten block: no row
//     claims it, not even when the engine still removes it, stores a child of it, or
//     names it in a lower tier. The source reports that until its next OpClear: by
//     [Row.Evicted] at once, by [SourceInfo.Evicted] at the latest when one of its
//     changes names the block. [NewMemory] forgets the blocks that were not used for the
//     longest time, and leaves no hole.
//
// A forgotten block has these effects on the other rules:
//
//   - A removal of it is an UnknownRemove. Another store of it is of its first copy.
//   - Its hash has no name any more. A store that continues it is parked or dropped,
//     and counted as that. It is placed only behind a block that has that name again.
//   - A lower tier's store of its hash, and a masked store, wait for a name too.
//   - From then on the view of the source is not whole (see Reports in the package
//     comment), until an OpClear: no store without a parent counts a block that is
//     held. Such a store, or a report of all blocks of the engine, brings back the
//     blocks that it names.
//   - If it was hidden, it does not come back.
//   - OpClear, OpClearTier, OpAge and Remove take the rest. After an OpClear the source is
//     as if nothing was forgotten, but for names.
//   - Cursors are never forgotten. An Apply without room drops stores, and counts them.
//     A source for which there is no room is an error that wraps ErrFull, and nothing
//     changes.
//
// All methods are safe for concurrent use. Those with a context return its error,
// and do nothing, if it has ended when they are called.
type Index interface {
	// Seed returns the seed of the locals and roots of this index. It is not
	// zero and never changes.
	Seed() [16]byte

	// Apply carries out changes of one source in order and stores the cursor
	// with them: both or, on an error, neither. A change that is not valid is
	// an error that wraps ErrInvalid. A cursor at or below the stored one of
	// its stream makes the call a no-op: the stored one stays, whatever its Time and
	// Digest are. A concurrent Match may see a part of the changes. Apply keeps none of
	// the slices.
	Apply(ctx context.Context, src Source, cur Cursor, changes []Change) (Effect, error)

	// Cursor returns the cursor of a stream of a source that Apply stored, or the zero
	// Cursor if there is none. It changes nothing.
	Cursor(ctx context.Context, src Source, stream string) (Cursor, error)

	// Match resets m and fills it with one row for each source, group, variant and block
	// size that holds something of the prompt. A query without Candidates is an error
	// that wraps ErrInvalid.
	//
	// A source whose only group is GroupFull has a row if it holds the first
	// block, and the row has no bits (Row.Held). Every other source has a row if
	// it holds any block, and all its rows have bits; so have all sources with
	// Query.Held. Parts of a block, and chunks of a lower tier, are blocks of
	// another size, so they have rows of their own. The rows of a source that
	// have bits stand next to each other. There is no other order.
	Match(ctx context.Context, q *Query, m *Matches) error

	// Remove forgets a pod: its blocks, names and cursors, for all models and
	// ranks. A pod that is not there is no error.
	Remove(ctx context.Context, pod string) error

	// Close releases the memory of the index. Close returns nil. Later calls of any other
	// method but Seed return ErrClosed.
	Close() error
}

// SourceInfo describes a source for people and metrics.
type SourceInfo struct {
	Source   Source
	Blocks   [NumTiers]int // hashes held, by tier; once for each group
	Parked   int           // stores that wait for their parent
	Unplaced int           // hashes held without a prefix, those of Parked too
	// Evicted is how many blocks, counted as in Blocks, the index gave up since the last
	// OpClear because it had no room for them. Rows may lack a block before Evicted counts
	// it: the index counts it when it visits the name.
	Evicted uint64
}

// Describer is an optional ability of an Index: it describes its contents, for people and
// metrics.
type Describer interface {
	// Describe appends a SourceInfo for each source to dst.
	Describe(dst []SourceInfo) []SourceInfo
	// DescribeSource is Describe for one source; false: there is no such source.
	DescribeSource(src Source) (info SourceInfo, ok bool)
	// MemoryUsage returns the contents of the index in numbers, and its bytes.
	MemoryUsage() MemoryUsage
}

// SourceRemover is an optional ability of an Index.
type SourceRemover interface {
	// RemoveSource forgets one source: its blocks, names and cursors. Removing a source
	// that does not exist is no error.
	RemoveSource(ctx context.Context, src Source) error
}
