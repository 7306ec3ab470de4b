package index

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// The bound in bytes. What a Memory takes of the heap is counted where it is allocated
// (ground.mem), and never passes the budget. Near it, the writers make room, in cycles
// of small steps:
//
//	move    slabs leave chunks that are nearly empty, if much stands empty
//	relink  what is behind those says where they are now
//	idle    the oldest idle names are forgotten
//	parked  the oldest stores that wait are dropped
//	look    how cold the slabs are, and which are the coldest leaves; again in finer steps
//	        if most of them are of one age class
//	kill    these die: nobody finds them any more
//	sweep   the names of dead slabs are forgotten, those of moved ones say where they are
//
// A cycle begins when little room is left, or memory has grown and few pages are left,
// and ends when as much has gone. Each store does a part of it that is in proportion to
// what it takes of the rest, so that a cycle ends before the rest does. If it does not,
// stores are dropped.
//
// # Names of dead slabs
//
// There is no way from a slab to its names, which are in the tables of the sources that
// have it, each guarded by its writer. A map from slabs to names would take 8 bytes for
// each name all the time, a third of what a name takes. A sweep looks at all names, at
// little more than a nanosecond each, and as a cycle evicts a part of them, for each name
// that goes it looks at as many as that part goes into the whole. So what a cycle is for
// must not be small beside what it looks at (resize); half of that stands empty on
// average.
//
// A name of a dead slab stands for nothing. It is forgotten by whoever meets it (bury),
// or else by the sweep. The sweep tries the locks of other sources while it holds none
// of the ground; a source that is busy sweeps its own names between its changes. So
// nobody waits for anybody.
//
// # What stands empty
//
// Slabs go by their age, wherever they are, and leave holes in chunks that one hot slab
// keeps. A hole serves a run of its size. It does not serve a longer one, or a name. So if
// holes are worth more than a cycle is for, it begins with slabs that leave the emptiest
// chunks, and nothing is evicted if that is enough.
//
// # Why so
//
//   - The bound is in bytes of heap. Each structure counts what it takes where it allocates
//     it, in pages of its own. So the sum is what a heap profile shows, and no estimate has to
//     be right.
//   - Leaves go. A block goes for all its holders with its slab, and only if nothing is behind
//     it: a hole in a chain would make all behind it worthless and keep its memory.
//   - The writer that stores pays for a cycle. There is no goroutine that may be late, and
//     readers notice nothing.
//   - Ages are counted in classes that are wider the older they are. Where most of the memory
//     is of one class, it is counted again in finer steps, so a part of it goes.
//   - Hot slabs are moved. Without that, a model with long prompts had a third of its room
//     after a model with short prompts.
//   - A store is dropped and counted where even that fails. No structure has to undo half of
//     something.

const (
	// evictPart is the part of the budget that a cycle is for at most, smallPart and
	// minEvict at least, the latter in bytes. Between them it is evictLook bytes for each
	// name and slab that the cycle looks at: with names of single units that is the most.
	evictPart = 48
	smallPart = 256
	minEvict  = 16 << 10
	evictLook = 0.54
	// slackPart and minSlack are what is left for what cannot be refused. It is more
	// than what one name makes any structure allocate.
	slackPart = 128
	minSlack  = 32 << 10
	// admitPart and minAdmit are what is left for sources.
	admitPart = 512
	minAdmit  = 8 << 10

	// Steps of a cycle: so many slabs, idle names, or stores that wait.
	stepSlabs  = 2048
	stepIdle   = 64
	stepParked = 8

	// nameCost is what a name takes in the tables of names, about.
	nameCost = 20
	idleCost = nameCost + 24
)

type phase uint8

const (
	phaseRest phase = iota
	phaseMove
	phaseRelink
	phaseIdle
	phaseParked
	phaseLook
	phaseKill
	phaseSweep
)

