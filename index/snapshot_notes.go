package index

import (
	"encoding/binary"
	"slices"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// name notes a name before it changes, if it is still as it was at the cut.
func (d *sourceDump) name(h Hash) {
	s := d.s
	if !d.cut || d.end || s.names.Position(h) < d.at || d.w.overflow || d.seen.Add(h, 1) != 0 {
		return
	}
	d.w.overflow = d.w.noted+d.seen.Bytes() > d.w.notesMax
	if v := s.names.Get(h); v != 0 {
		d.keep(&name{s, h, v})
	}
}

// keep notes a name.
func (d *sourceDump) keep(n *name) {
	s := n.s
	switch {
	case n.isRich():
		d.keepRich(n)
	case n.isPlain() && s.f.Dead(loc(n.value)):
		for _, ln := range s.lanes.all {
			if ln != nil && s.f.Holds(loc(n.value), ln.ord) {
				d.lose(ln)
			}
		}
	case n.isPlain():
		l := s.f.Here(loc(n.value))
		p := d.piece(14 + maxLanes)
		*p = binary.LittleEndian.AppendUint64(append(*p, tagPlain), uint64(n.hash))
		*p = binary.LittleEndian.AppendUint32(*p, uint32(l))
		at := len(*p)
		*p = s.lanes.appendHolders(append(*p, 0), l)
		(*p)[at] = byte(len(*p) - at - 2)
		s.f.Pin(l)
		d.names++
	default:
		i := s.idle.at(n.number())
		l := s.f.Here(i.loc)
		if s.f.Dead(l) {
			return
		}
		p := d.piece(21)
		*p = binary.LittleEndian.AppendUint64(append(*p, tagIdleName), uint64(n.hash))
		*p = binary.LittleEndian.AppendUint32(*p, uint32(l))
		*p = binary.LittleEndian.AppendUint32(*p, d.order.numbers[n.number()])
		*p = binary.LittleEndian.AppendUint32(*p, i.since)
		s.f.Pin(l)
		d.names++
	}
}

// lose counts a holding that is left out because it was evicted.
func (d *sourceDump) lose(ln *lane) {
	d.evicted++
	d.doubts = true
	d.lost[ln.number] = true
}

// keepRich is keep for a rich name. It leaves out the same evicted parts as source.bury.
func (d *sourceDump) keepRich(n *name) {
	var buf [2]loc
	s, r := n.s, n.rich()
	keys := slices.Clone(n.locs(&buf))
	for i, l := range keys {
		keys[i] = s.f.Here(l)
	}
	gone := slices.DeleteFunc(slices.Clone(keys), func(l loc) bool { return !s.f.Dead(l) })
	whole := len(gone) > 0 && (len(gone) == len(keys) || n.ambiguous())
	keys = slices.DeleteFunc(keys, s.f.Dead)
	hidden, copies := n.isHiddenExcept(0), 0
	for i := r.first; i != 0; i = s.copies.at(i).next {
		copies++
	}
	p := d.piece(21 + 4*len(keys) + 14*copies)
	was := len(*p)
	*p = binary.LittleEndian.AppendUint64(append(*p, tagRichName), uint64(n.hash))
	head := len(*p)
	*p = append(*p, byte(len(keys)), 0, 0, 0)
	for _, l := range keys {
		v := uint32(l)
		if at := s.hidden.names.at(l); hidden && (d.forgets != s.hidden.forgets || at != nil && at.many) {
			v |= keyShared
		}
		*p = binary.LittleEndian.AppendUint32(*p, v)
	}
	copies = 0
	holders := 0
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		i = c.next
		ln := s.lanes.all[c.lane]
		variant := func(l loc) bool { return s.ground.variantAt(l) == ln.group.cutOf(ln).variant }
		switch {
		case (whole || slices.ContainsFunc(gone, variant)) && c.copies > 0:
			d.lose(ln)
			continue
		case whole || slices.ContainsFunc(gone, variant):
			d.doubts = true
			continue
		case c.copies > 0:
			holders++
		}
		copies++
		*p = appendCopy(*p, c, len(keys) == 0)
	}
	if whole {
		*p = (*p)[:was]
		return
	}
	binary.LittleEndian.PutUint16((*p)[head+1:], uint16(copies))
	if holders == 0 {
		(*p)[head+3] = richIsIdle
		order, since := d.order.late, d.clock
		if r.idle != 0 {
			order, since = d.order.numbers[r.idle], s.idle.at(r.idle).since
		} else {
			d.order.late++
		}
		*p = binary.LittleEndian.AppendUint32(*p, order)
		*p = binary.LittleEndian.AppendUint32(*p, since)
	}
	for _, l := range keys {
		s.f.Pin(l)
	}
	d.names++
}

// piece returns notes with room for some more bytes.
func (d *sourceDump) piece(bytes int) *[]byte {
	if n := len(d.notes); n > 0 && cap(d.notes[n-1])-len(d.notes[n-1]) >= bytes {
		return &d.notes[n-1]
	}
	size := mem.Size(max(notePiece, bytes))
	d.grow(size)
	d.w.noted += size
	d.notes = append(d.notes, make([]byte, 0, size))
	return &d.notes[len(d.notes)-1]
}
