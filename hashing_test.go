package kvindex_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/inmemory"
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
	if root != 0xe609bddca838cfaf || !slices.Equal(locals, []index.Local{0xa90b8cb5df5e4f90, 0x9354ae1f884eddb4}) ||
		!slices.Equal(keys, []index.Key{0x7ea2871414787f12, 0x3e97ca1360fd9de4}) {
		t.Errorf("root %#x, locals %#x, keys %#x", root, locals, keys)
	}
	// These are what a program in Python makes of the formula.
	locals = kvindex.LocalsOf(testSeed, "", 16, tokens, kvindex.Extra{Unit: 1, Kind: 1, ID: 99, Offset: 5})
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

// plainLocal is the local of one unit, from its content as bytes, in whole numbers.
func plainLocal(seed [16]byte, adapter string, tokens []uint32, extras []kvindex.Extra) index.Local {
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
		var extras []kvindex.Extra
		of := make([][]kvindex.Extra, 6)
		for i := range of {
			for range r.IntN(3) * r.IntN(7) * r.IntN(2) {
				x := kvindex.Extra{Unit: i, Kind: 1 + r.IntN(4), ID: r.Uint64(), Offset: r.Uint32() >> r.IntN(32)}
				extras, of[i] = append(extras, x), append(of[i], x)
			}
		}
		got := kvindex.LocalsOf(seed, adapter, unit, tokens, extras...)
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

// Similar units, as tokens of prompts are, have locals as different as random numbers
// are: in any part of their bits, and in their sums.
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
		for i, l := range kvindex.LocalsOf(testSeed, "", 16, tokens) {
			distinct[[16]uint32(tokens[16*i:])] = true
			all[l], high[l>>40], low[l<<40] = true, true, true
		}
		if len(all) != len(distinct) {
			t.Errorf("%s: %d units have %d locals", kind, len(distinct), len(all))
		}
		// Of n random numbers n*n/2^25 have an equal one before them in 24 bits: 128 of 2^16.
		expected := int(uint64(len(distinct)) * uint64(len(distinct)) >> 25)
		for part, n := range map[string]int{"upper": len(high), "lower": len(low)} {
			if equal := len(distinct) - n; equal > 2*expected {
				t.Errorf("%s: %d of %d are equal in the %s 24 bits, of random numbers %d", kind, equal, len(distinct), part, expected)
			}
		}
	}
	// A change that two units have in common is not a number that their locals have so.
	for range 1000 {
		a, b := randomTokens(r, 16), randomTokens(r, 16)
		copy(b[4:], a[4:]) // the changed word's other factor is the same
		change := func(u []uint32) []uint32 {
			u = slices.Clone(u)
			u[4]++
			return u
		}
		l := kvindex.LocalsOf(testSeed, "", 16, slices.Concat(a, b, change(a), change(b)))
		if d := int64(l[2] - l[0] - (l[3] - l[1])); d >= -4 && d <= 4 {
			t.Fatalf("%v and %v: the changed locals differ by as much as those of before, and %d", a, b, d)
		}
	}
}

// A fold goes on from a part of the units as if it had begun with the first, and tells
// any two orders of them.
func TestFold(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	for range 1000 {
		_, locals, _ := kvindex.KeysOf(testSeed, "m", "", "", 16, randomTokens(r, 16*(2+r.IntN(40))))
		at := r.IntN(len(locals) + 1)
		whole := kvindex.Fold(0, 0, locals)
		if got := kvindex.Fold(kvindex.Fold(0, 0, locals[:at]), at, locals[at:]); got != whole {
			t.Fatalf("%d of %d units, then the rest: %#x, want %#x", at, len(locals), got, whole)
		}
		other := slices.Clone(locals)
		i, j := r.IntN(len(locals)), r.IntN(len(locals)-1)
		if j >= i {
			j++
		}
		other[i], other[j] = other[j], other[i]
		if kvindex.Fold(0, 0, other) == whole {
			t.Fatalf("units %d and %d in the other order: the same fold", i, j)
		}
	}
}

