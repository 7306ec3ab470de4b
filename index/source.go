package index

import (
	"container/list"
	"slices"
	"sync"
	"sync/atomic"
)

// source is one cache as its events describe it.
//
// The engine speaks of blocks by hash, prompts are looked up by key. So all
// that is known hangs on the name of a hash: the keys it stands for, by their
// locs in the forest, and who holds it. A hash that no store has placed yet has
// a name without keys: it is held, and no query sees it. This makes orphans,
// masked stores and stores by hash alone one case: holding is recorded at
// once, and placing a name, whenever it happens, makes the block visible.
//
// A name is one of four things, told apart by its value:
//
//	nothing   it is not known
//	plain     one key, and it holds one copy in each lane that its slot in the
//	          forest says: nothing else needs to be kept
//	idle      one key, and nobody holds it: its place in the queue of those
//	rich      anything else: its richName
//
// Each key of a name is a ref of its slab.
type source struct {
	id    Source
	cfg   *MemoryConfig
	model *model
	f     *forest

	// views are what readers see of the source. They outlive it: candidates
	// that are kept for long must not keep a source.
	views *atomic.Pointer[[]*view]

	removed atomic.Bool // with its pod: look it up again

	// writer orders the Applies and guards all below. The model's lock is
	// taken after it, and let go of now and then.
	writer  sync.Mutex
	cursors map[string]Cursor
	groups  map[int]*group
	lanes   []*laneState // by number; nil: a free number
	names   names
	riches  pool[richName]
	copies  pool[copyCount]
	more    map[Hash][]loc // keys of rich names beyond the second
	hidden  map[loc]Hash   // names with a holding that a report hid, by their keys
	counts  Counts         // of the Apply in progress or the last
	work    int            // names looked at since the model's lock was taken

	// lossy: since the last clear, blocks were forgotten that the engine may
	// hold. A report can then name blocks beside the known ones.
	lossy bool

	blocks [NumTiers]int // holdings with copies, by tier
	parked int           // elements of waiting

	// idle are the names that nobody holds, oldest first, at most IdleNames of
	// them after each change, and in the long run a quarter of what is held.
	// They all have keys: a name without keys and holders is deleted.
	idle      pool[idleName]
	idleFirst uint32
	idleLast  uint32

	// shared has, once two names of one key were held, all names that hold
	// something, by their keys. Those of one key are rich.
	shared     map[loc]sharedNames
	sharedKeys int // with two names or more

	// pending are the stores of which a hash had no key, oldest first;
	// pendingBytes is the sum of their costs. waiting has those among them
	// that are parked, by the parent that would place them.
	pending      list.List
	pendingBytes int
	waiting      map[place][]*pending
	parkedBy     map[Hash][]*pending // parked stores, by their hashes

}

const (
	// maxRestore bounds the walk of restore, in blocks: a hostile engine can
	// make the parents a circle.
	maxRestore = 1 << 12
	// maxNames bounds the held names of one key: it takes salts that the
	// engine does not tell to have more than one.
	maxNames = 64
	// maxCuts bounds the block sizes of a source, of which partial entries and
	// chunks have one each, and maxLanes its lanes: readers walk a prompt once
	// for each size of their candidates.
	maxCuts  = 64
	maxLanes = 256
)

func newSource(id Source, m *Memory, md *model) *source {
	s := &source{
		id:      id,
		cfg:     &m.cfg,
		model:   md,
		f:       md.forest,
		cursors: make(map[string]Cursor),
		groups:  make(map[int]*group),
		waiting: make(map[place][]*pending),
		views:   new(atomic.Pointer[[]*view]),

		parkedBy: make(map[Hash][]*pending),
	}
	s.names.init(m.salt)
	s.views.Store(new([]*view))
	return s
}

// breath is how many names an Apply goes through before it lets the writers of
// other sources in.
const breath = 256

// breathe lets them in.
func (s *source) breathe(names int) {
	if s.work += names; s.work < breath {
		return
	}
	s.work = 0
	s.model.mu.Unlock()
	s.model.mu.Lock()
	s.f.reclaim()
}

