package indextest

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

var (
	seedsFlag = flag.Int("indextest.seeds", 0, "how many random histories a backend goes through; long form: 24, from which on the suite wants each rule to fire often; 0: 8 histories, with -short 4")
	fromFlag  = flag.Uint64("indextest.from", 0, "the seed of the first random history")
)

// isLong reports whether -indextest.seeds asks for the long form of the suite, in which each
// rule must fire often.
func isLong() bool { return *seedsFlag >= 24 }

// choose returns how much the suite does of something: with -short, by default, or in the
// long form.
func choose(short, usual, long int) int {
	switch {
	case isLong():
		return long
	case testing.Short():
		return short
	}
	return usual
}

// The key space of the random histories. A prefix is a string: the letter of
// its root, and a letter for each grain tokens. A hash is named by the prefix
// that it stands for; an engine that hides salts has two hashes for one prefix,
// of which one is written with a mark behind it.
const (
	grain = 8  // tokens of a letter
	depth = 16 // letters of a prompt of the random histories
	mark  = "'"
)

func prefixOf(name string) string { return strings.TrimSuffix(name, mark) }

// A blockShape is how the blocks of a group are cut, in tokens. It is zero for blocks that
// are known by their hashes alone.
type blockShape struct{ unit, size int }

func (c blockShape) letters() int { return c.size / grain }

type groupShape struct {
	group index.Group
	blockShape
}

// cuttingsOf are the groups of most sources and how they cut blocks; the second has
// blocks of its own size and, rarely, entries of a part of it.
var cuttingsOf = []groupShape{
	{full, blockShape{16, 16}},
	{full, blockShape{16, 16}},
	{full, blockShape{16, 16}},
	{full, blockShape{16, 16}},
	{blurred, blockShape{16, 16}},
	{blurred, blockShape{16, 16}},
	{wide, blockShape{16, 32}},
	{wide, blockShape{16, 32}},
	{wide, blockShape{16, 16}},
	{other, blockShape{8, 24}},
	{other, blockShape{8, 24}},
}

// hybridCuttings are those of the other sources. Their window groups have masked stores.
var hybridCuttings = []groupShape{
	{large, blockShape{16, 64}},
	{large, blockShape{16, 64}},
	{window, blockShape{16, 16}},
	{window, blockShape{16, 16}},
	{drafts, blockShape{16, 16}},
	{drafts, blockShape{16, 16}},
	{chunks, blockShape{16, 16}},
}

var small = blockShape{8, 8} // a part of a block of wide

var (
	wide    = index.Group{ID: 2, Kind: index.GroupFull}
	other   = index.Group{ID: 3, Kind: index.GroupFull}
	large   = index.Group{ID: 4, Kind: index.GroupFull}
	drafts  = index.Group{ID: 5, Kind: index.GroupWindow, Window: 32, Draft: true}
	blurred = index.Group{ID: 6, Kind: index.GroupMamba} // nothing follows from what it keeps
	chunks  = index.Group{ID: 7, Kind: index.GroupChunked, Window: 64}
)

// Blocks of window and drafts that their windows need, and from one boundary to the
// next, where a block of large ends.
const (
	windowNeed     = 2
	windowBoundary = 4
)

// The plain model of an index. It knows engine hashes only as another spelling
// of prefixes; placing is a loop over all parked stores until nothing changes.
type model map[index.Source]*modelSource

type modelSource struct {
	named  map[modelName]bool // hashes that were placed
	parked []parkedStore
	masked []*maskedStore
	held   map[modelHolder]map[string]*modelBlock
	groups map[int]index.Group
	stored map[int]bool       // groups with a gpu store
	cuts   map[int]blockShape // of each group: the largest of a gpu store
	grains map[int]int        // and the smallest size
	lossy  bool               // blocks that may be there were forgotten
	vague  map[int]bool       // groups of which a store was taken for a report
	ops    []op               // of the step
	prompt promptStore        // of them
	counts index.Counts
}

// promptStore is the last store of a full group without a parent.
type promptStore struct {
	group int
	name  string // of its last block
	of    op
	isNew bool // it was no report
	maybe bool // the last block may be there
}

type modelName struct {
	name string
	unit int
}

type modelHolder struct {
	group int
	tier  index.Tier
}

type modelBlock struct {
	copies int // 0: it may be there, because a store of it was taken for a report
	age    int // generations that began since it was stored, in a lower tier
	blockShape
	reported bool
	parent   string // "" if none is known
}

type parkedStore struct {
	group, unit int
	parent      string
	blocks      []string
	gone        map[string]bool // blocks that the gpu has lost since
}

// maskedStore is a store of window or drafts that lists a part of its blocks.
type maskedStore struct {
	op
	gone map[string]bool // as in parkedStore
	look bool            // when the changes are applied
}

// partial is CopiesGuarded in a partial view.
const partial = index.CopiesSet + 1

// op is a change in the words of the model.
type op struct {
	kind   index.Op
	tier   index.Tier
	group  index.Group
	copies index.Copies
	blockShape
	from, to  string   // the range: the prefixes before it and at its end
	parent    string   // name; "": the range begins at a root
	blocks    []string // names of the hashes that the change lists
	bare      bool     // a store by hash alone
	uncertain bool
	reused    bool
	remaining []uint32
}

func (m model) source(src index.Source) *modelSource {
	s := m[src]
	if s == nil {
		s = &modelSource{named: map[modelName]bool{}}
		s.clear()
		m[src] = s
	}
	return s
}

func (s *modelSource) clear() {
	s.parked, s.masked, s.lossy, s.vague, s.prompt = nil, nil, false, map[int]bool{}, promptStore{}
	s.held = map[modelHolder]map[string]*modelBlock{}
	s.groups, s.stored = map[int]index.Group{}, map[int]bool{}
	s.cuts = map[int]blockShape{}
	s.grains = map[int]int{}
}

func (s *modelSource) blocks(group int, tier index.Tier) map[string]*modelBlock {
	h := modelHolder{group, tier}
	if s.held[h] == nil {
		s.held[h] = map[string]*modelBlock{}
	}
	return s.held[h]
}

// apply applies o as the contract requires, and counts it.
func (s *modelSource) apply(o *op, fired *firings) {
	fired.ops++
	switch o.kind {
	case index.OpClear:
		fired.clears++
		s.counts.Cleared++
		s.clear()
	case index.OpClearTier:
		fired.tierClears++
		s.counts.Cleared++
		for _, p := range s.parked {
			for _, name := range p.blocks {
				p.gone[name] = p.gone[name] || o.tier == index.TierGPU
			}
		}
		for _, m := range s.masked {
			for _, name := range m.blocks {
				m.gone[name] = m.gone[name] || o.tier == index.TierGPU
			}
		}
		names := map[string]bool{}
		for h, blocks := range s.held {
			if h.tier == o.tier {
				delete(s.held, h)
				for name := range blocks {
					names[name] = true
				}
			}
		}
		for name := range names {
			s.forget(name)
		}
	case index.OpAge:
		names := map[string]bool{}
		for h, blocks := range s.held {
			for name, b := range blocks {
				if h.tier != o.tier {
					continue
				}
				if b.age++; b.age > 2 {
					delete(blocks, name)
					names[name] = true
					s.counts.Aged++
				}
			}
		}
		fired.aged += len(names)
		for name := range names {
			s.forget(name)
		}
	case index.OpRemove:
		s.remove(o, fired)
	case index.OpStore:
		s.store(o, fired)
	}
}

