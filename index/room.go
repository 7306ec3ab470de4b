package index

import (
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// limits are the budget of a ground and its parts, in bytes.
type limits struct {
	budget  int64
	slack   int64 // for what cannot be refused
	admits  int64 // for sources
	reserve int64 // pages that new chunks of slabs leave for other structures
}

func (l *limits) setBudget(budget int64) {
	l.budget = budget
	l.slack = max(minSlack, budget/slackPart)
	l.admits = max(minAdmit, budget/admitPart)
	l.reserve = max(minEvict, budget/evictPart) / 2
}

// pages returns how many bytes of heap stores may still take.
func (g *ground) pages() int64 { return g.budget - g.slack - g.admits - g.mem.Load() }

// near reports whether blocks are likely to be evicted soon.
func (g *ground) near() bool { return g.pages() < 4*g.reserve }

// full reports whether stores may take no more of the heap.
func (g *ground) full() bool { return g.pages() <= 0 }

// room returns about how many bytes may be stored. A name takes its part of the forest,
// which leaves the last pages for names, and an entry in a table of names, where half of
// the free entries are assumed to be of use.
func (g *ground) room() int64 {
	free, pages := int64(g.forest.Free()), max(g.pages(), 0)
	each := max((g.forest.Bytes()-free)/max(g.total.names, 1), 8)
	forest := (free + max(pages-g.reserve, 0)) / each
	table := g.total.nameRoom/2 + pages/nameCost
	return min(forest, table) * (each + nameCost)
}

// canAdmit makes room for a source, or for bytes of s, or returns false.
func (g *ground) canAdmit(s *source, bytes int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hasRoomFor(s, bytes)
}

// hasRoomFor is canAdmit for a writer, who holds g.mu.
func (g *ground) hasRoomFor(s *source, bytes int) bool {
	return g.makeRoom(s, func() bool { return g.pages()+g.admits > int64(bytes) })
}

// errFull returns the error about a source, and its part that has no room.
func (g *ground) errFull(id Source, what string) error {
	return fmt.Errorf("%w: pod %q, model %q, rank %d%s: data that cannot be evicted takes all %d bytes", ErrFull, id.Pod, id.Model, id.Rank, what, g.budget)
}

// admit adds a source, and counts the bytes that the tables grew by.
func (g *ground) admit(s *source, bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addTables(bytes)
	s.tenant.number = len(g.all)
	g.all = mem.Append(&g.mem, g.all, s)
	s.tenant.report()
}

func (g *ground) addTables(n int) {
	g.tables += n
	g.mem.Add(n)
}

// dismiss takes out a source that was removed.
func (g *ground) dismiss(s *source) {
	last := len(g.all) - 1
	g.all[s.tenant.number] = g.all[last]
	g.all[s.tenant.number].tenant.number = s.tenant.number
	g.all[last] = nil
	g.all = g.all[:last]
	g.half = slices.DeleteFunc(g.half, func(o *source) bool { return o == s })
}

// pause counts names that were stored, lets other writers in, and makes room. The caller
// keeps no name of s, and no place that is not pinned.
func (s *source) pause(names int) {
	s.yield(names)
	if s.inHand > 0 {
		return
	}
	t, g := &s.tenant, s.ground
	t.report()
	if g.phase == phaseSweep && t.swept != g.cycle {
		t.sweep() // other writers may have found it busy
	}
	g.pay(names, s)
	if g.budget-g.mem.Load() < g.slack/2 {
		g.makeRoom(s, func() bool { return g.budget-g.mem.Load() >= g.slack/2 })
	}
	t.report()
}

// roomFor makes room for a name, or returns false. The caller keeps no name of s, and no
// place that is not pinned.
func (s *source) roomFor(h Hash) bool {
	if !s.ground.full() || s.hasRoom(h) {
		return true
	}
	return s.inHand == 0 && s.ground.makeRoom(s, func() bool { return !s.ground.full() || s.hasRoom(h) })
}
