// Package prefixcache caches the encoding of beginnings of texts: how many tokens they have,
// the locals of their units, and where encoding may resume. It keeps neither texts nor ids,
// and uses no tokenizer.
//
// [Cache.Find] finds the longest cached beginning of a text. The caller encodes the rest, and
// [Cache.Add] keeps the result:
//
//	whole := cache.Find(&p, scope, text) // p.State is the cached state
//	if !whole {
//		// encode text from p.Resume on, with the marks at p.Marks()
//		cache.Add(&p, locals, marks, all)
//	}
//
// # What is kept
//
// An entry is the state of text[:n] within a scope, for n a multiple of 1 KiB (Grain), or of a
// whole text. A whole text differs from a beginning of the same length, because a tokenizer
// may put ids behind a text. So no entry follows it.
//
//	text   |--------|--------|--------|----|        |--------|--------|--------|--|
//	entry           1<-------2<-------3<---whole             ^
//	                         ^                               the first two are those above
//	                         +--------4<-------whole
//
// An entry has the locals behind the entry that it follows, so texts share their common
// beginning. The state of a text is put together along these arrows. An entry need not follow
// the one right before it: where encoding cannot resume there is none, and the next one has
// more locals.
//
// # The hash
//
// Entries are found by a tag of 128 bits and their length, and texts are not compared. So the
// tag must not collide for clients who know everything but the key, which is random for each
// Cache. GMAC(m) is AES-GCM's tag of no plaintext with the additional data m, under one key
// and one nonce; c(i) is the i-th KiB of the text:
//
//	tag(0)     = GMAC(scope)
//	tag(i)     = GMAC(tag(i-1) ++ c(i))
//	tag(whole) = GMAC(tag(i) ++ rest)     the rest may be empty
//
// GMAC pads m with zeros to blocks b(1) to b(k) of 16 bytes. In the field of 2^128 elements
// it is b(1)·H^(k+1) + ... + b(k)·H^2 + len(m)·H + S, where H and S are values of AES at two
// different points: secrets of the Cache. So tag(i) is tag(i-1)·H^66, and the blocks of c(i)
// at the powers 2 to 65, and constants. Take two texts with tags of the same length and kind.
// The constants cancel out. The rest is a polynomial in H. Its coefficients are the
// differences of the blocks of the texts, each at a power of its own, and above these the
// differences of the scopes and of their lengths. If scope or text differ, it is not
// zero, and has at most as many roots as its degree. H is one of 2^128 values, if AES is a
// random permutation, so two tags are equal with probability
//
//	(66·(n/1024 + 1) + s/16 + 2) / 2^128     for texts of n bytes and scopes of at most s
//
// which is 2^-116 for 32 kB and 2^-111 for a megabyte. It holds for each pair of a searched
// text and an entry of the same length. As long as there is no collision, the answers reveal
// nothing about H, so a client who chooses texts by earlier answers does no better. (Timing
// the nanoseconds by which entries of one bucket slow each other down would help.) With 2^20
// such entries, 2^40 prompts of a megabyte have a collision with probability 2^-51. Padding is
// unambiguous: lengths are compared.
//
// The nonce is the same each time. That would reveal H to an observer of tags, and there is
// none. If GODEBUG=fips140=only forbids that, a tag is the first half of SHA-256, with the key
// behind the text; then a collision is one of the first 128 bits of a random function.
//
// # Cells
//
// Entries are in cells of 64 bytes, in pages of 64 KiB without pointers. All that grows is in
// pages, so the heap of a Cache is a number of pages: its budget holds at every moment, before
// the garbage collector has run, too. A cell has seven words and its link, to the next cell of
// its entry or the next free one. So no room is lost between entries, however their sizes
// change. A KiB of text with units of 16 tokens takes four cells, 0.28 bytes a byte; with
// units of one token 36, 2.5 bytes a byte. A whole text takes two or three more. A page has
// its share of the table, which grows by linear hashing: no Add waits for a copy of the table.
//
// # Concurrency
//
// Writers hold a lock. Readers hold none, and write only the time of use, if it has changed.
// Prompts have counters by turns, so that two goroutines seldom write the same.
//
// Cells are used again at once. A reader detects that:
//
//   - All words of cells are loaded and stored atomically.
//   - The version of a cell counts up each time that it becomes the first of an entry, and
//     when it ceases to be that. So the version is odd as long as it is one.
//   - An entry is removed only when no entry follows it. So as long as an entry is there, all
//     that it follows are there, and none of their words has changed but for links between
//     entries, which do not affect the state.
//   - An entry is complete before its version becomes odd, and its version becomes even before
//     anything of it changes.
//   - A reader loads the version, then the tag, then all the rest, then the version again (and
//     once before it allocates memory by what it has read). If it is the same, the entry and
//     all that it follows were there all the time. If not, the result may be anything and is
//     dropped, and each step before has stayed within the pages and went to an entry with
//     fewer cells before it, so it came to an end.
//
// A reader may miss an entry whose bucket changes at that moment. Then its answer is
// incomplete, and not wrong.
//
// # Eviction
//
// The Cache evicts leaves, entries that none follows: so every remaining entry can be found,
// with its beginning. Leaves are in lists by the time of their use, and the clock goes on with
// the allocated cells, 64 slots for as many as there are. A reader only sets the time in the
// entry; a leaf at the end of its list that was used since is moved to its place.
//
// Texts that come once do not evict reused ones, because reused leaves are in lists of their
// own, and favoured: they are evicted when they are unused for 15 times as long as it takes to
// fill the Cache, and for as long as the others are. If texts are reused after a long time, or
// conversations grow, that would do harm. So each evicted entry leaves a note, 32 bits in a
// table that forgets. If an entry that was evicted after one use is made again, the favour is
// harmful and ends. If it is a reused one, the favour grows by its cells. Without favour the
// Cache is an LRU.
//
// # Alternatives that were tried
//
//   - Objects in place of pages: an object for each entry would be freed only after the
//     garbage collector has run, which would follow a pointer for each KiB of text.
//   - Epochs in place of versions, as the index has: a reader reads one chain in a
//     microsecond. Versions save two adds for each, and memory is used again at once, also
//     while a reader sleeps.
//   - Searching from the end and not by halves: there may be gaps. A grown text
//     finds its entry after as many misses as it has grown by KiB.
//   - An LRU without favour loses everything to texts that come once, at one time the budget.
//     Favour of 16 times that does not learn finds 9 to 17 % less of a trace of conversations
//     than the LRU, and a list of reused entries that others never shorten 13 %.
package prefixcache

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index"
)

