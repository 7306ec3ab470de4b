package indextest

import (
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/trace"
)

// plainSource is one cache.
type plainSource struct {
	bounds  Config
	cost    plainCost
	cursors map[string]index.Cursor
	groups  map[int]*plainGroup
	names   map[index.Hash]*plainName
	before  map[plainKey]index.Key // what a key was chained from, if that is no root
	waiting []*plainWait           // oldest first
	deduced int                    // hashes of masked stores that followed from others
	looks   []*plainWait           // masked stores to be looked at when the changes are applied
	doubts  bool                   // since the last clear, blocks were forgotten that may be there
	counts  index.Counts           // of the Apply in progress
	tick    int                    // counts the times that a name was left without holders
	cleared int                    // the tick of the last OpClear
	changes []index.Change         // of the Apply in progress
	prompt  plainRoot              // of it
}

// plainRoot is the result of the latest store of a full group without a parent.
type plainRoot struct {
	*index.Change // nil: there is none
	group         *plainGroup
	counted       bool // as no report
	hid           bool // its last block
}

type plainGroup struct {
	index.Group
	stored bool     // by a gpu store
	by     plainCut // the largest of a gpu store
	grain  int      // the smallest size of a gpu store
	// uncounted: it may hold blocks that are not known, of a store that was taken
	// for a report.
	uncounted bool
}

// plainCut is how blocks are cut. The zero plainCut, of blocks known by hash
// alone, stands for that of their group.
type plainCut struct {
	variant index.Variant
	size    int // tokens
}

func (c plainCut) units() int { return c.size / c.variant.Unit }

// plainKey is a prefix as it is cut into units: chains of different variants do
// not meet even if their keys are equal.
type plainKey struct {
	variant index.Variant
	key     index.Key
}

// plainName is the state of a hash. One without holders has keys, or it is
// not kept.
type plainName struct {
	hash index.Hash
	keys []plainKey     // none: no store has placed it yet
	held []*plainCopies // one a holder
	idle int            // the tick at which it was left without holders
}

type plainHolder struct {
	group int
	tier  index.Tier
}

// plainCopies are the copies of a block that a holder has. None: a report may
// have hidden one, so the block may be there; that is all that is known.
type plainCopies struct {
	at       plainHolder
	n        uint64
	age      int // generations that began since it was stored, in a lower tier
	by       plainCut
	reported bool // a store of it was taken for a report, and may have been a copy
	// parent is the block before this one, if chained.
	parent  index.Hash
	chained bool
}

// plainWait is a store of which a hash has no key yet.
type plainWait struct {
	at     plainHolder
	hashes []index.Hash
	// A parked store can place its hashes once parent has a key.
	parked bool
	parent index.Hash
	by     plainCut
	locals []index.Local
	gone   map[index.Hash]bool // lost by the gpu since: the store does not affect it
	masked *plainMaskedStore   // of a window group; nil: it is not
}

func (s *plainSource) apply(c *index.Change) {
	switch c.Op {
	case index.OpStore:
		s.store(c)
	case index.OpRemove:
		s.remove(c)
	case index.OpClear:
		s.counts.Cleared++
		s.doubts, s.waiting, s.looks, s.groups, s.prompt = false, nil, nil, map[int]*plainGroup{}, plainRoot{}
		s.clear(func(*plainCopies) bool { return true })
		s.cleared = s.tick
	case index.OpClearTier:
		s.counts.Cleared++
		for _, w := range s.waiting {
			for _, h := range w.hashes {
				w.gone[h] = w.gone[h] || c.Tier == index.TierGPU
			}
		}
		s.clear(func(b *plainCopies) bool { return b.at.tier == c.Tier })
	case index.OpAge:
		s.clear(func(b *plainCopies) bool {
			if b.at.tier != c.Tier {
				return false
			}
			if b.age++; b.age <= 2 {
				return false
			}
			s.counts.Aged++
			return true
		})
	}
}

