package index

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// The checks of the promises in the comments of the structures. They read everything, and
// run after each change with the build tag invariants.

// check returns an error if a structure of m breaks a promise. The caller keeps sources from
// coming and going. check waits for those that write.
func (m *memory) check() error {
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
	u := g.forest.Usage()
	taken := g.ownBytes() + u.Keys + u.Heads + u.Holders
	var total tally
	for _, s := range sources {
		if err := (&sourceCheck{s, held, refs}).all(); err != nil {
			return fmt.Errorf("%v: %w", s.id, err)
		}
		taken += s.nameBytes() + s.ownBytes() + s.waits.bytes()
		total.add(&s.tenant.reported)
		for _, ln := range s.lanes.all {
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
	if len(g.graves)+g.dead > 0 { // their bytes are not counted here
		return nil
	}
	if int64(taken) != g.mem.Load() {
		return fmt.Errorf("%d bytes are taken, counted %d", taken, g.mem.Load())
	}
	if total != g.total {
		return fmt.Errorf("the sources reported %+v, counted %+v", total, g.total)
	}
	if g.dumping { // notes keep slabs
		return nil
	}
	return g.forest.Check(held, refs)
}

// sourceCheck checks a source. It adds to held and refs the holdings and the references of
// its names.
type sourceCheck struct {
	s    *source
	held map[forest.Holding]uint32
	refs map[uint32]uint32
}

// all checks everything.
func (c *sourceCheck) all() error {
	s, refs := c.s, c.refs
	type tally struct{ blocks, hidden int }
	lanes := make(map[uint32]tally)
	hidden := make(map[loc]int32)  // names
	plain := make(map[loc]Hash)    // names that may not share their key
	claims := make(map[loc][]Hash) // names that hold something
	idle, keyless, n := 0, 0, 0
	riches, copies, more := 0, 0, 0
	var err error
	fail := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	listed := func(ln *lane, h Hash) {
		if !ln.many && !slices.Contains(ln.few, h) {
			fail("name %d is not among the few of lane %d", h, ln.number)
		}
	}
	hold := func(l loc, ln *lane) { c.held[forest.Holding{Slab: l.Slab(), Ord: ln.ord}] |= 1 << l.Slot() }
	s.names.Each(func(h Hash, v value) {
		n++
		var buf [2]loc
		nm := name{s, h, v}
		keys := nm.locs(&buf)
		for i, l := range keys {
			refs[l.Slab()]++
			keys[i] = s.f.Here(l)
		}
		switch {
		case v.isPlain():
			l := keys[0]
			if o, ok := plain[l]; ok {
				fail("names %d and %d are plain and have one key", h, o)
			}
			plain[l] = h
			claims[l] = append(claims[l], h)
			if !s.lanes.holdsAt(l) {
				fail("name %d is plain and nobody holds it", h)
			}
			for _, ln := range s.lanes.all {
				if ln != nil && s.f.Holds(l, ln.ord) {
					hold(l, ln)
					listed(ln, h)
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
			riches++
			more += max(len(keys)-2, 0)
			holders := uint32(0)
			for i := r.first; i != 0; {
				c := s.copies.at(i)
				copies++
				ln := s.lanes.all[c.lane]
				listed(ln, h)
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
			for _, l := range keys {
				if holders > 0 {
					claims[l] = append(claims[l], h)
				}
			}
		}
	})
	if err != nil {
		return err
	}
	for l, n := range hidden {
		if at := s.hidden.names.at(l); at == nil || at.n != n || n > 1 && !at.many {
			return fmt.Errorf("%d names with the key at %d are hidden, counted %+v", n, l, at)
		}
	}
	if n := s.hidden.names.len(); n != len(hidden) || (n == 0) != (s.hidden.names == nil) {
		return fmt.Errorf("%d keys are hidden, counted %d", len(hidden), n)
	}
	if riches != s.riches.len() || copies != s.copies.len() || more != s.more.len() {
		return fmt.Errorf("%d rich names, %d copies, %d further keys; there are %d, %d, %d",
			riches, copies, more, s.riches.len(), s.copies.len(), s.more.len())
	}
	if err := c.shared(claims); err != nil {
		return err
	}
	for l, h := range plain {
		if of := claims[l]; len(of) > 1 {
			return fmt.Errorf("name %d is plain and shares its key with %v", h, of)
		}
	}
	var blocks [NumTiers]int
	for i, ln := range s.lanes.all {
		if ln == nil {
			continue
		}
		t := lanes[ln.number]
		blocks[ln.tier] += t.blocks
		if int(ln.number) != i || t.blocks != ln.blocks || t.hidden != ln.hidden || ln.age >= oldest || ln.age > 0 && ln.tier == TierGPU || s.lanes.group(ln.group.ID) != ln.group ||
			!slices.Contains(ln.group.lanes[ln.tier], ln) {
			return fmt.Errorf("lane %d is %+v, counted %+v", i, ln, t)
		}
		delete(lanes, ln.number)
	}
	for i := range lanes {
		return fmt.Errorf("blocks are held in lane %d, which is gone", i)
	}
	if blocks != s.lanes.blocks || n != s.names.Len() || keyless != s.keyless {
		return fmt.Errorf("%d names, %d without keys, and blocks %v, counted %d, %d and %v", n, keyless, blocks, s.names.Len(), s.keyless, s.lanes.blocks)
	}
	queued, last := 0, uint32(0)
	for i := s.idle.first; i != 0; i = s.idle.at(i).next {
		if queued++; s.idle.at(i).prev != last {
			return errors.New("the idle names are not in a row")
		}
		last = i
	}
	if queued != idle || queued != s.idle.len() || last != s.idle.last || queued > s.cfg.idleNames {
		return fmt.Errorf("%d idle names, %d of them queued", idle, queued)
	}
	if err := c.bytes(); err != nil {
		return err
	}
	return c.pending()
}

// shared compares the names by shared key with the names that hold each key.
func (c *sourceCheck) shared(claims map[loc][]Hash) error {
	s := c.s
	several, noted := 0, 0
	for l, want := range claims {
		if len(want) > 1 {
			several++
		}
		if s.shared.names == nil {
			continue
		}
		var got []Hash
		if of := s.shared.names.at(l); of != nil {
			got = append(got, of.hash)
			for i := of.next; i != 0; i = s.shared.names.things.at(i).next {
				got = append(got, s.shared.names.things.at(i).hash)
			}
		}
		noted += len(got)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			return fmt.Errorf("the names %v hold the key at %d, noted %v", want, l, got)
		}
	}
	if several != s.shared.keys || several > 0 && s.shared.names == nil || s.shared.names != nil && (s.shared.names.len() != len(claims) || s.shared.names.things.len() != noted) {
		return fmt.Errorf("%d of %d keys are shared, noted %d", several, len(claims), s.shared.keys)
	}
	return nil
}

// bytes checks the structures of s, and their counts of bytes.
func (c *sourceCheck) bytes() error {
	s := c.s
	for _, of := range []interface{ check() error }{&s.riches, &s.copies, &s.more, &s.idle, &s.waiters, s.shared.names, s.hidden.names} {
		if err := of.check(); err != nil {
			return err
		}
	}
	return s.names.Check()
}

// pending checks the stores that wait.
func (c *sourceCheck) pending() error {
	s := c.s
	cost, stores, waiting, waiters := 0, 0, 0, 0
	waits := map[Hash]bool{}
	for p := s.waits.oldest; p != nil; p = p.newer {
		if stores++; s.waits.slots[p.number].p != p || p.newer == nil && p != s.waits.newest || p.newer != nil && p.newer.older != p {
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
		if p.parked && !p.waits || p.waits != slices.Contains(s.waits.allFor(p.parent), p) {
			return fmt.Errorf("a parked store does not wait for its parent %v", p.parent)
		}
	}
	if waiters != s.waiters.len() || stores != s.waits.n {
		return fmt.Errorf("%d waiters of %d stores, counted %d and %d", waiters, stores, s.waiters.len(), s.waits.n)
	}
	if cost != s.waits.cost || cost > s.cfg.pendingBytes {
		return fmt.Errorf("pending stores cost %d, counted %d", cost, s.waits.cost)
	}
	var err error
	if waiting != s.waits.behind {
		return fmt.Errorf("%d stores wait for a parent, counted %d", waiting, s.waits.behind)
	}
	s.waits.eachParent(func(first uint32) {
		last := uint32(0)
		for i := first; i != 0; i = s.waits.slots[i].p.nextWait {
			p := s.waits.slots[i].p
			if waiting--; !p.waits || p.prevWait != last {
				err = fmt.Errorf("a store that waits for %v is behind %d", p.parent, last)
			}
			if l, n := s.locOf(p.parent); n > 0 && !s.f.Dead(l) {
				err = fmt.Errorf("a store waits for %v, which has a key", p.parent)
			}
			last = i
		}
		if s.waits.slots[first].p.lastWait != last {
			err = fmt.Errorf("the last of those that wait is %d, noted %d", last, s.waits.slots[first].p.lastWait)
		}
	})
	if err != nil || waiting != 0 {
		return fmt.Errorf("%d stores more that wait than waiting ones; %w", waiting, err)
	}
	s.names.Each(func(h Hash, _ value) {
		if s.unplaced(h) && !waits[h] {
			err = fmt.Errorf("name %d is held, has no key, and is in no bounded queue", h)
		}
	})
	return err
}

// waiterOf returns the waiter of a store at a name; nil: there is none.
func (n *name) waiterOf(p *waitingStore) *waiter {
	if !n.isRich() {
		return nil
	}
	for i := n.rich().waits; i != 0; {
		w := n.s.waiters.at(i)
		if n.s.waits.slots[w.store].p == p {
			return w
		}
		i = w.next
	}
	return nil
}

// allFor returns the stores that wait for a hash.
func (q *storeQueue) allFor(at variantHash) (of []*waitingStore) {
	for p := q.next(at); p != nil; p = q.slots[p.nextWait].p {
		of = append(of, p)
	}
	return of
}