// Why GMAC. It needs no assumption on how texts were chosen, as long as tags are secret. xxh3
// and maphash have no such bound, and SHA-256 takes two to four times as long. A CPU without
// AES takes 160 us for 32 kB instead of 6, which is still a tenth of encoding it. With SHA-256
// for GODEBUG=fips140=only it is 20 to 35 us.
//
// Why not elastic/go-freelru: its bound is a number of entries and not of bytes, each entry is
// an object for the garbage collector, a parent is evicted before its child, each hit takes a
// lock, and texts that come once evict all others.
//
// Notes of evicted entries show whether favour is good: on the traces it is not, and ends
// soon; with texts that come once it is.

const (
	// MinBytes is the least budget of New.
	MinBytes = 1 << 20
	// Grain is the distance of marks, in bytes of text.
	Grain = 1 << 10
	// maxText is the longest cached text, in bytes.
	maxText = 1 << 30
)

// A State is the state of a beginning of a text.
type State struct {
	// Resume is where encoding may resume, in bytes of the text. It is the length of a text
	// that is cached whole.
	Resume int
	// Tokens is the number of ids before Resume. For a text that is cached whole it is that of
	// all its ids.
	Tokens int
	// Locals are those of all units that these ids complete.
	Locals []index.Local
	// Tail has the last ids, as many as the mark had.
	Tail []uint32
	// Fold is that of the mark.
	Fold uint64
}

// A Mark is the state of the beginning text[:At] of a text, for Add.
type Mark struct {
	At     int      // one of [Prompt.Marks], or the length of the text for the whole
	Resume int      // where encoding may resume in every text that begins with text[:At]; at most At
	Tokens int      // ids before Resume; of the whole, all ids
	Locals int      // how many units these ids complete
	Tail   []uint32 // the last ids before Resume, those of the unit that is open; 255 at most
	Fold   uint64   // the caller's own
}

const (
	listBytes  = 16       // of the list of pages, for a page: an array grows by doubling
	fixedBytes = 32 << 10 // besides the pages
)

// share: one prompt takes at most an eighth of the Cache.
const share = 8

// maxTail bounds the ids of a mark. A mark with more is not kept.
const maxTail = 1<<(slotShift-tailShift) - 1

