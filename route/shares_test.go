package route_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// fleet returns n pods without load and cached tokens.
func fleet(n int) (pods []route.Pod) {
	for i := range n {
		pods = append(pods, route.Pod{Name: fmt.Sprintf("pod-%02d", i)})
	}
	return pods
}

// shares returns how often each pod is chosen in n choices, by name. The order of the pods changes
// from choice to choice.
func shares(n int, policy route.Policy, pods []route.Pod) map[string]int {
	r := rand.New(rand.NewPCG(8, 9))
	pods = slices.Clone(pods)
	chosen := make(map[string]int)
	for range n {
		i, j := r.IntN(len(pods)), r.IntN(len(pods))
		pods[i], pods[j] = pods[j], pods[i]
		chosen[pods[policy(&route.Request{Tokens: 1000, Affinity: r.Uint64()}, pods)].Name]++
	}
	return chosen
}

// within fails if a pod's number of choices differs from want by more than the part of it.
func within(t *testing.T, part float64, chosen map[string]int, want map[string]float64) {
	t.Helper()
	for pod, share := range want {
		if got := float64(chosen[pod]); math.Abs(got-share) > part*share {
			t.Errorf("%s is chosen %v times, want %v", pod, got, share)
		}
	}
}

// TestShares: chance decides between equal pods, with equal shares.
func TestShares(t *testing.T) {
	equal := fleet(8)
	for i := range equal {
		equal[i].Cached, equal[i].Load = 300, route.Load{Requests: 3, Prefill: 500, Decode: 4000}
	}
	want := make(map[string]float64)
	for _, p := range equal {
		want[p.Name] = 40_000 / 8
	}
	all := map[string]route.Policy{
		"Random":            route.Random(7),
		"RoundRobin":        route.RoundRobin(),
		"Rendezvous":        route.Rendezvous{}.Policy(),
		"ties of a filter":  route.TiesByChance(route.Only(func(*route.Pod) bool { return true }, route.Default), 3),
		"ties in a filter":  route.Only(func(*route.Pod) bool { return true }, route.TiesByChance(route.Default, 4)),
		"BestOfTwo":         route.BestOfTwo(route.Default, 2),
		"BestOfTwo(Random)": route.BestOfTwo(route.Random(3), 5),
	}
	for name, policy := range policies() {
		if !slices.Contains(chance, name) && name != "OnlyHalf" && name != "Rendezvous" {
			all["ties of "+name] = route.TiesByChance(policy, 1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { within(t, 0.08, shares(40_000, all[name], equal), want) })
	}
}

// TestBestOfTwo: of four pods, each better than the next, the best is chosen if it is drawn, and
// the worst never.
func TestBestOfTwo(t *testing.T) {
	pods := fleet(4)
	for i := range pods {
		pods[i].Load.Prefill = 1000 * i
	}
	want := map[string]float64{"pod-00": 20_000, "pod-01": 40_000. / 3, "pod-02": 40_000. / 6, "pod-03": 0}
	within(t, 0.08, shares(40_000, route.BestOfTwo(route.Default, 6), pods), want)
	within(t, 0, shares(1000, route.BestOfTwo(route.Default, 6), pods[1:3]), map[string]float64{"pod-01": 1000})
}

// TestSeeds: an equal seed draws the same, and another seed draws differently.
func TestSeeds(t *testing.T) {
	pods := fleet(16)
	draw := func(p route.Policy) (all [32]int) {
		for i := range all {
			all[i] = p(&route.Request{}, pods)
		}
		return all
	}
	for name, of := range map[string]func(seed uint64) route.Policy{
		"Random":       route.Random,
		"BestOfTwo":    func(seed uint64) route.Policy { return route.BestOfTwo(route.Default, seed) },
		"TiesByChance": func(seed uint64) route.Policy { return route.TiesByChance(route.Default, seed) },
	} {
		first, again, other := draw(of(1)), draw(of(1)), draw(of(2))
		if first != again || first == other {
			t.Errorf("%s is not seeded", name)
		}
	}
}

// TestAround compares policies around another one with the same steps by hand.
func TestAround(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 11))
	keep, decode := route.Only(half, route.Default), route.Decode(0.25, route.Default)
	cold, warm := route.Decode(0, route.Default), route.Decode(7, route.Default)
	for range 10_000 {
		q, pods := situation(r)
		var kept []route.Pod
		for _, p := range pods {
			if half(&p) {
				kept = append(kept, p)
			}
		}
		at, want := keep(q, pods), route.Default(q, kept)
		if (at < 0) != (want < 0) || at >= 0 && pods[at] != kept[want] {
			t.Fatalf("Only chooses %d, not %d of those kept", at, want)
		}
		quarter, none := slices.Clone(pods), slices.Clone(pods)
		for i, p := range pods {
			gpu, lower := held(q, p)
			quarter[i].Cached, quarter[i].Lower = int(gpu/4), int(lower/4)
			none[i].Cached, none[i].Lower = 0, 0
		}
		if decode(q, pods) != route.Default(q, quarter) || cold(q, pods) != route.Default(q, none) || warm(q, pods) != route.Default(q, pods) {
			t.Fatalf("Decode chooses %d, %d and %d", decode(q, pods), cold(q, pods), warm(q, pods))
		}
	}
}

