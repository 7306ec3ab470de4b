package index

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// The checks of what the comments of the structures promise. They look at
// everything, and run after each change with the build tag invariants.

// slabHolder is a holder of slots of a slab.
type slabHolder struct {
	slab, ord uint32
}

// check returns what is wrong in md. The caller keeps sources from coming and
// going; those that write are waited for.
func (md *model) check() error {
	var sources []*source
	md.pods.Range(func(_, p any) bool {
		sources = append(sources, *p.(*podSources).list.Load()...)
		return true
	})
	for _, s := range sources {
		s.writer.Lock()
		defer s.writer.Unlock()
	}
	md.mu.Lock()
	defer md.mu.Unlock()
	held := make(map[slabHolder]uint32)
	refs := make(map[uint32]uint32)
	ords := make(map[uint32]string)
	for _, s := range sources {
		if err := s.check(held, refs); err != nil {
			return fmt.Errorf("%v: %w", s.id, err)
		}
		for _, ln := range s.lanes {
			if ln == nil {
				continue
			}
			if ords[ln.ord] != "" {
				return fmt.Errorf("ordinal %d is taken twice, by %s", ln.ord, ords[ln.ord])
			}
			ords[ln.ord] = fmt.Sprint(s.id)
		}
	}
	for _, ord := range md.forest.ords.free {
		if ords[ord] != "" {
			return fmt.Errorf("ordinal %d is free, and taken by %s", ord, ords[ord])
		}
	}
	if len(md.graves)+md.dead > 0 { // what is left of those is not counted
		return nil
	}
	return md.forest.check(held, refs)
}