// A Prompt is one text on its way through a [Cache]: [Cache.Find] begins it, [Cache.Add] ends
// it. Its zero value is ready. It may be used for many texts of one Cache, and keeps its
// memory, so that a hit allocates nothing. It is for one goroutine at a time.
type Prompt struct {
	// State is the result of Find: of the whole text, else of its longest cached beginning,
	// else zero. It holds until the next Find.
	State

	length int    // of the text
	known  int    // the length of the cached beginning
	tags   []tag  // of the scope, and of the text up to each multiple of Grain
	whole  tag    // of the text with its end
	marks  []int  // memory of Marks
	buf    []byte // the input of a hash
	out    [tagBytes]byte
	stripe uint32 // 1 + the number of its counters; 0: it has none yet
}

// Marks returns the positions at which Add wants marks, ascending and behind the cached
// beginning; none if that is the whole text. They hold until the next Find.
func (p *Prompt) Marks() []int {
	p.marks = p.marks[:0]
	for at := (p.known/Grain + 1) * Grain; at <= p.length; at += Grain {
		p.marks = append(p.marks, at)
	}
	return p.marks
}

// Stats are the counters of a [Cache], from New on, and its size.
type Stats struct {
	Whole   uint64 // prompts that were in the cache
	Grown   uint64 // prompts of which a beginning was in the cache
	Unknown uint64 // prompts of which nothing was in the cache
	Past    uint64 // prompts that bypassed the cache; see [Cache.Pass]

	BytesKnown   uint64 // of text that was in the cache
	BytesEncoded uint64 // of text that was encoded: of Grown and Unknown, behind State.Resume

	Entries int   // cached beginnings and whole texts
	Bytes   int64 // of heap, at most the budget
	Evicted uint64
}

// A Cache keeps the states of texts within a number of bytes. All methods are safe for
// concurrent use. Find takes no lock.
type Cache struct {
	hash    hasher
	now     atomic.Uint32 // the clock of use: two for each slot; see wasHit
	pages   atomic.Pointer[view]
	prompts atomic.Uint32 // that have counters
	stripes [16]counters
	entries atomic.Int64
	evicted atomic.Uint64

	mu     sync.Mutex // guards the fields below, and all writing to pages but for used
	most   int        // pages
	free   ref        // the first free cell; each links the next
	idle   int        // free cells
	left   int        // cells until the clock ticks
	favour int64      // for how many more cells reused entries stay
	leaves [2]leaves  // of texts that were used once, and again
}

// leaves are entries that none follows.
type leaves struct {
	slots  [slots]list // by time of use
	oldest uint32      // no slot before this time has any
}

// A list has the last used in front.
type list struct{ front, back ref }

// counters are those of some prompts, on cache lines of their own.
type counters struct {
	whole, grown, unknown, past, known, encoded atomic.Uint64
	_                                           [80]byte
}

// New returns a Cache with a budget in bytes of heap; it begins with little. Less than
// MinBytes is an error.
func New(bytes int64) (*Cache, error) {
	if bytes < MinBytes {
		return nil, fmt.Errorf("prefixcache: %d bytes; the least is %d", bytes, MinBytes)
	}
	c := &Cache{hash: newHasher()}
	c.most = int(min((bytes-fixedBytes)/(pageBytes+listBytes), maxPages))
	c.pages.Store(new(view))
	c.favour = c.mostFavour()
	return c, nil
}

// Find finds the longest cached beginning of text within a scope, and reports whether that is
// the whole. The scope separates equal texts. The result is in p.State. A text of more than 1
// GiB bypasses the Cache.
func (c *Cache) Find(p *Prompt, scope []byte, text string) (whole bool) {
	p.State = State{Locals: p.Locals[:0], Tail: p.Tail[:0]}
	p.length, p.known, p.tags = len(text), 0, p.tags[:0]
	s := c.countersOf(p)
	if len(text) > maxText {
		p.length = 0
		s.past.Add(1)
		return false
	}
	c.hash.text(p, scope, text)
	if c.read(p, p.whole, len(text), wholeText) {
		p.known, p.Resume = len(text), len(text)
		s.whole.Add(1)
		s.known.Add(uint64(len(text)))
		return true
	}
	for i := len(p.tags) - 1; i > 0 && p.known == 0; i-- {
		if c.read(p, p.tags[i], i*Grain, beginning) {
			p.known = i * Grain
		}
	}
	if p.known > 0 {
		s.grown.Add(1)
	} else {
		s.unknown.Add(1)
	}
	s.known.Add(uint64(p.Resume))
	s.encoded.Add(uint64(len(text) - p.Resume))
	return false
}

