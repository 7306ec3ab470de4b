package index

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// restoredSource is the source that is read.
type restoredSource struct {
	s        *source // nil: no source is read
	clock    uint32
	expected uint64 // the number of names in the snapshot
	names    uint64
	lanes    [maxLanes]*lane
	sets     [][]*lane
	order    []uint32 // of idle names, by their number in source.idle
	stores   []restoredStore
	waits    []uint32 // of stores, in the order in which they wait

	// Plain names that are looked up together.
	plain       []plainRecord
	plainHashes []Hash
	placed      []loc // their places
}

// source reads the beginning of a source.
func (r *restorer) source() error {
	r.Byte()
	id := Source{Pod: r.Text(), Model: r.Text(), Rank: r.Int()}
	if r.Short {
		return errors.New("a source is cut off")
	}
	if md := (*r.m.models.Load())[id.Model]; md != nil && md.source(id) != nil {
		return fmt.Errorf("pod %q, model %q, rank %d is repeated", id.Pod, id.Model, id.Rank)
	}
	s, err := r.m.source(id)
	if err != nil {
		return err
	}
	s.locked(func() { err = r.head(s) })
	if err != nil {
		return fmt.Errorf("pod %q, model %q, rank %d: %w", id.Pod, id.Model, id.Rank, err)
	}
	r.s = s
	r.sets, r.order, r.names = nil, nil, 0
	r.stores, r.waits = nil, nil
	return nil
}

// head reads a source without its names.
func (r *restorer) head(s *source) error {
	r.clock, s.cleared = r.Uint32(), r.Uint32()
	r.expected = r.Uvarint()
	s.evicted, s.doubts = r.Uvarint(), r.Bool()
	r.f.SetNow(r.clock)
	words := s.counts.words()[:keptCounts]
	for i := range words {
		words[i] = r.Uvarint()
	}
	if err := r.cursors(s); err != nil {
		return err
	}
	if err := r.readVariants(); err != nil {
		return err
	}
	for n := r.Byte(); n > 0 && !r.Short; n-- {
		if err := r.group(s); err != nil {
			return err
		}
	}
	if err := r.readLanes(s); err != nil {
		return err
	}
	if r.Short {
		return errors.New("it is cut off")
	}
	if len(s.lanes.groups) > 0 {
		s.publish()
	}
	s.tenant.report()
	return nil
}

func (r *restorer) cursors(s *source) error {
	for n := r.Uvarint(); n > 0 && !r.Short; n-- {
		c := Cursor{Stream: r.Text(), Epoch: r.Uvarint(), Next: r.Uvarint()}
		c.Time, c.Digest = math.Float64frombits(r.Uint64()), r.Uint64()
		i, ok := s.cursors.find(c.Stream)
		switch {
		case r.Short:
			return nil
		case ok || i < len(s.cursors.all):
			return fmt.Errorf("the cursor of stream %q is not behind the others", c.Stream)
		case !r.relieve(nil, func() bool { return r.g.pages()+r.g.admits > int64(s.cursors.growth(c.Stream)) }):
			return r.g.errFull(s.id, fmt.Sprintf(", stream %q", c.Stream))
		}
		s.cursors.insert(i, c.Stream)
		c.Stream = s.cursors.all[i].Stream
		s.cursors.all[i] = c
	}
	return nil
}

// readVariants reads the variants of the snapshot up to this source.
func (r *restorer) readVariants() error {
	n := int(r.Byte())
	if n < len(r.variants) || n > forest.MaxVariants {
		return fmt.Errorf("%d variants behind %d", n, len(r.variants))
	}
	for i := range n {
		v := r.variant()
		switch {
		case r.Short:
			return nil
		case i < len(r.variants) && v != r.variants[i]:
			return fmt.Errorf("variant %d is %v and %v", i, v, r.variants[i])
		case i < len(r.variants):
			continue
		case slices.Contains(r.variants, v):
			return fmt.Errorf("variant %v is repeated", v)
		}
		number, ok := r.g.variant(v)
		if !ok {
			return fmt.Errorf("more than %d variants", forest.MaxVariants)
		}
		r.variants, r.numbers = append(r.variants, v), append(r.numbers, number)
	}
	return nil
}

