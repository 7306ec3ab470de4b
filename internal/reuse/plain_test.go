package reuse_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
)

var (
	holdings = flag.Int("reuse.holdings", 0, "random holdings of TestAgainstPlain and of TestLoadAgainstPlain; 0: 100,000, with -short 20,000; long form: 1000000")
	seed     = flag.Uint64("reuse.seed", 1, "of the tests with random holdings")
)

// plain is a plain form of the rule, token by token. It only uses whether a group holds the block
// (or the partial entry) that ends at a token.
type plain struct {
	groups []reuse.Group
	grain  int
	holds  func(group, end int) bool

	kinds   [][]int // groups of one specification, full attention first
	align   int     // a hit ends at its multiples
	partial bool    // hits may end inside a block

	// These describe the last hit.
	cut    [index.GroupOther]bool // kinds that shortened it
	gaveUp bool                   // a block was given up
	rounds int
}

// setUp finds the kinds and the alignment.
func (p *plain) setUp() {
	var full, others [][]int
	for i, g := range p.groups {
		list := &others
		if g.Kind == index.GroupFull {
			list = &full
		}
		at := -1
		for k, members := range *list {
			if h := p.groups[members[0]]; h.Kind == g.Kind && h.Window == g.Window && h.Block == g.Block {
				at = k
			}
		}
		if at < 0 {
			*list = append(*list, []int{i})
		} else {
			(*list)[at] = append((*list)[at], i)
		}
	}
	p.kinds = append(full, others...)
	p.align = 1
	largerMamba, allFit := false, true
	for _, g := range p.groups {
		for step := p.align; p.align%g.Block != 0; p.align += step {
		}
		largerMamba = largerMamba || g.Kind == index.GroupMamba && g.Block > p.grain
		allFit = allFit && (g.Kind == index.GroupFull || g.Kind == index.GroupMamba || g.Block == p.grain)
	}
	if p.partial = p.grain > 0 && largerMamba && allFit && len(p.kinds) > 1; p.partial {
		p.align = p.grain
	}
}

// has reports whether all groups of a kind hold the block that ends at a token.
func (p *plain) has(kind []int, end int) bool {
	for _, g := range kind {
		if !p.holds(g, end) {
			return false
		}
	}
	return true
}

// drafts reports whether a kind has draft layers.
func (p *plain) drafts(kind []int) bool {
	for _, g := range kind {
		if p.groups[g].Draft {
			return true
		}
	}
	return false
}

// unit returns the tokens that a kind gives up.
func (p *plain) unit(kind []int) int {
	if g := p.groups[kind[0]]; g.Kind != index.GroupFull || !p.partial {
		return g.Block
	}
	return p.grain
}

// reusable returns how many tokens of a prompt are reused.
func (p *plain) reusable(length int) int {
	p.cut, p.gaveUp, p.rounds = [index.GroupOther]bool{}, false, 0
	most := max(length-1, 0)
	agreed := most
	// A kind gives up its block once for each candidate. A kind that gives nothing up makes a new
	// candidate by shortening it.
	candidate, gave := 1, make([]int, len(p.kinds))
	for again := true; again; {
		p.rounds++
		n := agreed
		for k, kind := range p.kinds {
			g := p.groups[kind[0]]
			if g.Kind == index.GroupFull && p.rounds > 1 {
				continue
			}
			giveUp := p.drafts(kind) && gave[k] != candidate
			look := n
			if giveUp && g.Kind != index.GroupMamba {
				look = min(n+p.unit(kind), most)
			}
			got := p.longest(kind, look, giveUp)
			if got < n {
				p.cut[g.Kind] = true
			}
			if giveUp {
				gave[k] = candidate
			} else if got < n {
				candidate++
			}
			n = got
		}
		simple := len(p.kinds) == 2 && p.groups[p.kinds[0][0]].Kind == index.GroupFull
		again = n < agreed && len(p.kinds) > 1 && !simple
		agreed = n
	}
	return agreed
}

