package index

import "slices"

// Masked stores of window groups, and the hashes that follow from one of them.
//
// A masked store lists fewer hashes than its range has blocks, in the order of the
// range. But a window group keeps runs of as many blocks as the window needs (vLLM,
// v1/core/single_type_kv_cache_manager.py, reachable_block_mask, 2026-08-17).
// Each run ends at a boundary, where blocks of all groups end. A group that drops the last
// block of a hit (Group.Draft) keeps the block behind the boundary too. A request frees
// the first blocks of its table only, so all runs of a store are whole but the first.
//
// A hash that a group with larger blocks holds may be a boundary, so
//
//   - the hashes listed before it are those of the blocks before it, as far as its run
//     goes;
//   - in a draft group the hash listed behind it is that of the block behind it;
//   - if the store lists one hash for each block between two placed hashes, these are the
//     hashes of those blocks.
//
// If the larger blocks are shorter than a run, one may end in the middle of a run.
// That run ends at the last placed hash that follows without a gap, and only if
// that is a boundary itself, or in a draft group the block behind one.
//
// The blocks before a boundary are found by going up from it in the forest. So their
// salts, adapters and media are those of the boundary, although a masked store leaves
// them out for the blocks that it does not list. Only the block behind a boundary is
// placed by the tokens of the store.
//
// More places let more hashes follow: of two stores of one batch the second may place
// a hash that the first needs. So a masked store of which some hashes do not follow at
// once gets a look when an Apply has applied all of its changes, and again after each
// Apply that placed one of its hashes, or its parent.

// runBlocks returns how many blocks of a size the window of a group needs; 0: the group has
// no Window, or is no window group.
func (g *group) runBlocks(size int) int {
	if g.Kind != GroupWindow || g.Window < 2 {
		return 0
	}
	return (g.Window-2)/size + 1
}

// maskedRange is the range of a masked store.
type maskedRange struct {
	need     int // blocks of a run; 0: it is no store of a window group
	units    int // of its range
	fromRoot bool
	root     Key
}

// newMasked returns a masked store of a group with runs of need blocks.
func (st *storeTask) newMasked(need int, variant uint32) *waitingStore {
	c := st.c
	p := &waitingStore{
		group: st.group, hashes: c.Hashes, cut: cut{c.Variant, c.BlockSize}, parent: variantHash{variant: variant},
		maskedRange: maskedRange{need, len(c.Locals), !c.HasParent, c.Root},
	}
	if c.HasParent {
		p.parent.hash = c.Parent
	}
	if p.group.Draft && !c.UncertainLocals {
		p.locals = c.Locals
	}
	return p
}

// storeMasked carries out a masked store of a window group. aside is the bytes that are set
// aside for it.
func (st *storeTask) storeMasked(p *waitingStore, aside int) {
	s := st.s
	s.inHand++
	m := s.follow(p)
	if len(m.hashes) == m.unplaced {
		s.mem.Add(-aside)
		for _, b := range m.placed { // first: other names may push idle ones out
			n := s.name(p.hashes[b.i])
			st.hold(b.i, &n)
		}
		placed := st.placePiece(m.hashes, 0, len(m.hashes), blockEnds{m.locs, 1, 0})
		s.noRoom(st.lane, m.hashes[placed:])
		s.trimIdle()
		s.inHand--
		m.join()
		return
	}
	defer func() { s.inHand-- }()
	m.done()
	p.riches = make([]uint32, len(p.hashes))
	st.holdAll(p.hashes, p.riches)
	s.mem.Add(-aside)
	if slices.ContainsFunc(p.hashes, s.unplaced) {
		p.hashes, p.locals = slices.Clone(p.hashes), slices.Clone(p.locals)
		s.waits.look(p)
		p.blind = m.unplaced == len(p.hashes) && len(p.hashes) > 1
		s.waits.add(p)
	}
}

// settle places the hashes of masked stores that follow now. Placing one store may place
// others.
func (s *source) settle() {
	for len(s.waits.masked) > 0 && !s.removed.Load() {
		p := s.waits.masked[0]
		s.waits.masked = s.waits.masked[1:]
		if p.number == 0 { // it was dropped
			continue
		}
		s.inHand++
		m := s.follow(p)
		s.inHand--
		for i, at := range m.numbers {
			n := s.waits.name(p, at)
			n.place(m.locs[i])
		}
		p.looked = false
		if s.waits.anyUnplaced(p) {
			if _, n := s.locOf(p.parent); n == 0 && p.locals != nil && !p.fromRoot && !p.waits {
				s.waits.wait(p)
			}
		} else {
			s.waits.take(p)
		}
		m.join()
		s.pause(len(p.hashes))
	}
	s.waits.masked = nil
}

