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

// policies returns one of each, with their defaults.
func policies() iter.Seq2[string, route.Policy] {
	all := map[string]route.Policy{
		"Default":           route.Default,
		"LongestPrefix":     route.LongestPrefix,
		"Product":           route.Product,
		"LeastRequests":     route.LeastRequests,
		"LeastTokens":       route.LeastTokens,
		"Dynamo":            route.Dynamo{}.Policy(),
		"DynamoTemperature": route.Dynamo{Temperature: 0.5}.Policy(),
		"WeightedSum":       route.WeightedSum{}.Policy(),
		"Affinity":          route.Affinity{}.Policy(),
		"PrefixLessLoad":    route.PrefixLessLoad{}.Policy(),
		"SGLang":            route.SGLang{}.Policy(),
		"AIBrix":            route.AIBrix{}.Policy(),
		"Rendezvous":        route.Rendezvous{}.Policy(),
		"RoundRobin":        route.RoundRobin(),
		"Random":            route.Random(1),
		"BestOfTwo":         route.BestOfTwo(route.Default, 1),
		"OnlyAll":           route.Only(func(p *route.Pod) bool { return p.Name != "" }, route.Default),
		"OnlyHalf":          route.Only(half, route.Default),
		"Decode":            route.Decode(0.5, route.Default),
		"TiesByChance":      route.TiesByChance(route.Default, 1),
	}
	return func(yield func(string, route.Policy) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !yield(name, all[name]) {
				return
			}
		}
	}
}

// half is true of about half of all pods.
func half(p *route.Pod) bool { return p.Name != "" && p.Name[len(p.Name)-1]&1 == 0 }

// chance has the policies that draw or count.
var chance = []string{"DynamoTemperature", "RoundRobin", "Random", "BestOfTwo", "TiesByChance"}

