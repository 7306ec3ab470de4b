package route_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/kvindex/kvindex/route"
)

// taken takes figures from bytes.
type taken []byte

func (b *taken) byte() byte {
	if len(*b) == 0 {
		return 0
	}
	x := (*b)[0]
	*b = (*b)[1:]
	return x
}

// int returns a small number, one below zero, or one of 64 bits.
func (b *taken) int() int {
	switch x := b.byte(); {
	case x < 200:
		return int(x)
	case x < 220:
		return -int(x)
	case x < 225:
		return math.MaxInt
	case x < 230:
		return math.MinInt
	}
	var raw [8]byte
	for i := range raw {
		raw[i] = b.byte()
	}
	return int(binary.LittleEndian.Uint64(raw[:]))
}

func (b *taken) float() float64 {
	switch x := b.byte(); {
	case x < 100:
		return 0
	case x < 150:
		return float64(x) / 100
	case x < 170:
		return -float64(x)
	case x < 180:
		return math.NaN()
	case x < 190:
		return math.Inf(1)
	case x < 200:
		return math.Inf(-1)
	}
	return math.Float64frombits(uint64(b.int()))
}

// FuzzPolicies has pods with any figures, names twice, and parameters of any value: what is
// chosen is one of the pods.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 97, 0, 5, 5, 1, 1, 1, 0})
	f.Add([]byte{222, 222, 222, 255, 255, 255, 255, 255, 255, 255, 127, 2, 97, 222, 222, 222, 222, 222, 222, 175, 97, 227, 227, 227, 227, 227, 185})
	f.Add([]byte{50, 0, 1, 172, 172, 172, 172, 172, 182, 182, 182, 182, 192, 192, 192, 192, 120, 120, 120, 120, 155, 155, 155, 3, 97, 0, 1, 98, 0, 2, 97, 0, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		b := taken(data)
		q := &route.Request{Tokens: b.int(), Output: b.int(), Affinity: uint64(b.int())}
		policies := []route.Policy{
			route.Default, route.LongestPrefix, route.Product, route.LeastRequests, route.LeastTokens,
			route.Dynamo{OverlapCredit: b.float(), LowerCredit: b.float(), PrefillScale: b.float(), RequestWeight: b.float()}.Policy(),
			route.Dynamo{Temperature: b.float(), PrefillScale: b.float()}.Policy(),
			route.WeightedSum{Prefix: b.float(), Queue: b.float(), Free: b.float()}.Policy(),
			route.Affinity{Threshold: b.float(), MaxPenalty: b.float(), Throughput: b.float(), MaxTokens: b.float()}.Policy(),
			route.PrefixLessLoad{Beta: b.float()}.Policy(),
			route.SGLang{Threshold: b.float(), Abs: b.float(), Rel: b.float()}.Policy(),
			route.AIBrix{Deviations: b.float(), Abs: b.float()}.Policy(),
			route.Rendezvous{Factor: b.float()}.Policy(),
			route.RoundRobin(), route.Random(uint64(b.int())),
			route.Decode(b.float(), route.Default),
		}
		for _, p := range policies {
			policies = append(policies, route.TiesByChance(p, 1), route.BestOfTwo(p, 2), route.Only(half, p))
		}
		var pods []route.Pod
		kept := 0
		for len(b) > 0 && len(pods) < 300 {
			p := route.Pod{
				Name: string([]byte{b.byte()}), Rank: b.int(), Cached: b.int(), Lower: b.int(),
				Load: route.Load{Requests: b.int(), Prefill: b.int(), Decode: b.int()}, Speed: b.float(),
			}
			if half(&p) {
				kept++
			}
			pods = append(pods, p)
		}
		for i, policy := range policies {
			only := i >= 16 && (i-16)%3 == 2
			at := policy(q, pods)
			if at >= len(pods) || at < -1 || (at == -1) != (len(pods) == 0 || only && kept == 0) {
				t.Fatalf("policy %d chooses %d of %d pods, %d of which are kept", i, at, len(pods), kept)
			}
		}
	})
}