// maskedStore is the placed blocks of a masked store, and the hashes that follow from them.
type maskedStore struct {
	s          *source
	p          *waitingStore
	blockUnits int
	larger     []*lane // of other groups, with blocks that are larger than the store's
	placed     []placedBlock
	unplaced   int // hashes without a place
	// hashes follow. Each has its position in the store in numbers, and its pinned place
	// in locs.
	hashes  []Hash
	numbers []int
	locs    []loc
}

// placedBlock is a block of a masked store that has a place.
type placedBlock struct {
	i  int // in hashes
	at loc
	// boundary: a group with larger blocks holds it. sure: those are as long as a
	// run, so it ends one.
	boundary, sure bool
	gap            int // blocks from it to the placed one behind it; 0: there is none
	from           int // units from the begin of the store to its end; -1: unknown
}

// follow returns the hashes that follow from the placed ones of a store. The caller calls
// join or done on the result before the next follow.
func (s *source) follow(p *waitingStore) *maskedStore {
	if s.following == nil {
		s.following = s.ground.takeFollowing()
	}
	m := s.following
	*m = maskedStore{
		s: s, p: p, blockUnits: p.cut.size / p.cut.variant.Unit,
		larger: m.larger[:0], placed: m.placed[:0], hashes: m.hashes[:0], numbers: m.numbers[:0], locs: m.locs[:0],
	}
	for _, ln := range s.lanes.all {
		if ln != nil && ln.tier == TierGPU && ln.group != p.group && ln.group.cutOf(ln).size > p.cut.size {
			m.larger = append(m.larger, ln)
		}
	}
	if !p.blind && m.findPlaced() {
		m.followAll()
	}
	return m
}

// done releases the places.
func (m *maskedStore) done() {
	for _, l := range m.locs {
		m.s.f.Unpin(l)
	}
}

// join is done, and places the stores that waited for the hashes.
func (m *maskedStore) join() {
	m.done()
	if !m.s.waits.hasParents() {
		return
	}
	variant := m.p.parent.variant
	for _, h := range slices.Clone(m.hashes) {
		m.s.waits.join(variantHash{h, variant})
	}
}

// followAll goes from right to left.
func (m *maskedStore) followAll() {
	n := len(m.placed)
	if n == 0 {
		if len(m.p.hashes) == 1 && m.p.need > 1 { // a whole run lists more
			m.placeAtBegin()
		}
		return
	}
	m.measure()
	m.placeBehind(m.placed[n-1], len(m.p.hashes)-1-m.placed[n-1].i)
	for k := n - 1; k > 0; k-- {
		left, right := m.placed[k-1], m.placed[k]
		listed := right.i - left.i - 1
		if listed == left.gap-1 {
			m.countBack(right, listed)
			continue
		}
		run, _, _ := m.runBefore(k)
		if listed >= run {
			m.countBack(right, run)
			m.placeBehind(left, listed-run)
		}
	}
	m.placeFirst()
}

// measure sets how far the placed blocks are from the begin of the store, if that has a place.
func (m *maskedStore) measure() {
	behind, ok := m.begin()
	for k := range m.placed {
		b, most := &m.placed[k], m.p.units
		b.from = -1
		if k > 0 {
			left := &m.placed[k-1]
			if most = left.gap * m.blockUnits; left.from >= 0 {
				b.from = left.from + most
				continue
			}
		}
		if !ok || m.s.f.Dead(b.at) { // the slabs before an evicted one may have gone
			continue
		}
		if units, ok := m.s.f.Between(behind, b.at, most); ok {
			b.from = units
		}
	}
}

// findPlaced finds the placed blocks of the store. It returns false if they contradict
// each other, or one has two places.
func (m *maskedStore) findPlaced() bool {
	for i, h := range m.p.hashes {
		m.s.bury(h)
		if m.p.isVoid(i) {
			continue
		}
		of := m.s.waits.name(m.p, i)
		at, n := of.locIn(m.p.parent.variant)
		switch {
		case n > 1:
			m.unplaced++
			return false
		case n == 0:
			m.unplaced++
			continue
		}
		if n := len(m.placed); n > 0 {
			left := &m.placed[n-1]
			units, ok := m.s.f.Between(left.at, at, m.p.units)
			if left.gap = units / m.blockUnits; !ok || units%m.blockUnits != 0 || left.gap < i-left.i {
				m.unplaced++
				return false
			}
		}
		larger := m.largerBlock(&of)
		m.placed = append(m.placed, placedBlock{i: i, at: at, boundary: larger > 0, sure: larger/m.p.cut.size >= m.p.need})
	}
	return true
}

