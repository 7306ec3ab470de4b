package ranking

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// plain is Rank as one sort.
func plain(best []Best, top int, pods []uint64, prompt uint64) (order []int32) {
	for i := range best {
		order = append(order, int32(i))
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		return cmp.Or(best[b].Cached-best[a].Cached, cmp.Compare(place(prompt, pods[b]), place(prompt, pods[a])))
	})
	if top > 0 {
		order = order[:min(top, len(order))]
	}
	return order
}

func TestRankAgainstPlain(t *testing.T) {
	var r Ranking
	seen := make(map[string]int)
	for seed := range uint64(20_000) {
		rd := rand.New(rand.NewPCG(seed, 1))
		n, most := rd.IntN(60), 1+rd.IntN(8)*rd.IntN(8)
		best, pods := make([]Best, n), make([]uint64, n)
		for i := range best {
			best[i].Cached = max(rd.IntN(most+3)-3, -rd.IntN(2)*rd.IntN(2)) // 0 for most, NotScorable for few
			pods[i] = rd.Uint64()
			if i > 0 && rd.IntN(8) == 0 {
				pods[i] = pods[i-1] // ranks of one pod
			}
			if best[i].Cached == NotScorable {
				seen["not scorable"]++
			}
		}
		top, prompt := rd.IntN(3)*rd.IntN(n+3), rd.Uint64()
		got, want := r.Rank(best, top, pods, prompt), plain(best, top, pods, prompt)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, the best %d of %v: %v, want %v", seed, top, best, got, want)
		}
		switch {
		case top == 0 || top >= n:
			seen["all"]++
		default:
			seen["some"]++
		}
	}
	for _, what := range []string{"all", "some", "not scorable"} {
		if seen[what] < 1000 {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

// TestTieHasTheOrderOfRank: an entry that a host adds gets its position in Rank.
func TestTieHasTheOrderOfRank(t *testing.T) {
	var r Ranking
	for seed := range uint64(1000) {
		rd := rand.New(rand.NewPCG(seed, 2))
		best, pods := make([]Best, 1+rd.IntN(40)), make([]uint64, 40)
		for i := range pods {
			pods[i] = rd.Uint64()
		}
		prompt := rd.Uint64()
		order := r.Rank(best, 0, pods, prompt)
		if !slices.IsSortedFunc(order, func(a, b int32) int {
			return cmp.Compare(Tie(prompt, pods[a], 0)>>32, Tie(prompt, pods[b], 0)>>32)
		}) {
			t.Fatalf("seed %d: %v is not in the order of Tie", seed, order)
		}
	}
}

// TestPlacesAreEven: each of n tied entries is the first for its share of prompts, and so is each
// rank of a pod.
func TestPlacesAreEven(t *testing.T) {
	const entries, prompts = 7, 70_000
	rd := rand.New(rand.NewPCG(3, 3))
	pods := make([]uint64, entries)
	for i := range pods {
		pods[i] = rd.Uint64()
	}
	var first, firstRank [entries]int
	for range prompts {
		prompt := rd.Uint64()
		pod, rank := 0, 0
		for i := range entries {
			if Tie(prompt, pods[i], 0) < Tie(prompt, pods[pod], 0) {
				pod = i
			}
			if Tie(prompt, pods[0], i) < Tie(prompt, pods[0], rank) {
				rank = i
			}
		}
		first[pod]++
		firstRank[rank]++
	}
	for i := range entries {
		for _, n := range []int{first[i], firstRank[i]} {
			if share := float64(n) * entries / prompts; share < 0.9 || share > 1.1 {
				t.Errorf("entry %d has %.2f of its share", i, share)
			}
		}
	}
}