// clearUnseen clears each tier of which a Unique store names a block that it holds, unless the
// block was removed or cleared by a change before the store.
func (s *plainSource) clearUnseen(changes []index.Change) {
	for i, c := range changes {
		if c.Op != index.OpStore || !c.Unique || c.Tier == index.TierGPU {
			continue
		}
		hashes := c.Hashes
		if n := c.Blocks(); n > 0 && n == len(hashes) {
			hashes = hashes[n-1:]
		}
		again := false
		for _, h := range hashes {
			n := s.names[h]
			held := n != nil && slices.ContainsFunc(n.held, func(b *plainCopies) bool {
				return b.at == plainHolder{c.Group.ID, c.Tier} && b.n > 0
			})
			for _, o := range changes[:i] {
				switch {
				case o.Op == index.OpClear,
					o.Op == index.OpClearTier && o.Tier == c.Tier,
					o.Op == index.OpRemove && o.Tier == c.Tier && o.Group.ID == c.Group.ID && slices.Contains(o.Hashes, h):
					held = false
				}
			}
			again = again || held
		}
		if again {
			s.apply(&index.Change{Op: index.OpClearTier, Tier: c.Tier})
		}
	}
}

// clear takes some copies of all blocks, those too that a report hid.
func (s *plainSource) clear(from func(*plainCopies) bool) {
	for _, n := range s.names {
		was := n.isHeld()
		n.held = slices.DeleteFunc(n.held, func(b *plainCopies) bool { return from(b) })
		if was || len(n.keys) == 0 {
			s.left(n)
		}
	}
	s.trim()
}

func (s *plainSource) store(c *index.Change) {
	s.noteGroup(c)
	if len(c.Hashes) == 0 {
		return
	}
	s.counts.Stored += uint64(len(c.Hashes))
	at, by, hashes := plainHolder{c.Group.ID, c.Tier}, plainCut{c.Variant, c.BlockSize}, c.Hashes
	whole := len(c.Locals) > 0 && len(c.Hashes) == c.Blocks()
	names := whole && c.Tier == index.TierGPU
	switch {
	case len(c.Locals) == 0:
		by = plainCut{}
	case whole && !names: // a chunk
		if hashes = hashes[len(hashes)-1:]; by.size >= s.groups[c.Group.ID].by.size {
			by.size *= len(c.Hashes)
		}
	}
	st := s.judge(c, hashes)
	st.at, st.by, st.whole = at, by, whole
	ends, placed := []plainKey(nil), false
	parents := 1
	if names {
		ends, placed = s.follow(c)
		if c.HasParent {
			parents = len(s.names[c.Parent].keysIn(c.Variant))
		}
	}
	if parents > 1 { // of which of them are its blocks?
		s.counts.Dropped++
		for _, h := range hashes {
			if n := s.names[h]; n != nil && !n.isHeld() {
				s.forget(n)
			}
		}
	}
	w := &plainWait{at: at, hashes: slices.Clone(hashes), by: by}
	if len(c.Hashes) < c.Blocks() && c.Tier == index.TierGPU {
		s.mask(w, c)
	}
	var follows *plainUnmask
	if w.masked != nil {
		if m := s.unmask(w); m.whole() {
			follows = m
		}
	}
	if whole && !names && c.BlockSize < s.groups[c.Group.ID].by.size && c.HasParent && !c.UncertainLocals {
		s.nameParts(c)
	}
	for i, h := range hashes {
		if placed {
			s.place(h, ends[i])
		}
		s.hold(&st, i, h)
		s.trim()
	}
	switch {
	case follows != nil:
		follows.place()
		s.join(by.variant, follows.hashes)
	case placed:
		s.join(by.variant, hashes)
	case names && parents == 0:
		s.counts.Parked++
		s.wait(&plainWait{at: at, hashes: slices.Clone(hashes), parked: true, parent: c.Parent, by: by, locals: slices.Clone(c.Locals)})
	case slices.ContainsFunc(hashes[st.from:], s.unplaced):
		w.hashes = w.hashes[st.from:]
		s.wait(w)
	}
}