func (s *modelSource) remove(o *op, fired *firings) {
	blocks := s.blocks(o.group.ID, o.tier)
	for i, name := range o.blocks {
		s.counts.Removed++
		b := blocks[name]
		if b == nil || b.copies == 0 {
			fired.unknown++
			s.counts.UnknownRemove++
			if o.tier != index.TierGPU {
				fired.lowerUnknown++
			}
			continue
		}
		if o.tier != index.TierGPU {
			fired.lowerRemovals++
		}
		b.copies--
		if o.remaining != nil {
			b.copies = int(o.remaining[i])
		}
		if b.copies > 0 {
			fired.copyRemovals++
			continue
		}
		fired.removals++
		for _, p := range s.parked {
			if o.tier == index.TierGPU && p.group == o.group.ID {
				p.gone[name] = true
			}
		}
		for _, m := range s.masked {
			if o.tier == index.TierGPU && m.group.ID == o.group.ID {
				m.gone[name] = true
			}
		}
		if !b.reported {
			delete(blocks, name)
		}
		s.forget(name)
	}
}

func (s *modelSource) placed(name string) bool {
	return s.named[modelName{name, 16}] || s.named[modelName{name, 8}]
}

// forget forgets what may be there of a hash that was never placed and that
// nobody holds any more.
func (s *modelSource) forget(name string) {
	if s.placed(name) {
		return
	}
	for _, blocks := range s.held {
		if b := blocks[name]; b != nil && b.copies > 0 {
			return
		}
	}
	for _, blocks := range s.held {
		s.lossy = s.lossy || blocks[name] != nil
		delete(blocks, name)
	}
}

func (s *modelSource) store(o *op, fired *firings) {
	gpu := o.tier == index.TierGPU
	if _, ok := s.groups[o.group.ID]; gpu || !ok {
		s.groups[o.group.ID] = o.group
	}
	s.stored[o.group.ID] = s.stored[o.group.ID] || gpu
	if old := s.grains[o.group.ID]; gpu && !o.bare && (old == 0 || o.size < old) {
		s.grains[o.group.ID] = o.size
	}
	if old := s.cuts[o.group.ID]; gpu && !o.bare && o.size > old.size {
		s.cuts[o.group.ID] = o.blockShape
		for h, blocks := range s.held { // blocks that are known by hash keep their size
			for _, b := range blocks {
				if h.group == o.group.ID && b.blockShape == (blockShape{}) {
					b.blockShape = old
				}
			}
		}
	}
	if len(o.blocks) == 0 {
		return
	}
	s.counts.Stored += uint64(len(o.blocks))
	dense := !o.bare && len(o.blocks)*o.letters() == len(o.to)-len(o.from)
	blocks, by := o.blocks, o.blockShape
	switch {
	case o.bare:
		by = blockShape{}
		if !gpu {
			fired.lowerBare++
		}
	case dense && !gpu:
		fired.chunks++
		if blocks = o.blocks[len(o.blocks)-1:]; o.size >= s.cuts[o.group.ID].size {
			by.size *= len(o.blocks)
		} else {
			fired.lowerParts++
			if o.parent != "" && s.named[modelName{o.parent, o.unit}] {
				for _, name := range o.blocks {
					s.name(name, o.unit)
				}
				defer s.place(false, fired)
			}
		}
	}
	s.hold(o, blocks, by, dense, fired)
	switch {
	case !gpu:
	case dense:
		s.parked = append(s.parked, parkedStore{o.group.ID, o.unit, o.parent, o.blocks, map[string]bool{}})
		s.place(true, fired)
	case !o.bare && o.group.Kind == index.GroupWindow:
		m := &maskedStore{*o, map[string]bool{}, true}
		found := s.deduce(m)
		whole := true
		for i, name := range o.blocks {
			whole = whole && (s.named[modelName{name, o.unit}] || slices.Contains(found, i))
		}
		if !whole {
			s.masked = append(s.masked, m)
			return
		}
		for _, i := range found {
			fired.deduced++
			s.name(o.blocks[i], o.unit)
		}
		s.place(false, fired)
	}
}

// A verdict is the effect of a store.
type verdict struct {
	report bool
	from   int // blocks before it are not held
	maybe  int // the block that may be there; -1: none
}

// judge is the rules of index.Copies.
func (s *modelSource) judge(o *op, blocks []string, fired *firings) verdict {
	v := verdict{report: o.reused, maybe: -1}
	id, isFull := o.group.ID, o.group.Kind == index.GroupFull
	guarded := o.tier == index.TierGPU && (o.copies == index.CopiesGuarded || o.copies == partial)
	hasParent := !o.bare && o.parent != ""
	seen := func(group int, name string) bool { return s.blocks(group, index.TierGPU)[name] != nil }
	whole := 0
	if !o.bare {
		whole = (len(o.to) - len(o.from)) / o.letters()
	}
	if !guarded {
		return v
	}
	if hasParent {
		if b := s.blocks(id, o.tier)[o.parent]; isFull && (b == nil || b.copies == 0) {
			s.restore(id, o.parent, fired)
		}
		return v
	}
	if !o.bare && o.size < s.cuts[id].size {
		return v
	}
	blind := s.lossy || o.copies == partial
	parts, mamba := false, false
	for _, g := range s.groups {
		parts = parts || s.grains[g.ID] < s.cuts[g.ID].size
		mamba = mamba || g.Kind == index.GroupMamba
	}
	parts = parts && mamba // hits may end inside a block
	mamba = mamba || slices.ContainsFunc(s.ops, func(o op) bool { return o.kind == index.OpStore && o.group.Kind == index.GroupMamba })
	fine := parts || blind && mamba
	end := blocks[len(blocks)-1]
	if isFull {
		missing := 0
		for _, name := range blocks {
			if !seen(id, name) {
				missing++
			}
		}
		ends := fine && whole == len(blocks) && !seen(id, end)
		v.report = v.report || blind || missing == 0 || ends && missing == 1
		s.prompt = promptStore{id, end, *o, !blind && missing > 0 && (!ends || missing > 1), false}
		if ends && !s.prompt.isNew {
			fired.maybe++
			v.maybe, s.prompt.maybe = len(blocks)-1, true
		}
		return v
	}
	was := s.prompt
	if len(blocks) < whole {
		if was.maybe && !o.uncertain && was.of.unit == o.unit && was.of.from == o.from && was.of.to == o.to {
			fired.proofs++
			s.restore(was.group, was.name, fired)
		}
		return v
	}
	if !blind {
		if was.isNew && was.group < id {
			fired.prompts++
			return v
		}
		if !s.vague[id] && !seen(id, end) && (o.group.Kind == index.GroupWindow || o.group.Kind == index.GroupMamba && !parts) {
			return v
		}
		for _, g := range s.groups {
			if s.stored[g.ID] && !parts && g.Kind == index.GroupFull && !seen(g.ID, end) {
				return v
			}
		}
	}
	fired.sparseReports++
	if blind {
		fired.blindReports++
	}
	s.vague[id], v.report = true, true
	sure := 0
	switch {
	case o.bare:
	case o.group.Kind == index.GroupWindow:
		sure = windowNeed
	case o.group.Kind == index.GroupMamba && !fine:
		sure = 1
	case o.group.Kind == index.GroupChunked:
		sure = whole % (o.group.Window / o.size)
	}
	v.from = max(0, len(blocks)-sure)
	return v
}

