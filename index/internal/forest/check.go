package forest

import (
	"fmt"
	"math/bits"
)

// Holding is who holds something in a slab.
type Holding struct{ Slab, Ord uint32 }

// Check looks at all of f and returns what is wrong with it. held says what each
// holder must have, and refs how often each slab was referred to by Ref; what
// slabs refer to is added. Both are used up.
func (f *Forest) Check(held map[Holding]uint32, refs map[uint32]uint32) error {
	gone := make(map[uint32]bool)
	for i := range f.slabs {
		for _, id := range f.slabs[i].free {
			gone[id] = true
		}
		for id := f.slabs[i].next; id%chunkSlabs != 0; id++ { // never used
			gone[id] = true
		}
	}
	for _, l := range f.leaving.queue[f.leaving.from:] {
		gone[l.ref] = true
	}
	at := make(map[Key]Loc)
	slots := 0
	last := uint32(len(*f.chunks.Load())) * chunkSlabs
	for id := uint32(1); id < last; id++ {
		m := f.meta(id)
		h := m.load()
		if gone[id] {
			if h != 0 {
				return fmt.Errorf("slab %d is gone and has the header %x", id, uint64(h))
			}
			continue
		}
		if m.parent != 0 {
			refs[m.parent.Slab()]++
			if p := m.parent; gone[p.Slab()] || p.Slot() >= f.meta(p.Slab()).load().written() {
				return fmt.Errorf("slab %d is behind %d of slab %d, which is not there", id, p.Slot(), p.Slab())
			}
		}
		keys := f.keys(id)
		if got := f.heads.find(f, Key(keys[0])); got != id {
			return fmt.Errorf("slab %d is not found by its key, but %d", id, got)
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
	for id := uint32(1); id < last; id++ {
		if got := f.meta(id).refs << (32 - refsBits) >> (32 - refsBits); !gone[id] && (got != refs[id] || got == 0) {
			return fmt.Errorf("slab %d has %d refs, counted %d", id, refs[id], got)
		}
	}
	return nil
}

// checkHolders compares the holders of a slab with those that are to be, and
// takes them from held.
func (f *Forest) checkHolders(id uint32, h header, held map[Holding]uint32) error {
	var err error
	n, seen := 0, make(map[uint32]bool)
	each := func(ord, mask uint32) {
		n++
		at := Holding{id, ord}
		switch {
		case seen[ord]:
			err = fmt.Errorf("holder %d is there twice", ord)
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

// CheckOrdinals returns what is wrong with the ordinals: none that is free may be
// taken.
func (f *Forest) CheckOrdinals(taken func(ord uint32) bool) error {
	for _, ord := range f.ords.free {
		if taken(ord) {
			return fmt.Errorf("ordinal %d is free, and taken", ord)
		}
	}
	return nil
}
