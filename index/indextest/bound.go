package indextest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
)

// The random histories at a bound. They are those of random.go, on longer prompts, and
// now and then a flood of other blocks passes the bound. No rule determines the blocks that a
// backend forgets then. So its answers are compared with the blocks of the model:
//
//   - Each block that a row claims is held in the model, by the same holder.
//   - A row that lacks a block which the model has reports it (Row.Evicted), or the
//     source does, or the counters do.
//   - A source that has lost nothing since its last clear is exact, with all it counts.
//
// A forgotten block is one that the model holds, and no row claims.

// leastBound is a bound that is passed often. It is the least budget of a Memory.
const leastBound = index.MinMemory

// A boundHistory is a history at a bound.
type boundHistory struct {
	t       *testing.T
	ix      index.Index
	w       *world
	m       model
	saw     *boundFirings
	leaves  bool // only leaves are forgotten: Memory promises it beyond the contract
	guarded bool // stores are, and some views are whole
	flood   *flood
	// lacksNames has the sources of which names were forgotten, which a clear leaves.
	lacksNames map[index.Source]bool
	pods       map[string]*index.Candidates
	steps      []step
}

// boundFirings counts what happened to forgotten blocks.
type boundFirings struct {
	floods, looks, exact, claims     int
	cut, gone                        int // rows that lost a part of their blocks in a flood, and all
	removals, copies, reports, lower int // of hashes of forgotten blocks
	children, masked, chunks         int // stores
	clears, tierClears, podRemovals  int
	joined, restored, full           int
}

// lacks returns the events that were too rare.
func (f *boundFirings) lacks() (faults []string) {
	for name, got := range map[string][2]int{
		"exact answers": {f.exact, 1000}, "rows that lost a part": {f.cut, 200}, "rows that lost all": {f.gone, 1000},
		"removals of forgotten blocks": {f.removals, 1000}, "copies of them": {f.copies, 1000}, "reports of them": {f.reports, 1000},
		"lower tiers' stores of them": {f.lower, 1000}, "their children": {f.children, 1000}, "masked stores of them": {f.masked, 1000},
		"chunks that end with them": {f.chunks, 100},
		"clears of them":            {f.clears, 1000}, "clears of a tier of them": {f.tierClears, 200}, "pods removed with them": {f.podRemovals, 200},
	} {
		if got[0] < got[1] {
			faults = append(faults, fmt.Sprintf("%d %s, want at least %d: the test tests too little", got[0], name, got[1]))
		}
	}
	return faults
}

// A flood stores blocks of prompts that are never queried.
type flood struct {
	ix   index.Index
	next index.Hash // of the next block
}

// A block of a flood has floodUnits of 16 tokens: much of a bound in bytes goes for
// their keys, and little time for their names.
const (
	floodUnits = 256
	floodBytes = 8 * floodUnits // that a block takes at least, if keys are kept
)

var floodSource = index.Source{Pod: "flood", Model: "of a flood"}

// pass stores about so many bytes.
func (f *flood) pass(bytes int) error {
	c := index.Change{
		Op: index.OpStore, Copies: index.CopiesSet, Hashes: make([]index.Hash, 1),
		Variant: variant, BlockSize: unit * floodUnits, Locals: make([]index.Local, floodUnits),
	}
	for ; bytes > 0; bytes -= floodBytes {
		f.next++
		c.Hashes[0], c.Root = f.next, index.Key(f.next) // of which all keys follow
		if _, err := f.ix.Apply(ctx, floodSource, index.Cursor{}, []index.Change{c}); err != nil {
			return err
		}
	}
	return nil
}

// isBounded reports whether a backend has a bound in bytes.
func isBounded(ix index.Index) bool {
	s, ok := ix.(index.Describer)
	return ok && s.MemoryUsage().Budget > 0
}

// describe returns the description of a source; ok: there is one.
func describe(ix index.Index, src index.Source) (info index.SourceInfo, ok bool) {
	d, ok := ix.(index.Describer)
	if !ok {
		return info, false
	}
	for _, info := range d.Describe(nil) {
		if info.Source == src {
			return info, true
		}
	}
	return info, true
}

func evictedOf(ix index.Index, src index.Source) uint64 {
	info, _ := describe(ix, src)
	return info.Evicted
}

