// Package index keeps which pod holds which KV-cache block in which memory
// tier, and answers how long a prefix of a prompt each pod holds.
//
// [Index] is the contract that every backend keeps; [NewMemory] returns the one that
// lives in the process. A new backend must pass the suite of package
// indextest.
//
// # Keys
//
// Tokens are hashed in units: runs of as many tokens as the greatest common divisor
// of the block size and 16. The key of a prefix is
//
//	Chain(... Chain(Chain(root, local 0), local 1) ..., local n-1)
//
// where local i is a seeded hash of the tokens of unit i alone and the root
// stands for everything that separates equal tokens: the model, the adapter,
// the cache salt, the variant. So one prefix has one key, whatever the blocks
// that cut it, equal keys mean equal prefixes, and the keys of a+b are those
// of a followed by those of b chained from the last key of a.
//
// Engines name prefixes in their own way, by a [Hash]. The backend owns the
// map from an engine's hashes to keys and chains the keys itself.
//
// # Masked stores
//
// A masked store lists fewer hashes than its range has blocks, in the order of the
// range. Which blocks they are can be worked out for a gpu store of a [GroupWindow]
// group whose Window is known, because such a group keeps runs of blocks:
//
//   - A run has the blocks that the last Window-1 tokens before its end touch, if it
//     ends where a block does.
//   - It ends at a boundary. A hash is a boundary if another group holds it in the gpu
//     tier, in blocks that are larger than those of the store. In a [Group] with Draft
//     the block behind a boundary is kept too.
//   - If the larger block is shorter than a run, the boundary may be in the middle of
//     one. That run ends at the last known hash that follows without a gap, if it is a
//     boundary. In a group with Draft it may be the block behind one.
//   - A store lists all blocks of its runs. Only the first run may have begun before
//     the store.
//
// A hash of the store that has one key is known. From the known hashes follow others,
// if no hash of the store has two keys and no two contradict the order:
//
//   - The hashes between two known ones, if as many are listed as there are blocks.
//   - Else the hashes before a known one, back to the beginning of its run. If there
//     is a known one before them, and fewer are listed than the run has, none follows.
//   - With Draft, the hash behind a boundary, if more are listed up to the next known
//     one than the run of that has.
//   - With Draft, the first hash of a store that begins at a root or behind a boundary,
//     if it is one more than the run of the first known hash has; or if it is the
//     only hash, and a run is longer than a block. But if the store begins so, and
//     the run may go on behind the store because its boundary is shorter than a run,
//     the first hash of the run does not follow.
//
// A hash that was removed since the store is not known, and does not follow. What
// follows before a known hash has the prefix of that one. What follows behind a
// boundary, or where the store begins, is placed by the Locals of the store, unless
// they are [Change].Untold.
//
// # Reports
//
// An engine may announce again the blocks that a request finds in its cache
// ([CopiesGuarded]). Such a report is a gpu store without a parent in each group, in
// the order of their IDs. It lists all blocks from the first to the end of the hit. A full
// group holds them; another group holds some of them, and the last one unless it is
// [GroupChunked]. If the source has a [GroupMamba] group and parts of blocks, a hit may end
// inside a block. Then the last block of the report need not be held by any group.
//
// A view is whole if the change is not [Change].Partial, and since the last OpClear no block
// was forgotten that may be there. A block is known to a group if the gpu tier of the group
// holds it, or it is hidden there. A part of a block is one that is smaller than the largest
// of its group. There are parts if a group has had two sizes since the last OpClear.
//
// A guarded store without a parent counts if it is of parts of blocks, or masked and not of a
// full group. Of the others:
//
//   - A store of a full group is taken for a report if all blocks are known, or the view is
//     not whole. Of such a store no block counts that is held. If a hit may end inside a block
//     and the store is dense, so is one of which all blocks but the last are known, and the
//     last block is hidden if it was not known. In a view that is not whole, a hit may end
//     inside a block if the source has a GroupMamba group, or the Apply a store of one.
//   - A store of another group counts if the view is whole, and the latest store of a full
//     group without a parent in the same Apply was of a lower ID and not taken
//     for a report.
//   - It counts if the view is whole, and a full group that has had a gpu store does not know
//     the last block, unless a hit may end inside a block.
//   - It counts if the view is whole, and its own group does not know the last block, unless a
//     store of the group was taken for a report since the last OpClear. This is not so for
//     GroupChunked, for a Window of 1, and for GroupMamba if a hit may end inside a block.
//   - Any other one is taken for a report. Of it no block counts that is held, and the last
//     blocks become held: with GroupWindow those that the last Window-1 tokens touch; with
//     GroupMamba one, unless a hit may end inside a block; with GroupChunked those of the chunk
//     of Window tokens in which the store ends, if blocks are not cut by chunks. Without
//     Locals, or without a Window that those need, none becomes held.
//
// A block that a full group's store hid in this way comes back at a masked store of another
// group without a parent, if both are of the same Variant, Root and Locals, no other store of
// a full group without a parent is between them in the Apply, and the masked one is not
// [Change].Untold.
package index

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Key identifies a prefix: its tokens and its scope.
type Key uint64

