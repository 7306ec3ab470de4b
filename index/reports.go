package index

import "slices"

// Guarded copies.
//
// vLLM announces each physical copy of a block and removes each, so copies must be
// counted: one removal must not make the index forget a block whose other copy
// stays. But any client can make it announce again what it holds, with no removal
// to come (kv_cache_report_mode=full, a field of its request). Such a report
// counted as a copy would claim the block for ever. Nothing in an event tells a
// report from a copy. What is known of reports: they begin at block 0, without a
// parent, and they name blocks that are there.
//
// # Never over
//
// A store of a full group without a parent whose blocks are all held already, or
// hidden, is taken for a report and not counted.
//
// It may have been a real second copy, of a prompt that two requests computed at
// once. Then the index counts one copy less than there are: an undercount, once
// the first copy is removed. The rule needs that reports name known blocks only.
// They do if the whole history is known; where it is not, a report can name known
// blocks beside unknown ones, would not be taken for a report, and the known ones
// would be counted twice. So there no store without a parent counts a block that
// is held. That is so
//
//   - in a partial view (Change.Partial), of which the host knows;
//   - after the index itself gave up blocks that the engine may hold (doubts): at
//     one of its bounds, or at an ambiguous removal.
//
// In sparse groups (windows, Mamba) a report names blocks that nobody holds, so
// there a store without a parent that names a held block adds nothing. A repeat
// behind a parent is a copy there as in full groups: a report has no parent.
//
// # What is hidden comes back
//
// A block of which a store was not counted is remembered (copyCount.reported).
// When its last counted copy is removed, it is hidden: no query sees it, but it is
// kept. A later store of the gpu that names it as its parent is a proof: an engine
// computes a block behind another one only while that one is there. So the parent,
// and all before it that is hidden, comes back. Without this, one prompt of
// exactly one block makes a hot first block vanish.
//
// An ancestor is found by its key, and the engine's hash for it is not known. Where
// two names of one prefix were hidden at one time, or a hidden name may have been
// forgotten (doubts), the name that is found may not be the engine's. A wrong guess
// would outlive its removal, so none comes back.
//
// Only a hidden parent is a proof. To walk the ancestors from every store would
// find more (120 instead of 517 undercounts in the 10,000 requests of
// TestAgainstEngines, when that was tried), and is not done: a connector whose load
// fails makes vLLM forget a block that is in use, and then a later descendant is no
// proof. The same can happen to a hidden direct parent; events cannot tell the two
// apart, and CopiesExact never restores.
//
// A report of the block itself brings it back too: it is held then, as by any
// store.

// maxRestore bounds the walk of restore, in blocks: a hostile engine can make the
// parents a circle.
const maxRestore = 1 << 12

// judge decides what a store of some hashes counts for.
func (st *storing) judge(held []Hash) {
	s, c, full := st.s, st.c, st.group.Kind == GroupFull
	st.guarded = c.Tier == TierGPU && c.Copies == CopiesGuarded
	if st.guarded && full && c.HasParent {
		s.restore(c.Parent, st.group)
	}
	if st.guarded && !full && !c.HasParent && s.anyHeld(held, st.group) {
		s.counts.Reports += uint64(len(held))
		st.namesOnly = true
	}
	st.report = c.Reused || st.guarded && !c.HasParent && (c.Partial || s.doubts || s.allSeen(held, st.group))
}

// allSeen reports whether each block is held in the gpu tier of g, or hidden.
func (s *source) allSeen(hashes []Hash, g *group) bool {
	for _, h := range hashes {
		n := s.name(h)
		if n.holding(g, TierGPU).lane == nil {
			return false
		}
		s.yield(1)
	}
	return true
}

// anyHeld reports whether one of the blocks is held in the gpu tier of g.
func (s *source) anyHeld(hashes []Hash, g *group) bool {
	for _, h := range hashes {
		s.yield(1)
		n := s.name(h)
		if n.holding(g, TierGPU).copies > 0 {
			return true
		}
	}
	return false
}

// hiddenNames are the names of one key with a holding that a report hid.
type hiddenNames struct {
	first Hash
	n     int32
	many  bool // there were two at one time, since there was last none
}

// hide notes that a name with the key at l has a holding that a report hid, and had
// none before.
func (s *source) hide(l loc, h Hash) {
	if at := s.hidden.at(l); at != nil {
		at.n++
		at.many = true
		return
	}
	if s.hidden == nil {
		s.hidden = newByLoc[hiddenNames](s)
	}
	s.hidden.add(l, hiddenNames{first: h, n: 1})
}

// unhide is told before a copyCount that is hidden stops to be so.
func (n *name) unhide(count uint32) {
	s := n.s
	var buf [2]loc
	s.lanes[s.copies.at(count).lane].hidden--
	if n.isHiddenExcept(count) {
		return
	}
	for _, l := range n.locs(&buf) {
		at := s.hidden.at(l)
		if at == nil {
			continue // all are forgotten
		}
		if at.n--; at.n > 0 {
			continue
		}
		if s.hidden.remove(l); s.hidden.len() == 0 {
			s.forgetAllHidden()
		}
	}
}

// forgetAllHidden forgets which names are hidden.
func (s *source) forgetAllHidden() {
	s.hidden.release()
	s.hidden = nil
}

// isHidden reports whether a holding of a rich name is hidden, but for one.
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

// forgetHidden forgets what is hidden of a name that nobody holds.
func (n *name) forgetHidden() {
	if !n.isRich() {
		return
	}
	s, r := n.s, n.rich()
	s.doubts = s.doubts || r.first != 0
	for r.first != 0 {
		i := r.first
		n.unhide(i)
		r.first = s.copies.at(i).next
		s.copies.give(i)
	}
}

// restore brings back a parent that is hidden, and what is hidden of the blocks
// before it.
func (s *source) restore(h Hash, g *group) {
	var buf [2]loc
	n := s.fresh(h)
	if at := n.holding(g, TierGPU); at.lane == nil || at.copies > 0 {
		return
	}
	for left := maxRestore; left > 0; left-- {
		s.yield(1)
		if s.isDead(n.value) {
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
		i := slices.IndexFunc(keys, func(l loc) bool { return s.variantAt(l) == g.cutOf(at.lane).variant })
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

func (s *source) variantAt(l loc) Variant { return s.ground.variants[s.f.Variant(l)] }

// hiddenAbove returns the name of the next block before the one at l, of a lane,
// that is hidden, if all between are there. It takes what it walks from left.
func (s *source) hiddenAbove(l loc, ln *lane, left *int) (Hash, bool) {
	g, unit := ln.group, s.variantAt(l).Unit
	for ; *left > 0; *left-- {
		s.yield(1)
		size := g.cutOf(ln).size
		if size == 0 || size%unit != 0 {
			return 0, false
		}
		if l = s.f.Up(l, size/unit); l == 0 {
			return 0, false
		}
		i := slices.IndexFunc(g.lanes[TierGPU], func(ln *lane) bool { return s.f.Holds(l, ln.ord) })
		if i < 0 {
			at := s.hidden.at(l)
			if at == nil {
				return 0, false
			}
			return at.first, at.n == 1 && !at.many && !s.doubts
		}
		ln = g.lanes[TierGPU][i]
	}
	return 0, false
}
