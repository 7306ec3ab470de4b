package indextest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// The plain model of an index. It knows prefixes as strings, a letter a unit
// behind the letter of the root, and engine hashes only as another spelling of
// them; placing is a loop over all parked stores until nothing changes.
type model map[index.Source]*modelSource

type modelSource struct {
	named  map[string]bool // prefixes that hashes were placed at
	parked []parkedStore
	held   map[modelHolder]map[string]*modelBlock
	groups map[int]index.Group
	sized  map[int]bool // groups whose block size a gpu store has told
}

type modelHolder struct {
	group int
	tier  index.Tier
}

type modelBlock struct {
	copies   int
	units    int // of the block; 0: as the group has them
	reported bool
	parent   string // "" if none is known
}

type parkedStore struct {
	parent string
	blocks []string
}

// op is a change in the words of the model.
type op struct {
	kind     index.Op
	tier     index.Tier
	group    index.Group
	copies   index.Copies
	from     string   // prefix before the range, the root's letter alone at a chain's begin
	to       string   // prefix at the end of the range
	blocks   []string // prefixes whose hashes the change lists
	bare     bool
	asParent bool // the range continues from, by its hash, even at a root
}

// unitsOf is the block size of each group, in units.
var unitsOf = map[int]int{0: 1, 1: 1, 2: 2}

var groupsOf = []index.Group{full, window, {ID: 2, Kind: index.GroupFull}}

func (m model) source(src index.Source) *modelSource {
	s := m[src]
	if s == nil {
		s = &modelSource{named: map[string]bool{}}
		s.clear()
		m[src] = s
	}
	return s
}

func (s *modelSource) clear() {
	s.parked = nil
	s.held = map[modelHolder]map[string]*modelBlock{}
	s.groups = map[int]index.Group{}
	s.sized = map[int]bool{}
}

func (s *modelSource) blocks(group int, tier index.Tier) map[string]*modelBlock {
	h := modelHolder{group, tier}
	if s.held[h] == nil {
		s.held[h] = map[string]*modelBlock{}
	}
	return s.held[h]
}

func (s *modelSource) apply(o op, fired *firings) {
	switch o.kind {
	case index.OpClear:
		fired.clears++
		s.clear()
	case index.OpRemove:
		for _, p := range o.blocks {
			b := s.blocks(o.group.ID, o.tier)[p]
			if b == nil || b.copies == 0 {
				fired.unknown++
				continue
			}
			if b.copies > 1 {
				fired.copyRemovals++
				b.copies--
				continue
			}
			fired.removals++
			b.copies = 0
			if !b.reported {
				delete(s.blocks(o.group.ID, o.tier), p)
			}
		}
	case index.OpStore:
		s.store(o, fired)
	}
}

func (s *modelSource) store(o op, fired *firings) {
	units := unitsOf[o.group.ID]
	gpu := o.tier == index.TierGPU
	if _, ok := s.groups[o.group.ID]; gpu || !ok {
		s.groups[o.group.ID] = o.group
	}
	if gpu && !o.bare {
		s.sized[o.group.ID] = true
	}
	if len(o.blocks) == 0 {
		return
	}
	hasParent := len(o.from) > 1 || o.asParent
	dense := !o.bare && len(o.blocks)*units == len(o.to)-len(o.from)
	if dense && gpu {
		s.parked = append(s.parked, parkedStore{map[bool]string{true: o.from}[hasParent], o.blocks})
		s.placeAll(fired)
	}
	blocks, size := o.blocks, units
	switch {
	case o.bare:
		size = 0
	case dense && !gpu:
		blocks, size = o.blocks[len(o.blocks)-1:], units*len(o.blocks)
	}
	held := s.blocks(o.group.ID, o.tier)
	guard := gpu && (o.copies == index.CopiesGuarded || o.copies == index.CopiesPartial)
	isFull := o.group.Kind == index.GroupFull
	if guard && !isFull && !hasParent && slices.ContainsFunc(blocks, func(p string) bool { return held[p] != nil }) {
		fired.reports++
		return
	}
	if b := held[o.from]; guard && isFull && hasParent && b != nil && b.copies == 0 {
		for p := o.from; p != ""; {
			b := held[p]
			if b == nil {
				break
			}
			if b.copies == 0 {
				fired.restored++
				b.copies = 1
			}
			p = b.parent
		}
	}
	report := guard && !hasParent
	for _, p := range blocks {
		report = report && (held[p] != nil || o.copies == index.CopiesPartial)
	}
	for i, p := range blocks {
		b := held[p]
		if b == nil {
			b = &modelBlock{}
			held[p] = b
		}
		switch {
		case b.copies == 0:
			b.copies, b.units = 1, size
		case !gpu || o.copies == index.CopiesSet:
		case report || guard && !isFull:
			fired.reports++
			b.reported = guard && isFull
		default:
			b.copies++
		}
		switch {
		case !dense:
		case i > 0:
			b.parent = blocks[i-1]
		case hasParent:
			b.parent = o.from
		default:
			b.parent = ""
		}
	}
}

