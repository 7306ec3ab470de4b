package route

import (
	"math"
	"sync"

	"github.com/zeebo/xxh3"
)

// Policies that ignore the cache.

// LeastRequests chooses by requests in flight, with this one, divided by the speed.
func LeastRequests(r *Request, pods []Pod) int {
	return Least(r, pods, func(p *Pod) float64 { return (count(p.Load.Requests) + 1) / p.speed() })
}

// LeastTokens chooses by the tokens in flight, with those of the prompt and the output, divided
// by the speed.
func LeastTokens(r *Request, pods []Pod) int {
	own := count(r.Tokens) + count(r.Output)
	return Least(r, pods, func(p *Pod) float64 {
		return (count(p.Load.Prefill) + count(p.Load.Decode) + own) / p.speed()
	})
}

// Rendezvous is rendezvous hashing with bounded loads (Thaler and Ravishankar 1998; Mirrokni,
// Thorup and Zadimoghaddam 2018). Requests of one Affinity go to one pod, or to another one if
// that pod has its share. It chooses the pod with the lowest hash of Affinity and name, among
// those that may take one more request. A pod may have Factor times its share of all requests
// in flight; the share is in proportion to its speed. When a pod comes or goes, only the
// requests of that pod change their pod. All gateways choose alike, also after a restart.
type Rendezvous struct {
	Factor float64 // 0: 1.25; below 1: 1
}

// Policy returns h as a Policy.
func (h Rendezvous) Policy() Policy {
	factor := 1.25
	if h.Factor > 0 || h.Factor < 0 {
		factor = max(h.Factor, 1)
	}
	return func(r *Request, pods []Pod) int {
		requests, speeds := 1.0, 0.0
		for i := range pods {
			requests += count(pods[i].Load.Requests)
			speeds += pods[i].speed()
		}
		each, seed := factor*requests/speeds, mix(r.Affinity)
		best, lowest := -1, uint64(math.MaxUint64)
		for i := range pods {
			p := &pods[i]
			if h := p.hash(seed); h <= lowest && count(p.Load.Requests) < each*p.speed() {
				best, lowest = i, h
			}
		}
		if best < 0 { // all pods are at their bound: with very many requests, one more is lost in rounding
			return LeastRequests(r, pods)
		}
		return best
	}
}

// RoundRobin returns a Policy that takes the pods in turns, in the order of a hash of their
// names. It keeps the turn. A Fallback is the pod behind the last one, and takes no turn.
func RoundRobin() Policy {
	var mu sync.Mutex
	var last uint64
	return func(r *Request, pods []Pod) int {
		mu.Lock()
		defer mu.Unlock()
		next := Least(r, pods, func(p *Pod) float64 { return float64((p.hash(0) - last - 1) >> 1) })
		if next >= 0 && !r.Fallback {
			last = pods[next].hash(0)
		}
		return next
	}
}

// hash returns a hash of name and rank.
func (p *Pod) hash(seed uint64) uint64 { return xxh3.HashStringSeed(p.Name, seed+uint64(p.Rank)) }

// Random returns a Policy that draws a pod.
func Random(seed uint64) Policy {
	draws := draws{seed: seed}
	return func(_ *Request, pods []Pod) int {
		return min(draws.below(len(pods)), len(pods)-1) // -1 without pods
	}
}
