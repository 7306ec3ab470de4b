package route_test

import (
	"math"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// FuzzPolicies: with any figures and parameters, a policy chooses one of the pods.
func FuzzPolicies(f *testing.F) {
	f.Add(0, 0, 0, 0, 0, 0, 0, uint8(0), 0., 0.)
	f.Add(10, 0, 0, 0, 1000, math.MaxInt, 0, uint8(1), 0., 0.)
	f.Add(1000, 300, 400, 100, 3, 2000, 50_000, uint8(9), 2., 0.5)
	f.Add(math.MaxInt, math.MaxInt, math.MaxInt, 1, math.MinInt, math.MaxInt, -1, uint8(100), math.Inf(1), math.NaN())
	f.Add(math.MinInt, -1, math.MinInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, uint8(3), math.NaN(), math.Inf(1))
	f.Add(50, 0, 7, 7, 7, 7, 7, uint8(2), 5e-324, math.Inf(-1))
	f.Fuzz(func(t *testing.T, tokens, output, cached, lower, requests, prefill, decode int, n uint8, speed, parameter float64) {
		pods, kept := make([]route.Pod, n), false
		figures := []int{cached, lower, requests, prefill, decode}
		for i := range pods {
			of := func(k int) int { return figures[(i+k)%len(figures)] }
			pods[i] = route.Pod{
				Name: string(rune('a' + i%7)), Rank: i / 20, Cached: of(0), Lower: of(1),
				Load: route.Load{Requests: of(2), Prefill: of(3), Decode: of(4)}, Speed: speed * float64(i%3),
			}
			kept = kept || half(&pods[i])
		}
		for i, policy := range []route.Policy{
			route.Default, route.LeastRequests, route.LeastTokens, route.Rendezvous{Factor: parameter}.Policy(),
			route.RoundRobin(), route.Random(uint64(n)), route.Decode(parameter, route.Default),
		} {
			for _, policy := range []route.Policy{policy, route.TiesByChance(policy, 1), route.BestOfTwo(policy, 2)} {
				if at := policy(&route.Request{Tokens: tokens, Output: output}, pods); at >= len(pods) || (at < 0) != (len(pods) == 0) {
					t.Errorf("policy %d chooses %d of %d pods", i, at, len(pods))
				}
			}
			if at := route.Only(half, policy)(&route.Request{Tokens: tokens}, pods); at >= len(pods) || (at < 0) == kept || at >= 0 && !half(&pods[at]) {
				t.Errorf("policy %d chooses %d of some of %d pods", i, at, len(pods))
			}
		}
	})
}
