package index

import "github.com/kvindex/kvindex/index/internal/forest"

// Why a mirror hears of holders and slabs. A backend that shares an index needs no rule a
// second time: it keeps a Memory, and copies who holds which key. So the mirror hears of
// changed masks of slabs, and of no event, name or copy. A holder is reported before it holds
// anything and left out before it is emptied, so a clear and a removed pod are one call. A pod
// goes while it is unlinked, because a new source of its name can come right after that. The
// depth of a slab is worked out where somebody asks for it (Run.Depth): a walk up to the root
// for each change would make a long chain quadratic.

// Mirror is told what the sources of a Memory hold, as that changes: each call of a method of
// the Memory returns after the Mirror was told what it changed. Calls come one at a time, in
// the order of the changes, while the Memory's locks are held: a Mirror must be quick, and
// must not call the Memory.
//
// What a holder holds is told from its first Holders on, until a Holders of its feed leaves
// it out, or its feed has gone. So a clear, and a pod that is removed, are one call. What is
// tidied up afterwards is told of a holder that means nothing any more, and all of that
// before its number is given to another one.
//
// Close is not told, and a Memory with a Mirror cannot be restored: what a snapshot has was
// never told.
type Mirror interface {
	// Holders says which holders a source has from now on: those of a later call that
	// were not in the one before hold nothing yet, and those that are not in it any more
	// hold nothing. A feed is one life of a source in the Memory, and never 0. A source
	// that was removed and comes again has another one, with a higher number, which is not
	// told before the old one has gone.
	// layout is as in View. The Mirror may keep it, but not the slice.
	Holders(feed uint64, src Source, layout *Layout, holders []Holder)
	// Gone says that a source was removed, with all its holders. It comes once, also if
	// the source never had a holder, and nothing is told of the feed after it.
	Gone(feed uint64)
	// Held says that a holder held the keys of run whose bits are in was, and now holds
	// those in now, which are others. Bit i stands for key i. It may name a holder that no
	// feed has: such a call means nothing.
	Held(holder uint32, run Run, was, now uint32)
	// Evicted says that blocks of a holder were given up at the bound: Row.Evicted. It
	// comes once for each holder, and may name one that no feed has.
	Evicted(holder uint32)
}

// Holder is who holds blocks of one size: a group and tier of a source.
type Holder struct {
	ID    uint32 // a number of a holder that has gone may come again
	Group Group
	Tier  Tier
	// Variant and BlockSize are those of the blocks; of blocks that are known by hash
	// alone they are those of the group. BlockSize is 0 as long as that is not known: then no
	// row shows them. Both may change as the group becomes known.
	Variant   Variant
	BlockSize int
}

// Run is up to 32 keys that follow each other in a chain. It may be used while Held runs.
type Run struct {
	f    *forest.Forest
	slab uint32
}

// Depth returns how many keys are before the first one of r in its chain.
func (r Run) Depth() int { return int(r.f.Depth(r.slab)) }

// Len returns the number of keys.
func (r Run) Len() int { return r.f.Written(r.slab) }

// Key returns the key at a depth, which is that of a key of r, or before: from 0 to
// Depth()+Len()-1. It takes a step for each 8 to 32 keys that it is before r.
func (r Run) Key(depth int) Key { return Key(r.f.KeyAt(r.slab, depth)) }

// mirrorTo has a mirror told who holds what.
func (g *ground) mirrorTo(to Mirror) {
	g.forest.Watch(forest.Watcher{
		Changed: func(slab, ord, was, now uint32) { to.Held(ord, Run{g.forest, slab}, was, now) },
		Lost:    to.Evicted,
	})
}

// tellHolders tells the mirror the holders of a source, unless that has gone. A lane is in
// here before it holds anything, because it is published when it is made. One that goes is
// left out of a call before its ordinal is retired, which is after the last slab has let go
// of it. So a late Held is of nobody, and never of whoever has the ordinal next.
func (s *source) tellHolders() {
	if s.cfg.Mirror == nil || s.removed.Load() {
		return
	}
	var holders []Holder
	for _, g := range s.groups {
		for t := range g.lanes {
			for _, ln := range g.lanes[t] {
				by := g.cutOf(ln)
				holders = append(holders, Holder{ID: ln.ord, Group: g.Group, Tier: Tier(t), Variant: by.variant, BlockSize: by.size})
			}
		}
	}
	s.cfg.Mirror.Holders(s.feed, s.id, s.layout, holders)
}
