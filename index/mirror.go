package index

import (
	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mirroring"
)

// Why a mirror receives holders and slabs. A backend that shares an index needs no rule a
// second time: it keeps a Memory, and copies the holders of each key. So the mirror receives
// changed masks of slabs, and no event, name or copy. A holder is published before it holds
// anything, and left out before it is emptied, so a clear and a removed pod are one call. A
// pod goes while it is unlinked, because a new source of its name can come right after that.
// Run.Depth computes the depth of a slab only when it is called: a walk up to the root for
// each change would make a long chain quadratic.

type (
	mirror       = mirroring.Mirror[Source, Layout, mirrorHolder]
	mirrorHolder = mirroring.Holder[Group, Tier, Variant]
)

// MirrorTo publishes all changes to a mirror. It must be called before the first Apply. The
// depths of slabs take 4 bytes for each 8 to 32 prefixes. Restore returns an error then.
func (m *memory) MirrorTo(to mirror) {
	g := m.ground
	g.mirror = to
	g.forest.Watch(forest.Watcher{
		Changed: func(slab, ord, was, now uint32) { to.Held(ord, mirroring.Run{Forest: g.forest, Slab: slab}, was, now) },
		Lost:    to.Evicted,
	})
}

// publish reports the holders of a source to the mirror, unless the source has gone. A lane
// is among them before it holds anything, because it is published when it is made. A lane
// that goes is left out of a call before its ordinal is retired, which is after the last slab
// has dropped it. So a late Held is of no holder, and never of the next one with the ordinal.
func (g *ground) publish(s *source) {
	if g.mirror == nil || s.removed.Load() {
		return
	}
	var holders []mirrorHolder
	for _, of := range s.lanes.groups {
		for t := range of.lanes {
			for _, ln := range of.lanes[t] {
				by := of.cutOf(ln)
				holders = append(holders, mirrorHolder{ID: ln.ord, Group: of.Group, Tier: Tier(t), Variant: by.variant, BlockSize: by.size})
			}
		}
	}
	g.mirror.Holders(s.feed, s.id, s.lanes.layout, holders)
}
