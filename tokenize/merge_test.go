package tokenize_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

func TestPairTableAsMap(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	const largest = tokenize.MaxVocab - 1
	for _, size := range []int{0, 1, 2, 1000} {
		want := map[[2]uint32]uint32{}
		table := tokenize.NewPairTable(size)
		pair := func() [2]uint32 {
			p := [2]uint32{r.Uint32N(40), r.Uint32N(40)}
			if r.IntN(4) == 0 {
				p[r.IntN(2)] = largest - r.Uint32N(2)
			}
			return p
		}
		for range size {
			p, value := pair(), r.Uint32N(tokenize.MaxMerges)
			table.Set(p[0], p[1], value)
			want[p] = value
		}
		for range 10_000 {
			p := pair()
			got, ok := table.Value(p[0], p[1])
			if value, there := want[p]; ok != there || ok && got != value {
				t.Fatalf("%d pairs, %v: got %d, %v, want %d, %v", size, p, got, ok, value, there)
			}
		}
	}
}
