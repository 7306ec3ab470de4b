package forest

import (
	"fmt"
	"math/bits"
)

// Holding is a slab and one of its holders.
type Holding struct{ Slab, Ord uint32 }

// Check looks at all of f and returns the first fault. held has the slots that each
// holder must have, and refs the number of references by Ref to each slab; Check
// adds those of the slabs. Both are used up.
func (f *Forest) Check(held map[Holding]uint32, refs map[uint32]uint32) error {
	gone, err := f.unused()
	if err != nil {
		return err
	}
	at := make(map[Key]Loc)
	slots := 0
	last := uint32(len(*f.chunks.Load())) * chunkSlabs
	kids := make(map[uint32]uint32)
	dying := 0
	for id := uint32(1); id < last; id++ {
		if (*f.chunks.Load())[id/chunkSlabs].meta == nil {
			continue
		}
		m := f.meta(id)
		h := m.load()
		if gone[id] {
			if h != 0 {
				return fmt.Errorf("slab %d is gone and has the header %x", id, uint64(h))
			}
			continue
		}
		if noted := f.slabs.dead[id/64]>>(id%64)&1 != 0; m.dead() != (h.kind() == kindDead) || m.dead() != noted {
			return fmt.Errorf("slab %d has the header %x and is dead: %v, %v", id, uint64(h), m.dead(), noted)
		}
		if m.dead() {
			if dying++; f.heads.find(f, Key(f.keys(id)[0])) == id {
				return fmt.Errorf("the dead slab %d is found", id)
			}
			if m.moved() {
				if h.written() != 0 || m.parent.Slot() != 0 || gone[m.parent.Slab()] {
					return fmt.Errorf("slab %d was moved to %d, and has the header %x", id, m.parent.Slab(), uint64(h))
				}
				continue
			}
			if err := f.checkHolders(id, m.holders(), held); err != nil {
				return fmt.Errorf("dead slab %d: %w", id, err)
			}
			continue
		}
		if m.parent != 0 {
			kids[m.parent.Slab()]++
			if p := f.Here(m.parent); gone[p.Slab()] || p.Slot() >= f.meta(p.Slab()).load().written() {
				return fmt.Errorf("slab %d is behind %d of slab %d, which is not there", id, p.Slot(), p.Slab())
			}
		}
		keys := f.keys(id)
		if got := f.heads.find(f, Key(keys[0])); got != id {
			return fmt.Errorf("slab %d is not found by its key, but %d", id, got)
		}
		if f.watcher != nil && f.Depth(id) != f.below(f.Here(m.parent)) {
			return fmt.Errorf("slab %d has the depth %d, want %d", id, f.Depth(id), f.below(f.Here(m.parent)))
		}
		slots += h.written()
		for i := range h.written() {
			if o, ok := at[Key(keys[i])]; ok {
				return fmt.Errorf("key %x is at %d of slab %d and at %d of slab %d", keys[i], o.Slot(), o.Slab(), i, id)
			}
			at[Key(keys[i])] = locOf(id, i)
		}
		if err := f.checkHolders(id, h, held); err != nil {
			return fmt.Errorf("slab %d: %w", id, err)
		}
	}
	if slots != f.slots {
		return fmt.Errorf("%d keys, counted %d", slots, f.slots)
	}
	for h, mask := range held {
		if mask != 0 {
			return fmt.Errorf("slab %d does not say that %d holds %b", h.Slab, h.Ord, mask)
		}
	}
	if dying != f.slabs.dying {
		return fmt.Errorf("%d dead slabs, counted %d", dying, f.slabs.dying)
	}
	refs, kids = f.comeBy(refs), f.comeBy(kids)
	for id := uint32(1); id < last; id++ {
		if gone[id] || (*f.chunks.Load())[id/chunkSlabs].meta == nil {
			continue
		}
		if m := f.meta(id); m.names() != refs[id] || m.behind() != kids[id] || refs[id]+kids[id] == 0 {
			return fmt.Errorf("slab %d has %d names and %d slabs behind it, counted %d and %d", id, refs[id], kids[id], m.names(), m.behind())
		}
	}
	return nil
}