// hold applies the verdict of judge.
func (s *modelSource) hold(o *op, blocks []string, by blockShape, dense bool, fired *firings) {
	gpu, isFull := o.tier == index.TierGPU, o.group.Kind == index.GroupFull
	guarded := gpu && (o.copies == index.CopiesGuarded || o.copies == partial)
	v := s.judge(o, blocks, fired)
	held := s.blocks(o.group.ID, o.tier)
	for i, name := range blocks {
		if i < v.from {
			s.counts.Reports++
			continue
		}
		b := held[name]
		if b == nil {
			b = &modelBlock{}
			held[name] = b
		} else if b.copies == 0 {
			fired.restored++
			s.counts.Restored++
		}
		fired.renewed += min(b.age, 1)
		b.age = 0
		switch {
		case i == v.maybe:
			s.counts.Reports++
			b.reported, b.blockShape = true, by
			continue
		case b.copies == 0:
			b.copies, b.blockShape = 1, by
			if o.bare && !gpu {
				if b.blockShape = s.partOf(o.group.ID, name); b.blockShape != (blockShape{}) {
					fired.lowerParts++
				}
			}
		case !gpu:
			if is := b.blockShape; is != by && (!o.bare || is != s.partOf(o.group.ID, name)) {
				fired.recut++
			}
		case o.copies == index.CopiesSet:
		case v.report:
			fired.reports++
			s.counts.Reports++
			b.reported = guarded && isFull
		default:
			b.copies++
		}
		switch {
		case !dense:
		case i > 0:
			b.parent = blocks[i-1]
		default:
			b.parent = o.parent
		}
	}
}

// partOf returns the shape of the part of a block that a hash alone stands for in a lower tier;
// zero: it stands for a block.
func (s *modelSource) partOf(group int, name string) blockShape {
	cut, part := s.cuts[group], s.grains[group]
	tokens := grain * (len(prefixOf(name)) - 1)
	if cut == (blockShape{}) || part%cut.unit != 0 || !s.named[modelName{name, cut.unit}] || tokens%cut.size == 0 || tokens%part != 0 {
		return blockShape{}
	}
	return blockShape{cut.unit, part}
}

// restore brings back the block of a parent, and what may be there of the
// blocks before it.
func (s *modelSource) restore(group int, name string, fired *firings) {
	held := s.blocks(group, index.TierGPU)
	for b := held[name]; b != nil; b = held[name] {
		if b.copies == 0 {
			fired.restored++
			s.counts.Restored++
			b.copies = 1
		}
		by := b.blockShape
		if by == (blockShape{}) {
			by = s.cuts[group]
		}
		switch {
		case !s.placed(name):
			fired.restoredByParent++
			name = b.parent
		case len(name)-1 > by.letters() && s.named[modelName{name, by.unit}]:
			fired.restoredByKey++
			if name = name[:len(name)-by.letters()]; !s.named[modelName{name, by.unit}] {
				return // held perhaps, but who would know that it stands here
			}
			if b := held[name]; b != nil && b.copies == 0 && s.lossy {
				return // another hash of it may have been forgotten
			}
		default:
			return
		}
	}
}

// place names the blocks of all stores that can be placed. The last one of
// parked may be new.
func (s *modelSource) place(fresh bool, fired *firings) {
	last := -1
	if fresh {
		last = len(s.parked) - 1
	}
	for again := true; again; {
		again = false
		rest := s.parked[:0:0]
		for i, p := range s.parked {
			if p.parent != "" && !s.named[modelName{p.parent, p.unit}] {
				rest = append(rest, p)
				continue
			}
			again = true
			if i != last {
				fired.joined++
				s.counts.Joined++
			}
			for _, b := range p.blocks {
				// A hash that was removed may be used for something else, which
				// another parked store knows.
				if !p.gone[b] || !slices.ContainsFunc(s.parked, func(o parkedStore) bool {
					return o.unit == p.unit && slices.Contains(o.blocks, b) && !o.gone[b]
				}) {
					s.name(b, p.unit)
				}
			}
		}
		if last >= 0 && len(rest) == len(s.parked) {
			s.counts.Parked++
		}
		s.parked, last = rest, -1
	}
}

// name records that a hash was placed. Masked stores that list it are looked at.
func (s *modelSource) name(name string, unit int) {
	if s.named[modelName{name, unit}] {
		return
	}
	s.named[modelName{name, unit}] = true
	for _, m := range s.masked {
		m.look = m.look || slices.Contains(m.blocks, name) && !m.gone[name] || name == m.parent
	}
}

// settle places what follows in masked stores from hashes that were placed.
func (s *modelSource) settle(fired *firings) {
	for again := true; again; {
		again = false
		for _, m := range s.masked {
			if !m.look {
				continue
			}
			m.look = false
			for _, i := range s.deduce(m) {
				if name := m.blocks[i]; !m.gone[name] && !s.named[modelName{name, m.unit}] {
					fired.deduced++
					s.name(name, m.unit)
					again = true
				}
			}
		}
		s.place(false, fired)
	}
}

// deduce returns the hashes of a masked store, by number, that follow from what is
// known.
func (s *modelSource) deduce(m *maskedStore) (found []int) {
	known := func(i int) bool { return !m.gone[m.blocks[i]] && s.named[modelName{m.blocks[i], m.unit}] }
	boundary := func(name string) bool {
		b := s.blocks(large.ID, index.TierGPU)[name]
		return b != nil && b.copies > 0 && s.cuts[large.ID].size > 0
	}
	block := func(i int) int { return (len(prefixOf(m.blocks[i])) - 1) / m.letters() }
	begins := m.group.Draft && !m.uncertain && (m.parent == "" || s.named[modelName{m.parent, m.unit}])
	atBegin := func() {
		if begins && (m.parent == "" || boundary(m.parent)) {
			found = append(found, 0)
		}
	}
	left := -1
	for i := 0; i <= len(m.blocks); i++ {
		if i < len(m.blocks) && !known(i) {
			continue
		}
		behind := left >= 0 && begins && boundary(m.blocks[left])
		if i == len(m.blocks) {
			switch {
			case behind && left < i-1:
				found = append(found, left+1)
			case left < 0 && i == 1:
				atBegin()
			}
			break
		}
		run, ok := 0, false // blocks before this one
		for end := i; !ok && end < len(m.blocks) && known(end) && block(end)-block(i) == end-i; end++ {
			if boundary(m.blocks[end]) {
				run, ok = max(windowNeed-1-(end-i), 0), true
			}
		}
		listed := i - left - 1
		switch {
		case left >= 0 && block(i)-block(left) == i-left:
			run = listed
		case left >= 0 && listed < run:
			run = 0
		case left >= 0 && behind && listed > run:
			found = append(found, left+1)
		case left < 0 && ok && listed == run+1:
			atBegin()
		}
		for k := 1; k <= min(run, listed); k++ {
			found = append(found, i-k)
		}
		left = i
	}
	return found
}

