package index

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// The checks of what the comments of the structures promise. They look at
// everything, and run after each change with the build tag invariants.

// check returns what is wrong in m. The caller keeps sources from coming and
// going; those that write are waited for.
func (m *Memory) check() error {
	var sources []*source
	for _, md := range *m.models.Load() {
		md.pods.Range(func(_, p any) bool {
			sources = append(sources, *p.(*podSources).list.Load()...)
			return true
		})
	}
	for _, s := range sources {
		s.writer.Lock()
		defer s.writer.Unlock()
	}
	g := m.ground
	g.mu.Lock()
	defer g.mu.Unlock()
	held := make(map[forest.Holding]uint32)
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
	if err := g.forest.CheckOrdinals(func(ord uint32) bool { return ords[ord] != "" }); err != nil {
		return err
	}
	if len(g.graves)+g.dead > 0 { // what is left of those is not counted
		return nil
	}
	return g.forest.Check(held, refs)
}

// check adds to held and refs what the names of s stand for, and returns what
// is wrong with them.
func (s *source) check(held map[forest.Holding]uint32, refs map[uint32]uint32) error {
	type tally struct{ blocks, hidden int }
	lanes := make(map[uint32]tally)
	hidden := make(map[loc]int32) // names
	plain := make(map[loc]Hash)   // names that may not share their key
	idle, keyless, n := 0, 0, 0
	var err error
	fail := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	hold := func(l loc, ln *lane) { held[forest.Holding{Slab: l.Slab(), Ord: ln.ord}] |= 1 << l.Slot() }
	s.names.Each(func(h Hash, v value) {
		n++
		var buf [2]loc
		nm := name{s, h, v}
		keys := nm.locs(&buf)
		for _, l := range keys {
			refs[l.Slab()]++
		}
		switch {
		case v.isPlain():
			l := loc(v)
			if o, ok := plain[l]; ok {
				fail("names %d and %d are plain and have one key", h, o)
			}
			plain[l] = h
			if !s.holdsAt(l) {
				fail("name %d is plain and nobody holds it", h)
			}
			for _, ln := range s.lanes {
				if ln != nil && s.f.Holds(l, ln.ord) {
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
			if nm.isHiddenExcept(0) {
				for _, l := range keys {
					hidden[l]++
				}
			}
			if holders == 0 {
				idle++
			}
			if len(keys) == 0 {
				keyless++
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
	for l, at := range s.hidden {
		if at.n != hidden[l] || at.n > 1 && !at.many {
			return fmt.Errorf("%d names with the key at %d are hidden, counted %+v", hidden[l], l, at)
		}
		delete(hidden, l)
	}
	if len(hidden) > 0 {
		return fmt.Errorf("names are hidden that are not counted: %v", hidden)
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
	if blocks != s.blocks || n != s.names.Len() || keyless != s.keyless {
		return fmt.Errorf("%d names, %d without keys, and blocks %v, counted %d, %d and %v", n, keyless, blocks, s.names.Len(), s.keyless, s.blocks)
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
	cost, stores, waiting, waiters := 0, 0, 0, 0
	waits := map[Hash]bool{}
	for p := s.oldest; p != nil; p = p.newer {
		if stores++; *s.stores.at(p.number) != p || p.newer == nil && p != s.newest || p.newer != nil && p.newer.older != p {
			return fmt.Errorf("a store that waits is not where its number is, or its neighbours: %v", p.hashes)
		}
		cost += p.cost()
		for _, h := range p.hashes {
			waits[h] = true
		}
		if p.looked {
			return fmt.Errorf("a masked store is to be looked at after the Apply: %v", p.hashes)
		}
		for i, h := range p.hashes {
			n := s.name(h)
			w := n.waiterOf(p)
			if want := (p.parked || p.need > 0) && !p.isVoid(i); (w != nil) != want || w != nil && p.riches[i] != n.number() {
				return fmt.Errorf("hash %d of a store that waits has the waiter %+v, want one: %v", h, w, want)
			}
			if first := slices.Index(p.hashes, h); w != nil && (int(w.i) != first || i > first && !w.again) {
				return fmt.Errorf("hash %d of a store that waits has the waiter %+v, and stands at %d and %d", h, w, first, i)
			} else if w != nil && i == first {
				waiters++
			}
		}
		if p.waits {
			waiting++
		}
		if p.parked && !p.waits || p.waits != slices.Contains(s.waiting[p.parent], p) {
			return fmt.Errorf("a parked store does not wait for its parent %v", p.parent)
		}
	}
	if waiters != s.waiters.len() || stores != s.stores.len() {
		return fmt.Errorf("%d waiters of %d stores, counted %d and %d", waiters, stores, s.waiters.len(), s.stores.len())
	}
	if cost != s.pendingBytes || cost > s.cfg.PendingBytes {
		return fmt.Errorf("pending stores cost %d, counted %d", cost, s.pendingBytes)
	}
	for at, of := range s.waiting {
		waiting -= len(of)
		if len(of) == 0 {
			return fmt.Errorf("nobody waits for %v", at)
		}
		if _, n := s.locOf(at); n > 0 {
			return fmt.Errorf("a store waits for %v, which has a key", at)
		}
	}
	if waiting != 0 {
		return fmt.Errorf("%d stores more that wait than waiting ones", waiting)
	}
	var err error
	s.names.Each(func(h Hash, _ value) {
		if s.unplaced(h) && !waits[h] {
			err = fmt.Errorf("name %d is held, has no key, and is in no bounded queue", h)
		}
	})
	return err
}

// waiterOf returns the waiter of a store at a name; nil: there is none.
func (n *name) waiterOf(p *pending) *waiter {
	if !n.isRich() {
		return nil
	}
	for i := n.rich().waits; i != 0; {
		w := n.s.waiters.at(i)
		if *n.s.stores.at(w.store) == p {
			return w
		}
		i = w.next
	}
	return nil
}
