package index

import "slices"

// Guarded copies.
//
// vLLM announces each physical copy of a block and removes each, so copies must be
// counted: one removal must not make the index forget a block whose other copy
// stays. But any client can make vLLM announce its blocks again, with no removal
// to come (kv_cache_report_mode=full, a field of its request). Such a report
// counted as a copy would claim the block for ever. An event does not show whether it is
// a report or a copy. But reports begin at block 0, without a parent, and in full groups
// they name blocks that are there.
//
// A report is one store a group, in the order of the group IDs, of all blocks of the
// hit from the first one on (vLLM, v1/core/kv_cache_manager.py, get_computed_blocks, and
// v1/core/block_pool.py, emit_cached_block_events, 2026-08-17). So it is never masked, it
// has no parts of blocks, and it has no parent.
//
// # Never over
//
// A store of a full group without a parent whose blocks are all held already, or
// hidden, is taken for a report and not counted.
//
// It may have been a real second copy, of a prompt that two requests computed at
// once. Then the index counts one copy less than there are: an undercount, once
// the first copy is removed. The rule requires that reports name only blocks in view.
// They do if the index received the whole history. If it did not, a report can name
// blocks in view beside others, would not be taken for a report, and the blocks in view
// would be counted twice. So no store without a parent counts a block that is held
//
//   - in a partial view (Change.Partial), which the host reports;
//   - after the index itself gave up blocks that the engine may hold (doubts): at
//     one of its bounds, or at an ambiguous removal.
//
// A hit may end inside a block, where a model has Mamba groups and caches parts of
// blocks. Its report names the whole block, which need not be there. So the last block
// of a full group's report is hidden, if it was not there before.
//
// # Groups that do not keep all blocks
//
// A report of a window, Mamba or chunked group names blocks that nobody holds. So a store
// of such a group counts as a report unless one of these signs shows that it is none:
//
//   - It is masked, or of a part of a block.
//   - The full group before it, whose store belongs to the same request, was not
//     taken for a report: then the request found nothing.
//   - A full group lacks the last block, which is the end of the hit.
//   - The group itself lacks the last block. All hits end with a block that is
//     there, but those of chunked groups and those inside a block. This sign requires that
//     all copies are counted, so it ends once a store was taken for a report
//     (group.uncounted).
//
// All but the first need a whole view. A store that may be a report holds only the blocks
// that a hit proves: those that the window needs at its end, the state at its end,
// the blocks of the chunk in which it ends. A real store proves them too, so in a
// partial view reports bring back the blocks that a next request needs.
//
// A repeat behind a parent is a copy there as in full groups: a report has no parent.
//
// # What is hidden comes back
//
// A block with a store that was not counted is marked (copyCount.reported).
// When its last counted copy is removed, it is hidden: no query sees it, but it is
// kept. A later store of the gpu that names it as its parent is a proof: an engine
// computes a block behind another one only while that one is there. So the parent,
// and all before it that is hidden, comes back. Without this, one prompt of
// exactly one block makes a hot first block vanish.
//
// An ancestor is found by its key, without the engine's hash for it. Where
// two names of one prefix were hidden at one time, or a hidden name may have been
// forgotten (doubts), the name that is found may not be the engine's. A wrong guess
// would outlive its removal, so none comes back.
//
// Only a hidden parent is a proof. A walk of the ancestors from every store would
// find more (120 instead of 517 undercounts in the 10,000 requests of
// TestAgainstEngines, when that was tried), and is not done: a connector whose load
// fails makes vLLM forget a block that is in use, and then a later descendant is no
// proof. The same can happen to a hidden direct parent. Events do not show the
// difference, and CopiesExact never restores.
//
// A report of the block itself brings it back too: it is held then, as by any
// store. And a last block that was hidden because it may be a report's comes back at
// the masked store of the same tokens in another group: the request was no hit.

// maxRestore bounds the walk of restore, in blocks: a hostile engine can make the
// parents a circle.
const maxRestore = 1 << 12

// rootStore is the latest guarded store of a full group without a parent, as it was judged.
type rootStore struct {
	*Change // nil: there is none
	group   *group
	counted bool // as no report
	hid     bool // its last block
}

// judge decides which blocks and copies a store of some hashes counts for.
func (st *storeTask) judge(held []Hash) {
	s, c, g := st.s, st.c, st.group
	st.report, st.unsure = c.Reused, -1
	st.guarded = c.Tier == TierGPU && c.Copies == CopiesGuarded
	switch {
	case !st.guarded:
	case c.HasParent:
		if g.Kind == GroupFull {
			s.restore(c.Parent, g)
		}
	case len(c.Locals) > 0 && c.BlockSize < g.cut.size: // a part of a block: no report has any
	case g.Kind == GroupFull:
		st.judgeFull(held)
	default:
		st.judgeSparse(held)
	}
}