// noteGroup records the group of a store.
func (s *plainSource) noteGroup(c *index.Change) {
	g := s.groups[c.Group.ID]
	if g == nil {
		g = &plainGroup{Group: c.Group}
		s.groups[c.Group.ID] = g
	}
	if c.Tier != index.TierGPU {
		return
	}
	if !g.stored {
		g.Group, g.stored = c.Group, true
	}
	if len(c.Locals) == 0 {
		return
	}
	if g.grain == 0 || c.BlockSize < g.grain {
		g.grain = c.BlockSize
	}
	if c.BlockSize <= g.by.size {
		return
	}
	for _, n := range s.names { // blocks that are known by hash keep the size they were taken to have
		for _, b := range n.held {
			if b.at.group == g.ID && b.by == (plainCut{}) {
				b.by = g.by
			}
		}
	}
	g.by = plainCut{c.Variant, c.BlockSize}
}

func (s *plainSource) cutOf(b *plainCopies) plainCut {
	if b.by == (plainCut{}) {
		return s.groups[b.at.group].by
	}
	return b.by
}

// plainStore is a store that is being carried out.
type plainStore struct {
	c       *index.Change
	at      plainHolder
	by      plainCut
	whole   bool // names all blocks of its range
	guarded bool // against reports
	full    bool // its group is
	report  bool
	from    int // the first block that is held by it
	unsure  int // the block that is hidden by it; -1: none
}

// judge decides what a store counts for, by the rules of index.Copies.
func (s *plainSource) judge(c *index.Change, hashes []index.Hash) plainStore {
	g := s.groups[c.Group.ID]
	st := plainStore{c: c, full: g.Kind == index.GroupFull, report: c.Reused, unsure: -1}
	if c.Tier != index.TierGPU || c.Copies != index.CopiesGuarded {
		return st
	}
	st.guarded = true
	switch {
	case c.HasParent && st.full:
		s.restore(c.Parent, plainHolder{g.ID, index.TierGPU})
	case c.HasParent:
	case len(c.Locals) > 0 && c.BlockSize < g.by.size: // a part of a block
	case st.full:
		s.judgeFull(&st, g, hashes)
	default:
		s.judgeSparse(&st, g, hashes)
	}
	return st
}

// judgeFull judges a store of a full group without a parent: it is a report if all of its
// blocks are there. Where hits end inside blocks, the last one need not be.
func (s *plainSource) judgeFull(st *plainStore, g *plainGroup, hashes []index.Hash) {
	last := len(hashes) - 1
	blind := st.c.Partial || s.doubts
	parts := len(hashes) == st.c.Blocks() && s.parts(blind)
	unknown := func(h index.Hash) bool { return s.lacks(g, h) }
	s.prompt = plainRoot{Change: st.c, group: g}
	switch {
	case parts && unknown(hashes[last]) && (blind || !slices.ContainsFunc(hashes[:last], unknown)):
		st.report, st.unsure, s.prompt.hid = true, last, true
	case blind || !slices.ContainsFunc(hashes, unknown):
		st.report = true
	default:
		s.prompt.counted = true
	}
}

// judgeSparse judges a store of another group without a parent. A report has all hashes
// of its range, and follows that of each full group with a lower ID. A masked store shows
// that the last block of its range is there.
func (s *plainSource) judgeSparse(st *plainStore, g *plainGroup, hashes []index.Hash) {
	c, p := st.c, s.prompt
	blind := c.Partial || s.doubts
	switch last := hashes[len(hashes)-1]; {
	case len(hashes) < c.Blocks():
		if p.hid && !c.UncertainLocals && p.Variant == c.Variant && p.Root == c.Root && slices.Equal(p.Locals, c.Locals) {
			s.restore(p.Hashes[len(p.Hashes)-1], plainHolder{p.group.ID, index.TierGPU})
		}
	case !blind && (p.counted && p.group.ID < g.ID || s.noReportEnds(g, last)):
	default:
		g.uncounted, st.report = true, true
		st.from = max(0, len(hashes)-s.sure(g, c, blind))
	}
}