// testBoundSeeds runs histories at a bound, as many as the flags set. The long form runs up
// to half as many again if something has happened too seldom: a backend's salt makes runs
// differ.
func testBoundSeeds(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{Bytes: leastBound})
	bounded := isBounded(ix)
	ix.Close()
	if !bounded {
		t.Log("the backend has no bound in bytes")
		return
	}
	n := cmp.Or(*seedsFlag, choose(1, 2, 0))
	var saw boundFirings
	for i := 0; i < n || isLong() && i < n+n/2 && len(saw.lacks()) > 0; i++ {
		seed := *fromFlag + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { testBound(t, open, seed, &saw) }) {
			return
		}
	}
	t.Logf("%+v", saw)
	if isLong() {
		for _, fault := range saw.lacks() {
			t.Error(fault)
		}
	}
}

func testBound(t *testing.T, open func(testing.TB, Config) index.Index, seed uint64, saw *boundFirings) {
	ix := open(t, Config{Bytes: leastBound})
	defer ix.Close()
	w := newWorld(seed)
	b := &boundHistory{
		t: t, ix: ix, w: w, m: model{}, saw: saw, lacksNames: map[index.Source]bool{}, pods: map[string]*index.Candidates{},
		flood: &flood{ix: ix},
	}
	_, b.leaves = ix.(inmemory.Memory)
	for range 3 {
		p := string("KLMNO"[w.r.IntN(5)])
		for len(p) < 1+2*promptBlocks {
			p += "ab"[w.r.IntN(8)/7:][:1]
		}
		w.prompts = append(w.prompts, p)
		for _, at := range []int{5, 40, 65, 71} {
			w.prompts = append(w.prompts, p[:at]+"c"+p[at+1:])
		}
	}
	_, describes := describe(ix, floodSource)
	modes := []index.Copies{index.CopiesExact, index.CopiesGuarded, index.CopiesSet, partial}
	copies := modes[seed%4]
	if copies == index.CopiesGuarded && !describes {
		copies = partial // who would know when that begins
	}
	b.guarded = copies == index.CopiesGuarded
	w.hybrid = seed%5 < 2
	w.mixed, w.twice = !w.hybrid && seed%2 == 0, seed%4 == 0
	var sources []index.Source
	for _, pod := range []string{"a", "b", "c", "d"} {
		b.pods[pod] = index.NewCandidates("m", []string{pod})
		sources = append(sources, index.Source{Pod: pod, Model: "m"}, index.Source{Pod: pod, Model: "m", Rank: 1})
	}
	for n := range choose(500, 1000, 3000) {
		at := w.r.IntN(len(sources))
		src, s := sources[at], b.m.source(sources[at])
		if w.only = -1; at%4 == 1 {
			w.only = []int{full.ID, wide.ID, other.ID}[seed%3]
		}
		if n%40 == 0 {
			b.pass(sources)
		}
		if n%4 > 0 && b.goOn(src, copies) {
			continue
		}
		switch k := w.r.IntN(40); {
		case k == 0:
			b.removePod(src)
		case k < 9:
			b.apply(src, op{kind: index.OpClear})
		case k < 13:
			b.apply(src, op{kind: index.OpClearTier, tier: index.Tier(w.r.IntN(2))})
		case k < 14:
			b.apply(src, w.hidden(copies)...)
		case k < 15:
			b.apply(src, w.reported(copies)...)
		case k < 21 && w.hybrid:
			b.apply(src, w.anchored(copies)...)
		case k < 24:
			b.apply(src, b.whole(copies))
		case k < 28:
			o := b.whole(copies)
			if o.behind(w.r.IntN(len(o.blocks))); o.blockShape != small {
				o.tier = index.Tier(w.r.IntN(3))
			}
			b.apply(src, o)
		default:
			b.apply(src, w.op(copies, s))
		}
	}
}

// whole is a prompt in one group, from its beginning.
func (b *boundHistory) whole(copies index.Copies) op {
	p, k := b.w.prompt(), b.w.cutting()
	b.w.last = p
	n := k.letters()
	o := op{kind: index.OpStore, group: k.group, copies: copies, blockShape: k.blockShape, from: p[:1], to: p[:1+(len(p)-1)/n*n]}
	for i := n; i < len(p); i += n {
		o.blocks = append(o.blocks, p[:1+i])
	}
	return o
}

