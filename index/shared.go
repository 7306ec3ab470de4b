package index

// Two names of one key. An engine that hides salts or media has two hashes for one
// prefix. The forest has one bit for both, so the source must record which of them holds
// the block: as soon as a second name is about to hold a key, it records all names that
// hold something by their keys (sharedKeys), and names of one key stay rich. In most
// caches that never happens, and nothing is recorded.

// maxNames bounds the held names of one key. A key has several only if the engine hides
// salts or media.
const maxNames = 64

// sharedName is a name of a key. next is the number of another one, 0: there is none.
type sharedName struct {
	hash Hash
	next uint32
}

// sharedKeys is the names of a source by their keys. Those of one key are rich.
type sharedKeys struct {
	names *byLoc[sharedName] // that hold something; nil: they are not recorded
	keys  int                // with two names or more
	due   int                // how many names have to go before all are forgotten
}

// recordPart is the part of the recorded names that have to go before all are forgotten. A key
// may have a second name again and again, and each time all names would be recorded.
const recordPart = 16

// has reports whether two names that hold something have the key at l.
func (k *sharedKeys) has(l loc) bool {
	first := k.names.at(l)
	return first != nil && first.next != 0
}

// remove removes the name of h, which holds nothing at l any more.
func (k *sharedKeys) remove(h Hash, l loc) {
	first := k.names.at(l)
	if first == nil {
		return
	}
	k.due--
	things := &k.names.things
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
		k.names.remove(l)
		k.forgetUnused()
		return
	default:
		first.hash = things.at(first.next).hash
	}
	i := *link
	*link = things.at(i).next
	things.give(i)
	if first.next == 0 {
		k.keys--
		k.forgetUnused()
	}
}

// forgetUnused forgets all names if no key has two of them.
func (k *sharedKeys) forgetUnused() {
	if k.keys == 0 && k.due <= 0 {
		k.forget()
	}
}

// forget forgets all names.
func (k *sharedKeys) forget() {
	k.names.release()
	*k = sharedKeys{}
}

// claim records that a name which held nothing is about to hold something at l. It
// returns false if too many others do.
func (n *name) claim(l loc) bool {
	s, k := n.s, &n.s.shared
	if k.names == nil {
		if !s.lanes.holdsAt(l) {
			return true
		}
		if !s.noteShared() {
			return false
		}
	}
	first := k.names.at(l)
	if first == nil {
		k.names.add(l, sharedName{hash: n.hash})
		return true
	}
	others := 1
	for i := first.next; i != 0; i = k.names.things.at(i).next {
		others++
	}
	if others >= maxNames {
		return false
	}
	if others == 1 {
		one := s.name(first.hash)
		one.enrich()
		k.keys++
	}
	first.next = k.names.things.take(sharedName{n.hash, first.next})
	return true
}

// disclaim records that the name holds nothing at l any more.
func (n *name) disclaim(l loc) { n.s.shared.remove(n.hash, l) }

// sharedBytes is the most bytes that noteShared takes for a name.
const sharedBytes = 48

// noteShared begins to record the held names by their keys. It returns false if there is
// no room for that.
func (s *source) noteShared() bool {
	var buf [2]loc
	if int64(s.names.Len())*sharedBytes > s.ground.pages()+s.ground.slack/2 {
		return false
	}
	s.shared.names = newByLoc[sharedName](s)
	s.names.Each(func(h Hash, v value) {
		s.yield(1)
		n := name{s, h, v}
		if !n.held() {
			return
		}
		for _, l := range n.locs(&buf) {
			s.shared.names.add(l, sharedName{hash: h})
		}
	})
	s.shared.due = s.shared.names.len() / recordPart
	return true
}
