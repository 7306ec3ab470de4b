// Package forest keeps who holds which prefix, for many readers and writers. All models
// share one forest: their keys differ, because their roots do. It has keys, places and
// holders by number, and nothing of what they stand for.
//
// # What is kept
//
// Prompts are looked up by prefix keys, one for each unit of tokens, and a key
// has one place in the forest, whatever blocks end there and whoever holds
// them. Keys that follow each other lie side by side in slabs:
//
//	 head table                 slab 7 (32 slots)            slab 8
//	┌──────────────┐  k0   ┌────┬────┬────┬─ ─ ┬─────┐   ┌─────┬─────┬─ ─
//	│ k0  -> slab 7│──────>│ k0 │ k1 │ k2 │    │ k31 │   │ k32 │ k33 │
//	│ k32 -> slab 8│       └────┴────┴────┴─ ─ ┴─────┘   └─────┴─────┴─ ─
//	│ x3  -> slab 9│                 \                    parent: slab 7, 31
//	└──────────────┘                  \   slab 9
//	 the first key of each slab        ┌────┬────┬─ ─
//	                                   │ x3 │ x4 │        a fork
//	                                   └────┴────┴─ ─     parent: slab 7, 2
//
//	 header of a slab, one word: what is written, and who holds it
//	   nobody
//	   one holder     its ordinal and a mask of 32 bits, one a slot
//	   several        a record: see record
//
// A holder is a number, its ordinal. Its bit at a slot means that it has the block
// that ends there; of blocks of several units only the last slot is set. So
// blocks of 16 and 528 tokens, chunks of 256 and hybrid groups share one chain.
//
// A record is a little matrix of one slab: holders that have the same slots
// share a row, a mask and a bitmap of ordinals; the rest have an entry each, an
// ordinal and a mask. A system prompt in front of a fork is two rows whoever
// holds it. Nothing is shared between slabs.
//
// # Invariants (checked by Check)
//
//   - A key is in one slot only. Every chain begins at a root, which the head
//     table finds, or behind a Loc that somebody keeps (Ref); a Loc is
//     followed by the next slot or a slab that the head table finds. So nobody
//     can begin a second copy of a chain in its middle.
//   - A slot is written once in the life of its slab. Slots at the end of which
//     nobody holds any more stay what they are, and are held again if the same
//     chain comes back; another chain forks off into a slab of its own.
//   - A slab lives as long as somebody refers to one of its slots (Ref, Pin) or a
//     slab is behind one, or until it is evicted. Nobody may hold what he does not
//     refer to, so a slab without refs has no holders, and the blocks before
//     a held one are still there, with their keys.
//   - Only slabs with nothing behind them are evicted (see Survey), so a
//     prefix of a chain is left.
//   - A slab that was moved (Move) is found where it is now. Its old place leads there
//     as long as somebody refers to it.
//   - Free lists have no memory of their own: slabs, records and ordinals that
//     wait or are ready are linked through themselves. All memory is counted
//     before it is taken, and chunks and pages with nothing in them go back.
//   - A holder of a slab is in its header, or in one row or entry of its record,
//     and nowhere else.
//
// # Who may do what
//
// All writers hold one lock, for a few hundred blocks at a time: then they let
// others in. Readers hold nothing. They rely on this:
//
//   - All words that readers see are loaded and stored atomically, or written
//     before an atomic store makes them reachable: keys before the header that
//     marks them as written, a record before the header that points to it, a
//     slab before its slot in the head table.
//   - A reader loads a slab's header once. The holders of a slot are from one
//     load: of the header's mask, a row's bitmap word, or an entry. Rows have
//     masks that never change; a holder whose slots change moves to another row
//     or entry, and is there before it leaves the old one. So each claim was
//     true at one moment, while the Match ran; a block that is being moved may
//     be missed, never invented. A record that was replaced keeps what was true
//     when it was.
//   - A slab that is moved is in its new place, and found there, before its header
//     is dead in the old one. A reader that came by the table and finds it
//     dead searches the table again.
//   - A slab, record or ordinal that was given up is used anew two epochs later
//     (package epochs): a reader that could reach it has left by then. So the key that a
//     reader compares and the holders that it finds are of one life of the slab,
//     and an ordinal means to it whom it meant when it entered: it learns what
//     ordinals stand for after that (Enter), and nobody gives one up that is
//     still to be learned (RetireOrdinal).
//   - The head table is replaced page by page; an old page stays what it was for
//     those who look at it, and the garbage collector takes it.
//
// All that somebody holds is forgotten at once by not looking at his ordinal any
// more. His bits follow in small steps, between which other writers are let in,
// and then the ordinal can be given up.
//
// # Why so, and what else was tried
//
//   - Slabs in the order of chains: 512 keys are 17 streams of cache lines, and
//     the next slab is usually the neighbour. With a table of all keys each block
//     is a miss of its own: 77 bytes and 177 us for 512 cold blocks in a sharded
//     Go map, 5 us in slabs that the head table alone finds, 2 us with the
//     neighbour tried first.
//   - Keys are kept whole. Tags of 40 bits halve the memory for one holder and
//     need a lookup a block, 21 us cold.
//   - Holders by slab, not sets shared by all slabs. Interned sets, one for all
//     holders of a block, cost less as long as neighbours have the same holders
//     (0.2 bytes a block against 2.6, with 8 holders), and a set, its hash and
//     its count for one block in five when they have not: with 8 random holders
//     and a fifth of the memberships removed at random 26 bytes a block, against
//     7.6 for records, which stay there whatever else goes. In a record 32
//     blocks of a holder are 8 bytes at most, and there is no table of sets to
//     fill, count or sweep.
//   - Slabs of three sizes, 8, 16 and 32 slots: single-block prompts would else
//     take 289 bytes instead of 97. Larger ones would waste more behind forks,
//     smaller ones need more heads. Real chats have a dozen blocks between two
//     forks, coding agents hundreds.
//   - Units and not blocks as slots: blocks of 64 tokens take four slots. A tree
//     for each block size would take one, but then a name's place in one tree
//     would not determine its place in another, and hybrid groups, chunks and
//     engines of other block sizes could not share anything.
//   - Epochs and not reference counts: two adds to a counter of the reader's own
//     stripe for a whole Match, and none for each slab. Versions of slabs that
//     readers check again would have them wait for a writer that keeps changing
//     a hot slab.
//   - One lock for all writers. A lock for each model would let cores write side by
//     side; but then slabs that one model gives up serve another one only behind a
//     second lock, and an evicted slab would have to find its model. Sharding by
//     chains would make every chain that forks or is removed lock twice. One core
//     takes in more blocks than a thousand engines compute.
//   - Age by slab, in 4 bytes, and a survey of all slabs when some are to go. A list
//     in the order of use takes 8 bytes a slab, and a lock or a queue for what
//     readers do; they store one word now, to the deepest slab that they matched.
package forest

