package index

import (
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// laneTable is the groups and lanes of a source.
type laneTable struct {
	f        *forest.Forest
	mem      *mem.Count
	ordinals *forest.Holders // of the model

	groups []*group      // by ID
	all    []*lane       // by number; nil: a free number
	blocks [NumTiers]int // holdings with copies, by tier
	layout *Layout       // the latest that was published
}

// group returns the group of an ID, nil if there is none.
func (lt *laneTable) group(id int) *group {
	for _, g := range lt.groups {
		if g.ID == id {
			return g
		}
	}
	return nil
}

// newGroup adds a group.
func (lt *laneTable) newGroup(of Group) *group {
	lt.mem.Add(mem.SizeOf[group]())
	g := &group{Group: of}
	i := 0
	for i < len(lt.groups) && lt.groups[i].ID < of.ID {
		i++
	}
	lt.groups = mem.Append(lt.mem, lt.groups, g)
	copy(lt.groups[i+1:], lt.groups[i:])
	lt.groups[i] = g
	return g
}

// newLayout returns the source's Layout: the latest one if nothing has changed.
func (lt *laneTable) newLayout() *Layout {
	fresh := &Layout{Groups: make([]GroupLayout, 0, len(lt.groups))}
	for _, g := range lt.groups {
		fresh.Groups = append(fresh.Groups, GroupLayout{Group: g.Group, BlockSize: g.cut.size, Grain: g.grain})
	}
	if lt.layout == nil || !slices.Equal(lt.layout.Groups, fresh.Groups) {
		lt.mem.Add(layoutBytes(fresh) - layoutBytes(lt.layout))
		lt.layout = fresh
	}
	return lt.layout
}

// add adds a lane, or returns nil if there are no more ordinals.
func (lt *laneTable) add(g *group, t Tier, by cut) *lane {
	ord, ok := lt.f.TakeOrdinal(lt.ordinals)
	if !ok {
		return nil
	}
	lt.mem.Add(mem.SizeOf[lane]())
	ln := &lane{ord: ord, number: uint32(len(lt.all)), group: g, tier: t, cut: by}
	if i := slices.Index(lt.all, nil); i >= 0 {
		ln.number = uint32(i)
		lt.all[i] = ln
	} else {
		lt.all = mem.Append(lt.mem, lt.all, ln)
	}
	g.lanes[t] = mem.Append(lt.mem, g.lanes[t], ln)
	return ln
}

// drop removes lanes, some of which may be nil.
func (lt *laneTable) drop(lanes []*lane) {
	for _, ln := range lanes {
		if ln != nil {
			lt.all[ln.number] = nil
			lt.mem.Add(-ln.bytes())
		}
	}
}

// fits reports whether one more lane is allowed.
func (lt *laneTable) fits(by cut) bool {
	lanes, cuts := 0, map[cut]bool{by: true}
	for _, ln := range lt.all {
		if ln != nil {
			lanes++
			cuts[ln.cut] = true
		}
	}
	return lanes < maxLanes && len(cuts) <= maxCuts
}

// gain counts blocks that a lane holds now.
func (lt *laneTable) gain(ln *lane, hashes ...Hash) {
	lt.count(ln, len(hashes))
	lt.note(ln, hashes...)
}

// note records the names of blocks that a lane holds or hides now.
func (lt *laneTable) note(ln *lane, hashes ...Hash) {
	for _, h := range hashes {
		switch {
		case ln.many:
			return
		case len(ln.few) < maxFew:
			ln.few = mem.AppendPlain(lt.mem, ln.few, h)
		default:
			lt.mem.Add(-mem.Size(8 * cap(ln.few)))
			ln.few, ln.many = nil, true
		}
	}
}

// bytes returns the bytes of a lane.
func (ln *lane) bytes() int { return mem.SizeOf[lane]() + mem.Size(8*cap(ln.few)) }

// count adds n blocks to those that a lane holds.
func (lt *laneTable) count(ln *lane, n int) {
	ln.blocks += n
	lt.blocks[ln.tier] += n
}

// slotsOf returns the slots of a slab that any lane holds which is not gone.
func (lt *laneTable) slotsOf(slab uint32) (set uint32) {
	if lt.f.IsEmpty(slab) {
		return 0
	}
	for _, ln := range lt.all {
		if ln != nil && !ln.gone {
			set |= lt.f.Mask(slab, ln.ord)
		}
	}
	return set
}

// holdsAt reports whether any name holds something at l.
func (lt *laneTable) holdsAt(l loc) bool {
	return lt.slotsOf(l.Slab())>>l.Slot()&1 != 0
}

// appendHolders appends the numbers of the lanes that hold the block at l.
func (lt *laneTable) appendHolders(b []byte, l loc) []byte {
	for i, ln := range lt.all {
		if ln != nil && lt.f.Holds(l, ln.ord) {
			b = append(b, byte(i))
		}
	}
	return b
}

// bytes returns the bytes of the groups, the lanes and the layout.
func (lt *laneTable) bytes() int {
	return groupBytes(lt.groups) + laneBytes(lt.all) + layoutBytes(lt.layout)
}

// groupBytes returns the bytes of the groups of a source without their lanes.
func groupBytes(groups []*group) int {
	n := mem.SliceSize(groups) + mem.SizeOf[group]()*len(groups)
	for _, g := range groups {
		for _, of := range g.lanes {
			n += mem.SliceSize(of)
		}
	}
	return n
}

// laneBytes returns the bytes of the lanes of a source.
func laneBytes(lanes []*lane) int {
	n := mem.SliceSize(lanes)
	for _, ln := range lanes {
		if ln != nil {
			n += ln.bytes()
		}
	}
	return n
}

// layoutBytes returns the bytes of a Layout, which may be nil.
func layoutBytes(l *Layout) int {
	if l == nil {
		return 0
	}
	return mem.SizeOf[Layout]() + mem.Size(cap(l.Groups)*int(unsafe.Sizeof(GroupLayout{})))
}
