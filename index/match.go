package index

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// resolved is what a model knows of some candidates. It is immutable, and holds
// as long as the model's generations are those that it was made in.
type resolved struct {
	of        *identity // of the model; not the model, which may have gone
	pods, gen uint64
	sources   []resolvedSource
	cuts      []resolvedCut
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
	// all are the gpu lanes of the views that have just one, by ordinal, and
	// other has the rest of the lanes; nil if there are none.
	all, other []uint64
	// gpu are the words of all that are not empty, and at finds them, by
	// number plus one.
	gpu []actWord
	at  []uint32
}

type viewRef struct {
	*view
	pod int32
}

// laneRef is whose lane an ordinal is; the zero laneRef is nobody's. first is the
// ordinal of the view's first lane.
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

// resolve returns what md knows of c now.
func (md *model) resolve(c *Candidates) *resolved {
	r, _ := c.Memo().(*resolved)
	pods, gen := md.podsGen.Load(), md.gen.Load()
	switch {
	case r == nil || r.of != md.id || r.pods != pods:
		r = &resolved{of: md.id, pods: pods, gen: gen}
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
	for i := range r.cuts {
		r.cuts[i].list()
	}
	// What was put together while views changed may have an ordinal twice, if it
	// was used anew meanwhile. Nobody uses it, because its generation has passed;
	// nor must anything be made of it.
	if md.gen.Load() == gen {
		c.SetMemo(r)
	}
	return r
}

func (r *resolved) addPod(p *podSources, pod int32) {
	for _, s := range *p.list.Load() {
		was := s.views.Load()
		r.sources = append(r.sources, resolvedSource{was, s.views, pod})
		r.add(*was, pod)
	}
}

// renew returns r with the views that have changed since.
func (r *resolved) renew(gen uint64) *resolved {
	fresh := *r
	fresh.gen = gen
	fresh.sources = slices.Clone(r.sources)
	fresh.lanes = slices.Clone(r.lanes)
	fresh.cuts = slices.Clone(r.cuts)
	for i := range fresh.cuts {
		rc := &fresh.cuts[i]
		rc.all, rc.other = slices.Clone(rc.all), slices.Clone(rc.other)
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
	for _, s := range changed { // an ordinal may have gone from one to the other
		fresh.add(*s.was, s.pod)
	}
	fresh.cuts = slices.DeleteFunc(fresh.cuts, func(rc resolvedCut) bool {
		return !slices.ContainsFunc(rc.all, nonzero) && !slices.ContainsFunc(rc.other, nonzero)
	})
	return &fresh
}

func nonzero(w uint64) bool { return w != 0 }

func (r *resolved) drop(views []*view) {
	for _, v := range views {
		rc := r.cutOf(v.cut)
		for _, l := range v.lanes {
			r.lanes[l.ord] = laneRef{}
			for _, set := range [][]uint64{rc.all, rc.other} {
				if int(l.ord>>6) < len(set) {
					set[l.ord>>6] &^= 1 << (l.ord & 63)
				}
			}
		}
	}
}

func (r *resolved) add(views []*view, pod int32) {
	for _, v := range views {
		rc := r.cutOf(v.cut)
		for i, l := range v.lanes {
			if n := int(l.ord) + 1; n > len(r.lanes) {
				r.lanes = append(r.lanes, make([]laneRef, n-len(r.lanes))...)
			}
			r.lanes[l.ord] = laneRef{viewRef{v, pod}, v.lanes[0].ord, l.tier}
			if i == 0 && v.oneGPU {
				rc.all = setBit(rc.all, l.ord)
			} else {
				rc.other = setBit(rc.other, l.ord)
			}
		}
	}
}

func (r *resolved) cutOf(c cut) *resolvedCut {
	i := slices.IndexFunc(r.cuts, func(rc resolvedCut) bool { return rc.cut == c })
	if i < 0 {
		i = len(r.cuts)
		r.cuts = append(r.cuts, resolvedCut{cut: c, units: c.size / c.variant.Unit})
	}
	return &r.cuts[i]
}

// list fills in gpu and at.
func (rc *resolvedCut) list() {
	rc.gpu, rc.at = nil, make([]uint32, len(rc.all))
	for w, set := range rc.all {
		if set != 0 {
			rc.gpu = append(rc.gpu, actWord{word: uint32(w), bits: set})
			rc.at[w] = uint32(len(rc.gpu))
		}
	}
	if !slices.ContainsFunc(rc.other, nonzero) {
		rc.other = nil
	}
}

// walker is the memory of a Match.
type walker struct {
	f     *forest
	paths []path
	act   []actWord

	// slow are the views that are looked at in every tier, and slowSet is the
	// bitmap of their lanes. By the ordinal of a view's first lane, seen has the
	// round in which it became slow, and slot where it is in slow.
	slow    []slowView
	slowSet []uint64
	seen    []uint32
	slot    []uint32
	round   uint32

	held [][NumTiers][]uint64 // of the rows
}

func (w *walker) begin(f *forest) {
	w.f = f
	w.paths, w.held = w.paths[:0], w.held[:0]
}

// path is a prompt in one variant, and the slabs that it goes through, found as
// they are needed.
type path struct {
	variant Variant
	keys    []Key
	spans   []span
	end     int    // units that the spans cover
	slab    uint32 // of the last span
	done    bool
}

// span is the part of a prompt that is in one slab, from its first slot on.
type span struct {
	at, n int // units
	header
}

// slowView is a view whose blocks are looked at in every tier.
type slowView struct {
	viewRef
	run, gpu int32
	inGPU    bool // gpu still grows
	tiers    [NumTiers]int32
	last     Tier
	now      [NumTiers]uint32 // slots of the present span, by tier
}

// keysFor sets up the paths of all variants of r that there are none of yet.
func (w *walker) keysFor(r *resolved, keys func(Variant) ([]Key, error)) error {
	for i := range r.cuts {
		v := r.cuts[i].variant
		if !slices.ContainsFunc(w.paths, func(p path) bool { return p.variant == v }) {
			of, err := keys(v)
			if err != nil {
				return err
			}
			n := len(w.paths)
			w.paths = slices.Grow(w.paths, 1)[:n+1]
			w.paths[n] = path{variant: v, keys: of, spans: w.paths[n].spans[:0]}
		}
	}
	return nil
}

// release lets the caller's keys go, and the forest, which may have gone before
// the next Match.
func (w *walker) release() {
	w.f = nil
	for i := range w.paths {
		w.paths[i].keys = nil
	}
}

func (w *walker) knows(r *resolved) bool {
	for i := range r.cuts {
		v := r.cuts[i].variant
		if !slices.ContainsFunc(w.paths, func(p path) bool { return p.variant == v }) {
			return false
		}
	}
	return true
}

func (w *walker) path(v Variant) *path {
	return &w.paths[slices.IndexFunc(w.paths, func(p path) bool { return p.variant == v })]
}

// span returns span i of p.
func (w *walker) span(p *path, i int) (*span, bool) {
	for i >= len(p.spans) {
		if p.done || !w.extend(p) {
			p.done = true
			return nil, false
		}
	}
	return &p.spans[i], true
}

// extend goes into the next slab. Slabs of a chain that was stored at once are
// neighbours, so the next one is tried before the head table is asked. That is
// no guess about the answer: a key is in one place only, so a slab that is held
// and begins with the key is the one.
func (w *walker) extend(p *path) bool {
	if p.end == len(p.keys) {
		return false
	}
	k := p.keys[p.end]
	f := w.f
	chunks := *f.chunks.Load()
	id := p.slab + 1
	var h header
	if c := id / chunkSlabs; int(c) < len(chunks) && p.slab != 0 {
		h = chunks[c].meta[id%chunkSlabs].load()
	}
	if h.kind() == kindNone || atomic.LoadUint64(&chunks[id/chunkSlabs].slab(id)[0]) != uint64(k) {
		if id = f.heads.find(f, k); id == 0 {
			return false
		}
		h = f.meta(id).load()
	}
	p.slab = id
	s := span{at: p.end, header: h}
	s.n = same(f.keys(id), p.keys[p.end:min(len(p.keys), p.end+h.written())])
	p.spans = append(p.spans, s)
	p.end += s.n
	return s.n > 0
}

// same returns how many leading keys are those of a slab.
func same(slab []uint64, keys []Key) int {
	if len(keys) > len(slab) {
		return 0
	}
	for i, k := range keys {
		if atomic.LoadUint64(&slab[i]) != uint64(k) {
			return i
		}
	}
	return len(keys)
}

// ends returns the slots of a span at which a block of some units ends.
func ends(units, at, n int) uint32 {
	all := uint32(1)<<n - 1 // n may be 32
	if units == 1 {
		return all
	}
	var set uint32
	for slot := units - 1 - at%units; slot < n; slot += units {
		set |= 1 << slot
	}
	return set
}

// match appends the rows of one size of blocks.
//
// A view is in act by its gpu lane as long as all its blocks are there. When one
// is missing, it has its row, or, if it has other lanes, becomes slow in the same
// span. Views that do not hold the first block in the gpu are slow from there,
// if another lane has it. No view is in both.
func (w *walker) match(r *resolved, rc *resolvedCut, out *Matches) {
	p := w.path(rc.variant)
	w.act = append(w.act[:0], rc.gpu...)
	w.slow = w.slow[:0]
	running := len(w.act) > 0 // a lane of act goes on
	for i := 0; running || len(w.slow) > 0 || i == 0 && rc.other != nil; i++ {
		s, ok := w.span(p, i)
		if !ok {
			break
		}
		end := ends(rc.units, s.at, s.n)
		if end == 0 {
			running = running || rc.other != nil // no block has ended yet, or none ends here
			continue
		}
		first := bits.TrailingZeros32(end)
		begins := rc.other != nil && s.at+first < rc.units // the first block ends here
		if begins {
			w.nextRound(len(r.lanes))
		}
		if running {
			running = w.narrow(r, rc, s, end, out)
		}
		if begins {
			w.findSlow(r, rc, s, first)
		}
		w.narrowSlow(r, s, end, out)
	}
	run := int32(p.end / rc.units)
	for i := range w.act {
		a := &w.act[i]
		w.finish(r, rc, nil, a.word, a.bits, run, out)
	}
	for i := range w.slow {
		w.stop(&w.slow[i], out)
	}
}

// narrow takes those lanes out of act that do not hold all the blocks that end
// in s, and reports whether any is left.
func (w *walker) narrow(r *resolved, rc *resolvedCut, s *span, end uint32, out *Matches) bool {
	// block returns the number of the block that ends at the first of slots.
	block := func(slots uint32) int32 {
		return int32((s.at+bits.TrailingZeros32(slots)+1)/rc.units - 1)
	}
	single := func(ord, mask uint32) {
		word := ord >> 6
		if int(word) >= len(rc.at) || rc.at[word] == 0 {
			return
		}
		a := &w.act[rc.at[word]-1]
		bit := uint64(1) << (ord & 63) & a.bits
		if bit == 0 {
			return
		}
		if missing := end &^ mask; missing == 0 {
			a.next |= bit
		} else {
			a.bits &^= bit
			w.finish(r, rc, s, word, bit, block(missing), out)
		}
	}
	switch s.kind() {
	case kindOne:
		single(s.ord(), s.mask())
	case kindRecord:
		rec := w.f.recs.at(s.record())
		for i := range rec.rows() {
			mask, bitmap := rec.row(i)
			missing := end &^ mask
			from := uint32(rec.first())
			for j := range w.act {
				a := &w.act[j]
				if a.word-from >= uint32(len(bitmap)) || a.bits == 0 {
					continue
				}
				set := a.bits & atomic.LoadUint64(&bitmap[a.word-from])
				if missing == 0 {
					a.next |= set
				} else if set != 0 {
					a.bits &^= set
					w.finish(r, rc, s, a.word, set, block(missing), out)
				}
			}
		}
		entries := rec.entries()
		for i := range entries {
			if e := atomic.LoadUint64(&entries[i]); e != 0 {
				single(uint32(e>>32), uint32(e))
			}
		}
	}
	left := false
	for i := range w.act {
		a := &w.act[i]
		if gone := a.bits &^ a.next; gone != 0 {
			w.finish(r, rc, s, a.word, gone, block(end), out)
		}
		a.bits, a.next = a.bits&a.next, 0
		left = left || a.bits != 0
	}
	return left
}

// finish ends the gpu runs of the lanes of one word. If a block is missing, it
// is in s.
func (w *walker) finish(r *resolved, rc *resolvedCut, s *span, word uint32, set uint64, run int32, out *Matches) {
	if run == 0 {
		return
	}
	for ; set != 0; set &= set - 1 {
		l := &r.lanes[word<<6|uint32(bits.TrailingZeros64(set))]
		if s != nil && len(l.lanes) > 1 {
			w.slowDown(l.viewRef, int32(s.at/rc.units))
			continue
		}
		n := len(out.Rows)
		out.Rows = slices.Grow(out.Rows, 1)[:n+1]
		row := &out.Rows[n]
		*row = Row{View: &l.View, Pod: l.pod, Run: run, GPU: run}
		row.Tiers[TierGPU] = run
	}
}

// nextRound begins to note which views are slow.
func (w *walker) nextRound(lanes int) {
	w.round++
	if w.round == 0 {
		clear(w.seen)
		w.round = 1
	}
	if more := lanes - len(w.seen); more > 0 {
		w.seen = append(w.seen, make([]uint32, more)...)
		w.slot = append(w.slot, make([]uint32, more)...)
		w.slowSet = make([]uint64, lanes/64+1)
	}
}

// slowDown makes a view slow of which all blocks before the present span are in
// the gpu.
func (w *walker) slowDown(v viewRef, before int32) {
	first := v.lanes[0].ord
	w.seen[first], w.slot[first] = w.round, uint32(len(w.slow))
	for _, l := range v.lanes {
		w.slowSet[l.ord>>6] |= 1 << (l.ord & 63)
	}
	w.slow = append(w.slow, slowView{viewRef: v, run: before, gpu: before, inGPU: true, tiers: [NumTiers]int32{TierGPU: before}})
}

// stop ends what is noted of a slow view.
func (w *walker) stop(v *slowView, out *Matches) {
	for _, l := range v.lanes {
		w.slowSet[l.ord>>6] &^= 1 << (l.ord & 63)
	}
	if v.run > 0 {
		out.Rows = append(out.Rows, Row{View: &v.View, Pod: v.pod, Run: v.run, GPU: v.gpu, Tiers: v.tiers, Last: v.last})
	}
}

// findSlow begins with the views that are not in act any more, nor slow, and
// hold the first block, which ends at a slot of s, in a lane of theirs. What act
// says is not looked at again: a gpu copy may come or go meanwhile.
func (w *walker) findSlow(r *resolved, rc *resolvedCut, s *span, slot int) {
	w.holders(s.header, rc.other, func(ord, mask uint32) {
		l := &r.lanes[ord]
		if mask>>slot&1 != 0 && w.seen[l.first] != w.round && (!l.oneGPU || !w.runs(rc, l.first)) {
			w.slowDown(l.viewRef, 0)
		}
	})
}

// holders calls f for each holder of a slab that is in set, a bitmap of
// ordinals.
func (w *walker) holders(h header, set []uint64, f func(ord, mask uint32)) {
	has := func(ord uint32) bool { return int(ord>>6) < len(set) && set[ord>>6]>>(ord&63)&1 != 0 }
	switch h.kind() {
	case kindOne:
		if has(h.ord()) {
			f(h.ord(), h.mask())
		}
	case kindRecord:
		rec := w.f.recs.at(h.record())
		for i := range rec.rows() {
			mask, bitmap := rec.row(i)
			for j := range min(len(bitmap), max(len(set)-rec.first(), 0)) {
				word := rec.first() + j
				if set[word] == 0 {
					continue
				}
				for here := atomic.LoadUint64(&bitmap[j]) & set[word]; here != 0; here &= here - 1 {
					f(uint32(word)<<6|uint32(bits.TrailingZeros64(here)), mask)
				}
			}
		}
		entries := rec.entries()
		for i := range entries {
			if e := atomic.LoadUint64(&entries[i]); e != 0 && has(uint32(e>>32)) {
				f(uint32(e>>32), uint32(e))
			}
		}
	}
}

// runs reports whether a lane is in act.
func (w *walker) runs(rc *resolvedCut, ord uint32) bool {
	return w.act[rc.at[ord>>6]-1].bits>>(ord&63)&1 != 0
}

// maskAt is maskOf for readers, of a header that was loaded before.
func (w *walker) maskAt(h header, ord uint32) uint32 {
	switch h.kind() {
	case kindOne:
		if h.ord() == ord {
			return h.mask()
		}
	case kindRecord:
		rec := w.f.recs.at(h.record())
		word, bit, ok := rec.bit(ord)
		for i := range rec.rows() {
			if mask, bitmap := rec.row(i); ok && atomic.LoadUint64(&bitmap[word])&bit != 0 {
				return mask
			}
		}
		entries := rec.entries()
		for i := range entries {
			if e := atomic.LoadUint64(&entries[i]); uint32(e>>32) == ord && e != 0 {
				return uint32(e)
			}
		}
	}
	return 0
}

// narrowSlow goes on with the slow views and ends those whose run ends in s.
func (w *walker) narrowSlow(r *resolved, s *span, end uint32, out *Matches) {
	if len(w.slow) == 0 {
		return
	}
	w.holders(s.header, w.slowSet, func(ord, mask uint32) {
		l := &r.lanes[ord]
		w.slow[w.slot[l.first]].now[l.tier] |= mask
	})
	kept := 0
	for i := range w.slow {
		v := &w.slow[i]
		if !v.advance(end) {
			w.stop(v, out)
			continue
		}
		if i != kept {
			w.slow[kept] = *v
			w.slot[v.lanes[0].ord] = uint32(kept)
		}
		kept++
	}
	w.slow = w.slow[:kept]
}

// advance counts the blocks that end in a span, and reports whether all are
// there.
func (v *slowView) advance(end uint32) bool {
	any := uint32(0)
	for _, mask := range v.now {
		any |= mask
	}
	here := end
	if missing := end &^ any; missing != 0 {
		here &= uint32(1)<<bits.TrailingZeros32(missing) - 1
	}
	if v.inGPU {
		gpu := here
		if missing := here &^ v.now[TierGPU]; missing != 0 {
			gpu &= uint32(1)<<bits.TrailingZeros32(missing) - 1
		}
		v.gpu += int32(bits.OnesCount32(gpu))
		v.inGPU = gpu == end
	}
	v.run += int32(bits.OnesCount32(here))
	left := here
	last := uint32(1) << bits.Len32(here) >> 1
	for t := range v.now {
		best := v.now[t] & left
		if best&last != 0 {
			v.last = Tier(t)
		}
		v.tiers[t] += int32(bits.OnesCount32(best))
		left &^= best
		v.now[t] = 0
	}
	return here == end
}

// matchHeld appends the rows of one size of blocks with their bits. It looks at
// every view in every slab that the prompt goes through.
func (w *walker) matchHeld(r *resolved, rc *resolvedCut, out *Matches) {
	p := w.path(rc.variant)
	for !p.done {
		if !w.extend(p) {
			p.end++ // what is behind a gap may be held
			p.done = p.end >= len(p.keys)
		}
	}
	blocks := len(p.keys) / rc.units
	for _, v := range r.viewsOf(rc.cut) {
		row := Row{View: &v.View, Pod: v.pod}
		var held [NumTiers][]uint64
		for i := range p.spans {
			s := &p.spans[i]
			end := ends(rc.units, s.at, s.n)
			for _, l := range v.lanes {
				for mask := w.maskAt(s.header, l.ord) & end; mask != 0; mask &= mask - 1 {
					if held[l.tier] == nil {
						held[l.tier] = out.Bits(blocks)
					}
					b := (s.at+bits.TrailingZeros32(mask)+1)/rc.units - 1
					held[l.tier][b/64] |= 1 << (b % 64)
				}
			}
		}
		if !row.count(&held, blocks) {
			continue
		}
		w.held = append(w.held, held)
		row.Held = &w.held[len(w.held)-1]
		out.Rows = append(out.Rows, row)
	}
}

// viewsOf returns the views of a cut.
func (r *resolved) viewsOf(c cut) (views []viewRef) {
	for _, s := range r.sources {
		for _, v := range *s.was {
			if v.cut == c {
				views = append(views, viewRef{v, s.pod})
			}
		}
	}
	return views
}

// count fills in the runs of a row from its bits, and reports whether there are
// any.
func (row *Row) count(held *[NumTiers][]uint64, blocks int) (any bool) {
	has := func(t Tier, b int) bool { return held[t] != nil && held[t][b/64]>>(b%64)&1 != 0 }
	for t := range held {
		any = any || held[t] != nil
	}
	gpu := true
next:
	for b := range blocks {
		if gpu = gpu && has(TierGPU, b); gpu {
			row.GPU++
		}
		for t := range Tier(NumTiers) {
			if has(t, b) {
				row.Run++
				row.Tiers[t]++
				row.Last = t
				continue next
			}
		}
		break
	}
	return any
}