// longest returns the longest prefix that a kind can use, at most limit.
func (p *plain) longest(kind []int, limit int, giveUp bool) int {
	g := p.groups[kind[0]]
	size := g.Block
	n := 0
	switch g.Kind {
	case index.GroupMamba:
		for n = limit; n > 0; n-- {
			if n%p.align == 0 && (n%size == 0 || p.partial) && p.has(kind, n) {
				break
			}
		}
		return n
	case index.GroupChunked:
		n = limit - limit%g.Window
		n -= n % size
		for n+size <= limit && p.has(kind, n+size) {
			n += size
		}
		return n
	case index.GroupFull:
		for n+size <= limit && p.has(kind, n+size) {
			n += size
		}
		if p.partial {
			inside := n
			for end := n + p.grain; end < n+size && end <= limit; end += p.grain {
				if p.has(kind, end) {
					inside = end
				}
			}
			n = inside
		}
		if giveUp && n > 0 {
			p.gaveUp = true
			n -= p.unit(kind)
		}
		return n / p.align * p.align
	}
	// A window needs the blocks before a boundary, and the one after it that is given up.
	past := 0
	if giveUp {
		past = size
	}
	for boundary := limit - past; boundary >= 0; boundary-- {
		if boundary%p.align != 0 || boundary%size != 0 {
			continue
		}
		start := boundary - (g.Window-1+size-1)/size*size
		if start == boundary && past == 0 {
			start -= size // a block is looked up even if none is needed
		}
		if start >= 0 && p.hasAll(kind, start, boundary+past) {
			p.gaveUp = p.gaveUp || giveUp
			return boundary
		}
	}
	// Otherwise the run from token 0 counts, up to the start of the search.
	for n+size <= limit && p.has(kind, n+size) {
		n += size
	}
	for n > 0 && (n-past)%p.align != 0 {
		n -= size
	}
	n -= n % p.align
	if giveUp && n > 0 {
		p.gaveUp = true
		n -= size
		n -= n % p.align
	}
	return n
}

// hasAll reports whether a kind has all blocks from token start to token end.
func (p *plain) hasAll(kind []int, start, end int) bool {
	for size := p.groups[kind[0]].Block; start < end; start += size {
		if !p.has(kind, start+size) {
			return false
		}
	}
	return true
}

// holdingsTried returns -reuse.holdings, or its default.
func holdingsTried() int {
	switch {
	case *holdings > 0:
		return *holdings
	case testing.Short():
		return 20_000
	}
	return 100_000
}

// TestAgainstPlain compares the rule with the plain one, for random holdings of random groups.
func TestAgainstPlain(t *testing.T) {
	n := holdingsTried()
	const perGroups = 20 // holdings of the same groups
	r := rand.New(rand.NewPCG(*seed, 0))
	counts := map[string]int{}
	var kept holding
	for i := 0; i < n; i += perGroups {
		p := plain{holds: kept.holds}
		p.groups, p.grain = randomGroups(r)
		p.setUp()
		plan, err := reuse.New(p.groups, p.grain)
		if err != nil {
			t.Fatalf("groups %+v, grain %d: %v", p.groups, p.grain, err)
		}
		for range perGroups {
			length := kept.fill(r, &p)
			want := p.reusable(length)
			p.count(counts, want)
			if got := plan.Tokens(length, kept.held); got != want {
				t.Fatalf("groups %+v, grain %d: of %d tokens %d are reused, want %d; held: %b", p.groups, p.grain, length, got, want, kept.held)
			}
		}
	}
	for _, what := range []string{
		"cut by full", "cut by window", "cut by mamba", "cut by chunked", "block given up", "ends inside a block",
		"unequal blocks", "equal groups", "three rounds",
	} {
		t.Logf("%s: %d of %d", what, counts[what], n)
		if counts[what] < n/100 {
			t.Errorf("%s: %d of %d holdings, want a hundredth", what, counts[what], n)
		}
	}
}

