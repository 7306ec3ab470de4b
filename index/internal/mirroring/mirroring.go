// Package mirroring is how an index in memory reports its changes to another one. Package index
// imports it, so its types have those of index as parameters.
package mirroring

import "github.com/kvindex/kvindex/index/internal/forest"

// Mirror gets each change of the holdings of an index in memory: a method of the index
// returns after the Mirror has got the changes that it made. Calls come one at a time, in
// the order of the changes, while the index's locks are held: a Mirror must be quick, and
// must not call the index.
//
// The blocks of a holder are reported from its first Holders on, until a Holders of its feed
// leaves it out, or its feed has gone. So a clear, and a pod that is removed, are one call. The
// tidying up afterwards is reported of a holder that means nothing any more, and ends
// before its number is given to another one.
//
// Close is not reported, and an index with a Mirror cannot be restored: the content of a snapshot
// was never reported.
type Mirror[Source, Layout, Holder any] interface {
	// Holders has the holders of a source from now on: those of a later call that
	// were not in the one before hold nothing yet, and those that are not in it any more
	// hold nothing. A feed is one life of a source in the index, and never 0. A source
	// that was removed and comes again has another one, with a higher number, which is not
	// reported before the old one has gone.
	// layout is as in index.View. The Mirror may keep it, but not the slice.
	Holders(feed uint64, src Source, layout *Layout, holders []Holder)
	// Gone: a source was removed, with all its holders. It comes once, also if
	// the source never had a holder, and nothing is reported of the feed after it.
	Gone(feed uint64)
	// Held: a holder held the keys of run whose bits are in was, and now holds
	// those in now, which are others. Bit i stands for key i. It may name a holder that no
	// feed has: such a call means nothing.
	Held(holder uint32, run Run, was, now uint32)
	// Evicted: blocks of a holder were given up at the bound: index.Row.Evicted. It
	// comes once for each holder, and may name one that no feed has.
	Evicted(holder uint32)
}

// Mirrored is an index that has a mirror. MirrorTo is called before anything else.
type Mirrored[Source, Layout, Holder any] interface {
	MirrorTo(Mirror[Source, Layout, Holder])
}

// Holder is a holder of blocks of one size: a group and tier of a source.
type Holder[Group, Tier, Variant any] struct {
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
	Forest *forest.Forest
	Slab   uint32
}

// Depth returns how many keys are before the first one of r in its chain.
func (r Run) Depth() int { return int(r.Forest.Depth(r.Slab)) }

// Len returns the number of keys.
func (r Run) Len() int { return r.Forest.Written(r.Slab) }

// Key returns the key at a depth, which is that of a key of r, or before: from 0 to
// Depth()+Len()-1. It takes a step for each 8 to 32 keys that it is before r.
func (r Run) Key(depth int) uint64 { return uint64(r.Forest.KeyAt(r.Slab, depth)) }
