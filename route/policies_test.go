package route_test

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// policies returns all policies, and Default in each wrapper, in a fixed order.
func policies() iter.Seq2[string, route.Policy] {
	all := map[string]route.Policy{
		"Default":       route.Default,
		"LeastRequests": route.LeastRequests,
		"LeastTokens":   route.LeastTokens,
		"Rendezvous":    route.Rendezvous{}.Policy(),
		"RoundRobin":    route.RoundRobin(),
		"Random":        route.Random(1),
		"BestOfTwo":     route.BestOfTwo(route.Default, 1),
		"OnlyAll":       route.Only(func(p *route.Pod) bool { return p.Name != "" }, route.Default),
		"OnlyHalf":      route.Only(half, route.Default),
		"Decode":        route.Decode(0.5, route.Default),
		"TiesByChance":  route.TiesByChance(route.Default, 1),
	}
	return func(yield func(string, route.Policy) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !yield(name, all[name]) {
				return
			}
		}
	}
}

// half accepts about half of all pods.
func half(p *route.Pod) bool { return p.Name != "" && p.Name[len(p.Name)-1]&1 == 0 }

// chance has the policies that draw or keep a turn.
var chance = []string{"RoundRobin", "Random", "BestOfTwo", "TiesByChance"}

// oneOf returns one of some values.
func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// situation returns a request, and pods that differ in all figures or in few: some are zero, below
// zero or above the length of the prompt, some pods are equal, and some are ranks of one pod.
func situation(r *rand.Rand) (*route.Request, []route.Pod) {
	tokens := oneOf(r, 0, -3, 1, 10, 100, 1000+r.IntN(8000))
	figure := func(most int) int { return oneOf(r, 0, 0, -1, most, r.IntN(most+1), r.IntN(most+1), r.IntN(most/2+1)) }
	some := []int{figure(40), figure(40)}
	var pods []route.Pod
	for i := range 1 + r.IntN(12) {
		p := route.Pod{
			Cached: figure(max(tokens, 1) * 5 / 4), Lower: oneOf(r, 0, figure(max(tokens, 1))),
			Load:  route.Load{Requests: oneOf(r, oneOf(r, some...), figure(40), figure(200)), Prefill: figure(20000), Decode: figure(200000)},
			Speed: oneOf(r, 0, 0, 1, 0.5, 2, 4), Tie: oneOf[uint64](r, 0, 0, 1, 1<<63),
		}
		if i > 0 && r.IntN(3) == 0 {
			p = pods[r.IntN(i)]
		}
		p.Name, p.Rank = fmt.Sprintf("pod-%c%d", 'a'+r.IntN(20), i/2), i
		if i%2 == 1 && r.IntN(3) == 0 {
			p.Name = pods[i-1].Name
		}
		pods = append(pods, p)
	}
	r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return &route.Request{Tokens: tokens, Output: oneOf(r, 0, -5, 300), Affinity: r.Uint64()}, pods
}

// Functions for the plain formulas.

func notBelow0(n int) float64 { return math.Max(0, float64(n)) }

func held(q *route.Request, p route.Pod) (gpu, lower float64) {
	gpu = math.Min(notBelow0(p.Cached), notBelow0(q.Tokens))
	return gpu, math.Min(notBelow0(p.Lower), notBelow0(q.Tokens)-gpu)
}

func speed(p route.Pod) float64 {
	if p.Speed == 0 {
		return 1
	}
	return p.Speed
}

func requests(p route.Pod) float64 { return notBelow0(p.Load.Requests) }

// order returns a text by which pods of equal cost are sorted.
func order(p route.Pod) string { return fmt.Sprintf("%20d %s %9d", p.Tie, p.Name, p.Rank) }

// formulas has, for each policy, the formula of its comment as a cost of a pod.
var formulas = map[string]struct {
	policy route.Policy
	cost   func(q *route.Request, pods []route.Pod, p route.Pod) float64
}{
	"Default": {route.Default, func(q *route.Request, pods []route.Pod, p route.Pod) float64 {
		mean := 0.0
		for _, other := range pods {
			mean += notBelow0(other.Load.Prefill) / float64(len(pods))
		}
		gpu, lower := held(q, p)
		uncached := notBelow0(q.Tokens) - gpu - 0.75*lower
		decode := 0.02 * (notBelow0(p.Load.Decode) + notBelow0(q.Tokens) + notBelow0(q.Output))
		return (notBelow0(p.Load.Prefill)+uncached+decode)/speed(p) + mean*uncached/math.Max(notBelow0(q.Tokens), 1)
	}},
	"LeastRequests": {route.LeastRequests, func(_ *route.Request, _ []route.Pod, p route.Pod) float64 {
		return (requests(p) + 1) / speed(p)
	}},
	"LeastTokens": {route.LeastTokens, func(q *route.Request, _ []route.Pod, p route.Pod) float64 {
		return (notBelow0(p.Load.Prefill) + notBelow0(p.Load.Decode) + notBelow0(q.Tokens) + notBelow0(q.Output)) / speed(p)
	}},
}