// keeper keeps a ground within its budget. It is guarded by ground.mu.
type keeper struct {
	budget  int64
	slack   int64
	admits  int64 // for sources
	part    int64 // what a cycle is for; it begins when a quarter of that is left
	reserve int64 // pages that new chunks of slabs leave for what else there is

	// As the sources report: names, what they take, those that are idle, how many there is
	// room for, and bytes of stores that wait.
	names, nameBytes, idle, nameRoom, waits int64

	lost uint64 // holdings that were evicted

	phase  phase
	cycle  uint32
	high   int64 // the most that was taken since the last cycle
	again  int64 // what the next cycle is for, if it is for pages
	want   int64 // bytes that are still to go
	hollow int64 // bytes of chunks that are still to be emptied
	moved  bool  // slabs were
	barren bool  // nothing was left to evict
	all    []*source
	next   int       // of all, in a pass
	half   []*source // that a sweep is not through with
	busy   int       // writers that sweep another source now
	age    uint32    // what is older goes, of idle names and stores that wait
	oldest uint32    // age of what the pass has left
	survey forest.Survey
	picked []names.Picked[Hash]
	credit int64 // steps that were paid for, in names
	price  int64 // of a name that is stored
}

func (k *keeper) init(budget int64) {
	k.budget = budget
	k.slack = max(minSlack, budget/slackPart)
	k.admits = max(minAdmit, budget/admitPart)
	k.reserve = max(minEvict, budget/evictPart) / 2
	k.resize(0)
}

// pages returns how many bytes of heap stores may still take.
func (g *ground) pages() int64 { return g.budget - g.slack - g.admits - g.mem.Load() }

// near reports whether blocks are likely to be evicted soon.
func (g *ground) near() bool { return g.pages() < 4*g.reserve }

// resize has the next cycle be for as much as pays for looking at so many names and slabs.
func (k *keeper) resize(looks int64) {
	k.part = max(minEvict, k.budget/smallPart, min(int64(evictLook*float64(looks)), k.budget/evictPart))
}

// full reports whether stores may take no more of the heap.
func (g *ground) full() bool { return g.pages() <= 0 }

// room returns how many bytes may be stored, about. A name takes its part of the forest,
// which leaves the last pages for names, and a place in a table of names, where half of
// what is free is taken to be of use.
func (g *ground) room() int64 {
	free, pages := int64(g.forest.Free()), max(g.pages(), 0)
	each := max((g.forest.Bytes()-free)/max(g.names, 1), 8)
	forest := (free + max(pages-g.reserve, 0)) / each
	table := g.nameRoom/2 + pages/nameCost
	return min(forest, table) * (each + nameCost)
}

// canAdmit makes room for a source, or so many bytes of s, or returns false.
func (g *ground) canAdmit(s *source, bytes int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hasRoomFor(s, bytes)
}

// hasRoomFor is canAdmit for a writer, who holds g.mu.
func (g *ground) hasRoomFor(s *source, bytes int) bool {
	return g.makeRoom(s, func() bool { return g.pages()+g.admits > int64(bytes) })
}

// errFull is about a source, and what of it has no room.
func (g *ground) errFull(id Source, what string) error {
	return fmt.Errorf("%w: pod %q, model %q, rank %d%s: what must be kept takes all of %d bytes", ErrFull, id.Pod, id.Model, id.Rank, what, g.budget)
}

// admit takes a source in, and counts what the tables have more.
func (g *ground) admit(s *source, bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addTables(bytes)
	s.number = len(g.all)
	g.all = mem.Append(&g.mem, g.all, s)
	s.report()
}

func (g *ground) addTables(n int) {
	g.tables += n
	g.mem.Add(n)
}

// dismiss takes a source out that was removed.
func (g *ground) dismiss(s *source) {
	last := len(g.all) - 1
	g.all[s.number] = g.all[last]
	g.all[s.number].number = s.number
	g.all[last] = nil
	g.all = g.all[:last]
	g.half = slices.DeleteFunc(g.half, func(o *source) bool { return o == s })
}

// watch begins a cycle if it is time: if there is little room, or there was growth and
// few pages are left, which a sweep may give back.
func (g *ground) watch() {
	if g.phase != phaseRest {
		return
	}
	taken := g.mem.Load()
	grown := taken > g.high
	g.high = max(g.high, taken)
	if grown {
		g.mem.SetFrugal(g.pages() < 2*g.reserve)
	}
	switch room := g.room(); {
	case room < g.part/4:
		g.begin(g.part*5/4 - room)
	case grown && g.pages() < g.reserve/2:
		g.begin(g.again)
	}
}

