package indextest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// The model of generations: a lower tier's block and how many generations began since it was
// stored last, and nothing else. The random histories add prefixes, copies and several names.
type (
	agedSource map[agedBlock]*agedState
	agedBlock  struct {
		group int
		tier  index.Tier
		n     int // in the prompt, in blocks of one size
	}
	agedState struct{ age, size int }
)

// agings count what was done to blocks that were not of the newest generation.
type agings struct{ renewed, removed, cleared, podsRemoved, dropped, droppedTwice, recut int }

const agedBlocks = 8 // of the prompt

var (
	agedGroups = []index.Group{full, {ID: 3, Kind: index.GroupMamba}}
	agedTiers  = []index.Tier{index.TierCPU, index.TierDisk}
)

// drop drops the blocks for which gone is true, and returns how many of them were aged.
func (s agedSource) drop(gone func(agedBlock, *agedState) bool) (aged int) {
	maps.DeleteFunc(s, func(b agedBlock, st *agedState) bool {
		if !gone(b, st) {
			return false
		}
		aged += min(st.age, 1)
		return true
	})
	return aged
}

// testAges has sources store, remove, clear and age, and compares the rows after each Apply.
func testAges(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{})
	defer ix.Close()
	it := &tester{T: t, ix: ix}
	r := rand.New(rand.NewPCG(7, 7))
	c := newChain(1, agedBlocks)
	var saw agings
	held := map[string]agedSource{}
	lastDrop := map[string]int{} // the step in which a generation with blocks went
	for step := range choose(200, 800, 30_000) {
		src := []index.Source{podA, podB}[r.IntN(2)]
		s := held[src.Pod]
		var changes []index.Change
		if s == nil {
			s = agedSource{}
			held[src.Pod] = s
			for _, g := range agedGroups {
				changes = append(changes, inGroup(g, c.store(0, agedBlocks)))
			}
		}
		var did []string
		before := saw.dropped
		for range 1 + r.IntN(3) {
			ch, what := agedChange(r, c, s, &saw)
			if ch.Op == index.OpAge && what == "dropped" {
				if last, ok := lastDrop[src.Pod]; ok && step-last < 4 {
					saw.droppedTwice++
				}
				lastDrop[src.Pod] = step
			}
			changes, did = append(changes, ch), append(did, fmt.Sprintf("%s op %d tier %v group %d: %x", what, ch.Op, ch.Tier, ch.Group.ID, ch.Hashes))
			if ch.Op == index.OpClear {
				for _, g := range agedGroups {
					changes = append(changes, inGroup(g, c.store(0, agedBlocks)))
				}
			}
		}
		if got := it.apply(src, changes...).Aged; got != uint64(saw.dropped-before) {
			t.Fatalf("step %d, %v, %s: %d blocks aged out, want %d", step, src, strings.Join(did, "; "), got, saw.dropped-before)
		}
		if r.IntN(12) == 0 {
			if s.drop(func(agedBlock, *agedState) bool { return true }) > 0 {
				saw.podsRemoved++
			}
			it.remove(src.Pod)
			delete(held, src.Pod)
		}
		if diff := agedDiff(it, c, held); diff != "" {
			t.Fatalf("step %d, %v, %s:\n%s", step, src, strings.Join(did, "; "), diff)
		}
	}
	t.Logf("%+v", saw)
	for what, n := range map[string]int{
		"stored again": saw.renewed, "removed": saw.removed, "cleared": saw.cleared, "pods removed": saw.podsRemoved,
		"dropped": saw.dropped, "dropped twice in a row": saw.droppedTwice, "stored again in another size": saw.recut,
	} {
		if isLong() && n < 1000 {
			t.Errorf("%d %s, want at least 1,000: the test tests too little", n, what)
		}
	}
}

// agedChange returns a change, and carries it out in the model.
func agedChange(r *rand.Rand, c chain, s agedSource, saw *agings) (ch index.Change, what string) {
	g, tier := agedGroups[r.IntN(2)], agedTiers[r.IntN(2)]
	from := r.IntN(agedBlocks)
	to := from + 1 + r.IntN(agedBlocks-from)
	switch k := r.IntN(40); {
	case k < 11: // by hash alone
		ch = inGroup(g, bare(tier, c.store(from, to)))
	case k < 18: // a chunk
		ch = inGroup(g, inTier(tier, c.store(from, to)))
	case k < 22:
		ch = index.Change{Op: index.OpRemove, Group: g, Tier: tier, Hashes: c.hashes[from:to]}
	case k < 23:
		ch = index.Change{Op: index.OpClear}
	case k < 25:
		ch = index.Change{Op: index.OpClearTier, Tier: tier}
	default:
		ch = index.Change{Op: index.OpAge, Tier: tier}
	}
	switch ch.Op {
	case index.OpStore:
		by := size
		if len(ch.Locals) > 0 {
			by *= to - from
			from = to - 1
		}
		for n := from; n < to; n++ {
			b := agedBlock{g.ID, tier, n}
			if s[b] == nil {
				s[b] = &agedState{size: by}
			}
			saw.renewed += min(s[b].age, 1)
			if s[b].age > 0 && s[b].size != by {
				saw.recut++
			}
			s[b].age = 0
		}
	case index.OpRemove:
		saw.removed += s.drop(func(b agedBlock, _ *agedState) bool {
			return b.group == g.ID && b.tier == tier && b.n >= from && b.n < to
		})
	case index.OpClear:
		saw.cleared += s.drop(func(agedBlock, *agedState) bool { return true })
	case index.OpClearTier:
		saw.cleared += s.drop(func(b agedBlock, _ *agedState) bool { return b.tier == tier })
	default:
		for b, st := range s {
			if b.tier == tier {
				st.age++
			}
		}
		if n := s.drop(func(_ agedBlock, st *agedState) bool { return st.age > 2 }); n > 0 {
			saw.dropped += n
			return ch, "dropped"
		}
	}
	return ch, ""
}

// agedDiff returns how the lower tiers of the rows, and the numbers of blocks, differ from the
// model.
func agedDiff(it *tester, c chain, held map[string]agedSource) string {
	type key struct {
		pod string
		agedBlock
		size int
	}
	want, got := map[key]bool{}, map[key]bool{}
	counts := map[string][index.NumTiers]int{}
	for pod, s := range held {
		var n [index.NumTiers]int
		for b, st := range s {
			n[b.tier]++
			if (b.n+1)*size%st.size == 0 { // else it ends where no block of the prompt does
				want[key{pod, b, st.size}] = true
			}
		}
		counts[pod] = n
	}
	for _, r := range it.match(c, nil, true) {
		for _, tier := range agedTiers {
			for n := range agedBlocks * size / r.BlockSize {
				if set := r.Held[tier]; set != nil && set[0]>>n&1 != 0 {
					got[key{r.Source.Pod, agedBlock{r.Group.ID, tier, (n+1)*r.BlockSize/size - 1}, r.BlockSize}] = true
				}
			}
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Sprintf("got  %v\nwant %v", got, want)
	}
	d, ok := it.ix.(index.Describer)
	if !ok {
		return ""
	}
	for pod, want := range counts {
		info, _ := d.DescribeSource(index.Source{Pod: pod, Model: "m"})
		if !slices.Equal(info.Blocks[index.TierCPU:], want[index.TierCPU:]) {
			return fmt.Sprintf("pod %s: %v blocks, want %v", pod, info.Blocks, want)
		}
	}
	return ""
}
