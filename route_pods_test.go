package kvindex_test

import (
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
)

// What package route gets of an answer: all pods in their order, and what lower tiers add.
func TestRoutePods(t *testing.T) {
	a := kvindex.Answer{PromptTokens: 100, Pods: []kvindex.PodScore{
		{Pod: "b", Rank: 2, PredictedTokens: 64, CachedTokens: 32, MatchedBlocks: 5, BlockTokens: 16},
		{Pod: "a", PredictedTokens: 32, CachedTokens: 32, MatchedBlocks: 2, BlockTokens: 16},
		{Pod: "c", PredictedTokens: 48, MatchedBlocks: 7, BlockTokens: 16},
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

// Prompts that nobody holds spread over idle pods, and equal ones meet.
func TestRouteDefaultSpreads(t *testing.T) {
	ix := open(t)
	pods := []string{"a", "b", "c", "d"}
	for _, p := range pods {
		ingest(t, ix, p)
	}
	chosen := map[string]int{}
	for n := range uint32(400) {
		var first string
		for again := range 2 {
			var a kvindex.Answer
			if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: []uint32{n, 2, 3}, Pods: pods}, &a); err != nil {
				t.Fatal(err)
			}
			best := a.Pods[route.Default(&route.Request{Tokens: a.PromptTokens}, a.RoutePods(nil))].Pod
			if again == 0 {
				first = best
			} else if best != first {
				t.Fatalf("a prompt goes to %s, and then to %s", first, best)
			}
		}
		chosen[first]++
	}
	for _, p := range pods {
		if n := chosen[p]; n < 60 || n > 140 {
			t.Errorf("%s gets %d of 400", p, n)
		}
	}
}
