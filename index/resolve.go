package index

import (
	"slices"
	"sync/atomic"
)

// Candidates are names, and a Match needs bitmaps of ordinals. The Candidates keep both
// together (Memo), with the generations of the model for which the bitmaps were made. As
// long as no pod came or went and no source changed its lanes, a Match only compares two
// numbers. After a change of lanes the resolution is copied and updated, source by source.
// After a change of pods it is made again.

// resolution is the sources and lanes of some candidates in a model. It is immutable, and
// valid as long as the model has the same generations.
type resolution struct {
	of        *identity // of the model; not the model, which may have gone
	pods, gen uint64
	sources   []resolvedSource
	cuts      []resolvedCut
	bits      bool      // rows of some sources always have bits
	lanes     []laneRef // by ordinal
}

// resolvedSource has the views of a source as they were and as they are, and the
// place of its pod among the candidates.
type resolvedSource struct {
	was *[]*view
	now *atomic.Pointer[[]*view]
	pod int32
}

// resolvedCut has the candidates' blocks of one size in one variant.
type resolvedCut struct {
	cut
	units int
	// bits are the lanes, by ordinal, of the views whose rows always have bits; nil if
	// there are none. Of the other views, all has the gpu lanes of those with just one
	// gpu lane, and other has the other lanes; nil if there are none.
	bits, all, other []uint64
	// gpu are the words of all that are not empty, and at finds them, by
	// number plus one.
	gpu []actWord
	at  []uint32
}

type viewRef struct {
	*view
	pod int32
}

// laneRef is the lane of an ordinal. The zero laneRef is of an ordinal without a lane.
// first is the ordinal of the view's first lane.
type laneRef struct {
	viewRef
	first uint32
	tier  Tier
}

// actWord is a word of the bitmap of the lanes whose run goes on.
type actWord struct {
	word       uint32
	bits, next uint64
}

func setBit(set []uint64, ord uint32) []uint64 {
	if n := int(ord>>6) + 1; n > len(set) {
		set = append(set, make([]uint64, n-len(set))...)
	}
	set[ord>>6] |= 1 << (ord & 63)
	return set
}

// resolve returns the present resolution of c.
func (md *model) resolve(c *Candidates) *resolution {
	r, _ := c.Memo().(*resolution)
	gen, pods := md.gen.Load(), md.podsGen.Load() // in this order: a removal in between shows
	switch {
	case r == nil || r.of != md.id || r.pods != pods:
		r = &resolution{of: md.id, pods: pods, gen: gen}
		if c.pods == nil {
			md.pods.Range(func(_, p any) bool {
				r.addPod(p.(*podSources), -1)
				return true
			})
		}
		for i, name := range c.pods {
			if p, ok := md.pods.Load(name); ok {
				r.addPod(p.(*podSources), int32(i))
			}
		}
	case r.gen == gen:
		return r
	default:
		r = r.renew(gen)
	}
	r.bits = false
	for i := range r.cuts {
		r.cuts[i].list()
		r.bits = r.bits || r.cuts[i].bits != nil
	}
	// A resolution that was made while views changed may have an ordinal twice, if the
	// ordinal was reused meanwhile. No Match uses it, because its generation has passed.
	// So it must not become the base of the next one.
	if md.gen.Load() == gen {
		c.SetMemo(r)
	}
	return r
}

func (r *resolution) addPod(p *podSources, pod int32) {
	for _, s := range *p.list.Load() {
		was := s.views.Load()
		r.sources = append(r.sources, resolvedSource{was, s.views, pod})
		r.add(*was, pod)
	}
}

// renew returns r with the views that have changed since.
func (r *resolution) renew(gen uint64) *resolution {
	fresh := *r
	fresh.gen = gen
	fresh.sources = slices.Clone(r.sources)
	fresh.lanes = slices.Clone(r.lanes)
	fresh.cuts = slices.Clone(r.cuts)
	for i := range fresh.cuts {
		rc := &fresh.cuts[i]
		rc.bits, rc.all, rc.other = slices.Clone(rc.bits), slices.Clone(rc.all), slices.Clone(rc.other)
	}
	var changed []*resolvedSource
	for i := range fresh.sources {
		s := &fresh.sources[i]
		if now := s.now.Load(); now != s.was {
			fresh.drop(*s.was)
			s.was = now
			changed = append(changed, s)
		}
	}
	for _, s := range changed { // after all drops: an ordinal may have moved between sources
		fresh.add(*s.was, s.pod)
	}
	fresh.cuts = slices.DeleteFunc(fresh.cuts, func(rc resolvedCut) bool {
		return !slices.ContainsFunc(rc.bits, nonzero) && !slices.ContainsFunc(rc.all, nonzero) && !slices.ContainsFunc(rc.other, nonzero)
	})
	return &fresh
}

func nonzero(w uint64) bool { return w != 0 }

func (r *resolution) drop(views []*view) {
	for _, v := range views {
		rc := r.cutOf(v.cut)
		for _, l := range v.lanes {
			r.lanes[l.ord] = laneRef{}
			for _, set := range [][]uint64{rc.bits, rc.all, rc.other} {
				if int(l.ord>>6) < len(set) {
					set[l.ord>>6] &^= 1 << (l.ord & 63)
				}
			}
		}
	}
}

func (r *resolution) add(views []*view, pod int32) {
	for _, v := range views {
		rc := r.cutOf(v.cut)
		for i, l := range v.lanes {
			if n := int(l.ord) + 1; n > len(r.lanes) {
				r.lanes = append(r.lanes, make([]laneRef, n-len(r.lanes))...)
			}
			r.lanes[l.ord] = laneRef{viewRef{v, pod}, v.lanes[0].ord, l.tier}
			switch {
			case v.bits:
				rc.bits = setBit(rc.bits, l.ord)
			case i == 0 && v.oneGPU:
				rc.all = setBit(rc.all, l.ord)
			default:
				rc.other = setBit(rc.other, l.ord)
			}
		}
	}
}

func (r *resolution) cutOf(c cut) *resolvedCut {
	i := slices.IndexFunc(r.cuts, func(rc resolvedCut) bool { return rc.cut == c })
	if i < 0 {
		i = len(r.cuts)
		r.cuts = append(r.cuts, resolvedCut{cut: c, units: c.size / c.variant.Unit})
	}
	return &r.cuts[i]
}

// list sets gpu and at, and removes empty sets.
func (rc *resolvedCut) list() {
	rc.gpu, rc.at = nil, make([]uint32, len(rc.all))
	for w, set := range rc.all {
		if set != 0 {
			rc.gpu = append(rc.gpu, actWord{word: uint32(w), bits: set})
			rc.at[w] = uint32(len(rc.gpu))
		}
	}
	for _, set := range []*[]uint64{&rc.bits, &rc.other} {
		if !slices.ContainsFunc(*set, nonzero) {
			*set = nil
		}
	}
}