// A modelRow is the part of a prompt that a group of a source holds in blocks of one size.
type modelRow struct {
	view index.View
	held [index.NumTiers]blockSet
}

// blockSet is a set of the blocks of a prompt.
type blockSet [2]uint64

func (b *blockSet) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b *blockSet) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

// seen reports whether a query sees the block of a name, and how it is cut.
func (s *modelSource) seen(group int, name string, b *modelBlock) (by blockShape, ok bool) {
	if b == nil || b.copies == 0 {
		return by, false
	}
	if by = b.blockShape; by == (blockShape{}) {
		by = s.cuts[group]
	}
	return by, by != (blockShape{}) && s.named[modelName{name, by.unit}] && (len(prefixOf(name))-1)%by.letters() == 0
}

func (s *modelSource) layout() *index.Layout {
	l := new(index.Layout)
	for _, id := range slices.Sorted(maps.Keys(s.groups)) {
		l.Groups = append(l.Groups, index.GroupLayout{Group: s.groups[id], BlockSize: s.cuts[id].size, Grain: s.grains[id]})
	}
	return l
}

// rows returns the rows of s for a prompt.
func (s *modelSource) rows(src index.Source, prompt string) []modelRow {
	var rows []modelRow
	layout := s.layout()
	for h, blocks := range s.held {
		if len(blocks) == 0 {
			continue
		}
		for end := 2; end <= len(prompt); end++ {
			for _, name := range [2]string{prompt[:end], prompt[:end] + mark} {
				by, ok := s.seen(h.group, name, blocks[name])
				if !ok {
					continue
				}
				i := slices.IndexFunc(rows, func(r modelRow) bool { return r.view.Group.ID == h.group && r.view.BlockSize == by.size })
				if i < 0 {
					i = len(rows)
					rows = append(rows, modelRow{view: index.View{
						Source: src, Group: s.groups[h.group], BlockSize: by.size, Layout: layout,
					}})
				}
				rows[i].held[h.tier].add((end-1)/by.letters() - 1)
			}
		}
	}
	return rows
}

// row is the answer that r stands for.
func (r *modelRow) row() (row index.Row) {
	row.View = &r.view
	for b := range 64 * len(r.held[0]) {
		best := index.Tier(0)
		for best < index.NumTiers && !r.held[best].has(b) {
			best++
		}
		if best == index.NumTiers {
			break
		}
		if best == index.TierGPU && row.GPU == row.Run {
			row.GPU++
		}
		row.Run++
		row.Tiers[best]++
	}
	return row
}

// world makes up histories.
type world struct {
	r       *rand.Rand
	prompts []string // nil: any of depth letters
	last    string   // prompt of the last op: the next one is often about it
	twice   bool     // some hashes stand for a prefix that has another one
	mixed   bool     // some groups have blocks of more than one unit
	only    int      // the ID of the group that changes are about; -1: all groups
	hybrid  bool     // the groups are those of hybridCuttings
	hash    map[string]index.Hash
	salt    uint64
}

func newWorld(seed uint64) *world {
	return &world{r: rand.New(rand.NewPCG(seed, 1)), only: -1, hash: map[string]index.Hash{}, salt: seed}
}

func (w *world) prompt() string {
	if w.prompts != nil {
		return w.prompts[w.r.IntN(len(w.prompts))]
	}
	p := []byte{"XY"[w.r.IntN(2)]}
	for range depth / 2 {
		p = append(p, "aaab"[w.r.IntN(4)], "aaaaaaab"[w.r.IntN(8)])
	}
	return string(p)
}

// hashOf is the engine's. Two of them have the values that a table is most
// likely to mistake for nothing.
func (w *world) hashOf(name string) index.Hash {
	h, ok := w.hash[name]
	if !ok {
		f := fnv.New64a()
		fmt.Fprint(f, w.salt, name)
		h = index.Hash(f.Sum64())
		switch name {
		case "Xaa":
			h = 0
		case "Xaaaa":
			h = ^index.Hash(0)
		}
		w.hash[name] = h
	}
	return h
}

func locals(letters string, unit int) (l []index.Local) {
	n := unit / grain
	for ; len(letters) >= n; letters = letters[n:] {
		one := index.Local(unit)
		for _, c := range []byte(letters[:n]) {
			one = one<<8 | index.Local(c)
		}
		l = append(l, one)
	}
	return l
}

func rootOf(prefix string, unit int) index.Key { return index.Key(unit)<<8 | index.Key(prefix[0]) }

func keysOf(prompt string) func(index.Variant) ([]index.Key, error) {
	return func(v index.Variant) (keys []index.Key, err error) {
		k := rootOf(prompt, v.Unit)
		for _, l := range locals(prompt[1:], v.Unit) {
			k = index.Chain(k, l)
			keys = append(keys, k)
		}
		return keys, nil
	}
}

// change returns o as a change of the index.
func (w *world) change(o *op) index.Change {
	c := index.Change{Op: o.kind, Tier: o.tier, Group: o.group, Copies: o.copies, Reused: o.reused, Remaining: o.remaining}
	if o.copies == partial {
		c.Copies, c.Partial = index.CopiesGuarded, true
	}
	for _, name := range o.blocks {
		c.Hashes = append(c.Hashes, w.hashOf(name))
	}
	if o.kind != index.OpStore || o.bare {
		return c
	}
	c.Variant, c.BlockSize = index.Variant{Unit: o.unit}, o.size
	c.Locals = locals(o.to[len(o.from):], o.unit)
	c.UncertainLocals = o.uncertain
	if o.parent != "" {
		c.HasParent, c.Parent = true, w.hashOf(o.parent)
	} else {
		c.Root = rootOf(o.from, o.unit)
	}
	return c
}

func (w *world) cutting() groupShape {
	for {
		k := cuttingsOf[w.r.IntN(len(cuttingsOf))]
		switch {
		case w.hybrid:
			return hybridCuttings[w.r.IntN(len(hybridCuttings))]
		case w.mixed && w.r.IntN(12) == 0:
			k = groupShape{wide, small}
		}
		if w.only < 0 || k.group.ID == w.only {
			return k
		}
	}
}

