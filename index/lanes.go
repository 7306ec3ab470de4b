package index

import (
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// A lane has blocks of one size only, and a row of a Match is of one size: one
// group can hold blocks of several sizes (partial entries, chunks of a lower tier),
// and a run of mixed sizes would claim blocks that cannot be reused. A block that is
// stored by its hash alone has the size of its group.
//
// Readers see views, which copy from the lanes what readers need. Each change makes new
// views (publish), and raises a generation of the model. So a rank or a tier is forgotten
// by taking its lanes out of the views. Their ordinals are retired when nothing in the
// forest has them any more.

// cut is how blocks are cut. The zero cut, of blocks that are stored by hash alone,
// stands for the cut of their group.
type cut struct {
	variant Variant
	size    int // tokens
}

// group is a KV-cache group of a source.
type group struct {
	Group
	declared bool // by a gpu store
	cut      cut  // of its gpu blocks; of the largest if sizes differ
	grain    int  // the smallest of their sizes
	// uncounted: a store was not counted that may have been of more copies, so
	// the group may hold blocks that the index lacks.
	uncounted bool
	lanes     [NumTiers][]*lane
}

// lane is a holder of blocks: a source, group, tier, cut and generation. Its ordinal stands for
// it in the forest.
type lane struct {
	ord    uint32
	number uint32 // in source.lanes
	group  *group
	tier   Tier
	cut    cut
	age    uint8 // generations of its tier that began after its own
	gone   bool  // it is being emptied: its group does not have it any more
	blocks int   // held
	hidden int   // holdings that a report hid
	// few has the names that ever held or hid something in the lane, until there are more
	// than maxFew (many): a clear of a few blocks need not scan all names.
	few  []Hash
	many bool
}

// maxFew bounds lane.few: a scan of all names is shared by so many blocks.
const maxFew = 128

// isEmpty reports whether a lane has no blocks, nor hidden ones.
func (ln *lane) isEmpty() bool { return ln.blocks == 0 && ln.hidden == 0 }

// view is a View with its lanes: those of a group and cut. If just one of them
// is in the gpu tier, it is the first. bits: its rows have bits also without Query.Held.
// All views of a source have the same bits.
type view struct {
	View
	cut    cut
	lanes  []viewLane
	oneGPU bool
	bits   bool
}

type viewLane struct {
	ord  uint32
	tier Tier
}

const (
	// maxCuts bounds the block sizes of a source, of which partial entries and
	// chunks have one each, and maxLanes its lanes: readers walk a prompt once
	// for each size of their candidates.
	maxCuts  = 64
	maxLanes = 256
)

// groupFor returns the group of a store, updated by the store, and reports whether the
// update changed it. It returns nil if there is no room for the group.
func (s *source) groupFor(c *Change) (g *group, news bool) {
	g = s.lanes.group(c.Group.ID)
	if g == nil {
		if !s.ground.hasRoomFor(s, mem.SizeOf[group]()+mem.SizeOf[GroupLayout]()+mem.Size(8*len(s.lanes.groups))) {
			return nil, false
		}
		g = s.lanes.newGroup(c.Group)
		news = true
	}
	if c.Tier == TierGPU && !g.declared { // others may leave out the kind
		g.Group, g.declared = c.Group, true
		news = true
	}
	if c.Tier == TierGPU && len(c.Locals) > 0 {
		if c.BlockSize > g.cut.size {
			g.grow(cut{c.Variant, c.BlockSize})
			news = true
		}
		if g.grain == 0 || c.BlockSize < g.grain {
			g.grain = c.BlockSize
			news = true
		}
	}
	return g, news
}

// cutOf returns how the blocks of a lane are cut. Blocks that are stored by hash alone
// have the cut of the group.
func (g *group) cutOf(ln *lane) cut {
	if ln.cut == (cut{}) {
		return g.cut
	}
	return ln.cut
}

// grow sets a cut with larger blocks than before. Blocks that are stored by hash alone
// keep the size that they had.
func (g *group) grow(by cut) {
	for _, of := range g.lanes {
		for _, ln := range of {
			if ln.cut == (cut{}) {
				ln.cut = g.cut
			}
		}
	}
	g.cut = by
}

// laneFor returns the newest lane of a group, tier and cut, and makes it if necessary. It returns
// nil if there are too many lanes, or no room. It does not retire keep.
func (s *source) laneFor(g *group, t Tier, by cut, keep *lane) (ln *lane, room bool) {
	for _, ln := range g.lanes[t] {
		if ln.cut == by && ln.age == 0 {
			return ln, true
		}
	}
	if !s.lanes.fits(by) {
		s.retireEmptyLanes(keep)
		if !s.lanes.fits(by) {
			return nil, true
		}
	}
	if !s.ground.hasRoomFor(s, mem.SizeOf[lane]()+mem.SizeOf[view]()) {
		return nil, false
	}
	if ln = s.lanes.add(g, t, by); ln != nil {
		s.publish()
	}
	return ln, true
}

// retireEmptyLanes gives up the lanes that have no blocks, nor hidden ones, but for keep.
func (s *source) retireEmptyLanes(keep *lane) {
	var old []*lane
	for _, ln := range s.lanes.all {
		if ln != nil && ln != keep && ln.isEmpty() {
			old = append(old, ln)
			of := &ln.group.lanes[ln.tier]
			*of = slices.DeleteFunc(*of, func(o *lane) bool { return o == ln })
		}
	}
	if len(old) == 0 {
		return
	}
	s.publish()
	s.lanes.drop(old)
	for _, ln := range old {
		s.f.RetireOrdinal(ln.ord)
	}
}

// publish publishes the views of the source to readers, and its holders to the mirror.
func (s *source) publish() {
	layout := s.lanes.newLayout()
	oneFull := len(layout.Groups) == 1 && layout.Groups[0].Kind == GroupFull
	var views []*view
	for _, g := range s.lanes.groups {
		for t := range g.lanes {
			for _, ln := range g.lanes[t] {
				by := g.cutOf(ln)
				if by == (cut{}) {
					continue
				}
				i := slices.IndexFunc(views, func(v *view) bool { return v.Group.ID == g.ID && v.cut == by })
				if i < 0 {
					i = len(views)
					views = append(views, &view{cut: by, bits: !oneFull, View: View{
						Source: s.id, Group: g.Group, BlockSize: by.size, Pairs: by.variant.Pairs, Layout: layout,
					}})
				}
				views[i].lanes = append(views[i].lanes, viewLane{ln.ord, ln.tier})
			}
		}
	}
	for _, v := range views {
		v.oneGPU = v.lanes[0].tier == TierGPU && (len(v.lanes) == 1 || v.lanes[1].tier != TierGPU)
	}
	s.mem.Add(viewBytes(views) - viewBytes(*s.views.Load())) // the old ones are garbage
	s.views.Store(&views)
	s.model.gen.Add(1)
	s.ground.publish(s)
}

// viewBytes returns the bytes of the views of a source without their Layout.
func viewBytes(views []*view) int {
	n := mem.SizeOf[[]*view]() + mem.SliceSize(views) + mem.SizeOf[view]()*len(views)
	for _, v := range views {
		n += mem.Size(cap(v.lanes) * int(unsafe.Sizeof(viewLane{})))
	}
	return n
}
