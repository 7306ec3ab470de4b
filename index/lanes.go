package index

import "slices"

// cut is how blocks are cut. The zero cut, of blocks known by hash alone,
// stands for the cut of their group.
type cut struct {
	variant Variant
	size    int // tokens
}

type group struct {
	Group
	told  bool // by a gpu store
	cut   cut  // of its gpu blocks; of the largest if sizes differ
	lanes [NumTiers][]*laneState
}

// laneState is a lane: the blocks of one source, group, tier and cut. Its
// ordinal stands for it in the forest.
type laneState struct {
	ord    uint32
	number uint32 // in source.lanes
	group  *group
	tier   Tier
	cut    cut
	blocks int // held
	hidden int // holdings that a report hid
}

// view is a View with its lanes: those of a group and cut. If just one of them
// is in the gpu tier, it is the first.
type view struct {
	View
	cut    cut
	lanes  []lane
	oneGPU bool
}

type lane struct {
	ord  uint32
	tier Tier
}

// clear drops all that the source holds. Readers see it at once; the names
// follow, and become idle.
func (s *source) clear() {
	s.counts.Cleared++
	s.lossy = false
	if len(s.groups) == 0 {
		return
	}
	old := s.lanes
	s.groups = make(map[int]*group)
	s.pending.Init()
	s.pendingBytes = 0
	s.waiting = make(map[place][]*pending)
	s.parkedBy = make(map[Hash][]*pending)
	s.parked = 0
	s.shared, s.hidden, s.sharedKeys = nil, nil, 0
	s.publish()
	if s.leaveLanes(old) {
		s.lanes = nil
		s.blocks = [NumTiers]int{}
	}
}

// clearTier drops what the source holds in a tier.
func (s *source) clearTier(t Tier) {
	s.counts.Cleared++
	var old []*laneState
	for _, g := range s.groups {
		old = append(old, g.lanes[t]...)
		g.lanes[t] = nil
	}
	if t == TierGPU {
		for e := s.pending.Front(); e != nil; e = e.Next() {
			p := e.Value.(*pending)
			p.gone = make([]bool, len(p.hashes))
			for i := range p.gone {
				p.gone[i] = true
			}
		}
	}
	if len(old) == 0 {
		return
	}
	s.publish()
	if s.leaveLanes(old) {
		for _, ln := range old {
			s.lanes[ln.number] = nil
		}
		s.blocks[t] = 0
	}
}

// leaveLanes takes all blocks from lanes that readers do not see any more. It
// returns false if the source is removed meanwhile: then all goes with it.
func (s *source) leaveLanes(lanes []*laneState) bool {
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(ln *laneState) bool { return ln == nil })
	gone := make([]bool, len(s.lanes))
	for _, ln := range lanes {
		gone[ln.number] = true
	}
	var batch []Hash
	for pos, last := uint64(0), false; !last; {
		if s.removed.Load() {
			return false
		}
		batch, pos = s.names.Some(batch[:0], pos)
		last = pos == 0
		for _, h := range batch {
			s.leaveName(h, s.names.Get(h), lanes, gone)
			s.forget(s.cfg.IdleNames, 1)
			s.breathe(1)
		}
	}
	for _, ln := range lanes {
		s.f.RetireOrdinal(ln.ord)
	}
	return true
}

func (s *source) leaveName(h Hash, v value, lanes []*laneState, gone []bool) {
	var buf [2]loc
	for _, l := range s.keysOf(h, v, &buf) {
		for _, ln := range lanes {
			s.f.ReleaseSlab(l, ln.ord)
		}
	}
	switch {
	case v.plain():
		if !s.holdsAtBut(loc(v), gone) {
			s.unclaim(h, loc(v))
			s.toIdle(h, loc(v))
		}
	case v.isRich():
		r := s.riches.at(v.number())
		held := r.holders > 0
		for i := r.first; i != 0; {
			c := *s.copies.at(i)
			if gone[c.lane] {
				if c.copies > 0 {
					r.holders--
				} else {
					s.unhide(h, v, i)
				}
				s.drop(r, i)
			}
			i = c.next
		}
		if r.holders == 0 && r.keys[0] == 0 {
			s.delete(h, v)
			return
		}
		if held && r.holders == 0 {
			for _, l := range s.keysOf(h, v, &buf) {
				s.unclaim(h, l)
			}
			r.idle = s.pushIdle(idleName{hash: h})
		}
		s.settle(h, v)
	}
}