// oneOf returns one of some values.
func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// situation returns a request and pods that differ in everything, or in little: with zeros,
// figures below zero, more cached than there is, pods that are as good, and pods that are ranks
// of one.
func situation(r *rand.Rand) (*route.Request, []route.Pod) {
	tokens := oneOf(r, 0, -3, 1, 10, 100, 1000+r.IntN(8000))
	figure := func(most int) int { return oneOf(r, 0, 0, -1, most, r.IntN(most+1), r.IntN(most+1), r.IntN(most/2+1)) }
	some := []int{figure(40), figure(40)}
	var pods []route.Pod
	for i := range 1 + r.IntN(12) {
		p := route.Pod{
			Cached: figure(max(tokens, 1) * 5 / 4), Lower: oneOf(r, 0, figure(max(tokens, 1))),
			Load:  route.Load{Requests: oneOf(r, oneOf(r, some...), figure(40), figure(200)), Prefill: figure(20000), Decode: figure(200000)},
			Speed: oneOf(r, 0, 0, 1, 0.5, 2, 4),
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

// What the plain formulas are written with.

func notBelow0(n int) float64 { return math.Max(0, float64(n)) }

func held(q *route.Request, p route.Pod) (gpu, lower float64) {
	gpu = math.Min(notBelow0(p.Cached), notBelow0(q.Tokens))
	return gpu, math.Min(notBelow0(p.Lower), notBelow0(q.Tokens)-gpu)
}

func share(q *route.Request, p route.Pod) float64 {
	gpu, lower := held(q, p)
	return (gpu + lower) / math.Max(notBelow0(q.Tokens), 1)
}

func speed(p route.Pod) float64 {
	if p.Speed == 0 {
		return 1
	}
	return p.Speed
}

// numbers returns a figure of each pod.
func numbers(pods []route.Pod, of func(route.Pod) float64) (all []float64) {
	for _, p := range pods {
		all = append(all, of(p))
	}
	return all
}

func requests(p route.Pod) float64 { return notBelow0(p.Load.Requests) }

func mean(all []float64) float64 {
	sum := 0.0
	for _, n := range all {
		sum += n
	}
	return sum / float64(len(all))
}

// name orders pods that are as good.
func name(p route.Pod) string { return fmt.Sprintf("%s %9d", p.Name, p.Rank) }

// withDefault returns what a parameter means.
func withDefault(v, byDefault float64) float64 {
	switch {
	case v == 0:
		return byDefault
	case v < 0:
		return 0
	}
	return v
}

// prefixCosts returns costs that have those that are fit chosen by what they hold, then by
// requests; if none is fit, all by requests.
func prefixCosts(q *route.Request, pods []route.Pod, fit func(route.Pod) bool) []float64 {
	if !slices.ContainsFunc(pods, fit) {
		return numbers(pods, requests)
	}
	return numbers(pods, func(p route.Pod) float64 {
		if !fit(p) {
			return math.Inf(1)
		}
		gpu, lower := held(q, p)
		return requests(p) - 1000*(gpu+lower)
	})
}

// formulas has for each policy a random one of its kind and what the formula of its comment says
// of each pod: the least is chosen.
var formulas = map[string]func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64){
	"Default": func(*rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		return route.Default, func(q *route.Request, pods []route.Pod) []float64 {
			waiting := mean(numbers(pods, func(p route.Pod) float64 { return notBelow0(p.Load.Prefill) }))
			return numbers(pods, func(p route.Pod) float64 {
				gpu, lower := held(q, p)
				uncached := notBelow0(q.Tokens) - gpu - 0.75*lower
				decode := 0.02 * (notBelow0(p.Load.Decode) + notBelow0(q.Tokens) + notBelow0(q.Output))
				return (notBelow0(p.Load.Prefill)+uncached+decode)/speed(p) + waiting*uncached/math.Max(notBelow0(q.Tokens), 1)
			})
		}
	},
	"LongestPrefix": func(*rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		return route.LongestPrefix, func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 { gpu, lower := held(q, p); return -gpu - lower })
		}
	},
	"Product": func(*rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		return route.Product, func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 {
				gpu, lower := held(q, p)
				return (notBelow0(q.Tokens) - gpu - 0.75*lower) * (requests(p) + 1) / speed(p)
			})
		}
	},
	"LeastRequests": func(*rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		return route.LeastRequests, func(_ *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 { return (requests(p) + 1) / speed(p) })
		}
	},
	"LeastTokens": func(*rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		return route.LeastTokens, func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 {
				return (notBelow0(p.Load.Prefill) + notBelow0(p.Load.Decode) + notBelow0(q.Tokens) + notBelow0(q.Output)) / speed(p)
			})
		}
	},
	"Dynamo": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		d := route.Dynamo{OverlapCredit: oneOf[float64](r, 0, -1, 0.5, 1, 1.5), LowerCredit: oneOf[float64](r, 0, -1, 0.25), PrefillScale: oneOf[float64](r, 0, -1, 2), RequestWeight: oneOf[float64](r, 0, -1, 64)}
		return d.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 {
				gpu, lower := held(q, p)
				credit := withDefault(d.OverlapCredit, 1)*gpu + withDefault(d.LowerCredit, 0.75)*lower
				prefill := math.Max(0, notBelow0(p.Load.Prefill)+notBelow0(q.Tokens)-credit)
				return withDefault(d.PrefillScale, 1)*prefill + notBelow0(p.Load.Decode) + withDefault(d.RequestWeight, 0)*requests(p)
			})
		}
	},
	"WeightedSum": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		w := route.WeightedSum{Prefix: oneOf[float64](r, 0, -1, 3), Queue: oneOf[float64](r, 0, -1, 2), Free: oneOf[float64](r, 0, -1, 2)}
		return w.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			queues := numbers(pods, requests)
			longest, shortest := slices.Max(queues), slices.Min(queues)
			full := slices.Max(numbers(pods, func(p route.Pod) float64 { return notBelow0(p.Load.Decode) }))
			return numbers(pods, func(p route.Pod) float64 {
				queue, free := 1.0, 1.0
				if longest > shortest {
					queue = (longest - requests(p)) / (longest - shortest)
				}
				if full > 0 {
					free = 1 - notBelow0(p.Load.Decode)/full
				}
				return -withDefault(w.Prefix, 2)*share(q, p) - withDefault(w.Queue, 1)*queue - withDefault(w.Free, 1)*free
			})
		}
	},
	"Affinity": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		a := route.Affinity{Threshold: oneOf[float64](r, 0, -1, 0.25, 1, 2), MaxPenalty: oneOf[float64](r, 0, -1, 0.5, 5), Throughput: oneOf[float64](r, 0, 1024), MaxTokens: oneOf[float64](r, 0, 1000, 10000)}
		return a.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			seconds := func(p route.Pod) float64 { return notBelow0(p.Load.Prefill) / withDefault(a.Throughput, 15928) }
			var sticky, others []route.Pod
			for _, p := range pods {
				if share(q, p) >= withDefault(a.Threshold, 0.8) {
					sticky = append(sticky, p)
				} else {
					others = append(others, p)
				}
			}
			stay := a.Threshold >= 0 && len(sticky) > 0
			if stay && len(others) > 0 && a.MaxPenalty >= 0 {
				stay = slices.Min(numbers(sticky, seconds))-slices.Min(numbers(others, seconds)) <= withDefault(a.MaxPenalty, 18)
			}
			return numbers(pods, func(p route.Pod) float64 {
				if stay && !slices.Contains(sticky, p) {
					return math.Inf(1)
				}
				gpu, _ := held(q, p)
				return math.Min(notBelow0(p.Load.Prefill)+notBelow0(q.Tokens)-gpu, withDefault(a.MaxTokens, 4194304))
			})
		}
	},
	"PrefixLessLoad": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		l := route.PrefixLessLoad{Beta: oneOf[float64](r, 0, -1, 0.3)}
		return l.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			busy := mean(numbers(pods, requests))
			return numbers(pods, func(p route.Pod) float64 {
				return withDefault(l.Beta, 1)*(requests(p)-busy)/math.Max(1, busy) - share(q, p)
			})
		}
	},
	"SGLang": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		s := route.SGLang{Threshold: oneOf[float64](r, 0, -1, 0.75), Abs: oneOf[float64](r, 0, -1, 5), Rel: oneOf[float64](r, 0, -1, 2)}
		return s.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			fewest := slices.Min(numbers(pods, requests))
			return prefixCosts(q, pods, func(p route.Pod) bool {
				over := requests(p)-fewest > withDefault(s.Abs, 64) && requests(p) > withDefault(s.Rel, 1.5)*fewest
				return share(q, p) > withDefault(s.Threshold, 0.3) && !over
			})
		}
	},
	"AIBrix": func(r *rand.Rand) (route.Policy, func(*route.Request, []route.Pod) []float64) {
		a := route.AIBrix{Deviations: oneOf[float64](r, 0, -1, 2), Abs: oneOf[float64](r, 0, -1, 100)}
		return a.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			all := numbers(pods, requests)
			variance := 0.0
			for _, n := range all {
				variance += (n - mean(all)) * (n - mean(all)) / math.Max(float64(len(all)-1), 1)
			}
			return prefixCosts(q, pods, func(p route.Pod) bool {
				far := requests(p) > mean(all)+withDefault(a.Deviations, 1)*math.Sqrt(variance)
				return share(q, p) > 0 && !far && requests(p)-slices.Min(all) <= withDefault(a.Abs, 8)
			})
		}
	},
}

