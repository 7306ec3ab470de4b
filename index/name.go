package index

import "slices"

// A name has one of four forms. Its value shows which:
//
//	nothing   there is no name
//	plain     one key, and one copy in each lane of its slot in the forest: the value is
//	          the place
//	idle      one key, and nobody holds it: the value is its number in the queue of idle
//	          names
//	rich      any other name, and one that a store waits for: the value is the number of
//	          its richName
//
// Nearly all names are plain or idle: they take only an entry in the table of names, of
// 12.8 bytes. Each key of a name is a ref of its slab, so the key, and all keys before it,
// stay in the forest.
//
// Two stores may give one hash two keys, because an engine may hide salts or media, or cut
// one prefix in two variants. While a hash is held, a second key in one variant makes it
// ambiguous: it stands for both, its removal removes both, and a store that names it as
// its parent is not placed. Once nobody holds it, another key replaces the first: the
// engine uses the hash again.

// value is the form of a name in the table.
type value uint32

const (
	tagIdle value = 2 << 30 // number in source.idle
	tagRich value = 3 << 30 // number in source.riches
	tagBits       = tagRich
)

func (v value) isPlain() bool { return v>>31 == 0 && v != 0 }

func (v value) isIdle() bool { return v&tagBits == tagIdle }

func (v value) isRich() bool { return v&tagBits == tagRich }

func (v value) number() uint32 { return uint32(v &^ tagBits) }

// richName is a name that needs more than a place in the forest.
type richName struct {
	hash    Hash
	keys    [2]loc // 0: none
	more    uint32 // number in source.more of the third key; 0: none
	first   uint32 // of its copyCounts
	holders uint32 // copyCounts with copies
	idle    uint32 // number in source.idle, if holders is 0 and it has keys
	waits   uint32 // of its waiters
}

// moreKey is a key of a rich name beyond the second. next is the number of another
// one, 0: there is none.
type moreKey struct {
	loc  loc
	next uint32
}

// copyCount is the copies of a block that a lane has. One without copies is kept only if
// reported is set.
type copyCount struct {
	// parent is the block before this one, if chained. It is used only as long as the
	// name has no key.
	parent  Hash
	copies  uint32
	next    uint32
	lane    uint32 // number
	chained bool
	// reported: a store of the block was taken for a report. It may have been
	// a second copy, so the block may be there although copies is 0. Only gpu
	// holdings of full groups are reported.
	reported bool
}

// name is a handle of a hash and its value in the table, for one operation. Its
// methods keep the value up to date. Nothing else may change the name meanwhile.
type name struct {
	s    *source
	hash Hash
	value
}

// name returns a name for a change.
func (s *source) name(h Hash) name {
	if s.dump != nil {
		s.dump.name(h)
	}
	return s.seen(h)
}

// seen returns a name for reading.
func (s *source) seen(h Hash) name { return name{s, h, s.names.Get(h)} }

// fresh is name for a hash whose blocks may have been evicted.
func (s *source) fresh(h Hash) name {
	s.bury(h)
	return s.name(h)
}

// bury updates a name of which a key may have been moved or evicted. If a key was evicted,
// the name is forgotten, because it does not show any more which blocks the engine has by
// that hash. A name that has its other keys in other variants keeps those: else the blocks
// there would get a hole.
func (s *source) bury(h Hash) {
	if s.f.Dying() == 0 {
		return
	}
	n := s.name(h)
	if n.value == 0 {
		return
	}
	n.rehome()
	if n.isDead() {
		n.bury()
	}
}

func (n *name) set(v value) {
	if n.value == 0 {
		n.s.names.Add(n.hash, v)
	} else {
		n.s.names.Put(n.hash, v)
	}
	n.value = v
}

// rich returns the richName of a rich name.
func (n *name) rich() *richName { return n.s.riches.at(n.number()) }

// held reports whether any lane holds a block by the name.
func (n *name) held() bool { return n.isPlain() || n.isRich() && n.rich().holders > 0 }

// locs returns the places of the keys, in buf if there are few.
func (n *name) locs(buf *[2]loc) []loc {
	*buf = [2]loc{}
	switch {
	case n.isPlain():
		buf[0] = loc(n.value)
	case n.isIdle():
		buf[0] = n.s.idle.at(n.number()).loc
	case n.isRich():
		r := n.rich()
		if *buf = r.keys; r.more != 0 {
			all := slices.Clone(buf[:])
			for i := r.more; i != 0; i = n.s.more.at(i).next {
				all = append(all, n.s.more.at(i).loc)
			}
			return all
		}
	}
	i := 0
	for i < 2 && buf[i] != 0 {
		i++
	}
	return buf[:i]
}