// holdsAtBut is holdsAt without those lanes that are gone.
func (s *source) holdsAtBut(l loc, gone []bool) bool {
	for i, ln := range s.lanes {
		if ln != nil && !gone[i] && s.f.Holds(l, ln.ord) {
			return true
		}
	}
	return false
}

// group returns the group of a store, with what the store tells about it, and
// whether that is news.
func (s *source) group(c *Change) (g *group, news bool) {
	g = s.groups[c.Group.ID]
	if g == nil {
		g = &group{Group: c.Group}
		s.groups[c.Group.ID] = g
		news = true
	}
	if c.Tier == TierGPU && !g.told { // others may leave out the kind
		g.Group, g.told = c.Group, true
		news = true
	}
	if c.Tier == TierGPU && len(c.Locals) > 0 && c.BlockSize > g.cut.size {
		g.grow(cut{c.Variant, c.BlockSize})
		news = true
	}
	return g, news
}

// cutOf returns how the blocks of a lane are cut; those known by hash alone are
// seen with the group's own.
func (g *group) cutOf(ln *laneState) cut {
	if ln.cut == (cut{}) {
		return g.cut
	}
	return ln.cut
}

// grow notes that a gpu store of a group has larger blocks than those before.
// What is known by hash alone stays of the size that it was taken to be.
func (g *group) grow(by cut) {
	for _, of := range g.lanes {
		for _, ln := range of {
			if ln.cut == (cut{}) {
				ln.cut = g.cut
			}
		}
	}
	g.cut = by
}

// lane returns the lane of a group, tier and cut, made if need be, or nil if
// there are too many.
func (s *source) lane(g *group, t Tier, by cut) *laneState {
	for _, ln := range g.lanes[t] {
		if ln.cut == by {
			return ln
		}
	}
	if !s.roomFor(by) {
		s.dropEmptyLanes()
		if !s.roomFor(by) {
			return nil
		}
	}
	ord, ok := s.f.TakeOrdinal()
	if !ok {
		return nil
	}
	ln := &laneState{ord: ord, number: uint32(len(s.lanes)), group: g, tier: t, cut: by}
	if i := slices.Index(s.lanes, nil); i >= 0 {
		ln.number = uint32(i)
		s.lanes[i] = ln
	} else {
		s.lanes = append(s.lanes, ln)
	}
	g.lanes[t] = append(g.lanes[t], ln)
	s.publish()
	return ln
}

// roomFor reports whether one more lane is allowed.
func (s *source) roomFor(by cut) bool {
	lanes, cuts := 0, map[cut]bool{by: true}
	for _, ln := range s.lanes {
		if ln != nil {
			lanes++
			cuts[ln.cut] = true
		}
	}
	return lanes < maxLanes && len(cuts) <= maxCuts
}

// dropEmptyLanes gives up the lanes that have no blocks.
func (s *source) dropEmptyLanes() {
	var old []*laneState
	for _, ln := range s.lanes {
		if ln != nil && ln.blocks == 0 && ln.hidden == 0 {
			old = append(old, ln)
			of := &ln.group.lanes[ln.tier]
			*of = slices.DeleteFunc(*of, func(o *laneState) bool { return o == ln })
		}
	}
	s.publish()
	for _, ln := range old {
		s.lanes[ln.number] = nil
		s.f.RetireOrdinal(ln.ord)
	}
}

// publish shows readers the views of the source as they are now.
func (s *source) publish() {
	full := 0
	for _, g := range s.groups {
		if g.Kind == GroupFull {
			full++
		}
	}
	var views []*view
	for _, g := range s.groups {
		for t := range g.lanes {
			for _, ln := range g.lanes[t] {
				by := g.cutOf(ln)
				if by == (cut{}) {
					continue
				}
				i := slices.IndexFunc(views, func(v *view) bool { return v.Group.ID == g.ID && v.cut == by })
				if i < 0 {
					i = len(views)
					views = append(views, &view{cut: by, View: View{
						Source: s.id, Group: g.Group, BlockSize: by.size, Pairs: by.variant.Pairs, Groups: len(s.groups), FullGroups: full,
					}})
				}
				views[i].lanes = append(views[i].lanes, lane{ln.ord, ln.tier})
			}
		}
	}
	for _, v := range views {
		v.oneGPU = v.lanes[0].tier == TierGPU && (len(v.lanes) == 1 || v.lanes[1].tier != TierGPU)
	}
	s.views.Store(&views)
	s.model.gen.Add(1)
}
