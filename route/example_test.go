package route_test

import (
	"fmt"

	"github.com/kvindex/kvindex/route"
)

func ExampleDefault() {
	var sent route.Tracker
	choose := func(cachedByA, cachedByB int) string {
		pods := []route.Pod{{Name: "a", Cached: cachedByA}, {Name: "b", Cached: cachedByB}}
		sent.Fill(pods)
		best := pods[route.Default(&route.Request{Tokens: 4000}, pods)]
		sent.Sent(best.Name, best.Rank, 4000, best.Cached)
		return best.Name
	}
	fmt.Println(choose(3000, 0)) // a has 1,000 tokens to compute, b 4,000
	fmt.Println(choose(3000, 0)) // a has 1,000 tokens of the first one too
	fmt.Println(choose(0, 0))
	// Output:
	// a
	// a
	// b
}

// A policy of a host's own: the uncached tokens, times the requests that a pod has.
func ExampleLeast() {
	product := func(r *route.Request, pods []route.Pod) int {
		return route.Least(r, pods, func(p *route.Pod) float64 {
			return float64(r.Tokens-p.Cached) * float64(p.Load.Requests+1)
		})
	}
	pods := []route.Pod{
		{Name: "a", Cached: 900, Load: route.Load{Requests: 9}}, // 100 x 10
		{Name: "b", Cached: 600, Load: route.Load{Requests: 1}}, // 400 x 2
	}
	fmt.Println(pods[product(&route.Request{Tokens: 1000}, pods)].Name)
	// Output: b
}