// noReportEnds reports whether no report of a group can end with a block.
func (s *plainSource) noReportEnds(g *plainGroup, last index.Hash) bool {
	parts := s.parts(false)
	if !g.uncounted && s.lacks(g, last) {
		switch {
		case g.Kind == index.GroupChunked, g.Window == 1, g.Kind == index.GroupMamba && parts: // hits need not end with a block
		default:
			return true
		}
	}
	for _, f := range s.groups {
		if f.Kind == index.GroupFull && f.stored && !parts && s.lacks(f, last) {
			return true
		}
	}
	return false
}

// parts reports whether hits may end inside blocks.
func (s *plainSource) parts(blind bool) bool {
	for i := range s.changes {
		if c := &s.changes[i]; blind && c.Op == index.OpStore && c.Group.Kind == index.GroupMamba {
			return true
		}
	}
	for _, m := range s.groups {
		for _, g := range s.groups {
			if m.Kind == index.GroupMamba && (blind || g.grain < g.by.size) {
				return true
			}
		}
	}
	return false
}

// sure returns how many of the last blocks of a report are there.
func (s *plainSource) sure(g *plainGroup, c *index.Change, blind bool) int {
	if len(c.Locals) == 0 || g.Window%c.BlockSize != 0 && g.Kind == index.GroupChunked {
		return 0
	}
	switch {
	case g.Kind == index.GroupWindow && g.Window > 1: // what the tokens before the end touch
		return (g.Window - 1 + c.BlockSize - 1) / c.BlockSize
	case g.Kind == index.GroupMamba && !s.parts(blind):
		return 1
	case g.Kind == index.GroupChunked && g.Window > 0: // those of the chunk in which it ends
		return c.Blocks() * c.BlockSize % g.Window / c.BlockSize
	}
	return 0
}

// lacks reports whether the gpu tier of a group has no block of a hash, not even a
// hidden one.
func (s *plainSource) lacks(g *plainGroup, h index.Hash) bool {
	return s.names[h].of(plainHolder{g.ID, index.TierGPU}) == nil
}

// of returns the copies of a block that a holder has, or may have; nil: none.
func (n *plainName) of(at plainHolder) *plainCopies {
	if n != nil {
		for _, b := range n.held {
			if b.at == at {
				return b
			}
		}
	}
	return nil
}

// has reports whether a holder has a block.
func (s *plainSource) has(h index.Hash, at plainHolder) bool {
	b := s.names[h].of(at)
	return b != nil && b.n > 0
}

// hold has block i of a store held.
func (s *plainSource) hold(st *plainStore, i int, h index.Hash) {
	if i < st.from {
		s.counts.Reports++
		return
	}
	n := s.names[h]
	if n == nil {
		n = s.add(h)
	}
	b := n.of(st.at)
	if i == st.unsure && b == nil {
		s.counts.Reports++
		n.held = append(n.held, &plainCopies{at: st.at, by: st.by, reported: true})
		return
	}
	if b == nil {
		b = &plainCopies{at: st.at}
		n.held = append(n.held, b)
	} else if b.n == 0 {
		s.counts.Restored++
	}
	b.age = 0
	switch {
	case b.n == 0:
		if b.n, b.by = 1, st.by; b.by == (plainCut{}) && st.at.tier != index.TierGPU {
			b.by = s.partOf(n, s.groups[st.at.group])
		}
	case st.at.tier != index.TierGPU || st.c.Copies == index.CopiesSet:
	case st.report:
		s.counts.Reports++
		b.reported = st.guarded && st.full
	default:
		b.n++
	}
	if !st.whole {
		return
	}
	if b.parent, b.chained = st.c.Parent, st.c.HasParent; i > 0 {
		b.parent, b.chained = st.c.Hashes[i-1], true
	}
}

