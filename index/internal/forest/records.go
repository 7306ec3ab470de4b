package forest

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// A record has the slots of each holder of a slab that has several holders:
//
//	word 0   room for entries<<40 | rows<<8 | size class
//	word 1   width of a row<<32 | number of its first bitmap word
//	word 2   of the writers: entries written since the record was made<<48 |
//	         entries in use<<24 | holders; of one that was given up, its place in
//	         the arena's lists
//	rows     each a mask and a bitmap of width words: the holders of exactly
//	         these slots
//	entries  each ordinal<<32 | mask, 0 if free: holders whose slots few or
//	         none others have
//
// Each holder is in one row or entry. Words 0 and 1 never change; a row's
// bitmap and the entries change word by word, so each claim that a reader
// finds was true at the moment of one load. A holder that moves is in two
// places for a while, never in a wrong one.
type record []uint64

const recordHead = 3

func (r record) rows() int     { return int(r[0] >> 8 & (1<<32 - 1)) }
func (r record) class() int    { return int(r[0] & 255) }
func (r record) capacity() int { return int(r[0] >> 40) }
func (r record) width() int    { return int(r[1] >> 32) }
func (r record) first() int    { return int(uint32(r[1])) }
func (r record) holders() int  { return int(r[2] & (1<<24 - 1)) }
func (r record) used() int     { return int(r[2] >> 24 & (1<<24 - 1)) }
func (r record) written() int  { return int(r[2] >> 48) }

func (r record) count(holders, used, written int) {
	n := min(r.written()+written, 1<<16-1)
	r[2] = uint64(n)<<48 | uint64(r.used()+used)<<24 | uint64(r.holders()+holders)
}

// row returns the mask and the bitmap of row i.
func (r record) row(i int) (mask uint32, bitmap []uint64) {
	w := r.width()
	at := recordHead + i*(w+1)
	return uint32(r[at]), r[at+1 : at+1+w]
}

func (r record) entries() []uint64 {
	at := recordHead + r.rows()*(r.width()+1)
	return r[at : at+r.capacity()]
}

// bit returns the word and the bit of ord in a row's bitmap.
func (r record) bit(ord uint32) (word int, bit uint64, ok bool) {
	word = int(ord>>6) - r.first()
	return word, 1 << (ord & 63), uint(word) < uint(r.width())
}

// find returns where ord is: its mask, and its entry or row, or -1.
func (r record) find(ord uint32) (mask uint32, entry, row int) {
	if r.used() > 0 {
		for i, e := range r.entries() {
			if uint32(e>>32) == ord && uint32(e) != 0 {
				return uint32(e), i, -1
			}
		}
	}
	if word, bit, ok := r.bit(ord); ok {
		for i := range r.rows() {
			if mask, bitmap := r.row(i); bitmap[word]&bit != 0 {
				return mask, -1, i
			}
		}
	}
	return 0, -1, -1
}

// IsEmpty reports whether nobody holds a slot of a slab.
func (f *Forest) IsEmpty(slab uint32) bool { return f.meta(f.here(slab)).holders().kind() == kindNone }

// Mask returns the slots of a slab that ord holds.
func (f *Forest) Mask(slab, ord uint32) uint32 {
	switch h := f.meta(f.here(slab)).holders(); {
	case h.kind() == kindRecord:
		mask, _, _ := f.recs.at(h.record()).find(ord)
		return mask
	case h.kind() == kindOne && h.ord() == ord:
		return h.mask()
	}
	return 0
}

// Holds reports whether ord holds what is at l.
func (f *Forest) Holds(l Loc, ord uint32) bool { return f.Mask(l.Slab(), ord)>>l.Slot()&1 != 0 }

// Hold has ord hold what is at l. Somebody must keep it there by a Ref.
func (f *Forest) Hold(l Loc, ord uint32) {
	f.setMask(l.Slab(), ord, f.Mask(l.Slab(), ord)|1<<l.Slot())
}

// RefAndHold is Ref and Hold for several slots of a slab.
func (f *Forest) RefAndHold(slab, ord, slots uint32) {
	f.meta(slab).refs += uint32(bits.OnesCount32(slots))
	f.setMask(slab, ord, f.Mask(slab, ord)|slots)
}

// Release takes what is at l from ord.
func (f *Forest) Release(l Loc, ord uint32) {
	f.setMask(l.Slab(), ord, f.Mask(l.Slab(), ord)&^(1<<l.Slot()))
}

// ReleaseSlab takes from ord all that it holds in the slab of l.
func (f *Forest) ReleaseSlab(l Loc, ord uint32) { f.setMask(l.Slab(), ord, 0) }

// setMask has ord hold the slots of mask and no others.
func (f *Forest) setMask(id, ord, mask uint32) {
	id = f.here(id)
	m := f.meta(id)
	if f.watcher != nil && !m.dead() {
		if was := f.Mask(id, ord); was != mask {
			f.watcher.Changed(id, ord, was, mask)
		}
	}
	h := m.holders()
	switch {
	case h.kind() == kindRecord:
		f.setRecord(m, ord, mask)
	case h.kind() == kindOne && h.ord() != ord:
		if mask != 0 {
			f.sorted = append(f.sorted[:0], uint64(h.mask())<<32|uint64(h.ord()), uint64(mask)<<32|uint64(ord))
			f.pack(m)
		}
	case mask == 0:
		m.setHolders(h.writtenBits())
	default:
		m.setHolders(headerOne(h, ord, mask))
	}
}

