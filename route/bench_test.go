package route_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// fresh is how many fleets a benchmark takes by turns.
const fresh = 16

// BenchmarkPolicies chooses among 256 pods, whose names differ at their end alone, as those of
// a Deployment do, and whose loads and cached tokens differ.
func BenchmarkPolicies(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var fleets [fresh][]route.Pod
	for f := range fleets {
		for i := range 256 {
			fleets[f] = append(fleets[f], route.Pod{
				Name:   fmt.Sprintf("vllm-llama-70b-7d9f8b6c%04x", i*257&0xffff),
				Cached: r.IntN(4) * r.IntN(2000),
				Lower:  r.IntN(2) * r.IntN(2000),
				Load:   route.Load{Requests: r.IntN(40), Prefill: r.IntN(40000), Decode: r.IntN(200000)},
			})
		}
		r.Shuffle(256, func(i, j int) { fleets[f][i], fleets[f][j] = fleets[f][j], fleets[f][i] })
	}
	for name, policy := range policies() {
		b.Run(name, func(b *testing.B) {
			request := &route.Request{Tokens: 8000, Output: 300}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				request.Affinity = uint64(i)
				policy(request, fleets[i%fresh])
			}
		})
	}
}