// unplaced reports whether the name is held and has no key.
func (n *name) unplaced() bool { return n.isRich() && n.rich().keys[0] == 0 }

// hasKeyIn reports whether the name has a key in a variant.
func (n *name) hasKeyIn(variant uint32) bool {
	var buf [2]loc
	return slices.ContainsFunc(n.locs(&buf), func(l loc) bool { return n.s.f.Variant(l) == variant })
}

// ambiguous reports whether the name has two keys in one variant.
func (n *name) ambiguous() bool {
	var buf [2]loc
	if !n.isRich() || n.rich().keys[1] == 0 {
		return false
	}
	keys := n.locs(&buf)
	for i, k := range keys {
		for _, o := range keys[:i] {
			if n.s.f.Variant(k) == n.s.f.Variant(o) {
				return true
			}
		}
	}
	return false
}

// variantHash is a hash in a variant, by number. It has at most one key, unless it is
// ambiguous.
type variantHash struct {
	hash    Hash
	variant uint32
}

// locOf returns the place of the first key of a hash in a variant, and the number of its
// keys there.
func (s *source) locOf(at variantHash) (loc, int) {
	n := s.name(at.hash)
	return n.locIn(at.variant)
}

// locIn is locOf for a name.
func (n *name) locIn(variant uint32) (found loc, keys int) {
	var buf [2]loc
	for _, l := range n.locs(&buf) {
		if n.s.f.Variant(l) != variant {
			continue
		}
		if keys++; keys == 1 {
			found = l
		}
	}
	return found, keys
}

// place adds the key at l to the name, and to the holders of the name. If too many names
// have the key, or there is no room to record them, the name keeps the keys that it has. A
// name without keys is forgotten then.
func (n *name) place(l loc) {
	s := n.s
	var buf [2]loc
	if n.value == 0 {
		s.f.Ref(l)
		n.becomeIdle(l)
		return
	}
	same := 0
	variant := s.f.Variant(l)
	for _, k := range n.locs(&buf) {
		if s.f.Here(k) == l {
			return
		}
		s.forged = s.forged || !s.f.Dead(k) && s.f.Key(s.f.Here(k)) == s.f.Key(l)
		if s.f.Variant(k) == variant {
			same++
		}
	}
	if same > 0 {
		switch {
		case n.isIdle(): // the old block has gone: the engine uses the hash again
			i := s.idle.at(n.number())
			s.f.Ref(l)
			s.f.Unref(i.loc)
			i.loc = l
			return
		case !n.held():
			n.unplace(variant)
		default:
			if s.counts.Ambiguous++; same > 1 {
				return // two keys are enough: nothing is placed behind an ambiguous hash
			}
		}
	}
	n.enrich()
	r := n.rich()
	if r.holders > 0 && !n.claim(l) {
		if s.counts.Ambiguous++; n.unplaced() { // no store would wait for a key any more
			s.lost(n.evict())
		}
		return
	}
	s.f.Ref(l)
	n.addKey(l)
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		if c.copies > 0 {
			s.f.Hold(l, s.lanes.all[c.lane].ord)
		}
		i = c.next
	}
	if n.isHiddenExcept(0) {
		n.hide(l)
	}
	for i := r.waits; i != 0; {
		w := s.waiters.at(i)
		if p := s.waits.slots[w.store].p; p.need > 0 {
			s.waits.look(p)
		}
		i = w.next
	}
	n.simplify()
}

func (n *name) addKey(l loc) {
	s, r := n.s, n.rich()
	switch {
	case r.keys[0] == 0:
		r.keys[0] = l
		s.keyless--
	case r.keys[1] == 0:
		r.keys[1] = l
	default:
		last := &r.more
		for *last != 0 {
			last = &s.more.at(*last).next
		}
		*last = s.more.take(moreKey{loc: l})
	}
}

// dropKey takes a key from a rich name that has others, and from the lanes that hold it.
func (n *name) dropKey(l loc) {
	var buf [2]loc
	s, r := n.s, n.rich()
	for i := r.first; i != 0; i = s.copies.at(i).next {
		if ln := s.lanes.all[s.copies.at(i).lane]; s.copies.at(i).copies > 0 && !n.othersHold(l, ln) {
			s.f.Release(l, ln.ord)
		}
	}
	if r.holders > 0 {
		n.disclaim(l)
	}
	if n.isHiddenExcept(0) {
		s.hidden.remove(l)
	}
	all := slices.Clone(n.locs(&buf))
	n.dropKeys()
	s.keyless++
	for _, k := range all {
		if k != l {
			n.addKey(k)
		}
	}
	s.f.Unref(l)
}