// TestFormulas compares each policy with its formula. Between pods whose figures are the same
// names decide; between those whose cost is the same but for rounding either may be chosen.
func TestFormulas(t *testing.T) {
	for policyName, kind := range formulas {
		t.Run(policyName, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for range 10_000 {
				q, pods := situation(r)
				policy, formula := kind(r)
				costs := formula(q, pods)
				at := policy(q, pods)
				if at < 0 || at >= len(pods) {
					t.Fatalf("%d of %d pods", at, len(pods))
				}
				least := slices.Min(costs)
				if costs[at] > least+1e-9*(1+math.Abs(least)) {
					t.Fatalf("%s (%v) is chosen of %+v for %+v, the costs are %v", pods[at].Name, costs[at], pods, q, costs)
				}
				for _, p := range pods {
					same := p
					same.Name, same.Rank = pods[at].Name, pods[at].Rank
					if same == pods[at] && name(p) < name(pods[at]) {
						t.Fatalf("%s is as good as %s in %+v", name(p), name(pods[at]), pods)
					}
				}
			}
		})
	}
}

// TestTies has names decide where costs, but not all figures, are the same.
func TestTies(t *testing.T) {
	pods := []route.Pod{
		{Name: "c", Rank: 0, Cached: 30, Load: route.Load{Requests: 2, Prefill: 40}},
		{Name: "b", Rank: 1, Cached: 30, Load: route.Load{Requests: 2, Prefill: 40}},
		{Name: "b", Rank: 0, Cached: 30, Load: route.Load{Requests: 2, Prefill: 40}},
		{Name: "d", Rank: 0, Cached: 30, Load: route.Load{Requests: 2, Prefill: 40}},
	}
	for policyName, policy := range policies() {
		if slices.Contains(chance, policyName) || policyName == "Rendezvous" {
			continue
		}
		if at := policy(&route.Request{Tokens: 100}, pods); at != 2 {
			t.Errorf("%s chooses %d", policyName, at)
		}
	}
	if at := (route.Dynamo{}).Policy()(&route.Request{Tokens: 100}, []route.Pod{
		{Name: "b", Cached: 30, Load: route.Load{Decode: 30}},
		{Name: "a", Cached: 10, Load: route.Load{Decode: 10}},
	}); at != 1 {
		t.Errorf("of a cost of 100 each the second by name is chosen")
	}
}

