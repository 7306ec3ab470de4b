package index

import (
	"slices"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// A clear takes all blocks of the source, in every tier and group, or in one tier.
//
// Readers see that at once, because the lanes are retired first: no view has their
// ordinals any more. The names and the forest follow, a few hundred names at a time, with
// other writers let in between. The names stay, idle: a clear may stand for lost messages,
// and then the next stores name them as parents.

// clear drops all blocks of the source.
func (s *source) clear() {
	s.counts.Cleared++
	s.doubts, s.evicted, s.prompt = false, 0, rootStore{}
	if len(s.lanes.groups) == 0 {
		return
	}
	lanes, groups := s.lanes.all, s.lanes.groups
	s.lanes.groups = nil
	s.shared.forget()
	s.hidden.forget()
	s.publish()
	for s.waits.masked = nil; s.waits.oldest != nil; {
		s.yield(len(s.waits.oldest.hashes))
		s.waits.take(s.waits.oldest)
	}
	if s.emptyLanes(lanes) {
		s.lanes.drop(lanes)
		s.mem.Add(-mem.SliceSize(lanes))
		s.lanes.all = nil
		s.lanes.blocks = [NumTiers]int{}
	}
	s.mem.Add(-groupBytes(groups)) // lanes refer to them
	s.f.Tick()
	s.cleared = s.f.Now()
}

// clearUnseen drops the blocks of tiers that were emptied unseen (Change.Unique).
func (s *source) clearUnseen(changes []Change) {
	left := leftBlocks{changes: changes}
	for i := range changes {
		c := &changes[i]
		if c.Op != OpStore || !c.Unique || c.Tier == TierGPU {
			continue
		}
		g := s.lanes.group(c.Group.ID)
		if g == nil || len(g.lanes[c.Tier]) == 0 {
			continue
		}
		if slices.ContainsFunc(c.chunks(), func(h Hash) bool {
			n := s.seen(h)
			return n.holding(g, c.Tier).copies > 0 && !left.before(i, h)
		}) {
			s.clearTier(c.Tier)
		}
	}
}

// chunks returns the hashes that a store in a lower tier holds.
func (c *Change) chunks() []Hash {
	if len(c.Locals) > 0 && len(c.Hashes) > 0 && len(c.Hashes) == c.Blocks() {
		return c.Hashes[len(c.Hashes)-1:]
	}
	return c.Hashes
}

// leftBlocks is what the first changes of an Apply take from lower tiers. It has each change
// once, because a batch may remove and store many blocks.
type leftBlocks struct {
	changes []Change
	seen    int // of changes
	blocks  map[leftBlock]bool
	tiers   [NumTiers]bool // they are cleared
}

type leftBlock struct {
	hash  Hash
	tier  Tier
	group int
}

// before reports whether a change before change i takes a hash from the group and tier of
// that one.
func (l *leftBlocks) before(i int, h Hash) bool {
	for ; l.seen < i; l.seen++ {
		switch c := &l.changes[l.seen]; c.Op {
		case OpRemove:
			if l.blocks == nil {
				l.blocks = make(map[leftBlock]bool)
			}
			for _, h := range c.Hashes {
				l.blocks[leftBlock{h, c.Tier, c.Group.ID}] = true
			}
		case OpClearTier:
			l.tiers[c.Tier] = true
		case OpClear:
			for t := range l.tiers {
				l.tiers[t] = true
			}
		}
	}
	c := &l.changes[i]
	return l.tiers[c.Tier] || l.blocks[leftBlock{h, c.Tier, c.Group.ID}]
}

// clearTier drops the blocks of the source in a tier.
func (s *source) clearTier(t Tier) {
	s.counts.Cleared++
	var old []*lane
	for _, g := range s.lanes.groups {
		old = append(old, g.lanes[t]...)
		s.mem.Add(-mem.SliceSize(g.lanes[t]))
		g.lanes[t] = nil
	}
	if t == TierGPU {
		s.waits.voidAll()
	}
	s.dropLanes(old)
}

// scannedPerVisit is how many names a clear scans in about the time of visiting one.
const scannedPerVisit = 16

// dropLanes drops the blocks of lanes that their groups do not have any more.
func (s *source) dropLanes(old []*lane) {
	if len(old) == 0 {
		return
	}
	s.publish()
	if s.emptyLanes(old) {
		for _, ln := range old {
			s.lanes.blocks[ln.tier] -= ln.blocks
		}
		s.lanes.drop(old)
	}
}

// emptyLanes takes all blocks from lanes that readers do not see any more, and
// gives up their ordinals. If a lane had many blocks, it scans all names of the source, and
// visits those that are not idle. It returns false if the source is removed meanwhile: the
// lanes go with it.
func (s *source) emptyLanes(lanes []*lane) bool {
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(ln *lane) bool { return ln == nil })
	for _, ln := range lanes {
		ln.gone = true
	}
	full := slices.DeleteFunc(slices.Clone(lanes), (*lane).isEmpty)
	visit := func(h Hash) {
		n := s.name(h)
		n.releaseLanes(full)
		s.forgetIdle(s.cfg.idleNames, 1)
		if s.ground.full() { // an idle name takes more than a held one
			s.forgetIdle(0, 2)
		}
		s.pass(1)
	}
	many := slices.ContainsFunc(full, func(ln *lane) bool { return ln.many })
	for _, ln := range full {
		for _, h := range ln.few {
			visit(h)
		}
	}
	var some []names.Picked[Hash]
	for next, more := uint64(0), many; more; more = next != 0 {
		if s.removed.Load() {
			return false
		}
		some, next = names.Part(&s.names, some[:0], next)
		s.pass(len(some) / scannedPerVisit)
		for _, p := range some {
			if !value(p.Value).isIdle() { // none of the others gets a holder meanwhile
				visit(p.Hash)
			}
		}
	}
	for _, ln := range lanes {
		s.f.RetireOrdinal(ln.ord)
	}
	return true
}