func (s *modelSource) placeAll(fired *firings) {
	for again := true; again; {
		again = false
		rest := s.parked[:0:0]
		for i, p := range s.parked {
			if p.parent != "" && !s.named[p.parent] {
				rest = append(rest, p)
				continue
			}
			again = true
			if i < len(s.parked)-1 {
				fired.joined++
			}
			for _, b := range p.blocks {
				s.named[b] = true
			}
		}
		s.parked = rest
	}
}

// tiers is the set of tiers that hold the block of n units that ends at p.
func (s *modelSource) tiers(group, n int, p string) (set uint8) {
	for t := range index.Tier(index.NumTiers) {
		b := s.held[modelHolder{group, t}][p]
		if b == nil || b.copies == 0 || !s.named[p] {
			continue
		}
		if b.units == n || b.units == 0 && s.sized[group] && n == unitsOf[group] {
			set |= 1 << t
		}
	}
	return set
}

// firings counts how often each rule was put to work.
type firings struct {
	queries, hits, holes                                               int
	removals, copyRemovals, unknown, clears, joined, reports, restored int
}

func (f firings) check(t *testing.T) {
	t.Helper()
	t.Logf("%+v", f)
	for name, got := range map[string][2]int{
		"hits": {f.hits, 20000}, "holes": {f.holes, 5000}, "removals": {f.removals, 1000},
		"removals of one of several copies": {f.copyRemovals, 500}, "removals of nothing": {f.unknown, 500},
		"clears": {f.clears, 50}, "joined orphans": {f.joined, 200},
		"reports": {f.reports, 1000}, "restored": {f.restored, 50},
	} {
		if got[0] < got[1] {
			t.Errorf("%d %s, want at least %d: the test tests too little", got[0], name, got[1])
		}
	}
}

// world is the small key space: two roots, three letters, eight units.
type world struct {
	r     *rand.Rand
	last  string // prefix of the last op: the next one is often about it
	hash  map[string]index.Hash
	local map[byte]index.Local
}

const depth = 8

func (w *world) prefix() string {
	p := string("XY"[w.r.IntN(2)])
	for range depth {
		p += string("aaab"[w.r.IntN(4)])
	}
	return p
}

func (w *world) nameOf(p string) index.Hash {
	h, ok := w.hash[p]
	if !ok {
		h = index.Hash(w.r.Uint64N(1 << 62))
		w.hash[p] = h
	}
	return h
}

func (w *world) locals(p string) (l []index.Local) {
	for _, b := range []byte(p) {
		l = append(l, w.local[b])
	}
	return l
}

func (w *world) keys(p string) func(index.Variant) []index.Key {
	return func(v index.Variant) (keys []index.Key) {
		if v != variant {
			return nil
		}
		k := index.Key(p[0])
		for _, l := range w.locals(p[1:]) {
			k = index.Chain(k, l)
			keys = append(keys, k)
		}
		return keys
	}
}