// goOn has a source go on with a prompt of which it holds forgotten blocks, in the group
// of one of them. It returns false if there is none.
func (b *boundHistory) goOn(src index.Source, copies index.Copies) bool {
	r, s, p := b.w.r, b.m.source(src), b.w.prompt()
	all := b.missing(s, p, b.look(src, p))
	if len(all) == 0 {
		return false
	}
	b.w.last = p
	f := all[r.IntN(len(all))]
	o := op{kind: index.OpStore, group: s.groups[f.id.group], copies: copies, blockShape: s.cuts[f.id.group], from: p[:1]}
	if o.size != f.id.size {
		return false
	}
	n, first, last := o.letters(), f.block, min(f.block+2+r.IntN(8), blocksOf(p, o.size))
	o.to = p[:1+last*n]
	for i := range last {
		o.blocks = append(o.blocks, p[:1+(i+1)*n])
	}
	switch r.IntN(14) {
	case 0, 1: // removed blocks are not announced again for a while
		o = op{kind: index.OpRemove, tier: f.tier, group: o.group, blocks: o.blocks[first:last]}
	case 2, 3, 4, 5, 6, 7, 8, 9: // a child
		if last < first+2 {
			return false
		}
		o.behind(first + 1)
	case 10:
		o.blocks = slices.DeleteFunc(o.blocks, func(string) bool { return r.IntN(4) == 0 })
		if o.group.Kind == index.GroupWindow {
			b.w.mask(&o, p)
		}
	default:
		o.behind(max(first-1, 0))
		o.bare, o.tier = r.IntN(2) == 0, index.TierCPU
	}
	if len(o.blocks) == 0 {
		return false
	}
	b.apply(src, o)
	return true
}

// behind takes the first n blocks from a store.
func (o *op) behind(n int) {
	if n > 0 {
		o.parent, o.from, o.blocks = o.blocks[n-1], o.blocks[n-1], o.blocks[n:]
	}
}

func (b *boundHistory) fail(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("step %d: %s\nafter %v", len(b.steps), fmt.Sprintf(format, args...), b.steps[len(b.steps)-1])
}

// apply has the index and the model do ops.
func (b *boundHistory) apply(src index.Source, ops ...op) {
	b.t.Helper()
	b.steps = append(b.steps, step{src: src, ops: ops})
	s := b.m.source(src)
	p := b.w.last
	if p == "" {
		p = b.w.prompt()
	}
	b.count(src, ops, p, b.look(src, p))
	changes := make([]index.Change, len(ops))
	for i := range ops {
		changes[i] = b.w.change(&ops[i])
	}
	before := evictedOf(b.ix, src)
	done, err := b.ix.Apply(ctx, src, index.Cursor{}, changes)
	if errors.Is(err, index.ErrFull) {
		b.saw.full++
		delete(b.m, src)
		return
	}
	if err != nil {
		b.fail("%v", err)
	}
	after := evictedOf(b.ix, src)
	c := done.Counts
	s.lossy = s.lossy || before > 0
	s.counts, s.prompt, s.ops = index.Counts{}, promptStore{}, ops
	var fired firings
	for i := range ops {
		s.apply(&ops[i], &fired)
	}
	s.settle(&fired)
	given := after > 0 || c.Dropped+c.Forgotten+c.Ambiguous > s.counts.Dropped+s.counts.Forgotten+s.counts.Ambiguous
	b.lacksNames[src] = b.lacksNames[src] || given || before > 0
	if !b.lacksNames[src] {
		if c != s.counts {
			b.fail("counted %+v\nwant    %+v", c, s.counts)
		}
		b.saw.exact++
	}
	b.saw.joined += int(c.Joined)
	b.saw.restored += int(c.Restored)
	isGuarded := slices.ContainsFunc(ops, func(o op) bool { return o.copies == index.CopiesGuarded })
	if b.guarded && before == 0 && given && (isGuarded || after == 0) { // since when does it count no reports, and does it?
		b.apply(src, op{kind: index.OpClear})
		return
	}
	s.lossy = s.lossy || after > 0
	b.look(src, p)
}

func (b *boundHistory) removePod(src index.Source) {
	for of := range b.m {
		if of.Pod == src.Pod && b.lost(of, index.NumTiers) {
			b.saw.podRemovals++
		}
	}
	b.steps = append(b.steps, step{src: src, remove: true})
	if diff := b.m.run(b.ix, b.w, b.steps[len(b.steps)-1], &firings{}); diff != "" {
		b.fail("%s", diff)
	}
	maps.DeleteFunc(b.lacksNames, func(of index.Source, _ bool) bool { return of.Pod == src.Pod })
}