// below returns an op about a block that a lower tier of a source holds; false: there is none.
func (w *world) below(s *modelSource) (o op, ok bool) {
	type block struct {
		modelHolder
		name string
	}
	var held []block
	for h, blocks := range s.held {
		for name := range blocks {
			if h.tier != index.TierGPU && name == prefixOf(name) {
				held = append(held, block{h, name})
			}
		}
	}
	if len(held) == 0 {
		return o, false
	}
	slices.SortFunc(held, func(a, b block) int {
		return cmp.Or(a.group-b.group, cmp.Compare(a.tier, b.tier), cmp.Compare(a.name, b.name))
	})
	of := held[w.r.IntN(len(held))]
	cuttings := cuttingsOf
	if w.hybrid {
		cuttings = hybridCuttings
	}
	i := slices.IndexFunc(cuttings, func(k groupShape) bool { return k.group.ID == of.group })
	if i < 0 {
		return o, false
	}
	k, end := cuttings[i], len(of.name)-1
	n := k.letters()
	part := end%n != 0 // of a block: it has no chunk
	end -= end % n
	o = op{kind: index.OpStore, group: k.group, tier: of.tier, copies: index.CopiesExact, blockShape: k.blockShape, to: of.name}
	for at := n * w.r.IntN(end/n+1); at < end; at += n {
		if len(o.blocks) == 0 {
			if o.from = of.name[:1+at]; at > 0 {
				o.parent = o.from
			}
		}
		o.blocks = append(o.blocks, of.name[:1+at+n])
	}
	switch what := w.r.IntN(8); {
	case what < 4 || part || len(o.blocks) == 0: // by its hash alone
		o.blocks, o.bare = []string{of.name}, true
		if what < 2 {
			o.kind = index.OpRemove
		}
	case what == 4: // and what is before it
		o.kind = index.OpRemove
	}
	return o, true
}

func (w *world) op(copies index.Copies, s *modelSource) op {
	if w.r.IntN(5) == 0 {
		if o, ok := w.below(s); ok {
			return o
		}
	}
	p := w.last
	if p == "" || w.r.IntN(2) == 0 {
		p = w.prompt()
	}
	w.last = p
	k := w.cutting()
	n, end := k.letters(), (len(p)-1)/k.letters()*k.letters()
	from := w.r.IntN(end/n) * n
	to := from + n*(1+w.r.IntN((end-from)/n))
	o := op{kind: index.OpStore, group: k.group, copies: copies, blockShape: k.blockShape}
	switch w.r.IntN(20) {
	case 0, 1, 2, 3: // from the root: prompts, and reports
		from = 0
	case 4, 5, 6, 7, 8, 9:
		o.kind = index.OpRemove
		if w.r.IntN(4) == 0 {
			o.tier = index.TierCPU
		}
		if w.r.IntN(4) > 0 { // engines remove one at a time
			for ; to > n && s.held[modelHolder{k.group.ID, o.tier}][p[:1+to]] == nil; to -= n {
			}
			from = to - n
		}
	case 10, 11, 15:
		o.bare, o.tier = true, []index.Tier{index.TierGPU, index.TierCPU, index.TierCPU, index.TierDisk}[w.r.IntN(4)]
	case 12:
		if k.blockShape != small { // its chunks would be of one size with others, in another unit
			o.tier = index.TierCPU
		}
	case 13:
		switch w.r.IntN(9) {
		case 0:
			return op{kind: index.OpClear}
		case 1:
			return op{kind: index.OpClearTier, tier: index.Tier(w.r.IntN(3))}
		}
	case 14:
		return op{kind: index.OpAge, tier: []index.Tier{index.TierCPU, index.TierCPU, index.TierDisk}[w.r.IntN(3)]}
	}
	o.from, o.to = p[:1+from], p[:1+to]
	for i := from + n; i <= to; i += n {
		o.blocks = append(o.blocks, p[:1+i])
	}
	if from > 0 || w.r.IntN(50) == 0 {
		o.parent = o.from
	}
	switch {
	case o.kind == index.OpRemove:
		if w.r.IntN(8) == 0 {
			for range o.blocks {
				o.remaining = append(o.remaining, uint32(w.r.IntN(3)))
			}
		}
	case k.group.Kind == index.GroupWindow && !o.bare && o.tier == index.TierGPU && w.r.IntN(4) > 0:
		w.mask(&o, p)
	case k.group.Kind != index.GroupWindow && !o.bare && w.r.IntN(map[bool]int{true: 2, false: 16}[k.group == blurred]) == 0: // masked
		o.blocks = slices.DeleteFunc(o.blocks, func(string) bool { return w.r.IntN(3) == 0 })
	case o.tier == index.TierGPU:
		o.reused = w.r.IntN(20) == 0
	}
	if w.twice && w.r.IntN(4) == 0 {
		for i := range o.blocks {
			o.blocks[i] += mark
		}
		if o.parent != "" && w.r.IntN(4) > 0 {
			o.parent += mark
		}
	}
	return o
}

// mask makes a store of a window group one that keeps some of its runs.
func (w *world) mask(o *op, p string) {
	n, blocks := o.letters(), (len(p)-1)/o.letters()
	from := w.r.IntN(blocks/windowBoundary) * windowBoundary
	to := from + windowBoundary*(1+w.r.IntN((blocks-from)/windowBoundary))
	kept := map[int]bool{}
	for b := from; b <= to; b += windowBoundary {
		if w.r.IntN(3) == 0 {
			continue
		}
		for i := b - windowNeed + 1; i <= b; i++ {
			kept[i] = true
		}
		kept[b+1] = o.group.Draft
	}
	if o.group.Draft {
		from += w.r.IntN(2)
		to = min(to+w.r.IntN(2), blocks)
		o.uncertain = w.r.IntN(8) == 0
	}
	o.from, o.to, o.parent, o.blocks = p[:1+from*n], p[:1+to*n], "", nil
	for i := from + 1; i <= to; i++ {
		if kept[i] {
			o.blocks = append(o.blocks, p[:1+i*n])
		}
	}
	if from > 0 {
		o.parent = o.from
	}
}

// anchored is masked stores of a prompt, and the store of its larger blocks from which
// they follow, in any order, with the removal of a block now and then.
func (w *world) anchored(copies index.Copies) (ops []op) {
	p := string(byte('A'+w.r.IntN(8))) + w.prompt()[1:]
	w.last = p
	o := op{kind: index.OpStore, group: large, copies: copies, blockShape: blockShape{16, 64}, from: p[:1], to: p}
	for i := o.letters(); i < len(p); i += o.letters() {
		o.blocks = append(o.blocks, p[:1+i])
	}
	ops = append(ops, o)
	for range 1 + w.r.IntN(3) {
		m := op{kind: index.OpStore, group: []index.Group{window, drafts}[w.r.IntN(2)], copies: copies, blockShape: blockShape{16, 16}}
		w.mask(&m, p)
		ops = append(ops, m)
		if w.r.IntN(4) == 0 && len(m.blocks) > 0 {
			i := w.r.IntN(len(m.blocks))
			ops = append(ops, op{kind: index.OpRemove, group: m.group, blocks: m.blocks[i : i+1]})
		}
	}
	w.r.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	return ops
}

// proved is a prompt that is stored in a full group up to a block, and then with one that may
// be there, and a masked store of the same blocks, which proves that it is.
func (w *world) proved() []op {
	w.last = string("ABCDEFGH"[w.r.IntN(8)]) + w.prompt()[1:]
	k, masked := cuttingsOf[0], groupShape{blurred, cuttingsOf[0].blockShape}
	n := k.letters()
	last := 2 + w.r.IntN((len(w.last)-1)/n-1)
	store := func(k groupShape, blocks int) op {
		o := op{kind: index.OpStore, group: k.group, copies: partial, blockShape: k.blockShape, from: w.last[:1], to: w.last[:1+blocks*n]}
		for i := 1; i <= blocks; i++ {
			o.blocks = append(o.blocks, w.last[:1+i*n])
		}
		return o
	}
	proof := store(masked, last)
	proof.blocks = proof.blocks[1:]
	return []op{store(k, last-1), store(k, last), proof}
}

