package index

// A removal takes a copy of each block from a group and tier. The prefix of the block does
// not matter, so a block that was never placed is removed like any other. When the last
// holder has gone, the name becomes idle if it has a key (idle.go), and is forgotten if it
// has none.

func (s *source) remove(c *Change) {
	g := s.lanes.group(c.Group.ID)
	for i, hash := range c.Hashes {
		s.pause(1)
		s.counts.Removed++
		n := s.fresh(hash)
		var h holding
		if g != nil {
			h = n.holding(g, c.Tier)
		}
		if h.copies == 0 {
			s.counts.UnknownRemove++
			continue
		}
		left := h.copies - 1
		ambiguous := n.ambiguous()
		switch {
		case c.Remaining != nil:
			left = c.Remaining[i]
		case ambiguous: // either of its blocks may have gone
			left = 0
			s.doubts = s.doubts || h.copies > 1 || n.copyCount(&h).reported
		}
		if left > 0 {
			if left != h.copies {
				n.copyCount(&h).copies = left
				n.simplify()
			}
			continue
		}
		n.release(h)
		if ambiguous && n.value != 0 && !n.held() {
			n.forget() // its next key is then its only one
		}
		s.trimIdle()
	}
}

// release takes the last copy of a block from a lane. If nobody holds the name any more, it
// becomes idle, or is forgotten.
func (n *name) release(h holding) {
	s := n.s
	var buf [2]loc
	s.lanes.count(h.lane, -1)
	if h.lane.tier == TierGPU && n.isRich() {
		n.void(func(p *waitingStore) bool { return p.group == h.lane.group })
	}
	if n.isPlain() {
		l := loc(n.value)
		s.f.Release(l, h.lane.ord)
		if !s.lanes.holdsAt(l) {
			n.disclaim(l)
			n.becomeIdle(l)
		}
		return
	}
	r, c := n.rich(), s.copies.at(h.entry)
	hides := c.reported && !n.isHiddenExcept(h.entry)
	c.copies = 0
	r.holders--
	for _, l := range n.locs(&buf) {
		if !n.othersHold(l, h.lane) {
			s.f.Release(l, h.lane.ord)
		}
		if hides {
			n.hide(l)
		}
		if r.holders == 0 {
			n.disclaim(l)
		}
	}
	if c.reported {
		h.lane.hidden++
	} else {
		n.unlink(h.entry)
	}
	switch {
	case r.holders == 0 && r.keys[0] == 0:
		n.forget()
		return
	case r.holders == 0:
		r.idle = s.idle.push(idleName{hash: n.hash})
	}
	n.simplify()
}