import (
	"sync/atomic"

	"github.com/kvindex/kvindex/index/internal/epochs"
	"github.com/kvindex/kvindex/index/internal/mem"
)

const (
	slabSlots  = 32  // of the largest slabs: the bits of a mask
	minSlots   = 8   // of the smallest
	chunkSlabs = 128 // so that both arrays of a chunk are of sizes that Go has

	// maxSlabs is what a Loc can address beside its free bit.
	maxSlabs = 1 << 26
	// maxOrds is what a slab's header can hold.
	maxOrds = 1 << 24

	// MaxVariants is the number of variants: what a slab's refs can hold beside
	// their number.
	MaxVariants = 1 << 5
)

// Key is a prefix key. Equal keys are equal prefixes, of one variant.
type Key uint64

// Loc is the place of a key: slab and slot. The zero Loc is before the first key
// of every chain; slab 0 is never used. Bit 31 of a Loc is always 0.
type Loc uint32

func locOf(id uint32, slot int) Loc { return Loc(id<<5 | uint32(slot)) }

// Slab returns the slab of l, and Slot which of its up to 32 slots l is.
func (l Loc) Slab() uint32 { return uint32(l) >> 5 }
func (l Loc) Slot() int    { return int(l & (slabSlots - 1)) }

// Forest is the prefix tree of some models. All methods are for the one writer that
// holds its lock, but for Enter and what a [Path] does.
type Forest struct {
	epochs *epochs.Epochs
	mem    *mem.Count
	most   int64 // of mem, for more slabs
	heads  *heads
	chunks atomic.Pointer[[]chunk]
	recs   arena
	ords   ordinals

	// AnySize has short runs take large slabs too, if there are no others.
	AnySize bool
	// Still has all slabs stay where they are.
	Still bool

	// Of the writers, who hold the lock.
	watcher *Watcher // nil: nobody
	slabs   slabs
	slots   int           // keys
	sorted  []uint64      // memory of repack
	now     atomic.Uint32 // the clock of coldness; it may wrap
	dump    *dump         // nil: none is in progress
	seen    uint32        // what Prefetch has seen
}

