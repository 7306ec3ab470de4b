package route

import (
	"math"
	"sync"

	"github.com/zeebo/xxh3"
)

// A parameter of a policy that is 0 has the default that its project publishes, and one below
// 0 is none. A threshold is judged for the pod in question: that some other pod has too much
// to do is no reason to leave one that has not.

// LongestPrefix chooses the pod that holds most of the prompt, in any tier. Alone it sends
// everybody to one pod, if all prompts begin alike (llm-d-kv-cache-manager 0.3,
// pkg/kvcache/kvblock_scorer.go).
func LongestPrefix(r *Request, pods []Pod) int {
	return least(r, pods, func(p *Pod) float64 { return r.uncached(p, 1) })
}

// Product chooses by uncached tokens x (requests in flight + 1), divided by the speed. A token
// of a lower tier counts as LowerCredit of a cached one.
func Product(r *Request, pods []Pod) int {
	return least(r, pods, func(p *Pod) float64 {
		return r.uncached(p, LowerCredit) * (count(p.Load.Requests) + 1) / p.speed()
	})
}

// LeastRequests chooses by requests in flight, with this one, divided by the speed.
func LeastRequests(r *Request, pods []Pod) int {
	return least(r, pods, func(p *Pod) float64 { return (count(p.Load.Requests) + 1) / p.speed() })
}

// LeastTokens chooses by the tokens in flight, with those of the prompt and the output, divided
// by the speed.
func LeastTokens(r *Request, pods []Pod) int {
	own := count(r.Tokens) + count(r.Output)
	return least(r, pods, func(p *Pod) float64 {
		return (count(p.Load.Prefill) + count(p.Load.Decode) + own) / p.speed()
	})
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
	// Temperature spreads requests by chance: costs are scaled to go from 0 to 1 over the pods,
	// and a pod is chosen in proportion to exp(-cost/Temperature). 0: the pod of the least cost
	// is.
	Temperature float64
	Seed        uint64 // of the draws
}

// Policy returns d as a Policy.
func (d Dynamo) Policy() Policy {
	credit, lower, scale := parameter(d.OverlapCredit, 1), parameter(d.LowerCredit, 0.75), parameter(d.PrefillScale, 1)
	weight, temperature := parameter(d.RequestWeight, 0), parameter(d.Temperature, 0)
	draws := draws{seed: d.Seed}
	return func(r *Request, pods []Pod) int {
		cost := func(p *Pod) float64 {
			gpu, below := r.cached(p)
			prefill := count(p.Load.Prefill) + count(r.Tokens) - credit*gpu - lower*below
			return scale*max(0, prefill) + count(p.Load.Decode) + weight*count(p.Load.Requests)
		}
		if temperature == 0 || len(pods) == 0 {
			return least(r, pods, cost)
		}
		low, high := nothing, math.Inf(-1)
		for i := range pods {
			c := cost(&pods[i])
			low.offer(r, pods, i, c)
			high = max(high, c)
		}
		spread := max((high-low.cost)*temperature, math.SmallestNonzeroFloat64)
		for { // one is drawn, and taken in that proportion: the best one always
			i := draws.below(len(pods))
			if i == low.at || draws.float() < math.Exp((low.cost-cost(&pods[i]))/spread) {
				return i
			}
		}
	}
}

// WeightedSum is the sum that llm-d's scheduler maximizes (0.8,
// deploy/config/epp-precise-prefix-cache-config.yaml): the part of the prompt that is cached,
// how short the queue is compared with the longest and the shortest one, and how much of the
// cache is free. A router that asks no engine knows neither queue nor cache. So requests in
// flight stand for the queue, and the pod that holds most tokens for a full cache.
type WeightedSum struct {
	Prefix float64 // weight; 0: 2
	Queue  float64 // weight; 0: 1
	Free   float64 // weight; 0: 1
}

// Policy returns w as a Policy.
func (w WeightedSum) Policy() Policy {
	prefix, queue, free := parameter(w.Prefix, 2), parameter(w.Queue, 1), parameter(w.Free, 1)
	return func(r *Request, pods []Pod) int {
		_, fewest, most, fullest := look(pods)
		tokens, longer, fullest := max(count(r.Tokens), 1), max(most-fewest, 1), max(fullest, 1)
		return least(r, pods, func(p *Pod) float64 {
			return prefix*r.uncached(p, 1)/tokens + queue*(count(p.Load.Requests)-fewest)/longer + free*count(p.Load.Decode)/fullest
		})
	}
}

// Affinity is llm-d's filter of 2026 before its token load (llm-d-router 0.9,
// prefix-cache-affinity-filter and token-load-scorer). Pods that hold at least Threshold of the
// prompt are preferred, unless the best of them has to compute for MaxPenalty longer than the
// best of the others. Of the pods that are left the one is chosen with the fewest tokens to
// compute, those of the prompt included.
type Affinity struct {
	Threshold  float64 // part of a prompt; 0: 0.8
	MaxPenalty float64 // in seconds; 0: 18; below 0: nothing is too long
	Throughput float64 // tokens a second that a pod computes; 0: 15928
	MaxTokens  float64 // beyond so many tokens to compute pods are alike; 0: 4194304
}