// Local is the seeded hash of the tokens (and media) of one unit, whatever
// comes before it.
type Local uint64

// Hash is the name that an engine gives to a prefix. It means something only
// together with its [Source], whose groups and tiers share the names.
type Hash uint64

// Chain extends the prefix key prev by one unit. It is one step of the chain
// rule of the package comment; prev is a root at the beginning of a chain.
//
// It is a bijection of either argument: from one prev, different locals give different
// keys, and by one local different prevs do.
func Chain(prev Key, l Local) Key {
	// The second factor is odd, so different prevs give different products. Of two locals,
	// the lowest bit that differs is also the lowest in which the products do: the first
	// factors differ in it, and the second ones above it only.
	const a, b = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9
	return Key(bits.RotateLeft64((uint64(prev)+(uint64(l)^a))*(2*uint64(l)+b), 32))
}

// Tier is where a copy of a block lies. Lower values are faster.
type Tier uint8

// The tiers. A name that no engine is known to use is TierOther.
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

// Cursor says up to where a stream of a source has been applied. Cursors of
// one stream are ordered by Epoch, then Next. The zero Cursor belongs to no
// stream and is never checked.
type Cursor struct {
	Stream string
	Epoch  uint64 // raised when the engine restarts
	Next   uint64 // the sequence number that is expected next
	// Time is how far the engine's clock had come, in seconds; 0: not known. Digest
	// is that of message Next-1 (the xxh3 hash of its payload); 0: not known. A backend keeps both
	// as they are, and looks at neither: they are for whoever goes on from the
	// stored cursor.
	Time   float64
	Digest uint64
}

// Before reports whether c stands before d, both of one stream.
func (c Cursor) Before(d Cursor) bool {
	return c.Epoch < d.Epoch || c.Epoch == d.Epoch && c.Next < d.Next
}

// GroupKind says how a KV-cache group uses its blocks.
type GroupKind uint8

// The kinds of groups. GroupFull, the zero value, is what an engine without
// groups has: every block of a prefix is needed and kept.
const (
	GroupFull   GroupKind = iota
	GroupWindow           // sliding window
	GroupMamba
	GroupChunked // chunked local attention
	GroupOther   // a kind that is not known: it is not judged
)

// Group is a KV-cache group of a hybrid model. Each group has blocks of its
// own. Only ID identifies it; what the first gpu store tells of it holds until
// a clear. Any store announces its group, one without hashes too; what a lower
// tier tells of it holds until the gpu does.
type Group struct {
	ID     int
	Kind   GroupKind
	Window int // tokens, of GroupWindow and GroupChunked; 0: not told
	// Draft: the engine drops the last block of each hit in this group, because
	// draft layers (EAGLE, MTP) compute it again. Such a group keeps one block more.
	Draft bool
}

// Copies says how the gpu stores of a source are counted. Lower tiers are
// always sets.
type Copies uint8

const (
	// CopiesGuarded counts one copy a store, but not what may be a report of what is
	// there. It never claims a block that has gone, whatever reports are mixed in. The
	// package comment has the rules.
	CopiesGuarded Copies = iota + 1
	// CopiesExact counts every store: right where each one stands for a
	// physical copy that a removal will follow.
	CopiesExact
	// CopiesSet counts nothing: the first removal takes the block.
	CopiesSet
)

// Variant is a way of cutting prompts into units. Chains of different variants
// never meet, because the variant is part of the root. A backend compares
// variants and looks at nothing but Unit.
type Variant struct {
	Unit int // tokens
	// Media is how the media of a prompt enter its units, by a number below 3.
	Media uint8
	// Block is the block size in tokens where media enter by blocks; else 0.
	Block int
	// Pairs: what the engine caches are EAGLE's pairs of neighbouring tokens,
	// one fewer than tokens. Then Unit and block sizes count pairs.
	Pairs bool
}

// Op is what a Change does.
type Op uint8

// The operations.
const (
	OpStore Op = iota + 1
	OpRemove
	OpClear     // drops all that the source holds, in every tier and group, but no cursor
	OpClearTier // drops all that the source holds in Tier, in every group
)

