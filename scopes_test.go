package kvindex_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// A salt is told with the first block of a chain, or with each: what comes
// behind that block belongs to its root.
func TestASaltedChainKeepsItsRoot(t *testing.T) {
	for name, extended := range map[string]string{"without the salt": "", "with it": "pepper", "with another": "sugar"} {
		ix := open(t)
		p := newPrompt(1, 16, 3)
		e := func(from, to int, salt string) events.Event {
			e := events.Event{Kind: events.Stored, Tokens: p.tokens[from*16 : to*16], BlockSize: 16, Salt: salt, HasParent: from > 0}
			for i := from; i < to; i++ {
				e.Hashes = append(e.Hashes, p.hash+uint64(i))
			}
			if from > 0 {
				e.Parent = p.hash + uint64(from-1)
			}
			return e
		}
		for _, b := range []events.Batch{{Events: []events.Event{e(0, 1, "pepper")}}, {Events: []events.Event{e(1, 3, extended)}}} {
			if err := ix.ApplyBatch("a", "m", &b); err != nil {
				t.Fatal(err)
			}
		}
		for salt, want := range map[string]int{"pepper": 3, "": 0, "sugar": 0} {
			if got := score(t, ix, kvindex.Request{Tokens: p.tokens, Salt: salt})[0].MatchedBlocks; got != want {
				t.Errorf("extended %s, salt %q: %d blocks, want %d", name, salt, got, want)
			}
		}
	}
}

// Hashes in bytes and integers of one stream are one name.
func TestHashesInBytesAndIntegers(t *testing.T) {
	ix := open(t)
	p := newPrompt(0xfedcba98, 16, 6)
	send := func(inBytes bool, e fakeengine.Event) {
		t.Helper()
		if err := ix.Ingest("a", "m", fakeengine.Encoding{ByteHashes: inBytes}.Append(nil, &fakeengine.Batch{Events: []fakeengine.Event{e}})); err != nil {
			t.Fatal(err)
		}
	}
	for step, c := range []struct {
		inBytes bool
		event   fakeengine.Event
		want    int
	}{
		{false, p.stored(0, 2), 2},
		{true, p.stored(2, 4), 4},
		{false, p.stored(4, 6), 6},
		{true, p.removed(1), 1},
		{true, p.stored(1, 2), 6},
		{false, p.removed(3), 3},
		{false, p.removed(1), 1},
	} {
		send(c.inBytes, c.event)
		if got := blocks(t, ix, "a", p); got != c.want {
			t.Errorf("step %d: %d blocks, want %d", step, got, c.want)
		}
	}
}

// Names of tiers compare without case; what nobody knows is not the gpu.
func TestTierNames(t *testing.T) {
	for name, want := range map[string]kvindex.Tier{
		"": kvindex.TierGPU, "GPU": kvindex.TierGPU, "gPu": kvindex.TierGPU,
		"CPU": kvindex.TierCPU, "cpu_pinned": kvindex.TierCPU, "CPU_PINNED": kvindex.TierCPU,
		"DISK": kvindex.TierDisk, "storage": kvindex.TierDisk,
		"EXTERNAL": kvindex.TierRemote, "External": kvindex.TierRemote, "OBJ": kvindex.TierRemote,
		"GPU ": kvindex.TierOther, "GPU2": kvindex.TierOther, "HBM": kvindex.TierOther, "ＧＰＵ": kvindex.TierOther,
	} {
		ix := open(t)
		p := newPrompt(1, 16, 2)
		stored := p.stored(0, 2)
		stored.Medium = name
		removed := p.removed(0)
		ingest(t, ix, "a", stored)
		if got := ix.Stats().Blocks; got[want] == 0 || want != kvindex.TierGPU && got[kvindex.TierGPU] > 0 {
			t.Errorf("%q: %v", name, got)
		}
		ingest(t, ix, "a", removed)
		if got := ix.Stats().Blocks; want != kvindex.TierGPU && got[want] == 0 {
			t.Errorf("%q: removed from the gpu: %v", name, got)
		}
	}
}

// EAGLE's blocks are of pairs, one fewer than tokens, and the last pair of a
// prompt is computed always.
func TestPairs(t *testing.T) {
	ix := open(t)
	tokens := newPrompt(1, 1, 50).tokens
	store := func(hash uint64, pairs []uint32) {
		e := events.Event{Kind: events.Stored, Hashes: []uint64{hash}, Tokens: pairs, Pairs: true, BlockSize: 16, HasParent: hash > 1, Parent: hash - 1}
		if err := ix.ApplyBatch("a", "m", &events.Batch{Events: []events.Event{e}}); err != nil {
			t.Fatal(err)
		}
	}
	var pairs []uint32
	for i := range 48 {
		pairs = append(pairs, tokens[i], tokens[i+1])
	}
	store(1, pairs[:32])
	store(2, pairs[32:64])
	for n, want := range map[int][2]int{1: {}, 16: {}, 17: {1, 0}, 18: {1, 16}, 32: {1, 16}, 33: {2, 16}, 34: {2, 32}, 50: {2, 32}} {
		s := score(t, ix, kvindex.Request{Tokens: tokens[:n]})[0]
		if got := [2]int{s.MatchedBlocks, s.CachedTokens}; got != want {
			t.Errorf("%d tokens: got %v, want %v", n, got, want)
		}
	}
	pairs[64+2*7+1]++ // not the token that the next pair begins with
	store(3, pairs[64:])
	if got := score(t, ix, kvindex.Request{Tokens: tokens})[0].MatchedBlocks; got != 2 {
		t.Errorf("%d blocks with pairs that are no prompt's", got)
	}
	if n := ix.Stats().Unscored; n != 0 {
		t.Errorf("%d unscored", n)
	}
}

func TestProfiles(t *testing.T) {
	p := newPrompt(1, 16, 1)
	for _, c := range []struct {
		profile kvindex.Profile
		want    string
	}{
		{kvindex.Profile{}, ""},
		{kvindex.Profile{Media: kvindex.MediaPad, Copies: kvindex.CopiesSet}, ""},
		{kvindex.Profile{Media: index.NumMediaForms}, "unknown media form 3"},
		{kvindex.Profile{Copies: 4}, "unknown copies mode 4"},
	} {
		err := open(t, withProfile(c.profile)).Ingest("a", "m", payload(1, 0, p.stored(0, 1)))
		if got := fmt.Sprint(err); err == nil && c.want != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %v", c.profile, err)
		}
	}
}

// asked is an index that notes the keys of a prompt in some variants.
type asked struct {
	*index.Memory
	variants []index.Variant
	keys     [][]index.Key
}

func (a *asked) Match(_ context.Context, q *index.Query, _ *index.Matches) error {
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
	mem, err := index.NewMemory(index.MemoryConfig{Seed: testSeed})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	a := &asked{Memory: mem}
	ix := open(t, kvindex.WithIndex(a))
	all := []index.Variant{
		{Unit: 16},
		{Unit: 16, Media: index.MediaBare, Block: 16},
		{Unit: 16, Media: index.MediaBare, Block: 32},
		{Unit: 16, Media: index.MediaPad},
		{Unit: 16, Media: index.MediaPad, Pairs: true},
		{Unit: 16, Pairs: true},
		{Unit: 8},
		{Unit: 8, Media: index.MediaPad},
	}
	plain := kvindex.Request{Model: "m", Salt: "salt", Tokens: newPrompt(1, 16, 3).tokens, Pods: []string{"a"}}
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
	if sum != 0x5ce72a90aea1f19 {
		t.Errorf("the keys are others: %#x", sum)
	}
}