// claims are the blocks of a prompt that the rows of a source claim.
type claims map[rowID]*[index.NumTiers]blockSet

func (c claims) has(id rowID, t index.Tier, block int) bool {
	return c[id] != nil && c[id][t].has(block)
}

// look queries a prompt, and checks the rows of a source.
func (b *boundHistory) look(src index.Source, p string) claims {
	b.t.Helper()
	b.saw.looks++
	s := b.m.source(src)
	got := claims{}
	layout := s.layout()
	var want []modelRow
	var all index.Matches
	c := b.pods[src.Pod]
	if err := b.ix.Match(ctx, &index.Query{Candidates: c, Keys: keysOf(p), Held: true}, &all); err != nil {
		b.fail("%v", err)
	}
	rows := slices.DeleteFunc(all.Rows, func(r index.Row) bool { return r.Source != src })
	for _, r := range rows {
		id := rowID{r.Group.ID, r.BlockSize}
		row := modelRow{view: index.View{Source: src, Group: s.groups[id.group], BlockSize: id.size, Layout: layout}}
		for t := range r.Held {
			copy(row.held[t][:], r.Held[t])
			for i := range blocksOf(p, id.size) {
				if !row.held[t].has(i) {
					continue
				}
				b.saw.claims++
				if prefix := p[:1+(i+1)*id.size/grain]; !s.holds(id.group, index.Tier(t), prefix) && !s.holds(id.group, index.Tier(t), prefix+mark) {
					b.fail("%s, block %d of %v is not held: %s", p, i, index.Tier(t), rowText(r))
				}
			}
		}
		got[id] = &row.held
		want = append(want, row)
	}
	if diff := cmp.Or(apart(rows), compareRows(rows, want, c.Pods(), true, &firings{})); diff != "" {
		b.fail("%s: %s", p, diff)
	}
	var plain index.Matches
	if err := b.ix.Match(ctx, &index.Query{Candidates: c, Keys: keysOf(p)}, &plain); err != nil {
		b.fail("%v", err)
	}
	plain.Rows = slices.DeleteFunc(plain.Rows, func(r index.Row) bool { return r.Source != src })
	if diff := compareRows(plain.Rows, want, c.Pods(), false, &firings{}); diff != "" {
		b.fail("%s, without bits: %s", p, diff)
	}
	if b.lacksNames[src] { // stores that wait for them may have been dropped since its last Apply
		return got
	}
	for _, f := range b.missing(s, p, got) {
		for _, r := range rows {
			if r.Group.ID == f.id.group && r.BlockSize == f.id.size && !r.Evicted {
				b.fail("%s, block %d of %v is missing, and nothing reports that: %s", p, f.block, f.tier, rowText(r))
			}
		}
	}
	return got
}

// holds reports whether a holder has a block, or may have it because a report hid it: an
// index that does not know the prefix of such blocks brings more of them back, because it
// goes by the hashes of parents. Its size is not compared. It is that of the first store
// since nobody held the block, and an index may have forgotten that one.
func (s *modelSource) holds(group int, t index.Tier, name string) bool {
	return s.held[modelHolder{group, t}][name] != nil
}

// A lostBlock is a block of a prompt that a holder lacks.
type lostBlock struct {
	id    rowID
	tier  index.Tier
	block int
}

// missing returns the blocks of a prompt that the model has, and the rows do not claim.
func (b *boundHistory) missing(s *modelSource, p string, got claims) (all []lostBlock) {
	for h, blocks := range s.held {
		for end := 2; end <= len(p) && len(blocks) > 0; end++ {
			names := []string{p[:end], p[:end] + mark}
			if !b.w.twice {
				names = names[:1]
			}
			for _, name := range names {
				by, ok := s.seen(h.group, name, blocks[name])
				if !ok {
					continue
				}
				f := lostBlock{rowID{h.group, by.size}, h.tier, (end-1)/by.letters() - 1}
				if !got.has(f.id, f.tier, f.block) {
					all = append(all, f)
				}
			}
		}
	}
	return all
}

