package index

// Two names of one key. An engine that hides salts or media has two hashes for one
// prefix. The forest has one bit for both, so which of them holds the block must
// be known: as soon as a second name is about to hold a key, all names that hold
// something are noted by their keys (shared), and names of one key stay rich. In
// most caches that never happens, and nothing is noted.

// maxNames bounds the held names of one key: it takes salts that the engine does
// not tell to have more than one.
const maxNames = 64

// sharedName is a name of a key. next is the number of another one, 0: there is none.
type sharedName struct {
	hash Hash
	next uint32
}

// isShared reports whether two names that hold something have the key at l.
func (s *source) isShared(l loc) bool {
	first := s.shared.at(l)
	return first != nil && first.next != 0
}

// claim notes that h, which held nothing, is about to hold something at l. It
// returns false if too many others do.
func (s *source) claim(h Hash, l loc) bool {
	if s.shared == nil {
		if !s.lanes.holdsAt(l) {
			return true
		}
		if !s.noteShared() {
			return false
		}
	}
	first := s.shared.at(l)
	if first == nil {
		s.shared.add(l, sharedName{hash: h})
		return true
	}
	others := 1
	for i := first.next; i != 0; i = s.shared.things.at(i).next {
		others++
	}
	if others >= maxNames {
		return false
	}
	if others == 1 {
		one := s.name(first.hash)
		one.enrich()
		s.sharedKeys++
	}
	first.next = s.shared.things.take(sharedName{h, first.next})
	return true
}

// disclaim is told that h holds nothing at l any more.
func (s *source) disclaim(h Hash, l loc) {
	first := s.shared.at(l)
	if first == nil {
		return
	}
	things := &s.shared.things
	link := &first.next
	switch {
	case first.hash != h:
		for *link != 0 && things.at(*link).hash != h {
			link = &things.at(*link).next
		}
		if *link == 0 {
			return
		}
	case first.next == 0:
		s.shared.remove(l)
		return
	default:
		first.hash = things.at(first.next).hash
	}
	i := *link
	*link = things.at(i).next
	things.give(i)
	if first.next == 0 {
		if s.sharedKeys--; s.sharedKeys == 0 {
			s.forgetShared()
		}
	}
}

// sharedBytes is what noteShared takes for a name, at most.
const sharedBytes = 48

// noteShared begins to keep the held names by their keys. It returns false if there is
// no room for that.
func (s *source) noteShared() bool {
	var buf [2]loc
	if int64(s.names.Len())*sharedBytes > s.ground.pages()+s.ground.slack/2 {
		return false
	}
	s.shared = newByLoc[sharedName](s)
	s.names.Each(func(h Hash, v value) {
		s.yield(1)
		n := name{s, h, v}
		if !n.held() {
			return
		}
		for _, l := range n.locs(&buf) {
			s.shared.add(l, sharedName{hash: h})
		}
	})
	return true
}

// forgetShared ends that.
func (s *source) forgetShared() {
	s.shared.release()
	s.shared, s.sharedKeys = nil, 0
}

// othersHold reports whether a lane holds the block at l by another name.
func (n *name) othersHold(l loc, ln *lane) bool {
	if !n.s.isShared(l) {
		return false
	}
	for o := n.s.shared.at(l); ; o = n.s.shared.things.at(o.next) {
		if o.hash != n.hash && n.s.holdsBy(o.hash, ln) {
			return true
		}
		if o.next == 0 {
			return false
		}
	}
}

// holdsBy is heldBy for the name of a hash.
func (s *source) holdsBy(h Hash, ln *lane) bool {
	n := s.name(h)
	return n.heldBy(ln)
}

// heldBy reports whether a lane holds something by the name, which is rich.
func (n *name) heldBy(ln *lane) bool {
	for i := n.rich().first; i != 0; {
		c := n.s.copies.at(i)
		if c.lane == ln.number && c.copies > 0 {
			return true
		}
		i = c.next
	}
	return false
}