// Add caches the encoding of p's text: the marks of p.Marks at which encoding may resume, and
// the whole text. locals are those of the whole text. Add skips entries that are there
// already, that do not fit in an eighth of the Cache, and invalid marks. It retains nothing.
// Without a call of Add a Find leaves nothing behind.
func (c *Cache) Add(p *Prompt, locals []index.Local, marks []Mark, whole Mark) {
	if len(p.tags) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	parent := ref(0) // the found entry may have been evicted since
	for i := p.known / Grain; i > 0 && parent == 0; i-- {
		parent, _ = c.view().find(p.tags[i], i*Grain, beginning)
	}
	for i := range marks {
		if at := marks[i].At; at > 0 && at <= p.length && at%Grain == 0 {
			if r := c.put(parent, p.tags[at/Grain], &marks[i], locals, beginning); r != 0 {
				parent = r
			}
		}
	}
	if whole.At == p.length {
		c.put(parent, p.whole, &whole, locals, wholeText)
	}
}

// Pass counts a prompt that bypasses the Cache.
func (c *Cache) Pass() { c.stripes[0].past.Add(1) }

// Stats returns the counters and the size.
func (c *Cache) Stats() Stats {
	n := int64(len(c.view()))
	s := Stats{Entries: int(c.entries.Load()), Bytes: fixedBytes + n*(pageBytes+listBytes), Evicted: c.evicted.Load()}
	for i := range c.stripes {
		k := &c.stripes[i]
		s.Whole += k.whole.Load()
		s.Grown += k.grown.Load()
		s.Unknown += k.unknown.Load()
		s.Past += k.past.Load()
		s.BytesKnown += k.known.Load()
		s.BytesEncoded += k.encoded.Load()
	}
	return s
}

func (c *Cache) countersOf(p *Prompt) *counters {
	if p.stripe == 0 {
		p.stripe = c.prompts.Add(1)%uint32(len(c.stripes)) + 1
	}
	return &c.stripes[p.stripe-1]
}

// A tag is the hash of a beginning of a text within a scope.
type tag struct{ low, high uint64 }

// A hasher makes tags; see the essay.
type hasher struct {
	gmac cipher.AEAD // nil: FIPS 140 does not allow its use
	key  [32]byte    // for SHA-256 then
}

func newHasher() hasher {
	var h hasher
	rand.Read(h.key[:])
	if block, err := aes.NewCipher(h.key[:16]); err == nil {
		h.gmac, _ = cipher.NewGCM(block)
	}
	return h
}

const tagBytes = 16

// text sets the tags of p.
func (h *hasher) text(p *Prompt, scope []byte, text string) {
	p.tags = append(p.tags, h.tag(p, append(p.buf[:0], scope...)))
	for ; len(text) >= Grain; text = text[Grain:] {
		p.tags = append(p.tags, h.chain(p, text[:Grain]))
	}
	p.whole = h.chain(p, text)
}

// chain returns the tag of the text of the last of p.tags, with more text behind it.
func (h *hasher) chain(p *Prompt, text string) tag {
	last := &p.tags[len(p.tags)-1]
	b := binary.LittleEndian.AppendUint64(p.buf[:0], last.low)
	b = binary.LittleEndian.AppendUint64(b, last.high)
	return h.tag(p, append(b, text...))
}

// nonce is always the same: tags are secret.
var nonce [12]byte

// tag returns the hash of b, which becomes p.buf.
func (h *hasher) tag(p *Prompt, b []byte) tag {
	p.buf = b
	if h.gmac != nil {
		h.gmac.Seal(p.out[:0], nonce[:], nil, b)
	} else {
		p.buf = append(b, h.key[:]...)
		sum := sha256.Sum256(p.buf)
		copy(p.out[:], sum[:])
	}
	return tag{binary.LittleEndian.Uint64(p.out[:]), binary.LittleEndian.Uint64(p.out[8:])}
}

// A ref names a cell: its page and its place there. Cell 0 is never used: 0 is none.
type ref uint32

const (
	cellBits    = 10
	pageCells   = 933
	pageBuckets = 1 << bucketBits
	bucketBits  = 8
	pageBytes   = 64 << 10
	maxPages    = 1 << 21 // so that an int of 32 bits counts the cells
)

// A cell has data, and its link: a version, which is odd as long as the cell is the first of
// an entry, and the next cell.
type cell [dataWords + 1]atomic.Uint64

const (
	dataWords = 7
	linkWord  = dataWords
)

// A page has cells, and its share of what belongs to them.
type page struct {
	cells   [pageCells]cell
	used    [pageCells]atomic.Uint32 // the time of use of the entry that begins in a cell; see wasHit
	buckets [pageBuckets]atomic.Uint32
	notes   [pageBuckets]uint32 // of entries that were evicted
}

