package index

import (
	"runtime"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/names"
)

// The bound in bytes. A Memory counts its heap where it allocates it (ground.mem), and the
// count never passes the budget. Near the budget, the writers make room, in cycles of
// small steps:
//
//	move    slabs leave chunks that are nearly empty, if many bytes stand empty
//	relink  the slabs behind the moved ones get their new places
//	idle    the oldest idle names are forgotten
//	parked  the oldest stores that wait are dropped
//	look    the coldest leaves among the slabs are found; again in finer steps if most
//	        slabs are of one age class
//	kill    these slabs die: nobody finds them any more
//	sweep   the names of dead slabs are forgotten, those of moved ones get the new places
//
// A cycle begins when little room is left, or memory has grown and few pages are left. It
// has a number of bytes to free, and ends when it has. Each store does a part of it that
// is in proportion to the part of the remaining room that it takes, so that the cycle ends
// before the room does. If it does not, stores are dropped.
//
// # Names of dead slabs
//
// There is no way from a slab to its names, which are in the tables of the sources that
// have it, each guarded by its writer. A map from slabs to names would take 8 bytes for
// each name all the time, a third of the bytes of a name. A sweep scans all names, at
// little more than a nanosecond each. A cycle that evicts 1/n of the names scans n names
// for each one that it evicts, so it must not evict too few (resize). Half of what it
// evicts stands empty on average.
//
// A name of a dead slab stands for nothing. The next operation on it forgets it (bury),
// or else the sweep does. The sweep tries the locks of other sources while it holds none
// of the ground; a source that is busy sweeps its own names between its changes. So
// nobody waits for anybody.
//
// # Empty chunks
//
// Slabs go by their age, wherever they are, and leave holes in chunks that one hot slab
// keeps. A hole serves a run of its size, but no longer run, and no name. So if the holes
// have more bytes than a cycle is to free, the cycle begins by moving slabs out of the
// emptiest chunks, and nothing is evicted if that is enough.
//
// # Why so
//
//   - The bound is in bytes of heap. Each structure counts its memory where it allocates
//     it, in pages of its own. So the sum is that of a heap profile, and no estimate has to
//     be right.
//   - Leaves go. A block goes for all its holders with its slab, and only if nothing is behind
//     it: a hole in a chain would make all behind it worthless and keep its memory.
//   - The writer that stores pays for a cycle. No goroutine can be late, and readers notice
//     nothing.
//   - Ages are counted in classes that are wider the older they are. Where most of the memory
//     is of one class, it is counted again in finer steps, so a part of it goes.
//   - Hot slabs are moved. Without that, a model with long prompts had a third of its room
//     after a model with short prompts.
//   - A store is dropped and counted where even that fails. No structure has to undo half of
//     something.

const (
	// A cycle frees at most a part evictPart of the budget, and at least a part smallPart,
	// and minEvict bytes. Between these bounds it frees evictLook bytes for each name and
	// slab that it scans: with names of single units that is the most.
	evictPart = 48
	smallPart = 256
	minEvict  = 16 << 10
	evictLook = 0.54
	// slackPart and minSlack are the room for allocations that cannot be refused. It is
	// more than one name makes any structure allocate.
	slackPart = 128
	minSlack  = 32 << 10
	// admitPart and minAdmit are the room for sources.
	admitPart = 512
	minAdmit  = 8 << 10

	// The numbers of slabs, idle names and waiting stores that a step of a cycle visits.
	stepSlabs  = 2048
	stepIdle   = 64
	stepParked = 8

	// nameCost is about how many bytes a name takes in the tables of names.
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
	limits
	total tally  // of all sources
	part  int64  // bytes that a cycle is to free; it begins when a quarter of that is left
	lost  uint64 // holdings that were evicted

	phase  phase
	cycle  uint32
	high   int64 // the most that was taken since the last cycle
	again  int64 // bytes that the next cycle is to free, if it is for pages
	want   int64 // bytes that this cycle still has to free
	hollow int64 // bytes of chunks that it still has to empty
	moved  bool  // slabs were moved
	barren bool  // nothing was left to evict
	credit int64 // steps that writers paid for, in names
	price  int64 // of storing a name
	survey forest.Survey
	picked []names.Picked[Hash]

	all []*source
	pass
}

