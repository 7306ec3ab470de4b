package index

import (
	"errors"
	"fmt"
)

// restoredStore is a store that waits.
type restoredStore struct {
	p     *waitingStore
	void  []bool // by hash
	waits bool
}

// store reads a store without its hashes and locals.
func (r *restorer) store() error {
	id := int(r.Byte())
	p := &waitingStore{tier: Tier(r.Byte())}
	p.parked = r.Bool()
	st := restoredStore{p: p, waits: r.Bool()}
	p.blind, p.since, p.parent.hash = r.Bool(), r.Uint32(), Hash(r.Uint64())
	by, ok := r.cut()
	variant, need, units := int(r.Byte()), r.Uvarint(), r.Uvarint()
	p.fromRoot, p.root = r.Bool(), Key(r.Uint64())
	if r.Short {
		return nil
	}
	p.cut, p.need, p.units = by, int(min(need, 1<<30)), int(min(units, 1<<30))
	if p.group = r.s.lanes.group(id); p.group == nil || p.tier >= NumTiers || !ok || variant >= len(r.numbers) {
		return fmt.Errorf("a store of group %d, tier %v, blocks of %+v, variant %d waits", id, p.tier, by, variant)
	}
	p.parent.variant = r.numbers[variant]
	r.stores = append(r.stores, st)
	return nil
}

func (r *restorer) hashes() error {
	if len(r.stores) == 0 {
		return errors.New("hashes of no store")
	}
	st := &r.stores[len(r.stores)-1]
	for n := r.Uvarint(); n > 0 && !r.Short; n-- {
		st.p.hashes = append(st.p.hashes, Hash(r.Uint64()))
		st.void = append(st.void, r.Bool())
	}
	return nil
}

func (r *restorer) locals() error {
	if len(r.stores) == 0 {
		return errors.New("locals of no store")
	}
	st := &r.stores[len(r.stores)-1]
	for n := r.Uvarint(); n > 0 && !r.Short; n-- {
		st.p.locals = append(st.p.locals, Local(r.Uint64()))
	}
	return nil
}

// fits reports whether the store can wait.
func (st *restoredStore) fits() bool {
	p, units := st.p, 0
	if len(p.hashes) == 0 {
		return false
	}
	if p.parked || p.need > 0 {
		if p.tier != TierGPU || p.cut == (cut{}) {
			return false
		}
		if units = p.cut.size / p.cut.variant.Unit; units > MaxBlockUnits {
			return false
		}
	}
	switch {
	case p.parked:
		return st.waits && p.need == 0 && len(p.locals) == len(p.hashes)*units
	case p.need > 0:
		return p.need == p.group.runBlocks(p.cut.size) && p.units%units == 0 && len(p.hashes) < p.units/units &&
			(len(p.locals) == p.units || len(p.locals) == 0 && !st.waits)
	}
	return !st.waits && len(p.locals) == 0
}

// queue adds a store to those that wait.
func (r *restorer) queue(st *restoredStore) error {
	s, p := r.s, st.p
	if !st.fits() {
		return fmt.Errorf("a store of %d hashes and %d locals cannot wait: %+v", len(p.hashes), len(p.locals), *p)
	}
	since := p.since
	if p.parked || p.need > 0 {
		p.riches = make([]uint32, len(p.hashes))
	}
	if p.parked {
		s.waits.parked++
	}
	r.relieve(nil, func() bool { return r.g.pages() > int64(p.cost()) })
	s.waits.push(p)
	p.since = since
	first := make(map[Hash]bool)
	for i, h := range p.hashes {
		void, again := first[h]
		if !again {
			void = st.void[i]
			first[h] = void
		}
		if p.riches != nil && !void {
			s.waits.enlist(p, i)
		}
	}
	return nil
}

// wait begins the wait of stores for their parents.
func (r *restoredSource) wait() error {
	s := r.s
	for _, i := range r.waits {
		if int(i) >= len(r.stores) || !r.stores[i].waits || r.stores[i].p.waits {
			return fmt.Errorf("store %d of %d waits", i, len(r.stores))
		}
		p := r.stores[i].p
		if p.number == 0 {
			continue // it was dropped
		}
		if l, n := s.locOf(p.parent); n > 0 && !s.f.Dead(l) {
			return fmt.Errorf("store %d waits for %x, which is there", i, uint64(p.parent.hash))
		}
		s.waits.wait(p)
	}
	for i := range r.stores {
		if st := &r.stores[i]; st.waits != st.p.waits && st.p.number != 0 {
			return fmt.Errorf("store %d waits for nothing", i)
		}
	}
	return nil
}