var _ [pageBytes - unsafe.Sizeof(page{})]byte

// A view is all pages at a moment.
type view []*page

func (c *Cache) view() view { return *c.pages.Load() }

// The words of an entry. Its second cell begins with a word for writers only; then come its
// locals, and its tail, two ids a word.
const (
	wordTagLow  = iota
	wordTagHigh // the rest of its tag
	wordPlace   // At; the entry that it follows
	wordTokens  // Tokens; At - Resume
	wordFold
	wordSize  // locals, and cells, of it and of all that it follows
	wordChain // the next of its bucket; the bits below

	secondWord = 0 // of a leaf its neighbours in its list, else how many entries follow it
	secondData = 1

	headWords = dataWords + secondData
)

// The low half of wordChain: a kind, flags, the number of ids of the tail, and of a leaf its
// slot of time. A leaf is evicted long before slots of so many bits repeat.
const (
	flagAgain = 1 << 1 // it was used again
	flagLeaf  = 1 << 2
	tailShift = 3
	slotShift = 11
	maxSlot   = 1<<(32-slotShift) - 1
)

// A kind is the kind of an entry.
type kind uint32

const (
	beginning kind = iota
	wholeText      // with the tokens behind it: no entry follows it
)

func pair(high, low uint32) uint64 { return uint64(high)<<32 | uint64(low) }
func high(w uint64) uint32         { return uint32(w >> 32) }
func low(w uint64) uint32          { return uint32(w) }

// cell returns nil for an invalid ref: readers follow refs that may be out of date.
func (v view) cell(r ref) *cell {
	if i := int(r >> cellBits); i < len(v) && r&(1<<cellBits-1) < pageCells {
		return &v[i].cells[r&(1<<cellBits-1)]
	}
	return nil
}

func (v view) used(r ref) *atomic.Uint32 { return &v[r>>cellBits].used[r&(1<<cellBits-1)] }

// bucket returns the bucket of a tag, by linear hashing: each page splits as many buckets as
// it has.
func (v view) bucket(t tag) *atomic.Uint32 {
	n := uint32(len(v)) << bucketBits
	b := uint32(t.low) & (1<<bits.Len32(n-1) - 1)
	if b >= n {
		b &= 1<<(bits.Len32(n-1)-1) - 1
	}
	return &v[b>>bucketBits].buckets[b&(pageBuckets-1)]
}

func (k *cell) alive() (version uint32, ok bool) {
	version = high(k[linkWord].Load())
	return version, version&1 != 0
}

// find returns the entry of a tag, and the version of its cell.
func (v view) find(t tag, at int, of kind) (ref, uint32) {
	if len(v) == 0 {
		return 0, 0
	}
	for r := ref(v.bucket(t).Load()); r != 0; {
		k := v.cell(r)
		if k == nil {
			break
		}
		version, ok := k.alive()
		if !ok {
			break
		}
		chain := k[wordChain].Load()
		if k[wordTagLow].Load() == t.low && k[wordTagHigh].Load() == t.high && high(k[wordPlace].Load()) == uint32(at) && kind(chain&1) == of {
			return r, version
		}
		r = ref(high(chain))
	}
	return 0, 0
}

// read copies the state of a beginning to p, if there is an entry.
func (c *Cache) read(p *Prompt, t tag, at int, of kind) bool {
	v := c.view()
	r, version := v.find(t, at, of)
	if r == 0 {
		return false
	}
	if !v.copy(&p.State, r, version) {
		p.State = State{Locals: p.Locals[:0], Tail: p.Tail[:0]}
		return false
	}
	if now, used := c.now.Load()|wasHit, v.used(r); used.Load() != now {
		used.Store(now)
	}
	return true
}

// stays reports whether r is still the same entry.
func (v view) stays(r ref, version uint32) bool {
	now, _ := v.cell(r).alive()
	return now == version
}

// copy makes s the state of an entry. It returns false if the entry was evicted meanwhile.
func (v view) copy(s *State, r ref, version uint32) bool {
	k := v.cell(r)
	place, tokens, size := k[wordPlace].Load(), k[wordTokens].Load(), k[wordSize].Load()
	tail, to := int(low(k[wordChain].Load())>>tailShift&maxTail), int(high(size))
	s.Tokens, s.Resume, s.Fold = int(high(tokens)), int(high(place)-low(tokens)), k[wordFold].Load()
	if !v.stays(r, version) { // do not allocate memory by these numbers
		return false
	}
	s.Locals = slices.Grow(s.Locals[:0], to)[:to]
	s.Tail = slices.Grow(s.Tail[:0], tail)[:tail]
	for ids := s.Tail; k != nil; ids = nil {
		var parent *cell
		from, before := 0, uint64(0)
		if low(place) != 0 {
			if parent = v.cell(ref(low(place))); parent == nil {
				return false
			}
			place, before = parent[wordPlace].Load(), parent[wordSize].Load()
			from = int(high(before))
		}
		if from > to || low(before) >= low(size) || !v.fill(s.Locals[from:to], ids, k) {
			return false
		}
		k, to, size = parent, from, before
	}
	return v.stays(r, version)
}

