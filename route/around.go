package route

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Policies around others.

// BestOfTwo returns a Policy that draws two pods, and has p choose one of them. With several
// gateways that see old figures, all choose the pod that seems to be the best; drawing spreads
// them. What p knows of a fleet it knows of the two.
func BestOfTwo(p Policy, seed uint64) Policy {
	draws := newDraws(seed)
	return func(r *Request, pods []Pod) int {
		if len(pods) <= 2 {
			return p(r, pods)
		}
		a, b := draws.below(len(pods)), draws.below(len(pods)-1)
		if b >= a {
			b++
		}
		return among(p, r, func(s *scratch) {
			s.add(pods, a)
			s.add(pods, b)
		})
	}
}

// Only returns a Policy that has p choose among the pods that keep reports true of: those of a
// role, of a zone, those that have an adapter. It returns -1 if there is none.
func Only(keep func(*Pod) bool, p Policy) Policy {
	return func(r *Request, pods []Pod) int {
		return among(p, r, func(s *scratch) {
			for i := range pods {
				if keep(&pods[i]) {
					s.add(pods, i)
				}
			}
		})
	}
}

// Decode returns p for the decode stage, where a prompt is not computed, but what the pod does
// not hold is brought there. There a cached token counts as so much of a token that need not
// be computed: 0 is none, so that only loads count; 1 is all of it.
func Decode(credit float64, p Policy) Policy {
	credit = min(parameter(credit, 0), 1)
	return func(r *Request, pods []Pod) int {
		return among(p, r, func(s *scratch) {
			for i := range s.all(pods) {
				gpu, lower := r.cached(&pods[i])
				s.pods[i].Cached, s.pods[i].Lower = int(gpu*credit), int(lower*credit)
			}
		})
	}
}

// TiesByChance returns p with another order of the pods each time, so that chance decides
// between those that are as good, and not their names. Around RoundRobin it makes no sense.
func TiesByChance(p Policy, seed uint64) Policy {
	draws := newDraws(seed)
	return func(r *Request, pods []Pod) int {
		return among(p, r, func(s *scratch) {
			for i := range s.all(pods) {
				s.pods[i].Tie = draws.next()
			}
		})
	}
}

// scratch is pods that another policy chooses from.
type scratch struct {
	pods []Pod
	at   []int // in the pods that were passed; empty: where it is
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (s *scratch) add(pods []Pod, i int) {
	s.pods, s.at = append(s.pods, pods[i]), append(s.at, i)
}

// all adds all pods, each where it is.
func (s *scratch) all(pods []Pod) []Pod {
	s.pods = append(s.pods, pods...)
	return s.pods
}

// among has p choose among pods, and returns the index in those that they are from.
func among(p Policy, r *Request, fill func(*scratch)) int {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.pods, s.at = s.pods[:0], s.at[:0]
	fill(s)
	i := p(r, s.pods)
	if i >= 0 && i < len(s.at) {
		return s.at[i]
	}
	return i
}

// draws is random numbers from a seed (Steele, Lea and Flood 2014, SplitMix64), for many
// goroutines.
type draws struct{ state atomic.Uint64 }

func newDraws(seed uint64) *draws {
	d := new(draws)
	d.state.Store(mix(seed))
	return d
}

func (d *draws) next() uint64 { return mix(d.state.Add(0x9e3779b97f4a7c15)) }

// below returns a number from 0 up to, but not including, n.
func (d *draws) below(n int) int {
	high, _ := bits.Mul64(d.next(), uint64(n))
	return int(high)
}

// float returns a number from 0 up to, but not including, 1.
func (d *draws) float() float64 { return float64(d.next()>>11) / (1 << 53) }

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
