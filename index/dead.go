package index

import "slices"

// Names of dead slabs. evict.go has the rules.

// rehome updates the places of the keys.
func (n *name) rehome() {
	s := n.s
	switch {
	case n.isPlain():
		if l := s.f.Rehome(loc(n.value)); l != loc(n.value) {
			n.set(value(l))
		}
	case n.isIdle():
		i := s.idle.at(n.number())
		i.loc = s.f.Rehome(i.loc)
	case n.isRich():
		r := n.rich()
		for i, l := range r.keys {
			if l != 0 {
				r.keys[i] = s.f.Rehome(l)
			}
		}
		for i := r.more; i != 0; i = s.more.at(i).next {
			s.more.at(i).loc = s.f.Rehome(s.more.at(i).loc)
		}
	}
}

// isDead reports whether the name has a key in a dead slab.
func (n *name) isDead() bool {
	var buf [2]loc
	switch {
	case n.isPlain():
		return n.s.f.Dead(loc(n.value))
	case n.isIdle():
		l := n.s.idle.at(n.number()).loc
		return l != 0 && n.s.f.Dead(l)
	case n.isRich():
		return slices.ContainsFunc(n.locs(&buf), n.s.f.Dead)
	}
	return false
}

// bury forgets an evicted key of a name, or the whole name.
func (n *name) bury() {
	held := 0
	if l, ok := n.deadKey(); ok {
		for ; ok; l, ok = n.deadKey() {
			held += n.evictFrom(l)
		}
		n.simplify()
	} else {
		held = n.evict()
	}
	n.s.lost(held)
}

// deadKey returns an evicted key of a name, if the name can go on without it: the name has
// another key, and no two in one variant.
func (n *name) deadKey() (l loc, ok bool) {
	s := n.s
	var buf [2]loc
	keys := n.locs(&buf)
	dead := slices.IndexFunc(keys, s.f.Dead)
	if dead < 0 || n.ambiguous() || !slices.ContainsFunc(keys, func(l loc) bool { return !s.f.Dead(l) }) {
		return 0, false
	}
	return keys[dead], true
}

// evictFrom takes an evicted key from a name, and the holdings in the variant of the key.
// It returns the number of holdings.
func (n *name) evictFrom(l loc) (held int) {
	s, v := n.s, n.s.ground.variantAt(l)
	for i := n.rich().first; i != 0; {
		c := s.copies.at(i)
		ln, next := s.lanes.all[c.lane], c.next
		switch {
		case ln.group.cutOf(ln).variant != v:
		case c.copies > 0:
			held++
			c.reported = false
			n.release(holding{ln, i, c.copies})
		default:
			s.doubts = true
			n.unhide(i)
			n.unlink(i)
		}
		i = next
	}
	if n.dropKey(l); held == 0 {
		s.counts.Forgotten++
	}
	return held
}

// evict forgets a name, and returns the number of its holdings.
func (n *name) evict() (held int) {
	s := n.s
	if !n.held() {
		s.counts.Forgotten++
	}
	for n.isRich() && n.held() {
		for i := n.rich().first; i != 0; i = s.copies.at(i).next {
			if c := s.copies.at(i); c.copies > 0 {
				held++
				s.f.Lose(s.lanes.all[c.lane].ord)
				n.release(holding{s.lanes.all[c.lane], i, c.copies})
				break
			}
		}
	}
	if !n.isPlain() {
		if n.value != 0 {
			n.forget()
		}
		return held
	}
	l := loc(n.value) // no store waits for it
	for _, ln := range s.lanes.all {
		if ln != nil && s.f.Holds(l, ln.ord) {
			held++
			s.f.Lose(ln.ord)
			s.f.Release(l, ln.ord)
			s.lanes.count(ln, -1)
		}
	}
	n.disclaim(l)
	s.f.Unref(l)
	s.names.Remove(n.hash)
	n.value = 0
	return held
}

// forgetAll forgets all names, and the stores that wait, of a source that came from a forged
// snapshot. Its cursors stay, and the engine still has the blocks, so they count as evicted.
func (s *source) forgetAll() {
	s.forged = false
	for s.waits.oldest != nil {
		s.waits.drop(s.waits.oldest)
	}
	var some []Hash
	for next, more := uint64(0), true; more; more = next != 0 {
		some, next = s.names.Some(some[:0], next)
		for _, h := range some {
			n := s.name(h)
			s.lost(n.evict())
			s.yield(1)
		}
	}
}

// lost counts holdings that were forgotten.
func (s *source) lost(held int) {
	if held > 0 {
		s.doubts = true
		s.evicted += uint64(held)
		s.ground.lost += uint64(held)
	}
}