// reported is a prompt that is stored in some groups, one after the other as an engine
// does it, and then reported in them up to some block, perhaps more than once. Now and
// then a block goes in between.
func (w *world) reported(copies index.Copies) (ops []op) {
	p := w.prompt()
	w.last = p
	var groups []groupShape
	for range 1 + w.r.IntN(4) {
		if k := w.cutting(); !slices.ContainsFunc(groups, func(o groupShape) bool { return o.group == k.group }) {
			groups = append(groups, k)
		}
	}
	if w.r.IntN(4) > 0 {
		slices.SortFunc(groups, func(a, b groupShape) int { return a.group.ID - b.group.ID })
	}
	for burst, bursts := 0, 2+w.r.IntN(3); burst < bursts; burst++ {
		letters := 8 * (1 + w.r.IntN((len(p)-1)/8))
		for _, k := range groups {
			n := k.letters()
			o := op{kind: index.OpStore, group: k.group, copies: copies, blockShape: k.blockShape, from: p[:1], to: p[:1+letters/n*n]}
			for i := n; i <= letters; i += n {
				o.blocks = append(o.blocks, p[:1+i])
			}
			if k.group.Kind != index.GroupFull && len(o.blocks) > 1 && w.r.IntN(2) == 0 { // a masked store
				o.blocks = o.blocks[len(o.blocks)-min(len(o.blocks)-1, windowNeed):]
			}
			if len(o.blocks) > 0 {
				ops = append(ops, o)
			}
		}
		if len(ops) > 0 && w.r.IntN(3) == 0 {
			gone := ops[w.r.IntN(len(ops))]
			i := w.r.IntN(len(gone.blocks))
			ops = append(ops, op{kind: index.OpRemove, group: gone.group, blocks: gone.blocks[i : i+1]})
		}
	}
	return ops
}

// hidden has a prompt stored twice in some groups, which may be a report, some
// copies of it removed, and a child stored, which proves that the rest of it is
// there.
func (w *world) hidden(copies index.Copies) (ops []op) {
	p := w.prompt()
	if w.prompts == nil && w.r.IntN(2) == 0 { // of which no block has a key, most likely
		p = string("ABCDEFGH"[w.r.IntN(8)]) + p[1:]
	}
	w.last = p
	var proofs []op
	for again := true; again; again = w.r.IntN(3) == 0 {
		k := w.cutting()
		for k.group == large { // a prompt has too few of its blocks
			k = w.cutting()
		}
		hide, prove := w.hiddenIn(k, p, copies)
		ops, proofs = append(ops, hide...), append(prove, proofs...)
	}
	return append(ops, proofs...)
}

// hiddenIn is hidden in one group. Some of the blocks may be without keys at that
// time: their parents are not known yet, or some were stored by hash
// alone.
func (w *world) hiddenIn(k groupShape, p string, copies index.Copies) (hide, prove []op) {
	n := k.letters()
	first, last := 0, 2+w.r.IntN((len(p)-1)/n-2)
	store := func(from, to int) op {
		o := op{kind: index.OpStore, group: k.group, copies: copies, blockShape: k.blockShape, from: p[:1+from*n], to: p[:1+to*n]}
		if from > 0 {
			o.parent = o.from
		}
		for i := from + 1; i <= to; i++ {
			o.blocks = append(o.blocks, p[:1+i*n])
		}
		return o
	}
	if w.r.IntN(2) == 0 {
		first = w.r.IntN(last - 1)
	}
	all := store(first, last-1)
	again := all
	if first > 0 || w.r.IntN(4) == 0 {
		again.bare = true
	}
	if w.r.IntN(4) == 0 {
		some := all
		some.bare = true
		some.blocks = slices.DeleteFunc(slices.Clone(all.blocks), func(string) bool { return w.r.IntN(2) == 0 })
		hide = append(hide, some)
	}
	hide = append(hide, all, again)
	if first > 0 {
		cpu := all
		cpu.bare, cpu.tier = true, index.TierCPU
		hide = append(hide, cpu)
	}
	for i := len(all.blocks) - 1; i >= 0; i-- {
		if w.r.IntN(4) > 0 {
			hide = append(hide, op{kind: index.OpRemove, group: k.group, blocks: all.blocks[i : i+1]})
		}
	}
	prove = append(prove, store(last-1, last))
	if w.r.IntN(2) == 0 {
		prove = append(prove, store(0, last))
	}
	return hide, prove
}

// step is an Apply, or a Remove.
type step struct {
	src    index.Source
	ops    []op
	remove bool
}

func (s step) String() string {
	if s.remove {
		return "remove " + s.src.Pod
	}
	text := fmt.Sprint(s.src)
	for i := range s.ops {
		text += "\n\t" + s.ops[i].String()
	}
	return text
}

func (o *op) String() string {
	if what := map[index.Op]string{index.OpClear: "clear", index.OpClearTier: "clear tier", index.OpAge: "age"}[o.kind]; what != "" {
		return fmt.Sprintf("%s %v", what, o.tier)
	}
	name := map[bool]string{true: "remove", false: "store"}[o.kind == index.OpRemove]
	return fmt.Sprintf("%s %v of group %d in %v: from %s to %s of %v behind %q, copies %d bare %v uncertain %v reused %v remaining %v",
		name, o.blocks, o.group.ID, o.tier, o.from, o.to, o.blockShape, o.parent, o.copies, o.bare, o.uncertain, o.reused, o.remaining)
}

// run applies a step to the index and to the model, and returns how what was
// counted differs.
func (m model) run(ix index.Index, w *world, st step, fired *firings) string {
	if st.remove {
		if err := ix.Remove(ctx, st.src.Pod); err != nil {
			return err.Error()
		}
		fired.podRemovals++
		maps.DeleteFunc(m, func(src index.Source, _ *modelSource) bool { return src.Pod == st.src.Pod })
		return ""
	}
	s := m.source(st.src)
	s.counts, s.prompt, s.ops = index.Counts{}, promptStore{}, st.ops
	changes := make([]index.Change, len(st.ops))
	for i := range st.ops {
		s.apply(&st.ops[i], fired)
		changes[i] = w.change(&st.ops[i])
	}
	s.settle(fired)
	done, err := ix.Apply(ctx, st.src, index.Cursor{}, changes)
	if err != nil {
		return err.Error()
	}
	if done.Counts != s.counts {
		return fmt.Sprintf("counted %+v\nwant    %+v", done.Counts, s.counts)
	}
	return ""
}

// testRandomSeeds runs as many histories as the flags set.
func testRandomSeeds(t *testing.T, open func(testing.TB, Config) index.Index) {
	n := cmp.Or(*seedsFlag, choose(4, 8, 0))
	var fired firings
	for i := range n {
		seed := *fromFlag + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { testRandom(t, open, seed, &fired) }) {
			return
		}
	}
	fired.check(t)
}