// nameParts gives keys to the hashes of a store of parts of a block in a lower tier.
func (s *plainSource) nameParts(c *index.Change) {
	ends, ok := s.follow(c)
	if !ok {
		return
	}
	var named []index.Hash
	for i, h := range c.Hashes {
		if len(s.names[h].keysIn(c.Variant)) == 0 {
			s.place(h, ends[i])
			s.trim()
			named = append(named, h)
		}
	}
	s.join(c.Variant, named)
}

// partOf returns how the part of a block is cut that a hash stands for in a lower tier; zero: it
// stands for no part.
func (s *plainSource) partOf(n *plainName, g *plainGroup) plainCut {
	keys := n.keysIn(g.by.variant)
	if g.grain == g.by.size || g.grain%g.by.variant.Unit != 0 || len(keys) != 1 {
		return plainCut{}
	}
	tokens, k := g.by.variant.Unit, keys[0]
	for from, ok := s.before[k]; ok; from, ok = s.before[k] {
		tokens, k.key = tokens+g.by.variant.Unit, from
	}
	if tokens%g.by.size == 0 || tokens%g.grain != 0 {
		return plainCut{}
	}
	return plainCut{g.by.variant, g.grain}
}

func (s *plainSource) add(h index.Hash) *plainName {
	n := &plainName{hash: h}
	s.names[h] = n
	return n
}

// restore brings back a block that was forgotten while a store of it had been
// taken for a report, and those before it: its child was stored, so they are
// there.
func (s *plainSource) restore(h index.Hash, gpu plainHolder) {
	if s.has(h, gpu) {
		return
	}
	seen := map[*plainName]bool{} // parents may be a circle
	for n := s.names[h]; n != nil && !seen[n]; {
		seen[n] = true
		b := n.of(gpu)
		if b == nil {
			return
		}
		if b.n == 0 {
			s.counts.Restored++
			b.n = 1
		}
		switch {
		case len(n.keys) > 0:
			n = s.hiddenBefore(n, gpu)
		case b.chained:
			n = s.names[b.parent]
		default:
			return
		}
	}
}

// hiddenBefore returns the name of the nearest block before that of n which a
// report hid, if all blocks between are there; nil if there is none, or none for
// sure.
func (s *plainSource) hiddenBefore(n *plainName, gpu plainHolder) *plainName {
	by := s.cutOf(n.of(gpu))
	i := slices.IndexFunc(n.keys, func(k plainKey) bool { return k.variant == by.variant })
	if i < 0 {
		return nil
	}
	for k := n.keys[i]; ; {
		for range by.units() {
			before, ok := s.before[k]
			if !ok {
				return nil
			}
			k.key = before
		}
		var hidden []*plainName
		there := plainCut{} // of the smallest block
		for _, o := range s.names {
			b := o.of(gpu)
			if b == nil || !slices.Contains(o.keys, k) || s.cutOf(b).variant != k.variant {
				continue
			}
			if b.n == 0 {
				hidden = append(hidden, o)
			} else if of := s.cutOf(b); there.size == 0 || of.size < there.size {
				there = of
			}
		}
		switch {
		case there.size > 0:
			by = there
		case len(hidden) == 1 && !s.doubts:
			return hidden[0]
		default:
			return nil // whether the engine means this name is not known
		}
	}
}

// follow returns the keys at the ends of the blocks of a store, if it is known
// where it begins.
func (s *plainSource) follow(c *index.Change) (ends []plainKey, ok bool) {
	by := plainCut{c.Variant, c.BlockSize}
	if !c.HasParent {
		return s.chain(c.Root, true, c.Locals, by), true
	}
	parent := s.names[c.Parent].keysIn(c.Variant)
	if len(parent) != 1 {
		return nil, false
	}
	return s.chain(parent[0].key, false, c.Locals, by), true
}

