package hashing_test

import (
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/zeebo/xxh3"
)

var testSeed = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func randomTokens(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(150000)
	}
	return tokens
}

func keysOf(model, adapter, salt string, unit int, tokens []uint32) (root index.Key, locals []index.Local, prefix []index.Key) {
	h := hashing.New(testSeed)
	root = h.Root(hashing.Scope{Model: model, Adapter: adapter, Salt: salt}, index.Variant{Unit: unit})
	locals = h.Locals(nil, tokens, unit, nil)
	return root, locals, hashing.Keys(nil, root, locals)
}

// TestScopes: each part of a seed, a scope and a variant changes the root, also if a text moves from
// one part to another. Adapters change the locals, and seeds the places of pods.
func TestScopes(t *testing.T) {
	other := testSeed
	other[15]++
	type rootInput struct {
		seed  [16]byte
		scope hashing.Scope
		v     index.Variant
	}
	unit := index.Variant{Unit: 16}
	roots := make(map[index.Key]rootInput)
	for _, o := range []rootInput{
		{testSeed, hashing.Scope{}, unit}, {other, hashing.Scope{}, unit},
		{testSeed, hashing.Scope{Model: "a"}, unit}, {testSeed, hashing.Scope{Adapter: "a"}, unit}, {testSeed, hashing.Scope{Salt: "a"}, unit},
		{testSeed, hashing.Scope{Model: "aa"}, unit}, {testSeed, hashing.Scope{Model: "a", Adapter: "a"}, unit}, {testSeed, hashing.Scope{Adapter: "a", Salt: "a"}, unit},
		{testSeed, hashing.Scope{Model: "a", Adapter: "a", Salt: "a"}, unit},
		{testSeed, hashing.Scope{}, index.Variant{Unit: 8}}, {testSeed, hashing.Scope{}, index.Variant{Unit: 16, Media: 1}}, {testSeed, hashing.Scope{}, index.Variant{Unit: 16, Media: 2}},
		{testSeed, hashing.Scope{}, index.Variant{Unit: 16, Media: 1, Block: 16}}, {testSeed, hashing.Scope{}, index.Variant{Unit: 16, Media: 1, Block: 32}},
		{testSeed, hashing.Scope{}, index.Variant{Unit: 16, Pairs: true}},
	} {
		root := hashing.New(o.seed).Root(o.scope, o.v)
		if same, ok := roots[root]; ok {
			t.Errorf("%+v and %+v have one root", o, same)
		}
		roots[root] = o
	}
	h, others, tokens := hashing.New(testSeed), hashing.New(other), make([]uint32, 16)
	if h.Of("a").Locals(nil, tokens, 16, nil)[0] == h.Locals(nil, tokens, 16, nil)[0] {
		t.Error("an adapter changes no local")
	}
	if h.Pod("a") == others.Pod("a") {
		t.Error("a seed changes no place of a pod")
	}
}

// TestChainRule: keys(a+b) = keys(a) ++ keys(b | last key of a), if a ends on a unit; a partial
// tail yields no key.
func TestChainRule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		unit := []int{1, 2, 4, 8, 16}[r.IntN(5)]
		a, b := randomTokens(r, unit*r.IntN(20)), randomTokens(r, r.IntN(20*unit))
		root, _, ka := keysOf("m", "", "", unit, a)
		_, lb, _ := keysOf("m", "", "", unit, b)
		_, _, kab := keysOf("m", "", "", unit, slices.Concat(a, b))
		last := root
		if len(ka) > 0 {
			last = ka[len(ka)-1]
		}
		if want := slices.Concat(ka, hashing.Keys(nil, last, lb)); !slices.Equal(kab, want) {
			t.Fatalf("unit %d, %d+%d tokens: %x, want %x", unit, len(a), len(b), kab, want)
		}
		if len(kab) != (len(a)+len(b))/unit {
			t.Fatalf("unit %d: %d keys for %d tokens", unit, len(kab), len(a)+len(b))
		}
	}
}

// TestKnownKeys: shared indexes compare keys between machines and versions, so
// they must never change.
func TestKnownKeys(t *testing.T) {
	tokens := make([]uint32, 32)
	for i := range tokens {
		tokens[i] = uint32(i * 1000)
	}
	root, locals, keys := keysOf("model", "adapter", "salt", 16, tokens)
	if root != 0xe609bddca838cfaf || !slices.Equal(locals, []index.Local{0xa90b8cb5df5e4f90, 0x9354ae1f884eddb4}) ||
		!slices.Equal(keys, []index.Key{0x7ea2871414787f12, 0x3e97ca1360fd9de4}) {
		t.Errorf("root %#x, locals %#x, keys %#x", root, locals, keys)
	}
	// A Python program computed these from the formula.
	locals = hashing.New(testSeed).Locals(nil, tokens, 16, []hashing.Extra{{Unit: 1, Kind: 1, ID: 99, Offset: 5}})
	if want := []index.Local{0xa90b8cb5df5e4f90, 0xe2def330cdd03f9c}; !slices.Equal(locals, want) {
		t.Errorf("locals %#x, want %#x", locals, want)
	}
}

