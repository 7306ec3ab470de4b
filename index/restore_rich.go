package index

import (
	"fmt"
	"slices"
)

// copyRecord is the copies of a rich name that a lane has.
type copyRecord struct {
	ln                *lane
	copies            uint32
	reported, chained bool
	parent            Hash
}

// richRecord is the record of a rich name. A key at 0 was evicted.
type richRecord struct {
	hash    Hash
	keys    []richKey
	copies  []copyRecord
	holders int
	order   uint32
	since   uint32
}

type richKey struct {
	loc     loc
	variant uint32
	several bool // names with it were hidden
}

// richName reads a name of any kind.
func (r *restorer) richName() error {
	n, err := r.richRecord()
	if err != nil || r.Short {
		return err
	}
	r.names++
	locs := make([]loc, len(n.keys))
	for i := range n.keys {
		locs[i] = n.keys[i].loc
	}
	room := r.roomFor(locs)
	for i := range n.keys {
		if k := &n.keys[i]; k.loc != 0 && !r.f.Lives(k.loc) {
			k.loc = 0
		}
	}
	if r.evict(n, room) {
		return nil
	}
	return r.build(n)
}

func (r *restorer) richRecord() (*richRecord, error) {
	n := &richRecord{hash: Hash(r.Uint64())}
	keys, count := int(r.Byte()), int(r.Byte())|int(r.Byte())<<8
	flags := r.Byte()
	for range keys {
		v := r.Uvarint()
		l, err := r.ref(v >> 1)
		if err != nil || r.Short {
			return nil, err
		}
		k := richKey{l, uint32(r.slabs.all[v>>6].variant), v&1 != 0}
		same := 0
		for _, o := range n.keys {
			if o.variant == k.variant {
				same++
			}
			if o.loc == l && l != 0 {
				return nil, fmt.Errorf("name %x has a key twice", uint64(n.hash))
			}
		}
		if same > 1 {
			return nil, fmt.Errorf("name %x has three keys of one variant", uint64(n.hash))
		}
		n.keys = append(n.keys, k)
	}
	for range count {
		c, err := r.copyRecord()
		if err != nil || r.Short {
			return nil, err
		}
		if slices.ContainsFunc(n.copies, func(o copyRecord) bool { return o.ln.group == c.ln.group && o.ln.tier == c.ln.tier }) {
			return nil, fmt.Errorf("name %x is held twice in a group and tier", uint64(n.hash))
		}
		if n.copies = append(n.copies, c); c.copies > 0 {
			n.holders++
		}
	}
	n.order, n.since = ^uint32(0), r.clock
	idle := flags&richIsIdle != 0
	if idle {
		n.order, n.since = r.Uint32(), r.Uint32()
	}
	switch {
	case r.Short:
		return nil, nil
	case idle != (n.holders == 0):
		return nil, fmt.Errorf("name %x has %d holders, and is idle: %v", uint64(n.hash), n.holders, idle)
	case n.holders == 0 && keys == 0:
		return nil, fmt.Errorf("name %x has neither keys nor holders", uint64(n.hash))
	case r.s.names.Get(n.hash) != 0:
		return nil, fmt.Errorf("name %x is repeated", uint64(n.hash))
	}
	return n, nil
}

func (r *restorer) copyRecord() (c copyRecord, err error) {
	number, flags := r.Byte(), r.Byte()
	c = copyRecord{ln: r.lanes[number], copies: r.Uint32(), reported: flags&copyReported != 0, chained: flags&copyChained != 0}
	if c.chained {
		c.parent = Hash(r.Uint64())
	}
	switch {
	case r.Short:
	case c.ln == nil:
		err = fmt.Errorf("lane %d, which is not there", number)
	case c.copies == 0 && !c.reported || c.reported && c.ln.tier != TierGPU:
		err = fmt.Errorf("%d copies in tier %v, reported: %v", c.copies, c.ln.tier, c.reported)
	}
	return c, err
}

// evict removes the evicted parts of a name, as source.bury does, and returns true if nothing
// is left.
func (r *restorer) evict(n *richRecord, room bool) bool {
	var gone []Variant
	left := 0
	ambiguous := false
	for i, k := range n.keys {
		if k.loc != 0 {
			left++
		} else {
			gone = append(gone, r.g.variants[k.variant])
		}
		ambiguous = ambiguous || slices.ContainsFunc(n.keys[:i], func(o richKey) bool { return o.variant == k.variant })
	}
	if room && len(gone) == 0 {
		return false
	}
	whole := !room || left == 0 || ambiguous
	n.keys = slices.DeleteFunc(n.keys, func(k richKey) bool { return k.loc == 0 })
	n.copies = slices.DeleteFunc(n.copies, func(c copyRecord) bool {
		if !whole && !slices.Contains(gone, c.ln.group.cutOf(c.ln).variant) {
			return false
		}
		r.s.doubts = true
		if c.copies > 0 {
			n.holders--
			r.lose(c.ln)
		}
		return true
	})
	return whole
}

// build makes a rich name.
func (r *restorer) build(of *richRecord) error {
	s := r.s
	n := s.name(of.hash)
	n.enrich()
	for _, k := range of.keys {
		s.f.Ref(k.loc)
		n.addKey(k.loc)
	}
	if of.holders > 0 && !n.claimKeys() { // too many names, or no room to record them
		for _, c := range of.copies {
			if c.copies > 0 {
				r.lose(c.ln)
			}
		}
		n.forget()
		return nil
	}
	hidden := false
	for _, c := range slices.Backward(of.copies) {
		rich := n.rich()
		rich.first = s.copies.take(copyCount{
			parent: c.parent, copies: c.copies, next: rich.first, lane: c.ln.number, chained: c.chained, reported: c.reported,
		})
		if c.copies == 0 {
			c.ln.hidden++
			s.lanes.note(c.ln, of.hash)
			hidden = true
			continue
		}
		rich.holders++
		s.lanes.gain(c.ln, of.hash)
		for _, k := range of.keys {
			s.f.Hold(k.loc, c.ln.ord)
		}
	}
	for _, k := range of.keys {
		if hidden {
			n.hide(k.loc)
			at := s.hidden.names.at(k.loc)
			at.many = at.many || k.several
		}
	}
	if of.holders == 0 {
		i := s.idle.push(idleName{hash: of.hash})
		n.rich().idle = i
		r.becameIdle(i, of.order, of.since)
	}
	n.simplify()
	return nil
}