// applyAll returns false if the source was removed with its pod.
func (s *source) applyAll(cur Cursor, changes []Change) (Applied, bool) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.removed.Load() {
		return Applied{}, false
	}
	if cur != (Cursor{}) {
		if old, ok := s.cursors[cur.Stream]; ok && !old.Before(cur) {
			return Applied{Cursor: old, Duplicate: true}, true
		}
		s.cursors[cur.Stream] = cur
	}
	s.counts = Counts{}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	s.f.reclaim()
	for i := range changes {
		if s.removed.Load() {
			return Applied{}, false
		}
		s.apply(&changes[i])
		s.breathe(1)
	}
	return Applied{Cursor: cur, Counts: s.counts}, true
}

// retire has later Applies look for another source, and the one in progress stop
// soon.
func (s *source) retire() {
	s.removed.Store(true)
	s.writer.Lock()
	defer s.writer.Unlock()
	s.pending.Init()
	s.waiting, s.parkedBy, s.shared, s.hidden = nil, nil, nil, nil
}

func (s *source) apply(c *Change) {
	switch c.Op {
	case OpStore:
		s.store(c)
	case OpRemove:
		s.remove(c)
	case OpClear:
		s.clear()
	case OpClearTier:
		s.clearTier(c.Tier)
	}
}

// store places what can be placed, then counts.
func (s *source) store(c *Change) {
	g, changed := s.group(c)
	if changed {
		defer s.publish()
	}
	if len(c.Hashes) == 0 {
		return
	}
	s.counts.Stored += uint64(len(c.Hashes))
	dense := len(c.Locals) > 0 && len(c.Hashes) == c.Blocks()
	held, by := c.Hashes, cut{c.Variant, c.BlockSize}
	switch {
	case c.Tier != TierGPU && dense:
		// A chunk of a lower tier is loaded as a whole or not at all: one
		// block, named by its last hash.
		held = c.Hashes[len(c.Hashes)-1:]
		by.size *= len(c.Hashes)
	case len(c.Locals) == 0:
		by = cut{}
	}
	ln := s.lane(g, c.Tier, by)
	variant, ok := s.f.variant(c.Variant)
	if ln == nil || !ok && len(c.Locals) > 0 {
		s.counts.Dropped++
		s.lossy = true
		return
	}
	st := storing{c: c, g: g, lane: ln, chained: dense}
	s.begin(&st, held)
	// What a lower tier says of a prefix leaves out salts and media, so it
	// names nothing.
	if dense && c.Tier == TierGPU {
		if prev, ok := s.before(c, variant); ok {
			s.storeAt(&st, prev, variant)
			return
		}
		s.holdAll(&st, held)
		s.park(&pending{
			group: g, tier: c.Tier, hashes: slices.Clone(c.Hashes),
			parent: place{c.Parent, variant}, locals: slices.Clone(c.Locals),
			cut: by,
		})
		return
	}
	s.holdAll(&st, held)
	if !st.nothing && slices.ContainsFunc(held, s.unplaced) {
		s.await(&pending{group: g, tier: c.Tier, hashes: slices.Clone(held)})
	}
}

// storing is a store that is being carried out.
type storing struct {
	c       *Change
	g       *group
	lane    *laneState
	guarded bool // against reports
	report  bool
	nothing bool // is held by it: it only gives names
	chained bool // each block is the parent of the next
}

// begin decides what a store counts for, by the rules of Copies.
func (s *source) begin(st *storing, held []Hash) {
	c, full := st.c, st.g.Kind == GroupFull
	st.guarded = c.Tier == TierGPU && c.Copies == CopiesGuarded
	if st.guarded && full && c.HasParent {
		s.restore(c.Parent, st.g)
	}
	if st.guarded && !full && !c.HasParent && s.anyHeld(held, st.g) {
		// Reports of sparse groups name blocks that nobody holds.
		s.counts.Reports += uint64(len(held))
		st.nothing = true
	}
	st.report = c.Reused || st.guarded && !c.HasParent && (c.Partial || s.lossy || s.allSeen(held, st.g))
}

// before returns the loc that the first block of a dense store continues.
func (s *source) before(c *Change, variant uint32) (loc, bool) {
	if !c.HasParent {
		return 0, true
	}
	return s.locOf(place{c.Parent, variant})
}

