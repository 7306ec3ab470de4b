package main

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/route/field"
)

// policies has a constructor for each policy of the packages route and route/field, with the
// parameters that its project publishes. Some policies have state, so each gateway needs its own.
var policies = map[string]func() route.Policy{
	"default":          func() route.Policy { return route.Default },
	"least-requests":   func() route.Policy { return route.LeastRequests },
	"least-tokens":     func() route.Policy { return route.LeastTokens },
	"best-of-two":      func() route.Policy { return route.BestOfTwo(route.LeastRequests, seed) },
	"round-robin":      route.RoundRobin,
	"random":           func() route.Policy { return route.Random(seed) },
	"rendezvous":       route.Rendezvous{}.Policy, // by affinity
	"longest-prefix":   func() route.Policy { return field.LongestPrefix },
	"aibrix":           field.AIBrix{}.Policy,
	"dynamo":           field.Dynamo{}.Policy,
	"llm-d-affinity":   field.LLMDAffinity{}.Policy,
	"llm-d-sum":        field.LLMDSum{}.Policy,
	"production-stack": field.ProductionStack{}.Policy,
	"sglang":           field.SGLang{}.Policy,
}

// seed is the seed of policies that choose at random.
const seed = 1

func policyNames() string {
	return strings.Join(slices.Sorted(maps.Keys(policies)), ", ")
}

func policyOf(name string) (route.Policy, error) {
	make, known := policies[name]
	if !known {
		return nil, fmt.Errorf("there is no policy %q, but %s", name, policyNames())
	}
	return make(), nil
}

// affinity returns a hash of the beginning of a body, most of which is the system prompt. Only
// Rendezvous reads it. All gateways use the same hash.
func affinity(r *kvindex.Request) uint64 {
	const beginning = 1 << 10 // bytes
	h := fnv.New64a()
	h.Write(r.Body[:min(len(r.Body), beginning)])
	return h.Sum64()
}
