package index

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// loc is the place of a key in the forest.
type loc = forest.Loc

// source is one cache as its events describe it.
//
// # Names
//
// The engine names blocks by hash, and prompts are looked up by key. So the name of a hash
// has everything: its keys, by their places in the forest, and its holders. A hash that no
// store has placed yet has a name without keys: it is held, and no query sees it. So
// orphans, masked stores of hybrid groups and stores by hash alone are one case: holding
// is recorded at once, and placing a name makes the block visible, whenever that happens.
// A removal treats them all alike. See name.
//
// # Lanes
//
// The holder of a block is a lane: a group and tier of the source, and how its blocks
// are cut. The forest identifies a lane by its ordinal. See lane.
//
// # Verbs
//
// A change becomes a few steps, each with a verb of its own:
//
//	place    a hash gets a key that it stands for
//	hold     a lane gets a copy of a block, its first or one more
//	gain     a lane gets its first copy
//	claim    a hash is about to hold a key that other hashes may hold
//	release  a lane gives up its last copy; the name is idle if nobody else holds it
//	hide     a released block may be there after all: a report was not counted
//	restore  a hidden block is held again: a child proved that it is there
//	forget   a name goes, with its keys and its hidden holdings
//	park     a store waits until its parent has a key
//	void     a parked store does not place a hash any more
//	drop     a store that waits for a key is given up, at the bound
//	clear    all blocks of the source go, or all of a tier
//	age      a tier begins a new generation, and the blocks of the oldest one go
//	renew    a block is of the newest generation again
//	retire   lanes, or the source, are not shown to readers any more, and then they go
//
// # Parts
//
// A source consists of values, each with a file that begins with its rules: lanes.go,
// nameset.go with name.go, idle.go and shared.go, pending.go for stores that wait,
// tenant.go for its part in evictions, snapshot_source.go for its part in a snapshot. The
// changes are in store.go, masked.go, reports.go, remove.go and clear.go, and graves.go
// tidies up behind a removed pod.
type source struct {
	id     Source
	feed   uint64 // differs from that of any earlier source with the id
	cfg    *MemoryConfig
	model  *model
	ground *ground
	f      *forest.Forest
	mem    *mem.Count // of all that the index takes

	// Readers see the views of the source. These outlive it: candidates that are kept for
	// long must not keep a source.
	views *atomic.Pointer[[]*view]

	removed atomic.Bool // with its pod: look it up again

	// writer orders the Applies and guards all below. The ground's lock is
	// taken after it, and released now and then (yield).
	writer  sync.Mutex
	cursors cursorList
	lanes   laneTable
	nameSet
	waits  waitList
	tenant tenant
	dump   *sourceDump // nil: no snapshot has reached the source
	history
	applyState
}

// history is the losses of a source since its last OpClear.
type history struct {
	cleared uint32 // the time at the end of that OpClear, by the clock of the forest
	evicted uint64 // holdings
	// doubts: the index gave up blocks that the engine may hold. Then a report can name
	// blocks that are not in view.
	doubts bool
}

// applyState is the Apply in progress.
type applyState struct {
	mamba     bool // it stores in a Mamba group
	prompt    rootStore
	counts    Counts       // since the last Apply ended
	work      int          // names visited since the ground's lock was taken
	inHand    int          // callers that keep places of names
	following *maskedStore // nil: there is none
	forged    bool         // a name has one key at two places, as only a forged snapshot makes it
}

func newSource(id Source, m *memory, md *model, feed uint64) *source {
	count := &md.ground.mem
	text := strings.Clone(id.Pod + id.Model) // the caller's strings may be parts of long ones
	id.Pod, id.Model = text[:len(id.Pod)], text[len(id.Pod):]
	s := &source{
		id:      id,
		feed:    feed,
		cfg:     &m.cfg,
		model:   md,
		ground:  md.ground,
		f:       md.ground.forest,
		mem:     count,
		cursors: cursorList{mem: count},
		lanes:   laneTable{f: md.ground.forest, mem: count, ordinals: &md.holders},
		nameSet: newNameSet(md.ground.forest, count),
		waits:   waitList{storeQueue: storeQueue{f: md.ground.forest, mem: count, salt: &m.salt}},
		views:   new(atomic.Pointer[[]*view]),
	}
	s.waits.s, s.tenant.s = s, s
	s.views.Store(new([]*view))
	s.mem.Add(s.ownBytes())
	s.names.Init(m.salt, count)
	return s
}