// slabMeta is what there is of a slab beside its keys.
type slabMeta struct {
	// header has the holders of each slot; see the essay. Readers load it once.
	header uint64
	// Of the writers: the loc of what comes before the first slot; and in refs
	// the number of names at the slots of this one, with the variant in the top
	// bits. Of a slab that was given up they have the next one in the
	// queue, and its epoch.
	parent Loc
	refs   uint32
	// used is when the slab, or one behind it that has gone, was used last. Readers
	// change it too.
	used uint32
	// kids is how many slabs and pins are behind the slots, with flags on top.
	kids uint32
}

const (
	refsBits = 27
	kidsBits = 28
	// flagDead: the slab was evicted, or moved. flagRecord: it had a record. flagMoved:
	// it was moved; parent is its new place. flagStays: it may not be moved.
	flagDead   = 1 << 31
	flagRecord = 1 << 30
	flagMoved  = 1 << 29
	flagStays  = 1 << 28
)

func (m *slabMeta) names() uint32  { return m.refs & (1<<refsBits - 1) }
func (m *slabMeta) behind() uint32 { return m.kids & (1<<kidsBits - 1) }
func (m *slabMeta) dead() bool     { return m.kids&flagDead != 0 }

// A header is kind<<62 | written slots<<56 | ordinal<<32 | mask for a slab with
// one holder, and kind<<62 | written slots<<56 | record for one with several.
// That of a dead slab has kindDead: readers see nobody there. Its kind
// before follows from flagRecord and the mask.
type header uint64

const (
	kindNone header = iota
	kindOne
	kindRecord
	kindDead
)

func (h header) kind() header        { return h >> 62 }
func (h header) written() int        { return int(h >> 56 & 63) }
func (h header) ord() uint32         { return uint32(h>>32) & (maxOrds - 1) }
func (h header) mask() uint32        { return uint32(h) }
func (h header) record() uint32      { return uint32(h) }
func (h header) writtenBits() header { return h & (63 << 56) }

func headerOne(h header, ord, mask uint32) header {
	return kindOne<<62 | h.writtenBits() | header(ord)<<32 | header(mask)
}

// New returns an empty Forest, whose heap is added to count. Beyond most bytes there are
// no more slabs.
func New(count *mem.Count, most int64) *Forest {
	f := &Forest{epochs: epochs.New(), mem: count, most: most}
	f.heads = newHeads(count)
	f.chunks.Store(new([]chunk))
	f.recs.init(count)
	f.countSlabs(mem.SizeOf[Forest]() + f.epochs.Bytes())
	return f
}

// keys returns the slots of a slab.
func (f *Forest) keys(id uint32) []uint64 {
	return (*f.chunks.Load())[id/chunkSlabs].slab(id)
}

func (f *Forest) meta(id uint32) *slabMeta {
	c := *f.chunks.Load()
	return &c[id/chunkSlabs].meta[id%chunkSlabs]
}

// Prefetch loads the memory of the metadata of some slabs, so that work on them one
// after the other does not wait for each.
func (f *Forest) Prefetch(locs []Loc) {
	c := *f.chunks.Load()
	seen := f.seen
	for _, l := range locs {
		seen += c[l.Slab()/chunkSlabs].meta[l.Slab()%chunkSlabs].kids
	}
	f.seen = seen
}

func (m *slabMeta) load() header   { return header(atomic.LoadUint64(&m.header)) }
func (m *slabMeta) store(h header) { atomic.StoreUint64(&m.header, uint64(h)) }