// change says o in the words of the index.
func (w *world) change(o op) index.Change {
	c := index.Change{Op: o.kind, Tier: o.tier, Group: o.group, Copies: o.copies}
	for _, p := range o.blocks {
		c.Hashes = append(c.Hashes, w.nameOf(p))
	}
	if o.kind != index.OpStore || o.bare {
		return c
	}
	c.Variant, c.BlockSize = variant, unit*unitsOf[o.group.ID]
	c.Locals = w.locals(o.to[len(o.from):])
	if len(o.from) > 1 || o.asParent {
		c.HasParent, c.Parent = true, w.nameOf(o.from)
	} else {
		c.Root = index.Key(o.from[0])
	}
	return c
}

func (w *world) op(copies index.Copies, s *modelSource) op {
	p := w.last
	if p == "" || w.r.IntN(2) == 0 {
		p = w.prefix()
	}
	w.last = p
	g := groupsOf[w.r.IntN(len(groupsOf))]
	if w.r.IntN(2) == 0 {
		g = full
	}
	units := unitsOf[g.ID]
	blocks := func(from, to int) (b []string) {
		for i := from + units; i <= to; i += units {
			b = append(b, p[:1+i])
		}
		return b
	}
	from := w.r.IntN(depth/units) * units
	to := from + units*(1+w.r.IntN((depth-from)/units))
	o := op{kind: index.OpStore, group: g, copies: copies}
	switch w.r.IntN(20) {
	case 0, 1, 2, 3: // from the root: prompts, and reports
		from = 0
	case 4, 5, 6, 7, 8, 9:
		o.kind = index.OpRemove
		if w.r.IntN(4) == 0 {
			o.tier = index.TierCPU
		}
		if from = to - units; w.r.IntN(4) > 0 { // engines remove one at a time
			for ; to > units && s.held[modelHolder{g.ID, o.tier}][p[:1+to]] == nil; to -= units {
			}
			from = to - units
		}
	case 10, 11:
		o.bare, o.tier = true, index.Tier(1+w.r.IntN(2))
	case 12:
		o.tier = index.TierCPU
	case 13:
		if w.r.IntN(8) == 0 {
			return op{kind: index.OpClear}
		}
	}
	o.from, o.to, o.blocks = p[:1+from], p[:1+to], blocks(from, to)
	if g.ID == window.ID && o.kind == index.OpStore && !o.bare && w.r.IntN(2) == 0 {
		o.blocks = o.blocks[w.r.IntN(len(o.blocks)+1):] // masked
	}
	return o
}

// hidden has a prompt stored twice, which may be a report, some copies of it
// removed, and a child stored, which proves that what is left of it is there.
func (w *world) hidden(copies index.Copies) (ops []op) {
	p := w.prefix()
	n := 1 + w.r.IntN(depth-1)
	store := op{kind: index.OpStore, copies: copies, from: p[:1], to: p[:1+n]}
	for i := range n {
		store.blocks = append(store.blocks, p[:2+i])
	}
	ops = append(ops, store, store)
	for i := n; i > w.r.IntN(n); i-- {
		ops = append(ops, op{kind: index.OpRemove, blocks: []string{p[:1+i]}})
	}
	return append(ops, op{kind: index.OpStore, copies: copies, from: p[:1+n], to: p[:2+n], blocks: []string{p[:2+n]}})
}

