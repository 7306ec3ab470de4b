package index

import (
	"math/bits"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// A Match walks the slabs of a prompt once for each size in which its candidates have
// blocks (resolvedCut), and reads the holders of each slab. It looks up no source: the
// lanes of the candidates are bits of a bitmap, and a slab clears the bits of those that
// miss a block.
//
//   - Most views have one lane, of the gpu. As long as all blocks of such a lane
//     are there its bit stays in act, and costs nothing of its own: one AND with a row
//     of the slab's record narrows a word of 64 lanes.
//   - The walker examines a view with other lanes in every tier, slab by slab (slowView):
//     from the first block on if that is not in the gpu, else from the slab in
//     which its gpu run ends.
//   - Views whose rows have bits share one pass. It gives each lane that holds slots of a
//     slab their bits (findBits), and the rows are made of the bits. The pass goes on to
//     the end of the prompt, so it is linear in blocks and in lanes.
//   - The answer needs no lock. Each claim of a row was true at one moment (package
//     forest), and a lane's ordinal keeps the meaning that it had when the walker entered
//     (answer). A Match may miss a slab that a writer moves.
//
// Sources of one full-attention group have no bits and cost nothing more. The index does not
// judge which blocks of several groups an engine reuses: package internal/reuse does.

// walker is the memory of a Match.
type walker struct {
	f     *forest.Forest
	paths []path

	// The pass in progress: blocks of one size of some candidates, along a path.
	r   *resolution
	rc  *resolvedCut
	p   *path
	out *Matches
	// lossy: some lanes may have lost blocks.
	lossy bool

	// act are the lanes of the gpu whose run goes on.
	act []actWord

	// slow are the views that are examined in every tier, and slowSet is the
	// bitmap of their lanes. By the ordinal of a view's first lane, seen has the
	// round in which it became slow, and slot its position in slow.
	slow    []slowView
	slowSet []uint64
	seen    []uint32
	slot    []uint32
	round   uint32

	// at are the bits of lanes, by ordinal, and held those of the rows. words is
	// the number of words of a lane's bits.
	at    []bitRange
	words int
	held  [][NumTiers][]uint64
}

// bitRange is a part of Matches.bits; no words: there is none.
type bitRange struct{ from, words uint32 }

func (w *walker) begin(f *forest.Forest) {
	w.f = f
	w.paths, w.held = w.paths[:0], w.held[:0]
}

// path is a prompt in one variant.
type path struct {
	variant Variant
	forest.Path
}

// slowView is a view whose blocks are examined in every tier.
type slowView struct {
	viewRef
	run, gpu int32
	inGPU    bool // gpu still grows
	tiers    [NumTiers]int32
	now      [NumTiers]uint32 // slots of the present span, by tier
}

// keysFor adds the paths of the variants of r that have none yet.
func (w *walker) keysFor(r *resolution, keys func(Variant) ([]Key, error)) error {
	for i := range r.cuts {
		v := r.cuts[i].variant
		if !slices.ContainsFunc(w.paths, func(p path) bool { return p.variant == v }) {
			of, err := keys(v)
			if err != nil {
				return err
			}
			n := len(w.paths)
			w.paths = slices.Grow(w.paths, 1)[:n+1]
			w.paths[n].variant = v
			forest.Begin(&w.paths[n].Path, w.f, of)
		}
	}
	return nil
}

// release drops the caller's keys, and the forest, which may be gone before the next Match.
func (w *walker) release() {
	w.f, w.r, w.rc, w.p, w.out = nil, nil, nil, nil, nil
	for i := range w.paths {
		w.paths[i].Release()
	}
}

func (w *walker) knows(r *resolution) bool {
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

// answer returns false if r is out of date. It enters the forest before it checks that:
// from there on no ordinal of r gets another meaning.
func (w *walker) answer(md *model, r *resolution, q *Query, out *Matches) (done bool, err error) {
	if err := w.keysFor(r, q.Keys); err != nil {
		return false, err
	}
	defer md.ground.forest.Enter().Leave() // also after a panic, or memory could not be reused
	if md.gen.Load() != r.gen {
		if r = md.resolve(q.Candidates); !w.knows(r) {
			return false, nil
		}
	}
	w.r, w.out, w.lossy = r, out, w.f.AnyLost()
	if !q.Held {
		for i := range r.cuts {
			w.rc = &r.cuts[i]
			w.p = w.path(w.rc.variant)
			w.match()
		}
	}
	if q.Held || r.bits {
		w.matchBits(q.Held, q.Behind)
	}
	for i := range w.paths {
		w.paths[i].Touch()
	}
	return true, nil
}

// match appends the rows of one size of blocks.
//
// A view is in act by its gpu lane as long as all its blocks are there. When one
// is missing, it gets its row, or, if it has other lanes, becomes slow in the same
// span. Views that do not hold the first block in the gpu are slow from there,
// if another lane has it. No view is in both.
func (w *walker) match() {
	rc := w.rc
	w.act = append(w.act[:0], rc.gpu...)
	w.slow = w.slow[:0]
	running := len(w.act) > 0 // a lane of act goes on
	for i := 0; running || len(w.slow) > 0 || i == 0 && rc.other != nil; i++ {
		s, ok := w.p.Span(i)
		if !ok {
			break
		}
		end := s.Ends(rc.units)
		if end == 0 {
			running = running || rc.other != nil // no block has ended yet, or none ends here
			continue
		}
		first := bits.TrailingZeros32(end)
		begins := rc.other != nil && s.At+first < rc.units // the first block ends here
		if begins {
			w.nextRound(len(w.r.lanes))
		}
		if running {
			running = w.narrow(s, end)
		}
		if begins {
			w.findSlow(s, first)
		}
		w.narrowSlow(s, end)
	}
	run := int32(w.p.End() / rc.units)
	for i := range w.act {
		a := &w.act[i]
		w.finish(nil, a.word, a.bits, run)
	}
	for i := range w.slow {
		w.stop(&w.slow[i])
	}
}

// lost reports whether blocks of a view were evicted.
func (w *walker) lost(v *view) bool {
	return w.lossy && slices.ContainsFunc(v.lanes, func(l viewLane) bool { return w.f.Lost(l.ord) })
}

// narrow takes the lanes out of act that miss a block that ends in s, and reports whether
// any lane is left.
func (w *walker) narrow(s *forest.Span, end uint32) bool {
	rc := w.rc
	// block returns the number of the block that ends at the first of slots.
	block := func(slots uint32) int32 {
		return int32((s.At+bits.TrailingZeros32(slots)+1)/rc.units - 1)
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
			w.finish(s, word, bit, block(missing))
		}
	}
	if ord, mask, ok := s.Holder(); ok {
		single(ord, mask)
	} else if rec, ok := w.p.Record(s); ok {
		from := rec.First()
		for i := range rec.Rows() {
			mask, holders := rec.Row(i)
			missing := end &^ mask
			for j := range w.act {
				a := &w.act[j]
				if a.word-from >= uint32(len(holders)) || a.bits == 0 {
					continue
				}
				set := a.bits & holders.Word(a.word-from)
				if missing == 0 {
					a.next |= set
				} else if set != 0 {
					a.bits &^= set
					w.finish(s, a.word, set, block(missing))
				}
			}
		}
		entries := rec.Entries()
		for i := range entries {
			if ord, mask := entries.At(i); mask != 0 {
				single(ord, mask)
			}
		}
	}
	left := false
	for i := range w.act {
		a := &w.act[i]
		if gone := a.bits &^ a.next; gone != 0 {
			w.finish(s, a.word, gone, block(end))
		}
		a.bits, a.next = a.bits&a.next, 0
		left = left || a.bits != 0
	}
	return left
}

// finish ends the gpu runs of the lanes of one word. If a block is missing, it
// is in s.
func (w *walker) finish(s *forest.Span, word uint32, set uint64, run int32) {
	if run == 0 {
		return
	}
	lanes, out := w.r.lanes, w.out
	for ; set != 0; set &= set - 1 {
		l := &lanes[word<<6|uint32(bits.TrailingZeros64(set))]
		if s != nil && len(l.lanes) > 1 {
			w.slowDown(l.viewRef, int32(s.At/w.rc.units))
			continue
		}
		n := len(out.Rows)
		out.Rows = slices.Grow(out.Rows, 1)[:n+1]
		row := &out.Rows[n]
		*row = Row{View: &l.View, Pod: l.pod, Run: run, GPU: run}
		row.Tiers[TierGPU] = run
		if w.lossy {
			row.Evicted = w.lost(l.view)
		}
	}
}

// nextRound begins with no slow views.
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

// slowDown makes a view slow. All its blocks before the present span are in the gpu.
func (w *walker) slowDown(v viewRef, before int32) {
	first := v.lanes[0].ord
	w.seen[first], w.slot[first] = w.round, uint32(len(w.slow))
	for _, l := range v.lanes {
		w.slowSet[l.ord>>6] |= 1 << (l.ord & 63)
	}
	w.slow = append(w.slow, slowView{viewRef: v, run: before, gpu: before, inGPU: true, tiers: [NumTiers]int32{TierGPU: before}})
}

// stop appends the row of a slow view, and removes the view from slowSet.
func (w *walker) stop(v *slowView) {
	for _, l := range v.lanes {
		w.slowSet[l.ord>>6] &^= 1 << (l.ord & 63)
	}
	if v.run > 0 {
		w.out.Rows = append(w.out.Rows, Row{
			View: &v.View, Pod: v.pod, Run: v.run, GPU: v.gpu, Tiers: v.tiers, Evicted: w.lost(v.view),
		})
	}
}

// findSlow makes the views slow that are neither in act any more nor slow, and hold the
// first block, which ends at a slot of s, in any lane. It does not check act again: a gpu
// copy may come or go meanwhile.
func (w *walker) findSlow(s *forest.Span, slot int) {
	w.p.HoldersIn(s, w.rc.other, func(ord, mask uint32) {
		l := &w.r.lanes[ord]
		if mask>>slot&1 != 0 && w.seen[l.first] != w.round && (!l.oneGPU || !w.runs(l.first)) {
			w.slowDown(l.viewRef, 0)
		}
	})
}

// runs reports whether a lane is in act.
func (w *walker) runs(ord uint32) bool {
	return w.act[w.rc.at[ord>>6]-1].bits>>(ord&63)&1 != 0
}

// narrowSlow goes on with the slow views and ends those whose run ends in s.
func (w *walker) narrowSlow(s *forest.Span, end uint32) {
	if len(w.slow) == 0 {
		return
	}
	w.p.HoldersIn(s, w.slowSet, func(ord, mask uint32) {
		l := &w.r.lanes[ord]
		w.slow[w.slot[l.first]].now[l.tier] |= mask
	})
	kept := 0
	for i := range w.slow {
		v := &w.slow[i]
		if !v.advance(end) {
			w.stop(v)
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
	for t := range v.now {
		best := v.now[t] & left
		v.tiers[t] += int32(bits.OnesCount32(best))
		left &^= best
		v.now[t] = 0
	}
	return here == end
}

// matchBits appends the rows that have bits, source by source: of all sources, without the
// blocks in the first behind tokens, or else of the sources whose rows always have bits.
func (w *walker) matchBits(all bool, behind int) {
	r := w.r
	w.at = slices.Grow(w.at[:0], len(r.lanes))[:len(r.lanes)]
	clear(w.at)
	for i := range r.cuts {
		w.rc = &r.cuts[i]
		w.p = w.path(w.rc.variant)
		from := 0
		if all {
			from = behind / w.p.variant.Unit
		}
		w.findBits(w.rc.bits, from)
		if all {
			w.findBits(w.rc.all, from)
			w.findBits(w.rc.other, from)
		}
	}
	if len(w.out.bits) == 0 {
		return
	}
	for i := range r.sources {
		s := &r.sources[i]
		for _, v := range *s.was {
			if all || v.bits {
				w.addBits(v, s.pod)
			}
		}
	}
}

// findBits walks the prompt once, and sets a bit for each block that a lane of
// set holds. It ends at the first key that is not in the forest: nobody holds a block
// behind it, because the forest keeps all keys before a held block.
func (w *walker) findBits(set []uint64, from int) {
	if set == nil {
		return
	}
	units := w.rc.units
	w.words = (w.p.Len()/units + 63) / 64
	for i := 0; ; i++ {
		s, ok := w.p.Span(i)
		if !ok {
			return
		}
		end := s.Ends(units)
		if end == 0 || s.At+s.N <= from {
			continue
		}
		first := (s.At+bits.TrailingZeros32(end)+1)/units - 1
		if ord, mask, ok := s.Holder(); ok {
			if mask &= end; mask != 0 {
				w.setBits(set, ord>>6, 1<<(ord&63), blocksAt(first, mask, end, units))
			}
		} else if rec, ok := w.p.Record(s); ok {
			for i := range rec.Rows() {
				mask, holders := rec.Row(i)
				if mask &= end; mask == 0 {
					continue
				}
				blocks := blocksAt(first, mask, end, units)
				for j := range uint32(len(holders)) {
					w.setBits(set, rec.First()+j, holders.Word(j), blocks)
				}
			}
			entries := rec.Entries()
			for i := range entries {
				if ord, mask := entries.At(i); mask&end != 0 {
					w.setBits(set, ord>>6, 1<<(ord&63), blocksAt(first, mask&end, end, units))
				}
			}
		}
	}
}

// blockBits are blocks of a prompt in two words, from word at on.
type blockBits struct {
	at         int
	bits, more uint64
}

// blocksAt returns the blocks that end at slots, some of those in end. The number
// of the first block of end is given.
func blocksAt(first int, slots, end uint32, units int) blockBits {
	v := uint64(slots)
	if units > 1 {
		v = 0
		for n := 0; end != 0; n++ {
			v |= uint64(slots>>bits.TrailingZeros32(end)&1) << n
			end &= end - 1
		}
	}
	return blockBits{first / 64, v << (first % 64), v >> (64 - first%64)}
}

// setBits gives blocks to the lanes of set that are holders: a word of ordinals.
func (w *walker) setBits(set []uint64, word uint32, holders uint64, blocks blockBits) {
	if int(word) >= len(set) {
		return
	}
	at, out := w.at[word<<6:], w.out.bits
	for here := set[word] & holders; here != 0; here &= here - 1 {
		lane := &at[bits.TrailingZeros64(here)]
		if lane.words == 0 {
			*lane = bitRange{uint32(w.out.more(w.words)), uint32(w.words)}
			out = w.out.bits
		}
		i := int(lane.from) + blocks.at
		out[i] |= blocks.bits
		if blocks.more != 0 {
			out[i+1] |= blocks.more
		}
	}
}

// addBits appends the row of a view, if it holds anything.
func (w *walker) addBits(v *view, pod int32) {
	var held *[NumTiers][]uint64
	words := 0
	for _, l := range v.lanes {
		at := w.at[l.ord]
		if at.words == 0 {
			continue
		}
		if held == nil {
			n := len(w.held)
			w.held = slices.Grow(w.held, 1)[:n+1]
			held = &w.held[n]
			*held = [NumTiers][]uint64{}
		}
		words = int(at.words)
		set := w.out.bits[at.from : at.from+at.words : at.from+at.words]
		if held[l.tier] == nil {
			held[l.tier] = set
			continue
		}
		for i, word := range set { // a lane of blocks by hash alone, and another one
			held[l.tier][i] |= word
		}
	}
	if held == nil {
		return
	}
	n := len(w.out.Rows)
	w.out.Rows = slices.Grow(w.out.Rows, 1)[:n+1]
	row := &w.out.Rows[n]
	*row = Row{View: &v.View, Pod: pod, Held: held, Evicted: w.lost(v)}
	row.Count(words)
}

// Count computes the runs of a row, which has none yet, from Held. The sets that are not nil
// have words words. It is for backends.
func (row *Row) Count(words int) {
	// The other tiers are skipped in words of which the gpu has all blocks.
	held := row.Held
	from := len(held[TierGPU]) // the first word of which the gpu lacks a block
	for i, word := range held[TierGPU] {
		if word != ^uint64(0) {
			row.GPU = int32(bits.TrailingZeros64(^word))
			from = i
			break
		}
	}
	row.Run = int32(64 * from)
	row.GPU += row.Run
	row.Tiers[TierGPU] = row.Run
	for i := from; i < words; i++ {
		any := uint64(0)
		for _, set := range held {
			if set != nil {
				any |= set[i]
			}
		}
		n := bits.TrailingZeros64(^any) // of 64 blocks, those that go on with the run
		if n == 0 {
			return
		}
		row.Run += int32(n)
		left := ^uint64(0) >> (64 - n)
		for t, set := range held {
			if set == nil {
				continue
			}
			best := set[i] & left
			row.Tiers[t] += int32(bits.OnesCount64(best))
			left &^= best
		}
		if n < 64 {
			return
		}
	}
}