// testRandom compares an index with the model after each step of a history of
// at least 1,000 changes, in the long form 2,000.
func testRandom(t *testing.T, open func(testing.TB, Config) index.Index, seed uint64, fired *firings) {
	w := newWorld(seed)
	ix := open(t, Config{})
	defer func() { ix.Close() }()
	fired.seeds++
	mode := seed % 6
	modes := []index.Copies{index.CopiesGuarded, index.CopiesExact, partial, index.CopiesSet}
	// Blocks that a report hid are not looked for behind those of another unit.
	w.hybrid = seed%4 > 1
	w.mixed = !w.hybrid && (mode == 1 || mode == 3)
	w.twice = seed%12 == 7 || seed%12 == 9
	pods := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}[:[]int{2, 2, 3, 9}[w.r.IntN(4)]]
	var sources []index.Source
	for i, pod := range pods {
		sources = append(sources, index.Source{Pod: pod, Model: "m"})
		if i%2 == 0 {
			sources = append(sources, index.Source{Pod: pod, Model: "m", Rank: 1 + i})
		}
	}
	candidates := []*index.Candidates{
		index.NewCandidates("m", nil),
		index.NewCandidates("m", append([]string{"nobody"}, pods...)),
		index.NewCandidates("m", pods[:1]),
	}
	m := model{}
	var trace []step
	fail := func(diff string) {
		t.Helper()
		t.Errorf("step %d, after %v:\n%s", len(trace)-1, trace[len(trace)-1], diff)
		least, diff := shrink(trace, func(trace []step) string { return replay(t, open, w, trace) })
		t.Fatalf("%d steps of those suffice for %s\n%v", len(least), diff, least)
	}
	run := func(st step) {
		trace = append(trace, st)
		if diff := m.run(ix, w, st, fired); diff != "" {
			fail(diff)
		}
	}
	before := fired.proofs
	only := []int{full.ID, wide.ID, other.ID}[seed%3] // group of every second source
	for done := fired.ops + choose(500, 1000, 2000); fired.ops < done; {
		at, everywhere := w.r.IntN(len(sources)), w.r.IntN(20) == 0
		src := sources[at]
		if w.only = -1; at%2 > 0 || everywhere {
			w.only = only
		}
		if w.r.IntN(300) == 0 {
			run(step{src: src, remove: true})
		}
		copies := modes[mode%4]
		switch mode {
		case 4: // each source has its own
			copies = modes[(uint64(len(src.Pod))+uint64(src.Pod[0])+uint64(src.Rank))%4]
		case 5: // none
			copies = modes[w.r.IntN(4)]
		}
		var ops []op
		switch n := w.r.IntN(12); {
		case n == 0:
			ops = w.hidden(copies)
		case n == 1 && w.r.IntN(2) == 0:
			for _, o := range w.reported(copies) {
				if ops = append(ops, o); w.r.IntN(6) == 0 {
					run(step{src: src, ops: ops})
					ops = nil
				}
			}
		case n < 4 && w.hybrid:
			for _, o := range w.anchored(copies) { // of one batch, or of several
				if ops = append(ops, o); w.r.IntN(4) == 0 {
					run(step{src: src, ops: ops})
					ops = nil
				}
			}
		default:
			for range 1 + w.r.IntN(3) {
				ops = append(ops, w.op(copies, m.source(src)))
			}
		}
		if everywhere { // slabs with many holders
			for _, src := range sources {
				run(step{src: src, ops: ops})
			}
		} else {
			run(step{src: src, ops: ops})
		}
		for range 2 {
			c := candidates[w.r.IntN(len(candidates))]
			if w.r.IntN(4) == 0 {
				c = index.NewCandidates("m", c.Pods())
			}
			prompt := w.prompt()
			if w.r.IntN(4) == 0 {
				prompt = w.last
			}
			if diff := m.compare(ix, c, prompt, fired); diff != "" {
				fail(diff)
			}
		}
	}
	// Chance alone brings a proof in one history of five.
	for tries := 0; !w.hybrid && fired.proofs == before && tries < 16; tries++ {
		run(step{src: sources[0], ops: w.proved()})
		if diff := m.compare(ix, candidates[0], w.last, fired); diff != "" {
			fail(diff)
		}
	}
}

