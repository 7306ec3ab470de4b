package index

import "slices"

// place is a hash in a variant, by number: what a key belongs to.
type place struct {
	hash    Hash
	variant uint32
}

// value is what the table of names has of one.
type value uint32

const (
	tagIdle value = 2 << 30 // number in source.idle
	tagRich value = 3 << 30 // number in source.riches
	tagBits       = tagRich
)

func (v value) plain() bool { return v>>31 == 0 && v != 0 }

func (v value) isIdle() bool { return v&tagBits == tagIdle }

func (v value) isRich() bool { return v&tagBits == tagRich }

func (v value) number() uint32 { return uint32(v &^ tagBits) }

type idleName struct {
	hash       Hash
	loc        loc // 0: the name is rich
	prev, next uint32
}

type richName struct {
	hash    Hash
	keys    [2]loc // 0: none; further ones are in source.more
	first   uint32 // of its copyCounts
	holders uint32 // copyCounts with copies
	idle    uint32 // number in source.idle, if holders is 0 and it has keys
}

type sharedNames struct {
	one  Hash
	more []Hash
}

// locOf returns the loc of a hash in a variant, if there is just one.
func (s *source) locOf(at place) (found loc, ok bool) {
	var buf [2]loc
	for _, l := range s.keysOf(at.hash, s.names.Get(at.hash), &buf) {
		if s.f.Variant(l) != at.variant {
			continue
		}
		if ok {
			return 0, false // ambiguous
		}
		found, ok = l, true
	}
	return found, ok
}

// keysOf returns the locs of a name, in buf if there are few.
func (s *source) keysOf(h Hash, v value, buf *[2]loc) []loc {
	*buf = [2]loc{}
	switch {
	case v.plain():
		buf[0] = loc(v)
	case v.isIdle():
		buf[0] = s.idle.at(v.number()).loc
	case v.isRich():
		*buf = s.riches.at(v.number()).keys
		if buf[1] != 0 && s.more[h] != nil {
			return slices.Concat(buf[:], s.more[h])
		}
	}
	n := 0
	for n < 2 && buf[n] != 0 {
		n++
	}
	return buf[:n]
}

// name has h stand for the key at l, and returns its value.
func (s *source) name(h Hash, v value, l loc) value {
	var buf [2]loc
	if v == 0 {
		s.f.Ref(l)
		return s.toIdle(h, l)
	}
	same := 0
	variant := s.f.Variant(l)
	for _, k := range s.keysOf(h, v, &buf) {
		if k == l {
			return v
		}
		if s.f.Variant(k) == variant {
			same++
		}
	}
	if same > 0 {
		switch {
		case v.isIdle(): // the old block has gone: the hash is used anew
			n := s.idle.at(v.number())
			s.f.Ref(l)
			s.f.Unref(n.loc)
			n.loc = l
			return v
		case v.isRich() && s.riches.at(v.number()).holders == 0:
			s.unname(h, v, variant)
		default:
			if s.counts.Ambiguous++; same > 1 {
				return v // two keys are enough to know that nothing can be placed by it
			}
		}
	}
	v = s.enrich(h, v)
	r := s.riches.at(v.number())
	if r.holders > 0 && !s.claim(h, l) {
		s.counts.Ambiguous++
		return v
	}
	s.f.Ref(l)
	s.addKey(h, r, l)
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		if c.copies > 0 {
			s.f.Hold(l, s.lanes[c.lane].ord)
		} else {
			s.hide(l, h)
		}
		i = c.next
	}
	return s.settle(h, v)
}

func (s *source) addKey(h Hash, r *richName, l loc) {
	switch {
	case r.keys[0] == 0:
		r.keys[0] = l
	case r.keys[1] == 0:
		r.keys[1] = l
	default:
		if s.more == nil {
			s.more = make(map[Hash][]loc)
		}
		s.more[h] = append(s.more[h], l)
	}
}