// releaseLanes takes a block from some lanes, which are gone.
func (n *name) releaseLanes(lanes []*lane) {
	s := n.s
	var buf [2]loc
	for _, l := range n.locs(&buf) {
		for _, ln := range lanes {
			switch {
			case s.dump == nil:
				s.f.ReleaseSlab(l, ln.ord)
			case n.held(): // the snapshot still has to note the other holders there
				s.f.Release(l, ln.ord)
			}
		}
	}
	switch {
	case n.isPlain():
		if l := loc(n.value); !s.lanes.holdsAt(l) {
			n.disclaim(l)
			n.becomeIdle(l)
		}
	case n.isRich():
		held, r := n.held(), n.rich()
		for i := r.first; i != 0; {
			c := *s.copies.at(i)
			if s.lanes.all[c.lane].gone {
				if c.copies > 0 {
					r.holders--
				} else {
					n.unhide(i)
				}
				n.unlink(i)
			}
			i = c.next
		}
		if r.holders == 0 && r.keys[0] == 0 {
			n.forget()
			return
		}
		if held && r.holders == 0 {
			for _, l := range n.locs(&buf) {
				n.disclaim(l)
			}
			r.idle = s.idle.push(idleName{hash: n.hash})
		}
		n.simplify()
	}
}

// Generations. A feed without removals would claim what it ever announced, so a tier can
// forget what was not announced again for long. The index has no clock: the caller reports when a
// generation begins (OpAge), and keeps three of them.
//
// The generation is a part of a lane, so a block has no stamp, a reader looks at nothing
// more, and the oldest generation goes as a cleared tier does: first its lanes from the
// views, then its names and its part of the forest, with other writers let in. A store of a
// held block moves it to the newest lane of its cut. A tier without OpAge has lanes of one
// generation.

// oldest is the age at which the blocks of a lane go.
const oldest = 3

// age begins a new generation of a tier.
func (s *source) age(t Tier) {
	var old []*lane
	for _, g := range s.lanes.groups {
		kept := slices.DeleteFunc(g.lanes[t], func(ln *lane) bool {
			if ln.age++; ln.age < oldest {
				return false
			}
			old = append(old, ln)
			s.counts.Aged += uint64(ln.blocks)
			return true
		})
		if g.lanes[t] = kept; len(kept) == 0 {
			s.mem.Add(-mem.SliceSize(kept))
			g.lanes[t] = nil
		}
	}
	s.dropLanes(old)
}
