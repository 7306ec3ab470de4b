package index

import "slices"

// copyCount says that a lane has a block, or had it: one without copies is kept
// only if reported is set.
type copyCount struct {
	// parent is the block before this one, if chained. It is asked for only
	// as long as the name has no key.
	parent  Hash
	copies  uint32
	next    uint32
	lane    uint32 // number
	chained bool
	// reported: a store of the block was taken for a report. It may have been
	// a second copy, so the block may be there although copies is 0. Only gpu
	// holdings of full groups are.
	reported bool
}

// slotsOf returns the slots of a slab that any lane of s holds.
func (s *source) slotsOf(id uint32) (set uint32) {
	if s.f.Empty(id) {
		return 0
	}
	for _, ln := range s.lanes {
		if ln != nil {
			set |= s.f.Mask(id, ln.ord)
		}
	}
	return set
}

// hide and unhide keep track of the names with a holding that a report hid.
func (s *source) hide(l loc, h Hash) {
	if s.hidden == nil {
		s.hidden = make(map[loc]Hash)
	}
	s.hidden[l] = h
}

// unhide is told before copyCount n of a rich name stops to be one of those.
func (s *source) unhide(h Hash, v value, n uint32) {
	var buf [2]loc
	s.lanes[s.copies.at(n).lane].hidden--
	for i := s.riches.at(v.number()).first; i != 0; {
		c := s.copies.at(i)
		if i != n && c.copies == 0 {
			return // the name is hidden for another lane too
		}
		i = c.next
	}
	for _, l := range s.keysOf(h, v, &buf) {
		if s.hidden[l] == h {
			delete(s.hidden, l)
		}
	}
}

// holdsAt reports whether any name holds something at l.
func (s *source) holdsAt(l loc) bool {
	return s.slotsOf(l.Slab())>>l.Slot()&1 != 0
}

func (s *source) count(ln *laneState, n int) {
	ln.blocks += n
	s.blocks[ln.tier] += n
}

// holding returns the lane of a group and tier that holds the block of a name,
// or did and was hidden by a report: then copies is 0. c is its number if the
// name is rich.
func (s *source) holding(v value, g *group, t Tier) (ln *laneState, c, copies uint32) {
	switch {
	case v.plain():
		for _, ln := range g.lanes[t] {
			if s.f.Holds(loc(v), ln.ord) {
				return ln, 0, 1
			}
		}
	case v.isRich():
		for i := s.riches.at(v.number()).first; i != 0; {
			c := s.copies.at(i)
			if ln := s.lanes[c.lane]; ln.group == g && ln.tier == t {
				return ln, i, c.copies
			}
			i = c.next
		}
	}
	return nil, 0, 0
}

// holdAll has hashes held that the store does not place.
func (s *source) holdAll(st *storing, hashes []Hash) {
	for i, h := range hashes {
		s.hold(st, i, h, s.names.Get(h))
		s.trimIdle()
		s.breathe(1)
	}
}

// hold records that the lane of a store has its block i, by the rules of
// Copies.
func (s *source) hold(st *storing, i int, h Hash, v value) {
	if st.nothing {
		return
	}
	c, full := st.c, st.g.Kind == GroupFull
	_, n, copies := s.holding(v, st.g, c.Tier)
	switch {
	case copies == 0:
		if n != 0 {
			s.counts.Restored++
		}
		v = s.gain(h, v, st.lane, n)
	case c.Tier != TierGPU || c.Copies == CopiesSet:
	case st.report || st.guarded && !full:
		s.counts.Reports++
		if st.guarded && full || n != 0 {
			v = s.enrich(h, v)
			_, n, _ = s.holding(v, st.g, c.Tier)
			s.copies.at(n).reported = st.guarded && full
		}
	default:
		v = s.enrich(h, v)
		_, n, _ = s.holding(v, st.g, c.Tier)
		s.copies.at(n).copies++
	}
	if !v.isRich() {
		return
	}
	if _, n, _ = s.holding(v, st.g, c.Tier); n != 0 && st.chained {
		b := s.copies.at(n)
		if b.chained, b.parent = c.HasParent, c.Parent; i > 0 {
			b.chained, b.parent = true, c.Hashes[i-1]
		}
	}
	s.settle(h, v)
}

