package indextest

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashunit"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/trace"
)

func TestPlain(t *testing.T) {
	Run(t, func(_ testing.TB, c Config) index.Index { return NewPlain([16]byte{1}, c) })
}

// TestMemoryAgainstPlain makes the same random changes in Memory and Plain. Their hashes, parents,
// groups and tokens contradict each other sometimes or always, unlike those of engines.
func TestMemoryAgainstPlain(t *testing.T) {
	seeds := cmp.Or(*seedsFlag, choose(5, 10, 0))
	var total index.Counts
	steps, deduced := 0, 0
	var traced traceCounts
	cost := costOfMemory(t)
	for i := range seeds {
		seed := *fromFlag + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newHostile(seed, cost)
			counts, n := w.run(t, 600)
			total.Add(counts)
			steps += n
			traced.add(w.traced)
			deduced += w.deduced
		}) {
			return
		}
	}
	t.Logf("%d steps: %+v; %d placed by counting; %+v", steps, total, deduced, traced)
	for name, got := range map[string][2]uint64{
		"parked": {total.Parked, 500}, "joined": {total.Joined, 50}, "dropped": {total.Dropped, 200}, "forgotten": {total.Forgotten, 5},
		"reports": {total.Reports, 200}, "restored": {total.Restored, 20}, "ambiguous": {total.Ambiguous, 100}, "cleared": {total.Cleared, 50},
		"placed by counting": {uint64(deduced), 300},
		"traced removals":    {traced.gone[trace.GoneRemoved], 1000}, "traced clears": {traced.gone[trace.GoneCleared], 1000},
		"traced reports": {traced.gone[trace.GoneHidden], 100}, "traced parked stores": {traced.parked, 1000}, "traced unplaced hashes": {traced.unplaced, 1000},
	} {
		if seeds >= 40 && got[0]*40 < got[1]*uint64(seeds) { // the rarest cases come in few seeds
			t.Errorf("%d %s, want at least %d of 40 seeds: the test tests too little", got[0], name, got[1])
		}
	}
}

// hostile makes random changes and prompts.
type hostile struct {
	r       *rand.Rand
	bounds  Config
	cost    plainCost
	clears  bool
	sources []index.Source
	copies  []index.Copies
	lies    int  // percentage of random parents, groups and the like
	hashes  int  // number of hashes
	masked  bool // some stores are masked
	tidy    bool // a prefix has one hash, and a group has blocks of one size
	one     bool // a source has one group
	prompts [][]index.Local
	only    []index.Local // if not nil, the prompt of all that follows
	last    index.Change  // the last store, which is often used again
	traced  traceCounts
	// deduced counts hashes of masked stores that were placed by others.
	deduced int
}

// traceCounts counts the contents of Traces.
type traceCounts struct {
	gone             [trace.GoneHidden + 1]uint64
	parked, unplaced uint64
}

func (c *traceCounts) add(d traceCounts) {
	for i, n := range d.gone {
		c.gone[i] += n
	}
	c.parked += d.parked
	c.unplaced += d.unplaced
}

func newHostile(seed uint64, cost plainCost) *hostile {
	w := &hostile{r: rand.New(rand.NewPCG(seed, 7)), cost: cost}
	w.lies = []int{0, 1, 5, 20, 100}[seed%5]
	w.hashes = []int{1021, 1021, 101, 19}[w.r.IntN(4)]
	w.copies = []index.Copies{index.CopiesGuarded, index.CopiesGuarded, index.CopiesExact, index.CopiesSet}[w.r.IntN(3):]
	w.tidy, w.masked = w.r.IntN(3) > 0, seed%2 > 0
	w.one = w.r.IntN(3) == 0
	for pod := range 1 + w.r.IntN(3) {
		w.sources = append(w.sources, index.Source{Pod: fmt.Sprint(pod), Model: "m"}, index.Source{Pod: fmt.Sprint(pod), Model: "m", Rank: 1})
	}
	// Names cleared together are forgotten in no defined order.
	if w.clears = w.r.IntN(3) > 0; !w.clears {
		w.bounds.IdleNames = 1 + w.r.IntN(4)
	}
	for range 1 + w.r.IntN(6) {
		w.prompts = append(w.prompts, newPrompt(w.r))
	}
	if w.r.IntN(2) == 0 {
		w.bounds.PendingBytes = 1 << (10 + w.r.IntN(4))
	}
	return w
}

