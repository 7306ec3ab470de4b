package reuse_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
)

// plainLoad is a plain form of the rule of loads, token by token. It only uses whether the chunk of
// a group (or the partial entry) that ends at a token can be loaded.
type plainLoad struct {
	groups []reuse.Group
	chunk  int // blocks
	grain  int // of New
	has    func(group, end int) bool

	// cases are those of the last load.
	cases map[string]bool
}

func (p *plainLoad) tokens(g int) int { return p.groups[g].Block * p.chunk }

// window returns how many chunks of a group are needed before a token; 0: all.
func (p *plainLoad) window(g int) (chunks int) {
	switch p.groups[g].Kind {
	case index.GroupFull:
		return 0
	case index.GroupMamba:
		return 1
	}
	for chunks*p.tokens(g) < p.groups[g].Window {
		chunks++
	}
	return chunks
}

// order returns the groups in the order of their lookups: full attention, then wide windows before
// narrow ones. narrow is the first of those with windows.
func (p *plainLoad) order() (order []int, narrow int) {
	widest := 0
	for g := range p.groups {
		widest = max(widest, p.window(g))
		if p.window(g) == 0 {
			order = append(order, g)
		}
	}
	narrow = len(order)
	for ; widest > 0; widest-- {
		for g := range p.groups {
			if p.window(g) == widest {
				order = append(order, g)
			}
		}
	}
	return order, narrow
}

// saved returns how many tokens of a prompt are not computed, if the GPU holds gpu.
func (p *plainLoad) saved(length, gpu int) int {
	p.cases = map[string]bool{}
	start := gpu
	for !p.isBlockEnd(start) {
		start--
	}
	end := p.loaded(length, start)
	if p.hasTails() {
		for n := min(length-1, end+p.groups[0].Block-1); n > end; n-- {
			if n%p.grain == 0 && p.allHave(n) {
				p.cases["partial tail"] = true
				end = n
				break
			}
		}
	}
	if end <= gpu {
		if start < gpu && end > start {
			p.cases["gpu tail kept"] = true
		}
		return gpu
	}
	p.cases["loads"] = true
	p.cases["gpu tail dropped"] = start < gpu
	p.cases["whole prompt"] = end == length
	return end
}

// isBlockEnd reports whether blocks of all groups end at a token.
func (p *plainLoad) isBlockEnd(n int) bool {
	for _, g := range p.groups {
		if n%g.Block != 0 {
			return false
		}
	}
	return true
}

func (p *plainLoad) allHave(end int) bool {
	for g := range p.groups {
		if !p.has(g, end) {
			return false
		}
	}
	return true
}

// hasTails reports whether a load may end inside a block.
func (p *plainLoad) hasTails() bool {
	large := false
	for _, g := range p.groups {
		if g.Kind != index.GroupFull && g.Kind != index.GroupMamba || g.Draft || g.Block != p.groups[0].Block {
			return false
		}
		large = large || g.Kind == index.GroupMamba && g.Block > p.grain
	}
	return large && p.chunk == 1 && p.grain > 0
}

// loaded returns the end of a load of chunks that begins at token start; start: nothing is loaded.
func (p *plainLoad) loaded(length, start int) int {
	order, narrow := p.order()
	end := length
	if narrow < len(order) {
		end--
	}
	for g := range p.groups {
		for p.groups[g].Kind == index.GroupMamba && end%p.tokens(g) != 0 {
			end--
		}
	}
	gave := make([]bool, len(p.groups)) // the group gave up a chunk at this end
	for round := 1; ; round++ {
		again := false
		for i, g := range order {
			if i < narrow && round > 1 {
				continue // its chunks up to the new end are there too
			}
			giveUp := p.groups[g].Draft && !gave[g]
			n := p.reach(g, start, end, length, giveUp)
			if n < start+p.tokens(g) {
				p.cases["gain below a chunk"] = n > start
				return start
			}
			gave[g] = gave[g] || giveUp
			if n < end {
				p.cases["cut by "+p.groups[g].Kind.String()] = true
				if !p.groups[g].Draft {
					clear(gave)
				}
				again = again || i > narrow
			}
			end = n
		}
		if !again {
			p.cases["second round"] = round > 1
			return end
		}
	}
}

// reach returns the token up to which a group can be loaded, at most limit.
func (p *plainLoad) reach(g, start, limit, length int, giveUp bool) int {
	size, window := p.tokens(g), p.window(g)
	lastEnd := length - length%size // no chunk ends later
	limit = min(limit, lastEnd)
	first := start - start%size // the start of the first chunk
	last := limit               // the end of the last one
	for last%size != 0 {
		last++
	}
	if giveUp && window > 0 {
		window++
		last = min(last+size, lastEnd)
	}
	// The run from the first chunk on.
	end := first
	for end < last && p.has(g, end+size) {
		end += size
	}
	if window > 0 {
		short := end
		for end = last; end > first; end -= size {
			held := 0 // chunks before end
			for held < window && end-held*size > first && p.has(g, end-held*size) {
				held++
			}
			if held == window {
				p.cases["window from the right"] = true
				break
			}
		}
		if end <= first {
			end = short
			p.cases["shorter run"] = p.cases["shorter run"] || end > first
		}
	}
	if giveUp && end > first {
		p.cases["chunk given up"] = true
		end -= size
	}
	return min(limit, end)
}

