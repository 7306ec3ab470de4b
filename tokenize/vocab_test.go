package tokenize_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

func TestVocabAsMap(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	texts := func(n int) string {
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = "ab\x00\xff"[r.IntN(4)]
		}
		return string(b)
	}
	for _, size := range []int{0, 1, 2, 3, 100, 5000} {
		want := map[string]uint32{}
		var all []string
		for len(all) < size {
			s := texts(20)
			if _, ok := want[s]; !ok {
				want[s] = uint32(len(all))
				all = append(all, s)
			}
		}
		v, twice := tokenize.NewVocab(all)
		if twice >= 0 {
			t.Fatalf("%d texts: %q is repeated", size, all[twice])
		}
		for range 20_000 {
			s := texts(20)
			got, ok := v.ID(s)
			if id, there := want[s]; ok != there || got != id {
				t.Fatalf("%d texts, %q: got %d, %v, want %d, %v", size, s, got, ok, id, there)
			}
		}
		for i, s := range all {
			if got, ok := v.ID(s); !ok || got != uint32(i) {
				t.Fatalf("%d texts, %q: got %d, %v, want %d", size, s, got, ok, i)
			}
		}
		if size > 0 {
			all = append(all, all[r.IntN(size)])
			if _, twice := tokenize.NewVocab(all); twice != size {
				t.Errorf("%d texts: %d is repeated, want the last", size, twice)
			}
		}
	}
}