// gain gives a lane its first copy of a block. n is what the name has of the
// group and tier, if that is hidden. It returns the name's value.
func (s *source) gain(h Hash, v value, ln *laneState, n uint32) value {
	var buf [2]loc
	switch {
	case v.plain():
		s.f.Hold(loc(v), ln.ord)
		s.count(ln, 1)
		return v
	case v.isIdle():
		l := s.idle.at(v.number()).loc
		if !s.claim(h, l) {
			s.counts.Ambiguous++
			s.lossy = true
			return v
		}
		if len(s.shared[l].more) == 0 {
			s.leaveIdle(v.number())
			v = value(l)
			s.names.Put(h, v)
			s.f.Hold(l, ln.ord)
			s.count(ln, 1)
			return v
		}
	}
	rich := v.isRich()
	v = s.enrich(h, v)
	r := s.riches.at(v.number())
	if r.holders == 0 && rich {
		if s.shared == nil && slices.ContainsFunc(s.keysOf(h, v, &buf), s.holdsAt) {
			s.share() // before the first key is claimed
		}
		for i, l := range s.keysOf(h, v, &buf) {
			if !s.claim(h, l) {
				for _, l := range s.keysOf(h, v, &buf)[:i] {
					s.unclaim(h, l)
				}
				s.counts.Ambiguous++
				s.lossy = true
				return v
			}
		}
	}
	if r.idle != 0 {
		s.leaveIdle(r.idle)
		r.idle = 0
	}
	if n == 0 {
		n = s.copies.take(copyCount{next: r.first})
		r.first = n
	} else {
		s.unhide(h, v, n)
	}
	c := s.copies.at(n)
	c.lane, c.copies = ln.number, 1
	r.holders++
	for _, l := range s.keysOf(h, v, &buf) {
		s.f.Hold(l, ln.ord)
	}
	s.count(ln, 1)
	return v
}

// lose takes the last copy of a block from a lane. n is its number if the name
// is rich.
func (s *source) lose(h Hash, v value, ln *laneState, n uint32) {
	var buf [2]loc
	s.count(ln, -1)
	if ln.tier == TierGPU && s.parked > 0 {
		s.leaveParked(h, ln.group)
	}
	if v.plain() {
		l := loc(v)
		s.f.Release(l, ln.ord)
		if !s.holdsAt(l) {
			s.unclaim(h, l)
			s.toIdle(h, l)
		}
		return
	}
	r := s.riches.at(v.number())
	c := s.copies.at(n)
	c.copies = 0
	r.holders--
	for _, l := range s.keysOf(h, v, &buf) {
		if !s.othersHold(h, l, ln) {
			s.f.Release(l, ln.ord)
		}
		if c.reported {
			s.hide(l, h)
		}
		if r.holders == 0 {
			s.unclaim(h, l)
		}
	}
	if c.reported {
		ln.hidden++
	} else {
		s.drop(r, n)
	}
	if r.holders > 0 || r.keys[0] != 0 {
		if r.holders == 0 {
			r.idle = s.pushIdle(idleName{hash: h})
		}
		s.settle(h, v)
		return
	}
	s.delete(h, v)
}

// drop takes a copyCount from a rich name.
func (s *source) drop(r *richName, n uint32) {
	p := &r.first
	for *p != n {
		p = &s.copies.at(*p).next
	}
	*p = s.copies.at(n).next
	s.copies.give(n)
}

// allSeen reports whether each block is held in the gpu tier of g, or may be.
func (s *source) allSeen(hashes []Hash, g *group) bool {
	for _, h := range hashes {
		if ln, _, _ := s.holding(s.names.Get(h), g, TierGPU); ln == nil {
			return false
		}
		s.breathe(1)
	}
	return true
}