// TestLoadAgainstPlain compares loads with the plain rule, for random holdings of random groups.
func TestLoadAgainstPlain(t *testing.T) {
	n := holdingsTried()
	const perGroups = 20 // holdings of the same groups
	r := rand.New(rand.NewPCG(*seed, 1))
	counts := map[string]int{}
	for i := 0; i < n; i += perGroups {
		var p plainLoad
		p.groups, p.chunk, p.grain = randomLoadGroups(r)
		load, err := reuse.NewLoad(p.groups, p.chunk, p.grain)
		if err != nil {
			t.Fatalf("groups %+v, chunks of %d, grain %d: %v", p.groups, p.chunk, p.grain, err)
		}
		if load.Grain() > 0 != p.hasTails() {
			t.Fatalf("groups %+v, chunks of %d, grain %d: the grain is %d", p.groups, p.chunk, p.grain, load.Grain())
		}
		for range perGroups {
			length, gpu, held := p.fill(r)
			want := p.saved(length, gpu)
			if got := load.Tokens(length, gpu, held); got != want {
				t.Fatalf("groups %+v, chunks of %d, grain %d: of %d tokens %d are on the gpu and %d saved, want %d; held: %b",
					p.groups, p.chunk, p.grain, length, gpu, got, want, held)
			}
			for what, is := range p.cases {
				if is {
					counts[what]++
				}
			}
		}
	}
	for _, what := range []string{
		"loads", "cut by full", "cut by window", "cut by mamba", "cut by chunked", "window from the right", "shorter run",
		"chunk given up", "gain below a chunk", "second round", "partial tail", "gpu tail dropped", "gpu tail kept", "whole prompt",
	} {
		t.Logf("%s: %d of %d", what, counts[what], n)
		if counts[what] < n/100 {
			t.Errorf("%s: %d of %d holdings, want a hundredth", what, counts[what], n)
		}
	}
}

// randomLoadGroups returns groups that the connector accepts, its chunk and a grain.
func randomLoadGroups(r *rand.Rand) (groups []reuse.Group, chunk, grain int) {
	groups, grain = randomGroups(r)
	if r.IntN(4) == 0 { // groups that may have partial tails
		grain = groups[0].Block
		block := grain * (2 + r.IntN(4))
		return []reuse.Group{{Block: block}, {Kind: index.GroupMamba, Block: block}}, 1, grain
	}
	mamba := slices.IndexFunc(groups, func(g reuse.Group) bool { return g.Kind == index.GroupMamba })
	for i := range groups {
		if groups[i].Kind == index.GroupMamba {
			groups[i].Block = groups[mamba].Block
		}
	}
	return groups, 1 + r.IntN(4)*r.IntN(2), grain
}

// fill makes a prompt of random length, its part in the GPU, and its loadable chunks.
func (p *plainLoad) fill(r *rand.Rand) (length, gpu int, held []reuse.Held) {
	largest := 0
	for g := range p.groups {
		largest = max(largest, p.tokens(g))
	}
	length = r.IntN(largest * []int{4, 12, 30, 150}[r.IntN(4)])
	if r.IntN(3) == 0 {
		length -= length % largest // no limit inside a chunk
	}
	switch r.IntN(4) {
	case 0:
		gpu = max(length-1, 0)
	case 1, 2:
		gpu = r.IntN(1 + length/[]int{1, 4}[r.IntN(2)])
	}
	for !p.isBlockEnd(gpu) && (!p.hasTails() || gpu%p.grain != 0) {
		gpu--
	}
	held = make([]reuse.Held, len(p.groups))
	for g := range held {
		chunks := length/p.tokens(g) + r.IntN(3) // blocks after the prompt must not matter
		blocks := randomBits(r, chunks, []int{1, 2, 10, 40, 1000}[r.IntN(5)])
		for c := range chunks {
			for b := range p.chunk { // nor may those inside a chunk
				if b < p.chunk-1 && r.IntN(2) == 0 || b == p.chunk-1 && bit(blocks, c) {
					held[g].Blocks = setBit(held[g].Blocks, c*p.chunk+b)
				}
			}
		}
		if p.grain > 0 && r.IntN(4) > 0 {
			held[g].Parts = randomBits(r, length/p.grain, 4)
		}
	}
	p.has = func(g, end int) bool {
		if block := p.groups[g].Block; end%block == 0 {
			return bit(held[g].Blocks, end/block-1)
		}
		return bit(held[g].Parts, end/p.grain-1)
	}
	return length, gpu, held
}