// comeBy returns the number of references that lead to each slab: one to a slab that was
// moved leads to its new place too.
func (f *Forest) comeBy(refer map[uint32]uint32) map[uint32]uint32 {
	come := make(map[uint32]uint32)
	for id, n := range refer {
		come[id] += n
		for m := f.meta(id); m.moved(); m = f.meta(id) {
			id = m.parent.Slab()
			come[id] += n
		}
	}
	return come
}

// unused returns the slabs that are not in use.
func (f *Forest) unused() (map[uint32]bool, error) {
	gone := make(map[uint32]bool)
	s := &f.slabs
	var free [slabSizes]int
	for n := range s.chunks {
		c := &s.chunks[n]
		if (*f.chunks.Load())[n].meta == nil {
			continue
		}
		ready := 0
		for i := uint32(c.fresh); i < chunkSlabs; i++ {
			gone[uint32(n)*chunkSlabs+i] = true
			ready++
		}
		for id := c.free; id != 0; id = uint32(f.meta(id).parent) {
			gone[id] = true
			ready++
		}
		if ready != int(c.ready) || c.listed != (ready > 0 && !c.leaves) {
			return nil, fmt.Errorf("chunk %d has %d slabs that are ready, counted %d, listed: %v", n, ready, c.ready, c.listed)
		}
		if !c.leaves {
			free[c.size] += ready
		}
	}
	if free != s.free {
		return nil, fmt.Errorf("%v slabs are ready, counted %v", free, s.free)
	}
	n := 0
	for id := s.leaving; id != 0; id = uint32(f.meta(id).parent) {
		gone[id] = true
		n++
	}
	if n != s.waiting {
		return nil, fmt.Errorf("%d slabs wait, counted %d", n, s.waiting)
	}
	return gone, nil
}

// checkHolders compares the holders of a slab with those that are to be, and
// takes them from held. h is as it was before the slab was evicted.
func (f *Forest) checkHolders(id uint32, h header, held map[Holding]uint32) error {
	var err error
	n, seen := 0, make(map[uint32]bool)
	each := func(ord, mask uint32) {
		n++
		at := Holding{id, ord}
		switch {
		case seen[ord]:
			err = fmt.Errorf("holder %d is repeated", ord)
		case mask == 0 || bits.Len32(mask) > h.written():
			err = fmt.Errorf("holder %d has %b of %d slots", ord, mask, h.written())
		case held[at] != mask:
			err = fmt.Errorf("holder %d has %b, want %b", ord, mask, held[at])
		case f.Mask(id, ord) != mask:
			err = fmt.Errorf("holder %d is not found", ord)
		}
		seen[ord] = true
		delete(held, at)
	}
	switch h.kind() {
	case kindOne:
		each(h.ord(), h.mask())
	case kindRecord:
		r := f.recs.at(h.record())
		r.each(each)
		used := 0
		for _, e := range r.entries() {
			if e != 0 {
				used++
			}
		}
		if n != r.holders() || n < 2 || used != r.used() {
			return fmt.Errorf("%d holders, %d in entries, counted %d and %d", n, used, r.holders(), r.used())
		}
	}
	return err
}

// CheckOrdinals returns a fault of the ordinals: none that is free may be taken.
func (f *Forest) CheckOrdinals(taken func(ord uint32) bool) error {
	of := make(map[*Holders]int)
	spare := 0
	for i, h := range f.ords.blocks {
		if h == nil {
			spare++
			for ord := range uint32(ordinalBlock) {
				if ord += uint32(i * ordinalBlock); taken(ord) {
					return fmt.Errorf("ordinal %d is nobody's, and taken", ord)
				}
			}
			continue
		}
		of[h] += ordinalBlock
	}
	if spare != f.ords.spare {
		return fmt.Errorf("%d blocks of ordinals are nobody's, counted %d", spare, f.ords.spare)
	}
	for h, all := range of {
		for next := h.free; next != 0; next = f.ords.all[next-1].next {
			if all--; taken(next - 1) {
				return fmt.Errorf("ordinal %d is free, and taken", next-1)
			}
		}
		if all != h.taken {
			return fmt.Errorf("%d ordinals are not free, counted %d", all, h.taken)
		}
	}
	return nil
}