// judgeFull judges a guarded store of a full group without a parent.
func (st *storeTask) judgeFull(held []Hash) {
	s, c, g := st.s, st.c, st.group
	blind, last := c.Partial || s.doubts, len(held)-1
	parts := st.chained && st.mayHaveParts(blind)
	s.prompt = rootStore{Change: c, group: g}
	counts := !blind && !st.allSeen(held)
	if counts && parts {
		counts = !st.allSeen(held[:last])
	}
	if s.prompt.counted = counts; counts {
		return
	}
	st.report = true
	if parts && !st.allSeen(held[last:]) {
		st.unsure, s.prompt.hid = last, true
	}
}

// judgeSparse judges a guarded store of another group without a parent.
func (st *storeTask) judgeSparse(held []Hash) {
	s, c, g := st.s, st.c, st.group
	blind, p := c.Partial || s.doubts, s.prompt
	switch {
	case len(held) < c.Blocks():
		if p.hid && !c.UncertainLocals && p.Variant == c.Variant && p.Root == c.Root && slices.Equal(p.Locals, c.Locals) {
			s.restore(p.Hashes[len(p.Hashes)-1], p.group)
		}
	case !blind && (p.counted && p.group.ID < g.ID || st.isLacked(held[len(held)-1])):
	default:
		st.report, g.uncounted = true, true
		st.from = max(len(held)-g.sureOf(c, st.mayHaveParts(blind)), 0)
	}
}

// isLacked reports whether a group lacks a block, so that no report of a sparse
// group can end with it. The index has all copies but those of uncounted groups.
func (st *storeTask) isLacked(h Hash) bool {
	s, g := st.s, st.group
	parts := st.mayHaveParts(false)
	lacks := func(g *group) bool {
		n := s.name(h)
		return n.holding(g, TierGPU).lane == nil
	}
	ends := g.Kind != GroupChunked && g.Window != 1 && (g.Kind != GroupMamba || !parts)
	if ends && !g.uncounted && lacks(g) {
		return true
	}
	for _, full := range s.lanes.groups {
		if full.Kind == GroupFull && full.declared && !parts && lacks(full) {
			return true
		}
	}
	return false
}

// mayHaveParts reports whether a hit may end inside a block: beside a Mamba group, if
// there are parts of blocks, or may be (blind). The first report of a view may come
// before anything else of its Mamba group.
func (st *storeTask) mayHaveParts(blind bool) bool {
	s := st.s
	mamba, parts := false, blind
	for _, g := range s.lanes.groups {
		mamba = mamba || g.Kind == GroupMamba
		parts = parts || g.grain < g.cut.size
	}
	return mamba && parts || blind && s.mamba
}

// sureOf returns how many blocks at the end of a report are certainly there. parts: the
// hit may end inside the last one.
func (g *group) sureOf(c *Change, parts bool) int {
	switch {
	case len(c.Locals) == 0:
	case g.Kind == GroupWindow:
		return g.runBlocks(c.BlockSize)
	case g.Kind == GroupMamba && !parts:
		return 1
	case g.Kind == GroupChunked && g.Window > 0 && g.Window%c.BlockSize == 0:
		return c.Blocks() % (g.Window / c.BlockSize)
	}
	return 0
}

// allSeen reports whether each block is held in the gpu tier of the group, or hidden.
func (st *storeTask) allSeen(hashes []Hash) bool {
	s := st.s
	for _, h := range hashes {
		n := s.name(h)
		if n.holding(st.group, TierGPU).lane == nil {
			return false
		}
		s.yield(1)
	}
	return true
}

// hiddenNames are the names of one key with a holding that a report hid.
type hiddenNames struct {
	first Hash
	n     int32
	many  bool // n was above 1 since it was 0
}

// hiddenKeys is the names of a source with a holding that a report hid, by their keys.
type hiddenKeys struct {
	names   *byLoc[hiddenNames] // nil: there are none
	forgets uint32              // how often all were forgotten
}

// remove removes a name with the key at l.
func (k *hiddenKeys) remove(l loc) {
	at := k.names.at(l)
	if at == nil {
		return // all are forgotten
	}
	if at.n--; at.n > 0 {
		return
	}
	if k.names.remove(l); k.names.len() == 0 {
		k.forget()
	}
}