// TestOrder has the pods in another order: the same one is chosen.
func TestOrder(t *testing.T) {
	for policyName, policy := range policies() {
		if slices.Contains(chance, policyName) {
			continue
		}
		r := rand.New(rand.NewPCG(3, 4))
		for range 2000 {
			q, pods := situation(r)
			other := slices.Clone(pods)
			r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
			a, b := policy(q, pods), policy(q, other)
			if a >= 0 && (b < 0 || pods[a] != other[b]) || a < 0 && b >= 0 {
				t.Fatalf("%s chooses %d of %+v, and %d of %+v", policyName, a, pods, b, other)
			}
		}
	}
}

// TestBetterIsChosen makes what is chosen better, one figure at a time: it is chosen again.
// Not so with fewer requests in AIBrix: a pod that has far fewer than the others makes their
// deviation larger. Nor with less to compute in Default if the pod is faster than others: it
// gains less by that than what is missing elsewhere is worth less. Nor with more cached in Decode, which rounds both tiers to a token.
func TestBetterIsChosen(t *testing.T) {
	better := map[string]func(*route.Pod){
		"cached":   func(p *route.Pod) { p.Cached = max(p.Cached, 0) + 5 },
		"requests": func(p *route.Pod) { p.Load.Requests -= 3 },
		"prefill":  func(p *route.Pod) { p.Load.Prefill -= 700 },
		"decode":   func(p *route.Pod) { p.Load.Decode -= 900 },
	}
	for policyName, policy := range policies() {
		if slices.Contains(chance, policyName) {
			continue
		}
		for figure, improve := range better {
			if figure == "requests" && policyName == "AIBrix" ||
				figure == "cached" && policyName == "Decode" {
				continue
			}
			r := rand.New(rand.NewPCG(5, 6))
			for range 2000 {
				q, pods := situation(r)
				at := policy(q, pods)
				if at < 0 || figure == "prefill" && pods[at].Speed > 1 {
					continue
				}
				was := pods[at]
				improve(&pods[at])
				if again := policy(q, pods); again != at {
					t.Fatalf("%s: %+v was chosen, with better %s %+v is, of %+v for %+v", policyName, was, figure, pods[again], pods, q)
				}
			}
		}
	}
	q := &route.Request{Tokens: 1000}
	pods := []route.Pod{{Name: "a", Cached: 500, Load: route.Load{Prefill: 800}}, {Name: "b"}}
	if route.Default(q, pods) != 1 {
		t.Error("what is cached counts for much on an idle fleet")
	}
	pods[0].Load.Prefill, pods[1].Load.Prefill = 10_800, 10_000
	if route.Default(q, pods) != 0 {
		t.Error("what is cached counts for little on a busy fleet")
	}
	pods[0].Cached, pods[0].Load.Prefill, pods[1].Load.Prefill = 1000, 5000, 0
	if route.Default(q, pods) != 1 {
		t.Error("a pod that has come is idle while the others have much to do")
	}
}

// TestNone has no pod, or one.
func TestNone(t *testing.T) {
	for policyName, policy := range policies() {
		if at := policy(&route.Request{Tokens: 10}, nil); at != -1 {
			t.Errorf("%s chooses %d of no pods", policyName, at)
		}
		if at := policy(&route.Request{Tokens: 10}, []route.Pod{{Name: "pod-0", Load: route.Load{Requests: 1000, Prefill: math.MaxInt}}}); at != 0 {
			t.Errorf("%s chooses %d of one pod", policyName, at)
		}
	}
	none := route.Only(func(*route.Pod) bool { return false }, route.Random(1))
	if at := none(&route.Request{}, make([]route.Pod, 3)); at != -1 {
		t.Errorf("%d of none is chosen", at)
	}
}

// TestSpeeds has speeds that are none, and those that are bounded.
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

// TestConcurrent has 8 goroutines use the same policies.
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
