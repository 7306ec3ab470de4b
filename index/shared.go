package index

import "slices"

// Two names of one key. An engine that hides salts or media has two hashes for one
// prefix. The forest has one bit for both, so which of them holds the block must
// be known: as soon as a second name is about to hold a key, all names that hold
// something are noted by their keys (shared), and names of one key stay rich. In
// most caches that never happens, and nothing is noted.

// maxNames bounds the held names of one key: it takes salts that the engine does
// not tell to have more than one.
const maxNames = 64

type sharedNames struct {
	one  Hash
	more []Hash
}

// claim notes that h, which held nothing, is about to hold something at l. It
// returns false if too many others do.
func (s *source) claim(h Hash, l loc) bool {
	if s.shared == nil {
		if !s.holdsAt(l) {
			return true
		}
		s.noteShared()
	}
	at, ok := s.shared[l]
	switch {
	case !ok:
		at.one = h
	case len(at.more) >= maxNames-1:
		return false
	default:
		if len(at.more) == 0 {
			one := s.name(at.one)
			one.enrich()
			s.sharedKeys++
		}
		at.more = append(at.more, h)
	}
	s.shared[l] = at
	return true
}

// disclaim is told that h holds nothing at l any more.
func (s *source) disclaim(h Hash, l loc) {
	at, ok := s.shared[l]
	if !ok {
		return
	}
	i := slices.Index(at.more, h)
	switch {
	case i >= 0:
		at.more = slices.Delete(at.more, i, i+1)
	case at.one != h:
		return
	case len(at.more) == 0:
		delete(s.shared, l)
		return
	default:
		at.one = at.more[len(at.more)-1]
		at.more = at.more[:len(at.more)-1]
	}
	s.shared[l] = at
	if len(at.more) == 0 {
		if s.sharedKeys--; s.sharedKeys == 0 {
			s.shared = nil
		}
	}
}

// noteShared begins to keep the held names by their keys.
func (s *source) noteShared() {
	var buf [2]loc
	s.shared = make(map[loc]sharedNames)
	s.names.Each(func(h Hash, v value) {
		s.yield(1)
		n := name{s, h, v}
		if !n.held() {
			return
		}
		for _, l := range n.locs(&buf) {
			at, ok := s.shared[l]
			if !ok {
				at.one = h
			} else {
				at.more = append(at.more, h)
			}
			s.shared[l] = at
		}
	})
}

// othersHold reports whether a lane holds the block at l by another name.
func (n *name) othersHold(l loc, ln *lane) bool {
	at := n.s.shared[l]
	if len(at.more) == 0 {
		return false
	}
	holds := func(o Hash) bool { return o != n.hash && n.s.holdsBy(o, ln) }
	return holds(at.one) || slices.ContainsFunc(at.more, holds)
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