// count counts the cases of the last hit, n tokens long.
func (p *plain) count(counts map[string]int, n int) {
	if n == 0 {
		return
	}
	for kind, cut := range p.cut {
		if cut {
			counts["cut by "+index.GroupKind(kind).String()]++
		}
	}
	inside, unequal := false, false
	for _, g := range p.groups {
		inside = inside || n%g.Block != 0
		unequal = unequal || g.Block != p.groups[0].Block
	}
	for what, is := range map[string]bool{
		"block given up": p.gaveUp, "ends inside a block": inside, "unequal blocks": unequal && !p.partial,
		"equal groups": len(p.kinds) < len(p.groups), "three rounds": p.rounds >= 3,
	} {
		if is {
			counts[what]++
		}
	}
}

// randomGroups returns groups that vLLM accepts, and a grain.
func randomGroups(r *rand.Rand) (groups []reuse.Group, grain int) {
	unit := []int{1, 2, 3, 16}[r.IntN(4)]
	chunked := r.IntN(4) == 0 // all blocks are equal
	draft := r.IntN(3) == 0
	for range 1 + r.IntN(4) {
		g := reuse.Group{Kind: index.GroupKind(r.IntN(3)), Block: unit}
		if chunked && r.IntN(2) == 0 {
			g.Kind = index.GroupChunked
		}
		if !chunked && r.IntN(2) == 0 {
			g.Block *= 1 + r.IntN(4)
		}
		switch g.Kind {
		case index.GroupWindow:
			g.Window = 1 + r.IntN(unit*[]int{4, 10, 100}[r.IntN(3)])
		case index.GroupChunked:
			g.Window = 1 + r.IntN(30*unit)
		}
		g.Draft = draft && g.Kind != index.GroupChunked && r.IntN(2) == 0
		groups = append(groups, g)
		if r.IntN(8) == 0 {
			groups = append(groups, g)
		}
	}
	if r.IntN(3) == 0 {
		grain = unit
	}
	return groups, grain
}

// holding is the held blocks of groups, in bits.
type holding struct {
	held   []reuse.Held
	groups []reuse.Group
	grain  int
}

func (h *holding) holds(group, end int) bool {
	if size := h.groups[group].Block; end%size == 0 {
		return bit(h.held[group].Blocks, end/size-1)
	}
	return h.grain > 0 && bit(h.held[group].Parts, end/h.grain-1)
}

func bit(words []uint64, i int) bool { return i/64 < len(words) && words[i/64]>>(i%64)&1 == 1 }

// fill makes a prompt of random length and its held blocks.
func (h *holding) fill(r *rand.Rand, p *plain) (length int) {
	unit := p.groups[0].Block
	length = r.IntN(unit * []int{10, 40, 150}[r.IntN(3)])
	h.groups, h.grain = p.groups, p.grain
	h.held = make([]reuse.Held, len(p.groups))
	for g := range h.held {
		blocks := length/p.groups[g].Block + r.IntN(3) // blocks after the prompt must not matter
		h.held[g].Blocks = randomBits(r, blocks, []int{1, 2, 10, 40, 1000}[r.IntN(5)])
		if p.grain > 0 && r.IntN(4) > 0 {
			h.held[g].Parts = randomBits(r, length/p.grain, 2)
			for i := range h.held[g].Parts {
				h.held[g].Parts[i] &= r.Uint64()
			}
			h.dropWhole(g)
		}
	}
	return length
}

// dropWhole removes the partial entries that end at a block's end.
func (h *holding) dropWhole(g int) {
	for end := h.groups[g].Block; end/h.grain-1 < 64*len(h.held[g].Parts); end += h.groups[g].Block {
		i := end/h.grain - 1
		h.held[g].Parts[i/64] &^= 1 << (i % 64)
	}
}

// randomBits returns n bits in runs of at most most, with shorter gaps between them.
func randomBits(r *rand.Rand, n, most int) []uint64 {
	words := make([]uint64, (n+63)/64)
	for i := 0; i < n; i += 1 + r.IntN(1+most/4) {
		for end := min(n, i+1+r.IntN(most)); i < end; i++ {
			words[i/64] |= 1 << (i % 64)
		}
	}
	return words
}