// Change is one event, hashed. Which fields count depends on Op: OpClear has
// none, OpClearTier has Tier, OpRemove has Tier, Group.ID, Hashes and
// Remaining, OpStore has all but Remaining.
type Change struct {
	Op    Op
	Tier  Tier
	Group Group
	// Copies matters in the gpu tier only.
	Copies Copies
	// Partial, with CopiesGuarded: a part of the source's history was never
	// seen. There a report may name blocks beside the known ones, so nearly no store
	// without a parent counts a block that is held: see the package comment.
	Partial bool

	// Hashes name the blocks. A store whose Locals cover more blocks than it
	// has Hashes is masked: it keeps only some blocks of its range and does
	// not say which. Its Hashes are in the order of the range. A hash of it is
	// placed once another store names it, or it follows from hashes that are
	// named (see Index).
	Hashes []Hash

	// Variant, BlockSize (tokens) and Locals describe the whole range of a
	// store. Without Locals the store is known by its hashes alone: each is
	// held once another store names it, with the block size of its group. That
	// is the largest that a gpu store has told; a larger one that is told later
	// does not change the blocks of before. A gpu store with a smaller BlockSize
	// is of a part of a block: it counts at its own end, in a row of its size,
	// until it is removed. A store with Locals in a lower tier
	// is one chunk: one block of the length of the range, held under the last
	// hash once a gpu store names that.
	Variant   Variant
	BlockSize int
	Locals    []Local

	// A store with Locals continues the prefix that the engine calls Parent
	// if HasParent, else it begins a chain at Root. Without Locals, HasParent
	// and Parent still count for the rules of Copies.
	HasParent bool
	Parent    Hash
	Root      Key

	// Untold: the Locals of a masked store may be wrong, because it does not tell
	// which of its blocks have which media. Then nothing is placed by them.
	Untold bool

	// Reused marks a store that announces again what is there: it never
	// counts a copy.
	Reused bool
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

// Counts says what changes did, beyond what was asked for. Every undercount
// that a backend knows of is one of these. All fields are uint64.
type Counts struct {
	Stored   uint64 // hashes stored, copies and reports included
	Removed  uint64 // hashes removed
	Cleared  uint64 // clears
	Reports  uint64 // hashes of stores that were not counted, because they may be reports
	Restored uint64 // blocks whose presence a child proved after they were forgotten

	Parked    uint64 // stores with an unknown parent, kept until it is named
	Joined    uint64 // parked stores whose parent was named
	Dropped   uint64 // stores given up: at a bound, on what waits for a name or another, or as children of a hash that names two prefixes
	Forgotten uint64 // names of blocks that nobody holds, given up at a bound

	Ambiguous     uint64 // stores that gave a held hash another key, or a key more hashes than a backend keeps
	UnknownRemove uint64 // removals of blocks that were not held
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	sum, more := c.words(), d.words()
	for i := range sum {
		sum[i] += more[i]
	}
}

// words are the counters one after the other: all fields are one word, so that a
// new one has to be written nowhere else.
func (c *Counts) words() *[unsafe.Sizeof(Counts{}) / 8]uint64 {
	return (*[unsafe.Sizeof(Counts{}) / 8]uint64)(unsafe.Pointer(c))
}

// Applied is the outcome of an Apply.
type Applied struct {
	// Cursor is the stored one after the call.
	Cursor Cursor
	// Duplicate: the cursor was at or below the stored one, nothing was done.
	Duplicate bool
	Counts    Counts
	// Evicted is SourceInfo.Evicted after the call.
	Evicted uint64
}

// Candidates are the pods that a query asks about, of one model. A backend
// resolves their names once and notes in them what it found, so they are best
// made once and used for many queries. They are safe for concurrent use, and the
// names in them never change.
type Candidates struct {
	model string
	pods  []string
	memo  atomic.Pointer[any]
}

// NewCandidates returns the named pods, none twice. Nil: every pod that holds
// something for the model; empty: none.
func NewCandidates(model string, pods []string) *Candidates {
	return &Candidates{model: model, pods: pods}
}

// Model returns the model.
func (c *Candidates) Model() string { return c.model }

// Pods returns the names, as they were given.
func (c *Candidates) Pods() []string { return c.pods }

// Memo returns what was noted by SetMemo last; nil: nothing. It may be of another
// backend.
func (c *Candidates) Memo() any {
	if p := c.memo.Load(); p != nil {
		return *p
	}
	return nil
}

// SetMemo is for backends: it notes what one has found out about c.
func (c *Candidates) SetMemo(v any) { c.memo.Store(&v) }

// Query asks how long a prefix of one prompt the sources of a model hold.
type Query struct {
	Candidates *Candidates
	// Keys returns the prefix keys of the prompt in a variant: element i is
	// the key after (i+1)*Unit tokens. A backend calls it at most once for
	// each variant in which a candidate has blocks, and keeps the slice for
	// the length of Match only. An error ends Match, which returns it without
	// rows. A backend holds no lock meanwhile, because keys take long and Keys
	// may call the index; Match answers with what is held after the last call.
	Keys func(Variant) ([]Key, error)
	// Held asks for Row.Held in all rows, also of sources of one full group.
	Held bool
	// Behind, with Held, is how many leading tokens, or pairs, of the prompt are not asked
	// about. A block that ends there has its bits or none; runs are not told. A source
	// that holds nothing behind them has its rows or none.
	Behind int
}

// Matches is the answer to a Query. Its zero value is ready; a used one keeps
// its memory for the next Match. It is for one goroutine at a time.
type Matches struct {
	Rows []Row
	// Memo is memory of the backend that filled m last, to be used again. It may
	// be of another backend.
	Memo any
	// Degraded says why there are no rows, if the index could not be asked and its user has
	// chosen to go on without; nil: the rows are the answer.
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

// View is whose blocks a row speaks of: those of one group of one source, in
// one size. A View never changes; a row of a later answer may have another.
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
// answer share it. NewMemory's gives the same pointer in later answers until a store
// tells something new, so a caller can keep what follows from a Layout by its
// pointer.
type Layout struct {
	Groups     []GroupLayout // by ID
	FullGroups int           // how many of them are GroupFull
}

// GroupLayout is a group and the sizes of its gpu blocks, in tokens or pairs.
type GroupLayout struct {
	Group
	// BlockSize is the largest size that a gpu store with Locals has told, and
	// Grain the smallest. Grain is the smaller one where the engine also caches
	// parts of a block. Both are 0 if no store has told a size.
	BlockSize, Grain int
}

// Row is what one group of one source holds of a prompt, in blocks of one
// size. A block counts if it ends where a block of the prompt does.
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
	// Last is the best tier of the run's last block.
	Last Tier
	// Evicted: blocks of the row's group and size were given up at a bound of the
	// backend since the last OpClear, so the source may hold more than the row says. It
	// stays after the blocks were stored again.
	Evicted bool
	// Stale: what the row says was true, and may not be any more, because nobody has said so
	// for a while: whoever writes the source is away, or cannot reach the index. NewMemory's
	// has no such rows.
	Stale bool
	// Held says of each block of the whole prompt, beyond the run too, in which
	// tiers it is held: bit b%64 of word b/64 stands for block b, in blocks of
	// the row's size. There is a word for each 64 blocks of the prompt, and one
	// for the rest; an unfinished block has no bit. A tier without a block is
	// nil. Held is nil in the rows of a source of one group that is GroupFull,
	// unless Query.Held asked for it.
	Held *[NumTiers][]uint64
}

// ErrFull is wrapped by the error about a source for which there is no room, because
// what must be kept of others takes all memory that a backend may use.
var ErrFull = errors.New("index: full")

// ErrClosed is returned by every method of a closed backend.
var ErrClosed = errors.New("index: closed")

// Index keeps blocks and their holders. A holder is a source, a tier and a
// group; a block is a prefix key and a block size. What a backend promises, so
// that package indextest can check it:
//
//   - Never over. A row claims a block only if its source held it at some
//     moment between call and return; with no concurrent Apply of the source,
//     rows are exact, but for the undercounts that [Counts] names. Holes are
//     exact: a source without block 7 has a run of 7, whatever follows. During
//     an Apply two blocks of an answer may be of two moments.
//   - All holders. There is no limit on how many sources share a block.
//   - Order. Changes of one Apply are applied in order.
//   - Copies. A gpu block is held until each counted copy was removed, by the
//     rules of [Copies]. Lower tiers are sets. If reports are guarded against,
//     a block that was forgotten while a store of it had not been counted
//     comes back when a later gpu store of a full group names it as its
//     parent, or when a store without a parent reports it again. With a parent
//     come its ancestors, up to one that was counted and has gone, or of which
//     it is not sure by which hash the engine has it: two hashes of its prefix
//     were hidden at one time, or a hidden one was forgotten since the last
//     OpClear. A backend may bound how many. A clear of the gpu ends that.
//     Once a block was forgotten that may be there, at a bound or by an
//     ambiguous removal,
//     stores count until the next OpClear as with [Change.Partial].
//   - Names. All groups and tiers of a source share the names of its hashes. A
//     name is kept while anybody of the source holds the block, and after that
//     within a bounded budget, oldest first. Only gpu stores give names: what a
//     lower tier says of a prefix leaves out salts and media. A hash names one
//     prefix in each variant. One prefix may have several hashes: it is held as
//     long as one of them is.
//   - Ambiguity. A held hash to which a second store gives another key of the
//     same variant names both, but not a third; its removal removes both; a
//     store that names it as its parent is never placed. A hash that nobody
//     holds is used anew: the next key takes the place of the old one.
//   - Masked stores. What follows from the known hashes of a masked store is
//     placed, by the rules of the package comment: at once, if all of its
//     hashes are known or follow. Else that is looked at after all changes of
//     the Apply that brings the store, and of each later one that places a hash
//     of it or its unknown parent. What is not placed is held, and waits within
//     the bound of what is parked.
//   - Unknown parents. A store whose parent has no name is parked within a
//     bound and placed when the parent is named; removals apply to it
//     meanwhile. A hash of it that was removed stands for what was stored by it
//     since, if anything was.
//   - Scopes. Sources share nothing. A chain inherits its root from its
//     parent.
//   - Bounds. A backend may forget blocks at a bound of its own, on bytes or on
//     whatever it counts, of any source and at any moment. A forgotten block is held
//     by nobody: no row claims it, not even when the engine still removes it, stores
//     a child of it, or names it in a lower tier. The source says so until its next
//     OpClear: by [Row.Evicted] at once, by [SourceInfo.Evicted] at the latest when
//     one of its changes names the block. [NewMemory]'s forgets the blocks that were not
//     used for the longest time, and leaves no hole by it.
//
// What forgetting a block means for the other rules:
//
//   - A removal of it is an UnknownRemove. Another store of it is of its first copy.
//   - Its hash has no name any more. A store that continues it is parked or dropped,
//     and counted as that. It is placed only behind a block that has that name again.
//   - A lower tier's store of its hash, and a masked store, wait for a name too.
//   - From then on the view of the source is not whole (see Reports in the package
//     comment), until an OpClear: no store without a parent counts a block that is
//     held. Such a store, or a report of all that the engine holds, brings back the
//     blocks that it names.
//   - If it was hidden, it does not come back.
//   - OpClear, OpClearTier and Remove take what is left. After an OpClear the source is
//     as if nothing was forgotten, but for names.
//   - Cursors are never forgotten. An Apply for which there is no room drops stores,
//     and counts them. A source for which there is no room is an error that wraps
//     ErrFull, and nothing is done.
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
	// its stream makes the call a no-op: the stored one stays, whatever Time and
	// Digest say. A concurrent Match may see a part of
	// the changes. Apply keeps none of the slices.
	Apply(ctx context.Context, src Source, cur Cursor, changes []Change) (Applied, error)

	// Cursor returns the stored cursor of a stream of a source, as Apply had it: the
	// zero Cursor if there is none. It changes nothing.
	Cursor(ctx context.Context, src Source, stream string) (Cursor, error)

	// Match fills m with one row for each source, group, variant and block size
	// that holds something of the prompt. m is reset first. A query without
	// Candidates is an error that wraps ErrInvalid.
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

	// Close releases what the index holds. Later calls of any method but Seed
	// return ErrClosed, Close itself returns nil.
	Close() error
}

// SourceInfo describes a source for people and metrics.
type SourceInfo struct {
	Source   Source
	Blocks   [NumTiers]int // hashes held, by tier; once for each group
	Names    int           // names kept, held or not
	Parked   int           // stores that wait for their parent
	Unplaced int           // hashes held of which the prefix is not known, those of Parked too
	Bytes    int           // that its names take; the rest it shares, see Usage
	// Evicted is how many blocks, counted as in Blocks, were given up since the last
	// OpClear because the index had no room for them. A block may be counted later than
	// rows lack it: when the index comes to its name.
	Evicted uint64
}

// Describer is an optional ability of an Index: it tells what it has, for people and metrics.
type Describer interface {
	// Describe appends a SourceInfo for each source to dst.
	Describe(dst []SourceInfo) []SourceInfo
	// DescribeSource is Describe for one source; false: there is no such source.
	DescribeSource(src Source) (info SourceInfo, ok bool)
	// Usage says what the index holds and what that takes.
	Usage() Usage
}

// SourceRemover is an optional ability of an Index.
type SourceRemover interface {
	// RemoveSource forgets one source: its blocks, names and cursors. A source that is not
	// there is no error.
	RemoveSource(ctx context.Context, src Source) error
}