// chain returns the keys at the ends of the blocks of a range.
func (s *plainSource) chain(from index.Key, root bool, locals []index.Local, by plainCut) (ends []plainKey) {
	for i, l := range locals {
		k := plainKey{by.variant, index.Chain(from, l)}
		if i > 0 || !root {
			s.before[k] = from
		}
		if from = k.key; (i+1)%by.units() == 0 {
			ends = append(ends, k)
		}
	}
	return ends
}

// keysIn returns the keys of a hash in a variant.
func (n *plainName) keysIn(v index.Variant) (of []plainKey) {
	if n != nil {
		for _, k := range n.keys {
			if k.variant == v {
				of = append(of, k)
			}
		}
	}
	return of
}

func (n *plainName) isHeld() bool {
	for _, b := range n.held {
		if b.n > 0 {
			return true
		}
	}
	return false
}

// place has h stand for a prefix.
func (s *plainSource) place(h index.Hash, k plainKey) {
	n := s.names[h]
	if n == nil {
		n = s.add(h)
		s.tick++
		n.idle = s.tick
	}
	if slices.Contains(n.keys, k) {
		return
	}
	if same := n.keysIn(k.variant); len(same) > 0 {
		if n.isHeld() {
			s.counts.Ambiguous++
			if len(same) > 1 {
				return // two are enough to know that nothing can be placed by it
			}
		} else { // the old block is gone: the hash is reused
			s.forgetHidden(n)
			n.keys = slices.DeleteFunc(n.keys, func(o plainKey) bool { return o.variant == k.variant })
		}
	}
	n.keys = append(n.keys, k)
	for _, w := range s.waiting {
		if slices.Contains(w.hashes, h) && !w.gone[h] {
			s.look(w)
		}
	}
}

// forgetHidden drops what is remembered of a block that may be there after all.
func (s *plainSource) forgetHidden(n *plainName) {
	s.doubts = s.doubts || len(n.held) > 0
	n.held = nil
}

// forget forgets a name without holders.
func (s *plainSource) forget(n *plainName) {
	s.forgetHidden(n)
	delete(s.names, n.hash)
}

// left is called when a name may have lost its last holder.
func (s *plainSource) left(n *plainName) {
	switch {
	case n.isHeld():
	case len(n.keys) == 0:
		s.forget(n)
	default:
		s.tick++
		n.idle = s.tick
	}
}

// trim forgets the oldest of too many names without holders.
func (s *plainSource) trim() {
	for s.bounds.IdleNames > 0 {
		var oldest *plainName
		idle := 0
		for _, n := range s.names {
			if n.isHeld() {
				continue
			}
			if idle++; oldest == nil || n.idle < oldest.idle {
				oldest = n
			}
		}
		if idle <= s.bounds.IdleNames {
			return
		}
		s.forget(oldest)
		s.counts.Forgotten++
	}
}

func (s *plainSource) unplaced(h index.Hash) bool {
	n := s.names[h]
	return n != nil && len(n.keys) == 0
}

// wait keeps a store until its hashes have keys, or until too much waits.
func (s *plainSource) wait(w *plainWait) {
	w.gone = map[index.Hash]bool{}
	s.waiting = append(s.waiting, w)
	s.look(w)
	for s.bounds.PendingBytes > 0 && s.waitingBytes() > s.bounds.PendingBytes {
		s.drop(s.waiting[0])
	}
}

func (s *plainSource) waitingBytes() (n int) {
	for _, w := range s.waiting {
		n += s.cost.store + s.cost.hash*len(w.hashes) + s.cost.local*len(w.locals)
	}
	return n
}

// drop gives up a store that waits: its blocks that have no key are forgotten.
func (s *plainSource) drop(w *plainWait) {
	s.waiting = s.waiting[1:]
	lost := w.parked
	for _, h := range w.hashes {
		if s.unplaced(h) && s.has(h, w.at) {
			b := s.names[h].of(w.at)
			b.reported = false
			s.release(s.names[h], b)
			s.doubts, lost = true, true
		}
	}
	if lost {
		s.counts.Dropped++
	}
}