// fill copies the words behind the head of an entry.
func (v view) fill(locals []index.Local, tail []uint32, k *cell) bool {
	k = v.next(k)
	for i := secondData; k != nil; i = 0 {
		for ; i < dataWords && len(locals) > 0; i++ {
			locals[0], locals = index.Local(k[i].Load()), locals[1:]
		}
		for ; i < dataWords && len(tail) > 0; i++ {
			w := k[i].Load()
			tail[0] = low(w)
			if len(tail) > 1 {
				tail[1] = high(w)
			}
			tail = tail[min(2, len(tail)):]
		}
		if len(locals) == 0 && len(tail) == 0 {
			return true
		}
		k = v.next(k)
	}
	return false
}

// next returns the cell behind k, or nil.
func (v view) next(k *cell) *cell { return v.cell(ref(low(k[linkWord].Load()))) }

// put returns the entry of a mark, and makes it behind parent if there is none; 0 if there is
// no room, or the mark is invalid.
func (c *Cache) put(parent ref, t tag, m *Mark, locals []index.Local, of kind) ref {
	v := c.view()
	if r, _ := v.find(t, m.At, of); r != 0 {
		v.used(r).Store(c.now.Load() | wasHit)
		return r
	}
	var place, size uint64
	if parent != 0 {
		k := v.cell(parent)
		place, size = k[wordPlace].Load(), k[wordSize].Load()
	}
	from := int(high(size))
	if m.At < int(high(place)) || m.Resume < 0 || m.Resume > m.At || m.Tokens < 0 || m.Tokens > maxText ||
		m.Locals < from || m.Locals > len(locals) || len(m.Tail) > maxTail {
		return 0
	}
	n := (headWords + m.Locals - from + (len(m.Tail)+1)/2 + dataWords - 1) / dataWords
	if int(low(size))+n > c.most*pageCells/share {
		return 0
	}
	c.hold(parent)
	c.makeRoom(n)
	v = c.view()
	r := c.take(n)
	k, bucket := v.cell(r), v.bucket(t)
	k[wordTagLow].Store(t.low)
	k[wordTagHigh].Store(t.high)
	k[wordPlace].Store(pair(uint32(m.At), uint32(parent)))
	k[wordTokens].Store(pair(uint32(m.Tokens), uint32(m.At-m.Resume)))
	k[wordFold].Store(m.Fold)
	k[wordSize].Store(pair(uint32(m.Locals), low(size)+uint32(n)))
	k[wordChain].Store(pair(bucket.Load(), uint32(len(m.Tail))<<tailShift|uint32(of)))
	v.write(k, locals[from:m.Locals], m.Tail)
	c.tick(n)
	c.readNote(t, n)
	v.used(r).Store(c.now.Load())
	c.list(r)
	k[linkWord].Add(1 << 32)
	bucket.Store(uint32(r))
	c.entries.Add(1)
	return r
}

// write is the inverse of fill.
func (v view) write(k *cell, locals []index.Local, tail []uint32) {
	k = v.next(k)
	for i := secondData; ; i = 0 {
		for ; i < dataWords && len(locals) > 0; i++ {
			k[i].Store(uint64(locals[0]))
			locals = locals[1:]
		}
		for ; i < dataWords && len(tail) > 0; i++ {
			w := uint64(tail[0])
			if len(tail) > 1 {
				w = pair(tail[1], tail[0])
			}
			k[i].Store(w)
			tail = tail[min(2, len(tail)):]
		}
		if len(locals) == 0 && len(tail) == 0 {
			return
		}
		k = v.next(k)
	}
}

// makeRoom frees n cells. Held entries and n are an eighth at most, so there is always a leaf
// to evict.
func (c *Cache) makeRoom(n int) {
	for c.idle < n {
		if len(c.view()) < c.most {
			c.grow()
		} else {
			c.evict()
		}
	}
}