func testRandom(t *testing.T, open func(testing.TB, Config) index.Index, seed uint64, fired *firings) {
	ix := open(t, Config{})
	defer ix.Close()
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), hash: map[string]index.Hash{}, local: map[byte]index.Local{'a': 11, 'b': 22}}
	m := model{}
	copies := []index.Copies{index.CopiesGuarded, index.CopiesExact, index.CopiesPartial, index.CopiesSet}[seed%4]
	for step := range 700 {
		src := index.Source{Pod: string("ab"[w.r.IntN(2)]), Model: "m", Rank: w.r.IntN(2)}
		if w.r.IntN(400) == 0 {
			if err := ix.Remove(context.Background(), src.Pod); err != nil {
				t.Fatal(err)
			}
			for rank := range 2 {
				delete(m, index.Source{Pod: src.Pod, Model: "m", Rank: rank})
			}
		}
		var changes []index.Change
		var did []string
		ops := w.hidden(copies)
		if w.r.IntN(12) > 0 {
			ops = ops[:0]
			for range 1 + w.r.IntN(3) {
				ops = append(ops, w.op(copies, m.source(src)))
			}
		}
		for _, o := range ops {
			m.source(src).apply(o, fired)
			changes = append(changes, w.change(o))
			did = append(did, fmt.Sprintf("%+v", o))
		}
		if _, err := ix.Apply(context.Background(), src, index.Cursor{}, changes); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if diff := m.compare(ix, w, w.prefix(), fired); diff != "" {
				t.Fatalf("step %d, after %v of %v:\n%s", step, strings.Join(did, "\n"), src, diff)
			}
		}
	}
}

// compare asks for a prompt and returns what is wrong with the answer.
func (m model) compare(ix index.Index, w *world, p string, fired *firings) string {
	var got index.Matches
	if err := ix.Match(context.Background(), &index.Query{Model: "m", Keys: w.keys(p), Held: true}, &got); err != nil {
		return err.Error()
	}
	rows := map[string]string{}
	for _, r := range got.Rows {
		var maps []string
		for tier, bits := range r.Held {
			if bits != nil {
				maps = append(maps, fmt.Sprintf("%d:%b", tier, bits))
			}
		}
		id := fmt.Sprintf("%v group %d of %d, %d full, size %d", r.Source, r.Group.ID, r.Groups, r.FullGroups, r.BlockSize)
		if rows[id] != "" {
			return "two rows for " + id
		}
		rows[id] = fmt.Sprintf("run %d gpu %d tiers %v last %v held %v", r.Run, r.GPU, r.Tiers, r.Last, maps)
	}
	want := map[string]string{}
	for src, s := range m {
		fulls := 0
		for _, g := range s.groups {
			if g.Kind == index.GroupFull {
				fulls++
			}
		}
		for g := range s.groups {
			for n := 1; n <= depth; n++ {
				id := fmt.Sprintf("%v group %d of %d, %d full, size %d", src, g, len(s.groups), fulls, n*unit)
				if text := s.row(g, n, p, fired); text != "" {
					want[id] = text
				}
			}
		}
	}
	fired.queries++
	for id := range want {
		if rows[id] != want[id] {
			return fmt.Sprintf("%s of %s:\n got %s\nwant %s", p, id, rows[id], want[id])
		}
	}
	for id := range rows {
		if want[id] == "" {
			return fmt.Sprintf("%s of %s:\n got %s\nwant none", p, id, rows[id])
		}
	}
	return ""
}

func (s *modelSource) row(group, n int, p string, fired *firings) string {
	var tiers [index.NumTiers]int
	var bits [index.NumTiers]uint64
	run, gpu, blocks := 0, 0, depth/n
	last := index.Tier(0)
	var all uint8
	for i := range blocks {
		set := s.tiers(group, n, p[:1+(i+1)*n])
		all |= set
		for t := range index.Tier(index.NumTiers) {
			if set&(1<<t) != 0 {
				bits[t] |= 1 << i
			}
		}
		if set == 0 || run < i {
			if set != 0 {
				fired.holes++
			}
			continue
		}
		run++
		for last = 0; set&(1<<last) == 0; last++ {
		}
		tiers[last]++
		if last == index.TierGPU && gpu == i {
			gpu++
		}
	}
	if all == 0 {
		return ""
	}
	if run > 0 {
		fired.hits++
	}
	var maps []string
	for t, b := range bits {
		if all&(1<<t) != 0 {
			maps = append(maps, fmt.Sprintf("%d:%b", t, []uint64{b}))
		}
	}
	return fmt.Sprintf("run %d gpu %d tiers %v last %v held %v", run, gpu, tiers, last, maps)
}