// begin begins a cycle that is to make so many bytes ready; 0: but to give pages back.
func (g *ground) begin(want int64) {
	g.cycle++
	g.phase, g.next, g.age, g.oldest = phaseIdle, 0, ^uint32(0), 0
	g.want, g.barren = want, false
	if want == 0 {
		g.phase = phaseSweep
	}
	g.moved, g.hollow = false, int64(g.forest.FreeSlabs())-g.part/2
	if g.hollow > g.part/2 {
		g.phase = phaseMove
		g.forest.Empty(&g.survey, int(g.hollow))
	}
	work := g.names + int64(g.forest.Slabs())
	rest := max(g.room(), 0) * 3 / 4 / g.perName() // names that still can be stored
	g.price = work/max(rest, 1) + 1
	g.credit = 0
}

// perName returns what all takes, for each name.
func (g *ground) perName() int64 {
	return max(g.mem.Load()/max(g.names, 1), idleCost)
}

// nameCostNow returns what a name takes beside the forest: one of several keys or holders takes
// several times nameCost. A survey that took too little for it would take all that is there for
// the half that was used last, which stays.
func (g *ground) nameCostNow() int { return max(nameCost, int(g.nameBytes/max(g.names, 1))) }

// pay is told of names that are stored, and does its part of a cycle. It holds g.mu,
// and lets go of it now and then. s is the writer, nil: there is none.
func (g *ground) pay(names int, s *source) {
	g.watch()
	if g.phase == phaseRest {
		return
	}
	g.credit = min(g.credit+int64(names)*g.price, 1<<16)
	for g.credit > 0 && g.phase != phaseRest {
		g.credit -= int64(g.step(s))
	}
}

// makeRoom does steps until ok, or none helps. It holds g.mu, and lets go of it now and
// then. What a cycle makes ready may not be what is needed, so each is for twice as much.
func (g *ground) makeRoom(s *source, ok func() bool) bool {
	want, begun := g.part, false
	for most := 1 << 19; most > 0; {
		if ok() {
			return true
		}
		if g.phase == phaseRest {
			if begun && g.barren {
				return false
			}
			begun = true
			g.begin(want)
			want *= 2
		}
		most -= g.step(s)
		if g.forest.Waiting() { // for a reader, who may need this processor
			g.mu.Unlock()
			runtime.Gosched()
			g.mu.Lock()
		}
	}
	return ok()
}

// setAside makes room for a store that may have to wait, but for its names, and counts
// that until it does. It returns false if there is no room. s is the writer.
func (g *ground) setAside(s *source, hashes, locals int) (bytes int, ok bool) {
	each := int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(waiter{}))
	bytes = mem.Size(each*hashes) + mem.Size(localBytes*locals)
	if int64(bytes) > g.slack/8 && !g.makeRoom(s, func() bool { return g.pages() > int64(bytes) }) {
		return 0, false
	}
	g.mem.Add(bytes)
	return bytes, true
}

// waitForReaders lets readers go on, if so much waits for them that half of the slack is
// gone: what is changed has to be kept as it was for them. It holds g.mu, and lets go of
// it now and then.
func (g *ground) waitForReaders() {
	for most := 64; most > 0 && g.forest.Waiting() && g.budget-g.mem.Load() < g.slack/2; most-- {
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
		g.forest.Reclaim()
	}
}

// step does a step of the cycle, and returns what it cost, in names that are looked at.
func (g *ground) step(s *source) int {
	g.forest.Reclaim()
	if len(g.graves) > 0 {
		g.tidy(yieldAfter)
		return yieldAfter
	}
	switch g.phase {
	case phaseMove:
		return g.stepMove()
	case phaseRelink:
		if g.forest.Relink(&g.survey, stepSlabs) {
			if g.phase = phaseIdle; g.want <= 0 {
				g.sweepNames()
			}
		}
		return stepSlabs
	case phaseIdle, phaseParked:
		return g.stepOld(s)
	case phaseLook:
		if g.forest.Look(&g.survey, stepSlabs) && !g.survey.Finer(g.want, g.budget/2) {
			g.phase = phaseKill
			if g.barren = !g.survey.Choose(g.want, g.budget/2); g.barren {
				g.end()
			}
		}
		return stepSlabs
	case phaseKill:
		freed, done := g.forest.Evict(&g.survey, stepSlabs)
		if g.want -= freed; done {
			g.sweepNames()
		}
		return stepSlabs
	default:
		return g.stepSweep(s)
	}
}

// stepMove empties a chunk.
func (g *ground) stepMove() int {
	bytes, slabs, done := g.forest.Move(&g.survey)
	g.moved = g.moved || slabs > 0
	g.want -= int64(bytes)
	if g.hollow -= int64(bytes); done || g.hollow <= 0 {
		g.phase = phaseRelink
		g.forest.Begin(&g.survey, g.nameCostNow())
	}
	return 64 + 8*slabs
}