func (f *forest) check(held map[slabHolder]uint32, refs map[uint32]uint32) error {
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
	at := make(map[Key]loc)
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
			refs[m.parent.slab()]++
			if p := m.parent; gone[p.slab()] || p.slot() >= f.meta(p.slab()).load().written() {
				return fmt.Errorf("slab %d is behind %d of slab %d, which is not there", id, p.slot(), p.slab())
			}
		}
		keys := f.keys(id)
		if got := f.heads.find(f, Key(keys[0])); got != id {
			return fmt.Errorf("slab %d is not found by its key, but %d", id, got)
		}
		slots += h.written()
		for i := range h.written() {
			if o, ok := at[Key(keys[i])]; ok {
				return fmt.Errorf("key %x is at %d of slab %d and at %d of slab %d", keys[i], o.slot(), o.slab(), i, id)
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
			return fmt.Errorf("slab %d does not say that %d holds %b", h.slab, h.ord, mask)
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
func (f *forest) checkHolders(id uint32, h header, held map[slabHolder]uint32) error {
	var err error
	n, seen := 0, make(map[uint32]bool)
	each := func(ord, mask uint32) {
		n++
		at := slabHolder{id, ord}
		switch {
		case seen[ord]:
			err = fmt.Errorf("holder %d is there twice", ord)
		case mask == 0 || bits.Len32(mask) > h.written():
			err = fmt.Errorf("holder %d has %b of %d slots", ord, mask, h.written())
		case held[at] != mask:
			err = fmt.Errorf("holder %d has %b, want %b", ord, mask, held[at])
		case f.maskOf(id, ord) != mask:
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

// check adds to held and refs what the names of s stand for, and returns what
// is wrong with them.
func (s *source) check(held map[slabHolder]uint32, refs map[uint32]uint32) error {
	type tally struct{ blocks, hidden int }
	lanes := make(map[uint32]tally)
	plain := make(map[loc]Hash) // names that may not share their key
	idle, n := 0, 0
	var err error
	fail := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	hold := func(l loc, ln *laneState) { held[slabHolder{l.slab(), ln.ord}] |= 1 << l.slot() }
	s.names.each(func(h Hash, v value) {
		n++
		var buf [2]loc
		keys := s.keysOf(h, v, &buf)
		for _, l := range keys {
			refs[l.slab()]++
		}
		switch {
		case v.plain():
			l := loc(v)
			if o, ok := plain[l]; ok {
				fail("names %d and %d are plain and have one key", h, o)
			}
			plain[l] = h
			if !s.holdsAt(l) {
				fail("name %d is plain and nobody holds it", h)
			}
			for _, ln := range s.lanes {
				if ln != nil && s.hasBit(l, ln) {
					hold(l, ln)
					t := lanes[ln.number]
					t.blocks++
					lanes[ln.number] = t
				}
			}
		case v.isIdle():
			idle++
			if e := s.idle.at(v.number()); e.hash != h || e.loc == 0 {
				fail("name %d is idle as %d at %d", h, e.hash, e.loc)
			}
		default:
			r := s.riches.at(v.number())
			holders := uint32(0)
			for i := r.first; i != 0; {
				c := s.copies.at(i)
				ln := s.lanes[c.lane]
				t := lanes[c.lane]
				if c.copies > 0 {
					holders++
					t.blocks++
					for _, l := range keys {
						hold(l, ln)
					}
				} else {
					t.hidden++
					if !c.reported || c.lane != ln.number || ln.tier != TierGPU {
						fail("name %d: no copies, and not hidden: %+v", h, c)
					}
				}
				lanes[c.lane] = t
				i = c.next
			}
			if holders == 0 {
				idle++
			}
			switch {
			case r.hash != h || r.holders != holders:
				fail("name %d has %d holders, counted %d as %d", h, holders, r.holders, r.hash)
			case (r.idle != 0) != (holders == 0) || r.idle != 0 && s.idle.at(r.idle).hash != h:
				fail("name %d has %d holders and the idle entry %d", h, holders, r.idle)
			case holders == 0 && len(keys) == 0:
				fail("name %d has neither keys nor holders", h)
			}
			if holders > 0 && s.shared != nil {
				for _, l := range keys {
					if at := s.shared[l]; at.one != h && !slices.Contains(at.more, h) {
						fail("name %d is not among those that share its key", h)
					}
				}
			}
		}
	})
	if err != nil {
		return err
	}
	for l, h := range plain {
		if at := s.shared[l]; s.shared != nil && (at.one != h || len(at.more) > 0) {
			return fmt.Errorf("name %d is plain and shares its key with %v", h, at)
		}
	}
	var blocks [NumTiers]int
	for i, ln := range s.lanes {
		if ln == nil {
			continue
		}
		t := lanes[ln.number]
		blocks[ln.tier] += t.blocks
		if int(ln.number) != i || t.blocks != ln.blocks || t.hidden != ln.hidden || s.groups[ln.group.ID] != ln.group ||
			!slices.Contains(ln.group.lanes[ln.tier], ln) {
			return fmt.Errorf("lane %d is %+v, counted %+v", i, ln, t)
		}
		delete(lanes, ln.number)
	}
	for i := range lanes {
		return fmt.Errorf("blocks are held in lane %d, which is gone", i)
	}
	if blocks != s.blocks || n != s.names.n {
		return fmt.Errorf("%d names and blocks %v, counted %d and %v", n, blocks, s.names.n, s.blocks)
	}
	queued, last := 0, uint32(0)
	for i := s.idleFirst; i != 0; i = s.idle.at(i).next {
		if queued++; s.idle.at(i).prev != last {
			return errors.New("the idle names are not in a row")
		}
		last = i
	}
	if queued != idle || queued != s.idle.len() || last != s.idleLast || queued > s.cfg.IdleNames {
		return fmt.Errorf("%d idle names, %d of them queued", idle, queued)
	}
	return s.checkPending()
}

func (s *source) checkPending() error {
	cost, parked := 0, 0
	waits := map[Hash]bool{}
	for e := s.pending.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pending)
		cost += p.cost()
		for _, h := range p.hashes {
			waits[h] = true
		}
		if p.locals == nil {
			continue
		}
		parked++
		if !slices.Contains(s.waiting[p.parent], p) {
			return fmt.Errorf("a parked store does not wait for its parent %v", p.parent)
		}
	}
	if cost != s.pendingBytes || cost > s.cfg.PendingBytes {
		return fmt.Errorf("pending stores cost %d, counted %d", cost, s.pendingBytes)
	}
	for at, of := range s.waiting {
		parked -= len(of)
		if len(of) == 0 {
			return fmt.Errorf("nobody waits for %v", at)
		}
		if _, ok := s.locOf(at); ok {
			return fmt.Errorf("a store waits for %v, which has a key", at)
		}
	}
	if parked != 0 {
		return fmt.Errorf("%d parked stores more than waiting ones", parked)
	}
	var err error
	s.names.each(func(h Hash, _ value) {
		if s.unplaced(h) && !waits[h] {
			err = fmt.Errorf("name %d is held, has no key, and is in no bounded queue", h)
		}
	})
	return err
}
