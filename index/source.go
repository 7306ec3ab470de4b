package index

import (
	"container/list"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/names"
)

// loc is where a key is in the forest.
type loc = forest.Loc

// source is one cache as its events describe it.
//
// # Names
//
// The engine speaks of blocks by hash, prompts are looked up by key. So all that
// is known hangs on the name of a hash: the keys it stands for, by their places
// in the forest, and who holds it. A hash that no store has placed yet has a name
// without keys: it is held, and no query sees it. This makes orphans, masked
// stores of hybrid groups and stores by hash alone one case: holding is recorded
// at once, and placing a name, whenever it happens, makes the block visible. A
// removal need not know which of them it meets. See name.
//
// # Lanes
//
// Who holds a block is a lane: a group and tier of the source, and how its blocks
// are cut. The forest knows a lane by its ordinal. See lane.
//
// # Verbs
//
// A change becomes a few steps, and each verb means one of them:
//
//	place    a hash gets a key that it stands for
//	hold     a lane gets a copy of a block, its first or one more
//	gain     a lane gets its first copy
//	claim    a hash is about to hold a key that other hashes may hold
//	release  a lane gives up its last copy; the name is idle if nobody else holds it
//	hide     what a lane released may be there after all: a report was not counted
//	restore  what was hidden is held again: a child proved that it is there
//	forget   a name goes, with its keys and all that is hidden
//	park     a store waits until its parent has a key
//	void     a parked store has no say any more in what a hash stands for
//	drop     what waits for a key is given up, at the bound
//	clear    all that the source holds goes, or all of a tier
//	retire   lanes, or the source, are not shown to readers any more, and then they go
//
// Each has a file that begins with its rules: store.go, remove.go, clear.go,
// reports.go what is hidden and comes back, pending.go what waits, masked.go what
// follows in masked stores, name.go, shared.go and idle.go what names are, lanes.go, graves.go what is left of a
// removed pod.
type source struct {
	id    Source
	cfg   *MemoryConfig
	model *model
	f     *forest.Forest

	// views are what readers see of the source. They outlive it: candidates
	// that are kept for long must not keep a source.
	views *atomic.Pointer[[]*view]

	removed atomic.Bool // with its pod: look it up again

	// writer orders the Applies and guards all below. The model's lock is
	// taken after it, and let go of now and then (yield).
	writer  sync.Mutex
	cursors map[string]Cursor
	groups  map[int]*group
	layout  *Layout // what was published of groups last
	lanes   []*lane // by number; nil: a free number
	names   names.Table[Hash, value]
	riches  pool[richName]
	copies  pool[copyCount]
	more    map[Hash][]loc      // keys of rich names beyond the second
	hidden  map[loc]hiddenNames // what reports hid, by key
	counts  Counts              // of the Apply in progress or the last
	work    int                 // names looked at since the model's lock was taken

	// doubts: since the last clear, blocks were given up that the engine may
	// hold. A report can then name blocks beside the known ones.
	doubts bool

	changes []Change  // of the Apply in progress
	prompt  rootStore // of it

	blocks [NumTiers]int // holdings with copies, by tier
	parked int           // stores that are

	// idle are the names that nobody holds, oldest first, at most IdleNames of
	// them after each change, and in the long run a quarter of what is held.
	// They all have keys: a name without keys and holders is forgotten.
	idle      pool[idleName]
	idleFirst uint32
	idleLast  uint32
	clears    uint32 // OpClears, with what they left idle

	// shared has, once two names of one key were held, all names that hold
	// something, by their keys. Those of one key are rich.
	shared     map[loc]sharedNames
	sharedKeys int // with two names or more

	// pending are the stores of which a hash had no key, oldest first;
	// pendingBytes is the sum of their costs.
	pending      list.List
	pendingBytes int
	// waiting has those among them that are parked, and masked ones of draft groups
	// whose parent has no key, by that parent. listed has those that are parked, and
	// masked ones of window groups, by their hashes, when something happens to these
	// or after the Apply. masked are those that are to be looked at after the Apply.
	waiting map[hashIn][]*pending
	listed  map[Hash][]*pending
	masked  []*pending
	noted   int // of masked, how many were listed
	// following is the memory of a maskedStore.
	following maskedStore
}

func newSource(id Source, m *Memory, md *model) *source {
	s := &source{
		id:      id,
		cfg:     &m.cfg,
		model:   md,
		f:       md.forest,
		cursors: make(map[string]Cursor),
		groups:  make(map[int]*group),
		waiting: make(map[hashIn][]*pending),
		listed:  make(map[Hash][]*pending),
		views:   new(atomic.Pointer[[]*view]),
	}
	s.names.Init(m.salt)
	s.views.Store(new([]*view))
	return s
}

// yieldAfter is how many names an Apply goes through before it lets the writers
// of other sources in.
const yieldAfter = 256

// yield lets the writers of other sources in, if it is time after so many names
// more. The forest may have changed then: only what the names of s refer to is
// still where it was.
func (s *source) yield(names int) {
	if s.work += names; s.work < yieldAfter {
		return
	}
	s.work = 0
	s.model.mu.Unlock()
	s.model.mu.Lock()
	s.f.Reclaim()
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
	s.counts, s.changes = Counts{}, changes
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	s.f.Reclaim()
	for i := range changes {
		if s.removed.Load() {
			return Applied{}, false
		}
		s.apply(&changes[i])
		s.yield(1)
	}
	s.settle()
	s.changes, s.prompt = nil, rootStore{}
	return Applied{Cursor: cur, Counts: s.counts}, true
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

// count notes that a lane holds so many blocks more.
func (s *source) count(ln *lane, n int) {
	ln.blocks += n
	s.blocks[ln.tier] += n
}

func (s *source) describe() SourceInfo {
	s.writer.Lock()
	defer s.writer.Unlock()
	return SourceInfo{
		Source: s.id, Blocks: s.blocks, Names: s.names.Len(), Parked: s.parked,
		Bytes: s.bytes(),
	}
}

// What an entry of a map takes beside its key and value is about as much again.
const (
	sharedBytes = 2 * int(unsafe.Sizeof(loc(0))+unsafe.Sizeof(sharedNames{}))
	hiddenBytes = 2 * int(unsafe.Sizeof(loc(0))+unsafe.Sizeof(hiddenNames{}))
)

func (s *source) bytes() int {
	return s.names.Bytes() + s.pendingBytes + s.riches.bytes() + s.copies.bytes() + s.idle.bytes() +
		sharedBytes*len(s.shared) + hiddenBytes*len(s.hidden)
}
