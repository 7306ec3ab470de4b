package route_test

import (
	"iter"
	"maps"
	"slices"

	"github.com/kvindex/kvindex/route"
)

func policies() iter.Seq2[string, route.Policy] {
	all := map[string]route.Policy{
		"Default":        route.Default,
		"LongestPrefix":  route.LongestPrefix,
		"Product":        route.Product,
		"LeastRequests":  route.LeastRequests,
		"LeastTokens":    route.LeastTokens,
		"Dynamo":         route.Dynamo{}.Policy(),
		"DynamoTemp":     route.Dynamo{Temperature: 0.5}.Policy(),
		"WeightedSum":    route.WeightedSum{}.Policy(),
		"Affinity":       route.Affinity{}.Policy(),
		"PrefixLessLoad": route.PrefixLessLoad{}.Policy(),
		"SGLang":         route.SGLang{}.Policy(),
		"AIBrix":         route.AIBrix{}.Policy(),
		"Rendezvous":     route.Rendezvous{}.Policy(),
		"RoundRobin":     route.RoundRobin(),
		"Random":         route.Random(1),
		"BestOfTwo":      route.BestOfTwo(route.Default, 1),
		"Only":           route.Only(func(p *route.Pod) bool { return p.Name != "" }, route.Default),
		"OnlyHalf":       route.Only(func(p *route.Pod) bool { return p.Name[len(p.Name)-1]&1 == 0 }, route.Default),
		"Decode":         route.Decode(0.5, route.Default),
		"TiesByChance":   route.TiesByChance(route.Default, 1),
	}
	return func(yield func(string, route.Policy) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !yield(name, all[name]) {
				return
			}
		}
	}
}