func (r *restorer) group(s *source) error {
	of := Group{ID: int(r.Byte()), Kind: GroupKind(r.Byte()), Window: r.Int(), Draft: r.Bool()}
	declared, uncounted := r.Bool(), r.Bool()
	by, ok := r.cut()
	grain := r.Int()
	switch {
	case r.Short:
		return nil
	case of.ID >= MaxGroups || len(s.lanes.groups) > 0 && of.ID <= s.lanes.groups[len(s.lanes.groups)-1].ID || of.Kind > GroupOther:
		return fmt.Errorf("group %+v", of)
	case !ok || grain < 0 || grain > by.size:
		return fmt.Errorf("group %d has blocks of %+v, and of %d tokens", of.ID, by, grain)
	}
	g := s.lanes.newGroup(of)
	g.declared, g.uncounted, g.cut, g.grain = declared, uncounted, by, grain
	return nil
}

func (r *restorer) readLanes(s *source) error {
	r.lanes = [maxLanes]*lane{}
	for n := r.Uvarint(); n > 0 && !r.Short; n-- {
		number, group, b := r.Byte(), int(r.Byte()), r.Byte()
		t, age := Tier(b&(1<<ageShift-1)), b>>ageShift
		by, ok := r.cut()
		lost := r.Bool()
		switch {
		case r.Short:
			return nil
		case group >= len(s.lanes.groups) || t >= NumTiers || age >= oldest || age > 0 && t == TierGPU || !ok || r.lanes[number] != nil || !s.lanes.fits(by):
			return fmt.Errorf("lane %d of group %d, tier %v, age %d, blocks of %+v", number, group, t, age, by)
		}
		ln := s.lanes.add(s.lanes.groups[group], t, by)
		if ln == nil {
			return errors.New("there are too many lanes")
		}
		ln.age = age
		r.lanes[number] = ln
		if lost {
			r.f.Lose(ln.ord)
		}
	}
	return nil
}

// done reads the end of a source.
func (r *restorer) done() error {
	s := r.s
	count, evicted, doubts := r.Uvarint(), r.Uvarint(), r.Bool()
	n := r.Uvarint()
	if n > maxLanes {
		return fmt.Errorf("%d lanes", n)
	}
	lost := r.Take(int(n))
	switch {
	case r.Short:
		return nil
	case count != r.names:
		return fmt.Errorf("%d names, but the count is %d", r.names, count)
	}
	s.evicted += evicted
	s.doubts = s.doubts || doubts
	for _, number := range lost[:n] {
		if r.lanes[number] == nil {
			return fmt.Errorf("lane %d, which is not there", number)
		}
		r.f.Lose(r.lanes[number].ord)
	}
	r.sortIdle()
	r.order = nil
	for i := range r.stores {
		if err := r.queue(&r.stores[i]); err != nil {
			return err
		}
	}
	if err := r.wait(); err != nil {
		return err
	}
	if err := r.allWait(); err != nil {
		return err
	}
	for s.waits.cost > s.cfg.pendingBytes {
		s.waits.drop(s.waits.oldest)
	}
	s.forgetIdle(s.cfg.idleNames, s.idle.len())
	s.tenant.report()
	r.s = nil
	r.sources++
	return nil
}

// allWait returns an error if a block is held without a key, and no store of its group and
// tier that waits has it: nothing would release it.
func (r *restoredSource) allWait() (err error) {
	s := r.s
	if s.keyless == 0 {
		return nil
	}
	type block struct {
		hash  Hash
		group *group
		tier  Tier
	}
	waits := make(map[block]bool)
	for p := s.waits.oldest; p != nil; p = p.newer {
		for _, h := range p.hashes {
			waits[block{h, p.group, p.tier}] = true
		}
	}
	s.names.Each(func(h Hash, v value) {
		n := name{s, h, v}
		if !n.unplaced() {
			return
		}
		for i := n.rich().first; i != 0; i = s.copies.at(i).next {
			c := s.copies.at(i)
			if ln := s.lanes.all[c.lane]; c.copies > 0 && !waits[block{h, ln.group, ln.tier}] {
				err = fmt.Errorf("name %x has no key in group %d, tier %v, and is of no store there that waits", uint64(h), ln.group.ID, ln.tier)
			}
		}
	})
	return err
}
