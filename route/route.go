// Package route chooses the pod for a request, by the part of its prompt that each pod holds
// and by the load of each pod.
//
// Start with Default, the policy of this package, and a Tracker. A Policy is a function: it
// takes a request and the pods that can serve it, and returns the index of one pod. The cached
// tokens of each pod come from an index, such as kvindex's PodScore. The load of each pod
// comes from the Tracker, which polls no engine: it counts requests and answers. For requests of
// others, package route/load reads the metrics of engines.
//
// Only, Decode, BestOfTwo and TiesByChance wrap any policy. Least makes a policy of a cost.
// Package route/field has the policies of other routers, so that a host can compare them with
// Default on its own traffic. Several gateways exchange their loads (Tracker.Changes).
//
// Policies are pure, except for those that draw or count; their comments say so. All are safe
// for many goroutines.
//
// Only a nil Request makes a policy panic. Figures below 0 count as 0, and at most a whole
// prompt counts as cached. If there are pods, a policy chooses one of them, except for Only.
package route

import "math"

// A score chooses nothing. By the longest prefix alone all requests go to one pod if prompts
// begin alike, so a host needs a rule that weighs cache against load. This package imports
// nothing of the project, so a host can use it with other scores.
//
// A policy is a function of a request and the pods. It has no clock, no state and no answer of
// an engine, so a simulator can judge it and a test can call it. Those that draw or count have
// a closure. Policies around others copy the pods into memory that is used again; a choice
// allocates nothing.
//
// # Why Default
//
// It charges a request for the harm that it does. Its tokens that are not cached keep others
// waiting, the more the longer the queues are: so the part of the prompt that is missing costs
// that part of the mean queue once more. The tokens that a pod holds slow each step of all its
// requests a little, hence 0.02. A sum of normalized scores cannot express that: there a pod
// with twice the work loses the same, be it a second or a minute.
//
// The mean queue counts once, so an idle pod gets work. Counted twice, prompts stay with their
// cache, which is better while the set of pods is stable. But when new pods come to an
// overloaded fleet, no request goes to them, because their missing tokens cost more than the
// longest queue. Requests that are generating do not count in the mean: they wait for nothing.
// In a simulation that is not part of the project, of 24 loads, the mean time to the first
// token was 4 to 12 % behind the best policy of each load, by the geometric mean, and 2.3
// times at worst. The policies of other projects were behind by 29 % to 3.3 times.
//
// The wait of others is not divided by the speed of a pod. With both divided, a pod of half
// the speed got no request at all at nine tenths of saturation, because its tokens seemed to
// harm twice as many. At saturation it gets half of what the others get.
//
// # Not in this package
//
// Preble's histogram of prefixes needs a window of costs that our figures have already. Fair
// queues and flow control hold requests back, which is the host's decision. Predicted
// latencies need a model for each kind of hardware.

// Request is a request that needs a pod.
type Request struct {
	Tokens int // of the prompt
	Output int // tokens that will be generated; 0: unknown
	// Affinity is a hash of the common part of requests that should go to one pod: the
	// session, or the first blocks of the prompt. Only Rendezvous uses it.
	Affinity uint64
	// Fallback is true if a pod was chosen for the request before, and the next one is needed
	// in case that it fails. Pods are those that were not chosen. Only RoundRobin uses it.
	Fallback bool

	tie uint64 // with the name and rank of a pod, orders equal pods; 0: Pod.Tie does
}

// Pod is a rank of a pod that can serve a request. Name and Rank identify it.
type Pod struct {
	Name string
	Rank int
	// Cached is how many tokens of the prompt the pod need not compute
	// (PodScore.PredictedTokens). Lower is how many more tokens come from a tier below the
	// gpu.
	Cached, Lower int
	Load          Load
	// Speed is the relative speed of the pod; 0 is 1. It is kept between 1/1000 and 1000. The
	// policies of package route/field ignore it.
	Speed float64
	// Tie decides between equal pods: the lowest is chosen, and of equal ones the first by
	// Name, then by Rank. kvindex's Answer.RoutePods sets it to a hash of the prompt, the name
	// and the rank. So prompts that no pod holds spread, and equal ones meet.
	Tie uint64
}