// Nothing is allocated for a prompt, with extras too.
func TestHashingAllocatesNothing(t *testing.T) {
	tokens := randomTokens(rand.New(rand.NewPCG(12, 12)), 8192)
	if n := testing.AllocsPerRun(100, kvindex.HashInto(testSeed, tokens)); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// keyNotes is an index that notes the keys of a prompt in some variants.
type keyNotes struct {
	inmemory.Memory
	variants []index.Variant
	keys     [][]index.Key
}

func (a *keyNotes) Match(_ context.Context, q *index.Query, _ *index.Matches) error {
	a.keys = nil
	for _, v := range a.variants {
		keys, err := q.Keys(v)
		if err != nil {
			return err
		}
		a.keys = append(a.keys, slices.Clone(keys))
	}
	return nil
}

// TestVariantKeys: shared indexes compare keys of every variant, so they must
// never change, nor depend on which variants were asked for before.
func TestVariantKeys(t *testing.T) {
	mem, err := inmemory.New(index.MemoryConfig{Seed: testSeed})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	a := &keyNotes{Memory: mem}
	ix := open(t, kvindex.WithIndex(a))
	all := []index.Variant{
		{Unit: 16},
		{Unit: 16, Media: uint8(kvindex.MediaBare), Block: 16},
		{Unit: 16, Media: uint8(kvindex.MediaBare), Block: 32},
		{Unit: 16, Media: uint8(kvindex.MediaPad)},
		{Unit: 16, Media: uint8(kvindex.MediaPad), Pairs: true},
		{Unit: 16, Pairs: true},
		{Unit: 8},
		{Unit: 8, Media: uint8(kvindex.MediaPad)},
	}
	plain := kvindex.Request{Model: "m", Salt: "salt", Tokens: fakeengine.NewPrompt(1, 16, 3).Tokens, Pods: []string{"a"}}
	media := plain
	media.Media = []kvindex.Media{{Hash: "11", Offset: 17, Length: 20}}
	ask := func(q kvindex.Request, variants ...index.Variant) [][]index.Key {
		a.variants = variants
		score(t, ix, q)
		return a.keys
	}
	seen := make(map[index.Key]bool)
	var sum index.Key
	for _, q := range []kvindex.Request{plain, media} {
		forward := ask(q, all...)
		backward := slices.Clone(all)
		slices.Reverse(backward)
		again := ask(q, backward...)
		slices.Reverse(again)
		for i, v := range all {
			alone := ask(q, v)[0]
			if !slices.Equal(alone, forward[i]) || !slices.Equal(alone, again[i]) {
				t.Errorf("%+v: %x alone, %x after others, %x before them", v, alone, forward[i], again[i])
			}
			want := 48 / v.Unit
			if v.Pairs {
				want = 47 / v.Unit
			}
			if len(alone) != want {
				t.Errorf("%+v: %d keys, want %d", v, len(alone), want)
			}
			for j, k := range alone {
				// Before the first item, media make no difference.
				if seen[k] && (q.Media == nil || (j+1)*v.Unit > 16) {
					t.Errorf("%+v: key %d is that of another variant or prompt", v, j)
				}
				seen[k] = true
				sum = index.Chain(sum, index.Local(k))
			}
		}
	}
	if sum != 0x699fa4f153b7b5a1 {
		t.Errorf("the keys are others: %#x", sum)
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

// Equal tokens are kept apart by rank, model, adapter and salt.
func TestScopes(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 6)
	q := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 2 << 32}
	r := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 3 << 32}
	with := func(s *fakeengine.Stored, adapter, salt string) *fakeengine.Stored {
		s.Adapter = adapter
		for i := range s.Hashes {
			var keys []enginehash.Extra
			if adapter != "" {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: adapter})
			}
			if salt != "" && i == 0 && s.Parent == nil {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: salt})
			}
			s.Extra = append(s.Extra, keys)
		}
		return s
	}
	ingest(t, ix, "a", with(p.Stored(0, 1), "lora", ""), with(p.Stored(1, 2), "lora", ""))
	ingest(t, ix, "a", with(q.Stored(0, 1), "", "pepper"), with(q.Stored(1, 3), "", "pepper"))
	ingest(t, ix, "a", with(r.Stored(0, 1), "lora", "pepper"), with(r.Stored(1, 4), "lora", "pepper"))
	if err := ix.Ingest("a", "other", fakeengine.Payload(1, 0, p.Stored(0, 5))); err != nil {
		t.Fatal(err)
	}
	if err := ix.Ingest("a", "m", fakeengine.Payload(1, 1, p.Stored(0, 6))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model, adapter, salt string
		want, rank           int
	}{
		{"m", "", "", 6, 1},
		{"m", "lora", "", 2, 0},
		{"m", "", "pepper", 3, 0},
		{"m", "lora", "pepper", 4, 0},
		{"m", "lora", "sugar", 0, 0},
		{"m", "nora", "", 0, 0},
		{"other", "", "", 5, 0},
		{"other", "lora", "", 0, 0},
		{"lora", "", "", 2, 0}, // the adapter by its name alone
		{"lora", "", "pepper", 4, 0},
		{"never", "", "", 0, 0},
	} {
		s := score(t, ix, kvindex.Request{Model: c.model, Adapter: c.adapter, Salt: c.salt, Tokens: p.Tokens, Pods: []string{"a"}})[0]
		if s.MatchedBlocks != c.want || s.Rank != c.rank {
			t.Errorf("model %q, adapter %q, salt %q: %d blocks of rank %d, want %d of %d", c.model, c.adapter, c.salt, s.MatchedBlocks, s.Rank, c.want, c.rank)
		}
	}
	if err := ix.Ingest("b", "third", fakeengine.Payload(1, 0, with(p.Stored(0, 1), "lora", ""))); err != nil {
		t.Fatal(err)
	}
	if got := score(t, ix, kvindex.Request{Model: "lora", Tokens: p.Tokens, Pods: []string{"a"}})[0]; got.MatchedBlocks != 2 {
		t.Errorf("the adapter of the pods asked for: %+v", got)
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "lora", Tokens: p.Tokens}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrRequest) || !strings.Contains(err.Error(), `both "m" and "third"`) {
		t.Errorf("an adapter of two models: %v", err)
	}
}