// plainKey is a key of the sums, by its name in hashing.go.
func plainKey(seed [16]byte, what byte, n int) *big.Int {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(append(seed[:], what), uint64(n)))
	slices.Reverse(sum[:16])
	return new(big.Int).SetBytes(sum[:16])
}

// plainLocal is the local of one unit in big integers, from its content as bytes.
func plainLocal(seed [16]byte, adapter string, tokens []uint32, extras []hashing.Extra) index.Local {
	one := big.NewInt(1)
	mod64, mod128 := new(big.Int).Lsh(one, 64), new(big.Int).Lsh(one, 128)
	sum := new(big.Int)
	pair := func(key *big.Int, content []byte) { // of 16 bytes
		high, low := new(big.Int).DivMod(key, mod64, new(big.Int))
		a := low.Add(low, new(big.Int).SetUint64(binary.LittleEndian.Uint64(content)))
		b := high.Add(high, new(big.Int).SetUint64(binary.LittleEndian.Uint64(content[8:])))
		sum.Add(sum, new(big.Int).Mul(a.Mod(a, mod64), b.Mod(b, mod64)))
	}
	var content []byte
	for _, token := range tokens {
		content = binary.LittleEndian.AppendUint32(content, token)
	}
	for len(content)%16 != 0 {
		content = append(content, 0)
	}
	for n := 0; n < len(content); n += 16 {
		pair(plainKey(seed, 1, n/16), content[n:])
	}
	for n, x := range extras {
		content = binary.LittleEndian.AppendUint64(nil, x.ID)
		content = append(content, byte(x.Kind))
		content = append(binary.LittleEndian.AppendUint32(content, x.Offset), 0, 0, 0)
		pair(plainKey(seed, 2, n), content)
	}
	high, low := new(big.Int).DivMod(sum.Mod(sum, mod128), mod64, new(big.Int))
	words := []*big.Int{one, big.NewInt(int64(len(tokens))), new(big.Int), big.NewInt(int64(len(extras))), high, low}
	if adapter != "" {
		root := new(big.Int).Mod(plainKey(seed, 0, 6), mod64).Uint64()
		words[2].SetUint64(xxh3.HashStringSeed(adapter, root))
	}
	local := new(big.Int)
	for n, w := range words {
		local.Add(local, new(big.Int).Mul(plainKey(seed, 0, n), w))
	}
	x := local.Rsh(local.Mod(local, mod128), 64).Uint64()
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return index.Local(x ^ x>>29)
}

// Units of any size, with any extras, have the locals of the plain formula.
func TestLocalsAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for round := range 3000 {
		var seed [16]byte
		binary.LittleEndian.PutUint64(seed[3:], r.Uint64())
		unit := []int{16, 1, 2, 4, 8, 16, 32, 48, 64, 1 + r.IntN(70)}[r.IntN(10)]
		tokens := make([]uint32, r.IntN(6*unit))
		for i := range tokens {
			tokens[i] = r.Uint32() >> r.IntN(32)
		}
		adapter := []string{"", "sql", "a"}[r.IntN(3)]
		var extras []hashing.Extra
		of := make([][]hashing.Extra, 6)
		for i := range of {
			for range r.IntN(3) * r.IntN(7) * r.IntN(2) {
				x := hashing.Extra{Unit: i, Kind: hashing.ExtraKind(1 + r.IntN(4)), ID: r.Uint64(), Offset: r.Uint32() >> r.IntN(32)}
				extras, of[i] = append(extras, x), append(of[i], x)
			}
		}
		got := hashing.New(seed).Of(adapter).Locals(nil, tokens, unit, extras)
		if len(got) != len(tokens)/unit {
			t.Fatalf("%d locals of %d tokens in units of %d", len(got), len(tokens), unit)
		}
		for i, l := range got {
			if want := plainLocal(seed, adapter, tokens[i*unit:(i+1)*unit], of[i]); l != want {
				t.Fatalf("round %d, adapter %q, unit %d of %d tokens, extras %+v: %#x, want %#x", round, adapter, i, unit, of[i], l, want)
			}
		}
	}
}

