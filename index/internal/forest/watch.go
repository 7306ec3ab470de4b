package forest

import "github.com/kvindex/kvindex/index/internal/mem"

// A Watcher gets each change from the writer who makes it. It may read the keys and
// the depth of the slab that has changed, and nothing else.
//
// The holders of a slab change in two places: setMask, and kill. A slab that is moved
// keeps its holders, and a dead one has none, whoever still has names there.
type Watcher struct {
	// Changed: a holder has the slots of now in a slab, and had those of was.
	Changed func(slab, ord, was, now uint32)
	// Lost: a holder lost its first block by an eviction; see Forest.Lost.
	Lost func(ord uint32)
}

// Watch sets the Watcher of f. f must be new. From then on f keeps the depths
// of its slabs.
func (f *Forest) Watch(w Watcher) { f.watcher = &w }

const depthBytes = chunkSlabs * 4

// depthSize returns what the depths of a chunk take.
func (f *Forest) depthSize() int {
	if f.watcher == nil {
		return 0
	}
	return mem.Size(depthBytes)
}

// addDepths makes room for the depths of a chunk.
func (f *Forest) addDepths(n uint32) {
	s := &f.slabs
	was := cap(s.depths)
	for int(n) >= len(s.depths) {
		s.depths = append(s.depths, nil)
	}
	f.countSlabs(mem.PointerSize(cap(s.depths)*wordBytes) - mem.PointerSize(was*wordBytes))
	s.depths[n] = new([chunkSlabs]uint32)
}

func (f *Forest) setDepth(id, depth uint32) { f.slabs.depths[id/chunkSlabs][id%chunkSlabs] = depth }

// Depth returns how many keys are before the first one of a slab in its chain. Watch was
// called.
func (f *Forest) Depth(slab uint32) uint32 { return f.slabs.depths[slab/chunkSlabs][slab%chunkSlabs] }

// below returns the depth of what is behind l; 0 stands for a root.
func (f *Forest) below(l Loc) uint32 {
	if l == 0 {
		return 0
	}
	return f.Depth(l.Slab()) + uint32(l.Slot()) + 1
}

// Written returns how many slots of a slab have keys.
func (f *Forest) Written(slab uint32) int { return f.meta(slab).load().written() }

// KeyAt returns the key at a depth of the chain of a slab: that of one of its slots, or
// before. It changes nothing, while the slab may be on its way out. The old place of a slab
// that was moved has its keys and depth as long as one is behind it.
func (f *Forest) KeyAt(slab uint32, depth int) Key {
	for m := f.meta(slab); depth < int(f.Depth(slab)) && m.parent != 0; m = f.meta(slab) {
		slab = m.parent.Slab()
	}
	return Key(f.keys(slab)[depth-int(f.Depth(slab))])
}
