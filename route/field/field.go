// Package field has the policies of other routers: llm-d, Dynamo, SGLang, AIBrix and
// production-stack. Each is named after its project, and its comment names the version and the
// file that it reproduces. Start with route.Default, and use these to compare it with your
// present router, on your own traffic:
//
//	policy := field.Dynamo{}.Policy()
//	best := policy(&route.Request{Tokens: tokens}, pods)
//
// The zero value of each type has the parameters that its project publishes. A parameter that is
// 0 or NaN is that default, and one below 0 counts as none.
//
// A policy that leaves overloaded pods out compares the load of each pod with its threshold.
// In some of these projects one overloaded pod switches the whole policy off: the next request
// goes to the pod with the least load, whatever other pods have cached. This package does not
// do so.
//
// These policies ignore Pod.Speed. Like all of package route they are safe for many
// goroutines, never panic, and choose a pod if there is one. They choose by route.Least, so
// route.TiesByChance works around them.
package field

import (
	"math"
	"sync/atomic"

	"github.com/kvindex/kvindex/route"
)

// The threshold is applied to each pod alone. In three projects one pod over the threshold
// sends the next request, whatever it holds, to the pod with the least load. Then one slow pod
// switches affinity off for the whole fleet, prompts are computed again everywhere, and more
// pods pass the threshold. SGLang and AIBrix here leave out the overloaded pod, and no other.
//
// The package imports route and nothing imports it: it is for comparison.

// LongestPrefix chooses the pod that holds most of the prompt, in any tier (llm-d-kv-cache-manager
// 0.3, pkg/kvcache/kvblock_scorer.go). If all prompts begin alike, it sends all requests to one
// pod.
func LongestPrefix(r *route.Request, pods []route.Pod) int {
	return route.Least(r, pods, func(p *route.Pod) float64 { return -held(r, p) })
}

// LLMDSum is the sum that llm-d's scheduler maximizes (0.8,
// deploy/config/epp-precise-prefix-cache-config.yaml): the cached part of the prompt, how
// short the queue is compared with the longest and the shortest one, and how much of the cache
// is free. A route.Tracker has neither queue nor cache. So requests in flight stand for the
// queue, and the pod that holds most tokens for a full cache.
type LLMDSum struct {
	Prefix float64 // weight; 0: 2
	Queue  float64 // weight; 0: 1
	Free   float64 // weight; 0: 1
}

// Policy returns s as a policy.
func (s LLMDSum) Policy() route.Policy {
	prefix, queue, free := parameter(s.Prefix, 2), parameter(s.Queue, 1), parameter(s.Free, 1)
	return func(r *route.Request, pods []route.Pod) int {
		_, fewest, most := requests(pods)
		fullest := 1.0
		for i := range pods {
			fullest = max(fullest, count(pods[i].Load.Decode))
		}
		tokens, longer := max(count(r.Tokens), 1), max(most-fewest, 1)
		return route.Least(r, pods, func(p *route.Pod) float64 {
			return queue*(count(p.Load.Requests)-fewest)/longer + free*count(p.Load.Decode)/fullest - prefix*held(r, p)/tokens
		})
	}
}

// LLMDAffinity is llm-d's filter of 2026 before its token load (llm-d-router 0.9,
// prefix-cache-affinity-filter and token-load-scorer). Pods that hold at least Threshold of
// the prompt are preferred, unless the best of them has to compute for MaxPenalty longer than
// the best of the others. Of the remaining pods, it chooses the one with the fewest tokens to
// compute, those of the prompt included.
type LLMDAffinity struct {
	Threshold  float64 // part of a prompt; 0: 0.8
	MaxPenalty float64 // in seconds; 0: 18; below 0: nothing is too long
	Throughput float64 // tokens a second that a pod computes; 0: 15928
	MaxTokens  float64 // beyond so many tokens to compute pods are alike; 0: 4194304
}

