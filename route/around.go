package route

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// Policies around others.

// BestOfTwo returns a Policy that draws two pods, and lets p choose one of them. p sees only
// these two. So it is for policies that depend on load alone: of n pods the one that has the
// prompt cached is drawn for 2/n of the requests only, and Default loses most of the cache
// hits. Chance decides between two equal pods.
func BestOfTwo(p Policy, seed uint64) Policy {
	draws := draws{seed: seed}
	p = TiesByChance(p, ^seed) // or an idle fleet chooses the first by name twice as often
	return func(r *Request, pods []Pod) int {
		if len(pods) <= 2 {
			return p(r, pods)
		}
		a := draws.below(len(pods))
		b := (a + 1 + draws.below(len(pods)-1)) % len(pods)
		return among(p, r, pods, func(s *scratch) { s.at = append(s.at, a, b) })
	}
}

// Only returns a Policy that lets p choose among the pods that keep accepts: those of a role,
// of a zone, those that have an adapter. It returns -1 if there is none.
func Only(keep func(*Pod) bool, p Policy) Policy {
	return func(r *Request, pods []Pod) int {
		return among(p, r, pods, func(s *scratch) {
			at, n := slices.Grow(s.at, len(pods))[:len(pods)], 0
			for i := range pods {
				at[n] = i
				if keep(&pods[i]) {
					n++
				}
			}
			s.at = at[:n]
		})
	}
}

// Decode returns p for the decode stage, where a pod does not compute a prompt, but receives
// the part that it does not hold. A cached token counts as this part of a computed token: 0 is
// none, so that only loads count; 1 is all of it. Parts of tokens are cut off.
func Decode(credit float64, p Policy) Policy {
	credit = min(max(credit, 0), 1)
	return func(r *Request, pods []Pod) int {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		all := slices.Grow(s.pods[:0], len(pods))[:len(pods)]
		for i := range pods {
			gpu, lower := r.cached(&pods[i])
			all[i] = pods[i]
			all[i].Cached, all[i].Lower = int(gpu*credit), int(lower*credit)
		}
		s.pods = all
		return p(r, all)
	}
}

// TiesByChance returns p, a policy that chooses by Least, but chance decides between pods of
// equal cost, and not Pod.Tie and their names. It changes nothing around RoundRobin, Random
// and Rendezvous, nor around a policy of the host that does not call Least with its *Request.
func TiesByChance(p Policy, seed uint64) Policy {
	draws := draws{seed: seed}
	return func(r *Request, pods []Pod) int {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		s.request = *r
		s.request.tie = draws.next() | 1
		return p(&s.request, pods)
	}
}

// A scratch has the input of an inner policy.
type scratch struct {
	request Request
	pods    []Pod
	at      []int // their index in the pods of the outer policy
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// among lets p choose among the pods that fill selects, and returns the index in all pods.
func among(p Policy, r *Request, pods []Pod, fill func(*scratch)) int {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.at = s.at[:0]
	fill(s)
	if len(s.at) == len(pods) {
		return p(r, pods)
	}
	some := slices.Grow(s.pods[:0], len(s.at))[:len(s.at)]
	for i, at := range s.at {
		some[i] = pods[at]
	}
	s.pods = some
	if i := p(r, some); i >= 0 && i < len(some) {
		return s.at[i]
	}
	return -1
}

// draws makes random numbers from a seed (Steele, Lea and Flood 2014, SplitMix64), for many
// goroutines.
type draws struct {
	seed uint64
	made atomic.Uint64
}

func (d *draws) next() uint64 { return mix(mix(d.seed) + d.made.Add(0x9e3779b97f4a7c15)) }

// below returns a number from 0 up to, but not including, n.
func (d *draws) below(n int) int {
	high, _ := bits.Mul64(d.next(), uint64(n))
	return int(high)
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