// storeAt carries out a dense gpu store behind prev.
func (s *source) storeAt(st *storing, prev loc, variant uint32) {
	c := st.c
	key := c.Root
	if prev != 0 {
		key = s.f.keyAt(prev)
	}
	s.placeRange(prev, variant, key, c.Locals, c.BlockSize/c.Variant.Unit, func(from, to int, ends blockEnds) {
		s.names.touch(c.Hashes[from:to])
		s.storePiece(st, from, to, ends)
		if len(s.waiting) > 0 {
			for _, h := range c.Hashes[from:to] {
				s.join(place{h, variant})
			}
		}
	})
}

// pieceUnits is how many keys are placed at once.
const pieceUnits = 256

// placeRange places the blocks of a range behind prev, whose key is key, piece
// by piece. It has f see to the blocks that a piece ends, from one to another,
// and lets other writers in between.
func (s *source) placeRange(prev loc, variant uint32, key Key, locals []Local, units int, f func(from, to int, ends blockEnds)) {
	if prev != 0 {
		s.f.ref(prev) // not to lose it to the writers that are let in
	}
	r := s.model.takeRoom()
	defer s.model.giveRoom(r)
	locs := r.locs[:]
	for at := 0; at < len(locals); at += pieceUnits {
		keys := r.keys[:0]
		for _, l := range locals[at:min(at+pieceUnits, len(locals))] {
			key = Chain(key, l)
			keys = append(keys, key)
		}
		if !s.f.place(prev, variant, keys, locs[:len(keys)]) {
			s.counts.Dropped++
			s.lossy = true
			break
		}
		last := locs[len(keys)-1]
		s.f.ref(last)
		from, to := at/units, (at+len(keys))/units
		if to > from {
			f(from, to, blockEnds{locs, units, at})
		}
		if prev != 0 {
			s.f.unref(prev)
		}
		prev = last
		s.breathe(len(keys))
	}
	if prev != 0 {
		s.f.unref(prev)
	}
}

// blockEnds are the locs of a piece of a range, which begins at unit first.
type blockEnds struct {
	locs         []loc
	units, first int // a block has units of them
}

// of returns where block i of the range ends.
func (e blockEnds) of(i int) loc { return e.locs[(i+1)*e.units-1-e.first] }

// room is the memory of a placeRange. Joining nests them, and others need theirs
// while one lets them in.
type room struct {
	keys [pieceUnits]Key
	locs [pieceUnits]loc
}

func (md *model) takeRoom() *room {
	n := len(md.rooms)
	if n == 0 {
		return new(room)
	}
	r := md.rooms[n-1]
	md.rooms = md.rooms[:n-1]
	return r
}

func (md *model) giveRoom(r *room) {
	if len(md.rooms) < 16 {
		md.rooms = append(md.rooms, r)
	}
}

// storePiece names blocks of a store, which end at ends, and has them
// held.
//
// Nearly all blocks are new to the source. So those that share a slab are given
// plain names one after the other, and the slab is told once.
func (s *source) storePiece(st *storing, from, to int, ends blockEnds) {
	for from < to {
		id := ends.of(from).slab()
		mine := s.slotsOf(id)
		var plain, refs uint32
		for i := from; i < to; i++ {
			l := ends.of(i)
			bit := uint32(1) << l.slot()
			if l.slab() != id || (mine|plain)&bit != 0 || s.shared != nil || st.nothing || s.names.add(st.c.Hashes[i], value(l)) != 0 {
				break
			}
			plain |= bit
			refs++
		}
		if refs > 0 {
			s.f.meta(id).refs += refs
			s.f.setMask(id, st.lane.ord, s.f.maskOf(id, st.lane.ord)|plain)
			s.count(st.lane, int(refs))
			from += int(refs)
			continue
		}
		h := st.c.Hashes[from]
		s.hold(st, from, h, s.name(h, s.names.get(h), ends.of(from)))
		s.trimIdle()
		from++
	}
}

func (s *source) describe() SourceInfo {
	s.writer.Lock()
	defer s.writer.Unlock()
	return SourceInfo{
		Source: s.id, Blocks: s.blocks, Names: s.names.n, Parked: s.parked,
		Bytes: s.bytes(),
	}
}

func (s *source) bytes() int {
	n := s.names.bytes() + s.pendingBytes
	n += poolPage * (32*len(s.riches.pages) + 24*len(s.copies.pages) + 24*len(s.idle.pages))
	n += 4*cap(s.riches.free) + 4*cap(s.copies.free) + 4*cap(s.idle.free)
	return n + 64*len(s.shared) + 48*len(s.hidden)
}