// take returns the first of n free cells, which are linked.
func (c *Cache) take(n int) ref {
	v, first := c.view(), c.free
	last := v.cell(first)
	for range n - 1 {
		last = v.next(last)
	}
	c.free = ref(low(last[linkWord].Load()))
	c.idle -= n
	last.setLink(0)
	return first
}

func (k *cell) setLink(r ref) {
	k[linkWord].Store(pair(high(k[linkWord].Load()), uint32(r)))
}

// grow adds a page. Its buckets take their entries from the buckets that had them.
func (c *Cache) grow() {
	old := c.view()
	n := len(old)
	v := append(old, new(page))
	for i := pageCells - 1; i >= 0 && n+i > 0; i-- { // the first cell is not used
		v[n].cells[i].setLink(c.free)
		c.free = ref(n<<cellBits | i)
		c.idle++
	}
	c.pages.Store(&v)
	for b := n << bucketBits; n > 0 && b < (n+1)<<bucketBits; b++ {
		from := b &^ (1 << (bits.Len(uint(b)) - 1))
		c.split(&v[from>>bucketBits].buckets[from&(pageBuckets-1)])
	}
}

// split moves the entries of a bucket that belong to another one.
func (c *Cache) split(bucket *atomic.Uint32) {
	v := c.view()
	stay := uint32(0)
	for r := ref(bucket.Load()); r != 0; {
		k := v.cell(r)
		chain := k[wordChain].Load()
		if to := v.bucket(k.tag()); to == bucket {
			k[wordChain].Store(pair(stay, low(chain)))
			stay = uint32(r)
		} else {
			k[wordChain].Store(pair(to.Load(), low(chain)))
			to.Store(uint32(r))
		}
		r = ref(high(chain))
	}
	bucket.Store(stay)
}

// evict evicts a leaf. There must be one.
func (c *Cache) evict() {
	v := c.view()
	for tries := 0; ; tries++ {
		r, at := c.last(0)
		again, then := c.last(1)
		if r == 0 || again != 0 && int32(at-then) > 2*int32(c.favour/int64(c.slotCells())) {
			r, at = again, then
		}
		if used := v.used(r).Load(); used&wasHit == 0 && int32(used-at) <= 0 || tries == maxTries {
			c.drop(r)
			return
		}
		c.unlist(r)
		c.list(r)
	}
}

// maxTries bounds how many recently used leaves evict skips.
const maxTries = 64

// last returns the least recently used leaf, or 0, and its time.
func (c *Cache) last(again int) (ref, uint32) {
	l := &c.leaves[again]
	for now := c.now.Load(); ; l.oldest += 2 {
		if r := l.slots[l.oldest/2%slots].back; r != 0 || l.oldest == now {
			return r, l.oldest
		}
	}
}

// drop evicts a leaf. It leaves a note.
func (c *Cache) drop(r ref) {
	v := c.view()
	c.unlist(r)
	k := v.cell(r)
	k[linkWord].Add(1 << 32) // before any of its words change
	t, chain := k.tag(), k[wordChain].Load()
	again := chain & flagAgain
	c.leaveNote(t, again != 0)
	if bucket := v.bucket(t); bucket.Load() == uint32(r) {
		bucket.Store(high(chain))
	} else {
		before := v.cell(ref(bucket.Load()))
		for high(before[wordChain].Load()) != uint32(r) {
			before = v.cell(ref(high(before[wordChain].Load())))
		}
		before[wordChain].Store(pair(high(chain), low(before[wordChain].Load())))
	}
	c.idle++
	last := k
	for low(last[linkWord].Load()) != 0 {
		last = v.next(last)
		c.idle++
	}
	last.setLink(c.free)
	c.free = r
	c.entries.Add(-1)
	c.evicted.Add(1)
	if parent := ref(low(k[wordPlace].Load())); parent != 0 { // a use of r is one of its parent
		if used := v.used(r).Load(); int32(used-v.used(parent).Load()) > 0 {
			v.used(parent).Store(used)
		}
		v.cell(parent)[wordChain].Or(again)
		c.letGo(parent)
	}
}

func (k *cell) tag() tag { return tag{k[wordTagLow].Load(), k[wordTagHigh].Load()} }

// hold keeps r: one more entry follows it.
func (c *Cache) hold(r ref) {
	if r == 0 {
		return
	}
	if k := c.view().cell(r); k[wordChain].Load()&flagLeaf != 0 {
		c.unlist(r)
		k[wordChain].And(^uint64(flagLeaf))
		c.second(r)[secondWord].Store(0)
	}
	c.second(r)[secondWord].Add(1)
}