// largerBlock returns the largest block that another group holds by a name, in
// tokens; 0: none is larger than those of the store.
func (m *maskedStore) largerBlock(n *name) (size int) {
	for _, ln := range m.larger {
		holds := n.isPlain() && m.s.f.Holds(loc(n.value), ln.ord) || n.isRich() && n.heldBy(ln)
		if by := ln.group.cutOf(ln); holds {
			size = max(size, by.size)
		}
	}
	return size
}

// runBefore returns how many blocks the run of a placed block has before it. sure: its end
// is that of a larger block as long as a run. ok is false if no end was found.
func (m *maskedStore) runBefore(k int) (n int, sure, ok bool) {
	blocks := 0
	for ; ; k++ {
		b := m.placed[k]
		behind := m.p.group.Draft && b.gap == 1 && !m.placed[k+1].boundary && !m.goesOn(k+1)
		if b.sure || b.boundary && (behind || !m.goesOn(k)) {
			return max(m.p.need-1-blocks, 0), b.sure, true
		}
		if !m.goesOn(k) {
			return 0, false, false
		}
		blocks += b.gap
	}
}

// goesOn reports whether the next placed block follows one without a gap.
func (m *maskedStore) goesOn(k int) bool {
	return k+1 < len(m.placed) && m.placed[k+1].i-m.placed[k].i == m.placed[k].gap
}

// placeFirst places the hashes before all placed blocks. The run there may have
// begun before the store. A draft group may list one more: the block behind
// the boundary at which the store begins.
func (m *maskedStore) placeFirst() {
	run, sure, ok := m.runBefore(0)
	listed := m.placed[0].i
	n := min(run, listed)
	if n == listed && n > 0 && m.p.group.Draft && !sure && m.beginsAtBoundary() {
		n-- // the store may end before the run, and have the block behind the boundary
	}
	m.countBack(m.placed[0], n)
	if ok && listed == run+1 {
		m.placeAtBegin()
	}
}

// countBack places the n hashes before a placed one.
func (m *maskedStore) countBack(b placedBlock, n int) {
	for k := 1; k <= n; k++ {
		if m.s.f.Dead(b.at) {
			return
		}
		if b.at = m.s.f.Up(b.at, m.blockUnits); b.at == 0 {
			return
		}
		m.place(b.i-k, b.at)
	}
}

// placeBehind places the first of the hashes that are listed behind a boundary of a draft
// group.
func (m *maskedStore) placeBehind(b placedBlock, listed int) {
	if b.from < 0 || b.from > m.p.units || b.from%m.blockUnits != 0 || !b.boundary || listed == 0 {
		return
	}
	m.placeByTokens(b.i+1, b.at, b.from)
}

// placeAtBegin places the first hash of a draft group's store right where the store
// begins, if that is a boundary.
func (m *maskedStore) placeAtBegin() {
	if behind, ok := m.begin(); ok && m.beginsAtBoundary() {
		m.placeByTokens(0, behind, 0)
	}
}

func (m *maskedStore) beginsAtBoundary() bool {
	parent := m.s.name(m.p.parent.hash)
	return m.p.fromRoot || m.largerBlock(&parent) > 0
}

// begin returns the place behind which the store begins.
func (m *maskedStore) begin() (at loc, ok bool) {
	if m.p.fromRoot {
		return 0, true
	}
	at, n := m.s.locOf(m.p.parent)
	return at, n == 1
}

// placeByTokens places hash i of a draft group's store behind a place, by the tokens
// from a unit on. Other stores have no tokens.
func (m *maskedStore) placeByTokens(i int, behind loc, from int) {
	s, p := m.s, m.p
	if from+m.blockUnits > len(p.locals) {
		return
	}
	key := p.root
	if s.f.Dead(behind) {
		return
	}
	if behind != 0 {
		key = Key(s.f.Key(behind))
	}
	r := blockRange{behind, key, p.parent.variant, p.locals[from : from+m.blockUnits], m.blockUnits}
	s.placeRange(r, func(_, _ int, ends blockEnds) bool {
		m.place(i, ends.of(0))
		return true
	})
}

// place records the place of hash i.
func (m *maskedStore) place(i int, at loc) {
	if !m.p.isVoid(i) {
		m.s.f.Pin(at)
		m.hashes = append(m.hashes, m.p.hashes[i])
		m.numbers = append(m.numbers, i)
		m.locs = append(m.locs, at)
	}
}