// Load is the load of a pod in flight: requests that were sent and have not ended.
type Load struct {
	Requests int
	Prefill  int // tokens of prompts that are still to be computed
	Decode   int // tokens that are held: computed prompts, and generated tokens
}

// Policy chooses one of the pods for a request, and returns its index. It returns -1 if there
// is no pod, or none that it may choose. The order of the pods does not matter.
type Policy func(*Request, []Pod) int

const (
	lowerCredit = 0.75 // of a token in a lower tier, compared with one on the gpu
	decodeCost  = 0.02 // of a token that a pod holds, compared with one that is to be computed
)

// Default chooses the pod where a request does the least harm: to itself, and to all requests
// behind it. A request waits for all prompts that its pod has to compute, and then for its own
// tokens that the pod does not have. Those tokens also keep others waiting, the more of them
// the longer the queues of the fleet are. So on an idle fleet a request goes where it is
// answered first, and on a busy one to where it is cached, unless too much work waits there.
// The pod of the least cost is chosen:
//
//	(prefill + uncached + 0.02 x (decode + tokens + output)) / speed + mean x uncached/tokens
//
// where prefill is the prefill of other requests at the pod, and mean is its mean over the
// pods. Uncached is the part of the prompt that the pod has to compute: a token of a lower
// tier counts as 0.75 of a cached one. Decode is the number of tokens that the pod holds. The
// wait of others is not divided by the speed: a pod of half the speed computes for twice as
// long, but half as many requests come to it meanwhile.
func Default(r *Request, pods []Pod) int {
	mean := 0.0
	for i := range pods {
		mean += count(pods[i].Load.Prefill)
	}
	mean /= float64(max(len(pods), 1))
	own, behind := decodeCost*(count(r.Tokens)+count(r.Output)), mean/max(count(r.Tokens), 1)
	return Least(r, pods, func(p *Pod) float64 {
		uncached := r.uncached(p, lowerCredit)
		return (count(p.Load.Prefill)+uncached+decodeCost*count(p.Load.Decode)+own)/p.speed() + uncached*behind
	})
}

// Least returns the index of the pod of the least cost, and -1 if there is no pod. A pod whose
// cost is infinite or NaN is not chosen. Pod.Tie decides between pods of equal cost, or chance
// in TiesByChance.
func Least(r *Request, pods []Pod, cost func(*Pod) float64) int {
	best, lowest := -1, math.MaxFloat64
	for i := range pods {
		// One comparison for most pods.
		if c := cost(&pods[i]); c <= lowest && (c < lowest || best < 0 || r.first(pods, i, best)) {
			best, lowest = i, c
		}
	}
	return best
}

// first reports whether pods[i] goes before pods[j], of equal cost.
func (r *Request) first(pods []Pod, i, j int) bool {
	if r.tie != 0 {
		return mix(r.tie+uint64(i)) < mix(r.tie+uint64(j))
	}
	p, o := &pods[i], &pods[j]
	if p.Tie != o.Tie {
		return p.Tie < o.Tie
	}
	return p.Name < o.Name || p.Name == o.Name && p.Rank < o.Rank
}

// count returns n, at least 0.
func count(n int) float64 { return float64(max(n, 0)) }

// cached returns the tokens of the prompt that p has, and those that a lower tier adds.
func (r *Request) cached(p *Pod) (gpu, lower float64) {
	n := max(r.Tokens, 0)
	c := min(max(p.Cached, 0), n)
	return float64(c), float64(min(max(p.Lower, 0), n-c))
}

// uncached returns the tokens of the prompt that p has to compute; one of a lower tier counts
// as credit of a cached one.
func (r *Request) uncached(p *Pod, credit float64) float64 {
	gpu, lower := r.cached(p)
	return count(r.Tokens) - gpu - credit*lower
}

func (p *Pod) speed() float64 {
	if !(p.Speed > 0) {
		return 1
	}
	return min(max(p.Speed, 1e-3), 1e3)
}