// count notes which of the ops are about forgotten blocks.
func (b *boundHistory) count(src index.Source, ops []op, p string, got claims) {
	s := b.m.source(src)
	type key struct {
		group int
		tier  index.Tier
		name  string
	}
	of, any := map[key]bool{}, map[string]bool{}
	for _, f := range b.missing(s, p, got) {
		name := p[:1+(f.block+1)*f.id.size/grain]
		of[key{f.id.group, f.tier, name}] = true
		any[name] = any[name] || f.tier == index.TierGPU
	}
	for _, o := range ops {
		some, here := 0, 0
		for _, name := range o.blocks {
			if of[key{o.group.ID, o.tier, prefixOf(name)}] {
				here++
			}
			if any[prefixOf(name)] {
				some++
			}
		}
		inRange := len(o.blocks) * max(o.letters(), 1)
		guarded := o.copies == index.CopiesGuarded || o.copies == partial
		switch {
		case o.kind == index.OpClear:
			if b.lost(src, index.NumTiers) {
				b.saw.clears++
			}
		case o.kind == index.OpClearTier, o.kind == index.OpAge:
			if b.lost(src, o.tier) {
				b.saw.tierClears++
			}
		case o.kind == index.OpRemove:
			b.saw.removals += here
		case o.tier != index.TierGPU:
			b.saw.lower += some
			if !o.bare && inRange == len(o.to)-len(o.from) && any[prefixOf(o.blocks[len(o.blocks)-1])] {
				b.saw.chunks++
			}
		case !o.bare && inRange < len(o.to)-len(o.from):
			b.saw.masked += some
		case o.reused || guarded && o.parent == "":
			b.saw.reports += here
		default:
			b.saw.copies += here
			if o.parent != "" && any[prefixOf(o.parent)] {
				b.saw.children++
			}
		}
	}
}

// lost reports whether anything in a tier is forgotten of a source; NumTiers: in any.
func (b *boundHistory) lost(src index.Source, t index.Tier) bool {
	s := b.m.source(src)
	return slices.ContainsFunc(b.w.prompts, func(p string) bool {
		return slices.ContainsFunc(b.missing(s, p, b.look(src, p)), func(f lostBlock) bool { return t == index.NumTiers || f.tier == t })
	})
}

// pass stores blocks that are never queried. Nothing may come back by that. Meanwhile the
// beginnings of some prompts are queried, so that parts of them are used latest.
func (b *boundHistory) pass(sources []index.Source) {
	b.t.Helper()
	b.saw.floods++
	type question struct {
		src index.Source
		p   string
	}
	before := map[question]claims{}
	for range 4 {
		p := b.w.prompt()
		for _, src := range sources {
			before[question{src, p}] = b.look(src, p)
		}
	}
	for range 3 {
		if err := b.flood.pass(b.w.r.IntN(leastBound / 2)); err != nil {
			b.fail("%v", err)
		}
		p := b.w.prompt()
		b.look(sources[0], p[:1+8*(1+b.w.r.IntN(len(p)/8-1))])
	}
	for q, was := range before {
		now := b.look(q.src, q.p)
		for id, held := range now {
			for t := range held {
				for i := range blocksOf(q.p, id.size) {
					if held[t].has(i) && !was.has(id, index.Tier(t), i) {
						b.fail("%v has block %d of %s in group %d and %v, which it had not before others stored", q.src, i, q.p, id.group, index.Tier(t))
					}
				}
			}
		}
		for id, held := range was {
			b.cutOff(q.src, q.p, id, held, now[id])
		}
	}
}

// cutOff compares what a row had before a flood with what it has. A part that is left
// of a chain has to be a prefix of what was there.
func (b *boundHistory) cutOff(src index.Source, p string, id rowID, was, now *[index.NumTiers]blockSet) {
	b.t.Helper()
	if now == nil {
		b.saw.gone++
		return
	}
	first := blocksOf(p, id.size) // that has gone
	for t := range was {
		for i := range first {
			if was[t].has(i) && !now[t].has(i) {
				first = i
				break
			}
		}
	}
	if first < blocksOf(p, id.size) {
		b.saw.cut++
	}
	for t := range now {
		for i := first + 1; b.leaves && i < blocksOf(p, id.size); i++ {
			if now[t].has(i) {
				b.fail("%v has lost block %d of %s in group %d, and has block %d: it had %b and has %b", src, first, p, id.group, i, *was, *now)
			}
		}
	}
}
