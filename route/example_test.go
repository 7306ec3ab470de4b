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
