package index_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// narrow is Chain in words of so few bits that all can be tried; with 64 it is Chain.
type narrow uint

func (n narrow) chain(prev, l uint64) uint64 {
	word := uint64(1)<<n - 1
	first := (l^0x9e3779b97f4a7c15)&word + prev
	product := first * (2*l + 0xbf58476d1ce4e5b9) & word
	return product>>(n/2) | product<<(n/2)&word
}

// table has Chain for all words.
func (n narrow) table() [][]uint64 {
	rows := make([][]uint64, 1<<n)
	for prev := range rows {
		for l := range uint64(1) << n {
			rows[prev] = append(rows[prev], n.chain(uint64(prev), l))
		}
	}
	return rows
}

// Shared indexes compare keys, so Chain must never change.
func TestChain(t *testing.T) {
	// A Python program computed these from the formula.
	if got := [2]index.Key{index.Chain(1, 2), index.Chain(0, 0)}; got != [2]index.Key{0xc05f15b88d5acef1, 0x6c86742dd67411c4} {
		t.Errorf("%#x", got)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		prev, l := r.Uint64()>>r.IntN(64), r.Uint64()>>r.IntN(64)
		if got, want := index.Chain(index.Key(prev), index.Local(l)), narrow(64).chain(prev, l); got != index.Key(want) {
			t.Fatalf("Chain(%#x, %#x) = %#x, want %#x", prev, l, got, want)
		}
	}
}

// Chain is a bijection in each argument.
func TestChainIsABijection(t *testing.T) {
	const n = narrow(8)
	of := n.table()
	for a := range of {
		byLocal, byPrev := make(map[uint64]bool), make(map[uint64]bool)
		for b := range of {
			byLocal[of[a][b]], byPrev[of[b][a]] = true, true
		}
		if len(byLocal) != len(of) || len(byPrev) != len(of) {
			t.Fatalf("%d: %d keys from it, %d by it", a, len(byLocal), len(byPrev))
		}
	}
	r := rand.New(rand.NewPCG(2, 2))
	for range 10000 {
		prev, l := index.Key(r.Uint64()), index.Local(r.Uint64())
		bit := r.IntN(64)
		if k := index.Chain(prev, l); index.Chain(prev^1<<bit, l) == k || index.Chain(prev, l^1<<bit) == k {
			t.Fatalf("%#x, %#x: bit %d makes no difference", prev, l, bit)
		}
	}
}

// Keys collide hardly more often than random numbers if the same units are reordered or repeated.
// Words of a few bits show how often.
func TestChainOfRepeatedUnits(t *testing.T) {
	const n = narrow(10)
	of := n.table()
	chain := func(k uint64, locals ...uint64) uint64 {
		for _, l := range locals {
			k = of[k][l]
		}
		return k
	}
	r := rand.New(rand.NewPCG(3, 3))
	equal, cases := make(map[string]int), 1<<18
	for range cases {
		word := func() uint64 { return r.Uint64N(1 << n) }
		root, x, y, z, d := word(), word(), word(), word(), 1+r.Uint64N(1<<n-1)
		if x == y || y == z || x == z {
			continue
		}
		note := func(what string, a, b uint64) {
			if a == b {
				equal[what]++
			}
		}
		plus := func(l uint64) uint64 { return (l + d) % (1 << n) }
		note("x", chain(root, x), root)
		note("xx, x", chain(root, x, x), chain(root, x))
		note("xy, yx", chain(root, x, y), chain(root, y, x))
		note("xxy, yxx", chain(root, x, x, y), chain(root, y, x, x))
		note("xyx, yxx", chain(root, x, y, x), chain(root, y, x, x))
		note("xyz, zyx", chain(root, x, y, z), chain(root, z, y, x))
		note("xyz, yzx", chain(root, x, y, z), chain(root, y, z, x))
		note("xzyz, yzxz", chain(root, x, z, y, z), chain(root, y, z, x, z))
		note("xyxyxy, yxyxyx", chain(root, x, y, x, y, x, y), chain(root, y, x, y, x, y, x))
		note("one more, one less", chain(root, plus(x), y), chain(root, x, plus(y)))
		note("both more", chain(root, plus(x), plus(y)), chain(root, x, y))
	}
	for what, got := range equal {
		if want := cases >> n; got > want*3/2 {
			t.Errorf("%s: %d of %d are equal, of random numbers %d", what, got, cases, want)
		}
	}
}