// yieldAfter is how many names an Apply goes through before it lets the writers
// of other sources in.
const yieldAfter = 256

// yield counts names, and lets the writers of other sources in after yieldAfter of them.
// The forest may have changed then: only places that names of s refer to stay valid.
func (s *source) yield(names int) {
	if s.due(names) {
		s.ground.mu.Unlock()
		s.ground.mu.Lock()
		s.goOn()
	}
}

// pass is yield for changes that go through all names: those who wait are let in for sure.
// Small changes do not: each turn that is given up costs a switch of goroutines.
func (s *source) pass(names int) {
	if s.due(names) {
		s.ground.mu.pass()
		s.goOn()
	}
}

func (s *source) due(names int) bool {
	if s.work += names; s.work < yieldAfter {
		return false
	}
	s.work = 0
	return true
}

func (s *source) goOn() {
	s.f.Reclaim()
	s.f.Tick()
	s.ground.waitForReaders()
}

// applyAll returns false if the source was removed with its pod.
func (s *source) applyAll(cur Cursor, changes []Change) (done Effect, ok bool, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.removed.Load() {
		return Effect{}, false, nil
	}
	if cur != (Cursor{}) {
		i, ok := s.cursors.find(cur.Stream)
		if ok && !s.cursors.all[i].Before(cur) {
			return Effect{Duplicate: true, Evicted: s.evicted}, true, nil
		}
		if !ok {
			if !s.ground.canAdmit(s, s.cursors.growth(cur.Stream)) {
				return Effect{}, true, s.ground.errFull(s.id, fmt.Sprintf(", stream %q", cur.Stream))
			}
			s.cursors.insert(i, cur.Stream)
		}
		cur.Stream = s.cursors.all[i].Stream
		s.cursors.all[i] = cur
	}
	s.mamba = false
	for i := range changes {
		s.mamba = s.mamba || changes[i].Op == OpStore && changes[i].Group.Kind == GroupMamba
	}
	s.ground.mu.Lock()
	defer s.ground.mu.Unlock()
	s.f.Reclaim()
	s.f.Tick()
	s.clearUnseen(changes)
	for i := range changes {
		if s.removed.Load() {
			return Effect{}, false, nil
		}
		s.apply(&changes[i])
		s.pause(1)
	}
	s.settle()
	if s.forged {
		s.forgetAll()
	}
	s.prompt = rootStore{}
	s.tenant.report()
	if s.following != nil {
		s.ground.giveFollowing(s.following)
		s.following = nil
	}
	done = Effect{Counts: s.counts, Evicted: s.evicted}
	s.counts = Counts{}
	return done, true, nil
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
	case OpAge:
		s.age(c.Tier)
	}
}

func (s *source) describe() SourceInfo {
	s.writer.Lock()
	defer s.writer.Unlock()
	return SourceInfo{
		Source: s.id, Blocks: s.lanes.blocks, Parked: s.waits.parked, Unplaced: s.keyless,
		Evicted: s.evicted,
	}
}

// ownBytes returns the bytes of s without its names and the stores that wait.
func (s *source) ownBytes() int {
	n := mem.SizeOf[source]() + mem.SizeOf[atomic.Pointer[[]*view]]() +
		mem.Size(len(s.id.Pod)+len(s.id.Model)) + s.cursors.bytes() +
		s.lanes.bytes() + viewBytes(*s.views.Load())
	if s.dump != nil {
		n += s.dump.bytes + s.dump.seen.Bytes()
	}
	return n
}

// discard takes a removed source out of the counts, and releases its names. s.writer is
// held, and nothing of s is in the forest any more.
func (s *source) discard() {
	s.tenant.leave()
	s.mem.Add(-s.ownBytes())
	s.discardNames()
}
