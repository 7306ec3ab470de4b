package kvindex_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
)

var testSeed = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func randomTokens(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(150000)
	}
	return tokens
}

// TestChainRule: keys(a+b) = keys(a) ++ keys(b | last key of a), wherever a
// ends on a unit, and a partial tail yields no key.
func TestChainRule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		unit := []int{1, 2, 4, 8, 16}[r.IntN(5)]
		a, b := randomTokens(r, unit*r.IntN(20)), randomTokens(r, r.IntN(20*unit))
		root, _, ka := kvindex.KeysOf(testSeed, "m", "", "", unit, a)
		_, lb, _ := kvindex.KeysOf(testSeed, "m", "", "", unit, b)
		_, _, kab := kvindex.KeysOf(testSeed, "m", "", "", unit, slices.Concat(a, b))
		last := root
		if len(ka) > 0 {
			last = ka[len(ka)-1]
		}
		if want := slices.Concat(ka, kvindex.Chain(last, lb)); !slices.Equal(kab, want) {
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
	root, locals, keys := kvindex.KeysOf(testSeed, "model", "adapter", "salt", 16, tokens)
	if root != 0xa5f3f5e8bde3e63b || !slices.Equal(locals, []index.Local{0xc3b0747227b34cb6, 0x969e5d4c7eaeb3e0}) ||
		!slices.Equal(keys, []index.Key{0x52a37ab516f838d0, 0xdd64b4692b28ab86}) {
		t.Errorf("root %#x, locals %#x, keys %#x", root, locals, keys)
	}
}

// TestScopesSeparate: whatever differs in the scope, the seed or the tokens
// gives another key; parts cannot be confused by moving letters between them.
func TestScopesSeparate(t *testing.T) {
	seen := map[index.Key]string{}
	tokens := randomTokens(rand.New(rand.NewPCG(2, 2)), 16)
	for _, s := range [][3]string{{"m"}, {"n"}, {"m", "a"}, {"ma"}, {"m", "", "a"}, {"", "ma"}, {"m", "a", "s"}, {"m", "as"}, {"ma", "s"}, {"m\x00", "a"}, {"m\x01a"}} {
		for _, unit := range []int{1, 2, 4, 8, 16} {
			_, _, keys := kvindex.KeysOf(testSeed, s[0], s[1], s[2], unit, tokens)
			for _, k := range keys {
				if other, ok := seen[k]; ok {
					t.Errorf("%q and %q share a key", s, other)
				}
				seen[k] = s[0] + "/" + s[1] + "/" + s[2]
			}
		}
	}
	_, a, _ := kvindex.KeysOf(testSeed, "m", "", "", 16, tokens)
	_, b, _ := kvindex.KeysOf([16]byte{9}, "m", "", "", 16, tokens)
	if a[0] == b[0] {
		t.Error("the seed does not enter the locals")
	}
}

// TestExtrasSeparate: an extra changes the local of its unit, and no other.
func TestExtrasSeparate(t *testing.T) {
	tokens := randomTokens(rand.New(rand.NewPCG(3, 3)), 64)
	_, plain, _ := kvindex.KeysOf(testSeed, "m", "", "", 16, tokens)
	seen := map[index.Local]bool{}
	for kind := 1; kind <= 4; kind++ {
		for _, id := range []string{"x", "y"} {
			locals := kvindex.LocalsWith(testSeed, 16, tokens, kind, id, 2)
			if seen[locals[2]] || locals[2] == plain[2] {
				t.Errorf("kind %d, id %q: not a local of its own", kind, id)
			}
			seen[locals[2]] = true
			locals[2] = plain[2]
			if !slices.Equal(locals, plain) {
				t.Errorf("kind %d changes other units", kind)
			}
		}
	}
}

func BenchmarkKeys(b *testing.B) {
	r := rand.New(rand.NewPCG(4, 4))
	tokens := randomTokens(r, 8192)
	b.ReportAllocs()
	for b.Loop() {
		tokens[0]++ // a new prompt
		_, _, keys := kvindex.KeysOf(testSeed, "m", "", "", 16, tokens)
		_ = keys
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/block")
}