// Similar units, like those of prompts, have locals that differ like random numbers: in each part
// of their bits, and in their sums.
func TestLocalsOfSimilarUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	base := randomTokens(r, 16)
	kinds := map[string][]uint32{}
	add := func(kind string, change func(unit []uint32)) {
		unit := slices.Clone(base)
		change(unit)
		kinds[kind] = append(kinds[kind], unit...)
	}
	for i := range 1 << 16 {
		add("one token counts up", func(u []uint32) { u[7] = uint32(i) })
		add("the last token counts up", func(u []uint32) { u[15] = uint32(i) })
		add("two values", func(u []uint32) {
			for j := range u {
				u[j] = uint32(i) >> j & 1
			}
		})
		add("an order", func(u []uint32) {
			for j, at := range rand.New(rand.NewPCG(9, uint64(i))).Perm(16) {
				u[j] = uint32(at)
			}
		})
		add("two bits", func(u []uint32) {
			for _, bit := range []int{i & 511, i >> 8} {
				u[bit/32] ^= 1 << (bit % 32)
			}
		})
	}
	for kind, tokens := range kinds {
		distinct := map[[16]uint32]bool{}
		all, high, low := map[index.Local]bool{}, map[index.Local]bool{}, map[index.Local]bool{}
		for i, l := range hashing.New(testSeed).Locals(nil, tokens, 16, nil) {
			distinct[[16]uint32(tokens[16*i:])] = true
			all[l], high[l>>40], low[l<<40] = true, true, true
		}
		if len(all) != len(distinct) {
			t.Errorf("%s: %d units have %d locals", kind, len(distinct), len(all))
		}
		// Of n random numbers n*n/2^25 collide with an earlier one in 24 bits: 128 of 2^16.
		expected := int(uint64(len(distinct)) * uint64(len(distinct)) >> 25)
		for part, n := range map[string]int{"upper": len(high), "lower": len(low)} {
			if equal := len(distinct) - n; equal > 2*expected {
				t.Errorf("%s: %d of %d are equal in the %s 24 bits, of random numbers %d", kind, equal, len(distinct), part, expected)
			}
		}
	}
	// A common change of two units does not change their locals by a common number.
	for range 1000 {
		a, b := randomTokens(r, 16), randomTokens(r, 16)
		copy(b[4:], a[4:]) // the changed word's other factor is the same
		change := func(u []uint32) []uint32 {
			u = slices.Clone(u)
			u[4]++
			return u
		}
		l := hashing.New(testSeed).Locals(nil, slices.Concat(a, b, change(a), change(b)), 16, nil)
		if d := int64(l[2] - l[0] - (l[3] - l[1])); d >= -4 && d <= 4 {
			t.Fatalf("%v and %v: the changed locals differ by as much as those of before, and %d", a, b, d)
		}
	}
}

// A fold continues from a part of the units as if it had begun with the first, and distinguishes
// any two orders.
func TestFold(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	for range 1000 {
		_, locals, _ := keysOf("m", "", "", 16, randomTokens(r, 16*(2+r.IntN(40))))
		at := r.IntN(len(locals) + 1)
		whole := hashing.Fold(0).Plus(0, locals)
		if got := hashing.Fold(0).Plus(0, locals[:at]).Plus(at, locals[at:]); got != whole {
			t.Fatalf("%d of %d units, then the rest: %#x, want %#x", at, len(locals), got, whole)
		}
		other := slices.Clone(locals)
		i, j := r.IntN(len(locals)), r.IntN(len(locals)-1)
		if j >= i {
			j++
		}
		other[i], other[j] = other[j], other[i]
		if hashing.Fold(0).Plus(0, other) == whole {
			t.Fatalf("units %d and %d in the other order: the same fold", i, j)
		}
	}
}

// Nothing is allocated for a prompt, with extras too.
func TestHashingAllocatesNothing(t *testing.T) {
	tokens := randomTokens(rand.New(rand.NewPCG(12, 12)), 8192)
	h := hashing.New(testSeed)
	locals, all := make([]index.Local, 0, len(tokens)), make([]index.Key, 0, len(tokens))
	extras := []hashing.Extra{{Unit: 3, Kind: hashing.MediaStart, ID: 1, Offset: 2}, {Unit: 3, Kind: hashing.MediaBare, ID: 2}, {Unit: 5, Kind: hashing.Embeds, ID: 3}}
	if n := testing.AllocsPerRun(100, func() {
		for _, unit := range []int{1, 16, 32} {
			locals = h.Of("adapter").Locals(locals[:0], tokens, unit, extras)
			all = hashing.Keys(all[:0], 1, locals)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRequestTies: prompts that differ at the beginning, the end or in length have different ties;
// the middle of long ones is not read.
func TestRequestTies(t *testing.T) {
	h := hashing.New(testSeed)
	of := func(text []byte) [2]uint64 {
		return [2]uint64{h.Request(text, "", nil), h.Request(nil, string(text), nil)}
	}
	seen := make(map[uint64]int)
	for n := range 20 {
		text := make([]byte, n<<15)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range text {
			text[i] = byte(r.Uint32())
		}
		all := of(text)
		if n > 0 {
			for _, at := range []int{0, len(text) - 1} {
				text[at] ^= 1
				if other := of(text); other[0] == all[0] || other[1] == all[1] {
					t.Errorf("%d bytes: the one at %d is not read", len(text), at)
				}
				text[at] ^= 1
			}
			text[len(text)/2] ^= 1
			if other := of(text); (other == all) != (n > 8) {
				t.Errorf("%d bytes: the middle is read: %v", len(text), other != all)
			}
		}
		for _, sum := range all[:min(n+1, 2)] {
			if seen[sum]++; seen[sum] > 1 {
				t.Errorf("%d bytes: a sum comes twice", len(text))
			}
		}
	}
}
