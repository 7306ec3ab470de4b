package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// crowd fills a Memory with chains of sources at its bound, and matches them.
type crowd struct {
	testing.TB
	m      *memory
	r      *rand.Rand
	stored int // blocks
}

// crowdBytes is the budget: room for 70,000 blocks of long chains.
const crowdBytes = 2 << 20

func newCrowd(tb testing.TB) *crowd {
	m, err := newMemory(MemoryConfig{Bytes: crowdBytes})
	must(tb, err)
	tb.Cleanup(func() { m.Close() })
	return &crowd{TB: tb, m: m, r: rand.New(rand.NewPCG(4, 44))}
}

// storedChain is a chain of a source.
type storedChain struct {
	src    Source
	root   Key
	locals []Local
}

func (c *crowd) store(src Source, blocks int) storedChain {
	c.Helper()
	f := filler{r: c.r}
	change := f.chain(blocks)
	if _, err := c.m.Apply(context.Background(), src, Cursor{}, []Change{change}); err != nil {
		c.Fatal(err)
	}
	if u := c.m.ground.mem.Load(); u > crowdBytes {
		c.Fatalf("%d bytes are taken of %d", u, crowdBytes)
	}
	c.stored += blocks
	return storedChain{src, change.Root, change.Locals}
}

// run returns the matched blocks of a chain.
func (c *crowd) run(of storedChain) int {
	c.Helper()
	var out Matches
	p := prompt{root: of.root, locals: of.locals}
	q := Query{Candidates: NewCandidates(of.src.Model, []string{of.src.Pod}), Keys: p.keys}
	if err := c.m.Match(context.Background(), &q, &out); err != nil {
		c.Fatal(err)
	}
	for _, row := range out.Rows {
		return int(row.Run)
	}
	return 0
}

// ask matches chains, all of which must be whole.
func (c *crowd) ask(all []storedChain) {
	c.Helper()
	lost := 0
	for _, of := range all {
		lost += len(of.locals) - c.run(of)
	}
	if lost > 0 {
		c.Fatalf("%d blocks of %d chains are lost after %d blocks were stored", lost, len(all), c.stored)
	}
}

// held returns the number of blocks of a model.
func (c *crowd) held(model string) (n int) {
	for _, info := range c.m.Describe(nil) {
		if info.Source.Model == model {
			n += info.Blocks[TierGPU]
		}
	}
	return n
}

// fill stores n blocks.
func (c *crowd) fill(model string, blocks, n int) {
	for to := c.stored + n; c.stored < to; {
		c.store(Source{Pod: fmt.Sprint(c.r.IntN(4)), Model: model}, blocks)
	}
}

// alone returns how many blocks of chains fit for a single model.
func alone(tb testing.TB, blocks int) int {
	c := newCrowd(tb)
	for c.m.MemoryUsage().Evicted == 0 {
		c.fill("m", blocks, 512)
	}
	c.fill("m", blocks, c.stored)
	return c.held("m")
}

// Models fill the budget in turn: after its turn each has at least four fifths of its blocks alone,
// whatever the chains before.
func TestTurns(t *testing.T) {
	all := [][2]int{{1, 512}, {20, 512}, {1, 20}}
	for _, lengths := range all[:choose(1, 1, len(all))] {
		t.Run(fmt.Sprint(lengths), func(t *testing.T) {
			want := [2]int{alone(t, lengths[0]), alone(t, lengths[1])}
			c := newCrowd(t)
			for turn := range 3 {
				model, alone := fmt.Sprint(turn%2), want[turn%2]
				c.fill(model, lengths[turn%2], 2*alone)
				n := c.held(model)
				t.Logf("turn %d: %d blocks, %d alone: %+v", turn, n, alone, c.m.MemoryUsage())
				if n < alone*8/10 {
					t.Errorf("turn %d: %d blocks, %d alone", turn, n, alone)
				}
			}
		})
	}
}

// A pod floods the index with unread chains at ten times the rate of others. Chains of a quarter of
// the budget, each matched once while a quarter of a budget is written, lose no block.
func TestFlood(t *testing.T) {
	for _, blocks := range []int{512, 1}[:choose(1, 1, 2)] {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) {
			quarter := alone(t, blocks) / 4
			c := newCrowd(t)
			var hot []storedChain
			for c.stored < quarter {
				hot = append(hot, c.store(Source{Pod: fmt.Sprint(c.r.IntN(4)), Model: fmt.Sprint(c.r.IntN(2))}, blocks))
			}
			for range 12 {
				c.r.Shuffle(len(hot), func(i, j int) { hot[i], hot[j] = hot[j], hot[i] })
				begun, asked := c.stored, 0
				for c.stored < begun+quarter {
					src := Source{Pod: "flood", Model: "0"}
					if c.r.IntN(11) == 0 {
						src.Pod = fmt.Sprint(c.r.IntN(4))
					}
					c.store(src, blocks)
					to := min(len(hot), len(hot)*(c.stored-begun)/quarter)
					c.ask(hot[asked:to])
					asked = to
				}
				c.ask(hot[asked:])
			}
			t.Logf("%d hot chains, %+v", len(hot), c.m.MemoryUsage())
		})
	}
}