// run makes up to n changes, and returns their Counts.
func (w *hostile) run(t *testing.T, n int) (total index.Counts, done int) {
	var trace []hostileStep
	for range n {
		src := w.sources[min(w.r.IntN(2*len(w.sources)), len(w.sources)-1)] // one source writes most
		changes := []index.Change{w.change()}
		for w.r.IntN(3) == 0 {
			changes = append(changes, w.change())
		}
		if w.masked && w.r.IntN(2) == 0 {
			changes = w.anchored()
		}
		trace = append(trace, hostileStep{src, changes, w.prompt()})
	}
	total, done, diff := w.replay(trace)
	if diff != "" {
		t.Error(diff)
		fails := func(trace []hostileStep) string {
			_, _, diff := w.replay(trace)
			return diff
		}
		trace, diff = fewest(trace, fails)
		for i := range trace {
			trace[i].changes, diff = fewest(trace[i].changes, func(changes []index.Change) string {
				less := slices.Clone(trace)
				less[i].changes = changes
				return fails(less)
			})
		}
		t.Errorf("%d steps of those suffice for %s\n%+v", len(trace), diff, trace)
	}
	return total, done
}

// hostileStep is an Apply, and the prompt compared after it.
type hostileStep struct {
	src     index.Source
	changes []index.Change
	prompt  []index.Local
}

// replay returns the first difference in a history, up to a choice.
func (w *hostile) replay(trace []hostileStep) (total index.Counts, done int, diff string) {
	memory, err := inmemory.New(index.MemoryConfig{})
	if err != nil {
		return total, 0, err.Error()
	}
	defer memory.Close()
	memory.SetBounds(w.bounds.PendingBytes, w.bounds.IdleNames)
	plain := newPlain(memory.Seed(), w.bounds)
	plain.cost = w.cost
	for i, st := range trace {
		s := plain.source(st.src)
		before := s.deduced
		if s.leavesAChoice() {
			return total, i, ""
		}
		a, errA := memory.Apply(ctx, st.src, index.Cursor{}, st.changes)
		b, errB := plain.Apply(ctx, st.src, index.Cursor{}, st.changes)
		total.Add(a.Counts)
		w.deduced += s.deduced - before
		if a != b || errA != nil || errB != nil {
			diff = fmt.Sprintf("memory %+v, %v\nplain  %+v, %v", a, errA, b, errB)
		} else if a, b := described(memory), described(plain); !maps.Equal(a, b) {
			diff = fmt.Sprintf("memory %+v\nplain  %+v", a, b)
		} else {
			diff = cmp.Or(w.compare(memory, plain, st.prompt), w.compareTraces(memory, plain, st.prompt, 8<<(i%3)))
		}
		if diff != "" {
			return total, i, fmt.Sprintf("step %d, after %+v:\n%s", i, st, diff)
		}
	}
	return total, len(trace), ""
}