// pass is a pass over all sources.
type pass struct {
	next   int       // of all
	half   []*source // of which a sweep has scanned a part
	busy   int       // writers that sweep another source now
	age    uint32    // idle names and stores that wait go if they are older
	oldest uint32    // the highest age that the pass has left
}

// resize sets the bytes that the next cycle is to free, so that they pay for its looks at
// names and slabs.
func (k *keeper) resize(looks int64) {
	k.part = max(minEvict, k.budget/smallPart, min(int64(evictLook*float64(looks)), k.budget/evictPart))
}

// watch begins a cycle if there is little room, or if memory has grown and few pages are
// left, which a sweep may give back.
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

// begin begins a cycle that is to free want bytes; 0: it only gives pages back.
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
	work := g.total.names + int64(g.forest.Slabs())
	rest := max(g.room(), 0) * 3 / 4 / g.perName() // names that still can be stored
	g.price = work/max(rest, 1) + 1
	g.credit = 0
}

// perName returns the bytes of the index for each name.
func (g *ground) perName() int64 {
	return max(g.mem.Load()/max(g.total.names, 1), idleCost)
}

// nameCostNow returns the bytes of a name beside the forest: a name of several keys or
// holders takes several times nameCost. With a lower value a survey would take everything
// for the half that was used last, which stays.
func (g *ground) nameCostNow() int {
	return max(nameCost, int(g.total.nameBytes/max(g.total.names, 1)))
}

// pay does the part of a cycle that names cost which are stored. It holds g.mu, and releases
// it now and then. s is the writer, nil: there is none.
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

// makeRoom does steps until ok returns true, or none helps. It holds g.mu, and releases it
// now and then. A cycle may free the wrong kind of memory, so each frees twice as much as
// the one before.
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

// waitForReaders lets readers go on, if old versions that are kept for them take half of
// the slack. It holds g.mu, and releases it now and then.
func (g *ground) waitForReaders() {
	for most := 64; most > 0 && g.forest.Waiting() && g.budget-g.mem.Load() < g.slack/2; most-- {
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
		g.forest.Reclaim()
	}
}

// step does a step of the cycle, and returns its cost, in names that are scanned.
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

// sweepNames begins the sweep.
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
	g.resize(g.total.names + int64(g.forest.Slabs()))
	g.high = g.mem.Load()
	g.again = 0
	if g.pages() < g.reserve/2 { // structures with room do not give it back
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
			n := of.tenant.forgetOld(now, g.age)
			g.want -= int64(n) * idleCost
			if n == stepIdle {
				g.lookAgain(of)
			}
			if of.idle.first != 0 {
				g.oldest = max(g.oldest, now-of.idle.at(of.idle.first).since)
			}
			return
		}
		bytes := of.tenant.dropOld(now, g.age)
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

// lookAgain makes a source, which may have more to give up, the next one of the pass, if it
// was the latest one. Other sources may have gone meanwhile.
func (g *ground) lookAgain(of *source) {
	if g.next == of.tenant.number+1 {
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
		if g.phase == phaseIdle && g.total.idle*idleCost <= g.want || g.phase == phaseParked && g.total.waits <= g.want {
			g.age = 0
		}
	case g.age > 0 && g.phase == phaseIdle && g.total.idle > 0, g.age > 0 && g.phase == phaseParked && g.total.waits > 0:
		g.age = 0
	case g.phase == phaseIdle:
		g.phase, g.age = phaseParked, ^uint32(0)
	default:
		g.endOld()
	}
	g.next, g.oldest = 0, 0
}

// endOld goes on to held blocks, if that is still needed.
func (g *ground) endOld() {
	if g.want <= 0 {
		g.end()
		return
	}
	g.phase = phaseLook
	g.forest.Begin(&g.survey, g.nameCostNow())
}

// stepSweep sweeps a part of a source.
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
	if of.tenant.swept == g.cycle {
		return 1
	}
	cost, cycle := 64, g.cycle
	g.busy++
	g.with(of, s, func() {
		if g.phase != phaseSweep || g.cycle != cycle {
			return
		}
		cost += of.tenant.sweep()
		if of.tenant.swept != cycle {
			g.half = append(g.half, of)
		}
	})
	g.busy--
	return cost
}

// with calls f with the writer's lock of a source, if nobody else has it. s is the source
// whose lock the caller has. with waits for no lock of a source, and takes none while it
// holds g.mu.
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
		of.tenant.report()
	}
	g.mu.Unlock()
	of.writer.Unlock()
	g.mu.Lock()
}