func (f *Forest) setRecord(m *slabMeta, ord, mask uint32) {
	r := f.recs.at(m.holders().record())
	old, entry, row := r.find(ord)
	if old == mask {
		return
	}
	word, bit, inRange := r.bit(ord)
	target := -1
	for i := 0; inRange && mask != 0 && i < r.rows(); i++ {
		if has, _ := r.row(i); has == mask {
			target = i
			break
		}
	}
	holders, used, written := 0, 0, 0
	if old == 0 {
		holders++
	}
	switch {
	case mask == 0:
		holders--
	case target >= 0:
		_, bitmap := r.row(target)
		atomic.StoreUint64(&bitmap[word], bitmap[word]|bit)
	default:
		to := entry
		if to < 0 {
			if to = slices.Index(r.entries(), 0); to < 0 {
				f.repack(m, r, ord, mask)
				return
			}
			used++
		}
		atomic.StoreUint64(&r.entries()[to], uint64(ord)<<32|uint64(mask))
		entry, written = -1, 1
	}
	if entry >= 0 {
		atomic.StoreUint64(&r.entries()[entry], 0)
		used--
	}
	if row >= 0 {
		_, bitmap := r.row(row)
		atomic.StoreUint64(&bitmap[word], bitmap[word]&^bit)
	}
	r.count(holders, used, written)
	n := r.holders()
	if n < 2 || len(r) > 16 && len(r) > 4*n || r.used() > 4 && r.written() > 2*n+16 {
		f.repack(m, r, ord, mask)
	}
}

// repack makes a new record of r, in which ord holds mask.
func (f *Forest) repack(m *slabMeta, r record, ord, mask uint32) {
	f.sorted = f.sorted[:0]
	if mask != 0 {
		f.sorted = append(f.sorted, uint64(mask)<<32|uint64(ord))
	}
	r.each(func(o, has uint32) {
		if o != ord {
			f.sorted = append(f.sorted, uint64(has)<<32|uint64(o))
		}
	})
	f.pack(m)
}

// each calls f for each holder. For writers.
func (r record) each(f func(ord, mask uint32)) {
	for i := range r.rows() {
		mask, bitmap := r.row(i)
		for w, set := range bitmap {
			for ; set != 0; set &= set - 1 {
				f(uint32(r.first()+w)<<6|uint32(bits.TrailingZeros64(set)), mask)
			}
		}
	}
	for _, e := range r.entries() {
		if e != 0 {
			f(uint32(e>>32), uint32(e))
		}
	}
}

// pack puts the holders of f.sorted, each mask<<32 | ordinal, in place of those
// that the slab has. Those that share a mask make a row if that is smaller.
func (f *Forest) pack(m *slabMeta) {
	h := m.holders()
	all := f.sorted
	defer func() {
		if h.kind() == kindRecord {
			f.recs.give(f.epochs, h.record())
		}
	}()
	switch len(all) {
	case 0:
		m.setHolders(h.writtenBits())
		return
	case 1:
		m.setHolders(headerOne(h, uint32(all[0]), uint32(all[0]>>32)))
		return
	}
	slices.Sort(all)
	lo, hi := uint32(maxOrds), uint32(0)
	for _, e := range all {
		lo, hi = min(lo, uint32(e)), max(hi, uint32(e))
	}
	first := int(lo >> 6)
	width := int(hi>>6) - first + 1
	rows, rest := 0, 0
	runs(all, func(g []uint64) {
		if len(g) > width+1 {
			rows++
		} else {
			rest += len(g)
		}
	})
	if rows == 0 {
		width = 0
	}
	words := recordHead + rows*(width+1) + rest
	r, at := f.recs.get(words + 1 + rest/2)
	r[0] = uint64(len(r)-words+rest)<<40 | uint64(rows)<<8 | r[0]
	r[1] = uint64(width)<<32 | uint64(first)
	r[2] = uint64(rest)<<24 | uint64(len(all))
	clear(r[recordHead:])
	row, entries := recordHead, r.entries()
	runs(all, func(g []uint64) {
		if rows == 0 || len(g) <= width+1 {
			for i, e := range g {
				entries[i] = e<<32 | e>>32
			}
			entries = entries[len(g):]
			return
		}
		r[row] = g[0] >> 32
		for _, e := range g {
			r[row+1+int(uint32(e)>>6)-first] |= 1 << (e & 63)
		}
		row += width + 1
	})
	m.setHolders(kindRecord<<62 | h.writtenBits() | header(at))
}

// runs calls f for each run of equal masks.
func runs(sorted []uint64, f func([]uint64)) {
	for from := 0; from < len(sorted); {
		to := from + 1
		for to < len(sorted) && sorted[to]>>32 == sorted[from]>>32 {
			to++
		}
		f(sorted[from:to])
		from = to
	}
}
