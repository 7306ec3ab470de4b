package field_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/route/field"
)

// defaults has all policies with their defaults.
var defaults = map[string]route.Policy{
	"LongestPrefix":       field.LongestPrefix,
	"LLMDSum":             field.LLMDSum{}.Policy(),
	"LLMDAffinity":        field.LLMDAffinity{}.Policy(),
	"Dynamo":              field.Dynamo{}.Policy(),
	"Dynamo, temperature": field.Dynamo{Temperature: 0.5}.Policy(),
	"SGLang":              field.SGLang{}.Policy(),
	"AIBrix":              field.AIBrix{}.Policy(),
	"ProductionStack":     field.ProductionStack{}.Policy(),
}

// oneOf returns one of some values.
func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// situation returns a request and pods. Some figures are zero, below zero or above the length of the
// prompt, and some pods are equal.
func situation(r *rand.Rand) (*route.Request, []route.Pod) {
	tokens := oneOf(r, 0, -3, 10, 100, 1000+r.IntN(8000))
	figure := func(most int) int { return oneOf(r, 0, -1, most, r.IntN(most+1), r.IntN(most/2+1)) }
	pods := make([]route.Pod, 1+r.IntN(12))
	for i := range pods {
		pods[i] = route.Pod{
			Cached: figure(max(tokens, 1) * 5 / 4), Lower: oneOf(r, 0, figure(max(tokens, 1))),
			Load:  route.Load{Requests: figure(oneOf(r, 4, 40, 200)), Prefill: figure(20000), Decode: figure(200000)},
			Speed: oneOf(r, 0, 0.5, 4),
		}
		if i > 0 && r.IntN(3) == 0 {
			pods[i] = pods[r.IntN(i)]
		}
		pods[i].Name, pods[i].Rank = string(rune('a'+r.IntN(20))), i
	}
	return &route.Request{Tokens: tokens, Output: oneOf(r, 0, 300)}, pods
}

// Functions for the plain formulas.

func notBelow0(n int) float64 { return math.Max(0, float64(n)) }

func tiers(q *route.Request, p route.Pod) (gpu, lower float64) {
	gpu = math.Min(notBelow0(p.Cached), notBelow0(q.Tokens))
	return gpu, math.Min(notBelow0(p.Lower), notBelow0(q.Tokens)-gpu)
}

// share returns the part of the prompt that p holds.
func share(q *route.Request, p route.Pod) float64 {
	gpu, lower := tiers(q, p)
	return (gpu + lower) / math.Max(notBelow0(q.Tokens), 1)
}

func requests(p route.Pod) float64 { return notBelow0(p.Load.Requests) }

// numbers returns a figure of each pod.
func numbers(pods []route.Pod, of func(route.Pod) float64) (all []float64) {
	for _, p := range pods {
		all = append(all, of(p))
	}
	return all
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, n := range all {
		sum += n
	}
	return sum / float64(len(all))
}

// value returns the effective value of a parameter.
func value(parameter, byDefault float64) float64 {
	if parameter == 0 {
		return byDefault
	}
	return math.Max(parameter, 0)
}

// costs returns the cost of each pod.
type costs func(*route.Request, []route.Pod) []float64

// longest returns costs that order the pods that fit by their cached tokens and then by requests. If
// no pod fits, the costs order all pods by requests.
func longest(q *route.Request, pods []route.Pod, fits func(route.Pod) bool) []float64 {
	if !slices.ContainsFunc(pods, fits) {
		return numbers(pods, requests)
	}
	return numbers(pods, func(p route.Pod) float64 {
		if !fits(p) {
			return math.Inf(1)
		}
		gpu, lower := tiers(q, p)
		return requests(p) - 1000*(gpu+lower)
	})
}