// With MediaPad the hash has to be an integer; other engines take any.
func TestMediaHashes(t *testing.T) {
	ix := open(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		if pod == "sglang" {
			return kvindex.Profile{Media: kvindex.MediaPad}
		}
		return kvindex.Profile{}
	}))
	p := fakeengine.NewPrompt(1, 16, 2)
	for _, pod := range []string{"sglang", "vllm"} {
		ingest(t, ix, pod, p.Stored(0, 2))
	}
	var a kvindex.Answer
	for _, hash := range []string{"cat", "0x12", "1.5", "-", "+3", "1 "} {
		q := kvindex.Request{Model: "m", Tokens: p.Tokens, Media: []kvindex.Media{{Hash: hash, Offset: 16, Length: 4}}}
		err := ix.ScoreRequest(ctx, &q, &a)
		if !errors.Is(err, kvindex.ErrRequest) || !strings.Contains(err.Error(), strconv.Quote(hash)) || !strings.Contains(err.Error(), "media 0") || len(a.Pods) > 0 {
			t.Errorf("hash %q: %v, %+v", hash, err, a.Pods)
		}
		q.Pods = []string{"vllm"}
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].MatchedBlocks != 1 {
			t.Errorf("hash %q: %v, %+v", hash, err, a.Pods)
		}
	}
	for _, m := range []kvindex.Media{{Hash: "5", Offset: 20, Length: math.MaxInt}, {Hash: "-123456789012345678901234567890", Offset: 31, Length: 0}} {
		q := kvindex.Request{Model: "m", Tokens: p.Tokens, Media: []kvindex.Media{m}}
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// Of items that lie in others vLLM has those that begin behind them, and no item
// is shorter than a token.
func TestNestedItems(t *testing.T) {
	ix := open(t, withProfile(kvindex.Profile{Media: kvindex.MediaBare}))
	p := fakeengine.NewPrompt(1, 16, 4)
	s := p.Stored(0, 4)
	video, end := enginehash.Text("video"), enginehash.Text("end")
	s.Extra = [][]enginehash.Extra{{video}, {video}, {video}, {end}}
	ingest(t, ix, "a", s)
	q := kvindex.Request{Tokens: p.Tokens, Media: []kvindex.Media{
		{Hash: "video", Offset: 0, Length: 40}, {Hash: "audio", Offset: 4, Length: 2}, {Hash: "end", Offset: 48},
	}}
	if got := score(t, ix, q)[0].MatchedBlocks; got != 4 {
		t.Errorf("%d blocks", got)
	}
}

// BenchmarkKeys hashes 512 new units of 16 tokens, beside how it was done at first.
func BenchmarkKeys(b *testing.B) {
	ix := open(b)
	tokens := randomTokens(rand.New(rand.NewPCG(4, 4)), 8192)
	for _, c := range []struct {
		name string
		hash func()
	}{
		{"now", func() { kvindex.HashPrompt(ix, "m", tokens) }},
		{"first", func() { firstKeys(tokens) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tokens[0]++
				c.hash()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/block")
		})
	}
}

var first struct{ locals, keys []uint64 }

// firstKeys is hashing as it was at first: tokens copied into a buffer, xxh3 of that, and
// for each key xxh3 of the key before with the local.
func firstKeys(tokens []uint32) {
	var b [64]byte
	first.locals, first.keys = first.locals[:0], first.keys[:0]
	for i := 0; i+16 <= len(tokens); i += 16 {
		for j, t := 0, tokens[i:i+16]; j < 16; j += 2 {
			binary.LittleEndian.PutUint64(b[4*j:], uint64(t[j])|uint64(t[j+1])<<32)
		}
		first.locals = append(first.locals, xxh3.HashSeed(b[:], 1))
	}
	prev := uint64(2)
	for _, l := range first.locals {
		binary.LittleEndian.PutUint64(b[:8], prev)
		binary.LittleEndian.PutUint64(b[8:], l)
		prev = xxh3.Hash(b[:16])
		first.keys = append(first.keys, prev)
	}
}