// TestFormulas compares each policy with its formula, and with its choice when the pods have another
// order. Of pods with equal costs, the first by order is chosen.
func TestFormulas(t *testing.T) {
	for policyName, formula := range formulas {
		r := rand.New(rand.NewPCG(1, 2))
		for range 5000 {
			q, pods := situation(r)
			at := formula.policy(q, pods)
			if at < 0 || at >= len(pods) {
				t.Fatalf("%s chooses %d of %d pods", policyName, at, len(pods))
			}
			cost := formula.cost(q, pods, pods[at])
			for _, p := range pods {
				if other := formula.cost(q, pods, p); cost > other+1e-9*(1+math.Abs(other)) {
					t.Fatalf("%s chooses %+v (%v), and not %+v (%v), for %+v", policyName, pods[at], cost, p, other, q)
				}
				equal := p
				equal.Name, equal.Rank, equal.Tie = pods[at].Name, pods[at].Rank, pods[at].Tie
				if equal == pods[at] && order(p) < order(pods[at]) {
					t.Fatalf("%s chooses %+v, and not %+v", policyName, pods[at], p)
				}
			}
			chosen := pods[at]
			r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			if at := formula.policy(q, pods); pods[at] != chosen {
				t.Fatalf("%s chooses %+v, and in another order %+v", policyName, chosen, pods[at])
			}
		}
	}
}

// TestTies: Tie decides between pods of equal cost, then the name, then the rank.
func TestTies(t *testing.T) {
	pods := []route.Pod{{Name: "c"}, {Name: "b", Rank: 1}, {Name: "b"}, {Name: "d"}, {Name: "a", Tie: 1}}
	for i := range pods {
		pods[i].Cached, pods[i].Load = 30, route.Load{Requests: 2, Prefill: 40}
	}
	for policyName, policy := range policies() {
		if slices.Contains(chance, policyName) || policyName == "Rendezvous" {
			continue
		}
		if at := policy(&route.Request{Tokens: 100}, pods); at != 2 {
			t.Errorf("%s chooses %d", policyName, at)
		}
	}
}

// TestLeast: infinite costs and NaN are never chosen, the greatest finite cost is.
func TestLeast(t *testing.T) {
	pods := fleet(4)
	costs := []float64{math.NaN(), math.Inf(1), math.MaxFloat64, math.Inf(1)}
	cost := func(p *route.Pod) float64 { return costs[p.Name[len(p.Name)-1]-'0'] }
	if at := route.Least(&route.Request{}, pods, cost); at != 2 {
		t.Errorf("%d is chosen of %v", at, costs)
	}
	if at := route.Least(&route.Request{}, pods[:2], cost); at != -1 {
		t.Errorf("%d is chosen of %v", at, costs[:2])
	}
}

// TestSpeeds: an invalid speed is replaced, and others are bounded.
func TestSpeeds(t *testing.T) {
	busy := route.Load{Requests: 9, Prefill: 9000}
	for _, row := range []struct{ speed, like float64 }{
		{0, 1}, {-2, 1}, {math.NaN(), 1}, {math.Inf(-1), 1}, {math.Inf(1), 1000}, {1e300, 1000}, {5e-324, 0.001}, {1e-4, 0.001},
	} {
		for policyName, policy := range policies() {
			if slices.Contains(chance, policyName) {
				continue
			}
			for _, other := range []float64{0.0011, 0.5, 1, 2, 900} {
				pods := []route.Pod{{Name: "a2", Speed: row.speed, Load: busy}, {Name: "b4", Speed: other, Load: busy}}
				got := policy(&route.Request{Tokens: 1000}, pods)
				pods[0].Speed = row.like
				if want := policy(&route.Request{Tokens: 1000}, pods); got != want {
					t.Errorf("%s: speeds of %v and %v: %d is chosen, want %d", policyName, row.speed, other, got, want)
				}
			}
		}
	}
	if at := route.LeastTokens(&route.Request{Tokens: 1}, []route.Pod{{Speed: 5e-324}}); at != 0 {
		t.Errorf("%d of one pod is chosen, which is very slow", at)
	}
}

// TestConcurrent: 8 goroutines use the same policies.
func TestConcurrent(t *testing.T) {
	for policyName, policy := range policies() {
		var wg sync.WaitGroup
		for g := range uint64(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, 7))
				for range 300 {
					q, pods := situation(r)
					if at := policy(q, pods); at >= len(pods) || at < 0 && policyName != "OnlyHalf" {
						t.Errorf("%s chooses %d of %d", policyName, at, len(pods))
						return
					}
				}
			})
		}
		wg.Wait()
	}
}