// letGo undoes a hold.
func (c *Cache) letGo(r ref) {
	if c.second(r)[secondWord].Add(^uint64(0)) == 0 {
		c.list(r)
	}
}

// second returns the second cell of an entry.
func (c *Cache) second(r ref) *cell {
	v := c.view()
	return v.next(v.cell(r))
}

// The clock.
const (
	slots    = 1024 // of time
	turnover = 64   // slots, in which as many cells are allocated as there are
	wasHit   = 1    // of a time of use: since it was put into its slot
)

func (c *Cache) slotCells() int { return max(1, c.most*pageCells/turnover) }

// tick advances the clock by n cells.
func (c *Cache) tick(n int) {
	c.left -= n
	for c.left < 0 {
		c.left += c.slotCells()
		now := c.now.Add(2)
		for i := range c.leaves { // leaves older than all slots join the oldest
			l := &c.leaves[i]
			from, to := &l.slots[now/2%slots], &l.slots[(now/2+1)%slots]
			if to.back == 0 {
				*to = *from
			} else if from.back != 0 {
				c.second(to.back)[secondWord].Or(uint64(from.front))
				c.second(from.front)[secondWord].Or(pair(uint32(to.back), 0))
				to.back = from.back
			}
			*from = list{}
			l.oldest = later(l.oldest, c.first())
		}
	}
}

func later(a, b uint32) uint32 {
	if int32(a-b) < 0 {
		return b
	}
	return a
}

// first is the time of the oldest slot.
func (c *Cache) first() uint32 { return c.now.Load() - 2*(slots-1) }

// list adds a leaf to the lists, by its time of use.
func (c *Cache) list(r ref) {
	v := c.view()
	used, word := v.used(r), &v.cell(r)[wordChain]
	chain := word.Load() | flagLeaf
	at := used.Load()
	if at&wasHit != 0 {
		at &^= wasHit
		used.Store(at)
		chain |= flagAgain
	}
	at = later(at, c.first())
	word.Store(chain&^(maxSlot<<slotShift) | uint64(at/2&maxSlot)<<slotShift)
	l, s := c.placeOf(r)
	if int32(at-l.oldest) < 0 {
		l.oldest = at
	}
	c.second(r)[secondWord].Store(uint64(s.front))
	if s.front != 0 {
		c.setNeighbours(s.front, r, true)
	} else {
		s.back = r
	}
	s.front = r
}

// placeOf returns the lists of a leaf.
func (c *Cache) placeOf(r ref) (*leaves, *list) {
	chain, now := low(c.view().cell(r)[wordChain].Load()), c.now.Load()
	age := (now/2 - chain>>slotShift) & maxSlot
	l := &c.leaves[chain/flagAgain%2]
	return l, &l.slots[later(now-2*age, c.first())/2%slots]
}

// unlist removes a leaf from the lists.
func (c *Cache) unlist(r ref) {
	_, s := c.placeOf(r)
	w := c.second(r)[secondWord].Load()
	before, after := ref(high(w)), ref(low(w))
	if before != 0 {
		c.setNeighbours(before, after, false)
	} else {
		s.front = after
	}
	if after != 0 {
		c.setNeighbours(after, before, true)
	} else {
		s.back = before
	}
}

// setNeighbours sets the leaf before, or after, a leaf.
func (c *Cache) setNeighbours(of, r ref, before bool) {
	w := &c.second(of)[secondWord]
	if before {
		w.Store(pair(uint32(r), low(w.Load())))
	} else {
		w.Store(pair(high(w.Load()), uint32(r)))
	}
}

// mostFavour outlasts ten times the budget's worth of texts that come once.
func (c *Cache) mostFavour() int64 { return (slots/turnover - 1) * int64(c.most) * pageCells }

// note returns the place of the note of a tag, and its value. A note is of one tag in 2^30.
func (c *Cache) note(t tag, again bool) (*uint32, uint32) {
	v := c.view()
	n := uint32(t.high>>34)<<2 | 2
	if again {
		n |= 1
	}
	return &v[uint32(t.low>>32)%uint32(len(v))].notes[t.high%pageBuckets], n
}

func (c *Cache) leaveNote(t tag, again bool) {
	at, n := c.note(t, again)
	*at = n
}

// readNote learns from the note of an entry of n cells that is made again, if there is one. A
// reused one shows that such entries should have stayed longer; one that was used once shows
// that they are in the way.
func (c *Cache) readNote(t tag, n int) {
	at, once := c.note(t, false)
	switch *at {
	case once:
		c.favour = 0
	case once | 1:
		c.favour = min(c.mostFavour(), c.favour+int64(n))
	}
}