// formulas has constructors: for each policy one with random parameters, and the formula of its
// comment.
var formulas = map[string]func(*rand.Rand) (route.Policy, costs){
	"LongestPrefix": func(*rand.Rand) (route.Policy, costs) {
		return field.LongestPrefix, func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 { gpu, lower := tiers(q, p); return -gpu - lower })
		}
	},
	"LLMDSum": func(r *rand.Rand) (route.Policy, costs) {
		s := field.LLMDSum{Prefix: oneOf[float64](r, 0, -1, 3), Queue: oneOf[float64](r, 0, -1, 2), Free: oneOf[float64](r, 0, -1, 2)}
		return s.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
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
				return -value(s.Prefix, 2)*share(q, p) - value(s.Queue, 1)*queue - value(s.Free, 1)*free
			})
		}
	},
	"LLMDAffinity": func(r *rand.Rand) (route.Policy, costs) {
		a := field.LLMDAffinity{Threshold: oneOf[float64](r, 0, -1, 0.25, 1, 2), MaxPenalty: oneOf[float64](r, 0, -1, 0.5, 5), Throughput: oneOf[float64](r, 0, 1024), MaxTokens: oneOf[float64](r, 0, 1000, 10000)}
		return a.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			seconds := func(p route.Pod) float64 { return notBelow0(p.Load.Prefill) / value(a.Throughput, 15928) }
			var preferred, others []route.Pod
			for _, p := range pods {
				if share(q, p) >= value(a.Threshold, 0.8) {
					preferred = append(preferred, p)
				} else {
					others = append(others, p)
				}
			}
			stay := len(preferred) > 0
			if stay && len(others) > 0 && a.MaxPenalty >= 0 {
				stay = slices.Min(numbers(preferred, seconds))-slices.Min(numbers(others, seconds)) <= value(a.MaxPenalty, 18)
			}
			return numbers(pods, func(p route.Pod) float64 {
				if stay && !slices.Contains(preferred, p) {
					return math.Inf(1)
				}
				gpu, _ := tiers(q, p)
				return math.Min(notBelow0(p.Load.Prefill)+notBelow0(q.Tokens)-gpu, value(a.MaxTokens, 4194304))
			})
		}
	},
	"Dynamo": func(r *rand.Rand) (route.Policy, costs) {
		d := field.Dynamo{OverlapCredit: oneOf[float64](r, 0, -1, 0.5, 1, 1.5), LowerCredit: oneOf[float64](r, 0, -1, 0.25), PrefillScale: oneOf[float64](r, 0, -1, 2), RequestWeight: oneOf[float64](r, 0, -1, 64)}
		return d.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			return numbers(pods, func(p route.Pod) float64 {
				gpu, lower := tiers(q, p)
				credit := value(d.OverlapCredit, 1)*gpu + value(d.LowerCredit, 0.75)*lower
				prefill := math.Max(0, notBelow0(p.Load.Prefill)+notBelow0(q.Tokens)-credit)
				return value(d.PrefillScale, 1)*prefill + notBelow0(p.Load.Decode) + value(d.RequestWeight, 0)*requests(p)
			})
		}
	},
	"SGLang": func(r *rand.Rand) (route.Policy, costs) {
		s := field.SGLang{Threshold: oneOf[float64](r, 0, -1, 0.75), Abs: oneOf[float64](r, 0, -1, 5), Rel: oneOf[float64](r, 0, -1, 2)}
		return s.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			fewest := slices.Min(numbers(pods, requests))
			return longest(q, pods, func(p route.Pod) bool {
				over := requests(p)-fewest > value(s.Abs, 64) && requests(p) > value(s.Rel, 1.5)*fewest
				return share(q, p) > value(s.Threshold, 0.3) && !over
			})
		}
	},
	"AIBrix": func(r *rand.Rand) (route.Policy, costs) {
		a := field.AIBrix{Deviations: oneOf[float64](r, 0, -1, 2), Abs: oneOf[float64](r, 0, -1, 100)}
		return a.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			all := numbers(pods, requests)
			variance := 0.0
			for _, n := range all {
				variance += (n - mean(all)) * (n - mean(all)) / math.Max(float64(len(all)-1), 1)
			}
			return longest(q, pods, func(p route.Pod) bool {
				far := requests(p) > mean(all)+value(a.Deviations, 1)*math.Sqrt(variance)
				return share(q, p) > 0 && !far && requests(p)-slices.Min(all) <= value(a.Abs, 8)
			})
		}
	},
	"ProductionStack": func(r *rand.Rand) (route.Policy, costs) {
		s := field.ProductionStack{Beta: oneOf[float64](r, 0, -1, 0.3)}
		return s.Policy(), func(q *route.Request, pods []route.Pod) []float64 {
			busy := mean(numbers(pods, requests))
			return numbers(pods, func(p route.Pod) float64 {
				return value(s.Beta, 1)*(requests(p)-busy)/math.Max(1, busy) - share(q, p)
			})
		}
	},
}

// TestFormulas compares each policy with its formula, and with its choice when the pods have another
// order. Of pods with equal costs, the first by name and rank is chosen.
func TestFormulas(t *testing.T) {
	for name, formula := range formulas {
		r := rand.New(rand.NewPCG(1, 2))
		for range 5000 {
			q, pods := situation(r)
			policy, costs := formula(r)
			at, all := policy(q, pods), costs(q, pods)
			if least := slices.Min(all); at < 0 || all[at] > least+1e-9*(1+math.Abs(least)) {
				t.Fatalf("%s chooses %d of %+v for %+v, the costs are %v", name, at, pods, q, all)
			}
			chosen := pods[at]
			for _, p := range pods {
				equal := p
				equal.Name, equal.Rank = chosen.Name, chosen.Rank
				if equal == chosen && cmp.Or(cmp.Compare(p.Name, chosen.Name), cmp.Compare(p.Rank, chosen.Rank)) < 0 {
					t.Fatalf("%s chooses %+v, and not %+v", name, chosen, p)
				}
			}
			r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			if at := policy(q, pods); pods[at] != chosen {
				t.Fatalf("%s chooses %+v, and in another order %+v", name, chosen, pods[at])
			}
		}
	}
}

// fleet returns n pods without load and cached tokens.
func fleet(n int) (pods []route.Pod) {
	for i := range n {
		pods = append(pods, route.Pod{Name: fmt.Sprintf("pod-%02d", i)})
	}
	return pods
}