// anyHeld reports whether one of the blocks is held in the gpu tier of g.
func (s *source) anyHeld(hashes []Hash, g *group) bool {
	return slices.ContainsFunc(hashes, func(h Hash) bool {
		s.breathe(1)
		_, _, copies := s.holding(s.names.Get(h), g, TierGPU)
		return copies > 0
	})
}

// restore brings back a block that was forgotten while a store of it had been
// taken for a report, and its ancestors: a gpu store of a full group that names
// it as its parent proves that they are there.
func (s *source) restore(h Hash, g *group) {
	var buf [2]loc
	v := s.names.Get(h)
	if ln, _, copies := s.holding(v, g, TierGPU); ln == nil || copies > 0 {
		return
	}
	for left := maxRestore; left > 0; left-- {
		s.breathe(1)
		ln, n, copies := s.holding(v, g, TierGPU)
		if ln == nil {
			return
		}
		if copies == 0 {
			s.counts.Restored++
			v = s.gain(h, v, ln, n)
			if _, n, copies = s.holding(v, g, TierGPU); copies == 0 {
				return
			}
		}
		keys := s.keysOf(h, v, &buf)
		if len(keys) == 0 {
			b := s.copies.at(n)
			if !b.chained {
				return
			}
			h, v = b.parent, s.names.Get(b.parent)
			continue
		}
		i := slices.IndexFunc(keys, func(l loc) bool { return s.model.variants[s.f.Variant(l)] == g.cutOf(ln).variant })
		if i < 0 {
			return
		}
		l := keys[i]
		s.settle(h, v)
		var ok bool
		if h, ok = s.hiddenAbove(l, ln, g, &left); !ok {
			return
		}
		v = s.names.Get(h)
	}
}

// hiddenAbove returns the name of the next block before the one at l that is
// not there and may be, if all between are there.
func (s *source) hiddenAbove(l loc, ln *laneState, g *group, left *int) (Hash, bool) {
	unit := s.model.variants[s.f.Variant(l)].Unit
	for ; *left > 0; *left-- {
		s.breathe(1)
		size := g.cutOf(ln).size
		if size == 0 || size%unit != 0 {
			return 0, false
		}
		if l = s.f.Up(l, size/unit); l == 0 {
			return 0, false
		}
		i := slices.IndexFunc(g.lanes[TierGPU], func(ln *laneState) bool { return s.f.Holds(l, ln.ord) })
		if i < 0 {
			h, ok := s.hidden[l]
			return h, ok
		}
		ln = g.lanes[TierGPU][i]
	}
	return 0, false
}

func (s *source) remove(c *Change) {
	g := s.groups[c.Group.ID]
	for i, h := range c.Hashes {
		s.breathe(1)
		s.counts.Removed++
		var ln *laneState
		var n, copies uint32
		v := s.names.Get(h)
		if g != nil {
			ln, n, copies = s.holding(v, g, c.Tier)
		}
		if copies == 0 {
			s.counts.UnknownRemove++
			continue
		}
		left := copies - 1
		ambiguous := s.ambiguous(h, v)
		switch {
		case c.Remaining != nil:
			left = c.Remaining[i]
		case ambiguous:
			left = 0
			s.lossy = s.lossy || copies > 1 || s.copies.at(n).reported
		}
		if left > 0 {
			if left != copies {
				v = s.enrich(h, v)
				_, n, _ = s.holding(v, g, c.Tier)
				s.copies.at(n).copies = left
				s.settle(h, v)
			}
			continue
		}
		s.lose(h, v, ln, n)
		if v = s.names.Get(h); ambiguous && v != 0 && (v.isIdle() || s.riches.at(v.number()).holders == 0) {
			s.delete(h, v) // whichever key it is used for next is the only one
		}
		s.trimIdle()
	}
}