// unname takes from a rich name that nobody holds its keys of a variant, and
// what is remembered of the blocks.
func (s *source) unname(h Hash, v value, variant uint32) {
	var buf [2]loc
	s.giveUp(h, v)
	r := s.riches.at(v.number())
	all := slices.Clone(s.keysOf(h, v, &buf))
	r.keys = [2]loc{}
	delete(s.more, h)
	for _, l := range all {
		if s.f.Variant(l) == variant {
			s.f.Unref(l)
		} else {
			s.addKey(h, r, l)
		}
	}
}

// giveUp drops what is remembered of blocks that may be there after all.
func (s *source) giveUp(h Hash, v value) {
	if !v.isRich() {
		return
	}
	r := s.riches.at(v.number())
	s.lossy = s.lossy || r.first != 0
	for r.first != 0 {
		n := r.first
		s.unhide(h, v, n)
		r.first = s.copies.at(n).next
		s.copies.give(n)
	}
}

// enrich makes a name rich, whatever it is, and returns its value.
func (s *source) enrich(h Hash, v value) value {
	if v.isRich() {
		return v
	}
	r := richName{hash: h}
	switch {
	case v.plain():
		l := loc(v)
		r.keys[0] = l
		for _, ln := range s.lanes {
			if ln != nil && s.f.Holds(l, ln.ord) {
				r.first = s.copies.take(copyCount{lane: ln.number, copies: 1, next: r.first})
				r.holders++
			}
		}
	case v.isIdle():
		n := s.idle.at(v.number())
		r.keys[0], r.idle = n.loc, v.number()
		n.loc = 0
	}
	v = tagRich | value(s.riches.take(r))
	s.names.Put(h, v)
	return v
}

// settle makes a name plain or idle if that says all there is to say, and
// returns its value.
func (s *source) settle(h Hash, v value) value {
	if !v.isRich() {
		return v
	}
	r := s.riches.at(v.number())
	if r.keys[0] == 0 || r.keys[1] != 0 {
		return v
	}
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		if c.copies != 1 || c.reported {
			return v
		}
		i = c.next
	}
	if r.holders > 0 && len(s.shared[r.keys[0]].more) > 0 {
		return v
	}
	l, idle := r.keys[0], r.idle
	for i := r.first; i != 0; {
		next := s.copies.at(i).next
		s.copies.give(i)
		i = next
	}
	s.riches.give(v.number())
	if v = value(l); idle != 0 {
		s.idle.at(idle).loc = l
		v = tagIdle | value(idle)
	}
	s.names.Put(h, v)
	return v
}

// claim notes that h, which held nothing, is about to hold something at l. It
// returns false if too many others do.
func (s *source) claim(h Hash, l loc) bool {
	if s.shared == nil {
		if !s.holdsAt(l) {
			return true
		}
		s.share()
	}
	at, ok := s.shared[l]
	switch {
	case !ok:
		at.one = h
	case len(at.more) >= maxNames-1:
		return false
	default:
		if len(at.more) == 0 {
			s.enrich(at.one, s.names.Get(at.one))
			s.sharedKeys++
		}
		at.more = append(at.more, h)
	}
	s.shared[l] = at
	return true
}