// sweepNames goes on to the names.
func (g *ground) sweepNames() {
	g.phase, g.next, g.half = phaseSweep, 0, g.half[:0]
}

// end ends a cycle that evicts no slabs.
func (g *ground) end() {
	if g.moved {
		g.sweepNames()
		return
	}
	g.rest()
}

// rest ends a cycle.
func (g *ground) rest() {
	g.phase = phaseRest
	g.resize(g.names + int64(g.forest.Slabs()))
	g.high = g.mem.Load()
	g.again = 0
	if g.pages() < g.reserve/2 { // what has room does not give it back
		g.again = g.part
	}
	g.mem.SetFrugal(g.pages() < 2*g.reserve)
}

// stepOld lets a source forget idle names, or drop stores that wait, if they are older
// than g.age. When all sources had their turn, the age becomes less.
func (g *ground) stepOld(s *source) int {
	if g.next >= len(g.all) || g.want <= 0 {
		g.nextAge()
		return 1
	}
	of := g.all[g.next]
	g.next++
	g.with(of, s, func() {
		now := g.forest.Now()
		if g.phase == phaseIdle {
			n := of.forgetOld(now, g.age)
			g.want -= int64(n) * idleCost
			if n == stepIdle {
				g.lookAgain(of)
			}
			if of.idle.first != 0 {
				g.oldest = max(g.oldest, now-of.idle.at(of.idle.first).since)
			}
			return
		}
		bytes := of.dropOld(now, g.age)
		g.want -= int64(bytes)
		if bytes > 0 {
			g.lookAgain(of)
		}
		if of.waits.oldest != nil {
			g.oldest = max(g.oldest, now-of.waits.oldest.since)
		}
	})
	return 64
}

// lookAgain has the pass go on with a source, which may have more, if that was the last
// one. Other sources may have gone meanwhile.
func (g *ground) lookAgain(of *source) {
	if g.next == of.number+1 {
		g.next--
	}
}

// nextAge ends a pass over all sources.
func (g *ground) nextAge() {
	switch {
	case g.want <= 0:
		g.endOld()
	case g.next > 0 && g.oldest > 0 && g.age > 0:
		g.age = min(g.oldest, g.age) / 4 * 3
		if g.phase == phaseIdle && g.idle*idleCost <= g.want || g.phase == phaseParked && g.waits <= g.want {
			g.age = 0
		}
	case g.age > 0 && g.phase == phaseIdle && g.idle > 0, g.age > 0 && g.phase == phaseParked && g.waits > 0:
		g.age = 0
	case g.phase == phaseIdle:
		g.phase, g.age = phaseParked, ^uint32(0)
	default:
		g.endOld()
	}
	g.next, g.oldest = 0, 0
}

// endOld goes on to what is held, if that is still needed.
func (g *ground) endOld() {
	if g.want <= 0 {
		g.end()
		return
	}
	g.phase = phaseLook
	g.forest.Begin(&g.survey, g.nameCostNow())
}

// stepSweep has a source forget some names of dead slabs.
func (g *ground) stepSweep(s *source) int {
	var of *source
	switch {
	case len(g.half) > 0:
		of = g.half[len(g.half)-1]
		g.half = g.half[:len(g.half)-1]
	case g.next < len(g.all):
		of = g.all[g.next]
		g.next++
	case g.busy == 0:
		g.rest()
		return 1
	default:
		return 1 << 10 // others are at it
	}
	if of.swept == g.cycle {
		return 1
	}
	cost, cycle := 64, g.cycle
	g.busy++
	g.with(of, s, func() {
		if g.phase != phaseSweep || g.cycle != cycle {
			return
		}
		cost += of.sweep()
		if of.swept != cycle {
			g.half = append(g.half, of)
		}
	})
	g.busy--
	return cost
}

// with calls f with the writer's lock of a source, if nobody else has it: s is the one
// that the caller has. No lock of a source is waited for, and none is taken while g.mu
// is held.
func (g *ground) with(of, s *source, f func()) {
	if of == s {
		f()
		return
	}
	g.mu.Unlock()
	got := of.writer.TryLock()
	g.mu.Lock()
	if !got {
		return
	}
	if !of.removed.Load() {
		f()
		of.report()
	}
	g.mu.Unlock()
	of.writer.Unlock()
	g.mu.Lock()
}

