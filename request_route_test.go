package kvindex_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
)

// The part of an answer that package route uses: all pods in order, and the tokens of lower tiers.
// ScoreRequest did not fill this answer, so the order decides ties.
func TestRoutePods(t *testing.T) {
	a := kvindex.Answer{PromptTokens: 100, Pods: []kvindex.PodScore{
		{Pod: "b", Rank: 2, PredictedTokens: 64, CachedTokens: 32, LoadedTokens: 32, FetchedTokens: 16, MatchedBlocks: 5, BlockTokens: 16},
		{Pod: "a", PredictedTokens: 32, CachedTokens: 32, MatchedBlocks: 2, BlockTokens: 16},
		{Pod: "c", PredictedTokens: 48, LoadedTokens: 100, MatchedBlocks: 7, BlockTokens: 16},
		{Pod: "d", PredictedTokens: 99, MatchedBlocks: 1, BlockTokens: 16},
		{Pod: "e"},
	}}
	want := []route.Pod{
		{Name: "x"},
		{Name: "b", Rank: 2, Cached: 64, Lower: 16},
		{Name: "a", Cached: 32, Tie: 1},
		{Name: "c", Cached: 48, Lower: 52, Tie: 2},
		{Name: "d", Cached: 99, Tie: 3},
		{Name: "e", Tie: 4},
	}
	got := a.RoutePods([]route.Pod{{Name: "x"}})
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		if got[i] != w {
			t.Errorf("%+v, want %+v", got[i], w)
		}
	}
}

// Pods and ranks that a host appends to an answer get their shares of cold prompts: for an answer
// with pods, for one without, and if the request cannot be scored. Processes with one seed choose
// alike, and entries of the answer keep its order.
func TestRoutePodsOfTheHost(t *testing.T) {
	const prompts = 1000
	names := []string{"a", "b", "c", "d", "10.0.0.7:8000", "10.0.0.8:8000", "sglang-0", "sglang-1"}
	ix, other, none := open(t, kvindex.WithKeySeed(testSeed)), open(t, kvindex.WithKeySeed(testSeed)), open(t, kvindex.WithKeySeed(testSeed))
	for _, name := range names[:4] {
		ingest(t, ix, name)
	}
	for _, name := range names[2:] {
		ingest(t, other, name)
	}
	choose := func(ix *kvindex.Indexer, q kvindex.Request, fails bool, ranks int) string {
		q.Model = "m"
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &q, &a); (err != nil) != fails {
			t.Fatal(err)
		}
		ties := a.RoutePods(nil)
		for i := 1; i < len(ties); i++ {
			if ties[i-1].Tie >= ties[i].Tie {
				t.Fatalf("the order of the answer is lost: %+v", ties)
			}
		}
		for _, name := range names {
			for rank := range ranks {
				if !slices.ContainsFunc(a.Pods, func(s kvindex.PodScore) bool { return s.Pod == name && s.Rank == rank }) {
					a.Pods = append(a.Pods, kvindex.PodScore{Pod: name, Rank: rank})
				}
			}
		}
		best := a.Pods[route.Default(&route.Request{Tokens: 100}, a.RoutePods(nil))]
		return fmt.Sprint(best.Pod, "/", best.Rank)
	}
	for _, ranks := range []int{1, 3} {
		for kind, q := range map[string]func(n uint32) (q kvindex.Request, fails bool){
			"tokens": func(n uint32) (kvindex.Request, bool) {
				return kvindex.Request{Tokens: []uint32{1, n, 3}}, false
			},
			"tokens, with ranks": func(n uint32) (kvindex.Request, bool) {
				return kvindex.Request{Tokens: []uint32{1, n, 3}, Ranks: true}, false
			},
			"a body that cannot be scored": func(n uint32) (kvindex.Request, bool) {
				return kvindex.Request{Body: fmt.Appendf(nil, `{"model":"m","input":"%d"}`, n), Path: "/v1/embeddings"}, true
			},
			"text without a tokenizer": func(n uint32) (kvindex.Request, bool) {
				return kvindex.Request{Prompt: fmt.Sprint(n)}, true
			},
			"tokens that cannot be scored": func(n uint32) (kvindex.Request, bool) {
				return kvindex.Request{Tokens: []uint32{1, n, 3}, Top: -1}, true
			},
		} {
			got := make(map[string]int)
			for n := range uint32(prompts) {
				q, fails := q(n)
				first := choose(ix, q, fails, ranks)
				got[first]++
				if q := q; !fails {
					q.Pods = []string{} // pods of the host alone
					if again := choose(ix, q, fails, ranks); again != first {
						t.Fatalf("%s: prompt %d goes to %s, and to %s without Pods", kind, n, first, again)
					}
				}
				for _, ix := range []*kvindex.Indexer{ix, other, none} {
					if again := choose(ix, q, fails, ranks); again != first {
						t.Fatalf("%s: prompt %d goes to %s, and then to %s", kind, n, first, again)
					}
				}
			}
			share := prompts / len(names) / ranks
			for _, name := range names {
				for rank := range ranks {
					if n := got[fmt.Sprint(name, "/", rank)]; n < share/2 || n > share*2 {
						t.Errorf("%s: %s/%d gets %d of %d, its share is %d", kind, name, rank, n, prompts, share)
					}
				}
			}
		}
	}
}