// join places the parked stores that wait for one of hashes, which have keys
// now, and those that wait for theirs.
func (s *plainSource) join(v index.Variant, hashes []index.Hash) {
	for _, h := range hashes {
		work := []index.Hash{h}
		for len(work) > 0 {
			h := work[len(work)-1]
			work = work[:len(work)-1]
			for _, w := range s.waiting {
				if m := w.masked; m != nil && m.waits && m.parent == h && w.by.variant == v && len(s.names[h].keysIn(v)) > 0 {
					m.waits = false
					s.look(w)
				}
			}
			for {
				i := slices.IndexFunc(s.waiting, func(w *plainWait) bool { return w.parked && w.parent == h && w.by.variant == v })
				of := s.names[h].keysIn(v)
				if i < 0 || len(of) == 0 {
					break
				}
				w := s.waiting[i]
				if len(of) > 1 {
					w.parked, w.locals = false, nil // for good
					s.counts.Dropped++
					continue
				}
				s.waiting = slices.Delete(s.waiting, i, i+1)
				s.counts.Joined++
				s.placeParked(w, of[0].key)
				work = append(work, w.hashes...)
			}
		}
	}
}

// placeParked names the hashes of a store that was parked. A hash that was removed
// meanwhile may have been stored as something else.
func (s *plainSource) placeParked(w *plainWait, parent index.Key) {
	v := w.by.variant
	for i, k := range s.chain(parent, false, w.locals, w.by) {
		h := w.hashes[i]
		anew := len(s.names[h].keysIn(v)) > 0 || slices.ContainsFunc(s.waiting, func(o *plainWait) bool {
			return o.parked && o.by.variant == v && slices.Contains(o.hashes, h) && !o.gone[h]
		})
		if !w.gone[h] || !anew {
			s.place(h, k)
			s.trim()
		}
	}
}

func (s *plainSource) remove(c *index.Change) {
	at := plainHolder{c.Group.ID, c.Tier}
	for i, h := range c.Hashes {
		s.counts.Removed++
		if !s.has(h, at) {
			s.counts.UnknownRemove++
			continue
		}
		n := s.names[h]
		b := n.of(at)
		ambiguous := slices.ContainsFunc(n.keys, func(k plainKey) bool { return len(n.keysIn(k.variant)) > 1 })
		left := b.n - 1
		switch {
		case c.Remaining != nil:
			left = uint64(c.Remaining[i])
		case ambiguous: // of which of its blocks are the other copies?
			left = 0
			s.doubts = s.doubts || b.n > 1 || b.reported
		}
		if left > 0 {
			b.n = left
			continue
		}
		s.release(n, b)
		if ambiguous && !n.isHeld() {
			s.forget(n) // whichever key it is used for next is the only one
		}
		s.trim()
	}
}

// release takes the last copy of a block from a holder.
func (s *plainSource) release(n *plainName, b *plainCopies) {
	for _, w := range s.waiting {
		if b.at.tier == index.TierGPU && w.at.group == b.at.group {
			w.gone[n.hash] = true
		}
	}
	if b.n = 0; !b.reported {
		n.held = slices.DeleteFunc(n.held, func(o *plainCopies) bool { return o == b })
	}
	s.left(n)
}

// gone returns how the block with a key was removed.
func (s *plainSource) gone(k plainKey) (g trace.Gone) {
	for _, n := range s.names {
		switch {
		case n.isHeld() || !slices.Contains(n.keys, k):
		case len(n.held) > 0:
			g = max(g, trace.GoneHidden)
		case n.idle > s.cleared:
			g = max(g, trace.GoneRemoved)
		default:
			g = max(g, trace.GoneCleared)
		}
	}
	return g
}