// pause lets other writers in and makes room, after so many names were stored. It is
// called where no name of s is in hand, and no place that is not pinned.
func (s *source) pause(names int) {
	s.yield(names)
	if s.inHand > 0 {
		return
	}
	s.report()
	g := s.ground
	if g.phase == phaseSweep && s.swept != g.cycle {
		s.sweep() // others may have found it busy
	}
	g.pay(names, s)
	if g.budget-g.mem.Load() < g.slack/2 {
		g.makeRoom(s, func() bool { return g.budget-g.mem.Load() >= g.slack/2 })
	}
	s.report()
}

// report tells the ground what has changed in s.
func (s *source) report() {
	names := s.names.Len()
	if off := names - s.measured; s.reports == 0 || max(off, -off) > s.measured/8 {
		s.bytes, s.measured = s.nameBytes(), names
	}
	s.reports = (s.reports + 1) % reportsEach
	s.tell(told{names, s.bytes, s.idle.len(), s.waits.cost, s.names.Room()})
}

// reportsEach is how many reports may have the bytes of a measurement before: to measure them
// takes longer than a removal does.
const reportsEach = 512

func (s *source) tell(now told) {
	g := s.ground
	g.names += int64(now.names - s.told.names)
	g.nameBytes += int64(now.bytes - s.told.bytes)
	g.idle += int64(now.idle - s.told.idle)
	g.waits += int64(now.waits - s.told.waits)
	g.nameRoom += int64(now.room - s.told.room)
	s.told = now
}

// told is what the ground was told of a source.
type told struct{ names, bytes, idle, waits, room int }

// roomFor has room for a name that is stored, or returns false. No name of s is in
// hand, and no place that is not pinned.
func (s *source) roomFor(h Hash) bool {
	if !s.ground.full() || s.hasRoom(h) {
		return true
	}
	return s.inHand == 0 && s.ground.makeRoom(s, func() bool { return !s.ground.full() || s.hasRoom(h) })
}

// hasRoom reports whether a name can be stored without more memory.
func (s *source) hasRoom(h Hash) bool {
	return s.shared.names == nil && (s.names.HasRoom(h) || s.names.Get(h) != 0) && s.riches.hasRoom() && s.copies.hasRoom()
}

// sweep forgets what is dead of the names of a segment.
func (s *source) sweep() (cost int) {
	g := s.ground
	if s.sweeps != g.cycle {
		s.sweeps, s.sweepAt = g.cycle, 0
	}
	at := s.sweepAt
	g.picked, s.sweepAt, cost = names.Sweep(&s.names, g.picked[:0], at, s.f.DeadSlabs())
	for _, p := range g.picked {
		n := name{s, p.Hash, value(p.Value)}
		if !n.isPlain() { // another may have changed it
			s.bury(p.Hash)
		} else if n.rehome(); s.f.Dead(loc(n.value)) {
			if s.dump != nil {
				s.dump.name(p.Hash)
			}
			s.buryName(&n)
		}
	}
	if g.pages() < 2*g.reserve {
		s.names.Compact(at)
	}
	if cap(g.picked) > 1<<9 { // many of a segment
		g.picked = nil
	}
	if s.sweepAt == 0 {
		s.swept = g.cycle
	}
	return cost + 4*len(g.picked)
}

// isDead reports whether a name has a key in a dead slab.
func (s *source) isDead(v value) bool {
	if v.isPlain() {
		return s.f.Dead(loc(v))
	}
	n := name{s, 0, v}
	if v.isIdle() {
		if l := s.idle.at(v.number()).loc; l != 0 {
			return s.f.Dead(l)
		}
		return false
	}
	if !v.isRich() { // it is no name
		return false
	}
	n.hash = n.rich().hash
	var buf [2]loc
	for _, l := range n.locs(&buf) {
		if s.f.Dead(l) {
			return true
		}
	}
	return false
}

// bury is told of a name of which a key may have been moved or evicted. If it was
// evicted, the name is forgotten, because it does not say any more what the engine has by
// that hash. A name that has its other keys in other variants keeps those: else what is
// held there would get a hole.
func (s *source) bury(h Hash) {
	if s.f.Dying() == 0 {
		return
	}
	n := s.name(h)
	if n.value == 0 {
		return
	}
	n.rehome()
	if s.isDead(n.value) {
		s.buryName(&n)
	}
}

