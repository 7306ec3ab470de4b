package index

import (
	"math"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// A store reports that blocks are held, and may give their hashes keys. These are two
// steps:
//
//   - Only a dense store of the gpu gives keys: it lists a hash for each block of its
//     range. If the parent has a place, the range is placed in the forest and each hash
//     gets the key at the end of its block. If the parent has none, the store is parked.
//     If the parent stands for two prefixes, the store is never placed.
//   - A masked store, with fewer hashes than blocks, does not identify its blocks. Its
//     hashes are held. Queries see them once another store names them, or they follow
//     from a hash with a key (masked.go).
//   - A store of a lower tier gives no keys: vLLM's offloading events leave out salts and
//     media, so such a key would claim a salted prompt for everybody. One of parts of a block
//     is an exception, because no other event may name the first of them: they have the
//     salt of their parent.
//   - A dense store of a lower tier is a chunk, which is loaded as a whole or not
//     at all and may be removed by its last hash alone (vLLM's self-describing
//     chunks). So it is one block of the chunk's length, held by that hash.
//   - A store of a lower tier may be of parts of blocks (vLLM's partial Mamba states). Its
//     BlockSize shows it or, of a hash alone, its key, which ends inside a block.
//
// reports.go decides the copies that a store counts for.

// storeTask is a store in progress.
type storeTask struct {
	s       *source
	c       *Change
	group   *group
	lane    *lane
	parts   *lane // of its hashes that are parts of blocks; nil: there is none
	guarded bool  // against reports
	report  bool
	from    int  // the first block that it holds
	unsure  int  // the block that may be there; -1: none
	chained bool // each block is the parent of the next
}

func (s *source) store(c *Change) {
	g, changed := s.groupFor(c)
	if g == nil {
		s.noRoom(nil, c.Hashes)
		return
	}
	if changed {
		defer s.publish()
	}
	if len(c.Hashes) == 0 {
		return
	}
	s.counts.Stored += uint64(len(c.Hashes))
	if s.f.Dying() > 0 {
		for _, h := range c.Hashes {
			s.bury(h)
			s.yield(1)
		}
	}
	dense := len(c.Locals) > 0 && len(c.Hashes) == c.Blocks()
	masked := len(c.Hashes) < c.Blocks()
	held, by := c.Hashes, cut{c.Variant, c.BlockSize}
	switch {
	case c.Tier != TierGPU && dense:
		if held = c.chunks(); c.BlockSize >= g.cut.size {
			by.size *= len(c.Hashes)
		}
	case len(c.Locals) == 0:
		by = cut{}
	}
	ln, room := s.laneFor(g, c.Tier, by, nil)
	if !room {
		s.noRoom(nil, c.Hashes)
		return
	}
	variant, ok := s.ground.variant(c.Variant)
	if ln == nil || !ok && len(c.Locals) > 0 {
		s.giveUp()
		return
	}
	st := storeTask{s: s, c: c, group: g, lane: ln, chained: dense}
	if by == (cut{}) && c.Tier != TierGPU && slices.ContainsFunc(held, func(h Hash) bool { return s.isPart(g, h) }) {
		if st.parts, room = s.laneFor(g, c.Tier, cut{g.cut.variant, g.grain}, ln); !room {
			s.noRoom(nil, held)
			return
		}
		if st.parts == nil {
			s.giveUp()
			return
		}
	}
	st.judge(held)
	if dense && c.Tier == TierGPU {
		switch prev, n := st.before(variant); n {
		case 1:
			st.placeAll(prev, variant)
			return
		case 0:
			if s.evicted > 0 && s.ground.near() { // the parent most likely was
				s.noRoom(ln, held)
				return
			}
			aside, ok := s.ground.setAside(s, len(held), len(c.Locals))
			if !ok {
				s.noRoom(ln, held)
				return
			}
			p := &waitingStore{
				group: g, tier: c.Tier, hashes: slices.Clone(c.Hashes),
				parent: variantHash{c.Parent, variant}, locals: slices.Clone(c.Locals),
				cut: by, riches: make([]uint32, len(held)),
			}
			s.inHand++ // their numbers
			st.holdAll(held, p.riches)
			s.mem.Add(-aside)
			s.waits.park(p)
			s.inHand--
			return
		}
		st.dropChild()
	}
	aside, ok := s.ground.setAside(s, len(held), len(c.Locals))
	if !ok {
		s.noRoom(ln, held)
		return
	}
	if masked && c.Tier == TierGPU {
		if need := g.runBlocks(c.BlockSize); need > 0 {
			st.storeMasked(st.newMasked(need, variant), aside)
			return
		}
	}
	if dense && c.Tier != TierGPU && c.BlockSize < g.cut.size && c.HasParent && !c.UncertainLocals {
		st.nameParts(variant)
	}
	st.holdAll(held, nil)
	s.mem.Add(-aside)
	if held = held[st.from:]; slices.ContainsFunc(held, s.unplaced) {
		s.waits.add(&waitingStore{group: g, tier: c.Tier, hashes: slices.Clone(held)})
	}
}

// isPart reports whether a hash names a part of a block of a group, of the size of its grain.
func (s *source) isPart(g *group, h Hash) bool {
	unit := g.cut.variant.Unit
	if g.grain == g.cut.size || g.grain%unit != 0 {
		return false
	}
	variant, _ := s.ground.variant(g.cut.variant)
	at, keys := s.locOf(variantHash{h, variant})
	if keys != 1 {
		return false
	}
	units, _ := s.f.Between(0, at, math.MaxInt)
	return units%(g.cut.size/unit) != 0 && units%(g.grain/unit) == 0
}

// unplaced reports whether h is held and has no key.
func (s *source) unplaced(h Hash) bool {
	n := s.name(h)
	return n.unplaced()
}

// nameParts gives the hashes of a lower tier's store of parts of a block their keys, if they have
// none and their parent has one.
func (st *storeTask) nameParts(variant uint32) {
	s, c := st.s, st.c
	prev, n := st.before(variant)
	if n != 1 {
		return
	}
	r := blockRange{prev, Key(s.f.Key(prev)), variant, c.Locals, c.BlockSize / c.Variant.Unit}
	s.placeRange(r, func(from, to int, ends blockEnds) bool {
		var named []Hash
		for i, h := range c.Hashes[from:to] {
			if !s.roomFor(h) {
				return false
			}
			if n := s.fresh(h); !n.hasKeyIn(variant) {
				n.place(ends.of(from + i))
				s.trimIdle()
				named = append(named, h)
			}
		}
		for _, h := range named {
			s.waits.join(variantHash{h, variant})
		}
		return true
	})
}

// dropChild gives up placing a store whose parent stands for two prefixes. It may continue
// either of them, so its blocks are held without keys: the old keys of their hashes are not
// theirs.
func (st *storeTask) dropChild() {
	s := st.s
	s.counts.Dropped++
	for _, h := range st.c.Hashes {
		if n := s.name(h); n.value != 0 && !n.held() {
			n.forget()
		}
	}
}

// setAside makes room for a store that may have to wait, without its names, and counts the
// bytes until it waits. It returns false if there is no room. s is the writer.
func (g *ground) setAside(s *source, hashes, locals int) (bytes int, ok bool) {
	each := int(unsafe.Sizeof(Hash(0)) + unsafe.Sizeof(uint32(0)) + unsafe.Sizeof(waiter{}))
	bytes = mem.Size(each*hashes) + mem.Size(localBytes*locals)
	if int64(bytes) > g.slack/8 && !g.makeRoom(s, func() bool { return g.pages() > int64(bytes) }) {
		return 0, false
	}
	g.mem.Add(bytes)
	return bytes, true
}

// before returns the place that the first block of a dense store continues, and
// how many such places there are.
func (st *storeTask) before(variant uint32) (at loc, n int) {
	s, c := st.s, st.c
	if !c.HasParent {
		return 0, 1
	}
	s.bury(c.Parent)
	return s.locOf(variantHash{c.Parent, variant})
}

// giveUp drops a store.
func (s *source) giveUp() {
	s.counts.Dropped++
	s.doubts = true
}

// noRoom drops the rest of a store for a lane; nil: there is no room for the lane either.
// The old keys of its hashes are not those of the blocks that they name now.
func (s *source) noRoom(ln *lane, hashes []Hash) {
	if len(hashes) == 0 {
		return
	}
	s.giveUp()
	lost := 0
	for _, h := range hashes {
		lost++
		if n := s.name(h); n.value != 0 {
			if ln != nil && n.holding(ln.group, ln.tier).copies > 0 {
				lost--
			}
			lost += n.evict()
		}
		s.yield(1)
	}
	s.lost(lost)
	if ln != nil {
		s.f.Lose(ln.ord)
	}
}

// placeAll carries out a dense gpu store behind prev, and places the stores that waited for
// its blocks.
func (st *storeTask) placeAll(prev loc, variant uint32) {
	s, c := st.s, st.c
	key := c.Root
	if prev != 0 {
		key = Key(s.f.Key(prev))
	}
	r := blockRange{prev, key, variant, c.Locals, c.BlockSize / c.Variant.Unit}
	placed := 0
	s.placeRange(r, func(from, to int, ends blockEnds) bool {
		s.names.Prefetch(c.Hashes[from:to])
		if placed = st.placePiece(c.Hashes, from, to, ends); placed < to {
			return false
		}
		if s.waits.hasParents() {
			for _, h := range c.Hashes[from:to] {
				s.waits.join(variantHash{h, variant})
			}
		}
		return true
	})
	s.noRoom(st.lane, c.Hashes[placed:])
}

// placePiece gives blocks of a store, which end at ends, their keys, and records that they
// are held. It returns the number of the first block without room.
//
// Nearly all blocks are new to the source. So those that share a slab get plain names one
// after the other, and the slab is updated once.
func (st *storeTask) placePiece(hashes []Hash, from, to int, ends blockEnds) int {
	s := st.s
	for from < to {
		if !s.roomFor(hashes[from]) {
			return from
		}
		if n := s.fresh(hashes[from]); n.value != 0 {
			st.placeName(&n, from, ends.of(from))
			from++
			continue
		}
		id := ends.of(from).Slab()
		mine := s.lanes.slotsOf(id)
		var plain uint32
		first := from
		for ; from < to; from++ {
			l := ends.of(from)
			bit := uint32(1) << l.Slot()
			if from > first && s.ground.full() && !s.hasRoom(hashes[from]) {
				break
			}
			if s.dump != nil {
				s.dump.name(hashes[from])
			}
			if l.Slab() != id || (mine|plain)&bit != 0 || s.shared.names != nil || from < st.from || from == st.unsure || s.names.Add(hashes[from], value(l)) != 0 {
				break
			}
			plain |= bit
		}
		if from > first {
			s.f.RefAndHold(id, st.lane.ord, plain)
			s.lanes.gain(st.lane, hashes[first:from]...)
			continue
		}
		n := s.fresh(hashes[from])
		st.placeName(&n, from, ends.of(from))
		from++
	}
	return to
}

// placeName places the name of block i of the store, and records that the block is held.
func (st *storeTask) placeName(n *name, i int, at loc) {
	if n.place(at); n.value != 0 {
		st.hold(i, n)
	}
	st.s.trimIdle()
}

// holdAll records that hashes are held which the store does not place. Unless riches is
// nil, it sets the numbers of the unplaced names.
func (st *storeTask) holdAll(hashes []Hash, riches []uint32) {
	for i, h := range hashes {
		if !st.s.roomFor(h) {
			st.s.noRoom(st.lane, hashes[i:])
			clear(riches) // of names that stand behind i too, and have gone
			return
		}
		n := st.s.fresh(h)
		st.hold(i, &n)
		if riches != nil && n.unplaced() {
			riches[i] = n.number()
		}
		st.s.trimIdle()
		st.s.pause(1)
	}
}

// hold records that the lane of the store has its block i, by the rules of
// Copies.
func (st *storeTask) hold(i int, n *name) {
	s, c, full := st.s, st.c, st.group.Kind == GroupFull
	h := n.holding(st.group, c.Tier)
	switch {
	case i < st.from:
		s.counts.Reports++
		return
	case i == st.unsure && h.lane == nil:
		s.counts.Reports++
		n.addHidden(st.lane)
		return
	case h.copies == 0:
		if h.lane != nil {
			s.counts.Restored++
		}
		ln := st.lane
		if st.parts != nil && s.isPart(st.group, n.hash) {
			ln = st.parts
		}
		h = n.gain(ln, h)
	case c.Tier != TierGPU:
		if h.lane.age > 0 {
			st.renew(n, h)
		}
	case c.Copies == CopiesSet:
	case st.report:
		s.counts.Reports++
		if st.guarded && full || h.entry != 0 {
			n.copyCount(&h).reported = st.guarded && full
		}
	default:
		if b := n.copyCount(&h); b.copies < math.MaxUint32 { // a removal may have set it to that
			b.copies++
		}
	}
	if !n.isRich() {
		return
	}
	if h.entry != 0 && st.chained {
		b := s.copies.at(h.entry)
		if b.chained, b.parent = c.HasParent, c.Parent; i > 0 {
			b.chained, b.parent = true, c.Hashes[i-1]
		}
	}
	n.simplify()
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

// gain gives a lane its first copy of a block. was is the holding of the group and tier
// before: none, or a hidden one. gain returns the holding after: that is was, if too many
// names have the key.
func (n *name) gain(ln *lane, was holding) holding {
	s := n.s
	var buf [2]loc
	switch {
	case n.isPlain():
		s.f.Hold(loc(n.value), ln.ord)
		s.lanes.gain(ln, n.hash)
		return holding{ln, 0, 1}
	case n.isIdle():
		i := n.number()
		l := s.idle.at(i).loc
		if !n.claim(l) {
			s.counts.Ambiguous++
			s.doubts = true
			return was
		}
		if !s.shared.has(l) {
			s.idle.remove(i)
			n.set(value(l))
			s.f.Hold(l, ln.ord)
			s.lanes.gain(ln, n.hash)
			return holding{ln, 0, 1}
		}
	case n.isRich() && !n.held():
		if !n.claimKeys() {
			s.counts.Ambiguous++
			s.doubts = true
			return was
		}
	}
	n.enrich()
	r := n.rich()
	if r.idle != 0 {
		s.idle.remove(r.idle)
		r.idle = 0
	}
	count := was.entry
	if count == 0 {
		count = s.copies.take(copyCount{next: r.first})
		r.first = count
	} else {
		n.unhide(count)
	}
	c := s.copies.at(count)
	c.lane, c.copies = ln.number, 1
	r.holders++
	for _, l := range n.locs(&buf) {
		s.f.Hold(l, ln.ord)
	}
	s.lanes.gain(ln, n.hash)
	return holding{ln, count, 1}
}

// claimKeys claims all keys of a name that nobody holds, or none.
func (n *name) claimKeys() bool {
	s := n.s
	var buf [2]loc
	keys := n.locs(&buf)
	if s.shared.names == nil && slices.ContainsFunc(keys, s.lanes.holdsAt) && !s.noteShared() { // before the first key is claimed
		return false
	}
	for i, l := range keys {
		if !n.claim(l) {
			for _, l := range keys[:i] {
				n.disclaim(l)
			}
			return false
		}
	}
	return true
}

// blockRange is a run of blocks for a placeRange.
type blockRange struct {
	behind  loc // 0: a root
	key     Key // at behind, or the root
	variant uint32
	locals  []Local
	units   int // of a block
}

// blockEnds are the places of a piece of a range, which begins at unit first.
type blockEnds struct {
	locs         []loc
	units, first int // a block has units of them
}

// of returns where block i of the range ends.
func (e *blockEnds) of(i int) loc { return e.locs[(i+1)*e.units-1-e.first] }

// pieceUnits is how many keys are placed at once.
const pieceUnits = 256

// scratch is the memory of a placeRange. Joins nest them, and other writers need their own
// while one lets them in.
type scratch struct {
	keys [pieceUnits]forest.Key
	locs [pieceUnits]loc
}

// placeRange places the blocks of a range, piece by piece. It calls each with the blocks
// that end in a piece, and lets other writers in between. It ends before the end of the
// range if there is no room, or each returns false.
func (s *source) placeRange(r blockRange, each func(from, to int, ends blockEnds) bool) {
	prev, key := s.f.Here(r.behind), r.key
	if prev != 0 {
		s.f.Pin(prev) // not to lose it to the writers that are let in
	}
	own := s.ground.takeScratch()
	defer s.ground.giveScratch(own)
	locs := own.locs[:]
	for at := 0; at < len(r.locals); at += pieceUnits {
		keys := own.keys[:0]
		for _, l := range r.locals[at:min(at+pieceUnits, len(r.locals))] {
			key = Chain(key, l)
			keys = append(keys, forest.Key(key))
		}
		if !s.placeKeys(prev, r.variant, keys, locs[:len(keys)]) {
			break
		}
		last := locs[len(keys)-1]
		s.f.Pin(last)
		from, to := at/r.units, (at+len(keys))/r.units
		s.f.PinAll(locs[:len(keys)])
		more := to == from || each(from, to, blockEnds{locs, r.units, at})
		s.f.UnpinAll(locs[:len(keys)])
		if prev != 0 {
			s.f.Unpin(prev)
		}
		prev = last
		if !more {
			break
		}
		s.pause(len(keys))
	}
	if prev != 0 {
		s.f.Unpin(prev)
	}
}

// placeKeys is Forest.Place, and makes room if there is none.
func (s *source) placeKeys(prev loc, variant uint32, keys []forest.Key, locs []loc) bool {
	place := func() bool { return s.f.Place(prev, variant, keys, locs) }
	if place() || s.inHand == 0 && s.ground.makeRoom(s, place) {
		return true
	}
	s.f.AnySize = true
	defer func() { s.f.AnySize = false }()
	return place()
}
