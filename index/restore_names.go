package index

import (
	"cmp"
	"fmt"
	"slices"
)

// ref returns the place that a record refers to. 0: it was evicted.
func (r *restorer) ref(v uint64) (l loc, err error) {
	l, ok := r.slabs.placeOf(v)
	if !ok && !r.Short {
		return 0, fmt.Errorf("a name at slot %d of slab %d of %d", v&31, v>>5, len(r.slabs.all)-1)
	}
	return l, nil
}

// set reads a set of lanes.
func (r *restorer) set() error {
	n := int(r.Byte()) + 1
	set := make([]*lane, 0, 1)
	for _, number := range r.Take(n) {
		ln := r.lanes[number]
		if r.Short {
			return nil
		}
		if ln == nil || slices.Contains(set, ln) {
			return fmt.Errorf("lane %d in a set", number)
		}
		set = append(set, ln)
	}
	if len(r.sets) == maxSets {
		return fmt.Errorf("more than %d sets", maxSets)
	}
	r.sets = append(r.sets, set)
	return nil
}

// somePlain is how many plain names are looked up together.
const somePlain = 256

// plainRecord is a record of a name that some lanes hold.
type plainRecord struct {
	record []byte // the section from it on
	loc    loc
	set    int
}

// plainNames reads up to somePlain plain names, and prefetches their places and their
// entries in the table.
func (r *restorer) plainNames() error {
	r.plain, r.plainHashes, r.placed = r.plain[:0], r.plainHashes[:0], r.placed[:0]
	for len(r.plain) < somePlain && len(r.Rest) > 0 && r.Rest[0] >= tagPlain {
		p := plainRecord{record: r.Rest, set: int(r.Byte() - tagPlain)}
		h, v := Hash(r.Uint64()), r.Uvarint()
		l, err := r.ref(v)
		if (err != nil || r.Short) && len(r.plain) > 0 { // those before it come first
			r.Rest, r.Short = p.record, false
			break
		}
		if err != nil || r.Short {
			return err
		}
		p.loc = l
		r.plain, r.plainHashes = append(r.plain, p), append(r.plainHashes, h)
		if l != 0 {
			r.placed = append(r.placed, l)
		}
	}
	r.s.names.Prefetch(r.plainHashes)
	r.f.Prefetch(r.placed)
	for i := range r.plain {
		p := &r.plain[i]
		r.from = p.record
		if err := r.plainName(r.plainHashes[i], p.loc, p.set); err != nil {
			return err
		}
	}
	return nil
}

// plainName adds a name that the lanes of a set hold.
func (r *restorer) plainName(h Hash, l loc, set int) error {
	if set >= len(r.sets) {
		return fmt.Errorf("name %x is held by set %d of %d", uint64(h), set, len(r.sets))
	}
	s, at := r.s, [1]loc{l}
	r.names++
	if l == 0 || !r.roomFor(at[:]) || !r.f.Lives(l) {
		for _, ln := range r.sets[set] {
			r.lose(ln)
		}
		return nil
	}
	if s.lanes.holdsAt(l) {
		return fmt.Errorf("name %x has the key of another one, and does not say so", uint64(h))
	}
	if s.names.Add(h, value(l)) != 0 {
		return fmt.Errorf("name %x is repeated", uint64(h))
	}
	s.f.Ref(l)
	for _, ln := range r.sets[set] {
		s.f.Hold(l, ln.ord)
		s.lanes.gain(ln, h)
	}
	if s.shared.names != nil {
		s.shared.names.add(l, sharedName{hash: h})
	}
	return nil
}

// lose counts a holding that has no room.
func (r *restorer) lose(ln *lane) {
	r.s.evicted++
	r.s.doubts = true
	r.g.lost++
	r.f.Lose(ln.ord)
}

// idleName reads an idle name.
func (r *restorer) idleName() error {
	h, v := Hash(r.Uint64()), r.Uvarint()
	order, since := r.Uint32(), r.Uint32()
	l, err := r.ref(v)
	if err != nil || r.Short {
		return err
	}
	r.names++
	at := [1]loc{l}
	switch s := r.s; {
	case l == 0 || !r.roomFor(at[:]) || !r.f.Lives(l):
		s.counts.Forgotten++
	case s.names.Get(h) != 0:
		return fmt.Errorf("name %x is repeated", uint64(h))
	default:
		s.f.Ref(l)
		n := s.name(h)
		n.becomeIdle(l)
		r.becameIdle(n.number(), order, since)
	}
	return nil
}

// becameIdle records the position of an element in the queue.
func (r *restoredSource) becameIdle(i, order, since uint32) {
	for int(i) >= len(r.order) {
		r.order = append(r.order, 0)
	}
	r.order[i] = order
	r.s.idle.at(i).since = since
}

func (r *restoredSource) orderOf(i uint32) uint32 {
	if int(i) < len(r.order) {
		return r.order[i]
	}
	return ^uint32(0)
}

// sortIdle puts the queue of idle names in order.
func (r *restoredSource) sortIdle() {
	s := r.s
	var queue []uint32
	for i := s.idle.first; i != 0; i = s.idle.at(i).next {
		queue = append(queue, i)
	}
	slices.SortStableFunc(queue, func(a, b uint32) int { return cmp.Compare(r.orderOf(a), r.orderOf(b)) })
	s.idle.first, s.idle.last = 0, 0
	for _, i := range queue {
		s.idle.link(i)
	}
}