// Policy returns a as a policy.
func (a LLMDAffinity) Policy() route.Policy {
	threshold, penalty := parameter(a.Threshold, 0.8), parameter(a.MaxPenalty, 18)
	throughput, most := parameter(a.Throughput, 15928), parameter(a.MaxTokens, 4194304)
	return func(r *route.Request, pods []route.Pod) int {
		enough := threshold * max(count(r.Tokens), 1)
		shortest, shortestPreferred := math.Inf(1), math.Inf(1) // queues of tokens to compute
		for i := range pods {
			prefill := count(pods[i].Load.Prefill)
			shortest = min(shortest, prefill)
			if held(r, &pods[i]) >= enough {
				shortestPreferred = min(shortestPreferred, prefill)
			}
		}
		all := math.IsInf(shortestPreferred, 1) || !(a.MaxPenalty < 0) && shortestPreferred-shortest > penalty*throughput
		return route.Least(r, pods, func(p *route.Pod) float64 {
			if !all && held(r, p) < enough {
				return math.Inf(1)
			}
			gpu, _ := tiers(r, p)
			return min(count(p.Load.Prefill)+count(r.Tokens)-gpu, most)
		})
	}
}

// Dynamo is the cost of Dynamo's router (1.5, lib/kv-router/src/scheduling, worker_logit), in
// tokens:
//
//	scale x max(0, prefill in flight + prompt - credit x cached - lower x in a lower tier) + decode + weight x requests
type Dynamo struct {
	OverlapCredit float64 // of a cached token; 0: 1
	LowerCredit   float64 // of a token in a lower tier; 0: 0.75, which is that of the cpu
	PrefillScale  float64 // 0: 1
	RequestWeight float64 // of a request in flight, in tokens; 0: none
	// Temperature spreads requests by chance: costs are scaled to 0..1 over the pods, and a
	// pod is chosen in proportion to exp(-cost/Temperature). 0: the pod of the least cost is
	// chosen.
	Temperature float64
	Seed        uint64 // of the random numbers
}

// Policy returns d as a policy.
func (d Dynamo) Policy() route.Policy {
	credit, lowerCredit, scale := parameter(d.OverlapCredit, 1), parameter(d.LowerCredit, 0.75), parameter(d.PrefillScale, 1)
	weight, temperature := parameter(d.RequestWeight, 0), parameter(d.Temperature, 0)
	var drawn atomic.Uint64
	random := func() float64 { // from 0 up to, but not including, 1
		return float64(mix(mix(d.Seed)+drawn.Add(0x9e3779b97f4a7c15))>>11) / (1 << 53)
	}
	return func(r *route.Request, pods []route.Pod) int {
		cost := func(p *route.Pod) float64 {
			gpu, lower := tiers(r, p)
			prefill := count(p.Load.Prefill) + count(r.Tokens) - credit*gpu - lowerCredit*lower
			return scale*max(0, prefill) + count(p.Load.Decode) + weight*count(p.Load.Requests)
		}
		if temperature == 0 || len(pods) == 0 {
			return route.Least(r, pods, cost)
		}
		highest := 0.0
		best := route.Least(r, pods, func(p *route.Pod) float64 {
			c := cost(p)
			highest = max(highest, c)
			return c
		})
		lowest := cost(&pods[best])
		spread := max((highest-lowest)*temperature, math.SmallestNonzeroFloat64)
		for { // draw a pod, and take it with the probability of its proportion: that of best is 1
			i := int(random() * float64(len(pods)))
			if i == best || random() < math.Exp((lowest-cost(&pods[i]))/spread) {
				return i
			}
		}
	}
}

// SGLang is cache_aware of SGLang's router (Shepherd Model Gateway 1.9,
// model_gateway/src/policies/cache_aware.rs, with the defaults of its command line): the pod
// that holds most of the prompt, if that is more than Threshold. A pod is left out if it has
// more than Abs requests more than the pod with the fewest, and more than Rel times as many.
// If no other holds enough, the pod with the fewest requests is chosen.
type SGLang struct {
	Threshold float64 // part of a prompt; 0: 0.3
	Abs       float64 // requests; 0: 64
	Rel       float64 // 0: 1.5
}

// Policy returns s as a policy.
func (s SGLang) Policy() route.Policy {
	threshold, abs, rel := parameter(s.Threshold, 0.3), parameter(s.Abs, 64), parameter(s.Rel, 1.5)
	return func(r *route.Request, pods []route.Pod) int {
		_, fewest, _ := requests(pods)
		return longestWithin(r, pods, threshold*max(count(r.Tokens), 1), max(fewest+abs, fewest*rel))
	}
}