// wantShares fails if a pod is not chosen as often as it should be, give or take a tenth. 4 goroutines
// choose.
func wantShares(t *testing.T, name string, policy route.Policy, pods []route.Pod, want func(i int) float64) {
	t.Helper()
	const n = 10_000
	var mu sync.Mutex
	var wg sync.WaitGroup
	chosen := make([]int, len(pods))
	for range 4 {
		wg.Go(func() {
			own := make([]int, len(pods))
			for range n {
				own[policy(&route.Request{Tokens: 1000}, pods)]++
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range own {
				chosen[i] += own[i]
			}
		})
	}
	wg.Wait()
	for i, got := range chosen {
		if share := want(i) * 4 * n; math.Abs(float64(got)-share) > 0.1*share {
			t.Errorf("%s chooses pod %d %d times, want %.0f", name, i, got, share)
		}
	}
}

// TestTemperature: for costs of 0, 500 and 1000 the shares are those of the formula. At any
// temperature, pods of equal cost have equal shares.
func TestTemperature(t *testing.T) {
	pods := fleet(3)
	for i := range pods {
		pods[i].Load.Decode = 500 * i
	}
	for _, temperature := range []float64{0.3, 1, 5} {
		sum := 1 + math.Exp(-0.5/temperature) + math.Exp(-1/temperature)
		wantShares(t, fmt.Sprint(temperature), field.Dynamo{Temperature: temperature}.Policy(), pods, func(i int) float64 { return math.Exp(-float64(i)/2/temperature) / sum })
	}
	for _, temperature := range []float64{1e-320, 0.3} {
		wantShares(t, fmt.Sprint(temperature), field.Dynamo{Temperature: temperature}.Policy(), fleet(8), func(int) float64 { return 1. / 8 })
	}
	draw := func(seed uint64) (all [32]int) {
		policy := field.Dynamo{Temperature: 1, Seed: seed}.Policy()
		for i := range all {
			all[i] = policy(&route.Request{}, fleet(16))
		}
		return all
	}
	if first, again, other := draw(1), draw(1), draw(2); first != again || first == other {
		t.Error("the seed does not decide")
	}
}

// TestTiesByChance: chance decides between equal pods.
func TestTiesByChance(t *testing.T) {
	equal := fleet(8)
	for i := range equal {
		equal[i].Cached, equal[i].Load = 300, route.Load{Requests: 3, Prefill: 500, Decode: 4000}
	}
	for name, policy := range defaults {
		wantShares(t, name, route.TiesByChance(policy, 1), equal, func(int) float64 { return 1. / 8 })
	}
}

// FuzzPolicies: with any figures and parameters, a policy chooses one of the pods.
func FuzzPolicies(f *testing.F) {
	f.Add(0, 0, 0, 0, 0, 0, uint8(0), 0., 0., 0., 0.)
	f.Add(1000, 400, 100, 3, 2000, 50_000, uint8(9), 2., 0.5, -1., 1.)
	f.Add(math.MaxInt, math.MaxInt, 1, math.MinInt, math.MaxInt, -1, uint8(100), math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1))
	f.Add(math.MinInt, math.MinInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, uint8(3), math.NaN(), math.NaN(), math.NaN(), math.NaN())
	f.Add(50, 7, 7, 7, 7, 7, uint8(2), 5e-324, math.Inf(-1), 1e300, -1e300)
	f.Fuzz(func(t *testing.T, tokens, cached, lower, requests, prefill, decode int, n uint8, a, b, c, d float64) {
		pods, figures := make([]route.Pod, n), []int{cached, lower, requests, prefill, decode}
		for i := range pods {
			of := func(k int) int { return figures[(i+k)%len(figures)] }
			pods[i] = route.Pod{
				Name: string(rune('a' + i%7)), Rank: i / 20, Cached: of(0), Lower: of(1),
				Load: route.Load{Requests: of(2), Prefill: of(3), Decode: of(4)},
			}
		}
		for i, policy := range []route.Policy{
			field.LongestPrefix,
			field.LLMDSum{Prefix: a, Queue: b, Free: c}.Policy(),
			field.LLMDAffinity{Threshold: a, MaxPenalty: b, Throughput: c, MaxTokens: d}.Policy(),
			field.Dynamo{OverlapCredit: a, LowerCredit: b, PrefillScale: c, RequestWeight: d}.Policy(),
			field.Dynamo{Temperature: a, OverlapCredit: b, PrefillScale: c, RequestWeight: d}.Policy(),
			field.SGLang{Threshold: a, Abs: b, Rel: c}.Policy(),
			field.AIBrix{Deviations: a, Abs: b}.Policy(),
			field.ProductionStack{Beta: a}.Policy(),
		} {
			if at := policy(&route.Request{Tokens: tokens}, pods); at >= len(pods) || (at < 0) != (len(pods) == 0) {
				t.Errorf("policy %d chooses %d of %d pods", i, at, len(pods))
			}
		}
	})
}