func (s *source) unclaim(h Hash, l loc) {
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

// share begins to keep the held names by their keys.
func (s *source) share() {
	var buf [2]loc
	s.shared = make(map[loc]sharedNames)
	s.names.Each(func(h Hash, v value) {
		s.breathe(1)
		if v.plain() || v.isRich() && s.riches.at(v.number()).holders > 0 {
			for _, l := range s.keysOf(h, v, &buf) {
				at, ok := s.shared[l]
				if !ok {
					at.one = h
				} else {
					at.more = append(at.more, h)
				}
				s.shared[l] = at
			}
		}
	})
}

// othersHold reports whether a lane holds the block at l by another name.
func (s *source) othersHold(h Hash, l loc, ln *laneState) bool {
	at := s.shared[l]
	if len(at.more) == 0 {
		return false
	}
	return s.holdsBy(at.one, h, ln) || slices.ContainsFunc(at.more, func(o Hash) bool { return s.holdsBy(o, h, ln) })
}

func (s *source) holdsBy(o, h Hash, ln *laneState) bool {
	if o == h {
		return false
	}
	v := s.names.Get(o)
	for i := s.riches.at(v.number()).first; i != 0; {
		c := s.copies.at(i)
		if c.lane == ln.number && c.copies > 0 {
			return true
		}
		i = c.next
	}
	return false
}

// toIdle puts a name with one key, which refers to it, in the queue of those
// that nobody holds.
func (s *source) toIdle(h Hash, l loc) value {
	v := tagIdle | value(s.pushIdle(idleName{hash: h, loc: l}))
	s.names.Put(h, v)
	return v
}

func (s *source) pushIdle(n idleName) uint32 {
	n.prev = s.idleLast
	i := s.idle.take(n)
	if s.idleLast == 0 {
		s.idleFirst = i
	} else {
		s.idle.at(s.idleLast).next = i
	}
	s.idleLast = i
	return i
}

func (s *source) leaveIdle(i uint32) {
	n := *s.idle.at(i)
	if n.prev == 0 {
		s.idleFirst = n.next
	} else {
		s.idle.at(n.prev).next = n.next
	}
	if n.next == 0 {
		s.idleLast = n.prev
	} else {
		s.idle.at(n.next).prev = n.prev
	}
	s.idle.give(i)
}

// minIdle is how many idle names even a small source keeps.
const minIdle = 1024

// trimIdle forgets the oldest of too many names that nobody holds. A quarter of
// what is held may be idle; after much was dropped at once, names go two at a
// time.
func (s *source) trimIdle() {
	n := s.idle.len()
	if n <= minIdle && n <= s.cfg.IdleNames {
		return
	}
	held := 0
	for _, b := range s.blocks {
		held += b
	}
	s.forget(min(max(minIdle, held/4), s.cfg.IdleNames), 2)
	s.forget(s.cfg.IdleNames, n)
}

// forget forgets names that nobody holds until there are no more than most, or
// at most n.
func (s *source) forget(most, n int) {
	for ; n > 0 && s.idle.len() > most; n-- {
		h := s.idle.at(s.idleFirst).hash
		s.delete(h, s.names.Get(h))
		s.counts.Forgotten++
	}
}

// delete takes away a name that nobody holds.
func (s *source) delete(h Hash, v value) {
	var buf [2]loc
	s.giveUp(h, v)
	for _, l := range s.keysOf(h, v, &buf) {
		s.f.Unref(l)
	}
	idle := v.number()
	if v.isRich() {
		idle = s.riches.at(v.number()).idle
		delete(s.more, h)
		s.riches.give(v.number())
	}
	if idle != 0 {
		s.leaveIdle(idle)
	}
	s.names.Remove(h)
}

// ambiguous reports whether a name has two keys in one variant.
func (s *source) ambiguous(h Hash, v value) bool {
	var buf [2]loc
	if !v.isRich() || s.riches.at(v.number()).keys[1] == 0 {
		return false
	}
	keys := s.keysOf(h, v, &buf)
	for i, k := range keys {
		for _, o := range keys[:i] {
			if s.f.Variant(k) == s.f.Variant(o) {
				return true
			}
		}
	}
	return false
}

// unplaced reports whether h is held and has no key.
func (s *source) unplaced(h Hash) bool {
	v := s.names.Get(h)
	return v.isRich() && s.riches.at(v.number()).keys[0] == 0
}

// hasKeyIn reports whether a name has a key in a variant.
func (s *source) hasKeyIn(h Hash, v value, variant uint32) bool {
	var buf [2]loc
	return slices.ContainsFunc(s.keysOf(h, v, &buf), func(l loc) bool { return s.f.Variant(l) == variant })
}