// rehome has the name say where its keys are now.
func (n *name) rehome() {
	s := n.s
	switch {
	case n.isPlain():
		if l := s.f.Rehome(loc(n.value)); l != loc(n.value) {
			n.set(value(l))
		}
	case n.isIdle():
		i := s.idle.at(n.number())
		i.loc = s.f.Rehome(i.loc)
	case n.isRich():
		r := n.rich()
		for i, l := range r.keys {
			if l != 0 {
				r.keys[i] = s.f.Rehome(l)
			}
		}
		for i := r.more; i != 0; i = s.more.at(i).next {
			s.more.at(i).loc = s.f.Rehome(s.more.at(i).loc)
		}
	}
}

// buryName is bury for a name with a key that was evicted.
func (s *source) buryName(n *name) {
	held := 0
	if l, ok := n.deadKey(); ok {
		for ; ok; l, ok = n.deadKey() {
			held += n.evictFrom(l)
		}
		n.simplify()
	} else {
		held = n.evict()
	}
	s.lost(held)
}

// lost notes that so many blocks are held no more by what was forgotten.
func (s *source) lost(held int) {
	if held > 0 {
		s.doubts = true
		s.evicted += uint64(held)
		s.ground.lost += uint64(held)
	}
}

// deadKey returns a key of a name that was evicted, if the name can go on without it: it
// has another one, none of them in the same variant.
func (n *name) deadKey() (l loc, ok bool) {
	s := n.s
	var buf [2]loc
	keys := n.locs(&buf)
	dead := slices.IndexFunc(keys, s.f.Dead)
	if dead < 0 || n.ambiguous() || !slices.ContainsFunc(keys, func(l loc) bool { return !s.f.Dead(l) }) {
		return 0, false
	}
	return keys[dead], true
}

// evictFrom takes an evicted key from a name, and what is held of blocks in its variant.
// It returns how many held one.
func (n *name) evictFrom(l loc) (held int) {
	s, v := n.s, n.s.variantAt(l)
	for i := n.rich().first; i != 0; {
		c := s.copies.at(i)
		ln, next := s.lanes.all[c.lane], c.next
		switch {
		case ln.group.cutOf(ln).variant != v:
		case c.copies > 0:
			held++
			c.reported = false
			n.release(holding{ln, i, c.copies})
		default:
			s.doubts = true
			n.unhide(i)
			n.unlink(i)
		}
		i = next
	}
	if n.dropKey(l); held == 0 {
		s.counts.Forgotten++
	}
	return held
}

// evict forgets a name, and returns how many held a block by it.
func (n *name) evict() (held int) {
	s := n.s
	if !n.held() {
		s.counts.Forgotten++
	}
	for n.isRich() && n.held() {
		for i := n.rich().first; i != 0; i = s.copies.at(i).next {
			if c := s.copies.at(i); c.copies > 0 {
				held++
				s.f.Lose(s.lanes.all[c.lane].ord)
				n.release(holding{s.lanes.all[c.lane], i, c.copies})
				break
			}
		}
	}
	if !n.isPlain() {
		if n.value != 0 {
			n.forget()
		}
		return held
	}
	l := loc(n.value) // no store waits for it
	for _, ln := range s.lanes.all {
		if ln != nil && s.f.Holds(l, ln.ord) {
			held++
			s.f.Lose(ln.ord)
			s.f.Release(l, ln.ord)
			s.lanes.count(ln, -1)
		}
	}
	n.disclaim(l)
	s.f.Unref(l)
	s.names.Remove(n.hash)
	n.value = 0
	return held
}

// forgetOld forgets some idle names of an age, and returns how many.
func (s *source) forgetOld(now, age uint32) (n int) {
	for ; n < stepIdle && s.idle.first != 0; n++ {
		first := s.idle.at(s.idle.first)
		if now-first.since < age {
			break
		}
		oldest := s.name(first.hash)
		oldest.forget()
		s.counts.Forgotten++
	}
	return n
}

// dropOld drops some stores of an age that wait, and returns their bytes.
func (s *source) dropOld(now, age uint32) (bytes int) {
	for range stepParked {
		p := s.waits.oldest
		if p == nil || now-p.since < age {
			break
		}
		bytes += p.cost()
		s.waits.drop(p)
	}
	return bytes
}