// dropKeys takes all keys from a rich name.
func (n *name) dropKeys() {
	s, r := n.s, n.rich()
	r.keys = [2]loc{}
	for r.more != 0 {
		i := r.more
		r.more = s.more.at(i).next
		s.more.give(i)
	}
}

// unplace takes the keys of a variant, and the hidden holdings, from a rich name that
// nobody holds.
func (n *name) unplace(variant uint32) {
	var buf [2]loc
	n.forgetHidden()
	all := slices.Clone(n.locs(&buf))
	n.dropKeys()
	n.s.keyless++
	for _, l := range all {
		if n.s.f.Variant(l) == variant {
			n.s.f.Unref(l)
		} else {
			n.addKey(l)
		}
	}
}

// enrich makes the name rich.
func (n *name) enrich() {
	if n.isRich() {
		return
	}
	s := n.s
	r := richName{hash: n.hash}
	switch {
	case n.isPlain():
		l := loc(n.value)
		r.keys[0] = l
		for _, ln := range s.lanes.all {
			if ln != nil && s.f.Holds(l, ln.ord) {
				r.first = s.copies.take(copyCount{lane: ln.number, copies: 1, next: r.first})
				r.holders++
			}
		}
	case n.isIdle():
		i := s.idle.at(n.number())
		r.keys[0], r.idle = i.loc, n.number()
		i.loc = 0
	default:
		s.keyless++
	}
	n.set(tagRich | value(s.riches.take(r)))
}

// simplify makes the name plain or idle if one of these forms is enough.
func (n *name) simplify() {
	if !n.isRich() {
		return
	}
	s, r := n.s, n.rich()
	if r.keys[0] == 0 || r.keys[1] != 0 || r.waits != 0 {
		return
	}
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		if c.copies != 1 || c.reported {
			return
		}
		i = c.next
	}
	if r.holders > 0 && s.shared.has(r.keys[0]) {
		return
	}
	l, idle := r.keys[0], r.idle
	for i := r.first; i != 0; {
		next := s.copies.at(i).next
		s.copies.give(i)
		i = next
	}
	s.riches.give(n.number())
	if idle == 0 {
		n.set(value(l))
		return
	}
	s.idle.at(idle).loc = l
	n.set(tagIdle | value(idle))
}

// forget removes the name, which nobody may hold.
func (n *name) forget() {
	s := n.s
	var buf [2]loc
	n.forgetHidden()
	for _, l := range n.locs(&buf) {
		s.f.Unref(l)
	}
	idle := n.number()
	if n.unplaced() {
		s.keyless--
	}
	if n.isRich() {
		n.void(func(*waitingStore) bool { return true })
		idle = n.rich().idle
		n.dropKeys()
		s.riches.give(n.number())
	}
	if idle != 0 {
		s.idle.remove(idle)
	}
	s.names.Remove(n.hash)
	n.value = 0
}

// holding is a handle of a group and tier that hold a name.
type holding struct {
	lane   *lane  // nil: there is no holding
	entry  uint32 // number of its copyCount; 0: the name is plain
	copies uint32 // 0: it is hidden
}

// holding returns the holding of a group and tier. It may be hidden.
func (n *name) holding(g *group, t Tier) holding {
	s := n.s
	switch {
	case n.isPlain():
		for _, ln := range g.lanes[t] {
			if s.f.Holds(loc(n.value), ln.ord) {
				return holding{ln, 0, 1}
			}
		}
	case n.isRich():
		for i := n.rich().first; i != 0; {
			c := s.copies.at(i)
			if ln := s.lanes.all[c.lane]; ln.group == g && ln.tier == t {
				return holding{ln, i, c.copies}
			}
			i = c.next
		}
	}
	return holding{}
}

// copyCount returns the copyCount of a holding, for which the name becomes rich.
func (n *name) copyCount(h *holding) *copyCount {
	s := n.s
	if h.entry == 0 {
		n.enrich()
		h.entry = n.rich().first
		for s.copies.at(h.entry).lane != h.lane.number {
			h.entry = s.copies.at(h.entry).next
		}
	}
	return s.copies.at(h.entry)
}

// othersHold reports whether a lane holds the block at l by another name.
func (n *name) othersHold(l loc, ln *lane) bool {
	if !n.s.shared.has(l) {
		return false
	}
	for o := n.s.shared.names.at(l); ; o = n.s.shared.names.things.at(o.next) {
		if o.hash != n.hash {
			if other := n.s.name(o.hash); other.heldBy(ln) {
				return true
			}
		}
		if o.next == 0 {
			return false
		}
	}
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

// unlink takes a copyCount from a rich name.
func (n *name) unlink(count uint32) {
	s := n.s
	p := &n.rich().first
	for *p != count {
		p = &s.copies.at(*p).next
	}
	*p = s.copies.at(count).next
	s.copies.give(count)
}