// TestRoundRobin: all pods are chosen once before one is chosen twice, also if a pod is added or
// removed meanwhile.
func TestRoundRobin(t *testing.T) {
	pods, policy := fleet(9), route.RoundRobin()
	pods[8].Name = pods[7].Name
	pods[8].Rank = 1
	turn := func() (order []int) {
		for range pods {
			order = append(order, policy(&route.Request{}, pods))
		}
		return order
	}
	first := turn()
	if all := slices.Sorted(slices.Values(first)); !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}) {
		t.Fatalf("turns of %v", first)
	}
	if again := turn(); !slices.Equal(again, first) {
		t.Errorf("turns of %v, then of %v", first, again)
	}
	for i := range 4 {
		if at := policy(&route.Request{}, pods); at != first[i] {
			t.Fatalf("%d is chosen", at)
		}
	}
	less := slices.Clone(pods)
	less[first[3]], less[first[5]] = pods[first[8]], pods[first[7]] // whose turn was, and is next but one
	for _, want := range []int{first[4], first[6], first[7]} {
		if at := policy(&route.Request{}, less); less[at] != pods[want] {
			t.Errorf("%s is chosen, want %s", less[at].Name, pods[want].Name)
		}
	}
}

// TestRendezvous compares with the order of preference that empty pods show, and with the bound:
// no pod has more than its share of all requests times the factor.
func TestRendezvous(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 13))
	for range 10_000 {
		q, pods := situation(r)
		factor := oneOf(r, []struct{ is, means float64 }{{0, 1.25}, {math.NaN(), 1.25}, {-1, 1}, {1, 1}, {3, 3}}...)
		policy := route.Rendezvous{Factor: factor.is}.Policy()
		empty := slices.Clone(pods)
		all, speeds := 1.0, 0.0
		for i, p := range pods {
			empty[i].Load = route.Load{}
			all, speeds = all+requests(p), speeds+speed(p)
		}
		want := ""
		for want == "" {
			at := policy(q, empty)
			i := slices.IndexFunc(pods, func(p route.Pod) bool { return order(p) == order(empty[at]) })
			if most := factor.means * all * speed(pods[i]) / speeds; requests(pods[i])+1 <= math.Ceil(most-1e-9) {
				want = order(pods[i])
			}
			empty = slices.Delete(empty, at, at+1)
		}
		if at := policy(q, pods); order(pods[at]) != want {
			t.Fatalf("%s is chosen, want %s of %+v", order(pods[at]), want, pods)
		}
	}
	pods, policy := fleet(2), route.Rendezvous{Factor: 1}.Policy()
	pods[0].Load.Requests, pods[1].Load.Requests = math.MaxInt, math.MaxInt
	if at := policy(&route.Request{}, pods); at < 0 {
		t.Error("none is chosen of two with more requests than can be told apart")
	}
}

// TestRendezvousMoves: a new pod takes its share of keys, and no key moves to another pod.
func TestRendezvousMoves(t *testing.T) {
	policy, moved := route.Rendezvous{}.Policy(), 0
	before, after := fleet(9), fleet(10)
	for i := range uint64(10_000) {
		q := &route.Request{Affinity: i}
		if a, b := policy(q, before), policy(q, after); a != b {
			moved++
			if b != 9 {
				t.Fatalf("%d moves from %d to %d", i, a, b)
			}
		}
	}
	if moved < 900 || moved > 1100 {
		t.Errorf("%d of 10,000 move to one of ten pods", moved)
	}
}