// costOfMemory measures the cost of waiting stores in Memory: stores above the bound are dropped at
// once.
func costOfMemory(t *testing.T) plainCost {
	of := func(hashes, locals int) int {
		c := index.Change{
			Op: index.OpStore, Copies: index.CopiesExact, Hashes: make([]index.Hash, hashes), HasParent: true, Parent: 1,
			Variant: variant, BlockSize: unit * locals / hashes, Locals: make([]index.Local, locals),
		}
		return 1 + sort.Search(1<<16, func(bound int) bool {
			memory, err := inmemory.New(index.MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer memory.Close()
			memory.SetBounds(bound+1, 0)
			done, err := memory.Apply(ctx, podA, index.Cursor{}, []index.Change{c})
			if err != nil {
				t.Fatal(err)
			}
			return done.Counts.Dropped == 0
		})
	}
	one, longer, two := of(1, 1), of(1, 2), of(2, 2)
	return plainCost{2*one - two, two - longer, longer - one}
}

// leavesAChoice reports whether a report hid a block while a prefix has two names in the GPU. The
// contract leaves open which one returns.
func (s *plainSource) leavesAChoice() bool {
	named := map[plainKey]*plainName{}
	hidden, twice := false, false
	for _, n := range s.names {
		for _, b := range n.held {
			if b.at.tier != index.TierGPU {
				continue
			}
			hidden = hidden || b.n == 0
			for _, k := range n.keys {
				twice = twice || named[k] != nil && named[k] != n
				named[k] = n
			}
		}
	}
	return hidden && twice
}

func described(d index.Describer) map[index.Source]index.SourceInfo {
	of := map[index.Source]index.SourceInfo{}
	for _, info := range d.Describe(nil) {
		of[info.Source] = info
	}
	return of
}

const hostileUnits = 16 // of 8 tokens: a prompt

func newPrompt(r *rand.Rand) (prompt []index.Local) {
	for range hostileUnits {
		prompt = append(prompt, index.Local(r.IntN(8)/7))
	}
	return prompt
}

func (w *hostile) prompt() []index.Local {
	if w.only != nil {
		return w.only
	}
	return w.prompts[w.r.IntN(len(w.prompts))]
}

// cut returns the root of a prompt and its locals in a variant.
func cut(prompt []index.Local, v index.Variant) (root index.Key, locals []index.Local) {
	for i := 0; i < len(prompt); i += v.Unit / 8 {
		l := prompt[i] << 1
		if v.Unit == 16 {
			l |= prompt[i+1]
		}
		locals = append(locals, l)
	}
	return index.Key(v.Unit), locals
}

// hostileGroups: if tidy, groups 3 and 4 have blocks of 16 tokens, and their boundaries are blocks
// of group 2, of 32 tokens; a run of group 4 is longer.
var hostileGroups = []index.Group{
	{}, {}, {}, {}, {}, {}, {ID: 1, Kind: index.GroupWindow, Window: 32}, {ID: 2}, {ID: 2},
	{ID: 3, Kind: index.GroupWindow, Window: 17, Draft: true}, {ID: 3, Kind: index.GroupWindow, Window: 17, Draft: true},
	{ID: 4, Kind: index.GroupWindow, Window: 64}, {ID: 5, Kind: index.GroupWindow, Window: 64, Draft: true},
	{ID: 6, Kind: index.GroupMamba}, {ID: 7, Kind: index.GroupChunked, Window: 32},
}

func (w *hostile) change() index.Change {
	r := w.r
	c := index.Change{
		Group:  hostileGroups[r.IntN(len(hostileGroups))],
		Tier:   []index.Tier{index.TierGPU, index.TierGPU, index.TierGPU, index.TierGPU, index.TierCPU, index.TierDisk}[r.IntN(6)],
		Copies: w.copies[r.IntN(len(w.copies))], Partial: r.IntN(40) == 0, Reused: r.IntN(20) == 0, Unique: w.clears && r.IntN(4) == 0,
	}
	if w.one {
		c.Group = index.Group{}
	}
	switch n := r.IntN(200); {
	case !w.clears:
	case n == 0:
		return index.Change{Op: index.OpClear}
	case n < 3:
		return index.Change{Op: index.OpClearTier, Tier: c.Tier}
	case n < 12 && c.Tier != index.TierGPU:
		return index.Change{Op: index.OpAge, Tier: c.Tier}
	}
	again := w.last
	switch n := r.IntN(5); {
	case len(again.Hashes) == 0:
	case n == 0:
		return again
	case n < 3:
		again.Op = index.OpRemove
		from := r.IntN(len(again.Hashes))
		again.Hashes = again.Hashes[from : from+1+r.IntN(len(again.Hashes)-from)]
		return again
	}
	return w.about(c)
}

// anchored stores a probably new prompt: its larger blocks, and masked stores that these may place.
func (w *hostile) anchored() (changes []index.Change) {
	w.only = newPrompt(w.r)
	w.only[0] = index.Local(w.r.IntN(1 << 10))
	w.prompts[w.r.IntN(len(w.prompts))] = w.only
	for _, g := range [][]index.Group{hostileGroups[8:9], hostileGroups[9:13], hostileGroups[9:13]} {
		c := index.Change{Group: g[w.r.IntN(len(g))], Copies: w.copies[w.r.IntN(len(w.copies))]}
		changes = append(changes, w.about(c))
	}
	w.only = nil
	w.r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	return changes
}

// about makes c a removal or a store of a part of a prompt.
func (w *hostile) about(c index.Change) index.Change {
	r := w.r
	lie := func() bool { return r.IntN(100) < w.lies }
	c.BlockSize = []int{16, 16, 32, 8}[r.IntN(4)]
	if w.tidy {
		c.BlockSize = []int{16, 8, 32, 16, 16, 16, 32, 16}[c.Group.ID]
	}
	switch {
	case w.one || !lie():
	case w.tidy:
		c.Group.Kind = index.GroupKind(r.IntN(2))
	default:
		c.Group.ID = r.IntN(8)
	}
	c.Variant = index.Variant{Unit: hashunit.Of(c.BlockSize)}
	root, locals := cut(w.prompt(), c.Variant)
	units := c.BlockSize / c.Variant.Unit
	blocks := len(locals) / units
	from := r.IntN(blocks)
	if r.IntN(3) == 0 || w.only != nil && r.IntN(4) > 0 {
		from = 0
	}
	to := from + 1 + r.IntN(min(blocks-from, 4))
	if w.only != nil {
		to = blocks
	}
	key := root
	var ends []index.Key
	for i, l := range locals {
		if key = index.Chain(key, l); (i+1)%units == 0 {
			ends = append(ends, key)
		}
	}
	hash := func(end index.Key) index.Hash {
		if !w.tidy && lie() {
			return index.Hash(r.IntN(40))
		}
		return index.Hash(end) % index.Hash(w.hashes)
	}
	for _, end := range ends[from:to] {
		c.Hashes = append(c.Hashes, hash(end))
	}
	if r.IntN(6) == 0 {
		if c.Op = index.OpRemove; r.IntN(8) == 0 {
			for range c.Hashes {
				c.Remaining = append(c.Remaining, uint32(r.IntN(3)))
			}
		}
		return c
	}
	c.Op, c.Root = index.OpStore, root
	if from > 0 || lie() {
		c.HasParent, c.Parent = true, hash(ends[max(from, 1)-1])
		if lie() {
			c.Parent = hash(ends[r.IntN(len(ends))])
		}
	}
	c.UncertainLocals = r.IntN(8) == 0
	switch n := r.IntN(12); {
	case n < 2: // by hash alone
		c.Locals = nil
		w.last = c
		return c
	case n > 8 || n > 3 && c.Group.ID > 2: // masked
		c.Hashes = slices.DeleteFunc(c.Hashes, func(index.Hash) bool { return len(c.Hashes) > 1 && r.IntN(3) == 0 })
	}
	c.Locals = locals[from*units : to*units]
	w.last = c
	return c
}

// compare matches a prompt in both, and returns the difference.
func (w *hostile) compare(a, b index.Index, prompt []index.Local) string {
	of := index.NewCandidates("m", []string{"2", "nobody", "0", "1"})
	keys := func(v index.Variant) (keys []index.Key, err error) {
		key, locals := cut(prompt, v)
		for _, l := range locals {
			key = index.Chain(key, l)
			keys = append(keys, key)
		}
		return keys, nil
	}
	for _, held := range []bool{false, true} {
		var all [2]index.Matches
		for i, ix := range []index.Index{a, b} {
			if err := ix.Match(ctx, &index.Query{Candidates: of, Keys: keys, Held: held}, &all[i]); err != nil {
				return err.Error()
			}
		}
		memory, plain := onlyIn(all[0].Rows, all[1].Rows), onlyIn(all[1].Rows, all[0].Rows)
		if len(memory)+len(plain) > 0 || len(all[0].Rows) != len(all[1].Rows) {
			return fmt.Sprintf("held %v: memory %q\nplain  %q", held, memory, plain)
		}
	}
	return ""
}

// onlyIn returns the rows of a that b lacks.
func onlyIn(a, b []index.Row) (rows []string) {
	for _, r := range a {
		if slices.ContainsFunc(b, func(o index.Row) bool { return sameRow(r, o) }) {
			continue
		}
		text := rowText(r)
		if r.Held != nil {
			text += fmt.Sprint(*r.Held)
		}
		rows = append(rows, text)
	}
	return rows
}

// sameRow compares the contents of Layouts and bits.
func sameRow(a, b index.Row) bool {
	if !sameView(*a.View, *b.View) || (a.Held == nil) != (b.Held == nil) {
		return false
	}
	if a.Held != nil && !slices.EqualFunc(a.Held[:], b.Held[:], slices.Equal) {
		return false
	}
	a.View, a.Held, b.View, b.Held = nil, nil, nil, nil
	return a == b
}

// compareTraces traces the blocks of a prompt, of size tokens each, in both, and returns the
// difference.
func (w *hostile) compareTraces(a, b inmemory.Explainer, prompt []index.Local, size int) string {
	v := index.Variant{Unit: hashunit.Of(size)}
	key, locals := cut(prompt, v)
	units := size / v.Unit
	for i, l := range locals {
		if key = index.Chain(key, l); (i+1)%units != 0 {
			continue
		}
		of := inmemory.Block{Variant: v, Size: size, Number: i / units, Key: key, Locals: locals}
		for _, src := range w.sources {
			one, errA := a.Explain(ctx, src, of)
			two, errB := b.Explain(ctx, src, of)
			if one != two || errA != nil || errB != nil {
				return fmt.Sprintf("%v: block %d of %d tokens: memory %+v, %v\nplain  %+v, %v", src, i/units, size, one, errA, two, errB)
			}
			w.traced.gone[one.Gone]++
			w.traced.parked += uint64(min(one.Parked, 1))
			w.traced.unplaced += uint64(min(one.Unplaced, 1))
		}
	}
	return ""
}
