// Package route chooses the pod that a request goes to, by what each pod holds of its prompt
// and by what each pod has to do.
//
// Start with Default, the policy of this package, and a Tracker. A Policy is a function: it takes
// a request and the pods that can serve it, and returns the index of one pod. What each pod has
// cached comes from an index, such as kvindex's PodScore. What each pod has to do comes from the
// Tracker, which asks no engine: it counts what was sent and what has come back.
//
// Only, Decode, BestOfTwo and TiesByChance wrap any policy. Least makes a policy of a cost.
// Package route/field has the policies of other routers, so that a host can compare them with
// Default on its own traffic. Several gateways exchange Notes of what they have sent.
//
// Policies are pure but for those that draw or count, which say so. All are safe for many
// goroutines.
//
// Nothing that a host passes makes a policy panic, but a nil Request. Figures below 0 count as 0, and more than a
// prompt cannot be cached. If there are pods, one of them is chosen, except by Only.
package route

import "math"

// A score chooses nothing. The longest prefix alone sends everybody to one pod where prompts
// begin alike, so a host needs a rule that weighs cache against load. This package imports
// nothing of the project, so a host can use it with other scores.
//
// A policy is a function of a request and the pods. It knows what it is given: no clock, no
// state, no answer of an engine. So it can be judged in a simulator and be called in a test.
// Those that draw or count have a closure. Policies around others copy the pods into memory
// that is used again; a choice allocates nothing.
//
// # Why Default
//
// It charges a request for the harm that it does. Its tokens that are not cached keep others
// waiting, the more the longer the queues are: so the part of the prompt that is missing costs
// that part of the mean queue once more. The tokens that a pod holds slow each step of all its
// requests a little, hence 0.02. A sum of normalized scores cannot say that: there a pod with
// twice the work loses the same, be it a second or a minute.
//
// The mean queue counts once, so an idle pod gets work. Counted twice, prompts stay with what
// they have cached, which is better while all pods are there. But when pods come to a fleet
// that is behind, nobody goes to them, because what is missing there costs more than the
// longest queue. Requests that are generating do not count in the mean: they wait for nobody.
// In a simulation that is not part of the project, of 24 loads, the mean time to the first
// token was 4 to 12 % behind the best policy of each load, by the geometric mean, and 2.3
// times at worst. The policies of other projects were behind by 29 % to 3.3 times.
//
// The wait of others is not divided by the speed of a pod. With both divided, a pod of half
// the speed got no request at all at nine tenths of saturation, because its tokens seemed to
// harm twice as many. At saturation it gets half of what the others get.
//
// # What is not here
//
// Preble's histogram of prefixes needs a window of costs that our figures have already. Fair
// queues and flow control hold requests back, which is the host's decision. Predicted
// latencies need a model for each kind of hardware.

// Request is a request that is to be sent somewhere.
type Request struct {
	Tokens int // of the prompt
	Output int // tokens that will be generated, as far as the host knows; 0: it does not
	// Affinity is a hash of what requests have in common that should go to one pod: the
	// session, or the first blocks of the prompt. Only Rendezvous looks at it.
	Affinity uint64

	tie uint64 // with where it is, orders a pod among those that are as good; 0: Pod.Tie does
}

// Pod is a rank of a pod that a request may be sent to. Name and Rank tell pods apart.
type Pod struct {
	Name string
	Rank int
	// Cached is how many tokens of the prompt need not be computed there
	// (PodScore.PredictedTokens). Lower is how many more tokens come from a tier below the
	// gpu.
	Cached, Lower int
	Load          Load
	// Speed is how fast the pod computes, compared with the others; 0 is 1. It is kept
	// between 1/1000 and 1000. The policies of package route/field do not use it.
	Speed float64
	// Tie decides between pods that are as good: the lowest is chosen, and of equal ones the
	// first by Name, then by Rank. kvindex's Answer.RoutePods sets it to an order that comes
	// from the prompt, the name and the rank. So prompts that nobody holds spread, and equal
	// ones meet.
	Tie uint64
}

// Load is what a pod has in flight: what was sent there and has not ended.
type Load struct {
	Requests int
	Prefill  int // tokens of prompts that are still to be computed
	Decode   int // tokens that are held: prompts that are computed, and what was generated
}

// Policy chooses one of the pods for a request, and returns its index. It returns -1 if there
// is no pod, or none of those that it may choose. The order of the pods does not matter.
type Policy func(*Request, []Pod) int

const (
	lowerCredit = 0.75 // of a token in a lower tier, compared with one on the gpu
	decodeCost  = 0.02 // of a token that a pod holds, compared with one that is to be computed
)

// Default chooses the pod where a request does the least harm: to itself, and to all who come
// behind it. A request waits for all prompts that its pod has to compute, and then for its own
// tokens that the pod does not have. Those tokens also keep others waiting, the more of them
// the longer the queues of the fleet are. So on an idle fleet a request goes where it is
// answered first, and on a busy one to where it is computed already, unless too much waits
// there. The pod of the least cost is chosen:
//
//	(prefill + uncached + 0.02 x (decode + tokens + output)) / speed + mean x uncached/tokens
//
// where prefill is what the pod has to compute for others, and mean is the mean of that over the
// pods. Uncached is what it has to compute of the prompt: a token of a lower tier counts as
// 0.75 of a cached one. Decode is what the pod holds. What others wait is not divided by
// the speed: a pod of half the speed computes for twice as long, but half as many come to it
// meanwhile.
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

// Least returns the index of the pod of the least cost, and -1 if there is no pod. A pod whose cost
// is infinite or NaN is not chosen. Pod.Tie decides between pods of equal cost, or chance in
// TiesByChance.
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

// first reports whether pods[i] is chosen of two that are as good.
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

// count returns a number that is not below 0.
func count(n int) float64 { return float64(max(n, 0)) }

// cached returns the tokens of the prompt that p has, and those that a lower tier adds.
func (r *Request) cached(p *Pod) (gpu, lower float64) {
	n := max(r.Tokens, 0)
	c := min(max(p.Cached, 0), n)
	return float64(c), float64(min(max(p.Lower, 0), n-c))
}

// uncached returns the tokens of the prompt that p has to compute; one of a lower tier counts
// as so much of a cached one.
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
