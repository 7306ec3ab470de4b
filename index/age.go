package index

import (
	"slices"

	"github.com/kvindex/kvindex/index/internal/mem"
)

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

// renew moves a block that the store names to the newest generation.
func (st *storeTask) renew(n *name, h holding) {
	s, to := st.s, st.newest(h.lane)
	var buf [2]loc
	for _, l := range n.locs(&buf) {
		s.f.Hold(l, to.ord) // first, for those who read
		if !n.othersHold(l, h.lane) {
			s.f.Release(l, h.lane.ord)
		}
	}
	if h.entry != 0 {
		s.copies.at(h.entry).lane = to.number
	}
	s.lanes.count(h.lane, -1)
	s.lanes.gain(to, n.hash)
}

// newest returns the newest lane for the blocks of a lane. If there is no room for one, it is
// that of the store, whatever its cut is. It makes no room, because the caller keeps a name.
func (st *storeTask) newest(of *lane) *lane {
	s := st.s
	if of.cut == st.lane.cut {
		return st.lane
	}
	for _, ln := range of.group.lanes[of.tier] {
		if ln.cut == of.cut && ln.age == 0 {
			return ln
		}
	}
	if s.lanes.fits(of.cut) && !s.ground.full() {
		if ln := s.lanes.add(of.group, of.tier, of.cut); ln != nil {
			s.publish()
			return ln
		}
	}
	return st.lane
}