// Policy returns a as a Policy.
func (a Affinity) Policy() Policy {
	threshold, penalty := parameter(a.Threshold, 0.8), parameter(a.MaxPenalty, 18)
	throughput, most := parameter(a.Throughput, 15928), parameter(a.MaxTokens, 4194304)
	return func(r *Request, pods []Pod) int {
		enough := threshold * max(count(r.Tokens), 1)
		all, sticky := nothing, nothing
		best, waiting := math.Inf(1), math.Inf(1) // the fewest tokens to compute, and those at a sticky one
		for i := range pods {
			gpu, lower := r.cached(&pods[i])
			prefill := count(pods[i].Load.Prefill)
			cost := min(prefill+count(r.Tokens)-gpu, most)
			all.offer(r, pods, i, cost)
			best = min(best, prefill)
			if gpu+lower >= enough {
				sticky.offer(r, pods, i, cost)
				waiting = min(waiting, prefill)
			}
		}
		if sticky.at < 0 || !(a.MaxPenalty < 0) && waiting-best > penalty*throughput {
			return all.at
		}
		return sticky.at
	}
}

// PrefixLessLoad is production-stack's loadaware (pull request 1035 of 2026-08-09, behind 0.1.12,
// LoadAwareRouter): the part of the prompt that is cached, less Beta times the relative load,
// (requests - mean) / max(1, mean).
type PrefixLessLoad struct {
	Beta float64 // 0: 1
}

// Policy returns l as a Policy.
func (l PrefixLessLoad) Policy() Policy {
	beta := parameter(l.Beta, 1)
	return func(r *Request, pods []Pod) int {
		mean, _, _, _ := look(pods)
		tokens := max(count(r.Tokens), 1)
		return least(r, pods, func(p *Pod) float64 {
			return r.uncached(p, 1)/tokens + beta*(count(p.Load.Requests)-mean)/max(mean, 1)
		})
	}
}

// SGLang is cache_aware of SGLang's router (Shepherd Model Gateway 1.9,
// model_gateway/src/policies/cache_aware.rs, with the defaults of its command line): the pod
// that holds most of the prompt, if that is more than Threshold. A pod is left out if it has
// more than Abs requests more than the pod with the fewest, and more than Rel times as many. If
// no other holds enough, the pod with the fewest requests is chosen.
type SGLang struct {
	Threshold float64 // part of a prompt; 0: 0.3
	Abs       float64 // requests; 0: 64
	Rel       float64 // 0: 1.5
}

// Policy returns s as a Policy.
func (s SGLang) Policy() Policy {
	threshold, most, times := parameter(s.Threshold, 0.3), parameter(s.Abs, 64), parameter(s.Rel, 1.5)
	return func(r *Request, pods []Pod) int {
		_, fewest, _, _ := look(pods)
		return prefixed(r, pods, threshold*max(count(r.Tokens), 1), max(fewest+most, fewest*times))
	}
}

// AIBrix is prefix-cache of AIBrix (0.7, pkg/plugins/gateway/algorithms/prefix_cache.go): of the
// pods that hold something of the prompt, the one that holds most. A pod is left out if it has
// more requests than the mean and Deviations standard deviations (those of a sample, as in
// util.go), or more than Abs requests more than the pod with the fewest. If no other holds
// anything, the pod with the fewest requests is chosen.
type AIBrix struct {
	Deviations float64 // 0: 1
	Abs        float64 // requests; 0: 8
}

// Policy returns a as a Policy.
func (a AIBrix) Policy() Policy {
	deviations, most := parameter(a.Deviations, 1), parameter(a.Abs, 8)
	return func(r *Request, pods []Pod) int {
		mean, fewest, _, _ := look(pods)
		squares := 0.0
		for i := range pods {
			d := count(pods[i].Load.Requests) - mean
			squares += d * d
		}
		bound := min(mean+deviations*math.Sqrt(squares/float64(max(len(pods)-1, 1))), fewest+most)
		return prefixed(r, pods, 0, bound)
	}
}

// prefixed returns the pod that holds most of the prompt, of those that hold more than enough and
// have no more requests than bound; of those that hold as much the one with the fewest requests.
// If there is none, it returns the one with the fewest requests of all.
func prefixed(r *Request, pods []Pod, enough, bound float64) int {
	best, most := nothing, enough
	for i := range pods {
		held, n := count(r.Tokens)-r.uncached(&pods[i], 1), count(pods[i].Load.Requests)
		if held <= enough || held < most || n > bound {
			continue
		}
		if held > most {
			best, most = nothing, held
		}
		best.offer(r, pods, i, n)
	}
	if best.at < 0 {
		return least(r, pods, func(p *Pod) float64 { return count(p.Load.Requests) })
	}
	return best.at
}

// Rendezvous is rendezvous hashing with bounded loads (Thaler and Ravishankar 1998; Mirrokni,
// Thorup and Zadimoghaddam 2018): requests of one Affinity go to one pod, and another one if that
// has its share. When a pod comes or goes, only those requests change their pod that go to it, or
// went to it. Of the pods that may take one more, the one is chosen with the lowest hash of
// Affinity and name.
// A pod may have Factor times its share of all requests in flight, which is in proportion to
// its speed. It is the same in all gateways, and after a restart.
type Rendezvous struct {
	Factor float64 // 0: 1.25
}

// Policy returns h as a Policy.
func (h Rendezvous) Policy() Policy {
	factor := max(parameter(h.Factor, 1.25), 1)
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
		if best < 0 { // there are so many requests that one more is rounded away
			return LeastRequests(r, pods)
		}
		return best
	}
}

// RoundRobin returns a Policy that takes the pods in turns, in the order of a hash of their
// names. It remembers whose turn it was.
func RoundRobin() Policy {
	var mu sync.Mutex
	var last uint64
	return func(r *Request, pods []Pod) int {
		mu.Lock()
		defer mu.Unlock()
		next := least(r, pods, func(p *Pod) float64 { return float64((p.hash(0) - last - 1) >> 1) })
		if next >= 0 {
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
		return min(draws.below(len(pods)), len(pods)-1) // -1 of none
	}
}