// Key returns the key at l.
func (f *Forest) Key(l Loc) Key { return Key(f.keys(l.Slab())[l.Slot()]) }

// Variant returns the variant of l's chain.
func (f *Forest) Variant(l Loc) uint32 { return f.meta(l.Slab()).refs >> refsBits }

// newSlab returns a slab that begins with k, behind parent, for a run of n keys,
// or 0 if there are no more.
func (f *Forest) newSlab(k Key, parent Loc, variant uint32, n int) uint32 {
	size := sizeFor(n)
	if parent != 0 {
		if p := len(f.keys(parent.Slab())); parent.Slot() == p-1 {
			size = max(size, sizeFor(2*p)) // a run that grows
		}
	}
	id := f.takeSlab(size)
	if id == 0 {
		return 0
	}
	f.forgetDumped(id)
	f.keys(id)[0] = uint64(k)
	m := f.meta(id)
	m.parent, m.refs, m.kids = parent, variant<<refsBits, 0
	f.touch(m)
	if f.watcher != nil {
		f.setDepth(id, f.below(parent))
	}
	m.store(1 << 56)
	f.heads.add(f, k, id)
	f.slots++
	if parent != 0 {
		f.meta(parent.Slab()).kids++
	}
	return id
}

// touch notes that a slab is used now.
func (f *Forest) touch(m *slabMeta) {
	if now := f.now.Load(); atomic.LoadUint32(&m.used) != now {
		atomic.StoreUint32(&m.used, now)
	}
}

// Now returns the time.
func (f *Forest) Now() uint32 { return f.now.Load() }

// Slabs returns how many there is room for.
func (f *Forest) Slabs() int { return len(f.slabs.chunks) * chunkSlabs }

// Tick advances the clock. All uses between two ticks have one time.
func (f *Forest) Tick() { f.now.Add(1) }

// Place finds or makes the locs of keys, which follow each other behind prev.
// The caller must pin the last one (Pin) before it lets go of the lock, and gets
// false if there is no more room; then what was made is gone again. The last one was
// used now.
func (f *Forest) Place(prev Loc, variant uint32, keys []Key, locs []Loc) bool {
	start := prev
	fresh := false // the slot at prev was made just now: nothing is behind it
	for len(keys) > 0 {
		n := 0
		if id := prev.Slab(); id != 0 {
			n, fresh = f.follow(id, prev.Slot()+1, keys, fresh)
		}
		if n == 0 {
			var id uint32
			if !fresh {
				id = f.heads.find(f, keys[0])
			}
			if fresh = id == 0; fresh {
				if id = f.newSlab(keys[0], prev, variant, len(keys)); id == 0 {
					if prev != start {
						f.Pin(prev)
						f.Unpin(prev)
					}
					return false
				}
			}
			prev = locOf(id, 0)
			locs[0] = prev
			n = 1
		} else {
			for i := range n {
				prev++
				locs[i] = prev
			}
		}
		keys, locs = keys[n:], locs[n:]
	}
	f.touch(f.meta(prev.Slab()))
	return true
}

// follow returns how many of keys are in the slots of a slab from one on,
// where it adds what fits if nothing else is behind the slot before, and
// whether the last one was added.
func (f *Forest) follow(id uint32, slot int, keys []Key, fresh bool) (n int, added bool) {
	m := f.meta(id)
	h := m.load()
	slots := f.keys(id)
	for n < len(keys) && slot+n < h.written() && slots[slot+n] == uint64(keys[n]) {
		n++
	}
	if n == len(keys) || slot+n < h.written() || slot+n == len(slots) {
		return n, fresh && n == 0
	}
	if (!fresh || n > 0) && f.heads.find(f, keys[n]) != 0 {
		return n, false
	}
	more := min(len(keys)-n, len(slots)-slot-n)
	for i := range more {
		slots[slot+n+i] = uint64(keys[n+i])
	}
	m.store(h + header(more)<<56)
	f.slots += more
	return n + more, true
}

// Ref counts a name for the block at l. The block and those before it stay until Unref, or until
// the slab is evicted.
func (f *Forest) Ref(l Loc) { f.meta(l.Slab()).refs++ }