// forget forgets all names.
func (k *hiddenKeys) forget() {
	k.forgets++
	k.names.release()
	k.names = nil
}

// hide records that a name with the key at l has a holding that a report hid, and had
// none before.
func (n *name) hide(l loc) {
	k := &n.s.hidden
	if at := k.names.at(l); at != nil {
		if n.s.dump != nil {
			n.s.dump.name(at.first) // it was the only one
		}
		at.n++
		at.many = true
		return
	}
	if k.names == nil {
		k.names = newByLoc[hiddenNames](n.s)
	}
	k.names.add(l, hiddenNames{first: n.hash, n: 1})
}

// addHidden adds a hidden holding of a lane that has none.
func (n *name) addHidden(ln *lane) {
	s := n.s
	var buf [2]loc
	n.enrich()
	r, hides := n.rich(), !n.isHiddenExcept(0)
	r.first = s.copies.take(copyCount{next: r.first, lane: ln.number, reported: true})
	ln.hidden++
	s.lanes.note(ln, n.hash)
	for _, l := range n.locs(&buf) {
		if hides {
			n.hide(l)
		}
	}
}

// unhide is called before a hidden copyCount gets copies, or goes.
func (n *name) unhide(count uint32) {
	s := n.s
	var buf [2]loc
	s.lanes.all[s.copies.at(count).lane].hidden--
	if n.isHiddenExcept(count) {
		return
	}
	for _, l := range n.locs(&buf) {
		s.hidden.remove(l)
	}
}

// isHiddenExcept reports whether a holding of a rich name other than but is hidden.
func (n *name) isHiddenExcept(but uint32) bool {
	for i := n.rich().first; i != 0; {
		c := n.s.copies.at(i)
		if i != but && c.copies == 0 {
			return true
		}
		i = c.next
	}
	return false
}

// forgetHidden forgets the hidden holdings of a name that nobody holds.
func (n *name) forgetHidden() {
	if !n.isRich() {
		return
	}
	s, r := n.s, n.rich()
	for r.first != 0 {
		i := r.first
		s.doubts = s.doubts || !s.lanes.all[s.copies.at(i).lane].gone
		n.unhide(i)
		r.first = s.copies.at(i).next
		s.copies.give(i)
	}
}

// restore brings back a parent that is hidden, and the hidden blocks before it.
func (s *source) restore(h Hash, g *group) {
	var buf [2]loc
	n := s.fresh(h)
	if at := n.holding(g, TierGPU); at.lane == nil || at.copies > 0 {
		return
	}
	for left := maxRestore; left > 0; left-- {
		s.yield(1)
		if n.isDead() {
			return
		}
		at := n.holding(g, TierGPU)
		if at.lane == nil {
			return
		}
		if at.copies == 0 {
			s.counts.Restored++
			if at = n.gain(at.lane, at); at.copies == 0 {
				return
			}
		}
		keys := n.locs(&buf)
		if len(keys) == 0 {
			b := s.copies.at(at.entry)
			if !b.chained {
				return
			}
			n = s.name(b.parent)
			continue
		}
		i := slices.IndexFunc(keys, func(l loc) bool { return s.ground.variantAt(l) == g.cutOf(at.lane).variant })
		if i < 0 {
			return
		}
		l := keys[i]
		n.simplify()
		above, ok := s.hiddenAbove(l, at.lane, &left)
		if !ok {
			return
		}
		n = s.name(above)
	}
}

// variantAt returns the variant of the key at l.
func (g *ground) variantAt(l loc) Variant { return g.variants[g.forest.Variant(l)] }

// hiddenAbove returns the name of the next hidden block of a lane before the one at l, if
// all blocks between are there. It subtracts its steps from left.
func (s *source) hiddenAbove(l loc, ln *lane, left *int) (Hash, bool) {
	g, unit := ln.group, s.ground.variantAt(l).Unit
	for ; *left > 0; *left-- {
		s.yield(1)
		size := g.cutOf(ln).size
		if size == 0 || size%unit != 0 || s.f.Dead(l) { // evicted meanwhile
			return 0, false
		}
		if l = s.f.Up(l, size/unit); l == 0 {
			return 0, false
		}
		i := slices.IndexFunc(g.lanes[TierGPU], func(ln *lane) bool { return s.f.Holds(l, ln.ord) })
		if i < 0 {
			at := s.hidden.names.at(l)
			if at == nil {
				return 0, false
			}
			return at.first, at.n == 1 && !at.many && !s.doubts
		}
		ln = g.lanes[TierGPU][i]
	}
	return 0, false
}