// replay returns the first difference that a history shows.
func replay(t *testing.T, open func(testing.TB, Config) index.Index, w *world, trace []step) string {
	ix := open(t, Config{})
	defer ix.Close()
	m := model{}
	var fired firings
	for _, st := range trace {
		if diff := m.run(ix, w, st, &fired); diff != "" {
			return diff
		}
	}
	prompts := map[string]bool{}
	for _, st := range trace {
		for _, o := range st.ops {
			if o.to != "" {
				prompts[(o.to + strings.Repeat("a", depth))[:max(1+depth, len(o.to))]] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(prompts)) {
		if diff := m.compare(ix, index.NewCandidates("m", nil), p, &fired); diff != "" {
			return diff
		}
	}
	return ""
}

// shrink takes steps out of a history that fails as long as it fails, and ops
// out of the steps.
func shrink(trace []step, fails func([]step) string) ([]step, string) {
	trace, diff := fewest(trace, fails)
	for i := range trace {
		for j := 0; j < len(trace[i].ops); {
			less := slices.Clone(trace)
			less[i].ops = slices.Delete(slices.Clone(trace[i].ops), j, j+1)
			if d := fails(less); d != "" {
				trace, diff = less, d
			} else {
				j++
			}
		}
	}
	return trace, diff
}

// fewest takes what it can out of a history that fails as long as it fails.
func fewest[T any](trace []T, fails func([]T) string) ([]T, string) {
	diff := fails(trace)
	if diff == "" {
		return trace, "nothing when done again"
	}
	for n := len(trace) / 2; n > 0; n /= 2 {
		for from := 0; from+n <= len(trace); {
			less := slices.Concat(trace[:from], trace[from+n:])
			if d := fails(less); d != "" {
				trace, diff = less, d
			} else {
				from += n
			}
		}
	}
	return trace, diff
}

// compare queries a prompt, with and without bits, and returns the faults of
// the answers.
func (m model) compare(ix index.Index, c *index.Candidates, prompt string, fired *firings) string {
	fired.queries++
	pods := c.Pods()
	var want []modelRow
	for src, s := range m {
		if pods == nil || slices.Contains(pods, src.Pod) {
			want = append(want, s.rows(src, prompt)...)
		}
	}
	for _, held := range []bool{true, false} {
		var got index.Matches
		if err := ix.Match(ctx, &index.Query{Candidates: c, Keys: keysOf(prompt), Held: held}, &got); err != nil {
			return err.Error()
		}
		if diff := cmp.Or(apart(got.Rows), compareRows(got.Rows, want, pods, held, fired)); diff != "" {
			return fmt.Sprintf("%s, held %v: %s", prompt, held, diff)
		}
	}
	return ""
}

// apart returns which rows of one source do not stand together, or have different
// Layouts.
func apart(rows []index.Row) string {
	of := map[index.Source]int{}
	for i, r := range rows {
		last, ok := of[r.Source]
		if ok && (r.Held != nil && last != i-1 || r.Layout != rows[last].Layout) {
			return fmt.Sprintf("rows %d and %d: %s\nand %s", last, i, rowText(rows[last]), rowText(r))
		}
		of[r.Source] = i
	}
	return ""
}

// sameView reports whether two views and their Layouts are equal.
func sameView(a, b index.View) bool {
	x, y := a.Layout, b.Layout
	a.Layout, b.Layout = nil, nil
	return a == b && slices.Equal(x.Groups, y.Groups)
}

// hasBits reports whether rows of a source have bits unasked.
func hasBits(l *index.Layout) bool { return len(l.Groups) != 1 || l.Groups[0].Kind != index.GroupFull }

// compareRows returns the faults of rows. asked: with bits in all.
func compareRows(got []index.Row, want []modelRow, pods []string, asked bool, fired *firings) string {
	found := 0
	for i := range want {
		w := want[i].row()
		held := asked || hasBits(w.Layout)
		if !held && w.Run == 0 {
			continue
		}
		found++
		j := slices.IndexFunc(got, func(r index.Row) bool {
			return r.Source == w.Source && r.Group.ID == w.Group.ID && r.BlockSize == w.BlockSize
		})
		if j < 0 {
			return fmt.Sprintf("there is no row like %s", rowText(w))
		}
		g := got[j]
		w.Pod = -1
		if pods != nil {
			w.Pod = int32(slices.Index(pods, w.Source.Pod))
		}
		if !sameView(*g.View, *w.View) || g.Pod != w.Pod || g.Run != w.Run || g.GPU != w.GPU || g.Tiers != w.Tiers {
			return fmt.Sprintf("\n got %s\nwant %s", rowText(g), rowText(w))
		}
		if diff := compareHeld(&g, &want[i], held); diff != "" {
			return fmt.Sprintf("%s: %s", rowText(g), diff)
		}
		if asked {
			fired.see(&w, &want[i])
		} else if held {
			fired.unasked++
			if w.Run == 0 {
				fired.sparse++
			}
		} else {
			fired.plain++
			if w.GPU < w.Run {
				fired.plainTiers++
			}
		}
	}
	if found != len(got) {
		for _, r := range got {
			if !slices.ContainsFunc(want, func(w modelRow) bool {
				return r.Source == w.view.Source && r.Group.ID == w.view.Group.ID && r.BlockSize == w.view.BlockSize
			}) {
				return "there is a row " + rowText(r)
			}
		}
		return fmt.Sprintf("%d rows, want %d", len(got), found)
	}
	return ""
}

func compareHeld(got *index.Row, want *modelRow, held bool) string {
	if !held || got.Held == nil {
		if held || got.Held != nil {
			return fmt.Sprintf("bits %v", got.Held)
		}
		return ""
	}
	for t := range want.held {
		var bits blockSet
		if copy(bits[:], got.Held[t]) > len(bits) || bits != want.held[t] || got.Held[t] != nil && bits == (blockSet{}) {
			return fmt.Sprintf("bits of %v: %b, want %b", index.Tier(t), got.Held[t], want.held[t])
		}
	}
	return ""
}

func rowText(r index.Row) string {
	v := *r.View
	v.Layout = nil
	return fmt.Sprintf("%+v of %+v, pod %d: run %d gpu %d tiers %v", v, *r.Layout, r.Pod, r.Run, r.GPU, r.Tiers)
}

// firings counts how often each rule was put to work.
type firings struct {
	seeds, ops, queries, rows, hits, holes    int
	removals, copyRemovals, unknown           int
	clears, tierClears, podRemovals           int
	aged, renewed                             int // blocks that went with a generation, and that were stored again
	joined, reports, chunks, lowerParts       int
	lowerBare, lowerRemovals, lowerUnknown    int // stores of hashes alone in lower tiers; blocks removed there that were held, and that were not
	recut                                     int // held blocks of lower tiers that were stored again with another size
	restored, restoredByKey, restoredByParent int
	lowerTiers, partials, finer               int
	unasked, sparse, plain, plainTiers        int // rows with bits unasked, those without a run; rows without bits, those of lower tiers
	deduced                                   int
	sparseReports, blindReports               int // of groups that are not full
	prompts, maybe, proofs                    int
}

// see counts what a row shows.
func (f *firings) see(row *index.Row, held *modelRow) {
	f.rows++
	if row.Run > 0 {
		f.hits++
	}
	var any blockSet
	for t := range held.held {
		for i := range any {
			any[i] |= held.held[t][i]
		}
	}
	for b := int(row.Run) + 1; b < 64*len(any); b++ {
		if any.has(b) {
			f.holes++
			break
		}
	}
	if row.GPU < row.Run {
		f.lowerTiers++
	}
	switch {
	case row.Group.ID == wide.ID && row.BlockSize < 32:
		f.partials++
	case row.Group.ID == other.ID:
		f.finer++
	}
}

func (f *firings) check(t *testing.T) {
	t.Helper()
	t.Logf("%+v", *f)
	// Of those of lower tiers, 42 are 1,000 in the 24 histories of the long form.
	for name, got := range map[string][2]int{
		"rows": {f.rows, 2000}, "hits": {f.hits, 1000}, "holes": {f.holes, 400}, "rows of lower tiers": {f.lowerTiers, 50},
		"partial entries": {f.partials, 20}, "rows of a finer unit": {f.finer, 50},
		"rows with bits unasked": {f.unasked, 1500}, "rows without a run": {f.sparse, 400},
		"rows without bits": {f.plain, 200}, "rows of lower tiers without bits": {f.plainTiers, 8}, "chunks": {f.chunks, 42}, "parts of blocks in lower tiers": {f.lowerParts, 2},
		"hashes placed by counting": {f.deduced, 50},
		"reports of sparse groups":  {f.sparseReports, 40}, "of them in views that are not live": {f.blindReports, 20},
		"stores behind a new prompt, times 10": {10 * f.prompts, 3}, "blocks that may be there": {f.maybe, 3}, "proofs of them, times 4": {4 * f.proofs, 1},
		"removals": {f.removals, 100}, "removals of one of several copies": {f.copyRemovals, 20},
		"removals of nothing": {f.unknown, 100}, "clears": {f.clears, 3}, "clears of a tier": {f.tierClears, 3},
		"aged": {f.aged, 20}, "stored again": {f.renewed, 30},
		"stores of hashes alone in lower tiers": {f.lowerBare, 42}, "stored again in another size": {f.recut, 42},
		"removals in lower tiers": {f.lowerRemovals, 42}, "removals of nothing in lower tiers": {f.lowerUnknown, 42},
		"pods removed": {f.podRemovals, 1}, "joined orphans": {f.joined, 20}, "reports": {f.reports, 50},
		"restored": {f.restored, 10}, "walks by key": {f.restoredByKey, 5}, "walks by the parent's hash, times 10": {10 * f.restoredByParent, 1},
	} {
		if isLong() && got[0] < got[1]*f.seeds {
			t.Errorf("%d %s, want at least %d: the test tests too little", got[0], name, got[1]*f.seeds)
		}
	}
}