// Unref takes back a Ref. A slab without any is given up, if nothing is behind it:
// nobody may hold a slot of it any more.
func (f *Forest) Unref(l Loc) {
	l = f.Rehome(l)
	m := f.meta(l.Slab())
	m.refs--
	f.giveUp(l.Slab(), m)
}

// Pin keeps the slab of l, and all before it, until Unpin: none is evicted, and that slab
// is not moved.
func (f *Forest) Pin(l Loc) {
	f.meta(l.Slab()).kids++
	f.slabs.chunks[l.Slab()/chunkSlabs].pins++
}

// Unpin takes back a Pin.
func (f *Forest) Unpin(l Loc) {
	m := f.meta(l.Slab())
	m.kids--
	f.slabs.chunks[l.Slab()/chunkSlabs].pins--
	f.giveUp(l.Slab(), m)
}

// giveUp lets go of a slab without names and slabs behind it, and of those before it
// that nothing keeps then.
func (f *Forest) giveUp(id uint32, m *slabMeta) {
	for m.names()|m.behind() == 0 {
		if m.dead() { // the slab before it was released
			f.bury(id)
			return
		}
		before, gone := m.parent, m
		f.forget(id, m)
		if before != 0 {
			before = f.before(gone)
			m = f.meta(before.Slab())
			f.lose(m, gone)
		}
		f.leave(id, gone)
		if before == 0 {
			return
		}
		id = before.Slab()
	}
}

// forget takes a slab out of sight.
func (f *Forest) forget(id uint32, m *slabMeta) {
	f.heads.remove(f, Key(f.keys(id)[0]), id)
	f.slots -= header(m.header).written()
}

// Up returns the loc n slots before l, 0 if its chain begins there.
func (f *Forest) Up(l Loc, n int) Loc {
	l = f.Here(l)
	for l != 0 && n > l.Slot() {
		n -= l.Slot() + 1
		l = f.parent(l)
		if n == 0 {
			return l
		}
	}
	if l == 0 {
		return 0
	}
	return l - Loc(n)
}

// Between returns how many slots l is behind above, 0 standing for the root; false:
// it is not behind it, or more than most slots are between them.
func (f *Forest) Between(above, l Loc, most int) (n int, ok bool) {
	above, l = f.Here(above), f.Here(l)
	for l != above {
		if l == 0 || n > most {
			return 0, false
		}
		if above != 0 && above.Slab() == l.Slab() {
			n += l.Slot() - above.Slot()
			return n, above.Slot() < l.Slot() && n <= most
		}
		n += l.Slot() + 1
		l = f.parent(l)
	}
	return n, n <= most
}

// parent returns what is before the slab of l.
func (f *Forest) parent(l Loc) Loc {
	m := f.meta(l.Slab())
	if m.parent == 0 {
		return 0
	}
	return f.before(m)
}

// Reclaim makes ready for use what no reader can see any more.
func (f *Forest) Reclaim() {
	if f.slabs.waiting == 0 && f.recs.waiting == 0 && f.ords.waiting == 0 {
		return
	}
	f.epochs.Step()
	f.reclaimSlabs()
	f.recs.reclaim(f.epochs)
	f.ords.reclaim(f.epochs)
}

// Waiting reports whether slabs or records wait until no reader sees them.
func (f *Forest) Waiting() bool { return f.slabs.waiting+f.recs.waiting > 0 }

// Usage is what a Forest has and what that takes.
type Usage struct {
	Prefixes int // keys
	// Bytes: of the keys, of the table that finds them, and of who holds them. Free
	// are those of Keys and Holders that are ready for use.
	Keys, Heads, Holders, Free int
}

// Len returns the number of keys.
func (f *Forest) Len() int { return f.slots }

// Usage returns the size of f.
func (f *Forest) Usage() Usage {
	return Usage{
		Prefixes: f.slots, Keys: f.slabs.bytes, Heads: f.heads.bytes,
		Holders: f.recs.bytes + f.ords.bytes, Free: f.Free(),
	}
}

// Bytes returns what f takes.
func (f *Forest) Bytes() int64 {
	return int64(f.slabs.bytes + f.heads.bytes + f.recs.bytes + f.ords.bytes)
}

// Free returns the bytes that are ready for use.
func (f *Forest) Free() int { return f.FreeSlabs() + f.recs.freeBytes }