// AIBrix is prefix-cache of AIBrix (0.7, pkg/plugins/gateway/algorithms/prefix_cache.go): of
// the pods that hold a part of the prompt, the one that holds most. A pod is left out if it
// has more requests than the mean and Deviations standard deviations (those of a sample, as in
// util.go), or more than Abs requests more than the pod with the fewest. If no other holds a
// part, the pod with the fewest requests is chosen.
type AIBrix struct {
	Deviations float64 // 0: 1
	Abs        float64 // requests; 0: 8
}

// Policy returns a as a policy.
func (a AIBrix) Policy() route.Policy {
	deviations, abs := parameter(a.Deviations, 1), parameter(a.Abs, 8)
	return func(r *route.Request, pods []route.Pod) int {
		mean, fewest, _ := requests(pods)
		squares := 0.0
		for i := range pods {
			d := count(pods[i].Load.Requests) - mean
			squares += d * d
		}
		deviation := math.Sqrt(squares / float64(max(len(pods)-1, 1)))
		return longestWithin(r, pods, 0, min(mean+deviations*deviation, fewest+abs))
	}
}

// ProductionStack is production-stack's loadaware (pull request 1035 of 2026-08-09, behind
// 0.1.12, LoadAwareRouter): the cached part of the prompt, less Beta times the relative load,
// (requests - mean) / max(1, mean).
type ProductionStack struct {
	Beta float64 // 0: 1
}

// Policy returns s as a policy.
func (s ProductionStack) Policy() route.Policy {
	beta := parameter(s.Beta, 1)
	return func(r *route.Request, pods []route.Pod) int {
		mean, _, _ := requests(pods)
		tokens := max(count(r.Tokens), 1)
		return route.Least(r, pods, func(p *route.Pod) float64 {
			return beta*(count(p.Load.Requests)-mean)/max(mean, 1) - held(r, p)/tokens
		})
	}
}

// longestWithin returns the pod that holds most of the prompt, of those that hold more than enough
// and have no more requests than bound. Of pods that hold equally much, the one with the fewest
// requests is chosen. If no pod is left, the one with the fewest requests of all is chosen.
func longestWithin(r *route.Request, pods []route.Pod, enough, bound float64) int {
	longest := enough
	for i := range pods {
		if count(pods[i].Load.Requests) <= bound {
			longest = max(longest, held(r, &pods[i]))
		}
	}
	return route.Least(r, pods, func(p *route.Pod) float64 {
		n := count(p.Load.Requests)
		if longest > enough && (n > bound || held(r, p) < longest) {
			return math.Inf(1)
		}
		return n
	})
}

// requests returns the mean, the least and the greatest number of requests in flight at a pod.
func requests(pods []route.Pod) (mean, fewest, most float64) {
	sum, fewest := 0.0, math.Inf(1)
	for i := range pods {
		n := count(pods[i].Load.Requests)
		sum, fewest, most = sum+n, min(fewest, n), max(most, n)
	}
	return sum / float64(max(len(pods), 1)), fewest, most
}

// tiers returns the tokens of the prompt that p has on the gpu, and those that lower tiers add.
func tiers(r *route.Request, p *route.Pod) (gpu, lower float64) {
	n := max(r.Tokens, 0)
	c := min(max(p.Cached, 0), n)
	return float64(c), float64(min(max(p.Lower, 0), n-c))
}

// held returns the tokens of the prompt that p has in any tier.
func held(r *route.Request, p *route.Pod) float64 {
	n := max(r.Tokens, 0)
	c := min(max(p.Cached, 0), n)
	return float64(c + min(max(p.Lower, 0), n-c))
}

// count returns n, at least 0.
func count(n int) float64 { return float64(max(n, 0)) }

// parameter returns the value of a parameter: 0 and NaN are its default, and below 0 is none.
func parameter(v, byDefault float64) float64 {
	if v == 0 || math.IsNaN(v) {
		return byDefault
	}
	return min(max(v, 0), 1e9)
}

// mix scrambles a number (Steele, Lea and Flood 2014, SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
