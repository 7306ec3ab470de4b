package field_test

import (
	"math"
	"testing"

	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/route/field"
)

// pod returns a pod with this name and these figures.
func pod(name string, requests, cached int) route.Pod {
	return route.Pod{Name: name, Cached: cached, Load: route.Load{Requests: requests}}
}

// TestGolden compares the policies with examples from the tests of their projects.
func TestGolden(t *testing.T) {
	affinity := func(penalty, threshold float64) route.Policy {
		return field.LLMDAffinity{MaxPenalty: penalty, Threshold: threshold, Throughput: 1000}.Policy()
	}
	waits := func(name string, cached, prefill int) route.Pod {
		return route.Pod{Name: name, Cached: cached, Load: route.Load{Prefill: prefill}}
	}
	brix := field.AIBrix{Abs: 1000}.Policy()
	deviations := func(of float64) route.Policy { return field.AIBrix{Deviations: of, Abs: 1e9}.Policy() }
	for _, golden := range []struct {
		name   string
		policy route.Policy
		tokens int
		pods   []route.Pod
		want   string
	}{
		{
			"Dynamo's documentation, routing concepts: 18, 10 and 11 blocks", field.Dynamo{}.Policy(), 10,
			[]route.Pod{
				{Name: "1", Cached: 2, Load: route.Load{Decode: 10}},
				{Name: "2", Cached: 5, Load: route.Load{Decode: 5}},
				{Name: "3", Cached: 8, Load: route.Load{Decode: 9}},
			}, "2",
		},
		{
			"Dynamo's selector.rs: without temperature the least of 5, 3, 7 and 3.5", field.Dynamo{}.Policy(), 0,
			[]route.Pod{
				{Name: "1", Load: route.Load{Decode: 50}},
				{Name: "2", Load: route.Load{Decode: 30}},
				{Name: "3", Load: route.Load{Decode: 70}},
				{Name: "4", Load: route.Load{Decode: 35}},
			}, "2",
		},

		{"production-stack's pull request 1035: at twice the mean a full hit is worth nothing", field.ProductionStack{}.Policy(), 100,
			[]route.Pod{pod("a", 30, 0), pod("b", 60, 100), pod("c", 30, 0), pod("d", 0, 0)}, "d"},
		{"... and below, it is", field.ProductionStack{}.Policy(), 100,
			[]route.Pod{pod("a", 30, 0), pod("b", 59, 100), pod("c", 30, 0)}, "b"},
		{"... two pods, at +0.5 and -0.5: they are equal", field.ProductionStack{}.Policy(), 100,
			[]route.Pod{pod("b", 30, 100), pod("a", 10, 0)}, "a"},
		{"... a bit less", field.ProductionStack{}.Policy(), 100,
			[]route.Pod{pod("b", 29, 100), pod("a", 10, 0)}, "b"},
		{"... at a mean of 0.2 a request is not 400 % too many", field.ProductionStack{Beta: 0.5}.Policy(), 100,
			[]route.Pod{pod("b", 1, 99), pod("a", 0, 0), pod("c", 0, 0), pod("d", 0, 0), pod("e", 0, 0)}, "b"},
		{"... 2048 tokens of a prompt of 2000 are a full hit", field.ProductionStack{}.Policy(), 2000,
			[]route.Pod{pod("b", 0, 2048), pod("a", 0, 2000)}, "a"},

		{"Shepherd Model Gateway's test of 20 requests and none", field.SGLang{Threshold: 0.5, Abs: 5, Rel: 2}.Policy(), 4,
			[]route.Pod{pod("1", 20, 4), pod("2", 0, 0)}, "2"},
		{"... exactly Abs more is not more", field.SGLang{Threshold: 0.5, Abs: 5, Rel: 2}.Policy(), 4,
			[]route.Pod{pod("1", 5, 4), pod("2", 0, 0)}, "1"},
		{"... defaults of the command line: 65 more", field.SGLang{}.Policy(), 100,
			[]route.Pod{pod("1", 65, 100), pod("2", 0, 0)}, "2"},
		{"... 64 more", field.SGLang{}.Policy(), 100, []route.Pod{pod("1", 64, 100), pod("2", 0, 0)}, "1"},
		{"... 1.5 times as many", field.SGLang{}.Policy(), 100, []route.Pod{pod("1", 300, 100), pod("2", 200, 0)}, "1"},
		{"... and more", field.SGLang{}.Policy(), 100, []route.Pod{pod("1", 301, 100), pod("2", 200, 0)}, "2"},
		{"... 0.3 is not above the threshold", field.SGLang{}.Policy(), 100, []route.Pod{pod("1", 1, 30), pod("2", 0, 0)}, "2"},
		{"... 0.31 is", field.SGLang{}.Policy(), 100, []route.Pod{pod("1", 1, 31), pod("2", 0, 0)}, "1"},
		{"... that another pod is overloaded changes nothing", field.SGLang{}.Policy(), 100,
			[]route.Pod{pod("1", 1, 100), pod("2", 0, 0), pod("3", 200, 50)}, "1"},

		// AIBrix, prefix_cache_routing_test.go: of 100 tokens the matched per cent.
		{"highest match within the deviation", brix, 100, []route.Pod{pod("1", 5, 100), pod("2", 10, 50), pod("3", 15, 25)}, "1"},
		{"an overloaded pod is left out", brix, 100, []route.Pod{pod("1", 100, 100), pod("2", 10, 80), pod("3", 12, 60)}, "2"},
		{"the same match: least loaded", brix, 100, []route.Pod{pod("1", 20, 50), pod("2", 10, 50), pod("3", 30, 50)}, "2"},
		{"one match", deviations(2), 100, []route.Pod{pod("1", 10, 75), pod("2", 20, 0)}, "1"},
		{"a higher match at a higher load", deviations(5), 100, []route.Pod{pod("1", 11, 100), pod("2", 10, 90), pod("3", 12, 80)}, "1"},
		{"60 per cent", brix, 100, []route.Pod{pod("1", 1, 50), pod("2", 2, 60), pod("3", 3, 0), pod("4", 4, 0)}, "2"},
		{"the same match again", brix, 100, []route.Pod{pod("1", 1, 50), pod("2", 2, 50), pod("3", 3, 50), pod("4", 4, 0)}, "1"},
		{"a lower match at a lower load", brix, 100, []route.Pod{pod("1", 1, 50), pod("2", 10, 100), pod("3", 1, 0), pod("4", 4, 0)}, "1"},
		{"a large factor", deviations(1000), 100, []route.Pod{pod("1", 1000, 100), pod("2", 10, 90), pod("3", 15, 80)}, "1"},
		{"200, 201 and 202 without deviation", deviations(-1), 100, []route.Pod{pod("1", 200, 90), pod("2", 201, 80), pod("3", 202, 70)}, "1"},
		{"100, 101 and 102: a deviation of 1 is that of a sample", deviations(0), 100, []route.Pod{pod("1", 100, 70), pod("2", 101, 80), pod("3", 102, 90)}, "3"},
		{"5, 50 and 60, factor 2", deviations(2), 100, []route.Pod{pod("1", 5, 0), pod("2", 50, 80), pod("3", 60, 0)}, "2"},
		{"the only match is overloaded", brix, 100, []route.Pod{pod("1", 5, 0), pod("2", 200, 100), pod("3", 10, 0)}, "1"},
		{"the highest figure of 32 bits", brix, 100, []route.Pod{pod("1", math.MaxInt32, 100), pod("2", 0, 50), pod("3", 5, 25)}, "2"},
		{"no deviation at all", brix, 100, []route.Pod{pod("1", 10, 90), pod("2", 10, 80), pod("3", 10, 70)}, "1"},
		{"9 requests, and none elsewhere, are more than 8", field.AIBrix{}.Policy(), 100,
			[]route.Pod{pod("1", 0, 0), pod("2", 9, 100), pod("3", 1, 50), pod("4", 2, 0)}, "3"},

		// llm-d-router, prefixcacheaffinity/plugin_test.go: of 100 blocks those that match.
		{"no threshold: the load decides", affinity(1, -1), 100, []route.Pod{waits("a", 0, 0), waits("b", 90, 200)}, "a"},
		{"no pod has 80: the load decides", affinity(1, 0.8), 100, []route.Pod{waits("a", 10, 90), waits("b", 20, 10), waits("c", 50, 90)}, "b"},
		{"90 and 85 are enough, 10 is not", affinity(5, 0.8), 100, []route.Pod{waits("a", 90, 100), waits("b", 85, 120), waits("c", 10, 0)}, "a"},
		{"0.45 s longer than 0.1 s more", affinity(0.1, 0.8), 100, []route.Pod{waits("a", 90, 500), waits("b", 10, 50)}, "b"},
		{"0.45 s is within 1 s", affinity(1, 0.8), 100, []route.Pod{waits("a", 90, 500), waits("b", 10, 50)}, "a"},
		{"no penalty is too long", affinity(-1, 0.8), 100, []route.Pod{waits("a", 90, 5000), waits("b", 10, 50)}, "a"},
		{"the default: 18 s of 15928 tokens", field.LLMDAffinity{}.Policy(), 100, []route.Pod{waits("a", 90, 18*15928), waits("b", 0, 0)}, "a"},
		{"a token more", field.LLMDAffinity{}.Policy(), 100, []route.Pod{waits("a", 90, 18*15928+1), waits("b", 0, 0)}, "b"},
		// tokenload/token_load_test.go: scores of 0.75, 0.5 and 0 of 1000 tokens.
		{"250, 500 and 1000 tokens", field.LLMDAffinity{MaxTokens: 1000}.Policy(), 250, []route.Pod{waits("3", 0, 750), waits("2", 0, 250), waits("1", 0, 0)}, "1"},
		{"beyond 1000 all are alike", field.LLMDAffinity{MaxTokens: 1000}.Policy(), 250, []route.Pod{waits("b", 0, 800), waits("a", 0, 900)}, "a"},

		{"the load does not count for the longest prefix", field.LongestPrefix, 100, []route.Pod{pod("a", 0, 9), pod("b", 1000, 10)}, "b"},

		{"llm-d's weights: half a prompt against an empty queue", field.LLMDSum{}.Policy(), 100,
			[]route.Pod{pod("a", 10, 51), pod("b", 0, 0)}, "a"},
		{"... less than half", field.LLMDSum{}.Policy(), 100, []route.Pod{pod("a", 10, 49), pod("b", 0, 0)}, "b"},
	} {
		if at := golden.policy(&route.Request{Tokens: golden.tokens}, golden.pods); at < 0 || golden.pods[at].Name != golden.want {
			t.Errorf("%s: %d is chosen", golden.name, at)
		}
	}
}
