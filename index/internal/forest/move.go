package forest

import "sync/atomic"

// Slabs are moved out of chunks that are nearly empty, so that these go back to the
// heap: memory for slabs of one size serves slabs of another one, or names.
//
// A slab that was moved leaves a mark with its new place in its old one. It is
// dead for readers there, who find it by the head table. Writers go on to the new place
// (Here). The old place is given up when no name and no slab refers to it
// any more: Rehome takes names, and Relink looks at slabs. Until then its new place
// counts all names and slabs behind it, and each old one those that came to it.
//
// Slabs of a writer that no name refers to yet must stay where they are: chunks of
// pinned slabs (Pin, PinAll) are left alone, and so are those of slabs that are known by
// their places (Stay).

func (m *slabMeta) moved() bool { return m.kids&flagMoved != 0 }

// Here returns where that is now which was placed at l.
func (f *Forest) Here(l Loc) Loc { return locOf(f.here(l.Slab()), l.Slot()) }

func (f *Forest) here(id uint32) uint32 {
	for f.slabs.dying > 0 && f.slabs.dead[id/64]>>(id%64)&1 != 0 {
		m := f.meta(id)
		if !m.moved() {
			break
		}
		id = m.parent.Slab()
	}
	return id
}

// Rehome has a name that refers to l refer to Here(l), which it returns.
func (f *Forest) Rehome(l Loc) Loc {
	id := l.Slab()
	for m := f.meta(id); m.moved(); m = f.meta(id) {
		next := m.parent.Slab()
		m.refs--
		f.giveUp(id, m)
		id = next
	}
	return locOf(id, l.Slot())
}

// before returns what is before the first slot of a slab.
func (f *Forest) before(m *slabMeta) Loc {
	l := m.parent
	id := l.Slab()
	for p := f.meta(id); p.moved(); p = f.meta(id) {
		next := p.parent.Slab()
		p.kids--
		f.giveUp(id, p)
		id = next
	}
	m.parent = locOf(id, l.Slot())
	return m.parent
}

// Relink has so many slabs refer to where the slabs before them are now, and reports
// whether it has seen all.
func (f *Forest) Relink(s *Survey, n int) (done bool) {
	return f.eachSlab(s, n, func(_ uint32, _ *chunk, m *slabMeta) {
		if m.parent != 0 {
			f.before(m)
		}
	})
}

// Stay keeps a slab from being moved as long as it is there, and returns where it is.
func (f *Forest) Stay(l Loc) Loc {
	l = f.Here(l)
	f.meta(l.Slab()).kids |= flagStays
	return l
}

// PinAll keeps what is at some places where it is, until UnpinAll.
func (f *Forest) PinAll(locs []Loc)   { f.pinChunks(locs, 1) }
func (f *Forest) UnpinAll(locs []Loc) { f.pinChunks(locs, ^uint32(0)) }

func (f *Forest) pinChunks(locs []Loc, n uint32) {
	last := ^uint32(0)
	for _, l := range locs {
		if c := l.Slab() / chunkSlabs; c != last {
			f.slabs.chunks[c].pins += n
			last = c
		}
	}
}

// leastReady is how many slabs of a chunk are ready at least if it is to be emptied: to
// move all others would cost too much.
const leastReady = chunkSlabs / 8

// Empty begins to move slabs out of chunks, the emptiest ones, of so many bytes together.
func (f *Forest) Empty(s *Survey, want int) {
	var chunks [chunkSlabs + 1][slabSizes]int
	for n := range f.slabs.chunks {
		if c := &f.slabs.chunks[n]; c.listed {
			chunks[c.ready][c.size]++
		}
	}
	ready := chunkSlabs
	for ; ready > leastReady && want > 0; ready-- {
		for size, n := range chunks[ready-1] {
			want -= n * f.chunkSize(size)
		}
	}
	*s = Survey{least: max(ready, leastReady)}
	for n := range f.slabs.chunks { // those that stay are filled first
		if c := &f.slabs.chunks[n]; c.listed && int(c.ready) >= s.least {
			f.slabs.unlist(uint32(n))
			f.slabs.list(uint32(n))
		}
	}
}

// Move empties one more chunk and returns how many bytes that makes, and how many slabs
// were moved; done: there is none.
func (f *Forest) Move(s *Survey) (bytes, slabs int, done bool) {
	for ; int(s.at) < len(f.slabs.chunks); s.at++ {
		c := &f.slabs.chunks[s.at]
		if c.listed && int(c.ready) >= s.least && f.canEmpty(s.at) {
			return f.chunkSize(int(c.size)), f.empty(s.at), false
		}
	}
	return 0, 0, true
}

// canEmpty reports whether the slabs of a chunk can be moved elsewhere.
func (f *Forest) canEmpty(n uint32) bool {
	c := &f.slabs.chunks[n]
	if n == 0 || c.pins > 0 || f.Still || f.dump != nil && len(f.dump.way) > 0 {
		return false
	}
	used := 0
	slabs := (*f.chunks.Load())[n].meta
	for i := range slabs {
		if m := &slabs[i]; m.header != 0 && !m.dead() {
			if used++; m.kids&flagStays != 0 {
				return false
			}
		}
	}
	return f.slabs.free[c.size]-int(c.ready) >= used
}

// empty moves all slabs of a chunk elsewhere, where there is room for them.
func (f *Forest) empty(n uint32) (moved int) {
	s := &f.slabs
	c := &s.chunks[n]
	s.unlist(n)
	c.leaves = true
	s.free[c.size] -= int(c.ready)
	if c.ready == chunkSlabs {
		f.dropChunk(n)
		return 0
	}
	from := (*f.chunks.Load())[n]
	for i := range from.meta {
		if m := &from.meta[i]; m.header != 0 && !m.dead() {
			f.move(n*chunkSlabs+uint32(i), m, f.takeSlab(int(c.size)))
			moved++
		}
	}
	return moved
}

// move moves a slab. It is there before it is found there, and is found there before it
// is not found any more where it was.
func (f *Forest) move(id uint32, m *slabMeta, to uint32) {
	keys, h := f.keys(id), m.load()
	copy(f.keys(to), keys[:h.written()])
	t := f.meta(to)
	t.parent, t.refs, t.kids = m.parent, m.refs, m.kids
	if m.parent != 0 {
		t.parent = f.before(m)
	}
	atomic.StoreUint32(&t.used, atomic.LoadUint32(&m.used))
	t.store(h)
	if f.watcher != nil {
		f.setDepth(to, f.Depth(id))
	}
	f.heads.replace(Key(keys[0]), id, to)
	m.parent = locOf(to, 0)
	m.kids |= flagDead | flagMoved
	m.store(kindDead << 62)
	f.slabs.dead[id/64] |= 1 << (id % 64)
	f.slabs.dying++
	f.moveDumped(id, to)
}
